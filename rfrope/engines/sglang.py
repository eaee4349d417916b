"""SGLang: ``get_rope`` with ``rope_parameters`` as transformers holds them."""

from __future__ import annotations

import numpy as np

from rfrope._core.arguments import show
from rfrope.engines import formats, formulas
from rfrope.engines.formulas import UnknownError
from rfrope.engines.record import ConfigRope, Engine, EngineRope, Reading

_PARTIAL = ("phi3",)  # runs in the Llama class, which reads the part beside the dict; the others do not read it


def _read(config: ConfigRope) -> EngineRope:
    if config.model_type == "gemma3_text":
        return _read_gemma3(config)
    values, name = config.values, config.scheme
    part = config.part if config.model_type in _PARTIAL else 1.0
    base, factor = config.ladder(part), values.get("factor", 1.0)
    match name:
        case "default":
            return EngineRope(base)
        case "linear":
            return EngineRope(base / formulas.require_float(factor))
        case "llama3":
            return EngineRope(formulas.llama3(base, values))
        case "yarn":
            attention = formulas.scale_yarn(factor)
            mscale, everywhere = values.get("mscale"), values.get("mscale_all_dim")
            if mscale is not None and everywhere is not None:
                attention = formulas.divide_scales(factor, mscale, everywhere)
            return formulas.yarn(base, values, factor, values["original_max_position_embeddings"], attention)
        case "longrope":
            original = values["original_max_position_embeddings"]
            length = (
                f"long_factor for a batch that holds a position above {original}, else short_factor; keys in a cache "
                "keep their old frequencies"
            )
            return formulas.longrope(config, base, original, length, config.context, mscales=True)
        case "dynamic" if "alpha" not in values:
            slower = formulas.ntk(config, factor * factor - (factor - 1.0), part)
            return EngineRope(slower, length="computed once, for a text of factor times the context")
    raise UnknownError(f"the scheme {show(name)} was not read")


def _read_gemma3(config: ConfigRope) -> EngineRope:
    """Return the RoPE of one kind of layers: by transformers' own functions, those under a window without a scheme."""
    layers, is_sliding = config.rope.source.model.layers, config.kind == "sliding_attention"
    if is_sliding or config.scheme == "default":
        return EngineRope(
            config.ladder(), layers=layers, ignored_keys=() if config.scheme == "default" else ("rope_type",)
        )
    if config.scheme == "dynamic":
        raise UnknownError(f"the scheme {show(config.scheme)} was not read")
    note = "on processors with AMX the scheme is left out"
    return EngineRope(np.asarray(config.rope.frequencies), config.rope.attention_factor, layers=layers, note=note)


ENGINE = Engine(
    "SGLang",
    Reading(
        "0.5.23",
        (
            "python/sglang/srt/layers/rotary_embedding/factory.py (get_rope), base.py, yarn.py, rope_variant.py",
            "python/sglang/srt/models/{llama,mistral,qwen2,qwen2_moe,qwen3,qwen3_moe,gemma3_causal,gpt_oss}.py",
        ),
        _read,
        ("llama", "mistral", "phi3", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "gemma3_text", "gpt_oss"),
        ("gemma3_text",),
    ),
    formats.config_format(
        "as vLLM",
        f"SGLang, srt/layers/rotary_embedding/factory.py of 108c36c and rope_variant.py of 0b1fd02; {formats.READ}",
        formats.make_longrope_with_mscales,
        pairings=("half",),
    ),
)
