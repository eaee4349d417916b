"""``rfrope kernels``: the registry."""

from __future__ import annotations

import argparse
import json
from typing import Any

from rfrope import kernels
from rfrope.cli.shared import print_text
from rfrope.kernels.registry import find


def add(commands: Any) -> None:
    """Add the command to the parser."""
    listing = commands.add_parser(
        "kernels",
        help="list the registered kernels, or show some of them",
        description="List the registered kernels, or show those that are named. "
        "Exit code: 0, or 2 for an unknown name.",
        epilog="Examples: rfrope kernels; rfrope kernels matern; rfrope kernels gaussian cauchy --json",
    )
    listing.add_argument("names", nargs="*", metavar="NAME", help="a family, such as matern; all if none")
    listing.add_argument("--json", action="store_true", help="print JSON instead of a list")
    listing.set_defaults(run=_kernels)


def _kernels(options: argparse.Namespace) -> int:
    records = _named(options.names)
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


def _named(names: list[str]) -> list[kernels.Record]:
    """Return the records of families by any of their names, all of them for no names."""
    found = {record.name: record for record in map(find, names)}
    return list(found.values()) if names else list(kernels.records())
