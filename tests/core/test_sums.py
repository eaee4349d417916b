"""The one sum over blocks: its value whatever the shapes, and how much of it is held at once."""

import math

import numpy as np
import pytest
from conftest import library, rows
from hypothesis import example, given, settings
from hypothesis import strategies as st
from plain_angles import angles_of
from rotation_calls import without_backends

from rfrope._core import angles, array, sums

SHAPES = st.lists(st.sampled_from((1, 1, 2, 3)), max_size=3).map(tuple)


def exact(a, cosine=None, sine=None):
    """The two sums from all waves at once."""
    phases = np.zeros(a.shape)
    for position, frequency in a.axes():
        phases = phases + position * frequency
    phases = phases if a.shift is None else phases + a.shift
    cosines = np.sum((1.0 if cosine is None else cosine) * np.cos(phases), axis=-1)
    return cosines, 0.0 if sine is None else np.sum(sine * np.sin(phases), axis=-1)


# -- coefficients times waves ------------------------------------------------------------------------------------------


@settings(deadline=None, derandomize=True, max_examples=200)
@given(one=SHAPES, other=SHAPES, blocks=st.sampled_from((0, 1, 2, 5)), seed=st.integers(0, 9))
@example(one=(2, 1, 1), other=(3, 2), blocks=5, seed=0)  # rows of their own
@example(one=(2, 1), other=(2, 3), blocks=5, seed=0)  # one row for each of some
@example(one=(), other=(2, 3), blocks=5, seed=0)
@example(one=(2, 3), other=(), blocks=5, seed=0)
def test_coefficients_meet_waves_as_a_product_summed(one, other, blocks, seed):
    try:
        np.broadcast_shapes(one, other)
    except ValueError:
        return
    rng = np.random.default_rng(seed)
    coefficients, waves = rng.standard_normal((*one, blocks)), rng.standard_normal((*other, blocks))
    wanted = np.sum(coefficients * waves, axis=-1)
    found = sums.weighted(coefficients, waves, np)
    assert np.shape(found) == wanted.shape
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-14)
    np.testing.assert_array_equal(sums.weighted(None, waves, np), np.sum(waves, axis=-1))
    both = sums.CosSin(waves, waves, np).total(coefficients, 2.0 * coefficients)
    np.testing.assert_allclose(both, 3.0 * wanted, rtol=0, atol=5e-14)


# -- over blocks -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("budget", [1, 7, 40, 2**20])
@pytest.mark.parametrize(
    ("positions", "frequencies", "cosine"), rows("core/sums.json", "sums_over_blocks_in_parts_of_any_size")
)
@pytest.mark.parametrize("which", ["both", "cosine", "neither"])
def test_sums_over_blocks_in_parts_of_any_size(budget, positions, frequencies, cosine, which, monkeypatch, rng):
    monkeypatch.setattr(sums, "BUDGET", budget)
    a = angles_of(rng.uniform(-9, 9, positions), rng.standard_normal(frequencies), rng.standard_normal(9))
    a = a if which != "neither" or budget == 7 else a._replace(shift=None)
    cosine, sine = rng.standard_normal((2, *cosine))
    cosine, sine = {"both": (cosine, sine), "cosine": (cosine, None), "neither": (None, None)}[which]
    held, right = [], sums.cos_sin
    monkeypatch.setattr(sums, "cos_sin", lambda part: held.append(math.prod(part.shape)) or right(part))
    with without_backends():
        found = sums.sum_blocks(a, cosine, sine)
    for one, wanted in zip(found, exact(a, cosine, sine), strict=True):
        assert np.shape(one) == np.shape(wanted)
        np.testing.assert_allclose(one, wanted, rtol=0, atol=1e-13)
    whole = a.shift is None and cosine is None  # it is the mean, whose lags are not cut
    cut = a.shape[:-2] if a.positions.ndim > 1 and not whole else a.shape[:-1]
    assert max(held) <= max(budget, math.prod(cut))
    assert sum(held) == math.prod(a.shape)  # every phase once
    assert len(held) == 1 or budget < 2**20


def test_products_of_coefficients_and_phases_are_within_the_budget(monkeypatch, rng):
    """Where coefficients meet phases one by one, it is their products that are held."""
    monkeypatch.setattr(sums, "BUDGET", 100)
    a, cosine = angles_of(rng.uniform(-9, 9, 5), rng.standard_normal(9)), rng.standard_normal((4, 5, 9))
    held, right = [], sums.weighted
    monkeypatch.setattr(sums, "weighted", lambda c, waves, xp: held.append((c * waves).size) or right(c, waves, xp))
    np.testing.assert_allclose(sums.sum_blocks(a, cosine)[0], exact(a, cosine)[0], rtol=0, atol=1e-13)
    assert max(held) <= 100
    held.clear()
    rows = cosine[:, :1, :]  # these do not, so as many blocks as phases allow
    np.testing.assert_allclose(sums.sum_blocks(a, rows[:, 0, None, :])[0], exact(a, rows)[0], rtol=0, atol=1e-13)
    assert len(held) == 1


def test_without_blocks_the_sum_is_zero():
    for positions, cosine in ((np.zeros(()), np.ones(0)), (np.zeros(4), np.ones((3, 1, 0)))):
        for found in sums.sum_blocks(angles_of(positions, np.ones(0)), cosine, cosine):
            assert not np.any(found)


# -- derivatives, falls, grids, squares --------------------------------------------------------------------------------


