"""Laws that are learned, against frequencies that are; README.md has the command.

The protocol is in evidence_laws.rst. In three tasks, letters at several sizes, text, and series with a season, each
head learns the few parameters of its kernel, or all of its frequencies from the same start. Seeds go in order, each
with all arms of all tasks, so that runs which are stopped leave whole seeds.

Each run takes some seconds of one core. Every task has a file, FILE_glyphs.csv for FILE.csv; files keep what is done,
and the same command goes on after an interruption. The table (``.inc``) is of all.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import cache, partial
from typing import Any

import evidence_glyphs
import evidence_series
import numpy as np
import torch
from evidence import FRESH, HEADS, Arm, Batch, CosSin, Task, items_of, kernels, ladders, search
from evidence import run as run_task
from torch import nn
from trained import Row, apart, command, show, stated
from tuned import APART, contrast, holm, read_options

import rfrope

TRAINED, READ, SEEDS = 128, 256, 10  # bytes; runs of each arm
SERIES = 4096  # that are trained on
STEPS = {"glyphs": 800, "text": 500, "series": 500}
AGAIN = ("law", "free", "fixed Matérn")  # arms of the second protocol
OWN = {"own rate x 1": 1.0, "own rate x 4": 4.0}  # what is learned of positions, beside the rate of all else
MEASURES = {  # columns of rows, by what they are of
    ("glyphs", "points misread"): "items",
    ("text", "bits, trained length"): "items",
    ("text", "bits, to twice that"): "items beyond",
    ("series", "% of the variance"): "items",
}
SEASON = "mixture([0.5, 0.5], [gaussian(scale=6.0), spectral_mixture(weights=(1.0,), means=(0.9,), scales=(0.3,))])"


@cache
def text(part: str) -> torch.Tensor:
    """Return bytes to train on, or documents ``(documents, READ + 1)`` of other modules of the standard library."""
    train, held = apart(READ, 512)
    return train if part == "train" else held[part == "test"]


def batch(windows: torch.Tensor, first: int = 0) -> Batch:
    """Return windows ``(batch, tokens + 1)``, of which the next byte is to be predicted from a place on."""
    targets = windows[:, 1:].clone()
    targets[:, :first] = -100  # what cross entropy leaves out
    tokens = nn.functional.one_hot(windows[:, :-1], 256).float()
    return Batch(tokens, torch.arange(targets.shape[1]).expand(targets.shape), targets)


def surprise(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the cross entropy of each row, in bits a byte."""
    losses = nn.functional.cross_entropy(outputs.transpose(1, 2), targets, reduction="none")
    return losses.sum(1) / (targets >= 0).sum(1) / math.log(2.0)


def windows(rng: np.random.Generator) -> Batch:
    """Return 16 windows to train on."""
    starts = torch.from_numpy(rng.integers(len(text("train")) - TRAINED, size=(16, 1)))
    return batch(text("train")[starts + torch.arange(TRAINED + 1)])


@cache
def series() -> Batch:
    """Return the series that are trained on."""
    return evidence_series.batch(*evidence_series.drawn("sum", "train", np.random.default_rng(7), SERIES))


def some_series(rng: np.random.Generator) -> Batch:
    """Return 16 series to train on."""
    which = torch.from_numpy(rng.integers(SERIES, size=16))
    return Batch(*(one[which] for one in series()))


def task(data: str) -> Task:
    """Return a task by its name."""
    if data == "glyphs":
        return replace(evidence_glyphs.task(), steps=STEPS[data])
    if data == "series":
        made = evidence_series.task("sum")
        return replace(made, draw=some_series, steps=STEPS[data])
    return Task(
        inputs=256,
        outputs=256,
        draw=windows,
        parts=lambda part: {"within": batch(text(part)[:, : TRAINED + 1], 16), "beyond": batch(text(part), TRAINED)},
        loss=surprise,
        error=surprise,
        primary=("within",),
        steps=STEPS[data],
        beside=("beyond",),
        pooled=False,
        causal=True,
    )


# -- arms --------------------------------------------------------------------------------------------------------------


def law(kernel: str, context: Any, design: str = "stratified", **more: Any) -> CosSin:
    """Return how frequencies of a kernel are made, those of each head from points of its own."""
    seeded = design != "quantile"
    return lambda n, seed: rfrope.design(
        kernel, head_dim=2 * n, context=context, heads=HEADS, design=design, rng=seed if seeded else None, **more
    )


