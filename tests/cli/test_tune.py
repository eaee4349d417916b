"""``rfrope tune`` on a tiny model: text, JSON, the Rope, the page, a checkpoint, and what is refused."""

import re

import browser
import numpy as np
from packages import WARNINGS

import rfrope

pytestmark = WARNINGS


def line(model, *more):
    texts = [model / f"{number}.txt" for number in range(6)]
    sizes = ("--context", "64", "--trained", "32", "--window", "16", "--steps", "2", "--rate", "0.1")
    return ["tune", model, *sizes, "--texts", *texts, *more]


def test_the_text_the_rope_and_the_page(says, model, tmp_path):
    paths = [tmp_path / name for name in ("rope.npz", "tuning.html", "kept.safetensors")]
    options = ("--starts", "ntk", "-o", paths[0], "--html", paths[1], "--checkpoint", paths[2])
    out = says(*line(model, *options))
    assert re.match("(within|No step)", out)
    for name in ("as it is", "ntk", "learned"):
        assert re.search(rf"^{name} .* ± ", out, re.MULTILINE)
    rope = rfrope.load(paths[0])
    assert (rope.source.scaled_by[-1]["scheme"], rope.context) == ("learned", 64)
    kinds = ["verdict", "words", "words", "table", "words", "copyable"]
    assert [part["kind"] for part in browser.parts_of(paths[1].read_text("utf-8"))] == kinds
    found = says(*line(model, *options, "--force", "--json"))
    np.testing.assert_array_equal(found["ropes"][0]["frequencies"], rope.frequencies)
    assert {*found["losses"]} == {"as it is", "ntk", "learned"}
    assert len(found["losses"]["ntk"]["beyond"]["documents"]) == 2


def test_one_text_is_cut(says, model):
    options = ["--texts", model / "text.txt", "--documents", "5", "--starts", "ntk", "--json"]
    out = says(*[one for one in line(model) if not str(one).endswith(".txt")][:-1], *options)
    assert len(out["losses"]["learned"]["within"]["documents"]) == 2
