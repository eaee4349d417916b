"""One config in several engines: differences, the distance from which they matter, and a fix."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from rfrope import engines as registry
from rfrope._core.arguments import listed, show, whole
from rfrope._core.results import Copyable, Report, Result, Table, Words, plain
from rfrope.engines.record import ConfigRope, EngineRope, Reading, RefusedError, UnknownError
from rfrope.models.configs import from_config, read, read_parts
from rfrope.models.layering import show_layers
from rfrope.models.parts import NAMES
from rfrope.models.rewriting import (
    SAME,
    SHARE,
    choose_lengths,
    first_difference,
    is_same,
    relative_error,
    rewrites,
    score,
    shorten,
)
from rfrope.models.rope_parameters import from_rope_parameters, join_dicts
from rfrope.rotation.rope import Rope
from rfrope.scaling.registry import describe_reach

if TYPE_CHECKING:
    from rfrope.analysis import KernelFit


@dataclass(frozen=True, eq=False)
class EngineReport(Result):
    """The RoPE of a config in one engine, compared with the reference.

    Attributes
    ----------
    engine, version : str
        Name of the engine, and the version whose source was read.
    sources : tuple of str
        Source files from which the rule was written.
    status : {"known", "refused", "unknown"}
        The engine runs this config, refuses it, or was not read for it.
    reason : str
        Why it is refused or unknown.
    rope : EngineRope or None
        The RoPE that the engine applies: ``frequencies``, ``attention_factor``, ``pairing``, ``length`` (a description
        of how it depends on the length), ``positions`` (where its tables end), ``ignored_keys`` and ``note``.
    frequency_error : float or None
        Largest relative difference from the reference frequencies; infinite if their number differs.
    score_ratio : float or None
        Score of a token with itself, divided by that of the reference.
    differs_from : int or None
        First distance within the attention window at which the score of equal content differs by 1 % of the reference's
        score at distance 0; None if there is none, or the RoPE is not known.
    is_same : bool
        True if frequencies, attention factor, pairing and, if known, layers equal those of the reference.
    findings : tuple of str
        Sentences on differences from the reference, and on tables that end before the text.

    See Also
    --------
    models.RopeComparison, engines.EngineRope

    Examples
    --------
    >>> import rfrope
    >>> config = {"model_type": "llama", "head_dim": 16, "rope_theta": 10000.0, "max_position_embeddings": 512}
    >>> (rope,) = rfrope.models.compare(config, engines=["transformers", "vllm"]).ropes
    >>> [(one.engine, one.status) for one in rope.engines]
    [('transformers', 'known'), ('vLLM', 'known')]
    """

    engine: str
    version: str
    sources: tuple[str, ...]
    status: str
    reason: str = ""
    rope: EngineRope | None = None
    frequency_error: float | None = None
    score_ratio: float | None = None
    differs_from: int | None = None
    is_same: bool = False
    findings: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers, strings and lists for JSON, with the fields of the RoPE merged in."""
        held = {name: value for name, value in vars(self).items() if name != "rope"}
        rope = dict.fromkeys(field.name for field in fields(EngineRope)) if self.rope is None else vars(self.rope)
        return plain(held | rope)


