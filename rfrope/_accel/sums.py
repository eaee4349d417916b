"""Sums of cos and sin over many frequencies at many lags: compiled loops, or a non-uniform fast Fourier transform.

The direct loops cost a time proportional to frequencies times lags. finufft costs their sum: its type 1 where the
lags lie on a uniform grid, its type 3 anywhere, in up to three axes. A cost formula with measured constants chooses;
how many threads there are does not enter it, so results do not depend on that.

finufft runs on one thread a call (several would enter OpenMP, which a forked process cannot), and is called from
threads of our own, each on a fixed part of the frequencies.

Accuracy of a mean: finufft is asked for 1e-12, and phases within a transform span at most 2**20 * pi radians, which
float64 holds to 1.2e-10 at the ends; what a phase loses beyond that (a grid that is uniform only up to rounding) is
kept below 1e-10, frequencies where it is more being summed directly. The bound is 1e-9.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from rfrope import _array, _threads
from rfrope._accel import sums_loops as loops
from rfrope._array import Array

_ACCURACY = 1e-12
_PHASE_LOSS = 1e-10  # radians
_LARGEST = 2.0**500  # products of larger numbers could overflow: the direct loop takes them
_LARGEST_PHASE = 2.0**90  # radians: a double-double of turns still tells their fraction
_DRAWS = 2**18  # frequencies of one transform
_MODES = 2**20  # lags of one transform on a grid
_CELLS = 2**23  # numbers on its finer grid: 128 MB
_TILE_PHASES = 2**25  # phases between two looks at whether to go on
_TILE = 2**12  # lags that a thread takes at a time

# Nanoseconds on one thread, by the number of axes (python -m benchmarks.crossover measures them)
_NS_DIRECT = (1.6, 1.9, 2.2)  # a frequency at a lag
_NS_DIRECT_AXIS = 0.3  # the same, for each axis beyond the third
_NS_CALL = (3e5, 4e5, 7e5)  # a call of finufft
_NS_POINT = (50.0, 120.0, 820.0)  # a frequency, spread on the finer grid
_NS_CELL = (25.0, 13.0, 13.0)  # a number on the finer grid
_NS_TARGET = 100.0  # a scattered lag, beside its own spreading

_Grid = tuple["_Axis", ...]


def mean_cos(frequencies: Array, delta: Array, xp: ModuleType) -> Array:
    """Mean of ``cos(delta . omega)`` over the frequencies: the twin of `rfrope._sums.mean_cos`."""
    device = _array.device(delta)
    omega, lags = (_array.as_numpy(_array.as_widest(v, xp)) for v in (frequencies, delta))
    if omega.ndim == 1:
        omega, lags = omega[:, None], lags[..., None]
    if omega.ndim == 2:
        mean = _mean_of_one_set(omega, lags.reshape(-1, lags.shape[-1])).reshape(lags.shape[:-1])[()]
        return _array.from_host(mean, xp, device=device)
    alone = lags.ndim == 1
    lags = lags[None, :] if alone else lags
    heads = np.broadcast_shapes(omega.shape[:-2], lags.shape[:-2])
    omega, lags = (np.broadcast_to(v, (*heads, *v.shape[-2:])) for v in (omega, lags))
    mean = np.empty((*heads, lags.shape[-2]))
    for head in np.ndindex(heads):
        mean[head] = _mean_of_one_set(omega[head], lags[head])
    return _array.from_host((mean[..., 0] if alone else mean)[()], xp, device=device)


def kernel_moments(omega: np.ndarray, delta: Array, quantity: str) -> tuple[Array, Array]:
    """Mean and sum of squared deviations of a kernel's cos or sin: the twin of `rfrope.montecarlo._kernel_moments`.

    A transform gives means alone, so squares come from doubled angles: ``cos^2 u = (1 + cos 2u)/2``. Where the variance
    is too small for that, a series or the loop computes both moments.
    """
    xp, device = _array.namespace(delta=delta), _array.device(delta)
    host = _array.as_numpy(delta)
    shape = host.shape if omega.ndim == 1 else host.shape[:-1]
    omega = omega[:, None] if omega.ndim == 1 else omega
    lags = _prepared(host.reshape(-1, omega.shape[1]))
    if quantity == "phi2":
        lags = 2.0 * lags
    mean, m2 = (
        _array.from_host(v.reshape(shape)[()], xp, device=device) for v in _moments(omega, lags, quantity == "sin")
    )
    return mean, m2


def kernel_chunk_length(delta: Array, n_lags: int, n_samples: int, draws: int, axes: int) -> int:
    """How many draws make a chunk: the twin of `rfrope.montecarlo._kernel_chunk_length`.

    A loop's memory does not grow with the lags, and a transform pays the more the more draws it has.
    """
    if axes <= 3 and _may_transform(min(_DRAWS, n_samples), n_lags, axes):
        lags = _array.as_numpy(delta).reshape(-1, axes)
        if axes == 1 or _grid(_prepared(lags)) is not None:
            return _power_of_two(min(_DRAWS, 2**22 // (draws + axes)))
    length = _power_of_two(min(2**16, 2**20 // (draws + axes)))
    while length > 2**10 and length * n_lags > 2**22:
        length //= 2
    return length


def _power_of_two(most: int) -> int:
    return 1 << (max(2, most).bit_length() - 1)


# -- direct sums -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Turned:
    """Frequencies ``(n, k)``, and as double-double turns ``(k, n)``."""

    omega: np.ndarray
    turns: np.ndarray
    tails: np.ndarray

    @classmethod
    def of(cls, omega: np.ndarray) -> _Turned:
        omega = _prepared(omega)
        turns, tails = np.empty(omega.shape[::-1]), np.empty(omega.shape[::-1])
        loops.frequency_turns(omega, turns, tails)
        return cls(omega, turns, tails)

    @property
    def count(self) -> int:
        return self.omega.shape[0]

    @property
    def axes(self) -> int:
        return self.omega.shape[1]

    def those(self, chosen: Any) -> _Turned:
        """Return some of the frequencies, chosen by a slice or a mask."""
        return _Turned(self.omega[chosen], *(np.ascontiguousarray(v[:, chosen]) for v in (self.turns, self.tails)))


def _prepared(x: np.ndarray) -> np.ndarray:
    """Return an array of the one memory layout that the loops are compiled for."""
    return np.require(x, np.float64, ["C", "A", "W"])


def _direct_ns(axes: int) -> float:
    return _NS_DIRECT[min(axes, 3) - 1] + _NS_DIRECT_AXIS * max(0, axes - 3)


def _direct_moments(turned: _Turned, lags: np.ndarray, odd: bool) -> tuple[np.ndarray, np.ndarray]:
    mean, m2 = np.empty(len(lags)), np.empty(len(lags))
    for start, stop in _tiles(turned.count, len(lags)):
        loops.moments(turned.turns, turned.tails, lags, start, stop, odd, mean, m2)
    return mean, m2


def _tiles(count: int, n_lags: int) -> Iterator[tuple[int, int]]:
    """Spans of lags that take some 0.1 s, between which an interrupt is seen."""
    length = max(1, _TILE_PHASES // max(1, count))
    for start in range(0, n_lags, length):
        _threads.checkpoint()
        yield start, min(start + length, n_lags)


def _within(omega: np.ndarray, lags: np.ndarray, bound: float) -> bool:
    """Whether no product of a lag and a frequency, on any axis, is above a bound."""
    largest = float(np.max(np.abs(omega), initial=0.0)), float(np.max(np.abs(lags), initial=0.0))
    return largest[0] * largest[1] <= bound


def _plain_moments(omega: np.ndarray, lags: np.ndarray, odd: bool) -> tuple[np.ndarray, np.ndarray]:
    """Direct moments from plain phases, lag by lag, where turns of twice the working precision hold no fraction."""
    mean, m2 = np.empty(len(lags)), np.empty(len(lags))
    for index, lag in enumerate(lags):
        phases = sum(axis * position for axis, position in zip(omega.T, lag, strict=True))
        values = np.sin(phases) if odd else np.cos(phases)
        mean[index] = np.mean(values)
        m2[index] = np.sum((values - mean[index]) ** 2)
    return mean, m2


def _direct_sums(turned: _Turned, lags: np.ndarray) -> np.ndarray:
    """Sums of ``exp(i u)`` over the frequencies, at every lag, on this thread."""
    sums = np.empty(len(lags), np.complex128)
    cos, sin = np.empty(len(lags)), np.empty(len(lags))
    across = np.ascontiguousarray(lags.T)
    for start, stop in _tiles(turned.count, len(lags)):
        loops.totals(turned.turns, turned.tails, across, start, stop, cos, sin)
    sums.real, sums.imag = cos, sin
    return sums


def _direct_mean(turned: _Turned, lags: np.ndarray) -> np.ndarray:
    mean, other, across = np.empty(len(lags)), np.empty(len(lags)), np.ascontiguousarray(lags.T)
    few = len(lags) < 64  # too few to be lanes

    def work(start: int) -> None:
        stop = min(start + tile, len(lags))
        if few:
            loops.moments(turned.turns, turned.tails, lags, start, stop, False, mean, other)
        else:
            loops.totals(turned.turns, turned.tails, across, start, stop, mean, other)

    tile = 1 if few else max(64, min(_TILE, 2**22 // turned.count))
    many = turned.count * len(lags) > 2**16  # less is not worth a thread
    for _ in _threads.ordered_map(work, range(0, len(lags), tile), _threads.allowed() if many else 1):
        pass
    return mean if few else mean / turned.count


def _mean_of_one_set(omega: np.ndarray, lags: np.ndarray) -> np.ndarray:
    """Mean cos of frequencies ``(n, k)`` at lags ``(L, k)``."""
    lags, turned = _prepared(lags), _Turned.of(omega)
    grid = _grid(lags) if _may_transform(turned.count, len(lags), turned.axes) else None
    spans = range(0, turned.count, _DRAWS)
    parts = [turned.those(slice(start, start + _DRAWS)) for start in spans] if len(spans) > 1 else [turned]
    plans = [_plan(part, lags, grid) for part in parts] if _may_transform(turned.count, len(lags), turned.axes) else []
    if not plans or plans[0] is None:
        return _direct_mean(turned, lags)

    def work(index: int) -> np.ndarray:
        plan = plans[index]
        sums = _direct_sums(parts[index], lags) if plan is None else _transformed(parts[index], lags, plan)
        return sums.real.copy()

    total = np.zeros(len(lags))
    for part in _threads.ordered_map(work, range(len(parts)), _threads.allowed()):
        total += part
    total[~np.any(lags, axis=1)] = turned.count  # known without a sum
    return total / turned.count


# -- plans -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Axis:
    """Values ``origin + step * index`` on one axis, each up to `loss`."""

    origin: float
    step: float
    count: int
    index: np.ndarray
    loss: float


@dataclass(frozen=True)
class _Plan:
    """A transform of the frequencies in `inside` (None: all), on a grid or at scattered lags; the others directly."""

    cost: float
    grid: _Grid | None
    inside: np.ndarray | None


def _may_transform(count: int, n_lags: int, axes: int) -> bool:
    """Whether a transform could pay at all, on the smallest grid that there can be."""
    if axes > 3 or not count or not n_lags:
        return False
    least = _NS_CALL[axes - 1] + count * _NS_POINT[axes - 1]
    return least < count * n_lags * _direct_ns(axes)


def _grid(lags: np.ndarray) -> _Grid | None:
    """Return the product grid that all lags ``(L, k)`` lie on, if it is not much larger than they are many."""
    if not np.all(np.abs(lags) <= _LARGEST):
        return None
    axes, points = [], 1
    for values in lags.T:
        axis = _axis(np.ascontiguousarray(values), 4 * len(lags) + 64)
        if axis is None:
            return None
        axes.append(axis)
        points *= axis.count
    return tuple(axes) if points <= 4 * len(lags) + 64 else None


def _axis(values: np.ndarray, most: int) -> _Axis | None:
    """Return the uniform grid of some values, if it has at most so many points."""
    origin, end = float(np.min(values)), float(np.max(values))
    span = end - origin
    if not span:
        return _Axis(origin, 1.0, 1, np.zeros(len(values), np.int64), 0.0)
    if max(-origin, end, span) <= 2.0**53 and np.all(values == np.rint(values)):
        step = _whole_step(values)
    else:
        step = _fractional_step(values, span)
    if span / step >= most:
        return None
    index = np.rint((values - origin) / step)
    largest = max(-origin, end)
    loss = float(np.max(np.abs(values - (origin + step * index))))
    if loss > 1e-6 * step:
        return None
    if not _is_exact(origin, step, largest):
        loss += 2.0**-51 * largest  # the line above was rounded itself
    return _Axis(origin, step, round(span / step) + 1, index.astype(np.int64), loss)


def _whole_step(values: np.ndarray) -> float:
    gaps = np.abs(values[1:] - values[:-1])
    return 1.0 if np.any(gaps == 1.0) else float(np.gcd.reduce(gaps.astype(np.int64)))


def _fractional_step(values: np.ndarray, span: float) -> float:
    """Return the smallest gap that is no rounding error, made to divide the span."""
    gaps = values[1:] - values[:-1]
    if not np.all(gaps > 0.0):
        ordered = np.sort(values)
        gaps = ordered[1:] - ordered[:-1]
    return span / round(span / float(np.min(gaps[gaps > 1e-9 * span])))


def _is_exact(origin: float, step: float, largest: float) -> bool:
    """Whether all points of a grid are multiples of one power of two, small enough to be floats."""
    denominator = max(origin.as_integer_ratio()[1], step.as_integer_ratio()[1])
    return largest <= 2.0**53 / denominator if denominator < 2**1000 else False


def _plan(turned: _Turned, lags: np.ndarray, grid: _Grid | None) -> _Plan | None:
    """Return the cheapest transform, or None where the direct sum is cheaper or the only way."""
    if not np.all(np.abs(turned.omega) <= _LARGEST) or not np.all(np.abs(lags) <= _LARGEST):
        return None
    plans = [] if grid is None else [_grid_plan(turned, len(lags), grid)]
    if grid is None or any(axis.loss for axis in grid):
        plans.append(_scattered_plan(turned, lags))
    direct = turned.count * len(lags) * _direct_ns(turned.axes)
    paying = [plan for plan in plans if plan is not None and plan.cost < direct]
    return min(paying, key=lambda plan: plan.cost) if paying and _has_finufft() else None


def _has_finufft() -> bool:
    try:
        import finufft  # noqa: F401
    except ImportError:
        return False
    return True


def _grid_plan(turned: _Turned, n_lags: int, grid: _Grid) -> _Plan | None:
    k = turned.axes
    rows = math.prod(axis.count for axis in grid[1:])
    if rows > _MODES:
        return None
    blocks = -(-grid[0].count // (_MODES // rows))
    lost = np.zeros(turned.count)
    for axis, omega in zip(grid, turned.omega.T, strict=True):
        lost = lost + np.abs(omega) * axis.loss if axis.loss else lost
    inside = lost <= _PHASE_LOSS
    outside = turned.count - int(np.count_nonzero(inside))
    cells = math.prod(_cells(axis.count) for axis in grid)
    cost = blocks * (_NS_CALL[k - 1] + turned.count * _NS_POINT[k - 1]) + cells * _NS_CELL[k - 1]
    return _Plan(cost + outside * n_lags * _direct_ns(k), grid, inside if outside else None)


def _cells(modes: int) -> int:
    """Points of finufft's finer grid on one axis: twice as many, and room for its kernel."""
    return max(2 * modes, 26)


