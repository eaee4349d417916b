"""The experiments on polar rotation: arms are what they say, answers are determined, choices do not see the test."""

from __future__ import annotations

import csv
import math
import pathlib
import re

import numpy as np
import packages
import pytest
from campaign import campaign
from conftest import library
from scipy import stats

import rfrope

FOLDER = pathlib.Path(__file__).parents[1]
torch = library("torch").module
TOKENS = 150  # more than are trained on


@pytest.fixture(autouse=True)
def script(monkeypatch):
    yield from packages.experiment_scripts(monkeypatch, torch)


NAMES = re.findall(r'^    "(.+?)": Arm', (FOLDER / "arms.py").read_text("utf-8"), re.MULTILINE)
NAMES += [f"polar, {one} ladder{more}" for one in ("gaussian", "cauchy") for more in ("", ", iid", ", no bias")]


def scores_of_rope(q, k, omega, lag):
    half = q.shape[-1] // 2
    a, b = (torch.complex(x[..., :half], x[..., half:]) for x in (q, k))
    turns = torch.polar(torch.ones_like(lag[..., None] * omega), lag[..., None] * omega)
    return (a.conj()[:, :, None] * b[:, None] * turns).sum(-1).real


def scores_of_polar(q, k, omega, lag, delta):
    m, n = (torch.nn.functional.softplus(x) for x in (q, k))
    return (m[:, :, None] * n[:, None] * torch.cos(lag[..., None] * omega + delta)).sum(-1)


def scores_of_fourier(q, k, turn, head):
    """As FoPE has it: cos and sin of a block are sums over the waves that are kept."""

    def turned(x):
        half, result = x.shape[-1] // 2, x.clone()
        for t in range(x.shape[1]):
            for i in range(half):
                cos, sin = 1.0, 0.0
                if i < len(turn.kept):
                    u = [t * float(omega) for omega in turn.kept]
                    cos, sin = (
                        sum(f(one) * float(turn.coefficients[which, head, j, i]) for j, one in enumerate(u))
                        for which, f in enumerate((math.cos, math.sin))
                    )
                a, b = x[:, t, i], x[:, t, half + i]
                result[:, t, i], result[:, t, half + i] = a * cos - b * sin, b * cos + a * sin
        return result

    return turned(q) @ turned(k).mT


def by_hand(arm, layer, x):
    """What a layer makes of x, head by head in float64, from what its arm says."""
    lag = torch.arange(x.shape[1])[None].double() - torch.arange(x.shape[1])[:, None]
    found = []
    for head in range(arm.heads):
        q, k, v = (one[:, head].double() for one in layer.contents(x))
        turn, scale = layer.rotary, q.shape[-1] ** -0.5
        omega = None if turn is None or arm.fourier else torch.tensor(np.asarray(turn.rope.frequencies))[head, :, 0]
        if arm.polar:
            delta = turn.phases[head].double() if arm.bias else torch.zeros(len(omega))
            scores = scores_of_polar(q, k, omega, lag, delta)
            scale *= 1.0 if arm.published_scale else 1.0 / 0.6531
        elif arm.fourier:
            scores = scores_of_fourier(q, k, turn, head)
        else:
            scores = q @ k.mT if omega is None else scores_of_rope(q, k, omega, lag)
        scores = scores * scale
        if arm.slopes:
            scores = scores - arm.slopes[head] * lag.abs()
        window = (arm.windows * 2)[head] if arm.windows else None
        hidden = (lag > 0) | (lag < 1 - window if window else lag > 0)
        found.append(torch.softmax(scores.masked_fill(hidden, -math.inf), -1) @ v)
    x = x + layer.out(torch.cat(found, -1).float())
    return x + layer.down(torch.nn.functional.gelu(layer.up(layer.second(x))))


