"""Small arrays in the memory of the CPU, read and turned in one pass; all else is left to the checks.

Features may lie in memory in any way where the result is new; operands, and features beside `out`, are dense.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from rfrope._backends import layout
from rfrope._backends.cpu import rotation_loops as loops
from rfrope._backends.cpu.elements import DTYPES
from rfrope._backends.cpu.plans import RotationPlan, plan_of
from rfrope._backends.layout import Layout
from rfrope._core import array
from rfrope._core.angles import MISSED
from rfrope._core.arguments import LARGEST, LARGEST_SCALE
from rfrope._core.blocks import MAGNITUDES
from rfrope._core.libraries import TORCH

_FEATURES = {np.dtype(name): name for name in ("float64", "float32", "float16")}  # of the machine's byte order
_PLACES = frozenset(map(np.dtype, "bBhHiIlLqQfd"))  # positions of float16 may want a warning
_DOUBLE, _SINGLE, _UNSIGNED, _MOST = np.dtype(np.float64), np.dtype(np.float32), np.dtype(np.uint64), 2**63 - 1
_WHOLE = np.dtype(np.int64)
_NEAR = 2**52  # positions no further apart differ by at most 2**53, beside what float64 rounds of them
_INTEGERS = {size: np.dtype(f"i{size}") for size in (2, 4, 8)}


class Numbers(NamedTuple):
    """A dense array of numbers, to which nobody may write while it is in use."""

    values: np.ndarray
    address: int
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
        at = values.shape, values.strides
        return tuple.__new__(cls, (values, address, smallest, largest, at))  # half the time of the class itself

    @classmethod
    def take(cls, values: Any, dtype: Any = _DOUBLE) -> Numbers | None:
        """Bring a dense array of real numbers to a dtype, with NaN and infinity; None for anything else."""
        if type(values) is not np.ndarray or values.dtype not in _PLACES or not values.ndim:
            return None
        if not (values.flags.c_contiguous and values.flags.aligned):
            return None
        values = values.astype(dtype, copy=False)
        return cls(values, loops.address(values.reshape(-1)), -math.inf, math.inf, (values.shape, values.strides))


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
        What the last call with the same frequencies, pairings and scale leaves for the next, or None; that of this call
        replaces it, all at once, as other threads may do so, too.
    """
    is_tensor = type(x) is not np.ndarray
    if is_tensor:
        if not TORCH.are_plain_dense(x):
            return None
        a, b, shift, scale = [v if type(v) in _READ else view_in_numpy(v) for v in (a, b, shift, turn[2])]
        if last is not None and (y := turned_again(x, a, turn[3], out, last[0])) is not None:
            return y
        dtype, shape = array.dtype_name(x), tuple(x.shape)
        strides = None if x.is_contiguous() else tuple([x.element_size() * step for step in x.stride()])
    else:
        dtype, shape, scale = _FEATURES.get(x.dtype, ""), x.shape, turn[2]
        strides = None if x.flags.carray else x.strides
    c, e, signed = _NOTHING, _NOTHING, kind == "polar" and turn[3] is turn[4] is False
    may_be_apart = strides is None or (out is None and not signed)
    if dtype not in DTYPES or not may_be_apart or (read := _read_operands(kind, a, b)) is None:
        return None
    if shift is not None or type(scale) is not float:
        c, e, scale = _read_shift_and_scale(shift, scale)
    source, a, b = read
    operands = a, b, c, e
    plan = _find_plan(kind, source, dtype, (shape, strides), operands, turn) if 0.0 < scale <= LARGEST_SCALE else None
    if plan is None or not (out is None or _is_fit(out, x, plan, operands, source)):
        return None
    y = out if out is not None else x.new_empty(*plan.shape) if is_tensor else np.empty(plan.shape, x.dtype)
    is_array = type(a) is np.ndarray
    part = MISSED * 2.0**24 / max(b.largest, 1.0) if is_array and a.dtype == _SINGLE else LARGEST
    after = b.values.nbytes, b.address, c.address, e.address, scale, plan.like, part
    if is_tensor or strides is not None or not is_array:
        is_turned = _turn(plan, x, y, a, after, out, signed)
    else:
        views = (x, y) if plan.size != 2 else (x.view(np.int16), y.view(np.int16))
        is_turned = not (signed and has_sign(x)) and loops.turn_dense(*plan.dense, *views, a, *after)
    if not is_turned:
        return None
    if last is not None and not signed and (is_tensor or strides is None):
        known = x.dtype, x.shape, a.dtype, a.shape, turn[3]
        last[0] = plan, (*known, x.stride()) if is_tensor else known, after, (None, *operands[1:])
    return y


