"""The algebra of kernels: Phi, Phi_2, density and draws of every combination agree; all kernels in every library."""

import copy
import dataclasses
import functools
import math
import pickle
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from campaign import campaign, sparse
from problems import FAMILIES, N_DRAWS, Z_BOUND, has_density, ks_bound, ks_distance, moment_z, panels, units, worst
from scipy import integrate

import rfrope
from rfrope import kernels
from rfrope.kernels import Kernel, axes, mixture

G = rfrope.kernel("gaussian", scale=4.0)
C = rfrope.kernel("cauchy", scale=3.0)
E = rfrope.kernel("exponential", scale=6.0)
M = rfrope.kernel("matern", nu=1.5, scale=5.0)
S = rfrope.kernel("sinc", bandwidth=0.4)
G2 = rfrope.kernel("gaussian", scale=(4.0, 9.0), ndim=2)
M2 = rfrope.kernel("matern", nu=0.8, scale=(5.0, 2.0), ndim=2)
P = rfrope.kernel("periodic", period=7.0, scale=0.8)
Q = rfrope.kernel("rational_quadratic", alpha=0.8, scale=4.0)
W = rfrope.kernel("power_exponential", exponent=1.3, scale=4.0)
L = rfrope.kernel("spectral_mixture", weights=(0.3, 0.7), means=(0.1, 1.2), scales=(0.3, 0.2))
B2 = rfrope.kernel("ball", bandwidth=(0.7, 0.4), ndim=2)
ONE = rfrope.kernel("constant")
MATRIX = np.array([[0.9, 0.5], [-0.3, 0.6]])

LAGS = {
    1: (0.7, -1.5, 2.5, 4.0, 6.0),
    2: ((1.0, 0.5), (0.0, 2.0), (-2.0, 1.0), (3.0, 2.0), (1.5, -4.0)),
    3: ((1.0, 0.5, 0.3), (0.0, 2.0, -1.0), (-2.0, 1.0, 2.0), (2.0, 1.0, 1.0), (1.0, -2.0, 3.0)),
}


@dataclass(frozen=True)
class Combination:
    """A combined kernel with its Phi at lags, an array, written out from the parts."""

    name: str
    kernel: Kernel
    phi: Any


def nested_phi(x):
    y = x @ MATRIX.T
    return 0.5 * (G(y[:, 0] / 2) + C(y[:, 0] / 2) * M(y[:, 0] / 2)) * E(y[:, 1])


COMBINATIONS = (
    Combination("product", G * C, lambda x: G(x) * C(x)),
    Combination("square", S * S, lambda x: S(x) ** 2),
    Combination("product, 2 axes", G2 * M2, lambda x: G2(x) * M2(x)),
    Combination("mixture", mixture([0.3, 0.7], [G, E]), lambda x: 0.3 * G(x) + 0.7 * E(x)),
    Combination("mixture, 2 axes", mixture([0.4, 0.6], [G2, M2]), lambda x: 0.4 * G2(x) + 0.6 * M2(x)),
    Combination("rescaled", M.rescale(0.5), lambda x: M(x / 0.5)),
    Combination("rescaled, each axis", M2.rescale((0.5, 3.0)), lambda x: M2(x / [0.5, 3.0])),
    Combination("warped", G2.warp(MATRIX), lambda x: G2(x @ MATRIX.T)),
    Combination("warped, 1 axis", E.warp([[-2.0]]), lambda x: E(-2.0 * x)),
    Combination("axes", axes(G, E), lambda x: G(x[..., 0]) * E(x[..., 1])),
    Combination("axes of 2 and 1", axes(M2, S), lambda x: M2(x[..., :2]) * S(x[..., 2])),
    Combination("all at once", axes(mixture([0.5, 0.5], [G, C * M]).rescale(2.0), E).warp(MATRIX), nested_phi),
    Combination("locally periodic", G * P, lambda x: G(x) * P(x)),
    Combination("line and lumps", rfrope.kernel("shell", radius=0.6) * L, lambda x: np.cos(0.6 * x) * L(x)),
    Combination("heavy tails", Q * W, lambda x: Q(x) * W(x)),
    Combination("floor", mixture([0.2, 0.8], [ONE, W]), lambda x: 0.2 + 0.8 * W(x)),
    Combination("warped ball", B2.warp(MATRIX), lambda x: B2(x @ MATRIX.T)),
)
DENSE = [case for case in COMBINATIONS if has_density(case.kernel)]
LINES = [case for case in DENSE if case.kernel.ndim == 1]
RARE = ("square", "mixture, 2 axes", "rescaled, each axis", "warped, 1 axis", "line and lumps", "heavy tails")
each = pytest.mark.parametrize("case", COMBINATIONS, ids=lambda c: c.name)


