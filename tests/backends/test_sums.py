"""Sums over lags on the CPU: the way that is taken, what transforms promise, and the same bits for every executor."""

import math
import sys

import numpy as np
import pytest
from campaign import campaign
from places import NO_LOOPS
from plain_angles import angles_of
from rotation_calls import laid
from sum_problems import (
    BOUND,
    LAWS,
    QUANTITIES,
    exact_moments,
    frequencies,
    grid_of,
    kernel_moments,
    mean_cos,
    plain_moments,
)

import rfrope
from rfrope import montecarlo
from rfrope._backends import transforms
from rfrope._core import dispatch, sums

backend = pytest.importorskip("rfrope._backends.cpu.sums", reason=NO_LOOPS, exc_type=ImportError)


@pytest.fixture
def ran(monkeypatch):
    """Names of the paths that were taken, in order."""
    names = []
    for name in ("_grid_sums", "_scattered_sums", "_direct_sums", "_direct_mean", "_direct_moments"):
        right = getattr(backend, name)

        def noted(*arguments, name=name, right=right):
            names.append(name.removeprefix("_"))
            return right(*arguments)

        monkeypatch.setattr(backend, name, noted)
    return names


# -- means -------------------------------------------------------------------------------------------------------------


def error_of_means(omega, lags, chosen=slice(None)):
    """Of those at the chosen lags the largest error."""
    return np.max(np.abs(mean_cos(backend, omega, lags)[chosen] - exact_moments(omega, lags[chosen])[0]))


@pytest.mark.parametrize(("axes", "indexing"), [(2, "ij"), (2, "xy"), (3, "ij"), (3, "xy")])
def test_grids_are_found_in_any_order(axes, indexing):
    lags = grid_of(12, axes, indexing)
    for order in (np.arange(len(lags)), np.arange(len(lags))[::-1], np.random.default_rng(2).permutation(len(lags))):
        grid = transforms.grid_of(backend._prepared(lags[order] * 0.3 + 5.0))
        assert [axis.count for axis in grid] == [12] * axes
        assert max(axis.loss for axis in grid) < 1e-14
        rebuilt = np.stack([axis.origin + axis.step * axis.index for axis in grid], axis=-1)
        np.testing.assert_allclose(rebuilt, lags[order] * 0.3 + 5.0, rtol=1e-14)


@pytest.mark.parametrize(
    ("values", "step", "count"),
    [
        (np.arange(10.0), 1.0, 10),
        (np.arange(10.0) * 12 + 5, 12.0, 10),
        ([0.0, 6.0, 9.0, 9.0, 3.0], 3.0, 4),
        (np.subtract.outer(np.arange(9.0), np.arange(9.0)).ravel(), 1.0, 17),
        (np.linspace(0.0, 1.0, 11), 0.1, 11),
        (np.concatenate([np.linspace(0.0, 1.0, 11), 2.0 * np.linspace(0.0, 1.0, 11)]), 0.1, 21),
        ([3.5, 3.5], 1.0, 1),
        ([0.0, 1.0, 2.0**40], None, None),
        ([0.0, 1.0, math.pi], None, None),
        (np.geomspace(1.0, 10.0, 30), None, None),
    ],
)
def test_uniform_axes(values, step, count):
    axis = transforms.axis_of(np.asarray(values, dtype=float), 100)
    if step is None:
        assert axis is None
    else:
        assert (axis.step, axis.count) == (pytest.approx(step), count)
        assert axis.loss == 0.0 or step == 0.1
        assert axis.loss < 1e-14


@campaign
@pytest.mark.parametrize(("axes", "side"), [(1, 4567), (2, 67)])
def test_lags_of_several_blocks_and_many_frequencies(axes, side, ran, monkeypatch):
    monkeypatch.setattr(transforms, "MODES", 1000)
    monkeypatch.setattr(backend, "_DRAWS", 1500)
    chosen = np.random.default_rng(1).integers(0, side**axes, 500)
    assert error_of_means(frequencies(LAWS[0], axes, 4000), grid_of(side, axes), chosen) < BOUND / 10
    assert ran == ["grid_sums"] * 3


