"""``--html``: a page holds what the text says, asks for nothing, and a browser draws it and follows the sliders."""

from __future__ import annotations

import hashlib
import html
import json
import pathlib
import re

import browser
import numpy as np
import pytest
from campaign import campaign

import rfrope
from rfrope import analysis, scaling
from rfrope.cli import page

pytestmark = pytest.mark.usefixtures("quick_fits")

LADDER = ["--base", "1e4", "--head-dim", "32", "--context", "512"]
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 128}
CONFIG = {"model_type": "qwen3", "head_dim": 32, "max_position_embeddings": 512, "rope_parameters": YARN}
FAST = ["--samples", "2000", "--trials", "500"]
COMMANDS = {
    "inspect": lambda config: ["inspect", config],
    "validate": lambda config: ["validate", "gaussian(scale=9)", "rational_quadratic(alpha=1.5, scale=24)", *FAST],
    "compare": lambda config: ["compare", config],
    "plan": lambda config: ["plan", config, "--context", "1024"],
    "design": lambda config: ["design", "matern(nu=1.5)", *HEADS],
}
HEADS = ["--head-dim", "32", "--heads", "3", "--ladder", "8:64", "--context", "256"]


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG), encoding="utf-8")
    return path


@pytest.fixture
def made(run, config, tmp_path):
    """``made(command)`` runs it with ``--html`` and returns the page's path and the text that was printed."""

    def make(*arguments):
        target = tmp_path / "page.html"
        code, out, err = run(*arguments, "--html", target, "--force")
        assert (code, err) == (0, "")
        assert f"Written: {target}" in out
        return target, out.strip()

    return make


def parts(path, kind):
    """Parts of one kind of a page."""
    report = re.search(r'id="report">(.*?)</script>', path.read_text("utf-8"), re.DOTALL)[1]
    return [one for one in json.loads(report)["parts"] if one["kind"] == kind]


# -- what is in a page -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", COMMANDS)
def test_a_page_holds_the_text_and_asks_for_nothing(made, config, command):
    path, told = made(*COMMANDS[command](config))
    content = path.read_text("utf-8")
    (text,) = re.findall(r"<summary>The same as text</summary><pre>(.*?)</pre>", content, re.DOTALL)
    assert html.unescape(text) in told
    assert not re.search(r"""(src|href)\s*=|@import|url\((?!data:)""", re.sub(r"<script.*?</script>", "", content))
    assert "default-src 'none'" in content
    assert "Permission is hereby granted" in content  # uPlot's licence goes with it
    assert len(content) < 300_000
    assert f"rfrope {command} " in parts(path, "copyable")[-1]["text"]


