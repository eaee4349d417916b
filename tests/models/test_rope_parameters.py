"""Dicts of rotary parameters against the functions that they stand for, cases of other projects, and bad dicts."""

import builtins
import json

import numpy as np
import pytest
from campaign import campaign
from conftest import rows
from published import lists

import rfrope
from rfrope import scaling
from rfrope.models import from_rope_parameters

KEY = "original_max_position_embeddings"
LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, KEY: 8192}
YARN = {"rope_type": "yarn", "factor": 4.0, KEY: 512}
LONGROPE = {"rope_type": "longrope", **lists(16), KEY: 512, "factor": 4.0}
ASKED = {"head_dim": 32, "max_position_embeddings": 2048, "seq_len": 5000}


@pytest.mark.parametrize(("told", "options"), rows("models/rope_parameters.json", "alike"))
def test_ways_to_say_the_same(told, options):
    got = from_rope_parameters(told, head_dim=32, **options)
    assert np.array_equal(got.frequencies, rfrope.geometric(16, base=5e5))
    assert got.attention_factor == 1.0


DICTS = {
    "linear": ({"factor": 4.0}, lambda w: scaling.linear(w, 4.0)),
    "ntk": ({"factor": 4.0}, lambda w: scaling.ntk(w, 4.0)),
    "dynamic": ({"factor": 4.0}, lambda w: scaling.dynamic_ntk(w, 4.0, seq_len=5000, max_position_embeddings=2048)),
    "yarn": ({"factor": 4.0, KEY: 512}, lambda w: scaling.yarn(w, 4.0, **{KEY: 512}, base=5e5)),
    "longrope": ({**lists(16), KEY: 512},
                 lambda w: scaling.longrope(w, **lists(16), **{KEY: 512}, factor=2048 / 512, seq_len=5000)),
    "llama3": ({"factor": 4.0, **LLAMA3}, lambda w: scaling.llama3(w, 4.0, **LLAMA3)),
    "proportional": ({"factor": 2.0, "partial_rotary_factor": 0.5},
                     lambda w: scaling.proportional(w, factor=2.0, partial_rotary_factor=0.5)),
    "rfrope": ({"kernel": "gaussian(scale=32)", "design": "stratified", "seed": 3, "attention_factor": 1.5},
               lambda w: rfrope.Rope(rfrope.sample("gaussian(scale=32)", 16, rng=3, design="stratified"),
                                     attention_factor=1.5)),
}  # fmt: skip


@pytest.mark.parametrize("key", ["rope_type", "type"])
@pytest.mark.parametrize("name", DICTS)
def test_a_dict_stands_for_its_function(name, key):
    told, function = DICTS[name]
    given = {key: name, "rope_theta": 5e5, **told}
    before = json.dumps(given)
    got, expected = from_rope_parameters(given, **ASKED), function(rfrope.geometric(16, base=5e5))
    np.testing.assert_allclose(got.frequencies, expected.frequencies, rtol=2e-15)
    assert got.attention_factor == expected.attention_factor
    assert json.dumps(given) == before


@campaign
@pytest.mark.parametrize(("design", "seed"), [("iid", 0), ("stratified", 5), ("optimised", 0)])
def test_a_kernel_in_a_config_is_designed_as_it_says(design, seed):
    """For the context at hand, whichever was asked for before."""
    told = {"rope_type": "rfrope", "kernel": "matern(scale=9)", "design": design, "seed": seed}
    for context in (64, 700, 64):
        got = from_rope_parameters(told, head_dim=8, max_position_embeddings=context)
        made = rfrope.design("matern(scale=9)", head_dim=8, context=context, design=design, rng=seed)
        assert np.array_equal(got.frequencies, made.frequencies)
        assert got.source.design == design


def test_a_dict_of_explicit_frequencies():
    told = {"rope_type": "rfrope", "frequencies": [1.0, 0.5]}
    got = from_rope_parameters(told, head_dim=8, partial_rotary_factor=0.5)
    assert (got.frequencies.tolist(), got.rotary_dim, got.head_dim) == ([1.0, 0.5], 4, 8)
    assert from_rope_parameters(got.source.rope_parameters, head_dim=8).frequencies.tolist() == [1.0, 0.5]


@pytest.mark.parametrize(("seq_len", "factor"), [(None, 1.25), (512, 1.25), (513, 1.5)])
def test_longrope_with_a_factor_for_each_regime(seq_len, factor):
    """Under the name that Phi-3 had for it first, too."""
    told = LONGROPE | {"rope_type": "su", "short_mscale": 1.25, "long_mscale": 1.5}
    got = from_rope_parameters(told, head_dim=32, max_position_embeddings=2048, seq_len=seq_len)
    assert got.attention_factor == factor


