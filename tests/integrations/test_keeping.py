"""Windows of texts whose keys and values are kept: they lose what whole readings lose, and `tune` learns by them."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from tiny_models import logits, made, torch, trained_by_another_base

import rfrope
from rfrope.integrations import keeping, rotations, windows
from rfrope.integrations.transformers import replace_rotary, tune
from rfrope.layers.torch import RotaryEmbedding

TRAINED, CONTEXT = 32, 96
IDS = np.random.default_rng(0).integers(3, 32, 90)
KINDS = {  # with what is particular about them
    "llama": {"num_key_value_heads": 2},
    "qwen3": {},  # keys are normed before
    "gpt_neox": {},  # a part of a head rotates
    "glm": {},  # of pairs side by side
    "cohere": {},
    "phi3": {},
    "gemma2": {},  # capped scores
    "gpt_oss": {},  # sinks
    "mistral": {"sliding_window": 20},
    "smollm3": {"no_rope_layers": [0]},
    "cohere2": {"layer_types": ["full_attention"]},  # without RoPE, too
}


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
    """By any rotation in a model of one layer, whose keys before it and values do not depend on the rotation."""
    weights = {"initializer_range": 0.3}  # attention that is far from even
    model = made(kind, num_hidden_layers=1, **weights | KINDS[kind]).eval().requires_grad_(False)
    if kind not in ("gpt_oss", "gemma2"):  # which have an eager one alone
        model.set_attn_implementation(attention)
    (rope,) = rfrope.from_config(model.config)
    texts, batch, moved = keeping.Texts(model), batch_at(0, 40, 72), []
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


@pytest.mark.parametrize(("kind", "values"), [("smollm3", {"no_rope_layers": [1, 0, 1]}), ("llama", {}), ("qwen3", {})])
def test_layers_turn_by_what_is_theirs(kind, values):
    """Read by the Ropes of a window's own reading, which differ by layer."""
    model = made(kind, num_hidden_layers=3, initializer_range=0.3, **values).eval().requires_grad_(False)
    (rope,) = rfrope.from_config(model.config)
    ropes = [dataclasses.replace(rope, frequencies=factor * rope.frequencies) for factor in (0.2, 1.0, 0.5)]
    texts, batch = keeping.Texts(model), batch_at(0, 40, 72)
    for given in (ropes, ropes[::-1]):
        with replace_rotary(model, given):
            texts.forget()
            texts.read(IDS)
            torch.testing.assert_close(texts.losses(batch), whole(model, batch), rtol=3e-3, atol=0.0)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("deepseek_v3", {"qk_rope_head_dim": 16, "q_lora_rank": 16, "kv_lora_rank": 16}),  # a latent in place of keys
        ("hunyuan_v1_dense", {}),  # keys are normed
        ("gptj", {"rotary_dim": 8, "num_hidden_layers": 1}),  # the other features are joined to what was rotated
    ],
)
def test_models_whose_keys_cannot_be_rotated_again_are_refused(kind, values):
    model = made(kind, **values).eval()
    why = "layer 0 changes keys after their rotation"
    with replace_rotary(model, rfrope.from_config(model.config)[0]):
        with pytest.raises(
            ValueError, match=f"keys is 'text', but .* cannot be read so: {why}; expected keys='window'"
        ):
            keeping.Texts(model).read(IDS)
        rotary = next(one for one in model.modules() if isinstance(one, rotations.Positions))
        assert "rotated" not in vars(rotary)


def test_each_document_has_the_mean_of_its_windows():
    model = made("llama", num_hidden_layers=1, initializer_range=0.3).eval().requires_grad_(False)
    texts, batch = keeping.Texts(model), batch_at(0, 40, 72)
    with replace_rotary(model, rfrope.from_config(model.config)[0]):
        texts.read(IDS)
        each = texts.losses(batch)
        found = texts.losses(batch._replace(documents=np.asarray([1, 0, 1])))
    torch.testing.assert_close(found, torch.stack([each[1], (each[0] + each[2]) / 2.0]))


