"""What engines make of one config: where they disagree, from where on it counts, and what to write instead."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from rfrope._core import angles, sums
from rfrope._core.arguments import listed, named, whole
from rfrope._core.texts import Result
from rfrope.models.configs import from_config, read
from rfrope.models.engine_rules import Case, RefusedError, UnknownError, Use
from rfrope.models.engines import ENGINES, Engine
from rfrope.models.rewriting import rewrites
from rfrope.models.values import first, given, is_nested
from rfrope.rotation.rope import Rope

_SAME = 1e-12  # relative; rules are evaluated in float64
_SHARE = 0.01  # part of the score at lag 0
_CHUNKS = (256, 2**14)  # lags at once: the first, and the largest


@dataclass(frozen=True, eq=False)
class EngineUse(Result):
    """What one engine does with one RoPE of a config, held against the reference.

    Attributes
    ----------
    engine, version : str
        And of what version the source was read.
    sources : tuple of str
        The files that the rule was written from.
    status : {"known", "refused", "unknown"}
        Whether the engine runs with this config, stops at it, or was not read for it.
    reason : str
        Why it is refused or unknown.
    frequencies : ndarray (D,) or None
        Radians per position.
    attention_factor : float or None
    pairing : {"half", "interleaved"} or None
    length : str
        How the length of the text counts.
    positions : int or None
        Where tables of cos and sin end.
    passed_over : tuple of str
        Keys of the config that it does not read, though they would count.
    note : str
    frequency_error : float or None
        Largest relative difference from the frequencies of the reference; infinite where their number differs.
    score_ratio : float or None
        The score of a token with itself, divided by that of the reference.
    differs_from : int or None
        The first distance, of those that the layers see, at which the score of equal content differs by 1 % of the
        reference's at distance 0; None where it does nowhere, or nothing is known.
    """

    engine: str
    version: str
    sources: tuple[str, ...]
    status: str
    reason: str = ""
    frequencies: np.ndarray | None = None
    attention_factor: float | None = None
    pairing: str | None = None
    length: str = ""
    positions: int | None = None
    passed_over: tuple[str, ...] = ()
    note: str = ""
    frequency_error: float | None = None
    score_ratio: float | None = None
    differs_from: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, strings and lists, ready for JSON."""
        plain = dict(vars(self))
        plain["frequencies"] = None if self.frequencies is None else self.frequencies.tolist()
        if self.frequency_error == float("inf"):
            plain["frequency_error"] = None
        return {name: list(value) if isinstance(value, tuple) else value for name, value in plain.items()}


