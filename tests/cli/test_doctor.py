"""``rfrope doctor``: the findings of `rfrope._backends.findings`, printed."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys

import numpy as np
import pytest
from campaign import HANGS, campaign

import rfrope
from rfrope._backends import findings
from rfrope._backends.findings import Finding
from rfrope._core import dispatch
from rfrope.rotation import turning

DEVICE = {"name": "NVIDIA Test", "compute_capability": "9.0", "memory": 3 * 2**30}
MADE_UP = {
    "NumPy": Finding("NumPy", True, "2.4"),
    "CuPy": Finding("CuPy", True, "14.2.0", devices=(DEVICE, DEVICE)),
    "CUDA kernels": Finding("CUDA kernels", False, reason="no compiler", advice="install one"),
}
# packages that are broken in the ways in which installations break
BROKEN = {
    "torch": "import os\nos.abort()",
    "jax": "raise ImportError('libtpu.so: cannot open shared object file')",
    "dask": "raise SystemExit(3)",
    "cupy": "try:\n    raise ImportError('libcudart.so.12: no such file')\n"
    "except ImportError as error:\n    raise ImportError('=====\\nFailed to import CuPy.') from error",
    "numba": "raise ImportError('Numba needs NumPy 2.0 or less')",
    "finufft": "raise OSError('libfinufft.so: undefined symbol')",
    "cufinufft": "raise ImportError('Could not find cufinufft library in system path')",
}
QUICK = {"torch": "raise ImportError", "jax": "raise ImportError", "dask": "raise ImportError"}


@pytest.fixture
def doctor(tmp_path):
    """``doctor(packages, **environment)`` runs it in a process where some packages are others, and returns its JSON."""

    def examine(packages, **environment):
        for name, text in packages.items():
            (tmp_path / name).mkdir()
            (tmp_path / name / "__init__.py").write_text(text)
        paths = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
        command = [sys.executable, "-W", "error", "-m", "rfrope", "doctor", "--json"]
        done = subprocess.run(
            command, capture_output=True, env=os.environ | {"PYTHONPATH": paths} | environment, timeout=HANGS
        )
        assert (done.returncode, done.stderr) == (0, b"")
        return json.loads(done.stdout)

    return examine


def test_what_is_here(doctor):
    held = doctor(QUICK)
    assert set(held) == {"rfrope", "python", "system", "threads", "cores", "libraries", "accelerators"}
    found = {one["name"]: one for one in held["libraries"] + held["accelerators"]}
    assert found["NumPy"] == {
        "name": "NumPy", "active": True, "detail": np.__version__, "reason": "", "advice": "", "devices": []
    }  # fmt: skip
    for one in found.values():
        assert one["active"] or (one["reason"] and one["advice"]), one
    assert found["compiled loops"]["active"] == (dispatch.backend_function(turning.rotated, "cpu") is not None)
    assert not found["PyTorch"]["active"]


@campaign
def test_whatever_is_broken_has_a_reason(doctor):
    held = doctor(BROKEN)
    found = {one["name"].partition(":")[0]: one for one in held["libraries"] + held["accelerators"]}
    told = {
        "PyTorch": "importing it ends the process",
        "JAX": "libtpu.so: cannot open",
        "Dask": "SystemExit",
        "CuPy": "libcudart.so.12: no such file",
        "compiled loops": "Numba needs NumPy 2.0 or less",
        "finufft": "libfinufft.so: undefined symbol",
        "CUDA kernels": "libcudart.so.12: no such file",
        "cufinufft": "libcudart.so.12: no such file",
    }
    for name, reason in told.items():
        assert reason in found[name]["reason"], name
        assert found[name]["advice"], name
    assert found["NumPy"]["active"]


@campaign
def test_numba_that_is_switched_off(doctor):
    pytest.importorskip("numba", reason="Numba is not installed")
    (found,) = (one for one in doctor(QUICK, NUMBA_DISABLE_JIT="1")["accelerators"] if one["name"] == "compiled loops")
    assert (found["reason"], found["advice"]) == ("NUMBA_DISABLE_JIT is set", "unset NUMBA_DISABLE_JIT")


@pytest.fixture
def made_up(monkeypatch):
    monkeypatch.setattr(findings, "findings", lambda group: filter(None, [MADE_UP.get(group)]))


def test_the_text(run, made_up):
    with rfrope.threads(3):
        code, out, _ = run("doctor")
    assert code == 0
    assert out.splitlines() == [
        f"rfrope {rfrope.__version__}, Python {platform.python_version()}, {platform.system()} {platform.machine()}",
        f"threads for rfrope's own loops: 3; cores: {os.cpu_count()}",
        "",
        "Array libraries",
        "  active  NumPy: 2.4",
        "  active  CuPy: 14.2.0",
        *(f"          device {i}: NVIDIA Test, compute capability 9.0, 3.0 GiB" for i in range(2)),
        "",
        "Accelerators",
        "  -       CUDA kernels: no compiler",
        "          next: install one",
    ]


def test_the_json_holds_what_the_text_says(run, made_up, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    held = json.loads(run("doctor", "--json")[1])
    assert (held["cores"], held["rfrope"], held["python"]) == (1, rfrope.__version__, platform.python_version())
    assert [one["name"] for one in held["libraries"]] == ["NumPy", "CuPy"]
    assert held["libraries"][1]["devices"] == [DEVICE, DEVICE]
    assert held["accelerators"][0]["advice"] == "install one"
