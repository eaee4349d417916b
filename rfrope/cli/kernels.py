"""``rfrope kernels``: list the registry."""

from __future__ import annotations

import argparse
import json
from typing import Any

from rfrope import kernels
from rfrope.cli.shared import add_command, print_text
from rfrope.kernels.registry import find


def add(commands: Any) -> None:
    """Add the command to the parser."""
    command = add_command(
        commands,
        "kernels",
        _run,
        "List the registered kernels, or describe some of them.",
        example="rfrope kernels; rfrope kernels matern; rfrope kernels gaussian cauchy --json",
        codes="0, or 2 for an unknown name",
    )
    command.add_argument("names", nargs="*", metavar="NAME", help="a family, such as matern; all if none")


def _run(options: argparse.Namespace) -> int:
    records = {record.name: record for record in [*map(find, options.names)] or kernels.records()}.values()
    if options.json:
        fields = ("name", "aliases", "formula", "law", "parameters", "dimensions", "example")
        print_text(json.dumps([{field: getattr(record, field) for field in fields} for record in records], indent=1))
        return 0
    for record in records:
        parameters = ", ".join(f"{name}={default}" for name, default in record.parameters.items())
        also = f" (also {', '.join(record.aliases)})" if record.aliases else ""
        print_text(f"{record.name}({parameters}){also}")
        print_text(f"    Φ = {record.formula}")
        print_text(f"    ω ~ {record.law}")
        print_text(f"    dimensions: {record.dimensions}; example: {record.example}")
    return 0
