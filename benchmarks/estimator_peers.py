"""Estimators and sampling, and their peers: the same quantity by vectorised NumPy, PyTorch, scikit-learn or finufft.

Scores: trials are taken in chunks that stay in a cache, with every temporary in memory that is there.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

import rfrope
from benchmarks import machine
from benchmarks.rotation_peers import need
from benchmarks.timing import Entry, Missing

BLOCKS = 64
_NUMPY_CHUNK, _TORCH_CHUNK = 2**8, 2**12  # trials
_DIRECT_LAGS = 16  # lags from which a direct sum is extrapolated


@dataclass(frozen=True)
class Scores:
    """Mean and variance of the score of two vectors of 128 features at lags 1, 2, ..., n_lags."""

    kernel: str
    trials: int
    n_lags: int = 1

    @cached_property
    def law(self) -> rfrope.kernels.Kernel:
        return rfrope.kernels.parse(self.kernel)

    @cached_property
    def vectors(self) -> np.ndarray:
        return np.random.default_rng(0).standard_normal((2, 2 * BLOCKS))

    @cached_property
    def coefficients(self) -> tuple[np.ndarray, np.ndarray]:
        return rfrope.block_coefficients(*self.vectors)

    @cached_property
    def lags(self) -> np.ndarray:
        steps = np.arange(1.0, self.n_lags + 1.0)
        return steps if self.law.ndim == 1 else np.stack([steps] * self.law.ndim, -1)


def ours_scores(problem: Scores) -> Entry:
    q, k = problem.vectors
    lags = problem.lags[0] if problem.n_lags == 1 else problem.lags

    def call() -> rfrope.montecarlo.ScoreEstimate:
        return rfrope.estimate_scores(q, k, lags, problem.law, n_trials=problem.trials, rng=0)

    def result(estimate: rfrope.montecarlo.ScoreEstimate) -> np.ndarray:
        return _moments(
            *(np.atleast_1d(v) for v in (estimate.mean.value, estimate.mean.stderr)),
            *(np.atleast_1d(v) for v in (estimate.variance.value, estimate.variance.stderr)),
        )

    return Entry("rfrope", call, result)


def _moments(mean: Any, mean_error: Any, variance: Any, variance_error: Any) -> np.ndarray:
    """Values in the first row, their standard errors in the second."""
    return np.stack([np.concatenate([mean, variance]), np.concatenate([mean_error, variance_error])])


def _of_power_sums(sums: np.ndarray, n: int) -> np.ndarray:
    """Turn sums over n trials of the score and its powers up to 4 into moments."""
    m, s_2, s_3, s_4 = sums / n
    variance = s_2 - m * m
    fourth = s_4 - 4 * m * s_3 + 6 * m * m * s_2 - 3 * m**4
    return _moments(m, np.sqrt(variance / n), variance * n / (n - 1), np.sqrt((fourth - variance**2) / n))


# frequencies of a kernel's law, into memory that is there: in NumPy, from a generator, and in PyTorch
_NUMPY_LAWS: dict[str, Callable[[Any, np.ndarray], Any]] = {
    "gaussian(scale=32)": lambda rng, out: np.divide(rng.standard_normal(out=out), 32.0, out=out),
    "gaussian(scale=32, ndim=2)": lambda rng, out: np.divide(rng.standard_normal(out=out), 32.0, out=out),
    "sinc(bandwidth=0.1)": lambda rng, out: np.multiply(np.subtract(rng.random(out=out), 0.5, out=out), 0.2, out=out),
    "cauchy(scale=24)": lambda rng, out: np.copyto(out, rng.laplace(0.0, 1.0 / 24.0, out.shape)),
    "matern(nu=1.5, scale=16)": lambda rng, out: np.divide(rng.standard_t(3.0, out.shape), 16.0, out=out),
}


def _torch_laws(torch: Any) -> dict[str, Callable[[Any], Any]]:
    laplace = torch.distributions.Laplace(torch.tensor(0.0), torch.tensor(1.0 / 24.0))
    student = torch.distributions.StudentT(torch.tensor(3.0))
    return {
        "gaussian(scale=32)": lambda out: out.normal_().div_(32.0),
        "gaussian(scale=32, ndim=2)": lambda out: out.normal_().div_(32.0),
        "sinc(bandwidth=0.1)": lambda out: out.uniform_(-0.1, 0.1),
        "cauchy(scale=24)": lambda out: out.copy_(laplace.sample(out.shape)),
        "matern(nu=1.5, scale=16)": lambda out: torch.div(student.sample(out.shape), 16.0, out=out),
    }


def _numpy_scores(problem: Scores, threads: int) -> Callable[[], np.ndarray]:
    (a, b), lags, draw = problem.coefficients, problem.lags, _NUMPY_LAWS[problem.kernel]
    chunk, axes = min(_NUMPY_CHUNK, problem.trials), problem.law.ndim
    chunks = problem.trials // chunk

    def work(worker: int) -> np.ndarray:
        rng, sums = np.random.default_rng([7, worker]), np.zeros((4, problem.n_lags))
        omega = np.empty((axes, chunk, BLOCKS))
        phases, part = np.empty((2, chunk, BLOCKS))
        for _ in range(worker, chunks, threads):
            draw(rng, omega)
            for index, lag in enumerate(np.atleast_2d(lags.T).T):
                np.multiply(omega[0], lag[0], out=phases)
                for axis in range(1, axes):
                    np.add(phases, np.multiply(omega[axis], lag[axis], out=part), out=phases)
                scores = np.cos(phases, out=part) @ a
                scores += np.sin(phases, out=part) @ b
                sums[:, index] += [np.sum(scores**power) for power in (1, 2, 3, 4)]
        return sums

    pool = ThreadPoolExecutor(threads) if threads > 1 else None

    def call() -> np.ndarray:
        return sum((pool.map if pool else map)(work, range(threads)), np.zeros((4, problem.n_lags)))

    return call


def numpy_scores(problem: Scores) -> Entry:
    """Vectorised NumPy on one thread, as people write it."""
    return Entry("NumPy, vectorised", _numpy_scores(problem, 1), lambda sums: _of_power_sums(sums, problem.trials))


def numpy_scores_on_threads(problem: Scores) -> Entry:
    """Do the same on as many threads as there are cores."""
    call = _numpy_scores(problem, machine.cores())
    return Entry("NumPy, vectorised, on threads", call, lambda sums: _of_power_sums(sums, problem.trials))


def torch_scores(problem: Scores) -> Entry:
    """PyTorch in float32, its own random numbers and threads."""
    torch = need("torch")
    torch.set_num_threads(machine.cores())
    draw, lags = _torch_laws(torch)[problem.kernel], np.atleast_2d(problem.lags.T).T
    a, b = (torch.from_numpy(v.astype(np.float32)) for v in problem.coefficients)
    chunk, axes = min(_TORCH_CHUNK, problem.trials), problem.law.ndim
    omega = torch.empty((axes, chunk, BLOCKS))
    phases, part = torch.empty((2, chunk, BLOCKS))

    def call() -> np.ndarray:
        sums = np.zeros((4, problem.n_lags))
        for _ in range(problem.trials // chunk):
            draw(omega)
            for index, lag in enumerate(lags.tolist()):
                torch.mul(omega[0], lag[0], out=phases)
                for axis in range(1, axes):
                    phases.add_(omega[axis], alpha=lag[axis])
                scores = (torch.cos(phases, out=part) @ a).add_(torch.sin(phases, out=part) @ b).double()
                sums[:, index] += [torch.sum(scores**power).item() for power in (1, 2, 3, 4)]
        return sums

    call = torch.inference_mode()(call)
    return Entry("torch float32, vectorised", call, lambda sums: _of_power_sums(sums, problem.trials))


# -- kernels at many lags ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Lags:
    """Phi of a Gaussian kernel at lags 0, 1, ..., n_lags - 1, from so many draws."""

    samples: int
    n_lags: int
    kernel: str = "gaussian(scale=32)"

    @cached_property
    def frequencies(self) -> np.ndarray:
        return rfrope.sample(self.kernel, self.samples, rng=0)  # the very draws of the estimate


def ours_kernel(problem: Lags) -> Entry:
    lags = np.arange(float(problem.n_lags))

    def call() -> rfrope.montecarlo.Estimate:
        return rfrope.estimate_kernel(lags, problem.kernel, n_samples=problem.samples, rng=0)

    return Entry("rfrope", call, lambda estimate: np.asarray(estimate.value))


def direct_kernel(problem: Lags) -> Entry:
    """Direct sum in NumPy at the first lags, extrapolated to all of them; no draws, no standard errors."""
    omega, few = problem.frequencies, min(_DIRECT_LAGS, problem.n_lags)
    factor, chunk = problem.n_lags / few, 2**14
    phases = np.empty(min(chunk, omega.size))

    def call() -> np.ndarray:
        mean = np.zeros(few)
        for start in range(0, omega.size, chunk):
            part = omega[start : start + chunk]
            for lag in range(few):
                np.multiply(part, float(lag), out=phases[: part.size])
                mean[lag] += np.sum(np.cos(phases[: part.size], out=phases[: part.size]))
        return mean / omega.size

    return Entry(f"NumPy, direct ({few} lags, extrapolated)", call, lambda mean: mean, factor=factor)


def finufft_kernel(problem: Lags) -> Entry:
    """One call of finufft on frequencies that are drawn and folded already, on all its threads; no standard errors."""
    finufft = need("finufft")
    strengths = np.ones(problem.samples, np.complex128)
    folded = problem.frequencies - 2.0 * math.pi * np.rint(problem.frequencies / (2.0 * math.pi))
    plan = finufft.Plan(1, (2 * problem.n_lags,), eps=1e-12, isign=1, nthreads=machine.cores())

    def call() -> np.ndarray:
        plan.setpts(folded)
        return plan.execute(strengths)

    def result(sums: np.ndarray) -> np.ndarray:
        return sums.real[problem.n_lags :] / problem.samples

    return Entry("finufft alone, frequencies ready", call, result)


# -- sampling ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Draws:
    """So many frequencies of a kernel, in one axis but for orthogonal ones."""

    count: int
    kernel: str = "gaussian(scale=32)"
    design: str = "iid"


def _spread(frequencies: np.ndarray) -> np.ndarray:
    """Median of the magnitudes and its standard error, for laws that have one."""
    size = np.abs(np.ravel(frequencies))
    low, middle, high = np.quantile(size, [0.45, 0.5, 0.55])
    slope = (high - low) / 0.1  # slope of the quantile function
    return np.stack([np.atleast_1d(middle), np.atleast_1d(0.5 * slope / math.sqrt(size.size))])


def ours_draws(problem: Draws) -> Entry:
    return Entry("rfrope", lambda: rfrope.sample(problem.kernel, problem.count, rng=0, design=problem.design), _spread)


def numpy_draws(problem: Draws) -> Entry:
    """Draw with a generator of NumPy, one after the other."""
    draw, out = _NUMPY_LAWS[problem.kernel], np.empty(problem.count)

    def call() -> np.ndarray:
        draw(np.random.default_rng(0), out)
        return out

    return Entry("NumPy generator", call, _spread)


def sklearn_draws(problem: Draws) -> Entry:
    """Fit RBFSampler to one feature: it draws as many weights, and their phases."""
    if not problem.kernel.startswith("gaussian"):
        raise Missing("it has the Gaussian law only")
    if need("sklearn"):
        from sklearn.kernel_approximation import RBFSampler
    sampler = RBFSampler(gamma=0.5 / 32.0**2, n_components=problem.count, random_state=0)
    features = np.zeros((1, 1))
    return Entry("scikit-learn RBFSampler.fit", lambda: sampler.fit(features).random_weights_, _spread)


def numpy_factors(problem: Draws) -> Entry:
    """Factorise as many normal matrices as orthogonal directions take, and nothing else."""
    ndim = rfrope.kernels.parse(problem.kernel).ndim
    matrices = np.random.default_rng(0).standard_normal((problem.count // ndim, ndim, ndim))
    return Entry("numpy.linalg.qr", lambda: np.linalg.qr(matrices))


PEERS: dict[str, Callable[[Any], Entry]] = {
    "NumPy, vectorised": numpy_scores,
    "NumPy, vectorised, on threads": numpy_scores_on_threads,
    "torch float32, vectorised": torch_scores,
    "NumPy, direct": direct_kernel,
    "finufft alone, frequencies ready": finufft_kernel,
    "scikit-learn RBFSampler.fit": sklearn_draws,
    "numpy.linalg.qr": numpy_factors,
    "NumPy generator": numpy_draws,
}