def lags_of(kernel):
    return np.array(LAGS[kernel.ndim])


# -- Phi, draws and density --------------------------------------------------------------------------------------------


@each
def test_phi_is_the_combination_of_the_parts(case):
    lags = lags_of(case.kernel)
    np.testing.assert_allclose(case.kernel.phi(lags), case.phi(lags), rtol=1e-14, atol=1e-16)
    np.testing.assert_allclose(case.kernel.phi2(lags), case.phi(2.0 * lags), rtol=1e-14, atol=1e-16)
    np.testing.assert_array_equal(case.kernel(lags), case.kernel.phi(lags))
    np.testing.assert_allclose(case.kernel.phi(0.0 * lags), 1.0, rtol=1e-15)
    np.testing.assert_array_equal(case.kernel.phi(-lags), case.kernel.phi(lags))


@pytest.mark.parametrize("case", sparse(COMBINATIONS, lambda c: c.name not in RARE), ids=lambda c: c.name)
def test_draws_agree_with_phi_and_phi2_and_have_no_sine(case):
    omega, lags = rfrope.sample(case.kernel, N_DRAWS, rng=17), lags_of(case.kernel)
    assert omega.shape == (N_DRAWS, case.kernel.ndim)[: 1 if case.kernel.ndim == 1 else 2]
    scores = moment_z(case.kernel, lags, omega)
    assert worst(scores) < Z_BOUND, scores


def test_combinations_that_have_a_density():
    named = ("mixture", "rescaled", "warped", "axes")
    assert {case.name for case in DENSE} == {case.name for case in COMBINATIONS if case.name.startswith(named)}


@pytest.mark.parametrize(
    "made",
    [*(c.kernel for c in LINES), *(kernels.kernel(n) for n, f in FAMILIES.items() if f.shape in ("ellipse", "lumps"))],
    ids=repr,
)
def test_phi_is_the_fourier_transform_of_the_density(made):
    """In one axis, by SciPy's Fourier quadrature: no draw is involved."""
    for lag in (0.0, 0.5, 0.7, 1.7, 2.5):
        tail = {"weight": "cos", "wvar": lag} if lag else {}
        near = integrate.quad(lambda w, lag=lag: made.density(w) * np.cos(w * lag), 0.0, 0.4, epsabs=1e-12)[0]
        value = 2.0 * (near + integrate.quad(made.density, 0.4, np.inf, epsabs=1e-11, **tail)[0])
        assert value == pytest.approx(float(made.phi(lag)), abs=1e-9)


@campaign
@pytest.mark.parametrize(
    "case", [c for c in DENSE if c.kernel.ndim == 2 and "ball" not in c.name], ids=lambda c: c.name
)
def test_densities_in_the_plane_integrate_to_one(case):
    """Those without jumps, by Gauss and Legendre's rule in asinh of each coordinate, 0 an edge."""
    _, node, weight = panels(-25.0, 25.0, 60)
    points, weights = (np.sinh(node) / 4.0).ravel(), (weight * np.cosh(node) / 4.0).ravel()
    omega = np.stack(np.meshgrid(points, points, indexing="ij"), axis=-1)
    assert weights @ case.kernel.density(omega) @ weights == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("case", LINES, ids=lambda c: c.name)
