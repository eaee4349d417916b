"""Twins of the rotation for arrays in the memory of the CPU: a plan of the walk over memory, then compiled loops.

A plan depends on shapes and strides alone and is kept, so that a decode step does not pay for it again.
"""

from __future__ import annotations

import math
from functools import lru_cache, partial
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from rfrope import _array, _threads
from rfrope._accel import layout
from rfrope._accel import rotation_loops as loops
from rfrope._accel.layout import Operand, Strides
from rfrope._array import Array

_TABLE_BYTES = 2**16  # of cos and sin, for one tile of rows: they stay in the second cache
_ITEM_ELEMENTS = 2**18  # features in one item of work
_LARGEST_GROUP = 2**12
_STREAMED_BYTES = 2**23  # outputs of this size go past the caches, which they would only flush
_THREAD_ELEMENTS = 2**20  # features that are worth a thread, which takes 0.1 ms to start
_LIKE: dict[str, Any] = {
    "float64": np.float64(0),
    "float32": np.float32(0),
    "float16": np.int16(0),
    "bfloat16": np.uint16(0),
}

_REMEMBERED = 512  # calls whose checks need not be made again

Layout = tuple[tuple[int, ...], Strides]  # shape, strides


class Plan(NamedTuple):
    """The table that the loops read, its address, how many items of work it makes and how many features they hold."""

    table: np.ndarray
    address: int
    items: int
    elements: int


class Source(NamedTuple):
    """Where cos and sin come from: which operands, how many blocks and position axes, and the steps along the axes."""

    kind: int
    blocks: int
    axes: int = 0
    a_axis: int = 0
    b_axis: int = 0


def rotated(
    x: Array,
    positions: Array,
    frequencies: Array,
    shift: Array | None,
    scale: Any,
    inverse: bool,
    pairing: str,
    out_pairing: str,
    out: Array | None,
    xp: ModuleType,
) -> Array:
    """Twin of the generic function: phases are formed and become cos and sin inside the loop."""
    a, b = _doubles(positions, out, xp), _doubles(frequencies, out, xp)
    kept: list[np.ndarray | None] = [a, b]  # their memory must outlive the loops
    operands = list(layout.positions_and_frequencies(a, b, (a.ctypes.data, b.ctypes.data)))
    if b.ndim == 1:
        blocks, axes = b.shape[0], (1, 0, 0)
    else:
        blocks, axes = b.shape[-2], (b.shape[-1], a.strides[-1], b.strides[-1])
    for value in (shift, None if isinstance(scale, float) else scale):
        array = None if value is None else _doubles(value, out, xp)
        kept.append(array)
        operands.append(_operand(array))
        blocks = layout.common_blocks(blocks, array)
    source = Source(loops.POSITIONS, blocks, *axes)
    walk = _walk(x, source, operands, inverse, pairing, out_pairing, out)
    repeatable = xp is np and shift is None and isinstance(scale, float) and type(inverse) is bool
    if repeatable and 0 < walk.elements < 2 * _THREAD_ELEMENTS:
        _remember(_key(x, positions, frequencies, inverse, pairing, out_pairing, out), walk)
    return _turned(x, walk, operands, scale, out, xp)


