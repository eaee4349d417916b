"""Closed forms against references that know nothing of Phi: enumeration of discrete laws, integrals over densities."""

import functools
import math

import numpy as np
import pytest
from campaign import sparse
from problems import Z_BOUND
from scipy import stats
from tones import Tones, enumerate_scores

import rfrope
from rfrope import blocks_for_error, expected_score, kernels, rotate, score_variance
from rfrope.designs import sampling
from rfrope.moments import mean_kernel_band, relative_error

RNG = np.random.default_rng(20240)
Q3, K3 = RNG.normal(size=(2, 6))  # three blocks
PLANE = Tones(((0.7, -0.2), (0.1, 1.3)), (0.4, 0.6), ndim=2)


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
@pytest.mark.parametrize(
    ("law", "lags"),
    [*((Tones(), x) for x in (-3.0, 0.25, 7.0)), *((PLANE, x) for x in ((1.0, 0.0), (-2.0, 0.5), (3.0, -4.0)))],
)
def test_moments_are_those_of_every_outcome_enumerated(law, lags, pairing):
    lag = np.atleast_1d(np.asarray(lags, dtype=float))

    def score(omega):
        return rotate(Q3, 0.0 * lag, omega, pairing=pairing) @ rotate(K3, lag, omega, pairing=pairing)

    mean, variance = enumerate_scores(law, 3, score)
    assert expected_score(Q3, K3, lags, law, pairing=pairing) == pytest.approx(mean, abs=1e-13)
    assert score_variance(Q3, K3, lags, law, pairing=pairing) == pytest.approx(variance, abs=1e-12)
    assert relative_error(Q3, K3, lags, law, pairing=pairing) == pytest.approx(math.sqrt(variance) / abs(mean))


@pytest.mark.parametrize("text", [record.example for record in kernels.records()])
def test_variance_is_never_negative_near_lag_0(text):
    # with q = k all B are 0, and (1 + Phi_2)/2 - Phi^2 rounds to -1e-16 at some of these lags
    assert np.all(score_variance(Q3, Q3, np.logspace(-12, 0, 4000), text) >= 0.0)
    assert np.all(np.isfinite(relative_error(Q3, Q3, np.logspace(-12, 0, 4000), text)))


def test_relative_error_where_the_mean_is_0_or_negative():
    assert relative_error([1.0, 0.0], [0.0, 1.0], [0.0, 1.0], "gaussian").tolist() == [0.0, math.inf]
    assert relative_error([0.0, 0.0], [0.0, 1.0], [0.0, 1.0], "gaussian").tolist() == [0.0, 0.0]
    assert expected_score(Q3, Q3, 4.5, "sinc") < 0.0 < relative_error(Q3, Q3, 4.5, "sinc")


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_narrow_features_are_computed_in_float64_in_every_library(xp, dtype):
    if dtype == "float16" and xp.name == "array-api-strict":
        dtype = "float32"  # the standard has no float16
    q, k = (RNG.normal(size=(2, 1, 64)).astype(dtype) for _ in range(2))
    got = score_variance(xp(q), xp(k), [1.0, 5.0], "gaussian(scale=4)")
    assert got.dtype == xp.dtype("float64")
    np.testing.assert_allclose(xp.host(got), score_variance(q, k, [1.0, 5.0], "gaussian(scale=4)"), rtol=1e-12)


# -- bands of the mean kernel, and the blocks that a given error needs ------------------------------------------------

KERNELS = ("gaussian(scale=8)", "exponential(scale=5)", "sinc(bandwidth=0.4)", "matern(nu=0.8, scale=3, ndim=2)")
each = pytest.mark.parametrize("text", sparse(KERNELS, lambda text: text.startswith(("exp", "sinc"))))
KEY = (11, 12)


@functools.lru_cache(maxsize=4)
def mean_kernels(text: str, n_blocks: int, n_sets: int) -> tuple[np.ndarray, np.ndarray]:
    """Lags, and Phi_D at them ``(n_sets, lags)`` for independent draws."""
    kernel = rfrope.kernels.parse(text)
    omega = kernel.restore_shape(sampling.draw(kernel, KEY, 0, n_blocks, streams=n_sets))
    lags = np.arange(17.0) if kernel.ndim == 1 else np.array([[0, 0], [1, 0], [2, -3], [5, 5]], dtype=float)
    phases = omega[..., None] * lags if kernel.ndim == 1 else omega @ lags.T
    return lags, np.cos(phases).mean(axis=1)


