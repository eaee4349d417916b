"""Runs of arms at rates that validation chose, and what may be said of their differences.

The protocol is polar.rst: rates are chosen for every arm alike, with a seed apart and within the
trained length; the best arm of each side is chosen beyond it, with seeds apart; neither has seen the text of the test.
"""

from __future__ import annotations

import argparse
import math
import pathlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
from arms import ARMS, BASELINES, LAGS
from scipy.stats import t as student
from trained import LAYERS, Row, command, complete, include, read, show, stated

RATES = (0.008, 0.016)  # tried first; then twice and half the best, until a best one lies between two others
LEAST, MOST = 0.001, 0.064  # no rate beyond these is tried
SEEDS = 5
APART = (100, 101)  # seeds for what is chosen: the rate with the first, the arm with all
KEYS = ("encoding", "rate", "seed")
HEADS = ("first kernels", "kernels", "bias", "blocks", "magnitudes")  # columns of `arms.written`
SHOWN_LAGS = (1, 16, 128, 1024)
PANELS = {  # of a figure, with the arms in each, in the order of their colours
    "no turn, or a window": (
        "none", "none, polar contents", "ALiBi", "RoPE, window", "RoPE with window, and none",
    ),
    "RoPE": ("RoPE", "RoPE, twice the width", "RoPE, 8 heads", "FoPE"),
    "PoPE": ("PoPE", "PoPE, published scale", "PoPE, 8 heads", "PoPE and none"),
    "polar: kernels": (
        "polar, gaussian ladder", "polar, cauchy ladder", "polar, matern ladder", "polar, log_uniform",
        "polar, gaussian and constant", "polar, gaussian of one scale",
    ),
    "polar: designs, bias and heads": (
        "polar, gaussian ladder", "polar, gaussian ladder, iid", "polar, gaussian ladder, no bias",
        "polar, gaussian ladder, 4 heads", "polar, gaussian ladder, 8 heads", "polar, cauchy ladder, iid",
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Contrast:
    """A mean difference over seeds and texts, both of which are a sample.

    Attributes
    ----------
    mean, error : float
        The mean and its standard error.
    freedom : float
        Degrees of freedom of the error.
    """

    mean: float
    error: float
    freedom: float

    @property
    def p(self) -> float:
        """Chance of a mean at least so far from 0 where there is none."""
        if not self.error:
            return float(not self.mean)
        return float(2.0 * student.sf(abs(self.mean) / self.error, self.freedom))

    @property
    def interval(self) -> tuple[float, float]:
        """Where the mean lies with a confidence of 95 %."""
        return self.between(0.95)

    def between(self, confidence: float) -> tuple[float, float]:
        """Return where the mean lies with a confidence."""
        reach = float(student.ppf(0.5 + 0.5 * confidence, self.freedom)) * self.error
        return self.mean - reach, self.mean + reach

    @property
    def visible(self) -> float:
        """The difference that a test at 5 % would see four times in five, with this error."""
        return float(student.ppf(0.975, self.freedom) + student.ppf(0.8, self.freedom)) * self.error

    def __str__(self) -> str:
        low, high = self.interval
        return f"{self.mean:+.4f} ± {self.error:.4f} (95 %: {low:+.4f} to {high:+.4f}; p = {self.p:.2g})"


def contrast(differences: np.ndarray) -> Contrast:
    """Return the mean of paired differences and its error, over seeds or over seeds and texts.

    Parameters
    ----------
    differences : ndarray, (seeds,) or (seeds, texts)
        With texts both are random, and crossed: ``d_st = mean + a_s + b_t + e_st``. The variance of the mean is then
        estimated by ``(M_s + M_t - M_e) / (seeds texts)`` of the mean squares, but not below what seeds alone or texts
        alone give, with Satterthwaite's degrees of freedom.
    """
    d = np.asarray(differences, np.float64)
    if d.ndim == 1 or d.shape[1] == 1:
        d = d.reshape(len(d))
        return Contrast(float(d.mean()), float(d.std(ddof=1) / math.sqrt(len(d))), len(d) - 1.0)
    (seeds, texts), mean = d.shape, d.mean()
    by_seed, by_text = d.mean(1) - mean, d.mean(0) - mean
    rest = d - mean - by_seed[:, None] - by_text
    free = np.asarray([seeds - 1.0, texts - 1.0, (seeds - 1.0) * (texts - 1.0)])
    squares = np.asarray([texts * np.sum(by_seed**2), seeds * np.sum(by_text**2), np.sum(rest**2)]) / free
    total = squares[0] + squares[1] - squares[2]
    if total <= max(squares[:2]):  # one of the two adds nothing
        larger = int(np.argmax(squares[:2]))
        return Contrast(float(mean), math.sqrt(squares[larger] / d.size), float(free[larger]))
    return Contrast(float(mean), math.sqrt(total / d.size), float(total**2 / np.sum(squares**2 / free)))


def holm(chances: Iterable[float]) -> np.ndarray:
    """Return chances corrected for their number (Holm, 1979): the chance that any is so small where nothing differs."""
    p = np.asarray(list(chances), np.float64)
    order = np.argsort(p, kind="stable")
    corrected = np.empty_like(p)
    corrected[order] = np.minimum(1.0, np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)))
    return corrected


