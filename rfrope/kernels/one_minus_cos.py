"""Mean and mean square of ``1 - cos u``, without the cancellation of ``1 - Phi`` at small lags.

For the phase u of a random frequency at a lag, the moments of 1 - cos u are ``f = E (1 - cos u) = 1 - Phi`` and
``g = E (1 - cos u)^2 = 2 f - (1 - Phi_2)/2``; the variance of the cosine is ``g - f^2``. For a smooth kernel and a
small lag, f is of second order and g of fourth.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from fractions import Fraction
from functools import lru_cache
from types import ModuleType

from rfrope._core import special
from rfrope._core.array import Array

CosMoments = tuple[Array, Array]

TERMS = 12  # of power series in a square
_SQUARE = 0.25  # arguments up to which they are used
_LINE_TERMS = 26  # terms of a series in the argument itself, which is used up to 1
_SHARE = 2.0**-5  # z = t^2/4 as a part of nu, up to which it is small for large orders


def subtract_phi(phi: Array, phi2: Array) -> CosMoments:
    """Return these moments from Phi at a lag and at twice the lag, for Phi not near 1."""
    deficit = 1.0 - phi
    return deficit, 2.0 * deficit - 0.5 * (1.0 - phi2)


def add_independent(parts: Iterable[CosMoments]) -> CosMoments:
    """Return these moments of a sum of independent phases, whose Phi is the product of theirs."""
    (f, g), *rest = parts
    for p, q in rest:
        f, g = f + p - f * p, g + q + 6.0 * f * p - 4.0 * (f * q + g * p) + 2.0 * g * q
    return f, g


def mix(weights: Sequence[float], parts: Sequence[CosMoments]) -> CosMoments:
    """Return these moments of a phase that is one of several, with given probabilities."""
    f, g = (sum(w * part[i] for w, part in zip(weights, parts, strict=True)) for i in range(2))
    return f, g


def wave(phase: Array, cos: Array, xp: ModuleType) -> CosMoments:
    """Return these moments of a phase of one magnitude, given its cosine."""
    near = xp.abs(phase) < 1.0
    sine = xp.sin(0.5 * xp.where(near, phase, xp.zeros_like(phase)))
    deficit = xp.where(near, 2.0 * sine * sine, 1.0 - cos)
    return deficit, deficit * deficit


def gaussian(square: Array, xp: ModuleType) -> CosMoments:
    """Return these moments for ``Phi = exp(-square/2)``."""
    deficit = -xp.expm1(-0.5 * square)
    return deficit, deficit * deficit * (3.0 - 2.0 * deficit + 0.5 * deficit * deficit)


def exponential(exponent: Array, twice: Array, excess: Array, near: Array, xp: ModuleType) -> CosMoments:
    """Return these moments for ``Phi = exp(-exponent)``.

    Parameters
    ----------
    exponent, twice, excess : arrays
        Exponent at the lag and at twice the lag, and ``2 exponent - twice/2``, exact where `near`.
    near : array of bool
        Where to expand small exponents in a series.
    """
    near = near & (twice < 1.0)
    small, both, rest = (xp.where(near, value, xp.zeros_like(value)) for value in (exponent, twice, excess))
    deficit = -xp.expm1(-exponent)
    close = rest - 2.0 * _bend(small) + 0.5 * _bend(both)
    return deficit, xp.where(near, close, 2.0 * deficit + 0.5 * xp.expm1(-twice))


def _bend(x: Array) -> Array:
    """``x - (1 - exp(-x))`` for x from 0 to 1."""
    return x * x * special.polynomial([(-1.0) ** n / math.factorial(n + 2) for n in range(17)], x)


def series(coefficients: Sequence[float], square: Array, far: CosMoments, xp: ModuleType) -> CosMoments:
    """Return these moments for a Phi that is a power series of a square up to 1/4, and `far` beyond."""
    return _near_or_far(square < _SQUARE, coefficients, square, 4.0, far, xp)


def _near_or_far(
    near: Array, coefficients: Sequence[float], x: Array, times: float, far: CosMoments, xp: ModuleType
) -> CosMoments:
    """CosMoments of a Phi that is a polynomial of x where `near`; at twice the lag x is `times` as large."""
    close = _polynomial(coefficients, xp.where(near, x, xp.zeros_like(x)), times)
    return xp.where(near, close[0], far[0]), xp.where(near, close[1], far[1])


def _polynomial(coefficients: Sequence[float], x: Array, times: float) -> CosMoments:
    lower, even = _moment_coefficients(tuple(coefficients), times)
    return special.polynomial(lower, x), special.polynomial(even, x)


@lru_cache(maxsize=64)  # a quarter of the time of `score_variance` at 16 lags
def _moment_coefficients(coefficients: tuple[float, ...], times: float) -> tuple[list[float], list[float]]:
    """Coefficients of both moments, from those of Phi."""
    lower = [0.0, *(-c for c in coefficients[1:])]
    return lower, [c * (2.0 - 0.5 * times**power) for power, c in enumerate(lower)]


# -- Matérn ------------------------------------------------------------------------------------------------------------


def matern(nu: float, t: Array, xp: ModuleType) -> CosMoments:
    """Return these moments of the Matérn function of `special.matern`, at t >= 0."""
    far = subtract_phi(special.matern(nu, t, xp), special.matern(nu, 2.0 * t, xp))
    if nu >= special.UNIFORM_ORDER:
        share = 0.25 * t * (t / nu)
        return _near_or_far(share < _SHARE, _large_order_series(nu), share, 4.0, far, xp)
    if (2.0 * nu) % 2.0 == 1.0:
        return _near_or_far(t < 1.0, _half_integer_series(int(nu)), t, 2.0, far, xp)
    near = (t > 0.0) & (t < 1.0)
    close = _temme_series(nu, xp.where(near, t, xp.ones_like(t)), xp)
    return xp.where(near, close[0], far[0]), xp.where(near, close[1], far[1])


@lru_cache(maxsize=256)
def _large_order_series(nu: float) -> list[float]:
    """The Matérn function as a polynomial in ``t^2 / (4 nu)``: what follows, of the order nu in it, is rounding."""
    return list(itertools.accumulate(range(1, TERMS), lambda c, k: c / (k * (k / nu - 1.0)), initial=1.0))


@lru_cache(maxsize=64)
def _half_integer_series(p: int) -> list[float]:
    """Power series of the Matérn function of order p + 1/2, a polynomial times ``exp(-t)``."""
    factorial = math.factorial
    polynomial = [
        Fraction(2**j * factorial(p) * factorial(2 * p - j), factorial(2 * p) * factorial(j) * factorial(p - j))
        for j in range(p + 1)
    ]
    return [
        float(sum(polynomial[j] * Fraction((-1) ** (k - j), factorial(k - j)) for j in range(min(k, p) + 1)))
        for k in range(_LINE_TERMS)
    ]


def _temme_series(nu: float, t: Array, xp: ModuleType) -> CosMoments:
    """CosMoments from ``A(z) + W B(z)`` of `special.temme_polynomials`, z = t^2/4 below 1/4.

    At twice the lag z is ``4 z``, and W is less by ``change``.
    """
    steps, constant, slope = _temme_coefficients(nu)
    mu, first = nu - steps, max(steps, 1)
    half = xp.log(t) - math.log(2.0)
    z, power = 0.25 * t * t, xp.exp((2.0 * mu) * half)
    f, g = _polynomial(constant, z, 4.0)
    if not steps:
        share = slope[0] / (2.0 * mu) * power
        f, g = f + share, g + (2.0 - 0.5 * 4.0**mu) * share
    if not slope[first:]:
        return f, g
    w = special.temme_w(mu, 0, half, z, xp)
    change = power * (math.expm1(mu * math.log(4.0)) / (2.0 * mu)) if mu else math.log(2.0)
    twice = [0.5 * c * 4.0**k for k, c in enumerate(slope)]
    even = [2.0 * c - d for c, d in zip(slope, twice, strict=True)]
    at_lag, even_part, at_twice = (special.polynomial(part[first:], z) * z**first for part in (slope, even, twice))
    return f - w * at_lag, g - w * even_part - change * at_twice


@lru_cache(maxsize=256)
def _temme_coefficients(nu: float) -> tuple[int, list[float], list[float]]:
    """Steps from nu down to its order near 0, and A and B of the Matérn function, by the recurrence of K.

    B has no power below that number of steps, and those of A below it are ``1 / (k! (1 - nu)_k)``; the recurrence has
    them to rounding only.
    """
    steps = round(nu)
    mu = nu - steps
    zeroth, first = special.temme_polynomials(mu)
    if not steps:
        factor = nu * 2.0 ** (1.0 - nu) / math.gamma(1.0 + nu)
        constant, slope = ([factor * c for c in part] for part in zeroth)
        return steps, constant, slope
    found = []
    for before, value in zip(zeroth, first, strict=True):
        before = [2.0 ** (1.0 - mu) / math.gamma(2.0 + mu) * c for c in before]
        value = [2.0**-mu / math.gamma(1.0 + mu) * c for c in value]
        for step in range(1, steps):
            factor = 1.0 if step == 1 else 1.0 / ((mu + step) * (mu + step - 1.0))
            before, value = value, [c + factor * d for c, d in zip(value, [0.0, *before[:-1]], strict=True)]
        found.append(value)
    constant, slope = found
    powers = range(1, min(steps, len(constant)))
    below = list(itertools.accumulate(powers, lambda c, k: c / (k * (k - nu)), initial=1.0))
    return steps, below + constant[len(below) :], [0.0] * min(steps, len(slope)) + slope[steps:]
