"""Errors over whole lags, and the bound that no equal blocks fall below."""

import numpy as np
import pytest
from campaign import campaign

from rfrope import kernels
from rfrope.designs import errors, optimise
from rfrope.designs.errors import lags_within, lower_bound


@pytest.mark.parametrize("max_lag", [(10,), (3000,), (100_000,), (40, 3), (200, 300), (30, 20, 10)])
def test_lags_of_a_range(max_lag):
    lags, weights = lags_within(max_lag, 500)
    total = (np.prod([2 * m + 1 for m in max_lag]) + 1) // 2
    assert len(lags) == len(weights) <= 500
    assert weights.sum() == pytest.approx(total)
    assert np.all(np.abs(lags) <= max_lag)
    assert np.all(lags == np.rint(lags))
    assert not np.any(lags[0])
    both = {tuple(v) for v in lags} | {tuple(v) for v in -lags}
    assert len(both) == 2 * len(lags) - 1
    for axis, m in enumerate(max_lag):
        assert np.max(np.abs(lags[:, axis])) > 0.95 * m


# -- the bound ---------------------------------------------------------------------------------------------------------


@campaign
@pytest.mark.parametrize("text", ["exponential(scale=48)", "log_uniform(low=0.05, high=0.5)", "matern(scale=16)",
                                  "exponential(scale=4) * gaussian(scale=16)"])  # fmt: skip
@pytest.mark.parametrize("n", [2, 3, 8])
def test_no_set_falls_below_the_bound(text, n):
    """Neither an optimised set nor thousands at random, and the bound is no trivial one."""
    kernel, max_lag = kernels.parse(text), 128
    bound = lower_bound(kernel, n, (max_lag,))
    best = optimise(kernel, n, max_lag=max_lag).source.error["rms"]
    assert 0.15 * best < bound < best
    at, _ = lags_within((max_lag,), 2**20)
    sets = np.random.default_rng(n).permuted(np.linspace(0.0, np.pi, 3 * 2000 * n) ** 2 / np.pi).reshape(-1, n)
    apart = np.cos(sets[..., None] * at[:, 0]).mean(axis=1) - kernel.phi(at[:, 0])
    assert np.sqrt(np.mean(apart**2, axis=-1)).min() > bound


def test_the_bound_of_one_block_by_all_frequencies():
    """The repulsion of a single block is exact, so the bound is near the minimum over a grid."""
    kernel, box = kernels.parse("exponential(scale=3)"), np.arange(65.0)
    grid = np.linspace(0.0, np.pi, 10_001)
    least = np.sqrt(np.mean((np.cos(grid[:, None] * box) - kernel.phi(box)) ** 2, axis=1).min())
    assert 0.6 * least < lower_bound(kernel, 1, (64,)) < least


def test_the_bound_of_very_few_lags_is_below_what_is_reached():
    """Lag 0 counts, as in the error: of five lags, leaving it out would lift the bound above the optimum."""
    best = optimise("exponential(scale=4)", 1, max_lag=4, starts=8).source
    assert 0.95 * best.error["rms"] < best.lower_bound < best.error["rms"]


def test_where_nothing_is_known_the_bound_is_zero():
    assert lower_bound(kernels.parse("gaussian(scale=32)"), 64, (256,)) == 0.0
    assert optimise("exponential(ndim=2)", 4, max_lag=3).source.lower_bound == 0.0


def test_the_minimum_of_a_polynomial_is_bounded_between_the_points_of_the_grid():
    circle, rng = errors._Circle(kernels.parse("exponential(scale=6)"), 20), np.random.default_rng(0)
    for _ in range(20):
        coefficients = np.where(circle.lags <= 40, rng.normal(size=circle.lags.size), 0.0)
        fine = np.linspace(0.0, np.pi, 10_001)
        values = coefficients[0] + 2.0 * np.cos(fine[:, None] * circle.lags[1:41]) @ coefficients[1:41]
        bound = circle.least(circle.values(coefficients))
        assert np.min(values) - 0.02 * np.ptp(values) < bound <= np.min(values)


def test_nearest_probabilities():
    values = np.random.default_rng(0).normal(size=50)
    found = errors._project_on_simplex(values)
    assert found.sum() == pytest.approx(1.0)
    assert found.min() == 0.0
    for other in np.random.default_rng(1).dirichlet(np.full(50, 0.1), size=2000):
        assert (values - found) @ (other - found) <= 1e-12  # the projection's inequality
