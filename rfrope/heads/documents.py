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


class Head(NamedTuple):
    """Constants of a head in all documents of one length; blocks are complex numbers."""

    omega: np.ndarray  # (D,)
    pairing: str
    scale: float
    skip: int
    turn: np.ndarray  # (tokens, D + rest): ``exp(i position omega)``; 1 for features that are not turned
    counts: np.ndarray  # (n,): pairs at each distance, of the n tokens that are not skipped
    # (D, D): sums over pairs of ``w_i w_j`` and of ``w_i conj(w_j)`` for ``w = 1 - exp(i lag omega)``: for keys that
    # vary from token to token, and for a key that is the same, less the mean of each query
    varied: tuple[np.ndarray, ...]
    centred: tuple[np.ndarray, ...]

    @classmethod
    def prepare(cls, omega: np.ndarray, pairing: str, scale: float, skip: int, tokens: int, rest: int) -> Head:
        """Return the constants for documents of so many tokens, with so many features that are not turned."""
        cos, sin, _ = CosSin.from_angles(angles_at(np.arange(tokens, dtype=np.float64), omega))
        turn = np.pad(cos + 1j * sin, ((0, 0), (0, rest)), constant_values=1.0)
        n = tokens - skip
        counts, keys = np.arange(n, 0, -1.0), np.arange(1.0, n + 1.0)
        change = 1.0 - np.conj(turn[:n, : len(omega)])  # a key is at lag -distance
        shared = np.cumsum(1.0 / keys[::-1])[::-1]  # of queries that see this distance
        varied = _sum_products(np.sqrt(counts - shared)[:, None] * change)
        total = np.cumsum(change, axis=0)  # over the keys of each query
        every, means = _sum_products(np.sqrt(counts)[:, None] * change), _sum_products(total / np.sqrt(keys)[:, None])
        centred = every[0] - means[0], every[1] - means[1]
        return cls(omega, pairing, scale, skip, turn, counts, varied, centred)


class Sums(NamedTuple):
    """Averages over one document: arrays with a leading axis of heads, D blocks, n lags ``0, -1, ..., 1 - n``."""

    # complex, (heads, D + rest): mean of each block; features that are not turned follow as blocks of their own
    centre_q: np.ndarray
    centre_k: np.ndarray
    # (heads, D): mean squared length, and mean length, of each block
    power_q: np.ndarray
    power_k: np.ndarray
    norm_q: np.ndarray
    norm_k: np.ndarray
    covariance: np.ndarray  # (heads, D + rest): covariance, over pairs, of each block's part with the whole score
    by_lag: np.ndarray  # (heads, n): mean score at each lag less the mean over all pairs
    by_lag_squared: np.ndarray
    level: np.ndarray  # (heads,): mean score over all pairs
    # (heads, D, D): mean product of the changes of two blocks, each less its mean over the keys of a query: as means
    # and covariances of q and k alone have it, and over the pairs themselves
    predicted: np.ndarray
    measured: np.ndarray
    # (heads, 5): attention on the first token; parts of its advantage: key, slow blocks, fast blocks, content
    sink: np.ndarray


