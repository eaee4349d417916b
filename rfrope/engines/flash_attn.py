"""flash-attention: ``apply_rotary_emb``, with cos/sin tables."""

from __future__ import annotations

from typing import Any

from rfrope.engines import formats
from rfrope.engines.record import Engine, ExportRequest, Format


def _make_tables(request: ExportRequest) -> dict[str, Any]:
    """Return tables, and for sets of each head the offsets of one text: row ``h S + p`` is position p of head h."""
    cos, sin = request.table()
    made = {"cos": cos, "sin": sin, "interleaved": request.interleaved}
    return made if request.heads is None else made | {"heads": request.heads, "seqlen_offsets": request.first_rows}


ENGINE = Engine(
    "flash-attn",
    format=Format(
        "``cos`` and ``sin`` of ``apply_rotary_emb``, in the dtype of q and k",
        formats.ONCE,
        f"flash-attention, flash_attn/ops/triton/rotary.py of 03f6a6b; {formats.READ}",
        _make_tables,
        formats.round_once,
        heads="fold heads into the batch: view contiguous ``(B, H, S, d)`` as ``(B H, S, 1, d)``, and repeat "
        "``seqlen_offsets``, which is ``h S``, for each text of the batch (plus the position at which it begins). The "
        "tables have H S rows: a text that goes on beyond S would read those of the next head",
        options=("context", "dtype"),
    ),
)
