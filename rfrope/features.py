"""Random features: attention in linear time.

Projections are an argument, so any design works:
``rfrope.sample("gaussian(ndim=64)", 256, design="orthogonal", rng=0)``
draws 256 of them for vectors of 64 features.
"""

from __future__ import annotations

import math
import warnings
from types import ModuleType
from typing import Any

import numpy as np

from rfrope._core import array
from rfrope._core.arguments import choice, flag, show, whole
from rfrope._core.array import Array

__all__ = ["hyperbolic", "linear_attention", "positive", "trigonometric"]

_COMPUTED = ("float32", "float64")  # used as they are; 16 bits are computed in float32
_BLOCK = 128  # tokens per block; all pairs within a block are formed


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
    features.hyperbolic, features.linear_attention

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


# -- arguments ---------------------------------------------------------------------------------------------------------


def read_vectors(name: str, value: Any, xp: ModuleType, device: Any, axes: int = 1) -> Array:
    """Return an array of real floats with at least `axes` axes."""
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


def check_widths(name: str, x: Array, other: str, y: Array) -> None:
    """Raise an error if two arrays differ in the number of features."""
    if x.shape[-1] != y.shape[-1]:
        raise ValueError(
            f"{name} has shape {tuple(x.shape)} but {other} has {tuple(y.shape)}; expected the same number of features"
        )


def to_computable(x: Array, xp: ModuleType) -> Array:
    """Return an array in the dtype to compute in: float32 instead of 16 bits."""
    return x if array.dtype_name(x) in _COMPUTED else array.astype(x, xp.float32, xp)


# -- linear attention --------------------------------------------------------------------------------------------------


@array.select_device
def linear_attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    causal: bool = False,
    denominator: tuple[Array, Array] | None = None,
    scale: Array | None = None,
    block: int = _BLOCK,
) -> Array:
    """Return attention weighted by inner products of features, in time and memory linear in the number of tokens.

    Parameters
    ----------
    q, k : array_like, (..., L, m) and (..., n, m)
        Features of queries and keys, such as those of `positive`, optionally rotated.
    v : array_like, (..., n, e)
        Values.
    causal : bool
        Each query attends only to keys up to its own position; requires L = n.
    denominator : (array_like, array_like), optional
        Features of queries and keys for the normalising sum. Default: `q` and `k`. For rotated features, pass the
        features before rotation, whose weights are positive.
    scale : array_like, (..., n), optional
        Logarithms of the divisors of each key's features, as from ``stabilise="scale"``. A query's weights
        are then computed relative to the largest of its own keys (with `causal` a running maximum, as in online
        softmax), so that they do not vanish beside keys that it does not attend to.
    block : int
        Block size with `causal`: all pairs within a block are formed; earlier tokens enter through sums. JAX compiles
        each block separately, so a larger block compiles faster for long texts.

    Returns
    -------
    array, (..., L, e)
        With the dtype and device of `v`; 16-bit inputs are computed in float32. NaN or infinite if a query's weights
        sum to 0, as with `causal` and ``stabilise="all"`` where later keys are far larger: pass `scale`. Where values
        can be read at no cost, this warns.

    Raises
    ------
    ValueError, TypeError
        If shapes do not fit, or an argument is of the wrong type.

    See Also
    --------
    features.positive, features.hyperbolic : features that approximate softmax attention.

    Notes
    -----
    Output l is ``sum_n (q_l . k_n) v_n / sum_n (q_l . k_n)``. Beyond arguments and result, memory holds ``m (e + 1)``
    sums and one block. Source: Katharopoulos et al. (2020); Choromanski et al. (2021); for the denominator without
    rotation, equation 19 of Su et al. (2021).

    Examples
    --------
    >>> import numpy as np, rfrope
    >>> from rfrope.features import positive
    >>> q, k, v = np.random.default_rng(0).standard_normal((3, 512, 16)) / 4
    >>> w = rfrope.sample("gaussian(ndim=16)", 1024, design="orthogonal", rng=0)
    >>> keys, scale = positive(k, w, stabilise="scale")
    >>> found = linear_attention(positive(q, w, stabilise="token"), keys, v, causal=True, scale=scale)
    >>> exact = np.tril(np.exp(q @ k.T)) / np.tril(np.exp(q @ k.T)).sum(axis=-1, keepdims=True) @ v
    >>> float(np.sqrt(np.mean((found - exact) ** 2) / np.mean(exact**2)).round(2))
    0.08
    """
    if denominator is not None and (not isinstance(denominator, list | tuple) or len(denominator) != 2):
        raise TypeError(f"denominator is {show(denominator)}; expected features of queries and of keys, or None")
    others = {f"denominator[{i}]": one for i, one in enumerate(denominator or ())}
    xp, device = array.shared({"scale": scale}, q=q, k=k, v=v, **others)
    rows = {name: read_vectors(name, one, xp, device, 2) for name, one in ({"q": q, "k": k, "v": v} | others).items()}
    causal, block = flag("causal", causal), whole("block", block, 1)
    _check_tokens(rows, causal)
    v = rows["v"]
    rows = {name: to_computable(one, xp) for name, one in rows.items()}
    wide = any(array.dtype_name(one) == "float64" for one in rows.values())
    last = array.astype(rows["v"], xp.float64 if wide else xp.float32, xp)
    ones = xp.ones_like(last[..., :1])
    if scale is not None:
        scale = array.astype(read_vectors("scale", scale, xp, device), rows["k"].dtype, xp)
        if scale.shape[-1] != rows["k"].shape[-2]:
            raise ValueError(
                f"scale has shape {tuple(scale.shape)}; expected (..., {rows['k'].shape[-2]}), one for each key"
            )
        if array.has_host_values(scale) and not bool(xp.all(xp.isfinite(scale))):
            raise ValueError("scale holds NaN or infinity; expected logarithms: a key is left out by features of 0")
    arguments = (scale, causal, block, xp)
    if denominator is None:
        both = _summed(rows["q"], rows["k"], xp.concat([last, ones], axis=-1), *arguments)
        above, below = both[..., :-1], both[..., -1:]
    else:
        above = _summed(rows["q"], rows["k"], last, *arguments)
        below = _summed(rows["denominator[0]"], rows["denominator[1]"], ones, *arguments)
    if array.has_host_values(below) and bool(xp.any(below == 0.0)):
        warnings.warn(
            "the weights of a query sum to 0, so its output is NaN or infinite; expected features that do not all "
            'vanish: with causal=True those of keys by stabilise="scale", and scale=',
            RuntimeWarning,
            stacklevel=3,
        )
        with np.errstate(divide="ignore", invalid="ignore"):
            return array.astype(above / below, v.dtype, xp)
    return array.astype(above / below, v.dtype, xp)


