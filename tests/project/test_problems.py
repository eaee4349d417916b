"""The table of problems covers the registry, and its answers are right."""

import itertools
import math

import mpmath as mp
import numpy as np
import problems
import pytest
from scipy import integrate

import rfrope
from rfrope import kernels


def test_every_registered_kernel_has_problems_and_no_other():
    known = set(problems.FAMILIES) | set(problems.WITHOUT_LENGTH)
    assert known == set(kernels.names()), "a new registry entry needs a row in problems.FAMILIES"
    assert {p.family for p in problems.KERNELS} == set(problems.FAMILIES)


def test_the_table_would_notice_a_new_registry_entry(monkeypatch):
    monkeypatch.setattr(kernels.registry, "_RECORDS", list(kernels.records()))
    kernels.register("newcomer", kernels.families.Gaussian, formula="", law="")
    with pytest.raises(AssertionError, match="new registry entry"):
        test_every_registered_kernel_has_problems_and_no_other()


@pytest.mark.parametrize(("name", "ndim"), list(itertools.product(problems.FAMILIES, (1, 2, 3))))
def test_each_has_two_non_unit_scales_and_five_lags_for_one_two_and_three_axes(name, ndim):
    found = [p for p in problems.KERNELS if p.family == name and p.kernel.ndim == ndim]
    if ndim > problems.FAMILIES[name].most_axes:
        with pytest.raises(ValueError, match=f"ndim is {ndim}; expected 1"):
            rfrope.kernel(name, ndim=ndim)
        assert not found
        return
    assert len({p.lengths for p in found}) == 2
    assert len(found) == 2 * len(problems.FAMILIES[name].others)
    for p in found:
        assert len(p.lengths) == ndim
        assert all(length != 1.0 for length in p.lengths)
        assert np.shape(p.lags) == ((5,) if ndim == 1 else (5, ndim))
        assert len({str(lag) for lag in p.lags}) == 5
    if ndim > 1:
        assert any(len(set(p.lengths)) == ndim for p in found), "no problem with a length for each axis"


@pytest.mark.parametrize("problem", problems.KERNELS, ids=str)
def test_lags_are_where_phi_says_something(problem):
    values = [float(problems.phi_reference(problem, lag)) for lag in problem.lags]
    assert all(0.005 < abs(v) < 0.995 for v in values)
    assert float(problems.phi_reference(problem, np.zeros(problem.kernel.ndim))) == 1.0


@pytest.mark.parametrize("nu", [0.05, 0.5, 1.5, 7.3, 50.0])
@pytest.mark.parametrize("t", [1e-8, 0.3, 2.0, 60.0])
def test_matern_reference_is_mpmath_besselk(nu, t):
    with mp.workdps(problems.DIGITS):
        exact = 2 ** (1 - mp.mpf(nu)) / mp.gamma(nu) * mp.mpf(t) ** nu * mp.besselk(nu, mp.mpf(t))
        assert abs(problems.matern_reference(nu, mp.mpf(t)) / exact - 1) < 1e-25


@pytest.mark.parametrize(
    ("name", "parameters", "lag", "value"),
    [
        ("gaussian", {"scale": 2.0}, 2.0, math.exp(-0.5)),
        ("cauchy", {"scale": 2.0}, 4.0, 0.2),
        ("sinc", {"bandwidth": 0.5}, math.pi, 2.0 / math.pi),
        ("exponential", {"scale": 2.0}, 6.0, math.exp(-3.0)),
        ("matern", {"nu": 0.5, "scale": 2.0}, 6.0, math.exp(-3.0)),
        ("matern", {"nu": 1.5, "scale": 2.0}, 2.0, (1 + math.sqrt(3.0)) * math.exp(-math.sqrt(3.0))),
        ("rational_quadratic", {"alpha": 2.0, "scale": 3.0}, 6.0, 0.25),
        ("power_exponential", {"exponent": 0.5, "scale": 2.0}, 8.0, math.exp(-2.0)),
        ("power_exponential", {"exponent": 2.0, "scale": 2.0}, 8.0, math.exp(-16.0)),
        ("periodic", {"period": 8.0, "scale": 0.5}, 2.0, math.exp(-4.0)),
        ("periodic", {"period": 8.0, "scale": 0.5}, 12.0, math.exp(-8.0)),
        (
            "spectral_mixture",
            {"weights": (0.5, 0.5), "means": (0.0, 3.0), "scales": (1.0, 2.0)},
            1.0,
            0.5 * math.exp(-0.5) + 0.5 * math.exp(-2.0) * math.cos(3.0),
        ),
        ("ball", {"bandwidth": 0.5}, math.pi, 2.0 / math.pi),
        ("ball", {"bandwidth": 0.5, "ndim": 3}, (0.0, 0.0, 2.0 * math.pi), 3.0 / math.pi**2),
        ("shell", {"radius": 0.5}, 2.0 * math.pi, -1.0),
        ("shell", {"radius": 0.5, "ndim": 3}, (0.0, math.pi, 0.0), 2.0 / math.pi),
        ("gaussian", {"scale": (2.0, 4.0), "ndim": 2}, (2.0, 4.0), math.exp(-1.0)),
        ("sinc", {"bandwidth": (0.5, 1.0), "ndim": 2}, (math.pi, math.pi / 2), (2.0 / math.pi) ** 2),
    ],
)
def test_reference_values_by_hand(name, parameters, lag, value):
    made = rfrope.kernel(name, **parameters)
    problem = problems.KernelProblem(name, made, (1.0,) * made.ndim, ())
    assert float(problems.phi_reference(problem, lag)) == pytest.approx(value, rel=1e-14)


