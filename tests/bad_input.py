"""Calls that work, and values that are wrong in each of their arguments, one at a time.

`CALLS` holds a call of every public function; names of its arguments come from its signature. `WRONG` holds kinds of
values that some argument somewhere should not have. Whether one is wrong for an argument is not said: a call may take
it, or refuse it with an error that names the argument (`judged`).
"""

from __future__ import annotations

import inspect
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

import rfrope
from rfrope import analysis, bochner, designs, exports, frequencies, heads, kernels, models, moments, plotting, rotation

from rfrope import scaling, storage  # isort: skip

PUBLIC = (
    *(rfrope, analysis, bochner, designs, exports, frequencies, heads, kernels, models, moments, plotting, rotation),
    *(scaling, storage),
)
_PATIENCE = [120]  # seconds: a guard, not a measure
GIANT = 2**30  # bytes that a call may ask for at most
DOCUMENTED = (TypeError, ValueError, OSError, ModuleNotFoundError)
FOREIGN = ("/numpy/", "/scipy/", "/numba/", "/torch/", "/matplotlib/", "/tqdm/", "/safetensors/", "importlib")


class HungError(BaseException):
    """A call that did not come back."""


class Odd:
    """An object that is nothing that a function could want."""

    def __repr__(self) -> str:
        return "<odd>"


def wrong() -> dict[str, Any]:
    """Values by what they are, made anew."""
    return dict(_WRONG) | {"an iterator": iter([1.0, 2.0])}


_WRONG: dict[str, Any] = {
    "None": None,
    "True": True,
    "np.True_": np.True_,
    "0": 0,
    "-1": -1,
    "2**32 - 1": 2**32 - 1,
    "10**400": 10**400,
    "-10**400": -(10**400),
    "0.5": 0.5,
    "-0.0": -0.0,
    "nan": float("nan"),
    "inf": float("inf"),
    "1e308": 1e308,
    "5e-324": 5e-324,
    "np.float32": np.float32(0.707),
    "np.float16": np.float16(2.0),
    "np.int64": np.int64(3),
    "complex": 1j,
    "empty text": "",
    "text": "x",
    "long text": "a" * 10_000,
    "text with NUL": "a\0b",
    "bytes": b"3",
    "empty list": [],
    "a list": [1.0, 2.0],
    "a ragged list": [[1.0], [1.0, 2.0]],
    "a list of text": ["a", "b"],
    "a list of None": [None, None],
    "a tuple": (1, 2),
    "a dict": {"a": 1},
    "a set": {1, 2},
    "a range": range(3),
    "an array": np.array([1.0, 2.0]),
    "an array of no axis": np.array(3.0),
    "an empty array": np.zeros((0, 4)),
    "an array of NaN": np.full(2, np.nan),
    "an array of objects": np.array([Odd(), None], dtype=object),
    "an array of text": np.array(["a", "b"]),
    "an array of times": np.array(["2020-01-01"], dtype="datetime64[D]"),
    "an array of fields": np.zeros(2, dtype=[("a", "f8")]),
    "a complex array": np.array([1j, 2.0]),
    "an array of many axes": np.ones((1,) * 20),
    "a masked array": np.ma.masked_array([1.0, 2.0], mask=[True, False]),
    "a module": os,
    "a class": int,
    "a function": lambda *arguments, **options: None,
    "an object": Odd(),
    "an Ellipsis": ...,
    "a path": pathlib.Path("/nowhere/at/all"),
    "an exception": ValueError("x"),
}

# what a message may call an argument that holds one of several things
ALIASES = {
    "rope": ("frequencies", "config"),
    "what": ("frequencies", "table"),
    "config": ("rope_parameters", "path"),
    **dict.fromkeys(("name", "text", "law", "names"), ("kernel",)),
}
PATHS = ("path", "config", "folder", "model", "checkpoint", "rope", "what")
# calls that are right, and take long: they show their progress
LONG = {
    ("estimate_kernel", "n_samples"),
    *(("estimate_scores", "n_trials"), ("validate", "n_samples"), ("validate", "n_trials")),
    *(
        ("optimise", "starts"),
        ("optimise", "max_lag"),
        ("summarise", "context"),
        ("plan", "context"),
        ("plan", "trained_context"),
    ),
}
NOT_HERE = {"register"}  # it changes the process: tests/kernels/test_registry.py has its bad input

