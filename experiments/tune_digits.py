"""Digits at twice the size, where no recipe is known; README.md has the command.

The transformer of `train_digits`, with an axial Rope, is trained on pictures of 8 by 8 pixels, 4 by 4 patches. Then it
reads the same pictures, scaled up to 16 by 16 pixels: 8 by 8 patches, positions up to 7 where it has seen 3. Its
weights stay; factors of its frequencies and a temperature are learned by `rfrope.integrations.tuning.tune_modules`.

Protocol, stated before any run:

- 10 seeds, each with weights and an order of training pictures of its own, 500 steps as in `train_digits`.
- Learned from: the training pictures at twice the size, in 200 steps of 64. Choose: 197 pictures that no weight was
  trained on, at that size. Judge: 400 others, at that size, and at the trained one.
- Starts and rivals: as it is (positions beyond are extrapolated), interpolated positions, NTK by the axis (the base at
  which the slowest block is interpolated), and YaRN by the axis (a factor of 2 of 4 trained positions).
- The measure is the cross entropy on the 400 pictures at twice the size, paired by seed. Learned factors are said to
  win where they are below every rival by two standard errors over seeds; for the model, each layer and each head. (The
  last two were learned by commit cda0d88c: ``tune_modules`` has one set for the model now.)

``--quick`` trains for a few steps, to see that it works.
"""

from __future__ import annotations

import argparse
import pathlib
import sys
from functools import partial

import numpy as np
import torch
from torch import nn
from train_digits import BATCH, SMALL, STEPS, TESTED, WIDTH, Model, images, patches, positions, train
from trained import Row, command, complete, show, stated

import rfrope
from rfrope.integrations.tuning import tune_modules

TWICE = 2 * SMALL  # patches on a side
SEEDS, LEARNED, CHOOSING = 10, 200, 197
BASE, REFERENCE = 100.0, "axial"


def axial(omega: np.ndarray) -> rfrope.Rope:
    """Return a Rope of both axes, by the frequencies of one."""
    return rfrope.axial(omega, omega)


def starts() -> dict[str, rfrope.Rope]:
    """Return the rotations that compete, by name."""
    one = rfrope.geometric(WIDTH // 4, base=BASE)
    slow = rfrope.scaling.ntk(one, 2.0)
    ramp = rfrope.scaling.yarn(one, factor=2.0, original_max_position_embeddings=SMALL, base=BASE)
    return {
        "as it is": axial(one),
        "interpolate": axial(one / 2.0),
        "ntk": axial(np.asarray(slow.frequencies)),
        "yarn": axial(np.asarray(ramp.frequencies)),
    }


def pictures(which: slice, side: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return patches, their positions and digits of some pictures, so many patches on a side."""
    pixels, digits = (one[which] for one in images())
    if side != SMALL:
        pixels = nn.functional.interpolate(pixels, scale_factor=side / SMALL, mode="bilinear", align_corners=False)
    return patches(pixels), positions(side, None if side == SMALL else "extrapolate"), digits


def run(which: tuple[str, int], steps: int = STEPS, learned: int = LEARNED) -> Row:
    """Train a model, learn its factors, and return its losses by each rotation."""
    torch.set_num_threads(1)
    _, seed = which
    model = Model(REFERENCE, seed)
    train(model, seed, steps)
    cut, places, digits = pictures(slice(TESTED, None), TWICE)

    def loss(batch: tuple[torch.Tensor, torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return nn.functional.cross_entropy(model(*batch[:2]), batch[2], reduction="none")

    def learning(step: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        chosen = torch.from_numpy(np.random.default_rng([seed, step]).integers(len(digits), size=BATCH))
        return cut[chosen], places, digits[chosen]

    judging = slice(CHOOSING, TESTED)
    found = tune_modules(
        model,
        loss,
        learning,
        {"twice": [pictures(slice(0, CHOOSING), TWICE)]},
        {"trained size": [pictures(judging, SMALL)], "twice": [pictures(judging, TWICE)]},
        starts=starts(),
        steps=learned,
    )
    return {f"{name}, {part}": f"{found.mean(name, part)[0]:.5f}" for name in found.losses for part in found.parts}


def table(rows: list[Row]) -> list[Row]:
    """Return the mean loss of each rotation over seeds, and what the learned one's is less it, with standard errors."""
    made = []
    for per in dict.fromkeys(row["encoding"] for row in rows):
        own = [row for row in rows if row["encoding"] == per]
        for name in (*starts(), "learned"):
            columns = {
                part: np.asarray([float(row[f"{name}, {part}"]) for row in own]) for part in ("trained size", "twice")
            }
            less = np.asarray([float(row["learned, twice"]) for row in own]) - columns["twice"]
            line = {"sets": per, "rotation": name} | {part: stated(one, ".3f") for part, one in columns.items()}
            made.append(line | {"learned less it, twice": "" if name == "learned" else stated(less, "+.3f")})
    return made


def main(arguments: list[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("--output", metavar="FILE", type=pathlib.Path, required=True, help="comma-separated values")
    parser.add_argument("--seeds", metavar="N", type=int, default=SEEDS, help=f"of weights and order; {SEEDS}")
    parser.add_argument("--workers", metavar="N", type=int, default=0, help="processes at once; 0 is this one")
    parser.add_argument("--quick", action="store_true", help="a few steps, to see that it works")
    options = parser.parse_args(arguments)
    work = partial(run, steps=5, learned=4) if options.quick else run
    wanted = [("model", seed) for seed in range(options.seeds)]
    rows = complete(options.output, wanted, work, options.workers)
    show(table(rows), options.output, command("tune_digits.py", arguments))
    return 0


if __name__ == "__main__":
    sys.exit(main())