def losses_by_rate(rows: Iterable[Row]) -> dict[str, dict[float, float]]:
    """Return the loss of each arm on validation within the trained length, at each rate, by the first seed."""
    found: dict[str, dict[float, float]] = {}
    for row in rows:
        if row["seed"] == str(APART[0]):
            found.setdefault(row["encoding"], {})[float(row["rate"])] = float(row["validation within"])
    return found


def further(losses: Mapping[float, float]) -> list[float]:
    """Return the rates beside the best one that were not tried, twice and half of it, within `LEAST` and `MOST`."""
    best = min(losses, key=lambda rate: (losses[rate], rate))
    return [rate for rate in (best / 2.0, best * 2.0) if rate not in losses and LEAST <= rate <= MOST]


def tune(
    path: pathlib.Path,
    arms: list[str],
    seeds: int,
    work: Callable[[tuple[str, float, int]], Row],
    workers: int,
) -> list[Row]:
    """Return the rows of arms at their best rates: of the seeds apart, with validation alone, and of the others.

    The file has all that was tried, too; the same call goes on after an interruption.
    """
    tried: dict[str, list[float]] = {arm: list(RATES) for arm in arms}
    while any(tried.values()):
        runs = [(arm, rate, APART[0]) for arm in arms for rate in tried[arm]]
        complete(path, runs, work, workers, KEYS)
        losses = losses_by_rate(read(path))
        tried = {arm: further(losses[arm]) for arm in arms}
    best = {arm: min(losses[arm], key=lambda rate: (losses[arm][rate], rate)) for arm in arms}
    runs = [(arm, best[arm], seed) for seed in (*APART, *range(seeds)) for arm in arms]
    return complete(path, runs, work, workers, KEYS)


def best_arm(rows: list[Row], names: Iterable[str], column: str = "validation beyond") -> str | None:
    """Return the arm with the lowest mean over the seeds apart: of the loss beyond the trained length, or a column."""
    losses = {
        name: [float(row[column]) for row in rows if row["encoding"] == name and int(row["seed"]) in APART]
        for name in names
    }
    return min((name for name in losses if losses[name]), key=lambda name: np.mean(losses[name]), default=None)


def values_of(rows: list[Row], name: str, columns: list[str]) -> np.ndarray:
    """Return columns of an arm ``(seeds, columns)``, seeds in their order and those apart left out."""
    own = sorted((int(row["seed"]), row) for row in rows if row["encoding"] == name and int(row["seed"]) not in APART)
    return np.asarray([[float(row[column]) for column in columns] for _, row in own])


