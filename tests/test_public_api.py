"""``__all__``, signatures and docstrings: what they promise, held against reality."""

from __future__ import annotations

import dataclasses
import inspect
import re
import types

import pytest

import rfrope
from rfrope import analysis, bochner, heads, kernels, plotting, scaling

# Names, kinds and defaults are the contract: parameters may be added, none renamed.
SIGNATURES = {
    "rotate": "(x, positions, frequencies, *, pairing='half', out_pairing=None, shift=None, scale=1.0, inverse=False, "
    "out=None)",
    "rotate_by_phases": "(x, phases, *, pairing='half', out_pairing=None, scale=1.0, inverse=False, out=None)",
    "rotate_by_table": "(x, cos, sin, *, pairing='half', out_pairing=None, out=None)",
    "rotation_table": "(positions, frequencies, *, shift=None, scale=1.0, dtype=None)",
    "convert_pairing": "(x, source, target, *, axis=-1, width=None)",
    "scores": "(q, k, q_positions, k_positions, frequencies, *, pairing='half', shift=None)",
    "block_coefficients": "(q, k, *, pairing='half')",
    "threads": "(count)",
    "save": "(path, rope, /, *, overwrite=False, source=None)",
    "load": "(path, *, xp=None, device=None, dtype=None)",
    "kernel": "(name, **parameters)",
    "sample": "(kernel, n_blocks, *, rng=None, design='iid', heads=None, xp=None, device=None, dtype=None, "
    "max_lag=None, norm=None)",
    "design": "(kernel, *, head_dim, context, heads=None, design='auto', rng=None, rotary_dim=None, ladder=None, "
    "norm=None, pairing='half', xp=None, device=None, dtype=None)",
    "geometric": "(n_blocks, *, base=10000.0, xp=None, device=None, dtype=None)",
    "arithmetic": "(n_blocks, *, step, xp=None, device=None, dtype=None)",
    "axial": "(*sets, order='chunked')",
    "mixed": "(n_blocks, angles, *, base=10.0)",
    "golden_gate": "(n_blocks, *, low, high, ndim=2, heads=None, zero_blocks=0, xp=None, device=None, dtype=None)",
    "mrope": "(frequencies, sections, *, interleaved=False)",
    "sinusoidal": "(positions, frequencies, *, pairing='interleaved', dtype=None)",
    "from_config": "(config, *, seq_len=None, pairing=None, xp=None, device=None, dtype=None)",
    "expected_score": "(q, k, lags, kernel, *, pairing='half')",
    "score_variance": "(q, k, lags, kernel, *, pairing='half')",
    "blocks_for_error": "(kernel, *, max_lag, error, confidence=0.95)",
    "estimate_kernel": "(lags, kernel, *, n_samples, rng=None, design='iid', n_blocks=None, quantity='phi', "
    "executor=None, progress=None, checkpoint=None)",
    "estimate_scores": "(q, k, lags, kernel, *, n_trials, rng=None, design='iid', pairing='half', executor=None, "
    "progress=None, checkpoint=None)",
    "validate": "(kernel, *, q=None, k=None, lags=None, n_samples=1048576, n_trials=16384, n_blocks=None, rng=None, "
    "alpha=0.001, pairing='half', executor=None, progress=None)",
}
# Public functions that are not at the top, in the modules that own them.
MODULE_SIGNATURES = {
    "designs.optimise": "(kernel, n_blocks, *, max_lag, norm='rms', starts=None, progress=None, xp=None, device=None, "
    "dtype=None)",
    "designs.points": "(kernel, n_blocks, *, design='stratified', rng=None, heads=None)",
    "frequencies.from_generators": "(generators)",
    "frequencies.from_wavelengths": "(wavelengths)",
    "frequencies.pixel": "(n_blocks, *, max_freq=10.0, xp=None, device=None, dtype=None)",
    "frequencies.xpos_scales": "(positions, n_blocks, *, scale_base=512.0, centre=0.0)",
    "models.from_rope_parameters": "(rope_parameters, *, head_dim, max_position_embeddings=None, seq_len=None, "
    "rope_theta=None, partial_rotary_factor=None, xp=None, device=None, dtype=None)",
    "models.audit": "(what, rope=None, *, context=None)",
    "models.compare": "(config, engines=None, *, seq_len=None)",
    "engines.names": "()",
    "engines.records": "()",
    "exports.export": "(rope, engine, *, context=None, base=None, dtype=None, architecture=None)",
    "exports.names": "()",
    "exports.records": "()",
    "exports.rounding": "(rope, engine, *, context=None, base=None, dtype=None, architecture=None)",
    "exports.write": "(path, rope, engine, *, model=None, part=None, overwrite=False, context=None, base=None, "
    "dtype=None, architecture=None)",
    "models.conformance": "(folder=None)",
    "moments.mean_kernel_band": "(lags, kernel, *, n_blocks, confidence=0.95)",
    "moments.relative_error": "(q, k, lags, kernel, *, pairing='half')",
    "rotation.from_complex": "(z, *, pairing='half')",
    "rotation.grid_positions": "(shape, *, resized='extrapolate', trained=None, xp=None, device=None, dtype=None)",
    "rotation.mrope_positions": "(segments, *, merge=2, start=0, after_video='largest', xp=None, device=None)",
    "rotation.packed_positions": "(cu_seqlens, *, starts=0)",
    "rotation.phases": "(positions, frequencies, *, shift=None)",
    "rotation.rerotate": "(k, positions, old, new, *, out=None)",
    "rotation.shift_matrix": "(offset, frequencies, *, pairing='interleaved', dtype=None)",
    "rotation.to_complex": "(x, *, pairing='half')",
}
ROPE_SIGNATURES = {
    "__init__": "(self, frequencies, *, pairing='half', head_dim=None, attention_factor=1.0, sections=None, "
    "interleaved=False, context=None, source=None)",
    "rotate": "(self, x, positions, *, inverse=False, out=None)",
    "scores": "(self, q, k, q_positions, k_positions)",
    "table": "(self, positions, *, dtype=None)",
}
KERNEL_SIGNATURES = {
    "names": "()",
    "records": "()",
    "register": "(name, factory, *, formula, law, dimensions='any k', example=None, aliases=())",
    "kernel": "(name, **parameters)",
    "parse": "(text)",
    "mixture": "(weights, kernels)",
    "axes": "(*kernels)",
}
ANALYSIS_SIGNATURES = {
    "mean_kernel": "(lags, frequencies)",
    "log_uniform_kernel": "(lags, base=10000.0, *, n_blocks=None)",
    "dirichlet": "(lags, n_blocks, *, step=1.0)",
    "first_negative_lag": "(frequencies, max_lag)",
    "aliasing_distance": "(frequencies, max_lag, *, threshold=0.9)",
    "base_for_context": "(context, n_blocks, *, max_base=None, n_grid=1200)",
    "wavelengths": "(frequencies)",
    "turns": "(frequencies, context)",
    "density_of_states": "(frequencies, *, n_bins=None)",
    "sine_share": "(q, k, lags, frequencies, *, pairing='half')",
    "similarity": "(lags, frequencies, *, cosine=1.0)",
    "departure": "(q, k, lags, frequencies, *, pairing='half')",
    "fit_kernel": "(frequencies, max_lag, *, names=None)",
    "scaling_effect": "(lags, before, after)",
    "plan": "(rope, context, *, trained_context=None, progress=None)",
    "summarise": "(frequencies, context=None, *, attention_factor=None, head_dim=None, name=None)",
}
ANALYSIS_FIELDS = {
    "AxisSummary": (
        "axis",
        "n_turning",
        "shortest",
        "longest",
        "n_dead",
        "n_still",
        "base",
        "curve",
        "half_lag",
        "first_negative_lag",
        "negative_share",
        "lowest",
        "lowest_lag",
        "found_less",
        "aliasing_distance",
        "integral_rule",
        "fit",
        "context",
    ),
    "Summary": ("name", "n_blocks", "head_dim", "context", "attention_factor", "random_std", "axes"),
    "BaseForContext": (
        "context",
        "n_blocks",
        "integral_rule",
        "smallest",
        "islands",
        "always_above",
        "grid",
    ),
    "DensityOfStates": ("magnitudes", "zeros", "edges", "share", "low", "high", "distance"),
    "Departure": ("phi", "residual", "overall"),
    "KernelFit": ("kernel", "rms", "sup", "at_limit"),
    "Plan": (
        *(
            "trained_context",
            "context",
            "n_blocks",
            "n_dead",
            "trained_negative_lag",
            "methods",
            "left_out",
            "stretched",
        ),
    ),
    "ScalingEffect": ("before", "after", "change", "largest", "largest_at", "wavelength_ratio"),
    "Similarity": ("mean", "std", "random_std", "radius"),
    "Method": (
        "name",
        "rope",
        "rope_parameters",
        "departure",
        "unseen",
        "first_negative_lag",
        "resolution",
        "perplexity",
        "places",
    ),
}
SCALING_SIGNATURES = {
    "linear": "(frequencies, factor)",
    "ntk": "(frequencies, factor)",
    "dynamic_ntk": "(frequencies, factor, *, seq_len, max_position_embeddings)",
    "yarn": "(frequencies, factor, *, original_max_position_embeddings, base=None, beta_fast=32.0, beta_slow=1.0, "
    "truncate=True, attention_factor=None, mscale=None, mscale_all_dim=None)",
    "longrope": "(frequencies, *, short_factor, long_factor, original_max_position_embeddings, factor, seq_len=None, "
    "attention_factor=None)",
    "llama3": "(frequencies, factor, *, low_freq_factor, high_freq_factor, original_max_position_embeddings)",
    "proportional": "(frequencies, *, partial_rotary_factor=1.0, factor=1.0)",
}
HEADS_SIGNATURES = {
    "aligned_shift": "(offset, frequencies, cosine, sine=None)",
    "alignment": "(offset, frequencies, shift, *, weights=None)",
    "positional_attention": "(frequencies, context, *, offset=-1, temperature=1.0, offset_weights=None, scaled=True, "
    "causal=True, window=None, query_position=None, head_dim=None)",
    "effective_offset": "(q, k, frequencies, *, max_lag=None, pairing='half', causal=True, scale=None, "
    "paired=True, n_resamples=1000, rng=0)",
    "offset_from_weights": "(w_q, w_k, frequencies, *, max_lag, mean=None, second_moment=None, pairing='half', "
    "causal=True, scale=None)",
    "offset_of": "(frequencies, shift, *, low, high=0.0, weights=None)",
    "phase_shift": "(offset, frequencies)",
    "positional_weights": "(frequencies, *, d_model, offset=-1, temperature=1.0, offset_weights=None, pairing='half', "
    "constant_index=0, constant=1.0, head_dim=None, dtype=None)",
    "profile": "(q, k, lags, frequencies, *, pairing='half', pairs='all', q_positions=None, k_positions=None, "
    "paired=True, scale=1.0)",
    "recentred_kernel": "(lags, offset, kernel)",
    "positional_scores": "(lags, frequencies, *, offset=-1, temperature=1.0, offset_weights=None, scaled=True, "
    "head_dim=None)",
    "shifted_mean_kernel": "(lags, frequencies, shift)",
    "shifted_scores": "(q, k, lags, frequencies, shift, *, pairing='half')",
    "shifted_terms": "(q, k, lags, frequencies, shift, *, pairing='half')",
    "temperature_for_mass": "(mass, frequencies, *, context, offset=-1, scaled=True, causal=True, window=None, "
    "query_position=None, head_dim=None)",
}
HEADS_FIELDS = {
    "Alignment": ("overall", "blocks", "angles"),
    "PositionalAttention": ("lags", "scores", "weights", "mass", "rival", "gap"),
    "EffectiveOffset": ("offset", "stderr", "confidence", "value", "runner_up", "runner_up_value", "lag", "mass"),
    "Peak": ("offset", "value", "runner_up", "runner_up_value"),
    "Profile": ("lags", "mean", "spread", "stderr", "count", "cosine", "sine", "blocks"),
    "ShiftedTerms": ("cosine", "sine", "rest"),
    "WeightOffset": (
        "offset",
        "confidence",
        "value",
        "runner_up",
        "runner_up_value",
        "lag",
        "mass",
        "angle",
        "weight",
        "quality",
    ),
}
BOCHNER_SIGNATURES = {
    "from_autocorrelation": "(values, *, spacing=1.0, ridge=0.0)",
    "from_density": "(density, *, ndim=1, support=None, frequency=None, normalise=False)",
    "from_function": "(phi, *, ndim=1, scale=None, tolerance=1e-09)",
    "from_series": "(x, *, axis=-1, spacing=1.0, max_lag=None, window=None, remove_mean=True, ridge=0.0)",
    "nearest": "(phi, *, ndim=1, scale=None, tolerance=1e-09)",
}
KERNEL_METHODS = {
    "__call__": "(self, lags)",
    "__mul__": "(self, other)",
    "phi": "(self, lags)",
    "phi2": "(self, lags)",
    "density": "(self, omega)",
    "transport": "(self, u)",
    "rescale": "(self, scale)",
    "warp": "(self, matrix)",
}
PLOTTING_SIGNATURES = {
    "kernel": "(law, max_lag, *, frequencies=None, n_blocks=None, ax=None)",
    "frequencies": "(rope, *, ax=None)",
    "attention": "(result, *, ax=None)",
    "mean_kernels": "(sets, max_lag, *, ax=None)",
    "wavelengths": "(sets, *, context=None, ax=None)",
    "validation": "(result, *, ax=None)",
}
FIELDS = {
    "Rope": (
        "frequencies",
        "pairing",
        "head_dim",
        "attention_factor",
        "sections",
        "interleaved",
        "context",
        "source",
    ),
    "models.Audit": ("findings", "checked", "context", "exceeds"),
    "models.Comparison": ("ropes",),
    "models.EngineReport": (
        *("engine", "version", "sources", "status", "reason", "rope", "frequency_error", "score_ratio"),
        *("differs_from", "findings"),
    ),
    "models.Finding": ("kind", "where", "text", "position"),
    "models.RopeComparison": (
        *("name", "model_type", "scheme", "seq_len", "context", "qk_head_dim", "reference", "engines", "write"),
        *("then_agree", "still_differ"),
    ),
    "engines.Engine": ("name", "reading", "format"),
    "engines.Reading": ("version", "sources", "rule", "model_types"),
    "engines.ConfigRope": ("rope", "values", "written", "raw", "seq_len"),
    "engines.EngineRope": (
        *("frequencies", "attention_factor", "length", "pairing", "positions", "ignored_keys", "note"),
    ),
    "engines.Format": (
        *("carries", "exact", "source", "make", "arithmetic", "suffixes", "copies_model", "pairings", "factor"),
        *("any_rope", "options", "refusal", "cannot"),
    ),
    "engines.ExportRequest": ("rope", "context", "base", "dtype", "architecture"),
    "engines.Arithmetic": ("frequencies", "phase_error", "entry_error"),
    "exports.Rounding": ("frequency", "kernel", "table", "context"),
    "moments.Band": ("value", "stderr", "lower", "upper", "confidence"),
    "montecarlo.Estimate": ("value", "stderr", "n", "trusted"),
    "montecarlo.ScoreEstimate": ("mean", "variance", "n_trials"),
    "scaling.Scheme": ("name", "does", "make", "required", "optional", "idle", "aliases", "by_length"),
    "validation.Validation": (
        "kernel",
        "lags",
        "rows",
        "alpha",
        "bound",
        "n_samples",
        "n_trials",
        "n_blocks",
        "n_pairs",
        "spread",
    ),
}
MODULES = (
    *(
        "analysis",
        "bochner",
        "designs",
        "engines",
        "exports",
        "frequencies",
        "heads",
        "kernels",
        "layers",
        "models",
        "moments",
    ),
    "montecarlo",
    *("plotting", "rotation", "scaling", "storage", "validation"),
)


