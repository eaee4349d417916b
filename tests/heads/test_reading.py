"""Profiles and offsets of heads, from queries and keys and from weights."""

from __future__ import annotations

import math

import numpy as np
import pytest
from campaign import campaign

import rfrope
from rfrope import heads
from rfrope._core import sums
from rfrope.data import smollm2_heads
from rfrope.heads import from_weights
from rfrope.rotation import convert_pairing

RNG = np.random.default_rng(16)
OMEGA = rfrope.geometric(4, base=100.0)
Q, K = RNG.standard_normal((7, 8)) + 0.5, RNG.standard_normal((5, 8)) - 0.3
LAGS = np.array([0.0, -1.0, -2.5, 40.0, 2.0**40])


def put_at(q, k, lag, omega, pairing="half"):
    """Scores of every query with every key, put at one lag."""
    at = np.zeros((len(q), *np.shape(lag))), np.broadcast_to(lag, (len(k), *np.shape(lag)))
    return rfrope.scores(q, k, *at, omega, pairing=pairing)


def block_part(q, k, block):
    """The same features with all blocks but one set to zero."""
    kept = np.isin(np.arange(8) % 4, block)
    return q * kept, k * kept


# -- profile, all pairs ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
@pytest.mark.parametrize("width", [4, 2], ids=["all turned", "partial"])
def test_profile_is_mean_and_deviation_of_the_scores_of_all_pairs(pairing, width):
    found = heads.profile(Q, K, LAGS, OMEGA[:width], pairing=pairing, scale=0.5, paired=False)
    scores = np.stack([0.5 * put_at(Q, K, lag, OMEGA[:width], pairing) for lag in LAGS])
    back = np.stack([0.5 * put_at(Q, K, -lag, OMEGA[:width], pairing) for lag in LAGS])  # sines change their sign
    np.testing.assert_allclose(found.mean, scores.mean(axis=(1, 2)), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(found.spread, scores.std(axis=(1, 2)), rtol=1e-12)
    np.testing.assert_allclose(found.cosine, 0.5 * (scores + back).mean(axis=(1, 2)), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(found.sine, 0.5 * (scores - back).mean(axis=(1, 2)), rtol=1e-12, atol=1e-12)
    assert np.array_equal(found.count, np.full(5, 35.0))
    assert found.blocks.shape == (width, 5)
    assert np.array_equal(found.lags, LAGS)


def test_blocks_of_a_profile_are_those_of_the_features():
    found = heads.profile(Q, K, LAGS, OMEGA, paired=False)
    for block in range(4):
        alone = heads.profile(*block_part(Q, K, block), LAGS, OMEGA, paired=False).mean
        np.testing.assert_allclose(found.blocks[block], alone, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(found.blocks.sum(axis=0), found.mean, rtol=1e-12, atol=1e-12)


def test_features_that_are_not_turned_are_in_the_mean_and_in_no_block():
    found = heads.profile(Q, K, [0.0, -3.0], OMEGA[:2], paired=False)
    rest = np.mean(Q[:, 4:] @ K[:, 4:].T)
    np.testing.assert_allclose(found.mean - found.blocks.sum(axis=0), rest, rtol=1e-12)
    flat = heads.profile(Q, K, [0.0, -3.0], OMEGA[:2] * 0.0, paired=False)
    np.testing.assert_allclose(flat.cosine, np.mean(Q @ K.T), rtol=1e-12)


def test_profile_takes_several_axes_heads_that_share_keys_and_any_shape_of_lags():
    q, k = RNG.standard_normal((2, 3, 7, 8)), RNG.standard_normal((2, 1, 5, 8))
    omega, lags = RNG.standard_normal((4, 2)), RNG.standard_normal((3, 1, 2))
    found = heads.profile(q, k, lags, omega, paired=False)
    assert found.mean.shape == found.spread.shape == found.stderr.shape == (2, 3, 3, 1)
    assert (found.blocks.shape, found.count.shape) == ((2, 3, 4, 3, 1), (3, 1))
    expected = put_at(q[1, 2], k[1, 0], lags[2, 0], omega)
    assert found.mean[1, 2, 2, 0] == pytest.approx(expected.mean(), rel=1e-12)
    assert found.spread[1, 2, 2, 0] == pytest.approx(expected.std(), rel=1e-12)
    single = heads.profile(q[1, 2], k[1, 0], lags[2, 0], omega, paired=False)
    assert single.mean.shape == single.count.shape == ()
    assert float(single.mean) == pytest.approx(expected.mean(), rel=1e-12)


def stated_over_true(q, k, lags, **options):
    """Standard errors that are stated, over the standard deviation of the mean score in repetition."""
    found = heads.profile(q, k, lags, OMEGA, **options)
    return np.sqrt(np.mean(found.stderr**2, axis=0)) / found.mean.std(axis=0)


@pytest.mark.parametrize("pairs", ["all", "occurring"])
@pytest.mark.parametrize("sizes", [(30, 30), (30, 20)], ids=["as many keys", "fewer keys"])
@pytest.mark.parametrize("together", [True, False], ids=["the same tokens", "other tokens"])
def test_standard_error_is_that_of_repetition(together, sizes, pairs):
    """Queries and keys of the same tokens vary together; the error of the mean score knows it."""
    if together and sizes[0] != sizes[1]:
        return
    rng, repeats, (n, m) = np.random.default_rng(2), 3000, sizes
    x = rng.standard_normal((repeats, n, 8))
    y = x if together else rng.standard_normal((repeats, m, 8))
    for of_q, of_k in ((0.7, 0.3), (2.0, 2.0), (2.0, -1.0)):
        q, k, lags = x + of_q, y + of_k, [0.0, -1.0, -2.0, -5.0]
        ratios = stated_over_true(q, k, lags, pairs=pairs, paired=together)
        np.testing.assert_allclose(ratios, 1.0, atol=0.06)
        if together:  # a mutation: as if they were of other tokens
            assert np.max(np.abs(stated_over_true(q, k, lags, pairs=pairs, paired=False) - 1.0)) > 0.08
    if together and pairs == "occurring":  # and another: as if all pairs were independent draws
        found = heads.profile(q, k, lags, OMEGA, pairs=pairs)
        of_pairs = np.sqrt(np.mean(found.spread**2 / (found.count - 1.0), axis=0)) / found.mean.std(axis=0)
        assert np.max(np.abs(of_pairs - 1.0)) > 0.15


@pytest.mark.parametrize("together", [True, False], ids=["the same tokens", "other tokens"])
def test_standard_error_counts_the_joint_part_once(together):
    """The joint part of queries and keys is in what either adds, too; it is counted once."""
    q, k = np.random.default_rng(8).standard_normal((2, 20_000, 3, 8)) + 0.7
    np.testing.assert_allclose(stated_over_true(q, k, [0.0, -2.0], paired=together), 1.0, atol=0.08)
    q, k = np.random.default_rng(9).standard_normal((2, 5000, 20, 8))  # there is no other part
    ratios = stated_over_true(q, k, [0.0, -2.0], paired=together)
    assert np.all((ratios > 0.97) & (ratios < 1.25))


def test_profile_of_one_token_has_no_standard_error():
    found = heads.profile(Q[:1], K[:1], [0.0, -1.0], OMEGA)
    assert np.all(np.isnan(found.stderr))
    np.testing.assert_allclose(found.spread, 0.0, atol=1e-12)
    assert found.mean[1] == pytest.approx(put_at(Q[:1], K[:1], -1.0, OMEGA)[0, 0], rel=1e-12)


def test_profile_on_every_library(xp):
    for dtype, tolerance in (("float64", 1e-12), ("float32", 2e-6)):
        q, k = xp(Q, dtype), xp(K, dtype)
        found = heads.profile(q, k, xp(LAGS[:4]), xp(OMEGA), paired=False)
        wanted = heads.profile(Q, K, LAGS[:4], OMEGA, paired=False)
        for name, value in vars(wanted).items():
            result = getattr(found, name)
            assert xp.owns(result)
            np.testing.assert_allclose(xp.host(result), value, rtol=tolerance, atol=tolerance)
            assert xp.host(result).dtype == np.float64


def test_profile_of_narrow_features_is_computed_in_float64():
    narrow = heads.profile(Q.astype("float16"), K.astype("float16"), LAGS, OMEGA, paired=False)
    wide = heads.profile(
        Q.astype("float16").astype(float), K.astype("float16").astype(float), LAGS, OMEGA, paired=False
    )
    assert np.array_equal(narrow.mean, wide.mean)


def test_gradients_where_nothing_varies_are_zero_and_not_nan():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    for pairs in ("all", "occurring"):
        q, k = (torch.tensor(np.full((3, 8), value), requires_grad=True) for value in (0.5, 0.25))
        found = heads.profile(q, k, torch.tensor([0.0, -1.0]), torch.tensor(OMEGA), pairs=pairs)
        assert torch.all(found.spread == 0.0)
        (found.spread.sum() + found.stderr.sum()).backward()
        for x in (q, k):
            assert torch.all(x.grad == 0.0)


@pytest.mark.parametrize("pairs", ["all", "occurring"])
@pytest.mark.parametrize("width", [4, 2], ids=["all turned", "partial"])
def test_parts_of_the_lags_are_put_together(pairs, width, monkeypatch):
    x, lags = RNG.standard_normal((2, 7, 8)), np.arange(-9.0, 1.0)
    whole = heads.profile(x, x + 1.0, lags, OMEGA[:width], pairs=pairs)
    monkeypatch.setattr(sums, "BUDGET", 50)
    for name, value in vars(heads.profile(x, x + 1.0, lags, OMEGA[:width], pairs=pairs)).items():
        np.testing.assert_allclose(value, getattr(whole, name), rtol=1e-12)


def test_waves_of_few_lags_are_held(peak):
    """Those of all would be 134 MB, and as many again of products."""
    x = RNG.standard_normal((2, 256))
    heads.profile(x, x, np.zeros(1), OMEGA)
    peak(anew=True)
    found = heads.profile(x, x, np.arange(-(2.0**15), 0.0), OMEGA)
    assert found.mean.shape == (2**15,)
    assert peak() < 80e6


def test_chance_of_weights_in_parts(monkeypatch):
    w_q, w_k = RNG.standard_normal((2, 8, 16))
    whole = heads.offset_from_weights(w_q, w_k, OMEGA, max_lag=50)
    monkeypatch.setattr(sums, "BUDGET", 36)
    for name, value in vars(heads.offset_from_weights(w_q, w_k, OMEGA, max_lag=50)).items():
        np.testing.assert_allclose(value, getattr(whole, name), rtol=1e-9, atol=1e-9)


def test_gradients_of_a_profile():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    q, k = (torch.tensor(x, requires_grad=True) for x in (Q, K))
    lags = torch.tensor([0.0, -2.0], dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda *x: heads.profile(*x, lags, torch.tensor(OMEGA), paired=False).mean, (q, k))


# -- profile, pairs that occur -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("positions", ["0, 1, 2, ...", "gaps, repeated and out of order"])
def test_occurring_pairs_are_the_diagonals_of_the_scores(positions):
    given = {}
    q_at, k_at = np.arange(7), np.arange(5)
    if positions.startswith("gaps"):
        q_at, k_at = np.array([3, 3, 9, 0, 1, 20, 4]), np.array([2, 0, 2, 8, -1])
        given = {"q_positions": q_at, "k_positions": k_at}
    lags = np.arange(-8, 6)
    found = heads.profile(Q, K, lags, OMEGA, pairs="occurring", scale=0.5, paired=False, **given)
    scores = 0.5 * rfrope.scores(Q, K, q_at, k_at, OMEGA)
    for i, lag in enumerate(lags):
        here = scores[k_at[None, :] - q_at[:, None] == lag]
        assert found.count[i] == len(here)
        if not len(here):
            assert math.isnan(found.mean[i])
            assert np.all(np.isnan(found.blocks[:, i]))
            continue
        assert found.mean[i] == pytest.approx(here.mean(), rel=1e-12)
        assert found.spread[i] == pytest.approx(here.std(), rel=1e-9, abs=1e-12)
        assert found.cosine[i] + found.sine[i] == pytest.approx(found.mean[i], rel=1e-12)
        assert found.blocks[:, i].sum() == pytest.approx(found.mean[i], rel=1e-9)


@pytest.mark.parametrize("paired", [True, False])
def test_standard_error_of_occurring_pairs_pair_by_pair(paired):
    """A token adds its part as often as it is in a pair, as a query and as a key; the rests of pairs add up alone."""
    at, lag = np.array([0, 1, 1, 2, 5, 2, 3]), -1
    q, k = RNG.standard_normal((2, 7, 8)) + 0.5
    found = heads.profile(q, k, lag, OMEGA, pairs="occurring", q_positions=at, k_positions=at, paired=paired, scale=0.5)
    everything, i, j = 0.5 * put_at(q, k, lag, OMEGA), *np.nonzero(at[None] - at[:, None] == lag)
    of_q, of_k = (everything.mean(axis=axis) - everything.mean() for axis in (1, 0))
    rest = everything[i, j] - of_q[i] - of_k[j]
    total = np.var(rest, ddof=1) * len(i)
    as_q, as_k = ([np.sum(index == token) for token in range(7)] for index in (i, j))
    for side in (as_q * of_q + as_k * of_k,) if paired else (as_q * of_q, as_k * of_k):
        total += np.sum(side**2) * 7 / 6
    assert len(i) == 8
    assert float(found.stderr) == pytest.approx(math.sqrt(total) / len(i), rel=1e-10)


def test_occurring_pairs_of_two_axes():
    rows, columns = np.divmod(np.arange(12), 4)
    at = np.stack([rows, columns], axis=-1)
    x, omega = RNG.standard_normal((12, 8)), RNG.standard_normal((4, 2))
    lags = np.array([[0, -1], [-1, 2], [3, 0]])
    found = heads.profile(x, x, lags, omega, pairs="occurring", q_positions=at, k_positions=at)
    assert found.count.tolist() == [9.0, 4.0, 0.0]
    scores = rfrope.scores(x, x, at, at, omega)
    here = np.all(at[None] - at[:, None] == lags[1], axis=-1)
    assert found.mean[1] == pytest.approx(scores[here].mean(), rel=1e-12)


def test_occurring_pairs_on_every_library(xp):
    found = heads.profile(xp(Q), xp(K), xp([0, -2, 2]), xp(OMEGA), pairs="occurring", paired=False)
    wanted = heads.profile(Q, K, [0, -2, 2], OMEGA, pairs="occurring", paired=False)
    for name, value in vars(wanted).items():
        assert xp.owns(getattr(found, name))
        np.testing.assert_allclose(xp.host(getattr(found, name)), value, rtol=1e-9, atol=1e-12)


def test_no_lags_give_empty_results():
    for pairs in ("all", "occurring"):
        found = heads.profile(Q, K, np.zeros(0), OMEGA, pairs=pairs, paired=False)
        assert (found.mean.shape, found.blocks.shape, found.count.shape) == ((0,), (4, 0), (0,))


# -- effective_offset --------------------------------------------------------------------------------------------------


def by_position(n_heads, n_tokens, *, offset, noise, omega, rng, temperature=1.0):
    """Queries and keys of heads that look at position alone, with noise of their own in every token."""
    w_q, w_k = heads.positional_weights(omega, d_model=1, offset=offset, temperature=temperature)
    shape = (n_heads, n_tokens, w_q.shape[0])
    return (w[:, 0] + noise * rng.standard_normal(shape) for w in (w_q, w_k))


@pytest.mark.parametrize("offset", [-1, -3.25, -17])
@pytest.mark.parametrize("pairing", ["half", "interleaved"])
def test_heads_that_were_built_have_their_offset(offset, pairing):
    omega = rfrope.geometric(32)
    q, k = by_position(1, 40, offset=offset, noise=0.1, omega=omega, rng=np.random.default_rng(0), temperature=30.0)
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


def test_offsets_ahead_need_a_range_that_has_them():
    omega = rfrope.geometric(16)
    q, k = by_position(1, 40, offset=5, noise=0.1, omega=omega, rng=np.random.default_rng(0))
    ahead = heads.effective_offset(q, k, omega, causal=False)
    assert float(ahead.offset[0]) == pytest.approx(5.0, abs=0.1)
    assert int(ahead.lag[0]) == 5
    behind = heads.effective_offset(q, k, omega)
    assert float(behind.offset[0]) <= 0.0
    if float(behind.offset[0]) == 0.0:
        assert math.isnan(float(behind.stderr[0]))


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
    wanted = heads.effective_offset(Q, K, OMEGA, paired=False)
    for name, value in vars(wanted).items():
        np.testing.assert_allclose(vars(found)[name], value, rtol=1e-9)
    w_q, w_k = Q[:5].T[:, :5], K.T
    from_weights = heads.offset_from_weights(xp(w_q), xp(w_k), xp(OMEGA), max_lag=9, mean=xp(Q[0, :5]))
    by_numpy = heads.offset_from_weights(w_q, w_k, OMEGA, max_lag=9, mean=Q[0, :5])
    for name, value in vars(by_numpy).items():
        np.testing.assert_allclose(vars(from_weights)[name], value, rtol=1e-9)  # the strides are not always the same


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


# -- offset_from_weights -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
@pytest.mark.parametrize("offset", [-1.0, -12.5])
def test_weights_that_were_built_have_their_offset(pairing, offset):
    omega = rfrope.geometric(32)
    w_q, w_k = heads.positional_weights(
        omega, d_model=16, offset=offset, temperature=8.0, pairing=pairing, constant_index=3, head_dim=70
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
    height = np.array([from_weights._height(row, omega, -3, -32, 0) for row in c])
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


# -- what is refused ---------------------------------------------------------------------------------------------------

GOOD = {"q": Q, "k": K, "lags": [0, -1], "frequencies": OMEGA}


def with_one(x, value):
    return np.concatenate([x[:-1], np.append(x[-1, :-1], value)[None]])


OF_FEATURES = [
    ({"q": with_one(Q, math.nan)}, ValueError, "q holds NaN or infinity"),
    ({"k": with_one(K, -math.inf)}, ValueError, "k holds NaN or infinity"),
    ({"paired": True}, ValueError, "q has 7 tokens and k 5, but paired is True; expected as many of each, or paired=F"),
    ({"paired": 0}, TypeError, "paired is 0; expected True or False"),
]
BAD_PROFILES = [
    *OF_FEATURES,
    ({"pairs": "most"}, ValueError, "pairs is 'most'; expected one of 'all', 'occurring'"),
    ({"pairing": "quarter"}, ValueError, "pairing is 'quarter'"),
    ({"scale": 0.0}, ValueError, "scale is 0.0"),
    ({"q": Q[0]}, ValueError, r"q has shape \(8,\); expected \(\.\.\., tokens, d\)"),
    ({"k": K[:0]}, ValueError, r"k has shape \(0, 8\); expected \(\.\.\., tokens, d\) with tokens"),
    ({"k": K[:, :6]}, ValueError, "expected the same number of features"),
    ({"q": Q.astype(int)}, TypeError, "q has dtype int64"),
    ({"frequencies": rfrope.geometric(5)}, ValueError, "frequencies"),
    ({"frequencies": np.zeros((2, 4, 1)), "lags": [[0.0]]}, ValueError, r"expected one set, \(D,\) or \(D, k\)"),
    ({"frequencies": OMEGA[:0]}, ValueError, "expected at least one block"),
    ({"lags": [math.nan]}, ValueError, "lags holds NaN"),
    ({"q_positions": np.arange(7)}, ValueError, "pairs is 'all'; expected pairs='occurring'"),
    ({"pairs": "occurring", "q_positions": np.arange(6)}, ValueError, r"q_positions has shape \(6,\).*\(7,\)"),
    ({"pairs": "occurring", "k_positions": [math.inf] * 5}, ValueError, "expected finite positions"),
    (
        {"pairs": "occurring", "frequencies": np.zeros((4, 2)), "lags": [[0, 0]]},
        ValueError,
        "q_positions is None; expected positions, as the frequencies have 2 axes",
    ),
]


@pytest.mark.parametrize(("change", "error", "message"), BAD_PROFILES, ids=range(len(BAD_PROFILES)))
def test_bad_profiles(change, error, message):
    arguments = GOOD | change
    rest = {"paired": False} | {name: value for name, value in arguments.items() if name not in GOOD}
    with pytest.raises(error, match=message):
        heads.profile(*(arguments[name] for name in GOOD), **rest)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        *OF_FEATURES,
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


def test_standard_errors_count_degrees_of_freedom():
    """Tokens that are there c times leave every mean square as it was: two numbers of them tell a third."""
    rng, n, omega = np.random.default_rng(0), 5, rfrope.geometric(4)
    q, k = 1.0 + rng.standard_normal((2, n, 8))
    squares = [
        float(heads.profile(np.tile(q, (c, 1)), np.tile(k, (c, 1)), 2.0, omega, paired=False).stderr) ** 2
        for c in (1, 2, 3)
    ]
    rows = np.array([[1.0 / (c * n - 1.0), -1.0 / (c * n - 1.0) ** 2] for c in (1, 2, 3)])
    apart, joint = np.linalg.solve(rows[:2], squares[:2])
    assert joint > 0.0
    assert squares[2] == pytest.approx(float(rows[2] @ [apart, joint]), rel=1e-9)


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


def test_an_offset_at_the_end_of_the_range_has_no_error():
    omega = rfrope.geometric(16)
    q, k = by_position(1, 40, offset=-9.5, noise=0.01, omega=omega, rng=np.random.default_rng(0))
    found = heads.effective_offset(q, k, omega, max_lag=9, n_resamples=1)
    assert float(found.offset[0]) == -9.0
    assert math.isnan(float(found.stderr[0]))
