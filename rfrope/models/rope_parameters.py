"""Strict reading of the dict in a model's config that determines its frequencies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rfrope._core.arguments import choice, show, whole
from rfrope._core.array import place_for_caller
from rfrope.models import kernel_scheme
from rfrope.rotation.provenance import ModelPart, Provenance
from rfrope.rotation.rope import Rope
from rfrope.scaling import registry

DEFAULT_THETA = 10_000.0
DICTS = ("rope_parameters", "rope_scaling")
KEYS = registry.KEYS | kernel_scheme.KEYS
_NAMES = {key: f"rope_parameters[{key!r}]" for key in KEYS}  # in messages
_RECORDS = {record.name: record for record in (*registry.records(), kernel_scheme.SCHEME)}
_ALIASES = {alias: record.name for record in _RECORDS.values() for alias in record.aliases}
_WORDS = (*(name for name in _RECORDS if " " not in name), *_ALIASES)


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
    """Return the Rope described by a model's ``rope_parameters`` (or the older ``rope_scaling``).

    Parameters
    ----------
    rope_parameters : dict or None
        As in a Hugging Face config: ``rope_type`` (or ``type``) is one of default, linear, ntk, dynamic, yarn, longrope
        (or su), llama3, proportional, mrope (same as default), xdrope (same as dynamic) and rfrope (see
        `rfrope.integrations.transformers.register`), with the keys of that scheme, ``rope_theta`` and
        ``partial_rotary_factor``. Keys that hold None count as absent; None or an empty dict means default.
    head_dim : int
        Width of a query or key; ``int(head_dim * partial_rotary_factor)`` of its features are rotated.
    max_position_embeddings : int, optional
        The config's context. Required by dynamic; by yarn and longrope if there is no ``factor``; and by yarn, longrope
        and llama3 if there is no ``original_max_position_embeddings``.
    seq_len : int, optional
        Number of positions in the sequence; used only by dynamic and longrope. Default: a short sequence.
    rope_theta, partial_rotary_factor : float, optional
        Values that the dict does not hold, as in older configs. Default: 10000 and 1.
    xp, device, dtype
        See `geometric`.

    Returns
    -------
    Rope
        With frequencies ``(D,)`` in radians per position, where D is half the rotated width (head_dim / 2 for
        proportional), the attention factor, and sections if the dict has ``mrope_section``. The dict does not determine
        the pairing, which is "half"; `from_config` sets that of the model.

    Raises
    ------
    ValueError
        If the scheme is unknown; keys are unknown, unused by the scheme, missing or contradictory; numbers are out of
        range; or the dict holds one dict per layer kind (see `from_config`).
    TypeError
        If a value is of the wrong type. See also `geometric`.

    See Also
    --------
    from_config, scaling.records

    Notes
    -----
    Frequencies match those of transformers 5, evaluated in float64, to 1e-14; the attention factor matches exactly. A
    wrong key, for which transformers only warns, is an error here. A few keys that published configs carry without
    effect are accepted: see "Schemes" in the documentation.

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
    given = join_dicts({"rope_parameters": rope_parameters})
    if nested := [key for key, value in given.items() if isinstance(value, Mapping)]:
        raise ValueError(
            f"rope_parameters holds a dict for each of {', '.join(nested)}; expected one dict: pass "
            f"rope_parameters[{show(nested[0])}], or the whole config to rfrope.from_config"
        )
    head_dim = whole("head_dim", head_dim, 1)
    scheme, values = read_scheme(given, rope_theta, partial_rotary_factor)
    rope = make_rope(scheme, values, head_dim=head_dim, context=context, seq_len=seq_len)
    return place_rope(rope, xp, device, dtype)


