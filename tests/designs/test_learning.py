"""Frequencies as functions of a kernel's parameters: gradients against mpmath, and the Ropes of learned kernels."""

import math
from dataclasses import replace

import mpmath as mp
import numpy as np
import pytest
from conftest import library, rows
from scipy import special

import rfrope
from rfrope.designs import learned_kernel, points

pytestmark = pytest.mark.filterwarnings("ignore:frequencies of")


def z(u):
    return mp.sqrt(2) * mp.erfinv(2 * mp.mpf(u) - 1)


def sign(u):
    return 1 if u > 0.5 else -1


def student(nu, u):
    """Quantile of Student's t with 2 nu degrees of freedom, from its tail."""
    tail = lambda w: mp.betainc(nu, 0.5, 0, 2 * nu / (2 * nu + w * w), regularized=True) / 2  # noqa: E731
    start = abs(float(special.stdtrit(2 * float(nu), u)))
    return sign(u) * mp.findroot(lambda w: tail(w) - min(mp.mpf(u), 1 - mp.mpf(u)), start)


def gamma(shape, u):
    start = float(special.gammaincinv(float(shape), u))
    return mp.findroot(lambda x: mp.gammainc(shape, 0, x, regularized=True) - mp.mpf(u), start)


def stable(exponent, p, v):
    """Kanter's formula for the root of 2 S."""
    a = exponent / 2
    first = mp.sin(a * mp.pi * p) / mp.sin(mp.pi * p) ** (1 / a)
    return mp.sqrt(2 * first * (mp.sin((1 - a) * mp.pi * p) / -mp.log1p(-mp.mpf(v))) ** ((1 - a) / a))


# by text: the frequency at a point of the cube, from values in the order of `parameters`, and forms of these
LAWS = {
    "gaussian(scale=32)": lambda u, s: z(u[0]) / s,
    "cauchy(scale=24)": lambda u, s: sign(u[0]) * -mp.log(2 * min(u[0], 1 - mp.mpf(u[0]))) / s,
    "exponential(scale=48)": lambda u, s: mp.tan(mp.pi * (mp.mpf(u[0]) - 0.5)) / s,
    "matern(nu=1.7, scale=16)": lambda u, nu, s: student(nu, u[0]) / s,
    "matern(nu=0.4, scale=16)": lambda u, nu, s: student(nu, u[0]) / s,
    "rational_quadratic(alpha=1.5, scale=24)": lambda u, alpha, s: mp.sqrt(gamma(alpha, u[0]) / alpha) * z(u[1]) / s,
    "power_exponential(exponent=1.5, scale=32)": lambda u, e, s: stable(e, u[0], u[1]) * z(u[2]) / s,
    "sinc(bandwidth=0.1)": lambda u, w: w * (2 * mp.mpf(u[0]) - 1),
    "ball(bandwidth=0.1)": lambda u, w: w * (2 * mp.mpf(u[0]) - 1),
    "shell(radius=0.1)": lambda u, w: w * sign(u[0]),
    "log_uniform(low=0.05, high=0.5)": lambda u, low, high: (
        sign(u[0]) * low * (high / low) ** abs(2 * mp.mpf(u[0]) - 1)
    ),
    "periodic(period=96, scale=0.7)": lambda u, period: 2 * mp.pi / period * order(u[0]),
    "spectral_mixture(weights=(1,), means=(0.2,), scales=(0.04,))": lambda u, mean, scale: (
        sign(u[0]) * mean * scale + scale * z(u[1])
    ),
    "gaussian(scale=8) * cauchy(scale=24)": lambda u, s, t: (
        z(u[0]) / s + sign(u[1]) * -mp.log(2 * min(u[1], 1 - mp.mpf(u[1]))) / t
    ),
    "mixture([0.3, 0.7], [gaussian(scale=4), sinc(bandwidth=0.1)])": lambda u, s, w: (
        z(u[1]) / s if u[0] < 0.3 else w * (2 * mp.mpf(u[1]) - 1)
    ),
    "(gaussian(scale=4)).rescale(3)": lambda u, s: z(u[0]) / s / 3,
}


def order(u):
    """Whole number of a periodic kernel at a point."""
    return round(float(rfrope.kernels.parse("periodic(period=96, scale=0.7)").transport(u)) * 96 / (2 * math.pi))


def forms(name, x):
    if name.startswith("logit"):
        return 2 / (1 + mp.exp(-x))
    return x if name.startswith("relative") else mp.exp(x)