def rotated_again(
    x: Array,
    positions: Array,
    frequencies: Array,
    scale: Any,
    inverse: bool,
    pairing: str,
    out_pairing: str | None,
    out: Array | None,
) -> Array | None:
    """Do what `rotated` did before with arrays of the same shapes, strides and dtypes; None where it has not.

    Checks that depend on those alone have been passed then. What may differ from call to call is looked at here:
    values, addresses, and whether `out` may be written to.
    """
    if type(positions) is int:
        positions = np.asarray(positions)
    if not type(x) is type(positions) is type(frequencies) is np.ndarray or type(scale) is not float:
        return None
    out_pairing = pairing if out_pairing is None else out_pairing
    known = type(inverse) is bool and type(pairing) is type(out_pairing) is str
    if not known or (out is not None and type(out) is not np.ndarray):
        return None
    key = _key(x, positions, frequencies, inverse, pairing, out_pairing, out)
    walk = _KNOWN.get(key)
    if walk is None or not 0.0 < scale < math.inf or (out is not None and not out.flags.writeable):
        return None
    target = np.empty(walk.shape, x.dtype) if out is None else out
    positions = positions.astype(np.float64, copy=False)
    if out is not None and (np.may_share_memory(out, positions) or np.may_share_memory(out, frequencies)):
        return None
    views = (x, target) if walk.carrier is None else (x.view(walk.carrier), target.view(walk.carrier))
    x_address, y_address = loops.address(views[0]), loops.address(views[1])
    (a, a_fine), (b, b_fine) = loops.checked_address(positions), loops.checked_address(frequencies)
    in_place = x_address == y_address and walk.same_strides
    apart = y_address + walk.y_high <= x_address + walk.x_low or x_address + walk.x_high <= y_address + walk.y_low
    if not (a_fine and b_fine) or not (in_place or apart) or (x_address | y_address) % walk.size:
        return None
    plan = walk.plan(in_place, y_address % 16 == 0)
    addresses = (x_address, y_address, a, b, 0, 0)
    loops.turn(plan.address, *addresses, scale, walk.like, 0, plan.items)
    return target


def rotated_by_phases(
    x: Array,
    phases: Array,
    scale: Any,
    inverse: bool,
    pairing: str,
    out_pairing: str,
    out: Array | None,
    xp: ModuleType,
) -> Array:
    """Twin of the generic function."""
    a = _doubles(phases, out, xp)
    e = None if isinstance(scale, float) else _doubles(scale, out, xp)
    operands = [_operand(a), Operand(), Operand(), _operand(e)]
    walk = _walk(
        x, Source(loops.PHASES, layout.common_blocks(a.shape[-1], e)), operands, inverse, pairing, out_pairing, out
    )
    return _turned(x, walk, operands, scale, out, xp)


def rotated_by_table(
    x: Array, cos: Array, sin: Array, pairing: str, out_pairing: str, out: Array | None, xp: ModuleType
) -> Array:
    """Twin of the generic function."""
    narrow = _array.dtype_name(cos) == _array.dtype_name(sin) == "float32"
    a, b = (_apart(_array.as_numpy(v), out) if narrow else _doubles(v, out, xp) for v in (cos, sin))
    source = Source(loops.TABLE_32 if narrow else loops.TABLE_64, a.shape[-1])
    operands = [_operand(a), _operand(b), Operand(), Operand()]
    walk = _walk(x, source, operands, False, pairing, out_pairing, out)
    return _turned(x, walk, operands, 1.0, out, xp)


def table(positions: Array, frequencies: Array, shift: Array | None, scale: Any, xp: ModuleType) -> tuple[Array, Array]:
    """Twin of the generic function: blocks (1, 0) turned are (cos, sin)."""
    blocks = frequencies.shape[0 if frequencies.ndim == 1 else -2]
    for value in (shift, scale):
        blocks = layout.common_blocks(blocks, value)
    unit = np.repeat([1.0, 0.0], blocks)
    x = _array.from_host(unit, xp, device=_array.device(positions))
    turned = rotated(x, positions, frequencies, shift, scale, False, "half", "half", None, xp)
    return xp.asarray(turned[..., :blocks], copy=True), xp.asarray(turned[..., blocks:], copy=True)


def _doubles(value: Array, out: Array | None, xp: ModuleType) -> np.ndarray:
    return _apart(_array.as_numpy(_array.as_widest(value, xp)), out)


def _apart(array: np.ndarray, out: Array | None) -> np.ndarray:
    """Return an array, or a copy of one that the result would be written over before it has been read."""
    if out is not None and np.may_share_memory(array, _array.as_numpy(out)):
        return array.copy()
    return array


