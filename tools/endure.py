"""Long and large calls: that memory stays flat, and how soon an interrupt ends them.

python -m tools.endure memory        10**8 trials, 10**7 lags, 2 GB turned in place, 10**6 small calls
python -m tools.endure interrupts    seconds from the signal to the exception, the slowest of three
python -m tools.endure stretches     the longest time of the processor between two looks at signals, and where

With ``--output FILE.csv`` the rows are written to a file too, as docs/project/reliability.rst shows them.

Each call runs in a process of its own. The last two take the same works; what else runs on the machine makes the
second longer, and not the third, which sees all stretches of the main thread in 20 seconds of work. Memory is the most
that the process held during the call beyond what it held after a small call of the same kind.
"""

from __future__ import annotations

import argparse
import csv
import pathlib
import subprocess
import sys
import time
from collections.abc import Iterator

CALLS = {
    "rotate, 2 GB of float32 in place": (
        "x = np.ones((4096, 1024, 128), np.float32); p = np.arange(1024); w = rfrope.geometric(64)",
        "rfrope.rotate(x[:2], p, w, out=x[:2])",
        "rfrope.rotate(x, p, w, out=x)",
    ),
    "estimate_scores, 10**8 trials": (
        "q, k = np.random.default_rng(0).standard_normal((2, 4)); lags = np.arange(2.0)",
        "rfrope.estimate_scores(q, k, lags, 'gaussian(scale=8)', n_trials=10**4, rng=0)",
        "rfrope.estimate_scores(q, k, lags, 'gaussian(scale=8)', n_trials=10**8, rng=0)",
    ),
    "estimate_kernel, 10**8 draws": (
        "lags = np.arange(2.0)",
        "rfrope.estimate_kernel(lags, 'gaussian(scale=8)', n_samples=10**4, rng=0)",
        "rfrope.estimate_kernel(lags, 'gaussian(scale=8)', n_samples=10**8, rng=0)",
    ),
    "mean_kernel, 10**7 lags (80 MB)": (
        "w = rfrope.geometric(64); lags = np.arange(1e7)",
        "rfrope.analysis.mean_kernel(lags[:10**5], w)",
        "rfrope.analysis.mean_kernel(lags, w)",
    ),
    "estimate_kernel, 10**7 lags (80 MB)": (
        "lags = np.arange(1e7)",
        "rfrope.estimate_kernel(lags[:1000], 'gaussian(scale=8)', n_samples=64, rng=0)",
        "rfrope.estimate_kernel(lags, 'gaussian(scale=8)', n_samples=64, rng=0)",
    ),
    "estimate_scores, sobol, 64 blocks, 10**6 lags (8 MB)": (
        "q, k = np.random.default_rng(0).standard_normal((2, 128)); lags = np.arange(1e6)",
        "rfrope.estimate_scores(q, k, lags[:8], 'gaussian', n_trials=4, design='sobol', rng=0)",
        "rfrope.estimate_scores(q, k, lags, 'gaussian', n_trials=4, design='sobol', rng=0)",
    ),
    "rotate, 10**6 small calls": (
        "x = np.ones((1, 8)); p = np.arange(1.0); w = rfrope.geometric(4)",
        "for i in range(10**3): rfrope.rotate(x, p + i, w)",
        "for i in range(10**6): rfrope.rotate(x, p + i, w)",
    ),
    "kernels.parse, 10**5 texts": (
        "",
        "for i in range(10**3): rfrope.kernels.parse(f'gaussian(scale={i + 1})')",
        "for i in range(10**5): rfrope.kernels.parse(f'gaussian(scale={i + 1})')",
    ),
}
SCRIPT = """
import resource, time
import numpy as np
import rfrope

{setup}
{small}
def most():
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM"))
with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
    file.write("5")
before, begun = most(), time.perf_counter()
{large}
print((most() - before) / 1e3, time.perf_counter() - begun)
"""
WORKS = {
    "rotate, 1 GB on one thread": (
        "x = np.ones((2**11, 1024, 128), np.float32); p = np.arange(1024)",
        "with rfrope.threads(1): [rfrope.rotate(x, p, w, out=x) for _ in range(2**31)]",
        "with rfrope.threads(1): rfrope.rotate(x, p, w, out=x)",
    ),
    "estimate_scores, gaussian": (
        "",
        "rfrope.estimate_scores(q, k, lags, 'gaussian', n_trials=2**31, rng=0)",
        "rfrope.estimate_scores(q, k, lags, 'gaussian', n_trials=8, rng=0)",
    ),
    "estimate_scores, sobol": (
        "",
        "rfrope.estimate_scores(q, k, lags, 'gaussian', n_trials=2**31, design='sobol', rng=0)",
        "rfrope.estimate_scores(q, k, lags, 'gaussian', n_trials=8, design='sobol', rng=0)",
    ),
    "estimate_scores, sobol, 10**5 lags": (
        "lags = np.arange(1e5)",
        "rfrope.estimate_scores(q, k, lags, 'gaussian', n_trials=2**31, design='sobol', rng=0)",
        "rfrope.estimate_scores(q, k, lags[:9], 'gaussian', n_trials=8, design='sobol', rng=0)",
    ),
    "estimate_kernel, sobol": (
        "",
        "rfrope.estimate_kernel(lags, 'gaussian', n_samples=2**31, n_blocks=64, design='sobol', rng=0)",
        "rfrope.estimate_kernel(lags, 'gaussian', n_samples=2**10, n_blocks=64, design='sobol', rng=0)",
    ),
    "validate": (
        "",
        "rfrope.validate('matern(nu=0.7)', n_samples=2**31, n_trials=2**20, rng=0)",
        "rfrope.validate('matern(nu=0.7)', n_samples=64, n_trials=8, rng=0)",
    ),
    "heads.effective_offset": (
        "q, k = np.random.default_rng(0).standard_normal((2, 512, 128))",
        "[rfrope.heads.effective_offset(q, k, w) for _ in range(999)]",
        "rfrope.heads.effective_offset(q[:16], k[:16], w)",
    ),
    "heads.positional_attention": (
        "",
        "[rfrope.heads.positional_attention(w, 2**25) for _ in range(99)]",
        "rfrope.heads.positional_attention(w, 64)",
    ),
    "analysis.summarise": (
        "",
        "rfrope.analysis.summarise(w, context=2**32 - 1)",
        "rfrope.analysis.summarise(w, context=64)",
    ),
    "analysis.plan": (
        "",
        "[rfrope.analysis.plan(w, 2**20, trained_context=2**18) for _ in range(9999)]",
        "rfrope.analysis.plan(w, 64, trained_context=16)",
    ),
    "analysis.mean_kernel": (
        "lags = np.arange(3e7)",
        "[rfrope.analysis.mean_kernel(lags, w) for _ in range(99)]",
        "rfrope.analysis.mean_kernel(lags[:100], w)",
    ),
    "designs.optimise": (
        "",
        "rfrope.designs.optimise('gaussian(scale=99)', 256, max_lag=2**16, starts=99)",
        "rfrope.designs.optimise('gaussian(scale=9)', 4, max_lag=8)",
    ),
    "sample, sobol": (
        "",
        "[rfrope.sample('gaussian', 2**22, design='sobol', rng=0) for _ in range(99)]",
        "rfrope.sample('gaussian', 2**4, design='sobol', rng=0)",
    ),
    "bochner.from_function": (
        "law = lambda x: np.exp(-np.sqrt(np.abs(x)))",
        "[rfrope.bochner.from_function(law) for _ in range(999)]",
        "",
    ),
}
INTERRUPTED = """
import signal, threading, time
import numpy as np
import rfrope

signal.signal(signal.SIGINT, signal.default_int_handler)
q, k = np.random.default_rng(0).standard_normal((2, 128))
lags, w = np.arange(9.0), rfrope.geometric(64)
{setup}
{small}
try:
    print("ready", flush=True)
    {large}
    print("it ended", flush=True)
except KeyboardInterrupt:
    while threading.active_count() > 1:
        time.sleep(1e-4)
    print(time.monotonic(), flush=True)
"""
STRETCHED = """
import signal, time
import numpy as np
import rfrope

q, k = np.random.default_rng(0).standard_normal((2, 128))
lags, w = np.arange(9.0), rfrope.geometric(64)
{setup}
{small}
class Enough(BaseException):
    pass
def look(number, frame):
    global last, longest
    now = time.thread_time()
    if now - last > longest[0]:
        while frame.f_back is not None and "/rfrope/" not in frame.f_code.co_filename:
            frame = frame.f_back
        longest = now - last, frame.f_code.co_filename.rpartition("/rfrope/")[2] + " " + frame.f_code.co_name
    last = now
    if time.monotonic() > end:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        raise Enough
signal.signal(signal.SIGALRM, look)
last, longest, end = time.thread_time(), (0.0, ""), time.monotonic() + {seconds}
signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
try:
    {large}
    signal.setitimer(signal.ITIMER_REAL, 0.0)
except Enough:
    pass
print(*longest)
"""
WATCHED = 20.0  # seconds


