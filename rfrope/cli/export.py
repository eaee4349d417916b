"""``rfrope export``: write a Rope in the format of another engine."""

from __future__ import annotations

import argparse
import json
from typing import Any

import numpy as np

from rfrope import engines
from rfrope._core.arguments import printable
from rfrope._core.results import Report, Words
from rfrope.cli import page
from rfrope.cli.shared import add_command, is_saved, list_names, naming, one_of, read_ropes, whole
from rfrope.scaling.registry import describe_reach


def add(commands: Any) -> None:
    """Add the command to the parser."""
    command = add_command(
        commands,
        "export",
        _run,
        "Write the frequencies of a file or of a model's config in the format of another engine, and report the "
        "rounding error over the context.",
        example='rfrope design "gaussian(scale=32)" --head-dim 64 --context 4096 -o rope.npz && '
        "rfrope export rope.npz --to vllm --model config.json -o new.json",
        codes="0, or 2 for bad input or a Rope that the engine cannot carry",
    )
    option, names = command.add_argument, [one.name for one in engines.records() if one.format is not None]
    option("source", metavar="FILE", help="what `rfrope design` or rfrope.save wrote, or a config.json")
    option("--to", type=one_of(names), choices=names, required=True, metavar="ENGINE", help=", ".join(names))
    option("-o", "--output", metavar="PATH", help="write a file")
    option("--model", metavar="PATH", help="copy this config.json or GGUF, with its RoPE replaced")
    option("--part", metavar="NAME", help="which RoPE of a config, as text_config or full_attention")
    option("--context", type=whole, metavar="N", help="number of positions (default: that of FILE)")
    option("--base", type=float, metavar="B", help="base of the ladder that divisors refer to")
    option("--dtype", choices=("float16", "float32", "float64"), help="dtype of tables (default: float32)")
    option("--architecture", metavar="NAME", help="architecture in llama.cpp (default: that of --model, or llama)")
    option("--force", action="store_true", help="replace files that exist")


def _run(options: argparse.Namespace) -> None:
    ropes, made = read_ropes(options.source, None if is_saved(options.source) else options.part), None
    if len(ropes) > 1:
        raise ValueError(f"{options.source} has a RoPE for {list_names(ropes)}; expected one of them as --part")
    (rope,) = ropes.values()
    chosen = {name: getattr(options, name) for name in ("context", "base", "dtype", "architecture")}
    unwritten = options.model is not None or (options.part is not None and is_saved(options.source))
    if unwritten and options.output is None:
        raise ValueError("--model and its --part need a file to write; expected -o with them")
    if options.output is None:
        made = _simplify(engines.export(rope, options.to, **chosen))
    else:
        part = None if options.model is None else options.part
        with naming("-o", options.output):
            engines.write(
                options.output, rope, options.to, model=options.model, part=part, overwrite=options.force, **chosen
            )
    known = isinstance(rope.context, int) or options.context is not None  # otherwise there is no length
    lost = engines.rounding(rope, options.to, **chosen) if known else None
    found = {"engine": options.to, "output": options.output, "rounding": None if lost is None else vars(lost)}
    said = [f"Rounding{f', {lost}' if lost else ': unknown without a context'}."]
    reach = describe_reach(rope) if options.context is None else ""
    said = [*([f"Written: {printable(options.output)}"] if made is None else []), *said, *filter(None, [reach])]
    data = [] if made is None else [Words(json.dumps(made, indent=1).split("\n"))]
    page.emit(options, "", Report([Words(said), *data], said[0]), found | {"caution": reach, "export": made})


def _simplify(made: Any) -> Any:
    """Return data as JSON has it; of an array its shape, and its numbers where they are few."""
    if isinstance(made, np.ndarray):
        few = made.size <= 1024 and bool(np.all(np.isfinite(made)))
        return {"shape": list(made.shape), "dtype": made.dtype.name} | ({"values": made.tolist()} if few else {})
    return {name: _simplify(value) for name, value in made.items()} if isinstance(made, dict) else made