@dataclass(frozen=True, eq=False)
class RopeComparison(Result):
    """One RoPE of a config in several engines.

    Attributes
    ----------
    name : str
        See `from_config`.
    model_type, scheme : str
    seq_len : int
        Number of positions in the text.
    context : int or None
        ``max_position_embeddings``.
    qk_head_dim : int
        Number of features in a dot product.
    reference : str
        Engine to compare with: transformers, or if that is not known, the one that ignores the fewest keys.
    engines : tuple of EngineReport
    write : dict
        Top-level changes to the config (None: remove the key) with which more engines agree; empty if there are none.
    then_agree, still_differ : tuple of str
        Names of the engines that agree, and that still differ, after that change.
    layers : tuple of int or None
        Layers that use this RoPE; None if the config does not determine them.
    caution : str
        A sentence on the length that the scheme reaches, if that is not the context; else "".

    See Also
    --------
    models.Comparison, models.EngineReport

    Examples
    --------
    >>> import rfrope
    >>> config = {"model_type": "llama", "head_dim": 16, "rope_theta": 10000.0, "max_position_embeddings": 512}
    >>> (rope,) = rfrope.models.compare(config, engines=["transformers", "vllm"]).ropes
    >>> rope.agree, rope.verdict
    (True, ('They agree.',))
    """

    name: str
    model_type: str
    scheme: str
    seq_len: int
    context: int | None
    qk_head_dim: int
    reference: str
    engines: tuple[EngineReport, ...]
    write: dict[str, Any]
    then_agree: tuple[str, ...] = ()
    still_differ: tuple[str, ...] = ()
    layers: tuple[int, ...] | None = None
    caution: str = ""
    _also = ("findings", "agree")

    @cached_property
    def laws(self) -> dict[str, KernelFit]:
        """The kernel nearest to the mean kernel of each known engine, within the text; the same for equal frequencies.

        It is the first of `analysis.fit_kernel` for the blocks that turn, made when it is first asked for: about a
        second for each set, which texts and dicts do not wait for. Engines that turn nothing have none, and texts of
        fewer than 8 positions hardly tell kernels apart.
        """
        from rfrope.analysis.fits import find_law  # what else no comparison needs

        made = {one.engine: one.rope.frequencies for one in self.engines if one.rope is not None}
        sets = {name: tuple(f"{one:.11g}" for one in omega) for name, omega in made.items()}
        first_of = {one: name for name, one in reversed(sets.items())}
        found = {one: find_law(made[name], self.seq_len) for one, name in first_of.items()}
        return {name: law for name, one in sets.items() if (law := found[one]) is not None}

    def list_laws(self) -> list[str]:
        """Return a sentence on each of `laws`, with the names of its engines."""
        names: dict[str, list[str]] = {}
        for name, law in self.laws.items():
            names.setdefault(f"{law.sentence}; as many blocks of it err {law.design_rms:.2g}", []).append(name)
        return [f"Nearest law of {', '.join(engines)}: {sentence}." for sentence, engines in names.items()]

    @property
    def findings(self) -> tuple[str, ...]:
        """Sentences on engines that disagree, and on tables that end before the text."""
        return tuple(f"{one.engine}: {line}" for one in self.engines for line in one.findings)

    @property
    def verdict(self) -> tuple[str, ...]:
        """The caution, and the findings, or a statement that there are none."""
        known = [one.engine for one in self.engines if one.status == "known"]
        nothing = f"Nothing to compare: engines known for this config: {', '.join(known) or 'none'}."
        found = self.findings or ("They agree." if len(known) > 1 else nothing,)
        return (self.caution, *found) if self.caution else found

    @property
    def agree(self) -> bool:
        """True if all known engines treat this text alike."""
        return not self.findings

    @property
    def table(self) -> tuple[tuple[str, ...], ...]:
        """Return a header and one row of text per engine."""
        head = ("engine", "source", "frequencies", "longest wavelength", "factor", "pairing", "")
        return (head, *map(_make_row, self.engines))

    def report(self) -> Report:
        """Return where engines disagree, their table, what to write into the config, and remarks."""
        label = f"{self.name}: " if self.name else ""
        kind = f"{self.model_type or 'a model without a type'}, scheme {self.scheme}"
        where = f", {show_layers(self.layers)}" if self.name and self.layers is not None else ""
        about = f"{label}{kind}{where}, a text of {self.seq_len} positions, compared with {self.reference}"
        advice = [Words([*_list_advice(self)]), Copyable("Write into the config (null: remove)", self.write)]
        parts = [
            Words([f"{label}{line}" for line in self.verdict]),
            Words([about]),
            Table(self.table, left=None, rule=False),
            *(advice if self.write else ()),
            Words([f"{one.engine}: {remark}" for one in self.engines for remark in _list_remarks(one)]),
        ]
        others = [one.engine for one in self.engines if one.findings]
        count = f"{len(others)} of {len(self.engines)} engines differ or stop: {', '.join(others)}."
        return Report(parts, count if others else self.verdict[-1])


@dataclass(frozen=True, eq=False)
class Comparison(Result):
    """One config in several engines.

    Attributes
    ----------
    ropes : tuple of RopeComparison
        One per RoPE of the config, as in `from_config`, and per text length.

    See Also
    --------
    models.compare, models.RopeComparison

    Examples
    --------
    >>> import rfrope
    >>> config = {"model_type": "llama", "head_dim": 16, "rope_theta": 10000.0, "max_position_embeddings": 512}
    >>> found = rfrope.models.compare(config, engines=["transformers", "vllm"])
    >>> found.agree, len(found.ropes), found.findings
    (True, 1, ())
    """

    ropes: tuple[RopeComparison, ...]
    _also = ("findings", "agree")

    @property
    def findings(self) -> tuple[str, ...]:
        """Sentences on engines that disagree."""
        return tuple(f"{one.name}: {line}" if one.name else line for one in self.ropes for line in one.findings)

    @property
    def agree(self) -> bool:
        """True if all known engines agree."""
        return not self.findings

    def report(self) -> Report:
        """Return the report on each RoPE, one after the other."""
        reports = [one.report() for one in self.ropes]
        labels = (f"{one.name}: " if one.name else "" for one in self.ropes)
        verdicts = (f"{label}{one.verdict}" for label, one in zip(labels, reports, strict=True))
        return Report([part for one in reports for part in one.parts], " ".join(verdicts))


