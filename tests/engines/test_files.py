"""A model's config with an exported RoPE in place of its own."""

import json
import os
from dataclasses import replace

import numpy as np
import pytest
from conftest import rows
from ropes import CONTEXT, KINDS

import rfrope
from rfrope import Rope, engines
from rfrope.engines.writing import files

ROPE = KINDS["no factor"](1)
SIZES = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4}
CONFIG = SIZES | {"rope_theta": 5e5, "rope_scaling": {"rope_type": "linear", "factor": 2.0}}
KINDS_OF_LAYERS = {
    "full_attention": {"rope_type": "default", "rope_theta": 1e6},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}
TEXT = {"model_type": "gemma3_text", "head_dim": 16, "max_position_embeddings": 300, "rope_parameters": KINDS_OF_LAYERS}
LAYERED = {"model_type": "gemma3", "text_config": TEXT}


@pytest.fixture
def merge(tmp_path):
    """``merge(config, rope, engine)``: the config with that Rope in it."""

    def merged(config, rope=ROPE, engine="transformers", name="new.json", **options):
        text = config if isinstance(config, str) else json.dumps(config)
        (tmp_path / "config.json").write_text(text, "utf-8")
        engines.write(tmp_path / name, rope, engine, model=tmp_path, **options)
        return json.loads((tmp_path / name).read_text("utf-8"))

    return merged


def test_a_rope_is_replaced_in_place_too(merge, tmp_path):
    assert merge(CONFIG) == SIZES | engines.export(ROPE, "transformers")
    (read,) = rfrope.from_config(merge(CONFIG, engine="vLLM", name="config.json", overwrite=True))
    np.testing.assert_allclose(read.frequencies, ROPE.frequencies, atol=1e-6)
    assert "rope_scaling" not in merge(CONFIG | {"rope_scaling": {"rope_type": "exotic"}}, name="other.json")


def test_a_pairing_that_is_assumed_speaks_against_no_rope(merge):
    """Of a type that nobody knows "half" is assumed; the Rope's own type interleaves."""
    sizes = {"hidden_size": 128, "num_attention_heads": 2, "max_position_embeddings": 4096, "rope_theta": 1e4}
    (cohere,) = rfrope.from_config({"model_type": "cohere"} | sizes)
    rope = replace(cohere, frequencies=0.5 * cohere.frequencies)
    (read,) = rfrope.from_config(merge({"model_type": "made_up"} | sizes, rope))
    np.testing.assert_allclose(read.frequencies, rope.frequencies, rtol=1e-6)
    assert (read.pairing, rope.pairing) == ("half", "interleaved")


def test_one_kind_of_layers_of_a_part(merge):
    full, sliding = rfrope.from_config(LAYERED)
    full_part, sliding_part = "text_config.full_attention", "text_config.sliding_attention"
    made = merge(LAYERED, replace(ROPE, source=full.source), base=1e6)
    read = {one.source.model.name: one for one in rfrope.from_config(made)}
    np.testing.assert_allclose(read[full_part].frequencies, ROPE.frequencies, atol=1e-6)
    assert np.array_equal(read[sliding_part].frequencies, sliding.frequencies)
    read = {one.source.model.name: one for one in rfrope.from_config(merge(LAYERED, name="b.json", part=sliding_part))}
    np.testing.assert_allclose(read[sliding_part].frequencies, ROPE.frequencies, atol=1e-6)


