"""Random features: attention in linear time, and stochastic positional encoding.

Every draw comes from outside, as an array: ``rfrope.sample("gaussian(ndim=64)", 256, design="orthogonal", rng=0)`` are
256 projections of vectors of 64 features, by any design.
"""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

from rfrope._core import angles, array
from rfrope._core.arguments import choice, flag, show, whole
from rfrope._core.array import Array
from rfrope.kernels import Kernel
from rfrope.kernels.text import read_kernel
from rfrope.rotation import rotation_table

__all__ = [
    "hyperbolic",
    "linear_attention",
    "positive",
    "stochastic",
    "stochastic_variance",
    "trigonometric",
    "variance",
]

_KINDS = ("positive", "hyperbolic", "trigonometric")
_COMPUTED = ("float32", "float64")  # as they are; 16 bits in float32
_BLOCK = 128  # tokens of which all pairs are formed


# -- features of exp(x . y) --------------------------------------------------------------------------------------------


@array.select_device
def positive(x: Array, projections: Array, *, stabilise: str | None = None) -> Array:
    """Positive random features of ``exp(x . y)`` (FAVOR+): ``exp(w . x - |x|^2 / 2) / sqrt(m)`` for m projections w.

    Parameters
    ----------
    x : array_like, (..., d)
        Queries or keys. For softmax attention divide both by d^(1/4), which divides their product by sqrt(d).
    projections : array_like, (m, d), or (H, m, d) beside x (..., H, L, d)
        Standard normal, each alone: those of `rfrope.sample` with the kernel "gaussian(ndim=d)" and any randomised
        design.
    stabilise : {"token", "all"}, optional
        Divide the features of each token, or those of all tokens (the last axis but one), by the largest of them, so
        that none overflows. In the ratio that `linear_attention` forms these numbers cancel if queries are divided by
        "token" and keys by "all". Not at all unless given; else ``sqrt(m)`` does not divide either.

    Returns
    -------
    array, (..., m)
        The dtype and device of `x`; computed in float32 where `x` has 16 bits.

    Raises
    ------
    ValueError
        For shapes that do not fit.
    TypeError
        For arguments of another kind.

    See Also
    --------
    variance : how far the product of two features is from what it estimates.

    Notes
    -----
    ``positive(x) . positive(y)`` has the mean ``exp(x . y)`` over the projections. Source: Choromanski et al. (2021),
    Lemma 1.

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
    """Positive random features of ``exp(x . y)`` in pairs: ``exp(w . x - |x|^2 / 2)`` and ``exp(-w . x - |x|^2 / 2)``.

    Parameters
    ----------
    x, projections, stabilise
        As in `positive`.

    Returns
    -------
    array, (..., 2m)
        Divided by ``sqrt(2m)``; those of w come before those of -w. The dtype and device of `x`.

    Raises
    ------
    ValueError, TypeError
        As `positive`.

    Notes
    -----
    At equal width their variance is ``1 - exp(-|x + y|^2)`` times that of `positive` for independent projections.
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
    """Random Fourier features of ``exp(x . y)``: ``exp(|x|^2 / 2)`` times cosines and sines of ``w . x``.

    Parameters
    ----------
    x, projections
        As in `positive`. With ``stabilise`` of the others in mind: here nothing but ``exp(|x|^2 / 2)`` may be large.

    Returns
    -------
    array, (..., 2m)
        Divided by ``sqrt(m)``; cosines come before sines. The dtype and device of `x`.

    Raises
    ------
    ValueError, TypeError
        As `positive`.

    Notes
    -----
    Estimates may be negative, and so may the sum by which attention divides. Where the product is small, positive
    features err less. Source: Rahimi and Recht (2007); Choromanski et al. (2021), equation 5.

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
    """Variance of the product of two features of independent projections, whose mean is ``exp(x . y)``.

    Parameters
    ----------
    x, y : array_like, (..., d)
    n_projections : int
        m, at least 1. `hyperbolic` and `trigonometric` make two features of each.
    features : {"positive", "hyperbolic", "trigonometric"}
        Which of the functions makes them.

    Returns
    -------
    array, float64 where the library has it
        The broadcast shape, without the last axis.

    Raises
    ------
    ValueError
        For shapes that do not fit, and other features.
    TypeError
        For arguments of another kind.

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
    x, y = (array.widen(_vectors(name, one, xp, device), xp) for name, one in (("x", x), ("y", y)))
    _check_widths("x", x, "y", y)
    array.check_memory(
        32.0, (*array.broadcast_shapes({"x": x.shape[:-1], "y": y.shape[:-1]}), x.shape[-1]), x, "x or y"
    )
    m = float(whole("n_projections", n_projections, 1))
    choice("features", features, _KINDS)
    if features == "trigonometric":
        size = xp.exp(xp.sum(x * x, axis=-1) + xp.sum(y * y, axis=-1))
        return size * xp.expm1(-xp.sum((x - y) ** 2, axis=-1)) ** 2 * (0.5 / m)
    apart, square = xp.sum((x + y) ** 2, axis=-1), xp.exp(2.0 * xp.sum(x * y, axis=-1))
    if features == "positive":
        return square * xp.expm1(apart) / m
    return square * xp.exp(apart) * xp.expm1(-apart) ** 2 * (0.5 / m)


