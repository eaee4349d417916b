"""Running sums of rates: exact sums, every split of a text, gradients, and the kernel that independent rates have."""

import itertools
import math
import subprocess
import sys

import mpmath
import numpy as np
import pytest
from campaign import campaign
from conftest import library

import rfrope
from rfrope.rotation import cumulative_phases

RNG = np.random.default_rng(31)
RATES = RNG.normal(size=(2, 9, 3)) * 3.0


def distance(a, b):
    """Angle between angles."""
    return np.abs(np.angle(np.exp(1j * (np.asarray(a, np.float64) - np.asarray(b, np.float64)))))


def exact(numerators, denominator):
    """Reduce exact sums of ``numerator / denominator`` to [-pi, pi]."""
    with mpmath.workdps(60):
        turn = 2 * mpmath.pi
        sums = [mpmath.mpf(int(k)) / denominator for k in numerators]
        return np.array([float(s - turn * mpmath.nint(s / turn)) for s in sums])


def test_sums_on_every_library(xp):
    phases, last = cumulative_phases(xp(RATES))
    assert xp.owns(phases)
    assert xp.owns(last)
    np.testing.assert_allclose(distance(xp.host(phases), np.cumsum(RATES, axis=1)), 0.0, atol=1e-14)
    assert np.max(np.abs(xp.host(phases))) <= math.pi
    by_token = cumulative_phases(xp(np.moveaxis(RATES, 1, 0)), axis=0)
    np.testing.assert_array_equal(np.moveaxis(xp.host(by_token[0]), 0, 1), xp.host(phases))
    np.testing.assert_array_equal(xp.host(by_token[1]), xp.host(last))
    start = np.array([0.5, -4.0, 1e6])
    moved = xp.host(cumulative_phases(xp(RATES), offset=xp(start))[0])
    np.testing.assert_allclose(distance(moved, np.cumsum(RATES, axis=1) + start), 0.0, atol=3e-10)


@pytest.mark.parametrize("cuts", [(1, 2, 3, 4, 5, 6, 7, 8), (4,), (0, 8), (3, 3, 9)], ids=str)
def test_any_split_of_a_text_gives_the_same_bits(xp, cuts):
    whole, last = cumulative_phases(xp(RATES), offset=xp([0.1, 0.2, 0.3]))
    found, kept = [], xp([0.1, 0.2, 0.3])
    for start, end in itertools.pairwise((0, *cuts, 9)):
        part, kept = cumulative_phases(xp(RATES[:, start:end]), offset=kept)
        found.append(xp.host(part))
    np.testing.assert_array_equal(np.concatenate(found, axis=1), xp.host(whole))
    np.testing.assert_array_equal(xp.host(kept), xp.host(last))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_a_million_steps_from_16_bits_are_exact(dtype, torch):
    """Rates that 8 bits hold have sums that integers hold; a plain sum in float32 is off by radians."""
    whole = np.random.default_rng(5).integers(-100, 129, size=(2**20, 2))  # of mean 14 / 32
    rates = torch.tensor(whole / 32.0, dtype=getattr(torch, dtype))
    assert np.array_equal(rates.double().numpy() * 32.0, whole)
    at = np.unique(np.append(np.random.default_rng(6).integers(0, 2**20, 200), [0, 1, 2**20 - 2, 2**20 - 1]))
    wanted = exact(np.cumsum(whole, axis=0)[at, 1], 32)
    phases, last = cumulative_phases(rates)
    np.testing.assert_allclose(distance(phases[at, 1], wanted), 0.0, atol=7e-16)
    np.testing.assert_array_equal(cumulative_phases(rates[:1] * 0, offset=last)[0][0], phases[-1])


def test_rates_are_exact_up_to_2_to_the_50():
    whole = np.random.default_rng(50).integers(-(2**53), 2**53, size=(64, 4))
    wanted = np.stack([exact(np.cumsum(one.astype(object)), 8) for one in whole.T], axis=1)
    phases, _ = cumulative_phases(whole / 8.0)
    np.testing.assert_allclose(distance(phases, wanted), 0.0, atol=7e-16)


def test_one_token_is_its_rate_to_the_last_bit():
    rates = np.array([[1e-30, -1e-9, 0.1, 3.0, -3.14159, 2.0**-60, 6.0, 1e5]])
    found = cumulative_phases(rates)[0][0]
    wanted = exact(np.array([int(mpmath.mpf(float(r)) * 2**150) for r in rates[0]], object), 2**150)
    np.testing.assert_allclose(found, wanted, atol=5e-16, rtol=0)


