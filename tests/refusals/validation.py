"""What ``validate`` refuses."""

import math

import numpy as np

from rfrope import validate

VECTOR = [1.0, 2.0]
PLANE = {"kernel": "gaussian(ndim=2)"}


def of(**changes):
    return lambda: validate(**({"kernel": "gaussian", "n_samples": 100, "n_trials": 100, "rng": 0} | changes))


ROWS = [
    (of(kernel="gausian"), ValueError, "gausian"),
    (of(q=VECTOR), ValueError, "k is missing"),
    (of(k=VECTOR), ValueError, "q is missing"),
    (of(q=VECTOR, k=[1.0, 2.0, 3.0, 4.0]), ValueError, ("q has shape", "but k has")),
    (of(q=[VECTOR] * 2, k=[VECTOR] * 3), ValueError, ("q has shape", "but k has")),
    (of(q=[1, 2], k=[1, 2]), ValueError, ("q has shape", "dtype int")),
    (of(q=[1.0, math.nan], k=VECTOR), ValueError, ("q ", "finite")),
    (of(q=np.full((1, 4), 1e100), k=np.ones((1, 4))), ValueError, "q holds NaN, infinity or magnitudes above 1e30"),
    (of(q=[1.0, 2.0, 3.0], k=[1.0, 2.0, 3.0]), ValueError, "q has shape"),
    (of(lags=[1.0, 2.0], **PLANE), ValueError, "lags has shape"),
    (of(lags=[[1.0, 2.0, 3.0]], **PLANE), ValueError, "lags has shape"),
    (of(n_samples=1), ValueError, "n_samples is"),
    (of(n_trials=3), ValueError, "n_trials is"),
    (of(n_blocks=33), ValueError, "n_blocks is"),
    (of(polar=1), TypeError, "polar is 1; expected True or False"),
    (of(polar=True, q=[1.0, -2.0], k=VECTOR), ValueError, "q holds negative numbers, but polar is True"),
    (of(polar=True, pairing="interleaved"), ValueError, "pairing is 'interleaved', but polar contents"),
    (of(polar=True, shift=VECTOR), ValueError, "shift has shape (2,); expected (64,)"),
    (of(polar=True, shift=[math.nan]), ValueError, "shift holds NaN"),
    (of(polar=True, n_blocks=65), ValueError, "n_blocks is"),
    (of(shift=[1.0]), ValueError, "shift was given, but polar is False"),
]
