"""Probes for ``rfrope doctor``: what is active here, and for the rest why not and what to type next.

This is the only place that imports optional libraries to find out whether they work.
``python -m rfrope._backends.findings GROUP`` runs a group of probes, in a process of its own: a broken library may end
its process, or never return.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib import metadata
from typing import Any

from rfrope._core import dispatch

_TIMEOUT = 120.0  # seconds
_QUIET = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONWARNINGS": "ignore"}
_TRANSFORMS = "transforms for sums over many lags"
_COMPILER = "pip install --upgrade 'cupy-cuda12x[ctk]', or 'cupy-cuda13x[ctk]': CuPy with its compiler"


@dataclass(frozen=True)
class Finding:
    """The state of a library or backend: whether rfrope can use it here, why not, and what to type next."""

    name: str
    active: bool
    detail: str = ""
    reason: str = ""
    advice: str = ""
    devices: tuple[dict[str, Any], ...] = ()  # name, compute capability and bytes of memory of each


class InactiveError(Exception):
    """Something is installed and cannot be used; `fields` are those of its `Finding`."""

    def __init__(self, **fields: Any) -> None:
        super().__init__(fields["reason"])
        self.fields = fields


@dataclass(frozen=True)
class Probe:
    """A way to find out whether something works: `look` uses it, and returns fields of a `Finding`, or raises."""

    name: str
    package: str
    look: Callable[[], dict[str, Any]]
    install: str = ""  # what to type where it is missing, unless that is the package
    repair: str = ""  # what to type where it is broken, unless that is to install it again

    def finding(self) -> Finding:
        """Return what is found."""
        version = version_of(self.package)
        if not version and importlib.util.find_spec(self.package) is None:
            advice = self.install or f"pip install {self.package}"
            return Finding(self.name, False, reason=f"{self.package} is not installed", advice=advice)
        try:
            return replace(Finding(self.name, True, version), **self.look())
        except InactiveError as error:
            return replace(Finding(self.name, False, version), **error.fields)
        except BaseException as error:
            repair = self.repair or f"pip install --upgrade --force-reinstall {self.package}"
            return Finding(self.name, False, version, reason_of(error), repair)


def findings(group: str) -> Iterator[Finding]:
    """Yield the findings of a group of probes, which run in a process of their own."""
    # -P: no module of the current folder takes the place of an installed one
    command = [sys.executable, "-P", "-m", __name__, group]
    environment = os.environ | _QUIET | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    try:
        done = subprocess.run(command, capture_output=True, timeout=_TIMEOUT, stdin=subprocess.DEVNULL, env=environment)
    except subprocess.TimeoutExpired:
        reason = f"no answer in {_TIMEOUT:.0f} s"
    except OSError as error:
        reason = reason_of(error)
    else:
        answer = done.stdout.splitlines()[-1:]
        if done.returncode == 0 and answer:
            yield from (Finding(**one | {"devices": tuple(one["devices"])}) for one in json.loads(answer[0]))
            return
        code, errors = done.returncode, done.stderr.decode(errors="replace").strip().splitlines()
        how = signal.Signals(-code).name if code < 0 else errors[-1] if errors else f"exit code {code}"
        reason = f"importing it ends the process ({how:.200})"
    yield Finding(group, False, reason=reason, advice="reinstall it with pip, or uninstall it")


def reason_of(error: BaseException) -> str:
    """Return what an error, or the first cause of it, says, in one line."""
    while error.__cause__ is not None:
        error = error.__cause__
    text = next((line.strip() for line in str(error).splitlines() if line.strip(" =-")), "")
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def version_of(package: str) -> str:
    """Return the version of a package; empty where it is not installed."""
    with suppress(Exception):  # metadata may be broken too
        return metadata.version(package) or ""
    return ""


def cuda_driver() -> int:
    """Return the CUDA version that NVIDIA's driver is for, as 12080 for 12.8; 0 where there is no driver."""
    version = ctypes.c_int(0)
    for name in ("libcuda.so.1", "nvcuda.dll"):
        with suppress(OSError, AttributeError):
            ctypes.CDLL(name).cuDriverGetVersion(ctypes.byref(version))
            return version.value
    return 0


