"""Records of JAX, Dask and MLX, which trace or defer: functions mapped over blocks, called back, given a derivative."""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from rfrope._core.libraries import Array, Library, imported


class _Lazy(Library):
    is_lazy = True

    def device(self, x: Array) -> Any:
        return None

    def from_host(self, host: np.ndarray, xp: ModuleType, device: Any, dtype: Any) -> Array:
        return xp.asarray(host, dtype=dtype)

    def has_values(self, x: Array) -> bool:
        return False

    def has_host_values(self, x: Array) -> bool:
        return False

    def is_writable(self, x: Array) -> bool:
        return False


class _Jax(_Lazy):
    wraps_integers = True
    space = maker = "jax.numpy"
    more_bits = "jax.config.update('jax_enable_x64', True)"

    def rotates_full_width(self, x: Array) -> bool:
        """Its compiler sees whole functions, and makes one loop of that."""
        return True

    def eager(self, x: Array) -> AbstractContextManager[Any]:
        """Values stay at hand."""
        if self.is_traced(x):
            return nullcontext()
        return imported("jax").ensure_compile_time_eval()

    def to_host(self, x: Array, name: str) -> np.ndarray:
        if self.is_traced(x):
            raise TypeError(
                f"{name} is being traced by JAX and has no values yet; expected a call outside jit, grad or vmap"
            )
        return np.asarray(x)

    def detach_as_int16(self, x: Array) -> Array:
        return imported("jax").lax.stop_gradient(x)

    def is_traced(self, x: Array) -> bool:
        jax = imported("jax")
        return jax is not None and isinstance(x, jax.core.Tracer)

    def is_readable(self, x: Array) -> bool:
        return not self.is_traced(x) and x.is_fully_addressable and all([d.platform == "cpu" for d in x.devices()])

    def split(self, x: Array, factor: float, xp: ModuleType) -> tuple[Array, Array]:
        """Round the mantissa: a compiler may fuse the usual formula into a multiply-add, which makes the rest zero."""
        bits, exponent = (25, 11) if x.dtype == xp.float64 else (11, 8)
        high = imported("jax").lax.reduce_precision(x, exponent, bits)
        return high, x - high

    def make_complex(self, real: Array, imag: Array, dtype: Any, xp: ModuleType) -> Array:
        return imported("jax").lax.complex(real, imag)

    def map_on_host(self, function: Callable[[np.ndarray], np.ndarray], x: Array, last_axis: int | None) -> Array:
        """Call it back from compiled code, without derivatives."""
        jax = imported("jax")
        shape = x.shape if last_axis is None else x.shape[:-1] + ((last_axis,) if last_axis else ())
        result = jax.ShapeDtypeStruct(shape, x.dtype)
        return jax.pure_callback(
            lambda v: np.asarray(function(np.asarray(v)), dtype=x.dtype), result, x, vmap_method="expand_dims"
        )

    @functools.cache  # noqa: B019 - there is one record
    def attach_derivative(
        self, turn: Callable[..., tuple[Array, Array]], slope: Callable[..., Array]
    ) -> Callable[..., tuple[Array, Array]]:
        """Return ``turn(*arrays) -> (cos, sin)`` of a phase with a derivative of its own.

        ``slope(arrays, changes)`` is by how much the phase changes, for changes of the arrays that may be None.
        """
        jax = imported("jax")
        stated = jax.custom_jvp(turn)

        def rule(arrays: Any, changes: Any) -> Any:
            none = jax.custom_derivatives.SymbolicZero
            cos, sin = stated(*arrays)
            change = slope(arrays, tuple(None if isinstance(one, none) else one for one in changes))
            return (cos, sin), (-sin * change, cos * change)

        stated.defjvp(rule, symbolic_zeros=True)
        return stated


class Constant(NamedTuple):
    """An array of NumPy that broadcasts against some leading axes of features."""

    values: np.ndarray  # (*leading, *own)
    own: int = 1  # how many of its last axes are its own
    before: int = 1  # how many of the features' last axes its leading axes end before: 1 for tokens, 2 for heads


def _call(
    function: Callable[..., Any], names: tuple[str, ...], options: Mapping[str, Any], x: Array, *constants: Array
) -> Array:
    """Call a function of features and constants with these by position."""
    return function(x, **dict(zip(names, constants, strict=True)), **options)


class _Dask(_Lazy):
    space = "array_api_compat.dask.array"
    maker = "dask.array"

    def namespace(self, x: Any, name: str) -> ModuleType:
        if any(length != length for length in x.shape):  # NaN
            raise ValueError(
                f"{name} has lengths that are not known; expected known ones: {name}.compute_chunk_sizes()"
            )
        return super().namespace(x, name)

    def map_on_host(self, function: Callable[[np.ndarray], np.ndarray], x: Array, last_axis: int | None) -> Array:
        if last_axis is None:
            return x.map_blocks(function, dtype=x.dtype)
        x = x.rechunk({x.ndim - 1: -1})
        if last_axis == 0:
            return x.map_blocks(function, dtype=x.dtype, drop_axis=x.ndim - 1)
        return x.map_blocks(function, dtype=x.dtype, chunks=(*x.chunks[:-1], (last_axis,)))

    def map_chunks(
        self,
        function: Callable[..., Any],
        x: Array,
        constants: Mapping[str, Constant],
        options: Mapping[str, Any],
        width: int | None = None,
    ) -> Array:
        """Map a function over the blocks of an array, with the parts of constants that fall there.

        Parameters
        ----------
        function : callable
            ``function(block, **constants, **options)``, picklable; it leaves a block its dtype, and its shape but for
            a new width.
        x : dask.array.Array, (..., d)
            The last axis becomes one block.
        constants : mapping
            By name; they are cut as `x` is.
        options : mapping
            What is the same everywhere.
        width : int, optional
            Length of the result's last axis, where it is not that of `x`.
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
        call = functools.partial(_call, function, tuple(constants), options)
        kept = {"dtype": x.dtype, "meta": x._meta, "concatenate": True, "align_arrays": False}
        if width is not None:
            kept["adjust_chunks"] = {axes[-1]: width}
        return dask.blockwise(call, axes, *arguments, token=function.__name__.strip("_"), **kept)


class _Mlx(_Lazy):
    """Computed when somebody looks, which inside of transformations nobody may; parts of an array are copies."""

    wraps_integers = rounds_frequencies = True

    def detach_as_int16(self, x: Array) -> Array:
        return imported("mlx.core").stop_gradient(x)


JAX, DASK, MLX = _Jax(), _Dask(), _Mlx()
