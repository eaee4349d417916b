"""Polar contents: closed forms against every outcome of small laws, every order of a set, and draws of every family."""

import itertools
import math

import numpy as np
import pytest
from tones import Tones, enumerate_scores

import rfrope
from rfrope.moments import effective_blocks, polar_error, polar_score, polar_variance
from rfrope.rotation import rotate_polar

FUNCTIONS = (polar_score, polar_variance, polar_error)
G = "gaussian(scale=32)"


def contents(n, blocks, seed=0):
    """Magnitudes of n queries and keys by softplus of normals, and a bias as PoPE's, between -2 pi and 0."""
    rng = np.random.default_rng(seed)
    q, k = np.logaddexp(0.0, rng.normal(size=(2, n, blocks)))
    return q, k, rng.uniform(-2.0 * math.pi, 0.0, blocks)


@pytest.mark.parametrize("lag", [-3.0, 0.25, 7.0])
@pytest.mark.parametrize("design", ["iid", "antithetic"])
@pytest.mark.parametrize("blocks", [3, 4])
def test_moments_are_those_of_every_outcome_enumerated(lag, design, blocks):
    (q,), (k,), shift = contents(1, blocks)

    def score(omega):
        return rotate_polar(q, 0.0, omega[:, 0]) @ rotate_polar(k, lag, omega[:, 0], shift=shift)

    mean, variance = enumerate_scores(Tones(), blocks, score, antithetic=design == "antithetic")
    assert polar_score(q, k, lag, Tones(), shift=shift) == pytest.approx(mean, abs=1e-13)
    assert polar_variance(q, k, lag, Tones(), shift=shift, design=design) == pytest.approx(variance, abs=1e-12)
    error = polar_error(q, k, lag, Tones(), shift=shift, design=design)
    assert error == pytest.approx(math.sqrt(variance) / abs(mean))


# -- draws of every family ---------------------------------------------------------------------------------------------


# -- one set, dealt at random ------------------------------------------------------------------------------------------

SET = np.array([0.011, 0.05, -0.02, 0.09, 0.031])


@pytest.mark.parametrize("lag", [-40.0, 3.0, 900.0])
def test_a_set_dealt_at_random_is_every_order(lag):
    (q,), (k,), shift = contents(1, 5)
    orders = np.array(list(itertools.permutations(SET)))
    scores = np.sum(q * k * np.cos(lag * orders + shift), axis=-1)
    found = polar_variance(q, k, lag, G, shift=shift, design=SET)
    assert found == pytest.approx(np.var(scores), rel=1e-11)
    mean = polar_score(q, k, lag, G, shift=shift)
    error = polar_error(q, k, lag, G, shift=shift, design=SET)
    assert error == pytest.approx(math.sqrt(np.mean((scores - mean) ** 2)) / abs(mean), rel=1e-11)


def test_a_set_is_a_rope_or_any_array_and_one_block_does_not_vary():
    q, k, shift = contents(3, 5)
    plain = polar_variance(q, k, [1.0, 2.0, 3.0], G, shift=shift, design=SET)
    for design in (rfrope.Rope(SET, polar=True), SET[:, None]):
        np.testing.assert_array_equal(polar_variance(q, k, [1.0, 2.0, 3.0], G, shift=shift, design=design), plain)
    assert polar_variance([2.0], [1.0], 5.0, G, design=[0.3]) == 0.0
    plane = np.stack([SET, SET[::-1]], axis=1)
    spread = polar_variance(q, k, [1.0, 2.0], "gaussian(ndim=2)", design=plane)
    np.testing.assert_allclose(spread, polar_variance(q, k, 1.0, G, design=plane @ [1.0, 2.0]), rtol=1e-12)


# -- concentration -----------------------------------------------------------------------------------------------------


def test_one_bias_may_serve_all_blocks_or_all_contents():
    q, k, _ = contents(3, 5)
    for function in FUNCTIONS:
        for shift in ([[0.3], [-1.0], [2.0]], -1.0):
            found, each = function(q, k, 7.0, G, shift=shift), np.broadcast_to(shift, (3, 5))
            np.testing.assert_array_equal(found, function(q, k, 7.0, G, shift=each))


def test_effective_blocks_by_hand():
    assert effective_blocks([1.0, 1.0], [3.0, 1.0]) == pytest.approx(16.0 / 10.0)
    assert effective_blocks([1.0, 0.0], [0.0, 1.0]) == 0.0
    q, k, _ = contents(5, 64)
    v = 0.5 * (1.0 + math.exp(-2.0)) - math.exp(-1.0)
    wanted = math.sqrt(v) / math.exp(-0.5) / np.sqrt(effective_blocks(q, k))
    np.testing.assert_allclose(polar_error(q, k, 32.0, G), wanted, rtol=1e-12)


@pytest.mark.parametrize("design", ["stratified", "antithetic"])
def test_designs_broadcast(design):
    (q, k, shift), lags = contents(5, 6), np.linspace(-9.0, 9.0, 7)
    table = polar_variance(q[:, None], k[:, None], lags, "gaussian(scale=4)", shift=shift, design=design)
    assert table.shape == (5, 7)
    alone = polar_variance(q[2], k[2], lags[1], "gaussian(scale=4)", shift=shift, design=design)
    assert table[2, 1] == pytest.approx(alone, rel=1e-12)


@pytest.mark.parametrize("design", ["iid", "stratified"])
def test_gradients(design, torch):
    given = [torch.tensor(one, requires_grad=True) for one in contents(2, 4)]
    lags = torch.tensor([1.0, 4.0], dtype=torch.float64)
    for function in FUNCTIONS:
        options = {} if function is polar_score else {"design": design}
        call = lambda q, k, d, f=function, o=options: f(q, k, lags, "gaussian(scale=4)", shift=d, **o)  # noqa: E731
        assert torch.autograd.gradcheck(call, given)


@pytest.mark.parametrize("size", [1e-170, 1e-11, 1e140])
def test_ratios_do_not_depend_on_the_size_of_contents(size):
    q, k = np.random.default_rng(0).uniform(0.1, 1.0, (2, 16))
    law, lag = "gaussian(scale=32)", 20.0
    assert effective_blocks(size * q, k) == pytest.approx(effective_blocks(q, k), rel=1e-12)
    for shift in (None, np.linspace(-1.0, 0.0, 16)):
        found = polar_error(size * q, k, lag, law, shift=shift)
        assert found == pytest.approx(polar_error(q, k, lag, law, shift=shift), rel=1e-12)
    assert polar_error(0.0 * q, k, lag, law) == effective_blocks(0.0 * q, k) == 0.0
