"""The offset that a trained head prefers, read from its queries and keys.

A score depends on two contents and one lag. Averaged over contents it is a sum of waves of the lag, one for each block,
and what a head does by position is in that sum. `offset` is the lag, key minus query, of its peak: -1 is the previous
token.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from rfrope._core import angles, array, blocks, capacity, random, sums
from rfrope._core.arguments import flag, positive, whole
from rfrope._core.array import Array
from rfrope._core.blocks import Tokens
from rfrope._core.results import Result
from rfrope.heads.peaks import angles_at, peak_of_waves, values_at
from rfrope.heads.reading import centred, check_paired

_NEAR = 0.5  # positions by which a peak may move and still be the same one: lags between tokens are whole
_GRID = (8, 32)  # points to a position, and to a turn of the fastest block, where resamples look for their peak


@dataclass(frozen=True, eq=False)
class EffectiveOffset(Result):
    """The lag that a head prefers, content averaged; see `effective_offset`.

    NumPy arrays of the shape of the leading axes of q and k.

    Attributes
    ----------
    offset : ndarray, in units of position
        Real lag, KEY minus QUERY, at which the mean score over all pairs of contents peaks.
    stderr : ndarray
        Its standard error, as long as the peak stays the highest: the delta method, tokens being taken as independent
        draws. NaN where the peak is at an end of the range.
    confidence : ndarray
        Part, from 0 to 1, of resamples of the tokens in which the peak stays within half a position of `offset`. It is
        looked for on a grid of 8 points to a position, or 32 to a turn of the fastest block where that is finer.
    value : ndarray
        Mean score at the offset, with the scale.
    runner_up, runner_up_value : ndarray
        Where the next local maximum is, and how high; NaN if there is none.
    lag : ndarray of int
        The whole lag with the highest mean score.
    mass : ndarray
        Attention that position alone puts on `lag`: the softmax of the mean scores at all whole lags of the range.
    """

    offset: np.ndarray
    stderr: np.ndarray
    confidence: np.ndarray
    value: np.ndarray
    runner_up: np.ndarray
    runner_up_value: np.ndarray
    lag: np.ndarray
    mass: np.ndarray


@array.select_device
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
    """Lag that a head prefers by position, from its queries and keys on some text, and how sure that is.

    Parameters
    ----------
    q, k : array_like, (..., n, d) and (..., m, d)
        As in `heads.profile`: before rotation.
    frequencies : array_like, radians per position
        One set: ``(D,)`` or ``(D, 1)``.
    max_lag : int, optional
        Furthest lag that is looked at, at least 1: as far as the given tokens reach, unless given.
    pairing : {"half", "interleaved"}
        The two features that make a block.
    causal : bool
        Whether only lags from -max_lag to 0 count, else those to max_lag too.
    scale : float, optional
        Positive; multiplies the scores. ``1 / sqrt(d)`` unless given.
    paired : bool
        Whether row i of q and row i of k are of the same token, so that they are drawn together; they are as many then.
    n_resamples : int
        How many times the tokens are drawn anew, with replacement, for `confidence`.
    rng : None, int or numpy.random.Generator
        Where these draws come from; the same on every call unless given otherwise.

    Returns
    -------
    EffectiveOffset

    Raises
    ------
    ValueError
        As `heads.profile`, for fewer than two tokens, and where no block with a score turns: all lags are alike then.
    TypeError
        As `heads.profile`.

    Notes
    -----
    The mean score over all pairs, `heads.profile`, is ``f(x) = sum_i A_i cos(omega_i x) + B_i sin(omega_i x)`` with the
    coefficients of the mean query and the mean key; its peak over real x is found globally. The `offset` is what
    position does, and only that: a head that looks for content, such as an induction head, has a peak too, which does
    not say where the head looks. `mass` tells these apart: it is near 1 only if position alone is enough.

    `confidence` is a bootstrap over tokens: it says whether other tokens of the same kind would have given the same
    offset. It knows nothing of another kind of text, and takes tokens as independent. It says nothing of how much the
    head cares for that offset: `mass` does, and heads are to be ranked by it.

    Examples
    --------
    >>> from rfrope.data import smollm2_heads
    >>> heads = smollm2_heads()
    >>> found = effective_offset(heads["previous_q"], heads["previous_k"], heads["inv_freq"])
    >>> int(found.lag), round(float(found.offset), 2), round(float(found.stderr), 3), float(found.confidence)
    (-1, -1.17, 0.005, 1.0)
    >>> round(float(found.mass), 2)
    0.91

    An induction head follows content, and what it does by position is next to nothing:

    >>> found = effective_offset(heads["induction_q"], heads["induction_k"], heads["inv_freq"])
    >>> round(float(found.mass), 2)
    0.01
    """
    q, k, omega = bring_to_host(q=q, k=k, frequencies=angles.given(frequencies, pairing, 1.0, q))
    omega = one_axis(omega)
    tokens = blocks.tokens(q, k, np, None, pairing, len(omega))
    n, m = tokens.q_1.shape[-2], tokens.k_1.shape[-2]
    check_paired(paired, tokens)
    if min(n, m) < 2:
        raise ValueError(f"q has {n} tokens and k {m}; expected at least two of each")
    low, high = lag_range(max(n, m) - 1 if max_lag is None else max_lag, causal)
    scale = q.shape[-1] ** -0.5 if scale is None else positive("scale", scale)
    n_resamples = capacity.count("n_resamples", n_resamples, 1, each=24.0 * (n + m))
    draws = _resample((n,) if paired else (n, m), n_resamples, rng)
    shape = array.broadcast_shapes({"q": tokens.q_1.shape[:-2], "k": tokens.k_1.shape[:-2]})
    rows = [_read_head(head, omega, low, high, scale, draws) for head in _heads(tokens)]
    return EffectiveOffset(**stack_fields(EffectiveOffset, rows, shape))


def bring_to_host(frequencies: Any, **arrays: Any) -> Iterator[np.ndarray]:
    """Yield arrays of one library as NumPy's, and at last frequencies, which may be NumPy's beside any."""
    xp, device = array.shared({"frequencies": frequencies}, **arrays)
    arrays["frequencies"] = frequencies
    for name, value in arrays.items():
        value = array.asarray(value, xp, name=name, device=device)
        array.check_memory(48.0, value.shape, value, name)
        yield array.to_host(value, name)


def one_axis(omega: np.ndarray) -> np.ndarray:
    """Frequencies ``(D,)`` or ``(D, 1)`` of the host as ``(D,)`` float64."""
    return np.asarray(angles.frequencies(omega, np, sets="one axis", least=1)[:, 0])


def lag_range(max_lag: Any, causal: Any) -> tuple[int, int]:
    """First and last whole lag."""
    furthest = whole("max_lag", max_lag, 1)
    return -furthest, 0 if flag("causal", causal) else furthest


def read_waves(
    omega: np.ndarray, a: np.ndarray, b: np.ndarray, rest: float, low: int, high: int, scale: float = 1.0
) -> dict[str, float]:
    """Fields of a result: the peak of ``scale * (sum a cos + b sin + rest)``, the best whole lag and its attention."""
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


def stack_fields(result: Any, heads: list[dict[str, float]], shape: tuple[int, ...]) -> dict[str, np.ndarray]:
    """Arrays of a shape from the fields that were read of each head, those of a result that have no blocks."""
    names = [field.name for field in fields(result) if field.name not in ("angle", "weight", "quality")]
    kinds = {name: np.int64 if name == "lag" else np.float64 for name in names}
    return {name: np.asarray([head[name] for head in heads], kinds[name]).reshape(shape) for name in names}


def _heads(tokens: Tokens) -> Iterator[Tokens]:
    """Yield the tokens of one head after the other."""
    parts = (tokens.q_1, tokens.q_2, tokens.k_1, tokens.k_2)
    lead = np.broadcast_shapes(tokens.q_1.shape[:-2], tokens.k_1.shape[:-2])
    flat = [np.broadcast_to(p, (*lead, *p.shape[-2:])).reshape(-1, *p.shape[-2:]) for p in parts]
    return (Tokens(*heads) for heads in zip(*flat, strict=True))


def _resample(sizes: tuple[int, ...], number: int, rng: Any) -> list[np.ndarray]:
    """Counts of each token in each resample, as parts of 1: ``(resamples, tokens)``, for each of the sizes."""
    key = random.key_from_rng(rng)
    weights = []
    for stream, tokens in enumerate(sizes):
        drawn = np.floor(random.uniforms(key, 0, tokens, number, stream=stream)[0] * tokens).astype(np.int64)
        cell = drawn + tokens * np.arange(number)
        times = np.bincount(cell.reshape(-1), minlength=tokens * number)
        weights.append(times.reshape(number, tokens) / tokens)
    return weights


def _read_head(
    tokens: Tokens, omega: np.ndarray, low: int, high: int, scale: float, draws: list[np.ndarray]
) -> dict[str, float]:
    """Fields of `EffectiveOffset` for one head; one array of draws where queries and keys are paired."""
    turned = len(omega)
    mean, apart = centred(tokens, np)
    a, b = (value[0] for value in mean.coefficients())
    found = read_waves(omega, a[:turned], b[:turned], float(np.sum(a[turned:])), low, high, scale)
    offset = found["offset"]
    stderr = _offset_error(mean, apart, omega, offset, len(draws) == 1)
    weights_q, weights_k = draws[0], draws[-1]
    again = Tokens(weights_q @ tokens.q_1, weights_q @ tokens.q_2, weights_k @ tokens.k_1, weights_k @ tokens.k_2)
    again_a, again_b = again.coefficients()
    confidence = _share_near(omega, again_a[:, :turned], again_b[:, :turned], offset, low, high)
    return found | {"stderr": math.nan if offset in (low, high) else stderr, "confidence": confidence}


def _offset_error(mean: Tokens, apart: Tokens, omega: np.ndarray, offset: float, paired: bool) -> float:
    """Delta method: tokens move the slope of the mean score at its peak, and the peak moves by slope over bend."""
    there = angles_at(np.asarray(offset), omega)
    a, b = (value[0, : len(omega)] for value in mean.coefficients())
    (bend,) = sums.derivatives(there, a, b, (2,))
    if not bend < 0.0:
        return math.nan

    def slopes(rows: Tokens) -> np.ndarray:
        a, b = (value[:, : len(omega)] for value in rows.coefficients())
        return np.asarray(sums.derivatives(there, a, b, (1,))[0])

    from_q = slopes(Tokens(apart.q_1, apart.q_2, mean.k_1, mean.k_2))
    from_k = slopes(Tokens(mean.q_1, mean.q_2, apart.k_1, apart.k_2))
    sides = (from_q + from_k,) if paired else (from_q, from_k)
    variance = sum(float(np.sum(side * side)) / (len(side) * (len(side) - 1.0)) for side in sides)
    return math.sqrt(variance) / -float(bend)


def _share_near(omega: np.ndarray, a: np.ndarray, b: np.ndarray, offset: float, low: int, high: int) -> float:
    """Share of the rows of coefficients whose highest place is near the offset."""
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
