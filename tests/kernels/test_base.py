"""The algebra of kernels: Phi, Phi_2, density and draws of every combination agree; what is not a kernel is refused."""

from __future__ import annotations

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
from problems import N_DRAWS, Z_BOUND, is_rejected, ks_bound, ks_distance, moment_z, panels, units, worst
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
C2 = rfrope.kernel("cauchy", scale=3.0, ndim=2)
M2 = rfrope.kernel("matern", nu=0.8, scale=(5.0, 2.0), ndim=2)
MATRIX = np.array([[0.9, 0.5], [-0.3, 0.6]])

LAGS = {
    1: (0.7, -1.5, 2.5, 4.0, 6.0),
    2: ((1.0, 0.5), (0.0, 2.0), (-2.0, 1.0), (3.0, 2.0), (1.5, -4.0)),
    3: ((1.0, 0.5, 0.3), (0.0, 2.0, -1.0), (-2.0, 1.0, 2.0), (2.0, 1.0, 1.0), (1.0, -2.0, 3.0)),
}


@dataclass(frozen=True)
class Combination:
    """A combined kernel with its Phi written out from the parts, and whether a density exists in closed form."""

    name: str
    kernel: Kernel
    phi: Any
    density: bool = True


COMBINATIONS = (
    Combination("product", G * C, lambda x: G(x) * C(x), density=False),
    Combination("square", S * S, lambda x: S(x) ** 2, density=False),
    Combination("product, 2 axes", G2 * M2, lambda x: G2(x) * M2(x), density=False),
    Combination("mixture", mixture([0.3, 0.7], [G, E]), lambda x: 0.3 * G(x) + 0.7 * E(x)),
    Combination("mixture, 2 axes", mixture([0.4, 0.6], [G2, M2]), lambda x: 0.4 * G2(x) + 0.6 * M2(x)),
    Combination("rescaled", M.rescale(0.5), lambda x: M(np.asarray(x) / 0.5)),
    Combination("rescaled, each axis", M2.rescale((0.5, 3.0)), lambda x: M2(np.asarray(x) / [0.5, 3.0])),
    Combination("warped", G2.warp(MATRIX), lambda x: G2(np.asarray(x) @ MATRIX.T)),
    Combination("warped, 1 axis", E.warp([[-2.0]]), lambda x: E(-2.0 * np.asarray(x))),
    Combination("axes", axes(G, E), lambda x: G(np.asarray(x)[..., 0]) * E(np.asarray(x)[..., 1])),
    Combination("axes of 2 and 1", axes(M2, S), lambda x: M2(np.asarray(x)[..., :2]) * S(np.asarray(x)[..., 2])),
    Combination(
        "all at once",
        axes(mixture([0.5, 0.5], [G, C * M]).rescale(2.0), E).warp(MATRIX),
        lambda x: (lambda y: 0.5 * (G(y[:, 0] / 2) + C(y[:, 0] / 2) * M(y[:, 0] / 2)) * E(y[:, 1]))(
            np.asarray(x) @ MATRIX.T
        ),
        density=False,
    ),
)
P = rfrope.kernel("periodic", period=7.0, scale=0.8)
Q = rfrope.kernel("rational_quadratic", alpha=0.8, scale=4.0)
W = rfrope.kernel("power_exponential", exponent=1.3, scale=4.0)
L = rfrope.kernel("spectral_mixture", weights=(0.3, 0.7), means=(0.1, 1.2), scales=(0.3, 0.2))
B2 = rfrope.kernel("ball", bandwidth=(0.7, 0.4), ndim=2)
ONE = rfrope.kernel("constant")
COMBINATIONS += (
    Combination("locally periodic", G * P, lambda x: G(x) * P(x)),
    Combination("line and lumps", rfrope.kernel("shell", radius=0.6) * L, lambda x: np.cos(0.6 * np.array(x)) * L(x)),
    Combination("heavy tails", Q * W, lambda x: Q(x) * W(x), density=False),
    Combination("floor", mixture([0.2, 0.8], [ONE, W]), lambda x: 0.2 + 0.8 * W(x), density=False),
    Combination("warped ball", B2.warp(MATRIX), lambda x: B2(np.asarray(x) @ MATRIX.T), density=False),
)
each = pytest.mark.parametrize("case", COMBINATIONS, ids=lambda c: c.name)
RARE = ("square", "mixture, 2 axes", "rescaled, each axis", "warped, 1 axis", "line and lumps", "heavy tails")
each_drawn = pytest.mark.parametrize("case", sparse(COMBINATIONS, lambda c: c.name not in RARE), ids=lambda c: c.name)


