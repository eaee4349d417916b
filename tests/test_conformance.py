"""Vectors for the tests of other engines, and the runner that lies beside them."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys

import mpmath
import numpy as np
import pytest
from campaign import HANGS

import rfrope
from rfrope import models, scaling

conformance_module = importlib.import_module("rfrope.models.conformance")  # beside the function of that name

CASES = {case["name"]: case for case in models.conformance()}


def test_every_scheme_pairing_width_and_section_has_a_case():
    schemes = {"dynamic with alpha" if "alpha" in told else told.get("rope_type", told.get("type"))
               for case in CASES.values() for told in dicts(case)}  # fmt: skip
    assert schemes >= {scheme.name for scheme in scaling.SCHEMES}
    assert {case["pairing"] for case in CASES.values()} == {"half", "interleaved"}
    assert {case["interleaved_sections"] for case in CASES.values() if case["sections"]} == {True, False}
    assert {(c["rotary_dim"] < c["head_dim"], c["pairing"]) for c in CASES.values()} == {
        (partial, pairing) for partial in (True, False) for pairing in ("half", "interleaved")
    }
    assert len({round(case["attention_factor"], 6) for case in CASES.values()}) >= 7
    assert any(np.any(case["frequencies"] < 0.0) for case in CASES.values())
    assert len(CASES) == 30


def dicts(case):
    config = case["config"]
    told = config.get("rope_parameters") or config.get("rope_scaling") or {"rope_type": "default"}
    return [one for one in told.values() if isinstance(one, dict)] or [told]


@pytest.mark.parametrize("name", CASES)
def test_a_case_says_what_from_config_does_and_its_table_is_exact(name):
    case = CASES[name]
    (rope,) = [one for one in rfrope.from_config(case["config"], seq_len=case["seq_len"])
               if one.source.model.name == case["part"]]  # fmt: skip
    assert np.array_equal(rope.frequencies, case["frequencies"])
    assert (rope.pairing, rope.head_dim, rope.attention_factor) == (
        case["pairing"], case["head_dim"], case["attention_factor"])  # fmt: skip
    vectors, positions = np.asarray(rope.vectors), case["positions"]
    row, block = -1, min(2, rope.n_blocks - 1)
    with mpmath.workdps(50):
        at, along = np.atleast_1d(positions[row]).tolist(), np.atleast_1d(vectors[block]).tolist()
        phase = mpmath.fsum(mpmath.mpf(p) * mpmath.mpf(w) for p, w in zip(at, along, strict=True))
        wanted = rope.attention_factor * float(mpmath.cos(phase)), rope.attention_factor * float(mpmath.sin(phase))
    assert (case["cos"][row, block], case["sin"][row, block]) == pytest.approx(wanted, abs=4e-15)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("conformance") / "vectors"
    models.conformance(path)
    return path


def ran(folder, source=None):
    """Exit code and lines of the runner, or of another in its place, without the package."""
    script = folder / "run.py"
    if source is not None:
        script = folder / "changed.py"
        script.write_text(source, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-I", str(script)], capture_output=True, text=True, check=False, timeout=HANGS
    )
    assert done.stderr == ""
    return done.returncode, done.stdout.splitlines()


def test_the_runner_passes_as_it_stands(folder):
    code, lines = ran(folder)
    assert code == 0
    assert len(lines) == len(CASES)
    assert all(line.startswith("right: ") for line in lines)
    assert "rfrope" not in (folder / "run.py").read_text("utf-8")
    assert len((folder / "run.py").read_text("utf-8").splitlines()) <= 45


@pytest.mark.parametrize(
    ("right", "wrong", "least"),
    [
        ('case["attention_factor"] * np.cos(phases), case["attention_factor"] * np.sin', "np.cos(phases), np.sin", 6),
        ('case["pairing"] == "interleaved"', "False", 3),
        ("np.sin(phases)", "np.sin(-phases)", 29),
        ('if case["interleaved_sections"]', "if False", 1),
        ("positions[..., None] * frequencies", "positions[..., None] * frequencies.astype(np.float16)", 20),
        ("return result", "return result * np.nan", 30),
    ],
    ids=["factor dropped", "one pairing", "sense of turning", "sections in a row", "half precision", "not a number"],
)  # fmt: skip
def test_the_runner_finds_what_is_wrong(folder, right, wrong, least):
    source = (folder / "run.py").read_text("utf-8")
    assert source.count(right) == 1
    code, lines = ran(folder, source.replace(right, wrong))
    assert code == 1
    assert sum(line.startswith("wrong from position ") for line in lines) >= least


def test_files_hold_the_cases(folder):
    assert {"README.md", "cases.json", "cases.npz", "run.py"} <= set(os.listdir(folder))
    told = json.loads((folder / "cases.json").read_text("utf-8"))
    held = np.load(folder / "cases.npz")
    assert [case["name"] for case in told] == list(CASES)
    assert len(held.files) == 6 * len(CASES)
    for name, case in CASES.items():
        assert np.array_equal(held[f"{name}/rotated"], case["rotated"])
    assert "cases.npz" in (folder / "README.md").read_text("utf-8")


def test_a_folder_that_holds_something_stays(tmp_path):
    (tmp_path / "mine").write_text("precious")
    with pytest.raises(FileExistsError, match="exists and holds something; expected a new or empty folder"):
        models.conformance(tmp_path)
    assert os.listdir(tmp_path) == ["mine"]
    with pytest.raises(OSError, match=r"nowhere"):
        models.conformance(tmp_path / "nowhere" / "vectors")
    (tmp_path / "empty").mkdir()
    models.conformance(tmp_path / "empty")
    assert sorted(os.listdir(tmp_path)) == ["empty", "mine"]


def test_nothing_is_left_of_a_write_that_fails(tmp_path, monkeypatch):
    def fail(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="No space left"):
        models.conformance(tmp_path / "vectors")
    assert os.listdir(tmp_path) == []


def test_positions_of_the_cases():
    """Both sides of powers of two, where types of 16 bits end, and a whole number that float32 has not."""
    positions = set(conformance_module._POSITIONS)
    assert {0, 1, 255, 256, 4095, 4096, 2**20 - 1, 2**24 + 1} <= positions
    assert all(p in positions for p in (8191, 32767, 65535, 131071))


def test_published_parameters_are_those_of_the_models():
    """Llama 3.1 as its config says it."""
    (told,) = [
        config["rope_parameters"]
        for _, config, _ in conformance_module._CASES.values()
        if config.get("rope_parameters", {}).get("rope_type") == "llama3" and config["rope_parameters"]["factor"] == 8.0
    ]
    expected = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    assert {key: told[key] for key in expected} == expected


def test_cases_are_what_files_give_back():
    """Lists, not tuples."""
    for case in models.conformance():
        plain = {name: value for name, value in case.items() if not isinstance(value, np.ndarray)}
        assert json.loads(json.dumps(plain)) == plain
