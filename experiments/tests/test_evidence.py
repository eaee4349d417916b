"""The experiments on what a kernel buys: data are as the protocol says, and no choice sees the test."""

from __future__ import annotations

import csv
import dataclasses
import importlib.util
import math
import re
from xml.etree import ElementTree

import numpy as np
import packages
import pytest
from campaign import campaign
from conftest import library
from scipy import stats
from scipy.spatial import cKDTree

torch = library("torch").module
NAMES = ("glyphs", "series", "chorales", "shapes")


@pytest.fixture(autouse=True)
def script(monkeypatch):
    yield from packages.experiment_scripts(monkeypatch, torch)


def rows_of(path):
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def arms_of(made):
    return made.arms("sum") if made.__name__.endswith("series") else made.arms()


# -- series ------------------------------------------------------------------------------------------------------------

BY_HAND = {
    "matern": lambda x: (1.0 + math.sqrt(3.0) * abs(x) / 3.0) * np.exp(-math.sqrt(3.0) * abs(x) / 3.0),
    "gaussian": lambda x: np.exp(-(x**2) / 18.0),
    "sum": lambda x: (
        0.5 * np.exp(-(x**2) / 288.0) + 0.5 * np.exp(-((0.08 * x) ** 2) / 2.0) * np.cos(math.tau * x / 5.0)
    ),
}


def posterior(data, at, values):
    """Mean and variance of the last 16 values of a series, given the first 48, by a formula of covariance."""
    matrix = BY_HAND[data](at[:, None] - at[None])
    seen, across = matrix[:48, :48] + 0.01 * np.eye(48), matrix[:48, 48:]
    weights = np.linalg.solve(seen, across)
    return values[..., :48] @ weights, 1.0 - np.sum(across * weights, 0)


@pytest.mark.parametrize("data", BY_HAND)
def test_series_are_draws_of_their_covariance(script, data):
    made = script("evidence_series")
    at, values = made.drawn(data, "train", np.random.default_rng(5), 200)
    assert at.shape == values.shape == (200, 64)
    assert 0.0 <= at.min() < at.max() < 48.0
    np.testing.assert_allclose(
        made.correlations(made.COVARIANCES[data], at[0], at[0])[0], BY_HAND[data](at[0] - at[0, 0]), atol=1e-6
    )
    squares = 0.0
    for one, own in zip(at, values, strict=True):
        matrix = BY_HAND[data](one[:48, None] - one[None, :48]) + 0.01 * np.eye(48)
        squares += own[:48] @ np.linalg.solve(matrix, own[:48])
    assert 1e-6 < stats.chi2.cdf(squares, 200 * 48) < 1.0 - 1e-6


@pytest.mark.parametrize("data", BY_HAND)
def test_the_posterior_mean_has_the_error_that_is_the_floor(script, data):
    made, theory = script("evidence_series"), script("evidence_theory")
    at, values = made.drawn(data, "train", np.random.default_rng(6), 300)
    found = [posterior(data, *one) for one in zip(at, values, strict=True)]
    variances = np.stack([one[1] for one in found])
    assert theory.floor(made.COVARIANCES[data], at) == pytest.approx(100.0 * variances.mean(), rel=1e-4)
    off = np.mean((values[:, 48:] - np.stack([one[0] for one in found])) ** 2, 1) - variances.mean(1)
    assert abs(off.mean()) < 6.0 * off.std() / math.sqrt(300.0)


def test_the_expected_error_of_sums(script):
    made, theory = script("evidence_series"), script("evidence_theory")
    text, at = made.COVARIANCES["sum"], made.times(np.random.default_rng(3), 4)
    none = torch.zeros(4, 16, 48, dtype=torch.float64)
    assert float(theory.expected(none, text, at)) == 100.0
    ideal = np.stack([posterior("sum", one, np.eye(48))[0].T for one in at])  # of unit values: the weights themselves
    found = float(theory.expected(torch.from_numpy(ideal), text, at))
    assert found == pytest.approx(theory.floor(text, at), abs=1e-3)
    assert found < float(theory.expected(torch.from_numpy(ideal + 0.01), text, at))


