"""``rfrope tune``: learn frequencies for a longer context of a model from its loss on some texts."""

from __future__ import annotations

import argparse
import math
from dataclasses import replace
from typing import Any

import numpy as np

from rfrope import storage
from rfrope._core import files
from rfrope._core.results import Copyable, Report, Table
from rfrope.cli import page
from rfrope.cli.shared import add_command, add_files, add_model, check_files, load_model, naming, whole
from rfrope.integrations.tuned import Tuning

_STARTS = ("yarn", "llama3", "ntk")
_LEARNABLE = ("factors", "temperature")
_LEAST = 5  # documents: two choose, two are held out


def add(commands: Any) -> None:
    """Add the command to the parser."""
    command = add_command(
        commands,
        "tune",
        _run,
        "Learn factors of a model's frequencies and a temperature for a longer context, with all weights frozen, "
        "from the loss on some texts. Several methods of `rfrope plan` start, and the best continues. The table has "
        "the loss on held-out texts within the trained context and beyond, for the model as it is, every start and "
        "the learned rotation, with standard errors, and says where nothing was gained. Needs PyTorch and "
        "transformers; uses no network.",
        example="rfrope tune SmolLM2-135M --texts *.txt --context 16384 --checkpoint tuning.safetensors -o rope.npz",
    )
    option = command.add_argument
    add_model(command)
    option("--context", type=whole, metavar="N", required=True, help="positions to reach")
    option("--trained", type=whole, metavar="L", help="positions in training (default: the model's)")
    option("--starts", nargs="+", metavar="NAME", default=_STARTS, help="methods (default: yarn llama3 ntk)")
    option("--part", metavar="NAME", help="kind of layer that learns, as full_attention")
    option("--learnable", nargs="+", metavar="NAME", default=_LEARNABLE, help="factors, temperature (default: both)")
    option("--window", type=whole, metavar="N", help="tokens of a window (default: the trained ones, at most 1024)")
    option("--steps", type=whole, metavar="N", default=200, help="most steps from the best start (default: 200)")
    option("--rate", type=float, metavar="R", default=0.01, help="of the first step, falling to 0 (default: 0.01)")
    option("--seed", type=whole, metavar="N", default=0, help="of windows and held-out documents (default: 0)")
    option("--checkpoint", metavar="FILE", help="a file from which the same command goes on, however it ended")
    add_files(command, "output", "html")


def _run(options: argparse.Namespace) -> int:
    if len(options.texts) == 1 and options.documents < _LEAST:
        raise ValueError(f"--documents is {options.documents}; expected at least {_LEAST}")
    check_files(options)
    if options.checkpoint is not None:
        with naming("--checkpoint", options.checkpoint):
            files.check_writable(options.checkpoint, overwrite=True)
    if options.trained is not None and options.window is not None and options.window > options.trained:
        raise ValueError(f"--window is {options.window}; expected at most --trained, {options.trained}")
    model, tokenizer, texts = load_model(options)
    from rfrope.integrations import text_caches, transformers

    names = ("trained", "starts", "part", "learnable", "window", "steps", "rate", "checkpoint")
    given = {name: getattr(options, name) for name in names}
    documents: list[Any] = texts
    if len(texts) == 1:
        with naming("--documents and --context", f"{options.documents} of {options.texts[0]}"):
            documents = text_caches.cut_documents(tokenizer, texts, options.documents, options.context)
    found = transformers.tune(model, documents, options.context, tokenizer=tokenizer, rng=options.seed, **given)
    rope: Any = found.rope
    page.emit(
        options,
        f"{options.model} to {options.context} positions, learned",
        _report(found),
        found.to_dict(),
        output=lambda path: storage.packed(path, rope),
    )
    return 0


def _report(found: Tuning) -> Report:
    """Return what came out, and on a page the looks at the validation and what was learned."""
    rows = [("start", "step", "learning", *found.parts)]
    for line in found.history:
        numbers = (line["learning"], *line["validation"].values())
        cells = ("" if one is None or not math.isfinite(one) else f"{one:.4f}" for one in numbers)
        rows.append((line["start"], str(line["step"]), *cells))
    note = "Mean losses of the steps before, and of the documents that choose."
    looks = Table(rows, "Looks at the validation", note=note)
    rope: Any = found.rope
    frequencies = {"frequencies": np.asarray(rope.frequencies).tolist(), "attention_factor": rope.attention_factor}
    report = found.report()
    return replace(report, parts=[*report.parts, lambda: [looks], Copyable("What was learned", frequencies)])
