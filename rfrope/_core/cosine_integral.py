"""Cosine integrals: the mean cosine of a log-uniform phase, and Ci itself in operations that have derivatives.

SciPy and CuPy have Ci for their own arrays. For every other library it is composed here of operations that the library
has, so that it runs where the arrays are and can be differentiated, as often as one likes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from types import ModuleType

import numpy as np

from rfrope._core import array, elementwise
from rfrope._core.array import Array
from rfrope._core.special import interpolated, polynomial

_CIN_SERIES = 2.0  # arguments up to which the series of Cin is used
_CI_SERIES = 6.0  # and up to which Ci is made of it
_AUXILIARY_TERMS = 24  # the Chebyshev series above has so many
_LARGEST = float(np.finfo(np.float64).max)


def of_library(xp: ModuleType) -> Callable[[Array], Array]:
    """Return Ci(z) for z >= 2, infinity included: that of SciPy or CuPy, or one in operations of the library."""
    special = elementwise.special_functions(xp)
    if special is None:
        return lambda z: _cosine_integral(z, xp)
    return lambda z: special.sici(z)[1]


def log_uniform_mean_cos(
    small: Array, large: Array, log_ratio: float, xp: ModuleType, small_rest: Array | float = 0.0
) -> Array:
    """Mean cosine ``[Ci(large) - Ci(small)] / log_ratio`` of a log-uniform phase; 1 where both ends are 0.

    Where the cosine integrals would cancel another form is taken: ``Cin(z) = gamma + ln z - Ci(z)`` and its series at
    small z, and for a narrow law that few waves fit into its integral, by 20 Gauss-Legendre nodes. The error is below
    1e-15, and what the rounding of the ends means: for a narrow law one ulp of `small` moves the result by up to
    ``1e-16 / log_ratio``, so `small_rest` takes what its rounding took away.
    """
    ci = of_library(xp)
    clipped = array.clip(small, _CIN_SERIES, None, xp)
    direct = (ci(array.clip(large, _CIN_SERIES, None, xp)) - ci(clipped)) / log_ratio
    if log_ratio > 1.0:
        cin = 1.0 - (_cin(large, ci, xp) - _cin(small, ci, xp)) / log_ratio
        return xp.where(small > _CIN_SERIES, direct, cin)
    if not isinstance(small_rest, float):
        shift = xp.cos(clipped) * xp.sin(small_rest) - 2.0 * xp.sin(clipped) * xp.sin(0.5 * small_rest) ** 2
        direct = direct - shift / clipped / log_ratio
    narrow = -math.expm1(-log_ratio) * large <= 4.0  # elsewhere small is above 4 / (e - 1), which exceeds that 2
    half = xp.where(narrow, 0.5 * large, xp.zeros_like(large))
    sin, cos, integral = xp.sin(half), xp.cos(half), xp.ones_like(half)
    for node, weight in zip(*(v.tolist() for v in np.polynomial.legendre.leggauss(20)), strict=True):
        away = half * math.expm1(-log_ratio * (0.5 + 0.5 * node))  # small, so that its rounding is
        integral = integral - weight * (sin * xp.cos(away) + cos * xp.sin(away)) ** 2
    return xp.where(narrow, integral, direct)


def _cin(z: Array, ci: Callable[[Array], Array], xp: ModuleType) -> Array:
    """``Cin(z) = int_0^z (1 - cos t)/t dt`` (DLMF 6.2.12)."""
    near = z <= _CIN_SERIES  # no clip, whose derivative at its ends may be half of one
    series = _cin_series(xp.where(near, z, xp.zeros_like(z)), 14)
    bounded = array.clip(z, _CIN_SERIES, min(_LARGEST, float(xp.finfo(z.dtype).max)), xp)
    return xp.where(near, series, np.euler_gamma + xp.log(bounded) - ci(bounded))


def _cin_series(z: Array, terms: int) -> Array:
    """Sum of ``(-1)^(n+1) z^2n / (2n (2n)!)``."""
    square, series = z * z, 0.0
    for n in range(terms, 0, -1):
        series = square * ((-1.0) ** (n + 1) / (2 * n * math.factorial(2 * n)) + series)
    return series


def _cosine_integral(z: Array, xp: ModuleType) -> Array:
    """``f(z) sin z - g(z) cos z`` (DLMF 6.2.19), up to 6 from Cin; error below 4e-15, beside what rounding z means."""
    near, far = z <= _CI_SERIES, z <= _LARGEST
    small = xp.where(near, z, xp.ones_like(z))
    large = xp.where(near | ~far, xp.full_like(z, _CI_SERIES), z)
    f, g = (polynomial(c, 2.0 * _CI_SERIES / large - 1.0) for c in _auxiliary_polynomials())
    direct = (f * xp.sin(large) - g / large * xp.cos(large)) / large
    found = xp.where(near, np.euler_gamma + xp.log(small) - _cin_series(small, 20), direct)
    return xp.where(far, found, xp.where(xp.isnan(z), z, xp.zeros_like(z)))


@lru_cache(maxsize=1)
def _auxiliary_polynomials() -> tuple[list[float], list[float]]:
    """``z f(z)`` and ``z^2 g(z)`` as polynomials in 12/z - 1, for z >= 6, from ``exp(iz) E1(iz) = g - i f``."""
    from scipy.special import exp1

    angle = math.pi * (np.arange(_AUXILIARY_TERMS) + 0.5) / _AUXILIARY_TERMS
    z = 2.0 * _CI_SERIES / (1.0 + np.cos(angle))
    values = np.exp(1j * z) * exp1(1j * z)
    return interpolated(-values.imag * z), interpolated(values.real * z * z)
