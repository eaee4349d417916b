"""Small arrays in the memory of the CPU, read and turned in one pass; all else is left to the checks.

Features may lie in memory in any way where the result is new; operands, and features beside `out`, are dense.
"""

from __future__ import annotations

import math
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np

from rfrope._backends.cpu import coefficient_loops as coefficients
from rfrope._backends.cpu import fields
from rfrope._backends.cpu import rotation_loops as loops
from rfrope._backends.cpu.elements import DTYPES
from rfrope._backends.cpu.plans import RotationPlan, plan_of
from rfrope._backends.layout import Layout
from rfrope._core import array
from rfrope._core.angles import MISSED
from rfrope._core.arguments import LARGEST, LARGEST_SCALE
from rfrope._core.blocks import MAGNITUDES, TurnOptions
from rfrope._core.libraries import TORCH

_FEATURES = {np.dtype(name): name for name in ("float64", "float32", "float16")}  # of the machine's byte order
_PLACES = frozenset(map(np.dtype, "bBhHiIlLqQfd"))  # positions of float16 may want a warning
_DOUBLE, _SINGLE, _UNSIGNED, _MOST = np.dtype(np.float64), np.dtype(np.float32), np.dtype(np.uint64), 2**63 - 1


class Numbers(NamedTuple):
    """A dense array of numbers, to which nobody may write while it is in use."""

    values: np.ndarray
    place: tuple[int, int]  # its address, and how many bytes there are
    smallest: float
    largest: float  # largest magnitude
    layout: tuple[tuple[int, ...], tuple[int, ...]] | None  # None for none

    @classmethod
    def read(cls, values: Any) -> Numbers | None:
        """Look at an array; None where it is not dense float64 of finite numbers, of at most 2**500."""
        if type(values) is not np.ndarray or values.dtype != _DOUBLE or not values.flags.c_contiguous:
            return None
        address, smallest, largest = loops.checked_address(values if values.ndim == 1 else values.reshape(-1))
        if not largest <= LARGEST or address % 8:
            return None
        place, at = (address, values.nbytes), (values.shape, values.strides)
        return tuple.__new__(cls, (values, place, smallest, largest, at))  # half the time of the class itself

    @classmethod
    def take(cls, values: Any, dtype: Any = _DOUBLE) -> Numbers | None:
        """Bring a dense array of real numbers to a dtype, with NaN and infinity; None for anything else."""
        if type(values) is not np.ndarray or values.dtype not in _PLACES or not values.ndim:
            return None
        if not (values.flags.c_contiguous and values.flags.aligned):
            return None
        values = values.astype(dtype, copy=False)
        place = loops.address(values.reshape(-1)), values.nbytes
        return cls(values, place, -math.inf, math.inf, (values.shape, values.strides))


def turned_at_once(
    kind: str, x: Any, a: Any, b: Any, shift: Any, turn: tuple[Any, ...], out: Any, last: list[Any] | None = None
) -> Any:
    """Return small dense features turned, or None for whatever takes a closer look, which raises the errors.

    Parameters
    ----------
    kind : {"positions", "polar", "phases", "table"}
        What `a` and `b` are: positions and frequencies, for polar features too; phases and None; cos and sin.
    x, out
        Arrays of NumPy, or tensors of torch that are no more than memory.
    a, b, shift
        Arrays or tensors as users gave them; positions may be an integer, and frequencies may be `Numbers`.
    turn : tuple
        The options of `TurnOptions` as users gave them: every check is made on every call, those of layouts by finding
        the plan.
    last : list, optional
        Layouts of the last call with the same frequencies and pairings, its plan, and what the loop takes before and
        after dense arrays of NumPy; those of this call replace them, all at once, as other threads may do so, too.
    """
    if last is not None and out is None and (y := _turn_again(x, a, turn[3], last[0])) is not None:
        return y
    scale, signed = turn[2], kind == "polar" and turn[3] is turn[4] is False
    if type(x) is not np.ndarray:
        a, b, shift, scale = [v if type(v) in _READ else view_in_numpy(v) for v in (a, b, shift, scale)]
        dtype, strides = _read_tensor(x)
    else:
        dtype, strides = _FEATURES.get(x.dtype), None if x.flags.carray else x.strides
    c, e, may_be_apart = _NOTHING, _NOTHING, not signed and out is None
    if dtype is None or not (strides is None or may_be_apart) or (read := _read_operands(kind, a, b)) is None:
        return None
    if shift is not None or type(scale) is not float:
        c, e, scale = _read_shift_and_scale(shift, scale)
    if not 0.0 < scale <= LARGEST_SCALE:
        return None
    source, a, b = read
    features, operands = (dtype, (tuple(x.shape), strides)), (a, b, c, e)
    if last is None:
        plan = _find_plan(kind, source, *features, operands, turn)
    else:
        plan = _recall_plan(last, kind, x, features, operands, turn)
    if plan is None:
        return None
    y = np.empty(plan.shape, x.dtype) if out is None and type(x) is np.ndarray else _find_result(plan, x, out)
    if y is None or not _turn(plan, source, x, y, operands, scale, strides is None, signed):
        return None
    if out is not None and type(x) is not np.ndarray:
        array.library(out).mark_modified(out)
    return y


