"""Where positions and frequencies meet exactly: cos and sin of ``positions . frequencies`` without a rounded phase.

A phase of 1e9 radians has lost seven digits before its cosine is taken. Here a frequency is held in turns,
``omega / (2 pi)``, to twice the working precision; position times turns is formed in exact partial products, whole
turns are removed from each, and only the small remainder meets cos and sin (section 8 of the mathematics page).

Every product that is subtracted from is exact, so a compiler that fuses multiply and add changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from fractions import Fraction
from types import ModuleType
from typing import Any

import numpy as np

from rfrope._core import array, lazy
from rfrope._core.angles import Angles
from rfrope._core.array import Array
from rfrope._core.twins import twinned

# pi to more digits than any working precision takes pieces of 1/(2 pi) from.
_PI = Fraction(
    "3.14159265358979323846264338327950288419716939937510582097494459230781640628620899862803482534211706798214808651"
)
_TURN = 1 / (2 * _PI)


@twinned(cpu="rotation", cuda="rotation", torch="rotation")
def cos_sin(angles: Angles) -> tuple[Array, Array]:
    """Return cos and sin of ``positions . frequencies + shift`` in the widest float of the namespace.

    Returns
    -------
    cos, sin : arrays
        Shaped like the phases, within 1e-15 of the exact values for |position * frequency| <= 2**53 on every axis.
        Without float64: within 2e-7 for integer positions and frequencies that are not traced, and for
        |position * frequency| <= 2**24 otherwise.
    """
    positions, frequencies, shift, xp = angles
    device = array.device(positions)
    fixed_point = not array.has_float64(xp, device) and (
        array.is_integer(positions) and array.has_integer_turns(xp) and not array.is_traced(frequencies)
    )
    if fixed_point:
        return _cos_sin(angles._replace(frequencies=array.to_host(frequencies)), fixed_point=True)
    if isinstance(frequencies, np.ndarray):
        angles = angles._replace(frequencies=array.from_host(frequencies, xp, device=device))
    if any(array.is_traced(one) and not array.is_integer(one) for one in (positions, frequencies, shift)):
        changing = tuple(one for one in angles[:3] if one is not None)
        made: tuple[Array, Array] = lazy.with_slope(_cos_sin_of, _slope)(*changing)
        return made
    return _cos_sin(angles)


def _cos_sin(angles: Angles, fixed_point: bool = False) -> tuple[Array, Array]:
    positions, _, shift, xp = angles
    dtype = array.widest_float(xp, array.device(positions))
    total: tuple[Array, Array] = (0.0, 0.0)
    for position, frequency in angles.axes():
        if fixed_point:
            parts = _fixed_point_turns(position, frequency, xp)
        else:
            parts = _product_turns(_pieces(position, dtype, xp), array.astype(frequency, dtype, xp), xp)
        for part in parts:
            total = _add(total, part)
    if shift is not None:
        shift = array.astype(shift, dtype, xp)
        for part in _product_turns((xp.ones_like(shift),), shift, xp):
            total = _add(total, part)
    return _cos_sin_of_turns(*total, xp)


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


def _constant_pieces(value: Fraction, count: int, bits: int) -> list[float]:
    """Leading pieces of an exact value, each of at most `bits` bits, as floats whose sum converges to it."""
    pieces = []
    for _ in range(count):
        exponent = bits - 1 - math.floor(math.log2(abs(value)))
        piece = Fraction(round(value * Fraction(2) ** exponent)) / Fraction(2) ** exponent
        pieces.append(float(piece))
        value -= piece
    return pieces


# 1/(2 pi) for each working precision: two halves that multiply exactly with halves, and a remainder
_HALVES = {
    name: (
        *_constant_pieces(_TURN, 2, bits),
        *_constant_pieces(_TURN - sum(map(Fraction, _constant_pieces(_TURN, 2, bits))), 1, wide),
    )
    for name, bits, wide in (("float64", 26, 53), ("float32", 12, 24))
}


def _pieces(position: Array, dtype: Any, xp: ModuleType) -> tuple[Array, ...]:
    """Positions as a sum of floats short enough for exact products with halves of turns."""
    if array.is_integer(position) and dtype == xp.float32:
        position = array.as_int32(position, xp)
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


def _fixed_point_turns(position: Array, frequency: Array, xp: ModuleType) -> Iterable[Array]:
    """Return position * frequency in turns modulo 1, for integer positions where there is no float64.

    The turns are 64-bit fixed point in two uint32 words, multiplied exactly modulo 2**64; the upper word comes back as
    two exact float32 halves.
    """
    high_word, low_word = (array.from_host(w, xp, dtype=xp.uint32) for w in _turn_words(frequency))
    position = array.as_int32(position, xp)
    magnitude = xp.astype(xp.abs(position), xp.uint32)
    word = magnitude * high_word + _multiply_high(magnitude, low_word, xp)
    upper = xp.astype(word >> 16, xp.float32) * 2.0**-16
    lower = xp.astype(word & 0xFFFF, xp.float32) * 2.0**-32
    upper = upper - xp.round(upper)
    sign = xp.where(position < 0, xp.asarray(-1.0, dtype=xp.float32), xp.asarray(1.0, dtype=xp.float32))
    return sign * upper, sign * lower


def _turn_words(frequency: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Turns of host frequencies modulo 1 as the upper and lower 32 bits of a 64-bit fraction."""
    one = (np.ones((), dtype=np.float64),)
    high, low = np.zeros(frequency.shape), np.zeros(frequency.shape)
    for part in _product_turns(one, frequency.astype(np.float64), np):
        high, low = _add((high, low), part)
    scaled = high * 2.0**32
    upper = np.floor(scaled)
    rest = np.floor((scaled - upper + low * 2.0**32) * 2.0**32)  # may be negative or carry: whole words move up
    carry = np.floor(rest * 2.0**-32)
    return np.mod(upper + carry, 2.0**32).astype(np.uint32), (rest - carry * 2.0**32).astype(np.uint32)