def _advise_device(advice: str) -> str:
    """Return advice that is worth following only where there is a device to use."""
    if cuda_driver():
        return advice
    return f"nothing, without an NVIDIA device; with one, install its driver, then: {advice}"


# -- libraries ---------------------------------------------------------------------------------------------------------


def _import(module: str) -> dict[str, Any]:
    importlib.import_module(module)
    return {}


def _look_at_jax() -> dict[str, Any]:
    jax = importlib.import_module("jax")
    wide = jax.config.jax_enable_x64
    detail = f"{jax.__version__}; on {jax.default_backend()}; float64 {'on' if wide else 'off'}"
    return {"detail": detail, "advice": "" if wide else "export JAX_ENABLE_X64=1 (for float64)"}


def _look_at_torch_on_cuda() -> dict[str, Any]:
    torch = importlib.import_module("torch")
    if not torch.version.cuda:
        advice = _advise_device("install a CUDA build, as PyTorch's own page has it")
        raise InactiveError(reason="this build of PyTorch has no CUDA", advice=advice)
    detail = f"CUDA {torch.version.cuda}"
    try:
        torch.ones(1, device="cuda").sum().item()
        every = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    except Exception as error:
        raise InactiveError(reason=reason_of(error), advice=_advise_device("nvidia-smi"), detail=detail) from None
    devices = [_device(one.name, one.major, one.minor, one.total_memory) for one in every]
    return {"detail": detail, "devices": tuple(devices)}


def _look_at_cupy() -> dict[str, Any]:
    cupy = importlib.import_module("cupy")
    runtime, version, driver = cupy.cuda.runtime, cupy.cuda.runtime.runtimeGetVersion(), cuda_driver()
    shown = [f"{one // 1000}.{one % 1000 // 10}" if one else "none" for one in (version, driver)]
    detail = f"{cupy.__version__}; CUDA runtime {shown[0]}, driver {shown[1]}"
    try:
        every = [runtime.getDeviceProperties(i) for i in range(runtime.getDeviceCount())]
    except Exception as error:
        advice = _advise_device("nvidia-smi")
        if 0 < driver < version // 1000 * 1000:
            advice = f"uninstall this CuPy and {_install_cupy()}, or install a newer driver"
        elif driver and "CUDA_VISIBLE_DEVICES" in os.environ:
            advice = f"unset CUDA_VISIBLE_DEVICES (it is {os.environ['CUDA_VISIBLE_DEVICES']!r})"
        raise InactiveError(reason=f"no working CUDA device ({error})", advice=advice, detail=detail) from None
    devices = tuple(_device(one["name"], one["major"], one["minor"], one["totalGlobalMem"]) for one in every)
    try:
        for i in range(len(devices)):
            with cupy.cuda.Device(i):
                x = cupy.arange(4.0)
                assert float((x * x + 0.5).sum()) == 16.0
    except Exception as error:  # no compiler, no headers, or a device that this build is not for
        reason = f"it cannot compile or run a kernel ({reason_of(error)})"
        raise InactiveError(reason=reason, advice=_COMPILER, detail=detail, devices=devices) from None
    return {"detail": detail, "devices": devices}


def _install_cupy() -> str:
    return f"pip install 'rfrope[{'cuda13' if cuda_driver() >= 13000 else 'cuda12'}]'"


def _device(name: str | bytes, major: int, minor: int, memory: int) -> dict[str, Any]:
    name = name.decode(errors="replace") if isinstance(name, bytes) else name
    return {"name": name, "compute_capability": f"{major}.{minor}", "memory": int(memory)}


# -- backends ----------------------------------------------------------------------------------------------------------


