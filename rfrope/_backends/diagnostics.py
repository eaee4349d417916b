"""Diagnoses of what is active here, and for the rest why not and what to type next, as ``rfrope doctor`` prints them.

This is the only place that imports optional libraries to find out whether they work.
``python -m rfrope._backends.diagnostics NAME`` tries one of CuPy, in a process of its own: a driver that is broken may
end its process, or never return.
"""

from __future__ import annotations

import importlib.util
import io
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import asdict, dataclass
from functools import partial
from importlib import import_module, metadata
from typing import Any

from rfrope._core import dispatch
from rfrope._core.blocks import TurnOptions

_TIMEOUT = 120.0  # seconds
_CUPY = (  # the extras bring the compiler, too
    "only with an NVIDIA device: pip install --upgrade 'rfrope[cuda12]' (or cuda13, by the driver); nvidia-smi must "
    "list the device, and CUDA_VISIBLE_DEVICES not hide it"
)


@dataclass(frozen=True)
class Diagnosis:
    """The state of a library or backend: whether rfrope can use it here, why not, and what to type next."""

    name: str
    active: bool
    detail: str = ""
    reason: str = ""
    advice: str = ""


@dataclass(frozen=True)
class Diagnostic:
    """A way to find out whether something works: `look` uses it, and returns what to say of it, or raises."""

    name: str
    package: str
    look: Callable[[], str]
    advice: str = ""  # what to type where it is missing or does not work, unless that is to install it (again)

    def diagnose(self) -> Diagnosis:
        """Return what is found: in this process, but for what needs CuPy and the driver."""
        if self.package == "cupy":
            return self.run_apart()
        noise = io.StringIO()
        with warnings.catch_warnings(action="ignore"), redirect_stdout(noise), redirect_stderr(noise):
            return self.run()

    def run(self) -> Diagnosis:
        """Return what is found, in this process."""
        if importlib.util.find_spec(self.package) is None:
            advice = self.advice or f"pip install {self.package}"
            return Diagnosis(self.name, False, reason=f"{self.package} is not installed", advice=advice)
        version = version_of(self.package)
        try:
            detail = self.look()
        except (Exception, SystemExit) as error:
            advice = self.advice or f"pip install --upgrade --force-reinstall {self.package}"
            return Diagnosis(self.name, False, version, reason_of(error), advice)
        return Diagnosis(self.name, True, "; ".join(filter(None, (version, detail))))

    def run_apart(self) -> Diagnosis:
        """Return what is found, in a process of its own."""
        # -P: no module of the current folder takes the place of an installed one
        command = [sys.executable, "-P", "-m", __name__, self.name]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONWARNINGS": "ignore"}
        options: dict[str, Any] = {"capture_output": True, "stdin": subprocess.DEVNULL, "timeout": _TIMEOUT}
        try:
            done = subprocess.run(command, text=True, errors="replace", env=environment, **options)
        except (OSError, subprocess.TimeoutExpired) as error:
            reason = reason_of(error)
        else:
            if done.returncode == 0 and done.stdout.strip():
                return Diagnosis(**json.loads(done.stdout.splitlines()[-1]))
            said = [f"exit code {done.returncode}", *done.stderr.strip().splitlines()[-1:]]
            reason = f"importing it ends the process ({': '.join(said):.200})"
        return Diagnosis(self.name, False, reason=reason, advice=f"pip install --force-reinstall {self.package}")


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


# -- libraries ---------------------------------------------------------------------------------------------------------


def _look_at(module: str) -> str:
    import_module(module)
    return ""


def _look_at_torch() -> str:
    torch = import_module("torch")
    try:
        torch.ones(1, device="cuda").sum().item()
    except Exception as error:
        return f"on the CPU alone ({reason_of(error)})"
    every = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    devices = [_describe(one.name, one.major, one.minor, one.total_memory) for one in every]
    return f"CUDA {torch.version.cuda} on {', '.join(devices)}"


def _look_at_jax() -> str:
    # a device's memory is not taken from what is looked at after it
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    jax = import_module("jax")
    wide = "on" if jax.config.jax_enable_x64 else "off: export JAX_ENABLE_X64=1"
    return f"on {jax.default_backend()}, float64 {wide}"


