"""Designs: sets that a kernel has none of, pairs without an exact covariance, estimates and whole designs."""

from functools import partial

import numpy as np

import rfrope
from rfrope import kernels, sample
from rfrope.designs import learned_kernel, optimise, points
from rfrope.designs.covariances import pair_covariances

G, E, M2 = map(kernels.parse, ("gaussian(scale=4)", "exponential(scale=6)", "matern(scale=3, ndim=2)"))
G2 = kernels.parse("gaussian(scale=(4, 7), ndim=2)")
X = np.random.default_rng(0).normal(size=16)
LADDER = learned_kernel(rfrope.Rope(rfrope.geometric(4)))


def pairs(design, text, lag=1.0, n=8):
    law = kernels.parse(text)
    return partial(pair_covariances, law, design, n, np.full((1, law.ndim), lag))


def sampled(words, error=ValueError, kernel="gaussian", n_blocks=4, **options):
    return partial(unadvanced, kernel, n_blocks, **options), error, words


def unadvanced(kernel, n_blocks, **options):
    """A sample that is refused without a draw from its generator."""
    rng = np.random.default_rng(0)
    try:
        sample(kernel, n_blocks, rng=rng, **options)
    finally:
        assert rng.random() == np.random.default_rng(0).random()


def estimated(words, **options):
    yield partial(rfrope.estimate_kernel, 1.0, G, n_samples=64, rng=0, **options), ValueError, words
    if "n_blocks" not in options and options["design"] != "sobol":
        yield partial(rfrope.estimate_scores, X, X, 1.0, G, n_trials=8, **options), ValueError, words


def designed(words, error=ValueError, kernel="gaussian", **options):
    return partial(rfrope.design, kernel, **{"head_dim": 8, "context": 32, "rng": 0} | options), error, words


def learned(words, **options):
    design, error, words = designed(words, **options)
    return lambda: learned_kernel(design()), error, words


