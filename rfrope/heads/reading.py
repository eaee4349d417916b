"""Mean scores of real queries and keys by lag, averaged over content."""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from rfrope._core import angles, array, blocks, sums
from rfrope._core.angles import Angles
from rfrope._core.arguments import flag, positive
from rfrope._core.array import Array
from rfrope._core.blocks import MAGNITUDES, Tokens
from rfrope._core.results import Result
from rfrope._core.sums import CosSin, root


@dataclass(frozen=True, eq=False)
class Profile(Result):
    """Mean scores by lag, before softmax; see `heads.profile`.

    For lags of shape P (for k axes without the last one) and q and k with leading axes, such as heads, all fields
    except `lags` have the shape ``(..., *P)``. All scores include the given `scale`.

    Attributes
    ----------
    lags : array, in units of position
        The given lags, KEY minus QUERY.
    mean : array
        Mean score: ``cosine + sine``.
    spread : array
        Standard deviation of the score over the pairs.
    stderr : array
        Standard error of the mean, for independent tokens; NaN for fewer than two.
    cosine, sine : array
        Mean of ``sum_i A_i cos u_i`` and of ``sum_i B_i sin u_i``. Unrotated features count as cosines.
    blocks : array, ``(..., D, *P)``
        Mean of ``A_i cos u_i + B_i sin u_i`` for each block.

    See Also
    --------
    heads.profile

    Examples
    --------
    >>> import numpy as np, rfrope
    >>> found = rfrope.heads.profile(np.ones((8, 16)), np.ones((8, 16)), [-1, 0], rfrope.geometric(8))
    >>> found.lags, found.mean.round(3)
    (array([-1,  0]), array([14.97, 16.  ]))
    """

    lags: Array
    mean: Array
    spread: Array
    stderr: Array
    cosine: Array
    sine: Array
    blocks: Array


