"""Closed forms of scores: contents that fit, designs whose pairs are known, and numbers of blocks."""

import numpy as np
from conftest import library

from rfrope import blocks_for_error, expected_score, score_variance
from rfrope.moments import polar_variance, relative_error

ONE, FOUR, PAIR = np.ones(4), np.ones((4, 2)), [1.0, 2.0]
FUNCTIONS = (expected_score, score_variance, relative_error)


def polar(q=ONE, k=ONE, lags=(1.0,), kernel="gaussian(scale=32)", **options):
    return polar_variance(q, k, lags, kernel, **options)


def of_gradient():
    torch = library("torch").module
    return polar(torch.ones(4), torch.ones(4), torch.ones(1, requires_grad=True), design="stratified")


ROWS = [
    *((lambda f=f: f([1.0] * 3, PAIR, 1.0, "gaussian"), ValueError, "q has ") for f in FUNCTIONS),
    *((lambda f=f: f([PAIR] * 3, PAIR, [0.0, 1.0], "gaussian"), ValueError, "q") for f in FUNCTIONS),
    *((lambda f=f: f(PAIR, PAIR, 1.0, "gausian"), ValueError, "gausian") for f in FUNCTIONS),
    *((lambda f=f: f(PAIR, PAIR, 1.0, "gaussian", pairing="halves"), ValueError, "pairing is") for f in FUNCTIONS),
    (lambda: polar(design="balanced"), ValueError, "design is 'balanced', whose pairs"),
    (lambda: polar(design=np.ones(5)), ValueError, "design has 5 frequencies of 1 axes, but q and k have 4 magnitudes"),
    (lambda: polar(design=FOUR), ValueError, "design has 4 frequencies of 2 axes"),
    (of_gradient, TypeError, "lags require a gradient"),
    (lambda: blocks_for_error("gaussian", max_lag=(1, 2), error=0.1), ValueError, "max_lag is (1, 2); expected one"),
]
