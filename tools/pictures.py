"""Pictures of README and of the pages that teach: ``python -m tools.pictures``, light and dark.

Each function here draws one picture into a figure, with the colours of a theme. What was measured is read from the
files that the experiments wrote; everything else is computed by rfrope.
"""

from __future__ import annotations

import argparse
import csv
import pathlib
from collections.abc import Callable
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from scipy.stats import t as student

import rfrope

ROOT = pathlib.Path(__file__).parents[1]
DOCS = ROOT / "docs" / "_data"


class Theme(NamedTuple):
    """Colours of a page."""

    ground: str
    ink: str
    faint: str
    blue: str
    orange: str
    green: str
    purple: str


THEMES = {
    "": Theme("#ffffff", "#1f2328", "#8c959f", "#0072b2", "#d55e00", "#00795a", "#a3477a"),
    "-dark": Theme("#0d1117", "#e6edf3", "#7d8590", "#4da8e8", "#ff8b4d", "#2fcb9c", "#e8a5cb"),
}


def draw_designed(figure: Figure, theme: Theme) -> None:
    kernel, lags = rfrope.kernel("matern", nu=1.5, scale=64.0), np.arange(0, 513, 4)
    chosen = (("iid", "independent draws"), ("stratified", "stratified draws"), ("optimised", "optimised frequencies"))
    for axes, (design, title) in zip(figure.subplots(1, 3, sharey=True), chosen, strict=True):
        heads = {"max_lag": 512} if design == "optimised" else {"heads": 400}  # an optimised set has no chance in it
        drawn = rfrope.sample(kernel, 32, rng=0, design=design, **heads).reshape(-1, 32)
        curves = np.asarray([rfrope.analysis.mean_kernel(lags, frequencies) for frequencies in drawn])
        axes.fill_between(lags, *np.quantile(curves, (0.025, 0.975), axis=0), color=theme.blue, alpha=0.2, lw=0)
        axes.plot(lags, curves[0], color=theme.blue, lw=1.6, label="mean kernel of one set")
        axes.plot(lags, kernel(lags), color=theme.orange, lw=1.6, ls="--", label="kernel asked for")
        axes.set(title=f"32 {title}", xlabel="lag (positions)", xlim=(0, 512))
    axes.legend(frameon=False, labelcolor=theme.ink)


def draw_block(figure: Figure, theme: Theme) -> None:
    panels = figure.subplots(1, 3)
    for axes, omega in zip(panels, (0.7, 0.25, 0.05), strict=True):
        circle = np.linspace(0.0, 2.0 * np.pi, 200)
        axes.plot(np.cos(circle), np.sin(circle), color=theme.faint, lw=0.8)
        for position in range(5):
            angle = 0.3 + position * omega
            style = {"arrowstyle": "-|>", "color": theme.blue, "alpha": 0.25 + 0.1875 * position, "lw": 1.6}
            axes.annotate("", (np.cos(angle), np.sin(angle)), (0, 0), arrowprops=style)
            if position in (0, 4):
                where = 1.2 * np.cos(angle), 1.2 * np.sin(angle)
                axes.annotate(f"{position}", where, ha="center", va="center", color=theme.ink)
        axes.set(xlim=(-1.4, 1.4), ylim=(-1.4, 1.4), aspect="equal", title=f"{omega:g} radians for each position")
        axes.axis("off")


def draw_pairings(figure: Figure, theme: Theme) -> None:
    panels = figure.subplots(2, 1)
    colours = (theme.blue, theme.orange, theme.green, theme.purple)
    for axes, name in zip(panels, ("half", "interleaved"), strict=True):
        for block, colour in enumerate(colours):
            first, second = (block, block + 4) if name == "half" else (2 * block, 2 * block + 1)
            for feature in (first, second):
                axes.bar(feature, 1.0, 0.9, color=colour)
                axes.annotate(f"{feature}", (feature, 0.5), ha="center", va="center", color=theme.ground, weight="bold")
            middle, reach = (first + second) / 2.0, (second - first) / 2.0
            arc = np.linspace(0.0, np.pi, 40)
            height = 1.0 + (0.3 + 0.25 * block) * np.sin(arc) if name == "half" else 1.0 + 0.5 * np.sin(arc)
            axes.plot(middle - reach * np.cos(arc), height, color=colour, lw=1.6)
        axes.set(xlim=(-0.6, 7.6), ylim=(0, 2.2))
        axes.set_title(f'pairing="{name}"', loc="left", y=0.86)
        axes.axis("off")


