"""diffusers: ``apply_rotary_emb`` of its transformers, with cos/sin tables of one row per token."""

from __future__ import annotations

from typing import Any

import numpy as np

from rfrope.engines import formats
from rfrope.engines.record import Engine, ExportRequest, Format


def _make_tables(request: ExportRequest) -> dict[str, Any]:
    """Return tables ``(rows, head_dim)``: features that do not turn have cos 1 and sin 0."""
    tables = request.table()
    if request.interleaved:
        cos, sin = (np.repeat(one, 2, axis=-1) for one in tables)
    else:
        cos, sin = (np.concatenate([one, one], axis=-1) for one in tables)
    rest = ((0, 0), (0, (request.rope.head_dim or 0) - request.rope.rotary_dim))
    made: dict[str, Any] = {"cos": np.pad(cos, rest, constant_values=1.0), "sin": np.pad(sin, rest)}
    made |= {"use_real": True, "use_real_unbind_dim": -1 if request.interleaved else -2}
    return made if request.heads is None else made | {"heads": request.heads}


def _refuse_part(request: ExportRequest) -> str:
    """Return why halves of a part would be others: it splits the whole head."""
    rope = request.rope
    if rope.head_dim == rope.rotary_dim or request.interleaved:
        return ""
    return f"it pairs the halves of the whole head of {rope.head_dim} features, the Rope those of its first part"


ENGINE = Engine(
    "diffusers",
    format=Format(
        "``freqs_cis=(cos, sin)`` of ``models.embeddings.apply_rotary_emb`` and its flags: row p is position p, and "
        "other positions (or grids) take ``cos[positions]``",
        formats.ONCE,
        f"diffusers 0.40.0.dev0, src/diffusers/models/embeddings.py of 58eb52c; {formats.RUN}: 0.42.1",
        _make_tables,
        formats.round_once,
        heads="view contiguous ``(B, H, S, d)`` as ``(B, 1, H S, d)``: the tables have H S rows, and S is the "
        "length of the text",
        options=("context", "dtype"),
        refusal=_refuse_part,
        cannot="halves of a part of a head",
    ),
)
