"""The registry of engines: every record is complete, names are found in any spelling, nothing unread is claimed."""

from __future__ import annotations

import numpy as np
import pytest
from engine_configs import CONTEXT, KEY, LISTS, TYPES, YARN, check_table, config, report

import rfrope
from rfrope import engines, exports, models

READERS = [engine for engine in engines.records() if engine.reading]
TAKERS = [engine for engine in engines.records() if engine.format]


def test_records_are_complete():
    assert engines.names()[0] == "transformers"
    assert len(set(engines.names())) == len(engines.records())
    assert all(engine.reading or engine.format for engine in engines.records())
    assert exports.names() == [engine.name for engine in TAKERS] == [engine.name for engine in exports.records()]
    for engine in READERS:
        assert engine.reading.version
        assert all("/" in source for source in engine.reading.sources)
        types = set(TYPES) - ({"qwen3"} if engine.name == "DeepSpeed" else set())  # which has no such model
        assert engine.name == "transformers" or types <= set(engine.reading.model_types)
    for form in (engine.format for engine in TAKERS):
        assert all((form.carries, form.exact, form.source))
        assert set(form.options) <= {"context", "base", "dtype", "architecture"}
        assert form.lacks == "nothing" if form.any_rope else "several axes" in form.lacks
        assert ("sets for each head" in form.lacks) == (not form.any_rope and not form.heads)


@pytest.mark.parametrize("spelling", ["vLLM", "vllm", "V-LLM", "llama.cpp", "llama_cpp", "tensorrt llm", "SGLANG"])
def test_one_name_in_any_spelling(spelling):
    """`compare` and `export` agree."""
    llama = config("llama", "default")
    (name,) = [one.engine for one in models.compare(llama, spelling).ropes[0].engines]
    rope = rfrope.Rope(np.ones(4), context=8)
    made, other = (exports.export(rope, one) for one in (spelling, name))
    assert repr(made) == repr(other)
    assert name in engines.names()


@pytest.mark.parametrize("engine", [engine.name for engine in READERS[1:]])
def test_what_was_not_read_is_unknown(engine):
    found = report(engine, config("llama", "default") | {"model_type": "stablelm"})
    assert (found.status, found.rope, found.differs_from) == ("unknown", None, None)
    assert "'stablelm' was not read" in found.reason


@pytest.mark.parametrize(
    ("engine", "scheme", "status", "reason"),
    [
        ("transformers", {"rope_type": "ntk", "factor": 4.0}, "refused", "'ntk' is none of its schemes"),
        ("vLLM", {"rope_type": "ntk", "factor": 4.0}, "unknown", "the scheme 'ntk' was not read"),
        ("SGLang", {"rope_type": "dynamic", "alpha": 1e3}, "unknown", "the scheme 'dynamic' was not read"),
        ("TensorRT-LLM", {"rope_type": "dynamic", "alpha": 1e3}, "unknown", "'dynamic' with alpha was not read"),
        ("TensorRT-LLM", {"rope_type": "ntk", "factor": 4.0}, "refused", "'ntk' is none of its schemes"),
        ("MLX-LM", {"rope_type": "ntk", "factor": 4.0}, "refused", "'ntk' is none of its schemes"),
        ("llama.cpp", {"rope_type": "ntk", "factor": 4.0}, "unknown", "the scheme 'ntk' was not read"),
        ("vLLM", {"rope_type": "yarn", KEY: 1024}, "refused", "factor missing"),
        ("vLLM", {"rope_type": "linear", "factor": 4}, "refused", "factor is 4, and it wants a float, 4.0"),
        ("SGLang", {"rope_type": "linear", "factor": 4}, "refused", "factor is 4, and it wants a float, 4.0"),
        ("transformers", {"type": "yarn", KEY: 1024}, "refused", "factor missing"),
    ],
)
def test_schemes_that_an_engine_does_not_run(engine, scheme, status, reason):
    found = report(engine, config("llama", "default") | {"rope_scaling": scheme})
    assert found.status == status
    assert reason in found.reason


@pytest.mark.parametrize(
    ("changes", "status", "reason"),
    [
        ({"model_type": "qwen3", "head_dim": 64, "rope_theta": None}, "refused", "rope_theta missing"),
        ({"model_type": "phi3", "rope_scaling": YARN}, "refused", "rope_scaling wants type and long_factor"),
        ({"model_type": "phi3", "rope_scaling": {"type": "longrope", KEY: 4096, **LISTS}}, "known", ""),
    ],
)
def test_configs_that_mlx_lm_does_not_run(changes, status, reason):
    found = report("MLX-LM", config("llama", "default") | changes)
    assert found.status == status
    assert reason in found.reason


def test_the_check_of_a_table_sees_what_it_looks_for():
    found = report("transformers", config("llama", "yarn with an attention factor"))
    phases = np.multiply.outer(np.arange(CONTEXT), found.rope.frequencies)
    right = 1.5 * np.concatenate([np.cos(phases), np.sin(phases)], axis=-1)
    check_table(right, found, CONTEXT)
    for wrong in (right / 1.5, right[:, ::-1], right * 1.001, np.roll(right, 1, axis=0)):
        with pytest.raises(AssertionError):
            check_table(wrong, found, CONTEXT)
