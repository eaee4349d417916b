"""Positions in a small language model: ``python examples/train_lm.py --output docs/train_lm.csv``.

A transformer of two layers reads bytes of Python's own standard library and predicts the next one. Everything but the
encoding of positions is alike: data, order, initial weights, steps. It is trained on 128 bytes and read on 512 that it
has not seen, so the table shows the loss within the trained length and beyond it, with errors over seeds.

Each run takes about half a minute of one core. The file keeps what is done: the same command goes on after an
interruption. Beside it come a table (``.inc``) and a figure (``.svg``).
"""

from __future__ import annotations

import math
import pathlib
import sys
import sysconfig
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import nn
from trained import Layer, Row, against, asked, command, show

import rfrope
from rfrope.layers.torch import RotaryEmbedding

TRAINED, READ = 128, 512  # bytes
LAYERS, HEADS, WIDTH = 2, 2, 32  # width of a head
BATCH, STEPS, RATE = 16, 800, 4e-3
SEEDS, DOCUMENTS = 5, 24
PARTS = {"within": (16, 128), "to 2x": (128, 256), "to 4x": (256, 512)}  # positions whose loss is averaged
REFERENCE = "RoPE"


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


class Model(nn.Module):
    """Bytes to logits of the next byte; weights depend on the seed alone, whatever the encoding."""

    def __init__(self, encoding: str, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        rope = ROPES[encoding](seed) if encoding in ROPES else None
        learned = encoding.startswith("learned")
        rotaries = [None if rope is None else RotaryEmbedding(rope, learnable=learned) for _ in range(LAYERS)]
        self.embedding = nn.Embedding(256, HEADS * WIDTH)
        self.layers = nn.ModuleList(Layer(HEADS, WIDTH, rotary) for rotary in rotaries)
        self.norm, self.head = nn.LayerNorm(HEADS * WIDTH), nn.Linear(HEADS * WIDTH, 256)
        if encoding == "sinusoidal":
            table = rfrope.sinusoidal(np.arange(READ), rfrope.geometric(HEADS * WIDTH // 2), pairing="interleaved")
            self.register_buffer("table", torch.as_tensor(table, dtype=torch.float32))
        else:
            self.table = None

    def forward(self, bytes_: torch.Tensor) -> torch.Tensor:
        """Return logits ``(batch, tokens, 256)``."""
        x = self.embedding(bytes_)
        if self.table is not None:
            x = x + self.table[: bytes_.shape[-1]]
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


@cache
def texts() -> tuple[torch.Tensor, torch.Tensor]:
    """Bytes to train on, and documents ``(DOCUMENTS, READ + 1)`` of other modules of the standard library."""
    modules = sorted(pathlib.Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    read = [np.frombuffer(path.read_bytes(), np.uint8) for path in modules]
    long = [one for one in read if len(one) > READ + 4096]
    held, kept = long[::3][:DOCUMENTS], [one for i, one in enumerate(long) if i % 3 or i // 3 >= DOCUMENTS]
    documents = np.stack([one[2048 : 2048 + READ + 1] for one in held])
    return torch.from_numpy(np.concatenate(kept).astype(np.int64)), torch.from_numpy(documents.astype(np.int64))


def train(model: Model, seed: int, steps: int) -> None:
    """Train on windows whose order the seed decides."""
    text = texts()[0]
    generator = torch.Generator().manual_seed(seed)
    optimiser = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimiser, lambda step: min(1.0, (step + 1) / 50) * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * step / steps)))
    )
    for _ in range(steps):
        starts = torch.randint(len(text) - TRAINED - 1, (BATCH, 1), generator=generator)
        window = text[starts + torch.arange(TRAINED + 1)]
        loss = nn.functional.cross_entropy(model(window[:, :-1]).flatten(0, 1), window[:, 1:].flatten())
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()


@torch.no_grad()
def losses(model: Model) -> np.ndarray:
    """Mean loss at each position of the documents, in bits for each byte ``(READ,)``."""
    documents = texts()[1]
    logits = model(documents[:, :-1]).transpose(1, 2)
    return nn.functional.cross_entropy(logits, documents[:, 1:], reduction="none").mean(0).numpy() / math.log(2.0)


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


def draw(rows: list[Row], path: pathlib.Path) -> None:
    """Draw the loss over positions, a line for each encoding: mean over seeds and its standard error."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    from rfrope.plotting.drawing import COLOURS

    with pyplot.rc_context({"svg.hashsalt": "rfrope", "svg.fonttype": "none", "font.size": 8.0}):
        figure, axes = pyplot.subplots(1, 2, figsize=(9.0, 3.6), sharey=True, layout="constrained")
        middles = np.arange(0, READ, READ // 16) + READ // 32
        for number, name in enumerate(ENCODINGS):
            chosen = [row for row in rows if row["encoding"] == name]
            if not chosen:
                continue
            values = np.asarray([[float(row[f"from {i}"]) for i in range(0, READ, READ // 16)] for row in chosen])
            error = values.std(0, ddof=1) / math.sqrt(len(values)) if len(values) > 1 else 0.0 * values[0]
            axis, style = axes[number // 6], dict(color=COLOURS[number % 6], linewidth=1.2)
            axis.plot(middles, values.mean(0), label=name, **style)
            axis.fill_between(middles, values.mean(0) - error, values.mean(0) + error, alpha=0.2, color=style["color"])
        for axis in axes:
            axis.axvline(TRAINED, color="0.5", linewidth=0.8, linestyle=":")
            axis.set(xlabel="position (bytes)")
            if axis.get_legend_handles_labels()[0]:
                axis.legend(frameon=False)
        axes[0].set(ylabel="loss (bits per byte)")
        figure.savefig(path, metadata={"Date": None})
        pyplot.close(figure)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line."""
    output, rows, reference = asked(__doc__, arguments, ENCODINGS, SEEDS, REFERENCE, run, run_short)
    table = against(rows, reference, list(PARTS), ["16 to 128", "128 to 256", "256 to 512"])
    show(table, output, command("train_lm.py", arguments))
    draw(rows, output.with_suffix(".svg"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
