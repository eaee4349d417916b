"""Exact products of positions and frequencies: cos and sin of ``positions . frequencies`` without a rounded phase.

A phase of 1e9 radians has lost seven digits before its cosine is taken. Here a frequency is held in turns,
``omega / (2 pi)``, to twice the working precision; position times turns is formed in exact partial products, whole
turns are removed from each, and only the small remainder meets cos and sin (section 8 of the mathematics page).

Every product that is subtracted from is exact, so a compiler that fuses multiply and add changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from fractions import Fraction
from functools import lru_cache
from types import ModuleType
from typing import Any

import numpy as np

from rfrope._core import array, dispatch, libraries
from rfrope._core.angles import Angles, add_axis_dimension
from rfrope._core.array import Array
from rfrope._core.dispatch import CPU, CUDA, TORCH_ROTATION, dispatched
from rfrope._core.lazy import JAX
from rfrope._core.libraries import TORCH

NEAR, LOWER = 26, 2**26 - 1  # bits of each part of a position
_STEPS = (0, NEAR, -NEAR, -2 * NEAR)  # whose powers of two are the steps that parts count
QUARTER = 2**62  # of a turn, in units of 2**-64
_DIGITS = {"float64": (53, -1073, 1024), "float32": (24, -148, 128)}  # and exponents of frexp


@dispatched(CPU.rotation, CUDA.rotation, TORCH_ROTATION)
def cos_sin(angles: Angles) -> tuple[Array, Array]:
    """Return cos and sin of ``positions . frequencies + shift`` in the widest float of the namespace.

    Returns
    -------
    cos, sin : arrays
        Shaped like the phases, within 1e-15 of the exact values for |position * frequency| <= 2**53 on every axis.
        Without float64: within 2e-7 for integer positions and frequencies that are not traced, and for
        |position * frequency| <= 2**24 otherwise.
    """
    positions, frequencies, _, xp = angles
    device = array.device(positions)
    wide = array.has_float64(xp, device)
    if not wide:
        frequencies = getattr(frequencies, "on_host", frequencies)  # see make_integer_turns
    integers = (
        array.is_integer(positions)
        and array.library_of(xp).wraps_integers
        and not array.library(frequencies).is_traced(frequencies)
    )
    if integers and (
        not wide or array.library(positions).is_traced(positions)
    ):  # where there is float64, for a graph's few operations
        return _cos_sin_of_integers(angles._replace(frequencies=array.to_host(frequencies)), 64 if wide else 32)
    if isinstance(frequencies, np.ndarray):
        angles = angles._replace(frequencies=array.from_host(frequencies, xp, device=device))
    changing = [one for one in angles[:3] if one is not None]
    if any([array.library(one).is_traced(one) and not array.is_integer(one) for one in changing]):
        return JAX.attach_derivative(_cos_sin_of, _slope)(*changing)
    return _cos_sin(angles)


def cos_sin_for(x: Array, angles: Angles) -> tuple[Array, Array]:
    """Return cos and sin for features x: in float32 where these are no wider and each operator is a launch."""
    made_of = [one for one in angles[:3] if one is not None and type(one) is not np.ndarray]
    by_words = array.dtype_name(x) != "float64" and all([dispatch.uses_integer_phases(one) for one in (x, *made_of)])
    cos, sin = (cos_sin_float32 if by_words and not array.needs_gradient(*made_of) else cos_sin)(angles)
    return cos, sin


@dispatched(TORCH_ROTATION)
def cos_sin_float32(angles: Angles) -> Array:
    """Return cos and sin as `cos_sin` does, in float32: by eight operators of torch for integer positions.

    Turns are whole numbers in units of 2**-64, which wrap. The sine of t is that of a quarter turn less the distance of
    t from a quarter turn, and the cosine that of a quarter turn less the distance of t from 0: neither takes a case.

    Returns
    -------
    array (2, ...), float32
        Both shaped like the phases, within 1.5e-7 of the exact values for positions of up to 2**53. For Apple's devices
        they are a table from the host, of frequencies that are known there, and for others as `cos_sin`.
    """
    positions, frequencies, shift, xp = angles
    if not TORCH.wraps_words(array.device(positions)):
        return _waves_from_host(angles)
    if array.dtype_name(positions) in ("float16", "bfloat16"):
        return cos_sin_float32(angles._replace(positions=array.astype(positions, xp.float32, xp)))
    device, add_product = array.device(positions), TORCH.add_product
    starts, unit, nothing = TORCH.constants("quarters", _quarters, device)
    total = xp.reshape(starts, (2, *(1,) * len(angles.shape)))
    parts = _parts(positions, xp)
    for part, words in zip(parts, _words_of(frequencies, len(parts), device, xp), strict=True):
        for position, frequency in Angles(part, words, None, xp).axes():
            total = add_product(total, position, frequency)
    unsure = [] if array.is_integer(positions) else [position for position, _ in angles.axes()]
    if not (isinstance(frequencies, np.ndarray) or hasattr(frequencies, "turn_words")):  # their values are not known
        unsure += [frequency for _, frequency in angles.axes()]
    if shift is not None:
        total = total + _words_of(shift, 1, device, xp)[0]
        unsure.append(shift)
    for numbers in unsure:  # of those that are NaN the unit is, too: words cannot say it
        unit = add_product(unit, numbers, nothing)
    return xp.sin((QUARTER - xp.abs(total)) * array.astype(unit, xp.float32, xp))


def _waves_from_host(angles: Angles) -> Array:
    """Cos and sin as `waves` returns them: from the host, where the values of all that they are made of are known."""
    positions, frequencies, shift, xp = angles
    device, omega = array.device(positions), getattr(frequencies, "on_host", frequencies)
    given = [one for one in (positions, shift) if one is not None]
    if type(omega) is not np.ndarray or not all([TORCH.is_computed(one) and TORCH.has_values(one) for one in given]):
        return xp.stack(cos_sin(angles))
    at, moved = (None if one is None else array.to_host(one) for one in (positions, shift))
    return TORCH.lasting(np.stack(cos_sin(Angles(at, omega, moved, np))).astype(np.float32), device)


def _parts(positions: Array, xp: ModuleType) -> list[Array]:
    """Whole numbers that positions are made of: of steps, of 2**26 steps and, for floats, of 2**-26 and 2**-52 steps.

    They are at most 2**27 for positions of up to 2**53.
    """
    rests = []
    if not array.is_integer(positions):
        nearest = xp.round(positions)
        rest = array.astype((positions - nearest) * 4.0**NEAR, xp.int64, xp)
        positions, rests = nearest, [rest >> NEAR, rest & LOWER]
    places = array.to_words(positions, 64, xp)
    return [places & LOWER, places >> NEAR, *rests]


def _quarters() -> tuple[np.ndarray, ...]:
    """Return the turns that cos and sin start from, the radians of a unit, and 0."""
    return np.array([0, -QUARTER]), np.array(2.0 * math.pi * 2.0**-64, np.float32), np.array(0.0, np.float32)


def make_integer_turns(frequencies: np.ndarray, xp: ModuleType, device: Any) -> Array:
    """Return frequencies of the host, in their user's form, on a device of torch for whoever is to hold them there.

    Their words are the attributes `turn_words` and `fine_words`, which `waves` makes anew of others; not on Apple's
    devices. Where there is no float64, `on_host` is what they were, and `float64_bits` the bits of that on the device.
    """
    vectors = np.ascontiguousarray(add_axis_dimension(frequencies, frequencies), np.float64)
    is_wide, wraps = array.has_float64(xp, device), TORCH.wraps_words(device)
    placed = TORCH.lasting(frequencies.astype("float64" if is_wide else "float32"), device)
    if wraps:
        placed.turn_words, placed.fine_words = (TORCH.lasting(each, device) for each in turn_words(vectors))
    if not is_wide:
        placed.on_host = vectors
        placed.float64_bits = TORCH.lasting(vectors.view(np.uint64), device) if wraps else None
    return placed


def copy_to_device_of(x: Array, frequencies: np.ndarray, held: dict[Any, Array]) -> Array:
    """Return `make_integer_turns` where torch rotates by integer phases; elsewhere frequencies as they came.

    Those of each device are held in a dict. A graph that is compiled finds them there, and places none itself.
    """
    if type(frequencies) is not np.ndarray:
        return frequencies
    if libraries.is_compiling():
        found = held.get("_placed", {}).get(array.device(x))
        return frequencies if found is None or hasattr(found, "on_host") else found
    if not dispatch.uses_integer_phases(x):
        return frequencies
    held, device = held.setdefault("_placed", {}), array.device(x)
    if device not in held:
        made = make_integer_turns(frequencies, array.namespace(x=x), device)
        if not TORCH.is_computed(made):  # a fake one, which serves this call alone
            return made
        held[device] = made
    return held[device]


def turn_words(frequencies: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return turns of steps of 1 and 2**26, and of 2**-26 and 2**-52, in units of 2**-64 modulo 1.

    Each has the two along a new last axis. A position turns by the sum of its parts' turns (see `_parts`), wrong by
    2**-36 turns where it is 2**53.
    """
    wholes, fractions = _word_tables("float64")
    words = _make_words(frequencies.astype(np.float64), wholes, fractions, np)
    return np.ascontiguousarray(words[..., :2]), np.ascontiguousarray(words[..., 2:])