LADDER = np.array([1.0, 0.5, 0.25, 0.125])
X = np.linspace(-1.0, 1.0, 24).reshape(3, 8)
ROPE = rfrope.Rope(LADDER, context=64)
CONFIG = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 8, "rope_theta": 1e4}
CONFIG["max_position_embeddings"] = 64
FEW = {"rng": 0}


def calls(folder: pathlib.Path) -> dict[str, tuple[Callable[..., Any], dict[str, Any]]]:
    """A call of every public function, by its name: the function, and arguments that it takes."""
    saved = folder / "rope.npz"
    if not saved.exists():
        rfrope.save(saved, ROPE)
    qk = {"q": X[0], "k": X[1]}
    table = dict(zip(("cos", "sin"), rfrope.rotation_table(np.arange(3), LADDER), strict=True))
    lags = np.array([0.0, 1.0, 5.0])
    gaussian = "gaussian(scale=8)"
    series = np.sin(np.arange(64.0)) + np.cos(0.3 * np.arange(64.0))
    made: dict[Any, dict[str, Any]] = {
        rfrope.rotate: {"x": X, "positions": np.arange(3), "frequencies": LADDER, "out": np.empty_like(X)},
        rfrope.rotate_by_phases: {"x": X, "phases": np.ones((3, 4))},
        rfrope.rotate_by_table: {"x": X, **table},
        rfrope.rotation_table: {"positions": np.arange(3), "frequencies": LADDER},
        rfrope.scores: {
            "q": X,
            "k": X,
            "q_positions": np.arange(3),
            "k_positions": np.arange(3),
            "frequencies": LADDER,
        },
        rfrope.convert_pairing: {"x": X, "source": "half", "target": "interleaved"},
        rfrope.block_coefficients: qk,
        rfrope.sinusoidal: {"positions": np.arange(3), "frequencies": LADDER},
        rotation.phases: {"positions": np.arange(3), "frequencies": LADDER},
        rotation.to_complex: {"x": X},
        rotation.from_complex: {"z": X[:, :4] + 1j * X[:, 4:]},
        rotation.shift_matrix: {"offset": 3.0, "frequencies": LADDER},
        rotation.rerotate: {"k": X, "positions": np.arange(3), "old": LADDER, "new": ROPE},
        rotation.grid_positions: {"shape": (2, 3)},
        rotation.mrope_positions: {"segments": [2, (1, 2, 2)]},
        rotation.packed_positions: {"cu_seqlens": [0, 2, 3]},
        rotation.Rope: {"frequencies": LADDER},
        rfrope.geometric: {"n_blocks": 4},
        rfrope.arithmetic: {"n_blocks": 4, "step": 0.1},
        frequencies.pixel: {"n_blocks": 4},
        frequencies.from_wavelengths: {"wavelengths": [1.0, 2.0]},
        frequencies.xpos_scales: {"positions": np.arange(3), "n_blocks": 4},
        frequencies.from_generators: {"generators": np.kron(np.diag([1.0, 0.5]), [[0.0, -1.0], [1.0, 0.0]])},
        rfrope.mixed: {"n_blocks": 4, "angles": [0.0, 1.0]},
        rfrope.golden_gate: {"n_blocks": 4, "low": 0.1, "high": 1.0},
        rfrope.mrope: {"frequencies": LADDER, "sections": [2, 2]},
        rfrope.sample: {"kernel": gaussian, "n_blocks": 4, **FEW},
        rfrope.design: {"kernel": gaussian, "head_dim": 8, "context": 64, **FEW},
        designs.optimise: {"kernel": gaussian, "n_blocks": 2, "max_lag": 8, "starts": 1},
        designs.points: {"kernel": gaussian, "n_blocks": 4, **FEW},
        rfrope.kernel: {"name": "gaussian"},
        kernels.parse: {"text": gaussian},
        kernels.mixture: {"weights": [0.5, 0.5], "kernels": [rfrope.kernel("gaussian"), rfrope.kernel("cauchy")]},
        rfrope.expected_score: {**qk, "delta": lags, "kernel": gaussian},
        rfrope.score_variance: {**qk, "delta": lags, "kernel": gaussian},
        rfrope.blocks_for_error: {"kernel": gaussian, "max_lag": 64, "error": 0.1},
        moments.mean_kernel_band: {"kernel": gaussian, "delta": lags, "n_blocks": 4},
        moments.relative_error: {**qk, "delta": lags, "kernel": gaussian},
        rfrope.estimate_kernel: {"kernel": gaussian, "delta": lags, "n_samples": 64, **FEW},
        rfrope.estimate_scores: {**qk, "delta": lags, "kernel": gaussian, "n_trials": 8, **FEW},
        rfrope.validate: {"kernel": gaussian, **qk, "delta": lags, "n_samples": 64, "n_trials": 8, **FEW},
        rfrope.from_config: {"config": CONFIG},
        models.from_rope_parameters: {"rope_parameters": {"rope_type": "linear", "factor": 2.0}, "head_dim": 8},
        models.compare: {"config": CONFIG},
        models.audit: {"what": LADDER, "rope": ROPE},
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
        analysis.mean_kernel: {"frequencies": LADDER, "delta": lags},
        analysis.log_uniform_kernel: {"delta": lags},
        analysis.dirichlet: {"delta": lags, "n_blocks": 4},
        analysis.first_negative_lag: {"frequencies": LADDER, "max_lag": 64},
        analysis.aliasing_distance: {"frequencies": LADDER, "max_lag": 64},
        analysis.base_for_context: {"context": 16, "n_blocks": 4, "max_base": 100.0, "n_grid": 4},
        analysis.wavelengths: {"frequencies": LADDER},
        analysis.turns: {"frequencies": LADDER, "context": 64.0},
        analysis.density_of_states: {"frequencies": LADDER},
        analysis.sine_share: {**qk, "frequencies": LADDER, "delta": lags},
        analysis.similarity: {"frequencies": LADDER, "delta": lags},
        analysis.departure: {"q": X, "k": X, "frequencies": LADDER, "delta": lags},
        analysis.fit_kernel: {"frequencies": LADDER, "max_lag": 8, "names": ["gaussian"]},
        analysis.scaling_effect: {"before": LADDER, "after": 0.5 * LADDER, "delta": lags},
        analysis.plan: {"rope": LADDER, "context": 64, "trained_context": 16, "progress": False},
        analysis.summarise: {"frequencies": LADDER, "context": 16},
        heads.phase_shift: {"frequencies": LADDER, "offset": -1.0},
        heads.aligned_shift: {"frequencies": LADDER, "offset": -1.0, "cosine": np.ones(4)},
        heads.alignment: {"frequencies": LADDER, "shift": np.zeros(4), "offset": -1.0},
        heads.positional_attention: {"frequencies": LADDER, "context": 16},
        heads.effective_offset: {"q": X, "k": X, "frequencies": LADDER, "n_resamples": 4},
        heads.offset_from_weights: {"w_q": np.eye(8), "w_k": np.eye(8), "frequencies": LADDER, "max_lag": 8},
        heads.offset_of: {"frequencies": LADDER, "shift": LADDER, "low": -8.0},
        heads.positional_weights: {"frequencies": LADDER, "d_model": 8},
        heads.profile: {"q": X, "k": X, "frequencies": LADDER, "delta": lags},
        heads.recentred_kernel: {"kernel": gaussian, "delta": lags, "offset": -1.0},
        heads.positional_scores: {"frequencies": LADDER, "delta": lags},
        heads.shifted_mean_kernel: {"frequencies": LADDER, "delta": lags, "shift": np.zeros(4)},
        heads.shifted_scores: {**qk, "frequencies": LADDER, "delta": lags, "shift": np.zeros(4)},
        heads.shifted_terms: {**qk, "frequencies": LADDER, "delta": lags, "shift": np.zeros(4)},
        heads.temperature_for_mass: {"mass": 0.5, "frequencies": LADDER, "context": 16},
        bochner.from_autocorrelation: {"values": [1.0, 0.5, 0.25]},
        bochner.from_series: {"x": series},
        bochner.from_density: {"density": _bell, "support": (0.0, 6.0), "normalise": True},
        bochner.from_function: {"phi": _bell},
        bochner.nearest: {"phi": _bell},
        rfrope.threads: {"count": 1},
        plotting.frequencies: {"rope": LADDER},
        plotting.kernel: {"law": gaussian, "max_lag": 8},
        plotting.mean_kernels: {"sets": {"a": LADDER}, "max_lag": 8},
        plotting.wavelengths: {"sets": {"a": LADDER}},
        plotting.attention: {"result": heads.positional_attention(LADDER, 16)},
        plotting.validation: {"result": rfrope.validate(gaussian, n_samples=64, n_trials=8, rng=0)},
    }
    return {name_of(function): (function, arguments) for function, arguments in made.items()}