def test_waves_of_the_covariance_are_predicted_to_be_better_than_none(script):
    made, theory = script("evidence_series"), script("evidence_theory")
    text, at = made.COVARIANCES["matern"], made.times(np.random.default_rng(2), 32)
    least = theory.floor(text, at)
    alike = theory.predicted(np.zeros((3, 1)), text, 60)
    weights = torch.full((32, 16, 48), 1.0 / 48.0, dtype=torch.float64)
    best = min(float(theory.expected(scale * weights, text, at)) for scale in np.linspace(0.5, 1.2, 71))
    assert alike == pytest.approx(best, abs=0.5)  # no waves: every weight is alike, times the best factor
    assert least < theory.predicted(np.linspace(0.0, 1.5, 12)[:, None], text, 60) < 0.5 * alike


def test_the_likelihood_is_that_of_a_normal_law(script):
    made = script("evidence_series")
    at = np.asarray([[0.0, 1.0, 3.5]])
    values, noise, variance = np.asarray([[0.3, -1.0, 0.4]]), 0.2, 1.7
    matrix = variance * BY_HAND["matern"](at[0][:, None] - at[0]) + noise**2 * np.eye(3)
    wanted = -stats.multivariate_normal(cov=matrix).logpdf(values[0]) / 3.0
    assert made.surprise(made.COVARIANCES["matern"], noise, variance, at, values) == pytest.approx(wanted)


@campaign
@pytest.mark.parametrize("data", ["matern", "sum"])
def test_the_likeliest_kernel_is_near_the_true_one(script, data):
    made = script("evidence_series")
    lags, text = np.linspace(0.0, 20.0, 81), made.likeliest(data)
    assert "spectral" in text or data == "matern"
    assert np.abs(made.correlations(text, lags, lags[:1])[:, 0] - BY_HAND[data](lags)).max() < 0.12


def test_what_is_to_be_predicted_is_not_read(script):
    shared, made = script("evidence"), script("evidence_series")
    tokens, positions, targets = made.batch(*made.drawn("sum", "train", np.random.default_rng(1), 2))
    assert tokens[:, 48:].tolist() == [[[0.0, 0.0, 1.0]] * 16] * 2
    torch.testing.assert_close(tokens[:, :48, 0], targets[:, :48])
    assert tokens[0, :48, 1:].tolist() == [[1.0, 0.0]] * 48
    model = shared.Model(made.task("sum"), made.arms("sum")["RoPE"], "base 10", 0)
    with torch.no_grad():
        plain = model(tokens, positions)
        moved = positions.clone()
        moved[:, 50] += 7.0
        tokens[:, 51, 0] = 9.0
        found = model(tokens, moved)
    others = [i for i in range(64) if i not in (50, 51)]
    torch.testing.assert_close(found[:, others], plain[:, others])
    assert not torch.allclose(found[:, 50], plain[:, 50])
    assert made.squared(plain, plain[..., 0] + 0.5).tolist() == pytest.approx([25.0, 25.0])


# -- glyphs ------------------------------------------------------------------------------------------------------------


def test_no_style_is_in_two_parts_and_no_family_is_missing(script):
    made = script("evidence_glyphs")
    parts = {part: made.fonts(part) for part in ("train", "validation", "test")}
    every = [one for part in parts.values() for one in part]
    assert len(set(every)) == len(every) == 16
    for part, fonts in parts.items():
        assert {name for name, _ in fonts} == set(made.FAMILIES), part
        assert len(fonts) == (8 if part == "train" else 4)
        assert {made.FAMILIES[name].index(style) % 4 for name, style in fonts} == {0, 1, 2, 3}, part


