"""Evenly spread directions in two and three axes."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from rfrope._core import array
from rfrope._core.angles import read_numbers
from rfrope._core.arguments import whole
from rfrope._core.array import Array
from rfrope.rotation.provenance import Provenance
from rfrope.rotation.rope import Rope

_MOST_LINES = 1024  # in three axes: all pairs are looked at, some hundred times


@array.select_device
def isotropic(magnitudes: Array, n_directions: int, *, ndim: int = 2) -> Rope:
    """Return a Rope with every magnitude along the same number of evenly spread directions.

    Parameters
    ----------
    magnitudes : array_like, (M,), radians per unit of position
        Usually a ladder (`geometric`), or radii of a kernel.
    n_directions : int
        Directions of each magnitude, at least 1; opposite ones have the same cosine.
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
        If magnitudes are not (M,) or not finite, there is no direction, or more than 1024 in three axes, or `ndim` is
        neither 2 nor 3.
    TypeError
        If a count is not whole, or magnitudes are neither integers nor real floats.

    See Also
    --------
    mixed, golden_gate, designs.directional_error

    Notes
    -----
    In two axes, magnitude j has the angles ``pi (i + j / M) / n``, i = 0, ..., n - 1: equal steps, each ring rotated a
    little from the last. By the Jacobi-Anger expansion a ring of n equal steps has the mean kernel
    ``J_0(z) + 2 sum_l (+-1) J_(2nl)(z) cos(2nl phi)``, with z the magnitude times the length of the lag, so direction
    matters from order 2n on. For normally distributed lags no n directions of one magnitude do better
    (`rfrope.designs.directional_bound`).

    In three axes, they minimise the even part of Poisson's kernel over pairs, by descent from a spiral, in the same
    orientation for every magnitude. Three are the axes of the octahedron and six those of the icosahedron, in closed
    form: spherical designs with as few lines as the bound of Delsarte, Goethals and Seidel (1977) allows. Gradients
    reach the magnitudes.

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
    """Return unit vectors ``(n, 3)`` of n lines that repel each other by the even part of a Poisson kernel."""
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
