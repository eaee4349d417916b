"""MLX, whose ``mx.fast.rope`` takes periods, and MLX-LM, whose models read configs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from rfrope._core.arguments import show
from rfrope.engines import formats, formulas
from rfrope.engines.formulas import RefusedError, UnknownError
from rfrope.engines.record import Arithmetic, ConfigRope, Engine, EngineRope, ExportRequest, Format, Reading
from rfrope.scaling.schemes import stretch

# the base of a class where a config has none; None where it must have one
_BASES = {"llama": 1e4, "mistral": 1e4, "mixtral": 1e6, "phi3": 1e4, "qwen2": 1e6, "qwen3": None, "qwen3_moe": None}
_BASES |= {"gpt_oss": 15e4, "smollm3": 1e4, "cohere2": 5e4}
_PATTERNED = {"gemma3_text": 6, "cohere2": 4}  # whose layers follow sliding_window_pattern, whatever layer_types says
_READ_PARAMETERS = ("qwen3",)  # rope_parameters, too
_UNSCALED = ("mixtral", "qwen3_moe", "cohere2")  # know no scheme


def _read(config: ConfigRope) -> EngineRope:
    raw, model_type = config.raw, config.model_type
    if model_type == "gemma3_text":
        return _read_gemma3(config)
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
    return replace(made, ignored_keys=ignored + made.ignored_keys, layers=_find_layers(config))


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
            attention = formulas.divide_scales(factor, scaling.get("mscale", 1), scaling.get("mscale_all_dim", 0))
            original = scaling.get("original_max_position_embeddings", 4096)
            return formulas.yarn(base, scaling, factor, original, attention, ("beta_fast", "beta_slow"), theta)
        case "longrope":
            original = formulas.require_key(scaling, "original_max_position_embeddings")
            return _read_longrope(config, base, scaling, original)
        case "dynamic":
            factor = formulas.require_key(scaling, "factor")
            slower = formulas.ntk(config, stretch(factor, config.seq_len, config.context), theta=theta)
            length = "recomputed at every step beyond the context; keys in a cache keep their old frequencies"
            return EngineRope(slower, length=length, ignored_keys=formulas.find_ignored(scaling, {"alpha": None}))
        case "proportional":
            raise UnknownError(f"the scheme {show(name)} was not read")
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
    frequencies, scale = formulas.divide_ladder(base, scaling["long_factor"]), formulas.scale_longrope(config, original)
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
            "mlx_lm/utils.py (MODEL_REMAPPING)",
        ),
        _read,
        (*_BASES, "gemma3_text"),
        ("gemma3_text",),
    ),
)