@pytest.mark.parametrize("budget", [7, 40, 2**20])
@pytest.mark.parametrize("rows", [(), (4,), (3, 1)])
def test_derivatives_are_those_of_the_sum(budget, rows, monkeypatch, rng):
    monkeypatch.setattr(sums, "BUDGET", budget)
    omega, x = rng.standard_normal(9), rng.uniform(-9.0, 9.0, 4)
    cosine, sine = rng.standard_normal((2, *rows, 9))
    u = np.multiply.outer(x, omega)
    value, slope = cosine * np.cos(u) + sine * np.sin(u), sine * np.cos(u) - cosine * np.sin(u)
    wanted = [np.sum(each, axis=-1) for each in (value, omega * slope, -(omega**2) * value)]
    for orders in ((0, 1, 2), (2,), (1, 0)):
        found = sums.derivatives(angles_of(x, omega), cosine, sine, orders)
        for one, order in zip(found, orders, strict=True):
            np.testing.assert_allclose(one, wanted[order], rtol=0, atol=1e-12)


@pytest.mark.parametrize("budget", [7, 2**20])
def test_falls_keep_their_digits_near_lag_0(budget, monkeypatch, rng):
    monkeypatch.setattr(sums, "BUDGET", budget)
    omega, x = rng.standard_normal((5, 2)), np.asarray([[1e-9, 0.0], [0.0, 3e-9], [1.5, -2.0]])
    first, second = sums.one_minus_cos_moments(angles_of(x, omega), 2)
    small = x[:2] @ omega.T
    np.testing.assert_allclose(first[:2], np.sum(0.5 * small**2, axis=-1), rtol=1e-14)
    np.testing.assert_allclose(second[:2], np.sum(0.25 * small**4, axis=-1), rtol=1e-14)
    large = 1.0 - np.cos(x[2] @ omega.T)
    np.testing.assert_allclose([first[2], second[2]], [large.sum(), (large**2).sum()], rtol=1e-13)
    np.testing.assert_array_equal(sums.one_minus_cos_moments(angles_of(x, omega))[0], first)


def test_sums_at_all_sums_of_two_lags(rng):
    omega, far, near = rng.standard_normal(9), rng.uniform(-9.0, 9.0, 4), rng.uniform(-1.0, 1.0, 3)
    cosine, sine = rng.standard_normal((2, 9))
    waves = [sums.CosSin.from_angles(angles_of(x, omega)) for x in (far, near)]
    u = np.add.outer(far, near)[..., None] * omega
    wanted = np.sum(cosine * np.cos(u) + sine * np.sin(u), axis=-1)
    np.testing.assert_allclose(sums.sum_on_grid(*waves, cosine, sine), wanted, rtol=0, atol=1e-13)
    np.testing.assert_allclose(sums.sum_on_grid(*waves, 0.5), 0.5 * np.sum(np.cos(u), axis=-1), rtol=0, atol=1e-13)


def test_the_mean_square_over_random_coefficients(rng):
    omega, x = rng.standard_normal(5), rng.uniform(-9.0, 9.0, 4)
    cosine, sine = rng.standard_normal((2, 7, 1, 5))  # seven draws
    waves = sums.CosSin.from_angles(angles_of(x, omega))
    wanted = np.mean(waves.total(cosine, sine) ** 2, axis=0)
    a, b = cosine[:, 0], sine[:, 0]
    moments = (a.T @ a / 7, a.T @ b / 7, b.T @ b / 7)
    np.testing.assert_allclose(waves.mean_square(*moments), wanted, rtol=1e-12)


# -- the mean ----------------------------------------------------------------------------------------------------------


def test_the_mean_is_the_sum_over_the_number_of_blocks(xp, rng):
    positions, frequencies = rng.uniform(-9, 9, 7), rng.standard_normal(6)
    a = angles.read(xp(positions), xp(frequencies))
    found = sums.mean_cos(a)
    assert xp.owns(found)
    np.testing.assert_allclose(xp.host(found), np.cos(np.outer(positions, frequencies)).mean(axis=-1), atol=1e-15)
    np.testing.assert_allclose(xp.host(sums.sum_blocks(a)[0]), 6.0 * xp.host(found), atol=1e-14)


# -- roots -------------------------------------------------------------------------------------------------------------


def test_roots_of_what_is_not_negative_but_for_rounding(xp):
    found = sums.root(xp(np.asarray([4.0, 0.0, -1e-18])), array.named_namespace(xp.module))
    np.testing.assert_array_equal(xp.host(found), [2.0, 0.0, 0.0])
    if xp.name == "torch":  # the slope is zero at zero
        x = xp.module.tensor([4.0, 0.0], dtype=xp.module.float64, requires_grad=True)
        sums.root(x, xp.module).sum().backward()
        assert x.grad.tolist() == [0.25, 0.0]


@pytest.mark.parametrize("name", ["numpy", "array-api-strict"])
@pytest.mark.parametrize("shape", [(), (1,), (5, 1), (8,), (5, 8)], ids=str)
def test_a_shift_of_any_shape_where_a_sum_is_cut(shape, name, monkeypatch):
    """One number for all blocks, one for each, at each position: lags are cut, then blocks, and nothing changes."""
    lib, rng = library(name), np.random.default_rng(0)
    positions, omega, shift = rng.standard_normal((5, 1)), rng.standard_normal((8, 1)), rng.standard_normal(shape)
    cosine, sine = rng.standard_normal((2, 5, 8))
    read = angles.read(lib(positions), lib(omega), lib(shift))
    u = positions * omega[:, 0] + shift
    for budget in (sums.BUDGET, 16, 3, 1):
        monkeypatch.setattr(sums, "BUDGET", budget)
        found = sums.sum_blocks(read, lib(cosine), lib(sine))
        for one, terms in zip(found, (cosine * np.cos(u), sine * np.sin(u)), strict=True):
            np.testing.assert_allclose(lib.host(one), np.sum(terms, axis=-1), atol=1e-14)
