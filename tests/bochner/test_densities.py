"""Densities with bands at any places: everything that was met is kept, jumps are edges, and refusals are true."""

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from campaign import campaign, sparse
from scipy import special

from rfrope import bochner

Law = tuple[Callable[[Any], Any], Callable[[Any], Any], tuple[np.ndarray, np.ndarray, np.ndarray]]


def normal(t: Any) -> Any:
    return np.exp(-0.5 * t * t) / math.sqrt(2.0 * math.pi)


def of_gaussians(mass: Any, centre: Any, width: Any) -> Law:
    """Density, Phi and parts of bands ``mass`` at ``+-centre``, normal with standard deviations ``width``."""
    mass, centre, width = (np.asarray(v) for v in (mass, centre, width))

    def density(w: Any) -> Any:
        w = np.abs(w)[..., None]
        both = normal((w - centre) / width) + normal((w + centre) / width)
        return np.sum(0.5 * mass / width * both, axis=-1)

    def phi(x: Any) -> Any:
        x = np.asarray(x)[..., None]
        return np.sum(mass * np.exp(-0.5 * (width * x) ** 2) * np.cos(centre * x), axis=-1)

    return density, phi, (mass, centre, width)


def of_uniforms(mass: Any, low: Any, width: Any) -> Law:
    """Density, Phi and parts of bands ``mass`` from ``low`` to ``low + width``, of either sign."""
    mass, low, width = (np.asarray(v) for v in (mass, low, width))

    def density(w: Any) -> Any:
        w = np.abs(w)[..., None]
        return np.sum(0.5 * mass / width * ((w >= low) & (w <= low + width)), axis=-1)

    def phi(x: Any) -> Any:
        x = np.asarray(x)[..., None]
        return np.sum(mass * np.sinc(0.5 * width * x / math.pi) * np.cos((low + 0.5 * width) * x), axis=-1)

    return density, phi, (mass, low, width)


def drawn(of: Callable[..., Law], seed: int, *, most: int = 5, narrow: float = -2.0) -> Law:
    """Bands at log-spaced places, from a hundredth of their frequency (or ``10**narrow`` of it) to twice it wide."""
    rng = np.random.default_rng([25, of is of_gaussians, seed])
    n = int(rng.integers(1, most + 1))
    at = 10.0 ** rng.uniform(-3.0, 3.0, n)
    return of(rng.dirichlet(np.ones(n)), at, at * 10.0 ** rng.uniform(narrow, 0.3, n))


def error(made: Any, law: Law) -> float:
    """Largest error of Phi, beyond what rounding of the phases may come to here."""
    _, phi, (_, centre, width) = law
    x = np.append(np.geomspace(1e-5, 1e4, 300), np.arange(1.0, 100.0))
    return float(np.max(np.abs(made.phi(x) - phi(x)) - 3e-15 * (1.0 + np.max(centre + width) * x)))


@pytest.mark.parametrize("normalise", [False, True])
def test_bands_that_are_far_apart_are_kept(normalise):
    law = of_gaussians([0.6, 0.4], [200.0, 0.05], [70.0, 0.02])
    made = bochner.from_density(law[0], normalise=normalise)
    assert made.phi(1.0) == pytest.approx(0.4 * math.exp(-0.0002) * math.cos(0.05), abs=1e-12)
    assert error(made, law) < 1e-12


@pytest.mark.parametrize("ndim", [1, 2, 3])
def test_a_density_in_single_precision_has_that_error(ndim):
    made = bochner.from_density(lambda w: normal(np.float32(w)), ndim=ndim, normalise=True)
    lags = np.geomspace(1e-3, 10.0, 50)
    worst = float(
        np.max(
            np.abs(
                made.phi(np.stack([lags] + [0.0 * lags] * (ndim - 1), -1) if ndim > 1 else lags)
                - np.exp(-0.5 * lags**2)
            )
        )
    )
    assert worst < made.certificate.sup_error < 1e-6


def check_laws(maker, seeds, bound):
    for seed in seeds:
        law = drawn(maker, seed)
        for normalise in (False, True):
            made = bochner.from_density(law[0], normalise=normalise)
            assert error(made, law) < bound, (seed, normalise)
            assert made.certificate.sup_error < bound, (seed, normalise)


@campaign
@pytest.mark.parametrize("batch", sparse(range(101), lambda batch: batch % 25 in (0, 2), 48))
def test_densities_of_gaussians(batch):
    check_laws(of_gaussians, range(8 * batch, 8 * batch + 8), 1e-11)


@pytest.mark.parametrize("batch", sparse(range(60), lambda batch: batch % 15 == 0, 14))
def test_densities_of_uniforms(batch):
    check_laws(of_uniforms, range(5 * batch, 5 * batch + 5), 1e-12)


def test_bands_so_narrow_that_their_frequencies_round():
    made = bochner.from_density(of_gaussians([1.0], [6.4710456], [2.0864e-4])[0], frequency=6.471)
    assert made.certificate.bound < 1e-10
    assert made.law.halves.size < 500


