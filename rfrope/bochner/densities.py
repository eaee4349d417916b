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

from rfrope._core.arguments import LARGEST, flag, positive, show
from rfrope.bochner import inversion
from rfrope.bochner.given import check_even, checked, read_measure
from rfrope.bochner.measures import MEASURES, Measure
from rfrope.bochner.piecewise import WEIGHTS, Function, Level, Pieces, Unresolved, build
from rfrope.bochner.tabulated import tabulated
from rfrope.bochner.verdicts import Certificate, NotPositiveDefiniteError, UndecidedError
from rfrope.kernels import Kernel

_MASS = 1e-6  # by how much the integral may differ from 1
_NEGATIVE = 1e-12  # part of the largest density: what passes for rounding
_POINTS = 2**16  # at which a density is looked at within its table
_FEWEST = 32  # how many of these on each panel
_OCTAVES = 24.0  # above the table, and towards 0, that are looked at
_POINTS_EACH = 512  # in each
_FIRST_POINTS = 64.0  # in each of all octaves that there are, for a first idea of where the mass lies
_FLOORS = (1e-16, 1e-12, 1e-10)  # mass by which a panel may be wrong: where a density has a pole its values are rounded
_SMOOTHER = "a function that is smooth but for some jumps, kinks and poles would be decided"
_OVERLOOKED = 1e-13  # mass between two points, from which on the table lacks something
_RELATIVE = 1e-8  # part of the density: so much may be rounding
_MOST_MISSED = 1000
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
        A frequency in the middle of the law; found unless given.
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
        If it is too rough.
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
    values = checked("density", density, measure, bounded=False)

    ends = (0.0, math.inf) if support is None else _ends(support)

    def law(w: np.ndarray) -> np.ndarray:  # at the ends themselves it may have poles
        inside = np.clip(w, ends[0] * (1.0 + 2.0**-52), ends[1] * (1.0 - 2.0**-52))
        return measure.ground(inside) * values(inside)

    if support is not None:
        found = _resolved(law, np.array(ends)), inversion.Tail(ends[1], math.inf, 0.0, 1.0)
        check_even("density", values, measure, ends[1], ends)
    else:
        unit = _middle(values, measure) if frequency is None else frequency
        unit = 2.0 ** round(math.log2(unit))
        found = _octaves(law, inversion.Search(unit, 1 + measure.moment, measure.panels, 0.0 if normalise else 1.0))
        check_even("density", values, measure, unit)
    pieces, tail, look = _looked_at(law, *found, measure, beyond=support is None)
    mass = float(np.sum(measure.radial(pieces).masses))
    _check_nonnegative(pieces, look, measure)
    if not mass > 0.0 or (not normalise and abs(mass - 1.0) > _MASS):
        raise ValueError(
            f"density integrates to {mass:.9g}; expected 1 (normalise=True divides by the integral), or "
            f"frequency=... or support=... about a band so narrow that none of {look.count} frequencies met it"
        )
    error = look.error / mass + _ROUNDING * (pieces.halves.size + 4)
    certificate = Certificate(
        error, 0.0, math.inf, 0, mass, 0.0, 0.0, tail.start, tail.exponent, tail.mass,
        unaccounted=math.inf if normalise else abs(mass - 1.0), tolerance=_NEGATIVE, n_frequencies=look.count,
    )  # fmt: skip
    return tabulated(pieces, measure, 0.0, "from_density", certificate)


# -- what panels overlook ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Look:
    """A density beside its table, at many more points than the table was made from.

    Attributes
    ----------
    error : float
        Integral of the difference as seen.
    count : int
        The number of points.
    lowest : tuple of two floats
        The frequency where the density is lowest, and q there.
    missed : ndarray
        Edges about what the table has not.
    """

    error: float
    count: int
    lowest: tuple[float, float]
    missed: np.ndarray


def _looked_at(
    law: Function, pieces: Pieces, tail: inversion.Tail, measure: Measure, *, beyond: bool
) -> tuple[Pieces, inversion.Tail, _Look]:
    """The table, with panels about what it had overlooked."""
    for _ in range(_LOOKS):
        look = _look(law, pieces, tail.start, measure, beyond=beyond)
        if not look.missed.size:
            break
        end = tail.start * 2.0 ** max(0, math.ceil(math.log2(float(look.missed[-1]) / tail.start)))
        edges = np.union1d(np.append(pieces.edges[pieces.edges < end], end), look.missed)
        pieces = _resolved(law, edges).followed_by(pieces.beyond(end))
        tail = inversion.Tail(end, *((tail.exponent, tail.mass) if end == tail.start else (math.inf, 0.0)), tail.total)
    return pieces, tail, look


