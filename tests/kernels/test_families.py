"""Every registered kernel: Phi against mpmath, and its draws against Phi and against the density."""

import dataclasses
import itertools
import pathlib
from functools import lru_cache

import mpmath as mp
import numpy as np
import problems
import pytest
from campaign import one_of, sparse
from problems import KERNELS, N_DRAWS, Z_BOUND, density_z, has_density, moment_z, phi_reference, worst
from scipy import stats

import rfrope
from rfrope import kernels
from rfrope._core import quantiles
from rfrope.kernels import Kernel
from rfrope.kernels.base import Law

each_problem = pytest.mark.parametrize("problem", KERNELS, ids=str)


def kind(problem):
    return problem.family, problem.kernel.ndim


@lru_cache(maxsize=2)
def draws(kernel: Kernel, n: int = N_DRAWS) -> np.ndarray:
    return rfrope.sample(kernel, n, rng=20240607)


# -- Phi against mpmath ------------------------------------------------------------------------------------------------


@each_problem
def test_phi_and_phi2_at_the_problems_lags_and_over_forty_scales(problem):
    made, k = problem.kernel, problem.kernel.ndim
    for lag in problem.lags:
        for found, at in ((made.phi(lag), lag), (made.phi2(lag), np.multiply(2.0, lag))):
            assert float(found) == pytest.approx(float(phi_reference(problem, at)), rel=1e-13)
    direction = np.array([0.6, -0.64, 0.48])[:k] / np.linalg.norm([0.6, -0.64, 0.48][:k]) * problem.lengths
    sizes = np.concatenate([[0.0, 1e-9, 1e-4, 0.01], np.linspace(0.1, 40.0, 12)])
    lags = made.restore_shape(sizes[:, None] * direction)
    assert made.phi(lags)[0] == 1.0
    # some cross 0, where only an absolute error means something; the gaussian falls below all numbers
    absolute = {"ellipse": 1e-300, "box": 1e-15, "band": 1e-15}.get(problem.shape, 1e-14)
    for value, lag in zip(made.phi(lags), lags, strict=True):
        reference = phi_reference(problem, lag)
        assert abs(mp.mpf(float(value)) - reference) <= 1e-12 * abs(reference) + absolute


@pytest.mark.parametrize("name", kernels.names())
def test_limits_at_huge_lags_and_frequencies(name):
    made = rfrope.kernel(name)
    if name in ("periodic", "shell"):  # in one axis Phi does not fall to 0
        assert np.all(np.isnan(made.phi([np.inf, -np.inf, np.nan])))
    elif name == "constant":
        assert rfrope.kernel(name, ndim=2).phi([[np.inf, 3.0]]) == 1.0
    else:
        assert abs(made.phi(1e150)) <= 1e-146  # log_uniform's own low is 1e-4
        assert made.phi(np.inf) == made.phi(-np.inf) == 0.0
        assert np.isnan(made.phi(np.nan))
        assert 0.0 <= made.density(1e150) <= 1e-149


# -- Phi against a table of mpmath -------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def table() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Lags ``(n, 3)`` and Phi there, by kernel; see ``tests/tables/make_phi.py``."""
    with np.load(pathlib.Path(__file__).parents[1] / "tables" / "phi.npz") as held:
        names, row, lag, phi = (held[name] for name in ("kernels", "row", "lag", "phi"))
    return {str(text): (lag[row == i], phi[row == i]) for i, text in enumerate(names)}


@pytest.mark.parametrize("text", table())
def test_phi_over_the_range_of_parameters_and_lags(text):
    """Lags from 1e-300 to 1e300: everywhere to 1e-12, and to 1e-12 of its size unless Phi crosses 0 near by."""
    made, (lags, exact) = kernels.parse(text), table()[text]
    found = made.phi(made.restore_shape(np.pad(lags, [(0, 0), (0, 13)])[:, : made.ndim]))
    assert np.max(np.abs(found - exact)) < 1e-14
    sizable = np.abs(exact) > (1e-300 if problems.FAMILIES[made.name].shape in ("ellipse", "lattice") else 1e-2)
    np.testing.assert_allclose(found[sizable], exact[sizable], rtol=1e-12)
    assert found[0] == 1.0