def _turn_again(x: Any, positions: Any, inverse: Any, last: tuple[Any, RotationPlan, Any]) -> Any:
    """Return dense features turned by the plan of the last call; None where layouts are others, or values not fit."""
    _, plan, ready = last
    if ready is None or not type(x) is type(positions) is np.ndarray:
        return None
    at = x.dtype, x.shape, positions.dtype, positions.shape, inverse
    if type(inverse) is not bool or ready[0] != at or not (x.flags.carray and positions.flags.carray):
        return None
    y = np.empty(plan.shape, x.dtype)
    return y if loops.turn_dense(*plan.dense, x, y, positions, *ready[1]) else None


_NOTHING = Numbers(np.empty(0), (0, 0), 0.0, 0.0, None)
_READ = {type(None), float, Numbers}  # types of operands that are at hand


def _read_operands(kind: str, a: Any, b: Any) -> tuple[int, Any, Numbers] | None:
    """Return what the loops are given (`fields.POSITIONS` or its like) and both operands; None if one is not fit."""
    if kind in ("positions", "polar"):
        places, read = _dense_places(a), b if type(b) is Numbers else Numbers.read(b)
        return None if places is None or read is None or not read.values.ndim else (fields.POSITIONS, places, read)
    if kind == "phases":
        first = Numbers.take(a)
        return None if first is None else (fields.PHASES, first, _NOTHING)
    is_single = getattr(a, "dtype", None) == getattr(b, "dtype", None) == _SINGLE
    dtype, source = (_SINGLE, fields.TABLE_32) if is_single else (_DOUBLE, fields.TABLE_64)
    first, second = Numbers.take(a, dtype), Numbers.take(b, dtype)
    return None if first is None or second is None or first.layout != second.layout else (source, first, second)


def _read_shift_and_scale(shift: Any, scale: Any) -> tuple[Numbers, Numbers, float]:
    """Return a shift and a scale that are arrays, and the scale that is a number: NaN if something is not fit."""
    c, e, factor = _NOTHING, _NOTHING, scale
    if shift is not None:
        c = Numbers.read(np.array(shift) if type(shift) is float else shift) or c
    if type(scale) is not float:
        e, factor = Numbers.read(scale) or e, 1.0
    is_fit = (shift is None or c is not _NOTHING) and (type(scale) is float or e.smallest > 0.0)
    return c, e, factor if is_fit else math.nan


def _read_tensor(x: Any) -> tuple[str | None, tuple[int, ...] | None]:
    """Name of the dtype of a tensor, None for others; and its strides where it is not dense."""
    if not TORCH.are_plain_dense(x):
        return None, None
    strides = None if x.is_contiguous() else tuple([x.element_size() * step for step in x.stride()])
    return array.dtype_name(x), strides


def _dense_dtype(x: Any) -> str | None:
    """Name of the dtype of dense features of NumPy or torch; None for others."""
    if type(x) is np.ndarray:
        return _FEATURES.get(x.dtype) if x.flags.carray else None
    return array.dtype_name(x) if TORCH.are_plain_dense(x) and x.is_contiguous() else None


def view_in_numpy(value: Any) -> Any:
    """Return the array of NumPy that views a tensor of the CPU, where there is one; anything else as it is."""
    if type(value) is np.ndarray or not TORCH.are_plain_dense(value):
        is_wide = value > _MOST if type(value) is int else getattr(value, "dtype", None) == _UNSIGNED
        return () if is_wide else value  # torch has no such integers
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


def _find_plan(
    kind: str, source: int, dtype: str, x: Layout, operands: tuple[Any, ...], turn: tuple[Any, ...]
) -> RotationPlan | None:
    """Return the plan of features at a layout; None where it is not fit, or not small."""
    (pairing, out_pairing, _, inverse, softplus), (a, b, c, e) = turn, operands
    if type(pairing) is not str or type(out_pairing) is not str or type(inverse) is not bool or dtype not in DTYPES:
        return None
    if type(softplus) is not bool or (MAGNITUDES in (pairing, out_pairing)) != (kind == "polar"):
        return None
    first = (a.shape, None) if source == fields.POSITIONS else a.layout
    options = pairing, out_pairing, inverse, softplus
    try:
        plan = plan_of(dtype, x, None, source, first, b.layout, c.layout, e.layout, *options)
    except ValueError:  # shapes do not fit, or there is no such pairing
        return None
    return plan if plan.is_fit and plan.is_small and plan.elements else None


