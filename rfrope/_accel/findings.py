"""What ``rfrope doctor`` says of accelerators: what is active, and for the rest why not and what to type next."""

from __future__ import annotations

import importlib
import importlib.util
import pathlib
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from rfrope._core import dispatch
from rfrope._core.libraries import Finding, for_device, reason_of, version_of

_TRANSFORMS = "transforms for sums over many lags"
_WHAT = {"rotation": "rotation, tables", "sums": "sums over lags", "estimators": "score estimates, draws"}


def on_host() -> list[dict[str, Any]]:
    """Findings on leaves for the CPU, each loaded as the lookup loads it, and on the transforms that some use."""
    return [asdict(one) for one in (*map(_compiled, dispatch.CPU._fields), _finufft())]


def on_cuda() -> list[dict[str, Any]]:
    """Findings on leaves for CUDA devices, likewise."""
    return [asdict(one) for one in (*map(_kernels, dispatch.CUDA._fields), _cufinufft())]


def on_torch() -> list[dict[str, Any]]:
    """Findings on operators for torch tensors with gradients or in graphs."""
    return [asdict(_operators(dispatch.TORCH_ROTATION.module))]


def _operators(name: str) -> Finding:
    """Import a leaf, and say what its operators run for tensors of the CPU."""
    title = f"torch operators: {_WHAT.get(name, name)}, with gradients and in graphs"
    if not version_of("torch") and importlib.util.find_spec("torch") is None:
        return Finding(title, False, reason="PyTorch is not installed", advice="pip install 'rfrope[torch]'")
    try:
        dispatch.load(dispatch.Backend("torch", name))
    except ImportError as error:
        return Finding(title, False, reason=reason_of(error), advice="pip install --upgrade torch")
    except BaseException as error:  # the lookup would let it through: all calls of these functions fail
        return Finding(title, False, reason=reason_of(error), advice="pip install --upgrade --force-reinstall torch")
    loops = _compiled(name)
    runs = "the compiled loops, forwards and backwards" if loops.active else "torch's own operators on the CPU, slowly"
    advice = "" if loops.active else "see compiled loops above"
    return Finding(title, True, f"PyTorch {version_of('torch')}; they run {runs}", advice=advice)


def _compiled(name: str) -> Finding:
    title = f"compiled loops: {_WHAT.get(name, name)}"
    try:
        dispatch.load(dispatch.Backend("cpu", name))
    except ImportError as error:
        text = reason_of(error)
        if "NUMBA_DISABLE_JIT" in text:
            return Finding(title, False, reason="NUMBA_DISABLE_JIT is set", advice="unset NUMBA_DISABLE_JIT")
        missing = importlib.util.find_spec("numba") is None
        advice = "pip install numba" if missing else "pip install --upgrade --force-reinstall numba"
        return Finding(title, False, reason="Numba is not installed" if missing else text, advice=advice)
    except BaseException as error:  # the lookup would let it through: all calls of these functions fail
        threads = "NUMBA_NUM_THREADS" in str(error)
        advice = "unset NUMBA_NUM_THREADS" if threads else "pip install --upgrade --force-reinstall numba"
        return Finding(title, False, reason=reason_of(error), advice=advice)
    version = f"Numba {version_of('numba')}"
    failures = importlib.import_module("rfrope._accel.cpu.compiling").examined()
    if failures:
        advice = "free space, or set NUMBA_CACHE_DIR to a folder that can be written to"
        return Finding(title, True, f"{version}, compiled anew where they cannot be kept: {failures[0]}", advice=advice)
    return Finding(title, True, version)


def _kernels(name: str) -> Finding:
    """Import a leaf, and compile one of its kernels for the current device."""
    title = f"CUDA kernels: {_WHAT.get(name, name)}"
    try:
        module = dispatch.load(dispatch.Backend("cuda", name))
    except ImportError as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name == "cupy"
        reason = "CuPy is not installed" if missing else reason_of(error)
        return Finding(title, False, reason=reason, advice="see CuPy above")
    except BaseException as error:
        return Finding(title, False, reason=reason_of(error), advice="see CuPy above")
    try:
        kernel = module.KERNELS[0]
        importlib.import_module("rfrope._accel.cuda.device").kernel(name, kernel)
    except BaseException as error:  # though CuPy may be active, calls of these functions fail
        advice = "pip install --upgrade 'cupy-cuda12x[ctk]', or 'cupy-cuda13x[ctk]': CuPy with its compiler"
        return Finding(title, False, reason=reason_of(error), advice=advice)
    return Finding(title, True, f"compiled for this device ({kernel})")


def _finufft() -> Finding:
    title, version = f"finufft: {_TRANSFORMS}", version_of("finufft")
    if not version and importlib.util.find_spec("finufft") is None:
        return Finding(title, False, reason="not installed", advice="pip install finufft")
    try:
        importlib.import_module("finufft")
    except Exception as error:
        return Finding(title, False, version, reason_of(error), "pip install --force-reinstall finufft")
    return Finding(title, True, version)


def _cufinufft() -> Finding:
    """As the leaf for sums loads it, which keeps to direct sums where it cannot."""
    title, version = f"cufinufft: {_TRANSFORMS}", version_of("cufinufft")
    if not version and importlib.util.find_spec("cufinufft") is None:
        return Finding(title, False, reason="not installed", advice=for_device("pip install cufinufft"))
    try:
        module = dispatch.load(dispatch.Backend("cuda", "sums"))
    except BaseException as error:
        return Finding(title, False, version, reason_of(error), "see CuPy above")
    try:
        if module.nufft() is not None:
            return Finding(title, True, version)
        importlib.import_module("cufinufft")
        reason = "it cannot be used"
    except BaseException as error:
        reason = _not_loaded("cufinufft") or reason_of(error)
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
