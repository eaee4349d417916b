"""``rfrope design``: the frequencies of a kernel, how well they realise it, and a file of them."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

import rfrope
from rfrope import designs, exports, kernels, plotting, storage
from rfrope._core import angles, files
from rfrope._core.arguments import printable
from rfrope.cli import page
from rfrope.cli.shared import (
    add_plot,
    check_files,
    contexts,
    drawn,
    even,
    naming,
    one_of,
    place,
    print_table,
    print_text,
    whole,
)
from rfrope.moments import Fidelity, fidelity, mean_kernel_band


def add(commands: Any) -> None:
    """Add the command to the parser."""
    design = commands.add_parser(
        "design",
        help="make the frequencies of a kernel, say how well they realise it, and write them to a file",
        description="Make the frequencies of a kernel for a head, or for each of several, and say how far their mean "
        "kernel (1/D) Σ cos(lag ω) is from Φ over a context. Exit code: 0, or 2 for bad input.",
        epilog='Example: rfrope design "gaussian(scale=32)" --head-dim 64 --heads 8 --context 4096 -o gaussian.npz',
    )
    design.add_argument(
        "kernels", nargs="+", metavar="KERNEL", help='such as "matern(nu=1.5, scale=16)"; several: one for each head'
    )
    design.add_argument(
        "--head-dim", type=even, required=True, metavar="d", help="rotated width of a head; it has D = d/2 frequencies"
    )
    design.add_argument("--heads", type=whole(1), metavar="H", help="number of heads, with one set for each")
    design.add_argument(
        "--ladder", type=_ladder, metavar="FIRST:LAST", help="scales of the kernel at equal ratios from head to head"
    )
    design.add_argument(
        "--context",
        type=contexts,
        required=True,
        metavar="N",
        help="number of positions: errors are given for lags 0 to N - 1; N,M for two axes",
    )
    design.add_argument(
        "--design",
        type=one_of((*designs.names(), "auto")),
        choices=(*designs.names(), "auto"),
        default="auto",
        help="how frequencies are made (default: %(default)s)",
    )
    design.add_argument("--norm", choices=("rms", "sup"), help="which error --design optimised lowers (default: rms)")
    design.add_argument(
        "--seed", type=whole(0, math.inf), default=0, help="seed of the randomised designs (default: 0)"
    )
    design.add_argument("--dtype", choices=("float64", "float32"), default="float64", help="default: %(default)s")
    design.add_argument("-o", "--output", metavar="FILE.npz", help="write the frequencies (or FILE.safetensors)")
    add_plot(design)
    design.add_argument("--json", action="store_true", help="print JSON instead of text")
    design.set_defaults(run=_design)


def _ladder(text: str) -> tuple[float, float]:
    """Argument type: two positive numbers with a colon between them."""
    try:
        first, last = map(float, text.split(":"))
    except ValueError:
        first = last = 0.0
    if not (0.0 < first < math.inf and 0.0 < last < math.inf):
        raise argparse.ArgumentTypeError(f"{text!r} is not a range of scales; expected two positive numbers, as 8:512")
    return first, last


def _design(options: argparse.Namespace) -> int:
    chosen = [kernels.parse(text) for text in options.kernels]
    context = _per_axis(options.context, chosen[0])
    _check_options(options, chosen)
    check_files(options)
    try:
        rope = rfrope.design(
            chosen if len(chosen) > 1 else chosen[0],
            head_dim=options.head_dim,
            context=context,
            heads=options.heads,
            design=options.design,
            rng=options.seed,
            ladder=options.ladder,
            norm=options.norm,
            dtype=np.float64,
        )
    except ValueError as error:
        option = "--ladder" if str(error).startswith("kernel is") else f"--design {options.design}"
        raise ValueError(f"{option}: {error}") from None
    rope = replace(rope, frequencies=_narrowed(rope.frequencies, options.dtype))
    text = rope.source.kernel
    laws = [kernels.parse(one) for one in ([text] if isinstance(text, str) else text or ())]
    found = fidelity(laws, rope.frequencies, context)
    errors = {"rms": max(h.rms for h in found.heads), "sup": max(h.sup for h in found.heads)}
    rope = replace(rope, source=replace(rope.source, error=errors))
    _write_files(options, rope, laws, found)
    title = f"Frequencies for {laws[0]!r}" + (f" and {len(laws) - 1} more kernels" if len(laws) > 1 else "")
    page.write_page(options, title, _parts(rope, laws, found), lambda: _print_design(options, rope, found))
    if options.json:
        about = {"head_dim": rope.head_dim, "shape": list(rope.frequencies.shape), "dtype": options.dtype}
        written = {"output": options.output, "plot": options.plot, "html": options.html}
        source = {"norm": None, "seed": None} | rope.source.to_dict()
        print_text(json.dumps(source | about | written | found.to_dict(), indent=1, allow_nan=False))
    else:
        _print_design(options, rope, found)
    return 0


def _narrowed(frequencies: np.ndarray, dtype: str) -> np.ndarray:
    """Frequencies in a dtype, if it can hold them."""
    limits, sizes = np.finfo(dtype), np.abs(frequencies)
    smallest = np.min(sizes, where=sizes > 0.0, initial=np.inf)
    if np.max(sizes, initial=0.0) > limits.max or smallest < limits.tiny:
        raise ValueError(
            f"--dtype {dtype}: the frequencies go from {smallest:.3g} to {np.max(sizes):.3g}; expected float64 for them"
        )
    return frequencies.astype(dtype)


def _check_options(options: argparse.Namespace, chosen: list[kernels.Kernel]) -> None:
    """Say in the words of the command line what does not go together."""
    if options.ladder is not None and (len(chosen) > 1 or options.heads is None):
        raise ValueError("--ladder: expected one KERNEL with it, and --heads")
    if len(chosen) > 1 and options.heads not in (None, len(chosen)):
        raise ValueError(f"--heads {options.heads} with {len(chosen)} KERNELs; expected as many, or no --heads")
    if len({kernel.ndim for kernel in chosen}) > 1:
        raise ValueError(f"KERNELs have {[k.ndim for k in chosen]} axes; expected one ndim for all heads")
    if options.norm is not None and options.design != "optimised":
        raise ValueError(f"--norm {options.norm} with --design {options.design}: expected it with optimised alone")


def _per_axis(context: tuple[int, ...], kernel: kernels.Kernel) -> tuple[int, ...]:
    if len(context) not in (1, kernel.ndim):
        given = ",".join(map(str, context))
        raise ValueError(
            f"--context {given}: {kernel!r} has ndim {kernel.ndim}; expected one number or one for each axis"
        )
    return context if len(context) == kernel.ndim else context * kernel.ndim


def _write_files(options: argparse.Namespace, rope: rfrope.Rope, laws: list[kernels.Kernel], found: Fidelity) -> None:
    """Write nothing before all is ready to be written."""
    made = []
    if options.output is not None:
        made.append(("-o", options.output, storage.packed(options.output, rope)))
    if options.plot is not None:
        made.append(("--plot", options.plot, _figure(options.plot, rope.frequencies, laws, found)))
    for option, path, content in made:
        with naming(option, path):
            files.write(path, content, overwrite=options.force)


def _figure(path: str, frequencies: np.ndarray, laws: list[kernels.Kernel], found: Fidelity) -> bytes:
    """Two panels: the kernel with the mean kernels of its heads (of the worst, for several kernels), frequencies."""
    several = len(laws) > 1
    shown = frequencies[found.worst] if several else frequencies
    figure, (left, right) = plotting.new_figure(2)
    plotting.kernel(laws[found.worst if several else 0], max(found.context) - 1, frequencies=shown, ax=left)
    left.set_xscale("symlog", linthresh=1.0)
    if several:
        left.set_title(f"head {found.worst}, the worst of {len(laws)}: {laws[found.worst]!r}", fontsize="medium")
    plotting.frequencies(frequencies, ax=right)
    right.set_title("frequencies" + (" of all heads" if frequencies.shape[:-2] else ""), fontsize="medium")
    return drawn(path, figure)


def _about(rope: rfrope.Rope, reached: Fidelity) -> str:
    """Return a sentence on the frequencies."""
    n_heads, source = len(reached.heads), rope.source
    who = f"{n_heads} heads of {rope.n_blocks}" if n_heads > 1 else f"{rope.n_blocks}"
    seed = "" if source.seed is None else f", seed {source.seed}"
    norm = "" if source.norm is None else f" ({source.norm})"
    shape = f"{rope.frequencies.dtype} {tuple(rope.frequencies.shape)}"
    return f"{who} frequencies, radians per position: {shape}, design {source.design}{norm}{seed}."


def _bound(rope: rfrope.Rope, reached: Fidelity) -> str:
    """Return a sentence on independent draws: their bound, and how many of them would come as close."""
    worst = reached.heads[reached.worst]
    more = (
        "These frequencies are exact."
        if reached.blocks is None
        else f"to stay within {worst.sup:.3g}, as here, it asks for {reached.blocks} of them."
    )
    return (
        f"{rope.n_blocks} independent draws stay within {reached.bound:.3g} of Φ at all lags with "
        f"{reached.confidence:.0%} certainty (Hoeffding's\nbound: safe, not sharp)"
        f"{'.' if reached.blocks is None else ';'} {more}"
    )


def _print_design(options: argparse.Namespace, rope: rfrope.Rope, reached: Fidelity) -> None:
    n_heads, blocks, source = len(reached.heads), rope.n_blocks, rope.source
    print_text(_about(rope, reached))
    for path in filter(None, (options.output, options.plot, options.html)):
        print_text(f"Written: {printable(path)}")
    if options.output is None:
        print_text("The frequencies were not written: -o FILE.npz does it.")
    reach = place(tuple(c - 1 for c in reached.context))
    where = f"lags 0 to {reach}" if len(reached.context) == 1 else f"lags up to {reach} in size on every axis"
    print_text(f"\nError of the mean kernel (1/D) Σ cos(lag ω), which is to be Φ, over {where}:")
    print_table(_error_rows(reached))
    if source.lower_bound:
        print_text(f"No {blocks} frequencies, however they are chosen, reach an rms below {source.lower_bound:.3g}.")
    worst = reached.heads[reached.worst]
    head = f"head {reached.worst}, the worst: " if n_heads > 1 else ""
    print_text(f"\nAt a few lags ({head}{worst.kernel}), and what {blocks} independent draws would give (one sigma):")
    print_table(_lag_rows(reached), left=(0,))
    print_text(f"\n{_bound(rope, reached)}")


def _lag_rows(reached: Fidelity) -> list[tuple[str, ...]]:
    """A few lags: what was asked for, what is there, and what independent draws would give."""
    rows: list[tuple[str, ...]] = [("lag", "Φ", "these frequencies", "error", "independent draws")]
    for at in reached.lags:
        numbers = (f"{at.phi:.4f}", f"{at.mean_kernel:.4f}", f"{at.mean_kernel - at.phi:+.4f}")
        rows.append((place(at.lag), *numbers, f"{at.phi:.4f} ± {at.stderr:.4f}"))
    return rows


def _parts(rope: rfrope.Rope, laws: list[kernels.Kernel], found: Fidelity) -> Iterator[page.Part]:
    """Yield what was made, the kernel and what the frequencies of a head make of it, the errors, the config."""
    yield page.words(_about(rope, found), _bound(rope, found))
    omega, context = angles.read_on_host(rope).astype(np.float64), max(found.context)
    sets = list(omega.reshape(-1, *omega.shape[-2:]))
    heads = [f"{number}: {laws[number % len(laws)]!r}" for number in range(len(sets))]
    curves = [page.Curve("these frequencies", one, context - 1, group=head) for head, one in enumerate(sets)]

    def phi(lags: np.ndarray, head: int) -> tuple[np.ndarray, np.ndarray]:
        law = laws[head % len(laws)]
        vectors = law.restore_shape(np.repeat(lags[:, None].astype(np.float64), law.ndim, axis=1))
        band = mean_kernel_band(vectors, law, n_blocks=rope.n_blocks)
        return band.value, band.stderr

    groups, worst = (heads, found.worst) if len(sets) > 1 else ([], 0)
    title = "The kernel, and what the frequencies make of it"
    yield page.curves(title, curves, context, groups=groups, group=worst, phi=phi)
    yield page.table("Error of the mean kernel", _error_rows(found), left=(0, 2))
    yield page.table(f"At a few lags, {found.heads[found.worst].kernel}", _lag_rows(found), left=(0,))
    try:
        yield page.copyable("Config (transformers)", exports.export(rope, "transformers"))
    except ValueError as error:
        source = rope.source.to_dict()
        yield page.copyable("Where they come from", source, note=f"No config of transformers says it: {error}.")


def _error_rows(reached: Fidelity) -> list[tuple[str, ...]]:
    """Rows for every head of several kernels, else for the worst, and the mean if there are several heads."""
    rows: list[tuple[str, ...]] = [("head", "rms", "kernel", "largest", "at lag", "wavelengths (positions)")]
    distinct = len({head.kernel for head in reached.heads}) > 1
    for number, head in enumerate(reached.heads):
        if distinct or number == reached.worst:
            lengths = f"{head.shortest:.4g} to {head.longest:.4g}"
            name = f"{number}, worst" if number == reached.worst and len(reached.heads) > 1 else f"{number}"
            rows.append((name, f"{head.rms:.3g}", head.kernel, f"{head.sup:.3g}", place(head.sup_lag), lengths))
    if len(reached.heads) > 1:
        rms, sup = reached.mean
        rows.append(("mean", f"{rms:.3g}", "", f"{sup:.3g}", "", ""))
    return rows
