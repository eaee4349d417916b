"""Error of a mean kernel over the whole lags of a range, and descent to sets with small errors."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from rfrope._core import parallel
from rfrope._core.angles import Angles
from rfrope._core.sums import mean_cos
from rfrope.kernels import Kernel

_MOST_LAGS = 2**20  # maximum number of lags of an error
_MANY_PHASES = 2**22  # size from which importing Numba and finufft pays
NEGLIGIBLE = 1e-9  # root mean square error that ends a search
_ROUNDS, _PATIENCE, _WORTH = 24, 3, 5e-3  # rounds of jumps; how many in a row may gain less than that share
_MOST_FITTED = 2**14  # maximum number of lags of a fit
_SERIES = 1e-2  # phase at the longest lag below which Dirichlet's kernel is its series

Draw = Callable[[int], np.ndarray]
CosSin = tuple[np.ndarray, np.ndarray]  # exp(i left . omega), exp(i right . omega)


class Error(NamedTuple):
    """Root mean square error, largest error, and the lag of the largest."""

    rms: float
    sup: float
    sup_lag: tuple[int, ...]


def error(kernel: Kernel, omega: np.ndarray, max_lag: tuple[int, ...]) -> Error:
    """Return the error of the mean kernel over the whole lags up to `max_lag`, one of each pair +-lag."""
    lags, weights = lags_within(max_lag, _MOST_LAGS)
    mean = mean_cos if omega.size * len(lags) >= _MANY_PHASES else mean_cos.generic
    found = mean(Angles(lags, omega.astype(np.float64, copy=False), None, np))
    errors = np.abs(found - kernel.phi(kernel.restore_shape(lags)))
    largest = int(np.argmax(errors))
    rms = math.sqrt(float(weights @ (errors * errors)) / float(np.sum(weights)))
    return Error(rms, float(errors[largest]), tuple(int(number) for number in lags[largest]))


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


# -- descent -----------------------------------------------------------------------------------------------------------


def descend(lags: Lags, omega: np.ndarray, steps: int, gain: float) -> tuple[np.ndarray, float]:
    """Return frequencies at a local minimum, and their mean square error.

    Newton's method with Levenberg-Marquardt damping. The Hessian is Gauss-Newton's in closed form, plus the terms of
    the errors on its diagonal, as each block enters the mean alone. Stops after `steps`, or when two steps in a row
    gain less than the fraction `gain`. SciPy's MINPACK is not used: its last bits differ between calls, and a fit with
    more unknowns than its errors determine amplifies them visibly.
    """
    waves = lags.waves(omega)
    errors = lags.errors(waves)
    value, damping, stalled, fresh = lags.mean_square(errors), 1e-3, 0, True
    for _ in range(steps):
        parallel.raise_if_abandoned()
        if value < NEGLIGIBLE**2 or stalled == 2 or damping > 1e8:
            break
        if fresh:
            slope, hessian, sizes = _derivatives(lags, omega, waves, errors)
        step = _solve(hessian + np.diag(damping * sizes), -slope)
        if step is None:
            damping, fresh = max(4.0 * damping, 1e-6), False
            continue
        moved = omega + step.reshape(omega.shape)
        waves_there = lags.waves(moved)
        errors_there = lags.errors(waves_there)
        lower = lags.mean_square(errors_there)
        promised = -float(2.0 * slope @ step + step @ (hessian @ step))
        fresh = lower < value
        if fresh:
            stalled = stalled + 1 if value - lower < gain * value else 0
            success = min((value - lower) / max(promised, 1e-300), 1.5)
            damping = max(damping * max(0.2, 1.0 - (2.0 * success - 1.0) ** 3), 1e-12)
            omega, waves, errors, value = moved, waves_there, errors_there, lower
        else:
            damping *= 4.0
            stalled = 2 if promised < 1e-2 * gain * value else stalled
    return omega, value


def search(
    lags: Lags, omega: np.ndarray, draw: Draw, candidates: int, steps: int, gain: float
) -> tuple[np.ndarray, float]:
    """Return the result of descent and jumps of single blocks, in turn."""
    omega, value = descend(lags, omega, steps, gain)
    stalled = 0
    for _ in range(_ROUNDS):
        if stalled == _PATIENCE or value < NEGLIGIBLE**2:
            break
        jumped = exchange(lags, omega, draw(candidates), 1 + len(omega) // 8)
        if jumped is None:
            stalled += 1
            continue
        there, lower = descend(lags, jumped, steps, gain)
        stalled = 0 if lower < (1.0 - _WORTH) * value else stalled + 1
        if lower < value:
            omega, value = there, lower
    return omega, value


def exchange(lags: Lags, omega: np.ndarray, candidates: np.ndarray, most: int) -> np.ndarray | None:
    """Move up to `most` blocks, one after another, to the candidate ``(c, k)`` that lowers the mean square error most.

    Compares all pairs of a block and a candidate, exactly if the fit uses all lags of its range. Returns None if no
    pair lowers the error.
    """
    omega, n, found = omega.copy(), len(omega), False
    mixed = inner(lags.reach, omega[:, None], candidates)
    squares, squares_there = inner(lags.reach, omega, omega), inner(lags.reach, candidates, candidates)
    waves_there = lags.waves(candidates)
    for _ in range(most):
        parallel.raise_if_abandoned()
        waves = lags.waves(omega)
        errors = lags.errors(waves)
        here, there = lags.projected(waves, errors).real, lags.projected(waves_there, errors).real
        change = (2.0 * n * (there - here[:, None]) + squares[:, None] + squares_there - 2.0 * mixed) / n**2
        block, candidate = np.unravel_index(np.argmin(change), change.shape)
        if not change[block, candidate] < -1e-6 * lags.mean_square(errors):
            break
        omega[block], squares[block], found = candidates[candidate], squares_there[candidate], True
        mixed[block] = inner(lags.reach, omega[block], candidates)
    return omega if found else None


def _derivatives(
    lags: Lags, omega: np.ndarray, waves: tuple[np.ndarray, np.ndarray], errors: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Half the gradient ``(n k,)`` and Hessian ``(n k, n k)`` of the mean square error, and the scales."""
    n, k = omega.shape
    hessian = lags.slopes_product(omega) / n**2
    sizes = np.diag(hessian).copy()
    slope, blocks, blocks_hessian = np.empty((n, k)), np.arange(n), hessian.reshape(n, k, n, k)
    for j in range(k):
        times_lag = errors * lags.vectors[..., j]
        slope[:, j] = lags.projected(waves, times_lag).imag / -n
        for m in range(k):
            blocks_hessian[blocks, j, blocks, m] -= lags.projected(waves, times_lag * lags.vectors[..., m]).real / n
    return slope.reshape(-1), hessian, np.maximum(sizes, 1e-9 * np.max(sizes) + np.finfo(np.float64).tiny)


