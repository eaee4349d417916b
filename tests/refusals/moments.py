"""Closed forms of scores: contents that fit, designs whose pairs are known, and numbers of blocks."""

import numpy as np
from conftest import library

from rfrope import blocks_for_error, expected_score, score_variance
from rfrope.moments import kernel_gap, mean_kernel_band, polar_tail, polar_variance, relative_error

ONE, FOUR, PAIR = np.ones(4), np.ones((4, 2)), [1.0, 2.0]
FUNCTIONS = (expected_score, score_variance, relative_error)
REAL = {"max_lag": 32, "error": 0.1, "lags": "real"}
ROUGH = (
    *("exponential(scale=8)", "matern(nu=1, scale=8)", "power_exponential(exponent=1.5)", "matern(nu=0.9999)"),
    *("power_exponential(exponent=1.9998)", "power_exponential(exponent=1.9999999)"),
)


def polar(q=ONE, k=ONE, lags=(1.0,), kernel="gaussian(scale=32)", **options):
    return polar_variance(q, k, lags, kernel, **options)


def of_gradient():
    torch = library("torch").module
    return polar(torch.ones(4), torch.ones(4), torch.ones(1, requires_grad=True), design="stratified")


ROWS = [
    (lambda: kernel_gap(np.ones((4, 2)), "gaussian", 8), ValueError, "shape (4, 2)"),
    (lambda: kernel_gap(np.ones(4), np.ones(3), 8), ValueError, "expected (D,) or (H, D, 1), and a kernel of one axis"),
    (lambda: kernel_gap(np.ones(4), "gaussian", 0), ValueError, "context is 0; expected a whole number from 1"),
    *((lambda f=f: f([1.0] * 3, PAIR, 1.0, "gaussian"), ValueError, "q has ") for f in FUNCTIONS),
    *((lambda f=f: f([PAIR] * 3, PAIR, [0.0, 1.0], "gaussian"), ValueError, "q") for f in FUNCTIONS),
    *((lambda f=f: f(PAIR, PAIR, 1.0, "gausian"), ValueError, "gausian") for f in FUNCTIONS),
    *((lambda f=f: f(PAIR, PAIR, 1.0, "gaussian", pairing="halves"), ValueError, "pairing is") for f in FUNCTIONS),
    (lambda: expected_score(PAIR, PAIR, [1.0] * 3, "gaussian(ndim=2)"), ValueError, "lags has shape"),
    (lambda: polar(q=[-1.0, 1, 1, 1]), ValueError, "q holds negative numbers; expected magnitudes"),
    (lambda: polar(k=[1.0, 1, 1, -1e-9]), ValueError, "k holds negative numbers"),
    (lambda: polar(q=[1, 1, 1, 1]), TypeError, "q has dtype int64"),
    (lambda: polar(q=1.0), ValueError, "q is a single number"),
    (lambda: polar(q=np.ones(8)), ValueError, "q has shape (8,) but k has (4,)"),
    (lambda: polar(shift=np.ones(8)), ValueError, "shift has shape (8,), but q and k have 4 magnitudes"),
    (lambda: polar(lags=[[1.0, 2.0, 3.0]], kernel="gaussian(ndim=2)"), ValueError, "lags has shape"),
    (lambda: polar(design="balanced"), ValueError, "design is 'balanced', whose pairs"),
    (lambda: polar(design="straitfied"), ValueError, "design is 'straitfied'"),
    (lambda: polar(design=np.ones(5)), ValueError, "design has 5 frequencies of 1 axes, but q and k have 4 magnitudes"),
    (lambda: polar(design=FOUR), ValueError, "design has 4 frequencies of 2 axes"),
    (of_gradient, TypeError, "lags require a gradient"),
    (lambda: polar_tail(ONE, ONE, 1.0, "gaussian", -1.0), ValueError, "distance holds negative"),
    (lambda: blocks_for_error("gaussian", max_lag=0, error=0.1), ValueError, "max_lag is 0; expected a whole number"),
    (lambda: blocks_for_error("gaussian", max_lag=(1, 2), error=0.1), ValueError, "max_lag is (1, 2); expected one"),
    (lambda: blocks_for_error("gaussian", max_lag=16, error=1e-200), ValueError, ("error is 1e-200;", "2**62 blocks")),
    (lambda: blocks_for_error("gaussian", **REAL | {"lags": "all"}), ValueError, "lags is 'all'"),
    *((lambda law=law: blocks_for_error(law, **REAL), ValueError, "no finite variance") for law in ROUGH),
    (lambda: mean_kernel_band(1.0, "gaussian", n_blocks=4, confidence=2), ValueError, "confidence is 2; expected"),
    (lambda: mean_kernel_band(1.0, "gaussian", n_blocks=0), ValueError, "n_blocks is 0; expected a whole number"),
]