@pytest.fixture
def arms(script, monkeypatch):
    """Return the module experiments/arms.py, whose sets are drawn where they would be optimised, which takes long."""
    module = script("arms")
    made = module.frequencies
    monkeypatch.setattr(module, "frequencies", lambda text, n, _, seed: made(text, n, "iid", seed or (0, 0)))
    return module


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_an_arm_attends_as_it_says_beyond_the_trained_length_too(arms, name):
    arm = arms.ARMS[name]
    layer = arms.model(arm, 3).layers[1]
    if arm.polar and arm.bias:
        layer.rotary.phases.uniform_(-6.0, 0.0, generator=torch.Generator().manual_seed(5))
    tokens = 20 if arm.fourier else TOKENS
    x = torch.randn((2, tokens, 64), generator=torch.Generator().manual_seed(4))
    layer.contents = lambda y, plain=layer.contents: tuple(3.0 * one for one in plain(y))  # scores that matter
    torch.testing.assert_close(layer(x), by_hand(arm, layer, x), rtol=1e-4, atol=1e-4)


def test_all_arms_start_from_the_same_weights(arms):
    plain = arms.model(arms.ARMS["none"], 3).state_dict()
    for name in NAMES:
        arm = arms.ARMS[name]
        state = arms.model(arm, 3).state_dict()
        assert all(torch.equal(plain[key], state[key]) for key in plain), name
        extra = {key.split(".", 2)[2] for key in state.keys() - plain.keys()}
        assert extra == ({"rotary.phases"} if arm.polar and arm.bias else {"wider.weight"} if arm.wider > 1 else set())


def test_biases_widths_and_frequencies_of_arms_are_what_they_say(arms):
    inf = math.inf
    wanted = [[0.0, -inf, -inf, -inf], [-0.5, 0.0, -inf, -inf], [-inf, -0.5, 0.0, -inf], [-inf, -inf, -0.5, 0.0]]
    assert arms.seen(4, (0.5,), (2,)).tolist() == [wanted]
    both = arms.seen(4, (0.0,), (2, None))
    assert both[1].tolist() == np.where(np.tri(4) > 0, 0.0, -inf).tolist()
    assert (both[0] == 0.0).sum(1).tolist() == [1, 2, 2, 2]
    assert arms.ARMS["ALiBi"].slopes == (1 / 16, 1 / 256)
    scales = [rfrope.kernels.parse(text).scale for text in arms.ARMS["polar, gaussian ladder, 4 heads"].sets]
    np.testing.assert_allclose(scales, [4.0, 4.0 * 16 ** (1 / 3), 4.0 * 16 ** (2 / 3), 64.0], atol=1e-6)
    assert [rfrope.kernels.parse(text).nu for text in arms.ARMS["polar, matern ladder"].sets] == [1.5, 1.5]
    wide = arms.model(arms.ARMS["RoPE, twice the width"], 0).layers[0]
    assert [one.shape[-1] for one in wide.contents(torch.zeros(1, 3, 64))] == [64, 64, 32]
    for name, n in (("RoPE", 16), ("RoPE, twice the width", 32), ("PoPE", 32), ("RoPE, 8 heads", 4)):
        found = np.asarray(arms.ARMS[name].turn(0).rope.frequencies)[..., 0]
        np.testing.assert_allclose(found, np.tile(10000.0 ** (-np.arange(n) / n), (len(found), 1)), rtol=1e-12)
    for name in ("RoPE with window, and none", "PoPE and none", "polar, gaussian and constant"):
        assert np.asarray(arms.ARMS[name].turn(0).rope.frequencies).any((1, 2)).tolist() == [True, False]
    waves = arms.Fourier(4000, 32, 0)
    np.testing.assert_allclose(waves.kept, 10000.0 ** (-np.arange(6) / 16))  # the seventh is longer than 128
    assert waves.still == 10
    around = (waves.coefficients - torch.eye(6)).numpy().ravel() * math.sqrt(6.0) / 0.3
    assert abs(around.mean()) < 5.0 / math.sqrt(around.size)
    assert abs(around.var() - 1.0) < 5.0 * math.sqrt(2.0 / around.size)


def test_drawn_sets_depend_on_the_seed_and_differ_between_heads(arms):
    turn = arms.ARMS["polar, gaussian ladder, iid"].turn
    sets, again, other = (np.asarray(turn(seed).rope.frequencies)[..., 0] for seed in (1, 1, 2))
    assert sets.shape == (2, 32)
    assert np.array_equal(again, sets)
    assert not np.array_equal(other, sets)
    assert np.abs(np.sort(np.abs(sets[0])) * 4.0 - np.sort(np.abs(sets[1])) * 64.0).max() > 0.01  # draws of their own


