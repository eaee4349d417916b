"""Compiled loops for phases: exact turns of positions and shifts, and their cos and sin, by tiles of rows."""

from __future__ import annotations

import math

import numpy as np
from numba import carray

from rfrope._backends import layout
from rfrope._backends.cpu.circle import TURN_1, TURN_2, cos_sin, cos_sin_narrow, fma
from rfrope._backends.cpu.compiling import called, compiled, inlined, widest
from rfrope._backends.cpu.rotation_rows import memory

KEPT = 3  # addresses of what tables that `fill_apart` keeps come from: positions, frequencies, and a shift

_LARGEST_EXACT = 2.0**53


@inlined
def _number(address, narrow):  # type: ignore[no-untyped-def]
    """Read a float64, or a float32 if `narrow`, from an address."""
    return np.float64(carray(memory(address, np.int16(0)), 1)[0]) if narrow else carray(memory(address, 0.0), 1)[0]


@called
def turns_of(frequencies, block_step, axis_step, blocks, axes, turns_1, turns_2):  # type: ignore[no-untyped-def]
    """Frequencies over 2 pi to twice the precision of a float64, axis by axis."""
    widest()
    for axis in range(axes):
        _read(frequencies + axis * axis_step, block_step, False, blocks, turns_1[axis * blocks :])
    for i in range(axes * blocks):
        frequency = turns_1[i]
        turns_1[i], turns_2[i] = frequency * TURN_1, fma(frequency, TURN_1, -(frequency * TURN_1)) + frequency * TURN_2


@inlined
def _reduced(a, b_1, b_2):  # type: ignore[no-untyped-def]
    """Product a * (b_1 + b_2) less whole turns, and what rounding has taken from it."""
    product = a * b_1
    return product - np.rint(product), fma(a, b_2, fma(a, b_1, -product))


@inlined
def _add(term, rest, i, high, low, exact):  # type: ignore[no-untyped-def]
    """Add to a sum: an unevaluated one of two parts (Knuth) if `exact`."""
    if exact:
        both = high[i] + term
        shadow = both - high[i]
        low[i] += ((high[i] - (both - shadow)) + (term - shadow)) + rest
        high[i] = both
    else:
        high[i] += term + rest


@called
def _add_turns(factor, turns_1, turns_2, count, high, low, exact):  # type: ignore[no-untyped-def]
    """Add factor * turns, less whole turns."""
    widest()
    for i in range(count):
        term, rest = _reduced(factor, turns_1[i], turns_2[i])
        _add(term, rest, i, high, low, exact)


@called
def _add_radians(radians, count, high, low, exact):  # type: ignore[no-untyped-def]
    """Add angles in radians, less whole turns."""
    widest()
    for i in range(count):
        term, rest = _reduced(radians[i], TURN_1, TURN_2)
        _add(term, rest, i, high, low, exact)


@called
def _read(source, step, narrow, count, target):  # type: ignore[no-untyped-def]
    widest()
    for i in range(count):
        target[i] = _number(source + i * step, narrow)


@inlined
def _cos_sin(high, low, exact):  # type: ignore[no-untyped-def]
    return cos_sin(high, low) if exact else cos_sin_narrow(high, low)


@called
def _cos_sin_of_sums(high, low, blocks, cos, sin, exact):  # type: ignore[no-untyped-def]
    widest()
    for i in range(blocks):
        cos[i], sin[i] = _cos_sin(high[i], low[i], exact)


@called
def _cos_sin_of_radians(radians, blocks, high, low, cos, sin, exact):  # type: ignore[no-untyped-def]
    widest()
    largest = 0.0
    for i in range(blocks):
        largest = max(largest, abs(radians[i]))
    if largest <= _LARGEST_EXACT:
        for i in range(blocks):
            high[i], low[i] = 0.0, 0.0
        _add_radians(radians, blocks, high, low, exact)
        _cos_sin_of_sums(high, low, blocks, cos, sin, exact)
    else:  # NaN and infinity too
        for i in range(blocks):
            cos[i], sin[i] = math.cos(radians[i]), math.sin(radians[i])


@called
def _fill(header, rows, a, b, c, e, turns_1, turns_2, space, all_cos, all_sin, shifted, exact):  # type: ignore[no-untyped-def]
    """Cos and sin of rows of phases, `shifted` where there is a shift to add to those of positions."""
    widest()
    blocks, narrow = header[layout.BLOCKS], header[layout.SOURCE] == layout.TABLE_32
    steps, row_steps, inverse = header[layout.BLOCK_STRIDES :], header[layout.ROW_AXIS :], header[layout.INVERSE] != 0
    row, high, low = space[0], space[1], space[2]
    for r in range(rows):
        at_a, cos, sin = a + r * row_steps[layout.A], all_cos[r * blocks :], all_sin[r * blocks :]
        if header[layout.SOURCE] >= layout.TABLE_64:
            _read(at_a, steps[layout.A], narrow, blocks, high)
            _read(b + r * row_steps[layout.B], steps[layout.B], narrow, blocks, low)
            for i in range(blocks):
                cos[i], sin[i] = high[i], low[i]
        elif header[layout.SOURCE] == layout.PHASES:
            _read(at_a, steps[layout.A], False, blocks, row)
            _cos_sin_of_radians(row, blocks, high, low, cos, sin, exact)
        else:
            for i in range(blocks):
                high[i], low[i] = 0.0, 0.0
            for axis in range(header[layout.POSITION_AXES]):
                these = slice(axis * blocks, (axis + 1) * blocks)
                position = _number(at_a + axis * header[layout.A_AXIS], False)
                _add_turns(position, turns_1[these], turns_2[these], blocks, high, low, exact)
            if shifted:
                _read(c + r * row_steps[layout.C], steps[layout.C], False, blocks, row)
                _add_radians(row, blocks, high, low, exact)
            _cos_sin_of_sums(high, low, blocks, cos, sin, exact)
        if header[layout.HAS_SCALE] != 0:
            _read(e + r * row_steps[layout.E], steps[layout.E], False, blocks, row)
            for i in range(blocks):
                cos[i] = cos[i] / row[i] if inverse else cos[i] * row[i]
                sin[i] = sin[i] / row[i] if inverse else sin[i] * row[i]


