"""What was measured on: processor, cores and versions, without names of hosts or folders."""

from __future__ import annotations

import importlib.metadata
import os
import pathlib
import platform
import sys
import time

from rfrope._core import threads

PACKAGES = ("numpy", "numba", "finufft", "scipy", "torch", "onnxruntime", "scikit-learn", "ml_dtypes")


def cores() -> int:
    """How many threads everybody gets."""
    return threads.available()


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
    """Lines for the head of a table: processor, system, versions, date and load."""
    load = f", load {os.getloadavg()[0]:.1f} at the start" if hasattr(os, "getloadavg") else ""
    return [
        f"{processor()}, {cores()} cores, {platform.system()}; {cores()} threads for all",
        versions(PACKAGES),
        f"{time.strftime('%Y-%m-%d')}{load}",
    ]


def command(module: str) -> str:
    """Return the command line of this run."""
    return " ".join(["python", "-m", module, *sys.argv[1:]])
