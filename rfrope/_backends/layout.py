"""Axes and strides, in bytes, of the operands of a rotation, for plans of its way through memory, and their fields."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

Strides = tuple[int, ...]

# Fields of an axis of a walk: its length, then the stride of each operand along it. Operands a, b, c and e are:
# positions, frequencies, shift and scale; phases in a; or the cosines in a and the sines in b. In s are sums of what
# gradients need, where there are any.
COLUMNS = 8
X, Y, A, B, C, E, S = range(1, COLUMNS)


Layout = tuple[tuple[int, ...], Any]  # shape, and strides in bytes
Row = tuple[tuple[int, ...], Strides, int]  # leading axes of an operand, their strides, and the step between blocks
# Fields of a plan before its table of axes
(
    BLOCKS, FEATURES, REST, POSITION_AXES, SOURCE, HAS_SHIFT, HAS_SCALE, INVERSE, FORM, CROSSED, STREAMING, ROWS_INSIDE,
    TILE, TILES, GROUP, GROUPS, SHARED, OUTER_AXES, SHARED_AXES, A_AXIS, B_AXIS, FILL, SHIFT_APART, BLOCK_STRIDES,
    ROW_AXIS,
) = (*range(24), 24 + COLUMNS)  # fmt: skip
HEADER = ROW_AXIS + COLUMNS
POSITIONS, PHASES, TABLE_64, TABLE_32 = range(4)


class Operands(NamedTuple):
    """Arrays that say how to turn."""

    rows: tuple[Row, ...]  # those of a, b, c and e; they broadcast against the leading axes of x
    blocks: int  # D
    axes: int  # how many positions have, and frequencies
    axis_steps: tuple[int, int]  # those of positions and frequencies from an axis to the next


def operands_of(are_positions: bool, a: Layout, b: Layout | None, c: Layout | None, e: Layout | None) -> Operands:
    """Describe operands by their layouts, and a shift and a scale if they are arrays; refuse what does not fit.

    `a` and `b` are positions and frequencies, in their user's form or ``(*P, k)`` and ``(*H, D, k)``; else phases
    ``(..., D)`` in `a`, or tables of cos and sin. Positions without strides are dense float64.
    """
    axes, steps = 0, (0, 0)
    if are_positions and b is not None:
        (a_shape, a_strides), (b_shape, b_strides) = a, b
        if len(b_shape) == 1:  # one axis, in the form of users
            a_shape, b_shape, b_strides = (*a_shape, 1), (*b_shape, 1), (*b_strides, 0)
        a_strides = dense(a_shape, 8) if a_strides is None else (*a_strides, 0)[: len(a_shape)]
        axes = b_shape[-1]
        if not a_shape or a_shape[-1] != axes or axes == 0:
            raise ValueError(f"positions of {a_shape} do not fit frequencies of {b_shape}")
        tokens = min(len(a_shape) - 1, 1)
        # heads of the frequencies come before the axis of the tokens
        heads = (*b_shape[:-2], *(1,) * tokens), (*b_strides[:-2], *(0,) * tokens)
        blocks = b_shape[-2]
        rows = [(a_shape[:-1], a_strides[:-1], 0), (*heads, b_strides[-2] if blocks > 1 else 0)]
        steps = (a_strides[-1], b_strides[-1]) if axes > 1 else (0, 0)
    else:
        blocks, rows = a[0][-1], [row_of(a), row_of(b)]
    for values in (c, e):
        rows.append(row_of(values))
        if values is not None and values[0] and values[0][-1] != blocks:
            (blocks,) = np.broadcast_shapes((blocks,), values[0][-1:])
    return Operands(tuple(rows), blocks, axes, steps)


def row_of(values: Layout | None) -> Row:
    """Split the layout of an operand into leading axes and the step along its last one."""
    if values is None or not values[0]:
        return (), (), 0
    shape, strides = values
    return shape[:-1], strides[:-1], strides[-1] if shape[-1] > 1 else 0


def head_rows(omega: Any, lags: Any) -> tuple[Any, Any]:
    """Frequencies ``(*H, n, k)`` and rows of lags ``(*H, L, k)`` for sums at each; one set has all lags in one row."""
    heads = lags.shape[:-2] if omega.shape[:-2] else ()
    return omega, lags.reshape(*heads, math.prod(lags.shape[len(heads) : -1]), lags.shape[-1])


def dense(shape: tuple[int, ...], size: int) -> Strides:
    """Strides of a new array."""
    found = [size] * len(shape)
    for axis in range(len(shape) - 1, 0, -1):
        found[axis - 1] = found[axis] * shape[axis]
    return tuple(found)


def broadcast_strides(shape: tuple[int, ...], strides: Strides, leading: tuple[int, ...]) -> Strides:
    """Strides of an array broadcast to the leading axes."""
    found = [0] * len(leading)
    for axis, length in enumerate(shape, len(leading) - len(shape)):
        if length != 1:
            found[axis] = strides[axis - len(leading)]
    return tuple(found)


def reach(axis: tuple[int, ...]) -> tuple[int, int]:
    """Return the distances of neighbours on an axis, in x and in y.

    Reading in order matters more than writing: stores can be combined.
    """
    return abs(axis[X]), abs(axis[Y])


def merged(axes: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Order axes as x lies in memory, and make one of neighbours that every array steps through evenly."""
    return joined(sorted(axes, key=reach, reverse=True))


def joined(axes: Iterable[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Make one axis of neighbours that every array steps through evenly."""
    found: list[tuple[int, ...]] = []
    for length, *steps in axes:
        if found and found[-1][1:] == tuple([length * step for step in steps]):
            length *= found.pop()[0]
        found.append((length, *steps))
    return found


def walk_axes(
    leading: tuple[int, ...], arrays: list[tuple[tuple[int, ...], Strides]]
) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    """Return the axes along which phases change, and those whose rows share them, each merged where that is possible.

    x, y and the operands are given by their leading axes and strides.
    """
    columns = [broadcast_strides(shape, strides, leading) for shape, strides in arrays]
    outer: list[tuple[int, ...]] = []
    shared: list[tuple[int, ...]] = []
    for axis in zip(leading, *columns, strict=True):
        if axis[0] != 1:
            (outer if any(axis[A:]) else shared).append(axis)
    return merged(outer), merged(shared)
