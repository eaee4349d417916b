"""What to type for an engine says all of a scheme, or is refused."""

import pytest
from conftest import rows

from rfrope import engines

YARN = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 32768}


@pytest.mark.parametrize(("engine", "more", "said"), rows("engines/overrides.json", "keys_of_yarn"))
def test_keys_of_yarn(engine, more, said):
    found = engines.override(engine, YARN | more, 131072)
    assert said in found
    assert ("attention_factor" in found) == (engine == "vLLM")


@pytest.mark.parametrize("engine", ["llama.cpp", "MLX-LM"])
def test_what_an_engine_does_not_read_is_refused(engine):
    with pytest.raises(
        ValueError, match=rf"truncate = False, which {engine} does not read under 'yarn'; expected True"
    ):
        engines.override(engine, YARN | {"truncate": False}, 131072)
    with pytest.raises(ValueError, match="lacks factor"):
        engines.override(engine, YARN | {"factor": None}, 131072)