# -- draws against Phi -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("problem", one_of(KERNELS, kind), ids=str)
def test_mean_cos_cos2_and_sin_of_the_draws(problem):
    scores = moment_z(problem.kernel, problem.lags, draws(problem.kernel))
    assert set(scores) == {"cos", "cos 2u", "sin"}
    for name, z in scores.items():
        assert np.all(np.abs(z) < Z_BOUND), name


# -- draws against the density -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("problem", one_of(filter(lambda p: has_density(p.kernel), KERNELS), kind), ids=str)
def test_draws_are_as_dense_as_the_density_says(problem):
    assert np.max(np.abs(density_z(problem.kernel, problem.lengths, draws(problem.kernel)))) < Z_BOUND


@pytest.mark.parametrize("problem", [p for p in KERNELS if has_density(p.kernel)], ids=str)
def test_densities_integrate_to_one(problem):
    if problem.shape == "lumps":
        assert problems.box_integral(problem.kernel, problem.lengths, 9.0) == pytest.approx(1.0, abs=1e-9)
    elif problem.shape == "box":
        assert problems.box_integral(problem.kernel, problem.lengths, 1.0) == pytest.approx(1.0, abs=1e-12)
        edge = 1.0 / np.array(problem.lengths)
        outside = 1.0001 * edge[:1] if problem.kernel.ndim == 1 else np.diag(0.0001 * edge) + edge
        assert not np.any(problem.kernel.density(outside))
    else:
        assert problems.radius_cdf(problem.kernel, problem.lengths)[1][-1] == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize("ndim", [1, 2, 3])
@pytest.mark.parametrize(
    "text",
    [f"matern(nu={nu}, scale=3)" for nu in (0.25, 1.0, 7.3, 20.0, 500.0)]
    # also where the order alpha - k/2 of the Bessel function is 0, close to it and negative
    + [f"rational_quadratic(alpha={a}, scale=3)" for a in (0.02, 0.5, 0.500000001, 0.999999, 1.0, 1.5, 30.0, 1e6)],
)
def test_densities_of_other_shapes_integrate_to_one(text, ndim):
    made = dataclasses.replace(kernels.parse(text), ndim=ndim)
    alpha = getattr(made, "alpha", None)  # of a small one nearly all radii are below exp(-50)
    below = stats.gamma.cdf(1e-42, alpha, scale=1.0 / alpha) if alpha else 0.0
    assert problems.radius_cdf(made, (3.0,) * ndim)[1][-1] == pytest.approx(1.0, abs=1e-9 + 10.0 * below)


@pytest.mark.parametrize("ndim", [1, 2, 3])
@pytest.mark.parametrize(("exponent", "name", "scale"), [(1.0, "exponential", 3.0), (2.0, "gaussian", 4.5**0.5)])
def test_a_stable_law_has_a_density_in_closed_form_for_two_exponents(exponent, name, scale, ndim):
    made = rfrope.kernel("power_exponential", ndim=ndim, scale=3.0, exponent=exponent)
    w = made.restore_shape(np.random.default_rng(0).normal(size=(8, ndim)))
    np.testing.assert_allclose(made.density(w), rfrope.kernel(name, ndim=ndim, scale=scale).density(w), rtol=1e-13)


@pytest.mark.parametrize("exponent", [0.3, 0.7, 1.3, 1.9, 1.999])
@pytest.mark.parametrize("ndim", [1, 2, 3])
def test_stable_draws_follow_scipys_stable_law(exponent, ndim):
    """Every projection of an isotropic stable law is the stable law of one axis."""
    omega = draws(rfrope.kernel("power_exponential", exponent=exponent, ndim=ndim)).reshape(N_DRAWS, ndim)
    points, cdf = problems.stable_cdf(exponent)
    for direction in problems.directions(ndim):
        assert problems.ks_distance(omega @ direction, points, cdf) < problems.ks_bound(N_DRAWS) + 1e-6
    assert problems.ks_distance(1.1 * omega[:, 0], points, cdf) > problems.ks_bound(N_DRAWS)


