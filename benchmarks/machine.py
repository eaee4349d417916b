"""What was measured on: processor, cores and versions, without names of hosts or folders."""

from __future__ import annotations

import csv
import importlib.metadata
import itertools
import os
import pathlib
import platform
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from rfrope._core import parallel

PACKAGES = ("numpy", "numba", "finufft", "scipy", "torch", "onnxruntime", "scikit-learn", "ml_dtypes")


def cores() -> int:
    """How many threads everybody gets."""
    return parallel.available()


def processor() -> str:
    """Model of the processor, and the widest vector instructions it has."""
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    fields = dict(reversed([[part.strip() for part in line.split(":", 1)] for line in lines if ":" in line]))
    flags = fields.get("flags", "").split()
    vectors = next((name for name in ("avx512f", "avx2") if name in flags), "")
    return f"{fields.get('model name', platform.machine())}{' with ' + vectors if vectors else ''}"


def architecture() -> str:
    """Name that LLVM has for the processor, such as znver4: the model's own may say no more than its maker's."""
    try:
        from llvmlite import binding
    except ImportError:
        return platform.machine()
    return binding.get_host_cpu_name()


def clock(additions: int = 2**22, tries: int = 20) -> float:
    """Effective clock in GHz: dependent operations on integers, each of which takes one cycle on any processor."""
    from numba import njit  # its start is not what is measured

    @njit
    def chain(count, a, b):  # type: ignore[no-untyped-def]
        x = a
        for _ in range(count):
            x = (((x + a) ^ b) + a) ^ b  # each waits for the one before, and no two can become one
        return x

    chain(1, np.int64(3), np.int64(5))
    seconds = []
    for _ in range(tries):
        start = time.thread_time()  # not what others have of the processor
        chain(additions // 4, np.int64(3), np.int64(5))
        seconds.append(time.thread_time() - start)
    return additions / min(seconds) * 1e-9


def copied(megabytes: int = 64, tries: int = 10) -> float:
    """GB/s that a copy by all threads reads and writes, together."""
    source = np.ones(megabytes * 2**17)
    target, seconds = np.zeros_like(source), []
    edges = np.linspace(0, source.size, cores() + 1).astype(int)
    spans = [slice(*pair) for pair in itertools.pairwise(edges.tolist())]
    for _ in range(tries):
        others = [threading.Thread(target=np.copyto, args=(target[span], source[span])) for span in spans[1:]]
        start = time.perf_counter()
        for other in others:
            other.start()
        np.copyto(target[spans[0]], source[spans[0]])
        for other in others:
            other.join()
        seconds.append(time.perf_counter() - start)
    return 2e-9 * source.nbytes / min(seconds)


def state() -> str:
    """Say how fast the machine is now: a throttled or busy one explains its figures."""
    load = f", load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    return f"{clock():.2f} GHz effective, copy {copied():.1f} GB/s read and written{load}"


def versions(packages: tuple[str, ...]) -> str:
    """Return the versions of Python and of some packages."""
    found = [f"Python {platform.python_version()}"]
    for package in packages:
        try:
            found.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            found.append(f"{package} not installed")
    return ", ".join(found)


def description() -> list[str]:
    """Lines for the head of a table: processor, system, its state, versions and date."""
    return [
        f"{processor()} ({architecture()}), {cores()} cores, {platform.system()}; {cores()} threads for all",
        f"at the start: {state()}",
        versions(PACKAGES),
        time.strftime("%Y-%m-%d"),
    ]


def write_rows(path: pathlib.Path, header: Sequence[str], rows: Iterable[Mapping[str, str]], *notes: str) -> None:
    """Write rows as comma-separated values under notes on how they were made."""
    with path.open("w", encoding="utf-8", newline="") as file:
        file.writelines(f"# {note}\n" for note in notes)
        writer = csv.DictWriter(file, header, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def command(module: str) -> str:
    """Return the command line of this run."""
    return " ".join(["python", "-m", module, *sys.argv[1:]])


def publish(module: str, head: Sequence[str], tables: Iterable[str], output: pathlib.Path | None) -> None:
    """Print what a run found, under its command and the machine, and write it where that is asked for: Markdown."""
    text = (
        "\n\n".join([f"<!-- Made by: {command(module)} -->", "\n".join(f"- {line}" for line in head), *tables]) + "\n"
    )
    print(text, end="")
    if output:
        output.write_text(text, "utf-8")
