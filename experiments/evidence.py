"""Arms of any task at the settings and rates that validation chose: what the scripts evidence_*.py share.

The protocol is evidence_protocol.rst. A task is data: what a token holds, how batches are drawn, what is read, and
arms, each a rotation with up to three settings (a base, or a scale). For every arm alike the setting and the rate with
the least error on validation are taken, and the arm with the least of each side; the test is read by other seeds.
"""

from __future__ import annotations

import argparse
import pathlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from trained import LAYERS, Layer, Row, command, complete, fit, read, show, stated
from tuned import APART, Contrast, best_arm, contrast, further, holm, read_options, values_of

import rfrope
from rfrope.layers.torch import PolarEmbedding, RotaryEmbedding, parameter_groups

HEADS, WIDTH = 2, 24  # of values; queries and keys have as many, and polar ones twice
RATES = (0.004, 0.008)  # tried with every setting; then twice and half the best, with the best setting alone
KEYS = ("encoding", "setting", "rate", "seed")
FRESH = 1000  # seeds from here on read a test of their own
CosSin = Callable[[int, int], Any]  # frequencies (blocks, axes) of so many blocks, or a Rope of them, by a seed


class Batch(NamedTuple):
    """Tokens ``(batch, tokens, inputs)``, positions ``(batch, tokens)`` or ``(batch, tokens, axes)``, and targets."""

    tokens: torch.Tensor
    positions: torch.Tensor
    targets: torch.Tensor


