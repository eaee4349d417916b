"""Tables of mean kernels hold what `rfrope.analysis` says of the same frequencies."""

from __future__ import annotations

import numpy as np
import pytest
from campaign import campaign

import rfrope
from rfrope import analysis, scaling
from rfrope.plotting import tables
from rfrope.plotting.tables import Curve

LADDER = rfrope.geometric(16)


@pytest.mark.parametrize("last", [1, 2, 511, 10**6])
def test_bins_hold_every_lag_once(last):
    starts, ends = tables.lag_bins(last)
    assert (starts[0], ends[-1]) == (1, last)
    assert np.array_equal(starts[1:], ends[:-1] + 1)
    assert np.all(starts <= ends)


@pytest.mark.parametrize("context", [2, 3, 512, 2**24, 2**25])
def test_contexts_go_from_two_to_four_times_the_given_one(context):
    found = tables.contexts_around(context)
    assert (found, context in found) == (sorted(set(found)), True)
    assert (found[0], found[-1]) == (2, max(min(4 * context, 2**24), context))


@pytest.mark.parametrize(
    ("omega", "still", "gain"), [(LADDER, 0, 1.0), (LADDER, 3, 1.2), (np.stack([LADDER, 0.5 * LADDER], axis=1), 3, 1.0)]
)
def test_ranges_and_rows_are_those_of_all_lags(omega, still, gain):
    contexts = [2, 64, 512]
    found = tables.tabulated(Curve("one", omega, 511, still=still, gain=gain), contexts)
    theta = omega if omega.ndim == 1 else omega.sum(axis=1)
    values = (gain * 16 * analysis.mean_kernel(np.arange(512), theta) + still) / (16 + still)
    for number, (first, end) in enumerate(zip(*tables.lag_bins(511), strict=True)):
        part = values[first : end + 1]
        drawn = [found[name][number] for name in ("low", "mid", "high")]
        np.testing.assert_allclose(drawn, [part.min(), np.median(part), part.max()], atol=1e-6)
    for context, row in zip(contexts, found["rows"], strict=True):
        near = values[1:context]
        firsts = [np.flatnonzero(near < level) for level in (0.5, 0.0)]
        told = [str(lags[0] + 1) if lags.size else "never" for lags in firsts]
        dead = still + int(np.sum(theta * context < 2 * np.pi))
        assert row == [*told, f"{near.min():.3f}", str(near.argmin() + 1), str(dead)]
    np.testing.assert_allclose(found["wavelengths"], 2 * np.pi / theta, rtol=1e-5)


@campaign
def test_rows_are_those_of_a_summary():
    row = tables.tabulated(Curve("one", LADDER, 511), [512])["rows"][0]
    axis = analysis.summarise(LADDER, 512).axes[0]
    lags = [str(lag or "never") for lag in (axis.half_lag, axis.first_negative_lag)]
    assert row == [*lags, f"{axis.lowest:.3f}", str(axis.lowest_lag), str(axis.n_dead)]
    assert tables.tabulated(Curve("one", np.array([1.0, 0.0]), 3), [4])["wavelengths"][1] is None


def test_far_lags_are_a_sample_without_rows(monkeypatch):
    monkeypatch.setattr(tables, "_ALL_LAGS", 256)
    found = tables.tabulated(Curve("one", LADDER, 99_999), [128, 256, 100_000])
    assert len(found["rows"]) == 2
    starts, _ = tables.lag_bins(99_999)
    assert len(found["mid"]) == len(starts)
    single = np.append(np.diff(starts), 0) == 1
    curve = analysis.mean_kernel(starts[single], LADDER)
    np.testing.assert_allclose(np.asarray(found["mid"])[single], curve, atol=1e-6)


def test_a_curve_that_ends_before_the_figure_is_shorter():
    found = tables.tabulated(Curve("one", LADDER, 99), [64, 512])
    starts, _ = tables.lag_bins(511)
    assert len(found["mid"]) == np.sum(starts <= 99)
    assert found["rows"][1] == tables.tabulated(Curve("one", LADDER, 99), [100])["rows"][0]


def test_alternatives_are_those_of_the_schemes():
    long = {"original_max_position_embeddings": 128}
    wanted = {
        "base": rfrope.geometric(16, base=1e5),
        "linear, factor": scaling.linear(LADDER, 4).frequencies,
        "ntk, factor": scaling.ntk(LADDER, 4).frequencies,
        "yarn, factor": scaling.yarn(LADDER, 4, base=1e4, **long).frequencies,
        "llama3, factor": scaling.llama3(LADDER, 4, low_freq_factor=1.0, high_freq_factor=4.0, **long).frequencies,
    }
    found = dict(tables.alternatives(Curve("one", 0.9 * LADDER, 511, still=2, gain=1.3), 1e4, 128))
    assert list(found) == list(wanted)
    for name, curves in found.items():
        assert np.array_equal(curves[1].frequencies, wanted[name])
        assert all((one.still, one.gain, one.last) == (2, 1.0, 511) for one in curves)
    assert found["ntk, factor"][1].label == "ntk, factor 4"


@pytest.mark.parametrize(("omega", "base"), [(LADDER, None), (LADDER[:1], 1e4), (LADDER, 1.0), (np.ones((4, 2)), None)])
def test_without_a_ladder_wavelengths_are_stretched(omega, base):
    ((name, curves),) = tables.alternatives(Curve("one", omega, 511), base, 128)
    assert name == "all wavelengths, times"
    assert np.array_equal(curves[0].frequencies, omega / 2)
