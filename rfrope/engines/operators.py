"""Operators that take tables or phases of a Rope, each in its own form, and plain files, JSON and NumPy arrays."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from rfrope.engines import formats
from rfrope.engines.record import Arithmetic, ExportRequest, make_engine


def _double(x: np.ndarray, interleaved: bool) -> np.ndarray:
    """Return one number for each feature, from one for each block."""
    return np.repeat(x, 2, axis=-1) if interleaved else np.concatenate([x, x], axis=-1)


def _refuse_part(request: ExportRequest) -> str:
    whole, turned = request.rope.head_dim, request.rope.rotary_dim
    return "" if whole == turned else f"it turns whole heads, and the Rope turns {turned} features"


def _make_offsets(request: ExportRequest) -> dict[str, Any]:
    """Return tables and, with one set per head, the offsets of one text: row ``h S + p`` is position p of head h."""
    cos, sin = request.table()
    made = {"cos": cos, "sin": sin, "interleaved": request.interleaved}
    return made if request.heads is None else made | {"heads": request.heads, "seqlen_offsets": request.first_rows}


FLASH_ATTN = make_engine("flash-attn", _make_offsets, formats.round_once)


FLASHINFER = make_engine(
    "FlashInfer",
    # alone takes frequencies, and computes no phase itself
    lambda request: formats.make_cache(request) | {"function": "flashinfer.apply_rope_with_cos_sin_cache"},
    formats.round_once,
)


LMCACHE = make_engine(
    "LMCache",
    # without the attention factor: cached keys have it, and would get its square on top
    lambda request: formats.make_cache(replace(request, rope=replace(request.rope, attention_factor=1.0))),
    # an entry of the turn that two rows make: the error of both rows, two products and their sum
    lambda request, made: Arithmetic(None, 0.0, 6.0 * formats.round_once(request, made).entry_error),
)


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


def _make_phases(request: ExportRequest) -> dict[str, Any]:
    """Return phases below a turn, ``(S, 1, 1, d)``, or for one set per head ``(H S, 1, 1, d)`` and first rows."""
    cos, sin = request.exact_table()
    phases = np.arctan2(sin, cos).astype(np.float32)  # float32 resolves them at far positions, too
    made = {"freqs": _double(phases, request.interleaved)[:, None, None, :], "interleaved": request.interleaved}
    return made if request.heads is None else made | {"heads": request.heads, "start_positions": request.first_rows}


TRANSFORMER_ENGINE = make_engine(
    "TransformerEngine",
    _make_phases,
    # phases of at most half a turn, rounded once, and their cos and sin in float32
    lambda request, made: Arithmetic(None, 0.0, (np.pi + 2.0) * formats.ULP),
)


def _make_doubled(request: ExportRequest) -> dict[str, Any]:
    """Return tables ``(1, S, d)``, each half twice (it reads the first); ``(H, S, d)`` with one set per head."""
    shape = (request.heads or 1, request.context or 0, -1)
    cos, sin = (_double(one, False).reshape(shape) for one in request.table())
    return {"cos": cos, "sin": sin}


LIGER = make_engine("Liger-Kernel", _make_doubled, formats.round_once, _refuse_part)


def _make_padded(request: ExportRequest) -> dict[str, Any]:
    """Return tables ``(rows, head_dim)``: features that do not turn have cos 1 and sin 0."""
    cos, sin = (_double(one, request.interleaved) for one in request.table())
    rest = ((0, 0), (0, (request.rope.head_dim or 0) - request.rope.rotary_dim))
    made: dict[str, Any] = {"cos": np.pad(cos, rest, constant_values=1.0), "sin": np.pad(sin, rest)}
    made |= {"use_real": True, "use_real_unbind_dim": -1 if request.interleaved else -2}
    return made if request.heads is None else made | {"heads": request.heads}


def _refuse_halves(request: ExportRequest) -> str:
    """Return why halves of a part do not fit: the engine splits the whole head."""
    rope = request.rope
    if rope.head_dim == rope.rotary_dim or request.interleaved:
        return ""
    return f"it pairs the halves of the whole head of {rope.head_dim} features, and the Rope those of its first part"


DIFFUSERS = make_engine("diffusers", _make_padded, formats.round_once, _refuse_halves)


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
