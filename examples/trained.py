"""What the scripts that train share: a layer, runs that survive an interruption, and tables of means with their errors.

A run is a row of numbers under a label and a seed. `complete` makes those that a file of comma-separated values lacks,
in processes of one thread each, and appends each as it ends; the same command goes on after an interruption.
"""

from __future__ import annotations

import argparse
import csv
import multiprocessing
import pathlib
import sys
from collections.abc import Callable, Iterable
from contextlib import nullcontext

import numpy as np
import torch
from torch import nn

from rfrope.layers.torch import RotaryEmbedding

Row = dict[str, str]


class Layer(nn.Module):
    """Attention and a perceptron, each added to its input."""

    def __init__(self, heads: int, width: int, rotary: RotaryEmbedding | None, causal: bool = True) -> None:
        super().__init__()
        self.heads, self.width, self.causal, features = heads, width, causal, heads * width
        self.rotary, self.first, self.second = rotary, nn.LayerNorm(features), nn.LayerNorm(features)
        self.qkv, self.out = nn.Linear(features, 3 * features, bias=False), nn.Linear(features, features, bias=False)
        self.up, self.down = nn.Linear(features, 4 * features), nn.Linear(4 * features, features)

    def forward(self, x: torch.Tensor, positions: torch.Tensor | None = None) -> torch.Tensor:
        """Return ``(batch, tokens, features)`` like x; positions are consecutive unless given."""
        q, k, v = self.qkv(self.first(x)).unflatten(-1, (3, self.heads, self.width)).permute(2, 0, 3, 1, 4)
        if self.rotary is not None:
            q, k = self.rotary(q, k, positions)
        attended = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(self.second(x))))


def command(script: str, arguments: list[str] | None) -> str:
    """Return the command line that makes a file, to be written into it."""
    return " ".join([f"python examples/{script}", *(sys.argv[1:] if arguments is None else arguments)])


def asked(
    about: str | None,
    arguments: list[str] | None,
    encodings: tuple[str, ...],
    seeds: int,
    reference: str,
    run: Callable[..., Row],
    run_short: Callable[..., Row],
) -> tuple[pathlib.Path, list[Row], str]:
    """Read the command line of a script that trains, and train: its file, all rows, and what they are held against."""
    parser = argparse.ArgumentParser(description=str(about).partition(":")[0])
    parser.add_argument("--output", metavar="FILE", type=pathlib.Path, required=True, help="comma-separated values")
    parser.add_argument("--seeds", metavar="N", type=int, default=seeds, help=f"runs of each encoding; {seeds}")
    parser.add_argument("--encodings", metavar="NAME", nargs="+", choices=encodings, default=encodings)
    parser.add_argument("--workers", metavar="N", type=int, default=2, help="processes of one thread; 2")
    parser.add_argument("--short", action="store_true", help="three steps each: to see that it works")
    options = parser.parse_args(arguments)
    wanted = [(name, seed) for seed in range(options.seeds) for name in options.encodings]
    rows = complete(options.output, wanted, run_short if options.short else run, options.workers)
    return options.output, rows, reference if reference in options.encodings else options.encodings[0]


def complete(path: pathlib.Path, runs: Iterable[tuple[str, int]], work: Callable[..., Row], workers: int) -> list[Row]:
    """Return a row for each label and seed, made by ``work((label, seed))`` unless the file has it; the file has all.

    Parameters
    ----------
    path : pathlib.Path
        File of comma-separated values, which may be missing.
    runs : iterable of (label, seed)
        What is to be there, in the order of the finished file.
    work : callable
        Importable from a module, since it runs in processes; takes ``(label, seed)`` and returns the other columns.
    workers : int
        Processes at once; with 0 all is done in this one.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    wanted = list(runs)
    done = {(row["encoding"], int(row["seed"])): row for row in read(path)} if path.exists() else {}
    missing = [run for run in wanted if run not in done]
    with multiprocessing.get_context("spawn").Pool(workers) if workers else nullcontext() as pool:
        for run, found in zip(missing, pool.imap(work, missing) if pool else map(work, missing), strict=True):
            done[run] = {"encoding": run[0], "seed": str(run[1]), **found}
            print("  ".join(f"{name} {value}" for name, value in done[run].items()), flush=True)
            write(path, [done[one] for one in wanted if one in done])
    return [done[run] for run in wanted]


def read(path: pathlib.Path) -> list[Row]:
    """Return the rows of a file."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def write(path: pathlib.Path, rows: list[Row]) -> None:
    """Write rows whole, or leave the file as it is."""
    beside = path.with_suffix(".part")
    with beside.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    beside.replace(path)


def stated(values: np.ndarray, form: str) -> str:
    """Return the mean with its standard error, which a single value does not have."""
    error = f" ± {values.std(ddof=1) / np.sqrt(len(values)):{form.lstrip('+')}}" if len(values) > 1 else ""
    return f"{values.mean():{form}}{error}"


def against(rows: list[Row], reference: str, columns: list[str], heads: list[str]) -> list[Row]:
    """Return a table: the mean of each column with its standard error over seeds, and the paired difference.

    Parameters
    ----------
    rows : list of dict
        Those of `complete`.
    reference : str
        The encoding that others are compared with, seed by seed: seeds share data and initial weights.
    columns, heads : lists of str
        Columns of `rows`, and what the table calls them.
    """
    names = list(dict.fromkeys(row["encoding"] for row in rows))
    values = {name: {row["seed"]: row for row in rows if row["encoding"] == name} for name in names}
    table = []
    for name in names:
        seeds = sorted(values[name].keys() & values[reference].keys())
        line = {"encoding": name}
        for column, head in zip(columns, heads, strict=True):
            own, other = (np.asarray([float(values[one][seed][column]) for seed in seeds]) for one in (name, reference))
            line[head] = stated(own, ".3f")
            line[f"{head}, less {reference}"] = "" if name == reference else stated(own - other, "+.3f")
        table.append(line)
    return table


def include(table: list[Row], made_by: str) -> str:
    """Return a list-table of reStructuredText."""
    lines = [f".. Made by: {made_by}", "", ".. list-table::", "   :header-rows: 1", ""]
    for row in [dict(zip(table[0], table[0], strict=True)), *table]:
        lines += [f"   {'  -' if number else '* -'} {value}".rstrip() for number, value in enumerate(row.values())]
    return "\n".join(lines) + "\n"


def show(table: list[Row], output: pathlib.Path, made_by: str) -> None:
    """Print a table, and write it beside the rows."""
    output.with_suffix(".inc").write_text(include(table, made_by), "utf-8")
    for row in table:
        print("  ".join(row.values()))
