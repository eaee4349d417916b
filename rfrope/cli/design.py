"""``rfrope design``: make frequencies of a kernel, report their error, and write them to a file."""

from __future__ import annotations

import argparse
import math
from dataclasses import replace
from typing import Any

import numpy as np

import rfrope
from rfrope import designs, engines, kernels, storage
from rfrope._core import angles
from rfrope._core.arguments import show
from rfrope._core.results import Copyable, Report, Table, Words, plain
from rfrope.cli import page
from rfrope.cli.shared import add_command, add_files, lengths, one_of, whole
from rfrope.moments import mean_kernel_band
from rfrope.moments.fidelity import head_errors
from rfrope.plotting import panels


def add(commands: Any) -> None:
    """Add the command to the parser."""
    command = add_command(
        commands,
        "design",
        _run,
        "Make the frequencies of a kernel for one head or several, write them to a file, and report how far their mean "
        "kernel (1/D) Σ cos(lag ω) is from Φ over a context.",
        example='rfrope design "gaussian(scale=32)" --head-dim 64 --heads 8 --context 4096 -o gaussian.npz',
    )
    option, names = command.add_argument, (*designs.names(), "auto")
    families = f"several: one for each head; families: {', '.join(kernels.names())}"
    option("kernels", nargs="+", metavar="KERNEL", help=f'as "matern(nu=1.5, scale=16)"; {families}')
    option("--head-dim", type=whole, required=True, metavar="d", help="rotated width of a head: d/2 frequencies")
    option("--polar", action="store_true", help="for polar attention: d frequencies, one for each magnitude of a head")
    option("--heads", type=whole, metavar="H", help="number of heads; each has its own set")
    option("--ladder", type=_range, metavar="FIRST:LAST", help="scales of the first and last head, geometric between")
    option("--context", type=lengths, required=True, metavar="N", help="number of positions; N,M for two axes")
    help_ = "how frequencies are made (default: %(default)s)"
    option("--design", type=one_of(names), choices=names, default="auto", help=help_)
    option("--norm", choices=("rms", "sup"), help="error that --design optimised minimises (default: rms)")
    option("--seed", type=whole, default=0, help="seed of the randomised designs (default: 0)")
    add_files(command, "output", "html")


def _range(text: str) -> tuple[float, float]:
    """Argument type: two numbers with a colon between them."""
    try:
        first, last = map(float, text.split(":"))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{show(text)} is not a range; expected two numbers, as 8:512") from None
    return first, last


def _run(options: argparse.Namespace) -> None:
    chosen = [kernels.parse(text) for text in options.kernels]
    rope = rfrope.design(
        chosen if len(chosen) > 1 else chosen[0],
        head_dim=options.head_dim,
        context=options.context if len(options.context) > 1 else options.context[0],
        heads=options.heads,
        design=options.design,
        rng=options.seed,
        ladder=options.ladder,
        norm=options.norm,
        polar=options.polar,
        dtype=np.float64,
    )
    text, context = rope.source.kernel, rope.context if isinstance(rope.context, tuple) else (rope.context,)
    laws = [kernels.parse(one) for one in ([text] if isinstance(text, str) else text or ())]
    heads = head_errors(laws, rope.frequencies, context)  # type: ignore[arg-type]
    errors = {name: [head[name] for head in heads] for name in ("rms", "sup")}
    rope = replace(rope, source=replace(rope.source, error={name: max(each) for name, each in errors.items()}))
    found: dict[str, Any] = {"context": context, "heads": heads, "worst": int(np.argmax(errors["sup"]))}
    found["mean"] = {name: math.fsum(each) / len(heads) for name, each in errors.items()}
    about = {"head_dim": rope.head_dim, "polar": rope.polar, "shape": list(rope.frequencies.shape)}
    page.emit(
        options,
        f"Frequencies for {laws[0]!r}" + (f" and {len(laws) - 1} more kernels" if len(laws) > 1 else ""),
        _report(rope, laws, found),
        {"norm": None, "seed": None} | rope.source.to_dict() | about | plain(found),
        output=lambda path: storage.packed(path, rope),
    )


