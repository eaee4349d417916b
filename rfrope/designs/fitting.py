"""Frequencies ``(n, k)`` fitted to a kernel over a range of lags."""

from __future__ import annotations

import numpy as np

from rfrope.designs.errors import lags_within
from rfrope.designs.sets import quantile
from rfrope.kernels import Kernel

_FITTED = 2**11  # lags that a fit sees, unless there are fewer
_ENOUGH, _STEPS = 1e-5, 500  # gain that ends least squares, and steps of it at most
_NEGLIGIBLE = 1e-9  # error that ends it too
_FIRST_STEP, _LEAST_GAIN, _PROGRAMMES = 0.1, 1e-3, 40  # phase at the largest lag, gain that ends minimax, steps at most


def optimised(kernel: Kernel, n: int, max_lag: tuple[int, ...], norm: str) -> np.ndarray:
    """Frequencies that start as `quantile` and minimise the error of their mean kernel over whole lags.

    Norm "rms" is least squares; norm "sup" goes on from there.
    """
    lags, weights = lags_within(max_lag, _FITTED)
    target, start = kernel.phi(kernel.as_given(lags)), quantile(kernel, n)
    omega = _least_squares(start, lags, target, np.sqrt(weights)) if n else start
    if n and norm == "sup":
        nearest = min((omega, start), key=lambda each: float(np.max(np.abs(_errors(each, lags, target)))))
        omega = _minimax(nearest, lags, target)
    return omega


def _least_squares(omega: np.ndarray, lags: np.ndarray, target: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Levenberg's and Marquardt's method on the normal equations.

    Not SciPy's: the last bits of its MINPACK differ from call to call, and a fit with more unknowns than its errors
    determine grows them to differences that everybody sees. It is also several times slower here.
    """
    errors, damping, idle = scale * _errors(omega, lags, target), 1e-3, 0
    for _ in range(_STEPS):
        slopes = scale[:, None] * _slopes(omega, lags)
        normal = slopes.T @ slopes
        sizes = np.diag(normal)
        normal += damping * np.diag(np.maximum(sizes, 1e-12 * np.max(sizes) + np.finfo(np.float64).tiny))
        moved = omega - np.linalg.solve(normal, slopes.T @ errors).reshape(omega.shape)
        new = scale * _errors(moved, lags, target)
        before, after = float(np.sum(errors * errors)), float(np.sum(new * new))
        if after < before:
            idle = idle + 1 if before - after < _ENOUGH * before else 0
            omega, errors, damping = moved, new, max(damping / 3.0, 1e-12)
        else:
            damping *= 4.0
        if idle == 2 or damping > 1e8 or after < len(lags) * _NEGLIGIBLE**2:
            break
    return omega


def _minimax(omega: np.ndarray, lags: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Lower the largest error by linear programmes (HiGHS), each within a step that the one before allows.

    The method of Madsen ("An algorithm for minimax solution of overdetermined systems of non-linear equations", 1975).
    A programme holds the errors above half of the largest; whether a step is taken is decided by all of them.
    """
    from scipy.optimize import linprog

    errors, step = _errors(omega, lags, target), _FIRST_STEP / max(1.0, float(np.max(np.abs(lags))))
    largest = float(np.max(np.abs(errors)))
    for _ in range(_PROGRAMMES):
        held = np.abs(errors) >= 0.5 * largest
        slopes, bound = _slopes(omega, lags[held]), -np.ones((np.count_nonzero(held), 1))
        found = linprog(
            np.append(np.zeros(omega.size), 1.0),
            np.block([[slopes, bound], [-slopes, bound]]),
            np.concatenate([-errors[held], errors[held]]),
            bounds=[(-step, step)] * omega.size + [(0.0, None)],
        )
        if found.x is None or (promised := largest - found.x[-1]) <= _LEAST_GAIN * largest:
            break
        moved = omega + found.x[:-1].reshape(omega.shape)
        gain = largest - float(np.max(np.abs(_errors(moved, lags, target))))
        if gain > 0.1 * promised:
            omega, largest, errors = moved, largest - gain, _errors(moved, lags, target)
        step *= 2.0 if gain > 0.7 * promised else 1.0 if gain > 0.1 * promised else 0.25
    return omega


def _slopes(omega: np.ndarray, lags: np.ndarray) -> np.ndarray:
    """Derivatives of the errors ``(lags, n k)``."""
    return (np.sin(_phases(omega, lags))[..., None] * lags[:, None] / -len(omega)).reshape(len(lags), -1)


def _errors(omega: np.ndarray, lags: np.ndarray, target: np.ndarray) -> np.ndarray:
    return np.cos(_phases(omega, lags)).mean(axis=-1) - target


def _phases(omega: np.ndarray, lags: np.ndarray) -> np.ndarray:
    """Phases ``(lags, n)``, without BLAS: its last bits depend on where arrays lie in memory, and fits on last bits."""
    return np.sum(lags[:, None, :] * omega, axis=-1)
