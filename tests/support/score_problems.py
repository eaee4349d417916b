"""Kernels, lags and vectors for the score estimator of each backend, and how far apart two of its results are."""

import numpy as np

from rfrope import kernels

TABLED = [
    "gaussian(scale={s}, ndim={k})",
    "cauchy(scale={s}, ndim={k})",
    "sinc(bandwidth=0.1, ndim={k})",
    "exponential(scale={s}, ndim={k})",
    "matern(nu=0.5, scale={s}, ndim={k})",
    "matern(nu=1.5, scale={s}, ndim={k})",
    "matern(nu=40, scale={s}, ndim={k})",
]
KEY = (0x12345678, 0x9ABCDEF0)


def texts(k: int) -> list[str]:
    scale = "7.5" if k == 1 else str(tuple(3.0 + 4.0 * axis for axis in range(k)))
    return [text.format(s=scale, k=k) for text in TABLED] + (["log_uniform(low=1e-4, high=2)"] if k == 1 else [])


EVERY_TABLED = [kernels.parse(text) for k in (1, 2, 3) for text in texts(k)]
TRANSPORTED = [
    kernels.parse("matern(nu=0.3, scale=5)"),
    kernels.parse("matern(nu=0.3, scale=5, ndim=2)"),
    kernels.parse("gaussian(scale=4)") * kernels.parse("cauchy(scale=9)"),
    kernels.mixture([0.25, 0.75], [kernels.parse("gaussian(scale=4)"), kernels.parse("sinc")]),
    kernels.parse("gaussian(ndim=2)").warp([[0.2, 0.1], [0.0, 0.3]]),
    kernels.axes(kernels.parse("gaussian(scale=4)"), kernels.parse("exponential(scale=9)")),
]
EVERY = EVERY_TABLED + TRANSPORTED + [kernels.parse("matern(nu=2.5, scale=2)").rescale(3.0)]


def problem(kernel, *, pairs=(3, 1), lags=(5,), blocks=7, seed=0, longest=60.0):
    """Lags ``(*S, k)``, A and B: some lags equal, one of them 0."""
    rng = np.random.default_rng(seed)
    a, b = rng.standard_normal((2, *pairs, blocks))
    delta = np.round(rng.uniform(-longest, longest, (*lags, kernel.ndim)) / 7.0) * 7.0
    return delta, a, b


def scaled_error(found, expected, n: int) -> float:
    """Largest difference of two (mean, m2, m3, m4), each in units of its own scale.

    That is the standard deviation for a mean, and n times its p-th power for a central sum of order p: a mean near 0
    has no relative error to speak of.
    """
    # at lag 0 the score does not spread, and sums are rounding
    spread = np.sqrt(np.asarray(expected[1]) / n) + 1e-5 * (1.0 + np.abs(np.asarray(expected[0])))
    return max(
        float(np.max(np.abs(np.asarray(x) - np.asarray(y)) / (spread * (n * spread ** (p - 1) if p > 1 else 1.0))))
        for p, (x, y) in enumerate(zip(found, expected, strict=True), start=1)
    )
