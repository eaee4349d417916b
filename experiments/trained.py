"""What the scripts that train share: a layer, runs that survive an interruption, and tables of means with their errors.

A run is a row of numbers under a label and a seed. `complete` makes those that a file of comma-separated values lacks,
in processes of one thread each, and appends each as it ends; the same command goes on after an interruption.
"""

from __future__ import annotations

import argparse
import csv
import math
import multiprocessing
import pathlib
import shlex
import sys
import sysconfig
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import nn

Row = dict[str, str]
LAYERS, DOCUMENTS = 2, 24
RUN = 64  # bytes that two modules have in common where one repeats the other


class Layer(nn.Module):
    """Attention and a perceptron, each added to its input.

    Parameters
    ----------
    heads, width : int
        Heads, and features of the values of each.
    rotary : module, optional
        Takes queries and keys ``(batch, heads, tokens, features)`` and positions, and returns what scores are made of.
    causal : bool
        Whether a token sees those up to it alone.
    scale : float, optional
        By what scores are multiplied; one over the root of their features unless given.
    bias : callable, optional
        Returns what is added to scores ``(heads, tokens, tokens)`` for a number of tokens, in the place of `causal`.
    """

    def __init__(
        self,
        heads: int,
        width: int,
        rotary: nn.Module | None,
        causal: bool = True,
        *,
        scale: float | None = None,
        bias: Callable[[int], torch.Tensor] | None = None,
    ) -> None:
        super().__init__()
        self.heads, self.width, self.causal, features = heads, width, causal, heads * width
        self.scale, self.bias, self.wider = scale, bias, None
        self.rotary, self.first, self.second = rotary, nn.LayerNorm(features), nn.LayerNorm(features)
        self.qkv, self.out = nn.Linear(features, 3 * features, bias=False), nn.Linear(features, features, bias=False)
        self.up, self.down = nn.Linear(features, 4 * features), nn.Linear(4 * features, features)

    def widen(self, times: int) -> None:
        """Give queries and keys so many times the features of values; what was drawn before stays as it is."""
        features = self.heads * self.width
        self.wider = nn.Linear(features, 2 * (times - 1) * features, bias=False)

    def contents(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return queries, keys and values ``(batch, heads, tokens, features)``, as they are before positions."""
        x = self.first(x)
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, self.width)).permute(2, 0, 3, 1, 4)
        if self.wider is not None:
            more = self.wider(x).unflatten(-1, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)
            q, k = torch.cat((q, more[0]), -1), torch.cat((k, more[1]), -1)
        return q, k, v

    def forward(self, x: torch.Tensor, positions: torch.Tensor | None = None) -> torch.Tensor:
        """Return ``(batch, tokens, features)`` like x; positions are consecutive unless given."""
        q, k, v = self.contents(x)
        if self.rotary is not None:
            q, k = self.rotary(q, k, positions)
        bias = None if self.bias is None else self.bias(x.shape[-2])
        attended = nn.functional.scaled_dot_product_attention(
            q, k, v, attn_mask=bias, is_causal=self.causal and bias is None, scale=self.scale
        )
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(self.second(x))))


class Reader(nn.Module):
    """Tokens to logits of the next one; weights depend on the seed alone, whatever the layers do about positions.

    Parameters
    ----------
    seed : int
        That of the weights.
    tokens, features : int
        How many tokens there are, and features for each.
    layer : callable
        Makes a layer, which is called twice.
    """

    def __init__(self, seed: int, tokens: int, features: int, layer: Callable[[], Layer]) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embedding = nn.Embedding(tokens, features)
        self.register_buffer("table", None)
        self.layers = nn.ModuleList(layer() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(features), nn.Linear(features, tokens)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return logits ``(batch, tokens, number of tokens)``."""
        x = self.embedding(tokens)
        if self.table is not None:
            x = x + self.table[: tokens.shape[-1]]
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def fit(model: nn.Module, loss: Callable[[int], torch.Tensor], rate: float, steps: int, groups: Any = None) -> None:
    """Train on ``loss(step)``, perhaps in groups: the rate rises over 50 steps and falls to a twentieth by a cosine."""
    optimiser = torch.optim.AdamW(groups or model.parameters(), lr=rate, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimiser, lambda step: min(1.0, (step + 1) / 50) * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * step / steps)))
    )
    for step in range(steps):
        found = loss(step)
        optimiser.zero_grad()
        found.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()


@torch.no_grad()
def bits(model: nn.Module, documents: torch.Tensor) -> np.ndarray:
    """Return the loss of each token ``(documents, tokens - 1)`` in bits, given those before it."""
    found = []
    for one in documents.split(4):  # scores take memory with the square of the length
        logits = model(one[:, :-1]).transpose(1, 2)
        found.append(nn.functional.cross_entropy(logits, one[:, 1:], reduction="none"))
    return torch.cat(found).numpy() / math.log(2.0)


