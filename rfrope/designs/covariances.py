"""Covariances of pairs of blocks of a design, which independent blocks do not have, by means over cells of uniforms.

Each block of a randomised design has the kernel's law, so only pairs tell designs apart. If blocks have independent
signs, the cosines of a pair have a covariance and the sines have none. Integrals are accurate to about 1e-10; infinite
tails are not truncated but taken from the closed form of the whole.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from rfrope.designs.sampling import check_design
from rfrope.kernels import Kernel

_TAIL_PANELS = 40  # intervals that halve towards an end
NODES, _WEIGHTS = np.polynomial.legendre.leggauss(16)
_MOST_NODES = 2**22  # nodes of an integral over the law
_TOLERANCE = 1e-11  # between results with n and 2n intervals
_TAIL_PHASES = 2.0**12  # radians of a tail to integrate


def refusal(design: str, kernel: Kernel) -> ValueError:
    """Return an error that says which designs have exact covariances for which laws."""
    return ValueError(
        f"design is {design!r}, whose pairs of blocks have no exact covariance for {kernel!r}; expected 'iid', "
        "'antithetic', 'stratified' where each axis is a smooth function of its own uniform, 'shifted' in one axis, "
        "or frequencies, which are dealt to the blocks at random; estimate_scores measures the others"
    )


class Line(NamedTuple):
    """One axis of a law: its magnitude as a function of a uniform, and ``1 - Phi`` of lags along this axis."""

    kernel: Kernel
    axis: int

    def magnitudes(self, p: np.ndarray) -> np.ndarray:
        """Return quantiles of the magnitude."""
        cube = np.full((p.size, self.kernel.n_columns), 0.5)
        cube[:, self.axis] = np.clip(0.5 + 0.5 * p.reshape(-1), 0.5, 1.0 - 2.0**-53)
        return np.abs(self.kernel.transport_points(cube)[:, self.axis]).reshape(p.shape)

    def one_minus_phi(self, lags: np.ndarray) -> np.ndarray:
        """Return ``1 - Phi`` at the lags' component along the axis."""
        along = np.zeros_like(lags)
        along[:, self.axis] = lags[:, self.axis]
        return self.kernel.one_minus_cos_moments(along, np)[0]

    def means(self, lags: np.ndarray, cells: int) -> tuple[np.ndarray, np.ndarray]:
        """Return means of ``1 - cos u`` in equally likely cells, ``(L, cells)``, and over all cells, ``(L,)``.

        The mean of the last cell, which may be unbounded, follows from the total and the other cells.
        """
        fall, along = self.one_minus_phi(lags), np.abs(lags[:, self.axis])
        inside = refine(lambda left, panels: self._inner_means(along[left], cells, panels), along, cells)
        return np.concatenate([inside, cells * fall[:, None] - np.sum(inside, axis=1, keepdims=True)], axis=1), fall

    def _inner_means(self, along: np.ndarray, cells: int, panels: int) -> np.ndarray:
        place, weight = place_nodes(np.linspace(0.0, 1.0, panels + 1))
        size = self.magnitudes((np.arange(cells - 1)[:, None] + place) / cells)
        return np.stack([one_minus_cos(x * size) @ weight for x in along])

    def lattice_variance(self, lags: np.ndarray, cells: int) -> np.ndarray:
        """Return the variance of the mean of ``1 - cos u`` over cells, sampled at the same uniform place in each."""
        along, (fall, square) = np.abs(lags[:, self.axis]), self.kernel.one_minus_cos_moments(lags, np)
        alone = square - fall * fall
        unit = np.where(alone > 0.0, alone, 1.0)

        def find(left: np.ndarray, panels: int) -> np.ndarray:
            each = zip(along[left].tolist(), fall[left].tolist(), square[left].tolist(), strict=True)
            return np.array([[self._cell_variance(x, cells, panels, f, g)] for x, f, g in each]) / unit[left, None]

        return refine(find, along, cells, minimum=1.0)[:, 0] * unit

    def _cell_variance(self, x: float, cells: int, panels: int, fall: float, square: float) -> float:
        """Return `lattice_variance` at one lag.

        Intervals halve towards the end of the last cell. Beyond them, that cell gets the remainder of the overall mean
        and mean square, and turns so much faster than the others that it does not depend on them.
        """
        ends = 1.0 - 0.5 ** np.arange(_TAIL_PANELS + 1.0)
        phases = x * self.magnitudes((cells - 1.0 + ends) / cells)
        ends = ends[: max(2, int(np.sum(phases <= _TAIL_PHASES)))]
        counts = panels * np.ceil(1.0 + np.diff(phases[: len(ends)]) / NODES.size)
        _check_nodes(cells * float(np.sum(counts)), x)
        pieces = zip(ends, ends[1:], counts.astype(int).tolist(), strict=False)
        parts = [np.linspace(a, b, n, endpoint=False) for a, b, n in pieces]
        place, weight = place_nodes(np.append(np.concatenate(parts), ends[-1]))
        slower = phases[0] - x * self.magnitudes((cells - 2.0 + ends[-1:]) / cells)[0]  # turns of the others there
        more = 1 + int(slower) // NODES.size
        _check_nodes(cells * float(more), x)
        beyond, share = place_nodes(np.linspace(ends[-1], 1.0, more + 1))
        others = one_minus_cos(x * self.magnitudes((np.arange(cells - 1)[:, None] + np.append(place, beyond)) / cells))
        last = one_minus_cos(x * self.magnitudes((cells - 1.0 + place) / cells))
        both = np.append(weight, share)
        first = cells * fall - np.sum(others @ both) - last @ weight
        second = cells * square - np.sum((others * others) @ both) - (last * last) @ weight
        rest = np.sum(others, axis=0) / cells - fall
        near, far = rest[: len(place)], rest[len(place) :]
        tail = far * far @ share + 2.0 * (far @ share / np.sum(share)) * first / cells + second / cells**2
        return float((near + last / cells) ** 2 @ weight + tail)


