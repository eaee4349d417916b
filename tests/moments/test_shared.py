"""What all closed forms of scores share: shapes, and lag 0."""

import numpy as np
import pytest

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
