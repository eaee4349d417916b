"""The dict in which a model's config says what its frequencies are, read strictly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rfrope._core import capacity
from rfrope._core.arguments import among, show, whole
from rfrope._core.array import placed
from rfrope.models import own
from rfrope.rotation.rope import Rope, of
from rfrope.scaling import records

DEFAULT_THETA = 10_000.0
KEYS = records.KEYS | own.KEYS
SCHEMES = (*records.SCHEMES, own.SCHEME)
NAMES = tuple(record.name for record in SCHEMES if " " not in record.name)
_ALIASES = {alias: record.name for record in SCHEMES for alias in record.aliases}
_WORDS = (*NAMES, *_ALIASES)
_RECORDS = {record.name: record for record in SCHEMES}
_PLAIN = {str, int, float, bool, list}  # kinds of values that are no dict, looked up first


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
) -> Rope:
    """Rope that a model's ``rope_parameters`` (or older ``rope_scaling``) stand for.

    Parameters
    ----------
    rope_parameters : dict or None
        As in a Hugging Face config: ``rope_type`` (or ``type``) is one of default, linear, ntk, dynamic, yarn, longrope
        (or su), llama3, proportional (mrope is default, xdrope dynamic), and rfrope (as
        `rfrope.integrations.transformers.register` says), beside the keys of that scheme, ``rope_theta`` and
        ``partial_rotary_factor``. Keys that hold None count as absent; None or an empty dict is default.
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
    Rope
        Frequencies ``(D,)``, radians per position, D half the rotated width (head_dim / 2 for proportional), the
        attention factor, and sections where the dict has ``mrope_section``. The pairing is not the dict's to say: it is
        "half" unless replaced, and that of the model with `from_config`.

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
    >>> parameters = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 4096, "rope_theta": 1e4}
    >>> frequencies, attention_factor = rfrope.models.from_rope_parameters(parameters, head_dim=8)
    >>> frequencies.tolist(), round(attention_factor, 4)
    ([1.0, 0.1, 0.005625, 0.000125], 1.2079)
    >>> rfrope.models.from_rope_parameters({"rope_type": "linear", "factors": 8.0}, head_dim=8)
    Traceback (most recent call last):
    ...
    ValueError: rope_parameters holds 'factors', which is unknown; expected for 'linear': factor, rope_theta, \
partial_rotary_factor, mrope_section, mrope_interleaved
    """
    head_dim = capacity.count("head_dim", head_dim, 1, each=32.0)
    context = None if max_position_embeddings is None else whole("max_position_embeddings", max_position_embeddings, 1)
    if seq_len is not None:
        whole("seq_len", seq_len, 1)
    name, values = read(rope_parameters, rope_theta=rope_theta, partial_rotary_factor=partial_rotary_factor)
    made = _record(name).make(values, head_dim, context, seq_len)
    _check_sections(values, made.n_blocks)
    return of(
        made,
        frequencies=placed(made.frequencies, xp, device, dtype),
        head_dim=max(head_dim, made.rotary_dim),
        sections=values.get("mrope_section"),
        interleaved=values.get("mrope_interleaved", False) if "mrope_section" in values else False,
        context=context,
        source=replace(made.source, rope_parameters={"rope_type": name.partition(" ")[0], **values}),
    )


def read(
    rope_parameters: Mapping[str, Any] | None,
    *,
    rope_theta: float | None = None,
    partial_rotary_factor: float | None = None,
) -> tuple[str, dict[str, Any]]:
    """Return the scheme's name and its checked values, with ``rope_theta`` and ``partial_rotary_factor`` filled in."""
    if not isinstance(rope_parameters, Mapping | None):
        raise TypeError(f"rope_parameters is {show(rope_parameters)}; expected a dict or None")
    given = {key: value for key, value in (rope_parameters or {}).items() if value is not None}
    if strange := [key for key in given if not isinstance(key, str)]:
        raise TypeError(f"rope_parameters holds the key {show(strange[0])}; expected names of parameters")
    if "xdrope_section" in given:
        given = _renamed(given, "xdrope_section", "mrope_section")
    nested = [str(key) for key, value in given.items() if type(value) not in _PLAIN and isinstance(value, Mapping)]
    if nested:
        raise ValueError(
            f"rope_parameters holds a dict for each of {', '.join(nested)}; expected one dict: pass "
            f"rope_parameters[{show(nested[0])}], or the whole config to rfrope.from_config"
        )
    name = _scheme_of(given)
    _check_keys(name, given)
    values = {key: KEYS[key](f"rope_parameters[{key!r}]", value) for key, value in given.items() if key in KEYS}
    for key, default, beside in (
        ("rope_theta", DEFAULT_THETA, rope_theta),
        ("partial_rotary_factor", 1.0, partial_rotary_factor),
    ):
        if beside is not None:
            beside = KEYS[key](key, beside)
            if values.setdefault(key, beside) != beside:
                raise ValueError(
                    f"{key} is {beside}, but rope_parameters[{key!r}] is {values[key]}; expected one of them, or equal"
                )
        values.setdefault(key, default)
    return name, values


