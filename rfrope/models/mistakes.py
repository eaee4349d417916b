"""Descriptions of wrong frequencies and factors, and the known mistakes that they look like."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from rfrope.models.buffers import HALVES, ROUNDED, bits, rounded
from rfrope.models.rope_parameters import from_rope_parameters
from rfrope.rotation.pairings import assign_blocks
from rfrope.rotation.rope import Rope
from rfrope.scaling import schemes
from rfrope.scaling.registry import ladder

_BASES = (10_000.0, 500_000.0, 1_000_000.0)
_ORIGINAL = "original_max_position_embeddings"
_NARROW = 2.0**-8  # relative error of half precision, with a margin
_LADDER = 1e-5  # relative tolerance of the base of a ladder


def describe_difference(found: np.ndarray, rope: Rope, allowed: np.ndarray, dtype: str) -> Iterator[tuple[str, str]]:
    """Yield faults of frequencies that are as many as expected; `dtype` is "" if they were read from a table."""
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
        worst = int(np.argmax(apart > 0.5 * np.max(apart)))  # the first of the largest
        where = f"block {worst}: {found[worst]:.6g}, not {expected[worst]:.6g}"
        text = likeness or "no known mistake gives them; perhaps uninitialised memory, or another model's"
        yield "frequencies", f"frequencies are not as expected ({where}): {text}"


def _name_mistake(found: np.ndarray, rope: Rope, allowed: np.ndarray, *, whole_turns: bool) -> str:
    for name, wrong in mistakes(rope):
        if wrong.shape == found.shape and np.all(np.isfinite(wrong)):
            apart = np.abs(found - wrong)
            if whole_turns:  # tables at whole positions do not show whole turns
                apart = np.abs(np.remainder(apart + np.pi, 2.0 * np.pi) - np.pi)
            if np.all(apart <= np.maximum(allowed, ROUNDED * np.abs(wrong))):
                return f"they are {name}"
    expected = np.asarray(rope.frequencies)
    still = (np.abs(found) <= allowed) & (np.abs(expected) > allowed)
    if np.any(still) and np.all((np.abs(found - expected) <= allowed) | still) and not np.all(still):
        blocks = ", ".join(map(str, np.flatnonzero(still)[:3])) + (", ..." if np.sum(still) > 3 else "")
        return f"{np.sum(still)} of {still.size} do not turn ({blocks}), and the others are right"
    text = _describe(found, expected)
    return f"they are {text}" if text else ""


def describe_width(found: np.ndarray, rope: Rope) -> str:
    """Describe a number of frequencies that is too large or too small."""
    meant = rope.n_blocks
    text = f"{found.size} frequencies for {2 * found.size} features of a head, expected {meant} for {2 * meant}"
    head_dim = rope.head_dim or 0
    if 2 * meant < head_dim == 2 * found.size:
        text += ": the whole head turns, and partial_rotary_factor was left out"
    elif 2 * found.size < head_dim == 2 * meant:
        text += ": part of the head turns, expected all of it"
    ladder = _describe(found, np.asarray(rope.frequencies))
    return f"{text} ({ladder})" if ladder else text


def describe_factor(found: float, rope: Rope) -> str:
    """Describe an attention factor that is not the expected one, and the known mistake that gives it, if any."""
    meant = rope.attention_factor
    known = {"it was left out": 1.0, "it was applied twice": meant**2}
    known |= {"its root": math.sqrt(meant), "its inverse": 1.0 / meant}
    parameters = rope.source.rope_parameters
    if parameters.get("mscale") and parameters.get("mscale_all_dim") and parameters.get("factor"):
        known["mscale_all_dim was left out"] = schemes.sharpen_yarn(parameters["factor"], parameters["mscale"])
    like = [name for name, value in known.items() if value != meant and abs(found / value - 1.0) < 2e-3]
    return f"attention factor {found:.6g}, expected {meant:.6g}" + "".join(f": {name}" for name in like[:1])


def describe_section_mismatch(found: np.ndarray, wanted: np.ndarray, room: np.ndarray, rope: Rope) -> str:
    """Describe how blocks are assigned to axes, for frequencies (D, k) that are not the expected ones."""
    axes = wanted.shape[1]
    for order in itertools.permutations(range(axes)):
        if np.all(np.abs(found[:, order] - wanted) <= room):
            names = ", ".join(f"{a} for {b}" for b, a in enumerate(order) if a != b)
            return f"axes of positions are swapped: {names}"
    if rope.sections is not None:
        ways = ("one after the other", "in turn")
        counted = tuple(int(np.sum(np.argmax(np.abs(found), axis=1) == axis)) for axis in range(axes))
        is_in_turn = not rope.interleaved
        for lengths in (rope.sections, counted):
            try:
                other = np.asarray(assign_blocks(np.asarray(rope.frequencies), lengths, is_in_turn))
            except (ValueError, TypeError):
                continue
            if np.all(np.abs(found - other) <= room):
                return f"blocks are assigned to axes {ways[is_in_turn]}, expected {ways[rope.interleaved]}"
    block = int(np.argmax(np.max(np.abs(found - wanted) / room, axis=1)))
    at, meant = (int(np.argmax(np.abs(each[block]))) for each in (found, wanted))
    return f"block {block} turns along axis {at}, expected axis {meant}"


# -- known mistakes ----------------------------------------------------------------------------------------------------


def mistakes(rope: Rope) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the names of mistakes, the likeliest first, with the frequencies that each gives for a Rope."""
    frequencies = np.asarray(rope.frequencies, dtype=np.float64)
    parameters = rope.source.rope_parameters
    if parameters and rope.head_dim is not None and parameters["rope_type"] != "axial":
        for name, changed in (*_change_scheme(rope, parameters), *_change_values(rope, parameters)):
            yield from _make(rope, name, changed)
        yield from _change_exponents(rope, parameters["rope_theta"], frequencies)
        if parameters["rope_type"] == "yarn" and isinstance(original := parameters.get(_ORIGINAL, rope.context), int):
            yield "those of beta_fast and beta_slow swapped", _swap_betas(2 * rope.n_blocks, parameters, original)
    yield "the frequencies in reverse order", frequencies[::-1]
    yield "the frequencies sorted from fast to slow", np.sort(frequencies)[::-1]
    yield "the frequencies sorted from slow to fast", np.sort(frequencies)
    with np.errstate(divide="ignore"):
        yield "their reciprocals (periods over 2 pi)", 1.0 / frequencies
    yield "turns instead of radians (divided by 2 pi)", frequencies / (2.0 * math.pi)
    yield "radians taken for degrees (multiplied by pi / 180)", frequencies * (math.pi / 180.0)
    yield "radians multiplied by 2 pi", frequencies * (2.0 * math.pi)
    yield "the frequencies with the opposite sign", -frequencies


