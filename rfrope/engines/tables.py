"""Engines whose operators are given tables, or phases: flash-attention, FlashInfer, ONNX and TransformerEngine."""

from __future__ import annotations

from typing import Any

import numpy as np

from rfrope.engines import formats
from rfrope.engines.record import Arithmetic, Engine, ExportRequest, Format

_ONCE = "cos and sin are rounded once"
_ROUNDING = {"float16": 2.0**-11, "float32": formats.ULP, "float64": 2.0**-53}


def _round_once(request: ExportRequest, made: dict[str, Any]) -> Arithmetic:
    return Arithmetic(None, 0.0, _ROUNDING[request.dtype])


def _make_tables(request: ExportRequest) -> dict[str, Any]:
    cos, sin = request.table()
    return {"cos": cos, "sin": sin, "interleaved": request.interleaved}


FLASH_ATTN = Engine(
    "flash-attn",
    format=Format(
        "``cos`` and ``sin`` of ``apply_rotary_emb``, in the dtype of q and k",
        _ONCE,
        f"flash-attention, flash_attn/ops/triton/rotary.py of 03f6a6b; {formats.READ}",
        _make_tables,
        _round_once,
        options=("context", "dtype"),
    ),
)


def _make_cache(request: ExportRequest) -> dict[str, Any]:
    table = np.concatenate(request.table(), axis=-1)
    return {"cos_sin_cache": table, "head_size": request.rope.head_dim, "is_neox": not request.interleaved}


FLASHINFER = Engine(
    "FlashInfer",
    format=Format(
        "``cos_sin_cache`` of ``apply_rope_with_cos_sin_cache``, float32",
        _ONCE,
        f"FlashInfer, flashinfer/rope.py; {formats.READ}",
        _make_cache,
        _round_once,
    ),
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


ONNX = Engine(
    "ONNX",
    format=Format(
        "``cos_cache`` and ``sin_cache`` of RotaryEmbedding-23, and the node",
        _ONCE,
        f"ONNX 1.23.2, operator set 23; {formats.RUN}: onnxruntime",
        _make_node,
        _round_once,
        (".onnx", ".npz"),
        options=("context", "dtype"),
    ),
)


def _make_phases(request: ExportRequest) -> dict[str, Any]:
    """Return phases less whole turns, which float32 holds at far positions too."""
    cos, sin = request.exact_table()
    phases = np.arctan2(sin, cos).astype(np.float32)
    whole = np.repeat(phases, 2, axis=-1) if request.interleaved else np.concatenate([phases, phases], axis=-1)
    return {"freqs": whole[:, None, None, :], "interleaved": request.interleaved}


def _compute_phases(request: ExportRequest, made: dict[str, Any]) -> Arithmetic:
    """Return the error of phases of at most half a turn, rounded once, and of their cos and sin in float32."""
    return Arithmetic(None, 0.0, (np.pi + 2.0) * formats.ULP)


TRANSFORMER_ENGINE = Engine(
    "TransformerEngine",
    format=Format(
        "``freqs`` of ``apply_rotary_pos_emb``: phases, less whole turns",
        "phases of at most half a turn are rounded to float32",
        f"TransformerEngine, pytorch/attention/rope.py of 0dc141c; {formats.READ}",
        _make_phases,
        _compute_phases,
        factor=False,
    ),
)
