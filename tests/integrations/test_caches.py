"""Generation with every class of caches of transformers, of models whose config has rope_type "rfrope".

A cache may lose something (quantized ones do), so that what is generated is held against the same model with the same
frequencies by transformers' own rope_type "default", bit for bit; and without a loss against no cache at all.
"""

import importlib.util

import pytest
import tiny_models
from campaign import sparse
from conftest import rows
from tiny_models import CACHE, IDS, SIZES
from transformers import cache_utils

import rfrope
from rfrope.integrations.transformers import register, replace_rotary

torch, transformers = tiny_models.torch, tiny_models.transformers

pytestmark = pytest.mark.filterwarnings("ignore")  # theirs
OPTIONS = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
DEFAULT = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 1.0}
OURS = {  # the numbers that transformers makes of it, which are rounded on the way
    "rope_type": "rfrope",
    "frequencies": (1.0 / 1e4 ** (torch.arange(0, 16, 2).float() / 16)).tolist(),
    "partial_rotary_factor": 1.0,
}
KINDS = ("sliding_attention", "full_attention")
# by model type, what its config says beside the sizes; layers of a dynamic cache, and of a static one; and of backends
# that quantize, what they need, what they are asked for, and their layer
MODELS, LAYERS, QUANTIZED = (rows("integrations/caches.json", name) for name in ("models", "layers", "quantized"))


def made(model_type, told):
    register()
    kinds = MODELS[model_type]["layer_types"] if model_type in ("gemma3_text", "zaya") else ()
    told = {kind: dict(told) for kind in kinds} or dict(told)
    config = type(transformers.AutoConfig.for_model(model_type))(**SIZES | MODELS[model_type], rope_parameters=told)
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(config).eval()


def generated(model, **options):
    found = model.generate(IDS, return_dict_in_generate=True, output_logits=True, **options, **OPTIONS)
    return found.sequences, torch.stack(found.logits), found.get(CACHE)


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("model_type", sparse(MODELS, lambda one: one in ("llama", "mistral")))
def test_every_kind_of_layers(model_type, static):
    (text, logits, cache), (other, wanted, _) = (
        generated(made(model_type, told), cache_implementation="static" if static else "dynamic")
        for told in (OURS, DEFAULT)
    )
    assert torch.equal(logits, wanted)
    assert torch.equal(text, other)
    assert isinstance(cache, cache_utils.StaticCache if static else cache_utils.DynamicCache)
    assert {type(layer).__name__ for layer in cache.layers} == {*LAYERS[model_type][static]}
    if model_type != "glm_moe_dsa":  # whose indexer needs its cache
        assert torch.equal(generated(made(model_type, OURS), use_cache=False)[0], text)


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize(
    "model_type", sparse(["llama", "mistral", "gemma3_text", "zaya"], lambda one: one == "mistral")
)
def test_replaced_rotations_in_every_cache(model_type, static):
    model = made(model_type, DEFAULT)
    text = generated(model, use_cache=False)[0]
    kinds = {one.source.model.name: one for one in rfrope.from_config(model.config)}
    with replace_rotary(model, kinds if len(kinds) > 1 else next(iter(kinds.values()))):
        assert torch.equal(generated(model, cache_implementation="static" if static else "dynamic")[0], text)


@pytest.mark.parametrize("backend", sparse(QUANTIZED, lambda one: one == "fp8"))
def test_quantized(backend):
    module, options, layer = QUANTIZED[backend]
    if module is not None and importlib.util.find_spec(module.partition(".")[0]) is None:
        pytest.skip(f"{module} is not installed")
    found = []
    for told in (OURS, DEFAULT):
        model = made("llama", told)
        cache = cache_utils.QuantizedCache(backend, model.config, **options)
        found.append(generated(model, **{CACHE: cache}))
    assert {type(one).__name__ for one in found[0][2].layers} == {layer}
    assert torch.equal(found[0][1], found[1][1])
    exact = generated(made("llama", OURS), use_cache=False)[1]
    assert not torch.equal(found[0][1], exact), "it does lose something"
    assert float((found[0][1][0] - exact[0]).abs().max()) == pytest.approx(0.0, abs=1e-5), "but for the prompt"


def test_a_decoder_with_an_encoder():
    register()
    kinds = (transformers.T5GemmaConfig, transformers.T5GemmaModuleConfig, transformers.T5GemmaForConditionalGeneration)
    found = []
    for told in (OURS, DEFAULT):
        torch.manual_seed(0)
        sides = [
            kinds[1](**SIZES, rope_parameters=dict(told), layer_types=[*KINDS], sliding_window=6, is_decoder=is_decoder)
            for is_decoder in (False, True)
        ]
        tokens = {name: SIZES[name] for name in ("vocab_size", "pad_token_id", "bos_token_id", "eos_token_id")}
        model = kinds[2](kinds[0](encoder=sides[0], decoder=sides[1], **tokens)).eval()
        found += [
            generated(model, decoder_start_token_id=1),
            generated(model, decoder_start_token_id=1, use_cache=False),
        ]
    assert isinstance(found[0][2], cache_utils.EncoderDecoderCache)
    assert torch.equal(found[0][1], found[2][1])
    assert torch.equal(found[0][0], found[1][0])
