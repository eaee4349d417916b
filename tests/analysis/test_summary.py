"""The summary of frequencies: every number against a plain computation, and a text that says them."""

import json
import math

import numpy as np
import pytest
from campaign import campaign, sparse

import rfrope
from rfrope import analysis

pytestmark = pytest.mark.usefixtures("quick_fits")
LLAMA = {"rope_type": "llama3", "rope_theta": 500_000.0, "factor": 8.0, "original_max_position_embeddings": 8192}
LLAMA |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
SETS = {
    "standard": (rfrope.geometric(64), 4096),
    "long": (rfrope.geometric(64, base=5e5), 131_072),
    "llama3": (rfrope.models.from_rope_parameters(LLAMA, head_dim=128).frequencies, 131_072),
    "few": (np.array([0.7, 0.03]), 100),
    "one": (np.array([0.01]), 50),
    "with zeros": (np.array([1.0, 0.1, 0.0, 0.0]), 300),
    "lattice": (2.0 * np.pi / 100.0 * np.arange(1, 9), 150),
    "both signs": (np.array([-0.3, 0.02, 0.5]), 77),
}

each = pytest.mark.parametrize("name", sparse(SETS, lambda name: name not in ("long", "few", "lattice")))


@campaign
@each
def test_every_number(name, kept_fits):
    omega, context = SETS[name]
    summary = analysis.summarise(omega, context)
    (axis,) = summary.axes
    lags = np.arange(context)
    parts = np.array_split(lags, 1 + context // 4096)
    curve = np.concatenate([np.mean(np.cos(part[:, None] * omega), axis=1) for part in parts])
    turning = np.abs(omega[omega != 0.0])

    def first(where, start=1):
        hits = np.flatnonzero(where[start:])
        return int(hits[0]) + start if hits.size else None

    below = first(curve < 0.9)
    assert (summary.n_blocks, summary.context, summary.attention_factor) == (len(omega), context, 1.0)
    assert summary.random_std == pytest.approx((2 * len(omega)) ** -0.5, rel=1e-15)
    waves = 2 * np.pi / turning
    assert (axis.shortest, axis.longest) == pytest.approx((waves.min(), waves.max()), rel=1e-14)
    counts = axis.n_turning, axis.n_dead, axis.n_still
    assert counts == (len(waves), np.sum(waves > context), np.sum(waves / 4 > context))
    assert (axis.half_lag, axis.first_negative_lag) == (first(curve < 0.5), first(curve < 0.0))
    assert axis.negative_share == np.mean(curve[1:] < -1e-13)
    assert axis.lowest == pytest.approx(curve[1:].min(), abs=1e-9)
    assert curve[axis.lowest_lag] == pytest.approx(curve[1:].min(), abs=1e-9)
    assert axis.aliasing_distance == (None if below is None else first(curve >= 0.9, below))
    assert axis.integral_rule == pytest.approx(context / 0.61650548562, rel=1e-10)
    at, values = np.asarray(axis.curve).T
    assert [*at[:2], at[-1]] == [0, 1, context - 1]
    np.testing.assert_allclose(values, curve[at.astype(int)], atol=1e-9)
    assert axis.fit == analysis.fit_kernel(turning, context - 1)[0]


@campaign
@pytest.mark.parametrize("base", [100.0, 150_000.0, 1_234_567.0])
def test_the_base_of_a_ladder_is_found(base):
    for n, dtype, digits in ((2, "float64", 1e-6), (64, "float64", 1e-6), (64, "float32", 1e-5)):
        ladder = rfrope.geometric(n, base=base).astype(dtype)
        assert analysis.summarise(ladder, 64).axes[0].base == pytest.approx(base, rel=digits)
    for name in ("llama3", "few", "one", "lattice", "both signs"):
        assert analysis.summarise(*SETS[name]).axes[0].base is None


@each
def test_the_text_says_what_the_fields_hold(name, quick_fits):
    summary = analysis.summarise(*SETS[name], name="these")
    lines, axis = str(summary).splitlines(), summary.axes[0]
    assert lines[0].startswith(f"these: {summary.n_blocks} frequenc")
    assert lines[1].startswith("In short: equal content first scores below 1/2 at ")
    for label, words in (
        ("turn", f"{axis.n_turning}, once in {axis.shortest:.4g}"),
        ("complete no turn", f"{axis.n_dead} within the context, {axis.n_still} not even"),
        ("below one half", "at no distance" if axis.half_lag is None else f"first at distance {axis.half_lag}"),
        ("below 0", "at no distance" if axis.first_negative_lag is None else f"at distance {axis.first_negative_lag};"),
        ("lowest", f"{axis.lowest:.3f}, at distance {axis.lowest_lag}"),
        ("0.9 or more again", "" if axis.aliasing_distance is None else f"at distance {axis.aliasing_distance}"),
        ("of a random token", f"{summary.random_std:.3f}"),
        ("base", "none" if axis.base is None else f"{axis.base:.6g}"),
        ("closest kernel", f"{axis.fit.label}, rms error {axis.fit.rms:.2g}"),
    ):
        assert any(line.startswith(f"  {label} ") and words in line for line in lines), label
    assert ("not near" in lines[-1]) == (axis.fit.rms > 0.15)
    assert max(map(len, lines)) <= 120


def test_features_that_are_not_rotated_are_blocks_that_stand_still():
    """Partial rotary, as unit vectors in random directions see it."""
    omega, rng = rfrope.geometric(4, base=100.0), np.random.default_rng(0)
    summary = analysis.summarise(omega, 40, head_dim=20)
    x = rng.standard_normal((20_000, 20))
    x /= np.linalg.norm(x, axis=-1, keepdims=True)
    other = rng.permuted(x, axis=-1)
    for lag, value in summary.axes[0].curve:
        own = np.sum(x * rfrope.rotate(x, lag, omega), axis=-1)
        assert np.mean(own) == pytest.approx(value, abs=5.0 * np.std(own) / 20_000**0.5 + 1e-12)
    crossed = np.sum(x * rfrope.rotate(other[::-1], 9, omega), axis=-1)
    assert np.std(crossed) == pytest.approx(summary.random_std, rel=0.05)
    (axis,), (plain,) = summary.axes, analysis.summarise(omega, 40).axes
    assert axis.lowest > 0.35 > 0.0 > plain.lowest  # the plain mean of the four blocks goes far below
    assert axis.fit == plain.fit
    assert "4 frequencies for 8 of the 20 features of a head" in str(summary)
    louder = analysis.summarise(omega, 40, head_dim=20, attention_factor=2.0)
    assert "the part of a score from rotated features by 4" in str(louder)


def test_proportional_is_read_as_partial_is():
    values = {"rope_theta": 1e6, "rope_type": "proportional", "partial_rotary_factor": 0.25}
    stretched = rfrope.models.from_rope_parameters(values, head_dim=64)
    summary = analysis.summarise(stretched, 512)
    partial = analysis.summarise(stretched.frequencies[:8], 512, head_dim=64)
    (one,), (other,) = summary.axes, partial.axes
    assert (one.curve, one.n_turning, one.base) == (other.curve, 8, pytest.approx(1e6, rel=1e-6))


def test_values_that_cannot_be_told_from_0_are_not_below_it():
    for omega in (np.repeat([0.0, np.pi], 2048), np.array([0.0, 2 * np.pi / 3, 2 * np.pi / 3])):
        axis = analysis.summarise(omega, 2000).axes[0]
        assert (axis.first_negative_lag is None) == (axis.negative_share == 0.0) == (axis.lowest == 0.0)


def test_blocks_that_stand_still():
    summary = analysis.summarise(np.zeros(4), 16)
    axis = summary.axes[0]
    assert (axis.n_turning, axis.n_dead, axis.fit, axis.lowest) == (0, 0, None, 1.0)
    assert "No block turns" in str(summary)
    assert json.loads(json.dumps(summary.to_dict(), allow_nan=False))["axes"][0]["longest"] is None


def test_several_axes():
    sets = rfrope.geometric(8, base=100.0), rfrope.geometric(4, base=50.0)
    summary = analysis.summarise(rfrope.axial(*sets), 32)
    assert [axis.n_turning for axis in summary.axes] == [8, 4]
    for number, (axis, one) in enumerate(zip(summary.axes, sets, strict=True)):
        padded = np.concatenate([one, np.zeros(12 - len(one))])
        alone = analysis.summarise(padded, 32).axes[0]
        np.testing.assert_allclose(axis.curve, alone.curve, atol=1e-15)
        assert (axis.axis, axis.half_lag, axis.lowest_lag) == (number, alone.half_lag, alone.lowest_lag)
        assert f"Lags along axis {number}" in str(summary)


def test_objects_that_hold_frequencies(tmp_path):
    yarn = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 8.0, "original_max_position_embeddings": 512}
    scaled = rfrope.models.from_rope_parameters(yarn, head_dim=32)
    summary = analysis.summarise(scaled, 4096)
    assert summary.attention_factor == scaled.attention_factor == pytest.approx(0.1 * math.log(8) + 1)
    assert f"every score by {scaled.attention_factor**2:.6g}" in str(summary)
    assert analysis.summarise(scaled, 4096, attention_factor=1.0).attention_factor == 1.0
    rfrope.save(tmp_path / "set.npz", scaled.frequencies)
    assert analysis.summarise(rfrope.load(tmp_path / "set.npz"), 4096).axes == summary.axes
    config = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 2, "max_position_embeddings": 2048}
    (part,) = rfrope.from_config(config | {"rope_theta": 1e4})
    assert analysis.summarise(part) == analysis.summarise(rfrope.geometric(16), 2048)


