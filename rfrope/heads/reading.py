"""Mean scores of real queries and keys by lag, averaged over content."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from rfrope._core import angles, array, blocks, sums
from rfrope._core.angles import Angles
from rfrope._core.arguments import choice, flag, positive
from rfrope._core.array import Array
from rfrope._core.blocks import MAGNITUDES, Tokens
from rfrope._core.dispatch import CPU, dispatched
from rfrope._core.results import Result
from rfrope._core.sums import CosSin, root


@dataclass(frozen=True, eq=False)
class Profile(Result):
    """Mean scores by lag, before softmax; see `heads.profile`.

    For lags of shape P (for k axes without the last one) and q and k with leading axes, such as heads, all fields
    except `lags` and `count` have the shape ``(..., *P)``. All scores include the given `scale`.

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
    count : array, P
        Number of pairs in the mean, as floats.
    cosine, sine : array
        Mean of ``sum_i A_i cos u_i`` and of ``sum_i B_i sin u_i``. Unrotated features count as cosines.
    blocks : array, ``(..., D, *P)``
        Mean of ``A_i cos u_i + B_i sin u_i`` for each block.

    See Also
    --------
    heads.profile, plotting.attention

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
    count: Array
    cosine: Array
    sine: Array
    blocks: Array


class Pairs(NamedTuple):
    """Rows of q and k at each lag: ``i[first[lag]:first[lag + 1]]`` in ascending order, and the same for j."""

    first: np.ndarray
    i: np.ndarray
    j: np.ndarray


@array.select_device
def profile(
    q: Array,
    k: Array,
    lags: Array,
    frequencies: Array,
    *,
    shift: Array | None = None,
    pairing: str = "half",
    pairs: str = "all",
    q_positions: Array | None = None,
    k_positions: Array | None = None,
    paired: bool = True,
    scale: float = 1.0,
) -> Profile:
    """Return the mean score by lag of queries and keys, with its spread, cosine and sine parts, and blocks.

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
    pairs : {"all", "occurring"}
        Pairs to average over. "all": every query with every key, put at that lag whatever their positions, which shows
        the effect of the lag. "occurring": the pairs at that lag, ``k_position - q_position == lags``, which shows what
        the head sees in this text, where lag and content go together.
    q_positions, k_positions : array_like, optional
        For "occurring" pairs: ``(n,)`` and ``(m,)``, or ``(n, k)`` and ``(m, k)``. Default for one axis:
        ``0, 1, 2, ...``
    paired : bool
        True if row i of q and row i of k belong to the same token, as in self-attention; they must then be equally
        many. Affects only `stderr`.
    scale : float
        Positive factor of all scores. Models use ``1 / sqrt(d)`` before their softmax.

    Returns
    -------
    Profile
        Arrays in float64 where the library has it. Lags at which no pair occurs have NaN.

    Raises
    ------
    ValueError
        If shapes do not fit, there are no tokens or blocks, frequencies are more than one set, a magnitude is negative,
        a feature, lag or position is NaN or infinite (features are checked only where that is free: not on devices, in
        JAX or in Dask), q and k are paired but differ in number, positions are given for all pairs or missing for
        several axes, or an option is unknown.
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

    Source: the exact decomposition of the RF-RoPE paper. With "occurring" pairs lags and positions are copied to the
    host.

    Examples
    --------
    The previous-token head of SmolLM2, all pairs of 169 tokens at each lag. The peak is at -1:

    >>> from rfrope.data import smollm2_heads
    >>> heads = smollm2_heads()
    >>> q, k, omega = heads["previous_q"], heads["previous_k"], heads["inv_freq"]
    >>> found = profile(q, k, [0, -1, -2, -3], omega, scale=1 / 8)
    >>> found.mean.round(1), found.spread.round(1), found.stderr.round(2)
    (array([-2.2,  2.7,  0.2, -7.5]), array([0.9, 0.9, 1.1, 1.6]), array([0.05, 0.08, 0.08, 0.12]))

    A peak off lag 0 needs sines, and neighbouring pairs score there like any others:

    >>> found.cosine.round(1), found.sine.round(1)
    (array([ -2.2,  -4. ,  -7.9, -11.1]), array([0. , 6.7, 8.1, 3.6]))
    >>> profile(q, k, [0, -1, -2, -3], omega, pairs="occurring", scale=1 / 8).mean.round(1)
    array([-1.9,  2.7,  0.2, -7.5])
    """
    choice("pairs", pairs, ("all", "occurring"))
    scale, positions = positive("scale", scale), {"q_positions": q_positions, "k_positions": k_positions}
    polar = bool(getattr(frequencies, "polar", False))
    held = angles.frequencies_of(frequencies, pairing, 1.0, q, "q", polar)
    others = positions | {"shift": shift}
    read = angles.read(lags, held, name="lags", minimum=1, shapes="one", other_arguments=others, q=q, k=k)
    xp, device = read.xp, read.device
    tokens = blocks.tokens(q, k, xp, device, MAGNITUDES if polar else pairing, read.blocks)
    tokens = tokens if shift is None else _shift_keys(tokens, shift, read)
    check_paired(paired, tokens)
    if pairs == "all" and not (q_positions is None and k_positions is None):
        raise ValueError("q_positions or k_positions is given, but pairs is 'all'; expected pairs='occurring'")
    shape = read.shape[:-1]
    read = read._replace(positions=xp.reshape(read.positions, (-1, read.positions.shape[-1])))
    rows = None if pairs == "all" else _row_pairs(q_positions, k_positions, read.positions, tokens)
    number, spread, stderr, cosine, sine, by_block = _collect_by_lags(
        Sides.split(tokens, paired, read.blocks, xp), read, rows
    )
    cosine, sine = scale * cosine, scale * sine
    values = (cosine + sine, scale * spread, scale * stderr, number, cosine, sine, scale * by_block)
    lags = array.numbers(lags, xp, name="lags", device=device)
    return Profile(lags, *(xp.reshape(value, (*value.shape[:-1], *shape)) for value in values))


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


