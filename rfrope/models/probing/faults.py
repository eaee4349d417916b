"""Faults of black boxes, from measurements; those that make other checks meaningless come first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from rfrope.models.auditing import Finding
from rfrope.models.buffers import HALVES, ROUNDED, TINY
from rfrope.models.mistakes import describe_difference, describe_factor, describe_section_mismatch, describe_width
from rfrope.models.probing import rotations
from rfrope.models.probing.measurements import ORIGIN, Box, Head
from rfrope.models.probing.rotations import Rotation, read_rotation, total
from rfrope.rotation.rope import Rope

_LARGEST = 1e12  # no rotation has entries this large
_LOST = 1e-3  # smaller values count as lost


class Fault(NamedTuple):
    """A fault of one head, or of all."""

    head: Head | None
    kind: str
    text: str
    position: int | None = None


def judge(box: Box, meant: Sequence[Rope], must_turn: bool | None) -> tuple[Rotation, tuple[Finding, ...]]:
    """Return the rotation of a box and its faults, against the Rope that leaves the fewest."""
    ropes: Sequence[Rope | None] = meant or [None]
    return min([_Judge(box, rope, must_turn).find() for rope in ropes], key=lambda pair: len(pair[1]))


class _Judge:
    """One box compared with one Rope, or with none."""

    def __init__(self, box: Box, rope: Rope | None, must_turn: bool | None) -> None:
        self.box, self.rope, self.must_turn = box, rope, must_turn
        self.has_sets = rope is not None and rope.vectors.ndim == 3  # each head has frequencies of its own

    def find(self) -> tuple[Rotation, tuple[Finding, ...]]:
        """Return the rotation, and the faults of the first stage that has any."""
        found = [*self._values()]
        self.rotation = read_rotation(self.box, self.rope, is_sound=not found)
        stages = (
            (self._still,),
            (self._pairs,),
            (self._shapes,),
            (self._lengths,),
            (self._places,),
            (self._precision,),
            (self._heads, self._directions),
            (self._alone, self._rest, self._compare, self._axes, self._factors),
        )
        for stage in stages:
            found = found or [fault for check in stage for fault in check()]
        return self.rotation, tuple(self._merge(found))

    def _merge(self, faults: Sequence[Fault]) -> Iterator[Finding]:
        """Yield each fault once, with the names of its sides and heads unless it is one of all."""
        groups: dict[tuple[str, str | None], list[Fault]] = {}
        for one in faults:
            groups.setdefault((one.kind, one.head.side if one.head else None), []).append(one)
        texts: dict[tuple[str, str, int | None], list[str]] = {}
        sides = dict.fromkeys(one.side for one in self.box.turning or self.box.heads)
        for (_, side), members in groups.items():
            heads = dict.fromkeys(one.head.number for one in members if one.head)
            turning = [one.number for one in self.box.turning or self.box.heads if one.side == side]
            some = f"head{'s' * (len(heads) > 1)} {', '.join(map(str, heads))}: " if [*heads] != turning else ""
            first = members[0]
            texts.setdefault((first.kind, f"{some if side else ''}{first.text}", first.position), []).append(side or "")
        for (kind, text, position), names in texts.items():
            whose = "" if names == [""] or len(names) == len(sides) else f"{' and '.join(names)}: "
            yield Finding(kind, self.box.name, whose + text, position)

    def _values(self) -> Iterator[Fault]:
        for head in self.box.heads:
            seen = np.concatenate([head.matrices.ravel(), head.z.real.ravel(), head.z.imag.ravel()])
            once, twice = (np.linalg.norm(each, axis=-1) for each in (head.matrices, head.doubled))
            if not np.all(np.isfinite(seen)):
                text = "values are not finite: uninitialised memory"
                text += ", or a mask: expected scores before it" if np.any(seen == -np.inf) else ""
                yield Fault(head, "uninitialised", text, 0)
            elif np.max(np.abs(seen)) > _LARGEST:
                yield Fault(head, "uninitialised", f"values above {_LARGEST:.0e}: uninitialised memory", 0)
            elif np.max(np.abs(twice - 2.0 * once)) > 0.02 * np.max(once):  # another call may use other positions
                text = "twice the features do not give twice the result: more than a rotation acts on them"
                yield Fault(head, "not linear", text)

    def _still(self) -> Iterator[Fault]:
        if self.must_turn is False and self.box.turning:
            yield Fault(None, "layers", "it turns queries or keys, and the config has no rotation in this layer")
        if self.must_turn and not self.box.turning:
            yield Fault(None, "layers", "it does not turn: no rotation, or all frequencies are 0")

    def _pairs(self) -> Iterator[Fault]:
        for head in self.box.turning:
            # pairs are found by position: tokens counted otherwise look like other pairs
            if head.pairs.fault and not (head.z.size and rotations.find_count(head)):
                yield Fault(head, "pairing", head.pairs.fault)

    def _shapes(self) -> Iterator[Fault]:
        """Yield heads whose pairs differ from those of the first head of their side, and sides that differ."""
        firsts = {head.side: head for head in self.box.firsts}
        for head in self.box.turning:
            one, own = firsts[head.side], head.pairs
            if one.pairs.pairing != own.pairing:
                yield Fault(
                    head, "heads", f"pairing {own.pairing!r}, where head {one.number} has {one.pairs.pairing!r}"
                )
            elif one.pairs.first.size != own.first.size and not self.has_sets:
                text = f"{2 * own.first.size} features turn, where {2 * one.pairs.first.size} of head {one.number} do"
                yield Fault(head, "heads", text)
        if len(firsts) == 2:
            q, k = (one.pairs for one in firsts.values())
            if q.pairing != k.pairing:
                yield Fault(None, "pairing", f"queries turn by pairing {q.pairing!r}, and keys by {k.pairing!r}")
            elif q.first.size != k.first.size:
                text = f"{2 * q.first.size} features of queries turn, and {2 * k.first.size} of keys"
                yield Fault(None, "width", text)
            elif np.any(off := q.order != k.order):
                i = int(np.argmax(off))
                text = f"feature {i} of keys comes out at {k.order[i]}, and that of queries at {q.order[i]}"
                yield Fault(None, "pairing", text)
        elif "scores" in firsts and np.any(off := firsts["scores"].pairs.order != np.arange(self.box.width)):
            i = int(np.argmax(off))
            text = f"feature {i} of keys meets feature {firsts['scores'].pairs.order[i]} of queries"
            yield Fault(None, "pairing", text)

    def _lengths(self) -> Iterator[Fault]:
        """Yield factors of only cos or only sin, of some positions or blocks, and values that form no table."""
        for head in self.box.turning:
            z, size, room = head.z[0], np.abs(head.z[0]), 16.0 * head.noise * head.size
            if np.max(np.abs(size - head.size)) <= room:
                continue
            cos = float(np.median(z[np.argmin(self.box.positions[0])].real))
            text = ""
            for which, of_cos, of_sin in (("cos", cos, 1.0), ("sin", 1.0, float(np.max(np.abs(z.imag))))):
                if of_cos and np.max(np.abs((z.real / of_cos) ** 2 + (z.imag / of_sin) ** 2 - 1.0)) < 0.01:
                    text = text or f"{which} alone is multiplied by {of_cos * of_sin:.6g}"
            for axis, what in ((1, "position"), (0, "block")):
                if not text and np.max(np.ptp(size, axis=axis)) <= room:
                    text = f"lengths depend on the {what}: times {np.min(size):.6g} to {np.max(size):.6g}"
            if text:
                yield Fault(head, "attention factor", text)
            else:
                text = "cos^2 + sin^2 is not the same everywhere: uninitialised or overwritten, or xPos"
                yield Fault(head, "uninitialised", text)

    def _places(self) -> Iterator[Fault]:
        for head in self.box.turning:
            meant = [] if self.rope is None else [total(self.rope, head.number)]
            ladders = [one for one in meant if one.shape == head.phases.frequencies.shape]
            yield from (Fault(head, *one) for one in rotations.judge_positions(head, ladders))

    def _precision(self) -> Iterator[Fault]:
        """Yield half precision, and changes between calls."""
        pairs, wide = self.box.pairs, 8.0 * self.box.noise
        first, second = pairs.order[pairs.first], pairs.order[pairs.second]
        places = [int(np.flatnonzero(self.box.positions[0] == step)[0]) for step in self.box.steps]
        for head in self.box.turning:
            before = head.matrices[:, pairs.first, first] + 1j * head.matrices[:, pairs.first, second]
            changed = np.max(np.abs(before - head.z[0, places])) > wide
            if head.narrow:
                since = ", since the first call: that was not" if changed else ""
                text = f"cos and sin are rounded to {HALVES[head.narrow]}{since}"
                yield Fault(head, "half precision", text, head.find_first_off(head.phases.frequencies))
            elif changed or np.max(np.abs(head.again - head.z)) > wide:
                yield Fault(head, "state", "the same call gives another result the next time")

    def _heads(self) -> Iterator[Fault]:
        firsts = {head.side: head for head in self.box.firsts}
        for head in self.box.heads:
            one = firsts.get(head.side)
            if head.pairs.pairing is None or one is None:
                if one is not None:
                    yield Fault(head, "heads", f"no rotation, where head {one.number} turns")
            elif abs(head.size / one.size - 1.0) > 16.0 * head.noise:
                yield Fault(head, "heads", f"factor {head.size:.6g}, where head {one.number} has {one.size:.6g}")
            elif not self.has_sets and not head.phases.is_near(one.phases):
                yield Fault(head, "heads", f"other frequencies than those of head {one.number}")

    def _directions(self) -> Iterator[Fault]:
        """Yield differences between queries and keys, and scores that are not those of lags."""
        firsts, sides = self.box.firsts, dict.fromkeys(head.side for head in self.box.heads)
        if "scores" in sides:
            for head in firsts:
                at = self.box.positions[0][:, None]
                waves = [np.exp(1j * (at + sign * ORIGIN) * head.phases.frequencies) for sign in (-1, 1)]
                of_lags, of_sums = (bool(np.all(np.abs(head.lagged - one) <= 0.01 + 2.0**-20 * at)) for one in waves)
                what = "the sum of positions, not their difference" if of_sums else "more than the difference"
                if not of_lags:
                    yield Fault(None, "direction", f"scores depend on {what}")
        elif len(firsts) == 1 < len(sides):
            (still,) = {*sides} - {firsts[0].side}
            yield Fault(None, "direction", f"{still} do not turn, and the others do: scores are not those of lags")
        elif len(firsts) == 2 and not (q := firsts[0].phases).is_near(k := firsts[1].phases):
            if q.is_near(k, -1.0):
                text = "keys turn in the opposite direction to queries: scores depend on the sum of positions"
                yield Fault(None, "direction", text)
            elif self.rope is None:
                yield Fault(None, "direction", "queries and keys turn by different frequencies")

    def _alone(self) -> Iterator[Fault]:
        """Yield faults of calls with one token, and features of other heads or rows."""
        for head in self.box.turning:
            yield from (Fault(head, *one) for one in rotations.judge_single(head))
        if text := rotations.find_exchanged(self.box):
            yield Fault(None, "heads", text)

    def _rest(self) -> Iterator[Fault]:
        """Yield changes of unrotated features."""
        for head in self.box.turning:
            one, usual = head.pairs, self.rotation.attention_factor[head.side]  # reported elsewhere
            rest = np.setdiff1d(np.arange(self.box.width), np.concatenate([one.first, one.second]))
            values = head.matrices[:, rest, one.order[rest]]
            near = [np.abs(values / value - 1.0) <= 8.0 * head.noise for value in (1.0, usual)]
            off = ~np.all(np.any(near, axis=0), axis=0)
            if not np.any(off):
                continue
            values, many = values[:, off], np.sum(off) > 1
            which = f"{np.sum(off)} features that do not turn are" if many else f"feature {rest[off][0]} is"
            least, most = np.min(values), np.max(values)
            times = f"{least:.6g}" if most - least <= 0.01 * abs(most) else f"{least:.6g} to {most:.6g}"
            what = "left out" if np.max(np.abs(values)) < _LOST else f"multiplied by {times}"
            yield Fault(head, "width", f"{which} {what}")

    # -- comparison with the expected Rope -----------------------------------------------------------------------------

    def _compare(self) -> Iterator[Fault]:
        """Yield differences in pairing, width and frequencies from the expected Rope."""
        one, rope = self.box.pairs, self.rope
        if rope is None:
            return
        if rope.pairing and one.pairing != rope.pairing and one.first.size > 1:
            yield Fault(None, "pairing", f"it turns by pairing {one.pairing!r}, expected {rope.pairing!r}")
            if one.pairing == "other":  # its blocks have no order to compare
                return
        start = self.box.width - rope.rotary_dim if rope.source.model.turns_last else 0
        if one.start != start and rope.rotary_dim < self.box.width:
            yield Fault(None, "width", f"features from {one.start} on turn, expected those from {start} on")
        for head in self.box.turning:
            wanted, values, allowed = total(rope, head.number), head.phases.frequencies, head.phases.allowed
            first = head.find_first_off(wanted) if wanted.size == values.size else None
            if values.size < wanted.size and not np.any(np.abs(wanted[values.size :]) > TINY):
                values, allowed = (np.pad(each, (0, wanted.size - each.size)) for each in (values, allowed))
            flat = replace(rope, frequencies=wanted, sections=None, interleaved=False)  # one axis, one head
            if values.size != wanted.size:
                yield Fault(head, "width", describe_width(values, flat), first)
                continue
            room = allowed + ROUNDED * np.abs(wanted) + TINY
            if np.any(np.abs(np.remainder(values - wanted + np.pi, 2.0 * np.pi) - np.pi) > room):
                yield from (Fault(head, *one, first) for one in describe_difference(values, flat, room, ""))

    def _axes(self) -> Iterator[Fault]:
        """Yield axes by which no block of a head rotates, and blocks that rotate along the wrong axis."""
        turning = [one.phases.frequencies[one.phases.frequencies != 0.0] for one in self.box.turning]
        slowest = min((float(np.min(np.abs(one), initial=1.0)) for one in turning), default=1.0)
        vectors = None if self.rope is None else np.asarray(self.rope.vectors, dtype=np.float64)
        for head in self.box.turning:
            if (found := head.vectors) is None:
                return
            wanted = vectors[head.number % len(vectors)] if vectors is not None and vectors.ndim == 3 else vectors
            dealing = ""
            if self.rope is not None and wanted is not None and wanted.shape == found.shape:
                room = 0.01 * np.max(np.abs(wanted), axis=1, keepdims=True)
                if np.all(np.abs(found - wanted) <= room):
                    continue
                dealing = describe_section_mismatch(found, wanted, room, self.rope)
            used = np.any(np.abs(found) > 1e-3 * slowest, axis=0)
            if not np.all(used):
                unused = ", ".join(map(str, np.flatnonzero(~used)))
                yield Fault(head, "sections", f"positions along axes {unused} are given and never used")
            elif dealing:
                yield Fault(head, "sections", dealing)

    def _factors(self) -> Iterator[Fault]:
        rope, found = self.rope, self.rotation.attention_factor
        if rope is None or not self.box.turning:
            return
        meant, room = rope.attention_factor, 8.0 * self.box.turning[0].noise
        if "scores" in found:
            if abs(found["scores"] / meant**2 - 1.0) > room:
                text = describe_factor(float(np.sqrt(found["scores"])), rope)
                yield Fault(None, "attention factor", f"{text} (by the root of that of scores)")
            return
        off = [name for name, value in found.items() if abs(value / meant - 1.0) > room]
        if not off:
            return
        text = describe_factor(found[off[0]], rope)
        right = [name for name in found if name not in off]
        if right:
            text = f"{right[0]} alone have the factor {meant:.6g}; {off[0]}: {text}"
        elif abs(found["queries"] * found["keys"] / meant**2 - 1.0) <= room:
            text = f"queries have {found['queries']:.6g}, keys {found['keys']:.6g}; only their product is the one meant"
        if abs(self.rotation.factor_of_rest.get(off[0], 1.0) - 1.0) > room:
            text += "; features that do not turn have it, too: it multiplies scores"
        yield Fault(None, "attention factor", text)
