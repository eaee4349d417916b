"""``rfrope heads`` and ``rfrope tune``: what a model does with position, and frequencies learned, from some texts."""

from __future__ import annotations

import argparse
import math
from typing import Any

import numpy as np

from rfrope import storage
from rfrope._core import files
from rfrope._core.results import Report, Table, Words, plain
from rfrope.analysis import KernelFit
from rfrope.cli import page
from rfrope.cli.shared import add_command, add_files, csv_file, naming, whole
from rfrope.heads import Atlas, HeadEstimate

_SHOWN = 10  # heads in the text
_STARTS = ("yarn", "llama3", "ntk")
_LEARNABLE = ("factors", "temperature")
_LEAST = 5  # documents: two choose, two are held out
_NOTES = """lag explains: share of the logits' variance explained by the lag; offset: lag at which the curve of the mean
query and key peaks; first token: attention that the later half of the queries pays to it; by its key, slow blocks:
excess of its logit over the others due to its key, and to its lag in blocks that complete no turn in a document;
outliers: pairs of features 5 times as strong as the median; removable_blocks: blocks that can stop together while
logits change by at most 0.1 (plus two standard errors); stilled, by norms: change with half of the blocks stopped,
those predicted to matter least, and those with the least |q| |k|. All ± are standard errors over documents."""


def _add_model(command: Any) -> None:
    """Let a command take a model and texts."""
    command.add_argument("model", metavar="MODEL", help="a folder that transformers loads, or a GGUF file")
    texts = "text files, each a document; a single file is cut into --documents"
    command.add_argument("--texts", nargs="+", metavar="FILE", required=True, help=texts)
    few = "documents cut from a single file (default: 8)"
    command.add_argument("--documents", type=whole, metavar="N", default=8, help=few)


def _load_model(options: argparse.Namespace) -> tuple[Any, Any, list[str]]:
    """Return the model that a command takes, its tokenizer, and the texts."""
    texts = []
    for path in options.texts:
        with naming("--texts", path):
            try:
                texts.append(files.read_bytes(path).decode("utf-8"))
            except UnicodeDecodeError:
                raise ValueError("expected a text in UTF-8") from None
    try:
        from rfrope.integrations import text_caches, transformers  # noqa: F401  # what else the command needs
    except ImportError as error:
        raise ValueError(f"rfrope {options.command} needs more: {error}") from None
    with naming("MODEL", options.model):
        return (*text_caches.load(options.model), texts)


def add_tune(commands: Any) -> None:
    """Add ``rfrope tune`` to the parser."""
    command = add_command(
        commands,
        "tune",
        _tune,
        "Learn factors of a model's frequencies and a temperature for a longer context, with all weights frozen, "
        "from the loss on some texts. Learning starts from several methods of `rfrope plan`, and continues from the "
        "best. The table gives the loss on held-out texts within the trained context and beyond, with standard "
        "errors: for the unchanged model, every start and the learned rotation. Needs PyTorch and transformers; uses "
        "no network.",
        example="rfrope tune SmolLM2-135M --texts *.txt --context 16384 --checkpoint tuning.safetensors -o rope.npz",
    )
    option = command.add_argument
    _add_model(command)
    option("--context", type=whole, metavar="N", required=True, help="positions to reach")
    option("--trained", type=whole, metavar="L", help="positions in training (default: the model's)")
    option("--starts", nargs="+", metavar="NAME", default=_STARTS, help="methods (default: yarn llama3 ntk)")
    option("--part", metavar="NAME", help="kind of layer that learns, as full_attention")
    option("--learnable", nargs="+", metavar="NAME", default=_LEARNABLE, help="factors, temperature (default: both)")
    option("--window", type=whole, metavar="N", help="tokens of a window (default: the trained ones, at most 1024)")
    option("--steps", type=whole, metavar="N", default=200, help="maximum steps from the best start (default: 200)")
    option("--rate", type=float, metavar="R", default=0.01, help="rate of the first step, falling to 0 (default: 0.01)")
    option("--seed", type=whole, metavar="N", default=0, help="seed of windows and held-out documents (default: 0)")
    option("--checkpoint", metavar="FILE", help="file from which the same command resumes after any end")
    add_files(command, "output", "html")


def _tune(options: argparse.Namespace) -> None:
    if len(options.texts) == 1 and options.documents < _LEAST:
        raise ValueError(f"--documents is {options.documents}; expected at least {_LEAST}")
    if options.checkpoint is not None:
        with naming("--checkpoint", options.checkpoint):
            files.check_writable(options.checkpoint, overwrite=True)
    if options.trained is not None and options.window is not None and options.window > options.trained:
        raise ValueError(f"--window is {options.window}; expected at most --trained, {options.trained}")
    model, tokenizer, texts = _load_model(options)
    from rfrope.integrations import text_caches, transformers

    names = ("trained", "starts", "part", "learnable", "window", "steps", "rate", "checkpoint")
    given = {name: getattr(options, name) for name in names}
    documents: list[Any] = texts
    if len(texts) == 1:
        with naming("--documents and --context", f"{options.documents} of {options.texts[0]}"):
            documents = text_caches.cut_documents(tokenizer, texts, options.documents, options.context)
    found = transformers.tune(model, documents, options.context, tokenizer=tokenizer, rng=options.seed, **given)
    page.emit(
        options,
        f"{options.model} to {options.context} positions, learned",
        found.report(),
        found.to_dict(),
        output=lambda path: storage.packed(path, found.rope),
    )


