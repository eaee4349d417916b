"""The offset that a trained head prefers, read from its queries and keys, or from its weights.

A score depends on two contents and one lag. Averaged over contents it is a sum of waves of the lag, one per block,
which shows the effect of position in a head. `offset` is the lag, key minus query, of its peak: -1 is the previous
token.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from rfrope._core import angles, array, blocks, random, sums
from rfrope._core.arguments import LARGEST, flag, positive, whole
from rfrope._core.array import Array
from rfrope._core.blocks import Tokens
from rfrope._core.results import returned_as_given
from rfrope._core.sums import CosSin
from rfrope.heads.peaks import Peak, angles_at, peak_of_waves, values_at
from rfrope.heads.reading import Sides, check_paired

_NEAR = 0.5  # positions: peaks this close are the same, as lags between tokens are whole
_ROUNDED = 1e-6  # fraction of the largest eigenvalue: float32 error in symmetry, and in eigenvalues that are 0
_GRID = (8, 32)  # grid points per position, and per turn of the fastest block, on which resamples find their peak


@dataclass(frozen=True, eq=False)
class EffectiveOffset(Peak):
    """The lag that a head prefers, averaged over content; see `effective_offset`.

    Fields are arrays of the shape of the leading axes of q and k.

    Attributes
    ----------
    offset : ndarray, in units of position
        Real lag, KEY minus QUERY, at the peak of the mean score over all pairs of contents.
    value : ndarray
        Mean score at the offset, with the scale.
    runner_up, runner_up_value : ndarray
        Lag and value of the second-highest local maximum; NaN if there is none.
    lag : ndarray of int
        Whole lag with the highest mean score.
    mass : ndarray
        Attention on `lag` by position alone: the softmax of the mean scores at all whole lags of the range.
    confidence : ndarray
        Fraction of resamples of the tokens in which the peak stays within half a position of `offset`, on a grid of 8
        points per position, or 32 per turn of the fastest block where that is finer.
    stderr : ndarray
        Standard error of `offset`, as long as the peak stays the highest, by the delta method for independent tokens.
        NaN if the peak is at an end of the range.

    See Also
    --------
    heads.effective_offset

    Examples
    --------
    >>> import rfrope
    >>> from rfrope.data import smollm2_heads
    >>> heads = smollm2_heads()
    >>> found = rfrope.heads.effective_offset(heads["previous_q"], heads["previous_k"], heads["inv_freq"])
    >>> int(found.lag), round(float(found.offset), 2)
    (-1, -1.17)
    """

    lag: np.ndarray
    mass: np.ndarray
    confidence: np.ndarray
    stderr: np.ndarray


@dataclass(frozen=True, eq=False)
class WeightOffset(Peak):
    """The lag that a head's weights prefer; see `offset_from_weights`.

    Fields are arrays of the shape of the leading axes of the weights; those of blocks have another axis ``(D,)``.

    Attributes
    ----------
    offset : ndarray, in units of position
        Real lag, KEY minus QUERY, at the peak of the expected score.
    value : ndarray
        Expected score at the offset, with the scale.
    runner_up, runner_up_value : ndarray
        Lag and value of the second-highest local maximum; NaN if there is none.
    lag : ndarray of int
        Whole lag with the highest expected score.
    mass : ndarray
        Attention on `lag` by position alone: the softmax of the expected scores at all whole lags of the range.
    confidence : ndarray
        Lower bound, from 0 to 1, on the probability that blocks with random angles would not make any whole lag of the
        range stand out as much.
    angle : ndarray, (..., D), radians
        Rotation of each block of the key's weights against the query's, between -pi and pi: the learned shift. Its part
        of the score is ``weight cos(u + angle)``.
    weight : ndarray, (..., D)
        Amplitude of each block's part, nonnegative, with the scale.
    quality : ndarray, (..., D)
        Fraction of the key's rows of each block explained by the query's rows, rotated by `angle` and scaled, from 0 to
        1. 0 if one of them vanishes.

    See Also
    --------
    heads.offset_from_weights

    Examples
    --------
    >>> import rfrope
    >>> omega = rfrope.geometric(32)
    >>> weights = rfrope.heads.positional_weights(omega, d_model=8, offset=-3, temperature=4.0)
    >>> found = rfrope.heads.offset_from_weights(*weights, omega, max_lag=512)
    >>> round(float(found.offset), 6), int(found.lag)
    (-3.0, -3)
    """

    lag: np.ndarray
    mass: np.ndarray
    confidence: np.ndarray
    angle: np.ndarray
    weight: np.ndarray
    quality: np.ndarray


@returned_as_given
def effective_offset(
    q: Array,
    k: Array,
    frequencies: Array,
    *,
    max_lag: int | None = None,
    pairing: str = "half",
    causal: bool = True,
    scale: float | None = None,
    paired: bool = True,
    n_resamples: int = 1000,
    rng: Any = 0,
) -> EffectiveOffset:
    """Return the lag that a head prefers by position, from its queries and keys on some text, with its confidence.

    Parameters
    ----------
    q, k : array_like, (..., n, d) and (..., m, d)
        Queries and keys before rotation; see `heads.profile`.
    frequencies : array_like, radians per position
        One set: ``(D,)`` or ``(D, 1)``.
    max_lag : int, optional
        Largest distance to examine, at least 1. Default: that of the given tokens.
    pairing : {"half", "interleaved"}
        Features that form a block.
    causal : bool
        Examine only lags from -max_lag to 0, not those to max_lag.
    scale : float, optional
        Positive factor of the scores. Default: ``1 / sqrt(d)``.
    paired : bool
        True if row i of q and row i of k belong to the same token, so that they are resampled together; they must then
        be equally many.
    n_resamples : int
        Number of resamples of the tokens, with replacement, for `confidence`.
    rng : None, int or numpy.random.Generator
        Seed of the resamples; the default gives the same on every call.

    Returns
    -------
    EffectiveOffset

    Raises
    ------
    ValueError
        See `heads.profile`. Also if there are fewer than two tokens, or no block with a score has a nonzero frequency,
        so that all lags are alike.
    TypeError
        See `heads.profile`.

    See Also
    --------
    heads.EffectiveOffset, heads.offset_from_weights

    Notes
    -----
    The mean score over all pairs, `heads.profile`, is ``f(x) = sum_i A_i cos(omega_i x) + B_i sin(omega_i x)`` with the
    coefficients of the mean query and the mean key; its peak over real x is found globally. `offset` is the effect of
    position alone: a head that follows content, such as an induction head, has a peak too, which does not say where it
    looks. `mass` tells these apart: it is near 1 only if position alone is enough.

    `confidence` is a bootstrap over tokens, assumed independent: whether other tokens of the same kind would give the
    same offset. It says nothing about other kinds of text, nor how much the head cares for that offset: rank heads by
    `mass`.

    Examples
    --------
    >>> from rfrope.data import smollm2_heads
    >>> heads = smollm2_heads()
    >>> found = effective_offset(heads["previous_q"], heads["previous_k"], heads["inv_freq"])
    >>> int(found.lag), round(float(found.offset), 2), round(float(found.stderr), 3), float(found.confidence)
    (-1, -1.17, 0.005, 1.0)
    >>> round(float(found.mass), 2)
    0.91

    An induction head follows content, and position has almost no effect:

    >>> found = effective_offset(heads["induction_q"], heads["induction_k"], heads["inv_freq"])
    >>> round(float(found.mass), 2)
    0.01
    """
    q, k, omega = _bring_to_host(q=q, k=k, frequencies=angles.frequencies_of(frequencies, pairing, 1.0, q))

    tokens = blocks.tokens(q, k, np, None, pairing, len(omega))
    n, m = tokens.q_1.shape[-2], tokens.k_1.shape[-2]
    check_paired(paired, tokens)
    if min(n, m) < 2:
        raise ValueError(f"q has {n} tokens and k {m}; expected at least two of each")
    low, high = _lag_range(max(n, m) - 1 if max_lag is None else max_lag, causal)
    scale = q.shape[-1] ** -0.5 if scale is None else positive("scale", scale)
    n_resamples = whole("n_resamples", n_resamples, 1)
    key, draws = random.key_from_rng(rng), []
    for stream, count in enumerate((n,) if paired else (n, m)):  # weights of the tokens in each resample, with sum 1
        drawn = np.floor(random.uniforms(key, 0, count, n_resamples, stream=stream)[0] * count).astype(np.int64)
        cell = drawn + count * np.arange(n_resamples)
        times = np.bincount(cell.reshape(-1), minlength=count * n_resamples)
        draws.append(times.reshape(n_resamples, count) / count)
    shape = array.broadcast_shapes({"q": tokens.q_1.shape[:-2], "k": tokens.k_1.shape[:-2]})
    rows = [_read_head(head, omega, low, high, scale, draws) for head in _heads(tokens)]
    return EffectiveOffset(**_stack_fields(EffectiveOffset, rows, shape))


@returned_as_given
def offset_from_weights(
    w_q: Array,
    w_k: Array,
    frequencies: Array,
    *,
    max_lag: int,
    mean: Array | None = None,
    second_moment: Array | None = None,
    pairing: str = "half",
    causal: bool = True,
    scale: float | None = None,
) -> WeightOffset:
    """Return the lag that a head prefers by position, from its weights and, if known, moments of its input.

    Parameters
    ----------
    w_q, w_k : array_like, (..., d, d_model)
        Weights of one head, or of several with leading axes that broadcast: queries are ``w_q @ x`` and keys
        ``w_k @ x``, before rotation. d is even and at least 2D. In Hugging Face models head h has the rows
        ``[h * d : (h + 1) * d]`` of ``q_proj.weight``, and x is the output of the layer's norm, with its gain. A bias
        is one more column, for a feature of x that is 1. Heads with their own norm on q and k are not linear.
    frequencies : array_like, radians per position
        One set: ``(D,)`` or ``(D, 1)``.
    max_lag : int
        Largest distance to examine, at least 1.
    mean : array_like, (..., d_model), optional
        Mean input x, which gives the average score over unrelated tokens.
    second_moment : array_like, (..., d_model, d_model), optional
        ``E x x^T`` over tokens x, each compared with itself: symmetric, positive semi-definite. Not with `mean`, which
        is equivalent to ``mean mean^T``. Default: the identity, for query and key of equal content in a uniformly
        random direction.
    pairing : {"half", "interleaved"}
        Features that form a block.
    causal : bool
        Examine only lags from -max_lag to 0, not those to max_lag.
    scale : float, optional
        Positive factor of the scores. Default: ``1 / sqrt(d)``.

    Returns
    -------
    WeightOffset

    Raises
    ------
    ValueError
        If shapes do not fit, a value is NaN or infinite, both `mean` and `second_moment` are given, the second moment
        is not symmetric or has a negative eigenvalue (both to 1e-6 of its largest, as moments are often in float32), or
        no block with a weight has a nonzero frequency, so that all lags are alike.
    TypeError
        If weights are not real floating, `mean` or `second_moment` is not real, or arrays are of different libraries.

    See Also
    --------
    heads.WeightOffset, heads.effective_offset

    Notes
    -----
    Let ``Q_b`` and ``K_b`` be a block's two rows of weights as one complex row, first feature real, and M the second
    moment. The expected score at lag x is ``sum_b Re(c_b exp(i x omega_b))`` with ``c_b = conj(Q_b) M K_b^T``: `weight`
    and `angle` are its magnitude and angle. ``c_b / (conj(Q_b) M Q_b^T)`` is also the complex number z for which
    ``z Q_b`` is nearest to ``K_b`` by least squares in the metric M, and `quality` is the fraction of ``K_b`` that it
    explains, ``|c_b|^2 / ((conj(Q_b) M Q_b^T) (conj(K_b) M K_b^T))``: 1 with `mean`, about ``1 / d_model`` for random
    rows.

    `confidence` compares the score at `lag` with its mean over all whole lags of the range, so nearly constant blocks
    do not count. The difference is a sum of terms ``Re(c_b y_b)``, one per block; with random angles it exceeds t with
    probability at most ``exp(-t^2 / sum_b |c_b y_b|^2)``, as a cosine is sub-Gaussian with variance 1/2. `confidence`
    is 1 minus that bound times the number of lags, or 0. It does not rank heads: with a few strong blocks, chance could
    have made the same head.

    The right input depends on the head. A head that compares equal contents at an offset shows with the identity. One
    that attends by position alone acts through what all inputs share, as in `rfrope.heads.positional_weights`: that is
    `mean`, a single direction, which the identity weighs like any other.

    Examples
    --------
    >>> import numpy as np, rfrope
    >>> from rfrope.heads import positional_weights
    >>> omega = rfrope.geometric(32)
    >>> w_q, w_k = positional_weights(omega, d_model=8, offset=-3, temperature=4.0)
    >>> found = offset_from_weights(w_q, w_k, omega, max_lag=512)
    >>> round(float(found.offset), 6), int(found.lag), bool(found.confidence > 0.999)
    (-3.0, -3, True)
    >>> np.allclose(found.quality, 1.0)
    True
    """
    if mean is not None and second_moment is not None:
        raise ValueError("mean and second_moment are both given; expected at most one of them")
    known = {name: value for name, value in (("mean", mean), ("second_moment", second_moment)) if value is not None}
    named = {"w_q": w_q, "w_k": w_k, **known}
    *arrays, omega = _bring_to_host(angles.frequencies_of(frequencies, pairing, 1.0), **named)
    host = dict(zip(named, arrays, strict=True))
    query, key = (_read_rows(name, host[name], len(omega), pairing) for name in ("w_q", "w_k"))
    angles.frequencies_of(frequencies, x=host["w_q"].mT, name="w_q")
    array.broadcast_shapes({"w_q": query.shape[:-2], "w_k": key.shape[:-2]})
    if query.shape[-2:] != key.shape[-2:]:
        raise ValueError(
            f"w_q has shape {host['w_q'].shape} but w_k has {host['w_k'].shape}; expected the same two last lengths"
        )
    low, high = _lag_range(max_lag, causal)
    if scale is None:
        scale = host["w_q"].shape[-2] ** -0.5
    scale = positive("scale", scale, minimum=1.0 / LARGEST, maximum=LARGEST)
    c, explained = _join(query, key, host.get("mean"), host.get("second_moment"))
    c = scale * c
    heads = [_read_weights(head, omega, low, high) for head in c.reshape(-1, c.shape[-1])]
    c, explained = c[..., : len(omega)], explained[..., : len(omega)]
    fields = _stack_fields(WeightOffset, heads, c.shape[:-1])
    return WeightOffset(**fields, angle=np.angle(c), weight=np.abs(c), quality=explained)


# -- from queries and keys ---------------------------------------------------------------------------------------------


def _bring_to_host(frequencies: Any, **arrays: Any) -> Iterator[np.ndarray]:
    """Yield arrays of one library as NumPy arrays, then frequencies ``(D,)``, which may be of NumPy beside any."""
    xp, device = array.shared({"frequencies": frequencies}, **arrays)
    for name, value in arrays.items():
        yield array.to_host(array.asarray(value, xp, name=name, device=device), name)
    omega = array.to_host(array.asarray(frequencies, xp, name="frequencies", device=device), "frequencies")
    yield np.asarray(angles.read_frequencies(omega, np, shapes="one axis", minimum=1)[:, 0])


def _lag_range(max_lag: Any, causal: Any) -> tuple[int, int]:
    """Return the first and last whole lag."""
    furthest = whole("max_lag", max_lag, 1)
    return -furthest, 0 if flag("causal", causal) else furthest


def _read_waves(
    omega: np.ndarray, a: np.ndarray, b: np.ndarray, rest: float, low: int, high: int, scale: float = 1.0
) -> dict[str, float]:
    """Return result fields: peak of ``scale * (sum a cos + b sin + rest)``, best whole lag and attention on it."""
    peak = peak_of_waves(omega, a, b, float(low), float(high))
    lags = np.arange(low, high + 1)
    score = values_at(lags, omega, scale * a, scale * b)
    best = int(np.argmax(score))
    return {
        "offset": peak.offset,
        "value": scale * (peak.value + rest),
        "runner_up": peak.runner_up,
        "runner_up_value": scale * (peak.runner_up_value + rest),
        "lag": int(lags[best]),
        "mass": float(1.0 / np.sum(np.exp(score - score[best]))),
    }


def _stack_fields(result: Any, heads: list[dict[str, float]], shape: tuple[int, ...]) -> dict[str, np.ndarray]:
    """Return arrays of a shape from the fields of each head, without those that have a block axis."""
    names = [field.name for field in fields(result) if field.name not in ("angle", "weight", "quality")]
    kinds = {name: np.int64 if name == "lag" else np.float64 for name in names}
    return {name: np.asarray([head[name] for head in heads], kinds[name]).reshape(shape) for name in names}


def _heads(tokens: Tokens) -> Iterator[Tokens]:
    """Yield the tokens of each head in turn."""
    parts = (tokens.q_1, tokens.q_2, tokens.k_1, tokens.k_2)
    lead = np.broadcast_shapes(tokens.q_1.shape[:-2], tokens.k_1.shape[:-2])
    flat = [np.broadcast_to(p, (*lead, *p.shape[-2:])).reshape(-1, *p.shape[-2:]) for p in parts]
    return (Tokens(*heads) for heads in zip(*flat, strict=True))


def _read_head(
    tokens: Tokens, omega: np.ndarray, low: int, high: int, scale: float, draws: list[np.ndarray]
) -> dict[str, float]:
    """Return the fields of `EffectiveOffset` for one head; `draws` has one array if queries and keys are paired."""
    turned = len(omega)
    sides = Sides.split(tokens, len(draws) == 1, turned, np)
    a, b = (value[0] for value in sides.mean)
    found = _read_waves(omega, a[:turned], b[:turned], float(np.sum(a[turned:])), low, high, scale)
    offset = found["offset"]
    weights_q, weights_k = draws[0], draws[-1]
    again = Tokens(weights_q @ tokens.q_1, weights_q @ tokens.q_2, weights_k @ tokens.k_1, weights_k @ tokens.k_2)
    again_a, again_b = (value[:, :turned] for value in again.coefficients())
    confidence = _share_near(omega, again_a, again_b, offset, low, high)
    # the delta method: the error of the slope of the mean score at its peak, over the curvature there
    stderr, there = math.nan, angles_at(np.asarray(offset), omega)
    (bend,) = sums.derivatives(there, a[:turned], b[:turned], (2,))
    if low < offset < high and bend < 0.0:
        effects = [(x[:, :turned], y[:, :turned]) for x, y in (sides.queries, sides.keys)]
        slopes = [np.asarray(sums.derivatives(there, *one, (1,))[0]) for one in effects]
        parts = [slopes[0] + slopes[1]] if sides.paired else slopes
        stderr = math.sqrt(sum(float(np.var(part, ddof=1)) / len(part) for part in parts)) / -float(bend)
    return found | {"stderr": stderr, "confidence": confidence}


def _share_near(omega: np.ndarray, a: np.ndarray, b: np.ndarray, offset: float, low: int, high: int) -> float:
    """Return the fraction of rows of coefficients with their maximum near the offset."""
    per_position = max(_GRID[0], math.ceil(_GRID[1] * float(np.max(np.abs(omega))) / (2.0 * math.pi)))
    points = np.linspace(low, high, (high - low) * per_position + 1)
    best, top = np.full(len(a), -math.inf), np.zeros(len(a))
    for span in sums.parts(len(points), max(len(a), len(omega))):
        part = points[span]
        values = values_at(part, omega, a[:, None], b[:, None])
        highest = np.argmax(values, axis=1)
        value = values[np.arange(len(a)), highest]
        best, top = np.maximum(best, value), np.where(value > best, part[highest], top)
    return float(np.mean(np.abs(top - offset) <= _NEAR))


# -- from weights ------------------------------------------------------------------------------------------------------


def _read_rows(name: str, weight: np.ndarray, n_blocks: int, pairing: str) -> np.ndarray:
    """Return weights ``(..., d, d_model)`` as one complex row per block, then real rows of unrotated features."""
    if weight.dtype.name not in ("float16", "float32", "float64"):
        raise TypeError(f"{name} has dtype {weight.dtype.name}; expected real floating weights")
    if weight.ndim < 2 or weight.shape[-2] % 2:
        raise ValueError(f"{name} has shape {weight.shape}; expected (..., d, d_model) with an even d")
    if not np.all(np.isfinite(weight)):
        raise ValueError(f"{name} holds NaN or infinity; expected finite weights")
    columns = np.swapaxes(weight.astype(np.float64), -1, -2)
    blocks.check_pairing(pairing)
    blocks.check_width(columns, n_blocks, "frequencies", name)
    first, second = blocks.halves(columns, n_blocks, pairing, np)
    return np.swapaxes(first + 1j * second, -1, -2)


def _join(
    query: np.ndarray, key: np.ndarray, mean: np.ndarray | None, moment: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Return the complex coefficient of each block, and the fraction of the key's row that the query's explains."""
    width = query.shape[-1]
    if mean is not None:  # M = mean mean^T
        mean = _read_inputs("mean", mean, (width,), query)
        query, key = (rows @ mean[..., :, None] for rows in (query, key))
    weighted_query, weighted_key = query, key
    if moment is not None:
        moment = _read_inputs("second_moment", moment, (width, width), query)
        apart = np.max(np.abs(moment - np.swapaxes(moment, -1, -2)), axis=(-2, -1))
        if np.any(apart > _ROUNDED * np.max(np.abs(moment), axis=(-2, -1))):
            raise ValueError("second_moment is not symmetric; expected E x x^T")
        eigenvalues = np.linalg.eigvalsh(moment)
        if np.any(eigenvalues[..., 0] < -_ROUNDED * eigenvalues[..., -1]):
            least = np.min(eigenvalues)
            raise ValueError(
                f"second_moment has the eigenvalue {least:.3g}; expected E x x^T, which has no negative ones"
            )
        weighted_query, weighted_key = query @ moment, key @ moment
    c = np.sum(np.conj(weighted_query) * key, axis=-1)
    energy = np.sum(np.conj(weighted_query) * query, axis=-1).real * np.sum(np.conj(weighted_key) * key, axis=-1).real
    explained = np.where(energy > 0.0, np.abs(c) ** 2 / np.where(energy > 0.0, energy, 1.0), 0.0)
    return c, np.minimum(explained, 1.0)


