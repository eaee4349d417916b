"""Values between times; README.md has the command.

Task (b) of evidence_protocol.rst. A series is observed at 48 times that are drawn, and its values at 16 others are
to be predicted. Series are draws of a Gaussian process whose covariance is known, so that the ideal kernel and the
least error are known too (`evidence_theory`); or outlines of leaves (``--data leaves``), thinned at random.

Each run takes some seconds of one core. The file keeps what is done: the same command goes on after an interruption.
Beside it come a table (``.inc``) and a figure (``.svg``).
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import pathlib
import sys
from collections.abc import Mapping
from functools import cache

import numpy as np
import torch
from evidence import Arm, Batch, CosSin, Task, fitted, kernels, ladders
from evidence import main as evidence
from evidence import run as run_task
from scipy.optimize import minimize
from trained import Row

import rfrope

OBSERVED, WANTED, SPAN = 48, 16, 48.0  # times, drawn evenly from a span: a mean gap of 1, as between tokens
NOISE = 0.1  # standard deviation of what is observed about a process of variance 1
BATCH, STEPS, SEEDS, ITEMS = 16, 500, 5, 128
SEEN = 32  # series that a kernel is fitted to
CONTEXT = (int(SPAN),)
SEASON = "spectral_mixture(weights=(1.0,), means=({},), scales=({},))"
COVARIANCES = {
    "matern": "matern(nu=1.5, scale=3.0)",
    "gaussian": "gaussian(scale=3.0)",
    "sum": f"mixture([0.5, 0.5], [gaussian(scale=12.0), {SEASON.format(1.2566371, 0.08)}])",  # of a period of 5
}
DATA = (*COVARIANCES, "leaves")
WRONG = {"matern": "sum", "gaussian": "sum", "sum": "matern", "leaves": "sum"}
FAMILIES = {  # texts of kernels, with where a search for their parameters starts
    "matern(nu=0.5, scale={})": ((3.0,),),
    "matern(nu=1.5, scale={})": ((3.0,),),
    "matern(nu=2.5, scale={})": ((3.0,),),
    "gaussian(scale={})": ((3.0,),),
    f"mixture([0.5, 0.5], [gaussian(scale={{}}), {SEASON}])": tuple((6.0, mean, 0.1) for mean in (0.6, 1.2, 1.8)),
}
PAIRS = (
    ("covariance", "RoPE"),
    ("covariance, polar", "PoPE"),
    ("covariance, polar", "covariance"),
    ("likelihood", "covariance"),
    ("likelihood, polar", "covariance, polar"),
    ("wrong", "covariance"),
    ("wrong, polar", "covariance, polar"),
)


def correlations(text: str, times: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return the covariance ``(..., n, m)`` between times ``(..., n)`` and others ``(..., m)``."""
    phi = rfrope.kernels.parse(text).phi
    if times is not others:
        return np.asarray(phi(times[..., :, None] - others[..., None, :]))
    n = times.shape[-1]
    one, other = np.tril_indices(n, -1)  # half of the lags: exact waves of all would be a quarter of a run
    found = np.broadcast_to(np.eye(n), (*times.shape, n)).copy()
    found[..., one, other] = found[..., other, one] = phi(times[..., one] - times[..., other])
    return found


def times(rng: np.random.Generator, series: int) -> np.ndarray:
    """Return times ``(series, OBSERVED + WANTED)``: first those observed, then those to be predicted."""
    return rng.uniform(0.0, SPAN, (series, OBSERVED + WANTED))


def drawn(data: str, part: str, rng: np.random.Generator, series: int) -> tuple[np.ndarray, np.ndarray]:
    """Return times ``(series, OBSERVED + WANTED)`` and values, of which the observed ones have noise.

    Outlines of leaves are those of a part, each once and in order where as many as there are, or drawn from it.
    """
    if data == "leaves":
        outlines = leaves()[part]
        which = np.arange(series) if series == len(outlines) else rng.integers(len(outlines), size=series)
        places = np.argsort(rng.random((series, outlines.shape[1])), 1)[:, : OBSERVED + WANTED]
        return places * (SPAN / outlines.shape[1]), np.take_along_axis(outlines[which], places, 1)
    at = times(rng, series)
    matrix = correlations(COVARIANCES[data], at, at) + 1e-9 * np.eye(at.shape[1])
    values = (np.linalg.cholesky(matrix) @ rng.standard_normal((*at.shape, 1)))[..., 0]
    values[:, :OBSERVED] += NOISE * rng.standard_normal((series, OBSERVED))
    return at, values


@cache
def leaves() -> dict[str, np.ndarray]:
    """Return outlines of OSULeaf ``(leaves, 427)`` by their part, each of mean 0 and variance 1."""
    found = importlib.util.find_spec("aeon")
    if found is None:
        raise SystemExit("outlines of leaves come with aeon, which is not installed: pip install --no-deps aeon")
    folder = pathlib.Path(found.origin).parent / "datasets" / "data" / "OSULeaf"
    parts = {}
    for part in ("TRAIN", "TEST"):
        text = (folder / f"OSULeaf_{part}.ts").read_text("utf-8").lower().partition("@data")[2]
        rows = np.asarray([[float(one) for one in line.split(":")[0].split(",")] for line in text.split()])
        parts[part] = (rows - rows.mean(1, keepdims=True)) / rows.std(1, keepdims=True)
    return {"train": parts["TRAIN"][::2], "validation": parts["TRAIN"][1::2], "test": parts["TEST"]}


