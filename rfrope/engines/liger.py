"""Liger-Kernel: ``liger_rotary_pos_emb``, with cos/sin tables for each text of a batch."""

from __future__ import annotations

from typing import Any

import numpy as np

from rfrope.engines import formats
from rfrope.engines.record import Engine, ExportRequest, Format


def _make_tables(request: ExportRequest) -> dict[str, Any]:
    """Return tables ``(1, S, d)``, halves twice, of which it reads the first; ``(H, S, d)`` for sets of each head."""
    shape = (request.heads or 1, request.context or 0, -1)
    cos, sin = (np.concatenate([one, one], axis=-1).reshape(shape) for one in request.table())
    return {"cos": cos, "sin": sin}


def _refuse_part(request: ExportRequest) -> str:
    rope = request.rope
    return "" if rope.head_dim == rope.rotary_dim else f"it turns whole heads, the Rope {rope.rotary_dim} features"


ENGINE = Engine(
    "Liger-Kernel",
    format=Format(
        "``cos`` and ``sin`` of ``liger_rotary_pos_emb``, ``(1, S, d)`` for all texts of a batch that begin at 0, or "
        "one table for each text, of its length: ``cos[0, positions]`` with positions ``(B, S)``. It computes in their "
        "dtype",
        formats.ONCE,
        f"Liger-Kernel 0.8.2, src/liger_kernel/ops/rope.py of ead96b6; {formats.RUN}, in Triton's interpreter",
        _make_tables,
        formats.round_once,
        pairings=("half",),
        heads="view q as ``(B H, 1, S, d)``: the tables ``(H, S, d)`` are those of one text, cut to its length and "
        "repeated for each text of the batch",
        options=("context", "dtype"),
        refusal=_refuse_part,
        cannot="a part of a head",
    ),
)
