"""How cost grows: ``python -m benchmarks.growth`` measures it over three decades and draws it, log by log.

The measured points are written beside the figure, as CSV; ``--from FILE`` draws them again without measuring.
"""

from __future__ import annotations

import argparse
import csv
import gc
import math
import pathlib
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

import rfrope
from benchmarks import machine
from benchmarks.timing import Entry, measure

KERNEL = "gaussian(scale=32)"
FITTED = 10.0  # the slope is that of the points within this factor of the largest


@dataclass(frozen=True)
class Growth:
    """Time of a function against one size; `fixed` says what the other sizes are."""

    name: str
    against: str
    fixed: str
    sizes: tuple[int, ...]
    prepare: Callable[[int], Callable[[], Any]]


def _powers(low: int, high: int) -> tuple[int, ...]:
    return tuple(2**power for power in range(low, high + 1))


def _rotate(heads: int, tokens: int) -> Callable[[], Any]:
    x = np.random.default_rng(0).standard_normal((1, heads, tokens, 128), dtype=np.float32)
    out, positions, frequencies = np.zeros_like(x), np.arange(tokens), rfrope.geometric(64)
    return lambda: rfrope.rotate(x, positions, frequencies, out=out)


def _scores(trials: int, lags: int, blocks: int) -> Callable[[], Any]:
    q, k = np.random.default_rng(0).standard_normal((2, 2 * blocks))
    delta = np.arange(1.0, lags + 1.0)
    return lambda: rfrope.estimate_scores(q, k, delta, KERNEL, n_trials=trials, rng=0)


def _kernel(samples: int, lags: int) -> Callable[[], Any]:
    delta = np.arange(float(lags))
    return lambda: rfrope.estimate_kernel(delta, KERNEL, n_samples=samples, rng=0)


GROWTHS = (
    Growth("rotate", "tokens", "32 heads of 128 float32 features, out=", _powers(3, 14), lambda n: _rotate(32, n)),
    Growth("rotate", "heads", "256 tokens of 128 float32 features, out=", _powers(0, 10), lambda n: _rotate(n, 256)),
    Growth("estimate_scores", "trials", "64 blocks, 1 lag", _powers(7, 18), lambda n: _scores(n, 1, 64)),
    Growth("estimate_scores", "lags", "64 blocks, 2048 trials", _powers(0, 10), lambda n: _scores(2**11, n, 64)),
    Growth("estimate_scores", "blocks", "4096 trials, 1 lag", _powers(1, 12), lambda n: _scores(2**12, 1, n)),
    Growth("estimate_kernel", "samples", "4096 lags", _powers(10, 21), lambda n: _kernel(n, 2**12)),
    Growth("estimate_kernel", "lags", "262144 samples", _powers(7, 18), lambda n: _kernel(2**18, n)),
)
HEADER = ("function", "against", "fixed", "size", "least seconds", "median seconds")
Row = dict[str, str]


def points(growth: Growth, rounds: int, most_seconds: float, thin: int = 1) -> list[Row]:
    """Measure all sizes of one growth in turn; `thin` keeps every so many of them, and both ends."""
    sizes = sorted({*growth.sizes[::thin], growth.sizes[-1]})
    entries = [Entry(str(size), growth.prepare(size)) for size in sizes]
    measure(entries, rounds, most_seconds)
    return [
        dict(
            zip(
                HEADER,
                (growth.name, growth.against, growth.fixed, entry.name, f"{entry.least:.4g}", f"{entry.median:.4g}"),
                strict=True,
            )
        )
        for entry in entries
    ]


def slope(sizes: np.ndarray, seconds: np.ndarray) -> float:
    """Exponent of the growth at the large end: the slope of the fitted line, log by log."""
    end = sizes >= sizes[-1] / FITTED
    return float(np.polyfit(np.log(sizes[end]), np.log(seconds[end]), 1)[0])