def _bell(x: Any) -> Any:
    return np.exp(-0.5 * np.asarray(x) ** 2)


def name_of(function: Any) -> str:
    return f"{function.__module__.removeprefix('rfrope.')}.{function.__qualname__}"


def public() -> dict[str, Any]:
    """All public functions that take arguments, and `Rope`."""
    found = {}
    for module in PUBLIC:
        for name in module.__all__:
            value = getattr(module, name)
            if (inspect.isfunction(value) and inspect.signature(value).parameters) or value is rfrope.Rope:
                found[name_of(value)] = value
    return found


def arguments_of(function: Any) -> list[str]:
    """Names of the arguments that can be wrong: all but those in any number."""
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in inspect.signature(function).parameters.values() if p.kind not in kinds]


def called(function: Any, arguments: dict[str, Any]) -> Any:
    """Call with arguments by name, or by place where the signature says so."""
    given = dict(arguments)
    parameters = inspect.signature(function).parameters.values()
    first = [given.pop(p.name) for p in parameters if p.kind is inspect.Parameter.POSITIONAL_ONLY]
    return function(*first, **given)


def judged(function: Any, arguments: dict[str, Any], name: str, value: Any) -> tuple[bool, str]:
    """Whether a call refuses a value, and what is wrong with how it does; empty where nothing is."""
    try:
        with watched():
            called(function, {**arguments, name: value})
        return False, ""
    except HungError:
        return True, "it hangs"
    except BaseException as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        told = f"{type(error).__name__} ({last.filename.rpartition('/rfrope/')[2]}:{last.lineno}): {error!s:.120}"
        if isinstance(error, OSError):
            return True, ""
        if not isinstance(error, DOCUMENTED) or any(part in last.filename for part in FOREIGN):
            return True, told
        return True, "" if _names(name, value, arguments_of(function), str(error)) else f"does not name it: {told}"


def _names(name: str, value: Any, arguments: list[str], message: str) -> bool:
    """Whether a message names an argument, another one that it does not go with, or the value where that is a path."""
    names = (*arguments, *ALIASES.get(name, ()))
    shown = name in PATHS and isinstance(value, str | os.PathLike) and str(value) in message
    return shown or any(re.search(rf"\b{other}\b", message) for other in names)


@contextmanager
def patience(seconds: int) -> Iterator[None]:
    """Call it hung sooner."""
    before = _PATIENCE[0]
    _PATIENCE[0] = seconds
    try:
        yield
    finally:
        _PATIENCE[0] = before


@contextmanager
def watched() -> Iterator[None]:
    """Raise `HungError` in what takes very long (a guard, not a measure), MemoryError in what asks for over 1 GiB."""

    def hung(*_: Any) -> None:
        raise HungError

    before = signal.signal(signal.SIGALRM, hung)
    limits = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm", encoding="ascii") as file:
        held = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (held + GIANT, limits[1]))
    signal.alarm(_PATIENCE[0])
    try:
        yield
    finally:
        signal.alarm(0)
        resource.setrlimit(resource.RLIMIT_AS, limits)
        signal.signal(signal.SIGALRM, before)
