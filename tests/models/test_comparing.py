"""Comparisons of engines: findings, the distance from which scores differ, and advice that holds."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from conftest import rows
from published import PUBLISHED

import rfrope
from rfrope import engines, models
from rfrope.models.rewriting import rewrites

LLAMA = {"model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32, "max_position_embeddings": 16384}
PLAIN = LLAMA | {"rope_theta": 1e4}
QWEN3 = LLAMA | {"model_type": "qwen3", "head_dim": 128, "rope_theta": 1e6}
KEY = "original_max_position_embeddings"
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, KEY: 8192}
YARN = {"rope_type": "yarn", "factor": 4.0, KEY: 4096}
DYNAMIC = {"rope_type": "dynamic", "factor": 4.0}


def report(found: models.Comparison, engine: str) -> models.EngineReport:
    return next(one for one in found.ropes[0].engines if one.engine == engine)


def test_a_common_config_is_read_the_same_everywhere():
    found = models.compare(LLAMA | {"rope_theta": 500_000.0, "rope_scaling": LLAMA3})
    assert (found.agree, found.findings, found.ropes[0].write) == (True, (), {})
    assert [one.engine for one in found.ropes[0].engines if one.status != "known"] == []
    assert str(found).startswith("They agree.")


def test_an_attention_factor_that_is_not_read():
    found = models.compare(QWEN3 | {"rope_scaling": YARN | {"attention_factor": 1.0}})
    usual = 0.1 * math.log(4.0) + 1.0
    for engine in ("SGLang", "llama.cpp", "MLX-LM", "mlx-vlm", "TensorRT-LLM"):
        one = report(found, engine)
        assert (one.rope.attention_factor, one.score_ratio) == pytest.approx((usual, usual**2))
        assert one.rope.ignored_keys == ("attention_factor",)
        assert (one.differs_from, one.frequency_error) == (0, pytest.approx(0.0, abs=1e-12))
        assert one.findings == (
            "scores are 1.296 times as large, at every distance; it does not read attention_factor",
        )
    assert (report(found, "vLLM").rope.attention_factor, len(found.findings)) == (1.0, 6)
    assert report(found, "Megatron-Bridge").reason.endswith("beta_fast missing")


def test_from_where_a_score_differs_is_where_the_mean_kernels_part():
    scheme = {"rope_theta": 500_000.0, "rope_scaling": DYNAMIC | {"factor": 1.05}}
    found, lags = models.compare(LLAMA | scheme, seq_len=17000), np.arange(17000)
    one, standard = (report(found, engine).rope.frequencies for engine in ("llama.cpp", "transformers"))
    apart = np.abs(rfrope.analysis.mean_kernel(lags, one) - rfrope.analysis.mean_kernel(lags, standard))
    assert report(found, "llama.cpp").differs_from == int(np.argmax(apart >= 0.01)) > 2
    assert report(found, "llama.cpp").frequency_error == pytest.approx(np.max(np.abs(one / standard - 1.0)))


def test_distances_beyond_the_window_are_not_compared():
    config = QWEN3 | {"model_type": "mistral", "rope_scaling": DYNAMIC | {"factor": 2.0}, "sliding_window": None}
    found = report(models.compare(config, seq_len=65536), "TensorRT-LLM")
    assert found.differs_from > 2
    for window, expected in ((found.differs_from, None), (found.differs_from + 1, found.differs_from)):
        one = report(models.compare(config | {"sliding_window": window}, seq_len=65536), "TensorRT-LLM")
        assert (one.differs_from, one.frequency_error) == (expected, found.frequency_error)


def test_features_that_do_not_turn_count():
    """A quarter of Phi-3's head does not turn, and its share of a score stays."""
    scaling = {"type": "longrope", "short_factor": [1.0] * 36, "long_factor": [2.0] * 36, "attention_factor": 1.0}
    config = LLAMA | {"model_type": "phi3", "hidden_size": 3072, "partial_rotary_factor": 0.75, "rope_theta": 1e4}
    found = models.compare(config | {KEY: 4096, "rope_scaling": scaling}, ["transformers", "vLLM"], seq_len=16384)
    one, factor = report(found, "vLLM"), math.sqrt(1.0 + math.log(4.0) / math.log(4096.0))
    assert (one.rope.frequencies.size, one.rope.attention_factor) == (36, pytest.approx(factor))
    assert one.score_ratio == pytest.approx((36 * factor**2 + 12) / 48)


