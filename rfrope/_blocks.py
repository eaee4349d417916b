"""Blocks of two features: their pairings, and the one place where they are turned."""

from __future__ import annotations

from types import ModuleType

import numpy as np

from rfrope import _array
from rfrope._array import Array

PAIRINGS = ("half", "interleaved")


def check_pairing(pairing: str, name: str = "pairing") -> str:
    """Return a pairing, or say which there are."""
    if pairing not in PAIRINGS:
        raise ValueError(f"{name} is {pairing!r}; expected one of {', '.join(map(repr, PAIRINGS))}")
    return pairing


def features(x: Array, xp: ModuleType, name: str = "x") -> Array:
    """Return features ``(..., d)`` as an array, or say why they cannot be rotated."""
    x = _array.asarray(x, xp, name=name)
    if not _array.is_real_floating(x):
        raise TypeError(
            f"{name} has dtype {_array.dtype_name(x)}; expected real floating features: convert to float32 or float64"
        )
    if x.ndim == 0 or x.shape[-1] % 2:
        raise ValueError(f"{name} has shape {tuple(x.shape)}; expected (..., d) with an even number d of features")
    return x


def prepared(
    x: Array,
    phases: tuple[int, ...],
    pairing: str,
    out_pairing: str | None,
    out: Array | None,
    names: tuple[str, str],
    *angles: Array,
) -> str:
    """Check all that `turned` needs and return the pairing of the result.

    `phases` is the shape of the phases, `names` says whose features and whose phases they are, `angles` are the arrays
    that the phases are made from.
    """
    check_pairing(pairing)
    out_pairing = pairing if out_pairing is None else check_pairing(out_pairing, "out_pairing")
    leading = _array.broadcast_shapes({names[0]: x.shape[:-1], f"the phases from {names[1]}": phases[:-1]})
    if out is not None:
        _check_out(out, x, (*leading, x.shape[-1]), _array.needs_gradient(x, out, *angles))
    return out_pairing


def turned(
    x: Array, cos: Array, sin: Array, pairing: str, out_pairing: str, out: Array | None, xp: ModuleType
) -> Array:
    """Turn prepared features by cos and sin ``(..., D)``, one float wider."""
    leading = np.broadcast_shapes(tuple(x.shape[:-1]), tuple(cos.shape[:-1]))
    width = 2 * cos.shape[-1]
    if out is None and isinstance(x, np.ndarray):
        out = np.empty((*leading, x.shape[-1]), x.dtype)

    wide = _array.wider_float(x, xp)
    cos, sin = _array.astype(cos, wide, xp), _array.astype(sin, wide, xp)
    x_1, x_2 = pair(_array.astype(x[..., :width], wide, xp), pairing)
    y_1 = _array.astype(x_1 * cos - x_2 * sin, x.dtype, xp)
    y_2 = _array.astype(x_1 * sin + x_2 * cos, x.dtype, xp)
    rest = x[..., width:]

    if out is None:
        turned = join(y_1, y_2, out_pairing, xp)
        if width == x.shape[-1]:
            return turned
        return xp.concat([turned, xp.broadcast_to(rest, (*leading, rest.shape[-1]))], axis=-1)
    first, second = pair(out[..., :width], out_pairing)
    first[...], second[...] = y_1, y_2
    if width < x.shape[-1] and not _array.same_memory(out, x):
        out[..., width:] = rest
    return out


def _check_out(out: Array, x: Array, shape: tuple[int, ...], needs_gradient: bool) -> None:
    if not hasattr(out, "dtype"):
        raise TypeError(f"out is {out!r:.60}; expected an array")
    if _array.is_lazy(x):
        raise TypeError("out was given, but arrays of this library cannot be written to; expected out=None")
    if tuple(out.shape) != shape:
        raise ValueError(f"out has shape {tuple(out.shape)}; expected {shape}")
    if out.dtype != x.dtype:
        raise TypeError(f"out has dtype {out.dtype!r}; expected the dtype of x, {x.dtype!r}")
    if needs_gradient:
        raise TypeError(
            "out was given, but gradients are asked for, which writing in place would lose; expected out=None"
        )
    if not _array.is_writable(out) or _array.has_shared_elements(out):
        raise ValueError("out is read-only or a broadcast view; expected a writable array")
    if _array.may_overlap(out, x) and not _array.same_memory(out, x):
        raise ValueError("out overlaps x in part; expected x itself (in place) or memory of its own")


def pair(x: Array, pairing: str) -> tuple[Array, Array]:
    """First and second features of each block, as views."""
    if pairing == "half" or x.shape[-1] == 0:  # not every library can step through an empty axis
        half = x.shape[-1] // 2
        return x[..., :half], x[..., half:]
    return x[..., 0::2], x[..., 1::2]


def join(first: Array, second: Array, pairing: str, xp: ModuleType) -> Array:
    """Undo `pair`."""
    if pairing == "half" or first.shape[-1] == 0:
        return xp.concat([first, second], axis=-1)
    return xp.reshape(xp.stack([first, second], axis=-1), (*first.shape[:-1], 2 * first.shape[-1]))
