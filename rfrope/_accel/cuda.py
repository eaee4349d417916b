"""The one door to CUDA devices: kernels from the .cu files beside this, compiled by CuPy and launched on its stream.

Leaves for CUDA work on CuPy arrays. A torch tensor is viewed as one through DLPack, without a copy, and everything runs
on torch's current stream. CuPy is imported on first use, so leaves can be looked at, and their kernels run on the CPU
by the tests, on machines without it.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import pathlib
import sys
from collections.abc import Iterator
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np

from rfrope import _array
from rfrope._array import Array

# As the kernels expect: templates, and no multiply-add but where fma() asks for one. CuPy adds the architecture.
OPTIONS = ("--std=c++17", "--fmad=false")
_INCLUDE = '#include "common.cuh"'
_TOOLKIT = (("nvidia.cuda_runtime", "libcudart.so.12"), ("nvidia.cufft", "libcufft.so.11"))
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


@contextlib.contextmanager
def place(x: Array) -> Iterator[None]:
    """Make the device of `x`, and the stream that its library is using there, the current ones of CuPy."""
    cupy = space()
    if isinstance(x, cupy.ndarray):
        with x.device:
            yield
    else:
        stream = sys.modules["torch"].cuda.current_stream(x.device)
        with cupy.cuda.Device(x.device.index), cupy.cuda.ExternalStream(stream.cuda_stream, x.device.index):
            yield


def view(x: Array) -> Any:
    """Return the CuPy array over the memory of `x`; bfloat16 of torch as int16."""
    if not hasattr(x, "data_ptr"):
        return x
    torch = sys.modules["torch"]
    x = x.detach()
    return space().from_dlpack(x.view(torch.int16) if x.dtype == torch.bfloat16 else x)


def doubles(x: Array, xp: ModuleType) -> Any:
    """Return the CuPy array over `x` in float64."""
    return view(_array.as_widest(x, xp))


def address(x: Any) -> int:
    """Address of the first element of a CuPy array."""
    return int(x.data.ptr)


def launch(source: str, kernel: str, blocks: int, threads: int, plan: np.ndarray) -> None:
    """Run a kernel of a .cu file on the current device and stream, with one structure as its argument.

    Parameters
    ----------
    source : str
        Name of the file, without ``.cu``.
    kernel : str
        Name of the function, with its template arguments.
    blocks, threads : int
        Blocks in the grid, and threads in a block.
    plan : ndarray, structured, of one element
        What the kernel is given by value.
    """
    if blocks > 0:
        _kernel(source, kernel)((blocks,), (threads,), (plan,))


@cache
def load_toolkit() -> None:
    """Load CUDA's runtime and FFT from NVIDIA's packages, if they are there.

    cufinufft's library is linked with them, but no search path of the system leads into such packages.
    """
    for package, library in _TOOLKIT:
        with contextlib.suppress(ImportError, OSError):
            found = importlib.util.find_spec(package)
            for folder in (found.submodule_search_locations or ()) if found else ():
                ctypes.CDLL(str(pathlib.Path(folder, "lib", library)), mode=ctypes.RTLD_GLOBAL)


@cache
def text(source: str) -> str:
    """Return all that is to be compiled for a .cu file."""
    common, kernels = (_FOLDER.joinpath(name).read_text("utf-8") for name in ("common.cuh", f"{source}.cu"))
    assert _INCLUDE in kernels
    return kernels.replace(_INCLUDE, common)


@cache
def _kernel(source: str, kernel: str) -> Any:
    """Compile on the first launch; CuPy keeps the result on disk, and loads it for every device it is launched on."""
    module = space().RawModule(code=text(source), options=OPTIONS, name_expressions=(kernel,))
    return module.get_function(kernel)