# -- sentences, counted on random content ------------------------------------------------------------------------------


def scores_of_random_tokens(omega, lag, n=20_000):
    """Scores of random unit tokens with their own like and with a random other, at a distance."""
    tokens = np.random.default_rng(0).normal(size=(2, n, 2 * len(omega)))
    tokens /= np.linalg.norm(tokens, axis=-1, keepdims=True)
    return np.sum(tokens[0] * rfrope.rotate(tokens, float(lag), omega), axis=-1)


@pytest.mark.parametrize("name", ["standard", "long", "llama3", "lattice"])
def test_numbers_on_scores_are_true_of_random_content(name):
    omega, context = SETS[name]
    summary = analysis.summarise(omega, context)
    (axis,) = summary.axes
    own, other = scores_of_random_tokens(omega, axis.lowest_lag)
    slack = 5.0 * np.std(own) / len(own) ** 0.5
    assert np.mean(own) == pytest.approx(axis.lowest, abs=slack)  # "averaged over contents"
    assert np.mean(other) == pytest.approx(0.0, abs=5.0 * summary.random_std / len(own) ** 0.5)  # "0 on average"
    assert np.std(other) == pytest.approx(summary.random_std, rel=0.03)  # "standard deviation"
    if axis.aliasing_distance is not None:  # positions so far apart look nearly the same
        assert np.mean(scores_of_random_tokens(omega, axis.aliasing_distance)[0]) > 0.9 - slack