@dataclass(frozen=True, eq=False)
class Place(Result):
    """One RoPE of a config in several engines.

    Attributes
    ----------
    name : str
        As in `from_config`.
    model_type, scheme : str
    seq_len : int
        Positions in the text.
    context : int or None
        ``max_position_embeddings``.
    reference : str
        The engine that the others are held against: transformers, or the first of those asked for that is known.
    engines : tuple of EngineUse
    write : dict
        What to set at the top of the config (None: to remove) so that more engines agree; empty where nothing helps.
    then_agree, still_differ : tuple of str
        Names of the engines after that change.
    """

    name: str
    model_type: str
    scheme: str
    seq_len: int
    context: int | None
    reference: str
    engines: tuple[EngineUse, ...]
    write: dict[str, Any]
    then_agree: tuple[str, ...] = ()
    still_differ: tuple[str, ...] = ()

    @property
    def findings(self) -> tuple[str, ...]:
        """Where engines disagree, and where their tables end before the text, in words."""
        return tuple(line for one in self.engines for line in _findings(one, self))

    @property
    def verdict(self) -> tuple[str, ...]:
        """The findings, or that there are none."""
        return self.findings or (_nothing_found(self),)

    @property
    def agree(self) -> bool:
        """Whether all engines that are known do the same with this text."""
        return not self.findings

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, strings and lists, ready for JSON."""
        plain = {name: list(value) if isinstance(value, tuple) else value for name, value in vars(self).items()}
        plain["engines"] = [one.to_dict() for one in self.engines]
        return plain | {"findings": list(self.findings), "agree": self.agree}

    @property
    def table(self) -> tuple[tuple[str, ...], ...]:
        """What each engine does, as rows of text below a head."""
        head = ("engine", "source", "frequencies", "longest wavelength", "factor", "pairing", "")
        return (head, *map(_cells, self.engines))

    def __str__(self) -> str:
        label = f"{self.name}: " if self.name else ""
        kind = f"{self.model_type or 'a model without a type'}, scheme {self.scheme}"
        lines = [f"{label}{kind}, a text of {self.seq_len} positions, held against {self.reference}", ""]
        rows = self.table
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        lines += ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]
        remarks = [f"{one.engine}: {part}" for one in self.engines for part in _remarks(one)]
        lines += ["", *remarks] if remarks else []
        lines += ["", *self.verdict]
        if self.write:
            lines += ["", "Write into the config:"]
            lines += [f"  {_setting(key, value)}" for key, value in self.write.items()]
            lines += list(_after(self))
        return "\n".join(lines)


@dataclass(frozen=True, eq=False)
class Comparison(Result):
    """What engines make of one config.

    Attributes
    ----------
    places : tuple of Place
        One for each RoPE of the config, as in `from_config`, and for each length of a text.
    """

    places: tuple[Place, ...]

    @property
    def findings(self) -> tuple[str, ...]:
        """Where engines disagree, in words."""
        return tuple(f"{one.name}: {line}" if one.name else line for one in self.places for line in one.findings)

    @property
    def agree(self) -> bool:
        """Whether all engines that are known do the same."""
        return not self.findings

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, strings and lists, ready for JSON."""
        places = [one.to_dict() for one in self.places]
        return {"agree": self.agree, "findings": list(self.findings), "places": places}

    def __str__(self) -> str:
        return "\n\n".join(str(one) for one in self.places)


def compare(
    config: Mapping[str, Any] | str | os.PathLike[str] | Any,
    engines: Iterable[str] | None = None,
    *,
    seq_len: int | None = None,
) -> Comparison:
    """What engines make of the RoPE of one config, and where they disagree.

    Parameters
    ----------
    config : dict, path, or object with to_dict()
        As in `from_config`.
    engines : iterable of str, optional
        Names of ``rfrope.models.ENGINES``, in any spelling; all unless given.
    seq_len : int, optional
        Positions in the longest text, for which engines that must choose when they start are started. Unless given it
        is the context (``max_position_embeddings``), and where the scheme depends on the length a text on either side
        of where it changes: dynamic, of the context and `factor` times it; longrope, of the original context and the
        context.

    Returns
    -------
    Comparison
        Its ``findings`` are sentences, ``str`` gives a table, and ``to_dict`` plain data.

    Raises
    ------
    ValueError
        For an unknown engine, a config without ``max_position_embeddings``, and as `from_config`.
    TypeError, OSError
        As `from_config`.

    Notes
    -----
    Each rule was written from the source of that engine in the version that stands beside it, and holds for the model
    types whose code was read; other models are listed as unknown. A newer version may do otherwise. Frequencies are
    evaluated in float64: that engines round differently is no finding.

    The score of equal content at a distance is ``a^2 sum_i cos(distance omega_i)`` over the blocks that turn, and 1 for
    each other block, a the attention factor: the mean over contents that all blocks share equally.

    Examples
    --------
    >>> import rfrope
    >>> config = {"model_type": "qwen3", "hidden_size": 4096, "num_attention_heads": 32, "head_dim": 128,
    ...           "max_position_embeddings": 131072, "rope_theta": 1000000.0, "rope_scaling": {"rope_type": "yarn",
    ...           "factor": 4.0, "original_max_position_embeddings": 32768, "attention_factor": 1.0}}
    >>> found = rfrope.models.compare(config, ["transformers", "vLLM", "SGLang"])
    >>> found.agree, found.findings
    (False, ('SGLang: scores are 1.296 times as large, at every distance; it passes over attention_factor',))
    """
    raw, _ = read(config)
    asked = _chosen(engines)
    length = None if seq_len is None else whole("seq_len", seq_len, 1)
    places = [
        _place(rope, index, raw, asked, one)
        for index, rope in enumerate(from_config(raw))
        for one in (_lengths(rope) if length is None else (length,))
    ]
    return Comparison(tuple(places))


