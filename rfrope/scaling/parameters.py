"""The dict in which a model's config says what its frequencies are, read strictly."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rfrope import _array
from rfrope.frequencies import count
from rfrope.scaling import schemes
from rfrope.scaling.scaled import Scaled, number, positive

DEFAULT_THETA = 10_000.0
# Phi-3's first name for it; the axes of M-RoPE and of HunYuan's XD-RoPE are no scheme
_ALIASES = {"su": "longrope", "mrope": "default", "xdrope": "dynamic"}
_EVERYWHERE = ("rope_theta", "partial_rotary_factor", "mrope_section", "mrope_interleaved")


@dataclass(frozen=True)
class _Scheme:
    """Keys that a scheme needs and may have, and keys of published configs that change nothing, with the reason."""

    required: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    idle: Mapping[str, str] = field(default_factory=dict)

    @property
    def known(self) -> tuple[str, ...]:
        return (*self.required, *self.optional, *_EVERYWHERE)


_SCHEMES = {
    "default": _Scheme(idle={"interleaved": "Qwen3-Omni carries it beside mrope_interleaved, which says it"}),
    "linear": _Scheme(("factor",)),
    "ntk": _Scheme(("factor",)),
    "dynamic": _Scheme(("factor",)),
    "dynamic with alpha": _Scheme(
        ("alpha",),
        idle=dict.fromkeys(
            ("factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim"),
            "HunYuan's configs carry it; alpha alone changes their base",
        ),
    ),
    "yarn": _Scheme(
        (),
        (
            *("factor", "original_max_position_embeddings", "beta_fast", "beta_slow", "truncate"),
            *("attention_factor", "mscale", "mscale_all_dim"),
        ),
        idle={
            "finetuned": "tells how the first YaRN models were trained",
            "llama_4_scaling_beta": "Ministral 3 scales queries with it, by position; frequencies stay",
            "max_position_embeddings": "Ministral 3 repeats here what stands beside the dict",
        },
    ),
    "longrope": _Scheme(
        ("short_factor", "long_factor"),
        ("factor", "original_max_position_embeddings", "attention_factor", "short_mscale", "long_mscale"),
    ),
    "llama3": _Scheme(("factor", "low_freq_factor", "high_freq_factor"), ("original_max_position_embeddings",)),
    "proportional": _Scheme((), ("factor",)),
}
NAMES = tuple(name for name in _SCHEMES if " " not in name)


def from_rope_parameters(
    rope_parameters: Mapping[str, Any] | None,
    *,
    head_dim: int,
    max_position_embeddings: int | None = None,
    seq_len: int | None = None,
    rope_theta: float | None = None,
    partial_rotary_factor: float | None = None,
    xp: Any = None,
    device: Any = None,
    dtype: Any = None,
) -> Scaled:
    """Frequencies that a model's ``rope_parameters`` (or older ``rope_scaling``) stand for.

    Parameters
    ----------
    rope_parameters : dict or None
        As in a Hugging Face config: ``rope_type`` (or ``type``) is one of default, linear, ntk, dynamic, yarn, longrope
        (or su), llama3, proportional (mrope is default, xdrope dynamic), beside the keys of that scheme, ``rope_theta``
        and ``partial_rotary_factor``. Keys that hold None count as absent; None or an empty dict is default.
    head_dim : int
        Width of a query or key; ``int(head_dim * partial_rotary_factor)`` features are rotated.
    max_position_embeddings : int, optional
        The config's context. Needed by dynamic; by yarn and longrope in place of a missing ``factor``; and by yarn,
        longrope and llama3 in place of a missing ``original_max_position_embeddings``.
    seq_len : int, optional
        Positions in the sequence at hand. Only dynamic and longrope depend on it; None is a short sequence.
    rope_theta, partial_rotary_factor : float, optional
        Where the dict does not hold them, as in older configs; 10000 and 1 if they are nowhere.
    xp, device, dtype
        As in `geometric`.

    Returns
    -------
    Scaled
        Frequencies ``(D,)``, radians per position, D half the rotated width (head_dim / 2 for proportional), and the
        attention factor. It unpacks as a pair.

    Raises
    ------
    ValueError
        For an unknown scheme, keys that are unknown or that the scheme does not use, keys that are missing, keys that
        contradict each other or the arguments, numbers out of range, and dicts of layers (see `from_config`).
    TypeError
        For values of another kind, and as `geometric`.

    Notes
    -----
    Values are those of transformers 5 evaluated in float64, to 1e-14, and its attention factor exactly. It warns of a
    wrong key and goes on; here that is an error. A few keys that published configs carry without effect are let
    through: see "Schemes" in the documentation.

    Examples
    --------
    >>> import rfrope
    >>> told = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 4096, "rope_theta": 10000.0}
    >>> frequencies, attention_factor = rfrope.from_rope_parameters(told, head_dim=8)
    >>> frequencies.tolist(), round(attention_factor, 4)
    ([1.0, 0.1, 0.005625, 0.000125], 1.2079)
    >>> rfrope.from_rope_parameters({"rope_type": "linear", "factors": 8.0}, head_dim=8)
    Traceback (most recent call last):
    ...
    ValueError: rope_parameters holds 'factors', which is unknown; expected for 'linear': factor, rope_theta, \
