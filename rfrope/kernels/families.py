"""Isotropic kernel families: parameters, Phi, the law of the frequencies, and how they are drawn.

``scale`` is a length in units of position, one number or one for each axis; frequencies are radians per unit of
position. ``t`` below is the lag in units of the scale, ``w`` the frequency times the scale.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from types import ModuleType
from typing import ClassVar

import numpy as np

from rfrope._core import array, quantiles, special
from rfrope._core.array import Array
from rfrope.kernels import falls
from rfrope.kernels.base import Kernel
from rfrope.kernels.falls import Falls
from rfrope.kernels.law import Law, Quantile
from rfrope.kernels.parameters import (
    along_axes,
    check_ndim,
    length,
    near_and_far,
    per_axis,
    positive,
    radius,
    shape,
    volume,
)

_DISTANT = 1e150  # in units of the scale: its square is finite


class _Isotropic(Kernel):
    """A law of ``w = scale * omega`` that is spherically symmetric."""

    scale: float | tuple[float, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "ndim", check_ndim(self.ndim))
        object.__setattr__(self, "scale", per_axis("scale", self.scale, self.ndim))

    def _phi(self, delta: Array, xp: ModuleType) -> Array:
        scaled = delta / along_axes(self.scale, delta, xp)
        near, square, t = near_and_far(scaled, self._near_bound, xp)
        if isinstance(near, np.bool):
            return self._near_phi(square, xp) if near else self._radial_phi(t, xp)
        return xp.where(near, self._near_phi(square, xp), self._radial_phi(t, xp))

    def _distance(self, delta: Array, bound: float, xp: ModuleType) -> tuple[Array, Array]:
        """Lengths in units of the scale and their squares, which up to a bound have derivatives at 0."""
        scaled = delta / along_axes(self.scale, delta, xp)
        if isinstance(scaled, np.ndarray):  # without what gradients need
            length = radius(scaled, xp)
            return length, np.square(np.minimum(length, _DISTANT))
        near, square, t = near_and_far(scaled, bound, xp)
        t = array.clip(t, 0.0, min(_DISTANT, 0.5 * float(xp.finfo(t.dtype).max) ** 0.5), xp)
        return radius(scaled, xp), xp.where(near, square, t * t)

    def _transport(self, u: np.ndarray) -> np.ndarray:
        return self._unit_transport(u) / np.asarray(self.scale)

    def isotropy(self) -> np.ndarray | None:
        return np.diag(1.0 / np.broadcast_to(self.scale, self.ndim))

    @abstractmethod
    def _radial_phi(self, t: Array, xp: ModuleType) -> Array:
        """Phi at distance t."""

    @property
    def _near_bound(self) -> float:
        """Squares of distances up to which `_near_phi` holds; 0 for families that have a kink at 0."""
        return 0.0

    def _near_phi(self, square: Array, xp: ModuleType) -> Array:
        """Phi by the square of a small distance, smooth at 0. A kink is flat there: the mean of its two sides."""
        return xp.ones_like(square)

    @abstractmethod
    def _unit_transport(self, u: np.ndarray) -> np.ndarray:
        """Transport of w."""


class _Stated(_Isotropic):
    """An isotropic family whose draws, transport and law for compiled loops are one statement: normal w, and radius."""

    @property
    def draws(self) -> int:
        """One for each axis, and one for a radius that they share."""
        return self.ndim + (self._unit_law()[1] is not None)

    def _density(self, omega: Array, xp: ModuleType) -> Array:
        near, square, w = near_and_far(omega * along_axes(self.scale, omega, xp), self._near_density_bound, xp)
        density = xp.where(near, self._near_density(square, xp), self._radial_density(w, xp))
        size = volume(self.scale, self.ndim)
        if size > 0.0:
            return size * density
        return xp.where(xp.isinf(density), density, size * density)  # a pole stays one, though the volume rounds to 0

    def _unit_transport(self, u: np.ndarray) -> np.ndarray:
        (quantile, parameters), shared = self._unit_law()
        if shared is None:
            return quantile(*parameters, u)
        return shared[0](*shared[1], u[..., :1]) * quantile(*parameters, u[..., 1:])

    def _law(self) -> Law | None:
        component, shared = self._unit_law()
        return Law(component, (1.0,) * self.ndim, shared).scaled(self.scale)

    def _unit_law(self) -> tuple[Quantile, Quantile | None]:
        """Component and shared radius of the law of w, as `Law` has them."""
        line = self._line() if self.ndim == 1 else None
        return ((quantiles.normal_quantile, ()), self._shared_radius()) if line is None else (line, None)

    def _line(self) -> Quantile | None:
        """Quantile function of w in one axis, if it has one of its own."""
        return None

    @abstractmethod
    def _shared_radius(self) -> Quantile | None:
        """Quantile function of the number that multiplies all axes of a normal w, if there is one."""

    @abstractmethod
    def _radial_density(self, w: Array, xp: ModuleType) -> Array:
        """Density of w at distance w."""

    @property
    def _near_density_bound(self) -> float:
        """As `_near_bound`, for the density."""
        return 0.0

    def _near_density(self, square: Array, xp: ModuleType) -> Array:
        """As `_near_phi`, for the density."""
        return self._radial_density(xp.zeros_like(square), xp)


@dataclass(frozen=True, repr=False)
class Gaussian(_Stated):
    """Gaussian kernel: ``Phi = exp(-t^2/2)``; w is standard normal."""

    name: ClassVar[str] = "gaussian"
    scale: float | tuple[float, ...] = length(1.0)
    ndim: int = 1

    def _radial_phi(self, t: Array, xp: ModuleType) -> Array:
        return xp.exp(-0.5 * t * t)

    def _near_phi(self, square: Array, xp: ModuleType) -> Array:
        return xp.exp(-0.5 * square)

    def _falls(self, delta: Array, xp: ModuleType) -> Falls:
        return falls.of_gaussian(self._distance(delta, 1.0, xp)[1], xp)

    def _radial_density(self, w: Array, xp: ModuleType) -> Array:
        return self._near_density(w * w, xp)

    def _near_density(self, square: Array, xp: ModuleType) -> Array:
        return (2.0 * math.pi) ** (-0.5 * self.ndim) * xp.exp(-0.5 * square)

    _near_bound = _near_density_bound = 1.0

    def _shared_radius(self) -> Quantile | None:
        return None


@dataclass(frozen=True, repr=False)
class Cauchy(_Stated):
    """Cauchy kernel: ``Phi = 1/(1 + t^2)``; w is Laplace in one axis, ``sqrt(2E) z`` with E exponential in more."""

    name: ClassVar[str] = "cauchy"
    scale: float | tuple[float, ...] = length(1.0)
    ndim: int = 1

    def _radial_phi(self, t: Array, xp: ModuleType) -> Array:
        return 1.0 / (1.0 + t * t)

    _near_bound = 1.0

    def _near_phi(self, square: Array, xp: ModuleType) -> Array:
        return 1.0 / (1.0 + square)

    def _falls(self, delta: Array, xp: ModuleType) -> Falls:
        square = self._distance(delta, 1.0, xp)[1]
        fall = square / (1.0 + square)
        return fall, fall * (6.0 * (square / (1.0 + 4.0 * square)))

    def _radial_density(self, w: Array, xp: ModuleType) -> Array:
        return 0.5 ** (0.5 * self.ndim) * _normal_gamma_density(1.0, self.ndim, math.sqrt(0.5) * w, xp)

    def _line(self) -> Quantile | None:
        return quantiles.laplace_quantile, ()

    def _shared_radius(self) -> Quantile | None:
        return _root_exponential, ()


def _root_exponential(u: np.ndarray, *, upper: bool = False) -> np.ndarray:
    return np.sqrt(2.0 * quantiles.exponential_quantile(u, upper=upper))


@dataclass(frozen=True, repr=False)
class Matern(_Stated):
    """Matérn kernel: ``Phi = 2^(1-nu)/Gamma(nu) s^nu K_nu(s)``, ``s = sqrt(2 nu) t``; w is multivariate Student t.

    The law has 2 nu degrees of freedom, and one chi-square shared by all axes. Below nu = 0.02 more than 1e-6 of it
    lies beyond 2**500, where frequencies are cut.
    """

    name: ClassVar[str] = "matern"
    nu: float = shape(1.5, 0.05, 30.0)
    scale: float | tuple[float, ...] = length(1.0)
    ndim: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "nu", positive("nu", self.nu))

    def _radial_phi(self, t: Array, xp: ModuleType) -> Array:
        return special.matern(self.nu, math.sqrt(2.0 * self.nu) * t, xp)

    @property
    def _near_bound(self) -> float:
        """Where what follows the square in Phi, of the order ``min(2 nu, 4)``, is below rounding even in Phi''."""
        return 1e-16 ** (2.0 / (1.0 + min(2.0 * self.nu - 2.0, 2.0))) if self.nu > 1.0 else 0.0

    def _near_phi(self, square: Array, xp: ModuleType) -> Array:
        return 1.0 - (0.5 * self.nu / (self.nu - 1.0) if self.nu > 1.0 else 0.0) * square

    def _falls(self, delta: Array, xp: ModuleType) -> Falls:
        return falls.of_matern(self.nu, math.sqrt(2.0 * self.nu) * self._distance(delta, 0.0, xp)[0], xp)

    def _radial_density(self, w: Array, xp: ModuleType) -> Array:
        return self._density_of_logarithm(special.log1p_square(w * (1.0 / math.sqrt(2.0 * self.nu)), xp), xp)

    def _near_density(self, square: Array, xp: ModuleType) -> Array:
        return self._density_of_logarithm(xp.log1p(square * (0.5 / self.nu)), xp)

    _near_density_bound = 1.0

    def _density_of_logarithm(self, logarithm: Array, xp: ModuleType) -> Array:
        power = self.nu + 0.5 * self.ndim
        log_peak = special.log_gamma_ratio(self.nu, self.ndim) - 0.5 * self.ndim * math.log(2.0 * math.pi * self.nu)
        return xp.exp(log_peak - power * logarithm)

    def _law(self) -> Law | None:
        return super()._law() if self.nu >= 0.5 else None  # tails too heavy for tables

    def _line(self) -> Quantile | None:
        return quantiles.student_quantile, (2.0 * self.nu,)

    def _shared_radius(self) -> Quantile | None:
        return _student_radius, (self.nu,)


def _student_radius(nu: float, u: np.ndarray, *, upper: bool = False) -> np.ndarray:
    half_chi2 = np.maximum(quantiles.gamma_quantile(nu, u, upper=upper), np.finfo(np.float64).tiny)
    return np.sqrt(nu / half_chi2)


@dataclass(frozen=True, repr=False)
class Exponential(_Stated):
    """Exponential kernel: ``Phi = exp(-t)``, Matérn with nu = 1/2; w is multivariate Cauchy."""

    name: ClassVar[str] = "exponential"
    scale: float | tuple[float, ...] = length(1.0)
    ndim: int = 1

    def _radial_phi(self, t: Array, xp: ModuleType) -> Array:
        return xp.exp(-t)

    def _falls(self, delta: Array, xp: ModuleType) -> Falls:
        fall = -xp.expm1(-self._distance(delta, 0.0, xp)[0])
        return fall, fall * (1.0 + 0.5 * fall)

    def _radial_density(self, w: Array, xp: ModuleType) -> Array:
        return self._density_of_logarithm(special.log1p_square(w, xp), xp)

    def _near_density(self, square: Array, xp: ModuleType) -> Array:
        return self._density_of_logarithm(xp.log1p(square), xp)

    _near_density_bound = 1.0

    def _density_of_logarithm(self, logarithm: Array, xp: ModuleType) -> Array:
        power = 0.5 * (self.ndim + 1)
        return xp.exp(math.lgamma(power) - power * math.log(math.pi) - power * logarithm)

    def _line(self) -> Quantile | None:
        return quantiles.student_quantile, (1.0,)

    def _shared_radius(self) -> Quantile | None:
        return _cauchy_radius, ()


def _cauchy_radius(u: np.ndarray, *, upper: bool = False) -> np.ndarray:
    return 1.0 / quantiles.half_normal_upper_quantile(u, upper=upper)


@dataclass(frozen=True, repr=False)
class RationalQuadratic(_Stated):
    """Rational quadratic kernel: ``Phi = (1 + t^2/(2 alpha))^-alpha``; w is ``sqrt(g) z``.

    The variance g ~ Gamma(alpha, rate alpha) is shared by all axes.
    """

    name: ClassVar[str] = "rational_quadratic"
    alpha: float = shape(1.0, 0.02, 100.0)
    scale: float | tuple[float, ...] = length(1.0)
    ndim: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "alpha", positive("alpha", self.alpha))

    def _radial_phi(self, t: Array, xp: ModuleType) -> Array:
        return xp.exp(-self.alpha * special.log1p_square(t * (1.0 / math.sqrt(2.0 * self.alpha)), xp))

    _near_bound = 1.0

    def _near_phi(self, square: Array, xp: ModuleType) -> Array:
        return xp.exp(-self.alpha * xp.log1p(square * (0.5 / self.alpha)))

    def _falls(self, delta: Array, xp: ModuleType) -> Falls:
        t, square = self._distance(delta, 1.0, xp)
        near = square < 2.0 * self.alpha
        z = xp.where(near, square, xp.zeros_like(square)) * (0.5 / self.alpha)
        t = xp.where(near, xp.ones_like(t), t) * (1.0 / math.sqrt(2.0 * self.alpha))
        once, twice = (
            self.alpha * xp.where(near, xp.log1p(m * m * z), special.log1p_square(m * t, xp)) for m in (1.0, 2.0)
        )
        excess = 0.5 * self.alpha * xp.log1p(z * z * (6.0 + z * (4.0 + z)) / (1.0 + 4.0 * z))
        return falls.of_exponent(once, twice, excess, near, xp)

    def _radial_density(self, w: Array, xp: ModuleType) -> Array:
        return _normal_gamma_density(self.alpha, self.ndim, w, xp)

    def _shared_radius(self) -> Quantile | None:
        return _gamma_radius, (self.alpha,)


def _gamma_radius(alpha: float, u: np.ndarray, *, upper: bool = False) -> np.ndarray:
    return np.sqrt(quantiles.gamma_quantile(alpha, u, upper=upper) / alpha)


def _normal_gamma_density(alpha: float, ndim: int, w: Array, xp: ModuleType) -> Array:
    """Density of ``sqrt(g) z`` with g ~ Gamma(alpha, rate alpha) at distance w: a Bessel K of order alpha - k/2."""
    order, x = alpha - 0.5 * ndim, math.sqrt(2.0 * alpha) * w
    log_factor = 0.5 * ndim * math.log(0.5 * alpha / math.pi)
    if order > 0.0:
        return math.exp(log_factor - special.log_gamma_ratio(order, ndim)) * special.matern(order, x, xp)
    if order == 0.0:
        return 2.0 * math.exp(log_factor - math.lgamma(alpha)) * special.bessel_k0(x, xp)
    pole = x == 0.0
    safe = xp.where(pole, xp.ones_like(x), x)
    log_factor += math.lgamma(-order) - math.lgamma(alpha)
    value = xp.exp(log_factor + 2.0 * order * xp.log(0.5 * safe)) * special.matern(-order, safe, xp)
    return xp.where(pole, xp.full_like(x, math.inf), value)


@dataclass(frozen=True, repr=False)
class PowerExponential(_Isotropic):
    """Power exponential kernel: ``Phi = exp(-t^exponent)``, exponent in (0, 2]; w is ``sqrt(2S) z``, S positive stable.

    S has ``E exp(-x S) = exp(-x^(exponent/2))`` and is shared by all axes. Below exponent = 0.04 more than 1e-6 of the
    law lies beyond 2**500, where frequencies are cut. The density has a closed form for the exponents 1 and 2.
    """

    name: ClassVar[str] = "power_exponential"
    exponent: float = shape(1.0, 0.05, 2.0, ends=True)
    scale: float | tuple[float, ...] = length(1.0)
    ndim: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "exponent", positive("exponent", self.exponent))
        if self.exponent > 2.0:
            raise ValueError(f"exponent is {self.exponent}; expected at most 2: beyond, Phi is not positive definite")

    @property
    def draws(self) -> int:
        """Two for the shared stable variable and one for each axis."""
        return 2 + self.ndim

    def _radial_phi(self, t: Array, xp: ModuleType) -> Array:
        return xp.exp(-(t**self.exponent))

    @property
    def _near_bound(self) -> float:
        return 1.0 if self.exponent == 2.0 else 0.0

    def _near_phi(self, square: Array, xp: ModuleType) -> Array:
        return xp.exp(-square) if self.exponent == 2.0 else xp.ones_like(square)

    def _falls(self, delta: Array, xp: ModuleType) -> Falls:
        if self.exponent == 2.0:
            return falls.of_gaussian(2.0 * self._distance(delta, 1.0, xp)[1], xp)
        t = self._distance(delta, 0.0, xp)[0]
        zero = t == 0.0
        once = xp.where(zero, xp.zeros_like(t), xp.where(zero, xp.ones_like(t), t) ** self.exponent)
        excess = -2.0 * math.expm1((self.exponent - 2.0) * math.log(2.0)) * once
        return falls.of_exponent(once, 2.0**self.exponent * once, excess, t < 1.0, xp)

    def _density(self, omega: Array, xp: ModuleType) -> Array:
        if self.exponent == 1.0:
            return Exponential(self.scale, self.ndim)._density(omega, xp)
        if self.exponent == 2.0:
            return Gaussian(self.scale, self.ndim)._density(omega * math.sqrt(0.5), xp) * 0.5 ** (0.5 * self.ndim)
        return Kernel._density(self, omega, xp)

    def _unit_transport(self, u: np.ndarray) -> np.ndarray:
        root = quantiles.stable_root(self.exponent, u[..., :1], u[..., 1:2])
        return root * quantiles.normal_quantile(u[..., 2:])
