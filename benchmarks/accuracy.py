"""Errors that must not grow: cos, sin and the Matérn function against mpmath, narrow features, sums over many lags."""

import math
from fractions import Fraction

import numpy as np

import rfrope
from benchmarks import libraries
from rfrope._core import angles, sums, turns

POSITIONS = (0, 1, 131071, 2**24 + 1, 10**9, 2**53 - 1, -12345)


def _mpmath():
    try:
        import mpmath
    except ModuleNotFoundError:
        raise NotImplementedError("mpmath is not installed") from None
    return mpmath


def exact_cos_sin(positions, frequencies):
    """Cos and sin of the exact products, rounded to float64."""
    mpmath = _mpmath()
    with mpmath.workdps(60):
        rows = []
        for position in positions:
            products = [Fraction(position) * Fraction(float(frequency)) for frequency in frequencies]
            phases = [mpmath.mpf(v.numerator) / v.denominator for v in products]
            rows.append([(float(mpmath.cos(u)), float(mpmath.sin(u))) for u in phases])
    return np.moveaxis(np.asarray(rows), -1, 0)


def exact_cos_sin_of_vectors(positions, frequencies):
    """Do the same for positions and frequencies of several axes, ``(P, k)`` and ``(D, k)``."""
    mpmath = _mpmath()
    with mpmath.workdps(60):
        rows = []
        for vector in positions:
            products = [
                sum(Fraction(int(p)) * Fraction(float(f)) for p, f in zip(vector, omega, strict=True))
                for omega in frequencies
            ]
            phases = [mpmath.mpf(v.numerator) / v.denominator for v in products]
            rows.append([(float(mpmath.cos(u)), float(mpmath.sin(u))) for u in phases])
    return np.moveaxis(np.asarray(rows), -1, 0)


class CosSin:
    """Largest error of `rotation_table` for the usual frequencies at positions up to 2^53 - 1; the bound is 1e-15."""

    params = (libraries.NAMES,)
    param_names = ("library",)
    unit = "absolute error"

    def track_rotation_table(self, library):
        xp, frequencies = libraries.module(library), rfrope.geometric(32)
        table = rfrope.rotation_table(xp.asarray(np.asarray(POSITIONS)), xp.asarray(frequencies))
        return float(
            np.max(np.abs(np.stack([libraries.host(v) for v in table]) - exact_cos_sin(POSITIONS, frequencies)))
        )

    def track_plain_float64_phases(self, library):
        xp, frequencies = libraries.module(library), rfrope.geometric(32)
        phases = libraries.host(rfrope.rotation.phases(xp.asarray(np.asarray(POSITIONS)), xp.asarray(frequencies)))
        exact = exact_cos_sin(POSITIONS, frequencies)
        return float(np.max(np.abs(np.stack([np.cos(phases), np.sin(phases)]) - exact)))


class Paths:
    """Largest error of cos and sin as the compiled loop and as the generic code form them; the bound is 1e-15."""

    params = (("compiled", "generic"), ("geometric", "heavy-tailed", "two axes"))
    param_names = ("path", "frequencies")
    unit = "absolute error"

    def setup(self, path, frequencies):
        self.positions = np.asarray(POSITIONS)
        if frequencies == "geometric":
            self.frequencies = rfrope.geometric(32)
        elif frequencies == "heavy-tailed":
            self.frequencies = np.clip(rfrope.sample("exponential(scale=48)", 32, rng=0), -0.9, 0.9)
        else:
            self.frequencies = 0.4 * rfrope.sample("sinc(bandwidth=1, ndim=2)", 32, rng=0)
            self.positions = np.stack([self.positions, self.positions[::-1]], -1)

    def track_cos_sin(self, path, frequencies):
        form = turns.cos_sin if path == "compiled" else turns.cos_sin.generic
        found = np.stack(form(angles.read(self.positions, self.frequencies)))
        if frequencies == "two axes":
            exact = exact_cos_sin_of_vectors(self.positions, self.frequencies)
        else:
            exact = exact_cos_sin(POSITIONS, self.frequencies)
        return float(np.max(np.abs(found - exact)))