partial_rotary_factor, mrope_section, mrope_interleaved
    """
    head_dim = count("head_dim", head_dim, 1)
    context = None if max_position_embeddings is None else count("max_position_embeddings", max_position_embeddings, 1)
    if seq_len is not None:
        count("seq_len", seq_len, 1)
    name, values = read(rope_parameters, rope_theta=rope_theta, partial_rotary_factor=partial_rotary_factor)
    scaled = _MAKERS[name](values, head_dim, context, seq_len)
    _check_sections(values, scaled.frequencies.shape[0])
    space = _array.named_namespace(xp)
    dtype = _array.check_float_dtype(dtype, space)
    return Scaled(_array.from_host(scaled.frequencies, space, device=device, dtype=dtype), scaled.attention_factor)


def read(
    rope_parameters: Mapping[str, Any] | None,
    *,
    rope_theta: float | None = None,
    partial_rotary_factor: float | None = None,
) -> tuple[str, dict[str, Any]]:
    """Return the scheme's name and its checked values, with ``rope_theta`` and ``partial_rotary_factor`` filled in."""
    if not isinstance(rope_parameters, Mapping | None):
        raise TypeError(f"rope_parameters is {rope_parameters!r:.80}; expected a dict or None")
    given = {key: value for key, value in (rope_parameters or {}).items() if value is not None}
    if strange := [key for key in given if not isinstance(key, str)]:
        raise TypeError(f"rope_parameters holds the key {strange[0]!r:.80}; expected names of parameters")
    if "xdrope_section" in given:
        given = _renamed(given, "xdrope_section", "mrope_section")
    nested = [str(key) for key, value in given.items() if isinstance(value, Mapping)]
    if nested:
        raise ValueError(
            f"rope_parameters holds a dict for each of {', '.join(nested)}; expected one dict: pass "
            f"rope_parameters[{nested[0]!r}], or the whole config to rfrope.from_config"
        )
    name = _scheme_of(given)
    _check_keys(name, given)
    values = {key: _KINDS[key](f"rope_parameters[{key!r}]", value) for key, value in given.items() if key in _KINDS}
    for key, default, beside in (
        ("rope_theta", DEFAULT_THETA, rope_theta),
        ("partial_rotary_factor", 1.0, partial_rotary_factor),
    ):
        if beside is not None:
            beside = _KINDS[key](key, beside)
            if values.setdefault(key, beside) != beside:
                raise ValueError(
                    f"{key} is {beside}, but rope_parameters[{key!r}] is {values[key]}; expected one of them, or equal"
                )
        values.setdefault(key, default)
    return name, values


def _renamed(given: dict[str, Any], old: str, new: str) -> dict[str, Any]:
    value = _KINDS[new](f"rope_parameters[{old!r}]", given[old])
    if new in given and _KINDS[new](f"rope_parameters[{new!r}]", given[new]) != value:
        raise ValueError(
            f"rope_parameters[{old!r}] is {value!r:.80}, but rope_parameters[{new!r}] is {given[new]!r:.80}; expected "
            "one of them, or equal"
        )
    return {key: told for key, told in given.items() if key != old} | {new: value}


def _scheme_of(given: dict[str, Any]) -> str:
    told = {}
    for key in ("rope_type", "type"):
        value = given.pop(key, None)
        if value is not None and not (isinstance(value, str) and value in (*NAMES, *_ALIASES)):
            axial = isinstance(value, str) and value == "axial"
            hint = ": 'axial' turns by two axes; rfrope.from_config reads it" if axial else ""
            raise ValueError(
                f"rope_parameters[{key!r}] is {value!r:.80}; expected one of {', '.join((*NAMES, *_ALIASES))}{hint}"
            )
        if value is not None:
            told[key] = _ALIASES.get(value, value)
    if len(set(told.values())) > 1:
        raise ValueError(
            f"rope_parameters['rope_type'] is {told['rope_type']!r}, but rope_parameters['type'] is {told['type']!r}; "
            "expected one of them, or the same scheme"
        )
    name = next(iter(told.values()), "default")
    return "dynamic with alpha" if name == "dynamic" and "alpha" in given else name


