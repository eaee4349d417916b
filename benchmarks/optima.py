"""How good the optimised design is: ``python -m benchmarks.optima`` compares it with many random starts, and times it.

Each random start goes downhill to the next minimum, and the least of them is kept: independent draws of the kernel by
turns with draws of which only the slowest share, a random one, is taken. What `optimise` reports stands beside it, with
the design "quantile" and the seconds that one call computes. All else is seeded.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before NumPy: see benchmarks.designs

import argparse
import csv
import math
import pathlib
import sys
import time
from collections.abc import Iterator

import numpy as np

import rfrope
from benchmarks import machine
from rfrope import kernels
from rfrope._core import parallel
from rfrope.designs.errors import Lags, descend
from rfrope.kernels import Kernel

SIZES = (8, 32, 64)
STARTS, SEED = 200, 20240607
MAX_LAG = 256
LONGER = {"exponential": 512, "log_uniform": 1024}  # lags of some families
HEADER = ("kernel", "max lag", "blocks", "quantile", "random starts", "optimised", "CPU seconds")
Row = dict[str, str]


def cases() -> Iterator[tuple[Kernel, int]]:
    """Every registered family in one axis whose law is more than one frequency, one in two axes and a long context."""
    for record in kernels.records():
        if record.name not in ("constant", "shell"):
            yield kernels.parse(record.example), LONGER.get(record.name, MAX_LAG)
    yield kernels.parse("exponential(scale=8, ndim=2)"), 16
    yield kernels.parse("exponential(scale=48)"), 4095


def random_start(kernel: Kernel, n_blocks: int, number: int) -> np.ndarray:
    """Frequencies ``(D, k)`` of start number 0, 1, ..."""
    rng = np.random.default_rng([SEED, number])
    share = 1.0 if number % 2 == 0 else 1.0 - min(4.0 / n_blocks, 0.7) * rng.random() ** 2
    drawn = rfrope.sample(kernel, math.ceil(n_blocks / share), rng=rng).reshape(-1, kernel.ndim)
    slowest = np.argsort(np.linalg.norm(drawn, axis=-1))[:n_blocks]
    return drawn[slowest] - 2.0 * np.pi * np.round(drawn[slowest] / (2.0 * np.pi))


def least_of_random_starts(kernel: Kernel, max_lag: int, n_blocks: int, starts: int = STARTS) -> float:
    """Root mean square error of the best minimum that some random starts go down to."""
    reach = (max_lag,) * kernel.ndim
    lags = Lags(kernel, reach)

    def minimum(number: int) -> float:
        return descend(lags, random_start(kernel, n_blocks, number), 200, 1e-6)[1]

    square = min(parallel.ordered_map(minimum, range(starts), parallel.allowed()))
    total = math.prod(2 * m + 1 for m in reach)
    return math.sqrt(square * total / (total + 1))  # lag 0 counts as one lag of the half, as `optimise` has it


def row(kernel: Kernel, max_lag: int, n_blocks: int, least: float) -> Row:
    """What is written of a case."""
    start = time.process_time()
    source = rfrope.designs.optimise(kernel, n_blocks, max_lag=max_lag).source
    seconds = time.process_time() - start  # all threads together: where others compute too the clock says little
    values = (source.extra["start"]["rms"], least, source.error["rms"])
    texts = (repr(kernel), str(max_lag), str(n_blocks), *(f"{v:.5g}" for v in values), f"{seconds:.2g}")
    return dict(zip(HEADER, texts, strict=True))


def read(path: pathlib.Path) -> list[Row]:
    """Rows of a table that was written."""
    lines = [line for line in path.read_text("utf-8").splitlines() if not line.startswith("#")]
    return list(csv.DictReader(lines))


def include(table: list[Row], notes: list[str]) -> str:
    """Return a list-table of reStructuredText, errors in thousandths."""
    lines = [*(f".. {note}" for note in notes), "", ".. list-table::", "   :header-rows: 1", ""]
    for each in (dict(zip(HEADER, HEADER, strict=True)), *table):
        cells = [f"``{each['kernel']}``" if each["kernel"] != HEADER[0] else HEADER[0]]
        cells += [each[name] if name == each[name] or name not in HEADER[3:6] else f"{1e3 * float(each[name]):.3g}"
                  for name in HEADER[1:]]  # fmt: skip
        lines += [("   * - " if number == 0 else "     - ") + cell for number, cell in enumerate(cells)]
    return "\n".join(lines) + "\n"


def main(arguments: list[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.optima", description=__doc__.partition("\n")[0])
    parser.add_argument("--output", metavar="FILE.csv", type=pathlib.Path, help="the table; an .inc goes beside it")
    parser.add_argument("--reuse", metavar="FILE.csv", type=pathlib.Path, help="take the random starts from there")
    options = parser.parse_args(arguments)
    known = {} if options.reuse is None else {tuple(r[h] for h in HEADER[:3]): r for r in read(options.reuse)}
    notes, table = [f"Made by: {machine.command('benchmarks.optima')}", *machine.description()], []
    rfrope.designs.optimise("gaussian", 2, max_lag=8)  # imports
    for kernel, max_lag in cases():
        for n_blocks in SIZES:
            old = known.get((repr(kernel), str(max_lag), str(n_blocks)))
            least = float(old["random starts"]) if old else least_of_random_starts(kernel, max_lag, n_blocks)
            table.append(row(kernel, max_lag, n_blocks, least))
            print(*table[-1].values(), sep="  ", flush=True)
    if options.output:
        options.output.with_suffix(".inc").write_text(include(table, notes), "utf-8")
        machine.write_rows(options.output, HEADER, table, *notes)
    return 0


if __name__ == "__main__":
    sys.exit(main())
