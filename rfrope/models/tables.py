"""Read cos and sin tables: frequencies, attention factor, precision, and wrong rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rfrope.models.buffers import Buffer
from rfrope.rotation.rope import Rope

ROUNDED = 4e-6  # relative error of float32 exponents at a base of 1e9
TINY = 1e-29  # frequencies up to this count as 0; exports write a zero as 1e-30 or less
HALVES = {8: "bfloat16", 11: "float16"}  # by mantissa bits
FINE = 2e-6  # error of cos and sin in float32
_PHASES = 2.0**-22  # relative: four roundings to float32 on the way to a phase
_FAR = 2**15  # largest position from which frequencies are read
_ROWS = 2**12  # per chunk
_DENSE, _SPARSE = 512, 256  # number of rows examined: the first ones, and a sample of the others


@dataclass(frozen=True, eq=False)
class TableEstimate:
    """Numbers read from a table."""

    frequencies: np.ndarray  # (D,), radians per position
    allowed: np.ndarray  # (D,), tolerance of frequencies
    factor: float  # magnitude of cos + i sin
    spread: float  # largest deviation from it
    start: int  # position of the first row
    reach: int  # largest distance of rows from which frequencies were read


def bits(values: np.ndarray, dtype: str = "") -> int:
    """Return the mantissa bits that numbers need: 8, 11 or 53; a half-precision dtype determines them."""
    mantissas = np.abs(np.frexp(values[..., :_DENSE].astype(np.float64))[0])
    narrow = (width for width, name in HALVES.items() if dtype == name)
    fitting = (width for width in HALVES if np.all(mantissas * 2.0**width % 1.0 == 0.0))
    return next(narrow, next(fitting, 53))


def rounded(values: np.ndarray, width: int) -> np.ndarray:
    """Return numbers rounded to so many bits; float16 has fewer below its smallest normal number."""
    mantissas, exponents = np.frexp(values)
    if width == 11:
        return np.asarray(values, dtype=np.float16).astype(np.float64)
    return np.asarray(np.ldexp(np.round(mantissas * 2.0**width) / 2.0**width, exponents))


def noise(buffer: Buffer) -> float:
    """Return the rounding error of cos and sin."""
    width = bits(buffer.values[_looked_at(buffer)], buffer.dtype)
    return 2.0**-width if width in HALVES else FINE


def read(buffer: Buffer, rope: Rope) -> TableEstimate:
    """Return what a table shows; a single row shows no frequencies, which are then 0."""
    rows, rounding = buffer.rows(_looked_at(buffer)), noise(buffer)
    size = np.abs(rows)
    factor = float(np.median(size))
    spread = float(np.max(np.abs(size / factor - 1.0))) if factor > 0.0 else 0.0
    frequencies, last = _read_frequencies(buffer)
    allowed = np.zeros(buffer.blocks)
    if buffer.blocks == rope.n_blocks:
        allowed = ROUNDED * np.abs(np.asarray(rope.frequencies)) + 4.0 * rounding / last
    start = 0  # the first row may be at another position
    if factor > 0.0:
        phases = np.multiply.outer(np.arange(_DENSE), frequencies)
        is_near = np.all(np.abs(rows[0] / factor - np.exp(1j * phases)) < 8.0 * rounding, axis=1)
        start = int(np.argmax(is_near))
    return TableEstimate(frequencies, allowed, factor, spread, start, last)


def _looked_at(buffer: Buffer) -> np.ndarray:
    length = len(buffer.values)
    far = np.minimum(np.geomspace(1, max(1, length - 1), _SPARSE).astype(int), length - 1)
    return np.unique(np.concatenate([np.arange(min(length, _DENSE)), far]))


def _read_frequencies(buffer: Buffer) -> tuple[np.ndarray, int]:
    """Return frequencies from rows at distances that double, and the last distance."""
    first, found, apart, reach = buffer.rows(0), np.zeros(buffer.blocks), 1, 1
    while apart < min(len(buffer.values), _FAR + 1):
        turned = np.angle(buffer.rows(apart) * np.conj(first)) - found * apart
        found = found + (turned - 2.0 * np.pi * np.round(turned / (2.0 * np.pi))) / apart
        reach, apart = apart, 2 * apart
    return found, reach


def _exact(positions: np.ndarray, frequencies: np.ndarray) -> np.ndarray:
    return np.asarray(np.exp(1j * np.multiply.outer(positions.astype(np.float64), frequencies)))


def rows_unlike(buffer: Buffer, reading: TableEstimate, rounding: float) -> tuple[str, str] | None:
    """Return the fault of rows whose frequencies are right: half precision of positions or phases, or another."""
    unlike = [
        start + np.flatnonzero(np.any(_unlike(buffer, np.arange(start, stop), reading, rounding), axis=1))
        for start in range(0, len(buffer.values), _ROWS)
        for stop in [min(start + _ROWS, len(buffer.values))]
    ]
    found = np.concatenate(unlike)
    if not found.size:
        return None
    at, frequencies = _looked_at(buffer), reading.frequencies
    rows, off = buffer.rows(at) / reading.factor, _unlike(buffer, at, reading, rounding)
    phases = np.multiply.outer(at.astype(np.float64), np.abs(frequencies))
    allowed = 4.0 * rounding + 2.0 * ROUNDED * phases + at[:, None] * reading.allowed
    for width, name in HALVES.items():
        with np.errstate(over="ignore", invalid="ignore"):  # float16 overflows at 65504; NaN matches nothing
            of_positions = np.abs(rows - _exact(rounded(at.astype(np.float64), width), frequencies))
            apart = np.abs(rows - np.exp(1j * np.sign(frequencies) * rounded(phases, width)))
        if np.all(of_positions <= allowed):
            return "half precision", f"positions rounded to {name}: rows repeat first at position {found[0]}"
        is_near = np.all(apart <= allowed + phases * 2.0**-width)  # at large phases, being near means little
        if is_near and np.sum((apart <= allowed)[off]) > 0.9 * np.sum(off) > 0.0:
            return "half precision", f"phases rounded to {name}"
    return "rows", f"{found.size} of {len(buffer.values)} rows are not those of their positions, first at {found[0]}"


def _unlike(buffer: Buffer, at: np.ndarray, reading: TableEstimate, rounding: float) -> np.ndarray:
    """Return which rows do not match the table's own frequencies with phases in float32."""
    positions = at.astype(np.float64)
    phases = np.multiply.outer(positions, np.abs(reading.frequencies))
    allowed = 4.0 * rounding * (1.0 + positions[:, None] / reading.reach) + _PHASES * phases
    return np.asarray(np.abs(buffer.rows(at) / reading.factor - _exact(at, reading.frequencies)) > allowed)


