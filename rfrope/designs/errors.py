"""Error of a mean kernel over the whole lags of a range, and a lower bound for any set of equal blocks.

For the bound, frequencies lie on a grid of the circle of length 2 pi, which is all that whole lags can distinguish.
Functions of them are even, and are stored as values on that grid or as cosine coefficients for lags from 0 to half the
grid.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from rfrope._core import angles, array
from rfrope._core.angles import Angles
from rfrope._core.arguments import show
from rfrope._core.array import Array
from rfrope._core.sums import mean_cos
from rfrope.kernels import Kernel

_MOST_LAGS = 2**20  # maximum number of lags of an error
_MANY_PHASES = 2**22  # size from which importing Numba and finufft pays

_BOUND_LAGS = 2**12 - 1  # lags of the bound; others could only add to the error
_OVER, _FINE = 4, 4  # grid points for each lag, and how much finer the grid is on which a bound is certified
# where a tail begins, and which part of the lags smooths its edge: the more, the less counts of the repulsion
_TAILS = ((0.6, 1.5), (0.7, 2.0), (0.6, 3.0), (0.8, 5.0), (0.8, 8.0))
_SHARES = (1.0, 0.3, 0.1)  # how much of the repulsion is counted
_STEPS, _LOOK = 120, 30  # in the descent for each pair of these; steps between looks at the bound


class Error(NamedTuple):
    """Root mean square error, largest error, and the lag of the largest."""

    rms: float
    sup: float
    sup_lag: tuple[int, ...]


def error(kernel: Kernel, omega: np.ndarray, max_lag: tuple[int, ...]) -> Error:
    """Return the error of the mean kernel over the whole lags up to `max_lag`, one of each pair +-lag."""
    lags, weights = lags_within(max_lag, _MOST_LAGS)
    errors = np.abs(mean_kernel(omega, lags) - kernel.phi(kernel.restore_shape(lags)))
    largest = int(np.argmax(errors))
    rms = math.sqrt(float(weights @ (errors * errors)) / float(np.sum(weights)))
    return Error(rms, float(errors[largest]), tuple(int(number) for number in lags[largest]))


def mean_kernel(omega: np.ndarray, lags: np.ndarray) -> np.ndarray:
    """Return the mean kernel of frequencies ``(D, k)`` at lags ``(L, k)``."""
    mean = mean_cos if omega.size * len(lags) >= _MANY_PHASES else mean_cos.generic
    found: np.ndarray = mean(Angles(lags, omega.astype(np.float64, copy=False), None, np))
    return found


def lags_within(max_lag: tuple[int, ...], most: int) -> tuple[np.ndarray, np.ndarray]:
    """Return whole lags up to max_lag on every axis, one of each pair +-lag, and the number of lags each represents.

    These are all lags if there are at most `most`; otherwise about half are the smallest lags, and half are spread over
    the rest by multiples of the golden section.
    """
    total = _count_half(max_lag)
    if total <= most:
        return _half_of_box(max_lag, np.arange(total)), np.ones(total)
    side = next(s for s in range(most, 0, -1) if _count_half((s,) * len(max_lag)) <= most // 2)
    box = tuple(min(m, side) for m in max_lag)
    near = _half_of_box(box, np.arange(_count_half(box)))
    spread = (np.arange(most - len(near)) + 0.5) * (0.5 * (math.sqrt(5.0) - 1.0)) % 1.0
    far = _half_of_box(max_lag, np.unique((spread * total).astype(np.int64)))
    far = far[np.any(np.abs(far) > box, axis=-1)]
    weights = np.concatenate([np.ones(len(near)), np.full(len(far), (total - len(near)) / len(far))])
    return np.concatenate([near, far]), weights


def _count_half(max_lag: tuple[int, ...]) -> int:
    """Count the whole lags in a box around 0, one of each pair +-lag: 0 and half of the others."""
    return (math.prod(2 * m + 1 for m in max_lag) + 1) // 2


def _half_of_box(max_lag: tuple[int, ...], index: np.ndarray) -> np.ndarray:
    """Lags of that half by their numbers; number 0 is lag 0."""
    places = np.unravel_index(_count_half(max_lag) - 1 + index, [2 * m + 1 for m in max_lag])
    return np.stack(places, axis=-1).astype(np.float64) - max_lag


# -- the bound ---------------------------------------------------------------------------------------------------------


def lower_bound(kernel: Kernel, n: int, max_lag: tuple[int, ...]) -> float:
    """Return a root mean square error that no n equal blocks can beat; 0 where none is known, as in several axes.

    With ``K(a, b) = sum_x cos(a x) cos(b x)``, the summed square error of n blocks is a quadratic form in their measure
    nu, and blocks repel each other. Let G be a nonnegative part of K, small enough for K - G to stay positive
    semi-definite on masses of sum 0. As pairs of blocks add nothing negative, ``nu G nu >= diag(G) nu / n``, and the
    error is at least the minimum of ``nu (K - G) nu + (diag(G)/n - 2 h) nu + const`` over all probability measures: a
    convex problem, whose conditional-gradient gap gives a lower bound at any nu. (The method of Yudin's bounds for
    energies, 1992.) Here ``G = share u(a) u(b) F(a - b)``, folded, with Fejer's kernel F and a polynomial u between 0
    and 1 that is near 1 where the kernel's law has less than one block per resolved cell.
    """
    if len(max_lag) > 1 or not n:
        return 0.0
    circle = _Circle(kernel, min(max_lag[0], _BOUND_LAGS))
    found = max((bound for tail in _TAILS for bound in _tail_bounds(circle, n, *tail)), default=0.0)
    lags = 2.0 * (max_lag[0] + 1.0)  # of both signs, as `errors` counts them
    return math.sqrt(max(found, 0.0) / lags)


class _Circle:
    """The grid, and what of the kernel is needed on it."""

    def __init__(self, kernel: Kernel, reach: int) -> None:
        self.reach, self.size = reach, 1 << math.ceil(math.log2(_OVER * (reach + 1)))
        self.lags = np.arange(self.size // 2 + 1.0)
        self.counted = (self.lags > 0.0) & (self.lags <= reach)  # at lag 0 there is no error
        self.phi = np.where(self.counted, kernel.phi(self.lags), 0.0)
        self.law = np.maximum(self.values(self.fejer(reach) * np.where(self.counted, self.phi, 1.0)), 0.0)

    def fejer(self, degree: int) -> np.ndarray:
        """Coefficients of Fejer's kernel."""
        return np.maximum(1.0 - self.lags / (degree + 1.0), 0.0)

    def coefficients(self, values: np.ndarray) -> np.ndarray:
        """Sums of values times ``cos(x omega)``."""
        return np.fft.rfft(values).real

    def values(self, coefficients: np.ndarray, finer: int = 1) -> np.ndarray:
        """Sums of coefficients times ``cos(x omega)`` over lags of both signs, on a grid that may be finer."""
        return np.fft.irfft(coefficients, self.size * finer) * (self.size * finer)

    def least(self, values: np.ndarray) -> float:
        """Lower bound on a function of at most half the grid's degree, between the points of the grid too.

        Near a minimum it is at most half its curvature times the square of the distance to the nearest point above it.
        """
        coefficients, step = self.coefficients(values) / self.size, math.pi / (self.size * _FINE)
        curvature = np.max(np.abs(self.values(coefficients * self.lags**2, _FINE)))
        curvature /= math.cos(0.5 * math.pi / _FINE)  # between the points too: Ehlich and Zeller's inequality
        return float(np.min(self.values(coefficients, _FINE)) - 0.5 * step * step * curvature)


