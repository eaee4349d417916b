"""Shared by commands: argument types, sources of Ropes, output files, tables, and file errors."""

from __future__ import annotations

import argparse
import itertools
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TextIO

import numpy as np

import rfrope
from rfrope import storage
from rfrope._core import files, results
from rfrope._core.arguments import list_choices, printable, show, spelled
from rfrope._core.results import Report

FILES = {  # by the attribute of the options: how each is asked for, how its name ends, what is written
    "output": (("-o", "--output"), storage.SUFFIXES, "write the frequencies"),
    "table": (("--table",), (".csv",), "write a row for each head"),
    "block_table": (("--block-table",), (".csv",), "write a row for each block of each head"),
    "html": (("--html",), (".html",), "write one page with interactive figures, tables and text to copy"),
}
LINES = 25  # rows of a terminal


def add_command(
    commands: Any,
    name: str,
    run: Callable[[argparse.Namespace], int | None],
    description: str,
    *,
    example: str,
    codes: str = "0, or 2 for bad input",
) -> Any:
    """Return the parser of a new command, with --json; help lists the first sentence of `description`."""
    texts = {"description": f"{description} Exit code: {codes}.", "epilog": f"Example: {example}"}
    command = commands.add_parser(name, help=re.split(r"[.:]( |$)", description)[0], **texts)
    command.add_argument("--json", action="store_true", help="print JSON instead of text")
    command.add_argument("--all", action="store_true", help=f"print all lines of the text, not the first {LINES}")
    command.set_defaults(run=run, files=())
    return command


def add_files(command: Any, *names: str) -> None:
    """Add the options for files that a command writes, by their names in `FILES`."""
    for name in names:
        options, suffixes, what = FILES[name]
        command.add_argument(*options, metavar="FILE", help=f"{what} ({', '.join(suffixes)})")
    command.add_argument("--force", action="store_true", help="replace files that exist")
    command.set_defaults(files=names)


def check_files(options: argparse.Namespace) -> None:
    """Raise before the work starts if a file cannot be written."""
    paths = {name: getattr(options, name) for name in options.files}
    for name, path in ((name, path) for name, path in paths.items() if path is not None):
        spelling, suffixes, _ = FILES[name]
        with naming(spelling[0], path):
            if name == "output":
                storage.check_target(path, overwrite=options.force)
            elif not path.lower().endswith(suffixes):
                raise ValueError(f"expected a name that ends in {', '.join(suffixes)}")
            files.check_writable(path, overwrite=options.force)


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


def csv_file(columns: dict[str, np.ndarray]) -> bytes:
    """Return a table as CSV with a header line."""
    lists = [[f"{one:.8g}" if isinstance(one, float) else str(one) for one in x.tolist()] for x in columns.values()]
    return "".join(",".join(row) + "\n" for row in [tuple(columns), *zip(*lists, strict=True)]).encode()


# -- types of arguments, and sources -----------------------------------------------------------------------------------


def whole(text: str) -> int:
    """Argument type: a whole number, without bounds."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{show(text)} is not a whole number") from None


def lengths(text: str) -> tuple[int, ...]:
    """Argument type: one whole number, or one for each axis separated by commas."""
    return tuple(map(whole, text.split(",")))


def one_of(names: Sequence[str]) -> Callable[[str], str]:
    """Return an argument type: one of some names, in any spelling."""

    def name_of_one(text: str) -> str:
        found = spelled(text, names)
        if found is None:
            raise argparse.ArgumentTypeError(f"{show(text)} is unknown{list_choices(text, names)}")
        return found

    return name_of_one


def is_saved(source: str) -> bool:
    """Return whether a name is that of a file of frequencies, not of a config."""
    return source.lower().endswith(storage.SUFFIXES)


def read_ropes(source: str, part: str | None = None, seq_len: int | None = None) -> dict[str, rfrope.Rope]:
    """Return the Ropes of a config by name, or that of a file of frequencies; only one if `part` is given.

    Schemes that depend on the length of the text are read for `seq_len` positions.
    """
    found = [rfrope.load(source)] if is_saved(source) else rfrope.from_config(source, seq_len=seq_len)
    ropes = {rope.source.model.name: rope for rope in found}
    if part is None:
        return ropes
    if part not in ropes:
        raise ValueError(f"--part {part}: {source} has a RoPE for {list_names(ropes)}; expected one of them")
    return {part: ropes[part]}


def list_names(ropes: dict[str, rfrope.Rope]) -> str:
    """Return the names of the Ropes of a config, for an error message."""
    return ", ".join(repr(name) if name else "the whole model" for name in ropes)


# -- text --------------------------------------------------------------------------------------------------------------


def print_text(text: Any, file: TextIO | None = None) -> None:
    """Print a text, to stdout at the width of the terminal, with control characters escaped."""
    shown = printable(str(text), "\n")
    print(results.wrap(shown) if file is None else shown, file=file, flush=True)


def print_report(options: argparse.Namespace, report: Report, below: Sequence[str] = ()) -> None:
    """Print a report, its verdict first: as many rows as `LINES`, or all with ``--all``; and other lines below it."""
    lines = results.wrap(printable(str(report.led), "\n")).split("\n")
    width, room = results.WIDTH.get() or 1000, LINES - len(below) - bool(below)
    rows = [*itertools.accumulate(max(1, -(-len(line) // width)) for line in lines)]
    if rows[-1] > room and not options.all:
        shown = max(1, sum(row < room for row in rows))
        first = "\n".join(lines[:shown]).rstrip().split("\n")
        lines = [*first, f"({len(lines) - len(first)} more lines with --all)"]
    print_text("\n".join([*lines, *([""] if below else []), *below]))
