"""Scores of equal content by distance, the first distance at which two Ropes differ, and text lengths to examine."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from rfrope._core import angles, sums
from rfrope.rotation.rope import Rope

SHARE = 0.01  # fraction of the score at lag 0
_LAGS = 2**12  # per chunk


def choose_lengths(rope: Rope) -> tuple[int, ...]:
    """Return text lengths to examine: the context, both sides of a change of the scheme; none without a context."""
    held, context = rope.source.rope_parameters, rope.context
    if not isinstance(context, int):
        return ()  # vision axes, or frequencies alone
    if held.get("rope_type") == "dynamic" and "alpha" not in held:
        return tuple(sorted({context, math.ceil(context * held["factor"])}))
    if held.get("rope_type") == "longrope":
        return tuple(sorted({held.get("original_max_position_embeddings", context), context}))
    return (context,)


def relative_error(found: np.ndarray, expected: np.ndarray) -> float:
    """Return the largest relative difference of frequencies; infinity if their numbers differ."""
    found, expected = np.asarray(found), np.asarray(expected)
    if found.shape != expected.shape:
        return math.inf
    return float(np.max(np.abs(found - expected) / np.where(expected == 0.0, 1.0, np.abs(expected)), initial=0.0))


def score(rope: Any, n_pairs: float, cos: Any = 1.0) -> Any:
    """Return scores of equal content, summed over all pairs of a head; `cos` is the mean cosine of rotated pairs."""
    turning = rope.frequencies.size
    return rope.attention_factor**2 * turning * cos + n_pairs - turning


def first_difference(
    one: Any,
    other: Any,
    n_pairs: tuple[float, float],
    end: int,
    share: float = SHARE,
    scales: tuple[float, float] = (1.0, 1.0),
) -> int | None:
    """Return the first distance below `end` at which scores differ by a share of the other's at distance 0, or None.

    `one` and `other` have ``frequencies`` (D,), radians per position, and ``attention_factor``. Scores are per pair of
    features of the head, times the factor of the softmax scale.
    """

    def scores(rope: Any, pairs: float, scale: float) -> np.ndarray:
        if start == 0:  # where most differences are; no compiled loops are loaded for it
            cos = np.cos(np.multiply.outer(lags, np.asarray(rope.frequencies, dtype=np.float64))).mean(axis=-1)
        else:
            cos = np.asarray(sums.mean_cos(angles.read(lags, rope.frequencies, name="lags", minimum=1)))
        return scale * np.asarray(score(rope, pairs, cos)) / pairs

    least = share * abs(scales[1] * score(other, n_pairs[1])) / n_pairs[1]
    for start in range(0, end, _LAGS):
        lags = np.arange(start, min(start + _LAGS, end))
        far = np.abs(scores(one, n_pairs[0], scales[0]) - scores(other, n_pairs[1], scales[1])) >= least
        if np.any(far):
            return start + int(np.argmax(far))
    return None
