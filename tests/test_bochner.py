"""Inverse design: known kernels come back, what is not a kernel is refused where it fails, data become kernels."""

from __future__ import annotations

import dataclasses
import math
import pickle
import types
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import mpmath
import numpy as np
import pytest
from campaign import campaign, sparse
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import ALPHA, N_DRAWS, Z_BOUND, is_rejected, ks_bound, ks_distance, moment_z, panels, worst
from scipy import linalg, special, stats

import rfrope
from rfrope import bochner, kernels
from rfrope.bochner import NotPositiveDefiniteError, functions, inversion, lags, measures, piecewise, witnesses

SCALES = (1.0, 37.0, 1e-6, 1e6)
FAMILIES = {
    "gaussian": {},
    "cauchy": {},
    "matern 3/2": {"nu": 1.5},
    "matern 5/2": {"nu": 2.5},
    "matern 0.8": {"nu": 0.8},
    "exponential": {},
}


def family(name: str, scale: float, ndim: int = 1) -> kernels.Kernel:
    return rfrope.kernel(name.partition(" ")[0], scale=scale, ndim=ndim, **FAMILIES[name])


def triangle(b: float) -> Any:
    return lambda x: np.maximum(1.0 - np.abs(x) / b, 0.0)


def box(b: float) -> Any:
    return lambda x: (np.abs(x) <= b) * 1.0


def damped(b: float) -> Any:
    return lambda x: np.exp(-np.abs(x) / b) * np.cos(x)


def parabola(b: float) -> Any:
    return lambda x: np.maximum(1.0 - (x / b) ** 2, 0.0)


def spherical(b: float) -> Any:
    return lambda r: np.where(np.abs(r) < b, 1.0 - 1.5 * np.abs(r) / b + 0.5 * (np.abs(r) / b) ** 3, 0.0)


def along(r: np.ndarray, ndim: int) -> np.ndarray:
    """Lags of lengths r, in one direction."""
    return r if ndim == 1 else r[:, None] * (np.array([0.6, -0.64, 0.48])[:ndim] / math.sqrt([0, 1, 0.7696, 1][ndim]))


# -- known kernels come back -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", list(FAMILIES))
def test_known_kernels_come_back_in_one_axis(name, scale):
    exact = family(name, scale)
    made = bochner.from_function(exact.phi)
    x = scale * np.linspace(-20.0, 20.0, 2001)
    assert np.max(np.abs(made.phi(x) - exact.phi(x))) <= 1e-10
    assert np.max(np.abs(made.phi2(x) - exact.phi(2.0 * x))) <= 1e-10
    w = np.geomspace(1e-6, 5.0, 40) / scale
    np.testing.assert_allclose(made.density(w), exact.density(w), rtol=1e-7)
    u = np.array([1e-9, 1e-6, 1e-3, 0.1, 0.3, 0.45])
    np.testing.assert_allclose(made.transport(u), exact.transport(u), rtol=1e-4)
    np.testing.assert_allclose(made.transport(u[2:]), exact.transport(u[2:]), rtol=1e-8)


@pytest.mark.parametrize("scale", SCALES[1:3])
@pytest.mark.parametrize("name", list(FAMILIES))
@pytest.mark.parametrize("ndim", [2, 3])
def test_known_kernels_come_back_in_more_axes(name, scale, ndim):
    exact, line = family(name, scale, ndim), family(name, scale)
    made = bochner.from_function(line.phi, ndim=ndim)
    assert made.ndim == ndim
    assert made.n_columns == 1 + ndim
    lags = along(scale * np.linspace(0.0, 20.0, 500), ndim)
    assert np.max(np.abs(made.phi(lags) - exact.phi(lags))) <= 1e-8
    omega = along(np.geomspace(1e-4, 5.0, 40) / scale, ndim)
    np.testing.assert_allclose(made.density(omega), exact.density(omega), rtol=1e-6)


@pytest.mark.parametrize("b", sparse([3.7, 48.0, 1e-6, 1e6], lambda b: b == 3.7))
def test_a_triangle_comes_back(b):
    made = bochner.from_function(triangle(b))
    x = b * np.linspace(-20.0, 20.0, 1601)
    assert np.max(np.abs(made.phi(x) - triangle(b)(x))) <= 1e-4
    w = np.linspace(0.0, 300.0, 4000) / b
    exact = b / (2.0 * math.pi) * np.sinc(w * b / (2.0 * math.pi)) ** 2
    np.testing.assert_allclose(made.density(w), exact, atol=1e-6 * b, rtol=0)


@pytest.mark.parametrize("b", sparse([0.5, 1.0, 5.0, 37.0], lambda b: b == 5.0))
def test_a_damped_cosine_comes_back(b):
    made = bochner.from_function(damped(b))
    x = b * np.linspace(-20.0, 20.0, 4001)
    assert np.max(np.abs(made.phi(x) - damped(b)(x))) <= 1e-10
    w = np.linspace(0.0, 3.0, 50)
    exact = b / (2.0 * math.pi) * (1.0 / (1.0 + b * b * (w - 1.0) ** 2) + 1.0 / (1.0 + b * b * (w + 1.0) ** 2))
    np.testing.assert_allclose(made.density(w), exact, rtol=1e-9)


@pytest.mark.parametrize("ndim", sparse([1, 2, 3], lambda ndim: ndim == 3))
def test_the_spherical_covariance_is_a_kernel_in_three_axes(ndim):
    made = bochner.from_function(spherical(3.0), ndim=ndim)
    lags = np.linspace(0.0, 60.0, 3000)
    assert np.max(np.abs(made.phi(along(lags, ndim)) - spherical(3.0)(lags))) <= 1e-6


def test_a_spectrum_away_from_zero_comes_back():
    phi = lambda x: np.exp(-0.5 * x * x) * np.cos(20.0 * x)  # noqa: E731
    made = bochner.from_function(phi)
    x = np.linspace(-10.0, 10.0, 1001)
    assert np.max(np.abs(made.phi(x) - phi(x))) < 1e-12
    assert made.transport(0.75) == pytest.approx(20.0, abs=1e-9)


@campaign
def test_a_pole_at_frequency_zero_and_a_slow_decay():
    phi = lambda x: (1.0 + x * x) ** -0.25  # noqa: E731
    made = bochner.from_function(phi)
    x = np.geomspace(1e-3, 1e6, 300)
    assert np.max(np.abs(made.phi(x) - phi(x))) < 1e-9
    w = np.array([1e-5, 0.1, 1.0, 3.0])
    exact = (
        (0.5 * w) ** -0.25 * special.kv(0.25, w) / (math.gamma(0.25) * math.sqrt(math.pi))
    )  # DLMF 10.32.11, over pi times 2
    np.testing.assert_allclose(made.density(w), exact, rtol=1e-8)


