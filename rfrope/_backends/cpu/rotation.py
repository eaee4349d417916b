"""Rotation of arrays in the memory of the CPU: a plan from layouts and options, then compiled loops.

`rotated_at_once` and `rotated_both` read and turn small dense arrays in one flat pass, and leave the rest to the gate;
the functions named as the generic ones take what the gate has read.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from llvmlite.binding import get_host_cpu_name

from rfrope._backends import layout
from rfrope._backends.cpu import coefficient_loops as coefficients
from rfrope._backends.cpu import fields
from rfrope._backends.cpu import rotation_loops as loops
from rfrope._backends.cpu.elements import DTYPES, like_of
from rfrope._backends.cpu.pages import request_large_pages
from rfrope._backends.cpu.plans import (
    APART,
    IN_PLACE,
    LINES,
    PIECES,
    TABLE_BYTES,
    THREAD_ELEMENTS,
    Plan,
    gradient_table,
    plan_of,
)
from rfrope._core import array, parallel, teams
from rfrope._core.angles import MISSED, Angles
from rfrope._core.arguments import LARGEST, LARGEST_SCALE, broadcast
from rfrope._core.array import Array
from rfrope._core.blocks import TurnOptions
from rfrope._core.dispatch import Overlap, overlap_of
from rfrope._core.libraries import TORCH

_UNINTERRUPTED = 2**23  # features of one call of a loop at most: an interrupt waits for its end
_ROWS_AT_ONCE = 2**8  # rows in which signs are looked at together
_SEEN_AT_ONCE = 3  # numbers that are looked at in the time in which one is turned, for which alone threads are started
# past the caches in pieces rather than in lines: a fifth faster on AMD's Zen 5, a third slower on Intel's Cascade Lake
PREFERS_PIECES = get_host_cpu_name().startswith("znver")
_FEATURES = {np.dtype(name): name for name in ("float64", "float32", "float16")}  # of the machine's byte order
_PLACES = frozenset(map(np.dtype, "bBhHiIlLqQfd"))  # positions of float16 may want a warning
_DOUBLE, _UNSIGNED, _MOST = np.dtype(np.float64), np.dtype(np.uint64), 2**63 - 1


# -- small dense arrays, read and turned in one pass -------------------------------------------------------------------


class Frequencies(NamedTuple):
    """Dense frequencies in float64, in their user's form, whose values were looked at; nobody may write to them."""

    values: np.ndarray
    address: int
    fastest: float  # largest magnitude
    layout: tuple[tuple[int, ...], tuple[int, ...]]

    @classmethod
    def read(cls, values: Any) -> Frequencies | None:
        """Look at an array; None where it is not dense float64 of at most 2**500."""
        if type(values) is not np.ndarray or values.dtype != _DOUBLE or not values.flags.c_contiguous:
            return None
        address, fastest = loops.checked_address(values)
        if not fastest <= LARGEST or address % 8 or values.ndim == 0:
            return None
        return cls(values, address, fastest, (values.shape, values.strides))


def rotated_at_once(
    x: Any, positions: Any, frequencies: Any, pairings: tuple[Any, Any], scale: Any, inverse: Any, out: Any
) -> Any:
    """Return features turned, or None for whatever takes a closer look, which raises the errors.

    `x` and `out` are arrays of NumPy, or tensors of torch that are no more than memory; positions are an integer, or an
    array or tensor; frequencies are an array or tensor. Every check is made on every call, those of layouts by finding
    the plan.
    """
    if type(x) is not np.ndarray:
        positions, frequencies = view_in_numpy(positions), view_in_numpy(frequencies)
    dtype, places, read = _dense_dtype(x), _dense_places(positions), Frequencies.read(frequencies)
    if dtype is None or places is None or read is None:
        return None
    if type(scale) is not float or not 0.0 < scale <= LARGEST_SCALE:
        return None
    call = _dense_call(dtype, x.shape, places, read, pairings, inverse, scale)
    return None if call is None else _turned_dense(call, x, places, out)


