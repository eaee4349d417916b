"""``--html``: a page holds what the text says, asks for nothing, and a browser draws what Python computed."""

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
from rfrope.cli import page

pytestmark = pytest.mark.usefixtures("quick_fits")

LADDER = ["--base", "1e4", "--head-dim", "32", "--context", "512"]
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 128}
CONFIG = {"model_type": "qwen3", "head_dim": 32, "max_position_embeddings": 512, "rope_parameters": YARN}
FAST = ["--samples", "2000", "--trials", "500"]
COMMANDS = {
    "inspect": lambda config: ["inspect", config],
    "validate": lambda config: ["validate", "gaussian(scale=9)", "rational_quadratic(alpha=1.5, scale=24)", *FAST],
    "compare": lambda config: ["compare", config, "--engine", "transformers", "--engine", "vllm"],
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


KINDS = ("words", "curves", "points", "table", "copyable")


def parts(path, *kinds):
    """Parts of some kinds of a page."""
    return [one for one in browser.parts_of(path.read_text("utf-8")) if one["kind"] in kinds]


# -- what is in a page -------------------------------------------------------------------------------------------------


VERDICTS = {
    "inspect": r"^In short: equal content first scores .* \S+: 16 frequencies for 32 features ",
    "validate": r"^PASSED: largest \|z\| \S+ \(.*\); bound \S+ \(Bonferroni",
    "compare": r"^They agree\.$",
    "plan": r"^The config is already stretched by yarn with factor 4, .*\. From 128 trained positions to 1024, 8 ",
    "design": r"^Frequencies, radians .* 16 independent draws stay within .* it asks for \d+ of them\.$",
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_page_holds_the_text_and_asks_for_nothing(made, config, command):
    path, told = made(*COMMANDS[command](config))
    content = path.read_text("utf-8")
    (text,) = re.findall(r"<summary>The same as text</summary><pre>(.*?)</pre>", content, re.DOTALL)
    assert " ".join(html.unescape(text).split()) in " ".join(told.split())
    assert not re.search(r"""(src|href)\s*=|@import|url\((?!data:)""", re.sub(r"<script.*?</script>", "", content))
    said = ("default-src 'none'", "Permission is hereby granted")  # uPlot's licence goes with it
    assert [one for one in said if one not in content] == []
    assert len(content) < 500_000
    assert f"rfrope {command} " in parts(path, "copyable")[-1]["text"]
    first = parts(path, "words")[0]["paragraphs"]
    assert re.search(VERDICTS[command], " ".join(first))
    assert [paragraph for paragraph in first if paragraph not in " ".join(told.split())] == []
    if command == "design":  # a curve of each head, and the one that misses most in front
        (curves,) = parts(path, "curves")
        assert [one.partition(":")[0] for one in curves["groups"]] == ["0", "1", "2"]
        assert [one["group"] for one in curves["sets"]] == [0, 1, 2]
        assert (len(curves["phi"]), curves["group"] in range(3)) == (3, True)
        assert not curves["waves"]
        assert not curves["others"]
    if command != "inspect":  # of one set the text has sentences
        words = [set(re.split(r"  +", line.strip())) for line in told.splitlines()]
        for row in parts(path, "table")[0]["rows"]:
            assert any({cell for cell in row if cell} <= line for line in words), row


def test_the_library_is_the_one_that_was_published():
    folder = pathlib.Path(page.__file__).parents[1] / "data"
    digest = hashlib.sha256((folder / "page" / "uPlot.iife.min.js").read_bytes()).hexdigest()
    assert digest in (folder / "README.md").read_text("utf-8")


def test_text_cannot_leave_its_place():
    hostile = "</script><script>alert(1)</script><!--"
    content = page.rendered(hostile, [page.copyable(hostile, hostile)], hostile)
    assert content.count("<script>alert") == 0
    assert browser.parts_of(content)[0]["text"] == hostile


def test_each_table_of_inspect_stands_below_its_title(made):
    path, told = made("inspect", *LADDER, "--base", "1e5")
    tables = {table["title"]: table["rows"] for table in parts(path, "table")}
    words = [set(re.split(r"  +", line.strip())) for line in told.splitlines()]
    for title, column in (("Over the context", "never turn"), ("What they are", "nearest kernel")):
        assert column in tables[title][0]
    assert all(any(set(row) <= line for line in words) for rows in tables.values() for row in rows)


def test_the_script_finds_what_it_asks_for(made):
    """Every field that it reads of a figure is in the page, and it computes no cosine of its own."""
    script = (pathlib.Path(page.__file__).parents[1] / "data" / "page" / "page.js").read_text("utf-8")
    asked, found = set(re.findall(r"\b(?:part|given)\.(\w+)", script)), set()
    for command in ("design", "validate"):
        found |= {key for one in parts(made(*COMMANDS[command](None))[0], *KINDS) for key in one}
    found |= {*page.lines("", "", ("", ""), np.zeros(1), ["0"], 0, {})}  # `rfrope heads` has its own tests
    assert asked
    assert asked <= found
    assert not re.search(r"Math\.(cos|sin|log|exp|pow|PI)|\*\*", script)


def test_a_ladder_is_changed_by_bases_and_schemes_and_other_sets_are_stretched(made, config):
    (figure,) = parts(made("inspect", config)[0], "curves")
    names = ["base", *(f"{name}, factor" for name in ("linear", "ntk", "yarn", "llama3"))]
    assert [one["name"] for one in figure["others"]] == names
    (figure,) = parts(made("design", "matern(nu=1.5)", "--head-dim", "32", "--context", "256")[0], "curves")
    assert [one["name"] for one in figure["others"]] == ["all wavelengths, times"]


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
        found = browser.run(path, script, width=width)
        assert found["wide"] <= 1
        assert found["parts"] == len(parts(path, *KINDS))
        assert found["buttons"] == len(parts(path, "copyable"))
        assert re.search(r"(lags? \d+|z -?\d+\.\d\d)", found["read"]), "what the pointer is at"
        assert "Point at the figure" not in found["read"]


MOVE = """
  const settle = async (name, value, event) => {
    const one = document.querySelector(`[name="${name}"]`);
    one.value = value; one.dispatchEvent(new Event(event)); await wait(10);
  };
  const seen = () => JSON.parse(JSON.stringify(rfrope.drawn.find((one) => one && one.sets)));
  const texts = (row) => [...row.cells].map((cell) => cell.textContent);
  const rows = () => [...document.querySelector("section table").rows].map(texts);
"""


@campaign
def test_choices_show_the_numbers_that_python_computed(made, config):
    path, _ = made("inspect", config)
    script = """
      const found = [seen()], told = [rows()];
      const shown = (name) => document.querySelector(`[name="${name}"]`).nextSibling.textContent;
      await settle("context", 3, "input"); found.push(seen()); told.push(rows(), shown("context"));
      await settle("one more line", 3, "change"); await settle("value", 1, "input"); found.push(seen());
      told.push(shown("value"));
      document.querySelector(".controls button").click(); found.push(seen());
      return {found, told};"""
    found = browser.run(path, MOVE + script)
    (figure,) = parts(path, "curves")
    own, other = figure["sets"][0], figure["others"][3]["sets"][1]
    states = found["found"]
    assert [state["sets"] for state in states] == [[own], [own], [own, other], [own]]
    assert [state["context"] for state in states] == [512, figure["contexts"][3], figure["contexts"][3], 512]
    assert found["told"][0][1] == [own["label"], *own["rows"][figure["start"]]]
    assert found["told"][1][1] == [own["label"], *own["rows"][3]]
    assert found["told"][2:] == [str(figure["contexts"][3]), "yarn, factor 4"]
    assert states[-1] == states[0], "reset"


@campaign
def test_a_head_is_chosen_and_its_kernel_with_it(made):
    path, _ = made(*COMMANDS["design"](None))
    found = browser.run(path, MOVE + 'await settle("head", 2, "change"); return seen();')
    (figure,) = parts(path, "curves")
    assert found["sets"] == [figure["sets"][2]]
    middle = (np.asarray(figure["starts"]) + figure["ends"]) // 2
    np.testing.assert_allclose(figure["phi"][2]["mid"], rfrope.kernel("matern", nu=1.5, scale=64.0)(middle), atol=1e-6)


@campaign
def test_one_of_several_is_shown_at_a_time(made, config, tmp_path):
    """The verdict of the first stands above; a radio button shows another, by the keyboard as by a pointer."""
    sources = {"first": LADDER, "second": [config]}
    names = {name: parts(made("inspect", *words)[0], *KINDS) for name, words in sources.items()}
    path = tmp_path / "both.html"
    path.write_text(page.rendered("Two", names, "text"), "utf-8")
    script = """
      const seen = () => [document.getElementById("verdict").innerText, document.querySelectorAll("section").length,
        rfrope.drawn.length, document.activeElement.checked];
      const radios = [...document.querySelectorAll("fieldset input")], found = [seen()];
      radios[1].focus(); radios[1].click(); await wait(10); found.push(seen());
      return {found, named: radios.map((one) => one.parentElement.innerText.trim())};"""
    found = browser.run(path, script, width=390)
    assert found["named"] == [*names]
    for (verdict, sections, drawn, _), kept in zip(found["found"], names.values(), strict=True):
        assert verdict == next(one for one in kept if one["kind"] == "words")["paragraphs"][0]
        assert verdict.startswith("In short: ")
        assert sections == drawn == len(kept)
    assert found["found"][0][0] != found["found"][1][0]
    assert found["found"][1][3] is True


@campaign
def test_arrow_keys_read_a_figure_aloud(made):
    path, _ = made("inspect", *LADDER)
    script = """
      const box = document.querySelector(".chart"), seen = [];
      box.focus();
      for (const key of ["End", "Home", "ArrowRight", "PageDown"]) {
        box.dispatchEvent(new KeyboardEvent("keydown", {key, bubbles: true, cancelable: true}));
        seen.push(box.getAttribute("aria-valuetext"));
      }
      return {seen, focus: document.activeElement === box, role: box.getAttribute("role"),
        scrolled: [...document.querySelectorAll(".scroll")].every((one) => one.tabIndex === 0 && one.ariaLabel),
        named: [...document.querySelectorAll("input, select, button")].every((one) => !one.offsetParent || one.ariaLabel
          || one.labels?.length || one.innerText)};"""
    found = browser.run(path, script)
    assert [found[name] for name in ("focus", "role", "scrolled", "named")] == [True, "slider", True, True]
    lags = [re.match(r"lags? (\d+)", one)[1] for one in found["seen"]]
    assert (int(lags[0]) > 450, lags[1:]) == (True, ["1", "2", "1"])
    (figure,) = parts(path, "curves")
    assert f": {figure['sets'][0]['mid'][figure['ends'].index(2)]:.4f}" in found["seen"][2]
