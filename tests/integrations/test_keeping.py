"""Windows of texts whose keys and values are kept: they lose what whole readings lose, and `tune` learns by them."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from tiny_models import logits, made, torch

import rfrope
from rfrope.integrations import keeping, windows
from rfrope.integrations.transformers import replace_rotary, tune
from rfrope.layers.torch import RotaryEmbedding

TRAINED, CONTEXT = 32, 96
IDS = np.random.default_rng(0).integers(3, 32, 90)
KINDS = ("llama", "qwen3", "gpt_neox", "glm", "mistral", "olmo2", "cohere", "phi3")


def whole(model, batch):
    """The losses of windows by a reading of the whole text."""
    found = torch.nn.functional.cross_entropy(
        model(torch.from_numpy(IDS)[None, :-1], use_cache=False).logits[0], torch.from_numpy(IDS)[1:], reduction="none"
    )
    return torch.stack([found[first : first + batch.length].mean() for first in batch.firsts])


def batch_at(*firsts, length=16):
    numbers = np.arange(len(firsts))
    return keeping.Windows(np.zeros(len(firsts), np.int64), np.asarray(firsts), numbers, length)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_a_window_loses_what_a_whole_reading_loses(kind, attention):
    model = made(kind, initializer_range=0.3).eval().requires_grad_(False)  # attention that is far from even
    model.set_attn_implementation(attention)
    (rope,) = rfrope.from_config(model.config)
    rope = dataclasses.replace(rope, frequencies=0.3 * rope.frequencies, attention_factor=1.3)
    texts, batch = keeping.Texts(model), batch_at(0, 40, 72)
    with replace_rotary(model, rope):
        texts.read(IDS)
        found, wanted = texts.losses(batch), whole(model, batch)
        torch.testing.assert_close(found, wanted, rtol=3e-3, atol=0.0)
    other = dataclasses.replace(rope, frequencies=3.0 * rope.frequencies)
    with replace_rotary(model, other):
        moved = (texts.losses(batch) - found).abs().max()
        assert moved > max(0.01, 5.0 * (found - wanted).abs().max()), "keys are rotated by what is in the model now"


def test_chunks_of_a_text_are_read_one_after_the_other(monkeypatch):
    model, found = made("llama", initializer_range=0.3).eval().requires_grad_(False), []
    for chunk in (windows.CHUNK, 25):
        monkeypatch.setattr(windows, "CHUNK", chunk)
        texts = keeping.Texts(model)
        with replace_rotary(model, rfrope.from_config(model.config)[0]):
            texts.read(IDS)
        found.append(texts._kept[0])
    assert len(found[0].keys) == model.config.num_hidden_layers
    for one, other in zip(found[0].keys + found[0].values, found[1].keys + found[1].values, strict=True):
        torch.testing.assert_close(one, other, rtol=2e-3, atol=1e-4)


@pytest.mark.parametrize("sets", ["model", "layer", "head"])
def test_gradients_are_those_of_a_whole_reading(sets):
    """In a model of one layer, whose keys before their rotation do not depend on it."""
    model = made("llama", num_hidden_layers=1, initializer_range=0.3).eval().requires_grad_(False)
    (rope,) = rfrope.from_config(model.config)
    heads = model.config.num_key_value_heads
    if sets == "head":
        frequencies = rope.frequencies * np.linspace(0.5, 1.0, heads)[:, None]
        rope = dataclasses.replace(rope, frequencies=frequencies[..., None])
    modules = [RotaryEmbedding(rope, ("factors", "temperature")) for _ in range(2)]
    texts, batch, found = keeping.Texts(model), batch_at(0, 40, 72), []
    for module, losses in zip(modules, (texts.losses, lambda batch: whole(model, batch)), strict=True):
        with replace_rotary(model, [module] if sets == "layer" else module):
            if not found:
                texts.read(IDS)
            found.append(torch.autograd.grad(losses(batch).mean(), [*module.parameters()]))
    for one, other in zip(*found, strict=True):
        assert one.shape == other.shape
        assert (one - other).norm() < 0.01 * other.norm()
        assert other.norm() > 0.0


def test_what_half_precision_cannot_hold_stays_as_it_is():
    x = torch.tensor([1.0, 1e6])
    assert keeping._small(x) is x
    assert keeping._small(x[:1]).dtype == torch.float16
    assert keeping._small(x.bfloat16()).dtype == torch.bfloat16


def test_windows_lie_anywhere_in_learning_and_evenly_in_what_chooses():
    layout = keeping.Layout(TRAINED, CONTEXT, 16)
    drawn = [layout.learning(step, 3, 5, 2) for step in range(300)]
    firsts = np.concatenate([one.firsts for one in drawn])
    assert firsts.min() < 4
    assert 75 < firsts.max() < CONTEXT - 16, "and the token after the last is there, too"
    assert {*np.concatenate([one.texts for one in drawn])} == {0, 1, 2}
    assert all(np.array_equal(one, other) for one, other in zip(layout.learning(7, 3, 5, 2), drawn[7], strict=True))
    parts = layout.parts([4, 5], 0)
    assert [[*one.texts] for one in parts["beyond"]] == [[4] * 4, [5] * 4]
    assert all((np.diff(one.firsts) > 0).all() for part in parts.values() for one in part)
    assert max(one.firsts.max() for one in parts["within"]) < TRAINED - 16
    assert min(one.firsts.min() for one in parts["beyond"]) >= TRAINED
    assert max(one.firsts.max() for one in parts["beyond"]) < CONTEXT - 16


def texts(count=9, seed=0):
    """Documents that repeat themselves after a long time, so that a window alone does not see it."""
    rng = np.random.default_rng(seed)
    return [np.tile(rng.integers(3, 32, 24), 4)[:CONTEXT] for _ in range(count)]


@pytest.fixture(scope="module")
def model():
    """A small Llama whose weights were trained by one base for a moment, and whose config says another one."""
    found = made(hidden_size=32, max_position_embeddings=TRAINED, num_attention_heads=2, num_key_value_heads=1)
    ids = torch.from_numpy(np.stack(texts(32, seed=1)))
    with replace_rotary(found, rfrope.Rope(rfrope.geometric(8, base=30.0))):
        optimiser = torch.optim.Adam(found.parameters(), 1e-2)
        for _ in range(60):
            found(ids, labels=ids).loss.backward()
            optimiser.step()
            optimiser.zero_grad()
    return found.eval()


def test_tune_learns_by_windows_that_see_the_text(model, tmp_path):
    options = {"starts": ("ntk", "as it is"), "steps": 12, "window": 16, "rate": 0.05, "batch": 2, "keys": "text"}
    own = logits(model)
    found = tune(model, texts(), CONTEXT, **options)
    assert torch.equal(logits(model), own)
    assert found.note == "", "what is held out was read whole"
    chosen = [np.mean([*line["validation"].values()]) for line in found.history if line["start"] == found.start]
    assert min(chosen) < chosen[0] - 0.01
    assert {len(one) for parts in found.losses.values() for one in parts.values()} == {2}

    class Stopped(Exception):
        pass

    def stopping(items, total):
        for i, item in enumerate(items):
            if total > 9 and i == 6:
                raise Stopped
            yield item

    path = tmp_path / "tuning.npz"
    with pytest.raises(Stopped):
        tune(model, texts(), CONTEXT, checkpoint=path, progress=stopping, **options)
    again = tune(model, texts(), CONTEXT, checkpoint=path, **options)
    np.testing.assert_array_equal(again.rope.frequencies, found.rope.frequencies)
    assert again.history == found.history
    with pytest.raises(ValueError, match="checkpoint"):
        tune(model, texts(), CONTEXT, checkpoint=path, **options | {"keys": "window"})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"keys": "all"}, "keys is 'all'; expected one of 'window', 'text'"),
        ({"whole_windows": 0.5}, "keys is 'text' together with whole_windows"),
        ({"activation_checkpointing": True}, "keys is 'text' together with activation_checkpointing"),
    ],
)
def test_what_does_not_go_together_is_refused(model, options, message):
    with pytest.raises(ValueError, match=message):
        tune(model, texts(), CONTEXT, **{"keys": "text", "window": 16, "steps": 1} | options)


def test_texts_have_to_be_long_and_layers_alike(model):
    with pytest.raises(ValueError, match=f"has 40 tokens; expected at least {CONTEXT}"):
        tune(model, [one[:40] for one in texts()], CONTEXT, keys="text", window=16, steps=1)
    two = made("gemma3_text", max_position_embeddings=TRAINED)
    with pytest.raises(ValueError, match="several kinds of layers; expected keys='window'"):
        tune(two, texts(), CONTEXT, keys="text", part="full_attention", window=16, steps=1)


def test_a_model_that_reads_otherwise_from_what_is_kept_is_refused(model, monkeypatch):
    monkeypatch.setattr(keeping, "_small", lambda x: 0.5 * x)
    with replace_rotary(model, rfrope.geometric(8)), pytest.raises(ValueError, match="expected keys='window'"):
        keeping.Texts(model).read(IDS)
    with replace_rotary(model, rfrope.geometric(8)):
        monkeypatch.undo()
        keeping.Texts(model).read(IDS)