def turned_again(
    x: Any, positions: Any, inverse: Any, out: Any, last: tuple[RotationPlan, Any, Any, Any] | None
) -> Any:
    """Return features turned as the last call did; None where layouts are others, or values not fit.

    They are arrays of NumPy, or tensors that are no more than memory; positions are an integer or an array of NumPy.
    """
    places = np.array(positions) if type(positions) is int else positions
    if last is None or type(places) is not np.ndarray or type(inverse) is not bool or not places.flags.carray:
        return None
    (plan, known, after, operands), at = last, (x.dtype, x.shape, places.dtype, places.shape, inverse)
    if type(x) is np.ndarray:
        if known != at or not x.flags.carray or not (out is None or _is_fit(out, x, plan, operands, layout.POSITIONS)):
            return None
        y = np.empty(plan.shape, x.dtype) if out is None else out
        views = (x, y) if plan.size != 2 else (x.view(np.int16), y.view(np.int16))
        return y if loops.turn_dense(*plan.dense, *views, places, *after) else None
    if known != (*at, x.stride()) or not (out is None or _is_fit(out, x, plan, operands, layout.POSITIONS)):
        return None
    y = x.new_empty(*plan.shape) if out is None else out  # less time than a tuple takes
    try:
        is_turned = loops.turn_dense_at(*plan.dense, x.data_ptr(), y.data_ptr(), places, *after[1:])
    except RuntimeError:  # without memory, as gradients that torch takes for a batch of them
        return None
    if is_turned and out is not None:
        array.library(out).mark_modified(out)
    return y if is_turned else None


_NOTHING = Numbers(np.empty(0), 0, 0.0, 0.0, None)
_READ = {type(None), float, Numbers}  # types of operands that are at hand


def _read_operands(kind: str, a: Any, b: Any) -> tuple[int, Any, Numbers] | None:
    """Return what the loops are given (`layout.POSITIONS` or its like) and both operands; None if one is not fit."""
    if kind == "positions" or kind == "polar":
        places, read = np.array(a) if type(a) is int else a, b if type(b) is Numbers else Numbers.read(b)
        if type(places) is not np.ndarray or places.dtype not in _PLACES or not places.flags.carray:
            return None
        return None if read is None or not read.layout or not read.layout[0] else (layout.POSITIONS, places, read)
    if kind == "phases":
        first = Numbers.take(a)
        return None if first is None else (layout.PHASES, first, _NOTHING)
    is_single = getattr(a, "dtype", None) == getattr(b, "dtype", None) == _SINGLE
    dtype, source = (_SINGLE, layout.TABLE_32) if is_single else (_DOUBLE, layout.TABLE_64)
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


def view_in_numpy(value: Any) -> Any:
    """Return the array of NumPy that views a tensor of the CPU, where there is one; anything else as it is."""
    if type(value) is np.ndarray or not TORCH.are_plain_dense(value):
        is_wide = value > _MOST if type(value) is int else getattr(value, "dtype", None) == _UNSIGNED
        return () if is_wide else value  # torch has no such integers
    try:
        return (value.detach() if value.requires_grad else value).numpy()
    except TypeError:  # NumPy has no bfloat16
        return value