@dataclass(frozen=True)
class Arm:
    """What attention knows of positions.

    Attributes
    ----------
    settings : mapping
        Frequencies by the name of a base or a scale; None does not turn. One set is for all heads and layers.
    polar : bool
        Whether contents are polar, with a learned bias of keys for each head.
    learned : bool or str
        Whether frequencies are learned from there, or what is, as of `RotaryEmbedding`.
    designed : bool
        Whether a kernel was chosen; the others are baselines.
    own : mapping
        By what the rate of all that is learned of positions is multiplied, by the name of the setting; then nothing of
        it decays.
    """

    settings: Mapping[str, CosSin | None]
    polar: bool = False
    learned: bool | str = False
    designed: bool = False
    own: Mapping[str, float] = field(default_factory=dict)

    def turn(self, setting: str, seed: int) -> nn.Module | None:
        """Return a module that turns queries and keys."""
        waves = self.settings[setting]
        if waves is None:
            return None
        made = waves(WIDTH if self.polar else WIDTH // 2, seed)
        rope = made if isinstance(made, rfrope.Rope) else rfrope.Rope(made, polar=self.polar)
        if not self.polar:
            return RotaryEmbedding(rope, "frequencies" if self.learned is True else self.learned)
        return PolarEmbedding(rope, ("frequencies", "phases") if self.learned else "phases", heads=HEADS)


@dataclass(frozen=True)
class Task:
    """What is learned and read.

    Attributes
    ----------
    inputs, outputs : int
        Numbers that a token brings, and that are said of it, or of all tokens if `pooled`.
    draw : callable
        Returns a batch for training, of a generator.
    parts : callable
        Returns batches by their names, of "validation" or of "test".
    loss : callable
        Of what is said and targets ``(batch,)``; its mean is trained on.
    error : callable
        Likewise, but what is reported.
    primary : tuple of str
        Names of what is read whose mean is compared, and chosen by.
    steps : int
        Of training.
    beside : tuple of str
        Names of what is read that is compared by itself, too.
    repeats : mapping
        How many rows of what is read, one after another, are one item, by its name; 1 unless given.
    pooled, causal : bool
        Whether one thing is said of all tokens; whether a token sees those up to it alone.
    bias : callable, optional
        As of `Layer`.
    """

    inputs: int
    outputs: int
    draw: Callable[[np.random.Generator], Batch]
    parts: Callable[[str], Mapping[str, Batch]]
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    error: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    primary: tuple[str, ...]
    steps: int
    beside: tuple[str, ...] = ()
    repeats: Mapping[str, int] = field(default_factory=dict)
    pooled: bool = True
    causal: bool = False
    bias: Callable[[int], torch.Tensor] | None = None


class Model(nn.Module):
    """Tokens to what is said of them; weights depend on the seed alone, whatever the arm."""

    def __init__(self, task: Task, arm: Arm, setting: str, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        features, self.pooled = HEADS * WIDTH, task.pooled
        turns = [arm.turn(setting, seed) for _ in range(LAYERS)]
        self.embedding = nn.Linear(task.inputs, features)
        self.layers = nn.ModuleList(
            Layer(HEADS, WIDTH, turn, task.causal, scale=getattr(turn, "score_scale", None), bias=task.bias)
            for turn in turns
        )
        self.norm, self.head = nn.LayerNorm(features), nn.Linear(features, task.outputs)

    def forward(self, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Return ``(batch, outputs)`` if pooled, else ``(batch, tokens, outputs)``."""
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, positions)
        x = self.norm(x)
        return self.head(x.mean(1) if self.pooled else x)


def wrong(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return 100 for each row whose likeliest class is not the target, and 0 for the others: a mean in percent."""
    return 100.0 * (outputs.argmax(-1) != targets).float()


def surprise(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the cross entropy of each row, in nats."""
    return nn.functional.cross_entropy(outputs, targets, reduction="none")


@torch.no_grad()
def errors(model: Model, task: Task, batch: Batch) -> np.ndarray:
    """Return the error of each row of a batch."""
    pieces = [one.split(32) for one in batch]  # for the memory of scores
    found = [task.error(model(*inputs), targets) for *inputs, targets in zip(*pieces, strict=True)]
    return torch.cat(found).double().numpy()


def run(task: Task, arms: Mapping[str, Arm], which: tuple[str, str, float, int], short: bool = False) -> Row:
    """Train an arm at a setting and a rate, and read validation; the test too, but for seeds apart; or a fresh one."""
    torch.set_num_threads(1)
    name, setting, rate, seed = which
    model, rng = Model(task, arms[name], setting, seed), np.random.default_rng(seed)

    def loss(_: int) -> torch.Tensor:
        tokens, positions, targets = task.draw(rng)
        return task.loss(model(tokens, positions), targets).mean()

    own = arms[name].own
    groups = parameter_groups(model, rate=rate * own[setting]) if own else None
    fit(model, loss, rate, 3 if short else task.steps, groups)
    row = {}
    for part in ("fresh",) if seed >= FRESH else ("validation",) if seed in APART else ("validation", "test"):
        found = {}
        for title, batch in task.parts(part).items():
            repeats = task.repeats.get(title, 1)
            some = Batch(*(one[: 2 * repeats if short else None] for one in batch))
            found[title] = errors(model, task, some).reshape(-1, repeats).mean(1)
        items = np.mean([found[title] for title in task.primary], 0)
        if part == "validation":
            row["validation"] = f"{items.mean():.5f}"
        else:
            row |= {title: f"{one.mean():.5f}" for title, one in found.items()}
            listed = {"items": items} | {f"items {title}": found[title] for title in task.beside}
            row |= {title: " ".join(f"{one:.5g}" for one in values) for title, values in listed.items()}
    if arms[name].learned == "kernel":
        row["kernels"] = "; ".join(str(kernel) for layer in model.layers for kernel in layer.rotary.kernel)
    return row


def search(
    path: pathlib.Path,
    settings: Mapping[str, list[str]],
    seeds: int,
    work: Callable[..., Row],
    workers: int,
    apart: tuple[int, ...] = APART,
    by: tuple[int, ...] = APART[:1],
    first: int = 0,
) -> list[Row]:
    """Return the rows of arms at their best settings and rates: of the seeds apart, and of those that read the test.

    Every setting is tried at `RATES`, with seeds `by`; then rates beside the best one, until it lies between two that
    were tried with its setting. The test is read by seeds from `first` on. The file has all that was tried; the same
    call goes on.
    """
    wanted = {(arm, setting, rate) for arm, every in settings.items() for setting in every for rate in RATES}
    tried: dict[str, dict[tuple[str, float], float]] = {}
    while wanted:
        order = sorted(wanted, key=lambda one: (list(settings).index(one[0]), *one[1:]))
        for row in complete(path, [(*one, seed) for one in order for seed in by], work, workers, KEYS):
            losses = tried.setdefault(row["encoding"], {})
            key = row["setting"], float(row["rate"])
            losses[key] = losses.get(key, 0.0) + float(row["validation"]) / len(by)
        best = {arm: min(tried[arm], key=lambda one: (tried[arm][one], one)) for arm in settings}
        rates = {
            arm: {rate: loss for (setting, rate), loss in tried[arm].items() if setting == best[arm][0]}
            for arm in settings
        }
        wanted = {(arm, best[arm][0], rate) for arm in settings for rate in further(rates[arm])}
    runs = [(arm, *best[arm], seed) for seed in (*apart, *range(first, first + seeds)) for arm in settings]
    return complete(path, runs, work, workers, KEYS)


def repeat(
    path: pathlib.Path, rows: list[Row], names: list[str], seeds: int, work: Callable[..., Row], workers: int
) -> list[Row]:
    """Return rows of arms at the settings and rates of others, by as many seeds that read a fresh test."""
    chosen = {row["encoding"]: (row["setting"], float(row["rate"])) for row in rows}
    if missing := [name for name in names if name not in chosen]:
        raise SystemExit(f"--again: the file has no test of {', '.join(missing)}; expected runs of all arms")
    runs = [(name, *chosen[name], FRESH + seed) for seed in range(seeds) for name in names]
    return complete(path, runs, work, workers, KEYS)


def final(rows: list[Row]) -> list[Row]:
    """Return those rows of a file that are of the setting and the rate at which their arm read the test."""
    taken = {(row["encoding"], row.get("setting"), row["rate"]) for row in rows if int(row["seed"]) not in APART}
    return [row for row in rows if (row["encoding"], row.get("setting"), row["rate"]) in taken]


def items_of(rows: list[Row], name: str, column: str = "items") -> np.ndarray:
    """Return the errors of an arm ``(seeds, items)``, seeds in their order."""
    own = sorted((int(row["seed"]), row[column]) for row in rows if row["encoding"] == name and row.get(column))
    return np.asarray([[float(one) for one in items.split()] for _, items in own])


def sides(rows: list[Row], arms: Mapping[str, Arm]) -> tuple[str | None, str | None]:
    """Return the designed arm and the baseline with the least error on validation, by the seeds apart."""
    names = list(dict.fromkeys(row["encoding"] for row in rows))
    return tuple(best_arm(rows, [n for n in names if arms[n].designed == side], "validation") for side in (True, False))


def primary(rows: list[Row], arms: Mapping[str, Arm]) -> Contrast | None:
    """Return the best designed arm less the best baseline over seeds and items, both as validation chose them."""
    chosen = sides(rows, arms)
    if None in chosen or len(items_of(rows, chosen[0])) < 2:
        return None
    return contrast(items_of(rows, chosen[0]) - items_of(rows, chosen[1]))


def compare(rows: list[Row], arms: Mapping[str, Arm], columns: Iterable[str], form: str) -> list[Row]:
    """Return a table of all arms, with their differences to the best baseline corrected together.

    Parameters
    ----------
    rows : list of dict
        Those of `search`.
    arms : mapping
        By name.
    columns : iterable of str
        What is read, for the table.
    form : str
        How numbers are written, as ".1f".
    """
    names = list(dict.fromkeys(row["encoding"] for row in rows))
    designed, baseline = sides(rows, arms)
    reference = baseline or names[0]
    items = {name: items_of(rows, name) for name in names}
    others = [name for name in names if name != reference and len(items[name]) > 1]
    against = {name: contrast(items[name] - items[reference]) for name in others}
    corrected = dict(zip(against, holm(one.p for one in against.values()), strict=True))
    table = []
    for name in names:
        row = next(row for row in rows if row["encoding"] == name)
        chosen = {baseline: "best baseline", designed: "best designed"}.get(name, "")
        line = {"arm": name, "chosen": chosen, "setting": row["setting"], "rate": row["rate"]}
        line |= {part: stated(values_of(rows, name, [part])[:, 0], form) for part in columns}
        found = against.get(name)
        low, high = (0.0, 0.0) if found is None else found.interval
        line[f"less {reference} (95 %)"] = (
            "" if found is None else f"{found.mean:+{form}} ({low:+{form}} to {high:+{form}})"
        )
        line["p, corrected"] = "" if found is None else f"{corrected[name]:.2g}"
        table.append(line)
    return table


def draw(rows: list[Row], arms: Mapping[str, Arm], path: pathlib.Path, unit: str) -> None:
    """Draw the difference of each arm to the best baseline, with its interval of 95 %, colours by the side it is on."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    from rfrope.plotting.figures import COLOURS

    names = list(dict.fromkeys(row["encoding"] for row in rows))
    reference, items = sides(rows, arms)[1] or names[0], {name: items_of(rows, name) for name in names}
    names = [name for name in names if name != reference and len(items[name]) > 1]
    if not names:  # a single seed has no interval
        return
    with pyplot.rc_context({"svg.hashsalt": "rfrope", "svg.fonttype": "none", "font.size": 8.0}):
        figure, axis = pyplot.subplots(figsize=(6.0, 1.0 + 0.22 * len(names)), layout="constrained")
        for side, label, colour in (
            (True, "designed", COLOURS[0]), (False, "baseline", COLOURS[3]), (None, "neither", "0.5"),
        ):  # fmt: skip
            own = {name: contrast(items[name] - items[reference]) for name in names if arms[name].designed is side}
            if own:
                means, ends = [one.mean for one in own.values()], [one.interval for one in own.values()]
                reach = np.abs(np.transpose(ends) - means)
                places = [names.index(name) for name in own]
                axis.errorbar(means, places, xerr=reach, fmt="o", color=colour, label=label, markersize=3.5)
        axis.axvline(0.0, color="black", linewidth=0.8)
        axis.set(xlabel=f"less {reference} ({unit})", yticks=range(len(names)), yticklabels=names)
        axis.invert_yaxis()
        axis.spines[["top", "right"]].set_visible(False)
        axis.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
        figure.savefig(path, metadata={"Date": None})
        pyplot.close(figure)


def compared(rows: list[Row], pairs: Iterable[tuple[str, str]]) -> list[str]:
    """Return a line for each pair of arms that both have runs: the first less the second, corrected together.

    "together" is an interval of each such that all hold with 95 %, by Bonferroni's inequality.
    """
    items = {name: items_of(rows, name) for name in dict.fromkeys(row["encoding"] for row in rows)}
    pairs = [pair for pair in pairs if items.keys() >= set(pair) and len(items[pair[0]]) > 1]
    found = [contrast(items[own] - items[other]) for own, other in pairs]
    corrected = holm(one.p for one in found)
    together = ("{:+.4f} to {:+.4f}".format(*one.between(1.0 - 0.05 / len(found))) for one in found)
    return [
        f"{own} less {other}: {one}, together {ends}, corrected p = {p:.2g}"
        for (own, other), one, ends, p in zip(pairs, found, together, corrected, strict=True)
    ]


def main(
    about: str | None,
    script: str,
    arguments: list[str] | None,
    work: Callable[..., Row],
    arms: Callable[..., Mapping[str, Arm]],
    *,
    columns: Iterable[str],
    form: str,
    unit: str,
    seeds: int,
    pairs: Iterable[tuple[str, str]] = (),
    names: Iterable[str] | None = None,
    parser: argparse.ArgumentParser | None = None,
    taken: tuple[str, ...] = (),
    fresh: bool = False,
) -> int:
    """Read the command line of a script, train, and write table and figure beside the rows.

    Parameters
    ----------
    about, script, arguments
        As of `tuned.main`.
    work : callable
        ``work((arm, setting, rate, seed), short=...)`` gives the columns of a row.
    arms : callable
        Returns the arms by their names.
    columns, form, unit
        As of `compare` and `draw`.
    seeds : int
        Runs of each arm that read the test.
    pairs : iterable of (str, str)
        Arms that are compared beside; see `compared`.
    names : iterable of str, optional
        Those of all arms, if `arms` takes options.
    parser, taken
        As of `tuned.main`; `work` and `arms` take those options.
    fresh : bool
        Whether there is a fresh test, for ``--again``.
    """
    if fresh:
        parser = argparse.ArgumentParser(add_help=False, parents=[parser] if parser else [])
        text = "runs whose choices are taken, by fresh seeds that read a fresh test; differences are to the first arm"
        parser.add_argument("--again", metavar="FILE", type=pathlib.Path, help=text)
    options = read_options(about, arguments, names or arms(), seeds, parser)
    own = {name: getattr(options, name) for name in taken}
    known = arms(**own)
    settings = {name: list(known[name].settings) for name in options.arms if name in known}
    work = partial(work, short=options.short, **own)
    if fresh and options.again:
        rows = final(read(options.again))
        rows = repeat(options.output, rows, list(settings), options.seeds, work, options.workers)
    else:
        rows = search(options.output, settings, options.seeds, work, options.workers)
    show(compare(rows, known, columns, form), options.output, command(script, arguments))
    draw(rows, known, options.output.with_suffix(".svg"), unit)
    found = primary(rows, known)
    if found is not None:
        print(f"best designed less best baseline, over seeds and items: {found}")
    if fresh and options.again:
        first, *others = settings
        pairs = [(first, other) for other in others]
    print(*compared(rows, pairs), sep="\n")
    return 0


# -- frequencies -------------------------------------------------------------------------------------------------------


def ladders(make: Callable[[int, float], Any], bases: Iterable[float] = (10.0, 100.0, 10000.0)) -> dict[str, CosSin]:
    """Return settings by the base of a ladder: ``make(blocks, base)`` returns frequencies or a Rope."""
    return {f"base {base:g}": lambda n, _, base=base: plain(make(n, base)) for base in bases}


def plain(made: Any) -> np.ndarray:
    """Return frequencies ``(blocks, axes)`` of a Rope or an array."""
    found = np.asarray(made.frequencies if isinstance(made, rfrope.Rope) else made)
    return found[:, None] if found.ndim == 1 else found


def kernels(text: str, scales: Iterable[Any], context: tuple[int, ...], design: str = "optimised") -> dict[str, CosSin]:
    """Return settings by the scale of a kernel, whose text has it at ``{}``; drawn ones depend on the seed."""
    return {f"scale {one:g}": partial(_designed, text.format(one), context, design) for one in scales}


def _designed(text: str, context: tuple[int, ...], design: str, n: int, seed: int) -> np.ndarray:
    return fitted(text, context, design, n, seed if design == "iid" else 0)


@lru_cache
def fitted(text: str, context: tuple[int, ...], design: str, n: int, seed: int) -> np.ndarray:
    """Return frequencies ``(n, axes)`` of a kernel over lags below a context."""
    made = rfrope.design(text, head_dim=n, context=context, design=design, rng=seed, polar=True)
    return plain(made.frequencies)
