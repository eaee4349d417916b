"""Base classes of families in units of a length, and of those with a spherically symmetric law in these units.

``t`` is the length of the lag in units of the scale, ``w`` the frequency times the scale.
"""

from __future__ import annotations

import dataclasses
import math
from abc import abstractmethod
from types import ModuleType
from typing import ClassVar

import numpy as np

from rfrope._core import array, quantiles
from rfrope._core.arguments import MOST, whole
from rfrope._core.array import Array
from rfrope.kernels.base import Kernel, Law, Quantile
from rfrope.kernels.parameters import Function, Lengths, flat, per_axis, radial, radius, spread, square, volume

_DISTANT = 1e150  # in units of the scale: its square is finite


class Family(Kernel):
    """A kernel of the registry, with parameters checked as their fields declare."""

    most_axes: ClassVar[int] = MOST

    def __post_init__(self) -> None:
        ndim = whole("ndim", self.ndim, 1, MOST)
        if ndim > self.most_axes:
            raise ValueError(f"ndim is {ndim}; expected 1: a {self.name} law has one axis (combine with axes())")
        object.__setattr__(self, "ndim", ndim)
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            if "search" in field.metadata:
                count = 1 if field.metadata["search"].kind == "shape" else ndim
                object.__setattr__(self, field.name, per_axis(field.name, getattr(self, field.name), count))


class Scaled(Family):
    """A family with formulas in units of `unit`: a length, or a frequency, which is one over a length."""

    unit: ClassVar[str] = "scale"

    def _scale_lags(self, lags: Array, xp: ModuleType) -> Array:
        unit = spread(self._unit, lags, xp)
        return lags / unit if self.unit == "scale" else lags * unit

    def _scale_frequencies(self, omega: Array, xp: ModuleType) -> Array:
        unit = spread(self._unit, omega, xp)
        return omega * unit if self.unit == "scale" else omega / unit

    def _density(self, omega: Array, xp: ModuleType) -> Array:
        density = self._unit_density(self._scale_frequencies(omega, xp), xp)
        size = volume(self._unit, self.ndim)
        size = size if self.unit == "scale" else 1.0 / size if size else math.inf
        if 0.0 < size < math.inf:
            return size * density
        kept = (density == 0.0) | xp.isinf(density)  # a pole stays one, and 0 stays 0
        return xp.where(kept, density, size * density)

    def _transport(self, u: np.ndarray) -> np.ndarray:
        unit = np.asarray(self._unit)
        return self._unit_transport(u) / unit if self.unit == "scale" else unit * self._unit_transport(u)

    @property
    def _unit(self) -> Lengths:
        value: Lengths = getattr(self, self.unit)
        return value

    def _unit_density(self, w: Array, xp: ModuleType) -> Array:
        """Density of w at vectors ``(..., k)``."""
        return Kernel._density(self, w, xp)

    @abstractmethod
    def _unit_transport(self, u: np.ndarray) -> np.ndarray:
        """Transport of w."""


class Isotropic(Scaled):
    """A family with a spherically symmetric law of w."""

    def _radial(self, lags: Array, far: Function, xp: ModuleType, near: Function = flat, bound: float = 0.0) -> Array:
        """Return a function of t, stated as one of its square up to a bound, where it is smooth; see `radial`."""
        return radial(self._scale_lags(lags, xp), near, far, bound, xp)

    def _square(self, lags: Array, xp: ModuleType) -> Array:
        """Return the square of t."""
        return square(self._scale_lags(lags, xp), xp)

    def _distance(self, lags: Array, xp: ModuleType) -> Array:
        """Return t, so that its square is finite."""
        t = radius(self._scale_lags(lags, xp), xp)
        return array.clip(t, 0.0, min(_DISTANT, 0.25 * float(xp.finfo(t.dtype).max) ** 0.5), xp)

    def isotropy(self) -> np.ndarray:
        """See `Kernel.isotropy`."""
        unit = np.broadcast_to(self._unit, self.ndim)
        return np.diag(1.0 / unit if self.unit == "scale" else unit)


class NormalScale(Isotropic):
    """A family whose w is normal times a radius shared by all axes; in one axis its law may be given directly."""

    @property
    def n_columns(self) -> int:
        """One for each axis, and one for the shared radius."""
        return self.ndim + (self._factors()[1] is not None)

    def _line(self) -> Quantile | None:
        """Quantile function of w in one axis, if it is known."""
        return None

    def _radius(self) -> Quantile | None:
        """Quantile function of the number that multiplies all axes, if there is one."""
        return None

    def _factors(self) -> tuple[Quantile, Quantile | None]:
        """Quantile functions of a component of w over the radius, and of the radius."""
        line = self._line() if self.ndim == 1 else None
        return (line, None) if line else ((quantiles.normal_quantile, ()), self._radius())

    def _unit_transport(self, u: np.ndarray) -> np.ndarray:
        (quantile, parameters), shared = self._factors()
        if shared is None:
            return quantile(*parameters, u)
        return shared[0](*shared[1], u[..., :1]) * quantile(*parameters, u[..., 1:])

    def _law(self) -> Law | None:
        component, shared = self._factors()
        return Law(component, (1.0,) * self.ndim, shared).scaled(self._unit)
