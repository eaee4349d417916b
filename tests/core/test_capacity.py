"""What a call will hold is asked before it begins, by every public function whose arguments decide how much that is."""

from __future__ import annotations

import importlib
import io
import math
import sys

import bad_input
import numpy as np
import pytest
from public import OFFERED

import rfrope
from rfrope import analysis, heads, models, moments, rotation
from rfrope._core import array, capacity

X = np.ones((4, 8))


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
    monkeypatch.setattr(capacity, "_CGROUPS", ((str(limit), str(use)),))
    assert capacity.free() == 3000.0
    limit.write_text("max\n")
    assert capacity.free() > 3000.0


# -- the calls that ask ------------------------------------------------------------------------------------------------

# numbers of no memory of their own, rows for 64 blocks, and the side of a square
MOST, MANY, LONG, SIDE = 2**32 - 1, 2**31, 2**24, 2**17
LADDER, WIDE_LADDER, ROPE, GAUSSIAN = [1.0, 0.5, 0.25, 0.125], rfrope.geometric(64), rfrope.Rope([1.0, 0.5]), "gaussian"
LAW, ONE, FOUR, WIDE = rfrope.kernel(GAUSSIAN), np.ones(1), np.ones(4), np.ones(64)
FIELDS = {"original_max_position_embeddings": 64}


def many(*shape, value=0.5, dtype=np.float64):
    """An array of one number, seen so often that what is made of it fills the memory."""
    return np.broadcast_to(dtype(value), shape)


def given(*arguments, **options):
    return arguments, options


LINES, SQUARE, ROWS_8, SETS = many(SIDE, value=0.0), many(SIDE, SIDE), many(MANY, 8), many(MANY)
ROW, COLUMN = many(SIDE, 8), many(SIDE, 1, 8)
OUTER = (COLUMN, COLUMN, LINES)  # as many queries and keys as lags, each on an axis of its own
GENERATORS = many(2**15, 2**15, value=0.0)