def compare(rows: list[Row], parts: list[str]) -> tuple[list[Row], Contrast | None]:
    """Return a table of all arms against the best baseline, and the primary contrast, polar less baseline.

    Parameters
    ----------
    rows : list of dict
        Those of `tune`; "document 0", "document 1", ... are losses of each beyond the trained length.
    parts : list of str
        Columns for the table.
    """
    names = list(dict.fromkeys(row["encoding"] for row in rows))
    baseline, polar = (best_arm(rows, (n for n in names if (n in BASELINES) == side)) for side in (True, False))
    reference = baseline or names[0]
    texts = [column for column in rows[-1] if column.startswith("document ")]
    losses = {name: values_of(rows, name, texts) for name in names}
    several = len(losses[reference]) > 1
    against = {name: contrast(losses[name] - losses[reference]) for name in names if several and name != reference}
    corrected = dict(zip(against, holm(one.p for one in against.values()), strict=True))
    table = []
    for name in names:
        chosen = {baseline: "best baseline", polar: "best polar"}.get(name, "")
        rate = next(row["rate"] for row in rows if row["encoding"] == name)
        line = {"arm": name, "chosen": chosen, "rate": rate}
        line |= {part: stated(values_of(rows, name, [part])[:, 0], ".3f") for part in parts}
        found = against.get(name)
        line[f"beyond, less {reference}"] = "" if found is None else f"{found.mean:+.3f} ± {found.error:.3f}"
        line["p, corrected"] = "" if found is None else f"{corrected[name]:.2g}"
        table.append(line)
    return table, against.get(polar) if baseline and polar else None


def planned(rows: list[Row], column: str, pairs: Iterable[tuple[str, str]]) -> list[str]:
    """Return a line for each pair of arms that both have runs: the first less the second, over seeds.

    Parameters
    ----------
    rows, column : list of dict, str
        Those of `tune`, and what is compared.
    pairs : iterable of (str, str)
        Their chances are corrected together.
    """
    names = {row["encoding"] for row in rows}
    found = {}
    for pair in pairs:
        if names.issuperset(pair):
            own, other = (values_of(rows, name, [column])[:, 0] for name in pair)
            if len(own) > 1:
                found[pair] = contrast(own - other)
    corrected = holm(one.p for one in found.values())
    return [
        f"{own} less {other}, {column}: {one}, corrected p = {p:.2g}"
        for ((own, other), one), p in zip(found.items(), corrected, strict=True)
    ]


def read_options(
    about: str | None,
    arguments: list[str] | None,
    arms: Iterable[str],
    seeds: int,
    parser: argparse.ArgumentParser | None = None,
) -> argparse.Namespace:
    """Return the options of a script that trains arms, among them those of a parser of its own."""
    names = list(arms)
    every = argparse.ArgumentParser(description=str(about).partition(":")[0], parents=[parser] if parser else [])
    every.add_argument("--output", metavar="FILE", type=pathlib.Path, required=True, help="comma-separated values")
    every.add_argument("--arms", metavar="NAME", nargs="+", choices=names, default=names)
    every.add_argument("--seeds", metavar="N", type=int, default=seeds, help=f"runs of each arm; {seeds}")
    every.add_argument("--workers", metavar="N", type=int, default=2, help="processes of one thread; 2")
    every.add_argument("--short", action="store_true", help="three steps and two items: to see that it works")
    return every.parse_args(arguments)


def trained_kernels(rows: list[Row]) -> list[Row]:
    """Return a table of the heads of polar arms: kernels before training and after it, and what moved.

    Each value is a mean over layers; over seeds it has its standard error. See `arms.recovered` and `arms.written`.
    """
    table = []
    for name in dict.fromkeys(row["encoding"] for row in rows if row.get("kernels")):
        own = [row for row in rows if row["encoding"] == name and int(row["seed"]) not in APART]
        found = {
            part: np.asarray([_heads(row[part]) for row in own]) for part in HEADS if own
        }  # (seeds, layers, heads)
        for head in range(ARMS[name].heads if own else 0):
            line = {"arm": name, "head": str(head)}
            for lag in SHOWN_LAGS:
                first, last = (found[part][..., head, LAGS.index(lag)].mean(1) for part in HEADS[:2])
                line[f"kernel at {lag}"] = f"{first.mean():.2f}, then {stated(last, '.2f')}"
            line |= {part: stated(found[part][..., head, 0].mean(1), ".2f") for part in HEADS[2:]}
            table.append(line)
    return table