def _scattered_plan(turned: _Turned, lags: np.ndarray) -> _Plan | None:
    """Type 3: its grid is as large as the product of both ranges, so the largest frequencies may stay outside."""
    k = turned.axes
    reach = 0.5 * (np.max(lags, axis=0) - np.min(lags, axis=0))
    radius = np.max(np.abs(turned.omega) * reach, axis=1)  # radians, on the widest axis
    ranks = sorted({turned.count - 1 - (turned.count >> shift if shift else 0) for shift in (0, 14, 12, 10, 8, 6, 4)})
    best: tuple[float, float, int] | None = None
    ordered = np.partition(radius, ranks)
    widths = np.max(np.abs(turned.omega), axis=0) * reach
    for rank in ranks:
        limit = float(ordered[rank])
        cells = math.prod(4.0 * min(limit, float(width)) / math.pi + 20.0 for width in widths)
        if cells * 2**k > _CELLS or limit > 2.0**20:
            continue
        inside = rank + 1
        cost = 2.0 * _NS_CALL[k - 1] + (inside + len(lags)) * 1.5 * _NS_POINT[k - 1] + len(lags) * _NS_TARGET
        cost += cells * 2**k * _NS_CELL[k - 1]
        cost += (turned.count - inside) * len(lags) * _direct_ns(k)
        if best is None or cost < best[0]:
            best = (cost, limit, inside)
    if best is None:
        return None
    return _Plan(best[0], None, None if best[2] == turned.count else radius <= best[1])


