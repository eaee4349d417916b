"""Figures: what is refused before one is opened (`tests/plotting/test_figures.py` looks that none is)."""

import numpy as np

import rfrope
from rfrope import heads, plotting

KERNEL = rfrope.kernel("gaussian", scale=16.0)

ROWS = [
    (lambda: plotting.kernel("gausian", 8), ValueError, "gausian"),
    (lambda: plotting.kernel(KERNEL, 8, frequencies=np.ones((4, 2))), ValueError, "frequencies have 2 axes; expected"),
    (lambda: plotting.kernel(KERNEL, 8, frequencies=[]), ValueError, "at least one block"),
    (lambda: plotting.attention([0.5]), TypeError, "result is"),
    (lambda: plotting.attention(heads.positional_attention(np.eye(2), (4, 4), offset=(-1, 0), causal=False)),
     ValueError, "expected lags along one axis"),
    (lambda: plotting.mean_kernels({}, 8), TypeError, "sets is {}; expected frequencies by label"),
    (lambda: plotting.wavelengths([[0.5]]), TypeError, "sets is"),
    (lambda: plotting.wavelengths({"h": np.ones((2, 3, 1))}), ValueError, "sets['h'] has 2 heads; expected (D,) or"),
    (lambda: plotting.mean_kernels({"h": [np.nan]}, 8), ValueError, "sets['h'] holds NaN"),
    (lambda: plotting.mean_kernels({"window": [0.5], "whole": [0.5]}, {"window": 100}), ValueError,
     "max_lag has nothing for 'whole'"),
    (lambda: plotting.validation("passed"), TypeError, "result is 'passed'"),
]  # fmt: skip
