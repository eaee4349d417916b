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
from typing import Any

import numpy as np

from rfrope._backends import layout, transforms
from rfrope._backends.cpu import sums_loops as loops
from rfrope._core import array, capacity, parallel
from rfrope._core.angles import Angles
from rfrope._core.array import Array

_LARGEST_PHASE = 2.0**90  # radians: a double-double of turns still holds their fraction
_DRAWS = 2**18  # frequencies of one transform
_TILE_PHASES = 2**25  # phases between two looks at whether to go on
_TILE = 2**12  # lags that a thread takes at a time

_HOW: dict[str, Any] = dict(eps=transforms.ACCURACY, isign=1, nthreads=1, upsampfac=2.0)  # finufft transforms


def mean_cos(angles: Angles) -> Array:
    """Mean of ``cos u`` over the blocks: see `rfrope._core.sums.mean_cos`."""
    xp, device = angles.xp, array.device(angles.positions)
    omega, lags = (array.view_as_numpy(array.widen(v, xp)) for v in (angles.frequencies, angles.positions))
    if not omega.shape[:-2]:  # one set, for which all lags are one row
        mean = _mean_of_one_set(omega, lags.reshape(-1, lags.shape[-1])).reshape(lags.shape[:-1])
    else:
        omega, lags = layout.head_rows(omega, lags)
        heads = np.broadcast_shapes(omega.shape[:-2], lags.shape[:-2])
        omega, lags = (np.broadcast_to(v, (*heads, *v.shape[-2:])) for v in (omega, lags))
        means = np.asarray([_mean_of_one_set(omega[head], lags[head]) for head in np.ndindex(heads)])
        mean = means.reshape(angles.shape[:-1])
    return array.from_host(mean[()], xp, device=device)


def kernel_moments(omega: Array, lags: Array, quantity: str) -> tuple[Array, Array]:
    """Mean and sum of squared deviations of a kernel's cos or sin: see `rfrope.montecarlo`.

    A transform gives means alone, so squares come from doubled angles: ``cos^2 u = (1 + cos 2u)/2``. Where the variance
    is too small for that, a series or the loop computes both moments.
    """
    xp, device = array.namespace(lags=lags), array.device(lags)
    host, omega = array.view_as_numpy(lags), array.view_as_numpy(omega)
    rows = _prepared(host.reshape(-1, omega.shape[1]))
    if quantity == "phi2":
        rows = 2.0 * rows
    mean, m2 = (
        array.from_host(v.reshape(host.shape[:-1])[()], xp, device=device)
        for v in _moments(omega, rows, quantity == "sin")
    )
    return mean, m2


# -- direct sums -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Turned:
    """Frequencies ``(n, k)``, and as double-double turns ``(k, n)``."""

    omega: np.ndarray
    turns: np.ndarray
    tails: np.ndarray

    @classmethod
    def from_frequencies(cls, omega: np.ndarray) -> _Turned:
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


def _direct_moments(turned: _Turned, lags: np.ndarray, odd: bool) -> tuple[np.ndarray, np.ndarray]:
    mean, m2 = np.empty(len(lags)), np.empty(len(lags))
    for start, stop in _tiles(turned.count, len(lags)):
        loops.moments(turned.turns, turned.tails, lags, start, stop, odd, mean, m2)
    return mean, m2


