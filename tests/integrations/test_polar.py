"""Polar attention in models of transformers: logits, caches, training, states, and what is refused."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import math
import subprocess
import sys
import warnings

import numpy as np
import pytest
import tiny_models
from campaign import HANGS, campaign, sparse
from tiny_models import CACHE, IDS, logits, made

import rfrope

torch, transformers = tiny_models.torch, tiny_models.transformers
with warnings.catch_warnings():  # importing them raises a few of their own
    warnings.simplefilter("ignore")
    from rfrope.integrations.transformers import register, replace_rotary, use_polar
    from rfrope.layers.torch import PolarEmbedding, RotaryEmbedding

pytestmark = tiny_models.WARNINGS

ONE = rfrope.design("cauchy(scale=8)", head_dim=16, context=64, polar=True, rng=0)
SETS = rfrope.design("gaussian", head_dim=16, context=64, heads=2, ladder=(2.0, 16.0), polar=True, rng=0)
GENERATED = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0}


def with_biases(model, rope=SETS, **options):
    """A replacement in which the layers have biases of their own."""
    done = use_polar(model, rope, **options)
    with torch.no_grad():
        for seed, layer in enumerate(model.model.layers):
            layer.self_attn.polar.phases.uniform_(-4.0, 0.0, generator=torch.Generator().manual_seed(seed))
    return done


def formula(model, rope, scale, sign=1.0, ids=IDS):
    """Logits of the same weights, with scores as sums over magnitudes."""
    x, lags = model.model.embed_tokens(ids), torch.arange(ids.shape[1])[None, :] - torch.arange(ids.shape[1])[:, None]
    omega = torch.tensor(np.asarray(rope.frequencies)).reshape(-1, 16)
    for layer in model.model.layers:
        attention, h = layer.self_attn, layer.input_layernorm(x)
        q, k, v = (getattr(attention, f"{name}_proj")(h).unflatten(-1, (-1, 16)) for name in "qkv")
        q, k = (getattr(attention, f"{name}_norm", lambda y: y)(y) for name, y in (("q", q), ("k", k)))
        m, n = (torch.nn.functional.softplus(y.double(), threshold=60).transpose(1, 2) for y in (q, k))
        n, v = (y.repeat_interleave(2, 1) for y in (n, v.transpose(1, 2)))
        bias = sign * attention.polar.phases[:, None, None]  # (heads of keys, 1, 1, D)
        waves = torch.cos(lags[..., None] * omega[:, None, None] + bias).repeat_interleave(2, 0)
        scores = scale * torch.einsum("bhqi,bhki,hqki->bhqk", m, n, waves)
        weights = scores.masked_fill(lags > 0, -math.inf).softmax(-1).to(v.dtype)
        x = x + attention.o_proj((weights @ v).transpose(1, 2).flatten(-2))
        x = x + layer.mlp(layer.post_attention_layernorm(x))
    return model.lm_head(model.model.norm(x)).detach()


@pytest.mark.parametrize("model_type", sparse(["llama", "qwen3", "mistral", "qwen2"], lambda one: one[0] in "lq"))
@pytest.mark.parametrize("rope", [ONE, SETS], ids=["one set", "a set for each head"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_logits_are_those_of_the_formula(model_type, rope, attention):
    model = made(model_type)
    model.config._attn_implementation = attention
    done = with_biases(model, rope)
    assert (done.attentions, done.rotaries) == (2, 1)
    found, scale = logits(model), PolarEmbedding(rope).score_scale
    torch.testing.assert_close(found, formula(model, rope, scale), rtol=0, atol=1e-5)
    for wrong in (formula(model, rope, scale, sign=-1.0), formula(model, rope, 0.9 * scale)):
        assert (wrong - found).abs().max() > 1e-3  # the check sees the sign of a bias, and the scale


@pytest.mark.parametrize("cache", [{}, {"cache_implementation": "static"}], ids=["dynamic", "static"])
@pytest.mark.parametrize("model_type", sparse(["llama", "mistral", "gemma3_text"], lambda one: one != "mistral"))
def test_a_cache_of_wide_keys_gives_the_text_that_none_gives(model_type, cache):
    model = made(model_type, **({"sliding_window": 6} if model_type == "mistral" else {}))
    with_biases(model)
    wanted = model.generate(IDS, use_cache=False, **GENERATED)
    found = model.generate(IDS, return_dict_in_generate=True, **cache, **GENERATED)
    assert torch.equal(found.sequences, wanted)
    layer = found[CACHE].layers[0]
    assert (layer.keys.shape[-1], layer.values.shape[-1]) == (32, 16)


def test_a_cache_of_narrow_keys_is_refused():
    model = made()
    cache = model(IDS, use_cache=True)[CACHE]
    with_biases(model)
    for name in ("cache", "past_key_values"):  # whatever a release calls it, attention gets it
        with pytest.raises(ValueError, match="the cache has keys of 16 features, but polar keys have 32; expected a"):
            logits(model, **{name: cache})
    assert torch.equal(
        model.generate(IDS, prefill_chunk_size=4, **GENERATED), model.generate(IDS, use_cache=False, **GENERATED)
    )
    with pytest.raises(ValueError, match="no prefill_chunk_size with a static cache"):
        model.generate(IDS, prefill_chunk_size=4, cache_implementation="static", **GENERATED)


def test_padding_on_the_left_changes_nothing():
    model = made()
    with_biases(model)
    alone = model.generate(IDS[:, 4:], **GENERATED)[:, -8:]
    padded = torch.cat([IDS, torch.cat([torch.zeros(1, 4, dtype=torch.int64), IDS[:, 4:]], 1)])
    options = {"attention_mask": (padded != 0).long(), **GENERATED}
    found = model.generate(padded, **options)
    assert torch.equal(found[1:, -8:], alone)
    assert torch.equal(found, model.generate(padded, use_cache=False, **options))


# -- learning ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("checkpointing", [False, True])
def test_biases_of_their_own_learn_with_the_model(checkpointing):
    model = made()
    use_polar(model, SETS)
    model.train()
    if checkpointing:
        model.gradient_checkpointing_enable()
    biases = [layer.self_attn.polar.phases for layer in model.model.layers]
    assert [tuple(one.shape) for one in biases] == [(2, 16)] * 2
    optimiser = torch.optim.SGD(model.parameters(), 0.05)
    before = model(IDS, labels=IDS).loss
    before.backward()
    assert all(float(one.grad.abs().min()) > 0.0 for one in biases)
    assert not torch.equal(biases[0].grad, biases[1].grad)
    for one in biases:
        one.grad.clamp_(min=0.0)  # so that a step goes where a bias counts
    optimiser.step()
    assert float(model(IDS, labels=IDS).loss) < float(before)
    assert all(float(one.detach().min()) < 0.0 for one in biases)
    assert not torch.equal(biases[0], biases[1])


@pytest.mark.parametrize("learnable", [False, "factors", ("factors", "phases")])
def test_what_is_learned_is_chosen(learnable):
    model = made()
    use_polar(model, ONE, learnable=learnable)
    names = {name for name, _ in model.named_parameters() if "polar" in name}
    chosen = [] if learnable is False else [learnable] if isinstance(learnable, str) else learnable
    chosen = [{"factors": "log_factors"}.get(one, one) for one in chosen]
    assert names == {f"model.layers.{i}.self_attn.polar.{one}" for i, one in itertools.product(range(2), chosen)}


@pytest.mark.parametrize("options", [{}, {"learnable": ("factors", "phases"), "score_scale": 0.5}])
@pytest.mark.parametrize("rope", [dataclasses.replace(ONE, attention_factor=1.25), SETS], ids=["one set", "sets"])
@pytest.mark.parametrize("model_type", sparse(["llama", "gemma3_text"], lambda one: one == "llama"))
def test_a_saved_model_is_polar_again(model_type, rope, options, tmp_path):
    model = made(model_type)
    before = copy.deepcopy(model.config.rope_parameters)
    with_biases(model, rope, **options)
    wanted = logits(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        model.save_pretrained(tmp_path)
    assert model.config.rope_parameters == before
    for again in (transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval(), model):
        assert torch.equal(logits(again), wanted)
        again.save_pretrained(tmp_path / "again")
        once_more = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "again").eval()
        assert torch.equal(logits(once_more), wanted)
        names = {name for name, _ in once_more.named_parameters()}
        assert names == {name for name, _ in model.named_parameters()}
    read = rfrope.from_config(tmp_path)[0]
    assert (read.polar, read.head_dim, read.attention_factor) == (True, 16, rope.attention_factor)
    np.testing.assert_array_equal(read.frequencies, rope.frequencies)
    for call in (rfrope.models.compare, lambda path: rfrope.models.audit(np.ones(8), path / "config.json")):
        with pytest.raises(ValueError, match="is polar, but"):
            call(tmp_path)


def test_a_config_alone_decides(tmp_path):
    register()
    told = {"rope_type": "rfrope", "kernel": "cauchy(scale=8)", "design": "quantile", "polar": True, "context": 64}
    model = made(rope_parameters=told)
    rope = rfrope.design("cauchy(scale=8)", head_dim=16, context=64, design="quantile", polar=True)
    np.testing.assert_array_equal(model.model.layers[1].self_attn.polar.rope.frequencies, rope.frequencies)
    other = made()
    use_polar(other, rope)
    assert torch.equal(logits(other), logits(model))
    assert model.generate(IDS, **GENERATED).shape == (1, 20)


@campaign
def test_without_register_a_saved_model_is_not_taken_for_another(tmp_path):
    model = made()
    use_polar(model, SETS)
    model.save_pretrained(tmp_path)
    code = f"import transformers\ntransformers.AutoModelForCausalLM.from_pretrained({str(tmp_path)!r})"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=HANGS)
    assert run.returncode != 0
    assert "rfrope" in run.stderr.splitlines()[-1]


def test_a_state_goes_into_another_model():
    model = made()
    with_biases(model)
    other = made()
    use_polar(other, SETS)
    assert not other.load_state_dict(model.state_dict()).missing_keys
    assert torch.equal(logits(other), logits(model))


def test_a_copy_learns_by_itself():
    model = made()
    with_biases(model)
    wanted, copied = logits(model), copy.deepcopy(model)
    assert torch.equal(logits(copied), wanted)
    with torch.no_grad():
        copied.model.layers[0].self_attn.polar.phases.fill_(-1.0)
    assert torch.equal(logits(model), wanted)
    assert not torch.allclose(logits(copied), wanted, atol=1e-4)


def test_it_is_taken_out_without_a_trace():
    model = made()
    own, names = logits(model), [*model.state_dict()]
    with use_polar(model, SETS) as done:
        assert not torch.allclose(logits(model), own, atol=1e-3)
    assert torch.equal(logits(model), own)
    assert [*model.state_dict()] == names
    for layer in model.model.layers:
        assert layer.self_attn.scaling == 0.25
        assert not {"forward", "polar"} & vars(layer.self_attn).keys()
    done.undo()
    assert torch.equal(logits(model), own)


def test_scores_are_multiplied_by_what_the_contents_ask_for():
    model, wanted = made(), PolarEmbedding(ONE).score_scale
    with use_polar(model, ONE):
        assert [one.self_attn.scaling for one in model.model.layers] == [pytest.approx(wanted)] * 2
    with use_polar(model, ONE, score_scale=0.125):
        assert [one.self_attn.scaling for one in model.model.layers] == [0.125] * 2
    model = made("gemma2", query_pre_attn_scalar=64)  # half of 1/sqrt(16)
    with use_polar(model, ONE):
        assert model.model.layers[0].self_attn.scaling == pytest.approx(wanted / 2.0)


def test_narrow_weights_turn_by_exact_phases():
    model = made()
    with_biases(model)
    model.to(torch.bfloat16)
    assert model.model.layers[0].self_attn.polar.phases.dtype == torch.float64
    near = logits(model, position_ids=torch.arange(12)[None])
    far = logits(model, position_ids=torch.arange(12)[None] + 1_000_000)
    assert (far - near).abs().max() < 0.05 * near.abs().max()


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_kernels_of_flash_attention_take_heads_of_256_features():
    model = made(head_dim=160)
    model.config._attn_implementation = "flash_attention_2"
    with pytest.raises(ValueError, match=r"heads of 256 features, but polar keys have 320; expected attn_implement"):
        use_polar(model, 160)
    model = made(head_dim=128)
    model.config._attn_implementation = "flash_attention_2"
    assert use_polar(model, 128).attentions == 2


def test_a_polar_rope_is_not_for_replace_rotary_nor_twice():
    model = made()
    with pytest.raises(ValueError, match=r"rope is polar; expected integrations.transformers.use_polar"):
        replace_rotary(model, PolarEmbedding(ONE))
    with use_polar(model, ONE), pytest.raises(ValueError, match=r"was replaced already; expected undo\(\)"):
        use_polar(model, ONE)
    half = dataclasses.replace(ONE, frequencies=ONE.frequencies[:8], head_dim=None, polar=False)
    with replace_rotary(model, RotaryEmbedding(half)), pytest.raises(ValueError, match="was replaced already"):
        use_polar(model, ONE)