def _operand(array: np.ndarray | None) -> Operand:
    return Operand() if array is None else layout.operand(array, array.ctypes.data)


def _key(x: Any, positions: Any, frequencies: Any, inverse: Any, pairing: str, out_pairing: str, out: Any) -> Any:
    """All of a call that can be checked once for many calls."""
    target = None if out is None else (out.shape, out.strides, out.dtype)
    return (
        (x.shape, x.strides, x.dtype, positions.shape, positions.strides, positions.dtype),
        (frequencies.shape, frequencies.strides, frequencies.dtype),
        (inverse, pairing, out_pairing),
        target,
    )


def _remember(key: Any, walk: Walk) -> None:
    if len(_KNOWN) >= _REMEMBERED:
        _KNOWN.clear()
    _KNOWN[key] = walk


def _walk(
    x: Array,
    source: Source,
    operands: list[Operand],
    inverse: bool,
    pairing: str,
    out_pairing: str,
    out: Array | None,
) -> Walk:
    leading = np.broadcast_shapes(x.shape[:-1], *(operand.shape for operand in operands))
    shape = (*leading, x.shape[-1])
    source_view = _array.as_numpy(x)
    strides = layout.dense(shape, source_view.itemsize) if out is None else _array.as_numpy(out).strides
    return _walk_of(
        _array.dtype_name(x),
        source,
        (source_view.shape, source_view.strides),
        (shape, strides),
        tuple(operand[1:] for operand in operands),
        (operands[2].address != 0, operands[3].address != 0, bool(inverse)),
        (pairing, out_pairing),
    )


