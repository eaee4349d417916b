"""Kernel families given by their spectrum: bands, balls, spheres, lines and lumps of frequencies.

``bandwidth``, ``radius``, ``low``, ``high`` and a spectral mixture's ``means`` and ``scales`` are frequencies, radians
per unit of position; ``period`` is a length.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any, ClassVar

import numpy as np

from rfrope._core import array, elementwise, quantiles, special, turns
from rfrope._core.angles import Angles
from rfrope._core.arguments import LARGEST, show
from rfrope._core.array import Array
from rfrope._core.special import log_uniform_mean_cos
from rfrope.kernels import falls, parameters
from rfrope.kernels.base import Atoms, Kernel
from rfrope.kernels.falls import Falls
from rfrope.kernels.law import Law
from rfrope.kernels.parameters import (
    along_axes,
    check_ndim,
    frequency,
    length,
    per_axis,
    positive,
    shape,
    shares,
    vector,
    volume,
)

_SINC = [(-1.0) ** n / math.factorial(2 * n + 1) for n in range(falls.TERMS)]  # sin(x)/x by powers of x^2
_KNOWN = 2.0**60  # phase up to which turns in twice the working precision are exact to 1e-15


@dataclass(frozen=True, repr=False)
class Sinc(Kernel):
    """Sinc kernel: ``Phi = prod_j sin(W_j x_j)/(W_j x_j)``, no pi as in numpy.sinc; omega_j uniform on (-W_j, W_j)."""

    name: ClassVar[str] = "sinc"
    bandwidth: float | tuple[float, ...] = frequency(1.0)
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
        quotients = special.sinc(angle, xp)
        return math.prod(quotients[..., axis] for axis in range(self.ndim))  # a product that has second derivatives

    def _falls(self, delta: Array, xp: ModuleType) -> Falls:
        angle = delta * along_axes(self.bandwidth, delta, xp)
        far = falls.from_phi(special.sinc(angle, xp), special.sinc(2.0 * angle, xp))
        small = array.clip(angle, -1.0, 1.0, xp)
        of_axes = falls.of_series(_SINC, small * small, far, xp)
        return falls.independent((of_axes[0][..., i], of_axes[1][..., i]) for i in range(self.ndim))

    def _density(self, omega: Array, xp: ModuleType) -> Array:
        inside = xp.all(xp.abs(omega) <= along_axes(self.bandwidth, omega, xp), axis=-1)
        height = _inverse(volume(self.bandwidth, self.ndim)) * 0.5**self.ndim
        return xp.where(inside, xp.full_like(omega[..., 0], height), xp.zeros_like(omega[..., 0]))

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
    low: float = frequency(1e-4)
    high: float = frequency(1.0)
    ndim: int = 1

    def __post_init__(self) -> None:
        _check_one_axis(self)
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
        return elementwise.map_blocks(self._mean_cos, delta[..., 0], xp)

    def _mean_cos(self, x: Array, xp: ModuleType) -> Array:
        x = xp.where(x < 0.0, -x, x)  # its slope at 0 is not 0, so that second derivatives are right there
        return log_uniform_mean_cos(self.low * x, self.high * x, self._log_ratio, xp)

    def _falls(self, delta: Array, xp: ModuleType) -> Falls:
        far = falls.from_phi(self._phi(delta, xp), self._phi(2.0 * delta, xp))
        angle = array.clip(self.high * delta[..., 0], -1.0, 1.0, xp)
        ratio = self._log_ratio
        moments = [1.0, *(-math.expm1(-2 * n * ratio) / (2 * n * ratio) for n in range(1, falls.TERMS))]
        series = [(-1.0) ** n / math.factorial(2 * n) * moment for n, moment in enumerate(moments)]
        return falls.of_series(series, angle * angle, far, xp)

    def _density(self, omega: Array, xp: ModuleType) -> Array:
        w = xp.abs(omega[..., 0])
        inside = (w >= self.low) & (w <= self.high)
        safe = xp.where(inside, w, xp.ones_like(w))
        return xp.where(inside, 0.5 / self._log_ratio / safe, xp.zeros_like(w))

    def _transport(self, u: np.ndarray) -> np.ndarray:
        return quantiles.log_uniform_quantile(self.low, self.high, self._log_ratio, u)

    def _law(self) -> Law | None:
        return Law(("log_uniform", (self._log_ratio,)), (self.low,)).scaled(1.0) if self.high < 1e100 else None


@dataclass(frozen=True, repr=False)
class Ball(Kernel):
    """Ball kernel: ``Phi = Gamma(k/2+1) (2/t)^(k/2) J_(k/2)(t)``, t = W r; omega is uniform in the ball of radius W.

    One bandwidth for each axis makes it an ellipsoid.
    """

    name: ClassVar[str] = "ball"
    bandwidth: float | tuple[float, ...] = frequency(1.0)
    ndim: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "ndim", check_ndim(self.ndim))
        object.__setattr__(self, "bandwidth", per_axis("bandwidth", self.bandwidth, self.ndim))

    @property
    def draws(self) -> int:
        """One in one axis, else one for the radius and one for each axis."""
        return parameters.radial_draws(self.ndim)

    def _phi(self, delta: Array, xp: ModuleType) -> Array:
        return _sphere_mean_cos(0.5 * self.ndim, delta * along_axes(self.bandwidth, delta, xp), xp)

    def _falls(self, delta: Array, xp: ModuleType) -> Falls:
        return _sphere_falls(0.5 * self.ndim, delta * along_axes(self.bandwidth, delta, xp), xp)

    def _density(self, omega: Array, xp: ModuleType) -> Array:
        inside = parameters.radius(omega / along_axes(self.bandwidth, omega, xp), xp) <= 1.0
        unit = math.gamma(0.5 * self.ndim + 1.0) * math.pi ** (-0.5 * self.ndim)
        height = unit * _inverse(volume(self.bandwidth, self.ndim))
        return xp.where(inside, xp.full_like(omega[..., 0], height), xp.zeros_like(omega[..., 0]))

    def _transport(self, u: np.ndarray) -> np.ndarray:
        if self.ndim == 1:
            return np.asarray(self.bandwidth) * (2.0 * u - 1.0)
        return np.asarray(self.bandwidth) * (u[..., :1] ** (1.0 / self.ndim) * _direction(u[..., 1:]))

    def isotropy(self) -> np.ndarray | None:
        """As `Kernel.isotropy`."""
        return np.diag(np.broadcast_to(self.bandwidth, self.ndim))

    def _law(self) -> Law | None:
        bandwidths = np.broadcast_to(self.bandwidth, self.ndim).tolist()
        return Law(("uniform", ()), tuple(bandwidths)).scaled(1.0) if self.ndim == 1 else None


@dataclass(frozen=True, repr=False)
class Shell(Kernel):
    """Shell kernel: ``Phi = Gamma(k/2) (2/t)^(k/2-1) J_(k/2-1)(t)``, t = W r; omega is uniform on a sphere, radius W.

    In one axis these are the two frequencies -W and W, and ``Phi = cos t``. One radius for each axis makes it the image
    of the unit sphere, stretched along the axes. There is no density.
    """

    name: ClassVar[str] = "shell"
    radius: float | tuple[float, ...] = frequency(1.0, single=True)
    ndim: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "ndim", check_ndim(self.ndim))
        object.__setattr__(self, "radius", per_axis("radius", self.radius, self.ndim))

    @property
    def draws(self) -> int:
        """One for each axis."""
        return self.ndim

    def _phi(self, delta: Array, xp: ModuleType) -> Array:
        if self.ndim == 1:
            return _mean_cos((self.radius,), delta, xp)
        return _sphere_mean_cos(0.5 * self.ndim - 1.0, delta * along_axes(self.radius, delta, xp), xp)

    def _falls(self, delta: Array, xp: ModuleType) -> Falls:
        phase = delta * along_axes(self.radius, delta, xp)
        if self.ndim == 1:
            return falls.of_cosine(phase[..., 0], self._phi(delta, xp), xp)
        return _sphere_falls(0.5 * self.ndim - 1.0, phase, xp)

    def _density(self, omega: Array, xp: ModuleType) -> Array:
        raise ValueError(f"{self!r} has no density: its frequencies lie on a sphere")

    def _atoms(self) -> Atoms | None:
        return (np.array([[-1.0], [1.0]]) * self.radius, np.array([0.5, 0.5])) if self.ndim == 1 else None

    def _transport(self, u: np.ndarray) -> np.ndarray:
        return np.asarray(self.radius) * _direction(u)

    def isotropy(self) -> np.ndarray | None:
        """As `Kernel.isotropy`."""
        return np.diag(np.broadcast_to(self.radius, self.ndim))


def _inverse(volume: float) -> float:
    return 1.0 / volume if volume else math.inf


def _sphere_mean_cos(order: float, vectors: Array, xp: ModuleType) -> Array:
    near, square, t = parameters.near_and_far(vectors, 1.0, xp)
    return xp.where(near, special.sphere_near(order, square), special.sphere_mean_cos(order, t, xp))


def _sphere_falls(order: float, vectors: Array, xp: ModuleType) -> Falls:
    far = falls.from_phi(_sphere_mean_cos(order, vectors, xp), _sphere_mean_cos(order, 2.0 * vectors, xp))
    near, square, _ = parameters.near_and_far(vectors, 1.0, xp)
    return falls.of_series(special.sphere_series(order), xp.where(near, square, xp.ones_like(square)), far, xp)


def _direction(u: np.ndarray) -> np.ndarray:
    """Uniform directions from a uniform for each axis."""
    if u.shape[-1] == 1:
        return np.where(u > 0.5, 1.0, -1.0)
    z = quantiles.normal_quantile(u)
    z = np.where(z == 0.0, -1e-16, z)  # the middle of the cube has no direction; this is less than all others
    return z / np.sqrt(np.sum(z * z, axis=-1, keepdims=True))


def _mean_cos(mean: tuple[Any, ...], delta: Array, xp: ModuleType) -> Array:
    """Return ``cos(delta . mean)`` to 1e-15; where phases are large NumPy's by long numbers, other libraries' NaN."""
    omega = vector(mean, delta, xp)
    known = xp.all((xp.abs(delta) < LARGEST) & (xp.abs(delta * omega) < _KNOWN), axis=-1)
    positions = xp.where(known[..., None], delta, xp.zeros_like(delta))
    cos, _ = turns.cos_sin.generic(Angles(positions, omega[None, :], None, xp))  # a call too small for compiled loops
    found = xp.where(known, cos[..., 0], xp.full_like(delta[..., 0], math.nan))
    if isinstance(delta, np.ndarray) and not known.all():
        far = ~known & np.all(np.isfinite(delta), axis=-1)
        found[far] = turns.far_cos(delta[far], np.asarray(mean, dtype=np.float64))
    return found


@dataclass(frozen=True, repr=False)
class Periodic(Kernel):
    """Periodic kernel: ``Phi = exp((cos(2 pi x/period) - 1)/scale^2)``; omega is ``2 pi n/period``, n a whole number.

    n has probability ``exp(-1/scale^2) I_n(1/scale^2)``. There is one axis only, and no density.
    """

    name: ClassVar[str] = "periodic"
    period: float = length(1.0, least=2.0, single=True)  # whole lags do not see shorter ones
    scale: float = shape(1.0, 0.05, 20.0)
    ndim: int = 1

    def __post_init__(self) -> None:
        _check_one_axis(self)
        for name in ("period", "scale"):
            object.__setattr__(self, name, per_axis(name, getattr(self, name), 1))

    @property
    def draws(self) -> int:
        """One, for the harmonic."""
        return 1

    @property
    def _concentration(self) -> float:
        return min(1.0 / self.scale / self.scale, 1e300)

    def _phi(self, delta: Array, xp: ModuleType) -> Array:
        sine = self._sine(delta, xp) / self.scale
        return xp.exp(-2.0 * sine * sine)

    def _falls(self, delta: Array, xp: ModuleType) -> Falls:
        sine = self._sine(delta, xp)
        exponent, square = 2.0 * (sine / self.scale) ** 2, sine * sine
        twice = 4.0 * exponent * (1.0 - square)
        return falls.of_exponent(exponent, twice, 2.0 * exponent * square, square < 0.5, xp)

    def _sine(self, delta: Array, xp: ModuleType) -> Array:
        """``sin(pi x / period)`` for x taken into half a period."""
        x = delta[..., 0]
        x = xp.where(
            x < 0.0, -x, x
        )  # a magnitude whose slope at 0 is not 0, so that second derivatives are right there
        x = xp.where(xp.isinf(x), xp.full_like(x, math.nan), x)
        rest = xp.remainder(x, self.period)
        rest = xp.where(rest > 0.5 * self.period, self.period - rest, rest)  # exact, as the remainder is
        return xp.sin(math.pi * (rest / self.period))

    def _density(self, omega: Array, xp: ModuleType) -> Array:
        raise ValueError(f"{self!r} has no density: its frequencies are whole multiples of one")

    def _atoms(self) -> Atoms | None:
        half = quantiles.harmonic_weights(self._concentration)
        if half is None:
            return None
        n = np.arange(1 - half.size, half.size, dtype=np.float64)
        return 2.0 * math.pi / self.period * n[:, None], np.concatenate([half[:0:-1], half])

    def _transport(self, u: np.ndarray) -> np.ndarray:
        return 2.0 * math.pi / self.period * quantiles.harmonic_quantile(self._concentration, u)


@dataclass(frozen=True, repr=False)
class SpectralMixture(Kernel):
    """Spectral mixture: ``Phi = sum_j w_j exp(-sum_a s_ja^2 x_a^2/2) cos(mu_j . x)``; omega is ``+-mu_j + s_j z``.

    Component j is taken with probability ``weights[j]``. ``means[j]`` and ``scales[j]``, one number or one for each
    axis, are the mean and the standard deviation of its frequencies, in radians per unit of position.
    """

    name: ClassVar[str] = "spectral_mixture"
    weights: tuple[float, ...] = (1.0,)
    means: tuple[float | tuple[float, ...], ...] = (0.0,)
    scales: tuple[float | tuple[float, ...], ...] = (1.0,)
    ndim: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "ndim", check_ndim(self.ndim))
        object.__setattr__(self, "weights", shares("weights", self.weights))
        for name, check in (("means", parameters.finite), ("scales", positive)):
            values = getattr(self, name)
            if not isinstance(values, list | tuple | np.ndarray) or getattr(values, "ndim", 1) == 0:
                raise TypeError(f"{name} is {show(values)}; expected a sequence with an entry for each component")
            if len(values) != len(self.weights):
                raise ValueError(f"{name} has {len(values)} entries and weights {len(self.weights)}; expected as many")
            object.__setattr__(self, name, tuple(per_axis(name, value, self.ndim, check) for value in values))

    @property
    def draws(self) -> int:
        """One for the component and the sign of its mean, and one for each axis."""
        return 1 + self.ndim

    @property
    def signed_columns(self) -> tuple[bool, ...]:
        """All: the first one's magnitude chooses the component."""
        return (True,) * self.draws

    def _components(self) -> Iterator[tuple[float, tuple[float, ...], float | tuple[float, ...]]]:
        for weight, mean, scale in zip(self.weights, self.means, self.scales, strict=True):
            yield weight, tuple(np.broadcast_to(mean, self.ndim).tolist()), scale

    def _phi(self, delta: Array, xp: ModuleType) -> Array:
        total: Array = 0.0
        for weight, mean, scale in self._components():
            near, square, t = parameters.near_and_far(delta * along_axes(scale, delta, xp), 1.0, xp)
            envelope = xp.exp(-0.5 * xp.where(near, square, t * t))
            gone = (envelope == 0.0)[..., None]
            cos = _mean_cos(mean, xp.where(gone, xp.zeros_like(delta), delta), xp)
            total = total + weight * envelope * cos
        return total

    def _falls(self, delta: Array, xp: ModuleType) -> Falls:
        parts = []
        for _, mean, scale in self._components():
            near, square, t = parameters.near_and_far(delta * along_axes(scale, delta, xp), 1.0, xp)
            lump = falls.of_gaussian(xp.where(near, square, t * t), xp)
            seen = xp.where((lump[0] == 1.0)[..., None], xp.zeros_like(delta), delta)
            phase = xp.sum(seen * vector(mean, delta, xp), axis=-1)
            parts.append(falls.independent((lump, falls.of_cosine(phase, _mean_cos(mean, seen, xp), xp))))
        return falls.mixed(self.weights, parts)

    def _density(self, omega: Array, xp: ModuleType) -> Array:
        total: Array = 0.0
        for weight, mean, scale in self._components():
            height = 0.5 * weight * (2.0 * math.pi) ** (-0.5 * self.ndim) * _inverse(volume(scale, self.ndim))
            width, centre = along_axes(scale, omega, xp), along_axes(mean, omega, xp)
            for away in ((omega + s * centre) / width for s in (-1.0, 1.0)):
                near, square, w = parameters.near_and_far(away, 1.0, xp)
                total = total + height * xp.exp(-0.5 * xp.where(near, square, w * w))
        return total

    def _transport(self, u: np.ndarray) -> np.ndarray:
        chosen = np.searchsorted(np.cumsum(self.weights)[:-1], np.abs(2.0 * u[..., 0] - 1.0), side="right")
        means, scales = (np.array([np.broadcast_to(v, self.ndim) for v in each]) for each in (self.means, self.scales))
        return _direction(u[..., :1]) * means[chosen] + scales[chosen] * quantiles.normal_quantile(u[..., 1:])


