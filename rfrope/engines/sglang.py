"""SGLang: ``get_rope`` with ``rope_parameters`` of transformers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rfrope._core.arguments import show
from rfrope.engines import formats, formulas, observed
from rfrope.engines.formulas import UnknownError
from rfrope.engines.record import ConfigRope, Engine, EngineRope
from rfrope.scaling import schemes

_LAYERED = ("gemma3_text", "gemma3n_text", "gemma4_text", "llama4_text")
_READ = ("llama", "mistral", "phi3", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "gpt_oss")  # by hand
_PARTIAL = ("phi3",)  # runs in the Llama class, which reads the part beside the dict; the others do not read it


def _read(config: ConfigRope) -> EngineRope:
    layers = config.rope.source.model.layers
    match config.model_type:
        case "gemma4_text":
            return replace(_read_gemma4(config), layers=layers)
        case "gemma3n_text" if config.kind != "sliding_attention":
            return replace(_read_scheme(config), layers=layers)
        case "gemma3_text" | "gemma3n_text":
            return _read_gemma3(config)
        case "llama4_text":
            return _read_llama4(config)
    return _read_scheme(config)


def _read_scheme(config: ConfigRope) -> EngineRope:
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
            scales = (values.get("mscale"), values.get("mscale_all_dim"))
            attention = schemes.sharpen_yarn(factor, *(() if None in scales else scales))
            attention *= float(values.get("attn_factor") or 1.0)
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
        ignored = () if config.scheme == "default" else ("rope_type",)
        return EngineRope(config.ladder(), layers=layers, ignored_keys=ignored)
    if config.scheme == "dynamic":
        raise UnknownError(f"the scheme {show(config.scheme)} was not read")
    note = "on processors with AMX the scheme is left out"
    return EngineRope(np.asarray(config.rope.frequencies), config.rope.attention_factor, layers=layers, note=note)


def _read_gemma4(config: ConfigRope) -> EngineRope:
    """Return the RoPE of one kind of layers, by its base, type and part of a head alone."""
    if config.scheme == "default":
        return EngineRope(config.ladder(config.part))
    if config.scheme != "proportional":
        raise UnknownError(f"the scheme {show(config.scheme)} was not read")
    ignored = formulas.find_ignored(config.values, {"factor": 1.0})
    return EngineRope(formulas.proportional(config, config.part), ignored_keys=ignored)


def _read_llama4(config: ConfigRope) -> EngineRope:
    """Return the RoPE of three layers of four, whatever ``no_rope_layers`` says, by a base that is a whole number."""
    if not config.rope.source.model.name:
        raise UnknownError("its loader for the text alone was not read")
    count, model = config.raw.get("num_hidden_layers"), config.rope.source.model
    layers = None if count is None else tuple(i for i in range(count) if (i + 1) % 4)
    whole = {**config.values, "rope_theta": int(config.values["rope_theta"])}
    note = "pairing half, and rows of the weights are reordered for it"
    made = _read_scheme(replace(config, values=whole))
    are_others = None not in (layers, model.layers) and layers != model.layers
    ignored = (("no_rope_layers",) if are_others else ()) + made.ignored_keys
    return replace(made, pairing="interleaved", layers=layers, note=note, ignored_keys=ignored)


ENGINE = Engine(
    "SGLang",
    observed.reading(
        "SGLang",
        own=dict.fromkeys((*_READ, *_LAYERED), _read),
        layered=_LAYERED,
        sources=(
            "python/sglang/srt/layers/rotary_embedding/factory.py (get_rope), base.py, yarn.py, rope_variant.py",
            "python/sglang/srt/models/{llama,mistral,qwen2,qwen2_moe,qwen3,qwen3_moe,gemma3_causal,gpt_oss}.py",
            "python/sglang/srt/models/{gemma3n_causal,gemma4_causal,llama4,mllama4}.py",
        ),
    ),
    formats.config_format(
        "as vLLM",
        f"SGLang 0.5.23, srt/layers/rotary_embedding/factory.py and rope_variant.py; {formats.RUN}: get_rope",
        formats.make_longrope_with_mscales,
        pairings=("half",),
    ),
)
