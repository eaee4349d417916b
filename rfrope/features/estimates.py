"""Features whose inner products estimate ``exp(x . y)``, and the variance of these estimates."""

from __future__ import annotations

import math
from contextlib import nullcontext
from types import ModuleType
from typing import Any

import numpy as np

from rfrope._core import array
from rfrope._core.arguments import choice, whole
from rfrope._core.array import Array

_KINDS = ("positive", "hyperbolic", "trigonometric")
_COMPUTED = ("float32", "float64")  # used as they are; 16 bits are computed in float32


@array.select_device
def positive(x: Array, projections: Array, *, stabilise: str | None = None) -> Array:
    """Return positive random features of ``exp(x . y)`` (FAVOR+): ``exp(w . x - |x|^2 / 2) / sqrt(m)`` for m draws w.

    Parameters
    ----------
    x : array_like, (..., d)
        Queries or keys. For softmax attention, divide both by d^(1/4), so that their product is divided by sqrt(d).
    projections : array_like, (m, d), or (H, m, d) beside x (..., H, L, d)
        Standard normal, as from `rfrope.sample` with the kernel "gaussian(ndim=d)" and any randomised design.
    stabilise : {"token", "all", "scale"}, optional
        Divide features by their largest value over each token, or over all tokens (the last axis but one), to prevent
        overflow. Use "token" for queries and "all" for keys: the divisors then cancel in the ratio that
        `linear_attention` computes. With "all", features of a key that is far longer than others may vanish; "scale"
        divides as "token" and also returns the logarithms of the divisors, for the keys of `linear_attention`. The
        factor ``1 / sqrt(m)`` is left out. Default: no division.

    Returns
    -------
    array, (..., m), or with "scale" a pair of it and an array (...)
        With the dtype and device of `x`; 16-bit inputs are computed in float32, which the logarithms keep.

    Raises
    ------
    ValueError, TypeError
        If shapes do not fit, or an argument is of the wrong type.

    See Also
    --------
    features.variance : variance of the estimate.

    Notes
    -----
    The mean of ``positive(x) . positive(y)`` over projections is ``exp(x . y)``: Choromanski et al. (2021), Lemma 1.

    Examples
    --------
    >>> import numpy as np, rfrope
    >>> w = rfrope.sample("gaussian(ndim=4)", 4096, design="orthogonal", rng=0)
    >>> x, y = np.array([0.5, 0.1, -0.2, 0.3]), np.array([0.2, -0.4, 0.1, 0.6])
    >>> float((positive(x, w) @ positive(y, w)).round(2)), float(np.exp(x @ y).round(2))
    (1.24, 1.25)
    """
    x, w, xp = _read(x, projections)
    return _exponentials(xp.matmul(x[0], w), x, stabilise, xp)


@array.select_device
def hyperbolic(x: Array, projections: Array, *, stabilise: str | None = None) -> Array:
    """Return positive features of ``exp(x . y)`` in pairs, ``exp(w . x - |x|^2 / 2)`` and ``exp(-w . x - |x|^2 / 2)``.

    Parameters
    ----------
    x, projections, stabilise
        See `positive`.

    Returns
    -------
    array, (..., 2m)
        Divided by ``sqrt(2m)``, features of w before those of -w. With the dtype and device of `x`.

    Raises
    ------
    ValueError, TypeError
        See `positive`.

    See Also
    --------
    features.positive : one feature per projection.

    Notes
    -----
    At equal width and for independent projections, the variance is ``1 - exp(-|x + y|^2)`` times that of `positive`.
    Source: Choromanski et al. (2021), Lemma 1.

    Examples
    --------
    >>> import numpy as np, rfrope
    >>> w = rfrope.sample("gaussian(ndim=4)", 2048, design="orthogonal", rng=0)
    >>> x, y = np.array([0.5, 0.1, -0.2, 0.3]), np.array([0.2, -0.4, 0.1, 0.6])
    >>> float((hyperbolic(x, w) @ hyperbolic(y, w)).round(2)), float(np.exp(x @ y).round(2))
    (1.24, 1.25)
    """
    x, w, xp = _read(x, projections)
    along = xp.matmul(x[0], w)
    return _exponentials(xp.concat([along, -along], axis=-1), x, stabilise, xp)


