"""Closed forms: the score's expectation and variance over random frequencies, and bands of mean kernels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from types import ModuleType

from rfrope._core import angles, array, blocks, sums
from rfrope._core.arguments import positive, probability, whole
from rfrope._core.array import Array
from rfrope._core.results import Result
from rfrope.designs.optimising import read_range
from rfrope.kernels import Kernel
from rfrope.kernels.text import read_kernel

__all__ = ["Band", "blocks_for_error", "expected_score", "mean_kernel_band", "relative_error", "score_variance"]

_UNKNOWN = 2.0**-50  # variance of one block that rounding of Phi and Phi_2 leaves unknown


@dataclass(frozen=True)
class Band(Result):
    """Interval of the mean kernel of independent draws, lag by lag.

    Attributes
    ----------
    value : array, float64 where the library has it
        Its expectation, Phi.
    stderr : array
        Its standard deviation over draws of all frequencies.
    lower, upper : array
        An interval, within -1 and 1, that holds it at any one lag with probability `confidence`.
    confidence : float

    See Also
    --------
    moments.mean_kernel_band

    Examples
    --------
    >>> import rfrope
    >>> band = rfrope.moments.mean_kernel_band([0.0, 8.0], "gaussian(scale=8)", n_blocks=32)
    >>> band.value.round(3), band.stderr.round(3)
    (array([1.   , 0.607]), array([0.   , 0.079]))
    """

    value: Array
    stderr: Array
    lower: Array
    upper: Array
    confidence: float


@array.select_device
def expected_score(q: Array, k: Array, lags: Array, kernel: Kernel | str, *, pairing: str = "half") -> Array:
    """Expected attention score ``E S = (q . k) Phi(lag)``, before softmax and without its scale.

    Parameters
    ----------
    q, k : array_like, (..., d)
        Query and key before rotation, d even.
    lags : array_like, in units of position
        Lags, KEY minus QUERY: ``(...)`` for a kernel with one axis, ``(..., ndim)`` with more. Their shape broadcasts
        against the leading axes of q and k.
    kernel : Kernel or str
        Law of the frequencies; a string is read by `rfrope.kernels.parse`.
    pairing : {"half", "interleaved"}
        The two features that make a block.

    Returns
    -------
    array, float64 where the library has it
        The broadcast shape.

    Raises
    ------
    ValueError, TypeError
        For shapes that do not fit, features that are not real floating, or a kernel that cannot be read.

    See Also
    --------
    score_variance, estimate_scores, scores

    Notes
    -----
    Source: Theorem 2 of the RF-RoPE paper. It needs identical symmetric marginals only, not independent blocks.

    Examples
    --------
    >>> expected_score([1.0, 2.0], [3.0, 1.0], [0.0, 32.0], "gaussian(scale=32)").round(4)
    array([5.    , 3.0327])
    """
    a, _, kernel, lags, xp = _prepare(q, k, lags, kernel, pairing)
    return content_mean(a, kernel, lags, xp)


@array.select_device
def score_variance(q: Array, k: Array, lags: Array, kernel: Kernel | str, *, pairing: str = "half") -> Array:
    """Variance of the attention score over independent frequencies, one for each block.

    Parameters
    ----------
    q, k, lags, kernel, pairing
        As in `expected_score`.

    Returns
    -------
    array, float64 where the library has it
        The broadcast shape.

    Raises
    ------
    ValueError, TypeError
        As `expected_score`.

    See Also
    --------
    expected_score, blocks_for_error

    Notes
    -----
    ``Var S = sum_i (A_i^2 + B_i^2)/2 + (A_i^2 - B_i^2)/2 Phi_2 - A_i^2 Phi^2``: Proposition 4 of the RF-RoPE paper, for
    INDEPENDENT blocks (design "iid") only. It is computed from ``E (1 - cos u)`` and ``E (1 - cos u)^2``, which keep
    their digits at lags that are small against the scale. For kernels of your own that state nothing but Phi, and those
    of ``rfrope.bochner``, it is accurate to about ``1e-15 sum (A_i^2 + B_i^2)`` there.

    Examples
    --------
    >>> score_variance([1.0, 2.0], [3.0, 1.0], [0.0, 1000.0], "gaussian(scale=32)").round(4)
    array([ 0., 25.])
    """
    a, b, kernel, lags, xp = _prepare(q, k, lags, kernel, pairing)
    return content_variance(a, b, kernel, lags, xp)


@array.select_device
def relative_error(q: Array, k: Array, lags: Array, kernel: Kernel | str, *, pairing: str = "half") -> Array:
    """Standard deviation of the score over its mean, ``sqrt(Var S) / (abs(q . k) abs(Phi))``.

    It shrinks like D^(-1/2) when q . k grows like D and Phi is not near 0. On real q and k it is often far above 1
    away from lag 0: one draw of the frequencies then says little about the kernel.

    Parameters
    ----------
    q, k, lags, kernel, pairing
        As in `expected_score`.

    Returns
    -------
    array, float64 where the library has it
        The broadcast shape; infinite where the mean is 0 but the variance is not, 0 where both are.

    Raises
    ------
    ValueError, TypeError
        As `expected_score`.

    See Also
    --------
    score_variance, blocks_for_error

    Examples
    --------
    >>> relative_error([1.0, 2.0], [3.0, 1.0], [0.0, 32.0], "gaussian(scale=32)").round(4)
    array([0.    , 1.3108])
    """
    a, b, kernel, lags, xp = _prepare(q, k, lags, kernel, pairing)
    mean, deviation = content_mean(a, kernel, lags, xp), sums.root(content_variance(a, b, kernel, lags, xp), xp)
    none = mean == 0.0
    ratio = deviation / xp.abs(xp.where(none, xp.ones_like(mean), mean))
    return xp.where(none & (deviation > 0.0), xp.full_like(ratio, math.inf), ratio)


@array.select_device
def mean_kernel_band(lags: Array, kernel: Kernel | str, *, n_blocks: int, confidence: float = 0.95) -> Band:
    """Pointwise band of ``Phi_D(lag) = (1/D) sum_i cos(lag . omega_i)`` over independent draws of the frequencies.

    Parameters
    ----------
    lags : array_like, in units of position
        Lags: any shape for a kernel with one axis, ``(..., ndim)`` with more.
    kernel : Kernel or str
        Law of the frequencies; a string is read by `rfrope.kernels.parse`.
    n_blocks : int
        D, at least 1.
    confidence : float
        Probability, between 0 and 1, that the band holds Phi_D at ONE lag. For all lags of a range at once give
        ``1 - (1 - confidence) / n_lags``, or see `blocks_for_error`.

    Returns
    -------
    Band

    Raises
    ------
    ValueError, TypeError
        For a kernel, lags or numbers that are not as above.

    See Also
    --------
    moments.Band, analysis.mean_kernel, plotting.kernel

    Notes
    -----
    ``Var Phi_D = ((1 + Phi_2)/2 - Phi^2) / D``: section 2 of the mathematics page, for independent blocks (design
    "iid"). With "stratified" in one axis it is at any lag at most 33/32 of that, for up to 32768 blocks, and much less
    at near lags. Other designs may have more: "antithetic" has twice as much at every lag; "stratified" in several
    axes, "sobol" of several uniforms, "halton" and "orthogonal" may have more at some lags, "shifted" and "balanced"
    far more at some distant ones (docs/designs.rst says how much). Near lag 0, where it vanishes, rounding leaves the
    difference unknown: `stderr` is not taken to be below ``3e-8 / sqrt(D)`` but at 0. The interval is that of the
    normal approximation, fair from some tens of blocks on.

    Examples
    --------
    >>> band = mean_kernel_band([0.0, 32.0, 1000.0], "gaussian(scale=32)", n_blocks=64)
    >>> band.stderr.round(4)
    array([0.    , 0.0559, 0.0884])
    >>> band.lower.round(3), band.upper.round(3)
    (array([ 1.   ,  0.497, -0.173]), array([1.   , 0.716, 0.173]))
    """
    kernel, n_blocks = read_kernel(kernel), whole("n_blocks", n_blocks, 1)
    confidence = probability("confidence", confidence)
    vectors, xp, _ = angles.lags(lags, kernel.ndim, law=kernel)
    lags = kernel.restore_shape(vectors)
    phi, phi2 = kernel.phi(lags), kernel.phi2(lags)
    variance = array.clip(0.5 * (1.0 + phi2) - phi * phi, _UNKNOWN, None, xp)
    at_zero = xp.all(vectors == 0.0, axis=-1)
    stderr = sums.root(xp.where(at_zero, xp.zeros_like(variance), variance) / float(n_blocks), xp)
    reach = NormalDist().inv_cdf(0.5 + 0.5 * confidence) * stderr
    return Band(phi, stderr, array.clip(phi - reach, -1.0, 1.0, xp), array.clip(phi + reach, -1.0, 1.0, xp), confidence)


def blocks_for_error(
    kernel: Kernel | str, *, max_lag: int | Sequence[int], error: float, confidence: float = 0.95
) -> int:
    """Blocks with which the mean kernel of independent draws stays within `error` of Phi, at all lags of a range.

    Parameters
    ----------
    kernel : Kernel or str
        Only its number of axes matters: the bound holds for every law.
    max_lag : int or sequence of int
        Largest lag in units of position, at least 1, one number or one for each axis. Whole lags count.
    error : float
        Positive.
    confidence : float
        Probability, between 0 and 1, that no lag is off by more.

    Returns
    -------
    int
        D.

    Raises
    ------
    ValueError, TypeError
        For a kernel or numbers that are not as above.

    See Also
    --------
    score_variance, moments.relative_error

    Notes
    -----
    ``D >= 2 ln(2 M / (1 - confidence)) / error^2`` with M lags, one of each pair +-lag (Hoeffding's inequality and the
    union bound; section 2 of the mathematics page). It is safe, not sharp: within some scales of the kernel the designs
    "stratified" and "optimised" need far fewer blocks (docs/designs.rst).

    Examples
    --------
    >>> blocks_for_error("gaussian(scale=32)", max_lag=1024, error=0.1)
    2125
    """
    kernel, confidence = read_kernel(kernel), probability("confidence", confidence)
    error = positive("error", error)
    blocks = hoeffding(read_range(kernel, max_lag), confidence) / error / error
    if not blocks < 2.0**62:
        raise ValueError(f"error is {error}; expected one that fewer than 2**62 blocks can reach")
    return max(1, math.ceil(blocks))


def hoeffding(max_lag: Sequence[int], confidence: float) -> float:
    """Blocks times the square of the error that independent draws keep at all lags of a range."""
    lags = (math.prod(2 * m + 1 for m in max_lag) - 1) // 2
    return 2.0 * (math.log(2.0 * lags) - math.log1p(-confidence))


def _prepare(
    q: Array, k: Array, lags: Array, kernel: Kernel | str, pairing: str
) -> tuple[Array, Array, Kernel, Array, ModuleType]:
    """Block coefficients in float64, a kernel and its lags ``(..., ndim)``, of one library and broadcastable."""
    kernel = read_kernel(kernel)
    vectors, xp, device = angles.lags(lags, kernel.ndim, law=kernel, q=q, k=k)
    a, b, _ = blocks.content(q, k, xp, device, pairing)
    shape = array.broadcast_shapes({"q and k": a.shape[:-1], "lags": vectors.shape[:-1]})
    array.check_memory(48.0, shape, vectors, "q, k or lags")
    return a, b, kernel, vectors, xp


def content_mean(a: Array, kernel: Kernel, lags: Array, xp: ModuleType) -> Array:
    """Expected score of block coefficients A ``(..., D)`` at lags ``(..., ndim)``."""
    return xp.sum(a, axis=-1) * kernel.phi_of_vectors(lags, xp)


def content_variance(a: Array, b: Array, kernel: Kernel, lags: Array, xp: ModuleType) -> Array:
    """Variance of the score of block coefficients A and B over independent frequencies."""
    a_squared, b_squared = xp.sum(a * a, axis=-1), xp.sum(b * b, axis=-1)
    fall, square = kernel.deficits(lags, xp)
    variance = a_squared * (square - fall * fall) + b_squared * (2.0 * fall - square)
    return array.clip(variance, 0.0, None, xp)
