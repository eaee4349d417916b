"""Places that have backends here: loops for the CPU, and CUDA's kernels, whose text g++ compiles and the CPU runs."""

import contextlib
import importlib
from types import ModuleType
from typing import Any

import pytest
from emulator import COMPILER, NO_COMPILER, emulation

from rfrope._core import dispatch
from rfrope.rotation import turning

PLACES = ("cpu", "cuda")
NO_LOOPS = "compiled loops need Numba, with its compiler on"


def backend(place: str, name: str) -> ModuleType:
    """Return the module of a place's backend, or skip the test where it cannot work."""
    if place == "cuda" and COMPILER is None:
        pytest.skip(NO_COMPILER)
    if place == "cpu" and dispatch.backend_function(turning.rotated, "cpu") is None:
        pytest.skip(NO_LOOPS)
    return importlib.import_module(f"rfrope._backends.{place}.{name}")


def at_work(place: str, **options: Any) -> contextlib.AbstractContextManager[Any]:
    """Context in which a place's functions can be called with arrays of NumPy."""
    return emulation(**options) if place == "cuda" else contextlib.nullcontext()
