"""A small language model at 2 and 4 times its context; README.md has the command.

The model of `train_lm`, with RoPE, is trained on 128 bytes. Its weights stay; factors of its frequencies and a
temperature are learned for 256 and for 512 bytes by `rfrope.integrations.tuning.tune_modules`, beside every method of
`rfrope.analysis.plan`. The protocol, with what would count for and against, is experiments/tune.rst.

A run takes about three minutes of one core. The file keeps what is done: the same command goes on after an
interruption. ``--short`` makes a few steps of each, to see that it works.
"""

from __future__ import annotations

import argparse
import math
import pathlib
import sys
from functools import cache, partial

import numpy as np
import torch
from torch import nn
from train_lm import READ, STEPS, TRAINED, Model, train
from trained import Row, apart, command, complete, show, stated
from tuned import Contrast, contrast

import rfrope
from rfrope.analysis import plan
from rfrope.integrations.tuning import tune_modules

FACTORS = (2, 4)
METHODS = ("yarn", "llama3", "ntk", "linear", "optimised")  # the last was a method of the plan until 0.3
SEEDS, LEARNED, WINDOWS, RACE = 5, 300, 8, 0.1
FIRST = 16  # bytes whose loss says little, as nothing stands before them


def parts(factor: int) -> dict[str, tuple[int, int]]:
    """Return the positions of each part of what is held out."""
    return {"within": (FIRST, TRAINED)} | {f"to {i}x": (i * TRAINED // 2, i * TRAINED) for i in (2, 4) if i <= factor}


@cache
def texts() -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Return bytes to train on and learn from, and documents that choose and that judge, which no trial has read."""
    return apart(READ, READ)


def run(which: tuple[str, int], short: bool = False) -> Row:
    """Train a model, learn for a longer context, and return the loss of each document by each rotation."""
    torch.set_num_threads(1)
    label, seed = which
    factor = int(label.partition("x")[0])
    model = Model("RoPE", seed)
    text, held = texts()
    choosing, judging = (one[: 2 if short else None, : factor * TRAINED + 1] for one in held)
    train(model, seed, 3 if short else STEPS, text=text)
    trained = rfrope.Rope(model.layers[0].rotary.rope.frequencies, context=TRAINED)
    planned = plan(trained, factor * TRAINED)

    def loss(batch: tuple[torch.Tensor, int, int]) -> torch.Tensor:
        documents, first, last = batch
        logits = model(documents[:, :-1]).transpose(1, 2)
        found = nn.functional.cross_entropy(logits, documents[:, 1:], reduction="none")
        return found[:, first:last].mean(1) / math.log(2.0)

    def learning(step: int) -> tuple[torch.Tensor, int, int]:
        starts = np.random.default_rng([seed, step]).integers(len(text) - factor * TRAINED - 1, size=(WINDOWS, 1))
        return text[torch.from_numpy(starts) + torch.arange(factor * TRAINED + 1)], 0, factor * TRAINED

    found = tune_modules(
        model,
        loss,
        learning,
        {"within": [(choosing, FIRST, TRAINED)], "beyond": [(choosing, TRAINED, factor * TRAINED)]},
        {name: [(judging, *ends)] for name, ends in parts(factor).items()},
        starts={name: planned.method(name).rope for name in METHODS[:-1]},
        steps=3 if short else LEARNED,
        race=RACE,
    )
    losses = {
        f"{name}, {part}": " ".join(f"{one:.5f}" for one in values)
        for name, each in found.losses.items()
        for part, values in each.items()
    }
    return {"start": found.start, "steps": str(found.steps)} | losses


def losses_of(rows: list[Row], label: str, column: str) -> np.ndarray:
    """Return losses ``(seeds, documents)`` of a column."""
    return np.asarray([[float(one) for one in row[column].split()] for row in rows if row["encoding"] == label])


def table(rows: list[Row]) -> list[Row]:
    """Return the mean loss of each rotation over seeds, and what the learned one's is less it, over seeds and texts."""
    made = []
    for label in dict.fromkeys(row["encoding"] for row in rows):
        for name in ("as it is", *METHODS, "learned"):
            line = {"factor, sets": label, "rotation": name}
            for part in parts(max(FACTORS)):
                if not next(row for row in rows if row["encoding"] == label).get(f"{name}, {part}"):
                    line |= {part: "", f"learned less it, {part}": ""}
                    continue
                own, learned = (losses_of(rows, label, f"{one}, {part}") for one in (name, "learned"))
                line[part] = stated(own.mean(1), ".3f")
                less = contrast(learned - own) if name != "learned" and len(own) > 1 else None
                line[f"learned less it, {part}"] = "" if less is None else f"{less.mean:+.3f} ± {less.error:.3f}"
            made.append(line)
    return made


def primary(rows: list[Row]) -> dict[str, Contrast]:
    """Return the contrasts by which the protocol judges: 4x, one set for the model, against the best scheme by part."""
    label, found = f"{max(FACTORS)}x, model", {}
    if len({row["seed"] for row in rows if row["encoding"] == label}) < 2:
        return found
    for part in parts(max(FACTORS)):
        learned = losses_of(rows, label, f"learned, {part}")
        rivals = METHODS if part != "within" else ("as it is",)
        best = min(rivals, key=lambda name: losses_of(rows, label, f"{name}, {part}").mean())
        found[f"learned less {best}, {part}"] = contrast(learned - losses_of(rows, label, f"{best}, {part}"))
    return found


def main(arguments: list[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("--output", metavar="FILE", type=pathlib.Path, required=True, help="comma-separated values")
    parser.add_argument("--seeds", metavar="N", type=int, default=SEEDS, help=f"of weights and windows; {SEEDS}")
    parser.add_argument(
        "--factors", nargs="+", type=int, choices=FACTORS, default=FACTORS, help="of the trained length"
    )
    parser.add_argument("--workers", metavar="N", type=int, default=2, help="processes of one thread; 2")
    parser.add_argument("--short", action="store_true", help="three steps and two texts: to see that it works")
    options = parser.parse_args(arguments)
    labels = [f"{factor}x, model" for factor in options.factors]  # a set for each layer or head: by commit cda0d88c
    wanted = [(label, seed) for label in labels for seed in range(options.seeds)]
    rows = complete(options.output, wanted, partial(run, short=options.short), options.workers)
    show(table(rows), options.output, command("tune_lm.py", arguments))
    for name, found in primary(rows).items():
        print(f"{name}: {found}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
