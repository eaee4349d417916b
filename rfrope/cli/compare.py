"""``rfrope compare``: compare how engines read the RoPE of one config."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from functools import partial
from typing import Any

from rfrope import engines, models
from rfrope._core.results import Report, Words
from rfrope.cli import page
from rfrope.cli.shared import add_command, add_files, check_files, one_of, whole
from rfrope.plotting import panels
from rfrope.plotting.panels import Curve, Panel


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
    parts: list[Any] = []
    for rope in found.ropes:
        parts += [*rope.report().parts, partial(_draw, rope)]
    listed = found.ropes[0].engines if options.sources else ()
    parts += [Words([f"{one.engine} {one.version}", *(f"  {file}" for file in one.sources)]) for one in listed]
    report = Report(parts, found.report().verdict)
    page.emit(options, f"Engines on {options.source}", report, found.to_dict())
    return 0


def _draw(found: models.RopeComparison) -> Iterator[Panel]:
    """Yield a figure with a curve for each score that engines give equal content, if there is one."""
    groups: dict[tuple[Any, ...], list[str]] = {}
    ropes = {}
    for one in found.engines:
        if one.rope is not None:
            same = (one.rope.attention_factor, *(f"{w:.11g}" for w in one.rope.frequencies))
            groups.setdefault(same, []).append(one.engine)
            ropes[same] = one.rope
    curves = []
    for same, names in groups.items():
        rope = ropes[same]
        still = max((found.qk_head_dim + 1) // 2 - rope.frequencies.size, 0)
        curves.append(Curve(", ".join(names), rope.frequencies, found.seq_len - 1, still, rope.attention_factor**2))
    if curves and found.seq_len > 1:
        title = f"Score of equal content: {found.name or found.model_type}, a text of {found.seq_len} positions"
        yield panels.mean_kernels(title, curves, found.seq_len)
