"""The command line: parse, call, print; no mathematics."""

from __future__ import annotations

import argparse
import io
import json
import math
import os
import platform
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass, replace
from itertools import chain
from typing import Any

import numpy as np

import rfrope
from rfrope import _libraries, _report, _threads, kernels, plotting, sampling, storage
from rfrope.validation import Row, Validation, validate

_FEW = 1000
_FIGURES = (".png", ".svg", ".pdf")
_COLUMNS = ("kernel", "lag", "quantity", "pair", "closed form", "estimate", "std. error", "z")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``rfrope``; returns the exit code: 0 for success, 1 for a failed validation, 2 for bad input."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal without Greek letters is no reason to stop
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        code: int = options.run(options)
        if sys.stdout is not None:
            sys.stdout.flush()
        return code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader left; nothing more to say
        return 0
    except (ValueError, TypeError, OSError, MemoryError) as error:
        print(f"rfrope {options.command}: error: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="rfrope", description="Kernel engineering for rotary position embeddings.")
    parser.add_argument("--version", action="version", version=f"rfrope {rfrope.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    check = commands.add_parser(
        "validate",
        help="check kernels, and the attention scores they give, against closed forms",
        description="Draw frequencies and compare Φ, Φ₂, E sin, E S and Var S with their closed forms. Exit code: 0 "
        "when every |z| lies under the Bonferroni bound, 1 when one does not, 2 for bad input.",
    )
    check.add_argument(
        "kernels", nargs="*", metavar="KERNEL", help='such as "matern(nu=1.5, scale=16)"; all registered if none'
    )
    check.add_argument(
        "--qk", metavar="FILE.npz", help="your q and k: arrays q and k, or NAME_q and NAME_k, of shape (n, d)"
    )
    check.add_argument(
        "--pairing", choices=("half", "interleaved"), default="half", help="of the vectors (default: half)"
    )
    check.add_argument("--seed", type=_whole(0), default=0, help="default: 0")
    check.add_argument(
        "--samples", type=_whole(2), default=2**20, help="frequencies for Φ, Φ₂ and E sin (default: %(default)s)"
    )
    check.add_argument(
        "--trials", type=_whole(4), default=2**14, help="draws of all frequencies for S (default: %(default)s)"
    )
    check.add_argument("--blocks", type=_whole(1), help="use the first so many blocks of q and k (default: all)")
    check.add_argument(
        "--alpha", type=float, default=1e-3, help="chance that a right result fails (default: %(default)s)"
    )
    check.add_argument("--json", action="store_true", help="print JSON instead of a table")
    check.set_defaults(run=_validate)

    _add_design(commands)
    listing = commands.add_parser(
        "kernels", help="list the registered kernels", description="List the registered kernels."
    )
    listing.add_argument("--json", action="store_true", help="print JSON instead of a list")
    listing.set_defaults(run=_kernels)

    doctor = commands.add_parser(
        "doctor",
        help="say which array libraries and accelerators are active here, and for the rest why not",
        description="Say which array libraries and accelerators are active on this machine, and for each that is not, "
        "why not and what to type next. Each is imported in a process of its own, which takes some seconds. "
        "Exit code: 0, whatever is found.",
    )
    doctor.add_argument("--json", action="store_true", help="print JSON instead of text")
    doctor.set_defaults(run=_doctor)
    return parser


def _add_design(commands: Any) -> None:
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
        "--head-dim", type=_even, required=True, metavar="d", help="rotated width of a head; it has D = d/2 frequencies"
    )
    design.add_argument("--heads", type=_whole(1), metavar="H", help="one set for each of so many heads")
    design.add_argument(
        "--ladder", type=_ladder, metavar="FIRST:LAST", help="scales of the kernel at equal ratios from head to head"
    )
    design.add_argument(
        "--context",
        type=_context,
        required=True,
        metavar="N",
        help="how many positions: errors are told over lags 0 to N - 1; N,M for two axes",
    )
    design.add_argument(
        "--design", choices=sampling.DESIGNS, default="auto", help="how frequencies are made (default: %(default)s)"
    )
    design.add_argument("--norm", choices=("rms", "sup"), help="which error --design optimised lowers (default: rms)")
    design.add_argument("--seed", type=_whole(0), default=0, help="of the randomised designs (default: 0)")
    design.add_argument("--dtype", choices=("float64", "float32"), default="float64", help="default: %(default)s")
    design.add_argument("-o", "--output", metavar="FILE.npz", help="write the frequencies (or FILE.safetensors)")
    design.add_argument("--plot", metavar="FILE.png", help="write a figure (or FILE.svg, FILE.pdf)")
    design.add_argument("--force", action="store_true", help="replace files that exist")
    design.add_argument("--json", action="store_true", help="print JSON instead of text")
    design.set_defaults(run=_design)


