"""Axes and strides, in bytes, of the operands of a rotation, for plans of its way through memory."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from rfrope._core.angles import token_axes

Strides = tuple[int, ...]

# Fields of an axis of a walk: its length, then the stride of each operand along it. Operands a, b, c and e are:
# positions, frequencies, shift and scale; phases in a; or the cosines in a and the sines in b.
COLUMNS = 7
X, Y, A, B, C, E = range(1, COLUMNS)


class Operand(NamedTuple):
    """An array that says how to turn: leading axes that broadcast against those of x, and its step along the blocks."""

    address: int = 0
    shape: tuple[int, ...] = ()
    strides: Strides = ()
    step: int = 0


def operand(values: Any, address: int) -> Operand:
    """Describe an array whose last axis runs over the blocks, or a single number."""
    if values.ndim == 0:
        return Operand(address)
    return Operand(address, values.shape[:-1], values.strides[:-1], step_along(values, -1))


def positions_and_frequencies(a: Any, b: Any, addresses: tuple[int, int]) -> tuple[Operand, Operand]:
    """Describe positions and frequencies; heads of the frequencies come before the axis of the tokens."""
    tokens = token_axes(a)
    heads = (*b.shape[:-2], *(1,) * tokens), (*b.strides[:-2], *(0,) * tokens)
    return Operand(addresses[0], a.shape[:-1], a.strides[:-1]), Operand(addresses[1], *heads, step_along(b, -2))


def head_rows(omega: Any, lags: Any) -> tuple[Any, Any]:
    """Frequencies ``(*H, n, k)`` and rows of lags ``(*H, L, k)`` for sums at each; one set has all lags in one row."""
    heads = lags.shape[:-2] if omega.shape[:-2] else ()
    return omega, lags.reshape(*heads, math.prod(lags.shape[len(heads) : -1]), lags.shape[-1])


def step_along(values: Any, axis: int) -> int:
    """Stride of an axis, 0 where its length is 1, so that plans agree."""
    return int(values.strides[axis]) if values.shape[axis] > 1 else 0


def common_blocks(blocks: int, value: Any) -> int:
    """Return the number of blocks after broadcasting with the last axis of an array, if it has one."""
    last = tuple(getattr(value, "shape", ())[-1:])
    return blocks if last in ((), (blocks,)) else int(np.broadcast_shapes((blocks,), last)[-1])


def dense(shape: tuple[int, ...], size: int) -> Strides:
    """Strides of a new array."""
    return tuple(size * math.prod(shape[i + 1 :]) for i in range(len(shape)))


def spread(shape: tuple[int, ...], strides: Strides, leading: tuple[int, ...]) -> Strides:
    """Strides of an array broadcast to the leading axes."""
    moving = [0 if length == 1 else stride for length, stride in zip(shape, strides, strict=True)]
    return (*(0,) * (len(leading) - len(shape)), *moving)


def reach(axis: tuple[int, ...]) -> tuple[int, int]:
    """Return the distances of neighbours on an axis, in x and in y.

    Reading in order matters more than writing: stores can be combined.
    """
    return abs(axis[X]), abs(axis[Y])


def merged(axes: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Order axes as x lies in memory, and make one of neighbours that every array steps through evenly."""
    found: list[tuple[int, ...]] = []
    for length, *steps in sorted(axes, key=reach, reverse=True):
        if found and found[-1][1:] == tuple([length * step for step in steps]):
            length *= found.pop()[0]
        found.append((length, *steps))
    return found


def walk_axes(
    leading: tuple[int, ...],
    x: tuple[tuple[int, ...], Strides],
    y_strides: Strides,
    operands: list[tuple[tuple[int, ...], Strides]],
) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    """Return the axes along which phases change, and those whose rows share them, each merged where that is possible.

    `x` and the operands are given by their leading axes and strides; `y_strides` belong to all the leading axes.
    """
    columns = [spread(*x, leading), y_strides]
    columns += [spread(shape, strides, leading) for shape, strides in operands]
    axes = [axis for axis in zip(leading, *columns, strict=True) if axis[0] != 1]
    outer = [axis for axis in axes if any(axis[A:])]
    return merged(outer), merged([axis for axis in axes if not any(axis[A:])])