@array.select_device
def profile(
    q: Array,
    k: Array,
    lags: Array,
    frequencies: Array,
    *,
    shift: Array | None = None,
    pairing: str = "half",
    paired: bool = True,
    scale: float = 1.0,
) -> Profile:
    """Return the mean score by lag of queries and keys, with its spread, cosine and sine parts, and blocks.

    The mean is over every query with every key, put at that lag whatever their positions: the effect of the lag.

    Parameters
    ----------
    q, k : array_like, (..., n, d) and (..., m, d)
        Queries and keys before rotation, of one head or, with leading axes that broadcast, of several. d is even and at
        least 2D; features beyond 2D count unrotated. For a polar Rope magnitudes, ``(..., n, D)`` and ``(..., m, D)``.
    lags : array_like, in units of position
        Lags, KEY minus QUERY: any shape ``P`` for frequencies ``(D,)``, ``(*P, k)`` otherwise.
    frequencies : array_like, radians per unit of position
        One set: ``(D,)`` or ``(D, k)``.
    shift : array_like, radians, optional
        Learned phases of the keys, such as the bias of polar attention: ``(D,)``, or one set per head with the leading
        axes of `k`. A and B are then those of the shifted keys.
    pairing : {"half", "interleaved"}
        Features that form a block; ignored for magnitudes.
    paired : bool
        True if row i of q and row i of k belong to the same token, as in self-attention; they must then be equally
        many. Affects only `stderr`.
    scale : float
        Positive factor of all scores. Models use ``1 / sqrt(d)`` before their softmax.

    Returns
    -------
    Profile
        Arrays in float64 where the library has it.

    Raises
    ------
    ValueError
        If shapes do not fit, there are no tokens or blocks, frequencies are more than one set, a magnitude is negative,
        a feature or lag is NaN or infinite (features are checked only where that is free: not on devices, in JAX or in
        Dask), or q and k are paired but differ in number.
    TypeError
        If features are not real floating, or arrays are of different libraries.

    See Also
    --------
    heads.Profile, heads.effective_offset

    Notes
    -----
    ``S = sum_i A_i cos u_i + B_i sin u_i`` is bilinear in q and k, so its mean over all pairs is the score of the mean
    query and the mean key. Its variance has three parts: the mean key with the variation of queries, the mean query
    with that of keys, and both together.

    `stderr` sums the effects of each token on the mean, as a query and as a key in all of its pairs, and the rest of
    each pair: pairs that share a token are not independent draws, tokens are assumed to be. It is too small for text
    whose neighbouring tokens resemble each other.

    `positional_scores` returns the scores of a head that attends by position alone, without queries and keys.

    For a polar Rope ``A_i = m_i m'_i cos(shift_i)`` and ``B_i = -m_i m'_i sin(shift_i)``: `mean`, over its value at
    lag 0, is the kernel that a trained polar head has arrived at.

    Source: the exact decomposition of the RF-RoPE paper.

    Examples
    --------
    The previous-token head of SmolLM2, all pairs of 169 tokens at each lag. The peak is at -1:

    >>> import numpy as np, rfrope
    >>> heads = rfrope.data.smollm2_heads()
    >>> q, k, omega = heads["previous_q"], heads["previous_k"], heads["inv_freq"]
    >>> found = profile(q, k, [0, -1, -2, -3], omega, scale=1 / 8)
    >>> found.mean.round(1), found.spread.round(1), found.stderr.round(2)
    (array([-2.2,  2.7,  0.2, -7.5]), array([0.9, 0.9, 1.1, 1.6]), array([0.05, 0.08, 0.08, 0.12]))

    A peak off lag 0 needs sines, and pairs that occur at a lag score there like any others:

    >>> found.cosine.round(1), found.sine.round(1)
    (array([ -2.2,  -4. ,  -7.9, -11.1]), array([0. , 6.7, 8.1, 3.6]))
    >>> scores = rfrope.scores(q, k, np.arange(169), np.arange(169), omega) / 8
    >>> [round(float(np.diagonal(scores, lag).mean()), 1) for lag in (0, -1, -2, -3)]
    [-1.9, 2.7, 0.2, -7.5]
    """
    scale, polar = positive("scale", scale), bool(getattr(frequencies, "polar", False))
    held, others = angles.frequencies_of(frequencies, pairing, 1.0, q, "q", polar), {"shift": shift}
    read = angles.read(lags, held, name="lags", minimum=1, shapes="one", other_arguments=others, q=q, k=k)
    xp, device, turned = read.xp, read.device, read.blocks
    tokens = blocks.tokens(q, k, xp, device, MAGNITUDES if polar else pairing, turned)
    tokens = tokens if shift is None else _shift_keys(tokens, shift, read)
    check_paired(paired, tokens)
    shape, omega = read.shape[:-1], read.frequencies
    if n_still := tokens.q_1.shape[-1] - turned:  # features that are not turned are blocks whose frequency is 0
        space = array.namespace(frequencies=omega)
        with array.library(omega).eager(omega):
            none = space.broadcast_to(space.zeros_like(omega[:1, :]), (n_still, omega.shape[-1]))
            omega = space.concat([omega, none], axis=0)
    rows = xp.reshape(read.positions, (-1, read.positions.shape[-1]))
    still, sides = read._replace(positions=rows, frequencies=omega), split_sides(tokens, xp)
    heads = math.prod(array.broadcast_shapes({"q": tokens.q_1.shape[:-2], "k": tokens.k_1.shape[:-2]}))
    largest = heads * max(tokens.q_1.shape[-2], tokens.k_1.shape[-2], still.blocks)
    found = [
        _average_pairs(sides, paired, turned, CosSin.from_angles(still.select_positions(span)))
        for span in sums.parts(max(1, rows.shape[0]), largest)  # no lags: arrays without elements, of the same shapes
    ]
    columns = (scale * xp.concat(list(column), axis=-1) for column in zip(*found, strict=True))
    spread, error, cosine, sine, by_block = (xp.reshape(one, (*one.shape[:-1], *shape)) for one in columns)
    lags = array.numbers(lags, xp, name="lags", device=device)
    return Profile(lags, cosine + sine, spread, error, cosine, sine, by_block)


# -- the mean over all pairs -------------------------------------------------------------------------------------------


def check_paired(paired: Any, tokens: Tokens) -> None:
    """Raise if queries and keys are said to be of the same tokens but cannot be."""
    n, m = tokens.q_1.shape[-2], tokens.k_1.shape[-2]
    if flag("paired", paired) and n != m:
        raise ValueError(
            f"q has {n} tokens and k {m}, but paired is True; expected as many of each, or paired=False for queries "
            "and keys of other tokens"
        )


