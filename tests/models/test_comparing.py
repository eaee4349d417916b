"""Comparisons of engines: what is reported, from which distance on, and that the advice holds."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from published import PUBLISHED

import rfrope
from rfrope import models
from rfrope.models import comparing, engine_rules, rewriting
from rfrope.models.engines import ENGINES

LLAMA = {"model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32, "max_position_embeddings": 16384}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}
QWEN3 = LLAMA | {"model_type": "qwen3", "head_dim": 128, "rope_theta": 1e6}


def row(found: models.Comparison, engine: str) -> models.EngineUse:
    return next(one for one in found.places[0].engines if one.engine == engine)


def test_a_common_config_is_read_the_same_everywhere():
    found = models.compare(LLAMA | {"rope_theta": 500_000.0, "rope_scaling": LLAMA3})
    assert found.agree
    assert found.findings == ()
    assert found.places[0].write == {}
    assert all(one.status == "known" for one in found.places[0].engines)
    assert str(found).endswith("They agree.")


def test_an_attention_factor_that_is_passed_over():
    found = models.compare(QWEN3 | {"rope_scaling": YARN | {"attention_factor": 1.0}})
    usual = 0.1 * math.log(4.0) + 1.0
    assert [one.attention_factor for one in found.places[0].engines] == pytest.approx([1.0, 1.0, *[usual] * 4])
    for engine in ("SGLang", "llama.cpp", "MLX-LM", "TensorRT-LLM"):
        one = row(found, engine)
        assert one.passed_over == ("attention_factor",)
        assert one.score_ratio == pytest.approx(usual**2)
        assert (one.differs_from, one.frequency_error) == (0, pytest.approx(0.0, abs=1e-12))
    assert len(found.findings) == 4


def test_a_factor_of_one_has_no_scales_to_write_an_attention_factor_with():
    """YaRN's attention factor is a function of ln(factor), here 0; the advice is to write it down otherwise."""
    found = models.compare(QWEN3 | {"rope_scaling": YARN | {"factor": 1.0, "attention_factor": 2.0}})
    assert row(found, "transformers").attention_factor == 2.0
    assert not found.agree
    assert "mscale" not in str(found.places[0].write)


def test_from_where_a_score_differs_is_where_the_mean_kernels_part():
    found = models.compare(
        LLAMA | {"rope_theta": 500_000.0, "rope_scaling": {"rope_type": "dynamic", "factor": 1.05}}, seq_len=17000
    )
    one, standard = row(found, "llama.cpp"), row(found, "transformers")
    lags = np.arange(17000)
    apart = np.abs(
        rfrope.analysis.mean_kernel(lags, one.frequencies) - rfrope.analysis.mean_kernel(lags, standard.frequencies)
    )
    assert one.differs_from == int(np.argmax(apart >= 0.01))
    assert one.differs_from > 2
    assert one.frequency_error == pytest.approx(np.max(np.abs(one.frequencies / standard.frequencies - 1.0)))


def test_distances_beyond_the_window_are_not_compared():
    told = QWEN3 | {"model_type": "mistral", "rope_scaling": {"type": "dynamic", "factor": 2.0}, "sliding_window": None}
    found = row(models.compare(told, seq_len=65536), "TensorRT-LLM")
    assert found.differs_from > 2
    for window, expected in ((found.differs_from, None), (found.differs_from + 1, found.differs_from)):
        one = row(models.compare(told | {"sliding_window": window}, seq_len=65536), "TensorRT-LLM")
        assert (one.differs_from, one.frequency_error) == (expected, found.frequency_error)


def test_a_difference_below_one_percent_has_no_place():
    found = models.compare(QWEN3 | {"rope_scaling": YARN | {"attention_factor": 1.137}}, ["transformers", "SGLang"])
    one = row(found, "SGLang")
    assert one.differs_from is None
    assert found.findings == (
        "SGLang: scores are 1.003 times as large, which is below 1 %; it passes over attention_factor",
    )