class Rotator:
    """Rotations of small dense arrays by one set of frequencies; it holds the plan that it used last.

    Parameters
    ----------
    frequencies : numpy.ndarray, float64
        Dense, and never written to.
    pairing, scale
        As in `rfrope.rotate`, checked.
    widths : tuple of shapes, optional
        Lengths of the last axis that features may have; any of 2D or more unless given.
    """

    def __init__(
        self, frequencies: np.ndarray, pairing: str, scale: float, widths: tuple[tuple[int, ...], ...] | None
    ) -> None:
        self._read: Any = Frequencies.read(frequencies)
        self._pairing, self._scale, self._widths = pairing, scale, widths
        self._last: tuple[Any, ...] = (None,) * 6

    def rotated(self, x: Any, positions: Any, inverse: Any, out: Any) -> Any:
        """Return `x` turned, or None for whatever takes a closer look, as `rotated_at_once`."""
        if type(x) is np.ndarray:
            is_dense = x.flags.carray
        elif type(positions) is type(x):
            is_dense = TORCH.are_memory(x, positions) and x.is_contiguous()
            positions = view_of_memory(positions) if is_dense else None
        else:
            is_dense, positions = TORCH.are_memory(x) and x.is_contiguous(), view_in_numpy(positions)
        at_hand = type(positions) is np.ndarray and positions.flags.carray
        places = positions if at_hand else _dense_places(positions)
        if places is None or not is_dense:
            return None
        dtype, shape, places_dtype, places_shape, inverted, call = self._last
        if not (x.dtype is dtype and x.shape == shape and inverse is inverted) or not (
            places.dtype is places_dtype and places.shape == places_shape
        ):
            call = self._call(x, places, inverse)
            self._last = x.dtype, x.shape, places.dtype, places.shape, inverse, call
        return None if call is None else _turned_dense(call, x, places, out)

    def _call(self, x: Any, places: np.ndarray, inverse: Any) -> tuple[Any, ...] | None:
        if self._read is None or not (self._widths is None or x.shape[-1:] in self._widths):
            return None
        dtype = _dense_dtype(x) if _dense_places(places) is places else None
        if dtype is None:
            return None
        return _dense_call(dtype, x.shape, places, self._read, (self._pairing, None), inverse, self._scale)


def _dense_dtype(x: Any) -> str | None:
    """Name of the dtype of dense features of NumPy or torch; None for others."""
    if type(x) is np.ndarray:
        return _FEATURES.get(x.dtype) if x.flags.carray else None
    return array.dtype_name(x) if TORCH.are_memory(x) and x.is_contiguous() else None


def view_in_numpy(value: Any) -> Any:
    """Return the array of NumPy that views a tensor of the CPU, where there is one; anything else as it is."""
    if type(value) is np.ndarray or not TORCH.are_memory(value):
        is_wide = value > _MOST if type(value) is int else getattr(value, "dtype", None) == _UNSIGNED
        return None if is_wide else value  # torch has no such integers
    return view_of_memory(value)


def view_of_memory(value: Any) -> Any:
    """Return the array of NumPy that views a tensor which is memory of the CPU; the tensor where there is none."""
    try:
        return (value.detach() if value.requires_grad else value).numpy()
    except TypeError:  # NumPy has no bfloat16
        return value


def _dense_places(positions: Any) -> np.ndarray | None:
    """Return an integer, or a dense array of numbers, as such an array; None for anything else."""
    places = np.array(positions) if type(positions) is int else positions
    return places if type(places) is np.ndarray and places.dtype in _PLACES and places.flags.carray else None


