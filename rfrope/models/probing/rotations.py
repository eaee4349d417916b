"""Rotations and positions read from measurements."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np

from rfrope._core.results import Result
from rfrope.models.buffers import find_rounding
from rfrope.models.probing.measurements import EXCEEDS, Box, Head, choose_single, find_places, read_phases
from rfrope.rotation.rope import Rope

Fault: TypeAlias = tuple[str, str, int | None]  # kind, text, position


def find_count(head: Head) -> str:
    """Return what tokens are counted by instead of their positions, or ""."""
    first, own = head.box.positions
    ways = {
        "positions are not used; the place in the sequence is": np.arange(len(own)),
        "positions of the first row of the batch are used for all rows": first,
        "positions are counted from that of the first token": own - own[0],
        "positions are sorted first": np.sort(own),
        "positions are in the reverse order": own[::-1],
        "tokens turn by the position of the one before them": np.roll(own, 1),
        "tokens turn by the position of the one after them": np.roll(own, -1),
    }
    z = head.z[1] / head.size
    fitting = (text for text, at in ways.items() if {0, 1} <= {*at.tolist()} and read_phases(z, at, head.noise).is_like)
    return next(fitting, "")


def judge_positions(head: Head, meant: list[np.ndarray]) -> Iterator[Fault]:
    """Yield what is wrong with the positions of a head, which may be meant to have given frequencies (D,)."""
    z, phases = head.z / head.size, head.phases
    if head.side != "scores" and np.max(np.abs(z[0] - z[0, :1])) <= 8.0 * head.noise:
        alike = [one for one in head.box.turning if one.side == head.side]
        turned = np.array([np.angle(one.z[0, 0]) for one in alike])
        by_head = np.outer([one.number for one in alike], turned[0] / max(1, alike[0].number))
        counts = len(alike) > 1 and np.max(np.abs(np.exp(1j * turned) - np.exp(1j * by_head))) < 0.01
        what = "heads count as positions: the table is used along the wrong axis"
        yield "positions", what if counts else "the rotation is the same at all positions", 0
        return
    wanted, room = phases.turn(head.box.positions[1], head.noise)
    if phases.is_like and np.all(np.abs(z[1] - np.exp(1j * wanted)) <= room):
        if np.max(np.abs(phases.start)) > 8.0 * head.noise:
            yield _find_others(head, 0)
    elif text := find_count(head):
        yield "positions", text, None
    elif not phases.is_like and (fault := _find_rounding(head, meant)):
        yield fault
    else:
        yield _find_others(head, int(phases.is_like))  # the first row, unless it is right


def _find_rounding(head: Head, meant: list[np.ndarray]) -> Fault | None:
    """Return a fault for positions or phases in half precision, or None."""
    at, z = head.box.positions[0], head.z[0] / head.size
    room = 8.0 * head.noise + 2.0**-20 * at[:, None]
    for omega in [head.phases.frequencies, *meant]:
        off = np.abs(z - np.exp(1j * np.multiply.outer(at, omega))) > room
        if text := find_rounding(z, at, omega, room, off):
            return "half precision", text, head.find_first_off(omega)
    return None


def _find_others(head: Head, row: int) -> Fault:
    """Return a fault with the other positions by which the tokens of a row are rotated."""
    at, context, omega = head.box.positions[row], head.box.context, head.phases.frequencies
    places, near = find_places(head.z[row] / head.size, omega, 1 - context, context)
    wrong, whose = (places != at) & near, "the second row of the batch turns" if row else "they turn"
    if not np.any(wrong) or np.mean(near) < 0.5:
        off = np.max(np.abs(head.z[row] / head.size - np.exp(1j * head.phases.turn(at, 0.0)[0])), axis=1) > EXCEEDS
        first = int(np.min(at[off], initial=at.max()))
        return "rows", f"phases are not proportional to positions, first at {first}", first
    shifts = (places - at)[near]
    if np.all(shifts == shifts[0]):
        shift = int(shifts[0])
        text = f"{whose} by positions that are {abs(shift)} {'more' if shift > 0 else 'less'} than those given"
        moves = np.max(np.abs(head.again - head.z)) > 16.0 * head.noise * head.size
        since = ", and by others at the next call: tokens of earlier calls are counted" if moves else ""
        return "positions", text + since, None if row else 0
    first = int(at[wrong].min())
    turns_as = int(places[at == first][0])
    if np.all(places[near & (at >= first)] == first - 1) and first < at.max():
        return "too short", f"the table ends: from {first} on all positions turn as {first - 1} does", first
    if turns_as < first and np.all(places[near] == at[near] % (first - turns_as)):
        return "positions", f"positions begin again at {first - turns_as}", first
    return "positions", f"position {first} turns as position {turns_as} does", first


def judge_single(head: Head) -> Iterator[Fault]:
    """Yield what is wrong with positions in calls with one token per row."""
    context, given = head.box.context, choose_single(head.box.context)
    z = head.single / np.maximum(np.abs(head.single), 1e-30)
    phases, room = head.phases.turn(given, 0.01 + 8.0 * head.noise)
    off = np.abs(z - np.exp(1j * phases))
    if np.all(off <= room):
        return
    if np.all(off[0] <= room[0]) and np.max(np.abs(z[1] - z[0])) <= 0.01:
        yield "state", "a call turns by the positions of the one before, which had as many tokens", None
        return
    places, near = find_places(z.reshape(-1, z.shape[-1]), head.phases.frequencies, 1 - context, 2 * context)
    row = int(np.argmax(places != given.ravel()))
    what = f"a token at {given.ravel()[row]} turns as position {places[row]} does"
    yield "positions", f"alone in its call, {what if np.all(near) else 'a token turns by no position'}", None


def find_exchanged(box: Box) -> str:
    """Return which heads or rows are exchanged, or use key heads of another group, or ""; lengths differ by head."""
    for head in box.turning if box.kv_heads else ():
        count = sum(one.side == head.side for one in box.heads)
        in_group = box.kv_heads if head.side == "scores" else count
        own, h = head.number * in_group // count, head.number
        for row, z in enumerate(head.single[0]):
            length, wanted = (np.median(np.abs(z)) or 1.0) / head.size, row * in_group + own
            other, found = divmod(round(length) - 1, in_group)
            if abs(length / (1.0 + wanted) - 1.0) <= 0.01 + 8.0 * box.noise:
                continue
            if not 0 <= other < len(head.single[0]) or abs(length - round(length)) > 0.1:
                return f"{head.side}: head {h} has another length where heads differ"
            if head.side == "scores" and other == row:
                return f"query head {h} meets key head {found}, and {own} is that of its group"
            return f"{head.side}: head {h} of row {row} of the batch comes from head {found} of row {other}"
    return ""


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
        True if frequencies differ between heads, or between queries and keys.

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
    pairing: str | None = None
    rotary_dim: int = 0
    first: int = 0
    frequencies: np.ndarray = field(default_factory=lambda: np.zeros(0))
    frequency_error: np.ndarray = field(default_factory=lambda: np.zeros(0))
    attention_factor: dict[str, float] = field(default_factory=dict)
    factor_of_rest: dict[str, float] = field(default_factory=dict)
    turning_heads: dict[str, tuple[bool, ...]] = field(default_factory=dict)
    exceeds: int | None = None
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


def read_rotation(box: Box, rope: Rope | None, *, is_sound: bool) -> Rotation:
    """Return the rotation of a box, by an expected Rope or by none; without frequencies if values are not sound."""
    pairs, sides = box.pairs, dict.fromkeys(head.side for head in box.heads)
    turning = {side: tuple(each.pairs.pairing is not None for each in box.heads if each.side == side) for side in sides}
    rest = {each.side: each.pairs.rest for each in [*box.heads[::-1], *box.turning[::-1]]}
    rest_of = {side: one for side in sides if (one := rest[side]) is not None}
    still = np.zeros(pairs.first.size)
    found = Rotation(
        box.name, pairs.pairing, 2 * still.size, pairs.start, still, still, {}, rest_of, turning, head_dim=box.width
    )
    if not (is_sound and box.turning and pairs.first.size):
        return found
    first, factors = box.turning[0], {}
    for side in dict.fromkeys(each.side for each in box.turning):
        factors[side] = float(np.median(np.abs([each.z[0] for each in box.turning if each.side == side])))
    read = first.phases
    meant = read.frequencies if rope is None else total(rope)
    return replace(
        found,
        frequencies=read.frequencies if first.vectors is None else first.vectors,
        frequency_error=read.allowed,
        attention_factor=factors,
        exceeds=first.find_first_off(meant if meant.shape == read.frequencies.shape else read.frequencies),
        sets_differ=not all(each.phases.is_near(read) for each in box.turning),
    )


def total(rope: Rope, head: int = 0) -> np.ndarray:
    """Return frequencies for positions that are equal on all axes."""
    if rope.sections is not None:
        return np.asarray(rope.frequencies, dtype=np.float64)
    vectors = np.asarray(rope.vectors, dtype=np.float64)
    if vectors.ndim == 3:
        vectors = vectors[head % len(vectors)]
    return np.asarray(vectors if vectors.ndim == 1 else vectors.sum(axis=-1))