def compare(
    config: Mapping[str, Any] | str | os.PathLike[str] | Any,
    engines: Iterable[str] | None = None,
    *,
    seq_len: int | None = None,
) -> Comparison:
    """Compare how engines read the RoPE of a config.

    Parameters
    ----------
    config : dict, path, or object with to_dict()
        See `from_config`.
    engines : iterable of str, optional
        Names of engines, in any spelling. Default: all that read configs.
    seq_len : int, optional
        Number of positions in the longest text, by which some engines choose a scheme's factors at start-up. Default:
        the context (``max_position_embeddings``). For schemes that depend on the length, one text on either side of the
        change: for dynamic, the context and `factor` times it; for longrope, the original context and the context.

    Returns
    -------
    Comparison
        With ``findings`` as sentences, a table from ``str`` and plain data from ``to_dict``.

    Raises
    ------
    ValueError
        If an engine is unknown or the config has no ``max_position_embeddings``. See also `from_config`.
    TypeError, OSError
        See `from_config`.

    See Also
    --------
    models.Comparison, models.audit, engines.export

    Notes
    -----
    Each rule was written from the engine's source, in the version given, and holds for the model types whose code was
    read; other models are listed as unknown. Newer versions may differ. Frequencies are evaluated in float64, so
    differences in rounding are not findings.

    The score of equal content at a distance is ``a^2 sum_i cos(distance omega_i)`` over rotated blocks plus 1 for each
    other block, where a is the attention factor: the mean over contents that are spread equally over all blocks.

    Examples
    --------
    >>> import rfrope
    >>> config = {"model_type": "qwen3", "hidden_size": 4096, "num_attention_heads": 32, "head_dim": 128,
    ...           "max_position_embeddings": 131072, "rope_theta": 1000000.0, "rope_scaling": {"rope_type": "yarn",
    ...           "factor": 4.0, "original_max_position_embeddings": 32768, "attention_factor": 1.0}}
    >>> found = rfrope.models.compare(config, ["transformers", "vLLM", "SGLang"])
    >>> found.agree, found.findings
    (False, ('SGLang: scores are 1.296 times as large, at every distance; it does not read attention_factor',))
    """
    raw, _ = read(config)
    if not (readings := find_readings(engines)):
        raise ValueError("engines is empty; expected at least one name")
    length = None if seq_len is None else whole("seq_len", seq_len, 1)
    ropes = [
        _compare_rope(_describe(rope, raw, part.part.held, one), readings)
        for part in read_parts(raw)
        for rope in part.ropes.values()
        for one in (choose_lengths(rope) or (1,) if length is None else (length,))
    ]
    return Comparison(tuple(ropes))


def find_readings(engines: Iterable[str] | None) -> dict[str, Reading]:
    """Return how engines read configs, by name; None for all."""
    if engines is None:
        return {engine.name: engine.reading for engine in registry.records() if engine.reading is not None}
    names = (engines,) if isinstance(engines, str) else listed("engines", engines, "a list of names")
    return dict(registry.find_engine(f"engines[{i}]", name, "reading") for i, name in enumerate(names))


def _describe(rope: Rope, raw: Mapping[str, Any], part: Mapping[str, Any], seq_len: int) -> ConfigRope:
    """Return the config as the engines' rules take it, for a text of some length."""
    held = rope.source.rope_parameters
    scheme, key = held["rope_type"], "original_max_position_embeddings"
    if scheme in ("dynamic", "longrope"):  # the only ones that depend on the length
        sizes: dict[str, Any] = {"head_dim": rope.head_dim, "max_position_embeddings": rope.context}
        made = from_rope_parameters(held, **sizes, seq_len=seq_len)
        rope = replace(rope, frequencies=made.frequencies, attention_factor=made.attention_factor)
    if rope.source.model.name:  # ropes of parts and kinds of layers have names
        return ConfigRope(rope, held, held, part, seq_len)
    written = join_dicts(raw)
    values = written | {"rope_type": scheme, "rope_theta": held["rope_theta"]}
    values.pop("type", None)
    for name in NAMES["partial_rotary_factor"]:  # the first that the config has
        if raw.get(name) is not None:
            values.setdefault("partial_rotary_factor", raw[name])
    if scheme in ("llama3", "yarn", "longrope"):
        values[key] = values.get(key, rope.context) if raw.get(key) is None else raw[key]
    return ConfigRope(rope, values, written, raw, seq_len)


