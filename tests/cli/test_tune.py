"""``rfrope tune`` on a tiny model: text, JSON, the Rope, the page, a checkpoint, and what is refused."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
import saved_models
import tiny_models

import rfrope

pytestmark = tiny_models.WARNINGS


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    saved_models.save(path)
    for number in range(6):
        (path / f"{number}.txt").write_text(saved_models.text(64, number), encoding="utf-8")
    (path / "text.txt").write_text(saved_models.text(400), encoding="utf-8")
    (path / "binary.txt").write_bytes(b"\xff\xfe\x00")
    return path


def line(folder, *more):
    texts = [folder / f"{number}.txt" for number in range(6)]
    sizes = ("--context", "64", "--trained", "32", "--window", "16", "--steps", "2", "--rate", "0.1")
    return ["tune", folder, *sizes, "--texts", *texts, *more]


def test_the_text_the_rope_and_the_page(run, folder, tmp_path):
    paths = [tmp_path / name for name in ("rope.npz", "tuning.html", "kept.npz")]
    options = ("--starts", "ntk", "-o", paths[0], "--html", paths[1], "--checkpoint", paths[2])
    code, out, err = run(*line(folder, *options))
    assert (code, err) == (0, "")
    assert out.startswith("Learned from ntk in ")
    for name in ("as it is", "ntk", "learned"):
        assert re.search(rf"^{name} .* ± ", out, re.MULTILINE)
    rope = rfrope.load(paths[0])
    assert rope.source.scaled_by[-1]["scheme"] == "learned"
    assert rope.context == 64
    report = json.loads(re.search(r'id="report">(.*?)</script>', paths[1].read_text("utf-8"), re.DOTALL)[1])
    assert [part["kind"] for part in report["choices"][0]["parts"]] == [
        "words",
        "table",
        "table",
        "copyable",
        "copyable",
    ]
    code, out, err = run(*line(folder, *options, "--force", "--json"))
    assert (code, err) == (0, "")
    found = json.loads(out)
    np.testing.assert_array_equal(found["ropes"][0]["frequencies"], rope.frequencies)
    assert {*found["losses"]} == {"as it is", "ntk", "learned"}
    assert len(found["losses"]["ntk"]["beyond"]["documents"]) == 2


@pytest.mark.parametrize("width", [80, 60])
def test_the_text_fits_a_terminal(run_at, folder, width):
    assert "\nlearned " in run_at(width, *line(folder, "--starts", "ntk"))


def test_windows_may_see_the_text(run, folder):
    found = [run(*line(folder, "--starts", "ntk", "--json", "--keys", keys)) for keys in ("window", "text")]
    assert [code for code, _, _ in found] == [0, 0]
    chosen = [json.loads(out)["history"][0]["validation"] for _, out, _ in found]
    assert chosen[0] != chosen[1]


def test_one_text_is_cut(run, folder):
    options = ["--texts", folder / "text.txt", "--documents", "5", "--starts", "ntk", "--json"]
    code, out, err = run(*[one for one in line(folder) if not str(one).endswith(".txt")][:-1], *options)
    assert (code, err) == (0, "")
    assert len(json.loads(out)["losses"]["learned"]["within"]["documents"]) == 2


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--starts", "yawn"], "--starts is 'yawn'; did you mean 'yarn'"),
        (["--window", "65"], "--window is 65; expected"),
        (["--steps", "0"], "--steps is 0; expected"),
        (["--learnable", "phases"], "--learnable is 'phases'; expected"),
        (["--whole-windows", "1.5"], "--whole-windows is 1.5; expected"),
        (["--keys", "text", "--whole-windows", "0.5"], "--keys is 'text' together with whole_windows; expected one"),
        (["--rate", "-1"], "--rate is -1.0; expected"),
        (["--context", "32"], "--context is 32; expected more than the 32 trained positions"),
        (["-o", "rope.txt"], "-o rope.txt: "),
        (["--trained", "64"], "--context is 64; expected more than the 64 trained positions"),
    ],
)
def test_bad_input_is_named_by_its_option(run, folder, more, message):
    code, out, err = run(*line(folder, *more))
    assert (code, out) == (2, "")
    assert f"rfrope tune: error: {message}" in err


def test_texts_and_models_that_cannot_be_read(run, folder):
    for given, message in (
        (["tune", folder, "--context", "64", "--texts", folder / "binary.txt"], "expected a text in UTF-8"),
        (["tune", folder / "no", "--context", "64", "--texts", folder / "0.txt"], "does not exist"),
        (["tune", folder, "--context", "8192", "--texts", folder / "0.txt"], "has 8 tokens; expected at least 1024"),
    ):
        code, _, err = run(*given)
        assert code == 2
        assert message in err
