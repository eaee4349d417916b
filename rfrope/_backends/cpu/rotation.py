"""Rotation of arrays in the memory of the CPU: a plan from layouts and options, then compiled loops.

The functions named as the generic ones take what the gate has read; `dense` has the pass over small dense arrays.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable
from functools import cache, partial
from types import ModuleType
from typing import Any

import numpy as np
from llvmlite.binding import get_host_cpu_name

from rfrope._backends import layout
from rfrope._backends.cpu import coefficient_loops as coefficients
from rfrope._backends.cpu import rotation_loops as loops
from rfrope._backends.cpu.dense import has_sign
from rfrope._backends.cpu.plans import THREAD_ELEMENTS, gradient_table, plan_of
from rfrope._core import array, blocks, parallel
from rfrope._core.angles import Angles
from rfrope._core.array import Array
from rfrope._core.blocks import TurnOptions
from rfrope._core.overlap import Overlap, overlap_of

_UNINTERRUPTED = 2**23  # features of one call of a loop at most: an interrupt waits for its end
_LARGE = 2**23  # bytes of a result from which on it asks for large pages; NumPy's limit is 4 MB
_ADVICE = getattr(mmap, "MADV_HUGEPAGE", None)  # Linux alone
# stores past the caches: 1.2 to 2 times as fast on AMD's Zen 5, a third slower on Intel's Cascade Lake
_STREAMS = get_host_cpu_name().startswith("znver")


def rotated(x: Array, angles: Angles, turn: TurnOptions, out: Array | None) -> Array:
    """Turn features as the generic function does: phases are formed and become cos and sin inside the loop."""
    operands = tuple([_doubles(value, out, angles.xp) for value in (*angles[:3], turn.scale)])
    return _turned(layout.POSITIONS, x, operands, turn, out, angles.xp)


def rotated_by_phases(x: Array, phases: Array, turn: TurnOptions, out: Array | None, xp: ModuleType) -> Array:
    """Turn features as the generic function does."""
    operands = _doubles(phases, out, xp), None, None, _doubles(turn.scale, out, xp)
    return _turned(layout.PHASES, x, operands, turn, out, xp)


def rotated_by_table(x: Array, cos: Array, sin: Array, turn: TurnOptions, out: Array | None, xp: ModuleType) -> Array:
    """Turn features as the generic function does."""
    narrow = array.dtype_name(cos) == array.dtype_name(sin) == "float32"
    tables = [_kept_apart(array.view_as_numpy(v), out) if narrow else _doubles(v, out, xp) for v in (cos, sin)]
    return _turned(layout.TABLE_32 if narrow else layout.TABLE_64, x, (*tables, None, None), turn, out, xp)


def cos_sin(angles: Angles) -> tuple[Array, Array]:
    """Return cos and sin as the generic function does: blocks (1, 0) turned are (cos, sin)."""
    blocks, xp = angles.shape[-1], angles.xp
    x = array.from_host(np.repeat([1.0, 0.0], blocks), xp, device=array.device(angles.positions))
    turned = rotated(x, angles, TurnOptions("half", "half"), None)
    return xp.asarray(turned[..., :blocks], copy=True), xp.asarray(turned[..., blocks:], copy=True)


def _doubles(value: Any, out: Array | None, xp: ModuleType) -> np.ndarray | None:
    if value is None or isinstance(value, float):
        return None
    return _kept_apart(array.view_as_numpy(array.widen(value, xp)), out)


def _kept_apart(values: np.ndarray, out: Array | None) -> np.ndarray:
    """Return an array, or an aligned copy of one that is not, or that the result would be written over too early."""
    if out is not None and overlap_of(values, array.view_as_numpy(out)) is not Overlap.NONE:
        return values.copy()
    return values if values.flags.aligned else np.require(values, requirements="A")


def _turned(
    kind: int, x: Array, operands: tuple[np.ndarray | None, ...], turn: TurnOptions, out: Array | None, xp: ModuleType
) -> Array:
    """Plan and turn."""
    source = array.view_as_numpy(x)
    layouts = tuple([None if value is None else (value.shape, value.strides) for value in operands])
    y = None if out is None else array.view_as_numpy(out).strides
    options = turn.pairing, turn.out_pairing, turn.inverse, turn.softplus
    plan = plan_of(array.dtype_name(x), (source.shape, source.strides), y, kind, layouts, options)
    out = _request_large_pages(array.empty(plan.shape, x, xp), xp) if out is None else out
    if plan.elements == 0:
        return out
    x_address, y_address = source.ctypes.data, array.view_as_numpy(out).ctypes.data
    addresses = [0 if value is None else value.ctypes.data for value in operands]
    factor = turn.scale if isinstance(turn.scale, float) else 1.0
    streams = _STREAMS and plan.may_stream and y_address % 16 == 0 and y_address != x_address
    table = plan.dense[1] + streams * plan.tables.strides[0]
    run = partial(loops.turn, table, x_address, y_address, *addresses, factor, plan.like)
    _run_threaded(run, plan.items, plan.elements)
    array.library(out).mark_modified(out)
    return out


@cache
def _find_madvise() -> Any:
    function = ctypes.CDLL(None).madvise
    function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return function


def _request_large_pages(made: Array, xp: ModuleType) -> Array:
    """Return a new array, after a request for pages of 2 MB if it is large and not NumPy's, which asks for them itself.

    More than a third of the time of a large rotation went into faults of small pages: float32 of ``python -m
    benchmarks.torch_layers --only "polar features, forward"`` took 180 ms, and takes 119 ms with large ones.
    """
    if xp is np or _ADVICE is None:
        return made
    memory = array.view_as_numpy(made)
    if memory.nbytes >= _LARGE:
        start = memory.ctypes.data + -memory.ctypes.data % mmap.PAGESIZE
        _find_madvise()(start, memory.ctypes.data + memory.nbytes - start, _ADVICE)
    return made


def _run_threaded(loop: Callable[[int, int], Any], items: int, elements: int) -> None:
    """Run a loop over items of work: on this thread, or on several if there is enough to do."""
    wanted = elements // THREAD_ELEMENTS
    n_threads = 1 if wanted < 2 else min(wanted, items, parallel.allowed())
    pieces = max(1 if n_threads == 1 else 8 * n_threads, elements // _UNINTERRUPTED)
    length = max(1, items // pieces)

    def work(start: int) -> None:
        loop(start, min(start + length, items))

    parallel.run_all(work, range(0, items, length), n_threads)


def turn_gradient(
    x: Array, y: Array, angles: Angles | Array, turn: TurnOptions, shape: tuple[int, ...], radial: bool, xp: ModuleType
) -> Array:
    """Sum as the generic function does: cos and sin are formed by tiles, and no array of all phases is made."""
    return _turn_gradients(x, y, angles, turn, shape, radial, xp, None)


def turn_back(
    x: Array, y: Array, angles: Angles | Array, turn: TurnOptions, shape: tuple[int, ...] | None, xp: ModuleType
) -> tuple[Array, Array] | None:
    """Return the gradient of magnitudes x, and that of the phases unless `shape` is None, from one pass.

    None where x is not of the shape of what it is turned into. Magnitudes with gaps between their rows, or of rows that
    share their memory, are copied first: the loop writes where it reads.
    """
    if turn.shape(x.shape, (x.shape[-1],)) != tuple(y.shape):
        return None
    target = _request_large_pages(xp.empty_like(x), xp)
    views = [array.view_as_numpy(one) for one in (x, target)]
    steps = [[step for length, step in zip(v.shape, v.strides, strict=True) if length > 1] for v in views]
    if steps[0] != steps[1]:
        x = xp.empty_like(x)
        array.view_as_numpy(x)[...] = views[0]
    return target, _turn_gradients(x, y, angles, turn, shape, False, xp, target)


def _turn_gradients(
    x: Array,
    y: Array,
    angles: Any,
    turn: TurnOptions,
    shape: tuple[int, ...] | None,
    radial: bool,
    xp: ModuleType,
    target: Array | None,
) -> Array:
    """Plan and sum; fill `target` with the gradient of x."""
    are_positions, sums = isinstance(angles, Angles), np.zeros(shape or (1,))
    values = (*(angles[:3] if are_positions else (angles, None, None)), turn.scale)
    operands = [_doubles(value, None, xp) for value in values]
    views = [array.view_as_numpy(value) for value in (x, y)]
    layouts: Any = [None if value is None else (value.shape, value.strides) for value in operands]
    read = layout.operands_of(are_positions, *layouts)
    if 0 not in (read.blocks, *views[0].shape, *views[1].shape):
        kind = layout.POSITIONS if are_positions else layout.PHASES
        at_x, at_y, at_sums = ((value.shape, value.strides) for value in (*views, sums))
        options = turn.pairing, turn.out_pairing, turn.inverse, turn.softplus
        like, table, items = gradient_table(array.dtype_name(x), at_x, at_y, kind, read, layouts, options, at_sums)
        row_step, block_step = table[layout.ROW_AXIS + layout.S], table[layout.BLOCK_STRIDES + layout.S]
        rows = 0 if shape is None else table[layout.TILE] if row_step else 1
        found, places = np.empty((items, rows, read.blocks)), np.empty((items, 2), np.int64)
        addresses = [0 if value is None else value.ctypes.data for value in (table, *views, *operands)]
        factor = turn.scale if isinstance(turn.scale, float) else 1.0
        written = 0 if target is None else array.view_as_numpy(target).ctypes.data
        loop = partial(coefficients.turn_gradients, *addresses, factor, like, written, radial, found, places)
        _run_threaded(loop, items, views[1].size)
        coefficients.add_up(found, places, row_step, block_step, sums.reshape(-1))
    sums = np.zeros(0) if shape is None else (-sums if turn.inverse else sums).reshape(shape)
    return array.from_host(sums, xp, device=array.device(x))


def has_negative(x: Array, xp: ModuleType) -> bool:
    """Look at all numbers as the generic function does, after a look at their signs alone."""
    return has_sign(array.view_as_numpy(x)) and bool(blocks.has_negative.generic(x, xp))
