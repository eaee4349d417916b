"""Ropes of several kinds of layers in one export: configs that models of transformers run, and refusals."""

import dataclasses
import json

import numpy as np
import pytest
from campaign import sparse
from conftest import rows

import rfrope
from rfrope import engines
from rfrope.models import Layers, list_layers

BOTH = ["sliding_attention", "full_attention"]
GEMMA = {"model_type": "gemma3_text", "num_hidden_layers": 4, "head_dim": 16, "max_position_embeddings": 512}
GEMMA |= {"layer_types": BOTH * 2, "rope_theta": 1e6, "rope_local_base_freq": 1e4}
SMOL = {"model_type": "smollm3", "num_hidden_layers": 4, "head_dim": 16, "max_position_embeddings": 512}
TINY = dict(rows("engines/layers.json", "tiny"))


def changed(layers: Layers) -> Layers:
    """Layers of the same kinds by other frequencies, each kind by its own, and an attention factor."""
    kinds = []
    for i, one in enumerate(layers.kinds):
        if one.rope is not None:
            omega = one.rope.frequencies * (0.5 + 0.2 * i)
            one = dataclasses.replace(one, rope=dataclasses.replace(one.rope, frequencies=omega, attention_factor=1.1))
        kinds.append(one)
    return Layers(tuple(kinds))


LAYERED = engines.find_engine("engine", "transformers", "format")[1].layered


@pytest.mark.parametrize(
    "model_type", sparse((*LAYERED, "qwen3", "phi3"), ("gemma3_text", "smollm3", "phi3").__contains__)
)
@pytest.mark.filterwarnings("ignore")
def test_a_model_of_the_exported_config_turns_by_it(model_type):
    tiny_models = pytest.importorskip("tiny_models", reason="torch or transformers is not installed")
    torch, transformers = tiny_models.torch, tiny_models.transformers
    from rfrope.integrations.transformers import replace_rotary

    own = type(transformers.AutoConfig.for_model(model_type))(**tiny_models.SIZES | TINY.get(model_type, {}))
    family = transformers.AutoModelForMaskedLM if model_type == "modernbert" else transformers.AutoModelForCausalLM
    torch.manual_seed(0)
    model = family.from_config(own).eval()
    layers = changed(list_layers(own))
    before = tiny_models.logits(model)
    with replace_rotary(model, layers):
        wanted = tiny_models.logits(model)
    held = own.to_dict() | engines.export(layers, "transformers")
    held = {key: value for key, value in held.items() if key not in ("rope_theta", "rope_scaling")}
    made = family.from_config(type(own)(**held)).eval()
    made.load_state_dict(model.state_dict())
    missed = torch.max(torch.abs(tiny_models.logits(made) - wanted))
    assert missed < 0.01 * torch.max(torch.abs(before - wanted))
    assert missed < 1e-6


def test_a_dict_for_each_kind_and_the_kind_of_each_layer():
    layers = changed(list_layers(GEMMA))
    made = engines.export(layers, "vllm")
    assert (made["layer_types"], made["max_position_embeddings"]) == (BOTH * 2, 512)
    assert [*made["rope_parameters"]] == BOTH
    for name, rope in layers.ropes.items():
        assert made["rope_parameters"][name] == engines.export(rope, "vllm")["rope_parameters"]
    read = list_layers(GEMMA | made | {"rope_theta": None, "rope_local_base_freq": None})
    for name, rope in layers.ropes.items():
        np.testing.assert_allclose(read.ropes[name].frequencies, rope.frequencies, rtol=1e-6)
    json.dumps(made, allow_nan=False)


def test_layers_without_rope_are_said():
    made = engines.export(list_layers(SMOL | {"no_rope_layers": [1, 0, 0, 1]}), "transformers")
    assert made["no_rope_layers"] == [1, 0, 0, 1]
    assert made["rope_parameters"]["rope_type"] == "default"


def test_layers_of_one_kind_are_one_rope():
    config = {"model_type": "llama", "num_hidden_layers": 2, "head_dim": 16, "max_position_embeddings": 64}
    layers, (rope,) = list_layers(config), rfrope.from_config(config)
    for engine in ("transformers", "SGLang", "flash-attn"):
        made, alone = engines.export(layers, engine), engines.export(rope, engine)
        assert made.keys() == alone.keys()
        assert all(np.array_equal(made[key], alone[key]) for key in made)
