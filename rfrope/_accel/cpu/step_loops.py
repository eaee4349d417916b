"""Compiled calls for what comes again and again: arrays are checked against a table, and turned, all in one call."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray, njit, typeof

from rfrope._accel.cpu.compiling import address_of, compiled
from rfrope._accel.cpu.rotation_loops import LARGEST, turn
from rfrope._accel.cpu.rotation_rows import call_turn, integers, sizes, turn_types


def address_of_turn(like: Any) -> int:
    """Address of `turn` for elements like `like`."""
    return address_of(turn, turn_types(typeof(like)))


# Fields of the table of a step before its shapes and strides
(
    TURN,
    STEP_PLAN,
    STEP_PLAN_IN_PLACE,
    STEP_ITEMS,
    X_LOW,
    X_HIGH,
    Y_LOW,
    Y_HIGH,
    SAME,
    B_LOW,
    B_HIGH,
    FREQUENCIES,
    SIZES,
) = range(13)


@njit(inline="always")
def _step(held, at, first, second, positions, scale, like):  # type: ignore[no-untyped-def]
    """Look at positions, whose shape is that at `at`, and at where all of it lies; turn if nothing is wrong."""
    if held[at] != positions.ndim:
        return False
    for axis in range(positions.ndim):
        if held[at + 1 + axis] != positions.shape[axis]:
            return False
    places, fine = np.empty(positions.size), True
    for i, position in enumerate(positions.flat):
        places[i] = position
        fine = fine and abs(places[i]) <= LARGEST
    low, high = second + held[Y_LOW], second + held[Y_HIGH]
    in_place = first == second and held[SAME] != 0
    fine = fine and (in_place or high <= first + held[X_LOW] or first + held[X_HIGH] <= low)
    fine = fine and (high <= held[B_LOW] or held[B_HIGH] <= low)
    if not fine or (first | second) % sizes(like)[0] != 0:
        return False
    plan = held[STEP_PLAN_IN_PLACE] if in_place else held[STEP_PLAN]
    a = places.ctypes.data
    call_turn(held[TURN], plan, first, second, a, held[FREQUENCIES], 0, 0, scale, like, 0, held[STEP_ITEMS])
    return places.size > 0 or fine  # the positions live until here


@compiled
def step(table, x, out, positions, scale, like):  # type: ignore[no-untyped-def]
    """All the work of a plan for arrays whose layouts are those of its table; False where anything is not as it says.

    Layouts are: of x, of `out` and of the positions, each its number of axes, then its shape. All are dense.
    """
    held = carray(integers(table), (1 << 16,))
    at = SIZES
    for array in (x, out):
        if held[at] != array.ndim:
            return False
        for axis in range(array.ndim):
            if held[at + 1 + axis] != array.shape[axis]:
                return False
        at += 1 + array.ndim
    return _step(held, at, x.ctypes.data, out.ctypes.data, positions, scale, like)


@compiled
def step_at(table, x, out, positions, scale, like):  # type: ignore[no-untyped-def]
    """Do the same for two addresses, whose layouts are known to be those of the table."""
    held = carray(integers(table), (1 << 16,))
    return _step(held, SIZES, x, out, positions, scale, like)
