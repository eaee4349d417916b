"""Phases that learn an offset; README.md has the command.

A head copies the token L positions back. Its queries and keys are random and say nothing of positions, its frequencies
are fixed; the phases that are added to the keys, one for each block, and one temperature are all that is trained. Seed
000 says that training takes phase i to ``L omega_i``, up to whole turns. The script prints how far each block is from
there, and from where a closed form says it settles; docs/howto/learning.rst shows what comes out. Everything is seeded.
"""

from __future__ import annotations

import argparse
import csv
import math
import pathlib
import sys
from dataclasses import dataclass

import numpy as np
import torch

import rfrope
from rfrope import heads

LENGTH, BATCH = 48, 6  # tokens of a sequence, and sequences of a step
SYMBOLS = 64  # that a token can be
NOISE = 0.5  # standard deviation of the random part of each feature; the part that all tokens share is 1 or 0
STEPS, RATE, SEED = 400, 0.1, 0
EVALUATED = 100  # batches that attention is averaged over
DISTANCES = (1, 4, 12)  # L
HEAVY = 0.5  # weight from which a block counts as one that can tell the offset
LAGS = np.arange(LENGTH) - np.arange(LENGTH)[:, None]  # key minus query


def frequency_sets() -> dict[str, np.ndarray]:
    """32 frequencies of standard RoPE, and as many drawn from a kernel."""
    drawn = rfrope.sample("gaussian(scale=4)", 32, rng=SEED, design="stratified")
    return {"geometric": rfrope.geometric(32), "gaussian(scale=4)": drawn}


