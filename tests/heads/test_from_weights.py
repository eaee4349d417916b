"""Offsets of heads, read from their weights, alone or with the mean or the second moment of their input."""

from __future__ import annotations

import math

import numpy as np
import pytest
from campaign import campaign

import rfrope
from rfrope import heads
from rfrope._core import sums
from rfrope.heads import from_weights

RNG = np.random.default_rng(16)
OMEGA = rfrope.geometric(4, base=100.0)
Q, K = RNG.standard_normal((7, 8)) + 0.5, RNG.standard_normal((5, 8)) - 0.3


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
@pytest.mark.parametrize("offset", [-1.0, -12.5])
def test_weights_that_were_built_have_their_offset(pairing, offset):
    omega = rfrope.geometric(32)
    w_q, w_k = heads.positional_weights(
        omega, d_model=16, offset=offset, temperature=0.125, pairing=pairing, constant_index=3, head_dim=70
    )
    for given in ({}, {"mean": np.eye(16)[3]}, {"second_moment": np.eye(16)}):
        found = heads.offset_from_weights(w_q, w_k, omega, max_lag=200, pairing=pairing, **given)
        assert float(found.offset) == pytest.approx(offset, abs=1e-7)
        assert float(found.value) == pytest.approx(8.0 * 32 / math.sqrt(70), rel=1e-12)
        assert float(found.confidence) > 0.9
        np.testing.assert_allclose(found.weight, 8.0 / math.sqrt(70), rtol=1e-12)
        np.testing.assert_allclose(np.cos(found.angle + offset * omega), 1.0, rtol=1e-12)
        np.testing.assert_allclose(found.quality, 1.0, rtol=1e-12)


def test_weights_and_mean_say_what_queries_and_keys_do():
    x = RNG.standard_normal((40, 6)) + 1.0
    w_q, w_k = RNG.standard_normal((2, 10, 6))
    by_tokens = heads.effective_offset(x @ w_q.T, x @ w_k.T, OMEGA)
    by_weights = heads.offset_from_weights(w_q, w_k, OMEGA, max_lag=39, mean=x.mean(axis=0))
    for name in ("offset", "value", "runner_up", "runner_up_value", "lag", "mass"):
        np.testing.assert_allclose(getattr(by_weights, name), getattr(by_tokens, name), rtol=1e-9)


@pytest.mark.parametrize("moment", [None, "given"])
def test_expected_scores_are_those_of_tokens(moment):
    """A query and a key of equal content, over tokens whose second moment is exactly M."""
    root = np.eye(6) if moment is None else RNG.standard_normal((6, 6))
    x = np.sqrt(6.0) * root.T  # six tokens, of which the second moment is root root^T
    w_q, w_k = RNG.standard_normal((2, 10, 6))
    given = {} if moment is None else {"second_moment": root @ root.T}
    found = heads.offset_from_weights(w_q, w_k, OMEGA, max_lag=30, scale=1.0, **given)
    at = float(found.offset)
    pairs = rfrope.scores((x @ w_q.T)[:, None], (x @ w_k.T)[:, None], [0.0], [at], OMEGA)
    assert float(found.value) == pytest.approx(np.mean(pairs), rel=1e-9)
    waves = found.weight * np.cos(OMEGA * at + found.angle)
    rest = np.sum((w_q[8:] @ root) * (w_k[8:] @ root))
    assert float(found.value) == pytest.approx(waves.sum() + rest, rel=1e-9)


def test_quality_is_what_least_squares_explains():
    w_q, w_k = RNG.standard_normal((2, 8, 5))
    found = heads.offset_from_weights(w_q, w_k, OMEGA, max_lag=30)
    for block in range(4):
        rows_q, rows_k = w_q[[block, block + 4]], w_k[[block, block + 4]]
        turned = np.stack([-rows_q[1], rows_q[0]])
        design = np.stack([rows_q.ravel(), turned.ravel()], axis=1)  # stretched by one, and turned by 90 degrees
        solution, left, *_ = np.linalg.lstsq(design, rows_k.ravel())
        assert found.quality[block] == pytest.approx(1.0 - left[0] / np.sum(rows_k**2), rel=1e-10)
        assert found.angle[block] == pytest.approx(math.atan2(solution[1], solution[0]), rel=1e-10)
    empty = heads.offset_from_weights(w_q * (np.arange(8) % 4 > 0)[:, None], w_k, OMEGA, max_lag=30)
    assert empty.quality[0] == 0.0
    assert empty.weight[0] == 0.0


