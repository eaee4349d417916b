"""What ``rfrope doctor`` finds: whatever is broken becomes a reason, and what to type next."""

import importlib
import os
import sys
import types
import warnings
from importlib import metadata

import numpy as np
import pytest
import triton_device
from stand_in import standing_in

from rfrope._backends import diagnostics
from rfrope._backends.diagnostics import Diagnosis, Diagnostic
from rfrope._core import dispatch

FOUND = {one.name: one for one in (*diagnostics.LIBRARIES, *diagnostics.BACKENDS)}


def raising(error):
    def function(*args, **kwargs):
        raise error

    return function


def look_at(name):
    """Return what the diagnostic of that name finds of a package that is installed, in this process."""
    return Diagnostic("it", "numpy", FOUND[name].look).run()


# -- one probe ---------------------------------------------------------------------------------------------------------


def test_a_package_that_works_and_one_that_is_missing():
    assert Diagnostic("it", "numpy", lambda: "as it should").run() == Diagnosis(
        "it", True, f"{np.__version__}; as it should"
    )
    missing = Diagnostic("it", "no_such_package", str).run()
    assert missing == Diagnosis("it", False, "", "no_such_package is not installed", "pip install no_such_package")


@pytest.mark.parametrize(
    ("error", "reason"), [(ImportError("no"), "ImportError: no"), (SystemExit(3), "SystemExit: 3")]
)
def test_a_package_that_does_not_work(error, reason):
    again = "pip install --upgrade --force-reinstall numpy"
    assert Diagnostic("it", "numpy", raising(error)).run() == Diagnosis("it", False, np.__version__, reason, again)
    assert Diagnostic("it", "numpy", raising(error), advice="type this").run().advice == "type this"


def test_the_first_cause_is_told():
    error = ImportError("\n=====\nFailed to import CuPy.\n")
    assert diagnostics.reason_of(error) == "ImportError: Failed to import CuPy."
    error.__cause__ = OSError("libcudart.so.12: cannot open")
    assert diagnostics.reason_of(error) == "OSError: libcudart.so.12: cannot open"
    assert diagnostics.reason_of(SystemExit()) == "SystemExit"


# -- CuPy and PyTorch --------------------------------------------------------------------------------------------------


def test_cupy(monkeypatch):
    with standing_in(is_hip=True):
        assert look_at("CuPy").active
        assert look_at("CUDA kernels").reason == "ImportError: CuPy is built for ROCm, and the kernels for CUDA"
    with standing_in() as machine:
        device, cupy = "stand-in (compute capability 9.0, 16.0 GiB)", importlib.import_module("cupy")
        assert look_at("CuPy").detail.endswith(f"14.0.0, CUDA 12.9 on {device}, {device}")
        assert look_at("CUDA kernels").active
        machine.devices = 0
        assert look_at("CuPy").reason == "RuntimeError: cudaErrorNoDevice: no CUDA-capable device is detected"
        machine.devices = 1
        monkeypatch.setattr(cupy, "arange", raising(RuntimeError("CuPy failed to load libnvrtc.so.12\nmore")))
        assert look_at("CuPy").reason == "RuntimeError: CuPy failed to load libnvrtc.so.12"
        monkeypatch.setattr(cupy, "arange", lambda n: cupy.ones(int(n)))
        assert not look_at("CuPy").active
    assert "rfrope[cuda12]" in FOUND["CuPy"].advice


def test_torch_with_and_without_cuda(monkeypatch):
    torch, one = types.ModuleType("torch"), types.SimpleNamespace(name="Test", major=8, minor=6, total_memory=2**34)
    torch.version, torch.ones = types.SimpleNamespace(cuda="12.8"), lambda *shape, device: np.ones(shape)
    torch.cuda = types.SimpleNamespace(device_count=lambda: 1, get_device_properties=lambda i: one)
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert look_at("PyTorch").detail.endswith("CUDA 12.8 on Test (compute capability 8.6, 16.0 GiB)")
    torch.ones = raising(RuntimeError("Found no NVIDIA driver on your system.\nMore"))
    found = look_at("PyTorch")
    assert found.active
    assert found.detail.endswith("on the CPU alone (RuntimeError: Found no NVIDIA driver on your system.)")


# -- backends ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def backends(monkeypatch):
    """``backends(place=function)`` makes up how the backends of a place load; without a function they do."""

    def install(**loads):
        module = types.SimpleNamespace(KERNELS=("first<float>", "second"))
        monkeypatch.setattr(dispatch, "load", lambda one: loads.get(one.place, lambda: module)())

    return install


def test_compiled_loops(monkeypatch, backends):
    backends(cpu=raising(ImportError("NUMBA_DISABLE_JIT is set: ...")))
    assert look_at("compiled loops").reason == "ImportError: NUMBA_DISABLE_JIT is set: ..."
    assert FOUND["compiled loops"].advice.startswith("unset NUMBA_DISABLE_JIT ")
    backends()
    monkeypatch.setattr("rfrope._backends.cpu.compiling.examined", lambda: ["OSError: No space left on device"])
    found = look_at("compiled loops")
    assert found.active
    assert "compiled anew in each process (OSError: No space left on device): free space, or set NUM" in found.detail