class Sides(NamedTuple):
    """Queries and keys, their deviations from the mean, and coefficients ``(..., tokens, blocks)``.

    Those of a side combine its deviations with the mean of the other; `mean` has those of the two means.
    """

    tokens: Tokens
    apart: Tokens
    mean: tuple[Array, Array]
    queries: tuple[Array, Array]
    keys: tuple[Array, Array]
    paired: bool
    turned: int  # blocks

    @classmethod
    def split(cls, tokens: Tokens, paired: bool, turned: int, xp: ModuleType) -> Sides:
        """Return the sides of tokens with `turned` rotated blocks."""
        mean = Tokens(*(xp.mean(part, axis=-2, keepdims=True) for part in tokens))
        apart = Tokens(*(part - one for part, one in zip(tokens, mean, strict=True)))
        queries = Tokens(apart.q_1, apart.q_2, mean.k_1, mean.k_2).coefficients()
        keys = Tokens(mean.q_1, mean.q_2, apart.k_1, apart.k_2).coefficients()
        return cls(tokens, apart, mean.coefficients(), queries, keys, paired, turned)

    @property
    def sizes(self) -> tuple[int, int]:
        """Return the numbers of queries and of keys."""
        return self.tokens.q_1.shape[-2], self.tokens.k_1.shape[-2]