@compiled
def fill_line(plan, rows, a, b, c, e, turns_1, turns_2, scratch, cos, sin, exact):  # type: ignore[no-untyped-def]
    """Cos and sin of a tile of phases, from positions on one axis alone: the usual case, without any scratch memory.

    All are addresses and counts but `exact`, and cos and sin, which are pointers.
    """
    widest()
    header = carray(memory(plan, None), (1 << 16,))
    blocks, step = header[layout.BLOCKS], header[layout.ROW_AXIS + layout.A]
    first, second = carray(memory(turns_1, 0.0), (blocks,)), carray(memory(turns_2, 0.0), (blocks,))
    all_cos, all_sin = carray(cos, (rows * blocks,)), carray(sin, (rows * blocks,))
    for row in range(rows):
        position = _number(a + row * step, False)
        cos_row, sin_row = all_cos[row * blocks :], all_sin[row * blocks :]
        for i in range(blocks):
            high, low = _reduced(position, first[i], second[i])
            cos_row[i], sin_row[i] = _cos_sin(high, low, exact)
    return rows


@compiled
def fill_any(plan, rows, a, b, c, e, turns_1, turns_2, scratch, cos, sin, exact):  # type: ignore[no-untyped-def]
    """Cos and sin of a tile of phases, whatever they are made of; see `fill_line`."""
    header = carray(memory(plan, None), (1 << 16,))
    blocks, axes, has_shift = header[layout.BLOCKS], header[layout.POSITION_AXES], header[layout.HAS_SHIFT] != 0
    first, second = carray(memory(turns_1, 0.0), (axes * blocks,)), carray(memory(turns_2, 0.0), (axes * blocks,))
    all_cos, all_sin = carray(cos, (rows * blocks,)), carray(sin, (rows * blocks,))
    space = carray(memory(scratch, 0.0), (3, blocks))
    _fill(header, rows, a, b, c, e, first, second, space, all_cos, all_sin, has_shift, exact)
    return rows


@compiled
def fill_apart(plan, rows, a, b, c, e, turns_1, turns_2, scratch, cos, sin, exact):  # type: ignore[no-untyped-def]
    """Cos and sin of a tile of phases as products of those of positions and of a shift; see `fill_line`.

    Those of either stay in the scratch memory with the addresses that they come from, until others are asked for: all
    phases of many heads cost products alone.
    """
    widest()
    header = carray(memory(plan, None), (1 << 16,))
    blocks, axes, step = header[layout.BLOCKS], header[layout.POSITION_AXES], header[layout.ROW_AXIS :]
    first, second = carray(memory(turns_1, 0.0), (axes * blocks,)), carray(memory(turns_2, 0.0), (axes * blocks,))
    space, n = carray(memory(scratch, 0.0), (3, blocks)), header[layout.TILE] * blocks
    kept = carray(memory(scratch + 3 * blocks * 8, None), (KEPT,))
    tables = carray(memory((scratch + (3 * blocks + KEPT) * 8 + 63) & -64, 0.0), (4, n))
    n_places, n_shifts = rows if step[layout.A] != 0 else 1, rows if step[layout.C] != 0 else 1
    if kept[0] != a or kept[1] != b:  # a tile of fewer rows comes last, so an address always means the same rows
        _fill(header, n_places, a, b, c, e, first, second, space, tables[0], tables[1], False, exact)
        kept[0], kept[1] = a, b
    if kept[2] != c:
        for r in range(n_shifts):
            _read(c + r * step[layout.C], header[layout.BLOCK_STRIDES + layout.C], False, blocks, space[0])
            turned_cos, turned_sin = tables[2, r * blocks :], tables[3, r * blocks :]
            _cos_sin_of_radians(space[0], blocks, space[1], space[2], turned_cos, turned_sin, exact)
        kept[2] = c
    all_cos, all_sin = carray(cos, (rows * blocks,)), carray(sin, (rows * blocks,))
    for r in range(rows):
        at, along = (r if n_places == rows else 0) * blocks, (r if n_shifts == rows else 0) * blocks
        place_cos, place_sin = tables[0, at : at + blocks], tables[1, at : at + blocks]
        shift_cos, shift_sin = tables[2, along : along + blocks], tables[3, along : along + blocks]
        cos_row, sin_row = all_cos[r * blocks :], all_sin[r * blocks :]
        for i in range(blocks):
            cos_row[i] = fma(place_cos[i], shift_cos[i], -(place_sin[i] * shift_sin[i]))
            sin_row[i] = fma(place_sin[i], shift_cos[i], place_cos[i] * shift_sin[i])
    return rows


@called
def scratch_of(header):  # type: ignore[no-untyped-def]
    """Count of the float64 that the loops for phases need as scratch memory."""
    apart = KEPT + 8 + 4 * header[layout.TILE] * header[layout.BLOCKS]
    return 3 * header[layout.BLOCKS] + (apart if header[layout.SHIFT_APART] != 0 else 0)


@called
def forget(header, scratch):  # type: ignore[no-untyped-def]
    """Say that no tables lie in the scratch memory yet."""
    if header[layout.SHIFT_APART] != 0:
        carray(memory(scratch + 3 * header[layout.BLOCKS] * 8, None), (KEPT,))[:] = 0
