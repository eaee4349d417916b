"""What frequencies make of content: against scores, against draws, and on every library."""

import math

import mpmath
import numpy as np
import pytest
from campaign import campaign
from conftest import tuples
from owned import check_owned

import rfrope
from rfrope import analysis
from rfrope._core import sums

RNG = np.random.default_rng(0)


def score(q, k, frequencies, lag, pairing="half"):
    """Score of each pair at its lags, by rotating both: rows of q and k."""
    zero = np.zeros_like(np.asarray(lag))
    leading = np.broadcast_shapes(q.shape[:-1], rfrope.rotation.phases(zero, frequencies).shape[:-1])
    q, k = (np.broadcast_to(x, (*leading, x.shape[-1])) for x in (q, k))  # rotations do not enlarge what they turn
    rotated = rfrope.rotate(q, zero, frequencies, pairing=pairing), rfrope.rotate(k, lag, frequencies, pairing=pairing)
    return np.sum(rotated[0] * rotated[1], axis=-1)


def share_by_hand(q, k, frequencies, lag, pairing="half"):
    """Cosines are the even part of the score in the lag, sines the odd one."""
    ahead, back = (score(q, k, frequencies, sign * np.asarray(lag), pairing) for sign in (1, -1))
    even, odd = np.abs(ahead + back), np.abs(ahead - back)
    return odd / (even + odd)


# -- sine_share --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
@pytest.mark.parametrize("blocks", [4, 3])  # blocks of eight features
def test_the_share_of_sines_is_the_odd_part_of_the_score(blocks, pairing, xp):
    q, k = RNG.normal(size=(2, 20, 8))
    omega, lags = rfrope.geometric(blocks), np.array([1, -7, 1000])
    got = analysis.sine_share(xp(q[:, None]), xp(k[:, None]), xp(lags), xp(omega), pairing=pairing)
    wanted = np.stack([share_by_hand(q, k, omega, lag, pairing) for lag in lags], axis=-1)
    check_owned(xp, got, wanted, atol=1e-12)


@pytest.mark.parametrize(
    ("q", "omega", "lag_shape", "shape"),
    tuples("analysis/shapes.json", "share"),
)
def test_shapes_of_the_share(q, omega, lag_shape, shape):
    a, b = RNG.normal(size=(2, *q))
    w, lags = RNG.normal(size=omega), RNG.normal(size=lag_shape)
    got = analysis.sine_share(a, b, lags, w)
    assert got.shape == shape
    np.testing.assert_allclose(got, share_by_hand(a, b, w, lags), atol=1e-12)


def test_the_share_is_0_where_nothing_turns_or_nothing_is_there():
    q, k = RNG.normal(size=(2, 5, 8))
    assert analysis.sine_share(q, k, 3, np.zeros(4)).tolist() == [0.0] * 5
    assert analysis.sine_share(q, k, 0, rfrope.geometric(4)).tolist() == [0.0] * 5
    assert analysis.sine_share(np.zeros(8), k, 3, rfrope.geometric(4)).tolist() == [0.0] * 5

    assert analysis.sine_share([1.0, 0.0], [0.0, 1.0], 3, [0.1]) == 1.0


def test_parts_of_the_blocks_add_up(monkeypatch):
    q, k = RNG.normal(size=(2, 6, 5, 16))
    ladder = rfrope.geometric(7)
    calls = [lambda: analysis.departure(q[0], k[0], np.arange(50), ladder).phi]
    for omega, lags in ((ladder, np.arange(5)), (RNG.normal(size=(6, 7, 2)), RNG.normal(size=(5, 2)))):
        calls.append(lambda omega=omega, lags=lags: analysis.sine_share(q, k, lags, omega))
        calls.append(lambda omega=omega, lags=lags: analysis.similarity(lags, omega).std)
    whole = [call() for call in calls]
    monkeypatch.setattr(sums, "BUDGET", 100)
    for call, one in zip(calls, whole, strict=True):
        np.testing.assert_allclose(call(), one, rtol=1e-7, atol=1e-14)


# -- similarity --------------------------------------------------------------------------------------------------------


def drawn_scores(omega, lag, cosine, n, rng):
    """Scores of n random unit tokens, each with a unit key at that cosine, from their definition."""
    d = 2 * len(omega)
    q, w = rng.standard_normal((2, n, d))
    q /= np.linalg.norm(q, axis=-1, keepdims=True)
    w -= np.sum(w * q, axis=-1, keepdims=True) * q
    w /= np.linalg.norm(w, axis=-1, keepdims=True)
    return np.sum(rfrope.rotate(q, lag, omega) * (cosine * q + math.sqrt(1.0 - cosine**2) * w), axis=-1)


