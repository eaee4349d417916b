"""Errors known before sampling: bands of the mean kernel, and the blocks that a given error needs."""

import functools
import math

import numpy as np
import pytest
from campaign import sparse
from problems import Z_BOUND
from scipy import stats

import rfrope
from rfrope import blocks_for_error
from rfrope.designs import sampling
from rfrope.moments import mean_kernel_band

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
    wrong = mean_kernel_band(lags, text, n_blocks=72).stderr
    assert np.any(np.abs(variance - wrong**2) > Z_BOUND * stderr)


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


def test_bands_on_every_library(xp):
    lags = [0.0, 3.0, 20.0]
    found, expected = mean_kernel_band(xp(lags), "gaussian(scale=8)", n_blocks=8), mean_kernel_band(
        lags, "gaussian(scale=8)", n_blocks=8
    )  # fmt: skip
    for name in ("value", "stderr", "lower", "upper"):
        assert xp.owns(getattr(found, name))
        np.testing.assert_allclose(xp.host(getattr(found, name)), getattr(expected, name), rtol=1e-12, atol=1e-9)


@pytest.mark.parametrize(("max_lag", "error", "confidence"), [(1, 0.5, 0.95), (1024, 0.1, 0.95), (65536, 0.05, 0.999)])
def test_blocks_by_hand(max_lag, error, confidence):
    expected = math.ceil(2.0 * math.log(2.0 * max_lag / (1.0 - confidence)) / error**2)
    assert blocks_for_error("gaussian", max_lag=max_lag, error=error, confidence=confidence) == expected


def test_blocks_count_the_lags_of_all_axes():
    assert blocks_for_error("gaussian(ndim=2)", max_lag=(3, 5), error=0.3) == blocks_for_error(
        "gaussian", max_lag=(7 * 11 - 1) // 2, error=0.3
    )
    assert blocks_for_error("gaussian(ndim=2)", max_lag=3, error=0.3) == blocks_for_error(
        "gaussian(ndim=2)", max_lag=(3, 3), error=0.3
    )


@pytest.mark.parametrize("text", KERNELS[:3])
def test_so_many_blocks_keep_the_promise(text):
    n_blocks = blocks_for_error(text, max_lag=16, error=0.3, confidence=0.9)
    lags, found = mean_kernels(text, n_blocks, 2000)
    failures = int(np.sum(np.max(np.abs(found - rfrope.kernels.parse(text).phi(lags)), axis=1) > 0.3))
    assert failures <= stats.binom.isf(1e-6, 2000, 0.1)
    _, few = mean_kernels(text, n_blocks // 12, 2000)  # the bound is safe, but not by that much
    assert np.mean(np.max(np.abs(few - rfrope.kernels.parse(text).phi(lags)), axis=1) > 0.3) > 0.1


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"max_lag": 0}, ValueError, "max_lag is 0; expected a whole number from 1"),
        ({"max_lag": 1.5}, TypeError, "max_lag is 1.5; expected a whole number"),
        ({"max_lag": (1, 2)}, ValueError, r"max_lag is \(1, 2\); expected one number or 1"),
        ({"error": 0.0}, ValueError, "error is 0.0; expected a positive finite number"),
        ({"error": float("nan")}, ValueError, "error is nan; expected a positive finite number"),
        ({"error": "small"}, TypeError, "error is 'small'; expected a positive number"),
        ({"confidence": 1.0}, ValueError, "confidence is 1.0; expected a number between 0 and 1"),
        ({"confidence": None}, TypeError, "confidence is None; expected a number between 0 and 1"),
        ({"kernel": 3}, TypeError, "kernel is 3; expected a kernel"),
    ],
    ids=str,
)
def test_bad_input_is_refused(change, error, message):
    with pytest.raises(error, match=f"^{message}"):
        blocks_for_error(**{"kernel": "gaussian", "max_lag": 8, "error": 0.1, **change})


def test_bad_bands_are_refused():
    with pytest.raises(ValueError, match=r"^n_blocks is 0; expected a whole number from 1"):
        mean_kernel_band(1.0, "gaussian", n_blocks=0)
    with pytest.raises(ValueError, match=r"^confidence is 2; expected"):
        mean_kernel_band(1.0, "gaussian", n_blocks=4, confidence=2)


def test_a_band_is_never_narrower_than_rounding():
    """Near lag 0 the closed form is a difference of equal numbers: a band of width 0 would hold no realisation."""
    law = rfrope.kernel("gaussian", scale=1e5)
    omega = rfrope.sample(law, 64, rng=0)
    lags = np.arange(5.0)
    band = mean_kernel_band(lags, law, n_blocks=64)
    found = rfrope.analysis.mean_kernel(lags, omega)
    assert np.all((band.lower <= found) & (found <= band.upper))
    assert np.all(band.stderr[1:] >= 3e-9)


@pytest.mark.parametrize("error", [math.inf, 0.0, -1.0, True, "0.1", math.nan, 1e-200, 10**400])
def test_errors_that_cannot_be_asked_for(error):
    with pytest.raises((ValueError, TypeError), match=r"error is .*; expected"):
        rfrope.blocks_for_error("gaussian", max_lag=16, error=error)


def test_numbers_of_numpy_count_as_numbers():
    wanted = rfrope.blocks_for_error("gaussian", max_lag=16, error=0.5, confidence=0.75)
    assert rfrope.blocks_for_error(
        "gaussian", max_lag=np.int64(16), error=np.float32(0.5), confidence=np.float32(0.75)
    ) == pytest.approx(wanted)
    assert rfrope.blocks_for_error("gaussian(ndim=2)", max_lag=np.array([3, 4]), error=0.5) == rfrope.blocks_for_error(
        "gaussian(ndim=2)", max_lag=(3, 4), error=0.5
    )
    assert rfrope.blocks_for_error("gaussian", max_lag=1, error=1e9) == 1
