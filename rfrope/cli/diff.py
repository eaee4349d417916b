"""``rfrope diff``: compare the RoPE of two configs."""

from __future__ import annotations

import argparse
from typing import Any

from rfrope import models
from rfrope.cli import page
from rfrope.cli.shared import add_command, whole


def add(commands: Any) -> None:
    """Add the command to the parser."""
    command = add_command(
        commands,
        "diff",
        _run,
        "Compare the RoPE of two configs: base, scheme and its parameters, rotated width, pairing, attention factor, "
        "windows, and the RoPE of each layer. Reports the differences of frequencies, and the first distance at "
        "which scores differ.",
        example="rfrope diff before/config.json after/config.json",
        codes="0 if the RoPE is the same, 1 if it is not, or 2 for bad input",
    )
    option = command.add_argument
    option("old", metavar="OLD", help="a Hugging Face config.json, its folder, or a file that rfrope.save wrote")
    option("new", metavar="NEW", help="another one")
    option(
        "--context",
        "--seq-len",
        dest="seq_len",
        type=whole,
        metavar="n",
        help="length of the text (default: the contexts)",
    )
    option("--tolerance", type=float, default=0.01, metavar="T", help="part of a score that counts (default: 0.01)")


def _run(options: argparse.Namespace) -> int:
    found = models.diff(options.old, options.new, seq_len=options.seq_len, tolerance=options.tolerance)
    page.emit(options, "", found.report(), found.to_dict())
    return 0 if found.same else 1