def test_a_picture_is_one_at_every_resolution(script):
    made = script("evidence_glyphs")
    maps = made.jitters(np.random.default_rng(4), 4 * 26)
    large, small = (made.rendered("test", side, maps) for side in (96, 32))
    assert large.shape == (104, 1, 96, 96)
    apart = torch.nn.functional.avg_pool2d(large, 3) - small
    assert float(apart.abs().mean()) < 0.01
    assert 0.05 < float(small.mean()) < 0.4
    plain = np.zeros((104, 2, 3))
    plain[:, 0, 0] = plain[:, 1, 1] = 1.0
    still = made.rendered("test", 96, plain)
    ink = torch.from_numpy(made.masters("test")).float().flatten(0, 1)[:, None] / 255.0
    torch.testing.assert_close(still, torch.nn.functional.avg_pool2d(ink, 2), atol=0.2, rtol=0.0)
    plain[:, 0, 2] = 0.25  # what is read lies to the right of where it is put: the picture moves to the left
    places = torch.arange(96.0)
    columns = [(one.sum((1, 2)) @ places) / one.sum((1, 2, 3)) for one in (made.rendered("test", 96, plain), still)]
    assert float((columns[0] - columns[1]).mean()) == pytest.approx(-12.0, abs=1.0)


def test_patches_are_in_their_places(script):
    made = script("evidence_glyphs")
    cut, places, kinds = made.pictures("validation", 64)
    assert (cut.shape, places.shape) == ((4 * 26 * 3, 64, 64), (64, 2))
    assert kinds[:7].tolist() == [0, 0, 0, 1, 1, 1, 2]
    maps = made.jitters(np.random.default_rng(1), len(kinds))
    whole = made.rendered("validation", 64, maps)[5, 0]
    torch.testing.assert_close(cut[5, 8 * 2 + 3], whole[16:24, 24:32].flatten())
    np.testing.assert_allclose(made.positions(32)[:6], [[0, 0], [0, 1], [0, 2], [0, 3], [1, 0], [1, 1]])
    np.testing.assert_allclose(places[8 * 2 + 3], [2.5 / 2 - 0.5, 3.5 / 2 - 0.5])  # half as far, about the same middle


# -- shapes ------------------------------------------------------------------------------------------------------------


def moebius(x, y, z):
    """The band turns by half a turn where its middle has gone all around."""
    half = np.mod(np.arctan2(y, x), math.tau) / 2.0
    return (np.hypot(x, y) - 1.0) * np.sin(half) - z * np.cos(half)


def test_points_lie_on_their_surfaces_evenly(script):
    made, rng = script("evidence_shapes"), np.random.default_rng(2)
    n = 20000
    found = {name: np.stack(shape(*rng.random((3, n))), -1) for name, shape in made.SHAPES.items()}
    x, y, z = (np.stack([one[:, i] for one in found.values()]) for i in range(3))
    at = {name: (x[i], y[i], z[i]) for i, name in enumerate(found)}
    zero = {
        "sphere": lambda x, y, z: x**2 + y**2 + z**2 - 1.0,
        "cube": lambda x, y, z: np.maximum(np.maximum(abs(x), abs(y)), abs(z)) - 1.0,
        "cylinder": lambda x, y, _: x**2 + y**2 - 1.0,
        "cone": lambda x, y, z: np.hypot(x, y) - z / 2.0,
        "torus": lambda x, y, z: (np.hypot(x, y) - 1.0) ** 2 + z**2 - 0.35**2,
        "disc": lambda x, y, z: z + np.maximum(x**2 + y**2, 1.0) - 1.0,
        "helix": lambda x, y, z: np.abs(x + 1j * y - np.exp(1j * math.pi * (z + 2.0))),
        "moebius": moebius,
        "trefoil": lambda x, y, z: ((x**2 + y**2 - 5.0) / 4.0) ** 2 + z**2 - 1.0,
        "saddle": lambda x, y, z: z - x**2 + y**2,
    }  # fmt: skip
    assert zero.keys() == found.keys()
    for name, equation in zero.items():
        assert np.abs(equation(*at[name])).max() < 1e-6, name
    bound = 6.0 / math.sqrt(n)
    for values, mean, spread in (
        (at["sphere"][2], 0.0, math.sqrt(1 / 3)),
        (at["disc"][0] ** 2 + at["disc"][1] ** 2, 0.5, math.sqrt(1 / 12)),
        ((at["cone"][2] / 2.0) ** 2, 0.5, math.sqrt(1 / 12)),
        (np.sum(found["cube"] ** 2, 1), 1.0 + 2.0 / 3.0, math.sqrt(2 * 4 / 45)),
    ):
        assert abs(values.mean() - mean) < bound * spread
    assert np.abs(found["cube"].mean(0)).max() < bound
    assert np.abs(found["sphere"].mean(0)).max() < bound