def _tail_bounds(circle: _Circle, n: int, level: float, part: float) -> Iterator[float]:
    """Lower bounds on the summed square error, for each share, with a tail where the law is below some level."""
    smooth = int(circle.reach / part)
    fejer, height = circle.fejer(circle.reach - smooth), circle.reach - smooth + 1.0
    tail = (circle.law < 0.5 * level * height / n).astype(np.float64)
    u = circle.values(circle.coefficients(tail) / circle.size * circle.fejer(smooth))
    twice = circle.values(fejer)[2 * np.arange(circle.size) % circle.size]
    diagonal = 0.5 * u * u * (height + twice) / n
    nu, best = circle.law / np.sum(circle.law), -math.inf
    for share in _SHARES if np.any(tail) else ():
        nu, bound = _minimise(circle, nu, u, share * fejer, share * diagonal)
        yield bound
        if bound < best:  # it is concave in the share
            return
        best = bound


def _minimise(
    circle: _Circle, nu: np.ndarray, u: np.ndarray, fejer: np.ndarray, diagonal: np.ndarray
) -> tuple[np.ndarray, float]:
    """Nesterov's descent on the simplex from `nu`, and the best lower bound of the minimum that it has come by."""
    linear = diagonal - circle.values(2.0 * circle.phi)
    constant, length = 2.0 * float(np.sum(circle.phi**2)), 0.5 / circle.size

    def slope_at(nu: np.ndarray) -> np.ndarray:
        repelled = u * circle.values(fejer * circle.coefficients(u * nu))
        return 2.0 * (circle.values(circle.counted * circle.coefficients(nu)) - repelled) + linear

    point, momentum, best = nu, 1.0, -math.inf
    for step in range(1, _STEPS + 1):
        slope = slope_at(point)
        new = _project_on_simplex(point - length * slope)
        if momentum > 1.0 and float(slope @ (new - nu)) > 0.0:
            point, momentum = nu, 1.0
        else:
            grown = 0.5 * (1.0 + math.sqrt(1.0 + 4.0 * momentum * momentum))
            point, nu, momentum = new + (momentum - 1.0) / grown * (new - nu), new, grown
        if step % _LOOK == 0:
            slope = slope_at(nu)
            value = 0.5 * float((slope + linear) @ nu) + constant
            best = max(best, value - float(slope @ nu) + circle.least(slope))
    return nu, best


