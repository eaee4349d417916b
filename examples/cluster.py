"""Validate a kernel on a Dask cluster, and say what more draws would take.

    pip install "rfrope[cluster]"
    python examples/cluster.py                                          # a cluster of two processes here, 2^24 draws
    python examples/cluster.py --scheduler tcp://HOST:8786 --draws 1e9  # a cluster of yours

Chunks of an estimate are fixed, and are merged in their order: every cluster, and none, gives the same bits. They are
small, so that they travel in batches here: one task of Dask works on many, and no more batches are under way than the
workers need, because a scheduler holds each of them in its memory.
"""

from __future__ import annotations

import argparse
import pickle
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import rfrope

LONG = 10**13  # draws, for the outlook
CORES = (64, 1024)


def done(task: Callable[[Any], Any], spans: Sequence[Any]) -> tuple[list[Any], float]:
    """Work on some chunks, in a worker: the answers, and the seconds of its processor that they took."""
    start = time.thread_time()
    return [task(span) for span in spans], time.thread_time() - start


@dataclass
class Question:
    """What one estimate took; bytes are those of pickled chunks and answers, without what Dask adds to a task.

    Attributes
    ----------
    size : int
        Bytes of the question itself, which travels once to each worker.
    chunks, draws : int
    seconds : float
        Clock of the workers' processors.
    sent, received : int
        Bytes of chunks to the workers, and of answers back.
    """

    size: int
    chunks: int = 0
    draws: int = 0
    seconds: float = 0.0
    sent: int = 0
    received: int = 0


@dataclass
class Batches:
    """A callable like ``map`` over a Dask client.

    Attributes
    ----------
    client : distributed.Client
    size : int
        Chunks in a batch.
    ahead : int
        Batches under way for each thread of the cluster.
    questions : list of Question
        What each estimate took, so far.
    """

    client: Any
    size: int = 64
    ahead: int = 4
    questions: list[Question] = field(default_factory=list)

    def __call__(self, task: Callable[[Any], Any], spans: Sequence[Any]) -> Iterator[Any]:
        """Yield the answers for all spans, in their order."""
        asked = Question(len(pickle.dumps(task)))
        self.questions.append(asked)
        there = self.client.scatter(task, broadcast=True, hash=False)
        most = self.ahead * sum(self.client.nthreads().values())
        under_way: deque[Any] = deque()
        for start in range(0, len(spans), self.size):
            batch = [spans[i] for i in range(start, min(start + self.size, len(spans)))]
            asked.sent += len(pickle.dumps(batch))
            under_way.append(self.client.submit(done, there, batch, pure=False))
            if len(under_way) >= most:
                yield from _arrived(under_way.popleft(), asked)
        while under_way:
            yield from _arrived(under_way.popleft(), asked)


def _arrived(future: Any, asked: Question) -> list[Any]:
    parts, seconds = future.result()
    asked.received += len(pickle.dumps(parts))
    asked.seconds += seconds
    asked.chunks += len(parts)
    asked.draws += sum(part.n for _, part in parts)
    return parts


def merging(kernel: str, lags: np.ndarray, chunks: int = 64) -> float:
    """Seconds that this process takes to merge one chunk, beside the work on it."""
    kept: list[Any] = []

    def keeping(task: Any, spans: Sequence[Any]) -> list[Any]:
        kept[:] = [task(span) for span in spans]
        return kept

    arguments: dict[str, Any] = {"n_samples": chunks * 2**16, "rng": 0}
    rfrope.estimate_kernel(lags, kernel, executor=keeping, **arguments)
    start = time.thread_time()
    rfrope.estimate_kernel(lags, kernel, executor=lambda *_: kept, **arguments)
    return (time.thread_time() - start) / len(kept)


def report(asked: Question, merge: float) -> None:
    """Print what one estimate took, and what that means for more draws and cores."""
    rate, length = asked.draws / asked.seconds, asked.draws / asked.chunks
    sent, received = asked.sent / asked.chunks, asked.received / asked.chunks
    print(f"one estimate: {asked.draws:.3g} draws in {asked.chunks} chunks")
    print(f"draws per second of a core: {rate:.3g}")
    print(f"bytes on the wire for each chunk: {sent:.0f} to a worker, {received:.0f} back")
    print(f"bytes of the question, once to each worker: {asked.size}")
    print(f"time here to merge a chunk: {1e6 * merge:.1f} us")
    print(f"{LONG:.0e} draws: {LONG / length:.3g} chunks, {LONG / length * (sent + received) / 1e9:.3g} GB on the wire")
    for cores in CORES:
        work, here = LONG / rate / cores / 3600.0, LONG / length * merge / 3600.0
        print(f"  on {cores} cores: {work:.3g} hours of work there, {here:.3g} hours of merging here")


def main(arguments: Sequence[str] | None = None) -> int:
    """Validate, and report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kernel", default="matern(nu=1.5, scale=64)")
    parser.add_argument("--lags", type=float, nargs="+", default=[1.0, 16.0, 64.0, 256.0])
    parser.add_argument("--draws", type=float, default=2**24, help="of cos u, cos 2u and sin u each")
    parser.add_argument("--trials", type=float, default=2**12, help="of all frequencies, for the score's moments")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch", type=int, default=64, help="chunks in a task of Dask")
    parser.add_argument("--scheduler", help="address of a cluster; one of two processes here unless given")
    given = parser.parse_args(arguments)
    import distributed

    local = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None}
    with distributed.Client(given.scheduler) if given.scheduler else distributed.Client(**local) as client:
        return validate(Batches(client, given.batch), given)


def validate(batches: Batches, given: argparse.Namespace) -> int:
    """Validate as the command line asks, and report."""
    lags, start, options = np.array(given.lags), time.monotonic(), {"rng": given.seed, "executor": batches}
    counts = {"n_samples": int(given.draws), "n_trials": int(given.trials)}
    found = rfrope.validate(given.kernel, lags=lags, **counts, **options)
    wall, threads = time.monotonic() - start, sum(batches.client.nthreads().values())
    outcome = "passed" if found.passed else "FAILED"
    print(f"{given.kernel}: {outcome}, {len(found.rows)} comparisons, largest |z| {abs(found.worst.z):.2f}")
    print(f"{wall:.1f} s on {threads} threads")
    report(max(batches.questions, key=lambda asked: asked.draws), merging(given.kernel, lags))
    return 0 if found.passed else 1


if __name__ == "__main__":
    raise SystemExit(main())