def test_attention_is_as_it_was_after_losses_and_forms_activations_again_for_gradients(monkeypatch):
    model, counted = made("llama").eval().requires_grad_(False), []
    (rope,) = rfrope.from_config(model.config)
    own = keeping.checkpoint
    monkeypatch.setattr(keeping, "checkpoint", lambda *args, **options: counted.append(0) or own(*args, **options))
    texts, batch = keeping.Texts(model), batch_at(0, 40)
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
    for chunk in (windows.CHUNK, 25):
        monkeypatch.setattr(windows, "CHUNK", chunk)
        texts = keeping.Texts(model)
        with replace_rotary(model, rfrope.from_config(model.config)[0]):
            texts.read(IDS)
        found.append(texts._kept[0])
    assert len(found[0].keys) == 3
    for one, other in zip(found[0][1:3], found[1][1:3], strict=True):
        assert [*one] == [*other]
        for layer in one:
            torch.testing.assert_close(one[layer], other[layer], rtol=2e-3, atol=2e-4)


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
    layout = windows.Layout(TRAINED, CONTEXT, 16, 2)
    drawn = [keeping.learning_batch(step, 3, layout, 5, 2) for step in range(600)]
    firsts = np.concatenate([one.firsts for one in drawn])
    assert {*firsts} == {*range(CONTEXT - 16)}, "and the token after the last is there, too"
    assert {*np.concatenate([one.texts for one in drawn])} == {0, 1, 2}
    again = keeping.learning_batch(7, 3, layout, 5, 2)
    assert all(np.array_equal(one, other) for one, other in zip(again, drawn[7], strict=True))
    parts = keeping.read_parts([4, 5], layout, 0)
    assert [[*one.texts] for one in parts["beyond"]] == [[4] * 4, [5] * 4]
    assert all((np.diff(one.firsts) > 0).all() for part in parts.values() for one in part)


@pytest.mark.parametrize(("trained", "context", "window"), [(32, 96, 16), (32, 33, 32), (32, 40, 16), (32, 64, 32)])
def test_parts_that_choose_are_within_and_beyond_the_trained_positions(trained, context, window):
    seen = {"within": set(), "beyond": set()}
    for seed in range(200):
        for part, batches in keeping.read_parts([0], windows.Layout(trained, context, window, 2), seed).items():
            for first in batches[0].firsts:
                seen[part] |= {*range(int(first) + 1, int(first) + 1 + batches[0].length)}
    assert seen == {"within": {*range(1, trained)}, "beyond": {*range(trained, context)}}, "of the tokens that count"


def texts(count=9, seed=0):
    """Documents that repeat themselves after a long time, so that a window alone does not see it."""
    rng = np.random.default_rng(seed)
    return [np.tile(rng.integers(3, 32, 24), 4)[:CONTEXT] for _ in range(count)]


@pytest.fixture(scope="module")
def model():
    return trained_by_another_base(np.stack(texts(32, seed=1)), TRAINED)


def test_texts_that_teach_do_not_choose_and_are_kept_up_to_the_context(model, monkeypatch):
    read, batches = [], []

    class Noting(keeping.Texts):
        def read(self, ids):
            read.append(ids)
            super().read(ids)

        def losses(self, batch):
            batches.append((torch.is_grad_enabled(), {*batch.texts.tolist()}))
            return super().losses(batch)

    monkeypatch.setattr(keeping, "Texts", Noting)
    long = [np.tile(one, 2) for one in texts()]
    tune(model, long, CONTEXT, starts="ntk", steps=12, keys="text", batch=3)  # a window of all trained positions
    assert len(read) == 7, "of nine two are held out"
    assert all(len(one) == CONTEXT for one in read)
    teaching, choosing = (set().union(*(seen for learns, seen in batches if learns == one)) for one in (True, False))
    assert (teaching, choosing) == ({0, 1, 2, 3, 4}, {5, 6})


def test_tune_learns_by_windows_that_see_the_text(model, tmp_path, monkeypatch):
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
    monkeypatch.setattr(keeping.Texts, "read", None)
    once_more = tune(model, texts(), CONTEXT, checkpoint=path, **options)
    assert once_more.history == found.history, "all was learned, so no text is read for it"
    with pytest.raises(ValueError, match="checkpoint"):
        tune(model, texts(), CONTEXT, checkpoint=path, **options | {"keys": "window"})


