"""One record for each scheme by which models describe their frequencies: its keys, its maker, and its effect.

The reader of a config's dict (`rfrope.models`), `rfrope inspect`, the table in the documentation and the tests derive
from these records.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from rfrope._core.arguments import finite, flag, fraction, show, whole
from rfrope.data.model_types import read_table
from rfrope.rotation.rope import Rope
from rfrope.scaling import schemes
from rfrope.scaling.schemes import positive

EVERYWHERE = ("rope_theta", "partial_rotary_factor", "mrope_section", "mrope_interleaved")  # keys of every scheme
_YARN = ("beta_fast", "beta_slow", "truncate", "attention_factor", "mscale", "mscale_all_dim")

Made = Rope | tuple[np.ndarray, float]  # or frequencies and attention factor, as which a Rope unpacks
Maker = Callable[[dict[str, Any], int, "int | None", "int | None"], Made]  # takes values, head_dim, context and seq_len


@dataclass(frozen=True)
class Scheme:
    """Record of one scheme.

    Attributes
    ----------
    name : str
        ``rope_type``; with a condition after a space if one name stands for two schemes.
    effect : str
        Readable effect on the frequencies.
    make : callable
        ``make(values, head_dim, context, seq_len)`` returns the Rope of checked values, or frequencies and attention
        factor.
    required, optional : tuple of str
        Keys beside those of every scheme.
    ignored : mapping of str to str
        Keys of published configs that have no effect, and why.
    aliases : tuple of str
        Other names.
    by_length : bool
        True if the frequencies depend on the length of the text.

    See Also
    --------
    scaling.records, models.from_rope_parameters

    Examples
    --------
    >>> import rfrope
    >>> yarn = next(one for one in rfrope.scaling.records() if one.name == "yarn")
    >>> yarn.required, yarn.by_length
    ((), False)
    """

    name: str
    effect: str
    make: Maker
    required: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    ignored: Mapping[str, str] = field(default_factory=dict)
    aliases: tuple[str, ...] = ()
    by_length: bool = False

    @cached_property
    def known(self) -> tuple[str, ...]:
        """All keys with an effect."""
        return (*self.required, *self.optional, *EVERYWHERE)


# -- kinds of values ---------------------------------------------------------------------------------------------------


def _read_list(kind: Callable[[str, Any], Any], name: str, value: Any) -> list[Any]:
    if not isinstance(value, list | tuple | np.ndarray):
        raise TypeError(f"{name} is {show(value)}; expected a list of numbers")
    return [kind(f"{name}[{i}]", each) for i, each in enumerate(value)]


_LARGE = 2.0**100  # far beyond the parameters of all models

KEYS: dict[str, Callable[[str, Any], Any]] = {
    **dict.fromkeys(("rope_theta", "alpha", "beta_fast", "beta_slow", "attention_factor"), positive),
    **dict.fromkeys(("short_mscale", "long_mscale", "low_freq_factor", "high_freq_factor"), positive),
    **dict.fromkeys(("mscale", "mscale_all_dim"), partial(finite, minimum=0.0, maximum=_LARGE)),
    "factor": partial(finite, minimum=1.0, maximum=_LARGE),
    "partial_rotary_factor": fraction,
    **dict.fromkeys(("short_factor", "long_factor"), partial(_read_list, finite)),
    "original_max_position_embeddings": partial(whole, minimum=1),
    "mrope_section": partial(_read_list, whole),
    **dict.fromkeys(("mrope_interleaved", "truncate"), flag),
}


# -- from checked values to frequencies --------------------------------------------------------------------------------


def rotated_width(head_dim: int, part: float) -> int:
    """Return the number of rotated features; the ladder rounds up an odd one, which must still fit into the head."""
    width = int(head_dim * part)
    if width < 1:
        raise ValueError(f"partial_rotary_factor is {part}; expected at least one feature of head_dim = {head_dim}")
    if width == head_dim and width % 2:
        raise ValueError(f"head_dim is {head_dim}; expected an even number, or a partial_rotary_factor below 1")
    return width


def ladder(width: int, base: float) -> np.ndarray:
    """Return ``base ** (-2i / width)``; for an odd width one more than half of it, as in transformers."""
    return base ** (-np.arange(0.0, width, 2.0) / width)


def _make_ladder(values: dict[str, Any], head_dim: int) -> np.ndarray:
    return ladder(rotated_width(head_dim, values["partial_rotary_factor"]), values["rope_theta"])


def _read_stretch(values: dict[str, Any], context: int | None, scheme: str) -> tuple[int, float]:
    """Return the original context and the factor; what a dict lacks follows from the config's own context."""
    key = "original_max_position_embeddings"
    original = values.get(key, context)
    if original is None:
        raise ValueError(f"rope_parameters lacks {key}; {scheme!r} needs it, or max_position_embeddings=")
    factor = values.get("factor", context / original if context is not None and key in values else 0.0)
    if factor < 1.0:
        raise ValueError(
            f"rope_parameters lacks factor; {scheme!r} needs it, or {key} in the dict and "
            "max_position_embeddings= at least as large, whose ratio it is"
        )
    return int(original), float(factor)