def _solve(matrix: np.ndarray, right: np.ndarray) -> np.ndarray | None:
    """Solution of linear equations whose matrix is positive definite, None if it is not."""
    try:
        factor = np.linalg.cholesky(matrix)
    except np.linalg.LinAlgError:
        return None
    from scipy.linalg import solve_triangular

    half = solve_triangular(factor, right, lower=True, check_finite=False)
    return np.asarray(solve_triangular(factor, half, lower=True, trans=1, check_finite=False))


# -- the lags ----------------------------------------------------------------------------------------------------------


class Lags:
    """Whole lags of a range, one of each pair +-lag, and Phi there.

    Attributes
    ----------
    reach : tuple of int
        Largest lag on each axis.
    vectors : ndarray, (P, Q, k)
    weights, target : ndarray, (P, Q)
        Weight of each lag, with sum 1, and Phi.
    """

    def __init__(self, kernel: Kernel, reach: tuple[int, ...]) -> None:
        self.reach = reach
        self._left, self._right, weights = _run_of_lags(reach[0]) if len(reach) == 1 else _box_of_lags(reach)
        self.vectors = self._left[:, None] + self._right
        self.weights = weights / np.sum(weights)
        self.target = np.asarray(kernel.phi(kernel.restore_shape(self.vectors)))

    def waves(self, omega: np.ndarray) -> CosSin:
        """Return the waves of frequencies ``(n, k)``."""
        return _wave(omega, self._left), _wave(omega, self._right)

    def errors(self, waves: CosSin) -> np.ndarray:
        """Return the mean kernel minus Phi, ``(P, Q)``."""
        far, near = waves
        return (far.T @ near).real / len(far) - self.target

    def mean_square(self, errors: np.ndarray) -> float:
        """Return the weighted mean of squared errors."""
        return float(np.sum(self.weights * errors * errors))

    def projected(self, waves: CosSin, values: np.ndarray) -> np.ndarray:
        """Return weighted sums of values times ``exp(i lag . omega)`` for each frequency."""
        left, right = waves
        return np.asarray(np.sum((left @ (self.weights * values)) * right, axis=-1))

    def slopes_product(self, omega: np.ndarray) -> np.ndarray:
        """Return the mean of ``lag_j lag_l sin(lag . a) sin(lag . b)`` for all pairs of frequencies ``(n k, n k)``."""
        n, k = omega.shape
        found = np.zeros((n, k, n, k))
        for sign in (1.0, -1.0):  # for angles a + b, a - b
            angles = omega[:, None] + sign * omega
            each = [_dirichlet(m, angles[..., j]) for j, m in enumerate(self.reach)]
            for j in range(k):
                for m in range(k):
                    found[:, j, :, m] += sign * math.prod(each[i][(i == j) + (i == m)] for i in range(k))
        return 0.5 * found.reshape(n * k, n * k) / math.prod(2 * m + 1 for m in self.reach)


