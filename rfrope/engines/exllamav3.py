"""exllamav3: its reading of configs, and its kernel, which takes phases for each position."""

from __future__ import annotations

from typing import Any

import numpy as np

from rfrope.engines import formats, observed
from rfrope.engines.record import Arithmetic, ExportRequest, make_engine

_GPTJ, _NEOX = 1, 2  # of its RopeStyle
_FAST = 2.0**-21.19  # largest error of CUDA's __cosf in half a turn, and of __sinf at most; CUDA C++ Programming Guide


def _make_phases(request: ExportRequest) -> dict[str, Any]:
    """Return phases ``(1, S, D)``, or ``(H, S, D)`` for sets of each head: its kernel takes one per text."""
    phases = formats.make_phases(request).reshape(request.heads or 1, request.context or 0, -1)
    style = _GPTJ if request.interleaved else _NEOX
    return {"inv_freq": phases, "attn_factor": request.rope.attention_factor, "rope_style": style}


ENGINE = make_engine(
    "exllamav3",
    _make_phases,
    # phases of at most half a turn, their cos and sin, and the product with the factor
    lambda request, made: Arithmetic(None, 0.0, np.pi * formats.ULP + _FAST + formats.ULP),
    reading=observed.reading("exllamav3"),
)
