"""A notebook whose outputs are kept with it: run without Jupyter, and shown on a page.

python docs/notebook.py examples/smollm2.ipynb      # runs its cells, and keeps what they print and draw
"""

from __future__ import annotations

import contextlib
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


if __name__ == "__main__":
    keep(pathlib.Path(sys.argv[1]))
