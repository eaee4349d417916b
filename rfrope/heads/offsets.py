"""The offset that a trained head prefers, read from its queries and keys.

A score depends on two contents and one lag. Averaged over contents it is a sum of waves of the lag, one per block,
which shows the effect of position in a head. `offset` is the lag, key minus query, of its peak: -1 is the previous
token.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from rfrope._core import angles, array, blocks, sums
from rfrope._core.arguments import flag, positive, whole
from rfrope._core.array import Array
from rfrope._core.blocks import Tokens
from rfrope._core.results import returned_as_given
from rfrope.heads.peaks import Peak, angles_at, peak_of_waves, values_at
from rfrope.heads.reading import check_paired, split_sides


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
    stderr: np.ndarray


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
) -> EffectiveOffset:
    """Return the lag that a head prefers by position, from its queries and keys on some text.

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
        True if row i of q and row i of k belong to the same token, which counts in `stderr`; they must then be equally
        many.

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
    heads.EffectiveOffset, heads.atlas

    Notes
    -----
    The mean score over all pairs, `heads.profile`, is ``f(x) = sum_i A_i cos(omega_i x) + B_i sin(omega_i x)`` with the
    coefficients of the mean query and the mean key; its peak over real x is found globally. `offset` is the effect of
    position alone: a head that follows content, such as an induction head, has a peak too, which does not say where it
    looks. `mass` tells these apart: it is near 1 only if position alone is enough. Rank heads by it.

    Examples
    --------
    >>> from rfrope.data import smollm2_heads
    >>> heads = smollm2_heads()
    >>> found = effective_offset(heads["previous_q"], heads["previous_k"], heads["inv_freq"])
    >>> int(found.lag), round(float(found.offset), 2), round(float(found.stderr), 3)
    (-1, -1.17, 0.005)
    >>> round(float(found.mass), 2)
    0.91

    An induction head follows content, and position has almost no effect:

    >>> found = effective_offset(heads["induction_q"], heads["induction_k"], heads["inv_freq"])
    >>> round(float(found.mass), 2)
    0.01
    """
    frequencies = angles.frequencies_of(frequencies, pairing, 1.0, q)
    xp, device = array.shared({"frequencies": frequencies}, q=q, k=k)
    q, k, omega = (
        array.to_host(array.asarray(value, xp, name=name, device=device), name)
        for name, value in (("q", q), ("k", k), ("frequencies", frequencies))
    )
    omega = np.asarray(angles.read_frequencies(omega, np, shapes="one axis", minimum=1)[:, 0])
    tokens = blocks.tokens(q, k, np, None, pairing, len(omega))
    n, m = tokens.q_1.shape[-2], tokens.k_1.shape[-2]
    check_paired(paired, tokens)
    if min(n, m) < 2:
        raise ValueError(f"q has {n} tokens and k {m}; expected at least two of each")
    furthest = whole("max_lag", max(n, m) - 1 if max_lag is None else max_lag, 1)
    lags = np.arange(-furthest, 1 if flag("causal", causal) else furthest + 1)
    scale = q.shape[-1] ** -0.5 if scale is None else positive("scale", scale)
    shape = array.broadcast_shapes({"q": tokens.q_1.shape[:-2], "k": tokens.k_1.shape[:-2]})
    parts = (np.broadcast_to(part, (*shape, *part.shape[-2:])) for part in tokens)
    heads = zip(*(part.reshape(-1, *part.shape[-2:]) for part in parts), strict=True)
    found = [_read_head(Tokens(*head), omega, lags, scale, paired) for head in heads]
    kinds = {one.name: np.int64 if one.name == "lag" else np.float64 for one in fields(EffectiveOffset)}
    return EffectiveOffset(**{n: np.asarray([one[n] for one in found], kinds[n]).reshape(shape) for n in kinds})


def _read_head(tokens: Tokens, omega: np.ndarray, lags: np.ndarray, scale: float, paired: bool) -> dict[str, Any]:
    """Return the fields of `EffectiveOffset` for one head."""
    turned, low, high = len(omega), float(lags[0]), float(lags[-1])
    mean, *sides, _ = split_sides(tokens, np)
    a, b = (value[0] for value in mean)
    rest, a, b = float(np.sum(a[turned:])), a[:turned], b[:turned]
    peak = peak_of_waves(omega, a, b, low, high)
    score = values_at(lags, omega, scale * a, scale * b)
    best = int(np.argmax(score))
    # the delta method: the error of the slope of the mean score at its peak, over the curvature there
    stderr, there = math.nan, angles_at(np.asarray(peak.offset), omega)
    (bend,) = sums.derivatives(there, a, b, (2,))
    if low < peak.offset < high and bend < 0.0:
        slopes = [np.asarray(sums.derivatives(there, x[:, :turned], y[:, :turned], (1,))[0]) for x, y in sides]
        parts = [slopes[0] + slopes[1]] if paired else slopes
        stderr = math.sqrt(sum(float(np.var(part, ddof=1)) / len(part) for part in parts)) / -float(bend)
    return {
        "offset": peak.offset,
        "value": scale * (peak.value + rest),
        "runner_up": peak.runner_up,
        "runner_up_value": scale * (peak.runner_up_value + rest),
        "lag": int(lags[best]),
        "mass": float(1.0 / np.sum(np.exp(score - score[best]))),
        "stderr": stderr,
    }
