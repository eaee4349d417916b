"""Kernels with exact answers, as data, and where the answers come from.

The kernel problems are derived by walking the registry: `FAMILIES` says how, and `test_problems.py` fails as soon as a
registered kernel is missing from it. Below the data stand the two statistical checks that several test modules share.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import mpmath as mp
import numpy as np
from scipy import stats

from rfrope import kernels
from rfrope.kernels import Kernel

DIGITS = 40  # precision of mpmath's numbers below


# -- kernels -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Family:
    """How the problems of one registry entry are made.

    Attributes
    ----------
    stretch : str
        The parameter that is a length, or one over a length; "scales" where all of several parameters are.
    lengths : tuple of float
        Values of it: one at a time, and the first k as one for each axis.
    others : tuple of dict
        Values of the other parameters, ndim aside.
    reference : callable
        Phi from the kernel (for its parameters but the lengths) and the lag in units of `stretch`, in mpmath; the lag
        as it is if that is "scales".
    shape : {"ellipse", "disc", "sphere", "box", "band", "lattice", "lumps"}
        How the law looks once frequencies are multiplied by the lengths: spherically symmetric; that and within, or at,
        distance 1; uniform in a box; on a line and away from 0 and infinity; whole numbers; bumps off the origin.
    most_axes : int
        Up to three.
    unit : float
        A length in the problem is the parameter times this.
    """

    stretch: str
    lengths: tuple[float, ...]
    others: tuple[dict[str, Any], ...]
    reference: Callable[[Kernel, tuple[mp.mpf, ...]], mp.mpf]
    shape: str
    most_axes: int = 3
    unit: float = 1.0

    @property
    def inverse(self) -> bool:
        """Whether `stretch` is one over a length."""
        return any(units(kernels.parse(one.example)).get(self.stretch) == "frequency" for one in kernels.records())

    def make(self, name: str, ndim: int, value: Any, others: dict[str, Any]) -> Kernel:
        """Kernel with a length, or one for each axis."""
        if self.shape != "lumps":
            return kernels.kernel(name, ndim=ndim, **others, **{self.stretch: value})
        means, scales = (
            [row.tolist() if ndim > 1 else row.item() for row in np.outer(size, along[:ndim]) / value]
            for size, along in (((0.3, 1.6), (1.0, -0.7, 0.4)), ((0.9, 0.6), (1.0, 0.8, 1.2)))
        )
        return kernels.kernel(name, ndim=ndim, means=means, scales=scales, **others)


def units(law: Kernel) -> dict[str, str]:
    """Which parameters of a family are a "length" and which a "frequency", as its fields say."""
    kinds = {f.name: f.metadata["search"].kind for f in dataclasses.fields(law) if "search" in f.metadata}
    return {name: kind for name, kind in kinds.items() if kind != "shape"}


@dataclass(frozen=True)
class KernelProblem:
    """A kernel, five lags at which Phi is neither 0 nor 1, and what is known of its law.

    ``lengths`` is the length scale along each axis, so that ``lengths * omega`` has a law without parameters of scale.
    """

    family: str
    kernel: Kernel
    lengths: tuple[float, ...]
    lags: tuple[Any, ...]

    def __str__(self) -> str:
        return repr(self.kernel).replace(" ", "")

    @property
    def shape(self) -> str:
        """Shape of the law, see `Family`."""
        return FAMILIES[self.family].shape


def matern_reference(nu: float, t: mp.mpf) -> mp.mpf:
    """Return ``2^(1-nu)/Gamma(nu) t^nu K_nu(t)`` in mpmath.

    ``K_nu(t) = int_0^inf exp(-t cosh x) cosh(nu x) dx`` (DLMF 10.32.9) by the trapezoidal rule, which converges
    geometrically; `mpmath.besselk` says the same (a test compares them) but takes seconds at whole nu near 200. Both
    cosh run on by ``cosh((n + 1) a) = 2 cosh(a) cosh(n a) - cosh((n - 1) a)``, with ten digits to spare.
    """
    if t == 0:
        return mp.mpf(1)
    digits = mp.mp.dps
    with mp.workdps(digits + 10):
        nu = mp.mpf(nu)
        width = (nu * nu + t * t) ** mp.mpf("-0.25")  # width of the integrand's peak
        step, peak = min(mp.mpf(1) / 12, width / 4), mp.asinh(nu / t)
        total, least, count = mp.exp(-t) / 2, mp.mpf(10) ** -digits, 1
        cosh_x, cosh_nu_x = mp.cosh(step), mp.cosh(nu * step)
        twice, before = (2 * cosh_x, 2 * cosh_nu_x), (mp.mpf(1), mp.mpf(1))
        while True:
            term = mp.exp(-t * cosh_x) * cosh_nu_x
            total += term
            if count * step > peak and term < total * least:
                break
            here = cosh_x, cosh_nu_x
            cosh_x, cosh_nu_x = twice[0] * cosh_x - before[0], twice[1] * cosh_nu_x - before[1]
            before, count = here, count + 1
        value = 2 ** (1 - nu) / mp.gamma(nu) * t**nu * total * step
    return +value  # to the digits that were asked for


def _length(lag: tuple[mp.mpf, ...]) -> mp.mpf:
    return mp.sqrt(sum(x * x for x in lag))


def _sinc(_: Kernel, lag: tuple[mp.mpf, ...]) -> mp.mpf:
    return mp.fprod(mp.sin(x) / x if x else mp.mpf(1) for x in lag)


def _matern(kernel: Kernel, lag: tuple[mp.mpf, ...]) -> mp.mpf:
    return matern_reference(kernel.nu, mp.sqrt(2 * mp.mpf(kernel.nu)) * _length(lag))


def _log_uniform(kernel: Kernel, lag: tuple[mp.mpf, ...]) -> mp.mpf:
    """``[Ci(x) - Ci(low x)]/ln(1/low)``, the mean cosine of a log-uniform frequency on (low, 1)."""
    low, x = mp.mpf(kernel.low) / mp.mpf(kernel.high), abs(lag[0])
    return (mp.ci(x) - mp.ci(low * x)) / -mp.log(low) if x else mp.mpf(1)


def sphere_reference(order: mp.mpf, t: mp.mpf) -> mp.mpf:
    """Return ``Gamma(order + 1) (2/t)^order J_order(t)`` in mpmath."""
    return mp.hyp0f1(order + 1, -t * t / 4) if t < 50 else mp.gamma(order + 1) * (2 / t) ** order * mp.besselj(order, t)


def _rational_quadratic(kernel: Kernel, lag: tuple[mp.mpf, ...]) -> mp.mpf:
    alpha = mp.mpf(kernel.alpha)
    return (1 + _length(lag) ** 2 / (2 * alpha)) ** -alpha


def periodic_reference(scale: mp.mpf, turns: mp.mpf) -> mp.mpf:
    """Return ``exp((cos(2 pi turns) - 1)/scale^2)`` in mpmath."""
    return mp.exp((mp.cospi(2 * (turns - mp.nint(turns))) - 1) / mp.mpf(scale) ** 2)


def spectral_mixture_reference(kernel: Kernel, lag: tuple[mp.mpf, ...]) -> mp.mpf:
    """Return ``sum_j w_j exp(-sum_a s_ja^2 x_a^2/2) cos(mu_j . x)`` in mpmath."""
    total = mp.mpf(0)
    for weight, *parts in zip(kernel.weights, kernel.means, kernel.scales, strict=True):
        mean, scale = (np.broadcast_to(part, kernel.ndim).tolist() for part in parts)
        square = mp.fsum((mp.mpf(s) * x) ** 2 for s, x in zip(scale, lag, strict=True))
        total += mp.mpf(weight) * mp.exp(-square / 2) * mp.cos(mp.fdot(map(mp.mpf, mean), lag))
    return total


_SCALES, _BANDS = (6.5, 48.0, 21.0), (0.15, 0.02, 0.7)
# All are in section 3 of the mathematics page; further sources stand beside them.
FAMILIES: dict[str, Family] = {
    "gaussian": Family("scale", _SCALES, ({},), lambda k, x: mp.exp(-(_length(x) ** 2) / 2), "ellipse"),
    "cauchy": Family("scale", _SCALES, ({},), lambda k, x: 1 / (1 + _length(x) ** 2), "ellipse"),
    "sinc": Family("bandwidth", _BANDS, ({},), _sinc, "box"),
    # Rasmussen and Williams 2006, (4.14)
    "matern": Family("scale", _SCALES, ({"nu": 0.8}, {"nu": 1.5}, {"nu": 30.0}), _matern, "ellipse"),
    "exponential": Family("scale", _SCALES, ({},), lambda k, x: mp.exp(-_length(x)), "ellipse"),
    "rational_quadratic": Family("scale", _SCALES, ({"alpha": 0.4}, {"alpha": 3.0}), _rational_quadratic, "ellipse"),
    "power_exponential": Family(  # Kanter 1975
        "scale",
        _SCALES,
        ({"exponent": 0.5}, {"exponent": 2.0}, {"exponent": 1.0}, {"exponent": 1.6}),
        lambda k, x: mp.exp(-(_length(x) ** mp.mpf(k.exponent))),
        "ellipse",
    ),
    "periodic": Family(  # MacKay 1998
        "period",
        (13.0, 96.0),
        ({"scale": 1.5}, {"scale": 0.6}),
        lambda k, x: periodic_reference(k.scale, x[0]),
        "lattice",
        most_axes=1,
        unit=1.0 / (2.0 * math.pi),
    ),
    # Wilson and Adams 2013, (12)
    "spectral_mixture": Family("scales", _SCALES, ({"weights": (0.25, 0.75)},), spectral_mixture_reference, "lumps"),
    # DLMF 10.9.4, of both
    "ball": Family("bandwidth", _BANDS, ({},), lambda k, x: sphere_reference(mp.mpf(k.ndim) / 2, _length(x)), "disc"),
    "shell": Family(
        "radius", _BANDS, ({},), lambda k, x: sphere_reference(mp.mpf(k.ndim) / 2 - 1, _length(x)), "sphere"
    ),
    "log_uniform": Family("high", (0.15, 0.02), ({"low": 0.01},), _log_uniform, "band", most_axes=1),  # DLMF 6.2.11
}
WITHOUT_LENGTH = ("constant",)  # nothing to say about them: Phi is 1
MANY_AXES = [name for name, family in FAMILIES.items() if family.most_axes > 1 and family.stretch != "scales"]

_UNIT_LAGS: dict[int, tuple[tuple[float, ...], ...]] = {
    1: ((0.25,), (0.6,), (-1.0,), (1.5,), (2.2,)),
    2: ((0.5, 0.0), (0.0, 0.9), (0.7, 0.7), (-0.8, 0.6), (1.5, -1.0)),
    3: ((0.5, 0.0, 0.0), (0.0, 0.9, 0.0), (0.0, 0.0, -1.2), (0.6, 0.6, 0.6), (-0.9, 0.5, 1.1)),
}


def kernel_problems() -> Iterator[KernelProblem]:
    """Every registered kernel that `FAMILIES` knows, with 1, 2 and 3 axes, two scales each (one per axis if k > 1)."""
    for record in kernels.records():
        family = FAMILIES.get(record.name)
        if family is None:  # test_problems.py fails then
            continue
        for ndim, others in itertools.product(range(1, 1 + family.most_axes), family.others):
            for value in family.lengths[:2] if ndim == 1 else (family.lengths[0], family.lengths[:ndim]):
                made = family.make(record.name, ndim, value, others)
                each = np.broadcast_to(value, ndim) * family.unit
                lengths = tuple((1.0 / each if family.inverse else each).tolist())
                lags = [tuple(x * s for x, s in zip(lag, lengths, strict=True)) for lag in _UNIT_LAGS[ndim]]
                yield KernelProblem(record.name, made, lengths, tuple(x[0] if ndim == 1 else x for x in lags))


KERNELS = tuple(kernel_problems())


def phi_reference(problem: KernelProblem, lag: Any) -> mp.mpf:
    """Phi at a lag to `DIGITS` digits, from the exact values of the floats in the problem."""
    with mp.workdps(DIGITS):
        family = FAMILIES[problem.family]
        components = np.atleast_1d(lag).tolist()
        if family.stretch == "scales":
            return family.reference(problem.kernel, tuple(map(mp.mpf, components)))
        values = np.broadcast_to(getattr(problem.kernel, family.stretch), problem.kernel.ndim).tolist()
        by = mp.fmul if family.inverse else mp.fdiv
        return family.reference(problem.kernel, tuple(by(x, v) for x, v in zip(components, values, strict=True)))


# -- statistical checks ------------------------------------------------------------------------------------------------

ALPHA = 1e-6  # the chance that one statistic, of a law that is right, fails
Z_BOUND = float(stats.norm.isf(ALPHA / 2.0))
N_DRAWS = 2**18


def ks_bound(n: int) -> float:
    """Bound of the Kolmogorov distance between n draws and their law (Dvoretzky, Kiefer, Wolfowitz, Massart)."""
    return math.sqrt(math.log(2.0 / ALPHA) / (2.0 * n))


def ks_distance(draws: np.ndarray, points: np.ndarray, cdf: np.ndarray) -> float:
    """Largest distance of the draws' distribution from a CDF that is known at some points."""
    counted = np.searchsorted(np.sort(draws), points, side="right") / draws.size
    return float(np.max(np.abs(counted - cdf)))


