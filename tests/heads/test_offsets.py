"""Offsets of heads, read from queries and keys: built heads, standard errors, confidence, and real heads."""

from __future__ import annotations

import numpy as np
import pytest
from campaign import campaign

import rfrope
from rfrope import heads
from rfrope.data import smollm2_heads
from rfrope.rotation import convert_pairing

RNG = np.random.default_rng(16)
OMEGA = rfrope.geometric(4, base=100.0)
Q, K = RNG.standard_normal((7, 8)) + 0.5, RNG.standard_normal((5, 8)) - 0.3


def by_position(n_heads, n_tokens, *, offset, noise, omega, rng, temperature=1.0):
    """Queries and keys of heads that look at position alone, with noise of their own in every token."""
    w_q, w_k = heads.positional_weights(omega, d_model=1, offset=offset, temperature=temperature)
    shape = (n_heads, n_tokens, w_q.shape[0])
    return (w[:, 0] + noise * rng.standard_normal(shape) for w in (w_q, w_k))


@pytest.mark.parametrize("offset", [-1, -3.25, -17])
@pytest.mark.parametrize("pairing", ["half", "interleaved"])
def test_heads_that_were_built_have_their_offset(offset, pairing):
    omega = rfrope.geometric(32)
    q, k = by_position(1, 40, offset=offset, noise=0.1, omega=omega, rng=np.random.default_rng(0), temperature=1 / 30)
    q, k = (convert_pairing(x[0], "half", pairing) for x in (q, k))
    found = heads.effective_offset(q, k, omega, pairing=pairing)
    assert float(found.offset) == pytest.approx(offset, abs=max(6.0 * float(found.stderr), 1e-6))
    assert 0.0 < float(found.stderr) < 0.05
    assert int(found.lag) == round(offset)
    assert float(found.confidence) == 1.0
    assert (float(found.mass) > 0.9) == (offset == round(offset))
    assert float(found.value) == pytest.approx(
        float(heads.profile(q, k, found.offset, omega, pairing=pairing).mean) / 8
    )
    assert float(found.runner_up_value) < float(found.value)


@pytest.mark.parametrize("offset", [3.25, -3.25])
def test_an_offset_at_an_end_of_the_range_has_no_error(offset):
    """Its peak lies beyond: nothing says how far it may move."""
    omega = rfrope.geometric(16)
    q, k = by_position(1, 40, offset=offset, noise=0.1, omega=omega, rng=np.random.default_rng(0))
    for reach in (3, 4):
        found = heads.effective_offset(q, k, omega, causal=False, max_lag=reach)
        assert float(found.offset[0]) == pytest.approx(np.clip(offset, -reach, reach), abs=0.1)
        assert np.isnan(found.stderr[0]) == (reach == 3)


def test_mass_is_the_softmax_of_the_profile():
    heads_of = smollm2_heads()
    q, k, omega = heads_of["previous_q"], heads_of["previous_k"], heads_of["inv_freq"]
    for scale in (None, 0.05):
        found = heads.effective_offset(q, k, omega, max_lag=50, scale=scale)
        weights = np.exp(heads.profile(q, k, np.arange(-50, 1), omega, scale=scale or 0.125).mean)
        assert float(found.mass) == pytest.approx(weights[49] / weights.sum(), rel=1e-9)


@campaign
def test_standard_error_of_an_offset_is_that_of_repetition():
    rng, omega = np.random.default_rng(3), rfrope.geometric(16)
    for same in (True, False):
        q, k = by_position(600, 80, offset=-3.4, noise=1.0, omega=omega, rng=rng)
        k = k if same else k[:, :60]
        found = heads.effective_offset(q, k, omega, max_lag=32, paired=same, n_resamples=1)
        z = (found.offset + 3.4) / found.stderr
        assert np.std(z) == pytest.approx(1.0, abs=0.13)  # 4.5 standard errors
        assert abs(np.mean(z)) < 0.2