TABLED = ("analysis", "bochner", "heads", "kernels", "plotting", "scaling")  # these have a table above


def at(name: str):
    """What stands under a name with dots, in rfrope."""
    found = rfrope
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


FUNCTIONS = {
    **{f"rfrope.{name}": at(name) for name in (*SIGNATURES, *MODULE_SIGNATURES)},
    **{f"rfrope.Rope.{name}": getattr(rfrope.Rope([1.0]), name) for name in ("rotate", "scores", "table")},
    **{f"rfrope.kernels.{name}": getattr(kernels, name, None) for name in KERNEL_SIGNATURES},
    **{f"rfrope.analysis.{name}": getattr(analysis, name, None) for name in ANALYSIS_SIGNATURES},
    **{f"rfrope.heads.{name}": getattr(heads, name, None) for name in HEADS_SIGNATURES},
    **{f"rfrope.bochner.{name}": getattr(bochner, name, None) for name in BOCHNER_SIGNATURES},
    **{f"rfrope.scaling.{name}": getattr(scaling, name, None) for name in SCALING_SIGNATURES},
    **{f"rfrope.plotting.{name}": getattr(plotting, name, None) for name in PLOTTING_SIGNATURES},
}


ORDER = (  # of arguments that are given by position, in every public function; see docs/conventions.rst
    ("x", "q", "k", "z", "w_q", "w_k"),
    ("positions", "q_positions", "k_positions", "lags", "offset"),
    ("frequencies", "kernel", "rope", "old", "new", "before", "after"),
    ("shift", "cosine", "sine", "weights"),
)


