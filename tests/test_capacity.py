"""What a call will hold is asked before it begins."""

from __future__ import annotations

import io
import math

import numpy as np
import pytest

import rfrope
from rfrope._core import capacity


def test_what_fits_passes(monkeypatch):
    monkeypatch.delenv(capacity.VARIABLE, raising=False)
    monkeypatch.setattr(capacity, "free", lambda: 1e9)
    capacity.check(4e8, "this", "n")
    with pytest.raises(
        ValueError, match=r"^this would take 0\.6 GB of memory, but 50% of the free memory is 0\.5 GB; .*lower n"
    ):
        capacity.check(6e8, "this", "n")


def test_small_calls_are_not_asked_about(monkeypatch):
    monkeypatch.delenv(capacity.VARIABLE, raising=False)
    monkeypatch.setattr(capacity, "free", lambda: pytest.fail("asked"))
    capacity.check(2.0**26, "this", "n")


def test_the_variable_decides(monkeypatch):
    monkeypatch.setenv(capacity.VARIABLE, "1e12")
    capacity.check(1e12, "this", "n")
    monkeypatch.setenv(capacity.VARIABLE, "1000")
    with pytest.raises(ValueError, match=r"RFROPE_MAX_BYTES allows 1e-06 GB.* to 2e\+03 to insist"):
        capacity.check(2000.0, "this", "n")


@pytest.mark.parametrize("told", ["", "much", "0", "-1", "nan"])
def test_a_variable_that_is_no_number(monkeypatch, told):
    monkeypatch.setenv(capacity.VARIABLE, told)
    with pytest.raises(ValueError, match=r"RFROPE_MAX_BYTES is .*; expected a number of bytes, such as 64e9"):
        capacity.check(1.0, "this", "n")


def test_free_memory_of_the_machine_is_what_can_be_had(monkeypatch):
    """What its kernel says is available, in kB; the memory there is where it says nothing."""
    told = "MemTotal:  24000 kB\nMemFree:  100 kB\nMemAvailable:  13000 kB\nBuffers:  7 kB\n"
    for text, expected in (
        (told, 13_000 * 1024.0),
        ("MemTotal:  24000 kB\n", 5.0 * 4096),
        ("MemAvailable:\n", 5.0 * 4096),
    ):
        with monkeypatch.context() as patch:
            patch.setattr("builtins.open", lambda *_, text=text, **options: io.StringIO(text))
            patch.setattr(capacity.os, "sysconf", {"SC_PHYS_PAGES": 5, "SC_PAGE_SIZE": 4096}.get)
            assert capacity._of_machine() == expected


def test_free_memory_is_that_of_the_smallest_limit(tmp_path, monkeypatch):
    assert 0.0 < capacity.free() <= math.inf
    limit, use = tmp_path / "max", tmp_path / "current"
    limit.write_text("5000\n")
    use.write_text("2000\n")
    monkeypatch.setattr(capacity, "_CGROUPS", ((str(limit), str(use)),))
    assert capacity.free() == 3000.0
    limit.write_text("max\n")
    assert capacity.free() > 3000.0


# -- the calls that ask ------------------------------------------------------------------------------------------------

MOST = 2**32 - 1
LADDER = [1.0, 0.5]
GREEDY = {
    "geometric": (lambda: rfrope.geometric(MOST), "n_blocks"),
    "arithmetic": (lambda: rfrope.arithmetic(MOST, step=0.1), "n_blocks"),
    "pixel": (lambda: rfrope.frequencies.pixel(MOST), "n_blocks"),
    "xpos_scales": (lambda: rfrope.frequencies.xpos_scales([0, 1], MOST), "n_blocks"),
    "xpos_scales of positions": (lambda: rfrope.frequencies.xpos_scales(np.zeros(10**5), 10**6), "either"),
    "mixed": (lambda: rfrope.mixed(MOST - 1, [0.0]), "n_blocks"),
    "golden_gate": (lambda: rfrope.golden_gate(8, low=0.1, high=1.0, heads=MOST), "n_blocks, ndim or heads"),
    "golden_gate on axes": (lambda: rfrope.golden_gate(8, low=0.1, high=1.0, ndim=MOST), "n_blocks, ndim or heads"),
    "sample": (lambda: rfrope.sample("gaussian", 8, heads=MOST), "n_blocks or heads"),
    "sample on axes": (lambda: rfrope.sample(rfrope.kernel("gaussian", ndim=MOST), 8), "n_blocks or heads"),
    "points": (lambda: rfrope.designs.points("gaussian", MOST), "n_blocks or heads"),
    "design": (lambda: rfrope.design("gaussian", head_dim=MOST - 1, context=64), "n_blocks or heads"),
    "ladder": (lambda: rfrope.design("gaussian", head_dim=8, context=64, heads=MOST, ladder=(1.0, 2.0)), "heads"),
    "from_config": (lambda: rfrope.from_config({**WIDE, "hidden_size": MOST}), "head_dim"),
    "positional_weights": (lambda: rfrope.heads.positional_weights(LADDER, d_model=MOST), "d_model or head_dim"),
    "effective_offset": (
        lambda: rfrope.heads.effective_offset(np.ones((4, 4)), np.ones((4, 4)), LADDER, n_resamples=MOST),
        "n_resamples",
    ),
    "base_for_context": (lambda: rfrope.analysis.base_for_context(64, 8, n_grid=MOST), "n_grid"),
    "density_of_states": (lambda: rfrope.analysis.density_of_states(LADDER, n_bins=MOST), "n_bins"),
    "positional_attention": (lambda: rfrope.heads.positional_attention(LADDER, 2**31 - 1), "context or window"),
    "packed_positions": (lambda: rfrope.rotation.packed_positions([0, 2**40]), "cu_seqlens"),
    "mrope_positions": (lambda: rfrope.rotation.mrope_positions([MOST]), "segments[0]"),
    "grid_positions": (lambda: rfrope.rotation.grid_positions((MOST, MOST)), "shape"),
    "export": (lambda: rfrope.exports.export(LADDER, "onnx", context=MOST), "context"),
    "estimate_kernel": (
        lambda: rfrope.estimate_kernel("gaussian", 1.0, n_samples=MOST - 1, n_blocks=MOST // 2, design="sobol"),
        "n_blocks",
    ),
    "estimate_scores": (
        lambda: rfrope.estimate_scores(TOKENS, TOKENS, LAGS, "gaussian", n_trials=4, design="sobol"),
        "the number of lags",
    ),
}
WIDE = {"model_type": "llama", "num_attention_heads": 1}
TOKENS, LAGS = np.ones((1024, 1, 64)), np.ones(2**16)


@pytest.mark.parametrize("case", GREEDY)
def test_calls_that_would_hold_too_much_are_refused_before_they_begin(case, monkeypatch, peak):
    monkeypatch.delenv(capacity.VARIABLE, raising=False)
    monkeypatch.setattr(capacity, "free", lambda: 8e9)
    call, lower = GREEDY[case]
    peak(anew=True)
    with pytest.raises(ValueError, match=r"would take .* GB of memory, but 50% of the free memory") as caught:
        call()
    assert f"expected less: lower {lower}, or set the environment variable RFROPE_MAX_BYTES" in str(caught.value)
    assert peak() < 2**26


def test_the_variable_lets_a_call_through(monkeypatch):
    monkeypatch.setenv(capacity.VARIABLE, "1e3")
    with pytest.raises(ValueError, match="RFROPE_MAX_BYTES allows"):
        rfrope.geometric(100)
    monkeypatch.setenv(capacity.VARIABLE, "1e4")
    assert rfrope.geometric(100).shape == (100,)
