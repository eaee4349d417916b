"""Frequencies ``(n, k)`` fitted to a kernel over a range of lags, from several starts."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import partial
from typing import Any

import numpy as np

from rfrope._core import parallel, random, sums
from rfrope._core import progress as bars
from rfrope.designs.descent import NEGLIGIBLE, descend, search
from rfrope.designs.errors import lags_within
from rfrope.designs.lags import Lags
from rfrope.designs.sets import by_magnitude, quantile, strata_of_magnitude, stratified, through, uniforms
from rfrope.kernels import Kernel

_KEY = random.key_from_rng(0)  # all starts and jumps are drawn with it: a fit has no seed
_WORK = 2**9  # unknowns times starts, unless a number of starts is given
_MOST_STARTS = 16
_QUICK, _LAST = (60, 1e-5), (500, 1e-7)  # steps at most and least gain of descents in between, and of the last one
_CANDIDATES = 2**10  # places that a block may jump to in one round
_JUDGED = 2**13  # lags that minimax sees, unless there are fewer
_FIRST_STEP, _LEAST_GAIN = 0.1, 1e-3  # phase at the largest lag, gain that ends minimax
_HELD = 0.7  # share of the largest error from which on a programme holds one
_REFINED = ((6, 2), (40, 1))  # steps of minimax that fits go, and how many of them are kept


def usual_starts(unknowns: int) -> int:
    """How many starts a fit takes unless a number is given: fewer where each of them takes long."""
    return min(_MOST_STARTS, max(1, _WORK // max(unknowns, 1)))


def optimised(
    kernel: Kernel,
    n: int,
    max_lag: tuple[int, ...],
    norm: str,
    *,
    starts: int | None = None,
    progress: Any = None,
) -> np.ndarray:
    """Frequencies that minimise the error of their mean kernel over whole lags, the best that several starts lead to.

    Norm "rms" is least squares; norm "sup" goes on from there.
    """
    if not n:
        return quantile(kernel, n)
    lags = Lags(kernel, max_lag)
    fits = _fits(kernel, n, lags, starts or usual_starts(n * kernel.ndim), progress)
    least = min(range(len(fits)), key=lambda number: fits[number][1])
    omega, _ = descend(lags, fits[least][0], *_LAST)
    if norm == "sup":
        omega = _least_largest(kernel, max_lag, [omega, quantile(kernel, n), *(each for each, _ in fits)])
    return _balanced(omega)


def _fits(kernel: Kernel, n: int, lags: Lags, starts: int, progress: Any) -> list[tuple[np.ndarray, float]]:
    """Minima and their mean square errors: next to the quantiles, and if more can be gained, where the starts lead."""

    def from_start(number: int) -> tuple[np.ndarray, float]:
        draws = iter(range(1 << 31))

        def draw(count: int) -> np.ndarray:
            return _candidates(kernel, count, 2 + starts + number, next(draws))

        return search(lags, _start(kernel, n, number), draw, _CANDIDATES, *_QUICK)

    def all_fits() -> Iterable[tuple[np.ndarray, float]]:
        first = descend(lags, quantile(kernel, n), *_LAST)
        yield first
        if first[1] >= NEGLIGIBLE**2:
            yield from parallel.ordered_map(from_start, range(starts), parallel.allowed())

    return list(bars.shown(all_fits(), starts + 1, progress))


def _start(kernel: Kernel, n: int, number: int) -> np.ndarray:
    """Set number 0, 1, ... to begin with: the quantiles, and by turns strata and independent draws."""
    if number == 0:
        return quantile(kernel, n)
    if number % 2:
        return _turned(through(kernel, uniforms(_KEY, 0, n, kernel.n_columns, number, 1))[0])
    if by_magnitude(kernel) == "table":  # a lattice is enough to begin with
        return _turned(through(kernel, strata_of_magnitude(kernel, _KEY, n, number, 1, moved=True))[0])
    return _turned(through(kernel, stratified(kernel, _KEY, n, number, 1))[0])


def _candidates(kernel: Kernel, count: int, stream: int, number: int) -> np.ndarray:
    """Places for blocks: half by the kernel's law, half anywhere."""
    half = count // 2
    u = uniforms(_KEY, number * half, half, kernel.n_columns + kernel.ndim, stream, 1)[0]
    anywhere = math.pi * (2.0 * u[:, kernel.n_columns :] - 1.0)
    return np.concatenate([_turned(through(kernel, u[:, : kernel.n_columns])), anywhere])


def _turned(omega: np.ndarray) -> np.ndarray:
    """Frequencies between -pi and pi that whole lags cannot tell from the given ones."""
    return omega - 2.0 * math.pi * np.round(omega / (2.0 * math.pi))


def _balanced(omega: np.ndarray) -> np.ndarray:
    """Blocks by length, with alternating signs: the cosine does not see them, and sines nearly cancel."""
    first = np.take_along_axis(omega, np.argmax(omega != 0.0, axis=-1)[:, None], axis=-1)
    omega = np.where(first < 0.0, -omega, omega)[np.argsort(np.linalg.norm(omega, axis=-1), kind="stable")]
    return omega * np.where(np.arange(len(omega)) % 2, -1.0, 1.0)[:, None]


def _least_largest(kernel: Kernel, max_lag: tuple[int, ...], fits: list[np.ndarray]) -> np.ndarray:
    """Frequencies of the least largest error that some fits lead to: all go a few steps, the best go on to the end."""
    lags, _ = lags_within(max_lag, _JUDGED)
    target = kernel.phi(kernel.restore_shape(lags))

    def largest(omega: np.ndarray) -> float:
        return float(np.max(np.abs(_errors(omega, lags, target))))

    for steps, kept in _REFINED:
        lowered = partial(_minimax, lags=lags, target=target, steps=steps)
        fits = sorted(parallel.ordered_map(lowered, fits, parallel.allowed()), key=largest)[:kept]
    return fits[0]


def _minimax(omega: np.ndarray, lags: np.ndarray, target: np.ndarray, steps: int) -> np.ndarray:
    """Lower the largest error by linear programmes (HiGHS), each within a step that the one before allows.

    The method of Madsen ("An algorithm for minimax solution of overdetermined systems of non-linear equations", 1975).
    A programme holds the larger errors; whether a step is taken is decided by all of them.
    """
    from scipy.optimize import linprog

    errors, step = _errors(omega, lags, target), _FIRST_STEP / max(1.0, float(np.max(np.abs(lags))))
    largest = float(np.max(np.abs(errors)))
    for _ in range(steps):
        held = np.abs(errors) >= _HELD * largest
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
    return np.asarray(sums.mean_cos_of_phases(_phases(omega, lags), np) - target)


def _phases(omega: np.ndarray, lags: np.ndarray) -> np.ndarray:
    """Phases ``(lags, n)``, without BLAS: its last bits depend on where arrays lie in memory, and fits on last bits."""
    return np.sum(lags[:, None, :] * omega, axis=-1)
