"""Engines: what one set of tables, one width or one operator cannot carry."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

import rfrope
from rfrope import Rope, exports
from rfrope.engines import formulas

ROPE = Rope(rfrope.geometric(8), context=8)
HEADS = Rope(np.ones((2, 8, 1)), context=8)
SHARED = [one.name for one in exports.records() if not (one.format.heads or one.format.any_rope)]

ROWS = [
    *(
        (
            lambda engine=engine: exports.export(HEADS, engine),
            ValueError,
            "shape (2, 8, 1), one set per head, but heads",
        )
        for engine in SHARED
    ),
    (
        lambda: exports.export(Rope(np.ones((2, 3, 8, 1)), context=8), "flash-attn"),
        ValueError,
        "shape (2, 3, 8, 1), one set per head",
    ),
    (
        lambda: exports.export(replace(ROPE, head_dim=24), "diffusers"),
        ValueError,
        "pairs the halves of the whole head of 24 features",
    ),
    *(
        (
            lambda count=count: formulas.divide_ladder(np.ones(4), [1.0] * count),
            formulas.RefusedError,
            f"stops with an error: {count} factors for 4 frequencies",
        )
        for count in (3, 5)
    ),
]
