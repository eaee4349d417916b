"""The dict in which a model's config says what its frequencies are, read strictly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rfrope._core import capacity
from rfrope._core.arguments import list_choices, show, whole
from rfrope._core.array import placed
from rfrope.models import kernel_scheme
from rfrope.rotation.provenance import ModelPart, Provenance
from rfrope.rotation.rope import Rope
from rfrope.scaling import registry

DEFAULT_THETA = 10_000.0
KEYS = registry.KEYS | kernel_scheme.KEYS
SCHEMES = (*registry.records(), kernel_scheme.SCHEME)
NAMES = tuple(record.name for record in SCHEMES if " " not in record.name)
_ALIASES = {alias: record.name for record in SCHEMES for alias in record.aliases}
_WORDS = (*NAMES, *_ALIASES)
_RECORDS = {record.name: record for record in SCHEMES}


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
    """Return the Rope that a model's ``rope_parameters`` (or older ``rope_scaling``) stand for.

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
    context = None if max_position_embeddings is None else whole("max_position_embeddings", max_position_embeddings, 1)
    if seq_len is not None:
        whole("seq_len", seq_len, 1)
    return make_rope(
        *read_scheme(rope_parameters, rope_theta, partial_rotary_factor),
        head_dim=head_dim,
        context=context,
        seq_len=seq_len,
        placed_by=(xp, device, dtype),
    )


def make_rope(
    scheme: registry.Scheme,
    values: dict[str, Any],
    *,
    head_dim: int,
    context: int | None,
    seq_len: int | None,
    placed_by: tuple[Any, Any, Any],
    pairing: str | None = "half",
    order: str | None = None,
    model: ModelPart | None = None,
) -> Rope:
    """Return the Rope of a scheme and its checked values.

    Parameters
    ----------
    scheme, values
        From `read_scheme`.
    head_dim, context, seq_len
        As `from_rope_parameters` takes them, checked.
    placed_by : tuple
        Library, device and dtype of the frequencies.
    pairing : str or None
        The Rope's.
    order : {"interleaved", "own"} or None
        How sections are dealt out, whatever the values say; "own" is in no order that a Rope has.
    model : ModelPart, optional
        The place in a config.
    """
    head_dim = capacity.count("head_dim", head_dim, 1, each=32.0)
    made = scheme.make(values, head_dim, context, seq_len)
    frequencies, factor = made
    sections = values.get("mrope_section")
    if sections is not None and sum(sections) != frequencies.size:
        raise ValueError(
            f"rope_parameters['mrope_section'] is {show(sections)}, which sums to {sum(sections)}; expected "
            f"{frequencies.size}, the number of frequencies"
        )
    sections = None if order == "own" else sections
    source = made.source if isinstance(made, Rope) else Provenance()
    parameters = {"rope_type": scheme.name.partition(" ")[0], **values}
    return Rope(
        placed(frequencies, *placed_by),
        pairing=pairing,
        head_dim=max(head_dim, 2 * frequencies.size),
        attention_factor=factor,
        sections=sections,
        interleaved=sections is not None and (order == "interleaved" or values.get("mrope_interleaved", False)),
        context=context,
        source=replace(source, rope_parameters=parameters, model=model or source.model),
    )


def read_scheme(
    rope_parameters: Mapping[str, Any] | None,
    rope_theta: float | None = None,
    partial_rotary_factor: float | None = None,
) -> tuple[registry.Scheme, dict[str, Any]]:
    """Return a scheme and its checked values, with ``rope_theta`` and ``partial_rotary_factor`` filled in."""
    given = _read_keys({} if rope_parameters is None else rope_parameters)
    if "xdrope_section" in given:
        given = _rename(given, "xdrope_section", "mrope_section")
    scheme = _pop_scheme(given)
    _check_keys(scheme, given)
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
    return scheme, values


def _read_keys(rope_parameters: Any) -> dict[str, Any]:
    """Return the keys that hold something, or say why that is no dict of a scheme."""
    if not isinstance(rope_parameters, Mapping):
        raise TypeError(f"rope_parameters is {show(rope_parameters)}; expected a dict or None")
    given, nested = {}, []
    for key, value in rope_parameters.items():
        if not isinstance(key, str):
            raise TypeError(f"rope_parameters holds the key {show(key)}; expected names of parameters")
        if isinstance(value, Mapping):
            nested.append(key)
        if value is not None:
            given[key] = value
    if nested:
        raise ValueError(
            f"rope_parameters holds a dict for each of {', '.join(nested)}; expected one dict: pass "
            f"rope_parameters[{show(nested[0])}], or the whole config to rfrope.from_config"
        )
    return given


def _rename(given: dict[str, Any], old: str, new: str) -> dict[str, Any]:
    value = KEYS[new](f"rope_parameters[{old!r}]", given[old])
    if new in given and KEYS[new](f"rope_parameters[{new!r}]", given[new]) != value:
        raise ValueError(
            f"rope_parameters[{old!r}] is {show(value)}, but rope_parameters[{new!r}] is {show(given[new])}; expected "
            "one of them, or equal"
        )
    return {key: kept for key, kept in given.items() if key != old} | {new: value}


def _pop_scheme(given: dict[str, Any]) -> registry.Scheme:
    """Take the scheme's name out of a dict, and return its record."""
    named = {}
    for key in ("rope_type", "type"):
        value = given.pop(key, None)
        if value is not None and not (isinstance(value, str) and value in _WORDS):
            axial = isinstance(value, str) and value == "axial"
            hint = ": 'axial' turns by two axes; rfrope.from_config reads it" if axial else ""
            raise ValueError(f"rope_parameters[{key!r}] is {show(value)}{list_choices(value, _WORDS)}{hint}")
        if value is not None:
            named[key] = _ALIASES.get(value, value)
    if len(named) > 1 and named["rope_type"] != named["type"]:
        raise ValueError(
            f"rope_parameters['rope_type'] is {show(named['rope_type'])}, but rope_parameters['type'] is "
            f"{show(named['type'])}; expected one of them, or the same scheme"
        )
    name = next(iter(named.values()), "default")
    return _RECORDS["dynamic with alpha" if name == "dynamic" and "alpha" in given else name]


def _check_keys(record: registry.Scheme, given: dict[str, Any]) -> None:
    name = record.name
    for key in given:
        if key in record.known or key in record.ignored:
            continue
        others = [other for other in NAMES if key in _RECORDS[other].known]
        others += ["dynamic"] if key == "alpha" else []
        which = f"which '{name}' does not use ({', '.join(others)} would)" if others else "which is unknown"
        raise ValueError(
            f"rope_parameters holds {show(key)}, {which}; expected for '{name}': {', '.join(record.known)}"
            + (": say which scheme it is with rope_type" if others and name == "default" else "")
        )
    if not given.keys() >= set(record.required):
        missing = [key for key in record.required if key not in given]
        raise ValueError(f"rope_parameters lacks {', '.join(missing)}; '{name}' needs {', '.join(record.required)}")
