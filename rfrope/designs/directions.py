"""Mean kernels against the direction of the lag, and a bound that no equal magnitudes fall below."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from rfrope._core import angles, array, capacity
from rfrope._core.arguments import show, whole
from rfrope._core.array import Array
from rfrope.designs.errors import mean_kernel

_MARGIN = 40  # degrees beyond the phase from which on Bessel's functions are below rounding
_FAR = 1e9
_FINE = 16  # points for each degree, of the functions that the bound compares
_MORE_DEGREES = 8  # of the function below the potential, beyond the number of blocks


class Directions(NamedTuple):
    """A mean kernel over all directions of lags of some lengths.

    Attributes
    ----------
    mean : ndarray
        Its mean over the directions: of each frequency that of ``shell``, J_0 in two axes and sin(z)/z in three.
    rms, sup : ndarray
        Root mean square over the directions, and largest amount, of what it differs from that mean.

    See Also
    --------
    designs.directional_error

    Examples
    --------
    >>> import rfrope
    >>> even = rfrope.frequencies.isotropic([1.0], 8)
    >>> found = rfrope.designs.directional_error(even, [4.0, 8.0])
    >>> found.rms.round(3) + 0.0
    array([0., 0.])
    """

    mean: np.ndarray
    rms: np.ndarray
    sup: np.ndarray


@array.select_device
def directional_error(frequencies: Array, lengths: Array) -> Directions:
    """Mean kernel of a set against the direction of the lag: its mean at each length, and what it differs from that.

    Parameters
    ----------
    frequencies : Rope or array_like, (D, 2) or (D, 3), radians per unit of position
        One set; it is read on the host.
    lengths : array_like, in units of position
        Euclidean lengths of lags, not negative; any shape.

    Returns
    -------
    Directions
        Arrays of NumPy with the shape of `lengths`.

    Raises
    ------
    ValueError
        For another number of axes, several sets, and lengths that are negative, not finite, or have more phases than
        fit in memory.
    TypeError
        For anything but real numbers.

    See Also
    --------
    designs.Directions, designs.directional_bound

    Notes
    -----
    Directions are points of a rule that is exact for the degrees that phases of this size have: equal
    steps, with Gauss's nodes for the height in three axes. ``sup`` is the largest of these points, and so may be a
    little low.

    Examples
    --------
    Half of the blocks along each axis, as in most vision models, against equal angles:

    >>> import rfrope
    >>> ladder = rfrope.geometric(4, base=100.0)
    >>> rfrope.designs.directional_error(rfrope.axial(ladder, ladder), [4.0, 8.0]).rms.round(3)
    array([0.102, 0.08 ])
    >>> even = rfrope.frequencies.isotropic([1.0], 8)
    >>> rfrope.designs.directional_error(even, [4.0, 8.0]).rms.round(3)
    array([0., 0.])
    """
    omega = angles.read_on_host(frequencies, "frequencies", sets="one").astype(np.float64)
    if omega.shape[-1] not in (2, 3):
        raise ValueError(f"frequencies has {omega.shape[-1]} axes; expected 2 or 3")
    r = _read_lengths("lengths", lengths)
    if not r.size or not len(omega):
        return Directions(*(np.full(r.shape, math.nan) for _ in range(3)))
    largest = float(np.max(np.linalg.norm(omega, axis=1))) * float(np.max(r))
    if not largest < _FAR:
        raise ValueError(f"lengths and frequencies make {largest:.3g} radians; expected fewer than {_FAR:.0e}")
    degree = math.ceil(largest) + _MARGIN
    count = degree if omega.shape[-1] == 2 else 2 * degree * degree
    capacity.check(40.0 * count * omega.size, f"lags of {largest:.3g} radians", "lengths or frequencies")
    units, weights = _half_circle(degree) if omega.shape[-1] == 2 else _half_sphere(degree)
    found = np.empty((3, r.size))
    for place, length in enumerate(r.reshape(-1)):
        values = mean_kernel(omega, length * units)
        mean = weights @ values
        apart = values - mean
        found[:, place] = mean, math.sqrt(weights @ (apart * apart)), np.max(np.abs(apart))
    return Directions(*found.reshape(3, *r.shape))


@array.select_device
def directional_bound(n_blocks: int, phases: Array, *, ndim: int = 2) -> np.ndarray:
    """Root mean square dependence on direction that no set of equal magnitudes falls below.

    Parameters
    ----------
    n_blocks : int
        D, at least 1.
    phases : array_like, radians
        Magnitude times the length of the lag, not negative, at most 1000; any shape.
    ndim : {2, 3}
        Number of position axes.

    Returns
    -------
    ndarray
        The shape of `phases`: a bound of ``Directions.rms``. It is certified to about 1e-4; where less than that is
        known it is 0.

    Raises
    ------
    ValueError
        For numbers that are not as above.
    TypeError
        For anything but real numbers.

    See Also
    --------
    designs.directional_error

    Notes
    -----
    For D directions e the mean square over the directions of the lag is the mean over all pairs of ``g(e .
    e')``, a sum with positive coefficients of ``cos 2m(theta - theta')`` (those are ``2 J_2m(z)^2``) or of Legendre's
    ``P_2m(e . e')`` (``(4m + 1) j_2m(z)^2``), m >= 1. Let h <= g be such a sum with any constant term and no other
    negative coefficient: pairs of different blocks have at least ``D^2 h_0 - D h(1)``, so that the mean square is at
    least ``h_0 + (g(1) - h(1)) / D``. The best h is a linear program (Delsarte 1972; Yudin 1992). At some phases no h
    is near, and what is found there is far below every set that is known.

    Two axes: D equal angles have ``2 sum_l J_2Dl(z)^2``. A set of D blocks can have no dependence up to degree 2t in
    the lag only if ``D >= (t + k - 1)! / (t! (k - 1)!)`` (Delsarte, Goethals and Seidel 1977): t + 1 blocks in two
    axes, where equal angles have that, and (t + 1)(t + 2)/2 in three, where only 1, 3 and 6 lines do.

    Examples
    --------
    Equal angles and the axes of the icosahedron are at the bound here:

    >>> import rfrope
    >>> from rfrope.designs import directional_bound, directional_error
    >>> ring = rfrope.frequencies.isotropic([1.0], 4)
    >>> directional_error(ring, 6.0).rms.round(4), directional_bound(4, 6.0).round(4)
    (np.float64(0.0799), np.float64(0.0799))
    >>> lines = rfrope.frequencies.isotropic([1.0], 6, ndim=3)
    >>> directional_error(lines, 4.0).rms.round(4), directional_bound(6, 4.0, ndim=3).round(4)
    (np.float64(0.0418), np.float64(0.0418))
    """
    n, ndim = capacity.count("n_blocks", n_blocks, 1, each=2e4), whole("ndim", ndim, 2)
    if ndim > 3:
        raise ValueError(f"ndim is {ndim}; expected 2 or 3")
    z = _read_lengths("phases", phases)
    if np.any(z > 1000.0):
        raise ValueError("phases holds numbers above 1000; expected fewer radians")
    found = np.array([_linear_bound(n, float(one), ndim) for one in z.reshape(-1)])
    return found.reshape(z.shape)


def _read_lengths(name: str, value: Any) -> np.ndarray:
    host = angles.numbers_on_host(value, name).astype(np.float64)
    if not np.all(np.isfinite(host)) or np.any(host < 0.0):
        raise ValueError(f"{name} is {show(value)}; expected finite numbers, 0 or more")
    return host


def _half_circle(degree: int) -> tuple[np.ndarray, np.ndarray]:
    """Directions up to sign and weights, exact for squares of even functions of a degree."""
    angle = math.pi * (np.arange(degree) + 0.5) / degree
    return np.stack([np.cos(angle), np.sin(angle)], axis=-1), np.full(degree, 1.0 / degree)


def _half_sphere(degree: int) -> tuple[np.ndarray, np.ndarray]:
    height, weight = np.polynomial.legendre.leggauss(degree)
    angle = math.pi * (np.arange(2 * degree) + 0.5) / degree
    width = np.sqrt(1.0 - height * height)[:, None]
    units = [width * np.cos(angle), width * np.sin(angle), np.broadcast_to(height[:, None], (degree, 2 * degree))]
    return np.stack(units, axis=-1).reshape(-1, 3), np.repeat(weight, 2 * degree) / (4.0 * degree)


def _linear_bound(n: int, z: float, ndim: int) -> float:
    """Bound at one phase, by a linear program on a grid; what h exceeds g by between its points is taken off."""
    from scipy import optimize, special

    degrees = math.ceil(0.5 * z) + _MARGIN // 2
    m = np.arange(1, degrees + 1)
    bessel = special.jv(2 * m, z) ** 2 if ndim == 2 else special.spherical_jn(2 * m, z) ** 2
    g = 2.0 * bessel if ndim == 2 else (4.0 * m + 1.0) * bessel
    size = float(np.sum(g))
    if size == 0.0:
        return 0.0
    used = min(n + _MORE_DEGREES, degrees + n)
    angle = np.linspace(0.0, 0.5 * math.pi, _FINE * max(used, degrees) + 1)

    def basis(most: int, angle: np.ndarray) -> np.ndarray:
        if ndim == 2:
            return np.cos(2.0 * np.arange(most + 1) * angle[:, None])
        return np.stack([special.eval_legendre(2 * one, np.cos(angle)) for one in range(most + 1)], axis=-1)

    cost = np.append(1.0 / n - 1.0, np.full(used, 1.0 / n))
    bounds = [(None, None), *[(0.0, None)] * used]
    potential = basis(degrees, angle)[:, 1:] @ (g / size)
    solved = optimize.linprog(cost, basis(used, angle), potential, bounds=bounds, method="highs")
    if solved.x is None:
        return 0.0
    h = np.append(solved.x[0], np.maximum(solved.x[1:], 0.0))
    finer = np.linspace(0.0, 0.5 * math.pi, 8 * (len(angle) - 1) + 1)
    excess = float(np.max(basis(used, finer) @ h - basis(degrees, finer)[:, 1:] @ (g / size)))
    step, curvature = finer[1], 4.0 * (np.sum(h[1:] * np.arange(1, used + 1) ** 2) + m**2 @ g / size)
    h[0] -= max(excess, 0.0) + 0.125 * step * step * float(curvature)
    mean_square = size * (h[0] + (1.0 - float(np.sum(h))) / n)
    return math.sqrt(max(mean_square, 0.0))