def test_a_model_that_reads_otherwise_from_what_is_kept_is_refused(model, monkeypatch):
    monkeypatch.setattr(keeping, "_small", lambda x: 0.5 * x)
    otherwise = "reads otherwise from keys that are kept; expected keys='window'"
    with replace_rotary(model, rfrope.geometric(8)), pytest.raises(ValueError, match=otherwise):
        keeping.Texts(model).read(IDS)
    shifted = made("llama", initializer_range=0.3).eval().requires_grad_(False)
    shifted.lm_head.bias = torch.nn.Parameter(torch.full((shifted.config.vocab_size,), 1e3))
    shifted.lm_head.bias.data[:3] = -1e9
    with replace_rotary(shifted, rfrope.geometric(8)), pytest.raises(ValueError, match=otherwise):
        keeping.Texts(shifted).read(IDS)  # what logits have in common, or lowest logits, hide nothing
    monkeypatch.undo()
    with replace_rotary(model, rfrope.geometric(8)):
        keeping.Texts(model).read(IDS)


@pytest.mark.parametrize(
    ("place", "what"), [("lm_head", "its logits"), ("model.layers.0.mlp.up_proj", "keys of layer 1")]
)
def test_a_model_that_gives_nan_is_said_to_do_so(place, what):
    broken = made("llama", num_hidden_layers=2).eval().requires_grad_(False)
    broken.get_submodule(place).weight.fill_(np.nan)
    with pytest.raises(ValueError, match=f"LlamaForCausalLM cannot read a text: {what} are NaN or infinite$"):
        tune(broken, texts(), CONTEXT, trained=TRAINED, keys="text", window=16, steps=1)


def test_a_cache_that_is_not_that_of_the_layer_is_refused(model, monkeypatch):
    """As of layers that run several times, with a cache for each, so that a Rope of the cache's number is another's."""
    own = keeping._Reading.update
    shifted = lambda self, key, value, layer, *_, **__: own(self, key, value, layer + 1)  # noqa: E731
    monkeypatch.setattr(keeping._Reading, "update", shifted)
    ropes = [rfrope.geometric(8)] * model.config.num_hidden_layers
    why = "layer 0 keeps its keys as those of layer 1; expected keys='window'"
    with replace_rotary(model, [*map(rfrope.Rope, ropes)]), pytest.raises(ValueError, match=why):
        keeping.Texts(model).read(IDS)


def test_small_keys_of_a_larger_product_do_not_hold_it():
    model = made("phi3", dtype=torch.bfloat16).to(torch.bfloat16).eval().requires_grad_(False)
    reading = []
    own = keeping._Reading.kept
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keeping._Reading, "kept", lambda self, ids: reading.append(dict(self._keys)) or own(self, ids))
        with replace_rotary(model, rfrope.from_config(model.config)[0]):
            keeping.Texts(model).read(IDS)
    parts = [one for each in reading[0].values() for one in each]
    assert parts
    assert all(one.untyped_storage().nbytes() == one.numel() * one.element_size() for one in parts)


def test_losses_of_windows_are_said_to_be_so(model):
    found = tune(model, texts(), CONTEXT, starts="ntk", window=16, steps=1, keys="text", reading="windows")
    assert "These losses are of windows" in found.note
    assert "keys=" not in found.note, "it learned by them"


def test_a_model_in_half_precision_may_differ_more_and_not_by_other_keys(monkeypatch):
    """Chances of a real model in bfloat16 differ by 0.06 between a whole reading and what is kept; 2 is the most."""
    model = made("llama", initializer_range=0.3).to(torch.bfloat16).eval().requires_grad_(False)
    own, moved = keeping.Texts._chances, [0.06]

    def moving(self, tokens, first, end, cache):
        chances = own(self, tokens, first, end, cache)
        if isinstance(cache, keeping._Before):  # as a rounding might
            chances = chances + torch.nn.functional.one_hot(torch.tensor(0), len(chances)) * moved[0]
        return chances

    monkeypatch.setattr(keeping.Texts, "_chances", moving)
    with replace_rotary(model, rfrope.geometric(8)):
        keeping.Texts(model).read(IDS)
        moved[0] = 1.0
        with pytest.raises(ValueError, match="reads otherwise from keys that are kept"):
            keeping.Texts(model).read(IDS)
    moved[0] = 0.06
    with replace_rotary(model.float(), rfrope.geometric(8)), pytest.raises(ValueError, match="reads otherwise"):
        keeping.Texts(model).read(IDS)