def _check_keys(name: str, given: dict[str, Any]) -> None:
    scheme = _SCHEMES[name]
    for key in given:
        if key in scheme.known or key in scheme.idle:
            continue
        others = [other for other in NAMES if key in _SCHEMES[other].known]
        others += ["dynamic"] if key == "alpha" else []
        which = f"which '{name}' does not use ({', '.join(others)} would)" if others else "which is unknown"
        raise ValueError(
            f"rope_parameters holds {key!r}, {which}; expected for '{name}': {', '.join(scheme.known)}"
            + (": say which scheme it is with rope_type" if others and name == "default" else "")
        )
    missing = [key for key in scheme.required if key not in given]
    if missing:
        raise ValueError(f"rope_parameters lacks {', '.join(missing)}; '{name}' needs {', '.join(scheme.required)}")


# -- kinds of values ---------------------------------------------------------------------------------------------------


def _at_least_one(name: str, value: Any) -> float:
    found = number(name, value)
    if found < 1.0:
        raise ValueError(f"{name} is {found}; expected at least 1")
    return found


def _not_negative(name: str, value: Any) -> float:
    found = number(name, value)
    if found < 0.0:
        raise ValueError(f"{name} is {found}; expected a number that is not negative")
    return found


def fraction(name: str, value: Any) -> float:
    """Return a number from 0 to 1, or say what came instead."""
    found = number(name, value)
    if not 0.0 <= found <= 1.0:
        raise ValueError(f"{name} is {found}; expected a number from 0 to 1")
    return found


def _length(name: str, value: Any) -> int:
    return count(name, value, 1)


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{name} is {value!r}; expected True or False")
    return value


def _list_of(kind: Callable[[str, Any], Any], what: str) -> Callable[[str, Any], list[Any]]:
    def listed(name: str, value: Any) -> list[Any]:
        if not isinstance(value, list | tuple | np.ndarray):
            raise TypeError(f"{name} is {value!r:.80}; expected a list of {what}")
        return [kind(f"{name}[{i}]", each) for i, each in enumerate(value)]

    return listed


_KINDS: dict[str, Callable[[str, Any], Any]] = {
    "rope_theta": positive,
    "partial_rotary_factor": fraction,
    "mrope_section": _list_of(lambda name, value: count(name, value, 0), "whole numbers"),
    "mrope_interleaved": _flag,
    "factor": _at_least_one,
    "alpha": positive,
    "original_max_position_embeddings": _length,
    "beta_fast": positive,
    "beta_slow": positive,
    "truncate": _flag,
    "attention_factor": positive,
    "mscale": _not_negative,
    "mscale_all_dim": _not_negative,
    "short_factor": _list_of(positive, "positive numbers"),
    "long_factor": _list_of(positive, "positive numbers"),
    "short_mscale": positive,
    "long_mscale": positive,
    "low_freq_factor": positive,
    "high_freq_factor": positive,
}


def _check_sections(values: dict[str, Any], n_blocks: int) -> None:
    sections = values.get("mrope_section")
    if sections is not None and sum(sections) != n_blocks:
        raise ValueError(
            f"rope_parameters['mrope_section'] is {sections!r:.80}, which sums to {sum(sections)}; expected "
            f"{n_blocks}, the number of frequencies"
        )


# -- from checked values to frequencies --------------------------------------------------------------------------------


def rotated_width(head_dim: int, part: float) -> int:
    """Features that are rotated; an odd number is rounded up by the ladder, and must then still fit into the head."""
    width = int(head_dim * part)
    if width < 1:
        raise ValueError(f"partial_rotary_factor is {part}; expected enough of head_dim = {head_dim} for one feature")
    if width == head_dim and width % 2:
        raise ValueError(f"head_dim is {head_dim}; expected an even number, or a partial_rotary_factor below 1")
    return width


def ladder(width: int, base: float) -> np.ndarray:
    """Return ``base ** (-2i / width)``, one more than half the width for an odd one, as transformers has it."""
    return base ** (-np.arange(0.0, width, 2.0) / width)


def _width_and_base(values: dict[str, Any], head_dim: int) -> tuple[int, float]:
    return rotated_width(head_dim, values["partial_rotary_factor"]), values["rope_theta"]


def _original(values: dict[str, Any], context: int | None, name: str) -> int:
    found = values.get("original_max_position_embeddings", context)
    if found is None:
        raise ValueError(
            f"rope_parameters lacks original_max_position_embeddings; '{name}' needs it, or max_position_embeddings="
        )
    return int(found)


