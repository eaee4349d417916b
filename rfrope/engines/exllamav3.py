"""exllamav3: its reading of configs, and its kernel, which takes phases for each position."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from rfrope._core.arguments import show
from rfrope.engines import formats, formulas
from rfrope.engines.formulas import RefusedError, UnknownError
from rfrope.engines.record import Arithmetic, ConfigRope, Engine, EngineRope, ExportRequest, Format, Reading
from rfrope.scaling import schemes

_ORIGINAL = "original_max_position_embeddings"
_LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, _ORIGINAL: 8192}
_GPTJ, _NEOX = 1, 2  # of its RopeStyle
_FAST = 2.0**-21.19  # largest error of CUDA's __cosf in half a turn, and of __sinf at most; CUDA C++ Programming Guide


def _read(config: ConfigRope) -> EngineRope:
    if config.model_type == "gemma3_text":
        return _read_gemma3(config)
    return _read_settings(config, config.raw, 1e4)


def _read_gemma3(config: ConfigRope) -> EngineRope:
    """Return the RoPE of one kind of layers: those under a window have a base of 1e4, whatever the config says."""
    raw, layers = config.raw, config.rope.source.model.layers
    is_sliding, parameters = config.kind == "sliding_attention", raw.get("rope_parameters") or {}
    made = _read_settings(config, {} if is_sliding else raw, 1e4 if is_sliding else 1e6)
    ignored: tuple[str, ...] = ("rope_parameters",) if config.kind in parameters else ()
    if is_sliding and raw.get("rope_local_base_freq", 1e4) != 1e4:
        ignored += ("rope_local_base_freq",)
    if "." in config.rope.source.model.name:  # of a part it takes the pattern from the top
        layers = None
    return replace(made, ignored_keys=ignored + made.ignored_keys, layers=layers)


def _read_settings(config: ConfigRope, raw: Mapping[str, Any], usual: float) -> EngineRope:
    parameters = raw.get("rope_parameters") or {}
    scaling = parameters if raw.get("rope_scaling") is None else raw["rope_scaling"]
    joined = {
        name: value for held in (parameters, raw) for name, value in held.items() if isinstance(value, int | float)
    }
    theta, part = float(joined.get("rope_theta", usual)), float(joined.get("partial_rotary_factor", 1.0))
    if raw.get("rotary_dim") is not None:
        raise UnknownError("rotary_dim in a config of this model type was not read")
    base = config.ladder(part, theta)
    match scaling.get("rope_type", scaling.get("type")):
        case None | "default" | "mrope":
            return EngineRope(base)
        case "linear":
            return EngineRope(base / float(scaling.get("factor", 1.0)))
        case "llama3":
            return EngineRope(formulas.llama3(base, {**_LLAMA3, **scaling}))
        case "yarn":
            return _read_yarn(config, base, scaling, theta)
        case "longrope" | "su":
            original = formulas.require_key({_ORIGINAL: scaling.get(_ORIGINAL, raw.get(_ORIGINAL))}, _ORIGINAL)
            length = f"long_factor for every text of a model that is loaded for more than {original}, else short_factor"
            return formulas.longrope(config, base, original, length)
        case "proportional":
            return EngineRope(formulas.proportional(config, part, theta) / float(scaling.get("factor", 1.0)))
        case other:
            raise RefusedError(f"stops with an error: {show(other)} is none of its schemes")


def _read_yarn(config: ConfigRope, base: np.ndarray, scaling: Mapping[str, Any], theta: float) -> EngineRope:
    """Return YaRN with the ratio of the contexts, whatever ``factor`` says, where the original one is given."""
    if scaling.get("llama_4_scaling_beta"):
        raise UnknownError("llama_4_scaling_beta was not read")
    ignored: tuple[str, ...] = ()
    original = scaling.get(_ORIGINAL)
    if original is None:
        original, factor = config.context, float(formulas.require_key(scaling, "factor"))
    else:
        factor = config.context / original
        ignored = formulas.find_ignored(scaling, {"factor": factor})
    attention = scaling.get("attention_factor")
    if attention is None:
        attention = schemes.sharpen_yarn(factor)
        ignored += tuple(name for name in ("mscale", "mscale_all_dim") if scaling.get(name) is not None)
    made = formulas.yarn(base, scaling, factor, original, float(attention), theta=theta)
    return replace(made, ignored_keys=ignored)


def _make_phases(request: ExportRequest) -> dict[str, Any]:
    """Return phases ``(1, S, D)``, or ``(H, S, D)`` for sets of each head: its kernel takes one table a text."""
    phases = formats.make_phases(request).reshape(request.heads or 1, request.context or 0, -1)
    style = _GPTJ if request.interleaved else _NEOX
    return {"inv_freq": phases, "attn_factor": request.rope.attention_factor, "rope_style": style}


ENGINE = Engine(
    "exllamav3",
    Reading(
        "1.4.1",
        (
            "exllamav3/util/rope.py (RoPE, yarn_inv_freq)",
            "exllamav3/model/config.py (read_rope_settings_default), exllamav3/util/file.py (read_dict)",
            "exllamav3/architecture/{llama,mistral,mixtral,phi3,qwen2,qwen3,qwen3_moe,gemma3,gpt_oss}.py",
        ),
        _read,
        ("llama", "mistral", "mixtral", "phi3", "qwen2", "qwen3", "qwen3_moe", "gemma3_text", "gpt_oss"),
        ("gemma3_text",),
    ),
    Format(
        "``inv_freq`` of ``RoPE.apply`` as a table of phases, less whole turns, one for each text of the batch "
        "(repeat it, contiguous); ``attn_factor`` and ``rope_style`` of its settings. A list of frequencies would do, "
        "but their phases are not reduced before ``__sinf`` and ``__cosf``",
        "phases of at most half a turn are rounded to float32; ``__sinf`` and ``__cosf``",
        f"exllamav3 1.4.1, exllamav3_ext/rope.cu of 4f8ad01; {formats.READ}",
        _make_phases,
        # phases of at most half a turn, their cos and sin, and the product with the factor
        lambda request, made: Arithmetic(None, 0.0, np.pi * formats.ULP + _FAST + formats.ULP),
        heads="view ``(B, S, H, d)`` as ``(B H, S, 1, d)``, heads before tokens: the tables are those of one text, "
        "to be repeated for each",
    ),
)