def test_a_context_for_each_axis():
    omega = rfrope.sample("gaussian(scale=8, ndim=2)", 8, rng=0)
    plane = analysis.summarise(omega, (64, 16))
    alone = [analysis.summarise(omega, context).axes for context in (64, 16)]
    assert (plane.context, plane.axes) == ((64, 16), (alone[0][0], alone[1][1]))
    assert analysis.summarise(omega, [16, 16]).context == analysis.summarise(omega, 16).context == 16
    assert analysis.summarise(rfrope.Rope(omega, context=(64, 16))) == plane


def test_sections_are_blocks_of_one_text():
    """Positions of a text are the same on all axes of sections: one axis is summed up."""
    plain, cut = (rfrope.Rope(rfrope.geometric(8), sections=sections, context=64) for sections in (None, (2, 3, 3)))
    assert len(analysis.summarise(cut).axes) == 1
    assert analysis.summarise(cut).to_dict() == analysis.summarise(plain).to_dict()


# -- polar Ropes -------------------------------------------------------------------------------------------------------


def test_a_polar_rope_says_of_any_two_tokens_what_others_say_of_equal_content():
    """A frequency for each magnitude: the same mean kernel, wavelengths, base and fit, of another width."""
    omega = rfrope.geometric(32, base=500.0)
    polar, plain = analysis.summarise(rfrope.Rope(omega, polar=True, context=200)), analysis.summarise(omega, 200)
    assert (polar.n_blocks, polar.head_dim, plain.head_dim) == (32, 32, 64)
    assert (polar.polar, plain.polar) == (True, False)
    (one,), (other,) = polar.axes, plain.axes
    assert one == other
    text, words = str(polar), str(plain)
    assert text.startswith("32 frequencies for 32 magnitudes of a head, over a context of 200 positions.")
    for said in (
        "In short: content on average first scores below 1/2",
        "Blocks (one magnitude each)",
        "  not rotated         0",
        f"  of one pair         as above, standard deviation {polar.random_std:.3f} at most",
        "Score of any two tokens at a distance",
    ):
        assert said in text
    for said in ("equal content", "a random token", "two features"):
        assert (said in words, said in text) == (True, False)
    assert json.loads(json.dumps(polar.to_dict()))["polar"] is True


def test_the_spread_of_one_pair_of_polar_tokens():
    """Scores of pairs of normal contents, over their mean at lag 0: mean and spread are those of the summary."""
    omega, rng = rfrope.geometric(32, base=500.0), np.random.default_rng(5)
    summary = analysis.summarise(rfrope.Rope(omega, polar=True), 200)
    m, n = np.logaddexp(0.0, rng.standard_normal((2, 40_000, 32)))
    at_zero = np.mean(np.sum(m * n, axis=-1))
    for lag, value in summary.axes[0].curve:
        score = np.sum(m * n * np.cos(lag * omega), axis=-1) / at_zero
        error = np.std(score) / 200.0
        assert np.mean(score) == pytest.approx(value, abs=6.0 * error + 0.01 * abs(value))
        assert np.std(score) < 1.03 * summary.random_std
        if lag == 0:
            assert np.std(score) == pytest.approx(summary.random_std, rel=0.03)
            assert np.std(score) != pytest.approx(64**-0.5, rel=0.2)  # of RoPE's contents
