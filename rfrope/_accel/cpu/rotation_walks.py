"""Plans of the rotation's walk over memory: axes that share phases, tiles, and how results leave the core."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from rfrope._accel import layout
from rfrope._accel.cpu import rotation_loops as loops
from rfrope._accel.cpu import step_loops
from rfrope._accel.layout import Strides

TABLE_BYTES = 2**16  # bytes of cos and sin for one tile of rows: they stay in the second cache
_ITEM_ELEMENTS = 2**18  # features in one item of work
_LARGEST_GROUP = 2**12
STREAMED_BYTES = 2**23  # outputs of this size go past the caches, which they would only flush
_GATHERED_BYTES = 2**12  # rows that follow each other and leave together, in whole lines
THREAD_ELEMENTS = 2**20  # features that are worth a thread, which takes 0.1 ms to start
_TRIES = 16  # with each way in which results of some layout may leave the core, before the faster one stays
THROUGH, PIECES, LINES = range(3)  # through the caches, or past them: from registers as they come, or in whole lines
LIKE: dict[str, Any] = {
    "float64": np.float64(0),
    "float32": np.float32(0),
    "float16": np.int16(0),
    "bfloat16": np.uint16(0),
}

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
        self.like = like = LIKE[dtype]
        self.shape, self.size = y[0], like.dtype.itemsize
        self.elements = math.prod(y[0])
        self.same_strides = x == y
        self.carrier = None if like.dtype.kind == "f" else like.dtype
        self.x_low, self.x_high = extent(x, self.size)
        self.y_low, self.y_high = extent(y, self.size)
        self._arguments = (source, x, y, operands, has, pairings)
        self._plans: dict[tuple[bool, int], Plan] = {}
        self.is_small = 0 < self.elements < 2 * THREAD_ELEMENTS and self.elements * self.size < STREAMED_BYTES
        self._large = y[1][-1] == self.size and self.elements * self.size >= STREAMED_BYTES
        self._in_pieces = source.blocks * self.size % 16 == 0 and all(step % 16 == 0 for step in y[1][:-1])
        self._seconds: dict[int, list[float]] = {THROUGH: [], PIECES: [], LINES: []}

    def ways(self, y: int) -> tuple[int, ...]:
        """Ways in which a large result may leave the core; none where it is small enough to stay in the caches."""
        if not self._large:
            return ()
        return PIECES if self._in_pieces and y % 16 == 0 else THROUGH, LINES

    def faster(self, ways: tuple[int, ...]) -> int:
        """Return the way that took the least time for an item of work so far, or one that was tried too seldom."""
        seldom = min(ways, key=lambda way: len(self._seconds[way]))
        if len(self._seconds[seldom]) < _TRIES:
            return seldom
        return min(ways, key=lambda way: min(self._seconds[way]))

    def took(self, way: int, seconds: float) -> None:
        """Note how long an item took."""
        if len(self._seconds[way]) < _TRIES:
            self._seconds[way].append(seconds)

    def plan(self, in_place: bool, way: int = THROUGH) -> Plan:
        """Return the plan for arrays that are one, or not, and for one of the `ways`: of threads, too, one for all.

        It lives as long as the walk, since loops read it at its address.
        """
        found = self._plans.get((in_place, way))
        if found is None:
            found = self._plans.setdefault((in_place, way), _plan(*self._arguments, in_place, self.size, way))
        return found


walk_of = lru_cache(maxsize=512)(Walk)


def extent(layout: Layout, size: int) -> tuple[int, int]:
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
    way: int,
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
    tile = min(rows[0], max(1, TABLE_BYTES // (16 * max(1, source.blocks))))
    n_shared = math.prod(axis[0] for axis in shared)
    group = max(1, min(n_shared, _LARGEST_GROUP, _ITEM_ELEMENTS // (tile * features)))
    tiles, groups = -(-rows[0] // tile), -(-n_shared // group)
    gathered = {THROUGH: 0, PIECES: 1, LINES: max(_GATHERED_BYTES, features * size)}[way]

    table = np.zeros(loops.HEADER + layout.COLUMNS * (len(outer) + len(shared)), np.int64)
    table[loops.BLOCKS], table[loops.FEATURES], table[loops.POSITION_AXES] = source.blocks, features, source.axes
    table[loops.SOURCE], table[loops.A_AXIS], table[loops.B_AXIS] = source.kind, source.a_axis, source.b_axis
    table[loops.HAS_SHIFT], table[loops.HAS_SCALE], table[loops.INVERSE] = has
    is_line = (source.kind, source.axes, *has[:2]) == (loops.POSITIONS, 1, False, False)
    table[loops.FILL] = loops.fill_of(is_line, is_narrow=size == 2)
    table[loops.PAIRING], table[loops.OUT_PAIRING] = (pairing == "interleaved" for pairing in pairings)
    table[loops.IN_PLACE], table[loops.STREAMING] = in_place, gathered
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


class Step:
    """Rotations of one layout at positions of one shape, checked and turned by one compiled call."""

    def __init__(
        self,
        walk: Walk,
        reach: tuple[int, int],
        arrays: tuple[np.ndarray, ...],
        positions: np.ndarray,
        frequencies: np.ndarray,
        scale: float,
        inverse: bool,
    ) -> None:
        self._walk = walk  # whose plans the table names by their addresses
        start = frequencies.ctypes.data
        through = [walk.plan(in_place).address for in_place in (False, True)]
        reaches = walk.x_low, walk.x_high, walk.y_low, walk.y_high, walk.same_strides
        numbers = [step_loops.address_of_turn(walk.like), *through, walk.plan(False).items, *reaches]
        numbers += [start + reach[0], start + reach[1], start]
        for each in arrays:
            numbers += [each.ndim, *each.shape]
        self._table = np.asarray([*numbers, positions.ndim, *positions.shape], np.int64)
        self._address, self._scale, self._like = self._table.ctypes.data, scale, walk.like
        self._dtype: Any = arrays[1].dtype if arrays else None
        self._shape = walk.shape
        self._places, self.inverse = positions.dtype, inverse

    @staticmethod
    def fits(positions: Any) -> bool:
        """Whether the compiled call takes such positions."""
        return type(positions) is np.ndarray and positions.dtype.char in "ilqfd" and positions.flags.carray

    def turned(self, x: Any, positions: Any, out: Any) -> np.ndarray | None:
        """Turn `x`, or return None where something differs from the layouts, or needs a closer look.

        Arrays of another type, or that are not dense, would have the call compiled for them, too.
        """
        if type(x) is not np.ndarray or x.dtype is not self._dtype or not x.flags.c_contiguous:
            return None
        if type(positions) is not np.ndarray or positions.dtype is not self._places:
            return None
        if out is None:
            out = np.empty(self._shape, self._dtype)
        elif type(out) is not np.ndarray or out.dtype is not self._dtype or not out.flags.carray:
            return None
        done = step_loops.step(self._address, x, out, positions, self._scale, self._like)
        return out if done else None

    def turned_at(self, x: int, out: int, positions: Any) -> bool:
        """Turn what lies at an address, in the layout of this step, into what lies at another."""
        if type(positions) is not np.ndarray or positions.dtype is not self._places:
            return False
        return bool(step_loops.step_at(self._address, x, out, positions, self._scale, self._like))
