"""Errors that must not grow: cos and sin against mpmath, the Matérn function against mpmath, float32 features."""

import math
from fractions import Fraction

import numpy as np

import rfrope
from benchmarks import libraries

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


class CosSin:
    """Largest error of `rotation_table` for the usual frequencies at positions up to 2^53 - 1; the bound is 1e-15."""

    params = (libraries.NAMES,)
    param_names = ("library",)
    unit = "absolute error"

    def track_rotation_table(self, library):
        xp, frequencies = libraries.module(library), rfrope.geometric(32)
        table = rfrope.rotation_table(xp.asarray(np.asarray(POSITIONS)), xp.asarray(frequencies))
        return float(np.max(np.abs(np.stack([np.asarray(v) for v in table]) - exact_cos_sin(POSITIONS, frequencies))))

    def track_plain_float64_phases(self, library):
        xp, frequencies = libraries.module(library), rfrope.geometric(32)
        phases = np.asarray(rfrope.phases(xp.asarray(np.asarray(POSITIONS)), xp.asarray(frequencies)))
        exact = exact_cos_sin(POSITIONS, frequencies)
        return float(np.max(np.abs(np.stack([np.cos(phases), np.sin(phases)]) - exact)))


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
