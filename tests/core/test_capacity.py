"""What a call will hold is asked before it begins, by every public function whose arguments decide how much that is."""

from __future__ import annotations

import inspect
import io
import math
import sys
import tracemalloc

import bad_input
import numpy as np
import pytest
from public import OFFERED

import rfrope
from rfrope import (
    analysis,
    bochner,
    designs,
    exports,
    features,
    heads,
    kernels,
    models,
    moments,
    plotting,
    rotation,
    scaling,
)
from rfrope._core import array, capacity


def test_what_fits_passes(monkeypatch):
    monkeypatch.delenv(capacity.VARIABLE, raising=False)
    monkeypatch.setattr(capacity, "free", lambda: 1e9)
    capacity.check(4e8, "this", "n")
    with pytest.raises(
        ValueError, match=r"^this would take 0\.6 GB of memory, but 50% of the free memory is 0\.5 GB; .*lower n"
    ):
        capacity.check(6e8, "this", "n")


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

MOST = 2**32 - 1
MANY, LONG, SIDE = (
    2**31,
    2**24,
    2**17,
)  # numbers of no memory of their own, rows for 64 blocks, and the side of a square
LADDER, WIDE_LADDER = [1.0, 0.5, 0.25, 0.125], rfrope.geometric(64)
X = np.ones((4, 8))


def many(*shape, value=0.5, dtype=np.float64):
    """An array of one number, seen so often that what is made of it fills the memory."""
    return np.broadcast_to(dtype(value), shape)


def outer(function, *more, **options):
    """A call with as many queries and keys as lags, each on an axis of its own."""
    return lambda: function(np.ones((SIDE, 1, 8)), np.ones((SIDE, 1, 8)), *more, **options)