@campaign
def test_a_tail_of_power_three_halves():
    phi = lambda x: np.exp(-np.sqrt(np.abs(x)))  # noqa: E731
    made = bochner.from_function(phi)
    assert made.certificate.tail_exponent == pytest.approx(1.5, abs=0.01)
    assert np.max(np.abs(made.phi(np.linspace(0, 20, 999)) - phi(np.linspace(0, 20, 999)))) < 1e-6


def test_oscillation_without_end_is_tapered_and_certified():
    made = bochner.from_function(lambda x: np.sinc(x / math.pi))
    x = np.linspace(-20.0, 20.0, 999)
    assert np.max(np.abs(made.phi(x) - np.sinc(x / math.pi))) < 1e-4
    assert made.certificate.sup_error < 1e-3
    assert made.transport(0.75) == pytest.approx(0.5, abs=1e-6)


def test_single_precision_and_tables_are_functions_too():
    single = bochner.from_function(lambda x: np.exp(-0.5 * np.minimum(x * x, 200.0).astype(np.float32)))
    assert single.certificate.sup_error < 2e-6
    knots = np.arange(60.0)
    table = bochner.from_function(lambda x: np.interp(np.abs(x), knots, np.exp(-knots / 8.0)))
    assert table.certificate.sup_error < 1e-4


def test_a_limit_above_zero_is_an_atom():
    phi = lambda x: 0.25 + 0.75 * np.exp(-0.5 * x * x)  # noqa: E731
    made = bochner.from_function(phi)
    x = np.linspace(-20.0, 20.0, 999)
    assert made.certificate.atom == pytest.approx(0.25, abs=1e-12)
    assert np.max(np.abs(made.phi(x) - phi(x))) < 1e-11
    assert made.phi(np.inf) == pytest.approx(0.25)
    omega = rfrope.sample(made, N_DRAWS, rng=0)
    assert abs(np.mean(omega == 0.0) - 0.25) < Z_BOUND * math.sqrt(0.25 * 0.75 / N_DRAWS)
    assert worst(moment_z(made, np.array([0.5, 1.0, 2.0]), omega)) < Z_BOUND
    with pytest.raises(ValueError, match=r"has no density: it has an atom of 0\.25 at frequency 0"):
        made.density(1.0)


@settings(deadline=None, max_examples=8, derandomize=True)
@given(
    parts=st.lists(
        st.tuples(st.sampled_from(list(FAMILIES)), st.floats(0.05, 1.0), st.floats(-1.5, 1.5)), min_size=1, max_size=4
    ),
    ndim=st.sampled_from([1, 1, 3]),
)
@campaign
def test_convex_mixtures_of_kernels_are_accepted(parts, ndim):
    weights = np.array([w for _, w, _ in parts])
    mixed = kernels.mixture(weights / weights.sum(), [family(name, 10.0**power) for name, _, power in parts])
    made = bochner.from_function(mixed.phi, ndim=ndim)
    assert made.certificate.sup_error < 1e-6


@pytest.mark.parametrize("hint", [1.0, 7.0, 200.0])
def test_a_scale_may_be_given(hint):
    exact = family("matern 3/2", 37.0)
    assert bochner.from_function(exact.phi, scale=hint).certificate.sup_error < 1e-9


# -- the law behind it -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    name: str
    phi: Any
    scale: float
    ndim: int = 1


CASES = [
    *(
        Case(f"{name}, k={k}", family(name, 21.0).phi, 21.0, k)
        for name in ("gaussian", "matern 3/2")
        for k in (1, 2, 3)
    ),
    Case("exponential, k=2", family("exponential", 6.5).phi, 6.5, 2),
    Case("cauchy, k=3", family("cauchy", 6.5).phi, 6.5, 3),
    Case("triangle", triangle(48.0), 48.0),
    Case("damped cosine", damped(5.0), 2.0),
    Case("spherical, k=3", spherical(9.0), 5.0, 3),
]
OFTEN = ("gaussian, k=1", "matern 3/2, k=2", "triangle")
each = pytest.mark.parametrize("case", sparse(CASES, lambda case: case.name in OFTEN), ids=lambda case: case.name)


@cache
def made_of(case: Case) -> Any:
    return bochner.from_function(case.phi, ndim=case.ndim)


@lru_cache(maxsize=2)
def drawn(case: Case, n: int = N_DRAWS) -> np.ndarray:
    return rfrope.sample(made_of(case), n, rng=20240607)


def lags_of(case: Case) -> np.ndarray:
    return along(case.scale * np.array([0.2, 0.5, 0.9, 1.4, 2.1]), case.ndim)


@each
def test_draws_agree_with_phi_phi2_and_the_sine(case):
    assert worst(moment_z(made_of(case), lags_of(case), drawn(case))) < Z_BOUND


@each
def test_draws_agree_with_the_given_function(case):
    r = case.scale * np.array([0.2, 0.5, 0.9, 1.4, 2.1])
    given_phi, given_phi2 = case.phi(r), case.phi(2.0 * r)
    lags, omega = lags_of(case), drawn(case)
    mean = np.cos(np.multiply.outer(lags, omega) if case.ndim == 1 else lags @ omega.T).mean(axis=-1)
    deviation = np.sqrt(((1.0 + given_phi2) / 2.0 - given_phi**2) / N_DRAWS)
    assert np.all(np.abs(mean - given_phi) < Z_BOUND * deviation + 1e-4)


@each
def test_draws_follow_the_density(case):
    made, omega = made_of(case), drawn(case)
    radius = np.abs(omega) if case.ndim == 1 else np.sqrt(np.sum(omega * omega, axis=-1))
    edges, log_w, weight = panels(-30.0, 60.0, 3000)
    w = np.exp(log_w) / case.scale
    density = made.density(along(w.ravel(), case.ndim)).reshape(w.shape)
    sphere = 2.0 * math.pi ** (0.5 * case.ndim) / math.gamma(0.5 * case.ndim)
    cdf = np.cumsum(np.sum(weight * sphere * density * w**case.ndim, axis=-1))
    if "triangle" not in case.name and "spherical" not in case.name:  # these oscillate between the panels
        assert cdf[-1] == pytest.approx(1.0, abs=1e-9)
    known = slice(0, int(np.searchsorted(edges, 4.0)))
    assert ks_distance(radius, np.exp(edges[1:][known]) / case.scale, cdf[known]) < ks_bound(radius.size)
    if case.ndim > 1:
        points = np.linspace(-1.0, 1.0, 201)
        beta = stats.beta.cdf(0.5 * (1.0 + points), 0.5 * (case.ndim - 1), 0.5 * (case.ndim - 1))
        for axis in range(case.ndim):
            assert ks_distance(omega[:, axis] / radius, points, beta) < ks_bound(radius.size)


