"""What bounds a rotation here: ``python -m benchmarks.limits`` has its arithmetic beside a copy, and first calls apart.

Arithmetic is measured where x lies in the second cache, on one thread: the time of a call, linear in heads and tokens,
gives what a feature costs and what a phase does, and from both what (1, 32, 4096, 128) would take if memory cost
nothing and all cores shared it evenly (small results are stored in the caches, large ones past them). Beside it a copy
of that x on all cores, and the call itself, seldom quicker than the larger of the two; all are medians. ``--output
FILE`` writes the tables as a page of the documentation includes them.
"""

from __future__ import annotations

import argparse
import pathlib
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

import rfrope
from benchmarks import machine, peers, process_peers, rotation_peers
from benchmarks.process_peers import GAUSSIAN, INPUTS, SCORES, Process
from benchmarks.rotation_peers import HEADS, Rotation
from benchmarks.timing import Entry, measure

TOKENS, NEAR, FAR, HELD = 4096, 64, 512, 8  # all tokens, those of small problems, and the heads of a large one of these
KINDS = (
    ("float32", "half", "out", False),
    ("float32", "interleaved", "out", False),
    ("float32", "interleaved", "in place", False),
    ("float16", "half", "out", False),
    ("float16", "interleaved", "out", False),
    ("bfloat16", "half", "out", False),
    ("float32", "half", "out", True),
    ("float32", "interleaved", "out", True),
)
ROTATIONS = ("Rotation", "Arithmetic alone, ms", "Copy of x, ms", "The call, ms", "The call over the larger")
STARTS = ("First call of a process, compiled before", "Milliseconds")


def call_of(heads: int, tokens: int, problem: Rotation) -> Callable[[], Any]:
    """Rotate that many heads and tokens on one thread, the output given, or x itself."""
    x = problem.host[:, :heads, :tokens].copy()
    y = x if problem.into == "in place" else np.zeros_like(x)
    positions = np.arange(tokens)[:, None] if problem.per_head else np.arange(tokens)
    frequencies = problem.frequencies[:heads] if problem.per_head else problem.frequencies

    def call() -> Any:
        with rfrope.threads(1):
            return rfrope.rotate(x, positions, frequencies, pairing=problem.pairing, out=y)

    return call


def arithmetic(seconds: dict[tuple[int, int], float]) -> float:
    """Seconds of all heads and tokens on all cores, from those of some heads and tokens on one: linear in both."""
    row = (seconds[HELD, NEAR] - seconds[1, NEAR]) / (NEAR * (HELD - 1))
    phases = (seconds[1, FAR] - seconds[1, NEAR]) / (FAR - NEAR) - row
    return TOKENS * (HEADS * row + phases) / machine.cores()


def rotation(problem: Rotation, rounds: int) -> tuple[str, ...]:
    """Row of one rotation."""
    sizes = [(1, NEAR), (1, FAR), (HELD, NEAR)]
    small = {size: Entry(str(size), call_of(*size, problem)) for size in sizes}
    whole, copy = rotation_peers.ours(problem), rotation_peers.parallel_copy(problem)
    measure([*small.values(), whole, copy], rounds, 60.0)
    alone = arithmetic({size: entry.median for size, entry in small.items()})
    larger = max(alone, copy.median)
    words = [problem.dtype, problem.pairing, "frequencies for each head" if problem.per_head else "", problem.into]
    name = ", ".join(word for word in words if word).replace(", out", ", out=")
    figures = [f"{1e3 * value:.2f}" for value in (alone, copy.median, whole.median)]
    return name, *figures, f"{whole.median / larger:.2f}"


def starts(rounds: int) -> list[tuple[str, ...]]:
    """What a first estimate takes whose loops were compiled before, and what of it is the work of other packages."""
    problem = Process(INPUTS, SCORES.format(kernel=GAUSSIAN, trials=1024), cache="filled")
    special = process_peers.importing("import scipy.special", "scipy.special", "import numba")
    entries = {
        "`estimate_scores`": process_peers.ours(problem),
        "an empty function of Numba": process_peers.empty_function(problem),
        "`import scipy.special` after it": special,
    }
    measure([*entries.values()], rounds, 120.0)
    return [(name, f"{1e3 * entry.median:.0f}") for name, entry in entries.items()]


def main(arguments: list[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.limits", description=__doc__.partition("\n")[0])
    parser.add_argument("--output", metavar="FILE", type=pathlib.Path, help="file for the tables")
    parser.add_argument("--rounds", type=int, default=30)
    options = parser.parse_args(arguments)
    head = machine.description()
    problems = [Rotation(TOKENS, dtype, pairing=p, into=into, per_head=each) for dtype, p, into, each in KINDS]
    found = [rotation(problem, options.rounds) for problem in problems]
    tables = peers.markdown(ROTATIONS, found), peers.markdown(STARTS, starts(max(3, options.rounds // 3)))
    machine.publish("benchmarks.limits", head, tables, options.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
