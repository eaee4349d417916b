"""What is said of accelerators: that they are there, or why not and what to type next."""

from __future__ import annotations

import sys
import types

import pytest

from rfrope import _accel
from rfrope._accel import findings
from rfrope._core.libraries import Finding


@pytest.fixture(autouse=True)
def _a_device(monkeypatch):
    monkeypatch.setattr("rfrope._core.libraries.driver", lambda: 12080)


def failing(error):
    def leaf(name):
        raise error

    return leaf


def works(name):
    return types.SimpleNamespace(KERNELS=("first<float>", "second"), _nufft=lambda: None)


def found(leaf=works, cuda_leaf=works) -> dict[str, Finding]:
    all_of_them = reports.on_host(["rotation"], leaf) + reports.on_cuda(["cuda_rotation"], cuda_leaf)
    findings = [Finding(**one) for one in all_of_them]
    return {one.name.partition(":")[0]: one for one in findings}


def test_every_leaf_of_the_lookup_is_reported():
    names = [one["name"] for one in _accel.report() + _accel.cuda_report()]
    assert sum(name.startswith("compiled loops: ") for name in names) == len({*_accel._LEAVES.values()})
    assert sum(name.startswith("CUDA kernels: ") for name in names) == len({*_accel._CUDA_LEAVES.values()})
    assert len(set(names)) == len(names)


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
    monkeypatch.setattr("rfrope._accel.cuda.door._kernel", lambda source, kernel: compiled.append((source, kernel)))
    one = found()["CUDA kernels"]
    assert one.active
    assert compiled == [("rotation", "first<float>")]

    def refused(source, kernel):
        raise RuntimeError("CuPy failed to load libnvrtc.so.12\nmore")

    monkeypatch.setattr("rfrope._accel.cuda.door._kernel", refused)
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
    monkeypatch.setattr(reports, "version_of", lambda *names: "")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert found()[name] == Finding(found()[name].name, False, "", "not installed", f"pip install {name}")
    monkeypatch.setattr(reports, "version_of", lambda *names: "2.5")
    monkeypatch.setitem(sys.modules, name, None)
    one = found()[name]
    assert (one.active, one.detail) == (False, "2.5")
    assert name in one.reason
    assert one.advice
    monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    leaf = types.SimpleNamespace(_nufft=lambda: print, KERNELS=("none",))
    assert found(cuda_leaf=lambda _: leaf)[name].active


def test_cufinufft_that_loads_where_there_is_no_device(monkeypatch):
    monkeypatch.setattr(reports, "version_of", lambda *names: "2.5")
    one = found(cuda_leaf=failing(ImportError("no device")))["cufinufft"]
    assert (one.active, one.reason, one.advice) == (False, "ImportError: no device", "see CuPy above")


def test_a_library_that_does_not_load_is_asked_why(monkeypatch, tmp_path):
    (tmp_path / "libcufinufft.so").write_bytes(b"no library")
    spec = types.SimpleNamespace(origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: spec)
    monkeypatch.setattr(reports, "version_of", lambda *names: "2.5")
    monkeypatch.setitem(sys.modules, "cufinufft", None)
    assert found()["cufinufft"].reason.startswith("its library does not load: ")
