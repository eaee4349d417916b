"""Frequencies that a model gets by known mistakes, so that an audit can say what a wrong set looks like."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from rfrope.models.rope_parameters import from_rope_parameters
from rfrope.rotation.rope import Rope
from rfrope.scaling.registry import ladder

_BASES = (10_000.0, 500_000.0, 1_000_000.0)
_ORIGINAL = "original_max_position_embeddings"
_LADDER = 1e-5  # how far, relatively, a ladder may be from its base


def mistakes(rope: Rope) -> Iterator[tuple[str, np.ndarray]]:
    """Yield names of mistakes, the likeliest first, with the frequencies that a Rope has by each."""
    frequencies = np.asarray(rope.frequencies, dtype=np.float64)
    parameters = rope.source.rope_parameters
    if parameters and rope.head_dim is not None and parameters["rope_type"] != "axial":
        for name, changed in (*_change_scheme(rope, parameters), *_change_values(rope, parameters)):
            yield from _make(rope, name, changed)
        yield from _change_exponents(rope, parameters["rope_theta"], frequencies)
        if parameters["rope_type"] == "yarn" and isinstance(parameters.get(_ORIGINAL, rope.context), int):
            yield "those of beta_fast and beta_slow in each other's place", _swap_betas(rope, parameters)
    yield "the frequencies in reverse order", frequencies[::-1]
    yield "the frequencies sorted from fast to slow", np.sort(frequencies)[::-1]
    yield "the frequencies sorted from slow to fast", np.sort(frequencies)
    with np.errstate(divide="ignore"):
        yield "their reciprocals (periods over 2 pi)", 1.0 / frequencies
    yield "turns instead of radians (divided by 2 pi)", frequencies / (2.0 * math.pi)
    yield "radians taken for degrees (multiplied by pi / 180)", frequencies * (math.pi / 180.0)
    yield "radians multiplied by 2 pi", frequencies * (2.0 * math.pi)
    yield "the frequencies with the other sign: it turns the other way", -frequencies


def _change_scheme(rope: Rope, parameters: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield no scheme, another base, another scheme with the factor."""
    base, name, factor = parameters["rope_theta"], parameters["rope_type"], parameters.get("factor")
    original = parameters.get(_ORIGINAL, rope.context)
    plain = {"rope_theta": base}
    if name != "default":
        yield f"the plain ladder: the scheme {name!r} was left out", plain
    for other in _BASES:
        if other != base:
            yield f"those of base {other:g} instead of {base:g}", parameters | {"rope_theta": other}
            yield f"the plain ladder of base {other:g} instead of {base:g}", {"rope_theta": other}
    if factor is not None and factor > 1.0:
        for scheme in ("linear", "ntk", "yarn"):
            if scheme != name and (scheme != "yarn" or original is not None):
                context = {_ORIGINAL: original} if scheme == "yarn" else {}
                changed = {"rope_type": scheme, "factor": factor, **context}
                yield f"those of {scheme!r} instead of {name!r}", plain | changed
        if name not in ("dynamic", "longrope"):  # it changes nothing there
            yield "those of the factor applied twice", parameters | {"factor": factor * factor}


def _change_values(rope: Rope, parameters: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the scheme with another original context, another ramp, the other list."""
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
        for lists in (parameters, swapped):  # one of them is meant
            yield "those of longrope's other list, of short for long texts or the reverse", parameters | lists


def _make(rope: Rope, name: str, parameters: dict[str, Any]) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the set that such values make, if they make one."""
    assert rope.head_dim is not None  # set by every Rope
    parameters = {key: value for key, value in parameters.items() if "section" not in key and "interleaved" not in key}
    meant = rope.source.rope_parameters
    is_whole = meant["rope_type"] == "proportional" and "rope_type" not in parameters
    parameters["partial_rotary_factor"] = 1.0 if is_whole else meant.get("partial_rotary_factor", 1.0)
    context = rope.context if isinstance(rope.context, int) else None
    try:
        made = from_rope_parameters(parameters, head_dim=rope.head_dim, max_position_embeddings=context)
    except (ValueError, TypeError):
        return
    yield name, np.asarray(made.frequencies, dtype=np.float64)


def _swap_betas(rope: Rope, parameters: dict[str, Any]) -> np.ndarray:
    """Return YaRN's set with a ramp that falls where it should rise; the scheme refuses such values."""
    width, base = 2 * rope.n_blocks, parameters["rope_theta"]
    original, plain = parameters.get(_ORIGINAL, rope.context), ladder(width, base)
    assert original is not None  # as the caller sees to it
    betas = parameters.get("beta_slow") or 1.0, parameters.get("beta_fast") or 32.0
    low, high = (width * math.log(original / (beta * 2.0 * math.pi)) / (2.0 * math.log(base)) for beta in betas)
    if parameters.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, width - 1)
    ramp = np.clip((np.arange(width // 2) - low) / (high - low or 1e-3), 0.0, 1.0)
    return np.asarray(plain * (1.0 - ramp) + plain / parameters["factor"] * ramp)


def _change_exponents(rope: Rope, base: float, frequencies: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Yield ladders whose exponents are wrong."""
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


def describe(found: np.ndarray, expected: np.ndarray) -> str:
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
