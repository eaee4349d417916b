"""Covariances of pairs of blocks, against many sets of every design, and against sums that know nothing of them."""

import itertools
import math

import numpy as np
import pytest
from campaign import campaign, sparse
from scipy import stats

import rfrope
from rfrope import kernels
from rfrope.designs.covariances import Line, pair_covariances

SETS = 20_000
THREE = ("stratified", "shifted", "antithetic")
CASES = [
    *((design, "gaussian(scale=32)", 16) for design in THREE),
    *((design, "exponential(scale=48)", 12) for design in THREE[:2]),
    *((design, "shell(radius=0.3)", 12) for design in THREE[:2]),
    *((design, "log_uniform(low=0.05, high=0.5)", 7) for design in THREE[:2]),
    ("stratified", "matern(nu=1.5, scale=16)", 2),
    ("stratified", "gaussian(scale=(8, 20), ndim=2)", 8),
    ("stratified", "sinc(bandwidth=(0.1, 0.2, 0.3), ndim=3)", 5),
    ("antithetic", "power_exponential(exponent=1.5, scale=32)", 7),
]
Z = float(stats.norm.isf(1e-6 / 2 / (3 * 4 * len(CASES))))


def lags_for(kernel):
    """Lags at about a third of, once and three times the scale, and far beyond it."""
    unit = rfrope.validation.default_lags(kernel)[2]
    return np.multiply.outer([0.3, 1.0, 3.0, 17.0], unit)


def largest_z(kernel, design, n, change=lambda pairs: pairs):
    """Largest abs(z) of quadratic forms in the covariances of all pairs, of random coefficients."""
    kernel = kernels.parse(kernel)
    lags, rng, worst = lags_for(kernel), np.random.default_rng(1), 0.0
    pairs = change(pair_covariances(kernel, design, n, lags))
    fall, _ = kernel.one_minus_cos_moments(lags, np)
    forms = [form * (1.0 - np.eye(n)) for form in (np.ones((n, n)), *rng.normal(size=(2, n, n)))]
    omega = rfrope.sample(kernel, n, design=design, heads=SETS, rng=0)
    for at, lag in enumerate(lags):
        u = omega @ lag
        for values, covariance in ((np.cos(u) - (1.0 - fall[at]), pairs.cosine), (np.sin(u), pairs.sine)):
            known = (pairs.rows.T * covariance[at]) @ pairs.rows
            for form in forms:
                each = np.sum((values @ form) * values, axis=1)
                stderr = np.std(each) / math.sqrt(SETS) + 1e-12
                worst = max(worst, abs(np.mean(each) - np.sum(form * known)) / stderr)
    return worst


@pytest.mark.parametrize("case", sparse(CASES, lambda case: "gaussian" in case[1]), ids=str)
def test_covariances_are_those_of_many_sets(case):
    design, kernel, n = case
    assert largest_z(kernel, design, n) < Z


@pytest.mark.parametrize("lag", [1.0, 40.0, 300.0])
def test_strata_by_a_fine_sum(lag):
    """Stratum means by 2**14 midpoints each, the last one, which has no end, by what is left of Phi."""
    n, fine, law = 16, 2**14, kernels.parse("gaussian(scale=32)")
    size = stats.norm.isf(0.5 - 0.5 * (np.arange(n * fine) + 0.5) / (n * fine)) / 32.0
    means = np.mean(np.cos(lag * size).reshape(n, fine), axis=1)
    means[-1] = n * law(lag) - np.sum(means[:-1])
    pairs = pair_covariances(law, "stratified", n, np.array([[lag]]))
    every = [means[i] * means[j] for i, j in itertools.permutations(range(n), 2)]
    assert pairs.cosine[0, 0] == pytest.approx(np.mean(every) - law(lag) ** 2, rel=1e-7, abs=1e-12)
    assert np.all(pairs.sine == 0.0)


def test_the_lattice_comes_back():
    """At the dual lattice of a band all blocks of "shifted" return together; strata of their own do not."""
    law, lags = kernels.parse("sinc(bandwidth=1)"), np.array([[402.0]])
    fall, square = law.one_minus_cos_moments(lags, np)
    variance = (square - fall * fall)[0]
    shifted, stratified = (pair_covariances(law, one, 64, lags).cosine[0, 0] for one in ("shifted", "stratified"))
    assert shifted > 0.95 * variance
    assert abs(stratified) < 0.02 * variance


@pytest.mark.parametrize("design", THREE)
@pytest.mark.parametrize("text", ["gaussian(scale=32)", "exponential(scale=48)", "sinc(bandwidth=0.1)", "constant()"])
def test_covariances_are_finite_and_vanish_at_lag_0(design, text):
    pairs = pair_covariances(kernels.parse(text), design, 8, np.array([[0.0], [1e-9], [1e-3], [1.0]]))
    assert np.all(np.isfinite(pairs.cosine))
    assert np.all(pairs.cosine[0] == 0.0)


def test_digits_near_lag_0():
    """The covariance is of the fourth order of a small lag for a smooth law, and keeps its digits."""
    one, other = (
        pair_covariances(kernels.parse("gaussian"), "stratified", 8, np.array([[x]])).cosine / x**4
        for x in (1e-2, 1e-5)
    )
    np.testing.assert_allclose(one, other, 2e-3, 1e-9)


def test_one_block_has_no_pairs():
    for design, n in (*((design, 1) for design in THREE), ("iid", 9)):
        assert pair_covariances(kernels.parse("gaussian"), design, n, np.ones((1, 1))) is None


LAGS = np.array([[3.0, 40.0], [-11.0, 0.5], [0.0, 7.0]])
PAIRS = {  # a law of two axes, and that of its second axis alone
    "gaussian(scale=(8, 20), ndim=2)": "gaussian(scale=20)",
    "sinc(bandwidth=(0.1, 0.7), ndim=2)": "sinc(bandwidth=0.7)",
}


def grid(n=2**20):
    return (np.arange(n) + 0.5) / n


@pytest.mark.parametrize("text", PAIRS)
def test_an_axis_is_that_of_the_law_of_its_own(text):
    both, alone = Line(kernels.parse(text), 1), Line(kernels.parse(PAIRS[text]), 0)
    np.testing.assert_allclose(both.one_minus_phi(LAGS), alone.one_minus_phi(LAGS[:, 1:]), rtol=1e-13)
    for found, wanted in zip(both.means(LAGS, 5), alone.means(LAGS[:, 1:], 5), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-10, atol=1e-13)


@pytest.mark.campaign
@pytest.mark.parametrize("lag", [3.0, 30.0, pytest.param(400.0, marks=campaign)])
@pytest.mark.parametrize("cells", [2, 5])
def test_the_variance_of_a_lattice_of_a_heavy_tail(lag, cells):
    """Beyond the last interval, where phases are above 2**12, those of the other cells change, too."""
    line = Line(kernels.parse("exponential(scale=2)"), 0)
    places = (np.arange(cells)[:, None] + grid(2**22)) / cells
    values = np.mean(1.0 - np.cos(lag * line.magnitudes(places)), axis=0)
    wanted = np.mean((values - line.one_minus_phi(np.array([[lag]]))) ** 2)
    assert line.lattice_variance(np.array([[lag]]), cells)[0] == pytest.approx(wanted, rel=5e-4)