def inner(reach: tuple[int, ...], a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the mean of ``cos(lag . a) cos(lag . b)`` over all lags of a range, in closed form, for ``(..., k)``."""
    found = np.zeros(np.broadcast_shapes(a.shape, b.shape)[:-1])
    for angle in (a - b, a + b):
        found += math.prod(_dirichlet(m, angle[..., j], values_only=True)[0] for j, m in enumerate(reach))
    return 0.5 * found / math.prod(2 * m + 1 for m in reach)


def _run_of_lags(reach: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Left and right parts and weights in one axis, lag 0 as half a pair."""
    length = 1 << math.ceil(0.5 * math.log2(min(reach + 1, _MOST_FITTED)))
    starts, shares = _thin_out(-(-(reach + 1) // length), _MOST_FITTED // length)
    lags = starts[:, None] * length + np.arange(length)
    weights = np.where(lags <= reach, shares[:, None], 0.0)
    weights[0, 0] = 0.5
    return length * starts[:, None].astype(np.float64), np.arange(float(length))[:, None], weights


def _box_of_lags(reach: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Left and right parts and weights in several axes; where the last lag is 0 both of a pair are there."""
    sizes = [m + 1 for m in reach]
    while math.prod(2 * size - 1 for size in sizes) > 2 * _MOST_FITTED:
        sizes[sizes.index(max(sizes))] -= 1
    axes: list[np.ndarray] = []
    shares = np.ones(())
    for m, size in zip(reach, sizes, strict=True):
        lags, share = _thin_out(m + 1, size)
        if len(axes) < len(reach) - 1:
            lags, share = np.concatenate([-lags[:0:-1], lags]), np.concatenate([share[:0:-1], share])
        else:
            share[0] *= 0.5
        axes.append(lags.astype(np.float64))
        shares = shares[..., None] * share
    left = np.stack(np.meshgrid(*axes[:-1], [0.0], indexing="ij"), axis=-1).reshape(-1, len(reach))
    right = np.stack([*[np.zeros_like(axes[-1])] * (len(reach) - 1), axes[-1]], axis=-1)
    return left, right, shares.reshape(len(left), len(right))


def _thin_out(count: int, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Whole numbers below `count`, all or the smaller ones and a spread over the rest, and what each stands for."""
    if count <= most:
        return np.arange(count), np.ones(count)
    near = most // 2
    edges = near + (count - near) * np.arange(most - near + 1) // (most - near)
    places = np.arange(1, most - near + 1) * (0.5 * (math.sqrt(5.0) - 1.0)) % 1.0  # not equally far: no echo
    far = edges[:-1] + (places * np.diff(edges)).astype(np.int64)
    return np.concatenate([np.arange(near), far]), np.concatenate([np.ones(near), np.diff(edges).astype(np.float64)])


def _wave(omega: np.ndarray, lags: np.ndarray) -> np.ndarray:
    """``exp(i lag . omega)``, its phases without BLAS, whose last bits depend on where arrays lie in memory."""
    return np.asarray(np.exp(1j * np.sum(omega[:, None, :] * lags, axis=-1)))


def _dirichlet(m: int, angle: np.ndarray, *, values_only: bool = False) -> tuple[np.ndarray, ...]:
    """``sum exp(i x angle)`` over whole x from -m to m, and its first two derivatives unless only values are wanted."""
    n = 2.0 * m + 1.0
    angle = angle - 2.0 * math.pi * np.round(angle / (2.0 * math.pi))
    near = np.abs(angle) < _SERIES / n
    half = 0.5 * np.where(near, 1.0, angle)
    rise, square = n * (n * n - 1.0) / 12.0, angle * angle
    sin, sines = np.sin(half), np.sin(n * half)
    value = np.where(near, n - 0.5 * rise * square, sines / sin)
    if values_only:
        return (value,)
    cos = np.cos(half)
    first = 0.5 * (n * np.cos(n * half) - cos * value) / sin
    second = (0.25 * (value * sin - n * n * sines) - first * cos) / sin
    near_second = -rise * (1.0 - (3.0 * n * n - 7.0) / 40.0 * square)
    return value, np.where(near, -rise * angle, first), np.where(near, near_second, second)