def add_heads(commands: Any) -> None:
    """Add ``rfrope heads`` to the parser."""
    command = add_command(
        commands,
        "heads",
        _heads,
        "Report how every head of a model uses position: how much of the variance of its logits the lag alone "
        "explains, which frequencies carry it, where its mean curve peaks, whether and why it attends to the first "
        "token, which pairs of features are outliers, and which blocks need no rotation, with errors over documents. "
        "Needs PyTorch and transformers; uses no network.",
        example="rfrope heads SmolLM2-135M --texts *.txt --html heads.html --table heads.csv",
    )
    option = command.add_argument
    _add_model(command)
    option("--tokens", type=whole, metavar="N", default=512, help="tokens of each document (default: 512)")
    option("--skip", type=whole, metavar="N", default=1, help="first tokens left out, except for sinks (default: 1)")
    option("--context", type=whole, metavar="N", help="context by which outliers are judged (default: the model's)")
    option("--part", metavar="NAME", help="kind of layer, if kinds have different RoPEs, as full_attention")
    add_files(command, "table", "block_table", "html")


def _heads(options: argparse.Namespace) -> None:
    for name, least in (("documents", 3), ("tokens", 5), ("skip", 0)):
        if getattr(options, name) < least:
            raise ValueError(f"--{name} is {getattr(options, name)}; expected at least {least}")
    if options.skip > options.tokens - 4:
        raise ValueError(f"--skip is {options.skip}; expected at most {options.tokens - 4} of {options.tokens} tokens")
    if 1 < len(options.texts) < 3:
        raise ValueError(f"--texts has {len(options.texts)} files; expected one, or at least 3")
    model, tokenizer, texts = _load_model(options)
    from rfrope.integrations import text_caches, transformers

    with naming(f"--tokens {options.tokens} of --texts", ", ".join(options.texts)):
        documents = text_caches.cut_documents(tokenizer, texts, options.documents, options.tokens)
    found = transformers.atlas(model, documents, part=options.part, skip=options.skip, context=options.context)
    (law,) = found.nearest_laws()  # a config has one set of frequencies for all heads
    page.emit(
        options,
        f"Heads of {options.model}",
        _report_heads(found, law),
        {
            "documents": found.documents,
            "tokens": found.tokens,
            "law": None if law is None else law.to_dict(),
            "heads": _rows(found.head_table()),
            "blocks": _rows(found.block_table()),
        },
        table=lambda _: csv_file(found.head_table()),
        block_table=lambda _: csv_file(found.block_table()),
    )


def _rows(columns: dict[str, np.ndarray]) -> list[dict[str, Any]]:
    """Return a table as rows for JSON, which has no NaN."""
    return [dict(zip(columns, row, strict=True)) for row in zip(*plain(columns).values(), strict=True)]


# -- heads: text ------------------------------------------------------------------------------------------------------


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
    names = ("lag explains", "offset", "first token", "by its key", "slow blocks", "outliers", "removable_blocks")
    rows: list[tuple[str, ...]] = [("head", *names, f"{half} stilled", "by norms")]
    estimates = (found.lag_explained, found.offset, found.sink, found.sink_key, found.sink_slow)
    for one in places:
        cells = [_cell(estimate, one) for estimate in estimates]
        counts = (str(np.sum(found.outlier[one])), str(can[one]))
        changes = (_cell(each, (one, half)) for each in (found.change, found.norm_change))
        rows.append((f"{found.layer[one]}.{found.head[one]}", *cells, *counts, *changes))
    return rows


def _report_heads(found: Atlas, law: KernelFit | None) -> Report:
    """Return the findings in words, and the heads whose lag explains most; a page has all heads."""
    said = str(found).split("\n")
    if law is not None:
        nearest = f"{law.sentence}; as many blocks of it err {law.design_rms:.2g}"
        said += [f"The law nearest to the frequencies of all heads: {nearest}."]
    first = np.argsort(-np.nan_to_num(found.lag_explained.value), kind="stable")
    parts: list[Any] = [Words(said), Table(_table(found, first[:_SHOWN]), "Heads whose lag explains most", note=_NOTES)]
    parts += [lambda: [Table(_table(found, np.arange(len(found.head))), "All heads")]]
    return Report(parts, said[1])
