"""``rfrope check``: say whether the RoPE of a model is right, and what to type if it is not."""

from __future__ import annotations

import argparse
from typing import Any

from rfrope import engines, models, storage
from rfrope.cli import page
from rfrope.cli.shared import add_command, add_files, check_files, is_saved, one_of, whole
from rfrope.models.verdicts import CODES


def add(commands: Any) -> None:
    """Add the command to the parser."""
    names = [engine.name for engine in engines.records() if engine.reading is not None]
    command = add_command(
        commands,
        "check",
        _run,
        "Say whether the RoPE of a model is right: one verdict, then what was found, what each engine makes of it, and "
        "what to type. With a second file, say whether two sides have the same RoPE: a trainer and a server, a "
        "checkpoint and its quantised file. Nothing is downloaded, and no code beside a config is run.",
        example="rfrope check config.json --context 131072; rfrope check config.json model.gguf",
        codes="0 if it is right, 1 if it is wrong, 2 if that cannot be told, or for bad input",
    )
    option, source = command.add_argument, "a config.json, params.json or GGUF, or the folder of one"
    option("target", metavar="TARGET", help=source)
    option("against", metavar="AGAINST", nargs="?", help="what must have the same RoPE; also a file of rfrope.save")
    engine = {"type": one_of(names), "choices": names, "action": "append", "metavar": "NAME"}
    option("--engine", dest="engines", help=f"one that must agree; may be given again: {', '.join(names)}", **engine)
    option("--context", type=whole, metavar="N", help="positions that it must reach (default: those of the config)")
    add_files(command, "html")


def _run(options: argparse.Namespace) -> int:
    check_files(options)
    against = options.against
    if against is not None and is_saved(against):
        against = storage.load(against)
    found = models.check(options.target, engines=options.engines, context=options.context, against=against)
    page.emit(options, f"RoPE of {options.target}", found.report(), found.to_dict())
    return CODES[found.status]
