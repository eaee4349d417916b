"""Special functions against mpmath."""

import math

import mpmath as mp
import numpy as np
import pytest
import scipy.special
from campaign import campaign, sparse
from conftest import library
from problems import DIGITS, matern_reference, sphere_reference

import rfrope
from rfrope._core import array, quantiles, special

LOWER = np.array([2.0**-53, 2.0**-45, 1e-12, 1e-6, 0.01, 0.1, 0.25, 0.4, 0.49, 0.5 - 2.0**-20, 0.5 - 2.0**-50, 0.5])
LOWER = np.ceil(LOWER * 2.0**53) * 2.0**-53  # so that 1 - u is exact
UNIT = np.concatenate([LOWER, 1.0 - LOWER[:-1][::-1]])


@pytest.fixture(autouse=True)
def digits():
    with mp.workdps(DIGITS):
        yield


def relative_error(found, exact):
    return float(abs(mp.mpf(float(found)) / exact - 1))


def space(xp):
    return array.named_namespace(xp.module)


# -- quantiles ---------------------------------------------------------------------------------------------------------


def student_cdf(dof):
    dof = mp.mpf(dof)
    return lambda x: mp.betainc(dof / 2, mp.mpf(1) / 2, 0, dof / (dof + x * x), regularized=True) / 2


STUDENT = (0.3, 1.0, 1.6, 2.0, 3.0, 4.0, 14.6, 1000.0, 1e6)
SYMMETRIC = {
    "normal": (quantiles.normal_quantile, lambda x: mp.erfc(-x / mp.sqrt(2)) / 2),
    "laplace": (quantiles.laplace_quantile, lambda x: mp.exp(x) / 2),
    **{f"student {d}": (lambda u, d=d: quantiles.student_quantile(d, u), student_cdf(d)) for d in STUDENT},
}


@pytest.mark.parametrize("name", SYMMETRIC)
def test_symmetric_quantiles_invert_the_cdf_far_into_the_tail(name):
    """Lower half; the tests below say that the upper is its mirror image."""
    quantile, cdf = SYMMETRIC[name]
    with mp.workdps(DIGITS):
        for u, x in zip(LOWER, quantile(LOWER), strict=True):
            assert relative_error(u, cdf(mp.mpf(float(x)))) < 5e-14, u


@pytest.mark.parametrize("name", ["normal", "laplace", "student 1.0", "student 2.0", "student 4.0"])
def test_quantiles_keep_their_digits_near_one_half(name):
    """There a quantile is a small number, of which SciPy's for Student's law loses half of the digits, or all."""
    quantile, cdf = SYMMETRIC[name]
    with mp.workdps(100):
        for step in 2.0 ** -np.arange(3.0, 50.0, 4.0):
            x = mp.mpf(float(quantile(np.array([0.5 - step]))[0]))
            assert relative_error(step, mp.mpf(1) / 2 - cdf(x)) < 3e-15, step


@pytest.mark.parametrize("name", SYMMETRIC)
def test_symmetric_quantiles_are_odd_bit_for_bit_and_increase(name):
    quantile, _ = SYMMETRIC[name]
    np.testing.assert_array_equal(quantile(1.0 - UNIT), -quantile(UNIT))
    assert quantile(np.array([0.5]))[0] == 0.0
    assert np.all(np.diff(quantile(UNIT)) > 0.0)


@pytest.mark.parametrize("dof", [1e-3, 0.02, 0.1, 1.0, 1e3, 1e8])
def test_student_quantile_never_fails(dof):
    assert np.all(np.diff(quantiles.student_quantile(dof, UNIT)) >= 0.0)  # and none is NaN


@pytest.mark.parametrize("shape", [0.1, 0.3, 0.8, 1.5, 30.0, 200.0])
def test_gamma_quantile_inverts_the_cdf_in_both_tails(shape):
    for u, x in zip(UNIT, quantiles.gamma_quantile(shape, UNIT), strict=True):
        part, ends = (u, (0, mp.mpf(float(x)))) if u <= 0.5 else (1.0 - u, (mp.mpf(float(x)), mp.inf))
        assert relative_error(part, mp.gammainc(shape, *ends, regularized=True)) < 5e-13


