"""TensorRT-LLM: its PyTorch classes, which read ``rope_theta`` and ``rope_scaling``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from rfrope._core.arguments import show
from rfrope.engines import formats, formulas
from rfrope.engines.formulas import RefusedError, UnknownError
from rfrope.engines.record import ConfigRope, Engine, EngineRope, ExportRequest, Reading
from rfrope.scaling import schemes

_YARN_ALONE = ("qwen2", "qwen3")  # model types whose classes know no other scheme


def _read(config: ConfigRope) -> EngineRope:
    raw, name, scaling = config.raw, config.scheme, config.raw.get("rope_scaling")
    if raw.get("rope_parameters"):
        raise UnknownError("the version that was read takes rope_theta and rope_scaling, not rope_parameters")
    base = config.ladder(float(raw.get("partial_rotary_factor") or raw.get("rotary_pct") or 1.0))
    if not scaling:
        return EngineRope(base, positions=config.context)
    if config.model_type in _YARN_ALONE and name != "yarn":
        raise RefusedError(f"stops with an error: {show(name)} is none of the schemes of its Qwen classes")
    return replace(_read_scaling(config, base, scaling), positions=config.context)


def _read_scaling(config: ConfigRope, base: np.ndarray, scaling: Mapping[str, Any]) -> EngineRope:
    key = "original_max_position_embeddings"
    original = config.raw.get(key) or scaling.get(key) or 1024
    match config.scheme:
        case "linear":
            return EngineRope(base / float(scaling["factor"]))
        case "dynamic" if "alpha" in scaling:
            raise UnknownError("the scheme 'dynamic' with alpha was not read")
        case "dynamic":
            return EngineRope(base, ignored_keys=("factor",))
        case "llama3":
            usual = {} if key in scaling else {key: 1024}
            return EngineRope(formulas.llama3(base, {**config.values, **usual}))
        case "yarn":
            factor = float(scaling.get("factor", 1.0))
            attention = schemes.sharpen_yarn(factor, scaling.get("mscale", 1.0), scaling.get("mscale_all_dim", 0.0))
            return formulas.yarn(base, config.values, factor, original, attention, ("beta_fast", "beta_slow"))
        case "longrope":
            condition = f"an engine whose max_seq_len is above {original} or unset"
            length = f"long_factor for every text of {condition}, else short_factor"
            return formulas.longrope(config, base, original, length)
    raise RefusedError(f"stops with an error: {show(config.scheme)} is none of its schemes")


def _make_rope_scaling(request: ExportRequest) -> dict[str, Any]:
    """Return the keys of older configs, and the original context beside them, where it is looked for first."""
    made, key = formats.make_rope_scaling(request), "original_max_position_embeddings"
    scaling = made["rope_scaling"] or {}
    if request.scheme is None:
        del scaling["attention_factor"]
    return made | ({key: scaling[key]} if key in scaling else {})


ENGINE = Engine(
    "TensorRT-LLM",
    Reading(
        "51ea5c9",
        (
            "tensorrt_llm/_torch/attention_backend/interface.py (RopeParams) at 51ea5c9",
            "RopeEmbeddingUtils and RotaryScalingType, which it calls, in a later version: tensorrt_llm/functional.py",
            "tensorrt_llm/_torch/models/modeling_llama.py at 012cf90, modeling_phi3.py at 000a01d, "
            "modeling_qwen.py at 047098b, modeling_qwen3.py",
        ),
        _read,
        ("llama", "mistral", "phi3", "qwen2", "qwen3"),
    ),
    formats.config_format(
        "``rope_scaling`` of type ``longrope``, for config.json",
        f"TensorRT-LLM, _torch/attention_backend/interface.py of 000a01d; {formats.READ}",
        _make_rope_scaling,
        pairings=("half",),
        factor=False,
    ),
)
