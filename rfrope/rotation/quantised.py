"""Keys in llama.cpp's blocks of 8 and 4 bits: conversion, moves, and error bounds of moves."""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from rfrope._core import array, blocks
from rfrope._core.arguments import choice, whole
from rfrope._core.array import Array
from rfrope.rotation.rerotation import relocate
from rfrope.rotation.rope import Rope, check_head_width

VALUES = 32  # in a block
_LARGEST = 65504.0  # of float16, which scales have
_TURNED = 2.0**-21  # error of one call in float32, beside rounding to narrower types


@dataclass(frozen=True)
class _Layout:
    """One way to hold 32 values in a block: a scale in float16, little-endian, and whole numbers of steps."""

    n_bytes: int  # of a block
    steps: float  # the largest magnitude in a block, in steps


_LAYOUTS = {"q8_0": _Layout(34, 127.0), "q4_0": _Layout(18, 8.0)}
_ROUNDING = {"float64": 0.0, "float32": 0.0, "float16": 2.0**-11, "bfloat16": 2.0**-8}


@array.select_device
def quantise(x: Array, layout: str) -> Array:
    """Return values as bytes of llama.cpp's Q8_0 or Q4_0, in blocks of 32.

    Parameters
    ----------
    x : array_like, (..., d)
        Of a real floating dtype, d a multiple of 32.
    layout : {"q8_0", "q4_0"}
        A block is a float16 scale s and 32 whole numbers n that stand for ``n s``: 34 bytes with n from -127 to 127, or
        18 bytes with n from -8 to 7, plus 8, two to a byte, the first 16 in the low four bits.

    Returns
    -------
    array of uint8, (..., 34 d / 32) or (..., 18 d / 32)
        On the device of `x`.

    Raises
    ------
    ValueError
        If the layout is unknown, the width is not a multiple of 32, or a value is NaN or too large for a float16 scale:
        above 8319008 in "q8_0", 524032 in "q4_0" (checked only where that is free).
    TypeError
        If `x` is not real floating.

    See Also
    --------
    rotation.dequantise, rotation.relocate_quantised

    Notes
    -----
    Computed in float32 as in ``quantize_row_q8_0_ref`` and ``quantize_row_q4_0_ref`` of ggml-quants.c. Quantising again
    changes nothing: ``quantise(dequantise(k, layout), layout)`` holds the values of `k`.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.linspace(-1.0, 1.0, 64)
    >>> [quantise(x, layout).shape for layout in ("q8_0", "q4_0")]
    [(68,), (36,)]
    >>> error = np.abs(dequantise(quantise(x, "q8_0"), "q8_0") - x)
    >>> bool(np.max(error) < 0.6 / 127)
    True
    """
    choice("layout", layout, tuple(_LAYOUTS))
    xp, device = array.shared(x=x)
    x = blocks.features(x, xp, device=device)
    if x.shape[-1] % VALUES:
        raise ValueError(f"x has shape {tuple(x.shape)}; expected (..., d) with d a multiple of {VALUES}")
    array.check_memory(32.0, x.shape, x, "x")
    return _encode(array.astype(x, xp.float32, xp), layout, xp, "x")


@array.select_device
def dequantise(k: Array, layout: str) -> Array:
    """Return the values of llama.cpp's Q8_0 or Q4_0 blocks.

    Parameters
    ----------
    k : array of uint8
        Bytes as returned by `quantise`.
    layout : {"q8_0", "q4_0"}

    Returns
    -------
    array of float32, (..., d)
        On the device of `k`.

    Raises
    ------
    ValueError
        If the layout is unknown, or the bytes are not whole blocks.
    TypeError
        If `k` has another dtype.

    See Also
    --------
    rotation.quantise

    Examples
    --------
    A scale of 0.5 and 32 bytes, where 0xff is -1:

    >>> import numpy as np
    >>> dequantise(np.array([0x00, 0x38, *[2] * 31, 0xFF], dtype=np.uint8), "q8_0")[-2:]
    array([ 1. , -0.5], dtype=float32)
    """
    k, xp, width = _read_bytes(k, layout)
    array.check_memory(24.0, (*k.shape[:-1], width), k, "k")
    return _decode(k, layout, xp)


