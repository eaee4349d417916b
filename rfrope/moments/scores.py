"""Closed forms of the score's expectation and variance over random frequencies, and bands of mean kernels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from rfrope._core import angles, array, blocks, sums
from rfrope._core.arguments import positive, probability, whole
from rfrope._core.array import Array
from rfrope._core.results import Result
from rfrope._core.turns import phases
from rfrope.designs.covariances import Pairs, pair_covariances
from rfrope.designs.optimising import read_range
from rfrope.kernels import Kernel
from rfrope.kernels.registry import read_kernel

_UNKNOWN = 2.0**-50  # variance of one block that rounding of Phi and Phi_2 leaves unknown


@dataclass(frozen=True)
class Band(Result):
    """Interval of the mean kernel of independent draws, lag by lag.

    Attributes
    ----------
    value : array, float64 where the library has it
        Expectation, Phi.
    stderr : array
        Standard deviation over draws of all frequencies.
    lower, upper : array
        Ends of an interval within -1 and 1 that contains it at any one lag with probability `confidence`.
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
    """Return the expected attention score ``E S = (q . k) Phi(lag)``, before scaling and softmax.

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
        Features that form a block.

    Returns
    -------
    array, float64 where the library has it
        Broadcast shape of the arguments.

    Raises
    ------
    ValueError, TypeError
        If shapes do not fit, features are not real floating, or the kernel is invalid.

    See Also
    --------
    score_variance, estimate_scores, scores

    Notes
    -----
    Source: Theorem 2 of the RF-RoPE paper, which requires identical symmetric marginals, not independent blocks.

    Examples
    --------
    >>> expected_score([1.0, 2.0], [3.0, 1.0], [0.0, 32.0], "gaussian(scale=32)").round(4)
    array([5.    , 3.0327])
    """
    return content_mean(*_read(q, k, lags, kernel, pairing))


@array.select_device
def score_variance(
    q: Array, k: Array, lags: Array, kernel: Kernel | str, *, pairing: str = "half", design: Any = "iid"
) -> Array:
    """Return the variance of the attention score over the frequencies of a design.

    Parameters
    ----------
    q, k, lags, kernel, pairing
        See `expected_score`.
    design : str, Rope or array_like
        A name that `sample` accepts, if its pairs of blocks have an exact covariance (`polar_variance` lists
        them), or the frequencies ``(D,)`` or ``(D, ndim)`` of one set, assigned to the blocks in random order.

    Returns
    -------
    array, float64 where the library has it
        Broadcast shape of the arguments. For designs other than "iid", computed on the host.

    Raises
    ------
    ValueError, TypeError
        See `expected_score`. Also if no exact form is known for the design; the message lists those with one.

    See Also
    --------
    expected_score, blocks_for_error

    Notes
    -----
    ``Var S = sum_i (A_i^2 + B_i^2)/2 + (A_i^2 - B_i^2)/2 Phi_2 - A_i^2 Phi^2``: Proposition 4 of the RF-RoPE paper, for
    INDEPENDENT blocks (design "iid") only. It is computed from ``E (1 - cos u)`` and ``E (1 - cos u)^2``, which are
    accurate at lags small against the scale. For kernels of your own that define nothing but Phi, and those of
    ``rfrope.bochner``, the error there is about ``1e-15 sum (A_i^2 + B_i^2)``.

    Examples
    --------
    >>> score_variance([1.0, 2.0], [3.0, 1.0], [0.0, 1000.0], "gaussian(scale=32)").round(4)
    array([ 0., 25.])
    """
    return variance_and_mean(*_read(q, k, lags, kernel, pairing), design)[0]


@array.select_device
def relative_error(
    q: Array, k: Array, lags: Array, kernel: Kernel | str, *, pairing: str = "half", design: Any = "iid"
) -> Array:
    """Return the standard deviation of the score over its mean, ``sqrt(Var S) / (abs(q . k) abs(Phi))``.

    It shrinks like D^(-1/2) if q . k grows like D and Phi is not near 0. On real q and k it is often far above 1 away
    from lag 0: one draw of the frequencies then says little about the kernel.

    Parameters
    ----------
    q, k, lags, kernel, pairing, design
        See `score_variance`. The mean is always the kernel's, also for one set of frequencies.

    Returns
    -------
    array, float64 where the library has it
        Broadcast shape of the arguments; infinite where only the mean is 0, 0 where the variance is, too.

    Raises
    ------
    ValueError, TypeError
        See `expected_score`.

    See Also
    --------
    score_variance, blocks_for_error

    Examples
    --------
    >>> relative_error([1.0, 2.0], [3.0, 1.0], [0.0, 32.0], "gaussian(scale=32)").round(4)
    array([0.    , 1.3108])
    """
    return root_mean_square_ratio(*_read(q, k, lags, kernel, pairing), design)