def wrapping_turns(frequency: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Turns of host frequencies modulo 1 in units of 2**-64, which products of integers wrap by themselves.

    Returns
    -------
    words : numpy.ndarray of int64
        The nearest whole number of units, from -2**63.
    rests : numpy.ndarray of float64
        What is lost by that, from -1/2 to 1/2: position * word + position * rest is exact to 53 bits of a turn.
    """
    one = (np.ones((), dtype=np.float64),)
    high, low = np.zeros(frequency.shape), np.zeros(frequency.shape)
    for part in _product_turns(one, frequency.astype(np.float64), np):
        high, low = _add((high, low), part)
    high = (high - np.round(high)) * 2.0**64
    high = np.where(high >= 2.0**63, high - 2.0**64, high)
    words = np.round(high)
    rests = (high - words) + low * 2.0**64
    carried = np.round(rests)
    with np.errstate(over="ignore"):
        return words.astype(np.int64) + carried.astype(np.int64), rests - carried


def _multiply_high(a: Array, b: Array, xp: ModuleType) -> Array:
    """Upper 32 bits of the 64-bit product of two uint32 arrays, by 16-bit halves."""
    a_high, a_low, b_high, b_low = a >> 16, a & 0xFFFF, b >> 16, b & 0xFFFF
    cross = a_high * b_low + (a_low * b_low >> 16)
    other = a_low * b_high + (cross & 0xFFFF)
    return a_high * b_high + (cross >> 16) + (other >> 16)


def _cos_sin_of_turns(high: Array, low: Array, xp: ModuleType) -> tuple[Array, Array]:
    """Cos and sin of 2 pi (high + low): quarter turns by selection, the rest (at most an eighth) by the library."""
    quarters = xp.round(4.0 * high)
    angle = (2.0 * math.pi) * ((high - 0.25 * quarters) + low)
    cos, sin = xp.cos(angle), xp.sin(angle)
    quadrant = quarters - 4.0 * xp.floor(0.25 * quarters)
    odd = (quadrant == 1.0) | (quadrant == 3.0)
    cos, sin = xp.where(odd, sin, cos), xp.where(odd, cos, sin)
    return xp.where((quadrant == 1.0) | (quadrant == 2.0), -cos, cos), xp.where(quadrant >= 2.0, -sin, sin)
