"""Shared by commands: types of arguments, tables, and errors of files, with the option that named them."""

from __future__ import annotations

import argparse
import io
import math
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TextIO

from rfrope import plotting, storage
from rfrope._core import files
from rfrope._core.arguments import MOST, list_choices, printable, show, spelled

_FIGURES = (".png", ".svg", ".pdf")
_PAGE = ".html"
_COLOURS = {"green": "32", "red": "31"}
_BREAKS = re.compile(r"(?<= )|(?=\()")  # where a cell may go on in another line


def whole(least: int, most: float = MOST) -> Callable[[str], int]:
    """Return an argument type: a whole number from `least` to `most`."""

    def whole_number(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
        if value < least:
            raise argparse.ArgumentTypeError(f"{value} is below {least}")
        if value > most:
            raise argparse.ArgumentTypeError(f"{show(value)} is above {'2**32 - 1' if most == MOST else most}")
        return value

    return whole_number


def one_of(names: Sequence[str]) -> Callable[[str], str]:
    """Return an argument type: one of some names, in any spelling."""

    def name_of_one(text: str) -> str:
        found = spelled(text, names)
        if found is None:
            raise argparse.ArgumentTypeError(f"{show(text)} is unknown{list_choices(text, names)}")
        return found

    return name_of_one


def even(text: str) -> int:
    """Argument type: an even number from 2 on."""
    if (value := whole(2)(text)) % 2:
        raise argparse.ArgumentTypeError(f"{value} is odd; expected an even number, two features for each frequency")
    return value


def contexts(text: str) -> tuple[int, ...]:
    """Argument type: one whole number, or one for each axis."""
    try:
        context = tuple(map(whole(2), text.split(",")))
        if math.prod(2 * c - 1 for c in context) > 2**52:
            raise argparse.ArgumentTypeError(f"{text:.40} is too long; expected at most 2**52 lags")
        return context
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a whole number; expected one, or one for each axis: 64,64"
        ) from None


@contextmanager
def naming(option: str, path: str) -> Iterator[None]:
    """Report errors of a file with the option that named it."""
    try:
        yield
    except (ValueError, OSError, ModuleNotFoundError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        if isinstance(error, OSError) and os.path.realpath(error.filename or path) != os.path.realpath(path):
            reason = f"{error.filename}: {reason}"  # such as a model that is copied
        raise ValueError(f"{option} {path}: {reason.replace('overwrite=True', '--force')}") from None


def add_plot(command: Any) -> None:
    """Add the options of a command that can draw."""
    command.add_argument("--plot", metavar="FILE.png", help="write a figure (or FILE.svg, FILE.pdf)")
    add_page(command)


def add_page(command: Any) -> None:
    """Add the options of a command that can write a page."""
    command.add_argument(
        "--html", metavar="FILE.html", help="write one page with interactive figures, tables and what to copy"
    )
    command.add_argument("--force", action="store_true", help="replace files that exist")


def check_page(options: argparse.Namespace) -> None:
    """Say before the work why a page could not be written."""
    if options.html is None:
        return
    if not options.html.lower().endswith(_PAGE):
        raise ValueError(f"--html {options.html}: expected a name that ends in {_PAGE}")
    with naming("--html", options.html):
        files.check_writable(options.html, overwrite=options.force)


def check_files(options: argparse.Namespace) -> None:
    """Say before the work why a file of frequencies, a figure or a page could not be written."""
    if getattr(options, "output", None) is not None:
        with naming("-o", options.output):
            storage.check_target(options.output, overwrite=options.force)
    check_page(options)
    if options.plot is None:
        return
    if not options.plot.lower().endswith(_FIGURES):
        raise ValueError(f"--plot {options.plot}: expected a name that ends in {', '.join(_FIGURES)}")
    with naming("--plot", options.plot):
        plotting.check_available()
        files.check_writable(options.plot, overwrite=options.force)


def drawn(path: str, figure: Any) -> bytes:
    """Return a figure as the content of a file with such a name."""
    file = io.BytesIO()
    figure.savefig(file, format=os.path.splitext(path)[1][1:].lower())
    return file.getvalue()


def write_figure(options: argparse.Namespace, figure: Any) -> None:
    """Write a figure where ``--plot`` says."""
    with naming("--plot", options.plot):
        files.write(options.plot, drawn(options.plot, figure), overwrite=options.force)


def print_text(text: Any, *, before: str = "", file: TextIO | None = None) -> None:
    """Print a text, after one of our own that may be styled; what a terminal would act on stands as an escape."""
    print(before + printable(str(text), "\n"), file=file, flush=True)


def place(lag: tuple[int, ...]) -> str:
    """Return a lag as a table shows it: a number, or one for each axis."""
    return str(lag[0]) if len(lag) == 1 else str(lag)


def is_terminal() -> bool:
    """Say whether stdout is read by a person, and not by a file or another program."""
    try:
        return sys.stdout.isatty()
    except (AttributeError, ValueError):  # no stdout, or a closed one
        return False


def styled(text: str, colour: str) -> str:
    """Return the text in bold and a colour, on a terminal that shows them; https://no-color.org switches them off."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" or not is_terminal()
    return text if plain else f"\x1b[1;{_COLOURS[colour]}m{text}\x1b[0m"


def print_table(rows: Sequence[tuple[str, ...]], left: tuple[int, ...] = (0, 2)) -> None:
    """Print a table whose first row is its head; columns are right-aligned but for those `left`.

    On a terminal too narrow for it, the cells of the widest columns that are `left` go on in further lines, which begin
    behind a space or with a bracket. Where that is not enough, the first cell has a line of its own.
    """
    rows = [tuple(map(printable, row)) for row in rows]
    widths, above = _widths(rows, left), None
    if widths is None:
        above, rows = [row[0] for row in rows], [("", *row[1:]) for row in rows]
        widths = _widths(rows, left) or [max(map(len, column)) for column in zip(*rows, strict=True)]
    for number, row in enumerate(rows):
        if above is not None:
            print(above[number])
        broken = [
            _broken(cell, w) if i in left else [cell] for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        ]
        for line in range(max(map(len, broken))):
            parts = [cell[line] if line < len(cell) else "" for cell in broken]
            cells = [
                p.ljust(w) if i in left else p.rjust(w) for i, (p, w) in enumerate(zip(parts, widths, strict=True))
            ]
            print("  ".join(cells).rstrip())
        if number == 0:
            print("  ".join("-" * w for w in widths))


def _widths(rows: Sequence[tuple[str, ...]], left: tuple[int, ...]) -> list[int] | None:
    """Widths of columns, of which the widest `left` give way on a narrow terminal; None where that is not enough."""
    columns = list(zip(*rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    if not is_terminal():
        return widths
    least = [max(len(piece.rstrip()) for cell in column for piece in _BREAKS.split(cell)) for column in columns]
    while sum(widths) + 2 * (len(widths) - 1) > shutil.get_terminal_size().columns:
        ready = [i for i in left if widths[i] > least[i]]
        if not ready:
            return None
        widths[max(ready, key=lambda i: widths[i])] -= 1
    return widths


def _broken(cell: str, width: int) -> list[str]:
    """Lines of a cell."""
    lines = [""]
    for piece in _BREAKS.split(cell):
        if len(lines[-1] + piece.rstrip()) > width:
            lines.append("")
        lines[-1] += piece
    return [line.rstrip() for line in lines]
