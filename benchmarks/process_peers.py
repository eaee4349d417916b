"""What only a fresh process shows: start-up, first calls and peak memory. Each figure is measured in one of its own."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import tempfile
from dataclasses import dataclass

from benchmarks.rotation_peers import need
from benchmarks.timing import Entry

# /proc counts the peak of this program alone; the system's own figure for a process begins with that of its parent
_PRELUDE = """
import sys, time
def peak():
    try:
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1e3
    except OSError:
        import resource
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1e6 if sys.platform == "darwin" else 1e3)
"""
_SECONDS = "started = time.perf_counter()\n{work}\nprint(time.perf_counter() - started)"
_MEGABYTES = "before = peak()\n{work}\nprint(peak() - before)"

INPUTS = """
import numpy as np, rfrope
x, positions, frequencies = np.zeros((1, 32, 64, 128), np.float32), np.arange(64), rfrope.geometric(64)
q, k = np.random.default_rng(0).standard_normal((2, 128))
"""
ROTATE = "rfrope.rotate(x, positions, frequencies)"
SCORES = "rfrope.estimate_scores(q, k, 8.0, '{kernel}', n_trials={trials}, rng=0)"
KERNEL = "rfrope.estimate_kernel(np.arange({lags}.0), 'gaussian(scale=32)', n_samples={samples}, rng=0)"
GAUSSIAN, MATERN = "gaussian(scale=32)", "matern(nu=1.5, scale=16)"


@dataclass(frozen=True)
class Process:
    """`work` in a new process after `before`, which does not count; the figure is in seconds, or in megabytes.

    `smaller` is the same work with a sixteenth of the draws. Compiled loops are kept where they `usual`ly are, in an
    `empty` folder, or in one that a process before has `filled`.
    """

    before: str
    work: str
    seconds: bool = True
    cache: str = "usual"
    smaller: str = ""

    def run(self, folder: str | None = None) -> float:
        """Measure once."""
        body = (_SECONDS if self.seconds else _MEGABYTES).format(work=self.work)
        environment = os.environ | ({"NUMBA_CACHE_DIR": folder} if folder else {})
        command = [sys.executable, "-c", f"{_PRELUDE}\n{self.before}\n{body}"]
        return float(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)


def ours(problem: Process) -> Entry:
    if problem.cache == "usual":
        problem.run()  # compiles what is not compiled yet
        return Entry("rfrope", problem.run, value=True)
    kept = tempfile.TemporaryDirectory(prefix="rfrope-numba-")
    if problem.cache == "filled":
        problem.run(kept.name)
        return Entry("rfrope", lambda: problem.run(kept.name), value=True)

    def empty() -> float:
        with tempfile.TemporaryDirectory(prefix="rfrope-numba-") as folder:
            return problem.run(folder)

    return Entry("rfrope", empty, value=True)


def importing(name: str, package: str, before: str = "") -> Entry:
    """Import of another package, for scale."""
    need(package)
    problem = Process(before, f"import {package}")
    problem.run()
    return Entry(name, problem.run, value=True)


def empty_function(problem: Process) -> Entry:
    """Call a function of Numba that does nothing, compiled before: what Numba itself costs a process."""
    need("numba")
    folder = tempfile.TemporaryDirectory(prefix="rfrope-numba-")
    source = "from numba import njit\n\n@njit(cache=True)\ndef nothing(x):\n    return x\n"
    (pathlib.Path(folder.name) / "empty_loop.py").write_text(source, "utf-8")
    before = f"{problem.before}\nsys.path.insert(0, {folder.name!r})"
    alone = Process(before, "from empty_loop import nothing\nnothing(1.0)")
    alone.run(folder.name)
    return Entry("an empty function of Numba, compiled before", lambda: alone.run(folder.name), value=True)


def a_sixteenth(problem: Process) -> Entry:
    """Run the same with a sixteenth of the draws."""
    smaller = Process(problem.before, problem.smaller, problem.seconds)
    return Entry("the same with a sixteenth of the draws", smaller.run, value=True)


def warm(problem: Process) -> Entry:
    """Make the same call a second time."""
    second = Process(f"{problem.before}\n{problem.work}", problem.work, problem.seconds)
    return Entry("its second call", second.run, value=True)


PEERS = {
    "import numpy": lambda problem: importing("import numpy", "numpy"),
    "import torch": lambda problem: importing("import torch", "torch", "import numpy"),
    "import numba": lambda problem: importing("import numba", "numba", "import rfrope"),
    "an empty function of Numba, compiled before": empty_function,
    "the same with a sixteenth of the draws": a_sixteenth,
    "its second call": warm,
}
