"""Ci of any library against mpmath and SciPy, and the mean cosine of a log-uniform phase."""

from __future__ import annotations

import math

import mpmath as mp
import numpy as np
import pytest
from conftest import library
from scipy import special

import rfrope
from rfrope._core import array
from rfrope._core.cosine_integral import _cosine_integral, of_library

Z = np.concatenate([np.linspace(2.0, 8.0, 121), np.geomspace(8.0, 1e6, 200)])


def test_the_cosine_integral_of_operations_is_scipys():
    assert np.max(Z * np.abs(_cosine_integral(Z, np) - special.sici(Z)[1])) < 2e-14
    np.testing.assert_array_equal(of_library(np)(Z), special.sici(Z)[1])
    with mp.workdps(30):
        exact = [float(mp.ci(mp.mpf(float(z)))) for z in Z[::10]]
    np.testing.assert_allclose(_cosine_integral(Z[::10], np), exact, rtol=0, atol=4e-15)
    with np.errstate(all="raise"):
        np.testing.assert_array_equal(_cosine_integral(np.array([math.inf, math.nan]), np), [0.0, math.nan])


@pytest.mark.parametrize(("low", "high"), [(1e-4, 1.0), (0.05, 0.5), (0.3, 1.0), (1.0, 1.0001)])
def test_phi_and_its_slope_of_every_library(low, high, xp):
    kernel, lags = rfrope.kernel("log_uniform", low=low, high=high), np.append(0.0, np.geomspace(1e-6, 1e6, 60))
    x = xp(lags)
    got, narrow = kernel.phi(x), 1e-16 * high * lags / math.log(high / low)  # one ulp of a phase is seen
    assert xp.owns(got)
    single = xp.host(got).dtype == np.float32
    bound = 3e-15 + narrow if not single else np.full(lags.shape, 1e-4)
    assert np.all((np.abs(xp.host(got) - kernel.phi(lags)) <= bound)[: 20 if single else None])


def test_an_infinite_lag_and_none_at_all():
    torch = library("torch").module
    kernel = rfrope.kernel("log_uniform")
    far = torch.tensor([math.inf, 1e300, 0.0], dtype=torch.float64, requires_grad=True)
    found = kernel.phi(far)
    assert found.tolist() == pytest.approx([0.0, 0.0, 1.0], abs=1e-290)
    (slope,) = torch.autograd.grad(found.sum(), far)
    assert slope.tolist()[1:] == pytest.approx([0.0, 0.0], abs=1e-290)
    assert array.namespace(found=found) is not np


@pytest.mark.parametrize("lag", [1e30, 1e40, 1e100, 1e300, np.inf])
def test_log_uniform_at_lags_beyond_float32(lag):
    made = rfrope.kernel("log_uniform", low=0.05, high=0.5)
    assert abs(made.phi(lag)) < 1e-15 + 1.0 / lag


def test_log_uniform_over_many_octaves_beyond_float32():
    """``-Ci(low t) / ln(high / low)`` where the other end is far: ``Ci(z) = gamma + ln z`` near 0."""
    made = rfrope.kernel("log_uniform", low=1e-60, high=1.0)
    expected = -(np.euler_gamma + math.log(1e-10)) / math.log(1e60)
    assert float(made.phi(1e50)) == pytest.approx(expected, rel=1e-12)
