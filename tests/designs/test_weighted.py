"""Weighted frequencies: against Hermite's and Legendre's rules, their own bound, and rotation with gains."""

import math

import numpy as np
import pytest
from campaign import campaign
from scipy import special

import rfrope
from rfrope import kernels
from rfrope.designs import quadrature

LIGHT = ["gaussian(scale=32)", "sinc(bandwidth=0.2)", "log_uniform(low=0.05, high=0.5)", "cauchy(scale=24)"]
ANY = [*LIGHT, "exponential(scale=48)", "matern(nu=1.5, scale=16)", "periodic(period=96, scale=0.7)"]


@pytest.mark.parametrize(
    ("law", "length", "roots", "n"),
    [
        *(("gaussian(scale=2)", 2.0, special.roots_hermitenorm, n) for n in (1, 8, 40)),
        ("sinc(bandwidth=0.5)", 2.0, special.roots_legendre, 12),
    ],
)
def test_it_is_the_positive_half_of_hermites_and_of_legendres_rule(law, length, roots, n):
    (node, weight), rule = roots(2 * n), quadrature(law, n)
    np.testing.assert_allclose(rule.frequencies, node[n:] / length, rtol=1e-12)
    np.testing.assert_allclose(rule.weights, 2.0 * weight[n:] / np.sum(weight), rtol=1e-9, atol=1e-16)


@pytest.mark.parametrize("kernel", LIGHT)
@pytest.mark.parametrize("n", [4, 16, 64])
def test_its_error_is_below_its_bound_at_real_lags(kernel, n):
    law, rule, lags = kernels.parse(kernel), quadrature(kernel, n), np.linspace(0.0, 600.0, 4001)
    error, bound = abs(rule.mean_kernel(lags) - law(lags)), rule.error_bound(lags)
    assert np.all(error <= bound + 1e-12)
    assert math.isclose(float(np.sum(rule.weights)), 1.0, rel_tol=1e-14)
    first = lags[np.argmax(error > 1e-6)]  # the bound is of use: it is not reached much sooner
    assert np.any(error > 1e-6) <= (float(lags[np.argmax(bound > 1e-6)]) > 0.5 * first)


def test_the_bound_is_the_remainder_of_hermites_rule():
    """For the standard normal law ``x^(4n) (2n)! / (4n)!``."""
    rule, x = quadrature("gaussian", 5), np.array([1.0, 2.0, 3.0])
    expected = x**20 * math.factorial(10) / math.factorial(20)
    np.testing.assert_allclose(rule.error_bound(x), expected, rtol=1e-10)


@pytest.mark.parametrize("kernel", ANY)
@pytest.mark.parametrize("n", [1, 8, 16])
def test_at_whole_lags_it_is_exact_up_to_twice_the_number_of_blocks(kernel, n):
    law, rule = kernels.parse(kernel), quadrature(kernel, n, lags="whole")
    lags = np.arange(2.0 * n + 1.0)
    error = abs(rule.mean_kernel(lags) - law(lags))
    assert np.max(error[:-1]) < 1e-11
    assert rule.error_bound(lags).tolist() == [0.0] * (2 * n) + [2.0]
    if kernel == "exponential(scale=48)":
        assert error[-1] > 1e-3
    assert np.all((rule.frequencies >= 0.0) & (rule.frequencies <= math.pi))


@campaign
@pytest.mark.parametrize(
    ("kernel", "lags"),
    [
        pytest.param("gaussian(scale=32)", "real", marks=campaign),
        ("matern(scale=32)", "whole"),
        pytest.param("exponential(scale=300)", "whole", marks=campaign),
    ],
)
def test_the_rounding_of_many_blocks(kernel, lags):
    law, rule, x = kernels.parse(kernel), quadrature(kernel, 256, lags=lags), np.arange(512.0)
    assert np.max(abs(rule.mean_kernel(x) - law(x)) - rule.error_bound(x)) < 3e-14 * 256


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
def test_gains_make_an_attention_of_it(pairing):
    rule, n = quadrature("gaussian(scale=32)", 8), 8
    q, k = np.random.default_rng(0).normal(size=(2, 16))
    a, b = rfrope.block_coefficients(q, k, pairing=pairing)[:2]
    u = -20.0 * rule.frequencies
    expected = n * np.sum(rule.weights * (a * np.cos(u) + b * np.sin(u)))
    turned = rfrope.rotate(rule.gains(pairing=pairing) * q, 30, rule.frequencies, pairing=pairing)
    found = turned @ rfrope.rotate(k, 10, rule.frequencies, pairing=pairing)
    assert math.isclose(found, expected, rel_tol=1e-12)
    assert math.isclose(rule.effective_blocks, 1.0 / np.sum(rule.weights**2))
