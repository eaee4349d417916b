"""Calls that work, and values that are wrong in each of their arguments, one at a time.

`calls` holds a call of every public function, of the methods of `Rope` and `Kernel`, and of every family of kernels;
`wrong` holds values that some argument somewhere should not have. Whether one is wrong for an argument is not said: a
call may refuse it, with an error that names this argument, or take it, and then gives what it gives for the same
number, text or NumPy array in its plain form, without NaN (`judged`).
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import inspect
import math
import os
import pathlib
import re
import resource
import signal
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from public import FUNCTIONS

import rfrope
from rfrope import (
    analysis,
    bochner,
    designs,
    exports,
    features,
    frequencies,
    heads,
    kernels,
    models,
    moments,
    plotting,
    rotation,
    scaling,
)
from rfrope._core.arguments import show

GIANT = 2**30  # bytes that a call may ask for at most
LONGEST = 3000  # characters of an error, which may show several values and list what was expected
DOCUMENTED = (TypeError, ValueError, OSError, ModuleNotFoundError)
FOREIGN = ("/numpy/", "/scipy/", "/numba/", "/torch/", "/matplotlib/", "/tqdm/", "/safetensors/", "importlib")


class HungError(BaseException):
    """A call that did not come back."""


class Shown:
    """An object that is nothing that a function could want, with any `repr`."""

    def __init__(self, text: Any) -> None:
        self.text = text

    def __repr__(self) -> str:
        if isinstance(self.text, Exception):
            raise self.text
        return self.text


MUTE = Shown(RuntimeError("not today"))
ALONE = {  # taken or refused, these have no simpler form
    "None": None,
    "True": True,
    "0": 0,
    "-1": -1,
    "2**32 - 1": 2**32 - 1,
    "10**400": 10**400,
    "10**5000": 10**5000,
    "0.5": 0.5,
    "nan": math.nan,
    "inf": math.inf,
    "1e308": 1e308,
    "5e-324": 5e-324,
    "complex": 1j,
    "empty text": "",
    "text": "x",
    "long text": "a" * 10_000,
    "text with NUL": "a\0b",
    "bytes": b"3",
    "empty list": [],
    "a ragged list": [[1.0], [1.0, 2.0]],
    "a list of text": ["a", "b"],
    "a dict": {"a": 1},
    "a set": {1, 2},
    "an array": np.array([1.0, 2.0]),
    "an empty array": np.zeros((0, 4)),
    "an array of three axes": np.ones((5, 4, 1)),
    "an array of NaN": np.full(2, np.nan),
    "an array of objects": np.array([MUTE, None], dtype=object),
    "an array of times": np.array(["2020-01-01"], dtype="datetime64[D]"),
    "a masked array": np.ma.masked_array([1.0, 2.0], mask=[True, False]),
    "a class": int,
    "a function": lambda *arguments, **options: None,
    "a path": pathlib.Path("/nowhere/at/all"),
    "a mute object": MUTE,
    "a list of a mute object": [MUTE],
    "an object of many words": Shown("long " * 2**18),
    "an object that would hide what follows": Shown("\x1b[31mred\u202e\n"),
}


def wrong(good: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield kinds of values, the values, and what they are in their plain form; `good` is the one that is right."""
    yield from ((kind, value, value) for kind, value in ALONE.items())
    yield "np.True_", np.True_, True
    yield "np.float32", np.float32(0.5), 0.5
    yield "np.int64", np.int64(3), 3
    yield "an array of no axis", np.array(3.0), 3.0
    yield "a list", [1.0, 2.0], np.array([1.0, 2.0])
    yield "a tuple", (1, 2), [1, 2]
    yield "a range", range(3), [0, 1, 2]
    yield "an iterator", iter([1.0, 2.0]), [1.0, 2.0]
    arrays = {"a line": np.array([1.0, 2.0]), "integers": np.arange(3), "nothing": np.zeros((0, 4))}
    arrays |= {"the good value": np.asarray(good)} if is_numeric(good) else {}
    for library, asarray in makers().items():
        yield from ((f"{library}: {kind}", asarray(np.array(value)), value) for kind, value in arrays.items())
    yield from ((kind, value, value) for kind, value in peculiar().items())