# -- attention in linear time ------------------------------------------------------------------------------------------


@array.select_device
def linear_attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    causal: bool = False,
    denominator: tuple[Array, Array] | None = None,
    block: int = _BLOCK,
) -> Array:
    """Attention whose weights are products of features, in time and memory linear in the number of tokens.

    Parameters
    ----------
    q, k : array_like, (..., L, m) and (..., n, m)
        Features of queries and keys, such as `positive` makes, or rotated ones.
    v : array_like, (..., n, e)
        Values.
    causal : bool
        A query sees keys up to its own place alone; L = n then.
    denominator : (array_like, array_like), optional
        Features of queries and keys of which the sum of weights is formed that divides; `q` and `k` unless given. For
        rotated features these are the ones before rotation, whose weights are positive.
    block : int
        With `causal`, tokens of which all pairs are formed; before them keys and values are known by their sum
        alone. JAX compiles one part for each block, so for long texts a larger one compiles sooner.

    Returns
    -------
    array, (..., L, e)
        The dtype and device of `v`; computed in float32 where that has 16 bits. NaN or infinite where a query's weights
        sum to 0.

    Raises
    ------
    ValueError
        For shapes that do not fit.
    TypeError
        For arguments of another kind.

    Notes
    -----
    Output l is ``sum_n (q_l . k_n) v_n / sum_n (q_l . k_n)``. Beyond its arguments and result it holds ``m (e + 1)``
    sums and what belongs to one block. Source: Katharopoulos et al. (2020); Choromanski et al. (2021); the
    denominator without rotation is equation 19 of Su et al. (2021).

    Examples
    --------
    >>> import numpy as np, rfrope
    >>> q, k, v = np.random.default_rng(0).standard_normal((3, 512, 16)) / 4
    >>> w = rfrope.sample("gaussian(ndim=16)", 1024, design="orthogonal", rng=0)
    >>> weights = positive(q, w, stabilise="token"), positive(k, w, stabilise="all")
    >>> found = linear_attention(*weights, v, causal=True)
    >>> exact = np.tril(np.exp(q @ k.T)) / np.tril(np.exp(q @ k.T)).sum(axis=-1, keepdims=True) @ v
    >>> float(np.sqrt(np.mean((found - exact) ** 2) / np.mean(exact**2)).round(2))
    0.08
    """
    others = _pair_of(denominator)
    xp, device = array.shared(q=q, k=k, v=v, **others)
    rows = {name: _vectors(name, one, xp, device, 2) for name, one in ({"q": q, "k": k, "v": v} | others).items()}
    causal, block = flag("causal", causal), whole("block", block, 1)
    _check_tokens(rows, causal)
    v = rows["v"]
    rows = {name: _computable(one, xp) for name, one in rows.items()}
    last = array.astype(rows["v"], _common(rows, xp), xp)
    ones = xp.ones_like(last[..., :1])
    arguments = (causal, block, xp)
    if denominator is None:
        both = _summed(rows["q"], rows["k"], xp.concat([last, ones], axis=-1), *arguments)
        above, below = both[..., :-1], both[..., -1:]
    else:
        above = _summed(rows["q"], rows["k"], last, *arguments)
        below = _summed(rows["denominator[0]"], rows["denominator[1]"], ones, *arguments)
    return array.astype(above / below, v.dtype, xp)