@pytest.mark.parametrize("case", [CASES[0], CASES[2], CASES[5]], ids=lambda case: case.name)
@campaign
def test_a_scale_off_by_one_percent_is_rejected(case):
    omega = drawn(case, 2**19)
    assert worst(moment_z(made_of(case), lags_of(case), omega)) < Z_BOUND
    assert is_rejected(made_of(case), lags_of(case), 1.01 * omega)


@each
def test_densities_integrate_to_one(case):
    made = made_of(case)
    law = made.law
    w = law.nodes[:: max(1, law.halves.size // 4000)]
    halves = law.halves[:: max(1, law.halves.size // 4000), None]
    if law.halves.size > 4000:
        pytest.skip("too many panels")
    sphere = 2.0 * math.pi ** (0.5 * case.ndim) / math.gamma(0.5 * case.ndim)
    density = made.density(along(w.ravel(), case.ndim)).reshape(w.shape)
    mass = np.sum(halves * piecewise.WEIGHTS * sphere * density * w ** (case.ndim - 1.0))
    assert mass == pytest.approx(1.0, abs=1e-9)


@each
def test_validate_passes(case):
    assert rfrope.validate(made_of(case), n_samples=2**14, n_trials=2**10, rng=1).passed


def test_transport_is_odd_to_the_bit_and_monotone():
    made = made_of(CASES[0])
    u = np.concatenate([2.0 ** -np.arange(1.0, 54.0), np.arange(1.0, 512.0) / 1024.0])
    assert np.array_equal(made.transport(u), -made.transport(1.0 - u))
    assert np.all(np.diff(made.transport(np.linspace(0.001, 0.999, 5000))) > 0.0)
    assert made.transport(0.5) == 0.0
    assert np.isfinite(made.transport(2.0**-53))


@pytest.mark.parametrize("ndim", [2, 3])
def test_the_law_of_more_axes_is_centrally_symmetric(ndim):
    made = made_of(next(case for case in CASES if case.name == f"gaussian, k={ndim}"))
    u = np.random.default_rng(0).uniform(size=(100, 1 + ndim))
    mirrored = np.concatenate([u[:, :1], 1.0 - u[:, 1:]], axis=1)
    np.testing.assert_array_equal(made.transport(u), -made.transport(mirrored))
    assert np.all(np.isfinite(made.transport(np.full((1, 1 + ndim), 0.5))))


def test_phi_of_every_library(xp):
    made = made_of(CASES[3 - 2])
    host = np.array([[0.0, 1.0], [-21.0, 60.0], [3.0, 4.0]])
    found = made.phi(xp(host))
    assert xp.owns(found)
    np.testing.assert_allclose(xp.host(found), made.phi(host), rtol=1e-12)
    np.testing.assert_allclose(xp.host(made.density(xp(host * 0.01))), made.density(host * 0.01), rtol=1e-12)


def test_phi_far_out():
    made = made_of(CASES[0])
    assert made.phi(0.0) == 1.0
    assert made.phi(np.inf) == 0.0
    assert np.isnan(made.phi(np.nan))
    assert np.all(np.abs(made.phi([1e10, 1e100, 1e300])) < 1e-12)
    assert made.density(1e300) == 0.0


def test_a_made_kernel_is_a_value():
    made = bochner.from_function(triangle(3.0))
    again = bochner.from_function(triangle(3.0))
    other = bochner.from_function(triangle(4.0))
    assert made == again != other
    assert hash(made) == hash(again)
    copy = pickle.loads(pickle.dumps(made))
    assert copy == made
    np.testing.assert_array_equal(copy.phi([0.0, 1.0]), made.phi([0.0, 1.0]))
    np.testing.assert_array_equal(rfrope.sample(copy, 8, rng=0), rfrope.sample(made, 8, rng=0))
    assert repr(made).startswith("from_function(median_frequency=0.56")
    assert len(repr(made)) < 80
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.atom = 0.5
    with pytest.raises(ValueError, match="read-only"):
        made.law.edges[0] = 1.0
    with pytest.raises(ValueError, match="cannot set WRITEABLE flag"):
        made.law.edges.flags.writeable = True


def test_it_takes_part_in_the_algebra():
    made = made_of(CASES[0])
    gaussian = rfrope.kernel("gaussian", scale=21.0)
    x = np.linspace(0.0, 60.0, 7)
    np.testing.assert_allclose((made * gaussian).phi(x), gaussian.phi(x) ** 2, atol=1e-12)
    np.testing.assert_allclose(made.rescale(2.0).phi(x), gaussian.phi(x / 2.0), atol=1e-12)
    assert kernels.axes(made, gaussian).ndim == 2


def test_functions_of_separate_axes():
    made = bochner.from_function([triangle(8.0), family("gaussian", 4.0).phi])
    assert made.ndim == 2
    lags = np.array([[2.0, 1.0], [0.0, 3.0]])
    np.testing.assert_allclose(
        made.phi(lags), triangle(8.0)(lags[:, 0]) * family("gaussian", 4.0).phi(lags[:, 1]), atol=1e-4
    )
    assert 0.0 < made.certificate.sup_error < 1e-4
    assert rfrope.sample(made, 5, rng=0).shape == (5, 2)


# -- what is not a kernel ----------------------------------------------------------------------------------------------


def first_root(function: Any, low: float, high: float) -> float:
    from scipy.optimize import brentq

    return brentq(function, low, high, xtol=1e-14)


@pytest.mark.parametrize("b", sparse([3.7, 1e-6], lambda b: b == 3.7))
def test_a_box_is_refused_where_its_sinc_is_lowest(b):
    with pytest.raises(
        NotPositiveDefiniteError, match=r"not positive definite: at frequency .* bochner\.nearest"
    ) as caught:
        bochner.from_function(box(b))
    z = first_root(lambda z: math.tan(z) - z, 4.4, 4.6)
    assert caught.value.frequency * b == pytest.approx(z, rel=1e-4)
    assert caught.value.density == pytest.approx(b * math.sin(z) / (math.pi * z), rel=1e-6)
    assert caught.value.negative_mass > 0.5
    assert f"{caught.value.frequency:.6g}" in str(caught.value)
    assert pickle.loads(pickle.dumps(caught.value)).frequency == caught.value.frequency


@pytest.mark.parametrize("b", [1.0, 3.7])
@campaign
def test_a_clipped_parabola_is_refused(b):
    with pytest.raises(NotPositiveDefiniteError) as caught:
        bochner.from_function(parabola(b))
    z = first_root(lambda z: float(special.spherical_jn(2, z)), 5.0, 6.5)  # j_1(z)/z is lowest there
    assert caught.value.frequency * b == pytest.approx(z, rel=1e-4)
    assert caught.value.density == pytest.approx(2.0 * b / math.pi * special.spherical_jn(1, z) / z, rel=1e-6)


def test_a_parabola_is_refused():
    with pytest.raises(NotPositiveDefiniteError, match=r"it is -\d.* at lag .* at most phi\(0\) = 1") as caught:
        bochner.from_function(lambda x: 1.0 - x * x)
    assert caught.value.frequency == 0.0
    assert math.isnan(caught.value.density)
    assert caught.value.negative_mass > 0.0


@pytest.mark.parametrize(("mass", "octaves"), [(1e-4, 11), (1e-3, 8)])
def test_a_value_above_one_says_how_much_mass_is_negative_and_not_where(mass, octaves):
    """Lags halve while they are looked at, so 5 pi 2^n is an odd multiple of what two points can tell."""
    omega = 5.0 * math.pi * 2.0**octaves
    with pytest.raises(
        NotPositiveDefiniteError, match=r"beyond 1, .* or more of its spectral mass is negative$"
    ) as caught:
        bochner.from_function(lambda x: np.exp(-0.5 * x * x) * (1.0 + mass - mass * np.cos(omega * x)))
    assert math.isnan(caught.value.density)
    assert 0.0 < caught.value.negative_mass <= mass


def test_a_limit_below_zero_is_refused():
    with pytest.raises(
        NotPositiveDefiniteError, match=r"tends to -0\.2 at large lags.* atom .* at frequency 0"
    ) as caught:
        bochner.from_function(lambda x: 1.2 * np.exp(-x * x) - 0.2)
    assert caught.value.frequency == 0.0
    assert caught.value.density == -math.inf
    assert caught.value.negative_mass == pytest.approx(0.2, abs=1e-9)


def test_what_is_a_kernel_on_a_line_may_be_none_in_space():
    bochner.from_function(triangle(1.0))
    for ndim in (2, 3):
        with pytest.raises(NotPositiveDefiniteError):
            bochner.from_function(triangle(1.0), ndim=ndim)
    with pytest.raises(NotPositiveDefiniteError) as caught:
        bochner.from_function(damped(1.0), ndim=3)  # int r^2 exp(-r) cos(r) dr = -1/2
    assert caught.value.frequency == pytest.approx(0.0, abs=1e-3)
    assert caught.value.density == pytest.approx(4.0 * math.pi * -0.5 / (2.0 * math.pi) ** 3, rel=1e-4)


def test_a_small_violation_is_found():
    lower = lambda x: 1.001 * np.exp(-0.5 * x * x) - 0.001 * np.exp(-0.5 * (x / 3.0) ** 2)  # noqa: E731
    bochner.from_function(lower)  # the wide gaussian's spectrum lies below the narrow one's
    with pytest.raises(NotPositiveDefiniteError) as caught:
        bochner.from_function(lambda x: 1.001 * np.exp(-0.5 * x * x) - 0.001 * np.exp(-4.5 * x * x))
    assert caught.value.frequency == pytest.approx(math.sqrt(math.log(27027.0) / (4.0 / 9.0)), rel=1e-3)
    assert 1e-5 < caught.value.negative_mass < 1e-3


@pytest.mark.parametrize(
    ("phi", "kind", "message"),
    [
        (lambda x: 2.0 * np.exp(-x * x), ValueError, r"phi\(0\) is 2\.0; expected 1: divide phi by phi\(0\)"),
        (lambda x: np.exp(-x * x) * (1 + 0j), TypeError, "phi returned complex128; expected real numbers"),
        (lambda x: np.exp(-np.minimum(x, 700.0)), ValueError,
         "phi is not even: it is .* expected a function of the magnitude alone"),
        (lambda x: np.sin(x) / x, ValueError, r"phi\(x\) is nan at x = 0; expected finite numbers"),
        (lambda x: np.where(np.abs(x) > 3.0, np.nan, np.exp(-x * x)), ValueError, r"phi\(x\) is nan at x = "),
        (lambda x: 1.0, ValueError, r"phi returned shape \(\) for arguments of shape \(1,\); expected the same shape"),
        (lambda x: math.exp(-x * x), TypeError, r"phi failed on an array of shape .*numpy\.vectorize"),
        (3.0, TypeError, r"phi is 3\.0; expected a function of an array"),
        (lambda x: np.ones_like(x), ValueError, r"phi is 1 at every lag from .* expected a function that falls there"),
        (np.cos, ValueError, r"phi does not settle: beyond lag .* atoms away from frequency 0"),
        (lambda x: np.where(x == 0.0, 1.0, 0.8 * np.exp(-x * x)), ValueError, r"has mass 0\.8; expected phi\(0\) = 1"),
        (lambda x: np.where(x == 0.0, 1.0, 0.0), ValueError, "expected a function continuous at 0"),
        (lambda x: np.exp(-x * x) * (1 - 1e-3 * np.random.default_rng(0).random(x.shape) * (x != 0)), ValueError,
         "phi is too rough to resolve"),
        ([], ValueError, "phi is an empty sequence"),
    ],
    ids=["phi(0)", "complex", "uneven", "nan at 0", "nan", "scalar", "math", "number", "constant", "periodic", "nugget",
         "white", "noise", "empty"],
)  # fmt: skip
def test_bad_functions(phi, kind, message):
    with pytest.raises(kind, match=message):
        bochner.from_function(phi)


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"ndim": 4}, ValueError, "ndim is 4; expected 1, 2 or 3"),
        ({"ndim": 0}, ValueError, "ndim is 0; expected a whole number"),
        ({"ndim": 1.5}, TypeError, r"ndim is 1\.5; expected a whole number"),
        ({"scale": -1.0}, ValueError, r"scale is -1\.0; expected a positive finite number"),
        ({"tolerance": 0.0}, ValueError, r"tolerance is 0\.0; expected a positive finite number"),
    ],
)
def test_bad_options(options, kind, message):
    with pytest.raises(kind, match=message):
        bochner.from_function(lambda x: np.exp(-x * x), **options)