def _whole(least: int) -> Callable[[str], int]:
    """Return an argument type: a whole number from `least` on."""

    def whole_number(text: str) -> int:
        if (value := int(text)) < least:
            raise argparse.ArgumentTypeError(f"{value} is below {least}")
        return value

    return whole_number


def _even(text: str) -> int:
    """Argument type: an even number from 2 on."""
    if (value := _whole(2)(text)) % 2:
        raise argparse.ArgumentTypeError(f"{value} is odd; expected an even number, two features for each frequency")
    return value


def _context(text: str) -> tuple[int, ...]:
    """Argument type: one whole number, or one for each axis."""
    try:
        context = tuple(map(_whole(2), text.split(",")))
        if max(context) > 2**32 or math.prod(2 * c - 1 for c in context) > 2**52:
            raise argparse.ArgumentTypeError(
                f"{text:.40} is too long; expected at most 2**32 positions on an axis, and 2**52 lags"
            )
        return context
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no whole number; expected one, or one for each axis: 64,64"
        ) from None


def _ladder(text: str) -> tuple[float, float]:
    """Argument type: two positive numbers with a colon between them."""
    try:
        first, last = map(float, text.split(":"))
    except ValueError:
        first = last = 0.0
    if not (0.0 < first < math.inf and 0.0 < last < math.inf):
        raise argparse.ArgumentTypeError(f"{text!r} is no range of scales; expected two positive numbers such as 8:512")
    return first, last


def _validate(options: argparse.Namespace) -> int:
    texts = options.kernels or [record.example for record in kernels.records()]
    if not 0.0 < options.alpha < 1.0:
        raise ValueError(f"--alpha {options.alpha}: expected a probability between 0 and 1")
    chosen = [kernels.parse(text) for text in texts]
    q, k = (None, None) if options.qk is None else _read_pairs(options.qk)
    results = [
        validate(
            kernel,
            q=q,
            k=k,
            n_samples=options.samples,
            n_trials=options.trials,
            n_blocks=options.blocks,
            rng=options.seed,
            alpha=options.alpha / len(chosen),
            pairing=options.pairing,
        )
        for kernel in chosen
    ]
    passed = all(result.passed for result in results)
    if options.json:
        report = {
            "passed": passed,
            "alpha": options.alpha,
            "seed": options.seed,
            "results": [r.to_dict() for r in results],
        }
        print(json.dumps(report, indent=1, allow_nan=False))
    else:
        _print_validations(results, options, passed)
    return 0 if passed else 1