def moment_z(kernel: Kernel, lags: Any, omega: np.ndarray) -> dict[str, np.ndarray]:
    """z-scores of the means of cos u, cos 2u and sin u at each lag, with their exact standard errors.

    The variances are ``(1 + Phi_2)/2 - Phi^2``, ``(1 + Phi_4)/2 - Phi_2^2`` and ``(1 - Phi_2)/2``, over n draws.
    """
    lags = np.asarray(lags, dtype=float)
    phi, phi2, phi4 = kernel.phi(lags), kernel.phi2(lags), kernel.phi(4.0 * lags)
    phases = np.multiply.outer(lags, omega) if kernel.ndim == 1 else lags @ omega.T
    expected = {"cos": phi, "cos 2u": phi2, "sin": 0.0}
    variance = {"cos": (1 + phi2) / 2 - phi**2, "cos 2u": (1 + phi4) / 2 - phi2**2, "sin": (1 - phi2) / 2}
    least = 1e-26 * omega.shape[0]  # means are rounded, which shows where there are two frequencies only
    cos, sin = np.cos(phases), np.sin(phases)
    means = {"cos": cos.mean(axis=-1), "cos 2u": (1 - 2 * sin * sin).mean(axis=-1), "sin": sin.mean(axis=-1)}
    return {
        name: (means[name] - expected[name]) / np.sqrt(np.maximum(variance[name], least) / omega.shape[0])
        for name in means
    }