def _tiles(count: int, n_lags: int) -> Iterator[tuple[int, int]]:
    """Spans of lags that take some 0.1 s, between which an interrupt is seen."""
    length = max(1, _TILE_PHASES // max(1, count))
    for start in range(0, n_lags, length):
        parallel.raise_if_abandoned()
        yield start, min(start + length, n_lags)


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
    parallel.run_all(work, range(0, len(lags), tile), parallel.allowed() if many else 1)
    return mean if few else mean / turned.count


def _mean_of_one_set(omega: np.ndarray, lags: np.ndarray) -> np.ndarray:
    """Mean cos of frequencies ``(n, k)`` at lags ``(L, k)``."""
    lags, turned = _prepared(lags), _Turned.from_frequencies(omega)
    may_pay = transforms.may_pay(turned.count, len(lags), turned.axes)
    grid = transforms.grid_of(lags) if may_pay else None
    starts = range(0, turned.count, _DRAWS)
    parts = [turned.those(slice(start, start + _DRAWS)) for start in starts] if len(starts) > 1 else [turned]
    plans = [_plan(part, lags, grid) for part in parts] if may_pay else []
    if not plans or plans[0] is None:
        return _direct_mean(turned, lags)

    def work(index: int) -> np.ndarray:
        plan = plans[index]
        sums = _direct_sums(parts[index], lags) if plan is None else _transformed(parts[index], lags, plan)
        real = np.empty(len(lags))
        for span in capacity.spans(len(lags)):
            real[span] = sums.real[span]
        return real

    total = np.zeros(len(lags))
    for part in parallel.ordered_map(work, range(len(parts)), parallel.allowed()):
        total += part
    for span in capacity.spans(len(lags), turned.axes):
        part = total[span]
        part[~np.any(lags[span], axis=1)] = turned.count  # known without a sum
        part /= turned.count
    return total


# -- transforms --------------------------------------------------------------------------------------------------------


def _plan(turned: _Turned, lags: np.ndarray, grid: transforms.Grid | None) -> transforms.TransformPlan | None:
    """Return the cheapest transform, or None where the direct sum is cheaper or the only way."""
    plan = transforms.plan(turned.omega, lags, grid)
    try:
        import finufft  # noqa: F401
    except ImportError:
        return None
    return plan


def _transformed(turned: _Turned, lags: np.ndarray, plan: transforms.TransformPlan) -> np.ndarray:
    """Sums of ``exp(i u)`` over the frequencies, at every lag, as planned."""
    inside = turned if plan.inside is None else turned.those(plan.inside)
    sums = _scattered_sums(inside, lags) if plan.grid is None else _grid_sums(inside, plan.grid, len(lags))
    if plan.inside is not None:
        sums += _direct_sums(turned.those(~plan.inside), lags)
    return sums


def _grid_sums(turned: _Turned, grid: transforms.Grid, n_lags: int) -> np.ndarray:
    """Type 1, in blocks along the first axis; frequency times step is folded exactly before it is a float64."""
    points = np.empty((turned.axes, turned.count))
    for axis in range(turned.axes):
        loops.folded(turned.turns[axis], turned.tails[axis], grid[axis].step, points[axis])

    def modes(first: int, shape: tuple[int, ...]) -> np.ndarray:
        return _transform(1, turned, transforms.middle(grid, first, shape), points, shape)

    return transforms.from_blocks(grid, n_lags, modes)


def _scattered_sums(turned: _Turned, lags: np.ndarray) -> np.ndarray:
    """Type 3, about the middle of the lags."""
    middle = 0.5 * (np.max(lags, axis=0) + np.min(lags, axis=0))
    targets = np.ascontiguousarray((lags - middle).T)
    return _transform(3, turned, middle[None], np.ascontiguousarray(turned.omega.T), *targets)


def _transform(kind: int, turned: _Turned, positions: np.ndarray, points: np.ndarray, *targets: Any) -> np.ndarray:
    """Transform the phasors of all draws at the sum of some positions."""
    import finufft

    strengths = np.ones(turned.count, np.complex128)
    if positions.any():
        cos, sin = np.empty(turned.count), np.empty(turned.count)
        loops.phasors(turned.turns, turned.tails, _prepared(positions), cos, sin)
        strengths.real, strengths.imag = cos, sin
    transform = getattr(finufft, f"nufft{turned.axes}d{kind}")
    return parallel.run_in_thread(lambda: transform(*points, strengths, *targets, **_HOW))


# -- moments -----------------------------------------------------------------------------------------------------------

_FEW = 16  # lags at which the direct loop is as fast as the powers
_TERMS = 14  # terms of the series: (2u)**28/28! is 1e-21


def _moments(omega: np.ndarray, lags: np.ndarray, odd: bool) -> tuple[np.ndarray, np.ndarray]:
    """Mean and sum of squared deviations of cos (or sin, if `odd`) by the cheapest way that there is."""
    largest = [float(np.max(np.abs(one), initial=0.0)) for one in (omega, lags)]
    if not largest[0] * largest[1] <= _LARGEST_PHASE:  # nor NaN
        return _plain_moments(omega, lags, odd)
    turned = _Turned.from_frequencies(omega)
    parts = transforms.plans_of_moments(omega, lags, lambda part, grid: _plan(turned, part, grid))
    if parts is None:
        return _direct_moments(turned, lags, odd)
    sums = np.concatenate([_transformed(turned, part, plan) for part, plan in parts])
    zero = ~np.any(lags, axis=1)
    mean, m2, small = transforms.moments_of_means(sums / turned.count, zero, turned.count, odd)
    flat = np.flatnonzero(small)
    exponents = np.frexp(lags[flat, 0])[1] if turned.axes == 1 else np.zeros(len(flat))  # no lag is twice another
    for exponent in np.unique(exponents):
        group = flat[exponents == exponent]
        find = _series_moments if turned.axes == 1 and len(group) > _FEW else _direct_moments
        mean[group], m2[group] = find(turned, np.ascontiguousarray(lags[group]), odd)
    return mean, m2


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
        squares = outside.count - twice.real if odd else 3.0 * outside.count - 4.0 * once.real + twice.real
        first, second = first + (once.imag if odd else outside.count - once.real), second + 0.5 * squares
    m2 = np.clip(second - first * first / turned.count, 0.0, None)
    return (first if odd else turned.count - first) / turned.count, m2
