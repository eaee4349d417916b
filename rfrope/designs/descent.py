"""Frequencies ``(n, k)`` of least mean square error: downhill to the next minimum, and jumps to lower ones."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from rfrope._core import parallel
from rfrope.designs.lags import Lags

NEGLIGIBLE = 1e-9  # root mean square error that ends a search
_ROUNDS, _PATIENCE, _WORTH = 24, 3, 5e-3  # rounds of jumps; how many in a row may gain less than that share

Draw = Callable[[int], np.ndarray]


def descend(lags: Lags, omega: np.ndarray, steps: int, gain: float) -> tuple[np.ndarray, float]:
    """Frequencies of a local minimum and their mean square error.

    Newton's method, damped as Levenberg and Marquardt do: the Hessian is that of Gauss and Newton, in closed form, and
    on its diagonal what the errors add, because each block enters the mean alone. It ends after `steps`, or when two
    in a row gain less than the share `gain`. Not SciPy's: the last bits of its MINPACK differ from call to call, and a
    fit with more unknowns than its errors determine grows them to differences that everybody sees.
    """
    waves = lags.waves(omega)
    errors = lags.errors(waves)
    value, damping, idle, fresh = lags.mean_square(errors), 1e-3, 0, True
    for _ in range(steps):
        parallel.checkpoint()
        if value < NEGLIGIBLE**2 or idle == 2 or damping > 1e8:
            break
        if fresh:
            slope, hessian, sizes = _derivatives(lags, omega, waves, errors)
        step = _solved(hessian + np.diag(damping * sizes), -slope)
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
            idle = idle + 1 if value - lower < gain * value else 0
            success = min((value - lower) / max(promised, 1e-300), 1.5)
            damping = max(damping * max(0.2, 1.0 - (2.0 * success - 1.0) ** 3), 1e-12)
            omega, waves, errors, value = moved, waves_there, errors_there, lower
        else:
            damping *= 4.0
            idle = 2 if promised < 1e-2 * gain * value else idle
    return omega, value


def search(
    lags: Lags, omega: np.ndarray, draw: Draw, candidates: int, steps: int, gain: float
) -> tuple[np.ndarray, float]:
    """Downhill from some frequencies, then by turns: jumps of single blocks to where they are needed, and downhill."""
    omega, value = descend(lags, omega, steps, gain)
    idle = 0
    for _ in range(_ROUNDS):
        if idle == _PATIENCE or value < NEGLIGIBLE**2:
            break
        jumped = exchange(lags, omega, draw(candidates), 1 + len(omega) // 8)
        if jumped is None:
            idle += 1
            continue
        there, lower = descend(lags, jumped, steps, gain)
        idle = 0 if lower < (1.0 - _WORTH) * value else idle + 1
        if lower < value:
            omega, value = there, lower
    return omega, value


def exchange(lags: Lags, omega: np.ndarray, candidates: np.ndarray, most: int) -> np.ndarray | None:
    """Put up to `most` blocks, one after another, where a candidate ``(c, k)`` lowers the mean square error most.

    All pairs of a block that goes and a candidate that comes are compared, exactly where the fit sees all lags of its
    range. None if no pair lowers it.
    """
    omega, n, found = omega.copy(), len(omega), False
    mixed = lags.inner(omega[:, None], candidates)
    own, own_there = lags.inner(omega, omega), lags.inner(candidates, candidates)
    waves_there = lags.waves(candidates)
    for _ in range(most):
        parallel.checkpoint()
        waves = lags.waves(omega)
        errors = lags.errors(waves)
        here, there = lags.projected(waves, errors).real, lags.projected(waves_there, errors).real
        change = (2.0 * n * (there - here[:, None]) + own[:, None] + own_there - 2.0 * mixed) / n**2
        block, candidate = np.unravel_index(np.argmin(change), change.shape)
        if not change[block, candidate] < -1e-6 * lags.mean_square(errors):
            break
        omega[block], own[block], found = candidates[candidate], own_there[candidate], True
        mixed[block] = lags.inner(omega[block], candidates)
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


def _solved(matrix: np.ndarray, right: np.ndarray) -> np.ndarray | None:
    """Solution of linear equations whose matrix is positive definite, None if it is not."""
    try:
        factor = np.linalg.cholesky(matrix)
    except np.linalg.LinAlgError:
        return None
    from scipy.linalg import solve_triangular

    half = solve_triangular(factor, right, lower=True, check_finite=False)
    found: np.ndarray = solve_triangular(factor, half, lower=True, trans=1, check_finite=False)
    return found
