"""MLX, whose ``mx.fast.rope`` takes periods, and MLX-LM, whose models read configs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from rfrope._core.arguments import show
from rfrope.engines import formats, formulas
from rfrope.engines.formulas import RefusedError, UnknownError
from rfrope.engines.record import Arithmetic, ConfigRope, Engine, EngineRope, ExportRequest, Format, Reading
from rfrope.scaling import schemes

# the base of a class where a config has none; None where it must have one
_BASES = {"llama": 1e4, "mistral": 1e4, "mixtral": 1e6, "phi3": 1e4, "qwen2": 1e6, "qwen3": None, "qwen3_moe": None}
_BASES |= {"gpt_oss": 15e4, "smollm3": 1e4, "cohere2": 5e4}
_PATTERNED = {"gemma3_text": 6, "cohere2": 4}  # whose layers follow sliding_window_pattern, whatever layer_types says
_LISTED = {"gemma4_text": 5, "gemma3n_text": 5, "olmo3": 4}  # with layer_types, else every so many-th is full
_READ_PARAMETERS = ("qwen3",)  # rope_parameters, too
_LEAST = 8  # positions: an original context that whole numbers say well enough
_UNSCALED = ("mixtral", "qwen3_moe", "cohere2")  # know no scheme


def _read(config: ConfigRope) -> EngineRope:
    raw, model_type = config.raw, config.model_type
    if model_type in _OWN:
        return replace(_OWN[model_type](config), layers=_find_layers(config))
    ignored: tuple[str, ...] = ()
    theta, scaling = raw.get("rope_theta"), raw.get("rope_scaling")
    if model_type in _READ_PARAMETERS:
        parameters = raw.get("rope_parameters") or {}
        theta, scaling = parameters.get("rope_theta") if theta is None else theta, scaling or parameters
    elif raw.get("rope_parameters"):
        ignored = ("rope_parameters",)
    theta = float(formulas.require_key({"rope_theta": _BASES[model_type] if theta is None else theta}, "rope_theta"))
    if model_type in _UNSCALED:
        made = EngineRope(config.ladder(base=theta), ignored_keys=("rope_scaling",) if scaling else ())
    elif model_type == "phi3":
        made = _read_phi3(config, theta, scaling)
    else:
        made = _read_scaling(config, theta, scaling or {})
    is_interleaved = model_type == "cohere2" or (raw.get("rope_traditional") and model_type != "gpt_oss")
    return replace(
        made,
        pairing="interleaved" if is_interleaved else "half",
        ignored_keys=ignored + made.ignored_keys,
        layers=_find_layers(config),
    )


def _read_gemma3(config: ConfigRope) -> EngineRope:
    """Return the RoPE of one kind of layers: keys beside ``rope_parameters``, and a pattern in place of layer_types."""
    raw, is_sliding = config.raw, config.kind == "sliding_attention"
    key = "rope_local_base_freq" if is_sliding else "rope_theta"
    theta = raw.get(key, 1e4 if is_sliding else 1e6)
    made = _read_scaling(config, float(theta), ({} if is_sliding else raw.get("rope_scaling")) or {})
    ignored = ("rope_parameters",) if raw.get("rope_parameters") else ()
    return replace(made, ignored_keys=ignored + made.ignored_keys)


def _read_gemma4(config: ConfigRope) -> EngineRope:
    """Return the RoPE of one kind of layers by its own dict, or by the class's where there is none."""
    usual: dict[str, dict[str, Any]] = {"sliding_attention": {"rope_theta": 1e4}}
    usual["full_attention"] = {"rope_theta": 1e6, "rope_type": "proportional", "partial_rotary_factor": 0.25}
    held = config.raw.get("rope_parameters")
    scaling = (usual if held is None else held).get(config.kind, {})
    pairing = "interleaved" if config.raw.get("rope_traditional") else "half"
    return replace(_read_scaling(config, float(scaling.get("rope_theta", 1e4)), scaling), pairing=pairing)


def _read_gemma3n(config: ConfigRope) -> EngineRope:
    """Return the ladder of one kind of layers, by keys beside ``rope_parameters`` alone."""
    if not config.rope.source.model.name.startswith("text_config."):
        raise UnknownError("it has no class for gemma3n_text, but for gemma3n, which holds it")
    held = {name: formulas.require_key(config.raw, name) for name in ("rope_theta", "rope_local_base_freq")}
    theta = held["rope_local_base_freq" if config.kind == "sliding_attention" else "rope_theta"]
    ignored = tuple(name for name in ("rope_parameters", "rope_scaling") if config.raw.get(name))
    return EngineRope(config.ladder(base=float(theta)), ignored_keys=ignored)


