"""Scores of two positions: the share that no function of the lag explains, and FoPE's closed forms."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import library
from owned import check_owned

import rfrope
from rfrope.analysis import fourier_two_point, mean_kernel, toeplitz_defect

AT = np.arange(9)
OMEGA = np.array([1.0, 0.37, 0.11])


def waves(positions, omega=OMEGA):
    u = np.asarray(positions, float)[:, None] * omega
    return np.cos(u), np.sin(u)


@pytest.mark.parametrize("shape", [(4, 6), (6, 4), (1, 5), (5, 1), (3, 4, 5)], ids=str)
def test_the_nearest_toeplitz_matrix(xp, shape):
    values = np.random.default_rng(0).standard_normal(shape)
    found = toeplitz_defect(xp(values))
    nearest = np.zeros(shape)
    for lag in range(1 - shape[-2], shape[-1]):
        at = np.eye(*shape[-2:], k=lag).astype(bool)
        nearest[..., at] = np.mean(values[..., at], axis=-1, keepdims=True)
    wanted = np.sum((values - nearest) ** 2, (-1, -2)) / np.sum(values**2, (-1, -2))
    check_owned(xp, found, wanted, atol=1e-13)


def test_the_defect_of_values_whose_squares_vanish_or_overflow():
    values = np.random.default_rng(0).standard_normal((2, 4, 5))
    wanted = toeplitz_defect(values)
    np.testing.assert_allclose(toeplitz_defect(values * 1e-170), wanted, rtol=1e-12)
    jax = pytest.importorskip("jax")
    with jax.enable_x64(False):
        for size in (1e-30, 1e30):
            found = toeplitz_defect(jax.numpy.asarray(values * size, dtype=jax.numpy.float32))
            np.testing.assert_allclose(np.asarray(found), wanted, rtol=1e-5)


@pytest.mark.parametrize("n_padded", [0, 2])
def test_fope_on_every_library(xp, n_padded):
    """Features turned as published, ``(a cos - b sin, b cos + a sin)`` with sums of waves, give these scores."""
    rng = np.random.default_rng(3)
    cosine, sine = np.eye(3) + 0.3 * rng.standard_normal((2, 2, 3, 3))  # two heads
    keys = np.arange(4.0, 8.0)
    found = fourier_two_point(xp(AT), xp(keys), xp(OMEGA), xp(cosine), xp(sine), n_padded=n_padded)
    d = 3 + n_padded

    def turn(x, positions):
        c, s = waves(positions)
        c, s = c @ cosine, s @ sine
        c, s = (np.pad(one, ((0, 0), (0, 0), (0, n_padded)), constant_values=1.0) for one in (c, s))
        a, b = x[:d], x[d:]
        return np.concatenate([a * c - b * s, b * c + a * s], axis=-1)

    x = rng.standard_normal(d)
    x = np.concatenate([np.cos(x), np.sin(x)])  # each block has norm 1
    scores = turn(x, AT) @ np.swapaxes(turn(x, keys), -1, -2) / d
    check_owned(xp, found, scores, atol=1e-13)


def test_rotations_have_no_defect():
    """Nor has FoPE without other waves, which is RoPE."""
    q, k = np.random.default_rng(1).standard_normal((2, 1, 10))
    scores = rfrope.scores(np.tile(q, (9, 1)), np.tile(k, (9, 1)), AT, AT, np.linspace(-1.0, 1.0, 5))
    found = fourier_two_point(AT, AT, OMEGA, np.eye(3), np.eye(3))
    np.testing.assert_allclose(found, mean_kernel(AT - AT[:, None], OMEGA), atol=1e-14)
    assert max(toeplitz_defect(scores), toeplitz_defect(found)) < 1e-28
    assert toeplitz_defect(np.zeros((3, 3))) == 0.0
    assert toeplitz_defect(np.diag([1.0, -1.0])) == 1.0


def test_gradients():
    torch, rng = library("torch").module, np.random.default_rng(6)
    values, omega, *coefficients = (
        torch.tensor(v, requires_grad=True)
        for v in (rng.standard_normal((3, 4)), OMEGA, *rng.standard_normal((2, 3, 4)))
    )
    assert torch.autograd.gradcheck(toeplitz_defect, values)
    plain = torch.ones((3, 3), requires_grad=True)
    toeplitz_defect(plain).backward()
    assert torch.count_nonzero(plain.grad) == 0
    at, keys = torch.arange(3), torch.arange(2)
    assert torch.autograd.gradcheck(lambda w, c, s: fourier_two_point(at, keys, w, c, s), (omega, *coefficients))


def test_how_far_fope_is_from_a_kernel_over_long_texts():
    """The closed form of the defect, at its published spread of 0.3 over the root of n; it is not small."""
    rng = np.random.default_rng(4)
    omega = rfrope.geometric(32)[:20]
    cosine, sine = np.eye(20) + 0.3 / np.sqrt(20) * rng.standard_normal((2, 20, 20))
    a, b = cosine @ cosine.T, sine @ sine.T
    limit = 1.0 - np.sum((np.diag(a) + np.diag(b)) ** 2) / (2 * np.sum(a**2) + 2 * np.sum(b**2))
    at = np.arange(3000)
    found = toeplitz_defect(fourier_two_point(at, at, omega, cosine, sine))
    assert abs(found - limit) < 0.1 * limit
    assert 0.1 < limit < 0.3