def _print_validations(results: list[Validation], options: argparse.Namespace, passed: bool) -> None:
    table: list[tuple[str, ...]] = [_COLUMNS]
    for result in results:
        table += [_cells(result, row) for row in _worst_pairs(result)]
    _print_table(table)
    first = results[0]
    vectors = "real q and k of SmolLM2-135M-Instruct" if options.qk is None else f"q and k of {options.qk}"
    print(f"\nVectors: {first.n_pairs} pairs, {vectors}, {first.n_blocks} blocks; each row shows its worst pair.")
    print(
        "The score's standard deviation over draws of the frequencies, as a multiple of its mean (median over pairs):"
    )
    for result in results:
        told = ", ".join(
            f"{_multiple(s)} at lag {_lag(lag)}" for lag, s in zip(result.lags, result.spread, strict=True)
        )
        print(f"  {result.kernel}: {told}")
    tests = sum(len(result.rows) for result in results)
    worst = max(results, key=lambda result: abs(result.worst.z))
    print(
        f"\n{'PASSED' if passed else 'FAILED'}: largest |z| {abs(worst.worst.z):.2f} "
        f"({worst.kernel}, {worst.worst.quantity}, lag {_lag(worst.worst.lag)}); "
        f"bound {min(r.bound for r in results):.2f} (Bonferroni, {tests} tests, alpha {options.alpha:g}); "
        f"{first.n_samples} samples, {first.n_trials} trials, seed {options.seed}."
    )
    if min(first.n_samples, first.n_trials) < _FEW:
        print(
            f"With fewer than {_FEW} samples or trials, z is not quite normal: a right one fails more often than alpha."
        )


def _worst_pairs(result: Validation) -> list[Row]:
    """For each lag and quantity the row whose pair has the largest abs(z)."""
    worst: dict[tuple[Any, str], Row] = {}
    for row in result.rows:
        kept = worst.setdefault((row.lag, row.quantity), row)
        if abs(row.z) > abs(kept.z):
            worst[row.lag, row.quantity] = row
    return list(worst.values())


def _cells(result: Validation, row: Row) -> tuple[str, ...]:
    pair = "" if row.pair is None else str(row.pair)
    numbers = (f"{row.closed_form:.6g}", f"{row.estimate:.6g}", f"{row.stderr:.2g}", f"{row.z:+.2f}")
    return (result.kernel, _lag(row.lag), row.quantity, pair, *numbers)


def _multiple(spread: float) -> str:
    return f"{spread:.2g}x" if math.isfinite(spread) else "a mean of 0"


def _lag(lag: tuple[float, ...]) -> str:
    text = ", ".join(f"{v:.4g}" for v in lag)
    return text if len(lag) == 1 else f"({text})"


def _design(options: argparse.Namespace) -> int:
    chosen = _chosen_kernels(options)
    context = _per_axis(options.context, chosen[0])
    design = _named_design(options, chosen)
    _check_files(options)
    reach, norm = ([c - 1 for c in context], options.norm or "rms") if design == "optimised" else (None, None)
    several = len(chosen) > 1
    try:
        frequencies = rfrope.sample(
            chosen if several else chosen[0],
            options.head_dim // 2,
            rng=options.seed,
            design=options.design,
            heads=options.heads,
            max_lag=reach,
            norm=norm,
        )
    except ValueError as error:
        raise ValueError(f"--design {options.design}: {error}") from None
    frequencies = _narrowed(frequencies, options.dtype)
    told = _report.report(chosen, frequencies, context)
    provenance = {
        "kernel": [*map(repr, chosen)] if several else repr(chosen[0]),
        "head_dim": options.head_dim,
        "design": design,
        "norm": norm,
        "seed": options.seed if design not in ("quantile", "optimised") else None,
        "context": list(context),
    }
    errors = {"rms": max(h.rms for h in told.heads), "sup": max(h.sup for h in told.heads)}
    _write_files(options, frequencies, provenance | {"error": errors}, chosen, told)
    about = provenance | {"shape": list(frequencies.shape), "dtype": options.dtype}
    if options.json:
        held = about | {"output": options.output, "plot": options.plot} | told.to_dict()
        print(json.dumps(held, indent=1, allow_nan=False))
    else:
        _print_design(options, about, told)
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


