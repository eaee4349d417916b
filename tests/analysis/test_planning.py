"""Plans for a longer context: measures against brute force, and every sentence."""

import dataclasses
import re

import numpy as np
import pytest
from campaign import campaign

import rfrope
from rfrope import analysis, models, scaling
from rfrope.rotation.rope import replace_fields

LADDER = rfrope.Rope(rfrope.geometric(16, base=1e4), context=1024)
METHODS = {"as it is", "linear", "ntk", "yarn", "llama3"}


@pytest.fixture(scope="module")
def made():
    return analysis.plan(LADDER, 4096)


def curve(rope, n_lags, still=0):
    """Mean kernel at the lags below some number, of all blocks of a head."""
    omega = np.append(np.asarray(rope.frequencies), np.zeros(still))
    return np.mean(np.cos(np.arange(n_lags)[:, None] * omega), axis=1)


def first_below(values):
    return next((lag for lag, value in enumerate(values) if value < -1e-12), None)


def test_measures_are_those_of_brute_force(made):
    before = curve(LADDER, 1024)
    seen = LADDER.frequencies * 1024
    for method in made.methods:
        after, reached = curve(method.rope, 4096), np.asarray(method.rope.frequencies) * 4096
        assert method.departure == pytest.approx(np.sqrt(np.mean((after[:1024] - before) ** 2)), abs=1e-9)
        assert method.first_negative_lag == first_below(after)
        unseen = [i for i in range(16) if seen[i] < 2.0 * np.pi and reached[i] > seen[i] + 1e-6]
        assert method.unseen == tuple(unseen)
    assert made.trained_negative_lag == first_below(before)
    assert made.n_dead == np.sum(analysis.turns(LADDER.frequencies, 1024) < 1.0)
    assert (made.trained_context, made.context, made.n_blocks, made.left_out) == (1024, 4096, 16, {})


def test_the_published_methods_are_those_of_scaling(made):
    omega, factor = LADDER.frequencies, 4.0
    yarn = scaling.yarn(omega, factor, original_max_position_embeddings=1024, base=1e4)
    bands = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    wanted = {
        "as it is": omega,
        "linear": omega / 4.0,
        "ntk": scaling.ntk(omega, factor).frequencies,
        "yarn": yarn.frequencies,
        "llama3": scaling.llama3(omega, factor, original_max_position_embeddings=1024, **bands).frequencies,
    }
    assert {method.name for method in made.methods} == METHODS
    for name, frequencies in wanted.items():
        np.testing.assert_array_equal(made.method(name).rope.frequencies, frequencies)
        assert made.method(name).rope.context == 4096
    assert made.method("yarn").rope.attention_factor == yarn.attention_factor


def test_methods_are_in_the_order_of_their_perplexities(made):
    assert [method.name for method in made.methods] == ["yarn", "ntk", "llama3", "linear", "as it is"]
    assert [method.perplexity for method in made.methods] == sorted(method.perplexity for method in made.methods)


@pytest.mark.parametrize(
    "parameters",
    [{}, {"partial_rotary_factor": 0.5}, {"mrope_section": [4, 2, 2]}, {"rope_type": "dynamic", "alpha": 50.0}],
    ids=str,
)
def test_a_config_gives_each_published_method(parameters):
    rope = models.from_rope_parameters(parameters, head_dim=16, max_position_embeddings=256, seq_len=256)
    plan = analysis.plan(rope, 3000)
    for method in plan.methods:
        told = models.from_rope_parameters(method.rope_parameters, head_dim=rope.head_dim, max_position_embeddings=3000)
        np.testing.assert_allclose(told.frequencies, method.rope.frequencies, rtol=1e-12)
        assert told.attention_factor == pytest.approx(method.rope.attention_factor)
        assert told.sections == method.rope.sections


