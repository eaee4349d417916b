"""Phi and the transport as functions of parameters: the values of the kernels, and derivatives against differences."""

import dataclasses
import math

import numpy as np
import pytest
from scipy import special

import rfrope
from rfrope import kernels
from rfrope.designs import points
from rfrope.kernels import evaluate_phi, transport_points

CASES = {  # text, parameters that Phi may be learned by
    "gaussian(scale=3)": ("scale",),
    "gaussian(scale=(3, 5), ndim=2)": ("scale",),
    "cauchy(scale=3, ndim=2)": ("scale",),
    "exponential(scale=3)": ("scale",),
    "matern(nu=1.3, scale=3)": ("nu", "scale"),
    "matern(nu=0.3, scale=3, ndim=2)": ("nu", "scale"),
    "rational_quadratic(alpha=0.7, scale=3)": ("alpha", "scale"),
    "power_exponential(exponent=1.3, scale=3, ndim=2)": ("exponent", "scale"),
    "sinc(bandwidth=0.4, ndim=2)": ("bandwidth",),
    "ball(bandwidth=0.4, ndim=3)": ("bandwidth",),
    "shell(radius=0.4, ndim=2)": ("radius",),
    "log_uniform(low=0.05, high=0.5)": ("low", "high"),
    "periodic(period=7, scale=0.7)": ("period", "scale"),
    "spectral_mixture(weights=(0.75, 0.25), means=(0.1, 0.2), scales=(0.4, 0.2))": ("weights", "means", "scales"),
}
FIXED = {"nu", "alpha", "weights"}
PAIRS = [(text, name) for text, names in CASES.items() for name in names]


def lags_of(law):
    return np.random.default_rng(0).uniform(0.5, 4.0, (5, law.ndim) if law.ndim > 1 else 5)


def with_value(law, name, value):
    return dataclasses.replace(law, **{name: tuple(value) if np.ndim(value) else float(value)})


def difference(function, value):
    """Derivative of an array's sum by each number of a parameter, by differences of fourth order."""
    value = np.asarray(value, dtype=np.float64)
    step = 1e-3 * float(np.max(np.abs(value)))
    found = np.zeros(value.size)
    for place in range(value.size):
        unit = step * (np.arange(value.size) == place).reshape(value.shape)
        found[place] = (
            8.0 * np.sum(function(value + unit) - function(value - unit))
            - np.sum(function(value + 2 * unit) - function(value - 2 * unit))
        ) / (12.0 * step)
    return found.reshape(value.shape)


