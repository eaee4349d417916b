"""``rfrope compare``: compare how engines read the RoPE of one config."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from rfrope import engines, models
from rfrope.cli import page
from rfrope.cli.shared import add_command, add_files, check_files, one_of, whole


def add(commands: Any) -> None:
    """Add the command to the parser."""
    names = [engine.name for engine in engines.records() if engine.reading is not None]
    command = add_command(
        commands,
        "compare",
        _run,
        "Compare how engines read the RoPE of one config.json, by the rules in each engine's source: frequencies, "
        "pairing, attention factor, and the effect of the length of the text. Reports the size of disagreements, the "
        "first distance at which a score differs by 1 %, and what to write into the config to make them agree. "
        f"Engines: {', '.join(names)}. Engines whose code for a model was not read are listed as unknown.",
        example="rfrope compare config.json --engine transformers --engine llama.cpp",
    )
    option, length = command.add_argument, "length of the text (default: the context, and where a scheme changes)"
    engine = {"type": one_of(names), "choices": names, "action": "append", "metavar": "NAME"}
    option("source", metavar="SOURCE", help="a Hugging Face config.json, or its folder")
    option("--engine", help="only this one; may be given again", **engine)
    option("--context", "--seq-len", dest="seq_len", type=whole, metavar="n", help=length)
    option("--sources", action="store_true", help="list the files that each rule was written from")
    add_files(command, "html")


def _run(options: argparse.Namespace) -> int:
    check_files(options)
    found = models.compare(options.source, options.engine, seq_len=options.seq_len)
    listed = found.ropes[0].engines if options.sources else ()
    sources = ["\n  ".join((f"\n\n{one.engine} {one.version}", *one.sources)) for one in listed]
    text = "".join((str(found), *sources))
    page.report(options, f"Engines on {options.source}", _parts(found), lambda: text, found.to_dict)
    return 0


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
    groups: dict[tuple[Any, ...], list[str]] = {}
    ropes = {}
    for one in found.engines:
        if one.rope is not None:
            same = (one.rope.attention_factor, *(f"{w:.11g}" for w in one.rope.frequencies))
            groups.setdefault(same, []).append(one.engine)
            ropes[same] = one.rope
    for same, names in groups.items():
        rope = ropes[same]
        still = max((found.qk_head_dim + 1) // 2 - rope.frequencies.size, 0)
        yield page.Curve(", ".join(names), rope.frequencies, found.seq_len - 1, still, rope.attention_factor**2)
