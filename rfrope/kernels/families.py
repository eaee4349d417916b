"""The kernel families: parameters, Phi, the law of the frequencies, and how they are drawn.

``scale`` is a length in units of position, one number or one for each axis; frequencies are radians per unit of
position. ``t`` below is the lag in units of the scale, ``w`` the frequency times the scale.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import ModuleType
from typing import ClassVar

import numpy as np

from rfrope import _array, _special
from rfrope._array import Array
from rfrope.kernels.base import Kernel
from rfrope.kernels.law import Law, Quantile
from rfrope.kernels.parameters import along_axes, check_ndim, per_axis, positive, radius, volume


class _Isotropic(Kernel):
    """A law of ``w = scale * omega`` that is spherically symmetric."""

    scale: float | tuple[float, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "ndim", check_ndim(self.ndim))
        object.__setattr__(self, "scale", per_axis("scale", self.scale, self.ndim))

    def _phi(self, delta: Array, xp: ModuleType) -> Array:
        return self._radial_phi(radius(delta / along_axes(self.scale, delta, xp), xp), xp)

    def _density(self, omega: Array, xp: ModuleType) -> Array:
        w = radius(omega * along_axes(self.scale, omega, xp), xp)
        return volume(self.scale, self.ndim) * self._radial_density(w, xp)

    def _transport(self, u: np.ndarray) -> np.ndarray:
        return self._unit_transport(u) / np.asarray(self.scale)

    def _isotropy(self) -> np.ndarray | None:
        return np.diag(1.0 / np.broadcast_to(self.scale, self.ndim))

    def _law(self) -> Law | None:
        component, radius = self._unit_law()
        return component and Law(component, (1.0,) * self.ndim, radius).scaled(self.scale)

    def _radial_phi(self, t: Array, xp: ModuleType) -> Array:
        raise TypeError(f"{type(self).__name__} defines no _radial_phi")

    def _radial_density(self, w: Array, xp: ModuleType) -> Array:
        raise TypeError(f"{type(self).__name__} defines no _radial_density")

    def _unit_transport(self, u: np.ndarray) -> np.ndarray:
        raise TypeError(f"{type(self).__name__} defines no _unit_transport")

    def _unit_law(self) -> tuple[Quantile | None, Quantile | None]:
        """Component and radius of `Law`; no component where there is no such law."""
        return None, None


@dataclass(frozen=True, repr=False)
class Gaussian(_Isotropic):
    """Gaussian kernel: ``Phi = exp(-t^2/2)``; w is standard normal."""

    name: ClassVar[str] = "gaussian"
    scale: float | tuple[float, ...] = 1.0
    ndim: int = 1

    @property
    def draws(self) -> int:
        """One for each axis."""
        return self.ndim

    def _radial_phi(self, t: Array, xp: ModuleType) -> Array:
        return xp.exp(-0.5 * t * t)

    def _radial_density(self, w: Array, xp: ModuleType) -> Array:
        return (2.0 * math.pi) ** (-0.5 * self.ndim) * xp.exp(-0.5 * w * w)

    def _unit_transport(self, u: np.ndarray) -> np.ndarray:
        return _special.normal_quantile(u)

    def _unit_law(self) -> tuple[Quantile | None, Quantile | None]:
        return (_special.normal_quantile, ()), None


@dataclass(frozen=True, repr=False)
class Cauchy(_Isotropic):
    """Cauchy kernel: ``Phi = 1/(1 + t^2)``; w is Laplace in one axis, ``sqrt(2E) z`` with E exponential in more."""

    name: ClassVar[str] = "cauchy"
    scale: float | tuple[float, ...] = 1.0
    ndim: int = 1

    @property
    def draws(self) -> int:
        """One in one axis, else one for the shared radius and one for each axis."""
        return 1 if self.ndim == 1 else 1 + self.ndim

    def _radial_phi(self, t: Array, xp: ModuleType) -> Array:
        return 1.0 / (1.0 + t * t)

    def _radial_density(self, w: Array, xp: ModuleType) -> Array:
        if self.ndim == 1:
            return 0.5 * xp.exp(-w)
        if self.ndim == 2:
            return _special.bessel_k0(w, xp) / (2.0 * math.pi)
        order = 0.5 * self.ndim - 1.0
        pole = w == 0.0
        safe = xp.where(pole, xp.ones_like(w), w)
        log_factor = math.lgamma(order) - 0.5 * self.ndim * math.log(4.0 * math.pi)
        value = xp.exp(log_factor - 2.0 * order * xp.log(0.5 * safe)) * _special.matern(order, safe, xp)
        return xp.where(pole, xp.full_like(w, math.inf), value)

    def _unit_transport(self, u: np.ndarray) -> np.ndarray:
        if self.ndim == 1:
            return _special.laplace_quantile(u)
        return _root_exponential(u[..., :1]) * _special.normal_quantile(u[..., 1:])

    def _unit_law(self) -> tuple[Quantile | None, Quantile | None]:
        if self.ndim == 1:
            return (_special.laplace_quantile, ()), None
        return (_special.normal_quantile, ()), (_root_exponential, ())


def _root_exponential(u: np.ndarray, *, upper: bool = False) -> np.ndarray:
    return np.sqrt(2.0 * _special.exponential_quantile(u, upper=upper))


@dataclass(frozen=True, repr=False)
class Matern(_Isotropic):
    """Matérn kernel: ``Phi = 2^(1-nu)/Gamma(nu) s^nu K_nu(s)``, ``s = sqrt(2 nu) t``; w is multivariate Student t.

    The law has 2 nu degrees of freedom, and one chi-square shared by all axes. Below nu = 0.02 more than 1e-6 of it
    lies beyond 2**500, where frequencies are cut.
    """

    name: ClassVar[str] = "matern"
    nu: float = 1.5
    scale: float | tuple[float, ...] = 1.0
    ndim: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "nu", positive("nu", self.nu))

    @property
    def draws(self) -> int:
        """One in one axis, else one for the shared chi-square and one for each axis."""
        return 1 if self.ndim == 1 else 1 + self.ndim

    def _radial_phi(self, t: Array, xp: ModuleType) -> Array:
        return _special.matern(self.nu, math.sqrt(2.0 * self.nu) * t, xp)

    def _radial_density(self, w: Array, xp: ModuleType) -> Array:
        power = self.nu + 0.5 * self.ndim
        log_peak = math.lgamma(power) - math.lgamma(self.nu) - 0.5 * self.ndim * math.log(2.0 * math.pi * self.nu)
        return xp.exp(log_peak - power * xp.log1p(w * w / (2.0 * self.nu)))

    def _unit_transport(self, u: np.ndarray) -> np.ndarray:
        if self.ndim == 1:
            return _special.student_quantile(2.0 * self.nu, u)
        return _special.normal_quantile(u[..., 1:]) * _student_radius(self.nu, u[..., :1])

    def _unit_law(self) -> tuple[Quantile | None, Quantile | None]:
        if self.nu < 0.5:  # tails too heavy for tables
            return None, None
        if self.ndim == 1:
            return (_special.student_quantile, (2.0 * self.nu,)), None
        return (_special.normal_quantile, ()), (_student_radius, (self.nu,))


def _student_radius(nu: float, u: np.ndarray, *, upper: bool = False) -> np.ndarray:
    half_chi2 = np.maximum(_special.gamma_quantile(nu, u, upper=upper), np.finfo(np.float64).tiny)
    return np.sqrt(nu / half_chi2)


@dataclass(frozen=True, repr=False)
class Exponential(_Isotropic):
    """Exponential kernel: ``Phi = exp(-t)``, Matérn with nu = 1/2; w is multivariate Cauchy."""

    name: ClassVar[str] = "exponential"
    scale: float | tuple[float, ...] = 1.0
    ndim: int = 1

    @property
    def draws(self) -> int:
        """One in one axis, else one for the shared divisor and one for each axis."""
        return 1 if self.ndim == 1 else 1 + self.ndim

    def _radial_phi(self, t: Array, xp: ModuleType) -> Array:
        return xp.exp(-t)

    def _radial_density(self, w: Array, xp: ModuleType) -> Array:
        power = 0.5 * (self.ndim + 1)
        return xp.exp(math.lgamma(power) - power * math.log(math.pi) - power * xp.log1p(w * w))

    def _unit_transport(self, u: np.ndarray) -> np.ndarray:
        if self.ndim == 1:
            return _special.student_quantile(1.0, u)
        return _special.normal_quantile(u[..., 1:]) * _cauchy_radius(u[..., :1])

    def _unit_law(self) -> tuple[Quantile | None, Quantile | None]:
        if self.ndim == 1:
            return (_special.student_quantile, (1.0,)), None
        return (_special.normal_quantile, ()), (_cauchy_radius, ())


def _cauchy_radius(u: np.ndarray, *, upper: bool = False) -> np.ndarray:
    return 1.0 / _special.half_normal_upper_quantile(u, upper=upper)


@dataclass(frozen=True, repr=False)
class Sinc(Kernel):
    """Sinc kernel: ``Phi = prod_j sin(W_j x_j)/(W_j x_j)``, no pi as in numpy.sinc; omega_j uniform on (-W_j, W_j)."""

    name: ClassVar[str] = "sinc"
    bandwidth: float | tuple[float, ...] = 1.0
    ndim: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "ndim", check_ndim(self.ndim))
        object.__setattr__(self, "bandwidth", per_axis("bandwidth", self.bandwidth, self.ndim))

    @property
    def draws(self) -> int:
        """One for each axis."""
        return self.ndim

    def _phi(self, delta: Array, xp: ModuleType) -> Array:
        angle = delta * along_axes(self.bandwidth, delta, xp)
        regular = (angle != 0.0) & ~xp.isinf(angle)  # the quotient is 1 at zero and 0 at infinity
        safe = xp.where(regular, angle, xp.ones_like(angle))
        quotient = xp.where(regular, xp.sin(safe) / safe, xp.astype(angle == 0.0, angle.dtype))
        return xp.prod(quotient, axis=-1)

    def _density(self, omega: Array, xp: ModuleType) -> Array:
        inside = xp.all(xp.abs(omega) <= along_axes(self.bandwidth, omega, xp), axis=-1)
        height = 1.0 / volume(self.bandwidth, self.ndim) * 0.5**self.ndim
        return height * xp.astype(inside, omega.dtype)

    def _transport(self, u: np.ndarray) -> np.ndarray:
        return np.asarray(self.bandwidth) * (2.0 * u - 1.0)

    def _law(self) -> Law | None:
        bandwidths = np.broadcast_to(self.bandwidth, self.ndim).tolist()
        return Law(("uniform", ()), tuple(bandwidths)).scaled(1.0)


@dataclass(frozen=True, repr=False)
class LogUniform(Kernel):
    """Log-uniform kernel: ``Phi = [Ci(high x) - Ci(low x)]/ln(high/low)``; omega is a random sign times a frequency.

    The frequency is log-uniform on (low, high), radians per unit of position: the continuum of standard RoPE, whose
    low is one over the base and whose high is 1. There is one axis only.
    """

    name: ClassVar[str] = "log_uniform"
    low: float = 1e-4
    high: float = 1.0
    ndim: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "ndim", check_ndim(self.ndim))
        if self.ndim != 1:
            raise ValueError(f"ndim is {self.ndim}; expected 1: a log_uniform law has one axis (combine with axes())")
        for name in ("low", "high"):
            object.__setattr__(self, name, positive(name, getattr(self, name)))
        if not self.low < self.high:
            raise ValueError(f"low is {self.low} and high {self.high}; expected low < high")

    @property
    def draws(self) -> int:
        """One, for sign and size."""
        return 1

    @property
    def _log_ratio(self) -> float:
        """``ln(high/low)``, exact to rounding for close and for distant ends."""
        excess = (self.high - self.low) / self.low
        return math.log1p(excess) if excess < 1e300 else math.log(self.high) - math.log(self.low)

    def _phi(self, delta: Array, xp: ModuleType) -> Array:
        x = xp.abs(delta[..., 0])
        special = _array.special_functions(xp)
        if special is None:
            return _array.apply_on_host(lambda host: self._mean_cos(host, np), x, xp)
        return self._mean_cos(x, xp)

    def _mean_cos(self, x: Array, xp: ModuleType) -> Array:
        sici = _array.special_functions(xp).sici
        return _special.log_uniform_mean_cos(self.low, self.high, self._log_ratio, x, sici, xp)

    def _density(self, omega: Array, xp: ModuleType) -> Array:
        w = xp.abs(omega[..., 0])
        inside = (w >= self.low) & (w <= self.high)
        safe = xp.where(inside, w, xp.ones_like(w))
        return xp.where(inside, 0.5 / self._log_ratio / safe, xp.zeros_like(w))

    def _transport(self, u: np.ndarray) -> np.ndarray:
        return _special.log_uniform_quantile(self.low, self.high, self._log_ratio, u)

    def _law(self) -> Law | None:
        return Law(("log_uniform", (self._log_ratio,)), (self.low,)).scaled(1.0) if self.high < 1e100 else None
