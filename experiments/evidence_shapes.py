"""Shapes of points in space; README.md has the command.

Task (f) of evidence_protocol.rst. A cloud of 64 points lies on one of ten surfaces and curves that formulas give,
turned at random, anywhere in space. A token is a point: it brings the products of the vectors to its four nearest
neighbours, which have lengths and angles but no direction; its position has three axes. A model is trained at about one
size, and reads clouds that are smaller, alike and larger.

Each run takes some seconds of one core. The file keeps what is done: the same command goes on after an interruption.
Beside it come a table (``.inc``) and a figure (``.svg``).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from functools import cache

import numpy as np
import torch
from evidence import Arm, Batch, Task, kernels, ladders, surprise, wrong
from evidence import main as evidence
from evidence import run as run_task
from scipy.spatial.transform import Rotation
from trained import Row

import rfrope

POINTS, NEAR = 64, 4  # of a cloud; neighbours that a point knows
INPUTS = NEAR * (NEAR + 1) // 2
RADIUS = 4.0  # root mean square, in units of position: neighbours are about one apart
SIZES = {"smaller": 0.7, "trained size": 1.0, "larger": 1.4}
BATCH, STEPS, SEEDS, ITEMS = 32, 500, 5, 300
NOISE, FAR = 0.1, 20.0  # standard deviation of points about their surface; how far from the origin clouds lie
BASES = (4.0, 16.0, 64.0)  # there are four waves for each axis, and few: bases that reach as far as scales do
SCALES = (2.0, 4.0, 8.0)
CONTEXT = (13, 13, 13)  # lags up to three radii
PAIRS = (("gaussian", "axial"), ("gaussian, polar", "axial, polar"), ("gaussian, polar", "gaussian"))


def _sphere(u: np.ndarray, v: np.ndarray, _: np.ndarray) -> list[np.ndarray]:
    height = 2.0 * v - 1.0
    across = np.sqrt(1.0 - height**2)
    return [across * np.cos(math.tau * u), across * np.sin(math.tau * u), height]


def _cube(u: np.ndarray, v: np.ndarray, w: np.ndarray) -> list[np.ndarray]:
    face, made = np.floor(6.0 * w).astype(int), np.stack([2.0 * u - 1.0, 2.0 * v - 1.0])
    side = np.where(face % 2, 1.0, -1.0)
    axis = face // 2
    return [np.where(axis == i, side, np.where((axis + 1) % 3 == i, *made)) for i in range(3)]


def _cylinder(u: np.ndarray, v: np.ndarray, _: np.ndarray) -> list[np.ndarray]:
    return [np.cos(math.tau * u), np.sin(math.tau * u), 4.0 * v - 2.0]


def _cone(u: np.ndarray, v: np.ndarray, _: np.ndarray) -> list[np.ndarray]:
    across = np.sqrt(v)  # the circles that are larger have more points
    return [across * np.cos(math.tau * u), across * np.sin(math.tau * u), 2.0 * across]


def _torus(u: np.ndarray, v: np.ndarray, _: np.ndarray) -> list[np.ndarray]:
    across = 1.0 + 0.35 * np.cos(math.tau * v)
    return [across * np.cos(math.tau * u), across * np.sin(math.tau * u), 0.35 * np.sin(math.tau * v)]


def _disc(u: np.ndarray, v: np.ndarray, _: np.ndarray) -> list[np.ndarray]:
    return [np.sqrt(v) * np.cos(math.tau * u), np.sqrt(v) * np.sin(math.tau * u), 0.0 * u]


def _helix(u: np.ndarray, *_: np.ndarray) -> list[np.ndarray]:
    return [np.cos(2.0 * math.tau * u), np.sin(2.0 * math.tau * u), 4.0 * u - 2.0]


def _moebius(u: np.ndarray, v: np.ndarray, _: np.ndarray) -> list[np.ndarray]:
    across = 1.0 + (v - 0.5) * np.cos(math.pi * u)
    return [across * np.cos(math.tau * u), across * np.sin(math.tau * u), (v - 0.5) * np.sin(math.pi * u)]


def _trefoil(u: np.ndarray, *_: np.ndarray) -> list[np.ndarray]:
    t = math.tau * u
    return [np.sin(t) + 2.0 * np.sin(2.0 * t), np.cos(t) - 2.0 * np.cos(2.0 * t), -np.sin(3.0 * t)]


def _saddle(u: np.ndarray, v: np.ndarray, _: np.ndarray) -> list[np.ndarray]:
    x, y = 2.0 * u - 1.0, 2.0 * v - 1.0
    return [x, y, x**2 - y**2]


SHAPES: dict[str, Callable[[np.ndarray, np.ndarray, np.ndarray], list[np.ndarray]]] = {
    "sphere": _sphere,
    "cube": _cube,
    "cylinder": _cylinder,
    "cone": _cone,
    "torus": _torus,
    "disc": _disc,
    "helix": _helix,
    "moebius": _moebius,
    "trefoil": _trefoil,
    "saddle": _saddle,
}


def clouds(rng: np.random.Generator, kinds: np.ndarray) -> np.ndarray:
    """Return points ``(clouds, POINTS, 3)`` of shapes by their numbers, about the origin, turned at random."""
    drawn = rng.random((3, len(kinds), POINTS))
    made = np.empty((len(kinds), POINTS, 3))
    for kind, shape in enumerate(SHAPES.values()):
        these = kinds == kind
        made[these] = np.stack(shape(*drawn[:, these]), -1)
    made -= made.mean(1, keepdims=True)
    made *= RADIUS / np.sqrt(np.mean(np.sum(made**2, -1), -1))[:, None, None]
    made += NOISE * rng.standard_normal(made.shape)
    return made @ Rotation.random(len(kinds), rng).as_matrix()


def neighbours(points: np.ndarray) -> np.ndarray:
    """Return the scalar products of the vectors from each point to its nearest others ``(clouds, POINTS, INPUTS)``."""
    vectors = points[:, None] - points[:, :, None]
    nearest = np.argsort(np.sum(vectors**2, -1), -1)[..., 1 : NEAR + 1]
    found = np.take_along_axis(vectors, nearest[..., None], 2)
    return (found @ np.swapaxes(found, -1, -2))[..., *np.triu_indices(NEAR)]


def batch(points: np.ndarray, kinds: np.ndarray, places: np.ndarray) -> Batch:
    """Return clouds that are moved to places ``(clouds, 3)``."""
    tokens, positions = neighbours(points), points + places[:, None]
    return Batch(torch.from_numpy(tokens).float(), torch.from_numpy(positions), torch.from_numpy(kinds))


def draw(rng: np.random.Generator) -> Batch:
    """Return clouds to train on, up to a fifth smaller or larger than the trained size."""
    kinds = rng.integers(len(SHAPES), size=BATCH)
    sizes = np.exp(rng.uniform(-0.2, 0.2, (BATCH, 1, 1)))
    return batch(sizes * clouds(rng, kinds), kinds, rng.uniform(-FAR, FAR, (BATCH, 3)))


@cache
def readings(part: str) -> dict[str, Batch]:
    """Return the clouds of validation or of a test, as many of each shape, at each of `SIZES`."""
    rng = np.random.default_rng(1 + ("validation", "test", "fresh").index(part))
    kinds = rng.permutation(np.arange(ITEMS) % len(SHAPES))
    points, places = clouds(rng, kinds), rng.uniform(-FAR, FAR, (ITEMS, 3))
    return {name: batch(size * points, kinds, places) for name, size in SIZES.items()}


def task() -> Task:
    """Return the task, whose error is in percent."""
    return Task(
        inputs=INPUTS,
        outputs=len(SHAPES),
        draw=draw,
        parts=readings,
        loss=surprise,
        error=wrong,
        primary=tuple(SIZES),
        steps=STEPS,
    )


def axial(n: int, base: float) -> rfrope.Rope:
    """Return a third of the waves along each axis."""
    return rfrope.axial(*[rfrope.geometric(n // 3, base=base)] * 3)


def spiral(n: int, base: float) -> rfrope.Rope:
    """Return magnitudes of a ladder, each along the six axes of an icosahedron."""
    return rfrope.frequencies.isotropic(rfrope.geometric(n // 6, base=base), 6, ndim=3)


def arms() -> Mapping[str, Arm]:
    """Return arms by their names."""
    made = {"none": Arm({"": None})}
    made |= {"axial": Arm(ladders(axial, BASES)), "axial, learned": Arm(ladders(axial, BASES), learned=True)}
    made["axial, polar"] = Arm(ladders(axial, BASES), polar=True)
    golden = ladders(lambda n, base: rfrope.golden_gate(n, low=1.0 / base, high=1.0, ndim=3), BASES)
    made |= {"golden gate": Arm(golden), "spiral": Arm(ladders(spiral, BASES))}
    for family, text in (("gaussian", "gaussian(scale={}, ndim=3)"), ("matern", "matern(nu=1.5, scale={}, ndim=3)")):
        found = kernels(text, SCALES, CONTEXT)
        made |= {family: Arm(found, designed=True), f"{family}, polar": Arm(found, polar=True, designed=True)}
    drawn = kernels("gaussian(scale={}, ndim=3)", SCALES, CONTEXT, "iid")
    return made | {"gaussian, drawn, polar": Arm(drawn, polar=True, designed=True)}


def run(which: tuple[str, str, float, int], short: bool = False) -> Row:
    """Train and read an arm at a setting and a rate, by a seed."""
    return run_task(task(), arms(), which, short)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line."""
    own = dict(columns=list(SIZES), form=".1f", unit="points of the share misclassified", seeds=SEEDS, pairs=PAIRS)
    return evidence(__doc__, "evidence_shapes.py", arguments, run, arms, fresh=True, **own)


if __name__ == "__main__":
    sys.exit(main())