def test_lengths_at_which_a_scheme_changes():
    found = models.compare(LLAMA | {"rope_scaling": DYNAMIC})
    assert [one.seq_len for one in found.ropes] == [16384, 65536]
    differ = [[one.engine for one in rope.engines if one.differs_from is not None] for rope in found.ropes]
    assert differ == [["SGLang"], ["llama.cpp", "Megatron-Bridge", "TensorRT-LLM", "vLLM"]]
    assert any("vLLM: tables of cos and sin end after 16384 positions" in line for line in found.findings)


SIZED = {"max_position_embeddings": 8192, "num_attention_heads": 4, "hidden_size": 256, "head_dim": 64}
SIZED |= {"num_hidden_layers": 8}
BOTH = ["sliding_attention", "full_attention"]
GEMMA4 = {"model_type": "gemma4_text", "global_head_dim": 128, "layer_types": BOTH * 4, **SIZED}
GEMMA3N = {"model_type": "gemma3n_text", "rope_theta": 1e6, "rope_local_base_freq": 2e4, **SIZED}
GEMMA3N["layer_types"] = BOTH * 4
EXAONE = {"model_type": "exaone4", "layer_types": BOTH * 4, "sliding_window": 64, "rope_theta": 1e6, **SIZED}
LLAMA4 = {"model_type": "llama4_text", "rope_theta": 5e5, "rope_scaling": None, **SIZED}


def known(config, *names):
    """What engines do that are known, with layers that were seen, by the RoPE's name and the engine's."""
    return {
        (one.name, report.engine): report.rope
        for one in models.compare(config, names or None, seq_len=8192).ropes
        for report in one.engines
        if report.status == "known" and report.engine not in ("transformers 4", "llama.cpp", "mlx-vlm", "exllamav3")
    }


@pytest.mark.parametrize(
    ("config", "engines"),
    [
        ({"model_type": "gemma4", "text_config": GEMMA4}, {"vLLM", "SGLang", "MLX-LM"}),
        ({"model_type": "gemma3n", "text_config": GEMMA3N}, {"vLLM", "SGLang", "MLX-LM"}),
        ({"model_type": "llama4", "text_config": LLAMA4}, {"vLLM", "SGLang", "MLX-LM"}),
        ({"model_type": "modernbert", **SIZED}, {"vLLM"}),
        ({"model_type": "olmo3", "rope_theta": 5e5, **SIZED}, {"MLX-LM"}),
        (EXAONE | {"rope_scaling": None, "sliding_window_pattern": "LG"}, {"vLLM", "SGLang", "MLX-LM"}),
    ],
)
def test_models_whose_layers_differ_are_read_by_more_engines(config, engines):
    found = known(config)
    names = {name for name, _ in found}
    assert {engine for _, engine in found} == engines | {"transformers"}
    assert models.compare(config, ["transformers", *engines]).agree
    for name in names:
        own = found[name, "transformers"]
        for engine in engines:
            np.testing.assert_allclose(found[name, engine].frequencies, own.frequencies, rtol=1e-12)
            assert found[name, engine].layers == own.layers


def test_llama_4_turns_three_layers_of_four_in_some_engines():
    whole = {"model_type": "llama4", "text_config": LLAMA4 | {"no_rope_layers": [1, 0] * 4}}
    found = known(whole)
    layers = {engine: rope.layers for (_, engine), rope in found.items()}
    every_other, three_of_four = (0, 2, 4, 6), (0, 1, 2, 4, 5, 6)
    expected = dict.fromkeys(("transformers", "vLLM"), every_other)
    assert layers == expected | dict.fromkeys(("SGLang", "MLX-LM"), three_of_four)
    assert {rope.pairing for rope in found.values()} == {"interleaved"}
    thirds = known({**whole, "text_config": LLAMA4 | {"no_rope_layer_interval": 3}})
    layers = [thirds["text_config", engine].layers for engine in ("transformers", "MLX-LM")]
    assert layers == [(0, 1, 3, 4, 6, 7), three_of_four]  # MLX-LM reads neither key inside another config
    text = known(whole["text_config"])
    assert {engine for _, engine in text} == {"transformers", "vLLM", "SGLang", "MLX-LM"}
    assert text["", "MLX-LM"].layers == every_other