def test_a_function_of_vectors_is_explained():
    with pytest.raises(ValueError, match=r"with ndim=2 it is a function of the length r .*a list of functions"):
        bochner.from_function(lambda x: np.exp(-np.sum(x * x, axis=-1)), ndim=2)
    with pytest.raises(ValueError, match="ndim is 3 and phi has 2 functions; expected one for each axis"):
        bochner.from_function([np.cos, np.cos], ndim=3)


# -- the nearest kernel ------------------------------------------------------------------------------------------------


def test_nearest_leaves_a_kernel_alone():
    made, sup_error = bochner.nearest(family("matern 3/2", 37.0).phi)
    assert sup_error < 1e-10
    assert sup_error == made.certificate.sup_error
    assert repr(made).startswith("nearest(")


@pytest.mark.parametrize(
    ("phi", "ndim"),
    [
        (box(3.0), 1),
        pytest.param(parabola(3.0), 1, marks=campaign),
        pytest.param(parabola(3.0), 2, marks=campaign),
        pytest.param(triangle(3.0), 2, marks=campaign),
        pytest.param(damped(1.0), 3, marks=campaign),
    ],
    ids=["box", "parabola", "parabola 2", "triangle 2", "damped 3"],
)
def test_nearest_is_a_kernel(phi, ndim):
    made, sup_error = bochner.nearest(phi, ndim=ndim)
    r = np.linspace(0.0, 30.0, 601)
    found = np.max(np.abs(made.phi(along(r, ndim)) - phi(r)))
    assert found == pytest.approx(sup_error, rel=0.05)
    assert 0.0 < sup_error < 0.7
    assert made.certificate.negative_mass > 1e-3
    assert np.all(made.density(along(np.linspace(0.01, 20.0, 999), ndim)) >= 0.0)
    omega = rfrope.sample(made, N_DRAWS, rng=3)
    assert worst(moment_z(made, along(np.array([0.5, 1.0, 2.0, 4.0]), ndim), omega)) < Z_BOUND


