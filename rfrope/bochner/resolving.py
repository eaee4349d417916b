"""A function on panels that agree with every value it was seen to take, and that end where it jumps."""

from __future__ import annotations

import numpy as np
from numpy.polynomial import legendre

from rfrope.bochner.piecewise import (
    LOOSER,
    NODES,
    Function,
    Judgement,
    Level,
    Pieces,
    last_coefficients,
    refine,
    series_of,
)

_STAYS = (0.7, 1.4)  # parts of a difference that may be left of it, or come of it, ever closer to a jump
_ALONE = 2.0  # times the next largest difference, from which on one may be of a jump
_LEAST = 2.0**-50  # width of a panel, as a part of where it ends
_MOST_BISECTIONS = 200


class Seen:
    """A function, and all values that it was seen to take."""

    def __init__(self, function: Function, x: np.ndarray, values: np.ndarray) -> None:
        self._function = function
        self._points, self._values = [x], [values]

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Values at points, which are kept."""
        values = self._function(x)
        self._points.append(x)
        self._values.append(values)
        return values

    @property
    def calls(self) -> int:
        """Number of calls so far."""
        return len(self._points)

    def times(self, factor: float) -> Seen:
        """Return the function and its values multiplied by a power of two."""
        x, values = self.since()
        return Seen(lambda w: factor * self._function(w), x, factor * values)

    def since(self, calls: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """Points and values of all calls but the first few."""
        return np.concatenate(self._points[calls:]), np.concatenate(self._values[calls:])


def resolve(function: Seen, edges: np.ndarray, level: Level, *, tolerance: float, budget: int, least: float) -> Pieces:
    """Resolve a function as `piecewise.build` does, in agreement with all values that it was seen to take.

    A panel is split at its jump if it has one, or else halved, until the last coefficients of its series have died away
    and the series is what was seen. A panel that ends below `least` may hold a cusp at 0.

    Raises
    ------
    Unresolved
        If `budget` panels are not enough.
    """
    x, seen = function.since()
    inside = (x > edges[0]) & (x <= edges[-1])
    x, seen, calls = x[inside], seen[inside], function.calls

    def judge(low: np.ndarray, high: np.ndarray) -> Judgement:
        nonlocal x, seen, calls
        half = 0.5 * (high - low)
        centre = low + half
        values = function(_points(low, high).ravel()).reshape(low.size, -1)
        series = series_of(values[:, : NODES.size])
        rounding = np.maximum(tolerance, _LEAST * high / half)  # that of x is seen on narrow panels
        wanted = np.maximum(rounding * np.max(np.abs(values), axis=1), level(centre, half))
        x, seen = (np.append(old, new) for old, new in zip((x, seen), function.since(calls), strict=True))
        calls, order = function.calls, np.argsort(x, kind="stable")
        x, seen = x[order], seen[order]
        panel = np.searchsorted(low, x) - 1
        good = last_coefficients(series) <= wanted
        (there,) = np.nonzero(good[panel])
        on = panel[there]
        found = legendre.legval((x[there] - centre[on]) / half[on], series.T[:, on], tensor=False)
        good[on[np.abs(found - seen[there]) > LOOSER * wanted[on]]] = False
        good |= (high - low <= _LEAST * high) | (high <= least)
        kept, bad = ~good[panel], ~good
        x, seen = x[kept], seen[kept]
        if not bad.any():
            return series, good, centre[bad]
        middle = _find_jumps(function, x, seen, (np.cumsum(bad) - 1)[panel[kept]], int(np.count_nonzero(bad)))
        return series, good, np.where((middle > low[bad]) & (middle < high[bad]), middle, centre[bad])

    return refine(edges, judge, budget)


def _points(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Nodes of panels, and points next to their ends: within (low, high] even where these are neighbours."""
    low, high = low[:, None], high[:, None]
    nodes = low + 0.5 * (high - low) * (1.0 + NODES)
    points = np.concatenate([nodes, low + _LEAST * high, high - _LEAST * high], axis=1)
    return np.clip(points, np.nextafter(low, np.inf), high)


def _find_jumps(function: Function, x: np.ndarray, seen: np.ndarray, panel: np.ndarray, count: int) -> np.ndarray:
    """Last point before the jump on each panel that has one alone, else NaN.

    A jump is where values differ by as much however close two points are. Points are ascending, with several on each
    panel.
    """
    gaps = np.where(np.diff(panel) == 0, np.abs(np.diff(seen)), -1.0)
    order = np.lexsort((gaps, panel[:-1]))
    last = np.searchsorted(panel[:-1][order], np.arange(count), side="right") - 1
    at, height = order[last], gaps[order[last]]
    a, b, left, right = x[at], x[at + 1], seen[at], seen[at + 1]
    found, active = np.full(count, np.nan), np.nonzero(height > _ALONE * np.maximum(gaps[order[last - 1]], 0.0))[0]
    for _ in range(_MOST_BISECTIONS):
        middle = a[active] + 0.5 * (b[active] - a[active])
        ended = (middle <= a[active]) | (middle >= b[active])
        found[active[ended]] = a[active[ended]]
        active, middle = active[~ended], middle[~ended]
        if not active.size:
            break
        value = function(middle)
        below, above = np.abs(value - left[active]), np.abs(right[active] - value)
        lower, upper = active[below > above], active[below <= above]
        b[lower], right[lower] = middle[below > above], value[below > above]
        a[upper], left[upper] = middle[below <= above], value[below <= above]
        part = np.maximum(below, above) / height[active]
        active = active[(part >= _STAYS[0]) & (part <= _STAYS[1])]
    return found
