"""Positions in a small language model; README.md has the command.

A transformer of two layers reads bytes of Python's own standard library and predicts the next one. Everything but the
encoding of positions is alike: data, order, initial weights, steps. It is trained on 128 bytes and read on 512 that it
has not seen, so the table shows the loss within the trained length and beyond it, with errors over seeds.

With ``--polar`` it is task (a) of polar.rst: polar rotation beside what else there is, at rates that
validation chose, trained on 128 bytes and read on 2048. A run takes about a minute then.

Each run takes about half a minute of one core. The file keeps what is done: the same command goes on after an
interruption. Beside it come a table (``.inc``) and a figure (``.svg``).
"""

from __future__ import annotations

import argparse
import math
import pathlib
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from arms import ARMS, model, recovered, written
from arms import READ as FAR
from torch import nn
from trained import Layer, Reader, Row, against, apart, asked, bits, command, fit, show, split
from tuned import APART
from tuned import main as tuned

import rfrope
from rfrope.layers.torch import RotaryEmbedding

TRAINED, READ = 128, 512  # bytes
HEADS, WIDTH = 2, 32  # width of a head
BATCH, STEPS, RATE = 16, 800, 4e-3
SEEDS = 5
PARTS = {"within": (16, 128), "to 2x": (128, 256), "to 4x": (256, 512)}  # positions whose loss is averaged
FAR_PARTS = PARTS | {"to 8x": (512, 1024), "to 16x": (1024, FAR), "beyond": (TRAINED, FAR)}
VALIDATED = {"validation within": PARTS["within"], "validation beyond": FAR_PARTS["beyond"]}
REFERENCE = "RoPE"
LADDERS = [f"polar, {family} ladder" for family in ("gaussian", "cauchy")]
PAIRS = {
    "to 4x": [(LADDERS[0], "PoPE")],
    "beyond": [(name, f"{name}, {other}") for name in LADDERS for other in ("iid", "no bias")],
}


def _kernel(text: str, design: str, heads: int | None = None, **more: Any) -> Callable[[int], rfrope.Rope]:
    """How to make a Rope of a seed."""
    return lambda seed: rfrope.design(text, head_dim=WIDTH, context=READ, heads=heads, design=design, rng=seed, **more)


