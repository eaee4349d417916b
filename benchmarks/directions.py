"""Mean kernels against the direction of the lag: ``python -m benchmarks.directions`` writes ``directions_table.inc``.

Sets of 16 and 32 blocks in two and three axes with frequencies from 1 down to 0.1 (the axial ones to 0.01 for each
axis, as published): root mean square dependence on direction over lags of a normal law, the bound for the same
magnitudes, and the largest dependence over lags of length 1 to 16. Then sets of one magnitude. Nothing is drawn, and
nothing is timed.
"""

from __future__ import annotations

import argparse
import math
import pathlib
from collections.abc import Iterator

import numpy as np

import rfrope
from rfrope.designs import directional_bound, directional_error
from rfrope.frequencies import isotropic

LENGTHS = np.linspace(1.0, 16.0, 61)
SCALE = 16.0 / math.sqrt(6.0)  # standard deviation of the difference of two places on a side of 16
PLACE = pathlib.Path(__file__).parents[1] / "docs" / "_data" / "directions_table.inc"


def dealt(n_blocks: int, directions: np.ndarray) -> np.ndarray:
    """One ladder whose blocks go round some directions."""
    ladder = np.asarray(rfrope.geometric(n_blocks, base=10.0))
    return ladder[:, None] * directions[np.arange(n_blocks) % len(directions)]


def sets(n_blocks: int) -> Iterator[tuple[str, int, np.ndarray]]:
    """Names, numbers of axes and frequencies."""
    half = rfrope.geometric(n_blocks // 2, base=100.0)
    yield "axial", 2, rfrope.axial(half, half).frequencies
    yield "RoPE-ViT mixed, at the start", 2, rfrope.mixed(n_blocks, [0.3]).frequencies[0]
    for n in (4, 8):
        angles = math.pi * np.arange(n) / n
        yield f"Spiral RoPE, {n} directions", 2, dealt(n_blocks, np.stack([np.cos(angles), np.sin(angles)], axis=1))
    yield "golden gate", 2, rfrope.golden_gate(n_blocks, low=0.1, high=1.0).frequencies
    for n in (4, 8, 16):
        ladder = rfrope.geometric(n_blocks // n, base=10.0)
        yield f"isotropic, {n} directions", 2, isotropic(ladder, n).frequencies
    yield "golden gate", 3, rfrope.golden_gate(n_blocks, low=0.1, high=1.0, ndim=3).frequencies
    third = rfrope.geometric(n_blocks // 3, base=100.0)
    yield f"axial, {n_blocks // 3} blocks an axis", 3, rfrope.axial(third, third, third).frequencies
    for n in (8, 16):
        yield (
            f"isotropic, {n} directions",
            3,
            isotropic(rfrope.geometric(n_blocks // n, base=10.0), n, ndim=3).frequencies,
        )


def scheme_rows() -> Iterator[tuple[str, ...]]:
    for ndim in (2, 3):
        for (name, k, small), (_, _, large) in zip(sets(16), sets(32), strict=True):
            if k == ndim:
                name = "axial, a third of the blocks each" if name.startswith("axial,") else name
                cells = []
                for omega in (small, large):
                    rms, bound = directional_bound(omega, SCALE)
                    largest = np.max(directional_error(omega, LENGTHS).sup)
                    cells += [f"{rms:.4f}", f"{bound:.4f}", f"{largest:.3f}"]
                yield (str(ndim), name, *cells)
        cells = [cell for n_blocks in (16, 32) for cell in independent(n_blocks, ndim)]
        yield (str(ndim), "independent directions, expected", *cells)


def independent(n_blocks: int, ndim: int) -> tuple[str, str, str]:
    """Square root of the expected mean square of independent directions: pairs of blocks have the mean 0."""
    omega = np.asarray(rfrope.geometric(n_blocks, base=10.0))[:, None] * np.eye(ndim)[0]
    alone = [float(directional_bound(one[None], SCALE).rms) for one in omega]
    expected = math.sqrt(np.mean(np.square(alone)) / n_blocks)
    return f"{expected:.4f}", f"{directional_bound(omega, SCALE).bound:.4f}", "n/a"


def one_magnitude_rows() -> Iterator[tuple[str, ...]]:
    for ndim, counts, scales in ((2, (6, 16, 32), (2.0, 4.0, 8.0, 16.0)), (3, (3, 4, 6, 16, 32), (1.0, 2.0, 4.0, 8.0))):
        for n in counts:
            omega = isotropic([1.0], n, ndim=ndim).frequencies
            golden = rfrope.golden_gate(n, low=1.0, high=1.0, ndim=ndim).frequencies
            for scale in scales:
                rms, bound = directional_bound(omega, scale)
                if bound > 1e-5:
                    theirs = directional_bound(golden, scale).rms
                    yield (str(ndim), str(n), f"{scale:g}", f"{theirs:.5f}", f"{rms:.5f}", f"{bound:.5f}")


def table(head: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> list[str]:
    lines = [".. list-table::", "   :header-rows: 1", ""]
    for row in (head, *rows):
        lines += [f"   {'*' if not i else ' '} - {cell}" for i, cell in enumerate(row)]
    return [*lines, ""]


def text() -> str:
    """Both tables."""
    schemes = ("Axes", "Set", "D = 16: rms", "bound", "largest", "D = 32: rms", "bound", "largest")
    bounds = ("Axes", "D", "Magnitude times scale", "Golden gate", "Isotropic", "Bound")
    lines = [".. made by python -m benchmarks.directions", "", *table(schemes, scheme_rows())]
    lines += ["Sets of one magnitude, root mean square over lags of a normal law:", ""]
    return "\n".join([*lines, *table(bounds, one_magnitude_rows())])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=pathlib.Path, default=PLACE)
    parser.parse_args().output.write_text(text(), encoding="utf-8")
