"""MLX, whose ``mx.fast.rope`` takes periods, and MLX-LM, whose models read configs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from rfrope._core.arguments import show
from rfrope.engines import formats, observed
from rfrope.engines.record import Arithmetic, ConfigRope, ExportRequest, RefusedError, make_engine, require_key

_PATTERNED = {"gemma3_text": 6, "cohere2": 4}  # whose layers follow sliding_window_pattern, whatever layer_types says
_LISTED = {"gemma4_text": 5, "gemma3n_text": 5, "olmo3": 4}  # with layer_types, else every so many-th is full
_NEEDS: dict[str, tuple[str, ...]] = {"llama4_text": ("no_rope_layers",)}
_NEEDS |= {"exaone4": ("rope_scaling", "sliding_window_pattern", "sliding_window", "head_dim")}
_LEAST = 8  # positions: an original context that whole numbers say well enough


def _find_layers(config: ConfigRope) -> tuple[int, ...] | None:
    """Return the layers that turn, or those of one kind."""
    raw, model = config.raw, config.rope.source.model
    count = raw.get("num_hidden_layers")
    if model.layers is None or count is None:
        return None
    for key in _NEEDS.get(config.model_type, ()) if "." not in model.name and model.name != "text_config" else ():
        require_key({name: True for name in raw}, key)
    if config.model_type in ("smollm3", "llama4_text", "exaone4"):
        return tuple(filter(_find_turning(config), range(count)))
    if config.model_type in _LISTED:
        every, kinds = _LISTED[config.model_type], raw.get("layer_types")
        kinds = kinds or ["sliding_attention" if (i + 1) % every else "full_attention" for i in range(count)]
        return tuple(i for i in range(count) if kinds[i] == config.kind)
    if config.model_type in _PATTERNED:
        every = raw.get("sliding_window_pattern", _PATTERNED[config.model_type])
        is_full = config.kind == "full_attention"
        return tuple(i for i in range(count) if ((i + 1) % every == 0) == is_full)
    return model.layers


def _find_turning(config: ConfigRope) -> Callable[[int], Any]:
    """Return whether a layer turns, whatever ``layer_types`` says; a part of Llama 4 ignores ``no_rope_layers``."""
    raw, flags = config.raw, config.raw.get("no_rope_layers")
    if config.model_type == "exaone4":
        pattern = raw["sliding_window_pattern"]
        if not isinstance(pattern, str | None):
            raise RefusedError("stops with an error: sliding_window_pattern is not a string of L and G")
        return lambda i: not pattern or pattern[i % len(pattern)] == "L"
    is_small, expected = config.model_type == "smollm3", raw["num_hidden_layers"]
    if is_small and flags is None:
        every = raw.get("no_rope_layer_interval", 4)
        return lambda i: (i + 1) % every
    if not is_small and config.rope.source.model.name:
        return lambda i: (i + 1) % 4
    flags = flags or ()
    if len(flags) < expected:
        raise RefusedError(f"stops with an error: no_rope_layers has {len(flags)} entries, not {expected}")
    return lambda i: flags[i]


def _make_periods(request: ExportRequest) -> dict[str, Any]:
    """Return arguments of ``mx.fast.rope``, which divides by periods: 1/frequency, infinite where nothing turns."""
    with np.errstate(divide="ignore", over="ignore"):
        freqs = (1.0 / request.rope.frequencies).astype(np.float32)
    width, neighbours = request.rope.rotary_dim, request.interleaved
    return {"freqs": freqs, "dims": width, "traditional": neighbours, "base": None, "scale": 1.0}


def _compute_periods(request: ExportRequest, made: dict[str, Any]) -> Arithmetic:
    """Return the error of the reciprocal of a period, times a position, in float32."""
    with np.errstate(divide="ignore"):
        frequencies = np.float32(1.0) / made["freqs"]
    return Arithmetic(frequencies.astype(np.float64), 2.0 * formats.ULP, 3.0 * formats.ULP)


def _make_config(request: ExportRequest) -> dict[str, Any]:
    """Return keys of MLX-LM's configs; the attention factor follows from two contexts, which are whole numbers.

    Its class computes ``sqrt(ln context / ln original)`` from the original context and the config's.
    """
    made, factor = formats.make_rope_scaling(request), request.rope.attention_factor
    if factor > 1.0 and request.scheme is None:
        original = round(made["max_position_embeddings"] ** (factor**-2.0))
        made["rope_scaling"]["original_max_position_embeddings"] = original
    return made


def _compute_config(request: ExportRequest, made: dict[str, Any]) -> Arithmetic:
    """Return the arithmetic of longrope, and how far the attention factor is off."""
    found, context = formats.compute_longrope(request, made), made["max_position_embeddings"]
    if request.scheme is not None:
        return found
    original = made["rope_scaling"]["original_max_position_embeddings"]
    scale = 1.0 if original == context else math.sqrt(math.log(context) / math.log(original))
    return replace(found, entry_error=found.entry_error + abs(scale / request.rope.attention_factor - 1.0))


def _refuse_config(request: ExportRequest) -> str:
    """Return why a class would rotate differently, or why contexts cannot give the attention factor."""
    rope, context = request.rope, request.context or 1
    factor, kind = rope.attention_factor, rope.source.model.model_type
    is_read = observed.find_rules("MLX-LM", kind, "longrope").get("flat", {}).get("as") == "longrope"
    if request.scheme is not None and is_read:
        return ""
    if not is_read:
        return f"its class of {show(kind)} was not observed to read divisors"
    if rope.head_dim != rope.rotary_dim:
        return f"its classes turn whole heads, and the Rope turns {rope.rotary_dim} features of {rope.head_dim}"
    if factor < 1.0:
        return f"its attention factor is {factor}, and MLX-LM computes only factors of 1 or more"
    if factor > 1.0 and context ** (factor**-2.0) < _LEAST:
        least = f"an original context below {_LEAST} positions"
        return f"its attention factor {factor} needs {least}; expected more context"
    return ""


MLX = make_engine("MLX", _make_periods, _compute_periods)
READING = observed.reading("MLX-LM", layers=_find_layers)
MLX_LM = make_engine("MLX-LM", _make_config, _compute_config, _refuse_config, reading=READING)
