"""rope_type "rfrope" in configs of transformers: what a config alone decides, and what a saved model says."""

import copy
import dataclasses
import logging
import math
import types
import warnings

import numpy as np
import pytest
import tiny_models
from campaign import sparse
from packages import WARNINGS
from tiny_models import logits, made, ropes_of

import rfrope
from rfrope.integrations import transformers as integration
from rfrope.integrations.transformers import register, replace_rotary
from rfrope.layers.torch import RotaryEmbedding

torch, transformers = tiny_models.torch, tiny_models.transformers

pytestmark = WARNINGS


DESIGNED = {"rope_type": "rfrope", "kernel": "matern(nu=1.5, scale=64.0)", "design": "stratified", "seed": 3}
LISTED = {"rope_type": "rfrope", "frequencies": rfrope.geometric(8, base=500.0).tolist(), "attention_factor": 1.25}


def expected_of(told):
    if "frequencies" in told:
        return np.asarray(told["frequencies"])
    options = {"head_dim": 16, "context": told.get("context", 4096), "design": told["design"], "rng": told["seed"]}
    return rfrope.design(told["kernel"], **options).frequencies


@pytest.mark.parametrize("told", [DESIGNED, DESIGNED | {"context": 512}, LISTED], ids=["design", "context", "listed"])
def test_a_config_alone_decides(told, tmp_path, caplog):
    register()
    with caplog.at_level(logging.WARNING):
        model = made(rope_parameters=dict(told))
        model.save_pretrained(tmp_path)
        again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert "validation" not in caplog.text
    for one in (model, again):
        rotary = one.model.rotary_emb
        np.testing.assert_array_equal(rotary.inv_freq, expected_of(told).astype(np.float32))
        assert rotary.attention_scaling == told.get("attention_factor", 1.0)
        assert {key: one.config.rope_parameters[key] for key in told} == told
    assert torch.equal(logits(again), logits(model))
    assert not torch.equal(logits(model), logits(made()))


class OfItsOwn(transformers.PretrainedConfig):
    model_type = "rfrope_test_of_its_own"


class Learning(transformers.PreTrainedModel):
    """A model that learns its rotation, beside a parameter of a module that transformers does not know either."""

    config_class = OfItsOwn

    def __init__(self, config):
        super().__init__(config)
        self.linear, self.rotary = torch.nn.Linear(4, 4), RotaryEmbedding(rfrope.geometric(8), "both")
        self.naive = torch.nn.Module()
        self.naive.inv_freq = torch.nn.Parameter(torch.tensor(rfrope.geometric(8)))
        self.post_init()


@pytest.mark.parametrize("dtype", [None, torch.bfloat16], ids=["as it is", "bfloat16"])
@pytest.mark.parametrize(
    "lacking", [(), ("frequencies",), ("phases",), ("frequencies", "phases"), "mismatched"], ids=str
)
def test_what_a_checkpoint_lacks_starts_from_the_rope(lacking, dtype, tmp_path, monkeypatch):
    """transformers#45902: what no file has is raw memory, made by ``torch.empty_like`` after the meta device."""
    files = pytest.importorskip("safetensors.torch")
    model = Learning(OfItsOwn())
    with torch.no_grad():
        model.rotary.frequencies.mul_(1.5)
        model.rotary.phases.fill_(0.25)
    model.save_pretrained(tmp_path)
    state = files.load_file(tmp_path / "model.safetensors")
    del state["naive.inv_freq"]
    if lacking == "mismatched":
        state["rotary.frequencies"] = torch.ones(5, dtype=torch.float64)
    else:
        for name in lacking:
            del state[f"rotary.{name}"]
    files.save_file(state, tmp_path / "model.safetensors", {"format": "pt"})
    real = torch.empty_like

    def filled(like, **options):
        made = real(like, **options)
        return made if made.is_meta or not made.is_floating_point() else made.fill_(0.7)

    monkeypatch.setattr(torch, "empty_like", filled)
    again = Learning.from_pretrained(tmp_path, dtype=dtype, ignore_mismatched_sizes=True)
    assert again.naive.inv_freq.tolist() == [pytest.approx(0.7)] * 8, "of a naive module it is garbage"
    assert again.linear.weight.dtype == (dtype or torch.float32)
    anew = "frequencies" in lacking or lacking == "mismatched"
    np.testing.assert_array_equal(again.rotary.frequencies.detach(), rfrope.geometric(8) * (1.0 if anew else 1.5))
    assert again.rotary.phases.tolist() == [0.0 if "phases" in lacking else 0.25] * 8
    assert again.rotary.frequencies.dtype == again.rotary.phases.dtype == torch.float64


@pytest.mark.parametrize("layer_type", [None, "full_attention", "sliding_attention"])
def test_one_dict_is_for_layers_of_every_kind(layer_type):
    """Transformers asks by kind of layer; a config may have a dict for each, or one for all."""
    flat = {"rope_type": "rfrope", "frequencies": [1.0, 0.5]}
    config = types.SimpleNamespace(rope_parameters=flat, head_dim=4, max_position_embeddings=64)
    found, factor = integration._initialised(config, layer_type=layer_type)
    assert (found.tolist(), factor) == ([1.0, 0.5], 1.0)
    if layer_type is not None:
        config.rope_parameters = {layer_type: flat, "other": {"rope_type": "rfrope", "frequencies": [9.0, 9.0]}}
        assert integration._initialised(config, layer_type=layer_type)[0].tolist() == [1.0, 0.5]


