"""Blocks of two features: their pairings, queries and keys as blocks, and the one place where blocks are turned."""

from __future__ import annotations

from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from rfrope._core import array
from rfrope._core.angles import check_values
from rfrope._core.arguments import broadcast, choice, show
from rfrope._core.array import Array
from rfrope._core.dispatch import CPU, TORCH_ROTATION, dispatched, runs_operators
from rfrope._core.overlap import Overlap, has_shared_elements, overlap_of

PAIRINGS = ("half", "interleaved")
MAGNITUDES = "magnitudes"  # the layout of blocks without second features: they are 0, or not wanted; inside alone
_MANY = 2**16  # numbers that need no look at the memory there is
_HINTS = {  # where there are as many columns as features
    "cos": "; if cos repeats its columns, pass the first half",
    "frequencies": "; one frequency per feature is for polar features (rotate_polar)",
}


def check_pairing(pairing: Any, name: str = "pairing") -> str:
    """Return a pairing, or say which there are."""
    return choice(name, pairing, PAIRINGS)


def width_of(layout: str) -> int:
    """Return how many features a block has in a pairing, or as a magnitude."""
    return 1 if layout == MAGNITUDES else 2


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


# -- features, queries and keys ----------------------------------------------------------------------------------------


def features(x: Any, xp: ModuleType, name: str = "x", device: Any = None, layout: str = PAIRINGS[0]) -> Array:
    """Return features ``(..., d)`` as an array, or say why they cannot be rotated; d is even but for magnitudes."""
    x = array.asarray(x, xp, name=name, device=device)
    if not array.is_real_floating(x):
        raise TypeError(
            f"{name} has dtype {array.dtype_name(x)}; expected real floating features: convert to float32 or float64"
        )
    if layout == MAGNITUDES and x.ndim == 0:
        raise ValueError(f"{name} is a single number; expected (..., D) with one magnitude per frequency")
    if x.ndim == 0 or x.shape[-1] % width_of(layout):
        raise ValueError(f"{name} has shape {tuple(x.shape)}; expected (..., d) with an even number d of features")
    return x


def query_and_key(q: Any, k: Any, xp: ModuleType, device: Any, layout: str = PAIRINGS[0]) -> tuple[Array, Array]:
    """Return features of queries and of keys, of one dtype and width, or say what is wrong with them."""
    q, k = features(q, xp, "q", device, layout), features(k, xp, "k", device, layout)
    if q.dtype != k.dtype:
        first, second = array.dtype_name(q), array.dtype_name(k)
        if first == second:  # they differ in their byte order
            first, second = q.dtype.str, k.dtype.str
        raise TypeError(f"q has dtype {first} but k has {second}; expected the same")
    if q.shape[-1] != k.shape[-1]:
        raise ValueError(
            f"q has shape {tuple(q.shape)} but k has {tuple(k.shape)}; expected the same number of features"
        )
    return q, k


class Content(NamedTuple):
    """Parts of a query and a key in their score ``sum_i A_i cos u_i + B_i sin u_i + rest``."""

    # (..., D): ``A_i = q_i . k_i`` and ``B_i = q_i^T J k_i`` of the blocks that turn, in the widest float
    cosine: Array
    sine: Array
    rest: Array  # (...): ``q . k`` of the features that are not turned


def content(q: Any, k: Any, xp: ModuleType, device: Any, pairing: str, blocks: int | None = None) -> Content:
    """Read queries and keys of which so many blocks turn; all of them unless given."""
    if xp is np and _are_plain(q, k):
        q, k = q.astype(np.float64, copy=False), k.astype(np.float64, copy=False)
    else:
        q, k = query_and_key(_widest(q, "q", xp, device), _widest(k, "k", xp, device), xp, device)
        array.broadcast_shapes({"q": q.shape[:-1], "k": k.shape[:-1]})
    check_pairing(pairing)
    width = q.shape[-1]
    if blocks is not None:
        check_width(q, blocks, "frequencies", "q")
        width = 2 * blocks
    cosine, sine = coefficients(q[..., :width], k[..., :width], pairing)
    return Content(cosine, sine, xp.sum(q[..., width:] * k[..., width:], axis=-1))


def _are_plain(q: Any, k: Any) -> bool:
    """Return True for arrays of NumPy that `query_and_key` takes as they are, of one shape and not many numbers."""
    return (
        type(q) is type(k) is np.ndarray
        and q.dtype.char in "fd"
        and k.dtype.char in "fd"
        and q.shape == k.shape
        and q.ndim > 0
        and q.shape[-1] % 2 == 0
        and q.size <= _MANY
    )