def modules(least: int) -> dict[str, np.ndarray]:
    """Return the bytes of the modules of Python's standard library that have more than so many, by name."""
    paths = sorted(pathlib.Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    return {p.name: one for p in paths if len(one := np.frombuffer(p.read_bytes(), np.uint8)) > least}


@cache
def split(read: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return bytes of Python's standard library to train on, and documents ``(DOCUMENTS, read + 1)`` of other modules.

    Parameters
    ----------
    read : int
        Bytes of a document, and one more to predict.
    """
    long = list(modules(read + 4096).values())
    held = range(0, len(long), 3)[:DOCUMENTS]
    text = np.concatenate([one for i, one in enumerate(long) if i not in held])
    documents = np.stack([long[i][2048 : 2048 + read + 1] for i in held])
    return torch.from_numpy(text.astype(np.int64)), torch.from_numpy(documents.astype(np.int64))


@cache
def apart(read: int, before: int) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Return bytes to train on, and documents ``(DOCUMENTS, read + 1)`` of other modules: of validation, of the test.

    No document is of a module that ``split(before)`` reads, by which arms were thought of, and none repeats another
    module: less than a twentieth of its runs of `RUN` bytes are found in any.

    Parameters
    ----------
    read, before : int
        Bytes of a document, and one more to predict; and those of documents that were read before.
    """
    long, seen = modules(read + 4096), list(modules(before + 4096))[::3][:DOCUMENTS]
    document = {name: one[2048 : 2048 + read + 1] for name, one in long.items()}
    runs, modules_of = np.unique(np.concatenate([np.unique(_runs(one)) for one in long.values()]), return_counts=True)
    shared = runs[modules_of > 1]
    own = [name for name in long if name not in seen and np.isin(_runs(document[name]), shared).mean() < 0.05]
    held = [own[1::3][:DOCUMENTS], own[::3][:DOCUMENTS]]
    text = np.concatenate([one for name, one in long.items() if name not in {*held[0], *held[1]}])
    parts = [torch.from_numpy(np.stack([document[name] for name in part]).astype(np.int64)) for part in held]
    return torch.from_numpy(text.astype(np.int64)), parts


def _runs(text: np.ndarray) -> np.ndarray:
    """Return a number for each run of `RUN` bytes, alike where they are."""
    found = np.zeros(len(text) - RUN + 1, np.uint64)
    for i in range(RUN):
        found = found * np.uint64(0x9E3779B97F4A7C15) + text[i : i + len(found)]
    return found


def command(script: str, arguments: list[str] | None) -> str:
    """Return the command line that makes a file, to be written into it."""
    return shlex.join(["python", f"experiments/{script}", *(sys.argv[1:] if arguments is None else arguments)])


def asked(
    about: str | None,
    arguments: list[str] | None,
    encodings: tuple[str, ...],
    seeds: int,
    reference: str,
    run: Callable[..., Row],
    run_short: Callable[..., Row],
    more: argparse.ArgumentParser | None = None,
) -> tuple[pathlib.Path, list[Row], str]:
    """Read the command line of a script that trains, and train: its file, all rows, and what they are held against."""
    parser = argparse.ArgumentParser(description=str(about).partition(":")[0], parents=[more] if more else [])
    parser.add_argument("--output", metavar="FILE", type=pathlib.Path, required=True, help="comma-separated values")
    parser.add_argument("--seeds", metavar="N", type=int, default=seeds, help=f"runs of each encoding; {seeds}")
    parser.add_argument("--encodings", metavar="NAME", nargs="+", choices=encodings, default=encodings)
    parser.add_argument("--workers", metavar="N", type=int, default=2, help="processes of one thread; 2")
    parser.add_argument("--short", action="store_true", help="three steps each: to see that it works")
    options = parser.parse_args(arguments)
    wanted = [(name, seed) for seed in range(options.seeds) for name in options.encodings]
    rows = complete(options.output, wanted, run_short if options.short else run, options.workers)
    return options.output, rows, reference if reference in options.encodings else options.encodings[0]


def complete(
    path: pathlib.Path,
    runs: Iterable[tuple[Any, ...]],
    work: Callable[..., Row],
    workers: int,
    keys: tuple[str, ...] = ("encoding", "seed"),
) -> list[Row]:
    """Return a row for each run, made by ``work(run)`` unless the file has it; the file has all, and keeps its others.

    Parameters
    ----------
    path : pathlib.Path
        File of comma-separated values, which may be missing.
    runs : iterable of tuple
        What is to be there, in the order of the finished file: a label, a seed and what else says which run it is.
    work : callable
        Importable from a module, since it runs in processes; takes one of `runs` and returns the other columns.
    workers : int
        Processes at once; with 0 all is done in this one.
    keys : tuple of str
        Columns of what is in a run.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    wanted = {tuple(map(str, run)): run for run in runs}
    done = {tuple(row[key] for key in keys): row for row in read(path)} if path.exists() else {}
    order = [*wanted, *(name for name in done if name not in wanted)]
    missing = {name: run for name, run in wanted.items() if name not in done}
    with multiprocessing.get_context("spawn").Pool(workers) if workers else nullcontext() as pool:
        results = pool.imap(work, missing.values()) if pool else map(work, missing.values())
        for name, found in zip(missing, results, strict=True):
            done[name] = dict(zip(keys, name, strict=True)) | found
            print("  ".join(f"{column} {value}" for column, value in done[name].items()), flush=True)
            write(path, [done[one] for one in order if one in done])
    return [done[name] for name in wanted]


def read(path: pathlib.Path) -> list[Row]:
    """Return the rows of a file."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def write(path: pathlib.Path, rows: list[Row]) -> None:
    """Write rows whole, or leave the file as it is; a column that a row lacks is left empty."""
    beside, columns = path.with_suffix(".part"), dict.fromkeys(column for row in rows for column in row)
    with beside.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(columns), lineterminator="\n")
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