def _summed(q: Array, k: Array, v: Array, scale: Array | None, causal: bool, block: int, xp: ModuleType) -> Array:
    """Return ``sum_n (q_l . k_n) v_n`` over all keys, or over those up to the query's position.

    With a scale it is ``sum_n (q_l . k_n) exp(scale_n - largest_l) v_n``, where largest_l is that of these keys.
    """
    if not causal:
        if scale is not None:
            k = k * xp.exp(scale - xp.max(scale, axis=-1, keepdims=True))[..., None]
        return xp.matmul(q, xp.matmul(xp.matrix_transpose(k), v))
    found, state, before = [], None, None
    for start in range(0, q.shape[-2], block):
        span = slice(start, min(start + block, q.shape[-2]))
        queries, keys, values = (one[..., span, :] for one in (q, k, v))
        weights = xp.tril(xp.matmul(queries, xp.matrix_transpose(keys)))
        if scale is not None:
            seen = xp.where(xp.tril(xp.ones_like(weights)) > 0.0, scale[..., None, span], -math.inf)
            largest = xp.max(seen, axis=-1, keepdims=True)
            if state is not None:
                largest = xp.where(largest < before, before, largest)
                queries = queries * xp.exp(before - largest)
            last = largest[..., -1:, :]
            weights, keys = weights * xp.exp(seen - largest), keys * xp.exp(scale[..., span, None] - last)
        sums = xp.matmul(weights, values)
        found.append(sums if state is None else sums + xp.matmul(queries, state))
        more = xp.matmul(xp.matrix_transpose(keys), values)
        if scale is not None:
            state, before = None if state is None else state * xp.exp(before - last), last
        state = more if state is None else state + more
    return found[0] if len(found) == 1 else xp.concat(found, axis=-2)


def _check_tokens(rows: dict[str, Array], causal: bool) -> None:
    """Raise an error that says which features or tokens do not fit."""
    for first, second in (("q", "k"), ("denominator[0]", "denominator[1]")):
        if first not in rows:
            continue
        q, k = rows[first], rows[second]
        check_widths(first, q, second, k)
        if k.shape[-2] != rows["v"].shape[-2] or q.shape[-2] != rows["q"].shape[-2]:
            raise ValueError(
                f"{first} has shape {tuple(q.shape)}, {second} {tuple(k.shape)}, q {tuple(rows['q'].shape)} and v "
                f"{tuple(rows['v'].shape)}; expected a value for each key and as many queries as q has"
            )
        if causal and q.shape[-2] != k.shape[-2]:
            raise ValueError(
                f"causal is True, but {first} has {q.shape[-2]} tokens and {second} {k.shape[-2]}; expected the same"
            )
        array.broadcast_shapes({first: q.shape[:-2], second: k.shape[:-2], "v": rows["v"].shape[:-2]})