@each
def test_bands_have_the_spread_of_the_mean_kernel(text):
    lags, found = mean_kernels(text, 64, 20_000)
    band = mean_kernel_band(lags, text, n_blocks=64)
    np.testing.assert_array_equal(band.value, rfrope.kernels.parse(text).phi(lags))
    variance = found.var(axis=0, ddof=1)
    centred = (found - found.mean(axis=0)) ** 2
    stderr = centred.std(axis=0) / math.sqrt(len(found))
    assert np.all(np.abs(variance - band.stderr**2) <= Z_BOUND * stderr)


@each
@pytest.mark.parametrize("confidence", [0.5, 0.95])
def test_bands_hold_the_mean_kernel_as_often_as_they_say(text, confidence):
    lags, found = mean_kernels(text, 64, 20_000)
    band = mean_kernel_band(lags, text, n_blocks=64, confidence=confidence)
    inside = np.mean((found >= band.lower) & (found <= band.upper), axis=0)[1:]
    assert np.all(np.abs(inside - confidence) < 0.02)  # the law is only nearly normal, above all at small lags
    assert band.confidence == confidence


def test_a_band_is_closed_at_lag_zero_and_stays_within_one():
    band = mean_kernel_band([0.0, 0.5, 8.0, 1e9], "gaussian(scale=8)", n_blocks=1, confidence=0.999)
    assert band.lower[0] == band.upper[0] == 1.0
    assert np.all((band.lower >= -1.0) & (band.upper <= 1.0))
    assert band.stderr[-1] == pytest.approx(math.sqrt(0.5))


@pytest.mark.parametrize(("max_lag", "error", "confidence"), [(1, 0.5, 0.95), (1024, 0.1, 0.95), (65536, 0.05, 0.999)])
def test_blocks_by_hand(max_lag, error, confidence):
    expected = math.ceil(2.0 * math.log(2.0 * max_lag / (1.0 - confidence)) / error**2)
    assert blocks_for_error("gaussian", max_lag=max_lag, error=error, confidence=confidence) == expected
    plane = blocks_for_error("gaussian(ndim=2)", max_lag=(3, 5), error=error)
    assert plane == blocks_for_error("gaussian", max_lag=(7 * 11 - 1) // 2, error=error)


@pytest.mark.parametrize("text", KERNELS[:2])
def test_so_many_blocks_keep_the_promise(text):
    n_blocks = blocks_for_error(text, max_lag=16, error=0.3, confidence=0.9)
    lags, found = mean_kernels(text, n_blocks, 2000)
    failures = int(np.sum(np.max(np.abs(found - rfrope.kernels.parse(text).phi(lags)), axis=1) > 0.3))
    assert failures <= stats.binom.isf(1e-6, 2000, 0.1)
    _, few = mean_kernels(text, n_blocks // 12, 2000)  # the bound is safe, but not by that much
    assert np.mean(np.max(np.abs(few - rfrope.kernels.parse(text).phi(lags)), axis=1) > 0.3) > 0.1


def test_a_band_is_never_narrower_than_rounding():
    """Near lag 0 the closed form is a difference of equal numbers: a band of width 0 would hold no realisation."""
    law = rfrope.kernel("gaussian", scale=1e5)
    omega = rfrope.sample(law, 64, rng=0)
    lags = np.arange(5.0)
    band = mean_kernel_band(lags, law, n_blocks=64)
    found = rfrope.analysis.mean_kernel(lags, omega)
    assert np.all((band.lower <= found) & (found <= band.upper))
    assert np.all(band.stderr[1:] >= 3e-9)


# -- other designs -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("design", ["stratified", "shifted", "antithetic", "set"])
def test_variance_of_a_score_over_other_designs_is_that_of_many_sets(design):
    law, n, lag, sets = "gaussian(scale=32)", 6, 25.0, 20_000
    rng = np.random.default_rng(3)
    q, k = rng.normal(size=(2, 2 * n))
    if design == "set":
        one = rfrope.sample(law, n, design="quantile") * 1.1
        omega, design = np.stack([rng.permutation(one) for _ in range(sets)]), one
    else:
        omega = rfrope.sample(law, n, design=design, heads=sets, rng=4)[..., 0]
    a, b = rfrope.block_coefficients(q, k)[:2]
    scores = np.cos(lag * omega) @ a + np.sin(lag * omega) @ b
    assert score_variance(q, k, lag, law, design=design) == pytest.approx(np.var(scores), rel=0.03)
    apart = np.var(scores) - np.array([score_variance(q, k, lag, law, design=design), score_variance(q, k, lag, law)])
    assert abs(apart[0]) < 0.3 * abs(apart[1])  # it is not that of independent blocks
    mean = float(expected_score(q, k, lag, law))
    error = math.sqrt(np.mean((scores - mean) ** 2)) / abs(mean)
    assert relative_error(q, k, lag, law, design=design) == pytest.approx(error, rel=0.05)
