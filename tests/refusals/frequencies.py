"""Frequencies: ladders, sets of several axes and directions."""

import math

import numpy as np

import rfrope
from rfrope import axial, golden_gate, mixed, mrope
from rfrope.frequencies import (
    from_wavelengths,
    isotropic,
    xpos_scales,
)

GATE = {"n_blocks": 4, "low": 1.0, "high": 2.0}
HALF, INTERLEAVED = (rfrope.Rope([1.0], pairing=pairing) for pairing in ("half", "interleaved"))
EDGE = "positions holds NaN or infinity, or numbers more than 565 * 1.0 from 0.0"

ROWS = [
    # ladders
    *(
        (lambda value=value: from_wavelengths([1.0, value]), ValueError, "wavelengths holds zero, negative numbers")
        for value in (0.0, 1e-160)
    ),
    (lambda: xpos_scales([-565.5], 3, scale_base=1.0), ValueError, EDGE),
    (lambda: xpos_scales([565.5], 3, scale_base=1.0), ValueError, EDGE),
    # axes
    (lambda: axial(), ValueError, "axial got no set"),
    (lambda: axial([1.0], 2.0), ValueError, "sets[1] is a single number; expected (D,)"),
    (lambda: axial([1.0], order="mixed"), ValueError, "order is 'mixed'; expected one of 'chunked', 'interleaved'"),
    (lambda: axial([1.0], [1.0, math.nan]), ValueError, "sets[1] holds NaN"),
    (lambda: axial(np.ones((2, 4, 1)), np.ones((3, 4, 1))), ValueError, "do not broadcast: (2,) of those before and"),
    (lambda: axial(HALF, INTERLEAVED), ValueError, "sets differ in pairing, attention_factor, polar: "),
    (lambda: mixed(3, [0.0]), ValueError, "n_blocks is 3; expected an even number"),
    (lambda: golden_gate(**GATE | {"low": 3.0}), ValueError, "low is 3.0 and high is 2.0; expected low <= high"),
    (lambda: golden_gate(**GATE, zero_blocks=5), ValueError, "zero_blocks is 5; expected at most n_blocks, 4"),
    (lambda: golden_gate(5, low=1e-320, high=1e300, ndim=3), ValueError,
     "high is 1e+300; expected a positive number up to 2**500"),
    (lambda: mrope([1.0] * 4, (2, 1)), ValueError, "sections (2, 1) sum to 3; expected D = 4"),
    (lambda: mrope([1.0] * 4, (2.0, 2)), TypeError, "sections[0] is 2.0"),
    (lambda: mrope([1.0] * 4, "22"), TypeError, "sections is '22'; expected a whole number for each"),
    (lambda: mrope(np.ones((4, 1)), (2, 2)), ValueError, "frequencies has shape (4, 1); expected (D,)"),
    (lambda: mrope([1.0, 2.0**600], [1, 1]), ValueError, "holds NaN or infinity, or magnitudes above 2**500"),
    (lambda: mrope(np.ones(32), (8, 12, 12), interleaved=True), ValueError, "sections (8, 12, 12) interleaved put"),
    # directions
    (lambda: isotropic([1.0], 1025, ndim=3), ValueError, "n_directions is 1025; expected at most 1024 in three axes"),
]  # fmt: skip