@array.select_device
def relocate_quantised(
    k: Array, old_positions: Array, new_positions: Array, rope: Rope | Array, layout: str, *, out: Array | None = None
) -> Array:
    """Move cached keys in blocks of 8 or 4 bits; `rotation.relocate` for these layouts.

    Blocks with rotated features are read, rotated in float32 and rounded again; other blocks keep their bytes.

    Parameters
    ----------
    k : array of uint8
        Bytes of rotated keys ``(..., d)``, as returned by `quantise`.
    old_positions, new_positions, rope
        See `rotation.relocate`.
    layout : {"q8_0", "q4_0"}
        See `quantise`.
    out : array of uint8, optional
        Output array. ``out=k`` works in place.

    Returns
    -------
    array of uint8
        Same shape and device as `k`; `out` if given.

    Raises
    ------
    ValueError, TypeError
        See `rotation.relocate`, `quantise` and `dequantise`.

    See Also
    --------
    rotation.relocate, rotation.relocation_bound, rotation.quantise

    Notes
    -----
    Each move rounds, by up to `rotation.relocation_bound`, and the errors of many moves add up. If a cache moves often,
    keep the keys as first stored, with their positions then, and move these.

    Examples
    --------
    >>> import numpy as np, rfrope
    >>> rope = rfrope.Rope(rfrope.geometric(32))
    >>> k, positions = np.random.default_rng(0).standard_normal((48, 64)), np.arange(1000, 1048)
    >>> cached = quantise(rope.rotate(k, positions), "q8_0")
    >>> moved = dequantise(relocate_quantised(cached, positions, positions - 900, rope, "q8_0"), "q8_0")
    >>> error = np.linalg.norm(moved - rope.rotate(k, positions - 900), axis=-1) / np.linalg.norm(k, axis=-1)
    >>> bool(np.max(error) < rfrope.rotation.relocation_bound("q8_0", 1))
    True
    """
    rope = rope if isinstance(rope, Rope) else Rope(rope)
    k, xp, width = _read_bytes(k, layout)
    if out is not None:
        array.shared(k=k, out=out)
        blocks.check_out(out, k, tuple(k.shape), "k", needs_gradient=False)
    if rope.polar:
        raise ValueError("rope is polar; expected a Rope with polar=False: no engine stores polar keys in blocks")
    check_head_width("k", width, rope, None if rope.head_dim == rope.rotary_dim else rope.head_dim)
    if rope.rotary_dim > width:
        raise ValueError(
            f"rope turns {rope.rotary_dim} features, but k of shape {tuple(k.shape)} holds {width} in {layout!r}; "
            f"expected at most {width // 2} frequencies"
        )
    turned = -(-rope.rotary_dim // VALUES)  # blocks
    held = k[..., : turned * _LAYOUTS[layout].n_bytes]
    array.check_memory(16.0, (*k.shape[:-1], turned * VALUES), k, "k")
    x = _decode(held, layout, xp)
    y = relocate(x[..., : rope.rotary_dim], old_positions, new_positions, rope)
    if rope.rotary_dim < x.shape[-1]:
        y = xp.concat([y, x[..., rope.rotary_dim :]], axis=-1)
    found = _encode(y, layout, xp, "k")
    if out is None:
        return found if held.shape == k.shape else xp.concat([found, k[..., held.shape[-1] :]], axis=-1)
    if out is not k:
        out[...] = k
    out[..., : held.shape[-1]] = found
    return out


def relocation_bound(storage: str, moves: int = 1) -> float:
    """Return a bound on the relative error of a cached key after some moves.

    Parameters
    ----------
    storage : {"float64", "float32", "float16", "bfloat16", "q8_0", "q4_0"}
        Type of the cached keys.
    moves : int
        Number of calls of `rotation.relocate`, `rotation.relocate_quantised` or `rotation.rerotate`.

    Returns
    -------
    float
        Bound of ``|stored - exact| / |exact|``, where exact is one rotation without rounding, and norms are over the
        rotated features, or over whole blocks of 32. With 0 moves, the error of storing.

    Raises
    ------
    ValueError, TypeError
        If the storage is unknown, or `moves` is negative or not whole.

    See Also
    --------
    rotation.relocate_quantised, rotation.quantise

    Notes
    -----
    One call gives ``R z + r`` with ``|r| <= e |z|``, and rotations preserve length, so n moves after one rotation are
    off by at most ``(1 + e)^(n + 1) - 1``. e is ``(1 + sqrt 2) 2^-53 + sqrt 2 1e-15`` for float64 (products and sums,
    then cos and sin) and ``2^-21`` for float32, on every device and library, for phases up to ``2^53`` as in `rotate`;
    16 bits add one rounding, ``2^-11`` or ``2^-8``.

    In a block of 32 values with step t, the largest is m = 127 (8) steps and exact, and every other one is off by at
    most half a step (in "q4_0", by up to one step beyond 7.5 t, which is less relative to its size). The worst case has
    all others at half a step: ``sqrt((31/4) / (m^2 + 31/4))`` of the norm, 0.0219 (0.329); rounding the scale to
    float16 adds ``2^-11``. This holds for scales of ``2^-14`` or more. Below, float16 rounds to multiples of ``2^-24``,
    which may add ``m 2^-25`` to each value; plain float16 does so below ``2^-14``, too.

    While the norm of the stored key stays that of the exact one, ``(n + 1) e`` is a bound, too. Independent roundings
    add in squares, to about ``e sqrt(n + 1)``, and few values are the worst case: the page on cached keys has
    measurements.

    Examples
    --------
    >>> [f"{relocation_bound(one):.1e}" for one in ("float64", "float32", "bfloat16", "q8_0", "q4_0")]
    ['3.4e-15', '9.5e-07', '7.8e-03', '4.5e-02', '7.7e-01']
    """
    choice("storage", storage, (*_ROUNDING, *_LAYOUTS))
    moves = whole("moves", moves)
    try:
        return math.expm1((moves + 1) * math.log1p(_error_of_call(storage)))
    except OverflowError:
        return math.inf


def _error_of_call(storage: str) -> float:
    """Return the largest relative error of one call."""
    if storage == "float64":
        return (1.0 + math.sqrt(2.0)) * 2.0**-53 + math.sqrt(2.0) * 1e-15
    if storage in _ROUNDING:
        return _TURNED + _ROUNDING[storage]
    half = 0.5 + 2.0**-14  # a step, and the float32 error of the number of steps
    others = (VALUES - 1) * half**2
    rounded = math.sqrt(others / (_LAYOUTS[storage].steps ** 2 + others))
    return (1.0 + _TURNED) * (rounded * (1.0 + 2.0**-11) + 2.0**-11) + _TURNED


# -- bytes -------------------------------------------------------------------------------------------------------------


def _read_bytes(k: Any, layout: Any) -> tuple[Array, ModuleType, int]:
    """Return bytes of whole blocks, their namespace, and the number of values in a row."""
    n_bytes = _LAYOUTS[choice("layout", layout, tuple(_LAYOUTS))].n_bytes
    xp, device = array.shared(k=k)
    k = array.asarray(k, xp, name="k", device=device)
    if array.dtype_name(k) != "uint8":
        raise TypeError(
            f"k has dtype {array.dtype_name(k)}; expected uint8, the bytes returned by rotation.quantise, "
            "or k.view(numpy.uint8)"
        )
    if k.ndim == 0 or k.shape[-1] % n_bytes:
        raise ValueError(
            f"k has shape {tuple(k.shape)}; expected (..., n) with n a multiple of {n_bytes}, the bytes of a block of "
            f"{layout!r}"
        )
    return k, xp, VALUES * (k.shape[-1] // n_bytes)


def _encode(x: Array, layout: str, xp: ModuleType, name: str) -> Array:
    """Return values of float32 in blocks."""
    steps = _LAYOUTS[layout].steps
    x = xp.reshape(x, (*x.shape[:-1], x.shape[-1] // VALUES, VALUES))
    sizes = xp.abs(x)
    if layout == "q8_0":
        scale = xp.max(sizes, axis=-1, keepdims=True) / steps
    else:  # with the sign of the first maximum
        largest = xp.argmin(-sizes, axis=-1, keepdims=True)
        first = xp.arange(VALUES, device=array.device(x)) == largest
        scale = xp.sum(xp.where(first, x, xp.zeros_like(x)), axis=-1, keepdims=True) / -steps
    if array.has_host_values(scale) and not bool(xp.all(xp.abs(scale) <= _LARGEST)):
        raise ValueError(
            f"{name} holds NaN, or magnitudes above {_LARGEST * steps:.0f}, for which {layout!r} has no scale"
        )
    still = scale == 0.0
    inverse = xp.where(still, xp.zeros_like(scale), 1.0 / xp.where(still, xp.ones_like(scale), scale))
    held = _halves_to_bytes(scale, xp)
    if layout == "q8_0":
        nearest = xp.floor(sizes * inverse + 0.5)
        numbers = xp.where((x < 0.0) & (nearest > 0.0), 256.0 - nearest, nearest)
    else:
        nearest = array.clip(xp.floor(x * inverse + 8.5), 0.0, 15.0, xp)
        numbers = nearest[..., : VALUES // 2] + 16.0 * nearest[..., VALUES // 2 :]
    found = xp.concat([held, array.astype(numbers, xp.uint8, xp)], axis=-1)
    return xp.reshape(found, (*found.shape[:-2], found.shape[-2] * found.shape[-1]))


def _decode(k: Array, layout: str, xp: ModuleType) -> Array:
    """Return the values of float32 in blocks."""
    n_bytes = _LAYOUTS[layout].n_bytes
    k = array.astype(xp.reshape(k, (*k.shape[:-1], k.shape[-1] // n_bytes, n_bytes)), xp.int32, xp)
    scale, numbers = _bytes_to_halves(k[..., :2], xp), k[..., 2:]
    if layout == "q8_0":
        numbers = xp.where(numbers > 127, numbers - 256, numbers)
    else:
        numbers = xp.concat([numbers % 16, numbers // 16], axis=-1) - 8
    x = array.astype(numbers, xp.float32, xp) * scale
    return xp.reshape(x, (*x.shape[:-2], x.shape[-2] * VALUES))


def _bytes_to_halves(pairs: Array, xp: ModuleType) -> Array:
    """Return the float16 numbers in pairs of bytes, the low one first, as float32 ``(..., 1)``."""
    low, high = pairs[..., :1], pairs[..., 1:]
    exponent, mantissa = high % 128 // 4, high % 4 * 256 + low
    leading = array.astype(exponent > 0, xp.int32, xp)
    size = array.astype(mantissa + 1024 * leading, xp.float32, xp) * _spacings(exponent - leading, xp)
    special = xp.where(mantissa == 0, xp.full_like(size, math.inf), xp.full_like(size, math.nan))
    size = xp.where(exponent == 31, special, size)
    return xp.where(high > 127, -size, size)


def _halves_to_bytes(x: Array, xp: ModuleType) -> Array:
    """Return float32 numbers ``(..., 1)`` rounded to float16, to even, as pairs of bytes."""
    size = xp.abs(x)
    steps = xp.arange(1, 30, device=array.device(x))
    above = size >= 1024.0 * _spacings(steps, xp)  # the exponents from 2 on
    step = xp.sum(array.astype(above, xp.int32, xp), axis=-1, keepdims=True, dtype=xp.int32)
    mantissa = array.astype(xp.round(size / _spacings(step, xp)), xp.int32, xp)
    # the leading bit of a mantissa counts one exponent; that of 2048, to which 2047.5 is rounded, another one
    bits = mantissa + 1024 * step + 32768 * array.astype(x < 0.0, xp.int32, xp)
    return xp.concat([array.astype(bits % 256, xp.uint8, xp), array.astype(bits // 256, xp.uint8, xp)], axis=-1)


def _spacings(steps: Array, xp: ModuleType) -> Array:
    """Return the spacing of float16 numbers, ``2^-24`` times a power of two from 0 to 30, exactly on every device."""
    return array.astype(1 << steps, xp.float32, xp) * 2.0**-24
