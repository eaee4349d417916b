"""What each engine makes of a config's RoPE: one rule for each, written from its source; `engines` says which files."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from rfrope._core.arguments import show
from rfrope.data.model_types import known
from rfrope.models.values import first, given
from rfrope.rotation.rope import Rope
from rfrope.scaling import schemes
from rfrope.scaling.records import ladder, rotated_width
from rfrope.scaling.shared import stretch


class RefusedError(ValueError):
    """The engine stops at such a config."""


class UnknownError(ValueError):
    """What the engine does with such a config was not read from its source."""


@dataclass(frozen=True, eq=False)
class Case:
    """What a config says of one RoPE.

    Attributes
    ----------
    rope : Rope
        As `from_config` reads it, for a text of `seq_len` positions.
    values : dict
        ``rope_parameters`` as transformers 5 holds them after reading the config: names and defaults filled in.
    raw : mapping
        The config itself.
    seq_len : int
        Positions in the longest text; engines that must choose when they start are started for it.
    """

    rope: Rope
    values: dict[str, Any]
    raw: Mapping[str, Any]
    seq_len: int

    @property
    def model_type(self) -> str:
        """``model_type`` of the config."""
        return str(self.rope.source.model.model_type)

    def own(self, engine: str) -> Mapping[str, Any]:
        """What is peculiar to this model type in the code of an engine."""
        found: Mapping[str, Any] = known(self.model_type).get("engines", {}).get(engine, {})
        return found

    @property
    def scheme(self) -> str:
        """Name of the scheme, as transformers 5 has it."""
        return str(self.rope.source.rope_parameters["rope_type"])

    @property
    def context(self) -> int:
        """``max_position_embeddings``."""
        assert isinstance(self.rope.context, int)  # checked when this is made
        return self.rope.context

    @property
    def part(self) -> float:
        """``partial_rotary_factor`` in the dict, which classes of some model types pass over."""
        return float(self.values.get("partial_rotary_factor", 1.0))

    def ladder(self, part: float = 1.0, base: float | None = None) -> np.ndarray:
        """Ladder over a part of the head."""
        assert self.rope.head_dim is not None  # set by every Rope
        return ladder(rotated_width(self.rope.head_dim, part), self.values["rope_theta"] if base is None else base)


@dataclass(frozen=True, eq=False)
class Use:
    """What an engine does.

    Attributes
    ----------
    frequencies : ndarray (D,), radians per position
    attention_factor : float
        Multiplies cos and sin.
    length : str
        How the length of the text counts.
    pairing : {"half", "interleaved"} or None
        The two features that make a block, in the order of the config's own weights.
    positions : int or None
        Where tables of cos and sin end, if there are such.
    passed_over : tuple of str
        Keys of the config that are not read, though they would count.
    note : str
        What else must be known.
    """

    frequencies: np.ndarray
    attention_factor: float = 1.0
    length: str = "the same at every length"
    pairing: str | None = "half"
    positions: int | None = None
    passed_over: tuple[str, ...] = ()
    note: str = ""


# -- what several rules share ------------------------------------------------------------------------------------------


def _yarn_scale(factor: float, coefficient: float = 1.0) -> float:
    return 1.0 if factor <= 1.0 else 0.1 * coefficient * math.log(factor) + 1.0


def _long_scale(case: Case, original: float) -> float:
    """Attention factor by the ratio of the contexts, and never by ``factor``."""
    ratio = case.context / original
    return 1.0 if ratio <= 1.0 else math.sqrt(1.0 + math.log(ratio) / math.log(original))


def _yarn(case: Case, base: np.ndarray, attention: float, **options: Any) -> tuple[np.ndarray, float]:
    """YaRN with the keys that an engine reads."""
    chosen = {"beta_fast": 32.0, "beta_slow": 1.0, "truncate": True} | options
    theta = case.values["rope_theta"]
    made = schemes.yarn(base, chosen.pop("factor"), base=theta, attention_factor=attention, **chosen)
    return np.asarray(made.frequencies), attention


def _llama3(case: Case, base: np.ndarray) -> np.ndarray:
    names = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
    return np.asarray(schemes.llama3(base, **{name: case.values[name] for name in names}).frequencies)


def _ntk_base(base: float, width: int, factor: float) -> float:
    return base * float(factor) ** (width / (width - 2))


def _needed(values: Mapping[str, Any], *names: str) -> list[Any]:
    missing = [name for name in names if values.get(name) is None]
    if missing:
        raise RefusedError(f"stops with an error: {', '.join(missing)} missing")
    return [values[name] for name in names]


def _divided(base: np.ndarray, factors: Any) -> np.ndarray:
    divisors = np.asarray(factors, dtype=np.float64)
    if divisors.shape != base.shape:
        raise RefusedError(f"stops with an error: {divisors.size} factors for {base.size} frequencies")
    return np.asarray(base / divisors)


def _present(values: Mapping[str, Any], usual: Mapping[str, Any]) -> tuple[str, ...]:
    """Keys that are given with another value than the one that counts without them."""
    return tuple(name for name, value in usual.items() if values.get(name) not in (None, value))


# -- transformers ------------------------------------------------------------------------------------------------------


def transformers(case: Case) -> Use:
    """What transformers does."""
    name = case.scheme
    values = case.values if case.rope.source.model.name else given(case.raw)  # a part has been read already
    written = values.get("rope_type", values.get("type"))
    if name == "ntk" or (written == "su" and not case.own("transformers").get("su")):
        raise RefusedError(f"stops with an error: {show(written)} is none of its schemes")
    if name == "yarn" and values is not case.values and not {"factor", "short_factor"} & set(values):
        raise RefusedError("stops with an error: factor missing")
    if case.rope.source.model.pairing_from == "assumed":
        raise UnknownError(f"it has no class for model type {show(case.model_type)}")
    length = {
        "dynamic": "recomputed for every text longer than the context; keys in a cache keep their old frequencies",
        "longrope": f"long_factor for texts longer than {case.values.get('original_max_position_embeddings')}, "
        "short_factor for others; keys in a cache keep their old frequencies",
    }
    rule = Use.length if "alpha" in values else length.get(name, Use.length)
    note = "after rfrope.integrations.transformers.register(), else it stops with an error" if name == "rfrope" else ""
    return Use(np.asarray(case.rope.frequencies), case.rope.attention_factor, rule, case.rope.pairing, note=note)


# -- vLLM and SGLang ---------------------------------------------------------------------------------------------------


def vllm(case: Case) -> Use:
    """What vLLM does."""
    values, name = case.values, case.scheme
    base = case.ladder(case.part)
    if name == "default":
        return Use(base, positions=case.context)
    if name == "linear":
        (factor,) = _needed(values, "factor")
        if not isinstance(factor, float):
            raise RefusedError(
                f"stops with an error: factor is {show(factor)}, and it wants a float, {float(factor)!r}"
            )
        return Use(base / factor, positions=math.ceil(case.context * factor))
    if name == "llama3":
        _needed(values, "factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
        return Use(_llama3(case, base), positions=case.context)
    if name == "yarn":
        factor, original = _needed(values, "factor", "original_max_position_embeddings")
        mscale, everywhere = (float(values.get(key) or 0.0) for key in ("mscale", "mscale_all_dim"))
        scale = _yarn_scale(factor)
        if mscale and everywhere:
            scale = _yarn_scale(factor, mscale) / _yarn_scale(factor, everywhere)
        attention = scale if values.get("attention_factor") is None else float(values["attention_factor"])
        keys = ("beta_fast", "beta_slow", "truncate")
        options = {key: values[key] for key in keys if values.get(key) is not None}
        options |= {"factor": factor, "original_max_position_embeddings": original}
        return Use(*_yarn(case, base, attention, **options), positions=math.ceil(original * factor))
    if name == "longrope":
        return _long_in_vllm(case, base)
    if name == "dynamic" and "alpha" not in values:
        (factor,) = _needed(values, "factor")
        trained = values.get("max_trained_positions", case.context)
        stretched = factor * case.context / trained - (factor - 1.0)
        slower = case.ladder(case.part, _ntk_base(values["rope_theta"], 2 * base.size, stretched))
        return Use(slower, length="computed once, for a text as long as the context", positions=case.context)
    raise UnknownError(f"the scheme {show(name)} was not read")


def _long_in_vllm(case: Case, base: np.ndarray) -> Use:
    short, long, original = _needed(case.values, "short_factor", "long_factor", "original_max_position_embeddings")
    is_long = case.seq_len > original
    scale = case.values.get("long_mscale" if is_long else "short_mscale")
    return Use(
        _divided(base, long if is_long else short),
        _long_scale(case, original) if scale is None else float(scale),
        length=f"long_factor for every text of a server whose max_model_len is above {original} (it is {original} "
        "unless set otherwise), else short_factor",
        positions=case.context if is_long else original,
        passed_over=_present(case.values, {"factor": case.context / original, "attention_factor": None}),
    )


def sglang(case: Case) -> Use:
    """What SGLang does."""
    values, name = case.values, case.scheme
    # the Llama class reads this key beside the dict, where transformers 5 has it for Phi-3 alone; others pass over it
    part = case.part if case.own("SGLang").get("partial") else 1.0
    base = case.ladder(part)
    if name == "default":
        return Use(base)
    if name == "linear":
        factor = values.get("factor", 1.0)
        if not isinstance(factor, float):
            raise RefusedError(
                f"stops with an error: factor is {show(factor)}, and it wants a float, {float(factor)!r}"
            )
        return Use(base / factor)
    if name == "llama3":
        _needed(values, "factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
        return Use(_llama3(case, base))
    if name == "yarn":
        factor = values.get("factor", 1.0)
        attention = _yarn_scale(factor)
        if values.get("mscale") is not None and values.get("mscale_all_dim") is not None:
            attention = _yarn_scale(factor, values["mscale"]) / _yarn_scale(factor, values["mscale_all_dim"])
        keys = ("beta_fast", "beta_slow", "truncate", "original_max_position_embeddings")
        options = {key: values[key] for key in keys if values.get(key) is not None} | {"factor": factor}
        passed = _present(values, {"attention_factor": attention})
        return Use(*_yarn(case, base, attention * values.get("attn_factor", 1.0), **options), passed_over=passed)
    if name == "longrope":
        short, long, original = _needed(values, "short_factor", "long_factor", "original_max_position_embeddings")
        is_long = case.seq_len > original
        scale = values.get("long_mscale" if is_long else "short_mscale")
        return Use(
            _divided(base, long if is_long else short),
            _long_scale(case, original) if scale is None else float(scale),
            length=f"long_factor for a batch that holds a position above {original}, else short_factor; keys in a "
            "cache keep their old frequencies",
            positions=case.context,
            passed_over=_present(values, {"factor": case.context / original, "attention_factor": None}),
        )
    if name == "dynamic" and "alpha" not in values:
        factor = values.get("factor", 1.0)
        stretched = factor * factor - (factor - 1.0)
        slower = case.ladder(part, _ntk_base(values["rope_theta"], 2 * base.size, stretched))
        return Use(slower, length="computed once, for a text of factor times the context")
    raise UnknownError(f"the scheme {show(name)} was not read")


# -- llama.cpp ---------------------------------------------------------------------------------------------------------

_REORDERED = "pairing interleaved, and the converter reorders the weights of queries and keys for it"


def llama_cpp(case: Case) -> Use:
    """What llama.cpp does with the model that its converter makes."""
    values, name = case.values, case.scheme
    if case.own("llama.cpp").get("factors"):
        return _factors_in_llama_cpp(case)
    is_llama = case.own("llama.cpp").get("reordered", False)
    note, base = _REORDERED if is_llama else "", case.ladder()
    if name == "default":
        return Use(base, note=note)
    if name == "linear":
        (factor,) = _needed(values, "factor")
        return Use(base / float(factor), note=note)
    if name == "yarn":
        if values.get("factor") is None:
            return Use(base, note=note, passed_over=("rope_type",))
        factor, original = _needed(values, "factor", "original_max_position_embeddings")
        frequencies, scale = _yarn(
            case, base, _yarn_scale(factor), factor=factor, original_max_position_embeddings=original
        )
        usual = {"beta_fast": 32, "beta_slow": 1, "truncate": True, "attention_factor": scale}
        passed = _present(values, usual)
        if case.rope.attention_factor != scale and "attention_factor" not in passed:
            passed += tuple(key for key in ("mscale", "mscale_all_dim") if values.get(key) is not None)
        return Use(frequencies, scale, note=note, passed_over=passed)
    if name == "llama3" and is_llama:
        return Use(_llama3(case, base), note=note)
    if name in ("llama3", "longrope", "dynamic"):
        return Use(base, note=note, passed_over=("rope_type",))
    raise UnknownError(f"the scheme {show(name)} was not read")


def _factors_in_llama_cpp(case: Case) -> Use:
    values, base = case.values, case.ladder(case.part)
    if case.scheme != "longrope":
        return Use(base, passed_over=() if case.scheme == "default" else ("rope_type",))
    short, long, original = _needed(values, "short_factor", "long_factor", "original_max_position_embeddings")
    return Use(
        _divided(base, long if case.seq_len > original else short),
        _long_scale(case, original),
        length=f"long_factor for every text where the context of a sequence is set above {original}, else short_factor",
        passed_over=_present(values, {"factor": case.context / original, "attention_factor": None}),
    )


# -- MLX-LM ------------------------------------------------------------------------------------------------------------


def mlx_lm(case: Case) -> Use:
    """What MLX-LM does."""
    raw, own = case.raw, case.own("MLX-LM")
    passed: tuple[str, ...] = ()
    theta, scaling = raw.get("rope_theta"), raw.get("rope_scaling")
    if own.get("rope_parameters"):
        parameters = raw.get("rope_parameters") or {}
        theta, scaling = parameters.get("rope_theta") if theta is None else theta, scaling or parameters
    elif raw.get("rope_parameters"):
        passed = ("rope_parameters",)
    if theta is None and "rope_theta" not in own:
        raise RefusedError("stops with an error: rope_theta missing")
    theta = float(own["rope_theta"] if theta is None else theta)
    pairing = "interleaved" if raw.get("rope_traditional") else "half"
    if own.get("schemes") == "none":
        return Use(
            case.ladder(base=theta), pairing=pairing, passed_over=passed + (("rope_scaling",) if scaling else ())
        )
    if own.get("schemes") == "longrope":
        return _long_in_mlx(case, theta, scaling, passed, pairing)
    frequencies, attention, length, more = _scaled_in_mlx(case, theta, scaling or {})
    return Use(frequencies, attention, length, pairing, passed_over=passed + more)


def _scaled_in_mlx(
    case: Case, theta: float, scaling: Mapping[str, Any]
) -> tuple[np.ndarray, float, str, tuple[str, ...]]:
    """Frequencies, attention factor, rule for lengths, and keys that are passed over, by a dict of scaling."""
    name, base, same = scaling.get("type") or scaling.get("rope_type", "default"), case.ladder(base=theta), Use.length
    if name in ("default", "mrope"):
        return base, 1.0, same, ()
    if name == "linear":
        return base / float(_needed(scaling, "factor")[0]), 1.0, same, ()
    if name == "llama3":
        usual = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
        chosen = usual | {key: scaling[key] for key in usual if key in scaling}
        return np.asarray(schemes.llama3(base, _needed(scaling, "factor")[0], **chosen).frequencies), 1.0, same, ()
    if name == "yarn":
        (factor,) = _needed(scaling, "factor")
        keys = ("beta_fast", "beta_slow", "original_max_position_embeddings")
        options = {"original_max_position_embeddings": 4096} | {key: scaling[key] for key in keys if key in scaling}
        attention = _yarn_scale(factor, scaling.get("mscale", 1)) / _yarn_scale(
            factor, scaling.get("mscale_all_dim", 0)
        )
        made = schemes.yarn(base, factor, base=theta, attention_factor=attention, **options)
        passed = _present(scaling, {"attention_factor": attention, "truncate": True})
        return np.asarray(made.frequencies), attention, same, passed
    if name == "longrope":
        long, _, original = _needed(scaling, "long_factor", "short_factor", "original_max_position_embeddings")
        scale, passed = _long_scale(case, original), _present(scaling, {"attention_factor": None})
        return _divided(base, long), scale, "long_factor for every text", passed
    if name == "dynamic":
        (factor,) = _needed(scaling, "factor")
        stretched = stretch(factor, case.seq_len, case.context)
        slower = case.ladder(base=_ntk_base(theta, 2 * base.size, stretched))
        length = "recomputed at every step beyond the context; keys in a cache keep their old frequencies"
        return slower, 1.0, length, _present(scaling, {"alpha": None})
    if name == "proportional":
        raise UnknownError(f"the scheme {show(name)} was not read")
    raise RefusedError(f"stops with an error: {show(name)} is none of its schemes")


def _long_in_mlx(case: Case, theta: float, scaling: Any, passed: tuple[str, ...], pairing: str) -> Use:
    base = case.ladder(float(case.raw.get("partial_rotary_factor", 1.0)), theta)
    if not scaling:
        return Use(base, pairing=pairing, passed_over=passed)
    if "type" not in scaling or "long_factor" not in scaling:
        raise RefusedError("stops with an error: rope_scaling wants type and long_factor")
    if scaling["type"] not in ("longrope", "su"):
        raise UnknownError(f"the scheme {show(scaling['type'])} was not read")
    original = float(case.raw.get("original_max_position_embeddings", 4096))
    passed += _present(scaling, {"attention_factor": None})
    frequencies, scale = _divided(base, scaling["long_factor"]), _long_scale(case, original)
    return Use(frequencies, scale, "long_factor for every text", pairing, passed_over=passed)


# -- TensorRT-LLM ------------------------------------------------------------------------------------------------------


def tensorrt_llm(case: Case) -> Use:
    """What TensorRT-LLM does, by its PyTorch classes."""
    raw, name, scaling = case.raw, case.scheme, case.raw.get("rope_scaling")
    if raw.get("rope_parameters"):
        raise UnknownError("the version that was read takes rope_theta and rope_scaling, not rope_parameters")
    part = first(raw, "partial_rotary_factor")
    base = case.ladder(1.0 if part is None else float(part))
    if not scaling:
        return Use(base, positions=case.context)
    if name not in ("linear", "llama3", "yarn", "longrope", "dynamic"):
        raise RefusedError(f"stops with an error: {show(name)} is none of its schemes")
    if case.own("TensorRT-LLM").get("schemes") == "yarn" and name != "yarn":
        raise RefusedError(f"stops with an error: {show(name)} is none of the schemes of its Qwen classes")
    if name == "linear":
        return Use(base / float(scaling.get("factor", 1.0)), positions=case.context)
    if name == "dynamic":
        if "alpha" in scaling:
            raise UnknownError("the scheme 'dynamic' with alpha was not read")
        return Use(base, positions=case.context, passed_over=("factor",))
    if name == "llama3":
        usual = {"factor": 1.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
        usual["original_max_position_embeddings"] = 1024
        chosen = usual | {key: case.values[key] for key in usual if key in scaling}
        return Use(np.asarray(schemes.llama3(base, **chosen).frequencies), positions=case.context)
    original = raw.get("original_max_position_embeddings") or scaling.get("original_max_position_embeddings") or 1024
    if name == "yarn":
        return _yarn_in_tensorrt(case, base, scaling, original)
    return Use(
        _divided(base, scaling["long_factor" if case.seq_len > original else "short_factor"]),
        _long_scale(case, original),
        length=f"long_factor for every text of an engine whose max_seq_len is above {original} or unset, else "
        "short_factor",
        positions=case.context,
        passed_over=_present(scaling, {"factor": case.context / original, "attention_factor": None}),
    )


def _yarn_in_tensorrt(case: Case, base: np.ndarray, scaling: Mapping[str, Any], original: int) -> Use:
    factor = float(scaling.get("factor", 1.0))
    options = {key: scaling[key] for key in ("beta_fast", "beta_slow") if key in scaling}
    options |= {"factor": factor, "original_max_position_embeddings": original}
    mscale, everywhere = scaling.get("mscale", 1.0), scaling.get("mscale_all_dim", 0.0)
    attention = _yarn_scale(factor, mscale) / _yarn_scale(factor, everywhere)
    passed = _present(scaling, {"attention_factor": attention, "truncate": True})
    return Use(*_yarn(case, base, attention, **options), positions=case.context, passed_over=passed)
