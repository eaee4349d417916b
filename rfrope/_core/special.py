"""Special functions of the closed forms on every namespace: Bessel's K and J, and cosine integrals.

They run where their arrays are, look at no value and copy nothing. SciPy and CuPy have Ci for their own arrays; for
every other library it is composed of operations that the library has, so that it can be differentiated, as often as one
likes. SciPy is imported inside the functions, so that `import rfrope` does not pay for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import lru_cache, partial
from types import ModuleType

import numpy as np

from rfrope._core import array
from rfrope._core.array import Array

UNIFORM_ORDER = 20.0  # orders from which the uniform expansion of K_nu is used
_UNIFORM_TERMS = 12
_TEMME = 2.0  # arguments up to which Temme's series of K_nu is used
_TEMME_TERMS = 13
_LARGE_TERMS = 20  # terms of the Chebyshev series of K_nu, and of those of J_0 and J_1, above
_SPHERE_SERIES = 5.0  # arguments up to which the series of J_nu is used, for large orders more
_VANISHED = 1e6  # t from which on exp(-t) has long been 0, and powers of t are still finite
_NEGLIGIBLE = 1e-30  # t up to which, for nu > 3/2, the Matérn function is 1 to rounding, and so is its slope 0

_CIN_SERIES = 2.0  # arguments up to which the series of Cin is used
_CI_SERIES = 6.0  # and up to which Ci is made of it
_AUXILIARY_TERMS = 24  # the Chebyshev series above has so many
_LARGEST = float(np.finfo(np.float64).max)

# 1/Gamma(1 + z) = sum_k g_k z^k (DLMF 5.7.1): g_1, g_3, g_5, ...; the next one, 7.8e-12, is rounding for |z| <= 1/2
_RECIPROCAL_GAMMA = (
    0.5772156649015329, -0.042002635034095236, -0.04219773455554433, 0.0072189432466631, -0.00021524167411495098,
    -2.0134854780788239e-05, 1.133027231981696e-06, 6.1160951044814155e-09, -1.18127457048702e-09,
)  # fmt: skip


@lru_cache(maxsize=256)
def log_gamma_ratio(a: float, halves: int) -> float:
    """``ln Gamma(a + halves/2) - ln Gamma(a)`` for a > 0, without the loss of digits of that difference."""
    odd, step = halves % 2, 0.0
    if odd and a < 20.0:
        step = math.lgamma(a + 0.5) - math.lgamma(a)
    elif odd:  # DLMF 5.11.8
        z = 1.0 / (a * a)
        step = 0.5 * math.log(a)
        step += (-1.0 / 8 + z * (1.0 / 192 + z * (-1.0 / 640 + z * (17.0 / 14336 - z * 31.0 / 18432)))) / a
    return step + math.fsum(math.log(a + 0.5 * odd + i) for i in range(halves // 2))


def log1p_square(x: Array, xp: ModuleType) -> Array:
    """``ln(1 + x^2)`` for x >= 0, also where the square overflows."""
    below, one = x < 1.0, xp.ones_like(x)
    small, large = xp.where(below, x, one), xp.where(below, one, x)
    return xp.log1p(small * small / large / large) + 2.0 * xp.log(large)


def sinc(x: Array, xp: ModuleType) -> Array:
    """``sin(x)/x``, 1 at 0 and 0 at infinity; below 1 a series, of which the derivatives keep their digits."""
    near, infinite = xp.abs(x) < 1.0, xp.isinf(x)
    square = xp.where(near, x, xp.zeros_like(x)) ** 2
    series = polynomial([(-1.0) ** n / math.factorial(2 * n + 1) for n in range(10)], square)
    safe = xp.where(near | infinite, xp.ones_like(x), x)
    return xp.where(near, series, xp.where(infinite, xp.zeros_like(x), xp.sin(safe) / safe))


def matern(nu: float, t: Array, xp: ModuleType) -> Array:
    """Matérn function ``2^(1-nu) / Gamma(nu) t^nu K_nu(t)``, 1 at t = 0, for t >= 0 and any order nu > 0.

    Half-integer orders below 20 have a closed form, orders from 20 on the uniform (Debye) expansion; other orders come
    from Temme's series and a Chebyshev series of K of an order of at most 3/2 and its recurrence. Relative error below
    1e-12 for t up to 40 sqrt(2 nu).
    """
    if nu >= UNIFORM_ORDER:
        return _matern_uniform(nu, t, xp)
    if (2.0 * nu) % 2.0 == 1.0:
        return _matern_half_integer(nu, t, xp)
    return array.map_blocks(partial(_matern_recurrence, nu), t, xp)


def bessel_k0(t: Array, xp: ModuleType) -> Array:
    """K_0(t) for t >= 0, infinite at 0; relative error below 1e-14 for t up to 700, where it underflows soon."""
    return array.map_blocks(_bessel_k0, t, xp)


def _bessel_k0(t: Array, xp: ModuleType) -> Array:
    pole = t == 0.0
    value, _ = _power_times_bessel_k(0.0, (True, False), xp.where(pole, xp.ones_like(t), t), xp)
    return xp.where(pole, xp.full_like(t, math.inf), value)


def _matern_recurrence(nu: float, t: Array, xp: ModuleType) -> Array:
    """Matérn function of orders below 20 by the recurrence of K (DLMF 10.29.1), in which all terms are positive.

    With nu = mu + n, abs(mu) <= 1/2, and z = t^2/4 it is ``M_(e+1) = M_e + z / (e (e-1)) M_(e-1)``.
    """
    steps = round(nu)
    mu = nu - steps
    tiny = _NEGLIGIBLE if steps > 1 or isinstance(t, np.ndarray) else 4.0 * float(xp.finfo(t.dtype).smallest_normal)
    at_peak = t <= (tiny if steps else 0.0)
    one = xp.ones_like(t)
    t = xp.where(at_peak, one, t)
    t = xp.where(t > _VANISHED, one * _VANISHED, t)
    zeroth, first = _power_times_bessel_k(mu, (steps != 1, steps > 0), t, xp)
    if steps == 0:
        value = nu * 2.0 ** (1.0 - nu) / math.gamma(1.0 + nu) * zeroth
    else:
        value = 2.0**-mu / math.gamma(1.0 + mu) * first
    if steps > 1:
        z = 0.25 * t * t
        before, value = value, value + 2.0 ** (1.0 - mu) / math.gamma(2.0 + mu) * z * zeroth
        for e in (mu + step for step in range(2, steps)):
            before, value = value, value + z * before * (1.0 / (e * (e - 1.0)))
    return xp.where(at_peak, one, value)


def sphere_mean_cos(order: float, t: Array, xp: ModuleType) -> Array:
    """``Gamma(order + 1) (2/t)^order J_order(t)`` for t >= 0 and orders 0, 1/2, 1, ...; 1 at 0 and 0 at infinity.

    It is the mean of ``cos(t x)``, x the first coordinate of a point of the unit sphere in 2 order + 2 dimensions, or
    of the unit ball in 2 order. Small arguments take the power series, others the recurrence from ``cos t`` and
    ``sin t / t``, or from J_0 and J_1. The absolute error is below 1e-14, beside what the rounding of t means, for
    orders up to 8.
    """
    return array.map_blocks(partial(_sphere_mean_cos, order), t, xp)


def sphere_series(order: float) -> list[float]:
    """Coefficients of powers of ``t^2``, lowest first, of `sphere_mean_cos`."""
    coefficients = [1.0]
    for step in range(1, 12):
        coefficients.append(coefficients[-1] * -0.25 / (step * (order + step)))
    return coefficients


def _sphere_mean_cos(order: float, t: Array, xp: ModuleType) -> Array:
    """Recurrence: ``L_(e+1) = 4 e (e+1) / t^2 (L_e - L_(e-1))`` (DLMF 10.6.1)."""
    bound = max(_SPHERE_SERIES, order + 2.0)
    z = 0.25 * array.clip(t, 0.0, bound, xp) ** 2
    coefficients = [1.0]
    while abs(coefficients[-1]) * (0.5 * bound) ** (2 * len(coefficients) - 2) > 1e-19:
        step = len(coefficients)
        coefficients.append(-coefficients[-1] / (step * (order + step)))
    far = (t > bound) & ~xp.isinf(t)
    large = xp.where(far, t, xp.ones_like(t) * bound)
    if order % 1.0:
        e, before, value = 0.5, xp.cos(large), xp.sin(large) / large
    else:
        e, (before, value) = 1.0, _bessel_j(large, xp)
        value = 2.0 * value / large
    if e > order:
        value = before
    for step in range(round(order - e)):
        scale = 4.0 * (e + step) * (e + step + 1.0) / large / large
        before, value = value, scale * (value - before)
    return xp.where(far, value, xp.where(xp.isinf(t), xp.zeros_like(t), polynomial(coefficients, z)))


def _bessel_j(t: Array, xp: ModuleType) -> tuple[Array, Array]:
    """J_0 and J_1 for t >= 5: ``sqrt(2/(pi t)) [P cos(t - (order/2 + 1/4) pi) - Q sin(...)]`` (DLMF 10.17.3)."""
    y, cos, sin = 2.0 * _SPHERE_SERIES / t - 1.0, xp.cos(t), xp.sin(t)
    (p0, q0), (p1, q1) = ([polynomial(c, y) for c in _hankel_polynomials(order)] for order in (0, 1))
    size = xp.sqrt(1.0 / (math.pi * t))
    return size * (p0 * (cos + sin) - q0 * (sin - cos)), size * (p1 * (sin - cos) + q1 * (sin + cos))


@lru_cache(maxsize=2)
def _hankel_polynomials(order: int) -> tuple[list[float], list[float]]:
    """P and Q as polynomials in 10/t - 1, for t >= 5: ``P + iQ`` is ``sqrt(2z/pi) exp(z) K_order(z)`` at z = -it."""

    def values(y: np.ndarray) -> np.ndarray:
        return _scaled_bessel_k(order, -2j * _SPHERE_SERIES / (1.0 + y)) * math.sqrt(2.0 / math.pi)

    return _interpolate(lambda y: values(y).real, _LARGE_TERMS), _interpolate(lambda y: values(y).imag, _LARGE_TERMS)


def _power_times_bessel_k(
    mu: float, wanted: tuple[bool, bool], t: Array, xp: ModuleType
) -> tuple[Array | None, Array | None]:
    """``t^mu K_mu(t)`` and ``t^(mu+1) K_(mu+1)(t)``, those that are wanted, for abs(mu) <= 1/2 and t > 0.

    Up to t = 2 it is Temme's series (J. Comput. Phys. 19, 1975), reduced to ``A(z) + W B(z)`` with polynomials in
    z = t^2/4 and ``W = (1 - (t/2)^(2 mu)) / (2 mu)``, which is -ln(t/2) at mu = 0; above ``exp(-t) t^(-1/2)`` times a
    polynomial in 4/t - 1.
    """
    near = t <= _TEMME
    small = xp.where(near, t, xp.ones_like(t))
    large = xp.where(near, xp.ones_like(t) * _TEMME, t)
    z, y, decay = 0.25 * small * small, 4.0 / large - 1.0, xp.exp(-large)
    found: list[Array | None] = [None, None]
    power = not (wanted[0] or isinstance(t, np.ndarray))  # else the slope of z W near 0 is 0 times infinity
    w = temme_w(mu, power, xp.log(small) - math.log(2.0), z, xp)
    for i, (constant, slope) in enumerate(temme_polynomials(mu)):
        if wanted[i]:
            series = polynomial(constant, z) + w * polynomial(slope[power:], z)
            scaled = polynomial(_large_polynomial(mu + i), y)
            found[i] = xp.where(near, series, scaled * decay * large ** (mu + i - 0.5))
    return found[0], found[1]


def temme_w(mu: float, power: int, half: Array, z: Array, xp: ModuleType) -> Array:
    """``z^power (1 - (t/2)^(2 mu)) / (2 mu)``, of ``half = ln(t/2)`` and z; power is 0 or 1."""
    scale, exponent = z if power else 1.0, (2.0 * mu) * half
    if not mu or isinstance(half, np.ndarray):
        return (xp.expm1(exponent) * (-0.5 / mu) if mu else -half) * scale
    near = xp.abs(exponent) < 0.5  # the derivative of expm1 is taken from its value, which near -1 has lost it
    close = xp.expm1(xp.where(near, exponent, xp.zeros_like(half))) * (-0.5 / mu) * scale
    return xp.where(near, close, (scale - xp.exp(exponent + 2.0 * power * half)) * (0.5 / mu))


def polynomial(coefficients: Sequence[float], x: Array) -> Array:
    """Horner's rule, from the lowest power."""
    *lower, value = coefficients
    for coefficient in reversed(lower):
        value = value * x + coefficient
    return value


