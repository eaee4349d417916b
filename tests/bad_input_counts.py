"""Put every wrong value into every argument, one at a time, and count what is taken, refused, unclear and wrong."""

from __future__ import annotations

import argparse
import collections
import csv
import os
import pathlib
import random
import sys
import tempfile
import warnings

import bad_commands
import bad_input
import matplotlib
from matplotlib import pyplot

COLUMNS = ("calls", "refused", "taken", "unclear", "wrong")
GROUPS = {"rotation.rope.Rope.": "methods of Rope", "kernels.base.Kernel.": "methods of Kernel"}
GROUPS |= {"kernels.families.": "families of kernels", "kernels.spectra.": "families of kernels"}
GROUPS |= {"layers.": "modules and models", "integrations.": "modules and models"}


def group_of(name: str) -> str:
    """Line of the table that a call belongs to."""
    return next((group for start, group in GROUPS.items() if name.startswith(start)), "functions")


def rows(folder: pathlib.Path, share: float) -> dict[str, collections.Counter[str]]:
    """Counts by group; what is wrong goes to stderr."""
    found: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)

    def count(group: str, line: str, refused: bool, fault: str) -> None:
        found[group].update(calls=1, refused=refused, taken=not refused)
        found[group].update(unclear=bool(fault) and refused, wrong=bool(fault) and not refused)
        if fault:
            sys.stderr.write(f"{line}: {fault}\n")

    for name, (function, arguments) in bad_input.calls(folder).items():
        chosen = random.Random(name)
        for argument, kind, value in bad_input.pairs(name, function, arguments):
            if chosen.random() >= share:
                continue
            refused, fault = bad_input.judged(function, arguments, argument, value, name)
            of = ", of other libraries" if kind.partition(":")[0] in ("torch", "jax", "dask") else ""
            count(group_of(name) + of, f"{name}, {argument} = {kind}", refused, fault)
        pyplot.close("all")
    for command, line in bad_commands.commands(folder).items():
        chosen = random.Random(command)
        for option, names, changed, kind in bad_commands.pairs(command, line):
            if chosen.random() >= share:
                continue
            code, fault = bad_commands.judged(command, option, names, changed, kind)
            count("command line", f"{command} {option} = {kind}", code != 0, fault)
    return found


def main() -> int:
    """Write the table; 1 if a call is unclear or wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", metavar="FILE.csv", help="where the table goes (stdout unless given)")
    parser.add_argument("--share", type=float, default=1.0, help="part of all calls, the same each time (default: all)")
    options = parser.parse_args()
    path = options.output
    matplotlib.use("agg")
    warnings.simplefilter("ignore")
    output = None if path is None else pathlib.Path(path).absolute()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        found = rows(pathlib.Path(folder), options.share)
        os.chdir("/")
    found["all"] = sum(found.values(), collections.Counter())
    with sys.stdout if output is None else output.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("", *COLUMNS))
        writer.writerows((group, *(counts[column] for column in COLUMNS)) for group, counts in found.items())
    return int(found["all"]["unclear"] + found["all"]["wrong"] > 0)


if __name__ == "__main__":
    sys.exit(main())