def _look_at_cupy() -> str:
    cupy = import_module("cupy")
    runtime, devices = cupy.cuda.runtime, []
    for number in range(runtime.getDeviceCount()):
        one = runtime.getDeviceProperties(number)
        devices.append(_describe(one["name"].decode(), one["major"], one["minor"], one["totalGlobalMem"]))
        with cupy.cuda.Device(number):
            x = cupy.arange(4.0)
            assert float((x * x + 0.5).sum()) == 16.0, "what it compiled computes something else"
    version = runtime.runtimeGetVersion()
    return f"{cupy.__version__}, CUDA {version // 1000}.{version % 1000 // 10} on {', '.join(devices)}"


def _describe(name: str, major: int, minor: int, memory: int) -> str:
    return f"{name} (compute capability {major}.{minor}, {memory / 2**30:.1f} GiB)"


# -- backends ----------------------------------------------------------------------------------------------------------


def _look_at_loops() -> str:
    for backend in dispatch.CPU:
        dispatch.load(backend)
    failures = import_module("rfrope._backends.cpu.compiling").examined()
    if not failures:
        return ""
    return f"compiled anew in each process ({failures[0]}): free space, or set NUMBA_CACHE_DIR to a folder to write to"


def _look_at_operators() -> str:
    dispatch.load(dispatch.TORCH_ROTATION)
    try:
        _look_at_loops()
    except Exception:
        return "they run torch's own operators on the CPU, slowly, without compiled loops"
    return "they run the compiled loops, forwards and backwards"


def _look_at_triton() -> str:
    """Turn a block by a quarter of a turn on each kind of device."""
    backend, torch = dispatch.load(dispatch.TRITON), import_module("torch")
    found = import_module("rfrope._backends.triton").kinds()
    for kind in found:
        x, quarter = torch.tensor([[1.0, 0.0]], device=kind), torch.tensor([[1.5707963267948966]], device=kind)
        turned = backend.rotated_by_phases(x, quarter, TurnOptions("half", "half"), None, None).tolist()
        assert abs(turned[0][0]) < 1e-6 > abs(turned[0][1] - 1.0), "what it compiled computes something else"
    return f"first for PyTorch's tensors on {' and '.join(found)}"


def _look_at_kernels() -> str:
    """Import each backend, and compile one of its kernels for the current device."""
    for backend in dispatch.CUDA:
        module = dispatch.load(backend)
        import_module("rfrope._backends.cuda.device").kernel(backend.module, module.KERNELS[0])
    return "compiled for this device"


_LOOPS = "unset NUMBA_DISABLE_JIT NUMBA_NUM_THREADS, or pip install --upgrade --force-reinstall numba"
LIBRARIES = (
    Diagnostic("NumPy", "numpy", partial(_look_at, "numpy")),
    Diagnostic("SciPy", "scipy", partial(_look_at, "scipy.special")),
    Diagnostic("PyTorch", "torch", _look_at_torch),
    Diagnostic("JAX", "jax", _look_at_jax),
    Diagnostic("Dask", "dask", partial(_look_at, "dask.array"), "pip install --upgrade 'dask[array]'"),
    Diagnostic("CuPy", "cupy", _look_at_cupy, _CUPY),
)
BACKENDS = (
    Diagnostic("compiled loops", "numba", _look_at_loops, _LOOPS),
    Diagnostic("transforms for sums over many lags", "finufft", partial(_look_at, "finufft")),
    Diagnostic("torch operators", "torch", _look_at_operators, "see PyTorch above"),
    Diagnostic("Triton kernels", "triton", _look_at_triton, "see PyTorch above"),
    Diagnostic("CUDA kernels", "cupy", _look_at_kernels, "see CuPy above"),
)

if __name__ == "__main__":
    (found,) = (one.run() for one in (*LIBRARIES, *BACKENDS) if one.name == sys.argv[1])
    sys.stdout.write("\n" + json.dumps(asdict(found)) + "\n")  # a library may have begun a line
    sys.stdout.flush()
    os._exit(0)  # not every library ends well
