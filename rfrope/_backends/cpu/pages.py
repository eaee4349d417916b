"""Large results in large pages of memory.

A page of 4 KB that is written for the first time costs a fault. NumPy asks Linux for pages of 2 MB where it makes a
large array; PyTorch's allocator does not, and more than a third of the time of a large rotation went into faults (180
and 119 ms without and with large pages: float32 of ``python -m benchmarks.torch_layers --only "polar features,
forward"`` before and at the commit that brought them, on two threads of a quiet Intel processor).
"""

from __future__ import annotations

import ctypes
import mmap
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np

from rfrope._core import array
from rfrope._core.array import Array

LARGE = 2**23  # bytes; smaller results fit a cache, and NumPy's limit is 4 MB
_ADVICE = getattr(mmap, "MADV_HUGEPAGE", None)  # Linux alone


@cache
def _madvise() -> Any:
    function = ctypes.CDLL(None).madvise
    function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return function


def request_large_pages(made: Array, xp: ModuleType) -> Array:
    """Return a new array, after a request for large pages if it is large and not NumPy's; some systems have none."""
    if xp is np or _ADVICE is None:
        return made
    memory = array.view_as_numpy(made)
    if memory.nbytes >= LARGE:
        start = memory.ctypes.data + -memory.ctypes.data % mmap.PAGESIZE
        _madvise()(start, memory.ctypes.data + memory.nbytes - start, _ADVICE)
    return made
