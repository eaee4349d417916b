"""Polar scores ``sum_i m_i m'_i cos(lag . omega_i + delta_i)``: mean, variance and concentration.

Coefficients are products of magnitudes, so none is negative: the mean over frequencies grows with the number of blocks
and the deviation with its root, and one draw is near the mean for every pair of contents (docs/explain/limits.rst).
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from rfrope._core import angles, array, blocks
from rfrope._core.array import Array
from rfrope.kernels import Kernel
from rfrope.kernels.registry import read_kernel
from rfrope.moments.scores import Content, content_mean, root_mean_square_ratio, variance_and_mean


@array.select_device
def polar_score(q: Array, k: Array, lags: Array, kernel: Kernel | str, *, shift: Array | None = None) -> Array:
    """Return the expected polar score, ``Phi(lag) sum_i q_i k_i cos(shift_i)``, before scaling and softmax.

    Parameters
    ----------
    q, k : array_like, (..., D)
        Magnitudes of query and key, nonnegative, one per block, as for `rotation.rotate_polar`.
    lags : array_like, in units of position
        Lags, KEY minus QUERY: ``(...)`` for a kernel with one axis, ``(..., ndim)`` with more. Their shape broadcasts
        against the leading axes of q and k.
    kernel : Kernel or str
        Law of the frequencies; a string is read by `rfrope.kernels.parse`.
    shift : array_like, radians, optional
        Bias delta of the keys; broadcasts to ``(..., D)``.

    Returns
    -------
    array, float64 where the library has it
        Broadcast shape of the arguments.

    Raises
    ------
    ValueError
        If a magnitude is negative (checked where that is free), shapes do not fit, or the kernel is invalid.
    TypeError
        If magnitudes are not real floating, or arrays are of several libraries.

    See Also
    --------
    moments.polar_variance, rotation.rotate_polar

    Notes
    -----
    This requires the kernel's law for each block alone, which independent draws and every randomised design have;
    docs/explain/proofs_polar.rst has statement and proof.

    Examples
    --------
    >>> polar_score([1.0, 2.0], [3.0, 1.0], [0.0, 32.0], "gaussian(scale=32)").round(4)
    array([5.    , 3.0327])
    """
    return content_mean(*_read(q, k, lags, kernel, shift))


@array.select_device
def polar_variance(
    q: Array, k: Array, lags: Array, kernel: Kernel | str, *, shift: Array | None = None, design: Any = "iid"
) -> Array:
    """Return the variance of the polar score over the frequencies of a design.

    Parameters
    ----------
    q, k, lags, kernel, shift
        See `polar_score`.
    design : str, Rope or array_like
        A name that `sample` accepts, if its pairs of blocks have an exact covariance: "iid", "antithetic"; "stratified"
        if each axis is a smooth function of its own uniform; "shifted" in one axis. Or the frequencies ``(D,)`` or
        ``(D, ndim)`` of one set, as from `rfrope.designs.optimise`, assigned to the blocks in random order.

    Returns
    -------
    array, float64 where the library has it
        Broadcast shape of the arguments. For designs other than "iid", computed on the host.

    Raises
    ------
    ValueError, TypeError
        See `polar_score`. Also if no exact form is known for the design (the message lists those with one), or there is
        not one frequency per magnitude.

    See Also
    --------
    moments.polar_score, moments.polar_error

    Notes
    -----
    With ``A_i = q_i k_i`` and independent blocks ``Var S = sum_i A_i^2 ((1 + Phi_2 cos 2 delta_i)/2 - Phi^2 cos^2
    delta_i)``. Other designs add covariances of pairs (docs/explain/proofs_polar.rst). Their integrals are accurate to
    about 1e-10 of ``sum A^2``, or 1e-6 for "shifted" with heavy tails.

    Examples
    --------
    >>> import numpy as np
    >>> ones = np.ones(64)
    >>> polar_variance(ones, ones, 32.0, "gaussian(scale=32)").round(2)
    np.float64(12.79)
    >>> polar_variance(ones, ones, 32.0, "gaussian(scale=32)", design="stratified").round(3)
    np.float64(0.018)
    """
    return variance_and_mean(*_read(q, k, lags, kernel, shift), design)[0]


@array.select_device
def polar_error(
    q: Array, k: Array, lags: Array, kernel: Kernel | str, *, shift: Array | None = None, design: Any = "iid"
) -> Array:
    """Return the root mean square of ``S - E S`` over ``abs(E S)`` for polar scores: the relative error of one draw.

    Parameters
    ----------
    q, k, lags, kernel, shift, design
        See `polar_variance`. The mean is the kernel's: for one set of frequencies, the difference of its own mean
        kernel from Phi counts as an error, too.

    Returns
    -------
    array, float64 where the library has it
        Broadcast shape of the arguments; infinite where only the mean is 0, 0 where the error is, too.

    Raises
    ------
    ValueError, TypeError
        See `polar_variance`.

    See Also
    --------
    moments.polar_variance, moments.effective_blocks

    Notes
    -----
    For independent blocks without shift it is ``sqrt(v) / abs(Phi) / sqrt(effective_blocks(q, k))`` with ``v = (1 +
    Phi_2)/2 - Phi^2``. RoPE's scores have no such bound: see `relative_error`.

    Examples
    --------
    >>> import numpy as np
    >>> ones = np.ones(64)
    >>> polar_error(ones, ones, 32.0, "gaussian(scale=32)").round(4)
    np.float64(0.0921)
    """
    content, law = _read(q, k, lags, kernel, shift)
    xp = content.xp
    largest = _largest(xp.abs(content.cosine) + xp.abs(content.sine), xp)[..., None]  # so that squares do not vanish
    content = content._replace(cosine=content.cosine / largest, sine=content.sine / largest)
    return root_mean_square_ratio(content, law, design)


@array.select_device
def effective_blocks(q: Array, k: Array) -> Array:
    """Return ``(sum_i q_i k_i)^2 / sum_i (q_i k_i)^2``, the number of equal blocks that concentrate a score as much.

    Parameters
    ----------
    q, k : array_like, (..., D)
        Magnitudes; see `polar_score`.

    Returns
    -------
    array, float64 where the library has it
        From 1 to D (the participation ratio); 0 where all products are 0.

    Raises
    ------
    ValueError, TypeError
        See `polar_score`.

    See Also
    --------
    blocks_for_error, moments.relative_error

    Examples
    --------
    >>> effective_blocks([1.0, 1.0, 1.0, 1.0], [[1.0, 1.0, 1.0, 1.0], [1.0, 0.0, 0.0, 1.0]])
    array([4., 2.])
    """
    xp, device = array.shared(q=q, k=k)
    product = _product(q, k, xp, device)
    product = product / _largest(product, xp)[..., None]
    total, squares = xp.sum(product, axis=-1), xp.sum(product * product, axis=-1)
    none = squares == 0.0
    ratio = total * total / xp.where(none, xp.ones_like(squares), squares)
    return xp.where(none, xp.zeros_like(ratio), ratio)


def _read(q: Any, k: Any, lags: Any, kernel: Any, shift: Any) -> tuple[Content, Kernel]:
    """Read the contents of a call, and its kernel."""
    law = read_kernel(kernel)
    xp, device = array.shared({"lags": lags, "shift": shift}, q=q, k=k)
    vectors = angles.checked_lags(lags, law.ndim, xp, device, "lags", law)
    product = _product(q, k, xp, device)
    content = Content(product, xp.zeros_like(product), vectors, xp)
    if shift is not None:
        delta = angles.read_numbers("shift", shift, xp, device)
        if delta.ndim and delta.shape[-1] not in (1, product.shape[-1]):
            raise ValueError(
                f"shift has shape {tuple(delta.shape)}, but q and k have {product.shape[-1]} magnitudes; expected "
                "one for each, or one for all"
            )
        array.broadcast_shapes({"q and k": product.shape, "shift": delta.shape})
        content = Content(product * xp.cos(delta), -product * xp.sin(delta), vectors, xp)
    array.broadcast_shapes({"q, k and shift": content.cosine.shape[:-1], "lags": vectors.shape[:-1]})
    return content, law


def _largest(sizes: Array, xp: ModuleType) -> Array:
    """Largest of some sizes along the last axis, and 1 where there is none above 0."""
    largest = xp.max(sizes, axis=-1) if sizes.shape[-1] else xp.sum(sizes, axis=-1)
    return xp.where(largest > 0.0, largest, xp.ones_like(largest))


def _product(q: Any, k: Any, xp: ModuleType, device: Any) -> Array:
    """Products of magnitudes, or an error that says what is wrong with them."""
    read = []
    for name, value in (("q", q), ("k", k)):
        value = array.widen(blocks.features(value, xp, name, device, blocks.MAGNITUDES), xp)
        if array.has_host_values(value) and bool(xp.any(value < 0.0)):
            raise ValueError(f"{name} holds negative numbers; expected magnitudes of 0 or more: apply softplus")
        read.append(value)
    one, other = read
    if one.shape[-1] != other.shape[-1]:
        raise ValueError(
            f"q has shape {tuple(one.shape)} but k has {tuple(other.shape)}; expected as many magnitudes in both"
        )
    array.broadcast_shapes({"q": one.shape[:-1], "k": other.shape[:-1]})
    return one * other
