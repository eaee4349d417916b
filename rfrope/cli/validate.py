"""``rfrope validate``: check kernels against their closed forms."""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

from rfrope import kernels
from rfrope._core import files, parallel
from rfrope._core.arguments import probability
from rfrope._core.results import Report, Table, Words
from rfrope.cli import page
from rfrope.cli.shared import add_command, add_files, naming, whole
from rfrope.plotting import panels
from rfrope.validation import Validation, validate

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
    option("--seed", type=whole, default=0, help="default: 0")
    option("--samples", type=whole, default=2**20, help="frequencies for Φ, Φ₂ and E sin (default: %(default)s)")
    option("--trials", type=whole, default=2**14, help="draws of all frequencies for S (default: %(default)s)")
    option("--alpha", type=float, default=1e-3, help="probability that a correct result fails (default: %(default)s)")
    add_files(command, "html")


def _run(options: argparse.Namespace) -> int:
    chosen = [kernels.parse(text) for text in options.kernels or [record.example for record in kernels.records()]]
    alpha = probability("alpha", options.alpha) / len(chosen)
    q, k = (None, None) if options.qk is None else _read_pairs(options.qk)
    given: dict[str, Any] = {"n_samples": options.samples, "n_trials": options.trials, "rng": options.seed}
    given |= {"q": q, "k": k, "alpha": alpha, "pairing": options.pairing}
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
    """Return a line for each kernel, the worst rows, and the verdict."""
    vectors = "real q and k of SmolLM2-135M-Instruct" if options.qk is None else f"q and k of {options.qk}"
    first, tests = results[0], sum(len(result.rows) for result in results)
    read = f"Vectors: {first.n_pairs} pairs, {vectors}, {first.n_blocks} blocks; each row shows its worst pair."
    worst = max(results, key=lambda result: abs(result.worst.z))
    verdict = (
        f"{'PASSED' if all(result.passed for result in results) else 'FAILED'}: largest |z| {abs(worst.worst.z):.2f} "
        f"({worst.kernel}, {worst.worst.quantity}, lag {worst.worst.place});\n"
        f"bound {min(r.bound for r in results):.2f} (Bonferroni, {tests} tests, alpha {options.alpha:g}); "
        f"{first.n_samples} samples, {first.n_trials} trials, seed {options.seed}."
    )
    said = [read, verdict]
    if min(first.n_samples, first.n_trials) < _FEW:
        few = f"With fewer than {_FEW} samples or trials"
        said.append(f"{few}, z is not quite normal: a correct result fails more often than alpha.")
    parts: list[Any] = [
        lambda: [panels.comparisons("Every comparison", results)],
        Table(_summary(results), left=(0, 1, 4), note=_SPREAD),
        Table(_worst_rows(results), "The rows with the largest |z|", left=(0, 2), note=_STATEMENTS),
        *(Words([one]) for one in said),
    ]
    return Report(parts, verdict)


def _summary(results: list[Validation]) -> list[tuple[str, ...]]:
    """Return a head, and one line for each kernel."""
    table: list[tuple[str, ...]] = [("kernel", "result", "tests", "largest |z|", "of", "sd / mean")]
    for result in results:
        verdict, worst, spread = "passed" if result.passed else "FAILED", result.worst, result.spread[_HALF]
        where, multiple = f"{worst.quantity}, lag {worst.place}", f"{spread:.2g}x"
        table.append((result.kernel, verdict, str(len(result.rows)), f"{abs(worst.z):.2f}", where, multiple))
    return table


def _worst_rows(results: list[Validation]) -> list[tuple[str, ...]]:
    """Return a head, and the rows with the largest abs(z), of each lag and quantity that of the worst pair."""
    worst: dict[tuple[Any, ...], tuple[str, ...]] = {}
    for result, row in sorted(((one, row) for one in results for row in one.rows), key=lambda pair: -pair[1].size):
        pair = "" if row.pair is None else str(row.pair)
        numbers = (f"{row.closed_form:.6g}", f"{row.estimate:.6g}", f"{row.stderr:.2g}", f"{row.z:+.2f}")
        cells = (result.kernel, row.place, row.quantity, pair, *numbers)
        worst.setdefault((id(result), row.lag, row.quantity), cells)
    return [_COLUMNS, *[*worst.values()][:_WORST]]
