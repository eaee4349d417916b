"""Shapes that do not meet, and options that conflict: what the sweep of bad input once found unclear."""

import numpy as np
from calls import AT, LADDER, X
from conftest import library

import rfrope
from rfrope import bochner, frequencies, heads, rotation


def unknown():
    dask = library("dask").module
    return dask.ones((8, 4), chunks=4)[dask.ones(8, chunks=4) > 0.0]


ROWS = [
    (lambda: rfrope.rotate(X, AT, LADDER, shift=np.ones((5, 1, 4))), ValueError, "phases from positions and shift"),
    (lambda: rfrope.rotate_by_phases(X, X[:, :4], scale=np.ones((5, 1, 1))), ValueError,
     "phases from phases and scale"),
    (lambda: rfrope.rotate(X, np.ones((3, 1)), np.ones((5, 4, 1))), ValueError,
     "phases from positions and frequencies have"),
    (lambda: rotation.rerotate(X, AT, np.ones((1, 4, 1)), LADDER), ValueError, "frequencies of old of shape"),
    (lambda: heads.shifted_mean_kernel(1, [1.0, 2.0], [0.0] * 3), ValueError,
     "shift and the phases from lags and frequencies do not broadcast"),
    (lambda: frequencies.xpos_scales([0], 2, centre=1e9), ValueError, "565 times scale_base from centre"),
    (lambda: bochner.from_density(np.exp, support={1, 2}), TypeError, "support is {1, 2}; expected two numbers"),
    (lambda: rfrope.Rope(LADDER, head_dim=8).scores(np.ones((3, 10)), np.ones((3, 10)), AT, AT), ValueError,
     "q has 10 features, but head_dim is 8"),
    (lambda: rfrope.Rope(unknown()[:, 0]), ValueError,
     "frequencies has lengths that are not known; expected known ones: freq"),
    (lambda: rfrope.rotate(unknown(), 3, [1.0, 0.5]), ValueError, "x has lengths that are not known"),
]  # fmt: skip