@pytest.mark.parametrize("text", LAWS)
def test_gradients_through_the_module_are_those_of_mpmath(text, torch):
    """Of ``sum_i a_i cos(3 omega_i) + b_i sin(3 omega_i)``, in which the module turns a vector of ones and zeros."""
    from rfrope.layers.torch import RotaryEmbedding

    rope = rfrope.design(text, head_dim=6, context=64, rng=5)
    module = RotaryEmbedding(rope, "kernel")
    x = torch.tensor([[[1.0, 1.0, 1.0, 0.0, 0.0, 0.0]]], dtype=torch.float64)
    weights = torch.tensor([0.3, -1.1, 0.7, 0.9, 0.2, -0.5], dtype=torch.float64)
    turned, _ = module(x, x, offset=3)
    names, parameters = zip(*module.named_parameters(), strict=True)
    slopes = [g.item() for g in torch.autograd.grad((turned[0, 0] * weights).sum(), parameters)]
    u = points(text, 3, design=rope.source.design, rng=5)

    def loss(*values):
        held = [forms(name, value) for name, value in zip(names, values, strict=True)]
        omega = [LAWS[text](row, *held) for row in u]
        a, b = weights[:3].tolist(), weights[3:].tolist()
        return mp.fsum(c * mp.cos(3 * w) + d * mp.sin(3 * w) for c, d, w in zip(a, b, omega, strict=True))

    with mp.workdps(40):
        at = [mp.mpf(parameter.item()) for parameter in parameters]
        for i, slope in enumerate(slopes):
            exact = mp.diff(lambda x, i=i: loss(*at[:i], x, *at[i + 1 :]), at[i])
            assert slope == pytest.approx(float(exact), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize(
    "options",
    rows("designs/learning.json", "frequencies_are_those_of_the_rope_and_move_with_each_parameter"),
    ids=lambda options: str(options["kernel"])[:24],
)
def test_frequencies_are_those_of_the_rope_and_move_with_each_parameter(options, torch):
    """By differences; and kernels of the parameters are those that were given."""
    axes = 2 if "2)" in str(options["kernel"]) or "axes" in options["kernel"] or "warp" in options["kernel"] else 1
    rope = rfrope.design(**options, head_dim=16, context=(64,) * axes, rng=0)
    law = learned_kernel(rope)
    for parameters in (law.parameters, dict(reversed(law.parameters.items()))):  # in any order, as JAX sorts them
        np.testing.assert_allclose(law.frequencies(parameters), rope.frequencies, rtol=1e-11, atol=1e-14)
    row = np.concatenate([one.reshape(*law.points.shape[:-2], -1) for one in law.parameters.values()], -1)
    omega, slopes = law.tabulate(row)
    np.testing.assert_allclose(omega, rope.frequencies, rtol=1e-11, atol=1e-14)
    assert (omega.flags.c_contiguous, slopes.shape) == (True, (*law.points.shape[:-1], axes, row.shape[-1]))
    texts, lags = rope.source.kernel, np.linspace(0.1, 9.0, 4 * axes).reshape((4, axes) if axes > 1 else 4)
    found = law.kernels(law.parameters)
    for one, text in zip(found, texts if isinstance(texts, tuple) else [texts] * len(found), strict=True):
        np.testing.assert_allclose(one.phi(lags), rfrope.kernels.parse(text).phi(lags), rtol=1e-12)
    tensors = [torch.tensor(value, requires_grad=True) for value in law.parameters.values()]
    call = lambda *values: law.frequencies(dict(zip(law.parameters, values, strict=True)))  # noqa: E731
    assert torch.autograd.gradcheck(call, tensors)


def test_a_geometric_ladder_has_a_base_to_learn_and_is_one_afterwards():
    law = learned_kernel(rfrope.Rope(rfrope.geometric(32)))
    assert law.kernels(law.parameters) == (rfrope.kernel("log_uniform", low=1e-4, high=1.0),)
    moved = law.frequencies(law.parameters | {"log_low": np.asarray(math.log(1e-6))})
    np.testing.assert_allclose(moved, rfrope.geometric(32, base=1e6), rtol=1e-12)
    again = learned_kernel(rfrope.Rope(moved, source={"kernel": "log_uniform(low=1e-06, high=1.0)"}))
    assert again.kernels(again.parameters)[0].low == pytest.approx(1e-6, rel=1e-12)
    crossed = law.kernels({"log_low": np.asarray(0.0), "log_high": np.asarray(-3.0)})
    assert crossed[0].high == 1.0


def test_jax_gets_the_same_frequencies_and_derivatives_from_a_dict_of_parameters(jax):
    lib, torch = library("jax"), library("torch").module

    law = learned_kernel(rfrope.design("matern(nu=1.7, scale=16)", head_dim=16, context=64, heads=2, rng=0))
    slopes = jax.jit(jax.grad(lambda held: (law.frequencies(held) ** 2).sum()))(
        {name: lib(value) for name, value in law.parameters.items()}
    )
    held = {name: torch.tensor(value, requires_grad=True) for name, value in law.parameters.items()}
    (law.frequencies(held) ** 2).sum().backward()
    for name, value in held.items():
        np.testing.assert_allclose(np.asarray(slopes[name]), value.grad.numpy(), rtol=1e-9)


def test_a_rope_that_was_changed_since_is_told_from_its_design():
    rope = rfrope.design("gaussian(scale=8)", head_dim=16, context=64, rng=0)
    with pytest.raises(ValueError, match="are not those of its kernel"):
        learned_kernel(replace(rope, frequencies=rope.frequencies * 1.001))