def lags_of(kernel):
    return np.array(LAGS[kernel.ndim])


# -- Phi ---------------------------------------------------------------------------------------------------------------


@each
def test_phi_is_the_combination_of_the_parts(case):
    lags = lags_of(case.kernel)
    np.testing.assert_allclose(case.kernel.phi(lags), case.phi(lags), rtol=1e-14, atol=1e-16)
    np.testing.assert_allclose(case.kernel.phi2(lags), case.phi(2.0 * lags), rtol=1e-14, atol=1e-16)
    np.testing.assert_array_equal(case.kernel(lags), case.kernel.phi(lags))
    np.testing.assert_allclose(case.kernel.phi(0.0 * lags), 1.0, rtol=1e-15)
    np.testing.assert_array_equal(case.kernel.phi(-lags), case.kernel.phi(lags))


@each_drawn
def test_draws_agree_with_phi_and_phi2_and_have_no_sine(case):
    omega = rfrope.sample(case.kernel, N_DRAWS, rng=17)
    assert omega.shape == ((N_DRAWS,) if case.kernel.ndim == 1 else (N_DRAWS, case.kernel.ndim))
    scores = moment_z(case.kernel, lags_of(case.kernel), omega)
    assert worst(scores) < Z_BOUND, scores
    assert is_rejected(case.kernel, lags_of(case.kernel), 1.05 * omega)
    assert np.max(np.abs(moment_z(case.kernel, lags_of(case.kernel), np.abs(omega))["sin"])) > Z_BOUND


WRONG = {
    "the average of the factors": (G * C, lambda u: 0.5 * (G.transport(u[:, :1]) + C.transport(u[:, 1:2]))),
    "dependent factors": (G * C, lambda u: G.transport(u[:, :1]) + C.transport(u[:, :1])),
    "the weighted sum of components": (
        mixture([0.3, 0.7], [G, E]),
        lambda u: 0.3 * G.transport(u[:, :1]) + 0.7 * E.transport(u[:, 1:2]),
    ),
    "swapped weights": (mixture([0.7, 0.3], [G, E]), lambda u: mixture([0.3, 0.7], [G, E]).transport(u[:, :2])),
    "omega times the scale": (M.rescale(0.5), lambda u: M.rescale(2.0).transport(u[:, :1])),
    "M omega": (G2.warp(MATRIX), lambda u: G2.warp(MATRIX.T).transport(u[:, :2])),
    "swapped axes": (axes(G, E), lambda u: axes(E, G).transport(u[:, :2])),
    "one column for all axes": (axes(G, E), lambda u: axes(G, E).transport(u[:, [0, 0]])),
}


@pytest.mark.parametrize("what", WRONG)
def test_the_comparison_rejects(what):
    kernel, wrong = WRONG[what]
    u = np.random.default_rng(0).uniform(size=(N_DRAWS, 3))
    assert worst(moment_z(kernel, lags_of(kernel), wrong(u))) > Z_BOUND


# -- density -----------------------------------------------------------------------------------------------------------


def grid(lengths):
    """Nodes and weights over the plane: Gauss-Legendre in asinh of each coordinate times its length, 0 an edge."""
    _, node, weight = panels(-25.0, 25.0, 60)
    points, weights = (
        [np.sinh(node).ravel() / s for s in lengths],
        [(weight * np.cosh(node)).ravel() / s for s in lengths],
    )
    return np.stack(np.meshgrid(*points, indexing="ij"), axis=-1), np.multiply.outer(*weights)


