"""``--html``: the result of a command as one file, with interactive figures and a choice of curves.

The page shows the same `Report` as the text form, and its figures beside; it computes nothing itself. Figures are drawn
by uPlot, in `rfrope.data` with the other files of the page.
"""

from __future__ import annotations

import argparse
import html
import json
import re
import shlex
from collections.abc import Callable, Sequence
from contextvars import Context
from dataclasses import replace
from importlib.resources import files as resources
from typing import Any

import rfrope
from rfrope._core import files
from rfrope._core.arguments import printable
from rfrope._core.results import Copyable, Part, Report, Table, Words
from rfrope.cli.shared import FILES, naming, print_report, print_text
from rfrope.plotting.panels import Panel

_FILES = ("uPlot.min.css", "page.css", "uPlot-LICENSE.txt", "uPlot.iife.min.js", "page.js")

_FRAME = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; script-src 'unsafe-inline';
style-src 'unsafe-inline'; img-src data:"><title>{title}</title>
<style>{styles}</style></head>
<body><h1>{title}</h1><p class="note">{subtitle}</p>
<p class="verdict" id="verdict" role="status"></p><div id="body"></div>
<details><summary>The same as text</summary><pre>{text}</pre></details>
<noscript><p>The figures need JavaScript; the text above has what was found.</p></noscript>
<script type="application/json" id="report">{report}</script>
<!-- uPlot, which draws the figures:
{licence}-->
<script>{library}</script>
<script>{script}</script></body></html>
"""


def emit(
    options: argparse.Namespace, title: str, report: Report, data: Any, **contents: Callable[[str], bytes]
) -> None:
    """Write all files that options request, or none, and print the result as JSON or text.

    Parameters
    ----------
    options : Namespace
    title : str
        Of the page of ``--html``.
    report : Report
    data : dict
        What ``--json`` prints.
    **contents : callable
        Return the content of a file, given its name; keys as in `FILES`.
    """
    paths = {name: getattr(options, name) for name in options.files}
    wanted = {name: path for name, path in paths.items() if path is not None}
    made = {name: make(wanted[name]) for name, make in contents.items() if name in wanted}
    if "html" in wanted:
        again = Copyable("The command", shlex.join(["rfrope", *options.words]))
        # at no terminal's width
        whole = replace(report, parts=[*report.parts, again])
        made["html"] = Context().run(lambda: render(title, list_parts(whole), str(report.led))).encode()
    for name, content in made.items():
        with naming(FILES[name][0][0], wanted[name]):
            files.write(wanted[name], content, overwrite=options.force)
    if options.json:
        print_text(json.dumps(data | paths if paths else data, indent=1, allow_nan=False))
    else:
        print_report(options, report, [f"Written: {printable(path)}" for path in wanted.values()])


def render(title: str, parts: Sequence[Panel], text: str, controls: Sequence[Panel] = ()) -> str:
    """Return a self-contained HTML page; its script shows the parts, as choices among the values of `controls` say."""
    folder = resources("rfrope.data").joinpath("page")
    held = {name: folder.joinpath(name).read_text("utf-8") for name in _FILES}
    content = {"parts": _printable(parts), "controls": _printable(controls)}
    report = json.dumps(content, allow_nan=False, separators=(",", ":"))
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


def list_parts(report: Report) -> list[Panel]:
    """Return a report as the script of a page reads it: its verdict, then its parts with their figures."""
    shown = [one for part in report.led.parts for one in ([part] if isinstance(part, Part) else part())]
    verdict = " ".join(report.verdict.split())
    parts = [list_part(one, verdict) if isinstance(one, Part) else one for one in shown]
    return [{"kind": "verdict", "text": verdict}, *parts]


def list_part(part: Part, verdict: str = "") -> Panel:
    """Return a part of a report as the script of a page reads it, without sentences that are the verdict."""
    if isinstance(part, Words):
        sentences = [" ".join(one.split()) for one in part.sentences]
        return {"kind": "words", "sentences": [one for one in sentences if one not in ("", verdict)]}
    if isinstance(part, Table):
        left = None if part.left is None else [*part.left]
        about = {"kind": "table", "title": part.title, "note": part.note, "head": part.head, "left": left}
        return about | {"rows": [[*row] for row in part.rows]}
    text = part.content if isinstance(part.content, str) else json.dumps(part.content, indent=1)
    text = re.sub(r"\[[^\[\]{}]*\]", lambda held: re.sub(r"\s+", " ", held[0]), text)  # a list on one line
    return {"kind": "copyable", "title": part.title, "note": part.note, "text": text}


def _printable(value: Any) -> Any:
    """Return data of a page with texts in which nothing hides, or changes the order of what is read."""
    if isinstance(value, dict):
        return {name: _printable(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_printable(one) for one in value]
    return printable(value, "\n") if isinstance(value, str) else value
