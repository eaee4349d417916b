"""``rfrope heads`` on a tiny model: text, tables, page, and what is refused before a model is loaded."""

from __future__ import annotations

import csv
import importlib.util
import json
import re
import sys

import numpy as np
import pytest
import saved_models
import tiny_models

from rfrope import heads
from rfrope.cli import shared
from rfrope.integrations.loading import cut_documents

pytestmark = tiny_models.WARNINGS


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    saved_models.save(path)
    (path / "text.txt").write_text(saved_models.text(200), encoding="utf-8")
    for number in range(3):
        (path / f"{number}.txt").write_text(saved_models.text(40, number), encoding="utf-8")
    (path / "binary.txt").write_bytes(b"\xff\xfe\x00")
    return path


def line(folder, *more):
    return ["heads", folder, "--texts", folder / "text.txt", "--documents", "4", "--tokens", "32", *more]


def test_the_text_the_tables_and_the_page_have_every_head_with_errors(run, folder, tmp_path):
    paths = [tmp_path / name for name in ("heads.csv", "blocks.csv", "heads.html")]
    code, out, err = run(*line(folder, "--table", paths[0], "--block-table", paths[1], "--html", paths[2]))
    assert (code, err) == (0, "")
    assert out.startswith("Atlas of 8 heads of 8 blocks, 4 documents of 32 tokens\n")
    rows = re.findall(r"^([01]\.\d)  .* ± ", out, re.MULTILINE)
    assert sorted(rows) == [f"{layer}.{head}" for layer in (0, 1) for head in range(4)]
    with open(paths[0], encoding="utf-8") as file:
        table = [*csv.DictReader(file)]
    with open(paths[1], encoding="utf-8") as file:
        blocks = [*csv.DictReader(file)]
    assert len(table) == 8
    assert len(blocks) == 64
    shares = np.array([float(row["share"]) for row in blocks]).reshape(8, 8)
    np.testing.assert_allclose(shares.sum(axis=1) + [float(row["unturned"]) for row in table], 1.0, atol=1e-6)
    for row in table:
        assert all(float(row[f"{name}_stderr"]) >= 0.0 for name in ("variance", "lag_explained", "sink", "change_half"))
    report = json.loads(re.search(r'id="report">(.*?)</script>', paths[2].read_text("utf-8"), re.DOTALL)[1])
    kinds = [part["kind"] for part in report["choices"][0]["parts"]]
    assert kinds == ["words", "lines", "lines", "lines", "table", "copyable"]
    curves = report["choices"][0]["parts"][1]
    assert len(curves["groups"]) == 8
    assert curves["x"][:3] == [0, 1, 2]
    for one in curves["sets"]:
        assert np.shape(one["mid"]) == np.shape(one["low"]) == (8, len(curves["x"]))
        assert np.all(np.asarray(one["low"], float) <= np.asarray(one["mid"], float))
        assert np.all(np.asarray(one["mid"], float) <= np.asarray(one["high"], float))
    assert len(report["choices"][0]["parts"][4]["rows"]) == 9
    assert float(table[curves["group"]]["lag_explained"]) == max(float(row["lag_explained"]) for row in table)


@pytest.mark.parametrize("width", [80, 60])
def test_the_text_fits_a_terminal(run_at, folder, width):
    assert "outliers" in run_at(width, *line(folder))