def worst(scores: dict[str, np.ndarray]) -> float:
    """Largest abs(z) of `moment_z`."""
    return max(float(np.max(np.abs(z))) for z in scores.values())


def panels(low: float, high: float, count: int, nodes: int = 16) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Edges (count + 1), and Gauss-Legendre nodes and weights for each panel (count, nodes)."""
    node, weight = np.polynomial.legendre.leggauss(nodes)
    edges = np.linspace(low, high, count + 1)
    half = 0.5 * np.diff(edges)[:, None]
    return edges, 0.5 * (edges[:-1] + edges[1:])[:, None] + half * node, half * weight


def log_radii(kernel: Kernel, lengths: Any) -> tuple[float, float]:
    """Logarithms of the radii ``abs(lengths * omega)`` between which the law is, or all but nothing of it."""
    if hasattr(kernel, "high"):
        return math.log(kernel.low * lengths[0]), math.log(kernel.high * lengths[0])
    return -50.0, 0.0 if kernel.name == "ball" else 100.0


def radius_cdf(kernel: Kernel, lengths: tuple[float, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Radii and the probability that ``abs(lengths * omega)`` is below them, integrated from ``kernel.density``.

    The density is averaged over a few opposite directions and integrated in the logarithm of the radius.
    """
    k, lengths = kernel.ndim, np.asarray(lengths)
    both = np.concatenate([directions(k), -directions(k)])
    edges, log_r, weight = panels(*log_radii(kernel, lengths), 1500)
    omega = np.exp(log_r)[..., None, None] * both / lengths
    density = kernel.density(omega[..., 0] if k == 1 else omega).mean(axis=-1) / np.prod(lengths)
    sphere = 2.0 * math.pi ** (0.5 * k) / math.gamma(0.5 * k)
    mass = np.sum(weight * sphere * density * np.exp(k * log_r), axis=-1)
    return np.exp(edges[1:]), np.cumsum(mass)


