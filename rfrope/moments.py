"""Closed forms: the score's expectation and variance over random frequencies, for given q and k."""

from __future__ import annotations

import math
from types import ModuleType

from rfrope import _array
from rfrope._array import Array
from rfrope.kernels import Kernel
from rfrope.rotation import block_coefficients
from rfrope.sampling import as_kernel


@_array.on_device_of_arrays
def expected_score(q: Array, k: Array, delta: Array, kernel: Kernel | str, *, pairing: str = "half") -> Array:
    """Expected attention score ``E S = (q . k) Phi(delta)``, before softmax and without its scale.

    Parameters
    ----------
    q, k : array_like, (..., d)
        Query and key before rotation, d even.
    delta : array_like, in units of position
        Lags, KEY minus QUERY: ``(...)`` for a kernel with one axis, ``(..., ndim)`` with more. Their shape broadcasts
        against the leading axes of q and k.
    kernel : Kernel or str
        Law of the frequencies; a string is read by `rfrope.kernels.parse`.
    pairing : {"half", "interleaved"}
        Which two features make a block.

    Returns
    -------
    array, float64 where the library has it
        The broadcast shape.

    Raises
    ------
    ValueError, TypeError
        For shapes that do not fit, features that are not real floating, or a kernel that cannot be read.

    Notes
    -----
    Source: Theorem 2 of seed 000. It needs identical symmetric marginals only, not independent blocks.

    Examples
    --------
    >>> expected_score([1.0, 2.0], [3.0, 1.0], [0.0, 32.0], "gaussian(scale=32)").round(4)
    array([5.    , 3.0327])
    """
    a, _, phi, _, xp = _prepare(q, k, delta, kernel, pairing)
    return xp.sum(a, axis=-1) * phi


@_array.on_device_of_arrays
def score_variance(q: Array, k: Array, delta: Array, kernel: Kernel | str, *, pairing: str = "half") -> Array:
    """Variance of the attention score over independent frequencies, one for each block.

    Parameters
    ----------
    q, k, delta, kernel, pairing
        As in `expected_score`.

    Returns
    -------
    array, float64 where the library has it
        The broadcast shape.

    Raises
    ------
    ValueError, TypeError
        As `expected_score`.

    Notes
    -----
    ``Var S = sum_i (A_i^2 + B_i^2)/2 + (A_i^2 - B_i^2)/2 Phi_2 - A_i^2 Phi^2``: Proposition 4 of seed 000, for
    INDEPENDENT blocks (design "iid") only. Very near lag 0, where the variance vanishes, it is good to about
    ``1e-15 sum A_i^2``.

    Examples
    --------
    >>> score_variance([1.0, 2.0], [3.0, 1.0], [0.0, 1000.0], "gaussian(scale=32)").round(4)
    array([ 0., 25.])
    """
    a, b, phi, phi2, xp = _prepare(q, k, delta, kernel, pairing)
    a_squared, b_squared = xp.sum(a * a, axis=-1), xp.sum(b * b, axis=-1)
    variance = a_squared * (0.5 * (1.0 + phi2) - phi * phi) + b_squared * (0.5 * (1.0 - phi2))
    return _array.clip(variance, 0.0, None, xp)


@_array.on_device_of_arrays
def relative_error(q: Array, k: Array, delta: Array, kernel: Kernel | str, *, pairing: str = "half") -> Array:
    """Standard deviation of the score over its mean, ``sqrt(Var S) / (abs(q . k) abs(Phi))``.

    It shrinks like D^(-1/2) when q . k grows like D and Phi is not near 0. On real q and k it is often far above 1
    away from lag 0: one draw of the frequencies then says little about the kernel.

    Parameters
    ----------
    q, k, delta, kernel, pairing
        As in `expected_score`.

    Returns
    -------
    array, float64 where the library has it
        The broadcast shape; infinite where the mean is 0 but the variance is not, 0 where both are.

    Raises
    ------
    ValueError, TypeError
        As `expected_score`.

    Examples
    --------
    >>> relative_error([1.0, 2.0], [3.0, 1.0], [0.0, 32.0], "gaussian(scale=32)").round(4)
    array([0.    , 1.3108])
    """
    mean = expected_score(q, k, delta, kernel, pairing=pairing)
    deviation = score_variance(q, k, delta, kernel, pairing=pairing) ** 0.5
    xp = _array.namespace(mean=mean)
    none = mean == 0.0
    ratio = deviation / xp.abs(xp.where(none, xp.ones_like(mean), mean))
    return xp.where(none & (deviation > 0.0), xp.full_like(ratio, math.inf), ratio)


def _prepare(
    q: Array, k: Array, delta: Array, kernel: Kernel | str, pairing: str
) -> tuple[Array, Array, Array, Array, ModuleType]:
    """Block coefficients in float64, Phi and Phi_2, all of one library and broadcastable."""
    kernel = as_kernel(kernel)
    xp = _array.namespace(q=q, k=k, delta=delta)
    q, k = (_array.asarray(v, xp, name=name) for v, name in ((q, "q"), (k, "k")))
    delta = _array.asarray(delta, xp, name="delta", device=_array.device(q))
    q, k = (_array.as_widest(v, xp) if _array.is_real_floating(v) else v for v in (q, k))
    a, b = block_coefficients(q, k, pairing=pairing)
    phi, phi2 = kernel.phi(delta), kernel.phi2(delta)
    _array.broadcast_shapes({"q and k": a.shape[:-1], "delta": phi.shape})
    return a, b, phi, phi2, xp
