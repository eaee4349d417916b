"""Bases of standard RoPE whose mean kernel does not turn negative inside a context."""

from __future__ import annotations

import bisect
import math
from dataclasses import dataclass
from functools import cache

import numpy as np

from rfrope._core import sums
from rfrope._core.arguments import positive, whole
from rfrope._core.results import Result
from rfrope.analysis.curves import first_lag, scan_lags
from rfrope.frequencies.ladders import geometric

_TOP = 2e5, 4096  # the grid's top, and the context that it is for
_LARGEST_TOP = 1e15
_WIDTH = 1e-6  # relative width to which the ends of islands are refined
_DOUBT = 1e-12  # error of sums at long lags in plain arithmetic
_FOLLOWED, _STEPS, _LONGEST = 4, 64, 50.0  # number of lags followed in each order, steps, and distance in ln base
_ZERO_OF_CI = 0.6165054856207163  # the first zero of the cosine integral


@dataclass(frozen=True)
class BaseForContext(Result):
    """Bases for which the mean kernel of `geometric` does not turn negative inside a context.

    `integral_rule` is about the continuum of frequencies, all else about the sum over D blocks. For 64 blocks these
    differ by a factor of 4 at 4096 positions, and of 40 at 131072.

    Attributes
    ----------
    context : int
        Number of positions; lags are 0, ..., context - 1.
    n_blocks : int
        D.
    integral_rule : float
        Base at which the continuum's leading term Ci(context / base) is 0: ``context / 0.6165``. NOT sufficient for D
        blocks.
    smallest : float or None
        Smallest base whose mean kernel is never negative, the low end of the first island; larger bases may fail again.
        None if no base holds.
    islands : tuple of (low, high)
        Ranges of bases that hold, in order; between them the mean kernel turns negative. The ends are bases that hold.
        No range wider than a relative 1e-6 is missed; gaps narrower than the spacing of the grid may be. The last range
        may end at the top of the grid, and is then ``(always_above, top)``.
    always_above : float or None
        Base above which every base of the grid holds. None if the top of the grid does not hold.
    grid : tuple of (low, high, n)
        The bases examined: n of them, logarithmically spaced.

    See Also
    --------
    analysis.base_for_context

    Examples
    --------
    >>> import rfrope
    >>> found = rfrope.analysis.base_for_context(2048, 32)
    >>> round(found.smallest), len(found.islands), round(found.always_above)
    (29617, 13, 74767)
    """

    context: int
    n_blocks: int
    integral_rule: float
    smallest: float | None
    islands: tuple[tuple[float, float], ...]
    always_above: float | None
    grid: tuple[float, float, int]


def base_for_context(
    context: int, n_blocks: int, *, max_base: float | None = None, n_grid: int = 1200
) -> BaseForContext:
    """Find the bases of standard RoPE whose mean kernel is never negative inside a context.

    Parameters
    ----------
    context : int
        Number of positions, at least 1; lags are 0, ..., context - 1.
    n_blocks : int
        D, half the rotated width, at least 1.
    max_base : float, optional
        Top of the grid of bases. Default: 200000 for contexts up to 4096, growing with the power 1.5 of longer ones,
        then multiplied by 4, up to 1e15, until all bases above half the top hold.
    n_grid : int
        Number of bases of the grid, at least 2. It begins at half the integral rule, or at 1 if that is more.

    Returns
    -------
    BaseForContext

    Raises
    ------
    ValueError
        If `context` or `n_blocks` is below 1, `n_grid` below 2, or `max_base` not above the low end of the grid.
    TypeError
        If an argument is of another type.

    See Also
    --------
    analysis.BaseForContext, analysis.first_negative_lag

    Notes
    -----
    The mean kernel of `geometric` has the continuum ``[Ci(m) - Ci(m / base)] / ln base`` (`log_uniform_kernel`), which
    turns negative near ``m = 0.6165 base``; the integral rule ``base >= context / 0.6165`` puts that outside the
    context. The sum over D blocks oscillates about the continuum and is negative far earlier; the bases that hold for
    it form islands (section 5 of the mathematics page).

    Where a base fails at some lag, the sum at that lag stays negative up to a root as the base grows. The root is
    followed in steps bounded by curvature: ``|f''| <= mean (i/D)^2 (u + u^2)`` over ln base, with u = m omega_i. So all
    bases between islands are proven to fail, except for a relative 1e-6 after each root, and `smallest` is a property
    of the sum. Inside islands only the bases of the grid are tested, as by `first_negative_lag`: narrower gaps may be
    missed, and `always_above` depends on the grid.

    Examples
    --------
    >>> found = base_for_context(4096, 64)
    >>> round(found.integral_rule), round(found.smallest, -2), round(found.always_above, -2)
    (6644, 27000.0, 58800.0)
    >>> [(round(low, -2), round(high, -2)) for low, high in found.islands[:2]]
    [(27000.0, 27000.0), (28600.0, 29100.0)]
    """
    context, n_blocks = whole("context", context, 1), whole("n_blocks", n_blocks, 1)
    n_grid = whole("n_grid", n_grid, 2)
    rule, search = integral_rule(context), _Search(context, n_blocks)
    low = max(1.0, 0.5 * rule)
    top = None if max_base is None else positive("max_base", max_base)
    if top is not None and not top > low:
        raise ValueError(
            f"max_base is {max_base}; expected more than {low}, where the grid of bases for context = {context} begins"
        )
    grid = search.default_grid(low, n_grid) if top is None else np.geomspace(low, top, n_grid).tolist()
    islands = search.islands(grid)
    return BaseForContext(
        context=context,
        n_blocks=n_blocks,
        integral_rule=rule,
        smallest=islands[0][0] if islands else None,
        islands=tuple(islands),
        always_above=islands[-1][0] if islands and islands[-1][1] == grid[-1] else None,
        grid=(grid[0], grid[-1], n_grid),
    )


