"""The witness that proves that a function is not positive definite, and the search for it on grids of the function.

The search uses no quadrature. With gaussian weights of width s around a point, rotated by an angle theta from one point
of a grid to the next, the form ``sum_jk c_j conj(c_k) phi(x_j - x_k)`` is the mean of the spectrum over a window around
theta (Herglotz). One FFT gives it for every theta. Where it is negative beyond rounding, the real or imaginary part of
the weights is a witness.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from rfrope._core.results import Result
from rfrope.bochner.piecewise import Function, Sealed

_EVEN = 1e-9  # by how much steps between points may differ, relative to them
_ENDS = 5.5  # standard deviations at which gaussian weights are cut off
_WIDTHS = 2.0 ** np.arange(0.0, 11.0)  # the windows, in points of the grid
_OVERSAMPLED = 4  # frequencies for each width of a window
FORM_ROUNDING = 2e-15  # error of a quadratic form whose weights' magnitudes sum to 1
_MOST_POINTS = 2**19  # that a witness may have
_LATTICES = {1: (400,), 2: (20, 20), 3: (8, 8, 7)}  # points along each axis

WHOLE = 2**17  # whole lags at which a function is surveyed
_FAR = 16.0  # scales
_SIZES = (2**13, 2**13, 2**13, 256)  # of the grids
_SPACINGS = 2.0**-6 * np.array([1.0, 0.6180339887498949, 2.0**-5])  # between those, in scales
_NEGLIGIBLE = 1e-17  # magnitude beyond which a grid need not reach
_LONGEST = 2**15  # points of a grid whose quadratic forms are taken


@dataclass(frozen=True, eq=False, repr=False)
class Witness(Sealed, Result):
    """Points and weights with a negative quadratic form: a proof that a function is not positive definite.

    ``sum_ij w_i w_j phi(x_i - x_j)`` is nonnegative for every positive definite phi. As the magnitudes of the weights
    sum to 1, no positive definite function is closer than ``-value`` to phi at all lags ``x_i - x_j``, and the
    negative spectral mass of phi is at least ``-value``.

    Attributes
    ----------
    points : ndarray, (n,) for one axis, (n, k) for k
    weights : ndarray, (n,)
        Real; the sum of their magnitudes is 1.
    value : float
        The quadratic form as computed.

    See Also
    --------
    bochner.from_function, bochner.NotPositiveDefiniteError

    Examples
    --------
    >>> import numpy as np
    >>> from rfrope import bochner
    >>> def box(x):
    ...     return (np.abs(x) <= 1.0) * 1.0
    >>> try:
    ...     bochner.from_function(box)
    ... except bochner.NotPositiveDefiniteError as error:
    ...     x, w = error.witness.points, error.witness.weights
    >>> bool(w @ box(x[:, None] - x) @ w < -0.01)
    True
    """

    points: np.ndarray
    weights: np.ndarray
    value: float

    def __repr__(self) -> str:
        return f"<witness of {self.weights.size} points, quadratic form {self.value:.3g}>"

    def quadratic_form(self, phi: Callable[[np.ndarray], Any]) -> float:
        """Return ``sum_ij w_i w_j phi(x_i - x_j)``, for several axes with the length of ``x_i - x_j``.

        Parameters
        ----------
        phi : callable
            See `from_function`.

        Returns
        -------
        float
        """
        steps = np.diff(self.points) if self.points.ndim == 1 else np.empty(0)
        if steps.size and np.ptp(steps) <= _EVEN * abs(steps[0]):  # a few values serve all pairs
            found = np.asarray(phi(np.abs(self.points - self.points[0])), dtype=np.float64)
            shared = np.correlate(self.weights, self.weights, "full")[self.weights.size - 1 :]
            return math.fsum((shared * found * np.where(self.points == self.points[0], 1.0, 2.0)).tolist())
        lags = self.points[:, None] - self.points
        lags = lags if lags.ndim == 2 else np.linalg.norm(lags, axis=-1)
        found = np.asarray(phi(lags.ravel()), dtype=np.float64).reshape(lags.shape)
        return float(self.weights @ found @ self.weights)


# -- on grids ----------------------------------------------------------------------------------------------------------

Grid = tuple[float, np.ndarray]  # a spacing, and values at 0, spacing, 2 spacing, ...


def sample_on_grids(phi: Function, scale: float) -> list[Grid]:
    """Return phi on grids in units of its scale, at multiples of its largest lag far out, and at whole lags."""
    whole = phi(np.arange(WHOLE + 1.0))
    far = min(math.ceil(_FAR * scale), WHOLE)
    spacings = [*(scale * _SPACINGS).tolist(), float(far + np.argmax(np.abs(whole[far:])))]
    return [*((h, phi(h * np.arange(n))) for h, n in zip(spacings, _SIZES, strict=True)), (1.0, whole)]


def search(grids: Iterable[Grid], level: float) -> Witness | None:
    """Return a quadratic form below ``-level`` on the first grid that has one."""
    for spacing, values in grids:
        last = int(np.max(np.nonzero(np.abs(values) > _NEGLIGIBLE)[0], initial=0))
        witness = search_grid(values[: max(64, min(2 * last, _LONGEST))], spacing, level)
        if witness is not None:
            return witness
    return None


def search_grid(values: np.ndarray, spacing: float, level: float) -> Witness | None:
    """Look for a witness on a grid of one axis."""
    found = list(_test_increments(values, spacing, level))
    for width in _WIDTHS[values.size > 2.0 * _ENDS * _WIDTHS + 3.0].tolist():
        found.extend(_test_windows(values, spacing, width, level))
    return _best(found)


def _best(found: list[Witness]) -> Witness | None:
    lowest = min((one.value for one in found), default=0.0)
    return min((one for one in found if one.value <= 0.5 * lowest), key=lambda one: one.weights.size, default=None)


def _test_increments(values: np.ndarray, spacing: float, level: float) -> Iterator[Witness]:
    """A witness of three points 0, h and x + h: by Krein, ``(phi(x) - phi(x + h))^2 <= 2 (1 - phi(h))``."""
    near, a, b = values[1], values[1:-1], values[2:]
    determinant = 1.0 + 2.0 * near * a * b - near * near - a * a - b * b
    at = int(np.argmin(determinant))
    lags = np.array([0.0, 1.0, at + 2.0])
    gram = np.array([[1.0, near, b[at]], [near, 1.0, a[at]], [b[at], a[at], 1.0]])
    return _test_matrix(gram, spacing * lags, level)


def _test_matrix(gram: np.ndarray, points: np.ndarray, level: float) -> Iterator[Witness]:
    values, vectors = np.linalg.eigh(gram)
    weights = vectors[:, 0] / np.sum(np.abs(vectors[:, 0]))
    value = float(weights @ gram @ weights)
    if values[0] < 0.0 and value < -level:
        yield Witness(points, weights, value)


def _test_windows(values: np.ndarray, spacing: float, width: float, level: float) -> Iterator[Witness]:
    reach = math.ceil(_ENDS * width)
    lags = np.arange(2 * reach + 1)
    window = np.exp(-0.5 * ((lags - reach) / width) ** 2)
    window = window / np.sum(window)
    size = 2 ** math.ceil(math.log2(_OVERSAMPLED * lags.size))
    folded = np.zeros(size)
    folded[: lags.size] = _autocorrelation(window) * values[: lags.size]
    folded[1:] *= 2.0
    spectrum = np.fft.rfft(folded).real
    at = int(np.argmin(spectrum))
    if spectrum[at] < -level:
        yield from _test_waves(values, spacing, window, 2.0 * math.pi * at / size, level)


def _autocorrelation(weights: np.ndarray) -> np.ndarray:
    """``sum_j w_j w_(j + m)`` for m >= 0."""
    if weights.size < 200:
        return np.correlate(weights, weights, "full")[weights.size - 1 :]
    size = 2 ** math.ceil(math.log2(2 * weights.size))
    return np.fft.irfft(np.abs(np.fft.rfft(weights, size)) ** 2, size)[: weights.size]


def _test_waves(
    values: np.ndarray, spacing: float, window: np.ndarray, theta: float, level: float
) -> Iterator[Witness]:
    """The complex weights' form is the sum of those of its real and its imaginary part."""
    steps = np.arange(window.size) - window.size // 2
    for wave in (np.cos(theta * steps), np.sin(theta * steps)):
        total = float(np.sum(np.abs(window * wave)))
        if total > 1e-6:
            weights = window * wave / total
            products = _autocorrelation(weights) * values[: weights.size]
            value = float(products[0] + 2.0 * np.sum(products[1:]))
            if value < -level:
                yield Witness(spacing * steps, weights, value)


