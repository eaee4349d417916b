"""Compare revisions in one run, and say what got slower or faster by more than noise.

    python -m benchmarks.compare main HEAD
    python -m benchmarks.compare main .                      # the working tree, uncommitted changes included

The first revision is the base. The files of every revision are unpacked into a folder of their own, and run in a
process of their own, the base in two: the second is a control, whose ratio to the first is noise by construction.
All run in turn, job by job and round by round, in an order that changes, so that they meet the same state of the
machine; ratios are taken within a round.

The figure for a job is the median of its ratios over the rounds, with an interval from their order: between the two
ratios that hold the median with the confidence asked for, whatever the law of the ratios, corrected for the number
of jobs and revisions (Bonferroni). A job is slower by more than noise where its interval lies above that of the
control, and above 1. Times are those of the processor in one thread (unless --clock wall and --threads N say
otherwise), which others on the machine disturb least.

Exit code: 0, or 1 if a job got slower, or 2 for bad input.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import io
import json
import math
import os
import pathlib
import random
import re
import statistics
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks import compare_jobs, machine

ROOT = pathlib.Path(__file__).parents[1]
CONTROL = "control"
FIELDS = ("revision", "date", "job", "ratio", "low", "high", "verdict", "base_seconds")


@dataclass(frozen=True)
class Ratio:
    """How long a job takes, as a multiple of the base: median and interval over the rounds."""

    value: float
    low: float
    high: float


def interval(ratios: list[float], alpha: float) -> Ratio:
    """Median of ratios, and the narrowest interval of order that holds the true median with confidence ``1 - alpha``.

    Each ratio lies below the true median with probability 1/2, so the number below is binomial; with too few ratios for
    the confidence the interval is everything.
    """
    ordered, n = sorted(ratios), len(ratios)
    tail, rank = 0.0, 0
    while rank < n // 2 and tail + math.comb(n, rank) / 2.0**n <= alpha / 2.0:
        tail += math.comb(n, rank) / 2.0**n
        rank += 1
    low, high = (ordered[rank - 1], ordered[n - rank]) if rank else (0.0, math.inf)
    return Ratio(statistics.median(ordered), low, high)


def verdict(found: Ratio, control: Ratio) -> str:
    """Whether an interval lies beyond 1 and beyond that of the same code run twice."""
    if found.low > max(1.0, control.high):
        return "slower"
    return "faster" if found.high < min(1.0, control.low) else ""


def rounds_needed(alpha: float) -> int:
    """Fewest rounds for which an interval is not everything."""
    return math.ceil(1.0 + math.log2(1.0 / alpha))


class Worker:
    """A process that runs jobs on the rfrope of one folder."""

    def __init__(self, folder: pathlib.Path, clock: str, threads: int) -> None:
        names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS", "MKL_NUM_THREADS")
        paths = os.pathsep.join([str(folder), str(ROOT)])  # the jobs are those of this revision, for all
        environment = os.environ | {"PYTHONPATH": paths} | dict.fromkeys(names, str(threads))
        self.process = subprocess.Popen(
            [sys.executable, "-m", compare_jobs.__name__, str(folder), clock, str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=folder,
            env=environment,
        )

    def seconds(self, job: str) -> float | str:
        """Seconds of a job, or why there are none."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(job + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            return f"the process ended with exit code {self.process.wait()}"
        answer: dict[str, Any] = json.loads(line)
        return float(answer["seconds"]) if "seconds" in answer else str(answer["missing"])

    def close(self) -> None:
        """End the process."""
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        try:
            self.process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def git(*words: str) -> str:
    """What git says."""
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ValueError(f"git {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout.strip()


@contextlib.contextmanager
def checked_out(revision: str) -> Iterator[pathlib.Path]:
    """Folder with a revision, "." being the working tree."""
    if revision == ".":
        yield ROOT
        return
    commit = git("rev-parse", "--verify", f"{revision}^{{commit}}")
    with tempfile.TemporaryDirectory(prefix="rfrope-") as folder:
        packed = subprocess.run(["git", "archive", commit, "rfrope"], cwd=ROOT, capture_output=True, check=True).stdout
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            archive.extractall(folder, filter="data")
        yield pathlib.Path(folder)


def measured(
    workers: dict[str, Worker], jobs: list[str], rounds: int, base: str
) -> tuple[dict[tuple[str, str], list[float]], dict[str, list[float]], dict[tuple[str, str], str]]:
    """Ratios to the base by revision and job, seconds of the base by job, and what is missing."""
    order, ratios, seconds = random.Random(0), dict[tuple[str, str], list[float]](), dict[str, list[float]]()
    missing: dict[tuple[str, str], str] = {}
    for _ in range(rounds):
        for job in order.sample(jobs, len(jobs)):
            names = order.sample([*workers], len(workers))
            took = {name: workers[name].seconds(job) for name in names if (name, job) not in missing}
            missing |= {(name, job): held for name, held in took.items() if isinstance(held, str)}
            first = took.get(base)
            if not isinstance(first, float):
                continue
            seconds.setdefault(job, []).append(first)
            for name, held in took.items():
                if name != base and isinstance(held, float):
                    ratios.setdefault((name, job), []).append(held / first)
    return ratios, seconds, missing


def compared(options: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each revision and job; the control is one of the revisions."""
    known = compare_jobs.SUITES[options.suite]
    jobs = [job for job in known if re.search(options.only, job)]
    if not jobs:
        raise ValueError(f"--only {options.only}: expected a pattern that matches some of {', '.join(known)}")
    base, *others = options.revisions
    alpha = options.alpha / (len(jobs) * len(others))
    if options.rounds < rounds_needed(alpha):
        raise ValueError(f"--rounds {options.rounds}: expected at least {rounds_needed(alpha)} for {len(jobs)} jobs")
    with contextlib.ExitStack() as stack:
        folders = {name: stack.enter_context(checked_out(name)) for name in dict.fromkeys(options.revisions)}
        workers = {}
        for name, folder in {**folders, CONTROL: folders[base]}.items():
            workers[name] = Worker(folder, options.clock, options.threads)
            stack.callback(workers[name].close)
        ratios, seconds, missing = measured(workers, jobs, options.rounds, base)
    rows = []
    for name in (*dict.fromkeys(others), CONTROL):
        date = "" if name in (".", CONTROL) else git("show", "-s", "--format=%cs", f"{name}^{{commit}}")
        for job in jobs:
            about = {"revision": name, "date": date, "job": job}
            if (name, job) in missing or (name, job) not in ratios:
                rows.append(about | {"verdict": f"missing: {missing.get((name, job), 'the base lacks it')}"})
                continue
            found, control = interval(ratios[name, job], alpha), interval(ratios[CONTROL, job], alpha)
            judged = "" if name == CONTROL else verdict(found, control)
            figures = {"ratio": found.value, "low": found.low, "high": found.high}
            rows.append(about | figures | {"verdict": judged, "base_seconds": statistics.median(seconds[job])})
    return rows


def text(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Lines of a table."""
    width = max(len(row["job"]) for row in rows)
    for name in dict.fromkeys(row["revision"] for row in rows):
        yield f"{name}{', the base a second time: what noise does' if name == CONTROL else ''}"
        for row in rows:
            if row["revision"] != name:
                continue
            if "ratio" not in row:
                yield f"  {row['job']:{width}}  {row['verdict']}"
                continue
            figures = f"{row['ratio']:6.3f}  ({row['low']:.3f} to {row['high']:.3f})"
            yield f"  {row['job']:{width}}  {1e3 * row['base_seconds']:9.4f} ms x {figures}  {row['verdict']}".rstrip()


def head(options: argparse.Namespace) -> list[str]:
    """What was measured, and where."""
    commits = {name: name if name == "." else git("rev-parse", "--short", name) for name in options.revisions}
    named = ", ".join(f"{name} ({commit})" if name != commit else name for name, commit in commits.items())
    clock = "processor time" if options.clock == "cpu" else "wall time"
    return [
        *machine.description(),
        f"{clock}, threads: {options.threads}, {options.rounds} rounds; base first: {named}",
    ]


def write(path: pathlib.Path, rows: list[dict[str, Any]], about: list[str]) -> None:
    """Write rows as CSV, below lines that say what they are."""
    with path.open("w", encoding="utf-8", newline="") as file:
        file.writelines(f"# {line}\n" for line in (f"Made by: {machine.command('benchmarks.compare')}", *about))
        table = csv.DictWriter(file, FIELDS, lineterminator="\n")
        table.writeheader()
        for row in rows:
            table.writerow({name: f"{v:.4g}" if isinstance(v, float) else v for name, v in row.items()})


def main(arguments: list[str] | None = None) -> int:
    """Compare, print, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compare", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("revisions", nargs="+", help='the base, and what is held against it; "." is the working tree')
    parser.add_argument("--rounds", type=int, default=14, help="default: %(default)s")
    parser.add_argument("--only", default="", metavar="PATTERN", help="jobs whose name matches this regular expression")
    parser.add_argument("--suite", choices=tuple(compare_jobs.SUITES), default="usual", help="default: %(default)s")
    parser.add_argument("--alpha", type=float, default=0.05, help="chance of a false alarm in all (default: 0.05)")
    parser.add_argument("--clock", choices=("cpu", "wall"), default="cpu", help="default: %(default)s")
    parser.add_argument("--threads", type=int, default=1, help="default: %(default)s")
    parser.add_argument("--output", type=pathlib.Path, metavar="FILE.csv", help="write the figures")
    options = parser.parse_args(arguments)
    try:
        if len(options.revisions) < 2:
            raise ValueError("expected a base and at least one revision, as in: python -m benchmarks.compare main HEAD")
        about, rows = head(options), compared(options)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    print("\n".join([*about, "", *text(rows)]))
    if options.output is not None:
        write(options.output, rows, about)
    slower = [row for row in rows if row["verdict"] == "slower"]
    print(f"\n{len(slower)} slower by more than noise" + "".join(f"\n  {r['revision']}: {r['job']}" for r in slower))
    return 1 if slower else 0


if __name__ == "__main__":
    sys.exit(main())
