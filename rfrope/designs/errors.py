"""Error of a mean kernel over the whole lags of a range, and a lower bound for any set of equal blocks.

For the bound, frequencies lie on a grid of the circle of length 2 pi, which is all that whole lags can distinguish.
Functions of them are even, and are stored as values on that grid or as cosine coefficients for lags from 0 to half the
grid.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from rfrope._core.angles import Angles
from rfrope._core.sums import mean_cos
from rfrope.kernels import Kernel

_MOST_LAGS = 2**20  # maximum number of lags of an error
_MANY_PHASES = 2**22  # size from which importing Numba and finufft pays

_BOUND_LAGS = 2**12 - 1  # lags of the bound; others could only add to the error
_OVER, _FINE = 4, 4  # grid points for each lag, and how much finer the grid is on which a bound is certified
# where a tail begins, and which part of the lags smooths its edge: the more, the less counts of the repulsion
_TAILS = ((0.6, 1.5), (0.7, 2.0), (0.6, 3.0), (0.8, 5.0), (0.8, 8.0))
_SHARES = (1.0, 0.3, 0.1)  # how much of the repulsion is counted
_STEPS, _LOOK = 120, 30  # in the descent for each pair of these; steps between looks at the bound


class Error(NamedTuple):
    """Root mean square error, largest error, and the lag of the largest."""

    rms: float
    sup: float
    sup_lag: tuple[int, ...]


def error(kernel: Kernel, omega: np.ndarray, max_lag: tuple[int, ...]) -> Error:
    """Return the error of the mean kernel over the whole lags up to `max_lag`, one of each pair +-lag."""
    lags, weights = lags_within(max_lag, _MOST_LAGS)
    errors = np.abs(mean_kernel(omega, lags) - kernel.phi(kernel.restore_shape(lags)))
    largest = int(np.argmax(errors))
    rms = math.sqrt(float(weights @ (errors * errors)) / float(np.sum(weights)))
    return Error(rms, float(errors[largest]), tuple(int(number) for number in lags[largest]))


def mean_kernel(omega: np.ndarray, lags: np.ndarray) -> np.ndarray:
    """Return the mean kernel of frequencies ``(D, k)`` at lags ``(L, k)``."""
    mean = mean_cos if omega.size * len(lags) >= _MANY_PHASES else mean_cos.generic
    found: np.ndarray = mean(Angles(lags, omega.astype(np.float64, copy=False), None, np))
    return found


def lags_within(max_lag: tuple[int, ...], most: int) -> tuple[np.ndarray, np.ndarray]:
    """Return whole lags up to max_lag on every axis, one of each pair +-lag, and the number of lags each represents.

    These are all lags if there are at most `most`; otherwise about half are the smallest lags, and half are spread over
    the rest by multiples of the golden section.
    """
    total = _count_half(max_lag)
    if total <= most:
        return _half_of_box(max_lag, np.arange(total)), np.ones(total)
    side = next(s for s in range(most, 0, -1) if _count_half((s,) * len(max_lag)) <= most // 2)
    box = tuple(min(m, side) for m in max_lag)
    near = _half_of_box(box, np.arange(_count_half(box)))
    spread = (np.arange(most - len(near)) + 0.5) * (0.5 * (math.sqrt(5.0) - 1.0)) % 1.0
    far = _half_of_box(max_lag, np.unique((spread * total).astype(np.int64)))
    far = far[np.any(np.abs(far) > box, axis=-1)]
    weights = np.concatenate([np.ones(len(near)), np.full(len(far), (total - len(near)) / len(far))])
    return np.concatenate([near, far]), weights


def _count_half(max_lag: tuple[int, ...]) -> int:
    """Count the whole lags in a box around 0, one of each pair +-lag: 0 and half of the others."""
    return (math.prod(2 * m + 1 for m in max_lag) + 1) // 2


def _half_of_box(max_lag: tuple[int, ...], index: np.ndarray) -> np.ndarray:
    """Lags of that half by their numbers; number 0 is lag 0."""
    places = np.unravel_index(_count_half(max_lag) - 1 + index, [2 * m + 1 for m in max_lag])
    return np.stack(places, axis=-1).astype(np.float64) - max_lag


# -- the bound ---------------------------------------------------------------------------------------------------------


def lower_bound(kernel: Kernel, n: int, max_lag: tuple[int, ...]) -> float:
    """Return a root mean square error that no n equal blocks can beat; 0 where none is known, as in several axes.

    With ``K(a, b) = sum_x cos(a x) cos(b x)``, the summed square error of n blocks is a quadratic form in their measure
    nu, and blocks repel each other. Let G be a nonnegative part of K, small enough for K - G to stay positive
    semi-definite on masses of sum 0. As pairs of blocks add nothing negative, ``nu G nu >= diag(G) nu / n``, and the
    error is at least the minimum of ``nu (K - G) nu + (diag(G)/n - 2 h) nu + const`` over all probability measures: a
    convex problem, whose conditional-gradient gap gives a lower bound at any nu. (The method of Yudin's bounds for
    energies, 1992.) Here ``G = share u(a) u(b) F(a - b)``, folded, with Fejer's kernel F and a polynomial u between 0
    and 1 that is near 1 where the kernel's law has less than one block per resolved cell.
    """
    if len(max_lag) > 1 or not n:
        return 0.0
    circle = _Circle(kernel, min(max_lag[0], _BOUND_LAGS))
    found = max((bound for tail in _TAILS for bound in _tail_bounds(circle, n, *tail)), default=0.0)
    lags = 2.0 * (max_lag[0] + 1.0)  # of both signs, as `errors` counts them
    return math.sqrt(max(found, 0.0) / lags)


class _Circle:
    """The grid, and what of the kernel is needed on it."""

    def __init__(self, kernel: Kernel, reach: int) -> None:
        self.reach, self.size = reach, 1 << math.ceil(math.log2(_OVER * (reach + 1)))
        self.lags = np.arange(self.size // 2 + 1.0)
        self.counted = (self.lags > 0.0) & (self.lags <= reach)  # at lag 0 there is no error
        self.phi = np.where(self.counted, kernel.phi(self.lags), 0.0)
        self.law = np.maximum(self.values(self.fejer(reach) * np.where(self.counted, self.phi, 1.0)), 0.0)

    def fejer(self, degree: int) -> np.ndarray:
        """Coefficients of Fejer's kernel."""
        return np.maximum(1.0 - self.lags / (degree + 1.0), 0.0)

    def coefficients(self, values: np.ndarray) -> np.ndarray:
        """Sums of values times ``cos(x omega)``."""
        return np.fft.rfft(values).real

    def values(self, coefficients: np.ndarray, finer: int = 1) -> np.ndarray:
        """Sums of coefficients times ``cos(x omega)`` over lags of both signs, on a grid that may be finer."""
        return np.fft.irfft(coefficients, self.size * finer) * (self.size * finer)

    def least(self, values: np.ndarray) -> float:
        """Lower bound on a function of at most half the grid's degree, between the points of the grid too.

        Near a minimum it is at most half its curvature times the square of the distance to the nearest point above it.
        """
        coefficients, step = self.coefficients(values) / self.size, math.pi / (self.size * _FINE)
        curvature = np.max(np.abs(self.values(coefficients * self.lags**2, _FINE)))
        curvature /= math.cos(0.5 * math.pi / _FINE)  # between the points too: Ehlich and Zeller's inequality
        return float(np.min(self.values(coefficients, _FINE)) - 0.5 * step * step * curvature)


