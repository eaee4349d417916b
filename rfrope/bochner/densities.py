"""Kernels from densities of the frequencies."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.polynomial.legendre import legvander

from rfrope._core.arguments import LARGEST, finite, flag, listed, positive, show
from rfrope.bochner import inversion
from rfrope.bochner.measures import FLOORS, MEASURES, Measure, read_measure
from rfrope.bochner.piecewise import WEIGHTS, Function, Level, Pieces, Unresolved
from rfrope.bochner.reading import check_even, check_values
from rfrope.bochner.resolving import Seen, resolve
from rfrope.bochner.tabulated import tabulate
from rfrope.bochner.verdicts import Certificate, NotPositiveDefiniteError, UndecidedError
from rfrope.kernels import Kernel

_MASS = 1e-6  # by how much the integral may differ from 1
_NEGATIVE = 1e-12  # part of the largest density: what passes for rounding
_SURVEYED = 256  # frequencies in each of all octaves that there are, for an idea of where the mass lies
_FAINT = 1e-25  # part of the mass in an octave, from which on nothing is resolved
_POINTS = 2**16  # at which a density is looked at within its table
_FEWEST = 32  # how many of these on each panel
_OCTAVES = 24.0  # above the table, and towards 0, that are looked at
_POINTS_EACH = 512  # in each
_CUSP = 2.0**-500  # end of the panel at 0 that may hold a cusp, as a part of the first edge
_SMOOTHER = "a function that is smooth but for some jumps, kinks and poles would be decided"
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
    """Make a kernel whose frequencies have a given probability density.

    Parameters
    ----------
    density : callable
        Takes a NumPy array of frequencies (radians per unit of position, float64, one axis), elementwise. For ndim = 1
        it must be even and integrate to 1 over the line; for more axes it is called with the length of omega and is the
        density in k axes.
    ndim : int
        Number of position axes, 1 to 3.
    support : tuple of two floats, optional
        Lengths between which the law lies; all lengths unless given.
    frequency : float, optional
        A frequency inside a band that is too narrow to be found. Octaves that are looked at are counted from it.
    normalise : bool
        Divide the density by its integral, as far as it was found: the certificate then cannot say whether there is
        more, and has ``unaccounted`` and ``bound`` infinite. If you know the integral, divide by it yourself.

    Returns
    -------
    Kernel
        With ``.certificate``, a `Certificate`.

    Raises
    ------
    NotPositiveDefiniteError
        If the density is negative somewhere.
    UndecidedError
        If it is too rough: its integral is not known to 1e-6.
    ValueError
        If it does not integrate to 1, is not even or not finite.
    TypeError
        As `from_function`.

    Examples
    --------
    >>> import numpy as np
    >>> kernel = from_density(lambda w: 16.0 * np.exp(-32.0 * np.abs(w)))
    >>> kernel.phi([0.0, 32.0]).round(6)
    array([1. , 0.5])
    """
    normalise = flag("normalise", normalise)
    if frequency is not None:
        frequency = positive("frequency", frequency, least=1.0 / LARGEST, most=LARGEST)
    measure = read_measure(ndim)
    values = check_values("density", density, measure, bounded=False)
    ends = (0.0, math.inf) if support is None else _ends(support)

    def law(w: np.ndarray) -> np.ndarray:  # at the ends themselves it may have poles
        inside = np.clip(w, ends[0] * (1.0 + 2.0**-52), ends[1] * (1.0 - 2.0**-52))
        return measure.ground(inside) * values(inside)

    survey = _survey(law, measure, ends, frequency)
    survey = survey.times(1.0 if normalise else 1.0 / survey.size)
    looked = check_even("density", values, measure, float(survey.edges[1]), ends)
    if looked.size:
        survey.law(looked)
    for _ in range(2):
        pieces, tail, error = _resolve(survey, measure, 0.0 if normalise else 1.0, beyond=support is None)
        mass = float(np.sum(measure.radial(pieces).masses))
        if not normalise or abs(math.log2(max(mass, 2.0**-900))) < 2.0:
            break
        survey = survey.times(2.0 ** -round(math.log2(mass)))
    _check_nonnegative(pieces, survey, measure)
    error = error / mass if mass > 0.0 else 0.0  # what was met may be less than the table resolves
    error, mass = error + _ROUNDING * (pieces.halves.size + 4), mass / survey.size
    count = survey.law.since()[0].size
    if error > _MASS:
        raise UndecidedError(
            f"density is too rough to resolve: it integrates to {mass:.9g}, give or take {error * mass:.2g}", _SMOOTHER
        )
    if not mass > 0.0 or (not normalise and abs(mass - 1.0) > _MASS):
        narrow = f", or frequency=... in a band so narrow that none of {count} frequencies met it" if mass < 1.0 else ""
        raise ValueError(
            f"density integrates to {mass:.9g}; expected 1 (normalise=True divides by the integral){narrow}"
        )
    certificate = Certificate(
        error, 0.0, math.inf, 0, mass, 0.0, 0.0, tail.start, tail.exponent, tail.mass / survey.size,
        unaccounted=math.inf if normalise else abs(mass - 1.0), tolerance=_NEGATIVE, n_frequencies=count,
    )  # fmt: skip
    return tabulate(pieces, measure, 0.0, "from_density", certificate)


# -- where the mass lies -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Survey:
    """A density at frequencies in all octaves.

    Attributes
    ----------
    law : Seen
        q, times `size`, and what was seen of it.
    size : float
        A power of two that makes the mass about 1.
    edges : ndarray
        Where the table begins and ends, and without a support octaves above the middle of the law.
    endless : bool
        Whether the law goes on above all frequencies that were tried.
    """

    law: Seen
    size: float
    edges: np.ndarray
    endless: bool

    def times(self, factor: float) -> _Survey:
        """Multiply by a power of two."""
        return dataclasses.replace(self, law=self.law.times(factor), size=factor * self.size)


def _survey(law: Function, measure: Measure, ends: tuple[float, float], frequency: float | None) -> _Survey:
    w = 2.0 ** (np.arange(-64.0, 64.0, 1.0 / _SURVEYED) + 1e-7)  # not at 1, where many a density has its end
    w = w if frequency is None else frequency * np.insert(w, np.searchsorted(w, 1.0), 1.0)
    if ends[1] < math.inf:
        inside = np.geomspace(max(ends[0], ends[1] * 2.0**-64), ends[1], w.size)[1:-1]
        w = np.sort(np.append(inside, [frequency] if frequency and ends[0] < frequency < ends[1] else []))
    q = law(w)
    share = np.abs(q) * w ** (1 + measure.moment)
    mass = float(np.sum(0.5 * (share[1:] + share[:-1]) * np.diff(np.log(w))))
    if not mass > 0.0:
        raise ValueError(
            f"density is 0 at every frequency from {w[0]:.3g} to {w[-1]:.3g} that was tried; expected "
            "frequency=..., in the middle of the law"
        )
    size = 2.0 ** -min(max(round(math.log2(mass)), -900), 900)
    seen = Seen(lambda x: size * law(x), w, size * q)
    if ends[1] < math.inf:
        return _Survey(seen, size, np.array(ends), False)
    unit, last = 2.0 ** round(math.log2(w[np.argmax(share)])), int(np.max(np.nonzero(share > _FAINT * mass)[0]))
    edges = np.append(0.0, unit * 2.0 ** np.arange(max(1, math.ceil(math.log2(w[last] / unit))) + 1.0))
    return _Survey(seen, size, edges, last == w.size - 1)


# -- the table ---------------------------------------------------------------------------------------------------------


def _resolve(
    survey: _Survey, measure: Measure, expected: float, *, beyond: bool
) -> tuple[Pieces, inversion.Tail, float]:
    """The table of a law, its tail, and the integral of its error as seen at many more points."""
    budget = MEASURES[1].panels + survey.edges.size
    for floor in FLOORS:

        def level(centre: np.ndarray, half: np.ndarray, floor: float = floor) -> np.ndarray:
            return floor / (half * centre**measure.moment)

        with contextlib.suppress(Unresolved):
            return _compare(survey, measure, expected, level, budget, beyond=beyond)
    raise UndecidedError(
        f"density is too rough to resolve: {budget} panels are not enough between the frequencies "
        f"{survey.edges[0]:.3g} and {survey.edges[-1]:.3g}",
        _SMOOTHER,
    )


def _compare(
    survey: _Survey, measure: Measure, expected: float, level: Level, budget: int, *, beyond: bool
) -> tuple[Pieces, inversion.Tail, float]:
    edges, first = survey.edges, float(survey.edges[1])
    search = inversion.Search(measure, first, expected, measure.panels)
    for _ in range(_LOOKS):
        pieces = resolve(survey.law, edges, level, tolerance=1e-13, budget=budget, least=_CUSP * first)
        tail = inversion.Tail(float(edges[-1]), math.inf, 0.0, 1.0)
        if survey.endless:
            pieces, tail, _ = inversion.continue_tail(pieces, _no_noise, search)
        missed, error = _overlooked(survey.law, pieces, tail.start, measure, beyond=beyond)
        if not missed.size or np.array_equal(pieces.edges, edges):  # what differs is less than `level`
            break
        above = max(0, math.ceil(math.log2(float(missed[-1]) / tail.start)))
        edges = np.append(pieces.edges[pieces.edges < tail.start], tail.start * 2.0 ** np.arange(above + 1.0))
    return pieces, tail, error


def _overlooked(law: Seen, pieces: Pieces, end: float, measure: Measure, *, beyond: bool) -> tuple[np.ndarray, float]:
    """Frequencies, ascending, where the table lacks something, and the integral of its error as seen."""
    parts: list[tuple[np.ndarray, np.ndarray, Pieces | None, int]] = [
        (pieces.centres, pieces.halves, pieces, max(_FEWEST, _POINTS // pieces.halves.size))
    ]
    if beyond:  # the octaves above the table, and those of its first panel, which are narrower than its points
        last, first = float(pieces.edges[-1]), float(pieces.edges[1])
        above = last * 2.0 ** np.arange(max(0.0, min(_OCTAVES, 400.0 - math.log2(last))))
        below = first * 2.0 ** -np.arange(1.0, _OCTAVES + 1.0)
        parts.extend((1.5 * low, 0.5 * low, None, _POINTS_EACH) for low in (below, above))
    w, table, step = (np.concatenate(columns) for columns in zip(*map(_points, parts), strict=True))
    inside = parts[0][0].size * parts[0][3]
    table[inside:] = pieces(w[inside:])
    weight = step * w**measure.moment
    difference = np.abs(law(w) - table)
    missed = difference * weight > np.maximum(_OVERLOOKED, _RELATIVE * np.abs(table) * weight)
    return np.sort(w[missed]), float(np.sum((difference * weight)[w < end]))


def _points(part: tuple[np.ndarray, np.ndarray, Pieces | None, int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Points evenly over each panel, the table there, and their distances."""
    centres, halves, pieces, each = part
    t = (2.0 * np.arange(each) + 1.0) / each - 1.0
    w = (centres[:, None] + halves[:, None] * t).ravel()
    table = np.zeros(w.size) if pieces is None else pieces.series @ legvander(t, pieces.series.shape[1] - 1).T
    return w, table.ravel(), np.repeat(2.0 * halves / each, each)