def is_numeric(good: Any) -> bool:
    """Return whether a value of an argument is a float, a list of floats, or an array of real numbers."""
    is_array = hasattr(good, "dtype") or isinstance(good, float) or (isinstance(good, list) and type(good[0]) is float)
    return is_array and np.asarray(good).dtype.kind in "iuf"


@functools.cache
def makers() -> dict[str, Callable[[np.ndarray], Any]]:
    """Return how each installed library makes an array of one of NumPy's."""
    found: dict[str, Any] = {}
    if importlib.util.find_spec("torch"):
        found["torch"] = importlib.import_module("torch").from_numpy
    if importlib.util.find_spec("jax"):
        importlib.import_module("jax").config.update("jax_enable_x64", True)
        found["jax"] = importlib.import_module("jax.numpy").asarray
    if importlib.util.find_spec("dask"):
        found["dask"] = importlib.import_module("dask.array").asarray
    return found


def peculiar() -> dict[str, Any]:
    """Return arrays of other libraries that are not a rectangle of known numbers."""
    found = {}
    if "torch" in makers():
        import torch

        parts = [torch.ones(2, dtype=torch.float64), torch.ones(3, dtype=torch.float64)]
        found["torch: nested"] = torch.nested.nested_tensor(parts)
        found["torch: jagged"] = torch.nested.nested_tensor(parts, layout=torch.jagged)
        found["torch: sparse"] = torch.eye(8, dtype=torch.float64).to_sparse()
        found["torch: NaN"] = torch.full((4,), torch.nan)
        found["torch: meta"] = torch.ones(4, device="meta", dtype=torch.float64)
    if "dask" in makers():
        line = makers()["dask"](np.ones(8)).rechunk(4)
        found["dask: an unknown length"] = line[line > 0.0]
    return found


# what a message may call an argument that holds one of several things
ALIASES = {
    "rope": ("Rope", "frequencies", "config"),
    "what": ("frequencies", "table"),
    "expected": ("Rope", "frequencies", "config", "rope"),
    "config": ("rope_parameters", "path"),
    **dict.fromkeys(("name", "text", "law", "names"), ("kernel",)),
    **dict.fromkeys(("first", "second"), ("sets", "kernels")),
}
PATHS = ("old", "new", "path", "config", "folder", "model", "checkpoint", "rope", "what", "expected")
# calls that are right with a large number, and take long: they show their progress
LONG = {
    *(("estimate_kernel", "n_samples"), ("estimate_scores", "n_trials"), ("validate", "n_samples")),
    *(("validate", "n_trials"), ("designs.optimise", "starts"), ("designs.optimise", "max_lag")),
    *(("analysis.summarise", "context"), ("analysis.plan", "context"), ("analysis.plan", "trained_context")),
}
# fields that are NaN where there is one peak alone, or one token; and what a Rope says of where it came from
LEFT_OUT = ("runner_up", "runner_up_value", "stderr", "source")
NOT_HERE = {"kernels.register"}  # it changes the process: tests/kernels/test_registry.py has its bad input

LADDER = np.array([1.0, 0.5, 0.25, 0.125])
X = np.linspace(-1.0, 1.0, 24).reshape(3, 8)
ROPE = rfrope.Rope(LADDER, context=64)
HEADS = np.linspace(-1.0, 1.0, 192).reshape(3, 1, 8, 8) ** 3  # documents, heads, tokens, features
CONFIG = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 8, "rope_theta": 1e4}
CONFIG["max_position_embeddings"] = 64
FEW = {"rng": 0}


