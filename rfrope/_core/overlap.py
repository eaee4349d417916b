"""Memory of arrays that overlaps, between two of them or inside one."""

from __future__ import annotations

from enum import Enum

import numpy as np

from rfrope._core.array import Array, library


class Overlap(Enum):
    """Memory that two arrays have in common."""

    NONE = 0
    PART = 1
    SAME = 2  # all of it, in the same order, so that in-place work is exact


def overlap_of(a: Array, b: Array) -> Overlap:
    """Return how the memory of two arrays overlaps, by their address ranges where it cannot be decided exactly."""
    if a is b:
        return Overlap.SAME
    first, second = library(a).addresses(a), library(b).addresses(b)
    if first is None or second is None:
        return Overlap.NONE
    alike = (first.shape, first.strides, first.itemsize) == (second.shape, second.strides, second.itemsize)
    if alike and first.ctypes.data == second.ctypes.data:
        return Overlap.SAME
    try:
        shared = np.shares_memory(first, second, max_work=10_000)  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        shared = True
    return Overlap.PART if shared else Overlap.NONE


def has_shared_elements(x: Array) -> bool:
    """Return whether several elements of `x` share memory, as after broadcasting or in windows that slide.

    Layouts of which one axis does not lie inside the steps of the next are taken to share some.
    """
    places = library(x).addresses(x)
    if places is None or not places.size:
        return False
    axes = sorted((abs(step), length) for step, length in zip(places.strides, places.shape, strict=True) if length > 1)
    reach = places.itemsize  # bytes from the first byte of what the axes so far hold to the last
    for step, length in axes:
        if step < reach:
            return True
        reach += step * (length - 1)
    return False