def _no_noise(w: np.ndarray) -> np.ndarray:
    return np.full(w.shape, 1e-290)


def _check_nonnegative(pieces: Pieces, survey: _Survey, measure: Measure) -> None:
    w, found = survey.law.since()
    at = int(np.argmin(found))
    if found[at] >= -_NEGATIVE * float(np.max(np.abs(pieces.values))):
        return
    frequency, density = float(w[at]), float(found[at] / measure.ground(w[at])) / survey.size
    weight = pieces.halves[:, None] * WEIGHTS * pieces.nodes**measure.moment
    raise NotPositiveDefiniteError(
        f"density is {density:.3g} at frequency {frequency:.6g}; expected no negative values",
        frequency=frequency,
        density=density,
        negative_mass=float(np.sum(weight * np.maximum(-pieces.values, 0.0))) / survey.size,
    )


def _ends(support: Any) -> tuple[float, float]:
    expected = "two numbers, as (0.0, 0.5)"
    ends = listed("support", support, expected)
    if len(ends) != 2:
        raise TypeError(f"support is {show(support)}; expected {expected}")
    low, high = (finite(f"support[{place}]", end) for place, end in enumerate(ends))
    if not (0.0 <= low < high < math.inf):
        raise ValueError(f"support is {show(support)}; expected 0 <= low < high, both finite")
    return low, high
