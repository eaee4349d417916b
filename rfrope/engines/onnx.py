"""ONNX: the operator RotaryEmbedding, with cos/sin tables."""

from __future__ import annotations

from typing import Any

from rfrope.engines import formats
from rfrope.engines.record import Engine, ExportRequest, Format


def _make_node(request: ExportRequest) -> dict[str, Any]:
    """Return inputs and attributes of RotaryEmbedding, operator set 23, and its node."""
    cos, sin = request.table()
    width = request.rope.rotary_dim
    attributes = {
        "interleaved": int(request.interleaved),
        "rotary_embedding_dim": 0 if width == request.rope.head_dim else width,
    }
    node = {"op_type": "RotaryEmbedding", "domain": "", "opset": 23, "output": ["Y"]}
    node |= {"input": ["X", "cos_cache", "sin_cache", "position_ids"], "attributes": attributes}
    return {"cos_cache": cos, "sin_cache": sin, **attributes, "node": node}


ENGINE = Engine(
    "ONNX",
    format=Format(
        "``cos_cache`` and ``sin_cache`` of RotaryEmbedding-23, and the node",
        formats.ONCE,
        f"ONNX 1.23.2, operator set 23; {formats.RUN}: onnxruntime",
        _make_node,
        formats.round_once,
        (".onnx", ".npz"),
        options=("context", "dtype"),
    ),
)
