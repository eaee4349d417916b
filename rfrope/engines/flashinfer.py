"""FlashInfer: ``apply_rope_with_cos_sin_cache``, given one table of cos beside sin."""

from __future__ import annotations

from typing import Any

import numpy as np

from rfrope.engines import formats
from rfrope.engines.record import Engine, ExportRequest, Format


def _make_cache(request: ExportRequest) -> dict[str, Any]:
    table = np.concatenate(request.table(), axis=-1)
    return {"cos_sin_cache": table, "head_size": request.rope.head_dim, "is_neox": not request.interleaved}


ENGINE = Engine(
    "FlashInfer",
    format=Format(
        "``cos_sin_cache`` of ``apply_rope_with_cos_sin_cache``, float32",
        formats.ONCE,
        f"FlashInfer, flashinfer/rope.py; {formats.READ}",
        _make_cache,
        formats.round_once,
    ),
)