Rows = Iterator[tuple[str, ...]]


def memory() -> Rows:
    """A row for each call: megabytes beyond those before it, and seconds."""
    yield "Call", "MB", "Seconds"
    for name, (setup, small, large) in CALLS.items():
        script = SCRIPT.format(setup=setup, small=small, large=large)
        output = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
        most, seconds = map(float, output.split())
        yield name, f"{most:.0f}", f"{seconds:.1f}"


def interrupts() -> Rows:
    """A row for each work."""
    yield "Work", "Seconds"
    for name, work in WORKS.items():
        yield name, f"{max(delay(*work) for _ in range(3)):.2f}"


def stretches() -> Rows:
    """A row for each work."""
    yield "Work", "Seconds", "Where"
    for name, (setup, large, small) in WORKS.items():
        script = STRETCHED.format(setup=setup, small=small, large=large, seconds=WATCHED)
        said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
        seconds, _, place = said.strip().partition(" ")
        yield name, f"{float(seconds):.2f}", place


def delay(setup: str, large: str, small: str) -> float:
    """Seconds between an interrupt, sent a second after the work began, and its end."""
    script = INTERRUPTED.format(setup=setup, small=small, large=large)
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            process.stdout.readline()
            time.sleep(1.0)
            sent = time.monotonic()  # one clock for all processes
            process.send_signal(2)
            return float(process.stdout.readline()) - sent
        finally:
            process.kill()


KINDS = {"memory": memory, "interrupts": interrupts, "stretches": stretches}


def main(arguments: list[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=tuple(KINDS))
    parser.add_argument("--output", type=pathlib.Path, metavar="FILE.csv")
    given = parser.parse_args(arguments)
    rows = []
    for row in KINDS[given.what]():
        print(f"{row[0]:54}" + "".join(f"{cell:>10}" for cell in row[1:]), flush=True)
        rows.append(row)
    if given.output:
        with given.output.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(rows)


if __name__ == "__main__":
    main()
