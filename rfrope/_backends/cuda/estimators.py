"""Sums of the score estimator, and draws of a kernel, for arrays on a CUDA device.

A kernel that states its law as data (see `quantiles`) is drawn on the device, bit for bit as the loops draw it. One
that states none is drawn on the host, by its own NumPy code, chunk by chunk. Nothing else waits for the device, but the
first use of a law, whose tables are put there and kept: plans depend on shapes and strides alone, and so do the lengths
of all sums, which are the same on every device.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from rfrope._backends import layout
from rfrope._backends.cuda import device
from rfrope._core import array, quantiles, random
from rfrope._core.array import Array
from rfrope._core.dispatch import CUDA, DISPATCHED

Key = tuple[int, int]

_THREADS, _MERGING_THREADS = 256, 32  # in a block
_LAWS = {quantiles.UNIFORM: "UNIFORM", quantiles.LOG_UNIFORM: "LOG_UNIFORM", quantiles.TABLE: "TABLE"}
_TILES = ((1, 1), (4, 1), (1, 4))  # lags and pairs of vectors that a thread works on together
_ROW_AXES = 32
_COST_OF_DRAW, _COST_OF_LAG, _COST_OF_ROW = 100, 60, 6  # instructions in a block, to choose a tile by
_ENOUGH_BLOCKS = 2**12  # they fill a device ten times: beyond it a thread works on more trials
_MOST_TRIALS_OF_THREAD = 64
_LAID_OUT = 2**22  # pairs {A, B} that are laid out at once: 64 MB
_MOST_BLOCKS = 2**30  # in a launch

KERNELS = (
    *(f"score_sums<{law}, {lags}, {pairs}>" for law in (*_LAWS.values(), "GIVEN") for lags, pairs in _TILES),
    *(f"frequencies<{law}>" for law in _LAWS.values()),
    "lay_out",
    "merge_parts",
)

TRANSPORT = np.dtype(
    [(name, np.int64) for name in ("factors", "table", "radius")]
    + [("parameter", np.float64), ("key_0", np.uint64), ("key_1", np.uint64), ("axes", np.int64)]
)
DRAWS = np.dtype(
    [("from", TRANSPORT), ("out", np.int64), ("start", np.uint64), ("count", np.int64), ("pairs", np.int64)]
)
SCORES = np.dtype(
    [("from", TRANSPORT)]
    + [(name, np.int64) for name in ("given", "pairs", "lags", "partial")]
    + [(name, np.int64) for name in ("start", "length", "span", "parts", "tiles", "blocks", "even_blocks")]
)
_ROW_AXIS = np.dtype([(name, np.int64) for name in ("length", "out", "delta", "a", "b")])
ROWS = np.dtype(
    [(name, np.int64) for name in ("out", "delta", "a", "b", "pairs", "lags", "partial")]
    + [(name, np.int64) for name in ("out_part", "delta_axis", "a_block", "b_block")]
    + [(name, np.int64) for name in ("n_lags", "n_members", "member_tiles", "tile_lags", "tile_pairs")]
    + [(name, np.int64) for name in ("first_tile", "tiles", "axes", "blocks", "even_blocks")]
    + [(name, np.int64) for name in ("length", "span", "parts", "lag_axes", "row_axes")]
    + [("axis", _ROW_AXIS, _ROW_AXES)]
)


def score_sums(
    kernel: Any, key: Key, lags: Array, a: Array, b: Array, start: int, length: int
) -> tuple[Array, Array, Array, Array]:
    """Mean and central power sums of the scores of some trials: see `rfrope.montecarlo`."""
    xp = array.namespace(a=a)
    with device.place(a):
        views = tuple(device.doubles(v, xp) for v in (lags, a, b))
        shape = np.broadcast_shapes(tuple(lags.shape[:-1]), tuple(a.shape[:-1]), tuple(b.shape[:-1]))
        sums = array.empty((4, *shape), a, xp)
        if math.prod(shape) > 0:
            law = _law(kernel, key, a, xp)
            given = None if law else _transported(kernel, key, a.shape[-1], start, length, a, xp)
            _launch_sums(law or _DeviceLaw.given(kernel.ndim), given, views, device.view(sums), (start, length), a, xp)
            array.library(sums).mark_modified(sums)
        return sums[0], sums[1], sums[2], sums[3]


def drawn(kernel: Any, key: Key, start: int, length: int, like: Array) -> Array:
    """Draw frequencies beside the lags `like`: see `rfrope.montecarlo`."""
    xp = array.namespace(like=like)
    with device.place(like):
        law = _law(kernel, key, like, xp)
        if law is None:
            return DISPATCHED[*CUDA.estimators, "drawn"].generic(kernel, key, start, length, like)
        omega = array.empty((length, kernel.ndim), like, xp)
        plan = np.zeros((), DRAWS)
        plan["from"], plan["out"], plan["start"] = law.plan, device.address(device.view(omega)), start
        plan["count"], plan["pairs"] = length, (start + length + 1) // 2 - start // 2 if length else 0
        device.launch("estimators", f"frequencies<{law.name}>", _blocks(plan["pairs"]), _THREADS, plan)
        array.library(omega).mark_modified(omega)
        return omega


# -- laws and draws ----------------------------------------------------------------------------------------------------


class _DeviceLaw(NamedTuple):
    name: str
    plan: np.ndarray
    numbers: Any  # on the device; held while they may be read

    @classmethod
    def given(cls, axes: int) -> _DeviceLaw:
        """Stand for a law where frequencies are given."""
        plan = np.zeros((), TRANSPORT)
        plan["axes"] = axes
        return cls("GIVEN", plan, None)


def _law(kernel: Any, key: Key, like: Array, xp: ModuleType) -> _DeviceLaw | None:
    """Law of a kernel with its tables on the device of an array, or None if its own transport must be called."""
    stated = quantiles.tabulate_law(kernel)
    if stated is None:
        return None
    if isinstance(kernel, Hashable):
        numbers = device.cached((kernel, xp, str(array.device(like))), lambda: _put_on_device(stated, like, xp))
    else:
        numbers = _put_on_device(stated, like, xp)
    plan = np.zeros((), TRANSPORT)
    plan["factors"] = address = device.address(numbers)
    address += 8 * _even(stated.factors.size)
    if stated.table.size:
        plan["table"] = address
    if stated.radius.size:
        plan["radius"] = address + 8 * stated.table.size
    plan["parameter"], plan["axes"] = stated.parameter, stated.factors.size
    plan["key_0"], plan["key_1"] = key
    return _DeviceLaw(_LAWS[stated.code], plan, numbers)


def _put_on_device(stated: quantiles.Stated, like: Array, xp: ModuleType) -> Any:
    """Copy factors and tables to a device: rows of a table at multiples of 16 bytes, behind an even number of factors.

    It waits for the copy, so that whoever is given the numbers that are kept may read them, on any stream.
    """
    factors = np.ones(_even(stated.factors.size))
    factors[: stated.factors.size] = stated.factors
    numbers = array.from_host(
        np.concatenate([factors, stated.table, stated.radius]), xp, device=array.device(like), dtype=xp.float64
    )
    array.to_host(numbers[:1])
    return device.view(numbers)


def _even(n: int) -> int:
    return n + n % 2


def _transported(kernel: Any, key: Key, blocks: int, start: int, length: int, like: Array, xp: ModuleType) -> Any:
    """Frequencies (trials, blocks, axes) by the kernel's own transport, on the host."""
    omega = kernel.transport(random.uniforms(key, 0, blocks, kernel.n_columns, stream=start, streams=length))
    return device.view(array.from_host(omega.reshape(length, blocks, kernel.ndim), xp, device=array.device(like)))