_Polynomials = tuple[list[float], list[float]]


@lru_cache(maxsize=256)
def temme_polynomials(mu: float) -> tuple[_Polynomials, _Polynomials]:
    """Coefficients of ``t^mu K_mu = A + W B`` in powers of t^2/4, and those of ``t^(mu+1) K_(mu+1)``.

    In Temme's notation f_k, p_k and q_k are combinations of f_0, p_0 and q_0, and these are linear in W.
    """
    gamma_plus, gamma_minus = math.gamma(1.0 + mu), math.gamma(1.0 - mu)
    gamma_1 = -sum(g * mu ** (2 * i) for i, g in enumerate(_RECIPROCAL_GAMMA))
    gamma_2 = 0.5 * (1.0 / gamma_plus + 1.0 / gamma_minus)
    sine = mu * math.pi / math.sin(mu * math.pi) if mu else 1.0
    constant = 2.0**mu * np.array([sine * gamma_1, 0.5 * gamma_plus, 0.5 * gamma_minus])
    slope = 2.0**mu * np.array([sine * (gamma_2 - mu * gamma_1), 0.0, -mu * gamma_minus])
    f, p, q = np.eye(3)
    rows, following = [f], [2.0 * p]
    for k in range(1, _TEMME_TERMS):
        f, p, q = (k * f + p + q) / (k * k - mu * mu), p / (k - mu), q / (k + mu)
        rows.append(f / math.factorial(k))
        following.append(2.0 / math.factorial(k) * (p - k * f))
    both = (np.stack(rows), np.stack(following))
    zeroth, first = (((part @ constant).tolist(), (part @ slope).tolist()) for part in both)
    return zeroth, first


