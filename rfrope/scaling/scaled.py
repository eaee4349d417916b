"""What all schemes share: their result, and the checks of what comes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from rfrope import _array
from rfrope._array import Array

LARGEST = 2.0**500  # as `rotate` has it
_MODERATE = 2.0**100  # cubed and divided it stays a float64; no parameter of a model comes near


@dataclass(frozen=True, eq=False)
class Scaled:
    """Frequencies, and the factor that a scheme puts on cos and sin; unpacks as a pair.

    Attributes
    ----------
    frequencies : array, (D,), radians per position
    attention_factor : float
        Multiplies cos and sin of q and of k, and so scores by its square: ``rotate(..., scale=attention_factor)``. 1.0
        for most schemes.

    Examples
    --------
    >>> import rfrope
    >>> frequencies, attention_factor = rfrope.scaling.linear([1.0, 0.5], 4.0)
    >>> frequencies, attention_factor
    (array([0.25 , 0.125]), 1.0)
    """

    frequencies: Array
    attention_factor: float

    def __iter__(self) -> Iterator[Any]:
        return iter((self.frequencies, self.attention_factor))


def number(name: str, value: Any) -> float:
    """Return a finite Python float of moderate size, or say what came instead."""
    if isinstance(value, bool | str):
        value = repr(value)  # which no float is read from
    try:
        found = float(value)
    except (TypeError, ValueError, OverflowError):
        raise TypeError(f"{name} is {value if isinstance(value, str) else repr(value)}; expected a number") from None
    if not math.isfinite(found):
        raise ValueError(f"{name} is {found}; expected a finite number")
    if abs(found) > _MODERATE:
        raise ValueError(f"{name} is {found}; expected a number up to 2**100")
    return found


def positive(name: str, value: Any) -> float:
    """Return a positive finite Python float, or say what came instead."""
    found = number(name, value)
    if found <= 0.0:
        raise ValueError(f"{name} is {found}; expected a positive number")
    if found < 1.0 / _MODERATE:
        raise ValueError(f"{name} is {found}; expected a number from 2**-100")
    return found


def placed(frequencies: Array, *, one_axis: bool = True, **beside: Array) -> tuple[Array, ModuleType]:
    """Check frequencies, and return them as the widest float of their library; `beside` has the other arrays."""
    xp = _array.namespace(frequencies=frequencies, **beside)
    place = next((_array.device(x) for x in beside.values() if hasattr(x, "dtype")), None)
    theta = _array.as_widest(_array.numbers(frequencies, xp, name="frequencies", device=place), xp)
    if theta.ndim == 0 or (one_axis and theta.ndim > 1):
        shape = "(D,)" if one_axis else "(D,), or (*H, D, k) for k axes"
        raise ValueError(f"frequencies has shape {tuple(theta.shape)}; expected {shape}")
    if not _array.all_within(theta, LARGEST, xp):
        raise ValueError("frequencies holds NaN or infinity, or magnitudes above 2**500; expected finite numbers")
    return theta, xp
