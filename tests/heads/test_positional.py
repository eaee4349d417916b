"""Heads that look at position alone: their weights give the closed form, and the closed form the attention."""

import math

import numpy as np
import pytest
from conftest import rows

import rfrope
from rfrope import heads

RNG = np.random.default_rng(0)
OMEGA = rfrope.geometric(64, base=10_000.0)


def tokens(n, d_model, index=0):
    """Token vectors that are random but for one feature."""
    x = RNG.normal(size=(n, d_model))
    x[:, index] = 1.0
    return x


def closed_form(frequencies, lags, offset, temperature=1.0):
    """Directly, and with phases that are rounded: ``sum cos((lag - offset) . omega) / temperature``."""
    away = np.asarray(lags, dtype=float) - np.asarray(offset, dtype=float)
    phases = away[..., None] * frequencies if frequencies.ndim == 1 else away @ np.swapaxes(frequencies, -1, -2)
    return np.sum(np.cos(phases), axis=-1) / temperature


def softmax(scores):
    powers = np.exp(scores - np.max(scores, axis=-1, keepdims=True))
    return powers / np.sum(powers, axis=-1, keepdims=True)


# -- the weights -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("offset", "pairing"), [(-1, "half"), (3, "interleaved"), (-2.5, "half"), (-700, "half")])
def test_weights_give_the_closed_form(offset, pairing):
    omega, at = rfrope.geometric(6, base=100.0), np.arange(20)
    options = {"offset": offset, "temperature": 0.4, "constant_index": 4, "pairing": pairing}
    w_q, w_k = heads.positional_weights(omega, d_model=9, **options)
    assert w_q.shape == w_k.shape == (12, 9)
    x = tokens(20, 9, 4)
    got = rfrope.scores(x @ w_q.T, x @ w_k.T, at, at, omega, pairing=pairing)
    lags = at - at[:, None]
    np.testing.assert_allclose(got, closed_form(omega, lags, offset, 0.4), atol=1e-11)


def test_weights_read_no_other_feature_than_the_constant():
    w_q, w_k = heads.positional_weights(OMEGA, d_model=5, constant_index=2, offset=-3, temperature=0.25)
    for w in (w_q, w_k):
        assert np.flatnonzero(np.any(w != 0.0, axis=0)).tolist() == [2]
    np.testing.assert_array_equal(w_k[:, 2], np.repeat([1.0, 0.0], 64))
    np.testing.assert_allclose(w_q[:, 2] / 4.0, rfrope.rotate(w_k[:, 2], -3, OMEGA), atol=1e-15)


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
def test_features_beyond_the_rotated_ones_are_0(pairing):
    omega = rfrope.geometric(3)
    w_q, w_k = heads.positional_weights(omega, d_model=4, head_dim=10, pairing=pairing)
    assert w_q.shape == w_k.shape == (10, 4)
    assert not np.any(np.stack([w_q, w_k])[:, 6:])
    x, at = tokens(8, 4), np.arange(8)
    got = rfrope.scores(x @ w_q.T, x @ w_k.T, at, at, omega, pairing=pairing)
    np.testing.assert_allclose(got, closed_form(omega, at - at[:, None], -1), atol=1e-13)
    np.testing.assert_array_equal(w_q[:6], heads.positional_weights(omega, d_model=4, pairing=pairing)[0])


def test_offsets_of_several_axes_and_heads():
    omega = RNG.normal(size=(3, 5, 2))
    at = np.stack(np.meshgrid(np.arange(4), np.arange(3), indexing="ij"), axis=-1).reshape(-1, 2)
    lags = at - at[:, None]
    x = tokens(12, 7)
    for offset in (np.array([-1.0, 2.0]), RNG.normal(size=(3, 1, 2))):
        w_q, w_k = heads.positional_weights(omega, d_model=7, offset=offset)
        assert w_q.shape == w_k.shape == (3, 10, 7)
        got = rfrope.scores(x @ np.swapaxes(w_q, 1, 2), x @ np.swapaxes(w_k, 1, 2), at, at, omega)
        for head in range(3):
            wanted = closed_form(omega[head], lags, offset if offset.ndim == 1 else offset[head, 0])
            np.testing.assert_allclose(got[head], wanted, atol=1e-13)


def test_several_offsets_of_several_axes():
    omega, offsets, lags = RNG.normal(size=(2, 6, 3)), RNG.normal(size=(2, 4, 3)), RNG.normal(size=(5, 3))
    got = heads.positional_scores(lags, omega, offset=offsets, scaled=False)
    for head in range(2):
        each = [closed_form(omega[head], lags, o) for o in offsets[head]]
        np.testing.assert_allclose(got[head], np.sum(each, axis=0), atol=1e-12)


