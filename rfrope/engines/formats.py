"""Formats shared by several engines: YaRN's keys, ladder divisors in longrope's keys, tables; their errors."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from rfrope.engines.record import Arithmetic, ExportRequest

RAMP = {"beta_fast": 32, "beta_slow": 1, "truncate": True}  # of YaRN, with what counts without them
STILL = 1e30  # the divisor that stands for a frequency of 0: no position turns by it in float32
ULP = 2.0**-24  # largest relative rounding of float32
_ROUNDING = {"float16": 2.0**-11, "float32": ULP, "float64": 2.0**-53}


def split_attention(factor: float, attention: float) -> dict[str, float]:
    """Return the scales of YaRN whose ratio is an attention factor; empty if there are none."""
    growth = 0.1 * math.log(max(factor, 1.0))  # (0.1 m ln s + 1) / (0.1 ln s + 1) is the attention factor
    mscale = float(f"{(attention * (growth + 1.0) - 1.0) / growth:.14g}") if growth else 0.0
    return {"mscale": mscale, "mscale_all_dim": 1.0} if mscale > 0.0 else {}


def make_divisors(request: ExportRequest, ladder: np.ndarray) -> np.ndarray:
    """Return the factors by which an engine divides its own ladder ``(D,)``; 1e30 for frequency 0."""
    with np.errstate(divide="ignore", over="ignore"):
        found = ladder / request.rope.frequencies
    return np.where(np.abs(found) < STILL, found, np.copysign(STILL, request.rope.frequencies))


def make_longrope(request: ExportRequest) -> dict[str, Any]:
    """Return ``rope_parameters`` of transformers 5: the request's scheme, or a divisor for each frequency as longrope.

    The lists of divisors for short and long texts are equal, and the context is its own original, so nothing switches
    while keys are cached.
    """
    if request.scheme is not None:
        return {"rope_parameters": {**request.scheme}, "max_position_embeddings": request.context}
    factors = make_divisors(request, 1.0 / _powers(request)).tolist()
    parameters: dict[str, Any] = {"rope_type": "longrope", "rope_theta": request.base}
    parameters |= {"short_factor": factors, "long_factor": factors, "factor": 1.0}
    parameters |= {"attention_factor": request.rope.attention_factor}
    parameters |= {"original_max_position_embeddings": request.context}
    width, head = request.rope.rotary_dim, request.rope.head_dim or request.rope.rotary_dim
    part = width / head  # such that ``int(head * part)`` is the width; 1.0, too: classes have defaults of their own
    parameters["partial_rotary_factor"] = part if int(head * part) == width else float(np.nextafter(part, 2.0))
    return {"rope_parameters": parameters, "max_position_embeddings": request.context}


def make_longrope_with_mscales(request: ExportRequest) -> dict[str, Any]:
    """Return the same for engines that read the attention factor from the keys of Phi-3.5-MoE."""
    made = make_longrope(request)
    factor = request.rope.attention_factor
    if request.scheme is None:
        made["rope_parameters"] |= {"short_mscale": factor, "long_mscale": factor}
    return made


def make_rope_scaling(request: ExportRequest) -> dict[str, Any]:
    """Return the same in the keys of older configs: ``rope_scaling``, None for a ladder, with the keys beside it."""
    parameters = make_longrope(request)["rope_parameters"]
    beside = {key: parameters.pop(key) for key in ("rope_theta", "partial_rotary_factor")}
    scaling = None if parameters["rope_type"] == "default" else {"type": parameters["rope_type"], **parameters}
    return {"rope_scaling": scaling, "max_position_embeddings": request.context, **beside}


def compute_longrope(request: ExportRequest, made: dict[str, Any]) -> Arithmetic:
    """Return ``1 / (f base**(2i/d))`` and its product with a position, in float32; powers may differ by one unit.

    Other schemes take two more operations on the same powers; llama3 also subtracts close numbers between its bands.
    """
    name = "longrope" if request.scheme is None else request.scheme["rope_type"]
    ladder = request.base ** -(np.arange(request.rope.n_blocks) / request.rope.n_blocks)
    factors = make_divisors(request, 1.0 / _powers(request) if request.scheme is None else ladder).astype(np.float32)
    with np.errstate(over="ignore"):
        frequencies = np.float32(1.0) / (factors * _powers(request))
    units = np.where(factors > 1.001, 18.0, 7.0) if name == "llama3" else 5.0 if name == "longrope" else 7.0
    return Arithmetic(frequencies.astype(np.float64), units * ULP, 3.0 * ULP)


def round_once(request: ExportRequest, made: dict[str, Any]) -> Arithmetic:
    """Return the error of a cos/sin table that was rounded once."""
    return Arithmetic(None, 0.0, _ROUNDING[request.dtype])


def make_cache(request: ExportRequest) -> dict[str, Any]:
    """Return one table of cos and sin side by side, as in vLLM; with one set per head, also each head's first row."""
    made: dict[str, Any] = {"cos_sin_cache": np.concatenate(request.table(), axis=-1)}
    made |= {} if request.heads is None else {"heads": request.heads, "first_rows": request.first_rows}
    return made | {"head_size": request.rope.head_dim, "is_neox": not request.interleaved}


def _powers(request: ExportRequest) -> np.ndarray:
    """Return ``base**(2i/d)`` as these engines compute it, so that the divisors make up for its rounding."""
    width = request.rope.rotary_dim
    exponents = np.arange(0, width, 2, dtype=np.float32) / np.float32(width)
    return np.asarray(np.float32(request.base) ** exponents)
