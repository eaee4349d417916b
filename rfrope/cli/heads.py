"""``rfrope heads``: report how every head of a model uses position, on some texts."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from rfrope._core.results import Report, Table, Words
from rfrope.cli import page
from rfrope.cli.shared import (
    add_command,
    add_files,
    add_model,
    check_files,
    csv_file,
    load_model,
    naming,
    whole,
)
from rfrope.heads import Atlas, HeadEstimate
from rfrope.plotting import panels

_SHOWN = 10  # heads in the text
_LAGS = 48  # points of a curve in a page


def add(commands: Any) -> None:
    """Add the command to the parser."""
    command = add_command(
        commands,
        "heads",
        _run,
        "Report how every head of a model uses position: how much of the variance of its logits the lag alone "
        "explains, which frequencies carry it, where its mean curve peaks, whether and why it attends to the first "
        "token, which pairs of features are outliers, and which blocks need no rotation, with errors over documents. "
        "Needs PyTorch and transformers; uses no network.",
        example="rfrope heads SmolLM2-135M --texts *.txt --html heads.html --table heads.csv",
    )
    option = command.add_argument
    add_model(command)
    option("--tokens", type=whole, metavar="N", default=512, help="tokens of each document (default: 512)")
    option("--skip", type=whole, metavar="N", default=1, help="first tokens left out of all but sinks (default: 1)")
    option("--context", type=whole, metavar="N", help="positions that outliers are held against (default: the model's)")
    option("--part", metavar="NAME", help="kind of layer, where kinds have RoPEs of their own, as full_attention")
    add_files(command, "table", "block_table", "html")


def _run(options: argparse.Namespace) -> int:
    for name, least in (("documents", 3), ("tokens", 5), ("skip", 0)):
        if getattr(options, name) < least:
            raise ValueError(f"--{name} is {getattr(options, name)}; expected at least {least}")
    if options.skip > options.tokens - 4:
        raise ValueError(f"--skip is {options.skip}; expected at most {options.tokens - 4} of {options.tokens} tokens")
    if 1 < len(options.texts) < 3:
        raise ValueError(f"--texts has {len(options.texts)} files; expected one, or at least 3")
    check_files(options)
    model, tokenizer, texts = load_model(options)
    from rfrope.integrations import text_caches, transformers

    with naming("--texts", ", ".join(options.texts)):
        documents = text_caches.cut_documents(tokenizer, texts, options.documents, options.tokens)
    found = transformers.atlas(model, documents, part=options.part, skip=options.skip, context=options.context)
    page.emit(
        options,
        f"Heads of {options.model}",
        _report(found),
        {
            "documents": found.documents,
            "tokens": found.tokens,
            "heads": _rows(found.head_table()),
            "blocks": _rows(found.block_table()),
        },
        table=lambda _: csv_file(found.head_table()),
        block_table=lambda _: csv_file(found.block_table()),
    )
    return 0


def _rows(columns: dict[str, np.ndarray]) -> list[dict[str, Any]]:
    """Return a table as rows for JSON, which has no NaN."""
    lists = [[None if one != one else one for one in column.tolist()] for column in columns.values()]
    return [dict(zip(columns, row, strict=True)) for row in zip(*lists, strict=True)]


# -- text --------------------------------------------------------------------------------------------------------------


def _cell(estimate: HeadEstimate, place: Any) -> str:
    """Return a number with its error."""
    value, error = float(estimate.value[place]), float(estimate.stderr[place])
    if not math.isfinite(value):
        return "none"
    digits = 2 if not math.isfinite(error) or error <= 0.0 else min(max(1 - math.floor(math.log10(error)), 0), 4)
    return f"{value:.{digits}f} ± {error:.{digits}f}"


def _table(found: Atlas, places: np.ndarray) -> list[tuple[str, ...]]:
    """Return rows on some heads, after their head."""
    half, can = found.order.shape[1] // 2, np.sum(found.removable_blocks(), axis=1)
    rows: list[tuple[str, ...]] = [
        ("head", "lag explains", "offset", "first token", "by its key", "slow blocks", "outliers", "removable_blocks")
    ]
    rows[0] += (f"{half} stilled", "by norms")
    for one in places:
        estimates = (found.lag_explained, found.offset, found.sink, found.sink_key, found.sink_slow)
        cells = [_cell(estimate, one) for estimate in estimates]
        counts = (str(np.sum(found.outlier[one])), str(can[one]))
        changes = (_cell(each, (one, half)) for each in (found.change, found.norm_change))
        rows.append((f"{found.layer[one]}.{found.head[one]}", *cells, *counts, *changes))
    return rows


def _report(found: Atlas) -> Report:
    """Return the findings in words, and the heads whose lag explains most; a page has all heads, and curves of each."""
    about = [*str(found).split("\n")]
    first = np.argsort(-np.nan_to_num(found.lag_explained.value), kind="stable")
    table = Table(_table(found, first[:_SHOWN]), "Heads whose lag explains most", note=_NOTES)
    return Report(
        [
            Words(about),
            lambda: _draw(found, int(first[0])),
            table,
            lambda: [Table(_table(found, np.arange(len(found.head))), "All heads")],
        ],
        about[1],
    )


_NOTES = """lag explains: part of the variance of the logits; offset: lag at which the curve of the mean query and key
peaks; first token: attention on it, by the later half of the queries; by its key, slow blocks: what its logit is
above the others by the key itself, and by its lag in blocks that complete no turn in a document; outliers: pairs of
features 5 times as strong as the median; removable_blocks: blocks that can stop together with a change of a logit of
at most 0.1, two errors counted; stilled, by norms: change with half of the blocks stopped, those that are
predicted to matter least, and those with the least |q| |k|. All ± are standard errors over documents."""


# -- page --------------------------------------------------------------------------------------------------------------


def _draw(found: Atlas, first: int) -> Iterator[panels.Panel]:
    """Yield curves, shares and changes of each head."""
    names = [f"{layer}.{head}" for layer, head in zip(found.layer, found.head, strict=True)]
    n = len(found.lags)
    at = np.unique(np.concatenate([np.arange(min(9, n)), np.geomspace(1, n - 1, _LAGS).astype(int)]))
    curves = {"mean query and mean key": found.curve, "mean over the pairs at the lag": found.by_lag}
    taken = {name: HeadEstimate(one.value[:, at], one.stderr[:, at]) for name, one in curves.items()}
    note = "Logits against the distance from the query back to the key. Bands are two standard errors over documents."
    yield panels.estimates("Mean logit by lag", note, ("distance", "logit"), at, names, first, taken, x_scale="asinh")
    blocks = np.arange(found.order.shape[1])
    shares = {"share of the variance": found.share, "concentration of q": found.concentration_q}
    shares |= {"concentration of k": found.concentration_k}
    note = "Shares of all blocks sum to 1; a block of concentration 1 is the same in all tokens."
    yield panels.estimates("Blocks", note, ("block", "share"), blocks, names, first, shares)
    changes = {"predicted": found.predicted, "measured": found.change, "chosen by norms, measured": found.norm_change}
    note = "Root mean square change of a logit, less what all keys of a query gain alike, with so many blocks stopped."
    count = np.arange(len(blocks) + 1)
    yield panels.estimates("Blocks that are stilled", note, ("blocks stilled", "change"), count, names, first, changes)