@functools.lru_cache(maxsize=1)
def calls(folder: pathlib.Path) -> dict[str, tuple[Callable[..., Any], dict[str, Any]]]:
    """Return a call of every public function, by its name: the function, and arguments that it takes."""
    saved = folder / "rope.npz"
    if not saved.exists():
        rfrope.save(saved, ROPE)
    qk = {"q": X[0], "k": X[1]}
    table = dict(zip(("cos", "sin"), rfrope.rotation_table(np.arange(3), LADDER), strict=True))
    magnitudes = {"q": np.abs(X[0]), "k": np.abs(X[1])}
    lags, at = np.array([0.0, 1.0, 5.0]), np.arange(3)
    gaussian = "gaussian(scale=8)"
    series = np.sin(np.arange(64.0)) + np.cos(0.3 * np.arange(64.0))
    made: dict[Any, dict[str, Any]] = {
        rfrope.rotate: {"x": X, "positions": at, "frequencies": LADDER, "out": np.empty_like(X)},
        rfrope.rotate_by_phases: {"x": X, "phases": np.ones((3, 4))},
        rfrope.rotate_by_table: {"x": X, **table},
        rfrope.rotation_table: {"positions": at, "frequencies": LADDER},
        rfrope.scores: {"q": X, "k": X, "q_positions": at, "k_positions": at, "frequencies": LADDER},
        rfrope.convert_pairing: {"x": X, "source": "half", "target": "interleaved"},
        rfrope.block_coefficients: qk,
        rfrope.sinusoidal: {"positions": at, "frequencies": LADDER},
        rotation.phases: {"positions": at, "frequencies": LADDER},
        rotation.to_complex: {"x": X},
        rotation.from_complex: {"z": X[:, :4] + 1j * X[:, 4:]},
        rotation.shift_matrix: {"offset": 3.0, "frequencies": LADDER},
        rotation.rerotate: {"k": X, "positions": at, "old": LADDER, "new": ROPE},
        rotation.relocate: {"k": X, "old_positions": at, "new_positions": 2 * at, "rope": ROPE},
        rotation.quantise: {"x": np.tile(X, 4), "layout": "q8_0"},
        rotation.dequantise: {"k": np.full((3, 18), 60, np.uint8), "layout": "q4_0"},
        rotation.relocate_quantised: {
            "k": np.full((3, 34), 60, np.uint8),
            "old_positions": at,
            "new_positions": 2 * at,
            "rope": np.tile(LADDER, 4),
            "layout": "q8_0",
        },
        rotation.relocation_bound: {"storage": "float32", "moves": 3},
        rotation.rotate_polar: {
            "magnitudes": abs(X),
            "positions": at,
            "frequencies": np.tile(LADDER, 2),
            "out": np.empty((3, 16)),
        },
        rotation.cumulative_phases: {"rates": np.ones((3, 4)), "offset": np.zeros(4)},
        rotation.grid_positions: {"shape": (2, 3)},
        rotation.sphere_positions: {"latitude": at, "longitude": at},
        rotation.graph_positions: {"adjacency": 1.0 - np.eye(4), "n_axes": 2},
        rotation.mrope_positions: {"segments": [2, (1, 2, 2)]},
        rotation.packed_positions: {"cu_seqlens": np.array([0, 2, 3])},
        rfrope.geometric: {"n_blocks": 4},
        rfrope.arithmetic: {"n_blocks": 4, "step": 0.1},
        frequencies.pixel: {"n_blocks": 4},
        frequencies.from_wavelengths: {"wavelengths": np.array([1.0, 2.0])},
        frequencies.xpos_scales: {"positions": at, "n_blocks": 4},
        frequencies.from_generators: {"generators": np.kron(np.diag([1.0, 0.5]), [[0.0, -1.0], [1.0, 0.0]])},
        frequencies.nearest_commuting: {"generators": np.kron(np.diag([1.0, 0.5]), [[0.0, -1.0], [1.0, 0.0]])},
        frequencies.relative_commutator: {"generators": np.kron(np.diag([1.0, 0.5]), [[0.0, -1.0], [1.0, 0.0]])},
        frequencies.fold: {"weight": np.ones((8, 3)), "basis": np.eye(4)},
        frequencies.fold_gains: {"gains": np.ones(4), "basis": np.eye(4)},
        rfrope.mixed: {"n_blocks": 4, "angles": np.array([0.0, 1.0])},
        rfrope.golden_gate: {"n_blocks": 4, "low": 0.1, "high": 1.0},
        frequencies.isotropic: {"magnitudes": np.array([1.0, 0.5]), "n_directions": 4},
        rfrope.mrope: {"frequencies": LADDER, "sections": [2, 2]},
        rfrope.sample: {"kernel": gaussian, "n_blocks": 4, **FEW},
        rfrope.design: {"kernel": gaussian, "head_dim": 8, "context": 64, **FEW},
        designs.optimise: {"kernel": gaussian, "n_blocks": 2, "max_lag": 8, "starts": 1},
        designs.points: {"kernel": gaussian, "n_blocks": 4, **FEW},
        designs.quadrature: {"kernel": gaussian, "n_blocks": 4},
        designs.dual_lattice: {"kernel": gaussian, "n_blocks": 4},
        designs.directional_error: {"frequencies": np.ones((4, 2)), "lengths": np.array([1.0, 2.0])},
        designs.directional_bound: {"frequencies": np.ones((4, 2)), "scales": np.array([1.0, 2.0])},
        kernels.evaluate_phi: {"kernel": gaussian, "lags": lags, "scale": np.array(8.0)},
        kernels.transport_points: {"kernel": gaussian, "points": np.array([0.2, 0.7]), "scale": np.array(8.0)},
        rfrope.kernel: {"name": "gaussian"},
        kernels.parse: {"text": gaussian},
        kernels.mixture: {"weights": [0.5, 0.5], "kernels": [rfrope.kernel("gaussian"), rfrope.kernel("cauchy")]},
        rfrope.expected_score: {**qk, "lags": lags, "kernel": gaussian},
        rfrope.score_variance: {**qk, "lags": lags, "kernel": gaussian},
        rfrope.blocks_for_error: {"kernel": gaussian, "max_lag": 64, "error": 0.1},
        moments.mean_kernel_band: {"kernel": gaussian, "lags": lags, "n_blocks": 4},
        moments.pair_covariance: {"kernel": gaussian, "lags": lags, "n_blocks": 4, "design": "shifted"},
        moments.relative_error: {**qk, "lags": lags, "kernel": gaussian},
        moments.polar_score: {**magnitudes, "lags": lags, "kernel": gaussian, "shift": np.ones(8)},
        moments.polar_variance: {**magnitudes, "lags": lags, "kernel": gaussian, "shift": np.ones(8)},
        moments.polar_error: {**magnitudes, "lags": lags, "kernel": gaussian, "shift": np.ones(8)},
        moments.polar_tail: {**magnitudes, "lags": lags, "kernel": gaussian, "distance": np.ones(1)},
        moments.effective_blocks: magnitudes,
        features.positive: {"x": X, "projections": X[:2], "stabilise": "token"},
        features.hyperbolic: {"x": X, "projections": X[:2], "stabilise": "all"},
        features.trigonometric: {"x": X, "projections": X[:2]},
        features.variance: {"x": X, "y": X[0], "n_projections": 3},
        features.linear_attention: {
            **{"q": abs(X), "k": abs(X), "v": X, "causal": True, "block": 2},
            "denominator": (abs(X), abs(X)),
            "scale": X[:, 0],
        },
        features.stochastic: {
            **{"x": X, "positions": at, "frequencies": LADDER, "shift": LADDER},
            "projections": np.linspace(-1.0, 1.0, 192).reshape(8, 8, 3),
        },
        features.stochastic_variance: {
            **{**qk, "lags": lags, "kernel": gaussian},
            **{"n_features": 3, "n_frequencies": 2},
        },
        rfrope.estimate_kernel: {"kernel": gaussian, "lags": lags, "n_samples": 64, **FEW},
        rfrope.estimate_scores: {**qk, "lags": lags, "kernel": gaussian, "n_trials": 8, **FEW},
        rfrope.validate: {"kernel": gaussian, **qk, "lags": lags, "n_samples": 64, "n_trials": 8, **FEW},
        rfrope.from_config: {"config": CONFIG},
        models.from_rope_parameters: {"rope_parameters": {"rope_type": "linear", "factor": 2.0}, "head_dim": 8},
        models.compare: {"config": CONFIG},
        models.diff: {"old": CONFIG, "new": CONFIG | {"rope_theta": 7.0}},
        models.list_layers: {"config": CONFIG},
        models.can_relocate: {"config": CONFIG, "cached_len": 9, "seq_len": 64},
        models.audit: {"what": LADDER, "rope": ROPE},
        models.probe: {"apply": _turn, "expected": ROPE, "head_dim": 8},
        models.conformance: {},
        rfrope.save: {"path": folder / "new.npz", "rope": ROPE, "overwrite": True},
        rfrope.load: {"path": saved},
        exports.export: {"rope": ROPE, "engine": "vllm"},
        exports.rounding: {"rope": ROPE, "engine": "vllm"},
        exports.write: {"path": folder / "new.json", "rope": ROPE, "engine": "vllm", "overwrite": True},
        scaling.linear: {"frequencies": LADDER, "factor": 2.0},
        scaling.ntk: {"frequencies": LADDER, "factor": 2.0},
        scaling.dynamic_ntk: {"frequencies": LADDER, "factor": 2.0, "seq_len": 128, "max_position_embeddings": 64},
        scaling.proportional: {"frequencies": LADDER},
        scaling.yarn: {
            **{"frequencies": LADDER, "factor": 2.0, "original_max_position_embeddings": 64, "base": 16.0},
            **{"mscale": 1.0, "mscale_all_dim": 0.5},
        },
        scaling.longrope: {
            **{"frequencies": LADDER, "short_factor": np.ones(4), "long_factor": 2.0 * np.ones(4), "factor": 2.0},
            **{"original_max_position_embeddings": 64},
        },
        scaling.llama3: {
            **{"frequencies": LADDER, "factor": 2.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
            **{"original_max_position_embeddings": 64},
        },
        analysis.mean_kernel: {"frequencies": LADDER, "lags": lags},
        analysis.log_uniform_kernel: {"lags": lags},
        analysis.dirichlet: {"lags": lags, "n_blocks": 4},
        analysis.first_negative_lag: {"frequencies": LADDER, "max_lag": 64},
        analysis.aliasing_distance: {"frequencies": LADDER, "max_lag": 64},
        analysis.base_for_context: {"context": 16, "n_blocks": 4, "max_base": 100.0, "n_grid": 4},
        analysis.wavelengths: {"frequencies": LADDER},
        analysis.turns: {"frequencies": LADDER, "context": 64.0},
        analysis.density_of_states: {"frequencies": LADDER},
        analysis.sine_share: {**qk, "frequencies": LADDER, "lags": lags},
        analysis.similarity: {"frequencies": LADDER, "lags": lags},
        analysis.departure: {"q": X, "k": X, "frequencies": LADDER, "lags": lags},
        analysis.fit_kernel: {"frequencies": LADDER, "max_lag": 8, "names": ["gaussian"]},
        analysis.scaling_effect: {"before": LADDER, "after": 0.5 * LADDER, "lags": lags},
        analysis.plan: {"rope": LADDER, "context": 64, "trained_context": 16, "progress": False},
        analysis.precision_budget: {"q": X, "k": X, "rope": ROPE, "context": 64, "below": 0.1},
        analysis.summarise: {"frequencies": LADDER, "context": 16},
        analysis.toeplitz_defect: {"values": np.ones((3, 4))},
        analysis.fourier_two_point: {
            **{"q_positions": at, "k_positions": at, "frequencies": LADDER, "cosine": np.eye(4), "sine": np.eye(4)}
        },
        heads.phase_shift: {"frequencies": LADDER, "offset": -1.0},
        heads.aligned_shift: {"frequencies": LADDER, "offset": -1.0, "cosine": np.ones(4)},
        heads.alignment: {"frequencies": LADDER, "shift": np.zeros(4), "offset": -1.0},
        heads.positional_attention: {"frequencies": LADDER, "context": 16},
        heads.effective_offset: {"q": X, "k": X, "frequencies": LADDER, "n_resamples": 4},
        heads.offset_from_weights: {"w_q": np.eye(8), "w_k": np.eye(8), "frequencies": LADDER, "max_lag": 8},
        heads.offset_of: {"frequencies": LADDER, "shift": LADDER, "low": -8.0},
        heads.positional_weights: {"frequencies": LADDER, "d_model": 8},
        heads.lag_bias: {"lags": lags, "weight": 0.5, "shape": 0.5},
        heads.t5_bias: {"lags": at, "table": np.ones(8)},
        heads.fire_bias: {"q_positions": lags, "k_positions": lags, "function": _fall, "c": 1.0, "threshold": 2.0},
        heads.atlas: {"q": HEADS, "k": HEADS, "rope": ROPE},
        heads.profile: {"q": X, "k": X, "frequencies": LADDER, "lags": lags},
        heads.recentred_kernel: {"kernel": gaussian, "lags": lags, "offset": -1.0},
        heads.positional_scores: {"frequencies": LADDER, "lags": lags},
        heads.shifted_mean_kernel: {"frequencies": LADDER, "lags": lags, "shift": np.zeros(4)},
        heads.shifted_scores: {**qk, "frequencies": LADDER, "lags": lags, "shift": np.zeros(4)},
        heads.shifted_terms: {**qk, "frequencies": LADDER, "lags": lags, "shift": np.zeros(4)},
        heads.temperature_for_mass: {"mass": 0.5, "frequencies": LADDER, "context": 16},
        bochner.from_autocorrelation: {"values": np.array([1.0, 0.5, 0.25])},
        bochner.from_series: {"x": series},
        bochner.from_density: {"density": _bell, "support": (0.0, 6.0), "normalise": True},
        bochner.from_function: {"phi": _bell},
        bochner.nearest: {"phi": _bell},
        plotting.frequencies: {"rope": LADDER},
        plotting.kernel: {"law": gaussian, "max_lag": 8},
        plotting.mean_kernels: {"sets": {"a": LADDER}, "max_lag": 8},
        plotting.wavelengths: {"sets": {"a": LADDER}},
        plotting.attention: {"result": heads.positional_attention(LADDER, 16)},
        plotting.validation: {"result": rfrope.validate(gaussian, n_samples=64, n_trials=8, rng=0)},
    }
    named = {name: (FUNCTIONS[name], made[FUNCTIONS[name]]) for name in public_names() if FUNCTIONS[name] in made}
    law = rfrope.kernel("gaussian", scale=8.0)
    named |= {
        "Rope": (rfrope.Rope, {"frequencies": LADDER}),
        "Rope.rotate": (ROPE.rotate, {"x": X, "positions": at, "out": np.empty_like(X)}),
        "Rope.scores": (ROPE.scores, {"q": X, "k": X, "q_positions": at, "k_positions": at}),
        "Rope.table": (ROPE.table, {"positions": at}),
        "Kernel.phi": (law.phi, {"lags": lags}),
        "Kernel.phi2": (law.phi2, {"lags": lags}),
        "Kernel.density": (law.density, {"omega": lags}),
        "Kernel.transport": (law.transport, {"u": np.array([0.25, 0.5, 0.875])}),
        "Kernel.rescale": (law.rescale, {"scale": 2.0}),
        "Kernel.warp": (law.warp, {"matrix": [[2.0]]}),
        "threads": (_threads, {"count": 1}),
        "axial": (_axial, {"first": LADDER, "second": LADDER[:2], "order": "chunked"}),
        "kernels.axes": (_axes, {"first": law, "second": rfrope.kernel("cauchy")}),
    }
    for record in kernels.records():
        example = kernels.parse(record.example)
        values = {field.name: getattr(example, field.name) for field in dataclasses.fields(example)}
        named[f"family {record.name}"] = (record.factory, values)
    return named | (_modules() if "torch" in makers() else {})


def _modules() -> dict[str, tuple[Callable[..., Any], dict[str, Any]]]:
    """Return calls of the module for PyTorch."""
    import torch

    from rfrope.layers.torch import RotaryEmbedding

    module, at = RotaryEmbedding(ROPE), np.arange(3)
    q, k = (torch.linspace(-1.0, 1.0, 24 * n, dtype=torch.float64).reshape(1, n, 3, 8) for n in (2, 1))
    return {
        "RotaryEmbedding": (RotaryEmbedding, {"rope": LADDER}),
        "RotaryEmbedding.forward": (module.forward, {"q": q, "k": k, "positions": at}),
        "RotaryEmbedding.rotate": (module.rotate, {"x": q, "positions": at}),
    }


def _threads(count: Any) -> Any:
    with rfrope.threads(count):
        return count


def _axial(first: Any, second: Any, order: Any) -> Any:
    return rfrope.axial(first, second, order=order)


def _axes(first: Any, second: Any) -> Any:
    return kernels.axes(first, second)


def _turn(q: Any, k: Any, positions: Any) -> Any:
    return rfrope.rotate(q, positions[:, None], LADDER), rfrope.rotate(k, positions[:, None], LADDER)


def _fall(share: Any) -> Any:
    return -share


def _bell(x: Any) -> Any:
    return np.exp(-0.5 * np.asarray(x) ** 2)


def public_names() -> list[str]:
    """Return names of public functions and methods that take arguments, each once."""
    first = {id(function): name for name, function in reversed(FUNCTIONS.items())}
    return [name for name in first.values() if inspect.signature(FUNCTIONS[name]).parameters]


def names() -> list[str]:
    """Return names of all calls, of modules that are not installed here, too."""
    families = [f"family {record.name}" for record in kernels.records()]
    modules = ["RotaryEmbedding", "RotaryEmbedding.forward", "RotaryEmbedding.rotate"]
    return ["Rope", *(name for name in public_names() if name not in NOT_HERE), *families, *modules]


def pairs(name: str, function: Any, arguments: dict[str, Any]) -> Iterator[tuple[str, str, Any, Any]]:
    """Yield arguments of a call, and all that is to be put into them; calls that take long are left out."""
    for argument in arguments_of(function):
        for kind, value, plain in wrong(arguments.get(argument)):
            if kind != "2**32 - 1" or (name, argument) not in LONG:
                yield argument, kind, value, plain


def arguments_of(function: Any) -> list[str]:
    """Return names of the arguments that can be wrong: all but those in any number."""
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in inspect.signature(function).parameters.values() if p.kind not in kinds]


