"""Waves that the points of a lattice cannot see."""

from __future__ import annotations

import math

import numpy as np

from rfrope._core import capacity
from rfrope._core.arguments import probability, whole
from rfrope.designs.sets import lattice
from rfrope.kernels import Kernel
from rfrope.kernels.text import read_kernel


def dual_lattice(
    kernel: Kernel | str, n_blocks: int, *, most: int = 8, least: float = 0.5
) -> tuple[np.ndarray, np.ndarray]:
    """Return the waves of the cube that the points of the design "shifted" cannot see, or hardly: its resonances.

    Parameters
    ----------
    kernel : Kernel or str
        Determines the number of columns of the cube, and which of them is evenly spaced.
    n_blocks : int
        D, at least 1.
    most : int
        Largest number of turns on a column; on the evenly spaced one ``most D``.
    least : float
        Smallest value of `left` to return, between 0 and 1.

    Returns
    -------
    waves : ndarray of int, (n, columns)
        Numbers of turns h, not all 0, one of each pair +-h, fewest turns first.
    left : ndarray, (n,)
        ``abs(mean_i exp(2 pi i h . p_i))`` over the points: 1 if all have the same phase.

    Raises
    ------
    ValueError
        If a number is not as described above, there are more waves than fit in memory, or the kernel is invalid.
    TypeError
        If an argument is of another type.

    See Also
    --------
    designs.directional_error, frequencies.isotropic

    Notes
    -----
    A random shift of the points multiplies every wave by an independent phase, so the variance of the mean kernel is
    ``sum_h |f_h|^2 left_h^2`` over h other than 0, with f the Fourier coefficients of ``cos(lag . omega)`` on the cube.
    For independent points ``left^2`` is ``1 / D``. With one column the waves are the multiples of D; with more, the
    solutions, or near solutions, of ``h_1 / D + h_2 / g + ... = 0 mod 1``. Where the cosine is such a wave, as for
    ``sinc`` at lags ``2 pi h / bandwidth``, all blocks err together.

    Examples
    --------
    >>> dual_lattice("sinc(bandwidth=0.4)", 16, most=2)[0].tolist()
    [[16], [32]]
    >>> waves, left = dual_lattice("sinc(bandwidth=0.4, ndim=2)", 16, most=4, least=0.9)
    >>> waves[:3].tolist(), left[:3].round(2)
    ([[4, -2], [6, 1], [10, -1]], array([0.92, 0.98, 0.98]))
    """
    law, n, most = read_kernel(kernel), capacity.count("n_blocks", n_blocks, 1, each=64), whole("most", most, 1)
    least = probability("least", least)
    if not law.n_columns:
        raise ValueError(f"kernel is {law!r}, which takes no uniform; expected one that does")
    points = lattice(law, n)
    even = next((j for j, signed in enumerate(law.signed_columns) if signed), 0)
    sides = [most * n if j == even else most for j in range(law.n_columns)]
    total = math.prod(2.0 * side + 1.0 for side in sides)
    capacity.check(8.0 * total * (law.n_columns + 4.0), f"{total:.3g} waves", "most, n_blocks or the kernel's columns")
    axes = [np.arange(-side, side + 1) for side in sides]
    waves = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, law.n_columns)
    waves = waves[len(waves) // 2 + 1 :]
    left = np.array([abs(np.mean(np.exp(2j * math.pi * (points @ wave)))) for wave in waves])
    kept = left >= least
    waves, left = waves[kept], left[kept]
    order = np.lexsort((*waves.T[::-1], np.sum(waves * waves, axis=1)))
    return waves[order], left[order]
