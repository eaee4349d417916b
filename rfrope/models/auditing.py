"""Audit of a running model against its config: frequencies, tables, pairing, attention factor."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from rfrope._core import array
from rfrope._core.arguments import whole
from rfrope._core.results import Result
from rfrope.models import tables
from rfrope.models.buffers import Buffer, find_buffers
from rfrope.models.configs import from_config
from rfrope.models.mistakes import described, mistakes
from rfrope.models.tables import HALVES, ROUNDED, bits, rounded
from rfrope.rotation.rope import Rope

_EXCEEDS = 1e-3  # error of cos and sin
_UNBOUNDED = 2**24  # positions that frequencies are followed for where there is no context
_PERCEPTION = ("vision", "visual", "audio")
_NARROW = 2.0**-8  # what half precision leaves unknown, with some room


@dataclass(frozen=True)
class Finding(Result):
    """One fault.

    Attributes
    ----------
    kind : str
        One of "uninitialised", "width", "half precision", "frequencies", "attention factor", "rows", "too short",
        "pairing".
    where : str
        The buffer or table.
    text : str
        What is wrong, and which known mistake it looks like.
    position : int or None
        The first position at which a cos or sin is off by more than 1e-3; None if there is none within the context,
        or below 2^24 where there is no context.
    """

    kind: str
    where: str
    text: str
    position: int | None = None

    def __str__(self) -> str:
        from_where = (
            "" if self.position is None else f"; off by more than {_EXCEEDS:g} first at position {self.position}"
        )
        return f"{self.where}: {self.text}{from_where}"


@dataclass(frozen=True)
class Audit(Result):
    """Faults found in a running model, and what was looked at.

    Attributes
    ----------
    findings : tuple of Finding
    checked : tuple of str
        What was looked at.
    context : int or None
        Positions that were asked for.
    exceeds : int or None
        The first position at which a cos or sin of what was looked at is off by more than 1e-3 from the exact one, by
        a fault or by rounding to float32; None if there is none within the context, or below 2^24 where there is none.
    """

    findings: tuple[Finding, ...]
    checked: tuple[str, ...]
    context: int | None = None
    exceeds: int | None = None

    @property
    def passed(self) -> bool:
        """True if nothing is wrong."""
        return not self.findings

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, strings and lists, ready for JSON."""
        return asdict(self) | {
            "passed": self.passed,
            "findings": [asdict(one) for one in self.findings],
            "checked": list(self.checked),
        }

    def __str__(self) -> str:
        lines = ["PASSED" if self.passed else "FAILED", f"  looked at {', '.join(self.checked)}"]
        lines += [f"  {finding}" for finding in self.findings]
        if self.passed and self.exceeds is not None:
            lines.append(
                f"  rounding alone puts cos and sin off by more than {_EXCEEDS:g} first at position {self.exceeds}"
            )
        return "\n".join(lines)


@array.select_device
def audit(what: Any, rope: Any = None, *, context: int | None = None) -> Audit:
    """Compare what a running model holds with its config, or with a Rope.

    Parameters
    ----------
    what : array, pair of arrays, dict of arrays, or module
        Frequencies ``(D,)`` (``inv_freq``); a pair of tables of cos and sin, ``(S, D)``, or ``(S, 2D)`` with every
        column twice, doubled or repeated; one table ``(S, 2D)``, cos then sin, sin then cos, or in turn, or
        ``(S, D, 2)``; a complex table ``(S, D)``. A dict holds such arrays under the names that models have for them,
        as a ``state_dict`` or an open NPZ file does. A module of PyTorch is searched for them; one of transformers is
        asked for its cos and sin too, and for the pairing by which its own function turns.
    rope : Rope, frequencies, or config, optional
        What is meant; a config as in `from_config`. Unless given, that of ``what.config``.
    context : int, optional
        Positions that tables must have; that of `rope` unless given.

    Returns
    -------
    Audit
        With ``passed``, ``findings``, a text by ``str`` and plain data by ``to_dict``.

    Raises
    ------
    ValueError
        If there is nothing to look at or nothing to hold it against, for frequencies of several axes or heads, and as
        `from_config`.
    TypeError
        For arrays of other kinds, and as `from_config`.

    Notes
    -----
    What rounding to float32 does to frequencies and phases is no finding; ``exceeds`` says from which position on it
    costs more than 1e-3 all the same. A scheme that depends on the length of the text may be in the state of a short or
    of a long one where `rope` is a config. A table whose columns stand twice says by their order which pairing it is
    for.

    Examples
    --------
    >>> import numpy as np, rfrope
    >>> rope = rfrope.Rope(rfrope.geometric(64), context=4096)
    >>> print(audit(rope.frequencies.astype(np.float32), rope))
    PASSED
      looked at frequencies
    >>> print(audit(rope.frequencies.astype(np.float16).astype(np.float32), rope))
    FAILED
      looked at frequencies
      frequencies: values rounded to float16; off by more than 0.001 first at position 5
    """
    length = None if context is None else whole("context", context, 1)
    meant = _read_expected(what, rope)
    found, checked, exceeds = [], [], []
    for buffer in find_buffers(what):
        choice = _candidates(buffer, meant)
        if not choice:
            continue
        results = [_compare(buffer, one, length) for one in choice]
        findings, first = min(results, key=lambda result: len(result[0]))
        checked.append(buffer.name)
        found += findings
        exceeds += [] if first is None else [first]
    if not checked:
        raise ValueError("what holds nothing that rope says anything of; expected a Rope or config of the same model")
    asked = length if length is not None else max((_context(one) or 0 for one in meant), default=0) or None
    return Audit(_merge_shared(found), tuple(checked), asked, min(exceeds, default=None))