def test_exponential_quantile_inverts_the_cdf_in_both_tails():
    for u, x in zip(UNIT, quantiles.exponential_quantile(UNIT), strict=True):
        assert relative_error(u, -mp.expm1(-mp.mpf(float(x)))) < 1e-15
        assert relative_error(1.0 - u, mp.exp(-mp.mpf(float(x)))) < 1e-14


@pytest.mark.parametrize("shape", [0.3, 1.0, 30.0])
def test_gamma_quantiles_are_scipys_by_polynomials(shape):
    u = np.concatenate([cells := np.random.default_rng(1).random(3000), 2.0 ** -(52.0 * cells)])
    for upper, exact in ((False, scipy.special.gammaincinv), (True, scipy.special.gammainccinv)):
        np.testing.assert_allclose(quantiles.gamma_quantile(shape, u, upper=upper), exact(shape, u), rtol=2e-13)
    kinds = quantiles._gamma_quantiles(shape)._table[1]
    assert np.sum(kinds == quantiles._GOOD) > 400
    assert not np.any(kinds == quantiles._REFUSED)


# -- the Matérn function -----------------------------------------------------------------------------------------------

NEAR = (0.5 - 1e-9, 1.0 + 1e-9, 1.5 + 1e-15, 15.5 + 1e-9, 16.0 - 1e-15)  # orders next to those that are special
ORDERS = (0.05, 0.3, 0.5, 0.8, 1.0, 1.0001, 1.5, 2.0, 2.5, 7.3, 12.2, 19.5, 19.99, 20.0, 33.3, 200.0, 500.0, *NEAR)


def radii_and_reference(nu):
    """Arguments t up to 40 sqrt(2 nu) as exact floats, the seam of two series among them, and the function there."""
    t = np.concatenate([np.geomspace(1e-12, 1e-2, 6), np.linspace(0.05, 40.0, 25)]) * float(np.sqrt(2.0 * nu))
    t = np.append(t, [1e-300, 1e-100, 1.95, 2.0, np.nextafter(2.0, 3.0)])
    return t, [matern_reference(nu, mp.mpf(float(v))) for v in t]


@campaign
@pytest.mark.parametrize("nu", sparse(ORDERS, (0.3, 0.5, 1.0, 2.5, 7.3, 19.99, 33.3, *NEAR[:2]).__contains__))
def test_matern_against_mpmath(nu):
    t, exact = radii_and_reference(nu)
    found = special.matern(nu, t, np)
    worst = max(relative_error(a, b) for a, b in zip(found, exact, strict=True))
    assert worst < 5e-13
    assert special.matern(nu, np.zeros(2), np).tolist() == [1.0, 1.0]


@pytest.mark.parametrize("nu", [0.3, 0.8, 1.0, 2.2, 2.5, 7.3, 30.0])
def test_matern_is_differentiable_and_traceable(nu, jax):
    """Slopes against mpmath, far out and beside 0 too, and a single compiled function of JAX."""
    t = np.array([1e-6, 0.3, 1.0, 1.9, 2.0, 2.1, 7.0, 30.0])
    exact = [float(mp.diff(lambda v: matern_reference(nu, v), mp.mpf(float(v)), h=mp.mpf("1e-15"))) for v in t]
    torch, jnp = library("torch").module, library("jax").module

    x = torch.tensor([0.0, *t], requires_grad=True, dtype=torch.float64)
    special.matern(nu, x, space(library("torch"))).sum().backward()
    assert torch.isfinite(x.grad).all()
    rounding = 1e-16 if nu == 2.5 else 0.0  # its closed form cancels beside 0
    np.testing.assert_allclose(x.grad[1:], exact, rtol=1e-11, atol=rounding)
    slopes = jax.jit(jax.vmap(jax.grad(lambda v: special.matern(nu, v, jnp))))(jnp.asarray(t))
    np.testing.assert_allclose(slopes, exact, rtol=1e-11, atol=rounding)


