"""Audit of a running model against its config: frequencies, tables, pairing, attention factor."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rfrope._core import array
from rfrope._core.arguments import whole
from rfrope._core.results import Result
from rfrope.data.model_types import known
from rfrope.models import buffers
from rfrope.models.buffers import HALVES, ROUNDED, Buffer, bits, find_buffers
from rfrope.models.configs import from_config, is_config, perceives, read_rope
from rfrope.models.layering import list_layers, show_layers
from rfrope.models.mistakes import describe_difference, describe_factor, describe_width
from rfrope.models.verdicts import EXCEEDS, Finding
from rfrope.rotation.rope import Rope, refuse_polar

_UNBOUNDED = 2**24  # positions to follow frequencies for if there is no context
_TABLES = "the tables of a model are for blocks of two features"
_NUMBER = re.compile(r"\.(\d+)\.")
_SWITCH = "use_rope"  # attribute of attention of Llama 4, SmolLM3 and Mistral Large 4 in transformers
_UNSEEN = "which layers turn{}; rfrope.models.probe runs the model"


@dataclass(frozen=True)
class Audit(Result):
    """Faults found in a running model, and the checks.

    Attributes
    ----------
    findings : tuple of Finding
    checked : tuple of str
        Names of the checks.
    context : int or None
        Number of positions that were required.
    exceeds : int or None
        First position at which a checked cos or sin is off by more than 1e-3 from the exact one, by a fault or by
        rounding to float32; None if there is none within the context, or below 2^24 without a context.
    unchecked : str
        Facts that buffers do not show: which layers rotate, or by which RoPE, if they differ; else "".

    See Also
    --------
    models.audit, models.Finding

    Examples
    --------
    >>> import rfrope
    >>> rope = rfrope.Rope(rfrope.geometric(8), context=64)
    >>> found = rfrope.models.audit(rope.frequencies, rope)
    >>> found.passed, found.findings, found.checked
    (True, (), ('frequencies',))
    """

    findings: tuple[Finding, ...]
    checked: tuple[str, ...]
    context: int | None = None
    exceeds: int | None = None
    unchecked: str = ""
    _also = ("passed",)

    @property
    def passed(self) -> bool:
        """True if nothing is wrong."""
        return not self.findings

    def __str__(self) -> str:
        lines = ["PASSED" if self.passed else "FAILED", f"  checked {', '.join(self.checked)}"]
        lines += [f"  {finding}" for finding in self.findings]
        if self.passed and self.exceeds is not None:
            lines.append(
                f"  rounding alone makes cos and sin wrong by more than {EXCEEDS:g} first at position {self.exceeds}"
            )
        lines += [f"  not checked: {self.unchecked}"] if self.unchecked else []
        return "\n".join(lines)


@array.select_device
def audit(what: Any, rope: Any = None, *, context: int | None = None) -> Audit:
    """Compare the RoPE of a running model with its config, or with a Rope.

    Parameters
    ----------
    what : array, pair of arrays, dict of arrays, or module
        Frequencies ``(D,)`` (``inv_freq``); a pair of cos and sin tables, ``(S, D)``, or ``(S, 2D)`` with every column
        twice; one table ``(S, 2D)``, cos then sin, sin then cos, or alternating, or ``(S, D, 2)``; or a complex table
        ``(S, D)``. A dict maps the usual names to such arrays, like a ``state_dict`` or an open NPZ file. A PyTorch
        module is searched for them. A transformers module is also called for its cos and sin, and for the pairing of
        its own rotation function.
    rope : Rope, frequencies, or config, optional
        The expected Rope; configs as in `from_config`. Default: ``what.config``.
    context : int, optional
        Number of positions that tables must have. Default: the context of `rope`.

    Returns
    -------
    Audit
        With ``passed``, ``findings``, a readable ``str`` and plain data from ``to_dict``.

    Raises
    ------
    ValueError
        If there is nothing to check or nothing to compare with, or frequencies are of several axes or heads. See also
        `from_config`.
    TypeError
        If an array is of another kind. See also `from_config`.

    See Also
    --------
    models.Audit, models.probe, models.compare

    Notes
    -----
    Rounding of frequencies and phases to float32 is not a finding, but ``exceeds`` gives the first position at which it
    costs more than 1e-3. With a config as `rope`, a scheme that depends on the text length may be in its state for a
    short or a long text. If a table has every column twice, their order shows the pairing. Buffers do not show which
    layers rotate, or what they do: `probe` runs a model. If layers differ, the ``use_rope`` switch of attention is
    compared with the config, in models that have one; ``unchecked`` and the text say what is left to `probe`.

    Examples
    --------
    >>> import numpy as np, rfrope
    >>> rope = rfrope.Rope(rfrope.geometric(64), context=4096)
    >>> print(audit(rope.frequencies.astype(np.float32), rope))
    PASSED
      checked frequencies
    >>> print(audit(rope.frequencies.astype(np.float16).astype(np.float32), rope))
    FAILED
      checked frequencies
      frequencies: values rounded to float16; off by more than 0.001 first at position 5
    """
    length = None if context is None else whole("context", context, 1)
    meant = read_expected(what, rope)
    judged = {buffer.name: found for buffer in find_buffers(what) if (found := judge(buffer, meant, length))}
    if not judged:
        raise ValueError("what holds nothing that rope describes; expected a Rope or config of the same model")
    asked = length if length is not None else max((_context(one) or 0 for one in meant), default=0) or None
    switches, seen, unchecked = _check_switches(what, rope)
    faults = [fault for _, found, _ in judged.values() for fault in found]
    exceeds = min((first for *_, first in judged.values() if first is not None), default=None)
    return Audit(merge_shared([*faults, *switches]), (*judged, *seen), asked, exceeds, unchecked)


# -- the expected Ropes ------------------------------------------------------------------------------------------------


def read_expected(what: Any, rope: Any) -> tuple[Rope, ...]:
    """Return the expected Ropes; for schemes that depend on the length, those of a short and of a long text."""
    rope = getattr(what, "config", None) if rope is None else rope
    if rope is None:
        raise ValueError("rope is None, and what has no config; expected a Rope, frequencies, or a config")
    if is_config(rope):
        short = from_config(rope)
        for one in short:
            refuse_polar(one, "rope", _TABLES)
        long = [each for one in short if (context := _context(one)) for each in from_config(rope, seq_len=context)]
        distinct: dict[Any, Rope] = {}
        for one in (*short, *long):
            key = (one.source.model.name, np.asarray(one.frequencies).tobytes(), one.attention_factor)
            distinct.setdefault(key, one)
        return tuple(distinct.values())
    made = read_rope("rope", rope, _TABLES)
    if made.frequencies.ndim != 1:
        raise ValueError(f"rope has frequencies {made.frequencies.shape}; expected (D,): one axis and one head")
    return (made,)


def judge(buffer: Buffer, meant: tuple[Rope, ...], length: int | None) -> tuple[Rope, list[Finding], int | None] | None:
    """Return the Rope that a buffer is most like, its faults, and the first position that is off, or None."""
    found = [(one, *_compare(buffer, one, length)) for one in _candidates(buffer, meant)]
    return min(found, key=lambda result: len(result[1]), default=None)


def _candidates(buffer: Buffer, meant: tuple[Rope, ...]) -> tuple[Rope, ...]:
    """Return the Ropes that a buffer may belong to: those of its kind of layer, or of text or vision, or else all."""
    if meant[0].source.model.pairing_from is None:  # not from a config
        return meant
    turning = [one for one in meant if one.source.rope_parameters["rope_type"] != "axial"]
    alike = [one for one in turning if perceives(buffer.name) == perceives(one.source.model.name)]
    return tuple(one for one in alike if one.source.model.name.endswith(buffer.layer))


def _context(rope: Rope) -> int | None:
    return rope.context if isinstance(rope.context, int) else None


def merge_shared(findings: list[Finding]) -> tuple[Finding, ...]:
    """Return findings, merging those shared by several modules of a model."""
    seen: dict[tuple[str, str], list[Finding]] = {}
    for finding in findings:
        seen.setdefault((finding.kind, finding.text), []).append(finding)
    counted = ((first, len(others)) for first, *others in seen.values())
    return tuple(replace(one, where=f"{one.where} and {more} more") if more else one for one, more in counted)


# -- one buffer against one Rope ---------------------------------------------------------------------------------------


def _compare(buffer: Buffer, rope: Rope, length: int | None) -> tuple[list[Finding], int | None]:
    """Return faults, and the first position that is off by more than 1e-3."""
    if reason := buffer.fault or _describe_garbage(buffer, rope):
        return [Finding("uninitialised", buffer.name, reason, 0)], 0
    context = _context(rope) if length is None else length
    reading = buffers.read(buffer, rope) if buffer.is_table else None
    stretched = _find_stretched(buffer.values if reading is None else reading.frequencies, rope)
    first = buffers.first_off(buffer, stretched or rope, EXCEEDS, _UNBOUNDED if context is None else context)
    if reading is None:
        faults = _check_frequencies(buffer, rope, is_stretched=stretched is not None)
    else:
        faults = _check_table(buffer, rope, reading, context, is_stretched=stretched is not None)
    return [Finding(kind, buffer.name, text, first) for kind, text in faults], first


def _find_stretched(found: np.ndarray, rope: Rope) -> Rope | None:
    """Return the Rope of a dynamic scheme correctly stretched by a longer text; otherwise None."""
    parameters, expected = rope.source.rope_parameters, np.asarray(rope.frequencies)
    if parameters.get("rope_type") != "dynamic" or "alpha" in parameters or not 1 < expected.size == found.size:
        return None
    if not np.all(found > 0.0) or found[-1] >= expected[-1]:
        return None
    ladder = expected * (expected[-1] / found[-1]) ** (-np.arange(expected.size) / (expected.size - 1.0))
    return replace(rope, frequencies=ladder) if np.all(np.abs(found / ladder - 1.0) < 1e-5) else None


def _describe_garbage(buffer: Buffer, rope: Rope) -> str:
    """Return the evidence that values are uninitialised memory, or ""."""
    values = buffer.values
    if not np.all(np.isfinite(values)):
        return f"{int(np.sum(~np.isfinite(values)))} of {values.size} values are not finite: uninitialised memory"
    still = np.abs(np.asarray(rope.frequencies)) <= buffers.TINY
    if not np.any(values) and (buffer.is_table or not np.all(still)):
        return "all values are 0: uninitialised, as after loading a model that was made on the meta device"
    size = np.abs(values[values != 0.0])
    tiny = (values != 0.0) & (np.abs(values) < 1e-30)  # exports write such values for unrotated blocks
    is_meant = bool(np.any(still)) if buffer.blocks != rope.n_blocks else not np.any(tiny & ~still)
    if size.size and (np.max(size) > 1e12 or (np.any(tiny) and not is_meant)):
        return f"values from {np.min(size):.3g} to {np.max(size):.3g}: uninitialised memory"
    return ""


def _check_frequencies(buffer: Buffer, rope: Rope, *, is_stretched: bool) -> Iterator[tuple[str, str]]:
    expected, found = np.asarray(rope.frequencies), buffer.values
    allowed = ROUNDED * np.abs(expected) + buffers.TINY
    if buffer.blocks != rope.n_blocks:
        yield "width", describe_width(found, rope)
    elif not is_stretched and np.any(np.abs(found - expected) > allowed):
        yield from describe_difference(found, rope, allowed, buffer.dtype)
    factor = buffer.attention_factor
    if factor is not None and abs(factor / rope.attention_factor - 1.0) > 1e-6:
        yield "attention factor", describe_factor(factor, rope)


def _check_table(
    buffer: Buffer, rope: Rope, reading: buffers.TableEstimate, context: int | None, *, is_stretched: bool
) -> Iterator[tuple[str, str]]:
    noise, length = buffers.noise(buffer), len(buffer.values)
    if noise > buffers.FINE:
        yield "half precision", f"a table in {HALVES[bits(buffer.values, buffer.dtype)]}"
    if reading.spread > 8.0 * noise:
        yield "uninitialised", "cos^2 + sin^2 is not the same everywhere: uninitialised or overwritten"
        return
    if abs(reading.factor / rope.attention_factor - 1.0) > 4.0 * noise:
        yield "attention factor", describe_factor(reading.factor, rope)
    yield from _check_rows(buffer, rope, reading, noise, is_stretched=is_stretched)
    if context is not None and 1 < length < context:
        yield "too short", f"the table ends after {length} positions, and the context is {context}"
    if None not in (buffer.pairing, rope.pairing) and buffer.pairing != rope.pairing:
        yield "pairing", f"its columns are ordered for pairing {buffer.pairing!r}, expected {rope.pairing!r}"


def _check_rows(
    buffer: Buffer, rope: Rope, reading: buffers.TableEstimate, noise: float, *, is_stretched: bool
) -> Iterator[tuple[str, str]]:
    """Yield faults of a table's frequencies, or otherwise of single rows."""
    if len(buffer.values) == 1:
        if np.any(np.abs(buffer.rows(0) / reading.factor - 1.0) > 8.0 * noise):
            yield "rows", "the only row is not that of position 0"
        yield "too short", "the table has only one row, which does not determine frequencies"
    elif buffer.blocks != rope.n_blocks:
        yield "width", describe_width(reading.frequencies, rope)
    elif reading.start:
        yield "rows", f"the first row is not that of position 0, but of position {reading.start}"
    elif not is_stretched and np.any(np.abs(reading.frequencies - np.asarray(rope.frequencies)) > reading.allowed):
        yield from describe_difference(reading.frequencies, rope, reading.allowed, "")
    elif unlike := buffers.rows_unlike(buffer, reading, noise):
        yield unlike


