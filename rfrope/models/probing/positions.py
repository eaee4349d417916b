"""Tokens rotated by positions other than their own, and phases that belong to no position."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from rfrope.models.probing.measurements import (
    EXCEEDS,
    Box,
    Phases,
    choose_single,
    find_places,
    read_phases,
    usual_length,
)
from rfrope.models.tables import HALVES, rounded

Fault: TypeAlias = tuple[str, str, int | None]  # kind, text, position


@dataclass(frozen=True, eq=False)
class Positions:
    """Positions by which the tokens of a head are rotated, from its blocks and its frequencies."""

    box: Box
    side: str
    head: int
    phases: Phases
    noise: float  # rounding error of cos and sin
    meant: list[np.ndarray]  # expected frequencies (D,), if known

    @property
    def frequencies(self) -> np.ndarray:
        """Frequencies of the head."""
        return np.asarray(self.phases.frequencies[self.head])

    def describe(self) -> Fault | None:
        """Return what is wrong with positions, or None."""
        side = self.box.sides[self.side]
        z, own = side.z[0][side.turning], side.z[0][[self.head]]
        if self.side != "scores" and all(self._is_constant(each) for each in (own, z)):  # one head is examined first
            phases = np.angle(z[:, 0])
            by_head = np.exp(1j * np.outer(side.turning, phases[0] / max(1, side.turning[0])))
            is_by_head = len(phases) > 1 and np.max(np.abs(np.exp(1j * phases) - by_head)) < 0.01
            what = "heads count as positions: the table goes with the wrong axis" if is_by_head else ""
            return "positions", what or "the rotation is the same at all positions", 0
        if self.phases.is_like[self.head] and self._is_own_row():
            return self._find_shift()
        if text := self.find_count():
            return "positions", text, None
        return (None if self.phases.is_like[self.head] else self._find_rounding()) or self._find_others()

    def _is_constant(self, z: np.ndarray) -> bool:
        """Return whether blocks ``(H, T, D)`` are rotated by the same angles at all positions."""
        return bool(np.max(np.abs(z - z[:, :1])) <= 8.0 * self.noise * np.max(np.abs(z)))

    def describe_single(self) -> Fault | None:
        """Return what is wrong with positions in calls with one token per row, or None."""
        side, context, given = self.box.sides[self.side], self.box.context, choose_single(self.box.context)
        z = side.single[:, :, self.head]
        z = z / np.maximum(np.abs(z), 1e-30)
        phases = given[..., None] * self.frequencies + self.phases.start[self.head]
        room = 0.01 + 8.0 * self.noise + 2.0**-20 * np.abs(phases) + given[..., None] * self.phases.allowed[self.head]
        if np.all(np.abs(z - np.exp(1j * phases)) <= room):
            return None
        if np.max(np.abs(z[0] - np.exp(1j * phases[0]))) <= np.max(room) and np.max(np.abs(z[1] - z[0])) <= 0.01:
            return "state", "a call turns by the positions of the one before, which had as many tokens", None
        places, near = find_places(z.reshape(-1, z.shape[-1]), self.frequencies, 1 - context, 2 * context)
        row = int(np.argmax(places != given.ravel()))
        if not np.all(near):
            return "positions", "a token that is alone in its call turns by no position", None
        return (
            "positions",
            f"alone in its call, a token at {given.ravel()[row]} turns as position {places[row]} does",
            None,
        )

    def find_count(self) -> str:
        """Return what tokens are counted by instead of their positions, or ""."""
        own = self.box.positions[1]
        ways = {
            "positions are not used, but the place in the sequence": np.arange(len(own)),
            "positions of the first row of the batch are used for all rows": self.box.positions[0],
            "positions are counted from that of the first token": own - own[0],
            "positions are sorted first": np.sort(own),
            "positions are in the reverse order": own[::-1],
            "tokens turn by the position of the one before them": np.roll(own, 1),
            "tokens turn by the position of the one after them": np.roll(own, -1),
        }
        z = self.box.unit(self.side, 1, self.head)[None]
        fitting = (
            text for text, at in ways.items() if {0, 1} <= {*at.tolist()} and read_phases(z, at, self.noise).is_like[0]
        )
        return next(fitting, "")

    def _is_own_row(self) -> bool:
        """Return whether the second row is rotated by its own positions."""
        at = self.box.positions[1][:, None]
        phases = at * self.frequencies + self.phases.start[self.head]
        room = 8.0 * self.noise + 2.0**-20 * np.abs(phases) + at * self.phases.allowed[self.head]
        return bool(np.all(np.abs(self.box.unit(self.side, 1, self.head) - np.exp(1j * phases)) <= room))

    def _find_shift(self) -> Fault | None:
        """Return a fault for positions counted from another start, or None."""
        start = self.phases.start[self.head]
        if np.max(np.abs(start)) <= 8.0 * self.noise:
            return None
        context = self.box.context
        (shift,), (is_near,) = find_places(np.exp(1j * start)[None], self.frequencies, 1 - context, context)
        if not is_near:
            return "positions", f"phases at position 0 are not 0, but up to {np.max(np.abs(start)):.3g} radians", 0
        return self._name_shift(int(shift))

    def _name_shift(self, shift: int) -> Fault:
        side = self.box.sides[self.side]
        moves = np.max(np.abs(side.again - side.z)) > 16.0 * self.noise * np.max(np.abs(side.z))
        since = ", and by others at the next call: tokens of earlier calls are counted" if moves else ""
        return "positions", f"they turn by positions that are {_describe_shift(shift)} than those given{since}", 0

    def _find_rounding(self) -> Fault | None:
        """Return a fault for positions or phases in half precision, or None."""
        at, z = self.box.positions[0].astype(float), self.box.unit(self.side, 0, self.head)
        room = 8.0 * self.noise + 2.0**-20 * at[:, None]
        for omega, (width, half) in itertools.product([self.frequencies, *self.meant], HALVES.items()):
            phases = at[:, None] * omega
            with np.errstate(over="ignore", invalid="ignore"):  # float16 overflows at 65504
                places = rounded(at, width)
                off = np.abs(z - np.exp(1j * places[:, None] * omega))
                apart = np.abs(z - np.exp(1j * np.sign(phases) * rounded(np.abs(phases), width)))
            if np.all(off <= room):
                return "half precision", f"positions rounded to {half}", int(at[places != at].min())
            if np.all(apart <= room + np.abs(phases) * 2.0**-width) and np.mean(apart <= room) > 0.95:
                first = self.box.find_first_off(self.side, omega, self.head)
                return "half precision", f"phases rounded to {half}", first
        return None

    def _find_others(self) -> Fault:
        """Return a fault with the other positions by which tokens are rotated."""
        row = int(self.phases.is_like[self.head])  # the first row, unless it is right
        at, context = self.box.positions[row], self.box.context
        places, near = find_places(self.box.unit(self.side, row, self.head), self.frequencies, 1 - context, context)
        wrong = (places != at) & near
        if not np.any(wrong) or np.mean(near) < 0.5:
            if row:
                return "positions", "the second row of the batch turns by other positions than its own", None
            far = at[self.phases.off[self.head] > EXCEEDS]
            first = int(far.min()) if far.size else int(at.max())
            return "rows", f"phases are not proportional to positions, first at {first}", first
        shifts = (places - at)[near]
        if row and np.all(shifts == shifts[0]):
            return (
                "positions",
                f"the second row of the batch turns by positions that are {_describe_shift(shifts[0])} than its own",
                None,
            )
        if np.all(shifts == shifts[0]):
            return self._name_shift(int(shifts[0]))
        first = int(at[wrong].min())
        turns_as = int(places[at == first][0])
        if np.all(places[near & (at >= first)] == first - 1) and first < at.max():
            return "too short", f"the table ends: from {first} on all positions turn as {first - 1} does", first
        if turns_as < first and np.all(places[near] == at[near] % (first - turns_as)):
            return "positions", f"positions begin again at {first - turns_as}", first
        return "positions", f"position {first} turns as position {turns_as} does", first


def _describe_shift(shift: int) -> str:
    return f"{shift} more" if shift > 0 else f"{-shift} less"


def find_exchanged(box: Box) -> str:
    """Return which heads or rows are exchanged, or use key heads of another group, or ""."""
    for name, side in box.sides.items():
        if not side.turning or not side.single.size or not box.kv_heads:
            continue
        rows, heads = side.single.shape[1:3]
        in_group = box.kv_heads if name == "scores" else heads
        for row, h in itertools.product(range(rows), side.turning):
            size = usual_length(side.single[0, row, h]) / usual_length(side.z[0, h])
            own, wanted = h * in_group // heads, row * in_group + h * in_group // heads
            found = round(size) - 1
            if found == wanted or abs(size / (1.0 + wanted) - 1.0) <= 0.01 + 8.0 * box.noise:
                continue
            if not 0 <= found < rows * in_group or abs(size - 1.0 - found) > 0.1:
                return f"{name}: head {h} has another length where heads differ"
            if name == "scores" and found // in_group == row:
                return f"query head {h} meets key head {found % in_group}, and {own} is that of its group"
            what = f"head {found % in_group} of row {found // in_group}"
            return f"{name}: head {h} of row {row} of the batch comes from {what}"
    return ""
