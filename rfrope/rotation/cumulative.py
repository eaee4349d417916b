"""Running sums of rates that may depend on content, as phases modulo a turn that stay exact in long texts."""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

import numpy as np

from rfrope._core import array, turns
from rfrope._core.angles import check_values, read_numbers
from rfrope._core.arguments import show
from rfrope._core.array import Array

_STEPS = 2**20  # that add up at once without 64 bits


@array.select_device
def cumulative_phases(rates: Array, *, offset: Array | None = None, axis: int = -2) -> tuple[Array, Array]:
    """Return running sums of rates along the tokens, modulo 2 pi: phases for `rotate_by_phases`.

    They are summed as wrapping integers, in units of ``2**-96`` of a turn, so no digits are lost, and a sequence gives
    the same bits token by token as all at once.

    Parameters
    ----------
    rates : array_like, radians per token, (..., T, D)
        Rotation of each block at each token; integers or floats, 16 bits included.
    offset : array_like, optional
        Start of the phases, of the shape of `rates` without `axis`: floats in radians, which broadcast, or the integers
        that an earlier call returned. Default: 0.
    axis : int
        Axis of the tokens.

    Returns
    -------
    phases : array, radians in [-pi, pi], (..., T, D)
        Offset plus the rates of tokens 0 to t, for token t; float64 where the library has it. Gradients are those of
        the plain sum.
    offset : array of integers
        The last phase, to be kept in a cache for the next call: ``(2, ..., D)`` of int64, or ``(5, ..., D)`` of int32
        without 64 bits.

    Raises
    ------
    ValueError
        If `rates` has no such axis, a value is NaN, infinite or above 2**500 in magnitude (checked only where that is
        free), `offset` has another shape, or there are more than 2**20 tokens without 64 bits.
    TypeError
        If a value is not a real number, or an integer `offset` is not one that a call returned.

    See Also
    --------
    rotate_by_phases : rotates features by these phases.
    rotate : equivalent if the rates are the same for all tokens.

    Notes
    -----
    A phase is within 7e-16 radians of the exact sum modulo 2 pi for rates up to 2**50 and 2**31 tokens; without 64 bits
    within 5e-7, for rates up to 2 pi and 2**20 tokens, where a plain float32 sum is wrong by tenths of a radian. Much
    larger rates have phases without meaning.

    The score of two tokens depends on the sum of the rates between them, not on the lag;
    :doc:`relatives </explain/relatives>` says what that loses. Rates of published models in their simplest form,
    from content x:

    - Mamba-3 (Lahoti et al., 2026): ``dt * pi * tanh(a)``, dt per head, a per block, on half or all of the features;
    - Selective RoPE (Movahedi et al., 2025): a linear map of x;
    - CARoPE (Veisi et al., 2025): ``f ** i`` for block i = 1, ..., D, with ``f = 1 / (1 + softplus(w . x))`` per head;
    - GRAPE, contextual (Zhang et al., 2025): ``omega_i`` times a positive function of x.

    Examples
    --------
    Constant rates are positions times frequencies:

    >>> import numpy as np
    >>> rates = np.full((5, 2), [1.0, 0.1])
    >>> phases, cached = cumulative_phases(rates)
    >>> phases.round(4)
    array([[ 1.    ,  0.1   ],
           [ 2.    ,  0.2   ],
           [ 3.    ,  0.3   ],
           [-2.2832,  0.4   ],
           [-1.2832,  0.5   ]])

    The next token continues from the returned offset:

    >>> cumulative_phases(rates[:1], offset=cached)[0].round(4)
    array([[-0.2832,  0.6   ]])
    """
    xp, device = array.shared({"offset": offset}, rates=rates)
    rates = read_numbers("rates", rates, xp, device)
    axis = _check_axis(axis, rates.shape)
    wide = array.has_float64(xp, array.device(rates))
    if not wide and rates.shape[axis] > _STEPS:
        raise ValueError(
            f"rates has {rates.shape[axis]} tokens; expected at most 2**20 at once without 64 bits: pass them in parts"
        )
    start, added = _read_offset(offset, rates, axis, wide, xp)
    total = _carried(_cumulate(_units(rates, wide, xp), 1 + axis, xp) + start, wide, xp)
    return _radians(total, rates, added, axis, wide, xp), _last(total, start, 1 + axis, xp)


# -- the mathematics: words (W, ...) of whole numbers, the highest first -----------------------------------------------

