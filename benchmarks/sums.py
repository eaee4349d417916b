"""Time and memory of sums over frequencies at many lags: mean kernels of given frequencies, and `estimate_kernel`."""

import numpy as np

import rfrope
from benchmarks import libraries


class MeanKernel:
    """Mean kernel of given frequencies at integer lags."""

    params = (libraries.NAMES, (64, 4096), (64, 4096, 2**17))
    param_names = ("library", "frequencies", "lags")

    def setup(self, library, frequencies, lags):
        if library == "jax" and frequencies * lags > 2**25:
            raise NotImplementedError("sums directly, which takes seconds")
        xp = libraries.module(library)
        self.frequencies = xp.asarray(rfrope.sample("gaussian(scale=32)", frequencies, rng=0))
        self.lags = xp.asarray(np.arange(float(lags)))
        self.mean = libraries.ready(library, rfrope.analysis.mean_kernel)
        self.mean(self.frequencies, self.lags)  # compile first

    def time_mean_kernel(self, library, frequencies, lags):
        self.mean(self.frequencies, self.lags)


class MeanKernelAxes:
    """The same in several axes: lags on a grid, or scattered, 4096 of them."""

    params = ((2, 3), ("grid", "scattered"), (64, 4096))
    param_names = ("axes", "lags", "frequencies")

    def setup(self, axes, lags, frequencies):
        self.frequencies = rfrope.sample(f"gaussian(scale=32, ndim={axes})", frequencies, rng=0)
        side = 2 ** (12 // axes)
        self.lags = np.stack(np.meshgrid(*[np.arange(float(side))] * axes), -1)
        if lags == "scattered":
            self.lags = self.lags + np.random.default_rng(0).uniform(0.0, 0.9, self.lags.shape)
        rfrope.analysis.mean_kernel(self.lags, self.frequencies)

    def time_mean_kernel(self, axes, lags, frequencies):
        rfrope.analysis.mean_kernel(self.lags, self.frequencies)


class EstimateKernelAtManyLags:
    """Estimate Phi with standard errors at integer lags."""

    params = ((2**16, 2**20), (64, 4096, 2**17))
    param_names = ("samples", "lags")

    def setup(self, samples, lags):
        self.lags = np.arange(float(lags))
        rfrope.estimate_kernel(self.lags, "gaussian(scale=32)", n_samples=64, rng=0)

    def time_estimate_kernel(self, samples, lags):
        rfrope.estimate_kernel(self.lags, "gaussian(scale=32)", n_samples=samples, rng=0)

    def peakmem_estimate_kernel(self, samples, lags):
        self.time_estimate_kernel(samples, lags)


class FirstNegativeLag:
    """First negative lag of a set that has none among 2**20 lags, and of one that has an early one."""

    params = ((64, 4096), (1e4, 1e12))
    param_names = ("blocks", "base")

    def setup(self, blocks, base):
        self.frequencies = rfrope.geometric(blocks, base=base)
        rfrope.analysis.first_negative_lag(self.frequencies, 4096)

    def time_first_negative_lag(self, blocks, base):
        rfrope.analysis.first_negative_lag(self.frequencies, 2**20)


class BaseForContext:
    """Bases whose mean kernel stays non-negative in a context, 64 blocks."""

    params = (4096, 131072)
    param_names = ("context",)

    def setup(self, context):
        rfrope.analysis.first_negative_lag(rfrope.geometric(64), 4096)

    def time_base_for_context(self, context):
        rfrope.analysis.base_for_context(context, 64)