@torch.no_grad()
def test_the_recovered_kernel_is_the_score_at_equal_contents(arms):
    model, generator = arms.model(arms.ARMS["polar, cauchy ladder"], 1), torch.Generator().manual_seed(0)
    tokens = torch.randint(256, (3, 40), generator=generator)
    before = arms.recovered(model, tokens)
    for layer in model.layers:
        layer.rotary.phases.uniform_(-9.0, 3.0, generator=generator)
        layer.qkv.weight.mul_(4.0)
    after = arms.recovered(model, tokens)
    assert len(before) == len(after) == 4
    layer = model.layers[0]
    q, k, _ = layer.contents(model.embedding(tokens))
    m, n = (torch.nn.functional.softplus(x).double().mean((0, 2))[None, :, None] for x in (q, k))
    same = [(one.exp() - 1.0).log().expand(1, 2, 65, 32) for one in (m, n)]  # softplus of these is m and n
    turned = layer.rotary(*same)
    scores = (turned[0][:, :, -1:] @ turned[1].mT)[0, :, 0] / (m * n).sum(-1)[0]
    for head in range(2):
        for i, lag in enumerate(arms.LAGS):
            if lag < 65:
                assert after[head]["kernel"][i] == pytest.approx(float(scores[head, 64 - lag]), abs=1e-6)
        np.testing.assert_allclose(after[head]["weights"], (m * n)[0, head, 0], rtol=1e-6)
        assert after[head]["bias"].min() == pytest.approx(-math.tau)
        assert after[head]["bias"].max() == 0.0
        assert before[head]["kernel"][0] == 1.0
        assert not before[head]["bias"].any()
    columns = arms.written(before, after)
    assert list(columns) == ["kernels", "first kernels", "bias", "blocks", "magnitudes"]
    assert [float(one) for one in columns["kernels"].split("; ")[3].split()] == pytest.approx(
        after[3]["kernel"].tolist(), abs=1e-4
    )
    moved = np.log(after[2]["weights"] / before[2]["weights"])
    assert float(columns["magnitudes"].split("; ")[2]) == pytest.approx(np.sqrt(np.mean(moved**2)), abs=1e-4)
    assert all(0.0 < float(one) < 1.0 for one in columns["blocks"].split("; "))
    assert arms.recovered(arms.model(arms.ARMS["RoPE"], 1), tokens) == []
    assert arms.written([], []) == {}


# -- recall ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["NEAR", "FAR"])
def test_answers_are_determined_and_the_text_stays(script, where):
    recall, rng = script("train_recall"), np.random.default_rng(1)
    options = getattr(recall, where)
    length, farthest, values = {"NEAR": 128, "FAR": 2048}[where], 0, []
    for _ in range(20):
        text = rng.integers(recall.BASE, size=length + 1)
        tokens, targets, kinds = recall.plant(text, recall.NOTES, **options, rng=rng)
        assert tokens.shape == targets.shape == kinds.shape == (length,)
        plain = tokens < recall.BASE
        np.testing.assert_array_equal(tokens[plain], text[: plain.sum()])
        first, after, last = recall.BASE, recall.BASE + 128, recall.BASE + 128 + 16
        notes = {
            (token - first) // 8: (at, (token - first) % 8) for at, token in enumerate(tokens) if first <= token < after
        }
        assert len(notes) == 6
        assert max(at for at, _ in notes.values()) < options["first"]
        assert np.sum((tokens >= first) & (tokens < after)) == 6  # keys differ
        asks = np.flatnonzero(tokens >= after)
        assert len(asks) == 6 * options["asked"]
        assert tokens.max() < last  # answers are not read
        for at in asks:
            place, value = notes[tokens[at] - after]
            assert (targets[at], kinds[at]) == (last + value, at - place)
            values.append(value)
        assert options["longest"] >= kinds.max()
        farthest = max(farthest, kinds.max())
        others = np.setdiff1d(np.arange(length - 1), asks)
        np.testing.assert_array_equal(targets[others], tokens[others + 1])
        np.testing.assert_array_equal(kinds[others], np.where(plain[others + 1], 0, -1))
    assert farthest > 0.9 * options["longest"]
    assert set(values) == set(range(8))
    assert last + 8 == recall.TOKENS


