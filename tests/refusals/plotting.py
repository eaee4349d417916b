"""Figures: what is refused before one is opened (`tests/plotting/test_figures.py` looks that none is)."""

import numpy as np

from rfrope import heads, plotting

ROWS = [
    (lambda: plotting.attention(heads.positional_attention(np.eye(2), (4, 4), offset=(-1, 0), causal=False)),
     ValueError, "expected lags along one axis"),
]  # fmt: skip