@pytest.mark.parametrize("case", problems.FREQUENCIES, ids=lambda c: f"{c.function}-{c.arguments}")
def test_frequency_sets_match_their_formula_and_the_library(case):
    n = case.arguments["n_blocks"]
    if case.function == "geometric":
        exact = [mp.mpf(case.arguments.get("base", 10_000)) ** (-mp.mpf(i) / n) for i in range(n)]
    else:
        exact = [mp.mpf(case.arguments["step"]) * i for i in range(1, n + 1)]
    assert [float(v) for v in exact] == pytest.approx(case.values, rel=1e-15)
    np.testing.assert_allclose(getattr(rfrope, case.function)(**case.arguments), case.values, rtol=1e-15)


@pytest.mark.parametrize("case", problems.SCORES, ids=lambda c: c.name)
def test_scores_match_complex_arithmetic_and_the_library(case):
    half = len(case.q) // 2
    z_q, z_k = (np.array(v[:half]) + 1j * np.array(v[half:]) for v in (case.q, case.k))
    lag = np.subtract(case.k_position, case.q_position)
    phases = np.atleast_1d(np.dot(case.frequencies, lag) if np.ndim(lag) else np.multiply(case.frequencies, lag))
    products = z_q * np.conj(z_k)
    assert products.real.tolist() == list(case.a)
    assert products.imag.tolist() == list(case.b)
    # S = Re sum (A + i B) exp(-i u) with u = lag . theta
    assert np.sum(products * np.exp(-1j * phases)).real == pytest.approx(case.score, abs=1e-14)

    q, k = (np.array([v], dtype=float) for v in (case.q, case.k))
    a, b = rfrope.block_coefficients(q, k)
    assert (a[0].tolist(), b[0].tolist()) == (list(case.a), list(case.b))
    where_q, where_k = (np.array([v], dtype=float) for v in (case.q_position, case.k_position))
    found = rfrope.scores(q, k, where_q, where_k, np.array(case.frequencies))
    assert found.item() == pytest.approx(case.score, abs=1e-13)


# -- the checks below the data -----------------------------------------------------------------------------------------


def test_bounds_are_those_of_the_normal_and_the_dkw_inequality():
    assert problems.ALPHA <= 1e-6
    assert abs(problems.Z_BOUND - 4.891638475699) < 1e-10
    assert problems.ks_bound(2**18) == pytest.approx(0.0052604, rel=1e-4)


def test_ks_distance_by_hand():
    draws, points = np.array([0.1, 0.2, 0.9]), np.array([0.0, 0.15, 0.5, 1.0])
    assert problems.ks_distance(draws, points, points) == pytest.approx(1 / 3 - 0.15)


def test_radius_cdf_is_scipys_chi_for_the_gaussian():
    from scipy import stats

    for k in (1, 2, 3):
        radius, cdf = problems.radius_cdf(rfrope.kernel("gaussian", scale=3.0, ndim=k), (3.0,) * k)
        np.testing.assert_allclose(cdf, stats.chi.cdf(radius, k), rtol=0, atol=1e-12)


def test_radius_cdf_is_an_adaptive_integral_of_the_density():
    made = rfrope.kernel("matern", nu=0.8, scale=3.0)
    radius, cdf = problems.radius_cdf(made, (3.0,))
    for r, value in zip(radius[480:560:20], cdf[480:560:20], strict=True):
        assert integrate.quad(made.density, -r / 3.0, r / 3.0)[0] == pytest.approx(value, abs=1e-9)


def test_lattice_statistic_notices_another_law():
    n = rfrope.kernel("periodic", period=2.0 * math.pi, scale=0.7).transport((np.arange(2**16) + 0.5) / 2**16)
    assert problems.lattice_statistic(0.7, n) < 1.0
    assert problems.lattice_statistic(0.72, n) > 1.0
    assert problems.lattice_statistic(0.7, np.abs(n)) > 1.0
    assert problems.lattice_statistic(0.7, 1.01 * n) == math.inf


def test_lumps_cdf_is_the_normal_laws():
    from scipy import stats

    made = rfrope.kernel("spectral_mixture", means=[(1.0, 0.5)], scales=[(0.6, 0.8)], weights=[1.0], ndim=2)
    points, cdf = problems.lumps_cdf(made, (1.0, 1.0), 0)
    np.testing.assert_allclose(
        cdf, (stats.norm.cdf(points, 1.0, 0.6) + stats.norm.cdf(points, -1.0, 0.6)) / 2, atol=1e-9
    )


@pytest.mark.parametrize(("exponent", "law"), [(2.0, "norm"), (1.0, "cauchy")])
def test_stable_cdf_is_that_of_the_known_laws(exponent, law):
    from scipy import stats

    points, cdf = problems.stable_cdf(exponent)
    known = stats.norm(scale=math.sqrt(2.0)) if law == "norm" else stats.cauchy()
    np.testing.assert_allclose(cdf, known.cdf(points), rtol=0, atol=1e-6)


def test_has_density():
    assert problems.has_density(rfrope.kernel("gaussian", ndim=2))
    assert not problems.has_density(rfrope.kernel("constant"))


def test_cells_statistic_notices_dependent_axes():
    u = np.random.default_rng(0).uniform(-1, 1, (2**16, 2))
    assert problems.cells_statistic(u) < 1.0
    assert problems.cells_statistic(np.stack([u[:, 0], (u[:, 0] + u[:, 1] + 2) % 2 - 1], axis=-1)) < 1.0
    assert problems.cells_statistic(np.stack([u[:, 0], -np.abs(u[:, 1]) * np.sign(u[:, 0])], axis=-1)) > 10.0