def test_clouds_have_their_size_and_know_neighbours_by_length_and_angle_alone(script):
    made, rng = script("evidence_shapes"), np.random.default_rng(3)
    kinds = np.repeat(np.arange(10), 3)
    points = made.clouds(rng, kinds)
    size = np.sqrt(np.mean(np.sum((points - points.mean(1, keepdims=True)) ** 2, -1), -1))
    np.testing.assert_allclose(size, math.sqrt(16.0 + 3 * 0.1**2), rtol=0.02)
    products = made.neighbours(points)
    distances = cKDTree(points[4]).query(points[4], 5)[0][:, 1:]
    np.testing.assert_allclose(products[4][:, [0, 4, 7, 9]], distances**2)
    turned = points[:, :, [1, 2, 0]] * [1.0, -1.0, -1.0] + [5.0, -3.0, 11.0]
    np.testing.assert_allclose(made.neighbours(turned), products, atol=1e-9)
    directions = made.clouds(rng, np.full(3000, 5)) @ np.asarray([0.0, 0.0, 1.0])  # of discs: the part of each along z
    along = 3.0 * np.mean(directions**2, 1) / 16.0
    assert abs(along.mean() - 1.0) < 6.0 * along.std() / math.sqrt(3000.0)
    assert along.std() > 0.3  # some lie flat, some stand
    read = made.readings("validation")
    for name, times in (("smaller", 0.7), ("larger", 1.4)):
        torch.testing.assert_close(read[name].tokens, times**2 * read["trained size"].tokens, rtol=1e-4, atol=1e-5)
    assert read["larger"].targets.bincount().tolist() == [30] * 10


# -- chorales ----------------------------------------------------------------------------------------------------------

SCORE = """<score-partwise><part><measure><attributes><divisions>2</divisions></attributes>
<note><pitch><step>C</step><octave>5</octave></pitch><duration>2</duration></note>
<note><pitch><step>F</step><alter>1</alter><octave>4</octave></pitch><duration>1</duration><tie type="start"/></note>
</measure><measure>
<note><pitch><step>F</step><alter>1</alter><octave>4</octave></pitch><duration>3</duration><tie type="stop"/></note>
<note><rest/><duration>2</duration></note>
<note><pitch><step>B</step><alter>-1</alter><octave>3</octave></pitch><duration>2</duration></note></measure></part>
<part><measure><attributes><divisions>4</divisions></attributes><forward><duration>2</duration></forward>
<note><pitch><step>A</step><octave>4</octave></pitch><duration>6</duration></note>
<backup><duration>8</duration></backup>
<note><pitch><step>E</step><octave>4</octave></pitch><duration>4</duration></note></measure></part>
<part><measure/></part><part><measure/></part></score-partwise>"""


def test_notes_of_a_score(script):
    made = script("evidence_chorales")
    wanted = [[0, 72, 1, 0], [0, 64, 1, 1], [0.5, 69, 1.5, 1], [1, 66, 2, 0], [4, 58, 1, 0]]
    np.testing.assert_allclose(made.notes_of(ElementTree.fromstring(SCORE)), wanted)
    assert made.notes_of(ElementTree.fromstring(SCORE.replace("<part><measure/></part>", ""))) is None


