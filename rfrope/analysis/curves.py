"""Curves over lags: mean kernels, their closed forms, and the lags where they fall and return."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Any

import numpy as np

from rfrope._core import angles, array, parallel, sums
from rfrope._core.angles import Angles
from rfrope._core.arguments import positive, probability, whole
from rfrope._core.array import Array
from rfrope._core.special import log_uniform_mean_cos
from rfrope._core.sums import CosSin

_ROUNDED = 1e-15  # rounding of the direct sum of a mean cosine
_FREQUENCIES = 2**12  # frequencies whose tables are held at once
_COLUMNS = 512  # lags of a row of a scan, at most
_ROWS = (8, 128)  # rows in the first and in the largest parts of a scan: these fit into a core's cache


@array.select_device
def mean_kernel(lags: Array, frequencies: Array) -> Array:
    """Return the mean kernel of frequencies: the mean over the blocks of ``cos(lag . omega)``.

    It is the expected score of unit content that all blocks share equally, and its expectation is Phi.

    Parameters
    ----------
    lags : array_like, in units of position
        Lags: any shape ``P`` for frequencies ``(D,)``; ``(*P, k)`` for ``(*H, D, k)``, as positions in `rotate`.
        Integers count exactly up to 2**53.
    frequencies : array_like, radians per unit of position
        ``(D,)`` or ``(*H, D, k)``, with at least one block. ``(H, D, k)`` gives one curve for each head.

    Returns
    -------
    array
        ``P``, or the shape of ``lags @ frequencies^T`` without its last axis; float64 where the library has it.

    Raises
    ------
    ValueError
        If shapes do not fit, there are no blocks, or a value is NaN or infinite.
    TypeError
        If arrays are of different libraries, or a dtype is neither integer nor real floating.

    See Also
    --------
    analysis.log_uniform_kernel, analysis.similarity, plotting.mean_kernels

    Notes
    -----
    ``C(lag) = (1/D) sum_i cos(lag . omega_i)``: section 5 of the mathematics page, and the score of identical unit
    tokens in Zhao. Phases are exact, so the direct sum is within about 1e-15 for ``|lag . omega| <= 2**53`` (see
    `rotate` for libraries without float64). If a non-uniform fast Fourier transform is cheaper (many blocks at many
    lags, in up to three axes, on the CPU or a CUDA device) the result is within 1e-9.

    The curve of `geometric` is not that of its continuum: it turns negative far earlier.

    Examples
    --------
    >>> import rfrope
    >>> omega = rfrope.geometric(64, base=10_000.0)
    >>> mean_kernel([0, 1, 1706, 1707], omega).round(4)
    array([ 1.    ,  0.9702,  0.0011, -0.0078])
    """
    return sums.mean_cos(angles.read(lags, frequencies, name="lags", minimum=1))


@array.select_device
def log_uniform_kernel(lags: Array, base: float = 10_000.0, *, n_blocks: int | None = None) -> Array:
    """Return the continuum of standard RoPE, ``[Ci(m) - Ci(m / base)] / ln base``: its mean kernel for D to infinity.

    Parameters
    ----------
    lags : array_like, in units of position
        Lags m, any shape. Integers count exactly up to 2**53, or to 2**24 where the library has no float64.
    base : float
        Above 1.
    n_blocks : int, optional
        D. If given, adds the end correction ``(cos m - cos(m / base)) / (2 D)``, which brings the curve nearer to that
        of `geometric` with D blocks, for lags up to about ``3 D / ln base``.

    Returns
    -------
    array
        Same shape as `lags`; float64 where the library has it. Even in m, and 1 at 0.

    Raises
    ------
    ValueError
        If `base` is not above 1 and finite, `n_blocks` is below 1, or lags are NaN, infinite or above 2**500.
    TypeError
        If an argument is of another type, or a torch tensor requires gradients on a device without float64.

    See Also
    --------
    analysis.mean_kernel, analysis.first_negative_lag

    Notes
    -----
    Source: section 5 of the mathematics page; it is Phi of the kernel ``log_uniform(low=1/base, high=1)``. The
    frequencies of `geometric` are the upper ends of D equal shares of that law, and the correction is the first term of
    the Euler-Maclaurin formula for such a sum. It reduces the largest error at lags up to 16 from 0.016 to 0.003, for
    64 blocks and base 10000. From lag ``pi D / ln base`` on, where neighbouring blocks are more than half a turn apart,
    no term of that formula helps. The closed form itself is within 1e-13 for bases of at least 1.01, in float64.

    For ``1 << m << base`` it is ``1 - (gamma + ln m) / ln base``, gamma = 0.5772. The mean kernel of D blocks
    oscillates about it at large lags, and turns negative far earlier (see `first_negative_lag`).

    Examples
    --------
    >>> log_uniform_kernel([0, 1, 100, 10_000]).round(4)
    array([ 1.    ,  0.974 ,  0.4368, -0.0366])
    >>> import rfrope
    >>> at_5 = log_uniform_kernel(5.0), log_uniform_kernel(5.0, n_blocks=64), mean_kernel(5.0, rfrope.geometric(64))
    >>> [round(float(value), 4) for value in at_5]
    [0.742, 0.7364, 0.7373]
    """
    base = positive("base", base)
    if base <= 1.0:
        raise ValueError(f"base is {base}; expected a number above 1")
    n_blocks = None if n_blocks is None else whole("n_blocks", n_blocks, 1)
    xp, device = array.shared(lags=lags)
    lags = angles.read_numbers("lags", lags, xp, device)
    lags = xp.where(lags < 0.0, -lags, lags)  # its slope at 0 is not 0, so that second derivatives are right there

    def curve(m: Array, xp: ModuleType) -> Array:
        found = log_uniform_mean_cos(m / base, m, math.log(base), xp)
        return found if n_blocks is None else found + (xp.cos(m) - xp.cos(m / base)) / (2.0 * n_blocks)

    with np.errstate(over="ignore", under="ignore"):
        return array.map_blocks(curve, lags, xp)


@array.select_device
def first_negative_lag(frequencies: Array, max_lag: int) -> int | None:
    """Return the smallest whole lag at which the mean kernel is negative.

    At this lag, and at none before it, two tokens of the same content score less than two unrelated ones, averaged over
    contents. Single contents differ from the average.

    Parameters
    ----------
    frequencies : array_like, radians per position
        One set: ``(D,)``, or ``(D, 1)``, with at least one block.
    max_lag : int, in positions
        Largest lag to examine.

    Returns
    -------
    int or None
        A lag from 1 to `max_lag`; None if the mean kernel is nowhere negative there.

    Raises
    ------
    ValueError
        If there are several heads or axes (call it for each), there are no blocks, a frequency is NaN or infinite, or
        `max_lag` is negative.
    TypeError
        If `max_lag` is not a whole number, or a frequency is not a real number.

    See Also
    --------
    analysis.base_for_context, analysis.mean_kernel

    Notes
    -----
    The sign is that of the exact sum: lags are scanned by matrix products, and values too close to 0 are summed again
    directly. A mean within 1e-15 of 0, which even then is lost in rounding, counts as 0. Phases are exact for
    ``lag * frequency <= 2**53``.

    The integral rule ``base = 1.622 max_lag`` promises far more than the sum keeps: see `base_for_context`.

    Examples
    --------
    >>> import rfrope
    >>> [first_negative_lag(rfrope.geometric(64, base=base), 2**20) for base in (1e4, 1.5e5, 5e5, 1e6)]
    [1707, 10791, 18438, 27115]
    >>> first_negative_lag(rfrope.geometric(64, base=5e5), 8192) is None
    True
    """
    return first_lag(one_set(frequencies), 1, whole("max_lag", max_lag), 0.0, below=True)


@array.select_device
def aliasing_distance(frequencies: Array, max_lag: int, *, threshold: float = 0.9) -> int | None:
    """Return the first whole lag at which the mean kernel returns to `threshold` after falling below it.

    A token at that distance looks near: two positions that far apart are nearly the same to the head.

    Parameters
    ----------
    frequencies : array_like, radians per position
        One set: ``(D,)``, or ``(D, 1)``, with at least one block.
    max_lag : int, in positions
        Largest lag to examine.
    threshold : float
        Between 0 and 1.

    Returns
    -------
    int or None
        A lag from 2 to `max_lag`; None if the mean kernel does not fall below `threshold` and return there.

    Raises
    ------
    ValueError
        See `first_negative_lag`. Also if `threshold` is not between 0 and 1.
    TypeError
        See `first_negative_lag`. Also if `threshold` is not a number.

    See Also
    --------
    analysis.mean_kernel, analysis.wavelengths

    Notes
    -----
    As exact as `first_negative_lag`: a mean within 1e-15 of `threshold` counts as equal to it. A lattice of
    frequencies, as from `arithmetic`, returns to 1 after each ``2 pi / step``; frequencies with irrational ratios, as
    from `geometric`, come near 1 again only after very long distances.

    Examples
    --------
    >>> import math, rfrope
    >>> aliasing_distance(rfrope.arithmetic(8, step=2.0 * math.pi / 100.0), 1000, threshold=0.98)
    100
    >>> aliasing_distance(rfrope.geometric(64), 2**20) is None
    True
    """
    level = probability("threshold", threshold)
    omega, last = one_set(frequencies), whole("max_lag", max_lag)
    fallen = first_lag(omega, 1, last, level, below=True)
    return None if fallen is None else first_lag(omega, fallen + 1, last, level, below=False)


def first_lag(omega: np.ndarray, start: int, stop: int, level: float, *, below: bool) -> int | None:
    """Return the first lag from `start` to `stop` with a mean kernel below a level, or not below it, or None.

    `omega` is ``(D,)`` of NumPy. Values within 1e-15 of the level count as equal to it. Lags are scanned in growing
    parts by matrix products; where these are too close to tell, within some 1e-14, the direct sum decides.
    """
    level -= _ROUNDED
    doubt = 1e-14 + 4e-16 * len(omega)  # every term of a product is rounded, and so is each partial sum of them
    for first, means in scan_lags(omega, start, stop):
        if (np.min(means) > level + doubt) if below else (np.max(means) < level - doubt):
            continue
        sure = np.flatnonzero(means < level - doubt if below else means > level + doubt)
        end = int(sure[0]) if sure.size else len(means)
        open_ = np.flatnonzero(np.abs(means[:end] - level) <= doubt)
        for group in (first + open_[span] for span in sums.parts(len(open_), 4 * len(omega))):
            exact = _table(group, omega).mean_cos()
            hits = np.flatnonzero(exact < level if below else exact >= level)
            if hits.size:
                return int(group[hits[0]])
        if sure.size:
            return first + end
    return None


def scan_lags(omega: np.ndarray, start: int, stop: int) -> Iterable[tuple[int, np.ndarray]]:
    """Yield parts of the lags from `start` to `stop`: first lag, and mean kernel, valid until the next part.

    On a terminal the number of scanned parts is shown after two seconds.
    """
    return parallel.show_progress(_scanned(omega, start, stop), None, None)


def _scanned(omega: np.ndarray, start: int, stop: int) -> Iterator[tuple[int, np.ndarray]]:
    """``cos((a + b) omega)`` for some a, far apart, and all b between is one product of their tables of cos and sin."""
    columns = min(_COLUMNS, max(16, 1 << (max(0, stop - start).bit_length() // 2)))
    rows, most = _ROWS
    out, parts = np.empty((most, columns)), range(0, len(omega), _FREQUENCIES)
    kept = _table(np.arange(float(columns)), omega) if len(parts) == 1 else None
    while start <= stop:
        parallel.raise_if_abandoned()
        length = min(rows * columns, stop - start + 1)
        lags = start + columns * np.arange(float(-(-length // columns)))
        means = out[: len(lags)]
        means[:] = 0.0
        for index in parts:
            part = omega[index : index + _FREQUENCIES]
            near = _table(np.arange(float(columns)), part) if kept is None else kept
            means += sums.sum_on_grid(_table(lags, part), near, 1.0 / len(omega))
        yield start, means.reshape(-1)[:length]
        start, rows = start + length, min(2 * rows, most)


def _table(lags: np.ndarray, omega: np.ndarray) -> CosSin:
    """CosSin of lags times frequencies ``(D,)``."""
    return CosSin.from_angles(Angles(lags[:, None], omega[:, None], None, np))


def one_set(frequencies: Any) -> np.ndarray:
    """Return one set of frequencies of one axis as a NumPy array ``(D,)``."""
    return np.asarray(angles.read_on_host(frequencies, shapes="one axis")[:, 0])