@campaign  # text is looked for in all that is trained on
def test_readings_are_apart_from_training_and_do_not_change(script):
    recall, trained = script("train_recall"), script("trained")
    text, held = trained.apart(2048, 512)
    whole = text.numpy().astype(np.uint8).tobytes()
    for part in held:
        assert part.shape == (24, 2049)
        for one in part:
            document = one.numpy().astype(np.uint8).tobytes()
            assert np.mean([document[i : i + 64] in whole for i in range(0, 1985, 5)]) < 0.07
    assert not np.any(np.all(held[0].numpy()[:, None] == held[1].numpy()[None], -1))
    modules = trained.modules(0)
    for document in trained.split(512)[1]:  # which the trials read
        (name,) = (
            name for name, one in modules.items() if document.numpy().astype(np.uint8).tobytes() in one.tobytes()
        )
        for one in torch.cat(held):
            assert one.numpy().astype(np.uint8).tobytes() not in modules[name].tobytes()
    for task, documents in (("code", [one.numpy() for one in held]), ("chain", recall.chain()[1])):
        for part in range(2):
            near, far = recall.readings(task, part)
            assert (near[0].shape, far[0].shape) == ((96, 128), (24, 2048))
            plain = far[0][5].numpy() < recall.BASE
            np.testing.assert_array_equal(far[0][5].numpy()[plain], documents[part][5][: plain.sum()])
            plain = near[0][6].numpy() < recall.BASE
            np.testing.assert_array_equal(near[0][6].numpy()[plain], documents[part][1][1024 : 1024 + plain.sum()])
            answers = (far[2] > 0)[:, 128:].sum() / (far[2] >= 0)[:, 128:].sum()
            assert 0.10 < answers < 0.15  # "about one in eight"
    recall.readings.cache_clear()
    assert torch.equal(recall.readings("chain", 1)[1][0], far[0])


def test_the_chain_has_the_entropy_that_is_said(script):
    recall = script("train_recall")
    stream = recall.chain()[0].reshape(208, -1)
    table = np.random.default_rng(27).integers(8, size=(8, 8))
    decided = stream[:, 3:] == table[stream[:, 2:-1], stream[:, :-3]]
    likely = 0.9 + 0.1 / 8
    assert abs(decided.mean() - likely) < 5.0 * math.sqrt(likely * (1 - likely) / decided.size)
    shuffled = stream[:, 3:] == table[stream[:, :-3], stream[:, 2:-1]]
    assert shuffled.mean() < 0.5  # the order of the two matters


def test_means_are_over_what_is_foretold(script):
    recall = script("train_recall")
    losses = np.arange(256.0)[None] * np.ones((2, 1))
    kinds = np.full((2, 256), -1)
    kinds[:, 10], kinds[:, 20], kinds[:, 200], kinds[:, 210], kinds[:, 220] = 0, 7, 0, 100, 130
    assert recall.means(losses, kinds, False) == {
        "within": np.mean([10, 20, 200, 210, 220]),
        "text within": 105.0,
        "recall within": np.mean([20, 210, 220]),
    }
    assert recall.means(losses, kinds, True) == {"beyond": 210.0, "text beyond": 200.0, "recall beyond": 220.0}


# -- choices and statistics --------------------------------------------------------------------------------------------


def rows_of(path):
    return list(csv.DictReader(path.read_text("utf-8").splitlines()))