def test_a_head_splits_its_mass_over_two_offsets():
    found = heads.positional_attention(OMEGA, 256, offset=[-1, -6], temperature=1 / 60)
    at = {lag: found.weights[found.lags == lag].item() for lag in (-1, -6)}
    assert at[-1] == pytest.approx(at[-6], rel=1e-9)  # one is the mirror image of the other
    assert found.mass == pytest.approx(sum(at.values()), rel=1e-14)
    assert found.mass > 0.9


# -- the closed form ---------------------------------------------------------------------------------------------------


def test_the_attention_that_wendler_gives():
    assert heads.positional_scores(-1, OMEGA, temperature=1 / 7, scaled=False) == pytest.approx(7.0 * 64, rel=1e-15)
    assert heads.positional_scores(-1, OMEGA, head_dim=256) == pytest.approx(4.0, rel=1e-15)
    found = heads.positional_attention(OMEGA, 1024, scaled=False, temperature=0.5)
    assert found.gap == pytest.approx(2.0 * 1.906, abs=1e-3)
    assert found.gap == pytest.approx(2.0 * np.sum(1.0 - np.cos(OMEGA)), rel=1e-12)
    assert found.rival == 0  # the token itself
    masses = [heads.positional_attention(OMEGA, 1024, temperature=t).mass for t in (0.1, 0.02)]
    assert masses == [pytest.approx(0.728, abs=5e-4), pytest.approx(0.99956, abs=5e-6)]
    assert heads.positional_attention(OMEGA, 2**32 - 1, window=3).lags.tolist() == [-2, -1, 0]


@pytest.mark.parametrize("shape", [(), (2, 3)])
def test_positional_scores_at_lags_of_any_shape(shape):
    lags = RNG.integers(-50, 50, size=shape)
    got = heads.positional_scores(lags, OMEGA, offset=-1.5, temperature=0.3)
    assert got.shape == shape
    np.testing.assert_allclose(got, closed_form(OMEGA, lags, -1.5, 0.3) / math.sqrt(128), atol=1e-12)


# -- attention ---------------------------------------------------------------------------------------------------------

MASKS = rows("heads/positional.json", "masks")


def masked_attention(omega, context, offset, temperature, *, causal=True, window=None, query_position=None):
    """Attention by weights, rotation, scores, a mask and a softmax over all keys; lags and weights of those left."""
    w_q, w_k = heads.positional_weights(omega, d_model=3, offset=offset, temperature=temperature)
    at, x = np.arange(context), tokens(context, 3)
    scores = rfrope.scores(x @ w_q.T, x @ w_k.T, at, at, omega) / math.sqrt(2 * len(omega))
    lags = at - at[:, None]
    seen = (lags <= 0 if causal else lags == lags) & (np.abs(lags) < (window or context))
    weights = softmax(np.where(seen, scores, -np.inf))
    row = context - 1 if query_position is None else query_position
    return lags[row][seen[row]], scores[row][seen[row]], weights[row][seen[row]]


@pytest.mark.parametrize("options", MASKS, ids=str)
def test_attention_is_that_of_the_whole_head(options):
    omega = rfrope.geometric(8, base=50.0)
    found = heads.positional_attention(omega, 12, offset=-2, temperature=0.2, **options)
    lags, scores, weights = masked_attention(omega, 12, -2, 0.2, **options)
    np.testing.assert_allclose(found.scores, scores, atol=1e-13)
    np.testing.assert_allclose(found.weights, weights, atol=1e-13)
    assert found.lags.tolist() == lags.tolist()
    assert found.mass == pytest.approx(np.sum(weights[lags == -2]), abs=1e-13)
    others = scores[lags != -2]
    if not others.size:
        assert found.gap == math.inf
        return
    assert found.gap == pytest.approx(5.0 * 8 / 4.0 - np.max(others), abs=1e-12)
    tied = lags[lags != -2][others > np.max(others) - 1e-12]
    assert found.rival == min(tied, key=lambda lag: (abs(lag), lag))


