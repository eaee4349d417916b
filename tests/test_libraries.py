"""What is found of array libraries and devices: whatever is broken becomes a reason, and a next step."""

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

from rfrope._core import libraries
from rfrope._core.libraries import Finding


class Failure(RuntimeError):
    """As CuPy's CUDARuntimeError."""


def raising(error):
    def function(*args, **kwargs):
        raise error

    return function


def fake_cupy(**changes):
    """A CuPy with two devices, or one that is changed."""
    properties = {"name": b"NVIDIA Test", "major": 9, "minor": 0, "totalGlobalMem": 2**36}
    runtime = types.SimpleNamespace(
        runtimeGetVersion=lambda: 12090,
        getDeviceCount=changes.get("count", lambda: 2),
        getDeviceProperties=lambda i: properties,
    )
    cupy = types.ModuleType("cupy")
    cupy.__version__ = "14.2.0"
    cupy.cuda = types.SimpleNamespace(runtime=runtime, Device=lambda i: contextlib.nullcontext())
    cupy.arange = changes.get("arange", np.arange)
    return cupy


@pytest.fixture
def cupy(monkeypatch):
    """``cupy(driver=..., packages=..., ...)`` probes a CuPy that is made up."""

    def probe(*, driver=12080, packages=("cupy-cuda12x",), module=None, **changes):
        monkeypatch.setattr(libraries, "driver", lambda: driver)
        monkeypatch.setattr(libraries, "_cupy_packages", lambda: list(packages))
        monkeypatch.setattr(libraries, "_installed", lambda *names: bool(packages))
        monkeypatch.setitem(sys.modules, "cupy", module or fake_cupy(**changes))
        (found,) = libraries.probe_cupy()
        return Finding(**found)

    return probe


def test_a_working_cupy_tells_its_devices(cupy):
    found = cupy()
    assert (found.active, found.reason, found.advice) == (True, "", "")
    assert found.detail == "14.2.0; CUDA runtime 12.9, driver 12.8"
    assert len(found.devices) == 2
    assert found.devices[0] == {"name": "NVIDIA Test", "compute_capability": "9.0", "memory": 2**36}


@pytest.mark.parametrize(
    ("driver", "advice"),
    [
        (12080, "pip install 'rfrope[cuda12]'"),
        (13000, "pip install 'rfrope[cuda13]'"),
        (0, "nothing, without an NVIDIA device; with one, install its driver, then: pip install 'rfrope[cuda12]'"),
    ],
)
def test_cupy_that_is_not_installed(cupy, driver, advice):
    found = cupy(driver=driver, packages=())
    assert (found.active, found.reason, found.advice) == (False, "not installed", advice)


INSUFFICIENT = Failure("cudaErrorInsufficientDriver: CUDA driver version is insufficient")


@pytest.mark.parametrize(
    ("driver", "visible", "advice"),
    [
        (0, None, "nothing, without an NVIDIA device; with one, install its driver, then: nvidia-smi"),
        (12080, "", "unset CUDA_VISIBLE_DEVICES (it is '')"),
        (11040, None, "pip uninstall -y cupy-cuda12x && pip install 'rfrope[cuda12]', or install a newer driver"),
        (12080, None, "nvidia-smi"),
    ],
)
def test_cupy_without_a_device(cupy, monkeypatch, driver, visible, advice):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    found = cupy(driver=driver, count=raising(INSUFFICIENT))
    assert not found.active
    assert found.reason == f"no working CUDA device ({INSUFFICIENT})"
    assert found.advice == advice


def test_cupy_that_cannot_compile(cupy):
    found = cupy(arange=raising(RuntimeError("CuPy failed to load libnvrtc.so.12\nmore")))
    assert not found.active
    assert found.reason == "it cannot compile or run a kernel (RuntimeError: CuPy failed to load libnvrtc.so.12)"
    assert found.advice == "pip install 'cupy-cuda12x[ctk]'"
    assert len(found.devices) == 2


def test_two_packages_of_cupy(cupy):
    found = cupy(packages=("cupy-cuda12x", "cupy-cuda13x"))
    assert not found.active
    assert found.reason == "cupy-cuda12x and cupy-cuda13x overwrite each other"
    assert found.advice == "pip uninstall -y cupy-cuda12x cupy-cuda13x && pip install 'rfrope[cuda12]'"


def test_an_empty_folder_that_is_left_of_a_library(cupy):
    found = cupy(module=types.ModuleType("cupy"))
    assert not found.active
    assert found.reason.startswith("AttributeError: ")
    assert found.advice == "pip install --force-reinstall cupy-cuda12x"


def test_packages_of_cupy_are_told_from_others(monkeypatch):
    names = ("cupy-cuda12x", "CuPy-CUDA12x", "cupy-xarray", "cupy-rocm-5-0", "cupy", "numpy", None)
    listed = [types.SimpleNamespace(metadata={"Name": name}) for name in names]
    monkeypatch.setattr(metadata, "distributions", lambda: [*listed, object()])
    assert libraries._cupy_packages() == ["cupy", "cupy-cuda12x", "cupy-rocm-5-0"]


