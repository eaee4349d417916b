"""Kernels that are held as a table of their spectral law, and what is known of their accuracy."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from functools import cached_property
from types import ModuleType
from typing import Any, ClassVar

import numpy as np

from rfrope._core import array, quantiles
from rfrope._core.array import Array
from rfrope.bochner.measures import MEASURES, Measure
from rfrope.bochner.piecewise import Inverse, Pieces
from rfrope.bochner.verdicts import Certificate
from rfrope.kernels import Kernel
from rfrope.kernels.algebra import Axes
from rfrope.kernels.parameters import radius

_FURTHEST = 1e150  # lags beyond it are as good as infinite


@dataclass(frozen=True, repr=False)
class Tabulated(Kernel):
    """A spherically symmetric law of frequencies, held as a table; made by the functions of this module.

    Phi and the density are evaluated by NumPy on the host for every library.

    Attributes
    ----------
    law : Pieces
        The density of the length rho of omega for ndim = 1, and that over rho for more.
    component : Pieces
        The density of the magnitude of one component of omega.
    ndim : int
    atom : float
        Probability of frequency 0, beside the density.
    origin : str
        The function that made it.
    certificate : Certificate
    """

    name: ClassVar[str] = "tabulated"
    law: Pieces
    component: Pieces
    ndim: int
    atom: float
    origin: str
    certificate: Certificate

    @property
    def n_columns(self) -> int:
        """One in one axis, else one for the length and one for each axis of the direction."""
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
        return array.map_on_host(self._density_at, radius(omega, xp), xp, "omega")

    def _mean_cosine(self, r: np.ndarray) -> np.ndarray:
        value = self.atom + (1.0 - self.atom) * self.component.cosine_transform(np.minimum(r, _FURTHEST))
        value = np.where(r == np.inf, self.atom, np.clip(value, -1.0, 1.0))
        return np.where(r == 0.0, 1.0, value)

    def _density_at(self, w: np.ndarray) -> np.ndarray:
        nearest = self.law.edges[0] + 2.0**-26 * (self.law.edges[1] - self.law.edges[0])  # below it q / w is rounding
        measure = MEASURES[self.ndim]
        w = np.maximum(w, nearest) if measure.rise and self.law.edges[0] == 0.0 else w
        return np.maximum(self.law(w) / measure.ground(w), 0.0)

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


@dataclass(frozen=True, repr=False)
class Separable(Axes):
    """Kernels from functions, one for each axis; as `kernels.axes`, with a certificate."""

    @property
    def certificate(self) -> Certificate:
        """Certificate of the product: errors add, masses multiply."""
        parts: list[Certificate] = [k.certificate for k in self.kernels]  # type: ignore[attr-defined]
        worst = max(parts, key=lambda part: part.sup_error)
        return dataclasses.replace(
            worst,
            sup_error=math.fsum(part.sup_error for part in parts),
            reach=min(part.reach for part in parts),
            n_lags=sum(part.n_lags for part in parts),
            mass=math.prod(part.mass for part in parts),
            negative_mass=math.fsum(part.negative_mass for part in parts),
            atom=math.prod(part.atom for part in parts),
            whole_lags=min(part.whole_lags for part in parts),
            unaccounted=math.fsum(part.unaccounted for part in parts),
            tolerance=math.fsum(part.tolerance for part in parts),
        )


def tabulate(pieces: Pieces, measure: Measure, atom: float, origin: str, certificate: Certificate) -> Tabulated:
    """Normalise a law and add what Phi is computed from."""
    law = pieces.times(1.0 / float(np.sum(measure.radial(pieces).masses)))
    component, error = measure.marginal(law)
    certificate = dataclasses.replace(certificate, sup_error=certificate.sup_error + error)
    component = component.times(1.0 / float(np.sum(component.masses)))
    return Tabulated(law, component, measure.ndim, atom, origin, certificate)


def compare(kernel: Tabulated, values: np.ndarray, x: np.ndarray, *, whole: int = 0) -> tuple[Tabulated, np.ndarray]:
    """Compare Phi with values at lags x, whole ones up to `whole` among them; the certificate then says how far it is.

    Returns
    -------
    kernel : Tabulated
    error : ndarray
        At each lag.
    """
    error = np.abs(kernel._mean_cosine(x) - values)
    at = int(np.argmax(error))
    certificate = dataclasses.replace(
        kernel.certificate, sup_error=float(error[at]), lag=float(x[at]), reach=float(x[-1]), n_lags=x.size,
        whole_lags=whole,
    )  # fmt: skip
    return dataclasses.replace(kernel, certificate=certificate), error
