"""What is said of accelerators: that they are there, or why not and what to type next."""

from __future__ import annotations

import sys
import types

import pytest

from rfrope._accel import findings
from rfrope._core import dispatch
from rfrope._core.libraries import Finding


@pytest.fixture(autouse=True)
def _a_device(monkeypatch):
    monkeypatch.setattr("rfrope._core.libraries.driver", lambda: 12080)


@pytest.fixture(autouse=True)
def failures(monkeypatch):
    """What compilation for the CPU has to say of its files."""
    found: list[str] = []
    monkeypatch.setattr("rfrope._accel.cpu.compiling.FAILURES", found)
    monkeypatch.setattr("rfrope._accel.cpu.compiling._KEPT", [])
    return found


def failing(error):
    def leaf(name):
        raise error

    return leaf


def works(name):
    return types.SimpleNamespace(KERNELS=("first<float>", "second"), nufft=lambda: None)


def found(leaf=works, cuda_leaf=works) -> dict[str, Finding]:
    """What is said of one leaf for each place, if loading it does what the arguments do."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dispatch, "load", lambda backend: {"cpu": leaf, "cuda": cuda_leaf}[backend.place](backend.module))
        reported = [Finding(**one) for one in reversed(findings.on_host() + findings.on_cuda())]
    return {one.name.partition(":")[0]: one for one in reported}


def test_every_backend_is_reported():
    names = [one["name"] for one in findings.on_host() + findings.on_torch() + findings.on_cuda()]
    for title, backends in (
        ("compiled loops: ", dispatch.CPU),
        ("torch operators: ", [dispatch.TORCH_ROTATION]),
        ("CUDA kernels: ", dispatch.CUDA),
    ):
        assert sum(name.startswith(title) for name in names) == len(backends)
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("of_torch", "of_cpu", "active", "told", "advice"),
    [
        (works, works, True, "they run the compiled loops, forwards and backwards", ""),
        (works, failing(ImportError("no Numba")), True, "they run torch's own operators on the CPU", "see compiled"),
        (failing(ImportError("PyTorch 2.3 cannot")), works, False, "PyTorch 2.3 cannot", "pip install --upgrade torch"),
        (failing(RuntimeError("broken")), works, False, "RuntimeError: broken", "--force-reinstall torch"),
    ],
)
def test_operators_of_torch(of_torch, of_cpu, active, told, advice, monkeypatch):
    monkeypatch.setattr(findings, "version_of", lambda name: "2.13.0")
    monkeypatch.setattr(
        dispatch, "load", lambda backend: {"cpu": of_cpu, "torch": of_torch}[backend.place](backend.module)
    )
    (one,) = findings.on_torch()
    assert one["active"] is active
    assert told in one["detail"] + one["reason"]
    assert advice in one["advice"]


def test_without_pytorch_there_are_no_operators(monkeypatch):
    monkeypatch.setattr(findings, "version_of", lambda name: "")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    (one,) = findings.on_torch()
    assert (one["active"], one["reason"], one["advice"]) == (
        False,
        "PyTorch is not installed",
        "pip install 'rfrope[torch]'",
    )


def test_loops_that_cannot_be_kept_are_active_and_say_so(failures):
    assert found()["compiled loops"].advice == ""
    failures.append("OSError: [Errno 28] No space left on device")
    one = found()["compiled loops"]
    assert one.active
    assert one.detail.endswith("compiled anew where they cannot be kept: OSError: [Errno 28] No space left on device")
    assert "NUMBA_CACHE_DIR" in one.advice


@pytest.mark.parametrize(
    ("error", "reason", "advice"),
    [
        (ImportError("NUMBA_DISABLE_JIT is set: ..."), "NUMBA_DISABLE_JIT is set", "unset NUMBA_DISABLE_JIT"),
        (
            ImportError("Numba needs NumPy 2.0 or less"),
            "ImportError: Numba needs NumPy 2.0 or less",
            "pip install --upg",
        ),
        (AttributeError("no vectors"), "AttributeError: no vectors", "pip install --upgrade --force-reinstall numba"),
    ],
)
def test_compiled_loops_that_are_not_there(monkeypatch, error, reason, advice):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    one = found(leaf=failing(error))["compiled loops"]
    assert (one.active, one.reason) == (False, reason)
    assert one.advice.startswith(advice)


def test_numba_that_is_not_installed(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    one = found(leaf=failing(ModuleNotFoundError("No module named 'numba'")))["compiled loops"]
    assert (one.active, one.reason, one.advice) == (False, "Numba is not installed", "pip install numba")


def test_kernels_are_compiled_to_find_out(monkeypatch):
    compiled = []
    monkeypatch.setattr("rfrope._accel.cuda.device.kernel", lambda source, kernel: compiled.append((source, kernel)))
    one = found()["CUDA kernels"]
    assert one.active
    assert ("rotation", "first<float>") in compiled

    def refused(source, kernel):
        raise RuntimeError("CuPy failed to load libnvrtc.so.12\nmore")

    monkeypatch.setattr("rfrope._accel.cuda.device.kernel", refused)
    one = found()["CUDA kernels"]
    assert (one.active, one.reason) == (False, "RuntimeError: CuPy failed to load libnvrtc.so.12")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ModuleNotFoundError("No module named 'cupy'", name="cupy"), "CuPy is not installed"),
        (ImportError("libcuda.so.1: cannot open"), "ImportError: libcuda.so.1: cannot open"),
        (RuntimeError("no"), "RuntimeError: no"),
    ],
)
def test_kernels_without_cupy(error, reason):
    one = found(cuda_leaf=failing(error))["CUDA kernels"]
    assert (one.active, one.reason, one.advice) == (False, reason, "see CuPy above")


@pytest.mark.parametrize("name", ["finufft", "cufinufft"])
def test_transforms(monkeypatch, name):
    monkeypatch.setattr(findings, "version_of", lambda *names: "")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert found()[name] == Finding(found()[name].name, False, "", "not installed", f"pip install {name}")
    monkeypatch.setattr(findings, "version_of", lambda *names: "2.5")
    monkeypatch.setitem(sys.modules, name, None)
    one = found()[name]
    assert (one.active, one.detail) == (False, "2.5")
    assert name in one.reason
    assert one.advice
    monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    leaf = types.SimpleNamespace(nufft=lambda: print, KERNELS=("none",))
    assert found(cuda_leaf=lambda _: leaf)[name].active


def test_cufinufft_that_loads_where_there_is_no_device(monkeypatch):
    monkeypatch.setattr(findings, "version_of", lambda *names: "2.5")
    one = found(cuda_leaf=failing(ImportError("no device")))["cufinufft"]
    assert (one.active, one.reason, one.advice) == (False, "ImportError: no device", "see CuPy above")


def test_a_library_that_does_not_load_is_asked_why(monkeypatch, tmp_path):
    (tmp_path / "libcufinufft.so").write_bytes(b"no library")
    spec = types.SimpleNamespace(origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: spec)
    monkeypatch.setattr(findings, "version_of", lambda *names: "2.5")
    monkeypatch.setitem(sys.modules, "cufinufft", None)
    assert found()["cufinufft"].reason.startswith("its library does not load: ")