def test_draws_follow_the_density_in_one_axis(case):
    edges, log_w, weight = panels(-30.0, 60.0, 3000)
    mass = 2.0 * np.sum(weight * np.exp(log_w) * case.kernel.density(np.exp(log_w)), axis=-1)
    omega = rfrope.sample(case.kernel, N_DRAWS, rng=23)
    assert ks_distance(np.abs(omega), np.exp(edges[1:]), np.cumsum(mass)) < ks_bound(N_DRAWS)
    assert ks_distance(np.abs(1.1 * omega), np.exp(edges[1:]), np.cumsum(mass)) > ks_bound(N_DRAWS)


# -- transport ---------------------------------------------------------------------------------------------------------


def test_transport_by_hand():
    u = np.array([[0.1, 0.8], [0.9, 0.3]])
    np.testing.assert_allclose((G * C).transport(u), G.transport(u[:, 0]) + C.transport(u[:, 1]), rtol=1e-15)
    np.testing.assert_array_equal(axes(G, C).transport(u), np.stack([G.transport(u[:, 0]), C.transport(u[:, 1])], -1))
    mixed = mixture([0.3, 0.7], [G, E]).transport(u)
    np.testing.assert_array_equal(mixed, [G.transport(0.8), E.transport(0.3)])
    np.testing.assert_allclose(M.rescale(4.0).transport(u[:, 0]), M.transport(u[:, 0]) / 4.0, rtol=1e-15)
    np.testing.assert_allclose(G2.warp(MATRIX).transport(u), G2.transport(u) @ MATRIX, rtol=1e-15)


def test_shapes_of_points_and_lags():
    u = np.array([0.1, 0.7, 0.9])
    np.testing.assert_array_equal(G.transport(u[:, None]), G.transport(u))
    assert G.transport(0.25).shape == np.shape(G.phi(3)) == np.shape(G2.phi([1.0, 2.0])) == ()
    assert G.transport([[0.1, 0.2], [0.3, 0.4]]).shape == (2, 2)
    assert G.phi([[1, 2, 3]]).shape == (1, 3)
    assert G2.phi(np.zeros((4, 5, 2))).shape == (4, 5)
    assert G.phi(np.zeros((0,))).shape == (0,)
    assert G.phi(range(4)).shape == (4,)


def test_heavy_tails_and_huge_maps_do_not_become_nan_in_a_combination():
    heavy = rfrope.kernel("matern", nu=1e-3, scale=1e-150)
    heaviest = rfrope.kernel("power_exponential", exponent=0.01, ndim=2)
    for kernel in (
        *(heavy * heavy, mixture([0.5, 0.5], [heavy, G]), axes(heavy, G).warp(MATRIX), heavy.rescale(1e-150)),
        heaviest.warp([[1e300, -1e300], [1e300, 1e299]]),
    ):
        assert np.all(np.isfinite(rfrope.sample(kernel, 4096, rng=0)))
    assert np.isfinite(G2.warp(1e-100 * np.eye(2)).density([0.0, 0.0]))  # it is large there, as Phi hardly falls


# -- values ------------------------------------------------------------------------------------------------------------


@each
def test_combinations_are_values(case):
    factories = {name: functools.partial(rfrope.kernel, name) for name in kernels.names()}
    again = pickle.loads(pickle.dumps(case.kernel))
    assert again == copy.deepcopy(case.kernel) == dataclasses.replace(case.kernel) == case.kernel != G.rescale(77.0)
    assert hash(again) == hash(case.kernel)
    np.testing.assert_array_equal(again.phi(lags_of(case.kernel)), case.kernel.phi(lags_of(case.kernel)))
    assert eval(repr(case.kernel), {"axes": axes, "mixture": mixture} | factories) == case.kernel, "not a recipe"
    assert kernels.parse(repr(case.kernel)) == case.kernel