def _lengths(rope: Rope) -> tuple[int, ...]:
    """Return lengths of texts to look at."""
    held, context = rope.source.rope_parameters, rope.context
    if not isinstance(context, int):
        return (1,)  # patches of a picture, whose number the config does not say
    if held["rope_type"] == "dynamic" and "factor" in held and "alpha" not in held:
        return tuple(sorted({context, math.ceil(context * held["factor"])}))
    if held["rope_type"] == "longrope":
        return tuple(sorted({held.get("original_max_position_embeddings", context), context}))
    return (context,)


def _chosen(names: Iterable[str] | None) -> tuple[Engine, ...]:
    if names is None:
        return ENGINES
    names = (names,) if isinstance(names, str) else listed("engines", names, "a list of names")
    if not names:
        raise ValueError("engines is empty; expected at least one name")
    known = {engine.name: engine for engine in ENGINES}
    return tuple(known[named(f"engines[{i}]", name, tuple(known))] for i, name in enumerate(names))


def _place(rope: Rope, index: int, raw: Mapping[str, Any], asked: tuple[Engine, ...], length: int) -> Place:
    name = rope.source.model.name
    context = rope.context if isinstance(rope.context, int) else None
    case = _case(raw, index, length)
    uses = [_use(engine, case) for engine in asked]
    standard = next(((e, u) for e, u in zip(asked, uses, strict=True) if isinstance(u, Use)), None)
    rows = tuple(_row(e, u, standard[1] if standard else None, case) for e, u in zip(asked, uses, strict=True))
    about = (name, rope.source.model.model_type, case.scheme, length, context)
    place = Place(*about, standard[0].name if standard else "none", rows, {})
    if standard is None or name or all(row.status == "unknown" or _is_same(row) for row in rows):
        return place
    return Place(*about, place.reference, rows, *_advice(raw, case, standard[1], asked, rows))


def _case(raw: Mapping[str, Any], index: int, seq_len: int) -> Case:
    rope = from_config(raw, seq_len=seq_len)[index]
    held = rope.source.rope_parameters
    if rope.source.model.name:  # parts and kinds of layers, which only transformers' own rule looks at
        return Case(rope, dict(held), raw, seq_len)
    values = {key: value for key, value in given(raw).items() if value is not None and key != "type"}
    values |= {"rope_type": held["rope_type"], "rope_theta": held["rope_theta"]}
    part = first(raw, "partial_rotary_factor")
    if part is not None:
        values.setdefault("partial_rotary_factor", part)
    if held["rope_type"] in ("llama3", "yarn", "longrope"):
        beside = raw.get("original_max_position_embeddings")
        if beside is not None:
            values["original_max_position_embeddings"] = beside
        values.setdefault("original_max_position_embeddings", rope.context)
    assert not is_nested(values)  # has a name
    return Case(rope, values, raw, seq_len)


def _use(engine: Engine, case: Case) -> Use | RefusedError | UnknownError:
    """Return what an engine does, or why that is not known or does not come about."""
    if case.rope.source.model.name and engine.name != "transformers":
        return UnknownError("only models that are one part with one kind of layer were read")
    if case.rope.source.rope_parameters["rope_type"] == "axial" or not isinstance(case.rope.context, int):
        return UnknownError("the config gives no max_position_embeddings for it")
    try:
        return engine.use(case)
    except (RefusedError, UnknownError) as reason:
        return reason


# -- one engine against another ----------------------------------------------------------------------------------------