def _chosen_kernels(options: argparse.Namespace) -> list[kernels.Kernel]:
    """One kernel for all heads, or one for each."""
    chosen = [kernels.parse(text) for text in options.kernels]
    if options.ladder is not None:
        if len(chosen) > 1 or options.heads is None:
            raise ValueError("--ladder: expected with it one KERNEL, and --heads")
        first, last = options.ladder
        chosen = [_with_scale(chosen[0], scale) for scale in np.geomspace(first, last, options.heads).tolist()]
    if len(chosen) > 1 and options.heads not in (None, len(chosen)):
        raise ValueError(f"--heads {options.heads} with {len(chosen)} KERNELs; expected as many, or no --heads")
    if len({kernel.ndim for kernel in chosen}) > 1:
        raise ValueError(f"KERNELs have {[k.ndim for k in chosen]} axes; expected one ndim for all heads")
    return chosen


def _with_scale(kernel: kernels.Kernel, scale: float) -> kernels.Kernel:
    """Return a kernel of another scale, of so few digits that its text is the kernel."""
    if not isinstance(getattr(kernel, "scale", None), float) or not is_dataclass(kernel):
        raise ValueError(f"--ladder: {kernel!r} has no single scale; expected a kernel such as gaussian")
    return replace(kernel, scale=float(f"{scale:.6g}"))


def _per_axis(context: tuple[int, ...], kernel: kernels.Kernel) -> tuple[int, ...]:
    if len(context) not in (1, kernel.ndim):
        given = ",".join(map(str, context))
        raise ValueError(
            f"--context {given}: {kernel!r} has ndim {kernel.ndim}; expected one number or one for each axis"
        )
    return context if len(context) == kernel.ndim else context * kernel.ndim


def _named_design(options: argparse.Namespace, chosen: list[kernels.Kernel]) -> str:
    """Return the design's own name; "auto" stays if it is not the same for all kernels."""
    if options.norm is not None and options.design != "optimised":
        raise ValueError(f"--norm {options.norm} with --design {options.design}: expected it with optimised alone")
    try:
        names = {sampling.check_design(options.design, kernel) for kernel in chosen}
    except (ValueError, TypeError) as error:
        raise ValueError(f"--design {options.design}: {error}") from None
    return names.pop() if len(names) == 1 else str(options.design)


def _check_files(options: argparse.Namespace) -> None:
    """Say before the work why a file could not be written."""
    if options.output is not None:
        with _naming("-o", options.output):
            storage.check_target(options.output, overwrite=options.force)
    if options.plot is not None:
        if not options.plot.lower().endswith(_FIGURES):
            raise ValueError(f"--plot {options.plot}: expected a name that ends in {', '.join(_FIGURES)}")
        with _naming("--plot", options.plot):
            plotting.check_available()
            storage.check_writable(options.plot, overwrite=options.force)


