"""Isotropic kernel families: parameters, Phi, the law of the frequencies, and how they are drawn.

``scale`` is a length in units of position, one for all axes or one for each; frequencies are radians per unit of
position. Below, ``t`` is the lag in units of the scale, ``w`` the frequency times the scale, z standard normal.
"""

from __future__ import annotations

import dataclasses
import math
from abc import abstractmethod
from types import ModuleType
from typing import ClassVar

import numpy as np

from rfrope._core import array, quantiles, special
from rfrope._core.arguments import MOST, whole
from rfrope._core.array import Array
from rfrope.kernels import one_minus_cos, parameters
from rfrope.kernels.base import Kernel, Law, Quantile
from rfrope.kernels.one_minus_cos import CosMoments
from rfrope.kernels.parameters import Lengths, broadcast, length, radial, shape, square
from rfrope.kernels.registry import family

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
                object.__setattr__(self, field.name, parameters.per_axis(field.name, getattr(self, field.name), count))


class Scaled(Family):
    """A family with formulas in units of `unit`: a length, or a frequency, which is one over a length."""

    unit: ClassVar[str] = "scale"

    def _scale_lags(self, lags: Array, xp: ModuleType) -> Array:
        unit = broadcast(self._unit, lags, xp)
        return lags / unit if self.unit == "scale" else lags * unit

    def _density(self, omega: Array, xp: ModuleType) -> Array:
        unit = broadcast(self._unit, omega, xp)
        density = self._unit_density(omega * unit if self.unit == "scale" else omega / unit, xp)
        size = parameters.volume(self._unit, self.ndim)
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

    def _square(self, lags: Array, xp: ModuleType) -> Array:
        """Return the square of t."""
        return square(self._scale_lags(lags, xp), xp)

    def _distance(self, lags: Array, xp: ModuleType) -> Array:
        """Return t, so that its square is finite."""
        t = parameters.radius(self._scale_lags(lags, xp), xp)
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


@family(
    "gaussian",
    "exp(-r^2/(2 s^2))",
    "normal, standard deviation 1/s",
    "gaussian(scale=32.0)",
    aliases=("rbf", "squared_exponential"),
)
class Gaussian(NormalScale):
    """Gaussian kernel: ``Phi = exp(-t^2/2)``; w is standard normal."""

    scale: Lengths = length(1.0)
    ndim: int = 1

    def _phi(self, lags: Array, xp: ModuleType) -> Array:
        return xp.exp(-0.5 * self._square(lags, xp))

    def _one_minus_cos_moments(self, lags: Array, xp: ModuleType) -> CosMoments:
        return one_minus_cos.gaussian(self._square(lags, xp), xp)

    def _unit_density(self, w: Array, xp: ModuleType) -> Array:
        return (2.0 * math.pi) ** (-0.5 * self.ndim) * xp.exp(-0.5 * square(w, xp))


@family(
    "cauchy", "1/(1 + r^2/s^2)", "Laplace, scale 1/s (k = 1); sqrt(2E) z/s, E ~ Exp(1) (k > 1)", "cauchy(scale=24.0)"
)
class Cauchy(NormalScale):
    """Cauchy kernel: ``Phi = 1/(1 + t^2)``; w is Laplace in one axis, ``sqrt(2E) z`` with E exponential in more."""

    scale: Lengths = length(1.0)
    ndim: int = 1

    def _phi(self, lags: Array, xp: ModuleType) -> Array:
        return 1.0 / (1.0 + self._square(lags, xp))

    def _one_minus_cos_moments(self, lags: Array, xp: ModuleType) -> CosMoments:
        deficit = -xp.expm1(-xp.log1p(self._square(lags, xp)))
        return deficit, 6.0 * deficit * deficit / (1.0 + 3.0 * deficit)

    def _unit_density(self, w: Array, xp: ModuleType) -> Array:
        return 0.5 ** (0.5 * self.ndim) * _normal_gamma_density(1.0, math.sqrt(0.5) * w, xp)

    def _line(self) -> Quantile:
        return quantiles.laplace_quantile, ()

    def _radius(self) -> Quantile:
        return _root_exponential, ()