@array.select_device
def mean_kernel_band(lags: Array, kernel: Kernel | str, *, n_blocks: int, confidence: float = 0.95) -> Band:
    """Return a pointwise band of ``Phi_D(lag) = (1/D) sum_i cos(lag . omega_i)`` over independent draws.

    Parameters
    ----------
    lags : array_like, in units of position
        Lags: any shape for a kernel with one axis, ``(..., ndim)`` with more.
    kernel : Kernel or str
        Law of the frequencies; a string is read by `rfrope.kernels.parse`.
    n_blocks : int
        D, at least 1.
    confidence : float
        Probability, between 0 and 1, that the band contains Phi_D at ONE lag. For all lags of a range use
        ``1 - (1 - confidence) / n_lags``, or see `blocks_for_error`.

    Returns
    -------
    Band

    Raises
    ------
    ValueError, TypeError
        If the kernel, lags or numbers are not as described above.

    See Also
    --------
    moments.Band, analysis.mean_kernel, plotting.kernel

    Notes
    -----
    ``Var Phi_D = ((1 + Phi_2)/2 - Phi^2) / D``: section 2 of the mathematics page, for independent blocks (design
    "iid"). For "stratified" in one axis it is at most 33/32 of that at any lag, for up to 32768 blocks, and much less
    at near lags. Other designs may have more: "antithetic" twice as much at every lag; "stratified" in several axes,
    "sobol" of several uniforms, "halton" and "orthogonal" more at some lags; "shifted" and "balanced" far more at some
    distant ones (docs/howto/designs.rst has figures). Near lag 0, where the variance vanishes, rounding dominates:
    `stderr` is at least ``3e-8 / sqrt(D)`` except at 0. The interval is that of the normal approximation, fair from
    some tens of blocks on.

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
    """Return the number of blocks with which the mean kernel of independent draws stays within `error` of Phi.

    Parameters
    ----------
    kernel : Kernel or str
        Only its number of axes matters: the bound holds for every law.
    max_lag : int or sequence of int
        Largest lag in units of position, at least 1, one for all axes or one for each.
    error : float
        Positive; largest error over all whole lags of the range.
    confidence : float
        Probability, between 0 and 1, that no lag has a larger error.

    Returns
    -------
    int
        D.

    Raises
    ------
    ValueError, TypeError
        If the kernel or a number is not as described above.

    See Also
    --------
    score_variance, moments.relative_error

    Notes
    -----
    ``D >= 2 ln(2 M / (1 - confidence)) / error^2`` with M lags, one of each pair +-lag (Hoeffding's
    inequality and the union bound; section 2 of the mathematics page). This is safe, not sharp: within some scales of
    the kernel the designs "stratified" and "optimised" need far fewer blocks (docs/howto/designs.rst).

    Examples
    --------
    >>> blocks_for_error("gaussian(scale=32)", max_lag=1024, error=0.1)
    2125
    """
    kernel, confidence = read_kernel(kernel), probability("confidence", confidence)
    error = positive("error", error)
    lags = (math.prod(2 * m + 1 for m in read_range(kernel, max_lag)) - 1) // 2
    blocks = 2.0 * (math.log(2.0 * lags) - math.log1p(-confidence)) / error / error  # Hoeffding, and a union bound
    if not blocks < 2.0**62:
        raise ValueError(f"error is {error}; expected an error that fewer than 2**62 blocks reach")
    return max(1, math.ceil(blocks))


def _read(q: Array, k: Array, lags: Array, kernel: Kernel | str, pairing: str) -> tuple[Content, Kernel]:
    """Read the contents of a call, and its kernel."""
    kernel = read_kernel(kernel)
    vectors, xp, device = angles.lags(lags, kernel.ndim, law=kernel, q=q, k=k)
    a, b, _ = blocks.content(q, k, xp, device, pairing)
    array.broadcast_shapes({"q and k": a.shape[:-1], "lags": vectors.shape[:-1]})
    return Content(a, b, vectors, xp), kernel


class Content(NamedTuple):
    """Coefficients of the score ``sum_i A_i cos u_i + B_i sin u_i``, ``(..., D)``, and lags."""

    cosine: Array
    sine: Array
    lags: Array
    xp: ModuleType


def content_mean(content: Content, law: Kernel) -> Array:
    """Return the expected score of block coefficients A ``(..., D)`` at lags ``(..., ndim)``."""
    a, _, lags, xp = content
    return xp.sum(a, axis=-1) * law.phi_of_vectors(lags, xp)


def content_variance(content: Content, law: Kernel) -> Array:
    """Return the variance of the score of block coefficients A and B over independent frequencies."""
    a, b, lags, xp = content
    a_squared, b_squared = xp.sum(a * a, axis=-1), xp.sum(b * b, axis=-1)
    fall, square = law.one_minus_cos_moments(lags, xp)
    variance = a_squared * (square - fall * fall) + b_squared * (2.0 * fall - square)
    return array.clip(variance, 0.0, None, xp)


def variance_and_mean(content: Content, law: Kernel, design: Any) -> tuple[Array, Array | None]:
    """Return the variance of the score over the frequencies of a design, and its mean if that is not the kernel's."""
    if not isinstance(design, str):
        return _permuted_mean_variance(content, law, design)
    variance = content_variance(content, law)
    lags = np.reshape(_host_lags(content), (-1, law.ndim)) if design != "iid" else np.empty((0, law.ndim))
    pairs = pair_covariances(law, design, content.cosine.shape[-1], lags)
    if pairs is not None:
        variance = array.clip(variance + _add_covariances(content, pairs), 0.0, None, content.xp)
    return variance, None