def test_exaone_4_turns_the_layers_of_its_pattern_in_mlx_lm():
    (refused,) = models.compare(EXAONE, ["MLX-LM"]).ropes[0].engines
    assert (refused.status, refused.reason) == ("refused", "stops with an error: rope_scaling missing")
    config = EXAONE | {"rope_scaling": None, "sliding_window_pattern": "LLLG"}
    assert known(config)["", "MLX-LM"].layers == (0, 1, 2, 4, 5, 6)
    assert known(config)["", "vLLM"].layers == (0, 2, 4, 6)
    assert known(config | {"sliding_window_pattern": None})["", "MLX-LM"].layers == (*range(8),)


def test_parts_are_transformers_own():
    found = models.compare({"model_type": "gemma3", "text_config": {"model_type": "olmo3", "hidden_size": 2560}})
    assert [one.name for one in found.ropes] == ["text_config.full_attention", "text_config.sliding_attention"]
    assert {one.status for rope in found.ropes for one in rope.engines[1:]} == {"unknown"}
    assert "Nothing to compare: engines known for this config: transformers." in str(found)


def test_the_reference_is_transformers_or_the_engine_that_ignores_least():
    yarn = QWEN3 | {"rope_scaling": YARN | {"attention_factor": 1.0}}
    refused = LLAMA | {"rope_scaling": {"type": "yarn", KEY: 4096}}
    assert models.compare(yarn, ["SGLang", "transformers"]).ropes[0].reference == "transformers"
    assert models.compare(yarn, ["SGLang", "vLLM"]).ropes[0].reference == "vLLM"
    assert models.compare(refused).ropes[0].reference == "exllamav3"
    assert models.compare(refused, ["vLLM", "SGLang"]).ropes[0].reference == "none"


@pytest.mark.parametrize(("config", "agreeing"), rows("models/comparing.json", "advice"))
def test_the_advice_holds(config, agreeing):
    """The changed config means to transformers what the first one did, and as many engines agree as is said."""
    first = models.compare(config).ropes[0]
    assert first.write
    changed = {key: value for key, value in (config | first.write).items() if value is not None}
    assert len(first.then_agree) == agreeing
    (before, after) = (rfrope.from_config(one)[0] for one in (config, changed))
    np.testing.assert_allclose(after.frequencies, before.frequencies, rtol=1e-12)
    assert after.attention_factor == pytest.approx(before.attention_factor, rel=1e-12)
    again = models.compare(changed, seq_len=first.seq_len)
    assert {*first.then_agree} <= {one.engine for one in again.ropes[0].engines if one.is_same}
    assert not any(line.startswith(name + ":") for line in again.findings for name in first.then_agree)


@pytest.mark.parametrize(
    "scaling",
    [YARN | {"truncate": False}, LLAMA3, YARN | {"factor": 1.0, "attention_factor": 2.0}],
    ids=["truncate", "llama3", "a factor whose logarithm is 0"],
)
def test_no_advice_where_nothing_helps(scaling):
    found = models.compare(QWEN3 | {"rope_scaling": scaling})
    assert not found.agree
    assert "mscale" not in str(found.ropes[0].write)
    assert ("Write into" in str(found)) == bool(found.ropes[0].write)


@pytest.mark.parametrize("factor", [4.0, 8.0, 2.5])
def test_every_rewriting_is_read_the_same(factor):
    """Also where the factor is not that of the contexts; keys that say what is usual are left out."""
    scaling = YARN | {"factor": factor, "beta_fast": 32, "beta_slow": 1, "truncate": True, "attention_factor": 1.3}
    raw = LLAMA | {"rope_theta": 1e6, "rope_scaling": scaling}
    (rope,) = rfrope.from_config(raw)
    changed = list(rewrites(engines.ConfigRope(rope, scaling | {"rope_theta": 1e6}, scaling, raw, 16384)))
    assert len(changed) >= 3
    for one in changed:
        (found,) = rfrope.from_config(one)
        np.testing.assert_allclose(found.frequencies, rope.frequencies, rtol=1e-6)
    yarns = [one["rope_scaling"] for one in changed if one["rope_scaling"]["type"] == "yarn"]
    assert any(not {"beta_fast", "beta_slow", "truncate"} & set(one) for one in yarns)