def _recall_plan(
    last: list[Any], kind: str, x: Any, features: tuple[str, Layout], operands: tuple[Any, ...], turn: tuple[Any, ...]
) -> RotationPlan | None:
    """Return the plan of the last call where layouts are the same, or another one, which replaces it."""
    a, b, c, e = operands
    at = *features, a.shape, turn[3]
    known, plan, _ = last[0]
    if type(turn[3]) is not bool or known != at:
        plan, ready = _find_plan(kind, fields.POSITIONS, *features, operands, turn), None
        if plan is None:
            return None
        if kind == "positions" and type(x) is np.ndarray and features[1][1] is None and plan.size > 2:
            ready = (x.dtype, x.shape, a.dtype, a.shape, turn[3]), _list_numbers(plan, a, b, c, e, turn[2])
        last[0] = at, plan, ready
    return plan


def _find_result(plan: RotationPlan, x: Any, out: Any) -> Any:
    """Return memory for the result: new, or `out` if that is dense and of the right shape and dtype; else None."""
    if out is None:
        return x.new_empty(plan.shape)
    is_dense = type(out) is np.ndarray and out.flags.carray if type(x) is np.ndarray else _dense_dtype(out) is not None
    return out if is_dense and out.dtype == x.dtype and out.shape == plan.shape else None


def _turn(
    plan: RotationPlan,
    source: int,
    x: Any,
    y: Any,
    operands: tuple[Any, Numbers, Numbers, Numbers],
    scale: float,
    is_dense: bool,
    signed: bool,
) -> bool:
    """Turn features whose layout the plan was made for; False if values are not fit, or read too late.

    Where they are not dense, y is new. If `signed`, they are magnitudes, of which none may be negative.
    """
    a, b, c, e = operands
    loop = plan.dense
    if source == fields.POSITIONS:
        after = _list_numbers(plan, a, b, c, e, scale)
        if is_dense and not signed and type(x) is np.ndarray:
            views = (x, y) if plan.size != 2 else (x.view(np.int16), y.view(np.int16))
            return loops.turn_dense(*loop, *views, a, *after)
    at, size = _addresses(x, y), math.prod(x.shape)
    if at is None:
        return False
    if signed and coefficients.find_negative(np.array([[size, plan.size]]), at[0], plan.like, 0, 1):
        return False
    sides = at[0], size * plan.size if is_dense else 0, at[1], plan.elements * plan.size
    if source == fields.POSITIONS:
        return loops.turn_dense_at(*loop, *sides, a, *after)
    return loops.turn_by_numbers(*loop, *sides, *a.place, *b.place, *c.place, *e.place, scale, plan.like)


def _list_numbers(
    plan: RotationPlan, a: np.ndarray, b: Numbers, c: Numbers, e: Numbers, scale: float
) -> tuple[Any, ...]:
    """List what a loop takes after features and positions: operands, and positions that are left to the checks."""
    most = (2.0**24, MISSED * 2.0**24 / max(b.largest, 1.0)) if a.dtype.char == "f" else (LARGEST, LARGEST)
    return (*b.place, *c.place, *e.place, scale, plan.like, *most)


def _addresses(*arrays: Any) -> list[int] | None:
    """Return where arrays lie; None for a tensor without memory, as gradients that torch takes for a batch of them."""
    if type(arrays[0]) is np.ndarray:
        if not arrays[0].flags.carray:
            return [x.ctypes.data for x in arrays]
        flat = map(np.ndarray.reshape, arrays, repeat(-1))
        return [*map(loops.address, (x.view(np.int16) for x in flat) if arrays[0].itemsize == 2 else flat)]
    try:
        return [x.data_ptr() for x in arrays]
    except RuntimeError:
        return None


def plans_of_both(
    q: Any, k: Any, places: np.ndarray, frequencies: tuple[Numbers, Numbers], turn: TurnOptions
) -> tuple[RotationPlan, RotationPlan] | None:
    """Return plans of tensors of queries and keys at dense positions; None where they are not small.

    Frequencies of queries and of keys hold the same numbers in shapes ``(*H, D, k)`` that broadcast with theirs.
    """
    kind, found = "polar" if MAGNITUDES in turn[:2] else "positions", []
    for x, read in ((q, frequencies[0]), (k, frequencies[1])):
        at = x.shape, tuple([x.element_size() * step for step in x.stride()])
        operands = places, read, _NOTHING, _NOTHING
        found.append(_find_plan(kind, fields.POSITIONS, array.dtype_name(x), at, operands, turn))
    return None if None in found else (found[0], found[1])  # type: ignore[return-value]


def rotated_both(
    plans: tuple[RotationPlan, RotationPlan],
    q: Any,
    k: Any,
    positions: np.ndarray,
    frequencies: tuple[Numbers, Numbers],
    scale: float,
) -> tuple[Any, Any] | None:
    """Return queries and keys turned by one call of a loop, at positions ``(*P, k)``, dense and float64."""
    of_q, of_k = plans
    y_q, y_k = q.new_empty(of_q.shape), k.new_empty(of_k.shape)
    at = _addresses(q, y_q, k, y_k)
    if at is None:
        return None
    first = of_q.addresses[0], *at[:2], frequencies[0].place[0], of_q.items
    second = of_k.addresses[0], *at[2:], frequencies[1].place[0], of_k.items
    loops.turn_two(of_q.dense[0], *first, *second, loops.address(positions), scale, of_q.like)
    return y_q, y_k