def _read_olmo3(config: ConfigRope) -> EngineRope:
    """Return the RoPE of one kind of layers: those under a window without a scheme."""
    if "." in config.rope.source.model.name:
        raise UnknownError("a model that holds one was not read")
    theta = float(formulas.require_key(config.raw, "rope_theta"))
    scaling = config.raw.get("rope_scaling") if config.kind == "full_attention" else None
    made = _read_scaling(config, theta, scaling or {})
    ignored = ("rope_parameters",) if config.raw.get("rope_parameters") else ()
    return replace(made, ignored_keys=ignored + made.ignored_keys)


def _read_exaone4(config: ConfigRope) -> EngineRope:
    for key in ("rope_scaling", "sliding_window_pattern", "sliding_window", "head_dim"):
        if key not in config.raw:
            raise RefusedError(f"stops with an error: {key} missing")
    if not isinstance(config.raw["sliding_window_pattern"], str | None):
        raise RefusedError("stops with an error: sliding_window_pattern is no text of L and G")
    theta = float(formulas.require_key(config.raw, "rope_theta"))
    return _read_scaling(config, theta, config.raw["rope_scaling"] or {})


def _read_llama4(config: ConfigRope) -> EngineRope:
    """Return the RoPE of the text alone, whose class knows no scheme, or of the text beside pictures, whose does."""
    theta, scaling = float(formulas.require_key(config.raw, "rope_theta")), config.raw.get("rope_scaling") or {}
    if not config.rope.source.model.name:
        formulas.require_key(config.raw, "no_rope_layers")
        ignored = ("rope_scaling",) if scaling else ()
        return EngineRope(config.ladder(base=theta), pairing="interleaved", ignored_keys=ignored)
    if "rope_scaling" not in config.raw:
        raise RefusedError("stops with an error: rope_scaling missing")
    return replace(_read_scaling(config, theta, scaling), pairing="interleaved")


_OWN = {
    "gemma3_text": _read_gemma3,
    "gemma3n_text": _read_gemma3n,
    "gemma4_text": _read_gemma4,
    "olmo3": _read_olmo3,
    "exaone4": _read_exaone4,
    "llama4_text": _read_llama4,
}


def _find_layers(config: ConfigRope) -> tuple[int, ...] | None:
    """Return the layers that turn, or those of one kind."""
    raw, found = config.raw, config.rope.source.model.layers
    count = raw.get("num_hidden_layers")
    if found is None or count is None:
        return None
    if config.model_type == "smollm3":
        flags = raw.get("no_rope_layers")
        if flags is not None and len(flags) != count:
            raise RefusedError(f"stops with an error: no_rope_layers has {len(flags)} entries, not {count}")
        every = raw.get("no_rope_layer_interval", 4)
        return tuple(i for i in range(count) if (flags[i] if flags is not None else (i + 1) % every))
    if config.model_type == "llama4_text":  # of a part, whatever no_rope_layers says
        is_part = bool(config.rope.source.model.name)
        return tuple(i for i in range(count) if ((i + 1) % 4 if is_part else raw["no_rope_layers"][i]))
    if config.model_type == "exaone4":  # whatever layer_types says
        pattern = raw["sliding_window_pattern"]
        return tuple(i for i in range(count) if not pattern or pattern[i % len(pattern)] == "L")
    if config.model_type in _LISTED:
        every, kinds = _LISTED[config.model_type], raw.get("layer_types")
        kinds = kinds or ["sliding_attention" if (i + 1) % every else "full_attention" for i in range(count)]
        return tuple(i for i in range(count) if kinds[i] == config.kind)
    if config.model_type in _PATTERNED:
        every = raw.get("sliding_window_pattern", _PATTERNED[config.model_type])
        is_full = config.kind == "full_attention"
        return tuple(i for i in range(count) if ((i + 1) % every == 0) == is_full)
    return found


def _read_scaling(config: ConfigRope, theta: float, scaling: Mapping[str, Any]) -> EngineRope:
    name, base = scaling.get("type") or scaling.get("rope_type", "default"), config.ladder(base=theta)
    match name:
        case "default" | "mrope":
            return EngineRope(base)
        case "linear":
            return EngineRope(base / float(scaling["factor"]))
        case "llama3":
            return EngineRope(formulas.llama3(base, {"original_max_position_embeddings": 8192, **scaling}))
        case "yarn":
            factor = formulas.require_key(scaling, "factor")
            attention = schemes.sharpen_yarn(factor, scaling.get("mscale", 1), scaling.get("mscale_all_dim", 0))
            original = scaling.get("original_max_position_embeddings", 4096)
            return formulas.yarn(base, scaling, factor, original, attention, ("beta_fast", "beta_slow"), theta)
        case "longrope":
            original = formulas.require_key(scaling, "original_max_position_embeddings")
            return _read_longrope(config, base, scaling, original)
        case "dynamic":
            factor = formulas.require_key(scaling, "factor")
            slower = formulas.ntk(config, schemes.stretch(factor, config.seq_len, config.context), theta=theta)
            length = "recomputed at every step beyond the context; keys in a cache keep their old frequencies"
            return EngineRope(slower, length=length, ignored_keys=formulas.find_ignored(scaling, {"alpha": None}))
        case "proportional":
            turning = formulas.proportional(config, float(scaling.get("partial_rotary_factor", 1.0)), theta)
            return EngineRope(turning / float(scaling.get("factor", 1.0)))
    raise RefusedError(f"stops with an error: {show(name)} is none of its schemes")