def test_jumps_are_edges():
    density, _, (_, low, width) = of_uniforms([0.3, 0.7], [0.37, 91.7], [0.119, 2.03])
    made = bochner.from_density(density)
    for jump in (*low, *(low + width)):
        assert np.min(np.abs(made.law.edges - jump)) <= np.spacing(jump)
    assert made.law.halves.size < 40
    assert made.certificate.bound < 1e-13
    assert made.certificate.tail_mass == 0.0


@pytest.mark.parametrize("batch", sparse(range(20), lambda batch: batch % 10 == 0, 6))
def test_a_refusal_is_true(batch):
    """The mass that is stated is that of the bands which some frequency met, and no other."""
    refused = 0
    for seed in range(5 * batch, 5 * batch + 5):
        density, _, (mass, low, width) = drawn(of_uniforms, seed, most=12, narrow=-5.0)
        tried = [np.zeros(0)]

        def seen(w: Any, density: Any = density, tried: Any = tried) -> Any:
            tried.append(np.abs(w))
            return density(w)

        try:
            found = bochner.from_density(seen).certificate.mass
        except ValueError as reason:
            said = re.match(
                r"density integrates to ([^;]+); .* inside a narrow band that|density is (0) at", str(reason)
            )
            found, refused = float(said[1] or said[2]), refused + 1
        places = np.sort(np.concatenate(tried))
        met = np.searchsorted(places, low + width, side="right") > np.searchsorted(places, low)
        assert found == pytest.approx(np.sum(mass[met]), abs=2e-9)
    assert refused


@pytest.mark.parametrize("options", [{}, {"support": (9e5, 1.1e6)}], ids=str)
def test_a_frequency_is_a_place_that_is_looked_at(options):
    made = bochner.from_density(lambda w: 500.0 * (np.abs(np.abs(w) - 1e6) < 5e-4), frequency=1e6, **options)
    x = np.array([1e-3, 1e2, 1e4])
    np.testing.assert_allclose(made.phi(x), np.cos(1e6 * x) * np.sinc(5e-4 * x / math.pi), atol=1e-5)


@pytest.mark.parametrize("size", [1e-200, 1e-30, 1e30])
def test_a_density_of_any_size_may_be_normalised(size):
    made = bochner.from_density(lambda w: size * np.exp(-0.5 * w * w), normalise=True)
    x = np.linspace(0.0, 6.0, 50)
    np.testing.assert_allclose(made.phi(x), np.exp(-0.5 * x * x), atol=1e-14)
    assert made.certificate.mass == pytest.approx(size * math.sqrt(2.0 * math.pi))


def test_a_strong_pole_at_zero():
    made = bochner.from_density(lambda w: np.where(np.abs(w) < 1.0, 0.05 * np.abs(w) ** -0.9, 0.0))
    x = np.array([0.5, 1.0, 10.0])
    term = np.arange(60)[:, None]
    exact = np.sum((-1.0) ** term * x ** (2 * term) / special.gamma(2 * term + 1) * 0.1 / (2 * term + 0.1), axis=0)
    np.testing.assert_allclose(made.phi(x), exact, atol=1e-11)


@pytest.mark.parametrize("ndim", [2, 3])
def test_shells_and_discs(ndim):
    """Bands of the length of omega, whose density over one component has kinks in two axes and none in three."""
    volume = (lambda r: math.pi * r**2) if ndim == 2 else (lambda r: 4.0 / 3.0 * math.pi * r**3)
    disc = (lambda z: 2.0 * special.j1(z) / z) if ndim == 2 else (lambda z: 3.0 * special.spherical_jn(1, z) / z)
    masses = ((0.7, 1.1, 0.6), (20.0, 21.0, 0.4))
    bands = [(a, b, mass / (volume(b) - volume(a))) for a, b, mass in masses]
    made = bochner.from_density(lambda w: sum(h * ((w >= a) & (w <= b)) for a, b, h in bands), ndim=ndim)
    r = np.geomspace(0.01, 20.0, 60)
    exact = sum(h * (volume(b) * disc(b * r) - volume(a) * disc(a * r)) for a, b, h in bands)
    found = made.phi(np.stack([r, *[0.0 * r] * (ndim - 1)], axis=-1))
    np.testing.assert_allclose(found, exact, atol=2e-12)
    assert made.certificate.bound < 1e-10


@campaign
def test_a_density_in_the_plane_with_a_pole_at_its_end():
    made = bochner.from_density(lambda w: 1.0 / (4.0 * math.pi * np.sqrt(4.0 - w * w)), ndim=2, support=(0.0, 2.0))
    r = np.linspace(0.0, 30.0, 61)
    exact = np.sinc(2.0 * r / math.pi)
    assert np.max(np.abs(made.phi(np.stack([r, 0.0 * r], axis=-1)) - exact)) <= made.certificate.bound < 1e-7
