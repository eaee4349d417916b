"""flash-attention: ``apply_rotary_emb``, given tables of cos and sin."""

from __future__ import annotations

from typing import Any

from rfrope.engines import formats
from rfrope.engines.record import Engine, ExportRequest, Format


def _make_tables(request: ExportRequest) -> dict[str, Any]:
    cos, sin = request.table()
    return {"cos": cos, "sin": sin, "interleaved": request.interleaved}


ENGINE = Engine(
    "flash-attn",
    format=Format(
        "``cos`` and ``sin`` of ``apply_rotary_emb``, in the dtype of q and k",
        formats.ONCE,
        f"flash-attention, flash_attn/ops/triton/rotary.py of 03f6a6b; {formats.READ}",
        _make_tables,
        formats.round_once,
        options=("context", "dtype"),
    ),
)