def fake_torch(cuda):
    torch = types.ModuleType("torch")
    torch.__version__ = "2.99"
    torch.version = types.SimpleNamespace(cuda=cuda)
    torch.ones = lambda *shape, device: np.ones(shape)
    one = types.SimpleNamespace(name="NVIDIA Test", major=8, minor=6, total_memory=2**34)
    torch.cuda = types.SimpleNamespace(init=lambda: None, device_count=lambda: 1, get_device_properties=lambda i: one)
    return torch


def torch_findings(monkeypatch, torch):
    monkeypatch.setattr(libraries, "_installed", lambda *names: True)
    monkeypatch.setitem(sys.modules, "torch", torch)
    return [Finding(**found) for found in libraries.probe_torch()]


def test_torch_with_and_without_cuda(monkeypatch):
    monkeypatch.setattr(libraries, "driver", lambda: 12080)
    plain, on_cuda = torch_findings(monkeypatch, fake_torch("12.8"))
    assert plain == Finding("PyTorch", True, "2.99")
    assert on_cuda.active
    assert on_cuda.devices == ({"name": "NVIDIA Test", "compute_capability": "8.6", "memory": 2**34},)
    plain, on_cuda = torch_findings(monkeypatch, fake_torch(None))
    assert plain.active
    assert on_cuda.reason == "this build of PyTorch has no CUDA"
    assert on_cuda.advice.startswith("install a CUDA build")
    broken = fake_torch("12.8")
    broken.cuda.init = raising(RuntimeError("Found no NVIDIA driver on your system.\nMore"))
    plain, on_cuda = torch_findings(monkeypatch, broken)
    assert plain.active
    assert on_cuda.reason == "RuntimeError: Found no NVIDIA driver on your system."


def test_the_first_cause_is_told():
    error = ImportError("\n=====\nFailed to import CuPy.\n")
    error.__cause__ = OSError("libcudart.so.12: cannot open")
    assert libraries.reason_of(error) == "OSError: libcudart.so.12: cannot open"
    assert (
        libraries.reason_of(ImportError("\n=====\nFailed to import CuPy.\n")) == "ImportError: Failed to import CuPy."
    )
    assert libraries.reason_of(KeyboardInterrupt()) == "KeyboardInterrupt"


# -- in a process of their own -----------------------------------------------------------------------------------------

MODULE = """
import json, os, time
def good():
    print("noise")
    os.system("echo more noise")
    return [{"name": "one", "active": True, "devices": [{"name": "d"}]}]
def ends():
    os.abort()
def leaves():
    raise SystemExit("no good")
def sleeps():
    time.sleep(60)
def nothing():
    return {}
"""


@pytest.fixture
def probes(tmp_path, monkeypatch):
    (tmp_path / "made_up_probes.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    return lambda function: list(libraries.apart("it", "made_up_probes", function))


def test_what_libraries_print_is_no_answer(probes):
    assert probes("good") == [Finding("one", True, devices=({"name": "d"},))]


@pytest.mark.parametrize(
    ("function", "told"),
    [
        ("ends", "importing it ends the process"),
        ("leaves", "importing it ends the process (no good)"),
        ("missing", "AttributeError"),
        ("nothing", "importing it ends the process"),
    ],
)
def test_a_probe_that_ends_its_process(probes, function, told):
    (found,) = probes(function)
    assert (found.name, found.active) == ("it", False)
    assert told in found.reason
    assert found.advice


def test_a_probe_that_never_answers(probes, monkeypatch):
    monkeypatch.setattr(libraries, "_PATIENCE", 1.0)
    (found,) = probes("sleeps")
    assert found.reason == "no answer in 1 s"


def test_no_process_can_be_started(probes, monkeypatch):
    monkeypatch.setattr(sys, "executable", "no-such-python")
    (found,) = probes("good")
    assert found.reason.startswith("FileNotFoundError")


PROBES = [
    *(("rfrope._core.libraries", f"probe_{name}") for name in ("numpy", "scipy", "torch", "jax", "dask", "cupy")),
    *(("rfrope._accel.findings", function) for function in ("on_host", "on_cuda")),
]


@pytest.mark.parametrize("probe", sparse(PROBES, lambda probe: probe in PROBES[:1]), ids="-".join)
def test_probes_run_nothing_of_the_current_folder(probe, tmp_path, monkeypatch):
    """One module is planted for every name that a probe might import; `json` among them, which it starts with."""
    ran = tmp_path / "ran"
    installed = {name for names in metadata.packages_distributions() for name in names.split(".")[:1]}
    for name in filter(str.isidentifier, {*sys.stdlib_module_names, *installed, "cupy"}):
        (tmp_path / f"{name}.py").write_text(f"open({str(ran)!r}, 'a').write('{name} ')\nraise SystemExit('planted')\n")
    monkeypatch.setattr(sys, "path", [path or os.getcwd() for path in sys.path])
    monkeypatch.chdir(tmp_path)
    found = list(libraries.apart("it", *probe))
    assert not ran.exists(), ran.read_text()
    assert found
    assert not any("planted" in one.reason or "JSON" in one.reason for one in found)


@pytest.mark.parametrize("name", ["numpy", "scipy", "torch", "jax", "dask", "cupy"])
def test_every_probe_answers_here(name):
    found = list(libraries.apart("it", "rfrope._core.libraries", f"probe_{name}"))
    assert found
    for one in found:
        assert one.active or (one.reason and one.advice)
        assert "ends the process" not in one.reason
        json.dumps(one.devices)
