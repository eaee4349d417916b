"""What sets of frequencies, estimators and tables will hold is asked before they begin."""

import io
import math
import sys

import bad_input
import numpy as np
import pytest
from public import OFFERED

import rfrope
from rfrope._core import capacity


def test_what_fits_passes(monkeypatch):
    monkeypatch.delenv(capacity.VARIABLE, raising=False)
    monkeypatch.setattr(capacity, "free", lambda: 1e9)
    capacity.check(4e8, "this", "n")
    words = r"^this would take 0\.6 GB of memory, but 50% of the free memory is 0\.5 GB; .*lower n"
    with pytest.raises(ValueError, match=words):
        capacity.check(6e8, "this", "n")
    monkeypatch.setenv(capacity.VARIABLE, "1e12")
    capacity.check(1e12, "this", "n")
    monkeypatch.setenv(capacity.VARIABLE, "1000")
    with pytest.raises(ValueError, match=r"RFROPE_MAX_BYTES allows 1e-06 GB.* to 2e\+03 to insist"):
        capacity.check(2000.0, "this", "n")
    for told in ("", "much", "0", "-1", "nan"):
        monkeypatch.setenv(capacity.VARIABLE, told)
        with pytest.raises(ValueError, match=r"RFROPE_MAX_BYTES is .*; expected a number of bytes, such as 64e9"):
            capacity.check(1.0, "this", "n")


def test_free_memory_of_the_machine_is_what_can_be_had(monkeypatch):
    """What its kernel says is available, in kB; the memory there is where it says nothing."""
    told = "MemTotal:  24000 kB\nMemFree:  100 kB\nMemAvailable:  13000 kB\nBuffers:  7 kB\n"
    found = {told: 13_000 * 1024.0} | dict.fromkeys(("MemTotal:  24000 kB\n", "MemAvailable:\n"), 5.0 * 4096)
    for text, expected in found.items():
        with monkeypatch.context() as patch:
            patch.setattr("builtins.open", lambda *_, text=text, **options: io.StringIO(text))
            patch.setattr(capacity.os, "sysconf", {"SC_PHYS_PAGES": 5, "SC_PAGE_SIZE": 4096}.get)
            assert capacity._machine_memory() == expected


def test_free_memory_is_that_of_the_smallest_limit(tmp_path, monkeypatch):
    assert 0.0 < capacity.free() <= math.inf
    limit, use = tmp_path / "max", tmp_path / "current"
    limit.write_text("5000\n")
    use.write_text("2000\n")
    monkeypatch.setattr(capacity, "_CGROUP", (str(limit), str(use)))
    assert capacity.free() == 3000.0
    limit.write_text("max\n")
    assert capacity.free() > 3000.0


# -- the calls that ask: sets of frequencies, chunks of estimators and tables ------------------------------------------

MOST, LONG = 2**32 - 1, 2**24
WIDE_LADDER = rfrope.geometric(64)
GAUSSIAN = "gaussian"


def given(*arguments, **options):
    return arguments, options