def test_attention_of_several_heads():
    omega = np.abs(RNG.normal(size=(2, 3, 6, 1)))
    found = heads.positional_attention(omega, 9, offset=[-1.0], temperature=1 / 9)
    for head in np.ndindex(2, 3):
        one = heads.positional_attention(omega[head], 9, offset=[-1], temperature=1 / 9)
        flat = heads.positional_attention(omega[head][:, 0], 9, temperature=1 / 9)
        for name in ("scores", "weights", "mass", "rival", "gap"):
            value = getattr(found, name)[head]
            assert np.shape(value) == np.shape(getattr(one, name)) == ((9,) if name in ("scores", "weights") else ())
            np.testing.assert_allclose(value, getattr(one, name), atol=1e-13)
            np.testing.assert_allclose(getattr(flat, name), getattr(one, name), atol=1e-13)


IMAGE = rfrope.axial(rfrope.geometric(8, base=30.0), rfrope.geometric(8, base=30.0)).frequencies


@pytest.mark.parametrize(("shape", "offsets", "at", "rival"), rows("heads/positional.json", "patches"))
def test_attention_over_patches(shape, offsets, at, rival):
    options = {"temperature": 0.05, "causal": False, "query_position": tuple(at) if rival else None}
    options |= {"offset": offsets[0] if rival else offsets}
    found, lags = heads.positional_attention(IMAGE, tuple(shape), **options), np.array([*np.ndindex(*shape)]) - at
    assert found.lags.tolist() == lags.tolist()
    scores = sum(closed_form(IMAGE, lags, one, 0.05) / math.sqrt(32) for one in offsets)
    np.testing.assert_allclose(found.scores, scores, atol=1e-12)
    np.testing.assert_allclose(found.weights, softmax(scores), atol=1e-13)
    hit = np.array([lag in offsets for lag in lags.tolist()])
    assert found.mass == pytest.approx(np.sum(softmax(scores)[hit]), abs=1e-13)
    assert found.gap == pytest.approx(np.min(scores[hit]) - np.max(scores[~hit]), abs=1e-12)
    assert scores[np.all(lags == found.rival, axis=1)] == pytest.approx(np.max(scores[~hit]), abs=1e-12)
    if rival:
        assert (found.rival.tolist(), found.mass > 0.8) == (rival, True)
        near = heads.positional_attention(IMAGE, tuple(shape), window=2, **options)
        assert near.lags.tolist() == [[a, b] for a in (-1, 0, 1) for b in (-1, 0, 1)]
    else:
        assert np.min(scores[hit]) < np.max(scores[hit]) - 1.0


def test_scores_are_over_the_root_of_all_features_in_them():
    (rope,) = rfrope.from_config({"model_type": "deepseek_v3"})  # 64 that turn, of 192
    lags = np.arange(-5, 1)
    wanted = closed_form(rope.frequencies, lags, -1) / math.sqrt(192)
    np.testing.assert_allclose(heads.positional_scores(lags, rope), wanted, atol=1e-13)


def test_the_rival_of_equal_ones_is_the_nearest():
    lattice = rfrope.arithmetic(4, step=2.0 * math.pi / 10.0)
    found = heads.positional_attention(lattice, 64, offset=-2, temperature=1 / 30)
    assert found.rival == -12
    assert found.gap == pytest.approx(0.0, abs=1e-12)
    assert found.mass == pytest.approx(1.0 / 7.0, rel=1e-6)  # -2, -12, ..., -62
    both = heads.positional_attention(OMEGA, 9, offset=0, causal=False, query_position=4)
    assert both.rival == -1


def test_an_offset_without_a_key_has_no_mass():
    for offset in (-1.5, 3, -900):
        found = heads.positional_attention(OMEGA, 100, offset=offset, temperature=0.02)
        assert found.mass == 0.0
        wanted = closed_form(OMEGA, found.lags, offset, 0.02) / math.sqrt(128)
        assert found.gap == pytest.approx(50.0 * 64 / math.sqrt(128) - np.max(wanted), abs=1e-9)
    assert heads.positional_attention(OMEGA, 100, offset=3).rival == 0
    split = heads.positional_attention(OMEGA, 100, offset=[-3, 5], temperature=0.0125)
    assert split.mass == pytest.approx(split.weights[split.lags == -3].item())


def test_attention_without_float64(jax):
    wanted = heads.positional_attention(OMEGA, 300, offset=-4, temperature=0.05)
    with jax.enable_x64(False) if hasattr(jax, "enable_x64") else jax.experimental.disable_x64():
        for omega in (jax.numpy.asarray(OMEGA), OMEGA.tolist()):
            found = heads.positional_attention(omega, 300, offset=jax.numpy.asarray(-4), temperature=0.05)
            assert found.weights.dtype == jax.numpy.float32
            np.testing.assert_allclose(np.asarray(found.weights), wanted.weights, atol=1e-4)
            assert int(found.rival) == wanted.rival
