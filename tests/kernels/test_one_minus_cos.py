"""How far cosines fall at small lags, against mpmath; and what is computed from that."""

import dataclasses

import mpmath as mp
import numpy as np
import problems
import pytest
from campaign import campaign, one_of
from conftest import library
from problems import KERNELS, phi_reference

from rfrope import kernels, moments
from rfrope.kernels.families import Gaussian, Matern

DIGITS = 90
LAGS = (1e-12, 1e-7, 1e-3, 0.05, 1.0, 20.0)
FAMILIES = one_of([p for p in KERNELS if p.family != "matern"], lambda p: (p.family, p.kernel.ndim))
COMPOSED = {
    "gaussian(scale=7) * cauchy(scale=20)": lambda x: mp.exp(-((x / 7) ** 2) / 2) / (1 + (x / 20) ** 2),
    "mixture([0.25, 0.75], [cauchy(scale=7), exponential])": lambda x: 0.25 / (1 + (x / 7) ** 2) + 0.75 * mp.exp(-x),
    "(cauchy(scale=2)).rescale(3.5)": lambda x: 1 / (1 + (x / 7) ** 2),
    "(cauchy(scale=2)).warp([[0.25]])": lambda x: 1 / (1 + (x / 8) ** 2),
    "constant()": lambda x: mp.mpf(1),
}
ORDERS = (0.02, 0.49, 0.5, 0.7, 0.999, 1.0, 1.001, 1.5, 1.7, 2.0, 2.50001, 3.3, 7.1, 10.5, 19.4, 20.5, 5e4)


def variances(phi, lag):
    """Those of cos u and sin u."""
    with mp.workdps(DIGITS):
        once, twice = phi(mp.mpf(lag)), phi(2 * mp.mpf(lag))
        return float((1 + twice) / 2 - once * once), float((1 - twice) / 2)


def found(kernel, lag):
    """The same, by scores of content whose sines, or cosines, vanish."""
    return tuple(float(moments.score_variance([1.0, 0.0], k, lag, kernel)) for k in ([1.0, 0.0], [0.0, 1.0]))


@pytest.mark.parametrize("problem", FAMILIES, ids=str)
def test_variances_of_every_family_keep_their_digits_near_lag_0(problem, monkeypatch):
    monkeypatch.setattr(problems, "DIGITS", DIGITS)
    direction = 1.0 / (1.0 + np.arange(problem.kernel.ndim))
    for size in LAGS[:4]:
        lag = size * direction if problem.kernel.ndim > 1 else size
        cosine, sine = variances(lambda factor, lag=lag: phi_reference(problem, float(factor) * lag), 1)
        of_cosine, of_sine = found(problem.kernel, lag)
        assert of_sine == pytest.approx(sine, rel=1e-12, abs=1e-300), size
        one_wave = problem.family == "shell" and problem.kernel.ndim == 1  # a variance of 0
        assert of_cosine == pytest.approx(cosine, rel=1e-12, abs=1e-14 * sine if one_wave else 1e-300), size


@pytest.mark.parametrize("text", COMPOSED)
def test_variances_of_composed_kernels_keep_their_digits(text):
    for lag in LAGS:
        assert found(kernels.parse(text), lag) == pytest.approx(variances(COMPOSED[text], lag), rel=1e-12, abs=1e-300)


@campaign
@pytest.mark.parametrize("nu", ORDERS)
def test_variances_of_matern_kernels_of_any_order_keep_their_digits(nu):
    def phi(x):
        t = mp.sqrt(2 * mp.mpf(nu)) * x / 7
        return 2 ** (1 - mp.mpf(nu)) / mp.gamma(nu) * t**nu * mp.besselk(nu, t)

    for lag in LAGS:
        assert found(Matern(nu, 7.0), lag) == pytest.approx(variances(phi, lag), rel=1e-12)


def test_the_relative_error_keeps_its_digits_near_lag_0():
    """At a small lag x the cosine's standard deviation is ``x^2 / (sqrt(2) scale^2)``."""
    lags = np.array([1e-40, 1e-9, 1e-3])
    error = moments.relative_error([1.0, 0.0], [1.0, 0.0], lags, "gaussian(scale=32)")
    np.testing.assert_allclose(error, lags**2 / np.sqrt(2.0) / 32.0**2, rtol=1e-8)


def test_a_family_of_ones_own_that_changes_phi_alone_has_the_variance_of_that():
    @dataclasses.dataclass(frozen=True, repr=False)
    class Narrow(Gaussian):
        def _phi(self, lags, xp):
            return super()._phi(2.0 * lags, xp)

    assert found(Narrow(4.0), 3.0) == pytest.approx(found(Gaussian(2.0), 3.0), rel=1e-12)
    assert found(Narrow(4.0).rescale(2.0), 6.0) == pytest.approx(found(Gaussian(2.0), 3.0), rel=1e-12)


@pytest.mark.parametrize("nu", [0.02, 0.2, 0.3, 0.49, 0.51, 0.6, 0.7, 0.9, 0.999, 1.0])
@pytest.mark.parametrize("name", ["torch", "jax"])
def test_slopes_of_matern_kernels_where_phi_rounds_to_1(nu, name):
    lags = [1e-100, 1e-40, 1e-20, 1e-10, 1e-3, 0.3, 2.0, 9.0]
    kernel = Matern(nu, 3.0)
    x = library(name)(lags)
    if name == "torch":
        kernel.phi(x.requires_grad_()).sum().backward()
        slopes = x.grad.numpy()
    else:
        import jax

        slopes = jax.vmap(jax.grad(kernel.phi))(x)
    with mp.workdps(50):
        factor = mp.sqrt(2 * mp.mpf(nu)) / 3
        scaled = [factor * mp.mpf(lag) for lag in lags]
        right = [float(-factor * 2 ** (1 - nu) / mp.gamma(nu) * t**nu * mp.besselk(nu - 1, t)) for t in scaled]
    np.testing.assert_allclose(slopes, right, rtol=1e-11)


def test_the_constant_kernel_has_a_slope(torch):
    x = torch.tensor([0.0, 3.0, np.inf], dtype=torch.float64, requires_grad=True)
    values = kernels.parse("constant").phi(x)
    assert values.tolist() == [1.0, 1.0, 1.0]
    assert torch.autograd.grad(values.sum(), x)[0].tolist() == [0.0, 0.0, 0.0]
