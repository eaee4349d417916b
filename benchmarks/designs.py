"""Error of the mean kernel against the number of blocks: ``python -m benchmarks.designs`` takes it for every design.

Errors are ``abs(Phi_D - Phi)`` over whole lags, as root mean square and as largest one, the mean over the sets of a
randomised design. Everything is seeded: the same command writes the same figures, points (.csv) and table (.inc).
"""

from __future__ import annotations

import os

os.environ.setdefault(
    "OPENBLAS_NUM_THREADS", "1"
)  # before NumPy: where others compute too, its threads wait for each other

import argparse
import pathlib
import sys
from collections.abc import Iterable

import numpy as np

import rfrope
from benchmarks import machine
from rfrope import kernels
from rfrope.designs.errors import lags_within
from rfrope.designs.sampling import RANDOMISED, check_design
from rfrope.kernels import Kernel

SIZES = (8, 16, 32, 48, 64, 128, 256)
TICKS = (8, 16, 32, 64, 128, 256)
TABLED = 64  # blocks of the table
N_SETS, SEED = 200, 0
MAX_LAGS = {1: 256, 2: 16, 3: 6}  # on every axis
COLUMNS = rfrope.designs.names()
SEEDED = (*RANDOMISED, "balanced")
RANDOMISED = tuple(name for name in SEEDED if name != "balanced")
HEADER = ("kernel", "max lag", "design", "blocks", "rms", "sup")
Row = dict[str, str]


def cases() -> list[Kernel]:
    """One of each registered family in one axis, two of the algebra, and some in two axes and three."""
    families = [kernels.parse(record.example) for record in kernels.records()]
    near, far = kernels.parse("gaussian(scale=8)"), kernels.parse("exponential(scale=64)")
    several = ("gaussian(scale=4, ndim=2)", "matern(nu=1.5, scale=4, ndim=2)", "sinc(bandwidth=0.3, ndim=2)",
               "gaussian(scale=2, ndim=3)")  # fmt: skip
    return [*families, kernels.mixture([0.7, 0.3], [near, far]), near * far, *map(kernels.parse, several)]


def lags_of(kernel: Kernel) -> np.ndarray:
    """All whole lags of the range, one of each pair +-lag ``(lags, k)``."""
    return lags_within((MAX_LAGS[kernel.ndim],) * kernel.ndim, 2**20)[0]