def _dense_call(
    dtype: str, x: Any, places: np.ndarray, read: Frequencies, pairings: tuple[Any, Any], inverse: Any, scale: float
) -> tuple[Any, ...] | None:
    """Return what turns dense features at some positions; None where their plan is not fit, or not small.

    That is the shape of the result, bytes of features, what the loop takes before and after the arrays, and the plan.
    """
    pairing, out_pairing = pairings[0], pairings[0] if pairings[1] is None else pairings[1]
    if type(pairing) is not str or type(out_pairing) is not str or type(inverse) is not bool or dtype not in DTYPES:
        return None
    at, a = (tuple(x), None), (places.shape, None)
    try:
        plan = plan_of(dtype, at, None, fields.POSITIONS, a, read.layout, None, None, pairing, out_pairing, inverse)
    except ValueError:  # shapes do not fit, or there is no such pairing
        return None
    if not (plan.is_fit and plan.is_small and plan.elements):
        return None
    most = (2.0**24, MISSED * 2.0**24 / max(read.fastest, 1.0)) if places.dtype.char == "f" else (LARGEST, LARGEST)
    after = read.address, read.values.nbytes, scale, plan.like, *most
    before = plan.loop, plan.addresses[APART], plan.addresses[IN_PLACE], plan.items
    return plan.shape, plan.elements * plan.size, before, after, plan  # whose memory `before` names by its address


def _turned_dense(call: tuple[Any, ...], x: Any, positions: np.ndarray, out: Any) -> Any:
    """Turn features whose layout the plan was made for; None where `out` is not as it must be, or values are not."""
    shape, n_bytes, before, after, _ = call
    if type(x) is not np.ndarray:
        y = TORCH.empty_like(x) if out is None else out
        if out is not None and not (_dense_dtype(y) is not None and y.dtype == x.dtype and y.shape == x.shape):
            return None
        addresses = _addresses(x, y)
        if addresses is None or not loops.turn_dense_at(*before, *addresses, n_bytes, positions, *after):
            return None
        if out is not None:
            array.written(out)
        return y
    if out is None:
        y = np.empty(shape, x.dtype)
    elif type(out) is np.ndarray and out.dtype is x.dtype and out.shape == x.shape and out.flags.carray:
        y = out
    else:
        return None
    views = (x, y) if x.dtype.itemsize != 2 else (x.view(np.int16), y.view(np.int16))
    return y if loops.turn_dense(*before, *views, positions, *after) else None


def _addresses(*tensors: Any) -> list[int] | None:
    """Return where tensors lie; None where one has no memory, as gradients that torch takes for a batch of them."""
    try:
        return [x.data_ptr() for x in tensors]
    except RuntimeError:
        return None


def plans_of_both(
    q: Any, k: Any, places: tuple[int, ...], frequencies: tuple[Frequencies, Frequencies], turn: Any, inverse: bool
) -> tuple[Plan, Plan] | None:
    """Return plans of tensors of queries and keys at positions of a dense shape; None where they are not small.

    Frequencies of queries and of keys hold the same numbers in shapes ``(*H, D, k)`` that broadcast with theirs.
    """
    dtype, found = array.dtype_name(q), []
    if dtype not in DTYPES or k.dtype != q.dtype:
        return None
    for x, read in ((q, frequencies[0]), (k, frequencies[1])):
        at = x.shape, tuple([x.element_size() * step for step in x.stride()])
        a, b = (places, None), read.layout
        plan = plan_of(dtype, at, None, fields.POSITIONS, a, b, None, None, *turn[:2], inverse, turn.softplus)
        is_fit = plan.is_fit or (turn.softplus and plan.shape == turn.shape(x.shape, x.shape[-1:]))
        if not (is_fit and plan.is_small and plan.elements):
            return None
        found.append(plan)
    return found[0], found[1]


def rotated_both(
    plans: tuple[Plan, Plan],
    q: Any,
    k: Any,
    positions: np.ndarray,
    frequencies: tuple[Frequencies, Frequencies],
    scale: float,
) -> tuple[Any, Any] | None:
    """Return queries and keys turned by one call of a loop, at positions ``(*P, k)``, dense and float64."""
    of_q, of_k = plans
    y_q, y_k = q.new_empty(of_q.shape), k.new_empty(of_k.shape)
    at = _addresses(q, y_q, k, y_k)
    if at is None:
        return None
    first = of_q.addresses[0], *at[:2], frequencies[0].address, of_q.items
    second = of_k.addresses[0], *at[2:], frequencies[1].address, of_k.items
    loops.turn_two(of_q.loop, *first, *second, loops.address(positions), scale, of_q.like)
    return y_q, y_k


# -- what the gate has read --------------------------------------------------------------------------------------------


