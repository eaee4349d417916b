"""Compiled loops for phases: exact turns of positions and shifts, and their cos and sin, by tiles of rows."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
from numba import carray

from rfrope._backends.cpu.circle import TURN_1, TURN_2, cos_sin, cos_sin_narrow, fma, turn_tables
from rfrope._backends.cpu.compiling import address_of, called, compiled, widest
from rfrope._backends.cpu.rotation_rows import fill_types, integers, number, wide
from rfrope._backends.layout import (
    A_AXIS,
    BLOCK_STRIDES,
    BLOCKS,
    HAS_SCALE,
    HAS_SHIFT,
    INVERSE,
    PHASES,
    POSITION_AXES,
    ROW_AXIS,
    SHIFT_APART,
    SOURCE,
    TABLE_32,
    TABLE_64,
    TILE,
    A,
    B,
    C,
    E,
)

KEPT = 3  # addresses of what tables that `fill_apart` keeps come from: positions, frequencies, and a shift

_LARGEST_EXACT = 2.0**53


@cache
def fill_of(loop: Any, is_narrow: bool) -> int:
    """Address of the loop for a plan's phases: one is compiled where it is wanted, and serves every type it can."""
    return address_of(loop, fill_types(is_narrow))


@called
def turns_of(frequencies, block_step, axis_step, blocks, axes, turns_1, turns_2):  # type: ignore[no-untyped-def]
    """Frequencies over 2 pi to twice the precision of a float64, axis by axis."""
    widest()
    for axis in range(axes):
        for i in range(blocks):
            turns_1[axis * blocks + i] = number(frequencies + axis * axis_step + i * block_step, False)
    for i in range(axes * blocks):
        frequency = turns_1[i]
        product = frequency * TURN_1
        turns_1[i] = product
        turns_2[i] = fma(frequency, TURN_1, -product) + frequency * TURN_2


@called
def _add_turns(factor, turns_1, turns_2, count, high, low, exact):  # type: ignore[no-untyped-def]
    """Add factor * turns, less whole turns, to a sum: an unevaluated one of two parts (Knuth) if `exact`."""
    widest()
    for i in range(count):
        product = factor * turns_1[i]
        term = product - np.rint(product)
        rest = fma(factor, turns_2[i], fma(factor, turns_1[i], -product))
        if exact:
            both = high[i] + term
            shadow = both - high[i]
            low[i] += ((high[i] - (both - shadow)) + (term - shadow)) + rest
            high[i] = both
        else:
            high[i] += term + rest


@called
def _add_radians(radians, count, high, low, exact):  # type: ignore[no-untyped-def]
    """Add angles in radians, less whole turns, to such a sum."""
    widest()
    for i in range(count):
        product = radians[i] * TURN_1
        term = product - np.rint(product)
        rest = fma(radians[i], TURN_2, fma(radians[i], TURN_1, -product))
        if exact:
            both = high[i] + term
            shadow = both - high[i]
            low[i] += ((high[i] - (both - shadow)) + (term - shadow)) + rest
            high[i] = both
        else:
            high[i] += term + rest


@called
def _read(source, step, narrow, count, target):  # type: ignore[no-untyped-def]
    widest()
    for i in range(count):
        target[i] = number(source + i * step, narrow)


@called
def _cos_sin_of_sums(high, low, blocks, cos, sin, exact):  # type: ignore[no-untyped-def]
    widest()
    if exact:
        for i in range(blocks):
            cos[i], sin[i] = cos_sin(high[i], low[i])
    else:
        for i in range(blocks):
            cos[i], sin[i] = cos_sin_narrow(high[i], low[i])


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
def _fill(header, row, a, b, c, e, turns_1, turns_2, high, low, cos, sin, shifted, exact):  # type: ignore[no-untyped-def]
    """Cos and sin of one row of phases, `shifted` where there is a shift to add to those of positions."""
    widest()
    blocks, source = header[BLOCKS], header[SOURCE]
    a_step, b_step = header[BLOCK_STRIDES + A], header[BLOCK_STRIDES + B]
    if source >= TABLE_64:
        _read(a, a_step, source == TABLE_32, blocks, high)
        _read(b, b_step, source == TABLE_32, blocks, low)
        for i in range(blocks):
            cos[i], sin[i] = high[i], low[i]
    elif source == PHASES:
        _read(a, a_step, False, blocks, row)
        _cos_sin_of_radians(row, blocks, high, low, cos, sin, exact)
    else:
        for i in range(blocks):
            high[i], low[i] = 0.0, 0.0
        for axis in range(header[POSITION_AXES]):
            position = number(a + axis * header[A_AXIS], False)
            these = slice(axis * blocks, (axis + 1) * blocks)
            _add_turns(position, turns_1[these], turns_2[these], blocks, high, low, exact)
        if shifted:
            _read(c, header[BLOCK_STRIDES + C], False, blocks, row)
            _add_radians(row, blocks, high, low, exact)
        _cos_sin_of_sums(high, low, blocks, cos, sin, exact)
    if header[HAS_SCALE] != 0:
        _read(e, header[BLOCK_STRIDES + E], False, blocks, row)
        if header[INVERSE] != 0:
            for i in range(blocks):
                cos[i] /= row[i]
                sin[i] /= row[i]
        else:
            for i in range(blocks):
                cos[i] *= row[i]
                sin[i] *= row[i]


