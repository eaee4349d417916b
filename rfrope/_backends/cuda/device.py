"""The one way to CUDA devices: kernels from the .cu files beside this, compiled by CuPy and launched on its stream.

Leaves for CUDA work on CuPy arrays. A torch tensor is viewed as one through DLPack, without a copy, and everything runs
on torch's current stream. CuPy is imported on first use, so leaves can be looked at, and their kernels run on the CPU
by the tests, on machines without it.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import pathlib
import sys
import threading
import warnings
from collections.abc import Callable, Hashable, Iterator
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np

from rfrope._core import array
from rfrope._core.array import Array

# As the kernels expect: templates, and no multiply-add but where fma() asks for one. CuPy adds the architecture.
OPTIONS = ("--std=c++17", "--fmad=false")
_OLDEST = {12: 70, 13: 75}  # by NVRTC: Volta, which has __grid_constant__, and Turing
_INCLUDE = '#include "common.cuh"'
_MOST_CACHED, _MOST_BYTES = 1024, 2**26
_FOLDER = pathlib.Path(__file__).parent


def space() -> ModuleType:
    """Return CuPy.

    Raises
    ------
    ImportError
        If it is not installed, or cannot be imported.
    """
    import cupy

    return cupy


@cache
def check() -> None:
    """See whether the kernels can be compiled and run here, once.

    Raises
    ------
    ImportError
        If not, with the reason: no CuPy, or one for ROCm, no device that its driver and runtime know, one that is too
        old, no compiler.
    """
    cupy = space()
    if getattr(cupy.cuda.runtime, "is_hip", False):
        raise ImportError("CuPy is built for ROCm, and the kernels for CUDA")
    try:
        runtime = cupy.cuda.runtime
        found = [runtime.getDeviceProperties(i) for i in range(runtime.getDeviceCount())]
        oldest = min(10 * one["major"] + one["minor"] for one in found)
        toolkit, _ = importlib.import_module("cupy_backends.cuda.libs.nvrtc").getVersion()
    except Exception as error:  # from CUDA's runtime, or from the loader
        raise ImportError(f"{type(error).__name__}: {error}") from error
    if oldest < (needed := _OLDEST[max(12, min(toolkit, 13))]):
        raise ImportError(f"compute capability {oldest / 10}; CUDA {toolkit} needs {needed / 10} on every device")


@contextlib.contextmanager
def place(x: Array) -> Iterator[None]:
    """Make the device of `x`, and the stream that its library is using there, the current ones of CuPy."""
    stream = array.library(x).stream(x)
    if stream is None:
        with x.device:
            yield
    else:
        with space().cuda.Device(x.device.index), stream_of(stream):
            yield


def stream_of(stream: Any) -> Any:
    """Return the stream of CuPy that is a stream of torch."""
    cuda = space().cuda
    if hasattr(cuda.Stream, "from_external") and hasattr(stream, "__cuda_stream__"):
        return cuda.Stream.from_external(stream)
    with warnings.catch_warnings():  # what older versions of either library need, newer ones of CuPy warn about
        warnings.simplefilter("ignore", DeprecationWarning)
        return cuda.ExternalStream(stream.cuda_stream, stream.device_index)


def view(x: Array) -> Any:
    """Return the CuPy array over the memory of `x`; bfloat16 of torch as int16."""
    bits = array.library(x).detach_as_int16(x)
    return x if bits is x else space().from_dlpack(bits)


def doubles(x: Array, xp: ModuleType) -> Any:
    """Return the CuPy array over `x` in float64."""
    return view(array.widen(x, xp))


def address(x: Any) -> int:
    """Address of the first element of a CuPy array."""
    return int(x.data.ptr)


# What stays on devices, in the order in which it was last asked for
_CACHED: dict[Hashable, Any] = {}
_CACHING = threading.RLock()


def cached(key: Hashable, make: Callable[[], Any]) -> Any:
    """Return what stays on a device, such as a law's tables of up to a megabyte, made when it is first asked for."""
    with _CACHING:
        found = _CACHED.pop(key, None)
        if found is None:
            found = make()
            _evict()
        if found is not None:
            _CACHED[key] = found
    return found


def _evict() -> None:
    """Give back what was asked for longest ago, while there is no room for more.

    An array goes once nobody else holds it, so that whoever read it has queued that, and once its device has done so.
    """
    excess = len(_CACHED) + 1 - _MOST_CACHED, sum([one.nbytes for one in _CACHED.values()]) - _MOST_BYTES
    for key in [*_CACHED] if max(excess) > 0 else ():
        if sys.getrefcount(_CACHED[key]) <= 2:  # the memory's and the argument's
            view(_CACHED[key]).device.synchronize()
            excess = excess[0] - 1, excess[1] - _CACHED.pop(key).nbytes
        if max(excess) <= 0:
            break


def launch(source: str, name: str, blocks: int, threads: int, plan: np.ndarray) -> None:
    """Run a kernel of a .cu file, with its template arguments, on the current device and stream, with a plan."""
    if blocks > 0:
        kernel(source, name)((blocks,), (threads,), (plan,))


@cache
def text(source: str) -> str:
    """Return everything that is to be compiled for a .cu file."""
    common, kernels = (_FOLDER.joinpath(name).read_text("utf-8") for name in ("common.cuh", f"{source}.cu"))
    assert _INCLUDE in kernels
    return kernels.replace(_INCLUDE, common)


@cache
def kernel(source: str, name: str) -> Any:
    """Compile on the first launch; CuPy keeps the result on disk, and loads it for every device it is launched on."""
    module = space().RawModule(code=text(source), options=OPTIONS, name_expressions=(name,))
    return module.get_function(name)