def integral_rule(context: int) -> float:
    """Return the base at which Ci(context / base) is 0, which does not suffice for a sum over blocks."""
    return context / _ZERO_OF_CI


class _Search:
    """Looks for negative lags, base after base: first near the last one found, which moves little from base to base."""

    def __init__(self, context: int, n_blocks: int) -> None:
        self.last, self.n_blocks = context - 1, n_blocks
        self.found = 0
        self.holds = cache(self._holds)

    def _holds(self, base: float) -> bool:
        """Return True if the mean kernel is nowhere negative inside the context; else `found` is a lag where it is."""
        omega, spans = geometric(self.n_blocks, base=base), [self._near(64)] if self.found else []
        for start, stop in (*spans, (1, self.last)):
            lag = first_lag(omega, start, stop, 0.0, below=True)
            if lag is not None:
                self.found = lag
                return False
        return True

    def _near(self, part: int) -> tuple[int, int]:
        """First and last lag that are near the one found last, up to such a part of it."""
        near = max(16, self.found // part)
        return max(1, self.found - near), min(self.last, self.found + near)

    def default_grid(self, low: float, n_grid: int) -> list[float]:
        """Grid whose top is so high that the upper half of it holds, if there is one."""
        top = max(4.0 * low, _TOP[0] * max(1.0, (self.last + 1) / _TOP[1]) ** 1.5)
        while True:
            grid = np.geomspace(low, top, n_grid).tolist()
            if 4.0 * top > _LARGEST_TOP or all(self.holds(base) for base in grid if base >= 0.5 * top):
                return grid
            top *= 4.0

    def islands(self, grid: list[float]) -> list[tuple[float, float]]:
        """Ranges that hold, between the ends of a grid: none wider than `_WIDTH` is missed."""
        found, base, top = [], grid[0], grid[-1]
        while True:
            if self.holds(base):
                end = self._end(base, grid)
                found.append((base, end))
                after = end * (1.0 + _WIDTH)
            else:
                end, after = base, self._next_base(base)
            if end == top:
                return found
            base = min(after, top)

    def _end(self, base: float, grid: list[float]) -> float:
        """End of the island of a base that holds: by bisection before the next base of the grid that does not."""
        for other in grid[bisect.bisect_right(grid, base) :]:
            if self.holds(other):
                base = other
                continue
            while other - base > _WIDTH * base:
                middle = 0.5 * (base + other)
                base, other = (middle, other) if self.holds(middle) else (base, middle)
            break
        return base

    def _next_base(self, base: float) -> float:
        """Return a base above one that fails; all between fail, except the last `_WIDTH`.

        Lags that fail most, or most for how fast they change, are followed to where they cease to, while any fails.
        """
        lags: list[int] = []
        for first, means in scan_lags(geometric(self.n_blocks, base=base), *self._near(4)):
            failing = first + np.flatnonzero(means < -_DOUBT)
            depths = means[failing - first]
            for depth in (depths, depths / failing):
                lags += failing[np.argsort(depth)[:_FOLLOWED]].tolist()
        past, grown, followed = 0.0, 0.5 * _WIDTH, np.unique(lags)
        while grown and past < _LONGEST:
            past += grown
            furthest = max([0.0, *self._followed(followed, math.log(base) + past)])
            grown = furthest + 0.5 * _WIDTH if furthest else 0.0
        return base * math.exp(min(past, _LONGEST))

    def _followed(self, lags: np.ndarray, log_base: float) -> np.ndarray:
        """Growth of the logarithm of the base during which the mean kernel stays negative at some lags.

        Newton's steps, made shorter by what a bound of the curvature takes from them: it falls as the base grows.
        """
        share, grown = np.arange(self.n_blocks) / self.n_blocks, np.zeros(len(lags))
        for _ in range(_STEPS):
            u = lags[:, None] * np.exp(-(log_base + grown[:, None]) * share)
            waves = sums.CosSin.from_phases(u, np)
            value, slope = waves.mean_cos(), waves.summed(None, share * u)[1] / self.n_blocks
            bend = np.mean(share * share * (u + u * u), axis=1)
            depth = np.clip(-value - _DOUBT, 0.0, None)
            with np.errstate(divide="ignore", invalid="ignore"):  # a single block does not bend
                step = 2.0 * depth / (slope + np.sqrt(slope * slope + 2.0 * bend * depth))
            step = np.where(depth > 0.0, np.minimum(step, _LONGEST), 0.0)
            grown += step
            if np.all((step < 0.1 * _WIDTH) | (grown > _LONGEST)):
                break
        return grown


def ladder_base(omega: np.ndarray, tolerance: float, known: float = 0.0) -> float | None:
    """Return the base for which the frequencies, up to zeros at their end, are ``base ** (-i / D)``, or None.

    It is `known` if that fits, otherwise as round as the tolerance, relative to each frequency, allows.
    """
    n = int(np.count_nonzero(omega))
    if n < 2 or omega[0] != 1.0 or not 1.0 > omega[n - 1] > 0.0:
        return None
    found = float(omega[n - 1]) ** (-len(omega) / (n - 1))
    exponents = -np.arange(n) / len(omega)
    for base in (known, float(f"{found:.6g}"), float(f"{found:.12g}"), found):
        if base > 1.0 and np.allclose(omega[:n], base**exponents, rtol=tolerance, atol=0.0):
            return base
    return None
