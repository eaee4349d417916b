"""Covariances of pairs of blocks of a design, which independent blocks do not have.

Each block of a randomised design has the kernel's law, so only pairs tell designs apart. If blocks have independent
signs, the cosines of a pair have a covariance and the sines have none. Integrals are accurate to about 1e-10; infinite
tails are not truncated but taken from the closed form of the whole.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy import interpolate, special

from rfrope._core import capacity, quantiles
from rfrope.designs.sampling import check_design
from rfrope.designs.sets import checked_isotropy, lattice
from rfrope.designs.weighted import NODES, place_nodes
from rfrope.kernels import Kernel

_MOST_NODES = 2**22  # of an integral over the law
_TOLERANCE = 1e-11  # between one number of intervals and twice as many
_TAIL_PHASES = 2.0**12  # radians of a tail that are followed
_TAIL_PANELS = 40  # intervals that halve towards an end
_KUMMER_TERMS = 24
_GRADES = 14
_NEAREST, _PER_E_FOLD = 1e-8, 100.0  # part of a length from which a table begins, and its points


class Pairs(NamedTuple):
    """Covariances of blocks i != j: ``sum_r cosine_r rows_ri rows_rj`` for cosines, likewise for sines.

    Attributes
    ----------
    rows : ndarray, (R, D)
    cosine, sine : ndarray, (L, R)
        At each of L lags; 0 on the row of a block that stands alone.
    """

    rows: np.ndarray
    cosine: np.ndarray
    sine: np.ndarray


def pair_covariances(kernel: Kernel, design: str, n: int, lags: np.ndarray) -> Pairs | None:
    """Return covariances of n blocks at lags ``(L, k)``; None if blocks are independent.

    Raises
    ------
    ValueError
        If no exact form is known for the design; the message lists those with one.
    """
    name = check_design(design, kernel)
    if name == "iid":
        return None
    if name not in _FORMS:
        raise _refusal(name, kernel)
    if n < 2:
        return None
    if name not in ("stratified", "shifted"):  # whose pairs are all alike
        capacity.check(96.0 * n * n, f"pairs of {n} blocks", "the number of blocks")
    rows, cosine = _FORMS[name](kernel, n, lags)
    sine = np.zeros_like(cosine)
    if name == "antithetic":
        fall, square = kernel.deficits(lags, np)
        sine[:] = (square - 2.0 * fall)[:, None]
    return Pairs(rows, cosine, sine)


Form = tuple[np.ndarray, np.ndarray]  # rows (R, D), and covariances of cosines (L, R)


def _antithetic(kernel: Kernel, n: int, lags: np.ndarray) -> Form:
    """Two blocks of a pair have the same cosine, and sines of opposite signs."""
    fall, square = kernel.deficits(lags, np)
    rows = np.zeros((n // 2, n))
    rows[np.arange(n) // 2 % max(n // 2, 1), np.arange(n)] = 1.0
    if n % 2:
        rows[:, -1] = 0.0  # alone
    return rows, np.repeat((square - fall * fall)[:, None], len(rows), axis=1)


def _stratified(kernel: Kernel, n: int, lags: np.ndarray) -> Form:
    """Two blocks lie in two strata of every axis, any two with equal probability, and are independent there.

    On one axis the covariance is ``-s^2 / (n - 1)``, s^2 being the variance of the strata's means. Signs of the axes
    are independent, so that cosines of a sum of phases become products over the axes.
    """
    apart, square = np.zeros(len(lags)), np.ones(len(lags))
    for line in _lines(kernel, "stratified"):
        means, fall = line.means(lags, n)
        covariance = -np.var(means, axis=1) / (n - 1.0)
        phi = (1.0 - fall) ** 2
        apart, square = apart * (phi + covariance) + square * covariance, square * phi
    return np.ones((1, n)), apart[:, None]


def _shifted(kernel: Kernel, n: int, lags: np.ndarray) -> Form:
    """All blocks lie at one random place of their strata: the mean kernel's variance is that over this place."""
    if kernel.ndim > 1:
        return np.ones((1, n)), _shifted_lattice(kernel, n, lags)[:, None]
    (line,) = _lines(kernel, "shifted", most_axes=1)
    fall, square = kernel.deficits(lags, np)
    of_mean = line.lattice_variance(lags, n)
    return np.ones((1, n)), ((n * of_mean - (square - fall * fall)) / (n - 1.0))[:, None]


