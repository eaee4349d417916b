"""Ratios to other ways of doing the same, in one run: ``python -m benchmarks.peers [--quick] [--output FILE]``.

Every job is done by rfrope and by its peers in turn, round after round; their results are compared first. The ratio is
median of those of the rounds, with the tenth and the ninetieth percent of them as its spread. A target is met or
missed where the whole spread says so.
"""

from __future__ import annotations

import argparse
import gc
import json
import pathlib
import re
import sys
import time
import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks import machine, timing
from benchmarks.jobs import FULL, ROWS, TINY, Job, Target, jobs
from benchmarks.timing import Entry, Missing

TARGETS = ("target for", "job", "target", "measured", "spread", "verdict")
HEADINGS = ("who", "least", "median", "unit", "times rfrope", "spread")
_SPREAD = (0.1, 0.5, 0.9)
_RUNS, _QUICK_RUNS = (15, 5.0), (3, 1.0)  # rounds, and seconds for one entry


@dataclass
class Outcome:
    """Entries that were measured, and the reasons of those that were not."""

    job: Job
    entries: list[Entry] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)

    def figures(self, name: str | None) -> np.ndarray:
        """Return the least and the median figure of an entry in the unit of the job; NaN for what was not measured."""
        found = [(entry.least, entry.median) for entry in self.entries if entry.name == name]
        return self.job.factor * np.asarray(found[0] if found else (np.nan, np.nan))

    def held(self, target: Target) -> np.ndarray:
        """Return what is held against a target: its spread and median over the rounds; NaN where it is not measured."""
        ours, peer = (self._rounds(name) for name in ("rfrope", target.peer or "rfrope"))
        common = sorted(ours.keys() & peer.keys())
        if not common:
            return np.full(3, np.nan)
        ours, peer = (np.asarray([figures[index] for index in common]) for figures in (ours, peer))
        return np.quantile(target.measured(self.job.factor * ours, self.job.factor * peer), _SPREAD)

    def _rounds(self, name: str) -> dict[int, float]:
        return next((entry.rounds for entry in self.entries if entry.name.startswith(name)), {})


def prepare(job: Job, skip: tuple[str, ...] = ()) -> Outcome:
    """Make ready all that take part in a job, and compare their results with ours."""
    outcome, expected = Outcome(job), None
    for name in ("rfrope", *job.peers):
        try:
            if name in skip:
                raise Missing("left out")
            entry = (job.ours if name == "rfrope" else job.maker(name))(job.problem)
        except Missing as reason:
            outcome.missing[name] = str(reason)
            continue
        found = entry.result(entry.call()) if entry.result else None
        if name == "rfrope":
            expected = found
        elif found is not None and expected is not None and not (job.same and job.same(expected, found)):
            raise AssertionError(f"{job.name}: {entry.name} computes something else")
        outcome.entries.append(entry)
    return outcome


def run(job: Job, rounds: int, most_seconds: float) -> Outcome:
    """Prepare and measure."""
    outcome = prepare(job)
    timing.measure(outcome.entries, rounds, most_seconds)
    for entry in outcome.entries:  # features and memory of a finished job are let go
        entry.call = entry.result = None
    gc.collect()
    return outcome


def number(value: float) -> str:
    """Three digits, without an exponent."""
    return f"{value:.3g}" if abs(value) < 100.0 else f"{value:.0f}"


def target_rows(outcomes: list[Outcome]) -> list[tuple[str, ...]]:
    """Return a line for each target, and one for each row without: row, job, measured, by medians, target, verdict."""
    lines = []
    for index, row in enumerate(ROWS):
        found = [(outcome, target) for outcome in outcomes for target in outcome.job.targets if target.row == index]
        lines += [_target_row(row if i == 0 else "", *pair) for i, pair in enumerate(found)]
        if not found:
            lines.append((row, "", "", "", "", "not measured in this run"))
    return lines


def _target_row(row: str, outcome: Outcome, target: Target) -> tuple[str, ...]:
    job, asked = outcome.job, target.text(outcome.job.unit)
    held = outcome.held(target)
    if np.isnan(held[1]):
        reasons = (outcome.missing[name] for name in ("rfrope", target.peer or "") if name in outcome.missing)
        return row, job.name, asked, "", "", f"not measured: {next(reasons, '')}"
    unit = job.unit if target.peer is None else "x"
    return row, job.name, asked, f"{number(held[1])} {unit}", _range(held), target.verdict(held)


def _range(spread: np.ndarray) -> str:
    return f"{number(spread[0])} to {number(spread[-1])}"


def peer_rows(outcome: Outcome) -> list[tuple[str, ...]]:
    """Return one line for each entry of a job: name, least and median, unit, and ratio to ours with its spread."""
    lines = []
    for entry in outcome.entries:
        least, median = outcome.figures(entry.name)
        ratio = outcome.held(Target(0, 1.0, entry.name, faster=True))
        shown = ("", "") if np.isnan(ratio[1]) else (number(ratio[1]), _range(ratio))
        lines.append((entry.name, number(least), number(median), outcome.job.unit, *shown))
    return lines + [(name, "", "", "", "", reason) for name, reason in outcome.missing.items()]