def _run_rule(reading: Reading, config: ConfigRope) -> EngineRope | RefusedError | UnknownError:
    """Return the RoPE that an engine makes of a config, or why it is refused or unknown."""
    types = reading.model_types
    if config.rope.source.model.name and types and config.model_type not in reading.layered:
        return UnknownError(f"its code for the kinds of layers of model type {show(config.model_type)} was not read")
    if config.scheme == "axial" or not isinstance(config.rope.context, int):
        return UnknownError("the config gives no max_position_embeddings for it")
    if types and config.model_type not in types:
        said = reading.failed.get(config.model_type)
        why = f"could not be observed: {said}" if said else "was not read"
        return UnknownError(f"its code for model type {show(config.model_type)} {why}")
    try:
        return reading.rule(config)
    except (RefusedError, UnknownError) as reason:
        return reason
    except Exception as error:  # a rule that did not foresee this config says nothing of the others
        return UnknownError(f"its rule raises {type(error).__name__}: {error}")


def _compare_rope(config: ConfigRope, readings: dict[str, Reading]) -> RopeComparison:
    name, context = config.rope.source.model.name, config.rope.context
    made = {engine: _run_rule(reading, config) for engine, reading in readings.items()}
    known = {engine: one for engine, one in made.items() if isinstance(one, EngineRope)}
    reference = registry.REFERENCE
    if reference not in known:
        reference = min(known, key=lambda one: len(known[one].ignored_keys), default="none")
    reports = []
    for engine, one in made.items():
        about = (engine, readings[engine].version, readings[engine].sources)
        if isinstance(one, EngineRope):
            reports.append(_report(about, one, reference, known[reference], config))
        else:
            status, reason = "refused" if isinstance(one, RefusedError) else "unknown", str(one)
            reports.append(EngineReport(*about, status, reason, findings=(reason,) if status == "refused" else ()))
    advice: dict[str, Any] = {"write": {}}
    if known and not name and any([one.status != "unknown" and not one.is_same for one in reports]):
        advice = _advise(config, known[reference], readings, sum([one.is_same for one in reports]))
    return RopeComparison(
        name=name,
        model_type=config.model_type,
        scheme=config.scheme,
        seq_len=config.seq_len,
        context=context if isinstance(context, int) else None,
        qk_head_dim=config.rope.qk_head_dim,
        reference=reference,
        engines=tuple(reports),
        layers=config.rope.source.model.layers,
        caution=describe_reach(config.rope),
        **advice,
    )


# -- one engine against another ----------------------------------------------------------------------------------------


def _report(
    about: tuple[str, str, tuple[str, ...]], made: EngineRope, reference: str, standard: EngineRope, config: ConfigRope
) -> EngineReport:
    """Return the report on an engine: its differences from the reference, and where its tables end."""
    pairs, error = (config.rope.head_dim or 0) / 2, relative_error(made.frequencies, standard.frequencies)
    same = error <= SAME and abs(made.attention_factor - standard.attention_factor) <= SAME
    same = same and made.pairing == standard.pairing
    same = same and (made.layers == standard.layers or None in (made.layers, standard.layers))
    ratio, distance, findings = 1.0, None, list[str]()
    if not same:
        ratio = score(made, pairs) / score(standard, pairs)
        end = min(config.seq_len, config.rope.source.model.window or config.seq_len)
        distance = first_difference(made, standard, (pairs, pairs), end)
        findings = _list_differences(made, reference, standard, (error, ratio, distance))
        if findings and made.ignored_keys:
            findings[-1] += f"; it does not read {', '.join(made.ignored_keys)}"
    if made.positions is not None and made.positions < config.seq_len:
        findings.append(f"tables of cos and sin end after {made.positions} positions")
    return EngineReport(*about, "known", "", made, error, ratio, distance, same, tuple(findings))


def _is_same(one: EngineRope | RefusedError | UnknownError, other: EngineRope) -> bool:
    is_alike = isinstance(one, EngineRope) and one.pairing == other.pairing and not _turn_other_layers(one, other)
    return is_alike and is_same(one, other)


