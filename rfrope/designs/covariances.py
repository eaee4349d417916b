"""Covariances of pairs of blocks of a design, which independent blocks do not have.

Each block of a randomised design has the kernel's law, so only pairs tell designs apart. If blocks have independent
signs, the cosines of a pair have a covariance and the sines have none. Integrals are accurate to about 1e-10; infinite
tails are not truncated but taken from the closed form of the whole.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from rfrope.designs.lines import TAIL_PANELS, Line, find_lines, refine, refusal
from rfrope.designs.sampling import check_design
from rfrope.designs.sets import lattice
from rfrope.kernels import Kernel


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
        raise refusal(name, kernel)
    if n < 2:
        return None
    return _FORMS[name](kernel, n, lags)


def _antithetic(kernel: Kernel, n: int, lags: np.ndarray) -> Pairs:
    """Two blocks of a pair have the same cosine, and sines of opposite signs; the last of an odd number is alone."""
    fall, square = kernel.deficits(lags, np)
    rows = (np.arange(n // 2)[:, None] == np.arange(n) // 2).astype(np.float64)
    cosine, sine = (np.repeat(one[:, None], len(rows), axis=1) for one in (square - fall * fall, square - 2.0 * fall))
    return Pairs(rows, cosine, sine)


def _alike(covariance: np.ndarray, n: int) -> Pairs:
    """Return the same covariance for all pairs, ``(L,)``, of blocks with independent signs."""
    return Pairs(np.ones((1, n)), covariance[:, None], np.zeros((len(covariance), 1)))


def _stratified(kernel: Kernel, n: int, lags: np.ndarray) -> Pairs:
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
    return _alike(apart, n)


def _shifted(kernel: Kernel, n: int, lags: np.ndarray) -> Pairs:
    """All blocks lie at one random place of their strata: the mean kernel's variance is that over this place."""
    if kernel.ndim > 1:
        return _alike(_shifted_lattice(kernel, n, lags), n)
    (line,) = find_lines(kernel, "shifted")
    fall, square = kernel.deficits(lags, np)
    of_mean = line.lattice_variance(lags, n)
    return _alike((n * of_mean - (square - fall * fall)) / (n - 1.0), n)


def _shifted_lattice(kernel: Kernel, n: int, lags: np.ndarray) -> np.ndarray:
    """Mean covariance of two points of a lattice that is moved in every column.

    A product of two cosines is half the real part of a sum, whose terms have a factor for each axis: the mean of
    ``exp(i (a +- a'))`` over a uniform p, with phases a at p and a' at p + s modulo 1, s being the difference of the
    two points in this column. Points of the first column lie on half of it.
    """
    lines, points = find_lines(kernel, "shifted"), lattice(kernel, n)
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


_FORMS: dict[str, Callable[[Kernel, int, np.ndarray], Pairs]] = {
    "antithetic": _antithetic,
    "stratified": _stratified,
    "shifted": _shifted,
}
