"""The rotation of any model, learned: it finds a planted optimum, goes on bit for bit, leaves the model as it was."""

import contextlib
import copy
import math

import numpy as np
import pytest
from conftest import library

import rfrope

torch = library("torch").module
from rfrope.integrations import halving  # noqa: E402
from rfrope.integrations.tuning import Tuning, tune_modules  # noqa: E402
from rfrope.layers.torch import RotaryEmbedding  # noqa: E402

WIDTH, TOKENS = 8, 12
TRUE = rfrope.geometric(WIDTH // 2, base=40.0)
BASES = {"near": 100.0, "far": 10_000.0}
STARTS = {name: rfrope.Rope(rfrope.geometric(WIDTH // 2, base=base)) for name, base in BASES.items()}


class Attention(torch.nn.Module):
    """Attention weights of two layers, whose queries and keys are made of the tokens."""

    def __init__(self, rope, layers=2):
        super().__init__()
        torch.manual_seed(0)
        self.projections = torch.nn.ModuleList(torch.nn.Linear(WIDTH, 2 * WIDTH).double() for _ in range(layers))
        self.rotaries = torch.nn.ModuleList(RotaryEmbedding(rope) for _ in range(layers))
        self.dropout = torch.nn.Dropout(0.5)

    def train(self, mode=True):
        """Return nothing, as many a model with frozen parts."""
        super().train(mode)

    def forward(self, x):
        found = []
        for project, rotary in zip(self.projections, self.rotaries, strict=True):
            q, k = (one.reshape(len(x), TOKENS, 2, WIDTH // 2).transpose(1, 2) for one in project(x).chunk(2, -1))
            q, k = (torch.cat([one, one], -1) for one in (q, k))
            q, k = rotary(q, k)
            found.append(self.dropout(torch.log_softmax(q @ k.mT, -1)))
        return torch.stack(found, 1)


def batch(seed, documents=3):
    return torch.randn(documents, TOKENS, WIDTH, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def problem(temperature=1.0, factors=None, base=100.0):
    """A model, and a loss that is least where it turns by the true frequencies, each layer by a factor of its own."""
    model = Attention(rfrope.Rope(rfrope.geometric(WIDTH // 2, base=base)))
    teacher = copy.deepcopy(model)
    teacher.eval()
    for i, one in enumerate(factors or (1.0, 1.0)):
        rope = rfrope.Rope(one * TRUE, attention_factor=math.sqrt(temperature))
        teacher.rotaries[i] = RotaryEmbedding(rope)

    def loss(x):
        with torch.no_grad():
            wanted = teacher(x)
        return -(wanted.exp() * (model(x) - wanted)).sum(-1).mean((1, 2, 3))

    parts = [{"within": [batch(100 + s)], "beyond": [batch(200 + s), batch(300 + s)]} for s in (0, 50)]
    return model, loss, batch, *parts


@pytest.fixture(autouse=True)
def free(monkeypatch):
    """Nothing pulls towards the start, and a checkpoint is written after every step."""
    monkeypatch.setattr(halving, "PENALTY", 0.0)
    monkeypatch.setattr(halving, "_SECONDS", 0.0)


def interrupted(loss, at, counts=lambda x: True):
    """The loss, interrupted at a call of those that count; and these calls."""
    calls = []

    def ends(x):
        calls.extend([x] * counts(x))
        if len(calls) == at:
            raise KeyboardInterrupt
        return loss(x)

    return ends, calls


def last_steps(found):
    """The last step of each start that was looked at."""
    return {line["start"]: line["step"] for line in found.history}


def tuned(made=None, steps=40, **options):
    return tune_modules(*(made or problem()), steps=steps, **{"rate": 0.05} | options)


def test_it_finds_planted_frequencies_and_a_planted_temperature():
    found = tuned(problem(temperature=1.5), steps=50)
    assert isinstance(found, Tuning)
    np.testing.assert_allclose(found.rope.frequencies, TRUE, atol=0.02)  # 12 tokens see little of the slowest
    assert found.rope.attention_factor**2 == pytest.approx(1.5, rel=0.04)
    assert found.rope.source.scaled_by[-1]["learned"] == ["factors", "temperature"]
    assert found.start == "as it is"
    for part in ("within", "beyond"):
        assert found.verdict("as it is", part) == "better"
        assert found.mean("learned", part)[0] < 1e-2 * found.mean("as it is", part)[0]
    assert "better than as it is" in str(found)
    assert found.losses["learned"]["beyond"].shape == (6,)


def test_the_better_start_wins_and_the_other_is_dropped():
    found = tuned(starts=STARTS, steps=40, race=0.25, check_every=5)
    assert found.start == "near"
    assert last_steps(found) == {"near": 40, "far": 10}
    assert [*found.losses] == ["as it is", "near", "far", "learned"]
    assert found.mean("as it is", "beyond") == found.mean("near", "beyond"), "they are the same Rope"
    assert (found.history[0]["step"], found.history[0]["learning"]) == (0, None)
    assert found.history[1]["learning"] > 0.0


def test_the_model_is_as_it_was():
    model, *rest = problem()
    model.projections[0].train(False)
    next(model.parameters()).requires_grad_(False)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    modes, wants = [one.training for one in model.modules()], [one.requires_grad for one in model.parameters()]
    own = [*model.rotaries]

    def fails(x):
        raise RuntimeError("as asked")

    for loss, ends in ((rest[0], contextlib.nullcontext()), (fails, pytest.raises(RuntimeError, match="as asked"))):
        with ends:
            tuned((model, loss, *rest[1:]), steps=3)
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
        assert [one.training for one in model.modules()] == modes
        assert [one.requires_grad for one in model.parameters()] == wants
        assert all(one.grad is None for one in model.parameters())
        assert all(one is other for one, other in zip(model.rotaries, own, strict=True))


def assert_same(found, other):
    assert found.history == other.history
    np.testing.assert_array_equal(found.rope.frequencies, other.rope.frequencies)
    assert found.rope.attention_factor == other.rope.attention_factor
    for method, parts in found.losses.items():
        for part, values in parts.items():
            np.testing.assert_array_equal(values, other.losses[method][part])


@pytest.mark.parametrize("calls", [1, 4, 22, 41, 47])
def test_what_was_ended_goes_on_with_the_same_bits(calls, tmp_path):
    """In the first look, in the race, after it, and while what was held out is read."""
    options = {"starts": STARTS, "steps": 12, "check_every": 3, "checkpoint": tmp_path / "a.safetensors"}
    model, loss, learning, *parts = problem()
    rest = (learning, *({12: one["within"], ("b", 1): one["beyond"]} for one in parts))
    ends, called = interrupted(loss, calls)
    with pytest.raises(KeyboardInterrupt):
        tuned((model, ends, *rest), **options)
    whole = tuned((model, loss, *rest), **options | {"checkpoint": None})
    assert_same(tuned((model, ends, *rest), **options), whole)
    again = len(called)
    assert_same(tuned((model, ends, *rest), **options), whole)
    assert len(called) == again, "all of it was kept"


def test_a_checkpoint_of_another_call_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(halving, "_SECONDS", 1e9)  # it is written at the end alone
    model, loss, _, *parts = problem()
    other, *rest = problem()
    with torch.no_grad():
        other.projections[1].weight[-1] += 1e-3

    def refused(words, made=None, first=None, **options):
        asked = {"steps": 2, "checkpoint": tmp_path / f"{words}.safetensors"}
        tuned(first, **asked)
        with pytest.raises(ValueError, match=rf"another call \({words} differ\)"):
            tuned(made or first, **asked | options)
        asked["checkpoint"].unlink()

    refused("model", (other, *rest))
    refused("rate", rate=0.02)
    refused("learnable", learnable="factors")
    for one, two in (
        (batch, lambda step: batch(step if step == 0 else 7)),
        ([batch(i) for i in range(3)], [batch(i) for i in (0, 1, 3)]),
    ):
        refused("batches", (model, loss, two, *parts), (model, loss, one, *parts))


@pytest.mark.parametrize("content", [b"", b"text", b"PK" * 99, "another"])
def test_what_is_no_checkpoint_is_refused_and_stays(content, tmp_path):
    path = tmp_path / "kept.safetensors"
    if content == "another":
        rfrope.save(path, rfrope.Rope(TRUE))
        content = path.read_bytes()
    path.write_bytes(content)
    with pytest.raises(ValueError, match="is not a checkpoint"):
        tuned(steps=2, checkpoint=path)
    assert path.read_bytes() == content


def test_a_checkpoint_that_cannot_be_written_does_not_end_the_learning(tmp_path, monkeypatch):
    def fails(*_, **__):
        raise OSError("no space left")

    monkeypatch.setattr(halving.files, "write", fails)
    with pytest.warns(RuntimeWarning, match="was not written: no space left"):
        found = tuned(steps=2, checkpoint=tmp_path / "kept.safetensors")
    assert found.history == tuned(steps=2).history


def test_a_start_that_breaks_leaves_the_others_to_learn():
    starts = {"near": STARTS["near"], "other": rfrope.Rope(rfrope.geometric(WIDTH // 2, base=150.0))}
    model, loss, *rest = problem()

    def breaks(x):
        return loss(x) * (math.nan if torch.is_grad_enabled() and is_near(model.rotaries[0]) else 1.0)

    with torch.no_grad():  # around the call, as in a notebook
        found = tuned((model, breaks, *rest), starts=starts, steps=20, check_every=5)
    assert last_steps(found) == {"near": 0, "other": 20}
    assert found.start == "other"
    assert found.mean("learned", "beyond")[0] < found.mean("near", "beyond")[0]


def test_a_dropped_start_stays_dropped(tmp_path, monkeypatch):
    """The leader ends after the others were dropped; a call that goes on from there learns from none of them."""
    starts = {"best": rfrope.Rope(TRUE), "far": STARTS["far"]}
    options = {"starts": starts, "steps": 12, "check_every": 3, "checkpoint": tmp_path / "kept.safetensors"}
    monkeypatch.setattr(halving, "PATIENCE", 2)
    model, loss, *rest = problem()
    ends, _ = interrupted(loss, 2, lambda x: torch.equal(x, rest[2]["within"][0]))
    with pytest.raises(KeyboardInterrupt):
        tuned((model, ends, *rest), **options)
    found = tuned((model, ends, *rest), **options)
    assert last_steps(found) == {"best": 6, "far": 3}
    assert found.history == tuned(**options | {"checkpoint": None}).history


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_keeps_the_best_so_far(bad):
    model, loss, learning, *rest = problem()
    breaks = lambda x: loss(x) * (bad if x.shape[0] == 1 else 1.0)  # noqa: E731
    found = tuned((model, breaks, lambda step: batch(step, 1 if step == 10 else 3), *rest), steps=20, check_every=5)
    wanted = tuned(steps=20, check_every=5)
    assert "NaN or infinite, or a factor too large, after 10 of 20 steps" in found.ended
    assert found.steps == 10
    assert [line["step"] for line in found.history] == [0, 5, 10]
    assert found.history == wanted.history[:3]
    assert np.isfinite(found.rope.frequencies).all()
    with pytest.raises(ValueError, match="loss is NaN or infinite on the validation from every start"):
        tuned((model, lambda x: loss(x) * bad, learning, *rest))


def test_a_rate_far_too_large_keeps_the_start():
    found, start = tuned(steps=20, check_every=5, rate=2.0**32), STARTS["near"]
    assert "a factor too large, after 0 of 20 steps" in found.ended
    assert [line["step"] for line in found.history] == [0]
    np.testing.assert_array_equal(found.rope.frequencies, start.frequencies)


def test_it_stops_where_the_validation_falls_no_further_and_never_says_that_it_helps():
    made = problem(base=40.0)  # there is nothing to learn
    found = tuned(made, steps=100, check_every=2, learnable="factors")
    assert (found.steps, found.history[-1]["step"]) == (0, 10)
    assert "No step lowered the validation loss" in str(found)
    assert "better" not in str(found)
    np.testing.assert_array_equal(found.rope.frequencies, TRUE)
    assert "fell no further; 10 of 100 steps" in found.ended


def judged(own, other, **others):
    """What was found of a rotation, by its losses and those of the start."""
    losses = {"near": {"all": other}} | {name: {"all": one} for name, one in others.items()}
    return Tuning(rfrope.Rope(TRUE), "near", 5, "", (), losses | {"learned": {"all": own}})


@pytest.mark.parametrize(("documents", "reach"), [(3, 4.303), (5, 2.776), (100, 2.0)])  # Student's, but at least 2
def test_a_difference_counts_from_the_quantile_of_its_documents_on(documents, reach):
    own = np.random.default_rng(0).normal(size=documents)
    spread = (own - own.mean()) / np.std(own, ddof=1) * math.sqrt(documents)  # mean 0, standard error 1
    for errors, verdict in ((0.999, "even"), (1.001, "better"), (-0.999, "even"), (-1.001, "worse")):
        assert judged(own, own + errors * reach + spread).verdict("near", "all") == verdict


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_is_the_worse_one(bad):
    fine, broken = (np.asarray([1.0, 2.0, one]) for one in (3.0, bad))
    for own, other, verdict in ((fine, broken, "better"), (broken, fine, "worse"), (broken, broken, "worse")):
        assert judged(own, other).verdict("near", "all") == verdict


@pytest.mark.parametrize("shift", [-1.0, 1.0])
def test_differences_are_said_of_each_start(shift):
    noise = np.random.default_rng(0).normal(size=40)
    spread = (noise - noise.mean()) / np.std(noise, ddof=1)  # mean 0, standard error 1 / sqrt(40)
    near, far = (5.0 * noise + shift * error / math.sqrt(40) + spread for error in (0.5, 3.0))
    found, few = judged(5.0 * noise, near, far=far), judged(5.0 * noise[:2], near[:2], far=far[:2])
    assert found.difference("far", "all") == pytest.approx((-shift * 3.0 / 40**0.5, 40**-0.5))
    assert found.verdict("near", "all") == "even"
    assert found.verdict("far", "all") == ("better" if shift > 0 else "worse")
    assert few.verdict("far", "all") == "even", "two documents say little"
    assert "within two standard errors of near, far" in str(few)
    assert few.to_dict()["learned_is"] == {"near": {"all": "even"}, "far": {"all": "even"}}


def test_the_penalty_keeps_what_is_learned_near_its_start(monkeypatch):
    away = []
    for penalty in (0.0, 10.0):
        monkeypatch.setattr(halving, "PENALTY", penalty)
        away.append(np.abs(np.log(tuned(steps=15).rope.frequencies / STARTS["near"].frequencies)).max())
    assert away[0] > 0.1
    assert away[1] < 0.1 * away[0]


def is_near(rotary):
    return np.array_equal(rotary.start.frequencies, STARTS["near"].frequencies)


def downhill(rope=TRUE, layers=2):
    """A model, and a loss that adds to the batch the sum of all log-factors: steps of Adam are as long as the rate."""
    model = torch.nn.ModuleList([RotaryEmbedding(rope) for _ in range(layers)])

    def loss(x):
        learned = dict.fromkeys(factors for one in model if (factors := one.log_factors) is not None)
        return x + sum(one.sum() for one in learned)

    return model, loss


def numbers(*batches):
    return [torch.tensor(one, dtype=torch.float64) for one in batches]


ALL = {"all": numbers([0.0])}


def descended(made=None, learning=(0.0,), validation=None, **options):
    options = {"learnable": "factors", "rate": 0.01} | options
    made, parts = made or downhill(), validation or ALL
    return tune_modules(*made, numbers(*([one] for one in learning)), parts, parts, **options)


@pytest.mark.parametrize(("steps", "factor"), [(1, 1.0), (4, 2.5)])
def test_the_rate_falls_linearly_and_the_last_step_has_some_left(steps, factor):
    """Steps are 1, 3/4, 2/4 and 1/4 of the rate."""
    found = descended(steps=steps)
    np.testing.assert_allclose(found.rope.frequencies, TRUE * math.exp(-0.01 * factor), rtol=1e-6)


def test_the_history_has_the_mean_of_the_steps_since_the_last_look_and_of_each_part():
    validation = {"within": numbers([1.0, 2.0, 6.0]), "beyond": numbers([5.0], [7.0, 9.0, 9.0])}
    found = descended(learning=(0.0, 1.0, 2.0), validation=validation, steps=7, check_every=4, rate=1e-9)
    assert [line["step"] for line in found.history] == [0, 4, 7], "the last step is looked at, too"
    assert [line["learning"] for line in found.history[1:]] == pytest.approx([0.75, 1.0], abs=1e-6)
    for line in found.history:
        assert line["validation"] == pytest.approx({"within": 3.0, "beyond": 7.5}, abs=1e-6), "of its documents"
    np.testing.assert_allclose(found.losses["learned"]["beyond"], [5.0, 7.0, 9.0, 9.0], atol=1e-6)
    assert [line["step"] for line in descended(steps=40).history] == [*range(0, 41, 2)], "a twentieth, by default"
    one_each = dict(zip(BASES, STARTS.values(), strict=True))
    steps = [line["step"] for line in descended(steps=6, race=0.3, starts=one_each, check_every=1).history]
    assert steps == [0, 1, 2, 0, 1, 2, 3, 4, 5, 6], "the nearest number of steps"


def test_the_best_look_by_the_mean_of_its_parts_is_kept():
    model, loss = downhill()
    said, ropes = iter([3.0, 3.0, 2.0, 1.0, 1.0, 4.0, 4.0, 4.0]), []

    def looks(x):
        if torch.is_grad_enabled():
            return loss(x)
        ropes.append(model[0].rope.frequencies)
        return torch.tensor(next(said, 0.0))

    parts = {"within": numbers(0.0), "beyond": numbers(0.0)}
    found = descended((model, looks), validation=parts, steps=7, check_every=3)
    assert [line["step"] for line in found.history] == [0, 3, 6, 7]
    assert found.steps == 3
    np.testing.assert_array_equal(found.rope.frequencies, ropes[2])
    assert not np.array_equal(ropes[2], ropes[0])


def test_a_leader_that_broke_does_not_go_on_and_is_kept():
    model, loss = downhill()

    def breaks(x):
        near = is_near(model[0])
        return loss(x) * (math.nan if near and torch.is_grad_enabled() else 1.0) + (0.0 if near else 9.0)

    found = descended((model, breaks), starts=STARTS, steps=8, check_every=1)
    assert (found.start, last_steps(found)) == ("near", {"near": 0, "far": 8})


def test_patience_is_of_looks_since_the_best(monkeypatch):
    monkeypatch.setattr(halving, "PATIENCE", 2)
    model, loss = downhill()
    said = iter([3.0, 2.0, 2.5, 1.0, 1.5, 1.2])

    def looks(x):
        return loss(x) if torch.is_grad_enabled() else torch.tensor(next(said, 0.0))

    found = descended((model, looks), steps=9, check_every=1)
    assert [line["validation"]["all"] for line in found.history] == pytest.approx([3.0, 2.0, 2.5, 1.0, 1.5, 1.2])
    assert found.steps == 3


def test_parts_weigh_alike_whatever_documents_they_have():
    """By the mean of all documents the other start would win."""
    model, loss = downhill()
    looks = lambda x: loss(x[:, 0 if is_near(model[0]) else 1])  # noqa: E731
    parts = {"within": numbers([[0.0, 1.0]]), "beyond": numbers([[1.2, 0.5]] * 3)}
    for starts in (STARTS, dict(reversed(STARTS.items()))):
        made = tune_modules(model, looks, numbers([[0.0, 0.0]]), parts, parts, starts=starts, steps=4, rate=1e-9)
        assert made.start == "near"


def test_the_penalty_weighs_alike_whatever_has_a_set(monkeypatch):
    """Sets of heads that are alike learn what one set does."""
    monkeypatch.setattr(halving, "PENALTY", 0.3)
    x = torch.ones(1, 2, TOKENS, WIDTH, dtype=torch.float64)
    model = torch.nn.ModuleList([RotaryEmbedding(TRUE) for _ in range(2)])
    wanted = rfrope.rotate(x, torch.arange(TOKENS), 0.9 * TRUE)

    def loss(_):
        return sum((one(x, x)[1] - wanted).square().mean() for one in model)

    ropes = (rfrope.Rope(one) for one in (TRUE, np.stack([TRUE] * 2)[..., None]))
    one, several = (
        tune_modules(model, loss, [0], {"all": [0]}, {"all": [0]}, steps=10, starts={"here": rope}).rope.frequencies
        for rope in ropes
    )
    assert np.abs(one / TRUE - 1.0).max() > 0.01
    for found in several[..., 0]:
        np.testing.assert_allclose(found, one, rtol=1e-5)


def test_one_set_is_one_parameter():
    model, loss = downhill()

    def counts(x):
        assert len({id(one.log_factors) for one in model}) == 1
        return loss(x)

    assert isinstance(descended((model, counts), starts=STARTS, steps=2).rope, rfrope.Rope)


def test_what_learns_takes_the_width_and_the_layout_that_the_model_gives():
    """A start need not say how wide heads are, nor may it say where they lie."""
    x = torch.randn(1, TOKENS, 2, WIDTH + 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    model = torch.nn.ModuleList([RotaryEmbedding(rfrope.Rope(TRUE, head_dim=WIDTH + 4), layout="bthd")])
    wanted = rfrope.rotate(x.transpose(1, 2), torch.arange(TOKENS), 0.9 * TRUE).transpose(1, 2)

    def loss(_):
        return (model[0](x, x)[0] - wanted).square().mean()

    found = tune_modules(model, loss, [0], {"all": [0]}, {"all": [0]}, starts={"plain": TRUE}, steps=60, rate=0.02)
    np.testing.assert_allclose(found.rope.frequencies[:2], 0.9 * TRUE[:2], rtol=0.01)


NEAR = STARTS["near"]
LOUD = rfrope.Rope(NEAR.frequencies, attention_factor=2.0)
BAD = [
    ({"model": 3}, TypeError, r"model is 3; expected a torch\.nn\.Module"),
    ({"model": torch.nn.Linear(1, 1)}, ValueError, "Linear, has no rfrope.*RotaryEmbedding"),
    ({"loss": 1.0}, TypeError, r"loss is 1\.0; expected a function"),
    ({"loss": lambda x: 1.0}, TypeError, r"loss gave 1\.0; expected a tensor of floats"),
    ({"loss": lambda x: x.mean()}, ValueError, "loss has no gradient for the learned parameters"),
    ({"learning": []}, ValueError, "learning has no batches"),
    ({"held_out": {"within": []}}, ValueError, "held_out has no documents"),
    ({"validation": [1]}, TypeError, r"validation is \[1\]; expected a dict"),
    ({"starts": STARTS | {"wide": TRUE[:2]}}, ValueError, "starts have Ropes of different shapes"),
    ({"starts": NEAR}, TypeError, r"starts is Rope\(.*; expected a dict of Ropes"),
    ({"starts": {"learned": NEAR}}, ValueError, "starts has 'learned', the name of the learned rotation"),
    ({"starts": {"as it is": STARTS["far"]}}, ValueError, r"starts\['as it is'\] differs from the model's own Rope"),
    ({"starts": {"as it is": LOUD}}, ValueError, r"starts\['as it is'\] differs from the model's own Rope"),
    ({"learnable": "phases"}, ValueError, "learnable is 'phases'; "),
    ({"learnable": ()}, ValueError, "learnable is empty"),
    ({"steps": 0}, ValueError, "steps is 0; expected"),
    ({"rate": 0.0}, ValueError, r"rate is 0\.0; expected"),
    ({"race": 1.5}, ValueError, r"race is 1\.5; expected"),
]


@pytest.mark.parametrize(("options", "kind", "message"), BAD)
def test_bad_input_is_named(options, kind, message):
    names = ("model", "loss", "learning", "validation", "held_out")
    with pytest.raises(kind, match=message):
        tune_modules(**dict(zip(names, problem(), strict=True)) | {"steps": 2} | options)


def test_a_model_whose_layers_differ_needs_starts():
    model, *rest = problem()
    model.rotaries[1] = RotaryEmbedding(STARTS["far"])
    with pytest.raises(ValueError, match="model has Ropes that differ by layer; expected starts"):
        tuned((model, *rest), steps=2)
    found = tuned((model, *rest), steps=2, starts=STARTS)
    assert found.mean("as it is", "beyond")[0] not in (found.mean("near", "beyond")[0], found.mean("far", "beyond")[0])
