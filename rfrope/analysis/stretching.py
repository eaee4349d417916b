"""Frequencies for a longer context that keep the trained mean kernel and meet no unseen angle."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from rfrope._core import parallel, sums
from rfrope._core.angles import Angles
from rfrope.analysis.curves import scan_lags

KEPT_TURNS = 32.0  # blocks with so many turns in the trained context stay, as in YaRN
_ROUNDS, _WORST = 12, 16  # rounds of a search that add lags where the kernel is negative; how many each
_MARGIN = 1e-6  # margin above 0 of the mean kernel, against rounding
_SCALE = 1e3  # factor of a mean square error, for a solver that stops at absolute differences
_STEPS = 200


@dataclass(frozen=True, eq=False)
class Stretch:
    """Trained frequencies, their context, and the context to reach."""

    trained: np.ndarray  # (D,), radians per position: not negative
    trained_context: int  # positions
    context: int

    @property
    def factor(self) -> float:
        """Return the ratio of the longer context to the trained one."""
        return self.context / self.trained_context

    @property
    def turns(self) -> np.ndarray:
        """Return the turns of each block in the trained context."""
        return self.trained * (self.trained_context / (2.0 * math.pi))

    @property
    def stepped(self) -> np.ndarray:
        """Return frequencies of which all angles were seen: blocks with no full turn are divided by the factor."""
        return np.where(self.turns < 1.0, self.trained / self.factor, self.trained)

    @property
    def free(self) -> np.ndarray:
        """Return the indices of blocks with at least one turn and less than `KEPT_TURNS`, fastest first."""
        found = np.flatnonzero((self.turns >= 1.0) & (self.turns < KEPT_TURNS))
        return found[np.argsort(-self.trained[found], kind="stable")]

    def unseen(self, omega: np.ndarray) -> np.ndarray:
        """Return True for each block that meets angles not seen in training."""
        reach, seen = omega * self.context, self.trained * self.trained_context
        return (self.turns < 1.0) & (reach > (1.0 + 1e-9) * seen)


def mean_square(omega: np.ndarray, trained: np.ndarray, n_lags: int) -> tuple[float, np.ndarray]:
    """Return the mean square difference of two mean kernels over lags 0, ..., n_lags - 1, and its gradient in `omega`.

    In closed form, from products of two cosines: all lags count, however many there are.
    """
    own, own_slope = _paired(omega, omega, n_lags)
    both, both_slope = _paired(omega, trained, n_lags)
    other, _ = _paired(trained, trained, n_lags)
    n = len(omega) ** 2
    value = (0.5 * np.sum(own) - np.sum(both) + 0.5 * np.sum(other)) / n
    return max(0.0, float(value)), (np.sum(own_slope, axis=1) - np.sum(both_slope, axis=1)) / n


def stretched(given: Stretch, start: np.ndarray, *, resolution: float, positive_until: int) -> np.ndarray:
    """Return frequencies whose mean kernel departs least from the trained one over the trained lags.

    Blocks with no full turn are divided by the factor, those with `KEPT_TURNS` stay. Divisors of the others lie between
    and do not decrease towards slower blocks. The mean of ``1 - cos(omega)`` is at least `resolution`, and the mean
    kernel is not negative before `positive_until`, where that is possible: lags where it is negative become
    constraints, round after round.
    """
    problem, lags = _Problem(given, resolution), np.empty(0)
    first = problem.allowed(np.log(start[given.free] / given.trained[given.free]))
    for _ in range(_ROUNDS):
        parallel.raise_if_abandoned()
        omega = problem.frequencies(problem.solved(first, lags))
        worst = [lag for _, lag in sorted(_negative_lags(omega, positive_until))[:_WORST]]
        more = np.union1d(lags, worst)
        if more.size == lags.size:  # none is negative, or the solver cannot do better
            break
        lags = more
    return omega


class _Problem:
    """Minimise over the logarithms of the free frequencies, relative to the trained ones; these fall block by block."""

    def __init__(self, given: Stretch, resolution: float) -> None:
        self.given, self.index, self.base = given, given.free, given.stepped
        self.resolution, self.lowest = resolution, -math.log(given.factor)
        shape = self.index.size + 1, self.index.size
        self.falls = np.eye(*shape, -1) - np.eye(*shape)  # from 0 to the first log, and so on to the lowest
        self.ends = np.append(np.zeros(self.index.size), -self.lowest)

    def allowed(self, logs: np.ndarray) -> np.ndarray:
        """Nearest logarithms that are allowed."""
        return np.minimum.accumulate(np.clip(logs, self.lowest, 0.0))

    def solved(self, logs: np.ndarray, lags: np.ndarray) -> np.ndarray:
        """A local minimum, at which the mean kernel is not negative at some lags if that can be had."""
        from scipy.optimize import minimize

        if not logs.size:
            return logs
        constraints = [lambda y: (self.falls @ y + self.ends, self.falls), self._resolved]
        if lags.size:
            constraints.append(lambda y: self._kernel(y, lags))
        found = minimize(
            self._error,
            logs,
            jac=True,
            method="SLSQP",
            constraints=[
                {"type": "ineq", "fun": lambda y, f=f: f(y)[0], "jac": lambda y, f=f: f(y)[1]} for f in constraints
            ],
            options={"maxiter": _STEPS, "ftol": 1e-9},
        )
        return self.allowed(found.x) if np.all(np.isfinite(found.x)) else logs

    def _error(self, logs: np.ndarray) -> tuple[float, np.ndarray]:
        omega = self.frequencies(logs)
        value, slope = mean_square(omega, self.given.trained, self.given.trained_context)
        return _SCALE * value, _SCALE * (slope * omega)[self.index]

    def _resolved(self, logs: np.ndarray) -> tuple[float, np.ndarray]:
        omega = self.frequencies(logs)
        slope = np.sin(omega) * omega / omega.size
        scale = _SCALE / self.resolution
        return scale * (neighbours(omega) - self.resolution), scale * slope[self.index]

    def _kernel(self, logs: np.ndarray, lags: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        omega = self.frequencies(logs)
        angles = lags[:, None] * omega
        slope = -(np.sin(angles) * angles)[:, self.index] / omega.size
        return sums.mean_cos_of_phases(angles, np) - _MARGIN, slope

    def frequencies(self, logs: np.ndarray) -> np.ndarray:
        """All of them, for logarithms of the free ones."""
        omega = self.base.copy()
        omega[self.index] *= np.exp(np.clip(logs, self.lowest - 1.0, 1.0))  # a line search may go far
        return omega


def neighbours(omega: np.ndarray) -> float:
    """Return ``1 - C(1)``, the fall of the mean kernel between neighbouring positions."""
    return float(sums.one_minus_cos_moments(Angles(np.ones(1), omega[:, None], None, np))[0]) / omega.size


def _negative_lags(omega: np.ndarray, stop: int) -> list[tuple[float, int]]:
    """Lowest value and its lag, of each stretch of lags before `stop` at which the mean kernel is negative."""
    found = []
    for first, means in scan_lags(omega, 1, stop - 1):
        below = np.flatnonzero(means < 0.0)
        for run in np.split(below, np.flatnonzero(np.diff(below) > 1) + 1) if below.size else ():
            at = int(run[np.argmin(means[run])])
            found.append((float(means[at]), first + at))
    return found


def _paired(one: np.ndarray, other: np.ndarray, n_lags: int) -> tuple[np.ndarray, np.ndarray]:
    """``2 mean cos(m a) cos(m b)`` over lags m for all pairs of frequencies, and its derivative in the first."""
    (less, less_slope), (more, more_slope) = (
        _mean_cos(x, n_lags) for x in (one[:, None] - other, one[:, None] + other)
    )
    return less + more, less_slope + more_slope


def _mean_cos(x: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """``sin(n h) cos((n - 1) h) / (n sin h)`` with h = x/2, the mean of cos(m x) over m < n, and its derivative."""
    x = x - 2.0 * math.pi * np.round(x / (2.0 * math.pi))
    near = n * np.abs(x) < 1e-3
    half = np.where(near, 0.5, 0.5 * x)
    above = np.sin(n * half) * np.cos((n - 1) * half)
    below = n * np.sin(half)
    above_slope = 0.5 * (
        n * np.cos(n * half) * np.cos((n - 1) * half) - (n - 1) * np.sin(n * half) * np.sin((n - 1) * half)
    )
    value = above / below
    slope = (above_slope - 0.5 * n * np.cos(half) * value) / below
    curvature = (n - 1) * (2 * n - 1) / 6.0  # the mean of m**2
    return np.where(near, 1.0 - 0.5 * curvature * x * x, value), np.where(near, -curvature * x, slope)