def ranks(function) -> list[int]:
    """Ranks in `ORDER` of a function's arguments by position, those that it names left out."""
    rank = {name: i for i, names in enumerate(ORDER) for name in names}
    parameters = inspect.signature(function).parameters.values()
    return [rank[p.name] for p in parameters if p.name in rank and p.kind is not inspect.Parameter.KEYWORD_ONLY]


def bare(function) -> str:
    """A signature without annotations."""
    signature = inspect.signature(function)
    parameters = [p.replace(annotation=inspect.Parameter.empty) for p in signature.parameters.values()]
    return str(signature.replace(parameters=parameters, return_annotation=inspect.Signature.empty))


def public(module) -> set[str]:
    """Names that a module offers without an underscore, its submodules left out."""
    return {
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    }


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_vectors_then_positions_then_frequencies_then_the_rest(name):
    found = ranks(FUNCTIONS[name])
    assert found == sorted(found)
    assert "delta" not in inspect.signature(FUNCTIONS[name]).parameters


@pytest.mark.parametrize("name", [*SIGNATURES, *MODULE_SIGNATURES])
def test_signatures(name):
    assert bare(at(name)) == (SIGNATURES | MODULE_SIGNATURES)[name]


@pytest.mark.parametrize("name", ROPE_SIGNATURES)
def test_signatures_of_a_rope(name):
    assert bare(getattr(rfrope.Rope, name)) == ROPE_SIGNATURES[name]