def _change_scheme(rope: Rope, parameters: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield parameters with no scheme, another base, or another scheme with the same factor."""
    base, name, factor = parameters["rope_theta"], parameters["rope_type"], parameters.get("factor")
    original = parameters.get(_ORIGINAL, rope.context)
    plain = {"rope_theta": base}
    if name != "default":
        yield f"those of plain RoPE: the scheme {name!r} was left out", plain
    for other in _BASES:
        if other != base:
            yield f"those of base {other:g} instead of {base:g}", parameters | {"rope_theta": other}
            yield f"those of plain RoPE with base {other:g} instead of {base:g}", {"rope_theta": other}
    if factor is not None and factor > 1.0:
        for scheme in ("linear", "ntk", "yarn"):
            if scheme != name and (scheme != "yarn" or original is not None):
                context = {_ORIGINAL: original} if scheme == "yarn" else {}
                changed = {"rope_type": scheme, "factor": factor, **context}
                yield f"those of {scheme!r} instead of {name!r}", plain | changed
        if name not in ("dynamic", "longrope"):  # has no effect there
            yield "those of the factor applied twice", parameters | {"factor": factor * factor}


def _change_values(rope: Rope, parameters: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield parameters with another original context, another ramp, or the other list."""
    name, original = parameters["rope_type"], parameters.get(_ORIGINAL, rope.context)
    if name == "yarn":
        truncate = not parameters.get("truncate", True)
        yield f"those of truncate {str(truncate).lower()}", parameters | {"truncate": truncate}
    if name in ("yarn", "llama3"):
        for context in (rope.context, 2048, 4096, 8192, 32768):
            if context not in (None, original):
                yield f"those of {_ORIGINAL} {context} instead of {original}", parameters | {_ORIGINAL: context}
    if name == "longrope":
        swapped = {"short_factor": parameters["long_factor"], "long_factor": parameters["short_factor"]}
        for lists in (parameters, swapped):  # one of the two is right
            yield "those of longrope's other list: short for long texts, or the reverse", parameters | lists


def _make(rope: Rope, name: str, parameters: dict[str, Any]) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the frequencies that such values give, if valid."""
    parameters = {key: value for key, value in parameters.items() if "section" not in key and "interleaved" not in key}
    meant = rope.source.rope_parameters
    is_whole = meant["rope_type"] == "proportional" and "rope_type" not in parameters
    parameters["partial_rotary_factor"] = 1.0 if is_whole else meant.get("partial_rotary_factor", 1.0)
    context = rope.context if isinstance(rope.context, int) else None
    try:
        made = from_rope_parameters(parameters, head_dim=rope.head_dim or 0, max_position_embeddings=context)
    except (ValueError, TypeError):
        return
    yield name, np.asarray(made.frequencies, dtype=np.float64)


def _swap_betas(width: int, parameters: dict[str, Any], original: int) -> np.ndarray:
    """Return YaRN's frequencies with a falling instead of a rising ramp; the scheme itself refuses such values."""
    base = parameters["rope_theta"]
    plain = ladder(width, base)
    betas = parameters.get("beta_slow") or 1.0, parameters.get("beta_fast") or 32.0
    low, high = schemes.ramp_ends(width, math.log(base), original, *betas, parameters.get("truncate", True))
    ramp = np.clip((np.arange(width // 2) - low) / (high - low), 0.0, 1.0)
    return np.asarray(plain * (1.0 - ramp) + plain / parameters["factor"] * ramp)


def _change_exponents(rope: Rope, base: float, frequencies: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Yield ladders with wrong exponents."""
    blocks, width = frequencies.size, 2 * frequencies.size
    index, wide = np.arange(blocks), ladder(rope.head_dim or width, base)
    yield "the ladder of the whole head, cut off: exponents over head_dim", wide[:blocks]
    if rope.source.rope_parameters["rope_type"] == "proportional":
        turned = max(1, int(np.sum(frequencies > 0.0)))
        narrow = np.concatenate([ladder(2 * turned, base), np.zeros(blocks - turned)])
        yield "a ladder over the rotated width alone, where the scheme takes that of the whole head", narrow
    yield "exponents twice as large (2i / D instead of i / D)", base ** (-2.0 * index / blocks)
    yield "exponents half as large (i / d instead of 2i / d)", base ** (-index / width)
    yield "exponents that begin with i = 1", base ** (-(index + 1.0) / blocks)
    if blocks > 1:
        yield "exponents that reach 1 (linspace with both ends)", base ** (-index / (blocks - 1.0))


def _describe(found: np.ndarray, expected: np.ndarray) -> str:
    """Describe frequencies that no known mistake gives: all multiplied by a number, or a ladder of another base."""
    if found.shape == expected.shape and np.array_equal(found == 0.0, expected == 0.0):
        turning = expected != 0.0
        ratio = found[turning] / expected[turning]
        if ratio.size > 1 and np.max(np.abs(ratio / ratio[0] - 1.0)) < _LADDER:
            return f"all frequencies multiplied by {ratio[0]:.6g}"
    if found.size > 1 and np.all(found > 0.0) and abs(found[0] - 1.0) < _LADDER:
        base = float(found[-1] ** (-found.size / (found.size - 1.0)))
        if base > 1.0 and np.max(np.abs(ladder(2 * found.size, base) / found - 1.0)) < _LADDER * math.log(base):
            return f"those of plain RoPE with base {base:.6g}"
    return ""