def _row(engine: Engine, use: Use | RefusedError | UnknownError, standard: Use | None, case: Case) -> EngineUse:
    about = (engine.name, engine.version, engine.sources)
    if not isinstance(use, Use):
        return EngineUse(*about, "refused" if isinstance(use, RefusedError) else "unknown", str(use))
    assert standard is not None  # this one, if no other
    same_number = use.frequencies.shape == standard.frequencies.shape
    return EngineUse(
        *about,
        "known",
        "",
        use.frequencies,
        use.attention_factor,
        use.pairing,
        use.length,
        use.positions,
        use.passed_over,
        use.note,
        _relative(use.frequencies, standard.frequencies) if same_number else float("inf"),
        float(_score(use, 0, case) / _score(standard, 0, case)),
        None if _same(use, standard) else _differs_from(use, standard, case),
    )


def _relative(found: np.ndarray, expected: np.ndarray) -> float:
    scale = np.where(expected == 0.0, 1.0, np.abs(expected))
    return float(np.max(np.abs(found - expected) / scale))


def _same(one: Use, other: Use) -> bool:
    if one.frequencies.shape != other.frequencies.shape or one.pairing != other.pairing:
        return False
    close = abs(one.attention_factor - other.attention_factor) <= _SAME
    return close and _relative(one.frequencies, other.frequencies) <= _SAME


def _is_same(row: EngineUse) -> bool:
    return row.status == "known" and row.differs_from is None and bool((row.frequency_error or 0.0) <= _SAME)


def _score(use: Use, lags: Any, case: Case) -> Any:
    """Score of equal content, summed over all blocks of the head."""
    still = (case.rope.head_dim or 0) / 2 - use.frequencies.size
    turning = sums.mean_cos(angles.read(lags, use.frequencies, name="lags", least=1)) * use.frequencies.size
    return use.attention_factor**2 * turning + still


def _differs_from(use: Use, standard: Use, case: Case) -> int | None:
    allowed = _SHARE * abs(float(_score(standard, 0, case)))
    start, length, end = 0, _CHUNKS[0], min(case.seq_len, case.rope.source.model.window or case.seq_len)
    while start < end:
        lags = np.arange(start, min(start + length, end))
        far = np.abs(_score(use, lags, case) - _score(standard, lags, case)) >= allowed
        if np.any(far):
            return start + int(np.argmax(far))
        start, length = start + length, min(2 * length, _CHUNKS[1])
    return None


# -- in words ----------------------------------------------------------------------------------------------------------


def _findings(one: EngineUse, place: Place) -> Iterator[str]:
    if one.status == "refused":
        yield f"{one.engine}: {one.reason}"
    if one.status != "known":
        return
    standard = next(row for row in place.engines if row.engine == place.reference)
    case = list(_differences(one, standard))
    if case and one.passed_over:
        case[-1] += f"; it passes over {', '.join(one.passed_over)}"
    yield from (f"{one.engine}: {line}" for line in case)
    if one.positions is not None and one.positions < place.seq_len:
        yield f"{one.engine}: tables of cos and sin end after {one.positions} positions"


def _differences(one: EngineUse, standard: EngineUse) -> Iterator[str]:
    assert one.frequencies is not None  # a known engine has some
    assert standard.frequencies is not None
    assert one.score_ratio is not None
    assert one.frequency_error is not None
    if one.pairing != standard.pairing:
        yield f"pairs features as {one.pairing!r}, where {standard.engine} does as {standard.pairing!r}"
    if one.frequencies.shape != standard.frequencies.shape:
        yield f"turns {2 * one.frequencies.size} features of a head, not {2 * standard.frequencies.size}{_from(one)}"
    elif one.frequency_error > _SAME:
        error = one.frequency_error
        size = f"{error + 1.0:.3g} times" if error >= 1.0 else f"{100.0 * error:.3g} %"
        yield f"frequencies differ by up to {size}{_from(one)}"
    elif abs(one.score_ratio - 1.0) > _SAME:
        where = "at every distance" if abs(one.score_ratio - 1.0) >= _SHARE else "which is below 1 %"
        yield f"scores are {one.score_ratio:.4g} times as large, {where}"
        return
    if abs(one.score_ratio - 1.0) > _SAME and one.frequencies.shape == standard.frequencies.shape:
        yield f"attention factor {one.attention_factor:.6g}, not {standard.attention_factor:.6g}"


