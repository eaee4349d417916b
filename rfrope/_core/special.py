"""Special functions: quantiles for the samplers and, for the closed forms, Bessel's K and J on every namespace.

SciPy is imported inside the functions, so that `import rfrope` does not pay for it. What takes `xp` runs where its
arrays are, looks at no value and copies nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import lru_cache, partial
from types import ModuleType

import numpy as np

from rfrope._core import array, elementwise
from rfrope._core.array import Array
from rfrope._core.octaves import Interpolant

UNIFORM_ORDER = 20.0  # orders from which the uniform expansion of K_nu is used
_UNIFORM_TERMS = 12
_TEMME = 2.0  # arguments up to which Temme's series of K_nu is used
_TEMME_TERMS = 13
_LARGE_TERMS = 20  # terms of the Chebyshev series of K_nu, and of those of J_0 and J_1, above
_SPHERE_SERIES = 5.0  # arguments up to which the series of J_nu is used, for large orders more
_LARGEST_TABLE = 2.0**16  # concentration up to which the law of a periodic kernel's harmonics is tabulated
_LARGEST_LOG = 700.0  # logarithm of the largest radius of a stable law
_VANISHED = 1e6  # t from which on exp(-t) has long been 0, and powers of t are still finite
_NEGLIGIBLE = 1e-30  # t up to which, for nu > 3/2, the Matérn function is 1 to rounding, and so is its slope 0

# 1/Gamma(1 + z) = sum_k g_k z^k (DLMF 5.7.1): g_1, g_3, g_5, ...; the next one, 7.8e-12, is rounding for |z| <= 1/2
_RECIPROCAL_GAMMA = (
    0.5772156649015329,
    -0.042002635034095236,
    -0.04219773455554433,
    0.0072189432466631,
    -0.00021524167411495098,
    -2.0134854780788239e-05,
    1.133027231981696e-06,
    6.1160951044814155e-09,
    -1.18127457048702e-09,
)


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
    if dof in _STUDENT:
        return symmetric_quantile(u, _STUDENT[dof])
    return symmetric_quantile(u, _student_lower(float(dof)))


def _student_4(v: np.ndarray) -> np.ndarray:
    """Lower half for four degrees of freedom: a cubic equation by cosines (Shaw 2006), without differences near 1/2."""
    root = np.sqrt(v * (1.0 - v))
    third = np.arctan2(1.0 - 2.0 * v, 2.0 * root) / 3.0
    return -2.0 * np.sqrt(np.sin(2.0 * third) * np.sin(third) / root)


# lower halves in closed form, by degrees of freedom; the first is -cot(pi v), from the nearer end
_STUDENT: dict[float, Callable[[np.ndarray], np.ndarray]] = {
    1.0: lambda v: np.where(v < 0.25, -1.0 / np.tan(math.pi * v), -np.tan(math.pi * (0.5 - v))),
    2.0: lambda v: (2.0 * v - 1.0) / np.sqrt(2.0 * v * (1.0 - v)),
    4.0: _student_4,
}


@lru_cache(maxsize=64)
def _student_lower(dof: float) -> Interpolant:
    """Lower half of Student's quantile function, for degrees of freedom without a closed form."""
    from scipy.special import stdtrit

    def lower(v: np.ndarray) -> np.ndarray:
        return np.where(v == 0.5, 0.0, stdtrit(dof, v))  # 1e-16 in SciPy below 1.17

    return Interpolant(lower, vanish=True)


def gamma_quantile(shape: float, u: np.ndarray, *, upper: bool = False) -> np.ndarray:
    """Quantile function of the Gamma law with the given shape and rate 1, at 1 - u if `upper`."""
    u = np.asarray(u, dtype=np.float64)
    return _gamma_quantiles(float(shape))(np.minimum(u, 1.0 - u), (u > 0.5) != upper)


@lru_cache(maxsize=64)
def _gamma_quantiles(shape: float) -> Interpolant:
    """Quantiles of the Gamma law for probabilities of the lower tail, and for those of the upper one."""
    from scipy.special import gammainccinv, gammaincinv

    return Interpolant(partial(gammaincinv, shape), partial(gammainccinv, shape))


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


def stable_root(exponent: float, u: np.ndarray, v: np.ndarray) -> np.ndarray:
    """``sqrt(2 S)``, S positive and stable with ``E exp(-x S) = exp(-x^(exponent/2))``, from two uniforms (Kanter).

    With a = exponent/2, ``S = sin(a pi u) / sin(pi u)^(1/a) * (sin((1-a) pi u) / E)^((1-a)/a)``, E exponential: in
    logarithms, because a tail may reach beyond all floats, and with sines of the smaller of an angle and its
    supplement, because a may be close to 1. Results are at most exp(700).
    """
    a, rest = 0.5 * exponent, 1.0 - 0.5 * exponent
    if rest == 0.0:
        return np.full(np.shape(u), math.sqrt(2.0))

    def log_sin(share: np.ndarray, other: np.ndarray) -> np.ndarray:  # share + other = 1
        return np.log(np.sin(math.pi * np.minimum(share, other)))

    w = 1.0 - u
    log_s = log_sin(a * u, w + rest * u) - log_sin(u, w) / a
    log_s = log_s + rest / a * (log_sin(rest * u, w + a * u) - np.log(exponential_quantile(v)))
    return np.exp(np.minimum(0.5 * (math.log(2.0) + log_s), _LARGEST_LOG))