def test_nearest_is_nearer_in_l2_than_to_clip_and_renormalise():
    made, _ = bochner.nearest(parabola(1.0))
    w = np.linspace(0.0, 400.0, 400_001)
    with np.errstate(invalid="ignore"):
        exact = np.where(w > 0.0, 2.0 / math.pi * special.spherical_jn(1, w) / w, 2.0 / (3.0 * math.pi))
    clipped = np.maximum(exact, 0.0)
    clipped /= 2.0 * np.sum(clipped) * w[1]
    projected = made.density(w)
    assert np.sum((projected - exact) ** 2) < np.sum((clipped - exact) ** 2)
    level = exact[w < 4.0] - projected[w < 4.0]
    assert np.ptp(level[projected[w < 4.0] > 0.0]) < 1e-6, "a constant is taken off"


def test_nearest_drops_a_negative_limit():
    made, sup_error = bochner.nearest(lambda x: 1.2 * np.exp(-x * x) - 0.2)
    assert made.certificate.atom == 0.0
    assert made.certificate.negative_mass == pytest.approx(0.2)
    assert 0.1 < sup_error < 0.3


# -- from a density ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("exact", "support"),
    [
        (rfrope.kernel("gaussian", scale=37.0), None),
        (rfrope.kernel("cauchy", scale=1e-6), None),
        (rfrope.kernel("exponential", scale=3.0), None),
        (rfrope.kernel("matern", nu=0.3, scale=3.0), None),
        (rfrope.kernel("sinc", bandwidth=0.15), None),
        (rfrope.kernel("sinc", bandwidth=0.15), (0.0, 0.15)),
        (rfrope.kernel("log_uniform", low=1e-4, high=1.0), (1e-4, 1.0)),
        (rfrope.kernel("gaussian", scale=5.0, ndim=2), None),
        (rfrope.kernel("cauchy", scale=5.0, ndim=3), None),
    ],
    ids=str,
)
def test_densities_of_known_kernels(exact, support):
    k = exact.ndim
    made = bochner.from_density(lambda w: exact.density(along(w, k)), ndim=k, support=support)
    unit = float(np.abs(1.0 / exact.transport(np.full((1, exact.n_columns), 0.3))).ravel()[0])
    r = unit * np.geomspace(1e-3, 50.0, 200)
    assert np.max(np.abs(made.phi(along(r, k)) - exact.phi(along(r, k)))) < 1e-9
    assert made.certificate.sup_error < 1e-9
    assert made.certificate.mass == pytest.approx(1.0, abs=1e-9)
    if k == 1:
        u = np.array([1e-12, 1e-6, 0.01, 0.3])
        np.testing.assert_allclose(made.transport(u), exact.transport(u), rtol=1e-3)
        np.testing.assert_allclose(made.transport(u[1:]), exact.transport(u[1:]), rtol=1e-6)


@pytest.mark.parametrize(
    ("density", "options", "kind", "message"),
    [
        (lambda w: np.exp(-np.abs(w)), {}, ValueError, r"density integrates to 2; expected 1 \(normalise=True"),
        (lambda w: (1.0 - w * w) * np.exp(-w * w / 2), {}, NotPositiveDefiniteError, "expected no negative values"),
        (lambda w: np.exp(-w) * (w > 0), {}, ValueError, "density is not even"),
        (lambda w: 0.0 * w, {}, ValueError, "density is 0 at every frequency"),
        (lambda w: np.full(w.shape, np.inf), {}, ValueError, r"density\(x\) is inf"),
        (lambda w: w, {"support": 3.0}, TypeError, r"support is 3\.0; expected two numbers"),
        (lambda w: w, {"support": (2.0, 1.0)}, ValueError, "expected 0 <= low < high"),
    ],
    ids=["mass 2", "negative", "uneven", "zero", "infinite", "number", "descending"],
)
def test_bad_densities(density, options, kind, message):
    with pytest.raises(kind, match=message):
        bochner.from_density(density, **options)


@pytest.mark.parametrize("scale", [1e-3, 1e3])
def test_a_density_about_a_frequency_that_is_given(scale):
    made = bochner.from_density(lambda w: np.exp(-0.5 * (w / scale) ** 2), normalise=True, frequency=0.5 * scale)
    assert made.phi(1.0 / scale) == pytest.approx(np.exp(-0.5), abs=1e-9)


def test_a_thorough_search_in_the_plane_may_use_more_panels(monkeypatch):
    """Abel's transform is dear: a quick search uses few."""
    looked = []
    monkeypatch.setattr(inversion, "resolve_octaves", lambda law, noise, search: looked.append(search) or 1 / 0)
    plane = measures.MEASURES[2]
    given = lags.read_lags(lambda t: np.exp(-np.abs(t)), plane, 1.0)
    for thorough in (False, True):
        with pytest.raises(ZeroDivisionError):
            inversion.transform(given, plane, thorough=thorough)
    assert [search.budget for search in looked] == [plane.panels, inversion._THOROUGH]


def test_what_is_met_while_looking_whether_a_density_is_even_is_resolved():
    """A band that no other frequency of the search comes near, between two that are looked at."""
    at, width = 1.0238974318218164, 3.75e-6

    def density(w):
        band = np.exp(-0.5 * ((np.abs(w) - at) / width) ** 2) / width
        return (0.9 * np.exp(-0.5 * w * w) + 0.05 * band) / math.sqrt(2.0 * math.pi)

    t = np.array([0.3, 1.0, 2.0])
    expected = 0.9 * np.exp(-0.5 * t * t) + 0.1 * np.cos(at * t) * np.exp(-0.5 * (width * t) ** 2)
    np.testing.assert_allclose(bochner.from_density(density).phi(t), expected, atol=1e-10)


