"""The array libraries and devices that this machine has, and why others are not active: probes for ``rfrope doctor``.

This is the only place that imports optional libraries to find out whether they work. Every probe runs in a process of
its own, because a broken library may end its process, or never return.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import Any

_PATIENCE = 120.0  # seconds
# Give the paths of this process to another one, call a function there, and keep what libraries print out of the answer
_ELSEWHERE = """
import importlib, json, os, sys
sys.path[:] = json.loads(sys.argv[1])
answer = os.fdopen(os.dup(1), "w", encoding="utf-8")
os.dup2(2, 1)
answer.write(json.dumps(getattr(importlib.import_module(sys.argv[2]), sys.argv[3])()))
answer.flush()
os._exit(0)
"""
_QUIET = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONWARNINGS": "ignore"}


@dataclass(frozen=True)
class Finding:
    """What a probe found.

    Attributes
    ----------
    name : str
    active : bool
        Whether rfrope can use it here.
    detail : str
        Version, and what it has.
    reason : str
        Why it is not active.
    advice : str
        What to type next.
    devices : tuple of dict
        Name, compute capability and bytes of memory of each.
    """

    name: str
    active: bool
    detail: str = ""
    reason: str = ""
    advice: str = ""
    devices: tuple[dict[str, Any], ...] = ()


def libraries() -> Iterator[Finding]:
    """Yield a finding, or some, for each array library."""
    for name, function in (
        ("NumPy", "probe_numpy"),
        ("SciPy", "probe_scipy"),
        ("PyTorch", "probe_torch"),
        ("JAX", "probe_jax"),
        ("Dask", "probe_dask"),
        ("CuPy", "probe_cupy"),
    ):
        yield from apart(name, __name__, function)


def apart(name: str, module: str, function: str) -> Iterator[Finding]:
    """Yield the findings of a function without arguments that is called in a process of its own.

    Parameters
    ----------
    name : str
        What to call the finding if no answer comes.
    module, function : str
        Where the function is; it returns findings as dictionaries.
    """
    # -P: python -c would look for the modules of its first line in the current folder
    command = [sys.executable, "-P", "-c", _ELSEWHERE, json.dumps(sys.path), module, function]
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=_PATIENCE, stdin=subprocess.DEVNULL, env=os.environ | _QUIET
        )
        answer = json.loads(done.stdout) if done.returncode == 0 else []
        reason = "" if answer else _ended(done.returncode, done.stderr.decode(errors="replace"))
    except subprocess.TimeoutExpired:
        answer, reason = [], f"no answer in {_PATIENCE:.0f} s"
    except (OSError, ValueError) as error:
        answer, reason = [], reason_of(error)
    for one in answer:
        yield Finding(**one | {"devices": tuple(one["devices"])})
    if reason:
        yield Finding(name, False, reason=reason, advice="reinstall it with pip, or uninstall it")


def _ended(code: int, errors: str) -> str:
    if code < 0:
        with suppress(ValueError):
            return f"importing it ends the process ({signal.Signals(-code).name})"
    last = errors.strip().splitlines()[-1:] or [f"exit code {code}"]
    return f"importing it ends the process ({last[0]:.200})"


def reason_of(error: BaseException) -> str:
    """Return what an error, or the first cause of it, says, in one line."""
    while error.__cause__ is not None:
        error = error.__cause__
    text = next((line.strip() for line in str(error).splitlines() if line.strip(" =-")), "")
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def version_of(*distributions: str) -> str:
    """Version of the first of some distributions that is installed; empty where none is."""
    for name in distributions:
        with suppress(Exception):  # metadata may be broken too
            if version := metadata.version(name):
                return version
    return ""


def _installed(module: str, *distributions: str) -> bool:
    with suppress(Exception):
        return bool(version_of(*distributions)) or importlib.util.find_spec(module) is not None
    return False


def found(name: str, module: str, distribution: str, install: str, look: Callable[[Any], Finding]) -> Finding:
    """Import a library if it is installed, and look at it; whatever it raises becomes the reason of a finding."""
    if not _installed(module, distribution):
        return Finding(name, False, reason="not installed", advice=install)
    try:
        return look(importlib.import_module(module))
    except BaseException as error:
        advice = f"pip install --force-reinstall {distribution}"
        return Finding(name, False, version_of(distribution), reason_of(error), advice)


def _plain(name: str, module: str, distribution: str, install: str) -> list[dict[str, Any]]:
    return [asdict(found(name, module, distribution, install, lambda _: Finding(name, True, version_of(distribution))))]


def probe_numpy() -> list[dict[str, Any]]:
    """NumPy."""
    return _plain("NumPy", "numpy", "numpy", "pip install numpy")


def probe_scipy() -> list[dict[str, Any]]:
    """SciPy, by the part that kernels use."""
    return _plain("SciPy", "scipy.special", "scipy", "pip install scipy")


def probe_dask() -> list[dict[str, Any]]:
    """Dask, by the part that holds arrays."""
    return _plain("Dask", "dask.array", "dask", "pip install 'rfrope[dask]'")


def probe_jax() -> list[dict[str, Any]]:
    """JAX: where it computes, and whether it has float64."""

    def look(jax: Any) -> Finding:
        wide = jax.config.jax_enable_x64
        detail = f"{jax.__version__}; on {jax.default_backend()}; float64 {'on' if wide else 'off'}"
        return Finding("JAX", True, detail, advice="" if wide else "export JAX_ENABLE_X64=1 (for float64)")

    return [asdict(found("JAX", "jax", "jax", "pip install 'rfrope[jax]'", look))]


def probe_torch() -> list[dict[str, Any]]:
    """PyTorch, and PyTorch on CUDA devices."""
    on_cuda: list[Finding] = []

    def look(torch: Any) -> Finding:
        with suppress(Exception):
            on_cuda.append(_torch_on_cuda(torch))
        return Finding("PyTorch", True, str(torch.__version__))

    first = found("PyTorch", "torch", "torch", "pip install 'rfrope[torch]'", look)
    return [asdict(one) for one in (first, *on_cuda)]


def _torch_on_cuda(torch: Any) -> Finding:
    name = "PyTorch on CUDA"
    if not torch.version.cuda:
        advice = for_device("install a CUDA build, as PyTorch's own page has it")
        return Finding(name, False, reason="this build of PyTorch has no CUDA", advice=advice)
    try:
        torch.cuda.init()
        every = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
        torch.ones(1, device="cuda").sum().item()
    except Exception as error:
        return Finding(name, False, f"CUDA {torch.version.cuda}", reason_of(error), for_device("nvidia-smi"))
    devices = tuple(_device(one.name, one.major, one.minor, one.total_memory) for one in every)
    return Finding(name, True, f"CUDA {torch.version.cuda}", devices=devices)


def probe_cupy() -> list[dict[str, Any]]:
    """CuPy, its devices, and whether it can compile for them."""
    return [asdict(_cupy())]


def _cupy() -> Finding:
    packages, extra = _cupy_packages(), "cuda13" if driver() >= 13000 else "cuda12"
    if len(packages) > 1:
        advice = f"pip uninstall -y {' '.join(packages)} && pip install 'rfrope[{extra}]'"
        return Finding("CuPy", False, "", f"{' and '.join(packages)} overwrite each other", advice)
    package = packages[0] if packages else "cupy"
    install = for_device(f"pip install 'rfrope[{extra}]'")
    return found("CuPy", "cupy", package, install, lambda cupy: _cupy_on_cuda(cupy, package, extra))


def _cupy_on_cuda(cupy: Any, package: str, extra: str) -> Finding:
    runtime = cupy.cuda.runtime
    detail = f"{cupy.__version__}; CUDA runtime {_cuda(runtime.runtimeGetVersion())}, driver {_cuda(driver())}"
    try:
        every = [runtime.getDeviceProperties(i) for i in range(runtime.getDeviceCount())]
    except Exception as error:
        advice = _without_device(int(runtime.runtimeGetVersion()), package, extra)
        return Finding("CuPy", False, detail, f"no working CUDA device ({_first_line(error)})", advice)
    devices = tuple(_device(one["name"], one["major"], one["minor"], one["totalGlobalMem"]) for one in every)
    try:
        for i in range(len(devices)):
            with cupy.cuda.Device(i):
                x = cupy.arange(4.0)
                assert float((x * x + 0.5).sum()) == 16.0
    except Exception as error:  # no compiler, no headers, or a device that this build is not for
        reason = f"it cannot compile or run a kernel ({reason_of(error)})"
        return Finding("CuPy", False, detail, reason, f"pip install '{package}[ctk]'", devices)
    return Finding("CuPy", True, detail, devices=devices)


def _without_device(runtime: int, package: str, extra: str) -> str:
    """What to do where CuPy is there, but no device."""
    if not driver():
        return for_device("nvidia-smi")
    if driver() // 1000 < runtime // 1000:
        return f"pip uninstall -y {package} && pip install 'rfrope[{extra}]', or install a newer driver"
    if "CUDA_VISIBLE_DEVICES" in os.environ:
        return f"unset CUDA_VISIBLE_DEVICES (it is {os.environ['CUDA_VISIBLE_DEVICES']!r})"
    return "nvidia-smi"


def _cupy_packages() -> list[str]:
    names = set()
    for distribution in metadata.distributions():
        with suppress(Exception):
            name = str(distribution.metadata["Name"]).lower()
            if re.fullmatch(r"cupy(-cuda\w+|-rocm[\w-]*)?", name):
                names.add(name)
    return sorted(names)


def for_device(advice: str) -> str:
    """Advice that is worth following only where there is a device to use."""
    return advice if driver() else f"nothing, without an NVIDIA device; with one, install its driver, then: {advice}"


def driver() -> int:
    """CUDA version that NVIDIA's driver is for, as 12080 for 12.8; 0 where there is no driver."""
    version = ctypes.c_int(0)
    for name in ("libcuda.so.1", "nvcuda.dll"):
        with suppress(OSError, AttributeError):
            ctypes.CDLL(name).cuDriverGetVersion(ctypes.byref(version))
            return version.value
    return 0


def _cuda(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}" if version else "none"


def _device(name: str | bytes, major: int, minor: int, memory: int) -> dict[str, Any]:
    name = name.decode(errors="replace") if isinstance(name, bytes) else name
    return {"name": name, "compute_capability": f"{major}.{minor}", "memory": int(memory)}


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
