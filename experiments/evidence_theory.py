"""What theory predicts of series; README.md has the command.

Part of evidence_protocol.rst, made before any run. Nothing is trained but the numbers of one formula. For each
covariance of `evidence_series` there is the error of the posterior mean, below which no prediction falls; and for each
arm whose frequencies are not learned that of a sum of two weighted means whose weights are a softmax over its waves.
"""

from __future__ import annotations

import argparse
import pathlib
import sys
from collections.abc import Iterable

import numpy as np
import torch
from evidence import WIDTH
from evidence_series import COVARIANCES, NOISE, OBSERVED, SPAN, arms, correlations, times
from trained import Row, command, show, write

STEPS, SERIES = 200, 16  # of descent; sets of times that it sees
START = 5.0  # of the logits, over the covariance


def floor(text: str, at: np.ndarray) -> float:
    """Return the expected squared error of the posterior mean, in percent: ``1 - k' (K + s^2)^-1 k``."""
    seen, asked = at[:, :OBSERVED], at[:, OBSERVED:]
    matrix = correlations(text, seen, seen) + NOISE**2 * np.eye(OBSERVED)
    across = correlations(text, seen, asked)
    return float(100.0 * (1.0 - np.sum(across * np.linalg.solve(matrix, across), 1).mean()))


def expected(weights: torch.Tensor, text: str, at: np.ndarray) -> torch.Tensor:
    """Return the expected squared error of sums ``(series, WANTED, OBSERVED)`` of observed values, in percent."""
    seen, asked = at[:, :OBSERVED], at[:, OBSERVED:]
    matrix = torch.from_numpy(correlations(text, seen, seen) + NOISE**2 * np.eye(OBSERVED))
    across = torch.from_numpy(correlations(text, asked, seen))
    return 100.0 * (1.0 - 2.0 * (weights * across).sum(-1) + ((weights @ matrix) * weights).sum(-1)).mean()


def predicted(omega: np.ndarray, text: str, steps: int) -> float:
    """Return the error of two softmax means over given waves, lowered by descent, at times apart from its own.

    The estimate is ``sum_h v_h sum_j softmax_j(sum_i a_hi cos(lag_j omega_i) + b_hi sin(lag_j omega_i)) y_j``: what a
    layer of two heads can say where contents are constant, be they polar or not. Descent is over coordinates in which
    the waves are orthogonal on the span, and starts from logits like the covariance and their negative.
    """
    lags = np.arange(-SPAN, SPAN, 0.25)
    basis = np.concatenate([f(lags[:, None] * omega[:, 0]) for f in (np.cos, np.sin)], 1)
    left, sizes, right = np.linalg.svd(basis, full_matrices=False)
    kept = sizes > 1e-4 * sizes[0]
    scale = np.sqrt(len(lags))
    mixing = torch.from_numpy(scale * right[kept].T / sizes[kept])  # waves to coordinates whose mean square is 1
    like = torch.from_numpy(left[:, kept].T @ correlations(text, lags, np.zeros(1))[:, 0] / scale)
    logits = (START * torch.stack([like, -like])).requires_grad_()
    values = torch.tensor([1.2, -0.2], dtype=torch.float64, requires_grad=True)

    def error(at: np.ndarray) -> torch.Tensor:
        u = (at[:, None, :OBSERVED] - at[:, OBSERVED:, None])[..., None] * omega[:, 0]
        scores = torch.from_numpy(np.concatenate([np.cos(u), np.sin(u)], -1)) @ (mixing @ logits.mT)
        return expected(torch.softmax(scores, -2) @ values, text, at)

    own, apart = times(np.random.default_rng(1), SERIES), times(np.random.default_rng(2), 2 * SERIES)
    optimiser = torch.optim.Adam([logits, values], lr=0.1)
    schedule = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.05, steps)
    for _ in range(steps):
        optimiser.zero_grad()
        error(own).backward()
        optimiser.step()
        schedule.step()
    with torch.no_grad():
        return float(error(apart))


def theory(names: Iterable[str], steps: int) -> list[Row]:
    """Return predicted errors: of the posterior mean, and of arms by their best settings, on each covariance."""
    rows = []
    for data, text in COVARIANCES.items():
        least = floor(text, times(np.random.default_rng(2), 2 * SERIES))
        rows.append({"data": data, "arm": "posterior mean", "setting": "", "predicted": f"{least:.2f}"})
        for name, arm in arms(data).items():
            if name not in names or name == "none" or arm.learned:
                continue
            n = WIDTH if arm.polar else WIDTH // 2
            found = {one: predicted(waves(n, 0), text, steps) for one, waves in arm.settings.items()}
            best = min(found, key=found.__getitem__)
            rows.append({"data": data, "arm": name, "setting": best, "predicted": f"{found[best]:.2f}"})
    return rows


def table(rows: list[Row]) -> list[Row]:
    """Return a row for each arm, and a column of errors for each covariance, with the setting that has it."""
    found = {(row["arm"], row["data"]): f"{row['predicted']} {row['setting']}".strip() for row in rows}
    names = dict.fromkeys(row["arm"] for row in rows)
    return [{"arm": name} | {data: found[name, data] for data in COVARIANCES} for name in names]


def main(arguments: list[str] | None = None) -> int:
    """Run the command line."""
    names = list(arms("sum"))
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("--output", metavar="FILE", type=pathlib.Path, required=True, help="comma-separated values")
    parser.add_argument("--arms", metavar="NAME", nargs="+", choices=names, default=names)
    parser.add_argument("--steps", metavar="N", type=int, default=STEPS, help=f"of descent; {STEPS}")
    options = parser.parse_args(arguments)
    rows = theory(options.arms, options.steps)
    write(options.output, rows)
    show(table(rows), options.output, command("evidence_theory.py", arguments))
    return 0


if __name__ == "__main__":
    sys.exit(main())