def test_a_second_moment_in_float32_is_symmetric_enough():
    x = RNG.standard_normal((3, 5)).astype("float32")  # three tokens: two eigenvalues are 0, but for rounding
    w_q, w_k = RNG.standard_normal((2, 8, 5))
    moment = x.T @ x
    moment[0, 1] *= np.float32(1.0 + 2e-7)
    found = heads.offset_from_weights(w_q, w_k, OMEGA, max_lag=30, second_moment=moment)
    assert np.all((found.quality > 0.0) & (found.quality <= 1.0))


def test_heads_of_weights_broadcast():
    w_q, w_k = RNG.standard_normal((2, 3, 8, 5)), RNG.standard_normal((2, 1, 8, 5))
    means = RNG.standard_normal((2, 1, 5))
    found = heads.offset_from_weights(w_q, w_k, OMEGA, max_lag=30, mean=means)
    alone = heads.offset_from_weights(w_q[1, 2], w_k[1, 0], OMEGA, max_lag=30, mean=means[1, 0])
    assert found.offset.shape == (2, 3)
    assert found.angle.shape == (2, 3, 4)
    for name, value in vars(alone).items():
        np.testing.assert_allclose(getattr(found, name)[1, 2], value, rtol=1e-9)


def test_weights_of_every_library(xp):
    w_q, w_k = Q[:5].T[:, :5], K.T
    found = heads.offset_from_weights(xp(w_q), xp(w_k), xp(OMEGA), max_lag=9, mean=xp(Q[0, :5]))
    for name, value in vars(heads.offset_from_weights(w_q, w_k, OMEGA, max_lag=9, mean=Q[0, :5])).items():
        np.testing.assert_allclose(vars(found)[name], value, rtol=1e-9)  # the strides are not always the same


def test_chance_of_weights_in_parts(monkeypatch):
    w_q, w_k = RNG.standard_normal((2, 8, 16))
    whole = heads.offset_from_weights(w_q, w_k, OMEGA, max_lag=50)
    monkeypatch.setattr(sums, "BUDGET", 36)
    for name, value in vars(heads.offset_from_weights(w_q, w_k, OMEGA, max_lag=50)).items():
        np.testing.assert_allclose(value, getattr(whole, name), rtol=1e-9, atol=1e-9)


@campaign
def test_confidence_from_weights_is_a_bound_on_chance():
    """Random angles reach a confidence of c at most with probability 1 - c; angles that follow an offset do."""
    rng, omega = np.random.default_rng(6), rfrope.geometric(32)
    sizes = np.exp(rng.standard_normal((2000, 32)))
    z = sizes * np.exp(2j * math.pi * rng.random((2000, 32)))
    w_k = np.concatenate([np.ones((2000, 32)), np.zeros((2000, 32))], axis=1)[..., None]

    def read(z):
        w_q = np.concatenate([z.real, -z.imag], axis=1)[..., None]  # c = conj(Q) K, so this is its conjugate
        return heads.offset_from_weights(w_q, w_k, omega, max_lag=64)

    chance = read(z).confidence
    for level in (0.5, 0.9):
        assert np.mean(chance > level) < 1.0 - level
    assert np.max(chance) > 0.3  # and it is not always 0
    signal = read(sizes * np.exp(2j * omega))  # c exp(-2 i omega) is positive in every block
    assert np.mean(signal.confidence > 0.5) > 0.7
    np.testing.assert_allclose(signal.offset, -2.0, atol=1e-6)


def test_confidence_from_weights_is_the_tail_at_the_height():
    rng, omega = np.random.default_rng(11), rfrope.geometric(32)
    w_q, w_k = rng.standard_normal((2, 64, 5)) + 2.0 * np.stack(heads.positional_weights(omega, d_model=5, offset=-2))
    found = heads.offset_from_weights(w_q, w_k, omega, max_lag=20)
    waves = found.weight * np.exp(1j * (omega * np.arange(-20, 1)[:, None] + found.angle))
    waves = waves[found.lag + 20] - np.mean(waves, axis=0)
    height = np.sum(waves.real) / np.sqrt(np.sum(np.abs(waves) ** 2))
    assert 0.2 < float(found.confidence) < 0.98
    assert float(found.confidence) == pytest.approx(1.0 - 21.0 * math.exp(-(height**2)), rel=1e-9)