# each word counts the units that the one before it is made of, and the first drops whole turns: with 64 bits units of
# 2**-64 of a turn and of 2**-96, of which 2**31 add up; without, five words of 10 bits, of which 2**20 add up
_BITS = {True: (64, 32), False: (10,) * 5}


def _units(radians: Array, wide: bool, xp: ModuleType) -> Array:
    """Words of angles, modulo a turn."""
    if wide:
        units, rests = turns.wrapping_turns(radians, 64, xp)
        rests = array.astype(xp.round(rests * 2.0 ** _BITS[wide][1]), xp.int64, xp)
        return _carried(xp.stack([units, rests]), wide, xp)
    words = [xp.zeros_like(radians)] * len(_BITS[wide])
    for part in turns.reduced_turns(radians, xp):
        for place, bits in enumerate(_BITS[wide]):
            part = part * 2.0**bits
            nearest = xp.round(part)
            words[place], part = words[place] + nearest, part - nearest
    return _carried(array.astype(xp.stack(words), xp.int32, xp), wide, xp)


def _carried(words: Array, wide: bool, xp: ModuleType) -> Array:
    """Words without what belongs to the one before."""
    bits = _BITS[wide]
    found: list[Array] = []
    carry: Any = 0
    for place in range(len(bits) - 1, -1, -1):
        sums = words[place, ...] + carry
        if bits[place] < 64:
            carry, sums = sums >> bits[place], sums & (2 ** bits[place] - 1)
        found.insert(0, sums)
    return xp.stack(found)


def _cumulate(units: Array, axis: int, xp: ModuleType) -> Array:
    add = getattr(xp, "cumulative_sum", None) or xp.cumsum  # NumPy before 2.1
    return add(units, axis=axis)


def _last(total: Array, start: Any, axis: int, xp: ModuleType) -> Array:
    """Units after all tokens, if there are any."""
    if total.shape[axis]:
        return xp.moveaxis(total, axis, 0)[-1, ...]
    return xp.sum(total, axis=axis) + (start if type(start) is int else xp.squeeze(start, axis=axis))


def _radians(total: Array, rates: Array, added: Any, axis: int, wide: bool, xp: ModuleType) -> Array:
    """Angles of units, with the derivatives of a plain sum, which itself adds nothing."""
    if wide:
        phases = array.astype(total[0, ...], xp.float64, xp) * (2.0 * math.pi * 2.0**-64)
    else:
        total, share = array.astype(total, xp.float32, xp), 2.0**-10
        high = total[0, ...] - xp.where(total[0, ...] >= 512.0, 1024.0, 0.0)
        low = share * (total[1, ...] + share * (total[2, ...] + share * total[3, ...]))
        phases = (2.0 * math.pi * share) * (high + low)
    if isinstance(rates, np.ndarray):
        return phases
    bits = array.library(rates).detach_as_int16
    nothing = _cumulate(rates - bits(rates), axis, xp)
    return phases + (nothing if type(added) is float else nothing + (added - bits(added)))


# -- what is allowed in ------------------------------------------------------------------------------------------------


def _check_axis(axis: Any, shape: tuple[int, ...]) -> int:
    if type(axis) is not int or not -len(shape) <= axis < len(shape):
        raise ValueError(f"axis is {show(axis)}, but rates has shape {tuple(shape)}; expected the axis of its tokens")
    return axis % len(shape)


def _read_offset(offset: Any, rates: Array, axis: int, wide: bool, xp: ModuleType) -> tuple[Any, Any]:
    """Units that sums start from, and the same in radians where derivatives may be asked for."""
    if offset is None:
        return 0, 0.0
    shape = rates.shape[:axis] + rates.shape[axis + 1 :]
    given = array.numbers(offset, xp, name="offset", device=array.device(rates))
    kept = (len(_BITS[wide]), *shape)
    if array.is_integer(given):
        if not hasattr(offset, "dtype") or tuple(given.shape) != kept or not array.dtype_name(given).startswith("int"):
            raise TypeError(
                f"offset is {show(offset)}; expected radians as floats, or integers of shape {kept} that an earlier "
                "call returned"
            )
        return xp.expand_dims(given, axis=1 + axis), 0.0
    given = array.widen(given, xp)
    check_values("offset", given, xp)
    named = {"offset": tuple(given.shape), "rates without its axis": tuple(shape)}
    if array.broadcast_shapes(named) != shape:
        raise ValueError(f"offset has shape {named['offset']}; expected {tuple(shape)}, or what broadcasts to it")
    given = xp.expand_dims(xp.broadcast_to(given, shape), axis=axis)
    return _units(given, wide, xp), given
