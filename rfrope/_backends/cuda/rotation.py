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
from rfrope._backends.layout import Layout, Strides
from rfrope._core import array
from rfrope._core.angles import Angles
from rfrope._core.arguments import LARGEST, LARGEST_SCALE
from rfrope._core.array import Array
from rfrope._core.blocks import MAGNITUDES, PAIRINGS, TurnOptions
from rfrope._core.dispatch import CUDA, DISPATCHED
from rfrope._core.overlap import Overlap, overlap_of

_FEATURES = {"float64": ("double", 8), "float32": ("float", 4), "float16": ("Half", 2), "bfloat16": ("Bfloat", 2)}
_NUMBERS = {name: name.upper() for name in ("float64", "float32", "int64", "int32")}  # enum Number
_CHUNK = 16  # bytes that are read or written at once
_THREADS = 256  # in a block
_MOST_THREADS = 2**31  # in a launch
_ENOUGH_IN_FLIGHT = 2**24  # bytes that are read at once by all threads, and fill any device: beyond, rows are grouped
_AXES = 12
_DOUBLE = np.dtype(np.float64)
_LARGEST_CACHED = 2**16  # bytes of frequencies of the host of which a device keeps a copy

_SOURCES = (
    *(("POSITIONS", number) for number in ("FLOAT64", "FLOAT32", "INT64", "INT32")),
    ("PHASES", "FLOAT64"),
    ("TABLES", "FLOAT64"),
    ("TABLES", "FLOAT32"),
)
KERNELS = tuple(
    f"rotate<{name}, {width}, {source}, {number}>"
    for name, size in _FEATURES.values()
    for width in (_CHUNK // size, 1)
    for source, number in _SOURCES
)

_AXIS = np.dtype([(name, np.int64) for name in ("length", "x", "y", "a", "b", "c", "e")])
ROTATION = np.dtype(
    [(name, np.int64) for name in ("x", "y", "a", "b", "c", "e")]
    + [(name, np.int64) for name in ("a_block", "b_block", "c_block", "e_block", "a_axis", "b_axis")]
    + [(name, np.int64) for name in ("x_feature", "y_feature", "x_block", "y_block", "x_second", "y_second")]
    + [("scale", np.float64)]
    + [(name, np.int64) for name in ("position", "inverse", "position_axes", "blocks", "features")]
    + [(name, np.int64) for name in ("threads", "turning", "units", "rows", "group", "shared")]
    + [(name, np.int64) for name in ("copied_whole", "x_member", "y_member", "row_axes")]
    + [("axes", _AXIS, _AXES)]
)

Axis = tuple[int, ...]  # length, then the strides of x, y, a, b, c and e


class _LaunchPlan(NamedTuple):
    """A rotation of arrays of given layouts."""

    shape: tuple[int, ...]  # that of the result
    # whether it is what `rotate` may ask for: D blocks that fit, phases that leave features their shape, and elements
    # of the result that share no memory
    is_fit: bool
    # the first byte and the one after the last of x, y, a and b, from their first elements
    extents: tuple[tuple[int, int], ...]
    # kernels, each with its plan but for addresses, the offsets that are added to these, and the number of blocks
    launches: tuple[tuple[str, np.ndarray, tuple[int, ...], int], ...]


# -- arrays of CuPy, read and turned in one pass -----------------------------------------------------------------------


def rotated_at_once(
    x: Any, positions: Any, frequencies: Any, pairings: tuple[Any, Any], scale: Any, inverse: Any, out: Any
) -> Any:
    """Return features of CuPy turned, or None for whatever takes a closer look, which raises the errors.

    Positions are an array of CuPy or an integer; frequencies are an array of CuPy, or one of NumPy of which a copy is
    kept on the device. Checks of layouts are those of finding the plan, and values are not looked at.
    """
    kind, (pairing, out_pairing) = type(x), pairings
    out_pairing = pairing if out_pairing is None else out_pairing
    if type(scale) is not float or not 0.0 < scale <= LARGEST_SCALE or type(inverse) is not bool:
        return None
    if not x.size or (out is not None and type(out) is not kind):
        return None
    if type(pairing) is not str or type(out_pairing) is not str:
        return None
    options = scale, inverse, (pairing, out_pairing)
    if device.space().cuda.runtime.getDevice() == x.data.device_id:
        return _turned_here(x, positions, frequencies, options, out)
    with x.device:
        return _turned_here(x, positions, frequencies, options, out)


def _turned_here(x: Any, positions: Any, frequencies: Any, options: Any, out: Any) -> Any:
    """Turn arrays of CuPy on the current device; None for what is not all there, or does not fit."""
    kind, here, at, position = type(x), x.data.device_id, 0, 0
    a: Layout = (), ()
    if type(frequencies) is not kind:
        frequencies = _kept_on_device(frequencies, here)
    if type(positions) is kind and positions.data.device_id == here:
        number, at, a = _NUMBERS.get(array.dtype_name(positions)), positions.data.ptr, _layout_of(positions)
    elif type(positions) is int and abs(positions) < 2**63:
        number, position = "INT64", positions
    else:
        return None
    if number is None or frequencies is None or frequencies.data.device_id != here or frequencies.dtype != _DOUBLE:
        return None
    y = device.space().empty(x.shape, x.dtype) if out is None else out
    if y.data.device_id != here or y.dtype != x.dtype:
        return None
    addresses = x.data.ptr, y.data.ptr, at, frequencies.data.ptr, 0, 0
    options += addresses[0] == addresses[1], _are_aligned(addresses)
    target, operands = None if out is None else _layout_of(y), (a, _layout_of(frequencies), None, None)
    try:
        plan = _plan_of("POSITIONS", number, array.dtype_name(x), _layout_of(x), target, operands, *options)
    except (ValueError, LookupError):  # shapes do not fit, or these are no features
        return None
    if not plan.is_fit or (out is not None and not _are_apart(plan, addresses)):
        return None
    _launch(plan, addresses, position)
    return y


def _layout_of(x: Any) -> Layout:
    return x.shape, x.strides


def _are_aligned(addresses: tuple[int, ...]) -> bool:
    return not (addresses[0] % _CHUNK or addresses[1] % _CHUNK)


def _are_apart(plan: _LaunchPlan, addresses: tuple[int, ...]) -> bool:
    """Return whether nothing is written over that has yet to be read; `is_fit` says so of work in place."""
    source, target, *angles = [
        (at + low, at + high) for at, (low, high) in zip(addresses[:4], plan.extents, strict=True)
    ]
    others = angles if addresses[0] == addresses[1] else [source, *angles]
    return all([target[1] <= low or high <= target[0] for low, high in others])


def _kept_on_device(frequencies: Any, here: int) -> Any:
    """Return the copy of frequencies of the host that the current device has, or None for what takes a closer look."""
    if type(frequencies) is not np.ndarray or frequencies.dtype != np.float64 or frequencies.nbytes > _LARGEST_CACHED:
        return None
    numbers, shape = frequencies.tobytes(), frequencies.shape
    return device.cached((numbers, shape, here), lambda: _copy(np.frombuffer(numbers).reshape(shape)))


def _copy(host: np.ndarray) -> Any:
    """Put finite numbers on the current device and wait for them, so that they may be read on any stream."""
    if not np.all(np.abs(host) <= LARGEST):
        return None
    there = device.space().asarray(host)
    device.space().cuda.get_current_stream().synchronize()
    return there


# -- what the gate has read --------------------------------------------------------------------------------------------


def rotated(x: Array, angles: Angles, turn: TurnOptions, out: Array | None) -> Array:
    """Twin of the generic function: phases are formed and become cos and sin inside the kernel.

    For magnitudes it is the generic function itself, which takes cos and sin from here.
    """
    if MAGNITUDES in turn[:2]:
        return DISPATCHED[*CUDA.rotation, "rotated"].generic(x, angles, turn, out)
    positions, frequencies, shift, xp = angles
    with device.place(x):
        a = device.view(_convert_positions(positions, xp))
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
    xp, blocks, there = angles.xp, angles.shape[-1], array.device(angles.positions)
    with device.place(angles.positions):
        x = device.cached((xp, str(there), blocks), lambda: _unit_blocks(blocks, there, xp))
        turned = rotated(x, angles, TurnOptions("half", "half"), None)
        return xp.asarray(turned[..., :blocks], copy=True), xp.asarray(turned[..., blocks:], copy=True)


def _unit_blocks(count: int, there: Any, xp: ModuleType) -> Array:
    """Put blocks (1, 0) on a device and wait for them, so that they may be read on any stream."""
    x = array.from_host(np.repeat([1.0, 0.0], count), xp, device=there, dtype=xp.float64)
    array.to_host(x[:1])
    return x


def _convert_positions(positions: Array, xp: ModuleType) -> Array:
    """Return positions in a type that the kernel reads, without a copy where they are."""
    name = array.dtype_name(positions)
    if name in _NUMBERS:
        return positions
    is_whole = array.is_integer(positions) and name != "uint64"
    return array.to_words(positions, 64, xp) if is_whole else array.widen(positions, xp)


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
    layouts: Any = [None if v is None else _layout_of(v) for v in angles]
    leading = [shape for shape, _, _ in layout.operands_of(source == "POSITIONS", *layouts).rows]
    result = out
    if out is None:
        result = array.empty((*np.broadcast_shapes(tuple(x.shape[:-1]), *leading), x.shape[-1]), x, xp)
    y_view = device.view(result)
    if 0 in y_view.shape:
        return result
    in_place = out is not None and overlap_of(x_view, y_view) is Overlap.SAME
    if in_place and turn.pairing != turn.out_pairing:  # features change places, which threads would overwrite unread
        x_view, in_place = x_view.copy(), False
    addresses = tuple([0 if view is None else device.address(view) for view in (x_view, y_view, *angles)])
    scale = turn.scale if isinstance(turn.scale, float) else 1.0
    options = scale, turn.inverse, turn[:2], in_place, _are_aligned(addresses)
    number = _NUMBERS[array.dtype_name(angles[0])]
    plan = _plan_of(
        source, number, array.dtype_name(x), _layout_of(x_view), _layout_of(y_view), tuple(layouts), *options
    )
    _launch(plan, addresses, 0)
    array.library(result).mark_modified(result)
    return result


def _launch(plan: _LaunchPlan, addresses: tuple[int, ...], position: int) -> None:
    for kernel, template, offsets, n_blocks in plan.launches:
        there = template.copy()
        there["position"] = position
        for name, offset, address in zip("xyabce", offsets, addresses, strict=True):
            if address:
                there[name] = offset + address
        device.launch("rotation", kernel, n_blocks, _THREADS, there)


# -- plans -------------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=512)
def _plan_of(
    source: str, number: str, dtype: str, x: Layout, y: Layout | None, angles: Any,
    scale: float, inverse: bool, pairings: tuple[str, str], in_place: bool, aligned: bool,
) -> _LaunchPlan:  # fmt: skip
    """Return the plan for features of a dtype and layout.

    Parameters
    ----------
    source, number : str
        What the kernel's `Source` and `Number` call the operands a and b.
    dtype : str
        Of the features.
    x, y : layouts
        Of the features and of the result, which is new and dense unless given.
    angles : layouts
        Those of a, b, c and e, as in `layout.operands_of`.
    aligned : bool
        Whether the addresses of x and y are multiples of 16.

    Raises
    ------
    ValueError
        Where shapes do not fit together; whoever calls it words the error.
    """
    operands, (feature, size) = layout.operands_of(source == "POSITIONS", *angles), _FEATURES[dtype]
    blocks, columns = operands.blocks, [row[:2] for row in operands.rows]
    shape, rest = (*np.broadcast_shapes(x[0][:-1], *[shape for shape, _ in columns]), x[0][-1]), x[0][-1] - 2 * blocks
    is_fit = shape == x[0] and rest >= 0 and rest % 2 == 0 and set(pairings) <= set(PAIRINGS)
    if y is not None:
        is_fit = is_fit and y[0] == shape and _is_nested(y, size)
        is_fit = is_fit and not (in_place and (x != y or pairings[0] != pairings[1]))
    y_strides = layout.dense(shape, size) if y is None else y[1]
    outer, shared = layout.walk_axes(shape[:-1], [(x[0][:-1], x[1][:-1]), (shape[:-1], y_strides[:-1]), *columns])
    steps = [axis[i] for axis in (*outer, *shared) for i in (layout.X, layout.Y)]
    whole = aligned and x[1][-1] == y_strides[-1] == size and not any([s % _CHUNK for s in (*steps, blocks * size)])
    width = _CHUNK // size if whole else 1  # blocks that a thread turns: 1, or 16 bytes of them
    plan = np.zeros((), ROTATION)
    plan["scale"], plan["inverse"] = 1.0 / scale if inverse else scale, inverse
    plan["position_axes"], (plan["a_axis"], plan["b_axis"]) = operands.axes, operands.axis_steps
    plan["a_block"], plan["b_block"], plan["c_block"], plan["e_block"] = [step for _, _, step in operands.rows]
    plan["blocks"], plan["features"], plan["copied_whole"] = blocks, shape[-1], whole
    for name, stride, pairing in zip("xy", (x[1][-1], y_strides[-1]), pairings, strict=True):
        paired = pairing == "interleaved"
        plan[f"{name}_feature"] = stride
        plan[f"{name}_block"], plan[f"{name}_second"] = (2 * stride, stride) if paired else (stride, blocks * stride)
    plan["turning"] = turning = -(-blocks // width)
    plan["units"] = units = turning + (0 if in_place else -(-rest // (2 * width)))
    launches = []
    for offsets, rows in _pieces((0,) * 6, (*shared, *outer), units):
        piece = plan.copy()
        at_once = 2 * width * size * (2 if size == 4 or source == "PHASES" else 4)  # bytes that a thread reads
        threads = _share_out(piece, rows, at_once)
        launches.append((f"rotate<{feature}, {width}, {source}, {number}>", piece, offsets, -(-threads // _THREADS)))
    layouts = (x, size), ((shape, y_strides), size), (angles[0], 8), (angles[1] or ((), ()), 8)
    extents = tuple([_extent(shape, strides, size) for (shape, strides), size in layouts])
    return _LaunchPlan(shape, is_fit, extents, tuple(launches))


def _is_nested(y: Layout, size: int) -> bool:
    """Return whether the elements of a layout share no memory, as far as is seen from axis to axis."""
    for step, length in sorted((abs(step), length) for length, step in zip(*y, strict=True) if length > 1):
        if step < size:
            return False
        size += step * (length - 1)
    return True


def _extent(shape: tuple[int, ...], strides: Strides, size: int) -> tuple[int, int]:
    """First byte of a layout, and the one after the last, from its first element."""
    ends = [step * (length - 1) for step, length in zip(strides, shape, strict=True)]
    return sum([min(end, 0) for end in ends]), sum([max(end, 0) for end in ends]) + size


def _share_out(plan: np.ndarray, axes: tuple[Axis, ...], at_once: int) -> int:
    """Put the rows into a plan, of which each thread reads so many bytes at once; return how many threads there are."""
    shared = [axis for axis in axes if not any(axis[layout.A :])]
    members = max(shared, default=(1, *(0,) * 6), key=lambda axis: axis[0])  # the rows that a thread goes along
    apart = [axis for axis in axes if axis is not members]
    shared_rows, plan["x_member"], plan["y_member"], *_ = members
    rows, units = math.prod(axis[0] for axis in apart), int(plan["units"])
    group = max(1, min(shared_rows, units * rows * shared_rows * at_once // _ENOUGH_IN_FLIGHT))
    plan["threads"] = threads = units * rows * -(-shared_rows // group)
    plan["rows"], plan["group"], plan["shared"], plan["row_axes"] = rows, group, shared_rows, len(apart)
    for i, axis in enumerate(apart):
        plan["axes"][i] = axis
    return threads


def _pieces(
    offsets: tuple[int, ...], axes: tuple[Axis, ...], units: int
) -> Iterator[tuple[tuple[int, ...], tuple[Axis, ...]]]:
    """Cut the work into launches whose axes and threads a kernel can count; one, unless there are very many."""
    if len(axes) <= _AXES and units * math.prod(axis[0] for axis in axes) < _MOST_THREADS:
        yield offsets, axes
        return
    longest = max(range(len(axes)), key=lambda i: axes[i][0])
    length, *steps = axes[longest]
    half = length // 2
    for start, stop in ((0, half), (half, length)):
        cut = ((stop - start, *steps),) if stop - start > 1 else ()
        there = tuple(offset + start * step for offset, step in zip(offsets, steps, strict=True))
        yield from _pieces(there, (*axes[:longest], *cut, *axes[longest + 1 :]), units)
