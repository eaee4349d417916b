"""Kernel families given by their spectrum: bands, balls, spheres, lines and Gaussian components.

``bandwidth``, ``radius``, ``low``, ``high`` and a spectral mixture's ``means`` and ``scales`` are frequencies in
radians per unit of position; ``period`` is a length. Below, ``w`` is the frequency over the bandwidth or radius.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from types import ModuleType
from typing import ClassVar

import numpy as np

from rfrope._core import array, quantiles, special, turns
from rfrope._core.angles import Angles
from rfrope._core.arguments import LARGEST, listed
from rfrope._core.array import Array
from rfrope._core.special import log_uniform_mean_cos
from rfrope.kernels import one_minus_cos, parameters
from rfrope.kernels.base import Kernel, Law
from rfrope.kernels.families import Family, Isotropic, Scaled
from rfrope.kernels.one_minus_cos import CosMoments
from rfrope.kernels.parameters import Lengths, broadcast, frequency, length, per_axis, positive, radial, shape, square
from rfrope.kernels.registry import family

_SINC = [(-1.0) ** n / math.factorial(2 * n + 1) for n in range(one_minus_cos.TERMS)]  # sin(x)/x by powers of x^2
_KNOWN = 2.0**60  # phase up to which turns in twice the working precision are exact to 1e-15


@family("sinc", "prod_j sin(W_j x_j)/(W_j x_j)", "uniform on (-W_j, W_j) on each axis", "sinc(bandwidth=0.1)")
class Sinc(Scaled):
    """Sinc kernel: ``Phi = prod_j sin(W_j x_j)/(W_j x_j)``, no pi as in numpy.sinc; omega_j uniform on (-W_j, W_j)."""

    unit: ClassVar[str] = "bandwidth"
    bandwidth: Lengths = frequency(1.0)
    ndim: int = 1

    def _phi(self, lags: Array, xp: ModuleType) -> Array:
        quotients = special.sinc(self._scale_lags(lags, xp), xp)
        return math.prod(quotients[..., axis] for axis in range(self.ndim))  # a product that has second derivatives

    def _one_minus_cos_moments(self, lags: Array, xp: ModuleType) -> CosMoments:
        angle = self._scale_lags(lags, xp)
        far = one_minus_cos.subtract_phi(special.sinc(angle, xp), special.sinc(2.0 * angle, xp))
        small = array.clip(angle, -1.0, 1.0, xp)
        f, g = one_minus_cos.series(_SINC, small * small, far, xp)
        return one_minus_cos.add_independent((f[..., i], g[..., i]) for i in range(self.ndim))

    def _unit_density(self, w: Array, xp: ModuleType) -> Array:
        return _flat(xp.all(xp.abs(w) <= 1.0, axis=-1), 0.5**self.ndim, w, xp)

    def _unit_transport(self, u: np.ndarray) -> np.ndarray:
        return 2.0 * u - 1.0

    def _law(self) -> Law | None:
        return _uniform_law(self.bandwidth, self.ndim)


def _uniform_law(bandwidth: Lengths, ndim: int) -> Law | None:
    return Law(("uniform", ()), tuple(np.broadcast_to(bandwidth, ndim).tolist())).scaled(1.0)


def _flat(inside: Array, height: float, vectors: Array, xp: ModuleType) -> Array:
    """Density of a height inside, 0 outside."""
    first = vectors[..., 0]
    return xp.where(inside, xp.full_like(first, height), xp.zeros_like(first))


@family(
    "log_uniform",
    "[Ci(high x) - Ci(low x)]/ln(high/low)",
    "a random sign times low (high/low)^U, U uniform on (0, 1)",
    "log_uniform(low=0.05, high=0.5)",
)
class LogUniform(Family):
    """Log-uniform kernel: ``Phi = [Ci(high x) - Ci(low x)]/ln(high/low)``; omega is a random sign times a frequency.

    The frequency is log-uniform on (low, high), in radians per unit of position: the continuum of standard RoPE, with
    low = 1 / base and high = 1. One axis only.
    """

    most_axes: ClassVar[int] = 1
    low: float = frequency(1e-4)
    high: float = frequency(1.0)
    ndim: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.low < self.high:
            raise ValueError(f"low is {self.low} and high {self.high}; expected low < high")

    @property
    def _log_ratio(self) -> float:
        """``ln(high/low)``, exact to rounding for close and for distant ends."""
        excess = (self.high - self.low) / self.low
        return math.log1p(excess) if excess < 1e300 else math.log(self.high) - math.log(self.low)

    def _phi(self, lags: Array, xp: ModuleType) -> Array:
        return array.map_blocks(self._mean_cos, lags[..., 0], xp)

    def _mean_cos(self, x: Array, xp: ModuleType) -> Array:
        x = xp.where(x < 0.0, -x, x)  # its slope at 0 is not 0, so that second derivatives are right there
        return log_uniform_mean_cos(self.low * x, self.high * x, self._log_ratio, xp)

    def _one_minus_cos_moments(self, lags: Array, xp: ModuleType) -> CosMoments:
        angle = array.clip(self.high * lags[..., 0], -1.0, 1.0, xp)
        ratio = self._log_ratio
        moments = [1.0, *(-math.expm1(-2 * n * ratio) / (2 * n * ratio) for n in range(1, one_minus_cos.TERMS))]
        series = [(-1.0) ** n / math.factorial(2 * n) * moment for n, moment in enumerate(moments)]
        return one_minus_cos.series(series, angle * angle, super()._one_minus_cos_moments(lags, xp), xp)

    def _density(self, omega: Array, xp: ModuleType) -> Array:
        w = xp.abs(omega[..., 0])
        inside = (w >= self.low) & (w <= self.high)
        safe = xp.where(inside, w, xp.ones_like(w))
        return xp.where(inside, 0.5 / self._log_ratio / safe, xp.zeros_like(w))

    def _transport(self, u: np.ndarray) -> np.ndarray:
        return quantiles.log_uniform_quantile(self.low, self.high, self._log_ratio, u)

    def _law(self) -> Law | None:
        return Law(("log_uniform", (self._log_ratio,)), (self.low,)).scaled(1.0) if self.high < 1e100 else None


class _Spherical(Isotropic):
    """A law whose Phi is the mean cosine over a sphere: of the unit ball in k axes it is that of a sphere in k + 2."""

    more_axes: ClassVar[int] = 0  # of the sphere, beyond k

    @property
    def _order(self) -> float:
        return 0.5 * (self.ndim + self.more_axes) - 1.0

    def _phi(self, lags: Array, xp: ModuleType) -> Array:
        order, series = self._order, special.sphere_series(self._order)
        near, far = lambda square, _: special.polynomial(series, square), partial(special.sphere_mean_cos, order)
        return radial(self._scale_lags(lags, xp), near, far, 1.0, xp)

    def _one_minus_cos_moments(self, lags: Array, xp: ModuleType) -> CosMoments:
        series = special.sphere_series(self._order)
        return one_minus_cos.series(series, self._square(lags, xp), Kernel._one_minus_cos_moments(self, lags, xp), xp)


@family(
    "ball", "Gamma(k/2+1) (2/t)^(k/2) J_(k/2)(t), t = W r", "uniform in the ball of radius W", "ball(bandwidth=0.1)"
)
class Ball(_Spherical):
    """Ball kernel: ``Phi = Gamma(k/2+1) (2/t)^(k/2) J_(k/2)(t)``, t = W r; omega is uniform in the ball of radius W.

    With one bandwidth for each axis, an ellipsoid.
    """

    unit: ClassVar[str] = "bandwidth"
    more_axes: ClassVar[int] = 2
    bandwidth: Lengths = frequency(1.0)
    ndim: int = 1

    @property
    def n_columns(self) -> int:
        """One in one axis, else one for the radius plus one for each axis."""
        return 1 if self.ndim == 1 else 1 + self.ndim

    def _unit_density(self, w: Array, xp: ModuleType) -> Array:
        height = math.gamma(0.5 * self.ndim + 1.0) * math.pi ** (-0.5 * self.ndim)
        return _flat(parameters.radius(w, xp) <= 1.0, height, w, xp)

    def _unit_transport(self, u: np.ndarray) -> np.ndarray:
        if self.ndim == 1:
            return 2.0 * u - 1.0
        return u[..., :1] ** (1.0 / self.ndim) * _direction(u[..., 1:])

    def _law(self) -> Law | None:
        return _uniform_law(self.bandwidth, 1) if self.ndim == 1 else None


@family(
    "shell",
    "Gamma(k/2) (2/t)^(k/2-1) J_(k/2-1)(t), t = W r; cos t for k = 1",
    "uniform on the sphere of radius W; -W or W for k = 1",
    "shell(radius=0.1)",
)
class Shell(_Spherical):
    """Shell kernel: ``Phi = Gamma(k/2) (2/t)^(k/2-1) J_(k/2-1)(t)``, t = W r; omega is uniform on a sphere, radius W.

    In one axis the frequencies are -W and W, and ``Phi = cos t``. With one radius for each axis, the image of the unit
    sphere stretched along the axes. There is no density.
    """

    unit: ClassVar[str] = "radius"
    radius: Lengths = frequency(1.0, single=True)
    ndim: int = 1

    def _phi(self, lags: Array, xp: ModuleType) -> Array:
        if self.ndim > 1:
            return super()._phi(lags, xp)
        return _wave((self.radius,) if isinstance(self.radius, float) else self.radius, lags, xp)

    def _one_minus_cos_moments(self, lags: Array, xp: ModuleType) -> CosMoments:
        if self.ndim == 1:
            return one_minus_cos.wave(self._scale_lags(lags, xp)[..., 0], self._phi(lags, xp), xp)
        return super()._one_minus_cos_moments(lags, xp)

    def _unit_transport(self, u: np.ndarray) -> np.ndarray:
        return _direction(u)


def _direction(u: np.ndarray) -> np.ndarray:
    """Uniform directions from a uniform for each axis."""
    if u.shape[-1] == 1:
        return np.where(u > 0.5, 1.0, -1.0)
    z = quantiles.normal_quantile(u)
    z = np.where(z == 0.0, -1e-16, z)  # the middle of the cube has no direction; this is less than all others
    return z / np.sqrt(np.sum(z * z, axis=-1, keepdims=True))


def _wave(mean: tuple[float, ...] | Array, lags: Array, xp: ModuleType) -> Array:
    """Return ``cos(lags . mean)`` to 1e-15; NaN where phases are too large for that."""
    omega: Array = broadcast(mean, lags, xp)
    known = xp.all((xp.abs(lags) < LARGEST) & (xp.abs(lags * omega) < _KNOWN), axis=-1)
    positions = xp.where(known[..., None], lags, xp.zeros_like(lags))[..., None, :]
    # compiled loops only for gradients: a call is too small for them
    cos_sin = turns.cos_sin if array.needs_gradient(lags, omega) else turns.cos_sin.generic
    cos, _ = cos_sin(Angles(positions, omega[..., None, :], None, xp))
    return xp.where(known, cos[..., 0, 0], xp.full_like(lags[..., 0], math.nan))


@family(
    "periodic",
    "exp((cos(2 pi x/period) - 1)/s^2)",
    "2 pi n/period, n whole with probability exp(-1/s^2) I_n(1/s^2)",
    "periodic(period=96.0, scale=0.7)",
    aliases=("exp_sine_squared",),
)
class Periodic(Family):
    """Periodic kernel: ``Phi = exp((cos(2 pi x/period) - 1)/scale^2)``; omega is ``2 pi n/period``, n a whole number.

    n has probability ``exp(-1/scale^2) I_n(1/scale^2)``. One axis only; there is no density.
    """

    most_axes: ClassVar[int] = 1
    unit: ClassVar[str] = "period"
    is_discrete = True
    period: float = length(1.0, minimum=2.0, single=True)  # whole lags do not see shorter ones
    scale: float = shape(1.0, minimum=0.05, maximum=20.0)
    ndim: int = 1

    @property
    def _concentration(self) -> float:
        return min(1.0 / self.scale / self.scale, 1e300)

    def _phi(self, lags: Array, xp: ModuleType) -> Array:
        sine = self._sine(lags, xp) / self.scale
        return xp.exp(-2.0 * sine * sine)

    def _one_minus_cos_moments(self, lags: Array, xp: ModuleType) -> CosMoments:
        sine = self._sine(lags, xp)
        exponent, square = 2.0 * (sine / self.scale) ** 2, sine * sine
        twice = 4.0 * exponent * (1.0 - square)
        return one_minus_cos.exponential(exponent, twice, 2.0 * exponent * square, square < 0.5, xp)

    def _sine(self, lags: Array, xp: ModuleType) -> Array:
        """``sin(pi x / period)`` for x taken into half a period."""
        x = lags[..., 0]
        x = xp.where(x < 0.0, -x, x)  # its slope at 0 is not 0, so that second derivatives are right there
        x = xp.where(xp.isinf(x), xp.full_like(x, math.nan), x)
        rest = xp.remainder(x, self.period)
        rest = xp.where(rest > 0.5 * self.period, self.period - rest, rest)  # exact, as the remainder is
        return xp.sin(math.pi * (rest / self.period))

    def _transport(self, u: np.ndarray) -> np.ndarray:
        return 2.0 * math.pi / self.period * quantiles.harmonic_quantile(self._concentration, u)


@family(
    "spectral_mixture",
    "sum_j w_j exp(-sum_a s_ja^2 x_a^2/2) cos(mu_j . x)",
    "component j with probability w_j, then a random sign times mu_j, plus s_j z",
    "spectral_mixture(weights=(0.75, 0.25), means=(0.01, 0.2), scales=(0.04, 0.02))",
)
class SpectralMixture(Family):
    """Spectral mixture: ``Phi = sum_j w_j exp(-sum_a s_ja^2 x_a^2/2) cos(mu_j . x)``; omega is ``+-mu_j + s_j z``.

    Component j has probability ``weights[j]``. ``means[j]`` and ``scales[j]``, one for all axes or one for each, are
    the mean and standard deviation of its frequencies, in radians per unit of position.
    """

    weights: tuple[float, ...] = (1.0,)
    means: tuple[Lengths, ...] = (0.0,)
    scales: tuple[Lengths, ...] = (1.0,)
    ndim: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "weights", parameters.shares("weights", self.weights))
        for name, check in (("means", parameters.finite), ("scales", positive)):
            values = listed(name, getattr(self, name), "a sequence with an entry for each component")
            if len(values) != len(self.weights):
                raise ValueError(f"{name} has {len(values)} entries and weights {len(self.weights)}; expected as many")
            object.__setattr__(self, name, tuple(per_axis(name, value, self.ndim, check) for value in values))

    @property
    def n_columns(self) -> int:
        """One for the component and the sign of its mean, and one for each axis."""
        return 1 + self.ndim

    @property
    def signed_columns(self) -> tuple[bool, ...]:
        """All: the first one's magnitude chooses the component."""
        return (True,) * self.n_columns

    def _components(self) -> Iterator[tuple[float, tuple[float, ...], Lengths]]:
        for weight, mean, scale in zip(self.weights, self.means, self.scales, strict=True):
            yield weight, tuple(np.broadcast_to(mean, self.ndim).tolist()), scale

    def _phi(self, lags: Array, xp: ModuleType) -> Array:
        total: Array = 0.0
        for weight, mean, scale in self._components():
            envelope = xp.exp(-0.5 * square(lags * broadcast(scale, lags, xp), xp))
            seen = xp.where((envelope == 0.0)[..., None], xp.zeros_like(lags), lags)
            total = total + weight * envelope * _wave(mean, seen, xp)
        return total

    def _one_minus_cos_moments(self, lags: Array, xp: ModuleType) -> CosMoments:
        parts = []
        for _, mean, scale in self._components():
            lump = one_minus_cos.gaussian(square(lags * broadcast(scale, lags, xp), xp), xp)
            seen = xp.where((lump[0] == 1.0)[..., None], xp.zeros_like(lags), lags)
            phase = xp.sum(seen * parameters.make_vector(mean, lags, xp), axis=-1)
            parts.append(one_minus_cos.add_independent((lump, one_minus_cos.wave(phase, _wave(mean, seen, xp), xp))))
        return one_minus_cos.mix(self.weights, parts)

    def _density(self, omega: Array, xp: ModuleType) -> Array:
        total: Array = 0.0
        for weight, mean, scale in self._components():
            size = parameters.volume(scale, self.ndim)
            height = 0.5 * weight * (2.0 * math.pi) ** (-0.5 * self.ndim) * (1.0 / size if size else math.inf)
            width, centre = broadcast(scale, omega, xp), broadcast(mean, omega, xp)
            for sign in (-1.0, 1.0):
                total = total + height * xp.exp(-0.5 * square((omega + sign * centre) / width, xp))
        return total

    def _transport(self, u: np.ndarray) -> np.ndarray:
        chosen = np.searchsorted(np.cumsum(self.weights)[:-1], np.abs(2.0 * u[..., 0] - 1.0), side="right")
        means, scales = (np.array([np.broadcast_to(v, self.ndim) for v in each]) for each in (self.means, self.scales))
        return _direction(u[..., :1]) * means[chosen] + scales[chosen] * quantiles.normal_quantile(u[..., 1:])


@family("constant", "1", "0", "constant()")
class Constant(Family):
    """Constant kernel: ``Phi = 1``, independent of position; omega is 0. There is no density."""

    is_one: ClassVar[bool] = True
    ndim: int = 1

    @property
    def n_columns(self) -> int:
        """One, which is not used."""
        return 1

    def _phi(self, lags: Array, xp: ModuleType) -> Array:
        nothing = 0.0 * xp.where(xp.isfinite(lags), lags, xp.zeros_like(lags))  # with a derivative
        return xp.sum(nothing, axis=-1) + 1.0

    def _transport(self, u: np.ndarray) -> np.ndarray:
        return np.zeros((*u.shape[:-1], self.ndim))