def first_off(buffer: Buffer, rope: Rope, allowed: float) -> int | None:
    """Return the first row with a cos or sin off by more than `allowed`."""
    if len(buffer.values) == 1:  # position 0 alone, where all columns are 1
        return 0 if np.max(np.abs(buffer.rows(0) - rope.attention_factor)) > allowed else None
    if buffer.blocks != rope.n_blocks:
        return 1
    frequencies = np.asarray(rope.frequencies)
    for start in range(0, len(buffer.values), _ROWS):
        found = buffer.rows(slice(start, start + _ROWS))
        wanted = rope.attention_factor * _exact(np.arange(start, start + len(found)), frequencies)
        if np.any(off := _is_off(found - wanted, allowed)):
            return start + int(np.argmax(off))
    return None


def first_turn_off(buffer: Buffer, rope: Rope, allowed: float, limit: int) -> int | None:
    """Return the first position below a limit at which frequencies give a cos or sin off by more than `allowed`."""
    factor = rope.attention_factor if buffer.attention_factor is None else buffer.attention_factor
    room = allowed - abs(factor - rope.attention_factor)
    if room < 0.0 or buffer.blocks != rope.n_blocks:
        return 0 if room < 0.0 else 1
    found, expected = buffer.values, np.asarray(rope.frequencies)
    # The chord bounds both errors; it reaches `room` at these positions at the earliest.
    angle = 2.0 * np.arcsin(min(1.0, room / (2.0 * rope.attention_factor)))
    with np.errstate(divide="ignore", invalid="ignore"):
        nearest = np.where(found == expected, np.inf, np.floor(angle / np.abs(found - expected)))
    start, size = int(min(np.min(nearest), limit)), 64
    while start < limit:
        positions = np.arange(start, min(start + size, limit))
        moving = nearest <= positions[-1]
        wanted = rope.attention_factor * _exact(positions, expected[moving])
        if np.any(off := _is_off(factor * _exact(positions, found[moving]) - wanted, allowed)):
            return start + int(np.argmax(off))
        start, size = start + size, min(2 * size, _ROWS)
    return None


def _is_off(difference: np.ndarray, allowed: float) -> np.ndarray:
    """Return which rows have a cos or sin off by more than `allowed`."""
    return np.asarray(np.any((np.abs(difference.real) > allowed) | (np.abs(difference.imag) > allowed), axis=1))