@campaign
def test_without_64_bits():
    """Run in a process of its own: JAX has 64 bits here, once and for all."""
    library("jax")
    code = """
import jax, jax.numpy as jnp, numpy as np
from rfrope.rotation import cumulative_phases
whole = np.random.default_rng(5).integers(-100, 129, size=(2**20, 2))
rates = jnp.asarray(whole / 32.0, dtype=jnp.bfloat16)
compiled = jax.jit(lambda rates, offset=None: cumulative_phases(rates, offset=offset))
phases, last = compiled(rates)
assert (phases.dtype, last.dtype, last.shape) == (jnp.float32, jnp.int32, (5, 2)), (phases.dtype, last.dtype)
exact = np.cumsum(whole, axis=0) / 32.0
error = np.abs(np.angle(np.exp(1j * (np.asarray(phases, np.float64) - exact))))
assert error.max() < 5e-7, error.max()
first, kept = cumulative_phases(rates[:12345])
second, end = compiled(rates[12345:], kept)
assert np.array_equal(np.concatenate([first, second]), phases) and np.array_equal(end, last)
slope = jax.jit(jax.grad(lambda r: cumulative_phases(r)[0][:, 1].sum()))(rates[:7].astype(jnp.float32))
assert np.array_equal(slope[:, 1], np.arange(7, 0, -1)) and not slope[:, 0].any()
started = compiled(rates[:3], jnp.asarray([-2.5, 100.0]))[0]
assert np.abs(np.angle(np.exp(1j * (np.asarray(started, float) - exact[:3] - [-2.5, 100.0])))).max() < 1e-6
huge = jnp.full((30, 1), 3e37)  # whose plain sum is infinite
assert np.all(np.abs(np.asarray(compiled(huge, jnp.asarray([1.0]))[0])) <= 3.2)
slope = jax.jit(jax.grad(lambda r: cumulative_phases(r)[0].sum()))(huge)
assert np.array_equal(np.asarray(slope)[:, 0], np.arange(30.0, 0.0, -1.0))
try:
    cumulative_phases(jnp.zeros((2**20 + 1, 1)))
except ValueError as error:
    assert "2**20" in str(error)
else:
    raise AssertionError
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_gradients_are_those_of_a_sum(torch):
    rates = torch.tensor(RATES, requires_grad=True)
    offset = torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64, requires_grad=True)
    weights = torch.tensor(RNG.normal(size=RATES.shape))
    (cumulative_phases(rates, offset=offset)[0] * weights).sum().backward()
    wanted = np.flip(np.cumsum(np.flip(weights.numpy(), 1), axis=1), 1)
    np.testing.assert_allclose(rates.grad, wanted, atol=1e-13)
    np.testing.assert_allclose(offset.grad, weights.numpy().sum((0, 1)), atol=1e-13)
    assert torch.autograd.gradgradcheck(
        lambda r: cumulative_phases(r)[0].sin(), rates.detach()[:1, :3].requires_grad_()
    )
    jax = library("jax")
    import jax as transforms

    def loss(r, o):
        return jax.module.sum(cumulative_phases(r, offset=o)[0] * jax(weights.numpy()))

    slopes = transforms.jit(transforms.grad(loss, argnums=(0, 1)))(jax(RATES), jax([0.1, 0.2, 0.3]))
    np.testing.assert_allclose(slopes[0], wanted, atol=1e-13)
    np.testing.assert_allclose(slopes[1], weights.numpy().sum((0, 1)), atol=1e-13)
    turned = transforms.vmap(lambda r: cumulative_phases(r)[0])(jax(RATES))
    np.testing.assert_array_equal(turned, cumulative_phases(RATES)[0])


def test_heads_have_their_own_rates_and_a_decoded_token_scores_as_in_the_text():
    """Mamba-3's rates, ``dt pi tanh(a)``: dt for each head, a for each block, over half of the features."""
    rng = np.random.default_rng(3)
    dt, a = rng.uniform(0.0, 1.0, (7, 4)), rng.normal(size=(7, 1, 8))
    rates = dt[..., None] * math.pi * np.tanh(a)
    x = rng.normal(size=(7, 4, 32))
    phases, _ = cumulative_phases(rates, axis=0)
    whole = rfrope.rotate_by_phases(x, phases)
    np.testing.assert_array_equal(whole[..., 16:], x[..., 16:])
    _, kept = cumulative_phases(rates[:6], axis=0)
    last = rfrope.rotate_by_phases(x[6:], cumulative_phases(rates[6:], offset=kept, axis=0)[0])
    np.testing.assert_array_equal(last, whole[6:])
    between = np.sum(rates[3:7], axis=0)  # after token 2, up to token 6
    score = np.sum(whole[6] * whole[2], axis=-1)
    wanted = rfrope.rotate_by_phases(x[6], between)
    np.testing.assert_allclose(score, np.sum(wanted * x[2], axis=-1), atol=1e-12)