@pytest.mark.parametrize("nu", [0.02, 0.3, 0.8, 1.0, 2.2, 19.9])
def test_matern_in_float32(nu):
    """Where there is no float64 nothing overflows on the way."""
    t = np.array([0.0, 1e-38, 1e-20, 1e-3, 0.5, 2.0, 3.0, 20.0, 60.0, 1e4, 3e38], dtype=np.float32)
    found = special.matern(nu, t, np)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, special.matern(nu, t.astype(np.float64), np), rtol=2e-4, atol=1e-30)


RADII = np.array([0.0, 1e-300, 1e-200, 1e-100, 1e-30, 1e-20, 1e-12, 1e-10, 1e-9, 1e-8, 1e-6, 1e-4, 1e-2, 0.1, 1.0])
RADII = np.concatenate([RADII, np.geomspace(3.0, 1e6, 40)])


@pytest.mark.parametrize("nu", ORDERS)
def test_matern_is_never_nan_and_falls_from_one_to_zero(nu):
    value, (nan, far) = special.matern(nu, RADII, np), special.matern(nu, np.array([np.nan, np.inf]), np)
    assert np.isnan(nan)
    assert far == 0.0
    assert np.all(np.isfinite(value))
    assert value[0] == 1.0
    assert value[-1] == 0.0
    assert np.all((value >= 0.0) & (value <= 1.0 + 1e-13))  # t^nu rounds by some 3e-14 at the least radii
    assert np.all(np.diff(value) <= 1e-13)


@pytest.mark.parametrize("nu", [0.05, 0.3, 0.8, 1.0, 1.3])
def test_matern_at_subnormal_arguments(nu):
    t = np.array([5e-324, 1e-310])
    for found, v in zip(special.matern(nu, t, np), t, strict=True):
        assert relative_error(found, matern_reference(nu, mp.mpf(float(v)))) < 1e-12


def test_bessel_k0(xp):
    t = np.array([1e-300, 1e-5, 0.3, 2.0, 50.0])
    found = special.bessel_k0(xp(t), space(xp))
    assert xp.owns(found)
    for value, v in zip(xp.host(found), t, strict=True):
        assert relative_error(value, mp.besselk(0, mp.mpf(float(v)))) < 1e-14
    assert xp.host(special.bessel_k0(xp([0.0]), space(xp)))[0] == np.inf


# -- J, and the laws of spheres, stable variables and harmonics --------------------------------------------------------

SPHERES = np.array([0.0, 1e-300, 1e-8, 0.1, 1.0, 3.0, 4.999999, 5.0, 5.000001, 8.0, 9.9, 12.0, 40.0, 1e3, 1e6])


@pytest.mark.parametrize("order", [0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 5.5, 8.0, 16.0])
def test_sphere_mean_cos_against_mpmath(order):
    found = special.sphere_mean_cos(order, SPHERES, np)
    for value, t in zip(found, SPHERES, strict=True):
        exact = float(sphere_reference(mp.mpf(order), mp.mpf(float(t))))
        assert abs(value - exact) < 1e-14 + 1e-12 * abs(exact)


@pytest.mark.parametrize("order", [0.0, 1.0, 1.5])
def test_sphere_mean_cos_is_differentiable(order, jax):
    """The derivative is ``-t L_(order+1)(t) / (2 order + 2)`` (DLMF 10.6.6)."""
    jnp = library("jax").module

    t = np.array([0.0, 0.3, 4.0, 6.0, 30.0])
    slopes = jax.vmap(jax.grad(lambda v: special.sphere_mean_cos(order, v, jnp)))(jnp.asarray(t))
    exact = -t * special.sphere_mean_cos(order + 1.0, t, np) / (2.0 * order + 2.0)
    np.testing.assert_allclose(slopes, exact, atol=1e-13)


