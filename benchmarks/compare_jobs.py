"""The jobs that `benchmarks.compare` times, and the process that runs them on one revision.

Run as a module with the revision's folder first in PYTHONPATH; it reads names of jobs from stdin, a line each, and
answers each with a line of JSON. Only functions that most revisions have are called; that one is missing is an
answer, too.
"""

import contextlib
import json
import math
import pathlib
import sys
import time

import numpy as np

from benchmarks import small_calls

BURST = 0.01  # seconds of processor time that a burst takes at least


def _rotate(rfrope, shape, dtype):
    x = np.random.default_rng(0).standard_normal(shape).astype(dtype)
    out, positions, omega = np.empty_like(x), np.arange(shape[-2]), rfrope.geometric(shape[-1] // 2)
    return lambda: rfrope.rotate(x, positions, omega, out=out)


def _scores(rfrope):
    q, k = np.random.default_rng(0).standard_normal((2, 8, 128, 64))
    positions, omega = np.arange(128), rfrope.geometric(32)
    return lambda: rfrope.scores(q, k, positions, positions, omega)


def _estimate_scores(rfrope):
    q, k = np.random.default_rng(0).standard_normal((2, 64))
    kernel, lags = rfrope.kernel("matern", nu=1.5, scale=16.0), np.arange(-8.0, 0.0)
    return lambda: rfrope.estimate_scores(q, k, lags, kernel, n_trials=2048, rng=0)


def _estimate_kernel(rfrope):
    kernel, lags = rfrope.kernel("gaussian", scale=32.0), np.arange(4.0)
    return lambda: rfrope.estimate_kernel(lags, kernel, n_samples=2**16, rng=0)


def _moments(rfrope):
    q, k = np.random.default_rng(0).standard_normal((2, 64, 1, 64))
    kernel, lags = rfrope.kernel("matern", nu=1.5, scale=16.0), np.arange(-64.0, 0.0)
    return lambda: (rfrope.expected_score(q, k, lags, kernel), rfrope.score_variance(q, k, lags, kernel))


def _config(rfrope):
    scheme = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 32768}
    config = {"model_type": "qwen3", "head_dim": 128, "max_position_embeddings": 131072, "rope_parameters": scheme}
    return lambda: rfrope.from_config(config)


JOBS = {
    "rotate, prefill, float32": lambda rfrope: _rotate(rfrope, (1, 8, 1024, 128), np.float32),
    "rotate, prefill, float16": lambda rfrope: _rotate(rfrope, (1, 8, 1024, 128), np.float16),
    "rotate, decode, float32": lambda rfrope: _rotate(rfrope, (1, 32, 1, 128), np.float32),
    "rotation_table, 4096 x 64": lambda rfrope: lambda: rfrope.rotation_table(np.arange(4096), rfrope.geometric(64)),
    "scores, 8 heads x 128": _scores,
    "sample, 64 of matern": lambda rfrope: lambda: rfrope.sample("matern(nu=1.5, scale=16)", 64, rng=0),
    "expected_score and score_variance": _moments,
    "estimate_kernel, 65536 x 4": _estimate_kernel,
    "estimate_scores, 2048 x 8 lags": _estimate_scores,
    "mean_kernel, 65536 lags": lambda rfrope: (
        lambda: rfrope.analysis.mean_kernel(np.arange(65536.0), rfrope.geometric(64))
    ),
    "first_negative_lag, base 500000": lambda rfrope: (
        lambda: rfrope.analysis.first_negative_lag(rfrope.geometric(64, base=5e5), 2**15)
    ),
    "fit_kernel, gaussian, 512 lags": lambda rfrope: (
        lambda: rfrope.analysis.fit_kernel(rfrope.geometric(32), 512, names=["gaussian"])
    ),
    "from_config, yarn": _config,
}
SUITES = {"usual": JOBS, "small": small_calls.jobs()}
EVERY = {name: job for suite in SUITES.values() for name, job in suite.items()}


class Jobs:
    """The jobs on one rfrope, each prepared when it is first asked for."""

    def __init__(self, rfrope, clock):
        self.rfrope, self.clock, self.ready = rfrope, clock, {}

    def seconds(self, name):
        """Seconds of one call: the least of three bursts."""
        if name not in self.ready:
            call = EVERY[name](self.rfrope)
            call()  # compiles
            self.ready[name] = call, max(1, math.ceil(BURST / max(self._burst(call, 1), 1e-7)))
        call, number = self.ready[name]
        return min(self._burst(call, number) for _ in range(3)) / number

    def _burst(self, call, number):
        start = self.clock()
        for _ in range(number):
            call()
        return self.clock() - start


def main():
    import rfrope

    folder, count = pathlib.Path(sys.argv[1]).resolve(), int(sys.argv[3])
    clock = {"cpu": time.process_time, "wall": time.perf_counter}[sys.argv[2]]
    if folder not in pathlib.Path(rfrope.__file__).resolve().parents:
        raise SystemExit(f"rfrope came from {rfrope.__file__}; expected one below {folder}")
    jobs = Jobs(rfrope, clock)
    # early revisions have the variables of the environment alone
    limit = rfrope.threads(count) if hasattr(rfrope, "threads") else contextlib.nullcontext()
    with limit:
        for line in sys.stdin:
            try:
                answer = {"seconds": jobs.seconds(line.strip())}
            except Exception as error:  # a revision that lacks a function, or fails: that is the answer
                answer = {"missing": f"{type(error).__name__}: {error}"[:200]}
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