@pytest.mark.parametrize("scale", [1e-3, 0.0039, 0.00391, 0.05, 3.0, 1e3, 1e9])
def test_periodic_draws_of_any_scale(scale):
    made = rfrope.kernel("periodic", period=2.0 * np.pi, scale=scale)
    n = draws(made)
    assert np.all(np.round(n) == n)
    lags = np.array([0.3, 0.7, 1.1]) * min(scale, 1.0)
    assert worst(moment_z(made, lags, n)) < Z_BOUND


@pytest.mark.parametrize("scale", sparse([0.02, 0.7, 4.0], lambda scale: scale > 0.1))
def test_periodic_transport_inverts_mpmaths_sums_far_into_the_tail(scale):
    z = 1.0 / scale / scale
    u = np.array([1e-15, 1e-9, 1e-4, 0.01, 0.2, 0.4])
    single = (mp.exp(-z) * mp.besseli(i, z) for i in range(20 * int(1 + z**0.5), -1, -1))
    tails = [*itertools.accumulate(single, initial=mp.mpf(0))][::-1]  # probabilities of i or more
    assert tails[-2] < 1e-30
    for v, found in zip(u, quantiles.harmonic_quantile(z, u), strict=True):
        n = int(-found)
        assert tails[n + 1] < v * (1 + 1e-10)
        assert n == 0 or tails[n] > v * (1 - 1e-10)


def test_the_expansion_of_a_narrow_periodic_law_is_the_table(monkeypatch):
    u = (np.random.default_rng(0).integers(0, 2**52, 2**16) + 0.5) * 2.0**-52
    exact = quantiles.harmonic_quantile(60_000.0, u)
    monkeypatch.setattr(quantiles, "_LARGEST_TABLE", 100.0)
    np.testing.assert_array_equal(quantiles.harmonic_quantile(60_000.0, u), exact)


@pytest.mark.parametrize("turns", [1.0, 7.0, 123456789.0])
@pytest.mark.parametrize("side", [-1.0, 1.0])
def test_periodic_just_beside_whole_periods(turns, side):
    """A sine of nearly pi would have lost its digits."""
    made = rfrope.kernel("periodic", period=6.9, scale=1e-6)
    for distance in (2.0**-25, 2.0**-20, 2.0**-19):
        lag = float(turns * 6.9 + side * distance)
        with mp.workdps(problems.DIGITS):
            exact = problems.periodic_reference(made.scale, mp.mpf(lag) / mp.mpf(made.period))
        assert float(made.phi(lag)) == pytest.approx(float(exact), rel=1e-12, abs=1e-300)


def test_balls_and_shells_stay_within_their_radius():
    for ndim in (1, 2, 3, 7):
        ball, shell = rfrope.kernel("ball", ndim=ndim), rfrope.kernel("shell", ndim=ndim)
        middle = np.full((1, ndim), 0.5)
        for omega in (rfrope.sample(shell, 1000, rng=0), shell.transport(middle[0, 0] if ndim == 1 else middle)):
            length = np.abs(omega) if ndim == 1 else np.linalg.norm(omega, axis=-1)
            np.testing.assert_allclose(length, 1.0, rtol=1e-15)
        omega = rfrope.sample(ball, 1000, rng=0).reshape(1000, ndim)
        assert np.max(np.linalg.norm(omega, axis=-1)) <= 1.0 + 1e-15


# -- transport ---------------------------------------------------------------------------------------------------------

U = np.array([2.0**-53, 3 * 2.0**-53, 2.0**-40, 2.0**-20, 0.0078125, 0.125, 0.25, 0.375, 0.4990234375, 0.5 - 2.0**-40])


@pytest.mark.parametrize(
    "problem",
    [p for p in KERNELS if p.kernel.ndim == p.kernel.n_columns == 1 and p.shape not in ("lattice", "sphere")],
    ids=str,
)
def test_transport_in_one_axis_is_odd_bit_for_bit_and_increasing(problem):
    below, above = problem.kernel.transport(U), problem.kernel.transport(1.0 - U)
    np.testing.assert_array_equal(above, -below)
    assert np.all(np.diff(below) > 0.0)
    assert abs(problem.kernel.transport(0.5)) == (problem.kernel.low if problem.shape == "band" else 0.0)


