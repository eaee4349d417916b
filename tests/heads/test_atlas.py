"""The atlas of heads: sums over pairs held against every pair formed one by one, and heads that were planted."""

import dataclasses
import importlib
import math

import numpy as np
import pytest

import rfrope
from rfrope import heads
from rfrope.heads import documents

OMEGA = rfrope.geometric(5, base=100.0)
MODULE = importlib.import_module("rfrope.heads.atlas")  # the function has its name


def as_complex(x, pairing):
    """Blocks of features ``(..., d)`` as complex numbers, and the features that are not turned."""
    turned = x[..., : 2 * OMEGA.size]
    first, second = (turned[..., 0::2], turned[..., 1::2]) if pairing == "interleaved" else np.split(turned, 2, axis=-1)
    return first + 1j * second, x[..., 2 * OMEGA.size :]


class Pairs:
    """Every pair of one document, from the definition: parts ``(tokens, tokens, blocks)`` and changes by stilling."""

    def __init__(self, q, k, scale, skip, pairing):
        (z_q, rest_q), (z_k, rest_k) = as_complex(q, pairing), as_complex(k, pairing)
        at = np.arange(len(q))
        self.lag = at[None, :] - at[:, None]
        z = scale * np.conj(z_q)[:, None] * z_k[None]
        turned = z * np.exp(1j * self.lag[..., None] * OMEGA)
        self.parts = np.concatenate([turned.real, scale * rest_q[:, None] * rest_k[None]], axis=-1)
        self.changes = (z - turned).real
        self.seen = (self.lag <= 0) & (at[:, None] >= skip) & (at[None, :] >= skip)
        self.skip = skip

    @property
    def scores(self):
        return np.sum(self.parts, axis=-1)

    def products(self):
        found, count = 0.0, np.sum(self.seen)
        for row in range(self.skip, len(self.lag)):
            change = self.changes[row, self.skip : row + 1]
            change = change - change.mean(axis=0)
            found = found + change.T @ change / count
        return found


