"""``rfrope doctor``: report which backends are active on this machine, and why others are not."""

from __future__ import annotations

import argparse
import json
import os
import platform
from dataclasses import asdict
from typing import Any

import rfrope
from rfrope._backends import diagnostics
from rfrope._core import parallel
from rfrope._core.results import Report, Words
from rfrope.cli.shared import add_command, print_report, print_text


def add(commands: Any) -> None:
    """Add the command to the parser."""
    add_command(
        commands,
        "doctor",
        _run,
        "List the array libraries and accelerators that are active here and, for the others, the reason and the "
        "command to type next. Each is imported and tried, which takes some seconds.",
        example="rfrope doctor --json",
        codes="0, whatever is found",
    )


def _run(options: argparse.Namespace) -> int:
    here = {"rfrope": rfrope.__version__, "python": platform.python_version()}
    here |= {"system": f"{platform.system()} {platform.machine()}"}
    counts = {"threads": parallel.allowed(), "cores": os.cpu_count() or 1}
    found = {
        "libraries": [one.diagnose() for one in diagnostics.LIBRARIES],
        "accelerators": [one.diagnose() for one in diagnostics.BACKENDS],
    }
    if options.json:
        print_text(json.dumps(here | counts | {name: [*map(asdict, each)] for name, each in found.items()}, indent=1))
        return 0
    active = ", ".join(f"{sum(one.active for one in each)} of {len(each)} {title}" for title, each in found.items())
    verdict = f"rfrope {here['rfrope']} works: {active} are active."
    about = f"Python {here['python']}, {here['system']}; {counts['threads']} threads, {counts['cores']} cores"
    parts = [Words([verdict, about])]
    for title, each in found.items():
        lines = [title.capitalize()]
        for one in each:
            said = "; ".join(filter(None, (one.detail, one.reason))) or "works"
            lines += [f"  {'active' if one.active else '-':6}  {one.name}: {said}"]
            lines += [f"{'':10}next: {one.advice}"] if one.advice else []
        parts.append(Words(lines))
    print_report(options, Report(parts, verdict))
    return 0
