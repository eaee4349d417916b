"""Kernels from densities of the frequencies."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from rfrope._core.arguments import positive
from rfrope.bochner import inversion
from rfrope.bochner.given import check_even, checked, read_measure
from rfrope.bochner.measures import MEASURES, Measure
from rfrope.bochner.piecewise import Pieces, Unresolved, build
from rfrope.bochner.tabulated import tabulated
from rfrope.bochner.verdicts import Certificate, NotPositiveDefiniteError, UndecidedError
from rfrope.kernels import Kernel


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
        Divide the density by its integral.

    Returns
    -------
    Kernel
        With ``.certificate``.

    Raises
    ------
    NotPositiveDefiniteError
        If the density is negative somewhere.
    ValueError
        If it does not integrate to 1, is not even, not finite, or too rough.
    TypeError
        As `from_function`.

    Examples
    --------
    >>> import numpy as np
    >>> kernel = from_density(lambda w: 16.0 * np.exp(-32.0 * np.abs(w)))
    >>> kernel.phi([0.0, 32.0]).round(6)
    array([1. , 0.5])
    """
    measure = read_measure(ndim)
    values = checked("density", density, measure, bounded=False)
    power = 1 + measure.moment

    def law(w: np.ndarray) -> np.ndarray:
        return measure.ground(w) * values(w)

    try:
        if support is not None:
            pieces, tail = _on_support(law, _ends(support))
        else:
            unit = _middle(values, measure) if frequency is None else positive("frequency", frequency)
            unit = 2.0 ** round(math.log2(unit))
            expected = 0.0 if normalise else 1.0
            search = inversion.Search(unit, power, measure.panels, expected)
            pieces, tail, _ = inversion.collect(law, lambda w: np.full(w.shape, 1e-290), search)
    except Unresolved:
        raise ValueError(
            "density is too rough to resolve; expected a function that is smooth but for some jumps and kinks"
        ) from None
    radial = measure.radial(pieces)
    check_even("density", values, measure, float(pieces.edges[-1]) if support else unit)
    lowest = int(np.argmin(pieces.values))
    w, value = float(pieces.nodes.flat[lowest]), float(pieces.values.flat[lowest])
    if value < -1e-12 * float(np.max(np.abs(pieces.values))):
        given = float(values(np.array([w]))[0])
        negative = -float(np.sum(np.minimum(radial.masses, 0.0)))
        raise NotPositiveDefiniteError(
            f"density is {given:.3g} at frequency {w:.6g}; expected no negative values",
            frequency=w,
            density=given,
            negative_mass=negative,
        )
    mass = float(np.sum(radial.masses))
    if not mass > 0.0 or (not normalise and abs(mass - 1.0) > 1e-6):
        raise ValueError(f"density integrates to {mass:.9g}; expected 1 (normalise=True divides by the integral)")
    certificate = Certificate(
        _table_error(pieces, law, tail.start, power) / mass, 0.0, math.inf, 0, mass, 0.0, 0.0,
        tail.start, tail.exponent, tail.mass,
    )  # fmt: skip
    return tabulated(pieces, measure, 0.0, "from_density", certificate)


def _ends(support: Any) -> tuple[float, float]:
    try:
        low, high = (float(v) for v in support)
    except (TypeError, ValueError):
        raise TypeError(f"support is {support!r:.80}; expected two numbers, as (0.0, 0.5)") from None
    if not (0.0 <= low < high < math.inf):
        raise ValueError(f"support is {support!r:.80}; expected 0 <= low < high, both finite")
    return low, high


def _on_support(law: Callable[[np.ndarray], np.ndarray], ends: tuple[float, float]) -> tuple[Pieces, inversion.Tail]:
    pieces = build(law, np.array(ends), lambda _, half: 1e-15 / half, tolerance=1e-13, budget=MEASURES[1].panels)
    return pieces, inversion.Tail(ends[1], math.inf, 0.0, 1.0)


def _middle(values: Callable[[np.ndarray], np.ndarray], measure: Measure) -> float:
    """The frequency about which most of the mass lies, in the logarithm."""
    w = 2.0 ** np.arange(-64.0, 64.0, 0.125)
    mass = values(w) * w**measure.ndim
    if not np.max(mass) > 0.0:
        raise ValueError(
            f"density is 0 at every frequency from {w[0]:.3g} to {w[-1]:.3g} that was tried; expected "
            "frequency=..., in the middle of the law"
        )
    return float(w[np.argmax(mass)])


def _table_error(pieces: Pieces, law: Callable[[np.ndarray], np.ndarray], end: float, power: int) -> float:
    """Estimate of the integral of the error of a table, from points between its nodes."""
    known = pieces.until(end)
    points = known.centres[:, None] + known.halves[:, None] * np.linspace(-0.98, 0.98, 9)
    error = np.abs(law(points.ravel()).reshape(points.shape) - known(points)) * points ** (power - 1.0)
    return float(np.sum(2.0 * known.halves * np.mean(error, axis=1)))