@each_problem
def test_transport_is_finite_at_the_corners_of_the_cube(problem):
    corner = np.array([2.0**-53, 1.0 - 2.0**-53])
    u = np.stack(np.meshgrid(*[corner] * problem.kernel.n_columns), axis=-1).reshape(-1, problem.kernel.n_columns)
    assert np.all(np.isfinite(problem.kernel.transport(u)))


@pytest.mark.parametrize("nu", [1e-4, 1e-3, 0.01, 0.02, 0.05])
@pytest.mark.parametrize("ndim", [1, 2])
def test_the_heaviest_tails_are_cut_to_finite_numbers(nu, ndim):
    made = rfrope.kernel("matern", nu=nu, scale=1e-150, ndim=ndim)
    corner = np.full((1, made.n_columns), 2.0**-53)
    assert np.max(np.abs(made.transport(corner))) == 2.0**500
    assert np.all(np.isfinite(rfrope.sample(made, 4096, rng=0)))


# -- parameters --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", problems.MANY_AXES)
def test_one_length_is_as_many_equal_ones(name):
    stretch = problems.FAMILIES[name].stretch
    one, many = (rfrope.kernel(name, ndim=3, **{stretch: v}) for v in (3.0, (3.0, 3.0, 3.0)))
    u = np.random.default_rng(0).uniform(size=(32, one.n_columns))
    np.testing.assert_array_equal(one.transport(u), many.transport(u))
    lags = np.random.default_rng(1).normal(size=(32, 3))
    np.testing.assert_allclose(one.phi(lags), many.phi(lags), rtol=1e-15)
    if has_density(one):
        np.testing.assert_allclose(one.density(lags), many.density(lags), rtol=1e-15)


@pytest.mark.parametrize(
    ("low", "high"), [(1e-4, 1.0), (1e-30, 1e30), (0.1, 0.2), (1.0, 1.001), (1.0, 1.0 + 1e-13), (2.0**-500, 2.0**500)]
)
def test_log_uniform_to_1e_12_and_what_rounded_phases_cost(low, high):
    made = rfrope.kernel("log_uniform", low=low, high=high)
    scaled = np.concatenate([[0.0], np.geomspace(1e-12, 1e6, 150), [1e12, 1.9999999, 2.0000001]])
    for x in np.concatenate([scaled / high, scaled / low]):
        with mp.workdps(problems.DIGITS):
            ratio = mp.mpf(high) / mp.mpf(low)
            exact = (mp.ci(mp.mpf(x) * high) - mp.ci(mp.mpf(x) * low)) / mp.log(ratio) if x else mp.mpf(1)
        lost = min(2e-16 * float(x) * high, 3e-16 / float(mp.log(ratio))) if x else 0.0
        assert abs(float(made.phi(x)) - float(exact)) < 1e-12 + lost


def test_log_uniform_ends_and_limits():
    made = rfrope.kernel("log_uniform", low=0.25, high=2.0)
    assert made.phi(np.inf) == 0.0
    corner = made.transport([2.0**-53, 1.0 - 2.0**-53, 0.5 - 2.0**-53, 0.5 + 2.0**-53])
    np.testing.assert_allclose(corner, [-2.0, 2.0, -0.25, 0.25], rtol=1e-15)
    assert np.all(np.abs(rfrope.sample(made, 2**16, rng=0)) >= 0.25)
    assert np.all(np.abs(rfrope.sample(made, 2**16, rng=0)) <= 2.0)


def test_parameters_are_in_their_normal_form():
    made = rfrope.kernel("gaussian", scale=np.float32(2.0), ndim=np.int64(1))
    assert made == rfrope.kernel("gaussian", scale=(2,))
    assert type(made.scale) is float
    assert type(made.ndim) is int
    assert rfrope.kernel("gaussian", scale=np.array([2, 3]), ndim=2).scale == (2.0, 3.0)