def test_a_wrong_rule_would_be_seen(monkeypatch):
    """A record whose rule drops the factor is a disagreement, not an error."""
    first, vllm = (one for one in engines.records() if one.name in ("transformers", "vLLM"))
    drop = replace(vllm.reading, rule=lambda config: engines.EngineRope(config.ladder()))
    monkeypatch.setattr(engines, "records", lambda: (first, engines.Engine("vLLM", drop)))
    found = models.compare(QWEN3 | {"rope_scaling": YARN})
    assert len(found.findings) == 2
    assert "frequencies differ by up to" in found.findings[0]
    held = found.to_dict()
    assert json.loads(json.dumps(held, allow_nan=False)) == held
    assert (held["agree"], len(held["ropes"][0]["engines"][1]["frequencies"])) == (False, 64)


def test_published_configs_can_be_compared():
    """Engines agree on them, but for Phi-3's short texts, where MLX-LM takes the list for long ones, and Qwen's YaRN.

    That has the original context as its context: exllamav3 takes their ratio, 1, for the factor, and Megatron-Bridge
    misses the betas.
    """
    for one in PUBLISHED:
        found = models.compare(one.config)
        json.dumps(found.to_dict(), allow_nan=False)
        assert found.ropes[0].engines[0].status == "known" or found.ropes[0].scheme == "axial"
        scheme = (one.config["model_type"], found.ropes[0].scheme)
        expected = {
            ("phi3", "longrope"): {"MLX-LM"},
            ("stablelm", "default"): {"SGLang"},  # whose class asks transformers 5 for a part that stands in the dict
            ("gpt_oss", "yarn"): {"MLX-LM", "mlx-vlm", "llama.cpp"},
            ("qwen2", "yarn"): {"exllamav3", "Megatron-Bridge"},
        }
        assert {line.partition(":")[0] for line in found.findings} == expected.get(scheme, set()), one.model


# -- layers that differ ------------------------------------------------------------------------------------------------

GEMMA = {"model_type": "gemma3_text", "num_hidden_layers": 8, "head_dim": 256, "max_position_embeddings": 131072}
LOCAL = {"rope_type": "default", "rope_theta": 1e4}
GLOBAL = {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6}
OLD = GEMMA | {"rope_theta": 1e6, "rope_local_base_freq": 1e4, "rope_scaling": {"rope_type": "linear", "factor": 8.0}}
NEW = GEMMA | {"rope_parameters": {"full_attention": GLOBAL, "sliding_attention": LOCAL}}
READERS = ["vLLM", "SGLang", "exllamav3", "MLX-LM"]
ALL = ["transformers", *READERS]


def test_each_kind_of_layer_is_compared():
    found = models.compare(OLD, ALL)
    assert [(one.name, one.layers) for one in found.ropes] == [
        ("full_attention", (5,)),
        ("sliding_attention", (0, 1, 2, 3, 4, 6, 7)),
    ]
    for one in found.ropes:
        assert {each.status for each in one.engines} == {"known"}
        assert all(each.rope.layers in (None, one.layers) for each in one.engines)
        assert all(each.rope.positions in (None, 131072 * 8, 131072) for each in one.engines)
    assert found.agree
    assert str(found).startswith("full_attention: linear names no original context: the model was trained with it, for")
    assert "\n\nfull_attention: gemma3_text, scheme linear, layer 5, a text of 131072 positions" in str(found)


SMOL = {"model_type": "smollm3", "num_hidden_layers": 4, "max_position_embeddings": 65536, "rope_theta": 5e6}
COHERE = {"model_type": "cohere2", "num_hidden_layers": 4, "max_position_embeddings": 8192, "rope_theta": 5e4}
TRADITIONAL, IN_PART = (PLAIN | key for key in ({"rope_traditional": True}, {"partial_rotary_factor": 0.5}))
LAST = {"layer_types": ["full_attention", *["sliding_attention"] * 3]}
OSS = {"model_type": "gpt_oss", "num_hidden_layers": 2, "rope_theta": 15e4, "max_position_embeddings": 131072}


