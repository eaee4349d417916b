"""llama.cpp: the keys that its converter writes from a config, and divisors in a tensor of a GGUF."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rfrope._core.arguments import show
from rfrope.data.model_types import read_table
from rfrope.engines import formats
from rfrope.engines.record import Arithmetic, ExportRequest, make_engine

# -- divisors in a GGUF ------------------------------------------------------------------------------------------------


# by architecture: the ``tensors`` that hold the divisors, and a loader refuses any other; ``pairings`` of the Rope: the
# converter reorders the rows of llama's queries and keys from halves to neighbours; ``partial`` where
# ``rope.dimension_count`` may be less than a head; ``shared`` where the attention factor, one for the whole model,
# multiplies other rotations, too; ``needs_original`` where the loader wants the context before the scheme
_ARCHITECTURES: Mapping[str, Mapping[str, Any]] = read_table("engines")["llama.cpp"]["architectures"]


def _make_tensors(request: ExportRequest) -> dict[str, Any]:
    """Return tensors and keys of a GGUF."""
    with np.errstate(over="ignore"):
        factors = formats.make_divisors(request, _ladder(request)).astype(np.float32)
    name, rope = request.architecture, request.rope
    keys: dict[str, Any] = {f"{name}.rope.freq_base": request.base, f"{name}.rope.dimension_count": rope.rotary_dim}
    keys |= {f"{name}.rope.scaling.type": "none", f"{name}.rope.scaling.attn_factor": rope.attention_factor}
    if _ARCHITECTURES[name].get("needs_original"):
        keys[f"{name}.rope.scaling.original_context_length"] = request.context
    return {"architecture": name, "tensors": dict.fromkeys(_ARCHITECTURES[name]["tensors"], factors), "keys": keys}


def _compute_tensors(request: ExportRequest, made: dict[str, Any]) -> Arithmetic:
    """Return the error of phases by repeated products in float32, each divided by its factor."""
    (factors, *_) = made["tensors"].values()
    steps = np.arange(request.rope.n_blocks)
    frequencies = _ladder(request) / factors.astype(np.float64)
    return Arithmetic(frequencies, (4.0 * steps + 4.0) * formats.ULP, 3.0 * formats.ULP)


def _refuse_by_architecture(request: ExportRequest) -> str:
    """Return why the loader or the graph of an architecture cannot take a Rope."""
    name, rope = request.architecture, request.rope
    if name not in _ARCHITECTURES:
        return (
            f"architecture is {show(name)}, whose loader is not known to read divisors, and refuses unknown "
            f"tensors; expected one of {', '.join(map(repr, _ARCHITECTURES))}"
        )
    found = _ARCHITECTURES[name]
    if rope.pairing not in found["pairings"]:
        return f"{name} pairs halves, and the Rope is {rope.pairing!r}"
    if rope.attention_factor != 1.0 and "shared" in found:
        return f"the attention factor {rope.attention_factor} would multiply the sliding layers of {name} too"
    if rope.head_dim != rope.rotary_dim and "partial" not in found:
        return f"{name} turns whole heads, and the Rope turns {rope.rotary_dim} features of {rope.head_dim}"
    return ""


def _ladder(request: ExportRequest) -> np.ndarray:
    """Return the ladder at position 1 as ggml computes it: by repeated products in float32."""
    step = np.float32(request.base) ** (np.float32(-2.0) / np.float32(request.rope.rotary_dim))
    steps = np.full(request.rope.n_blocks, step, dtype=np.float32)
    steps[0] = 1.0
    return np.multiply.accumulate(steps).astype(np.float64)


ENGINE = make_engine("llama.cpp", _make_tensors, _compute_tensors, _refuse_by_architecture)
