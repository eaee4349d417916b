"""Results as one line of text."""

import dataclasses
import functools
import html
import json
from contextvars import Context

import numpy as np
import pytest
from conftest import library

import rfrope
from rfrope import analysis, bochner, engines, heads, models
from rfrope._core import results
from rfrope.montecarlo import Estimate

LADDER = rfrope.geometric(8)
Q, K = np.random.default_rng(0).standard_normal((2, 9, 16))
HEADS = np.random.default_rng(1).standard_normal((2, 3, 1, 9, 16))

RESULTS = {
    "Estimate": lambda: rfrope.estimate_kernel([1.0, 2.0], "gaussian", n_samples=100, rng=0),
    "ScoreEstimate": lambda: rfrope.estimate_scores(Q[0], K[0], -1.0, "gaussian", n_trials=100, rng=0),
    "Band": lambda: rfrope.moments.mean_kernel_band(np.arange(99.0), "gaussian", n_blocks=8),
    "PositionalAttention": lambda: heads.positional_attention(LADDER, 64),
    "Profile": lambda: heads.profile(Q, K, np.arange(-5, 1), LADDER),
    "EffectiveOffset": lambda: heads.effective_offset(Q, K, LADDER, max_lag=5),
    "Peak": lambda: heads.offset_of(LADDER, heads.phase_shift(-3, LADDER), low=-9.0),
    "HeadEstimate": lambda: heads.atlas(*HEADS, LADDER).share,
    "Similarity": lambda: analysis.similarity(np.arange(9), LADDER),
    "Departure": lambda: analysis.departure(Q, K, -1, LADDER),
    "KernelFit": lambda: analysis.fit_kernel(LADDER, 64)[0],
}
# results with words of their own
WORDS = {
    "Certificate": lambda: bochner.from_function(lambda x: np.exp(-np.abs(x) / 8.0)).certificate,
    "Validation": lambda: rfrope.validate("cauchy(scale=24)", n_samples=1000, n_trials=100, rng=0),
    "Atlas": lambda: heads.atlas(*HEADS, LADDER),
    "Summary": lambda: analysis.summarise(LADDER, 64),
    "BaseForContext": lambda: analysis.base_for_context(64, 4, n_grid=20),
    "Plan": lambda: analysis.plan(rfrope.Rope(LADDER, context=64), 128),
    "Comparison": lambda: models.compare(CONFIG, ["transformers", "vLLM"]),
    "Audit": lambda: models.audit(LADDER.astype(np.float32), rfrope.Rope(LADDER)),
    "Rounding": lambda: engines.rounding(rfrope.Rope(LADDER, context=64), "vllm"),
}
CONFIG = {"model_type": "llama", "head_dim": 128, "max_position_embeddings": 4096, "rope_theta": 1e4}


@functools.cache
def made(name):
    return (RESULTS | WORDS)[name]()


@pytest.mark.parametrize("name", [*RESULTS, *WORDS])
def test_dicts_of_results_are_what_json_gives_back(name):
    """Plain numbers, texts, lists and dicts: whoever stores them reads the same again."""
    held = made(name).to_dict()
    assert str(made(name).report()) == str(made(name))
    assert json.loads(json.dumps(held, allow_nan=False)) == held


@pytest.mark.parametrize("name", RESULTS)
def test_results_are_one_line(name):
    result, text = made(name), str(made(name))
    assert text.startswith(f"{name}: ")
    assert "\n" not in text
    assert len(text) < 600
    assert all(f"{field.removeprefix('_')} " in text for field in result.__dataclass_fields__)
    assert repr(result) != text


def test_lazy_results_are_not_computed():
    da = library("dask").module
    held = Estimate(da.map_blocks(lambda x: 1 / 0, da.ones(5), dtype=float), np.ones(2), 3)
    assert str(held) == "Estimate: value of shape (5,), stderr [1, 1], n 3, trusted True"


def test_a_notebook_shows_the_text():
    result, text = made("Validation"), str(made("Validation"))
    assert result._repr_html_() == f"<pre>{html.escape(text)}</pre>"
    odd = Estimate(np.ones(1), np.ones(1), "a < b")
    assert "n a &lt; b," in odd._repr_html_()


def test_plain_values_are_ready_for_json():
    inner = dataclasses.make_dataclass("Inner", ["value", "numbers"])
    held = {"one": inner(-np.inf, np.array([1.0, np.nan])), "many": ({"flag": np.bool_(True)}, (2, None, "text"))}
    wanted = {"one": {"value": None, "numbers": [1.0, None]}, "many": [{"flag": True}, [2, None, "text"]]}
    found = results.plain(held)
    assert json.loads(json.dumps(found, allow_nan=False)) == found == wanted


@pytest.mark.parametrize(("left", "second"), [(None, "bb  1    x"), ((0,), "bb    1  x")])
def test_rows_are_aligned_in_columns(left, second):
    assert results.align([("a", "200", ""), ("bb", "1", "x")], left) == ["a   200", second]


def test_a_report_is_sentences_and_tables():
    """Tables have a rule and escapes, names without a head their width; what a page alone shows is not in the text."""
    table = results.Table([("name", "number"), ("one\x1b", "12"), ("two", "1")], "Title", note="A\nnote")
    pairs = results.Table([("turn", "3 blocks")], "Blocks", head=False)
    config = [results.Copyable("config", {"a": 1}), results.Copyable("config", {"a": 1}, text="{...}")]
    report = results.Report(
        [results.Words(["One.", "Two."]), table, lambda: [1 / 0], pairs, *config, results.Words([])]
    )
    lines = ["Title:", "name     number", "-------  ------", "one\\x1b      12", "two           1", "", "A\nnote"]
    pair = f"Blocks\n  {'turn':20}3 blocks"
    assert str(report) == "\n\n".join(["One.\nTwo.", "\n".join(lines), pair, "{...}"])


def test_lines_fit_a_width():
    def at(width, function, *arguments):
        return Context().run(lambda: (results.WIDTH.set(width), function(*arguments))[1])

    rows = [("name", "number", "what it is"), ("one", "12 345 678", "a long text of many words that is broken")]
    assert max(map(len, at(100, results.align, rows))) == 58
    lines = at(40, results.align, rows, (0, 2))
    assert max(map(len, lines)) <= 40
    assert all(line[6:16] in ("    number", "12 345 678", " " * 10) for line in lines)
    assert " ".join(line[18:].strip() for line in lines[1:]) == rows[1][2]
    assert at(22, results.align, rows, (0, 2)) == [
        *("name      number", "one   12 345 678", "", "name  what it is", "one   a long text of"),
        *("      many words that", "      is broken"),
    ]
    for text in ("two\n  lines", "a word " * 50):
        assert at(None, results.fill, text) == at(None, results.wrap, text) == text
    assert at(20, results.fill, "a text\nof some lines that are broken") == "a text of some lines\nthat are broken"
    for line, broken in {
        "x: what is broken off hangs": "x: what is broken\n  off hangs",
        "  label  what it says of it": "  label  what it\n         says of it",
        "    indented, without labels": "    indented,\n      without labels",
        "a_word_that_is_longer_than_that": "a_word_that_is_longer_than_that",
    }.items():
        assert at(20, results.wrap, line) == broken
