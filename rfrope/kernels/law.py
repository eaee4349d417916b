"""A transport as data, for compiled loops that cannot call a kernel's Python code."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

Quantile = tuple[Callable[..., np.ndarray], tuple[float, ...]]

_EXTREME = 1e100  # factors beyond it, or below its inverse, are left to the transport, which cuts what overflows


@dataclass(frozen=True)
class Law:
    """A transport whose component j is ``factors[j] * radius(u_0) * quantile(u_j)``.

    Attributes
    ----------
    component : tuple
        ``(quantile, parameters)``: an array function ``quantile(*parameters, u)``, odd about 1/2; or
        ``("uniform", ())`` for 2u - 1, or ``("log_uniform", (s,))`` for ``sign(2u - 1) exp(s abs(2u - 1))``.
    factors : tuple of float
        One for each axis.
    radius : tuple or None
        ``(quantile, parameters)``: positive, ``quantile(*parameters, v, upper=False)`` at v, and with ``upper=True`` at
        1 - v. It takes the first column of uniforms. Without it the columns are the components.
    """

    component: tuple[str | Callable[..., np.ndarray], tuple[float, ...]]
    factors: tuple[float, ...]
    radius: Quantile | None = None

    def scaled(self, divisor: float | tuple[float, ...]) -> Law | None:
        """Return the law of frequencies over `divisor`, or None where that needs more care than a product."""
        divisors = np.broadcast_to(divisor, len(self.factors))
        with np.errstate(over="ignore"):
            factors = tuple((np.asarray(self.factors) / divisors).tolist())
        fits = all(1.0 / _EXTREME < f < _EXTREME for f in factors)
        return dataclasses.replace(self, factors=factors) if fits else None