# what an error asks to lower; by the name of a function, and what is large: arguments that would hold too much
GREEDY = {
    "the size of frequencies": {
        **dict.fromkeys(("Rope", "analysis.wavelengths", "scaling.proportional"), given(SETS)),
        **dict.fromkeys(("analysis.first_negative_lag", "analysis.aliasing_distance"), given(SETS, 64)),
        **dict.fromkeys(("analysis.summarise", "analysis.turns"), given(SETS, 64)),
        **dict.fromkeys(("scaling.linear", "scaling.ntk"), given(SETS, 2.0)),
        "analysis.density_of_states: set": given(many(2**26)),
        "analysis.fit_kernel": given(SETS, 8, names=[GAUSSIAN]),
        "analysis.plan": given(SETS, 64, trained_context=16),
        "mrope": given(SETS, (2**30, 2**30)),
        "save": given("never.npz", SETS),
        "scaling.dynamic_ntk": given(SETS, 2.0, seq_len=128, max_position_embeddings=64),
        "scaling.llama3": given(SETS, 2.0, low_freq_factor=1.0, high_freq_factor=4.0, **FIELDS),
        "scaling.yarn": given(SETS, 2.0, base=16.0, **FIELDS),
        "plotting.kernel": given(GAUSSIAN, 64, frequencies=SETS),
    },
    "the size of short_factor": {
        "scaling.longrope": given(LADDER, short_factor=SETS, long_factor=WIDE, factor=2.0, **FIELDS)
    },
    "the size of rope": {"plotting.frequencies": given(SETS)},
    "the size of sets['a']": {
        "plotting.mean_kernels": given({"a": SETS}, 8),
        "plotting.wavelengths": given({"a": SETS}),
    },
    "the size of x": {
        "Rope.rotate": given(ROPE, ROWS_8, 3),
        "rotate": given(ROWS_8, 3, LADDER),
        "rotate_by_phases": given(ROWS_8, FOUR),
        "rotate_by_table": given(ROWS_8, FOUR, FOUR),
        "convert_pairing": given(ROWS_8, "half", "interleaved"),
        "rotation.to_complex": given(ROWS_8),
        **{f"features.{name}": given(ROWS_8, X) for name in ("positive", "hyperbolic", "trigonometric")},
        "bochner.from_series": given(SETS),
    },
    "the size of z": {"rotation.from_complex": given(many(MANY, 4, dtype=np.complex128))},
    "the size of k": {
        "rotation.rerotate": given(ROWS_8, 3, LADDER, LADDER),
        "rotation.relocate": given(ROWS_8, 3, 4, LADDER),
    },
    "the size of magnitudes": {"rotation.rotate_polar": given(many(MANY, 4), 3, LADDER)},
    "the size of rates": {"rotation.cumulative_phases": given(many(MANY, 4))},
    "the size of positions or frequencies": {
        "Rope.table": given(rfrope.Rope(WIDE_LADDER), many(LONG)),
        **dict.fromkeys(("rotation_table", "sinusoidal", "rotation.phases"), given(many(LONG), WIDE_LADDER)),
    },
    "the size of offset or frequencies": {
        "rotation.shift_matrix": given(many(2**16), WIDE_LADDER),
        "heads.phase_shift": given(many(LONG), WIDE_LADDER),
        "heads.aligned_shift": given(many(LONG), WIDE_LADDER, WIDE),
    },
    "the size of q or k": {
        "Rope.scores": given(rfrope.Rope(LADDER), ROW, ROW, LINES, LINES),
        "scores": given(ROW, ROW, LINES, LINES, LADDER),
        "block_coefficients": given(COLUMN, ROW),
        "moments.effective_blocks": given(COLUMN, many(1, SIDE, 8)),
        "analysis.precision_budget": given(ROW, ROW, LADDER, 64),
    },
    "the size of q, k or lags": {
        **dict.fromkeys(("expected_score", "score_variance", "moments.relative_error"), given(*OUTER, GAUSSIAN)),
        **dict.fromkeys(("moments.polar_score", "moments.polar_variance"), given(*OUTER, GAUSSIAN)),
        "moments.polar_tail": given(*OUTER, GAUSSIAN, 1.0),
        "moments.polar_error": given(*OUTER, GAUSSIAN, design="antithetic"),
        "analysis.sine_share": given(*OUTER, LADDER),
        "analysis.departure": given(ROW, ROW, LINES, LADDER),
        "heads.shifted_scores": given(*OUTER, LADDER, FOUR),
        "heads.shifted_terms": given(X[0], X[0], many(2**25), LADDER, FOUR),
        "features.stochastic_variance": given(*OUTER, GAUSSIAN, 3),
    },
    "the size of q": {"validate": given(GAUSSIAN, q=ROWS_8, k=ROWS_8, lags=[1.0], n_samples=64, n_trials=8)},
    "the tokens of q": {"heads.atlas": given(many(3, 1, SIDE, 8), many(3, 1, SIDE, 8), FOUR)},
    "the number of lags": {
        "estimate_scores": given(*[np.ones((1024, 1, 64))] * 2, np.ones(2**16), GAUSSIAN, n_trials=4, design="sobol")
    },
    "the size of q, k or v": {"features.linear_attention": given(*[many(SIDE, 1, 1, 8)], *many(2, SIDE, 1, 8))},
    "the size of lags": {
        "Kernel.phi": given(LAW, SETS),
        **dict.fromkeys(("Kernel.__call__", "Kernel.phi2"), given(LAW, many(2**26))),
        "kernels.evaluate_phi": given(SETS, GAUSSIAN, scale=2.0),
        "moments.mean_kernel_band": given(many(2**26), GAUSSIAN, n_blocks=4),
        "analysis.mean_kernel": given(SETS, LADDER),
        "analysis.log_uniform_kernel": given(many(2**26)),
        "analysis.dirichlet": given(many(2**26), 4),
        "analysis.scaling_effect": given(SETS, LADDER, LADDER),
        "heads.positional_scores": given(SETS, LADDER),
        "heads.shifted_mean_kernel": given(SETS, LADDER, FOUR),
    },
    "the size of lags or heads": {
        "analysis.mean_kernel: heads": given(LINES[:, None], many(SIDE, 1, 4, 1)),
        "analysis.similarity": given(many(2**26), LADDER),
    },
    "the size of lags or offset": {"heads.recentred_kernel": given(LINES[:, None], LINES, GAUSSIAN)},
    "the size of lags or frequencies": {
        "heads.profile": given(*np.ones((2, 4, 128)), many(LONG), WIDE_LADDER),
    },
    "the size of omega": {"Kernel.density": given(LAW, many(2**26))},
    "the size of u": {"Kernel.transport": given(LAW, many(2**26))},
    "the size of points": {"kernels.transport_points": given(SETS, GAUSSIAN, scale=2.0)},
    "the size of weights": {"kernels.mixture": given(SETS, [LAW])},
    "the size of weight": {"frequencies.fold": given(many(MANY, 4), np.eye(4))},
    "the size of generators": {"frequencies.from_generators": given(GENERATORS)},
    "the size of values": {
        "bochner.from_autocorrelation": given(SETS),
    },
    "the size of wavelengths": {"frequencies.from_wavelengths": given(SETS)},
    "the size of latitude": {"rotation.sphere_positions": given(SETS, 0.0)},
    "the size of adjacency": {"rotation.graph_positions": given(many(2**15, 2**15), 2)},
    "the size of table": {"models.audit": given(ROWS_8, rfrope.Rope(LADDER))},
    "the size of shift": {"heads.offset_of": given(WIDE_LADDER, many(2**20, 64), low=-8.0)},
    "the size of shift, offset or frequencies": {"heads.alignment": given(many(LONG), WIDE_LADDER, WIDE)},
    "the size of w_q": {"heads.offset_from_weights": given(many(8, MANY), many(8, MANY), LADDER, max_lag=8)},
    "the size of x or projections": {"features.positive: projections": given(ROW, ROW)},
    "the size of x or y": {"features.variance": given(COLUMN, ROW, 3)},
    "the size of projections or positions": {
        "features.stochastic": given(many(2**15, 64), np.arange(2**15), LADDER, many(64, 8, 2**12))
    },
    "the size of sets[0]": {"axial": given(SETS, SETS)},
    "the size of the sets": {"axial: many": given(*[np.ones(2**15)] * 2**9)},
    "the size of angles, or n_blocks": {"mixed: angles": given(2**12, np.zeros(2**14))},
    "n_blocks": {
        "geometric": given(MOST),
        "arithmetic": given(MOST, step=0.1),
        "mixed": given(MOST - 1, [0.0]),
        "frequencies.pixel": given(MOST),
        "frequencies.xpos_scales": given([0, 1], MOST),
        "estimate_kernel": given(1.0, GAUSSIAN, n_samples=MOST - 1, n_blocks=MOST // 2, design="sobol"),
    },
    "either": {"frequencies.xpos_scales: positions": given(np.zeros(10**5), 10**6)},
    "n_blocks, ndim or heads": {
        "golden_gate": given(8, low=0.1, high=1.0, heads=MOST),
        "golden_gate: axes": given(8, low=0.1, high=1.0, ndim=MOST),
    },
    "n_blocks or heads": {
        "sample": given(GAUSSIAN, 8, heads=MOST),
        "design": given(GAUSSIAN, head_dim=MOST - 1, context=64),
        "designs.points": given(GAUSSIAN, MOST),
    },
    "the number of blocks": {"moments.pair_covariance": given(1.0, GAUSSIAN, n_blocks=2**24, design="antithetic")},
    "magnitudes or n_directions": {"frequencies.isotropic": given([1.0, 0.5], MOST)},
    "lengths or frequencies": {"designs.directional_error": given([[1.0, 0.0, 0.0]], 1e6)},
    "scales or frequencies": {"designs.directional_bound": given([[1.0, 0.0]], 1e8)},
    "cu_seqlens": {"rotation.packed_positions": given([0, 2**40])},
    "segments[0]": {"rotation.mrope_positions": given([MOST])},
    "frames, height or width": {"rotation.mrope_positions: frames": given([(2**28, 32, 32)])},
    "shape": {"rotation.grid_positions": given((MOST, MOST))},
    "head_dim": {"models.from_rope_parameters": given({}, head_dim=MOST, rope_theta=1e4)},
    "d_model or head_dim": {"heads.positional_weights": given(LADDER, d_model=MOST)},
    "context": {
        **dict.fromkeys(("engines.export", "engines.rounding"), given(LADDER, "onnx", context=MOST)),
        "engines.write": given("never.npz", LADDER, "onnx", context=MOST),
    },
    "context or window": {
        "heads.positional_attention": given(LADDER, 2**31 - 1),
        "heads.temperature_for_mass": given(0.5, LADDER, context=2**31 - 1),
    },
    "n_grid": {"analysis.base_for_context": given(64, 8, n_grid=MOST)},
    "n_bins": {"analysis.density_of_states": given(LADDER, n_bins=MOST)},
    "n_resamples": {"heads.effective_offset": given(*np.ones((2, 4, 4)), [1.0, 0.5], n_resamples=MOST)},
    "max_positions": {"RotaryEmbedding": given(LADDER, max_positions=MOST)},
}
CASES = {case: (lower, *asked) for lower, calls in GREEDY.items() for case, asked in calls.items()}


@pytest.mark.skipif(sys.platform != "linux", reason="limits of memory are Linux's")
@pytest.mark.parametrize("case", CASES)
def test_calls_that_would_hold_too_much_are_refused_before_they_begin(case, monkeypatch, peak, tmp_path):
    if case.startswith("plotting"):
        pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(capacity.VARIABLE, raising=False)
    monkeypatch.setattr(capacity, "free", lambda: 8e9)
    lower, arguments, options = CASES[case]
    name = case.partition(":")[0]
    if name == "RotaryEmbedding":
        pytest.importorskip("torch")
    function = OFFERED[name] if name in OFFERED else importlib.import_module("rfrope.layers.torch").RotaryEmbedding
    peak(anew=True)
    words = r"would take .* GB of memory, but 50% of the free memory"
    with bad_input.watched(), pytest.raises(ValueError, match=words) as caught:
        function(*arguments, **options)
    assert f"expected less: lower {lower}, or set the environment variable RFROPE_MAX_BYTES" in str(caught.value)
    assert peak() < 2**26
    assert not [*tmp_path.iterdir()]


# -- what is asked about is what is held -------------------------------------------------------------------------------

RNG = np.random.default_rng(0)
LINE, ROWS = RNG.random(2**19), RNG.standard_normal((2**13, 128))
FEW_ROWS, PLACES = ROWS[:64], np.arange(2.0**13)

HELD = {
    "rotate": lambda: rfrope.rotate(ROWS, PLACES, WIDE_LADDER, shift=0.0),
    "rotation_table": lambda: rfrope.rotation_table(PLACES, WIDE_LADDER, scale=2.0, dtype=np.float32),
    "shift_matrix": lambda: rotation.shift_matrix(PLACES[:64], WIDE_LADDER),
    "scores": lambda: rfrope.scores(ROWS[:1024], ROWS[:1024], PLACES[:1024], PLACES[:1024], WIDE_LADDER),
    "Rope": lambda: rfrope.Rope(LINE),
    "xpos_scales": lambda: rfrope.frequencies.xpos_scales(LINE, 4),
    "mean_kernel": lambda: analysis.mean_kernel(LINE, [1.0, 0.5]),
    "departure": lambda: analysis.departure(FEW_ROWS, FEW_ROWS, LINE[: 2**13], WIDE_LADDER),
    "positional_attention": lambda: heads.positional_attention(WIDE_LADDER, 2**19),
    "shifted_terms": lambda: heads.shifted_terms(ROWS[:16, None], ROWS[:16, None], PLACES, WIDE_LADDER, np.ones(64)),
    "recentred_kernel": lambda: heads.recentred_kernel(LINE[:1024, None], LINE[:1024], "gaussian"),
    "relative_error": lambda: moments.relative_error(*[FEW_ROWS[:, None]] * 2, LINE[: 2**13], "gaussian(scale=9)"),
    "estimate_kernel": lambda: rfrope.estimate_kernel(LINE[: 2**16], "gaussian", n_samples=64, rng=0),
    "density": lambda: rfrope.kernel("rational_quadratic", alpha=1.5).density(LINE),
    "transport": lambda: rfrope.kernel("matern", nu=1.3).transport(LINE),
    "audit": lambda: models.audit(rfrope.rotation_table(PLACES, WIDE_LADDER), rfrope.Rope(WIDE_LADDER)),
}


@pytest.mark.parametrize("case", HELD)
def test_what_is_asked_about_is_about_what_is_held(case, monkeypatch, peak):
    """No estimate is half of the truth, nor eight times as much."""
    call, asked = HELD[case], []
    call()  # what is loaded and compiled is not the call's
    monkeypatch.setattr(capacity, "check", lambda n_bytes, *_: asked.append(n_bytes))
    monkeypatch.setattr(capacity, "SMALL", -1.0)
    monkeypatch.setattr(array, "_MANY", -1)
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