def test_json_and_several_texts(run, folder):
    texts = [folder / f"{number}.txt" for number in range(3)]
    code, out, err = run("heads", folder, "--json", "--tokens", "32", "--texts", *texts)
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["documents"] == 3
    assert len(found["heads"]) == 8
    assert len(found["blocks"]) == 64
    assert (found["heads"][5]["layer"], found["heads"][5]["head"]) == (1, 1)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--tokens", "2"], "--tokens is 2; expected at least 5"),
        (["--documents", "2"], "--documents is 2; expected at least 3"),
        (["--documents", "9"], "the text has 200 tokens; expected 288 for 9 documents of 32"),
        (["--table", "heads.txt"], "--table heads.txt: expected a name that ends in .csv, .parquet"),
        (["--texts", "nowhere.txt"], "--texts nowhere.txt: No such file"),
        (["--texts", "0.txt", "1.txt"], "--texts has 2 files; expected one, or at least 3"),
        (["--texts", "binary.txt"], "--texts binary.txt: expected a text in UTF-8"),
        (["--part", "full"], "--part is 'full', but LlamaForCausalLM has Ropes for ''"),
        (["--skip", "29"], "--skip is 29; expected at most 28 of 32 tokens"),
        (["--texts", "/dev/zero"], "--texts /dev/zero: "),
        (["--skip", "-1"], "--skip is -1; expected at least 0"),
    ],
)
def test_what_is_wrong_is_said_with_its_option(run, folder, more, words, monkeypatch):
    monkeypatch.chdir(folder)
    code, out, err = run(*line(folder, *more))
    assert (code, out) == (2, "")
    assert words in err


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nowhere", "does not exist; expected a folder with a model, or a GGUF file"),
        ("text.txt", "is a file; expected a folder with a model, or a GGUF file"),
        ("empty", "does not load: "),
    ],
)
def test_what_is_no_model_is_refused(run, folder, name, words):
    (folder / "empty").mkdir(exist_ok=True)
    arguments = line(folder)
    arguments[1] = folder / name
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert f"MODEL {folder / name}: " in err
    assert words in err


def test_parquet_needs_pyarrow_and_says_so_before_the_work(run, folder, monkeypatch):
    monkeypatch.setattr(shared.importlib.util, "find_spec", lambda name: None)
    code, out, err = run(*line(folder, "--table", folder / "heads.parquet"))
    assert (code, out) == (2, "")
    assert "Parquet needs pyarrow: pip install pyarrow, or give a name that ends in .csv" in err


@pytest.mark.skipif(importlib.util.find_spec("pyarrow") is None, reason="pyarrow is not installed")
def test_parquet_has_what_csv_has(tmp_path):
    from pyarrow import parquet

    columns = {"layer": np.arange(3), "share": np.array([0.25, np.nan, 1.0]), "outlier": np.array([True, False, True])}
    (tmp_path / "one.parquet").write_bytes(shared.table_file("one.parquet", columns))
    read = parquet.read_table(tmp_path / "one.parquet").to_pydict()
    assert read["layer"] == [0, 1, 2]
    assert read["outlier"] == [True, False, True]
    assert shared.table_file("one.csv", columns) == b"layer,share,outlier\n0,0.25,True\n1,nan,False\n2,1,True\n"


def test_without_transformers_the_reason_is_said(run, folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "rfrope.integrations.loading", None)
    monkeypatch.delattr("rfrope.integrations.loading", raising=False)
    code, out, err = run(*line(folder))
    assert (code, out) == (2, "")
    assert "rfrope heads needs more" in err


class Words:
    """A tokenizer with a token for each word: its number in the text."""

    def __call__(self, text, verbose):
        return {"input_ids": [*range(len(text.split()))]}


def test_one_text_is_cut_into_stretches_far_apart_and_several_are_taken_from_their_start():
    assert cut_documents(Words(), ["a " * 100], 4, 5) == [[*range(at, at + 5)] for at in (0, 25, 50, 75)]
    assert cut_documents(Words(), ["a " * 9, "b " * 7], 4, 3) == [[0, 1, 2]] * 2
    with pytest.raises(ValueError, match="text 2 has 2 tokens; expected 3"):
        cut_documents(Words(), ["a " * 9, "b " * 2], 4, 3)


def test_rows_for_json_have_none_for_what_is_not_known():
    from rfrope.cli.heads import _cell, _rows

    assert _rows({"offset": np.array([1.0, np.nan]), "n": np.array([1, 2])}) == [
        {"offset": 1.0, "n": 1},
        {"offset": None, "n": 2},
    ]
    estimate = heads.HeadEstimate(np.array([1.23456, np.nan, 123.4, 2.0]), np.array([0.0123, np.nan, 25.0, 0.0]))
    assert [_cell(estimate, at) for at in range(4)] == ["1.235 ± 0.012", "none", "123 ± 25", "2.00 ± 0.00"]
