"""Memory of arrays: overlap, who may write behind a library's back, and views for compiled loops.

Beside `array` this is the only module that knows array libraries.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import ModuleType
from typing import Any

import numpy as np

from rfrope._core.array import Array, is_cupy, is_lazy
from rfrope._core.tensors import has_values, imported, is_recorded, needs_gradient

_LOOKED_AT = 2**16  # elements of an array whose places are compared one by one
_PLAIN = {type(None), bool, int, float, str, ModuleType}  # kinds of arguments that are not arrays, looked up first


def place(values: Iterable[Any]) -> str:
    """Return the place of all arrays among some values, those in tuples included, as `dispatch` names it, or "".

    "torch" is for tensors whose operations are recorded, for gradients or by a compiler.
    """
    arrays, rest = [], list(values)
    for value in rest:
        kind = type(value)
        if kind is np.ndarray:
            arrays.append(value)
        elif kind in _PLAIN:
            continue
        elif isinstance(value, tuple):
            rest.extend(value)
        elif hasattr(kind, "dtype") and not isinstance(value, np.generic):
            arrays.append(value)
    if all(map(is_cpu_memory, arrays)):
        return "cpu"
    if all(map(is_cuda_memory, arrays)):
        return "cuda"
    return "torch" if all(map(is_recorded, arrays)) else ""


def is_writable(x: Array) -> bool:
    """Return whether the elements of `x` can be assigned to."""
    if isinstance(x, np.ndarray):
        return bool(x.flags.writeable)
    return not is_lazy(x)


def same_memory(a: Array, b: Array) -> bool:
    """Return whether `a` and `b` are one array: the same memory in the same order, so that in-place work is exact."""
    if a is b:
        return True
    first, second = _places(a), _places(b)
    if first is None or second is None or (first.shape, first.strides) != (second.shape, second.strides):
        return False
    return first.ctypes.data == second.ctypes.data and first.itemsize == second.itemsize


def has_shared_elements(x: Array) -> bool:
    """Return whether several elements of `x` share memory, as after broadcasting or in windows that slide.

    Layouts that are neither nested nor small enough to look at every element are taken to share some.
    """
    places = _places(x)
    if places is None or not places.size:
        return False
    axes = sorted((abs(step), length) for step, length in zip(places.strides, places.shape, strict=True) if length > 1)
    reach = places.itemsize  # bytes from the first byte of what the axes so far hold to the last
    for step, length in axes:
        if step < reach:
            return places.size > _LOOKED_AT or _is_hit_twice(axes, places.itemsize)
        reach += step * (length - 1)
    return False


def _is_hit_twice(axes: list[tuple[int, int]], size: int) -> bool:
    """Return whether two elements of a layout, given as steps and lengths in bytes, share a byte."""
    starts = np.zeros(1, np.int64)
    for step, length in axes:
        starts = (starts[:, None] + step * np.arange(length)).reshape(-1)
    return bool(np.any(np.diff(np.sort(starts)) < size))


def may_overlap(a: Array, b: Array) -> bool:
    """Return whether `a` and `b` may share memory, by their address ranges where it cannot be decided exactly."""
    first, second = _places(a), _places(b)
    if first is None or second is None:
        return False
    try:
        return np.shares_memory(first, second, max_work=10_000)  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True


def _places(x: Array) -> np.ndarray | None:
    """NumPy array at the addresses of the elements of `x`, to compare and not to read: they may be on a device.

    None if they cannot be found out.
    """
    x = getattr(x, "_array", x)  # array-api-strict
    if isinstance(x, np.ndarray):
        return x
    if is_cupy(x):
        return np.asarray(_Addresses(x.data.ptr, x.shape, x.strides, x.itemsize))
    if not hasattr(x, "data_ptr") or not x.data_ptr():  # without elements, or without memory
        return None
    size = x.element_size()
    return np.asarray(_Addresses(x.data_ptr(), tuple(x.shape), tuple(size * step for step in x.stride()), size))


class _Addresses:
    """Array interface by which NumPy makes an array of memory that it does not own."""

    def __init__(self, address: int, shape: tuple[int, ...], strides: tuple[int, ...], size: int) -> None:
        self.__array_interface__ = {
            "version": 3,
            "data": (address, True),
            "shape": shape,
            "strides": strides,
            "typestr": f"|V{size}",
        }


def is_cpu_memory(x: Array) -> bool:
    """Return whether compiled loops of the CPU may read and write the memory of `x` behind its library's back.

    None and floats fit: they are not in memory. An array may start anywhere: backends read and write features at any
    byte, and copy what is smaller to aligned memory.
    """
    if x is None or isinstance(x, float):
        return True
    if type(x) is np.ndarray:
        return x.dtype.isnative
    return hasattr(x, "data_ptr") and has_values(x, "cpu") and _is_plain(x)


def is_cuda_memory(x: Array) -> bool:
    """Return whether CUDA kernels of our own may read and write the memory of `x` behind its library's back.

    None and floats fit: they are not in memory.
    """
    if x is None or isinstance(x, float) or is_cupy(x):
        return True
    if type(x) is np.ndarray:
        return False
    return hasattr(x, "data_ptr") and has_values(x, "cuda") and _is_plain(x)


def _is_plain(x: Array) -> bool:
    """Return whether a torch tensor with values is nothing but its memory: no gradient, tangent, trace or lazy sign."""
    torch = imported("torch")
    if needs_gradient(x) or x.layout is not torch.strided or x.is_neg() or x.is_conj() or torch.jit.is_tracing():
        return False
    return torch.autograd.forward_ad.unpack_dual(x).tangent is None


def written(x: Array) -> None:
    """Tell the library of `x` that its memory was written to behind its back."""
    if hasattr(x, "data_ptr") and not x.is_inference():
        imported("torch").autograd.graph.increment_version(x)


def sealed(host: np.ndarray) -> np.ndarray:
    """Return a copy that nobody can write to, for what is made from its values once: bytes, which no flag opens."""
    return np.ndarray(host.shape, host.dtype, host.tobytes())


def view_as_numpy(x: Array) -> np.ndarray:
    """Return the NumPy array that views the memory of `x` (see `is_cpu_memory`); bfloat16 of torch as int16."""
    if isinstance(x, np.ndarray):
        return x
    torch = imported("torch")
    return (x.detach().view(torch.int16) if x.dtype == torch.bfloat16 else x.detach()).numpy()
