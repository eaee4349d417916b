"""Profiles of heads: mean scores by lag, their spread and their standard errors."""

import numpy as np
import pytest

import rfrope
from rfrope import heads

RNG = np.random.default_rng(16)
OMEGA = rfrope.geometric(4, base=100.0)
Q, K = RNG.standard_normal((7, 8)) + 0.5, RNG.standard_normal((5, 8)) - 0.3
LAGS = np.array([0.0, -1.0, -2.5, 40.0, 2.0**40])


def put_at(q, k, lag, omega, pairing="half"):
    """Scores of every query with every key, put at one lag."""
    at = np.zeros((len(q), *np.shape(lag))), np.broadcast_to(lag, (len(k), *np.shape(lag)))
    return rfrope.scores(q, k, *at, omega, pairing=pairing)


# -- all pairs ---------------------------------------------------------------------------------------------------------


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
    assert found.blocks.shape == (width, 5)
    assert np.array_equal(found.lags, LAGS)


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
    assert found.blocks.shape == (2, 3, 4, 3, 1)
    expected = put_at(q[1, 2], k[1, 0], lags[2, 0], omega)
    assert found.mean[1, 2, 2, 0] == pytest.approx(expected.mean(), rel=1e-12)
    assert found.spread[1, 2, 2, 0] == pytest.approx(expected.std(), rel=1e-12)
    single = heads.profile(q[1, 2], k[1, 0], lags[2, 0], omega, paired=False)
    assert single.mean.shape == ()
    assert float(single.mean) == pytest.approx(expected.mean(), rel=1e-12)


def stated_over_true(q, k, lags, **options):
    """Standard errors that are stated, over the standard deviation of the mean score in repetition."""
    found = heads.profile(q, k, lags, OMEGA, **options)
    return np.sqrt(np.mean(found.stderr**2, axis=0)) / found.mean.std(axis=0)


@pytest.mark.parametrize("sizes", [(30, 30), (30, 20)], ids=["as many keys", "fewer keys"])
@pytest.mark.parametrize("together", [True, False], ids=["the same tokens", "other tokens"])
def test_standard_error_is_that_of_repetition(together, sizes):
    """Queries and keys of the same tokens vary together; the error of the mean score knows it."""
    if together and sizes[0] != sizes[1]:
        return
    rng, repeats, (n, m) = np.random.default_rng(2), 3000, sizes
    x = rng.standard_normal((repeats, n, 8))
    y = x if together else rng.standard_normal((repeats, m, 8))
    for of_q, of_k in ((0.7, 0.3), (2.0, 2.0), (2.0, -1.0)):
        q, k, lags = x + of_q, y + of_k, [0.0, -1.0, -2.0, -5.0]
        ratios = stated_over_true(q, k, lags, paired=together)
        np.testing.assert_allclose(ratios, 1.0, atol=0.06)


@pytest.mark.parametrize("together", [True, False], ids=["the same tokens", "other tokens"])
def test_standard_error_counts_the_joint_part_once(together):
    """The joint part of queries and keys is in what either adds, too; it is counted once."""
    q, k = np.random.default_rng(8).standard_normal((2, 20_000, 3, 8)) + 0.7
    np.testing.assert_allclose(stated_over_true(q, k, [0.0, -2.0], paired=together), 1.0, atol=0.08)
    q, k = np.random.default_rng(9).standard_normal((2, 5000, 20, 8))  # there is no other part
    ratios = stated_over_true(q, k, [0.0, -2.0], paired=together)
    assert np.all((ratios > 0.97) & (ratios < 1.25))
    apart = np.matmul(q - q.mean(axis=1, keepdims=True), (k - k.mean(axis=1, keepdims=True)).swapaxes(1, 2))
    joint = np.mean(apart**2, axis=(1, 2)) / 19.0**2  # at lag 0: no error is less
    assert np.all(heads.profile(q, k, 0.0, OMEGA, paired=together).stderr ** 2 >= (1.0 - 1e-9) * joint)