def test_a_frequency_is_read_where_it_is_not_needed_too():
    with pytest.raises(TypeError, match="frequency is 'x'; expected a positive number"):
        bochner.from_density(lambda w: np.exp(-(w**2)), support=(0.0, 9.0), normalise=True, frequency="x")


def test_a_density_may_be_normalised():
    made = bochner.from_density(lambda w: np.exp(-np.abs(w)), normalise=True)
    assert made.certificate.mass == pytest.approx(2.0)
    assert made.phi(1.0) == pytest.approx(0.5, abs=1e-12)


# -- from autocorrelations ---------------------------------------------------------------------------------------------

SEQUENCES = {
    "ar1": 0.9 ** np.arange(30),
    "white": np.eye(1, 12)[0],
    "negative": (-0.7) ** np.arange(10),
    "gaussian": np.exp(-0.5 * (np.arange(7) / 2.0) ** 2),
    "triangle": np.maximum(1.0 - np.arange(25) / 9.0, 0.0),
    "cosine in noise": np.where(np.arange(40) == 0, 1.0, 0.9 * np.cos(0.7 * np.arange(40))),
}


@pytest.mark.parametrize("spacing", [1.0, 0.25, 1e6])
@pytest.mark.parametrize("name", list(SEQUENCES))
def test_autocorrelations_are_reproduced(name, spacing):
    values = SEQUENCES[name]
    made = bochner.from_autocorrelation(3.0 * values, spacing=spacing)
    assert np.max(np.abs(made.phi(spacing * np.arange(values.size)) - values)) < 1e-10
    assert made.certificate.sup_error < 1e-10
    assert made.certificate.n_lags == values.size
    omega = rfrope.sample(made, N_DRAWS, rng=5)
    assert np.max(np.abs(omega)) <= math.pi / spacing
    assert worst(moment_z(made, spacing * np.array([1.0, 2.0, 3.5, 6.0]), omega)) < Z_BOUND


def test_the_autoregression_goes_on():
    made = bochner.from_autocorrelation([1.0, 0.5, 0.25])
    np.testing.assert_allclose(made.phi(np.arange(10.0)), 0.5 ** np.arange(10.0), atol=1e-12)
    w = np.linspace(-3.0, 3.0, 9)
    exact = 0.75 / (2.0 * math.pi) / np.abs(1.0 - 0.5 * np.exp(1j * w)) ** 2
    np.testing.assert_allclose(made.density(w), exact, rtol=1e-12)


@pytest.mark.parametrize(
    "values", [[1.0, 0.9, 0.2], [1.0, 1.2], [1.0, 0.0, -1.5, 0.0], box(3.0)(np.arange(20))], ids=range(4)
)
def test_sequences_that_are_none(values):
    with pytest.raises(NotPositiveDefiniteError, match=r"Toeplitz matrix .*ridge=") as caught:
        bochner.from_autocorrelation(values, spacing=0.5)
    assert linalg.eigvalsh(linalg.toeplitz(values))[0] < 0.0
    assert 0.0 <= caught.value.frequency <= math.pi / 0.5
    theta = caught.value.frequency * 0.5
    exact = 0.5 / (2.0 * math.pi) * (1.0 + 2.0 * np.sum(np.cos(theta * np.arange(1, len(values))) * values[1:]))
    assert caught.value.density == pytest.approx(exact)
    assert caught.value.density < 0.0 < caught.value.negative_mass


def test_spectral_lines_are_explained_and_a_ridge_helps():
    values = np.cos(0.3 * np.arange(6))
    with pytest.raises(ValueError, match=r"at most 2 spectral lines .* ridge=1e-9"):
        bochner.from_autocorrelation(values)
    made = bochner.from_autocorrelation(values, ridge=1e-6)
    np.testing.assert_allclose(made.phi(np.arange(6.0)), values, atol=2e-6)
    assert made.transport(0.75) == pytest.approx(0.3, abs=1e-3)


@pytest.mark.parametrize(
    ("values", "kind", "message"),
    [
        ([1.0], ValueError, r"values has shape \(1,\); expected \(n,\) with two values or more"),
        ([[1.0, 0.5]], ValueError, r"values has shape \(1, 2\)"),
        ([0.0, 0.5], ValueError, r"values\[0\] is 0\.0; expected the variance"),
        ([1.0, np.nan], ValueError, r"values\[1\] is nan; expected finite numbers"),
        ([1.0, 0.5j], TypeError, "values has dtype complex128"),
        (["a", "b"], TypeError, "values"),
    ],
    ids=range(6),
)
def test_bad_autocorrelations(values, kind, message):
    with pytest.raises(kind, match=message):
        bochner.from_autocorrelation(values)


def test_bad_spacing_and_ridge():
    with pytest.raises(ValueError, match="spacing is 0; expected a positive finite number"):
        bochner.from_autocorrelation([1.0, 0.5], spacing=0)
    with pytest.raises(ValueError, match=r"ridge is -1; expected a number from 0 to 2\*\*500"):
        bochner.from_autocorrelation([1.0, 0.5], ridge=-1)


# -- from series -------------------------------------------------------------------------------------------------------


def ar1(n: int, count: int, coefficient: float, seed: int) -> np.ndarray:
    from scipy.signal import lfilter

    return lfilter([1.0], [1.0, -coefficient], np.random.default_rng(seed).normal(size=(count, n + 200)))[:, 200:]


def test_series_of_an_autoregression():
    x = ar1(4000, 16, 0.8, 0)
    made = bochner.from_series(x, max_lag=10)
    lags = np.arange(1.0, 11.0)
    errors = np.array(made.certificate.standard_errors)
    assert errors.shape == (10,)
    assert np.all(np.abs(made.phi(lags) - 0.8**lags) < 6.0 * errors + 10.0 / 4000)
    bartlett = bochner.from_series(x[:1], max_lag=10).certificate.standard_errors
    assert bartlett[0] == pytest.approx(math.sqrt((1 - 0.64) / 4000), rel=0.1)  # Bartlett 1946, AR(1) at lag 1
    assert errors[0] == pytest.approx(bartlett[0] / 4.0, rel=0.6)


def test_standard_errors_cover_the_truth():
    z = []
    for seed in range(40):
        made = bochner.from_series(ar1(3000, 12, 0.5, 100 + seed), max_lag=2, remove_mean=False)
        z.append((float(made.phi(1.0)) - 0.5) / made.certificate.standard_errors[0])
    assert 0.6 < np.std(z) < 1.6


