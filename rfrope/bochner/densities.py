"""Kernels from densities of the frequencies, on panels that match every value seen and end at jumps."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.polynomial import legendre

from rfrope._core.arguments import finite, flag, listed, show
from rfrope.bochner import inversion
from rfrope.bochner.piecewise import Function, Pieces, build
from rfrope.bochner.reading import NOISE, check_even, check_values, measure_noise
from rfrope.bochner.refusals import NotPositiveDefiniteError, UndecidedError
from rfrope.bochner.tabulated import FLOOR, MEASURES, Certificate, Measure, read_measure, tabulate
from rfrope.kernels import Kernel
from rfrope.kernels.parameters import positive

_MASS = 1e-6  # tolerance of the integral
_NEGATIVE = 1e-12  # part of the largest density: what passes for rounding
_SURVEYED = 256  # frequencies in each of all octaves that there are, for an idea of where the mass lies
_FAINT = 1e-25  # part of the mass in an octave, from which on nothing is resolved
_POINTS = 2**16  # at which a density is looked at within its table
_FEWEST = 32  # how many of these on each panel
_OCTAVES = 24.0  # above the table, and towards 0, that are looked at
_POINTS_EACH = 512  # in each
_OVERLOOKED = 1e-13  # mass between two points, from which on the table lacks something
_RELATIVE = 1e-8  # part of the density: so much may be rounding
_LOOKS = 4
_ROUNDING = 2.0**-52  # part of a panel's mass, and of all


def from_density(
    density: Callable[[np.ndarray], Any],
    *,
    ndim: int = 1,
    support: tuple[float, float] | None = None,
    frequency: float | None = None,
    normalise: bool = False,
) -> Kernel:
    """Return a kernel whose frequencies have a given probability density.

    Parameters
    ----------
    density : callable
        Takes a NumPy array of frequencies (radians per unit of position, float64, one axis), elementwise. For ndim = 1
        it must be even and integrate to 1 over the line; for more axes it takes the length of omega and returns the
        density in k axes.
    ndim : int
        Number of position axes, 1 to 3.
    support : tuple of two floats, optional
        Range of the length of omega. Default: all lengths.
    frequency : float, optional
        A frequency inside a band that is too narrow to be found; the search starts there.
    normalise : bool
        Divide the density by its integral, as far as found. The certificate then cannot exclude further mass, and its
        ``unaccounted`` and ``bound`` are infinite. If you know the integral, divide by it yourself.

    Returns
    -------
    Kernel
        With ``.certificate``, a `Certificate`.

    Raises
    ------
    NotPositiveDefiniteError
        If the density is negative somewhere.
    UndecidedError
        If it is too rough for its integral to be known to 1e-6.
    ValueError
        If it does not integrate to 1, or is not even or not finite.
    TypeError
        See `from_function`.

    See Also
    --------
    bochner.from_function, bochner.Certificate

    Examples
    --------
    >>> import numpy as np
    >>> kernel = from_density(lambda w: 16.0 * np.exp(-32.0 * np.abs(w)))
    >>> kernel.phi([0.0, 32.0]).round(6)
    array([1. , 0.5])
    """
    normalise = flag("normalise", normalise)
    frequency = None if frequency is None else positive("frequency", frequency)
    measure = read_measure(ndim)
    values = check_values("density", density, measure, bounded=False)
    ends = (0.0, math.inf)
    if support is not None:
        parts = listed("support", support, "two numbers, as (0.0, 0.5)")
        ends = tuple(finite(f"support[{place}]", end) for place, end in enumerate(parts))  # type: ignore[assignment]
        if len(ends) != 2 or not 0.0 <= ends[0] < ends[1]:
            raise ValueError(f"support is {show(support)}; expected two numbers, 0 <= low < high")

    def weighted(w: np.ndarray) -> np.ndarray:  # at the ends themselves it may have poles
        inside = np.clip(w, ends[0] * (1.0 + 2.0**-52), ends[1] * (1.0 - 2.0**-52))
        return measure.ground(inside) * values(inside)

    seen, edges, endless = _survey(weighted, measure, ends, frequency)
    seen.factor = seen.factor if normalise else 1.0
    looked = check_even("density", values, measure, float(edges[1]), ends)
    if looked.size:
        seen(looked)
    for _ in range(2):
        expected = 0.0 if normalise else 1.0
        law, error = _resolve(seen, measure, edges, expected, endless=endless, beyond=support is None)
        mass = measure.radial(law.pieces).mass
        if not normalise or abs(math.log2(max(mass, 2.0**-900))) < 2.0:
            break
        seen.factor *= 2.0 ** -round(math.log2(mass))
    _check_nonnegative(law.pieces, seen, measure)
    error = error / mass if mass > 0.0 else 0.0  # what was met may be less than the table resolves
    error, mass = error + _ROUNDING * (law.pieces.halves.size + 4), mass / seen.factor
    count = seen.all()[0].size
    if error > _MASS:
        raise UndecidedError(
            f"density is too rough to resolve: it integrates to {mass:.9g} ± {error * mass:.2g}",
            "expected a function that is smooth except at some jumps, kinks and poles",
        )
    if not mass > 0.0 or (not normalise and abs(mass - 1.0) > _MASS):
        narrow = f", or frequency=... inside a narrow band that {count} frequencies missed" if mass < 1.0 else ""
        raise ValueError(
            f"density integrates to {mass:.9g}; expected 1 (normalise=True divides by the integral){narrow}"
        )
    certificate = Certificate(
        error, 0.0, math.inf, 0, mass, 0.0, 0.0, law.start, law.exponent, law.tail_mass / seen.factor,
        unaccounted=math.inf if normalise else abs(mass - 1.0), tolerance=_NEGATIVE, n_frequencies=count,
    )  # fmt: skip
    return tabulate(law.pieces, measure, 0.0, "from_density", certificate)


# -- where the mass lies -----------------------------------------------------------------------------------------------


def _survey(
    law: Function, measure: Measure, ends: tuple[float, float], frequency: float | None
) -> tuple[Seen, np.ndarray, bool]:
    """Return q as seen in all octaves, scaled to a mass of about 1, its edges, and whether it goes on above them."""
    w = 2.0 ** (np.arange(-64.0, 64.0, 1.0 / _SURVEYED) + 1e-7)  # not at 1, where many a density has its end
    w = w if frequency is None else frequency * np.insert(w, np.searchsorted(w, 1.0), 1.0)
    if ends[1] < math.inf:
        inside = np.geomspace(max(ends[0], ends[1] * 2.0**-64), ends[1], w.size)[1:-1]
        w = np.sort(np.append(inside, [frequency] if frequency and ends[0] < frequency < ends[1] else []))
    seen = Seen(law)
    share = np.abs(seen(w)) * w ** (1 + measure.moment)
    mass = float(np.sum(0.5 * (share[1:] + share[:-1]) * np.diff(np.log(w))))
    if not mass > 0.0:
        raise ValueError(
            f"density is 0 at every frequency from {w[0]:.3g} to {w[-1]:.3g} that was tried; expected "
            "frequency=..., in the middle of the law"
        )
    seen.factor = 2.0 ** -min(max(round(math.log2(mass)), -900), 900)
    if ends[1] < math.inf:
        return seen, np.array(ends), False
    unit, last = 2.0 ** round(math.log2(w[np.argmax(share)])), int(np.max(np.nonzero(share > _FAINT * mass)[0]))
    edges = np.append(0.0, unit * 2.0 ** np.arange(max(1, math.ceil(math.log2(w[last] / unit))) + 1.0))
    return seen, edges, last == w.size - 1


# -- the table ---------------------------------------------------------------------------------------------------------


def _resolve(
    law: Seen, measure: Measure, edges: np.ndarray, expected: float, *, endless: bool, beyond: bool
) -> tuple[inversion.Spectrum, float]:
    """The table of a law, its tail, and the integral of its error as seen at many more points."""
    budget, unit = MEASURES[1].panels + edges.size, 0.5 * (edges[0] + edges[1])
    law(unit * 2.0 ** np.arange(-4.0, 5.0))  # bands may lie between so few, and dips on them
    noise = measure_noise(lambda x: law(unit * x))
    largest = law.factor * max(float(np.max(np.abs(values))) for values in law.values[-2:]) or 1.0
    tolerance = max(1e-13, NOISE / largest * noise)

    def level(centre: np.ndarray, half: np.ndarray) -> np.ndarray:
        return FLOOR / (half * centre**measure.moment)

    for _ in range(_LOOKS):
        pieces = build(law, edges, level, tolerance=tolerance, budget=budget, seen=law.all(), what="density")
        found = inversion.Spectrum(pieces, float(edges[-1]), math.inf, 0.0, 1.0)
        if endless:
            found = inversion.continue_tail(pieces, lambda w: np.full(w.shape, 1e-290), measure, expected)
        missed, error = _overlooked(law, found.pieces, found.start, measure, beyond=beyond)
        if not missed.size or np.array_equal(found.pieces.edges, edges):  # what differs is less than `level`
            break
        above, known = max(0, math.ceil(math.log2(float(missed[-1]) / found.start))), found.pieces.edges
        edges = np.append(known[known < found.start], found.start * 2.0 ** np.arange(above + 1.0))
    return found, error


def _overlooked(law: Seen, pieces: Pieces, end: float, measure: Measure, *, beyond: bool) -> tuple[np.ndarray, float]:
    """Frequencies, ascending, where the table lacks something, and the integral of its error as seen."""
    w, step, t = _place_evenly(pieces.centres, pieces.halves, max(_FEWEST, _POINTS // pieces.halves.size))
    table = (pieces.series @ legendre.legvander(t, pieces.series.shape[1] - 1).T).ravel()
    if beyond:  # the octaves above the table, and those of its first panel, which are narrower than its points
        last, first = float(pieces.edges[-1]), float(pieces.edges[1])
        above = last * 2.0 ** np.arange(max(0.0, min(_OCTAVES, 400.0 - math.log2(last))))
        low = np.append(first * 2.0 ** -np.arange(1.0, _OCTAVES + 1.0), above)
        outside, steps, _ = _place_evenly(1.5 * low, 0.5 * low, _POINTS_EACH)
        w, step, table = np.append(w, outside), np.append(step, steps), np.append(table, pieces(outside))
    weight = step * w**measure.moment
    difference = np.abs(law(w) - table)
    missed = difference * weight > np.maximum(_OVERLOOKED, _RELATIVE * np.abs(table) * weight)
    return np.sort(w[missed]), float(np.sum((difference * weight)[w < end]))


def _place_evenly(centres: np.ndarray, halves: np.ndarray, each: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Points evenly over each panel, their distances, and where they lie in (-1, 1) on each."""
    t = (2.0 * np.arange(each) + 1.0) / each - 1.0
    return (centres[:, None] + halves[:, None] * t).ravel(), np.repeat(2.0 * halves / each, each), t


def _check_nonnegative(pieces: Pieces, law: Seen, measure: Measure) -> None:
    w, found = law.all()
    at = int(np.argmin(found))
    if found[at] >= -_NEGATIVE * float(np.max(np.abs(pieces.values))):
        return
    frequency, density = float(w[at]), float(found[at] / measure.ground(w[at])) / law.factor
    shares = inversion.weigh_nodes(pieces, measure)
    raise NotPositiveDefiniteError(
        f"density is {density:.3g} at frequency {frequency:.6g}; expected no negative values",
        frequency=frequency,
        density=density,
        negative_mass=float(np.sum(shares * np.maximum(-pieces.values, 0.0))) / law.factor,
    )


class Seen:
    """A function, times a power of two, that records all values it has returned."""

    def __init__(self, function: Function) -> None:
        self._function, self.factor = function, 1.0
        self._points: list[np.ndarray] = []
        self.values: list[np.ndarray] = []

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Values at points, which are kept."""
        self._points.append(x)
        self.values.append(self._function(x))
        return self.factor * self.values[-1]

    def all(self) -> tuple[np.ndarray, np.ndarray]:
        """Return all points and values."""
        return np.concatenate(self._points), self.factor * np.concatenate(self.values)