@compiled
def fill_line(plan, rows, a, b, c, e, turns_1, turns_2, scratch, cos, sin, exact):  # type: ignore[no-untyped-def]
    """Cos and sin of a tile of phases, from positions on one axis alone: the usual case, without any scratch memory.

    All are addresses and counts but `exact`, and cos and sin, which are pointers.
    """
    widest()
    header = carray(integers(plan), (1 << 16,))
    blocks, step = header[BLOCKS], header[ROW_AXIS + A]
    first, second = carray(wide(turns_1, 0.0), (blocks,)), carray(wide(turns_2, 0.0), (blocks,))
    all_cos, all_sin = carray(cos, (rows * blocks,)), carray(sin, (rows * blocks,))
    for row in range(rows):
        position = number(a + row * step, False)
        cos_row, sin_row = all_cos[row * blocks :], all_sin[row * blocks :]
        if exact:
            for i in range(blocks):
                product = position * first[i]
                rest = fma(position, second[i], fma(position, first[i], -product))
                cos_row[i], sin_row[i] = cos_sin(product - np.rint(product), rest)
        else:
            for i in range(blocks):
                product = position * first[i]
                rest = fma(position, second[i], fma(position, first[i], -product))
                cos_row[i], sin_row[i] = cos_sin_narrow(product - np.rint(product), rest)
    return rows


@compiled
def fill_any(plan, rows, a, b, c, e, turns_1, turns_2, scratch, cos, sin, exact):  # type: ignore[no-untyped-def]
    """Cos and sin of a tile of phases, whatever they are made of; see `fill_line`."""
    header = carray(integers(plan), (1 << 16,))
    blocks, axes, step = header[BLOCKS], header[POSITION_AXES], header[ROW_AXIS:]
    first, second = carray(wide(turns_1, 0.0), (axes * blocks,)), carray(wide(turns_2, 0.0), (axes * blocks,))
    space = carray(wide(scratch, 0.0), (3, blocks))
    all_cos, all_sin = carray(cos, (rows * blocks,)), carray(sin, (rows * blocks,))
    for r in range(rows):
        _fill(
            header, space[0], a + r * step[A], b + r * step[B], c + r * step[C], e + r * step[E],
            first, second, space[1], space[2], all_cos[r * blocks :], all_sin[r * blocks :], header[HAS_SHIFT] != 0,
            exact,
        )  # fmt: skip
    return rows


@compiled
def fill_apart(plan, rows, a, b, c, e, turns_1, turns_2, scratch, cos, sin, exact):  # type: ignore[no-untyped-def]
    """Cos and sin of a tile of phases as products of those of positions and of a shift; see `fill_line`.

    Those of either stay in the scratch memory with the addresses that they come from, until others are asked for: all
    phases of many heads cost products alone.
    """
    widest()
    header = carray(integers(plan), (1 << 16,))
    blocks, axes, step = header[BLOCKS], header[POSITION_AXES], header[ROW_AXIS:]
    first, second = carray(wide(turns_1, 0.0), (axes * blocks,)), carray(wide(turns_2, 0.0), (axes * blocks,))
    space, n = carray(wide(scratch, 0.0), (3, blocks)), header[TILE] * blocks
    kept = carray(integers(scratch + 3 * blocks * 8), (KEPT,))
    tables = carray(wide((scratch + (3 * blocks + KEPT) * 8 + 63) & -64, 0.0), (4, n))
    n_places, n_shifts = rows if step[A] != 0 else 1, rows if step[C] != 0 else 1
    if kept[0] != a or kept[1] != b:  # a tile of fewer rows comes last, so an address always means the same rows
        for r in range(n_places):
            _fill(
                header, space[0], a + r * step[A], b + r * step[B], c, e, first, second, space[1], space[2],
                tables[0, r * blocks :], tables[1, r * blocks :], False, exact,
            )  # fmt: skip
        kept[0], kept[1] = a, b
    if kept[2] != c:
        for r in range(n_shifts):
            _read(c + r * step[C], header[BLOCK_STRIDES + C], False, blocks, space[0])
            _cos_sin_of_radians(
                space[0], blocks, space[1], space[2], tables[2, r * blocks :], tables[3, r * blocks :], exact
            )
        kept[2] = c
    place, shift = tables[0].ctypes.data, tables[2].ctypes.data
    place_step, shift_step = (8 * blocks if n_places == rows else 0), (8 * blocks if n_shifts == rows else 0)
    turn_tables(place, shift, 8 * n, place_step, shift_step, rows, blocks, cos, sin)
    return rows


@called
def scratch_of(header):  # type: ignore[no-untyped-def]
    """Count of the float64 that the loops for phases need as scratch memory."""
    return 3 * header[BLOCKS] + (KEPT + 8 + 4 * header[TILE] * header[BLOCKS] if header[SHIFT_APART] != 0 else 0)


@called
def forget(header, scratch):  # type: ignore[no-untyped-def]
    """Say that no tables lie in the scratch memory yet."""
    if header[SHIFT_APART] != 0:
        carray(integers(scratch + 3 * header[BLOCKS] * 8), (KEPT,))[:] = 0