@pytest.mark.parametrize("told", [YARN, LONGROPE])
def test_a_missing_factor_is_the_ratio_of_contexts(told):
    missing, given = (from_rope_parameters(one, **ASKED) for one in (told | {"factor": None}, told))
    assert np.array_equal(missing.frequencies, given.frequencies)
    assert missing.attention_factor == given.attention_factor != 1.0


@pytest.mark.parametrize("alpha", [1.0, 1000])
def test_hunyuans_alpha_changes_the_base_whatever_the_length(alpha):
    told = {"type": "dynamic", "alpha": alpha, "factor": 1.0, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0}
    expected = rfrope.geometric(16, base=10_000.0 * alpha ** (32 / 30))
    for seq_len in (None, 100_000):
        got = from_rope_parameters(told, head_dim=32, seq_len=seq_len)
        np.testing.assert_allclose(got.frequencies, expected, rtol=1e-14)


@pytest.mark.parametrize(
    ("key", "value"), [("finetuned", True), ("llama_4_scaling_beta", 0.1), ("max_position_embeddings", 9)]
)
def test_keys_that_published_yarn_configs_carry_change_nothing(key, value):
    with_key, without = (from_rope_parameters(one, **ASKED) for one in (YARN | {key: value}, YARN))
    assert np.array_equal(with_key.frequencies, without.frequencies)
    with pytest.raises(ValueError, match=f"holds '{key}', which is unknown"):
        from_rope_parameters({"rope_type": "linear", "factor": 4.0, key: value}, **ASKED)


@pytest.mark.parametrize(
    ("head_dim", "fraction", "width", "n_blocks"),
    [(128, 0.5, 64, 32), (80, 0.4, 32, 16), (96, 0.3, 28, 14), (10, 0.5, 5, 3), (5, 0.8, 4, 2), (3, 0.4, 1, 1)],
)
def test_partial_rotary_divides_exponents_by_the_rotated_width(head_dim, fraction, width, n_blocks):
    for told, options in (({"partial_rotary_factor": fraction}, {}), ({}, {"partial_rotary_factor": fraction})):
        got = from_rope_parameters(told, head_dim=head_dim, **options)
        np.testing.assert_allclose(got.frequencies, [10_000.0 ** (-2 * i / width) for i in range(n_blocks)], rtol=1e-15)


def test_ntk_of_an_odd_width_is_that_of_its_base():
    got = from_rope_parameters({"rope_type": "ntk", "factor": 4.0, "partial_rotary_factor": 0.5}, head_dim=10)
    base = 10_000.0 * 4.0 ** (5 / 3)
    np.testing.assert_allclose(got.frequencies, [base ** (-2 * i / 5) for i in range(3)], rtol=1e-14)


BAD = [
    *(
        (told, options, getattr(builtins, error), words)
        for told, options, error, words in rows("models/rope_parameters.json", "refused")
    ),
    ({"type": np.array(["yarn", "x"])}, {}, ValueError, "rope_parameters['type'] is array(['yarn', 'x']"),
    ({3: {}}, {}, TypeError, "rope_parameters holds the key 3; expected names of parameters"),
]


@pytest.mark.parametrize("index", range(len(BAD)))
def test_bad_dict(index):
    told, options, error, message = BAD[index]
    with pytest.raises(error) as caught:
        from_rope_parameters(told, **{"head_dim": 32, **options})
    assert message in str(caught.value)


# -- cases of other projects -------------------------------------------------------------------------------------------


def load(cases, name):
    told = json.loads((cases / f"{name}.json").read_text())
    with np.load(cases / f"{name}.npz", allow_pickle=False) as archive:
        return told["params"], told.get("tolerance"), dict(archive)


@pytest.mark.parametrize("name", ["llama3_1_scaled", "llama4_scaled16"])
def test_meta(cases, name):
    params, _, arrays = load(cases, f"03_meta_complex/{name}")
    told = {"rope_type": "llama3", **params["scaling"]}
    frequencies, factor = from_rope_parameters(told, head_dim=params["head_dim"], rope_theta=params["base"])
    np.testing.assert_allclose(frequencies, arrays["freqs"], rtol=1e-14)
    x, positions = arrays["xq"].astype(np.float64), arrays["positions"][:, None]
    got = rfrope.rotate(x, positions, frequencies, pairing=params["pair_layout"], scale=factor)
    np.testing.assert_allclose(got, arrays["xq_out_f64"], rtol=1e-11, atol=1e-11)