@pytest.mark.parametrize("exponent", [0.02, 0.5, 1.0, 1.5, 1.99, 1.999999999])
def test_stable_root_is_kanters_formula(exponent):
    u = np.array([1e-15, 0.01, 0.3, 0.5, 0.9, 1.0 - 2.0**-53])
    v = np.array([0.3, 1e-10, 0.9, 0.5, 1.0 - 2.0**-53, 0.7])
    a = mp.mpf(exponent) / 2
    for found, *point in zip(quantiles.stable_root(exponent, u, v), u, v, strict=True):
        angle, e = mp.pi * mp.mpf(float(point[0])), -mp.log1p(-mp.mpf(float(point[1])))
        s = mp.sin(a * angle) / mp.sin(angle) ** (1 / a) * (mp.sin((1 - a) * angle) / e) ** ((1 - a) / a)
        exact = min(mp.sqrt(2 * s), mp.exp(700))
        assert relative_error(found, exact) < 1e-13 / exponent


@pytest.mark.parametrize("concentration", [0.0, 1e-12, 0.3, 2.0, 400.0, 3000.0, 6e4])
def test_harmonic_weights_against_mpmath(concentration):
    weights = quantiles.harmonic_weights(concentration)
    n = np.arange(len(weights))
    assert 2.0 * math.fsum(weights) - weights[0] == pytest.approx(1.0, abs=1e-13)
    assert 2.0 * math.fsum(n * n * weights) == pytest.approx(concentration, rel=1e-12)  # the variance
    if concentration <= 3000.0:  # mpmath goes no further
        for i in {0, 1, len(weights) // 2, len(weights) - 1} & set(range(len(weights))):
            assert relative_error(weights[i], mp.exp(-concentration) * mp.besseli(i, concentration)) < 1e-12


@pytest.mark.parametrize("a", [1e-9, 0.3, 1.0, 7.5, 20.0, 40.0, 500.0, 1e6, 1e12])
@pytest.mark.parametrize("halves", [1, 2, 31])
def test_log_gamma_ratio(a, halves):
    exact = mp.loggamma(mp.mpf(a) + mp.mpf(halves) / 2) - mp.loggamma(mp.mpf(a))
    assert abs(special.log_gamma_ratio(a, halves) - exact) < 3e-14 * max(1.0, abs(exact))


def test_polynomials_leave_the_values_they_go_through():
    nodes, values = np.array([0.0, 1.0, 3.0]), np.array([[1.0], [2.0], [10.0]])
    found = quantiles._interpolated(nodes, values)
    np.testing.assert_array_equal(values, [[1.0], [2.0], [10.0]])
    np.testing.assert_allclose(np.polynomial.polynomial.polyval(nodes, found), values.T)


# -- cosine integrals --------------------------------------------------------------------------------------------------

Z = np.concatenate([np.linspace(2.0, 8.0, 121), np.geomspace(8.0, 1e6, 200)])


def test_the_cosine_integral_of_operations_is_scipys():
    assert np.max(Z * np.abs(special._cosine_integral(Z, np) - scipy.special.sici(Z)[1])) < 2e-14
    np.testing.assert_array_equal(special.cosine_integral_of(np)(Z), scipy.special.sici(Z)[1])
    with mp.workdps(30):
        exact = [float(mp.ci(mp.mpf(float(z)))) for z in Z[::10]]
    np.testing.assert_allclose(special._cosine_integral(Z[::10], np), exact, rtol=0, atol=4e-15)
    with np.errstate(all="raise"):
        np.testing.assert_array_equal(special._cosine_integral(np.array([math.inf, math.nan]), np), [0.0, math.nan])


def test_an_infinite_lag_and_none_at_all(torch):
    far = torch.tensor([math.inf, 1e300, 0.0], dtype=torch.float64, requires_grad=True)
    found = rfrope.kernel("log_uniform").phi(far)
    assert found.tolist() == pytest.approx([0.0, 0.0, 1.0], abs=1e-290)
    (slope,) = torch.autograd.grad(found.sum(), far)
    assert slope.tolist()[1:] == pytest.approx([0.0, 0.0], abs=1e-290)


def test_log_uniform_over_many_octaves_beyond_float32():
    """``-Ci(low t) / ln(high / low)`` where the other end is far: ``Ci(z) = gamma + ln z`` near 0."""
    made = rfrope.kernel("log_uniform", low=1e-60, high=1.0)
    expected = -(np.euler_gamma + math.log(1e-10)) / math.log(1e60)
    assert float(made.phi(1e50)) == pytest.approx(expected, rel=1e-12)