def _read_inputs(name: str, value: np.ndarray, shape: tuple[int, ...], query: np.ndarray) -> np.ndarray:
    """Return a checked moment of the inputs, ``(..., *shape)``, in float64."""
    if value.dtype.kind not in "iuf":
        raise TypeError(f"{name} has dtype {value.dtype.name}; expected real numbers")
    if value.shape[-len(shape) :] != shape or not np.all(np.isfinite(value)):
        raise ValueError(f"{name} has shape {value.shape}; expected finite numbers (..., {', '.join(map(str, shape))})")
    array.broadcast_shapes({name: value.shape[: -len(shape)], "w_q": query.shape[:-2]})
    return value.astype(np.float64)


def _read_weights(c: np.ndarray, omega: np.ndarray, low: int, high: int) -> dict[str, float]:
    """Return `WeightOffset` fields without blocks for a head; ``a cos + b sin`` is the real part of ``c exp(iu)``."""
    turned, rest = c[: len(omega)], float(np.sum(c[len(omega) :].real))
    found = _read_waves(omega, turned.real, -turned.imag, rest, low, high)
    lags, there = np.arange(low, high + 1.0), CosSin.from_angles(angles_at(np.asarray(found["lag"]), omega))
    mean = np.divide(sums.sum_blocks(angles_at(omega, lags), np.ones(len(lags)), np.ones(len(lags))), len(lags))
    apart = there._replace(cos=there.cos - mean[0], sin=there.sin - mean[1])
    # the score at the lag above its mean over all whole lags, in units of its spread under random angles
    above = max(float(apart.total(turned.real, -turned.imag)), 0.0)
    scale = float(np.linalg.norm(np.abs(turned) * np.hypot(apart.cos, apart.sin)))
    chance = len(lags) * math.exp(-((above / scale if scale else 0.0) ** 2))
    return found | {"confidence": max(0.0, 1.0 - chance)}
