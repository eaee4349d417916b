"""vLLM: ``get_rope`` with ``rope_parameters`` of transformers, and its operator, with a table."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from rfrope._core.arguments import show
from rfrope.engines import formats, formulas, observed
from rfrope.engines.formulas import RefusedError, UnknownError
from rfrope.engines.record import ConfigRope, Engine, EngineRope, Format
from rfrope.scaling import schemes

_LAYERED = ("gemma4_text", "gemma3n_text", "modernbert", "llama4_text", "deepseek_v4")
_READ: tuple[str, ...] = (
    "llama",
    "mistral",
    "mixtral",
    "phi3",
    "qwen2",
    "qwen2_moe",
    "qwen3",
    "qwen3_moe",
)  # by hand, of 0.32
_READ += ("gemma3_text", "gpt_oss", "cohere2", "exaone4")
_INTERLEAVED = {"cohere2": "", "llama4_text": "pairing half, and rows of the weights are reordered for it"}


def _read(config: ConfigRope) -> EngineRope:
    """Return the RoPE of the layers of one kind, which ``rope_parameters`` have a dict for."""
    if config.model_type == "exaone4" and config.raw.get("sliding_window", 4096) is None:
        raise UnknownError("what layer_types are without sliding_window was not read")
    if config.model_type == "deepseek_v4":
        return _read_deepseek_v4(config)
    made = _read_gpt_oss(config) if config.model_type == "gpt_oss" else _read_scheme(config)
    pairing = "interleaved" if config.model_type in _INTERLEAVED else "half"
    note = _INTERLEAVED.get(config.model_type, "")
    return replace(made, pairing=pairing, note=note, layers=config.rope.source.model.layers)


def _read_gpt_oss(config: ConfigRope) -> EngineRope:
    """Return YaRN by the keys that its class takes, whatever the scheme is called."""
    values = {key: formulas.require_key(config.values, key) for key in ("factor", "beta_fast", "beta_slow")}
    kept = ("rope_theta", "original_max_position_embeddings", "truncate")
    values |= {key: config.values[key] for key in kept if key in config.values}
    made = _read_yarn(replace(config, values=values | {"rope_type": "yarn"}), config.ladder())
    unread = formulas.find_ignored(config.values, {"attention_factor": made.attention_factor})
    unread += tuple(key for key in ("mscale", "mscale_all_dim") if config.values.get(key) is not None)
    return replace(made, ignored_keys=made.ignored_keys + unread)


def _read_deepseek_v4(config: ConfigRope) -> EngineRope:
    """Return YaRN, whatever the scheme is called, for layers with compressed keys, and the plain ladder for others."""
    raw, is_compressed = config.raw, config.kind == "compress"
    for key in ("compress_ratios", "compress_rope_theta"):
        if raw.get(key) is None:
            raise RefusedError(f"stops with an error: {key} missing")
    theta = float(raw["compress_rope_theta"] if is_compressed else raw.get("rope_theta", 1e4))
    count, ratios = raw.get("num_hidden_layers"), raw["compress_ratios"]
    layers = None if count is None else tuple(i for i in range(count) if (ratios[i] > 1) == is_compressed)
    base = config.ladder(config.part, theta)
    made = EngineRope(base, positions=config.context)
    if is_compressed and config.scheme != "default":
        factor = formulas.require_key(config.values, "factor")
        original = formulas.require_key(config.values, "original_max_position_embeddings")
        reads = ("beta_fast", "beta_slow")
        made = formulas.yarn(base, config.values, factor, original, 1.0, reads, theta)
        made = replace(made, positions=math.ceil(original * factor))
    return replace(made, pairing="interleaved", layers=layers)


def _read_scheme(config: ConfigRope) -> EngineRope:
    values, context, base = config.values, config.context, config.ladder(config.part)
    match config.scheme:
        case "default":
            return EngineRope(base, positions=context)
        case "linear":
            factor = formulas.require_float(values["factor"])
            return EngineRope(base / factor, positions=math.ceil(context * factor))
        case "llama3":
            return EngineRope(formulas.llama3(base, values), positions=context)
        case "proportional":
            ignored = formulas.find_ignored(values, {"factor": 1.0})
            return EngineRope(formulas.proportional(config, config.part), positions=context, ignored_keys=ignored)
        case "yarn":
            return _read_yarn(config, base)
        case "longrope":
            return _read_longrope(config, base)
        case "dynamic" if "alpha" not in values:  # for the context itself, where nothing changes
            return EngineRope(base, length="computed once, for a text as long as the context", positions=context)
    raise UnknownError(f"the scheme {show(config.scheme)} was not read")


def _read_yarn(config: ConfigRope, base: np.ndarray) -> EngineRope:
    values = config.values
    factor, original = formulas.require_key(values, "factor"), values["original_max_position_embeddings"]
    mscale, everywhere = (float(values.get(key) or 0.0) for key in ("mscale", "mscale_all_dim"))
    scale = schemes.sharpen_yarn(factor, mscale, everywhere) if mscale and everywhere else schemes.sharpen_yarn(factor)
    scale *= float(values.get("attn_factor") or 1.0)
    if values.get("attention_factor") is not None:
        scale = float(values["attention_factor"])
    return replace(formulas.yarn(base, values, factor, original, scale), positions=math.ceil(original * factor))


def _read_longrope(config: ConfigRope, base: np.ndarray) -> EngineRope:
    original = config.values["original_max_position_embeddings"]
    length = (
        f"long_factor for every text of a server whose max_model_len is above {original} (it is {original} unless set "
        "otherwise), else short_factor"
    )
    positions = config.context if config.seq_len > original else original
    return formulas.longrope(config, base, original, length, positions, mscales=True)


ENGINE = Engine(
    "vLLM",
    observed.reading(
        "vLLM",
        own=dict.fromkeys((*_READ, *_LAYERED), _read),
        layered=("gemma3_text", *_LAYERED),
        sources=(
            "vllm/model_executor/layers/rotary_embedding/__init__.py (get_rope) and the modules beside it",
            "vllm/transformers_utils/config.py (patch_rope_parameters)",
            "vllm/config/model.py (max_model_len)",
            "vllm/models/deepseek_v4/common/rope.py, vllm/transformers_utils/configs/deepseek_v4.py",
            "vllm/model_executor/models/{llama,mistral,mixtral,phi3,qwen2,qwen2_moe,qwen3,qwen3_moe}.py",
            "vllm/model_executor/models/{gemma3,gemma3n,gemma4,gpt_oss,commandr,exaone4,llama4,modernbert}.py",
        ),
    ),
    formats.config_format(
        "as transformers, with ``short_mscale`` and ``long_mscale``",
        f"vLLM 0.32.0, rotary_embedding/phi3_long_rope_scaled_rope.py; {formats.RUN}: get_rope",
        formats.make_longrope_with_mscales,
        pairings=("half",),
        layered=("gemma3_text", "gemma3n_text", "modernbert", "exaone4"),
    ),
)
OPERATOR = Engine(
    "vLLM operator",
    format=Format(
        "``cos_sin_cache`` of ``torch.ops._C.rotary_embedding``, for code that calls it itself",
        formats.ONCE,
        f"vLLM, csrc/pos_encoding_kernels.cu of 0f5257e; {formats.RUN}: its form without a device, of 0.32.0",
        formats.make_cache,
        formats.round_once,
        heads=formats.ROW_OF_HEAD,
        options=("context", "dtype"),
    ),
)
