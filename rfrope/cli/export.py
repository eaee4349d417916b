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
        return _list_engines(options)
    if options.conformance is not None:
        return _write_conformance(options)
    if options.source is None or options.to is None:
        raise ValueError("expected FILE and --to ENGINE, or --list, or --conformance DIR")
    rope, made = _read_rope(options), None
    chosen = {name: getattr(options, name) for name in ("context", "base", "dtype", "architecture")}
    if options.output is not None:
        copied = {"model": options.model, "part": options.part} if options.model is not None else {}
        with naming("-o", options.output):
            exports.write(options.output, rope, options.to, overwrite=options.force, **copied, **chosen)
    elif options.model is not None:
        raise ValueError(f"--model {options.model}: expected -o with it, the file to write")
    else:
        made = _simplify(exports.export(rope, options.to, **chosen))
    known = isinstance(rope.context, int) or options.context is not None  # else there is no length to tell it over
    lost = exports.rounding(rope, options.to, **chosen) if known else None
    if options.json:
        figures = None if lost is None else vars(lost)
        found = {"engine": options.to, "output": options.output, "rounding": figures, "export": made}
        print_text(json.dumps(found, indent=1))
        return 0
    print_text(f"Written: {printable(options.output)}" if made is None else json.dumps(made, indent=1))
    print_text("Rounding: unknown without a context." if lost is None else f"Rounding, {lost}.")
    return 0


def _read_rope(options: argparse.Namespace) -> rfrope.Rope:
    """Return the Rope of a file, or one of those of a config."""
    source, part = options.source, options.part
    if source.endswith(_FREQUENCY_FILES):
        if part is not None and options.model is None:
            raise ValueError(f"--part {part}: {source} holds one RoPE; expected a config as FILE or --model")
        return rfrope.load(source)
    found = {rope.source.model.name: rope for rope in models.from_config(source)}
    wanted = next(iter(found)) if part is None and len(found) == 1 else part
    if wanted not in found:
        raise ValueError(f"{source} has a RoPE for {', '.join(map(repr, found))}; expected one of them as --part")
    return found[wanted]


def _simplify(made: Any) -> Any:
    """Return data as JSON has it; of an array its shape, and its numbers where they are few."""
    if isinstance(made, np.ndarray):
        few = made.size <= 1024 and bool(np.all(np.isfinite(made)))
        return {"shape": list(made.shape), "dtype": made.dtype.name} | ({"values": made.tolist()} if few else {})
    return {name: _simplify(value) for name, value in made.items()} if isinstance(made, dict) else made


def _list_engines(options: argparse.Namespace) -> int:
    formats = {engine.name: engine.format for engine in exports.records() if engine.format is not None}
    if options.json:
        fields = ("carries", "lacks", "exact", "source", "suffixes")
        listed = [{"name": name} | {field: getattr(one, field) for field in fields} for name, one in formats.items()]
        print_text(json.dumps(listed, indent=1))
        return 0
    rows = [("engine", "takes", "cannot carry")]
    rows += [(name, one.carries.replace("``", ""), one.lacks.replace("``", "")) for name, one in formats.items()]
    print_table(rows, left=(0, 1, 2))
    return 0


def _write_conformance(options: argparse.Namespace) -> int:
    with naming("--conformance", options.conformance):
        count = len(models.conformance(options.conformance))
    if options.json:
        print_text(json.dumps({"conformance": options.conformance, "cases": count}))
    else:
        print_text(f"Written: {count} cases into {printable(options.conformance)}; its README.md says how to use them.")
    return 0
