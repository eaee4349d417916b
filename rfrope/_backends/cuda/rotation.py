"""Twins of the rotation for arrays on a CUDA device: a plan of the walk over memory, then one kernel.

Nothing here waits for the device: a plan depends on shapes, strides and addresses alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from rfrope._backends import layout
from rfrope._backends.cuda import device
from rfrope._backends.layout import Operands, Strides
from rfrope._core import array
from rfrope._core.angles import Angles
from rfrope._core.array import Array
from rfrope._core.blocks import MAGNITUDES, TurnOptions
from rfrope._core.dispatch import CUDA, DISPATCHED, Overlap, overlap_of

_FEATURES = {"float64": ("double", 8), "float32": ("float", 4), "float16": ("Half", 2), "bfloat16": ("Bfloat", 2)}
_NUMBERS = {"float64": 0, "float32": 1, "int64": 2, "int32": 3}  # enum Number
_CHUNK = 16  # bytes that are read or written at once
_THREADS = 256  # in a block
_MOST_THREADS = 2**31  # in a launch
_ENOUGH_THREADS = 2**19  # they fill a device: from there on rows are grouped
_LARGEST_GROUP = 8
_AXES = 12

KERNELS = tuple(
    f"rotate<{name}, {width}, {source}>"
    for name, size in _FEATURES.values()
    for width in (_CHUNK // size, 1)
    for source in ("POSITIONS", "PHASES", "TABLES")
)

_AXIS = np.dtype([(name, np.int64) for name in ("length", "x", "y", "a", "b", "c", "e")])
ROTATION = np.dtype(
    [(name, np.int64) for name in ("x", "y", "a", "b", "c", "e")]
    + [(name, np.int64) for name in ("a_block", "b_block", "c_block", "e_block", "a_axis", "b_axis")]
    + [(name, np.int64) for name in ("x_feature", "y_feature", "x_block", "y_block", "x_second", "y_second")]
    + [("scale", np.float64)]
    + [(name, np.int64) for name in ("inverse", "number", "position_axes", "blocks", "features")]
    + [(name, np.int64) for name in ("threads", "turning", "units", "rows", "group", "shared")]
    + [(name, np.int64) for name in ("copied_whole", "outer_axes", "shared_axes")]
    + [("axes", _AXIS, _AXES)]
)

Axis = tuple[int, ...]  # length, then the strides of x, y, a, b, c and e


class _Call(NamedTuple):
    """All of a call but the addresses."""

    source: str
    dtype: str
    x: tuple[tuple[int, ...], Strides]  # shape, strides
    y: tuple[tuple[int, ...], Strides]
    operands: Operands
    number: int  # type of a, and of b where it is a table
    scale: float
    inverse: bool
    pairings: tuple[str, str]
    in_place: bool
    aligned: bool


def rotated(x: Array, angles: Angles, turn: TurnOptions, out: Array | None) -> Array:
    """Twin of the generic function: phases are formed and become cos and sin inside the kernel.

    For magnitudes it is the generic function itself, which takes cos and sin from here.
    """
    if MAGNITUDES in turn[:2]:
        return DISPATCHED[*CUDA.rotation, "rotated"].generic(x, angles, turn, out)
    positions, frequencies, shift, xp = angles
    with device.place(x):
        a = device.view(positions) if array.dtype_name(positions) in _NUMBERS else device.doubles(positions, xp)
        b, c, e = (_doubles(value, xp) for value in (frequencies, shift, turn.scale))
        return _turned("POSITIONS", x, (a, b, c, e), turn, out, xp)


def rotated_by_phases(x: Array, phases: Array, turn: TurnOptions, out: Array | None, xp: ModuleType) -> Array:
    """Twin of the generic function."""
    with device.place(x):
        a, e = _doubles(phases, xp), _doubles(turn.scale, xp)
        return _turned("PHASES", x, (a, None, None, e), turn, out, xp)


def rotated_by_table(x: Array, cos: Array, sin: Array, turn: TurnOptions, out: Array | None, xp: ModuleType) -> Array:
    """Twin of the generic function, or that itself for magnitudes."""
    if MAGNITUDES in turn[:2]:
        return DISPATCHED[*CUDA.rotation, "rotated_by_table"].generic(x, cos, sin, turn, out, xp)
    with device.place(x):
        narrow = array.dtype_name(cos) == array.dtype_name(sin) == "float32"
        a, b = (device.view(v) if narrow else device.doubles(v, xp) for v in (cos, sin))
        return _turned("TABLES", x, (a, b, None, None), turn, out, xp)


def cos_sin(angles: Angles) -> tuple[Array, Array]:
    """Twin of the generic function: blocks (1, 0) turned are (cos, sin)."""
    xp = angles.xp
    with device.place(angles.positions):
        blocks = angles.shape[-1]
        x = xp.arange(2 * blocks, device=array.device(angles.positions)) < blocks
        turned = rotated(array.astype(x, xp.float64, xp), angles, TurnOptions("half", "half"), None)
        return xp.asarray(turned[..., :blocks], copy=True), xp.asarray(turned[..., blocks:], copy=True)


def _doubles(value: Any, xp: ModuleType) -> Any:
    return None if value is None or isinstance(value, float) else device.doubles(value, xp)


def _turned(
    source: str, x: Array, angles: tuple[Any, Any, Any, Any], turn: TurnOptions, out: Array | None, xp: ModuleType
) -> Array:
    """Launch the kernel on operands a, b, c and e."""
    x_view = device.view(x)
    if out is not None:  # operands that the result would be written over before they have been read are copied
        over = [v is not None and overlap_of(v, device.view(out)) is not Overlap.NONE for v in angles]
        angles = tuple(v.copy() if moves else v for v, moves in zip(angles, over, strict=True))
    b, c, e = (None if v is None else (v.shape, v.strides) for v in angles[1:])
    operands = layout.operands_of(source == "POSITIONS", (angles[0].shape, angles[0].strides), b, c, e)
    leading = np.broadcast_shapes(tuple(x.shape[:-1]), *(shape for shape, _, _ in operands.rows))
    result = array.empty((*leading, x.shape[-1]), x, xp) if out is None else out
    y_view = device.view(result)
    if 0 in y_view.shape:
        return result
    pairings = (turn.pairing, turn.out_pairing)
    in_place = out is not None and overlap_of(x_view, y_view) is Overlap.SAME
    if in_place and pairings[0] != pairings[1]:  # features change places, which threads would overwrite unread
        x_view, in_place = x_view.copy(), False
    addresses = [0 if view is None else device.address(view) for view in (x_view, y_view, *angles)]
    call = _Call(
        source,
        array.dtype_name(x),
        (x_view.shape, x_view.strides),
        (y_view.shape, y_view.strides),
        operands,
        _NUMBERS[array.dtype_name(angles[0])],
        turn.scale if isinstance(turn.scale, float) else 1.0,
        turn.inverse,
        pairings,
        in_place,
        addresses[0] % _CHUNK == addresses[1] % _CHUNK == 0,
    )
    for kernel, offsets, threads in _plans(call):
        plan = offsets.copy()
        for name, address in zip("xyabce", addresses, strict=True):
            plan[name] = plan[name] + address if address else 0
        device.launch("rotation", kernel, -(-threads // _THREADS), _THREADS, plan)
    array.written(result)
    return result


@lru_cache(maxsize=512)
def _plans(call: _Call) -> list[tuple[str, np.ndarray, int]]:
    """Launches that a call makes: the kernel, its plan with offsets in place of addresses, and how many threads."""
    feature, size = _FEATURES[call.dtype]
    (x_shape, x_strides), (shape, y_strides) = call.x, call.y
    operands, blocks, axes, axis_steps = call.operands
    features = shape[-1]
    columns = [row[:2] for row in operands]
    outer, shared = layout.walk_axes(shape[:-1], (x_shape[:-1], x_strides[:-1]), y_strides[:-1], columns)
    whole = call.aligned and x_strides[-1] == y_strides[-1] == size
    whole = whole and all(axis[i] % _CHUNK == 0 for axis in (*outer, *shared) for i in (layout.X, layout.Y))
    whole = whole and ("half" not in call.pairings or blocks * size % _CHUNK == 0)
    width = _CHUNK // size if whole else 1

    plan = np.zeros((), ROTATION)
    plan["scale"], plan["inverse"], plan["number"] = call.scale, call.inverse, call.number
    plan["position_axes"], (plan["a_axis"], plan["b_axis"]) = axes, axis_steps
    plan["a_block"], plan["b_block"], plan["c_block"], plan["e_block"] = [step for _, _, step in operands]
    plan["blocks"], plan["features"] = blocks, features
    for name, stride, pairing in zip("xy", (x_strides[-1], y_strides[-1]), call.pairings, strict=True):
        paired = pairing == "interleaved"
        plan[f"{name}_feature"] = stride
        plan[f"{name}_block"], plan[f"{name}_second"] = (2 * stride, stride) if paired else (stride, blocks * stride)
    plan["copied_whole"] = whole and 2 * blocks * size % _CHUNK == 0
    plan["turning"] = turning = -(-blocks // width)
    copied = 0 if call.in_place else features - 2 * blocks
    plan["units"] = units = turning + -(-copied // (2 * width))

    launches = []
    for offsets, outer_axes, shared_axes in _pieces((0,) * 6, tuple(outer), tuple(shared), units):
        piece = plan.copy()
        rows, members = (math.prod(axis[0] for axis in axes) for axes in (outer_axes, shared_axes))
        group = max(1, min(_LARGEST_GROUP, members, units * rows * members // _ENOUGH_THREADS))
        threads = units * rows * -(-members // group)
        for name, offset in zip("xyabce", offsets, strict=True):
            piece[name] = offset
        piece["threads"], piece["rows"], piece["group"], piece["shared"] = threads, rows, group, members
        piece["outer_axes"], piece["shared_axes"] = len(outer_axes), len(shared_axes)
        for i, axis in enumerate((*outer_axes, *shared_axes)):
            piece["axes"][i] = axis
        launches.append((f"rotate<{feature}, {width}, {call.source}>", piece, threads))
    return launches


def _pieces(
    offsets: tuple[int, ...], outer: tuple[Axis, ...], shared: tuple[Axis, ...], units: int
) -> Iterator[tuple[tuple[int, ...], tuple[Axis, ...], tuple[Axis, ...]]]:
    """Cut the work into launches whose axes and threads a kernel can count; one, unless there are very many."""
    axes = (*outer, *shared)
    if len(axes) <= _AXES and units * math.prod(axis[0] for axis in axes) < _MOST_THREADS:
        yield offsets, outer, shared
        return
    longest = max(range(len(axes)), key=lambda i: axes[i][0])
    length, *steps = axes[longest]
    half = length // 2
    for start, stop in ((0, half), (half, length)):
        cut = ((stop - start, *steps),) if stop - start > 1 else ()
        there = tuple(offset + start * step for offset, step in zip(offsets, steps, strict=True))
        parts = (*axes[:longest], *cut, *axes[longest + 1 :])
        n_outer = len(outer) - (longest < len(outer) and not cut)
        yield from _pieces(there, parts[:n_outer], parts[n_outer:], units)
