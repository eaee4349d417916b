"""What depends on the number of axes: how a radial law in one, two or three becomes functions of one variable."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from rfrope.bochner.piecewise import Pieces, abel, build


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
        """Whether there is one axis, where functions are of x and even, and not of a length."""
        return self.ndim == 1

    @property
    def is_plane(self) -> bool:
        """Whether transforms are by way of Abel's, which k = 1 and 3 do without."""
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

    def marginal(self, q: Pieces) -> Pieces:
        """Density on the half-line of the magnitude of one component of omega, whose mean cosine is Phi in any k."""
        if self.is_line:
            return q
        if not self.is_plane:
            return q.integral_above()
        law = q.times_argument()
        floor = 1e-16 * float(np.sum(np.abs(law.masses)))
        return build(
            lambda w: 2.0 / math.pi * abel(law, w),
            law.edges,
            lambda _, half: floor / half,
            tolerance=1e-13,
            budget=4 * self.panels + law.halves.size,
        )


MEASURES = {
    1: Measure(1, 2.0, 3000, 0, 0),
    2: Measure(2, 2.0 * math.pi, 300, 1, 0),
    3: Measure(3, 4.0 * math.pi, 3000, 1, 1),
}
