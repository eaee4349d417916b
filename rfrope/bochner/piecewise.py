"""Functions on a half-line as Legendre series on panels: built adaptively, transformed exactly, inverted.

`rfrope.bochner` computes with these. The Fourier integral of a Legendre series over a panel is a finite sum of
spherical Bessel functions, ``int_-1^1 P_n(t) exp(i z t) dt = 2 i^n j_n(z)`` (DLMF 18.17.19; Bakhvalov and Vasil'eva
1968), so a function is resolved once, by its own smoothness, and then transformed at any frequency.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.polynomial import legendre

from rfrope._core import array
from rfrope.bochner.refusals import UndecidedError

ORDER = 24  # nodes, and coefficients, of a panel that is built here
NODES, WEIGHTS = legendre.leggauss(ORDER)
TO_SERIES = legendre.legvander(NODES, ORDER - 1) * WEIGHTS[:, None] * (np.arange(ORDER) + 0.5)
_LEAST = 2.0**-50  # width of a panel, as a part of where it ends
_CUSP = 2.0**-500  # end of the panel at 0 that may hold a cusp, as a part of all
_STAYS = (0.7, 1.4)  # fractions of a difference that may remain, or appear, ever closer to a jump
_ALONE = 2.0  # times the next largest difference, from which on one may be of a jump
_MOST_BISECTIONS = 200
LOOSER = 100.0  # factor of the error between nodes
LAST = 4  # coefficients that must be negligible: two even and two odd ones
_CELLS = 2**19  # maximum entries of a temporary matrix
_SMALL = 2.0**-6  # arguments below which spherical Bessel functions come from their power series
_MILLER = 36  # steps above the highest order from which the downward recurrence starts
_EXACT_BELOW = 64.0  # phases up to which a rounded product of lag and frequency is exact enough
_NOTHING = 1e-19  # part of the mass of all panels
_TINY = 1e-6  # angles equal to their sine, to rounding
_APART = 0.75  # widths of a panel from which on Gauss nodes resolve a pole

Function = Callable[[np.ndarray], np.ndarray]
Level = Callable[[np.ndarray, np.ndarray], np.ndarray]


class Sealed:
    """Base of dataclasses with array fields, which are read-only, and compared and hashed by content.

    Array fields are recognised by their annotation; others are compared as usual.
    """

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            if field.type == "np.ndarray":
                host = np.asarray(getattr(self, field.name), dtype=np.float64)
                # an immutable copy: bytes, which no flag makes writable
                object.__setattr__(self, field.name, np.ndarray(host.shape, host.dtype, host.tobytes()))

    def _values(self) -> tuple[Any, ...]:
        return tuple(getattr(self, field.name) for field in dataclasses.fields(self))  # type: ignore[arg-type]

    @cached_property
    def _content(self) -> tuple[Any, ...]:
        return tuple((v.shape, v.tobytes()) if isinstance(v, np.ndarray) else v for v in self._values())

    def __eq__(self, other: object) -> bool:
        return self._content == other._content if isinstance(other, type(self)) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._content)

    def __reduce__(self) -> tuple[type, tuple[Any, ...]]:
        return type(self), self._values()  # without what is cached, and arrays stay read-only


@dataclass(frozen=True, eq=False)
class Pieces(Sealed):
    """Legendre series on adjacent panels; 0 outside. Equal, and hashed, by content."""

    edges: np.ndarray  # (n + 1,): ascending, from 0 or more
    series: np.ndarray  # (n, order): coefficients of each panel, in the variable that runs over (-1, 1) there

    @cached_property
    def halves(self) -> np.ndarray:
        """Half-widths of the panels."""
        return 0.5 * np.diff(self.edges)

    @cached_property
    def centres(self) -> np.ndarray:
        """Centres of the panels."""
        return self.edges[:-1] + self.halves

    @cached_property
    def masses(self) -> np.ndarray:
        """Integrals over the panels."""
        return 2.0 * self.halves * self.series[:, 0]

    @cached_property
    def mass(self) -> float:
        """Integral over all panels."""
        return float(np.sum(self.masses))

    @cached_property
    def nodes(self) -> np.ndarray:
        """Gauss-Legendre nodes of each panel, (n, ORDER)."""
        return self.centres[:, None] + self.halves[:, None] * NODES

    @cached_property
    def values(self) -> np.ndarray:
        """Values at `nodes`."""
        return self.series @ legendre.legvander(NODES, self.series.shape[1] - 1).T

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Value at any points."""
        x = np.asarray(x, dtype=np.float64)
        panel = np.clip(np.searchsorted(self.edges, x, side="right") - 1, 0, self.halves.size - 1)
        inside = (x >= self.edges[0]) & (x <= self.edges[-1])
        t = np.where(inside, (x - self.centres[panel]) / self.halves[panel], 0.0)
        return np.where(inside, legendre.legval(t, np.moveaxis(self.series[panel], -1, 0), tensor=False), 0.0)

    def until(self, end: float) -> Pieces:
        """Return the function up to a point, exactly; a cut panel gets the series of its part."""
        n = max(1, int(np.searchsorted(self.edges, end, side="left")))
        if end == self.edges[n]:
            return Pieces(self.edges[: n + 1], self.series[:n])
        last = sample(self, np.append(self.edges[n - 1], end))
        return Pieces(self.edges[:n], self.series[: n - 1]).followed_by(last)

    def followed_by(self, other: Pieces) -> Pieces:
        """Return the function with panels appended that begin at its end."""
        order = max(self.series.shape[1], other.series.shape[1])
        both = [np.pad(series, ((0, 0), (0, order - series.shape[1]))) for series in (self.series, other.series)]
        return Pieces(np.append(self.edges, other.edges[1:]), np.concatenate(both))

    def times_argument(self) -> Pieces:
        """Return the function times x, exactly, with one more coefficient."""
        n = np.arange(self.series.shape[1])  # x P_n = ((n + 1) P_(n+1) + n P_(n-1)) / (2n + 1)
        scaled = self.halves[:, None] * self.series / (2 * n + 1)
        wide = np.zeros((self.halves.size, n.size + 1))
        wide[:, :-1] = self.centres[:, None] * self.series
        wide[:, 1:] += (n + 1) * scaled
        wide[:, : n.size - 1] += (n * scaled)[:, 1:]
        return Pieces(self.edges, wide)

    def integral_above(self) -> Pieces:
        """Return ``x -> int_x^end``, exactly, with one more coefficient."""
        wide = -self.halves[:, None] * legendre.legint(self.series, axis=1)
        above = np.append(np.cumsum(self.masses[::-1])[::-1][1:], 0.0)
        wide[:, 0] += above - wide.sum(axis=1)  # a Legendre series is the sum of its coefficients at the right edge
        return Pieces(self.edges, wide)

    def fourier(self, x: np.ndarray, *, sine: bool = False, tails: bool = False) -> np.ndarray:
        """Return ``int f(w) cos(w x) dw``, or with the sine, exact for the series.

        With `tails`, accurate even where panels cancel almost entirely.
        """
        flat = np.ravel(np.asarray(x, dtype=np.float64))
        step = max(1, _CELLS // max(ORDER, max((c.size for _, c, _ in self._groups), default=1)))
        parts = [self._fourier_batch(flat[i : i + step], sine, tails) for i in range(0, flat.size, step)]
        return np.concatenate(parts or [flat]).reshape(np.shape(x))

    def _fourier_batch(self, x: np.ndarray, sine: bool, tails: bool) -> np.ndarray:
        """Panels of one width share their Bessel functions, and differ by a phase alone."""
        total = np.zeros_like(x)
        for half, centres, series in self._groups if tails else self._heavy_groups:
            sign = (-1.0) ** (np.arange(series.shape[1]) // 2)
            bessel = spherical_bessel(series.shape[1], half * x) * sign
            cos, sin = _cos_sin_of_products(x, centres, tails)
            even, odd = (sin, cos) if sine else (cos, -sin)
            total += 2.0 * half * np.sum(bessel[:, ::2] * (even @ series[:, ::2]), axis=1)
            total += 2.0 * half * np.sum(bessel[:, 1::2] * (odd @ series[:, 1::2]), axis=1)
        return total

    @cached_property
    def _groups(self) -> list[tuple[float, np.ndarray, np.ndarray]]:
        """Half-width, centres and series of the panels of each width, without what is zero to rounding."""
        groups = []
        order = np.argsort(self.halves)
        apart = np.diff(self.halves[order]) > 2.0**-51 * self.edges[1:][order][1:]  # by more than edges are rounded
        kind = np.empty(order.size, dtype=int)
        kind[order] = np.append(0, np.cumsum(apart))
        for i in range(kind.max() + 1):
            chosen = (kind == i) & self.series.any(axis=1)
            series = self.series[chosen]
            if series.size:
                half = np.max(self.halves[chosen])
                series = series * (self.halves[chosen] / half)[:, None]  # masses stay what they are
                sizes = np.max(np.abs(series), axis=0)
                kept = int(np.max(np.nonzero(sizes > 1e-18 * sizes.max())[0])) + 1
                groups.append((float(half), self.centres[chosen], series[:, :kept]))
        return groups

    @cached_property
    def _heavy_groups(self) -> list[tuple[float, np.ndarray, np.ndarray]]:
        """Those that are not nothing beside all the others: a tail has an octave for each power of two."""
        masses = np.array([half * np.sum(np.abs(series)) for half, _, series in self._groups])
        return [group for group, heavy in zip(self._groups, masses > _NOTHING * np.sum(masses), strict=True) if heavy]


def sample(function: Function, edges: np.ndarray) -> Pieces:
    """Return a function by its values at the nodes of given panels."""
    return Pieces(edges, function(Pieces(edges, np.empty((edges.size - 1, 0))).nodes) @ TO_SERIES)


def build(
    function: Function,
    edges: np.ndarray,
    level: Level,
    *,
    tolerance: float,
    budget: int,
    seen: tuple[np.ndarray, np.ndarray] | None = None,
    what: str = "the spectrum",
) -> Pieces:
    """Resolve a function on panels, as series that match all its values that were computed.

    A panel is split at its jump if it has one alone, otherwise halved, until the last coefficients of its series are
    negligible and the series matches the values. A panel next to 0 may in the end hold a cusp there.

    Parameters
    ----------
    function : callable
    edges : ndarray
        Ends of the first panels, ascending.
    level : callable
        ``level(centres, halves)`` is the absolute error that is good enough on a panel.
    tolerance : float
        The error that is, relative to the panel's largest value.
    budget : int
        How many panels there may be.
    seen : tuple of two ndarrays, optional
        Points and values that are known already.
    what : str
        The function's name in an error.

    Raises
    ------
    UndecidedError
        If more panels are needed.
    """
    low, high, least = edges[:-1], edges[1:], _CUSP * edges[-1]
    x, values = seen or (np.empty(0), np.empty(0))
    inside = (x > edges[0]) & (x <= edges[-1])
    x, values = x[inside], values[inside]
    done: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    while low.size:
        if sum(part[0].size for part in done) + low.size > budget:
            raise UndecidedError(
                f"{what} is too rough to resolve: {budget} panels are not enough",
                "expected a function that is smooth except at some jumps, kinks and poles",
            )
        half = 0.5 * (high - low)
        centre = low + half
        points = _points(low, high)
        found = function(points.ravel())
        x, values = np.append(x, points), np.append(values, found)
        series = found.reshape(points.shape)[:, :ORDER] @ TO_SERIES
        sizes = np.max(np.abs(found.reshape(points.shape)), axis=1)
        rounding = np.maximum(tolerance, _LEAST * high / half)  # that of the argument is seen on narrow panels
        wanted = np.maximum(rounding * sizes, level(centre, half))
        good = np.max(np.abs(series[:, -LAST:]), axis=1) <= wanted
        panel = np.searchsorted(low, x) - 1
        (there,) = np.nonzero(good[panel])
        on = panel[there]
        error = legendre.legval((x[there] - centre[on]) / half[on], series.T[:, on], tensor=False) - values[there]
        good[on[np.abs(error) > LOOSER * wanted[on]]] = False
        good |= (2.0 * half <= _LEAST * high) | (high <= least)
        done.append((low[good], high[good], series[good]))
        kept = ~good[panel]
        x, values, panel = x[kept], values[kept], panel[kept]
        low, high, middle = low[~good], high[~good], centre[~good]
        if low.size:
            order = np.argsort(x, kind="stable")
            panel = (np.cumsum(~good) - 1)[panel[order]]
            x, values = x[order], values[order]
            jumps, tried = _find_jumps(function, x, values, panel, low.size)
            middle = np.where((jumps > low) & (jumps < high), jumps, middle)
            x, values = np.append(x, tried[0]), np.append(values, tried[1])
            low, high = np.stack([low, middle], axis=1).ravel(), np.stack([middle, high], axis=1).ravel()
    starts, ends, series = (np.concatenate(parts) for parts in zip(*done, strict=True))
    order = np.argsort(starts)
    return Pieces(np.append(starts[order], ends[order][-1]), series[order])


def _points(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Nodes of panels, and points next to their ends: within (low, high] even where these are neighbours."""
    low, high = low[:, None], high[:, None]
    nodes = low + 0.5 * (high - low) * (1.0 + NODES)
    points = np.concatenate([nodes, low + _LEAST * high, high - _LEAST * high], axis=1)
    return np.clip(points, np.nextafter(low, np.inf), high)


def _find_jumps(
    function: Function, x: np.ndarray, seen: np.ndarray, panel: np.ndarray, count: int
) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray]]:
    """Last point before the jump on each panel that has one alone, else NaN; and points that were tried, with values.

    A jump is where values differ by as much however close two points are. Points are ascending, with several on each
    panel.
    """
    gaps = np.where(np.diff(panel) == 0, np.abs(np.diff(seen)), -1.0)
    order = np.lexsort((gaps, panel[:-1]))
    last = np.searchsorted(panel[:-1][order], np.arange(count), side="right") - 1
    at, height = order[last], gaps[order[last]]
    a, b, left, right = x[at], x[at + 1], seen[at], seen[at + 1]
    alone = (height > _ALONE * np.maximum(gaps[order[last - 1]], 0.0)) & (2.0 * a > b)  # no cusp at 0
    found, active = np.full(count, np.nan), np.nonzero(alone)[0]
    points, values = [np.empty(0)], [np.empty(0)]
    for _ in range(_MOST_BISECTIONS):
        middle = a[active] + 0.5 * (b[active] - a[active])
        ended = (middle <= a[active]) | (middle >= b[active])
        found[active[ended]] = a[active[ended]]
        active, middle = active[~ended], middle[~ended]
        if not active.size:
            break
        value = function(middle)
        points.append(middle)
        values.append(value)
        below, above = np.abs(value - left[active]), np.abs(right[active] - value)
        lower, upper = active[below > above], active[below <= above]
        b[lower], right[lower] = middle[below > above], value[below > above]
        a[upper], left[upper] = middle[below <= above], value[below <= above]
        part = np.maximum(below, above) / height[active]
        active = active[(part >= _STAYS[0]) & (part <= _STAYS[1])]
    return found, (np.concatenate(points), np.concatenate(values))


def abel(pieces: Pieces, w: np.ndarray) -> np.ndarray:
    """Return ``int_0^inf f(w cosh s) ds = int_w^inf f(v) / sqrt(v^2 - w^2) dv`` for w > 0.

    With Gauss nodes in v on panels well above w. In s the integrand is smooth on the others, as they at most double
    their argument; the first panel is halved towards 0.
    """
    first = pieces.edges[1] * 2.0 ** -np.arange(1.0, 61.0)[::-1] if pieces.edges[0] == 0.0 else np.empty(0)
    edges = np.concatenate([pieces.edges[:1], first, pieces.edges[1:]])
    series = np.concatenate([np.repeat(pieces.series[:1], first.size, axis=0), pieces.series])
    panel = np.concatenate([np.zeros(first.size, dtype=int), np.arange(pieces.halves.size)])
    lows, highs = edges[:-1], edges[1:]
    nodes = 0.5 * ((lows + highs)[:, None] + (highs - lows)[:, None] * NODES)
    shares = 0.5 * (highs - lows)[:, None] * WEIGHTS * pieces(nodes)
    total = np.zeros(w.shape)
    for j in range(len(series)):
        if not series[j].any():
            continue
        far = w < lows[j] - _APART * (highs[j] - lows[j])
        total[far] += 1.0 / np.sqrt(nodes[j] ** 2 - w[far, None] ** 2) @ shares[j]
        (below,) = np.nonzero((w < highs[j]) & ~far)
        if not below.size:
            continue
        v = w[below, None]
        s_low = np.arccosh(np.maximum(lows[j] / v, 1.0))
        half = 0.5 * (np.arccosh(highs[j] / v) - s_low)
        s = s_low + half * (1.0 + NODES)
        t = (v * np.cosh(s) - pieces.centres[panel[j]]) / pieces.halves[panel[j]]
        total[below] += (half * legendre.legval(t, series[j])) @ WEIGHTS
    return total


def _cos_sin_of_products(x: np.ndarray, m: np.ndarray, exact: bool) -> tuple[np.ndarray, np.ndarray]:
    """Cosine and sine of products, (n, panels); of the exact ones what panels add at a common edge cancels."""
    product = np.multiply.outer(x, m)
    cos, sin = np.cos(product), np.sin(product)
    if not exact or np.max(np.abs(product), initial=0.0) < _EXACT_BELOW:
        return cos, sin
    (x_high, x_low), (m_high, m_low) = array.split(x[:, None], np), array.split(m, np)
    error = (x_high * m_high - product) + x_high * m_low + x_low * m_high + x_low * m_low
    if np.max(np.abs(error), initial=0.0) < _TINY:
        sin_error, cos_error = error, 1.0 - 0.5 * error * error
    else:
        cos_error, sin_error = np.cos(error), np.sin(error)
    return cos * cos_error - sin * sin_error, sin * cos_error + cos * sin_error


def spherical_bessel(count: int, z: np.ndarray) -> np.ndarray:
    """Return spherical Bessel functions j_0, ..., j_(count-1) at points z >= 0 of shape (n,): (n, count).

    By the recurrence of DLMF 10.51.1, upwards where z exceeds the order and downwards (Miller) elsewhere;
    `scipy.special.spherical_jn` does one order at a time and takes 50 times as long.
    """
    found = np.zeros((count, z.size))
    small, large = z < _SMALL, z >= count
    middle = ~(small | large)
    if small.any():  # power series
        half_square, factor = 0.5 * z[small] * z[small], np.ones_like(z[small])
        for n in range(count):
            nested = 1.0 - half_square / (3 * (2 * n + 7))
            nested = 1.0 - half_square / (2 * (2 * n + 5)) * nested
            found[n, small] = factor * (1.0 - half_square / (2 * n + 3) * nested)
            factor = factor * z[small] / (2 * n + 3)
    if large.any():
        x = z[large]
        rows = [np.sin(x) / x]
        rows.append((rows[0] - np.cos(x)) / x)
        for n in range(1, count - 1):
            rows.append((2 * n + 1) / x * rows[n] - rows[n - 1])
        found[:, large] = rows[:count]
    if middle.any():
        found[:, middle] = _downwards(count, z[middle])
    return found.T


def _downwards(count: int, z: np.ndarray) -> np.ndarray:
    above, here = np.zeros_like(z), np.full_like(z, 1e-280)
    inverse = 1.0 / z
    rows = np.empty((max(count, 2), z.size))
    for n in range(count + _MILLER, -1, -1):
        if n < rows.shape[0]:
            rows[n] = here
        above, here = here, (2 * n + 1) * inverse * here - above
    zeroth = np.sin(z) * inverse
    first = (zeroth - np.cos(z)) * inverse
    by_zeroth = np.abs(zeroth) >= np.abs(first)
    with np.errstate(divide="ignore", invalid="ignore"):
        scale = np.where(by_zeroth, zeroth / rows[0], first / rows[1])
    return rows[:count] * scale
