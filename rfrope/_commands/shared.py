"""What several commands share: types of arguments, tables, and errors of files told with their option."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager


def whole(least: int) -> Callable[[str], int]:
    """Return an argument type: a whole number from `least` on."""

    def whole_number(text: str) -> int:
        if (value := int(text)) < least:
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
    """Errors of a file, told with the option that named it."""
    try:
        yield
    except (ValueError, OSError, ModuleNotFoundError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ValueError(f"{option} {path}: {reason.replace('overwrite=True', '--force')}") from None


def place(lag: tuple[int, ...]) -> str:
    return str(lag[0]) if len(lag) == 1 else str(lag)


def print_table(rows: Sequence[tuple[str, ...]], left: tuple[int, ...] = (0, 2)) -> None:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for number, row in enumerate(rows):
        cells = [
            cell.ljust(w) if i in left else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        ]
        print("  ".join(cells).rstrip())
        if number == 0:
            print("  ".join("-" * w for w in widths))