def test_tokens_of_notes_say_nothing_of_pitch(script):
    made = script("evidence_chorales")
    notes = made.notes_of(ElementTree.fromstring(SCORE))[None]
    tokens, places, steps = made.batch(notes)
    assert tokens.shape == (1, 4, made.INPUTS)
    assert (steps[0] - made.WIDEST).tolist() == [-8, 5, -3, -8]
    assert places[0].tolist() == [[0.0, 72.0], [0.0, 64.0], [1.0, 69.0], [2.0, 66.0]]
    # part 1, a quarter; next: part 1, three eighths, half a quarter later
    assert tokens[0, 1].nonzero()[:, 0].tolist() == [1, 4 + 2, 10 + 1, 10 + 4 + 3, 20 + 2]
    higher = notes + np.asarray([0.0, 5.0, 0.0, 0.0])
    moved = made.batch(higher)
    assert torch.equal(moved.tokens, tokens)
    assert torch.equal(moved.targets, steps)
    assert made.batch(notes * [1.0, 9.0, 1.0, 1.0]).targets.tolist() == [[0, 72, 9, 0]]
    logits = torch.zeros(1, 4, 73)
    assert made.surprise(logits, steps).tolist() == pytest.approx([math.log2(73.0)])


def test_chorales_on_one_melody_are_in_one_part(script):
    made = script("evidence_chorales")
    if importlib.util.find_spec("music21") is None:
        pytest.skip("music21 is not installed")
    parts = made.chorales()
    melodies = {part: {tuple(np.diff(one[one[:, 3] == 0, 1])[:8]) for one in notes} for part, notes in parts.items()}
    assert not melodies["train"] & melodies["test"]
    assert not melodies["validation"] & (melodies["test"] | melodies["train"])
    assert min(len(one) for one in parts["test"]) > 192
    assert min(len(notes) for notes in parts.values()) > 30
    assert all(35.0 < one[:, 1].min() < one[:, 1].max() < 90.0 for notes in parts.values() for one in notes)


# -- arms and choices --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_arms_differ_in_their_rotation_alone_which_sees_lags(script, name, monkeypatch):
    shared, made = script("evidence"), script(f"evidence_{name}")
    optimised = shared.fitted  # takes long
    for module in {shared, made} & {shared, script("evidence_series")}:
        monkeypatch.setattr(
            module, "fitted", lambda text, context, _, n, seed: optimised(text, context, "iid", n, seed)
        )
    task, axes = made.task(*["sum"] * (name == "series")), {"series": 1, "shapes": 3}.get(name, 2)
    generator, plain = torch.Generator().manual_seed(0), None
    tokens = torch.randn(2, 64, task.inputs, generator=generator)
    positions = 10.0 * torch.rand(2, 64, axes, generator=generator, dtype=torch.float64)
    positions = positions[..., 0] if axes == 1 else positions
    for title, arm in arms_of(made).items():
        if "likelihood" in title:
            continue  # takes long
        assert len(arm.settings) in (1, 3)
        setting = list(arm.settings)[-1]
        model = shared.Model(task, arm, setting, 3)
        state = model.state_dict()
        plain = plain or state  # of none
        assert all(torch.equal(plain[key], state[key]) for key in plain), title
        extra = {key.rsplit(".", 1)[1] for key in state.keys() - plain.keys()}
        wanted = [name for name, has in (("phases", arm.polar), ("frequencies", arm.learned)) if has]
        assert extra == set(wanted), title
        found = model(tokens, positions)
        torch.testing.assert_close(model(tokens, positions + 3.25), found, rtol=1e-3, atol=1e-4)
        if arm.settings[setting] is None:
            continue
        assert arm.settings[setting](24, 0).shape == (24, axes)
        assert not torch.allclose(model(tokens, 1.5 * positions), found, atol=1e-3), title
        assert arm.designed is not False or not re.search("gaussian|matern|scale|drawn", title)


def fake(which, short=False):
    """Rows whose best setting and rate are known, and worse on the test for those that are not chosen."""
    name, setting, rate, seed = which
    best = {"a": ("two", 0.016), "b": ("one", 0.002), "c": ("one", 0.004)}[name]
    off = abs(math.log2(rate / best[1])) + (setting != best[0])
    row = {"validation": f"{off + {'a': 0.1, 'b': 0.2, 'c': 0.3}[name]:.5f}"}
    if seed >= 100:
        return row
    base = {"a": 1.0, "b": 3.0, "c": 5.0}[name]
    items = base + np.asarray([0.0, 1.0, 2.0, 5.0]) + 0.1 * seed + 0.01 * np.arange(4) * (name == "a") * (-1) ** seed
    return row | {"all": f"{items.mean():.5f}", "items": " ".join(map(str, items))}


