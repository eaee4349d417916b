"""Kernels stored as a table of their spectral law, in one, two or three axes, and their certificates."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from functools import cached_property
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
from numpy.polynomial import legendre

from rfrope._core import array, quantiles
from rfrope._core.arguments import MOST, whole
from rfrope._core.array import Array
from rfrope._core.results import Result
from rfrope.bochner.piecewise import Pieces, abel, build
from rfrope.kernels import Kernel
from rfrope.kernels.parameters import radius

_FURTHEST = 1e150  # lags beyond it are as good as infinite
FLOOR = 1e-12  # part of the mass by which a panel may be wrong
_BATCH = 2**15  # numbers inverted at a time
_MOST_STEPS = 120  # steps of the inversion; bisection alone needs half as many


@dataclass(frozen=True)
class Measure:
    """Radial laws in k axes, stored as ``q(rho)``: the density p of the length rho of omega, over ``rho^moment``."""

    ndim: int  # k
    surface: float  # surface of the unit sphere
    panels: int  # how many a spectrum may have; the Abel transform takes time quadratic in them
    # power of the length between q and p, and of the lag between phi and what is transformed: 0 for one axis, else 1
    moment: int
    rise: int  # power of the length in the q of a constant density

    def ground(self, w: np.ndarray) -> np.ndarray:
        """Return the q of the constant density 1."""
        return np.asarray(self.surface * w**self.rise)

    def radial(self, pieces: Pieces) -> Pieces:
        """Return the density p of the length of omega, from q; or the function to transform, from phi."""
        return pieces.times_argument() if self.moment else pieces

    def marginal(self, q: Pieces) -> tuple[Pieces, float]:
        """Return the density of the magnitude of one component of omega, whose mean cosine is Phi in any k.

        The second result is the mass that errors of its panels may amount to.

        Raises
        ------
        UndecidedError
            If it is too rough.
        """
        if self.ndim == 1:
            return q, 0.0
        if self.ndim == 3:
            return q.integral_above(), 0.0
        law, budget = q.times_argument(), 4 * self.panels + q.halves.size
        floor = FLOOR * float(np.sum(np.abs(law.masses)))
        found = build(
            lambda w: 2.0 / math.pi * abel(law, w),
            law.edges,
            lambda _, half: floor / half,
            tolerance=1e-13,
            budget=budget,
            what="the density of one component of omega",
        )
        return found, floor * found.halves.size


MEASURES = {
    1: Measure(1, 2.0, 3000, 0, 0),
    2: Measure(2, 2.0 * math.pi, 1500, 1, 0),
    3: Measure(3, 4.0 * math.pi, 3000, 1, 1),
}


def read_measure(ndim: Any) -> Measure:
    """Return the measure for a number of axes."""
    ndim = whole("ndim", ndim, 1, MOST)
    if ndim not in MEASURES:
        raise ValueError(f"ndim is {ndim}; expected 1, 2 or 3: transforms in more axes are not provided")
    return MEASURES[ndim]


# -- the kernel --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Certificate(Result):
    """Accuracy with which a tabulated law realises a function or data, at stated lags.

    The kernel is positive definite by construction, as its law is a nonnegative table. So ``sup_error`` bounds the
    distance of the given function from a positive definite one at the compared lags. No number of values determines a
    function between them; ``bound`` holds there as well for functions without further mass or detail.

    Attributes
    ----------
    sup_error : float
        Largest difference between the kernel's Phi and the given one at the compared lags. For `from_density` an
        estimate of the integral of the density's error at the sampled frequencies.
    lag : float
        Its lag.
    reach : float
        Largest compared lag; infinite for `from_density`, which compares none.
    n_lags : int
        Number of compared lags.
    mass : float
        Mass of the law as computed, before normalisation: atom, computed part, and fitted tail.
    negative_mass : float
        Removed by `nearest`; elsewhere within the tolerance.
    atom : float
        Probability of frequency 0, the limit of Phi at large lags.
    tail_start, tail_exponent, tail_mass : float
        Beyond ``tail_start`` (radians per unit of position) the density of the length of omega is a power law.
    bias : str
        Known differences from the truth, for estimates from data.
    standard_errors : tuple of float
        Standard errors of the autocorrelations at lags 1, 2, ..., for estimates from data.
    whole_lags : int
        All whole lags 1, 2, ..., ``whole_lags`` were compared.
    unaccounted : float
        Spectral mass in unknown places: the difference of the mass found from 1, and possible errors of the
        computation. Infinite for a density that was normalised, whose true total is unknown.
    tolerance : float
        Negative mass that counts as rounding: as requested, or the errors of the given function if larger.
    n_frequencies : int
        For `from_density`, number of frequencies at which the density was compared with the table; features between two
        of them are not seen.

    See Also
    --------
    bochner.from_function

    Examples
    --------
    >>> import numpy as np, rfrope
    >>> law = rfrope.bochner.from_function(lambda x: np.maximum(1.0 - np.abs(x) / 48.0, 0.0))
    >>> law.certificate.sup_error < 1e-4, law.certificate.bound < 1e-3
    (True, True)
    """

    sup_error: float
    lag: float
    reach: float
    n_lags: int
    mass: float
    negative_mass: float = 0.0
    atom: float = 0.0
    tail_start: float = math.inf
    tail_exponent: float = math.inf
    tail_mass: float = 0.0
    bias: str = ""
    standard_errors: tuple[float, ...] = ()
    whole_lags: int = 0
    unaccounted: float = 0.0
    tolerance: float = 0.0
    n_frequencies: int = 0

    @property
    def bound(self) -> float:
        """Bound on the error of Phi, including unaccounted mass: ``sup_error + 2 unaccounted``.

        Mass m missing in the table changes Phi by m, and again when the rest is divided by 1 - m. Infinite if
        ``unaccounted`` is.
        """
        return self.sup_error + 2.0 * self.unaccounted

    def __str__(self) -> str:
        if self.n_frequencies:
            compared = f"density compared at {self.n_frequencies} frequencies"
            seen = f"{compared}: differences integrate to {self.sup_error:.2g}"
        else:
            whole = f", including all whole lags up to {self.whole_lags}" if self.whole_lags else ""
            seen = f"Phi compared at {self.n_lags} lags up to {self.reach:.6g}{whole}: within {self.sup_error:.2g}"
        if math.isinf(self.unaccounted):
            return f"{seen}; missed mass: unknown, as no total was given; bound: unknown"
        bias = f"; bias: {self.bias}" if self.bias else ""
        return f"{seen}; unaccounted mass {self.unaccounted:.2g}; bound {self.bound:.2g}{bias}"


@dataclass(frozen=True, repr=False)
class Tabulated(Kernel):
    """A spherically symmetric law of frequencies, stored as a table; made by the functions of this package.

    Phi and the density are evaluated by NumPy on the host for every library.
    """

    name: ClassVar[str] = "tabulated"
    law: Pieces  # the density of the length rho of omega for ndim = 1, and that over rho for more
    component: Pieces  # the density of the magnitude of one component of omega
    ndim: int
    atom: float  # probability of frequency 0, beside the density
    origin: str  # the function that made it
    certificate: Certificate

    @property
    def n_columns(self) -> int:
        """One in one axis, else one for the length plus one for each axis of the direction."""
        return 1 if self.ndim == 1 else 1 + self.ndim

    def __repr__(self) -> str:
        axes = "" if self.ndim == 1 else f"ndim={self.ndim}, "
        median = float(self._length(np.array([0.5]))[0])
        error = self.certificate.sup_error
        return f"{self.origin}({axes}median_frequency={median:.4g}, sup_error={error:.1e})"

    def __getstate__(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}  # without what is cached

    def _phi(self, lags: Array, xp: ModuleType) -> Array:
        return array.map_on_host(self._mean_cosine, radius(lags, xp), xp, "lags")

    def _density(self, omega: Array, xp: ModuleType) -> Array:
        if self.atom > 0.0:
            raise ValueError(f"{self!r} has no density: it has an atom of {self.atom:.4g} at frequency 0")
        measure, first = MEASURES[self.ndim], self.law.edges[:2]
        nearest = first[0] + 2.0**-26 * (first[1] - first[0]) if measure.rise and first[0] == 0.0 else 0.0

        def evaluate(w: np.ndarray) -> np.ndarray:
            w = np.maximum(w, nearest)  # below it q / w is rounding
            return np.maximum(self.law(w) / measure.ground(w), 0.0)

        return array.map_on_host(evaluate, radius(omega, xp), xp, "omega")

    def _mean_cosine(self, r: np.ndarray) -> np.ndarray:
        value = self.atom + (1.0 - self.atom) * self.component.fourier(np.minimum(r, _FURTHEST))
        value = np.where(r == np.inf, self.atom, np.clip(value, -1.0, 1.0))
        return np.where(r == 0.0, 1.0, value)

    def _transport(self, u: np.ndarray) -> np.ndarray:
        if self.ndim == 1:
            return quantiles.symmetric_quantile(u, lambda v: -self._length(2.0 * v))
        z = quantiles.normal_quantile(u[..., 1:])
        norm = np.sqrt(np.sum(z * z, axis=-1, keepdims=True))
        first = (np.arange(self.ndim) == 0).astype(float)  # the direction of a point in the middle of the cube
        direction = np.where(norm > 0.0, z, first) / np.where(norm > 0.0, norm, 1.0)
        return self._length(u[..., :1]) * direction

    def _length(self, upper: np.ndarray) -> np.ndarray:
        """Length that omega exceeds with probability `upper`."""
        share = upper / (1.0 - self.atom)
        return np.where(share < 1.0, self._inverse(np.minimum(share, 1.0)), 0.0)

    @cached_property
    def _inverse(self) -> Inverse:
        return Inverse(MEASURES[self.ndim].radial(self.law))


class Inverse:
    """Inverse distribution function of a nonnegative density (a `Pieces` of mass 1) on the half-line."""

    def __init__(self, density: Pieces) -> None:
        masses = np.maximum(density.masses, 0.0)
        self.density = density
        self._below = np.append(0.0, np.cumsum(masses))
        self._above = np.append(np.cumsum(masses[::-1])[::-1], 0.0)
        self._integrals = legendre.legint(density.series, axis=1, lbnd=-1)

    def __call__(self, upper: np.ndarray) -> np.ndarray:
        """Points above which the mass is `upper`, in (0, 1); accurate in both tails."""
        flat = np.ravel(upper)
        parts = [self._solve(flat[i : i + _BATCH]) for i in range(0, flat.size, _BATCH)]
        return np.concatenate(parts or [flat]).reshape(np.shape(upper))

    def _solve(self, upper: np.ndarray) -> np.ndarray:
        """Find the panel by the sums from the nearer end, then Newton's iteration, kept inside its bracket."""
        pieces, last = self.density, self.density.halves.size - 1
        by_lower = np.clip(np.searchsorted(self._below, 1.0 - upper, side="right") - 1, 0, last)
        by_upper = np.clip(self._above.size - 1 - np.searchsorted(self._above[::-1], upper, side="left"), 0, last)
        panel = np.where(upper > 0.5, by_lower, by_upper)
        half = pieces.halves[panel]
        whole = pieces.masses[panel]
        target = np.where(upper > 0.5, 1.0 - upper - self._below[panel], whole - (upper - self._above[panel + 1]))
        target = np.clip(target, 0.0, whole) / half
        low, high = np.full(upper.shape, -1.0), np.ones(upper.shape)
        t = np.clip(2.0 * target * half / np.maximum(whole, 1e-300) - 1.0, -1.0, 1.0)
        slope_of, value_of = pieces.series[panel].T, self._integrals[panel].T
        active = np.arange(upper.size)
        for _ in range(_MOST_STEPS):
            here = t[active]
            excess = legendre.legval(here, value_of[:, active], tensor=False) - target[active]
            slope = legendre.legval(here, slope_of[:, active], tensor=False)
            low[active] = np.where(excess < 0.0, here, low[active])
            high[active] = np.where(excess > 0.0, here, high[active])
            with np.errstate(divide="ignore", invalid="ignore"):
                moved = here - excess / slope
            inside = (moved >= low[active]) & (moved <= high[active])
            moved = np.where(excess == 0.0, here, np.where(inside, moved, 0.5 * (low[active] + high[active])))
            t[active] = moved
            active = active[np.abs(moved - here) > 1e-15]
            if not active.size:
                break
        return pieces.centres[panel] + half * t


