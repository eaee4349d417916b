"""Time of drawing frequencies, and of optimising them."""

import rfrope
from benchmarks.estimators import KERNELS


class Sample:
    """Draw frequencies of one set."""

    params = (
        (*KERNELS, "matern(nu=2.2, scale=16)", "matern(nu=1.5, scale=16, ndim=2)", "gaussian(scale=32, ndim=3)"),
        (64, 2**12, 2**16),
    )
    param_names = ("kernel", "n_blocks")

    def setup(self, kernel, n_blocks):
        self.kernel = rfrope.kernels.parse(kernel)
        rfrope.sample(self.kernel, n_blocks)  # SciPy is imported, and loops are compiled, at the first call

    def time_sample(self, kernel, n_blocks):
        rfrope.sample(self.kernel, n_blocks, rng=0)


class SampleHeads:
    """Draw a set for each head, 64 blocks each."""

    params = (KERNELS, (32, 1024))
    param_names = ("kernel", "heads")

    def setup(self, kernel, heads):
        self.kernel = rfrope.kernels.parse(kernel)
        rfrope.sample(self.kernel, 64, heads=heads)

    def time_sample(self, kernel, heads):
        rfrope.sample(self.kernel, 64, rng=0, heads=heads)


class Optimise:
    """Frequencies with the least error over whole lags, which `sample(..., design="optimised")` gives."""

    params = ((16, 64), (256, 4096))
    param_names = ("n_blocks", "max_lag")

    def setup(self, n_blocks, max_lag):
        self.kernel = rfrope.kernels.parse(KERNELS[0])
        rfrope.designs.optimise(self.kernel, 4, max_lag=16)

    def time_optimise(self, n_blocks, max_lag):
        rfrope.designs.optimise(self.kernel, n_blocks, max_lag=max_lag)