# positions of no memory of their own: one number, seen so often that a table of them fills the memory
FAR = np.broadcast_to(0.5, LONG)
# what an error asks to lower; by the name of a function, arguments that would hold too much
GREEDY = {
    "n_blocks or heads": {
        "sample": given(GAUSSIAN, 8, heads=MOST),
        "design": given(GAUSSIAN, head_dim=MOST - 1, context=64),
        "designs.points": given(GAUSSIAN, MOST),
    },
    "n_blocks": {"estimate_kernel": given(1.0, GAUSSIAN, n_samples=MOST - 1, n_blocks=MOST // 2, design="sobol")},
    "the size of lags": {"estimate_kernel: lags": given(np.broadcast_to(0.5, 2**29 + 2**28), GAUSSIAN, n_samples=64)},
    "the number of lags": {
        "estimate_scores": given(*[np.ones((1024, 1, 64))] * 2, np.ones(2**16), GAUSSIAN, n_trials=4, design="sobol")
    },
    "the size of positions or frequencies": {
        "Rope.table": given(rfrope.Rope(WIDE_LADDER), FAR),
        **dict.fromkeys(("rotation_table", "sinusoidal"), given(FAR, WIDE_LADDER)),
    },
    "the size of offset or frequencies": {"rotation.shift_matrix": given(FAR, WIDE_LADDER)},
    "context": {
        **dict.fromkeys(("engines.export", "engines.rounding"), given(WIDE_LADDER, "onnx", context=MOST)),
        "engines.write": given("never.npz", WIDE_LADDER, "onnx", context=MOST),
    },
}
CASES = {case: (lower, *asked) for lower, calls in GREEDY.items() for case, asked in calls.items()}


@pytest.mark.skipif(sys.platform != "linux", reason="limits of memory are Linux's")
@pytest.mark.parametrize("case", CASES)
def test_calls_that_would_hold_too_much_are_refused_before_they_begin(case, monkeypatch, peak, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(capacity.VARIABLE, raising=False)
    monkeypatch.setattr(capacity, "free", lambda: 8e9)
    lower, arguments, options = CASES[case]
    peak(anew=True)
    words = r"would take .* GB of memory, but 50% of the free memory"
    with bad_input.watched(), pytest.raises(ValueError, match=words) as caught:
        OFFERED[case.partition(":")[0]](*arguments, **options)
    assert f"expected less: lower {lower}, or set the environment variable RFROPE_MAX_BYTES" in str(caught.value)
    assert peak() < 2**26
    assert not [*tmp_path.iterdir()]


LINE, PLACES = np.random.default_rng(0).random(2**19), np.arange(2.0**13)
HELD = {
    "sample": lambda: rfrope.sample(GAUSSIAN, 2**16, heads=8, rng=0),
    "rotation_table": lambda: rfrope.rotation_table(PLACES, WIDE_LADDER, scale=2.0, dtype=np.float32),
    "sinusoidal": lambda: rfrope.sinusoidal(PLACES, WIDE_LADDER),
    "estimate_kernel": lambda: rfrope.estimate_kernel(LINE[: 2**16], GAUSSIAN, n_samples=64, rng=0),
}


@pytest.mark.parametrize("case", HELD)
def test_what_is_asked_about_is_about_what_is_held(case, monkeypatch, peak):
    """No estimate is half of the truth, nor eight times as much."""
    call, asked = HELD[case], []
    call()  # what is loaded and compiled is not the call's
    monkeypatch.setattr(capacity, "check", lambda n_bytes, *_: asked.append(n_bytes))
    monkeypatch.setattr(capacity, "SMALL", -1.0)
    before = peak(anew=True)
    call()
    held = peak() - before
    assert 0.5 * held < max(asked) + 2**20
    assert max(asked) < 8.0 * held


# -- arrays in parts that take a moment each ---------------------------------------------------------------------------


SHAPES = [(), (0,), (7,), (1000,), (3, 200), (200, 3), (2, 90, 4), (9, 9, 9), (1, 1, 500), (0, 5)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_parts_are_all_of_an_array_once_and_none_takes_longer_than_a_moment(monkeypatch, shape):
    monkeypatch.setattr(capacity, "MOMENT", 50)
    x = np.zeros(shape, int)
    sizes = [part.size for part in capacity.parts(x) if np.add(part, 1, out=part) is not None]
    assert np.all(x == 1)
    assert max(sizes) <= max(50, x.size // max([*shape, 1]))
    assert len(sizes) <= max(1, 3 * x.size // 50)


@pytest.mark.parametrize(("count", "each"), [(0, 1), (1, 1), (50, 1), (51, 1), (7, 20), (7, 1000), (5, 0)])
def test_spans_follow_each_other(monkeypatch, count, each):
    monkeypatch.setattr(capacity, "MOMENT", 50)
    found = list(capacity.spans(count, each))
    assert [index for span in found for index in range(span.start, span.stop)] == list(range(count))
    assert all((span.stop - span.start) * each <= max(50, each) for span in found)
