"""Repair of rotary buffers: right values in place of wrong ones, everything else bit for bit as it was."""

import copy

import numpy as np
import pytest
from conftest import library

import rfrope
from rfrope import models

torch = library("torch").module
ORIGINAL = "original_max_position_embeddings"
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, ORIGINAL: 1024}
LISTS = {"short_factor": [1.0 + i / 8 for i in range(8)], "long_factor": [2.0 + i for i in range(8)]}
SCHEMES = {
    "default": {},
    "llama3": LLAMA3,
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
    "longrope": {"rope_type": "longrope", ORIGINAL: 1024, **LISTS},
}


def config(scheme):
    made = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "head_dim": 16, "rope_theta": 5e5}
    return made | {"max_position_embeddings": 4096, "rope_scaling": SCHEMES[scheme] or None}


@pytest.fixture
def build():
    tiny = pytest.importorskip("tiny_models")

    def make(scheme):
        values = tiny.SIZES | config(scheme)
        scaling = values.pop("rope_scaling") or {"rope_type": "default"}
        parameters = scaling | {"rope_theta": values.pop("rope_theta")}
        values.pop("model_type")
        return tiny.transformers.LlamaModel(tiny.transformers.LlamaConfig(**values, rope_parameters=parameters))

    return make


def fill(model, value):
    for name, tensor in model.named_buffers():
        if "inv_freq" in name:
            tensor.fill_(value)
    return model


BREAK = {
    "zeros": lambda model: fill(model, 0.0),
    "not finite": lambda model: fill(model, float("nan")),
    "memory": lambda model: fill(model, 3e30),
    "half": lambda model: model.bfloat16(),
    "stale": lambda model: fill(model, 1e-3),
    "meta": lambda model: model.to("meta"),
    "empty": lambda model: fill(model.to("meta").to_empty(device="cpu"), 0.0),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("how", BREAK)
def test_a_model_is_right_again_and_nothing_else_changed(build, how, scheme):
    right = build(scheme)
    assert models.check(right).passed
    broken = BREAK[how](copy.deepcopy(right))
    before = {name: (tensor, tensor.clone()) for name, tensor in broken.state_dict().items()}
    assert not models.check(broken).passed
    assert "rfrope.models.repair(model)" in str(models.check(broken))
    found = models.repair(broken)
    assert found.passed, found
    assert len(found.changed) == 2
    assert models.check(broken).passed
    for name in ("inv_freq", "original_inv_freq"):
        one, other = (getattr(model.rotary_emb, name) for model in (broken, right))
        assert one.dtype == torch.float32
        np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=4e-6)
    after = broken.state_dict()
    assert after.keys() == before.keys()
    for name, (tensor, values) in before.items():
        assert (after[name].data_ptr(), after[name].dtype) == (tensor.data_ptr(), tensor.dtype)
        assert tensor.device.type == "meta" or torch.equal(torch.nan_to_num(after[name]), torch.nan_to_num(values))
    assert models.repair(broken).changed == ()


@pytest.mark.filterwarnings("ignore")
def test_a_model_after_a_long_text_stays_as_it_is(build):
    model = build("longrope")
    model.rotary_emb(torch.zeros(1, 1, 1), torch.arange(2000)[None])
    held = model.rotary_emb.inv_freq.clone()
    assert models.repair(model).changed == ()
    assert torch.equal(model.rotary_emb.inv_freq, held)


TABLES = {  # names of buffers with their layouts, of cos and sin (S, D)
    "pair": lambda cos, sin: {"cos_cached": cos, "sin_cached": sin},
    "doubled": lambda cos, sin: {
        "cos_cached": torch.cat([cos, cos], -1)[None, None],
        "sin_cached": torch.cat([sin, sin], -1)[None, None],
    },
    "side by side": lambda cos, sin: {"cos_sin_cache": torch.cat([cos, sin], -1)},
    "stacked": lambda cos, sin: {"cache": torch.stack([cos, sin], -1)},
    "complex": lambda cos, sin: {"freqs_cis": torch.complex(cos, sin)},
}


@pytest.mark.parametrize("layout", TABLES)
def test_tables_of_every_layout(layout):
    rope = rfrope.Rope(rfrope.geometric(8), pairing="half", attention_factor=1.25, context=64)
    right = TABLES[layout](*(torch.tensor(one, dtype=torch.float32) for one in rope.table(np.arange(64))))
    model = torch.nn.Module()
    for name, tensor in right.items():
        model.register_buffer(name, torch.zeros_like(tensor))
    assert len(models.repair(model, rope).changed) == 1
    for name, tensor in right.items():
        assert torch.equal(getattr(model, name), tensor)
    assert models.repair(model, rope).changed == ()


def test_what_is_no_value_is_left_and_said():
    model, rope = torch.nn.Module(), rfrope.Rope(rfrope.geometric(8), context=64)
    model.inv_freq = torch.nn.Parameter(torch.full((8,), 0.3))
    found = models.repair(model, rope)
    assert (found.changed, [one.kind for one in found.left]) == ((), ["frequencies"])
    wide = torch.nn.Module()
    wide.register_buffer("inv_freq", torch.ones(4))
    assert [one.kind for one in models.repair(wide, rope).left] == ["width"]
    with pytest.raises(TypeError, match="model is 3; expected a torch"):
        models.repair(3)
