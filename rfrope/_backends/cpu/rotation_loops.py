"""Compiled loops of the rotation: phases in exact turns, cos and sin, and blocks turned at the speed of memory.

Arrays come as addresses with strides in bytes, so that any memory of any library fits and one compilation serves every
shape. The element type is that of the argument `like`; see `elements`.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
from numba import carray, njit, typeof

from rfrope._backends.cpu.circle import TURN_1, TURN_2, cos_sin, cos_sin_narrow, fma
from rfrope._backends.cpu.compiling import address_of, called, compiled, widest
from rfrope._backends.cpu.rotation_rows import (
    call_fill,
    call_turn,
    carry,
    copy,
    fence,
    fill_types,
    integers,
    number,
    prefetch,
    sizes,
    stream,
    turn_row,
    turn_tables,
    turn_types,
    wide,
)
from rfrope._backends.layout import COLUMNS, A, B, C, E, X, Y
from rfrope._core.arguments import LARGEST

# Fields of a plan before its table of axes
(
    BLOCKS,
    FEATURES,
    OUT_FEATURES,
    REST,
    POSITION_AXES,
    SOURCE,
    HAS_SHIFT,
    HAS_SCALE,
    INVERSE,
    FORM,
    CROSSED,
    IN_PLACE,
    STREAMING,
    ROWS_INSIDE,
    TILE,
    TILES,
    GROUP,
    GROUPS,
    SHARED,
    OUTER_AXES,
    SHARED_AXES,
    A_AXIS,
    B_AXIS,
    FILL,
    APART,
    BLOCK_STRIDES,
    ROW_AXIS,
) = (*range(26), 26 + COLUMNS)
HEADER = ROW_AXIS + COLUMNS
POSITIONS, PHASES, TABLE_64, TABLE_32 = range(4)
KEPT = 3  # addresses of what tables that `fill_apart` keeps come from: positions, frequencies, and a shift

_PREFETCH_BYTES = 4096  # how far ahead of the row in work the next ones are asked for; half of it was slower

_LARGEST_EXACT = 2.0**53


@cache
def loop_of(like: Any) -> int:
    """Return the address of `turn` for elements that the loops know by a NumPy character, as "h" for float16."""
    return address_of(turn, turn_types(typeof(np.dtype(like).type(0))))


@cache
def fill_of(loop: Any, is_narrow: bool) -> int:
    """Address of the loop for a plan's phases: one is compiled where it is wanted, and serves every type it can."""
    return address_of(loop, fill_types(is_narrow))


# -- phases to cos and sin ---------------------------------------------------------------------------------------------