def _turned(x: Array, walk: Walk, operands: list[Operand], scale: Any, out: Array | None, xp: ModuleType) -> Array:
    """Walk over the memory: on this thread, or on several if there is enough to do."""
    if out is None:
        out = _array.empty(walk.shape, x, xp)
    if walk.elements == 0:
        return out
    x_address, y_address = (_array.as_numpy(v).ctypes.data for v in (x, out))
    plan = walk.plan(x_address == y_address and walk.same_strides, y_address % 16 == 0)
    addresses = [operand.address for operand in operands]
    factor = scale if isinstance(scale, float) else 1.0
    turn = partial(loops.turn, plan.address, x_address, y_address, *addresses, factor, walk.like)
    wanted = walk.elements // _THREAD_ELEMENTS
    n_threads = 1 if wanted < 2 else min(wanted, plan.items, _threads.allowed())
    length = plan.items if n_threads == 1 else max(1, plan.items // (8 * n_threads))

    def work(start: int) -> None:
        turn(start, min(start + length, plan.items))

    for _ in _threads.ordered_map(work, range(0, plan.items, length), n_threads):
        pass
    _array.written(out)
    return out


class Walk:
    """How to go over the memory of arrays of given shapes and strides; the plans for their addresses are kept."""

    def __init__(
        self,
        dtype: str,
        source: Source,
        x: Layout,
        y: Layout,
        operands: tuple[tuple[tuple[int, ...], Strides, int], ...],
        has: tuple[bool, bool, bool],
        pairings: tuple[str, str],
    ) -> None:
        self.like = like = _LIKE[dtype]
        self.shape, self.size = y[0], like.dtype.itemsize
        self.elements = math.prod(y[0])
        self.same_strides = x == y
        self.carrier = None if like.dtype.kind == "f" else like.dtype
        self.x_low, self.x_high = _extent(x, self.size)
        self.y_low, self.y_high = _extent(y, self.size)
        self._arguments = (source, x, y, operands, has, pairings)
        self._plans: dict[tuple[bool, bool], Plan] = {}

    def plan(self, in_place: bool, aligned: bool) -> Plan:
        """Return the plan for arrays that are one, or not, and for a result at a multiple of 16 bytes, or not."""
        found = self._plans.get((in_place, aligned))
        if found is None:
            found = self._plans[in_place, aligned] = _plan(*self._arguments, in_place, self.size, aligned)
        return found


_walk_of = lru_cache(maxsize=512)(Walk)
_KNOWN: dict[Any, Walk] = {}


def _extent(layout: Layout, size: int) -> tuple[int, int]:
    """First byte of an array's memory, and the one after its last, from its address."""
    reaches = [(length - 1) * stride for length, stride in zip(*layout, strict=True)]
    return sum(r for r in reaches if r < 0), sum(r for r in reaches if r > 0) + size


def _plan(
    source: Source,
    x: Layout,
    y: Layout,
    operands: tuple[tuple[tuple[int, ...], Strides, int], ...],
    has: tuple[bool, bool, bool],
    pairings: tuple[str, str],
    in_place: bool,
    size: int,
    aligned: bool,
) -> Plan:
    """Lay out the walk: which axes share their phases, which one is cut into tiles, and in what order memory is met."""
    leading, features = y[0][:-1], y[0][-1]
    where = [(shape, strides) for shape, strides, _ in operands]
    outer, shared = layout.walk_axes(leading, (x[0][:-1], x[1][:-1]), y[1][:-1], where)
    # frequencies must be the same along a tile; of the others, the axis whose rows lie closest
    rows = min(
        (axis for axis in outer if source.kind != loops.POSITIONS or axis[layout.B] == 0),
        key=layout.reach,
        default=(1, *(0,) * 6),
    )
    outer = [axis for axis in outer if axis is not rows]
    tile = min(rows[0], max(1, _TABLE_BYTES // (16 * max(1, source.blocks))))
    n_shared = math.prod(axis[0] for axis in shared)
    group = max(1, min(n_shared, _LARGEST_GROUP, _ITEM_ELEMENTS // (tile * features)))
    tiles, groups = -(-rows[0] // tile), -(-n_shared // group)
    half = source.blocks * size
    streaming = aligned and not in_place and math.prod(y[0]) * size >= _STREAMED_BYTES
    streaming = streaming and half % 16 == 0 and all(step % 16 == 0 for step in y[1][:-1])

    table = np.zeros(loops.HEADER + layout.COLUMNS * (len(outer) + len(shared)), np.int64)
    table[loops.BLOCKS], table[loops.FEATURES], table[loops.POSITION_AXES] = source.blocks, features, source.axes
    table[loops.SOURCE], table[loops.A_AXIS], table[loops.B_AXIS] = source.kind, source.a_axis, source.b_axis
    table[loops.HAS_SHIFT], table[loops.HAS_SCALE], table[loops.INVERSE] = has
    table[loops.PAIRING], table[loops.OUT_PAIRING] = (pairing == "interleaved" for pairing in pairings)
    table[loops.IN_PLACE], table[loops.STREAMING] = in_place, streaming
    table[loops.ROWS_INSIDE] = all(layout.reach(rows) <= layout.reach(axis) for axis in shared)
    table[loops.TILE], table[loops.TILES], table[loops.GROUP], table[loops.GROUPS] = tile, tiles, group, groups
    table[loops.SHARED], table[loops.OUTER_AXES], table[loops.SHARED_AXES] = n_shared, len(outer), len(shared)
    steps = [x[1][-1], y[1][-1], *(step for _, _, step in operands)]
    table[loops.BLOCK_STRIDES + 1 : loops.BLOCK_STRIDES + layout.COLUMNS] = steps
    table[loops.ROW_AXIS : loops.HEADER] = rows
    for i, axis in enumerate((*outer, *shared)):
        table[loops.HEADER + layout.COLUMNS * i :][: layout.COLUMNS] = axis
    items = math.prod(axis[0] for axis in outer) * tiles * groups
    return Plan(table, table.ctypes.data, items, math.prod(y[0]))
