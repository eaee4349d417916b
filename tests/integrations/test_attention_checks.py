"""Attention that an atlas cannot describe is refused: by the config, by its own weights."""

import types

import numpy as np
import pytest
import tiny_models
from packages import WARNINGS
from tiny_models import made

import rfrope
from rfrope.integrations import reading
from rfrope.integrations.transformers import atlas

torch = tiny_models.torch

pytestmark = WARNINGS

DOCUMENTS = np.random.default_rng(0).integers(3, 30, (3, 12))
KINDS = ["sliding_attention", "full_attention"]


def test_a_window_that_no_document_fills_hides_nothing():
    found = atlas(made("mistral", sliding_window=12), DOCUMENTS)
    np.testing.assert_array_equal(found.sink.value, atlas(made("mistral", sliding_window=None), DOCUMENTS).sink.value)


def test_the_layers_without_a_window_are_read_by_their_kind():
    model = made("gemma2", sliding_window=8, attn_logit_softcapping=None, layer_types=KINDS)
    assert {*atlas(model, DOCUMENTS, part="full_attention").layer.tolist()} == {1}
    model = made("cohere2", sliding_window=64, layer_types=KINDS)  # which rotates in layers with a window alone
    assert {*atlas(model, DOCUMENTS, part="sliding_attention").layer.tolist()} == {0}


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
    logits = np.where(at[:, None] >= at, logits, -np.inf)
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def check(weights, dtype="float32", q=Q):
    given = (None, torch.as_tensor(weights, dtype=getattr(torch, dtype))[None])
    reading._compare("layer", {"layer": (q, K)}, ROPE, types.SimpleNamespace(scaling=0.5), None, given)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_softmax_of_the_logits_passes(dtype):
    check(weights_of(), dtype)


SMALL = Q * np.asarray([1.0, 0.1], np.float32)[:, None, None]  # of head 1, whose logits may differ by less
FAR = np.subtract.outer(np.arange(20), np.arange(20)) >= 19


def with_one(place, change):
    weights = weights_of()
    weights[place] = change(weights[place])
    return weights


@pytest.mark.parametrize(
    ("weights", "words", "options"),
    [
        (with_one((1, 3, 4), lambda one: 0.01), "it is bidirectional", {}),
        (weights_of(lambda s: np.where(FAR, -np.inf, s)), "some keys before a query are masked", {}),
        (with_one((1, 5), lambda row: 0.9 * row), "attention on all keys is less than 1", {}),  # of a query
        (weights_of(lambda s: 1.03 * s), "logits of head . are .* away", {}),
        (weights_of(lambda s: 2.0 * np.tanh(s / 2.0)), "logits of head . are .* away", {"dtype": "bfloat16"}),
        (weights_of(lambda s: s.swapaxes(-1, -2)), "logits of head . are .* away", {}),
        (weights_of(lambda s: s * np.asarray([1.003, 1.02])[:, None, None], given=SMALL),
         "logits of head 1 are .* away", {"q": SMALL}),
        (weights_of()[:, :19], "gives no attention of shape", {}),
    ],
)  # fmt: skip
def test_weights_of_something_else_do_not(weights, words, options):
    with pytest.raises(ValueError, match=words):
        check(weights, **options)
