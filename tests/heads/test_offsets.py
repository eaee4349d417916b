"""Offsets of heads, read from queries and keys: built heads, errors, real heads."""

import numpy as np
import pytest
from campaign import campaign

import rfrope
from rfrope import heads
from rfrope.data import smollm2_heads
from rfrope.rotation import convert_pairing

RNG = np.random.default_rng(16)
OMEGA = rfrope.geometric(4, base=100.0)


def by_position(n_heads, n_tokens, *, offset, noise, omega, rng, temperature=1.0):
    """Queries and keys of heads that look at position alone, with noise of their own in every token."""
    w_q, w_k = heads.positional_weights(omega, d_model=1, offset=offset, temperature=temperature)
    shape = (n_heads, n_tokens, w_q.shape[0])
    return (w[:, 0] + noise * rng.standard_normal(shape) for w in (w_q, w_k))


@pytest.mark.parametrize(("offset", "pairing"), [(-1, "half"), (-3.25, "interleaved")])
def test_heads_that_were_built_have_their_offset(offset, pairing):
    omega = rfrope.geometric(32)
    q, k = by_position(1, 40, offset=offset, noise=0.1, omega=omega, rng=np.random.default_rng(0), temperature=1 / 30)
    q, k = (convert_pairing(x[0], "half", pairing) for x in (q, k))
    found = heads.effective_offset(q, k, omega, pairing=pairing)
    assert float(found.offset) == pytest.approx(offset, abs=max(6.0 * float(found.stderr), 1e-6))
    assert 0.0 < float(found.stderr) < 0.05
    assert int(found.lag) == round(offset)
    assert (float(found.mass) > 0.9) == (offset == round(offset))
    assert float(found.value) == pytest.approx(
        float(heads.profile(q, k, found.offset, omega, pairing=pairing).mean) / 8
    )
    assert float(found.runner_up_value) < float(found.value)


@pytest.mark.parametrize(("n", "m"), [(40, 12), (12, 40)])
@pytest.mark.parametrize(("offset", "found_at"), [(-30.0, -30.0), (-200.0, -39.0)])
def test_tokens_are_as_far_apart_as_the_first_and_the_last_of_the_longer_side(n, m, offset, found_at):
    w_q, w_k = (w[:, 0] for w in heads.positional_weights([0.01, 0.005], d_model=1, offset=offset))
    found = heads.effective_offset(np.tile(w_q, (n, 1)), np.tile(w_k, (m, 1)), [0.01, 0.005], paired=False)
    assert (float(found.offset), int(found.lag)) == (pytest.approx(found_at, abs=1e-6), found_at)


@pytest.mark.parametrize("offset", [3.25, -3.25])
def test_an_offset_at_an_end_of_the_range_has_no_error(offset):
    """Its peak lies beyond: nothing says how far it may move."""
    omega = rfrope.geometric(16)
    q, k = by_position(1, 40, offset=offset, noise=0.1, omega=omega, rng=np.random.default_rng(0))
    for reach in (3, 4):
        found = heads.effective_offset(q, k, omega, causal=False, max_lag=reach)
        assert float(found.offset[0]) == pytest.approx(np.clip(offset, -reach, reach), abs=0.1)
        assert np.isnan(found.stderr[0]) == (reach == 3)


def test_values_are_those_of_the_profile_with_features_that_do_not_turn():
    x = RNG.standard_normal((40, 6)) + 1.0
    w_q, w_k = RNG.standard_normal((2, 10, 6))
    found = heads.effective_offset(x @ w_q.T, x @ w_k.T, OMEGA)
    tops = np.array([found.offset, found.runner_up])
    profile = heads.profile(x @ w_q.T, x @ w_k.T, tops, OMEGA, scale=10**-0.5)
    np.testing.assert_allclose([found.value, found.runner_up_value], profile.mean, rtol=1e-9)


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
        found = heads.effective_offset(q, k, omega, max_lag=32, paired=same)
        z = (found.offset + 3.4) / found.stderr
        assert np.std(z) == pytest.approx(1.0, abs=0.13)  # 4.5 standard errors
        assert abs(np.mean(z)) < 0.2


def test_heads_that_share_keys_are_read_as_each_alone():
    q, k = RNG.standard_normal((3, 20, 8)) + 1.0, RNG.standard_normal((1, 20, 8)) - 1.0
    together = heads.effective_offset(q, k, OMEGA)
    for head in range(3):
        alone = heads.effective_offset(q[head], k[0], OMEGA)
        for name, value in vars(alone).items():
            assert value.shape == ()
            np.testing.assert_allclose(getattr(together, name)[head], value, rtol=1e-9)
    assert together.lag.dtype.kind == "i"


@pytest.mark.parametrize("paired", [True, False])
def test_the_error_of_an_offset_counts_degrees_of_freedom(paired):
    omega, options = rfrope.geometric(16), {"max_lag": 19, "paired": paired}
    q, k = (x[0] for x in by_position(1, 20, offset=-3.4, noise=0.3, omega=omega, rng=np.random.default_rng(0)))
    once, twice = (heads.effective_offset(*(np.tile(x, (c, 1)) for x in (q, k)), omega, **options) for c in (1, 2))
    assert float(twice.stderr / once.stderr) ** 2 == pytest.approx(19.0 / 39.0, rel=1e-9)


# -- real heads --------------------------------------------------------------------------------------------------------


def test_the_previous_token_head_looks_at_the_previous_token():
    real = smollm2_heads()
    q, k, omega = real["previous_q"], real["previous_k"], real["inv_freq"]
    for part in (slice(None), slice(0, 80), slice(80, None)):
        found = heads.effective_offset(q[part], k[part], omega)
        assert int(found.lag) == -1
        assert float(found.offset) == pytest.approx(-1.0, abs=0.3)
        assert float(found.mass) > 0.85  # the model's own attention there is 0.766
    lags = np.arange(-168, 1)
    assert lags[np.argmax(heads.profile(q, k, lags, omega).mean)] == -1
