"""Frequencies that a model gets by known mistakes, so that an audit can say what a wrong set looks like."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from rfrope.models.rope_parameters import from_rope_parameters
from rfrope.rotation.rope import Rope
from rfrope.scaling.registry import ladder

_BASES = (10_000.0, 500_000.0, 1_000_000.0)
_LADDER = 1e-5  # how far, relatively, a ladder may be from its base


@dataclass(frozen=True, eq=False)
class Mistake:
    """Frequencies, and by what mistake they come about."""

    name: str
    frequencies: np.ndarray


def mistakes(rope: Rope) -> Iterator[Mistake]:
    """Yield sets that are not those of a Rope, the likeliest first."""
    frequencies = np.asarray(rope.frequencies, dtype=np.float64)
    parameters = rope.source.rope_parameters
    if parameters and rope.head_dim is not None and parameters["rope_type"] != "axial":
        yield from _change_scheme(rope, dict(parameters), frequencies)
    yield Mistake("the frequencies in reverse order", frequencies[::-1])
    with np.errstate(divide="ignore"):
        yield Mistake("their reciprocals (periods over 2 pi)", 1.0 / frequencies)
    yield Mistake("turns instead of radians (divided by 2 pi)", frequencies / (2.0 * math.pi))
    yield Mistake("radians multiplied by 2 pi", frequencies * (2.0 * math.pi))
    yield Mistake("the frequencies with the other sign: it turns the other way", -frequencies)


def _change_scheme(rope: Rope, parameters: dict[str, Any], frequencies: np.ndarray) -> Iterator[Mistake]:
    base, part, name = parameters["rope_theta"], parameters.get("partial_rotary_factor", 1.0), parameters["rope_type"]
    if name != "default":
        yield from _make(rope, f"the plain ladder: the scheme {name!r} was left out", {"rope_theta": base}, part)
    for other in _BASES:
        if other != base:
            yield from _make(
                rope, f"those of base {other:g} instead of {base:g}", parameters | {"rope_theta": other}, part
            )
            plain = {"rope_theta": other}
            yield from _make(rope, f"the plain ladder of base {other:g} instead of {base:g}", plain, part)
    yield from _change_values(rope, parameters, part)
    blocks, width = frequencies.size, 2 * frequencies.size
    index = np.arange(blocks)
    wide = ladder(rope.head_dim or width, base)[:blocks]
    yield Mistake("the ladder of the whole head, cut off: exponents over head_dim", wide)
    if name == "proportional":
        turned = max(1, int(np.sum(frequencies > 0.0)))
        narrow = np.concatenate([ladder(2 * turned, base), np.zeros(blocks - turned)])
        yield Mistake("a ladder over the rotated width alone, where the scheme takes that of the whole head", narrow)
    yield Mistake("exponents twice as large (2i / D instead of i / D)", base ** (-2.0 * index / blocks))
    yield Mistake("exponents half as large (i / d instead of 2i / d)", base ** (-index / width))
    yield Mistake("exponents that begin with i = 1", base ** (-(index + 1.0) / blocks))
    if blocks > 1:
        yield Mistake("exponents that reach 1 (linspace with both ends)", base ** (-index / (blocks - 1.0)))


def _change_values(rope: Rope, parameters: dict[str, Any], part: float) -> Iterator[Mistake]:
    """Yield the scheme with values that are often wrong, and other schemes with its factor."""
    name, factor, context = parameters["rope_type"], parameters.get("factor"), rope.context
    plain = {"rope_theta": parameters["rope_theta"]}
    original = parameters.get("original_max_position_embeddings", context)
    if factor is not None and factor > 1.0:
        for other in ("linear", "ntk"):
            if other != name:
                yield from _make(
                    rope,
                    f"those of {other!r} instead of {name!r}",
                    plain | {"rope_type": other, "factor": factor},
                    part,
                )
        if name != "yarn" and original is not None:
            yarn = {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original}
            yield from _make(rope, f"those of 'yarn' instead of {name!r}", plain | yarn, part)
        if name != "dynamic":
            yield from _make(rope, "those of the factor applied twice", parameters | {"factor": factor * factor}, part)
    yield from _change_originals(rope, parameters, part)


def _change_originals(rope: Rope, parameters: dict[str, Any], part: float) -> Iterator[Mistake]:
    """Yield the scheme with another original context, another ramp, the other list."""
    name, context = parameters["rope_type"], rope.context
    original = parameters.get("original_max_position_embeddings", context)
    if name == "yarn":
        truncate = not parameters.get("truncate", True)
        yield from _make(rope, f"those of truncate {str(truncate).lower()}", parameters | {"truncate": truncate}, part)
    if name in ("yarn", "llama3"):
        for other in (context, 2048, 4096, 8192, 32768):
            if other is not None and other != original:
                changed = parameters | {"original_max_position_embeddings": other}
                text = f"those of original_max_position_embeddings {other} instead of {original}"
                yield from _make(rope, text, changed, part)
    if name == "longrope":
        swapped = parameters | {"short_factor": parameters["long_factor"], "long_factor": parameters["short_factor"]}
        yield from _make(rope, "those of longrope's other list, of short for long texts or the reverse", swapped, part)


def _make(rope: Rope, name: str, parameters: dict[str, Any], part: float) -> Iterator[Mistake]:
    """Yield the set that such values make, if they make one."""
    assert rope.head_dim is not None  # set by every Rope
    parameters = {key: value for key, value in parameters.items() if "section" not in key and "interleaved" not in key}
    is_whole = rope.source.rope_parameters["rope_type"] == "proportional" and "rope_type" not in parameters
    parameters = parameters | {"partial_rotary_factor": 1.0 if is_whole else part}
    context = rope.context if isinstance(rope.context, int) else None
    try:
        made = from_rope_parameters(parameters, head_dim=rope.head_dim, max_position_embeddings=context)
    except (ValueError, TypeError):
        return
    yield Mistake(name, np.asarray(made.frequencies, dtype=np.float64))


def described(found: np.ndarray, expected: np.ndarray) -> str:
    """Say something of a set that no known mistake makes: all multiplied by a number, or a ladder of another base."""
    if found.shape == expected.shape and np.array_equal(found == 0.0, expected == 0.0):
        turning = expected != 0.0
        ratio = found[turning] / expected[turning]
        if ratio.size > 1 and np.max(np.abs(ratio / ratio[0] - 1.0)) < _LADDER:
            return f"all frequencies multiplied by {ratio[0]:.6g}"
    if found.size > 1 and np.all(found > 0.0) and abs(found[0] - 1.0) < _LADDER:
        base = float(found[-1] ** (-found.size / (found.size - 1.0)))
        if base > 1.0 and np.max(np.abs(ladder(2 * found.size, base) / found - 1.0)) < _LADDER * math.log(base):
            return f"a plain ladder with base {base:.6g}"
    return ""
