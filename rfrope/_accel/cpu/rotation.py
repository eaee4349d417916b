"""Twins of the rotation for arrays in the memory of the CPU: a plan of the walk over memory, then compiled loops.

A plan depends on shapes and strides alone and is kept, so that a decode step does not pay for it again.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from rfrope._accel import layout
from rfrope._accel.cpu import coefficient_loops as coefficients
from rfrope._accel.cpu import rotation_loops as loops
from rfrope._accel.cpu.rotation_walks import LIKE, TABLE_BYTES, THREAD_ELEMENTS, Source, Step, Walk, extent, walk_of
from rfrope._accel.layout import Operand
from rfrope._core import array, memory, parallel, tensors
from rfrope._core.angles import Angles, as_vectors
from rfrope._core.arguments import broadcast
from rfrope._core.array import Array
from rfrope._core.blocks import Turn

_UNINTERRUPTED = 2**23  # features of one call of a loop at most: an interrupt waits for its end
_TENSORS: dict[Any, Any] = {}  # walks of torch tensors by their layout
_STEADY = 16  # calls of one layout after which the next ones are worth a compiled call of their own
_REMEMBERED = 512  # calls whose checks need not be made again


class Features(NamedTuple):
    """Views of x and of `out`, if there is one, and the name of their dtype, which a view of bfloat16 has lost."""

    dtype: str
    x: np.ndarray
    out: np.ndarray | None

    @classmethod
    def of(cls, x: Array, out: Array | None) -> Features:
        """View the memory of arrays of any library."""
        return cls(array.dtype_name(x), memory.as_numpy(x), None if out is None else memory.as_numpy(out))


def rotated(x: Array, angles: Angles, turn: Turn, out: Array | None) -> Array:
    """Twin of the generic function: phases are formed and become cos and sin inside the loop."""
    layout = None
    if out is None and angles.shift is None and type(turn.scale) is float and tensors.is_torch(x):
        angles = angles._replace(positions=array.as_widest(angles.positions, angles.xp))
        layout = tuple((v.shape, v.stride()) for v in (x, angles.positions, angles.frequencies)), x.dtype, turn
        walk = _TENSORS.get(layout)
        if walk is not None:
            return _turned_again(x, angles, walk, turn.scale)
    features = Features.of(x, out)
    walk, operands = _walk_of_angles(features, angles, turn)
    if layout is not None and walk.is_small:
        if len(_TENSORS) >= _REMEMBERED:
            _TENSORS.clear()
        _TENSORS[layout] = walk
    return _turned(x, features, walk, operands, turn.scale, out, angles.xp)


def _turned_again(x: Array, angles: Angles, walk: Walk, scale: float) -> Array:
    """Turn a tensor whose layout was met before, on this thread."""
    out = tensors.empty_like(x) if walk.shape == x.shape else x.new_empty(walk.shape)
    addresses = [value.data_ptr() for value in (x, out, angles.positions, angles.frequencies)]
    plan = walk.plan(False)
    loops.turn(plan.address, *addresses, 0, 0, scale, walk.like, 0, plan.items)
    return out


def rotated_by_phases(x: Array, phases: Array, turn: Turn, out: Array | None, xp: ModuleType) -> Array:
    """Twin of the generic function."""
    features = Features.of(x, out)
    a = _doubles(phases, features.out, xp)
    e = None if isinstance(turn.scale, float) else _doubles(turn.scale, features.out, xp)
    operands = [_operand(a), _NONE, _NONE, _operand(e)]
    source = Source(loops.PHASES, layout.common_blocks(a.shape[-1], e))
    return _turned(x, features, _walk(features, source, operands, turn), operands, turn.scale, out, xp)


def rotated_by_table(x: Array, cos: Array, sin: Array, turn: Turn, out: Array | None, xp: ModuleType) -> Array:
    """Twin of the generic function."""
    features = Features.of(x, out)
    narrow, over = array.dtype_name(cos) == array.dtype_name(sin) == "float32", features.out
    a, b = (_apart(memory.as_numpy(v), over) if narrow else _doubles(v, over, xp) for v in (cos, sin))
    source = Source(loops.TABLE_32 if narrow else loops.TABLE_64, a.shape[-1])
    operands = [_operand(a), _operand(b), _NONE, _NONE]
    return _turned(x, features, _walk(features, source, operands, turn), operands, 1.0, out, xp)


def cos_sin(angles: Angles) -> tuple[Array, Array]:
    """Twin of the generic function: blocks (1, 0) turned are (cos, sin)."""
    blocks, xp = layout.common_blocks(angles.blocks, angles.shift), angles.xp
    x = array.from_host(np.repeat([1.0, 0.0], blocks), xp, device=array.device(angles.positions))
    turned = rotated(x, angles, Turn("half", "half"), None)
    return xp.asarray(turned[..., :blocks], copy=True), xp.asarray(turned[..., blocks:], copy=True)


def shared_coefficients(
    x: Array, y: Array, shape: tuple[int, ...], pairing: str, y_pairing: str, xp: ModuleType
) -> tuple[Array, Array]:
    """Twin of the generic function: one pass over x and y, by tiles of rows whose sums stay in the second cache."""
    like = LIKE[array.dtype_name(x)]
    views, sums = [memory.as_numpy(v) for v in (x, y)], [np.zeros(shape) for _ in range(2)]
    leading = broadcast(*(v.shape[:-1] for v in (*views, sums[0])))
    blocks, n_items = shape[-1], 0
    if blocks and math.prod(leading):
        steps = [layout.spread(v.shape[:-1], v.strides[:-1], leading) for v in (*views, sums[0])]
        axes = [axis for axis in zip(leading, *steps, strict=True) if axis[0] != 1]
        outer = layout.merged([axis for axis in axes if axis[coefficients.SUMS]])
        shared = layout.merged([axis for axis in axes if not axis[coefficients.SUMS]])
        rows = min(outer, key=layout.reach, default=(1, 0, 0, 0))
        outer = [axis for axis in outer if axis is not rows]
        tile = min(rows[0], max(1, TABLE_BYTES // (16 * blocks)))
        tiles, n_items = -(-rows[0] // tile), math.prod(axis[0] for axis in outer) * -(-rows[0] // tile)
        flags = [name == "interleaved" for name in (pairing, y_pairing)]
        n_shared = math.prod(axis[0] for axis in shared)
        header = [blocks, *flags, *(v.strides[-1] for v in views), tile, tiles, len(outer), len(shared), n_shared]
        plan = np.asarray([*header, *(value for axis in (rows, *outer, *shared) for value in axis)], np.int64)
        addresses = [v.ctypes.data for v in (plan, *views, *sums)]
        loop = partial(coefficients.products, *addresses, like)
        _shared_out(loop, n_items, math.prod(leading) * 2 * blocks)
    return tuple(array.from_host(v, xp, device=array.device(x)) for v in sums)


# -- calls that repeat themselves --------------------------------------------------------------------------------------


class Known(NamedTuple):
    """A layout that passed all checks: its walk, and the reach of positions and frequencies from their addresses."""

    walk: Walk
    positions: tuple[int, int]
    frequencies: tuple[int, int]


class Repeats:
    """Rotations of NumPy arrays whose layouts were met before.

    What depends on shapes, strides and dtypes alone was checked then, and planned. What may differ from call to call is
    looked at here: values, addresses, and whether `out` may be written to.
    """

    def __init__(self) -> None:
        self._known: dict[Any, Known] = {}

    def turned(
        self, x: Any, positions: Any, frequencies: Any, pairings: tuple[Any, Any], scale: Any, inverse: Any, out: Any
    ) -> np.ndarray | None:
        """Turn `x`, or return None where the layout is new or something needs a closer look."""
        if type(frequencies) is not np.ndarray or type(scale) is not float or not 0.0 < scale < math.inf:
            return None
        if type(pairings[0]) is not str or not (pairings[1] is None or type(pairings[1]) is str):
            return None
        layouts = (frequencies.shape, frequencies.strides, frequencies.dtype, pairings)
        known = self._find(layouts, x, positions, inverse, out)
        if known is None:
            return None
        b, fine = loops.checked_address(frequencies)
        return _again(known, x, positions, b, scale, out) if fine else None

    def learn(self, x: Any, positions: Any, frequencies: Any, pairings: tuple[Any, Any], turn: Turn, out: Any) -> None:
        """Plan for arrays that have just been turned, and so passed all checks."""
        if type(frequencies) is np.ndarray and frequencies.dtype == np.float64 and frequencies.flags.aligned:
            layouts = (frequencies.shape, frequencies.strides, frequencies.dtype, pairings)
            self._keep(layouts, x, positions, frequencies, turn, out)

    def _find(self, layouts: Any, x: Any, positions: Any, inverse: Any, out: Any) -> Known | None:
        if type(x) is not np.ndarray or type(inverse) is not bool or not (out is None or type(out) is np.ndarray):
            return None  # 1 and 0 would be found as True and False
        key = (layouts, x.shape, x.strides, x.dtype, _layout(positions), inverse, _layout(out))
        return self._known.get(key)

    def _keep(self, layouts: Any, x: Any, positions: Any, frequencies: np.ndarray, turn: Turn, out: Any) -> None:
        plain = all(
            type(v) is np.ndarray and v.flags.aligned and v.dtype.isnative for v in (x, positions, out) if _is_array(v)
        )
        if not plain or type(turn.inverse) is not bool or not isinstance(turn.scale, float):
            return
        if _is_array(positions) and positions.dtype.itemsize == 2 and positions.dtype.kind not in "iu":
            return  # their values are looked at in each call
        a, b = np.empty(np.shape(positions)), frequencies  # positions are made dense before they are read
        a, b = (as_vectors(v, frequencies) for v in (a, b))
        walk, _ = _walk_of_angles(Features.of(x, out), Angles(a, b, None, np), turn)
        if walk.is_small:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            key = (layouts, x.shape, x.strides, x.dtype, _layout(positions), turn.inverse, _layout(out))
            self._known[key] = Known(walk, *(extent((v.shape, v.strides), 8) for v in (a, b)))


class Prepared(Repeats):
    """Rotations by one set of frequencies, whose values were looked at once."""

    def __init__(self, frequencies: np.ndarray, pairing: str, scale: float) -> None:
        super().__init__()
        self._frequencies = np.require(frequencies, np.float64, "A")
        self._address = self._frequencies.ctypes.data
        self._pairing, self._scale = pairing, scale
        self._steps: dict[Any, Step] = {}  # for layouts that come again and again, by the shape of x
        self._often: dict[Any, int] = {}
        self._tensors: dict[Any, Any] = {}  # steps of dense tensors of torch, or how often they came

    def again(self, x: Any, positions: Any, inverse: Any, out: Any) -> np.ndarray | None:
        """Turn `x`, or return None where the layout is new or something needs a closer look."""
        step = self._steps.get(x.shape)
        if step is not None and inverse is step.inverse:
            turned = step.turned(x, positions, out)
            if turned is not None:
                return turned
        known = self._find(None, x, positions, inverse, out)
        if known is None:
            return None
        turned = _again(known, x, positions, self._address, self._scale, out)
        if turned is not None and type(positions) is np.ndarray:
            if len(self._often) >= _REMEMBERED:
                self._often.clear()
                self._steps.clear()
            often = self._often[x.shape] = self._often.get(x.shape, 0) + 1
            dense = x.dtype.char in "fd" and x.flags.carray and turned.flags.carray
            if often % _STEADY == 0 and dense and Step.fits(positions):
                reach, arrays = known.frequencies, (x, turned)
                self._steps[x.shape] = Step(
                    known.walk, reach, arrays, positions, self._frequencies, self._scale, inverse
                )
        return turned

    def again_as_tensor(self, x: Any, positions: Any, inverse: Any, out: Any) -> Any:
        """Turn a dense tensor of torch likewise."""
        if x.is_nested:  # it has no shape
            return None
        step = self._tensors.get((x.shape, x.dtype, inverse))
        if type(step) is not Step or not x.is_contiguous():
            return None
        turned = tensors.empty_like(x) if out is None else out
        if out is not None and not (tensors.is_torch(out) and out.dtype == x.dtype and out.shape == x.shape):
            return None
        if not (tensors.are_memory(x) if out is None else tensors.are_memory(x, out) and out.is_contiguous()):
            return None
        if not step.turned_at(x.data_ptr(), turned.data_ptr(), _host(positions)):
            return None
        if out is not None:
            memory.written(out)
        return turned

    def prepare_as_tensor(self, x: Any, positions: Any, inverse: Any, turned: Any) -> None:
        """Plan for dense tensors whose like was turned often, and passed all checks."""
        if not (tensors.is_torch(turned) and x.is_contiguous() and tensors.are_memory(x, turned)):
            return
        places, key = _host(positions), (x.shape, x.dtype, inverse)
        if type(inverse) is not bool or not Step.fits(places) or turned.shape != x.shape:
            return
        often = self._tensors.get(key, 0)
        if len(self._tensors) >= _REMEMBERED:
            self._tensors.clear()
        self._tensors[key] = often = often + 1 if type(often) is int else 1
        a, b = np.empty(places.shape), self._frequencies
        a, b = as_vectors(a, b), as_vectors(b, b)
        turn = Turn(self._pairing, self._pairing, self._scale, inverse)
        walk, _ = _walk_of_angles(Features.of(x, turned), Angles(a, b, None, np), turn)
        if often >= _STEADY and walk.is_small:
            self._tensors[key] = Step(walk, _extent(b), (), places, self._frequencies, self._scale, inverse)

    def prepare(self, x: Any, positions: Any, inverse: Any, out: Any) -> None:
        """Plan for arrays that have just been turned, and so passed all checks."""
        turn = Turn(self._pairing, self._pairing, self._scale, inverse)
        self._keep(None, x, positions, self._frequencies, turn, out)


class Steps:
    """Rotations of torch queries and keys by one set of frequencies, whose values were looked at once: decode steps.

    Frequencies of queries and keys ``(*H, D, k)`` hold the same numbers in shapes that broadcast with theirs.
    """

    def __init__(self, frequencies: tuple[np.ndarray, np.ndarray], pairing: str, scale: float) -> None:
        self._frequencies = tuple(np.require(each, np.float64, "A") for each in frequencies)
        self._addresses = tuple(each.ctypes.data for each in self._frequencies)
        self._turn = Turn(pairing, pairing, scale)
        self._known: dict[Any, tuple[Walk, Walk]] = {}

    def turned(self, q: Array, k: Array, positions: np.ndarray) -> tuple[Array, Array] | None:
        """Turn both at positions ``(*P, k)``, dense and float64, or return None where something is new."""
        if not tensors.are_memory(q, k):
            return None
        walks = self._known.get((q.shape, q.stride(), k.shape, k.stride(), q.dtype, k.dtype, positions.shape))
        if walks is None:
            return None
        outs = tensors.empty_like(q), tensors.empty_like(k)
        y_q, y_k = (out.data_ptr() for out in outs)
        plan_q, plan_k = walks[0].plan(False), walks[1].plan(False)
        a, (b_q, b_k) = loops.address(positions), self._addresses
        of_q = plan_q.address, q.data_ptr(), y_q, b_q, plan_q.items
        of_k = plan_k.address, k.data_ptr(), y_k, b_k, plan_k.items
        loops.turn_two(*of_q, *of_k, a, self._turn.scale, walks[0].like)
        return outs

    def learn(self, q: Array, k: Array, positions: np.ndarray) -> None:
        """Plan for a layout that has just been turned, and so passed all checks."""
        if not (tensors.are_memory(q, k) and q.dtype == k.dtype):
            return
        of_q, of_k = (Angles(positions, each, None, np) for each in self._frequencies)
        walks = tuple(_walk_of_angles(Features.of(x, None), of, self._turn)[0] for x, of in ((q, of_q), (k, of_k)))
        if all(walk.is_small for walk in walks):
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            key = (q.shape, q.stride(), k.shape, k.stride(), q.dtype, k.dtype, positions.shape)
            self._known[key] = walks[0], walks[1]


def _extent(frequencies: np.ndarray) -> tuple[int, int]:
    return extent((frequencies.shape, frequencies.strides), 8)


def _host(positions: Any) -> Any:
    """Positions as an array of NumPy, if a tensor of them is no more than memory; else as they came."""
    if type(positions) is np.ndarray or not tensors.is_torch(positions) or not tensors.are_memory(positions):
        return positions
    if positions.dtype.itemsize == 2 and positions.is_floating_point():
        return positions  # no step takes them, and there is no bfloat16 in NumPy
    return positions.detach().numpy()


def _again(known: Known, x: np.ndarray, positions: Any, b: int, scale: float, out: Any) -> np.ndarray | None:
    walk = known.walk
    if type(positions) is int and not -(2**63) <= positions < 2**64:
        return None  # no array holds it
    fresh = out is None
    if out is None:
        out = np.empty(walk.shape, x.dtype)
    elif not out.flags.writeable:
        return None
    positions = np.array(positions, np.float64, order="C", copy=None)
    views = (x, out) if walk.carrier is None else (x.view(walk.carrier), out.view(walk.carrier))
    x_address, y_address = loops.address(views[0]), loops.address(views[1])
    a, fine = loops.checked_address(positions)
    in_place = False
    if not fresh:  # its memory is its own
        y_low, y_high = y_address + walk.y_low, y_address + walk.y_high
        in_place = x_address == y_address and walk.same_strides
        fine = fine and (in_place or y_high <= x_address + walk.x_low or x_address + walk.x_high <= y_low)
        for address, (low, high) in ((a, known.positions), (b, known.frequencies)):
            fine = fine and (y_high <= address + low or address + high <= y_low)
    if not fine or (x_address | y_address) % walk.size:
        return None
    plan = walk.plan(in_place)
    loops.turn(plan.address, x_address, y_address, a, b, 0, 0, scale, walk.like, 0, plan.items)
    return out


def _layout(values: Any) -> Any:
    """What a plan depends on; positions have no strides here, as they are made dense; a single number has no layout."""
    if type(values) is np.ndarray:
        return values.shape, values.strides, values.dtype
    return type(values)


def _is_array(values: Any) -> bool:
    return values is not None and type(values) is not int


def _doubles(value: Array, out: np.ndarray | None, xp: ModuleType) -> np.ndarray:
    return _apart(memory.as_numpy(array.as_widest(value, xp)), out)


def _apart(values: np.ndarray, out: np.ndarray | None) -> np.ndarray:
    """Return an array, or an aligned copy of one that is not, or that the result would be written over too early."""
    if out is not None and np.may_share_memory(values, out):
        return values.copy()
    return values if values.flags.aligned else np.require(values, requirements="A")


class _Held(NamedTuple):
    """Where an operand lies, and the array whose memory must outlive the loops; none for one that is not there."""

    place: Operand
    array: np.ndarray | None


_NONE = _Held(Operand(), None)


def _operand(values: np.ndarray | None) -> _Held:
    return _NONE if values is None else _Held(layout.operand(values, values.ctypes.data), values)


def _walk_of_angles(features: Features, angles: Angles, turn: Turn) -> tuple[Walk, list[_Held]]:
    """Walk for positions and frequencies, and the operands that its loops read."""
    a, b = (_doubles(v, features.out, angles.xp) for v in (angles.positions, angles.frequencies))
    places = layout.positions_and_frequencies(a, b, (a.ctypes.data, b.ctypes.data))
    operands = [_Held(place, array) for place, array in zip(places, (a, b), strict=True)]
    blocks = angles.blocks
    for value in (angles.shift, None if isinstance(turn.scale, float) else turn.scale):
        operands.append(_operand(None if value is None else _doubles(value, features.out, angles.xp)))
        blocks = layout.common_blocks(blocks, operands[-1].array)
    source = Source(loops.POSITIONS, blocks, b.shape[-1], layout.step_along(a, -1), layout.step_along(b, -1))
    return _walk(features, source, operands, turn), operands


def _walk(features: Features, source: Source, operands: list[_Held], turn: Turn) -> Walk:
    dtype, x, out = features
    leading = np.broadcast_shapes(x.shape[:-1], *(operand.place.shape for operand in operands))
    shape = (*leading, x.shape[-1])
    strides = layout.dense(shape, x.itemsize) if out is None else out.strides
    return walk_of(
        dtype,
        source,
        (x.shape, x.strides),
        (shape, strides),
        tuple(operand.place[1:] for operand in operands),
        (operands[2].array is not None, operands[3].array is not None, turn.inverse),
        (turn.pairing, turn.out_pairing),
    )


def _turned(
    x: Array, features: Features, walk: Walk, operands: list[_Held], scale: Any, out: Array | None, xp: ModuleType
) -> Array:
    """Walk over the memory."""
    out = array.empty(walk.shape, x, xp) if out is None else out
    if walk.elements == 0:
        return out
    y = memory.as_numpy(out) if features.out is None else features.out
    x_address, y_address = features.x.ctypes.data, y.ctypes.data
    in_place = x_address == y_address and walk.same_strides
    plan = walk.plan(in_place)
    addresses = [operand.place.address for operand in operands]
    factor = scale if isinstance(scale, float) else 1.0
    rest = x_address, y_address, *addresses, factor, walk.like
    ways = () if in_place else walk.ways(y_address)

    def turn(first: int, last: int) -> None:
        way = walk.faster(ways)
        began = time.perf_counter()
        loops.turn(walk.plan(False, way).address, *rest, first, last)
        walk.took(way, (time.perf_counter() - began) / (last - first))

    _shared_out(turn if ways else partial(loops.turn, plan.address, *rest), plan.items, walk.elements)
    memory.written(out)
    return out


def _shared_out(loop: Callable[[int, int], Any], items: int, elements: int) -> None:
    """Run a loop over items of work: on this thread, or on several if there is enough to do."""
    wanted = elements // THREAD_ELEMENTS
    n_threads = 1 if wanted < 2 else min(wanted, items, parallel.allowed())
    pieces = max(1 if n_threads == 1 else 8 * n_threads, elements // _UNINTERRUPTED)
    length = max(1, items // pieces)

    def work(start: int) -> None:
        loop(start, min(start + length, items))

    for _ in parallel.ordered_map(work, range(0, items, length), n_threads):
        pass