# -- words and tables --------------------------------------------------------------------------------------------------


def _report(rope: rfrope.Rope, laws: list[kernels.Kernel], found: dict[str, Any]) -> Report:
    """Return what was made, its errors, and its config."""
    reach, heads = ", ".join(f"{length - 1}" for length in found["context"]), found["heads"]
    of_heads = f", in the worst of {len(heads)} heads" if len(heads) > 1 else ""
    verdict = "rms error {rms:.3g}, largest {sup:.3g}".format(**heads[found["worst"]])
    verdict += f", at lags up to {reach}{of_heads}."
    errors = f"Error of the mean kernel (1/D) Σ cos(lag ω) against Φ, at lags up to {reach}"
    fields = {name: getattr(rope.source, name) for name in ("design", "norm", "seed")}
    made = [f"{name} {value}" for name, value in fields.items() if value is not None]
    shape = f"{rope.frequencies.dtype} {tuple(rope.frequencies.shape)}"
    kind = " of polar features, one for each magnitude" if rope.polar else ""
    law = f" of {rope.source.kernel}" if isinstance(rope.source.kernel, str) else ""
    parts: list[Any] = [
        Words([verdict, f"Frequencies{law}{kind}, radians per position: {', '.join([shape, *made])}."]),
        lambda: [_draw(rope, laws, found)],
        Table(_error_rows(heads, found["worst"], found["mean"]), errors, left=(0, 2)),
        lambda: [_list_config(rope)],
    ]
    return Report(parts, verdict)


def _error_rows(heads: list[dict[str, Any]], worst: int, mean: dict[str, float]) -> list[tuple[str, ...]]:
    """Rows for every head of several kernels, else for the worst, and the mean if there are several heads."""
    rows: list[tuple[str, ...]] = [("head", "rms", "kernel", "largest", "at lag", "wavelengths (positions)")]
    distinct = len({head["kernel"] for head in heads}) > 1
    for number, head in enumerate(heads):
        if distinct or number == worst:
            wavelengths = "{shortest:.4g} to {longest:.4g}".format(**head)
            name = f"{number}, worst" if number == worst and len(heads) > 1 else f"{number}"
            lag = str(head["sup_lag"][0] if len(head["sup_lag"]) == 1 else head["sup_lag"])
            rows.append((name, f"{head['rms']:.3g}", head["kernel"], f"{head['sup']:.3g}", lag, wavelengths))
    if len(heads) > 1:
        rows.append(("mean", f"{mean['rms']:.3g}", "", f"{mean['sup']:.3g}", "", ""))
    return rows


# -- figures -----------------------------------------------------------------------------------------------------------


def _draw(rope: rfrope.Rope, laws: list[kernels.Kernel], found: dict[str, Any]) -> panels.Panel:
    """Return the kernel and the mean kernel of each head, the worst first."""
    omega, context = angles.read_on_host(rope).astype(np.float64), max(found["context"])
    sets = list(omega.reshape(-1, *omega.shape[-2:]))
    heads = [f"{number}: {laws[number % len(laws)]!r}" for number in range(len(sets))] if len(sets) > 1 else []
    curves = [panels.Curve("these frequencies", one, context - 1) for one in sets]

    def phi(lags: np.ndarray, head: int) -> tuple[np.ndarray, np.ndarray]:
        law = laws[head % len(laws)]
        vectors = law.restore_shape(np.repeat(lags[:, None].astype(np.float64), law.ndim, axis=1))
        band = mean_kernel_band(vectors, law, n_blocks=rope.n_blocks)
        return band.value, band.stderr

    title = "The kernel Φ and the mean kernel of the frequencies"
    return panels.mean_kernels(title, curves, context, heads=heads, head=found["worst"] if heads else 0, phi=phi)


def _list_config(rope: rfrope.Rope) -> Copyable:
    try:
        return Copyable("Config (transformers)", engines.export(rope, "transformers"))
    except ValueError as error:
        return Copyable("Where they come from", rope.source.to_dict(), f"No config can hold them: {error}.")