@pytest.mark.parametrize("together", [True, False], ids=["the same tokens", "other tokens"])
@campaign
def test_error_and_confidence_know_which_rows_are_of_the_same_token(together):
    """Noise turns query and key of a token opposite ways, so that both move the peak alike; or keys have their own."""
    rng, omega, quarter = np.random.default_rng(13), rfrope.geometric(16), np.full(16, np.pi / 2.0)
    w_q, w_k = (w[:, 0] for w in heads.positional_weights(omega, d_model=1, offset=-3.4))
    of_q, of_k = (np.tile(rng.standard_normal((600, 40, 16)), 2) for _ in range(2))
    q = w_q + of_q * rfrope.rotate_by_phases(w_q, quarter)
    k = w_k + (of_q if together else of_k) * rfrope.rotate_by_phases(w_k, -quarter)
    right, wrong = (
        heads.effective_offset(q, k, omega, max_lag=32, paired=paired, n_resamples=200)
        for paired in (together, not together)
    )
    assert np.std((right.offset + 3.4) / right.stderr) == pytest.approx(1.0, abs=0.13)
    if together:
        assert np.std((wrong.offset + 3.4) / wrong.stderr) > 1.25
    assert not np.array_equal(right.confidence, wrong.confidence)


@campaign
def test_confidence_is_no_more_than_the_part_that_is_right():
    """Over heads with more and more noise: at least as many offsets are right as confidences say, and not many more."""
    rng, omega = np.random.default_rng(4), rfrope.geometric(16)
    found, right = [], []
    for noise in (1.5, 2.5, 3.5, 4.5):
        q, k = by_position(250, 80, offset=-3.4, noise=noise, omega=omega, rng=rng)
        confidence = heads.effective_offset(q, k, omega, max_lag=32, n_resamples=200)
        found.append(confidence.confidence)
        right.append(np.abs(confidence.offset + 3.4) <= 0.5)
    found, right = np.concatenate(found), np.concatenate(right)
    for low, high in ((0.0, 0.4), (0.4, 0.7), (0.7, 0.9), (0.9, 1.01)):
        some = (found >= low) & (found < high)
        assert np.sum(some) > 50
        share = np.mean(right[some])
        assert -0.07 <= share - np.mean(found[some]) <= 0.3
    assert np.mean(right[found >= 0.95]) > 0.95
    q, k = (rng.standard_normal((250, 80, 32)) for _ in range(2))  # heads that do nothing
    nothing = heads.effective_offset(q, k, omega, max_lag=32, n_resamples=200)
    assert np.mean(nothing.confidence > 0.9) < 0.06


def test_readings_repeat_and_follow_their_seed():
    q, k = by_position(1, 30, offset=-3.4, noise=3.0, omega=OMEGA, rng=np.random.default_rng(5))
    first, again, other = (heads.effective_offset(q, k, OMEGA, rng=rng).confidence for rng in (0, 0, 1))
    assert np.array_equal(first, again)
    assert 0.0 < float(first[0]) < 1.0
    assert not np.array_equal(first, other)


def test_heads_that_share_keys_are_read_as_each_alone():
    q, k = RNG.standard_normal((3, 20, 8)) + 1.0, RNG.standard_normal((1, 20, 8)) - 1.0
    together = heads.effective_offset(q, k, OMEGA)
    for head in range(3):
        alone = heads.effective_offset(q[head], k[0], OMEGA)
        for name, value in vars(alone).items():
            assert value.shape == ()
            np.testing.assert_allclose(getattr(together, name)[head], value, rtol=1e-9)
    assert together.lag.dtype.kind == "i"


def test_offsets_of_every_library(xp):
    found = heads.effective_offset(xp(Q), xp(K), xp(OMEGA), paired=False)
    for name, value in vars(heads.effective_offset(Q, K, OMEGA, paired=False)).items():
        np.testing.assert_allclose(vars(found)[name], value, rtol=1e-9)


