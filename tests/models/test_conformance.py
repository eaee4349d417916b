"""Vectors for the tests of other engines, and the runner that lies beside them."""

import json
import os
import subprocess
import sys
from dataclasses import replace

import mpmath
import numpy as np
import pytest
from campaign import HANGS
from conftest import rows

import rfrope
from rfrope import models, scaling

CASES = {case["name"]: case for case in models.conformance()}


def schemes(case):
    config = case["config"]
    held = config.get("rope_parameters") or config.get("rope_scaling") or {"rope_type": "default"}
    for one in [one for one in held.values() if isinstance(one, dict)] or [held]:
        yield "dynamic with alpha" if "alpha" in one else one.get("rope_type", one.get("type"))


def test_every_scheme_pairing_width_section_and_position_has_a_case():
    assert {name for case in CASES.values() for name in schemes(case)} >= set(scaling.names())
    assert {case["interleaved_sections"] for case in CASES.values() if case["sections"]} == {True, False}
    assert {(c["rotary_dim"] < c["head_dim"], c["pairing"]) for c in CASES.values()} == {
        (partial, pairing) for partial in (True, False) for pairing in ("half", "interleaved")
    }
    assert len({round(case["attention_factor"], 6) for case in CASES.values()}) >= 7
    assert any(np.any(case["frequencies"] < 0.0) for case in CASES.values())
    # both sides of powers of two, the ends of types of 16 bits, and a whole number that float32 has not
    positions = {0, 1, 255, 256, 4095, 4096, 8191, 32767, 65535, 131071, 2**20 - 1, 2**24 + 1}
    assert positions <= set(CASES["default"]["positions"].tolist())
    assert {case["turns"] for case in CASES.values()} == {"first", "last"}


@pytest.mark.parametrize("name", CASES)
def test_a_case_says_what_from_config_does_and_its_table_is_exact(name):
    case = CASES[name]
    ropes = rfrope.from_config(case["config"], seq_len=case["seq_len"])
    (rope,) = [one for one in ropes if one.source.model.name == case["part"]]
    assert np.array_equal(rope.frequencies, case["frequencies"])
    for field in ("pairing", "head_dim", "attention_factor"):
        assert getattr(rope, field) == case[field]
    row, block = -1, min(2, rope.n_blocks - 1)
    with mpmath.workdps(50):
        position, vector = (np.atleast_1d(one).tolist() for one in (case["positions"][row], rope.vectors[block]))
        phase = mpmath.fsum(mpmath.mpf(p) * mpmath.mpf(w) for p, w in zip(position, vector, strict=True))
        wanted = rope.attention_factor * float(mpmath.cos(phase)), rope.attention_factor * float(mpmath.sin(phase))
    assert (case["cos"][row, block], case["sin"][row, block]) == pytest.approx(wanted, abs=4e-15)
    plain = {name: value for name, value in case.items() if not isinstance(value, np.ndarray)}
    assert json.loads(json.dumps(plain)) == plain


def test_layers_are_those_of_the_configs_lists():
    layers = {name: case["layers"] for name, case in CASES.items() if case["layers"] is not None}
    assert layers == {
        "gemma 4, sliding_attention": [0, 1, 2, 3, 4],
        "gemma 4, full_attention": [5],
        "deepseek v4, main": [0],
        "deepseek v4, compress": [1, 2, 3],
        "list of layers": [0, 1, 2, 4, 5, 6],
    }


@pytest.mark.parametrize("name", CASES)
def test_moved_keys_are_those_of_their_new_positions(name):
    """By the one turn of `relocate`, whose error in float64 does not grow with the distance."""
    case = CASES[name]
    ropes = rfrope.from_config(case["config"], seq_len=case["seq_len"])
    (rope,) = [one for one in ropes if one.source.model.name == case["part"]]
    first = case["head_dim"] - case["rotary_dim"] if case["turns"] == "last" else 0
    narrow = replace(rope, head_dim=case["head_dim"] - first)
    moved = rfrope.rotation.relocate(case["rotated"][:, first:], case["positions"], case["new_positions"], narrow)
    np.testing.assert_allclose(moved, case["relocated"][:, first:], atol=2e-13)
    assert np.array_equal(case["relocated"][:, :first], case["x"][:, :first])
    assert np.max(np.abs(case["relocated"] - case["rotated"])) > 0.5


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("conformance") / "vectors"
    models.conformance(path)
    return path


def run_script(script):
    """Return exit code and lines of the runner, or of another in its place, without the package."""
    command = [sys.executable, "-I", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=HANGS)
    assert done.stderr == ""
    return done.returncode, done.stdout.splitlines()


def test_the_runner_passes_as_it_stands(folder):
    code, lines = run_script(folder / "run.py")
    assert (code, len(lines)) == (0, len(CASES))
    assert all(line.startswith("right: ") for line in lines)
    assert "rfrope" not in (folder / "run.py").read_text("utf-8")


@pytest.mark.parametrize(("right", "wrong", "least"), rows("models/conformance.json", "wrong"))
def test_the_runner_finds_what_is_wrong(folder, right, wrong, least):
    source = (folder / "run.py").read_text("utf-8")
    assert source.count(right) == 1
    (folder / "changed.py").write_text(source.replace(right, wrong), encoding="utf-8")
    code, lines = run_script(folder / "changed.py")
    assert (code, sum(line.startswith("wrong ") for line in lines) >= least) == (1, True)


def test_files_hold_the_cases(folder):
    assert {"README.md", "cases.json", "cases.npz", "run.py"} <= set(os.listdir(folder))
    assert [case["name"] for case in json.loads((folder / "cases.json").read_text("utf-8"))] == list(CASES)
    with np.load(folder / "cases.npz") as held:
        assert len(held.files) == 8 * len(CASES)
        assert all(np.array_equal(held[f"{name}/rotated"], case["rotated"]) for name, case in CASES.items())


def test_a_folder_appears_complete_or_not_at_all(tmp_path, monkeypatch):
    (tmp_path / "mine").write_text("precious")
    with pytest.raises(FileExistsError, match="exists and holds something; expected a new or empty folder"):
        models.conformance(tmp_path)
    with pytest.raises(OSError, match=r"nowhere"):
        models.conformance(tmp_path / "nowhere" / "vectors")
    (tmp_path / "empty").mkdir()
    models.conformance(tmp_path / "empty")

    def fail(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="No space left"):
        models.conformance(tmp_path / "vectors")
    assert sorted(os.listdir(tmp_path)) == ["empty", "mine"]
