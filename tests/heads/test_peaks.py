"""The offset that shifts point at: against brute force, and where blocks do not agree."""

import math

import numpy as np
import pytest

import rfrope
from rfrope import heads
from rfrope._core import sums
from rfrope.heads.peaks import peak_of_waves

RNG = np.random.default_rng(0)
OMEGA = rfrope.geometric(64, base=10_000.0)


@pytest.mark.parametrize("shape", [(), (8,), (3, 1)])
def test_weights_that_broadcast_count_for_every_block(shape):
    shift = heads.phase_shift(-3, OMEGA[:8]) + np.linspace(0.0, 1.0, 8)
    weights = RNG.uniform(0.5, 2.0, size=shape)
    peak = heads.offset_of(OMEGA[:8], shift, low=-16.0, weights=weights)
    cosines = np.cos(shift + peak.offset[..., None] * OMEGA[:8])
    wanted = np.mean(cosines, axis=-1) if shape != (8,) else np.average(cosines, weights=weights)
    np.testing.assert_allclose(peak.value, wanted, atol=1e-12)
    chosen = heads.offset_of(OMEGA[:8], shift, low=-16.0, weights=np.arange(8) < 3)
    assert chosen.offset == pytest.approx(float(heads.offset_of(OMEGA[:3], shift[:3], low=-16.0).offset), abs=1e-12)


@pytest.mark.parametrize("offset", [0.0, -7.25, -1023.9])
def test_the_offset_of_phase_shifts_is_found(offset):
    found = heads.offset_of(OMEGA, heads.phase_shift(offset, OMEGA), low=-1024.0)
    assert found.offset == pytest.approx(offset, abs=1e-12)
    assert found.value == pytest.approx(1.0, abs=1e-14)
    assert found.runner_up_value < 0.8
    turns = heads.phase_shift(offset, OMEGA) + 2.0 * np.pi * RNG.integers(-3, 4, size=64)
    assert heads.offset_of(OMEGA, turns, low=-1024.0).offset == pytest.approx(offset, abs=1e-12)


def test_many_equal_peaks_in_parts(monkeypatch):
    """Each whole turn has one: the nearest to 0 is taken, and parts of them are put together."""
    whole = heads.offset_of([1.0, 2.0], [0.5, 1.0], low=-3000.0)
    assert whole.offset == pytest.approx(-0.5, abs=1e-9)
    assert heads.offset_of([1.0, 2.0], [0.5, 1.0], low=-30.0, high=30.0).offset == pytest.approx(-0.5, abs=1e-9)
    lattice, weights = np.arange(1.0, 33.0), [1.0] * 32 + [5e-13]  # one turn back it is higher, by 3e-14 of all weights
    found = heads.offset_of([*lattice, 0.5], [*lattice, 0.5 + math.pi], low=-10.0, weights=weights)
    assert found.offset == pytest.approx(-1.0, abs=1e-9)
    assert abs(whole.value - whole.runner_up_value) <= 2.0**-52
    assert whole.value == pytest.approx(1.0, abs=1e-14)
    monkeypatch.setattr(sums, "BUDGET", 700)
    parts = heads.offset_of([1.0, 2.0], [0.5, 1.0], low=-3000.0)
    for name, value in vars(whole).items():
        assert getattr(parts, name) == pytest.approx(value, abs=1e-9 if "value" in name else 3000.0)
    assert parts.offset == pytest.approx(-0.5, abs=1e-9)


def test_shapes():
    offsets = np.array([[-1.0, -20.5, -3.0], [4.0, -60.0, 0.5]])
    shift = heads.phase_shift(offsets, OMEGA)
    for omega in (OMEGA, OMEGA[:, None]):
        found = heads.offset_of(omega, shift, low=-100.0, high=10.0)
        assert {value.shape for value in vars(found).values()} == {(2, 3)}
        np.testing.assert_allclose(found.offset, offsets, atol=1e-12)
    single = heads.offset_of(OMEGA.tolist(), shift[0, 1].tolist(), low=-100.0)
    assert single.offset.shape == single.value.shape == ()
    assert single.offset == pytest.approx(-20.5, abs=1e-12)


def test_a_peak_outside_the_range_leaves_an_end():
    found = heads.offset_of([0.01], heads.phase_shift(5.0, [0.01]), low=-50.0)
    assert found.offset == 0.0
    assert found.value == pytest.approx(math.cos(0.05), abs=1e-15)
    assert np.isnan(found.runner_up)
    assert np.isnan(found.runner_up_value)