def _project_on_simplex(values: np.ndarray) -> np.ndarray:
    """Nearest probabilities."""
    ordered = np.sort(values)[::-1]
    excess = (np.cumsum(ordered) - 1.0) / np.arange(1, ordered.size + 1)
    return np.maximum(values - excess[np.count_nonzero(ordered > excess) - 1], 0.0)


_MARGIN = 40  # degrees beyond the phase from which on Bessel's functions are below rounding
_FAR = 1e9
_EPSILON = float(np.finfo(np.float64).eps)
_COUNTS = 1024  # of the numbers of blocks that count: the bound takes the next one above
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
        For another number of axes, several sets, and lengths that are negative or not finite.
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

    if omega.shape[-1] == 2:  # directions up to sign and weights, exact for squares of even functions of the degree
        angle = math.pi * (np.arange(degree) + 0.5) / degree
        units, weights = np.stack([np.cos(angle), np.sin(angle)], axis=-1), np.full(degree, 1.0 / degree)
    else:
        height, weight = np.polynomial.legendre.leggauss(degree)
        angle = math.pi * (np.arange(2 * degree) + 0.5) / degree
        width, heights = np.sqrt(1.0 - height * height)[:, None], np.broadcast_to(height[:, None], (degree, 2 * degree))
        units = np.stack([width * np.cos(angle), width * np.sin(angle), heights], axis=-1).reshape(-1, 3)
        weights = np.repeat(weight, 2 * degree) / (4.0 * degree)
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
        For another number of axes, several sets, and scales that are negative or not finite.
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
    (Borodachov et al. 2024). The proof is in :doc:`/explain/proofs_directions`.

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
    omega = angles.read_on_host(frequencies, "frequencies", shapes="one").astype(np.float64)
    if omega.shape[-1] not in (2, 3):
        raise ValueError(f"frequencies has {omega.shape[-1]} axes; expected 2 or 3")
    host = angles.numbers_on_host(value, name).astype(np.float64)
    if not np.all(np.isfinite(host)) or np.any(host < 0.0):
        raise ValueError(f"{name} is {show(value)}; expected finite numbers, 0 or more")
    largest = float(np.max(np.linalg.norm(omega, axis=1))) * float(np.max(host, initial=0.0))
    if not largest < _FAR:
        raise ValueError(f"{name} and frequencies make {largest:.3g} radians; expected fewer than {_FAR:.0e}")
    return omega, host, largest


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
    effective = np.clip(np.ceil(_COUNTS / n * (mass[used] / squares[used]) * (1.0 - 1e-12)) * n / _COUNTS, 1.0, n)
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
