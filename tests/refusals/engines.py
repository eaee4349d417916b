"""Engines: what one set of tables, one width or one operator cannot carry."""

from dataclasses import replace

import numpy as np

import rfrope
from rfrope import Rope, engines

ROPE = Rope(rfrope.geometric(8), context=8)
WIDER = replace(ROPE, head_dim=24)
HEADS = Rope(np.ones((2, 8, 1)), context=8)
SHARED = [one.name for one in engines.records() if one.format and not (one.format.heads or one.format.any_rope)]

MORE = Rope(np.ones((2, 3, 8, 1)), context=8)

ROWS = [
    *(
        (lambda to=to: engines.export(HEADS, to), ValueError, "shape (2, 8, 1), one set per head, but the engine")
        for to in SHARED
    ),
    (lambda: engines.export(MORE, "flash-attn"), ValueError, "shape (2, 3, 8, 1), one set per head"),
    (lambda: engines.export(WIDER, "diffusers"), ValueError, "pairs the halves of the whole head of 24 features"),
]
