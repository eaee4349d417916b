"""Waves to which the points of a lattice are blind."""

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
    """Waves of the cube that the points of the design "shifted" do not see, or hardly: where it resonates.

    Parameters
    ----------
    kernel : Kernel or str
        It says how many columns the cube has, and which of them is spread evenly.
    n_blocks : int
        D, at least 1.
    most : int
        Largest number of turns on a column that is looked at; the evenly spread column is looked at up to ``most D``.
    least : float
        Between 0 and 1: how much of a wave must be left.

    Returns
    -------
    waves : ndarray of int, (n, columns)
        Numbers of turns h, not all 0, one of each pair +-h, those of fewest turns first.
    left : ndarray, (n,)
        ``abs(mean_i exp(2 pi i h . p_i))`` over the points: 1 where all of them have the same phase.

    Raises
    ------
    ValueError
        For numbers that are not as above, more waves than fit in memory, or a kernel that cannot be read.
    TypeError
        For arguments of another kind.

    See Also
    --------
    designs.directional_error, frequencies.isotropic

    Notes
    -----
    A random shift of the points turns every wave by a phase of its own: the variance of the mean kernel is
    ``sum_h |f_h|^2 left_h^2`` over all h but 0, f being the Fourier coefficients of ``cos(lag . omega)`` as a function
    of the cube. Independent points have ``1 / D`` for ``left^2``. With one column the waves are the multiples of D;
    with more, those of ``h_1 / D + h_2 / g + ... = 0 mod 1`` or nearly so. Where the cosine is such a wave, as that of
    ``sinc`` is at lags ``2 pi h / bandwidth``, all blocks err together.

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
