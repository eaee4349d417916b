"""Notebooks: one whose outputs are kept with it, run without Jupyter and shown on a page; one made from a page.

python docs/notebook.py examples/smollm2.ipynb      # runs its cells, and keeps what they print and draw
python docs/notebook.py docs/learn/paper.rst        # writes the page and its doctests beside it, as a notebook
"""

from __future__ import annotations

import contextlib
import doctest
import io
import json
import pathlib
import re
import sys
import textwrap
from collections.abc import Iterator
from typing import Any


def printed(cells: list[dict[str, Any]]) -> Iterator[tuple[str, list[str]]]:
    """Run the cells of code one after the other; yield what each prints, and its figures as SVG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names: dict[str, Any] = {"__name__": "__main__"}
    style = {"svg.hashsalt": "rfrope", "svg.fonttype": "none"}
    for number, cell in enumerate(cells):
        text = io.StringIO()
        with contextlib.redirect_stdout(text):
            exec(compile(source(cell), f"<cell {number}>", "exec"), names)
        figures = []
        for one in map(pyplot.figure, pyplot.get_fignums()):
            file = io.StringIO()
            with pyplot.rc_context(style):
                one.savefig(file, format="svg", metadata={"Date": None})
            figures.append(file.getvalue())
        pyplot.close("all")
        yield text.getvalue(), figures


def source(cell: dict[str, Any]) -> str:
    """Return the text of a cell."""
    return "".join(cell["source"])


def code(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the cells of code."""
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def said(cell: dict[str, Any]) -> str:
    """Return what a cell printed when its outputs were kept."""
    return "".join("".join(one["text"]) for one in cell["outputs"] if one["output_type"] == "stream")


def drawn(cell: dict[str, Any]) -> list[str]:
    """Return the figures of a cell as SVG."""
    return ["".join(one["data"]["image/svg+xml"]) for one in cell["outputs"] if one["output_type"] == "display_data"]


def keep(path: pathlib.Path) -> None:
    """Run a notebook, and write it with its outputs."""
    notebook = json.loads(path.read_text("utf-8"))
    cells = code(notebook)
    for number, (cell, (text, figures)) in enumerate(zip(cells, printed(cells), strict=True), 1):
        stream = {"output_type": "stream", "name": "stdout", "text": text.splitlines(keepends=True)}
        shown = [{"image/svg+xml": one.splitlines(keepends=True)} for one in figures]
        cell["outputs"] = [stream] if text else []
        cell["outputs"] += [{"output_type": "display_data", "metadata": {}, "data": one} for one in shown]
        cell["execution_count"] = number
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", "utf-8")


def shown(path: pathlib.Path, images: pathlib.Path) -> str:
    """Return a notebook as reStructuredText, with its figures in a folder below that of the documentation."""
    lines: list[str] = []
    for number, cell in enumerate(json.loads(path.read_text("utf-8"))["cells"]):
        if cell["cell_type"] == "markdown":
            text = re.sub(r"(?<!`)`([^`]+)`(?!`)", r"``\1``", source(cell)).replace(":\n\n    ", "::\n\n    ")
            lines += [
                re.sub(r"^## (.*)$", lambda held: f"{held[1]}\n{'-' * len(held[1])}", text, flags=re.MULTILINE),
                "",
            ]
            continue
        lines += [".. code-block:: python", "", textwrap.indent(source(cell), "   "), ""]
        if said(cell):
            lines += [".. code-block:: none", "   :class: output", "", textwrap.indent(said(cell).rstrip(), "   "), ""]
        for figure in drawn(cell):
            images.mkdir(parents=True, exist_ok=True)
            file = images / f"{path.stem}_{number}.svg"
            file.write_text(figure, "utf-8")
            alt = re.search(r"^# Figure: (.*)$", source(cell), re.MULTILINE)
            lines += [f".. image:: /{images.parent.name}/{images.name}/{file.name}", f"   :alt: {alt[1]}", ""]
    return "\n".join(lines)


MARKDOWN = (  # what is written otherwise in reStructuredText, and how
    (r" *\(:download:`[^`]*`\)", ""),
    (r":math:`([^`]*)`", r"$\1$"),
    (r":\w+:`([^`]*)`", r"`\1`"),
    (r"``([^`]*)``", r"`\1`"),
    (r"^(.*)\n=+$", r"# \1"),
    (r"^(.*)\n-+$", r"## \1"),
)


def from_page(text: str) -> dict[str, Any]:
    """Return a page as a notebook without outputs: what is said before lines of code, and the lines, in two cells."""
    cells: list[dict[str, Any]] = []
    for part in doctest.DocTestParser().parse(text)[:-1]:  # nothing runs after the last
        if isinstance(part, doctest.Example):
            if cells[-1]["cell_type"] == "markdown":
                cells.append(
                    {"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": [], "source": ""}
                )
            cells[-1]["source"] += part.source
            if part.exc_msg is not None:  # so that Jupyter goes on
                cells[-1]["metadata"] = {"tags": ["raises-exception"]}
        elif part.strip():
            for pattern, by in MARKDOWN:
                part = re.sub(pattern, by, part, flags=re.MULTILINE)
            cells.append({"cell_type": "markdown", "metadata": {}, "source": part.strip()})
    kernel = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    return {"cells": cells, "metadata": kernel, "nbformat": 4, "nbformat_minor": 4}


def make(page: pathlib.Path) -> None:
    """Write the notebook of a page beside it."""
    text = json.dumps(from_page(page.read_text("utf-8")), indent=1, ensure_ascii=False)
    page.with_suffix(".ipynb").write_text(text + "\n", "utf-8")


if __name__ == "__main__":
    given = pathlib.Path(sys.argv[1])
    (make if given.suffix == ".rst" else keep)(given)