# -- what is meant -----------------------------------------------------------------------------------------------------


def _read_expected(what: Any, rope: Any) -> tuple[Rope, ...]:
    if rope is None:
        rope = getattr(what, "config", None)
        if rope is None:
            raise ValueError("rope is None, and what has no config; expected a Rope, frequencies, or a config")
    if isinstance(rope, Mapping | str | os.PathLike) or hasattr(rope, "to_dict"):
        ropes = from_config(rope)
        long = [ropes, *(from_config(rope, seq_len=one.context) for one in ropes if isinstance(one.context, int))]
        return tuple(_drop_repeats(each for made in long for each in made))
    made = rope if isinstance(rope, Rope) else Rope(rope)
    if made.frequencies.ndim != 1:
        raise ValueError(f"rope has frequencies {tuple(made.frequencies.shape)}; expected (D,): one axis and one head")
    return (replace(made, frequencies=array.to_host(made.frequencies, "rope").astype(np.float64)),)


def _drop_repeats(ropes: Iterator[Rope]) -> Iterator[Rope]:
    seen: set[tuple[str, bytes, float]] = set()
    for rope in ropes:
        key = (rope.source.model.name, np.asarray(rope.frequencies).tobytes(), rope.attention_factor)
        if key not in seen:
            seen.add(key)
            yield rope


def _candidates(buffer: Buffer, meant: tuple[Rope, ...]) -> tuple[Rope, ...]:
    """Return the Ropes that a buffer may belong to: by kind of layer, text or picture, and else any."""
    if meant[0].source.model.pairing_from is None:  # not of a config
        return meant
    seen = any(word in buffer.name for word in _PERCEPTION)
    places = {one: one.source.model.name for one in meant}
    ropes = tuple(one for one, place in places.items() if seen == any(word in place for word in _PERCEPTION))
    ropes = tuple(one for one in ropes if one.source.rope_parameters["rope_type"] != "axial")
    return tuple(one for one in ropes if not buffer.layer or places[one].endswith(buffer.layer))


def _context(rope: Rope) -> int | None:
    return rope.context if isinstance(rope.context, int) else None


def _merge_shared(findings: list[Finding]) -> tuple[Finding, ...]:
    """Return findings with those that several modules of a model share as one."""
    seen: dict[tuple[str, str], list[Finding]] = {}
    for finding in findings:
        seen.setdefault((finding.kind, finding.text), []).append(finding)
    return tuple(
        group[0] if len(group) == 1 else replace(group[0], where=f"{group[0].where} and {len(group) - 1} more")
        for group in seen.values()
    )


# -- one thing against one Rope ----------------------------------------------------------------------------------------


def _compare(buffer: Buffer, rope: Rope, length: int | None) -> tuple[list[Finding], int | None]:
    """Return faults, and the first position that is off by more than 1e-3."""
    context = _context(rope) if length is None else length
    if buffer.fault:
        return [Finding("uninitialised", buffer.name, buffer.fault, 0)], 0
    if reason := _is_uninitialised(buffer, rope):
        return [Finding("uninitialised", buffer.name, reason, 0)], 0
    if buffer.is_table:
        first = tables.first_off(buffer, _find_stretched(tables.read(buffer, rope).frequencies, rope) or rope, _EXCEEDS)
        faults = list(_check_table(buffer, rope, context))
    else:
        first = _find_first_off(buffer, _find_stretched(buffer.values, rope) or rope, context)
        faults = list(_check_frequencies(buffer, rope))
    return [Finding(kind, buffer.name, text, first) for kind, text in faults], first


