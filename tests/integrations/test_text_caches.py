"""Windows of texts whose keys and values are cached: they lose what whole readings lose, or are refused."""

import dataclasses

import numpy as np
import pytest
from conftest import rows
from tiny_models import made, torch

import rfrope
from rfrope.integrations import rotations, text_caches
from rfrope.integrations.transformers import replace_rotary
from rfrope.layers.torch import RotaryEmbedding

TRAINED, CONTEXT = 32, 96
IDS = np.random.default_rng(0).integers(3, 32, 90)
KINDS = rows("integrations/text_caches.json", "kinds")  # with what is particular about them, or of keys and scores


def whole(model, batch):
    """The losses of windows by a reading of the whole text."""
    found = torch.nn.functional.cross_entropy(
        model(torch.from_numpy(IDS)[None, :-1], use_cache=False).logits[0], torch.from_numpy(IDS)[1:], reduction="none"
    )
    return torch.stack([found[first : first + batch.length].mean() for first in batch.firsts])


def batch_at(*firsts, length=16):
    return text_caches.Windows(np.zeros(len(firsts), np.int64), np.asarray(firsts), length)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_a_window_loses_what_a_whole_reading_loses(kind, attention):
    """By any rotation in a model of one layer, whose keys before it and values do not depend on the rotation."""
    weights = {"initializer_range": 0.3}  # attention that is far from even
    model = made(kind, num_hidden_layers=1, **weights | KINDS[kind]).eval().requires_grad_(False)
    if kind not in ("gpt_oss", "gemma2"):  # which have an eager one alone
        model.set_attn_implementation(attention)
    (rope,) = rfrope.from_config(model.config)
    texts, batch, moved = text_caches.TextCaches(model), batch_at(0, 40, 72), []
    for factor, temperature in ((0.3, 1.3), (0.9, 1.0)):
        given = dataclasses.replace(rope, frequencies=factor * rope.frequencies, attention_factor=temperature)
        with replace_rotary(model, given):
            if not moved:
                texts.read(IDS)
            found, wanted = texts.losses(batch), whole(model, batch)
        torch.testing.assert_close(found, wanted, rtol=3e-3, atol=0.0)
        moved.append(wanted)
    rotates = kind not in ("smollm3", "cohere2")
    assert ((moved[0] - moved[1]).abs().max() > 0.03) == rotates


@pytest.mark.parametrize(("kind", "values"), rows("integrations/text_caches.json", "refused"))
def test_models_whose_keys_cannot_be_rotated_again_are_refused(kind, values):
    model = made(kind, **values).eval()
    why = "layer 0 changes keys after their rotation"
    with replace_rotary(model, rfrope.from_config(model.config)[0]):
        with pytest.raises(ValueError, match=f"cannot be tuned: {why}; expected a model whose keys can"):
            text_caches.TextCaches(model).read(IDS)
        rotary = next(one for one in model.modules() if isinstance(one, rotations.Positions))
        assert "rotated" not in vars(rotary)


def test_attention_is_as_it_was_after_losses_and_forms_activations_again_for_gradients(monkeypatch):
    model, counted = made("llama").eval().requires_grad_(False), []
    (rope,) = rfrope.from_config(model.config)
    own = text_caches.checkpoint
    monkeypatch.setattr(text_caches, "checkpoint", lambda *args, **options: counted.append(0) or own(*args, **options))
    texts, batch = text_caches.TextCaches(model), batch_at(0, 40)
    with replace_rotary(model, RotaryEmbedding(rope, ("factors",))):
        texts.read(IDS)
        attention = model.model.layers[0].self_attn
        before = vars(attention)["forward"]
        with torch.no_grad():
            texts.losses(batch)
        assert not counted
        texts.losses(batch).sum().backward()
        assert len(counted) == 2 * model.config.num_hidden_layers
        with pytest.raises(IndexError):
            texts.losses(batch._replace(texts=np.asarray([0, 7])))
        assert vars(attention)["forward"] is before
    with pytest.raises(ValueError, match="has 0 replaced rotations; expected one"):
        texts.losses(batch)