def test_what_no_scheme_says_has_no_config():
    scaled = replace_fields(LADDER, frequencies=np.where(np.arange(16) > 8, 0.5, 1.0) * LADDER.frequencies)
    plan = analysis.plan(scaled, 2048)
    assert list(plan.left_out) == ["yarn"]
    assert str(plan).endswith(f"\nyarn is left out: {plan.left_out['yarn']}.")
    with pytest.raises(ValueError, match="name is 'yarn', which is left out: the trained frequencies are not"):
        plan.method("yarn")
    half = analysis.plan(dataclasses.replace(LADDER, head_dim=64), 2048)
    for trained in (plan, half, analysis.plan(dataclasses.replace(LADDER, attention_factor=1.2), 2048)):
        assert {method.rope_parameters is None for method in trained.methods} == {True}
    for method in half.methods:  # blocks that never turn count
        assert method.first_negative_lag == first_below(curve(method.rope, 2048, still=16))


def test_signs_stay_and_one_block_has_no_ladder():
    backwards = analysis.plan(-LADDER.frequencies, 2048, trained_context=1024)
    assert "yarn" in backwards.left_out
    for method in backwards.methods:
        assert np.all(np.asarray(method.rope.frequencies) < 0.0)
    plan = analysis.plan([0.01], 200, trained_context=100)
    assert set(plan.left_out) == {"yarn", "ntk"}
    assert "1 of 1 block completed no turn in training" in str(plan)


# -- configs that are stretched already --------------------------------------------------------------------------------


BANDS = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
LISTS = {"short_factor": [1.0] * 16, "long_factor": np.linspace(1.0, 6.0, 16).tolist()}
SCHEMES = {
    "linear": {"factor": 4.0},
    "ntk": {"factor": 4.0},
    "dynamic": {"factor": 4.0},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 2048},
    "yarn without its original context": {"factor": 4.0},
    "llama3": {"factor": 4.0, "original_max_position_embeddings": 2048, **BANDS},
    "longrope": {"factor": 4.0, "original_max_position_embeddings": 2048, **LISTS},
    "proportional": {"factor": 4.0},
}


def config(scheme, context=2048, **more):
    named = {"rope_type": scheme.partition(" ")[0]}
    sizes = {"hidden_size": 128, "num_attention_heads": 4, "max_position_embeddings": context}
    return {"model_type": "llama", **sizes, "rope_theta": 1e5, "rope_parameters": named | SCHEMES[scheme] | more}


@campaign
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_config_that_is_stretched_is_planned_from_the_ladder_before(scheme):
    (rope,) = rfrope.from_config(config(scheme), seq_len=8192)
    plain = rfrope.from_config(config("linear", factor=1.0))[0]
    wanted, plan = analysis.plan(plain, 16384), analysis.plan(rope, 16384)
    name = scheme.partition(" ")[0]
    assert plan.stretched.to_dict() == {"scheme": name, "factor": 4.0, "original_context": 2048, "reach": 8192}
    assert (plan.trained_context, plan.context) == (2048, 16384)
    assert wanted.stretched is None
    for method, other in zip(plan.methods, wanted.methods, strict=True):
        np.testing.assert_allclose(method.rope.frequencies, other.rope.frequencies, rtol=1e-13)
        assert method.rope.attention_factor == other.rope.attention_factor
        assert method.rope_parameters == other.rope_parameters
    first = f"The config is already stretched by {name} with factor 4, from 2048 positions to 8192."
    assert plan.preface.startswith(f"{plan.caution or first}\nThe plan starts from the frequencies before {name}.")
    assert "\nIt reaches the requested 8192 positions unchanged.\n" in analysis.plan(rope, 8192).preface
    steps = {method.name: [step["scheme"] for step in method.rope.source.scaled_by] for method in plan.methods}
    assert steps == {name: [] if name == "as it is" else [name] for name in steps}


@pytest.mark.parametrize("scheme", ["linear", "yarn", "longrope", None])
def test_a_rope_that_was_scaled_since_is_not_what_its_config_says(scheme):
    told = config(scheme) if scheme else config("linear", factor=1.0)
    rope = scaling.linear(rfrope.from_config(told, seq_len=8192)[0], 2.0)
    plan = analysis.plan(rope, 16384)
    assert (plan.stretched, plan.trained_context) == (None, 4096)
    np.testing.assert_array_equal(plan.method("as it is").rope.frequencies, rope.frequencies)
    assert re.match(r"The frequencies were already scaled by .*linear; the plan takes them as trained", str(plan))


