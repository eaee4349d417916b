"""``--html``: what a command found as one file with figures that follow the pointer and the sliders.

The page holds the numbers of the records that the text form prints, and sums mean kernels itself, so that it can go
where the sliders say. Figures are drawn by uPlot, which lies beside the other files of the page in `rfrope.data`.
"""

from __future__ import annotations

import argparse
import contextlib
import html
import io
import json
import math
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files as resources
from typing import Any

import numpy as np

import rfrope
from rfrope._core import angles, files
from rfrope._core.arguments import printable
from rfrope.cli.shared import naming
from rfrope.plotting import Bins, drawing
from rfrope.validation import QUANTITIES, Row, Validation

_FILES = ("uPlot.min.css", "page.css", "uPlot-LICENSE.txt", "uPlot.iife.min.js", "page.js")
_FURTHER = 4  # contexts that the slider reaches
_LONGEST = 2**24  # positions
_SCHEMES = ("default", "linear", "ntk", "yarn", "llama3")
_DEFAULTS = {"beta_fast": 32.0, "beta_slow": 1.0, "truncate": True, "low_freq_factor": 1.0, "high_freq_factor": 4.0}

_FRAME = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; script-src 'unsafe-inline';
style-src 'unsafe-inline'; img-src data:"><title>{title}</title>
<style>{styles}</style></head>
<body><h1>{title}</h1><p class="note">{subtitle}</p><div id="body"></div>
<details><summary>The same as text</summary><pre>{text}</pre></details>
<noscript><p>The figures need JavaScript; the text above has what was found.</p></noscript>
<script type="application/json" id="report">{report}</script>
<!-- uPlot, which draws the figures:
{licence}-->
<script>{library}</script>
<script>{script}</script></body></html>
"""

Part = dict[str, Any]  # a part of a page: its kind, and what that is made from


@dataclass(frozen=True, eq=False)
class Curve:
    """Frequencies whose mean kernel a page draws.

    Attributes
    ----------
    label : str
    frequencies : ndarray (D,) or (D, k)
        Radians per position; with several axes, lags run along the diagonal.
    last : int
        The largest lag.
    still : int
        Blocks of the head that stand still, beside these.
    gain : float
        Weight of the blocks that turn: the square of an attention factor.
    group : int
        The choice that it belongs to, where there are several.
    """

    label: str
    frequencies: np.ndarray
    last: int
    still: int = 0
    gain: float = 1.0
    group: int = 0


def write_page(options: argparse.Namespace, title: str, parts: Iterable[Part], print_text: Callable[[], None]) -> None:
    """Write the page that ``--html`` asks for; `print_text` prints the text form."""
    if options.html is None:
        return
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        print_text()
    content = rendered(title, [*parts, command(options)], text.getvalue().strip())
    with naming("--html", options.html):
        files.write(options.html, content.encode(), overwrite=options.force)


def rendered(title: str, parts: Iterable[Part], text: str) -> str:
    """Return a page as HTML, which asks for nothing else."""
    folder = resources("rfrope.data").joinpath("page")
    held = {name: folder.joinpath(name).read_text("utf-8") for name in _FILES}
    report = json.dumps({"parts": _printable(list(parts))}, allow_nan=False, separators=(",", ":"))
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
    """What was found, in sentences: what a reader sees first."""
    return {"kind": "words", "title": "", "note": "", "paragraphs": [" ".join(one.split()) for one in paragraphs]}


def _printable(value: Any) -> Any:
    """Return data of a page with texts in which nothing hides, or changes the order of what is read."""
    if isinstance(value, dict):
        return {name: _printable(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_printable(one) for one in value]
    return printable(value, "\n") if isinstance(value, str) else value


def table(title: str, rows: Sequence[tuple[str, ...]], left: tuple[int, ...] = (0,), note: str = "") -> Part:
    """A table whose first row is its head; columns are right-aligned but for those `left`."""
    return {"kind": "table", "title": title, "note": note, "rows": [list(row) for row in rows], "left": list(left)}


def copyable(title: str, content: Any, note: str = "") -> Part:
    """Text, or data as JSON, with a button that copies it."""
    text = content if isinstance(content, str) else json.dumps(content, indent=1)
    text = re.sub(r"\[[^\[\]{}]*\]", lambda held: re.sub(r"\s+", " ", held[0]), text)  # a list on one line
    return {"kind": "copyable", "title": title, "note": note, "text": text}


def command(options: argparse.Namespace) -> Part:
    """The command that makes the same again."""
    return copyable("The command", shlex.join(["rfrope", *options.words]))


def curves(
    title: str,
    sets: Sequence[Curve],
    context: int,
    *,
    ladder: Mapping[str, Any] | None = None,
    groups: Sequence[str] = (),
    group_name: str = "head",
    group: int = 0,
    phi: Callable[[np.ndarray, int], tuple[np.ndarray, np.ndarray]] | None = None,
    stretched: int = 0,
) -> Part:
    """Mean kernels, and wavelengths of their blocks, with sliders for the context, and for base and factor.

    `phi` gives for lags and the number of a group what the kernel asks for there, and its standard deviation. Without a
    `ladder` the factor stretches the set of number `stretched` (of a group the first).
    """
    most = min(_FURTHER * context, max(_LONGEST, context))
    starts = first_lags(most - 1)
    ends = np.append(starts[1:] - 1, most - 1)
    asked = [] if phi is None else [phi((starts + ends) // 2, i) for i in range(len(groups) or 1)]
    start = f"“{sets[stretched].label}”"
    caption = (
        "Lines are mean kernels, the score of equal content at a distance, averaged over contents. Where a line stands "
        "for several lags it is their median, inside their range. The sliders' context reaches beyond that of the "
        "command; "
        + (
            f"base, scheme and factor draw one more line, which begins as {start}."
            if ladder
            else f"factor draws {start} once more, with all wavelengths times the factor."
        )
    )
    axes = max(angles.on_host(one.frequencies).shape[-1] for one in sets)
    return {
        "kind": "curves",
        "title": title,
        "caption": caption,
        "xlabel": drawing.lag_label(axes),
        "ylabel": "mean kernel",
        "context": context,
        "most": most,
        "starts": starts.tolist(),
        "sets": [_plain(one) for one in sets],
        "ladder": None if ladder is None else dict(ladder),
        "groups": list(groups),
        "group_name": group_name,
        "group": group,
        "phi": [{"values": values.tolist(), "stderr": stderr.tolist()} for values, stderr in asked] or None,
        "waves": axes == 1 and not groups,
        "stretched": stretched,
    }


def points(title: str, results: Sequence[Validation]) -> Part:
    """The z of every comparison of some validations, one of which is shown at a time, the worst first."""
    held = [{"label": one.kernel, "bound": one.bound, "rows": _in_groups(one.rows)} for one in results]
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


def _in_groups(rows: tuple[Row, ...]) -> list[list[Any]]:
    """Points, those of one quantity beside each other."""
    return [_point(row) for quantity in QUANTITIES for row in rows if row.quantity == quantity]


def _point(row: Row) -> list[Any]:
    lag = ", ".join(f"{v:.4g}" for v in row.lag)
    numbers = (row.z, row.closed_form, row.estimate, row.stderr)
    return [row.quantity, lag, row.pair, *(value if math.isfinite(value) else None for value in numbers)]


def first_lags(last: int) -> np.ndarray:
    """First lags of the bins in which lags 1 to `last` are drawn: those of the figures of `rfrope.plotting`."""
    edges = Bins.edges(last)
    starts: np.ndarray = edges[(edges >= 1) & (edges <= last)].astype(np.int64)
    return starts if starts.size else np.ones(1, np.int64)


def _plain(one: Curve) -> dict[str, Any]:
    terms = np.sum(angles.on_host(one.frequencies).astype(np.float64), axis=-1)
    held = {"label": one.label, "last": int(one.last), "still": int(one.still), "gain": float(one.gain)}
    return held | {"terms": terms.tolist(), "group": one.group}


def ladder(
    width: int, base: float, parameters: Mapping[str, Any], *, still: int, context: int
) -> dict[str, Any] | None:
    """What the sliders for base, scheme and factor begin with, or None where a page cannot compute the scheme."""
    name = parameters.get("rope_type", "default")
    if name not in _SCHEMES or width < 4 or not 1.0 < base < math.inf:
        return None
    held = {key: parameters.get(key, value) for key, value in _DEFAULTS.items()}
    if any(isinstance(value, list | tuple) for value in held.values()):
        return None
    original = parameters.get("original_max_position_embeddings") or context
    start = {"width": width, "base": float(base), "scheme": name, "factor": float(parameters.get("factor", 1.0))}
    return start | held | {"original": original, "still": still}