def _look_at_loops() -> dict[str, Any]:
    try:
        for backend in dispatch.CPU:
            dispatch.load(backend)
    except Exception as error:
        variable = next((v for v in ("NUMBA_DISABLE_JIT", "NUMBA_NUM_THREADS") if v in str(error)), "")
        if not variable:
            raise
        raise InactiveError(reason=f"{variable} is set", advice=f"unset {variable}") from None
    version = f"Numba {version_of('numba')}"
    failures = importlib.import_module("rfrope._backends.cpu.compiling").examined()
    if not failures:
        return {"detail": version}
    advice = "free space, or set NUMBA_CACHE_DIR to a folder that can be written to"
    return {"detail": f"{version}, compiled anew where they cannot be kept: {failures[0]}", "advice": advice}


def _look_at_operators() -> dict[str, Any]:
    dispatch.load(dispatch.TORCH_ROTATION)
    loops = _LOOPS.finding().active
    runs = "the compiled loops, forwards and backwards" if loops else "torch's own operators on the CPU, slowly"
    detail = f"PyTorch {version_of('torch')}; they run {runs}"
    return {"detail": detail, "advice": "" if loops else "see compiled loops above"}


def _look_at_kernels() -> dict[str, Any]:
    """Import each backend, and compile one of its kernels for the current device."""
    for backend in dispatch.CUDA:
        module = _load_for_cuda(backend)
        importlib.import_module("rfrope._backends.cuda.device").kernel(backend.module, module.KERNELS[0])
    return {"detail": "compiled for this device"}


def _look_at_cufinufft() -> dict[str, Any]:
    if _load_for_cuda(dispatch.CUDA.sums).nufft() is None:
        importlib.import_module("cufinufft")  # says why
        raise ImportError("it cannot be used")
    return {}


def _load_for_cuda(backend: dispatch.Backend) -> Any:
    try:
        return dispatch.load(backend)
    except BaseException as error:
        raise InactiveError(reason=reason_of(error), advice="see CuPy above") from None


_LOOPS = Probe("compiled loops", "numba", _look_at_loops)
LIBRARIES: dict[str, tuple[Probe, ...]] = {  # groups of probes, each of which runs in a process of its own
    "NumPy": (Probe("NumPy", "numpy", partial(_import, "numpy")),),
    "SciPy": (Probe("SciPy", "scipy", partial(_import, "scipy.special")),),
    "PyTorch": (
        Probe("PyTorch", "torch", partial(_import, "torch"), "pip install 'rfrope[torch]'"),
        Probe("PyTorch on CUDA", "torch", _look_at_torch_on_cuda, "see PyTorch above"),
    ),
    "JAX": (Probe("JAX", "jax", _look_at_jax, "pip install 'rfrope[jax]'"),),
    "Dask": (Probe("Dask", "dask", partial(_import, "dask.array"), "pip install 'rfrope[dask]'"),),
    "CuPy": (Probe("CuPy", "cupy", _look_at_cupy, _advise_device(_install_cupy())),),
}
BACKENDS: dict[str, tuple[Probe, ...]] = {
    "compiled loops": (_LOOPS, Probe(f"finufft: {_TRANSFORMS}", "finufft", partial(_import, "finufft"))),
    "torch operators": (
        Probe("torch operators, with gradients and in graphs", "torch", _look_at_operators, "see PyTorch above"),
    ),
    "CUDA kernels": (
        Probe("CUDA kernels", "cupy", _look_at_kernels, "see CuPy above", _COMPILER),
        Probe(
            f"cufinufft: {_TRANSFORMS}",
            "cufinufft",
            _look_at_cufinufft,
            _advise_device("pip install cufinufft"),
            _advise_device("pip install nvidia-cuda-runtime-cu12 nvidia-cufft-cu12"),
        ),
    ),
}

if __name__ == "__main__":
    found = [asdict(probe.finding()) for probe in (LIBRARIES | BACKENDS)[sys.argv[1]]]
    sys.stdout.write("\n" + json.dumps(found) + "\n")  # a library may have begun a line
    sys.stdout.flush()
    os._exit(0)  # not every library ends well
