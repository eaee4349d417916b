"""Linear-time attention: weights are inner products of features."""

from __future__ import annotations

import math
import warnings
from types import ModuleType

import numpy as np

from rfrope._core import array
from rfrope._core.arguments import flag, show, whole
from rfrope._core.array import Array
from rfrope.features.estimates import check_widths, read_vectors, to_computable

_BLOCK = 128  # tokens per block; all pairs within a block are formed


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
        Logarithms of what the features of each key were divided by, as from ``stabilise="scale"``. A query's weights
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