def _tail_bounds(circle: _Circle, n: int, level: float, part: float) -> Iterator[float]:
    """Lower bounds on the summed square error, for each share, with a tail where the law is below some level."""
    smooth = int(circle.reach / part)
    fejer, height = circle.fejer(circle.reach - smooth), circle.reach - smooth + 1.0
    tail = (circle.law < 0.5 * level * height / n).astype(np.float64)
    u = circle.values(circle.coefficients(tail) / circle.size * circle.fejer(smooth))
    twice = circle.values(fejer)[2 * np.arange(circle.size) % circle.size]
    diagonal = 0.5 * u * u * (height + twice) / n
    nu, best = circle.law / np.sum(circle.law), -math.inf
    for share in _SHARES if np.any(tail) else ():
        nu, bound = _minimise(circle, nu, u, share * fejer, share * diagonal)
        yield bound
        if bound < best:  # it is concave in the share
            return
        best = bound


def _minimise(
    circle: _Circle, nu: np.ndarray, u: np.ndarray, fejer: np.ndarray, diagonal: np.ndarray
) -> tuple[np.ndarray, float]:
    """Nesterov's descent on the simplex from `nu`, and the best lower bound of the minimum that it has come by."""
    linear = diagonal - circle.values(2.0 * circle.phi)
    constant, length = 2.0 * float(np.sum(circle.phi**2)), 0.5 / circle.size

    def slope_at(nu: np.ndarray) -> np.ndarray:
        repelled = u * circle.values(fejer * circle.coefficients(u * nu))
        return 2.0 * (circle.values(circle.counted * circle.coefficients(nu)) - repelled) + linear

    point, momentum, best = nu, 1.0, -math.inf
    for step in range(1, _STEPS + 1):
        slope = slope_at(point)
        new = _project_on_simplex(point - length * slope)
        if momentum > 1.0 and float(slope @ (new - nu)) > 0.0:
            point, momentum = nu, 1.0
        else:
            grown = 0.5 * (1.0 + math.sqrt(1.0 + 4.0 * momentum * momentum))
            point, nu, momentum = new + (momentum - 1.0) / grown * (new - nu), new, grown
        if step % _LOOK == 0:
            slope = slope_at(nu)
            value = 0.5 * float((slope + linear) @ nu) + constant
            best = max(best, value - float(slope @ nu) + circle.least(slope))
    return nu, best


def _project_on_simplex(values: np.ndarray) -> np.ndarray:
    """Nearest probabilities."""
    ordered = np.sort(values)[::-1]
    excess = (np.cumsum(ordered) - 1.0) / np.arange(1, ordered.size + 1)
    return np.maximum(values - excess[np.count_nonzero(ordered > excess) - 1], 0.0)