def called(function: Any, arguments: dict[str, Any]) -> Any:
    """Call with arguments by name, or by place where the signature says so."""
    given = dict(arguments)
    parameters = inspect.signature(function).parameters.values()
    first = [given.pop(p.name) for p in parameters if p.kind is inspect.Parameter.POSITIONAL_ONLY]
    return function(*first, **given)


def judged(function: Any, arguments: dict[str, Any], name: str, value: Any, plain: Any = None) -> tuple[bool, str]:
    """Return whether a call refuses a value, and what is wrong with how it does, or with what it gives."""
    try:
        with watched():
            found = called(function, {**arguments, name: value})
    except HungError:
        return True, "it hangs"
    except BaseException as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{type(error).__name__} ({last.filename.rpartition('/rfrope/')[2]}:{last.lineno}): {error!s:.200}"
        if not isinstance(error, DOCUMENTED) or any(part in last.filename for part in FOREIGN):
            return True, text
        if (
            len(str(error)) > LONGEST + len(value if isinstance(value, str) else "")
            or not str(error).replace("\n", "").isprintable()
        ):
            return True, f"too long, or not printable: {text}"
        return True, "" if _names(name, value, arguments_of(function), error) else f"does not name it: {text}"
    if getattr(value, "is_meta", False):
        return False, ""  # a result without values
    if value is not plain:
        try:
            expected = called(function, {**arguments, name: plain})
        except DOCUMENTED as error:
            unseen = type(value).__module__.startswith(("jax", "dask"))  # nobody looks at their values
            return False, "" if unseen else f"it is taken, but in its plain form refused: {error!s:.200}"
        if not alike(numbers(found), numbers(expected)):
            return False, f"it is taken, and gives {found!r:.100}; its plain form gives {expected!r:.100}"
    if _finite(plain) and np.any(np.isnan(numbers(found))):
        return False, f"it is taken, and gives NaN: {found!r:.100}"
    return False, ""