def rotated(x: Array, angles: Angles, turn: TurnOptions, out: Array | None) -> Array:
    """Turn features as the generic function does: phases are formed and become cos and sin inside the loop."""
    a, b = (_doubles(value, out, angles.xp) for value in (angles.positions, angles.frequencies))
    c, e = (
        None if value is None or isinstance(value, float) else _doubles(value, out, angles.xp)
        for value in (angles.shift, turn.scale)
    )
    return _turned(fields.POSITIONS, x, (a, b, c, e), turn, out, angles.xp)


def rotated_by_phases(x: Array, phases: Array, turn: TurnOptions, out: Array | None, xp: ModuleType) -> Array:
    """Turn features as the generic function does."""
    scale = None if isinstance(turn.scale, float) else _doubles(turn.scale, out, xp)
    return _turned(fields.PHASES, x, (_doubles(phases, out, xp), None, None, scale), turn, out, xp)


def rotated_by_table(x: Array, cos: Array, sin: Array, turn: TurnOptions, out: Array | None, xp: ModuleType) -> Array:
    """Turn features as the generic function does."""
    if array.dtype_name(cos) == array.dtype_name(sin) == "float32":
        kind, tables = fields.TABLE_32, [_kept_apart(array.view_as_numpy(v), out) for v in (cos, sin)]
    else:
        kind, tables = fields.TABLE_64, [_doubles(v, out, xp) for v in (cos, sin)]
    return _turned(kind, x, (*tables, None, None), turn, out, xp)


def cos_sin(angles: Angles) -> tuple[Array, Array]:
    """Return cos and sin as the generic function does: blocks (1, 0) turned are (cos, sin)."""
    blocks, xp = angles.shape[-1], angles.xp
    x = array.from_host(np.repeat([1.0, 0.0], blocks), xp, device=array.device(angles.positions))
    turned = rotated(x, angles, TurnOptions("half", "half"), None)
    return xp.asarray(turned[..., :blocks], copy=True), xp.asarray(turned[..., blocks:], copy=True)


def _doubles(value: Array, out: Array | None, xp: ModuleType) -> np.ndarray:
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
    layouts = [None if value is None else (value.shape, value.strides) for value in operands]
    plan = plan_of(
        array.dtype_name(x),
        (source.shape, source.strides),
        None if out is None else array.view_as_numpy(out).strides,
        kind,
        *layouts,
        turn.pairing,
        turn.out_pairing,
        turn.inverse,
        turn.softplus,
    )
    out = request_large_pages(array.empty(plan.shape, x, xp), xp) if out is None else out
    if plan.elements == 0:
        return out
    x_address, y_address = source.ctypes.data, array.view_as_numpy(out).ctypes.data
    addresses = [0 if value is None else value.ctypes.data for value in operands]
    factor = turn.scale if isinstance(turn.scale, float) else 1.0
    table = plan.addresses[_choose_variant(plan, x_address, y_address)]
    run = partial(loops.turn, table, x_address, y_address, *addresses, factor, plan.like)
    _shared_out(run, plan.items, plan.elements, x)
    array.written(out)
    return out


def _choose_variant(plan: Plan, x: int, y: int) -> int:
    """Return the variant of a plan for features and a result at two addresses."""
    if x == y and plan.same_strides:
        return IN_PLACE
    if y % plan.size:  # no line begins with a feature
        return APART
    return LINES if plan.streamed == PIECES and (y % 16 or not PREFERS_PIECES) else plan.streamed