def coefficients(q: Array, k: Array, pairing: str) -> tuple[Array, Array]:
    """Return A and B of each block, in the dtype of q and k."""
    return coefficients_of(pair(k, pairing), pair(q, pairing))


def coefficients_of(x: tuple[Array, Array], y: tuple[Array, Array]) -> tuple[Array, Array]:
    """Return ``x . y`` and ``x_1 y_2 - x_2 y_1`` of each block, given by first and second features."""
    (x_1, x_2), (y_1, y_2) = x, y
    return x_1 * y_1 + x_2 * y_2, x_1 * y_2 - x_2 * y_1


class Tokens(NamedTuple):
    """First and second features of every block of queries and keys, ``(..., tokens, D)``, in the widest float.

    Features that are not turned are blocks too, with a second feature and a frequency of 0.
    """

    q_1: Array
    q_2: Array
    k_1: Array
    k_2: Array

    def coefficients(self) -> tuple[Array, Array]:
        """A and B of each block, row by row."""
        return coefficients_of((self.k_1, self.k_2), (self.q_1, self.q_2))


def tokens(q: Any, k: Any, xp: ModuleType, device: Any, pairing: str, blocks: int) -> Tokens:
    """Read queries and keys ``(..., n, d)``, of which so many blocks turn, or magnitudes ``(..., n, D)``, as blocks."""
    if pairing is not MAGNITUDES:
        check_pairing(pairing)
    q, k = query_and_key(_widest(q, "q", xp, device), _widest(k, "k", xp, device), xp, device, pairing)
    for name, value in (("q", q), ("k", k)):
        if value.ndim < 2 or value.shape[-2] == 0:
            raise ValueError(f"{name} has shape {tuple(value.shape)}; expected (..., tokens, d) with tokens")
        check_values(name, value, xp)
    array.broadcast_shapes({"q": q.shape[:-2], "k": k.shape[:-2]})
    if pairing == MAGNITUDES:
        return _tokens_of_magnitudes(q, k, blocks, xp)
    check_width(q, blocks, "frequencies", "q")
    return Tokens(*halves(q, blocks, pairing, xp), *halves(k, blocks, pairing, xp))


def _tokens_of_magnitudes(q: Array, k: Array, blocks: int, xp: ModuleType) -> Tokens:
    if q.shape[-1] != blocks:
        raise ValueError(
            f"frequencies has D = {blocks}, but q has shape {tuple(q.shape)}; expected (..., tokens, {blocks}) "
            "magnitudes, one for each frequency"
        )
    for name, value in (("q", q), ("k", k)):
        check_magnitudes(value, xp, name, "log(1 + exp(x)) of what a projection gives")
    return Tokens(q, xp.zeros_like(q), k, xp.zeros_like(k))


def halves(x: Array, blocks: int, pairing: str, xp: ModuleType) -> tuple[Array, Array]:
    """First and second features of each block of ``(..., d)``, and of those that are not turned."""
    first, second = pair(x[..., : 2 * blocks], pairing)
    if x.shape[-1] == 2 * blocks:
        return first, second
    rest = x[..., 2 * blocks :]
    return xp.concat([first, rest], axis=-1), xp.concat([second, xp.zeros_like(rest)], axis=-1)


def check_width(x: Array, blocks: int, name: str, x_name: str = "x") -> None:
    """Say that features are too few for so many blocks."""
    if 2 * blocks > x.shape[-1]:
        hint = _HINTS.get(name, "") if blocks == x.shape[-1] else ""
        raise ValueError(
            f"{name} has D = {blocks} blocks, which needs {2 * blocks} features, but {x_name} has shape "
            f"{tuple(x.shape)}; expected D <= {x.shape[-1] // 2}{hint}"
        )


def check_magnitudes(x: Array, xp: ModuleType, name: str, hint: str = "pass softplus=True to make them") -> None:
    """Refuse magnitudes below zero, where looking is free (see `array.has_host_values`); NaN passes."""
    if array.has_host_values(x) and has_negative(x, xp):
        raise ValueError(f"{name} holds negative numbers; expected magnitudes of 0 or more: {hint}")


@dispatched(CPU.rotation, TORCH_ROTATION)
def has_negative(x: Array, xp: ModuleType) -> bool:
    """Return whether any number is below zero."""
    with np.errstate(invalid="ignore"):  # bfloat16 of ml_dtypes warns of NaN
        return bool(xp.any(x < 0))