def _find_plan(
    kind: str, source: int, dtype: str, x: Layout, operands: tuple[Any, ...], turn: tuple[Any, ...]
) -> RotationPlan | None:
    """Return the plan of features at a layout; None where it is not fit, or not small."""
    (pairing, out_pairing, _, inverse, softplus), (a, b, c, e) = turn, operands
    if type(pairing) is not str or type(out_pairing) is not str or type(inverse) is not bool:
        return None
    if type(softplus) is not bool or (pairing == MAGNITUDES or out_pairing == MAGNITUDES) != (kind == "polar"):
        return None
    angles = (a.shape, None) if source == layout.POSITIONS else a.layout, b.layout, c.layout, e.layout
    try:
        plan = plan_of(dtype, x, None, source, angles, (pairing, out_pairing, inverse, softplus))
    except ValueError:  # shapes do not fit, or there is no such pairing
        return None
    return plan if plan.is_fit else None


def _is_fit(out: Any, x: Any, plan: RotationPlan, operands: tuple[Any, ...], source: int) -> bool:
    """Return whether `out` is dense, of the right shape and dtype, and features themselves or apart from all numbers.

    Positions are read before it is written to. The loop for arrays of NumPy at positions looks at frequencies and
    features itself.
    """
    if type(x) is np.ndarray:
        is_dense = type(out) is np.ndarray and out.flags.carray
    else:
        is_dense = TORCH.are_plain_dense(out) and out.is_contiguous()
    if not is_dense or out.dtype != x.dtype or out.shape != plan.shape:
        return False
    is_left = type(x) is np.ndarray and source == layout.POSITIONS
    if is_left and operands[2] is operands[3] is _NOTHING:
        return True
    read = [one.values for one in operands[2 * is_left :] if type(one) is Numbers and one.layout]
    if not (is_left or out is x):
        read.append(array.view_as_numpy(x))
    return not any([np.may_share_memory(array.view_as_numpy(out), values) for values in read])


def _turn(plan: RotationPlan, x: Any, y: Any, a: Any, after: tuple[Any, ...], out: Any, signed: bool) -> bool:
    """Turn features at their addresses, by positions or what is in their place; False if not fit.

    If `signed`, they are magnitudes, of which none may be negative.
    """
    if type(x) is np.ndarray:
        at = [x.ctypes.data, y.ctypes.data]
    else:
        try:
            at = [x.data_ptr(), y.data_ptr()]
        except RuntimeError:  # without memory, as gradients that torch takes for a batch of them
            return False
    if signed and has_sign(array.view_as_numpy(x)):
        return False
    if type(a) is np.ndarray:
        is_turned = loops.turn_dense_at(*plan.dense, *at, a, *after[1:])
    else:
        is_turned = loops.turn_by_numbers(*plan.dense, *at, a.address, *after[1:-1])
    if is_turned and out is not None and type(out) is not np.ndarray:
        array.library(out).mark_modified(out)
    return is_turned


def has_sign(values: np.ndarray) -> bool:
    """Return whether the sign bit of any number is set, as also in -0.0 and in some NaN."""
    return bool(values.view(_INTEGERS[values.itemsize]).min(initial=0) < 0)


# -- differences of whole positions ------------------------------------------------------------------------------------


def subtract_positions(k: Any, new: Any, old: Any) -> Any:
    """Return ``new - old``, an integer or an array; None for what takes a closer look, which raises the errors.

    They are integers, or arrays of int64 that broadcast; tensors of torch beside keys k that are one.
    """
    if type(k) is not np.ndarray:
        new, old = view_in_numpy(new), view_in_numpy(old)
    if type(new) is type(old) is int:
        return new - old if abs(new - old) <= _NEAR else None
    new, old = np.array(new) if type(new) is int else new, np.array(old) if type(old) is int else old
    if not type(new) is type(old) is np.ndarray or not (new.dtype is _WHOLE and old.dtype is _WHOLE):
        return None
    try:
        is_near = np.max(np.abs(np.subtract(new, old, dtype=np.float64))) <= _NEAR
    except ValueError:  # they do not broadcast, or there are none
        return None
    return new - old if is_near else None
