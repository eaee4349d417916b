"""Sums of cos over many frequencies at many lags, the plain way and on any namespace."""

from __future__ import annotations

import math
from types import ModuleType

from rfrope import _turns
from rfrope._array import Array

_ELEMENTS = 2**20  # phases that are held at once, unless the lags alone are more


def mean_cos(frequencies: Array, delta: Array, xp: ModuleType) -> Array:
    """Mean of ``cos(delta . omega)`` over the frequencies, from exact phases.

    Parameters
    ----------
    frequencies : array, radians per unit of position
        ``(D,)`` or ``(*H, D, k)``, D at least 1; of `xp` or of NumPy.
    delta : array
        ``P`` for frequencies of one axis, ``(*P, k)`` otherwise; integers or floats.

    Returns
    -------
    array
        ``P``, or what ``delta @ frequencies^T`` broadcasts to without its last axis, in the widest float of `xp`.
    """
    axis = -1 if frequencies.ndim == 1 else -2
    count = frequencies.shape[axis]
    shape = _turns.phases_shape(delta.shape, frequencies.shape)
    length = max(1, _ELEMENTS // max(1, math.prod(shape[:-1])))
    total: Array = 0.0
    for start in range(0, count, length):
        span = slice(start, min(start + length, count))
        part = frequencies[span] if axis == -1 else frequencies[..., span, :]
        total = total + xp.sum(_turns.cos_sin(delta, part, None, xp)[0], axis=-1)
    return total / count