def _widest(value: Any, name: str, xp: ModuleType, device: Any) -> Array:
    value = array.asarray(value, xp, name=name, device=device)
    return array.widen(value, xp) if array.is_real_floating(value) else value


# -- turning -----------------------------------------------------------------------------------------------------------


class TurnOptions(NamedTuple):
    """Options of a turn, beside its angles."""

    # the two features that make a block, in what comes and in the result; or `MAGNITUDES` in one of them, which has
    # first features alone: second ones that come are 0, or those of the result are left out
    pairing: str
    out_pairing: str
    scale: Any = 1.0  # multiplies cos and sin, or divides them in the inverse
    inverse: bool = False
    softplus: bool = False  # magnitudes that come are ``log(1 + exp(x))`` of x

    def shape(self, x: tuple[int, ...], phases: tuple[int, ...]) -> tuple[int, ...]:
        """Shape of features of some shape, turned by phases."""
        added = (width_of(self.out_pairing) - width_of(self.pairing)) * phases[-1]
        return (*broadcast(tuple(x[:-1]), tuple(phases[:-1])), x[-1] + added)


def check_rotation(
    x: Array,
    phases: tuple[int, ...],
    pairing: str,
    out_pairing: str | None,
    out: Array | None,
    names: tuple[str, ...],
    *angles: Array | None,
) -> str:
    """Check pairings, and all that `check_turn` does; return the pairing of the result."""
    check_pairing(pairing)
    out_pairing = pairing if out_pairing is None else check_pairing(out_pairing, "out_pairing")
    check_turn(x, phases, TurnOptions(pairing, out_pairing), out, names, *angles)
    return out_pairing


def check_turn(
    x: Array,
    phases: tuple[int, ...],
    turn: TurnOptions,
    out: Array | None,
    names: tuple[str, ...],
    *angles: Array | None,
) -> None:
    """Check all that `turned` needs beside pairings.

    `phases` is the shape of the phases, `angles` are the arrays that they are made from, and `names` says what the
    features and these are called.
    """
    if not _keeps(x.shape[:-1], phases[:-1]):
        origin = _sources(names, angles)
        leading = array.broadcast_shapes({names[0]: x.shape[:-1], f"the phases from {origin}": phases[:-1]})
        raise ValueError(
            f"{names[0]} has shape {tuple(x.shape)}, but the phases from {origin} have shape {tuple(phases)}: the "
            f"result would be {(*leading, x.shape[-1])}; expected phases that leave {names[0]} its shape: insert "
            f"axes with None, as in {names[1].partition(' ')[0]}[:, None], or broadcast {names[0]} first where all "
            "combinations are meant"
        )
    if out is not None:
        check_out(out, x, turn.shape(x.shape, phases), names[0], array.needs_gradient(x, out, *angles))


def _keeps(whole: tuple[int, ...], part: tuple[int, ...]) -> bool:
    """Return whether a shape stays what it is where another broadcasts with it."""
    try:
        return broadcast(tuple(whole), tuple(part)) == tuple(whole)
    except ValueError:
        return False


def _sources(names: tuple[str, ...], angles: tuple[Array | None, ...]) -> str:
    """Names of all that phases get axes from: positions, and sets ``(*H, D, k)``, shifts and scales of several axes."""
    plain = {"shift": 1, "scale": 1}  # axes without others than that of the blocks; frequencies have k, too
    others = zip(names[2:], angles[1:], strict=False)
    several = [name for name, value in others if getattr(value, "ndim", 0) > plain.get(name, 2)]
    return " and ".join([names[1], *several])