@family(
    "matern",
    "2^(1-nu)/Gamma(nu) t^nu K_nu(t), t = sqrt(2 nu) r/s",
    "multivariate Student t, 2 nu degrees of freedom, over s",
    "matern(nu=1.5, scale=16.0)",
)
class Matern(NormalScale):
    """Matérn kernel: ``Phi = 2^(1-nu)/Gamma(nu) s^nu K_nu(s)``, ``s = sqrt(2 nu) t``; w is multivariate Student t.

    The law has 2 nu degrees of freedom, and one chi-square shared by all axes. Frequencies are cut at 2**500, beyond
    which lies more than 1e-6 of the law for nu below 0.02.
    """

    nu: float = shape(1.5, minimum=0.05, maximum=30.0)
    scale: Lengths = length(1.0)
    ndim: int = 1

    def _phi(self, lags: Array, xp: ModuleType) -> Array:
        nu, bend, bound = self.nu, 0.0, 0.0
        if nu > 1.0:  # what follows the square in Phi is of order min(2 nu, 4): below the bound it is rounding in Phi''
            bend, bound = 0.5 * nu / (nu - 1.0), 1e-16 ** (2.0 / (1.0 + min(2.0 * nu - 2.0, 2.0)))
        factor = math.sqrt(2.0 * nu)
        near, far = lambda square, _: 1.0 - bend * square, lambda t, xp: special.matern(nu, factor * t, xp)
        return radial(self._scale_lags(lags, xp), near, far, bound, xp)

    def _one_minus_cos_moments(self, lags: Array, xp: ModuleType) -> CosMoments:
        return one_minus_cos.matern(self.nu, math.sqrt(2.0 * self.nu) * self._distance(lags, xp), xp)

    def _unit_density(self, w: Array, xp: ModuleType) -> Array:
        power = self.nu + 0.5 * self.ndim
        log_peak = special.log_gamma_ratio(self.nu, self.ndim) - 0.5 * self.ndim * math.log(2.0 * math.pi * self.nu)
        return xp.exp(log_peak - power * _log1p_square(w, 2.0 * self.nu, xp))

    def _line(self) -> Quantile:
        return quantiles.student_quantile, (2.0 * self.nu,)

    def _radius(self) -> Quantile:
        return _student_radius, (self.nu,)

    def _law(self) -> Law | None:
        return super()._law() if self.nu >= 0.5 else None  # tails too heavy for tables


@family("exponential", "exp(-r/s)", "multivariate Cauchy, over s", "exponential(scale=48.0)", aliases=("laplacian",))
class Exponential(NormalScale):
    """Exponential kernel: ``Phi = exp(-t)``, Matérn with nu = 1/2; w is multivariate Cauchy."""

    scale: Lengths = length(1.0)
    ndim: int = 1

    def _phi(self, lags: Array, xp: ModuleType) -> Array:
        return radial(self._scale_lags(lags, xp), parameters.flat, lambda t, xp: xp.exp(-t), 0.0, xp)

    def _one_minus_cos_moments(self, lags: Array, xp: ModuleType) -> CosMoments:
        deficit = -xp.expm1(-self._distance(lags, xp))
        return deficit, deficit * (1.0 + 0.5 * deficit)

    def _unit_density(self, w: Array, xp: ModuleType) -> Array:
        return Matern(0.5, ndim=self.ndim)._unit_density(w, xp)

    def _line(self) -> Quantile:
        return quantiles.student_quantile, (1.0,)

    def _radius(self) -> Quantile:
        return _cauchy_radius, ()


@family(
    "rational_quadratic",
    "(1 + r^2/(2 alpha s^2))^-alpha",
    "sqrt(g) z/s, one g ~ Gamma(alpha, rate alpha) for all axes",
    "rational_quadratic(alpha=1.5, scale=24.0)",
)
class RationalQuadratic(NormalScale):
    """Rational quadratic kernel: ``Phi = (1 + t^2/(2 alpha))^-alpha``; w is ``sqrt(g) z``.

    The variance g ~ Gamma(alpha, rate alpha) is shared by all axes.
    """

    alpha: float = shape(1.0, minimum=0.02, maximum=100.0)
    scale: Lengths = length(1.0)
    ndim: int = 1

    def _phi(self, lags: Array, xp: ModuleType) -> Array:
        return xp.exp(-self.alpha * _log1p_square(self._scale_lags(lags, xp), 2.0 * self.alpha, xp))

    def _one_minus_cos_moments(self, lags: Array, xp: ModuleType) -> CosMoments:
        vectors = self._scale_lags(lags, xp)
        once, twice = (self.alpha * _log1p_square(m * vectors, 2.0 * self.alpha, xp) for m in (1.0, 2.0))
        near = once < self.alpha * math.log(2.0)
        z = xp.where(near, square(vectors, xp), xp.zeros_like(once)) * (0.5 / self.alpha)
        excess = 0.5 * self.alpha * xp.log1p(z * z * (6.0 + z * (4.0 + z)) / (1.0 + 4.0 * z))
        return one_minus_cos.exponential(once, twice, excess, near, xp)

    def _unit_density(self, w: Array, xp: ModuleType) -> Array:
        return _normal_gamma_density(self.alpha, w, xp)

    def _radius(self) -> Quantile:
        return _gamma_radius, (self.alpha,)