def _shifted_lattice(kernel: Kernel, n: int, lags: np.ndarray) -> np.ndarray:
    """Mean covariance of two points of a lattice that is moved in every column.

    A product of two cosines is half the real part of a sum, whose terms have a factor for each axis: the mean of
    ``exp(i (a +- a'))`` over a uniform p, with phases a at p and a' at p + s modulo 1, s being the difference of the
    two points in this column. Points of the first column lie on half of it.
    """
    lines, points = _lines(kernel, "shifted"), lattice(kernel, n)
    capacity.check(96.0 * n * n, f"pairs of {n} blocks", "the number of blocks")
    steps = (points[1:] - points[:1]) % 1.0  # that of two points depends on the difference of their numbers alone
    counts = (n - np.arange(1.0, n)) / (0.5 * n * (n - 1.0))
    alike, against = np.ones((2, len(lags), n - 1), dtype=np.complex128)
    for axis, line in enumerate(lines):

        def factors(at: np.ndarray, panels: int, axis: int = axis, line: _Line = line) -> np.ndarray:
            found = [line.products(at, step, panels, half=axis == 0) for step in steps[:, axis]]
            return np.concatenate([np.stack(part, axis=1) for part in zip(*found, strict=True)], axis=1)

        both = _refined(factors, lags[:, axis], 4 * _TAIL_PANELS * (n - 1), least=1.0)
        alike, against = alike * both[:, : n - 1], against * both[:, n - 1 :]
    fall, _ = kernel.deficits(lags, np)
    return np.real(0.5 * (alike + against)) @ counts - (1.0 - fall) ** 2


def _sobol(kernel: Kernel, n: int, lags: np.ndarray) -> Form:
    """Two scrambled points share as many binary digits as those of the sequence, differ in the next, and no more.

    With the deviations e of the means in the cells of so many digits from the mean of all, the covariance is the mean
    product of e in the two halves of a cell.
    """
    from scipy.stats import qmc

    (line,) = _lines(kernel, "sobol", most_axes=1)
    digits = (n - 1).bit_length()
    place = qmc.Sobol(1, scramble=False, bits=32).random_base2(digits)[:n, 0]
    means, fall = line.means(lags, 1 << digits)
    deviation, known = means - fall[:, None], np.zeros(len(lags))
    rows, weights = [], []
    halves = [deviation]
    while halves[-1].shape[1] > 2:
        halves.append(0.5 * (halves[-1][:, 0::2] + halves[-1][:, 1::2]))
    for shared, deviation in enumerate(reversed(halves)):
        covariance = np.mean(deviation[:, 0::2] * deviation[:, 1::2], axis=1)
        cell = np.floor(place * 2.0**shared).astype(np.int64)
        rows.append(np.arange(1 << shared)[:, None] == cell)
        weights.append(np.repeat((covariance - known)[:, None], 1 << shared, axis=1))
        known = covariance
    return np.concatenate(rows).astype(np.float64), np.concatenate(weights, axis=1)


def _halton(kernel: Kernel, n: int, lags: np.ndarray) -> Form:
    """All points have the same binary digits exchanged: cells i and j become i xor s and j xor s for one random s."""
    from scipy.linalg import hadamard

    (line,) = _lines(kernel, "halton", most_axes=1)
    digits = (n - 1).bit_length()
    size = 1 << digits
    means, fall = line.means(lags, size)
    walsh = hadamard(size).astype(np.float64)
    cell = np.array([int(f"{i:0{digits}b}"[::-1], 2) for i in range(n)])
    return walsh[:, cell], ((means - fall[:, None]) @ walsh / size) ** 2