def _read_phi3(config: ConfigRope, theta: float, scaling: Any) -> EngineRope:
    base = config.ladder(float(config.raw.get("partial_rotary_factor", 1.0)), theta)
    if not scaling:
        return EngineRope(base)
    if "type" not in scaling or "long_factor" not in scaling:
        raise RefusedError("stops with an error: rope_scaling wants type and long_factor")
    if scaling["type"] not in ("longrope", "su"):
        raise UnknownError(f"the scheme {show(scaling['type'])} was not read")
    return _read_longrope(config, base, scaling, config.raw.get("original_max_position_embeddings", 4096))


def _read_longrope(config: ConfigRope, base: np.ndarray, scaling: Mapping[str, Any], original: float) -> EngineRope:
    frequencies = formulas.divide_ladder(base, scaling["long_factor"])
    scale = schemes.sharpen_longrope(config.context / original, original)  # whatever ``factor`` says
    ignored = formulas.find_ignored(scaling, {"attention_factor": None})
    return EngineRope(frequencies, scale, "long_factor for every text", ignored_keys=ignored)


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
    """Return keys of MLX-LM's configs; the attention factor follows from the two contexts, in whole positions.

    Of a model that reads ``original`` and now ``context`` positions its class makes ``sqrt(ln context / ln original)``.
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
    """Return why a class would turn otherwise, or the contexts of a config do not say an attention factor."""
    rope, context = request.rope, request.context or 1
    factor, kind = rope.attention_factor, rope.source.model.model_type
    if request.scheme is not None and kind in ("", *_BASES):
        return ""
    if kind in (*_UNSCALED, *_OWN) or (kind and kind not in _BASES):
        return f"its class of {show(kind)} was not seen to read divisors"
    if rope.head_dim != rope.rotary_dim:
        return f"its classes turn whole heads, the Rope {rope.rotary_dim} features of {rope.head_dim}"
    if factor < 1.0:
        return f"its attention factor is {factor}, and what MLX-LM makes of a config is 1 or more"
    if factor > 1.0 and context ** (factor**-2.0) < _LEAST:
        least = f"an original context below {_LEAST} positions"
        return f"its attention factor {factor} needs {least}; expected more context"
    return ""


MLX = Engine(
    "MLX",
    format=Format(
        "arguments of ``mx.fast.rope``: ``freqs`` are periods over 2π, 1/frequency",
        "periods to float32; positions times their reciprocals in float32",
        f"MLX 0.32.4, mlx/fast.h; {formats.RUN}",
        _make_periods,
        _compute_periods,
        factor=False,
        options=(),
    ),
)
MLX_LM = Engine(
    "MLX-LM",
    Reading(
        "0.32.2",
        (
            "mlx_lm/models/rope_utils.py (initialize_rope)",
            "mlx_lm/models/{llama,mixtral,phi3,qwen2,qwen3,qwen3_moe}.py (ModelArgs, Attention)",
            "mlx_lm/models/{gemma3_text,gpt_oss,smollm3,cohere2}.py (ModelArgs, Attention, Model)",
            "mlx_lm/models/{gemma3n,gemma4_text,olmo3,exaone4,llama4,llama4_text}.py (ModelArgs, Attention, Model)",
            "mlx_lm/utils.py (MODEL_REMAPPING)",
        ),
        _read,
        (*_BASES, *_OWN),
        ("gemma3_text", "gemma3n_text", "gemma4_text", "olmo3", "llama4_text"),
    ),
    formats.config_format(
        "``rope_scaling`` of type ``longrope``, for config.json; the attention factor by its original context",
        f"MLX-LM 0.32.2, mlx_lm/models/rope_utils.py (SuScaledRoPE); {formats.RUN}: Llama",
        _make_config,
        compute=_compute_config,
        pairings=("half",),
        refusal=_refuse_config,
        cannot="parts of heads, an attention factor below 1, or one above 1 over a short context",
    ),
)