@lru_cache(maxsize=256)
def _large_polynomial(order: float) -> list[float]:
    """Polynomial in y = 4/t - 1 that is ``sqrt(t) exp(t) K_order(t)`` for t >= 2, from values at Chebyshev's points."""
    return _interpolate(lambda y: _scaled_bessel_k(order, 4.0 / (1.0 + y)), _LARGE_TERMS)


def _scaled_bessel_k(order: float, t: np.ndarray) -> np.ndarray:
    """``sqrt(t) exp(t) K_order(t)`` for t >= 2, and for imaginary t from 5i on.

    It is ``sqrt(t) int exp(-x^2) cosh(2 order asinh(x / sqrt(2t))) 2 / sqrt(2t + x^2) dx``, x > 0 (DLMF 10.32.9 with
    ``x = sqrt(2t) sinh(s/2)``), by the trapezoidal rule, whose error is below 1e-19 with this step.
    """
    x, t = 0.25 * np.arange(27), t[:, None]
    weight = np.where(x == 0.0, 0.125, 0.25) * np.exp(-x * x)
    integrand = np.cosh(2.0 * order * np.arcsinh(x / np.sqrt(2.0 * t))) * 2.0 / np.sqrt(2.0 * t + x * x)
    return np.sqrt(t[:, 0]) * (integrand @ weight)