def draw_lag(figure: Figure, theme: Theme) -> None:
    lags = np.arange(0, 129)
    frequencies = rfrope.geometric(32)
    left, right = figure.subplots(1, 2)
    for block, colour in ((0, theme.faint), (8, theme.orange), (16, theme.green)):
        cosine = np.cos(lags[:65] * frequencies[block])
        left.plot(lags[:65], cosine, color=colour, lw=1.0 if block == 0 else 1.6)
        left.annotate(f"block {block}", (66, cosine[-1]), color=colour, va="center", annotation_clip=False)
    left.set(xlabel="distance (positions)", title="cosine of one block", xlim=(0, 64))
    right.plot(lags, rfrope.analysis.mean_kernel(lags, frequencies), color=theme.blue, lw=2)
    right.axhline(0.0, color=theme.faint, lw=0.8)
    right.set(xlabel="distance (positions)", title="mean of all 32 blocks", ylim=(-0.1, 1.02))


def draw_kernels(figure: Figure, theme: Theme) -> None:
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    lags = np.geomspace(1.0, 4096.0, 200)
    for text, name, colour in (
        ("gaussian(scale=32)", "Gaussian, scale 32", theme.blue),
        ("matern(nu=1.5, scale=32)", "Matérn 3/2, scale 32", theme.orange),
    ):
        left.semilogx(lags, rfrope.kernels.parse(text)(lags), color=colour, lw=1.8, label=name)
    ladder = rfrope.analysis.mean_kernel(lags, rfrope.geometric(32))
    left.semilogx(lags, ladder, color=theme.ink, lw=1.8, ls="--", label="RoPE, base 10000")
    left.legend(frameon=False, labelcolor=theme.ink)
    left.set(xlabel="lag (positions)", ylabel="mean score of equal content")
    arms = {
        "isotropic matern, sobol": "Matérn",
        "isotropic gaussian, sobol": "Gaussian",
        "mixed, learned": "mixed, learned",
        "golden gate": "golden gate",
    }
    draw_differences(right, theme, "train_digits", "trained size", "axial", arms)
    right.set(title="digits, trained size", xlabel="points more than axial RoPE")


def draw_designs(figure: Figure, theme: Theme) -> None:
    rows = read_rows("designs_error")
    axes = figure.subplots()
    colours = (theme.orange, theme.green, theme.purple, theme.blue)
    for design, colour in zip(("iid", "stratified", "balanced", "optimised"), colours, strict=True):
        chosen = [one for one in rows if (one["kernel"], one["max lag"]) == ("gaussian(scale=32.0)", "256")]
        points = [(int(one["blocks"]), float(one["rms"])) for one in chosen if one["design"] == design]
        shown = [(blocks, rms) for blocks, rms in points if blocks <= 64 and rms > 1e-5]
        axes.loglog(*zip(*shown, strict=True), "o-", color=colour, ms=4, label=design)
    axes.legend(frameon=False, labelcolor=theme.ink)
    axes.set(xlabel="blocks (half the width of a head)", ylabel="rms error of the mean kernel")
    axes.set_xticks([8, 16, 32, 64], ["8", "16", "32", "64"], minor=False)
    axes.set_xticks([], minor=True)


def draw_scales(figure: Figure, theme: Theme) -> None:
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    lags = np.geomspace(1.0, 4096.0, 200)
    for scale in (4.0, 16.0, 64.0, 256.0):
        left.semilogx(lags, rfrope.kernel("gaussian", scale=scale)(lags), color=theme.green, lw=1.2)
        left.annotate(f"{scale:g}", (1.25 * scale, 0.5), color=theme.green)
    left.semilogx(lags, rfrope.kernel("gaussian", scale=32.0)(lags), color=theme.orange, lw=2.2)
    left.set(xlabel="lag (positions)", ylabel="kernel", title="one scale, or a scale for each head")
    arms = {
        "gaussian, iid": "one scale",
        "gaussian, a scale for each head": "a scale\nfor each head",
        "log_uniform, iid": "all scales\n(log-uniform)",
        "learned from RoPE": "learned",
    }
    draw_differences(right, theme, "train_lm", "within", "RoPE", arms)
    right.set(title="text, trained length", xlabel="bits more than RoPE")