# -- transforms --------------------------------------------------------------------------------------------------------


def _transformed(turned: _Turned, lags: np.ndarray, plan: _Plan) -> np.ndarray:
    """Sums of ``exp(i u)`` over the frequencies, at every lag, as planned."""
    inside = turned if plan.inside is None else turned.those(plan.inside)
    sums = _scattered_sums(inside, lags) if plan.grid is None else _grid_sums(inside, plan.grid, len(lags))
    if plan.inside is not None:
        sums += _direct_sums(turned.those(~plan.inside), lags)
    return sums


def _grid_sums(turned: _Turned, grid: _Grid, n_lags: int) -> np.ndarray:
    """Type 1, in blocks along the first axis; frequency times step is folded exactly before it is a float64."""
    points = np.empty((turned.axes, turned.count))
    for axis in range(turned.axes):
        loops.folded(turned.turns[axis], turned.tails[axis], grid[axis].step, points[axis])
    shape = tuple(axis.count for axis in grid)
    rows = math.prod(shape[1:])
    length = min(shape[0], _MODES // rows)
    if length == shape[0]:
        return _modes(turned, points, grid, 0, shape)[tuple(axis.index for axis in grid)]
    sums = np.empty(n_lags, np.complex128)
    column = np.zeros(n_lags, np.int64)
    for axis_grid in grid[1:]:
        column = column * axis_grid.count + axis_grid.index
    for first in range(0, shape[0], length):
        here = min(length, shape[0] - first)
        modes = _modes(turned, points, grid, first, (here, *shape[1:])).reshape(here, rows)
        chosen = (grid[0].index >= first) & (grid[0].index < first + here)
        sums[chosen] = modes[grid[0].index[chosen] - first, column[chosen]]
    return sums


def _modes(turned: _Turned, points: np.ndarray, grid: _Grid, first: int, shape: tuple[int, ...]) -> np.ndarray:
    """Sums on one block of the grid: finufft counts from its middle, whose phases go into the strengths."""
    import finufft

    middle = [n // 2 + (first if axis == 0 else 0) for axis, n in enumerate(shape)]
    origins, steps = (np.asarray([getattr(axis, name) for axis in grid]) for name in ("origin", "step"))
    halves = _halves(steps)  # times an index they are floats
    positions = np.stack([origins, *(half * middle for half in halves)])
    strengths = _phasors(turned, positions)
    transform = getattr(finufft, f"nufft{turned.axes}d1")
    modes = shape if turned.axes > 1 else shape[0]
    return transform(*points, strengths, modes, eps=_ACCURACY, isign=1, nthreads=1, upsampfac=2.0)


def _halves(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Split numbers into two of at most 27 bits each, whose products with an index below 2**26 are exact."""
    mantissa, exponent = np.frexp(x)
    high = np.ldexp(np.rint(mantissa * 2.0**26), exponent - 26)
    return high, x - high


def _phasors(turned: _Turned, positions: np.ndarray) -> np.ndarray:
    strengths = np.empty(turned.count, np.complex128)
    if not positions.any():
        strengths[:] = 1.0
        return strengths
    cos, sin = np.empty(turned.count), np.empty(turned.count)
    loops.phasors(turned.turns, turned.tails, _prepared(positions), cos, sin)
    strengths.real, strengths.imag = cos, sin
    return strengths


def _scattered_sums(turned: _Turned, lags: np.ndarray) -> np.ndarray:
    """Type 3, about the middle of the lags."""
    import finufft

    middle = 0.5 * (np.max(lags, axis=0) + np.min(lags, axis=0))
    transform = getattr(finufft, f"nufft{turned.axes}d3")
    points, targets = np.ascontiguousarray(turned.omega.T), np.ascontiguousarray((lags - middle).T)
    strengths = _phasors(turned, middle[None])
    return transform(*points, strengths, *targets, eps=_ACCURACY, isign=1, nthreads=1, upsampfac=2.0)


# -- moments -----------------------------------------------------------------------------------------------------------

_LEAST_VARIANCE = 1e-6  # below it, the error of the transform could be seen beside the variance
_FEW = 16  # lags at which the direct loop is as fast as the powers
_TERMS = 14  # of the series: (2u)**28/28! is 1e-21


def _moments(omega: np.ndarray, lags: np.ndarray, odd: bool) -> tuple[np.ndarray, np.ndarray]:
    """Mean and sum of squared deviations of cos (or sin, if `odd`) by the cheapest way that there is."""
    if not _within(omega, lags, _LARGEST_PHASE):
        return _plain_moments(omega, lags, odd)
    turned = _Turned.of(omega)
    parts = _parts_for_moments(turned, lags)
    if parts is None:
        return _direct_moments(turned, lags, odd)
    sums = np.concatenate([_transformed(turned, part, plan) for part, plan in parts])
    return _moments_of_sums(turned, lags, sums / turned.count, odd)


def _parts_for_moments(turned: _Turned, lags: np.ndarray) -> list[tuple[np.ndarray, _Plan]] | None:
    """Return transforms that give the sums at the lags and then at the doubled lags, or None for the direct loop."""
    direct = turned.count * len(lags) * _direct_ns(turned.axes)
    if not _may_transform(turned.count, len(lags), turned.axes) or not np.all(np.abs(lags) <= 0.5 * _LARGEST):
        return None
    both, best = np.concatenate([lags, 2.0 * lags]), None
    for choice in ([both], [lags, 2.0 * lags]):
        plans = [_plan(turned, part, _grid(part)) for part in choice]
        parts = [(part, plan) for part, plan in zip(choice, plans, strict=True) if plan is not None]
        cost = sum(plan.cost for _, plan in parts)
        if len(parts) == len(choice) and cost < direct:
            best, direct = parts, cost
    return best


def _moments_of_sums(turned: _Turned, lags: np.ndarray, means: np.ndarray, odd: bool) -> tuple[np.ndarray, np.ndarray]:
    """Mean and sum of squared deviations from the means of ``exp(i u)`` and ``exp(2 i u)``, in that order."""
    single, double = means[: len(lags)], means[len(lags) :].real
    mean = (single.imag if odd else single.real).copy()
    variance = np.clip(0.5 * (1.0 - double if odd else 1.0 + double) - mean * mean, 0.0, None)
    m2 = variance * turned.count
    zero = ~np.any(lags, axis=1)  # known without a sum
    mean[zero], m2[zero] = (0.0 if odd else 1.0), 0.0
    flat = np.flatnonzero((variance < _LEAST_VARIANCE) & ~zero)
    for group in _octaves(lags[flat, 0]) if turned.axes == 1 else [np.arange(len(flat))]:
        chosen = np.ascontiguousarray(lags[flat[group]])
        by = _series_moments if turned.axes == 1 and len(group) > _FEW else _direct_moments
        mean[flat[group]], m2[flat[group]] = by(turned, chosen, odd)
    return mean, m2


def _octaves(lags: np.ndarray) -> list[np.ndarray]:
    """Group lags other than 0 so that in a group none is more than twice another; indices of each."""
    exponents = np.frexp(lags)[1]
    return [np.flatnonzero(exponents == exponent) for exponent in np.unique(exponents)]


def _series_moments(turned: _Turned, lags: np.ndarray, odd: bool) -> tuple[np.ndarray, np.ndarray]:
    """Mean and sum of squared deviations at lags of one octave, where nearly all phases are small.

    For phases of at most 1 the Taylor series of ``1 - cos u`` and its square, ``(3 - 4 cos u + cos 2u)/2`` (of
    ``sin u`` and ``(1 - cos 2u)/2``, if `odd`), lose nothing to cancellation, and one pass for each power gives them at
    all lags. The other draws are summed directly.
    """
    reach = float(np.max(np.abs(lags)))
    x, share = turned.omega[:, 0] * reach, lags[:, 0] / reach
    small = np.abs(x) <= 1.0
    first, second = np.zeros(len(lags)), np.zeros(len(lags))
    bulk = x[small]
    square, power = bulk * bulk, np.ones(len(bulk))
    for k in range(_TERMS):
        sign, factorial = (-1.0) ** k, math.factorial(2 * k)
        if odd:
            first += sign * share ** (2 * k + 1) * float(np.sum(power * bulk)) / math.factorial(2 * k + 1)
        even = sign * share ** (2 * k) * float(np.sum(power)) / factorial
        if k > 0:
            first -= 0.0 if odd else even
            second += -0.5 * 4.0**k * even if odd else 0.5 * (4.0**k - 4.0) * even
        power *= square
    if not np.all(small):
        outside = turned.those(~small)
        once, twice = (_direct_sums(outside, v) for v in (lags, 2.0 * lags))
        first += once.imag if odd else outside.count - once.real
        squares = outside.count - twice.real if odd else 3.0 * outside.count - 4.0 * once.real + twice.real
        second += 0.5 * squares
    m2 = np.clip(second - first * first / turned.count, 0.0, None)
    return (first if odd else turned.count - first) / turned.count, m2
