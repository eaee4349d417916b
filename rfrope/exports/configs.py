"""Engines that read a model's config.json: a divisor for each frequency, in the keys of longrope.

The ladder is ``base**(-2i/d)``, the divisor ``ladder / frequency``. Equal lists for short and long texts, and a context
that is its own original, leave nothing that could switch while keys are cached.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rfrope._core.arguments import show
from rfrope.data.model_types import has_defaults, known
from rfrope.exports.engine import ULP, Asked, Used, divisors


def transformers(asked: Asked) -> dict[str, Any]:
    """``rope_parameters`` of transformers 5."""
    factors = divisors(asked, 1.0 / _powers(asked)).tolist()
    parameters: dict[str, Any] = {"rope_type": "longrope", "rope_theta": asked.base}
    parameters |= {"short_factor": factors, "long_factor": factors, "factor": 1.0}
    parameters |= {"attention_factor": asked.rope.attention_factor, "original_max_position_embeddings": asked.context}
    parameters["partial_rotary_factor"] = _share(asked)  # 1.0, too: classes have defaults of their own
    return {"rope_parameters": parameters, "max_position_embeddings": asked.context}


def vllm(asked: Asked) -> dict[str, Any]:
    """As `transformers`; vLLM and SGLang read the attention factor under the names of Phi-3.5-MoE."""
    made = transformers(asked)
    factor = asked.rope.attention_factor
    made["rope_parameters"] |= {"short_mscale": factor, "long_mscale": factor}
    return made


def tensorrt_llm(asked: Asked) -> dict[str, Any]:
    """The keys of older configs, which TensorRT-LLM reads."""
    made = transformers(asked)
    parameters = made["rope_parameters"]
    theta, share = parameters.pop("rope_theta"), parameters.pop("partial_rotary_factor")
    del parameters["attention_factor"]
    older = {"rope_theta": theta, "rope_scaling": {"type": "longrope", **parameters}}
    older |= {name: asked.context for name in ("max_position_embeddings", "original_max_position_embeddings")}
    return older | {"partial_rotary_factor": share}


def used(asked: Asked, made: dict[str, Any]) -> Used:
    """``1 / (f base**(2i/d))`` and its product with a position, in float32; powers may differ by a unit elsewhere."""
    parameters = made.get("rope_parameters") or made["rope_scaling"]
    factors = np.asarray(parameters["short_factor"], dtype=np.float32)
    with np.errstate(over="ignore"):
        omega = np.float32(1.0) / (factors * _powers(asked))
    return Used(omega.astype(np.float64), 5.0 * ULP, 3.0 * ULP)


def refused_by_class(asked: Asked) -> str:
    """Why the class of a model type, where that is known, would turn other features."""
    model_type = asked.rope.source.model.model_type
    entry = known(model_type)
    pairing = entry.get("pairing") if asked.rope.source.model.pairing_from != "given" else None
    if pairing is None and asked.rope.pairing != "half":
        return "most classes of transformers pair halves, and the Rope does not say that its model_type pairs otherwise"
    if pairing is not None and pairing != asked.rope.pairing and "pairing_by" not in entry:
        return f"the class of {show(model_type)} pairs {pairing!r}, the Rope {asked.rope.pairing!r}"
    if asked.rope.head_dim != asked.rope.rotary_dim and has_defaults(entry) and not entry.get("partial"):
        return f"the class of {show(model_type)} turns whole heads, the Rope {asked.rope.rotary_dim} features of a head"
    return ""


def _powers(asked: Asked) -> np.ndarray:
    """``base**(2i/d)`` as these engines compute it, so that the divisors make up for its rounding."""
    width = asked.rope.rotary_dim
    exponents = np.arange(0, width, 2, dtype=np.float32) / np.float32(width)
    powers: np.ndarray = np.float32(asked.base) ** exponents
    return powers


def _share(asked: Asked) -> float:
    """Part of a head that turns, such that ``int(head_dim * part)`` is its width."""
    width, head = asked.rope.rotary_dim, asked.rope.head_dim or asked.rope.rotary_dim
    share = width / head
    return share if int(head * share) == width else float(np.nextafter(share, 2.0))
