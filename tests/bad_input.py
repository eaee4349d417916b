"""Calls that work, and values that are wrong in each of their arguments, one at a time.

`calls` holds a call of every public function, of every public method of `Rope` and `Kernel` and of every family of
kernels; names of arguments come from signatures. `wrong` and `of_libraries` hold kinds of values that some argument
somewhere should not have. Whether one is wrong for an argument is not said: a call may refuse it with an error that
names this argument, or take it, and then gives what a formula of `accepted.py` says (`judged`).
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import inspect
import os
import pathlib
import re
import resource
import signal
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import accepted
import accepted_reports  # noqa: F401  # its checks join those of `accepted`
import numpy as np

import rfrope
from rfrope import analysis, bochner, designs, exports, frequencies, heads, kernels, models, moments, plotting, rotation
from rfrope._core.arguments import show

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


class Mute:
    """An object that cannot even be shown."""

    def __repr__(self) -> str:
        raise RuntimeError("not today")


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
    "10**5000": 10**5000,
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
    "an array of three axes": np.ones((5, 4, 1)),
    "an array of booleans": np.array([True, False]),
    "a mute object": Mute(),
    "a list of a mute object": [Mute()],
}


def of_libraries(good: Any) -> dict[str, Any]:
    """Values of PyTorch, JAX and Dask, where they are installed: those wrong somewhere, and a good one as theirs."""
    found = {}
    is_array = isinstance(good, np.ndarray | float) or (isinstance(good, list) and isinstance(good[0], float))
    numbers = np.asarray(good if is_array else [], dtype=None if is_array else object)
    plain = {
        "a line": np.array([1.0, 2.0]),
        "a number": np.array(3.0),
        "nothing": np.zeros((0, 4)),
        "NaN": np.full(4, np.nan),
    }
    plain |= {"integers": np.arange(3), "complex": np.array([1j, 2.0]), "true": np.array([True, False])}
    plain |= {"the good value": numbers} if numbers.dtype.kind in "iuf" else {}
    if importlib.util.find_spec("torch"):
        import torch

        found |= {f"torch: {kind}": torch.from_numpy(np.array(value)) for kind, value in plain.items()}
        parts = [torch.ones(2, dtype=torch.float64), torch.ones(3, dtype=torch.float64)]
        found["torch: nested"] = torch.nested.nested_tensor(parts)
        found["torch: jagged"] = torch.nested.nested_tensor(parts, layout=torch.jagged)
        found["torch: sparse"] = torch.eye(8, dtype=torch.float64).to_sparse()
        found["torch: meta"] = torch.ones(4, device="meta", dtype=torch.float64)
        found["torch: 16 bits"] = torch.ones(4, dtype=torch.bfloat16)
        found["torch: with a gradient"] = torch.ones(4, dtype=torch.float64, requires_grad=True)
    if importlib.util.find_spec("jax"):
        import jax

        jax.config.update("jax_enable_x64", True)
        found |= {f"jax: {kind}": jax.numpy.asarray(value) for kind, value in plain.items()}
        found["jax: 16 bits"] = jax.numpy.ones(4, dtype="bfloat16")
    if importlib.util.find_spec("dask"):
        import dask.array

        found |= {f"dask: {kind}": dask.array.asarray(value) for kind, value in plain.items()}
        line = dask.array.ones(8, chunks=4)
        found["dask: an unknown length"] = line[line > 0.0]
        found["dask: objects"] = dask.array.from_array(np.array([Odd(), None], dtype=object), chunks=2)
    return found


# what a message may call an argument that holds one of several things
ALIASES = {
    "rope": ("Rope", "frequencies", "config"),
    "what": ("frequencies", "table"),
    "config": ("rope_parameters", "path"),
    **dict.fromkeys(("name", "text", "law", "names"), ("kernel",)),
    **dict.fromkeys(("first", "second"), ("sets", "kernels")),
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
OF_MODULES = ("layers.torch.RotaryEmbedding", "layers.torch.RotaryEmbedding.forward")
OF_MODULES += ("layers.torch.RotaryEmbedding.rotate", "integrations.transformers.replace_rotary")
BELOW = {"transport_points", "restore_shape", "deficits"}  # methods that modules of rfrope call with what is checked
NOT_HERE = {"kernels.registry.register"}  # it changes the process: tests/kernels/test_registry.py has its bad input

LADDER = np.array([1.0, 0.5, 0.25, 0.125])
X = np.linspace(-1.0, 1.0, 24).reshape(3, 8)
ROPE = rfrope.Rope(LADDER, context=64)
CONFIG = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 8, "rope_theta": 1e4}
CONFIG["max_position_embeddings"] = 64
FEW = {"rng": 0}


@functools.lru_cache(maxsize=1)
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
        rfrope.expected_score: {**qk, "lags": lags, "kernel": gaussian},
        rfrope.score_variance: {**qk, "lags": lags, "kernel": gaussian},
        rfrope.blocks_for_error: {"kernel": gaussian, "max_lag": 64, "error": 0.1},
        moments.mean_kernel_band: {"kernel": gaussian, "lags": lags, "n_blocks": 4},
        moments.relative_error: {**qk, "lags": lags, "kernel": gaussian},
        rfrope.estimate_kernel: {"kernel": gaussian, "lags": lags, "n_samples": 64, **FEW},
        rfrope.estimate_scores: {**qk, "lags": lags, "kernel": gaussian, "n_trials": 8, **FEW},
        rfrope.validate: {"kernel": gaussian, **qk, "lags": lags, "n_samples": 64, "n_trials": 8, **FEW},
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
        analysis.summarise: {"frequencies": LADDER, "context": 16},
        heads.phase_shift: {"frequencies": LADDER, "offset": -1.0},
        heads.aligned_shift: {"frequencies": LADDER, "offset": -1.0, "cosine": np.ones(4)},
        heads.alignment: {"frequencies": LADDER, "shift": np.zeros(4), "offset": -1.0},
        heads.positional_attention: {"frequencies": LADDER, "context": 16},
        heads.effective_offset: {"q": X, "k": X, "frequencies": LADDER, "n_resamples": 4},
        heads.offset_from_weights: {"w_q": np.eye(8), "w_k": np.eye(8), "frequencies": LADDER, "max_lag": 8},
        heads.offset_of: {"frequencies": LADDER, "shift": LADDER, "low": -8.0},
        heads.positional_weights: {"frequencies": LADDER, "d_model": 8},
        heads.profile: {"q": X, "k": X, "frequencies": LADDER, "lags": lags},
        heads.recentred_kernel: {"kernel": gaussian, "lags": lags, "offset": -1.0},
        heads.positional_scores: {"frequencies": LADDER, "lags": lags},
        heads.shifted_mean_kernel: {"frequencies": LADDER, "lags": lags, "shift": np.zeros(4)},
        heads.shifted_scores: {**qk, "frequencies": LADDER, "lags": lags, "shift": np.zeros(4)},
        heads.shifted_terms: {**qk, "frequencies": LADDER, "lags": lags, "shift": np.zeros(4)},
        heads.temperature_for_mass: {"mass": 0.5, "frequencies": LADDER, "context": 16},
        bochner.from_autocorrelation: {"values": [1.0, 0.5, 0.25]},
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
    law = rfrope.kernel("gaussian", scale=8.0)
    made |= {
        ROPE.rotate: {"x": X, "positions": np.arange(3), "out": np.empty_like(X)},
        ROPE.scores: {"q": X, "k": X, "q_positions": np.arange(3), "k_positions": np.arange(3)},
        ROPE.table: {"positions": np.arange(3)},
        law.phi: {"lags": lags},
        law.phi2: {"lags": lags},
        law.density: {"omega": lags},
        law.transport: {"u": np.array([0.25, 0.5, 0.875])},
        law.rescale: {"scale": 2.0},
        law.warp: {"matrix": [[2.0]]},
    }
    for record in kernels.records():
        example = kernels.parse(record.example)
        made[type(example)] = {field.name: getattr(example, field.name) for field in dataclasses.fields(example)}
    if importlib.util.find_spec("torch"):
        from rfrope.layers.torch import RotaryEmbedding

        module = RotaryEmbedding(ROPE)
        made |= {
            RotaryEmbedding: {"rope": LADDER},
            module.forward: {"q": features_of_torch(2), "k": features_of_torch(1), "positions": np.arange(3)},
            module.rotate: {"x": features_of_torch(2), "positions": np.arange(3)},
        }
    named = {name_of(function): (function, arguments) for function, arguments in made.items()}
    if importlib.util.find_spec("torch") and importlib.util.find_spec("transformers"):
        named["integrations.transformers.replace_rotary"] = (_replaced, {"model": _model(), "rope": LADDER})
    return named | {
        "_core.parallel.threads": (_threads, {"count": 1}),
        "frequencies.axes.axial": (_axial, {"first": LADDER, "second": LADDER[:2], "order": "chunked"}),
        "kernels.algebra.axes": (_axes, {"first": law, "second": rfrope.kernel("cauchy")}),
    }


def features_of_torch(heads: int) -> Any:
    """Return queries or keys ``(1, heads, 3, 8)``."""
    import torch

    return torch.linspace(-1.0, 1.0, 24 * heads, dtype=torch.float64).reshape(1, heads, 3, 8)


@functools.cache
def _model() -> Any:
    import torch
    import transformers

    torch.manual_seed(0)
    sizes = {"vocab_size": 8, "hidden_size": 16, "intermediate_size": 8, "num_hidden_layers": 2}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, num_attention_heads=2)).eval()


def _replaced(model: Any, rope: Any) -> Any:
    """Logits of a model that turns by a Rope."""
    import torch

    from rfrope.integrations.transformers import replace_rotary

    with torch.no_grad(), replace_rotary(model, rope):
        return model(torch.arange(5)[None]).logits.numpy()


def _threads(count: Any) -> Any:
    with rfrope.threads(count):
        return count


def _axial(first: Any, second: Any, order: Any) -> Any:
    return rfrope.axial(first, second, order=order)


def _axes(first: Any, second: Any) -> Any:
    return kernels.axes(first, second)


def _bell(x: Any) -> Any:
    return np.exp(-0.5 * np.asarray(x) ** 2)


def pairs(name: str, function: Any, arguments: dict[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """Arguments of a call, and all that is to be put into them, by kind; calls that take long are left out."""
    for argument in arguments_of(function):
        for kind, value in {**wrong(), **of_libraries(arguments.get(argument))}.items():
            if kind != "2**32 - 1" or (name.rpartition(".")[2], argument) not in LONG:
                yield argument, kind, value


def name_of(function: Any) -> str:
    return f"{function.__module__.removeprefix('rfrope.')}.{function.__qualname__}"


def public() -> dict[str, Any]:
    """All public functions that take arguments, `Rope`, and the methods of `Rope` and `Kernel` that do."""
    found = {}
    for module in PUBLIC:
        for name in module.__all__:
            value = getattr(module, name)
            if (inspect.isfunction(value) and inspect.signature(value).parameters) or value is rfrope.Rope:
                found[name_of(value)] = value
    for owner in (rfrope.Rope, rfrope.Kernel):
        for name, value in vars(owner).items():
            if name[0] != "_" and name not in BELOW and inspect.isfunction(value) and arguments_of(value) != ["self"]:
                found[name_of(value)] = value
    return found


def names() -> list[str]:
    """Names of all calls, of modules that are not installed here, too."""
    families = [name_of(record.factory) for record in kernels.records()]
    return sorted({*public(), *families, *OF_MODULES} - NOT_HERE)


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


def judged(function: Any, arguments: dict[str, Any], name: str, value: Any, of: str = "") -> tuple[bool, str]:
    """Whether a call refuses a value, and what is wrong with how it does, or with what it gives; empty if nothing is.

    `of` is the name of the call in `accepted.CHECKS`.
    """
    given = {**arguments, name: value}
    try:
        with watched():
            found = called(function, given)
    except HungError:
        return True, "it hangs"
    except BaseException as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        told = f"{type(error).__name__} ({last.filename.rpartition('/rfrope/')[2]}:{last.lineno}): {error!s:.200}"
        if not isinstance(error, DOCUMENTED) or any(part in last.filename for part in FOREIGN):
            return True, told
        return True, "" if _names(name, value, arguments_of(function), error) else f"does not name it: {told}"
    if getattr(value, "is_meta", False):  # it has a shape alone, and so has what it gives
        if of == "models.auditing.audit":
            return False, ""  # what it finds there depends on values
        plain = called(function, {**given, name: value.new_ones(value.shape, device="cpu")})
        same = _shapes(found) == _shapes(plain)
        return False, "" if same else f"it is taken, and gives shapes {_shapes(found)}; ones give {_shapes(plain)}"
    return False, _checked(found, function, given, of)


def _shapes(value: Any) -> Any:
    """Shapes of all arrays of a result."""
    if dataclasses.is_dataclass(value):
        return [_shapes(getattr(value, field.name)) for field in dataclasses.fields(value)]
    if isinstance(value, list | tuple):
        return [_shapes(one) for one in value]
    return tuple(getattr(value, "shape", ()))


def _checked(found: Any, function: Any, given: dict[str, Any], of: str) -> str:
    """What is wrong with the result of a call; empty if nothing is."""
    check = accepted.CHECKS.get(of)
    if check is None:
        return "it is taken, and no formula says what it gives"
    defaults = {one.name: one.default for one in inspect.signature(function).parameters.values()}
    try:
        whole = {name: accepted.plain(value) for name, value in {**defaults, **given}.items()}
        with np.errstate(all="ignore"):
            check(found, SimpleNamespace(self=getattr(function, "__self__", None), **whole))
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        return f"it is taken, and gives something else: {type(error).__name__} (line {last.lineno}): {error!s:.200}"
    return ""


def _names(name: str, value: Any, arguments: list[str], error: BaseException) -> bool:
    """Whether a message names an argument: it begins so, or names another that it conflicts with, or shows a path."""
    message, names = str(error), (name, *ALIASES.get(name, ()))
    if name in PATHS and isinstance(value, str | os.PathLike) and str(value)[:60] in message:
        return True
    if any(re.match(rf"(unknown |cannot read |the )?{one}\b", message) for one in names):
        return True
    bare = message.replace(show(value), "")
    return any(re.search(rf"\b{one}\b", bare) for one in names)


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