class Head(torch.nn.Module):
    """Attention with fixed frequencies, whose phases and temperature are trained."""

    def __init__(self, omega: np.ndarray, causal: bool, generator: torch.Generator) -> None:
        super().__init__()
        self.omega, self.positions = torch.asarray(omega), torch.arange(LENGTH)
        self.hidden = torch.asarray(LAGS > 0) if causal else torch.zeros(LENGTH, LENGTH, dtype=torch.bool)
        start = 2.0 * math.pi * torch.rand(len(omega), generator=generator, dtype=torch.float64)
        self.phases = torch.nn.Parameter(start)
        self.log_temperature = torch.nn.Parameter(torch.zeros((), dtype=torch.float64))

    def forward(self, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        """Attention ``(batch, queries, keys)`` of queries and keys ``(batch, tokens, features)``."""
        scores = rfrope.scores(q, k, self.positions, self.positions, self.omega, shift=self.phases)
        scores = scores * torch.exp(self.log_temperature) / math.sqrt(q.shape[-1])
        return torch.softmax(scores.masked_fill(self.hidden, -math.inf), dim=-1)


def contents(blocks: int, generator: torch.Generator) -> torch.Tensor:
    """Vectors of tokens: (1, 0) in every block, and noise; the same law at every position."""
    shared = torch.cat([torch.ones(blocks), torch.zeros(blocks)]).double()
    noise = torch.randn(BATCH, LENGTH, 2 * blocks, generator=generator, dtype=torch.float64)
    return shared + NOISE * noise


def copy_loss(attention: torch.Tensor, tokens: torch.Tensor, distance: int) -> torch.Tensor:
    """Cross-entropy of saying the token `distance` back, where the head says what it attends to."""
    wanted = tokens[:, : LENGTH - distance, None]
    said = torch.sum(attention[:, distance:] * (tokens[:, None] == wanted), dim=-1)
    return -torch.mean(torch.log(said))


@dataclass(frozen=True, eq=False)
class Run:
    """A trained head.

    Attributes
    ----------
    omega, phases : arrays, (D,)
        Frequencies, and what their blocks have learned.
    distance : int
        L.
    causal : bool
        Whether keys after the query were hidden.
    temperature : float
        What was learned.
    losses : array, (steps,)
        Cross-entropy at each step.
    learned, at_claim : float
        Cross-entropy after training, and that of phases ``L omega_i`` at the best of some temperatures, over contents
        that training does not see.
    before, after : arrays, (lags,)
        Mean attention at each of `lags`.
    lags : array
        Lags that queries with a token L back have.
    weights : array, (D,)
        How much lower a block at ``L omega_i`` is at the keys on average than at the one L back: what it contributes.
    settled : array, (D,), radians
        How far from ``L omega_i`` the gradient vanishes, from the attention that was learned.
    """

    omega: np.ndarray
    distance: int
    causal: bool
    phases: np.ndarray
    temperature: float
    losses: np.ndarray
    learned: float
    at_claim: float
    lags: np.ndarray
    before: np.ndarray
    after: np.ndarray
    weights: np.ndarray
    settled: np.ndarray

    @property
    def misses(self) -> np.ndarray:
        """By how much each phase misses ``L omega_i``, in radians between -pi and pi."""
        return np.angle(np.exp(1j * (self.phases - self.distance * self.omega)))

    @property
    def alignment(self) -> float:
        """Weighted mean of the cosines of the misses: 1 where every block that counts is at ``L omega_i``."""
        return float(np.average(np.cos(self.misses), weights=self.weights))

    @property
    def peak(self) -> float:
        """Offset at which the scores of equal contents are highest."""
        high = 0.0 if self.causal else LENGTH
        return float(heads.offset_of(self.omega, self.phases, low=-LENGTH, high=high).offset)


def train(omega: np.ndarray, distance: int, *, causal: bool, steps: int = STEPS, seed: int = SEED) -> Run:
    """Train a head from random phases."""
    generator = torch.Generator().manual_seed(seed)
    head = Head(omega, causal, generator)
    optimizer = torch.optim.Adam(head.parameters(), lr=RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    before, losses = mean_attention(head), []
    for _ in range(steps):
        q, k = contents(len(omega), generator), contents(len(omega), generator)
        tokens = torch.randint(SYMBOLS, (BATCH, LENGTH), generator=generator)
        loss = copy_loss(head(q, k), tokens, distance)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    after, visible = mean_attention(head), ~head.hidden.numpy()[distance:]
    phases, temperature = head.phases.detach().numpy().copy(), math.exp(head.log_temperature.item())
    return Run(
        omega, distance, causal, phases, temperature, np.asarray(losses), mean_loss(head, distance),
        loss_at_claim(head, distance), *by_lag(visible, before[distance:], after[distance:], lags=LAGS[distance:]),
        1.0 - mean_turn(omega, distance, visible / np.sum(visible, axis=-1, keepdims=True)).real,
        -np.angle(1.0 - mean_turn(omega, distance, after[distance:])),
    )  # fmt: skip


def mean_loss(head: Head, distance: int) -> float:
    """Cross-entropy over contents and tokens that training does not see, the same at every call."""
    generator, blocks, losses = torch.Generator().manual_seed(SEED + 2), len(head.omega), []
    with torch.no_grad():
        for _ in range(EVALUATED // 2):
            q, k = contents(blocks, generator), contents(blocks, generator)
            tokens = torch.randint(SYMBOLS, (BATCH, LENGTH), generator=generator)
            losses.append(copy_loss(head(q, k), tokens, distance).item())
    return float(np.mean(losses))


def loss_at_claim(head: Head, distance: int) -> float:
    """Cross-entropy with phases ``L omega_i``, at the best of temperatures from half to double the learned one."""
    found, learned = [], head.log_temperature.item()
    with torch.no_grad():
        head.phases.copy_(distance * head.omega)
        for factor in np.geomspace(0.5, 2.0, 9):
            head.log_temperature.fill_(learned + math.log(factor))
            found.append(mean_loss(head, distance))
    return min(found)


def mean_attention(head: Head) -> np.ndarray:
    """Attention ``(queries, keys)``, averaged over contents that training does not see."""
    generator = torch.Generator().manual_seed(SEED + 1)
    blocks = len(head.omega)
    with torch.no_grad():
        parts = [head(contents(blocks, generator), contents(blocks, generator)).mean(dim=0) for _ in range(EVALUATED)]
    return torch.stack(parts).mean(dim=0).numpy()


def mean_turn(omega: np.ndarray, distance: int, attention: np.ndarray) -> np.ndarray:
    """Mean over queries of ``sum_keys attention exp(i (lag + L) omega)``, for each block.

    If contents are all alike, the logarithm of the attention L back grows by ``Im(exp(i miss_i) (z_i - 1))``, times the
    temperature, for each radian of a phase, where ``miss_i = phase_i - L omega_i`` and z is this mean over the
    attention. That is zero, at a maximum, for ``miss_i = -arg(1 - z_i)``.
    """
    cos, sin = rfrope.rotation_table(LAGS[distance:] + distance, omega)
    return np.mean(np.sum(attention[..., None] * (cos + 1j * sin), axis=1), axis=0)


def by_lag(visible: np.ndarray, *attention: np.ndarray, lags: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return the lags at which keys are visible, and the mean attention at each of them."""
    found = np.unique(lags[visible])
    return found, *(np.asarray([one[visible & (lags == lag)].mean() for lag in found]) for one in attention)


def summary(name: str, run: Run) -> dict[str, str]:
    """Return one line of the table."""
    heavy = run.weights >= HEAVY
    apart = np.abs(np.angle(np.exp(1j * (run.misses - run.settled))))
    return {
        "frequencies": name,
        "keys": "up to the query" if run.causal else "on both sides",
        "L": f"{run.distance}",
        "loss, first": f"{run.losses[0]:.2f}",
        "learned": f"{run.learned:.2f}",
        "at L ω": f"{run.at_claim:.2f}",
        "attention L back": f"{run.after[run.lags == -run.distance][0]:.2f}",
        "peak": f"{run.peak:.2f}",
        "alignment": f"{run.alignment:.3f}",
        "heavy blocks": f"{np.sum(heavy)}",
        "largest miss": f"{np.max(np.abs(run.misses[heavy])):.2f}",
        "from closed form": f"{np.max(apart[heavy]):.2f}",
    }


def each_block(name: str, run: Run) -> list[dict[str, str]]:
    """Return one line for each block, from fast to slow."""
    return [
        {
            "frequencies": name,
            "keys": "up to the query" if run.causal else "on both sides",
            "L": f"{run.distance}",
            "frequency": f"{run.omega[block]:.6f}",
            "weight": f"{run.weights[block]:.3f}",
            "phase": f"{run.phases[block] % (2.0 * math.pi):.3f}",
            "miss": f"{run.misses[block]:.3f}",
            "closed form": f"{run.settled[block]:.3f}",
        }
        for block in np.argsort(-np.abs(run.omega))
    ]


def aligned(table: list[dict[str, str]]) -> str:
    """Return a table as text."""
    widths = {name: max(map(len, (name, *(row[name] for row in table)))) for name in table[0]}
    rows = [dict(zip(widths, widths, strict=True)), *table]
    return "\n".join("  ".join(row[name].rjust(width) for name, width in widths.items()) for row in rows) + "\n"


def include(table: list[dict[str, str]], command: str) -> str:
    """Return a list-table of reStructuredText."""
    lines = [f".. Made by: {command}", "", ".. list-table::", "   :header-rows: 1", ""]
    for row in [dict(zip(table[0], table[0], strict=True)), *table]:
        for number, value in enumerate(row.values()):
            lines.append(f"   {'-' if number else '* -'} {value}".replace("   - ", "     - "))
    return "\n".join(lines) + "\n"


def write_blocks(table: list[dict[str, str]], path: pathlib.Path, command: str) -> None:
    """Write all blocks as comma-separated values."""
    with path.open("w", encoding="utf-8", newline="") as file:
        file.write(f"# {command}\n")
        writer = csv.DictWriter(file, list(table[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(table)


def draw(rows: list[list[Run]], path: pathlib.Path, note: str) -> None:
    """Draw learning curves, what phases miss ``L omega`` by, and attention before and after; a row for each list."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    with pyplot.rc_context({"svg.hashsalt": "rfrope", "svg.fonttype": "none", "font.size": 8.0}):
        figure, axes = pyplot.subplots(len(rows), 3, figsize=(10.0, 3.0 * len(rows)), squeeze=False)
        for line, runs in zip(axes, rows, strict=True):
            for number, run in enumerate(runs):
                draw_run(line, run, f"C{number}")
            line[0].set(xlabel="step", ylabel=f"keys {'up to the query' if runs[0].causal else 'on both sides'}")
            line[0].legend(frameon=False)
            line[1].set(xlabel="frequency, radians per position", xscale="log", ylim=(-math.pi, math.pi))
            line[1].set_xticks(10.0 ** np.arange(-4, 1), ["0.0001", "0.001", "0.01", "0.1", "1"])
            line[1].axhline(0.0, color="0.6", linewidth=0.6, zorder=0)
            line[1].set_yticks(np.pi * np.asarray([-1.0, -0.5, 0.0, 0.5, 1.0]), ["-π", "-π/2", "0", "π/2", "π"])
            line[2].set(xlabel="lag: key minus query", xlim=(-24.0, 0.5 if runs[0].causal else 24.0))
        titles = ("cross-entropy of the copy", "learned phase minus L ω", "attention before (dashed) and after")
        for axis, title in zip(axes[0], titles, strict=True):
            axis.set_title(title, fontsize=8.0)
        figure.tight_layout(rect=(0.0, 0.03, 1.0, 1.0))
        figure.text(0.005, 0.005, note, fontsize=6.0, color="0.35")
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
        pyplot.close(figure)


def draw_run(axes: np.ndarray, run: Run, color: str) -> None:
    """Add one run to a row of three panels."""
    smooth = np.convolve(run.losses, np.full(10, 0.1), mode="valid")
    axes[0].plot(np.arange(len(smooth)) + 5, smooth, color=color, linewidth=1.0, label=f"L = {run.distance}")
    order = np.argsort(run.omega)
    axes[1].plot(run.omega[order], run.settled[order], color=color, linewidth=0.8, alpha=0.7)
    axes[1].scatter(run.omega, run.misses, s=3.0 + 17.0 * run.weights, color=color, linewidths=0.0, alpha=0.8)
    axes[2].plot(run.lags, run.before, "--", color=color, linewidth=0.7)
    axes[2].plot(run.lags, run.after, color=color, linewidth=1.0)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("--output", metavar="FILE", type=pathlib.Path, help="where to draw the geometric set")
    parser.add_argument("--steps", metavar="N", type=int, default=STEPS, help=f"of each of 12 trainings; {STEPS}")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)  # for tensors of this size threads would only wait for each other
    runs: list[tuple[str, Run]] = []
    for name, omega in frequency_sets().items():
        for causal in (False, True):
            runs += [(name, train(omega, distance, causal=causal, steps=options.steps)) for distance in DISTANCES]
            for one in runs[-len(DISTANCES) :]:
                print(aligned(each_block(*one)), flush=True)
    table = [summary(*one) for one in runs]
    print(aligned(table))
    if options.output:
        command = " ".join(
            ["python experiments/learned_offset.py", *(sys.argv[1:] if arguments is None else arguments)]
        )
        both, causal_runs = (
            [run for name, run in runs if name == "geometric" and run.causal is c] for c in (False, True)
        )
        draw([both, causal_runs], options.output, f"{command} (dots: the larger, the more weight; lines: closed form)")
        options.output.with_suffix(".inc").write_text(include(table, command), "utf-8")
        write_blocks([row for one in runs for row in each_block(*one)], options.output.with_suffix(".csv"), command)
    return 0


if __name__ == "__main__":
    sys.exit(main())
