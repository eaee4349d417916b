"""``rfrope audit``: whether frequencies or tables that a model holds are those that its config means."""

from __future__ import annotations

import argparse
import json
from typing import Any

from rfrope import models, storage
from rfrope._core import files
from rfrope.cli.shared import naming, print_text, whole


def add(commands: Any) -> None:
    """Add the command to the parser."""
    command = commands.add_parser(
        "audit",
        help="say whether what a running model holds is what its config means",
        description="Hold frequencies (inv_freq) or tables of cos and sin, as a running model has them, against its "
        "config: uninitialised memory, half precision, tables that end too early, wrong pairing, width, attention "
        "factor, scheme or factor and the known mistake that it looks like, with the position from which it counts. "
        "FILE is an .npy with frequencies or a table, or an .npz whose arrays have the names of a model's buffers "
        "(inv_freq, cos_cached, sin_cached, cos_sin_cache, freqs_cis). "
        "Exit code: 0 if nothing is wrong, 1 if something is, or 2 for bad input.",
        epilog="Example: rfrope audit buffers.npz config.json",
    )
    command.add_argument("file", metavar="FILE", help="what the model holds: .npy or .npz")
    command.add_argument(
        "meant", metavar="MEANT", help="a Hugging Face config.json or its folder, or a file that rfrope.save wrote"
    )
    command.add_argument("--context", type=whole(1), metavar="N", help="positions that tables must have")
    command.add_argument("--json", action="store_true", help="print JSON instead of text")
    command.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    with naming("FILE", options.file):
        what = _held(options.file)
    is_rope = options.meant.endswith(storage.SUFFIXES)
    found = models.audit(what, storage.load(options.meant) if is_rope else options.meant, context=options.context)
    print_text(json.dumps(found.to_dict(), indent=1) if options.json else found)
    return 0 if found.passed else 1


def _held(path: str) -> Any:
    """Arrays of a file, never pickled ones."""
    if not path.endswith((".npy", ".npz")):
        raise ValueError("expected a name that ends in .npy or .npz")
    try:
        return files.read_array(path) if path.endswith(".npy") else files.read_arrays(path, compressed=True)
    except files.DamagedError as error:
        raise ValueError(f"damaged, or not a file of arrays ({error})") from None