def _default(values: dict[str, Any], head_dim: int, context: int | None, seq_len: int | None) -> Made:
    return _make_ladder(values, head_dim), 1.0


def _linear(values: dict[str, Any], head_dim: int, context: int | None, seq_len: int | None) -> Made:
    return schemes.linear(_make_ladder(values, head_dim), values["factor"])


def _ntk(values: dict[str, Any], head_dim: int, context: int | None, seq_len: int | None) -> Made:
    """Change the base, which is the same as `schemes.ntk`, and right for odd widths too."""
    factor = float(values["alpha" if "alpha" in values else "factor"])
    width = rotated_width(head_dim, values["partial_rotary_factor"])
    if width < 3:
        raise ValueError(f"the rotated width is {width}; NTK scaling expects at least 3: the first frequency stays")
    return ladder(width, values["rope_theta"] * factor ** (width / (width - 2))), 1.0


def _dynamic(values: dict[str, Any], head_dim: int, context: int | None, seq_len: int | None) -> Made:
    if context is None:
        raise ValueError("max_position_embeddings is None; 'dynamic' needs it: the context in training")
    return _ntk(values | {"factor": schemes.stretch(values["factor"], seq_len, context)}, head_dim, context, seq_len)


def _yarn(values: dict[str, Any], head_dim: int, context: int | None, seq_len: int | None) -> Made:
    width, base = rotated_width(head_dim, values["partial_rotary_factor"]), values["rope_theta"]
    if width % 2:
        raise ValueError(f"the rotated width is {width}, of head_dim = {head_dim}; 'yarn' expects an even one")
    options = {key: values[key] for key in _YARN if key in values}
    original, factor = _read_stretch(values, context, "yarn")
    return schemes.yarn(ladder(width, base), factor, original_max_position_embeddings=original, base=base, **options)


def _longrope(values: dict[str, Any], head_dim: int, context: int | None, seq_len: int | None) -> Made:
    original, factor = _read_stretch(values, context, "longrope")
    own, scales = values.get("attention_factor"), [values.get(key) for key in ("short_mscale", "long_mscale")]
    if scales != [None, None]:  # Phi-3.5-MoE has one for short and one for long sequences
        scale = scales[seq_len is not None and seq_len > original]
        if None in scales or own not in (None, scale):
            raise ValueError(
                "rope_parameters holds short_mscale or long_mscale; expected both, and no other attention_factor"
            )
        own = scale
    options = {key: values[key] for key in ("short_factor", "long_factor")}
    options |= {"original_max_position_embeddings": original, "attention_factor": own}
    return schemes.longrope(_make_ladder(values, head_dim), factor=factor, seq_len=seq_len, **options)


def _llama3(values: dict[str, Any], head_dim: int, context: int | None, seq_len: int | None) -> Made:
    original, factor = _read_stretch(values, context, "llama3")
    turns = {key: values[key] for key in ("low_freq_factor", "high_freq_factor")}
    return schemes.llama3(_make_ladder(values, head_dim), factor, original_max_position_embeddings=original, **turns)


def _proportional(values: dict[str, Any], head_dim: int, context: int | None, seq_len: int | None) -> Made:
    if head_dim % 2:
        raise ValueError(f"head_dim is {head_dim}; 'proportional' expects an even number")
    part, factor = values["partial_rotary_factor"], values.get("factor", 1.0)
    return schemes.proportional(ladder(head_dim, values["rope_theta"]), partial_rotary_factor=part, factor=factor)


_MAKERS: dict[str, Maker] = {
    **{"default": _default, "linear": _linear, "ntk": _ntk, "dynamic": _dynamic, "dynamic with alpha": _ntk},
    **{"yarn": _yarn, "longrope": _longrope, "llama3": _llama3, "proportional": _proportional},
}
# of their aliases mrope and xdrope (HunYuan) have axes, which are no part of a scheme; deepseek_yarn is vLLM's and
# Sarvam's name for the form with mscale, su Phi-3's first name for longrope
_RECORDS = tuple(Scheme(name, make=make, **read_table("schemes")[name]) for name, make in _MAKERS.items())


def records() -> tuple[Scheme, ...]:
    """Return the records of all schemes.

    Returns
    -------
    tuple of Scheme

    See Also
    --------
    scaling.Scheme, scaling.names

    Examples
    --------
    >>> [record.name for record in records() if record.by_length]
    ['dynamic', 'longrope']
    """
    return _RECORDS


def names() -> tuple[str, ...]:
    """Return the names of the schemes, ``rope_type`` in a config.

    Returns
    -------
    tuple of str

    See Also
    --------
    scaling.records

    Examples
    --------
    >>> names()
    ('default', 'linear', 'ntk', 'dynamic', 'dynamic with alpha', 'yarn', 'longrope', 'llama3', 'proportional')
    """
    return tuple(record.name for record in _RECORDS)