def tabulate(pieces: Pieces, measure: Measure, atom: float, origin: str, certificate: Certificate) -> Tabulated:
    """Normalise a law, and add what Phi is computed from."""
    law = Pieces(pieces.edges, pieces.series * (1.0 / measure.radial(pieces).mass))
    component, error = measure.marginal(law)
    certificate = dataclasses.replace(certificate, sup_error=certificate.sup_error + error)
    component = Pieces(component.edges, component.series * (1.0 / component.mass))
    return Tabulated(law, component, measure.ndim, atom, origin, certificate)


def compare(kernel: Tabulated, values: np.ndarray, x: np.ndarray, *, whole: int = 0) -> tuple[Tabulated, np.ndarray]:
    """Compare Phi with values at lags x, which include whole ones up to `whole`, and record it in the certificate.

    Returns
    -------
    kernel : Tabulated
    error : ndarray
        Error at each lag.
    """
    error = np.abs(kernel._mean_cosine(x) - values)
    at = int(np.argmax(error))
    certificate = dataclasses.replace(
        kernel.certificate, sup_error=float(error[at]), lag=float(x[at]), reach=float(x[-1]), n_lags=x.size,
        whole_lags=whole,
    )  # fmt: skip
    return dataclasses.replace(kernel, certificate=certificate), error