def _summed(q: Array, k: Array, v: Array, causal: bool, block: int, xp: ModuleType) -> Array:
    """``sum_n (q_l . k_n) v_n`` over all keys, or over those up to the query's own."""
    if not causal:
        return xp.matmul(q, xp.matmul(xp.matrix_transpose(k), v))
    found, state = [], None
    for start in range(0, q.shape[-2], block):
        span = slice(start, min(start + block, q.shape[-2]))
        queries, keys, values = (one[..., span, :] for one in (q, k, v))
        weights = xp.matmul(queries, xp.matrix_transpose(keys))
        places = xp.arange(queries.shape[-2], device=array.device(q))
        weights = xp.where(places[:, None] >= places, weights, xp.zeros_like(weights))
        sums = xp.matmul(weights, values)
        found.append(sums if state is None else sums + xp.matmul(queries, state))
        more = xp.matmul(xp.matrix_transpose(keys), values)
        state = more if state is None else state + more
    return found[0] if len(found) == 1 else xp.concat(found, axis=-2)


# -- stochastic positional encoding ------------------------------------------------------------------------------------


@array.select_device
def stochastic(
    x: Array, positions: Array, frequencies: Array, projections: Array, *, shift: Array | None = None
) -> Array:
    """Features whose mean product is ``sum_c q_c k_c`` times a kernel of the lag (SPE; with k axes, F-StrIPE).

    Parameters
    ----------
    x : array_like, (..., L, d)
        Queries or keys.
    positions : array_like
        Where they stand: ``(L,)`` for frequencies ``(K,)``, else ``(L, k)``. What F-StrIPE calls structure, such as
        chords, are axes of a position.
    frequencies : array_like, radians per unit of position
        ``(K,)`` or ``(K, k)``, the same for all features of x, or ``(d, K, k)``.
    projections : array_like, (d, 2K, R)
        Standard normal, the same for queries and keys: ``rfrope.sample("gaussian(ndim=R)", 2 * K, heads=d)``. A gain of
        each frequency multiplies its two rows, i and K + i.
    shift : array_like, radians, optional
        Added to the phases; that of queries moves the kernel, as in SPE.

    Returns
    -------
    array, (..., L, R)
        Divided by ``sqrt(K R)``. The dtype and device of `x`; computed in float32 where that has 16 bits.

    Raises
    ------
    ValueError
        For shapes that do not fit, and as `rfrope.rotation_table`.
    TypeError
        For arguments of another kind.

    See Also
    --------
    stochastic_variance : how far the product is from its mean.

    Notes
    -----
    Over the projections ``stochastic(q) . stochastic(k)`` has the mean ``sum_c q_c k_c Phi_K(lag)``, ``Phi_K(lag)``
    being the mean of ``cos(lag . omega)`` over the K frequencies of feature c. Phases are as exact as those of
    `rfrope.rotate`. Source: Liutkus et al. (2021), section 2.2 (sineSPE); Agarwal et al. (2025a, 2025b).

    Examples
    --------
    >>> import numpy as np, rfrope
    >>> omega = rfrope.sample("gaussian(scale=32)", 64, design="quantile")
    >>> z = rfrope.sample("gaussian(ndim=4096)", 128, heads=2, rng=0)
    >>> q, k = np.array([[1.0, 0.5]]), np.array([[2.0, -1.0]])
    >>> found = stochastic(q, [100], omega, z) @ stochastic(k, [132], omega, z).T
    >>> float(found[0, 0].round(2)), float((q @ k.T)[0, 0] * np.exp(-0.5).round(2))
    (0.89, 0.915)
    """
    xp, device = array.shared(
        {"positions": positions, "frequencies": frequencies, "projections": projections, "shift": shift}, x=x
    )
    x = _vectors("x", x, xp, device, 2)
    y, noise = _computable(x, xp), _vectors("projections", projections, xp, device, 3)
    table = rotation_table(positions, frequencies, shift=shift)
    cos, sin = (array.asarray(one, xp, name="positions", device=device) for one in table)
    if noise.shape[-3:-1] != (x.shape[-1], 2 * cos.shape[-1]):
        raise ValueError(
            f"projections has shape {tuple(noise.shape)}, but x has {x.shape[-1]} features and frequencies has "
            f"K = {cos.shape[-1]}; expected ({x.shape[-1]}, {2 * cos.shape[-1]}, R)"
        )
    if cos.ndim < 2 or cos.shape[-2] not in (1, x.shape[-2]):
        raise ValueError(f"positions are of shape {tuple(cos.shape[:-1])}, but x has {x.shape[-2]} tokens")
    array.check_memory(8.0, (*cos.shape[:-1], *noise.shape[-3::2]), x, "projections or positions")
    waves = xp.concat([array.astype(one, y.dtype, xp) for one in (cos, sin)], axis=-1)
    if waves.ndim == 2:
        waves = waves[None, ...]
    code = xp.moveaxis(xp.matmul(waves, array.astype(noise, y.dtype, xp)), -3, -2)
    found = xp.matmul(y[..., None, :], code)[..., 0, :]
    return array.astype(found * float(cos.shape[-1] * noise.shape[-1]) ** -0.5, x.dtype, xp)


