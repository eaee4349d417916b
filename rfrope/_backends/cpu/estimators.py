"""Compiled sums of the score estimator, and uniforms.

A kernel that states its law as data is transported by the loops (see `quantiles`), others by their own NumPy code, in
batches.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from rfrope._backends.cpu import estimator_loops as loops
from rfrope._core import array, parallel, quantiles
from rfrope._core.array import Array

Key = tuple[int, int]

_LANES, _FEWEST_LANES = 512, 16
_ROWS = 32  # rows of scores that are worked on together, unless a single lag has more
_SCORES = 2**15  # scores that are held at once, where that leaves enough lanes
_FREQUENCIES = 2**16  # likewise, where there is more than one tile of lags
_BATCH = 2**16  # uniforms that a kernel's own transport is given at once
_NOT_GIVEN = np.empty((0, 0, 0))


def uniforms(key: Key, start: int, count: int, columns: int, *, stream: int = 0, streams: int = 1) -> np.ndarray:
    """Uniforms of `rfrope._core.random`, equal bit for bit."""
    out = np.empty((streams, count, columns))
    loops.fill_uniforms(out, np.uint64(start), np.uint64(stream), *map(np.uint64, key))
    return out


def score_sums(
    kernel: Any, key: Key, lags: Array, a: Array, b: Array, start: int, length: int
) -> tuple[Array, Array, Array, Array]:
    """Mean and central power sums of the scores of some trials: see `rfrope.montecarlo`."""
    xp, device = array.namespace(a=a), array.device(a)
    order, shape, rows = _rows(array.view_as_numpy(lags), array.view_as_numpy(a), array.view_as_numpy(b))
    sums = np.zeros((4, math.prod(shape)))
    lanes = min(length, _lanes(rows, a.shape[-1] * kernel.ndim))
    words = tuple(map(np.uint64, key))
    law, blocks = quantiles.tabulate_law(kernel), a.shape[-1]
    batch = length if law is not None else max(1, _BATCH // max(1, blocks * kernel.n_columns))
    for done in range(0, length, batch or 1):
        n, given = min(batch, length - done), _NOT_GIVEN
        if law is None:
            parallel.raise_if_abandoned()
            u = uniforms(key, 0, blocks, kernel.n_columns, stream=start + done, streams=n)
            given = np.array(kernel.transport(u), dtype=np.float64, order="C").reshape(n, blocks, kernel.ndim)
        nothing = quantiles.Stated(quantiles.UNIFORM, 0.0, np.ones(kernel.ndim), quantiles.NO_TABLE, quantiles.NO_TABLE)
        loops.add_trials(sums, done, start + done, n, lanes, *words, law or nothing, given, rows)
    whole = np.empty_like(sums)
    whole[:, order] = sums
    mean, m2, m3, m4 = (array.from_host(part.reshape(shape)[()], xp, device=device) for part in whole)
    return mean, m2, m3, m4


def _rows(delta: np.ndarray, a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, tuple[int, ...], loops.Rows]:
    """Give every pair of vectors at every lag ``(..., axes)`` a row, rows of one lag side by side.

    Returns
    -------
    order, shape, rows
        Row r is element order[r] of the flattened result, whose shape is given.
    """
    shape_of_lags, ndim = delta.shape[:-1], delta.shape[-1]
    vectors = np.asarray(delta, dtype=np.float64).reshape(-1, ndim)
    shape = np.broadcast_shapes(shape_of_lags, a.shape[:-1], b.shape[:-1])
    lags, which = vectors, np.zeros(len(vectors), int)
    if len(vectors) > 1:
        lags, which = np.unique(vectors, axis=0, return_inverse=True)
    lag = np.broadcast_to(which.reshape(shape_of_lags), shape).reshape(-1)
    pairs = np.broadcast_shapes(a.shape[:-1], b.shape[:-1])
    pair = np.broadcast_to(np.arange(math.prod(pairs)).reshape(pairs), shape).reshape(-1)
    order = np.argsort(lag, kind="stable")
    first = np.searchsorted(lag[order], np.arange(len(lags) + 1))
    limit = loops.LARGEST_REDUCED / (ndim * max(1e-300, np.max(np.abs(lags), initial=0.0)))
    a, b = (
        np.array(np.broadcast_to(x, (*pairs, a.shape[-1])), np.float64, order="C").reshape(-1, a.shape[-1])
        for x in (a, b)
    )
    return order, shape, loops.Rows(np.array(lags), limit, a, b, first, pair[order], _tiles(first))


def _tiles(first: np.ndarray) -> np.ndarray:
    """Cut the lags into runs that have few rows together, or are one lag."""
    tiles, n_lags = [0], len(first) - 1
    while tiles[-1] < n_lags:
        stop = int(np.searchsorted(first, first[tiles[-1]] + _ROWS, side="right")) - 1
        tiles.append(min(n_lags, max(stop, tiles[-1] + 1)))
    return np.array(tiles)


def _lanes(rows: loops.Rows, components: int) -> int:
    """Return the number of trials that are worked on side by side: as many as leave what they need in the caches."""
    lanes = min(_LANES, _SCORES // max(1, int(np.max(np.diff(rows.first[rows.tiles]), initial=0))))
    if len(rows.tiles) > 2:
        lanes = min(lanes, _FREQUENCIES // max(1, components))
    return max(_FEWEST_LANES, lanes)