def _interpolate(function: Callable[[np.ndarray], np.ndarray], count: int) -> list[float]:
    """Polynomial through a function's values at Chebyshev's points of (-1, 1), `count` of them."""
    order = np.arange(count)
    angle = math.pi * (order + 0.5) / count
    series = 2.0 / count * np.cos(np.outer(order, angle)) @ function(np.cos(angle))
    series[0] *= 0.5
    return np.polynomial.chebyshev.cheb2poly(series).tolist()


def _matern_half_integer(nu: float, t: Array, xp: ModuleType) -> Array:
    """``exp(-t) p!/(2p)! sum_i (p+i)!/(i!(p-i)!) (2t)^(p-i)``, nu = p + 1/2 (DLMF 10.49.12): all terms positive."""
    t = array.clip(t, 0.0, _VANISHED, xp)
    return xp.exp(-t) * polynomial(_half_integer_polynomial(int(nu)), t)


@lru_cache(maxsize=64)
def _half_integer_polynomial(p: int) -> list[float]:
    """Coefficients of powers of t, lowest first."""
    return [
        math.factorial(p)
        * math.factorial(p + i)
        * 2 ** (p - i)
        / (math.factorial(2 * p) * math.factorial(i) * math.factorial(p - i))
        for i in range(p, -1, -1)
    ]