@family(
    "power_exponential",
    "exp(-(r/s)^exponent), exponent in (0, 2]",
    "sqrt(2 S) z/s, one S positive (exponent/2)-stable for all axes",
    "power_exponential(exponent=1.5, scale=32.0)",
    aliases=("stable",),
)
class PowerExponential(Isotropic):
    """Power exponential kernel: ``Phi = exp(-t^exponent)``, exponent in (0, 2]; w is ``sqrt(2S) z``, S positive stable.

    S has ``E exp(-x S) = exp(-x^(exponent/2))`` and is shared by all axes. Frequencies are cut at 2**500, beyond which
    lies more than 1e-6 of the law for exponents below 0.04. The density has a closed form for exponents 1 and 2.
    """

    exponent: float = shape(1.0, minimum=0.05, maximum=2.0, ends=True)
    scale: Lengths = length(1.0)
    ndim: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.exponent > 2.0:
            raise ValueError(f"exponent is {self.exponent}; expected at most 2: beyond, Phi is not positive definite")

    @property
    def n_columns(self) -> int:
        """Two for the shared stable variable, and one for each axis."""
        return 2 + self.ndim

    def _phi(self, lags: Array, xp: ModuleType) -> Array:
        near, far = lambda square, xp: xp.exp(-square), lambda t, xp: xp.exp(-(t**self.exponent))
        return radial(self._scale_lags(lags, xp), near, far, 1.0 if self.exponent == 2.0 else 0.0, xp)

    def _one_minus_cos_moments(self, lags: Array, xp: ModuleType) -> CosMoments:
        if self.exponent == 2.0:
            return one_minus_cos.gaussian(2.0 * self._square(lags, xp), xp)
        t = self._distance(lags, xp)
        zero = t == 0.0
        once = xp.where(zero, xp.zeros_like(t), xp.where(zero, xp.ones_like(t), t) ** self.exponent)
        excess = -2.0 * math.expm1((self.exponent - 2.0) * math.log(2.0)) * once
        return one_minus_cos.exponential(once, 2.0**self.exponent * once, excess, t < 1.0, xp)

    def _unit_density(self, w: Array, xp: ModuleType) -> Array:
        if self.exponent == 1.0:
            return Exponential(ndim=self.ndim)._unit_density(w, xp)
        if self.exponent == 2.0:
            return Gaussian(ndim=self.ndim)._unit_density(w * math.sqrt(0.5), xp) * 0.5 ** (0.5 * self.ndim)
        return super()._unit_density(w, xp)

    def _unit_transport(self, u: np.ndarray) -> np.ndarray:
        root = quantiles.stable_root(self.exponent, u[..., :1], u[..., 1:2])
        return root * quantiles.normal_quantile(u[..., 2:])


# -- radii that all axes share, at v or, if `upper`, at 1 - v ----------------------------------------------------------


def _root_exponential(v: np.ndarray, *, upper: bool = False) -> np.ndarray:
    return np.sqrt(2.0 * quantiles.exponential_quantile(v, upper=upper))


def _student_radius(nu: float, v: np.ndarray, *, upper: bool = False) -> np.ndarray:
    half_chi2 = np.maximum(quantiles.gamma_quantile(nu, v, upper=upper), np.finfo(np.float64).tiny)
    return np.sqrt(nu / half_chi2)


def _cauchy_radius(v: np.ndarray, *, upper: bool = False) -> np.ndarray:
    return 1.0 / quantiles.half_normal_upper_quantile(v, upper=upper)


def _gamma_radius(alpha: float, v: np.ndarray, *, upper: bool = False) -> np.ndarray:
    return np.sqrt(quantiles.gamma_quantile(alpha, v, upper=upper) / alpha)


# -- functions that families share -------------------------------------------------------------------------------------


def _log1p_square(vectors: Array, divisor: float, xp: ModuleType) -> Array:
    """``log(1 + length^2 / divisor)``, smooth at 0 and right where the square overflows."""
    return radial(
        vectors,
        lambda square, xp: xp.log1p(square * (1.0 / divisor)),
        lambda t, xp: special.log1p_square(t * (1.0 / math.sqrt(divisor)), xp),
        1.0,
        xp,
    )


def _normal_gamma_density(alpha: float, vectors: Array, xp: ModuleType) -> Array:
    """Density of ``sqrt(g) z`` with g ~ Gamma(alpha, rate alpha): a Bessel K of order alpha - k/2."""
    ndim = vectors.shape[-1]
    order, log_factor = alpha - 0.5 * ndim, 0.5 * ndim * math.log(0.5 * alpha / math.pi)

    def evaluate(w: Array, xp: ModuleType) -> Array:
        x = math.sqrt(2.0 * alpha) * w
        if order > 0.0:
            return math.exp(log_factor - special.log_gamma_ratio(order, ndim)) * special.matern(order, x, xp)
        if order == 0.0:
            return 2.0 * math.exp(log_factor - math.lgamma(alpha)) * special.bessel_k0(x, xp)
        log_peak = log_factor + math.lgamma(-order) - math.lgamma(alpha)
        return xp.exp(log_peak + 2.0 * order * xp.log(0.5 * x)) * special.matern(-order, x, xp)

    def limit(square: Array, xp: ModuleType) -> Array:
        return xp.full_like(square, math.inf) if order < 0.0 else evaluate(xp.zeros_like(square), xp)

    return radial(vectors, limit, evaluate, 0.0, xp)