@array.select_device
def trigonometric(x: Array, projections: Array) -> Array:
    """Return random Fourier features of ``exp(x . y)``: ``exp(|x|^2 / 2)`` times cosines and sines of ``w . x``.

    Parameters
    ----------
    x, projections
        See `positive`. There is no `stabilise`: only ``exp(|x|^2 / 2)`` can be large.

    Returns
    -------
    array, (..., 2m)
        Divided by ``sqrt(m)``, cosines before sines. With the dtype and device of `x`.

    Raises
    ------
    ValueError, TypeError
        See `positive`.

    See Also
    --------
    features.hyperbolic : positive features.

    Notes
    -----
    Estimates can be negative, and so can the normaliser of attention. If ``exp(x . y)`` is small, positive features are
    more accurate. Source: Rahimi and Recht (2007); Choromanski et al. (2021).

    Examples
    --------
    >>> import numpy as np, rfrope
    >>> w = rfrope.sample("gaussian(ndim=4)", 2048, design="sobol", rng=0)
    >>> x, y = np.array([0.5, 0.1, -0.2, 0.3]), np.array([0.2, -0.4, 0.1, 0.6])
    >>> float((trigonometric(x, w) @ trigonometric(y, w)).round(2)), float(np.exp(x @ y).round(2))
    (1.25, 1.25)
    """
    (x, dtype), w, xp = _read(x, projections)
    along, size = xp.matmul(x, w), xp.exp(0.5 * xp.sum(x * x, axis=-1, keepdims=True))
    waves = xp.concat([xp.cos(along), xp.sin(along)], axis=-1)
    return array.astype(waves * size * float(w.shape[-1]) ** -0.5, dtype, xp)


@array.select_device
def variance(x: Array, y: Array, n_projections: int, *, features: str = "positive") -> Array:
    """Return the variance of the inner product of features of x and y, whose mean is ``exp(x . y)``.

    Parameters
    ----------
    x, y : array_like, (..., d)
    n_projections : int
        m, the number of independent projections, at least 1; `hyperbolic` and `trigonometric` make 2m features.
    features : {"positive", "hyperbolic", "trigonometric"}
        Function that makes the features.

    Returns
    -------
    array, float64 where the library has it
        The broadcast shape, without the last axis.

    Raises
    ------
    ValueError, TypeError
        If shapes do not fit, `features` is unknown, or an argument is of the wrong type.

    See Also
    --------
    features.positive, features.hyperbolic, features.trigonometric : the features.

    Notes
    -----
    With ``s = |x + y|^2``, ``t = |x - y|^2`` and ``E = exp(x . y)``: ``E^2 (exp(s) - 1) / m`` for positive features,
    ``E^2 exp(s) (1 - exp(-s))^2 / (2m)`` for hyperbolic and ``exp(|x|^2 + |y|^2) (1 - exp(-t))^2 / (2m)`` for
    trigonometric ones. Source: Choromanski et al. (2021), Lemma 2.

    Examples
    --------
    >>> [float(variance([1.0, 0.5], [-0.5, 0.2], 64, features=kind).round(4))
    ...  for kind in ("positive", "hyperbolic", "trigonometric")]
    [0.0077, 0.002, 0.0298]
    """
    xp, device = array.shared(x=x, y=y)
    x, y = read_wide("x", x, "y", y, xp, device)

    m = float(whole("n_projections", n_projections, 1))
    choice("features", features, _KINDS)
    with np.errstate(over="ignore") if xp is np else nullcontext():  # an infinite variance is a result
        if features == "trigonometric":
            apart = xp.sum((x - y) ** 2, axis=-1)
            size = xp.where(apart == 0.0, 0.0, xp.sum(x * x, axis=-1) + xp.sum(y * y, axis=-1))  # no inf times 0
            return (xp.exp(0.5 * size) * xp.expm1(-apart)) ** 2 * (0.5 / m)
        apart = xp.sum((x + y) ** 2, axis=-1)
        size = xp.exp(2.0 * xp.sum(x * y, axis=-1) + apart)  # of two exponents, one overflows where the other vanishes
        return size * -xp.expm1(-apart) / m if features == "positive" else size * xp.expm1(-apart) ** 2 * (0.5 / m)