@pytest.mark.parametrize(("text", "name"), PAIRS)
def test_phi_is_that_of_the_kernel_and_its_gradient_that_of_differences(text, name):
    torch = pytest.importorskip("torch")
    law = kernels.parse(text)
    lags, value = lags_of(law), np.asarray(getattr(law, name))
    tensor = torch.tensor(value, dtype=torch.float64, requires_grad=True)
    found = evaluate_phi(torch.tensor(lags), law, **{name: tensor})
    np.testing.assert_allclose(found.detach().numpy(), law(lags), atol=2e-13)
    found.sum().backward()
    if name == "weights":  # which must sum to 1 in a kernel
        expected = [
            np.sum(kernels.parse(f"spectral_mixture(weights=(1,), means=({m},), scales=({s},))")(lags))
            for m, s in ((0.1, 0.4), (0.2, 0.2))
        ]
    else:
        expected = difference(lambda v: with_value(law, name, v)(lags), value)
    np.testing.assert_allclose(tensor.grad.numpy(), expected, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize(("text", "name"), [pair for pair in PAIRS if pair[1] not in FIXED])
def test_the_transport_is_that_of_the_kernel_and_its_gradient_that_of_differences(text, name):
    torch = pytest.importorskip("torch")
    law = kernels.parse(text)
    if law.name == "periodic" and name == "scale":
        return
    u, value = points(law, 8, rng=0), np.asarray(getattr(law, name))
    tensor = torch.tensor(value, dtype=torch.float64, requires_grad=True)
    found = transport_points(u, law, **{name: tensor})
    np.testing.assert_allclose(found.detach().numpy(), law.transport(u), rtol=1e-11, atol=1e-14)
    weights = np.random.default_rng(1).normal(size=found.shape)
    (found * torch.tensor(weights)).sum().backward()
    expected = difference(lambda v: weights * with_value(law, name, v).transport(u), value)
    np.testing.assert_allclose(tensor.grad.numpy(), expected, rtol=1e-6, atol=1e-8)


def test_the_transport_of_a_power_exponential_kernel_goes_on_to_its_end():
    """With exponent 2 it is Gaussian."""
    law = kernels.parse("power_exponential(exponent=2, scale=3)")
    u = points(law, 8, rng=0)
    found = transport_points(u, law, exponent=np.asarray(2.0))
    np.testing.assert_allclose(found, law.transport(u), rtol=1e-12)


@pytest.mark.parametrize("nu", [0.05, 0.5, 1.0, 2.5, 12.0, 31.0])
def test_matern_by_its_integral_is_matern_by_bessels_function(nu):
    t = np.array([0.0, 1e-9, 1e-4, 0.1, 1.0, 3.0, 9.0])
    s = math.sqrt(2.0 * nu) * t[3:]
    expected = 2.0 ** (1.0 - nu) / special.gamma(nu) * s**nu * special.kv(nu, s)
    found = evaluate_phi(t, "matern", nu=np.asarray(nu))
    np.testing.assert_allclose(found[3:], expected, atol=1e-12)
    np.testing.assert_allclose(found, kernels.parse(f"matern(nu={nu})")(t), atol=2e-13)


def test_the_derivative_of_a_mean_over_the_law_is_that_of_phi():
    """The path of each frequency: d/dscale of the mean cosine of many points is near dPhi/dscale."""
    torch = pytest.importorskip("torch")
    u, lag = points("gaussian", 4096, design="sobol", rng=0), 20.0
    scale = torch.tensor(32.0, dtype=torch.float64, requires_grad=True)
    torch.cos(lag * transport_points(u, "gaussian", scale=scale)).mean().backward()
    assert float(scale.grad) == pytest.approx(lag**2 / 32.0**3 * math.exp(-0.5 * (lag / 32.0) ** 2), rel=1e-3)


@pytest.mark.parametrize(("text", "name"), [("matern(nu=1.3, scale=3)", "nu"), ("gaussian(scale=3)", "scale")])
def test_jax_traces_and_differentiates(text, name):
    jax = pytest.importorskip("jax")
    law = kernels.parse(text)
    lags = np.array([0.0, 1.0, 4.0])
    with jax.enable_x64(True):
        value = jax.numpy.asarray(getattr(law, name))
        found = jax.jit(jax.grad(lambda v: evaluate_phi(jax.numpy.asarray(lags), law, **{name: v}).sum()))(value)
        expected = difference(lambda v: with_value(law, name, v)(lags), float(value))
        assert float(found) == pytest.approx(float(expected), rel=1e-8)
        if name == "scale":
            u = points(law, 4, rng=0)
            slope = jax.jit(jax.grad(lambda v: transport_points(u, law, scale=v).sum()))(value)
            assert float(slope) == pytest.approx(-float(np.sum(law.transport(u))) / 3.0, rel=1e-12)


def test_every_library(xp):
    for text in ("matern(nu=1.3, scale=3)", "gaussian(scale=3)"):
        law = kernels.parse(text)
        found = evaluate_phi(xp([1.0, 4.0]), law, scale=xp(3.0))
        np.testing.assert_allclose(xp.host(found), law([1.0, 4.0]), rtol=1e-5)
        u = points(law, 4, rng=0)
        np.testing.assert_allclose(xp.host(transport_points(u, law, scale=xp(3.0))), law.transport(u), rtol=1e-5)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: transport_points([0.3], "matern", nu=np.asarray(1.5)), "nu of matern has no transport .* 'scale'"),
        (lambda: transport_points([[0.3, 0.4]], "rational_quadratic", alpha=np.asarray(1.0)), "alpha of rational"),
        (lambda: transport_points([0.3], "periodic", scale=np.asarray(1.0)), "scale of periodic"),
        (lambda: transport_points([0.3], "gaussian(ndim=2)", scale=np.asarray(1.0)), "points has shape"),
        (lambda: transport_points([1.0], "gaussian", scale=np.asarray(1.0)), "inside the unit cube"),
        (lambda: evaluate_phi([1.0], "gaussian * cauchy", scale=np.asarray(1.0)), "not one family"),
        (lambda: evaluate_phi([1.0], "gaussian", nu=np.asarray(1.0)), "no parameter 'nu'; expected 'scale'"),
        (lambda: evaluate_phi([[1.0, 2.0]], "gaussian(ndim=2)", scale=np.ones(3)), "scale has shape \\(3,\\)"),
        (
            lambda: transport_points([[0.3, 0.4]], "gaussian(ndim=2)", scale=np.ones((1, 2))),
            "scale has shape \\(1, 2\\)",
        ),
    ],
)
def test_what_cannot_be_is_refused(call, said):
    with pytest.raises(ValueError, match=said):
        call()


def test_a_scale_is_learned_from_a_curve():
    torch = pytest.importorskip("torch")
    lags = torch.arange(64.0, dtype=torch.float64)
    wanted = torch.tensor(rfrope.kernel("matern", nu=1.5, scale=12.0)(lags.numpy()))
    values = {
        name: torch.tensor(v, dtype=torch.float64, requires_grad=True) for name, v in (("nu", 0.8), ("scale", 6.0))
    }
    step = torch.optim.LBFGS(values.values(), max_iter=100, line_search_fn="strong_wolfe")

    def loss():
        step.zero_grad()
        found = ((evaluate_phi(lags, "matern", **values) - wanted) ** 2).sum()
        found.backward()
        return found

    step.step(loss)
    assert float(values["nu"].detach()) == pytest.approx(1.5, abs=0.02)
    assert float(values["scale"].detach()) == pytest.approx(12.0, abs=0.1)


def test_without_values_both_are_the_kernels_own():
    law = kernels.parse("matern(nu=1.3, scale=3)")
    u = points(law, 4, rng=0)
    assert transport_points(u, law).tolist() == law.transport(u).tolist()
    assert evaluate_phi([0.0, 2.0], law).tolist() == law([0.0, 2.0]).tolist()
