"""``rfrope validate``: check kernels against their closed forms."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from rfrope import kernels
from rfrope._core import files, parallel
from rfrope._core.arguments import probability
from rfrope._core.results import Report, Table, Words
from rfrope.cli import page
from rfrope.cli.shared import add_command, add_files, check_files, naming, whole
from rfrope.plotting import panels
from rfrope.validation import Row, Validation, validate

_FEW = 1000
_WORST = 5  # rows that are shown
_HALF = 2  # index of the one of five lags where Phi falls to one half
_SPREAD = """sd / mean: the score's standard deviation over draws of the frequencies, as a multiple of its
mean, at the lag where Φ falls to one half (median over pairs). One draw is not the mean."""
_STATEMENTS = "In the RF-RoPE paper: Φ is (2), E sin Lemma 1, E S Theorem 2, Φ₂ and Var S Proposition 4."
_COLUMNS = ("kernel", "lag", "quantity", "pair", "closed form", "estimate", "std. error", "z")


def add(commands: Any) -> None:
    """Add the command to the parser."""
    command = add_command(
        commands,
        "validate",
        _run,
        "Check kernels and their attention scores against closed forms: draw frequencies and compare Φ, Φ₂, "
        "E sin, E S and Var S.",
        example='rfrope validate "matern(nu=1.5, scale=16)" gaussian; rfrope validate --qk yours.npz --json',
        codes="0 when every |z| lies under the Bonferroni bound, 1 when one does not, 2 for bad input",
    )
    option = command.add_argument
    option("kernels", nargs="*", metavar="KERNEL", help='such as "matern(nu=1.5, scale=16)"; all registered if none')
    option("--qk", metavar="FILE.npz", help="your q and k: arrays q and k, or NAME_q and NAME_k, of shape (n, d)")
    option("--pairing", choices=("half", "interleaved"), default="half", help="pairing of the vectors (default: half)")
    option("--polar", action="store_true", help="scores of polar contents: q and k are magnitudes, one for each block")
    option("--seed", type=whole, default=0, help="default: 0")
    option("--samples", type=whole, default=2**20, help="frequencies for Φ, Φ₂ and E sin (default: %(default)s)")
    option("--trials", type=whole, default=2**14, help="draws of all frequencies for S (default: %(default)s)")
    option("--alpha", type=float, default=1e-3, help="probability that a correct result fails (default: %(default)s)")
    add_files(command, "html")


def _run(options: argparse.Namespace) -> int:
    chosen = [kernels.parse(text) for text in options.kernels or [record.example for record in kernels.records()]]
    alpha = probability("alpha", options.alpha) / len(chosen)
    check_files(options)
    q, k = (None, None) if options.qk is None else _read_pairs(options.qk)
    given: dict[str, Any] = {"n_samples": options.samples, "n_trials": options.trials, "rng": options.seed}
    given |= {"q": q, "k": k, "alpha": alpha, "pairing": options.pairing, "polar": options.polar}
    results = [validate(kernel, **given) for kernel in parallel.show_progress(chosen, len(chosen), None)]
    passed = all(result.passed for result in results)
    about = {"passed": passed, "alpha": options.alpha, "seed": options.seed}
    data = about | {"results": [result.to_dict() for result in results]}
    page.emit(options, f"Validation: {'passed' if passed else 'FAILED'}", _report(results, options), data)
    return 0 if passed else 1


def _read_pairs(path: str) -> list[np.ndarray]:
    """Return q and k from arrays q and k, or from NAME_q and NAME_k one after the other."""
    with naming("--qk", path):
        arrays = files.read_arrays(path, compressed=True)
        heads = [name[:-1] for name in arrays if (name == "q" or name.endswith("_q")) and f"{name[:-1]}k" in arrays]
        pairs = [[np.atleast_2d(arrays[f"{head}{one}"]) for one in "qk"] for head in heads]
        if not pairs or any(one.ndim != 2 or one.shape[-1] != pairs[0][0].shape[-1] for pair in pairs for one in pair):
            held = ", ".join(f"{name} {array.shape}" for name, array in arrays.items()) or "nothing"
            raise ValueError(f"holds {held}; expected arrays q and k, or NAME_q and NAME_k, all of shape (n, d)")
    return [np.concatenate(each) for each in zip(*pairs, strict=True)]


def _report(results: list[Validation], options: argparse.Namespace) -> Report:
    """Return a line for each kernel, the worst rows or all, and the verdict."""
    cells, title = [_COLUMNS, *_worst_rows(results)[:_WORST]], "The rows with the largest |z|"
    rows = Table(cells, title, left=(0, 2), note="" if options.polar else _STATEMENTS)
    vectors = "real q and k of SmolLM2-135M-Instruct" if options.qk is None else f"q and k of {options.qk}"
    if options.polar:
        vectors = f"magnitudes of polar contents: {vectors}" + (" after softplus" if options.qk is None else "")
    first = results[0]
    read = f"Vectors: {first.n_pairs} pairs, {vectors}, {first.n_blocks} blocks; each row shows its worst pair."
    verdict, *caution = _verdict(results, options)
    parts: list[Any] = [
        lambda: [panels.comparisons("Every comparison", results)],
        Table(_summary(results), left=(0, 1, 4), note=_SPREAD),
        rows,
        *(Words([one]) for one in (read, verdict, *caution)),
    ]
    return Report(parts, verdict)


def _verdict(results: list[Validation], options: argparse.Namespace) -> Iterator[str]:
    """Yield the result in a sentence, and a warning if there are few draws."""
    first, tests = results[0], sum(len(result.rows) for result in results)
    worst = max(results, key=lambda result: abs(result.worst.z))
    yield (
        f"{'PASSED' if all(result.passed for result in results) else 'FAILED'}: largest |z| {abs(worst.worst.z):.2f} "
        f"({worst.kernel}, {worst.worst.quantity}, lag {_lag(worst.worst)});\n"
        f"bound {min(r.bound for r in results):.2f} (Bonferroni, {tests} tests, alpha {options.alpha:g}); "
        f"{first.n_samples} samples, {first.n_trials} trials, seed {options.seed}."
    )
    if min(first.n_samples, first.n_trials) < _FEW:
        few = f"With fewer than {_FEW} samples or trials"
        yield f"{few}, z is not quite normal: a correct result fails more often than alpha."


def _summary(results: list[Validation]) -> list[tuple[str, ...]]:
    """Return a head, and one line for each kernel."""
    table: list[tuple[str, ...]] = [("kernel", "result", "tests", "largest |z|", "of", "sd / mean")]
    for result in results:
        verdict, worst, spread = "passed" if result.passed else "FAILED", result.worst, result.spread[_HALF]
        where, multiple = f"{worst.quantity}, lag {_lag(worst)}", f"{spread:.2g}x"
        table.append((result.kernel, verdict, str(len(result.rows)), f"{abs(worst.z):.2f}", where, multiple))
    return table


def _worst_rows(results: list[Validation]) -> list[tuple[str, ...]]:
    """Return the rows, those with the largest abs(z) first."""
    rows = [(result, row) for result in results for row in _worst_pairs(result)]
    rows.sort(key=lambda pair: -abs(pair[1].z) if pair[1].z == pair[1].z else -math.inf)
    return [_cells(*pair) for pair in rows]


def _worst_pairs(result: Validation) -> list[Row]:
    """Return for each lag and quantity the row whose pair has the largest abs(z)."""
    worst: dict[tuple[Any, str], Row] = {}
    for row in result.rows:
        kept = worst.setdefault((row.lag, row.quantity), row)
        if abs(row.z) > abs(kept.z):
            worst[row.lag, row.quantity] = row
    return list(worst.values())


def _cells(result: Validation, row: Row) -> tuple[str, ...]:
    pair = "" if row.pair is None else str(row.pair)
    numbers = (f"{row.closed_form:.6g}", f"{row.estimate:.6g}", f"{row.stderr:.2g}", f"{row.z:+.2f}")
    return (result.kernel, _lag(row), row.quantity, pair, *numbers)


def _lag(row: Row) -> str:
    text = ", ".join(f"{v:.4g}" for v in row.lag)
    return text if len(row.lag) == 1 else f"({text})"
