"""The score sheet of engines: that its table is what the command gives here, and that the judge sees what is wrong."""

import contextlib
import dataclasses
import functools
import importlib.metadata
import pathlib

import numpy as np
import pytest
from packages import installed

from rfrope import models
from tools import score_engines
from tools.score_engines import DRIVERS, HEAD, MODULES, judge, score

pytestmark = pytest.mark.filterwarnings("ignore")
TABLE = pathlib.Path(__file__).parents[2] / "docs" / "_data" / "engines_scores.csv"
HELD = score_engines.read_table(TABLE)


@functools.cache
def conformance():
    return {case["name"]: case for case in models.conformance()}


@pytest.mark.campaign
@pytest.mark.parametrize("name", DRIVERS)
def test_the_table_is_what_the_command_gives(name):
    installed(MODULES[name])
    version = importlib.metadata.version(DRIVERS[name].package).partition("+")[0]
    if version != HELD[name][1]:
        pytest.skip(f"{name} {version} is installed, and the table is of {HELD[name][1]}")
    assert score(name) == HELD[name]


def test_the_table_has_every_engine_and_every_case():
    assert list(HELD) == list(DRIVERS)
    for row in HELD.values():
        told = dict(zip(HEAD, row, strict=True))
        named = [one for kind in ("wrong", "refused") for one in told[kind].split("; ") if one != "none"]
        assert set(named) <= set(conformance())
        numbers = (int(told[name]) for name in ("right", "right but for float32", "not for it"))
        assert int(told["cases"]) == len(conformance()) == sum(numbers) + len(named)


@pytest.mark.parametrize("name", ["MLX-LM", "SGLang", "vLLM"])
def test_what_is_wrong_is_what_the_rules_say(name):
    """A case that an engine is seen to turn otherwise is one that its rule reads otherwise, and no other."""
    expected = set()
    for case in conformance().values():
        with contextlib.suppress(score_engines._NotForItError):
            rope = score_engines.require_reading(name, case).rope
            wanted = (*case["frequencies"], case["attention_factor"])
            if rope is not None and (*rope.frequencies, rope.attention_factor) != pytest.approx(wanted, rel=1e-9):
                expected.add(case["name"])
    assert set(dict(zip(HEAD, HELD[name], strict=True))["wrong"].split("; ")) == expected


def driver(change):
    """Return an engine that turns as the case says, but for a change of what it is given."""

    def turn(case, positions, x):
        rows = np.flatnonzero(np.isin(case["positions"], positions))
        cos, sin = (case[name][rows].astype(np.float32) for name in ("cos", "sin"))
        return change(score_engines.turn_halves(x, cos, sin), x, positions)

    return dataclasses.replace(DRIVERS["MLX"], turn=turn)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda got, x, at: got, "right"),
        (lambda got, x, at: got + 1e-7 * at[:, None] * np.abs(x).max(), "float32"),
        (lambda got, x, at: got + 3e-6 * at[:, None] * np.abs(x).max(), "wrong"),
        (lambda got, x, at: np.where(at[:, None] == 3, got + 0.01, got), "wrong"),
        (lambda got, x, at: got * np.nan, "wrong"),
        (lambda got, x, at: 1.05 * got, "wrong"),
        (lambda got, x, at: x, "wrong"),
        (lambda got, x, at: {}["rope_type"], "refused"),
    ],
    ids=["right", "rounding", "too much rounding", "one position", "not a number", "factor", "not turned", "error"],
)
def test_the_judge(change, said):
    assert judge(driver(change), conformance()["default"]) == said


def test_a_row_that_says_something_else_is_found(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(score_engines, "DRIVERS", {"MLX": driver(lambda got, x, at: got)})
    monkeypatch.setattr(score_engines, "is_installed", lambda name: True)
    monkeypatch.setattr(score_engines.importlib.metadata, "version", lambda package: "1.0+cpu")
    cases = [conformance()[name] for name in ("default", "llama3")]
    monkeypatch.setattr(models, "conformance", lambda: cases)
    path = tmp_path / "scores.csv"
    assert score_engines.main(["--write", str(path)]) == 0
    assert path.read_text("utf-8").splitlines()[1] == "MLX,1.0,export,2,2,0,none,none,0"
    assert score_engines.main(["--check", str(path)]) == 0
    monkeypatch.setattr(score_engines, "DRIVERS", {"MLX": driver(lambda got, x, at: 2.0 * got)})
    assert score_engines.main(["--check", str(path)]) == 1
    assert "MLX,1.0,export,2,0,0,default; llama3,none,0" in capsys.readouterr().out