def brute_force(omega, cosine, sine, low, high, points):
    x = np.linspace(low, high, points)
    f = np.cos(x[:, None] * omega) @ cosine + np.sin(x[:, None] * omega) @ sine
    tops = np.flatnonzero((f > np.append(-np.inf, f[:-1])) & (f >= np.append(f[1:], -np.inf)))
    tops = tops[np.argsort(-f[tops])]
    return x[tops], f[tops], x[1] - x[0], f


def test_peaks_are_those_of_brute_force():
    """A second peak counts for certain where it is the highest within a step of the search to either side."""
    from scipy.ndimage import maximum_filter1d

    rng = np.random.default_rng(0)
    for trial in range(15):
        blocks = int(rng.integers(1, 30))
        omega = rng.normal(size=blocks) * 10.0 ** rng.uniform(-3.0, 0.5, blocks)
        cosine, sine = rng.normal(size=(2, blocks))
        low, high = -rng.uniform(1.0, 200.0), rng.uniform(0.0, 50.0)
        found = peak_of_waves(omega, cosine, sine, low, high)
        x, f, spacing, values = brute_force(omega, cosine, sine, low, high, 50_001)
        bend = 0.125 * spacing**2 * np.sum(np.hypot(cosine, sine) * omega**2)
        assert -1e-12 < found.value - f[0] <= bend + 1e-12, trial
        step = (high - low) / max(4, math.ceil((high - low) * np.abs(omega).max() / (2.0 * math.pi) * 16))
        around = maximum_filter1d(values, 2 * math.ceil(step / spacing) + 1, mode="nearest")
        clear = [top for at, top in zip(x, f, strict=True) if top >= around[round((at - low) / spacing)]]
        if len(f) == 1:
            assert math.isnan(found.runner_up)
        elif not math.isnan(found.runner_up):
            assert found.runner_up_value - f[1] <= bend + 1e-12, trial
        if len(clear) > 1:
            assert found.runner_up_value - clear[1] > -1e-12, trial
        if len(f) == 1 or f[0] - f[1] > 2.0 * bend:
            assert abs(found.offset - x[0]) <= 2.0 * spacing, trial
        inside = low + 1e-9 < found.offset < high - 1e-9
        slope = np.sum(omega * (sine * np.cos(omega * found.offset) - cosine * np.sin(omega * found.offset)))
        assert not inside or abs(slope) < 1e-10 * np.sum(np.abs(omega) * np.hypot(cosine, sine)), trial


def test_fast_blocks_far_away():
    """A million turns: phases are exact, so the place is too."""
    omega = np.sqrt([4.0, 3.0, 2.0, 0.7, 0.5, 0.1])
    found = heads.offset_of(omega, heads.phase_shift(-250_000.125, omega), low=-300_000.0)
    assert found.offset == pytest.approx(-250_000.125, abs=1e-9)
    assert found.value == pytest.approx(1.0, abs=1e-12)
    found = heads.offset_of([1.0, 1e-6], [0.1, 0.2], low=-1e9, high=-1.0, weights=[0.0, 1.0])
    assert found.offset == pytest.approx(-200_000.0, abs=1e-3)  # a fast block without weight makes no range too long


def test_one_peak_has_no_twin():
    """A peak that several points of the grid, or the grid and an end, lead to is found once."""
    for omega, shift, low, high in (
        ([0.01], [0.0], 0.0, 100.0),  # falls all the way: the peak is the lower end
        ([0.01], [0.0], -100.0, 0.0),
        ([0.01, 0.02], [0.3, 0.6], -120.0, 90.0),  # at -30, inside
        ([1.0], [0.0], -3.0, 3.0),
    ):
        found = heads.offset_of(omega, shift, low=low, high=high)
        assert found.value == pytest.approx(1.0, abs=1e-12), (low, high)
        if not np.isnan(found.runner_up):  # there is a valley between two peaks
            between = np.linspace(*sorted([float(found.offset), float(found.runner_up)]), 4001)
            values = np.mean(np.cos(np.multiply.outer(between, omega) + shift), axis=-1)
            assert np.min(values) < found.runner_up_value - 1e-6, (low, high)