def test_operators_of_torch_say_what_they_run(backends):
    backends(torch=raising(ImportError("PyTorch 2.3 cannot")))
    assert look_at("torch operators").reason == "ImportError: PyTorch 2.3 cannot"
    backends()
    assert "they run the compiled loops" in look_at("torch operators").detail
    backends(cpu=raising(ImportError("no Numba")))
    assert "they run torch's own operators on the CPU, slowly" in look_at("torch operators").detail


def test_kernels_are_compiled_to_find_out(monkeypatch, backends):
    backends()
    compiled = []
    monkeypatch.setattr("rfrope._backends.cuda.device.kernel", lambda source, kernel: compiled.append((source, kernel)))
    assert look_at("CUDA kernels").active
    assert compiled == [(one.module, "first<float>") for one in dispatch.CUDA]
    backends(cuda=raising(ImportError("libcuda.so.1: cannot open")))
    assert look_at("CUDA kernels").reason == "ImportError: libcuda.so.1: cannot open"


@pytest.mark.skipif(bool(triton_device.MISSING), reason=triton_device.MISSING or "it can run")
def test_triton_turns_a_block_to_find_out(monkeypatch):
    assert look_at("Triton kernels").reason.startswith("ImportError: PyTorch ")
    assert look_at("Triton kernels").reason.endswith(" finds no device of CUDA, ROCm or XPU")
    triton_device.stand_in(monkeypatch)
    monkeypatch.setattr(triton_device.package, "kinds", lambda: ["cpu"])
    assert look_at("Triton kernels").detail.endswith("first for PyTorch's tensors on cpu")
    backend = dispatch.load(dispatch.TRITON)
    monkeypatch.setattr(backend, "rotated_by_phases", lambda x, *_: x)
    assert look_at("Triton kernels").reason == "AssertionError: what it compiled computes something else"


# -- in this process, or one of its own --------------------------------------------------------------------------------


def test_what_a_library_prints_and_warns_of_is_not_shown(capsys):
    def look():
        sys.stdout.write("noise")
        sys.stderr.write("noise")
        warnings.warn("noise", stacklevel=1)
        return "works"

    assert Diagnostic("it", "numpy", look).diagnose() == Diagnosis("it", True, f"{np.__version__}; works")
    assert capsys.readouterr() == ("", "")
    with pytest.raises(KeyboardInterrupt):
        Diagnostic("it", "numpy", raising(KeyboardInterrupt())).diagnose()


ENDS = "importing it ends the process (exit code "
WORKS = "class cuda:\n class runtime:\n  getDeviceCount = runtimeGetVersion = int"
BROKEN = {
    "noisy": (f"print('noise', end='')\nos.system('echo more noise')\n__version__ = '1'\n{WORKS}", ""),
    "ends": ("os.abort()", f"{ENDS}-6"),
    "leaves": ("os._exit(0)", f"{ENDS}0"),
    "complains": ("print('no good', file=sys.stderr, flush=True)\nos._exit(2)", f"{ENDS}2: no good)"),
    "sleeps": ("time.sleep(60)", "TimeoutExpired: "),
}


@pytest.mark.parametrize("way", BROKEN)
def test_a_broken_cupy_ends_a_process_of_its_own(way, tmp_path, monkeypatch):
    code, reason = BROKEN[way]
    (tmp_path / "cupy.py").write_text(f"import os, sys, time\n{code}")
    monkeypatch.syspath_prepend(tmp_path)
    if way == "sleeps":
        monkeypatch.setattr(diagnostics, "_TIMEOUT", 3.0)
    found = FOUND["CuPy"].diagnose()
    assert (found.name, found.active, bool(found.advice)) == ("CuPy", not reason, bool(reason))
    assert found.reason.startswith(reason)


def test_no_process_can_be_started(monkeypatch):
    monkeypatch.setattr(sys, "executable", "no-such-python")
    assert FOUND["CuPy"].diagnose().reason.startswith("FileNotFoundError")


@pytest.mark.campaign
def test_nothing_of_the_current_folder_runs(tmp_path, monkeypatch):
    """One module is planted for every name that might be imported; `json` among them, which it starts with."""
    ran = tmp_path / "ran"
    installed = {name for names in metadata.packages_distributions() for name in names.split(".")[:1]}
    for module in filter(str.isidentifier, {*sys.stdlib_module_names, *installed, "cupy"}):
        planted = f"open({str(ran)!r}, 'a').write('{module} ')\nraise SystemExit('planted')\n"
        (tmp_path / f"{module}.py").write_text(planted)
    monkeypatch.setattr(sys, "path", [path or os.getcwd() for path in sys.path])
    monkeypatch.chdir(tmp_path)
    found = FOUND["CuPy"].diagnose()
    assert not ran.exists(), ran.read_text()
    assert found.active or (found.reason and found.advice)