def _shared_out(loop: Callable[[int, int], Any], items: int, elements: int, x: Array) -> None:
    """Run a loop over items of work, for features x: on this thread, or on several if there is enough to do."""
    wanted = elements // THREAD_ELEMENTS
    n_threads = 1 if wanted < 2 else min(wanted, items, parallel.allowed())
    pieces = max(1 if n_threads == 1 else 8 * n_threads, elements // _UNINTERRUPTED)
    length = max(1, items // pieces)

    def work(start: int) -> None:
        loop(start, min(start + length, items))

    teams.share(work, range(0, items, length), n_threads, TORCH.owns(x))


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
    target = request_large_pages(xp.empty_like(x), xp)
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
    operands = [None if value is None or isinstance(value, float) else _doubles(value, None, xp) for value in values]
    views = [array.view_as_numpy(value) for value in (x, y)]
    a, b, c, e = (None if value is None else (value.shape, value.strides) for value in operands)
    read = layout.operands_of(are_positions, a, b, c, e)  # type: ignore[arg-type]
    if 0 not in (read.blocks, *views[0].shape, *views[1].shape):
        kind = fields.POSITIONS if are_positions else fields.PHASES
        at_x, at_y, at_sums = ((value.shape, value.strides) for value in (*views, sums))
        options = turn.pairing, turn.out_pairing, turn.inverse, turn.softplus
        like, table, items = gradient_table(array.dtype_name(x), (at_x, at_y), kind, read, (c, e), options, at_sums)
        row_step, block_step = table[fields.ROW_AXIS + layout.S], table[fields.BLOCK_STRIDES + layout.S]
        rows = 0 if shape is None else table[fields.TILE] if row_step else 1
        found, places = np.empty((items, rows, read.blocks)), np.empty((items, 2), np.int64)
        addresses = [0 if value is None else value.ctypes.data for value in (table, *views, *operands)]
        factor = turn.scale if isinstance(turn.scale, float) else 1.0
        written = 0 if target is None else array.view_as_numpy(target).ctypes.data
        loop = partial(coefficients.turn_gradients, *addresses, factor, like, written, radial, found, places)
        _shared_out(loop, items, views[1].size, x)
        coefficients.add_up(found, places, row_step, block_step, sums.reshape(-1))
    sums = np.zeros(0) if shape is None else (-sums if turn.inverse else sums).reshape(shape)
    return array.from_host(sums, xp, device=array.device(x))


def has_negative(x: Array, xp: ModuleType) -> bool:
    """Look at all numbers as the generic function does, in one pass of several threads."""
    like, _ = like_of(array.dtype_name(x), "half", "half")
    values, found = array.view_as_numpy(x), [0]
    leading = [axis for axis in zip(values.shape[:-1], *[values.strides[:-1]] * 2, strict=True) if axis[0] != 1]
    rows, row = [axis[:2] for axis in layout.merged(leading)], (values.shape[-1], values.strides[-1])
    if rows and rows[-1][1] == row[0] * row[1]:  # they follow each other: several are looked at as one
        length, step = rows.pop()
        several = math.gcd(length, _ROWS_AT_ONCE)
        rows.append((length // several, several * step))
        row = (several * row[0], row[1])
    axes = np.asarray([*rows, row], np.int64)

    def look(first: int, last: int) -> None:
        found.append(coefficients.find_negative(axes, values.ctypes.data, like, first, last))

    n_rows = math.prod(axis[0] for axis in rows) if values.size else 0
    _shared_out(look, n_rows, values.size // _SEEN_AT_ONCE, x)
    return any(found)


# -- what gradients need -----------------------------------------------------------------------------------------------


def shared_coefficients(
    x: Array, y: Array, shape: tuple[int, ...], pairing: str, y_pairing: str, xp: ModuleType, softplus: bool = False
) -> tuple[Array, Array]:
    """Sum as the generic function does: one pass over x and y, by tiles of rows whose sums stay in the second cache."""
    like, form = like_of(array.dtype_name(x), pairing, y_pairing, softplus)
    views, sums = [array.view_as_numpy(v) for v in (x, y)], [np.zeros(shape) for _ in range(2)]
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
        n_shared = math.prod(axis[0] for axis in shared)
        header = [blocks, form, *(v.strides[-1] for v in views), tile, tiles, len(outer), len(shared), n_shared]
        plan = np.asarray([*header, *(value for axis in (rows, *outer, *shared) for value in axis)], np.int64)
        addresses = [v.ctypes.data for v in (plan, *views, *sums)]
        loop = partial(coefficients.products, *addresses, like)
        _shared_out(loop, n_items, math.prod(leading) * 2 * blocks, x)
    return tuple(array.from_host(v, xp, device=array.device(x)) for v in sums)
