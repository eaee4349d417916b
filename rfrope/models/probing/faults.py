"""Faults of black boxes, from measurements; those that make other checks meaningless come first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from rfrope.models.auditing import Finding
from rfrope.models.probing.measurements import Box, Side, usual_length
from rfrope.models.probing.positions import Fault, find_exchanged
from rfrope.models.probing.rotations import Reading, Rotation
from rfrope.rotation.rope import Rope

_LARGEST = 1e12  # no rotation has entries this large
_LOST = 1e-3  # smaller values count as lost


def judge(box: Box, meant: Sequence[Rope], must_turn: bool | None) -> tuple[Rotation, tuple[Finding, ...]]:
    """Return the rotation of a box and its faults, against the Rope that leaves the fewest."""
    options = [_Judge(box, rope, must_turn) for rope in meant] or [_Judge(box, None, must_turn)]
    verdicts = [(one, tuple(one.find())) for one in options]
    best, findings = min(verdicts, key=lambda pair: len(pair[1]))
    return best.rotation(), findings


def judge_still(name: str, must_turn: bool | None) -> tuple[Rotation, tuple[Finding, ...]]:
    """Return what is known of a layer that calls no rotation function."""
    none = np.zeros(0)
    fault = Finding("layers", name, "it does not turn queries and keys, and the config means it to")
    return Rotation(name, None, 0, 0, none, none, {}, {}, {}, None), (fault,) if must_turn else ()


class _Judge(Reading):
    """One box compared with one Rope, or with none."""

    def find(self) -> Iterator[Finding]:
        """Yield faults; those that make other checks meaningless come first."""
        if found := list(self._garbage()):
            yield from found
            return
        self.measure()
        meaning = (self._nonlinear, self._still, self._pairs, self._alike, self._order, self._one_table, self._places)
        for check in meaning:
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
            yield from self.compare(self.rope)
        else:
            yield from self.compare_axes(None)

    def _garbage(self) -> Iterator[Finding]:
        for name, side in self.box.sides.items():
            seen = np.concatenate([side.matrices.ravel(), side.z.real.ravel(), side.z.imag.ravel()])
            size = np.abs(seen[np.isfinite(seen)])
            if size.size < seen.size:
                text = f"{name}: {seen.size - size.size} of {seen.size} values are not finite: uninitialised memory"
                text += ", or a mask: expected scores before it" if np.any(seen == -np.inf) and name == "scores" else ""
            elif np.max(size) > _LARGEST:
                text = f"{name}: values up to {np.max(size):.3g}: uninitialised memory"
            elif not np.any(size):
                text = f"{name} are all 0: cos and sin are uninitialised, as after loading on the meta device"
            else:
                continue
            yield self.finding("uninitialised", text, 0)
            return

    def _nonlinear(self) -> Iterator[Finding]:
        bent = []
        for name, side in self.box.sides.items():  # lengths only: another call may use other positions
            once, twice = (np.linalg.norm(each, axis=-1) for each in (side.matrices, side.doubled))
            if np.max(np.abs(twice - 2.0 * once)) > 0.02 * np.max(once):
                bent.append(name)
        if bent:
            text = f"twice the features do not give twice the {' and '.join(bent)}: more than a rotation acts on them"
            yield self.finding("not linear", text)

    def _still(self) -> Iterator[Finding]:
        turns = any(side.turning for side in self.box.sides.values())
        if self.must_turn is False and turns:
            yield self.finding("layers", "it turns queries or keys, and the config has no rotation in this layer")
        if not turns and self.must_turn:
            yield self.finding("layers", "it does not turn: no rotation, or all frequencies are 0")

    def _pairs(self) -> Iterator[Finding]:
        for name, side in self.box.sides.items():
            for h in side.turning:
                fault = side.structures[h].fault
                # pairs are found by position: tokens counted otherwise look like other pairs
                if fault and not (name in self.phases and self.read_positions(name, h).find_count()):
                    yield self.finding("pairing", f"{name}: {fault}")
                    return

    def _alike(self) -> Iterator[Finding]:
        """Yield heads whose pairs differ from those of the first head of their side, and sides that differ."""
        for name, side in self.box.sides.items():
            for h in side.turning:
                one, other = side.structures[side.head], side.structures[h]
                if one.pairing != other.pairing:
                    text = f"head {h} turns by pairing {other.pairing!r}, and head {side.head} by {one.pairing!r}"
                    yield self.finding("heads", f"{name}: {text}")
                    return
                if one.first.size != other.first.size and not self.has_sets():
                    text = f"head {h} turns {2 * other.first.size} features, and head {side.head} {2 * one.first.size}"
                    yield self.finding("heads", f"{name}: {text}")
                    return
        sizes = {2 * side.structures[side.head].first.size: name for name, side in self.box.sides.items()}
        if len(sizes) > 1 and 0 not in sizes:
            yield self.finding("width", " and ".join(f"{name} turn {size} features" for size, name in sizes.items()))

    def _one_table(self) -> Iterator[Finding]:
        """Yield a factor of only cos or only sin, and values that form no table."""
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
                    yield self.finding("attention factor", text)
                    return
            if rate := _find_growth(size, self.box.positions[0]):
                text = (
                    f"{name}: lengths grow or shrink with the position, by up to {rate:.4g} for each, as those of xPos"
                )
                yield self.finding("attention factor", text)
                return
            if np.max(np.ptp(size, axis=1)) <= max(16.0 * self.noise, 0.01) * np.median(size):
                ends = f"{np.min(size):.6g} to {np.max(size):.6g}"
                yield self.finding("attention factor", f"{name}: lengths depend on the position: times {ends}")
                return
            text = f"{name}: cos^2 + sin^2 is not the same at all positions: uninitialised or overwritten"
            yield self.finding("uninitialised", text)
            return

    def _places(self) -> Iterator[Finding]:
        faults = []
        for name in self.phases:
            turning = self.box.sides[name].turning
            found = {h: fault for h in turning if (fault := self.read_positions(name, h).describe())}
            if found:
                h, (kind, text, position) = next(iter(found.items()))
                faults.append((name, (kind, text if len(found) == len(turning) else f"head {h}: {text}", position)))
        yield from self._group(faults)

    def _group(self, faults: Sequence[tuple[str, Fault]]) -> Iterator[Finding]:
        """Yield each fault once, with the names of its sides."""
        for fault in dict.fromkeys(one for _, one in faults):
            kind, text, position = fault
            names = " and ".join(name for name, other in faults if other == fault)
            yield self.finding(kind, f"{names}: {text}", position)

    def _halves(self) -> Iterator[Finding]:
        """Yield half precision, and changes between calls."""
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
            if name in self.narrow:
                first = self.box.find_first_off(name, self.phases[name].frequencies[side.head], side.head)
                whose = "" if len(self.narrow) == len(self.phases) else f"{name}: "
                text = f"{whose}cos and sin are rounded to {self.narrow[name]}{since}"
                yield self.finding("half precision", text, first)
                return
            if changed or later:
                yield self.finding("state", "the same call gives something else the next time")
                return

    def _heads(self) -> Iterator[Finding]:
        faults: list[tuple[str, Fault]] = []
        for name, found in self.phases.items():
            side = self.box.sides[name]
            turning, count = side.turning, len(side.structures)
            if len(turning) < count:
                rest = ", ".join(str(h) for h in range(count) if h not in turning)
                faults.append((name, ("heads", f"{len(turning)} of {count} heads turn, not {rest}", None)))
            apart = np.abs(found.frequencies[turning] - found.frequencies[turning[0]])
            unlike = np.any(apart > found.allowed[turning] + found.allowed[turning[0]], axis=1)
            sizes = np.array([usual_length(side.z[0, h]) for h in turning])
            usual = np.sort(sizes)[(len(sizes) - 1) // 2]
            if np.any(off := np.abs(sizes / usual - 1.0) > 16.0 * self.noise):
                h = int(np.argmax(off))
                text = f"head {turning[h]} has the factor {sizes[h]:.6g}, and {usual:.6g} is usual"
                faults.append((name, ("heads", text, None)))
            if np.any(unlike) and not self.has_sets():
                text = f"head {turning[int(np.argmax(unlike))]} turns by other frequencies than head {turning[0]}"
                faults.append((name, ("heads", text, None)))
        yield from self._group(faults)

    def _sides(self) -> Iterator[Finding]:
        """Yield differences between queries and keys."""
        sides = self.box.sides
        if "scores" in sides:
            yield from self._lags(sides["scores"])
            return
        still = [name for name, side in sides.items() if not side.turning]
        if still:
            yield self.finding("direction", f"{still[0]} do not turn, and the others do: scores are not those of lags")
        if len(self.phases) < 2:
            return
        (q, k), heads = self.phases.values(), [side.head for side in sides.values()]
        a, b, room = q.frequencies[heads[0]], k.frequencies[heads[1]], q.allowed[heads[0]] + k.allowed[heads[1]]
        if np.all(np.abs(a - b) <= room):
            return
        if np.all(np.abs(a + b) <= room):
            text = "keys turn the other way than queries: scores depend on the sum of positions"
            yield self.finding("direction", text)
        elif self.rope is None:
            yield self.finding("direction", "queries and keys turn by different frequencies")

    def _lags(self, side: Side) -> Iterator[Finding]:
        if side.lagged is None or not side.turning:
            return
        at, omega = self.box.positions[0], self.phases["scores"].frequencies[side.head]
        z = side.lagged[side.head] / usual_length(side.lagged[side.head])
        room = 0.01 + 2.0**-20 * at[:, None]
        for sign in (-1, 1):
            if np.all(np.abs(z - np.exp(1j * np.multiply.outer(at + 3 * sign, omega))) <= room):
                if sign > 0:
                    yield self.finding("direction", "scores depend on the sum of positions, not on the difference")
                return
        yield self.finding("direction", "scores depend on more than the difference of positions")

    def _lengths(self) -> Iterator[Finding]:
        """Yield a factor that depends on the block or on the position."""
        for name, side in self.box.sides.items():
            size = np.abs(side.z[0, side.head]) if side.turning else np.ones(1)
            if np.max(np.abs(size / np.median(size) - 1.0)) > 16.0 * self.noise:
                text = f"{name}: what turns is multiplied by {np.min(size):.6g} to {np.max(size):.6g}"
                yield self.finding("attention factor", text)
                return

    def _single(self) -> Iterator[Finding]:
        """Yield faults of calls with one token, and key heads that belong to another group."""
        faults = []
        for name in self.phases:
            heads = (self.read_positions(name, h).describe_single() for h in self.box.sides[name].turning)
            faults += [(name, one) for one in heads if one][:1]
        yield from self._group(faults)
        if text := find_exchanged(self.box):
            yield self.finding("heads", text)

    def _order(self) -> Iterator[Finding]:
        if text := _find_order(self.box):
            yield self.finding("pairing", text)

    def _rest(self) -> Iterator[Finding]:
        """Yield changes of unrotated features, for the first head of each side that has any."""
        usual = self.rotation().attention_factor  # reported elsewhere
        for name, side in self.box.sides.items():
            for h in side.turning:
                one = side.structures[h]
                rest = np.setdiff1d(np.arange(self.box.width), np.concatenate([one.first, one.second]))
                values = side.matrices[h][:, rest, one.order[rest]]
                near = [np.abs(values / value - 1.0) <= 8.0 * self.noise for value in (1.0, usual.get(name, 1.0))]
                off = ~np.all(np.any(near, axis=0), axis=0)
                if np.any(off):
                    yield self.finding("width", f"{name}: {_describe_passing(values[:, off], rest[off])}")
                    break


def _find_growth(size: np.ndarray, positions: np.ndarray) -> float | None:
    """Return the growth per position furthest from 1, if lengths (T, D) are exponential in the position."""
    if not np.all(size > 0.0):
        return None
    slopes, starts = np.polyfit(positions, np.log(size), 1)
    if np.max(np.abs(np.log(size) - np.multiply.outer(positions, slopes) - starts)) > 0.01:
        return None
    return float(np.exp(slopes[np.argmax(np.abs(slopes))]))


# -- unrotated features, and orders ------------------------------------------------------------------------------------


def _find_order(box: Box) -> str:
    """Describe how the feature orders of queries and keys differ, or how scores reorder features; otherwise ""."""
    first, *others = (side.structures[side.head] for side in box.sides.values())
    if any(None not in (first.pairing, one.pairing) and first.pairing != one.pairing for one in others):
        return f"queries turn by pairing {first.pairing!r}, and keys by {others[0].pairing!r}"
    orders = {name: side.structures[side.head].order for name, side in box.sides.items()}
    wanted = np.arange(box.width) if "scores" in orders else next(iter(orders.values()))
    for name, order in orders.items():
        if np.any(off := order != wanted):
            i = int(np.argmax(off))
            if name == "scores":
                return f"feature {i} of keys meets feature {order[i]} of queries"
            return f"{name}: feature {i} comes out at {order[i]}, and that of queries at {wanted[i]}"
    return ""


def _describe_passing(values: np.ndarray, features: np.ndarray) -> str:
    """Describe what happened to features with factors (P, n)."""
    which = f"{len(features)} features that do not turn are" if len(features) > 1 else f"feature {features[0]} is"
    if np.max(np.abs(values)) < _LOST:
        return f"{which} left out"
    factor = float(values[0, 0])
    if np.all(np.abs(values - factor) <= 0.01 * abs(factor)):
        return f"{which} negated" if factor == -1.0 else f"{which} multiplied by {factor:.6g}"
    return f"{which} multiplied by {np.min(values):.6g} to {np.max(values):.6g}"
