"""Time and memory of drawing frequencies and of the Monte Carlo estimators."""

import numpy as np

import rfrope

KERNELS = ("gaussian(scale=32)", "cauchy(scale=24)", "sinc(bandwidth=0.1)", "matern(nu=1.5, scale=16)")


class Sample:
    """Draw frequencies."""

    params = ((*KERNELS, "matern(nu=1.5, scale=16, ndim=2)"), (64, 2**16))
    param_names = ("kernel", "n_blocks")

    def setup(self, kernel, n_blocks):
        self.kernel = rfrope.kernels.parse(kernel)
        rfrope.sample(self.kernel, 1)  # SciPy is imported at the first call

    def time_sample(self, kernel, n_blocks):
        rfrope.sample(self.kernel, n_blocks, rng=0)


class EstimateKernel:
    """Estimate Phi at many lags."""

    params = (KERNELS, (1, 64))
    param_names = ("kernel", "lags")

    def setup(self, kernel, lags):
        self.kernel, self.delta = rfrope.kernels.parse(kernel), np.arange(lags, dtype=np.float64)
        rfrope.sample(self.kernel, 1)  # SciPy is imported at the first call

    def time_estimate_kernel(self, kernel, lags):
        rfrope.estimate_kernel(self.kernel, self.delta, n_samples=2**16, rng=0)


class EstimateScores:
    """Estimate mean and variance of the score, with 64 blocks."""

    params = (KERNELS, (1, 17))
    param_names = ("kernel", "lags")

    def setup(self, kernel, lags):
        self.kernel, self.delta = rfrope.kernels.parse(kernel), np.arange(lags, dtype=np.float64)
        rfrope.sample(self.kernel, 1)  # SciPy is imported at the first call
        self.q, self.k = np.random.default_rng(0).standard_normal((2, 128))

    def time_estimate_scores(self, kernel, lags):
        rfrope.estimate_scores(self.q, self.k, self.delta, self.kernel, n_trials=2**12, rng=0)


class Memory:
    """Memory must follow the chunk, not the number of trials: the two peaks below must agree."""

    params = ((2**13, 2**16),)
    param_names = ("n_trials",)

    def setup(self, n_trials):
        self.q, self.k = np.random.default_rng(0).standard_normal((2, 128))

    def peakmem_estimate_scores(self, n_trials):
        rfrope.estimate_scores(self.q, self.k, 8.0, "gaussian(scale=32)", n_trials=n_trials, rng=0)

    def peakmem_estimate_kernel(self, n_trials):
        rfrope.estimate_kernel("gaussian(scale=32)", np.arange(64.0), n_samples=16 * n_trials, rng=0)


class Validate:
    """The main job for one kernel, as the command line does it."""

    def time_validate(self):
        rfrope.validate("gaussian(scale=32)", rng=0)


def timeraw_import_rfrope():
    """Import time beyond NumPy's."""
    return "import rfrope", "import numpy"


timeraw_import_rfrope.repeat = 5