def draw_extension(figure: Figure, theme: Theme) -> None:
    rows = read_rows("extend_context")
    parts = [name for name in rows[0] if name.startswith("from ")]
    loss = {(one["encoding"], one["seed"]): np.asarray([float(one[part]) for part in parts]) for one in rows}
    axes = figure.subplots()
    starts = np.asarray([int(part.split()[1]) for part in parts]) + 512
    texts = sorted({seed for _, seed in loss})
    methods = (("ntk", theme.orange), ("llama3", theme.green), ("optimised", theme.purple))
    for method, colour in methods:
        differences = np.asarray([loss[method, text] - loss["yarn", text] for text in texts])
        axes.plot(starts, differences.mean(axis=0), color=colour, lw=1.8, label=method)
        axes.fill_between(starts, differences.min(axis=0), differences.max(axis=0), color=colour, alpha=0.15, lw=0)
    axes.axhline(0.0, color=theme.ink, lw=1.0)
    axes.axvline(8192, color=theme.faint, lw=1.0, ls=":")
    axes.annotate("trained context", (8100, axes.get_ylim()[1]), ha="right", va="top", color=theme.faint)
    axes.legend(frameon=False, labelcolor=theme.ink, loc="upper left")
    axes.set(xlabel="position in the text", ylabel="nats more than YaRN")


def draw_differences(axes: Any, theme: Theme, name: str, column: str, base: str, arms: dict[str, str]) -> None:
    """Draw mean differences to a baseline, paired by seed, with intervals of 95 % of Student's distribution."""
    rows = read_rows(name)
    found = {(one["encoding"], one["seed"]): float(one[column]) for one in rows}
    seeds = sorted({one["seed"] for one in rows})
    for row, arm in enumerate(arms):
        values = np.asarray([found[arm, seed] - found[base, seed] for seed in seeds])
        reach = float(student.ppf(0.975, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values)))
        axes.errorbar(values.mean(), -row, xerr=reach, fmt="o", color=theme.blue, ms=5, capsize=3)
    axes.axvline(0.0, color=theme.ink, lw=0.8)
    axes.set_yticks([-row for row in range(len(arms))], list(arms.values()))
    axes.set_ylim(-len(arms) + 0.5, 0.5)


def read_rows(name: str) -> list[dict[str, str]]:
    """Return the rows of a table that a command wrote."""
    folder = DOCS if name.startswith("designs") else ROOT / "experiments" / "results"
    lines = (folder / f"{name}.csv").read_text("utf-8").splitlines()
    return list(csv.DictReader(line for line in lines if not line.startswith("#")))


PICTURES: dict[str, tuple[Callable[[Figure, Theme], None], tuple[float, float]]] = {
    "designed": (draw_designed, (9.0, 2.8)),
    "block": (draw_block, (7.2, 2.6)),
    "pairings": (draw_pairings, (5.6, 2.8)),
    "lag": (draw_lag, (7.2, 2.8)),
    "kernels": (draw_kernels, (8.0, 3.0)),
    "designs": (draw_designs, (5.6, 3.2)),
    "scales": (draw_scales, (8.0, 3.0)),
    "extension": (draw_extension, (6.4, 3.2)),
}


def write(folder: pathlib.Path, names: list[str]) -> None:
    """Write pictures as SVG, each in both themes."""
    for name in names:
        draw, size = PICTURES[name]
        for suffix, theme in THEMES.items():
            keys = ("text.color", "axes.edgecolor", "axes.labelcolor", "axes.titlecolor", "xtick.color", "ytick.color")
            style = dict.fromkeys(keys, theme.ink) | {"svg.hashsalt": name, "axes.titlesize": "medium", "font.size": 11}
            style |= {"axes.spines.top": False, "axes.spines.right": False}
            with mpl.rc_context(style):
                figure = Figure(figsize=size, layout="constrained")
                draw(figure, theme)
                figure.savefig(folder / f"{name}{suffix}.svg", transparent=True, metadata={"Date": None})


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help=f"which (all): {', '.join(PICTURES)}")
    parser.add_argument("--folder", type=pathlib.Path, default=DOCS / "pictures")
    options = parser.parse_args(arguments)
    unknown = set(options.names) - PICTURES.keys()
    if unknown:
        parser.error(f"no picture {sorted(unknown)}; there are {', '.join(PICTURES)}")
    write(options.folder, options.names or list(PICTURES))


if __name__ == "__main__":
    main()
