"""The rotation of a model of transformers, learned from texts: lower losses, layers, heads, configs."""

import numpy as np
import pytest
from tiny_models import CACHE, logits, made, torch, trained_by_another_base

import rfrope
from rfrope.integrations import halving, text_caches, text_tuning
from rfrope.integrations.transformers import Tuning, replace_rotary, tune

TRAINED, CONTEXT = 32, 96


def documents(count=9, length=CONTEXT, seed=0):
    """Documents that repeat themselves after a long time, so that a window alone does not see it."""
    rng = np.random.default_rng(seed)
    return [np.tile(rng.integers(3, 32, 24), length // 24 + 1)[:length] for _ in range(count)]


@pytest.fixture(scope="module")
def model():
    return trained_by_another_base(np.stack(documents(32, seed=1)), TRAINED)


def tuned(model, given=None, **options):
    options = {"starts": ("ntk", "as it is"), "steps": 8, "window": 16, "rate": 0.05} | options
    return tune(model, documents() if given is None else given, CONTEXT, **options)


def test_it_learns_what_the_weights_were_made_for(model):
    before = {name: value.clone() for name, value in model.state_dict().items()}
    own = logits(model)
    found = tuned(model, steps=20)
    assert isinstance(found, Tuning)
    assert {len(one) for parts in found.losses.values() for one in parts.values()} == {2}
    chosen = [np.mean([*line["validation"].values()]) for line in found.history if line["start"] == found.start]
    assert min(chosen) < chosen[0] - 0.01
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(logits(model), own)
    assert not model.training
    assert all(one.requires_grad for one in model.parameters())


def test_what_was_learned_goes_into_the_model_and_lost_what_is_said(model):
    """The losses are those of whole readings within the trained positions, and beyond them."""
    found = tuned(model, starts="ntk", steps=16)
    assert found.rope.frequencies.shape == (8,)
    assert found.rope.attention_factor != 1.0
    assert found.rope.source.scaled_by[-1]["scheme"] == "learned"
    assert "ntk" in {step["scheme"] for step in found.rope.source.scaled_by}
    ids = torch.from_numpy(np.stack(text_caches.divide(documents(), CONTEXT, 0.25, 0)[2]))
    with replace_rotary(model, found.rope):
        read = logits(model, ids).double()
    losses = torch.nn.functional.cross_entropy(read[:, :-1].mT, ids[:, 1:], reduction="none").numpy()
    parts = found.losses["learned"]
    np.testing.assert_allclose(parts["within"], losses[:, : TRAINED - 1].mean(1), rtol=1e-5)
    np.testing.assert_allclose(parts["beyond"], losses[:, TRAINED - 1 :].mean(1), rtol=1e-5)


def test_what_was_learned_is_a_config(model, tmp_path):
    """As divisors of longrope by `engines.write`, and as plain frequencies by `save_pretrained`: equal logits."""
    learned = tuned(model, starts="ntk", steps=16)
    assert learned.rope.attention_factor != 1.0
    ids = torch.from_numpy(np.stack(documents(2)))
    with replace_rotary(model, learned.rope):
        wanted, written = logits(model, ids), model.generate(ids[:, :40], max_new_tokens=8, do_sample=False)
        model.save_pretrained(tmp_path / "plain")
    model.save_pretrained(tmp_path / "divisors")
    config = tmp_path / "divisors" / "config.json"
    rfrope.engines.write(config, learned.rope, "transformers", model=config, overwrite=True)
    scale = wanted.abs().max()
    assert (logits(model, ids) - wanted).abs().max() > 0.01 * scale, "it makes a difference"
    for name in ("plain", "divisors"):
        loaded = type(model).from_pretrained(tmp_path / name)
        assert loaded.config.max_position_embeddings == (CONTEXT if name == "divisors" else TRAINED)
        assert (logits(loaded, ids) - wanted).abs().max() < 2e-5 * scale
        assert torch.equal(loaded.generate(ids[:, :40], max_new_tokens=8, do_sample=False), written)
        (read,) = rfrope.from_config(loaded.config)
        assert read.attention_factor == pytest.approx(learned.rope.attention_factor, rel=1e-12)


@pytest.mark.parametrize("name", ["cache", "past_key_values", "a wrapper's"])
def test_long_readings_in_chunks_are_those_in_one(model, monkeypatch, name):
    """Of models that were written for any release, and of one that hides the names of its parameters."""
    run = model.forward
    forwards = {
        "cache": lambda ids, cache=None, **options: run(ids, **{CACHE: cache}, **options),
        "past_key_values": lambda ids, past_key_values=None, **options: run(ids, **{CACHE: past_key_values}, **options),
        "a wrapper's": lambda *given, **options: run(*given, **options),
    }
    monkeypatch.setitem(vars(model), "forward", forwards[name])
    readings = [(documents(1)[0][:end], first) for end, first in ((TRAINED, 0), (None, TRAINED))]
    found = []
    for chunk in (1024, 7, 95):  # the last token alone has no loss
        monkeypatch.setattr(text_caches, "CHUNK", chunk)
        with replace_rotary(model, rfrope.Rope(rfrope.geometric(8), attention_factor=1.1)):
            found.append(torch.stack([text_caches.read_whole(model, *one) for one in readings]))
    for other in found[1:]:
        torch.testing.assert_close(found[0], other, rtol=1e-5, atol=1e-5)


def test_texts_that_teach_do_not_choose_and_are_cached_up_to_the_context(model, monkeypatch):
    read, batches = [], []

    class Noting(text_caches.TextCaches):
        def read(self, ids):
            read.append(ids)
            super().read(ids)

        def losses(self, batch):
            batches.append((torch.is_grad_enabled(), {*batch.texts.tolist()}))
            return super().losses(batch)

    monkeypatch.setattr(text_tuning, "TextCaches", Noting)
    long = [np.tile(one, 2) for one in documents()]
    tuned(model, long, starts="ntk", steps=40, rate=0.01, window=None)  # a window of all trained positions
    assert len(read) == 7, "of nine two are held out"
    assert all(len(one) == CONTEXT for one in read)
    teaching, choosing = (set().union(*(seen for learns, seen in batches if learns == one)) for one in (True, False))
    assert (teaching, choosing) == ({0, 1, 2, 3, 4}, {5, 6})


def test_the_same_seed_gives_the_same_bits_and_a_checkpoint_goes_on(model, tmp_path, monkeypatch):
    monkeypatch.setattr(halving, "_SECONDS", 0.0)
    path, found, other = tmp_path / "kept.safetensors", tuned(model), tuned(model, rng=1)
    assert found.history != other.history

    def stopping(items, total):
        for i, item in enumerate(items):
            if total > 9 and i == 6:
                raise KeyboardInterrupt
            yield item

    with pytest.raises(KeyboardInterrupt):
        tuned(model, checkpoint=path, progress=stopping)
    for _ in range(2):
        again = tuned(model, checkpoint=path)
        assert again.history == found.history
        assert np.array_equal(found.rope.frequencies, again.rope.frequencies)
        monkeypatch.setattr(text_caches.TextCaches, "read", None)  # all was learned, so no text is read for it
    taught = text_caches.divide(documents(), CONTEXT, 0.25, 0)[0]
    for i in (i for i, one in enumerate(documents()) if any(np.array_equal(one, other) for other in taught)):
        changed = documents()
        changed[i][50] = 3 + (changed[i][50] - 2) % 29
        with pytest.raises(ValueError, match=r"another call \(batches differ\)"):
            tuned(model, changed, checkpoint=path)


def test_the_context_is_that_which_was_asked_for(model):
    found = tuned(model, starts={"mine": rfrope.Rope(rfrope.geometric(8, base=99.0))}, steps=1)
    assert found.rope.context == CONTEXT
    assert [*found.losses] == ["as it is", "mine", "learned"]


def test_texts_are_ids_strings_or_files(model, tmp_path):
    words = [" ".join(map(str, one)) for one in documents()]
    for i, one in enumerate(words):
        (tmp_path / f"{i}.txt").write_text(one)

    def tokenizer(text, verbose=True):
        return {"input_ids": [int(one) for one in text.split()]}

    first, *others = (
        tuned(model, given, starts="ntk", steps=1, tokenizer=tokenizer)
        for given in (documents(), [np.asarray(one, ">u2") for one in documents()], words, sorted(tmp_path.iterdir()))
    )
    assert all(one.history == first.history for one in others)


@pytest.mark.parametrize(
    ("place", "what"), [("lm_head", "its logits"), ("model.layers.0.mlp.up_proj", "keys of layer 1")]
)
def test_models_that_cannot_be_tuned_are_as_they_were(place, what):
    broken = made("llama", max_position_embeddings=TRAINED).eval()
    with torch.no_grad():
        broken.get_submodule(place).weight.fill_(np.nan)
    with pytest.raises(ValueError, match=f"LlamaForCausalLM cannot read a text: {what} are NaN or infinite$"):
        tuned(broken, steps=1)
    logits(broken)
    assert not any("Positions" in type(one).__name__ for one in broken.modules())
    with pytest.raises(ValueError, match=r"has no rotary module|RoPE"):
        tune(made("gpt2"), documents(), CONTEXT)


def test_kinds_of_layers_that_see_little_keep_their_own():
    """Windows lose what whole readings lose, where kinds of layers turn by Ropes of their own."""
    options = {"sliding_window": 8, "num_hidden_layers": 6, "initializer_range": 0.3}
    model = made("gemma3_text", max_position_embeddings=TRAINED, **options)
    found = tuned(model, starts="ntk", steps=2)
    assert found.rope.source.model.name == "full_attention"
    assert found.steps in (0, 1, 2)
    ids = documents(1)[0]
    caches, windows = text_caches.TextCaches(model), text_caches.Windows(*np.asarray([[0], [40]]), 16)
    ropes = {one.source.model.name: one for one in rfrope.from_config(model.config)} | {"full_attention": found.rope}
    with torch.no_grad(), replace_rotary(model, ropes):
        caches.read(ids)
        read = model(torch.from_numpy(ids)[None], use_cache=False).logits[0, 40:56]
        wanted = torch.nn.functional.cross_entropy(read, torch.from_numpy(ids[41:57]))
        torch.testing.assert_close(caches.losses(windows)[0], wanted, rtol=3e-3, atol=0.0)
