"""``--html``: the result of a command as one file, with interactive figures and a choice of curves.

The page holds the numbers of the records that the text form prints, and tables of the curves that it can show; it
computes nothing itself. Figures are drawn by uPlot, in `rfrope.data` with the other files of the page.
"""

from __future__ import annotations

import argparse
import html
import io
import json
import math
import os
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import Context
from dataclasses import replace
from importlib.resources import files as resources
from typing import Any

import numpy as np

import rfrope
from rfrope import plotting
from rfrope._core import files
from rfrope._core.arguments import printable
from rfrope.cli.shared import FILES, naming, print_text
from rfrope.plotting import drawing
from rfrope.plotting.tables import Curve, alternatives, contexts_around, lag_bins, tabulated
from rfrope.validation import QUANTITIES, Row, Validation

_FILES = ("uPlot.min.css", "page.css", "uPlot-LICENSE.txt", "uPlot.iife.min.js", "page.js")

_FRAME = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; script-src 'unsafe-inline';
style-src 'unsafe-inline'; img-src data:"><title>{title}</title>
<style>{styles}</style></head>
<body><h1>{title}</h1><p class="note">{subtitle}</p><div id="choices"></div>
<p class="verdict" id="verdict" role="status"></p><div id="body"></div>
<details><summary>The same as text</summary><pre>{text}</pre></details>
<noscript><p>The figures need JavaScript; the text above has what was found.</p></noscript>
<script type="application/json" id="report">{report}</script>
<!-- uPlot, which draws the figures:
{licence}-->
<script>{library}</script>
<script>{script}</script></body></html>
"""

Part = dict[str, Any]  # a part of a page: its kind, and what that is made from


def report(
    options: argparse.Namespace,
    title: str,
    parts: Iterable[Part],
    describe: Callable[[], str],
    data: Callable[[], dict[str, Any]],
    **contents: Callable[[str], bytes],
) -> None:
    """Write all files that options request, or none, and print the result as JSON or text.

    Parameters
    ----------
    options : Namespace
    title : str
    parts : iterable of Part
        Content of the page of ``--html``, beside the text and the command.
    describe, data : callable
        Return the result as text, and as data.
    **contents : callable
        Return the content of a file, given its name; keys as in `FILES`.
    """
    paths = {name: getattr(options, name) for name in FILES if hasattr(options, name)}
    wanted = {name: path for name, path in paths.items() if path is not None}
    text = "" if options.json else describe()
    made = {name: make(wanted[name]) for name, make in contents.items() if name in wanted}
    if "html" in wanted:
        again = copyable("The command", shlex.join(["rfrope", *options.words]))
        # at no terminal's width
        made["html"] = Context().run(lambda: rendered(title, [*parts, again], describe())).encode()
    for name, content in made.items():
        with naming(FILES[name][0][0], wanted[name]):
            files.write(wanted[name], content, overwrite=options.force)
    if options.json:
        print_text(json.dumps(data() | paths, indent=1, allow_nan=False))
        return
    print_text(
        "\n".join([text, *([""] if wanted else []), *(f"Written: {printable(path)}" for path in wanted.values())])
    )


def draw(path: str, figure: Any) -> bytes:
    """Return a figure as the content of a file, by its suffix."""
    file = io.BytesIO()
    figure.savefig(file, format=os.path.splitext(path)[1][1:].lower())
    return file.getvalue()


def draw_curves(path: str, sets: Sequence[Curve]) -> bytes:
    """Return two panels as the content of a file: mean kernels of whole heads, and wavelengths of their blocks."""
    figure, (left, right) = plotting.new_figure(2)
    heads = {
        one.label: np.append(one.frequencies, np.zeros((one.still, *one.frequencies.shape[1:])), 0) for one in sets
    }
    plotting.mean_kernels(heads, {one.label: one.last for one in sets}, ax=left)
    plotting.wavelengths(heads, context={one.label: one.last + 1 for one in sets}, ax=right)
    left.set_title("score of equal content")
    right.set_title("wavelengths of the blocks")
    return draw(path, figure)


def rendered(title: str, parts: Iterable[Part] | Mapping[str, Iterable[Part]], text: str) -> str:
    """Return a self-contained HTML page; named groups of parts are shown one at a time."""
    folder = resources("rfrope.data").joinpath("page")
    held = {name: folder.joinpath(name).read_text("utf-8") for name in _FILES}
    named = parts.items() if isinstance(parts, Mapping) else [("", parts)]
    choices = [{"name": name, "parts": _printable(list(one))} for name, one in named]
    report = json.dumps({"choices": choices}, allow_nan=False, separators=(",", ":"))
    return _FRAME.format(
        title=html.escape(printable(title)),
        subtitle=f"rfrope {rfrope.__version__}. One file: nothing is fetched, and nothing is sent.",
        styles=held["uPlot.min.css"] + held["page.css"],
        text=html.escape(printable(text, "\n")),
        report=report.replace("<", "\\u003c"),
        licence=held["uPlot-LICENSE.txt"],
        library=held["uPlot.iife.min.js"],
        script=held["page.js"],
    )


def words(*paragraphs: str) -> Part:
    """Return the findings as sentences, shown first; the first sentence is the verdict."""
    return {"kind": "words", "title": "", "note": "", "paragraphs": [" ".join(one.split()) for one in paragraphs]}


def _printable(value: Any) -> Any:
    """Return data of a page with texts in which nothing hides, or changes the order of what is read."""
    if isinstance(value, dict):
        return {name: _printable(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_printable(one) for one in value]
    return printable(value, "\n") if isinstance(value, str) else value


def table(title: str, rows: Sequence[tuple[str, ...]], left: tuple[int, ...] = (0,), note: str = "") -> Part:
    """Return a table with a header row; columns are right-aligned except `left`."""
    return {"kind": "table", "title": title, "note": note, "rows": [list(row) for row in rows], "left": list(left)}


def copyable(title: str, content: Any, note: str = "") -> Part:
    """Return text, or data as JSON, with a copy button."""
    text = content if isinstance(content, str) else json.dumps(content, indent=1)
    text = re.sub(r"\[[^\[\]{}]*\]", lambda held: re.sub(r"\s+", " ", held[0]), text)  # a list on one line
    return {"kind": "copyable", "title": title, "note": note, "text": text}


def curves(
    title: str,
    sets: Sequence[Curve],
    context: int,
    *,
    ladder: tuple[float | None, int] | None = None,
    groups: Sequence[str] = (),
    group: int = 0,
    phi: Callable[[np.ndarray, int], tuple[np.ndarray, np.ndarray]] | None = None,
    stretched: int = 0,
) -> Part:
    """Return mean kernels and wavelengths of blocks, with a choice of contexts and of one more line.

    Parameters
    ----------
    title : str
    sets : sequence of Curve
    context : int
        Context of the command; curves that reach its end continue beyond it.
    ladder : tuple, optional
        Base, and positions in training, of the ladder that other bases and schemes change. Without it, set number
        `stretched` is also drawn with longer wavelengths, unless there are several groups.
    groups : sequence of str
        Names of heads, shown one at a time, starting with number `group`.
    phi : callable, optional
        Maps lags and the number of a group to the kernel's Phi and its standard deviation.
    stretched : int
    """
    contexts = contexts_around(context)
    most = contexts[-1]
    longest = [replace(one, last=most - 1) if one.last == context - 1 else one for one in sets]
    starts, ends = lag_bins(most - 1)
    bands = [] if phi is None else [phi((starts + ends) // 2, i) for i in range(len(groups) or 1)]
    base, original = ladder or (None, context)
    others = [] if len(groups) > 1 else alternatives(replace(longest[stretched], last=most - 1), base, original)
    axes = max(one.frequencies.shape[-1] if one.frequencies.ndim > 1 else 1 for one in sets)
    return {
        "kind": "curves",
        "title": title,
        "caption": "Lines are mean kernels, the score of equal content at a distance, averaged over contents. Where a "
        "line stands for several lags it is their median, inside their range.",
        "xlabel": drawing.lag_label(axes),
        "ylabel": "mean kernel",
        "contexts": contexts,
        "start": contexts.index(context),
        "starts": starts.tolist(),
        "ends": ends.tolist(),
        "sets": [tabulated(one, contexts) for one in longest],
        "others": [{"name": name, "sets": [tabulated(one, contexts) for one in curves]} for name, curves in others],
        "groups": list(groups),
        "group": group,
        "phi": [
            {name: np.round(mid + sign * stderr, 6).tolist() for name, sign in (("low", -1), ("mid", 0), ("high", 1))}
            for mid, stderr in bands
        ],
        "waves": axes == 1 and not groups,
    }


def lines(
    title: str,
    caption: str,
    labels: tuple[str, str],
    x: np.ndarray,
    groups: Sequence[str],
    group: int,
    sets: dict[str, Any],
    *,
    squeezed: bool = False,
) -> Part:
    """Return lines with bands of two standard errors, one group at a time, starting with number `group`.

    The sets are a `HeadEstimate` of ``(groups, n)`` by the name of a line; with `squeezed` x gets narrower as it grows.
    """

    def listed(values: np.ndarray) -> list[list[float | None]]:
        return [[float(f"{v:.4g}") if math.isfinite(v) else None for v in row] for row in values.tolist()]

    return {
        "kind": "lines",
        "title": title,
        "caption": caption,
        "xlabel": labels[0],
        "ylabel": labels[1],
        "x": x.tolist(),
        "groups": list(groups),
        "group": group,
        "squeezed": squeezed,
        "sets": [
            {"label": name, "mid": listed(one.value)}
            | {side: listed(one.value + sign * one.stderr) for side, sign in (("low", -2.0), ("high", 2.0))}
            for name, one in sets.items()
        ],
    }


def points(title: str, results: Sequence[Validation]) -> Part:
    """Return the z of every comparison of some validations, shown one at a time, the worst first."""

    def point(row: Row) -> list[Any]:
        numbers = (row.z, row.closed_form, row.estimate, row.stderr)
        lag = ", ".join(f"{v:.4g}" for v in row.lag)
        return [row.quantity, lag, row.pair, *(value if math.isfinite(value) else None for value in numbers)]

    held = []
    for one in results:
        rows = sorted(one.rows, key=lambda row: QUANTITIES.index(row.quantity))
        held.append({"label": one.kernel, "bound": one.bound, "rows": [*map(point, rows)]})
    sizes = [abs(one.worst.z) for one in results]
    return {
        "kind": "points",
        "title": title,
        "caption": "A point for each quantity, lag and pair of q and k. All lie between the dashed lines where theory "
        "and experiment agree.",
        "xlabel": "quantity; then lag and pair",
        "ylabel": "z = (estimate - closed form) / std. error",
        "quantities": list(QUANTITIES),
        "results": held,
        "start": sizes.index(max(sizes)),
    }
