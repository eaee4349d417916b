"""Compiled loops for gradients of phases, and of magnitudes."""

from __future__ import annotations

import numpy as np
from numba import carray

from rfrope._backends import layout
from rfrope._backends.cpu import rotation_loops as rotation
from rfrope._backends.cpu.compiling import compiled, widest
from rfrope._backends.cpu.phase_loops import forget, scratch_of
from rfrope._backends.cpu.rotation_rows import add_products, memory, sizes, turn_back_row


@compiled
def turn_gradients(plan, x, y, a, b, c, e, scale, like, target, radial, found, places, first, last):  # type: ignore[no-untyped-def]
    """Gradients of phases, or of scales times these, in tiles first, ..., last - 1 of a plan.

    `found` is (tiles, rows, blocks), of which the rows are summed where there is one; `places` says for each tile where
    its sums belong, and how many rows it has. Without rows nothing is summed. A `target`, an address or 0, gets the
    gradient of x, which are magnitudes; its steps are those of x.
    """
    widest()
    header = carray(memory(plan, None), (1 << 16,))
    blocks, most, size = header[layout.BLOCKS], header[layout.TILE], sizes(like)[0]
    x_step, y_step = header[layout.BLOCK_STRIDES + layout.X], header[layout.BLOCK_STRIDES + layout.Y]
    dense, added = (1 if x_step == size and y_step == size else 0), found.shape[1] > 0
    code_path, back = 2 * header[layout.FORM] + dense, 4 * header[layout.FORM] + 2 * added + dense
    turns = np.empty((2, header[layout.POSITION_AXES] * blocks))
    wide_cos, wide_sin = np.empty(most * blocks), np.empty(most * blocks)
    scratch = np.empty(scratch_of(header))
    tables = wide_cos.ctypes.data, wide_sin.ctypes.data, scratch.ctypes.data
    dots, crosses = np.empty(most * blocks), np.empty(most * blocks)
    at, row_at = np.empty(layout.COLUMNS, np.int64), np.empty(layout.COLUMNS, np.int64)
    forget(header, scratch.ctypes.data)
    done, x_row, y_row = np.int64(0), header[layout.ROW_AXIS + layout.X], header[layout.ROW_AXIS + layout.Y]
    for item in range(first, last):
        done, n_rows = rotation.fill_tile(
            header, plan, item, (a, b, c, e), scale, done, turns, wide_cos, wide_sin, tables, at, 0.0
        )
        places[item, 0], places[item, 1] = at[layout.S], n_rows
        sums = found[item]
        sums[:] = 0.0
        if target == 0:
            dots[:] = 0.0
            crosses[:] = 0.0
        for s in range(header[layout.SHARED]):
            row_at[:] = 0
            rotation.find_offsets(header, header[layout.OUTER_AXES], header[layout.SHARED_AXES], s, row_at)
            x_tile, y_tile = x + at[layout.X] + row_at[layout.X], y + at[layout.Y] + row_at[layout.Y]
            for r in range(n_rows):
                x_at, y_at, place = x_tile + r * x_row, y_tile + r * y_row, 8 * r * blocks
                if target != 0:
                    cos, sin, to = tables[0] + place, tables[1] + place, target + (x_at - x)
                    total = sums.ctypes.data + (8 * (r % sums.shape[0]) * blocks if added else 0)
                    turn_back_row(x_at, y_at, to, x_step, y_step, cos, sin, total, blocks, back, like)
                else:
                    dot, cross = dots.ctypes.data + place, crosses.ctypes.data + place
                    add_products(x_at, y_at, x_step, y_step, dot, cross, blocks, code_path, like)
        for r in range(n_rows if added and target == 0 else 0):
            row = sums[r % sums.shape[0]]
            for i in range(blocks):
                k = r * blocks + i
                if radial:
                    row[i] += wide_cos[k] * dots[k] + wide_sin[k] * crosses[k]
                else:
                    row[i] += wide_cos[k] * crosses[k] - wide_sin[k] * dots[k]
    return scratch.size + turns.size  # they live until here


@compiled
def add_up(found, places, row_step, block_step, target):  # type: ignore[no-untyped-def]
    """Add sums of tiles to where they belong in a flat array, in their order; places and steps are in bytes."""
    for item in range(found.shape[0]):
        for r in range(min(found.shape[1], places[item, 1])):
            at = (places[item, 0] + r * row_step) // 8
            for i in range(found.shape[2]):
                target[at + i * block_step // 8] += found[item, r, i]