@pytest.mark.parametrize("name", KERNEL_SIGNATURES)
def test_signatures_of_kernels(name):
    assert bare(getattr(kernels, name)) == KERNEL_SIGNATURES[name]


@pytest.mark.parametrize("name", ANALYSIS_SIGNATURES)
def test_signatures_of_analysis(name):
    assert bare(getattr(analysis, name)) == ANALYSIS_SIGNATURES[name]
    assert set(analysis.__all__) == set(ANALYSIS_SIGNATURES) | set(ANALYSIS_FIELDS)


@pytest.mark.parametrize("name", SCALING_SIGNATURES)
def test_signatures_of_scaling(name):
    assert bare(getattr(scaling, name)) == SCALING_SIGNATURES[name]
    assert set(scaling.__all__) == set(SCALING_SIGNATURES) | {"SCHEMES", "Scheme"}


@pytest.mark.parametrize("name", HEADS_SIGNATURES)
def test_signatures_of_heads(name):
    assert bare(getattr(heads, name)) == HEADS_SIGNATURES[name]
    assert set(heads.__all__) == set(HEADS_SIGNATURES) | set(HEADS_FIELDS)


@pytest.mark.parametrize("name", BOCHNER_SIGNATURES)
def test_signatures_of_bochner(name):
    assert bare(getattr(bochner, name)) == BOCHNER_SIGNATURES[name]
    records = {"Certificate", "Witness", "NotPositiveDefiniteError", "UndecidedError"}
    assert set(bochner.__all__) == set(BOCHNER_SIGNATURES) | records


