"""Rotations read from measurements, and their differences from the expected Rope."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from rfrope._core.results import Result
from rfrope.models.auditing import Finding
from rfrope.models.mistakes import describe_dealing, describe_difference, describe_factor, describe_width
from rfrope.models.probing.measurements import Box, Phases, read_phases, usual_length
from rfrope.models.probing.positions import Positions
from rfrope.models.tables import HALVES, ROUNDED, TINY, bits
from rfrope.rotation.rope import Rope


@dataclass(frozen=True, eq=False)
class Rotation(Result):
    """A rotation as measured from outside.

    Attributes
    ----------
    name : str
        "apply", or the path of the layer.
    pairing : {"half", "interleaved", "other"} or None
        None if nothing rotates.
    rotary_dim : int
        Number of rotated features of a head, including unrotated ones between them.
    first : int
        The first of them.
    frequencies : ndarray
        Radians per position, ``(D,)``, or ``(D, k)`` for k axes of positions, of the first head that rotates. Whole
        positions determine them only up to whole turns.
    frequency_error : ndarray, (D,)
        Largest error of the measured frequencies, by rounding.
    attention_factor : dict
        By side ("queries" and "keys", or "scores"), the length of a unit vector after rotation.
    factor_of_rest : dict
        The same for unrotated features, if there are any.
    turning_heads : dict
        By side, one bool for each head.
    exceeds : int or None
        First measured position at which a cos or sin is off by more than 1e-3 from the expected one, or if none is
        expected, from exact phases of `frequencies`.
    head_dim : int
        Width of a head; 0 if unknown.
    sets_differ : bool
        Whether frequencies differ between heads, or between queries and keys.

    See Also
    --------
    models.probe, models.Probe

    Examples
    --------
    >>> import rfrope
    >>> rope = rfrope.Rope(rfrope.geometric(8), pairing="half")
    >>> found = rfrope.models.probe(lambda q, k, at: tuple(rope.rotate(x, at[:, None]) for x in (q, k)), head_dim=16)
    >>> found.rotations[0].rotary_dim, found.rotations[0].pairing
    (16, 'half')
    """

    name: str
    pairing: str | None
    rotary_dim: int
    first: int
    frequencies: np.ndarray
    frequency_error: np.ndarray
    attention_factor: dict[str, float]
    factor_of_rest: dict[str, float]
    turning_heads: dict[str, tuple[bool, ...]]
    exceeds: int | None
    head_dim: int = 0
    sets_differ: bool = False

    def __str__(self) -> str:
        if self.pairing is None:
            return f"{self.name}: does not turn"
        factors = ", ".join(f"{side} x {value:.5g}" for side, value in self.attention_factor.items())
        first = f" from {self.first}" if self.first else ""
        waves = np.abs(self.frequencies[self.frequencies != 0.0])
        span = f", {waves.max():.4g} to {waves.min():.4g}" if waves.size else ""
        return (
            f"{self.name}: pairing {self.pairing!r}, {self.rotary_dim} features{first}, {len(self.frequencies)} "
            f"frequencies{span}; {factors}"
        )


class Reading:
    """A box as a rotation, with the expected Rope, or none."""

    def __init__(self, box: Box, rope: Rope | None, must_turn: bool | None) -> None:
        self.box, self.rope, self.must_turn = box, rope, must_turn
        self.narrow: dict[str, str] = {}  # by side, the half-precision dtype of cos and sin
        self.phases: dict[str, Phases] = {}  # by side, if it rotates
        self.noise = box.noise  # rounding error of cos and sin

    def finding(self, kind: str, text: str, position: int | None = None) -> Finding:
        """Return a fault of this box."""
        return Finding(kind, self.box.name, text, position)

    def measure(self) -> None:
        """Read precision and phases, from finite blocks."""
        box = self.box
        turning = {name: one for name, one in box.sides.items() if one.turning and one.z.size}
        values = {name: np.stack([one.z.real, one.z.imag]) for name, one in turning.items()}
        widths = (
            {name: bits(each[np.abs(each) > 0.0]) for name, each in values.items()}
            if box.dtype in ("float32", "float64")
            else {}
        )
        self.narrow = {name: HALVES[width] for name, width in widths.items() if width in HALVES}
        self.noise = 2.0 ** -min(widths[name] for name in self.narrow) if self.narrow else box.noise
        for name, side in box.sides.items():
            if side.turning and side.z.size:
                z = side.z[0] / np.array([usual_length(one) for one in side.z[0]])[:, None, None]
                self.phases[name] = read_phases(z, box.positions[0], self.noise)

    def read_positions(self, name: str, head: int) -> Positions:
        """Return the positions by which the tokens of one head of a side are rotated."""
        found, meant = self.phases[name], [] if self.rope is None else [total(self.rope, head)]
        ladders = [one for one in meant if len(one) == found.frequencies.shape[1]]
        return Positions(self.box, name, head, found, self.noise, ladders)

    def turning_heads(self) -> list[tuple[str, int]]:
        """Return the side and number of every head that rotates."""
        return [(name, head) for name in self.phases for head in self.box.sides[name].turning]

    def read_axes(self, name: str, head: int) -> np.ndarray | None:
        """Return frequencies ``(D, k)`` of a head along each axis; None if positions have one axis."""
        along = self.box.sides[name].along
        rows = [z[head][None] / usual_length(z[head]) for z in along]
        if len(rows) < 2:
            return None
        return np.stack([read_phases(z, self.box.positions[0], self.noise).frequencies[0] for z in rows], axis=-1)

    def has_sets(self) -> bool:
        """Return whether each head should have its own frequencies."""
        return self.rope is not None and self.rope.vectors.ndim == 3

    def rotation(self) -> Rotation:
        """Return the rotation of the box."""
        box, one = self.box, self.box.structure()
        factors: dict[str, float] = {}
        rest: dict[str, float] = {}
        for name, side in box.sides.items():
            z = side.z[0][side.turning] if side.turning else np.zeros(0)
            left = side.structures[side.head].rest if side.structures else None
            rest |= {} if left is None else {name: left}
            factors |= {name: usual_length(z)} if z.size and np.all(np.isfinite(z)) else {}
        frequencies = error = np.zeros(one.first.size)
        exceeds = None
        if self.phases:
            name, found = next(iter(self.phases.items()))
            head = box.sides[name].head
            frequencies, error = found.frequencies[head], found.allowed[head]
            fits = self.rope is not None and len(total(self.rope)) == frequencies.size
            exceeds = self.box.find_first_off(name, total(self.rope) if fits and self.rope else frequencies, head)
            along = self.read_axes(name, head)
            frequencies = frequencies if along is None else along
        turning = {name: tuple(one.pairing is not None for one in side.structures) for name, side in box.sides.items()}
        read = [(p.frequencies[h], p.allowed[h]) for name, p in self.phases.items() for h in box.sides[name].turning]
        differ = any(np.any(np.abs(values - read[0][0]) > room + read[0][1]) for values, room in read)
        about = (box.name, one.pairing, 2 * one.first.size, one.start)
        return Rotation(*about, frequencies, error, factors, rest, turning, exceeds, box.width, differ)

    # -- comparison with the expected Rope -----------------------------------------------------------------------------

    def compare(self, rope: Rope) -> Iterator[Finding]:
        """Yield differences in pairing, width, frequencies, axes and factors from a Rope."""
        one = self.box.structure()
        if rope.pairing and one.pairing != rope.pairing and one.first.size > 1:
            yield self.finding("pairing", f"it turns by pairing {one.pairing!r}, expected {rope.pairing!r}")
            if one.pairing == "other":  # its blocks have no order to compare
                return
        turns_last = rope.source.model.turns_last
        start = self.box.width - rope.rotary_dim if turns_last else 0
        if one.start != start and rope.rotary_dim < self.box.width:
            yield self.finding("width", f"features from {one.start} on turn, expected those from {start} on")
        yield from self._compare_frequencies(rope)
        yield from self._compare_factors(rope)

    def _compare_frequencies(self, rope: Rope) -> Iterator[Finding]:
        seen: dict[tuple[str, str], list[tuple[str, int | None]]] = {}
        for name, head in self.turning_heads():
            wanted, found = total(rope, head), self.phases[name]
            width = found.frequencies.shape[1]
            values, allowed = found.frequencies[head], found.allowed[head]
            if width < wanted.size and not np.any(np.abs(wanted[width:]) > TINY):
                values, allowed = (np.pad(each, (0, wanted.size - width)) for each in (values, allowed))
            if values.size != wanted.size:
                faults = [("width", describe_width(values, _flat(rope, wanted)))]
            else:
                room = allowed + ROUNDED * np.abs(wanted) + TINY
                turned = np.remainder(values - wanted + np.pi, 2.0 * np.pi) - np.pi
                is_off = bool(np.any(np.abs(turned) > room))
                faults = [*describe_difference(values, _flat(rope, wanted), room, "")] if is_off else []
            for fault in faults:
                first = self.box.find_first_off(name, wanted, head) if wanted.size == width else None
                seen.setdefault(fault, []).append((name, first))
        for (kind, text), places in seen.items():
            names = {name for name, _ in places}
            whose = "" if len(names) == len(self.phases) else f"{' and '.join(names)}: "
            yield self.finding(kind, f"{whose}{text}", places[0][1])
        if not seen:
            yield from self.compare_axes(rope)

    def compare_axes(self, rope: Rope | None) -> Iterator[Finding]:
        """Yield axes by which no block of a head rotates, and blocks that rotate along the wrong axis."""
        for name, head in self.turning_heads():
            if (found := self.read_axes(name, head)) is None:
                return
            vectors = None if rope is None else np.asarray(rope.vectors, dtype=np.float64)
            wanted = vectors[head % len(vectors)] if vectors is not None and vectors.ndim == 3 else vectors
            if wanted is not None and wanted.shape == found.shape:
                room = 0.01 * np.max(np.abs(wanted), axis=1, keepdims=True)
                if np.all(np.abs(found - wanted) <= room):
                    continue
            elif rope is not None:
                wanted = None
            turning = [one.frequencies[one.frequencies != 0.0] for one in self.phases.values()]
            slowest = min(float(np.min(np.abs(one), initial=1.0)) for one in turning)
            used = np.any(np.abs(found) > 1e-3 * slowest, axis=0)
            if not np.all(used):
                unused = ", ".join(str(axis) for axis in np.flatnonzero(~used))
                text = f"positions along axes {unused} are given and never used"
            elif wanted is None or rope is None:
                continue
            else:
                text = describe_dealing(found, wanted, room, rope)
            is_first = (name, head) == self.turning_heads()[0]
            yield self.finding("sections", text if is_first else f"{name}, head {head}: {text}")
            return

    def _compare_factors(self, rope: Rope) -> Iterator[Finding]:
        meant, rotation = rope.attention_factor, self.rotation()
        found, room = rotation.attention_factor, 8.0 * self.noise
        if "scores" in found:
            if abs(found["scores"] / meant**2 - 1.0) > room:
                text = describe_factor(float(np.sqrt(found["scores"])), rope)
                yield self.finding("attention factor", f"{text} (by the root of that of scores)")
            return
        off = {name: abs(value / meant - 1.0) > room for name, value in found.items()}
        if not any(off.values()):
            return
        wrong = next(name for name, is_off in off.items() if is_off)
        text = describe_factor(found[wrong], rope)
        if not all(off.values()):
            other = next(name for name in off if name != wrong)
            text = f"{other} alone have the factor {meant:.6g}; {wrong}: {text}"
        elif abs(found["queries"] * found["keys"] / meant**2 - 1.0) <= room:
            text = (
                f"queries have {found['queries']:.6g} and keys {found['keys']:.6g}; only their product is the one meant"
            )
        rest = rotation.factor_of_rest.get(wrong, 1.0)
        if abs(rest - 1.0) > room:
            text += "; features that do not turn have it, too: it multiplies scores"
        yield self.finding("attention factor", text)


def total(rope: Rope, head: int = 0) -> np.ndarray:
    """Return frequencies for positions that are equal on all axes."""
    if rope.sections is not None:
        return np.asarray(rope.frequencies, dtype=np.float64)
    vectors = np.asarray(rope.vectors, dtype=np.float64)
    if vectors.ndim == 3:
        vectors = vectors[head % len(vectors)]
    return np.asarray(vectors if vectors.ndim == 1 else vectors.sum(axis=-1))


def _flat(rope: Rope, frequencies: np.ndarray) -> Rope:
    """Return a Rope with one axis and one head, and the same source."""
    return replace(rope, frequencies=frequencies, sections=None, interleaved=False)