def _factor(values: dict[str, Any], context: int | None, name: str) -> float:
    if "factor" in values:
        return float(values["factor"])
    if context is None or "original_max_position_embeddings" not in values:
        raise ValueError(
            f"rope_parameters lacks factor; '{name}' needs it, or original_max_position_embeddings in the dict and "
            "max_position_embeddings=, whose ratio it is"
        )
    original = int(values["original_max_position_embeddings"])
    if context < original:
        raise ValueError(
            f"rope_parameters lacks factor, and max_position_embeddings is {context}, below "
            f"original_max_position_embeddings = {original}; expected a factor, or a ratio of at least 1"
        )
    return context / original


def _default(values: dict[str, Any], head_dim: int, context: int | None, seq_len: int | None) -> Scaled:
    return Scaled(ladder(*_width_and_base(values, head_dim)), 1.0)


def _linear(values: dict[str, Any], head_dim: int, context: int | None, seq_len: int | None) -> Scaled:
    return schemes.linear(ladder(*_width_and_base(values, head_dim)), values["factor"])


def _ntk(values: dict[str, Any], head_dim: int, context: int | None, seq_len: int | None) -> Scaled:
    """Change the base, which is the same as `schemes.ntk`, and right for odd widths too."""
    width, base = _width_and_base(values, head_dim)
    if width < 3:
        raise ValueError(f"the rotated width is {width}; NTK scaling expects at least 3: the first frequency stays")
    factor = float(values["alpha" if "alpha" in values else "factor"])
    return Scaled(ladder(width, base * factor ** (width / (width - 2))), 1.0)


def _dynamic(values: dict[str, Any], head_dim: int, context: int | None, seq_len: int | None) -> Scaled:
    if context is None:
        raise ValueError("max_position_embeddings is None; 'dynamic' needs it: the context the model was trained with")
    return _ntk(values | {"factor": schemes.stretch(values["factor"], seq_len, context)}, head_dim, context, seq_len)


def _yarn(values: dict[str, Any], head_dim: int, context: int | None, seq_len: int | None) -> Scaled:
    width, base = _width_and_base(values, head_dim)
    if width % 2:
        raise ValueError(f"the rotated width is {width}, of head_dim = {head_dim}; 'yarn' expects an even one")
    options = {key: values[key] for key in _SCHEMES["yarn"].optional[2:] if key in values}
    original = _original(values, context, "yarn")
    factor = _factor(values, context, "yarn")
    return schemes.yarn(ladder(width, base), factor, original_max_position_embeddings=original, base=base, **options)


def _longrope(values: dict[str, Any], head_dim: int, context: int | None, seq_len: int | None) -> Scaled:
    theta = ladder(*_width_and_base(values, head_dim))
    for key in ("short_factor", "long_factor"):
        if len(values[key]) != theta.size:
            raise ValueError(
                f"rope_parameters[{key!r}] has {len(values[key])} numbers; expected {theta.size}, one a frequency"
            )
    original = _original(values, context, "longrope")
    return schemes.longrope(
        theta,
        short_factor=values["short_factor"],
        long_factor=values["long_factor"],
        original_max_position_embeddings=original,
        factor=_factor(values, context, "longrope"),
        seq_len=seq_len,
        attention_factor=_own_factor(values, is_long=seq_len is not None and seq_len > original),
    )


def _own_factor(values: dict[str, Any], is_long: bool) -> float | None:
    """Attention factor that a longrope dict gives; Phi-3.5-MoE's has one for short and one for long sequences."""
    pair = [values.get(key) for key in ("short_mscale", "long_mscale")]
    if pair == [None, None]:
        return values.get("attention_factor")
    if None in pair or "attention_factor" in values:
        raise ValueError(
            "rope_parameters holds short_mscale or long_mscale; expected both, and no attention_factor beside them"
        )
    return pair[is_long]


def _llama3(values: dict[str, Any], head_dim: int, context: int | None, seq_len: int | None) -> Scaled:
    return schemes.llama3(
        ladder(*_width_and_base(values, head_dim)),
        values["factor"],
        low_freq_factor=values["low_freq_factor"],
        high_freq_factor=values["high_freq_factor"],
        original_max_position_embeddings=_original(values, context, "llama3"),
    )


def _proportional(values: dict[str, Any], head_dim: int, context: int | None, seq_len: int | None) -> Scaled:
    if head_dim % 2:
        raise ValueError(f"head_dim is {head_dim}; 'proportional' expects an even number")
    whole = ladder(head_dim, values["rope_theta"])
    part, factor = values["partial_rotary_factor"], values.get("factor", 1.0)
    return schemes.proportional(whole, partial_rotary_factor=part, factor=factor)


_MAKERS: dict[str, Callable[[dict[str, Any], int, int | None, int | None], Scaled]] = {
    "default": _default,
    "linear": _linear,
    "ntk": _ntk,
    "dynamic": _dynamic,
    "dynamic with alpha": _ntk,
    "yarn": _yarn,
    "longrope": _longrope,
    "llama3": _llama3,
    "proportional": _proportional,
}
