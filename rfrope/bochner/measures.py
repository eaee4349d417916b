"""Radial laws in one, two or three axes as functions of one variable: all that depends on the number of axes."""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from rfrope._core.arguments import MOST, whole
from rfrope.bochner.piecewise import Pieces, Unresolved, abel, build
from rfrope.bochner.verdicts import UndecidedError

FLOORS = (1e-16, 1e-12, 1e-10)  # mass by which a panel may be wrong: where a density has a pole its values are rounded


@dataclass(frozen=True)
class Measure:
    """Radial laws in k axes, kept as ``q(rho)``: the density p of the length rho of omega, over ``rho^moment``.

    Attributes
    ----------
    ndim : int
        k.
    surface : float
        Surface of the unit sphere.
    panels : int
        How many a spectrum may have; the Abel transform takes time quadratic in them.
    moment : int
        Power of the length between q and p, and of the lag between phi and what is transformed: 0 for one axis, else 1.
    rise : int
        Power of the length in the q of a constant density.
    """

    ndim: int
    surface: float
    panels: int
    moment: int
    rise: int

    @property
    def is_line(self) -> bool:
        """There is one axis, where functions are of x and even, and not of a length."""
        return self.ndim == 1

    @property
    def is_plane(self) -> bool:
        """Transforms are by way of Abel's, which k = 1 and 3 do without."""
        return self.ndim == 2

    def ground(self, w: np.ndarray) -> np.ndarray:
        """The q of the constant density 1."""
        found: np.ndarray = self.surface * w**self.rise
        return found

    def radial(self, pieces: Pieces) -> Pieces:
        """Density p of the length of omega, from q; and what is transformed, from phi."""
        return pieces.times_argument() if self.moment else pieces

    def transform(self, moments: Pieces, w: np.ndarray) -> np.ndarray:
        """Cosine transform, or sine transform of a function that was multiplied by its argument."""
        return moments.sine_transform(w, tails=True) if self.moment else moments.cosine_transform(w, tails=True)

    def marginal(self, q: Pieces) -> tuple[Pieces, float]:
        """Density on the half-line of the magnitude of one component of omega, whose mean cosine is Phi in any k.

        The second is the mass that its panels may be wrong by.

        Raises
        ------
        UndecidedError
            If it is too rough.
        """
        if self.is_line:
            return q, 0.0
        if not self.is_plane:
            return q.integral_above(), 0.0
        law, budget = q.times_argument(), 4 * self.panels + q.halves.size
        mass = float(np.sum(np.abs(law.masses)))
        for floor in FLOORS:
            with contextlib.suppress(Unresolved):
                found = build(
                    lambda w: 2.0 / math.pi * abel(law, w),
                    law.edges,
                    lambda _, half, floor=floor: floor * mass / half,  # type: ignore[misc]
                    tolerance=1e-13,
                    budget=budget,
                )
                return found, floor * mass * found.halves.size
        raise UndecidedError(
            f"the density of one component of omega is too rough to resolve: {budget} panels are not enough",
            "a density with fewer jumps and poles would be decided",
        )


MEASURES = {
    1: Measure(1, 2.0, 3000, 0, 0),
    2: Measure(2, 2.0 * math.pi, 300, 1, 0),
    3: Measure(3, 4.0 * math.pi, 3000, 1, 1),
}


def read_measure(ndim: Any) -> Measure:
    """Return the measure for a number of axes, read from the argument."""
    ndim = whole("ndim", ndim, 1, MOST)
    if ndim not in MEASURES:
        raise ValueError(f"ndim is {ndim}; expected 1, 2 or 3: transforms in more axes are not provided")
    return MEASURES[ndim]