@pytest.mark.parametrize("name", PLOTTING_SIGNATURES)
def test_signatures_of_plotting(name):
    assert bare(getattr(plotting, name)) == PLOTTING_SIGNATURES[name]
    assert set(plotting.__all__) == set(PLOTTING_SIGNATURES)


@pytest.mark.parametrize("name", KERNEL_METHODS)
def test_methods_of_a_kernel(name):
    assert bare(getattr(rfrope.Kernel, name)) == KERNEL_METHODS[name]


def test_a_comparison_of_signatures_sees_a_changed_default():
    def rotation_table(positions, frequencies, *, shift=None, scale=2.0, dtype=None):
        """Twice as large."""

    assert bare(rotation_table) != SIGNATURES["rotation_table"]


def test_all_of_rfrope_is_what_it_offers():
    assert set(rfrope.__all__) == set(SIGNATURES) | {"Kernel", "Rope"} | set(MODULES)
    assert rfrope.__all__ == sorted(set(rfrope.__all__))
    assert set(dir(rfrope)) == set(rfrope.__all__)


def test_names_that_moved_are_not_at_their_old_places():
    for name in MODULE_SIGNATURES:
        assert not hasattr(rfrope, name.rpartition(".")[2]), name
    with pytest.raises(AttributeError, match="No rfrope attribute phases"):
        rfrope.phases  # noqa: B018


