"""``rfrope heads`` on a tiny model: text, tables, page, and what is refused before a model is loaded."""

import csv
import re
import sys

import browser
import numpy as np
import pytest
from packages import WARNINGS

from rfrope import heads

pytestmark = WARNINGS


def line(model, *more):
    return ["heads", model, "--texts", model / "text.txt", "--documents", "4", "--tokens", "32", *more]


def test_the_text_the_tables_and_the_page_have_every_head_with_errors(says, model, tmp_path):
    paths = [tmp_path / name for name in ("heads.csv", "blocks.csv", "heads.html")]
    out = says(*line(model, "--table", paths[0], "--block-table", paths[1], "--html", paths[2]))
    assert out.startswith("The lag alone explains ")
    assert "\nThe law nearest to the frequencies of all heads: " in out
    rows = re.findall(r"^([01]\.\d)  .* ± ", out, re.MULTILINE)
    assert sorted(rows) == [f"{layer}.{head}" for layer in (0, 1) for head in range(4)]
    table, blocks = ([*csv.DictReader(path.read_text("utf-8").splitlines())] for path in paths[:2])
    assert (len(table), len(blocks)) == (8, 64)
    shares = np.array([float(row["share"]) for row in blocks]).reshape(8, 8)
    np.testing.assert_allclose(shares.sum(axis=1) + [float(row["unturned"]) for row in table], 1.0, atol=1e-6)
    for row in table:
        assert all(float(row[f"{name}_stderr"]) >= 0.0 for name in ("variance", "lag_explained", "sink", "change_half"))
    parts = browser.parts_of(paths[2].read_text("utf-8"))
    assert [part["kind"] for part in parts] == ["verdict", "words", "words", "table", "table", "copyable"]
    assert len(parts[4]["rows"]) == 9


def test_json_and_several_texts(says, model):
    texts = [model / f"{number}.txt" for number in range(3)]
    found = says("heads", model, "--json", "--tokens", "32", "--texts", *texts)
    assert (found["documents"], found["tokens"], len(found["heads"]), len(found["blocks"])) == (3, 32, 8, 64)
    assert "(" in found["law"]["kernel"]
    assert (found["heads"][5]["layer"], found["heads"][5]["head"]) == (1, 1)


def test_what_is_missing_is_said_before_the_work(run, model, monkeypatch):
    monkeypatch.setitem(sys.modules, "rfrope.integrations.text_caches", None)
    monkeypatch.delattr("rfrope.integrations.text_caches", raising=False)
    code, out, err = run(*line(model))
    assert (code, out) == (2, "")
    assert "rfrope heads needs more" in err


class Words:
    """A tokenizer with a token for each word: its number in the text."""

    def __call__(self, text, verbose):
        return {"input_ids": [*range(len(text.split()))]}


def test_one_text_is_cut_into_stretches_far_apart_and_several_are_taken_from_their_start():
    pytest.importorskip("transformers", "5.0", reason="transformers 5 is not installed")
    from rfrope.integrations.text_caches import cut_documents

    assert cut_documents(Words(), ["a " * 100], 4, 5) == [[*range(at, at + 5)] for at in (0, 25, 50, 75)]
    assert cut_documents(Words(), ["a " * 9, "b " * 7], 4, 3) == [[0, 1, 2]] * 2
    with pytest.raises(ValueError, match="text 2 has 2 tokens; expected 3"):
        cut_documents(Words(), ["a " * 9, "b " * 2], 4, 3)


def test_rows_for_json_have_none_for_what_is_not_known():
    from rfrope.cli.texts import _cell, _rows

    rows = [{"offset": 1.0, "n": 1}, {"offset": None, "n": 2}]
    assert _rows({"offset": np.array([1.0, np.nan]), "n": np.array([1, 2])}) == rows
    estimate = heads.HeadEstimate(np.array([1.23456, np.nan, 123.4, 2.0]), np.array([0.0123, np.nan, 25.0, 0.0]))
    assert [_cell(estimate, at) for at in range(4)] == ["1.235 ± 0.012", "none", "123 ± 25", "2.00 ± 0.00"]