def test_settings_and_rates_are_those_of_validation(script, tmp_path):
    shared = script("evidence")
    path = tmp_path / "runs.csv"
    rows = shared.search(path, {"a": ["one", "two"], "b": ["one", "two"], "c": ["one"]}, 4, fake, 0)
    assert [tuple(row[key] for key in ("encoding", "setting", "rate", "seed")) for row in rows[:3]] == [
        ("a", "two", "0.016", "100"), ("b", "one", "0.002", "100"), ("c", "one", "0.004", "100"),
    ]  # fmt: skip
    assert [row["seed"] for row in rows[::3]] == ["100", "101", "0", "1", "2", "3"]
    every = rows_of(path)
    tried = {
        name: [(row["setting"], row["rate"]) for row in every if (row["encoding"], row["seed"]) == (name, "100")]
        for name in "abc"
    }
    assert {rate for setting, rate in tried["a"] if setting == "one"} == {"0.004", "0.008"}
    assert {rate for setting, rate in tried["a"] if setting == "two"} == {"0.004", "0.008", "0.016", "0.032"}
    assert ("one", "0.001") in tried["b"]
    assert ("one", "0.002") in tried["c"]
    arms = {name: shared.Arm({"": None}, designed=sort) for name, sort in (("a", True), ("b", False), ("c", None))}
    for some in (rows, shared.final(every)):
        assert shared.sides(some, arms) == ("a", "b")
        one = shared.primary(some, arms)
        assert one.mean == pytest.approx(-2.0)
        assert one.between(0.99)[0] < one.interval[0] < one.mean - one.error
    table = shared.compare(rows, arms, ["all"], ".2f")
    assert [line["chosen"] for line in table] == ["best designed", "best baseline", ""]
    assert table[0]["all"].startswith("3.15 ± 0.06")
    assert table[2]["less b (95 %)"] == "+2.00 (+2.00 to +2.00)"
    (line,) = shared.compared(rows, [("a", "c"), ("a", "unknown")])
    assert line.startswith("a less c: -4.0000 ± ")
    b_and_c = shared.compared(rows, [("a", "c"), ("a", "b")])
    ends = "{:+.4f} to {:+.4f}".format(*shared.primary(rows, arms).between(0.975))
    assert f", together {ends}, corrected p = " in b_and_c[1]


def test_a_difference_that_is_visible(script):
    tuned = script("tuned")
    one = tuned.Contrast(0.0, 2.0, 1e9)
    assert one.visible == pytest.approx(2.0 * (1.959964 + 0.841621), rel=1e-5)
    assert one.between(0.99) == pytest.approx((-5.15166, 5.15166), rel=1e-5)


def test_a_short_run_goes_on(script, tmp_path, monkeypatch, capsys):
    made, path = script("evidence_shapes"), tmp_path / "runs.csv"
    monkeypatch.setattr(script("evidence"), "RATES", (0.004,))
    monkeypatch.setattr(script("tuned"), "LEAST", 0.004)
    monkeypatch.setattr(script("tuned"), "MOST", 0.004)
    arms = ["axial", "gaussian, drawn, polar"]
    call = ["--output", str(path), "--arms", *arms, "--short", "--workers", "0", "--seeds"]
    assert made.main([*call, "1"]) == 0
    rows = rows_of(path)
    assert len(rows) == 2 * 3 + 2 * 2  # settings, and another seed apart and one that reads the test
    assert [len(row["items"].split()) for row in rows if row["seed"] == "0"] == [2, 2]
    assert not any(row["items"] for row in rows if row["seed"] != "0")
    assert made.main([*call, "2"]) == 0
    again = rows_of(path)
    assert all(row in again for row in rows)
    assert len(again) == 12
    assert "best designed less best baseline, over seeds and items: " in capsys.readouterr().out
    assert "best designed" in path.with_suffix(".inc").read_text("utf-8")
    assert path.with_suffix(".svg").exists()


