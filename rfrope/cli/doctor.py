"""``rfrope doctor``: what is active on this machine, and for the rest why not."""

from __future__ import annotations

import argparse
import json
import os
import platform
from dataclasses import asdict
from typing import Any

import rfrope
from rfrope._backends import findings
from rfrope._core import parallel
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
    versions = {"rfrope": rfrope.__version__, "python": platform.python_version()}
    versions |= {"system": f"{platform.system()} {platform.machine()}"}
    counts = {"threads": parallel.allowed(), "cores": os.cpu_count() or 1}
    groups = {"libraries": findings.LIBRARIES, "accelerators": findings.BACKENDS}
    found = {title: (one for name in group for one in findings.findings(name)) for title, group in groups.items()}
    if options.json:
        report = versions | counts | {title: [*map(asdict, several)] for title, several in found.items()}
        print_text(json.dumps(report, indent=1))
        return 0
    print_text(f"rfrope {versions['rfrope']}, Python {versions['python']}, {versions['system']}")
    print_text(f"threads for rfrope's own loops: {counts['threads']}; cores: {counts['cores']}")
    for title, several in zip(("Array libraries", "Accelerators"), found.values(), strict=True):
        print_text(f"\n{title}")
        for finding in several:
            _print_finding(finding)
    return 0


def _print_finding(finding: findings.Finding) -> None:
    said = "; ".join(filter(None, (finding.detail, finding.reason))) or "works"
    print_text(f"  {'active' if finding.active else '-':6}  {finding.name}: {said}")
    for number, device in enumerate(finding.devices):
        size, capability = f"{device['memory'] / 2**30:.1f} GiB", device["compute_capability"]
        print_text(f"{'':10}device {number}: {device['name']}, compute capability {capability}, {size}")
    if finding.advice:
        print_text(f"{'':10}next: {finding.advice}")
