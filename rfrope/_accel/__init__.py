"""Accelerators: compiled and fast-transform twins of a few generic functions, and the one lookup that chooses.

A twin has the name and the signature of its generic function and agrees with it. It is optional by construction: where
its leaf, or what the leaf needs, is missing, the generic function runs, with the same result and more slowly.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import Any, TypeVar, cast

from rfrope import _array

Function = TypeVar("Function", bound=Callable[..., Any])

# name of a generic function, without leading underscore -> leaf that holds its twin for arrays in memory of the CPU
_LEAVES: dict[str, str] = {
    "rotated": "rotation",
    "rotated_again": "rotation",
    "rotated_by_phases": "rotation",
    "rotated_by_table": "rotation",
    "table": "rotation",
    "mean_cos": "sums",
    "kernel_moments": "sums",
    "kernel_chunk_length": "sums",
    "score_sums": "estimators",
    "score_chunk_length": "estimators",
    "uniforms": "estimators",
}
# the same for arrays on a CUDA device
_CUDA_LEAVES: dict[str, str] = {
    "rotated": "cuda_rotation",
    "rotated_by_phases": "cuda_rotation",
    "rotated_by_table": "cuda_rotation",
    "table": "cuda_rotation",
    "mean_cos": "cuda_sums",
    "kernel_moments": "cuda_sums",
    "kernel_chunk_length": "cuda_sums",
    "score_sums": "cuda_estimators",
    "score_chunk_length": "cuda_estimators",
    "drawn": "cuda_estimators",
}


def choose(generic: Function, *arrays: Any) -> Function:
    """Return the twin of a function where there is one for such arrays (None counts as fitting), else the function."""
    name = generic.__name__.lstrip("_")
    if all(map(_array.in_memory, arrays)):
        return cast(Function, twin(name) or generic)
    if all(map(_array.on_cuda, arrays)):
        return cast(Function, cuda_twin(name) or generic)
    return generic


@cache
def twin(name: str) -> Callable[..., Any] | None:
    """Return the twin of the generic function of that name, or None where this machine cannot have it, or nobody."""
    if name not in _LEAVES:
        return None
    try:
        return cast(Callable[..., Any], getattr(_leaf(_LEAVES[name]), name))
    except ImportError:
        return None


@cache
def cuda_twin(name: str) -> Callable[..., Any] | None:
    """Return the twin for arrays on a CUDA device, or None where there is none or this machine cannot have it."""
    if name not in _CUDA_LEAVES:
        return None
    try:
        return cast(Callable[..., Any], getattr(_cuda_leaf(_CUDA_LEAVES[name]), name))
    except ImportError:
        return None  # `rfrope doctor` says why


def _leaf(name: str) -> ModuleType:
    return importlib.import_module(f"{__name__}.{name}")


def _cuda_leaf(name: str) -> ModuleType:
    _leaf("cuda").check()
    return _leaf(name)


def report() -> list[dict[str, Any]]:
    """Which accelerators of the CPU this machine has, found by the imports of `twin`: for ``rfrope doctor``."""
    from rfrope._accel import reports

    return reports.on_host(dict.fromkeys(_LEAVES.values()), _leaf)


def cuda_report() -> list[dict[str, Any]]:
    """Which accelerators on CUDA devices this machine has, found by the imports of `cuda_twin`."""
    from rfrope._accel import reports

    return reports.on_cuda(dict.fromkeys(_CUDA_LEAVES.values()), _cuda_leaf)


def compiled(function: Callable[..., Any], **options: Any) -> Any:
    """Compile a loop with Numba on its first call, without the interpreter's lock; keep it on disk where that works.

    Numba's cache looks at the file of the function alone, so all that a loop calls belongs into its file.

    Raises
    ------
    ImportError
        If Numba's compiler is switched off: leaves with such loops are then not there.
    """
    from numba import config, njit

    if config.DISABLE_JIT:
        raise ImportError("NUMBA_DISABLE_JIT is set: these loops exist in compiled form only")
    options |= {"nogil": True, "error_model": "numpy"}
    try:
        return njit(cache=True, **options)(function)
    except RuntimeError:  # no folder for the cache can be written to
        return njit(**options)(function)


def called(function: Callable[..., Any], **options: Any) -> Any:
    """Compile for calls from compiled loops alone, which spares the code that Python would call it by."""
    return compiled(function, no_cpython_wrapper=True, no_cfunc_wrapper=True, **options)


def inlined(function: Callable[..., Any]) -> Any:
    """Compile into the loops that call it: a call would keep them from being vectorised."""
    return called(function, forceinline=True)
