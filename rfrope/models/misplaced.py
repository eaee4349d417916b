"""Tokens that turn by other positions than theirs, and phases that are none of positions."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from rfrope.models.measuring import EXCEEDS, Box, Phases, find_places, read_phases
from rfrope.models.tables import HALVES, rounded

Fault: TypeAlias = tuple[str, str, int | None]  # kind, text, position


@dataclass(frozen=True, eq=False)
class Misplaced:
    """Blocks of one side of a box, and the frequencies that phases at 1, 2, 4, ... tell.

    Attributes
    ----------
    box : Box
    side : str
    phases : Phases
    noise : float
        Error of cos and sin by rounding.
    meant : list of ndarray (D,)
        Frequencies that are meant, if they are known.
    """

    box: Box
    side: str
    phases: Phases
    noise: float
    meant: list[np.ndarray]

    @property
    def head(self) -> int:
        """The first head that turns."""
        return self.box.sides[self.side].head

    @property
    def frequencies(self) -> np.ndarray:
        """Those of that head."""
        return np.asarray(self.phases.frequencies[self.head])

    def describe(self) -> Fault | None:
        """Return what is wrong with positions, or None."""
        side = self.box.sides[self.side]
        z = side.z[0][side.turning]
        if self.side != "scores" and np.max(np.abs(z - z[:, :1])) <= 8.0 * self.noise * np.max(np.abs(z)):
            phases = np.angle(z[:, 0])
            by_head = np.exp(1j * np.outer(side.turning, phases[0] / max(1, side.turning[0])))
            is_by_head = len(phases) > 1 and np.max(np.abs(np.exp(1j * phases) - by_head)) < 0.01
            what = "heads count as positions: the table goes with the wrong axis" if is_by_head else ""
            return "positions", what or "the rotation is the same at all positions", 0
        if self.phases.is_like and self._is_own_row():
            return self._find_shift()
        if text := self.find_count():
            return "positions", text, None
        return self._find_rounding() or self._find_others()

    def find_count(self) -> str:
        """Return what tokens are counted by in place of their positions, or ""."""
        own = self.box.positions[1]
        ways = {
            "positions are not used, but the place in the sequence": np.arange(len(own)),
            "positions of the first row of the batch are used for all rows": self.box.positions[0],
            "positions are counted from that of the first token": own - own[0],
        }
        z = self.box.unit(self.side, 1)[None]
        fitting = (
            text for text, at in ways.items() if {0, 1} <= {*at.tolist()} and read_phases(z, at, self.noise).is_like
        )
        return next(fitting, "")

    def _is_own_row(self) -> bool:
        """Say whether the second row turns by its own positions."""
        at = self.box.positions[1][:, None]
        phases = at * self.frequencies + self.phases.start[self.head]
        room = 8.0 * self.noise + 2.0**-20 * np.abs(phases) + at * self.phases.allowed[self.head]
        return bool(np.all(np.abs(self.box.unit(self.side, 1) - np.exp(1j * phases)) <= room))

    def _find_shift(self) -> Fault | None:
        """Find positions that are counted from another start."""
        start = self.phases.start[self.head]
        if np.max(np.abs(start)) <= 8.0 * self.noise:
            return None
        ahead, behind = (
            int(find_places(np.exp(1j * start)[None], sign * self.frequencies, self.box.context)[0]) for sign in (1, -1)
        )
        if ahead < 0 and behind < 0:
            return "positions", f"phases at position 0 are not 0, but up to {np.max(np.abs(start)):.3g} radians", 0
        return self._name_shift(-behind if ahead < 0 or 0 <= behind < ahead else ahead)

    def _name_shift(self, shift: int) -> Fault:
        side = self.box.sides[self.side]
        more = f"{shift} more" if shift > 0 else f"{-shift} less"
        moves = np.max(np.abs(side.again - side.z)) > 16.0 * self.noise * np.max(np.abs(side.z))
        since = ", and by others at the next call: tokens of earlier calls are counted" if moves else ""
        return "positions", f"they turn by positions that are {more} than those given{since}", 0

    def _find_rounding(self) -> Fault | None:
        """Find positions or phases in half precision."""
        at, z = self.box.positions[0].astype(float), self.box.unit(self.side, 0)
        room = 8.0 * self.noise + 2.0**-20 * at[:, None]
        for omega, (width, half) in itertools.product([self.frequencies, *self.meant], HALVES.items()):
            phases = at[:, None] * omega
            with np.errstate(over="ignore", invalid="ignore"):  # float16 ends at 65504
                places = rounded(at, width)
                off = np.abs(z - np.exp(1j * places[:, None] * omega))
                apart = np.abs(z - np.exp(1j * np.sign(phases) * rounded(np.abs(phases), width)))
            if np.all(off <= room):
                return "half precision", f"positions rounded to {half}", int(at[places != at].min())
            if np.all(apart <= room + np.abs(phases) * 2.0**-width) and np.mean(apart <= room) > 0.95:
                first = self.box.find_first_off(self.side, omega)
                return "half precision", f"phases rounded to {half}", first
        return None

    def _find_others(self) -> Fault:
        """Say by which other positions tokens turn."""
        at = self.box.positions[0]
        places = find_places(self.box.unit(self.side, 0), self.frequencies, self.box.context)
        wrong = (places != at) & (places >= 0)
        if not np.any(wrong):
            far = at[self.phases.off[self.head] > EXCEEDS]
            first = int(far.min()) if far.size else int(at.max())
            return "rows", f"phases are not proportional to positions, first at {first}", first
        shifts = (places - at)[places >= 0]
        if np.all(shifts == shifts[0]):
            return self._name_shift(int(shifts[0]))
        first, last = int(at[wrong].min()), int(places[wrong].max())
        if np.all(places[wrong] == places[wrong][0]):
            return "too short", f"the table ends: from {first} on all positions turn as {last} does", first
        period = int(first - places[at == first][0])
        if period > 0 and np.all(places[places >= 0] == at[places >= 0] % period):
            return "positions", f"positions begin again at {period}", first
        return "positions", f"position {first} turns as position {places[at == first][0]} does", first
