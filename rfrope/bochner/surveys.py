"""A function looked at on grids before anything is computed from it: what panels overlook, and witnesses."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rfrope.bochner import witnesses
from rfrope.bochner.lags import Lags
from rfrope.bochner.piecewise import Function
from rfrope.bochner.verdicts import Witness

WHOLE = 2**17  # whole lags at which a function is looked at
_FINE = 2**13  # points of a grid in units of the scale
_SPACINGS = 2.0**-6 * np.array([1.0, 0.6180339887498949, 2.0**-5])  # between those, in scales
_NEGLIGIBLE = 1e-17  # magnitude beyond which a grid need not reach
_LONGEST = 2**15  # points of a grid whose quadratic forms are taken
_MULTIPLES = 256  # how many, of a lag where something unexpected stands
_SEEN = 1e-9  # by how much phi may differ from its panels at whole lags
_CLUSTERS = 64  # how many, of such lags


@dataclass(frozen=True)
class Survey:
    """Values of a function on grids.

    Attributes
    ----------
    phi : callable
    whole : ndarray
        At lags 0, 1, ..., `WHOLE`.
    fine : tuple of pairs
        Spacing and values, in parts of the scale.
    """

    phi: Function
    whole: np.ndarray
    fine: tuple[tuple[float, np.ndarray], ...]

    @classmethod
    def of(cls, phi: Function, scale: float | None) -> Survey:
        """Look at phi at whole lags, and on grids in units of its scale if that is known."""
        fine = () if scale is None else tuple((h, phi(h * np.arange(_FINE))) for h in (scale * _SPACINGS).tolist())
        return cls(phi, phi(np.arange(WHOLE + 1.0)), fine)

    def witness(self, level: float) -> Witness | None:
        """A quadratic form on one of the grids that lies below ``-level``, if there is one."""
        for spacing, values in (*self.fine, (1.0, self.whole)):
            found = witnesses.on_grid(_until_negligible(values), spacing, level)
            if found is not None:
                return found
        return None

    def overlooked(self, lags: Lags) -> np.ndarray:
        """Whole lags where phi is not what its panels say, or not yet its limit beyond them."""
        if lags.taper < np.inf:
            return np.empty(0)
        x = np.arange(self.whole.size, dtype=np.float64)
        inside = x <= lags.reach
        expected = np.full(x.size, lags.atom)
        expected[inside] += lags.pieces(x[inside])
        (at,) = np.nonzero(np.abs(self.whole - expected) > max(_SEEN, 100.0 * lags.noise))
        return x[at]

    def witness_at_multiples(self, overlooked: np.ndarray, level: float) -> Witness | None:
        """A witness of points that lie multiples of the largest such value's lag apart."""
        if not overlooked.size:
            return None
        lag = float(overlooked[np.argmax(np.abs(self.whole[overlooked.astype(int)]))])
        return witnesses.on_grid(self.phi(lag * np.arange(_MULTIPLES)), lag, level)


def clusters(lags: np.ndarray) -> np.ndarray:
    """Edges about runs of neighbouring whole lags, for panels that would overlook them."""
    if not lags.size:
        return lags
    breaks = np.nonzero(np.diff(lags) > 1.0)[0]
    starts, ends = lags[np.append(0, breaks + 1)], lags[np.append(breaks, lags.size - 1)]
    return np.unique(np.concatenate([starts[:_CLUSTERS] - 1.0, ends[:_CLUSTERS] + 1.0]))


def _until_negligible(values: np.ndarray) -> np.ndarray:
    last = int(np.max(np.nonzero(np.abs(values) > _NEGLIGIBLE)[0], initial=0))
    return values[: max(64, min(2 * last, _LONGEST))]
