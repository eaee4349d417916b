"""``rfrope export``: a Rope in the format of another engine, and vectors that hold an engine to its configs."""

from __future__ import annotations

import argparse
import json
from typing import Any

import numpy as np

import rfrope
from rfrope import exports, models
from rfrope._core.arguments import printable
from rfrope.cli.shared import naming, one_of, print_table, print_text, whole

_FREQUENCY_FILES = (".npz", ".safetensors")


def add(commands: Any) -> None:
    """Add the command to the parser."""
    command = commands.add_parser(
        "export",
        help="write frequencies in the format that another engine reads",
        description="Write the frequencies of a file or of a model's config in the format of another engine, and say "
        "what that loses over the context. Exit code: 0, or 2 for bad input and for what an engine cannot carry.",
        epilog='Example: rfrope design "gaussian(scale=32)" --head-dim 64 --context 4096 -o rope.npz && '
        "rfrope export rope.npz --to vllm --model config.json -o new.json",
    )
    command.add_argument(
        "source", nargs="?", metavar="FILE", help="what `rfrope design` or rfrope.save wrote, or a config.json"
    )
    names = exports.names()
    command.add_argument("--to", type=one_of(names), choices=names, metavar="ENGINE", help=", ".join(names))
    command.add_argument("-o", "--output", metavar="PATH", help="write a file (or, with --conformance, into a folder)")
    command.add_argument("--model", metavar="PATH", help="copy this config.json or GGUF, with its RoPE replaced")
    command.add_argument("--part", metavar="NAME", help="which RoPE of a config, as text_config or full_attention")
    command.add_argument("--context", type=whole(1), metavar="N", help="how many positions (default: what FILE says)")
    command.add_argument("--base", type=float, metavar="B", help="of the ladder that divisors refer to")
    command.add_argument("--dtype", choices=("float16", "float32", "float64"), help="of tables (default: float32)")
    command.add_argument("--architecture", metavar="NAME", help="of llama.cpp (default: that of --model, or llama)")
    command.add_argument("--list", action="store_true", help="list the engines, what they take and what they cannot")
    command.add_argument(
        "--conformance", metavar="DIR", help="write vectors for an engine's own tests into a new folder"
    )
    command.add_argument("--force", action="store_true", help="replace files that exist")
    command.add_argument("--json", action="store_true", help="print JSON instead of text")
    command.set_defaults(run=_export)


def _export(options: argparse.Namespace) -> int:
    if options.list:
        return _list(options)
    if options.conformance is not None:
        return _conformance(options)
    if options.source is None or options.to is None:
        raise ValueError("expected FILE and --to ENGINE, or --list, or --conformance DIR")
    rope = _rope(options)
    given = {name: getattr(options, name) for name in ("context", "base", "dtype", "architecture")}
    made = None
    if options.output is not None:
        with naming("-o", options.output):
            exports.write(
                options.output,
                rope,
                options.to,
                model=options.model,
                part=None if options.model is None else options.part,
                overwrite=options.force,
                **given,
            )
    elif options.model is not None:
        raise ValueError(f"--model {options.model}: expected -o with it, the file to write")
    else:
        made = exports.export(rope, options.to, **given)
    _print(options, _rounding(rope, options.to, given), made)
    return 0


def _rope(options: argparse.Namespace) -> rfrope.Rope:
    """The Rope of a file, or one of those of a config."""
    if options.source.endswith(_FREQUENCY_FILES):
        if options.part is not None and options.model is None:
            raise ValueError(
                f"--part {options.part}: {options.source} holds one RoPE; expected a config as FILE or --model"
            )
        return rfrope.load(options.source)
    found = models.from_config(options.source)
    names = [rope.source.model.name for rope in found]
    wanted = options.part if options.part is not None else names[0]
    if wanted not in names or (options.part is None and len(found) > 1):
        raise ValueError(
            f"{options.source} has a RoPE for {', '.join(map(repr, names))}; expected one of them as --part"
        )
    return found[names.index(wanted)]


def _rounding(rope: rfrope.Rope, engine: str, given: dict[str, Any]) -> exports.Rounding | None:
    """What the export loses; None where there is no context on one axis to tell it over."""
    known = isinstance(rope.context, int) or given["context"] is not None
    return exports.rounding(rope, engine, **given) if known else None


def _print(options: argparse.Namespace, lost: exports.Rounding | None, made: dict[str, Any] | None) -> None:
    figures = (
        None if lost is None else {name: getattr(lost, name) for name in ("frequency", "kernel", "table", "context")}
    )
    plain = None if made is None else _plain(made)
    if options.json:
        print_text(
            json.dumps({"engine": options.to, "output": options.output, "rounding": figures, "export": plain}, indent=1)
        )
        return
    print_text(f"Written: {printable(options.output)}" if made is None else json.dumps(plain, indent=1))
    print_text("Rounding: unknown without a context." if lost is None else f"Rounding, {lost}.")


def _plain(made: Any) -> Any:
    """Data as JSON has it; of an array its shape, and its numbers where they are few."""
    if isinstance(made, np.ndarray):
        few = made.size <= 1024 and bool(np.all(np.isfinite(made)))
        return {"shape": list(made.shape), "dtype": made.dtype.name} | ({"values": made.tolist()} if few else {})
    return {name: _plain(value) for name, value in made.items()} if isinstance(made, dict) else made


def _list(options: argparse.Namespace) -> int:
    fields = ("name", "carries", "lacks", "exact", "source", "suffixes")
    if options.json:
        listed = [{field: getattr(one, field) for field in fields} for one in exports.records()]
        print_text(json.dumps(listed, indent=1))
        return 0
    rows = [("engine", "takes", "cannot carry")]
    rows += [(one.name, one.carries.replace("``", ""), one.lacks.replace("``", "")) for one in exports.records()]
    print_table(rows, left=(0, 1, 2))
    return 0


def _conformance(options: argparse.Namespace) -> int:
    with naming("--conformance", options.conformance):
        count = len(models.conformance(options.conformance))
    if options.json:
        print_text(json.dumps({"conformance": options.conformance, "cases": count}))
    else:
        print_text(f"Written: {count} cases into {printable(options.conformance)}; its README.md says how to use them.")
    return 0
