"""How far the mean kernel of some frequencies ``(D, k)`` is from its kernel, over the whole lags of a range."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from rfrope._core.angles import Angles
from rfrope._core.sums import mean_cos
from rfrope.kernels import Kernel

_JUDGED = 2**20  # lags that are looked at, unless there are fewer
_CHUNK = 2**20  # lags at once
_MANY_PHASES = 2**22  # from which on it pays to import Numba and finufft


class Error(NamedTuple):
    """Root mean square and largest error, and the lag where the largest is."""

    rms: float
    sup: float
    sup_lag: tuple[int, ...]


def error(kernel: Kernel, omega: np.ndarray, max_lag: tuple[int, ...]) -> Error:
    """Error of the mean kernel over the whole lags up to `max_lag`, one of each pair +-lag."""
    lags, weights = lags_within(max_lag, _JUDGED)
    squares, sup, place = 0.0, -1.0, lags[0]
    for start in range(0, len(lags), _CHUNK):
        part = lags[start : start + _CHUNK]
        apart = np.abs(mean_kernel(omega, part) - kernel.phi(kernel.restore_shape(part)))
        largest = int(np.argmax(apart))
        squares += float(weights[start : start + _CHUNK] @ (apart * apart))
        if apart[largest] > sup:
            sup, place = float(apart[largest]), part[largest]
    return Error(math.sqrt(squares / float(np.sum(weights))), sup, tuple(int(v) for v in place))


def mean_kernel(omega: np.ndarray, lags: np.ndarray) -> np.ndarray:
    """Mean kernel of frequencies ``(D, k)`` at lags ``(L, k)``."""
    mean = mean_cos if omega.size * len(lags) >= _MANY_PHASES else mean_cos.generic
    found: np.ndarray = mean(Angles(lags, omega.astype(np.float64, copy=False), None, np))
    return found


def lags_within(max_lag: tuple[int, ...], most: int) -> tuple[np.ndarray, np.ndarray]:
    """Whole lags up to max_lag in size on every axis, one of each pair +-lag, and how many each of them stands for.

    All of them if there are no more than `most`; else about half of these are the smallest ones, and the others are
    spread over the rest by multiples of the golden section.
    """
    total = _half(max_lag)
    if total <= most:
        return _from_half(max_lag, np.arange(total)), np.ones(total)
    side = next(s for s in range(most, 0, -1) if _half((s,) * len(max_lag)) <= most // 2)
    inner = tuple(min(m, side) for m in max_lag)
    near = _from_half(inner, np.arange(_half(inner)))
    spread = (np.arange(most - len(near)) + 0.5) * (0.5 * (math.sqrt(5.0) - 1.0)) % 1.0
    far = _from_half(max_lag, np.unique((spread * total).astype(np.int64)))
    far = far[np.any(np.abs(far) > inner, axis=-1)]
    weights = np.concatenate([np.ones(len(near)), np.full(len(far), (total - len(near)) / len(far))])
    return np.concatenate([near, far]), weights


def _half(max_lag: tuple[int, ...]) -> int:
    """How many whole lags a box around 0 holds, one of each pair +-lag: 0 and half of the others."""
    return (math.prod(2 * m + 1 for m in max_lag) + 1) // 2


def _from_half(max_lag: tuple[int, ...], index: np.ndarray) -> np.ndarray:
    """Lags number index of that half; number 0 is lag 0."""
    place = np.unravel_index(_half(max_lag) - 1 + index, [2 * m + 1 for m in max_lag])
    return np.stack(place, axis=-1).astype(np.float64) - max_lag
