"""Direct sums of cos and sin over many frequencies at many lags on a CUDA device, with the accuracy of `cpu.sums`.

They wait for nothing. How they are cut depends on shapes alone, and parts are merged in a fixed order, so that
results are the same bits on every device and in every run.
"""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from rfrope._backends import layout
from rfrope._backends.cuda import device
from rfrope._core import array
from rfrope._core.angles import Angles
from rfrope._core.array import Array

_THREADS = 256  # in a block
_ENOUGH_BLOCKS, _MOST_BLOCKS = 512, 2048  # that fill a device, and that are made by cutting frequencies into parts
_HEAD_AXES = 6
_QUANTITIES = {"phi": ("COS", 1.0), "phi2": ("COS", 2.0), "sin": ("SIN", 1.0)}  # what is summed, factor of the lags

KERNELS = (
    *(f"sum_few<{quantity}, {few}>" for quantity in ("MEAN", "COS", "SIN") for few in ("1, 1", "1, 2", "2, 1", "3, 1")),
    *(f"{name}<{quantity}>" for name in ("sum_any", "merge_parts") for quantity in ("MEAN", "COS", "SIN")),
)

_HEAD_AXIS = np.dtype([(name, np.int64) for name in ("length", "frequencies", "lags")])
SUMS = np.dtype(
    [(name, np.int64) for name in ("frequencies", "lags", "parts")]
    + [(name, np.int64) for name in ("frequency_step", "frequency_axis", "lag_step", "lag_axis")]
    + [("factor", np.float64)]
    + [(name, np.int64) for name in ("axes", "n_frequencies", "n_lags", "lanes", "tiles", "n_parts", "part")]
    + [(name, np.int64) for name in ("again", "head_axes")]
    + [("heads", _HEAD_AXIS, _HEAD_AXES)]
)
PARTS = np.dtype(
    [(name, np.int64) for name in ("parts", "mean", "squares", "n_frequencies", "n_lags", "n_parts", "part", "threads")]
)


def mean_cos(angles: Angles) -> Array:
    """Mean of ``cos u`` over the blocks: see `rfrope._core.sums.mean_cos`."""
    xp = angles.xp
    with device.place(angles.positions):
        omega, lags = (device.doubles(v, xp) for v in (angles.frequencies, angles.positions))
        omega, lags = layout.head_rows(omega, lags)
        mean, view = _result(angles.shape[:-1], angles.positions, xp)
        _direct(omega, lags, "MEAN", view)
        return mean


def kernel_moments(omega: Array, lags: Array, quantity: str) -> tuple[Array, Array]:
    """Mean and sum of squared deviations of a kernel's cos or sin: see `rfrope.montecarlo`."""
    xp, (kind, factor) = array.namespace(lags=lags), _QUANTITIES[quantity]
    with device.place(lags):
        space, rows = device.space(), device.doubles(lags, xp)
        omega = space.asarray(device.view(omega), np.float64)
        shape = rows.shape[:-1]
        rows = rows.reshape(-1, omega.shape[1])
        (mean, mean_view), (squares, squares_view) = (_result(shape, lags, xp) for _ in range(2))
        _direct(omega, rows, kind, mean_view, squares_view, factor)
        return mean, squares


def _result(shape: tuple[int, ...], like: Array, xp: ModuleType) -> tuple[Array, Any]:
    """Return a new array beside another one, float64, and CuPy's view of it."""
    result = array.empty(shape, array.widen(like, xp), xp)
    return result, device.view(result)


# -- direct sums -------------------------------------------------------------------------------------------------------


