"""What several commands share: types of arguments, tables, and errors of files, with the option that named them."""

from __future__ import annotations

import argparse
import io
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rfrope import plotting
from rfrope._core import files

_FIGURES = (".png", ".svg", ".pdf")


def whole(least: int) -> Callable[[str], int]:
    """Return an argument type: a whole number from `least` on."""

    def whole_number(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
        if value < least:
            raise argparse.ArgumentTypeError(f"{value} is below {least}")
        return value

    return whole_number


def even(text: str) -> int:
    """Argument type: an even number from 2 on."""
    if (value := whole(2)(text)) % 2:
        raise argparse.ArgumentTypeError(f"{value} is odd; expected an even number, two features for each frequency")
    return value


@contextmanager
def naming(option: str, path: str) -> Iterator[None]:
    """Report errors of a file with the option that named it."""
    try:
        yield
    except (ValueError, OSError, ModuleNotFoundError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ValueError(f"{option} {path}: {reason.replace('overwrite=True', '--force')}") from None


def add_plot(command: Any) -> None:
    """Add the options of a command that can draw."""
    command.add_argument("--plot", metavar="FILE.png", help="write a figure (or FILE.svg, FILE.pdf)")
    command.add_argument("--force", action="store_true", help="replace files that exist")


def check_figure(options: argparse.Namespace) -> None:
    """Say before the work why a figure could not be written."""
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


def place(lag: tuple[int, ...]) -> str:
    """A lag as a table shows it: a number, or one for each axis."""
    return str(lag[0]) if len(lag) == 1 else str(lag)


def print_table(rows: Sequence[tuple[str, ...]], left: tuple[int, ...] = (0, 2)) -> None:
    """Print a table whose first row is its head; columns are right-aligned but for those `left`."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for number, row in enumerate(rows):
        cells = [
            cell.ljust(w) if i in left else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        ]
        print("  ".join(cells).rstrip())
        if number == 0:
            print("  ".join("-" * w for w in widths))