@campaign
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_model_that_was_trained_with_its_scheme_keeps_it(scheme):
    (rope,) = rfrope.from_config(config(scheme, context=8192), seq_len=8192)
    plan = analysis.plan(rope, 16384, trained_context=8192)
    names_its_own = "original_max_position_embeddings" in SCHEMES[scheme] or scheme in ("linear", "ntk", "proportional")
    assert (plan.stretched is None) == names_its_own
    if names_its_own:
        np.testing.assert_array_equal(plan.method("as it is").rope.frequencies, rope.frequencies)


@pytest.mark.parametrize(
    "told",
    [
        {"rope_type": "default"},
        {"rope_type": "linear", "factor": 1.0},
        {"rope_type": "dynamic", "alpha": 1000.0},  # a base, by which HunYuan was trained
        {"rope_type": "longrope", "original_max_position_embeddings": 2048, **LISTS},  # not beyond its own context
    ],
)
def test_a_config_that_stretches_nothing(told):
    rope = models.from_rope_parameters(told, head_dim=32, max_position_embeddings=2048)
    assert analysis.plan(rope, 4096).stretched is None


def test_longrope_without_a_factor_has_the_ratio_of_its_contexts():
    told = {"rope_type": "longrope", "original_max_position_embeddings": 64, **LISTS}
    plan = analysis.plan(models.from_rope_parameters(told, head_dim=32, max_position_embeddings=256), 512)
    assert (plan.stretched.factor, plan.stretched.reach, plan.trained_context) == (4.0, 256, 64)


# -- the text ----------------------------------------------------------------------------------------------------------


def test_the_text_holds_the_measures(made):
    lines = str(made).split("\n")
    lag = first_below(curve(LADDER, 1024))
    assert lines[0].startswith(f"From 1024 trained positions to 4096, 4 times as many. {made.n_dead} of 16 blocks ")
    assert lines[1] == f"and the trained mean kernel is below 0 first at lag {lag}."
    assert [re.split(r"  +", line) for line in lines[5:11]] == [list(row) for row in made.table]
    for row, method in zip(made.table[1:], made.methods, strict=True):
        shown = (f"{method.departure:.3g}", str(len(method.unseen)), str(method.first_negative_lag or "never"))
        assert (row[0], row[2:5]) == (method.name, shown)
    never = str(analysis.plan(rfrope.geometric(64, base=1e9), 200, trained_context=100))
    assert "and the trained mean kernel is nowhere below 0.\n" in never
    assert re.search(r"^as it is .* never ", never, re.MULTILINE)


# -- what comes in -----------------------------------------------------------------------------------------------------


def test_it_keeps_the_rope():
    rope = analysis.plan(dataclasses.replace(LADDER, pairing="interleaved", source={"model_type": "x"}), 4096)
    rope = rope.method("linear").rope
    assert (rope.pairing, rope.context) == ("interleaved", 4096)
    assert rope.source.to_dict() == {"model_type": "x", "scaled_by": [{"scheme": "linear", "factor": 4.0}]}


def test_an_unknown_method(made):
    with pytest.raises(ValueError, match=r"name is 'lama3'; did you mean 'llama3'\? Expected one of"):
        made.method("lama3")
    assert made.method("Llama-3") is made.method("llama3")


def test_a_block_of_exactly_one_turn_saw_every_angle():
    """One of a little less meets angles that it did not see."""
    turn = 2.0 * np.pi / 1024
    plan = analysis.plan(np.array([40.0, 1.0, 1.0 - 1e-9, 0.5]) * turn, 4096, trained_context=1024)
    assert (plan.method("as it is").unseen, plan.n_dead) == ((2, 3), 2)