@pytest.mark.parametrize("window", [None, "bartlett", "parzen"])
@pytest.mark.parametrize("axis", [0, 1])
def test_images_along_an_axis(axis, window):
    rng = np.random.default_rng(4)
    image = rng.normal(size=(80, 60, 3)).cumsum(axis=0).cumsum(axis=1)
    made = bochner.from_series(image, axis=axis, max_lag=12, window=window, spacing=2.0)
    centred = image - image.mean(axis=axis, keepdims=True)
    moved = np.moveaxis(centred, axis, 0)
    n = moved.shape[0]
    direct = np.array([np.sum(moved[: n - m] * moved[m:]) for m in range(13)])
    t = np.arange(13) / 13.0
    taper = {None: 1.0, "bartlett": 1.0 - t, "parzen": np.where(t <= 0.5, 1 - 6 * t**2 + 6 * t**3, 2 * (1 - t) ** 3)}[
        window
    ]
    np.testing.assert_allclose(made.phi(2.0 * np.arange(13.0)), direct / direct[0] * taper, atol=1e-10)
    assert f"(1 - m/{n})" in made.certificate.bias
    assert window is None or window in made.certificate.bias
    assert repr(made).startswith("from_series(")


def test_series_of_every_library(xp):
    x = ar1(200, 2, 0.6, 1)
    assert bochner.from_series(xp(x), max_lag=3) == bochner.from_series(x, max_lag=3)


@pytest.mark.parametrize(
    ("x", "options", "kind", "message"),
    [
        (np.ones((3, 20)), {}, ValueError, "x is constant along the axis"),
        (np.zeros((2, 2)), {}, ValueError, r"x has shape \(2, 2\); expected three positions or more along axis -1"),
        (np.arange(20.0), {"axis": 1}, ValueError, r"axis is 1; expected an axis of x, whose shape is \(20,\)"),
        (np.arange(20.0), {"max_lag": 20}, ValueError, "max_lag is 20; expected a whole number from 1 to 19"),
        (np.arange(20.0), {"window": "hann"}, ValueError, "window is 'hann'; expected one of 'bartlett'"),
        (np.array([1.0, np.inf, 2.0, 3.0]), {}, ValueError, r"x\[1\] is inf; expected finite numbers"),
        (np.array([1.0, 1j, 2.0]), {}, TypeError, "x has dtype complex128"),
        (np.arange(20.0), {"spacing": -1}, ValueError, "spacing is -1; expected a positive finite number"),
    ],
    ids=range(8),
)  # fmt: skip
def test_bad_series(x, options, kind, message):
    with pytest.raises(kind, match=message):
        bochner.from_series(x, **options)


# -- the tools ---------------------------------------------------------------------------------------------------------


def test_spherical_bessel_functions():
    z = np.concatenate([[0.0], np.geomspace(1e-10, 1e6, 2000), np.linspace(0.0, 60.0, 1001)])
    exact = np.array([special.spherical_jn(n, z) for n in range(25)]).T
    assert np.max(np.abs(piecewise.spherical_bessel(25, z) - exact)) < 5e-15


def pieces_of(function: Any, end: float = 64.0) -> piecewise.Pieces:
    edges = np.concatenate([[0.0], np.arange(1.0, end + 1.0)])
    return piecewise.build(function, edges, lambda c, _: 1e-17 + 0.0 * c, tolerance=1e-14, budget=1000)


def test_transforms_of_pieces():
    law = pieces_of(lambda w: np.exp(-w))
    x = np.linspace(0.0, 50.0, 301)
    np.testing.assert_allclose(law.cosine_transform(x), 1.0 / (1.0 + x * x), atol=1e-14)
    np.testing.assert_allclose(law.sine_transform(x), x / (1.0 + x * x), atol=1e-14)
    np.testing.assert_allclose(law.integral_above()(x), np.exp(-x), atol=1e-14)
    np.testing.assert_allclose(law.times_argument()(x), x * np.exp(-x), atol=1e-14)
    w = np.geomspace(1e-6, 20.0, 100)
    np.testing.assert_allclose(piecewise.abel(law, w), special.k0(w), rtol=1e-11)


def test_inverse_of_a_distribution_function():
    inverse = piecewise.Inverse(pieces_of(lambda w: np.exp(-w)))
    upper = np.concatenate([np.geomspace(1e-14, 0.999, 500), 1.0 - np.geomspace(1e-12, 0.1, 50)])
    np.testing.assert_allclose(inverse(upper), -np.log(upper), rtol=1e-9, atol=1e-15)
    assert inverse(np.array([[0.5, 0.25]])).shape == (1, 2)


def test_what_cannot_be_resolved_says_so():
    with pytest.raises(piecewise.Unresolved):
        piecewise.build(
            lambda w: np.sin(1e6 * w), np.array([0.0, 1.0]), lambda c, _: 0.0 * c, tolerance=1e-13, budget=50
        )


def test_alpha_is_small():
    assert ALPHA <= 1e-6


@pytest.mark.parametrize(
    "phi",
    [
        lambda x: np.where((x < -1.5) & (x > -2.7), -0.9, 1 / (1 + x * x)),
        lambda x: np.where((x < -2.95) & (x > -10.5), 0.0, 1 / (1 + x * x)),
        lambda x: np.where(x < -12.0, 0.0, 1 / (1 + x * x)),
        lambda x: np.exp(-0.5 * x * x) * (1 + 0.1 * np.tanh(x)),
    ],
    ids=["between two lags", "over a wide range", "far out", "everywhere"],
)
def test_a_function_that_is_not_even_somewhere_is_refused(phi):
    with pytest.raises(ValueError, match="phi is not even"):
        bochner.from_function(phi)