@dataclass(frozen=True, repr=False)
class Constant(Kernel):
    """Constant kernel: ``Phi = 1``, no position at all; omega is 0. There is no density."""

    name: ClassVar[str] = "constant"
    is_one: ClassVar[bool] = True
    ndim: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "ndim", check_ndim(self.ndim))

    @property
    def draws(self) -> int:
        """One, which is not used."""
        return 1

    def _phi(self, delta: Array, xp: ModuleType) -> Array:
        nothing = 0.0 * xp.where(xp.isfinite(delta), delta, xp.zeros_like(delta))  # with a derivative
        return xp.sum(nothing, axis=-1) + 1.0

    def _density(self, omega: Array, xp: ModuleType) -> Array:
        raise ValueError(f"{self!r} has no density: its frequencies are 0")

    def _atoms(self) -> Atoms | None:
        return np.zeros((1, self.ndim)), np.ones(1)

    def _transport(self, u: np.ndarray) -> np.ndarray:
        return np.zeros((*u.shape[:-1], self.ndim))

    def isotropy(self) -> np.ndarray | None:
        """As `Kernel.isotropy`."""
        return np.eye(self.ndim)


def _check_one_axis(kernel: Kernel) -> None:
    object.__setattr__(kernel, "ndim", check_ndim(kernel.ndim))
    if kernel.ndim != 1:
        raise ValueError(f"ndim is {kernel.ndim}; expected 1: a {kernel.name} law has one axis (combine with axes())")