def _from(one: EngineUse) -> str:
    if one.differs_from is None:
        return ", and scores of equal content by less than 1 % within the text"
    return f", and scores of equal content by 1 % first at distance {one.differs_from}"


def _cells(one: EngineUse) -> tuple[str, ...]:
    """One row of the table."""
    if one.frequencies is None:
        return (one.engine, one.version, "-", "-", "-", "-", one.status)
    turning = one.frequencies[one.frequencies > 0.0]
    slowest = f"{2.0 * np.pi / turning.min():.4g}" if turning.size else "none"
    factor, count = f"{one.attention_factor:.6g}", str(one.frequencies.size)
    return (one.engine, one.version, count, slowest, factor, str(one.pairing), "same" if _is_same(one) else "differs")


def _remarks(one: EngineUse) -> Iterator[str]:
    """What the row has no room for."""
    yield from (part for part in (one.reason if one.status == "unknown" else "", one.note) if part)
    if one.length not in ("", Use.length):
        yield one.length


def _nothing_found(place: Place) -> str:
    known = [row.engine for row in place.engines if row.status == "known"]
    return "They agree." if len(known) > 1 else f"Nothing to compare: known is {', '.join(known) or 'none of them'}."


def _after(place: Place) -> Iterator[str]:
    """What a change brings."""
    scaling = place.write.get("rope_scaling") or {}
    if scaling.get("rope_type") == "longrope" and place.scheme != "longrope":
        yield f"These lists are the frequencies for a text of {place.seq_len} positions, at every length."
    yield f"Then these agree: {', '.join(place.then_agree)}."
    if place.still_differ:
        yield f"Nothing that was tried makes these agree: {', '.join(place.still_differ)}."


def _setting(key: str, value: Any) -> str:
    return f"remove {key}" if value is None else f'"{key}": {_short(value)}'


def _short(value: Any) -> str:
    """A value as JSON has it, long lists cut."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f'"{key}": {_short(inner)}' for key, inner in value.items()) + "}"
    if isinstance(value, list) and len(value) > 4:
        return f"[{value[0]:.6g}, {value[1]:.6g}, ... {value[-1]:.6g}]"
    return json.dumps(value)


# -- what to write instead ---------------------------------------------------------------------------------------------


def _advice(
    raw: Mapping[str, Any], case: Case, standard: Use, asked: tuple[Engine, ...], rows: tuple[EngineUse, ...]
) -> tuple[dict[str, Any], tuple[str, ...], tuple[str, ...]]:
    """Return the change by which most engines do what the reference does now, tried out on their rules."""
    best, most = None, sum(_is_same(row) for row in rows)
    for changed in rewrites(raw, case):
        uses = {engine.name: _use(engine, _case(changed, 0, case.seq_len)) for engine in asked}
        agreeing = [name for name, use in uses.items() if isinstance(use, Use) and _same(use, standard)]
        unchanged = _use(ENGINES[0], _case(changed, 0, case.seq_len))
        if len(agreeing) > most and isinstance(unchanged, Use) and _same(unchanged, standard):
            best, most = (changed, agreeing, uses), len(agreeing)
    if best is None:
        return {}, (), ()
    changed, agreeing, uses = best
    write = {key: value for key, value in changed.items() if key not in raw or raw[key] != value}
    write |= {key: None for key in raw if key not in changed}
    apart = tuple(name for name, use in uses.items() if name not in agreeing and not isinstance(use, UnknownError))
    return write, tuple(agreeing), apart
