"""Even directions: against the expansion of plane waves, spherical designs, and each other."""

import math

import numpy as np
import pytest
from scipy import optimize, special

import rfrope
from rfrope.designs import directional_bound, directional_error
from rfrope.frequencies import isotropic


def harmonic_sums(units, degree):
    """Sums over pairs of Legendre's polynomial: 0 for a spherical design that has this degree."""
    return float(np.sum(special.eval_legendre(degree, units @ units.T)))


def test_rings_of_two_axes_have_equal_angles_and_each_is_a_little_further():
    found = isotropic([2.0, 1.0, 0.5], 4).frequencies.reshape(3, 4, 2)
    np.testing.assert_allclose(np.linalg.norm(found, axis=-1), [[2.0] * 4, [1.0] * 4, [0.5] * 4], rtol=1e-15)
    angles = np.arctan2(found[..., 1], found[..., 0])
    np.testing.assert_allclose(angles, math.pi * (np.arange(4) + np.arange(3)[:, None] / 3.0) / 4.0, atol=1e-15)
    assert isotropic([1.0], 1025).frequencies.shape == (1025, 2)


@pytest.mark.parametrize("n", [1, 5, 16])
def test_the_mean_kernel_of_a_ring_is_the_expansion_of_jacobi_and_anger(n):
    z, phi = 23.0, np.linspace(0.0, math.pi, 7)
    lags = z / 2.0 * np.stack([np.cos(phi), np.sin(phi)], axis=-1)
    orders = n * np.arange(1, 40 // n + 2)
    terms = (-1.0) ** orders * special.jv(2 * orders, z) * np.cos(2.0 * orders * phi[:, None])
    expected = special.jv(0, z) + 2.0 * np.sum(terms, axis=1)
    np.testing.assert_allclose(rfrope.analysis.mean_kernel(lags, isotropic([2.0], n)), expected, atol=1e-13)


@pytest.mark.parametrize(("n", "degree", "beyond"), [(3, 2, 4), (6, 4, 6), (16, 4, 10), (32, 6, 12)])
def test_lines_of_three_axes_are_spherical_designs_up_to_a_degree(n, degree, beyond):
    units = isotropic([1.0], n, ndim=3).frequencies
    np.testing.assert_allclose(np.linalg.norm(units, axis=1), 1.0, rtol=1e-14)
    exact = 1e-12 if n <= 6 else 1e-3  # of squares of sums; others are minima of all degrees together
    for one in range(2, degree + 1, 2):
        assert harmonic_sums(units, one) / n < exact
    assert harmonic_sums(units, beyond) / n > 1e-2


@pytest.mark.parametrize("ndim", [2, 3])
def test_errors_are_those_of_dense_directions(ndim):
    omega = rfrope.golden_gate(8, low=0.3, high=2.0, ndim=ndim).frequencies
    lengths = np.array([0.0, 3.0, 9.0])
    found = directional_error(omega, lengths)
    z = np.linalg.norm(omega, axis=1) * lengths[:, None]
    shell = special.j0(z) if ndim == 2 else special.spherical_jn(0, z)
    np.testing.assert_allclose(found.mean, np.mean(shell, axis=1), atol=1e-14)
    random = np.random.default_rng(0).normal(size=(400_000, ndim))
    units = random / np.linalg.norm(random, axis=1, keepdims=True)
    for place, length in enumerate(lengths):
        apart = np.mean(np.cos(length * units @ omega.T), axis=1) - found.mean[place]
        assert math.isclose(found.rms[place], float(np.sqrt(np.mean(apart**2))), rel_tol=2e-2, abs_tol=1e-14)
        assert abs(np.max(np.abs(apart)) - found.sup[place]) <= 2e-2


@pytest.mark.parametrize("ndim", [2, 3])
def test_the_mean_over_normal_lags_is_that_over_their_lengths(ndim):
    omega = rfrope.golden_gate(5, low=0.3, high=2.0, ndim=ndim).frequencies
    step = 0.2
    lengths = 0.01 + step * np.arange(90)
    for scale in (0.7, 2.0):
        density = lengths ** (ndim - 1) * np.exp(-0.5 * (lengths / scale) ** 2) / scale**ndim
        density *= 1.0 if ndim == 2 else math.sqrt(2.0 / math.pi)
        square = step * np.sum(density * directional_error(omega, lengths).rms ** 2)
        assert math.isclose(directional_bound(omega, scale).rms, math.sqrt(square), rel_tol=1e-3)


@pytest.mark.parametrize(("n", "scale"), [(1, 0.7), (2, 1.0), (5, 3.0), (16, 8.0), (32, 16.0), (33, 40.0)])
def test_equal_angles_have_their_closed_form_and_are_at_the_bound(n, scale):
    closed = math.sqrt(2.0 * float(np.sum(special.ive(2 * n * np.arange(1, 200), scale**2))))
    found = directional_bound(isotropic([0.5], n), 2.0 * scale)
    np.testing.assert_allclose(found, closed, rtol=1e-9)
    assert found.bound <= found.rms


@pytest.mark.parametrize("scale", [1.0, 1.5, 2.0, 5.0])
@pytest.mark.parametrize(("n", "cosine"), [(1, 0.0), (2, 0.0), (3, 0.0), (4, 1.0 / 3.0), (6, math.sqrt(0.2))])
def test_lines_of_few_cosines_are_at_the_bound(n, cosine, scale):
    """The axes of the octahedron, the cube and the icosahedron: each pair has one cosine."""
    s2 = scale**2
    even = (math.cosh(s2) + (n - 1) * math.cosh(cosine * s2)) / n - math.sinh(s2) / s2
    found = directional_bound(isotropic([0.5], n, ndim=3), 2.0 * scale)
    np.testing.assert_allclose(found, math.sqrt(math.exp(-s2) * even), rtol=1e-9)
    assert found.bound <= found.rms


@pytest.mark.parametrize("scale", [0.7, 1.0, 4.0])
@pytest.mark.parametrize(("n", "ndim"), [(2, 2), (5, 2), (16, 2), (6, 3)])
def test_no_rounding_of_sets_at_the_bound_is_below_it(n, ndim, scale):
    """Turned about, equal angles have the same mean square, rounded otherwise."""
    omega = isotropic([1.0], n, ndim=ndim).frequencies
    for angle in np.linspace(0.0, 3.0, 40):
        turn = np.eye(ndim)
        turn[:2, :2] = [[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]]
        found = directional_bound(omega @ turn, scale)
        assert found.bound <= found.rms


@pytest.mark.parametrize("scale", [1.5, 4.0])
@pytest.mark.parametrize("ndim", [2, 3])
@pytest.mark.parametrize("magnitudes", [(1.0, 0.5), (1.0, 0.6, 0.3), (1.0,) * 5, (1.0, 1.0, 0.5, 0.5), (1.0, 0.0, 0.9)])
def test_no_directions_are_below_the_bound_and_the_best_are_near(magnitudes, ndim, scale):
    sizes = np.array(magnitudes)[:, None]

    def found(flat):
        units = flat.reshape(-1, ndim)
        return directional_bound(sizes * units / np.linalg.norm(units, axis=1, keepdims=True), scale)

    starts = np.random.default_rng(1).normal(size=(20, sizes.size * ndim))
    assert all(float(one.rms) >= float(one.bound) > 0.0 for one in map(found, starts))
    best = min(optimize.minimize(lambda x: float(found(x).rms), start, method="BFGS").fun for start in starts[:3])
    bound = float(found(starts[0]).bound)
    assert bound <= best <= {2: 1.4, 3: 1.2}[ndim] * bound


def test_rings_far_apart_and_the_sets_of_the_table_are_near_the_bound():
    for sizes, ndim, most in (([1.0, 0.1], 2, 1.0 + 1e-6), ([1.0, 0.5], 2, 1.1), ([1.0], 3, 1.2)):
        for n in (8, 16) if ndim == 2 else (16, 32):
            found = directional_bound(isotropic(sizes, n, ndim=ndim), [4.0, 8.0] if ndim == 3 else 8.0)
            assert np.all((found.rms >= found.bound) & (found.rms <= most * found.bound))


def test_the_bound_is_of_magnitudes_times_scales_and_0_where_nothing_depends_on_direction():
    omega = rfrope.golden_gate(6, low=0.2, high=1.0).frequencies
    found, other = directional_bound(omega, [[3.0, 0.0]]), directional_bound(3.0 * omega[:, ::-1], [[1.0, 0.0]])
    np.testing.assert_allclose(found, other, rtol=1e-12)
    assert found.bound.shape == (1, 2)
    assert found.bound[0, 1] == 0.0
    assert directional_bound(omega, []).rms.shape == directional_error(omega, []).rms.shape == (0,)


def test_even_directions_depend_less_on_direction_than_published_sets():
    lengths = np.linspace(1.0, 8.0, 15)
    ladder = rfrope.geometric(2, base=10.0)
    axial = rfrope.axial(rfrope.geometric(8, base=100.0), rfrope.geometric(8, base=100.0))
    assert np.all(directional_error(isotropic(ladder, 8), lengths).rms < 0.6 * directional_error(axial, lengths).rms)


def test_gradients_reach_magnitudes():
    torch = pytest.importorskip("torch")
    sizes = torch.tensor([1.0, 0.5], dtype=torch.float64, requires_grad=True)
    frequencies = isotropic(sizes, 3, ndim=3).frequencies
    frequencies.sum().backward()
    np.testing.assert_allclose(sizes.grad.numpy(), [3.0, 3.0])


def test_every_library_gets_its_own_arrays(xp):
    found = isotropic(xp([1.0, 0.5]), 4, ndim=3).frequencies
    np.testing.assert_allclose(xp.host(found), isotropic([1.0, 0.5], 4, ndim=3).frequencies, rtol=1e-6)
