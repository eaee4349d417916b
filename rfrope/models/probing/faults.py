"""Faults of black boxes: checks of heads and of boxes, in stages. One with faults makes later ones meaningless."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from rfrope.models.buffers import HALVES, ROUNDED, TINY, find_rounding
from rfrope.models.mistakes import describe_difference, describe_factor, describe_section_mismatch, describe_width
from rfrope.models.probing.measurements import ORIGIN, Box, Head, choose_single, choose_steps, find_places, read_phases
from rfrope.models.verdicts import EXCEEDS, Finding
from rfrope.rotation.rope import Rope

Faults: TypeAlias = Iterator[tuple[Any, ...]]  # kind, text, and a position if there is one

_LARGEST = 1e12  # no rotation has entries this large
_LOST = 1e-3  # smaller values count as lost


def judge(box: Box) -> tuple[Rope | None, tuple[Finding, ...]]:
    """Return the expected Rope that leaves the fewest faults, if one is expected, and the faults."""
    ropes: tuple[Rope | None, ...] = box.meant or (None,)
    return min([(rope, tuple(_find(box, rope))) for rope in ropes], key=lambda pair: len(pair[1]))


def _find(box: Box, rope: Rope | None) -> Iterator[Finding]:
    """Yield the faults of the first stage that has any, with names of sides and heads unless it is one of all."""
    groups: dict[tuple[str, str], list[tuple[int, Any]]] = {}  # head and fault, by kind and side
    scopes: dict[str, Sequence[Any]] = {"heads": box.heads, "turning": box.turning, "box": [box]}
    for stage in _STAGES:
        found = [(one, fault) for of, check in stage for one in scopes[of] for fault in check(one, rope)]
        for one, fault in found:
            groups.setdefault((fault[0], getattr(one, "side", "")), []).append((getattr(one, "number", -1), fault))
        if found:
            break
    texts: dict[tuple[str, str, int | None], list[str]] = {}
    judged = box.turning or box.heads
    for (kind, side), members in groups.items():
        heads = [*dict.fromkeys(number for number, _ in members)]
        is_of_all = not side or heads == [one.number for one in judged if one.side == side]
        some = "" if is_of_all else f"head{'s' * (len(heads) > 1)} {', '.join(map(str, heads))}: "
        _, (_, text, *position) = members[0]
        texts.setdefault((kind, some + text, position[0] if position else None), []).append(side)
    for (kind, text, first), sides in texts.items():
        is_of_all = sides == [""] or len(sides) == len({one.side for one in judged})
        yield Finding(kind, box.name, text if is_of_all else f"{' and '.join(sides)}: {text}", first)


# -- values, pairs and lengths -----------------------------------------------------------------------------------------


def check_values(head: Head, rope: Rope | None) -> Faults:
    """Yield why values are not those of a linear map."""
    seen = np.concatenate([head.matrices.ravel(), head.z.real.ravel(), head.z.imag.ravel()])
    once, twice = (np.linalg.norm(each, axis=-1) for each in (head.matrices, head.doubled))
    if not np.all(np.isfinite(seen)):
        mask = ", or a mask: expected scores before it" if np.any(seen == -np.inf) else ""
        yield "uninitialised", f"values are not finite: uninitialised memory{mask}", 0
    elif np.max(np.abs(seen)) > _LARGEST:
        yield "uninitialised", f"values above {_LARGEST:.0e}: uninitialised memory", 0
    elif np.max(np.abs(twice - 2.0 * once)) > 0.02 * np.max(once):  # another call may use other positions
        yield "not linear", "twice the features do not give twice the result: more than a rotation acts on them"


def _check_layer(box: Box, rope: Rope | None) -> Faults:
    if box.must_turn is False and box.turning:
        yield "layers", "it turns queries or keys, and the config has no rotation in this layer"
    if box.must_turn and not box.width:
        yield "layers", "it does not turn queries and keys, and the config requires it"
    elif box.must_turn and not box.turning:
        yield "layers", "it does not turn: no rotation, or all frequencies are 0"


def _check_pairs(head: Head, rope: Rope | None) -> Faults:
    # pairs are found by position: tokens counted otherwise look like other pairs
    if head.pairs.fault and not (head.z.size and _find_count(head)):
        yield "pairing", head.pairs.fault


def _check_shape(head: Head, rope: Rope | None) -> Faults:
    """Yield how pairs differ from those of the first head of the side."""
    one, own = head.box.firsts[head.side], head.pairs
    if one.pairs.pairing != own.pairing:
        yield "heads", f"pairing {own.pairing!r}, where head {one.number} has {one.pairs.pairing!r}"
    elif one.pairs.first.size != own.first.size and not _has_sets(rope):
        yield "heads", f"{2 * own.first.size} features turn, where {2 * one.pairs.first.size} of head {one.number} do"


def _has_sets(rope: Rope | None) -> bool:
    """Return whether each head has frequencies of its own."""
    return rope is not None and rope.vectors.ndim == 3


def _check_sides(box: Box, rope: Rope | None) -> Faults:
    """Yield how pairs of keys differ from those of queries; in scores, keys from the queries that they meet."""
    firsts = {side: head.pairs for side, head in box.firsts.items()}
    if "scores" in firsts:
        order = firsts["scores"].order
        if np.any(off := order != np.arange(box.width)):
            i = int(np.argmax(off))
            yield "pairing", f"feature {i} of keys meets feature {order[i]} of queries"
    elif len(firsts) == 2:
        q, k = firsts["queries"], firsts["keys"]
        if q.pairing != k.pairing:
            yield "pairing", f"queries turn by pairing {q.pairing!r}, and keys by {k.pairing!r}"
        elif q.first.size != k.first.size:
            yield "width", f"{2 * q.first.size} features of queries turn, and {2 * k.first.size} of keys"
        elif np.any(off := q.order != k.order):
            i = int(np.argmax(off))
            yield "pairing", f"feature {i} of keys comes out at {k.order[i]}, and that of queries at {q.order[i]}"


def _check_lengths(head: Head, rope: Rope | None) -> Faults:
    """Yield factors of only cos or only sin, of some positions or blocks, and values that form no table."""
    z, size, room = head.z[0], np.abs(head.z[0]), 16.0 * head.noise * head.size
    if np.max(np.abs(size - head.size)) <= room:
        return
    cos, sin = float(np.median(z[np.argmin(head.box.positions[0])].real)), float(np.max(np.abs(z.imag)))
    for name, of_cos, of_sin in (("cos", cos, 1.0), ("sin", 1.0, sin)):
        if of_cos and np.max(np.abs((z.real / of_cos) ** 2 + (z.imag / of_sin) ** 2 - 1.0)) < 0.01:
            yield "attention factor", f"{name} alone is multiplied by {of_cos * of_sin:.6g}"
            return
    for axis, what in ((1, "position"), (0, "block")):
        if np.max(np.ptp(size, axis=axis)) <= room:
            span = f"times {np.min(size):.6g} to {np.max(size):.6g}"
            yield "attention factor", f"lengths depend on the {what}: {span}"
            return
    yield "uninitialised", "cos^2 + sin^2 is not the same everywhere: uninitialised or overwritten, or xPos"


# -- positions ---------------------------------------------------------------------------------------------------------


def _find_count(head: Head) -> str:
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


def _check_positions(head: Head, rope: Rope | None) -> Faults:
    z, phases, at = head.z / head.size, head.phases, head.box.positions[0]
    if head.side != "scores" and np.max(np.abs(z[0] - z[0, :1])) <= 8.0 * head.noise:
        alike = [one for one in head.box.turning if one.side == head.side]
        turned = np.array([np.angle(one.z[0, 0]) for one in alike])
        by_head = np.outer([one.number for one in alike], turned[0] / max(1, alike[0].number))
        counts = len(alike) > 1 and np.max(np.abs(np.exp(1j * turned) - np.exp(1j * by_head))) < 0.01
        what = "heads count as positions: the table is used along the wrong axis"
        yield "positions", what if counts else "the rotation is the same at all positions", 0
        return
    expected, room = phases.expect(head.box.positions[1], head.noise)
    if phases.is_like and np.all(np.abs(z[1] - expected) <= room):
        if np.max(np.abs(phases.start)) > 8.0 * head.noise:
            yield _describe_positions(head, 0)
        return
    if text := _find_count(head):
        yield "positions", text
        return
    meant = [] if rope is None else [total(rope, head.number)]
    for omega in () if phases.is_like else (phases.frequencies, *meant):
        if omega.shape == phases.frequencies.shape:
            room = 8.0 * head.noise + 2.0**-20 * at[:, None]
            off = np.abs(z[0] - np.exp(1j * np.multiply.outer(at, omega))) > room
            if text := find_rounding(z[0], at, omega, room, off):
                yield "half precision", text, head.find_first_off(omega)
                return
    yield _describe_positions(head, int(phases.is_like))  # the first row, unless it is right


def _describe_positions(head: Head, row: int) -> tuple[str, str, int | None]:
    """Return a fault with the other positions by which the tokens of a row are rotated."""
    at, context, z, phases = head.box.positions[row], head.box.context, head.z[row] / head.size, head.phases
    places, near = find_places(z, phases.frequencies, 1 - context, context)
    wrong, whose = (places != at) & near, "the second row of the batch turns" if row else "they turn"
    if not np.any(wrong) or np.mean(near) < 0.5:
        off = np.max(np.abs(z - phases.expect(at, 0.0)[0]), axis=1) > EXCEEDS
        first = int(np.min(at[off], initial=at.max()))
        return "rows", f"phases are not proportional to positions, first at {first}", first
    shifts = (places - at)[near]
    if np.all(shifts == shifts[0]):
        shift = int(shifts[0])
        text = f"{whose} by positions that are {abs(shift)} {'more' if shift > 0 else 'less'} than those given"
        moves = np.max(np.abs(head.seen["again"] - head.z)) > 16.0 * head.noise * head.size
        since = ", and by others at the next call: tokens of earlier calls are counted" if moves else ""
        return "positions", text + since, None if row else 0
    first = int(at[wrong].min())
    turns_as = int(places[at == first][0])
    if np.all(places[near & (at >= first)] == first - 1) and first < at.max():
        return "too short", f"the table ends: from {first} on all positions turn as {first - 1} does", first
    if turns_as < first and np.all(places[near] == at[near] % (first - turns_as)):
        return "positions", f"positions begin again at {first - turns_as}", first
    return "positions", f"position {first} turns as position {turns_as} does", first


def _check_precision(head: Head, rope: Rope | None) -> Faults:
    """Yield half precision, and changes between calls."""
    pairs, steps, wide = head.box.pairs, choose_steps(head.box.context), 8.0 * head.box.noise
    first, second = pairs.order[pairs.first], pairs.order[pairs.second]
    places = np.argmax(head.box.positions[0] == steps[:, None], axis=1)
    before = head.matrices[:, pairs.first, first] + 1j * head.matrices[:, pairs.first, second]
    changed = np.max(np.abs(before - head.z[0, places])) > wide
    if head.narrow:
        since = ", since the first call: that was not" if changed else ""
        text = f"cos and sin are rounded to {HALVES[head.narrow]}{since}"
        yield "half precision", text, head.find_first_off(head.phases.frequencies)
    elif changed or np.max(np.abs(head.seen["again"] - head.z)) > wide:
        yield "state", "the same call gives another result the next time"


def _check_single(head: Head, rope: Rope | None) -> Faults:
    """Yield what is wrong with positions in calls with one token per row."""
    context, given = head.box.context, choose_single(head.box.context)
    z = np.stack([head.seen["single 0"][:, 0], head.seen["single 1"][:, 0]])
    z = z / np.maximum(np.abs(z), 1e-30)
    expected, room = head.phases.expect(given, 0.01 + 8.0 * head.noise)
    is_near = np.abs(z - expected) <= room
    if np.all(is_near):
        return
    if np.all(is_near[0]) and np.max(np.abs(z[1] - z[0])) <= 0.01:
        yield "state", "a call turns by the positions of the one before, which had as many tokens"
        return
    places, near = find_places(z.reshape(-1, z.shape[-1]), head.phases.frequencies, 1 - context, 2 * context)
    row = int(np.argmax(places != given.ravel()))
    what = f"a token at {given.ravel()[row]} turns as position {places[row]} does"
    yield "positions", f"alone in its call, {what if np.all(near) else 'a token turns by no position'}"


# -- heads and sides ---------------------------------------------------------------------------------------------------


def _check_heads(head: Head, rope: Rope | None) -> Faults:
    """Yield how a head differs from the first of its side that rotates."""
    one = head.box.firsts.get(head.side)
    if one is None:
        return
    if head.pairs.pairing is None:
        yield "heads", f"no rotation, where head {one.number} turns"
    elif abs(head.size / one.size - 1.0) > 16.0 * head.noise:
        yield "heads", f"factor {head.size:.6g}, where head {one.number} has {one.size:.6g}"
    elif not _has_sets(rope) and not head.phases.is_near(one.phases):
        yield "heads", f"other frequencies than those of head {one.number}"


def _check_direction(box: Box, rope: Rope | None) -> Faults:
    """Yield differences between queries and keys, and scores that are not those of lags."""
    firsts, sides = box.firsts, {head.side for head in box.heads}
    if "scores" in firsts:
        head, at = firsts["scores"], box.positions[0][:, None]
        found, room = head.seen["lagged"][0] / head.size, 0.01 + 2.0**-20 * at
        waves = (np.exp(1j * (at + sign * ORIGIN) * head.phases.frequencies) for sign in (-1, 1))
        of_lags, of_sums = (np.all(np.abs(found - one) <= room) for one in waves)
        if not of_lags:
            what = "the sum of positions, not their difference" if of_sums else "more than the difference"
            yield "direction", f"scores depend on {what}"
    elif len(firsts) == 1 < len(sides):
        (still,) = sides - {*firsts}
        yield "direction", f"{still} do not turn, and the others do: scores are not those of lags"
    elif len(firsts) == 2 and not (q := firsts["queries"].phases).is_near(k := firsts["keys"].phases):
        if q.is_near(k, -1.0):
            yield "direction", "keys turn in the opposite direction to queries: scores depend on the sum of positions"
        elif rope is None:
            yield "direction", "queries and keys turn by different frequencies"


def _check_exchanged(box: Box, rope: Rope | None) -> Faults:
    """Yield which heads or rows are exchanged, or use key heads of another group; lengths differ by head."""
    for head in box.turning if box.kv_heads else ():
        count = sum(one.side == head.side for one in box.heads)
        in_group = box.kv_heads if head.side == "scores" else count
        own, h, rows = head.number * in_group // count, head.number, head.seen["single 0"][:, 0]
        for row, z in enumerate(rows):
            length, wanted = (np.median(np.abs(z)) or 1.0) / head.size, row * in_group + own
            other, found = divmod(round(length) - 1, in_group)
            if abs(length / (1.0 + wanted) - 1.0) <= 0.01 + 8.0 * box.noise:
                continue
            text = f"{head.side}: head {h} of row {row} of the batch comes from head {found} of row {other}"
            if not 0 <= other < len(rows) or abs(length - round(length)) > 0.1:
                text = f"{head.side}: head {h} has another length where heads differ"
            elif head.side == "scores" and other == row:
                text = f"query head {h} meets key head {found}, and {own} is that of its group"
            yield "heads", text
            return


def _check_rest(head: Head, rope: Rope | None) -> Faults:
    """Yield changes of unrotated features."""
    one = head.pairs
    rest = np.setdiff1d(np.arange(head.box.width), np.concatenate([one.first, one.second]))
    values = head.matrices[:, rest, one.order[rest]]
    usual = (1.0, head.box.factors[head.side])  # a factor is reported elsewhere
    off = ~np.all(np.any([np.abs(values / value - 1.0) <= 8.0 * head.noise for value in usual], axis=0), axis=0)
    if np.any(off):
        values, count = values[:, off], np.sum(off)
        which = f"{count} features that do not turn are" if count > 1 else f"feature {rest[off][0]} is"
        least, most = np.min(values), np.max(values)
        times = f"{least:.6g}" if most - least <= 0.01 * abs(most) else f"{least:.6g} to {most:.6g}"
        yield "width", f"{which} {'left out' if np.max(np.abs(values)) < _LOST else f'multiplied by {times}'}"


# -- comparison with the expected Rope ---------------------------------------------------------------------------------


def total(rope: Rope, head: int = 0) -> np.ndarray:
    """Return frequencies for positions that are equal on all axes."""
    if rope.sections is not None:
        return np.asarray(rope.frequencies, dtype=np.float64)
    vectors = np.asarray(rope.vectors, dtype=np.float64)
    vectors = vectors[head % len(vectors)] if vectors.ndim == 3 else vectors
    return np.asarray(vectors if vectors.ndim == 1 else vectors.sum(axis=-1))


def _compare_pairs(box: Box, rope: Rope | None) -> Faults:
    """Yield differences in pairing and in the first rotated feature."""
    if rope is None or not box.turning:
        return
    one, start = box.pairs, box.width - rope.rotary_dim if rope.source.model.turns_last else 0
    if rope.pairing and one.pairing != rope.pairing and one.first.size > 1:
        yield "pairing", f"it turns by pairing {one.pairing!r}, expected {rope.pairing!r}"
    if one.start != start and rope.rotary_dim < box.width and not _has_no_order(box, rope):
        yield "width", f"features from {one.start} on turn, expected those from {start} on"


def _has_no_order(box: Box, rope: Rope) -> bool:
    """Return whether blocks are paired otherwise than expected, in no order to compare."""
    return bool(rope.pairing) and box.pairs.pairing == "other" and box.pairs.first.size > 1


def _compare_frequencies(head: Head, rope: Rope | None) -> Faults:
    if rope is None or _has_no_order(head.box, rope):
        return
    wanted, values, allowed = total(rope, head.number), head.phases.frequencies, head.phases.allowed
    first = head.find_first_off(wanted) if wanted.size == values.size else None
    if values.size < wanted.size and not np.any(np.abs(wanted[values.size :]) > TINY):
        values, allowed = (np.pad(each, (0, wanted.size - each.size)) for each in (values, allowed))
    flat = replace(rope, frequencies=wanted, sections=None, interleaved=False)  # one axis, one head
    if values.size != wanted.size:
        yield "width", describe_width(values, flat), first
        return
    room = allowed + ROUNDED * np.abs(wanted) + TINY
    if np.any(np.abs(np.remainder(values - wanted + np.pi, 2.0 * np.pi) - np.pi) > room):
        yield from ((*one, first) for one in describe_difference(values, flat, room, ""))


def _compare_axes(head: Head, rope: Rope | None) -> Faults:
    """Yield axes by which no block of a head rotates, and blocks that rotate along the wrong axis."""
    if (found := head.vectors) is None:
        return
    wanted, dealing = None if rope is None else np.asarray(rope.vectors, dtype=np.float64), ""
    if wanted is not None and wanted.ndim == 3:
        wanted = wanted[head.number % len(wanted)]
    if rope is not None and wanted is not None and wanted.shape == found.shape:
        room = 0.01 * np.max(np.abs(wanted), axis=1, keepdims=True)
        if np.all(np.abs(found - wanted) <= room):
            return
        dealing = describe_section_mismatch(found, wanted, room, rope)
    turning = np.abs(np.concatenate([one.phases.frequencies for one in head.box.turning]))
    slowest = np.min(turning[turning > 0.0], initial=1.0)
    used = np.any(np.abs(found) > 1e-3 * slowest, axis=0)
    if not np.all(used):
        yield "sections", f"positions along axes {', '.join(map(str, np.flatnonzero(~used)))} are given and never used"
    elif dealing:
        yield "sections", dealing


def _compare_factors(box: Box, rope: Rope | None) -> Faults:
    if rope is None or not box.turning:
        return
    meant, room, found = rope.attention_factor, 8.0 * box.turning[0].noise, box.factors
    off = [name for name, value in found.items() if abs(value / meant ** (1 + (name == "scores")) - 1.0) > room]
    if not off:
        return
    if "scores" in found:
        text = f"{describe_factor(float(np.sqrt(found['scores'])), rope)} (by the root of that of scores)"
        yield "attention factor", text
        return
    text = describe_factor(found[off[0]], rope)
    if right := [name for name in found if name not in off]:
        text = f"{right[0]} alone have the factor {meant:.6g}; {off[0]}: {text}"
    elif abs(found["queries"] * found["keys"] / meant**2 - 1.0) <= room:
        text = f"queries have {found['queries']:.6g}, keys {found['keys']:.6g}; only their product is the one meant"
    if abs(box.factors_of_rest.get(off[0], 1.0) - 1.0) > room:
        text += "; features that do not turn have it, too: it multiplies scores"
    yield "attention factor", text


_STAGES: tuple[tuple[tuple[str, Callable[[Any, Rope | None], Faults]], ...], ...] = (
    (("heads", check_values),),
    (("box", _check_layer),),
    (("turning", _check_pairs),),
    (("turning", _check_shape), ("box", _check_sides)),
    (("turning", _check_lengths),),
    (("turning", _check_positions),),
    (("turning", _check_precision),),
    (("heads", _check_heads), ("box", _check_direction)),
    (
        ("turning", _check_single),
        ("box", _check_exchanged),
        ("turning", _check_rest),
        ("box", _compare_pairs),
        ("turning", _compare_frequencies),
        ("turning", _compare_axes),
        ("box", _compare_factors),
    ),
)