def louder(factor):
    return QWEN3 | {"rope_scaling": YARN | {"attention_factor": factor}}


def oss(**values):
    yarn = YARN | {"factor": 32.0, "truncate": False, "beta_fast": 32.0, "beta_slow": 1.0} | values
    return OSS | {"rope_scaling": {key: value for key, value in yarn.items() if value is not None}}


FOUND = [  # a config, the engines beside transformers, and what is found, in short
    (louder(1.137), ["SGLang"],
     "SGLang: scores are 1.003 times as large, which is below 1 % ... read attention_factor"),
    (louder(1.3), ["SGLang"],
     "SGLang: scores are 0.7671 times as large, at every distance ... read attention_factor"),
    (TRADITIONAL, ["MLX-LM"], "MLX-LM: pairs features as 'interleaved', and transformers ... "),
    (IN_PART, ["vLLM"], "vLLM: turns 64 features of a head, not 128, and scores of equal content ... "),
    *((SMOL | flags, READERS) for flags in ({}, {"no_rope_layer_interval": 2}, {"no_rope_layers": [1, 0, 1, 1]})),
    (LLAMA4 | {"no_rope_layers": None}, ["MLX-LM"],
     "MLX-LM: stops with an error: no_rope_layers has 0 entries, not 8"),
    (SMOL | {"layer_types": BOTH * 2, "rope_parameters": dict.fromkeys(BOTH, LOCAL | {"rope_theta": 5e6})},
     READERS, "sliding_attention: MLX-LM: turns layers 0-2 by it, where transformers turns layers 0, 2",
     "full_attention: MLX-LM: turns layers 0-2 by it, where transformers turns layer 1"),
    (COHERE, ["vLLM", "MLX-LM"]),
    (COHERE | LAST, ["vLLM", "MLX-LM"], "MLX-LM: turns layers 0-2 by it, where transformers turns layers 1-3"),
    (oss(), READERS, "MLX-LM: frequencies differ by ... it does not read truncate"),
    (oss(attention_factor=1.0), ["vLLM"], "vLLM: scores are ... it does not read attention_factor"),
    (oss(beta_slow=None), ["vLLM"], "vLLM: stops with an error: beta_slow missing"),
    (NEW, READERS, "full_attention: exllamav3: frequencies differ by up to 8 times ... does not read rope_parameters",
     "full_attention: MLX-LM: frequencies differ by up to 8 times ... does not read rope_parameters"),
    (OLD | {"rope_local_base_freq": 2e4}, READERS,
     "sliding_attention: exllamav3: frequencies differ by up to 98.9 % ... not read rope_local_base_freq"),
    ({"model_type": "gemma3", "text_config": OLD}, ["vLLM", "SGLang", "MLX-LM"]),
    (OLD | {"layer_types": BOTH * 4}, READERS,
     "full_attention: MLX-LM: turns layer 5 by it, where transformers turns layers 1, 3, 5, 7",
     "sliding_attention: MLX-LM: turns layers 0-4, 6-7 by it, where transformers turns layers 0, 2, 4, 6"),
]  # fmt: skip


@pytest.mark.parametrize("index", range(len(FOUND)))
def test_what_is_found(index):
    config, names, *expected = FOUND[index]
    found = models.compare(config, ["transformers", *names])
    states = {engine.status for rope in found.ropes for engine in rope.engines}
    assert ("unknown" in states) == (config["model_type"] == "smollm3")  # of which SGLang has no class
    for line, words in zip(found.findings, expected, strict=True):
        start, _, end = words.partition(" ... ")
        assert line.startswith(start)
        assert line.endswith(end)
    assert found.agree == (not expected)


def test_kinds_of_layers_that_were_not_read_are_unknown_by_name():
    for engine in models.compare(OLD, ["TensorRT-LLM"]).ropes[0].engines:
        assert engine.reason == "its code for the kinds of layers of model type 'gemma3_text' was not read"
