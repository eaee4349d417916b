"""Functions for libraries that trace or defer: whole blocks for Dask, derivatives for JAX."""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from rfrope._core import array
from rfrope._core.array import Array


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
