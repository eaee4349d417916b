"""Experiments on learned factors: what is planted and asked for, and contrasts with known answers."""

from __future__ import annotations

import contextlib
import re

import numpy as np
import packages
import pytest
from conftest import library


@pytest.fixture
def script(monkeypatch):
    yield from packages.experiment_scripts(monkeypatch, library("torch").module)


def test_documents_have_notes_at_eight_depths_and_their_answers_at_the_end(script, monkeypatch):
    made = script("tune_smollm2")
    monkeypatch.setattr(made, "encode", lambda written: [ord(one) for one in written])
    monkeypatch.setattr(made, "text", lambda name: "t" * 9999)
    ids, is_text, answers = made.plant(0, 2048)
    assert len(ids) == len(is_text) == 2048
    assert (ids[is_text] == ord("t")).all()
    written = "".join(map(chr, ids))
    room = int(is_text.sum())
    for i, (name, at) in enumerate(zip(made.NAMES, answers, strict=True)):
        code = "".join(map(chr, ids[at]))
        note = f"\n\nThe code of {name} is{code}.\n\n"
        assert written.count(note) == 1, "the answer is that of its own note"
        assert written[: int(at[0])].endswith(f"\n\nThe code of {name} is")
        assert not is_text[at].any()
        before = int(is_text[: written.index(note)].sum())
        assert before == (2 * i + 1) * room // 16
    assert min(at.min() for at in answers) > np.flatnonzero(is_text).max()
    assert sorted(at[0] for at in answers) != [at[0] for at in answers], "asked for in another order"
    assert not np.array_equal(ids, made.plant(1, 2048)[0])


def test_texts_that_teach_ask_for_notes_at_their_end_that_no_document_has(script, monkeypatch):
    made = script("tune_smollm2")
    monkeypatch.setattr(made, "encode", lambda written: [ord(one) for one in written])
    monkeypatch.setattr(made, "text", lambda name: name * (99999 if name == "c" else 9999))
    read = []

    class Texts:
        def __init__(self, model):
            pass

        def read(self, ids):
            read.append("".join(map(chr, ids)))

    monkeypatch.setattr(made, "TextCaches", Texts)
    monkeypatch.setattr(made, "model_and_tokenizer", lambda: (None, None))
    monkeypatch.setattr(made, "rotation", lambda *_: made.rfrope.Rope([1.0]))
    monkeypatch.setattr(made, "replace_rotary", lambda *_: contextlib.nullcontext())
    made.long_texts.cache_clear()
    _, asked, checksum, _ = made.long_texts(16384, False, (("a", "b"), ("c",)), 32)
    made.long_texts.cache_clear()
    monkeypatch.setattr(made, "text", lambda name: name * (99999 if name == "c" else 9998))
    assert made.long_texts(16384, False, (("a", "b"), ("c",)), 32)[2] != checksum, "a checkpoint knows other texts"
    made.long_texts.cache_clear()
    read = read[:2]
    assert [len(one) for one in read] == [16384] * 2
    for written, begin in zip(read, asked, strict=True):
        notes, questions = written[:begin], written[begin:]
        codes = re.findall(r"\n\nRoom (\d+) opens with ((?:[a-z] ){4}[a-z])\.\n\n", notes)
        assert sorted(codes) == sorted(re.findall(r"\n\nRoom (\d+) opens with ((?:[a-z] ){4}[a-z])", questions))
        assert len({room for room, _ in codes}) == 32
        assert not any(name in written for name in made.NAMES)
    assert read[0].count("b") > 4000, "texts are joined"
    monkeypatch.setattr(made, "text", lambda name: "t" * 99999)
    judged = "".join(map(chr, made.plant(0, 16384)[0]))
    assert "Room" not in judged
    assert not any(code in judged for _, code in codes)


def test_every_fourth_window_is_of_questions_and_the_others_are_spread_over_the_context(script):
    made = script("tune_smollm2")
    two, asked = made.VARIANTS["two texts"], [32361, 32300]
    learning, looks = made.chosen(two, two.steps, asked, 8192, 32768, 256, np.random.default_rng(0))
    firsts = np.asarray([int(one.firsts[0]) for one in learning])
    assert (len(learning), two.rooms, two.rate) == (30, 32, 0.02)
    assert {int(one.texts[0]) for one in learning} == {0}
    assert all(asked[0] <= first <= 32768 - 257 for first in firsts[3::4])
    others = np.delete(firsts, np.arange(3, 30, 4))
    assert len({*np.floor(others / (32511 / 30))}) == 23, "one in each of so many equal parts"
    assert {part: len(windows) for part, windows in looks.items()} == {"within": 1, "beyond": 2, "asked": 1}
    for part, (low, high) in {"within": (0, 8192), "beyond": (8192, 32768), "asked": (asked[1], 32768)}.items():
        for one in looks[part]:
            assert low <= int(one.firsts[0]) <= high - 257
            assert int(one.texts[0]) == 1
    all_keys, ends = made.VARIANTS["all keys"], [32768] * 4
    learning, looks = made.chosen(all_keys, 60, ends, 8192, 32768, 256, np.random.default_rng(0))
    assert len({np.floor(int(one.firsts[0]) / (32511 / 60)) for one in learning}) == 60
    assert [int(one.texts[0]) for one in learning[:4]] == [0, 1, 2, 0]
    assert {part: len(windows) for part, windows in looks.items()} == {"within": 3, "beyond": 5}


