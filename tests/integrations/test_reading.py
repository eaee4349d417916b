"""Queries and keys of models of transformers, and the atlas of their heads."""

import numpy as np
import pytest
import tiny_models
from campaign import sparse
from packages import WARNINGS
from tiny_models import IDS, made

import rfrope
from rfrope import heads
from rfrope.integrations.transformers import atlas, read_heads, replace_rotary

torch = tiny_models.torch

pytestmark = WARNINGS

DOCUMENTS = np.random.default_rng(0).integers(3, 30, (3, 12))


def attention_of(found, rope):
    """Attention from what was read: rotation by the Rope, the scale, the mask, softmax."""
    at = np.arange(found.q.shape[1])
    groups = len(found.q) // len(found.k)
    q, k = (rope.rotate(x.astype(np.float64), at) for x in (found.q, np.repeat(found.k, groups, axis=0)))
    scores = found.scale[:, None, None] * np.matmul(q, np.swapaxes(k, -1, -2))
    scores = np.where(at[:, None] >= at, scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


@pytest.mark.parametrize(
    "kind", sparse(["llama", "qwen3", "mistral", "olmo2", "glm", "granite"], lambda kind: kind == "llama")
)
def test_what_is_read_gives_the_attention_that_the_model_computes(kind):
    """Norms of queries and keys, and the scale of a model, are those that it has."""
    model = made(kind, attn_implementation="eager")
    rope = tiny_models.ropes_of(model)
    (found,) = read_heads(model, IDS.numpy())
    assert found.q.shape == (8, 12, 16)
    assert found.k.shape[0] == 4
    assert found.heads == [(layer, head) for layer in (0, 1) for head in range(4)]
    with torch.no_grad():
        expected = model(IDS, output_attentions=True).attentions
    expected = torch.cat([layer[0] for layer in expected]).double().numpy()
    np.testing.assert_allclose(attention_of(found, rope), expected, atol=2e-6)


def test_a_model_is_as_it_was_afterwards():
    model = made()
    before = tiny_models.logits(model)
    [*read_heads(model, IDS.numpy())]
    assert not any("forward" in vars(layer.self_attn) for layer in model.model.layers)
    assert torch.equal(tiny_models.logits(model), before)


def test_the_atlas_of_a_model_is_that_of_what_is_read():
    model = made()
    found, rope = atlas(model, DOCUMENTS), tiny_models.ropes_of(model)
    read = [*read_heads(model, DOCUMENTS)]
    expected = heads.atlas(np.stack([one.q for one in read]), np.stack([one.k for one in read]), rope)
    assert found.layer.tolist() == [0] * 4 + [1] * 4
    assert found.context == 4096
    for name in ("variance", "share", "sink", "change", "curve"):
        np.testing.assert_allclose(getattr(found, name).value, getattr(expected, name).value, rtol=1e-6, atol=1e-9)
        np.testing.assert_allclose(getattr(found, name).stderr, getattr(expected, name).stderr, rtol=1e-5, atol=1e-9)


def test_a_model_of_several_ropes_is_read_one_kind_of_layer_at_a_time():
    kinds = ["sliding_attention", "full_attention"]
    ropes = {kinds[0]: {"rope_type": "default", "rope_theta": 100.0}}
    ropes |= {kinds[1]: {"rope_type": "default", "rope_theta": 1e6}}
    model = made("gemma3_text", layer_types=kinds, rope_parameters=ropes)
    for layer, (name, base) in enumerate(zip(kinds, (100.0, 1e6), strict=True)):
        found = atlas(model, DOCUMENTS, part=name)
        assert {*found.layer.tolist()} == {layer}
        np.testing.assert_allclose(found.frequencies, rfrope.geometric(8, base=base), rtol=1e-6)


def test_a_model_that_trains_is_read_without_dropout_and_goes_on_training():
    model = made(attention_dropout=0.5)
    expected = atlas(model, DOCUMENTS).sink.value
    model.train()
    model.model.layers[1].mlp.eval()
    modes = [one.training for one in model.modules()]
    assert modes.count(False) > 1
    (found, *_) = read_heads(model, DOCUMENTS)
    assert [one.training for one in model.modules()] == modes
    np.testing.assert_array_equal(found.q, next(read_heads(made(), DOCUMENTS)).q)
    np.testing.assert_array_equal(atlas(model, DOCUMENTS).sink.value, expected)
    assert [one.training for one in model.modules()] == modes


def test_a_replaced_layer_is_refused_where_it_is_read_and_layers_without_attention_are_left_out():
    model, every = made(), [(1, head) for head in range(4)]
    with replace_rotary(model, rfrope.geometric(8)), pytest.raises(ValueError, match="was already modified"):
        next(read_heads(model, DOCUMENTS))
    assert next(iter(read_heads(model, DOCUMENTS, layers=[1]))).heads == every
    assert next(iter(read_heads(made("lfm2", layer_types=["conv", "full_attention"]), DOCUMENTS))).heads == every
