"""``rfrope doctor``: what is active on this machine, and for the rest why not."""

from __future__ import annotations

import argparse
import json
import os
import platform
from dataclasses import asdict
from itertools import chain
from typing import Any

import rfrope
from rfrope._core import libraries, parallel
from rfrope.cli.shared import print_text


def add(commands: Any) -> None:
    """Add the command to the parser."""
    doctor = commands.add_parser(
        "doctor",
        help="say which array libraries and accelerators are active here, and for the rest why not",
        description="Say which array libraries and accelerators are active on this machine, and for each that is not, "
        "why not and what to type next. Each is imported in a process of its own, which takes some seconds. "
        "Exit code: 0, whatever is found.",
        epilog="Example: rfrope doctor --json",
    )
    doctor.add_argument("--json", action="store_true", help="print JSON instead of text")
    doctor.set_defaults(run=_doctor)


def _doctor(options: argparse.Namespace) -> int:
    system = f"{platform.system()} {platform.machine()}"
    allowed, cores = parallel.allowed(), os.cpu_count() or 1
    found = libraries.libraries()
    accelerators = chain(
        libraries.apart("compiled loops and finufft", "rfrope._accel.findings", "on_host"),
        libraries.apart("torch operators", "rfrope._accel.findings", "on_torch"),
        libraries.apart("CUDA kernels and cufinufft", "rfrope._accel.findings", "on_cuda"),
    )
    if options.json:
        report = {
            "rfrope": rfrope.__version__,
            "python": platform.python_version(),
            "system": system,
            "threads": allowed,
            "cores": cores,
            "libraries": [*map(asdict, found)],
            "accelerators": [*map(asdict, accelerators)],
        }
        print_text(json.dumps(report, indent=1))
        return 0
    print_text(f"rfrope {rfrope.__version__}, Python {platform.python_version()}, {system}")
    print_text(f"threads for rfrope's own loops: {allowed}; cores: {cores}")
    for title, findings in (("Array libraries", found), ("Accelerators", accelerators)):
        print_text(f"\n{title}")
        for finding in findings:
            _print_finding(finding)
    return 0


def _print_finding(finding: libraries.Finding) -> None:
    said = "; ".join(filter(None, (finding.detail, finding.reason))) or "works"
    print_text(f"  {'active' if finding.active else '-':6}  {finding.name}: {said}")
    for number, device in enumerate(finding.devices):
        size, capability = f"{device['memory'] / 2**30:.1f} GiB", device["compute_capability"]
        print_text(f"{'':10}device {number}: {device['name']}, compute capability {capability}, {size}")
    if finding.advice:
        print_text(f"{'':10}next: {finding.advice}")