def misses(scores, mean, std) -> float:
    """Largest distance of the mean and the variance of draws from what is claimed, in standard errors."""
    n, squares = len(scores), (scores - mean) ** 2
    z_mean = abs(np.mean(scores) - mean) / (np.std(scores) / math.sqrt(n))
    z_variance = abs(np.mean(squares) - std**2) / (np.std(squares) / math.sqrt(n))
    return float(max(z_mean, z_variance))


@campaign
@pytest.mark.parametrize("cosine", [1.0, 0.7, 0.0, -0.4, -1.0])
@pytest.mark.parametrize(
    ("blocks", "lag"), [(1, 1), (2, 3), (4, 5), (32, 40)], ids=["one block", "two", "four", "a head"]
)
def test_similarity_against_draws(blocks, lag, cosine):
    omega = rfrope.geometric(blocks, base=100.0) * 0.7
    found = analysis.similarity(lag, omega, cosine=cosine)
    rng = np.random.default_rng(1000 * blocks + int(10 * cosine) + 50)
    scores = drawn_scores(omega, lag, cosine, 200_000, rng)
    if blocks == 1 and abs(cosine) == 1.0:  # (R q) . q = cos u for every q
        np.testing.assert_allclose(scores, found.mean, atol=1e-14)
        assert found.std < 1e-8
        return
    assert misses(scores, found.mean, found.std) < 5.3


def test_similarity_beside_the_mean_kernel(xp):
    """A random unit key has a squared cosine of 1/d on average, and the score's second moment is linear in it."""
    plane = RNG.normal(size=(3, 5, 2)), RNG.normal(size=(9, 2))
    for omega, lags in ((rfrope.geometric(24), np.array([0, 1, -30, 10**6])), plane):
        curve, d = analysis.mean_kernel(lags, omega), 48 if omega.ndim == 1 else 10
        found = analysis.similarity(xp(lags), xp(omega), cosine=-0.6)
        check_owned(xp, found.mean, -0.6 * curve, atol=2e-15)
        check_owned(xp, found.radius, np.maximum(curve, 0.0), atol=2e-15)
        over_all = analysis.similarity(xp(lags), xp(omega), cosine=d**-0.5)
        assert over_all.random_std == pytest.approx(d**-0.5, rel=1e-15)
        np.testing.assert_allclose(xp.host(over_all.std) ** 2 + xp.host(over_all.mean) ** 2, 1.0 / d, rtol=1e-14)


def test_the_spread_near_lag_0_keeps_its_digits():
    omega, lag = rfrope.geometric(8), 1e-5
    with mpmath.workdps(60):
        cosines = [mpmath.cos(mpmath.mpf(lag) * mpmath.mpf(float(w))) for w in omega]
        variance = sum((c - sum(cosines) / 8) ** 2 for c in cosines) / 8 / 9
        assert analysis.similarity(lag, omega).std == pytest.approx(float(mpmath.sqrt(variance)), rel=1e-12)
    assert analysis.similarity(0, omega).std == 0.0


# -- departure ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("blocks", [4, 3])
def test_departure_is_least_squares(blocks, xp):
    q, k = RNG.normal(size=(2, 30, 8))
    omega, lags = rfrope.geometric(blocks, base=50.0), np.array([[0, -1], [7, -300]])
    found = analysis.departure(xp(q), xp(k), xp(lags), xp(omega), pairing="interleaved")
    scores = np.stack([score(q, k, omega, lag, "interleaved") for lag in lags.reshape(-1)], axis=-1)
    (phi,), left, *_ = np.linalg.lstsq(np.sum(q * k, axis=-1)[:, None], scores, rcond=None)
    whole = np.sum(scores**2, axis=0)
    check_owned(xp, found.phi, phi.reshape(2, 2), rtol=1e-11)
    check_owned(xp, found.residual, np.sqrt(left / whole).reshape(2, 2), atol=1e-7)
    check_owned(xp, found.overall, np.sqrt(np.sum(left) / np.sum(whole)), rtol=1e-10)


def test_where_a_kernel_exists_nothing_is_left_over():
    q, k = RNG.normal(size=(2, 50, 16))
    alone = q[:, :2]  # one block and equal content: A cos u, and no sine
    for one, other, omega, phi in ((q, k, np.zeros(8), [1.0] * 3), (alone, alone, [0.3], np.cos([0.0, 0.3, 1.5]))):
        found = analysis.departure(one, other, [0, 1, 5], omega)
        np.testing.assert_allclose(found.phi, phi, rtol=1e-13)
        assert max(*found.residual, found.overall) < 1e-14
    assert analysis.departure(alone, k[:, :2], 5, [0.3]).residual > 0.5  # other content has sines
    for one, other, left in (([[0.0, 0.0]], [[1.0, 1.0]], 0.0), ([[1.0, 0.0]], [[0.0, 1.0]], 1.0)):  # q . k = 0
        found = analysis.departure(one, other, [1, 2], [0.1])
        assert (found.phi.tolist(), found.residual.tolist(), found.overall) == ([0.0, 0.0], [left, left], left)