@contextmanager
def _naming(option: str, path: str) -> Iterator[None]:
    """Errors of a file, told with the option that named it."""
    try:
        yield
    except (ValueError, OSError, ModuleNotFoundError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ValueError(f"{option} {path}: {reason.replace('overwrite=True', '--force')}") from None


def _write_files(
    options: argparse.Namespace,
    frequencies: np.ndarray,
    provenance: dict[str, Any],
    chosen: list[kernels.Kernel],
    told: _report.Report,
) -> None:
    """Write nothing before all is ready to be written."""
    files = []
    if options.output is not None:
        files.append(("-o", options.output, storage.packed(options.output, frequencies, provenance)))
    if options.plot is not None:
        files.append(("--plot", options.plot, _figure(options.plot, frequencies, chosen, told)))
    for option, path, content in files:
        with _naming(option, path):
            storage.write(path, content, overwrite=options.force)


def _figure(path: str, frequencies: np.ndarray, chosen: list[kernels.Kernel], told: _report.Report) -> bytes:
    """Two panels: the kernel with the mean kernels of its heads (of several kernels the worst head's), frequencies."""
    several = len(chosen) > 1
    shown = frequencies[told.worst] if several else frequencies
    figure, (left, right) = plotting.new_figure(2)
    plotting.kernel(chosen[told.worst if several else 0], max(told.context) - 1, frequencies=shown, ax=left)
    left.set_xscale("symlog", linthresh=1.0)
    plotting.frequencies(frequencies, ax=right)
    file = io.BytesIO()
    figure.savefig(file, format=os.path.splitext(path)[1][1:].lower())
    return file.getvalue()


def _print_design(options: argparse.Namespace, about: dict[str, Any], told: _report.Report) -> None:
    n_heads, blocks = len(told.heads), options.head_dim // 2
    who = f"{n_heads} heads of {blocks}" if n_heads > 1 else f"{blocks}"
    seed = "" if about["seed"] is None else f", seed {about['seed']}"
    norm = "" if about["norm"] is None else f" ({about['norm']})"
    shape = f"{about['dtype']} {tuple(about['shape'])}"
    print(f"{who} frequencies, radians per position: {shape}, design {about['design']}{norm}{seed}.")
    for path in filter(None, (options.output, options.plot)):
        print(f"Written: {path}")
    if options.output is None:
        print("The frequencies were not written: -o FILE.npz does it.")
    reach = _place(tuple(c - 1 for c in told.context))
    where = f"lags 0 to {reach}" if len(told.context) == 1 else f"lags up to {reach} in size on every axis"
    print(f"\nError of the mean kernel (1/D) Σ cos(lag ω), which is to be Φ, over {where}:")
    _print_table(_error_rows(told))
    worst = told.heads[told.worst]
    head = f"head {told.worst}, the worst: " if n_heads > 1 else ""
    print(f"\nAt a few lags ({head}{worst.kernel}), and what {blocks} independent draws would give (one sigma):")
    rows = [("lag", "Φ", "these frequencies", "error", "independent draws")]
    for at in told.lags:
        numbers = (f"{at.phi:.4f}", f"{at.mean_kernel:.4f}", f"{at.mean_kernel - at.phi:+.4f}")
        rows.append((_place(at.lag), *numbers, f"{at.phi:.4f} ± {at.stderr:.4f}"))
    _print_table(rows, left=(0,))
    sure = f"{told.confidence:.0%}"
    print(
        f"\n{blocks} independent draws stay within {told.bound:.3g} of Φ at all lags with {sure} certainty (Hoeffding's"
    )
    if told.blocks is None:
        print("bound: safe, not sharp). These frequencies are exact.")
    else:
        print(f"bound: safe, not sharp); to stay within {worst.sup:.3g}, as here, it asks for {told.blocks} of them.")


def _place(lag: tuple[int, ...]) -> str:
    return str(lag[0]) if len(lag) == 1 else str(lag)


def _error_rows(told: _report.Report) -> list[tuple[str, ...]]:
    """Of several kernels every head, else the worst, and the mean if there are several heads."""
    rows: list[tuple[str, ...]] = [("head", "rms", "kernel", "largest", "at lag", "wavelengths (positions)")]
    distinct = len({head.kernel for head in told.heads}) > 1
    for number, head in enumerate(told.heads):
        if distinct or number == told.worst:
            lengths = f"{head.shortest:.4g} to {head.longest:.4g}"
            name = f"{number}, worst" if number == told.worst and len(told.heads) > 1 else f"{number}"
            rows.append((name, f"{head.rms:.3g}", head.kernel, f"{head.sup:.3g}", _place(head.sup_lag), lengths))
    if len(told.heads) > 1:
        rms, sup = told.mean
        rows.append(("mean", f"{rms:.3g}", "", f"{sup:.3g}", "", ""))
    return rows


def _kernels(options: argparse.Namespace) -> int:
    records = kernels.records()
    if options.json:
        fields = ("name", "aliases", "formula", "law", "parameters", "dimensions", "example")
        print(json.dumps([{field: getattr(record, field) for field in fields} for record in records], indent=1))
        return 0
    for record in records:
        parameters = ", ".join(f"{name}={default}" for name, default in record.parameters.items())
        also = f" (also {', '.join(record.aliases)})" if record.aliases else ""
        print(f"{record.name}({parameters}){also}")
        print(f"    Φ = {record.formula}")
        print(f"    ω ~ {record.law}")
        print(f"    dimensions: {record.dimensions}; example: {record.example}")
    return 0


def _doctor(options: argparse.Namespace) -> int:
    system = f"{platform.system()} {platform.machine()}"
    threads, cores = _threads.allowed(), os.cpu_count() or 1
    libraries = _libraries.libraries()
    accelerators = chain(
        _libraries.apart("compiled loops and finufft", "rfrope._accel", "report"),
        _libraries.apart("CUDA kernels and cufinufft", "rfrope._accel", "cuda_report"),
    )
    if options.json:
        report = {
            "rfrope": rfrope.__version__,
            "python": platform.python_version(),
            "system": system,
            "threads": threads,
            "cores": cores,
            "libraries": [*map(asdict, libraries)],
            "accelerators": [*map(asdict, accelerators)],
        }
        print(json.dumps(report, indent=1))
        return 0
    print(f"rfrope {rfrope.__version__}, Python {platform.python_version()}, {system}")
    print(f"threads for rfrope's own loops: {threads}; cores: {cores}")
    for title, findings in (("Array libraries", libraries), ("Accelerators", accelerators)):
        print(f"\n{title}", flush=True)
        for finding in findings:
            _print_finding(finding)
    return 0


def _print_finding(finding: _libraries.Finding) -> None:
    parts = (finding.detail, finding.reason)
    print(f"  {'active' if finding.active else '-':6}  {finding.name}: {'; '.join(filter(None, parts)) or 'works'}")
    for number, device in enumerate(finding.devices):
        size = f"{device['memory'] / 2**30:.1f} GiB"
        print(f"{'':10}device {number}: {device['name']}, compute capability {device['compute_capability']}, {size}")
    if finding.advice:
        print(f"{'':10}next: {finding.advice}")
    sys.stdout.flush()


def _read_pairs(path: str) -> tuple[np.ndarray, np.ndarray]:
    """Read pairs from arrays q and k, or NAME_q and NAME_k one after the other."""
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except FileNotFoundError:
        raise ValueError(f"--qk {path}: no such file") from None
    except (ValueError, OSError, EOFError, AttributeError, TypeError, MemoryError, zipfile.BadZipFile, zlib.error):
        raise ValueError(f"--qk {path}: not an .npz file of plain numeric arrays that fit in memory") from None
    heads = [name[:-1] for name in arrays if (name == "q" or name.endswith("_q")) and f"{name[:-1]}k" in arrays]
    if not heads:
        held = ", ".join(f"{name} {array.shape}" for name, array in arrays.items()) or "nothing"
        raise ValueError(f"--qk {path}: holds {held}; expected arrays q and k (or NAME_q and NAME_k) of shape (n, d)")
    pairs = [(np.atleast_2d(arrays[f"{head}q"]), np.atleast_2d(arrays[f"{head}k"])) for head in heads]
    for head, (q, k) in zip(heads, pairs, strict=True):
        if q.shape != k.shape or q.ndim != 2 or q.shape[-1] != pairs[0][0].shape[-1]:
            raise ValueError(
                f"--qk {path}: {head}q has shape {q.shape} and {head}k {k.shape}; expected one shape (n, d) for all"
            )
    return np.concatenate([q for q, _ in pairs]), np.concatenate([k for _, k in pairs])


def _print_table(rows: Sequence[tuple[str, ...]], left: tuple[int, ...] = (0, 2)) -> None:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for number, row in enumerate(rows):
        cells = [
            cell.ljust(w) if i in left else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        ]
        print("  ".join(cells).rstrip())
        if number == 0:
            print("  ".join("-" * w for w in widths))