def _read(x: Any, projections: Any) -> tuple[tuple[Array, Any], Array, ModuleType]:
    """Return vectors in the dtype to compute in, paired with their own dtype, and projections as columns."""
    xp, device = array.shared({"projections": projections}, x=x)
    x, w = read_vectors("x", x, xp, device), read_vectors("projections", projections, xp, device, 2)
    check_widths("x", x, "projections", w)

    y = to_computable(x, xp)
    return (y, x.dtype), xp.matrix_transpose(array.astype(w, y.dtype, xp)), xp


def _exponentials(along: Array, x: tuple[Array, Any], stabilise: str | None, xp: ModuleType) -> Array:
    values, dtype = x
    if stabilise is not None and choice("stabilise", stabilise, ("token", "all", "scale")) == "all" and along.ndim < 2:
        raise ValueError(f"stabilise is 'all', but x has shape {tuple(values.shape)}; expected (..., tokens, d)")
    if stabilise in ("token", "scale"):  # a factor common to the token cancels
        largest = xp.max(along, axis=-1, keepdims=True)
        found = array.astype(xp.exp(along - largest), dtype, xp)
        return found if stabilise == "token" else (found, largest[..., 0] - 0.5 * xp.sum(values * values, axis=-1))
    size = 0.5 * xp.sum(values * values, axis=-1, keepdims=True)
    exponents = along - (size if stabilise else size + 0.5 * math.log(along.shape[-1]))
    if stabilise:
        exponents = exponents - xp.max(exponents, axis=(-2, -1), keepdims=True)
    return array.astype(xp.exp(exponents), dtype, xp)


# -- arguments, also of the other modules ------------------------------------------------------------------------------


def read_vectors(name: str, value: Any, xp: ModuleType, device: Any, axes: int = 1) -> Array:
    """Return an array of real floats with at least so many axes."""
    value = array.asarray(value, xp, name=name, device=device)
    if not array.is_real_floating(value):
        raise TypeError(
            f"{name} has dtype {array.dtype_name(value)}; expected real floating numbers: convert to float32 or float64"
        )
    if value.ndim < axes or 0 in value.shape[value.ndim - axes :]:
        raise ValueError(
            f"{name} has shape {tuple(value.shape)}; expected {axes} axes or more, the last ones not empty"
        )

    return value


def read_wide(name: str, x: Any, other: str, y: Any, xp: ModuleType, device: Any) -> tuple[Array, Array]:
    """Return two arrays of vectors of equal width, in the widest float dtype."""
    x, y = (array.widen(read_vectors(called, one, xp, device), xp) for called, one in ((name, x), (other, y)))
    check_widths(name, x, other, y)
    return x, y


def check_widths(name: str, x: Array, other: str, y: Array) -> None:
    """Raise an error if two arrays differ in the number of features."""
    if x.shape[-1] != y.shape[-1]:
        raise ValueError(
            f"{name} has shape {tuple(x.shape)} but {other} has {tuple(y.shape)}; expected the same number of features"
        )


def to_computable(x: Array, xp: ModuleType) -> Array:
    """Return an array in the dtype to compute in: float32 instead of 16 bits."""
    return x if array.dtype_name(x) in _COMPUTED else array.astype(x, xp.float32, xp)