def _look(law: Function, pieces: Pieces, end: float, measure: Measure, *, beyond: bool) -> _Look:
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
    found = law(w)
    weight = step * w**measure.moment
    difference = np.abs(found - table)
    (at,) = np.nonzero(difference * weight > np.maximum(_OVERLOOKED, _RELATIVE * np.abs(table) * weight))
    lowest = int(np.argmin(found))
    missed = np.concatenate([w[at] - step[at], w[at] + step[at]])
    edges = pieces.edges
    near = np.searchsorted(edges, missed).clip(1, edges.size - 1)
    apart = np.minimum(np.abs(edges[near] - missed), np.abs(edges[near - 1] - missed)) > 1e-12 * missed
    missed = np.unique(missed[(missed > edges[0]) & apart])[:_MOST_MISSED]
    error = float(np.sum((difference * weight)[w < end]))
    return _Look(error, found.size, (float(w[lowest]), float(found[lowest])), missed)


def _points(part: tuple[np.ndarray, np.ndarray, Pieces | None, int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Points evenly over each panel, the table there, and their distances."""
    centres, halves, pieces, each = part
    t = (2.0 * np.arange(each) + 1.0) / each - 1.0
    w = (centres[:, None] + halves[:, None] * t).ravel()
    table = np.zeros(w.size) if pieces is None else pieces.series @ legvander(t, pieces.series.shape[1] - 1).T
    return w, table.ravel(), np.repeat(2.0 * halves / each, each)


def _check_nonnegative(pieces: Pieces, look: _Look, measure: Measure) -> None:
    at = int(np.argmin(pieces.values))
    low = min(look.lowest, (float(pieces.nodes.flat[at]), float(pieces.values.flat[at])), key=lambda pair: pair[1])
    if low[1] >= -_NEGATIVE * float(np.max(np.abs(pieces.values))):
        return
    frequency, density = low[0], low[1] / float(measure.ground(np.array(low[0])))
    weight = pieces.halves[:, None] * WEIGHTS * pieces.nodes**measure.moment
    raise NotPositiveDefiniteError(
        f"density is {density:.3g} at frequency {frequency:.6g}; expected no negative values",
        frequency=frequency,
        density=density,
        negative_mass=float(np.sum(weight * np.maximum(-pieces.values, 0.0))),
    )


def _octaves(law: Function, search: inversion.Search) -> tuple[Pieces, inversion.Tail]:
    for floor in _FLOORS:
        try:
            return inversion.collect(law, _no_noise, dataclasses.replace(search, floor=floor))[:2]
        except inversion.Nothing:  # bands that fall between all nodes
            end = 2.0 * search.unit
            return Pieces(np.array([0.0, end]), np.zeros((1, 1))), inversion.Tail(end, math.inf, 0.0, 0.0)
        except UndecidedError as error:
            reason = error
    raise UndecidedError(reason.reason.replace("the spectrum", "density"), _SMOOTHER) from None


def _no_noise(w: np.ndarray) -> np.ndarray:
    return np.full(w.shape, 1e-290)


def _allowing(floor: float) -> Level:
    return lambda _, half: floor / half


def _resolved(law: Function, edges: np.ndarray) -> Pieces:
    budget = MEASURES[1].panels + edges.size
    for floor in _FLOORS:
        with contextlib.suppress(Unresolved):
            return build(law, edges, _allowing(floor), tolerance=1e-13, budget=budget)
    raise UndecidedError(
        f"density is too rough to resolve: {budget} panels are not enough between the frequencies {edges[0]:.3g} and "
        f"{edges[-1]:.3g}",
        _SMOOTHER,
    )


def _ends(support: Any) -> tuple[float, float]:
    try:
        low, high = (float(v) for v in support)
    except Exception:  # whatever an array of another library raises
        raise TypeError(f"support is {show(support)}; expected two numbers, as (0.0, 0.5)") from None
    if not (0.0 <= low < high < math.inf):
        raise ValueError(f"support is {show(support)}; expected 0 <= low < high, both finite")
    return low, high


def _middle(values: Callable[[np.ndarray], np.ndarray], measure: Measure) -> float:
    """The frequency about which most of the mass lies, in the logarithm."""
    w = 2.0 ** (np.arange(-64.0, 64.0, 1.0 / _FIRST_POINTS) + 1e-7)  # not at 1, where many a density has its end
    mass = values(w) * w**measure.ndim
    if not np.max(mass) > 0.0:
        raise ValueError(
            f"density is 0 at every frequency from {w[0]:.3g} to {w[-1]:.3g} that was tried; expected "
            "frequency=..., in the middle of the law"
        )
    return float(w[np.argmax(mass)])
