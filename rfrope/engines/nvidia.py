"""TensorRT-LLM, whose PyTorch classes read configs, and Megatron-Bridge, which makes models of Megatron-Core."""

from __future__ import annotations

from typing import Any

from rfrope.engines import formats, observed
from rfrope.engines.record import Engine, ExportRequest, make_engine


def _make_rope_scaling(request: ExportRequest) -> dict[str, Any]:
    """Return the keys of older configs, and the original context beside them, where the engine looks first."""
    made, key = formats.make_rope_scaling(request), "original_max_position_embeddings"
    scaling = made["rope_scaling"] or {}
    if request.scheme is None:
        del scaling["attention_factor"]
    return made | ({key: scaling[key]} if key in scaling else {})


ENGINE = make_engine(
    "TensorRT-LLM", _make_rope_scaling, formats.compute_longrope, reading=observed.reading("TensorRT-LLM")
)


MEGATRON_BRIDGE = Engine("Megatron-Bridge", observed.reading("Megatron-Bridge"))