@pytest.mark.parametrize(("pairing", "rest", "skip"), [("half", 0, 0), ("interleaved", 4, 2)])
def test_sums_of_a_document_are_those_over_every_pair(pairing, rest, skip):
    rng = np.random.default_rng(1)
    n, width = 2 * documents._CHUNK + 7, 2 * OMEGA.size + rest
    q, k = rng.normal(size=(2, n, width)) + rng.normal(size=(2, 1, width))
    head = documents.Head.prepare(OMEGA, pairing, 0.3, skip, n, rest)
    found = documents.sum_document(q[None], k[None], [head])
    pairs = Pairs(q, k, 0.3, skip, pairing)
    parts, scores, lags = pairs.parts[pairs.seen], pairs.scores[pairs.seen], pairs.lag[pairs.seen]
    covariance = np.mean((parts - parts.mean(axis=0)) * (scores - scores.mean())[:, None], axis=0)
    np.testing.assert_allclose(found.covariance[0], covariance, atol=1e-13)
    by_lag = [np.mean(scores[lags == -lag]) - np.mean(scores) for lag in range(n - skip)]
    np.testing.assert_allclose(found.by_lag[0], by_lag, atol=1e-13)
    np.testing.assert_allclose(found.level, np.mean(scores), atol=1e-13)
    np.testing.assert_allclose(found.measured[0], pairs.products(), atol=1e-12)
    rows = range(n // 2, n)
    seen = [pairs.scores[row, : row + 1] for row in rows]
    weights = [np.exp(row[0]) / np.sum(np.exp(row)) for row in seen]
    np.testing.assert_allclose(found.sink[0, 0], np.mean(weights), rtol=1e-12)
    advantage = np.mean([row[0] - np.mean(row[1:]) for row in seen])
    np.testing.assert_allclose(np.sum(found.sink[0, 1:]), advantage, atol=1e-12)


def test_changes_are_predicted_where_queries_and_keys_are_independent():
    rng = np.random.default_rng(2)
    head = documents.Head.prepare(OMEGA, "half", 0.3, 0, 60, 0)
    (mean_q, mean_k), mix = rng.normal(size=(2, 1, 10)), rng.normal(size=(2, 10, 10))
    predicted = measured = 0.0
    for _ in range(60):
        q, k = (mean + rng.normal(size=(60, 10)) @ one for mean, one in zip((mean_q, mean_k), mix, strict=True))
        found = documents.sum_document(q[None], k[None], [head])
        predicted, measured = predicted + found.predicted[0], measured + found.measured[0]
    np.testing.assert_allclose(predicted, measured, atol=0.03 * np.max(measured))
    off = ~np.eye(OMEGA.size, dtype=bool)
    assert np.max(np.abs(measured[off])) > 0.1 * np.max(measured)  # what blocks do together is no small part of it


def drawn(rng, count=6, number=1, tokens=96, blocks=OMEGA.size):
    """Contents that vary from token to token, ``(count, number, tokens, 2 blocks)``, of queries and of keys."""
    return rng.normal(size=(2, count, number, tokens, 2 * blocks))


def plant(x, block, z):
    """Add a complex number to a block of features in the half layout."""
    blocks = x.shape[-1] // 2
    x[..., block] += np.real(z)
    x[..., blocks + block] += np.imag(z)


def within(estimate, value, head=0, least=0.0):
    """Whether an estimate of a head is a value, to four of its errors."""
    return abs(estimate.value[head] - value) <= max(4.0 * estimate.stderr[head], least)


def test_shares_are_those_of_the_blocks_and_sum_to_one():
    """Independent normal features: the variance of a block's part is the product of the variances of q and of k."""
    rng, spread = np.random.default_rng(3), np.array([0.5, 1.0, 2.0, 1.5, 0.2, 0.8])
    q, k = rng.normal(size=(2, 8, 1, 400, 12))
    q *= np.concatenate([spread[:5], spread[:5], [0.8, 0.8]])
    found = heads.atlas(q, k, rfrope.Rope(OMEGA, head_dim=12))
    expected = spread**2 / np.sum(spread**2)
    np.testing.assert_allclose(found.share.value[0], expected[:5], atol=0.02)
    assert np.all(np.abs(found.share.value[0] - expected[:5]) <= 4.5 * found.share.stderr[0])
    assert within(found.unturned, expected[5])
    assert within(found.variance, 2.0 * np.sum(spread**2) / 12.0)
    total = np.sum(found.share.value, axis=1) + found.unturned.value
    np.testing.assert_allclose(total, 1.0, atol=1e-14)


def test_a_head_of_position_alone_is_explained_by_the_lag_and_one_of_content_is_not():
    rng = np.random.default_rng(5)
    q, k = drawn(rng, 8, 3)
    w_q, w_k = heads.positional_weights(OMEGA, d_model=1, offset=-3.0, temperature=0.2)
    q[:, 1], k[:, 1] = w_q[:, 0], w_k[:, 0]
    q[:, 2], k[:, 2] = w_q[:, 0] + 0.3 * q[:, 2], w_k[:, 0] + 0.3 * k[:, 2]
    found = heads.atlas(q, k, OMEGA)
    assert within(found.lag_explained, 0.0)
    assert 0.0 < found.lag_explained.stderr[0] < 0.02
    for name in ("lag_explained", "curve_explained"):
        np.testing.assert_allclose(getattr(found, name).value[1], 1.0, atol=1e-12)
    assert 0.5 < found.lag_explained.value[2] < 0.99
    assert abs(found.lag_explained.value[2] - found.curve_explained.value[2]) < 0.01
    np.testing.assert_allclose(found.offset.value[1:], -3.0, atol=0.05)
    assert 0.0 < found.offset.stderr[2] < 0.05
    assert abs(found.offset.value[2] + 3.0) <= 4.0 * found.offset.stderr[2]
    np.testing.assert_allclose(found.curve.value[1], found.by_lag.value[1], atol=1e-12)


def test_the_curve_is_the_profile_of_the_means_at_each_lag():
    q, k = drawn(np.random.default_rng(7), 3)
    plant(q, 2, 1.0 + 2.0j)
    plant(k, 2, -1.0j)
    found = heads.atlas(q, k, OMEGA, skip=4, scale=0.5)
    flat = [x[:, 0, 4:].reshape(-1, 10) for x in (q, k)]
    expected = heads.profile(*flat, found.lags, OMEGA, scale=0.5).mean
    np.testing.assert_allclose(found.curve.value[0], expected, atol=1e-12)
    assert found.lags[1] == -1


def test_concentration_is_one_for_a_block_that_is_the_same_in_all_tokens():
    q, k = drawn(np.random.default_rng(8), 8)
    q[..., [1, 6]] = [3.0, 4.0]
    plant(k, 3, 3.0 * np.exp(0.7j))
    plant(q, 3, 2.0 * np.exp(-0.5j))
    found = heads.atlas(q, k, OMEGA)
    lengths = [np.mean(np.hypot(x[:, 0, 1:, :5], x[:, 0, 1:, 5:]), axis=(0, 1)) for x in (q, k)]
    assert found.concentration_q.value[0, 1] == pytest.approx(1.0, abs=1e-12)
    expected = 9.0 / (9.0 + 2.0)  # |E z|^2 + two unit variances
    assert abs(found.concentration_k.value[0, 3] - expected) <= 4.0 * found.concentration_k.stderr[0, 3]
    assert found.concentration_k.value[0, 0] < 0.02
    assert abs(found.angle.value[0, 3] - 1.2) <= 4.0 * found.angle.stderr[0, 3]
    assert found.angle.stderr[0, 3] < 0.1
    np.testing.assert_array_equal(found.norm_order, np.argsort(found.strength.value, axis=1))
    assert not np.array_equal(found.norm_order[0], np.argsort(lengths[0] + lengths[1]))
    np.testing.assert_allclose(found.strength.value[0], lengths[0] * lengths[1] / math.sqrt(10.0), rtol=1e-12)


def test_an_error_of_an_angle_does_not_see_the_cut_at_half_a_turn():
    q, k = drawn(np.random.default_rng(9), 8)
    plant(q, 2, 5.0)
    plant(k, 2, -5.0)
    found = heads.atlas(q, k, OMEGA)
    assert abs(abs(found.angle.value[0, 2]) - math.pi) < 0.1
    assert found.angle.stderr[0, 2] < 0.1


def test_outlier_pairs_are_found_and_held_against_the_context():
    """A block of 0.01 radians a position: a turn in 629 positions, half of one in 315."""
    omega = np.array([1.0, 0.3, 0.1, 0.03, 0.01])
    q, k = drawn(np.random.default_rng(10), 4, 2)
    for block, head in ((4, 0), (0, 1)):
        plant(q[:, head], block, 30.0)
        plant(k[:, head], block, 30.0j)
    q[:, 1] *= 1e4  # each head has a median of its own
    for context, partial in ((400, True), (700, False)):
        found = heads.atlas(q, k, omega, context=context)
        np.testing.assert_array_equal(found.outlier[:, [0, 4]], [[False, True], [True, False]])
        assert np.sum(found.outlier) == 2
        assert bool(found.partial[4]) == partial
        said = f"2 pairs of features are outliers; {int(partial)} of them complete no turn within {context} positions"
        assert said in str(found)
        np.testing.assert_array_equal(found.head_table()["outliers"], [1, 1])
    assert not found.partial[0]


@pytest.mark.parametrize(("context", "partial"), [(10, True), (11, False)])
def test_what_a_context_holds(context, partial):
    """Of 0.6 radians, forwards or not, 10 positions make no turn."""
    rope = rfrope.Rope([0.3, -0.6], context=context)
    for found in (heads.atlas(Q, K, rope), heads.atlas(Q, K, rope.frequencies, context=context)):
        assert (found.context, found.partial[1]) == (context, partial)


def test_a_sink_by_a_constant_key_and_one_by_a_slow_pair_are_told_apart():
    """Head 0: the first key is unlike the others. Head 1: all keys alike, in a block by which far lags score high."""
    omega, n = np.array([1.0, 0.3, 0.1, 0.001, math.pi / 96]), 96
    q, k = drawn(np.random.default_rng(11), 6, 3)
    plant(q[:, 0], 3, 6.0)
    plant(k[:, 0, 0], 3, 40.0)
    plant(q[:, 1], 4, 12.0)
    plant(k[:, 1], 4, 12.0 * np.exp(1j * omega[4] * n))  # highest n positions back
    found = heads.atlas(q, k, omega, scale=0.5)
    key, slow, fast, content = (getattr(found, f"sink_{name}") for name in ("key", "slow", "fast", "content"))
    assert found.sink.value[0] > 0.9
    assert found.sink.value[1] > 3.0 * found.sink.value[2]
    assert within(found.sink, 1.0 / 73.0, head=2, least=0.04)  # content alone, over 49 to 96 keys
    assert key.value[0] > 50.0
    assert abs(slow.value[0]) < 5.0
    assert within(key, 0.0, head=1, least=1.0)
    # the mean of cos(pi - u) over the lags, from the definition
    rows = [(math.cos(math.pi * (1 - m / n)), np.mean(np.cos(math.pi * (1 - np.arange(m) / n)))) for m in range(48, 96)]
    expected = 72.0 * np.mean([first - others for first, others in rows])
    assert within(slow, expected, head=1, least=1.5)
    assert expected > 10.0
    for one in (fast, content):
        assert np.all(np.abs(one.value) < 3.0)
    for turn, other in ((95.5, "sink_fast"), (94.5, "sink_slow")):  # lags reach to 95
        found = heads.atlas(q[:, 1:2], k[:, 1:2], np.full(5, 2.0 * math.pi / turn))
        np.testing.assert_array_equal(getattr(found, other).value, 0.0)


def test_stilled_blocks_change_logits_as_measured_and_the_order_is_that_of_the_least_change():
    q, k = drawn(np.random.default_rng(12), 4, 2)
    plant(q, 4, 4.0)
    plant(k, 4, 4.0)  # slow and strong: norms would keep it, and its rotation does little
    found = heads.atlas(q, k, np.array([1.0, 0.5, 0.2, 0.1, 1e-4]), skip=0, scale=0.3)
    assert np.all(found.order[:, 0] == 4)
    assert np.all(found.norm_order[:, -1] == 4)
    np.testing.assert_array_equal(found.change.value[:, 0], 0.0)
    assert np.all(found.change.value[:, 1:5] < found.norm_change.value[:, 1:5])
    np.testing.assert_allclose(found.change.value[:, 5], found.norm_change.value[:, 5], rtol=1e-12)
    np.testing.assert_allclose(found.predicted.value[:, 1:], found.change.value[:, 1:], rtol=0.15)
    still, changes = found.order[0, :3], []
    for one in range(4):  # from two rotations of all features
        a, b = q[one, 0], k[one, 0]
        before, after = found.frequencies, found.frequencies.copy()
        after[still] = 0.0
        at = np.arange(96)
        moved = 0.3 * (rfrope.scores(a, b, at, at, after) - rfrope.scores(a, b, at, at, before))
        for row in range(96):
            seen = moved[row, : row + 1]
            changes.append(np.sum((seen - seen.mean()) ** 2))
    expected = math.sqrt(np.sum(changes) / (4 * 96 * 97 / 2))
    assert found.change.value[0, 3] == pytest.approx(expected, rel=1e-10)
    can = found.removable_blocks(0.1)
    assert np.all(can[:, 4])
    assert np.sum(can) == 2
    assert np.all(found.removable_blocks(100.0))


def test_the_order_counts_what_blocks_do_together():
    """Two blocks that undo each other go together, though each alone changes more than the third."""
    greedy = MODULE.greedy_order
    products = np.array([[4.0, -3.9, 0.0], [-3.9, 4.0, 0.0], [0.0, 0.0, 3.0]])
    np.testing.assert_array_equal(greedy(products), [2, 0, 1])
    products[2, 2] = 5.0
    np.testing.assert_array_equal(greedy(products), [0, 1, 2])
    made = np.random.default_rng(20).normal(size=(8, 8, 8))
    for products in made @ made.swapaxes(1, 2):  # of each set that is one larger, the one with the least sum
        order: list[int] = []
        for _ in range(8):
            sums = {one: np.sum(products[np.ix_([*order, one], [*order, one])]) for one in {*range(8)} - {*order}}
            order.append(min(sums, key=sums.__getitem__))
        np.testing.assert_array_equal(greedy(products), order)


def test_errors_are_those_of_the_mean_for_what_is_a_mean_over_documents():
    """The jackknife of a mean is its usual standard error."""
    q, k = drawn(np.random.default_rng(13), 5, 2)
    found = heads.atlas(q, k, OMEGA)
    each = np.stack(
        [heads.atlas(np.stack([a] * 3), np.stack([b] * 3), OMEGA).sink.value for a, b in zip(q, k, strict=True)]
    )
    np.testing.assert_allclose(found.sink.value, each.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(found.sink.stderr, each.std(axis=0, ddof=1) / math.sqrt(5.0), rtol=1e-10)


def test_heads_share_keys_and_a_rope_says_pairing_and_factor():
    rng = np.random.default_rng(14)
    q, k = rng.normal(size=(3, 4, 40, 10)), rng.normal(size=(3, 2, 40, 10))
    found = heads.atlas(q, k, OMEGA)
    alone = heads.atlas(q, np.repeat(k, 2, axis=1), OMEGA)
    np.testing.assert_array_equal(found.share.value, alone.share.value)
    layout = rfrope.convert_pairing
    rope = rfrope.Rope(OMEGA, pairing="interleaved", attention_factor=1.5)
    other = heads.atlas(layout(q, "half", "interleaved"), layout(k, "half", "interleaved"), rope)
    np.testing.assert_allclose(other.variance.value, 1.5**4 * found.variance.value, rtol=1e-12)


def test_a_head_with_a_set_of_its_own_is_read_by_it_and_its_law_is_named():
    laws = [rfrope.kernels.parse(text) for text in ("gaussian(scale=12)", "log_uniform(low=0.002, high=0.8)")]
    sets = np.stack([rfrope.sample(law, 64, design="quantile") for law in laws])
    rng = np.random.default_rng(22)
    q, k = rng.normal(size=(3, 2, 12, 128)), rng.normal(size=(3, 1, 12, 128))
    found = heads.atlas(q, k, rfrope.Rope(sets[:, :, None]), context=256)
    for head, (law, named) in enumerate(zip(laws, found.nearest_laws(), strict=True)):
        assert named.kernel.name == law.name
        for field in set(dataclasses.asdict(law)) - {"ndim"}:
            assert getattr(named.kernel, field) == pytest.approx(getattr(law, field), rel=0.1)
        assert named.rms == pytest.approx(named.design_rms, abs=0.01)  # it errs as so many blocks of the law do
        alone = heads.atlas(q[:, head : head + 1], k, sets[head], context=256)
        for name in ("share", "curve", "offset", "predicted"):
            np.testing.assert_array_equal(getattr(found, name).value[head], getattr(alone, name).value[0])
        own = {name: column[64 * head : 64 * head + 64] for name, column in found.block_table().items()}
        for name in ("frequency", "partial"):
            np.testing.assert_array_equal(own[name], alone.block_table()[name])
        assert alone.nearest_laws() == (named,)
    still = heads.atlas(q[:, :1], k, np.where(np.arange(64) < 60, sets[0], 0.0), context=256)
    (law,) = still.nearest_laws()  # of the blocks that turn
    assert law == rfrope.analysis.fit_kernel(sets[0][:60], 255)[0]
    assert dataclasses.replace(still, context=7).nearest_laws() == (None,)  # too few lags to tell kernels apart


def test_tables_have_a_row_for_each_head_and_each_block():
    q, k = drawn(np.random.default_rng(15), 3, 2)
    builder = heads.AtlasBuilder(OMEGA)
    for one in range(3):
        builder.add(q[one], k[one])
    found = builder.finish([(3, 0), (4, 7)])
    table, blocks = found.head_table(), found.block_table()
    assert table["layer"].tolist() == [3, 4]
    assert {len(column) for column in table.values()} == {2}
    assert {len(column) for column in blocks.values()} == {10}
    head, block = np.divmod(np.arange(10), 5)  # of each row: all blocks of a head before those of the next
    rows = {"layer": np.array([3, 4])[head], "head": np.array([0, 7])[head], "block": block, "frequency": OMEGA[block]}
    rows |= {name: getattr(found, name).value[head, block] for name in ("share", "strength", "angle")}
    rows |= {"partial": found.partial[block], "outlier": found.outlier[head, block]}
    for name, expected in rows.items():
        np.testing.assert_array_equal(blocks[name], expected, err_msg=name)
    for rank, order in (("rank", found.order), ("norm_rank", found.norm_order)):
        np.testing.assert_array_equal(order[head, blocks[rank]], block)
    np.testing.assert_array_equal(table["norm_change_half"], found.norm_change.value[:, 2])
    assert {name for name in table if f"{name}_stderr" in table} >= {"variance", "offset", "lag_explained", "sink"}


def test_blocks_are_stilled_as_far_as_the_change_and_twice_its_error_allow():
    found = heads.atlas(*drawn(np.random.default_rng(21), 3, 3), OMEGA)
    value = np.zeros((3, 6))
    value[:, 1:] = [0.05, 0.12, 0.05, 0.05, 0.5], [0.05, 0.05, 0.07, 0.09, 0.5], [0.09, 0.05, 0.05, 0.05, 0.05]
    found = dataclasses.replace(found, change=heads.HeadEstimate(value, np.full_like(value, 0.01)))
    for head, count in enumerate((1, 3, 0)):
        assert {*np.flatnonzero(found.removable_blocks(0.1)[head])} == {*found.order[head, :count]}
    np.testing.assert_array_equal(found.head_table()["removable_blocks"], [1, 3, 0])
    assert str(found).startswith("Atlas of 3 heads of 5 blocks, 3 documents of 96 tokens")


Q, K = np.random.default_rng(16).normal(size=(2, 3, 2, 9, 8))


def test_the_axes_of_sections_count_alike_in_a_text_and_the_last_features_may_turn():
    found = heads.atlas(Q, K, rfrope.Rope(rfrope.geometric(4), sections=(2, 1, 1)))
    np.testing.assert_array_equal(found.share.value, heads.atlas(Q, K, rfrope.geometric(4)).share.value)
    (rope,) = rfrope.from_config({"model_type": "deepseek_v3"})
    q, k = np.random.default_rng(0).standard_normal((2, 3, 1, 12, 64))
    np.testing.assert_allclose(heads.atlas(q, k, rope).share.value.sum(axis=1), 1.0, atol=1e-12)
