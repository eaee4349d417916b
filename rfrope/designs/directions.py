"""Mean kernels against the direction of the lag, and a bound that no directions of the same magnitudes fall below."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from rfrope._core import angles, array
from rfrope._core.arguments import show
from rfrope._core.array import Array
from rfrope.designs.errors import mean_kernel

_MARGIN = 40  # degrees beyond the phase from which on Bessel's functions are below rounding
_FAR = 1e9
_EPSILON = float(np.finfo(np.float64).eps)
_STEPS = 1024  # of the numbers of blocks that count: the bound takes the next one above
_ROUNDING = 1e-14  # of a mean square: taken off the bound


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


class DirectionalBound(NamedTuple):
    """Dependence of a mean kernel on direction over lags of a normal law, and the least that its magnitudes allow.

    Attributes
    ----------
    rms : ndarray
        Root mean square, over lags of the normal law, of what the mean kernel differs from its mean over directions.
    bound : ndarray
        What no set of the same magnitudes falls below, whatever its directions.

    See Also
    --------
    designs.directional_bound

    Examples
    --------
    >>> import rfrope
    >>> found = rfrope.designs.directional_bound(rfrope.golden_gate(16, low=0.1, high=1.0), 8.0)
    >>> round(float(found.rms / found.bound), 2)
    1.05
    """

    rms: np.ndarray
    bound: np.ndarray


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
    omega, r, largest = _read_set(frequencies, "lengths", lengths)
    degree = math.ceil(largest) + _MARGIN
    units, weights = _half_circle(degree) if omega.shape[-1] == 2 else _half_sphere(degree)
    found = np.empty((3, r.size))
    for place, length in enumerate(r.reshape(-1)):
        values = mean_kernel(omega, length * units)
        mean = weights @ values
        apart = values - mean
        found[:, place] = mean, math.sqrt(weights @ (apart * apart)), np.max(np.abs(apart))
    return Directions(*found.reshape(3, *r.shape))


@array.select_device
def directional_bound(frequencies: Array, scales: Array) -> DirectionalBound:
    """Dependence on direction over lags of a normal law, and what no directions of the same magnitudes fall below.

    Parameters
    ----------
    frequencies : Rope or array_like, (D, 2) or (D, 3), radians per unit of position
        One set; it is read on the host. The bound depends on the lengths of its rows alone.
    scales : array_like, in units of position
        Standard deviations of the lag, each of them the same along all axes; not negative, any shape.

    Returns
    -------
    DirectionalBound
        Arrays of NumPy with the shape of `scales`. With x the largest magnitude times the scale, rounding makes the
        square of ``rms`` wrong by up to 2^-52 times ``3 x + 6``, and times ``3.5 x^2`` of itself; the bound has that
        taken off.

    Raises
    ------
    ValueError
        For another number of axes, several sets, and scales that are negative, not finite, or have more phases than
        fit in memory.
    TypeError
        For anything but real numbers.

    See Also
    --------
    designs.DirectionalBound, designs.directional_error

    Notes
    -----
    With a and b the magnitudes of two blocks, w and v their frequencies and S(x) the mean of ``cosh(x e . e')`` over
    directions (I_0(x) in two axes, sinh(x)/x in three), the mean square is the mean over all pairs of blocks of
    ``exp(-s^2 (a^2 + b^2) / 2) (cosh(s^2 w . v) - S(s^2 a b))``. Each even power of the cosine between w and v has a
    lower bound by a quadrature with the weight 1/N at 1, where N is the effective number of blocks at this power
    (Borodachov et al. 2024). The proof is in :doc:`/explain/directions`.

    Equal magnitudes are at the bound with equal angles in two axes, for every D and every scale, and with the 1, 2, 3,
    4 and 6 lines of `frequencies.isotropic` in three (Cohn and Kumar 2007). Since a mean is at most the largest value,
    each set also has lengths at which ``Directions.rms`` is at least the bound.

    Examples
    --------
    >>> import rfrope
    >>> from rfrope.designs import directional_bound
    >>> rms, bound = directional_bound(rfrope.frequencies.isotropic([1.0], 16), [8.0, 16.0])
    >>> rms.round(4), bound.round(4)
    (array([0.0061, 0.0822]), array([0.0061, 0.0822]))

    Golden gate with 32 magnitudes, and the six axes of the icosahedron:

    >>> [float(v.round(3)) for v in directional_bound(rfrope.golden_gate(32, low=0.1, high=1.0), 8.0)]
    [0.04, 0.036]
    >>> [float(v.round(3)) for v in directional_bound(rfrope.frequencies.isotropic([1.0], 6, ndim=3), 2.0)]
    [0.073, 0.073]
    """
    omega, s, _ = _read_set(frequencies, "scales", scales)
    found = np.empty((2, s.size))
    for place, scale in enumerate(s.reshape(-1)):
        squares = _mean_square(scale * omega), _least_mean_square(scale * np.linalg.norm(omega, axis=1), omega.shape[1])
        found[:, place] = np.sqrt(np.maximum(squares, 0.0))
    return DirectionalBound(*found.reshape(2, *s.shape))


def _read_set(frequencies: Any, name: str, value: Any) -> tuple[np.ndarray, np.ndarray, float]:
    """Frequencies, lengths, and the most radians that they make."""
    omega = angles.read_on_host(frequencies, "frequencies", sets="one").astype(np.float64)
    if omega.shape[-1] not in (2, 3):
        raise ValueError(f"frequencies has {omega.shape[-1]} axes; expected 2 or 3")
    host = angles.numbers_on_host(value, name).astype(np.float64)
    if not np.all(np.isfinite(host)) or np.any(host < 0.0):
        raise ValueError(f"{name} is {show(value)}; expected finite numbers, 0 or more")
    largest = float(np.max(np.linalg.norm(omega, axis=1))) * float(np.max(host, initial=0.0))
    if not largest < _FAR:
        raise ValueError(f"{name} and frequencies make {largest:.3g} radians; expected fewer than {_FAR:.0e}")
    return omega, host, largest


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


def _mean_square(omega: np.ndarray) -> float:
    """Mean square dependence on direction over standard normal lags."""
    from scipy import special

    radii = np.linalg.norm(omega, axis=1)
    inner, most = omega @ omega.T, radii[:, None] * radii
    if omega.shape[1] == 2:
        shell = special.i0e(most)
    else:
        safe = np.where(most > 0.0, most, 1.0)
        shell = np.where(most > 0.0, -np.expm1(-2.0 * safe) / (2.0 * safe), 1.0)
    apart = 0.5 * (np.exp(inner - most) + np.exp(-inner - most)) - shell
    return float(np.mean(np.exp(-0.5 * (radii[:, None] - radii) ** 2) * apart))


def _least_mean_square(radii: np.ndarray, ndim: int) -> float:
    """Bound of the mean square over standard normal lags: what each power of the cosine allows, added up."""
    from scipy import special

    n, square = len(radii), float(np.max(radii)) ** 2
    power = np.arange(1, math.ceil(0.5 * square + 4.0 * math.sqrt(square)) + 30)
    with np.errstate(divide="ignore"):
        each = 2.0 * power[:, None] * np.log(radii) - 0.5 * radii**2
    weights = np.exp(each - 0.5 * special.gammaln(2.0 * power + 1.0)[:, None])
    squares, mass = np.sum(weights**2, axis=1), np.sum(weights, axis=1) ** 2
    mean = np.cumprod(1.0 - 0.5 / power) if ndim == 2 else 1.0 / (2.0 * power + 1.0)
    used = squares > 1e-18 * np.max(squares)  # what is left out makes the bound no larger
    effective = np.clip(np.ceil(_STEPS / n * (mass[used] / squares[used]) * (1.0 - 1e-12)) * n / _STEPS, 1.0, n)
    total = 0.0
    for count in np.unique(effective):
        at, share = power[used][effective == count], mass[used][effective == count]
        nodes, parts = _line_rule(float(count), ndim)
        least = 1.0 / count + np.abs(nodes) ** (2.0 * at[:, None]) @ parts - mean[used][effective == count]
        total += float(share @ np.maximum(np.where(at > len(nodes) - 1, least - _ROUNDING, 0.0), 0.0))
    total *= (1.0 - 16.0 * _EPSILON * len(power) * math.log(len(power))) / n**2
    # `_mean_square` rounds exponents up to x^2: relative to itself, which the factor above covers, and to its mean over
    # directions, of which z shell(z) is at most x/2; everything else is rounded as numbers below 1
    return total - (3.0 * math.sqrt(square) + 6.0) * _EPSILON


def _line_rule(n: float, ndim: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights that with 1/n at 1 have the means of as many even powers of the cosine as they can."""
    from scipy.linalg import eigh_tridiagonal

    order = np.arange(1.0, n + 2.0)
    dims = order if ndim == 2 else order * (order + 1.0) / 2.0
    size = int(np.searchsorted(dims, n))
    if size < 2:
        return np.zeros(size), np.zeros(size)
    at, half = np.arange(1.0, size), 0.5 * ndim
    squares = at * (at + ndim - 1.0) / (4.0 * (at + half) * (at + half - 1.0))
    slope = (ndim + size - 2.0) / (2.0 * (half + size - 2.0))
    squares[-1] = slope * (1.0 / dims[size - 1] - 1.0 / n) / (1.0 / dims[size - 2] - 1.0 / n)
    nodes, vectors = eigh_tridiagonal(np.zeros(size), np.sqrt(squares))
    return nodes, (1.0 - 1.0 / ndim) * vectors[0] ** 2 / (1.0 - nodes**2)