def test_fresh_seeds_read_a_fresh_test_and_no_other_the_test_but_the_last(script):
    shared, made, shapes = (script(one) for one in ("evidence", "evidence_glyphs", "evidence_shapes"))
    for fresh, test in (
        (made.pictures("fresh", 32)[0], made.pictures("test", 32)[0]),
        (shapes.readings("fresh")["larger"].tokens, shapes.readings("test")["larger"].tokens),
    ):
        assert fresh.shape == test.shape
        assert not torch.equal(fresh, test)
    assert made.fonts("fresh") == made.fonts("test")
    asked = []
    task = dataclasses.replace(made.task(), parts=lambda part: asked.append(part) or made.task().parts(part))
    for seed in (1000, 0, 100):
        shared.run(task, made.arms(), ("axial", "base 10", 0.004, seed), short=True)
    assert asked == ["fresh", "validation", "test", "validation"]


def test_laws_and_free_frequencies_have_one_start_and_are_compared_in_four_measures(script):
    shared, made, rows = script("evidence"), script("evidence_laws"), {}
    for data in made.STEPS:
        arms = made.arms(data)
        law, free = (shared.Model(made.task(data), arms[name], "own rate x 4", 3).layers[0] for name in ("law", "free"))
        np.testing.assert_allclose(law.rotary.rope.frequencies, free.rotary.rope.frequencies, rtol=1e-12)
        assert len(law.rotary.kernel) == len(law.rotary.start.frequencies) == 2
        rows[data] = [
            {"encoding": name, "setting": "", "rate": "0.004", "seed": str(seed)}
            | {"items": f"{i} {i + 1}", "items beyond": f"{2 * i + 0.1 * seed * i} {2 * i}"}
            for seed in range(3) for i, name in enumerate(arms)
        ]  # fmt: skip
    found = {line["task"]: line for line in made.tabulate(rows) if line["arm"] == "free"}
    assert [line["law less it (98.75 %)"][:6] for line in found.values()] == ["-1.000", "-1.000", "-2.050", "-1.000"]
    assert found["text, bits, to twice that"]["mean"] == "2.050 ± 0.029"


def test_the_summary_corrects_for_all_five(script, tmp_path):
    summary, trained, shared = script("evidence_summary"), script("trained"), script("evidence")
    rng = np.random.default_rng(0)
    rows = []
    for name, level in (("axial", 5.0), ("matern", 4.0)):
        for seed in (100, 101, 0, 1, 2):
            row = {"encoding": name, "setting": "x", "rate": "0.004", "seed": str(seed), "validation": str(level)}
            items = " ".join(f"{one:.4f}" for one in level + 0.1 * rng.standard_normal(20))
            rows.append(row | {"items": "" if seed >= 100 else items})
    rows.append(rows[0] | {"setting": "y", "validation": "99"})  # tried, and not taken
    renamed = [row | {"encoding": row["encoding"].replace("matern", "gaussian")} for row in rows]
    trained.write(tmp_path / "evidence_shapes.csv", renamed)
    trained.write(tmp_path / "evidence_chorales.csv", rows)
    assert summary.main(["--output", str(tmp_path / "summary.csv")]) == 0
    first, second = rows_of(tmp_path / "summary.csv")
    assert (first["task"], first["designed"], first["baseline"]) == ("chorales", "matern", "axial")
    one = shared.primary(shared.final(rows), script("evidence_chorales").arms())
    # the rows of both files are alike, so the smallest of five chances counts five times, and the other no less
    assert float(first["p, corrected"]) == float(second["p, corrected"]) == pytest.approx(5.0 * one.p, rel=0.1)
    low, high = one.between(0.99)
    assert first["99 %"] == f"{low:+.3f} to {high:+.3f}"
