"""The plugin of pytest that runs the conformance vectors against an engine."""

import os
import re
import subprocess
import sys

import pytest
from campaign import HANGS, campaign
from conftest import rows

ENGINE = """
import numpy as np

def rope(case, phases):
    width = case["rotary_dim"]
    block, parts = np.arange(width // 2), case["sections"]
    if parts:
        owner = np.repeat(range(len(parts)), parts)
        if case["interleaved_sections"]:
            owner = np.where(block < len(parts) * np.take(parts, block % len(parts)), block % len(parts), 0)
        phases = phases[:, owner, block]
    return np.cos(phases), np.sin(phases)

def turn(case, positions, x, factor):
    if case["pairing"] != "half":
        raise NotImplementedError("neighbours")
    if case["turns"] == "last":
        return None
    cos, sin = rope(case, positions[..., None] * case["frequencies"])
    result, half = x.copy(), case["rotary_dim"] // 2
    one, two = x[:, :half], x[:, half:2 * half]
    result[:, :half], result[:, half:2 * half] = one * cos - two * sin, two * cos + one * sin
    result[:, :2 * half] *= factor
    return result

def rotated(case, positions, x):
    return turn(case, positions, x, case["attention_factor"])

def relocated(case, positions, new_positions, k):
    return turn(case, new_positions - positions, k, 1.0)
"""


@pytest.fixture
def run(tmp_path):
    def call(source, *arguments):
        (tmp_path / "engine.py").write_text(source, encoding="utf-8")
        (tmp_path / "test_other.py").write_text("def test_other(): raise SystemExit", encoding="utf-8")
        plugin = ("-p", "no:rfrope", "-p", "rfrope.integrations.conformance", "-p", "no:cacheprovider")
        command = (sys.executable, "-m", "pytest", "-q", *plugin, *arguments)
        done = subprocess.run(
            command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}, capture_output=True,
            text=True, check=False, timeout=HANGS,
        )  # fmt: skip
        counts = {what: int(count) for count, what in re.findall(r"(\d+) (passed|failed|skipped)", done.stdout)}
        return done.returncode, counts, done.stdout + done.stderr

    return call


@pytest.mark.campaign
def test_a_right_engine_passes_and_what_it_does_not_take_is_skipped(run):
    code, counts, out = run(ENGINE, "--rfrope-target=engine", "--rfrope-tolerance=1e-9")
    assert (code, counts) == (0, {"passed": 66, "skipped": 12}), out
    code, counts, _ = run(ENGINE, "--rfrope-target=engine:rotated", "-k", "gemma or yarn")
    assert (code, counts["passed"] > 5, "failed" in counts) == (0, True, False)


@campaign
@pytest.mark.parametrize(("right", "wrong", "said"), rows("integrations/conformance.json", "wrong_engines"))
def test_a_wrong_engine_fails_with_the_config_beside_it(run, right, wrong, said):
    assert ENGINE.count(right) == 1
    code, counts, out = run(ENGINE.replace(right, wrong), "--rfrope-target=engine")
    assert (code, counts["failed"] > 0) == (1, True)
    assert said in out
    assert "from it follow: pairing half" in out or "from it follow: part" in out


@campaign
@pytest.mark.parametrize(
    ("target", "said"),
    [("engine:np", "neither"), ("nowhere", "No module named"), ("engine:rope.no", "no attribute")],
)
def test_targets_that_are_none_are_refused(run, target, said):
    code, _, out = run(ENGINE, f"--rfrope-target={target}")
    assert (code, said in out) == (4, True), out


@campaign
def test_pytest_is_as_before_without_a_target(run):
    _, _, out = run(ENGINE, "--collect-only")
    assert "test_other" in out
