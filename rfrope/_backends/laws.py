"""Stated laws as numbers, for compiled loops and CUDA kernels: which law, its parameter, factors and tables.

A kernel may state its transport as data (`Kernel.stated_law`): each component of a frequency is a one-dimensional
quantile, times a factor and perhaps a radius that all components share. Quantiles are tabulated once, as piecewise
polynomials that interpolate the function which the transport itself calls.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from rfrope._core.quantiles import OCTAVES, polynomials

# Laws of a component
UNIFORM, LOG_UNIFORM, TABLE = range(3)

# A table of a quantile has a polynomial of ROW coefficients for each of PIECES equal parts of each octave of
# v = min(u, 1 - u); one side of u = 1/2 takes SIDE rows
PIECES, ROW = 128, 6
SIDE = OCTAVES * PIECES

_COMPONENTS = {"uniform": UNIFORM, "log_uniform": LOG_UNIFORM}
_ERROR = 1e-12  # that a table may have, in the middle between its nodes
NO_TABLE = np.empty(0)


class Stated(NamedTuple):
    """A law: component j is ``factors[j] * radius(u_0) * quantile(u_j)``; tables are empty where there is none."""

    code: int
    parameter: float
    factors: np.ndarray
    table: np.ndarray
    radius: np.ndarray


def tabulate_law(kernel: Any) -> Stated | None:
    """Law of a kernel, or None if its own transport must be called."""
    return _stated(kernel) if isinstance(kernel, Hashable) else _stated.__wrapped__(kernel)


@lru_cache(maxsize=32)
def _stated(kernel: Any) -> Stated | None:
    law = kernel.stated_law()
    if law is None:
        return None
    table: np.ndarray | None = NO_TABLE
    radius: np.ndarray | None = NO_TABLE
    kind, parameters = law.component
    if not isinstance(kind, str):
        table = component_table(kind, parameters)
    if law.radius is not None:
        radius = radius_table(*law.radius)
    if table is None or radius is None:
        return None
    code = TABLE if table.size else _COMPONENTS[kind]
    return Stated(code, parameters[0] if parameters else 0.0, np.array(law.factors), table, radius)


@lru_cache(maxsize=32)
def component_table(quantile: Callable[..., np.ndarray], parameters: tuple[float, ...]) -> np.ndarray | None:
    """Table of ``quantile(v)/(2 v - 1)``, smooth and positive up to v = 1/2."""
    return table(lambda v: quantile(*parameters, v) / (2.0 * v - 1.0))


@lru_cache(maxsize=32)
def radius_table(quantile: Callable[..., np.ndarray], parameters: tuple[float, ...]) -> np.ndarray | None:
    """Tables of a positive quantile at v, then of that at 1 - v."""
    lower = table(lambda v: quantile(*parameters, v, upper=False))
    upper = table(lambda v: quantile(*parameters, v, upper=True))
    return None if lower is None or upper is None else np.concatenate([lower, upper])


def table(function: Callable[[np.ndarray], np.ndarray]) -> np.ndarray | None:
    """Coefficients of a function's polynomials, one piece after the other; None if they are not the function."""
    found, good = polynomials(function, np.arange(SIDE), PIECES, ROW, _ERROR)
    return found.reshape(-1) if np.all(good) else None