def test_rates_and_arms_are_chosen_on_validation_and_runs_go_on(script, tmp_path):
    tuned, done = script("tuned"), []
    best = {"RoPE": 0.008, "PoPE": 0.002, "none, polar contents": 0.1}  # the last is beyond what is tried

    def work(run):
        done.append(run)
        name, rate, seed = run
        row = {
            "validation within": f"{abs(math.log(rate / best[name])) + 0.001 * (seed != 100)}",
            "validation beyond": f"{len(name) + (-9.0 if rate != best[name] else 0.0)}",  # other rates would be lured
        }
        return row if seed >= 100 else row | {"beyond": "-5.0" if name == "PoPE" else "1.0", "document 0": "1.0"}

    call = (tmp_path / "runs.csv", list(best), 2, work, 0)
    rows = tuned.tune(*call)
    tried = {name: sorted(rate for own, rate, seed in done if own == name and seed == 100) for name in best}
    assert tried == {
        "RoPE": [0.004, 0.008, 0.016],
        "PoPE": [0.001, 0.002, 0.004, 0.008, 0.016],
        "none, polar contents": [0.008, 0.016, 0.032, 0.064],
    }
    assert len(done) == len(set(done)) == 12 + 3 * (1 + 2)
    assert done[:2] == [("RoPE", rate, 100) for rate in (0.008, 0.016)]
    assert {(row["encoding"], float(row["rate"])) for row in rows} == set(
        (best | {"none, polar contents": 0.064}).items()
    )
    assert sorted({int(row["seed"]) for row in rows}) == [0, 1, 100, 101]
    assert tuned.best_arm(rows, ["RoPE", "PoPE"]) == "RoPE"  # the lower on validation, first of equals
    whole, rows = (tmp_path / "runs.csv").read_text("utf-8"), tuned.tune(*call)
    assert len(done) == 21
    lines = whole.splitlines(keepends=True)
    (tmp_path / "runs.csv").write_text("".join(lines[:4] + lines[6:-2]), "utf-8")
    tuned.tune(*call)
    assert len(done) == 21 + 2 + 2
    assert tuned.tune(*call) == rows
    assert sorted(rows_of(tmp_path / "runs.csv"), key=str) == sorted(csv.DictReader(lines), key=str)


def test_the_primary_contrast_is_of_the_arms_that_validation_chose(script):
    tuned, rng, rows = script("tuned"), np.random.default_rng(0), []
    names = ("RoPE", "PoPE", "none, polar contents", "polar, log_uniform")
    level = dict(zip(names, ((2.0, 3.0), (2.5, 1.0), (2.2, 2.0), (1.9, 2.5)), strict=True))
    for name, (validation, test) in level.items():
        for seed in (100, 101, 0, 1, 2):
            row = {"encoding": name, "rate": "0.004", "seed": str(seed), "validation beyond": f"{validation}"}
            values = test + 0.1 * rng.standard_normal(4)
            test_columns = {"beyond": f"{values.mean()}"} | {f"document {i}": f"{one}" for i, one in enumerate(values)}
            rows.append(row | (test_columns if seed < 100 else {"beyond": "99.0", "document 0": "99.0"}))
    table, primary = tuned.compare(rows, ["beyond"])
    assert [row["chosen"] for row in table] == ["best baseline", "", "", "best polar"]
    assert primary.mean == pytest.approx(-0.5, abs=0.15)  # log_uniform less RoPE, though PoPE is better in the test
    assert [row["arm"] for row in table] == list(level)
    assert table[0]["beyond, less RoPE"] == ""
    assert float(table[1]["beyond, less RoPE"].split()[0]) == pytest.approx(-2.0, abs=0.15)
    assert tuned.compare([row for row in rows if row["encoding"] in ("RoPE", "PoPE")], ["beyond"])[1] is None


def test_planned_comparisons_are_paired_by_seed_and_corrected_together(script):
    tuned, rng = script("tuned"), np.random.default_rng(1)
    values = {name: rng.standard_normal(5) + at for name, at in (("a", 0.0), ("b", 1.0), ("c", 4.0))}
    rows = [
        {"encoding": name, "seed": str(seed), "far": f"{value}"}
        for name in values
        for seed, value in [(100, 1e6), *reversed(list(enumerate(values[name])))]
    ]
    lines = tuned.planned(rows, "far", [("a", "b"), ("a", "c"), ("a", "not run")])
    known = [stats.ttest_rel(values["a"], values[name]).pvalue for name in "bc"]
    assert [line.split(",")[0] for line in lines] == ["a less b", "a less c"]
    for line, name, p in zip(lines, "bc", tuned.holm(known), strict=True):
        assert f"far: {np.mean(values['a'] - values[name]):+.4f} ± " in line
        assert line.endswith(f"corrected p = {p:.2g}")


