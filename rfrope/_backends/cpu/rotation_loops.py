"""Compiled loops of the rotation: tiles of cos and sin, and blocks turned by them at the speed of memory.

Arrays come as addresses with strides in bytes, so that any memory of any library fits and one compilation serves every
shape. The element type is that of the argument `like`; see `elements`.
"""

from __future__ import annotations

import numpy as np
from numba import carray, njit

from rfrope._backends import layout
from rfrope._backends.cpu import rotation_rows as rows
from rfrope._backends.cpu.compiling import called, compiled, widest
from rfrope._backends.cpu.phase_loops import forget, scratch_of, turns_of

_PREFETCH_BYTES = 4096  # how far ahead of the row in work the next ones are asked for; half of it was slower


# -- the walk over memory ----------------------------------------------------------------------------------------------


@called
def find_offsets(header, first_axis, n_axes, index, found):  # type: ignore[no-untyped-def]
    """Add to `found` the bytes from the start of each operand to the row of that index, over some axes of the plan."""
    for axis in range(first_axis + n_axes - 1, first_axis - 1, -1):
        start = layout.HEADER + layout.COLUMNS * axis
        whole = index // header[start]
        along = index - whole * header[start]
        for operand in range(layout.COLUMNS):
            found[operand] += along * header[start + operand]
        index = whole