@pytest.mark.parametrize("kind", KINDS)
def test_chunks_of_a_text_are_read_one_after_the_other(kind, monkeypatch):
    """Later layers have keys by what the former see in all chunks."""
    three = {"smollm3": {"no_rope_layers": [1, 0, 1]}, "cohere2": {"layer_types": ["full_attention"] * 3}}
    values = {"initializer_range": 0.3, "num_hidden_layers": 3} | KINDS[kind] | three.get(kind, {})
    model, found = made(kind, **values).eval().requires_grad_(False), []
    for chunk in (text_caches.CHUNK, 25):
        monkeypatch.setattr(text_caches, "CHUNK", chunk)
        texts = text_caches.TextCaches(model)
        with replace_rotary(model, rfrope.from_config(model.config)[0]):
            texts.read(IDS)
        found.append(texts._texts[0])
    assert len(found[0].keys) == 3
    for one, other in zip(*((text.keys, text.values) for text in found), strict=True):
        assert [*one] == [*other]
        for layer in one:
            torch.testing.assert_close(one[layer], other[layer], rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize("sets", ["model", "head"])
def test_gradients_are_those_of_a_whole_reading(sets):
    """In a model of one layer, whose keys before their rotation do not depend on it."""
    model = made("llama", num_hidden_layers=1, initializer_range=0.3).eval().requires_grad_(False)
    (rope,) = rfrope.from_config(model.config)
    heads = model.config.num_key_value_heads
    if sets == "head":
        frequencies = rope.frequencies * np.linspace(0.5, 1.0, heads)[:, None]
        rope = dataclasses.replace(rope, frequencies=frequencies[..., None])
    modules = [RotaryEmbedding(rope, ("factors", "temperature")) for _ in range(2)]
    texts, batch, found = text_caches.TextCaches(model), batch_at(0, 40, 72), []
    for module, losses in zip(modules, (texts.losses, lambda batch: whole(model, batch)), strict=True):
        with replace_rotary(model, module):
            if not found:
                texts.read(IDS)
            found.append(torch.autograd.grad(losses(batch).mean(), [*module.parameters()]))
    for one, other in zip(*found, strict=True):
        assert one.shape == other.shape
        assert (one - other).norm() < 0.01 * other.norm()
        assert other.norm() > 0.0


def test_what_half_precision_cannot_hold_stays_as_it_is():
    x = torch.tensor([1.0, 1e6])
    assert text_caches._small(x) is x
    assert text_caches._small(x[:1]).dtype == torch.float16
    assert text_caches._small(x.bfloat16()).dtype == torch.bfloat16


def test_windows_lie_anywhere_in_learning_and_evenly_in_what_chooses():
    drawn = [text_caches.draw_window(step, 3, CONTEXT, 16, 5) for step in range(900)]
    firsts = np.concatenate([one.firsts for one in drawn])
    assert {*firsts} == {*range(CONTEXT - 16)}, "and the token after the last is there, too"
    assert {*np.concatenate([one.texts for one in drawn])} == {0, 1, 2}
    assert {one.length for one in drawn} == {16}
    again = text_caches.draw_window(7, 3, CONTEXT, 16, 5)
    assert all(np.array_equal(one, other) for one, other in zip(again, drawn[7], strict=True))
    parts = text_caches.spread_windows([4, 5], TRAINED, CONTEXT, 16, 0)
    assert [[*one.texts] for one in parts["beyond"]] == [[4] * 4, [5] * 4]
    assert all((np.diff(one.firsts) > 0).all() for part in parts.values() for one in part)


@pytest.mark.parametrize(("trained", "context", "window"), [(32, 96, 16), (32, 33, 32), (32, 40, 16), (32, 64, 32)])
def test_parts_that_choose_are_within_and_beyond_the_trained_positions(trained, context, window):
    seen = {"within": set(), "beyond": set()}
    for seed in range(200):
        for part, batches in text_caches.spread_windows([0], trained, context, window, seed).items():
            for first in batches[0].firsts:
                seen[part] |= {*range(int(first) + 1, int(first) + 1 + batches[0].length)}
    assert seen == {"within": {*range(1, trained)}, "beyond": {*range(trained, context)}}, "of the tokens that count"


def test_a_model_that_reads_otherwise_from_what_is_cached_is_refused(monkeypatch):
    model = made("llama", initializer_range=0.3).eval()
    monkeypatch.setattr(text_caches, "_small", lambda x: 0.5 * x)
    otherwise = "cannot be tuned: its results change with cached keys"
    with replace_rotary(model, rfrope.geometric(8)), pytest.raises(ValueError, match=otherwise):
        text_caches.TextCaches(model).read(IDS)
    shifted = made("llama", initializer_range=0.3).eval().requires_grad_(False)
    shifted.lm_head.bias = torch.nn.Parameter(torch.full((shifted.config.vocab_size,), 1e3))
    shifted.lm_head.bias.data[:3] = -1e9
    with replace_rotary(shifted, rfrope.geometric(8)), pytest.raises(ValueError, match=otherwise):
        text_caches.TextCaches(shifted).read(IDS)  # what logits have in common, or lowest logits, hide nothing
    monkeypatch.undo()
    with replace_rotary(model, rfrope.geometric(8)):
        text_caches.TextCaches(model).read(IDS)


def test_a_model_in_half_precision_may_differ_more_and_not_by_other_keys(monkeypatch):
    """Probabilities of a real model in bfloat16 differ by 0.06 from those of a whole reading; 2 is the most."""
    model = made("llama", initializer_range=0.3).to(torch.bfloat16).eval().requires_grad_(False)
    own, moved = text_caches.TextCaches._probabilities, [0.06]

    def moving(self, tokens, first, end, cache):
        probabilities = own(self, tokens, first, end, cache)
        if isinstance(cache, text_caches.PrefixCache):  # as a rounding might
            probabilities = probabilities + torch.nn.functional.one_hot(torch.tensor(0), len(probabilities)) * moved[0]
        return probabilities

    monkeypatch.setattr(text_caches.TextCaches, "_probabilities", moving)
    with replace_rotary(model, rfrope.geometric(8)):
        text_caches.TextCaches(model).read(IDS)
        moved[0] = 1.0
        with pytest.raises(ValueError, match="its results change with cached keys"):
            text_caches.TextCaches(model).read(IDS)
    moved[0] = 0.06
    with replace_rotary(model.float(), rfrope.geometric(8)), pytest.raises(ValueError, match="results change"):
        text_caches.TextCaches(model).read(IDS)