@pytest.mark.parametrize("paired", [True, False])
def test_the_error_of_an_offset_counts_degrees_of_freedom(paired):
    omega = rfrope.geometric(16)
    q, k = (x[0] for x in by_position(1, 20, offset=-3.4, noise=0.3, omega=omega, rng=np.random.default_rng(0)))
    once, twice = (
        float(
            heads.effective_offset(
                np.tile(q, (c, 1)), np.tile(k, (c, 1)), omega, max_lag=19, paired=paired, n_resamples=1
            ).stderr
        )
        for c in (1, 2)
    )
    assert (twice / once) ** 2 == pytest.approx(19.0 / 39.0, rel=1e-9)


# -- real heads --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def real():
    return smollm2_heads()


def test_the_previous_token_head_looks_at_the_previous_token(real):
    q, k, omega = real["previous_q"], real["previous_k"], real["inv_freq"]
    for part in (slice(None), slice(0, 80), slice(80, None)):
        found = heads.effective_offset(q[part], k[part], omega)
        assert int(found.lag) == -1
        assert float(found.offset) == pytest.approx(-1.0, abs=0.3)
        assert float(found.confidence) > 0.99
        assert float(found.mass) > 0.85  # the model's own attention there is 0.766
    lags = np.arange(-168, 1)
    for pairs in ("all", "occurring"):
        assert lags[np.argmax(heads.profile(q, k, lags, omega, pairs=pairs).mean)] == -1


def test_a_wrong_sign_or_pairing_moves_the_previous_token_head(real):
    q, k, omega = real["previous_q"], real["previous_k"], real["inv_freq"]
    for wrong in (
        heads.effective_offset(k, q, omega),
        heads.effective_offset(q, k, -omega),
        heads.effective_offset(q, k, omega, pairing="interleaved"),
    ):
        assert float(wrong.mass) < 0.5 or int(wrong.lag) != -1


def test_the_induction_head_follows_content(real):
    """Pairs that occur at -59 score high because of what they hold: put elsewhere they still do, and others do not."""
    q, k, omega = real["induction_q"], real["induction_k"], real["inv_freq"]
    lags = np.arange(-110, 0)
    occurring = heads.profile(q, k, lags, omega, pairs="occurring", scale=0.125).mean
    everything = heads.profile(q, k, lags, omega, scale=0.125).mean
    assert lags[np.argmax(occurring)] == -59
    at = np.flatnonzero(lags == -59)[0]
    assert occurring[at] - everything[at] > 5.0
    assert np.max(everything) - everything[at] < 0.1
    assert float(heads.effective_offset(q, k, omega).mass) < 0.02
    a, b = rfrope.block_coefficients(
        q[60:], k[1:61]
    )  # each token of the second half, with the one that came next before
    cos, sin = rfrope.rotation_table(lags, omega)
    moved = np.mean(a @ cos.T + b @ sin.T, axis=0) / 8
    assert np.ptp(moved[(lags < -20)]) < 0.2 * (occurring[at] - everything[at])


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"paired": True}, ValueError, "q has 7 tokens and k 5, but paired is True"),
        ({"q": Q[:1]}, ValueError, "q has 1 tokens and k 5; expected at least two of each"),
        ({"max_lag": 0}, ValueError, "max_lag is 0"),
        ({"causal": 1}, TypeError, "causal is 1; expected True or False"),
        ({"scale": -1.0}, ValueError, "scale is -1.0"),
        ({"n_resamples": 0}, ValueError, "n_resamples is 0"),
        ({"frequencies": np.zeros((4, 2))}, ValueError, r"expected one set, \(D,\) or \(D, 1\)"),
        ({"frequencies": np.zeros(4)}, ValueError, "all offsets are alike"),
        ({"rng": -1}, ValueError, "rng is -1"),
    ],
)
def test_bad_offsets(change, error, message):
    arguments = {"q": Q, "k": K, "frequencies": OMEGA, "paired": False} | change
    with pytest.raises(error, match=message):
        heads.effective_offset(**arguments)
