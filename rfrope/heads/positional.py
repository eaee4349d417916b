"""Weights and attention of heads that attend by position alone.

`offset` is the lag, key minus query, that the head attends to: -1 is the previous token.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from rfrope._core import angles, array, blocks, sums, turns
from rfrope._core.angles import Angles
from rfrope._core.arguments import flag, is_several, positive, show, whole
from rfrope._core.array import Array
from rfrope._core.results import Result
from rfrope.rotation.rope import refuse_polar

_EQUAL = 64.0  # units in the last place of the highest score within which scores count as equal
_LEAST_TEMPERATURE = 2.0**-1000  # smallest temperature with finite scores


@dataclass(frozen=True, eq=False)
class PositionalAttention(Result):
    """Attention of one query of a positional head.

    Attributes
    ----------
    lags : array
        Key minus query position of each unmasked key, whole numbers in ascending order: ``(n,)``, or ``(n, k)`` for k
        axes, the last axis fastest.
    scores : array, ``(*H, n)``
        Before softmax, divided by ``temperature`` and, if scaled, by ``sqrt(d)``.
    weights : array, ``(*H, n)``
        Attention: softmax of the scores.
    mass : array, ``(*H,)``
        Attention on the keys at an offset; 0 if there are none.
    rival : array, ``(*H,)`` or ``(*H, k)``
        Lag of the closest rival: the key with the highest score among those at no offset; of equal scores, to rounding,
        the key nearest to the query.
    gap : array, ``(*H,)``
        Score at the offset (the lowest, if there are several) minus that of the rival. Infinite if there is no other
        key, and `rival` is then meaningless. If no key is at an offset, the margin that one would have.

    See Also
    --------
    heads.positional_attention

    Examples
    --------
    >>> import rfrope
    >>> found = rfrope.heads.positional_attention(rfrope.geometric(32), 64, offset=-1, temperature=0.1)
    >>> int(found.lags[found.weights.argmax()]), bool(found.mass > 0.5)
    (-1, True)
    """

    lags: Array
    scores: Array
    weights: Array
    mass: Array
    rival: Array
    gap: Array


@array.select_device
def positional_weights(
    frequencies: Array,
    *,
    d_model: int,
    offset: Array = -1,
    temperature: float = 1.0,
    pairing: str = "half",
    constant_index: int = 0,
    head_dim: int | None = None,
) -> tuple[Array, Array]:
    """Return weights of a head whose scores depend on the lag alone and are highest at `offset`.

    One feature of the token vectors must be 1 everywhere (for another number, divide both weights by it); the weights
    read no other. ``q = W_q x`` and ``k = W_k x`` are then the same for all tokens, and only the rotation distinguishes
    them.

    Parameters
    ----------
    frequencies : array_like, radians per unit of position
        ``(D,)`` or ``(*H, D, k)``, with at least one block.
    d_model : int
        Length of the token vectors x.
    offset : array_like, in units of position
        Lag to attend to, KEY minus QUERY, or several, which share the attention: ``()`` or ``(J,)`` for frequencies
        ``(D,)``; ``(k,)``, ``(J, k)`` or, per head, ``(*H, J, k)`` otherwise. May be negative or fractional.
    temperature : float
        Positive divisor of all scores: the lower, the sharper. A number without gradient.
    pairing : {"half", "interleaved"}
        Features of the head that form a block.
    constant_index : int
        Index of the constant feature of x.
    head_dim : int, optional
        Width of the head, even, at least 2D. Features beyond 2D are not rotated, and get zeros. Default: that of the
        Rope, or 2D.

    Returns
    -------
    W_q, W_k : arrays, ``(*H, head_dim, d_model)``, float64 where the library has it
        For ``x @ W.T``, the layout of a linear layer in PyTorch. Rotate q and k by position afterwards.

    Raises
    ------
    ValueError
        If shapes do not fit, there are no blocks, a value is NaN or infinite, the index is outside x, the temperature
        is not positive, the width is odd or too small, or the pairing is unknown.
    TypeError
        If arrays are of different libraries, or not integer or real floating.

    See Also
    --------
    heads.positional_scores, heads.positional_attention

    Notes
    -----
    W_k writes (1, 0) into every block, and ``W_q = R(offset) W_k / temperature``, so the score at a lag is
    ``sum_i cos((lag - offset) . omega_i) / temperature``, with the maximum ``D / temperature`` at the offset; see
    `positional_scores`. With several offsets W_q is the SUM of those for each, and so are the scores. Source: Wendler's
    notes on RoPE, whose "i even" is i odd, counted from 1; section 6 of the mathematics page.

    Examples
    --------
    >>> import numpy as np, rfrope
    >>> omega = rfrope.geometric(4)
    >>> W_q, W_k = positional_weights(omega, d_model=16, offset=-1)
    >>> x = np.random.default_rng(0).standard_normal((6, 16))
    >>> x[:, 0] = 1.0
    >>> at = np.arange(6)
    >>> rfrope.scores(x @ W_q.T, x @ W_k.T, at, at, omega)[3].round(3)  # scores of the query at 3: highest at 2
    array([2.564, 3.535, 4.   , 3.535, 2.564, 1.965])
    """
    d_model, constant_index = whole("d_model", d_model, 1), whole("constant_index", constant_index)
    temperature = positive("temperature", temperature, minimum=_LEAST_TEMPERATURE)
    if constant_index >= d_model:
        raise ValueError(
            f"constant_index is {constant_index}; expected an index into the d_model = {d_model} entries of x"
        )
    blocks.check_pairing(pairing)
    cos, sin, read = _turned_query(angles.frequencies_of(frequencies, pairing, 1.0), offset)
    xp = read.xp
    width = _head_width(head_dim, cos.shape[-1], frequencies)
    query = blocks.join(cos, sin, pairing, xp) * (1.0 / temperature)
    key = blocks.join(xp.ones_like(cos), xp.zeros_like(sin), pairing, xp)
    weights, is_constant = [], xp.arange(d_model, dtype=xp.int32, device=array.device(query)) == constant_index
    for values in (query, key):  # 0 but for one column, whose first rows are these
        rest = xp.broadcast_to(xp.zeros_like(values[..., :1]), (*values.shape[:-1], width - values.shape[-1]))
        column = (xp.concat([values, rest], axis=-1) if rest.shape[-1] else values)[..., None]
        weights.append(xp.where(is_constant, column, xp.zeros_like(column)))
    return weights[0], weights[1]


@array.select_device
def positional_scores(
    lags: Array,
    frequencies: Array,
    *,
    offset: Array = -1,
    temperature: float = 1.0,
    scaled: bool = True,
    head_dim: int | None = None,
) -> Array:
    """Return scores of a positional head by lag, ``sum_i cos((lag - offset) . omega_i) / temperature``.

    Parameters
    ----------
    lags : array_like, in units of position
        Lags, KEY minus QUERY: any shape ``P`` for frequencies ``(D,)``; ``(*P, k)`` otherwise.
    frequencies, offset, temperature, head_dim
        See `positional_weights`.
    scaled : bool
        Divide by ``sqrt(head_dim)``, as attention does before its softmax.

    Returns
    -------
    array, float64 where the library has it
        ``P``, or the shape of ``lags @ frequencies^T`` without its last axis.

    Raises
    ------
    ValueError, TypeError
        See `positional_weights`.

    See Also
    --------
    heads.positional_weights, heads.positional_attention

    Notes
    -----
    At a single offset it is ``D / temperature``, before ``sqrt(head_dim)``. Phases are exact, so the error is about
    1e-15 of that for ``|lag . omega|`` up to 2**53. Source: Wendler's notes on RoPE; section 6 of the mathematics page.

    Examples
    --------
    >>> import rfrope
    >>> positional_scores([-2, -1, 0], rfrope.geometric(64), scaled=False).round(3)
    array([62.094, 64.   , 62.094])
    """
    temperature = positive("temperature", temperature, minimum=_LEAST_TEMPERATURE)
    held = angles.frequencies_of(frequencies, scale=1.0)
    cos, sin, read = _turned_query(held, offset, lags=lags)
    at = angles.check_angles(lags, held, None, read.xp, read.device, "lags")
    factor = 1.0 / temperature * _softmax_scale(scaled, head_dim, at.blocks, frequencies)
    return at.drop_row_axis(_scores(at, cos, sin, factor))


@array.select_device
def positional_attention(
    frequencies: Array,
    context: int | Sequence[int],
    *,
    offset: Array = -1,
    temperature: float = 1.0,
    scaled: bool = True,
    causal: bool = True,
    window: int | None = None,
    query_position: int | Sequence[int] | None = None,
    head_dim: int | None = None,
) -> PositionalAttention:
    """Return the attention of a positional head for one query: closed form, mask and softmax.

    Parameters
    ----------
    frequencies, offset, temperature, head_dim
        See `positional_weights`.
    context : int or sequence of int
        Number of keys, at positions 0, 1, ...; for k axes the number along each.
    scaled : bool
        Divide scores by ``sqrt(head_dim)``, as attention does before its softmax.
    causal : bool
        Hide keys after the query. Several axes have no order: give False for them.
    window : int, optional
        Sliding window: hide keys whose distance from the query is `window` or more, on any axis.
    query_position : int or sequence of int, optional
        Position of the query. Default: the last one.

    Returns
    -------
    PositionalAttention

    Raises
    ------
    ValueError, TypeError
        See `positional_weights`. Also if a context, window or position is not whole or does not fit.

    See Also
    --------
    heads.PositionalAttention, heads.positional_weights

    Notes
    -----
    Source: Wendler's notes on RoPE, which leave out ``1/sqrt(d)`` and compare the previous token only with keys further
    back: under a causal mask the token itself, at lag 0, is as close a rival as its mirror image at lag -2. Section 6
    of the mathematics page.

    Examples
    --------
    A previous-token head of width 128 with base 10000, in a context of 1024:

    >>> import rfrope
    >>> omega = rfrope.geometric(64)
    >>> for temperature in (1.0, 0.1, 0.02):
    ...     found = positional_attention(omega, 1024, temperature=temperature)
    ...     print(temperature, round(float(found.mass), 5), int(found.rival), round(float(found.gap), 3))
    1.0 0.03762 0 0.168
    0.1 0.7279 0 1.685
    0.02 0.99956 0 8.425
    >>> round(float(positional_attention(omega, 1024, scaled=False).gap), 3)
    1.906
    """
    temperature = positive("temperature", temperature, minimum=_LEAST_TEMPERATURE)
    cos, sin, read = _turned_query(frequencies, offset)
    xp, axes = read.xp, read.frequencies.shape[-1]
    vectors = _lags_of_keys(_ranges_of_lags(context, axes, causal, window, query_position), cos, xp)
    factor = 1.0 / temperature * _softmax_scale(scaled, head_dim, cos.shape[-1], frequencies)
    scores = _scores(read._replace(positions=vectors), cos, sin, factor)
    at_offset = _scores(read, cos, sin, factor)
    offsets = array.widen(read.to_rows().positions, xp)[..., None, :, :]  # (..., 1, J, k)
    hit = xp.any(xp.all(array.astype(vectors, offsets.dtype, xp)[:, None, :] == offsets, axis=-1), axis=-1)
    powers = xp.exp(scores - xp.max(scores, axis=-1, keepdims=True))
    weights = powers / xp.sum(powers, axis=-1, keepdims=True)
    mass = xp.sum(xp.where(hit, weights, xp.zeros_like(weights)), axis=-1)
    others = xp.where(hit, xp.full_like(scores, -math.inf), scores)
    best = xp.max(others, axis=-1)
    doubt = _EQUAL * xp.finfo(scores.dtype).eps * xp.max(xp.abs(at_offset), axis=-1)
    distance = xp.sum(xp.abs(vectors), axis=-1, dtype=vectors.dtype)
    nearest = xp.argmin(xp.where(others >= (best - doubt)[..., None], distance, xp.max(distance) + 1), axis=-1)
    rival = xp.reshape(xp.take(vectors, xp.reshape(nearest, (-1,)), axis=0), (*nearest.shape, axes))
    gap = -xp.max(-at_offset, axis=-1) - best
    lags, rival = (angles.from_vectors(found, axes) for found in (vectors, rival))
    return PositionalAttention(lags, scores, weights, mass, rival, gap)


# -- closed forms ------------------------------------------------------------------------------------------------------


def _turned_query(frequencies: Any, offset: Any, **others: Any) -> tuple[Array, Array, Angles]:
    """The query of each block, ``sum_j R(offset_j) (1, 0)``, as ``(*H, D)``, and the angles of the offsets."""
    frequencies = angles.frequencies_of(frequencies, scale=1.0)
    xp, device = array.shared({"frequencies": frequencies, "offset": offset, **others})
    if xp is not np and type(offset) is int and abs(offset) < 2**31:  # the default, without a copy from the host
        offset = xp.full((), offset, dtype=xp.int32, device=device)
    offset = array.numbers(offset, xp, name="offset", device=device)
    if heads := tuple(getattr(frequencies, "shape", ()))[:-2]:  # so that errors say "offset"
        array.broadcast_shapes({"offset": tuple(offset.shape[:-2]), "the heads of frequencies": heads})
    read = angles.check_angles(offset, frequencies, None, xp, device, "offset", minimum=1)
    if 0 in offset.shape:
        raise ValueError(f"offset has shape {tuple(offset.shape)}; expected at least one")
    rows = read.to_rows()
    if rows.positions.ndim > read.frequencies.ndim:
        raise ValueError(
            f"offset has shape {tuple(offset.shape)}; expected () or (J,) for frequencies of one axis (D,), and (k,), "
            f"(J, k) or (*H, J, k) for frequencies (*H, D, k)"
        )
    cos, sin = turns.cos_sin.generic(rows)  # a call too small for compiled loops
    return xp.sum(cos, axis=-2), xp.sum(sin, axis=-2), read


def _scores(at: Angles, cos: Array, sin: Array, factor: float) -> Array:
    """``factor * sum_i cos_i cos u_i + sin_i sin u_i`` at lags ``(..., L)``, for a query ``(*H, D)``."""
    cosines, sines = sums.sum_blocks(at.to_rows(), cos[..., None, :], sin[..., None, :])
    return factor * (cosines + sines)


# -- the mask and the scale --------------------------------------------------------------------------------------------


def _ranges_of_lags(context: Any, axes: int, causal: Any, window: Any, query_position: Any) -> list[tuple[int, int]]:
    """Return the first visible lag and the one after the last, for each axis."""
    if (causal := flag("causal", causal)) and axes > 1:
        raise ValueError(
            f"causal is True, but frequencies have k = {axes} axes, which have no order; expected causal=False"
        )
    lengths = _whole_numbers("context", context, axes, 1)
    query = [n - 1 for n in lengths]
    if query_position is not None:
        query = _whole_numbers("query_position", query_position, axes, 0)
    if any(place >= n for place, n in zip(query, lengths, strict=True)):
        raise ValueError(f"query_position is {show(query_position)}; expected one in the context of {show(context)}")
    reach = max(lengths) if window is None else whole("window", window, 1)
    return [(max(-m, 1 - reach), min(1 if causal else n - m, reach)) for m, n in zip(query, lengths, strict=True)]


def _lags_of_keys(ranges: list[tuple[int, int]], like: Array, xp: ModuleType) -> Array:
    """Return all lags in the ranges, the last axis fastest, as ``(n, k)`` integers like an array."""
    dtype = xp.int64 if array.has_float64(xp, array.device(like)) else xp.int32
    total = math.prod(stop - start for start, stop in ranges)
    if total >= 2**31:
        raise ValueError(f"the query sees {total} keys; expected fewer than 2**31: a shorter context or window")
    each = [xp.arange(start, stop, dtype=dtype, device=array.device(like)) for start, stop in ranges]
    return xp.stack([xp.reshape(column, (-1,)) for column in xp.meshgrid(*each, indexing="ij")], axis=-1)


def _head_width(head_dim: Any, blocks: int, frequencies: Any) -> int:
    """Return the width of a head: the given one, if the blocks fit; otherwise that of the Rope, or 2D."""
    refuse_polar(frequencies, "frequencies", "polar contents cannot look at an offset; use a bias of the keys")
    head_dim = getattr(frequencies, "head_dim", 2 * blocks) if head_dim is None else head_dim
    width = whole("head_dim", head_dim)
    if width % 2 or width < 2 * blocks:
        raise ValueError(f"head_dim is {width}; expected an even number of at least 2D = {2 * blocks}")
    return width


def _softmax_scale(scaled: Any, head_dim: Any, blocks: int, frequencies: Any) -> float:
    """Return the factor of the scores before softmax, ``1 / sqrt(d)`` or 1, with d the features in a score."""
    if head_dim is None and hasattr(frequencies, "source"):  # a Rope
        head_dim = frequencies.source.model.qk_head_dim
    width = _head_width(head_dim, blocks, frequencies)
    return 1.0 / math.sqrt(width) if flag("scaled", scaled) else 1.0


def _whole_numbers(name: str, value: Any, axes: int, minimum: int) -> list[int]:
    """Return one whole number for each axis."""
    numbers = [whole(name, one, minimum) for one in (value if is_several(value) else (value,))]
    if len(numbers) != axes:
        each = "" if axes == 1 else f" for each of {axes} axes"
        raise ValueError(f"{name} is {show(value)}; expected a whole number{each}")
    return numbers
