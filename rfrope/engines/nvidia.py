"""TensorRT-LLM, whose PyTorch classes read configs, and Megatron-Bridge, which makes models of Megatron-Core."""

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
_ORIGINAL = "original_max_position_embeddings"
_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, _ORIGINAL: 8192}  # constants of Megatron-Core
_QWENS = ("qwen2", "qwen3", "qwen3_moe")


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


# -- Megatron-Bridge ---------------------------------------------------------------------------------------------------


def _read_bridge(config: ConfigRope) -> EngineRope:
    values, base = config.values, config.ladder()
    match config.scheme:
        case "default":
            return EngineRope(base)
        case "llama3" if config.model_type == "llama":
            ignored = formulas.find_ignored(values, _LLAMA3)
            return EngineRope(formulas.llama3(base, {**values, **_LLAMA3}), ignored_keys=ignored)
        case "linear" if config.model_type == "llama":
            return EngineRope(base / float(values["factor"]))
        case "yarn" if config.model_type in _QWENS:
            return _read_bridge_yarn(config)
        case "yarn":
            raise UnknownError(f"the scheme 'yarn' in {config.model_type}, which its two ways to load read otherwise")
        case "llama3" | "linear" | "dynamic" | "longrope":
            return EngineRope(base, ignored_keys=("rope_type",))
        case other:
            raise UnknownError(f"the scheme {other!r} was not read")


def _read_bridge_yarn(config: ConfigRope) -> EngineRope:
    """Return YaRN without defaults: Megatron-Core is given None where a key is missing, which does not truncate."""
    values = dict(config.values)
    factor, *_ = (formulas.require_key(values, key) for key in ("factor", "beta_fast", "beta_slow"))
    scales = (values.get("mscale"), values.get("mscale_all_dim"))
    attention = schemes.sharpen_yarn(factor, *(() if None in scales else scales))
    values["truncate"] = bool(values.get("truncate"))
    return formulas.yarn(config.ladder(), values, factor, values[_ORIGINAL], attention)


MEGATRON_BRIDGE = Engine(
    "Megatron-Bridge",
    Reading(
        "0.7.0",
        (
            "src/megatron/bridge/models/conversion/model_bridge.py (CONFIG_MAPPING, _hf_config_to_megatron_kwargs) and "
            "transformers_compat.py (rope_theta_from_hf)",
            "src/megatron/bridge/models/{llama/llama_bridge,mistral/mistral_bridge,qwen/qwen2_bridge,qwen/qwen3_bridge,"
            "qwen/qwen3_moe_bridge}.py",
            "megatron/core/models/common/embeddings/rotary_pos_embedding.py and yarn_rotary_pos_embedding.py of "
            "Megatron-LM at 00caa53, megatron/core/models/gpt/gpt_model.py at 007562f",
        ),
        _read_bridge,
        ("llama", "mistral", *_QWENS),
    ),
)