# -- configs that are stretched already --------------------------------------------------------------------------------

_NAMES_ORIGINAL = ("yarn", "longrope", "llama3", "dynamic")  # dynamic by its formula, which takes the config's context
_STRETCHING = (*_NAMES_ORIGINAL, "linear", "ntk", "proportional")
_UNNOTED = ("dynamic", "ntk")  # read from a config they leave no step in ``scaled_by``
_TRAINED = ("llama3", "longrope")  # reach the config's own context, whatever the factor: by training, by their lists
_ROUNDED = 0.01  # how far, relatively, a factor of a few digits may be from a ratio of contexts


@dataclass(frozen=True, eq=False)
class Stretched:
    """A ladder that the scheme of a config has already stretched."""

    scheme: str
    factor: float  # above 1
    original_context: int  # positions from which it stretches
    reach: int  # their product; of llama3 and longrope at least the config's own context
    rope: Rope  # the ladder before the scheme, for the original context

    @property
    def names_original(self) -> bool:
        """True if the scheme names its original context; otherwise it is the context of the config."""
        return self.scheme in _NAMES_ORIGINAL

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers and strings for JSON."""
        return {name: value for name, value in vars(self).items() if name != "rope"}

    def __str__(self) -> str:
        origin = f"{self.original_context} positions to {self.reach}"
        return f"already stretched by {self.scheme} with factor {self.factor:.4g}, from {origin}"


def stretched(rope: Rope) -> Stretched | None:
    """Return what has stretched the ladder of a config; None if nothing has, or only HunYuan's ``alpha``, a base.

    Also None for a Rope that `rfrope.scaling` has changed since, as its config no longer describes it.

    Parameters
    ----------
    rope : Rope
        Result of `rfrope.from_config`, with ``rope_parameters`` in its ``source``.

    Returns
    -------
    Stretched or None
    """
    found, values = _read_contexts(rope), rope.source.rope_parameters
    name = values.get("rope_type")
    if found is None or found[0] <= 1.0:
        return None
    factor, original, context = found
    plain = {"rope_type": name if name == "proportional" else "default"}
    plain |= {key: values[key] for key in EVERYWHERE if key in values}
    assert rope.head_dim is not None  # set by every Rope
    frequencies, _ = (_proportional if name == "proportional" else _default)(plain, rope.head_dim, None, None)
    source = replace(rope.source, scaled_by=(), rope_parameters=plain)
    before = replace(rope, frequencies=frequencies, attention_factor=1.0, context=original, source=source)
    reach = max(round(factor * original), context if name in _TRAINED else 0)
    return Stretched(str(name), factor, original, reach, before)


def describe_reach(rope: Rope) -> str:
    """Return what a config's scheme reaches, where that is not the config's own context; or "".

    Less is a mistake, more may be meant: Qwen's recipe for long texts leaves ``max_position_embeddings`` as it was. The
    factors of llama3 and dynamic say nothing here, nor does longrope's where its lists are equal or the attention
    factor, the only thing that it enters, is given.
    """
    found, values = _read_contexts(rope), rope.source.rope_parameters
    name = values.get("rope_type")
    if found is None or name in ("llama3", "dynamic"):
        return ""
    factor, original, context = found
    reach = round(factor * original)
    product = f"{factor:.6g} x {original} = {reach}"
    if abs(reach - context) <= _ROUNDED * context:
        return ""
    if name == "longrope" and (
        values["short_factor"] == values["long_factor"] or not {"attention_factor", "long_mscale"}.isdisjoint(values)
    ):
        return ""
    if name not in _NAMES_ORIGINAL:
        return (
            f"{name} names no original context: the model was trained with it, for {context} positions, or it reaches "
            f"{product}."
        )
    if "original_max_position_embeddings" not in values:
        return (
            f"original_max_position_embeddings is missing: {context} is assumed, so this reaches {reach} and "
            f"changes the trained rotation, unless training used {name}, too."
        )
    if reach > context:
        return f"{name} reaches {product} positions, where max_position_embeddings is {context}."
    if name == "longrope":
        return (
            f"longrope has the attention factor of {product} positions, where max_position_embeddings is {context}; "
            f"expected a factor of {context / original:.6g}."
        )
    return (
        f"{name} does not reach max_position_embeddings: {product} < {context}; expected a factor of "
        f"{context / original:.6g}."
    )


def _read_contexts(rope: Rope) -> tuple[float, int, int] | None:
    """Return factor, original context and context of a config that a Rope still follows; None without a factor."""
    values, context = rope.source.rope_parameters, rope.context
    name = values.get("rope_type")
    if name not in _STRETCHING or "alpha" in values or not isinstance(context, int):
        return None
    if len(rope.source.scaled_by) > (name not in _UNNOTED):
        return None
    original = int(values.get("original_max_position_embeddings", context))
    return float(values.get("factor", context / original)), original, context