@campaign
@pytest.mark.parametrize("case", [c for c in COMBINATIONS if c.density and c.kernel.ndim < 3], ids=lambda c: c.name)
def test_density_integrates_to_one_and_its_fourier_transform_is_phi(case):
    made = case.kernel
    if made.ndim == 1:

        def integral(lag):
            parts = [
                integrate.quad(lambda w: made.density(w) * np.cos(w * lag), 0.0, 0.4, epsabs=1e-12)[0],
                integrate.quad(lambda w: made.density(w), 0.4, np.inf, weight="cos", wvar=lag, epsabs=1e-11)[0]
                if lag
                else integrate.quad(made.density, 0.4, np.inf, epsabs=1e-12)[0],
            ]
            return 2.0 * sum(parts)

        assert integral(0.0) == pytest.approx(1.0, abs=1e-9)
        for lag in LAGS[1][:3]:
            assert integral(abs(lag)) == pytest.approx(float(made.phi(lag)), abs=1e-8)
    else:
        omega, weight = grid((4.0, 4.0))
        assert float(np.sum(weight * made.density(omega))) == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("case", [c for c in COMBINATIONS if c.density and c.kernel.ndim == 1], ids=lambda c: c.name)
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


def test_one_draw_takes_points_with_and_without_the_last_axis():
    u = np.array([0.1, 0.7, 0.9])
    np.testing.assert_array_equal(G.transport(u[:, None]), G.transport(u))
    assert G.transport(0.25).shape == ()
    assert G.transport([[0.1, 0.2], [0.3, 0.4]]).shape == (2, 2)


def test_infinite_tails_do_not_become_nan_in_a_combination():
    heavy = rfrope.kernel("matern", nu=1e-3, scale=1e-150)
    for kernel in (heavy * heavy, mixture([0.5, 0.5], [heavy, G]), axes(heavy, G).warp(MATRIX), heavy.rescale(1e-150)):
        assert np.all(np.isfinite(rfrope.sample(kernel, 4096, rng=0)))


# -- what is not a kernel ----------------------------------------------------------------------------------------------