def _heads(text: str) -> np.ndarray:
    """Return the numbers of a column of `arms.written` ``(layers, heads, numbers)``."""
    heads = np.asarray([[float(one) for one in head.split()] for head in text.split(";")])
    return heads.reshape(LAYERS, -1, heads.shape[-1])


def draw(rows: list[Row], path: pathlib.Path, columns: Mapping[str, float], x: str, y: str) -> None:
    """Draw columns of the rows over numbers: means over seeds with their standard errors, the best baseline in black.

    Parameters
    ----------
    rows, path : list of dict, pathlib.Path
        Those of `tune`, and the file.
    columns : mapping of str to float
        Where each column stands on the horizontal axis.
    x, y : str
        What the axes are called.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    from rfrope.plotting.figures import COLOURS

    names = {row["encoding"] for row in rows}
    reference = best_arm(rows, names.intersection(BASELINES))
    panels = {title: [one for one in arms if one in names] for title, arms in PANELS.items()}
    panels = {title: arms for title, arms in panels.items() if len(arms) > 1} or {"": [*names]}
    with pyplot.rc_context({"svg.hashsalt": "rfrope", "svg.fonttype": "none", "font.size": 8.0}):
        size = {"figsize": (2.4 * len(panels), 3.6), "sharey": True, "squeeze": False, "layout": "constrained"}
        figure, axes = pyplot.subplots(1, len(panels), **size)
        for axis, (title, arms) in zip(axes[0], panels.items(), strict=True):
            lines = {one: COLOURS[i] for i, one in enumerate(arms) if one != reference}
            for name, colour in ({} if reference is None else {reference: "black"} | lines).items():
                values = values_of(rows, name, [*columns])
                error = values.std(0, ddof=1) / math.sqrt(len(values)) if len(values) > 1 else None
                axis.errorbar([*columns.values()], values.mean(0), error, color=colour, label=name, linewidth=1.2)
            axis.set_xscale("log", base=2)
            axis.set(xlabel=x, title=title, xticks=[*columns.values()], xticklabels=map(str, columns.values()))
            axis.minorticks_off()
            axis.spines[["top", "right"]].set_visible(False)
            axis.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.16))
        axes[0, 0].set(ylabel=y)
        figure.savefig(path, metadata={"Date": None})
        pyplot.close(figure)


def main(
    about: str | None,
    script: str,
    arguments: list[str] | None,
    run: Callable[..., Row],
    *,
    parts: list[str],
    drawn: tuple[Mapping[str, float], str, str],
    arms: Iterable[str] = ARMS,
    parser: argparse.ArgumentParser | None = None,
    taken: tuple[str, ...] = (),
    pairs: Mapping[str, Iterable[tuple[str, str]]] | None = None,
) -> int:
    """Read the command line of a script, train, and write table and figure beside the rows.

    Parameters
    ----------
    about : str
        The script's own words.
    script : str
        Its name.
    arguments : list of str or None
        Those of the command line unless given.
    run : callable
        ``run((arm, rate, seed), short=...)`` gives the columns of a row.
    parts : list of str
        Columns for the table.
    drawn : tuple
        Columns for the figure, and what its axes are called; see `draw`.
    arms : iterable of str
        Names of all arms of the experiment.
    parser : argparse.ArgumentParser, optional
        Options of the script itself, of which `run` takes those that are named as keywords.
    taken : tuple of str
        Their names.
    pairs : mapping, optional
        Pairs of arms that are compared over seeds, by the column; see `planned`.
    """
    options = read_options(about, arguments, arms, SEEDS, parser)
    work = partial(run, short=options.short, **{name: getattr(options, name) for name in taken})
    rows = tune(options.output, options.arms, options.seeds, work, options.workers)
    table, primary = compare(rows, parts)
    show(table, options.output, command(script, arguments))
    if kernels := trained_kernels(rows):
        made_by = include(kernels, command(script, arguments))
        options.output.with_name(f"{options.output.stem}_kernels.inc").write_text(made_by, "utf-8")
    draw(rows, options.output.with_suffix(".svg"), *drawn)
    if primary is not None:
        print(f"best polar less best baseline, over seeds and texts: {primary}")
    for column, compared in (pairs or {}).items():
        print(*planned(rows, column, compared), sep="\n")
    return 0