ROWS = [
    *((pairs(design, text), ValueError, ("design is ", " no exact covariance ", " expected 'iid', 'antithetic'"))
      for design, text in (("balanced", "gaussian"), ("optimised", "gaussian"), ("quantile", "gaussian"),
                           ("stratified", "rational_quadratic"), ("auto", "power_exponential(exponent=1.5)"),
                           ("sobol", "gaussian"), ("halton", "gaussian"), ("orthogonal", "gaussian(ndim=2)"),
                           ("shifted", "gaussian(ndim=2)"), ("stratified", "cauchy(ndim=2)"),
                           ("stratified", "gaussian * cauchy"), ("stratified", "(periodic).rescale(9)"))),
    *((pairs(design, text, lag, 64), ValueError, f"lags reach {lag}") for design in ("stratified", "shifted")
      for text, lag in (("gaussian", 1e12), ("matern(nu=0.1, scale=16)", 5e4))),
    (lambda: optimise("gaussian", 4, max_lag=9, starts=0), ValueError, "starts is 0; expected a whole number from 1"),
    (lambda: optimise("gaussian", 4, max_lag=9, progress=3), TypeError, "progress is 3; expected None, True, "),
    (lambda: points("gaussian", 8, design="balanced"), ValueError, "design is 'balanced'; expected one of 'iid'"),
    # estimates
    *estimated(("design is 'quantile', which is deterministic or fitted to ", "; expected 'auto'"), design="quantile"),
    *estimated("design is 'balanced', which is deterministic or fitted to a range", design="balanced", n_blocks=8),
    *estimated("n_blocks is None; expected the number of frequencies in one set, for design 'sobol'", design="sobol"),
    *estimated("n_samples is 64; expected a multiple of n_blocks=3", design="sobol", n_blocks=3),
    *estimated("n_samples is 64; expected a multiple of n_blocks=64, at least 128", design="sobol", n_blocks=64),
    *estimated("n_blocks is 8 but design is 'iid'", n_blocks=8),
    # sets
    sampled("n_blocks is -1; expected a whole number", n_blocks=-1),
    sampled("heads is -1; expected a whole number", heads=-1),
    sampled("design is 'sobol?'; did you mean 'sobol'? Expected one of 'iid'", design="sobol?"),
    sampled(("design is ['iid']; expected one of 'iid', 'stratified', ", "'auto'"), design=["iid"]),
    sampled("max_lag is None; expected the largest lag, for design 'optimised'", design="optimised"),
    sampled("max_lag is 0; expected a whole number from 1", design="optimised", max_lag=0),
    sampled("max_lag is (3, 4); expected one number or 1", design="optimised", max_lag=(3, 4)),
    sampled("norm is 'l1'; expected one of 'rms', 'sup'", design="optimised", max_lag=9, norm="l1"),
    sampled(("n_blocks is 2000 ", " at most 1024"), n_blocks=2000, design="optimised", max_lag=9),
    sampled(("max_lag ", " at most 2**52 lags"), design="optimised", max_lag=2**31, kernel="gaussian(ndim=2)"),
    sampled("max_lag is None; expected the largest lag, for design 'balanced'", design="balanced"),
    sampled("norm is 'rms' but design is 'balanced'; expected it only with", design="balanced", max_lag=8, norm="rms"),
    sampled(("max_lag is 9 but design is 'sobol'; expected ", " 'optimised' or 'balanced'"), design="sobol", max_lag=9),
    *(sampled(("design is 'orthogonal' but ", "; expected an isotropic kernel"), kernel=kernel, design="orthogonal")
      for kernel in (kernels.axes(G, E), M2 * G2, kernels.mixture([0.5, 0.5], [M2, G2]), "sinc(ndim=2)")),
    sampled("has one axis; expected 2 or more", kernel=G, design="orthogonal"),
    sampled("kernel is an empty sequence", kernel=[]),
    sampled("kernel has kernels with [1, 2] axes; expected one ndim", kernel=[G, M2]),
    sampled("kernel is 3; expected a kernel", TypeError, kernel=[G, 3]),
    sampled("heads is 3 but kernel has 2 kernels", kernel=[G, E], heads=3),
    # whole designs
    designed("head_dim is 7; expected an even number from 2", head_dim=7),
    designed("rotary_dim is 10; expected an even number from 2 to 8", rotary_dim=10),
    designed("rotary_dim is 4, but all polar features are rotated; expected None", rotary_dim=4, polar=True),
    designed("context is 1; expected a whole number from 2", context=1),
    designed("heads is 3 but kernel has 2 kernels", kernel=["gaussian", "cauchy"], heads=3),
    designed("ladder is (1, 2); expected a single kernel and heads with it", ladder=(1, 2)),
    designed("ladder is 3; expected the scales", TypeError, ladder=3, heads=2),
    designed("has no single scale", kernel="sinc", ladder=(1, 2), heads=2),
    # kernels to learn
    (lambda: learned_kernel("gaussian"), TypeError, "rope is 'gaussian'; expected a Rope"),
    learned("kernel is constant(), which has no parameter", kernel="constant"),
    learned("the Rope's design is 'quantile' with seed None", kernel="rational_quadratic", design="quantile"),
    learned("the Rope's design is 'stratified' with seed None", rng=np.random.default_rng(0)),
    learned("exponent is 2.0, where its derivatives are infinite", kernel="power_exponential(exponent=2)"),
    learned("or heads have kernels of different form", kernel=["gaussian", "cauchy"], heads=2),
    learned("heads have kernels of different form, as gauss", kernel=["gaussian", "matern"], heads=2),
    (lambda: learned_kernel(rfrope.Rope(X)), ValueError, "they are not a geometric ladder from fast to slow"),
    (lambda: learned_kernel(rfrope.Rope(np.ones((2, 2, 4, 1)))), ValueError, "expected at most one axis of heads"),
    (lambda: LADDER.frequencies({"low": 1.0}), ValueError, "parameters has ['low']; expected ['log_high', 'log_low']"),
    (lambda: LADDER.frequencies({"log_low": X, "log_high": X}), ValueError, "log_low has shape (16,); expected ()"),
]  # fmt: skip