NAN = float("nan")
REFUSED = [
    *((lambda other=other: other * G, TypeError, "a kernel times .*; expected another kernel")
      for other in (2.5, np.ones(3), "gaussian", None)),
    (lambda: G * np.float64(2.5), TypeError, "a kernel times float64 is not a kernel: Phi\\(0\\) must stay 1"),
    (lambda: G * G2, ValueError, r"^kernels have \[1, 2\] axes; expected one ndim for all"),
    (lambda: mixture([0.5, 0.5], [G, G2]), ValueError, r"^kernels have \[1, 2\] axes"),
    (lambda: mixture([0.5, 0.6], [G, C]), ValueError, "^weights is .* with sum 1.1; expected sum 1"),
    (lambda: mixture([1.5, -0.5], [G, C]), ValueError, "^weights is -0.5; expected a positive finite"),
    (lambda: mixture([NAN, 0.5], [G, C]), ValueError, "^weights is nan; expected a positive finite"),
    (lambda: mixture(["half", 0.5], [G, C]), TypeError, "^weights is 'half'; expected a positive"),
    (lambda: mixture([1.0], [G, C]), ValueError, "^weights has 1 entries and kernels 2"),
    (lambda: mixture([], []), TypeError, r"^kernels is \(\); expected one or more kernels"),
    (lambda: mixture(0.5, [G]), TypeError, "^weights is 0.5; expected"),
    (lambda: mixture([1.0], G), TypeError, "^kernels is .*; expected"),
    *((lambda bad=bad: axes(*bad), TypeError, "^kernels is .*; expected one or more kernels")
      for bad in ((), (3,), (G, "cauchy"))),
    *((lambda bad=bad: G2.rescale(bad), (TypeError, ValueError), "^scale is ")
      for bad in (0.0, -1.0, NAN, "2", True, (1.0,), (1.0, 2.0, 3.0), (1.0, -2.0), 1e300)),
    *((lambda bad=bad: G2.warp(bad), ValueError, "^matrix is .*; expected a finite invertible matrix")
      for bad in ([[1.0, 2.0], [2.0, 4.0]], np.zeros((2, 2)), [[1.0, NAN], [0.0, 1.0]])),
    *((lambda bad=bad: G2.warp(bad), ValueError, r"^matrix has shape .*; expected \(2, 2\)")
      for bad in (2.0, [1.0, 2.0], np.eye(3), np.ones((1, 2, 2)))),
    *((lambda bad=bad: G2.warp(bad), TypeError, "^matrix (is|has) ")
      for bad in ("ab", [[1, 2], [3]], [["a", "b"], ["c", "d"]], [[1j, 0], [0, 1]])),
    (lambda: dataclasses.replace(G.rescale(2.0), scale=-1.0), ValueError, "^scale is -1.0; expected"),
    *((lambda f=f, shape=shape: f(np.zeros(shape)), ValueError, r" has shape .*; expected \(..., 2\): .* has 2 axes")
      for f, shape in ((G2.phi, ()), (G2.phi2, (3,)), (G2.density, (2, 3)))),
    *((lambda bad=bad: (G * C).phi(bad), TypeError, r"^lags (is|has) .*; expected")
      for bad in ("abc", ["a"], [1j], [True], object, np.array([1], dtype=object), [[1, 2], [3]], {})),
    *((lambda bad=bad: axes(G, C).transport(bad), ValueError, r"^u holds values outside \(0, 1\)")
      for bad in ([0.0, 0.5], [0.5, 1.0], [-0.1, 0.5], [0.5, NAN])),
    *((lambda shape=shape: (G * C).transport(np.full(shape, 0.5)), ValueError, r"^u has shape .*; expected \(..., 2\)")
      for shape in ((5, 3), (5,), (), (5, 0))),
    *((lambda law=law: law.density([[0.1, 0.2]]), ValueError, r"^gaussian.* has no density in closed form")
      for law in (G2 * C2, axes(G * C, E))),
    (Kernel, TypeError, "Can't instantiate abstract class Kernel .*_phi"),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_what_is_refused(number):
    call, error, message = REFUSED[number]
    with pytest.raises(error, match=message):
        call()


def test_a_warp_by_a_tiny_matrix_still_has_a_density():
    """Phi hardly falls, omega is near 0: the density there is large, not an overflow."""
    assert np.isfinite(G2.warp(1e-100 * np.eye(2)).density([0.0, 0.0]))


# -- lags and frequencies ----------------------------------------------------------------------------------------------


def test_shapes_of_lags():
    assert np.shape(G.phi(3.0)) == ()
    assert np.shape(G.phi(3)) == ()
    assert G.phi([[1, 2, 3]]).shape == (1, 3)
    assert np.shape(G2.phi([1.0, 2.0])) == ()
    assert G2.phi(np.zeros((4, 5, 2))).shape == (4, 5)
    assert G.phi(np.zeros((0,))).shape == (0,)
    assert G.phi(range(4)).shape == (4,)


# -- values ------------------------------------------------------------------------------------------------------------


@each
def test_combinations_are_values(case):
    again = pickle.loads(pickle.dumps(case.kernel))
    assert again == case.kernel
    assert hash(again) == hash(case.kernel)
    assert case.kernel != G.rescale(77.0)
    lags = lags_of(case.kernel)
    np.testing.assert_array_equal(again.phi(lags), case.kernel.phi(lags))
    assert eval(repr(case.kernel), {"axes": axes, "mixture": mixture} | FACTORIES) == case.kernel, "not a recipe"
    assert kernels.parse(repr(case.kernel)) == case.kernel
    assert copy.deepcopy(case.kernel) == dataclasses.replace(case.kernel) == case.kernel


FACTORIES = {name: functools.partial(rfrope.kernel, name) for name in kernels.names()}


def test_weights_are_normalised_once():
    rng = np.random.default_rng(0)
    for n in range(2, 60):
        weights = rng.dirichlet(np.ones(n)) * (1.0 + 1e-10)
        made = mixture(weights, [G] * n)
        assert mixture(made.weights, [G] * n) == made
        assert abs(math.fsum(made.weights) - 1.0) < 1e-15


def test_constants_drop_out_of_products():
    assert ONE * G == G * ONE == G
    assert ONE * ONE == ONE
    assert (ONE * G * ONE * C * ONE).factors == (G, C)
    with pytest.raises(ValueError, match=r"^kernels have \[1, 2\] axes"):
        ONE * G2


def test_products_with_too_many_atoms_have_no_density():
    narrow = rfrope.kernel("periodic", scale=0.002)
    for kernel in (narrow * G, P * P, P * P * P * P * P * G):
        with pytest.raises(ValueError, match="has no density"):
            kernel.density([0.1])
    assert np.isfinite((P * P * G).density([0.1]))


def test_a_warp_of_the_heaviest_tail_by_huge_numbers_is_finite():
    heavy = rfrope.kernel("power_exponential", exponent=0.01, ndim=2)
    assert np.all(np.isfinite(rfrope.sample(heavy.warp([[1e300, -1e300], [1e300, 1e299]]), 4096, rng=0)))


def test_identities():
    lags = lags_of(G2)
    np.testing.assert_allclose(axes(G, G).phi(lags), rfrope.kernel("gaussian", scale=4.0, ndim=2).phi(lags), rtol=1e-14)
    np.testing.assert_allclose(M2.rescale(3.0).phi(lags), M2.warp(np.eye(2) / 3.0).phi(lags), rtol=1e-14)
    np.testing.assert_allclose(M2.rescale(3.0).density(lags), M2.warp(np.eye(2) / 3.0).density(lags), rtol=1e-13)
    np.testing.assert_allclose(
        M2.rescale((2.0, 5.0)).phi(lags), rfrope.kernel("matern", nu=0.8, scale=10.0, ndim=2).phi(lags), rtol=1e-14
    )
    assert (E * E).phi(3.0) == pytest.approx(math.exp(-1.0), rel=1e-15)


# -- array libraries ---------------------------------------------------------------------------------------------------


@each
def test_every_library_gives_numpys_values_in_its_own_arrays(case, xp):
    made = case.kernel
    lags, u = lags_of(made), np.random.default_rng(1).uniform(size=(6, made.n_columns))
    functions = [made.phi, made.phi2] + ([made.density] if case.density else [])
    for function in functions:
        found = function(xp(lags))
        assert xp.owns(found)
        np.testing.assert_allclose(xp.host(found), function(lags), rtol=1e-14, atol=1e-300)
    found = made.transport(xp(u))
    assert xp.owns(found)
    np.testing.assert_array_equal(xp.host(found), made.transport(u))


@pytest.mark.parametrize("xp", ["jax"], indirect=True)
def test_transport_can_be_compiled_by_jax(xp):
    import jax

    u = np.random.default_rng(1).uniform(size=(6, M2.n_columns))
    np.testing.assert_array_equal(xp.host(jax.jit(M2.transport)(xp(u))), M2.transport(u))


# -- extremes and signs ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("record", kernels.records(), ids=lambda record: record.name)
def test_lengths_and_frequencies_are_refused_where_draws_would_be_cut(record):
    """Draws are cut at 2**500, and products of what is larger overflow: a law there would not be that of its Phi."""
    made = kernels.parse(record.example)
    for name in {*units(made), "scales", "means"} & set(record.parameters):
        value = (1e300,) * len(made.means) if name in ("means", "scales") else 1e300
        with pytest.raises(ValueError, match=rf"^{name} is .*; expected .* to 2\*\*500$"):
            dataclasses.replace(made, **{name: value})


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
    assert not np.any(np.isnan(_density(far, x / length)))


def _density(kernel, omega):
    try:
        return kernel.density(kernel.restore_shape(omega))
    except ValueError:
        return 0.0


def test_densities_far_out_are_not_lost():
    for text, power in (("matern(nu=0.05)", 1.1), ("exponential()", 2.0)):
        law = kernels.parse(text)
        near, far = law.density(1e120), law.density(1e154)
        assert law.density(1e155 if power < 2.0 else 1e153) > 0.0
        assert np.log10(near / far) == pytest.approx(34.0 * power, rel=1e-9)


@pytest.mark.parametrize("size", [1e-300, 1.0, 2.0**499, 1e200, 1e300])
def test_maps_that_cancel_near_the_largest_frequencies(size):
    """Sums of large frequencies stay finite where their difference is meant."""
    matrix = size * np.array([[1.0, 1.0], [-1.0, 1.0]])
    made = G2.warp(matrix)
    omega = np.array([[2.0**499, 2.0**499], [1.0, -2.0]])
    with np.errstate(all="ignore"):
        exact = (omega[:, None, :].astype(np.longdouble) * matrix.T.astype(np.longdouble)).sum(axis=-1).astype(float)
        found = made._map_frequencies(omega)
    np.testing.assert_allclose(found, exact, rtol=1e-15)
