"""Frequencies and lags for the sums of each backend, and what their means and moments are."""

from types import ModuleType
from typing import Any

import numpy as np
from plain_angles import angles_of, vectors
from rotation_calls import without_backends

import rfrope
from rfrope import montecarlo
from rfrope._core import sums, turns

BOUND = 1e-9  # error of a mean by transforms, as promised
QUANTITIES = ("phi", "phi2", "sin")
LAWS = ("gaussian(scale=4{})", "exponential(scale=4{})")  # the second is a Cauchy law: |omega| far above 1e4


def frequencies(law: str, axes: int, count: int) -> np.ndarray:
    text = law.format(f", ndim={axes}" if axes > 1 else "")
    return rfrope.sample(text, count, rng=axes).reshape(count, axes)


def grid_of(side: int, axes: int, indexing: str = "ij") -> np.ndarray:
    """Whole lags (L, axes) about zero, as meshgrid makes them."""
    return np.stack(np.meshgrid(*[np.arange(side) - side // 3.0] * axes, indexing=indexing), -1).reshape(-1, axes)


def exact_moments(omega: Any, lags: Any, quantity: str = "phi") -> tuple[np.ndarray, np.ndarray]:
    """Mean and squared deviations from exact phases, in long double: 1 - cos u is formed without cancellation."""
    omega, lags = (v if v.ndim > 1 else v[:, None] for v in (np.asarray(omega), np.asarray(lags)))
    factor = 2.0 if quantity == "phi2" else 1.0
    cos, sin = turns.cos_sin.generic(angles_of(lags * factor, omega))
    small = lags.astype(np.longdouble) @ omega.T.astype(np.longdouble) * factor
    near = np.abs(small) < 3.0
    if quantity == "sin":
        deviation = np.where(near, np.sin(small), sin)
    else:
        deviation = np.where(near, 2.0 * np.sin(0.5 * small) ** 2, 1.0 - cos.astype(np.longdouble))
    mean = np.mean(deviation, axis=-1)
    squares = np.sum((deviation - mean[:, None]) ** 2, axis=-1)
    return (mean if quantity == "sin" else 1.0 - mean).astype(float), squares.astype(float)


def mean_cos(module: ModuleType, omega: Any, lags: Any, xp: ModuleType = np) -> Any:
    """Mean by a backend."""
    return module.mean_cos(angles_of(lags, omega, xp=xp))


def kernel_moments(module: ModuleType, omega: Any, delta: Any, quantity: str = "phi") -> tuple[Any, Any]:
    """Moments by a backend."""
    delta, omega = vectors(delta, omega)
    return module.kernel_moments(omega, delta, quantity)


def plain_mean(omega: np.ndarray, lags: np.ndarray) -> np.ndarray:
    """Mean by the generic function, from generic cosines."""
    with without_backends():
        return sums.mean_cos.generic(angles_of(lags, omega))


def plain_moments(omega: np.ndarray, delta: np.ndarray, quantity: str = "phi") -> tuple[np.ndarray, np.ndarray]:
    """Moments by the generic function."""
    delta, omega = vectors(delta, omega)
    return montecarlo._kernel_moments.generic(omega, delta, quantity)