def _orthogonal(kernel: Kernel, n: int, lags: np.ndarray) -> Form:
    """Two directions of a group have first components as two of one uniform direction; radii are independent.

    With ``psi(t) = E cos(t R)`` for a radius R, the product of cosines has the mean ``E psi(r x_1) psi(r x_2)`` over
    uniform directions x, r being the length of the lag.
    """
    k, r = kernel.ndim, np.linalg.norm(lags @ checked_isotropy(kernel), axis=-1)
    psi = _radial_fall(kernel, r)
    fall, _ = kernel.deficits(lags, np)

    grades = 1.0 - np.append(0.25 ** np.arange(_GRADES - 1.0), 0.0)  # towards the end where an argument is 0

    def product(at: np.ndarray, panels: int) -> np.ndarray:
        """Mean over the directions of the product of both falls, which exchanges them at an angle of pi/4."""
        ends = np.interp(np.arange((_GRADES - 1) * panels + 1) / panels, np.arange(float(_GRADES)), grades)
        place, weight = place_nodes(ends)
        angle, length, share = 0.25 * math.pi * (1.0 - place), np.ones(1), np.ones(1)
        if k > 2:
            length, share = np.sqrt(1.0 - place * place), weight * (k - 2.0) * place ** (k - 3.0)
        cos, sin = (at[:, None] * f(angle) for f in (np.cos, np.sin))
        parts = (
            [share @ (psi(c * length[:, None]) * psi(s * length[:, None])) @ weight]
            for c, s in zip(cos, sin, strict=True)
        )
        return np.array(list(parts))

    both = _refined(product, r, _GRADES if k == 2 else 64 * _GRADES**2)[:, 0]
    groups = -(-n // k)
    rows = (np.arange(groups)[:, None] == np.arange(n) // k).astype(np.float64)
    return rows, np.repeat((both - fall * fall)[:, None], groups, axis=1)


_FORMS: dict[str, Callable[[Kernel, int, np.ndarray], Form]] = {
    "stratified": _stratified,
    "shifted": _shifted,
    "sobol": _sobol,
    "halton": _halton,
    "orthogonal": _orthogonal,
    "antithetic": _antithetic,
}


def _refusal(design: str, kernel: Kernel) -> ValueError:
    return ValueError(
        f"design is {design!r}, whose pairs of blocks have no exact covariance for {kernel!r}; expected 'iid', "
        "'antithetic', 'stratified' or 'shifted' where each axis is a function of a uniform of its own, 'sobol' or "
        "'halton' where one uniform makes a frequency, 'orthogonal' where the law of radii is known, or frequencies, "
        "which are dealt to the blocks at random; estimate_scores measures the others"
    )


# -- one axis, whose magnitude is a function of one uniform ------------------------------------------------------------


class _Line(NamedTuple):
    """One axis of a law: its magnitude as a function of a uniform, and ``1 - Phi`` of lags along this axis."""

    kernel: Kernel
    axis: int

    def magnitudes(self, p: np.ndarray) -> np.ndarray:
        """Quantiles of the magnitude."""
        cube = np.full((p.size, self.kernel.n_columns), 0.5)
        cube[:, self.axis] = np.clip(0.5 + 0.5 * p.reshape(-1), 0.5, 1.0 - 2.0**-53)
        return np.abs(self.kernel.transport_points(cube)[:, self.axis]).reshape(p.shape)

    def products(self, along: np.ndarray, step: float, panels: int, *, half: bool) -> tuple[np.ndarray, np.ndarray]:
        """Means of ``exp(i (a' - a))`` and ``exp(i (a' + a))``, a at a uniform p and a' a step further, modulo 1.

        Intervals halve towards the ends, where a frequency may have none; what lies beyond the last is left out.
        """
        ends = np.sort(np.array([0.0, 1.0 - step, 1.0]))
        grades = 0.5 ** np.arange(1.0, _TAIL_PANELS)
        grades = np.concatenate([[0.0], grades[::-1], 1.0 - grades[1:], [1.0]])
        finer = np.interp(np.arange(panels * (grades.size - 1) + 1) / panels, np.arange(float(grades.size)), grades)
        places, weights = zip(*(place_nodes(a + (b - a) * finer) for a, b in itertools.pairwise(ends)), strict=True)
        place, weight = np.concatenate(places), np.concatenate(weights)
        size = [self.frequencies(p % 1.0, half=half) for p in (place, place + step)]
        apart, together = (np.exp(1j * along[:, None] * (size[1] + sign * size[0])) @ weight for sign in (-1.0, 1.0))
        return apart, together

    def frequencies(self, p: np.ndarray, *, half: bool) -> np.ndarray:
        """Quantiles of the magnitude, or of the frequency itself."""
        if half:
            return self.magnitudes(p)
        p = np.clip(p, 2.0**-53, 1.0 - 2.0**-53)
        return np.sign(p - 0.5) * self.magnitudes(np.abs(2.0 * p - 1.0))

    def fall(self, lags: np.ndarray) -> np.ndarray:
        """``1 - Phi`` at the lags' component."""
        along = np.zeros_like(lags)
        along[:, self.axis] = lags[:, self.axis]
        return self.kernel.deficits(along, np)[0]

    def means(self, lags: np.ndarray, cells: int) -> Form:
        """Means ``(L, cells)`` of ``1 - cos u`` in so many equally likely cells, and over all ``(L,)``.

        The last cell, which may have no end, has what the others leave of the whole.
        """
        capacity.check(64.0 * cells * len(lags), f"{len(lags)} lags", "the number of lags or of blocks")
        fall, along = self.fall(lags), np.abs(lags[:, self.axis])
        atoms = self.kernel._atoms()
        if atoms is not None:
            inside = _Steps.sort(np.abs(atoms[0][:, self.axis]), atoms[1]).means(along, cells)[:, :-1]
        else:
            inside = _refined(lambda at, panels: self._inner_means(at, cells, panels), along, cells)
        return np.concatenate([inside, cells * fall[:, None] - np.sum(inside, axis=1, keepdims=True)], axis=1), fall

    def _inner_means(self, along: np.ndarray, cells: int, panels: int) -> np.ndarray:
        place, weight = place_nodes(np.linspace(0.0, 1.0, panels + 1))
        size = self.magnitudes((np.arange(cells - 1)[:, None] + place) / cells)
        return np.stack([_falls(x * size) @ weight for x in along])

    def lattice_variance(self, lags: np.ndarray, cells: int) -> np.ndarray:
        """Variance of the mean of ``1 - cos u`` over cells, all at the same place of theirs, which is uniform."""
        along, atoms = np.abs(lags[:, self.axis]), self.kernel._atoms()
        fall, square = self.kernel.deficits(lags, np)
        if atoms is not None:
            steps = _Steps.sort(np.abs(atoms[0][:, self.axis]), atoms[1])
            place, weight = steps.places(cells)
            size = steps.magnitudes((np.arange(cells)[:, None] + place) / cells)
            means = (np.mean(_falls(x * size), axis=0) for x in along)
            return np.array([weight @ (mean - f) ** 2 for mean, f in zip(means, fall, strict=True)])
        alone = square - fall * fall
        unit = np.where(alone > 0.0, alone, 1.0)
        known = dict(zip(along.tolist(), np.stack([fall, square, unit], axis=1).tolist(), strict=True))

        def find(at: np.ndarray, panels: int) -> np.ndarray:
            return np.array([[self._spread(x, cells, panels, *known[x][:2]) / known[x][2]] for x in at.tolist()])

        return _refined(find, along, cells, least=1.0)[:, 0] * unit

    def _spread(self, x: float, cells: int, panels: int, fall: float, square: float) -> float:
        """That variance at one lag.

        Intervals halve towards the end of the last cell. Beyond the last of them that cell has what is left of the mean
        and of the mean square over all, and the others vary so little that only their own mean counts.
        """
        ends = 1.0 - 0.5 ** np.arange(_TAIL_PANELS + 1.0)
        phases = x * self.magnitudes((cells - 1.0 + ends) / cells)
        ends = ends[: max(2, int(np.sum(phases <= _TAIL_PHASES)))]
        counts = panels * np.ceil(1.0 + np.diff(phases[: len(ends)]) / NODES.size)
        _check_nodes(cells * float(np.sum(counts)), x)
        parts = [
            np.linspace(a, b, n, endpoint=False)
            for a, b, n in zip(ends, ends[1:], counts.astype(int).tolist(), strict=False)
        ]
        place, weight = place_nodes(np.append(np.concatenate(parts), ends[-1]))
        beyond, share = place_nodes(np.array([ends[-1], 1.0]))
        others = _falls(x * self.magnitudes((np.arange(cells - 1)[:, None] + np.append(place, beyond)) / cells))
        last = _falls(x * self.magnitudes((cells - 1.0 + place) / cells))
        both = np.append(weight, share)
        first = cells * fall - np.sum(others @ both) - last @ weight
        second = cells * square - np.sum((others * others) @ both) - (last * last) @ weight
        rest = np.sum(others, axis=0) / cells - fall
        near, far = rest[: len(place)], rest[len(place) :]
        tail = far * far @ share + 2.0 * (far @ share / np.sum(share)) * first / cells + second / cells**2
        return float((near + last / cells) ** 2 @ weight + tail)


def _lines(kernel: Kernel, design: str, most_axes: int | None = None) -> list[_Line]:
    """Axes of a law whose components are functions of a column each, in the order of the columns."""
    law = kernel.stated_law()
    apart = kernel.ndim == 1 or (law is not None and law.radius is None)
    known = kernel.n_columns == kernel.ndim and all(kernel.signed_columns) and apart
    if not known or (most_axes is not None and kernel.ndim > most_axes):
        raise _refusal(design, kernel)
    return [_Line(kernel, axis) for axis in range(kernel.ndim)]


def _falls(phase: np.ndarray) -> np.ndarray:
    """``1 - cos`` with its digits at small phases."""
    sine = np.sin(0.5 * phase)
    return 2.0 * sine * sine


class _Steps(NamedTuple):
    """Magnitudes of a law of atoms in order, and the probabilities up to each of them, from 0 on."""

    size: np.ndarray
    ends: np.ndarray

    @classmethod
    def sort(cls, size: np.ndarray, weight: np.ndarray) -> _Steps:
        """Put atoms in order."""
        order = np.argsort(size, kind="stable")
        return cls(size[order], np.concatenate([[0.0], np.cumsum(weight[order])]))

    def means(self, along: np.ndarray, cells: int) -> np.ndarray:
        """Means ``(L, cells)`` of ``1 - cos u`` in equally likely cells."""
        falls = _falls(along[:, None] * self.size) * np.diff(self.ends)
        total = np.concatenate([np.zeros((len(along), 1)), np.cumsum(falls, axis=1)], axis=1)
        edges = np.arange(cells + 1.0) / cells
        return cells * np.diff(np.stack([np.interp(edges, self.ends, one) for one in total]), axis=1)

    def places(self, cells: int) -> tuple[np.ndarray, np.ndarray]:
        """Places in a cell between which no cell has a step, and how far these are apart."""
        edges = np.unique(np.concatenate([[0.0, 1.0], cells * self.ends % 1.0]))
        return 0.5 * (edges[1:] + edges[:-1]), np.diff(edges)

    def magnitudes(self, p: np.ndarray) -> np.ndarray:
        """Quantiles."""
        return self.size[np.searchsorted(self.ends[1:-1], p, side="right")]


# -- radii -------------------------------------------------------------------------------------------------------------


def _radial_fall(kernel: Kernel, r: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """``1 - E cos(t R)`` as a function of t up to lengths r, for the radius R of a law in units of its isotropy."""
    law, k = kernel.stated_law(), kernel.ndim
    if kernel.name == "shell":
        return _falls
    if kernel.name == "ball":
        return lambda t: _ball_fall(t, k)
    if law is None or law.component != (quantiles.normal_quantile, ()):
        raise _refusal("orthogonal", kernel)
    if law.radius is None or not np.any(r > 0.0):
        return lambda t: _normal_fall(0.5 * t * t, k)
    quantile, parameters = law.radius
    v, weight = place_nodes(0.5 ** np.arange(_TAIL_PANELS + 1.0, 0.0, -1.0))
    sizes = np.concatenate([quantile(*parameters, v, upper=upper) for upper in (False, True)])
    low, high = math.log(_NEAREST * np.min(r[r > 0.0])), math.log(np.max(r)) + 1e-9
    at = np.linspace(low, high, 8 + math.ceil(_PER_E_FOLD * (high - low)))
    values = [_normal_fall(0.5 * (t * sizes) ** 2, k) @ np.concatenate([weight, weight]) for t in np.exp(at)]
    table = interpolate.make_interp_spline(at, values, k=7)
    return lambda t: np.where(t > 0.0, table(np.log(np.maximum(t, math.exp(low)))), 0.0)


def _ball_fall(t: np.ndarray, k: int) -> np.ndarray:
    """``1 - E cos(t R)`` where R is the k-th root of a uniform."""
    panels = 1 + int(np.max(t, initial=0.0) / NODES.size)
    radius, weight = place_nodes(np.linspace(0.0, 1.0, panels + 1))
    return _falls(t[..., None] * radius) @ (weight * k * radius ** (k - 1.0))


def _normal_fall(y: np.ndarray, k: int) -> np.ndarray:
    """``1 - E cos(t R)`` where R is the length of a normal vector in k axes, y = t^2/2: 1 less Kummer's function.

    ``M(k/2; 1/2; -y)`` follows from ``M(1/2) = exp(-y)``, or from ``M(0) = 1`` and ``M(1)`` by Dawson's integral, and
    the recurrence in its first parameter (DLMF 13.3.1).
    """
    near = np.minimum(y, 1.0)
    term, series = np.ones_like(near), np.zeros_like(near)
    for n in range(_KUMMER_TERMS):
        term = term * -near * (0.5 * k + n) / ((0.5 + n) * (n + 1.0))
        series = series - term
    if not np.any(y > 1.0):
        return series
    root = np.sqrt(y)
    if k % 2:
        below, value, at = np.zeros_like(y), np.exp(-y), 0.5
    else:
        below, value, at = np.ones_like(y), 1.0 - 2.0 * root * special.dawsn(root), 1.0
    while at < 0.5 * k:
        below, value = value, ((0.5 - at) * below + (2.0 * at - 0.5 - y) * value) / at
        at += 1.0
    return np.where(y > 1.0, 1.0 - value, series)


# -- quadrature --------------------------------------------------------------------------------------------------------


def _refined(
    find: Callable[[np.ndarray, int], np.ndarray], lags: np.ndarray, cells: int, least: float = 0.0
) -> np.ndarray:
    """Integrals ``(L, n)`` at some lags, with twice as many intervals until that changes nothing.

    Changes are compared with the largest of the n, or with `least` if that is more.
    """
    found, left, panels = find(lags, 1), np.arange(len(lags)), 2
    while left.size:
        _check_nodes(panels * cells, float(np.max(np.abs(lags[left]))))
        finer = find(lags[left], panels)
        apart = np.max(np.abs(finer - found[left]), axis=1, initial=0.0)
        size = np.max(np.abs(finer), axis=1, initial=least)
        found[left] = finer
        left, panels = left[apart > _TOLERANCE * size], 2 * panels
    return found


def _check_nodes(intervals: float, lag: float) -> None:
    if intervals * NODES.size > _MOST_NODES:
        raise ValueError(
            f"lags reach {lag}; expected lags at which the phases of the kernel's law can be followed: nearer ones, or "
            "fewer blocks"
        )