@called
def _turns_of(frequencies, block_step, axis_step, blocks, axes, turns_1, turns_2):  # type: ignore[no-untyped-def]
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
    """Cos and sin of a tile of phases, whose positions and shift lie on different axes; see `fill_line`.

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
    if kept[0] != a or kept[1] != b:  # the last tile of an axis, which has fewer rows, comes last
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
    return 3 * header[BLOCKS] + (KEPT + 8 + 4 * header[TILE] * header[BLOCKS] if header[APART] != 0 else 0)


@called
def forget(header, scratch):  # type: ignore[no-untyped-def]
    """Say that no tables lie in the scratch memory yet."""
    if header[APART] != 0:
        carray(integers(scratch + 3 * header[BLOCKS] * 8), (KEPT,))[:] = 0


# -- the walk over memory ----------------------------------------------------------------------------------------------


@called
def find_offsets(header, first_axis, n_axes, index, found):  # type: ignore[no-untyped-def]
    """Add to `found` the bytes from the start of each operand to the row of that index, over some axes of the plan."""
    for axis in range(first_axis + n_axes - 1, first_axis - 1, -1):
        start = HEADER + COLUMNS * axis
        whole = index // header[start]
        along = index - whole * header[start]
        for operand in range(COLUMNS):
            found[operand] += along * header[start + operand]
        index = whole


@called
def _leave(target, source, count, last, like):  # type: ignore[no-untyped-def]
    """Store bytes past the caches, which lie alike relative to lines of 64 bytes: whole lines, and the rest if `last`.

    Returns how many bytes have left.
    """
    size = sizes(like)[0]
    head = min(-target & 63, count)
    lines = (count - head) >> 6
    done = head + (lines << 6)
    if (target | head) & 15 == 0:
        stream(target, source, head >> 4, 16)
    else:
        copy(target, source, size, size, head // size, like)
    if head % size == 0:
        stream(target + head, source + head, lines, 64)
    else:  # features lie across lines
        copy(target, source, size, size, done // size, like)
    if last != 0:
        rest = (count - done) & -16
        stream(target + done, source + done, rest >> 4, 16)
        done += rest
        copy(target + done, source + done, size, size, (count - done) // size, like)
    return done


@njit(inline="always")
def _turn_rows(header, x, y, cos, sin, outer, inner, then, buffer, like):  # type: ignore[no-untyped-def]
    """Turn rows on two nested axes, given as offsets in x, y and the table, and pass their other features through.

    Large results may be `STREAMING` past the caches: in pieces of 16 bytes if it is 1. If it is more, rows that follow
    each other are gathered in so many bytes of the fastest cache, from where whole lines leave at once.
    """
    # read once: for all the compiler knows, a row could lie over the header
    size, blocks, features, written = sizes(like)[0], header[BLOCKS], header[FEATURES], header[OUT_FEATURES]
    x_step, y_step, most = header[BLOCK_STRIDES + X], header[BLOCK_STRIDES + Y], header[STREAMING]
    repeated = x_step == 0  # one feature all along a row, as in the gradient of a sum: written out, it turns as others
    manner = 3 * header[FORM] + (1 + (most == 1) if (x_step == size or repeated) and y_step == size else 0)
    moving = header[IN_PLACE] != 0 and header[CROSSED] != 0  # features change places: read all before writing
    rest = 0 if header[IN_PLACE] != 0 else header[REST]
    ahead = _PREFETCH_BYTES // (features * size)
    n_outer, n_inner = outer.shape[1], inner.shape[1]
    asked = 0 < ahead <= n_inner
    start = (buffer + features * 8 + 127) & -64  # what is written out ends with 64 bytes
    first, gathered, kept, filled = np.int64(-1), np.int64(0), start, np.int64(-1)  # no row follows that
    for i in range(n_outer):
        x_outer, y_outer, table_outer = outer[0, i], outer[1, i], outer[2, i]
        following = outer[0, i + 1] if i + 1 < n_outer else then
        for j in range(n_inner):
            if asked:
                if j + ahead < n_inner:
                    coming = x + x_outer + inner[0, j + ahead]
                else:
                    coming = x + following + inner[0, j + ahead - n_inner]
                for byte in range(0, features * size, 64):
                    prefetch(coming + byte)
            table = table_outer + inner[2, j]
            x_row, y_row, step = x + x_outer + inner[0, j], y + y_outer + inner[1, j], x_step
            if most > 1:
                if y_row != first + gathered:
                    _leave(first, kept, gathered, np.int64(1), like)
                    first, gathered, kept = y_row, np.int64(0), start + (y_row & 63)
                elif gathered + written * size > most:
                    left = _leave(first, kept, gathered, np.int64(0), like)
                    first, gathered = first + left, gathered - left
                    carry(start, kept + left)
                    kept = start
                y_row = kept + gathered
                gathered += written * size
            if rest > 0:
                done = 2 * blocks
                copy(y_row + done * y_step, x_row + done * step, y_step, step, rest, like)
            if repeated:
                if x_row != filled:
                    copy(buffer, x_row, size, 0, 64 // size, like)
                    for byte in range(64, features * size, 64):
                        carry(buffer + byte, buffer)
                    filled = x_row
                x_row, step = buffer, size
            elif moving:
                copy(buffer, x_row, size, step, 2 * blocks, like)
                x_row, step = buffer, size
            turn_row(x_row, y_row, step, y_step, cos + table, sin + table, blocks, manner, like)
    if most > 1:
        _leave(first, kept, gathered, np.int64(1), like)


@called
def _find_tile(header, index, at):  # type: ignore[no-untyped-def]
    """Offsets of all operands at the first row of a tile; return how many rows it has.

    The next tile is that of the next rows, but where shifts stand apart: there it is that of the same rows at the next
    place of all other axes.
    """
    n_rows, apart = header[TILE], header[APART]
    if apart != 0:
        first_row, index = index // apart * n_rows, index % apart
    else:
        first_row, index = index % header[TILES] * n_rows, index // header[TILES]
    for operand in range(COLUMNS):
        at[operand] = first_row * header[ROW_AXIS + operand]
    find_offsets(header, np.int64(0), header[OUTER_AXES], index, at)
    return min(n_rows, header[ROW_AXIS] - first_row)


@njit(inline="always")
def fill_tile(header, plan, index, operands, scale, last, turns, wide_cos, wide_sin, tables, at, like):  # type: ignore[no-untyped-def]
    """Cos and sin of a tile of rows of phases, scaled; offsets of all operands go to `at`.

    Returns the address of the frequencies, and how many rows there are.
    """
    blocks, n_rows = header[BLOCKS], _find_tile(header, index, at)
    a, b, c, e = operands[0] + at[A], operands[1] + at[B], operands[2] + at[C], operands[3] + at[E]
    if header[SOURCE] == POSITIONS and b != last:
        step, axes = header[BLOCK_STRIDES + B], header[POSITION_AXES]
        _turns_of(b, step, header[B_AXIS], blocks, axes, turns[0], turns[1])
    cos, sin, scratch, _ = tables
    call_fill(
        header[FILL], plan, n_rows, a, b, c, e, turns[0].ctypes.data, turns[1].ctypes.data, scratch,
        wide(cos, like), wide(sin, like), sizes(like)[0] == 8,
    )  # fmt: skip
    if header[INVERSE] != 0:
        for i in range(n_rows * blocks):
            wide_sin[i] = -wide_sin[i]
    if scale != 1.0 and header[INVERSE] != 0:
        for i in range(n_rows * blocks):
            wide_cos[i] /= scale
            wide_sin[i] /= scale
    elif scale != 1.0:
        for i in range(n_rows * blocks):
            wide_cos[i] *= scale
            wide_sin[i] *= scale
    return b, n_rows


@compiled
def turn(plan, x, y, a, b, c, e, scale, like, first, last):  # type: ignore[no-untyped-def]
    """Items first, ..., last - 1 of a plan's work. All but `scale` and `like` are addresses and integers.

    An item is a tile of rows of phases, and all rows of x (or one group of them) that share it.
    """
    widest()
    header = carray(integers(plan), (1 << 16,))
    blocks, row_axis, n_rows = header[BLOCKS], header[ROW_AXIS:], header[TILE]
    turns = np.empty((2, header[POSITION_AXES] * blocks))
    n_scratch = scratch_of(header)
    storage = np.empty(2 * n_rows * blocks + n_scratch + header[FEATURES] + header[STREAMING] // 8 + 32)
    cos = storage.ctypes.data
    sin = cos + n_rows * blocks * 8
    scratch = sin + n_rows * blocks * 8
    buffer = scratch + n_scratch * 8
    tables = (cos, sin, scratch, buffer)
    wide_cos, wide_sin = carray(wide(cos, like), (n_rows * blocks,)), carray(wide(sin, like), (n_rows * blocks,))
    shared, tile = np.empty((3, header[GROUP]), np.int64), np.empty((3, n_rows), np.int64)
    at = np.empty(COLUMNS, np.int64)
    done = np.int64(0)  # no address of frequencies
    forget(header, scratch)
    for item in range(first, last):
        group, index = item % header[GROUPS], item // header[GROUPS]
        done, n_rows = fill_tile(
            header, plan, index, (a, b, c, e), scale, done, turns, wide_cos, wide_sin, tables, at, like
        )
        x_tile, y_tile = x + at[X], y + at[Y]
        for r in range(n_rows):
            tile[0, r] = r * row_axis[X]
            tile[1, r] = r * row_axis[Y]
            tile[2, r] = r * blocks * sizes(like)[1]
        first_shared = group * header[GROUP]
        n_shared = min(header[GROUP], header[SHARED] - first_shared)
        for s in range(n_shared):
            for operand in range(COLUMNS):
                at[operand] = 0
            find_offsets(header, header[OUTER_AXES], header[SHARED_AXES], first_shared + s, at)
            shared[0, s], shared[1, s], shared[2, s] = at[X], at[Y], 0
        inner, outer = tile[:, :n_rows], shared[:, :n_shared]
        if header[ROWS_INSIDE] == 0:
            inner, outer = outer, inner
        then = np.int64(0)
        if item + 1 < last:
            _find_tile(header, (item + 1) // header[GROUPS], at)
            then = x + at[X] - x_tile
        _turn_rows(header, x_tile, y_tile, cos, sin, outer, inner, then, buffer, like)
    if header[STREAMING] != 0:
        fence()
    return storage.size + turns.size  # they live until here


@njit(inline="always")
def _turn_dense(loop, plan, plan_in_place, items, x, y, n_bytes, places, b, b_bytes, scale, like):  # type: ignore[no-untyped-def]
    at, fine = np.empty(places.size), True
    for i, position in enumerate(places.flat):
        at[i] = position
        fine = fine and abs(at[i]) <= LARGEST
    end = y + n_bytes
    in_place = x == y
    fine = fine and (in_place or end <= x or x + n_bytes <= y) and (end <= b or b + b_bytes <= y)
    if fine:
        chosen = plan_in_place if in_place else plan
        call_turn(loop, chosen, x, y, at.ctypes.data, b, 0, 0, scale, like, 0, items)
    return fine and at.size >= 0  # the positions live until here


@compiled
def turn_dense(loop, plan, plan_in_place, items, x, y, places, b, b_bytes, scale, like):  # type: ignore[no-untyped-def]
    """All the work of a plan for dense arrays, whose layouts it was made for, at positions of any type.

    The frequencies are at `b`. Nothing is done, and the answer is False, where a position is NaN or above 2**500, or
    where the result would be written over features or frequencies before they are read.
    """
    first, second, n_bytes = x.ctypes.data, y.ctypes.data, x.nbytes
    return _turn_dense(loop, plan, plan_in_place, items, first, second, n_bytes, places, b, b_bytes, scale, like)


@compiled
def turn_dense_at(loop, plan, plan_in_place, items, x, y, n_bytes, places, b, b_bytes, scale, like):  # type: ignore[no-untyped-def]
    """Do the same for features and a result at two addresses."""
    return _turn_dense(loop, plan, plan_in_place, items, x, y, n_bytes, places, b, b_bytes, scale, like)


@compiled
def turn_two(loop, plan_1, x_1, y_1, b_1, last_1, plan_2, x_2, y_2, b_2, last_2, a, scale, like):  # type: ignore[no-untyped-def]
    """All the work of two plans for the same positions: a query and a key, at the price of one call."""
    call_turn(loop, plan_1, x_1, y_1, a, b_1, 0, 0, scale, like, 0, last_1)
    return call_turn(loop, plan_2, x_2, y_2, a, b_2, 0, 0, scale, like, 0, last_2)


@compiled
def address(array):  # type: ignore[no-untyped-def]
    """Address of an array, five times faster than `numpy.ndarray.ctypes`."""
    return array.ctypes.data


@compiled
def checked_address(array):  # type: ignore[no-untyped-def]
    """Address of an array, and whether all its values are at most 2**500."""
    fine = True
    for value in array.flat:
        fine = fine and abs(value) <= LARGEST
    return array.ctypes.data, fine
