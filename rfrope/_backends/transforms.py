"""Plans of non-uniform fast Fourier transforms, what they would cost, and lengths of the chunks of an estimate.

Nothing here transforms: the backend for the CPU does. Lags and frequencies are NumPy arrays.

Chunks are merged in order, so their length enters the last bits of a result; it must not depend on threads or on what
else the machine does. It does depend on where the work is done ("cpu", "cuda", or "" for the generic functions): what
one chunk costs differs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from rfrope._core.arguments import LARGEST
from rfrope._core.capacity import parts

ACCURACY = 1e-12
PHASE_LOSS = 1e-10  # radians
MODES = 2**20  # lags of one transform on a grid
_CELLS = 2**23  # numbers on its finer grid: 128 MB
LEAST_VARIANCE = 1e-6  # below it, the error of the transform could be seen beside the variance
_ELEMENTS, _LONGEST = 2**20, 2**16  # numbers that make a chunk of the generic functions, and draws at most
_DRAWS = 2**18  # draws in a chunk that a transform sums
_TABLED = {"cpu": 2**21, "cuda": 2**30}  # numbers that make a chunk of trials whose law loops know
_TRANSPORTED = {"cpu": 2**18, "cuda": 2**22}  # the same where the kernel's own transport is called
_MOST_TRIALS = {"cpu": 2**16, "cuda": 2**22}
_USEFUL_LANES = 256  # trials that a chunk has at least on the CPU, unless that makes more numbers than the next line
_MOST_NUMBERS = 2**28


# nanoseconds on one thread, by the number of axes where there are three: python -m benchmarks.crossover measures them
_DIRECT, _DIRECT_AXIS = (1.6, 1.9, 2.2), 0.3  # a frequency at a lag; the same, for each axis beyond the third
_CALL = 3e5, 4e5, 7e5  # a call of the transform
_POINT = 50.0, 120.0, 820.0  # a frequency, spread on the finer grid
_CELL = 25.0, 13.0, 13.0  # a number on the finer grid
_TARGET = 100.0  # a scattered lag, beside its own spreading


@dataclass(frozen=True)
class Axis:
    """Values ``origin + step * index`` on one axis, each up to `loss`."""

    origin: float
    step: float
    count: int
    index: np.ndarray
    loss: float


Grid = tuple[Axis, ...]


@dataclass(frozen=True)
class TransformPlan:
    """A transform of the frequencies in `inside` (None: all), on a grid or at scattered lags; the others directly."""

    cost: float
    grid: Grid | None
    inside: np.ndarray | None


def pair_cost(axes: int) -> float:
    """Return the cost of a frequency at a lag, summed directly."""
    return _DIRECT[min(axes, 3) - 1] + _DIRECT_AXIS * max(0, axes - 3)


def may_pay(count: int, n_lags: int, axes: int) -> bool:
    """Say whether a transform could pay at all, on the smallest grid that there can be."""
    if axes > len(_CALL) or not count or not n_lags:
        return False
    least = _CALL[axes - 1] + count * _POINT[axes - 1]
    return least < count * n_lags * pair_cost(axes)


# -- grids -------------------------------------------------------------------------------------------------------------


def grid_of(lags: np.ndarray) -> Grid | None:
    """Return the product grid that all lags ``(L, k)`` lie on, if it has few more points than there are lags."""
    if not _is_within(lags):
        return None
    axes, points = [], 1
    for values in lags.T:
        axis = axis_of(np.ascontiguousarray(values), 4 * len(lags) + 64)
        if axis is None:
            return None
        axes.append(axis)
        points *= axis.count
    return tuple(axes) if points <= 4 * len(lags) + 64 else None


def axis_of(values: np.ndarray, most: int) -> Axis | None:
    """Return the uniform grid of some values, if it is small enough."""
    origin, end = float(np.min(values)), float(np.max(values))
    span = end - origin
    if not span:
        return Axis(origin, 1.0, 1, np.zeros(len(values), np.int64), 0.0)
    if max(-origin, end, span) <= 2.0**53 and all(np.all(part == np.rint(part)) for part in parts(values)):
        common = 0
        for after, before in zip(parts(values[1:]), parts(values[:-1]), strict=True):
            common = math.gcd(common, int(np.gcd.reduce(np.abs(after - before).astype(np.int64))))
            if common == 1:
                break
        step = float(common)
    else:
        # the smallest gap that is not a rounding error, made to divide the span
        gaps = values[1:] - values[:-1]
        if not np.all(gaps > 0.0):
            ordered = np.sort(values)
            gaps = ordered[1:] - ordered[:-1]
        step = span / round(span / float(np.min(gaps[gaps > 1e-9 * span])))
    if span / step >= most:
        return None
    index, loss = np.empty(len(values), np.int64), 0.0
    for part, into in zip(parts(values), parts(index), strict=True):
        places = np.rint((part - origin) / step)
        loss = max(loss, float(np.max(np.abs(part - (origin + step * places)))))
        into[:] = places
    largest = max(-origin, end)
    if loss > 1e-6 * step:
        return None
    if not _is_exact(origin, step, largest):
        loss += 2.0**-51 * largest  # the line above was rounded itself
    return Axis(origin, step, round(span / step) + 1, index, loss)


def _is_within(values: np.ndarray) -> bool:
    return all(bool(np.all(np.abs(part) <= LARGEST)) for part in parts(values))


def _is_exact(origin: float, step: float, largest: float) -> bool:
    """Say whether all points of a grid are multiples of one power of two, small enough to be floats."""
    denominator = max(origin.as_integer_ratio()[1], step.as_integer_ratio()[1])
    return largest <= 2.0**53 / denominator if denominator < 2**1000 else False


# -- plans -------------------------------------------------------------------------------------------------------------


def plan(omega: np.ndarray, lags: np.ndarray, grid: Grid | None) -> TransformPlan | None:
    """Return the cheapest transform of ``(n, k)`` frequencies, or None where the direct sum is cheaper or the only way.

    `grid` is that of the lags, if they are on one.
    """
    if not _is_within(omega) or not _is_within(lags):
        return None
    plans = [] if grid is None else [plan_on_grid(omega, len(lags), grid)]
    if grid is None or any(axis.loss for axis in grid):
        plans.append(plan_scattered(omega, lags))
    direct = omega.shape[0] * len(lags) * pair_cost(omega.shape[1])
    paying = [plan for plan in plans if plan is not None and plan.cost < direct]
    return min(paying, key=lambda plan: plan.cost) if paying else None


def plan_on_grid(omega: np.ndarray, n_lags: int, grid: Grid) -> TransformPlan | None:
    """Type 1: frequencies at which the grid's own rounding would be seen stay outside."""
    count, k = omega.shape
    rows = math.prod(axis.count for axis in grid[1:])
    if rows > MODES:
        return None
    blocks = -(-grid[0].count // (MODES // rows))
    lost = np.zeros(count)
    for axis, along in zip(grid, omega.T, strict=True):
        lost = lost + np.abs(along) * axis.loss if axis.loss else lost
    inside = lost <= PHASE_LOSS
    outside = count - int(np.count_nonzero(inside))
    cells = math.prod(finer(axis.count) for axis in grid)
    cost = blocks * (_CALL[k - 1] + count * _POINT[k - 1]) + cells * _CELL[k - 1]
    return TransformPlan(cost + outside * n_lags * pair_cost(k), grid, inside if outside else None)


def finer(modes: int) -> int:
    """Points of finufft's finer grid on one axis: twice as many, and room for its kernel."""
    return max(2 * modes, 26)


def plan_scattered(omega: np.ndarray, lags: np.ndarray) -> TransformPlan | None:
    """Type 3: its grid is as large as the product of both ranges, so the largest frequencies may stay outside."""
    count, k = omega.shape
    reach = 0.5 * (np.max(lags, axis=0) - np.min(lags, axis=0))
    radius = np.max(np.abs(omega) * reach, axis=1)  # radians, on the widest axis
    ranks = sorted({count - 1 - (count >> shift if shift else 0) for shift in (0, 14, 12, 10, 8, 6, 4)})
    found = []
    ordered = np.partition(radius, ranks)
    widths = np.max(np.abs(omega), axis=0) * reach
    for rank in ranks:
        limit = float(ordered[rank])
        cells = math.prod(4.0 * min(limit, float(width)) / math.pi + 20.0 for width in widths)
        if cells * 2**k > _CELLS or limit > 2.0**20:
            continue
        inside = rank + 1
        cost = 2.0 * _CALL[k - 1] + (inside + len(lags)) * 1.5 * _POINT[k - 1] + len(lags) * _TARGET
        cost += cells * 2**k * _CELL[k - 1]
        cost += (count - inside) * len(lags) * pair_cost(k)
        found.append((cost, limit, inside))
    if not found:
        return None
    cost, limit, inside = min(found)
    return TransformPlan(cost, None, None if inside == count else radius <= limit)


def plans_of_moments(
    omega: np.ndarray, lags: np.ndarray, planned: Callable[..., TransformPlan | None]
) -> list[tuple[np.ndarray, TransformPlan]] | None:
    """Return transforms that give the sums at the lags and then at the doubled lags, or None for the direct sum."""
    direct = omega.shape[0] * len(lags) * pair_cost(omega.shape[1])
    if not may_pay(omega.shape[0], len(lags), omega.shape[1]) or not np.all(np.abs(lags) <= 0.5 * LARGEST):
        return None
    both, best = np.concatenate([lags, 2.0 * lags]), None
    for choice in ([both], [lags, 2.0 * lags]):
        plans = [planned(part, grid_of(part)) for part in choice]
        parts = [(part, plan) for part, plan in zip(choice, plans, strict=True) if plan is not None]
        cost = sum(plan.cost for _, plan in parts)
        if len(parts) == len(choice) and cost < direct:
            best, direct = parts, cost
    return best


# -- what surrounds a transform -------------------------------------------------------------


def from_blocks(grid: Grid, n_lags: int, modes: Callable[[int, tuple[int, ...]], np.ndarray]) -> np.ndarray:
    """Sums at the lags of a grid, from transforms of blocks along its first axis: ``modes(first, shape)``."""
    shape = tuple(axis.count for axis in grid)
    rows = math.prod(shape[1:])
    length = min(shape[0], MODES // rows)
    if length == shape[0]:
        return modes(0, shape)[tuple(axis.index for axis in grid)]
    sums = np.empty(n_lags, np.complex128)
    column = np.zeros(n_lags, np.int64)
    for axis in grid[1:]:
        column = column * axis.count + axis.index
    along = grid[0].index
    for first in range(0, shape[0], length):
        here = min(length, shape[0] - first)
        block = modes(first, (here, *shape[1:])).reshape(here, rows)
        chosen = np.flatnonzero((along >= first) & (along < first + here))
        sums[chosen] = block[along[chosen] - first, column[chosen]]
    return sums


def middle(grid: Grid, first: int, shape: tuple[int, ...]) -> np.ndarray:
    """Return positions whose phases add to those at the middle of a block, from where finufft counts, exactly."""
    index = [n // 2 + (first if axis == 0 else 0) for axis, n in enumerate(shape)]
    origins, steps = (np.asarray([getattr(axis, name) for axis in grid]) for name in ("origin", "step"))
    return np.stack([origins, *(half * index for half in _halves(steps))])  # these products are floats


def _halves(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Split numbers into two of at most 27 bits each, whose products with an index below 2**26 are exact."""
    mantissa, exponent = np.frexp(x)
    high = np.ldexp(np.rint(mantissa * 2.0**26), exponent - 26)
    return high, x - high


def moments_of_means(
    means: np.ndarray, zero: np.ndarray, count: int, odd: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean and sum of squared deviations from the means of ``exp(i u)`` and, after these, of ``exp(2 i u)``.

    `zero` marks lags of nothing, whose moments are known. Returned last is where the variance is too small for this.
    """
    single, double = means[: len(zero)], means[len(zero) :].real
    mean: Any = np.where(zero, 0.0 if odd else 1.0, single.imag if odd else single.real)
    variance = np.clip(0.5 * (1.0 - double if odd else 1.0 + double) - mean * mean, 0.0, None)
    flat = (variance < LEAST_VARIANCE) & ~zero
    return mean, np.where(zero, 0.0, variance * count), flat


# -- chunks of estimates -----------------------------------------------------------------------------------------------


def sets_in_chunk(width: int) -> int:
    """Return how many randomised sets make a chunk, if each needs `width` numbers."""
    return min(_LONGEST, _power_of_two(_ELEMENTS // max(1, width)))


def draws_in_chunk(where: str, lags: np.ndarray | None, n_lags: int, n_samples: int, draws: int, axes: int) -> int:
    """Return how many draws of a kernel make a chunk; `lags` are ``(n_lags, axes)`` on the CPU, and None elsewhere.

    A loop's memory does not grow with the lags, and a transform pays more with more draws. A device needs
    many draws to be filled at few lags.
    """
    if where == "cuda":
        return _power_of_two(min(2**20, 2**24 // (draws + axes)))
    if lags is None:
        return sets_in_chunk(n_lags + draws + axes)
    if may_pay(min(_DRAWS, n_samples), n_lags, axes) and (axes == 1 or grid_of(lags) is not None):
        return _power_of_two(min(_DRAWS, 2**22 // (draws + axes)))
    length = _power_of_two(min(2**16, 2**20 // (draws + axes)))
    while length > 2**10 and length * n_lags > 2**22:
        length //= 2
    return length


def trials_in_chunk(where: str, stated: bool, width: int) -> int:
    """Return how many trials of a score make a chunk, if each needs `width` numbers: some milliseconds of work."""
    if not where:
        return sets_in_chunk(width)
    usual, width = (_TABLED if stated else _TRANSPORTED)[where], max(1, width)
    fitting = max(4, usual // width, min(_USEFUL_LANES, _MOST_NUMBERS // width) if where == "cpu" else 0)
    return min(_MOST_TRIALS[where], _power_of_two(fitting))


def _power_of_two(most: int) -> int:
    return 1 << (max(2, most).bit_length() - 1)
