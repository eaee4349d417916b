"""How fast blocks turn and how frequencies are spread: by hand, at the ends of the floats, and on every library."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

import rfrope
from rfrope import analysis

PI = Fraction("3.14159265358979323846264338327950288419716939937510582097494")


# -- wavelengths -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(5,), (5, 3), (2, 4, 5, 3)])
def test_shapes_of_wavelengths(shape, xp):
    omega = np.random.default_rng(0).normal(size=shape)
    wanted = 2.0 * np.pi / (np.abs(omega) if len(shape) == 1 else np.linalg.norm(omega, axis=-1))
    for got, right in ((analysis.wavelengths(xp(omega)), wanted), (analysis.turns(xp(omega), 7.0), 7.0 / wanted)):
        assert xp.owns(got)
        assert got.dtype == xp.dtype("float64")
        assert got.shape == (shape if len(shape) == 1 else shape[:-1])
        np.testing.assert_allclose(xp.host(got), right, rtol=1e-15)


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


@pytest.mark.parametrize(("base", "n_blocks"), [(10.0, 2), (1e4, 3), (500000.0, 64), (1e9, 1000)])
def test_a_geometric_ladder_is_fitted_exactly(base, n_blocks):
    states = analysis.density_of_states(rfrope.geometric(n_blocks, base=base))
    assert states.low == pytest.approx(1.0 / base, rel=1e-12)
    assert states.high == pytest.approx(1.0, rel=1e-12)
    assert states.distance == pytest.approx(1.0 / n_blocks, rel=1e-9)
    assert states.zeros == 0
    assert states.magnitudes.tolist() == sorted(rfrope.geometric(n_blocks, base=base))


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
    assert np.array_equal(states.share, without.share)


def test_frequencies_that_never_turn_have_no_band():
    states = analysis.density_of_states(np.zeros((2, 4, 3)))
    assert states.zeros == 8
    assert math.isnan(states.low)
    assert math.isnan(states.high)
    assert math.isnan(states.distance)
    assert states.edges.size == states.share.size == states.magnitudes.size == 0
    assert analysis.density_of_states([0.0], n_bins=4).share.size == 0


@pytest.mark.parametrize("n_bins", [None, 3])
def test_equal_frequencies_are_one_point(n_bins):
    states = analysis.density_of_states([-2.0, 2.0, 2.0], n_bins=n_bins)
    assert (states.low, states.high, states.distance) == (pytest.approx(2.0), pytest.approx(2.0), 0.0)
    assert states.share.tolist() == ([1.0] if n_bins is None else [0.0, 1.0, 0.0])


def test_the_ends_of_the_floats():
    states = analysis.density_of_states([5e-324, 2.0**500])
    assert states.edges[0] == 0.0
    assert states.edges[-1] == 2.0**500
    assert states.share[[0, -1]].tolist() == [0.5, 0.5]
    assert analysis.density_of_states([5e-324, 2.0**500], n_bins=2).share.tolist() == [0.5, 0.5]


def test_the_distance_is_kolmogorovs():
    """Against scipy's statistic for the fitted law."""
    from scipy.stats import kstest, loguniform

    omega = np.random.default_rng(4).gamma(2.0, size=500)
    states = analysis.density_of_states(omega)
    wanted = kstest(omega, loguniform(states.low, states.high).cdf).statistic
    assert states.distance == pytest.approx(wanted, rel=1e-9)


def test_the_band_is_the_least_squares_ladder():
    omega = np.sort(np.random.default_rng(5).gamma(2.0, size=50))[::-1]
    slope, top = np.polyfit(np.arange(50), np.log(omega), 1)
    states = analysis.density_of_states(omega)
    assert states.high == pytest.approx(np.exp(top))
    assert states.low == pytest.approx(np.exp(top + 50 * slope))


# -- errors ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("frequencies", "error", "message"),
    [
        (1.0, ValueError, r"frequencies is a single number; expected \(D,\)"),
        (np.ones((3, 0)), ValueError, r"frequencies has shape \(3, 0\); expected at least one position axis"),
        ([1.0, np.nan], ValueError, "frequencies holds NaN or infinity"),
        ([1e200], ValueError, r"magnitudes above 2\*\*500"),
    ],
)
def test_bad_frequencies_are_named(frequencies, error, message):
    for function in (analysis.wavelengths, analysis.density_of_states):
        with pytest.raises(error, match=message):
            function(frequencies)


def test_bad_bins_are_named():
    with pytest.raises(ValueError, match="n_bins is 0; expected a whole number from 1"):
        analysis.density_of_states([1.0], n_bins=0)
    with pytest.raises(ValueError, match=r"frequencies has magnitudes of shape \(0,\); expected at least one block"):
        analysis.density_of_states([])
