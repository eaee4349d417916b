"""Words for frequencies and factors that are not those meant, and for the mistake that they look like."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np

from rfrope.models.mistakes import describe, mistakes
from rfrope.models.tables import HALVES, ROUNDED, bits, rounded
from rfrope.rotation.pairings import dealt
from rfrope.rotation.rope import Rope

_NARROW = 2.0**-8  # what half precision leaves unknown, with some room


def describe_difference(found: np.ndarray, rope: Rope, allowed: np.ndarray, dtype: str) -> Iterator[tuple[str, str]]:
    """Yield faults of as many frequencies as there should be; those that were read from a table have no dtype."""
    expected = np.asarray(rope.frequencies)
    for width, name in HALVES.items():
        if np.all(np.abs(found - rounded(expected, width)) <= allowed):
            yield "half precision", f"values rounded to {name}"
            return
    narrow = HALVES.get(bits(found, dtype)) if dtype else None
    room = np.maximum(allowed, (_NARROW if narrow else 0.0) * np.abs(expected))
    likeness = _name_mistake(found, rope, room, whole_turns=not dtype)
    is_near = bool(np.all(np.abs(found - expected) <= 0.2 * np.abs(expected)))
    if narrow:
        yield "half precision", f"values in {narrow}" + (", computed there" if is_near and not likeness else "")
    if not narrow or likeness or not is_near:
        apart = np.abs(found - expected) / np.where(expected == 0.0, 1.0, np.abs(expected))
        worst = int(np.argmax(apart > 0.5 * np.max(apart)))  # the first of those
        where = f"block {worst}: {found[worst]:.6g}, not {expected[worst]:.6g}"
        text = likeness or "no known mistake makes them; perhaps uninitialised memory, or another model's"
        yield "frequencies", f"frequencies are not those meant ({where}): {text}"


def _name_mistake(found: np.ndarray, rope: Rope, allowed: np.ndarray, *, whole_turns: bool) -> str:
    for name, wrong in mistakes(rope):
        if wrong.shape == found.shape and np.all(np.isfinite(wrong)):
            apart = np.abs(found - wrong)
            if whole_turns:  # rows at whole positions do not show them
                apart = np.abs(np.remainder(apart + np.pi, 2.0 * np.pi) - np.pi)
            if np.all(apart <= np.maximum(allowed, ROUNDED * np.abs(wrong))):
                return f"they are {name}"
    expected = np.asarray(rope.frequencies)
    still = (np.abs(found) <= allowed) & (np.abs(expected) > allowed)
    if np.any(still) and np.all((np.abs(found - expected) <= allowed) | still) and not np.all(still):
        blocks = ", ".join(map(str, np.flatnonzero(still)[:3])) + (", ..." if np.sum(still) > 3 else "")
        return f"{np.sum(still)} of {still.size} stand still ({blocks}), and the others are those meant"
    text = describe(found, expected)
    return f"they are {text}" if text else ""


def describe_width(found: np.ndarray, rope: Rope) -> str:
    """Say that there are more or fewer frequencies than are meant."""
    meant = rope.n_blocks
    text = f"{found.size} frequencies, for {2 * found.size} features of a head, and {meant} are meant, for {2 * meant}"
    head_dim = rope.head_dim or 0
    if 2 * meant < head_dim == 2 * found.size:
        text += ": the whole head turns, and partial_rotary_factor was left out"
    elif 2 * found.size < head_dim == 2 * meant:
        text += ": a part of the head turns, and the whole is meant"
    ladder = describe(found, np.asarray(rope.frequencies))
    return f"{text} ({ladder})" if ladder else text


def describe_factor(found: float, rope: Rope) -> str:
    """Say that an attention factor is not the one meant, and what made it, if a known mistake did."""
    meant = rope.attention_factor
    known = {"it was left out": 1.0, "it was applied twice": meant**2}
    known |= {"its root": math.sqrt(meant), "its inverse": 1.0 / meant}
    parameters = rope.source.rope_parameters
    if parameters.get("mscale") and parameters.get("mscale_all_dim") and parameters.get("factor"):
        known["mscale_all_dim was left out"] = 0.1 * parameters["mscale"] * math.log(parameters["factor"]) + 1.0
    like = [name for name, value in known.items() if value != meant and abs(found / value - 1.0) < 2e-3]
    return f"attention factor {found:.6g}, and {meant:.6g} is meant" + "".join(f": {name}" for name in like[:1])


def describe_dealing(found: np.ndarray, wanted: np.ndarray, room: np.ndarray, rope: Rope) -> str:
    """Say how blocks are dealt out to axes, of frequencies (D, k) that are not those wanted."""
    axes = wanted.shape[1]
    for order in itertools.permutations(range(axes)):
        if np.all(np.abs(found[:, order] - wanted) <= room):
            names = ", ".join(f"{a} for {b}" for b, a in enumerate(order) if a != b)
            return f"axes of positions are swapped: {names}"
    if rope.sections is not None:
        ways = {False: "one after the other", True: "in turn"}
        counted = tuple(int(np.sum(np.argmax(np.abs(found), axis=1) == axis)) for axis in range(axes))
        is_in_turn = not rope.interleaved
        for lengths in (rope.sections, counted):
            try:
                other = np.asarray(dealt(np.asarray(rope.frequencies), lengths, is_in_turn))
            except (ValueError, TypeError):
                continue
            if np.all(np.abs(found - other) <= room):
                return f"blocks are dealt out to axes {ways[is_in_turn]}, and {ways[rope.interleaved]} is meant"
    block = int(np.argmax(np.max(np.abs(found - wanted) / room, axis=1)))
    at, meant = (int(np.argmax(np.abs(each[block]))) for each in (found, wanted))
    return f"block {block} turns along axis {at}, and axis {meant} is meant"