def test_contrasts_of_readings_have_the_sign_of_the_learned_less_the_other(script):
    made = script("tune_smollm2")
    rows = []
    for number in range(9):
        for method, loss in (("yarn", 2.0 + number), ("learned", 1.9 + number + 0.01 * (number % 3))):
            row = {"encoding": f"4x, {method}", "seed": str(number), "kind": "code", "within": "1", "beyond": f"{loss}"}
            row |= {f"answer {i}": f"{i}" for i in range(8)} | {f"right {i}": f"{i % 2}" for i in range(8)}
            rows.append(row)
    less = made.differences(rows, 4, "yarn", "beyond", "learned")
    np.testing.assert_allclose(less, [-0.1, -0.09, -0.08] * 3)
    low, high = made.bootstrap(less)
    assert -0.1 < low < -0.09 < high < -0.08
    assert high - low == pytest.approx(2 * 1.96 * np.std(less) / 3.0, rel=0.1)


def test_variants_are_judged_against_yarn_and_their_chances_corrected_together(script):
    made, rows = script("tune_smollm2"), []
    for number in range(9):
        for method, more in (("yarn", 0.0), ("all keys", -0.1), ("all keys by layer", 0.001 * (-1) ** number)):
            loss = 2.0 + number + more + 0.01 * (more < -0.05) * (number % 3)
            row = {"encoding": f"2x, {method}", "seed": str(number), "kind": [*made.JUDGING.values()][number]}
            row |= {"within": f"{2 * loss}", "beyond": f"{loss}"}
            rows.append(row | {f"answer {i}": f"{loss}" for i in range(8)} | {f"right {i}": "0" for i in range(8)})
    one, by_layer = made.variants(rows)
    assert [one["learned by"], by_layer["learned by"]] == [*made.LEARNED][:2]
    assert one["less yarn, beyond"].startswith("-0.0900 ± 0.0029 (-0.09")
    assert one["less yarn, within"].startswith("-0.1800 ± 0.0058 (")
    assert by_layer["less yarn, recall"].startswith("+0.0001 ± 0.0004 (")
    three = [f"corrected p, {part}" for part in ("within", "beyond", "recall")]
    chances = [float(line[part]) for line in (one, by_layer) for part in three]
    alone = float(made.stats.ttest_1samp([-0.1, -0.09, -0.08] * 3, 0.0).pvalue)
    assert chances[:3] == pytest.approx([18 * alone] * 3, rel=0.05), "all that the protocol asks for count"
    own, _ = made.parts(rows)
    assert own["code"] == "-0.095 ± 0.005", "of documents 0, 3, 6 and 8"
    assert (own["at 0.062"], own["prose"]) == ("-0.09 ± 0.00", "-0.080 ± 0.000")
    few = [row for row in rows if row["seed"] == "0"]
    assert made.variants(few) == [], "one document has no error"
    assert all(one == 1.0 for one in chances[3:])
    assert {one["documents"], by_layer["documents"]} == {"9"}


def test_the_small_model_is_judged_against_the_best_scheme(script):
    made = script("tune_lm")
    assert made.parts(2) == {"within": (16, 128), "to 2x": (128, 256)}
    assert made.parts(4) == {"within": (16, 128), "to 2x": (128, 256), "to 4x": (256, 512)}
    rng, rows = np.random.default_rng(0), []
    levels = dict.fromkeys(made.METHODS, 3.0) | {"as it is": 2.0, "ntk": 2.7, "learned": 2.5}
    for seed in range(5):
        noise = rng.normal(size=24)
        row = {"encoding": "4x, model", "seed": str(seed)}
        for name, level in levels.items():
            for part in made.parts(4):
                row[f"{name}, {part}"] = " ".join(f"{one:.5f}" for one in level + noise + 0.01 * rng.normal(size=24))
        rows.append(row)
    found = made.primary(rows)
    assert [*found] == ["learned less as it is, within", *(f"learned less ntk, to {i}x" for i in (2, 4))]
    for one, wanted in zip(found.values(), (0.5, -0.2, -0.2), strict=True):
        assert one.mean == pytest.approx(wanted, abs=0.01)
        assert one.interval[0] < one.mean < one.interval[1]
    line = next(row for row in made.table(rows) if row["rotation"] == "ntk")
    assert line["learned less it, to 4x"].startswith("-0.2")
    for row in rows:  # rows of a file have all columns, and those of a run its own
        row["encoding"] = "2x, model"
        del row["ntk, to 4x"]
    rows[0]["ntk, to 4x"] = ""
    line = next(row for row in made.table(rows) if row["rotation"] == "ntk")
    assert float(line["learned less it, to 2x"].partition(" ")[0]) == pytest.approx(-0.2, abs=0.01)
    assert line["learned less it, to 4x"] == ""