def _turn_other_layers(one: EngineRope, other: EngineRope) -> bool:
    return None not in (one.layers, other.layers) and one.layers != other.layers


# -- in words ----------------------------------------------------------------------------------------------------------


def _list_differences(
    made: EngineRope, reference: str, standard: EngineRope, differences: tuple[float, float, int | None]
) -> list[str]:
    """Return sentences on differences in frequencies, in all scores, and in scores from a distance on."""
    error, ratio, distance = differences
    scores = "less than 1 % within the text" if distance is None else f"1 % first at distance {distance}"
    found = []
    if _turn_other_layers(made, standard):
        sides = [show_layers(one.layers or ()) for one in (made, standard)]
        found.append(f"turns {sides[0]} by it, where {reference} turns {sides[1]}")
    if made.pairing != standard.pairing:
        found.append(f"pairs features as {made.pairing!r}, and {reference} as {standard.pairing!r}")
    if error > SAME:
        size = f"{error + 1.0:.3g} times" if error >= 1.0 else f"{100.0 * error:.3g} %"
        said = f"frequencies differ by up to {size}"
        if error == math.inf:
            said = f"turns {2 * made.frequencies.size} features of a head, not {2 * standard.frequencies.size}"
        found.append(f"{said}, and scores of equal content by {scores}")
    if abs(ratio - 1.0) > SAME and error <= SAME:
        where = "at every distance" if abs(ratio - 1.0) >= SHARE else "which is below 1 %"
        found.append(f"scores are {ratio:.4g} times as large, {where}")
    elif abs(ratio - 1.0) > SAME and error < math.inf:
        found.append(f"attention factor {made.attention_factor:.6g}, not {standard.attention_factor:.6g}")
    return found


def _make_row(one: EngineReport) -> tuple[str, ...]:
    """Return one row of the table."""
    if one.rope is None:
        return (one.engine, one.version, "-", "-", "-", "-", one.status)
    turning = one.rope.frequencies[one.rope.frequencies > 0.0]
    slowest = f"{2.0 * np.pi / turning.min():.4g}" if turning.size else "none"
    factor, count = f"{one.rope.attention_factor:.6g}", str(one.rope.frequencies.size)
    verdict = "same" if one.is_same else "differs"
    return (one.engine, one.version, count, slowest, factor, str(one.rope.pairing), verdict)


def _list_remarks(one: EngineReport) -> list[str]:
    """Return remarks that do not fit into the row."""
    if one.rope is None:
        return [one.reason] if one.status == "unknown" else []
    length = "" if one.rope.length == EngineRope.length else one.rope.length
    return [remark for remark in (one.rope.note, length) if remark]


def _list_advice(found: RopeComparison) -> Iterator[str]:
    """Yield lines on the suggested change of the config and its effect."""
    yield "Write into the config:"
    for key, value in found.write.items():
        yield f"  remove {key}" if value is None else f'  "{key}": {shorten(value)}'
    scaling = found.write.get("rope_scaling") or {}
    if scaling.get("rope_type") == "longrope" and found.scheme != "longrope":
        yield f"These lists fix the frequencies for {found.seq_len} positions, at every length."
    yield f"Then these agree: {', '.join(found.then_agree)}."
    if found.still_differ:
        yield f"No change that was tried makes these agree: {', '.join(found.still_differ)}."


# -- changes to the config ---------------------------------------------------------------------------------------------


def _advise(config: ConfigRope, standard: EngineRope, readings: dict[str, Reading], n_same: int) -> dict[str, Any]:
    """Return the change with which most engines match the current reference, tested on their rules."""
    raw, best = config.raw, dict[str, Any](write={})
    _, first = registry.find_engine("engine", registry.REFERENCE, "reading")
    for changed in rewrites(config):
        (rope,) = from_config(changed)
        other = _describe(rope, changed, changed, config.seq_len)
        made = {name: _run_rule(reading, other) for name, reading in readings.items()}
        agreeing = tuple(name for name, one in made.items() if _is_same(one, standard))
        if len(agreeing) > n_same and _is_same(_run_rule(first, other), standard):
            write = {key: value for key, value in changed.items() if raw.get(key) != value}
            write |= {key: None for key in raw if key not in changed}
            apart = [name for name, one in made.items() if name not in agreeing and not isinstance(one, UnknownError)]
            n_same, best = len(agreeing), {"write": write, "then_agree": agreeing, "still_differ": tuple(apart)}
    return best