def _matern_uniform(nu: float, t: Array, xp: ModuleType) -> Array:
    """Debye's expansion of K_nu (DLMF 10.41.4) with Stirling's of Gamma(nu) taken out by hand: nothing large cancels.

    With z = t/nu, w = sqrt(1 + z^2) and p = 1/w the logarithm is
    ``-nu [(w - 1) - log1p((w - 1)/2)] - log(w)/2 + log(U(p)/U(1))``, U(p) = sum_k (-1)^k u_k(p) nu^-k.
    """
    z = array.clip(t * (1.0 / nu), 0.0, 1e6, xp)
    w = xp.sqrt(1.0 + z * z)
    excess = z * z / (1.0 + w)
    p = 1.0 / w
    series = _debye_sum(nu, p) / _debye_sum(nu, 1.0)
    return series * xp.sqrt(p) * xp.exp(-nu * (excess - xp.log1p(0.5 * excess)))


def _debye_sum(nu: float, p: Array) -> Array:
    square, total = p * p, 0.0
    for k in reversed(range(_UNIFORM_TERMS)):
        total = total * (-p / nu) + polynomial(_debye_polynomials()[k], square)
    return total


@lru_cache(maxsize=1)
def _debye_polynomials() -> list[list[float]]:
    """``u_k(p) / p^k`` as polynomials in p^2, lowest power first, by the recurrence DLMF 10.41.9 in exact fractions."""
    algebra, half, eighth = np.polynomial.polynomial, Fraction(1, 2), Fraction(1, 8)
    rows, u = [], np.array([Fraction(1)])  # u: coefficients of u_k in powers of p
    for k in range(_UNIFORM_TERMS):
        rows.append([float(c) for c in u[k::2]])
        slope = algebra.polymul(np.array([0, 0, half, 0, -half]), algebra.polyder(u))
        u = algebra.polyadd(slope, algebra.polyint(algebra.polymul(np.array([eighth, 0, -5 * eighth]), u)))
    return rows


# -- cosine integrals --------------------------------------------------------------------------------------------------


def cosine_integral_of(xp: ModuleType) -> Callable[[Array], Array]:
    """Return Ci(z) for z >= 2, infinity included: that of SciPy or CuPy, or one in operations of the library."""
    special = array.special_functions(xp)
    if special is None:
        return lambda z: _cosine_integral(z, xp)
    return lambda z: special.sici(z)[1]


def log_uniform_mean_cos(small: Array, large: Array, log_ratio: float, xp: ModuleType) -> Array:
    """Mean cosine ``[Ci(large) - Ci(small)] / log_ratio`` of a log-uniform phase; 1 where both ends are 0.

    Where the cosine integrals would cancel another form is taken: ``Cin(z) = gamma + ln z - Ci(z)`` and its series at
    small z, and for a narrow law that few waves fit into its integral, by 20 Gauss-Legendre nodes. The error is below
    1e-15, and what the rounding of the ends means: for a narrow law one ulp of `small` moves the result by up to
    ``1e-16 / log_ratio``.
    """
    ci = cosine_integral_of(xp)
    clipped = array.clip(small, _CIN_SERIES, None, xp)
    direct = (ci(array.clip(large, _CIN_SERIES, None, xp)) - ci(clipped)) / log_ratio
    if log_ratio > 1.0:
        cin = 1.0 - (_cin(large, ci, xp) - _cin(small, ci, xp)) / log_ratio
        return xp.where(small > _CIN_SERIES, direct, cin)
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

    def auxiliary(y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        z = 2.0 * _CI_SERIES / (1.0 + y)
        values = np.exp(1j * z) * exp1(1j * z)
        return -values.imag * z, values.real * z * z

    f, g = (_interpolate(lambda y, i=i: auxiliary(y)[i], _AUXILIARY_TERMS) for i in (0, 1))  # type: ignore[misc]
    return f, g