def test_long_grids_far_away_keep_the_bound():
    omega = np.random.default_rng(0).normal(size=(100, 1)) * 1e10
    chosen = np.concatenate([[0, 2**18, 2**19 - 1], np.random.default_rng(1).integers(0, 2**19, 200)])
    assert error_of_means(omega, (np.arange(2**19) + 2.0**18)[:, None], chosen) < BOUND / 2


def test_frequencies_without_bound_stay_direct(ran):
    omega = np.random.default_rng(0).normal(size=(2**12, 1))
    omega[:2] = [[2.0**500], [1e100]]
    lags = np.random.default_rng(1).uniform(0.0, 30.0, (2000, 1))
    got = mean_cos(backend, omega, lags)
    assert ran == ["scattered_sums", "direct_sums"]  # the two outside, the others not
    small = exact_moments(omega[2:], lags[::9])[0] * (4094 / 4096)
    assert np.max(np.abs(got[::9] - small)) < 2 / 4096 + BOUND


def test_what_a_grid_loses_is_summed_directly():
    omega, lags = frequencies(LAWS[1], 1, 2**12) * 1e7, np.linspace(0.0, 7.0, 1001)[:, None]
    assert error_of_means(omega, lags, slice(None, None, 5)) < BOUND


def test_phases_are_folded_before_they_are_rounded():
    omega, lags = frequencies(LAWS[0], 1, 500) * 1e5, np.arange(2.0**17)[:, None]
    assert error_of_means(omega, lags, slice(-500, None)) < BOUND


def test_without_finufft_sums_are_direct(ran, monkeypatch):
    omega, lags = frequencies(LAWS[0], 1, 2**12), np.arange(500.0)[:, None]
    with_it = mean_cos(backend, omega, lags)
    monkeypatch.setitem(sys.modules, "finufft", None)
    np.testing.assert_allclose(mean_cos(backend, omega, lags), with_it, rtol=0, atol=BOUND / 10)
    assert ran == ["grid_sums", "direct_mean"]


# -- moments of a kernel -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reach", [1e-3, 0.5])
@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("quantity", QUANTITIES)
def test_moments_at_many_flat_lags_are_those_of_exact_arithmetic(reach, law, quantity, ran):
    """Small variances, which transforms alone lose, from powers and not at every lag by itself."""
    lags = np.linspace(0.0, reach, 20_001)[:, None]
    omega = frequencies(law, lags.shape[1], 2**12)
    mean, squares = kernel_moments(backend, omega, lags, quantity)
    some = np.asarray([1, 2, 3, 5, 100, len(lags) - 1, *np.random.default_rng(0).integers(0, len(lags), 50)])
    exact, exact_squares = exact_moments(omega, lags[some], quantity)
    # cos itself is rounded to 1e-16
    np.testing.assert_allclose(squares[some], exact_squares, rtol=2e-5, atol=1e-27)
    np.testing.assert_allclose(mean[some], exact, rtol=0, atol=1e-11)
    assert ran.count("direct_moments") < 40  # where few lags are alike


# -- threads, forks, workers -------------------------------------------------------------------------------------------


def test_every_number_of_threads_gives_the_same_bits():
    omega, lags = frequencies(LAWS[1], 1, 2**19), np.arange(300.0)[:, None]
    few = frequencies(LAWS[1], 4, 3000)
    results = []
    for count in (1, 2, 4):
        with rfrope.threads(count):
            results.append((mean_cos(backend, omega, lags), mean_cos(backend, few, grid_of(6, 4))))
    for transformed, direct in results[1:]:
        assert np.array_equal(transformed, results[0][0])
        assert np.array_equal(direct, results[0][1])


# -- memory that starts anywhere ---------------------------------------------------------------------------------------


