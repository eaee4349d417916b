"""Kernels from functions, densities and values: what is not read, does not settle, or is too rough."""

import math
from functools import partial

import numpy as np
from lag_functions import SMOOTH, gaussian

from rfrope.bochner import UndecidedError, from_autocorrelation, from_density, from_function


def of(words, phi, error=ValueError, **options):
    return partial(from_function, phi, **options), error, words


UNEVEN = (
    lambda x: np.exp(-np.minimum(x, 700.0)),
    lambda x: np.where((x < -1.5) & (x > -2.7), -0.9, 1 / (1 + x * x)),  # between two lags
    lambda x: np.where((x < -2.95) & (x > -10.5), 0.0, 1 / (1 + x * x)),
    lambda x: np.where(x < -12.0, 0.0, 1 / (1 + x * x)),  # far out
    lambda x: np.exp(-0.5 * x * x) * (1 + 0.1 * np.tanh(x)),  # everywhere
)


def noisy(x):
    return gaussian(x) * (1 - 1e-3 * np.random.default_rng(0).random(x.shape) * (x != 0))


ROWS = [
    *(of(("phi is not even: it is ", "expected a function of the magnitude alone"), phi) for phi in UNEVEN),
    of("phi(0) is 2.0; expected 1: divide phi by phi(0)", lambda x: 2.0 * np.exp(-x * x)),
    of("phi returned complex128; expected real numbers", lambda x: gaussian(x) * (1 + 0j), TypeError),
    of("phi(x) is nan at x = 0; expected finite numbers", lambda x: np.sin(x) / x),
    of("phi(x) is nan at x = ", lambda x: np.where(np.abs(x) > 3.0, np.nan, gaussian(x))),
    of("phi returned shape () for arguments of shape (1,); expected the same", lambda x: 1.0),
    of(("phi failed on an array of shape ", "numpy.vectorize"), lambda x: math.exp(-x * x), TypeError),
    of("phi is 3.0; expected a function of an array", 3.0, TypeError),
    of(("phi is 1 at every lag from ", " expected a function that falls there"), np.ones_like),
    of(("phi does not settle: beyond lag ", " atoms away from frequency 0"), np.cos, UndecidedError),
    of("has mass 0.8; expected phi(0)", lambda x: np.where(x == 0.0, 1.0, 0.8 * gaussian(x)), UndecidedError),
    of("expected a function continuous at 0", lambda x: np.where(x == 0.0, 1.0, 0.0)),
    of("phi is too rough to resolve", noisy, UndecidedError),
    of(("too rough to resolve: ", " pan"), lambda x: gaussian(x) + 0.4 * gaussian(np.abs(x) - 1e5), UndecidedError),
    of("phi is []; expected a function of an array", [], TypeError),
    of(("function of the length r ", "rfrope.kernels.axes"), lambda x: np.exp(-np.sum(x * x, axis=-1)), ndim=2),
    of("ndim is 4; expected 1, 2 or 3", gaussian, ndim=4),
    (lambda: from_density(lambda w: 500.0 * (np.abs(np.abs(w) - 1e6) < 5e-4)), ValueError,
     ("density is 0 at every frequency ", " expected frequency=...")),
    (lambda: from_density(lambda w: np.exp(-np.abs(w))), ValueError,
     "integrates to 2; expected 1 (normalise=True divides by the integral)"),
    (lambda: from_density(lambda w: np.where(np.abs(w) < 1.0, np.abs(w) ** -0.99, 0.0), normalise=True),
     UndecidedError, ("too rough to resolve: it integrates to ", " ± ")),
    (lambda: from_autocorrelation(np.cos(0.7 * np.arange(3.0))), UndecidedError,
     ("at most ", " spectral lines ", " ridge=1e-9")),
    *(
        (partial(from_autocorrelation, phi(np.arange(count + 1.0) / 200.0)), UndecidedError, "ridge=1e-9")
        for phi in SMOOTH
        for count in (60, 200)
    ),
]  # fmt: skip
