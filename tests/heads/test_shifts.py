"""Learned shifts: scores against vectors that are really turned, kernels against draws."""

import math

import numpy as np
import pytest

import rfrope
from rfrope import heads

RNG = np.random.default_rng(0)
OMEGA = rfrope.geometric(64, base=10_000.0)


def turned_scores(q, k, lag, omega, q_angles, k_angles, pairing="half"):
    """Score of each pair at one lag, by learned rotations of both sides and then rotation by position."""
    q, k = (rfrope.rotate_by_phases(x, angles, pairing=pairing) for x, angles in ((q, q_angles), (k, k_angles)))
    q = rfrope.rotate(q, np.full_like(np.asarray(lag), 7), omega, pairing=pairing)
    return np.sum(q * rfrope.rotate(k, np.asarray(lag) + 7, omega, pairing=pairing), axis=-1)


# -- phase_shift -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("omega", "offset", "shape"),
    [
        ((4,), (), (4,)),
        ((4,), (2, 3), (2, 3, 4)),
        ((5, 4, 2), (5, 1, 2), (5, 1, 4)),
        ((6, 5, 4, 3), (5, 1, 3), (6, 5, 1, 4)),
    ],
)
def test_shapes_of_a_phase_shift(omega, offset, shape):
    w, lags = RNG.normal(size=omega), RNG.normal(size=offset)
    got = heads.phase_shift(lags, w)
    assert got.shape == shape
    wanted = -lags[..., None] * w if w.ndim == 1 else -(lags @ np.swapaxes(w, -1, -2))
    np.testing.assert_allclose(got, wanted, atol=1e-14)


@pytest.mark.parametrize("offset", [-1, 3, -2.25])
def test_a_shift_of_the_keys_moves_scores_to_the_offset(offset):
    q, k, at = RNG.normal(size=(12, 16)), RNG.normal(size=(12, 16)), np.arange(12)
    omega = rfrope.geometric(8)
    got = rfrope.scores(q, k, at, at, omega, shift=heads.phase_shift(offset, omega))
    moved = rfrope.scores(q, k, at.astype(float), at - float(offset), omega)
    np.testing.assert_allclose(got, moved, atol=1e-12)
    same = np.ones((40, 128))
    at = np.arange(40)
    peaks = np.argmax(rfrope.scores(same, same, at, at, OMEGA, shift=heads.phase_shift(offset, OMEGA)), axis=-1) - at
    inner = (at + offset >= 0) & (at + offset < 40)
    assert np.all(np.abs(peaks[inner] - offset) < 1.0)


# -- scores with shifts ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
@pytest.mark.parametrize("blocks", [4, 3])  # blocks of eight features
def test_scores_are_those_of_vectors_that_are_turned(blocks, pairing):
    q, k = RNG.normal(size=(2, 20, 8))
    q_angles, k_angles = RNG.uniform(-9.0, 9.0, size=(2, blocks))
    omega, lags = rfrope.geometric(blocks), np.array([1, -7, 1000])
    got = heads.shifted_scores(q[:, None], k[:, None], lags, omega, k_angles - q_angles, pairing=pairing)
    turned = [turned_scores(q, k, lag, omega, q_angles, k_angles, pairing) for lag in lags]
    np.testing.assert_allclose(got, np.stack(turned, axis=-1), atol=1e-12)


@pytest.mark.parametrize(
    ("q", "omega", "delta", "shift", "shape"),
    [
        ((8,), (4,), (5,), (), (5,)),
        ((8,), (4,), (5,), (3, 1, 4), (3, 5)),
        ((7, 1, 8), (4,), (5,), (4,), (7, 5)),
        ((6, 1, 8), (6, 4, 1), (5, 1), (6, 1, 4), (6, 5)),
    ],
)
def test_shapes_of_scores(q, omega, delta, shift, shape):
    a, b = RNG.normal(size=(2, *q))
    w, lags, phi = RNG.normal(size=omega), RNG.normal(size=delta), RNG.normal(size=shift)
    got = heads.shifted_scores(a, b, lags, w, phi)
    assert got.shape == shape
    key = rfrope.rotate(np.broadcast_to(b, (*shape, 8)), lags, w, shift=phi)
    np.testing.assert_allclose(got, np.sum(a * key, axis=-1), atol=1e-12)


# -- kernels -----------------------------------------------------------------------------------------------------------


CENTRED = [
    ("gaussian(scale=16)", -20.0, np.array([0.0, -10.0, -20.0, -35.0, -64.0])),
    ("matern(nu=1.5, scale=(8, 4), ndim=2)", (-3.0, 5.0),
     np.array([[0.0, 0.0], [-3.0, 5.0], [-9.0, 5.0], [3.0, -5.0]])),
    ("log_uniform(low=1e-3, high=1)", -6.0, np.array([0.0, -6.0, -5.0, 6.0])),
]  # fmt: skip


@pytest.mark.parametrize(("kernel", "offset", "lags"), CENTRED)
def test_random_frequencies_with_shifts_average_to_the_kernel_at_its_new_centre(kernel, offset, lags):
    omega = rfrope.sample(kernel, 200_000, rng=0)
    got = heads.shifted_mean_kernel(lags, omega, heads.phase_shift(offset, omega))
    wanted = rfrope.kernels.parse(kernel).phi(lags - np.asarray(offset))
    np.testing.assert_allclose(got, wanted, atol=6.0 / math.sqrt(2.0 * 200_000) * 1.5)


# -- signs -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("offset", [-1, -12.5])
def test_every_block_peaks_at_the_offset(offset):
    q, k = RNG.normal(size=(2, 16))
    omega = np.array([1.0, 0.7, 0.3, 0.1, 0.05, 0.02, 0.011, 0.003])
    c, e = rfrope.block_coefficients(q, k)
    assert np.any(c < 0.0)
    assert np.any(c > 0.0)
    lags = np.append(np.linspace(offset - 2000.0, offset + 2000.0, 4001), offset)
    shifts = [heads.phase_shift(offset, omega), heads.aligned_shift(offset, omega, c)]
    shifts += [heads.aligned_shift(offset, omega, c, e)]
    plain, signed, _ = (c * np.cos(lags[:, None] * omega + shift) for shift in shifts)
    assert np.all(signed[-1] >= np.max(signed, axis=0) - 1e-12)
    np.testing.assert_allclose(signed[-1], np.abs(c), atol=1e-12)
    assert not np.all(plain[-1] >= np.max(plain, axis=0) - 1e-12)  # blocks of negative C are lowest
    np.testing.assert_allclose(plain[-1], c, atol=1e-12)
    turned = lags[:, None] * omega + shifts[2]
    whole = c * np.cos(turned) + e * np.sin(turned)
    np.testing.assert_allclose(whole[-1], np.hypot(c, e), atol=1e-12)
    assert np.all(whole[-1] >= np.max(whole, axis=0) - 1e-12)


def test_aligned_shifts_of_many_pairs_and_of_zeros():
    c = RNG.normal(size=(5, 3, 4))
    got = heads.aligned_shift([-1.0, -2.0, -3.0], OMEGA[:4], c)
    assert got.shape == (5, 3, 4)
    turn = got - heads.phase_shift([-1.0, -2.0, -3.0], OMEGA[:4])
    np.testing.assert_allclose(turn, np.where(c < 0.0, np.pi, 0.0), atol=1e-15)
    for zeros in (([0.0],), ([0.0], [0.0])):
        np.testing.assert_array_equal(heads.aligned_shift(-1, [0.5], *zeros), [0.5])
