"""What all closed forms of scores share: shapes, libraries, lag 0, and how contents and lags are read."""

import numpy as np
import pytest

import rfrope
from rfrope import expected_score, kernels, score_variance
from rfrope.moments import polar_error, polar_score, polar_variance, relative_error

RNG = np.random.default_rng(20240)
POLAR = (polar_score, polar_variance, polar_error)
FUNCTIONS = (expected_score, score_variance, relative_error, *POLAR)
each = pytest.mark.parametrize("function", FUNCTIONS)
LAW = "gaussian(scale=4)"
EVERY = [*(record.example for record in kernels.records()), "gaussian(ndim=3)"]


def contents(function, *shape):
    """Queries and keys that a function takes: vectors, or magnitudes."""
    q, k = RNG.normal(size=(2, *shape))
    return (np.abs(q), np.abs(k)) if function in POLAR else (q, k)


@each
def test_contents_broadcast_against_lags_and_biases(function):
    (q, k), lags = contents(function, 5, 1, 6), np.linspace(-9.0, 9.0, 7)
    shift = RNG.uniform(-6.0, 0.0, (5, 1, 6)) if function in POLAR else None

    def call(rows, lags, columns=slice(None)):
        options = {"shift": shift[rows, columns]} if function in POLAR else {}
        return function(q[rows, columns], k[rows, columns], lags, LAW, **options)

    table = call(slice(None), lags)
    assert table.shape == (5, 7)
    for i, j in ((0, 0), (4, 6), (2, 3)):
        assert table[i, j] == pytest.approx(call(i, lags[j], 0), rel=1e-13)
    assert call(slice(None), lags[:5], 0).shape == (5,)
    assert call(0, 1.0, 0).shape == ()
    assert call(0, np.zeros((2, 0)), 0).shape == (2, 0)
    assert function(q[0, 0], k, lags, LAW).shape == (5, 7)


@pytest.mark.parametrize("text", EVERY)
def test_at_lag_0_the_mean_is_that_of_equal_positions_and_nothing_varies(text):
    law = kernels.parse(text)
    origin = np.zeros(law.ndim) if law.ndim > 1 else 0.0
    for mean, *others in (FUNCTIONS[:3], POLAR):
        q, k = contents(mean, 6)
        assert mean(q, k, origin, law) == pytest.approx(q @ k, rel=1e-14)
        assert [other(q, k, origin, law) for other in others] == [0.0, 0.0]
    shift = RNG.uniform(-6.0, 0.0, 6)
    assert polar_score(q, k, origin, law, shift=shift) == pytest.approx(np.sum(q * k * np.cos(shift)))
    assert polar_variance(q, k, origin, law, shift=shift) == 0.0
    assert polar_error(q, k, origin, law, design="antithetic") == 0.0


READERS_OF_LAGS = {
    **{function.__name__: lambda q, k, lags, f=function: f(q, k, lags, "gaussian") for function in FUNCTIONS[:3]},
    "estimate_scores": lambda q, k, lags: rfrope.estimate_scores(q, k, lags, "gaussian", n_trials=8, rng=0).mean.value,
    "recentred_kernel": lambda q, k, lags: rfrope.heads.recentred_kernel(lags, q, "gaussian"),
    "sine_share": lambda q, k, lags: rfrope.analysis.sine_share(q, k, lags, [1.0, 0.25, 0.5]),
    "mean_kernel_band": lambda q, k, lags: rfrope.moments.mean_kernel_band(lags, "gaussian", n_blocks=4).value,
}


@pytest.mark.parametrize("name", READERS_OF_LAGS)
def test_lags_of_numpy_join_any_library_and_those_that_are_no_place_are_refused(xp, name):
    """One reader of lags: what one function takes beside q and k, all do."""
    (q, k), read = contents(expected_score, 1, 6), READERS_OF_LAGS[name]
    lags = np.asarray([2.0**-40, 1.0, 4.0, -1.0, 0.0, 9.0])
    got = read(xp(q), xp(k), lags)
    assert xp.owns(got) or name == "mean_kernel_band"
    np.testing.assert_allclose(xp.host(got) if xp.owns(got) else got, read(q, k, lags), rtol=1e-9, atol=1e-12)
    for bad in (np.nan, 2.0**501):
        with pytest.raises(ValueError, match=r"lags holds NaN or infinity, or magnitudes above 2\*\*500"):
            read(q, k, [0.0, bad])