class Sums:
    """Largest error of the mean kernel by transform against the generic sum; the bound is 1e-9."""

    params = ((1, 2), ("grid", "scattered"))
    param_names = ("axes", "lags")
    unit = "absolute error"

    def setup(self, axes, lags):
        self.frequencies = rfrope.sample(f"matern(nu=1.5, scale=16, ndim={axes})", 2**13, rng=0)
        self.lags = np.arange(4096.0)
        if axes == 2:
            self.lags = np.stack(np.meshgrid(np.arange(64.0), np.arange(64.0)), -1).reshape(-1, 2)
        if lags == "scattered":
            self.lags = self.lags + np.random.default_rng(0).uniform(0.0, 0.9, self.lags.shape)

    def track_mean_kernel(self, axes, lags):
        chosen = np.random.default_rng(1).permutation(len(self.lags))[:256]
        exact = sums.mean_cos.generic(angles.read(self.lags[chosen], self.frequencies, name="lags"))
        return float(np.max(np.abs(rfrope.analysis.mean_kernel(self.lags, self.frequencies)[chosen] - exact)))


class Estimates:
    """Largest distance of an estimate from its closed form, in its own standard errors: about 3 by chance."""

    params = (("gaussian(scale=32)", "cauchy(scale=24)", "sinc(bandwidth=0.1)", "matern(nu=1.5, scale=16)"),)
    param_names = ("kernel",)
    unit = "standard errors"

    def track_estimate_kernel(self, kernel):
        lags = np.arange(1.0, 65.0)
        estimate = rfrope.estimate_kernel(lags, kernel, n_samples=2**16, rng=0)
        return float(np.max(np.abs(estimate.value - rfrope.kernels.parse(kernel).phi(lags)) / estimate.stderr))

    def track_estimate_scores(self, kernel):
        q, k = np.random.default_rng(0).standard_normal((2, 128))
        lags = np.arange(1.0, 18.0)
        mean = rfrope.estimate_scores(q, k, lags, kernel, n_trials=2**13, rng=0).mean
        return float(np.max(np.abs(mean.value - rfrope.expected_score(q, k, lags, kernel)) / mean.stderr))


class Rounding:
    """Error of narrow features against the same rotation in float64, in units of the last place of the norm."""

    params = (("float32", "float16"),)
    param_names = ("dtype",)
    unit = "units in the last place"

    def track_rotate(self, dtype):
        x = libraries.features("numpy", (len(POSITIONS), 64), dtype)
        turned = rfrope.rotate(x, np.asarray(POSITIONS), rfrope.geometric(32))
        exact = rfrope.rotate(x.astype(np.float64), np.asarray(POSITIONS), rfrope.geometric(32))
        norm = np.hypot(exact[:, :32], exact[:, 32:])
        error = np.abs(turned.astype(np.float64) - exact)
        return float(np.max(error / (np.finfo(dtype).eps * np.tile(norm, 2))))


class Matern:
    """Largest relative error of the Matérn function at radii up to 40 scales; the bound is 1e-12."""

    params = ((0.5, 0.8, 1.5, 2.5, 7.3, 50.0, 200.0),)
    param_names = ("nu",)
    unit = "relative error"

    def track_phi(self, nu):
        mpmath = _mpmath()
        radii = np.asarray([1e-6, 0.01, 0.1, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 25.0, 40.0])
        values = rfrope.kernel("matern", nu=nu, scale=1.0).phi(radii)
        worst = 0.0
        with mpmath.workdps(60):
            for radius, value in zip(radii, values, strict=True):
                t = mpmath.sqrt(2 * mpmath.mpf(nu)) * mpmath.mpf(float(radius))
                exact = 2 ** (1 - mpmath.mpf(nu)) / mpmath.gamma(nu) * t**nu * mpmath.besselk(nu, t)
                worst = max(worst, abs(float((mpmath.mpf(float(value)) - exact) / exact)))
        return worst if math.isfinite(worst) else math.inf
