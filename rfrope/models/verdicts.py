"""Rotations of black boxes and their faults, told from measurements."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from rfrope._core.results import Result
from rfrope.models.auditing import Finding
from rfrope.models.differences import describe_dealing, describe_difference, describe_factor, describe_width
from rfrope.models.measuring import Box, Phases, Side, read_phases, usual_length
from rfrope.models.misplaced import Misplaced, find_exchanged
from rfrope.models.passing import describe_rest, find_order
from rfrope.models.tables import HALVES, ROUNDED, TINY, bits
from rfrope.rotation.rope import Rope

_LARGEST = 1e12  # entries of no rotation


@dataclass(frozen=True, eq=False)
class Rotation(Result):
    """A rotation as found from outside.

    Attributes
    ----------
    name : str
        "apply", or the path of the layer.
    pairing : {"half", "interleaved", "other"} or None
        None where nothing turns.
    rotary_dim : int
        Features of a head that turn, those that stand still between them included.
    first : int
        The first of them.
    frequencies : ndarray
        Radians per position, ``(D,)``, or ``(D, k)`` for k axes of positions; those of the first head that turns. Whole
        positions tell them but for whole turns.
    frequency_error : ndarray, (D,)
        How far they may be, by rounding, from what the black box turns by.
    attention_factor : dict
        By side ("queries" and "keys", or "scores"), the length of what becomes of a unit vector that turns.
    factor_of_rest : dict
        The same of features that do not turn, where there are some.
    turning_heads : dict
        By side, one bool for each head.
    exceeds : int or None
        The first of the measured positions at which a cos or sin is off by more than 1e-3 from what is meant, or, if
        nothing is, from exact phases of `frequencies`.
    head_dim : int
        Features of a head; 0 where it is not known.
    sets_differ : bool
        Whether heads turn by different frequencies, or queries by others than keys.

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


def judge(box: Box, meant: Sequence[Rope], must_turn: bool | None) -> tuple[Rotation, tuple[Finding, ...]]:
    """Return the rotation of a box and its faults, by that of several Ropes that leaves the fewest."""
    options = [_Judge(box, rope, must_turn) for rope in meant] or [_Judge(box, None, must_turn)]
    verdicts = [(one, tuple(one.find())) for one in options]
    best, findings = min(verdicts, key=lambda pair: len(pair[1]))
    return best.rotation(), findings


def judge_still(name: str, must_turn: bool | None) -> tuple[Rotation, tuple[Finding, ...]]:
    """Return what is known of a layer that calls no function of rotation."""
    none = np.zeros(0)
    fault = Finding("layers", name, "it does not turn queries and keys, and the config means it to")
    return Rotation(name, None, 0, 0, none, none, {}, {}, {}, None), (fault,) if must_turn else ()