def series(rows: Iterable[Row]) -> dict[tuple[str, str, str], np.ndarray]:
    """Group rows by panel: columns are sizes, least and median seconds."""
    groups: dict[tuple[str, str, str], list[list[float]]] = {}
    for row in rows:
        groups.setdefault((row[HEADER[0]], row[HEADER[1]], row[HEADER[2]]), []).append(
            [float(row[h]) for h in HEADER[3:]]
        )
    return {key: np.asarray(sorted(values)).T for key, values in groups.items()}


def table(rows: list[Row]) -> list[str]:
    """Return one line for each panel: what grows, between which sizes, and how fast at the end."""
    lines = []
    for (name, against, fixed), (sizes, least, _) in series(rows).items():
        decades = math.log10(sizes[-1] / sizes[0])
        lines.append(
            f"{name} against {against} ({fixed}): {sizes[0]:.0f} to {sizes[-1]:.0f}, {decades:.1f} decades, "
            f"{least[0]:.2g} s to {least[-1]:.2g} s, exponent {slope(sizes, least):.2f} at the end"
        )
    return lines


def draw(rows: list[Row], path: pathlib.Path, note: str) -> None:
    """Draw all panels; the file depends on the rows and the note alone."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    groups = series(rows)
    settings = {"svg.hashsalt": "rfrope", "svg.fonttype": "none", "font.size": 9.0}
    with pyplot.rc_context(settings):
        figure, axes = pyplot.subplots(-(-len(groups) // 2), 2, figsize=(8.4, 10.5), squeeze=False)
        for axis in axes.flat[len(groups) :]:
            axis.set_visible(False)
        for axis, ((name, against, fixed), (sizes, least, median)) in zip(axes.flat, groups.items(), strict=False):
            exponent = slope(sizes, least)
            end = sizes >= sizes[-1] / FITTED
            fit = np.polyfit(np.log(sizes[end]), np.log(least[end]), 1)
            axis.loglog(sizes, least[-1] * sizes / sizes[-1], ":", color="0.6", label="linear")
            axis.loglog(sizes[end], np.exp(np.polyval(fit, np.log(sizes[end]))), "-", color="C1", linewidth=3.0,
                        alpha=0.5, label=f"exponent {exponent:.2f}")  # fmt: skip
            axis.loglog(sizes, median, "-", color="C0", linewidth=0.6)
            axis.loglog(sizes, least, "o", color="C0", markersize=3.5, label="least time")
            axis.set(xlabel=against, ylabel="seconds", title=f"{name}: {fixed}")
            axis.title.set_fontsize(9.0)
            axis.legend(frameon=False, fontsize=8.0)
            axis.grid(alpha=0.25)
        figure.text(0.01, 0.003, note.replace("; ", "\n", 1), fontsize=7.0, color="0.35")
        figure.tight_layout(rect=(0.0, 0.03, 1.0, 1.0))
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
        pyplot.close(figure)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth", description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="every third size, fewer rounds")
    parser.add_argument("--output", metavar="FILE", type=pathlib.Path, help="the figure, .svg or .png; none by default")
    parser.add_argument("--from", metavar="CSV", dest="source", type=pathlib.Path, help="draw these points again")
    options = parser.parse_args(arguments)
    rows: list[Row]
    if options.source:
        lines = options.source.read_text("utf-8").splitlines()
        note = lines[0].removeprefix("# ")
        rows = list(csv.DictReader(lines[1:]))
    else:
        rows, note = [], "; ".join([machine.command("benchmarks.growth"), *machine.description()[::2]])
        for growth in GROWTHS:
            rows += points(growth, *((2, 0.5, 3) if options.quick else (7, 3.0, 1)))
            gc.collect()
            print(*table(rows)[-1:], flush=True)
    if options.source:
        print(*table(rows), sep="\n")
    if options.output:
        draw(rows, options.output, note)
        if not options.source:
            with options.output.with_suffix(".csv").open("w", encoding="utf-8", newline="") as file:
                file.write(f"# {note}\n")
                writer = csv.DictWriter(file, HEADER, lineterminator="\n")
                writer.writeheader()
                writer.writerows(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