VERDICTS = {
    "inspect": r"^\S+: 16 frequencies for 32 features .* In short: equal content averages ",
    "validate": r"^PASSED: largest \|z\| \S+ \(.*\); bound \S+ \(Bonferroni",
    "compare": r"^They agree\.$",
    "plan": r"^The config is stretched already, by yarn with factor 4, .*\. From 128 trained positions to 1024, 8 ",
    "design": r"^3 heads of 16 frequencies, .* 16 independent draws stay within .* it asks for \d+ of them\.$",
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_page_begins_with_what_was_found(made, config, command):
    path, told = made(*COMMANDS[command](config))
    report = re.search(r'id="report">(.*?)</script>', path.read_text("utf-8"), re.DOTALL)[1]
    first = json.loads(report)["parts"][0]
    assert first["kind"] == "words"
    assert re.search(VERDICTS[command], " ".join(first["paragraphs"]))
    for paragraph in first["paragraphs"]:
        assert paragraph in " ".join(told.split())


def test_the_caption_names_the_line_that_sliders_start_from():
    line = page.Curve("as it is", rfrope.geometric(4), 7)
    for ladder, words in (
        (None, "factor draws “as it is” once more, with all wavelengths times the factor."),
        ({"width": 8}, "base, scheme and factor draw one more line, which begins as “as it is”."),
    ):
        assert page.curves("", [line], 8, ladder=ladder)["caption"].endswith(f"that of the command; {words}")


@pytest.mark.parametrize("command", COMMANDS)
def test_tables_of_a_page_are_those_of_the_text(made, config, command):
    path, told = made(*COMMANDS[command](config))
    words = [set(re.split(r"  +", line.strip())) for line in told.splitlines()]
    if command == "inspect":  # of one set the text has sentences
        words = [set(re.split(r"  +", line.strip())) for line in made("inspect", config, *LADDER)[1].splitlines()]
    tables = parts(path, "table")
    assert tables
    for table in tables[:1]:
        for row in table["rows"]:
            assert any({cell for cell in row if cell} <= line for line in words), row


def test_curves_hold_the_frequencies_themselves(made, config):
    path, _ = made("inspect", config)
    (figure,) = parts(path, "curves")
    (rope,) = rfrope.from_config(config)
    assert figure["sets"][0]["terms"] == rope.frequencies.tolist()
    assert figure["ladder"]["scheme"] == "yarn"
    assert (figure["context"], figure["most"]) == (512, 2048)


def test_several_axes_go_along_the_diagonal(made):
    path, _ = made("design", "gaussian(scale=8, ndim=2)", "--head-dim", "16", "--context", "24,14")
    (figure,) = parts(path, "curves")
    omega = rfrope.design("gaussian(scale=8, ndim=2)", head_dim=16, context=(24, 14), rng=0).frequencies
    assert figure["sets"][0]["terms"] == np.sum(omega, axis=-1).tolist()
    assert "every axis" in figure["xlabel"]


def test_the_library_is_the_one_that_was_published():
    folder = pathlib.Path(page.__file__).parents[1] / "data"
    digest = hashlib.sha256((folder / "page" / "uPlot.iife.min.js").read_bytes()).hexdigest()
    assert digest in (folder / "README.md").read_text("utf-8")


def test_text_cannot_leave_its_place():
    hostile = "</script><script>alert(1)</script><!--"
    content = page.rendered(hostile, [page.copyable(hostile, hostile)], hostile)
    assert content.count("<script>alert") == 0
    report = re.search(r'id="report">(.*?)</script>', content, re.DOTALL)[1]
    assert json.loads(report)["parts"][0]["text"] == hostile


@pytest.mark.parametrize("last", [1, 2, 7, 511, 10**6])
def test_bins_hold_every_lag_once(last):
    starts = page.first_lags(last)
    assert starts[0] == 1
    assert np.all(np.diff(starts) > 0)
    assert starts[-1] <= last


def test_each_table_of_inspect_stands_below_its_title(made):
    page, _ = made("inspect", *LADDER)
    told = page.read_text("utf-8")
    over, what = told.index("Over the context"), told.index("What they are")
    assert over < told.index("never turn") < what < told.index("nearest kernel")


def test_pages_are_refused_before_the_work(run, tmp_path, monkeypatch):
    monkeypatch.setattr(analysis.summary, "fit_kernel", lambda *given, **more: pytest.fail("work was done"))
    code, _, err = run("inspect", *LADDER, "--html", tmp_path / "page.txt")
    assert (code, err.count("\n")) == (2, 1)
    assert "expected a name that ends in .html" in err
    there = tmp_path / "there.html"
    there.write_text("kept")
    code, _, err = run("inspect", *LADDER, "--html", there)
    assert code == 2
    assert "--force" in err
    assert there.read_text() == "kept"
    assert run("validate", "gaussian", "--html", tmp_path / "none" / "page.html")[0] == 2


def test_a_head_of_a_page_has_its_number(made):
    (figure,) = parts(made(*COMMANDS["design"](None))[0], "curves")
    assert [one["group"] for one in figure["sets"]] == [0, 1, 2]
    assert len(figure["groups"]) == len(figure["phi"]) == 3
    assert not figure["waves"]


def test_the_script_finds_what_it_asks_for(made, config):
    """Every field that it reads of a figure is in the page."""
    script = (pathlib.Path(page.__file__).parents[1] / "data" / "page" / "page.js").read_text("utf-8")
    asked = set(re.findall(r"\b(?:part|given)\.(\w+)", script))
    found = set()
    for command in COMMANDS:
        report = re.search(
            r'id="report">(.*?)</script>', made(*COMMANDS[command](config))[0].read_text("utf-8"), re.DOTALL
        )
        found |= {key for one in json.loads(report[1])["parts"] for key in one}
    assert asked
    assert asked <= found
    (figure,) = parts(made("inspect", config)[0], "curves")
    assert figure["ylabel"] == "mean kernel"
    assert figure["ladder"]["width"] == 32
    config.write_text(json.dumps(CONFIG | {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}))
    (figure,) = parts(made("plan", config, "--context", "1024")[0], "curves")
    assert figure["ladder"]["base"] == 1e4


def test_schemes_that_a_page_does_not_compute_have_no_ladder():
    assert page.ladder(64, 1e4, {"rope_type": "longrope"}, still=0, context=512) is None
    assert page.ladder(64, 1e4, {"rope_type": "yarn", "factor": 2.0}, still=1, context=512)["original"] == 512


# -- in a browser ------------------------------------------------------------------------------------------------------


@campaign
@pytest.mark.parametrize("command", COMMANDS)
def test_a_browser_shows_a_page(made, config, command):
    path, _ = made(*COMMANDS[command](config))
    script = """
      const over = document.querySelector(".u-over"), at = over.getBoundingClientRect();
      const where = {bubbles: true, clientX: at.left + 0.4 * at.width, clientY: at.top + 90};
      for (const kind of ["mouseenter", "mousemove"]) over.dispatchEvent(new MouseEvent(kind, where));
      await wait(100);
      return {parts: rfrope.drawn.length, read: over.closest("section").innerText,
        wide: document.documentElement.scrollWidth - document.documentElement.clientWidth,
        buttons: document.querySelectorAll(".copyable button").length};"""
    for width in (1280, 390) if command == "inspect" else (390,):
        found, console = browser.run(path, script, width=width)
        assert console == []
        assert found["wide"] <= 1
        assert found["parts"] == sum(
            len(parts(path, kind)) for kind in ("words", "curves", "points", "table", "copyable")
        )
        assert found["buttons"] == len(parts(path, "copyable"))
        assert re.search(r"(lags? \d+|z -?\d+\.\d\d)", found["read"]), "what the pointer is at"
        assert "Point at the figure" not in found["read"]


MOVE = """
  const settle = async (name, value) => {
    const one = document.querySelector(`[name="${name}"]`);
    one.value = value; one.dispatchEvent(new Event("change")); await wait(10);
  };
  const seen = () => JSON.parse(JSON.stringify(rfrope.drawn.find((one) => one && one.sets)));
  const texts = (row) => [...row.cells].map((cell) => cell.textContent);
  const rows = () => [...document.querySelector("section table").rows].map(texts);
"""


LONG = {"original_max_position_embeddings": 128}
BANDS = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
SCHEMES = {
    "default": lambda omega, base, factor: rfrope.Rope(omega),
    "linear": lambda omega, base, factor: scaling.linear(omega, factor),
    "ntk": lambda omega, base, factor: scaling.ntk(omega, factor),
    "yarn": lambda omega, base, factor: scaling.yarn(omega, factor, base=base, **LONG),
    "llama3": lambda omega, base, factor: scaling.llama3(omega, factor, **BANDS, **LONG),
}


def ranges(omega, starts, most, last):
    """Smallest, median and largest mean kernel of the lags of each bin up to the last, None beyond."""
    ends = np.append(starts[1:], most) - 1
    values = analysis.mean_kernel(np.arange(last + 1), omega)
    bins = [values[a : min(b, last) + 1] for a, b in zip(starts, ends, strict=True) if a <= last]
    return [[float(f(one)) for one in bins] for f in (np.min, np.median, np.max)]


def assert_drawn(found, label, omega, last, most=2048):
    held, starts = found["sets"][label], np.asarray(found["lags"])
    for name, wanted in zip(("low", "mid", "high"), ranges(omega, starts, most, last), strict=True):
        np.testing.assert_allclose(held[name][: len(wanted)], wanted, atol=1e-11)
        assert held[name][len(wanted) :] == [None] * (len(starts) - len(wanted))


@campaign
def test_sliders_move_the_curves_to_where_python_has_them(made, config):
    path, _ = made("inspect", config)
    trials = [("default", 2e4, 1.0), ("linear", 1e4, 3.0), ("ntk", 1e4, 8.0), ("yarn", 5e3, 6.0), ("llama3", 1e4, 8.0)]
    moves = "".join(
        f'await settle("scheme", "{name}"); await settle("base", {base}); await settle("factor", {factor});'
        "found.push(seen());"
        for name, base, factor in trials
    )
    script = MOVE + 'const found = [seen()]; const first = rows(); await settle("context", 1500); found.push(seen());'
    script += moves + 'document.querySelector(".controls button").click(); found.push(seen());'
    found, console = browser.run(path, script + "return {found, first, last: rows()};")
    assert console == []
    (rope,) = rfrope.from_config(config)
    states = found["found"]
    label = str(config)
    assert_drawn(states[0], label, rope.frequencies, 511)
    assert_drawn(states[1], label, rope.frequencies, 1499)
    for (name, base, factor), state in zip(trials, states[2:], strict=False):
        wanted = SCHEMES[name](rfrope.geometric(16, base=base), base, factor).frequencies
        np.testing.assert_allclose(state["tried"], wanted, rtol=1e-12, err_msg=name)
        assert_drawn(state, "as the sliders say", wanted, 1499)
        assert_drawn(state, label, rope.frequencies, 1499)
    assert states[-1] == states[0], "reset"
    summary = analysis.summarise(rope).axes[0]
    words = [str(lag or "never") for lag in (summary.half_lag, summary.first_negative_lag)]
    told = [label, *words, f"{summary.lowest:.3f}", str(summary.lowest_lag), str(summary.n_dead)]
    assert found["first"][1] == found["last"][1] == told


@campaign
def test_sliders_keep_to_their_range_and_say_their_value(made, config):
    path, _ = made("inspect", config)
    script = (
        MOVE
        + """
      const boxes = () => [...document.querySelectorAll(".controls input[type=number]")];
      const state = () => boxes().map((box) => [box.value, box.previousSibling.getAttribute("aria-valuetext")]);
      const found = {start: state(), labels: boxes().map((box) => [box.ariaLabel, box.previousSibling.ariaLabel])};
      for (const value of ["1e9", "-5", "0", "", "77.7"]) {
        for (const box of boxes()) { box.value = value; box.dispatchEvent(new Event("change")); }
        found[value] = state();
      }
      const range = document.querySelector(".controls input[type=range]");
      range.value = 0; range.dispatchEvent(new Event("input"));
      found.slid = state()[0];
      return found;"""
    )
    found, console = browser.run(path, script)
    assert console == []
    assert found["labels"] == [[name, name] for name in ("context", "base", "factor")]
    for text, values in {
        "start": ("512", "10000", "4"),
        "1e9": ("2048", "100000000", "64"),
        "-5": ("2", "100", "1"),
        "0": ("2", "100", "1"),
        "": ("2", "100", "1"),
        "77.7": ("78", "100", "64"),
    }.items():
        assert found[text] == [[value, value] for value in values], text
    assert found["slid"] == ["2", "2"]


@campaign
def test_a_head_is_chosen_and_its_kernel_with_it(made):
    path, _ = made(*COMMANDS["design"](None))
    found, console = browser.run(path, MOVE + 'await settle("head", 2); return seen();')
    assert console == []
    rope = rfrope.design("matern(nu=1.5)", head_dim=32, heads=3, ladder=(8.0, 64.0), context=256, rng=0)
    assert_drawn(found, "these frequencies", rope.frequencies[2, :, 0], 255, most=1024)
    (figure,) = parts(path, "curves")
    starts = np.asarray(figure["starts"])
    middle = (starts + np.append(starts[1:], 1024) - 1) // 2
    law = rfrope.kernel("matern", nu=1.5, scale=64.0)
    np.testing.assert_allclose(figure["phi"][2]["values"], law(middle), atol=1e-12)


@campaign
def test_the_browser_notices_what_is_wrong(made, config, tmp_path):
    path, _ = made("inspect", config)
    broken = tmp_path / "broken.html"
    broken.write_text(path.read_text("utf-8").replace('"starts":[1,', '"starts":[null,').replace("uPlot=", "uPlat="))
    found, console = browser.run(broken, "return rfrope.drawn.length;")
    assert found is None
    assert any("uPlot is not defined" in line for line in console)
