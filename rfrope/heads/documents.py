"""Sums over the pairs of one document, for every head, which an atlas averages over documents.

A score of a query at position m and a key at position n is a sum over blocks, ``S = sum_i p_i`` with
``p_i = A_i cos u_i + B_i sin u_i`` and ``u_i = (n - m) omega_i``. A stilled block adds ``A_i`` instead, so its change
is ``A_i - p_i``. Pairs are those of a causal mask, ``n <= m``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from rfrope._core import blocks
from rfrope._core.sums import CosSin
from rfrope.heads.peaks import angles_at

_CHUNK = 32  # tokens whose pairs are formed one by one; pairs of other tokens come from products of sums
_PRODUCTS = 2**18  # multiplications at once: beyond, linear algebra starts threads, which wait where cores are busy


class Setting(NamedTuple):
    """Constants of a head in all documents: frequencies ``(D,)``, pairing, scale, skipped tokens."""

    omega: np.ndarray
    pairing: str
    scale: float
    skip: int


class Lags(NamedTuple):
    """Sums that depend only on the number of tokens and the frequencies."""

    # (tokens, D): those of position times frequency
    cos: np.ndarray
    sin: np.ndarray
    # (n, n): distance of each pair of the n tokens that are not skipped; n for those that the mask hides
    distance: np.ndarray
    counts: np.ndarray  # (n,): pairs at each distance
    # (D, D): sums over pairs of products of ``1 - cos u_i`` and ``sin u_i`` (both first, mixed, both second): for keys
    # that vary from token to token, and for a key that is the same, less the mean of each query
    varied: tuple[np.ndarray, ...]
    centred: tuple[np.ndarray, ...]

    @classmethod
    def from_setting(cls, setting: Setting, tokens: int) -> Lags:
        """Return the sums for documents of `tokens` tokens."""
        wave = CosSin.from_angles(angles_at(np.arange(tokens, dtype=np.float64), setting.omega))
        n = tokens - setting.skip
        distance = np.subtract.outer(np.arange(n), np.arange(n))
        counts = np.arange(n, 0, -1.0)
        # a key is at lag -distance, so its sine is minus that of the distance
        falls, sines = 1.0 - wave.cos[:n], -wave.sin[:n]
        shared = np.cumsum((1.0 / np.arange(1.0, n + 1.0))[::-1])[::-1]  # of queries that see this distance
        weights, varied, centred = counts - shared, [], []
        for first, second in ((falls, falls), (falls, sines), (sines, sines)):
            varied.append((first * weights[:, None]).T @ second)
            means = np.cumsum(first, axis=0) / np.arange(1.0, n + 1.0)[:, None]
            centred.append((first * counts[:, None]).T @ second - means.T @ np.cumsum(second, axis=0))
        return cls(wave.cos, wave.sin, np.where(distance >= 0, distance, n), counts, tuple(varied), tuple(centred))


class Sums(NamedTuple):
    """Averages over one document: arrays with a leading axis of heads, D blocks, n lags ``0, -1, ..., 1 - n``."""

    # complex, (heads, D + rest): mean of each block, first feature real; features that are not turned follow as blocks
    # of their own
    centre_q: np.ndarray
    centre_k: np.ndarray
    # (heads, D): mean squared length, and mean length, of each block
    power_q: np.ndarray
    power_k: np.ndarray
    norm_q: np.ndarray
    norm_k: np.ndarray
    covariance: np.ndarray  # (heads, D + rest): covariance, over pairs, of each block's part with the whole score
    by_lag: np.ndarray  # (heads, n): mean score at each lag less the mean over all pairs
    level: np.ndarray  # (heads,): mean score over all pairs
    # (heads, D, D): mean product of the changes of two blocks, each less its mean over the keys of a query: as means
    # and covariances of q and k alone have it, and over the pairs themselves
    predicted: np.ndarray
    measured: np.ndarray
    # (heads, 5): attention on the first token; parts of its advantage: key, slow blocks, fast blocks, content
    sink: np.ndarray


def sum_document(q: np.ndarray, k: np.ndarray, sets: Sequence[tuple[Setting, Lags]]) -> Sums:
    """Return the sums of one document, from float64 ``(heads, tokens, d)`` and ``(key heads, tokens, d)``.

    `sets` has one entry for all heads, or one for each.
    """
    group = len(q) // len(k)
    heads = [_sum_head(q[head], k[head // group], *sets[head % len(sets)]) for head in range(len(q))]
    return Sums(*(np.stack(column) for column in zip(*heads, strict=True)))


def _sum_head(q: np.ndarray, k: np.ndarray, setting: Setting, lags: Lags) -> Sums:
    """As `sum_document`, without the axis of heads."""
    turned, skip = len(setting.omega), setting.skip
    parts = [blocks.halves(x, turned, setting.pairing, np) for x in (q, k)]
    (q_1, q_2), (k_1, k_2) = parts
    rotated = []  # (tokens, 2, blocks)
    for part in parts:
        features = np.stack(part, axis=1)
        one, two = (each[:, :turned] for each in part)
        features[:, 0, :turned] = one * lags.cos - two * lags.sin
        features[:, 1, :turned] = one * lags.sin + two * lags.cos
        rotated.append(features)
    x, y = setting.scale * rotated[0], rotated[1]
    flat = [one.reshape(len(one), -1) for one in (x, y)]
    scores = _multiply(flat[0], flat[1].T)
    seen_q, seen_k = (one[skip:] for one in flat)
    pairs, masked = float(np.sum(lags.counts)), np.tril(scores[skip:, skip:])
    by_lag = np.bincount(lags.distance.reshape(-1), masked.reshape(-1), len(lags.counts) + 1)[:-1]
    level = np.asarray(np.sum(by_lag) / pairs)
    means = np.sum(seen_q * np.cumsum(seen_k, axis=0), axis=0) / pairs
    covariance = np.sum(seen_q * _multiply(masked, seen_k), axis=0) / pairs - means * level
    plain_q, plain_k = (np.stack(part, axis=1)[skip:, :, :turned] for part in parts)
    still_q = np.concatenate([setting.scale * plain_q, -x[skip:, :, :turned]], axis=1)
    still_k = np.concatenate([plain_k, y[skip:, :, :turned]], axis=1)
    lengths = [np.hypot(*np.moveaxis(one, 1, 0)) for one in (plain_q, plain_k)]
    return Sums(
        np.mean(q_1[skip:] + 1j * q_2[skip:], axis=0),
        np.mean(k_1[skip:] + 1j * k_2[skip:], axis=0),
        np.mean(lengths[0] ** 2, axis=0),
        np.mean(lengths[1] ** 2, axis=0),
        np.mean(lengths[0], axis=0),
        np.mean(lengths[1], axis=0),
        covariance.reshape(2, -1).sum(axis=0),
        by_lag / lags.counts - level,
        level,
        setting.scale**2 / pairs * _predict_changes(plain_q, plain_k, lags),
        _measure_changes(still_q, still_k) / pairs,
        _split_sink(flat[0], k_1 + 1j * k_2, scores, setting, lags),
    )


def _multiply(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return ``a @ b``, made some rows at a time."""
    step = max(1, _PRODUCTS // b.size)
    return np.concatenate([a[first : first + step] @ b for first in range(0, len(a), step)])


def _gram(x: np.ndarray) -> np.ndarray:
    """Return ``x^T x``, made some rows at a time."""
    other, step = np.ascontiguousarray(x.T), max(1, _PRODUCTS // x.shape[1] ** 2)  # a view would start threads
    found = sum(other[:, first : first + step] @ x[first : first + step] for first in range(0, len(x), step))
    return np.asarray(found)


# -- stilled blocks ----------------------------------------------------------------------------------------------------


def _measure_changes(q: np.ndarray, k: np.ndarray) -> np.ndarray:
    """Sums over pairs of ``c_i c_j``, ``c_i = sum_a q_ai k_ai`` less its mean over the keys of the query.

    q and k are ``(tokens, terms, D)``. A chunk of queries meets the keys of all chunks before it by products of sums,
    and its own keys pair by pair.
    """
    n, terms, turned = q.shape
    means = np.sum(q * np.cumsum(k, axis=0), axis=1) / np.sqrt(np.arange(1.0, n + 1.0))[:, None]
    chunk = min(max(_PRODUCTS // (terms * turned**2), 4), _CHUNK)
    before = np.zeros((terms, turned, terms * turned))
    far, near = np.zeros((2, turned, turned))
    for first in range(0, n, chunk):
        one, other = q[first : first + chunk], k[first : first + chunk]
        of_q, of_k = (np.matmul(x.transpose(1, 2, 0), x.reshape(len(x), -1)) for x in (one, other))
        far += (of_q * before).reshape(terms, turned, terms, turned).sum(axis=(0, 2))
        before += of_k
        change = one[:, None, 0] * other[None, :, 0]
        for term in range(1, terms):
            change += one[:, None, term] * other[None, :, term]
        change *= np.tri(len(one))[:, :, None]
        near += np.matmul(np.ascontiguousarray(change.swapaxes(1, 2)), change).sum(axis=0)
    return far + near - _gram(means)


def _predict_changes(q: np.ndarray, k: np.ndarray, lags: Lags) -> np.ndarray:
    """As `_measure_changes`, if queries and keys were drawn independently of one another and of their positions."""
    (n, _, turned), centre = q.shape, np.mean(k, axis=0)
    of_q, of_k = (  # second moments, ``sum_n x_nai x_nbj / n`` as ``(a, b, i, j)``
        _gram(x.reshape(n, -1)).reshape(2, turned, 2, turned).transpose(0, 2, 1, 3) / n for x in (q, k - centre)
    )
    of_centre = centre[:, None, :, None] * centre[None, :, None, :]
    found = np.zeros(of_q.shape[2:])
    for moments, (falls, mixed, sines) in ((of_k, lags.varied), (of_centre, lags.centred)):
        cosine = sum(of_q[a, b] * moments[a, b] for a in (0, 1) for b in (0, 1))
        # B = q_2 k_1 - q_1 k_2
        both = sum(of_q[a, 1] * moments[a, 0] - of_q[a, 0] * moments[a, 1] for a in (0, 1))
        sine = of_q[1, 1] * moments[0, 0] + of_q[0, 0] * moments[1, 1]
        sine = sine - of_q[1, 0] * moments[0, 1] - of_q[0, 1] * moments[1, 0]
        crossed = both * mixed  # A_i (1 - cos u_i) with B_j sin u_j, which is subtracted
        found += cosine * falls - crossed - crossed.T + sine * sines
    return found


# -- the first token ---------------------------------------------------------------------------------------------------


def _split_sink(q: np.ndarray, k: np.ndarray, scores: np.ndarray, setting: Setting, lags: Lags) -> np.ndarray:
    """Attention on the first key by the later half of the queries, and what its score is above that of the others.

    q is rotated and scaled, ``(tokens, 2 blocks)``; k is complex, before rotation.
    """
    n, turned = len(scores), len(setting.omega)
    rows = np.arange(n // 2, n)
    is_seen = np.arange(n) <= rows[:, None]
    weights = np.where(is_seen, scores[rows], -math.inf)
    weights = np.exp(weights - np.max(weights, axis=1, keepdims=True))
    attention = np.mean(weights[:, 0] / np.sum(weights, axis=1))
    others = (np.sum(scores[rows], axis=1, where=is_seen) - scores[rows, 0]) / rows
    centre = np.mean(k[1:], axis=0)
    turn = lags.cos + 1j * lags.sin
    mean_turn = (np.cumsum(turn, axis=0)[rows] - turn[0]) / rows[:, None]  # over the keys 1, ..., m
    there = np.repeat(centre[None], len(rows), axis=0)
    there[:, :turned] *= mean_turn  # the mean key where the others are
    half = q[rows].reshape(len(rows), 2, -1)
    z = half[:, 0] - 1j * half[:, 1]  # conjugate
    own = np.sum((z * (k[0] - centre)).real, axis=1)
    lag = (z * (centre - there)).real
    slow = np.zeros(lag.shape[-1], bool)
    slow[:turned] = np.abs(setting.omega) * (n - 1) < 2.0 * math.pi
    content = np.sum((z * there).real, axis=1) - others
    parts = (own, np.sum(lag[:, slow], axis=1), np.sum(lag[:, ~slow], axis=1), content)
    return np.asarray([attention, *(np.mean(part) for part in parts)])