@pytest.mark.parametrize(("engine", "model_type", "own", "head"), rows("engines/files.json", "parts_of_heads"))
def test_the_part_of_a_head_is_written_under_the_names_of_the_class(merge, engine, model_type, own, head):
    """Whole heads, too, and where the config says nothing: these classes turn a part unless they are told."""
    config = SIZES | {"model_type": model_type, "num_attention_heads": 64 // head, "rope_theta": None, **own}
    made = merge(config, replace(ROPE, head_dim=head), engine)
    (read,) = rfrope.from_config(made)
    assert (read.head_dim, read.rotary_dim) == (head, 16)
    np.testing.assert_allclose(read.frequencies, ROPE.frequencies, rtol=1e-5, atol=1e-25)
    assert made.get("rope_parameters", made)["partial_rotary_factor"] == 16 / head
    if engine == "TensorRT-LLM" and model_type == "gpt_neox":
        assert (made["rotary_pct"], made["rotary_emb_base"]) == (16 / head, 10_000.0)


def test_the_width_that_turns_is_replaced_where_a_config_has_it(merge):
    config = SIZES | {"num_attention_heads": 2, "rope_theta": 1e4, "rotary_dim": 8}
    assert merge(config, replace(ROPE, head_dim=32))["rotary_dim"] == 16


@pytest.mark.parametrize(
    ("engine", "own"), [("transformers", {}), ("TensorRT-LLM", {"original_max_position_embeddings": 4096})]
)
def test_the_original_context_beside_the_dict_is_replaced(merge, engine, own):
    made = merge(SIZES | own | {"model_type": "phi3", "rope_theta": 1e4}, ROPE, engine)
    assert made["original_max_position_embeddings"] == made["max_position_embeddings"] == CONTEXT


def test_what_else_stands_in_the_dict_of_a_scheme_that_stays_is_kept(merge, tmp_path):
    """Ministral 3 scales its queries by a key of that dict."""
    yarn = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 75, "llama_4_scaling_beta": 0.1}
    config = SIZES | {
        "model_type": "ministral3",
        "head_dim": 16,
        "max_position_embeddings": 300,
        "rope_parameters": yarn,
    }
    (rope,) = rfrope.from_config(config)
    assert merge(config, rope)["rope_parameters"]["llama_4_scaling_beta"] == 0.1
    assert "llama_4_scaling_beta" not in merge(config, name="other.json")["rope_parameters"]


SMALL = Rope([1.0, 0.5], context=8)
REFUSED = {
    "too few heads": (CONFIG | {"model_type": "phi", "num_attention_heads": 2}, ROPE, {}, "the Rope .*config.json"),
    "wider heads": (CONFIG | {"model_type": "phi"}, replace(ROPE, head_dim=32), {},
                    "the Rope of 8 blocks in heads of 32 does not fit .*config.json: .* expected one number"),
    "fewer blocks": (CONFIG | {"model_type": "phi"}, SMALL, {}, "the Rope .*config.json"),
    "a head of the class": (CONFIG | {"model_type": "glm", "head_dim": 16}, ROPE, {},
                            "the Rope is .*pairing='half'.*with it .*config.json is read as Rope.*'interleaved'"),
    "no head": (CONFIG | {"num_attention_heads": 128}, ROPE, {},
                "the Rope of 8 blocks in heads of 16 does not fit .*config.json: .* .hidden_size is 64"),
    "an older spelling of layers": ({"model_type": "gemma3", "text_config": TEXT | {"rope_parameters": None}}, ROPE,
                                    {"part": "text_config.full_attention"},
                                    "'text_config.full_attention', a kind of layers, and .* has no rope_pa"),
    "older keys": (LAYERED, ROPE, {"part": "text_config.full_attention", "engine": "TensorRT-LLM"},
                   "'text_config.full_attention', a kind of layers, and .* or the engine reads none"),
    "an unknown layer": (LAYERED, ROPE, {"part": "text_config.x"},
                         "part is 'text_config.x', but .* has a RoPE for 'text_config.full_"),
    "not JSON": ('{"a": ', ROPE, {}, "is not valid JSON"),
    "a list": ("[1]", ROPE, {}, "holds a list; expected a model's"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_rope_must_fit_the_config(merge, tmp_path, name):
    config, rope, options, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        merge(config, rope, **{"engine": "vLLM"} | options)
    assert os.listdir(tmp_path) == ["config.json"]


def test_a_config_that_would_say_another_attention_factor(merge, monkeypatch):
    made = files.from_config
    change = lambda config: [replace(one, attention_factor=1.5) for one in made(config)]  # noqa: E731
    monkeypatch.setattr(files, "from_config", change)
    with pytest.raises(ValueError, match="or turns differently; expected a Rope of the model's own"):
        merge(CONFIG)
