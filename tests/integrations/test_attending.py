"""Attention that an atlas cannot describe is refused: by the config, by its module, by its own weights."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import tiny_models
from campaign import campaign
from tiny_models import SIZES, made

import rfrope

torch, transformers = tiny_models.torch, tiny_models.transformers
with warnings.catch_warnings():  # importing them raises a few of their own
    warnings.simplefilter("ignore")
    from rfrope.integrations import attending
    from rfrope.integrations.transformers import atlas

pytestmark = tiny_models.WARNINGS

DOCUMENTS = np.random.default_rng(0).integers(3, 30, (3, 12))
KINDS = ["sliding_attention", "full_attention"]
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 64}


def bidirectional():
    sizes = {name: value for name, value in SIZES.items() if name not in ("head_dim", "num_key_value_heads")}
    config = transformers.ModernBertConfig(**sizes, cls_token_id=1, sep_token_id=2, local_attention=64)
    return transformers.ModernBertModel(config)


@pytest.mark.parametrize(
    ("make", "part", "words"),
    [
        (lambda: made("mistral", sliding_window=11), None, "12 tokens, more than the window of 11 of layers 0-1"),
        pytest.param(
            lambda: made("cohere2", sliding_window=8, layer_types=KINDS),
            None,
            "the window of 8 of layer 0",
            marks=campaign,
        ),
        (
            lambda: made("gemma2", sliding_window=64, attn_logit_softcapping=2.0),
            None,
            r"layers\.0\.self_attn has attention .* its logits are capped at 2;",
        ),
        pytest.param(lambda: made("gpt_oss", **EXPERTS), None, "a learned sink beside the keys", marks=campaign),
        pytest.param(
            lambda: made("hunyuan_v1_dense"), None, "a norm with a weight .* follows the rotation", marks=campaign
        ),
        pytest.param(bidirectional, "full_attention", "it is bidirectional", marks=campaign),
    ],
)
def test_attention_that_is_not_that_of_an_atlas_is_refused(make, part, words):
    with pytest.raises(ValueError, match=words):
        atlas(make(), DOCUMENTS, part=part)


def test_a_window_that_no_document_fills_hides_nothing():
    found = atlas(made("mistral", sliding_window=12), DOCUMENTS)
    np.testing.assert_array_equal(found.sink.value, atlas(made("mistral", sliding_window=None), DOCUMENTS).sink.value)


def test_the_layers_without_a_window_are_read_by_their_kind():
    model = made("gemma2", sliding_window=8, attn_logit_softcapping=None, layer_types=KINDS)
    with pytest.raises(ValueError, match="or `part` with a kind that sees all"):
        atlas(model, DOCUMENTS)
    assert {*atlas(model, DOCUMENTS, part="full_attention").layer.tolist()} == {1}
    with pytest.raises(ValueError, match=r"part is 'none', but .* 'sliding_attention', 'full_attention'"):
        atlas(model, DOCUMENTS, part="none")
    model = made("cohere2", sliding_window=64, layer_types=KINDS)  # which rotates in layers with a window alone
    assert {*atlas(model, DOCUMENTS, part="sliding_attention").layer.tolist()} == {0}
    with pytest.raises(
        ValueError, match=r"part is 'full_attention', but .* has Ropes for 'sliding_attention'; expected"
    ):
        atlas(model, DOCUMENTS, part="full_attention")


def test_a_rope_that_depends_on_the_length_is_that_of_the_documents():
    dynamic = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 1e4}
    found = atlas(made(rope_parameters=dynamic, max_position_embeddings=4, initializer_range=0.3), DOCUMENTS)
    assert {*found.layer.tolist()} == {0, 1}


def test_layers_have_scales_of_their_own():
    model = made()
    before = atlas(model, DOCUMENTS).variance.value
    model.model.layers[1].self_attn.scaling *= 2.0
    np.testing.assert_allclose(atlas(model, DOCUMENTS).variance.value / before, [1.0] * 4 + [4.0] * 4, rtol=1e-5)


def test_a_config_that_was_changed_after_the_model_was_made_is_found():
    model = made()
    before = model.config._attn_implementation
    model.config.rope_parameters = {"rope_type": "default", "rope_theta": 100.0}
    with pytest.raises(ValueError, match=r"layers\.0\.self_attn .* away from those of the config's RoPE"):
        atlas(model, DOCUMENTS)
    assert model.config._attn_implementation == before != "eager"
    assert not any(one._forward_hooks for one in model.modules())


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float16"])
def test_rounding_of_a_model_is_no_finding(name):
    model = made().to(getattr(torch, name))
    for layer in model.model.layers:  # logits of some size
        layer.self_attn.q_proj.weight.data *= 30.0
        layer.self_attn.k_proj.weight.data *= 30.0
    assert np.max(atlas(model, DOCUMENTS).variance.value) > 1.0


# -- weights that were made --------------------------------------------------------------------------------------------

ROPE = rfrope.Rope(rfrope.geometric(4))
Q, K = np.random.default_rng(1).standard_normal((2, 2, 20, 8)).astype(np.float32)


def weights_of(change=lambda logits: logits, scale=0.5, given=Q):
    at = np.arange(20)
    q, k = (ROPE.rotate(one.astype(np.float64), at) for one in (given, K))
    logits = change(scale * q @ k.swapaxes(-1, -2))
    logits = np.where((at[:, None] >= at) | np.isposinf(logits), logits, -np.inf)
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def check(weights, dtype="float32", q=Q):
    given = (None, torch.as_tensor(weights, dtype=getattr(torch, dtype))[None])
    attending.comparing("layer", None, {"layer": (q, K)}, lambda *_: 0.5, ROPE)(None, None, given)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_softmax_of_the_logits_passes(dtype):
    check(weights_of(), dtype)


def test_weights_of_something_else_do_not():
    def refused(weights, words, *options):
        with pytest.raises(ValueError, match=words):
            check(weights, *options)

    far = np.subtract.outer(np.arange(20), np.arange(20)) >= 19
    later = weights_of()
    later[1, 3, 4] = 0.01
    refused(later, "it is bidirectional")
    refused(weights_of(lambda s: np.where(far, -np.inf, s)), "some keys before a query are masked")
    less = weights_of()
    less[1, 5] *= 0.9
    refused(less, "attention on all keys is less than 1")  # of a single query, too
    refused(weights_of(lambda s: 1.03 * s), "logits of head . are .* away")
    refused(weights_of(lambda s: 2.0 * np.tanh(s / 2.0)), "logits of head . are .* away", "bfloat16")
    refused(weights_of(lambda s: s.swapaxes(-1, -2)), "logits of head . are .* away")
    small = Q * np.asarray([1.0, 0.1], np.float32)[:, None, None]  # of head 1, whose logits may differ by less
    change = weights_of(lambda s: s * np.asarray([1.003, 1.02])[:, None, None], given=small)
    refused(change, "logits of head 1 are .* away", "float32", small)
    refused(weights_of()[:, :19], "gives no attention of shape")