def _words_of(numbers: Array, count: int, device: Any, xp: ModuleType) -> list[Array]:
    """So many words of frequencies or shifts, in the order of `_STEPS`; made on the device for those that have none."""
    if isinstance(numbers, np.ndarray):
        known = [TORCH.lasting(each, device) for each in turn_words(numbers)[: 1 + (count > 2)]]
    else:
        known = [getattr(numbers, name, None) for name in ("turn_words", "fine_words")[: 1 + (count > 2)]]
    if any(one is None for one in known):
        name = array.dtype_name(numbers)
        wholes, fractions = TORCH.constants(f"turns of {name}", lambda: _word_tables(name), device)
        known = [_make_words(numbers, wholes, fractions, xp)]
    return [each[..., column] for each in known for column in range(each.shape[-1])][:count]


def _pairs(frequencies: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Turns of steps of 1 and, of what these lack, of 2**16, in units of 2**-32 modulo 1; and what both lack still.

    Each has the two along a new last axis. Halves of a position of 32 bits meet the second ones.
    """
    words, rests = wrapping_turns(frequencies, 32)
    halves = np.round(rests * 2.0**16)
    fine = np.stack([rests, rests * 2.0**16 - halves], axis=-1)
    return np.stack([words, halves.astype(np.int32)], axis=-1), fine.astype(np.float32)


def _make_words(numbers: Array, wholes: Array, fractions: Array, xp: ModuleType) -> Array:
    """Words from mantissa and exponent, without a look at values.

    Of the mantissa's product with a power of two over 2 pi whole numbers are taken modulo 2**64, fractions as floats.
    """
    mantissa, exponent = xp.frexp(numbers)
    row = array.astype(exponent % len(wholes), xp.int64, xp)  # that of NaN may be any
    mantissa = array.astype(mantissa * 2.0 ** _DIGITS[array.dtype_name(numbers)][0], xp.int64, xp)
    rests = array.astype(numbers[..., None] * fractions[row], xp.int64, xp)
    return array.library_of(xp).add_product(rests, mantissa[..., None], wholes[row])


@lru_cache(maxsize=2)
def _word_tables(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Whole units of ``2**(64 + e - digits) / (2 pi)``, which meet mantissas, and fractions, which meet floats.

    The row is the exponent e modulo the number of rows; columns are those of `turn_words`.
    """
    digits, lowest, highest = _DIGITS[name]
    bits = 2048
    inverse, exponents = (1 << 2 * bits) // _two_pi(bits), np.arange(lowest, highest + 1)
    windows = [inverse >> bits - 128 - e + digits for e in range(lowest + min(_STEPS), highest + max(_STEPS) + 1)]
    words = np.array([[w >> 64 & 2**64 - 1, w & 2**64 - 1] for w in windows], np.uint64)
    starts = [step - min(_STEPS) for step in _STEPS]
    words = np.stack([words[start : start + len(exponents)] for start in starts], axis=-1)
    fractions = np.ldexp(words[:, 1].astype(np.float64), (digits - 64 - exponents)[:, None]).astype(name)
    return np.roll(words[:, 0].view(np.int64), lowest, axis=0), np.roll(fractions, lowest, axis=0)


def _cos_sin(angles: Angles) -> tuple[Array, Array]:
    _, frequencies, shift, xp = angles
    angles = angles._replace(frequencies=array.widen(frequencies, xp))
    total: tuple[Array, Array] = (0.0, 0.0)
    for position, frequency in angles.axes():
        for part in _product_turns(_pieces(position, frequency.dtype, xp), frequency, xp):
            total = _add(total, part)
    return _cos_sin_of_turns(*_shifted(total, shift, xp), xp)


def _shifted(total: tuple[Array, Array], shift: Array | None, xp: ModuleType) -> tuple[Array, Array]:
    """Turns with those of the shift."""
    if shift is None:
        return total
    shift = array.astype(shift, array.widest_float(xp, array.device(shift)), xp)
    for part in reduced_turns(shift, xp):
        total = _add(total, part)
    return total


def _cos_sin_of_integers(angles: Angles, bits: int) -> tuple[Array, Array]:
    """Cos and sin by turns in units of 2**-bits, whose products with integer positions drop whole turns by themselves.

    The quarter turn and what is left of it are exact; a float adds what the unit is too coarse for.
    """
    _, _, shift, xp = angles
    word: Array = 0
    lost: Array = 0.0
    for position, frequency in angles.axes():
        whole, part = _unit_turns(position, frequency, bits, xp)
        word, lost = word + whole, lost + part
    quarters = (word + (1 << bits - 3)) >> bits - 2
    left = array.astype(word - (quarters << bits - 2), lost.dtype, xp)
    if shift is None:
        return _turned_quadrant((2.0 * math.pi * 2.0**-bits) * (left + lost), quarters & 3, xp)
    total = array.astype(quarters, lost.dtype, xp) * 0.25, left * 2.0**-bits
    return _cos_sin_of_turns(*_shifted(_add(_add((total[0], 0.0), total[1]), lost * 2.0**-bits), shift, xp), xp)


def _unit_turns(position: Array, frequency: np.ndarray, bits: int, xp: ModuleType) -> tuple[Array, Array]:
    """Return position * frequency in units of 2**-bits of a turn: whole ones modulo 2**bits, and the small rest."""

    def moved(host: np.ndarray) -> Array:
        return array.from_host(host, xp, device=array.device(position))

    if bits == 64:
        words, rests = wrapping_turns(frequency)
        return array.to_words(position, 64, xp) * moved(words), array.astype(position, xp.float64, xp) * moved(rests)
    # rests of up to half a unit for each of 2**32 positions: half words of both multiply as integers
    words, rests = _pairs(frequency)
    whole = array.to_words(position, bits, xp) * moved(words[..., 0])
    position = array.to_int32(position, xp)
    upper, lower = array.to_words(position >> 16, bits, xp), array.to_words(position & 0xFFFF, bits, xp)
    whole = whole + upper * moved(words[..., 1])
    upper, lower = (array.astype(piece, xp.float32, xp) for piece in (upper, lower))
    return whole, upper * moved(rests[..., 1]) + lower * moved(rests[..., 0])


def _cos_sin_of(positions: Array, frequencies: Array, shift: Array | None = None) -> tuple[Array, Array]:
    return _cos_sin(Angles(positions, frequencies, shift, array.namespace(positions=positions)))


def _slope(arrays: tuple[Array, ...], changes: tuple[Array | None, ...]) -> Array:
    """By how much phases change with what they are made from, where that changes."""
    (positions, frequencies, *_), (by_position, by_frequency, *by_shift) = arrays, changes
    xp = array.namespace(positions=positions)
    total = by_shift[0] if by_shift and by_shift[0] is not None else 0.0
    if by_position is not None:
        total = total + phases(Angles(by_position, frequencies, None, xp))
    return total if by_frequency is None else total + phases(Angles(positions, by_frequency, None, xp))


def phases(angles: Angles) -> Array:
    """Return the plain phases, rounded to the dtype of the frequencies and not reduced."""
    positions, frequencies, shift, xp = angles
    if isinstance(frequencies, np.ndarray):
        angles = angles._replace(frequencies=array.from_host(frequencies, xp, device=array.device(positions)))
    total: Array = 0.0
    for position, frequency in angles.axes():
        total = total + array.astype(position, frequency.dtype, xp) * frequency
    return total if shift is None else total + shift


def _two_pi(bits: int) -> int:
    """``2 pi 2^bits``, by Machin's formula."""
    one = 1 << (bits + 16)

    def arccot(x: int) -> int:
        power, total, n = one // x, one // x, 1
        while power:
            power //= -x * x
            n += 2
            total += power // n
        return total

    return 8 * (4 * arccot(5) - arccot(239)) >> 16


def _constant_pieces(value: Fraction, *bits: int) -> list[float]:
    """Leading pieces of an exact value, each of at most so many bits, as floats whose sum converges to it."""
    pieces = []
    for most in bits:
        exponent = most - 1 - math.floor(math.log2(abs(value)))
        piece = Fraction(round(value * Fraction(2) ** exponent)) / Fraction(2) ** exponent
        pieces.append(float(piece))
        value -= piece
    return pieces


_TURN = Fraction(2**512, _two_pi(512))  # 1/(2 pi), to more digits than pieces are taken of
# for each working precision two halves that multiply exactly with halves, and a remainder
_HALVES = {"float64": _constant_pieces(_TURN, 26, 26, 53), "float32": _constant_pieces(_TURN, 12, 12, 24)}


def _pieces(position: Array, dtype: Any, xp: ModuleType) -> tuple[Array, ...]:
    """Positions as a sum of floats short enough for exact products with halves of turns."""
    if array.is_integer(position) and dtype == xp.float32:
        position = array.to_int32(position, xp)
        words = (position >> 24 << 24, (position >> 12 & 4095) << 12, position & 4095)
        return tuple(array.astype(word, dtype, xp) for word in words)
    return array.split(array.astype(position, dtype, xp), xp)


def _product_turns(position: tuple[Array, ...], frequency: Array, xp: ModuleType) -> Iterable[Array]:
    """Yield terms that sum to position * frequency in turns, up to whole turns, to twice the working precision."""
    turns_1, turns_2, turns_rest = _turns(frequency, array.dtype_name(frequency), xp)
    for piece in position:
        for product in (piece * turns_1, piece * turns_2):
            yield product - xp.round(product)  # both factors are short, so the product and the difference are exact
        yield piece * turns_rest


def _turns(frequency: Array, name: str, xp: ModuleType) -> tuple[Array, Array, Array]:
    """Return frequency / (2 pi) as two halves and a remainder."""
    constant_1, constant_2, constant_rest = _HALVES[name]
    frequency_1, frequency_2 = array.split(frequency, xp)
    exact = frequency_1 * constant_1
    turns_1, rest = array.split(exact, xp)
    rest = (rest, 0.0)
    for term in (
        frequency_2 * constant_1,
        frequency_1 * constant_2,
        frequency_2 * constant_2,
        frequency * constant_rest,
    ):
        rest = _add(rest, term)
    turns_2, turns_rest = array.split(rest[0], xp)
    return turns_1, turns_2, turns_rest + rest[1]


def _add(total: tuple[Array, Array], term: Array) -> tuple[Array, Array]:
    """Add a term to an unevaluated sum; what rounding takes from the first part goes into the second (Knuth)."""
    high, low = total
    both = high + term
    shadow = both - high
    return both, low + ((high - (both - shadow)) + (term - shadow))


def wrapping_turns(frequency: Array, bits: int = 64, xp: ModuleType = np) -> tuple[Array, Array]:
    """Turns of frequencies in float64 modulo 1 in units of 2**-bits, which products of integers wrap by themselves.

    Returns
    -------
    words : array of int64 or int32
        The nearest whole number of units, from -2**(bits - 1).
    rests : array of float64
        What is lost by that, from -1/2 to 1/2: position * word + position * rest is exact.
    """
    high, low = reduced_turns(array.astype(frequency, xp.float64, xp), xp)
    units = 2.0**bits
    high = (high - xp.round(high)) * units
    high = xp.where(high >= 0.5 * units, high - units, high)
    words = xp.round(high)
    rests = (high - words) + low * units
    carried = xp.round(rests)
    words = array.astype(words, xp.int64, xp) + array.astype(carried, xp.int64, xp)
    return array.to_words(words, bits, xp), rests - carried


def reduced_turns(angles: Array, xp: ModuleType) -> tuple[Array, Array]:
    """Return angles of the widest float in turns, up to whole ones, as a sum of two floats."""
    high, low = xp.zeros_like(angles), xp.zeros_like(angles)
    for part in _product_turns((xp.ones_like(angles),), angles, xp):
        high, low = _add((high, low), part)
    return high, low


def _cos_sin_of_turns(high: Array, low: Array, xp: ModuleType) -> tuple[Array, Array]:
    """Cos and sin of 2 pi (high + low): quarter turns by selection, the rest (at most an eighth) by the library."""
    quarters = xp.round(4.0 * high)
    angle = (2.0 * math.pi) * ((high - 0.25 * quarters) + low)
    return _turned_quadrant(angle, quarters - 4.0 * xp.floor(0.25 * quarters), xp)


def _turned_quadrant(angle: Array, quadrant: Array, xp: ModuleType) -> tuple[Array, Array]:
    """Cos and sin of an angle of at most an eighth turn and 0 to 3 quarter turns."""
    cos, sin = xp.cos(angle), xp.sin(angle)
    odd = (quadrant == 1) | (quadrant == 3)
    cos, sin = xp.where(odd, sin, cos), xp.where(odd, cos, sin)
    return xp.where((quadrant == 1) | (quadrant == 2), -cos, cos), xp.where(quadrant >= 2, -sin, sin)