@array.select_device
def stochastic_variance(
    q: Array, k: Array, lags: Array, kernel: Kernel | str, n_features: int, *, n_frequencies: int | None = None
) -> Array:
    """Variance of the product of two `stochastic` features, over independent projections and frequencies.

    Parameters
    ----------
    q, k : array_like, (..., d)
    lags : array_like, in units of position
        Lags, KEY minus QUERY: ``(...)`` for a kernel with one axis, ``(..., ndim)`` with more.
    kernel : Kernel or str
        Law of the frequencies; a string is read by `rfrope.kernels.parse`.
    n_features : int
        R, at least 1.
    n_frequencies : int, optional
        K independent draws of the law, the same for all features of q and k. Unless given the kernel is exact, as for
        K without end.

    Returns
    -------
    array, float64 where the library has it
        The broadcast shape.

    Raises
    ------
    ValueError
        For shapes that do not fit, lags that are not finite, or a kernel that cannot be read.
    TypeError
        For arguments of another kind.

    Notes
    -----
    ``(|q|^2 |k|^2 + (q . k)^2 Phi^2) / R`` (Isserlis' theorem), and with ``v = (1 + Phi_2)/2 - Phi^2`` and K drawn
    frequencies ``(q . k)^2 (v / K) (1 + 1 / R)`` more. The page on features compares it with `rfrope.score_variance`.

    Examples
    --------
    >>> q, k = [1.0, 0.5], [2.0, -1.0]
    >>> [float(stochastic_variance(q, k, lag, "gaussian(scale=32)", 64).round(4)) for lag in (0.0, 1000.0)]
    [0.1328, 0.0977]
    """
    law = read_kernel(kernel)
    xp, device = array.shared({"lags": lags}, q=q, k=k)
    q, k = (array.widen(_vectors(name, one, xp, device), xp) for name, one in (("q", q), ("k", k)))
    _check_widths("q", q, "k", k)
    lags = angles.checked_lags(lags, law.ndim, xp, device, "lags", law)
    shape = array.broadcast_shapes({"q": q.shape[:-1], "k": k.shape[:-1], "lags": lags.shape[:-1]})
    array.check_memory(32.0, shape, q, "q, k or lags")
    r, product = float(whole("n_features", n_features, 1)), xp.sum(q * k, axis=-1) ** 2
    phi = law.phi_of_vectors(lags, xp)
    found = (xp.sum(q * q, axis=-1) * xp.sum(k * k, axis=-1) + product * phi * phi) / r
    if n_frequencies is None:
        return found
    spread = 0.5 + 0.5 * law.phi_of_vectors(2.0 * lags, xp) - phi * phi
    return found + product * spread * ((1.0 + 1.0 / r) / whole("n_frequencies", n_frequencies, 1))


# -- arguments ---------------------------------------------------------------------------------------------------------


