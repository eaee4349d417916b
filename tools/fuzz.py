"""Eight hundred thousand strange inputs, in half an hour: ``python -m tools.fuzz --output docs/_data/fuzzing.csv``.

Each part runs a target of tests/input/test_fuzzing.py in a process of its own, with a seed of its own, so that nothing
grows; most inputs go where one costs least. ``--times 0.01`` takes a hundredth; ``--workers 2`` runs two
parts at a time.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import csv
import functools
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).parents[1]
# target, parts, inputs of a part as multiples of those that the campaign takes
PARTS = (
    ("test_texts", 28, 10),
    ("test_configs", 4, 15),
    ("test_damaged_files", 2, 10),
    ("test_files_that_say_strange_things_of_themselves", 2, 10),
    ("test_archives_of_strange_members", 2, 10),
    ("test_gguf_files", 2, 10),
    ("test_command_lines", 2, 10),
    ("test_configs_on_the_command_line", 2, 10),
)
SEED = 18


def part(target: str, times: float, seed: int) -> tuple[int, bool, float]:
    """How many inputs a target took, whether all of them were read or refused as they should be, and seconds."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        environment = os.environ | {"RFROPE_FUZZ": repr(times), "RFROPE_FUZZED_TO": file.name}
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-m",
            "",
            "-p",
            "no:cacheprovider",
            f"--hypothesis-seed={seed}",
        ]
        begun = time.perf_counter()
        tests = (
            "tests/input/test_fuzzing.py"
            if target == "test_command_lines"
            else f"tests/input/test_fuzzing.py::{target}"
        )
        only = ["-k", "test_command_lines"] if target == "test_command_lines" else []
        ended = subprocess.run([*command, tests, *only], cwd=ROOT, env=environment, capture_output=True, text=True)
        if ended.returncode:
            print(ended.stdout[-6000:], ended.stderr[-2000:], flush=True)
        taken = json.loads(pathlib.Path(file.name).read_text("utf-8") or "{}")
    return sum(taken.values()), ended.returncode == 0, time.perf_counter() - begun


def main(arguments: list[str] | None = None) -> int:
    """Run the command; 1 if anything failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--output", type=pathlib.Path, metavar="FILE.csv")
    parser.add_argument("--times", type=float, default=1.0)
    parser.add_argument("--workers", type=int, default=1)
    given = parser.parse_args(arguments)
    taken, failed, seconds = collections.Counter(), collections.Counter(), collections.Counter()
    for target, parts, times in PARTS:
        seeds = range(SEED, SEED + parts)
        inputs = max(1.001, given.times * times)  # above 1, so that other inputs come each time
        with concurrent.futures.ThreadPoolExecutor(given.workers) as pool:
            for number, passed, spent in pool.map(functools.partial(part, target, inputs), seeds):
                taken[target] += number
                failed[target] += not passed
                seconds[target] += spent
        print(f"{target:52}{taken[target]:10}{failed[target]:4}{seconds[target]:8.0f}", flush=True)
    rows = [("Inputs to", "Number", "Parts that failed", "Seconds")]
    for target, *_ in PARTS:
        name = target.removeprefix("test_").replace("_", " ")
        rows.append((name, str(taken[target]), str(failed[target]), f"{seconds[target]:.0f}"))
    rows.append(("all", str(sum(taken.values())), str(sum(failed.values())), f"{sum(seconds.values()):.0f}"))
    if given.output:
        with given.output.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(rows)
    return 1 if sum(failed.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
