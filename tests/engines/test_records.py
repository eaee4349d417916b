"""The registry of engines: every record is complete, names are found in any spelling, nothing unread is claimed."""

import numpy as np
import pytest
from engine_configs import TYPES, config

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
        assert engine.name == "transformers" or set(TYPES) <= set(engine.reading.model_types)
    for form in (engine.format for engine in TAKERS):
        assert all((form.carries, form.exact, form.source))
        assert set(form.options) <= {"context", "base", "dtype", "architecture"}


@pytest.mark.parametrize("spelling", ["vLLM", "vllm", "V-LLM", "llama.cpp", "llama_cpp", "tensorrt llm", "SGLANG"])
def test_one_name_in_any_spelling(spelling):
    """`compare` and `export` agree."""
    llama = config("llama", "default")
    (name,) = [one.engine for one in models.compare(llama, spelling).ropes[0].engines]
    rope = rfrope.Rope(np.ones(4), context=8)
    made, other = (engines.export(rope, one) for one in (spelling, name))
    assert repr(made) == repr(other)
    assert name in engines.names()
