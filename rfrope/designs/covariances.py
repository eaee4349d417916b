"""Covariances of the blocks of a design, two by two: all that its variance of a score has beside that of one block.

A block of a randomised design has the kernel's law, so only pairs of blocks tell designs apart. Where blocks have signs
of their own, cosines of a pair have a covariance and sines have none. Integrals are taken to about 1e-10; a tail
without end is never cut: what is left over is what the closed form of the whole says.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from scipy import interpolate, special

from rfrope._core import capacity, quantiles
from rfrope.designs.lines import TAIL_PANELS, Line, cosine_fall, find_columns, find_lines, refine, refusal
from rfrope.designs.sampling import check_design
from rfrope.designs.sets import checked_isotropy, lattice
from rfrope.designs.weighted import NODES, place_nodes
from rfrope.kernels import Kernel

_KUMMER_TERMS = 24
_GRADES = 14
_NEAREST, _PER_E_FOLD = 1e-8, 100.0  # part of a length from which a table begins, and its points


class Pairs(NamedTuple):
    """Covariances of blocks: for i != j those of cosines are ``sum_r cosine_r rows_ri rows_rj``, likewise of sines.

    Attributes
    ----------
    rows : ndarray, (R, D)
    cosine, sine : ndarray, (L, R)
        At each of L lags; 0 on the rows where a block stands alone.
    """

    rows: np.ndarray
    cosine: np.ndarray
    sine: np.ndarray


def pair_covariances(kernel: Kernel, design: str, n: int, lags: np.ndarray) -> Pairs | None:
    """Covariances of n blocks at lags ``(L, k)``; None where blocks are independent.

    Raises
    ------
    ValueError
        For a design whose covariances have no exact form here, with the designs that have one.
    """
    name = check_design(design, kernel)
    if name == "iid":
        return None
    if name not in _FORMS:
        raise refusal(name, kernel)
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
    for line in find_lines(kernel, "stratified"):
        means, fall = line.means(lags, n)
        covariance = -np.var(means, axis=1) / (n - 1.0)
        phi = (1.0 - fall) ** 2
        apart, square = apart * (phi + covariance) + square * covariance, square * phi
    return np.ones((1, n)), apart[:, None]


def _shifted(kernel: Kernel, n: int, lags: np.ndarray) -> Form:
    """All blocks lie at one random place of their strata: the mean kernel's variance is that over this place."""
    if kernel.ndim > 1:
        return np.ones((1, n)), _shifted_lattice(kernel, n, lags)[:, None]
    (line,) = find_lines(kernel, "shifted", most_axes=1)
    fall, square = kernel.deficits(lags, np)
    of_mean = line.lattice_variance(lags, n)
    return np.ones((1, n)), ((n * of_mean - (square - fall * fall)) / (n - 1.0))[:, None]


def _shifted_lattice(kernel: Kernel, n: int, lags: np.ndarray) -> np.ndarray:
    """Mean covariance of two points of a lattice that is moved in every column.

    A product of two cosines is half the real part of a sum, whose terms have a factor for each axis: the mean of
    ``exp(i (a +- a'))`` over a uniform p, with phases a at p and a' at p + s modulo 1, s being the difference of the
    two points in this column. Points of the first column lie on half of it.
    """
    lines, points = find_lines(kernel, "shifted"), lattice(kernel, n)
    capacity.check(96.0 * n * n, f"pairs of {n} blocks", "the number of blocks")
    steps = (points[1:] - points[:1]) % 1.0  # that of two points depends on the difference of their numbers alone
    counts = (n - np.arange(1.0, n)) / (0.5 * n * (n - 1.0))
    alike, against = np.ones((2, len(lags), n - 1), dtype=np.complex128)
    for axis, line in enumerate(lines):

        def factors(at: np.ndarray, panels: int, axis: int = axis, line: Line = line) -> np.ndarray:
            found = [line.products(at, step, panels, half=axis == 0) for step in steps[:, axis]]
            return np.concatenate([np.stack(part, axis=1) for part in zip(*found, strict=True)], axis=1)

        both = refine(factors, lags[:, axis], 4 * TAIL_PANELS * (n - 1), least=1.0)
        alike, against = alike * both[:, : n - 1], against * both[:, n - 1 :]
    fall, _ = kernel.deficits(lags, np)
    return np.real(0.5 * (alike + against)) @ counts - (1.0 - fall) ** 2


def _sobol(kernel: Kernel, n: int, lags: np.ndarray) -> Form:
    """Two scrambled points share as many binary digits as those of the sequence, differ in the next, and no more.

    The columns are scrambled apart, so the covariance is a function of how many digits are shared in each. It is summed
    over all cells that hold both points, each with the difference that its last digits make.
    """
    from scipy.stats import qmc

    lines, digits = find_columns(kernel, "sobol"), (n - 1).bit_length()
    capacity.check(32.0 * len(lags) * float(digits) ** len(lines), f"{len(lines)} columns", "the number of columns")
    place = qmc.Sobol(len(lines), scramble=False, bits=32).random_base2(digits)[:n]
    if kernel.n_columns == 1:
        table = _shared_by_deviations(lines[0][0], lags, digits)
    else:
        table = _shared_by_waves(kernel, lines, lags, digits)
    for axis in range(len(lines)):
        table = np.diff(table, axis=axis, prepend=0.0)
    rows, weights = [], []
    for shared, cells in _cells_of_several(place, digits):
        rows.append(np.arange(np.max(cells) + 1)[:, None] == cells)
        weights.append(np.repeat(table[shared][:, None], len(rows[-1]), axis=1))
        capacity.check(16.0 * n * sum(map(len, rows)), f"pairs of {n} blocks", "the number of blocks")
    return np.concatenate(rows).astype(np.float64), np.concatenate(weights, axis=1)