@njit(inline="always")
def _turn_rows(header, x, y, cos, sin, outer, inner, then, buffer, like):  # type: ignore[no-untyped-def]
    """Turn rows on two nested axes, given as offsets in x, y and the table, and pass their other features through."""
    # read once: for all the compiler knows, a row could lie over the header
    size, blocks, features = rows.sizes(like)[0], header[layout.BLOCKS], header[layout.FEATURES]
    x_step, y_step = header[layout.BLOCK_STRIDES + layout.X], header[layout.BLOCK_STRIDES + layout.Y]
    streaming, is_in_place = header[layout.STREAMING] != 0, x == y
    code_path = 3 * header[layout.FORM] + (1 + streaming if x_step == size and y_step == size else 0)
    moving = is_in_place and header[layout.CROSSED] != 0  # features change places: read all before writing
    rest, done = (0 if is_in_place else header[layout.REST]), 2 * blocks
    ahead = _PREFETCH_BYTES // (features * size)
    n_outer, n_inner = outer.shape[1], inner.shape[1]
    asked = 0 < ahead <= n_inner
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
                    rows.prefetch(coming + byte)
            table = table_outer + inner[2, j]
            x_row, y_row, step = x + x_outer + inner[0, j], y + y_outer + inner[1, j], x_step
            if rest > 0 and streaming and step == size:
                rows.stream(y_row + done * size, x_row + done * size, rest * size // 16)
            elif rest > 0:
                rows.copy(y_row + done * y_step, x_row + done * step, y_step, step, rest, like)
            if moving:
                rows.copy(buffer, x_row, size, step, done, like)
                x_row, step = buffer, size
            rows.turn_row(x_row, y_row, step, y_step, cos + table, sin + table, blocks, code_path, like)


@called
def _find_tile(header, index, at):  # type: ignore[no-untyped-def]
    """Offsets of all operands at the first row of a tile; return how many rows it has.

    The next tile is that of the next rows, but where shifts stand apart: there it is that of the same rows at the next
    place of all other axes.
    """
    n_rows, apart = header[layout.TILE], header[layout.SHIFT_APART]
    if apart != 0:
        first_row, index = index // apart * n_rows, index % apart
    else:
        first_row, index = index % header[layout.TILES] * n_rows, index // header[layout.TILES]
    for operand in range(layout.COLUMNS):
        at[operand] = first_row * header[layout.ROW_AXIS + operand]
    find_offsets(header, np.int64(0), header[layout.OUTER_AXES], index, at)
    return min(n_rows, header[layout.ROW_AXIS] - first_row)


@njit(inline="always")
def fill_tile(header, plan, index, operands, scale, last, turns, wide_cos, wide_sin, tables, at, like):  # type: ignore[no-untyped-def]
    """Cos and sin of a tile of rows of phases, scaled; offsets of all operands go to `at`.

    Returns the address of the frequencies, and how many rows there are.
    """
    blocks, n_rows = header[layout.BLOCKS], _find_tile(header, index, at)
    a, b = operands[0] + at[layout.A], operands[1] + at[layout.B]
    c, e = operands[2] + at[layout.C], operands[3] + at[layout.E]
    if header[layout.SOURCE] == layout.POSITIONS and b != last:
        step, axes = header[layout.BLOCK_STRIDES + layout.B], header[layout.POSITION_AXES]
        turns_of(b, step, header[layout.B_AXIS], blocks, axes, turns[0], turns[1])
    cos, sin, scratch = tables
    turns_1, turns_2, exact = turns[0].ctypes.data, turns[1].ctypes.data, rows.sizes(like)[0] == 8
    numbers = rows.memory(cos, like), rows.memory(sin, like)
    rows.call(header[layout.FILL], (plan, n_rows, a, b, c, e, turns_1, turns_2, scratch, *numbers, exact))
    if header[layout.INVERSE] != 0:
        for i in range(n_rows * blocks):
            wide_sin[i] = -wide_sin[i]
    for i in range(n_rows * blocks if scale != 1.0 else 0):
        if header[layout.INVERSE] != 0:
            wide_cos[i] /= scale
            wide_sin[i] /= scale
        else:
            wide_cos[i] *= scale
            wide_sin[i] *= scale
    return b, n_rows


@compiled
def turn(plan, x, y, a, b, c, e, scale, like, first, last):  # type: ignore[no-untyped-def]
    """Items first, ..., last - 1 of a plan's work. All but `scale` and `like` are addresses and integers.

    An item is a tile of rows of phases, and all rows of x (or one group of them) that share it.
    """
    widest()
    header = carray(rows.memory(plan, None), (1 << 16,))
    blocks, row_axis, n_rows = header[layout.BLOCKS], header[layout.ROW_AXIS :], header[layout.TILE]
    turns = np.empty((2, header[layout.POSITION_AXES] * blocks))
    n_table, n_scratch = n_rows * blocks, scratch_of(header)
    storage = np.empty(2 * n_table + n_scratch + header[layout.FEATURES])
    cos = storage.ctypes.data
    sin = cos + n_table * 8
    scratch = sin + n_table * 8
    buffer = scratch + n_scratch * 8
    tables = cos, sin, scratch
    wide_cos, wide_sin = carray(rows.memory(cos, like), (n_table,)), carray(rows.memory(sin, like), (n_table,))
    shared, tile = np.empty((3, header[layout.GROUP]), np.int64), np.empty((3, n_rows), np.int64)
    at = np.empty(layout.COLUMNS, np.int64)
    done = np.int64(0)  # no address of frequencies
    forget(header, scratch)
    for item in range(first, last):
        group, index = item % header[layout.GROUPS], item // header[layout.GROUPS]
        done, n_rows = fill_tile(
            header, plan, index, (a, b, c, e), scale, done, turns, wide_cos, wide_sin, tables, at, like
        )
        x_tile, y_tile = x + at[layout.X], y + at[layout.Y]
        for r in range(n_rows):
            tile[0, r] = r * row_axis[layout.X]
            tile[1, r] = r * row_axis[layout.Y]
            tile[2, r] = r * blocks * rows.sizes(like)[1]
        first_shared = group * header[layout.GROUP]
        n_shared = min(header[layout.GROUP], header[layout.SHARED] - first_shared)
        for s in range(n_shared):
            for operand in range(layout.COLUMNS):
                at[operand] = 0
            find_offsets(header, header[layout.OUTER_AXES], header[layout.SHARED_AXES], first_shared + s, at)
            shared[0, s], shared[1, s], shared[2, s] = at[layout.X], at[layout.Y], 0
        inner, outer = tile[:, :n_rows], shared[:, :n_shared]
        if header[layout.ROWS_INSIDE] == 0:
            inner, outer = outer, inner
        then = np.int64(0)
        if item + 1 < last:
            _find_tile(header, (item + 1) // header[layout.GROUPS], at)
            then = x + at[layout.X] - x_tile
        _turn_rows(header, x_tile, y_tile, cos, sin, outer, inner, then, buffer, like)
    if header[layout.STREAMING] != 0:
        rows.fence()
    return storage.size + turns.size  # they live until here


@njit(inline="always")
def _turn_dense(loop, plan, items, x, y, places, b, c, e, scale, like, part):  # type: ignore[no-untyped-def]
    at, fine, most = np.empty(places.size), True, max(part, 2.0**24)
    for i, position in enumerate(places.flat):
        at[i] = position
        most = most if np.floor(at[i]) == at[i] else part
    for position in at:
        fine = fine and abs(position) <= most
    if fine:
        rows.call(loop, (plan, x, y, at.ctypes.data, b, c, e, scale, like, 0, items))
    return fine and at.size >= 0  # the positions live until here


@compiled
def turn_dense(loop, plan, items, x, y, places, b_bytes, b, c, e, scale, like, part):  # type: ignore[no-untyped-def]
    """All the work of a plan for dense arrays, whose layouts it was made for, at positions of any type.

    Frequencies, and a shift and a scale if any, are at `b`, `c` and `e`. Nothing is done, and the answer is False,
    where a position is NaN, above `part` if it has a fraction, or else above `part` and 2**24, or where y is neither x
    nor apart from it and from the frequencies.
    """
    first, second, end = x.ctypes.data, y.ctypes.data, y.ctypes.data + y.nbytes
    apart = (first == second and x.nbytes == y.nbytes) or end <= first or first + x.nbytes <= second
    if not apart or not (end <= b or b + b_bytes <= second):
        return False
    return _turn_dense(loop, plan, items, first, second, places, b, c, e, scale, like, part)


@compiled
def turn_dense_at(loop, plan, items, x, y, places, b, c, e, scale, like, part):  # type: ignore[no-untyped-def]
    """Do the same for features and a result at two addresses."""
    return _turn_dense(loop, plan, items, x, y, places, b, c, e, scale, like, part)


@compiled
def turn_by_numbers(loop, plan, items, x, y, a, b, c, e, scale, like):  # type: ignore[no-untyped-def]
    """Do the same for phases at `a`, or for cos and sin at `a` and `b`."""
    return rows.call(loop, (plan, x, y, a, b, c, e, scale, like, 0, items)) > 0


@compiled
def address(array):  # type: ignore[no-untyped-def]
    """Address of an array, five times faster than `numpy.ndarray.ctypes`."""
    return array.ctypes.data


@compiled
def checked_address(array):  # type: ignore[no-untyped-def]
    """Address of an array, its smallest number and its largest magnitude; infinity where one is NaN."""
    smallest, largest, is_number = np.inf, 0.0, True
    for value in array:
        smallest = min(smallest, value)
        largest = max(largest, abs(value))
        is_number &= value == value
    return array.ctypes.data, smallest, largest if is_number else np.inf