def _blocks(threads: Any) -> int:
    return -(-int(threads) // _THREADS)


# -- sums --------------------------------------------------------------------------------------------------------------


def _launch_sums(
    law: _DeviceLaw, given: Any, views: tuple[Any, ...], sums: Any, span: tuple[int, int], like: Array, xp: ModuleType
) -> None:
    """Lay vectors and lags out, take partial moments of the scores and merge them, for some tiles of rows at a time."""
    start, length = span
    rows = _rows(views, sums)
    n_lags, n_members, blocks = (int(rows[name]) for name in ("n_lags", "n_members", "blocks"))
    draws = int(law.plan["axes"]) + bool(law.plan["radius"])
    tile_lags, tile_pairs = _tile(n_lags, n_members, draws)
    in_tile = tile_lags * tile_pairs
    member_tiles = -(-n_members // tile_pairs)
    n_tiles = -(-n_lags // tile_lags) * member_tiles
    together = min(n_tiles, max(1, _LAID_OUT // (in_tile * max(1, _even(blocks)))))
    trials = max(1, min(_MOST_TRIALS_OF_THREAD, _blocks(length) * together // _ENOUGH_BLOCKS))
    parts = -(-length // (_THREADS * trials))
    together = max(1, min(together, _MOST_BLOCKS // parts))

    pairs = array.empty((2 * together * in_tile * _even(blocks),), like, xp)
    lags = array.empty((together * int(law.plan["axes"]) * tile_lags,), like, xp)
    partial = array.empty((4 * parts * together * in_tile,), like, xp)
    scores = np.zeros((), SCORES)
    scores["from"], scores["start"] = law.plan, start
    scores["given"] = 0 if given is None else device.address(given)
    rows["tile_lags"], rows["tile_pairs"], rows["member_tiles"] = tile_lags, tile_pairs, member_tiles
    for name, value in (("pairs", pairs), ("lags", lags), ("partial", partial)):
        rows[name] = scores[name] = device.address(device.view(value))
    numbers = {"length": length, "span": _THREADS * trials, "parts": parts, "blocks": blocks}
    for name, number in (numbers | {"even_blocks": _even(blocks)}).items():
        rows[name] = scores[name] = number
    for first in range(0, n_tiles, together):
        rows["first_tile"] = first
        rows["tiles"] = scores["tiles"] = tiles = min(together, n_tiles - first)
        elements = tiles * (in_tile * _even(blocks) + int(law.plan["axes"]) * tile_lags)
        device.launch("estimators", "lay_out", _blocks(elements), _THREADS, rows)
        kernel = f"score_sums<{law.name}, {tile_lags}, {tile_pairs}>"
        device.launch("estimators", kernel, parts * tiles, _THREADS, scores)
        device.launch("estimators", "merge_parts", tiles * in_tile, _MERGING_THREADS, rows)


def _tile(n_lags: int, n_members: int, draws: int) -> tuple[int, int]:
    """Choose how many lags and pairs of vectors make a tile: the cheapest, rows that are computed in vain included."""

    def cost(tile: tuple[int, int]) -> int:
        lags, pairs = tile
        once = _COST_OF_DRAW * draws + _COST_OF_LAG * lags + _COST_OF_ROW * lags * pairs
        return -(-n_lags // lags) * -(-n_members // pairs) * once

    return min(_TILES, key=cost)


def _rows(views: tuple[Any, Any, Any], sums: Any) -> np.ndarray:
    """Plan of the rows: axes along which the lag changes first, so that rows which share one are side by side."""
    delta, a, b = views
    operands = [(v.shape[:-1], v.strides[:-1]) for v in (delta, a, b)]
    shape = sums.shape[1:]
    columns = [layout.broadcast_strides(*operand, shape) for operand in operands]
    axes = [axis for axis in zip(shape, layout.dense(shape, 8), *columns, strict=True) if axis[0] != 1]
    lag_axes, member_axes = (
        layout.merged([axis for axis in axes if bool(axis[2]) is moves]) for moves in (True, False)
    )
    plan = np.zeros((), ROWS)
    plan["n_lags"], plan["n_members"] = (math.prod(axis[0] for axis in some) for some in (lag_axes, member_axes))
    plan["lag_axes"], plan["row_axes"] = len(lag_axes), len(lag_axes) + len(member_axes)
    for i, axis in enumerate((*lag_axes, *member_axes)):
        plan["axis"][i] = axis
    plan["out"], plan["out_part"] = device.address(sums), 8 * math.prod(shape)
    plan["delta"], plan["a"], plan["b"] = map(device.address, views)
    plan["axes"], plan["delta_axis"] = delta.shape[-1], delta.strides[-1]
    plan["blocks"] = a.shape[-1]
    plan["a_block"], plan["b_block"] = (v.strides[-1] if v.shape[-1] > 1 else 0 for v in (a, b))
    return plan