class _Cut(NamedTuple):
    """A sum as it is laid over blocks of threads."""

    lags_each: int  # lags of a thread
    lanes: int  # threads of a block side by side along the lags; the others share the frequencies
    parts: int  # into which the frequencies are cut
    part: int  # frequencies of a part

    def tiles(self, n_lags: int, lags_each: int) -> int:
        return -(-n_lags // (self.lanes * lags_each))


def _cut(count: int, n_lags: int, n_heads: int, axes: int) -> _Cut:
    """Cut a sum, by its size alone: wide tiles of lags, unless many lanes would idle or there were too few blocks."""
    each = 2 if axes == 1 and n_lags >= 64 else 1

    def most_parts(lanes: int) -> int:  # so that a thread has 64 frequencies at least
        return -(-count // max(64 * _THREADS // lanes, _THREADS))

    lanes = _THREADS
    while lanes > 1:
        tiles = -(-n_lags // (lanes * each))
        idle = 8 * tiles * lanes * each > 9 * n_lags
        if not idle and (lanes <= 32 or n_heads * tiles * most_parts(lanes) >= _ENOUGH_BLOCKS):
            break
        lanes //= 2
    tiles = n_heads * -(-n_lags // (lanes * each))
    parts = min(most_parts(lanes), max(1, -(-_MOST_BLOCKS // tiles)))
    part = -(-count // parts)
    return _Cut(each, lanes, -(-count // part), part)


def _direct(omega: Any, lags: Any, kind: str, mean: Any, squares: Any = None, factor: float = 1.0) -> None:
    """Mean over frequencies ``(*H, n, k)``, and squared deviations if asked for, at lags ``(*H, L, k)`` times a factor.

    Arrays are those of CuPy; results are written to contiguous ones.
    """
    space = device.space()
    axes = _head_axes(omega, lags)
    heads = np.broadcast_shapes(omega.shape[:-2], lags.shape[:-2])
    if len(axes) > _HEAD_AXES:
        omega, lags = (space.ascontiguousarray(space.broadcast_to(v, (*heads, *v.shape[-2:]))) for v in (omega, lags))
        axes = _head_axes(omega, lags)
    (count, k), n_lags, n_heads = omega.shape[-2:], lags.shape[-2], math.prod(heads)
    if not n_lags * n_heads:
        return
    cut = _cut(count, n_lags, n_heads, k)
    parts = space.empty((n_heads, cut.parts, n_lags, 2), np.float64)

    plan = np.zeros((), SUMS)
    plan["frequencies"], plan["lags"], plan["parts"] = map(device.address, (omega, lags, parts))
    plan["frequency_step"], plan["frequency_axis"] = omega.strides[-2:]
    plan["lag_step"], plan["lag_axis"] = lags.strides[-2:]
    plan["factor"], plan["axes"], plan["n_frequencies"], plan["n_lags"] = factor, k, count, n_lags
    plan["lanes"], plan["n_parts"], plan["part"], plan["head_axes"] = cut.lanes, cut.parts, cut.part, len(axes)
    for i, axis in enumerate(axes):
        plan["heads"][i] = axis
    few = f"sum_few<{kind}, {k}, {cut.lags_each}>"
    steps = [(few, cut.lags_each, False)] if few in KERNELS else []
    # again only where phases turned out to be too large for the other
    steps.append((f"sum_any<{kind}>", 1, bool(steps)))
    for kernel, lags_each, again in steps:
        plan = plan.copy()
        plan["tiles"], plan["again"] = cut.tiles(n_lags, lags_each), again
        device.launch("sums", kernel, n_heads * cut.parts * int(plan["tiles"]), _THREADS, plan)

    last = np.zeros((), PARTS)
    last["parts"], last["mean"] = map(device.address, (parts, mean))
    last["squares"] = 0 if squares is None else device.address(squares)
    last["n_frequencies"], last["n_lags"], last["threads"] = count, n_lags, n_heads * n_lags
    last["n_parts"], last["part"] = cut.parts, cut.part
    device.launch("sums", f"merge_parts<{kind}>", -(-n_heads * n_lags // _THREADS), _THREADS, last)


def _head_axes(omega: Any, lags: Any) -> list[tuple[int, ...]]:
    """Leading axes: their lengths, and the strides of frequencies and lags, neighbours being merged where they can."""
    leading = np.broadcast_shapes(omega.shape[:-2], lags.shape[:-2])
    strides = (layout.broadcast_strides(v.shape[:-2], v.strides[:-2], leading) for v in (omega, lags))
    return layout.joined(axis for axis in zip(leading, *strides, strict=True) if axis[0] != 1)