def aligned(rows: list[tuple[str, ...]], indent: str = "  ") -> str:
    """Plain text in columns as wide as they need."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(indent + "  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def markdown(headings: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """Return a table of Markdown."""
    lines = [headings, tuple("---" for _ in headings), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def record(outcomes: list[Outcome], head: list[str], command: str) -> dict[str, Any]:
    """All that another run's page shows of this one."""
    rows = [dict(zip(TARGETS, row, strict=True)) for row in target_rows(outcomes)]
    return {"name": machine.architecture(), "command": command, "head": head, "rows": rows}


def page(outcomes: list[Outcome], head: list[str], command: str, others: tuple[dict[str, Any], ...] = ()) -> str:
    """Return the targets that are not met, as a fragment of Markdown."""
    headings, rows = beside(record(outcomes, head, command), others)
    unmet = [row for row in rows if not row[4].startswith("met")]
    parts = [f"<!-- Made by: {command} -->", head[0]]
    parts.append(
        f"{len(rows) - len(unmet)} of {len(rows)} targets are met; these are not. A figure is the median over rounds, "
        'with the 10th and 90th percentiles; "met" and "missed" need all three to agree.'
    )
    parts.append(markdown(headings[1:5], [(row[1] or row[0], *row[2:5]) for row in unmet]))
    return "\n\n".join(parts) + "\n"


def write(path: pathlib.Path, outcomes: list[Outcome], head: list[str], others: tuple[dict[str, Any], ...]) -> None:
    """Write the page, and beside it two CSV files: every target, and every entry of every job."""
    command = machine.command("benchmarks.peers")
    path.write_text(page(outcomes, head, command, others), "utf-8")
    found = [(outcome.job.name, *row) for outcome in outcomes for row in peer_rows(outcome)]
    targets = beside(record(outcomes, head, command), others)
    for name, (headings, rows) in (("targets", targets), ("jobs", (("job", *HEADINGS), found))):
        file = path.with_name(f"{path.stem.removesuffix('_table')}_{name}.csv")
        lines = [dict(zip(headings, row, strict=True)) for row in rows]
        machine.write_rows(file, headings, lines, f"Made by: {command}", *head)


def beside(own: dict[str, Any], others: tuple[dict[str, Any], ...]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Headings and rows of the table of targets, with two columns for each processor."""
    headings, rows = list(TARGETS[:3]), []
    for run_there in (own, *others):
        headings += [str(run_there["name"]), f"verdict on {run_there['name']}"]
    for row in own["rows"]:
        cells = [row[name] or rows[-1][0] if name == TARGETS[0] else row[name] for name in TARGETS[:3]]
        asked = row["job"], row["target"]
        for run_there in (own, *others):
            found = next((one for one in run_there["rows"] if (one["job"], one["target"]) == asked), {})
            spread = f" ({found['spread']})" if found.get("spread") else ""
            cells += [f"{found.get('measured', '')}{spread}", found.get("verdict", "")]
        rows.append(tuple(cells))
    return tuple(headings), rows


def main(arguments: list[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds, the same sizes")
    parser.add_argument("--tiny", action="store_true", help="tiny problems: a test of the script, no measurement")
    parser.add_argument("--jobs", metavar="REGEX", default="", help="only the jobs whose names it matches")
    parser.add_argument(
        "--output", metavar="FILE", type=pathlib.Path, help="write the page there, and CSV files beside it"
    )
    parser.add_argument(
        "--save", metavar="FILE", type=pathlib.Path, help="write what another page shows of it, as JSON"
    )
    parser.add_argument("--beside", metavar="FILE", type=pathlib.Path, action="append", default=[], help="saved runs")
    options = parser.parse_args(arguments)
    # onnxruntime, torch.compile and others warn about what does not concern a measurement
    warnings.simplefilter("ignore")
    started, head, outcomes = time.perf_counter(), machine.description(), []
    command = machine.command("benchmarks.peers")
    print(command, *head, sep="\n", flush=True)
    for job in jobs(TINY if options.tiny else FULL):
        if re.search(options.jobs, job.name):
            outcomes.append(run(job, *(_QUICK_RUNS if options.quick or options.tiny else _RUNS)))
            print(f"\n{job.name}\n{aligned([HEADINGS, *peer_rows(outcomes[-1])])}", flush=True)
    print(f"\nTargets\n{aligned([TARGETS, *target_rows(outcomes)])}")
    print(f"\n{time.perf_counter() - started:.0f} s in all")
    head.append(f"at the end: {machine.state()}")
    print(head[-1])
    if options.save:
        options.save.write_text(json.dumps(record(outcomes, head, command), indent=1) + "\n", "utf-8")
    if options.output:
        others = tuple(json.loads(path.read_text("utf-8")) for path in options.beside)
        write(options.output, outcomes, head, others)
    return 0


if __name__ == "__main__":
    sys.exit(main())
