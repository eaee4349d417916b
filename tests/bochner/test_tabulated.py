"""The kernel that is held as a table: draws, Phi and density agree, its certificate says what was compared."""

import math
import pickle
import re
from functools import cache
from typing import Any

import numpy as np
import pytest
from campaign import campaign, sparse
from lag_functions import along, check_is_fixed, family, spherical, triangle
from problems import N_DRAWS, Z_BOUND, ks_bound, ks_distance, moment_z, panels, worst
from scipy import stats

import rfrope
from rfrope import bochner

CASES = {  # phi, scale, axes
    "gaussian": (family("gaussian", 21.0).phi, 21.0, 1),
    "triangle": (triangle(48.0), 48.0, 1),
    "matern, k=2": (family("matern 3/2", 21.0).phi, 21.0, 2),
    "cauchy, k=3": (family("cauchy", 6.5).phi, 6.5, 3),
    "spherical, k=3": (spherical(9.0), 5.0, 3),
}


@cache
def made_of(name: str) -> Any:
    phi, _, ndim = CASES[name]
    return bochner.from_function(phi, ndim=ndim)


@campaign
@pytest.mark.parametrize("name", sparse(CASES, lambda name: "spherical" not in name))
def test_draws_agree_with_phi_and_the_density(name):
    made, (_, scale, ndim) = made_of(name), CASES[name]
    omega = rfrope.sample(made, N_DRAWS, rng=20240607)
    lags = along(scale * np.array([0.2, 0.5, 0.9, 1.4, 2.1]), ndim)
    assert worst(moment_z(made, lags, omega)) < Z_BOUND
    radius = np.abs(omega) if ndim == 1 else np.sqrt(np.sum(omega * omega, axis=-1))
    edges, log_w, weight = panels(-30.0, 60.0, 3000)
    w = np.exp(log_w) / scale
    density = made.density(along(w.ravel(), ndim)).reshape(w.shape)
    sphere = 2.0 * math.pi ** (0.5 * ndim) / math.gamma(0.5 * ndim)
    cdf = np.cumsum(np.sum(weight * sphere * density * w**ndim, axis=-1))
    if name not in ("triangle", "spherical, k=3"):  # these oscillate between the panels
        assert cdf[-1] == pytest.approx(1.0, abs=1e-9)
    known = slice(0, int(np.searchsorted(edges, 4.0)))
    assert ks_distance(radius, np.exp(edges[1:][known]) / scale, cdf[known]) < ks_bound(radius.size)
    points = np.linspace(-1.0, 1.0, 201)
    for axis in range(ndim if ndim > 1 else 0):
        beta = stats.beta.cdf(0.5 * (1.0 + points), 0.5 * (ndim - 1), 0.5 * (ndim - 1))
        assert ks_distance(omega[:, axis] / radius, points, beta) < ks_bound(radius.size)


def test_transport_is_odd_to_the_bit_and_monotone():
    made = made_of("gaussian")
    u = np.concatenate([2.0 ** -np.arange(1.0, 54.0), np.arange(1.0, 512.0) / 1024.0])
    assert np.array_equal(made.transport(u), -made.transport(1.0 - u))
    assert np.all(np.diff(made.transport(np.linspace(0.001, 0.999, 5000))) > 0.0)
    assert made.transport(0.5) == 0.0
    assert np.isfinite(made.transport(2.0**-53))


@pytest.mark.parametrize("name", ["matern, k=2", "cauchy, k=3"])
def test_the_law_of_more_axes_is_centrally_symmetric(name):
    made = made_of(name)
    u = np.random.default_rng(0).uniform(size=(100, 1 + made.ndim))
    mirrored = np.concatenate([u[:, :1], 1.0 - u[:, 1:]], axis=1)
    np.testing.assert_array_equal(made.transport(u), -made.transport(mirrored))
    assert np.all(np.isfinite(made.transport(np.full((1, 1 + made.ndim), 0.5))))


def test_phi_of_every_library(xp):
    made = made_of("matern, k=2")
    host = np.array([[0.0, 1.0], [-21.0, 60.0], [3.0, 4.0]])
    found = made.phi(xp(host))
    assert xp.owns(found)
    np.testing.assert_allclose(xp.host(found), made.phi(host), rtol=1e-12)
    np.testing.assert_allclose(xp.host(found), family("matern 3/2", 21.0, 2).phi(host), rtol=1e-9)
    np.testing.assert_allclose(xp.host(made.density(xp(host * 0.01))), made.density(host * 0.01), rtol=1e-12)


def test_phi_far_out():
    made = made_of("gaussian")
    assert made.phi(0.0) == 1.0
    assert made.phi(np.inf) == 0.0
    assert np.isnan(made.phi(np.nan))
    assert np.all(np.abs(made.phi([1e10, 1e100, 1e300])) < 1e-12)
    assert made.density(1e300) == 0.0


def test_a_made_kernel_is_a_value():
    made, other = made_of("triangle"), made_of("gaussian")
    assert made == bochner.from_function(triangle(48.0)) != other
    copy = pickle.loads(pickle.dumps(made))
    assert copy == made
    assert hash(copy) == hash(made)
    np.testing.assert_array_equal(rfrope.sample(copy, 8, rng=0), rfrope.sample(made, 8, rng=0))
    assert re.fullmatch(r"from_function\(median_frequency=0\.0354\d*, sup_error=\S+\)", repr(made))
    check_is_fixed(made, "atom", copy.law.edges, made.law.series)
    x = np.linspace(0.0, 60.0, 7)
    np.testing.assert_allclose((made * other).phi(x), made.phi(x) * other.phi(x), atol=1e-12)


def test_a_certificate_says_what_was_compared_and_what_is_unknown():
    certificate = made_of("gaussian").certificate
    words = r"at (\d+) lags up to (\S+), including all whole lags up to (\d+): within (\S+);.* mass (\S+); bound (\S+)"
    found = re.search(words, str(certificate))
    n_lags, reach, whole, within, unaccounted, bound = map(float, found.groups())
    assert (n_lags, whole) == (certificate.n_lags, 2048)
    assert reach == pytest.approx(certificate.reach, rel=1e-5)
    assert bound == pytest.approx(within + 2.0 * unaccounted, rel=0.1)
    assert f"n_lags={certificate.n_lags}" in repr(certificate)
    normalised = bochner.from_density(lambda w: np.exp(-np.abs(w)), normalise=True).certificate
    assert f"at {normalised.n_frequencies} frequencies" in str(normalised)
    assert "unknown, as no total was given; bound: unknown" in str(normalised)
    assert normalised.unaccounted == normalised.bound == math.inf


def test_a_density_on_the_line_is_exact_at_0():
    """No part next to 0 is left out there: on a line nothing is divided by the frequency."""
    made = bochner.from_density(lambda w: 0.5 * np.exp(-np.abs(w)))
    assert float(made.density(0.0)) == pytest.approx(0.5, rel=1e-11)