# -- layers that rotate ------------------------------------------------------------------------------------------------


def _check_switches(what: Any, config: Any) -> tuple[list[Finding], list[str], str]:
    """Return faults of switches, what was checked, and a description of what the config says and was not checked.

    Switches say which layers rotate, and by flags latent attention chooses its pairing.
    """
    config = getattr(what, "config", None) if config is None else config
    if not is_config(config) or not hasattr(what, "named_modules"):
        return [], [], ""
    layers = list_layers(config)
    meant, ropes = layers.ropes_by_layer, [*layers.ropes.values()]
    parts = {path: (int(at[1]), part) for path, part in what.named_modules() if (at := _NUMBER.search(f".{path}."))}
    faults, seen, unseen = [], [], ""
    latent = [one for one in ropes if one.source.model.turns_last][:1]
    for rope in latent if latent and latent[0].pairing is not None else ():
        key = known(rope.source.model.model_type).get("pairing_by", {}).get("key", "")
        held = {path: getattr(getattr(part, "config", None), key, None) for path, (_, part) in parts.items()}
        flags = {path: flag for path, flag in held.items() if isinstance(flag, bool)}
        wrong = [path for path, flag in flags.items() if ("interleaved" if flag else "half") != rope.pairing]
        text = f"and the config says {rope.pairing!r}"
        faults += [Finding("pairing", path, f"{key} is {flags[path]}, {text}") for path in wrong[:1]]
        seen += [key] if flags else []
        unseen = "" if flags else "the pairing of latent attention; rfrope.models.probe runs the model"
    switches = {  # of each attention layer, but for vision and audio parts
        i: bool(value)
        for path, (i, part) in parts.items()
        if isinstance(value := vars(part).get(_SWITCH), bool | int | np.integer) and not perceives(path)
    }
    if meant is not None:
        said = {True: "on in {}, where the config has no RoPE", False: "off in {}, where the config has RoPE"}
        for turns, words in said.items():
            odd = [i for i in sorted(switches) if i < len(meant) and switches[i] == turns != (meant[i] is not None)]
            faults += [Finding("layers", _SWITCH, words.format(show_layers(tuple(odd))))] if odd else []
        seen += [_SWITCH] if switches else []
        unseen = _UNSEEN.format("") if None in meant and {*range(len(meant))} - switches.keys() else unseen
    return faults, seen, _UNSEEN.format(" by which RoPE") if len(ropes) > 1 else unseen
