"""All primary contrasts together; README.md has the command.

Reads the files of the experiments of evidence_protocol.rst, and that on recall of polar.rst, and
writes a row for each: what validation chose on either side, the difference over seeds and items, an interval and a
chance that are corrected for the number of contrasts, and the difference that the runs would have seen.
"""

from __future__ import annotations

import argparse
import importlib
import pathlib
import sys
from collections.abc import Mapping

from arms import BASELINES
from evidence import final, primary, sides
from train_recall import ARMS_OF
from trained import Row, command, read, show, write
from tuned import Contrast, best_arm, compare, holm

TASKS = ("glyphs", "series_sum", "chorales", "shapes")
RECALL = "train_recall_code"
UNITS = {"glyphs": "% wrong", "series_sum": "% of the variance", "chorales": "bits a note", "shapes": "% wrong"}
CONTRASTS = len(TASKS) + 1


def found_in(folder: pathlib.Path) -> dict[str, tuple[str, str, Contrast]]:
    """Return the designed arm, the baseline and their contrast, by the task, of the files that a folder has."""
    found = {}
    for task in TASKS:
        path = folder / f"evidence_{task}.csv"
        if path.exists():
            name, _, data = task.partition("_")
            arms = importlib.import_module(f"evidence_{name}").arms(*([data] if data else []))
            rows = final(read(path))
            if (one := primary(rows, arms)) is not None:
                found[task] = (*sides(rows, arms), one)
    path = folder / f"{RECALL}.csv"
    if path.exists():
        rows = [row for row in final(read(path)) if row["encoding"] in ARMS_OF["code"]]
        chosen = (
            best_arm(rows, [name for name in ARMS_OF["code"] if (name in BASELINES) == side]) for side in (False, True)
        )
        if rows and (one := compare(rows, ["beyond"])[1]) is not None:
            found[RECALL] = (*chosen, one)
    return found


def table(found: Mapping[str, tuple[str, str, Contrast]]) -> list[Row]:
    """Return a row for each contrast; intervals are simultaneous ones, by Bonferroni for all `CONTRASTS`."""
    chances = [one.p for *_, one in found.values()] + [1.0] * (CONTRASTS - len(found))
    rows = []
    for (task, (designed, baseline, one)), p in zip(found.items(), holm(chances), strict=False):
        low, high = one.between(1.0 - 0.05 / CONTRASTS)
        row = {"task": task, "unit": UNITS.get(task, "bits a token"), "designed": designed, "baseline": baseline}
        row |= {"difference": f"{one.mean:+.3f} ± {one.error:.3f}", "99 %": f"{low:+.3f} to {high:+.3f}"}
        rows.append(row | {"p, corrected": f"{p:.2g}", "would have been seen": f"{one.visible:.3f}"})
    return rows


def main(arguments: list[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("--output", metavar="FILE", type=pathlib.Path, required=True, help="beside the files of runs")
    options = parser.parse_args(arguments)
    rows = table(found_in(options.output.parent))
    if not rows:
        raise SystemExit(f"no file of runs in {options.output.parent}: run the commands of evidence_protocol.rst")
    write(options.output, rows)
    show(rows, options.output, command("evidence_summary.py", arguments))
    return 0


if __name__ == "__main__":
    sys.exit(main())
