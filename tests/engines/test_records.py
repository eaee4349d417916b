"""The registry of engines: every record is complete, names are found in any spelling, nothing unread is claimed."""

import importlib.util

import numpy as np
import pytest
from engine_configs import TYPES, config
from ropes import KINDS

import rfrope
from rfrope import engines, models

READERS = [engine for engine in engines.records() if engine.reading]
TAKERS = [engine for engine in engines.records() if engine.format]


def test_records_are_complete():
    assert engines.names()[0] == "transformers"
    assert len(set(engines.names())) == len(engines.records())
    assert all(engine.reading or engine.format for engine in engines.records())
    assert engines.names() == [engine.name for engine in engines.records()]
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
    made, other = (engines.export(rope, one) for one in (spelling, name))
    assert repr(made) == repr(other)
    assert name in engines.names()


def test_what_is_not_released_is_refused(monkeypatch):
    torch = importlib.util.find_spec("torch") and importlib.import_module("torch")
    if torch and not hasattr(torch.nn.functional, "rotary_embedding"):
        with pytest.raises(
            ValueError, match=r"PyTorch: torch .* has no nn\.functional\.rotary_embedding: pull request"
        ):
            engines.export(KINDS["plain"](0), "PyTorch")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="torch is not installed; the export needs one that has"):
        engines.export(KINDS["plain"](0), "PyTorch")