def test_features_that_do_not_turn_count():
    """Stablelm is unknown elsewhere; a part of Phi-3's head does not turn, and its share of a score stays."""
    lists = {"short_factor": [1.0] * 36, "long_factor": [2.0] * 36}
    config = LLAMA | {"model_type": "phi3", "hidden_size": 3072, "partial_rotary_factor": 0.75, "rope_theta": 1e4}
    config |= {"original_max_position_embeddings": 4096, "rope_scaling": {"type": "longrope", **lists}}
    config["rope_scaling"]["attention_factor"] = 1.0
    found = models.compare(config, ["transformers", "vLLM"], seq_len=16384)
    one = row(found, "vLLM")
    factor = math.sqrt(1.0 + math.log(4.0) / math.log(4096.0))
    assert one.frequencies.size == 36
    assert one.attention_factor == pytest.approx(factor)
    assert one.score_ratio == pytest.approx((36 * factor**2 + 12) / 48)


def test_lengths_at_which_a_scheme_changes():
    dynamic = models.compare(LLAMA | {"rope_scaling": {"rope_type": "dynamic", "factor": 4.0}})
    assert [place.seq_len for place in dynamic.places] == [16384, 65536]
    differ = [[one.engine for one in place.engines if one.differs_from is not None] for place in dynamic.places]
    assert differ == [["SGLang"], ["vLLM", "llama.cpp", "TensorRT-LLM"]]
    assert any("vLLM: tables of cos and sin end after 16384 positions" in line for line in dynamic.findings)


def test_parts_are_transformers_own():
    config = {"model_type": "gemma3", "text_config": {"model_type": "gemma3_text", "hidden_size": 2560}}
    found = models.compare(config)
    assert [place.name for place in found.places] == ["text_config.full_attention", "text_config.sliding_attention"]
    assert {one.status for place in found.places for one in place.engines[1:]} == {"unknown"}
    assert "Nothing to compare: known is transformers." in str(found)


def test_what_transformers_refuses():
    found = models.compare(LLAMA | {"rope_scaling": {"rope_type": "ntk", "factor": 4.0}}, ["transformers"])
    assert row(found, "transformers").status == "refused"
    assert found.findings == ("transformers: stops with an error: 'ntk' is none of its schemes",)


@pytest.mark.parametrize(
    ("config", "agreeing"),
    [
        (LLAMA | {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}, 6),
        (LLAMA | {"rope_scaling": {"rope_type": "linear", "factor": 4}}, 6),
        (QWEN3 | {"rope_scaling": YARN | {"attention_factor": 1.3}}, 5),
        (QWEN3 | {"rope_scaling": YARN | {"mscale": 0.7}}, 6),
        (LLAMA | {"rope_scaling": {"rope_type": "dynamic", "factor": 4.0}}, 6),
    ],
)
def test_the_advice_holds(config, agreeing):
    """The changed config means to transformers what the first one did, and as many engines agree as is said."""
    (place, *_) = models.compare(config).places
    assert place.write
    changed = {key: value for key, value in (config | place.write).items() if value is not None}
    assert len(place.then_agree) == agreeing
    (before, after) = (rfrope.from_config(one)[0] for one in (config, changed))
    np.testing.assert_allclose(after.frequencies, before.frequencies, rtol=1e-12)
    assert after.attention_factor == pytest.approx(before.attention_factor, rel=1e-12)
    again = models.compare(changed, seq_len=place.seq_len)
    same = [one.engine for one in again.places[0].engines if one.status == "known" and not one.frequency_error > 1e-12]
    assert {*place.then_agree} <= {*same}
    assert not any(line.startswith(name + ":") for line in again.findings for name in place.then_agree)


@pytest.mark.parametrize("scaling", [YARN | {"truncate": False}, LLAMA3], ids=["truncate", "llama3"])
def test_no_advice_where_nothing_helps(scaling):
    found = models.compare(QWEN3 | {"rope_scaling": scaling})
    assert not found.agree
    assert found.places[0].write == {}
    assert "Write into" not in str(found)


def test_a_wrong_rule_would_be_seen(monkeypatch):
    """A record whose rule drops the factor is a disagreement, not an error."""
    broken = [
        models.Engine(one.name, one.version, one.sources, lambda told: engine_rules.Use(told.ladder()), one.model_types)
        if one.name == "vLLM"
        else one
        for one in ENGINES
    ]
    monkeypatch.setattr("rfrope.models.comparing.ENGINES", tuple(broken))
    found = models.compare(QWEN3 | {"rope_scaling": YARN}, ["transformers", "vLLM"])
    assert len(found.findings) == 2
    assert "frequencies differ by up to" in found.findings[0]


