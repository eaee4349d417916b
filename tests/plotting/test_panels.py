"""Figures of pages hold what `rfrope.analysis` says of the same frequencies."""

import numpy as np
import pytest

import rfrope
from rfrope import analysis, scaling
from rfrope.plotting import panels
from rfrope.plotting.panels import Curve

LADDER = rfrope.geometric(16)


@pytest.mark.parametrize("last", [1, 2, 511, 10**6])
def test_bins_hold_every_lag_once(last):
    starts, ends = panels.lag_bins(last)
    assert (starts[0], ends[-1]) == (1, last)
    assert np.array_equal(starts[1:], ends[:-1] + 1)
    assert np.all(starts <= ends)


@pytest.mark.parametrize("context", [2, 3, 512, 2**24, 2**25])
def test_contexts_go_from_two_to_four_times_the_given_one(context):
    found = panels.contexts_around(context)
    assert (found, context in found) == (sorted(set(found)), True)
    assert (found[0], found[-1]) == (2, max(min(4 * context, 2**24), context))


@pytest.mark.parametrize(("omega", "still"), [(LADDER, 0), (LADDER, 3), (np.stack([LADDER, 0.5 * LADDER], axis=1), 3)])
def test_ranges_and_rows_are_those_of_all_lags(omega, still):
    contexts = [2, 64, 512]
    ranges, rows = panels.tabulate(Curve("one", omega, 511, still=still), contexts)
    theta = omega if omega.ndim == 1 else omega.sum(axis=1)
    values = (16 * analysis.mean_kernel(np.arange(512), theta) + still) / (16 + still)
    bins = [values[first : end + 1] for first, end in zip(*panels.lag_bins(511), strict=True)]
    for name, reduce in {"low": np.min, "mid": np.median, "high": np.max}.items():
        np.testing.assert_allclose(ranges[name], [*map(reduce, bins)], atol=1e-6)
    for context, row in zip(contexts, rows, strict=True):
        near = values[1:context]
        firsts = [np.flatnonzero(near < level) for level in (0.5, 0.0)]
        told = [str(lags[0] + 1) if lags.size else "never" for lags in firsts]
        dead = still + int(np.sum(theta * context < 2 * np.pi))
        assert row == (*told, f"{near.min():.3f}", str(near.argmin() + 1), str(dead))


def test_far_lags_are_a_sample_without_rows(monkeypatch):
    monkeypatch.setattr(panels, "_ALL_LAGS", 256)
    ranges, rows = panels.tabulate(Curve("one", LADDER, 99_999), [128, 256, 100_000])
    assert [any(row) for row in rows] == [True, True, False]
    starts, _ = panels.lag_bins(99_999)
    single = np.append(np.diff(starts), 0) == 1
    np.testing.assert_allclose(ranges["mid"][single], analysis.mean_kernel(starts[single], LADDER), atol=1e-6)


def test_a_curve_that_ends_before_the_figure_is_shorter():
    ranges, rows = panels.tabulate(Curve("one", LADDER, 99), [64, 512])
    assert len(ranges["mid"]) == np.sum(panels.lag_bins(511)[0] <= 99)
    assert rows[1] == panels.tabulate(Curve("one", LADDER, 99), [100])[1][0]


def test_alternatives_are_those_of_the_schemes():
    long = {"original_max_position_embeddings": 128}
    wanted = {
        "base": rfrope.geometric(16, base=1e5),
        "linear, factor": scaling.linear(LADDER, 4).frequencies,
        "ntk, factor": scaling.ntk(LADDER, 4).frequencies,
        "yarn, factor": scaling.yarn(LADDER, 4, base=1e4, **long).frequencies,
        "llama3, factor": scaling.llama3(LADDER, 4, low_freq_factor=1.0, high_freq_factor=4.0, **long).frequencies,
    }
    found = dict(panels.alternatives(Curve("one", 0.9 * LADDER, 511, still=2), 1e4, 128))
    assert list(found) == list(wanted)
    for name, curves in found.items():
        assert np.array_equal(curves[1].frequencies, wanted[name])
        assert all((one.still, one.last) == (2, 511) for one in curves)
    assert found["ntk, factor"][1].label == "ntk, factor 4"


@pytest.mark.parametrize(("omega", "base"), [(LADDER, None), (LADDER[:1], 1e4), (LADDER, 1.0), (np.ones((4, 2)), None)])
def test_without_a_ladder_wavelengths_are_stretched(omega, base):
    ((name, curves),) = panels.alternatives(Curve("one", omega, 511), base, 128)
    assert name == "all wavelengths, times"
    assert np.array_equal(curves[0].frequencies, omega / 2)


@pytest.mark.campaign
def test_lines_of_each_choice_and_a_level_for_each_context():
    """A set that ends with the context goes on beyond it; an alternative has its own slider."""
    sets = [Curve("one", LADDER, 63), Curve("short", np.append(LADDER, 0.0), 15)]
    panel = panels.mean_kernels("Title", sets, 64, ladder=(1e4, 64))
    chart, table, waves = panel["parts"]
    context, more, *sliders = panel["controls"]
    assert (context["values"][context["start"]], context["slider"], more["slider"]) == ("64", True, False)
    assert [one["when"] for one in sliders] == [{more["name"]: number} for number in range(1, len(more["values"]))]
    own = [line for line in chart["lines"] if not line["when"]]
    assert [(line["label"], line["colour"]) for line in own] == [("one", 0), ("short", 1)]
    assert [len(line["mid"]) for line in own] == [len(chart["x"]), np.sum(panels.lag_bins(255)[0] <= 15)]
    wanted = [len(slider["values"]) for slider in sliders]
    asked = [line["when"][more["name"]] for line in chart["lines"] if line["when"]]
    assert [asked.count(number) for number in range(1, len(sliders) + 1)] == wanted
    assert len(table["rows"]) == len(table["when_rows"]) == 1 + len(chart["lines"]) * len(context["values"])
    row = table["rows"][1 + context["start"]]
    axis = analysis.summarise(LADDER, 64).axes[0]
    lags = [str(lag or "never") for lag in (axis.half_lag, axis.first_negative_lag)]
    assert row == ("one", *lags, f"{axis.lowest:.3f}", str(axis.lowest_lag), str(axis.n_dead))
    assert table["when_rows"][1 + context["start"]] == {"context": context["start"]}
    assert chart["reach"]["values"][context["start"]] == 63
    np.testing.assert_allclose(waves["lines"][0]["mid"], 2 * np.pi / LADDER, rtol=1e-5)
    assert waves["lines"][1]["mid"][16] is None
    levels = [line["level"] for line in waves["lines"] if "level" in line]
    assert [str(one) for one in levels] == context["values"]