def _vectors(name: str, value: Any, xp: ModuleType, device: Any, axes: int = 1) -> Array:
    """Return an array of real floats with so many axes at least."""
    value = array.asarray(value, xp, name=name, device=device)
    if not array.is_real_floating(value):
        raise TypeError(
            f"{name} has dtype {array.dtype_name(value)}; expected real floating numbers: convert to float32 or float64"
        )
    if value.ndim < axes or 0 in value.shape[value.ndim - axes :]:
        raise ValueError(
            f"{name} has shape {tuple(value.shape)}; expected {axes} axes or more, the last ones not empty"
        )
    array.check_memory(8.0, value.shape, value, name)
    return value


def _check_widths(name: str, x: Array, other: str, y: Array) -> None:
    if x.shape[-1] != y.shape[-1]:
        raise ValueError(
            f"{name} has shape {tuple(x.shape)} but {other} has {tuple(y.shape)}; expected the same number of features"
        )


def _read(x: Any, projections: Any) -> tuple[tuple[Array, Any], Array, ModuleType]:
    """Read vectors, in the type to compute in and beside their own, and projections as columns of that type."""
    xp, device = array.shared({"projections": projections}, x=x)
    x, w = _vectors("x", x, xp, device), _vectors("projections", projections, xp, device, 2)
    _check_widths("x", x, "projections", w)
    array.check_memory(24.0, (*x.shape[:-1], w.shape[-2]), x, "x or projections")
    y = _computable(x, xp)
    return (y, x.dtype), xp.matrix_transpose(array.astype(w, y.dtype, xp)), xp


def _computable(x: Array, xp: ModuleType) -> Array:
    return x if array.dtype_name(x) in _COMPUTED else array.astype(x, xp.float32, xp)


def _common(rows: dict[str, Array], xp: ModuleType) -> Any:
    wide = any(array.dtype_name(one) == "float64" for one in rows.values())
    return xp.float64 if wide else xp.float32


def _exponentials(along: Array, x: tuple[Array, Any], stabilise: str | None, xp: ModuleType) -> Array:
    values, dtype = x
    if stabilise is not None and choice("stabilise", stabilise, ("token", "all")) == "all" and along.ndim < 2:
        raise ValueError(f"stabilise is 'all', but x has shape {tuple(values.shape)}; expected (..., tokens, d)")
    if stabilise == "token":  # what the token has in common cancels
        exponents = along - xp.max(along, axis=-1, keepdims=True)
    else:
        size = 0.5 * xp.sum(values * values, axis=-1, keepdims=True)
        exponents = along - (size if stabilise else size + 0.5 * math.log(along.shape[-1]))
        if stabilise:
            exponents = exponents - xp.max(exponents, axis=(-2, -1), keepdims=True)
    return array.astype(xp.exp(exponents), dtype, xp)


def _pair_of(denominator: Any) -> dict[str, Any]:
    if denominator is None:
        return {}
    if not isinstance(denominator, list | tuple) or len(denominator) != 2:
        raise TypeError(f"denominator is {show(denominator)}; expected features of queries and of keys, or None")
    return {f"denominator[{i}]": one for i, one in enumerate(denominator)}


def _check_tokens(rows: dict[str, Array], causal: bool) -> None:
    """Say which features and tokens do not fit."""
    for first, second in (("q", "k"), ("denominator[0]", "denominator[1]")):
        if first not in rows:
            continue
        q, k = rows[first], rows[second]
        _check_widths(first, q, second, k)
        if k.shape[-2] != rows["v"].shape[-2] or q.shape[-2] != rows["q"].shape[-2]:
            raise ValueError(
                f"{first} has shape {tuple(q.shape)}, {second} {tuple(k.shape)}, q {tuple(rows['q'].shape)} and v "
                f"{tuple(rows['v'].shape)}; expected a value for each key and as many queries as q has"
            )
        if causal and q.shape[-2] != k.shape[-2]:
            raise ValueError(
                f"causal is True, but {first} has {q.shape[-2]} tokens and {second} {k.shape[-2]}; expected the same"
            )
        leading = array.broadcast_shapes({first: q.shape[:-2], second: k.shape[:-2], "v": rows["v"].shape[:-2]})
        array.check_memory(8.0, (*leading, max(q.shape[-2], k.shape[-1]), rows["v"].shape[-1] + 1), q, "q, k or v")
