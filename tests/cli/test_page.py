"""``--html``: a page holds what the text says, asks for nothing, and a browser draws what Python computed."""

import functools
import hashlib
import html
import json
import pathlib
import re

import browser
import numpy as np
import pytest
from campaign import campaign
from conftest import rows

import rfrope
from rfrope._core.results import Copyable
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


def parts(path, *kinds):
    """Parts of some kinds of a page, or all."""
    found = browser.parts_of(path.read_text("utf-8"))
    return [one for one in found if one["kind"] in kinds or not kinds]


# -- what is in a page -------------------------------------------------------------------------------------------------


VERDICTS = rows("cli/page.json", "verdicts")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_page_holds_the_text_and_asks_for_nothing(made, config, command):
    """Every sentence and row of a page is in the text, below the titles of the text."""
    path, told = made(*COMMANDS[command](config))
    content = path.read_text("utf-8")
    (text,) = re.findall(r"<summary>The same as text</summary><pre>(.*?)</pre>", content, re.DOTALL)
    assert " ".join(html.unescape(text).split()) in " ".join(told.split())
    assert not re.search(r"""(src|href)\s*=|@import|url\((?!data:)""", re.sub(r"<script.*?</script>", "", content))
    said = ("default-src 'none'", "Permission is hereby granted")  # uPlot's licence goes with it
    assert [one for one in said if one not in content] == []
    assert len(content) < 600_000
    assert f"rfrope {command} " in parts(path, "copyable")[-1]["text"]
    (verdict,) = parts(path, "verdict")
    assert re.search(VERDICTS[command], verdict["text"])
    said = [one for words in parts(path, "words") for one in words["sentences"]] + [verdict["text"]]
    for table in parts(path, "table"):
        said += [table["title"], table["note"], *map(" ".join, table["rows"])]
    flat = " ".join(html.unescape(text).split())
    assert [one for one in said if " ".join(one.split()) not in flat] == []
    if command == "design":  # a curve of each head, and the one that misses most in front
        (panel,) = parts(path, "panel")
        _, head = panel["controls"]
        assert [one.partition(":")[0] for one in head["values"]] == ["0", "1", "2"]
        (chart, _) = panel["parts"]
        assert [line["when"]["head"] for line in chart["lines"]] == [0, 1, 2, 0, 1, 2]
        middle = np.asarray(chart["x"])
        law = rfrope.kernel("matern", nu=1.5, scale=64.0)
        low, mid, high = (np.asarray(chart["lines"][5][name]) for name in ("low", "mid", "high"))
        np.testing.assert_allclose(mid, law(middle), atol=1e-6)
        assert np.all((low < mid) & (mid < high))


def test_the_library_is_the_one_that_was_published():
    folder = pathlib.Path(page.__file__).parents[1] / "data"
    digest = hashlib.sha256((folder / "page" / "uPlot.iife.min.js").read_bytes()).hexdigest()
    assert digest in (folder / "README.md").read_text("utf-8")


def test_text_cannot_leave_its_place():
    hostile = "</script><script>alert(1)</script><!--"
    content = page.render(hostile, [page.list_part(Copyable(hostile, hostile))], hostile)
    assert content.count("<script>alert") == 0
    assert browser.parts_of(content)[0]["text"] == hostile


def test_the_script_computes_no_cosine_of_its_own():
    script = (pathlib.Path(page.__file__).parents[1] / "data" / "page" / "page.js").read_text("utf-8")
    assert not re.search(r"Math\.(cos|sin|log|exp|pow|PI)|\*\*", script)


# -- in a browser ------------------------------------------------------------------------------------------------------