def sets_of(kernel: Kernel, design: str, n_blocks: int, n_sets: int) -> np.ndarray:
    """Sets ``(sets, D, k)``; a deterministic design has one."""
    options = {"max_lag": MAX_LAGS[kernel.ndim]} if design in ("balanced", "optimised") else {}
    heads = 1 if design not in SEEDED else n_sets if design in RANDOMISED else max(1, n_sets // 5)  # 0.1 s a set
    return rfrope.sample(kernel, n_blocks, rng=SEED, design=design, heads=heads, **options)


def errors(kernel: Kernel, sets: np.ndarray, lags: np.ndarray) -> tuple[float, float]:
    """Root mean square and largest error of the mean kernel, each the mean over the sets."""
    phi = kernel.phi(kernel.restore_shape(lags))
    found = np.abs(rfrope.analysis.mean_kernel(lags, sets) - phi)
    return float(np.mean(np.sqrt(np.mean(found**2, axis=-1)))), float(np.mean(np.max(found, axis=-1)))


def rows(kernel: Kernel, sizes: Iterable[int] = SIZES, n_sets: int = N_SETS) -> list[Row]:
    """Errors of all designs that the kernel allows."""
    lags, found = lags_of(kernel), []
    for design in COLUMNS:
        try:
            check_design(design, kernel)
        except ValueError:
            continue
        for n_blocks in sizes:
            rms, sup = errors(kernel, sets_of(kernel, design, n_blocks, n_sets), lags)
            values = (repr(kernel), str(MAX_LAGS[kernel.ndim]), design, str(n_blocks), f"{rms:.3g}", f"{sup:.3g}")
            found.append(dict(zip(HEADER, values, strict=True)))
    return found


def panels(table: list[Row]) -> dict[str, dict[str, np.ndarray]]:
    """Blocks, rms and sup of each design, for each kernel."""
    grouped: dict[str, dict[str, list[list[float]]]] = {}
    for row in table:
        designs = grouped.setdefault(row["kernel"], {})
        designs.setdefault(row["design"], []).append([float(row[name]) for name in HEADER[3:]])
    return {k: {d: np.asarray(v).T for d, v in designs.items()} for k, designs in grouped.items()}


def include(table: list[Row], note: str) -> str:
    """Return a list-table of reStructuredText: root mean square / largest error at 64 blocks, in thousandths."""
    lines = [f".. Made by: {note}", "", ".. list-table::", "   :header-rows: 1", "", "   * - kernel"]
    lines += [f"     - {design}" for design in COLUMNS]
    for kernel, designs in panels(table).items():
        lines.append(f"   * - ``{kernel}``")
        for design in COLUMNS:
            if design not in designs:
                lines.append("     -")
                continue
            blocks, rms, sup = designs[design]
            (at,) = np.nonzero(blocks == TABLED)[0]
            lines.append(f"     - {1e3 * rms[at]:.3g} / {1e3 * sup[at]:.3g}")
    return "\n".join(lines) + "\n"


def draw(table: list[Row], path: pathlib.Path, note: str) -> None:
    """Draw root mean square errors against the number of blocks, log by log, a panel for each kernel."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    grouped = panels(table)
    with pyplot.rc_context({"svg.hashsalt": "rfrope", "svg.fonttype": "none", "font.size": 8.0}):
        figure, axes = pyplot.subplots(
            -(-len(grouped) // 3), 3, figsize=(9.0, 2.5 * -(-len(grouped) // 3)), squeeze=False
        )
        for axis in axes.flat[len(grouped) :]:
            axis.set_visible(False)
        for axis, (kernel, designs) in zip(axes.flat, grouped.items(), strict=False):
            for design, (blocks, rms, _) in designs.items():
                style = "-" if design in SEEDED else "--"
                axis.loglog(blocks, np.maximum(rms, 1e-6), style, marker="o", markersize=2.5, linewidth=1.0,
                            color=f"C{COLUMNS.index(design)}", label=design)  # fmt: skip
            axis.set_title(kernel if len(kernel) < 45 else kernel.replace("[gaussian", "\n[gaussian"), fontsize=7.0)
            axis.set_xticks(TICKS, [str(size) for size in TICKS], minor=False)
            axis.tick_params(axis="x", which="minor", bottom=False)
            axis.grid(alpha=0.25)
        handles = {h: text for one in axes.flat for h, text in [*zip(*one.get_legend_handles_labels(), strict=True)]}
        legend = {text: h for h, text in handles.items()}
        figure.legend([legend[d] for d in COLUMNS if d in legend], [d for d in COLUMNS if d in legend], ncols=8,
                      loc="upper center", frameon=False)  # fmt: skip
        figure.supxlabel("blocks D")
        figure.supylabel("root mean square error of the mean kernel")
        figure.tight_layout(rect=(0.0, 0.0, 1.0, 0.98))
        figure.text(0.005, 0.002, note, fontsize=6.0, color="0.35")
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
        pyplot.close(figure)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.designs", description=__doc__.partition("\n")[0])
    parser.add_argument("--output", metavar="FILE", type=pathlib.Path, help="the figure; .csv and .inc go beside it")
    options = parser.parse_args(arguments)
    note, table = machine.command("benchmarks.designs"), []
    for kernel in cases():
        found = rows(kernel)
        table += found
        at = {row["design"]: row["rms"] for row in found if row["blocks"] == str(TABLED)}
        print(kernel, *(f"{design} {rms}" for design, rms in at.items()), sep="  ", flush=True)
    if options.output:
        draw(table, options.output, note)
        options.output.with_suffix(".inc").write_text(include(table, note), "utf-8")
        machine.write_rows(options.output.with_suffix(".csv"), HEADER, table, note)
    return 0


if __name__ == "__main__":
    sys.exit(main())
