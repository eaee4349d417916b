"""Functions of the user: called with care, and checked whenever they are."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from rfrope._core.arguments import show
from rfrope.bochner.measures import Measure
from rfrope.bochner.verdicts import NotPositiveDefiniteError, Witness

_ARGUMENTS = {  # what functions take, by whether there is one axis
    True: ("x", "it works elementwise"),
    False: (
        "r",
        "with ndim={ndim} it is a function of the length r of a vector (a list of functions of one argument each makes "
        "a product over the axes)",
    ),
}
NORMAL = 1e-9  # by how much Phi(0) may differ from 1


def check_values(name: str, function: Any, measure: Measure, *, bounded: bool) -> Callable[[np.ndarray], np.ndarray]:
    """Return the user's function so that its values are checked whenever it is called."""
    if not callable(function):
        raise TypeError(f"{name} is {show(function)}; expected a function of an array")
    argument, takes = _ARGUMENTS[measure.is_line]

    def values(x: np.ndarray) -> np.ndarray:
        with np.errstate(all="ignore"):
            try:
                found = np.asarray(function(x.copy()))
            except TypeError as error:
                raise TypeError(
                    f"{name} failed on an array of shape {x.shape}: {error}; expected a function of NumPy arrays "
                    "(numpy.vectorize makes one)"
                ) from error
        if found.dtype.kind not in "biuf":
            raise TypeError(f"{name} returned {found.dtype}; expected real numbers")
        if found.shape != x.shape:
            raise ValueError(
                f"{name} returned shape {found.shape} for arguments of shape {x.shape}; expected the same shape: "
                + takes.format(ndim=measure.ndim)
            )
        found = found.astype(np.float64)  # a copy, whatever the function does with its array afterwards
        if not np.all(np.isfinite(found)) and not (bounded and np.all(~np.isnan(found))):
            at = int(np.argmin(np.isfinite(found)))
            raise ValueError(f"{name}({argument}) is {found[at]} at {argument} = {x[at]:.6g}; expected finite numbers")
        if bounded:
            _check_bounded(x, found)
        return found

    return values


def _check_bounded(x: np.ndarray, found: np.ndarray) -> None:
    """Refuse abs(phi(x)) > 1: with s = sign(phi(x)), the law has ``int (1 - s cos(w x)) = 1 - abs(phi(x)) < 0``.

    That says how much negative mass there is at least, and not where: it weighs nearly all frequencies.
    """
    if max(np.max(found, initial=0.0), -np.min(found, initial=0.0)) <= 1.0 + NORMAL or not np.any(x != 0.0):
        return
    excess = np.abs(found) - 1.0
    at = int(np.argmin(np.where(excess >= 0.5 * min(np.max(excess), 2.0), np.abs(x), np.inf)))
    frequency = 0.0 if found[at] < 0.0 else math.pi / abs(float(x[at]))
    mass = 0.5 * float(excess[at])
    raise NotPositiveDefiniteError(
        f"phi is not positive definite: it is {found[at]:.6g} at lag {x[at]:.6g}, {excess[at]:.3g} beyond 1, and the "
        f"magnitude of a positive definite function is at most phi(0) = 1; so {mass:.3g} or more of its spectral mass "
        "is negative",
        frequency=frequency,
        density=math.nan,
        negative_mass=mass,
        witness=Witness(np.array([0.0, float(x[at])]), np.array([0.5, -0.5 * np.sign(found[at])]), -mass),
    )


def check_even(
    name: str,
    values: Callable[[np.ndarray], np.ndarray],
    measure: Measure,
    scale: float,
    ends: tuple[float, float] = (0.0, math.inf),
) -> np.ndarray:
    """Refuse a function of x that is not even between two ends, and return where it was looked at.

    A function of a length has no other side, and is not looked at.
    """
    looked = [np.empty(0)]
    near = np.array([0.07, 0.31, 0.83, 1.37, 2.9, 11.0])  # first: what is not even may be no number farther out
    far = np.concatenate([np.geomspace(1e-6, 1e6, 4096), np.linspace(0.0, 32.0, 4097)[1:]])
    far = far * 1.0000001  # round numbers are where functions have their ends
    for x in (scale * near, scale * far) if measure.is_line else ():
        x = x[(x > ends[0]) & (x < ends[1])]
        if not x.size:
            continue
        right, left = values(x), values(-x)
        at = int(np.argmax(np.abs(right - left)))
        if abs(right[at] - left[at]) > 1e-9 * max(1.0, abs(right[at])):
            raise ValueError(
                f"{name} is not even: it is {right[at]:.6g} at {x[at]:.6g} and {left[at]:.6g} at {-x[at]:.6g}; "
                "expected a function of the magnitude alone, such as one of numpy.abs(x)"
            )
        looked.append(x)
    return np.concatenate(looked)
