"""``import rfrope`` stays light, and needs no optional library."""

import functools
import json
import subprocess
import sys

import pytest
from campaign import HANGS, campaign, sparse
from conftest import rows

LIBRARIES = {"torch", "jax", "dask", "cupy", "array_api_compat", "matplotlib"}
HEAVY = LIBRARIES | {"numba", "scipy.stats", "scipy.special", "scipy.optimize", "triton", "finufft", "tqdm"}


def modules_after(code: str) -> list[str]:
    """Names of the modules that a fresh interpreter holds after running some code."""
    script = f"import json, sys\n{code}\nprint(json.dumps(sorted(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=HANGS)
    return json.loads(run.stdout.splitlines()[-1])


WORK = """
import hashlib, json, sys
import numpy as np, rfrope
x = np.random.default_rng(0).standard_normal((3, 8), dtype=np.float32)
results = [
    rfrope.rotate(x, range(3), rfrope.sample("matern(nu=0.8)", 4, rng=0)),
    rfrope.estimate_kernel([0.0, 1.0], "gaussian", n_samples=64, rng=0).value,
    rfrope.estimate_scores(x[0], x[1], 1.0, "cauchy", n_trials=64, rng=0).mean.value,
]
print(hashlib.sha256(b"".join(np.asarray(v).tobytes() for v in results)).hexdigest())
"""
SCORES = """
import numpy as np, rfrope
rfrope.scores(np.ones((3, 8)), np.ones((3, 8)), range(3), range(3), rfrope.geometric(4))
rfrope.expected_score(np.ones(8), np.ones(8), 1.0, "gaussian")
"""
VALIDATE = "import rfrope\nrfrope.validate('exponential', n_samples=100, n_trials=100)"


@pytest.mark.parametrize(
    ("code", "unused"),
    [
        ("import rfrope", HEAVY),
        (SCORES, LIBRARIES | {"finufft"}),
        (VALIDATE, LIBRARIES | {"scipy.stats"}),
        (WORK, {"cupy"}),
    ],
    ids=["import", "scores", "validate", "work"],
)
def test_what_is_not_needed_is_not_imported(code, unused):
    used = set(modules_after(code))
    assert "rfrope" in used
    assert unused & used == set()


@pytest.mark.parametrize(("package", "call", "said"), rows("project/import.json", "missing"))
def test_a_package_that_is_missing_is_named(package, call, said):
    code = f"import sys; sys.modules[{package!r}] = None; import rfrope\ntry: {call}\nexcept ImportError as e: print(e)"
    run = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=HANGS)
    assert (run.stdout, run.stderr) == (f"{said}\n", "")


@campaign
def test_importing_under_optimisation_is_silent():
    run = subprocess.run(
        [sys.executable, "-OO", "-W", "error", "-c", "import rfrope, rfrope.cli"],
        capture_output=True,
        text=True,
        timeout=HANGS,
    )
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")


CUPY = {
    "as it is": "",
    "imported": "import cupy",
    "missing": "import sys; sys.modules['cupy'] = None",
    "half imported": "import sys, types; sys.modules['cupy'] = types.ModuleType('cupy')",
}


@functools.cache
def digest(before):
    run = subprocess.run([sys.executable, "-c", before + WORK], capture_output=True, text=True, timeout=HANGS)
    assert run.returncode == 0, run.stderr
    return run.stdout


@campaign
@pytest.mark.parametrize("cupy", sparse(["imported", "missing", "half imported"], lambda cupy: cupy == "missing"))
def test_work_on_the_cpu_is_the_same_whatever_cupy_is(cupy):
    if cupy == "imported":
        pytest.importorskip("cupy", reason="cupy is not installed")
    assert digest(CUPY[cupy]) == digest(CUPY["as it is"])