def find_lines(kernel: Kernel, design: str) -> list[Line]:
    """Return the axes of a law if each component is a function of its own column, in the order of the columns."""
    law = kernel.stated_law()
    apart = not kernel.is_discrete if kernel.ndim == 1 else law is not None and law.radius is None
    if kernel.n_columns != kernel.ndim or not all(kernel.signed_columns) or not apart:
        raise refusal(design, kernel)
    return [Line(kernel, axis) for axis in range(kernel.ndim)]


def one_minus_cos(phase: np.ndarray) -> np.ndarray:
    """Return ``1 - cos``, accurate at small phases."""
    sine = np.sin(0.5 * phase)
    return 2.0 * sine * sine


# -- quadrature --------------------------------------------------------------------------------------------------------


def place_nodes(ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return nodes and weights of the Gauss rule on each of the intervals between `ends`."""
    half = 0.5 * np.diff(ends)[:, None]
    return (ends[:-1, None] + half * (1.0 + NODES)).reshape(-1), (half * _WEIGHTS).reshape(-1)


def refine(
    find: Callable[[np.ndarray, int], np.ndarray], lags: np.ndarray, cells: int, minimum: float = 0.0
) -> np.ndarray:
    """Return integrals ``(L, n)`` at lags, doubling the number of intervals until results stop changing.

    `find` takes the indices of some lags, and the number of intervals. Changes are relative to the largest of the n, or
    to `minimum` if that is larger.
    """
    left, panels = np.arange(len(lags)), 2
    found = find(left, 1)
    while left.size:
        _check_nodes(panels * cells, float(np.max(np.abs(lags[left]))))
        finer = find(left, panels)
        apart = np.max(np.abs(finer - found[left]), axis=1, initial=0.0)
        size = np.max(np.abs(finer), axis=1, initial=minimum)
        found[left] = finer
        left, panels = left[apart > _TOLERANCE * size], 2 * panels
    return found


def _check_nodes(intervals: float, lag: float) -> None:
    if intervals * NODES.size > _MOST_NODES:
        raise ValueError(
            f"lags reach {lag}; expected lags at which the phases of the kernel's law can be followed: nearer ones, or "
            "fewer blocks (n_blocks)"
        )


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
    known = ("iid", "antithetic", "stratified", "shifted")
    if name not in known or (name == "shifted" and kernel.ndim > 1 and n > 1):
        raise refusal(name, kernel)
    if name == "iid" or n < 2:
        return None
    if name == "antithetic":  # a pair has the same cosine and opposite sines; the last of an odd number is alone
        fall, square = kernel.one_minus_cos_moments(lags, np)
        rows = (np.arange(n // 2)[:, None] == np.arange(n) // 2).astype(np.float64)
        both = (np.repeat(one[:, None], len(rows), axis=1) for one in (square - fall * fall, square - 2.0 * fall))
        return Pairs(rows, *both)
    if name == "stratified":
        # two blocks in two strata of every axis, any two with equal probability: on one axis -s^2 / (n - 1), s^2 being
        # the variance of the strata's means; signs are independent, so cosines of sums become products over the axes
        covariance, product = np.zeros(len(lags)), np.ones(len(lags))
        for line in find_lines(kernel, name):
            means, fall = line.means(lags, n)
            apart, phi = -np.var(means, axis=1) / (n - 1.0), (1.0 - fall) ** 2
            covariance, product = covariance * (phi + apart) + product * apart, product * phi
    else:  # all blocks lie at one random place of their strata: the mean kernel's variance is that over this place
        (line,) = find_lines(kernel, "shifted")
        fall, square = kernel.one_minus_cos_moments(lags, np)
        covariance = (n * line.lattice_variance(lags, n) - (square - fall * fall)) / (n - 1.0)
    # all pairs are alike, and signs independent
    return Pairs(np.ones((1, n)), covariance[:, None], np.zeros((len(lags), 1)))