def test_errors_over_seeds_are_those_of_students_test(script):
    tuned, d = script("tuned"), np.random.default_rng(3).standard_normal(5) + 0.7
    found, known = tuned.contrast(d), stats.ttest_1samp(d, 0.0)
    assert found.p == pytest.approx(known.pvalue)
    assert found.interval == pytest.approx(tuple(known.confidence_interval()))
    assert found.mean == d.mean()
    same = tuned.contrast(np.tile(d[:, None], 24))  # texts that are all alike bring nothing
    assert (same.mean, same.error, same.freedom) == pytest.approx((found.mean, found.error, 4.0))


def test_errors_over_seeds_and_texts_are_those_of_both(script):
    tuned, rng, squares, inside = script("tuned"), np.random.default_rng(5), [], []
    seeds, texts, spread = 5, 24, (0.3, 0.9, 0.5)  # of seeds, of texts, of the rest
    truth = spread[0] ** 2 / seeds + spread[1] ** 2 / texts + spread[2] ** 2 / (seeds * texts)
    alone = []
    for _ in range(4000):
        a, b, e = (
            one * rng.standard_normal(shape)
            for one, shape in zip(spread, ((seeds, 1), texts, (seeds, texts)), strict=True)
        )
        found = tuned.contrast(a + b + e)
        squares.append(found.error**2)
        inside.append(found.interval[0] < 0.0 < found.interval[1])
        alone.append(tuned.contrast((a + b + e).mean(1)).error ** 2)
    error = np.std(squares, ddof=1) / math.sqrt(len(squares))
    assert abs(np.mean(squares) - truth) < 5.0 * error
    assert abs(np.mean(alone) - truth) > 10.0 * error  # seeds alone do not see that texts are a sample
    assert 0.93 < np.mean(inside) < 0.98


def test_chances_are_corrected_for_their_number(script):
    holm = script("tuned").holm
    np.testing.assert_allclose(holm([0.01, 0.04, 0.03, 0.005]), [0.03, 0.06, 0.06, 0.02])  # Holm (1979), by hand
    np.testing.assert_allclose(holm([0.5, 0.9]), [1.0, 1.0])
    assert holm([]).shape == (0,)


# -- tables ------------------------------------------------------------------------------------------------------------


def test_the_kernels_of_trained_heads_are_averaged_over_layers(script):
    tuned, arms = script("tuned"), script("arms")

    def heads(layers):  # first layer and second, two heads each, at the twelve lags
        lags = range(len(arms.LAGS))
        return "; ".join(" ".join(f"{value + 0.01 * lag:.4f}" for lag in lags) for layer in layers for value in layer)

    def row(seed, trained):
        row = {"encoding": "PoPE", "seed": str(seed), "first kernels": heads([(0.5, 0.1), (0.7, 0.3)])}
        row |= {"kernels": heads(trained), "bias": "0.1; 0.2; 0.3; 0.6"}
        return row | {"blocks": "1; 1; 0.5; 1", "magnitudes": "0; 0; 0; 2"}

    rows = [row(100, [(9, 9), (9, 9)]), row(0, [(0.2, 0.1), (0.4, 0.1)]), row(1, [(0.4, 0.1), (0.6, 0.1)])]
    rows.append({"encoding": "RoPE", "seed": "0", "kernels": ""})
    first, second = tuned.trained_kernels(rows)
    assert (first["arm"], first["head"], second["head"]) == ("PoPE", "0", "1")
    assert first["kernel at 1"] == "0.61, then 0.41 ± 0.10"
    assert first["kernel at 128"] == "0.68, then 0.48 ± 0.10", "the eighth lag after 0"
    assert second["kernel at 1"] == "0.21, then 0.11 ± 0.00"
    assert (first["bias"], first["blocks"], first["magnitudes"]) == ("0.20 ± 0.00", "0.75 ± 0.00", "0.00 ± 0.00")
    assert (second["bias"], second["blocks"], second["magnitudes"]) == ("0.40 ± 0.00", "1.00 ± 0.00", "1.00 ± 0.00")