@pytest.mark.parametrize("name", [name for name in MODULES if name not in TABLED])
def test_all_of_a_module_is_what_is_promised(name):
    promised = {one.rpartition(".")[2] for one in (*MODULE_SIGNATURES, *FIELDS) if one.startswith(f"{name}.")}
    face = set(rfrope.__all__) & set(at(name).__all__)
    constants = {"designs": {"DESIGNS", "RANDOMISED"}, "validation": {"Row"}}.get(name, set())
    assert set(at(name).__all__) == promised | face | constants
    assert all(at(f"{name}.{one}") is not None for one in at(name).__all__)


def test_all_of_kernels_is_what_it_offers():
    assert set(kernels.__all__) == public(kernels)
    assert set(kernels.__all__) == set(KERNEL_SIGNATURES) | {"Kernel", "Record"}


def test_names_are_the_same_things_everywhere():
    assert rfrope.kernel is kernels.kernel
    assert rfrope.Kernel is kernels.Kernel


def test_star_imports():
    space: dict = {}
    exec("from rfrope import *", space)
    assert set(rfrope.__all__) <= set(space)


@pytest.mark.parametrize("name", FIELDS)
def test_results_are_frozen_dataclasses_with_these_fields(name):
    result = at(name)
    assert tuple(field.name for field in dataclasses.fields(result) if field.name != "_") == FIELDS[name]
    assert result.__dataclass_params__.frozen