def box_integral(kernel: Kernel, lengths: tuple[float, ...], end: float) -> float:
    """Integral of the density over the box where ``abs(lengths * omega) <= end``."""
    _, node, weight = panels(-end, end, 8)
    nodes, weights = (np.stack(np.meshgrid(*[one.ravel()] * kernel.ndim), -1) for one in (node, weight))
    density = kernel.density(kernel.restore_shape(nodes.reshape(-1, kernel.ndim) / np.asarray(lengths)))
    return float(np.sum(density * np.prod(weights.reshape(-1, kernel.ndim), -1)) / np.prod(lengths))


def density_z(kernel: Kernel, lengths: tuple[float, ...], omega: np.ndarray) -> list[float]:
    """z-scores of volumes of two cubes of ``lengths * omega``: the mean of one over the density, of draws in a cube."""
    low, high = (0.55, 0.95) if kernel.ndim == 1 else (0.1, 0.55)  # in all supports
    scaled, found = omega.reshape(-1, kernel.ndim) * np.asarray(lengths), []
    for side in (scaled, -scaled):
        inside = np.all((low < side) & (side < high), axis=-1)
        values = np.where(inside, np.prod(lengths), 0.0)
        values[inside] /= kernel.density(omega[inside])
        found.append((np.mean(values) - (high - low) ** kernel.ndim) * math.sqrt(values.size) / np.std(values))
    return found


@functools.cache
def has_density(kernel: Kernel) -> bool:
    """Whether the kernel knows a density."""
    try:
        kernel.density(np.ones(kernel.ndim) if kernel.ndim > 1 else 1.0)
    except ValueError:
        return False
    return True


def directions(ndim: int) -> np.ndarray:
    """A few unit vectors ``(n, ndim)``, the last off the axes."""
    return np.concatenate([np.eye(ndim), np.ones((1, ndim)) / math.sqrt(ndim)])


@functools.cache
def stable_cdf(exponent: float) -> tuple[np.ndarray, np.ndarray]:
    """Points and the distribution function with characteristic function ``exp(-abs(t)^exponent)``, by SciPy."""
    points = np.concatenate([-np.geomspace(200.0, 0.02, 25), np.geomspace(0.02, 200.0, 25)])
    return points, stats.levy_stable.cdf(points, exponent, 0.0)
