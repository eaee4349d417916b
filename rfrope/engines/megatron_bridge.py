"""Megatron-Bridge, which makes models of Megatron-Core from configs."""

from __future__ import annotations

from rfrope.engines import formulas
from rfrope.engines.formulas import UnknownError
from rfrope.engines.record import ConfigRope, Engine, EngineRope, Reading
from rfrope.scaling import schemes

_ORIGINAL = "original_max_position_embeddings"
_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, _ORIGINAL: 8192}  # constants of Megatron-Core
_QWENS = ("qwen2", "qwen3", "qwen3_moe")


def _read(config: ConfigRope) -> EngineRope:
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
            return _read_yarn(config)
        case "yarn":
            raise UnknownError(f"the scheme 'yarn' in {config.model_type}, which its two ways to load read otherwise")
        case "llama3" | "linear" | "dynamic" | "longrope":
            return EngineRope(base, ignored_keys=("rope_type",))
        case other:
            raise UnknownError(f"the scheme {other!r} was not read")


def _read_yarn(config: ConfigRope) -> EngineRope:
    """Return YaRN without defaults: Megatron-Core is given None where a key is missing, which does not truncate."""
    values = dict(config.values)
    factor, *_ = (formulas.require_key(values, key) for key in ("factor", "beta_fast", "beta_slow"))
    scales = (values.get("mscale"), values.get("mscale_all_dim"))
    attention = schemes.sharpen_yarn(factor, *(() if None in scales else scales))
    values["truncate"] = bool(values.get("truncate"))
    return formulas.yarn(config.ladder(), values, factor, values[_ORIGINAL], attention)


ENGINE = Engine(
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
        _read,
        ("llama", "mistral", *_QWENS),
    ),
)
