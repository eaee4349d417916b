"""Special functions: quantiles for the samplers and, for the closed forms, the Matérn function on every namespace.

SciPy is imported inside the functions, so that `import rfrope` does not pay for it.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache
from types import ModuleType

import numpy as np

from rfrope import _array
from rfrope._array import Array

# From this order on the uniform expansion is at least as accurate as anything else; below it SciPy's K_nu is.
_UNIFORM_ORDER = 20.0
_UNIFORM_TERMS = 12
_NEGLIGIBLE = 1e-9  # t below which, for nu > 1, the Matérn function is 1 to rounding
_CIN_SERIES = 2.0  # arguments up to which the series of Cin is used
_SMALLEST = 1e-100  # t below which, for nu <= 1, two terms of its series are exact to rounding (and K_nu may overflow)


def symmetric_quantile(u: np.ndarray, lower: object) -> np.ndarray:
    """Quantile function of a symmetric law from its lower half, so that q(1 - u) = -q(u) bit for bit.

    Parameters
    ----------
    u : ndarray, in (0, 1)
    lower : callable
        Quantiles (<= 0) of arguments in (0, 1/2].
    """
    quantile = lower(np.minimum(u, 1.0 - u))  # type: ignore[operator]
    return np.where(u > 0.5, -quantile, quantile)


def normal_quantile(u: np.ndarray) -> np.ndarray:
    """Quantile function of the standard normal law."""
    from scipy.special import ndtri

    return symmetric_quantile(u, ndtri)


def laplace_quantile(u: np.ndarray) -> np.ndarray:
    """Quantile function of the Laplace law with density exp(-|x|)/2."""
    return symmetric_quantile(u, lambda v: np.log(2.0 * v))


def student_quantile(dof: float, u: np.ndarray) -> np.ndarray:
    """Quantile function of Student's t with `dof` degrees of freedom (any positive number)."""
    if dof == 1.0:  # -cot(pi v), by the side on which the argument of tan is small
        lower = lambda v: np.where(v < 0.25, -1.0 / np.tan(math.pi * v), -np.tan(math.pi * (0.5 - v)))  # noqa: E731
        return symmetric_quantile(u, lower)
    from scipy.special import stdtrit

    return symmetric_quantile(u, lambda v: stdtrit(dof, v))


def gamma_quantile(shape: float, u: np.ndarray, *, upper: bool = False) -> np.ndarray:
    """Quantile function of the Gamma law with the given shape and rate 1, at 1 - u if `upper`."""
    from scipy.special import gammainccinv, gammaincinv

    return gammainccinv(shape, u) if upper else gammaincinv(shape, u)


def exponential_quantile(u: np.ndarray, *, upper: bool = False) -> np.ndarray:
    """Quantile function of the exponential law with rate 1, at 1 - u if `upper`."""
    return -np.log(u) if upper else -np.log1p(-u)


def half_normal_upper_quantile(u: np.ndarray, *, upper: bool = False) -> np.ndarray:
    """Quantile function of abs(z), z standard normal, at 1 - u, or at u if `upper`."""
    from scipy.special import erfinv

    return math.sqrt(2.0) * erfinv(u) if upper else np.abs(normal_quantile(0.5 * u))


def log_uniform_quantile(low: float, high: float, log_ratio: float, u: np.ndarray) -> np.ndarray:
    """Quantile function of ``sign low (high/low)^U``, U uniform on (0, 1) and the sign independent of it.

    It is computed from the nearer end, and so never leaves the interval.
    """
    return symmetric_quantile(
        u,
        lambda v: np.where(v < 0.25, -high * np.exp(-2.0 * log_ratio * v), -low * np.exp(log_ratio * (1.0 - 2.0 * v))),
    )


def log_uniform_mean_cos(low: float, high: float, log_ratio: float, x: np.ndarray) -> np.ndarray:
    """Mean cosine ``[Ci(high x) - Ci(low x)] / log_ratio`` of a log-uniform frequency, for x >= 0; 1 at 0.

    Where the cosine integrals would cancel another form is taken: ``Cin(z) = gamma + ln z - Ci(z)`` and its series at
    small z, and for a narrow law that few waves fit into its integral, by 20 Gauss-Legendre nodes. The error is below
    1e-12 for ``high / low >= 1.001``.
    """
    from scipy.special import sici

    x = np.asarray(x)
    small, large = low * x, high * x
    direct = (sici(large)[1] - sici(np.maximum(small, _CIN_SERIES))[1]) / log_ratio
    value = np.where(small > _CIN_SERIES, direct, 1.0 - (_cin(large) - _cin(small)) / log_ratio)
    if log_ratio > 1.0:
        return value
    node, weight = np.polynomial.legendre.leggauss(20)
    narrow = (high - low) * x <= 2.0
    phase = np.where(narrow, small, 0.0)[..., None] * np.exp(log_ratio * (0.5 + 0.5 * node))
    return np.where(narrow, np.cos(phase) @ (0.5 * weight), value)


