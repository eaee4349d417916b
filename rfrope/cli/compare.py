"""``rfrope compare``: what engines make of the RoPE of one config."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import Any

import numpy as np

import rfrope
from rfrope import models
from rfrope._core.arguments import printable
from rfrope.cli import page
from rfrope.cli.shared import add_page, check_page, one_of, print_text, whole


def add(commands: Any) -> None:
    """Add the command to the parser."""
    names = [engine.name for engine in models.ENGINES]
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
    page.write_page(options, f"Engines on {options.source}", _parts(options, found), lambda: _print(options, found))
    if options.json:
        print_text(json.dumps(found.to_dict(), indent=1, allow_nan=False))
        return 0
    _print(options, found)
    if options.html is not None:
        print_text(f"\nWritten: {printable(options.html)}")
    return 0


def _print(options: argparse.Namespace, found: models.Comparison) -> None:
    print_text(found)
    if options.sources:
        for one in found.places[0].engines:
            print_text(f"\n{one.engine} {one.version}")
            print_text("\n".join(f"  {source}" for source in one.sources))


def _parts(options: argparse.Namespace, found: models.Comparison) -> Iterator[page.Part]:
    """The page: for each RoPE the scores that engines give, what they do, and what to write instead."""
    widths = {rope.source.model.name: rope.qk_head_dim for rope in rfrope.from_config(options.source)}
    for place in found.places:
        several = f", a text of {place.seq_len} positions" if len(found.places) > 1 else ""
        label = f"{place.name or place.model_type}{several}"
        yield page.words(*(f"{label}: {line}" if several else line for line in place.verdict))
        known = list(_curves(place, (widths[place.name] + 1) // 2))
        if known and place.seq_len > 1:
            yield page.curves(f"Score of equal content: {label}", known, place.seq_len)
        yield page.table(f"What engines do: {label}", place.table, left=(0, 1, 5, 6))
        if place.write:
            yield page.copyable("Write into the config (null: remove)", place.write)


def _curves(place: models.Place, n_blocks: int) -> Iterator[page.Curve]:
    """A curve for each thing that engines do, with the names of those that do it."""
    alike: list[list[models.EngineUse]] = []
    for one in place.engines:
        if one.frequencies is None:
            continue
        group = next((group for group in alike if _same(group[0], one)), None)
        if group is None:
            alike.append(group := [])
        group.append(one)
    for group in alike:
        first = group[0]
        assert first.frequencies is not None
        assert first.attention_factor is not None
        still = max(n_blocks - first.frequencies.size, 0)
        label = ", ".join(one.engine for one in group)
        yield page.Curve(label, first.frequencies, place.seq_len - 1, still, first.attention_factor**2)


def _same(one: models.EngineUse, other: models.EngineUse) -> bool:
    """Whether two known engines give equal content the same scores."""
    first, second = one.frequencies, other.frequencies
    if first is None or second is None or one.attention_factor != other.attention_factor:
        return False
    return first.shape == second.shape and bool(np.allclose(first, second, rtol=1e-12, atol=0.0))