@pytest.mark.parametrize("ndim", [1, 2])
@pytest.mark.parametrize(
    ("name", "shape"), [("matern", "nu"), ("rational_quadratic", "alpha"), ("power_exponential", "exponent")]
)
def test_shapes_of_any_size_that_is_taken(name, shape, ndim):
    """Neither Phi nor a draw is NaN or infinite."""
    lags = np.array([0.0, 1e-150, 1e-9, 1e-3, 1.0, 30.0, 1e6, 1e100, 1e150])
    for value in (2.0**-500, 1e-100, 1e-20, 1e-8, 1e-3, 1.0, 1e3, 1e20, 2.0**500):
        if name == "power_exponential" and value > 2.0:
            continue
        made = rfrope.kernel(name, **{shape: value}, ndim=ndim)
        phi = made.phi(made.restore_shape(np.repeat(lags[:, None], ndim, axis=1)))
        assert phi[0] == 1.0
        assert np.all((phi >= 0.0) & (phi <= 1.0 + 1e-12))
        assert np.all(np.isfinite(rfrope.sample(made, 256, rng=0)))


@pytest.mark.parametrize("size", [1e10, 2.0**59, 2.0**61, 1e30, 2.0**500, 1e200, 1.7e308])
def test_waves_are_right_at_lags_of_any_size(size):
    """Cosines that never die, by mpmath's exact products; from phases of 2**60 radians on they are NaN."""
    lags = size * np.array([1.0, -0.7234, 0.1 + 1e-9])
    with mp.workdps(700):
        wanted = [float(mp.cos(mp.mpf(0.1) * mp.mpf(x))) for x in lags.tolist()]
    wanted = np.where(np.abs(0.1 * lags) < 2.0**60, wanted, np.nan)
    np.testing.assert_allclose(rfrope.kernel("shell", radius=0.1).phi(lags), wanted, rtol=0, atol=1e-15)
    narrow = rfrope.kernel("spectral_mixture", weights=(1.0,), means=((0.1, 0.3),), scales=((1e-145, 1e-145),), ndim=2)
    both = np.stack([lags, 2.0 * lags[::-1]], axis=-1) if size < 1e100 else np.stack([lags, 0.0 * lags], axis=-1)
    with mp.workdps(700):
        wave = [float(mp.cos(mp.mpf(0.1) * mp.mpf(x) + mp.mpf(0.3) * mp.mpf(y))) for x, y in both.tolist()]
    wave = np.where(np.max(np.abs(both * [0.1, 0.3]), axis=-1) < 2.0**60, wave, np.nan)
    envelope = np.exp(-0.5 * np.minimum(1e-145 * np.abs(both), 1e10)[:, 0] ** 2) if size > 1e140 else 1.0
    np.testing.assert_allclose(narrow.phi(both), np.where(np.asarray(envelope) == 0.0, 0.0, wave), rtol=0, atol=1e-14)


@pytest.mark.parametrize("nu", [1.05, 1.2, 1.5, 2.0, 2.5, 5.0, 12.0])
def test_how_matern_bends_at_0(nu, torch):
    """``Phi''(0) = -nu / ((nu - 1) scale^2)`` where the law has a variance; near 0 the square is all there is."""
    made = rfrope.kernel("matern", nu=nu, scale=3.0)
    bend = -nu / (nu - 1.0) / 9.0
    for at in (0.0, 1e-160, 1.5 * 1e-16 ** (1.0 / (1.0 + min(2.0 * nu - 2.0, 2.0)))):
        lag = torch.tensor(at, dtype=torch.float64, requires_grad=True)
        (slope,) = torch.autograd.grad(made.phi(lag), lag, create_graph=True)
        assert float(slope.detach()) == pytest.approx(bend * at, rel=1e-12)
        assert float(torch.autograd.grad(slope, lag)[0]) == pytest.approx(bend, rel=1e-12)


def test_a_law_that_leaves_the_range_of_floats_is_none():
    """Without a warning: frequencies are then transported with more care."""
    law = Law((np.abs, ()), (1e90, 1.0))
    assert law.scaled((1.0, 4.0)).factors == (1e90, 0.25)
    for divisor in (1e-300, 1e-11, 1e101, (1e200, 1.0)):
        assert law.scaled(divisor) is None
