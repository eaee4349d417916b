"""Characters at several resolutions; README.md has the command.

Task (a) of evidence_protocol.rst. Characters are drawn from outlines of fonts that come with matplotlib, moved,
turned, sheared and scaled at random, and cut into patches of 8 by 8 pixels. A model is trained on pictures of 32 by 32
pixels and reads others, in styles that it has not seen, at 32, 48, 64 and 96, where patches lie closer together.

Each run takes less than a minute of one core. The file keeps what is done: the same command goes on after an
interruption. Beside it come a table (``.inc``) and a figure (``.svg``).
"""

from __future__ import annotations

import importlib.util
import math
import pathlib
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

import numpy as np
import torch
from evidence import Arm, Batch, CosSin, Task, kernels, ladders, surprise, wrong
from evidence import main as evidence
from evidence import run as run_task
from torch import nn
from trained import Row

import rfrope

CHARACTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
FAMILIES = {  # regular, bold, oblique, both
    "DejaVuSans": ("", "-Bold", "-Oblique", "-BoldOblique"),
    "DejaVuSansMono": ("", "-Bold", "-Oblique", "-BoldOblique"),
    "DejaVuSerif": ("", "-Bold", "-Italic", "-BoldItalic"),
    "STIXGeneral": ("", "Bol", "Italic", "BolIta"),
}
MASTER, FINER = 192, 3  # pixels of the outlines on a side; places that each pixel of a picture averages, on a side
PATCH, TRAINED, READ = 8, 32, (32, 48, 64, 96)  # pixels
COPIES, REPEATS = 20, 3  # of each character in each font: of training, and of what is read
BATCH, STEPS, SEEDS = 64, 1200, 5
BASES = (10.0, 100.0, 1000.0)
SCALES = (1.0, 2.0, 4.0)  # patches
CONTEXT = (TRAINED // PATCH,) * 2
PAIRS = (
    ("matern", "axial"),
    ("gaussian", "axial"),
    ("matern", "mixed, learned"),
    ("matern, polar", "axial, polar"),
    ("matern, polar", "matern"),
)


def fonts(part: str) -> list[tuple[str, str]]:
    """Return families and styles of a part: each family has two styles to train on, one to validate, one to test.

    Which they are goes round, so that every part has regular, bold and slanted ones. A fresh test has the test's.
    """
    places = {"train": (0, 1), "validation": (2,), "test": (3,), "fresh": (3,)}[part]
    return [(name, styles[(i + at) % 4]) for i, (name, styles) in enumerate(FAMILIES.items()) for at in places]


@cache
def masters(part: str) -> np.ndarray:
    """Return pictures ``(fonts, characters, MASTER, MASTER)`` of ink from 0 to 255, each character in the middle."""
    if importlib.util.find_spec("matplotlib") is None or importlib.util.find_spec("PIL") is None:
        raise SystemExit("the fonts come with matplotlib, which is not installed: pip install matplotlib")
    import matplotlib as mpl
    from PIL import Image, ImageDraw, ImageFont

    folder, made = pathlib.Path(mpl.get_data_path()) / "fonts" / "ttf", []
    for name, style in fonts(part):
        path = folder / f"{name}{style}.ttf"
        if not path.exists():
            raise SystemExit(f"the font {path.name} is not in this matplotlib: pip install -U matplotlib")
        font = ImageFont.truetype(str(path), round(0.85 * MASTER))
        for character in CHARACTERS:
            picture = Image.new("L", (MASTER, MASTER))
            ImageDraw.Draw(picture).text((MASTER / 2, 0.81 * MASTER), character, 255, font, "ms")
            made.append(np.asarray(picture))
    return np.stack(made).reshape(-1, len(CHARACTERS), MASTER, MASTER)


def jitters(rng: np.random.Generator, count: int) -> np.ndarray:
    """Return affine maps ``(count, 2, 3)`` of places in a picture, from -1 to 1, to places in its master.

    Turns by up to 0.2 radians, shears by up to 0.2, scales by up to a fifth, on each axis and both, and moves by up to
    a tenth of the picture.
    """
    turn, shear = rng.uniform(-0.2, 0.2, (2, count))
    both, ratio = np.exp(rng.uniform(-0.2, 0.2, (2, count)) * [[1.0], [0.5]])
    made = np.zeros((count, 2, 3))
    cos, sin = np.cos(turn), np.sin(turn)
    made[:, 0, 0], made[:, 0, 1] = both * ratio * cos, both * (shear * ratio * cos - sin / ratio)
    made[:, 1, 0], made[:, 1, 1] = both * ratio * sin, both * (shear * ratio * sin + cos / ratio)
    made[:, :, 2] = rng.uniform(-0.2, 0.2, (count, 2))
    return made


def rendered(part: str, side: int, maps: np.ndarray) -> torch.Tensor:
    """Return pictures ``(fonts * characters * copies, 1, side, side)`` of ink from 0 to 1, by a map for each.

    A pixel is the mean of FINER by FINER places of the master, so that a map gives one picture at every resolution.
    """
    ink = torch.from_numpy(masters(part)).flatten(0, 1)[:, None].float() / 255.0
    copies = len(maps) // len(ink)
    found = []
    for one, own in zip(ink, torch.from_numpy(maps).float().split(copies), strict=True):
        places = nn.functional.affine_grid(own, (copies, 1, FINER * side, FINER * side), align_corners=False)
        finer = nn.functional.grid_sample(one.expand(copies, -1, -1, -1), places, align_corners=False)
        found.append(nn.functional.avg_pool2d(finer, FINER))
    return torch.cat(found)


@cache
def pictures(part: str, side: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return patches ``(pictures, tokens, PATCH * PATCH)``, their positions ``(tokens, 2)``, and classes."""
    copies = COPIES if part == "train" else REPEATS
    kinds = torch.arange(len(CHARACTERS)).repeat_interleave(copies).repeat(len(fonts(part)))
    maps = jitters(np.random.default_rng(("train", "validation", "test", "fresh").index(part)), len(kinds))
    cut = nn.functional.unfold(rendered(part, side, maps), PATCH, stride=PATCH).transpose(1, 2)
    return cut, positions(side), kinds


def positions(side: int) -> torch.Tensor:
    """Return positions ``(tokens, 2)`` of patches, in patches of a picture of the trained size."""
    grid = (side // PATCH,) * 2
    return torch.as_tensor(
        rfrope.rotation.grid_positions(grid, resized="interpolate centres", trained=CONTEXT)
    ).flatten(0, -2)


def batch(part: str, side: int, which: torch.Tensor | slice = slice(None)) -> Batch:
    """Return pictures of a part."""
    cut, places, kinds = pictures(part, side)
    return Batch(cut[which], places.expand(len(cut[which]), -1, -1), kinds[which])


def task() -> Task:
    """Return the task, whose error is in percent."""
    return Task(
        inputs=PATCH**2,
        outputs=len(CHARACTERS),
        draw=lambda rng: batch(
            "train", TRAINED, torch.from_numpy(rng.integers(len(pictures("train", TRAINED)[2]), size=BATCH))
        ),
        parts=lambda part: {f"{side} pixels": batch(part, side) for side in READ},
        loss=surprise,
        error=wrong,
        primary=tuple(f"{side} pixels" for side in READ),
        steps=STEPS,
        repeats=dict.fromkeys((f"{side} pixels" for side in READ), REPEATS),
    )


def mixed(bases: Iterable[float]) -> dict[str, CosSin]:
    """Return settings by the base: two perpendicular directions, which the seed draws, for all heads."""

    def make(n: int, seed: int, base: float) -> Any:
        return np.asarray(rfrope.mixed(n, [np.random.default_rng(seed).uniform(0.0, math.tau)], base=base).frequencies)[
            0
        ]

    return {f"base {base:g}": lambda n, seed, base=base: make(n, seed, base) for base in bases}


def axial(n: int, base: float) -> rfrope.Rope:
    """Return half of the waves along each axis."""
    return rfrope.axial(*[rfrope.geometric(n // 2, base=base)] * 2)


def spiral(n: int, base: float) -> rfrope.Rope:
    """Return magnitudes of a ladder, each along four directions."""
    return rfrope.frequencies.isotropic(rfrope.geometric(n // 4, base=base), 4)


def arms() -> Mapping[str, Arm]:
    """Return arms by their names."""
    golden = ladders(lambda n, base: rfrope.golden_gate(n, low=1.0 / base, high=1.0), BASES)
    made = {"none": Arm({"": None}), "axial": Arm(ladders(axial, BASES))}
    made |= {
        "axial, learned": Arm(ladders(axial, BASES), learned=True),
        "axial, polar": Arm(ladders(axial, BASES), True),
    }
    made |= {"mixed": Arm(mixed(BASES)), "mixed, learned": Arm(mixed(BASES), learned=True)}
    made |= {"golden gate": Arm(golden), "spiral": Arm(ladders(spiral, BASES))}
    for family, text in (("gaussian", "gaussian(scale={}, ndim=2)"), ("matern", "matern(nu=1.5, scale={}, ndim=2)")):
        found = kernels(text, SCALES, CONTEXT)
        made |= {family: Arm(found, designed=True), f"{family}, polar": Arm(found, polar=True, designed=True)}
    return made


def run(which: tuple[str, str, float, int], short: bool = False) -> Row:
    """Train and read an arm at a setting and a rate, by a seed."""
    return run_task(task(), arms(), which, short)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line."""
    own = dict(
        columns=[f"{side} pixels" for side in READ],
        form=".1f",
        unit="points of the share misread",
        seeds=SEEDS,
        pairs=PAIRS,
        fresh=True,
    )
    return evidence(__doc__, "evidence_glyphs.py", arguments, run, arms, **own)


if __name__ == "__main__":
    sys.exit(main())