def _collect_by_lags(sides: Sides, read: Angles, rows: Callable[[slice], Pairs] | None) -> tuple[Array, ...]:
    """Count, spread, standard error, means of cosines and of sines, and of each block, some lags at a time."""
    xp, lags, parts = read.xp, read.positions.shape[0], (sides.tokens.q_1, sides.tokens.k_1)
    lead = math.prod(array.broadcast_shapes({"q": parts[0].shape[:-2], "k": parts[1].shape[:-2]}))
    still, omega, found = read, read.frequencies, []
    if n_still := parts[0].shape[-1] - read.blocks:  # features that are not turned are blocks whose frequency is 0
        space = array.namespace(frequencies=omega)
        with array.library(omega).eager(omega):
            none = space.broadcast_to(space.zeros_like(omega[:1, :]), (n_still, omega.shape[-1]))
            still = read._replace(frequencies=space.concat([omega, none], axis=0))
    rows = rows if lags else None  # no lags: arrays without elements, of the same shapes
    for span in sums.parts(max(1, lags), lead * max(*sides.sizes, still.blocks)):
        waves = CosSin.from_angles(still.select_positions(span))
        means = _average_all_pairs(sides, waves) if rows is None else _sum_occurring_pairs(sides, waves, rows(span))
        found.append(means)
    return tuple(xp.concat(list(column), axis=-1) for column in zip(*found, strict=True))


def _average_all_pairs(sides: Sides, waves: CosSin) -> tuple[Array, ...]:
    """As `_collect_by_lags`, at waves ``(L, blocks)``."""
    xp, (n, m) = waves.xp, sides.sizes
    joint = _joint_variance(sides.apart, waves)
    # effect of each token on the mean, as a query and as a key
    as_q, as_k = (waves.total(a[..., None, :], b[..., None, :]) for a, b in (sides.queries, sides.keys))
    of_q, of_k = (xp.sum(side * side, axis=-2) for side in (as_q, as_k))
    variance = of_q / float(n) + of_k / float(m) + joint
    if min(n, m) < 2:
        error = xp.full_like(variance, math.nan)
    else:
        error = of_q / (n * (n - 1.0)) + of_k / (m * (m - 1.0))
        if sides.paired:
            error = xp.sum((as_q + as_k) ** 2, axis=-2) / (n * (n - 1.0))
        once = joint / ((n - 1.0) * (m - 1.0))  # both parts hold it, because the means are those of these tokens
        error = xp.where(error > 2.0 * once, error - once, once)
    number = xp.full_like(waves.cos[..., 0], float(n) * float(m))
    cosines, sines = waves.block_terms(*sides.mean)
    by_block = xp.matrix_transpose(cosines[..., : sides.turned] + sines[..., : sides.turned])
    return number, root(variance, xp), root(error, xp), *waves.summed(*sides.mean), by_block


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


# -- the mean over pairs that occur ------------------------------------------------------------------------------------


@dispatched(CPU.sums)
def _sum_occurring_pairs(sides: Sides, waves: CosSin, rows: Pairs) -> tuple[Array, ...]:
    """As `_average_all_pairs`, for the rows of q and k that are at each lag, of which several may share a token.

    A score is what its query adds, what its key adds, and a rest. The rests are uncorrelated; a token adds its part as
    often as it is in a pair.
    """
    xp, tokens, found, (n, m) = waves.xp, sides.tokens, [], sides.sizes
    device = array.device(tokens.q_1)
    for lag in range(waves.cos.shape[0]):
        i, j = (index[rows.first[lag] : rows.first[lag + 1]] for index in (rows.i, rows.j))
        wave, at = waves.row(lag), [array.from_host(index, xp, device=device) for index in (i, j)]
        taken = Tokens(
            *(xp.take(part, at[0], axis=-2) for part in (tokens.q_1, tokens.q_2)),
            *(xp.take(part, at[1], axis=-2) for part in (tokens.k_1, tokens.k_2)),
        )
        coefficients = taken.coefficients()
        score, from_q, from_k = (wave.total(*each) for each in (coefficients, sides.queries, sides.keys))
        divisor = float(len(i)) or math.nan
        apart_score = score - xp.sum(score, axis=-1, keepdims=True) / divisor
        spread = root(xp.sum(apart_score * apart_score, axis=-1) / divisor, xp)
        pairs = len(i)
        if min(n, m, pairs) < 2:
            error = xp.full_like(spread, math.nan)
        else:
            parts = []
            for part, index in ((from_q, i), (from_k, j)):
                times = np.bincount(index, minlength=part.shape[-1]).astype(np.float64)
                parts.append(part * array.astype(array.from_host(times, xp, device=device), part.dtype, xp))
            rest = score - xp.take(from_q, at[0], axis=-1) - xp.take(from_k, at[1], axis=-1)
            rest = rest - xp.mean(rest, axis=-1, keepdims=True)
            squares = xp.sum(rest * rest, axis=-1) * (pairs / (pairs - 1.0))
            for side in [parts[0] + parts[1]] if sides.paired else parts:
                squares = squares + xp.sum(side * side, axis=-1) * (side.shape[-1] / (side.shape[-1] - 1.0))
            error = root(squares / float(pairs) ** 2, xp)
        number = xp.full((), float(pairs), dtype=score.dtype, device=device)
        mean = [xp.sum(part, axis=-2) / divisor for part in coefficients]
        cosines, sines = wave.block_terms(*mean)
        by_block = cosines[..., : sides.turned] + sines[..., : sides.turned]
        found.append((number, spread, error, *wave.summed(*mean), by_block))
    return tuple(xp.stack(list(column), axis=-1) for column in zip(*found, strict=True))


