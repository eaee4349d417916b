"""``import rfrope`` stays light, and needs no optional library."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

HEAVY = (
    "numba",
    "scipy.stats",
    "scipy.special",
    "scipy.optimize",
    "matplotlib",
    "torch",
    "cupy",
    "jax",
    "dask",
    "array_api_compat",
    "finufft",
    "tqdm",
)


def modules_after(code: str) -> list[str]:
    """Names of the modules that a fresh interpreter holds after running some code."""
    script = f"import json, sys\n{code}\nprint(json.dumps(sorted(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    return json.loads(run.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def after_import():
    return modules_after("import rfrope")


@pytest.mark.parametrize("module", HEAVY)
def test_import_leaves_out(after_import, module):
    assert "rfrope" in after_import
    assert module not in after_import


def test_the_probe_sees_a_heavy_import():
    assert "scipy.special" in modules_after("import rfrope, scipy.special")


def test_numpy_work_needs_no_other_library():
    used = modules_after(
        "import numpy as np, rfrope\n"
        "omega = rfrope.geometric(4)\n"
        "rfrope.scores(np.ones((3, 8)), np.ones((3, 8)), range(3), range(3), omega)\n"
        "rfrope.expected_score(np.ones(8), np.ones(8), 1.0, 'gaussian')"
    )
    assert not {"torch", "jax", "dask", "cupy", "array_api_compat", "finufft", "matplotlib"} & set(used)


def test_kernels_and_validate_run_without_array_libraries():
    used = modules_after("import rfrope\nrfrope.validate('exponential', n_samples=100, n_trials=100)")
    assert not {"torch", "jax", "dask", "cupy", "array_api_compat", "matplotlib", "scipy.stats"} & set(used)


def test_importing_under_optimisation_is_silent():
    run = subprocess.run(
        [sys.executable, "-OO", "-W", "error", "-c", "import rfrope, rfrope.cli"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")