def rope(n: int, base: float = 10000.0) -> rfrope.Rope:
    """Return RoPE's frequencies for each head."""
    return rfrope.Rope(np.tile(rfrope.geometric(n, base=base)[:, None], (HEADS, 1, 1)))


def learned(start: CosSin, what: str) -> Arm:
    """Return an arm that learns from a start, with its own rate as the setting."""
    return Arm(dict.fromkeys(OWN, start), learned=what, own=OWN)


def arms(data: str) -> Mapping[str, Arm]:
    """Return four arms of a task: "law" and "free" have one start."""
    if data == "glyphs":
        start, context = law("matern(nu=1.5, scale=2.0, ndim=2)", evidence_glyphs.CONTEXT), evidence_glyphs.CONTEXT
        others = {"fixed Matérn": Arm(kernels("matern(nu=1.5, scale={}, ndim=2)", (1.0, 2.0), context))}
        others["axial, free"] = learned(lambda n, _: evidence_glyphs.axial(n, 100.0), "frequencies")
    elif data == "text":
        start, scales = (lambda n, _: rope(n)), law("matern(nu=1.5)", TRAINED, "quantile", ladder=(2.0, 32.0))
        others = {"fixed RoPE": Arm(ladders(rope, (100.0, 10000.0)))}
        others["Matérn law"] = learned(scales, "kernel")
    else:
        start = law(SEASON, evidence_series.CONTEXT[0])
        others = {"fixed RoPE": Arm(ladders(rope, (10.0, 100.0)))}
        others["RoPE, free"] = learned(lambda n, _: rope(n, 100.0), "factors")
    free = "frequencies" if data == "glyphs" else "factors"
    return {"law": learned(start, "kernel"), "free": learned(start, free), **others}


def run(which: tuple[str, str, float, int], data: str, short: bool = False) -> Row:
    """Train and read an arm at a setting and a rate, by a seed."""
    return run_task(task(data), arms(data), which, short)


# -- table -------------------------------------------------------------------------------------------------------------


def tabulate(rows: Mapping[str, list[Row]]) -> list[Row]:
    """Return a table of all arms: means over seeds, and "law" less each other with intervals of 98.75 %.

    The four "law less free" hold together with 95 %; p values are corrected among these four, and among all others.
    """
    table, found = [], []
    for (data, unit), column in MEASURES.items():
        for name in dict.fromkeys(row["encoding"] for row in rows.get(data, [])):
            own = items_of(rows[data], name, column)
            row = next(row for row in rows[data] if row["encoding"] == name)
            line = {"task": f"{data}, {unit}", "arm": name, "setting": row["setting"], "rate": row["rate"]}
            line |= {"mean": stated(own.mean(1), ".3f"), "law less it (98.75 %)": "", "p, corrected": ""}
            table.append(line)
            if name != "law" and len(own) > 1:
                found.append((name == "free", line, contrast(items_of(rows[data], "law", column) - own)))
    for side in (True, False):
        chosen = [(line, one) for is_free, line, one in found if is_free == side]
        for (line, one), p in zip(chosen, holm(one.p for _, one in chosen), strict=True):
            low, high = one.between(0.9875)
            line["law less it (98.75 %)"] = f"{one.mean:+.3f} ({low:+.3f} to {high:+.3f})"
            line["p, corrected"] = f"{p:.2g}"
    return table


def main(arguments: list[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--again", action="store_true", help="the second protocol: glyphs, rates by two seeds")
    options, rows = read_options(__doc__, arguments, arms("text"), SEEDS, parser), {}
    if options.again:
        settings = {name: list(arms("glyphs")[name].settings) for name in AGAIN}
        work = partial(run, data="glyphs", short=options.short)
        found = search(options.output, settings, options.seeds, work, options.workers, APART, by=APART, first=FRESH)
        show(tabulate({"glyphs": found}), options.output, command("evidence_laws.py", arguments))
        return 0
    for seeds in range(1, options.seeds + 1):
        for data in STEPS:
            output = options.output.with_name(f"{options.output.stem}_{data}.csv")
            settings = {name: list(arm.settings) for name, arm in arms(data).items()}
            work = partial(run, data=data, short=options.short)
            rows[data] = search(output, settings, seeds, work, options.workers, APART[:1])
        show(tabulate(rows), options.output, command("evidence_laws.py", arguments))
    return 0


if __name__ == "__main__":
    sys.exit(main())
