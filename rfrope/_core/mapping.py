"""Functions mapped over arrays: by element, by blocks of Dask, with a derivative for JAX, or on the host."""

from __future__ import annotations

import functools
import importlib
import itertools
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from rfrope._core import array, tensors
from rfrope._core.array import Array
from rfrope._core.capacity import spans


def special_functions(xp: ModuleType) -> Any:
    """Return the module of special functions that take the arrays of `xp` where they are, or None."""
    name = {"numpy": "scipy.special", "cupy": "cupyx.scipy.special"}.get(array.library_of(xp))
    return name and importlib.import_module(name)


def map_blocks(function: Callable[[Array, ModuleType], Array], x: Array, xp: ModuleType) -> Array:
    """Return ``function(x, xp)`` for an elementwise function of many operations: one task a block for Dask."""
    if array.library_of(xp) != "dask":
        return function(x, xp)
    return x.map_blocks(lambda block: function(block, array.namespace(block=block)), dtype=x.dtype)


def map_spans(
    call: Callable[[slice], Array], count: int, like: Array, xp: ModuleType, *, each: int = 1, axis: int = -1
) -> Array:
    """Return what a call gives for spans of `count` things, joined along the first axis or the last (`axis` 0 or -1).

    The result must not depend on how it is cut. Where there are many, of `each` numbers, no call into a library takes
    long, so that interrupts are seen; arrays `like` those of lazy libraries are not cut.
    """
    cuts = [slice(0, count)] if array.is_lazy(like) else list(spans(count, each))
    if len(cuts) == 1:
        return call(cuts[0])
    return joined(map(call, cuts), count, xp, axis=axis)


def joined(parts: Iterable[Array], count: int, xp: ModuleType, *, axis: int = -1) -> Array:
    """Join parts, `count` things in all, along the first axis or the last."""
    if xp is not np:
        return xp.concat(list(parts), axis=axis)
    found, start = np.empty(0), 0
    for part in parts:
        if not start:
            shape = (count, *part.shape[1:]) if axis == 0 else (*part.shape[:-1], count)
            found = np.empty(shape, part.dtype)
        stop = start + part.shape[axis]
        found[(slice(start, stop),) if axis == 0 else (..., slice(start, stop))] = part
        start = stop
    return found


def map_on_host(
    function: Callable[[np.ndarray], np.ndarray], x: Array, xp: ModuleType, name: str, *, last_axis: int | None = None
) -> Array:
    """Apply a NumPy function to an array of any library, for special functions that only SciPy has.

    The function must work elementwise, or (with `last_axis`) along the last axis, whose new length `last_axis` is; 0
    drops the axis. `name` is that of the argument. Dask and JAX stay lazy (JAX through `jax.pure_callback`, without
    derivatives).

    Raises
    ------
    TypeError
        For a torch tensor that asks for gradients, which a trip through the host would silently drop.
    """
    if isinstance(x, np.ndarray):
        return function(x)
    if tensors.needs_gradient(x):
        raise TypeError(f"{name} asks for a gradient, which SciPy on the host has not; expected {name}.detach()")
    library = array.library_of(xp)
    if library == "dask":
        if last_axis is None:
            return x.map_blocks(function, dtype=x.dtype)
        x = x.rechunk({x.ndim - 1: -1})
        if last_axis == 0:
            return x.map_blocks(function, dtype=x.dtype, drop_axis=x.ndim - 1)
        return x.map_blocks(function, dtype=x.dtype, chunks=(*x.chunks[:-1], (last_axis,)))
    if library == "jax":
        import jax

        shape = x.shape if last_axis is None else x.shape[:-1] + ((last_axis,) if last_axis else ())
        result = jax.ShapeDtypeStruct(shape, x.dtype)
        return jax.pure_callback(
            lambda v: np.asarray(function(np.asarray(v)), dtype=x.dtype), result, x, vmap_method="expand_dims"
        )
    host = np.asarray(function(array.to_host(x, name)))
    return array.from_host(host, xp, device=array.device(x), dtype=x.dtype)


# -- whole blocks for Dask, derivatives for JAX ------------------------------------------------------------------------


class Constant(NamedTuple):
    """An array of NumPy that broadcasts against some leading axes of features.

    Attributes
    ----------
    values : numpy.ndarray, (*leading, *own)
    own : int
        How many of its last axes are its own.
    before : int
        How many of the features' last axes its leading axes end before: 1 for tokens, 2 for heads.
    """

    values: np.ndarray
    own: int = 1
    before: int = 1


@dataclass(frozen=True)
class _Call:
    """A function of features and constants as one of positional arrays: picklable, as the function is."""

    function: Callable[..., Any]
    names: tuple[str, ...]
    options: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, x: Array, *constants: Array) -> Array:
        return self.function(x, **dict(zip(self.names, constants, strict=True)), **self.options)


def space_of_constants(xp: ModuleType, constants: Mapping[str, Any]) -> ModuleType:
    """Return where the constants of a call belong: NumPy beside an array of Dask, unless one is lazy itself."""
    if xp is np or array.library_of(xp) != "dask" or any(map(array.is_lazy, constants.values())):
        return xp
    return np


def map_chunks(
    function: Callable[..., Any], x: Array, constants: Mapping[str, Constant], options: Mapping[str, Any]
) -> Array:
    """Map a function over the blocks of a Dask array, in one task each, with the parts of constants that fall there.

    Parameters
    ----------
    function : callable
        ``function(block, **constants, **options)``, picklable; it leaves a block its shape and dtype.
    x : dask.array.Array, (..., d)
        The last axis becomes one block.
    constants : mapping
        By name; they are cut as `x` is.
    options : mapping
        What is the same everywhere.
    """
    dask = sys.modules["dask.array"]
    x = x if x.numblocks[-1] == 1 else x.rechunk({-1: -1})
    axes, fresh = tuple(range(x.ndim)), itertools.count(x.ndim)
    arguments: list[Any] = [x, axes]
    for values, own, before in constants.values():
        leading = values.ndim - own
        chunks, names = [], []
        for axis, length in enumerate(values.shape):
            shared = axis < leading and length > 1
            place = x.ndim - before - leading + axis
            chunks.append(x.chunks[place] if shared else (length,))
            names.append(place if shared else next(fresh))
        arguments += [dask.from_array(values, chunks=tuple(chunks)), tuple(names)]
    call = _Call(function, tuple(constants), options)
    given = {"dtype": x.dtype, "meta": x._meta, "concatenate": True, "align_arrays": False}
    made: Array = dask.blockwise(call, axes, *arguments, token=function.__name__.strip("_"), **given)
    return made


@functools.cache
def attach_derivative(turn: Callable[..., tuple[Array, Array]], slope: Callable[..., Array]) -> Callable[..., Any]:
    """Return ``turn(*arrays) -> (cos, sin)`` of a phase with the derivative that it has in JAX.

    Parameters
    ----------
    turn : callable
        Its arithmetic, which no derivative need be taken of.
    slope : callable
        ``slope(arrays, changes)``: by how much the phase changes, for changes of the arrays that may be None.
    """
    import jax

    stated = jax.custom_jvp(turn)

    def rule(arrays: Any, changes: Any) -> Any:
        none = jax.custom_derivatives.SymbolicZero
        cos, sin = stated(*arrays)
        change = slope(arrays, tuple(None if isinstance(one, none) else one for one in changes))
        return (cos, sin), (-sin * change, cos * change)

    stated.defjvp(rule, symbolic_zeros=True)
    made: Callable[..., Any] = stated
    return made
