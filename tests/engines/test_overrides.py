"""What to type for an engine says all of a scheme, or is refused."""

import pytest

from rfrope import engines

YARN = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 32768}
SCALES = {"mscale": 0.7, "mscale_all_dim": 1.2}
FEWER = "--override-kv ARCH.rope.scaling.attn_factor=float:0.87824886"  # 1 / 1.1386
RATIO = '"mscale": 1.0, "mscale_all_dim": 1.0'


@pytest.mark.parametrize(
    ("engine", "more", "said"),
    [
        ("llama.cpp", {"attention_factor": 1.0}, FEWER),
        ("llama.cpp", SCALES, "attn_factor=float:0.82605"),  # 1.09704 / 1.16636 / 1.13863
        ("MLX-LM", {"attention_factor": 1.0}, RATIO),
        ("SGLang", {"attention_factor": 1.0}, RATIO),
        ("vLLM", {"attention_factor": 1.0}, '"attention_factor": 1.0'),
        ("MLX-LM", SCALES, '"mscale": 0.7, "mscale_all_dim": 1.2'),
        ("SGLang", {"truncate": False}, '"truncate": false'),
    ],
)
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
