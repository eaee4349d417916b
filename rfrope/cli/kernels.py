"""``rfrope kernels``: the registry."""

from __future__ import annotations

import argparse
import json
from typing import Any

from rfrope import kernels


def add(commands: Any) -> None:
    """Add the command to the parser."""
    listing = commands.add_parser(
        "kernels", help="list the registered kernels", description="List the registered kernels."
    )
    listing.add_argument("--json", action="store_true", help="print JSON instead of a list")
    listing.set_defaults(run=_kernels)


def _kernels(options: argparse.Namespace) -> int:
    records = kernels.records()
    if options.json:
        fields = ("name", "aliases", "formula", "law", "parameters", "dimensions", "example")
        print(json.dumps([{field: getattr(record, field) for field in fields} for record in records], indent=1))
        return 0
    for record in records:
        parameters = ", ".join(f"{name}={default}" for name, default in record.parameters.items())
        also = f" (also {', '.join(record.aliases)})" if record.aliases else ""
        print(f"{record.name}({parameters}){also}")
        print(f"    Φ = {record.formula}")
        print(f"    ω ~ {record.law}")
        print(f"    dimensions: {record.dimensions}; example: {record.example}")
    return 0
