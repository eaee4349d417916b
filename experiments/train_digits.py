"""Positions in two axes: ``python experiments/train_digits.py --output experiments/results/train_digits.csv``.

A transformer of two layers reads scikit-learn's digits as sixteen patches of two by two pixels, whose content says
nothing of their place. Everything but the rotation is alike: data, order, initial weights, steps. It is trained on
images of 8 by 8 pixels and read on others, of that size and enlarged to 12 by 12: 36 patches, whose positions either
go on counting (extrapolate) or lie between those of training (interpolate centres).

Each run takes under twenty seconds of one core. The file keeps what is done: the same command goes on after an
interruption. Beside it comes a table (``.inc``).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from trained import Layer, Row, against, asked, command, show

import rfrope
from rfrope.layers.torch import RotaryEmbedding

LAYERS, HEADS, WIDTH = 2, 2, 16  # width of a head
BATCH, STEPS, RATE = 64, 500, 4e-3
SEEDS, TESTED = 20, 597  # images; pictures of another size differ much from run to run
SMALL, LARGE = 4, 6  # patches on a side
READ = {"trained size": None, "larger, extrapolate": "extrapolate", "larger, interpolate": "interpolate centres"}
REFERENCE = "axial"


def _axial(_: int) -> rfrope.Rope:
    half = rfrope.geometric(WIDTH // 4, base=100.0)
    return rfrope.axial(half, half)


def _kernel(text: str, design: str, **more: Any) -> Callable[[int], rfrope.Rope]:
    """How to make a Rope of a seed: one set for each head, or one for all where nothing is drawn."""
    return lambda seed: rfrope.design(
        text, head_dim=WIDTH, context=(2 * SMALL, 2 * SMALL), design=design, rng=seed, **more
    )


ROPES: dict[str, Callable[[int], rfrope.Rope]] = {
    "axial": _axial,
    "mixed": lambda seed: rfrope.mixed(WIDTH // 2, np.random.default_rng(seed).uniform(0.0, math.tau, HEADS)),
    "golden gate": lambda _: rfrope.golden_gate(WIDTH // 2, low=0.1, high=1.0, heads=HEADS),
    "isotropic gaussian, iid": _kernel("gaussian(scale=2, ndim=2)", "iid", heads=HEADS),
    "isotropic gaussian, sobol": _kernel("gaussian(scale=2, ndim=2)", "sobol", heads=HEADS),
    "isotropic gaussian, optimised": _kernel("gaussian(scale=2, ndim=2)", "optimised"),
    "isotropic matern, sobol": _kernel("matern(nu=1.5, scale=2, ndim=2)", "sobol", heads=HEADS),
    "mixed, learned": lambda seed: ROPES["mixed"](seed),
}
ENCODINGS = ("none", *ROPES)


class Model(nn.Module):
    """Patches to logits of ten digits; weights depend on the seed alone, whatever the encoding."""

    def __init__(self, encoding: str, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        rope = None if encoding == "none" else ROPES[encoding](seed)
        learned = "frequencies" if encoding.endswith("learned") else False
        rotaries = [None if rope is None else RotaryEmbedding(rope, learnable=learned) for _ in range(LAYERS)]
        self.embedding = nn.Linear(4, HEADS * WIDTH)
        self.layers = nn.ModuleList(Layer(HEADS, WIDTH, rotary, causal=False) for rotary in rotaries)
        self.norm, self.head = nn.LayerNorm(HEADS * WIDTH), nn.Linear(HEADS * WIDTH, 10)

    def forward(self, patches: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Return logits ``(batch, 10)`` of patches ``(batch, tokens, 4)`` at positions ``(tokens, 2)``."""
        x = self.embedding(patches)
        for layer in self.layers:
            x = layer(x, positions)
        return self.head(self.norm(x).mean(1))


@cache
def images() -> tuple[torch.Tensor, torch.Tensor]:
    """Pixels ``(images, 1, 8, 8)`` from 0 to 1, and digits, in an order that does not change."""
    found = load_digits()
    order = np.random.default_rng(0).permutation(len(found.target))
    pixels = torch.as_tensor(found.images[order] / 16.0, dtype=torch.float32)[:, None]
    return pixels, torch.as_tensor(found.target[order])


def patches(pixels: torch.Tensor) -> torch.Tensor:
    """Cut images into patches of 2 by 2 pixels, row after row: ``(images, tokens, 4)``."""
    return nn.functional.unfold(pixels, 2, stride=2).transpose(1, 2)


def positions(side: int, resized: str | None) -> torch.Tensor:
    """Positions ``(side * side, 2)`` of patches."""
    way = {"resized": resized or "extrapolate"} | ({"trained": (SMALL, SMALL)} if "inter" in str(resized) else {})
    return torch.as_tensor(rfrope.rotation.grid_positions((side, side), **way)).flatten(0, -2)


def train(model: Model, seed: int, steps: int) -> None:
    """Train on batches whose order the seed decides."""
    pixels, digits = (one[TESTED:] for one in images())
    cut, places = patches(pixels), positions(SMALL, None)
    generator = torch.Generator().manual_seed(seed)
    optimiser = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, RATE, total_steps=steps + 1)
    for _ in range(steps):
        chosen = torch.randint(len(digits), (BATCH,), generator=generator)
        loss = nn.functional.cross_entropy(model(cut[chosen], places), digits[chosen])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()


@torch.no_grad()
def accuracy(model: Model, resized: str | None) -> float:
    """Share of the held images that are recognised, in percent."""
    pixels, digits = (one[:TESTED] for one in images())
    side = SMALL if resized is None else LARGE
    if resized is not None:
        pixels = nn.functional.interpolate(pixels, scale_factor=LARGE / SMALL, mode="bilinear", align_corners=False)
    found = model(patches(pixels), positions(side, resized)).argmax(-1)
    return 100.0 * float((found == digits).float().mean())


def run(which: tuple[str, int], steps: int = STEPS) -> Row:
    """Train one model and read it at both sizes."""
    torch.set_num_threads(1)
    model = Model(*which)
    train(model, which[1], steps)
    return {name: f"{accuracy(model, resized):.3f}" for name, resized in READ.items()}


def run_short(which: tuple[str, int]) -> Row:
    """Train for a moment, for the tests."""
    return run(which, steps=3)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line."""
    output, rows, reference = asked(__doc__, arguments, ENCODINGS, SEEDS, REFERENCE, run, run_short)
    show(against(rows, reference, list(READ), list(READ)), output, command("train_digits.py", arguments))
    return 0


if __name__ == "__main__":
    sys.exit(main())