def _shift_keys(tokens: Tokens, shift: Any, read: Angles) -> Tokens:
    """Turn keys by phases of their blocks, ``(..., D)``; those that do not turn stay."""
    xp = read.xp
    phases = angles.read_numbers("shift", shift, xp, read.device)
    if phases.ndim == 0 or phases.shape[-1] != read.blocks:
        raise ValueError(f"shift has shape {tuple(phases.shape)}; expected (..., {read.blocks})")
    phases = array.astype(phases, tokens.k_1.dtype, xp)[..., None, :]
    array.broadcast_shapes({"shift": phases.shape[:-2], "k": tokens.k_1.shape[:-2]})
    if still := tokens.k_1.shape[-1] - read.blocks:
        none = xp.broadcast_to(xp.zeros_like(phases[..., :1]), (*phases.shape[:-1], still))
        phases = xp.concat([phases, none], axis=-1)
    cos, sin = xp.cos(phases), xp.sin(phases)
    return tokens._replace(k_1=tokens.k_1 * cos - tokens.k_2 * sin, k_2=tokens.k_1 * sin + tokens.k_2 * cos)


def split_sides(tokens: Tokens, xp: ModuleType) -> tuple[Any, Any, Any, Tokens]:
    """Return coefficients ``(..., tokens, blocks)`` and deviations from the means.

    Coefficients are those of the mean query with the mean key, of deviations of queries with the mean key, and of the
    mean query with deviations of keys.
    """
    mean = Tokens(*(xp.mean(part, axis=-2, keepdims=True) for part in tokens))
    apart = Tokens(*(part - one for part, one in zip(tokens, mean, strict=True)))
    queries = Tokens(apart.q_1, apart.q_2, mean.k_1, mean.k_2).coefficients()
    keys = Tokens(mean.q_1, mean.q_2, apart.k_1, apart.k_2).coefficients()
    return mean.coefficients(), queries, keys, apart


def _average_pairs(
    sides: tuple[Any, Any, Any, Tokens], paired: bool, turned: int, waves: CosSin
) -> tuple[Array, Array, Array, Array, Array]:
    """Spread, standard error, means of cosines and of sines, and of each turned block, at waves ``(L, blocks)``."""
    (mean, queries, keys, apart), xp = sides, waves.xp
    n, m = apart.q_1.shape[-2], apart.k_1.shape[-2]
    joint = _joint_variance(apart, waves)
    # effect of each token on the mean, as a query and as a key
    as_q, as_k = (waves.total(a[..., None, :], b[..., None, :]) for a, b in (queries, keys))
    of_q, of_k = (xp.sum(side * side, axis=-2) for side in (as_q, as_k))
    variance = of_q / float(n) + of_k / float(m) + joint
    if min(n, m) < 2:
        error = xp.full_like(variance, math.nan)
    else:
        error = of_q / (n * (n - 1.0)) + of_k / (m * (m - 1.0))
        if paired:
            error = xp.sum((as_q + as_k) ** 2, axis=-2) / (n * (n - 1.0))
        once = joint / ((n - 1.0) * (m - 1.0))  # both parts hold it, because the means are those of these tokens
        error = xp.where(error > 2.0 * once, error - once, once)
    cosines, sines = mean[0] * waves.cos, mean[1] * waves.sin
    by_block = xp.matrix_transpose(cosines[..., :turned] + sines[..., :turned])
    return root(variance, xp), root(error, xp), *waves.summed(*mean), by_block


def _joint_variance(apart: Tokens, waves: CosSin) -> Array:
    """Mean over all pairs of the squared score of two deviations, from the second moments of each side."""
    xp = waves.xp
    n, m = apart.q_1.shape[-2], apart.k_1.shape[-2]
    q, k = (apart.q_1, apart.q_2), (apart.k_1, apart.k_2)
    (q_11, q_12), (q_21, q_22) = ([xp.matmul(xp.matrix_transpose(one), other) / float(n) for other in q] for one in q)
    (k_11, k_12), (k_21, k_22) = ([xp.matmul(xp.matrix_transpose(one), other) / float(m) for other in k] for one in k)
    both_a = q_11 * k_11 + q_12 * k_12 + q_21 * k_21 + q_22 * k_22
    both_b = q_22 * k_11 - q_21 * k_12 - q_12 * k_21 + q_11 * k_22
    a_and_b = q_12 * k_11 - q_11 * k_12 + q_22 * k_21 - q_21 * k_22
    return array.clip(waves.mean_square(both_a, a_and_b, both_b), 0.0, None, xp)  # rounding may leave less than nothing