# by the name of a function, and what is large: a call that would hold too much, and what its error asks to lower
GREEDY = {
    "Rope": (lambda: rfrope.Rope(many(MANY)), "the size of frequencies"),
    "Rope.rotate": (lambda: rfrope.Rope(LADDER).rotate(many(MANY, 8), 3), "the size of x"),
    "Rope.scores": (
        lambda: rfrope.Rope(LADDER).scores(many(SIDE, 8), many(SIDE, 8), np.zeros(SIDE), np.zeros(SIDE)),
        "the size of q or k",
    ),
    "Rope.table": (lambda: rfrope.Rope(WIDE_LADDER).table(many(LONG)), "the size of positions or frequencies"),
    "Kernel.phi": (lambda: rfrope.kernel("gaussian").phi(many(MANY)), "the size of lags"),
    "Kernel.__call__": (lambda: rfrope.kernel("gaussian")(many(2**26)), "the size of lags"),
    "Kernel.phi2": (lambda: rfrope.kernel("gaussian").phi2(many(2**26)), "the size of lags"),
    "Kernel.density": (lambda: rfrope.kernel("gaussian").density(many(2**26)), "the size of omega"),
    "Kernel.transport": (lambda: rfrope.kernel("gaussian").transport(many(2**26)), "the size of u"),
    "rotate": (lambda: rfrope.rotate(many(MANY, 8), 3, LADDER), "the size of x"),
    "rotate_by_phases": (lambda: rfrope.rotate_by_phases(many(MANY, 8), np.ones(4)), "the size of x"),
    "rotate_by_table": (lambda: rfrope.rotate_by_table(many(MANY, 8), np.ones(4), np.ones(4)), "the size of x"),
    "rotation_table": (lambda: rfrope.rotation_table(many(LONG), WIDE_LADDER), "the size of positions or frequencies"),
    "sinusoidal": (lambda: rfrope.sinusoidal(many(LONG), WIDE_LADDER), "the size of positions or frequencies"),
    "scores": (
        lambda: rfrope.scores(many(SIDE, 8), many(SIDE, 8), np.zeros(SIDE), np.zeros(SIDE), LADDER),
        "the size of q or k",
    ),
    "block_coefficients": (lambda: rfrope.block_coefficients(many(SIDE, 1, 8), many(SIDE, 8)), "the size of q or k"),
    "convert_pairing": (lambda: rfrope.convert_pairing(many(MANY, 8), "half", "interleaved"), "the size of x"),
    "rotation.phases": (lambda: rotation.phases(many(LONG), WIDE_LADDER), "the size of positions or frequencies"),
    "rotation.shift_matrix": (
        lambda: rotation.shift_matrix(many(2**16), WIDE_LADDER),
        "the size of offset or frequencies",
    ),
    "rotation.to_complex": (lambda: rotation.to_complex(many(MANY, 8)), "the size of x"),
    "rotation.from_complex": (lambda: rotation.from_complex(many(MANY, 4, dtype=np.complex128)), "the size of z"),
    "rotation.rerotate": (lambda: rotation.rerotate(many(MANY, 8), 3, LADDER, LADDER), "the size of k"),
    "rotation.relocate": (lambda: rotation.relocate(many(MANY, 8), 3, 4, LADDER), "the size of k"),
    "rotation.quantise": (lambda: rotation.quantise(many(MANY, 32), "q8_0"), "the size of x"),
    "rotation.dequantise": (lambda: rotation.dequantise(many(MANY, 34, dtype=np.uint8), "q8_0"), "the size of k"),
    "rotation.relocate_quantised": (
        lambda: rotation.relocate_quantised(many(MANY, 18, dtype=np.uint8), 3, 4, LADDER, "q4_0"),
        "the size of k",
    ),
    "rotation.rotate_polar": (lambda: rotation.rotate_polar(many(MANY, 4), 3, LADDER), "the size of magnitudes"),
    "rotation.packed_positions": (lambda: rotation.packed_positions([0, 2**40]), "cu_seqlens"),
    "rotation.mrope_positions": (lambda: rotation.mrope_positions([MOST]), "segments[0]"),
    "rotation.mrope_positions: frames": (
        lambda: rotation.mrope_positions([(2**28, 32, 32)]),
        "frames, height or width",
    ),
    "rotation.grid_positions": (lambda: rotation.grid_positions((MOST, MOST)), "shape"),
    "rotation.sphere_positions": (lambda: rotation.sphere_positions(many(MANY), 0.0), "the size of latitude"),
    "rotation.graph_positions": (lambda: rotation.graph_positions(many(2**15, 2**15), 2), "the size of adjacency"),
    "geometric": (lambda: rfrope.geometric(MOST), "n_blocks"),
    "arithmetic": (lambda: rfrope.arithmetic(MOST, step=0.1), "n_blocks"),
    "axial": (lambda: rfrope.axial(many(MANY), many(MANY)), "the size of sets[0]"),
    "axial: many": (lambda: rfrope.axial(*[np.ones(2**15)] * 2**9), "the size of the sets"),
    "mixed": (lambda: rfrope.mixed(MOST - 1, [0.0]), "n_blocks"),
    "mixed: angles": (lambda: rfrope.mixed(2**12, np.zeros(2**14)), "the size of angles, or n_blocks"),
    "mrope": (lambda: rfrope.mrope(many(MANY), (2**30, 2**30)), "the size of frequencies"),
    "golden_gate": (lambda: rfrope.golden_gate(8, low=0.1, high=1.0, heads=MOST), "n_blocks, ndim or heads"),
    "golden_gate: axes": (lambda: rfrope.golden_gate(8, low=0.1, high=1.0, ndim=MOST), "n_blocks, ndim or heads"),
    "frequencies.isotropic": (lambda: rfrope.frequencies.isotropic([1.0, 0.5], MOST), "magnitudes or n_directions"),
    "designs.directional_error": (lambda: designs.directional_error([[1.0, 0.0, 0.0]], 1e6), "lengths or frequencies"),
    "designs.directional_bound": (lambda: designs.directional_bound([[1.0, 0.0]], 1e8), "scales or frequencies"),
    "designs.dual_lattice": (
        lambda: designs.dual_lattice("gaussian(ndim=3)", 8, most=2**12),
        "most, n_blocks or the kernel's columns",
    ),
    "moments.pair_covariance": (
        lambda: moments.pair_covariance(1.0, "gaussian", n_blocks=2**24, design="sobol"),
        "the number of blocks",
    ),
    "kernels.evaluate_phi": (lambda: kernels.evaluate_phi(many(MANY), "gaussian", scale=2.0), "the size of lags"),
    "kernels.transport_points": (
        lambda: kernels.transport_points(many(MANY), "gaussian", scale=2.0),
        "the size of points",
    ),
    "frequencies.pixel": (lambda: rfrope.frequencies.pixel(MOST), "n_blocks"),
    "frequencies.from_wavelengths": (
        lambda: rfrope.frequencies.from_wavelengths(many(MANY)),
        "the size of wavelengths",
    ),
    "frequencies.xpos_scales": (lambda: rfrope.frequencies.xpos_scales([0, 1], MOST), "n_blocks"),
    "frequencies.xpos_scales: positions": (lambda: rfrope.frequencies.xpos_scales(np.zeros(10**5), 10**6), "either"),
    "rotation.cumulative_phases": (lambda: rotation.cumulative_phases(many(MANY, 4)), "the size of rates"),
    **{
        f"frequencies.{name}": (
            lambda name=name: getattr(rfrope.frequencies, name)(many(2**15, 2**15, value=0.0)),
            "the size of generators",
        )
        for name in ("relative_commutator", "nearest_commuting")
    },
    "frequencies.fold": (lambda: rfrope.frequencies.fold(many(MANY, 4), np.eye(4)), "the size of weight"),
    "frequencies.fold_gains": (lambda: rfrope.frequencies.fold_gains(many(MANY), np.eye(4)), "the size of gains"),
    "analysis.toeplitz_defect": (lambda: rfrope.analysis.toeplitz_defect(many(SIDE, SIDE)), "the size of values"),
    "analysis.fourier_two_point": (
        lambda: rfrope.analysis.fourier_two_point(np.zeros(SIDE), np.zeros(SIDE), [1.0], np.eye(1), np.eye(1)),
        "the size of q_positions or k_positions",
    ),
    "heads.lag_bias": (lambda: heads.lag_bias(np.zeros((SIDE, 1)), np.ones(SIDE)), "the size of lags, weight or shape"),
    "heads.t5_bias": (
        lambda: heads.t5_bias(np.zeros(SIDE, int), np.zeros((SIDE, 2)), max_distance=3),
        "the size of lags or table",
    ),
    "heads.fire_bias": (
        lambda: heads.fire_bias(np.zeros(SIDE), np.zeros(SIDE), abs, c=1.0, threshold=1.0),
        "the size of q_positions or k_positions",
    ),
    "frequencies.from_generators": (
        lambda: rfrope.frequencies.from_generators(many(2**15, 2**15, value=0.0)),
        "the size of generators",
    ),
    "sample": (lambda: rfrope.sample("gaussian", 8, heads=MOST), "n_blocks or heads"),
    "design": (lambda: rfrope.design("gaussian", head_dim=MOST - 1, context=64), "n_blocks or heads"),
    "designs.points": (lambda: rfrope.designs.points("gaussian", MOST), "n_blocks or heads"),
    "kernels.mixture": (lambda: rfrope.kernels.mixture(many(MANY), [rfrope.kernel("gaussian")]), "the size of weights"),
    "expected_score": (outer(rfrope.expected_score, np.zeros(SIDE), "gaussian"), "the size of q, k or lags"),
    "score_variance": (outer(rfrope.score_variance, np.zeros(SIDE), "gaussian"), "the size of q, k or lags"),
    "moments.relative_error": (outer(moments.relative_error, np.zeros(SIDE), "gaussian"), "the size of q, k or lags"),
    "moments.effective_blocks": (
        lambda: moments.effective_blocks(many(SIDE, 1, 8), many(1, SIDE, 8)),
        "the size of q or k",
    ),
    "moments.polar_score": (outer(moments.polar_score, np.zeros(SIDE), "gaussian"), "the size of q, k or lags"),
    "moments.polar_tail": (outer(moments.polar_tail, np.zeros(SIDE), "gaussian", 1.0), "the size of q, k or lags"),
    "moments.polar_variance": (outer(moments.polar_variance, np.zeros(SIDE), "gaussian"), "the size of q, k or lags"),
    "moments.polar_error": (
        outer(moments.polar_error, np.zeros(SIDE), "gaussian", design="antithetic"),
        "the size of q, k or lags",
    ),
    "moments.mean_kernel_band": (
        lambda: moments.mean_kernel_band(many(2**26), "gaussian", n_blocks=4),
        "the size of lags",
    ),
    "estimate_kernel": (
        lambda: rfrope.estimate_kernel(1.0, "gaussian", n_samples=MOST - 1, n_blocks=MOST // 2, design="sobol"),
        "n_blocks",
    ),
    "estimate_scores": (
        lambda: rfrope.estimate_scores(TOKENS, TOKENS, LAGS, "gaussian", n_trials=4, design="sobol"),
        "the number of lags",
    ),
    "validate": (
        lambda: rfrope.validate("gaussian", q=many(MANY, 8), k=many(MANY, 8), lags=[1.0], n_samples=64, n_trials=8),
        "the size of q",
    ),
    "models.from_rope_parameters": (lambda: models.from_rope_parameters({}, head_dim=MOST, rope_theta=1e4), "head_dim"),
    "models.audit": (lambda: models.audit(many(MANY, 8), rfrope.Rope(LADDER)), "the size of table"),
    "exports.export": (lambda: exports.export(LADDER, "onnx", context=MOST), "context"),
    "exports.rounding": (lambda: exports.rounding(LADDER, "onnx", context=MOST), "context"),
    "exports.write": (lambda: exports.write("never.npz", LADDER, "onnx", context=MOST), "context"),
    "save": (lambda: rfrope.save("never.npz", many(MANY)), "the size of frequencies"),
    "scaling.linear": (lambda: scaling.linear(many(MANY), 2.0), "the size of frequencies"),
    "scaling.ntk": (lambda: scaling.ntk(many(MANY), 2.0), "the size of frequencies"),
    "scaling.dynamic_ntk": (
        lambda: scaling.dynamic_ntk(many(MANY), 2.0, seq_len=128, max_position_embeddings=64),
        "the size of frequencies",
    ),
    "scaling.proportional": (lambda: scaling.proportional(many(MANY)), "the size of frequencies"),
    "scaling.yarn": (
        lambda: scaling.yarn(many(MANY), 2.0, original_max_position_embeddings=64, base=16.0),
        "the size of frequencies",
    ),
    "scaling.longrope": (
        lambda: scaling.longrope(
            LADDER, short_factor=many(MANY), long_factor=X[0], original_max_position_embeddings=64, factor=2.0
        ),
        "the size of short_factor",
    ),
    "scaling.llama3": (
        lambda: scaling.llama3(
            many(MANY), 2.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64
        ),
        "the size of frequencies",
    ),
    "analysis.mean_kernel": (lambda: analysis.mean_kernel(many(MANY), LADDER), "the size of lags"),
    "analysis.mean_kernel: heads": (
        lambda: analysis.mean_kernel(np.zeros((SIDE, 1)), many(SIDE, 1, 4, 1)),
        "the size of lags or heads",
    ),
    "analysis.log_uniform_kernel": (lambda: analysis.log_uniform_kernel(many(2**26)), "the size of lags"),
    "analysis.dirichlet": (lambda: analysis.dirichlet(many(2**26), 4), "the size of lags"),
    "analysis.first_negative_lag": (lambda: analysis.first_negative_lag(many(MANY), 64), "the size of frequencies"),
    "analysis.aliasing_distance": (lambda: analysis.aliasing_distance(many(MANY), 64), "the size of frequencies"),
    "analysis.base_for_context": (lambda: analysis.base_for_context(64, 8, n_grid=MOST), "n_grid"),
    "analysis.wavelengths": (lambda: analysis.wavelengths(many(MANY)), "the size of frequencies"),
    "analysis.turns": (lambda: analysis.turns(many(MANY), 3.0), "the size of frequencies"),
    "analysis.density_of_states": (lambda: analysis.density_of_states(LADDER, n_bins=MOST), "n_bins"),
    "analysis.density_of_states: set": (lambda: analysis.density_of_states(many(2**26)), "the size of frequencies"),
    "analysis.sine_share": (outer(analysis.sine_share, np.zeros(SIDE), LADDER), "the size of q, k or lags"),
    "analysis.similarity": (lambda: analysis.similarity(many(2**26), LADDER), "the size of lags or heads"),
    "analysis.departure": (
        lambda: analysis.departure(np.ones((SIDE, 8)), np.ones((SIDE, 8)), np.zeros(SIDE), LADDER),
        "the size of q, k or lags",
    ),
    "analysis.precision_budget": (
        lambda: analysis.precision_budget(many(SIDE, 8), many(SIDE, 8), LADDER, 64),
        "the size of q or k",
    ),
    "analysis.fit_kernel": (lambda: analysis.fit_kernel(many(MANY), 8, names=["gaussian"]), "the size of frequencies"),
    "analysis.scaling_effect": (lambda: analysis.scaling_effect(many(MANY), LADDER, LADDER), "the size of lags"),
    "analysis.plan": (lambda: analysis.plan(many(MANY), 64, trained_context=16), "the size of frequencies"),
    "analysis.summarise": (lambda: analysis.summarise(many(MANY), 64), "the size of frequencies"),
    "heads.atlas": (lambda: heads.atlas(many(3, 1, SIDE, 8), many(3, 1, SIDE, 8), np.ones(4)), "the tokens of q"),
    "heads.phase_shift": (lambda: heads.phase_shift(many(LONG), WIDE_LADDER), "the size of offset or frequencies"),
    "heads.aligned_shift": (
        lambda: heads.aligned_shift(many(LONG), WIDE_LADDER, np.ones(64)),
        "the size of offset or frequencies",
    ),
    "heads.alignment": (
        lambda: heads.alignment(many(LONG), WIDE_LADDER, np.ones(64)),
        "the size of shift, offset or frequencies",
    ),
    "heads.offset_of": (lambda: heads.offset_of(WIDE_LADDER, many(2**20, 64), low=-8.0), "the size of shift"),
    "heads.positional_weights": (lambda: heads.positional_weights(LADDER, d_model=MOST), "d_model or head_dim"),
    "heads.positional_scores": (lambda: heads.positional_scores(many(MANY), LADDER), "the size of lags"),
    "heads.positional_attention": (lambda: heads.positional_attention(LADDER, 2**31 - 1), "context or window"),
    "heads.temperature_for_mass": (
        lambda: heads.temperature_for_mass(0.5, LADDER, context=2**31 - 1),
        "context or window",
    ),
    "heads.shifted_mean_kernel": (
        lambda: heads.shifted_mean_kernel(many(MANY), LADDER, np.ones(4)),
        "the size of lags",
    ),
    "heads.shifted_scores": (
        outer(heads.shifted_scores, np.zeros(SIDE), LADDER, np.ones(4)),
        "the size of q, k or lags",
    ),
    "heads.shifted_terms": (
        lambda: heads.shifted_terms(X[0], X[0], many(2**25), LADDER, np.ones(4)),
        "the size of q, k or lags",
    ),
    "heads.recentred_kernel": (
        lambda: heads.recentred_kernel(np.zeros((SIDE, 1)), np.zeros(SIDE), "gaussian"),
        "the size of lags or offset",
    ),
    "heads.profile": (
        lambda: heads.profile(np.ones((4, 128)), np.ones((4, 128)), many(LONG), WIDE_LADDER),
        "the size of lags or frequencies",
    ),
    "heads.effective_offset": (
        lambda: heads.effective_offset(np.ones((4, 4)), np.ones((4, 4)), [1.0, 0.5], n_resamples=MOST),
        "n_resamples",
    ),
    "heads.offset_from_weights": (
        lambda: heads.offset_from_weights(many(8, MANY), many(8, MANY), LADDER, max_lag=8),
        "the size of w_q",
    ),
    "bochner.from_autocorrelation": (lambda: bochner.from_autocorrelation(many(MANY)), "the size of values"),
    "bochner.from_series": (lambda: bochner.from_series(many(MANY)), "the size of x"),
    "features.positive": (lambda: features.positive(many(MANY, 8), X), "the size of x"),
    "features.positive: projections": (
        lambda: features.positive(np.ones((SIDE, 8)), np.ones((SIDE, 8))),
        "the size of x or projections",
    ),
    "features.hyperbolic": (lambda: features.hyperbolic(many(MANY, 8), X), "the size of x"),
    "features.trigonometric": (lambda: features.trigonometric(many(MANY, 8), X), "the size of x"),
    "features.variance": (
        lambda: features.variance(np.ones((SIDE, 1, 8)), np.ones((SIDE, 8)), 3),
        "the size of x or y",
    ),
    "features.linear_attention": (
        lambda: features.linear_attention(np.ones((SIDE, 1, 1, 8)), *np.ones((2, SIDE, 1, 8))),
        "the size of q, k or v",
    ),
    "features.stochastic": (
        lambda: features.stochastic(np.ones((2**15, 64)), np.arange(2**15), LADDER, np.ones((64, 8, 2**12))),
        "the size of projections or positions",
    ),
    "features.stochastic_variance": (
        outer(features.stochastic_variance, np.zeros(SIDE), "gaussian", 3),
        "the size of q, k or lags",
    ),
    "plotting.frequencies": (lambda: plotting.frequencies(many(MANY)), "the size of rope"),
    "plotting.kernel": (lambda: plotting.kernel("gaussian", 64, frequencies=many(MANY)), "the size of frequencies"),
    "plotting.mean_kernels": (lambda: plotting.mean_kernels({"a": many(MANY)}, 8), "the size of sets['a']"),
    "plotting.wavelengths": (lambda: plotting.wavelengths({"a": many(MANY)}), "the size of sets['a']"),
    "RotaryEmbedding": (lambda: rotary_embedding()(LADDER, max_positions=MOST), "max_positions"),
}
TOKENS, LAGS = np.ones((1024, 1, 64)), np.ones(2**16)
# the other public functions, and why they hold little
MODEST = {
    **dict.fromkeys(
        ("from_config", "models.can_relocate", "models.list_layers", "models.diff", "models.compare"),
        "heads of a config have at most 65536 features, and models as many layers",
    ),
    "load": "a file asks by its length (tests/core/test_files.py)",
    "models.conformance": "it makes the same vectors always",
    "models.probe": "it asks a model that is there, in vectors as wide as its heads",
    "rotation.relocation_bound": "it makes numbers of numbers",
    "blocks_for_error": "it makes numbers of numbers",
    "kernel": "a kernel holds its parameters",
    "kernels.parse": "texts have a bound",
    "kernels.axes": "a kernel holds the kernels that it is made of",
    "kernels.register": "it holds a record",
    "Kernel.rescale": "a kernel holds its parameters",
    "Kernel.warp": "a matrix has as many rows and columns as the kernel axes",
    "Kernel.__mul__": "a kernel holds the kernels that it is made of",
    "designs.quadrature": "its blocks are at most 256",
    "designs.optimise": "its unknowns are at most 1024",
    "bochner.from_density": "panels are bounded in number",
    "bochner.from_function": "panels are bounded in number",
    "bochner.nearest": "panels are bounded in number",
    "plotting.attention": "it draws a result that is there",
    "plotting.validation": "it draws a result that is there",
    "threads": "it holds a number",
}


def rotary_embedding():
    pytest.importorskip("torch")
    from rfrope.layers.torch import RotaryEmbedding

    return RotaryEmbedding


def public():
    """Names of all public functions that take arguments, of Rope and of the methods of Rope and Kernel."""
    names = {id(one): name for name, one in reversed(OFFERED.items()) if inspect.isfunction(one)}
    names = {name for name in names.values() if inspect.signature(OFFERED[name]).parameters}
    return {*names, "Rope", "RotaryEmbedding"} - {"Rope.__init__"}


def test_every_public_function_asks_or_has_a_reason_not_to():
    asks = {case.partition(":")[0] for case in GREEDY}
    assert asks | MODEST.keys() == public()
    assert asks & MODEST.keys() == set()
    assert all(MODEST.values())


@pytest.mark.skipif(sys.platform != "linux", reason="limits of memory are Linux's")
@pytest.mark.parametrize("case", GREEDY)
def test_calls_that_would_hold_too_much_are_refused_before_they_begin(case, monkeypatch, peak, tmp_path):
    if case.startswith("plotting"):
        pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(capacity.VARIABLE, raising=False)
    monkeypatch.setattr(capacity, "free", lambda: 8e9)
    call, lower = GREEDY[case]
    peak(anew=True)
    with (
        bad_input.watched(),
        pytest.raises(ValueError, match=r"would take .* GB of memory, but 50% of the free memory") as caught,
    ):
        call()
    assert f"expected less: lower {lower}, or set the environment variable RFROPE_MAX_BYTES" in str(caught.value)
    assert peak() < 2**26
    assert not [*tmp_path.iterdir()]


def test_the_variable_lets_a_call_through(monkeypatch):
    monkeypatch.setenv(capacity.VARIABLE, "1e3")
    with pytest.raises(ValueError, match="RFROPE_MAX_BYTES allows"):
        rfrope.geometric(100)
    monkeypatch.setenv(capacity.VARIABLE, "1e4")
    assert rfrope.geometric(100).shape == (100,)


# -- what is asked about is what is held -------------------------------------------------------------------------------

RNG = np.random.default_rng(0)
LINE, ROWS = RNG.random(2**19), RNG.standard_normal((2**13, 128))
FEW_ROWS, PLACES = ROWS[:64], np.arange(2.0**13)


def apart(rows):
    """Vectors on an axis of their own."""
    return rows[:, None, :]


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
    "relative_error": lambda: moments.relative_error(
        apart(FEW_ROWS), apart(FEW_ROWS), LINE[: 2**13], "gaussian(scale=9)"
    ),
    "estimate_kernel": lambda: rfrope.estimate_kernel(LINE[: 2**16], "gaussian", n_samples=64, rng=0),
    "density": lambda: rfrope.kernel("rational_quadratic", alpha=1.5).density(LINE),
    "transport": lambda: rfrope.kernel("matern", nu=1.3).transport(LINE),
    "audit": lambda: models.audit(rfrope.rotation_table(PLACES, WIDE_LADDER), rfrope.Rope(WIDE_LADDER)),
}


@pytest.mark.parametrize("case", HELD)
def test_what_is_asked_about_is_about_what_is_held(case, monkeypatch):
    """No estimate is half of the truth, nor eight times as much."""
    call, asked = HELD[case], []
    call()  # what is loaded and compiled is not the call's
    monkeypatch.setattr(capacity, "check", lambda n_bytes, *_: asked.append(n_bytes))
    monkeypatch.setattr(capacity, "SMALL", -1.0)
    monkeypatch.setattr(array, "_MANY", -1)
    tracemalloc.start()
    call()
    held = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert 0.5 * held < max(asked) + 2**20
    assert max(asked) < 8.0 * held


# -- arrays in parts that take a moment each ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "shape", [(), (0,), (7,), (1000,), (3, 200), (200, 3), (2, 90, 4), (9, 9, 9), (1, 1, 500), (0, 5)]
)
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