def make_rope(
    scheme: registry.Scheme,
    values: dict[str, Any],
    *,
    head_dim: int,
    context: int | None,
    seq_len: int | None,
    pairing: str | None = "half",
    order: str | None = None,  # order of sections, overriding the values: "interleaved", or "own", which no Rope has
    model: ModelPart | None = None,
) -> Rope:
    """Return the Rope of a scheme and values from `read_scheme`."""
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
        frequencies,
        pairing=pairing,
        head_dim=max(head_dim, 2 * frequencies.size),
        attention_factor=factor,
        sections=sections,
        interleaved=sections is not None and (order == "interleaved" or values.get("mrope_interleaved", False)),
        context=context,
        source=replace(source, rope_parameters=parameters, model=model or source.model),
    )


def place_rope(rope: Rope, xp: Any, device: Any, dtype: Any) -> Rope:
    """Return a Rope with its frequencies where a caller's ``xp=``, ``device=`` and ``dtype=`` ask for them."""
    if xp is None and device is None and dtype is None:
        return rope
    return replace(rope, frequencies=place_for_caller(rope.frequencies, xp, device, dtype))


def read_scheme(
    given: dict[str, Any], rope_theta: float | None = None, partial_rotary_factor: float | None = None
) -> tuple[registry.Scheme, dict[str, Any]]:
    """Return a scheme and its checked values, with ``rope_theta`` and ``partial_rotary_factor`` filled in."""
    if "xdrope_section" in given:  # HunYuan's name
        section = given.pop("xdrope_section")
        if given.setdefault("mrope_section", section) != section:
            raise _report_difference("rope_parameters['xdrope_section']", section, "mrope_section", given)
    named: dict[str, str] = {}
    for key in ("type", "rope_type"):
        if key in given:
            name = choice(f"rope_parameters[{key!r}]", given.pop(key), _WORDS)
            named[key] = _ALIASES.get(name, name)
    name = named.get("rope_type", named.get("type", "default"))
    if named.get("type", name) != name:
        raise _report_difference("rope_parameters['type']", named["type"], "rope_type", named)
    scheme = _RECORDS["dynamic with alpha" if name == "dynamic" and "alpha" in given else name]
    if unused := [key for key in given if key not in scheme.known and key not in scheme.ignored]:
        others = [other for other in _RECORDS if unused[0] in _RECORDS[other].known]
        which = f"which {scheme.name!r} does not use ({', '.join(others)} would)" if others else "which is unknown"
        expected = f"expected for {scheme.name!r}: {', '.join(scheme.known)}"
        raise ValueError(f"rope_parameters holds {show(unused[0])}, {which}; {expected}")
    if missing := ", ".join([key for key in scheme.required if key not in given]):
        raise ValueError(f"rope_parameters lacks {missing}; {scheme.name!r} needs {', '.join(scheme.required)}")
    values = {key: KEYS[key](_NAMES[key], value) for key, value in given.items() if key in KEYS}
    usual = {"rope_theta": (rope_theta, DEFAULT_THETA), "partial_rotary_factor": (partial_rotary_factor, 1.0)}
    for key, (beside, default) in usual.items():
        beside = None if beside is None else KEYS[key](key, beside)
        if beside is not None and values.setdefault(key, beside) != beside:
            raise _report_difference(key, beside, key, values)
        values.setdefault(key, default)
    return scheme, values


def join_dicts(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``rope_parameters`` and the older ``rope_scaling``, merged; keys in both must agree."""
    joined: dict[str, Any] = {}
    for key in DICTS:
        parameters = config.get(key)
        if parameters is not None and not isinstance(parameters, Mapping):
            raise TypeError(f"{key} is {show(parameters)}; expected a dict or None")
        for inner, value in (parameters or {}).items():
            if not isinstance(inner, str):
                raise TypeError(f"{key} holds the key {show(inner)}; expected names of parameters")
            if value is not None and joined.setdefault(inner, value) is not value and joined[inner] != value:
                raise _report_difference(f"{key}[{show(inner)}]", value, inner, joined)
    return joined


def _report_difference(name: str, value: Any, key: str, values: Mapping[str, Any]) -> ValueError:
    other = f"rope_parameters[{show(key)}] is {show(values[key])}"
    return ValueError(f"{name} is {show(value)}, but {other}; expected one of them, or equal values")
