"""``rfrope compare``: what engines make of the RoPE of one config."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

import numpy as np

from rfrope import engines, models
from rfrope.cli import page
from rfrope.cli.shared import add_page, check_page, one_of, print_text, whole


def add(commands: Any) -> None:
    """Add the command to the parser."""
    names = [engine.name for engine in engines.records() if engine.reading is not None]
    command = commands.add_parser(
        "compare",
        help="say what engines make of one config, and where they disagree",
        description="Read the RoPE of a model from its config.json, and say what each engine makes of it by the rules "
        "in that engine's source: frequencies, pairing, attention factor, how the length of the text counts; where "
        "they disagree, by how much, from which distance on a score differs by 1 %, and what to write into the config "
        f"so that they agree. Engines: {', '.join(names)}. An engine whose code for a model was not read is listed as "
        "unknown. "
        "Exit code: 0, whether they agree or not, or 2 for bad input.",
        epilog="Example: rfrope compare config.json --engine transformers --engine llama.cpp",
    )
    command.add_argument("source", metavar="SOURCE", help="a Hugging Face config.json, or its folder")
    command.add_argument(
        "--engine",
        type=one_of(names),
        choices=names,
        action="append",
        metavar="NAME",
        help="only this one; may be given again",
    )
    command.add_argument(
        "--seq-len",
        type=whole(1),
        metavar="n",
        help="length of the text (default: the context, and the lengths at which a scheme changes)",
    )
    command.add_argument("--sources", action="store_true", help="list the files that each rule was written from")
    add_page(command)
    command.add_argument("--json", action="store_true", help="print JSON instead of text")
    command.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    check_page(options)
    found = models.compare(options.source, options.engine, seq_len=options.seq_len)
    page.report(options, f"Engines on {options.source}", _parts(found), lambda: _print(options, found), found.to_dict)
    return 0


def _print(options: argparse.Namespace, found: models.Comparison) -> None:
    print_text(found)
    if options.sources:
        for one in found.ropes[0].engines:
            print_text(f"\n{one.engine} {one.version}")
            print_text("\n".join(f"  {source}" for source in one.sources))


def _parts(found: models.Comparison) -> Iterator[page.Part]:
    """Yield for each RoPE the scores that engines give, the table, and what to write instead."""
    for rope in found.ropes:
        several = f", a text of {rope.seq_len} positions" if len(found.ropes) > 1 else ""
        label = f"{rope.name or rope.model_type}{several}"
        yield page.words(*(f"{label}: {line}" if several else line for line in rope.verdict))
        known = list(_curves(rope))
        if known and rope.seq_len > 1:
            yield page.curves(f"Score of equal content: {label}", known, rope.seq_len)
        yield page.table(f"What engines do: {label}", rope.table, left=(0, 1, 5, 6))
        if rope.write:
            yield page.copyable("Write into the config (null: remove)", rope.write)


def _curves(found: models.RopeComparison) -> Iterator[page.Curve]:
    """Yield a curve for each score that engines give equal content, with the names of those that give it."""
    groups: list[tuple[engines.EngineRope, list[str]]] = []
    for one in found.engines:
        if one.rope is not None:
            same = [names for rope, names in groups if _scores_alike(rope, one.rope)]
            if same:
                same[0].append(one.engine)
            else:
                groups.append((one.rope, [one.engine]))
    for rope, names in groups:
        still = max((found.qk_head_dim + 1) // 2 - rope.frequencies.size, 0)
        yield page.Curve(", ".join(names), rope.frequencies, found.seq_len - 1, still, rope.attention_factor**2)


def _scores_alike(one: engines.EngineRope, other: engines.EngineRope) -> bool:
    first, second = one.frequencies, other.frequencies
    same = one.attention_factor == other.attention_factor and first.shape == second.shape
    return same and bool(np.allclose(first, second, rtol=1e-12, atol=0.0))