def root_mean_square_ratio(content: Content, law: Kernel, design: Any) -> Array:
    """Root mean square of the score less its mean over the kernel, divided by that mean; infinite where it is 0."""
    xp, mean = content.xp, content_mean(content, law)
    variance, own = variance_and_mean(content, law, design)
    error = sums.root(variance if own is None else variance + (own - mean) ** 2, xp)
    none = mean == 0.0
    ratio = error / xp.abs(xp.where(none, xp.ones_like(mean), mean))
    return xp.where(none & (error > 0.0), xp.full_like(ratio, math.inf), ratio)


def _host_lags(content: Content) -> np.ndarray:
    lags = content.lags
    if array.needs_gradient(lags):
        raise TypeError("lags require a gradient, which only design 'iid' has; expected lags without")
    return array.to_host(lags, "lags").astype(np.float64, copy=False)


def _add_covariances(content: Content, pairs: Pairs) -> Array:
    """Sum of covariances over the pairs of blocks, both orders."""
    xp, shape = content.xp, content.lags.shape[:-1]
    device = array.device(content.lags)
    total: Array = 0.0
    columns = array.from_host(np.ascontiguousarray(pairs.rows.T), xp, device=device)
    for values, covariances in ((content.cosine, pairs.cosine), (content.sine, pairs.sine)):
        if not np.any(covariances):
            continue

        both = xp.matmul(values, columns) ** 2 - xp.matmul(values * values, columns * columns)
        weights = array.from_host(covariances.reshape(*shape, len(pairs.rows)), xp, device=device)
        total = total + xp.sum(both * weights, axis=-1)
    return total


def _permuted_mean_variance(content: Content, law: Kernel, design: Any) -> tuple[Array, Array]:
    """Variance and mean over all orders of a set of frequencies: sums over the set (Hoeffding 1951)."""
    xp, n_blocks = content.xp, content.cosine.shape[-1]
    omega = angles.read_on_host(design, "design", shapes="one")
    if omega.shape != (n_blocks, law.ndim):
        raise ValueError(
            f"design has {len(omega)} frequencies of {omega.shape[-1]} axes, but q and k have {n_blocks} magnitudes "
            f"and {law!r} {law.ndim} axes; expected one frequency for each magnitude"
        )
    lags = _host_lags(content)

    u = phases(angles.Angles(lags, omega, None, np))
    fall, sine = 2.0 * np.sin(0.5 * u) ** 2, np.sin(u)
    means = [np.mean(x, axis=-1) for x in (fall, sine)]
    fall, sine = fall - means[0][..., None], sine - means[1][..., None]
    device = array.device(content.lags)
    ways = [np.mean(x * y, axis=-1) for x, y in ((fall, fall), (sine, sine), (-fall, sine))]
    of_fall, of_sine, of_both, deficit, mean_sine = (array.from_host(x, xp, device=device) for x in (*ways, *means))
    a, b = content.cosine, content.sine
    total_a, total_b = xp.sum(a, axis=-1), xp.sum(b, axis=-1)
    own = total_a * (1.0 - deficit) + total_b * mean_sine
    a, b = a - total_a[..., None] / float(n_blocks), b - total_b[..., None] / float(n_blocks)
    squares = xp.sum(a * a, axis=-1) * of_fall + xp.sum(b * b, axis=-1) * of_sine
    variance = (squares + 2.0 * xp.sum(a * b, axis=-1) * of_both) * (n_blocks / max(n_blocks - 1.0, 1.0))
    return array.clip(variance, 0.0, None, xp), own