@pytest.mark.parametrize("size", [1e-170, 1.0, 1e170])
def test_a_series_of_any_magnitude(size):
    x = np.random.default_rng(0).standard_normal(500)
    wanted = bochner.from_series(x).phi(np.arange(4.0))
    np.testing.assert_allclose(bochner.from_series(size * x).phi(np.arange(4.0)), wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("value", [0.1, 1.0 / 3.0, 1e30, -7e-12])
@pytest.mark.parametrize("n", [49, 100, 1000])
def test_series_that_vary_by_rounding_alone_are_constant(value, n):
    steps = np.random.default_rng(n).integers(0, 2, n) * 2.0**-52
    with pytest.raises(ValueError, match="x is constant along the axis; expected series that vary"):
        bochner.from_series(value * (1.0 + steps))


# -- what it is made of ------------------------------------------------------------------------------------------------


def test_lags_that_were_seen_are_within_reach():
    """Beyond where samples of the octaves find anything."""
    place, height = 1000.3, 1e-3

    def phi(x):
        bump = height * np.clip(1.0 - 2.0 * np.abs(np.abs(x) - place), 0.0, None)
        return np.clip(1.0 - np.abs(x), 0.0, None) + bump

    seen = np.array([0.5, 1.0, place - 0.5, place, place + 0.5])
    found = lags.read_lags(phi, measures.MEASURES[1], 1.0, seen)
    assert found.reach >= seen[-1]
    assert found.pieces(np.array([place])) == pytest.approx(height, rel=1e-9)


def test_transforms_of_far_panels_are_exact():
    near, w = 2.0**20, 1000.1  # phases of 1e9
    panel = piecewise.Pieces(np.array([near, near + 1.0]), np.ones((1, 1)))
    with mpmath.workprec(200):
        low, high = mpmath.mpf(near) * w, mpmath.mpf(near + 1.0) * w
        wanted = {1: (mpmath.sin(high) - mpmath.sin(low)) / w, 3: (mpmath.cos(low) - mpmath.cos(high)) / w}
    for ndim, value in wanted.items():
        (found,) = measures.MEASURES[ndim].transform(panel, np.array([w]))
        assert found == pytest.approx(float(value), abs=1e-16)


def test_a_function_may_write_to_its_argument():
    """It gets arrays of its own."""

    def spoiling(x):
        found = np.exp(-np.abs(x))
        x[...] = 7.0
        return found

    made, other = (bochner.from_function(f) for f in (spoiling, lambda x: np.exp(-np.abs(x))))
    np.testing.assert_array_equal(made.phi([0.5, 3.0]), other.phi([0.5, 3.0]))


def test_what_a_law_holds_cannot_be_written_to():
    made = bochner.from_function(lambda x: np.exp(-np.abs(x)))
    for held in (made.law.edges, made.law.series):
        assert not held.flags.writeable
    with pytest.raises(bochner.NotPositiveDefiniteError) as error:
        bochner.from_function(lambda x: 1.0 - x * x * np.exp(-x * x))
    assert error.value.witness is not None
    for held in vars(error.value.witness).values():
        assert not (isinstance(held, np.ndarray) and held.flags.writeable)


def test_lags_at_which_a_law_is_compared():
    """Lag 0 says nothing; next to it 800 as far as 20 scales, 512 as far as panels reach, octaves, and whole lags."""
    read = lags.read_lags(lambda x: np.exp(-np.abs(x)), measures.MEASURES[1], 0.7)
    seen = functions._lags_to_compare(read)
    assert np.all(np.diff(np.append(0.0, seen)) > 0.0)
    assert np.all(np.isin(read.scale * np.linspace(0.0, 20.0, 801)[1:], seen))
    assert np.all(np.isin(np.arange(1.0, 2049.0), seen))
    far = float(read.pieces.edges[-1])
    places = far * ((np.arange(600) + 0.5) * (0.5 * (np.sqrt(5.0) - 1.0)) % 1.0)
    assert np.sum(np.isin(places, seen)) == 512
    assert np.max(seen) <= max(far, 2048.0, 20.0 * read.scale)


def test_nothing_is_negligible_from_the_first_lag_on():
    assert witnesses._cut_negligible(np.zeros(100)).size == 64
    assert witnesses._cut_negligible(np.append(np.zeros(99), 1.0)).size == 100


@pytest.mark.parametrize("spacing", [1.0, 0.25])
def test_the_mass_of_an_autoregression_is_1(spacing):
    made = bochner.from_autocorrelation([1.0, 0.5, 0.25], spacing=spacing)
    assert made.certificate.mass == pytest.approx(1.0, abs=1e-12)


def test_octaves_end_where_they_are_said_to(monkeypatch):
    """A law that is nowhere faint is followed over so many octaves, and no more."""
    monkeypatch.setattr(inversion, "_REACH", 7)
    search = inversion.Search(measures.MEASURES[1], 2.0, 1.0, 10**5)
    found = inversion.resolve_octaves(lambda w: 1.0 / (1.0 + w), lambda w: np.full_like(w, 1e-30), search)
    assert (found.edges[0], found.edges[-1]) == (0.0, 2.0 * 2.0**7)


def test_what_noise_amounts_to_in_the_plane(monkeypatch):
    """Four times that along a line: Abel's transform adds up what is missing there."""
    seen, continue_tail = [], inversion.continue_tail

    def watched(*arguments):
        seen.append(continue_tail(*arguments))
        return seen[-1]

    monkeypatch.setattr(inversion, "continue_tail", watched)
    for ndim, factor in ((1, 1.0), (2, 4.0), (3, 1.0)):
        measure = measures.MEASURES[ndim]
        read = lags.read_lags(lambda x: np.exp(-0.5 * x * x), measure, 1.0)
        assert inversion.transform(read, measure).noise == factor * seen[-1][2]


@pytest.mark.parametrize("place", [0.3, 0.7, 2.0**-90])
def test_a_jump_is_resolved_to_the_last_place(place):
    """Panels next to it are good once no float lies between their ends: the integral is right, and the work ends."""
    found = piecewise.build(
        lambda x: np.where(x > place, 1.0, 0.0),
        np.array([0.0, 1.0]),
        lambda _, half: 1e-14 / half,
        tolerance=1e-13,
        budget=2000,
    )
    assert np.sum(found.masses) == pytest.approx(1.0 - place, abs=1e-12)
    cusp = piecewise.build(np.sqrt, np.array([0.0, 1.0]), lambda _, half: 0.0 * half, tolerance=1e-13, budget=400)
    assert np.sum(cusp.masses) == pytest.approx(2.0 / 3.0, abs=1e-12)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_largest_value_that_was_overlooked_is_looked_at(sign):
    """By its size: a negative one speaks as loud."""
    asked = []

    def phi(x):
        asked.append(x)
        return np.where(x == 0.0, 1.0, 0.0)

    whole = np.zeros(20)
    whole[5], whole[9] = sign * 0.9, 0.2
    survey = types.SimpleNamespace(whole=whole, phi=phi)
    witnesses.Survey.search_multiples(survey, np.array([5.0, 9.0]), 1e-9)
    assert asked[0][1] == 5.0


def test_a_density_on_the_line_is_exact_at_0():
    """No part next to 0 is left out there: on a line nothing is divided by the frequency."""
    made = bochner.from_density(lambda w: 0.5 * np.exp(-np.abs(w)))
    assert float(made.density(0.0)) == pytest.approx(0.5, rel=1e-11)


@pytest.mark.parametrize("limit", [-0.1, -0.02, 0.0, 0.1])
def test_points_far_apart_speak_against_a_negative_limit(limit):
    """Sixty-four of them, each pair of which has that value: the sum of all is negative below -1/63."""
    values = np.full(1000, limit)
    values[0] = 1.0
    found = witnesses._test_limit(values, 0.5, 1e-9)
    assert (found is not None) == (limit < -1.0 / 63.0)
    if found is not None:
        assert found.value < 0.0
        assert np.min(np.diff(found.points)) >= 0.5