def test_as_data():
    told = models.compare(QWEN3 | {"rope_scaling": YARN | {"attention_factor": 1.0}}).to_dict()
    text = json.dumps(told, allow_nan=False)
    assert json.loads(text) == told
    assert told["agree"] is False
    assert len(told["places"][0]["engines"][2]["frequencies"]) == 64


@pytest.mark.parametrize(
    ("engines", "seq_len", "error", "message"),
    [
        (
            ["vlm"],
            None,
            ValueError,
            r"engines\[0\] is 'vlm'; did you mean 'vLLM'\? Expected one of 'transformers', 'vLLM'",
        ),
        ([], None, ValueError, "engines is empty"),
        ([3], None, ValueError, r"engines\[0\] is 3; expected one of"),
        (None, 0, ValueError, "seq_len is 0"),
        (None, 1.5, TypeError, "seq_len is 1.5"),
    ],
)
def test_errors(engines, seq_len, error, message):
    with pytest.raises(error, match=message):
        models.compare(LLAMA, engines, seq_len=seq_len)


def test_names_in_any_case():
    found = models.compare(LLAMA, "VLLM")
    assert [one.engine for one in found.places[0].engines] == ["vLLM"]
    assert found.places[0].reference == "vLLM"


@pytest.mark.parametrize("one", PUBLISHED, ids=[one.model for one in PUBLISHED])
def test_published_configs_can_be_compared(one):
    """What is known of them agrees, but for Phi-3's short texts, where MLX-LM takes the list for long ones."""
    found = models.compare(one.config)
    json.dumps(found.to_dict(), allow_nan=False)
    assert found.places[0].engines[0].status == "known" or found.places[0].scheme == "axial"
    if one.config["model_type"] == "phi3" and "rope_scaling" in str(one.config):
        assert [line.partition(":")[0] for line in found.findings] in ([], ["MLX-LM"])
    else:
        assert found.findings == ()


@pytest.mark.parametrize(("ratio", "said"), [(1.0, False), (1.2, True), (0.8, True), (1.0 - 1e-12, False)])
def test_scores_that_are_smaller_are_as_different_as_larger_ones(ratio, said):
    use = comparing.EngineUse(
        "one", "1", (), "known", frequencies=np.ones(2), attention_factor=math.sqrt(ratio), pairing="half",
        frequency_error=0.0, score_ratio=ratio,
    )  # fmt: skip
    standard = replace(use, engine="other", attention_factor=1.0, score_ratio=1.0)
    found = list(comparing._differences(use, standard))
    assert bool(found) is said
    if said:
        assert found == [f"scores are {ratio:.4g} times as large, at every distance"]


@pytest.mark.parametrize("rope_type", ["dynamic"])
def test_alpha_was_not_read_in_tensorrt_llm(rope_type):
    scaling = {"type": rope_type, "alpha": 1000.0, "factor": 2.0}
    found = models.compare(LLAMA | {"rope_scaling": scaling}, ["TensorRT-LLM"])
    assert (row(found, "TensorRT-LLM").status, "alpha" in row(found, "TensorRT-LLM").reason) == ("unknown", True)


@pytest.mark.parametrize("factor", [4.0, 8.0, 2.5])
def test_what_is_written_instead_is_read_the_same(factor, monkeypatch):
    """Also where the factor is not that of the contexts; keys that say what is usual are left out."""
    scaling = YARN | {"factor": factor, "beta_fast": 32, "beta_slow": 1, "truncate": True}
    config, seen = LLAMA | {"rope_theta": 1e6, "rope_scaling": scaling}, []
    rewrites = rewriting.rewrites

    def watched(raw, case):
        found = list(rewrites(raw, case))
        seen.extend(found)
        return iter(found)

    monkeypatch.setattr(comparing, "rewrites", watched)
    models.compare(config | {"rope_scaling": scaling | {"attention_factor": 1.3}})
    (rope,) = rfrope.from_config(config | {"rope_scaling": scaling | {"attention_factor": 1.3}})
    assert len(seen) >= 3
    for one in seen:
        (found,) = rfrope.from_config(one)
        np.testing.assert_allclose(found.frequencies, rope.frequencies, rtol=1e-6)
    yarns = [one["rope_scaling"] for one in seen if one["rope_scaling"]["type"] == "yarn"]
    assert any(not {"beta_fast", "beta_slow", "truncate"} & set(one) for one in yarns)
