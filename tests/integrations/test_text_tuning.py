"""The rotation of a model of transformers, learned: lower losses, windows, layers and heads, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from tiny_models import CACHE, logits, made, torch, trained_by_another_base

import rfrope
from rfrope.integrations import text_tuning, windows
from rfrope.integrations.transformers import Tuning, replace_rotary, tune

TRAINED, CONTEXT = 32, 96


def texts(count=9, length=CONTEXT, seed=0):
    """Documents that repeat themselves, so that a model may look back."""
    rng = np.random.default_rng(seed)
    return [np.tile(rng.integers(3, 32, 12), length // 12 + 1)[:length] for _ in range(count)]


@pytest.fixture(scope="module")
def model():
    return trained_by_another_base(np.stack(texts(32, TRAINED, seed=1)), TRAINED)


def tuned(model, documents=None, **options):
    options = {"starts": ("ntk", "as it is"), "steps": 8, "window": 16, "rate": 0.05} | options
    return tune(model, texts() if documents is None else documents, CONTEXT, **options)


def test_it_learns_what_the_weights_were_made_for(model):
    before = {name: value.clone() for name, value in model.state_dict().items()}
    own = logits(model)
    found = tuned(model, steps=20, batch=4, window=24)
    assert isinstance(found, Tuning)
    assert found.losses["learned"]["beyond"].shape == (2,)
    chosen = [np.mean([*line["validation"].values()]) for line in found.history if line["start"] == found.start]
    assert min(chosen) < chosen[0] - 0.05
    assert found.rope.context in (CONTEXT, TRAINED)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(logits(model), own)
    assert not model.training
    assert all(one.requires_grad for one in model.parameters())


@pytest.mark.parametrize(("per", "shape"), [("model", (8,)), ("layer", (8,)), ("head", (1, 8, 1))])
def test_what_was_learned_goes_into_the_model(model, per, shape):
    found = tuned(model, starts="ntk", per=per, steps=16, batch=4, window=24)
    ropes = found.rope if isinstance(found.rope, tuple) else (found.rope,)
    assert len(ropes) == (1 if per == "model" else 2)
    assert all(one.frequencies.shape == shape for one in ropes)
    assert any(one.attention_factor != 1.0 for one in ropes)
    assert ropes[0].source.scaled_by[-1]["scheme"] == "learned"
    assert "ntk" in {step["scheme"] for step in ropes[0].source.scaled_by}
    ids = torch.from_numpy(np.stack(texts(3)))
    with replace_rotary(model, list(ropes) if len(ropes) > 1 else ropes[0]), torch.no_grad():
        made_logits = model(ids).logits.double()
    losses = torch.nn.functional.cross_entropy(made_logits[:, :-1].mT, ids[:, 1:], reduction="none")
    layout = windows.Layout(TRAINED, CONTEXT, 16, 2)
    parts = windows.read_parts(texts(3), layout, 0, are_whole=True)
    with replace_rotary(model, list(ropes) if len(ropes) > 1 else ropes[0]), torch.no_grad():
        read = [windows.document_losses(model, one) for one in parts["beyond"]]
    torch.testing.assert_close(torch.cat(read).double(), losses[:, TRAINED - 1 :].mean(1), rtol=1e-5, atol=1e-5)


def test_what_was_learned_is_a_config(model, tmp_path):
    """As divisors of longrope by `engines.write`, and as plain frequencies by `save_pretrained`: equal logits."""
    learned = tuned(model, starts="ntk", steps=16, batch=4, window=24)
    assert learned.rope.attention_factor != 1.0
    ids = torch.from_numpy(np.stack(texts(2)))
    with replace_rotary(model, learned.rope):
        wanted = logits(model, ids)
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
        (read,) = rfrope.from_config(loaded.config)
        assert read.attention_factor == pytest.approx(learned.rope.attention_factor, rel=1e-12)


def test_layers_turn_by_ropes_of_their_own(model):
    ropes = [rfrope.Rope(rfrope.geometric(8, base=base)) for base in (10.0, 1000.0)]
    both = []
    for given in (ropes, ropes[0], ropes[1], ropes[::-1]):
        with replace_rotary(model, given):
            both.append(logits(model))
    assert not any(torch.allclose(both[0], other) for other in both[1:])
    with replace_rotary(model, [ropes[0]] * 2):
        assert torch.equal(logits(model), both[1])


def test_windows_have_gaps_and_stay_below_the_context():
    layout, document = windows.Layout(32, 96, 16, 3), np.arange(96)
    batch = windows.learning_batch(3, [document], layout, 5, 200, 0.0)
    assert batch.positions.max() < 96
    assert batch.positions.max() > 90
    assert (batch.positions[:, 0] == 0).all()
    assert (np.diff(batch.positions) >= 1).all()
    np.testing.assert_array_equal(batch.ids, batch.positions)  # long documents have their tokens there
    np.testing.assert_array_equal(batch.counted, np.diff(batch.positions) == 1)
    np.testing.assert_array_equal(batch.documents, np.arange(200), "each is a document of its own")
    assert (~batch.counted).sum(1).max() == 2
    again = windows.learning_batch(3, [document], layout, 5, 200, 0.0)
    np.testing.assert_array_equal(batch.positions, again.positions)
    assert not np.array_equal(batch.positions, windows.learning_batch(4, [document], layout, 5, 200, 0.0).positions)
    longer = windows.learning_batch(3, [np.arange(96 + 50)], layout, 5, 200, 0.0)
    begins = longer.ids - longer.positions
    assert (begins == begins[:, :1]).all()
    assert (begins.min(), begins.max()) == (0, 50)
    short = windows.learning_batch(3, [document[:40]], layout, 5, 200, 0.0)
    assert (np.diff(short.ids) == 1).all()
    assert (short.ids[:, 0].min(), short.ids[:, 0].max()) == (0, 24)
    assert short.positions.max() > 90
    for first, second in windows.read_parts([document, document + 1], layout, 0, are_whole=False).values():
        assert not np.array_equal(first.positions, second.positions), "documents have windows of their own"
        assert first.counted.any(1).all()
    whole = windows.learning_batch(0, [document, document[:40]], layout, 5, 2, 1.0)
    assert whole.ids.shape == (1, 96)
    assert whole.counted.all()


@pytest.mark.parametrize(
    ("trained", "context", "window", "first"), [(32, 96, 16, 33), (32, 33, 32, 32), (32, 40, 16, 33), (32, 64, 32, 33)]
)
def test_windows_that_choose_reach_all_of_their_part_and_none_of_the_other(trained, context, window, first):
    """But for the token after a gap: position 32 is one, where a window may begin there."""
    layout, seen = windows.Layout(trained, context, window, 2), {"within": set(), "beyond": set()}
    for seed in range(400):
        for part, (one,) in windows.read_parts([np.arange(context)], layout, seed, are_whole=False).items():
            seen[part] |= {*one.positions[:, 1:][one.counted].tolist()}
    assert seen == {"within": {*range(1, trained)}, "beyond": {*range(first, context)}}


def test_tokens_after_a_gap_see_those_before_it_and_no_loss_counts_across(model):
    positions = np.append(np.arange(8), np.arange(40, 48))[None]
    ids = texts(1)[0][None, :16]
    counted = np.diff(positions) == 1
    assert int(counted.sum()) == 14
    late = counted & (positions[:, 1:] >= 40)
    changed = ids.copy()
    changed[0, 2] = 3 + (ids[0, 2] + 1) % 20
    found = []
    for one in (ids, changed):
        with torch.no_grad():
            found.append(windows.document_losses(model, windows.Batch(one, positions, late, np.zeros(1, int))))
    assert not torch.equal(*found)
    with torch.no_grad():
        mask = torch.ones(1, 16, dtype=torch.int64)
        out = model(torch.from_numpy(ids), position_ids=torch.from_numpy(positions), attention_mask=mask).logits
    each = torch.nn.functional.cross_entropy(out[0, :-1], torch.from_numpy(ids)[0, 1:], reduction="none")
    torch.testing.assert_close(found[0][0], each[torch.from_numpy(late)[0]].mean())


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
    parts = windows.read_parts(texts(1), windows.Layout(TRAINED, CONTEXT, 16, 2), 0, are_whole=True)
    found = []
    for chunk in (1024, 7):
        monkeypatch.setattr(windows, "CHUNK", chunk)
        with torch.no_grad(), replace_rotary(model, rfrope.Rope(rfrope.geometric(8), attention_factor=1.1)):
            found.append([windows.document_losses(model, parts[name][0]) for name in ("within", "beyond")])
    torch.testing.assert_close(found[0], found[1], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("chunk", "calls"), [(1024, 1), (33, 3), (16, 5)])
def test_windows_that_are_read_together_lose_what_each_loses_alone(model, monkeypatch, chunk, calls):
    layout = windows.Layout(TRAINED, CONTEXT, 16, 2)
    rows = [windows.learning_batch(step, texts(3), layout, 0, 1, 0.0) for step in range(5)]
    ids, positions, counted, _ = (np.concatenate(one) for one in zip(*rows, strict=True))
    batch, many = windows.Batch(ids, positions, counted, np.asarray([2, 0, 1, 0, 2])), counted.sum(1)
    with torch.no_grad():
        alone = [windows.document_losses(model, row)[0] for row in rows]
        monkeypatch.setattr(windows, "CHUNK", chunk)
        called = []
        with model.register_forward_hook(lambda *_: called.append(0)):
            found = windows.document_losses(model, batch)
    assert len(called) == calls
    wanted = [sum(many[i] * alone[i] for i in some) / sum(many[i] for i in some) for some in ((1, 3), (2,), (0, 4))]
    torch.testing.assert_close(found, torch.stack(wanted), rtol=1e-5, atol=1e-5)


def test_losses_of_windows_say_that_they_are(model):
    by_windows, whole = (tuned(model, steps=1, reading=reading) for reading in ("windows", "auto"))
    assert "Attention sees at most 16 tokens in one, and up to 96 in a whole text" in by_windows.note
    assert str(by_windows).endswith(by_windows.note)
    assert by_windows.to_dict()["note"] == by_windows.note
    assert whole.note == ""
    short = tuned(model, texts(9, 40), steps=1)
    assert short.note == by_windows.note, "texts that are shorter than the context are read by windows"


def test_the_same_seed_gives_the_same_bits_and_a_checkpoint_goes_on(model, tmp_path):
    first = tuned(model, checkpoint=tmp_path / "kept.npz", per="layer")
    again, other = tuned(model, per="layer"), tuned(model, per="layer", rng=1)
    for one in (again, tuned(model, checkpoint=tmp_path / "kept.npz", per="layer")):
        assert first.history == one.history
        assert all(np.array_equal(a.frequencies, b.frequencies) for a, b in zip(first.rope, one.rope, strict=True))
    assert first.history != other.history
    with pytest.raises(ValueError, match="checkpoint of another estimate"):
        tuned(model, texts(seed=3), checkpoint=tmp_path / "kept.npz", per="layer")


def test_the_context_is_that_which_was_asked_for(model):
    found = tuned(model, starts={"mine": rfrope.Rope(rfrope.geometric(8, base=99.0))}, steps=1)
    assert found.rope.context == CONTEXT
    assert [*found.losses] == ["as it is", "mine", "learned"]


def test_a_checkpoint_knows_every_document(model, tmp_path):
    given = {"starts": "ntk", "steps": 1, "checkpoint": tmp_path / "kept.npz"}
    tuned(model, **given)
    learning, _, _ = text_tuning.split(texts(), 0.25, 0, 16)
    taught = [i for i, one in enumerate(texts()) if any(np.array_equal(one, other) for other in learning)]
    assert len(taught) == 5
    for i in taught:
        changed = texts()
        changed[i][50] = 3 + (changed[i][50] - 2) % 29
        with pytest.raises(ValueError, match="batches differ"):
            tuned(model, changed, **given)


@pytest.mark.parametrize("had", [False, True])
def test_checkpointed_activations_give_the_same_without_dropout_and_leave_the_model_as_it_was(had):
    dropout = {"attention_dropout": 0.5, "hidden_dropout": 0.25}
    model = made("gpt_neox", hidden_size=32, max_position_embeddings=TRAINED, num_attention_heads=2, **dropout)
    if had:
        getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)()  # as releases name it
    before = [[vars(one).get(name) for name in ("attention_dropout", "p")] for one in model.modules()]
    assert {0.25, 0.5} < {value for values in before for value in values}
    options = {"starts": "ntk", "steps": 3, "penalty": 0.0}
    plain, less = (tuned(model, activation_checkpointing=one, **options) for one in (False, True))
    for one, other in zip(plain.history[1:], less.history[1:], strict=True):
        assert one["learning"] == pytest.approx(other["learning"], rel=1e-6)
        assert one["validation"] == pytest.approx(other["validation"], rel=1e-6)
    assert [[vars(one).get(name) for name in ("attention_dropout", "p")] for one in model.modules()] == before
    assert any(getattr(one, "gradient_checkpointing", False) for one in model.modules()) == had
    assert not model.training


def test_texts_are_ids_strings_or_files(model, tmp_path):
    words = [" ".join(map(str, one)) for one in texts()]
    for i, one in enumerate(words):
        (tmp_path / f"{i}.txt").write_text(one)

    def tokenizer(text, verbose=True):
        return {"input_ids": [int(one) for one in text.split()]}

    first, *others = (
        tuned(model, given, starts="ntk", steps=1, tokenizer=tokenizer)
        for given in (texts(), words, sorted(tmp_path.iterdir()))
    )
    assert all(one.history == first.history for one in others)


def test_models_that_cannot_be_tuned_are_as_they_were():
    with pytest.raises(ValueError, match=r"has no rotary module|RoPE"):
        tune(made("gpt2"), texts(), CONTEXT)
    broken = made(hidden_size=32, max_position_embeddings=TRAINED)
    with torch.no_grad():
        broken.lm_head.weight.fill_(np.nan)
    with pytest.raises(ValueError, match="NaN or infinite on the validation from every start"):
        tuned(broken, steps=2)
    logits(broken)
    assert not any("Positions" in type(one).__name__ for one in broken.modules())


def test_kinds_of_layers_that_see_little_keep_their_own():
    model = made("gemma3_text", max_position_embeddings=TRAINED, sliding_window=8, num_hidden_layers=6)
    found = tuned(model, starts="ntk", steps=2, penalty=0.0)
    assert found.rope.source.model.name == "full_attention"
    assert found.steps in (0, 1, 2)