class _Judge:
    """One box against one Rope, or none."""

    def __init__(self, box: Box, rope: Rope | None, must_turn: bool | None) -> None:
        self.box, self.rope, self.must_turn = box, rope, must_turn
        self.narrow: str | None = None
        self.phases: dict[str, Phases] = {}
        self.exceeds: int | None = None

    # -- in order: what makes the rest meaningless ends it -------------------------------------------------------------

    def find(self) -> Iterator[Finding]:
        """Yield faults, those first that make others meaningless."""
        checks = (
            self._garbage,
            self._measure,
            self._nonlinear,
            self._still,
            self._pairs,
            self._order,
            self._one_table,
            self._places,
        )
        for check in checks:
            if found := list(check()):
                yield from found
                return
        yield from self._halves()
        yield from self._heads()
        if found := list(self._sides()):
            yield from found
            return
        yield from self._lengths()
        yield from self._single()
        yield from self._rest()
        if self.rope is not None:
            yield from self._compare(self.rope)
        elif self._axes() and len(self._axes()) > 1:
            yield from self._unused_axes()

    def _finding(self, kind: str, text: str, position: int | None = None) -> Finding:
        return Finding(kind, self.box.name, text, position)

    def _garbage(self) -> Iterator[Finding]:
        for name, side in self.box.sides.items():
            seen = np.concatenate([side.matrices.ravel(), side.z.real.ravel(), side.z.imag.ravel()])
            size = np.abs(seen[np.isfinite(seen)])
            if size.size < seen.size:
                text = f"{name}: {seen.size - size.size} of {seen.size} values are not finite: uninitialised memory"
            elif np.max(size) > _LARGEST:
                text = f"{name}: values up to {np.max(size):.3g}: uninitialised memory"
            elif not np.any(size):
                text = f"{name} are all 0: cos and sin are uninitialised, as after loading on the meta device"
            else:
                continue
            yield self._finding("uninitialised", text, 0)
            return

    def _nonlinear(self) -> Iterator[Finding]:
        bent = []
        for name, side in self.box.sides.items():  # lengths, as another call may turn by other positions
            once, twice = (np.linalg.norm(each, axis=-1) for each in (side.matrices, side.doubled))
            if np.max(np.abs(twice - 2.0 * once)) > 0.02 * np.max(once):
                bent.append(name)
        if bent:
            text = f"twice the features do not give twice the {' and '.join(bent)}: more than a rotation acts on them"
            yield self._finding("not linear", text)

    def _still(self) -> Iterator[Finding]:
        turns = any(side.turning for side in self.box.sides.values())
        if self.must_turn is False and turns:
            yield self._finding("layers", "it turns queries or keys, and the config has no rotation in this layer")
        if not turns and self.must_turn:
            yield self._finding("layers", "it does not turn: no rotation, or all frequencies are 0")

    def _pairs(self) -> Iterator[Finding]:
        for name, side in self.box.sides.items():
            faults = {one.fault for one in side.structures if one.fault}
            if faults and not (
                name in self.phases and self._misplaced(name, self.phases[name]).find_count()
            ):  # features are followed by position
                yield self._finding("pairing", f"{name}: {min(faults)}")
                return

    def _one_table(self) -> Iterator[Finding]:
        """Yield a factor of cos alone or of sin alone, and tables that are none."""
        for name in self.phases:
            z = self.box.sides[name].z[0, self.box.sides[name].head]
            size = np.abs(z)
            if np.max(np.ptp(size, axis=0)) <= max(16.0 * self.noise, 0.01) * np.median(size):
                continue
            cos = float(np.median(z[np.argmin(self.box.positions[0])].real))
            factors = {"cos": (cos, 1.0), "sin": (1.0, float(np.max(np.abs(z.imag))))}
            for which, (of_cos, of_sin) in factors.items():
                if of_cos and np.max(np.abs((z.real / of_cos) ** 2 + (z.imag / of_sin) ** 2 - 1.0)) < 0.01:
                    text = f"{name}: {which} alone is multiplied by {of_cos * of_sin:.6g}"
                    yield self._finding("attention factor", text)
                    return
            if rate := _find_growth(size, self.box.positions[0]):
                text = (
                    f"{name}: lengths grow or shrink with the position, by up to {rate:.4g} for each, as those of xPos"
                )
                yield self._finding("attention factor", text)
                return
            text = f"{name}: cos^2 + sin^2 is not the same at all positions: uninitialised or overwritten"
            yield self._finding("uninitialised", text)
            return

    # -- positions -----------------------------------------------------------------------------------------------------

    def _measure(self) -> Iterator[Finding]:
        """Read phases; no fault by itself."""
        box = self.box
        values = [np.stack([one.z.real, one.z.imag]) for one in box.sides.values() if one.turning and one.z.size]
        narrow = [bits(each[np.abs(each) > 0.0]) for each in values] if box.is_wide else []
        self.narrow = HALVES.get(max(narrow)) if narrow else None
        self.noise = 2.0 ** -max(narrow) if self.narrow else box.noise
        for name, side in box.sides.items():
            if side.turning and side.z.size:
                z = side.z[0] / np.array([usual_length(one) for one in side.z[0]])[:, None, None]
                self.phases[name] = read_phases(z, box.positions[0], self.noise)
        yield from ()

    def _places(self) -> Iterator[Finding]:
        faults: dict[str, tuple[str, str, int | None]] = {}
        for name, found in self.phases.items():
            if fault := self._misplaced(name, found).describe():
                faults[name] = fault
        for fault in dict.fromkeys(faults.values()):
            names = [name for name, other in faults.items() if other == fault]
            kind, text, position = fault
            yield self._finding(kind, f"{' and '.join(names)}: {text}", position)

    def _misplaced(self, name: str, found: Phases) -> Misplaced:
        is_meant = self.rope is not None and len(self.rope.vectors) == found.frequencies.shape[1]
        ladders = [total(self.rope)] if self.rope is not None and is_meant else []
        return Misplaced(self.box, name, found, self.noise, ladders)

    # -- precision, heads, sides ---------------------------------------------------------------------------------------

    def _halves(self) -> Iterator[Finding]:
        """Yield half precision, and what changes from one call to the next."""
        box, one, wide = self.box, self.box.structure(), 8.0 * self.box.noise
        for name, side in box.sides.items():
            if not side.turning:
                continue
            head = side.matrices[side.head]
            before = head[:, one.first, one.order[one.first]] + 1j * head[:, one.first, one.order[one.second]]
            places = [int(np.flatnonzero(box.positions[0] == step)[0]) for step in box.steps]
            changed = np.max(np.abs(before - side.z[0, side.head][places])) > wide
            later = np.max(np.abs(side.again - side.z)) > wide
            since = ", since the first call: that was not" if changed else ""
            if self.narrow:
                first = self.box.find_first_off(name, self.phases[name].frequencies[side.head])
                yield self._finding("half precision", f"cos and sin are rounded to {self.narrow}{since}", first)
                return
            if changed or later:
                yield self._finding("state", "the same call gives something else the next time")
                return

    def _heads(self) -> Iterator[Finding]:
        faults: dict[str, list[str]] = {}
        for name, found in self.phases.items():
            side = self.box.sides[name]
            turning, count = side.turning, len(side.structures)
            if len(turning) < count:
                rest = ", ".join(str(h) for h in range(count) if h not in turning)
                faults.setdefault(f"{len(turning)} of {count} heads turn, not {rest}", []).append(name)
            apart = np.abs(found.frequencies[turning] - found.frequencies[turning[0]])
            unlike = np.any(apart > found.allowed[turning] + found.allowed[turning[0]], axis=1)
            sizes = np.array([usual_length(side.z[0, h]) for h in turning])
            usual = np.sort(sizes)[(len(sizes) - 1) // 2]
            if np.any(off := np.abs(sizes / usual - 1.0) > 16.0 * self.noise):
                h = int(np.argmax(off))
                text = f"head {turning[h]} has the factor {sizes[h]:.6g}, and {usual:.6g} is usual"
                faults.setdefault(text, []).append(name)
            if np.any(unlike) and not self._has_sets():
                text = f"head {turning[int(np.argmax(unlike))]} turns by other frequencies than head {turning[0]}"
                faults.setdefault(text, []).append(name)
        for text, names in faults.items():
            yield self._finding("heads", f"{' and '.join(names)}: {text}")

    def _has_sets(self) -> bool:
        return self.rope is not None and self.rope.vectors.ndim == 3

    def _sides(self) -> Iterator[Finding]:
        """Yield what queries and keys do differently."""
        sides = self.box.sides
        if "scores" in sides:
            yield from self._lags(sides["scores"])
            return
        still = [name for name, side in sides.items() if not side.turning]
        if still:
            yield self._finding("direction", f"{still[0]} do not turn, and the others do: scores are not those of lags")
        if len(self.phases) < 2:
            return
        (q, k), heads = self.phases.values(), [side.head for side in sides.values()]
        a, b, room = q.frequencies[heads[0]], k.frequencies[heads[1]], q.allowed[heads[0]] + k.allowed[heads[1]]
        if np.all(np.abs(a - b) <= room):
            return
        if np.all(np.abs(a + b) <= room):
            text = "keys turn the other way than queries: scores depend on the sum of positions"
            yield self._finding("direction", text)
        elif self.rope is None:
            yield self._finding("direction", "queries and keys turn by different frequencies")

    def _lags(self, side: Side) -> Iterator[Finding]:
        if side.lagged is None or not side.turning:
            return
        at, omega = self.box.positions[0], self.phases["scores"].frequencies[side.head]
        z = side.lagged[side.head] / usual_length(side.lagged[side.head])
        room = 0.01 + 2.0**-20 * at[:, None]
        for sign in (-1, 1):
            if np.all(np.abs(z - np.exp(1j * np.multiply.outer(at + 3 * sign, omega))) <= room):
                if sign > 0:
                    yield self._finding("direction", "scores depend on the sum of positions, not on the difference")
                return
        yield self._finding("direction", "scores depend on more than the difference of positions")

    def _lengths(self) -> Iterator[Finding]:
        """Yield a factor that depends on the block or on the position."""
        for name, side in self.box.sides.items():
            size = np.abs(side.z[0, side.head]) if side.turning else np.ones(1)
            if np.max(np.abs(size / np.median(size) - 1.0)) > 16.0 * self.noise:
                text = f"{name}: what turns is multiplied by {np.min(size):.6g} to {np.max(size):.6g}"
                yield self._finding("attention factor", text)
                return

    def _single(self) -> Iterator[Finding]:
        """Yield what calls of one token do otherwise, and heads of keys that are not those of their group."""
        found = {name: self._misplaced(name, each).describe_single() for name, each in self.phases.items()}
        for fault in dict.fromkeys(one for one in found.values() if one):
            names = " and ".join(name for name, other in found.items() if other == fault)
            yield self._finding(fault[0], f"{names}: {fault[1]}")
        if text := find_exchanged(self.box):
            yield self._finding("heads", text)

    def _order(self) -> Iterator[Finding]:
        if text := find_order(self.box):
            yield self._finding("pairing", text)

    def _rest(self) -> Iterator[Finding]:
        for text in describe_rest(self.box, self.noise, self.rotation().attention_factor):
            yield self._finding("width", text)

    # -- against what is meant -----------------------------------------------------------------------------------------

    def _compare(self, rope: Rope) -> Iterator[Finding]:
        one = self.box.structure()
        if rope.pairing and one.pairing != rope.pairing and one.first.size > 1:
            yield self._finding("pairing", f"it turns by pairing {one.pairing!r}, and {rope.pairing!r} is meant")
            if one.pairing == "other":  # its blocks have no order to compare
                return
        turns_last = rope.source.model.turns_last
        start = self.box.width - rope.rotary_dim if turns_last else 0
        if one.start != start and rope.rotary_dim < self.box.width:
            yield self._finding("width", f"features from {one.start} on turn, and those from {start} on are meant")
        yield from self._compare_frequencies(rope)
        yield from self._compare_factors(rope)

    def _compare_frequencies(self, rope: Rope) -> Iterator[Finding]:
        seen: set[tuple[str, str]] = set()
        for name, found in self.phases.items():
            for head in self.box.sides[name].turning:
                wanted, width = total(rope, head), found.frequencies.shape[1]
                values, allowed = found.frequencies[head], found.allowed[head]
                if width < wanted.size and not np.any(np.abs(wanted[width:]) > TINY):
                    values, allowed = (np.pad(each, (0, wanted.size - width)) for each in (values, allowed))
                if values.size != wanted.size:
                    faults = [("width", describe_width(values, _flat(rope, wanted)))]
                else:
                    room = allowed + ROUNDED * np.abs(wanted) + TINY
                    turned = np.remainder(values - wanted + np.pi, 2.0 * np.pi) - np.pi
                    faults = []
                    if np.any(np.abs(turned) > room):
                        faults = [*describe_difference(values, _flat(rope, wanted), room, "")]
                for fault in faults:
                    if fault not in seen:
                        seen.add(fault)
                        first = self.box.find_first_off(name, wanted) if values.size == wanted.size == width else None
                        yield self._finding(*fault, first)
        if not seen and len(self._axes()) > 1:
            yield from self._compare_axes(rope)

    def _axes(self) -> list[np.ndarray]:
        """Return frequencies along each axis, of the first side that turns."""
        for name, side in self.box.sides.items():
            if side.turning and side.along and name in self.phases:
                rows = [(z[side.head] / usual_length(z[side.head]))[None] for z in side.along]
                at = self.box.positions[0]
                return [read_phases(z, at, self.noise).frequencies[0] for z in rows]
        return []

    def _unused_axes(self) -> Iterator[Finding]:
        along = self._axes()
        used = [bool(np.any(np.abs(one) > self._smallest())) for one in along]
        if sum(used) < len(used):
            names = ", ".join(str(axis) for axis, one in enumerate(used) if not one)
            yield self._finding("sections", f"positions along axes {names} are given and never used")

    def _smallest(self) -> float:
        return 1e-3 * min(
            float(np.min(np.abs(one.frequencies[one.frequencies != 0.0]), initial=1.0)) for one in self.phases.values()
        )

    def _compare_axes(self, rope: Rope) -> Iterator[Finding]:
        found, wanted = np.stack(self._axes(), axis=-1), np.asarray(rope.vectors, dtype=np.float64)
        if wanted.ndim != 2 or wanted.shape != found.shape:
            yield from self._unused_axes()
            return
        room = 0.01 * np.max(np.abs(wanted), axis=1, keepdims=True)
        if np.all(np.abs(found - wanted) <= room):
            return
        if unused := [*self._unused_axes()]:
            yield from unused
            return
        yield self._finding("sections", describe_dealing(found, wanted, room, rope))

    def _compare_factors(self, rope: Rope) -> Iterator[Finding]:
        meant, rotation = rope.attention_factor, self.rotation()
        found, room = rotation.attention_factor, 8.0 * self.noise
        if "scores" in found:
            if abs(found["scores"] / meant**2 - 1.0) > room:
                text = describe_factor(float(np.sqrt(found["scores"])), rope)
                yield self._finding("attention factor", f"{text} (by the root of that of scores)")
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
        yield self._finding("attention factor", text)

    # -- what was found ------------------------------------------------------------------------------------------------

    def rotation(self) -> Rotation:
        """Return what the box does."""
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
            exceeds = self.box.find_first_off(name, total(self.rope) if fits and self.rope else frequencies)
            along = self._axes()
            frequencies = np.stack(along, axis=-1) if len(along) > 1 else frequencies
        turning = {name: tuple(one.pairing is not None for one in side.structures) for name, side in box.sides.items()}
        read = [(p.frequencies[h], p.allowed[h]) for name, p in self.phases.items() for h in box.sides[name].turning]
        differ = any(np.any(np.abs(values - read[0][0]) > room + read[0][1]) for values, room in read)
        about = (box.name, one.pairing, 2 * one.first.size, one.start)
        return Rotation(*about, frequencies, error, factors, rest, turning, exceeds, box.width, differ)


def total(rope: Rope, head: int = 0) -> np.ndarray:
    """Return frequencies of positions that are the same on all axes."""
    if rope.sections is not None:
        return np.asarray(rope.frequencies, dtype=np.float64)
    vectors = np.asarray(rope.vectors, dtype=np.float64)
    if vectors.ndim == 3:
        vectors = vectors[head % len(vectors)]
    return np.asarray(vectors if vectors.ndim == 1 else vectors.sum(axis=-1))


def _find_growth(size: np.ndarray, positions: np.ndarray) -> float | None:
    """Return the factor from one position to the next that is furthest from 1, if lengths (T, D) are powers of such."""
    if not np.all(size > 0.0):
        return None
    slopes, starts = np.polyfit(positions, np.log(size), 1)
    if np.max(np.abs(np.log(size) - np.multiply.outer(positions, slopes) - starts)) > 0.01:
        return None
    return float(np.exp(slopes[np.argmax(np.abs(slopes))]))


def _flat(rope: Rope, frequencies: np.ndarray) -> Rope:
    """Return a Rope for one axis and one head with the same source."""
    return Rope(
        frequencies,
        pairing=rope.pairing,
        head_dim=rope.head_dim,
        attention_factor=rope.attention_factor,
        context=rope.context,
        source=rope.source,
    )
