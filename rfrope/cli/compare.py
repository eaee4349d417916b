"""``rfrope compare``: what engines make of the RoPE of one config."""

from __future__ import annotations

import argparse
import json
from typing import Any

from rfrope import models
from rfrope.cli.shared import check_source, whole


def add(commands: Any) -> None:
    """Add the command to the parser."""
    names = ", ".join(engine.name for engine in models.ENGINES)
    command = commands.add_parser(
        "compare",
        help="say what engines make of one config, and where they disagree",
        description="Read the RoPE of a model from its config.json, and say what each engine makes of it by the rules "
        "in that engine's source: frequencies, pairing, attention factor, how the length of the text counts; where "
        "they disagree, by how much, from which distance on a score differs by 1 %, and what to write into the config "
        f"so that they agree. Engines: {names}. An engine whose code for a model was not read is listed as unknown. "
        "Exit code: 0, whether they agree or not, or 2 for bad input.",
        epilog="Example: rfrope compare config.json --engine transformers --engine llama.cpp",
    )
    command.add_argument("source", metavar="SOURCE", help="a Hugging Face config.json, or its folder")
    command.add_argument("--engine", action="append", metavar="NAME", help="only this one; may be given again")
    command.add_argument(
        "--seq-len",
        type=whole(1),
        metavar="n",
        help="length of the text (default: the context, and the lengths at which a scheme changes)",
    )
    command.add_argument("--sources", action="store_true", help="list the files that each rule was written from")
    command.add_argument("--json", action="store_true", help="print JSON instead of text")
    command.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    check_source(options.source)
    found = models.compare(options.source, options.engine, seq_len=options.seq_len)
    if options.json:
        print(json.dumps(found.to_dict(), indent=1, allow_nan=False))
        return 0
    print(found)
    if options.sources:
        for one in found.places[0].engines:
            print(f"\n{one.engine} {one.version}")
            print("\n".join(f"  {source}" for source in one.sources))
    return 0
