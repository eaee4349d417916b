"""Loops compiled for other processors, on this one: ``python -m benchmarks.tuned`` has their times over the host's own.

LLVM chooses instructions and the width of vectors by the name of a processor; a choice that only suits one would
show here. Processes of all take turns, each with its ``NUMBA_CPU_NAME``, and with the instructions of that processor
alone. ``--output FILE`` writes the table as a page of the documentation includes it.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys

from benchmarks import machine, peers, timing
from benchmarks.jobs import FULL, jobs
from benchmarks.process_peers import Process

HOST, OTHERS = "this processor", ("cascadelake", "znver4")


def measured(pattern: str) -> dict[str, float]:
    """Median of each job's calls, ours alone, in seconds times the job's factor."""
    found = {}
    for job in jobs(FULL):
        if not isinstance(job.problem, Process) and re.search(pattern, job.name):
            outcome = peers.prepare(job, skip=tuple(job.peers))
            if outcome.entries:
                timing.measure(outcome.entries, 3, 5.0)
                found[job.name] = job.factor * outcome.entries[0].median
    return found


def run(name: str, pattern: str) -> dict[str, float]:
    """Measure in a process of its own, whose loops are compiled for a processor."""
    usual = {key: value for key, value in os.environ.items() if key not in ("NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES")}
    # the name stands for its instructions; naming one of them keeps those of this processor out
    environment = usual | ({} if name == HOST else {"NUMBA_CPU_NAME": name, "NUMBA_CPU_FEATURES": "+f16c"})
    command = [sys.executable, "-m", "benchmarks.tuned", "--one", "--jobs", pattern]
    return json.loads(subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout)


def rows(rounds: list[dict[str, dict[str, float]]], units: dict[str, str]) -> list[tuple[str, ...]]:
    """A row for each job: the host's median, and the medians over the rounds of what others take over the host."""
    found = []
    for job in rounds[0][HOST]:
        own = statistics.median(one[HOST][job] for one in rounds)
        ratios = [statistics.median(one[name][job] / one[HOST][job] for one in rounds) for name in OTHERS]
        found.append((job, f"{own:.3g} {units[job]}", *(f"{ratio:.2f}" for ratio in ratios)))
    return found


def main(arguments: list[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tuned", description=__doc__.partition("\n")[0])
    parser.add_argument("--output", metavar="FILE", type=pathlib.Path, help="file for the table, as CSV")
    parser.add_argument("--jobs", metavar="REGEX", default="", help="only the jobs whose names it matches")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--one", action="store_true", help="measure in this process, and print figures as JSON")
    options = parser.parse_args(arguments)
    if options.one:
        print(json.dumps(measured(options.jobs)))
        return 0
    head, names = machine.description(), (HOST, *OTHERS)
    for name in names:  # compiles what is not compiled yet
        run(name, options.jobs)
    rounds = [{name: run(name, options.jobs) for name in names} for _ in range(options.rounds)]
    units = {job.name: job.unit for job in jobs(FULL)}
    headings, found = ("job", HOST, *(f"{name}, over it" for name in OTHERS)), rows(rounds, units)
    machine.publish("benchmarks.tuned", head, [peers.markdown(headings, found)], None)
    if options.output:
        lines = [dict(zip(headings, row, strict=True)) for row in found]
        machine.write_rows(options.output, headings, lines, f"Made by: {machine.command('benchmarks.tuned')}", *head)
    return 0


if __name__ == "__main__":
    sys.exit(main())
