"""``rfrope doctor``: what `rfrope._backends.diagnostics` finds, printed."""

import json
import os
import platform
import subprocess
import sys
from unittest.mock import Mock

import numpy as np
import pytest
from campaign import HANGS, campaign, sparse
from conftest import rows

import rfrope
from rfrope._backends import diagnostics
from rfrope._backends.diagnostics import Diagnosis
from rfrope._core import dispatch
from rfrope.rotation import turning

# packages that are broken in the ways in which installations break, and what is said of each
BROKEN = rows("cli/doctor.json", "broken")


@campaign
@pytest.mark.parametrize("broken", sparse([("cupy", "jax", "dask"), tuple(BROKEN)], lambda names: len(names) == 3))
def test_what_is_broken_has_a_reason_and_the_rest_works(broken, tmp_path):
    for name in broken:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(BROKEN[name][0])
    paths = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-W", "error", "-m", "rfrope", "doctor", "--json"]
    done = subprocess.run(command, capture_output=True, env=os.environ | {"PYTHONPATH": paths}, timeout=HANGS)
    assert (done.returncode, done.stderr) == (0, b"")
    held = json.loads(done.stdout)
    assert set(held) == {"rfrope", "python", "system", "threads", "cores", "libraries", "accelerators"}
    found = {one["name"]: one for one in held["libraries"] + held["accelerators"]}
    assert found["NumPy"] == {"name": "NumPy", "active": True, "detail": np.__version__, "reason": "", "advice": ""}
    assert [one for one in found.values() if not (one["active"] or (one["reason"] and one["advice"]))] == []
    for name in broken:
        _, title, reason = BROKEN[name]
        assert (found[title]["active"], reason in found[title]["reason"]) == (False, True)
    loops = "numba" not in broken and dispatch.backend_function(turning.rotated, "cpu") is not None
    assert found["compiled loops"]["active"] == loops


def test_the_text(says, monkeypatch):
    made_up = [("NumPy", True, "2.4"), ("own", True), ("CUDA kernels", False, "3.0", "no compiler", "install one")]
    probes = [Mock(**{"diagnose.return_value": Diagnosis(*fields)}) for fields in made_up]
    monkeypatch.setattr(diagnostics, "LIBRARIES", probes[:2])
    monkeypatch.setattr(diagnostics, "BACKENDS", probes[2:])
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    with rfrope.threads(3):
        out = says("doctor")
    assert out.splitlines() == [
        f"rfrope {rfrope.__version__} works: 2 of 2 libraries, 0 of 1 accelerators are active.",
        f"Python {platform.python_version()}, {platform.system()} {platform.machine()}; 3 threads, 1 cores",
        "",
        "Libraries",
        "  active  NumPy: 2.4",
        "  active  own: works",
        "",
        "Accelerators",
        "  -       CUDA kernels: 3.0; no compiler",
        "          next: install one",
    ]
    held = says("doctor", "--json")
    assert (held["cores"], held["rfrope"], held["python"]) == (1, rfrope.__version__, platform.python_version())
    assert [one["name"] for one in held["libraries"]] == ["NumPy", "own"]
    assert held["accelerators"][0]["advice"] == "install one"
