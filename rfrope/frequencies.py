"""Frequency sets made without data or chance."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from rfrope import _array
from rfrope._array import Array


def geometric(n_blocks: int, *, base: float = 10_000.0, xp: Any = None, device: Any = None, dtype: Any = None) -> Array:
    """Frequencies of standard RoPE: ``base ** (-i / D)`` for i = 0, ..., D - 1, which is ``base ** (-2i / d)``.

    Parameters
    ----------
    n_blocks : int
        D, half the rotated width.
    base : float
        Positive; 10000 in the first models, 500000 in Llama 3.
    xp, device, dtype
        Array library (a module; NumPy unless given), where to put the result, and its dtype (float64 where the library
        has it unless given). The frequencies are computed on the host and copied to the device.

    Returns
    -------
    array, (D,), radians per position

    Raises
    ------
    ValueError
        If `n_blocks` is negative or `base` is not positive and finite.
    TypeError
        If `n_blocks` is no whole number or `xp` no array library.

    Notes
    -----
    Source: section 5 of the mathematics page; seed 000 counts i from 1, which is off by one.

    Examples
    --------
    >>> geometric(4)
    array([1.   , 0.1  , 0.01 , 0.001])
    """
    base = _finite("base", base)
    if base <= 0.0:
        raise ValueError(f"base is {base}; expected a positive number")
    n_blocks = count("n_blocks", n_blocks)
    return _placed(base ** (-np.arange(n_blocks) / max(n_blocks, 1)), xp, device, dtype)


def arithmetic(n_blocks: int, *, step: float, xp: Any = None, device: Any = None, dtype: Any = None) -> Array:
    """Equally spaced frequencies ``i * step`` for i = 1, ..., D, whose mean kernel is Dirichlet's.

    Parameters
    ----------
    n_blocks : int
        D, half the rotated width.
    step : float, radians per position
        Positive.
    xp, device, dtype
        As in `geometric`.

    Returns
    -------
    array, (D,), radians per position

    Raises
    ------
    ValueError
        If `n_blocks` is negative or `step` is not positive and finite.
    TypeError
        As `geometric`.

    Examples
    --------
    >>> arithmetic(3, step=0.5)
    array([0.5, 1. , 1.5])
    """
    step = _finite("step", step)
    if step <= 0.0:
        raise ValueError(f"step is {step}; expected a positive number")
    return _placed(step * np.arange(1, count("n_blocks", n_blocks) + 1), xp, device, dtype)


def count(name: str, value: Any, least: int = 0) -> int:
    """Return a whole number from `least` to 2**32 - 1, or say what came instead."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} is {value!r}; expected a whole number") from None
    if isinstance(value, bool) or not least <= number < 2**32:
        raise ValueError(f"{name} is {value!r}; expected a whole number from {least} to 2**32 - 1")
    return number


def _finite(name: str, value: Any) -> float:
    try:
        number = float("no number" if isinstance(value, bool | str) else value)
    except (TypeError, ValueError):
        raise TypeError(f"{name} is {value!r}; expected a number") from None
    if not np.isfinite(number):
        raise ValueError(f"{name} is {number}; expected a finite number")
    return number


def _placed(host: np.ndarray, xp: Any, device: Any, dtype: Any) -> Array:
    space = _array.named_namespace(xp)
    return _array.from_host(host, space, device=device, dtype=_array.check_float_dtype(dtype, space))
