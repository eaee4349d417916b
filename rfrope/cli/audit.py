"""``rfrope audit``: compare the frequencies or tables of a model with those of its config."""

from __future__ import annotations

import argparse
from typing import Any

from rfrope import models, storage
from rfrope._core import files
from rfrope.cli import page
from rfrope.cli.shared import add_command, is_saved, naming, whole


def add(commands: Any) -> None:
    """Add the command to the parser."""
    command = add_command(
        commands,
        "audit",
        _run,
        "Compare the frequencies or cos/sin tables of a running model with its config. Reports uninitialised memory, "
        "half precision, tables that end too early, wrong pairing, width, attention factor, scheme or factor, the "
        "most similar known mistake, and the position from which it matters. FILE is an .npy with frequencies or a "
        "table, or an .npz whose arrays have the names of a model's buffers (inv_freq, cos_cached, sin_cached, "
        "cos_sin_cache, freqs_cis).",
        example="rfrope audit buffers.npz config.json",
        codes="0 if nothing is wrong, 1 if something is, or 2 for bad input",
    )
    option, meant = command.add_argument, "a Hugging Face config.json or its folder, or a file that rfrope.save wrote"
    option("file", metavar="FILE", help="what the model holds: .npy or .npz")
    option("meant", metavar="MEANT", help=meant)
    option("--context", type=whole, metavar="N", help="positions that tables must have")


def _run(options: argparse.Namespace) -> int:
    with naming("FILE", options.file):
        if not options.file.endswith((".npy", ".npz")):
            raise ValueError("expected a name that ends in .npy or .npz")
        is_single = options.file.endswith(".npy")
        what = files.read_array(options.file) if is_single else files.read_arrays(options.file, compressed=True)
    meant = storage.load(options.meant) if is_saved(options.meant) else options.meant
    found = models.audit(what, meant, context=options.context)
    page.emit(options, "", found.report(), found.to_dict())
    return 0 if found.passed else 1