@pytest.mark.parametrize("name", ANALYSIS_FIELDS)
def test_results_of_analysis_are_frozen_dataclasses_with_these_fields(name):
    result = getattr(analysis, name)
    assert tuple(field.name for field in dataclasses.fields(result)) == ANALYSIS_FIELDS[name]
    assert result.__dataclass_params__.frozen
    assert len(inspect.getdoc(result).splitlines()) > 2


@pytest.mark.parametrize("name", HEADS_FIELDS)
def test_results_of_heads_are_frozen_dataclasses_with_these_fields(name):
    result = getattr(heads, name)
    assert tuple(field.name for field in dataclasses.fields(result)) == HEADS_FIELDS[name]
    assert result.__dataclass_params__.frozen
    assert len(inspect.getdoc(result).splitlines()) > 2


def test_properties_of_results():
    for name in ("passed", "worst"):
        assert isinstance(getattr(rfrope.validation.Validation, name), property)
    assert bare(rfrope.validation.Validation.to_dict) == "(self)"


def test_a_kernel_has_its_properties():
    law = rfrope.kernel("matern", nu=1.5, scale=(8.0, 4.0), ndim=2)
    assert (law.ndim, law.n_columns) == (2, 3)
    assert law([1.0, 2.0]) == law.phi([1.0, 2.0])


def test_the_version_is_that_of_the_package():
    from importlib.metadata import version

    assert rfrope.__version__ == version("rfrope")


def test_the_package_is_typed():
    from importlib.resources import files

    assert files("rfrope").joinpath("py.typed").is_file()
    for name, function in FUNCTIONS.items():
        signature = inspect.signature(function)
        assert signature.return_annotation is not inspect.Signature.empty, name
        assert all(p.annotation is not inspect.Parameter.empty for p in signature.parameters.values()), name


# -- docstrings --------------------------------------------------------------------------------------------------------


def sections(docstring: str) -> dict[str, str]:
    """Parts of a numpydoc docstring by their titles; the part before the first is 'Summary'."""
    parts = re.split(r"^(\w[\w ]*)\n-{3,}\n", inspect.cleandoc(docstring), flags=re.MULTILINE)
    return {"Summary": parts[0], **dict(zip(parts[1::2], parts[2::2], strict=True))}


def missing(function) -> list[str]:
    """What a public function's docstring lacks."""
    held, parameters = sections(function.__doc__ or ""), inspect.signature(function).parameters
    wanted = ["Returns", "Examples", *(["Parameters", "Raises"] if parameters else [])]
    lacks = [title for title in wanted if not held.get(title, "").strip()]
    lacks += [] if held["Summary"].strip() else ["Summary"]
    lines = [line for line in held.get("Parameters", "").splitlines() if line and not line.startswith(" ")]
    told = {name.strip(" *") for line in lines for name in line.partition(" : ")[0].split(",")}
    lacks += [f"parameter {name}" for name in parameters if name not in told]
    lacks += ["doctest"] if ">>>" not in held.get("Examples", "") else []
    return lacks


@pytest.mark.parametrize("name", FUNCTIONS)
def test_public_functions_have_a_complete_docstring(name):
    assert missing(FUNCTIONS[name]) == []


def test_the_check_of_docstrings_sees_what_is_missing():
    def function(x, y):
        """Summary.

        Parameters
        ----------
        x : array

        Returns
        -------
        array
        """

    assert missing(function) == ["Examples", "Raises", "parameter y", "doctest"]


@pytest.mark.parametrize("name", [name for name in KERNEL_METHODS if name != "__mul__"])
def test_methods_of_a_kernel_have_a_docstring(name):
    assert inspect.getdoc(getattr(rfrope.Kernel, name))


@pytest.mark.parametrize("name", ["Kernel", *FIELDS])
def test_classes_have_a_docstring(name):
    assert len(inspect.getdoc(at(name)).splitlines()) > 2