def _is_uninitialised(buffer: Buffer, rope: Rope) -> str:
    values = buffer.values
    if not np.all(np.isfinite(values)):
        return f"{int(np.sum(~np.isfinite(values)))} of {values.size} values are not finite: uninitialised memory"
    if not np.any(values) and (buffer.is_table or np.any(np.abs(np.asarray(rope.frequencies)) > tables.TINY)):
        return "all values are 0: uninitialised, as after loading a model that was made on the meta device"
    size = np.abs(values[values != 0.0])
    if size.size and (np.max(size) > 1e12 or (np.min(size) < 1e-30 and not _is_meant_tiny(buffer, rope))):
        return f"values from {np.min(size):.3g} to {np.max(size):.3g}: uninitialised memory"
    return ""


def _is_meant_tiny(buffer: Buffer, rope: Rope) -> bool:
    """Return True if values below 1e-30 stand only where those meant turn nothing."""
    tiny = (buffer.values != 0.0) & (np.abs(buffer.values) < 1e-30)
    slow = np.abs(np.asarray(rope.frequencies)) <= tables.TINY
    if buffer.blocks != rope.n_blocks:
        return bool(np.any(slow))
    return not np.any(tiny & ~slow)


def _check_frequencies(buffer: Buffer, rope: Rope) -> Iterator[tuple[str, str]]:
    expected = np.asarray(rope.frequencies)
    if buffer.blocks != rope.n_blocks:
        yield "width", _describe_width(buffer.values, rope)
    elif not tables.close(buffer.values, expected) and _find_stretched(buffer.values, rope) is None:
        yield from _describe_difference(buffer.values, rope, ROUNDED * np.abs(expected) + tables.TINY, buffer.dtype)
    factor = buffer.attention_factor
    if factor is not None and abs(factor / rope.attention_factor - 1.0) > 1e-6:
        yield "attention factor", _describe_factor(factor, rope)


def _check_table(buffer: Buffer, rope: Rope, context: int | None) -> Iterator[tuple[str, str]]:
    noise = tables.noise(buffer)
    if noise > tables.FINE:
        yield (
            "half precision",
            f"a table in {buffer.dtype if buffer.dtype in tables.HALF else HALVES[bits(buffer.values)]}",
        )
    reading = tables.read(buffer, rope)
    if reading.spread > 8.0 * noise:
        yield "uninitialised", "cos^2 + sin^2 is not the same everywhere: uninitialised or overwritten"
        return
    if abs(reading.factor / rope.attention_factor - 1.0) > 4.0 * noise:
        yield "attention factor", _describe_factor(reading.factor, rope)
    yield from _check_rows(buffer, rope, reading, noise)
    if buffer.is_whole and context is not None and 1 < len(buffer.values) < context:
        yield "too short", f"the table ends after {len(buffer.values)} positions, and the context is {context}"
    if None not in (buffer.pairing, rope.pairing) and buffer.pairing != rope.pairing:
        said = "its columns are ordered for" if buffer.is_whole else "the model turns by"
        yield "pairing", f"{said} pairing {buffer.pairing!r}, and {rope.pairing!r} is meant"


def _check_rows(buffer: Buffer, rope: Rope, reading: tables.Reading, noise: float) -> Iterator[tuple[str, str]]:
    """Yield faults of the frequencies of a table, or else of single rows."""
    if len(buffer.values) == 1:
        if np.any(np.abs(buffer.rows(0) / reading.factor - 1.0) > 8.0 * noise):
            yield "rows", "the only row is not that of position 0"
        yield "too short", "the table has one row, and one row tells no frequencies"
    elif buffer.blocks != rope.n_blocks:
        yield "width", _describe_width(reading.frequencies, rope)
    elif reading.start:
        yield "rows", f"the first row is not that of position 0, but of position {reading.start}"
    elif _differs(reading, rope) and _find_stretched(reading.frequencies, rope) is None:
        yield from _describe_difference(reading.frequencies, rope, reading.allowed, "")
    elif unlike := tables.rows_unlike(buffer, reading, noise):
        yield unlike


def _differs(reading: tables.Reading, rope: Rope) -> bool:
    return bool(np.any(np.abs(reading.frequencies - np.asarray(rope.frequencies)) > reading.allowed))


