"""Frequencies: ladders, sets of several axes and directions."""

import math

import numpy as np

import rfrope
from rfrope import axial
from rfrope.frequencies import from_generators

UNIT, FOUR = np.eye(4), np.ones((4, 2))
SKEW = np.random.default_rng(0).standard_normal((2, 4, 4))
SKEW -= np.swapaxes(SKEW, -1, -2)
HALF, INTERLEAVED = (rfrope.Rope([1.0], pairing=pairing) for pairing in ("half", "interleaved"))

ROWS = [
    (lambda: axial(), ValueError, "axial got no set"),
    (lambda: axial([1.0], 2.0), ValueError, "sets[1] is a single number; expected (D,)"),
    (lambda: axial([1.0], order="mixed"), ValueError, "order is 'mixed'; expected one of 'chunked', 'interleaved'"),
    (lambda: axial([1.0], [1.0, math.nan]), ValueError, "sets[1] holds NaN"),
    (lambda: axial(np.ones((2, 4, 1)), np.ones((3, 4, 1))), ValueError, "do not broadcast: (2,) of those before and"),
    (lambda: axial(HALF, INTERLEAVED), ValueError, "sets differ in pairing, attention_factor, polar: "),
    # generators
    (lambda: from_generators(SKEW), ValueError, "generators 0 and 1 do not commute: their relative commutator is 0."),
]  # fmt: skip
