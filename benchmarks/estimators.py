"""Time and memory of the Monte Carlo estimators."""

import contextlib

import numpy as np

import rfrope
from benchmarks import libraries

KERNELS = ("gaussian(scale=32)", "cauchy(scale=24)", "sinc(bandwidth=0.1)", "matern(nu=1.5, scale=16)")


class EstimateKernel:
    """Estimate Phi at few lags; `benchmarks.sums` has many."""

    params = (KERNELS, (1, 64))
    param_names = ("kernel", "lags")

    def setup(self, kernel, lags):
        self.kernel, self.lags = rfrope.kernels.parse(kernel), np.arange(lags, dtype=np.float64)
        rfrope.estimate_kernel(self.lags, self.kernel, n_samples=64, rng=0)  # what is slow at the first call

    def time_estimate_kernel(self, kernel, lags):
        rfrope.estimate_kernel(self.lags, self.kernel, n_samples=2**16, rng=0)


class EstimateScores:
    """Estimate mean and variance of the score, with 64 blocks."""

    params = ((*KERNELS, "gaussian(scale=32, ndim=2)"), (1, 17), (2**12, 2**16))
    param_names = ("kernel", "lags", "trials")

    def setup(self, kernel, lags, trials):
        self.kernel = rfrope.kernels.parse(kernel)
        self.lags = np.stack([np.arange(lags, dtype=np.float64)] * self.kernel.ndim, -1)
        self.lags = self.lags[:, 0] if self.kernel.ndim == 1 else self.lags
        self.q, self.k = np.random.default_rng(0).standard_normal((2, 128))
        rfrope.estimate_scores(self.q, self.k, self.lags, self.kernel, n_trials=64, rng=0)

    def time_estimate_scores(self, kernel, lags, trials):
        rfrope.estimate_scores(self.q, self.k, self.lags, self.kernel, n_trials=trials, rng=0)


class Libraries:
    """Estimate for arrays of each library, on few trials: the generic code where no compiled loop takes them."""

    params = (libraries.NAMES, (2**8, 2**12))
    param_names = ("library", "trials")

    def setup(self, library, trials):
        xp = libraries.module(library)
        self.q, self.k = (libraries.features(library, (128,), "float32") for _ in range(2))
        self.lags = xp.asarray(np.arange(17.0))
        self.time_estimate_scores(library, 64)

    def time_estimate_scores(self, library, trials):
        libraries.host(rfrope.estimate_scores(self.q, self.k, self.lags, KERNELS[0], n_trials=trials, rng=0).mean.value)

    def time_estimate_kernel(self, library, trials):
        libraries.host(rfrope.estimate_kernel(self.lags, KERNELS[0], n_samples=64 * trials, rng=0).value)


class Threads:
    """Estimate on one thread and on all."""

    params = ((1, None),)
    param_names = ("threads",)

    def setup(self, threads):
        self.limit = rfrope.threads(threads) if threads else contextlib.nullcontext()
        self.limit.__enter__()
        self.q, self.k = np.random.default_rng(0).standard_normal((2, 128))

    def teardown(self, threads):
        self.limit.__exit__(None, None, None)

    def time_estimate_scores(self, threads):
        rfrope.estimate_scores(self.q, self.k, 8.0, KERNELS[0], n_trials=2**15, rng=0)


class Memory:
    """Memory must follow the chunk, not the number of trials: the two peaks below must agree."""

    params = ((2**13, 2**16),)
    param_names = ("n_trials",)

    def setup(self, n_trials):
        self.q, self.k = np.random.default_rng(0).standard_normal((2, 128))

    def peakmem_estimate_scores(self, n_trials):
        rfrope.estimate_scores(self.q, self.k, 8.0, "gaussian(scale=32)", n_trials=n_trials, rng=0)

    def peakmem_estimate_kernel(self, n_trials):
        rfrope.estimate_kernel(np.arange(64.0), "gaussian(scale=32)", n_samples=16 * n_trials, rng=0)


class Validate:
    """The main job for one kernel, as the command line does it."""

    def time_validate(self):
        rfrope.validate("gaussian(scale=32)", rng=0)
