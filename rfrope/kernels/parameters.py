"""Parameters of kernels: checked, normalised, and broadcast over the axes; and lengths of vectors."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np

from rfrope._core import angles, arguments, array
from rfrope._core.arguments import LARGEST, show
from rfrope._core.array import Array

Function = Callable[[Array, ModuleType], Array]
Lengths = float | tuple[float, ...]  # one number, or one for each axis


@dataclass(frozen=True)
class SearchRange:
    """Range in which `rfrope.analysis.fit_kernel` searches for a parameter.

    Attributes
    ----------
    kind : {"length", "frequency", "shape"}
        Its unit: positions, radians per position, or none.
    minimum, maximum : float
        Bounds of a shape; lower bound of a length.
    single : bool
        True if the parameter is one frequency or its period: a fit then has as many minima as turns in its range.
    ends : bool
        Whether `maximum` bounds the family itself, not only the search.
    """

    kind: str
    minimum: float = 0.0
    maximum: float = math.inf
    single: bool = False
    ends: bool = False


def _searched(kind: str, default: float, **bounds: Any) -> Any:
    return field(default=default, metadata={"search": SearchRange(kind, **bounds)})


# fields of a family, with the other attributes of a `SearchRange` as options
length = partial(_searched, "length")
frequency = partial(_searched, "frequency")
shape = partial(_searched, "shape")


def positive(name: str, value: Any) -> float:
    """Return a length, frequency or shape from 2**-500 to 2**500, beyond which draws are cut or NaN."""
    return arguments.positive(name, value, minimum=1.0 / LARGEST, maximum=LARGEST)


def finite(name: str, value: Any) -> float:
    """Return a frequency of either sign, within 2**500."""
    return arguments.finite(name, arguments.finite(name, value), minimum=-LARGEST, maximum=LARGEST)


def per_axis(name: str, value: Any, ndim: int, check: Callable[[str, Any], float] = positive) -> Lengths:
    """Return a value, or one for each axis, that passes `check`, in its normal form."""
    if not arguments.is_several(value):
        return check(name, value)
    if any(isinstance(v, list | tuple | np.ndarray) for v in value):
        raise TypeError(f"{name} is {show(value)}; expected a {check.__name__} number, or one for each of {ndim} axes")
    values = tuple(check(name, v) for v in value)
    if len(values) != ndim:
        raise ValueError(f"{name} is {show(value)}, {len(values)} values; expected one number or {ndim} (ndim={ndim})")
    return values[0] if ndim == 1 else values


def shares(name: str, values: Any) -> tuple[float, ...]:
    """Return positive weights with sum 1 to rounding; its own result is returned unchanged.

    A softmax of n entries is off by up to n/2 + 2 spacings: of its dtype, or of float32 where all weights are such
    numbers, as those of ``tolist()``; never more than 1 %.
    """
    spacing = array.resolution(values)
    if not isinstance(values, np.ndarray) and hasattr(values, "dtype") and getattr(values, "ndim", 0) == 1:
        if array.needs_gradient(values):
            raise TypeError(f"{name} requires gradients, which do not go through a kernel; expected {name}.detach()")
        values = angles.numbers_on_host(values, name)
    values = arguments.listed(name, values, "a sequence of positive numbers with sum 1")
    checked = tuple(arguments.positive(name, value) for value in values)
    total = math.fsum(checked)
    if abs(total - 1.0) > 1e-9:
        with np.errstate(over="ignore"):
            narrow = np.asarray(checked).astype(np.float32)
        spacing = max(spacing, *map(array.resolution, [*values, narrow if np.array_equal(narrow, checked) else 1.0]))
        if abs(total - 1.0) > min(0.01, (0.5 * len(checked) + 2.0) * spacing):
            raise ValueError(f"{name} is {show(list(checked))}, with sum {total}; expected sum 1 so that Phi(0) = 1")
    return checked if abs(total - 1.0) <= 2.0**-51 else tuple(value / total for value in checked)


def square_matrix(name: str, matrix: Any, size: int) -> np.ndarray:
    """Return an invertible matrix; refuse others."""
    host = angles.numbers_on_host(matrix, name).astype(np.float64)
    if host.shape != (size, size):
        raise ValueError(f"{name} has shape {host.shape}; expected ({size}, {size})")
    if not np.all(np.isfinite(host)) or np.linalg.matrix_rank(host) < size:
        raise ValueError(f"{name} is {show(host.tolist())}; expected a finite invertible matrix")
    return host


def broadcast(value: Lengths | Array, like: Array, xp: ModuleType) -> float | Array:
    """Return a parameter in a form that broadcasts against vectors ``(..., k)`` such as `like`."""
    return make_vector(value, like, xp) if isinstance(value, tuple) else value


def make_vector(values: Sequence[float], like: Array, xp: ModuleType) -> Array:
    """Return a few numbers as an array of the dtype and on the device of `like`.

    On a device they are filled in one by one: a copy from the host makes some libraries wait for the device, and cannot
    be recorded in a CUDA graph.
    """
    if xp is np or array.library(like).is_lazy:
        return array.from_host(np.asarray(values), xp, dtype=like.dtype)
    return xp.stack([xp.full((), value, dtype=like.dtype, device=like.device) for value in values])


def volume(scale: Lengths, ndim: int) -> float:
    """Return the product of a length over the axes."""
    return math.prod((scale,) * ndim if isinstance(scale, float) else scale)


# -- lengths of vectors ------------------------------------------------------------------------------------------------


def square(vectors: Array, xp: ModuleType) -> Array:
    """Return the square of the Euclidean length along the last axis, smooth at zero."""
    if vectors.shape[-1] == 1 and isinstance(vectors, np.ndarray):
        return vectors[..., 0] * vectors[..., 0]
    return radial(vectors, lambda square, _: square, lambda length, _: length * length, 1.0, xp)


def radius(vectors: Array, xp: ModuleType) -> Array:
    """Return the Euclidean length along the last axis, safe for components whose squares overflow or underflow.

    Its gradient is 0 at zero, where the length has a kink.
    """
    # of NumPy there are no gradients, and Dask reduces nothing that is empty
    if 0 in vectors.shape or (vectors.shape[-1] == 1 and isinstance(vectors, np.ndarray)):
        return xp.abs(vectors[..., 0])
    return radial(vectors, lambda square, xp: xp.zeros_like(square), lambda length, _: length, 0.0, xp)


def flat(square: Array, xp: ModuleType) -> Array:
    """Return 1, with gradient 0: a function with a kink at 0 is flat there, as the mean of its two sides."""
    return xp.ones_like(square)


def radial(vectors: Array, near: Function, far: Function, bound: float, xp: ModuleType) -> Array:
    """Evaluate a function of the length of vectors: by its square up to a bound, by the length beyond.

    A smooth function of vectors is one of the square; through the length, whose derivatives fail at zero, it would lose
    its own there.

    Parameters
    ----------
    vectors : array, (..., k)
    near, far : callable
        The function of the square, and of the length; each gets only its own arguments.
    bound : float
        Largest square for `near`; with 0 it is used at zero alone.
    """
    axes = vectors.shape[-1]
    if axes == 1 and isinstance(vectors, np.ndarray):  # the same numbers, without what gradients need
        x = vectors[..., 0]
        length = np.abs(x)
        close = length < math.sqrt(bound) if bound else length == 0.0
        if isinstance(close, np.bool):
            return near(x * x, xp) if close else far(length, xp)
        return np.where(close, near(np.where(close, x * x, 0.0), xp), far(np.where(close, 1.0, length), xp))
    is_small = xp.abs(vectors) < math.sqrt(bound / axes) if bound else vectors == 0.0
    close = xp.all(is_small, axis=-1)
    small = xp.where(close[..., None], vectors, xp.zeros_like(vectors))
    large = xp.where(close[..., None], xp.ones_like(vectors), vectors)
    return xp.where(close, near(xp.sum(small * small, axis=-1), xp), far(_length_of_nonzero(large, xp), xp))


def _length_of_nonzero(vectors: Array, xp: ModuleType) -> Array:
    if vectors.shape[-1] == 1:
        return xp.abs(vectors[..., 0])
    largest = xp.max(xp.abs(vectors), axis=-1, keepdims=True)
    bound = float(xp.finfo(vectors.dtype).max) ** 0.45
    fits = (largest > 1.0 / bound) & (largest < bound)
    divisor = xp.where(fits | xp.isinf(largest), xp.ones_like(largest), largest)
    vectors = vectors / divisor
    return divisor[..., 0] * xp.sqrt(xp.sum(vectors * vectors, axis=-1))


# -- maps of vectors ---------------------------------------------------------------------------------------------------


def split(vectors: Array, widths: Sequence[int]) -> list[Array]:
    """Return consecutive parts of the last axis."""
    return [vectors[..., end - width : end] for width, end in zip(widths, itertools.accumulate(widths), strict=True)]


def multiply(vectors: Array, matrix: np.ndarray, xp: ModuleType) -> Array:
    """Return ``vectors @ matrix`` without copying the matrix to the device."""
    columns = [sum(vectors[..., i] * entry for i, entry in enumerate(column)) for column in matrix.T.tolist()]
    return xp.stack(columns, axis=-1)
