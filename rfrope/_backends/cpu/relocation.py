"""Differences of whole positions, in the memory of the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np

from rfrope._backends.cpu.compiling import compiled
from rfrope._backends.cpu.dense import view_in_numpy

_WHOLE = np.dtype(np.int64)
_MOST = 2**53


@compiled
def _subtract(new, old, moved):  # type: ignore[no-untyped-def]
    """Fill `moved`; the answer is False where a difference is beyond 2**53, or beyond its type, in which it wraps."""
    fine = True
    for i in range(new.size):
        difference = new.flat[i] - old.flat[i]
        moved.flat[i] = difference
        fine = fine and abs(difference) <= _MOST and abs(float(new.flat[i]) - float(old.flat[i])) <= 2.0 * _MOST
    return fine


def subtract_positions(k: Any, new: Any, old: Any) -> Any:
    """Return ``new - old``, an integer or an array; None for what takes a closer look, which raises the errors.

    They are integers, or arrays of int64 that broadcast; tensors of torch beside keys k that are one.
    """
    if type(k) is not np.ndarray:
        new, old = view_in_numpy(new), view_in_numpy(old)
    if type(new) is type(old) is int:
        return new - old if abs(new - old) <= _MOST else None
    new, old = np.array(new) if type(new) is int else new, np.array(old) if type(old) is int else old
    if not type(new) is type(old) is np.ndarray or not (new.dtype is _WHOLE and old.dtype is _WHOLE):
        return None
    if new.shape == old.shape:
        moved = np.empty(new.shape, _WHOLE)
        return moved if _subtract(new, old, moved) else None
    try:
        if np.max(np.abs(np.subtract(new, old, dtype=np.float64))) > 2.0 * _MOST:
            return None
    except ValueError:  # they do not broadcast, or there are none
        return None
    moved = new - old
    return moved if np.max(np.abs(moved)) <= _MOST else None