def test_unaligned_arrays_give_the_same_bits():
    """As Dask unpickles them; they left the compiled loops."""
    rng = np.random.default_rng(8)
    lags, omega, q, k = rng.uniform(-40.0, 40.0, 70), rng.normal(size=16), *rng.normal(size=(2, 8))
    assert dispatch.backend_place(montecarlo._kernel_moments, laid(lags, "unaligned")) == "cpu"

    def found(move):
        at, w, a, b = (move(v) for v in (lags, omega, q, k))
        kernel = rfrope.estimate_kernel(at, "matern(nu=0.8, scale=9)", n_samples=3000, rng=1)
        score = rfrope.estimate_scores(a, b, at, "gaussian(scale=9)", n_trials=40, rng=1)
        mean = rfrope.analysis.mean_kernel(at, w)
        return (
            mean,
            kernel.value,
            kernel.stderr,
            *(v for e in (score.mean, score.variance) for v in (e.value, e.stderr)),
        )

    for one, other in zip(found(lambda v: laid(v, "unaligned")), found(np.array), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("odd", [False, True])
@pytest.mark.parametrize("lags", [np.arange(4096.0), np.sort(np.random.default_rng(1).uniform(0.0, 900.0, 4096))])
@pytest.mark.parametrize("in_parts", [False, True])
def test_moments_by_transforms_are_the_plain_ones_in_order(odd, lags, in_parts, monkeypatch):
    omega, used = np.random.default_rng(0).standard_normal((3000, 1)), []

    def apart(omega, lags, planned):
        used.extend((part, planned(part, transforms.grid_of(part))) for part in (lags, 2.0 * lags))
        return used

    if in_parts:
        monkeypatch.setattr(transforms, "plans_of_moments", apart)
    mean, m2 = backend._moments(omega, lags[:, None], odd)
    assert len(used) == 2 * in_parts
    at = np.r_[0:4, 1000:1004, 4090:4096]
    values = (np.sin if odd else np.cos)(lags[at, None] * omega[:, 0])
    np.testing.assert_allclose(mean[at], values.mean(axis=1), rtol=0, atol=1e-12)
    np.testing.assert_allclose(
        m2[at], ((values - values.mean(axis=1, keepdims=True)) ** 2).sum(axis=1), rtol=1e-7, atol=1e-20
    )


def test_moments_are_transformed_whole_or_not_at_all():
    """Both lags and their doubles; few lags, or lags whose doubles are too far, never."""
    omega, lags = np.ones((4096, 1)), np.arange(5000.0)[:, None]

    def up_to(furthest):
        return lambda part, grid: None if np.max(part) > furthest else transforms.TransformPlan(1.0, None, None)

    for furthest, found in ((1e9, 1), (6000.0, None), (10.0, None)):
        plans = transforms.plans_of_moments(omega, lags, up_to(furthest))
        assert (None if plans is None else len(plans)) == found
    assert transforms.plans_of_moments(omega, lags * transforms.LARGEST, up_to(np.inf)) is None
    assert transforms.plans_of_moments(omega[:1], lags[:2], up_to(np.inf)) is None


@pytest.mark.parametrize("phases", [1, 7, 40, 2**25])
@pytest.mark.parametrize("quantity", QUANTITIES)
def test_sums_in_any_number_of_tiles(phases, quantity, monkeypatch):
    """Between which an interrupt is seen: every lag is summed, to the same bits."""
    rng = np.random.default_rng(0)
    omega, lags = rng.standard_normal((5, 1)), rng.uniform(-90.0, 90.0, (23, 1))
    whole = kernel_moments(backend, omega, lags, quantity)
    monkeypatch.setattr(backend, "_TILE_PHASES", phases)
    for found, same, plain in zip(
        kernel_moments(backend, omega, lags, quantity), whole, plain_moments(omega, lags, quantity), strict=True
    ):
        np.testing.assert_array_equal(found, same)
        np.testing.assert_allclose(found, plain, atol=1e-12)
    read = angles_of(lags, omega)
    np.testing.assert_allclose(sums.mean_cos(read), np.mean(np.cos(lags * omega[:, 0]), axis=-1), atol=1e-13)