def _row_pairs(q_positions: Any, k_positions: Any, lags: Array, tokens: Tokens) -> Callable[[slice], Pairs]:
    """Return a function that finds the rows of q and k at some of the lags, on the host."""
    steps = array.to_host(lags, "lags")
    q = _host_positions("q_positions", q_positions, tokens.q_1.shape[-2], steps.shape[-1])
    k = _host_positions("k_positions", k_positions, tokens.k_1.shape[-2], steps.shape[-1])
    return lambda span: _matches(q + steps[span, None, :], k)


def _host_positions(name: str, value: Any, rows: int, axes: int) -> np.ndarray:
    if value is None and axes > 1:
        raise ValueError(f"{name} is None; expected positions, as the frequencies have {axes} axes")
    host = np.arange(rows) if value is None else angles.numbers_on_host(value, name)
    if host.shape not in ((rows, axes), (rows,)) or host.size != rows * axes or not np.all(np.isfinite(host)):
        raise ValueError(f"{name} has shape {host.shape}; expected finite positions {(rows, axes)}, one a token")
    return host.astype(np.float64).reshape(rows, axes)


def _matches(targets: np.ndarray, places: np.ndarray) -> Pairs:
    """Rows i, j with ``targets[lag, i] == places[j]``, of ``(lags, rows, axes)`` and ``(rows, axes)``."""
    held, wanted = np.zeros(len(places), np.int64), np.zeros(targets.shape[:2], np.int64)
    found = np.ones(targets.shape[:2], bool)
    for axis in range(places.shape[-1]):  # places are numbered by their values on the axes so far
        values, rank = np.unique(places[:, axis], return_inverse=True)
        at = _found_in(values, targets[..., axis], found)
        names, held = np.unique(held * len(values) + rank.reshape(-1), return_inverse=True)
        wanted = _found_in(names, wanted * len(values) + at, found)
    order, often = np.argsort(held, kind="stable"), np.bincount(held)
    counts = found * often[wanted]
    first = np.concatenate([[0], np.cumsum(np.sum(counts, axis=-1))])
    _, i = np.nonzero(counts)
    if np.all(often == 1):
        return Pairs(first, i, order[wanted[found]])
    counts, begin = counts[counts > 0], (np.cumsum(often) - often)[wanted[found]]
    within = np.arange(first[-1]) - np.repeat(np.cumsum(counts) - counts, counts)
    return Pairs(first, np.repeat(i, counts), order[np.repeat(begin, counts) + within])


def _found_in(values: np.ndarray, wanted: np.ndarray, found: np.ndarray) -> np.ndarray:
    """Indices of some numbers among sorted ones, 0 where they are not there, and then not `found` either."""
    at = np.minimum(np.searchsorted(values, wanted), len(values) - 1)
    found &= values[at] == wanted
    return np.where(found, at, 0)