def _renamed(given: dict[str, Any], old: str, new: str) -> dict[str, Any]:
    value = KEYS[new](f"rope_parameters[{old!r}]", given[old])
    if new in given and KEYS[new](f"rope_parameters[{new!r}]", given[new]) != value:
        raise ValueError(
            f"rope_parameters[{old!r}] is {show(value)}, but rope_parameters[{new!r}] is {show(given[new])}; expected "
            "one of them, or equal"
        )
    return {key: kept for key, kept in given.items() if key != old} | {new: value}


def _scheme_of(given: dict[str, Any]) -> str:
    named = {}
    for key in ("rope_type", "type"):
        value = given.pop(key, None)
        if value is not None and not (isinstance(value, str) and value in _WORDS):
            axial = isinstance(value, str) and value == "axial"
            hint = ": 'axial' turns by two axes; rfrope.from_config reads it" if axial else ""
            raise ValueError(f"rope_parameters[{key!r}] is {show(value)}{among(value, _WORDS)}{hint}")
        if value is not None:
            named[key] = _ALIASES.get(value, value)
    if len(set(named.values())) > 1:
        raise ValueError(
            f"rope_parameters['rope_type'] is {show(named['rope_type'])}, but rope_parameters['type'] is "
            f"{show(named['type'])}; expected one of them, or the same scheme"
        )
    name = next(iter(named.values()), "default")
    return "dynamic with alpha" if name == "dynamic" and "alpha" in given else name


def _record(name: str) -> records.Scheme:
    return _RECORDS[name]


def _check_keys(name: str, given: dict[str, Any]) -> None:
    record = _record(name)
    for key in given:
        if key in record.known or key in record.idle:
            continue
        others = [other for other in NAMES if key in _record(other).known]
        others += ["dynamic"] if key == "alpha" else []
        which = f"which '{name}' does not use ({', '.join(others)} would)" if others else "which is unknown"
        raise ValueError(
            f"rope_parameters holds {show(key)}, {which}; expected for '{name}': {', '.join(record.known)}"
            + (": say which scheme it is with rope_type" if others and name == "default" else "")
        )
    missing = [key for key in record.required if key not in given]
    if missing:
        raise ValueError(f"rope_parameters lacks {', '.join(missing)}; '{name}' needs {', '.join(record.required)}")


def _check_sections(values: dict[str, Any], n_blocks: int) -> None:
    sections = values.get("mrope_section")
    if sections is not None and sum(sections) != n_blocks:
        raise ValueError(
            f"rope_parameters['mrope_section'] is {show(sections)}, which sums to {sum(sections)}; expected "
            f"{n_blocks}, the number of frequencies"
        )