@pytest.mark.parametrize("told", [DESIGNED, LISTED], ids=["design", "listed"])
@pytest.mark.parametrize("model_type", ["llama", "phi", "glm"])
def test_the_config_of_such_a_model_is_read(told, model_type, tmp_path):
    """By `from_config`, from a file that transformers wrote, and by the commands that read configs."""
    register()
    if model_type != "llama":
        told = told | {"partial_rotary_factor": 0.5}
        told |= {"frequencies": told["frequencies"][:4]} if "frequencies" in told else {}
    model = made(model_type, rope_parameters=dict(told))
    model.save_pretrained(tmp_path)
    (rope,) = rfrope.from_config(tmp_path)
    np.testing.assert_array_equal(rope.frequencies.astype(np.float32), model.model.rotary_emb.inv_freq)
    assert rope.attention_factor == told.get("attention_factor", 1.0)
    assert rope.source.kernel == told.get("kernel")
    assert rfrope.models.audit(model, rope).passed
    compared = rfrope.models.compare(tmp_path / "config.json")
    assert "register()" in str(compared)
    own = logits(model)
    with replace_rotary(model, rope):
        torch.testing.assert_close(logits(model), own, rtol=0, atol=3e-6 * float(own.abs().max()))


# -- what a saved model says -------------------------------------------------------------------------------------------


def saved(model, folder, expected=None):
    """The model that from_pretrained makes of a saved one, which may warn."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        model.save_pretrained(folder)
    told = [str(each.message) for each in seen if "replace_rotary" in str(each.message)]
    assert told == [] if expected is None else len(told) == 1 and expected in told[0]
    return transformers.AutoModelForCausalLM.from_pretrained(folder).eval()


@pytest.mark.parametrize("learnable", [False, True, "frequencies"])
@pytest.mark.parametrize("model_type", sparse(["llama", "gemma3_text", "glm", "gpt_neox"], lambda one: "m" in one[:3]))
def test_what_was_put_in_is_saved_with_the_config(model_type, learnable, tmp_path):
    register()
    model = made(model_type)
    ropes, before = ropes_of(model), copy.deepcopy(model.config.rope_parameters)
    ropes = ropes if isinstance(ropes, dict) else {"": ropes}
    ropes = {
        kind: dataclasses.replace(one, frequencies=1.1 * one.frequencies, attention_factor=1.25)
        for kind, one in ropes.items()
    }
    modules = {kind: RotaryEmbedding(one, learnable) for kind, one in ropes.items()}
    with replace_rotary(model, modules.get("", modules)):
        if learnable:
            with torch.no_grad():
                for module in modules.values():
                    (learned,) = module.parameters()
                    learned.add_(math.log(1.5)) if learnable is True else learned.mul_(1.5)
        wanted = logits(model)
        again, copied = saved(model, tmp_path / "model"), copy.deepcopy(model) if not learnable else None
        assert model.config.rope_parameters == before
        if copied is not None:  # it saves itself, and not the original
            with torch.no_grad():
                copied.lm_head.weight *= 2.0
            torch.testing.assert_close(logits(saved(copied, tmp_path / "copy")), logits(copied), rtol=0, atol=1e-5)
    torch.testing.assert_close(logits(again), wanted, rtol=0, atol=1e-5)
    assert not torch.allclose(logits(model), wanted, atol=1e-4)
    for one in rfrope.from_config(again.config):
        name = one.source.model.name if len(ropes) > 1 else ""
        if name in ("", *(getattr(model.config, "layer_types", None) or ())):
            factor = 1.5 if learnable else 1.0
            np.testing.assert_allclose(one.frequencies, factor * ropes[name].frequencies, rtol=1e-12)
            assert one.attention_factor == 1.25


@pytest.mark.parametrize("given", ["all", "a part"])
def test_a_part_that_was_given_alone_is_saved_by_the_whole_and_the_other_way_round(given, tmp_path):
    register()
    model, rope = made(), rfrope.Rope(rfrope.geometric(8, base=77.0), attention_factor=1.25)
    with replace_rotary(model if given == "all" else model.model, rope):
        wanted = logits(model)
        torch.testing.assert_close(logits(saved(model, tmp_path / "whole")), wanted, rtol=0, atol=1e-5)
        model.model.save_pretrained(tmp_path / "part")
    (read,) = rfrope.from_config(tmp_path / "part")
    np.testing.assert_array_equal(read.frequencies, rope.frequencies)
    model.save_pretrained(tmp_path / "without")
    assert rfrope.from_config(tmp_path / "without")[0].source.rope_parameters["rope_type"] == "default"


def test_what_a_config_cannot_hold_is_not_lost_without_a_word(tmp_path):
    sets = rfrope.sample("gaussian(scale=32)", 8, rng=0, heads=2)
    none = "a config holds one set of frequencies for all heads, and no phases"
    for model_type, rope, lost in (
        ("llama", RotaryEmbedding(rfrope.geometric(8), "phases"), none),
        ("llama", sets, none),
        ("phi3", rfrope.geometric(8), "Phi3RotaryEmbedding does not rotate by the frequencies of its config"),
        ("nanochat", rfrope.Rope(-rfrope.geometric(8)), "NanoChatRotaryEmbedding reads no frequencies"),
    ):
        model = made(model_type)
        own = logits(model)
        with replace_rotary(model, rope):
            again = saved(model, tmp_path / model_type, lost)
        torch.testing.assert_close(logits(again), own, rtol=0, atol=1e-5)