@pytest.mark.parametrize(("n", "m"), [(1, 3), (3, 1)])
def test_one_token_has_no_standard_error(n, m):
    q, k = np.random.default_rng(10).standard_normal((2, 3, 8))
    found = heads.profile(q[:n], k[:m], [0.0], OMEGA, paired=False)
    assert (bool(np.isnan(found.stderr[0])), bool(found.spread[0] >= 0.0)) == (True, True)


def test_gradients_where_nothing_varies_are_zero_and_not_nan(torch):
    q, k = (torch.tensor(np.full((3, 8), value), requires_grad=True) for value in (0.5, 0.25))
    found = heads.profile(q, k, torch.tensor([0.0, -1.0]), torch.tensor(OMEGA))
    assert torch.all(found.spread == 0.0)
    (found.spread.sum() + found.stderr.sum()).backward()
    for x in (q, k):
        assert torch.all(x.grad == 0.0)


def test_waves_of_few_lags_are_held(peak):
    """Those of all would be 134 MB, and as many again of products."""
    x = RNG.standard_normal((2, 256))
    heads.profile(x, x, np.zeros(1), OMEGA)
    peak(anew=True)
    found = heads.profile(x, x, np.arange(-(2.0**15), 0.0), OMEGA)
    assert found.mean.shape == (2**15,)
    assert peak() < 80e6


# -- magnitudes, and phases that keys have learned ---------------------------------------------------------------------


@pytest.mark.parametrize("given", ["no bias", "one", "one for each head"])
def test_profile_of_polar_attention(given):
    """The mean over pairs of the sums over magnitudes, written out."""
    rng = np.random.default_rng(4)
    m, n = rng.gamma(2.0, size=(2, 7, 4)), rng.gamma(1.0, size=(2, 7, 4))
    delta = {"no bias": None, "one": rng.uniform(-3.0, 0.0, 4), "one for each head": rng.uniform(-3.0, 0.0, (2, 4))}
    rope, bias, lags = rfrope.Rope(OMEGA, polar=True), delta[given], LAGS[:4]
    found = heads.profile(m, n, lags, rope, shift=bias, scale=0.5)
    bias = np.zeros(4) if bias is None else bias
    waves = np.cos(lags[:, None] * OMEGA + np.reshape(bias, (-1, 1, 4)))  # (heads or 1, lags, D)
    scores = 0.5 * np.einsum("hqi,hki,hli->hlqk", m, n, np.broadcast_to(waves, (2, *waves.shape[1:])))
    np.testing.assert_allclose(found.mean, scores.mean(axis=(2, 3)), rtol=1e-12)
    np.testing.assert_allclose(found.spread, scores.std(axis=(2, 3)), rtol=1e-9, atol=1e-12)
    if given == "no bias":
        assert not np.nan_to_num(found.sine).any()


def test_a_shift_of_keys_is_that_of_scores():
    shift = np.array([0.3, -2.0])
    found = heads.profile(Q, K, LAGS, OMEGA[:2], shift=shift, paired=False)
    at = np.zeros((len(Q),)), np.zeros((len(K),))
    for lag, mean in zip(LAGS, found.mean, strict=True):
        wanted = rfrope.scores(Q, K, at[0], at[1] + lag, OMEGA[:2], shift=shift).mean()
        assert mean == pytest.approx(wanted, rel=1e-12)


def test_gradients_reach_magnitudes_and_a_shift(torch):
    m, n = (torch.rand(7, 4, dtype=torch.float64, requires_grad=True) for _ in range(2))
    delta = torch.linspace(-3.0, -0.5, 4, dtype=torch.float64, requires_grad=True)
    rope = rfrope.Rope(torch.tensor(OMEGA), polar=True)
    heads.profile(m, n, torch.tensor([0.0, -2.0]), rope, shift=delta).mean.sum().backward()
    lags, omega = torch.tensor([0.0, -2.0])[:, None], torch.tensor(OMEGA)
    held = delta.detach().requires_grad_()
    (m.detach().mean(0) * n.detach().mean(0) * torch.cos(lags * omega + held)).sum().backward()
    torch.testing.assert_close(delta.grad, held.grad)
    assert float(m.grad.abs().min()) > 0.0