def test_identities():
    assert ONE * G == G * ONE == G
    assert ONE * ONE == ONE
    assert (ONE * G * ONE * C * ONE).factors == (G, C)
    lags, equal, wide = lags_of(G2), M2.rescale(3.0), rfrope.kernel("matern", nu=0.8, scale=10.0, ndim=2)
    np.testing.assert_allclose(axes(G, G).phi(lags), rfrope.kernel("gaussian", scale=4.0, ndim=2).phi(lags), rtol=1e-14)
    np.testing.assert_allclose(equal.phi(lags), M2.warp(np.eye(2) / 3.0).phi(lags), rtol=1e-14)
    np.testing.assert_allclose(equal.density(lags), M2.warp(np.eye(2) / 3.0).density(lags), rtol=1e-13)
    np.testing.assert_allclose(M2.rescale((2.0, 5.0)).phi(lags), wide.phi(lags), rtol=1e-14)
    assert (E * E).phi(3.0) == pytest.approx(math.exp(-1.0), rel=1e-15)


# -- array libraries ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("xp", ["jax"], indirect=True)
@pytest.mark.parametrize(
    "text",
    [
        *(record.example for record in kernels.records()),
        *("matern(nu=0.8, scale=(3, 4), ndim=2)", "matern(nu=30.0, scale=3)", "ball(ndim=2)", "shell(ndim=5)"),
    ],
)
def test_phi_can_be_compiled_by_jax(text, xp, jax):

    made = kernels.parse(text)
    lags = made.restore_shape(np.random.default_rng(0).normal(size=(7, made.ndim)))
    np.testing.assert_allclose(xp.host(jax.jit(made.phi)(xp(lags))), made.phi(lags), rtol=1e-13)
    if made.name == "matern":
        u = np.random.default_rng(1).uniform(size=(6, made.n_columns))
        np.testing.assert_array_equal(xp.host(jax.jit(made.transport)(xp(u))), made.transport(u))


# -- extremes and signs ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("record", kernels.records(), ids=lambda record: record.name)
@pytest.mark.parametrize("unit", [2.0**-500, 2.0**500])
@pytest.mark.parametrize("ndim", [1, 3])
def test_the_largest_and_smallest_units_give_the_same_values(record, unit, ndim):
    """Phi at scaled lags is that of the family's example, bit for bit but for roundings, and is never NaN."""
    made = kernels.parse(record.example)
    if len(units(made)) != 1 or ndim > getattr(made, "most_axes", ndim):  # two frequencies, or one for each component
        return
    ((name, kind),) = units(made).items()
    one, far = (kernels.kernel(record.name, ndim=ndim, **{name: value}) for value in (1.0, unit))
    x = np.outer([0.0, 0.3, 0.7, 0.9], [1.0, -0.5, 0.7][:ndim])  # lags of at most 2**500
    length = unit if kind == "length" else 1.0 / unit
    np.testing.assert_allclose(far.phi(far.restore_shape(x * length)), one.phi(one.restore_shape(x)), atol=1e-13)
    for lag in (1e-300, 1e150):
        assert np.all(np.isfinite(far.phi(far.restore_shape(x * lag)))) or record.name == "shell"
    if has_density(far):
        assert not np.any(np.isnan(far.density(far.restore_shape(x / length))))


def test_densities_far_out_are_not_lost():
    for text, power in (("matern(nu=0.05)", 1.1), ("exponential()", 2.0)):
        law = kernels.parse(text)
        near, far = law.density(1e120), law.density(1e154)
        assert law.density(1e155 if power < 2.0 else 1e153) > 0.0
        assert np.log10(near / far) == pytest.approx(34.0 * power, rel=1e-9)


@pytest.mark.parametrize("size", [1e-300, 1.0, 2.0**499, 1e200, 1e300])
def test_maps_that_cancel_near_the_largest_frequencies(size):
    """Sums of large frequencies stay finite where their difference is meant."""
    matrix, omega = size * np.array([[1.0, 1.0], [-1.0, 1.0]]), np.array([[2.0**499, 2.0**499], [1.0, -2.0]])
    with np.errstate(all="ignore"):
        exact = (omega[:, None, :].astype(np.longdouble) * matrix.T.astype(np.longdouble)).sum(axis=-1).astype(float)
        found = G2.warp(matrix)._map_frequencies(omega)
    np.testing.assert_allclose(found, exact, rtol=1e-15)