def turned(x: Array, cos: Array, sin: Array, turn: TurnOptions, out: Array | None, xp: ModuleType) -> Array:
    """Turn prepared features by ready cos and sin ``(..., D)``, one float wider."""
    width = width_of(turn.pairing) * cos.shape[-1]
    if out is None and xp is not np and array.library_of(xp).rotates_full_width(x) and MAGNITUDES not in turn[:2]:
        return _turned_at_once(x, cos, sin, turn, xp)
    if xp is not np and runs_operators(x, cos, sin, out):
        return _turned_by_operators(x, cos, sin, turn, out, xp)
    if out is None and isinstance(x, np.ndarray):
        out = np.empty(turn.shape(x.shape, cos.shape), x.dtype)

    wide = array.wider_float(x, xp)
    cos, sin = array.astype(cos, wide, xp), array.astype(sin, wide, xp)
    found = turn_blocks(array.astype(x[..., :width], wide, xp), cos, sin, turn, xp)
    first, *second = [array.astype(value, x.dtype, xp) for value in found]
    rest = x[..., width:]

    if out is None:
        joined = join(first, second[0], turn.out_pairing, xp) if second else first
        if width == x.shape[-1]:
            return joined
        return xp.concat([joined, xp.broadcast_to(rest, (*joined.shape[:-1], rest.shape[-1]))], axis=-1)
    if not second:
        out[...] = first
        return out
    both = pair(out[..., : 2 * cos.shape[-1]], turn.out_pairing)
    both[0][...], both[1][...] = first, second[0]
    if width < x.shape[-1] and overlap_of(out, x) is not Overlap.SAME:
        out[..., width:] = rest
    return out


def turn_blocks(z: Array, cos: Array, sin: Array, turn: TurnOptions, xp: ModuleType) -> list[Array]:
    """First features of turned blocks, and the second ones where the result has any."""
    if turn.pairing == MAGNITUDES:
        z = softplus_of(z, xp) if turn.softplus else z
        return [z * cos, z * sin]
    z_1, z_2 = pair(z, turn.pairing)
    first = z_1 * cos - z_2 * sin
    return [first] if turn.out_pairing == MAGNITUDES else [first, z_1 * sin + z_2 * cos]


def softplus_of(x: Array, xp: ModuleType) -> Array:
    """``log(1 + exp(x))``, without overflow and to the digits that small ones have."""
    return xp.logaddexp(x, xp.zeros_like(x[..., :1])) if x.shape[-1] else x


def shared_coefficients(
    x: Array, y: Array, shape: tuple[int, ...], pairing: str, y_pairing: str, xp: ModuleType, softplus: bool = False
) -> tuple[Array, Array]:
    """Sums of ``x . y`` and ``x_1 y_2 - x_2 y_1`` of each block over all rows that share a phase.

    They are what a gradient needs to know of features x and of the gradient y of what they were turned into.

    Parameters
    ----------
    x, y : arrays, (..., 2D), or (..., D) of first features alone
        They have one dtype; the leading axes of both, and of `shape`, broadcast.
    shape : tuple of int
        Shape of the phases, ``(..., D)``.
    pairing, y_pairing : str
        The two features that make a block, in x and in y; `MAGNITUDES` in one of them.
    softplus : bool
        As in `TurnOptions`, for x.

    Returns
    -------
    A, B : arrays of that shape, in the widest float
        In float32 where operators run (`dispatch.runs_operators`), and features are no wider.
    """
    narrow = xp is not np and runs_operators(x, y) and array.dtype_name(x) != "float64"
    if narrow:
        x = array.astype(x, xp.float32, xp)  # that widens what it is multiplied by
    else:
        x, y = array.widen(x, xp), array.widen(y, xp)
    x = softplus_of(x, xp) if softplus else x
    if MAGNITUDES in (pairing, y_pairing):
        many, one, sign = (y, x, 1.0) if pairing == MAGNITUDES else (x, y, -1.0)
        first, second = pair(many, y_pairing if pairing == MAGNITUDES else pairing)
        found = one * first, sign * one * second
    elif narrow:
        (x_1, x_2), (y_1, y_2), add_product = pair(x, pairing), pair(y, y_pairing), array.library_of(xp).add_product
        found = add_product(x_1 * y_1, x_2, y_2), add_product(x_1 * y_2, x_2, y_1, -1.0)
    else:
        found = coefficients_of(pair(x, pairing), pair(y, y_pairing))
    return tuple(sum_to(value, shape, xp) for value in found)


def sum_to(value: Array, shape: tuple[int, ...], xp: ModuleType) -> Array:
    """Undo broadcasting from a shape: sum what was repeated."""
    value = xp.broadcast_to(value, broadcast(value.shape, shape))
    new = value.ndim - len(shape)
    wide = tuple(axis for axis in range(value.ndim) if axis < new or (shape[axis - new] == 1 != value.shape[axis]))
    return xp.reshape(xp.sum(value, axis=wide, keepdims=True), shape) if wide else value


