"""What ``rfrope doctor`` says of accelerators: what is active, and for the rest why not and what to type next."""

from __future__ import annotations

import importlib
import importlib.util
import pathlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from types import ModuleType
from typing import Any

from rfrope._libraries import Finding, for_device, told, version_of

_TRANSFORMS = "transforms for sums over many lags"
_WHAT = {"rotation": "rotation, tables", "sums": "sums over lags", "estimators": "score estimates, draws"}


def of(
    leaves: tuple[str, ...],
    cuda_leaves: tuple[str, ...],
    leaf: Callable[[str], ModuleType],
    cuda_leaf: Callable[[str], ModuleType],
) -> list[dict[str, Any]]:
    """Findings on all leaves, each loaded as the lookup loads it, and on the transforms that some of them use."""
    found = [_compiled(name, leaf) for name in leaves]
    found.append(_finufft())
    found += [_kernels(name, cuda_leaf) for name in cuda_leaves]
    found.append(_cufinufft(leaf))
    return [asdict(one) for one in found]


def _compiled(name: str, leaf: Callable[[str], ModuleType]) -> Finding:
    title = f"compiled loops: {_WHAT.get(name, name)}"
    try:
        leaf(name)
    except ImportError as error:
        text = told(error)
        if "NUMBA_DISABLE_JIT" in text:
            return Finding(title, False, reason="NUMBA_DISABLE_JIT is set", advice="unset NUMBA_DISABLE_JIT")
        missing = importlib.util.find_spec("numba") is None
        advice = "pip install numba" if missing else "pip install --upgrade --force-reinstall numba"
        return Finding(title, False, reason="Numba is not installed" if missing else text, advice=advice)
    except Exception as error:  # the lookup would let it through: all calls of these functions fail
        return Finding(title, False, reason=told(error), advice="pip install --upgrade --force-reinstall numba")
    return Finding(title, True, f"Numba {version_of('numba')}")


def _kernels(name: str, cuda_leaf: Callable[[str], ModuleType]) -> Finding:
    """Import a leaf, and compile one of its kernels for the current device."""
    source = name.removeprefix("cuda_")
    title = f"CUDA kernels: {_WHAT.get(source, source)}"
    try:
        module = cuda_leaf(name)
    except ImportError as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name == "cupy"
        reason = "CuPy is not installed" if missing else told(error)
        return Finding(title, False, reason=reason, advice="see CuPy above")
    except Exception as error:
        return Finding(title, False, reason=told(error), advice="see CuPy above")
    try:
        kernel = module.KERNELS[0]
        importlib.import_module("rfrope._accel.cuda")._kernel(source, kernel)
    except Exception as error:
        return Finding(title, False, reason=told(error), advice="see CuPy above")
    return Finding(title, True, f"compiled for this device ({kernel})")


def _finufft() -> Finding:
    title, version = f"finufft: {_TRANSFORMS}", version_of("finufft")
    if not version and importlib.util.find_spec("finufft") is None:
        return Finding(title, False, reason="not installed", advice="pip install finufft")
    try:
        importlib.import_module("finufft")
    except Exception as error:
        return Finding(title, False, version, told(error), "pip install --force-reinstall finufft")
    return Finding(title, True, version)


def _cufinufft(leaf: Callable[[str], ModuleType]) -> Finding:
    """As the leaf for sums loads it, which keeps to direct sums where it cannot."""
    title, version = f"cufinufft: {_TRANSFORMS}", version_of("cufinufft")
    if not version and importlib.util.find_spec("cufinufft") is None:
        return Finding(title, False, reason="not installed", advice=for_device("pip install cufinufft"))
    try:
        module = leaf("cuda_sums")
        if module._nufft() is not None:
            try:
                module.cuda.space().cuda.runtime.getDeviceCount()
            except Exception as error:
                return Finding(title, False, version, told(error), "see CuPy above")
            return Finding(title, True, version)
        importlib.import_module("cufinufft")
        reason = "it cannot be used"
    except Exception as error:
        reason = _not_loaded("cufinufft") or told(error)
    advice = for_device("pip install nvidia-cuda-runtime-cu12 nvidia-cufft-cu12")
    return Finding(title, False, version, reason, advice)


def _not_loaded(name: str) -> str:
    """What the system says when it loads the shared library of a package that cannot be imported."""
    import ctypes

    with suppress(Exception):
        folder = pathlib.Path(str(importlib.util.find_spec(name).origin)).parent  # type: ignore[union-attr]
        for path in sorted(folder.glob(f"lib{name}*.so*")):
            try:
                ctypes.CDLL(str(path))
            except OSError as error:
                return f"its library does not load: {error}"
    return ""
