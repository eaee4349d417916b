"""Parameters of kernels: checked, in one normal form, and spread over the axes."""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

import numpy as np

from rfrope import _array
from rfrope._array import Array


def positive(name: str, value: Any) -> float:
    """Return a parameter as a float, or say why it is not a positive finite number."""
    try:
        number = float("no number" if isinstance(value, bool | np.bool | str | bytes | list | tuple) else value)
    except OverflowError:
        number = math.inf
    except (TypeError, ValueError):
        raise TypeError(f"{name} is {value!r:.80}; expected a positive number") from None
    if not (number > 0.0 and math.isfinite(number)):
        raise ValueError(f"{name} is {value!r:.80}; expected a positive finite number")
    return number


def per_axis(name: str, value: Any, ndim: int) -> float | tuple[float, ...]:
    """Return a length that is one number, or one for each axis, in its normal form."""
    if not isinstance(value, list | tuple | np.ndarray) or (isinstance(value, np.ndarray) and value.ndim == 0):
        return positive(name, value)
    if any(isinstance(v, list | tuple | np.ndarray) for v in value):
        raise TypeError(f"{name} is {value!r:.80}; expected a positive number, or one for each of {ndim} axes")
    values = tuple(positive(name, v) for v in value)
    if len(values) != ndim:
        raise ValueError(f"{name} is {value!r}, {len(values)} values; expected one number or {ndim} (ndim={ndim})")
    return values[0] if ndim == 1 else values


def check_ndim(ndim: Any) -> int:
    """Return the number of axes, or say why it is none."""
    if isinstance(ndim, bool) or not isinstance(ndim, int | np.integer):
        raise TypeError(f"ndim is {ndim!r}; expected a whole number of position axes, 1 or more")
    if ndim < 1:
        raise ValueError(f"ndim is {ndim}; expected a whole number of position axes, 1 or more")
    return int(ndim)


def along_axes(value: float | tuple[float, ...], like: Array, xp: ModuleType) -> float | Array:
    """Return a parameter so that it broadcasts against vectors ``(..., k)`` such as `like`."""
    if isinstance(value, float):
        return value
    return _array.vector(value, like, xp)


def radius(vectors: Array, xp: ModuleType) -> Array:
    """Euclidean length along the last axis."""
    if vectors.shape[-1] == 1:
        return xp.abs(vectors[..., 0])
    return xp.sqrt(xp.sum(vectors * vectors, axis=-1))


def volume(scale: float | tuple[float, ...], ndim: int) -> float:
    """Product of a length over the axes."""
    return scale**ndim if isinstance(scale, float) else math.prod(scale)


def square_matrix(name: str, matrix: Any, size: int) -> np.ndarray:
    """Return an invertible matrix, or say why it is none."""
    host = _array.host_numbers(matrix, name)
    if host.dtype.kind not in "iuf":
        raise TypeError(f"{name} is {matrix!r:.80}; expected real numbers of shape ({size}, {size})")
    host = host.astype(np.float64)
    if host.shape != (size, size):
        raise ValueError(f"{name} has shape {host.shape}; expected ({size}, {size})")
    if not np.all(np.isfinite(host)) or np.linalg.matrix_rank(host) < size:
        raise ValueError(f"{name} is {host.tolist()}; expected a finite invertible matrix")
    return host
