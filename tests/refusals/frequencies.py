"""Frequencies: ladders, sets of several axes and directions."""

import math

import numpy as np

import rfrope
from rfrope import axial, golden_gate, mixed, mrope
from rfrope.frequencies import fold, from_generators, from_wavelengths, isotropic, xpos_scales

UNIT, FOUR, GATE = np.eye(4), np.ones((4, 2)), {"n_blocks": 4, "low": 1.0, "high": 2.0}
SKEW = np.random.default_rng(0).standard_normal((2, 4, 4))
SKEW -= np.swapaxes(SKEW, -1, -2)
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
    # generators
    (lambda: from_generators(np.zeros((3, 3))), ValueError, "generators has shape (3, 3); expected (k, d, d), or (d"),
    (lambda: from_generators(np.eye(2)), ValueError, "generators holds a matrix that is not skew-symmetric"),
    (lambda: from_generators(SKEW), ValueError, "generators 0 and 1 do not commute: their relative commutator is 0."),
    (lambda: fold(np.ones((5, 2)), UNIT), ValueError, "weight has shape (5, 2), but basis (4, 4); expected d = 4"),
    (lambda: fold(FOUR, np.stack([UNIT] * 2)), ValueError, "expected d = 4 rows a head"),
    (lambda: fold(FOUR, 2.0 * UNIT), ValueError, "basis is not orthogonal"),
    (lambda: fold(FOUR, np.ones(4)), ValueError, "basis has shape (4,)"),
    (lambda: fold(FOUR.astype(int), UNIT), TypeError, ("weight has shape", "int64")),
]  # fmt: skip
