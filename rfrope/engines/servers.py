"""Servers: ``get_rope`` of vLLM and SGLang, vLLM's operator, with a table, and TensorRT-LLM's PyTorch classes."""

from __future__ import annotations

from typing import Any

import numpy as np

from rfrope._core.arguments import show
from rfrope.engines import formats, observed
from rfrope.engines.record import ConfigRope, EngineRope, ExportRequest, UnknownError, make_engine

ENGINE = make_engine(
    "vLLM",
    formats.make_longrope_with_mscales,
    formats.compute_longrope,
    reading=observed.reading("vLLM", layers=lambda config: config.rope.source.model.layers),
)
OPERATOR = make_engine("vLLM operator", formats.make_cache, formats.round_once)


# -- SGLang ------------------------------------------------------------------------------------------------------------


def _find_layers(config: ConfigRope) -> tuple[int, ...] | None:
    """Return the layers that turn: in Llama 4 three of four, whatever ``no_rope_layers`` says."""
    count = config.raw.get("num_hidden_layers")
    if config.model_type == "llama4_text" and config.rope.source.model.name and count is not None:
        return tuple(i for i in range(count) if (i + 1) % 4)
    return config.rope.source.model.layers


def _read_gemma3(config: ConfigRope) -> EngineRope:
    """Return the RoPE of one kind of layers: layers under a window without a scheme, others as transformers.

    The observed run was on a processor with AMX, where the scheme is left out.
    """
    if config.kind == "sliding_attention" or config.scheme == "default":
        ignored = () if config.scheme == "default" else ("rope_type",)
        return EngineRope(config.ladder(), ignored_keys=ignored, layers=config.rope.source.model.layers)
    if config.scheme == "dynamic":
        raise UnknownError(f"the scheme {show(config.scheme)} was not read")
    note = "on processors with AMX the scheme is left out"
    layers = config.rope.source.model.layers
    return EngineRope(np.asarray(config.rope.frequencies), config.rope.attention_factor, note=note, layers=layers)


SGLANG = make_engine(
    "SGLang",
    formats.make_longrope_with_mscales,
    formats.compute_longrope,
    reading=observed.reading("SGLang", own={"gemma3_text": _read_gemma3}, layers=_find_layers),
)


# -- TensorRT-LLM ------------------------------------------------------------------------------------------------------


def _make_rope_scaling(request: ExportRequest) -> dict[str, Any]:
    """Return the keys of older configs, and the original context beside them, where the engine looks first."""
    made, key = formats.make_rope_scaling(request), "original_max_position_embeddings"
    scaling = made["rope_scaling"] or {}
    if request.scheme is None:
        del scaling["attention_factor"]
    return made | ({key: scaling[key]} if key in scaling else {})


TENSORRT_LLM = make_engine("TensorRT-LLM", _make_rope_scaling, formats.compute_longrope)