def alike(found: np.ndarray, expected: np.ndarray) -> bool:
    """Return whether two lines of numbers are the same to the rounding of float32."""
    return found.shape == expected.shape and np.allclose(found, expected, rtol=1e-6, atol=1e-6, equal_nan=True)


def _finite(value: Any) -> bool:
    """Return whether a value has no NaN or infinity, and is not so large that what is made of it has."""
    try:
        return bool(np.all(np.abs(np.asarray(value, dtype=np.float64)) < 1e300))
    except (TypeError, ValueError, OverflowError):
        return True


def numbers(value: Any) -> np.ndarray:
    """Return all numbers of a result, of arrays and records inside, in one line."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return np.concatenate([np.zeros(0), *map(numbers, value)])
    if dataclasses.is_dataclass(value):
        return numbers([getattr(value, one.name) for one in dataclasses.fields(value) if one.name not in LEFT_OUT])
    if hasattr(value, "detach"):
        value = value.detach().resolve_neg().numpy()
    if hasattr(value, "shape") or isinstance(value, int | float | complex):
        value = np.ravel(np.asarray(value))
        return np.concatenate([value.real, value.imag]) if value.dtype.kind == "c" else _floats(value)
    return np.zeros(0)


def _floats(value: np.ndarray) -> np.ndarray:
    return value.astype(np.float64) if value.dtype.kind in "biuf" else np.zeros(0)


def _names(name: str, value: Any, arguments: list[str], error: BaseException) -> bool:
    """Return whether a message names an argument, or another that it conflicts with, or shows a path."""
    message, names = str(error), (name, *ALIASES.get(name, ()))
    if name in PATHS and isinstance(value, str | os.PathLike) and str(value)[:60] in message:
        return True
    if any(re.match(rf"(unknown |cannot read |the )?{one}\b", message) for one in names):
        return True
    bare = message.replace(show(value), "")
    return any(re.search(rf"\b{one}\b", bare) for one in names)


@contextmanager
def watched(seconds: int = 120) -> Iterator[None]:
    """Raise `HungError` in what takes very long (a guard, not a measure), MemoryError in what asks for over 1 GiB."""

    def hung(*_: Any) -> None:
        raise HungError

    before = signal.signal(signal.SIGALRM, hung)
    limits = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm", encoding="ascii") as file:
        held = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (held + GIANT, limits[1]))
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        resource.setrlimit(resource.RLIMIT_AS, limits)
        signal.signal(signal.SIGALRM, before)
