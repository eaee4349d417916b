"""Linear attention beside exact attention, and what designs of projections gain: ``python -m benchmarks.features``.

By default exact and linear attention, causal and in float32, one head of 64 features, 256 projections, on one thread:
how many times as long exact attention (PyTorch's ``scaled_dot_product_attention``) takes, and what memory linear
attention holds at most. Only ratios of one run are written down, since the machine may have other work.

``--gains`` measures the variance of estimates of ``exp(x . y)`` by each design over that of independent projections
(in closed form), with its standard error over sets.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before NumPy, see benchmarks.designs

import argparse
import math
import pathlib
import sys
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np

import rfrope
from benchmarks import machine
from rfrope import features

WIDTH, PROJECTIONS, SEED = 64, 256, 0
LENGTHS = tuple(2**n for n in range(9, 17))
SPEED = ("tokens", "exact over linear", "time by token over that of 512", "MB that linear holds", "MB of all pairs")
DESIGNS = ("iid", "antithetic", "stratified", "shifted", "halton", "sobol", "orthogonal")
KINDS = ("positive", "hyperbolic", "trigonometric")
SIZES, SETS, PAIRS = (0.5, 1.0, 1.5), 3000, 20
GAINS = ("design", "features", *(f"size {size}" for size in SIZES))


# -- time and memory ---------------------------------------------------------------------------------------------------


def linear(q: Any, k: Any, v: Any, w: Any) -> Any:
    """Causal attention by positive features of vectors that are divided by 64^(1/4)."""
    small = float(WIDTH) ** -0.25
    one, other = features.positive(small * q, w, stabilise="token"), features.positive(small * k, w, stabilise="all")
    return features.linear_attention(one, other, v, causal=True)


def exact(q: Any, k: Any, v: Any) -> Any:
    """Causal attention of PyTorch."""
    import torch

    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def seconds(call: Callable[..., Any], *arguments: Any) -> float:
    """Least of three calls, or of fewer where they take more than two seconds."""
    found: list[float] = []
    while len(found) < 3 and sum(found) < 2.0:
        start = time.perf_counter()
        call(*arguments)
        found.append(time.perf_counter() - start)
    return min(found)


def memory(length: int, w: np.ndarray) -> float:
    """Most bytes that linear attention of NumPy holds beside its arguments."""
    q, k, v = tokens(length)
    tracemalloc.start()
    linear(q, k, v, w)
    held = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return float(held)


def speed(lengths: tuple[int, ...] = LENGTHS) -> list[dict[str, str]]:
    """Rows of the table of times."""
    import torch

    torch.set_num_threads(1)
    rows: list[dict[str, str]] = []
    w = rfrope.sample(f"gaussian(ndim={WIDTH})", PROJECTIONS, design="orthogonal", rng=SEED, dtype="float32")
    first = 0.0
    for length in lengths:
        q, k, v = (torch.from_numpy(one)[None, None] for one in tokens(length))
        whole, ours = seconds(exact, q, k, v), seconds(linear, q, k, v, torch.from_numpy(w))
        first = first or ours / length
        values = (whole / ours, ours / length / first, memory(length, w) / 1e6, 4e-6 * length**2)
        rows.append(dict(zip(SPEED, (str(length), *(f"{one:.3g}" for one in values)), strict=True)))
        print(*rows[-1].values(), sep="  ", flush=True)
    return rows


def tokens(length: int) -> np.ndarray:
    """Queries, keys and values ``(3, length, 64)``."""
    return np.random.default_rng(SEED).standard_normal((3, length, WIDTH)).astype(np.float32)


# -- designs -----------------------------------------------------------------------------------------------------------


def gains(n_sets: int = SETS, m: int = PROJECTIONS) -> list[dict[str, str]]:
    """Rows of the table of designs: squared errors over the variance of independent projections, mean over pairs."""
    rng, rows = np.random.default_rng(SEED), []
    directions = rng.standard_normal((2, PAIRS, WIDTH))
    directions /= np.linalg.norm(directions, axis=-1, keepdims=True)
    for design in DESIGNS:
        found: dict[tuple[str, float], list[float]] = {}
        for one in range(n_sets):
            w = rfrope.sample(f"gaussian(ndim={WIDTH})", m, design=design, rng=[SEED, one])
            for size in SIZES:
                x, y = size * directions
                for kind in KINDS:
                    make = getattr(features, kind)
                    error = np.sum(make(x, w) * make(y, w), axis=-1) - np.exp(np.sum(x * y, axis=-1))
                    found.setdefault((kind, size), []).append(float(np.mean(error**2 / variance(kind, x, y, m))))
        for kind in KINDS:
            cells = (part(np.asarray(found[kind, size])) for size in SIZES)
            rows.append(dict(zip(GAINS, (design, kind, *cells), strict=True)))
            print(*rows[-1].values(), sep="  ", flush=True)
    return rows


def variance(kind: str, x: np.ndarray, y: np.ndarray, m: int) -> np.ndarray:
    """Variance with independent projections: Choromanski et al. (2021), Lemma 2."""
    near, apart = np.sum((x - y) ** 2, axis=-1), np.sum((x + y) ** 2, axis=-1)
    square, size = np.exp(2.0 * np.sum(x * y, axis=-1)), np.exp(np.sum(x * x + y * y, axis=-1))
    return {
        "positive": square * np.expm1(apart) / m,
        "hyperbolic": square * np.exp(apart) * np.expm1(-apart) ** 2 / (2.0 * m),
        "trigonometric": size * np.expm1(-near) ** 2 / (2.0 * m),
    }[kind]


def part(values: np.ndarray) -> str:
    """Mean and its standard error, as a table shows them."""
    return f"{np.mean(values):.3f} ± {np.std(values, ddof=1) / math.sqrt(values.size):.3f}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gains", action="store_true", help="measure designs of projections instead")
    parser.add_argument("--output", metavar="FILE", type=pathlib.Path, help="the table, .csv; none by default")
    options = parser.parse_args()
    header, rows = (GAINS, gains()) if options.gains else (SPEED, speed())
    if options.output:
        machine.write_rows(options.output, header, rows)  # without notes: docs/howto/features.rst includes the file
    return 0


if __name__ == "__main__":
    sys.exit(main())
