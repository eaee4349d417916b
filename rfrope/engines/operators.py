"""Operators that take tables of a Rope, each in its own form, and plain files, JSON and NumPy arrays."""

from __future__ import annotations

from typing import Any

from rfrope.engines import formats
from rfrope.engines.record import Arithmetic, ExportRequest, make_engine


def _make_offsets(request: ExportRequest) -> dict[str, Any]:
    """Return tables and, with one set per head, the offsets of one text: row ``h S + p`` is position p of head h."""
    cos, sin = request.table()
    made = {"cos": cos, "sin": sin, "interleaved": request.interleaved}
    return made if request.heads is None else made | {"heads": request.heads, "seqlen_offsets": request.first_rows}


FLASH_ATTN = make_engine("flash-attn", _make_offsets, formats.round_once)


FLASHINFER = make_engine("FlashInfer", formats.make_cache, formats.round_once)


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


ONNX = make_engine("ONNX", _make_node, formats.round_once)


# -- plain files -------------------------------------------------------------------------------------------------------


def _describe(request: ExportRequest) -> dict[str, Any]:
    """Return everything but the frequencies, as plain numbers and strings."""
    rope = request.rope
    about: dict[str, Any] = {"units": "radians per unit of position", "pairing": rope.pairing}
    about |= {"head_dim": rope.head_dim, "rotary_dim": rope.rotary_dim, "attention_factor": rope.attention_factor}
    context = list(rope.context) if isinstance(rope.context, tuple) else rope.context
    about |= {"context": context if request.context is None else request.context}
    return about | {"sections": rope.sections and list(rope.sections), "interleaved_sections": rope.interleaved}


def _make_arrays(request: ExportRequest) -> dict[str, Any]:
    """Return frequencies in float64, and cos and sin where there is a context on one axis."""
    made = _describe(request) | {"frequencies": request.rope.frequencies, "vectors": request.rope.vectors}
    if request.context is not None and made["vectors"].ndim == 1:
        made["cos"], made["sin"] = request.table()
    return made


JSON = make_engine(
    "json",
    lambda request: _describe(request) | {"frequencies": request.rope.frequencies.tolist()},  # all their digits
    lambda request, _: Arithmetic(request.rope.frequencies, 0.0, 0.0),
)


NPZ = make_engine("npz", _make_arrays, lambda request, _: Arithmetic(request.rope.frequencies, 0.0, 0.0))