def batch(at: np.ndarray, values: np.ndarray) -> Batch:
    """Return tokens of a value and two signs: whether it is observed, and whether it is to be predicted."""
    seen = np.arange(at.shape[1]) < OBSERVED
    signs = np.broadcast_to(np.stack([seen, ~seen], -1), (*at.shape, 2))
    tokens = np.concatenate([np.where(seen, values, 0.0)[..., None], signs], -1)
    return Batch(torch.from_numpy(tokens).float(), torch.from_numpy(at), torch.from_numpy(values).float())


def hidden(tokens: int) -> torch.Tensor:
    """Return what is added to scores ``(tokens, tokens)``: no token sees one that is to be predicted."""
    return torch.zeros(tokens, tokens).index_fill(1, torch.arange(OBSERVED, tokens), -math.inf)


def squared(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the mean squared error of each series where it is to be predicted, in percent of the variance."""
    return 100.0 * (outputs[..., 0] - targets)[:, OBSERVED:].square().mean(-1)


@cache
def readings(data: str, part: str) -> dict[str, Batch]:
    """Return the series of validation or of the test."""
    rng = np.random.default_rng([DATA.index(data), 1 + (part == "test")])
    items = len(leaves()[part]) if data == "leaves" else ITEMS
    return {"error": batch(*drawn(data, part, rng, items))}


def task(data: str) -> Task:
    """Return the task: three inputs for each token, one output, whose error is in percent of the variance."""
    return Task(
        inputs=3,
        outputs=1,
        draw=lambda rng: batch(*drawn(data, "train", rng, BATCH)),
        parts=lambda part: readings(data, part),
        loss=lambda outputs, targets: squared(outputs, targets) / 100.0,
        error=squared,
        primary=("error",),
        steps=STEPS,
        pooled=False,
        bias=hidden,
    )


# -- kernels -----------------------------------------------------------------------------------------------------------


def surprise(text: str, noise: float, variance: float, at: np.ndarray, values: np.ndarray) -> float:
    """Return minus the logarithm of the likelihood of values ``(series, times)``, in nats for each of them."""
    matrix = variance * correlations(text, at, at) + noise**2 * np.eye(at.shape[1])
    lower = np.linalg.cholesky(matrix)
    white = np.linalg.solve(lower, values[..., None])[..., 0]
    logs = np.log(np.diagonal(lower, axis1=-2, axis2=-1))
    return float(np.mean(0.5 * white**2 + logs) + 0.5 * math.log(math.tau))


@cache
def likeliest(data: str) -> str:
    """Return the kernel under which `SEEN` series that are trained on are likeliest, of all `FAMILIES`."""
    at, values = drawn(data, "train", np.random.default_rng([DATA.index(data), 0]), SEEN)
    at, values = at[:, :OBSERVED], values[:, :OBSERVED]

    def of(logs: np.ndarray, family: str) -> float:
        noise, variance, *parameters = np.exp(np.clip(logs, -6.0, 6.0)).tolist()
        return surprise(family.format(*parameters), noise + 1e-3, variance, at, values)

    found = []
    for family, starts in FAMILIES.items():
        for start in starts:
            options = {"maxfev": 40 * (2 + len(start)), "xatol": 1e-2, "fatol": 1e-5}
            one = minimize(of, np.log([0.2, 1.0, *start]), (family,), "Nelder-Mead", options=options)
            found.append((float(one.fun), family.format(*np.exp(one.x[2:]).round(6).tolist())))
    return min(found)[1]


def arms(data: str) -> Mapping[str, Arm]:
    """Return arms by their names; those that are neither designed from data nor a baseline count for neither side."""
    bases = ladders(lambda n, base: rfrope.geometric(n, base=base))

    def of(text: str) -> dict[str, CosSin]:
        return {"": lambda n, _: fitted(text, CONTEXT, "optimised", n, 0)}

    likely = {"": lambda n, _: fitted(likeliest(data), CONTEXT, "optimised", n, 0)}
    made = {"none": Arm({"": None}), "RoPE": Arm(bases), "learned": Arm(bases, learned=True)}
    made |= {"PoPE": Arm(bases, polar=True), "PoPE, learned": Arm(bases, polar=True, learned=True)}
    for contents, polar in (("", False), (", polar", True)):
        scales = kernels("matern(nu=1.5, scale={})", (2.0, 4.0, 8.0), CONTEXT)
        made["scale" + contents] = Arm(scales, polar, designed=True)
        made["likelihood" + contents] = Arm(likely, polar, designed=True)
        made["wrong" + contents] = Arm(of(COVARIANCES[WRONG[data]]), polar, designed=None)
        if data in COVARIANCES:
            made["covariance" + contents] = Arm(of(COVARIANCES[data]), polar, designed=None)
    return made


# -- command -----------------------------------------------------------------------------------------------------------


def run(which: tuple[str, str, float, int], short: bool = False, data: str = "sum") -> Row:
    """Train and read an arm at a setting and a rate, by a seed."""
    return run_task(task(data), arms(data), which, short)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--data", choices=DATA, default="sum", help="what series are drawn from; sum")
    own = dict(columns=["error"], form=".2f", unit="percent of the variance", seeds=SEEDS, pairs=PAIRS)
    known = dict(names=arms("sum"), parser=parser, taken=("data",))
    return evidence(__doc__, "evidence_series.py", arguments, run, arms, **own, **known)


if __name__ == "__main__":
    sys.exit(main())
