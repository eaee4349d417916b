"""Plans of a rotation on the CPU: how compiled loops go over memory, made from layouts and options alone.

No plan knows an address or a value, so that one serves every call of its layout; `plan_of` keeps the last 512.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numba import typeof

from rfrope._backends import layout
from rfrope._backends.cpu import phase_loops
from rfrope._backends.cpu import rotation_loops as loops
from rfrope._backends.cpu.compiling import address_of
from rfrope._backends.cpu.elements import DTYPES, like_of
from rfrope._backends.cpu.rotation_rows import fill_types, turn_types
from rfrope._backends.layout import Layout, Operands, Strides
from rfrope._core.blocks import MAGNITUDES, width_of

TABLE_BYTES = 2**16  # bytes of cos and sin for one tile of rows: they stay in the second cache
THREAD_ELEMENTS = 2**20  # features that are worth a thread, which takes 0.1 ms to start
_ITEM_ELEMENTS = 2**18  # features in one item of work
_LARGEST_GROUP = 2**12
_STREAMED_BYTES = 2**23  # outputs of this size go past the caches, which they would only flush


class RotationPlan(NamedTuple):
    """One rotation of arrays of given layouts.

    Attributes
    ----------
    shape : tuple of int
        That of the result; not that of the features where the phases would enlarge them.
    like : numpy scalar
        What the loops are compiled for (`elements.like_of`).
    size : int
        Bytes of a feature.
    dense : tuple of int
        Addresses of `rotation_loops.turn` for such elements and of the first table; and `items`.
    elements, items : int
        Features of the result, and items of work, which threads may share.
    is_fit : bool
        Whether one thread does it at once, and it is what `rotate` or `rotate_polar` may ask for: D blocks that fit,
        and phases that leave the leading axes of features as they are.
    may_stream : bool
        Whether a large result elsewhere may go past the caches, in pieces of 16 bytes.
    tables : numpy.ndarray, int64
        What the loops follow: through the caches, and past them.
    """

    shape: tuple[int, ...]
    like: Any
    size: int
    dense: tuple[int, int, int]
    elements: int
    items: int
    is_fit: bool
    may_stream: bool
    tables: np.ndarray


Options = tuple[str, str, bool, bool]  # layouts of features and of the result, `inverse` and `softplus`


@lru_cache(maxsize=512)
def plan_of(dtype: str, x: Layout, y: Strides | None, kind: int, angles: Any, options: Options) -> RotationPlan:
    """Return the plan for features of a dtype and layout.

    Parameters
    ----------
    dtype : str
        One of `elements.DTYPES`.
    x : layout
        Of the features, dense where it has no strides.
    y : tuple of int, optional
        Strides of the result, if it is not new.
    kind : int
        `layout.POSITIONS` or its like: what `a` and `b` are.
    angles : layouts
        Those of a, b, c and e, as in `layout.operands_of`.
    options : tuple

    Raises
    ------
    ValueError
        Where shapes do not fit together, or there is no such pairing; whoever calls it words the error.
    """
    if not x[0]:
        raise ValueError("features have no axes")
    pairing, out_pairing, *_ = options
    like, form = like_of(dtype, options)
    operands = layout.operands_of(kind == layout.POSITIONS, *angles)
    size, blocks = DTYPES[dtype], operands.blocks
    is_polar = MAGNITUDES in (pairing, out_pairing)
    rest = x[0][-1] - width_of(pairing) * blocks
    x = x if x[1] is not None else (x[0], layout.dense(x[0], size))
    shapes, _, _ = zip(*operands.rows, strict=True)
    leading = np.broadcast_shapes(x[0][:-1], *shapes)
    shape = (*leading, rest + width_of(out_pairing) * blocks)
    y = layout.dense(shape, size) if y is None else y
    elements = math.prod(shape)
    is_large = y[-1] == size and elements * size >= _STREAMED_BYTES
    is_small = 0 < elements < 2 * THREAD_ELEMENTS and elements * size < _STREAMED_BYTES
    in_pieces = not any([step % 16 for step in (blocks * size, rest * size, *y[:-1])])
    tables, items = np.zeros((2, 1), np.int64), 0
    if elements:
        table, items = _table(kind, operands, angles, size, x, (shape, y), None)
        table[layout.FORM], table[layout.INVERSE] = form, options[2]
        table[layout.CROSSED], table[layout.REST] = pairing != out_pairing, rest
        tables = np.array([table, table])
        tables[1, layout.STREAMING] = 1
    tables.flags.writeable = False
    return RotationPlan(
        shape,
        like,
        size,
        (address_of(loops.turn, turn_types(typeof(like))), tables.ctypes.data, items),
        elements,
        items,
        is_small and leading == x[0][:-1] and (rest == 0 if is_polar else rest >= 0 and shape[-1] % 2 == 0),
        is_large and in_pieces,
        tables,
    )


def gradient_table(
    dtype: str, x: Layout, y: Layout, kind: int, operands: Operands, angles: Any, options: Options, target: Layout
) -> tuple[Any, np.ndarray, int]:
    """Return what `coefficient_loops.turn_gradients` follows: an element, the table, and the number of items.

    The operands are those that the layouts in `angles` are read as; `target` is the layout of the sums, of which all
    axes are those of the phases.
    """
    like, form = like_of(dtype, options)
    table, items = _table(kind, operands, angles, DTYPES[dtype], x, y, target)
    table[layout.FORM], table[layout.INVERSE] = form, options[2]
    table[layout.GROUP], items, table[layout.GROUPS] = table[layout.SHARED], items // table[layout.GROUPS], 1
    return like, table, int(items)


def _table(
    kind: int, operands: Operands, angles: Any, size: int, x: Layout, y: Layout, sums: Layout | None
) -> tuple[np.ndarray, int]:
    """Return the table of the loops, but for what is asked of them, and the number of items of work.

    `sums` is the layout of those of a gradient, if it is one, whose cos and sin are float64.
    """
    (_, _, shift, scale), blocks = angles, operands.blocks
    others = *operands.rows, layout.row_of(sums)
    arrays = [(x[0][:-1], x[1][:-1]), (y[0][:-1], y[1][:-1]), *[row[:2] for row in others]]
    leading = y[0][:-1] if sums is None else np.broadcast_shapes(*[shape for shape, _ in arrays])
    outer, shared = layout.walk_axes(leading, arrays)
    # Cos and sin of positions are formed without the shift, and turned by those of the shift: so they are formed once
    # for all heads, each of which has its shift. It adds a rounding, which float64 does without; the choice does not
    # depend on shapes, so that parts of an array get the bits of the whole.
    is_apart = size < 8 and shift is not None and scale is None
    # frequencies must be the same along a tile; of the others, the axis whose rows lie closest
    fixed = [axis for axis in outer if kind != layout.POSITIONS or axis[layout.B] == 0]
    rows = min(fixed, key=layout.reach, default=(1, *(0,) * (layout.COLUMNS - 1)))
    if fixed:
        outer.remove(rows)
    tile = min(rows[0], max(1, TABLE_BYTES // (16 * max(1, blocks))))
    if is_apart:  # the same positions follow each other
        outer.sort(key=lambda axis: axis[layout.A] == axis[layout.B] == 0)
    n_shared = math.prod([axis[0] for axis in shared])
    group = max(1, min(n_shared, _LARGEST_GROUP, _ITEM_ELEMENTS // (tile * max(x[0][-1], y[0][-1]))))
    tiles, groups = -(-rows[0] // tile), -(-n_shared // group)

    table = np.zeros(layout.HEADER + layout.COLUMNS * (len(outer) + len(shared)), np.int64)
    table[layout.BLOCKS], table[layout.SOURCE] = blocks, kind
    table[layout.SHIFT_APART] = math.prod([axis[0] for axis in outer]) if is_apart else 0
    table[layout.FEATURES] = x[0][-1]
    table[layout.HAS_SHIFT], table[layout.HAS_SCALE] = shift is not None, scale is not None
    table[layout.POSITION_AXES], (table[layout.A_AXIS], table[layout.B_AXIS]) = operands.axes, operands.axis_steps
    table[layout.ROWS_INSIDE] = not any([layout.reach(rows) > layout.reach(axis) for axis in shared])
    table[layout.TILE], table[layout.TILES], table[layout.GROUP], table[layout.GROUPS] = tile, tiles, group, groups
    table[layout.SHARED], table[layout.OUTER_AXES], table[layout.SHARED_AXES] = n_shared, len(outer), len(shared)
    steps = x[1][-1], y[1][-1], *[step for _, _, step in others]
    table[layout.BLOCK_STRIDES + 1 : layout.BLOCK_STRIDES + layout.COLUMNS] = steps
    table[layout.ROW_AXIS : layout.HEADER] = rows
    for i, axis in enumerate((*outer, *shared)):
        table[layout.HEADER + layout.COLUMNS * i :][: layout.COLUMNS] = axis
    fill = phase_loops.fill_line if operands.axes == 1 and shift is scale is None else phase_loops.fill_any
    fill = phase_loops.fill_apart if table[layout.SHIFT_APART] else fill
    table[layout.FILL] = address_of(fill, fill_types(size == 2 and sums is None))
    return table, math.prod([axis[0] for axis in outer]) * tiles * groups