def _turned_at_once(x: Array, cos: Array, sin: Array, turn: TurnOptions, xp: ModuleType) -> Array:
    """Turn for a compiler of whole functions: tables as wide as the features, and both features of a block exchanged.

    XLA makes one loop of that. With its gradients it runs in less time than one over halves that are sliced out and
    joined again, or over tables that are not as wide; `benchmarks.ways` has them all.
    """
    half, wide = cos.shape[-1], array.wider_float(x, xp)
    # blocks, and their two features
    apart, axis = ((half, 2), -1) if turn.pairing == "interleaved" else ((2, half), -2)
    cos, sin, z = array.astype(cos, wide, xp), array.astype(sin, wide, xp), x[..., : 2 * half]
    cos, sin = (
        xp.reshape(xp.stack(both, axis=axis), (*cos.shape[:-1], 2 * half)) for both in ([cos, cos], [-sin, sin])
    )
    exchanged = xp.reshape(xp.flip(xp.reshape(z, (*z.shape[:-1], *apart)), axis=axis), z.shape)
    y = array.astype(z * cos + exchanged * sin, x.dtype, xp)
    if turn.out_pairing != turn.pairing:
        y = xp.reshape(xp.matrix_transpose(xp.reshape(y, (*y.shape[:-1], *apart))), y.shape)
    if 2 * half == x.shape[-1]:
        return y
    rest = x[..., 2 * half :]
    return xp.concat([y, xp.broadcast_to(rest, (*y.shape[:-1], rest.shape[-1]))], axis=-1)


def _turned_by_operators(
    x: Array, cos: Array, sin: Array, turn: TurnOptions, out: Array | None, xp: ModuleType
) -> Array:
    """Turn by three operators of torch, which widen features by themselves and write into the result.

    Features of float32 stay float32: tables and scales in float64 are narrowed, once for all features.
    """
    library, half, shape = array.library_of(xp), cos.shape[-1], turn.shape(x.shape, cos.shape)
    wide = x.dtype if array.dtype_name(x) == "float64" else xp.float32
    cos, sin = array.astype(cos, wide, xp), array.astype(sin, wide, xp)
    apart = out is None or overlap_of(out, x) is Overlap.NONE
    result: Array = array.empty(shape, x, xp) if out is None or not apart else out
    z = x[..., : width_of(turn.pairing) * half]
    turned = result[..., : width_of(turn.out_pairing) * half]
    if turn.pairing == MAGNITUDES:
        z = softplus_of(array.astype(z, cos.dtype, xp), xp) if turn.softplus else z
        for part, wave in zip(pair(turned, turn.out_pairing), (cos, sin), strict=True):
            xp.multiply(z, wave, out=part)
    elif turn.out_pairing == MAGNITUDES:
        first, second = pair(z, turn.pairing)
        library.add_product(first * cos, second, sin, -1.0, turned)
    else:
        axis, apart_2 = (-2, (2, half)) if turn.pairing == "half" else (-1, (half, 2))
        z_1, z_2 = pair(z, turn.pairing)
        both = xp.reshape(z, (*z.shape[:-1], *apart_2)) * xp.expand_dims(cos, axis=axis)
        first, second = pair(turned, turn.out_pairing)
        library.add_product(both.select(axis, 0), z_2, sin, -1.0, first)
        library.add_product(both.select(axis, 1), z_1, sin, 1.0, second)
    if turned.shape != result.shape:
        result[..., turned.shape[-1] :] = x[..., z.shape[-1] :]
    if out is not None and not apart:
        out[...] = result
    return result if out is None else out


def check_out(out: Array, x: Array, shape: tuple[int, ...], name: str, needs_gradient: bool) -> None:
    if not hasattr(out, "dtype"):
        raise TypeError(f"out is {show(out)}; expected an array")
    if array.library(x).is_lazy:
        raise TypeError("out was given, but arrays of this library cannot be written to; expected out=None")
    if tuple(out.shape) != tuple(shape):
        raise ValueError(f"out has shape {tuple(out.shape)}; expected {tuple(shape)}")
    if out.dtype != x.dtype:
        raise TypeError(f"out has dtype {out.dtype!r}; expected the dtype of {name}, {x.dtype!r}")
    if needs_gradient:
        raise TypeError(
            "out was given, but gradients are recorded, which writing in place would lose; expected out=None"
        )
    if not array.library(out).is_writable(out) or has_shared_elements(out):
        raise ValueError(
            "out is read-only, or some of its elements share memory, as in a broadcast view; expected a writable array "
        )
    if overlap_of(out, x) is Overlap.PART:
        expected = f"{name} itself (in place) or memory" if tuple(x.shape) == tuple(shape) else "memory"
        raise ValueError(f"out overlaps {name} in part; expected {expected} of its own")