def _describe_difference(found: np.ndarray, rope: Rope, allowed: np.ndarray, dtype: str) -> Iterator[tuple[str, str]]:
    """Yield faults of as many frequencies as there should be; those that were read from a table have no dtype."""
    expected = np.asarray(rope.frequencies)
    for width, name in HALVES.items():
        if np.all(np.abs(found - rounded(expected, width)) <= allowed):
            yield "half precision", f"values rounded to {name}"
            return
    narrow = dtype in tables.HALF or (bool(dtype) and bits(found) in HALVES)
    room = np.maximum(allowed, (_NARROW if narrow else 0.0) * np.abs(expected))
    likeness = _name_mistake(found, rope, room, whole_turns=not dtype)
    is_near = bool(np.all(np.abs(found - expected) <= 0.2 * np.abs(expected)))
    if narrow:
        kind = dtype if dtype in tables.HALF else HALVES[bits(found)]
        yield "half precision", f"values in {kind}" + (", computed there" if is_near and not likeness else "")
    if not narrow or likeness or not is_near:
        apart = np.abs(found - expected) / np.where(expected == 0.0, 1.0, np.abs(expected))
        worst = int(np.argmax(apart > 0.5 * np.max(apart)))  # the first of those
        text = likeness or "no known mistake makes them; perhaps uninitialised memory, or another model's"
        yield (
            "frequencies",
            (f"frequencies are not those meant (block {worst}: {found[worst]:.6g}, not {expected[worst]:.6g}): {text}"),
        )


def _name_mistake(found: np.ndarray, rope: Rope, allowed: np.ndarray, *, whole_turns: bool) -> str:
    for mistake in mistakes(rope):
        if mistake.frequencies.shape != found.shape:
            continue
        apart = np.abs(found - mistake.frequencies)
        if whole_turns:  # rows at whole positions do not show them
            apart = np.abs(np.remainder(apart + np.pi, 2.0 * np.pi) - np.pi)
        if np.all(apart <= np.maximum(allowed, ROUNDED * np.abs(mistake.frequencies))):
            return f"they are {mistake.name}"
    what = described(found, np.asarray(rope.frequencies))
    return f"they are {what}" if what else ""


def _describe_width(found: np.ndarray, rope: Rope) -> str:
    meant = rope.n_blocks
    text = f"{found.size} frequencies, for {2 * found.size} features of a head, and {meant} are meant, for {2 * meant}"
    if rope.head_dim is not None and 2 * found.size == rope.head_dim > 2 * meant:
        text += ": the whole head turns, and partial_rotary_factor was left out"
    elif 2 * found.size < 2 * meant == rope.head_dim:
        text += ": a part of the head turns, and the whole is meant"
    what = described(found, np.asarray(rope.frequencies))
    return f"{text} ({what})" if what else text


def _describe_factor(found: float, rope: Rope) -> str:
    meant = rope.attention_factor
    known = {
        "it was left out": 1.0,
        "it was applied twice": meant**2,
        "its root": math.sqrt(meant),
        "its inverse": 1.0 / meant,
    }
    like = next(
        (f": {name}" for name, value in known.items() if value != meant and abs(found / value - 1.0) < 2e-3), ""
    )
    return f"attention factor {found:.6g}, and {meant:.6g} is meant{like}"


def _find_stretched(found: np.ndarray, rope: Rope) -> Rope | None:
    """Return the Rope of a dynamic scheme that a longer text has stretched, as it should; None for anything else."""
    parameters, expected = rope.source.rope_parameters, np.asarray(rope.frequencies)
    if parameters.get("rope_type") != "dynamic" or "alpha" in parameters or not 1 < expected.size == found.size:
        return None
    if not np.all(found > 0.0):
        return None
    stretch = expected[-1] / found[-1]
    ladder = expected * stretch ** (-np.arange(expected.size) / (expected.size - 1.0))
    is_ladder = stretch > 1.0 and np.all(np.abs(found / ladder - 1.0) < 1e-5)
    return replace(rope, frequencies=ladder) if is_ladder else None


def _find_first_off(buffer: Buffer, rope: Rope, context: int | None) -> int | None:
    """Return the first position at which frequencies alone put a cos or sin off by more than 1e-3."""
    factor = rope.attention_factor if buffer.attention_factor is None else buffer.attention_factor
    if buffer.blocks != rope.n_blocks:
        return 0 if abs(factor - rope.attention_factor) > _EXCEEDS else 1
    return tables.first_turn_off(buffer.values, factor, rope, _EXCEEDS, _UNBOUNDED if context is None else context)
