"""Compiled loops beside the rotation: products of features of blocks, summed over rows, and a look at signs."""

from __future__ import annotations

import numpy as np
from numba import carray

from rfrope._backends.cpu.compiling import compiled, widest
from rfrope._backends.cpu.rotation_rows import add_products, any_negative, integers, sizes

COLUMNS = 4  # an axis has: its length, then the stride of x, y and the sums along it
X, Y, SUMS = 1, 2, 3

# Fields of a plan before its table of axes: first those of the sums, then those that are summed over
(BLOCKS, FORM, X_STEP, Y_STEP, TILE, TILES, OUTER_AXES, SHARED_AXES, SHARED, ROW_AXIS) = range(10)
HEADER = ROW_AXIS + COLUMNS


@compiled
def products(plan, x, y, dots, crosses, like, first, last):  # type: ignore[no-untyped-def]
    """Tiles first, ..., last - 1 of the rows of sums, each over all rows of x and y that share its phases."""
    widest()
    header = carray(integers(plan), (1 << 16,))
    blocks, x_step, y_step = header[BLOCKS], header[X_STEP], header[Y_STEP]
    row_axis, size = header[ROW_AXIS:], sizes(like)[0]
    manner = 2 * header[FORM] + (1 if x_step == size and y_step == size else 0)
    at = np.empty(COLUMNS, np.int64)
    for item in range(first, last):
        at[:] = 0
        index = item // header[TILES]
        for axis in range(header[OUTER_AXES] - 1, -1, -1):
            start = HEADER + COLUMNS * axis
            along = index % header[start]
            index //= header[start]
            for operand in range(1, COLUMNS):
                at[operand] += along * header[start + operand]
        row = item % header[TILES] * header[TILE]
        n_rows = min(header[TILE], row_axis[0] - row)
        x_tile, y_tile = x + at[X] + row * row_axis[X], y + at[Y] + row * row_axis[Y]
        sums = at[SUMS] + row * row_axis[SUMS]
        for s in range(header[SHARED]):
            x_row, y_row, index = x_tile, y_tile, s
            for axis in range(header[OUTER_AXES] + header[SHARED_AXES] - 1, header[OUTER_AXES] - 1, -1):
                start = HEADER + COLUMNS * axis
                along = index % header[start]
                index //= header[start]
                x_row += along * header[start + X]
                y_row += along * header[start + Y]
            for r in range(n_rows):
                place = sums + r * row_axis[SUMS]
                add_products(
                    x_row + r * row_axis[X], y_row + r * row_axis[Y], x_step, y_step, dots + place, crosses + place,
                    blocks, manner, like,
                )  # fmt: skip


@compiled
def find_negative(axes, x, like, first, last):  # type: ignore[no-untyped-def]
    """Return whether a number in rows first, ..., last - 1 is below zero; the last axis, (length, step), is a row's."""
    widest()
    n, found = axes.shape[0] - 1, 0
    for row in range(first, last):
        place, index = x, row
        for axis in range(n - 1, -1, -1):
            whole = index // axes[axis, 0]
            place += (index - whole * axes[axis, 0]) * axes[axis, 1]
            index = whole
        found |= any_negative(place, axes[n, 1], axes[n, 0], like)
    return found
