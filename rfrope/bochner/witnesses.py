"""Quadratic forms that are negative, looked for on grids of the function itself: no quadrature takes part.

With gaussian weights of width s about a point, turned by an angle theta from one point of a grid to the next, the form
``sum_jk c_j conj(c_k) phi(x_j - x_k)`` is the mean of the spectrum over a window about theta (Herglotz). One FFT gives
it for every theta. Where it is negative beyond rounding, the real or the imaginary part of the weights is a witness.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from rfrope.bochner.lags import Lags
from rfrope.bochner.piecewise import Function
from rfrope.bochner.verdicts import Witness

_ENDS = 5.5  # standard deviations at which gaussian weights are cut off
_WIDTHS = 2.0 ** np.arange(0.0, 11.0)  # the windows, in points of the grid
_STRIDES = (4, 16, 64, 256)  # by which a grid is thinned, for windows that reach far with few points
_STRIDE_WIDTHS = _WIDTHS[2:7:2]
_OVERSAMPLED = 4  # frequencies for each width of a window
FORM_ROUNDING = 2e-15  # error of a quadratic form whose weights' magnitudes sum to 1
_ENDS_ACROSS = 4.5
_MOST_POINTS = {1: 2**19, 2: 12000, 3: 12000}  # that a witness may have, by the number of axes
_LATTICES = {1: (400,), 2: (20, 20), 3: (8, 8, 7)}  # points along each axis

WHOLE = 2**17  # whole lags at which a function is surveyed
_FINE = 2**13  # points of a grid in units of the scale
_SPACINGS = 2.0**-6 * np.array([1.0, 0.6180339887498949, 2.0**-5])  # between those, in scales
_NEGLIGIBLE = 1e-17  # magnitude beyond which a grid need not reach
_LONGEST = 2**15  # points of a grid whose quadratic forms are taken
_MULTIPLES = 256  # how many, of a lag where something unexpected stands
_SEEN = 1e-9  # by how much phi may differ from its panels at whole lags
_CLUSTERS = 64  # how many, of such lags


def search_grid(values: np.ndarray, spacing: float, level: float) -> Witness | None:
    """Look for a witness on a grid of one axis.

    Parameters
    ----------
    values : ndarray, (n,)
        phi at 0, spacing, 2 spacing, ...
    spacing : float
    level : float
        What the quadratic form has to fall below, as a positive number.

    Returns
    -------
    Witness or None
        The one with the fewest points that is at least half as negative as the most negative one.
    """
    found = [w for w in (_test_increments(values, spacing, level), _test_limit(values, spacing, level)) if w]
    for stride, widths in ((1, _WIDTHS), *((stride, _STRIDE_WIDTHS) for stride in _STRIDES)):
        part = values[::stride]
        for width in widths[2.0 * _ENDS * widths + 3.0 < part.size].tolist():
            found.extend(_test_windows(part, stride * spacing, width, level))
    return _best(found)


def _best(found: list[Witness]) -> Witness | None:
    if not found:
        return None
    lowest = min(w.value for w in found)
    return min((w for w in found if w.value <= 0.5 * lowest), key=lambda w: w.weights.size)


def _test_increments(values: np.ndarray, spacing: float, level: float) -> Witness | None:
    """A witness of three points 0, h and x + h: by Krein, ``(phi(x) - phi(x + h))^2 <= 2 (1 - phi(h))``."""
    near, a, b = values[1], values[1:-1], values[2:]
    determinant = 1.0 + 2.0 * near * a * b - near * near - a * a - b * b
    at = int(np.argmin(determinant))
    lags = np.array([0.0, 1.0, at + 2.0])
    gram = np.array([[1.0, near, b[at]], [near, 1.0, a[at]], [b[at], a[at], 1.0]])
    return _test_matrix(gram, spacing * lags, level)


def _test_limit(values: np.ndarray, spacing: float, level: float) -> Witness | None:
    """A witness of points that are all far apart, for a function that is negative there."""
    n = min(64, values.size - 1)
    steps = values[n :: max(1, (values.size - 1) // 64)]
    if not np.max(steps[steps.size // 2 :]) < -level:
        return None
    step = (values.size - 1) // 64
    lags = step * np.arange(64)
    gram = values[np.abs(lags[:, None] - lags)]
    return _test_matrix(gram, spacing * lags, level)


def _test_matrix(gram: np.ndarray, points: np.ndarray, level: float) -> Witness | None:
    values, vectors = np.linalg.eigh(gram)
    weights = vectors[:, 0] / np.sum(np.abs(vectors[:, 0]))
    value = float(weights @ gram @ weights)
    return Witness(points, weights, value) if values[0] < 0.0 and value < -level else None


def _test_windows(values: np.ndarray, spacing: float, width: float, level: float) -> Iterator[Witness]:
    reach = math.ceil(_ENDS * width)
    lags = np.arange(2 * reach + 1)
    window = _window(reach, width)
    size = 2 ** math.ceil(math.log2(_OVERSAMPLED * lags.size))
    folded = np.zeros(size)
    folded[: lags.size] = _autocorrelation(window) * values[: lags.size]
    folded[1:] *= 2.0
    spectrum = np.fft.rfft(folded).real
    at = int(np.argmin(spectrum))
    if spectrum[at] < -level:
        yield from _test_waves(values, spacing, window, 2.0 * math.pi * at / size, level)


def _window(reach: int, width: float) -> np.ndarray:
    weights = np.exp(-0.5 * (np.arange(-reach, reach + 1) / width) ** 2)
    return np.asarray(weights / np.sum(weights))


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
        weights = window * wave
        total = float(np.sum(np.abs(weights)))
        if total > 1e-6:
            weights = weights / total
            products = _autocorrelation(weights) * values[: weights.size]
            value = float(products[0] + 2.0 * np.sum(products[1:]))
            if value < -level:
                yield Witness(spacing * steps, weights, value)


# -- about a stretch of frequencies ------------------------------------------------------------------------------------


def search_stretch(
    phi: Function, ndim: int, stretch: tuple[float, float], extents: tuple[float, ...], level: float
) -> Witness | None:
    """Look for a witness where the spectrum is known to be negative.

    Parameters
    ----------
    phi : callable
        A function of the lag, or of its length.
    ndim : int
    stretch : tuple of two floats
        Lengths of omega between which the density is negative.
    extents : tuple of floats
        Lengths of omega below which more and more of the mass lies.
    level : float

    Returns
    -------
    Witness or None
    """
    found = _test_lattices(phi, ndim, stretch[1], extents, level)
    for narrow in (1.0, 2.0, 4.0, 8.0):  # standard deviations of a window that go into the stretch
        if not found:
            found = list(_test_stretch(phi, 1, stretch, extents, narrow, 1.0, level))
        for across in (0.5, 1.0, 2.0):
            if not found and ndim > 1:
                found = list(_test_stretch(phi, ndim, stretch, extents, narrow, across, level))
    return _best(found)


def _test_lattices(phi: Function, ndim: int, high: float, extents: tuple[float, ...], level: float) -> list[Witness]:
    """Witnesses of the points of small lattices, with the best weights that there are."""
    found = []
    for spacing in sorted({round(math.pi / (c * w), 12) for w in (high, *extents[:3]) for c in (0.5, 0.8, 1.25)}):
        sides = [spacing * np.arange(n) for n in _LATTICES[ndim]]
        points = np.stack([side.ravel() for side in np.meshgrid(*sides, indexing="ij")], axis=-1)
        lags = points[:, None] - points
        gram = phi(np.sqrt(np.sum(lags * lags, axis=-1)).ravel()).reshape(lags.shape[:2])
        witness = _test_matrix(gram, points if ndim > 1 else points[:, 0], level)
        found.extend([witness] if witness else [])
    return found


def _test_stretch(
    phi: Function,
    ndim: int,
    stretch: tuple[float, float],
    extents: tuple[float, ...],
    narrow: float,
    across: float,
    level: float,
) -> Iterator[Witness]:
    """Witnesses of gaussian windows along the first axis, and narrower ones across."""
    low, high = stretch
    sigma = narrow / (high - low)
    bend = math.sqrt(narrow / ((high - low) * high))  # how far across a shell of frequencies is flat
    side = across * (sigma if low == 0.0 else min(sigma, bend))
    for extent in extents:
        spacing = math.pi / (1.1 * max(high, extent) + 4.0 / sigma)
        reach = math.ceil(_ENDS * sigma / spacing)
        sides = 0 if ndim == 1 else math.ceil(_ENDS_ACROSS * side / min(1.5 * spacing, side))
        if (2 * reach + 1) * (2 * sides + 1) ** (ndim - 1) > _MOST_POINTS[ndim]:
            return
        step = 0.0 if ndim == 1 else _ENDS_ACROSS * side / sides
        weights = np.ones(1) if ndim == 1 else _window(sides, side / step)
        values = _fold(phi, spacing * np.arange(2 * reach + 1), weights, step, ndim)
        for line in _test_windows(values, spacing, sigma / spacing, level):
            yield line if ndim == 1 else _multiply_axes(line, weights, step, ndim)


def _fold(phi: Function, lags: np.ndarray, across: np.ndarray, step: float, ndim: int) -> np.ndarray:
    """Phi along the first axis, averaged over the lags across with the autocorrelation of the weights there."""
    if ndim == 1:
        return phi(lags)
    one = _autocorrelation(across)
    one[1:] *= 2.0
    offsets = step * np.arange(one.size)
    squares, shares = offsets**2, one
    if ndim == 3:
        squares, shares = np.add.outer(squares, squares).ravel(), np.multiply.outer(one, one).ravel()
    rows = max(1, 2**20 // lags.size)
    total = np.zeros(lags.size)
    for start in range(0, squares.size, rows):
        part = slice(start, start + rows)
        lengths = np.sqrt(np.add.outer(squares[part], lags**2))
        total += shares[part] @ phi(lengths.ravel()).reshape(lengths.shape)
    return total


def _multiply_axes(line: Witness, across: np.ndarray, step: float, ndim: int) -> Witness:
    """Weights that are a product over the axes."""
    offsets = step * (np.arange(across.size) - across.size // 2)
    axes = [line.points] + [offsets] * (ndim - 1)
    points = np.stack([axis.ravel() for axis in np.meshgrid(*axes, indexing="ij")], axis=-1)
    weights = line.weights
    for _ in range(ndim - 1):
        weights = np.multiply.outer(weights, across)
    return Witness(points, weights.ravel(), line.value)


# -- a function surveyed before anything is computed from it -----------------------------------------------------------


@dataclass(frozen=True)
class Survey:
    """Values of a function on grids.

    Attributes
    ----------
    phi : callable
    whole : ndarray
        At lags 0, 1, ..., `WHOLE`.
    fine : tuple of pairs
        Spacing and values, in parts of the scale.
    """

    phi: Function
    whole: np.ndarray
    fine: tuple[tuple[float, np.ndarray], ...]

    def search(self, level: float) -> Witness | None:
        """Return a quadratic form on one of the grids that lies below ``-level``, if there is one."""
        grids = (search_grid(_cut_negligible(values), h, level) for h, values in (*self.fine, (1.0, self.whole)))
        return next((found for found in grids if found is not None), None)

    def find_overlooked(self, lags: Lags) -> np.ndarray:
        """Return whole lags where phi is not what its panels say, or not yet its limit beyond them."""
        if lags.taper < np.inf:
            return np.empty(0)
        x = np.arange(self.whole.size, dtype=np.float64)
        inside = x <= lags.reach
        expected = np.full(x.size, lags.atom)
        expected[inside] += lags.pieces(x[inside])
        (at,) = np.nonzero(np.abs(self.whole - expected) > max(_SEEN, 100.0 * lags.noise))
        return x[at]

    def search_multiples(self, overlooked: np.ndarray, level: float) -> Witness | None:
        """Look for a witness of points that lie multiples of the largest such value's lag apart."""
        if not overlooked.size:
            return None
        lag = float(overlooked[np.argmax(np.abs(self.whole[overlooked.astype(int)]))])
        return search_grid(self.phi(lag * np.arange(_MULTIPLES)), lag, level)


def survey(phi: Function, scale: float) -> Survey:
    """Evaluate phi at whole lags, and on grids in units of its scale."""
    fine = tuple((h, phi(h * np.arange(_FINE))) for h in (scale * _SPACINGS).tolist())
    return Survey(phi, phi(np.arange(WHOLE + 1.0)), fine)


def find_clusters(lags: np.ndarray) -> np.ndarray:
    """Return edges about runs of neighbouring whole lags, for panels that would overlook them."""
    breaks = np.nonzero(np.diff(lags) > 1.0)[0]
    starts, ends = lags[np.append(0, breaks + 1)], lags[np.append(breaks, lags.size - 1)]
    return np.unique(np.concatenate([starts[:_CLUSTERS] - 1.0, ends[:_CLUSTERS] + 1.0]))


def _cut_negligible(values: np.ndarray) -> np.ndarray:
    last = int(np.max(np.nonzero(np.abs(values) > _NEGLIGIBLE)[0], initial=0))
    return values[: max(64, min(2 * last, _LONGEST))]