ROPES: dict[str, Callable[[int], Any]] = {
    "RoPE": lambda _: rfrope.geometric(WIDTH // 2),
    "gaussian, iid": _kernel("gaussian(scale=32)", "iid", HEADS),
    "gaussian, optimised": _kernel("gaussian(scale=32)", "optimised"),
    "matern, iid": _kernel("matern(nu=1.5, scale=32)", "iid", HEADS),
    "matern, optimised": _kernel("matern(nu=1.5, scale=32)", "optimised"),
    "log_uniform, iid": _kernel("log_uniform(low=0.0002, high=1)", "iid", HEADS),
    "log_uniform, optimised": _kernel("log_uniform(low=0.0002, high=1)", "optimised"),
    "gaussian, a scale for each head": _kernel("gaussian", "quantile", HEADS, ladder=(2.0, 128.0)),
    "learned from RoPE": lambda _: rfrope.geometric(WIDTH // 2),
}
ENCODINGS = ("none", "sinusoidal", *ROPES)


class Model(Reader):
    """Bytes to logits of the next byte; weights depend on the seed alone, whatever the encoding."""

    def __init__(self, encoding: str, seed: int) -> None:
        learned = "frequencies" if encoding.startswith("learned") else False

        def layer() -> Layer:
            rope = ROPES[encoding](seed) if encoding in ROPES else None
            return Layer(HEADS, WIDTH, None if rope is None else RotaryEmbedding(rope, learnable=learned))

        super().__init__(seed, 256, HEADS * WIDTH, layer)
        if encoding == "sinusoidal":
            table = rfrope.sinusoidal(np.arange(READ), rfrope.geometric(HEADS * WIDTH // 2), pairing="interleaved")
            self.table = torch.as_tensor(table, dtype=torch.float32)


@cache
def texts() -> tuple[torch.Tensor, torch.Tensor]:
    """Bytes to train on, and documents ``(24, READ + 1)`` of other modules of the standard library."""
    return split(READ)


def train(model: nn.Module, seed: int, steps: int, rate: float = RATE, text: torch.Tensor | None = None) -> None:
    """Train on windows whose order the seed decides."""
    text = texts()[0] if text is None else text
    generator = torch.Generator().manual_seed(seed)

    def loss(_: int) -> torch.Tensor:
        starts = torch.randint(len(text) - TRAINED - 1, (BATCH, 1), generator=generator)
        window = text[starts + torch.arange(TRAINED + 1)]
        return nn.functional.cross_entropy(model(window[:, :-1]).flatten(0, 1), window[:, 1:].flatten())

    fit(model, loss, rate, steps)


def losses(model: nn.Module) -> np.ndarray:
    """Mean loss at each position of the documents, in bits for each byte ``(READ,)``."""
    return bits(model, texts()[1]).mean(0)


def run(which: tuple[str, int], steps: int = STEPS) -> Row:
    """Train one model: the bits for each byte of each part, and of each sixteenth of the length read."""
    torch.set_num_threads(1)
    model = Model(*which)
    train(model, which[1], steps)
    found = losses(model)
    parts = {name: f"{found[first:last].mean():.5f}" for name, (first, last) in PARTS.items()}
    return parts | {f"from {i}": f"{found[i : i + READ // 16].mean():.5f}" for i in range(0, READ, READ // 16)}


def run_short(which: tuple[str, int]) -> Row:
    """Train for a moment, for the tests."""
    return run(which, steps=3)


def run_far(which: tuple[str, float, int], short: bool = False) -> Row:
    """Train an arm at a rate and read 16 times the trained length: for seeds apart validation alone."""
    torch.set_num_threads(1)
    name, rate, seed = which
    text, held = apart(FAR, READ)
    validation, documents = (one[: 2 if short else None] for one in held)
    made = model(ARMS[name], seed)
    before = recovered(made, validation[:, :TRAINED])
    train(made, seed, 3 if short else STEPS, rate, text)
    found = bits(made, validation)
    row = {part: found[:, first:last].mean() for part, (first, last) in VALIDATED.items()}
    if seed not in APART:
        found = bits(made, documents)
        row |= {part: found[:, first:last].mean() for part, (first, last) in FAR_PARTS.items()}
        row |= {f"document {i}": one for i, one in enumerate(found[:, TRAINED:].mean(1))}
    row = {part: f"{value:.5f}" for part, value in row.items()}
    return row | written(before, recovered(made, validation[:, :TRAINED]))


PANELS = {  # colour by what positions are, dashes for independent draws; RoPE is black in each
    "without a designed kernel": {"none": "0", "sinusoidal": "1", "learned from RoPE": "2"},
    "one scale": {"gaussian, optimised": "0", "gaussian, iid": "0", "matern, optimised": "3", "matern, iid": "3"},
    "many scales": {"log_uniform, optimised": "2", "log_uniform, iid": "2", "gaussian, a scale for each head": "0"},
}


def draw(rows: list[Row], path: pathlib.Path) -> None:
    """Draw the loss over positions, a line for each encoding: mean over seeds and its standard error."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    from rfrope.plotting.figures import COLOURS

    with pyplot.rc_context({"svg.hashsalt": "rfrope", "svg.fonttype": "none", "font.size": 8.0}):
        figure, axes = pyplot.subplots(1, len(PANELS), figsize=(9.6, 3.9), sharey=True, layout="constrained")
        for axis, (title, lines) in zip(axes, PANELS.items(), strict=True):
            for name, colour in ({REFERENCE: "black"} | lines).items():
                style = {"color": COLOURS[int(colour)] if colour.isdigit() else colour}
                _line(axis, rows, name, **style, linestyle="--" if name.endswith("iid") else "-")
            axis.axvline(TRAINED, color="0.5", linewidth=0.8, linestyle=":")
            axis.annotate("trained", (TRAINED, 0.02), (-3, 0), ("data", "axes fraction"), "offset points", ha="right")
            axis.set(xlabel="position (bytes)", title=title, xlim=(0, READ))
            axis.spines[["top", "right"]].set_visible(False)
            if axis.get_legend_handles_labels()[0]:
                axis.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.16))
        axes[0].set(ylabel="loss (bits per byte)")
        figure.savefig(path, metadata={"Date": None})
        pyplot.close(figure)


def _line(axis: Any, rows: list[Row], name: str, **style: str) -> None:
    """Draw one encoding, if there are runs of it."""
    starts = range(0, READ, READ // 16)
    values = np.asarray([[float(row[f"from {i}"]) for i in starts] for row in rows if row["encoding"] == name])
    if not len(values):
        return
    mean, error = values.mean(0), values.std(0, ddof=1) / math.sqrt(len(values)) if len(values) > 1 else 0.0
    middles = np.asarray(starts) + READ // 32
    axis.plot(middles, mean, label=name, linewidth=1.3, **style)
    axis.fill_between(middles, mean - error, mean + error, alpha=0.2, color=style["color"], linewidth=0)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line."""
    polar = argparse.ArgumentParser(add_help=False)
    polar.add_argument("--polar", action="store_true", help="the arms of polar.rst, at tuned rates")
    if polar.parse_known_args(arguments)[0].polar:
        drawn = {part: last for part, (_, last) in FAR_PARTS.items() if part != "beyond"}
        own = dict(parts=list(FAR_PARTS), drawn=(drawn, "read to (bytes)", "loss (bits per byte)"), pairs=PAIRS)
        return tuned(__doc__, "train_lm.py", arguments, run_far, parser=polar, **own)
    output, rows, reference = asked(__doc__, arguments, ENCODINGS, SEEDS, REFERENCE, run, run_short, polar)
    table = against(rows, reference, list(PARTS), ["16 to 128", "128 to 256", "256 to 512"])
    show(table, output, command("train_lm.py", arguments))
    draw(rows, output.with_suffix(".svg"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