def _cin(z: np.ndarray) -> np.ndarray:
    """``Cin(z) = int_0^z (1 - cos t)/t dt`` (DLMF 6.2.12)."""
    from scipy.special import sici

    square, series = np.minimum(z, _CIN_SERIES) ** 2, 0.0
    for n in range(14, 0, -1):  # sum of (-1)^(n+1) z^2n / (2n (2n)!)
        series = square * ((-1.0) ** (n + 1) / (2 * n * math.factorial(2 * n)) + series)
    bounded = np.clip(z, _CIN_SERIES, np.finfo(np.float64).max)
    return np.where(z <= _CIN_SERIES, series, np.euler_gamma + np.log(bounded) - sici(bounded)[1])


def matern(nu: float, t: Array, xp: ModuleType) -> Array:
    """Matérn function ``2^(1-nu) / Gamma(nu) t^nu K_nu(t)``, 1 at t = 0, for t >= 0 and any order nu > 0.

    Half-integer orders below 20 have a closed form, orders from 20 on the uniform (Debye) expansion, both on every
    namespace; other orders come from SciPy's scaled K_nu on the host. Relative error below 1e-12 for t up to
    40 sqrt(2 nu).
    """
    if nu >= _UNIFORM_ORDER:
        return _matern_uniform(nu, t, xp)
    if (2.0 * nu) % 2.0 == 1.0:
        return _matern_half_integer(nu, t, xp)
    return _array.apply_on_host(lambda v: _matern_scipy(nu, v), t, xp)


def bessel_k0(t: Array, xp: ModuleType) -> Array:
    """K_0(t) for t >= 0, infinite at 0, from SciPy on the host."""
    from scipy.special import k0

    return _array.apply_on_host(k0, t, xp)


def _matern_half_integer(nu: float, t: Array, xp: ModuleType) -> Array:
    """``exp(-t) p!/(2p)! sum_i (p+i)!/(i!(p-i)!) (2t)^(p-i)``, nu = p + 1/2 (DLMF 10.49.12): all terms positive."""
    p = int(nu)
    coefficients = [
        float(
            Fraction(
                math.factorial(p) * math.factorial(p + i),
                math.factorial(2 * p) * math.factorial(i) * math.factorial(p - i),
            )
        )
        * 2.0 ** (p - i)
        for i in range(p + 1)
    ]
    t = xp.clip(t, 0.0, 1e6)  # exp(-t) has long been 0 there, and t^p must not be infinite
    polynomial = xp.zeros_like(t) + coefficients[0]
    for coefficient in coefficients[1:]:
        polynomial = polynomial * t + coefficient
    return xp.exp(-t) * polynomial


def _matern_scipy(nu: float, t: np.ndarray) -> np.ndarray:
    from scipy.special import gamma, kve

    t = np.asarray(t)
    small = t < (_SMALLEST if nu <= 1.0 else _NEGLIGIBLE)
    safe = np.where(small, 1.0, np.minimum(t, 1e6))
    value = 2.0 ** (1.0 - nu) / gamma(nu) * (safe**nu * kve(nu, safe)) * np.exp(-safe)
    limit = 1.0 - gamma(1.0 - nu) / gamma(1.0 + nu) * 4.0**-nu * t ** (2.0 * nu) if nu < 1.0 else 1.0
    return np.minimum(np.where(small, limit, value), 1.0)


def _matern_uniform(nu: float, t: Array, xp: ModuleType) -> Array:
    """Debye's expansion of K_nu (DLMF 10.41.4) with Stirling's of Gamma(nu) taken out by hand: nothing large cancels.

    With z = t/nu, w = sqrt(1 + z^2) and p = 1/w the logarithm is
    ``-nu [(w - 1) - log1p((w - 1)/2)] - log(w)/2 + log(U(p)/U(1))``, U(p) = sum_k (-1)^k u_k(p) nu^-k.
    """
    z = xp.clip(t * (1.0 / nu), 0.0, 1e6)
    w = xp.sqrt(1.0 + z * z)
    excess = z * z / (1.0 + w)
    p = 1.0 / w
    series = _debye_sum(nu, p) / _debye_sum(nu, 1.0)
    return series * xp.sqrt(p) * xp.exp(-nu * (excess - xp.log1p(0.5 * excess)))


def _debye_sum(nu: float, p: Array) -> Array:
    square, total = p * p, 0.0
    for k in reversed(range(_UNIFORM_TERMS)):
        polynomial = 0.0
        for coefficient in reversed(_debye_polynomials()[k]):
            polynomial = polynomial * square + coefficient
        total = total * (-p / nu) + polynomial
    return total


@lru_cache(maxsize=1)
def _debye_polynomials() -> list[list[float]]:
    """``u_k(p) / p^k`` as polynomials in p^2, lowest power first, by the recurrence DLMF 10.41.9 in exact fractions."""
    rows, u = [], [Fraction(1)]  # u: coefficients of u_k in powers of p
    for k in range(_UNIFORM_TERMS):
        rows.append([float(c) for c in u[k::2]])
        derivative = [i * c for i, c in enumerate(u)][1:]
        following = [Fraction(0)] * (len(u) + 3)
        for i, c in enumerate(derivative):
            following[i + 2] += c / 2
            following[i + 4] -= c / 2
        for i, c in enumerate(u):
            following[i + 1] += c / (8 * (i + 1))
            following[i + 3] -= 5 * c / (8 * (i + 3))
        u = following
    return rows
