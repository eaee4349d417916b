"""Findings of ``rfrope doctor``: whatever is broken becomes a reason, and what to type next."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import types
from importlib import metadata

import numpy as np
import pytest
from campaign import sparse

from rfrope._backends import findings
from rfrope._backends.findings import Finding, InactiveError
from rfrope._core import dispatch


def raising(error):
    def function(*args, **kwargs):
        raise error

    return function


@pytest.fixture(autouse=True)
def driver(monkeypatch):
    """``driver(version)`` makes a driver of NVIDIA up; there is one for CUDA 12.8 unless a test says otherwise."""

    def install(version):
        monkeypatch.setattr(findings, "cuda_driver", lambda: version)

    install(12080)
    return install


def looked(look):
    """Return what a probe finds that looks in this way, at a package that is installed."""
    return findings.Probe("it", "numpy", look).finding()


# -- any package -------------------------------------------------------------------------------------------------------


def test_a_package_that_works_and_one_that_is_missing():
    assert looked(dict) == Finding("it", True, np.__version__)
    missing = findings.Probe("it", "no_such_package", dict)
    assert missing.finding() == Finding(
        "it", False, "", "no_such_package is not installed", "pip install no_such_package"
    )


@pytest.mark.parametrize(
    ("error", "reason", "advice"),
    [
        (ImportError("no"), "ImportError: no", "pip install --upgrade --force-reinstall numpy"),
        (SystemExit(3), "SystemExit: 3", "pip install --upgrade --force-reinstall numpy"),
        (InactiveError(reason="why", advice="type this"), "why", "type this"),
    ],
)
def test_a_package_that_does_not_work(error, reason, advice):
    assert looked(raising(error)) == Finding("it", False, np.__version__, reason, advice)


def test_the_first_cause_is_told():
    error = ImportError("\n=====\nFailed to import CuPy.\n")
    assert findings.reason_of(error) == "ImportError: Failed to import CuPy."
    error.__cause__ = OSError("libcudart.so.12: cannot open")
    assert findings.reason_of(error) == "OSError: libcudart.so.12: cannot open"
    assert findings.reason_of(KeyboardInterrupt()) == "KeyboardInterrupt"


# -- CuPy and PyTorch --------------------------------------------------------------------------------------------------


@pytest.fixture
def cupy(monkeypatch):
    """``cupy(name=value)`` looks at a CuPy with two devices that is made up, or changed."""

    def look(count=lambda: 2, arange=np.arange):
        properties = {"name": b"NVIDIA Test", "major": 9, "minor": 0, "totalGlobalMem": 2**36}
        runtime = types.SimpleNamespace(
            runtimeGetVersion=lambda: 12090, getDeviceCount=count, getDeviceProperties=lambda i: properties
        )
        module = types.ModuleType("cupy")
        module.__version__, module.arange = "14.2.0", arange
        module.cuda = types.SimpleNamespace(runtime=runtime, Device=lambda i: contextlib.nullcontext())
        monkeypatch.setitem(sys.modules, "cupy", module)
        return looked(findings._look_at_cupy)

    return look


def test_a_working_cupy_tells_its_devices(cupy):
    found = cupy()
    assert (found.active, found.reason, found.advice) == (True, "", "")
    assert found.detail == "14.2.0; CUDA runtime 12.9, driver 12.8"
    assert found.devices == ({"name": "NVIDIA Test", "compute_capability": "9.0", "memory": 2**36},) * 2


@pytest.mark.parametrize(
    ("version", "visible", "advice"),
    [
        (0, None, "nothing, without an NVIDIA device; with one, install its driver, then: nvidia-smi"),
        (12080, "", "unset CUDA_VISIBLE_DEVICES (it is '')"),
        (11040, None, "uninstall this CuPy and pip install 'rfrope[cuda12]', or install a newer driver"),
        (12080, None, "nvidia-smi"),
    ],
)
def test_cupy_without_a_device(cupy, driver, monkeypatch, version, visible, advice):
    driver(version)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    found = cupy(count=raising(RuntimeError("cudaErrorInsufficientDriver")))
    assert (found.active, found.reason, found.advice) == (
        False,
        "no working CUDA device (cudaErrorInsufficientDriver)",
        advice,
    )


def test_cupy_that_cannot_compile(cupy):
    found = cupy(arange=raising(RuntimeError("CuPy failed to load libnvrtc.so.12\nmore")))
    assert not found.active
    assert found.reason == "it cannot compile or run a kernel (RuntimeError: CuPy failed to load libnvrtc.so.12)"
    assert "cupy-cuda12x[ctk]" in found.advice
    assert len(found.devices) == 2


@pytest.mark.parametrize(("version", "extra"), [(12080, "cuda12"), (13000, "cuda13"), (0, "cuda12")])
def test_the_cupy_to_install_is_that_of_the_driver(driver, version, extra):
    driver(version)
    assert findings._install_cupy() == f"pip install 'rfrope[{extra}]'"
    assert findings._advise_device("this").startswith("this" if version else "nothing, without an NVIDIA device")


def torch_on_cuda(monkeypatch, cuda, ones=lambda *shape, device: np.ones(shape)):
    torch, one = types.ModuleType("torch"), types.SimpleNamespace(name="Test", major=8, minor=6, total_memory=2**34)
    torch.version, torch.ones = types.SimpleNamespace(cuda=cuda), ones
    torch.cuda = types.SimpleNamespace(device_count=lambda: 1, get_device_properties=lambda i: one)
    monkeypatch.setitem(sys.modules, "torch", torch)
    return looked(findings._look_at_torch_on_cuda)


def test_torch_with_and_without_cuda(monkeypatch):
    found = torch_on_cuda(monkeypatch, "12.8")
    assert (found.active, found.detail) == (True, "CUDA 12.8")
    assert found.devices == ({"name": "Test", "compute_capability": "8.6", "memory": 2**34},)
    found = torch_on_cuda(monkeypatch, None)
    assert found.reason == "this build of PyTorch has no CUDA"
    assert found.advice.startswith("install a CUDA build")
    found = torch_on_cuda(monkeypatch, "12.8", raising(RuntimeError("Found no NVIDIA driver on your system.\nMore")))
    assert (found.active, found.reason) == (False, "RuntimeError: Found no NVIDIA driver on your system.")


# -- backends ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def backends(monkeypatch):
    """``backends(place=function)`` makes up how the backends of a place load; without a function they do."""

    def install(**loads):
        module = types.SimpleNamespace(KERNELS=("first<float>", "second"), nufft=lambda: print)
        monkeypatch.setattr(dispatch, "load", lambda one: loads.get(one.place, lambda: module)())

    return install


@pytest.mark.parametrize(
    ("error", "reason", "advice"),
    [
        (ImportError("NUMBA_DISABLE_JIT is set: ..."), "NUMBA_DISABLE_JIT is set", "unset NUMBA_DISABLE_JIT"),
        (ValueError("bad NUMBA_NUM_THREADS"), "NUMBA_NUM_THREADS is set", "unset NUMBA_NUM_THREADS"),
        (ImportError("Numba needs NumPy 2.0"), "ImportError: Numba needs NumPy 2.0", "pip install --upg"),
        (AttributeError("no vectors"), "AttributeError: no vectors", "pip install --upgrade --force-reinstall"),
    ],
)
def test_compiled_loops_that_do_not_load(backends, error, reason, advice):
    backends(cpu=raising(error))
    found = looked(findings._look_at_loops)
    assert (found.active, found.reason) == (False, reason)
    assert found.advice.startswith(advice)


def test_loops_that_cannot_be_kept_are_active_and_say_so(monkeypatch, backends):
    backends()
    monkeypatch.setattr("rfrope._backends.cpu.compiling.examined", lambda: ["OSError: No space left on device"])
    found = looked(findings._look_at_loops)
    assert found.active
    assert found.detail.endswith("compiled anew where they cannot be kept: OSError: No space left on device")
    assert "NUMBA_CACHE_DIR" in found.advice


def test_operators_of_torch_say_what_they_run(backends):
    backends(torch=raising(ImportError("PyTorch 2.3 cannot")))
    assert looked(findings._look_at_operators).reason == "ImportError: PyTorch 2.3 cannot"
    backends()
    assert "they run the compiled loops" in looked(findings._look_at_operators).detail
    backends(cpu=raising(ImportError("no Numba")))
    found = looked(findings._look_at_operators)
    assert (found.active, found.advice) == (True, "see compiled loops above")
    assert "they run torch's own operators on the CPU, slowly" in found.detail


def test_kernels_are_compiled_to_find_out(monkeypatch, backends):
    backends()
    compiled = []
    monkeypatch.setattr("rfrope._backends.cuda.device.kernel", lambda source, kernel: compiled.append((source, kernel)))
    assert looked(findings._look_at_kernels).active
    assert compiled == [(one.module, "first<float>") for one in dispatch.CUDA]
    monkeypatch.setattr("rfrope._backends.cuda.device.kernel", raising(RuntimeError("no libnvrtc.so.12\nmore")))
    assert looked(findings._look_at_kernels).reason == "RuntimeError: no libnvrtc.so.12"
    backends(cuda=raising(ImportError("libcuda.so.1: cannot open")))
    for look in (findings._look_at_kernels, findings._look_at_cufinufft):
        found = looked(look)
        assert (found.reason, found.advice) == ("ImportError: libcuda.so.1: cannot open", "see CuPy above")


def test_cufinufft_that_backends_cannot_use(monkeypatch, backends):
    backends()
    assert looked(findings._look_at_cufinufft).active
    backends(cuda=lambda: types.SimpleNamespace(nufft=lambda: None))
    monkeypatch.setitem(sys.modules, "cufinufft", None)
    assert "cufinufft" in looked(findings._look_at_cufinufft).reason
    monkeypatch.setitem(sys.modules, "cufinufft", types.ModuleType("cufinufft"))
    assert looked(findings._look_at_cufinufft).reason == "ImportError: it cannot be used"


# -- in a process of their own -----------------------------------------------------------------------------------------

GROUPS = [*findings.LIBRARIES, *findings.BACKENDS]
BROKEN = {
    "noisy": ("import os\nprint('noise', end='')\nos.system('echo more noise')\n__version__ = '1'", ""),
    "ends": ("import os\nos.abort()", "importing it ends the process (SIGABRT)"),
    "leaves": ("import os\nos._exit(0)", "importing it ends the process (exit code 0)"),
    "complains": (
        "import os, sys\nprint('no good', file=sys.stderr, flush=True)\nos._exit(2)",
        "importing it ends the process (no good)",
    ),
    "sleeps": ("import time\ntime.sleep(60)", "no answer in 3 s"),
}


@pytest.mark.parametrize("way", BROKEN)
def test_a_broken_library_is_a_finding(way, tmp_path, monkeypatch):
    code, reason = BROKEN[way]
    (tmp_path / "dask").mkdir()
    (tmp_path / "dask" / "__init__.py").write_text(code)
    (tmp_path / "dask" / "array.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    if way == "sleeps":
        monkeypatch.setattr(findings, "_TIMEOUT", 3.0)
    (found,) = findings.findings("Dask")
    assert (found.name, found.active, found.reason) == ("Dask", not reason, reason)
    assert bool(found.advice) == bool(reason)


def test_no_process_can_be_started(monkeypatch):
    monkeypatch.setattr(sys, "executable", "no-such-python")
    (found,) = findings.findings("NumPy")
    assert found.reason.startswith("FileNotFoundError")


@pytest.mark.parametrize("group", sparse(GROUPS, lambda group: group in ("NumPy", "compiled loops")))
def test_probes_answer_and_run_nothing_of_the_current_folder(group, tmp_path, monkeypatch):
    """One module is planted for every name that a probe might import; `json` among them, which it starts with."""
    ran = tmp_path / "ran"
    installed = {name for names in metadata.packages_distributions() for name in names.split(".")[:1]}
    for name in filter(str.isidentifier, {*sys.stdlib_module_names, *installed, "cupy"}):
        (tmp_path / f"{name}.py").write_text(f"open({str(ran)!r}, 'a').write('{name} ')\nraise SystemExit('planted')\n")
    monkeypatch.setattr(sys, "path", [path or os.getcwd() for path in sys.path])
    monkeypatch.chdir(tmp_path)
    found = list(findings.findings(group))
    assert not ran.exists(), ran.read_text()
    assert [one.name for one in found] == [probe.name for probe in (findings.LIBRARIES | findings.BACKENDS)[group]]
    for one in found:
        assert one.active or (one.reason and one.advice)
        json.dumps(one.devices)
