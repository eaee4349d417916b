"""``rfrope validate``: kernels against their closed forms."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from rfrope import kernels
from rfrope._core import files, parallel
from rfrope.cli import page
from rfrope.cli.shared import add_page, check_page, print_table, print_text, styled, whole
from rfrope.validation import Row, Validation, validate

_FEW = 1000
_WORST = 5  # rows that are shown without --full
_HALF = 2  # index of the one of five lags where Phi falls to one half
_SPREAD = """sd / mean: the score's standard deviation over draws of the frequencies, as a multiple of its
mean, at the lag where Φ falls to one half (median over pairs). One draw is not the mean."""
_COLUMNS = ("kernel", "lag", "quantity", "pair", "closed form", "estimate", "std. error", "z")


def add(commands: Any) -> None:
    """Add the command to the parser."""
    check = commands.add_parser(
        "validate",
        help="check kernels, and the attention scores they give, against closed forms",
        description="Draw frequencies and compare Φ, Φ₂, E sin, E S and Var S with their closed forms. Exit code: 0 "
        "when every |z| lies under the Bonferroni bound, 1 when one does not, 2 for bad input.",
        epilog='Examples: rfrope validate; rfrope validate "matern(nu=1.5, scale=16)" gaussian --full; '
        "rfrope validate --qk yours.npz --json",
    )
    check.add_argument(
        "kernels", nargs="*", metavar="KERNEL", help='such as "matern(nu=1.5, scale=16)"; all registered if none'
    )
    check.add_argument(
        "--qk", metavar="FILE.npz", help="your q and k: arrays q and k, or NAME_q and NAME_k, of shape (n, d)"
    )
    check.add_argument(
        "--pairing", choices=("half", "interleaved"), default="half", help="pairing of the vectors (default: half)"
    )
    check.add_argument("--seed", type=whole(0, math.inf), default=0, help="default: 0")
    check.add_argument(
        "--samples", type=whole(2), default=2**20, help="frequencies for Φ, Φ₂ and E sin (default: %(default)s)"
    )
    check.add_argument(
        "--trials", type=whole(4), default=2**14, help="draws of all frequencies for S (default: %(default)s)"
    )
    check.add_argument("--blocks", type=whole(1), help="use only the first BLOCKS blocks of q and k (default: all)")
    check.add_argument(
        "--alpha", type=float, default=1e-3, help="chance that a right result fails (default: %(default)s)"
    )
    check.add_argument(
        "--full", action="store_true", help="print every lag and quantity of every kernel, not only the worst"
    )
    add_page(check)
    check.add_argument("--json", action="store_true", help="print JSON instead of a table")
    check.set_defaults(run=_validate)


def _validate(options: argparse.Namespace) -> int:
    texts = options.kernels or [record.example for record in kernels.records()]
    if not 0.0 < options.alpha < 1.0:
        raise ValueError(f"--alpha {options.alpha}: expected a probability between 0 and 1")
    chosen = [kernels.parse(text) for text in texts]
    check_page(options)
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
        for kernel in parallel.show_progress(chosen, len(chosen), None)
    ]
    passed = all(result.passed for result in results)
    title = f"Validation: {'passed' if passed else 'FAILED'}"

    def data() -> dict[str, Any]:
        about = {"passed": passed, "alpha": options.alpha, "seed": options.seed}
        return about | {"results": [result.to_dict() for result in results]}

    page.report(options, title, _parts(results, options), lambda: _print(results, options, passed), data)
    return 0 if passed else 1


def _parts(results: list[Validation], options: argparse.Namespace) -> Iterator[page.Part]:
    """Yield the verdict, z of every comparison, a line for each kernel, and the worst rows."""
    yield page.words(*_verdict(results, options))
    yield page.points("Every comparison", results)
    yield page.table("Kernels", _summary(results), left=(0, 1, 4), note=_SPREAD)
    yield page.table("The rows with the largest |z|", _worst_rows(results, 4 * _WORST))


def _print(results: list[Validation], options: argparse.Namespace, passed: bool) -> None:
    if options.full:
        print_table([_COLUMNS, *(_cells(result, row) for result in results for row in _worst_pairs(result))])
    else:
        print_table(_summary(results), left=(0, 1, 4))
        print_text(f"\n{_SPREAD}")
        print_text("\nThe rows with the largest |z|:")
        print_table(_worst_rows(results, _WORST))
    first = results[0]
    vectors = "real q and k of SmolLM2-135M-Instruct" if options.qk is None else f"q and k of {options.qk}"
    shown = "each row shows its worst pair" if options.full else "--full prints all lags and quantities"
    print_text(f"\nVectors: {first.n_pairs} pairs, {vectors}, {first.n_blocks} blocks; {shown}.")
    if options.full:
        _print_spread(results)
    word, _, rest = "\n".join(_verdict(results, options)).partition(":")
    print_text(f":{rest}", before=f"\n{styled(word, 'green' if passed else 'red')}")


def _verdict(results: list[Validation], options: argparse.Namespace) -> Iterator[str]:
    """Yield the result in a sentence, and a warning where it rests on few draws."""
    first, tests = results[0], sum(len(result.rows) for result in results)
    worst = max(results, key=lambda result: abs(result.worst.z))
    yield (
        f"{'PASSED' if all(result.passed for result in results) else 'FAILED'}: largest |z| {abs(worst.worst.z):.2f} "
        f"({worst.kernel}, {worst.worst.quantity}, lag {_lag(worst.worst.lag)});\n"
        f"bound {min(r.bound for r in results):.2f} (Bonferroni, {tests} tests, alpha {options.alpha:g}); "
        f"{first.n_samples} samples, {first.n_trials} trials, seed {options.seed}."
    )
    if min(first.n_samples, first.n_trials) < _FEW:
        few = f"With fewer than {_FEW} samples or trials"
        yield f"{few}, z is not quite normal: a right one fails more often than alpha."


def _summary(results: list[Validation]) -> list[tuple[str, ...]]:
    """Return a head, and one line for each kernel."""
    table: list[tuple[str, ...]] = [("kernel", "result", "tests", "largest |z|", "of", "sd / mean")]
    for result in results:
        verdict, worst = "passed" if result.passed else "FAILED", result.worst
        where = f"{worst.quantity}, lag {_lag(worst.lag)}"
        size = (str(len(result.rows)), f"{abs(worst.z):.2f}", where, _multiple(result.spread[_HALF]))
        table.append((result.kernel, verdict, *size))
    return table


def _worst_rows(results: list[Validation], most: int) -> list[tuple[str, ...]]:
    """Return a head, and the rows with the largest abs(z)."""
    rows = [(result, row) for result in results for row in _worst_pairs(result)]
    rows.sort(key=lambda held: -abs(held[1].z) if held[1].z == held[1].z else -math.inf)
    return [_COLUMNS, *(_cells(*held) for held in rows[:most])]


def _print_spread(results: list[Validation]) -> None:
    print_text(
        "The score's standard deviation over draws of the frequencies, as a multiple of its mean (median over pairs):"
    )
    for result in results:
        shown = ", ".join(
            f"{_multiple(s)} at lag {_lag(lag)}" for lag, s in zip(result.lags, result.spread, strict=True)
        )
        print_text(f"  {result.kernel}: {shown}")


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
    return (result.kernel, _lag(row.lag), row.quantity, pair, *numbers)


def _multiple(spread: float) -> str:
    return f"{spread:.2g}x" if math.isfinite(spread) else "a mean of 0"


def _lag(lag: tuple[float, ...]) -> str:
    text = ", ".join(f"{v:.4g}" for v in lag)
    return text if len(lag) == 1 else f"({text})"


def _read_pairs(path: str) -> tuple[np.ndarray, np.ndarray]:
    """Read pairs from arrays q and k, or NAME_q and NAME_k one after the other."""
    try:
        arrays = files.read_arrays(path, compressed=True)
    except FileNotFoundError:
        raise ValueError(f"--qk {path}: no such file") from None
    except (ValueError, OSError) as error:
        raise ValueError(f"--qk {path}: not an .npz file of plain numeric arrays that fit in memory: {error}") from None
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