@campaign
def test_random_angles_reach_a_height_as_often_as_a_normal_law_says():
    """And so less often than the bound exp(-h^2) that confidence has, but more often than exp(-2 h^2)."""
    rng, omega = np.random.default_rng(12), rfrope.geometric(32)
    c = np.exp(2j * math.pi * rng.random((20_000, 32)))
    height = np.array([from_weights._prominence(row, omega, -3, -32, 0) for row in c])
    for level in (1.5, 1.8):
        share = np.mean(height > level)
        error = math.sqrt(0.5 * math.erfc(level) / 20_000)
        assert share == pytest.approx(0.5 * math.erfc(level), abs=5.0 * error)
        assert math.exp(-2.0 * level**2) < share < math.exp(-(level**2))


def test_blocks_that_do_not_turn_give_no_confidence():
    omega = np.concatenate([np.linspace(0.5, 3.0, 8), np.full(24, 1e-9)])
    w_q, w_k = heads.positional_weights(omega[:8], d_model=3, offset=-3)
    w_q = w_q + 0.1 * np.random.default_rng(7).standard_normal((16, 3))
    alone = heads.offset_from_weights(w_q, w_k, omega[:8], max_lag=8, scale=0.125)
    assert 0.0 < float(alone.confidence) < 1.0
    w_q, w_k = (np.concatenate([w[:8], np.full((24, 3), 2.0), w[8:], np.zeros((24, 3))]) for w in (w_q, w_k))
    found = heads.offset_from_weights(w_q, w_k, omega, max_lag=8, scale=0.125)
    assert float(found.offset) == pytest.approx(float(alone.offset), abs=1e-6)
    assert float(found.value) == pytest.approx(float(alone.value) + 0.125 * 24 * 12, rel=1e-9)
    assert float(found.confidence) == pytest.approx(float(alone.confidence), abs=1e-6)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"w_q": Q[0]}, ValueError, r"w_q has shape \(8,\); expected \(\.\.\., d, d_model\)"),
        ({"w_k": K.T[:6]}, ValueError, "w_k has shape"),
        ({"w_k": K.T[:, :3]}, ValueError, "expected the same two last lengths"),
        ({"w_k": K.T.astype(int)}, TypeError, "w_k has dtype int64; expected real floating weights"),
        ({"w_k": K.T[:7]}, ValueError, "with an even d"),
        ({"w_q": np.ones((2, 8, 5)), "w_k": np.ones((3, 8, 5))}, ValueError, "w_q and w_k do not broadcast"),
        ({"mean": np.ones((3, 5)), "w_q": np.ones((2, 8, 5))}, ValueError, "mean and w_q do not broadcast"),
        ({"w_q": np.full((8, 5), math.nan)}, ValueError, "w_q holds NaN or infinity"),
        ({"mean": np.ones(4)}, ValueError, r"mean has shape \(4,\); expected finite numbers \(\.\.\., 5\)"),
        ({"second_moment": np.ones(5)}, ValueError, r"second_moment has shape \(5,\); expected finite .*5, 5\)"),
        ({"mean": np.ones(5) + 1j}, TypeError, "mean has dtype complex128; expected real numbers"),
        ({"second_moment": np.eye(5) * 1j}, TypeError, "second_moment has dtype complex128; expected real numbers"),
        ({"second_moment": np.eye(5) + np.eye(5, k=1)}, ValueError, "second_moment is not symmetric; expected E x x"),
        ({"second_moment": np.diag([1.0, 1, 1, 1, -0.01])}, ValueError, "second_moment has the eigenvalue -0.01"),
        ({"second_moment": -np.eye(5)}, ValueError, "second_moment has the eigenvalue -1"),
        ({"mean": np.ones(5), "second_moment": np.eye(5)}, ValueError, "are both given; expected at most one"),
        ({"max_lag": 0}, ValueError, "max_lag is 0"),
        ({"w_q": np.zeros((8, 5))}, ValueError, "all offsets are alike"),
    ],
)
def test_bad_weights(change, error, message):
    arguments = {"w_q": Q[:5].T, "w_k": K.T, "frequencies": OMEGA, "max_lag": 9} | change
    with pytest.raises(error, match=message):
        heads.offset_from_weights(**arguments)
