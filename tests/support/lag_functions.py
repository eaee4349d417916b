"""Functions of the lag whose spectra are known, and how those that are no kernels are refused."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import rfrope
from rfrope import bochner
from rfrope.bochner import NotPositiveDefiniteError, Witness

Function = Callable[[Any], Any]


def gaussian(x: Any) -> Any:
    return np.exp(-0.5 * x * x)


def normal(w: Any) -> Any:
    return gaussian(w) / math.sqrt(2.0 * math.pi)


def triangle(b: float) -> Function:
    return lambda x: np.maximum(1.0 - np.abs(x) / b, 0.0)


def box(b: float) -> Function:
    return lambda x: (np.abs(x) <= b) * 1.0


def damped(b: float) -> Function:
    return lambda x: np.exp(-np.abs(x) / b) * np.cos(x)


def parabola(b: float) -> Function:
    return lambda x: np.maximum(1.0 - (x / b) ** 2, 0.0)


def spherical(b: float) -> Function:
    return lambda r: np.where(np.abs(r) < b, 1.0 - 1.5 * np.abs(r) / b + 0.5 * (np.abs(r) / b) ** 3, 0.0)


def less(base: Function, other: Function, mass: float) -> Function:
    return lambda x: (1.0 + mass) * base(x) - mass * other(x)


def less_a_wave(mass: float, frequency: float, base: Function = gaussian, turn: Function = np.cos) -> Function:
    return less(base, lambda x: turn(frequency * x) * gaussian(x), mass)


# of spectral lines, or of smooth spectra, and none of their values at multiples of 1/200 says which
SMOOTH = (
    lambda x: np.cos(0.3 * 200 * x),
    gaussian,
    lambda x: 1.0 / (1.0 + x * x),
    lambda x: 0.3 * np.cos(60.0 * x) + 0.3 * np.cos(60.2 * x) + 0.4 * np.cos(60.0002 * x),
    lambda x: np.mean(np.cos(np.multiply.outer(x, np.arange(3.0, 180.0, 17.7))), axis=-1),
    np.ones_like,
)
FAMILIES = {"gaussian": {}, "cauchy": {}, "matern 3/2": {"nu": 1.5}, "matern 0.8": {"nu": 0.8}, "exponential": {}}


def family(name: str, scale: float, ndim: int = 1) -> rfrope.Kernel:
    return rfrope.kernel(name.partition(" ")[0], scale=scale, ndim=ndim, **FAMILIES[name])


def along(r: np.ndarray, ndim: int) -> np.ndarray:
    """Lags of lengths r, in one direction."""
    return r if ndim == 1 else r[:, None] * (np.array([0.6, -0.64, 0.48])[:ndim] / math.sqrt([0, 1, 0.7696, 1][ndim]))


def dense(witness: Witness, phi: Function) -> float:
    """The quadratic form as a user would write it."""
    x, w = witness.points, witness.weights
    lags = x[:, None] - x
    return float(w @ phi(lags if lags.ndim == 2 else np.sqrt(np.sum(lags**2, axis=-1))) @ w)


def refused(phi: Function, **options: Any) -> NotPositiveDefiniteError:
    """The error, whose witness proves it."""
    with pytest.raises(NotPositiveDefiniteError) as caught:
        bochner.from_function(phi, **options)
    witness = caught.value.witness
    assert np.sum(np.abs(witness.weights)) == pytest.approx(1.0)
    assert witness.quadratic_form(phi) == pytest.approx(witness.value, rel=1e-3)
    assert witness.value < 0.0
    if witness.weights.size <= 1000:
        assert dense(witness, phi) == pytest.approx(witness.value, rel=1e-3)
    return caught.value


def check_is_fixed(value: Any, name: str, *arrays: np.ndarray) -> None:
    """A field of a value, and numbers of its arrays, cannot be written."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(value, name, 0.5)
    for array in arrays:
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1.0
        with pytest.raises(ValueError, match="cannot set WRITEABLE flag"):
            array.flags.writeable = True
