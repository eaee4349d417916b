"""How fast blocks turn and how frequencies are spread: by hand, at the ends of the floats, and on every library."""

import math
from fractions import Fraction

import numpy as np
import pytest
from owned import check_owned
from scipy.stats import kstest, loguniform

import rfrope
from rfrope import analysis

PI = Fraction("3.14159265358979323846264338327950288419716939937510582097494")


# -- wavelengths -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(5,), (5, 3), (2, 4, 5, 3)])
def test_shapes_of_wavelengths(shape, xp):
    omega = np.random.default_rng(0).normal(size=shape)
    wanted = 2.0 * np.pi / (np.abs(omega) if len(shape) == 1 else np.linalg.norm(omega, axis=-1))
    for got, right in ((analysis.wavelengths(xp(omega)), wanted), (analysis.turns(xp(omega), 7.0), 7.0 / wanted)):
        check_owned(xp, got, right, rtol=1e-15)


def test_wavelengths_are_right_to_an_ulp():
    rng = np.random.default_rng(1)
    omega = np.concatenate([[2.0**500, 2.0**-1018, 1e-300, 1.0], np.exp(rng.uniform(-300.0, 300.0, 500))])
    for value, got in zip(omega.tolist(), analysis.wavelengths(omega).tolist(), strict=True):
        exact = 2 * PI / Fraction(value)
        assert abs(Fraction(got) - exact) <= Fraction(math.ulp(got))
        made = analysis.turns([value], 131072.0).item()
        assert abs(Fraction(made) - 131072 * Fraction(value) / (2 * PI)) <= 2 * Fraction(math.ulp(made))


@pytest.mark.parametrize("size", [1e-300, 1e-160, 1.0, 1e149])
def test_wavelengths_of_several_axes_neither_overflow_nor_vanish(size):
    got = analysis.wavelengths([[3.0 * size, 4.0 * size], [0.0, size], [0.0, 0.0]])
    np.testing.assert_allclose(got, [2.0 * np.pi / 5.0 / size, 2.0 * np.pi / size, np.inf], rtol=5e-16)


# -- density of states -------------------------------------------------------------------------------------------------


def test_bins_count_every_magnitude_once():
    omega = np.random.default_rng(2).normal(size=(3, 7, 2)) ** 3
    magnitudes = np.linalg.norm(omega, axis=-1).reshape(-1)
    for n_bins in (None, 1, 5, 100):
        states = analysis.density_of_states(omega, n_bins=n_bins)
        assert n_bins is None or len(states.share) == n_bins
        inside = (magnitudes > states.edges[:-1, None]) & (magnitudes <= states.edges[1:, None])
        inside[0] |= magnitudes == states.edges[0]
        assert (21.0 * states.share).round(9).tolist() == np.sum(inside, axis=1).tolist()
        assert np.sum(states.share) == pytest.approx(1.0)
        np.testing.assert_allclose(states.magnitudes, np.sort(magnitudes), rtol=1e-15)
    widths = np.diff(np.log(analysis.density_of_states(omega, n_bins=5).edges))
    np.testing.assert_allclose(widths, widths[0])


def test_zeros_are_counted_apart(xp):
    omega = np.concatenate([rfrope.geometric(24), np.zeros(8)])
    states = analysis.density_of_states(xp(omega))
    without = analysis.density_of_states(rfrope.geometric(24))
    assert states.zeros == 8
    assert (states.low, states.high, states.distance) == (without.low, without.high, without.distance)
    np.testing.assert_array_equal(xp.host(states.share), without.share)


@pytest.mark.parametrize("n_bins", [None, 1, 2, 3])
def test_ends_of_densities(n_bins):
    """Equal frequencies are one point, magnitudes may be at both ends of the floats, and zeros have no band."""
    states = analysis.density_of_states([-2.0, 2.0, 2.0], n_bins=n_bins)
    assert (states.low, states.high, states.distance) == (pytest.approx(2.0), pytest.approx(2.0), 0.0)
    assert states.share.tolist() == {None: [1.0], 1: [1.0], 2: [1.0, 0.0], 3: [0.0, 1.0, 0.0]}[n_bins]
    states = analysis.density_of_states([5e-324, 2.0**500], n_bins=n_bins)
    assert (states.edges[0], states.edges[-1]) == (0.0 if n_bins is None else 5e-324, 2.0**500)
    assert n_bins == 1 or states.share[[0, -1]].tolist() == [0.5, 0.5]
    states = analysis.density_of_states(np.zeros((2, 4, 3)), n_bins=n_bins)
    assert (states.zeros, np.isnan([states.low, states.high, states.distance]).all()) == (8, True)
    assert states.edges.size == states.share.size == states.magnitudes.size == 0


LADDERS = [rfrope.geometric(n, base=base) for n, base in ((2, 10.0), (3, 1e4), (64, 5e5), (1000, 1e9))]


@pytest.mark.parametrize("omega", [*LADDERS, np.random.default_rng(5).gamma(2.0, size=50)], ids=len)
def test_the_band_is_the_least_squares_ladder_and_the_distance_kolmogorovs(omega):
    states, n = analysis.density_of_states(omega), len(omega)
    slope, top = np.polyfit(np.arange(n), np.log(np.sort(omega)[::-1]), 1)
    assert (states.low, states.high) == pytest.approx((np.exp(top + n * slope), np.exp(top)), rel=1e-9)
    assert states.distance == pytest.approx(kstest(omega, loguniform(states.low, states.high).cdf).statistic, rel=1e-6)
    assert (states.zeros, states.magnitudes.tolist()) == (0, sorted(omega))
