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
from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import chain
from typing import Any

import numpy as np

import rfrope
from rfrope import _libraries, _threads, kernels
from rfrope.validation import Row, Validation, validate

_FEW = 1000
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


def _whole(least: int) -> Callable[[str], int]:
    """Return an argument type: a whole number from `least` on."""

    def whole_number(text: str) -> int:
        if (value := int(text)) < least:
            raise argparse.ArgumentTypeError(f"{value} is below {least}")
        return value

    return whole_number


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


def _print_table(rows: list[tuple[str, ...]]) -> None:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for number, row in enumerate(rows):
        cells = [
            cell.ljust(w) if i in (0, 2) else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        ]
        print("  ".join(cells).rstrip())
        if number == 0:
            print("  ".join("-" * w for w in widths))