def harmonic_quantile(concentration: float, u: np.ndarray) -> np.ndarray:
    """Quantile function of the whole numbers n with probabilities ``exp(-z) I_n(z)``, z the concentration.

    Beyond z = 2^16 it is the rounded Cornish-Fisher expansion of the same law smoothed by a uniform of width 1, whose
    cumulants are ``z - 1/12``, ``z + 1/120`` and ``z - 1/252``; the error of a probability is below 1e-13 there.
    """
    if concentration <= _LARGEST_TABLE:
        tails = _harmonic_tails(concentration)
        return symmetric_quantile(u, lambda v: np.searchsorted(tails, v, side="right") - float(tails.size))
    variance = concentration - 1.0 / 12.0
    fourth = (concentration + 1.0 / 120.0) / variance / variance
    sixth = (concentration - 1.0 / 252.0) / variance / variance / variance

    def lower(v: np.ndarray) -> np.ndarray:
        x = normal_quantile(v)
        x = x + (
            fourth / 24.0 * (x**3 - 3.0 * x)
            + sixth / 720.0 * (x**5 - 10.0 * x**3 + 15.0 * x)
            - fourth**2 / 384.0 * (3.0 * x**5 - 24.0 * x**3 + 29.0 * x)
        )
        return np.round(math.sqrt(variance) * x)

    return symmetric_quantile(u, lower)


def harmonic_weights(concentration: float) -> np.ndarray | None:
    """Probabilities ``exp(-z) I_n(z)`` of n = 0, 1, ..., until they are below 1e-20; None where they are too many."""
    from scipy.special import ive

    if concentration > _LARGEST_TABLE:
        return None
    weights = ive(np.arange(64 + int(10.0 * math.sqrt(concentration))), concentration)
    return weights[: int(np.count_nonzero(weights > 1e-20))]


@lru_cache(maxsize=64)
def _harmonic_tails(concentration: float) -> np.ndarray:
    """Probabilities of n or more, n = 1, 2, ..., from the largest n on: increasing."""
    weights = harmonic_weights(concentration)
    assert weights is not None
    return np.cumsum(weights[:0:-1])


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
    return elementwise.by_blocks(partial(_matern_recurrence, nu), t, xp)


def bessel_k0(t: Array, xp: ModuleType) -> Array:
    """K_0(t) for t >= 0, infinite at 0; relative error below 1e-14 for t up to 700, where it underflows soon."""
    return elementwise.by_blocks(_bessel_k0, t, xp)


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
    return elementwise.by_blocks(partial(_sphere_mean_cos, order), t, xp)


def sphere_near(order: float, square: Array) -> Array:
    """`sphere_mean_cos` by the square of t, up to 1."""
    return polynomial(sphere_series(order), square)


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
    angle = math.pi * (np.arange(_LARGE_TERMS) + 0.5) / _LARGE_TERMS
    values = _scaled_bessel_k(order, -2j * _SPHERE_SERIES / (1.0 + np.cos(angle))) * math.sqrt(2.0 / math.pi)
    return interpolated(values.real), interpolated(values.imag)


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
    zeroth, first = np.stack(rows), np.stack(following)
    return ((zeroth @ constant).tolist(), (zeroth @ slope).tolist()), (
        (first @ constant).tolist(),
        (first @ slope).tolist(),
    )


@lru_cache(maxsize=256)
def _large_polynomial(order: float) -> list[float]:
    """Polynomial in y = 4/t - 1 that is ``sqrt(t) exp(t) K_order(t)`` for t >= 2, from values at Chebyshev's points."""
    angle = math.pi * (np.arange(_LARGE_TERMS) + 0.5) / _LARGE_TERMS
    return interpolated(_scaled_bessel_k(order, 4.0 / (1.0 + np.cos(angle))))


def _scaled_bessel_k(order: float, t: np.ndarray) -> np.ndarray:
    """``sqrt(t) exp(t) K_order(t)`` for t >= 2, and for imaginary t from 5i on.

    It is ``sqrt(t) int exp(-x^2) cosh(2 order asinh(x / sqrt(2t))) 2 / sqrt(2t + x^2) dx``, x > 0 (DLMF 10.32.9 with
    ``x = sqrt(2t) sinh(s/2)``), by the trapezoidal rule, whose error is below 1e-19 with this step.
    """
    x, t = 0.25 * np.arange(27), t[:, None]
    weight = np.where(x == 0.0, 0.125, 0.25) * np.exp(-x * x)
    integrand = np.cosh(2.0 * order * np.arcsinh(x / np.sqrt(2.0 * t))) * 2.0 / np.sqrt(2.0 * t + x * x)
    return np.sqrt(t[:, 0]) * (integrand @ weight)


def interpolated(values: np.ndarray) -> list[float]:
    """Polynomial with given values at Chebyshev's points of (-1, 1)."""
    order = np.arange(values.size)
    series = 2.0 / values.size * np.cos(np.outer(order, math.pi * (order + 0.5) / values.size)) @ values
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