def _shared_by_deviations(line: Line, lags: np.ndarray, digits: int) -> np.ndarray:
    """Covariances ``(digits, L)`` of two points of one column that share 0, 1, ... digits, and no more.

    With the deviations e of the means in the cells of so many digits from the mean of all, the covariance is the mean
    product of e in the two halves of a cell.
    """
    means, fall = line.means(lags, 1 << digits)
    deviation = means - fall[:, None]
    return np.stack([np.mean(one * other, axis=1) for one, other in _halves(deviation)])


def _shared_by_waves(kernel: Kernel, lines: list[tuple[Line, int]], lags: np.ndarray, digits: int) -> np.ndarray:
    """Covariances ``(digits, ..., digits, L)`` of two points by the digits that they share in each column.

    As in `_shifted_lattice` a product of two cosines is half the real part of a sum, whose terms have a factor for each
    column: here the mean of ``exp(i (a +- a'))`` with a and a' in the two halves of a cell, less 1 throughout.
    """
    alike, against = np.zeros((2, len(lags)), dtype=np.complex128)
    for column, (line, axis) in enumerate(lines):

        def waves(at: np.ndarray, panels: int, column: int = column, line: Line = line) -> np.ndarray:
            return line.waves(at, 1 << digits, panels, half=column == 0)

        both = list(_halves(refine(waves, lags[:, axis], (1 << digits) + 2 * TAIL_PANELS)))
        same, summed = (
            np.stack([np.mean(one + other + one * other, axis=1) for one, other in pairs])
            for pairs in ([(one, np.conj(other)) for one, other in both], both)
        )
        same = np.real(same)  # either point is in the left half as often
        alike = alike[..., None, :] + same + alike[..., None, :] * same
        against = against[..., None, :] + summed + against[..., None, :] * summed
    fall, _ = kernel.deficits(lags, np)
    return 0.5 * np.real(alike + against) + fall * (2.0 - fall)


def _halves(means: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Means ``(L, cells)`` in the left and right halves of the cells of 0, 1, ... digits."""
    finer = [means]
    while finer[-1].shape[1] > 2:
        finer.append(0.5 * (finer[-1][:, 0::2] + finer[-1][:, 1::2]))
    return ((one[:, 0::2], one[:, 1::2]) for one in reversed(finer))


def _cells_of_several(place: np.ndarray, digits: int) -> Iterator[tuple[tuple[int, ...], np.ndarray]]:
    """Digits of each column, and the number of the cell of each point, for all cells that two points share.

    A cell that holds one point has the number -1.
    """

    def refine(shared: tuple[int, ...], cells: np.ndarray) -> Iterator[tuple[tuple[int, ...], np.ndarray]]:
        if len(shared) == place.shape[1]:
            yield shared, cells
            return
        for count in range(digits):
            inside = np.floor(place[:, len(shared)] * 2.0**count).astype(np.int64)
            _, number, size = np.unique((cells << count) + inside, return_inverse=True, return_counts=True)
            several = np.bincount(number, cells >= 0) * size > size
            finer = np.where(several, np.cumsum(several) - 1, -1)[number]
            if np.all(finer < 0):
                return
            yield from refine((*shared, count), finer)

    return refine((), np.zeros(len(place), dtype=np.int64))


def _halton(kernel: Kernel, n: int, lags: np.ndarray) -> Form:
    """All points have the same binary digits exchanged: cells i and j become i xor s and j xor s for one random s."""
    from scipy.linalg import hadamard

    (line,) = find_lines(kernel, "halton", most_axes=1)
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

    both = refine(product, r, _GRADES if k == 2 else 64 * _GRADES**2)[:, 0]
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


# -- radii -------------------------------------------------------------------------------------------------------------


def _radial_fall(kernel: Kernel, r: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """``1 - E cos(t R)`` as a function of t up to lengths r, for the radius R of a law in units of its isotropy."""
    law, k = kernel.stated_law(), kernel.ndim
    if kernel.name == "shell":
        return cosine_fall
    if kernel.name == "ball":
        return lambda t: _ball_fall(t, k)
    if law is None or law.component != (quantiles.normal_quantile, ()):
        raise refusal("orthogonal", kernel)
    if law.radius is None or not np.any(r > 0.0):
        return lambda t: _normal_fall(0.5 * t * t, k)
    quantile, parameters = law.radius
    v, weight = place_nodes(0.5 ** np.arange(TAIL_PANELS + 1.0, 0.0, -1.0))
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
    return cosine_fall(t[..., None] * radius) @ (weight * k * radius ** (k - 1.0))


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