# -- about a stretch of frequencies ------------------------------------------------------------------------------------


Stretch = tuple[float, float]  # lengths of omega


def search_stretch(
    phi: Function, ndim: int, stretch: Stretch, extents: tuple[float, ...], level: float
) -> Witness | None:
    """Look for a witness near frequencies where the spectrum is negative.

    Parameters
    ----------
    phi : callable
        A function of the lag, or of its length.
    ndim : int
    stretch : tuple of two floats
        Lengths of omega between which the density is negative.
    extents : tuple of floats
        Lengths of omega below which increasing parts of the mass lie.
    level : float

    Returns
    -------
    Witness or None
    """
    found = list(_test_lattices(phi, ndim, (stretch[1], *extents[:5]), level))
    for narrow in (1.0, 2.0, 4.0, 8.0):
        found = found or list(_test_stretch(phi, stretch, extents, narrow, level))
    return _best(found)


def _test_lattices(phi: Function, ndim: int, widths: tuple[float, ...], level: float) -> Iterator[Witness]:
    """Witnesses of the points of small lattices, with the best weights that there are."""
    for spacing in sorted({math.pi / (c * w) for w in widths for c in (0.5, 0.8, 1.25)}):
        sides = [spacing * np.arange(n) for n in _LATTICES[ndim]]
        points = np.stack([side.ravel() for side in np.meshgrid(*sides, indexing="ij")], axis=-1)
        lags = points[:, None] - points
        gram = phi(np.sqrt(np.sum(lags * lags, axis=-1)).ravel()).reshape(lags.shape[:2])
        yield from _test_matrix(gram, points if ndim > 1 else points[:, 0], level)


def _test_stretch(
    phi: Function, stretch: Stretch, extents: tuple[float, ...], narrow: float, level: float
) -> Iterator[Witness]:
    """Witnesses of gaussian windows along one axis."""
    low, high = stretch
    sigma = narrow / (high - low)
    for extent in extents:
        spacing = math.pi / (1.1 * max(high, extent) + 4.0 / sigma)
        reach = math.ceil(_ENDS * sigma / spacing)
        if 2 * reach + 1 > _MOST_POINTS:
            return
        yield from _test_windows(phi(spacing * np.arange(2.0 * reach + 1.0)), spacing, sigma / spacing, level)
