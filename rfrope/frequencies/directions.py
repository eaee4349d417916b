"""Directions in two and three axes that are as even as so many can be."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from rfrope._core import array, capacity
from rfrope._core.angles import read_numbers
from rfrope._core.arguments import whole
from rfrope._core.array import Array
from rfrope.rotation.provenance import Provenance
from rfrope.rotation.rope import Rope

_MOST_LINES = 1024  # in three axes: all pairs are looked at, some hundred times


@array.select_device
def isotropic(magnitudes: Array, n_directions: int, *, ndim: int = 2) -> Rope:
    """Every magnitude along the same number of directions, which are as even as so many can be.

    Parameters
    ----------
    magnitudes : array_like, (M,), radians per unit of position
        As a rule a ladder (`geometric`), or radii of a kernel.
    n_directions : int
        Directions of each magnitude, at least 1; opposite ones are the same to a cosine.
    ndim : {2, 3}
        k, the number of position axes.

    Returns
    -------
    Rope
        Frequencies (M * n_directions, ndim), float64 where the library has it: all directions of the first magnitude,
        then all of the second, and so on.

    Raises
    ------
    ValueError
        For magnitudes that are not (M,) or not finite, no direction, more than 1024 of them in three axes, or another
        number of axes.
    TypeError
        For counts that are not whole, or magnitudes that are neither integers nor real floats.

    See Also
    --------
    mixed, golden_gate, designs.directional_error

    Notes
    -----
    On two axes they are the angles ``pi (i + j / M) / n``, i = 0, ..., n - 1, for magnitude j: equal steps,
    each ring a little further than the last. By the Jacobi-Anger expansion a ring of n equal steps has the mean kernel
    ``J_0(z) + 2 sum_l (+-1) J_(2nl)(z) cos(2nl phi)``, z the magnitude times the length of the lag: direction counts
    from the order 2n on. Over lags of a normal law no n directions of one magnitude do better
    (`rfrope.designs.directional_bound`).

    On three axes they are a minimum of the even part of Poisson's kernel over pairs, found by descent from a spiral, in
    the same orientation for every magnitude. Three are the axes of the octahedron and six those of the icosahedron, the
    spherical designs with as few lines as the bound of Delsarte, Goethals and Seidel (1977) allows; they are given in
    closed form. Gradients reach the magnitudes.

    Examples
    --------
    >>> isotropic([1.0, 0.5], 2).frequencies.round(4)
    array([[ 1.    ,  0.    ],
           [ 0.    ,  1.    ],
           [ 0.3536,  0.3536],
           [-0.3536,  0.3536]])
    >>> isotropic([2.0], 3, ndim=3).frequencies
    array([[2., 0., 0.],
           [0., 2., 0.],
           [0., 0., 2.]])
    """
    ndim, n = whole("ndim", ndim, 2), whole("n_directions", n_directions, 1)
    if ndim > 3:
        raise ValueError(f"ndim is {ndim}; expected 2 or 3")
    if ndim == 3 and n > _MOST_LINES:
        raise ValueError(f"n_directions is {n}; expected at most {_MOST_LINES} in three axes")
    xp, device = array.shared(magnitudes=magnitudes)
    sizes = read_numbers("magnitudes", magnitudes, xp)
    if sizes.ndim != 1:
        raise ValueError(f"magnitudes has shape {tuple(sizes.shape)}; expected (M,)")
    rings = sizes.shape[0]
    capacity.check(48.0 * rings * n * ndim, f"{n} directions of {rings} magnitudes", "magnitudes or n_directions")
    if ndim == 2:
        turns = (np.arange(n) + np.arange(rings)[:, None] / max(rings, 1)) / n
        units = np.stack([np.cos(math.pi * turns), np.sin(math.pi * turns)], axis=-1)
        units[np.abs(units) < 1e-16] = 0.0
    else:
        units = np.broadcast_to(even_lines(n), (rings, n, 3)).copy()
    found = sizes[:, None, None] * array.from_host(units, xp, device=device, dtype=sizes.dtype)
    return Rope(xp.reshape(found, (rings * n, ndim)), source=Provenance(extra={"maker": "isotropic"}))


@lru_cache(maxsize=64)
def even_lines(n: int) -> np.ndarray:
    """Unit vectors ``(n, 3)`` of n lines that repel each other by the even part of a Poisson kernel."""
    from scipy.optimize import minimize

    golden = 0.5 * (1.0 + math.sqrt(5.0))
    if n == 3:
        return np.eye(3)
    if n == 6:
        one = np.array([[0.0, 1.0, golden], [0.0, 1.0, -golden]]) / math.sqrt(golden + 2.0)
        return np.concatenate([np.roll(one, shift, axis=1) for shift in range(3)])
    height = 1.0 - (np.arange(n) + 0.5) / n  # of Fibonacci's spiral on half of the sphere
    angle = 2.0 * math.pi * np.arange(n) / golden
    start = np.stack([np.sqrt(1.0 - height**2) * f(angle) for f in (np.cos, np.sin)] + [height], axis=-1)
    reach = 0.3  # so low degrees count far more than high ones, and vanish where they can

    def energy(flat: np.ndarray) -> tuple[float, np.ndarray]:
        points = flat.reshape(n, 3)
        lengths = np.linalg.norm(points, axis=1, keepdims=True)
        units = points / lengths
        product = units @ units.T
        value, slope = -1.0, np.zeros((n, n))  # the mean over all pairs is 1 for a uniform law
        for sign in (1.0, -1.0):
            base = 1.0 - 2.0 * reach * sign * product + reach * reach
            factor = 0.5 * (1.0 - reach * reach) / (n * n)
            value += factor * float(np.sum(base**-1.5))
            slope += 3.0 * factor * reach * sign * base**-2.5
        pull = 2.0 * slope @ units
        return value, ((pull - np.sum(pull * units, axis=1, keepdims=True) * units) / lengths).reshape(-1)

    options = {"maxiter": 4000, "gtol": 1e-13, "ftol": 1e-13, "maxcor": 40}
    best = minimize(energy, start.reshape(-1), jac=True, method="L-BFGS-B", options=options).x.reshape(n, 3)
    return best / np.linalg.norm(best, axis=1, keepdims=True)
