"""The jobs that `benchmarks.peers` measures, as data: what is solved, by whom, and which target it is held against."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks import estimator_peers, process_peers, rotation_peers
from benchmarks.estimator_peers import BLOCKS, Draws, Lags, Scores
from benchmarks.process_peers import GAUSSIAN, INPUTS, KERNEL, MATERN, ROTATE, SCORES, Process
from benchmarks.rotation_peers import Rotation
from benchmarks.timing import Entry

# The rows of the table of CPU targets; every one has a job
ROWS = (
    "rotate float32 (1,32,4096,128), out=, phases formed on the fly",
    "same, float16 and bfloat16",
    "same, per-head frequencies (32, 64, 1)",
    "same, strided view (B, L, H, d) transposed, no hidden copy",
    "decode step (1,32,1,128) with out=",
    "estimate_scores, gaussian 1-D, d=128, 65536 trials, 1 lag",
    "same, 17 lags",
    "same, sinc / cauchy / matern 3/2 / gaussian in 2-D",
    "estimate_kernel, 2^20 samples, lags 0..2^17-1",
    "import rfrope",
    "memory of any estimator",
    "first call of any function",
    "never behind onnxruntime or torch complex",
    "decode step through a prepared Rope",
    "sample, 65536 blocks",
    "sample, orthogonal directions in 256 axes",
)


@dataclass(frozen=True)
class Target:
    """A bound on ours, in the unit of the job; on ours over a peer; or, with `faster`, from below on peer over ours."""

    row: int
    bound: float
    peer: str | None = None
    faster: bool = False

    def text(self, unit: str) -> str:
        """Say what is asked for."""
        if self.peer is None:
            return f"<= {self.bound:g} {unit}"
        return f">= {self.bound:g} x faster than {self.peer}" if self.faster else f"<= {self.bound:g} x {self.peer}"

    def measured(self, ours: np.ndarray, peer: np.ndarray) -> np.ndarray:
        """Return the figures to hold against the bound."""
        if self.peer is None:
            return ours
        return peer / ours if self.faster else ours / peer

    def verdict(self, measured: np.ndarray) -> str:
        """Say whether the bound holds, and by how much, where least, middle and largest figures agree on it."""
        least, short, most = sorted((self.bound / measured if self.faster else measured / self.bound) - 1.0)
        if least <= 0.0 < most:
            return f"open: {'short' if short > 0.0 else 'met'} by {abs(short):.0%}, and the rounds differ by more"
        return f"met, {-short:.0%} to spare" if short <= 0.0 else f"MISSED by {short:.0%}"


@dataclass(frozen=True)
class Job:
    """What is to be done, by rfrope and by its peers; seconds times `factor` are in `unit`."""

    name: str
    problem: Any
    ours: Callable[[Any], Entry]
    peers: tuple[str, ...] = ()
    targets: tuple[Target, ...] = ()
    unit: str = "ms"
    factor: float = 1e3
    same: Callable[[Any, Any], bool] | None = None

    def maker(self, peer: str) -> Callable[[Any], Entry]:
        """Return the function that prepares a peer."""
        for module in (rotation_peers, estimator_peers, process_peers):
            if peer in module.PEERS:
                return module.PEERS[peer]
        raise KeyError(peer)


@dataclass(frozen=True)
class Sizes:
    """How large the problems are."""

    tokens: int = 4096
    trials: int = 65536
    samples: int = 2**20
    lags: int = 2**17
    draws: int = 2**16
    axes: int = 256


FULL, TINY = Sizes(), Sizes(tokens=16, trials=2**10, samples=2**12, lags=2**8, draws=2**12, axes=16)

_COPY, _ONNX = "parallel copy", "onnxruntime RotaryEmbedding"
_EAGER, _COMPILED = "Hugging Face formula, torch eager", "Hugging Face formula, torch.compile"
_COMPLEX, _NUMPY, _EAGER_OUT = "torch complex", "NumPy formula", "Hugging Face formula, torch eager, out="
_VECTORISED, _THREADED, _TORCH = "NumPy, vectorised", "NumPy, vectorised, on threads", "torch float32, vectorised"
_EMPTY = "an empty function of Numba, compiled before"
_SIXTEENTH = "the same with a sixteenth of the draws"


def jobs(sizes: Sizes = FULL) -> list[Job]:
    """Return all jobs."""
    return [*_rotations(sizes), *_scores(sizes), *_others(sizes), *_processes(sizes)]


def _close(eps: float) -> Callable[[Any, Any], bool]:
    """Whether features agree to some roundings of their dtype; they are standard normal, so below 7."""
    return lambda ours, theirs: bool(np.max(np.abs(ours - theirs)) <= 4.0 * eps * 7.0)


def _within_errors(ours: np.ndarray, theirs: np.ndarray) -> bool:
    """Whether estimates agree within 6 standard errors of their difference."""
    return bool(np.all(np.abs(ours[0] - theirs[0]) <= 6.0 * np.hypot(ours[1], theirs[1])))


def _same_sums(ours: np.ndarray, theirs: np.ndarray) -> bool:
    """Whether means over the same draws agree, at the lags that both have."""
    common = min(ours.size, theirs.size)
    return bool(np.max(np.abs(ours[:common] - theirs[:common])) <= 1e-8)


def _rotations(sizes: Sizes) -> list[Job]:
    n = sizes.tokens
    first = (Target(0, 1.10, _COPY), Target(0, 1.8, _ONNX, True), Target(0, 12.0, _EAGER, True))
    half = (_COPY, _ONNX, _NUMPY, _EAGER, _EAGER_OUT, _COMPILED)
    interleaved = (_COPY, _ONNX, _COMPLEX, _NUMPY)
    narrow, heads, strided = Target(1, 1.3, _COPY), Target(2, 2.2, _COPY), Target(3, 1.3, _COPY)
    onnx, product = Target(12, 1.0, _ONNX, True), Target(12, 1.0, _COMPLEX, True)
    step = (_ONNX, _COMPLEX, _NUMPY, _EAGER, _EAGER_OUT, _COMPILED)
    f16, b16 = {"dtype": "float16"}, {"dtype": "bfloat16"}
    last, dense = {"layout": "heads last"}, {"layout": "heads last", "into": "contiguous out"}
    pairs, ready, torch = {"pairing": "interleaved"}, {"prepared": True}, {"backend": "torch", "into": "fresh"}
    rows: Sequence[tuple[str, Rotation, tuple[str, ...], tuple[Target, ...]]] = (
        ("float32, out=", Rotation(n), half, first),
        ("float32, interleaved, out=", Rotation(n, **pairs), interleaved, (*first[:2], product)),
        ("float32, in place", Rotation(n, into="in place"), (_COPY, _NUMPY), ()),
        (
            "float32, interleaved, in place",
            Rotation(n, into="in place", **pairs),
            (_COPY, _COMPLEX, _NUMPY),
            (product,),
        ),
        ("float32, fresh result", Rotation(n, into="fresh"), ("copy to fresh memory", _NUMPY, _EAGER, _COMPILED), ()),
        ("float32, torch, out=", Rotation(n, backend="torch"), (_COPY, _EAGER, _EAGER_OUT), ()),
        ("float16, out=", Rotation(n, **f16), (_COPY, _ONNX, _NUMPY, _EAGER, _COMPILED), (narrow, onnx)),
        ("float16, interleaved, out=", Rotation(n, **f16, **pairs), (_COPY, _ONNX), (narrow, onnx)),
        ("bfloat16 of ml_dtypes, out=", Rotation(n, **b16), (_COPY, _NUMPY), (narrow,)),
        ("bfloat16 of torch, out=", Rotation(n, backend="torch", **b16), (_COPY, _EAGER, _COMPILED, _ONNX), (narrow,)),
        ("float32, frequencies for each head, out=", Rotation(n, per_head=True), half, (heads,)),
        (
            "float32, interleaved, frequencies for each head, out=",
            Rotation(n, per_head=True, **pairs),
            interleaved,
            (heads, product),
        ),
        ("float32, heads last, out= alike", Rotation(n, **last), half, (strided, onnx)),
        ("float32, heads last, contiguous out=", Rotation(n, **dense), (_COPY, _NUMPY, _EAGER_OUT), (strided,)),
        (
            "float32, interleaved, heads last, out= alike",
            Rotation(n, **last, **pairs),
            (_COPY, _ONNX, _COMPLEX),
            (strided, onnx, product),
        ),
        ("float32, one token, out=", Rotation(1), (*step[:1], *step[2:]), (Target(4, 8.0),)),
        ("float32, one token, interleaved, out=", Rotation(1, **pairs), step[:3], (Target(4, 8.0),)),
        ("float32, one token, prepared, out=", Rotation(1, **ready), step[:1], (Target(13, 1.0, _ONNX, True),)),
        ("float32, one token, prepared, torch", Rotation(1, **ready, **torch), step[:1], (Target(13, 2.0, _ONNX),)),
    )
    eps = {"float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
    return [
        Job(
            f"rotate ({'1,32,1,128' if problem.tokens == 1 else f'1,32,{n},128'}) {name}",
            problem,
            rotation_peers.ours,
            peers,
            targets,
            *(("us", 1e6) if problem.tokens == 1 else ("ms", 1e3)),
            same=_close(eps[problem.dtype]),
        )
        for name, problem, peers, targets in rows
    ]


def _scores(sizes: Sizes) -> list[Job]:
    faster, plane = Target(5, 15.0, _VECTORISED, True), Target(7, 10.0, _VECTORISED, True)
    rows = (
        ("gaussian(scale=32)", 1, (Target(5, 2.0), faster)),
        ("gaussian(scale=32)", 17, (Target(6, 0.8), faster)),
        ("sinc(bandwidth=0.1)", 1, (Target(7, 1.5), faster)),
        ("cauchy(scale=24)", 1, (Target(7, 2.0), faster)),
        ("matern(nu=1.5, scale=16)", 1, (Target(7, 4.0), faster)),
        ("gaussian(scale=32, ndim=2)", 1, (Target(7, 4.0), plane)),
    )
    return [
        Job(
            f"estimate_scores {kernel}, {sizes.trials} trials, {n_lags} lag{'s' if n_lags > 1 else ''}",
            Scores(kernel, sizes.trials, n_lags),
            estimator_peers.ours_scores,
            (_VECTORISED, _THREADED, _TORCH),
            targets,
            "ns per (trial, block, lag)" if n_lags > 1 else "ns per (trial, block)",
            1e9 / (sizes.trials * BLOCKS * n_lags),
            _within_errors,
        )
        for kernel, n_lags, targets in rows
    ]


def _others(sizes: Sizes) -> list[Job]:
    return [
        Job(
            f"estimate_kernel gaussian, {sizes.samples} samples, {sizes.lags} lags",
            Lags(sizes.samples, sizes.lags),
            estimator_peers.ours_kernel,
            ("NumPy, direct", "finufft alone, frequencies ready"),
            (Target(8, 0.3),),
            "s",
            1.0,
            _same_sums,
        ),
        *(
            Job(
                f"sample {kernel}, {sizes.draws} blocks",
                Draws(sizes.draws, kernel),
                estimator_peers.ours_draws,
                ("scikit-learn RBFSampler.fit", "NumPy generator"),
                (Target(14, 2.0, "NumPy generator"),),
                same=_within_errors,
            )
            for kernel in ("gaussian(scale=32)", "cauchy(scale=24)", "matern(nu=1.5, scale=16)")
        ),
        Job(
            f"sample gaussian(ndim={sizes.axes}), {4 * sizes.axes} orthogonal blocks",
            Draws(4 * sizes.axes, f"gaussian(ndim={sizes.axes})", "orthogonal"),
            estimator_peers.ours_draws,
            ("numpy.linalg.qr",),
            (Target(15, 3.0, "numpy.linalg.qr"),),
        ),
    ]


def _processes(sizes: Sizes) -> list[Job]:
    many = KERNEL.format(lags=sizes.lags, samples=sizes.samples)
    works = (
        ("rotate", ROTATE),
        ("estimate_scores gaussian", SCORES.format(kernel=GAUSSIAN, trials=1024)),
        ("estimate_scores matern", SCORES.format(kernel=MATERN, trials=1024)),
        ("estimate_kernel, 64 lags", KERNEL.format(lags=64, samples=2**12)),
        ("estimate_kernel, 4096 lags", KERNEL.format(lags=2**12, samples=2**14)),
    )
    trials = [SCORES.format(kernel=GAUSSIAN, trials=count * sizes.trials) for count in (1, 16)]
    draws = [KERNEL.format(lags=2**12, samples=count * sizes.samples) for count in (1, 16)]
    first = [
        (
            "import rfrope, beyond import numpy",
            Process("import numpy", "import rfrope"),
            ("import numpy", "import torch"),
        )
    ]
    now, before = (Target(11, 5.0), Target(11, 4.0)), (Target(11, 0.3), Target(11, 1.15, _EMPTY))
    later = [
        (
            f"first call of {name}, {words}",
            Process(INPUTS, work, cache=cache),
            ("its second call", "import numba", _EMPTY),
            targets,
        )
        for cache, words, targets in (("empty", "compiled now", now), ("filled", "compiled before", before))
        for name, work in works
    ]
    seconds = [(*first[0], (Target(9, 0.12), Target(9, 0.03))), *later]
    megabytes = [
        (f"peak memory of {many.partition('(')[0].removeprefix('rfrope.')}, {sizes.samples} samples, {sizes.lags} lags",
         Process(INPUTS, many, False), (), (Target(8, 300.0),)),
        (f"peak memory of estimate_scores, {16 * sizes.trials} trials",
         Process(INPUTS, trials[1], False, smaller=trials[0]), (_SIXTEENTH,), (Target(10, 1.1, _SIXTEENTH),)),
        (f"peak memory of estimate_kernel, {16 * sizes.samples} samples",
         Process(INPUTS, draws[1], False, smaller=draws[0]), (_SIXTEENTH,), (Target(10, 1.1, _SIXTEENTH),)),
    ]  # fmt: skip
    return [
        Job(name, problem, process_peers.ours, peers, targets, unit, 1.0)
        for unit, part in (("s", seconds), ("MB", megabytes))
        for name, problem, peers, targets in part
    ]
