"""Compiled loops over pairs of tokens at many lags: scores, their moments, and sums of every block."""

from __future__ import annotations

import math

import numpy as np

from rfrope._backends.cpu.compiling import called, compiled, widest

_QUERIES = 64  # tokens whose features stay in the second cache while the lags of one call go over them
_LANES = 8


@called
def _sum(values):  # type: ignore[no-untyped-def]
    """Sum of some numbers, eight side by side."""
    widest()
    s_0 = s_1 = s_2 = s_3 = s_4 = s_5 = s_6 = s_7 = 0.0
    whole = values.size // _LANES * _LANES
    for i in range(0, whole, _LANES):
        s_0 += values[i]
        s_1 += values[i + 1]
        s_2 += values[i + 2]
        s_3 += values[i + 3]
        s_4 += values[i + 4]
        s_5 += values[i + 5]
        s_6 += values[i + 6]
        s_7 += values[i + 7]
    total = ((s_0 + s_4) + (s_2 + s_6)) + ((s_1 + s_5) + (s_3 + s_7))
    for i in range(whole, values.size):
        total += values[i]
    return total


@compiled
def score_pairs(q_1, q_2, k_1, k_2, cos, sin, first, i, j, start, stop, scores, cosines, sines):  # type: ignore[no-untyped-def]
    """Scores of the pairs at some lags, and sums over them of A and B of every block.

    Features are ``(tokens, D)``, waves and sums ``(L, D)``; the pairs of a lag are those from ``first[lag]`` to
    ``first[lag + 1]``, their queries `i` in ascending order. The scores are those of the lags from `start` on.
    """
    widest()
    blocks, tokens = q_1.shape[1], q_1.shape[0]
    done, parts = np.empty(stop - start, np.int64), np.empty(blocks)
    for lag in range(start, stop):
        done[lag - start] = first[lag]
        cosines[lag, :] = 0.0
        sines[lag, :] = 0.0
    for end in range(_QUERIES, tokens + _QUERIES, _QUERIES):
        for lag in range(start, stop):
            pair, last = done[lag - start], first[lag + 1]
            a_sum, b_sum, c, s = cosines[lag], sines[lag], cos[lag], sin[lag]
            while pair < last and i[pair] < end:
                x_1, x_2, y_1, y_2 = q_1[i[pair]], q_2[i[pair]], k_1[j[pair]], k_2[j[pair]]
                for block in range(blocks):
                    a = y_1[block] * x_1[block] + y_2[block] * x_2[block]
                    b = y_1[block] * x_2[block] - y_2[block] * x_1[block]
                    a_sum[block] += a
                    b_sum[block] += b
                    parts[block] = a * c[block] + b * s[block]
                scores[pair - first[start]] = _sum(parts)
                pair += 1
            done[lag - start] = pair


@compiled
def add_pair_variances(scores, from_q, from_k, first, i, j, start, stop, paired, variance, error):  # type: ignore[no-untyped-def]
    """Variance of the scores of `score_pairs`, and the squared standard error of their mean.

    ``from_q (L, n)`` and ``from_k (L, m)`` are what each token adds as a query and as a key.
    """
    widest()
    n, m = from_q.shape[1], from_k.shape[1]
    of_q, of_k = np.empty(n), np.empty(m)
    rest = np.empty(scores.size)
    for lag in range(start, stop):
        pairs = first[lag + 1] - first[lag]
        here = scores[first[lag] - first[start] : first[lag + 1] - first[start]]
        left = rest[: here.size]
        mean = _sum(here) / pairs
        for pair in range(pairs):
            left[pair] = (here[pair] - mean) * (here[pair] - mean)
        variance[lag] = _sum(left) / pairs
        if min(n, m, pairs) < 2:
            error[lag] = math.nan
            continue
        of_q[:] = 0.0
        of_k[:] = 0.0
        for pair in range(pairs):
            at = first[lag] + pair
            of_q[i[at]] += from_q[lag, i[at]]
            of_k[j[at]] += from_k[lag, j[at]]
            left[pair] = here[pair] - from_q[lag, i[at]] - from_k[lag, j[at]]
        mean = _sum(left) / pairs
        for pair in range(pairs):
            left[pair] = (left[pair] - mean) * (left[pair] - mean)
        squares = _sum(left) * (pairs / (pairs - 1.0))
        if paired:
            for token in range(n):
                of_q[token] = (of_q[token] + of_k[token]) * (of_q[token] + of_k[token])
        else:
            for token in range(n):
                of_q[token] *= of_q[token]
            for token in range(m):
                of_k[token] *= of_k[token]
            squares += _sum(of_k) * (m / (m - 1.0))
        squares += _sum(of_q) * (n / (n - 1.0))
        error[lag] = squares / (float(pairs) * float(pairs))