def sum_document(q: np.ndarray, k: np.ndarray, heads: Sequence[Head]) -> Sums:
    """Return the sums of one document, from float64 ``(heads, tokens, d)`` and ``(key heads, tokens, d)``.

    `heads` has one entry for all heads, or one for each.
    """
    group = len(q) // len(k)
    found = [_sum_head(q[i], k[i // group], heads[i % len(heads)]) for i in range(len(q))]
    return Sums(*(np.stack(column) for column in zip(*found, strict=True)))


def _sum_head(q: np.ndarray, k: np.ndarray, head: Head) -> Sums:
    """As `sum_document`, without the axis of heads."""
    turned, skip = len(head.omega), head.skip
    q, k = (one + 1j * other for one, other in (blocks.halves(x, turned, head.pairing, np) for x in (q, k)))
    x, y = head.scale * head.turn * q, head.turn * k
    flat_x, flat_y = x.view(np.float64), y.view(np.float64)
    scores = _multiply(flat_x, flat_y.T)
    seen_x, seen_y, masked = flat_x[skip:], flat_y[skip:], np.tril(scores[skip:, skip:])
    n, pairs = len(masked), float(np.sum(head.counts))
    # a row shorter than the padded ones moves each row by one: columns are then distances
    shifted = np.pad(masked[:, ::-1], ((0, 0), (0, n))).reshape(-1)[: n * (2 * n - 1)].reshape(n, -1)
    by_lag = np.sum(shifted, axis=0)[n - 1 :]
    level = np.asarray(np.sum(by_lag) / pairs)
    by_lag = by_lag / head.counts - level
    means = np.sum(seen_x * np.cumsum(seen_y, axis=0), axis=0) / pairs
    covariance = np.sum(seen_x * _multiply(masked, seen_y), axis=0) / pairs - means * level
    sink = _split_sink(x, k, scores, head)
    centre_q, centre_k = np.mean(q[skip:], axis=0), np.mean(k[skip:], axis=0)
    q, k, x, y = (one[skip:, :turned] for one in (q, k, x, y))
    length_q, length_k = np.abs(q), np.abs(k)
    still_x = np.stack([head.scale * q.real, head.scale * q.imag, -x.real, -x.imag], axis=1)
    still_y = np.stack([k.real, k.imag, y.real, y.imag], axis=1)
    return Sums(
        centre_q,
        centre_k,
        np.mean(length_q**2, axis=0),
        np.mean(length_k**2, axis=0),
        np.mean(length_q, axis=0),
        np.mean(length_k, axis=0),
        covariance.reshape(-1, 2).sum(axis=1),
        by_lag,
        by_lag**2,
        level,
        head.scale**2 / pairs * _predict_changes(q, k, head),
        _measure_changes(still_x, still_y) / pairs,
        sink,
    )


def _multiply(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return ``a @ b`` without threads of linear algebra."""
    a, step = np.ascontiguousarray(a), max(1, _PRODUCTS // b.size)  # a view would start threads
    return np.concatenate([a[first : first + step] @ b for first in range(0, len(a), step)])


def _sum_products(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the sums over rows of ``z_i z_j`` and of ``z_i conj(z_j)``, ``(D, D)`` each."""
    parts = np.stack([z.real, z.imag], axis=1).reshape(len(z), -1)
    (aa, ab), (ba, bb) = _multiply(parts.T, parts).reshape(2, z.shape[1], 2, -1).swapaxes(1, 2)
    return aa - bb + 1j * (ab + ba), aa + bb + 1j * (ba - ab)


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
    return far + near - _multiply(means.T, means)


def _predict_changes(q: np.ndarray, k: np.ndarray, head: Head) -> np.ndarray:
    """As `_measure_changes`, if queries and keys were drawn independently of one another and of their positions.

    A change is ``Re z w`` with ``z = conj(q) k``, and ``Re a Re b = Re(a b + a conj(b)) / 2``.
    """
    centre, of_q = np.mean(k, axis=0), _sum_products(q)
    found = np.zeros(of_q[0].shape)
    for keys, of_lags in ((k - centre, head.varied), (centre[None], head.centred)):
        for mine, other, lags in zip(of_q, _sum_products(keys), of_lags, strict=True):
            found += (np.conj(mine) * other * lags).real / (2.0 * len(q) * len(keys))
    return found


# -- the first token ---------------------------------------------------------------------------------------------------


def _split_sink(x: np.ndarray, k: np.ndarray, scores: np.ndarray, head: Head) -> np.ndarray:
    """Attention on the first key by the later half of the queries, and what its score is above that of the others.

    x are rotated and scaled queries, k keys before rotation.
    """
    n = len(scores)
    rows = np.arange(n // 2, n)
    is_seen = np.arange(n) <= rows[:, None]
    weights = np.where(is_seen, scores[rows], -math.inf)
    weights = np.exp(weights - np.max(weights, axis=1, keepdims=True))
    attention = np.mean(weights[:, 0] / np.sum(weights, axis=1))
    others = (np.sum(scores[rows], axis=1, where=is_seen) - scores[rows, 0]) / rows
    centre, z = np.mean(k[1:], axis=0), np.conj(x[rows])
    mean_turn = (np.cumsum(head.turn, axis=0)[rows] - head.turn[0]) / rows[:, None]  # over the keys 1, ..., m
    there = centre * mean_turn  # the mean key where the others are
    own = np.sum((z * (k[0] - centre)).real, axis=1)
    lag = (z * (centre - there)).real[:, : len(head.omega)]
    slow = np.abs(head.omega) * (n - 1) < 2.0 * math.pi
    content = np.sum((z * there).real, axis=1) - others
    parts = (own, np.sum(lag[:, slow], axis=1), np.sum(lag[:, ~slow], axis=1), content)
    return np.asarray([attention, *(np.mean(part) for part in parts)])