@campaign
@pytest.mark.parametrize("command", [one for one in COMMANDS if one != "compare"])  # whose page has no figure
def test_a_browser_shows_a_page(made, config, command):
    path, _ = made(*COMMANDS[command](config))
    script = """
      const over = document.querySelector(".u-over"), at = over.getBoundingClientRect();
      const where = {bubbles: true, clientX: at.left + 0.4 * at.width, clientY: at.top + 90};
      for (const kind of ["mouseenter", "mousemove"]) over.dispatchEvent(new MouseEvent(kind, where));
      await wait(100);
      return {parts: document.querySelectorAll("#body > div > section").length, read: over.closest("section").innerText,
        wide: document.documentElement.scrollWidth - document.documentElement.clientWidth,
        buttons: document.querySelectorAll(".copyable button").length};"""
    for width in (1280, 390) if command == "inspect" else (390,):
        found = browser.run(path, script, width=width)
        assert found["wide"] <= 1
        assert found["parts"] == len(parts(path))
        assert found["buttons"] == len(parts(path, "copyable"))
        assert re.search(r"(lags? \d+|z -?\d+\.?\d*)", found["read"]), "what the pointer is at"
        assert "Point at the figure" not in found["read"]


def is_chosen(now, when):
    return all(now[name] == value for name, value in (when or {}).items())


@campaign
def test_choices_show_the_numbers_that_python_computed(made, config):
    path, _ = made("inspect", config)
    script = """
      const settle = async (name, value) => {
        const one = document.querySelector(`[name="${name}"]`);
        one.value = value; one.dispatchEvent(new Event("input")); await wait(10);
      };
      const texts = (row) => [...row.cells].map((cell) => cell.textContent);
      const see = () => ({lines: rfrope.charts().map((one) => one.lines),
        rows: [...document.querySelector("section table").rows].map(texts),
        hidden: [...document.querySelectorAll(".controls label")].map((one) => one.hidden),
        shown: [...document.querySelectorAll("output")].map((one) => one.textContent)});
      const found = [see()];
      await settle("context", 3); found.push(see());
      await settle("one more line", 4); await settle("yarn, factor", 1); found.push(see());
      return found;"""
    found = browser.run(path, script)
    (panel,) = parts(path, "panel")
    chart, table, waves = panel["parts"]
    for state, chosen in zip(
        found, [{}, {"context": 3}, {"context": 3, "one more line": 4, "yarn, factor": 1}], strict=True
    ):
        now = {one["name"]: one["start"] for one in panel["controls"]} | chosen

        holds = functools.partial(is_chosen, now)
        for lines, drawn in zip(state["lines"], (chart, waves), strict=True):
            wanted = [one for one in drawn["lines"] if holds(one.get("when"))]
            assert [one["label"] for one in lines] == [one["label"] for one in wanted]
            for one, other in zip(lines, wanted, strict=True):
                values = other.get("mid", [other.get("level")] * len(drawn["x"]))
                assert one["values"][: len(values)] == values
        rows = [row for row, when in zip(table["rows"], table["when_rows"], strict=True) if holds(when)]
        assert state["rows"] == rows
        assert state["hidden"] == [not holds(one.get("when")) for one in panel["controls"]]
        assert state["shown"] == [one["values"][now[one["name"]]] for one in panel["controls"] if one["slider"]]
    assert len(found[2]["lines"][0]) == 2


@campaign
def test_one_of_several_is_shown_at_a_time(made, config, tmp_path):
    """The verdict of what is chosen stands above."""
    held = [parts(made("inspect", *words)[0]) for words in (LADDER, [config])]
    path = tmp_path / "both.html"
    panels = [{"kind": "panel", "parts": one, "when": {"look at": i}} for i, one in enumerate(held)]
    choice = {"name": "look at", "values": ["first", "second"], "start": 0, "slider": False}
    path.write_text(page.render("Two", panels, "text", [choice]), "utf-8")
    script = """
      const seen = () => [document.getElementById("verdict").innerText, document.querySelectorAll(".copyable").length,
        rfrope.charts().length];
      const list = document.querySelector("select"), found = [seen()];
      list.value = 1; list.dispatchEvent(new Event("input")); await wait(10); found.push(seen());
      return found;"""
    found = browser.run(path, script, width=390)
    for (verdict, copyable, charts), kept in zip(found, held, strict=True):
        assert (verdict, charts) == (kept[0]["text"], 2)
        assert copyable == sum(one["kind"] == "copyable" for one in kept)
    assert found[0][0] != found[1][0]


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
    chart = parts(path, "panel")[0]["parts"][0]
    assert f": {chart['lines'][0]['mid'][1]:.4g}" in found["seen"][2]
