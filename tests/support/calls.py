"""A call of every public function, of the methods of Rope and Kernel, and of every family of kernels.

`calls` holds arguments of NumPy that each of them takes. `CALLS`, `FROM_HOST` and `TO_HOST` hold calls of what takes
arrays, and more of them where options take other ways, as functions of `a`, which puts an array of NumPy on a device:
those whose results stay there, those that bring numbers of the host along, and those that use the host.
"""

import contextlib
import dataclasses
import functools
import importlib.util
import inspect
import pathlib
import re
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from problems import has_density
from public import FUNCTIONS, METHODS

import rfrope
from rfrope import kernels

Place = Callable[..., Any]

# -- arguments that every public function takes ------------------------------------------------------------------------

LADDER = np.array([1.0, 0.5, 0.25, 0.125])
AT, LAGS = np.arange(3), np.array([0.0, 1.0, 5.0])
X = np.linspace(-1.0, 1.0, 24).reshape(3, 8)
ROPE = rfrope.Rope(LADDER, context=64)
LAW, CAUCHY, GAUSSIAN = rfrope.kernel("gaussian", scale=8.0), rfrope.kernel("cauchy"), "gaussian(scale=8)"
HEADS = np.linspace(-1.0, 1.0, 192).reshape(3, 1, 8, 8) ** 3  # documents, heads, tokens, features
CONFIG = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 8, "rope_theta": 1e4}
CONFIG["max_position_embeddings"] = 64
NOT_HERE = {"kernels.register"}  # it changes the process: tests/kernels/test_registry.py has its bad input


def _turn(q: Any, k: Any, positions: Any) -> Any:
    return rfrope.rotate(q, positions[:, None], LADDER), rfrope.rotate(k, positions[:, None], LADDER)


def _fall(share: Any) -> Any:
    return -share


def _bell(x: Any) -> Any:
    return np.exp(-0.5 * np.asarray(x) ** 2)


# what an argument of that name is, wherever a function cannot do without it
USUAL: dict[str, Any] = {"x": X, "q": X[0], "k": X[1], "z": X[:, :4] + 1j * X[:, 4:], "y": X[0], "v": X, "rng": 0}
USUAL |= {"positions": AT, "q_positions": AT, "k_positions": AT, "old_positions": AT, "new_positions": 2 * AT}
USUAL |= {"lags": LAGS, "latitude": AT, "longitude": AT, "offset": -1.0, "max_lag": 8, "context": 16}
USUAL |= {"frequencies": LADDER, "what": LADDER, "old": LADDER, "new": ROPE, "rope": ROPE, "shift": np.zeros(4)}
USUAL |= dict(zip(("cos", "sin"), rfrope.rotation_table(AT, LADDER), strict=True))
USUAL |= {"phases": np.ones((3, 4)), "rates": np.ones((3, 4)), "values": np.ones((3, 4)), "magnitudes": abs(X)}
USUAL |= {"source": "half", "target": "interleaved", "layout": "q8_0", "storage": "float32", "engine": "vllm"}
USUAL |= {"shape": (2, 3), "segments": [2, (1, 2, 2)], "sections": [2, 2]}
USUAL |= {"wavelengths": np.array([1.0, 2.0]), "angles": np.array([0.0, 1.0])}
USUAL |= {"generators": np.kron(np.diag([1.0, 0.5]), [[0.0, -1.0], [1.0, 0.0]]), "weight": np.ones((8, 3))}
USUAL |= {"basis": np.eye(4), "gains": np.ones(4), "cosine": np.ones(4), "sine": np.eye(4), "n_directions": 4}
USUAL |= {"n_blocks": 4, "step": 0.1, "low": 0.1, "high": 1.0, "head_dim": 8, "d_model": 8}
USUAL |= {"kernel": GAUSSIAN, "law": GAUSSIAN, "text": GAUSSIAN, "name": "gaussian", "design": "shifted", "error": 0.1}
USUAL |= {"weights": [0.5, 0.5], "kernels": [rfrope.kernel("gaussian"), CAUCHY], "points": np.array([0.2, 0.7])}
USUAL |= {"omega": LAGS, "u": np.array([0.25, 0.5, 0.875]), "scale": 2.0, "matrix": [[2.0]], "count": 1}
USUAL |= {"lengths": np.array([1.0, 2.0]), "scales": np.array([1.0, 2.0]), "distance": np.ones(1)}
USUAL |= {"projections": X[:2], "n_features": 3, "n_samples": 64, "n_trials": 8, "config": CONFIG}
USUAL |= {"rope_parameters": {"rope_type": "linear", "factor": 2.0}, "apply": _turn, "phi": _bell, "density": _bell}
USUAL |= {"factor": 2.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "short_factor": np.ones(4)}
USUAL |= {"long_factor": 2.0 * np.ones(4), "original_max_position_embeddings": 64, "max_position_embeddings": 64}
USUAL |= {"seq_len": 128, "before": LADDER, "after": 0.5 * LADDER}
USUAL |= {"table": np.ones(8), "function": _fall, "c": 1.0, "threshold": 2.0, "sets": {"a": LADDER}}

BOTH, POLAR = {"q": X, "k": X}, {"q": abs(X[0]), "k": abs(X[1])}
BIASED = POLAR | {"shift": np.ones(8)}
OTHERS: dict[str, dict[str, Any]] = {  # what else a function gets, by its name
    "rotate": {"out": np.empty_like(X)},
    "Rope.rotate": {"out": np.empty_like(X)},
    **dict.fromkeys(("scores", "Rope.scores", "analysis.departure", "heads.profile"), BOTH),
    "rotation.rerotate": {"k": X},
    "rotation.relocate": {"k": X},
    "rotation.rotate_polar": {"frequencies": np.tile(LADDER, 2), "out": np.empty((3, 16))},
    "rotation.cumulative_phases": {"offset": np.zeros(4)},
    "frequencies.isotropic": {"magnitudes": np.array([1.0, 0.5])},
    "axial": {"first": LADDER, "second": LADDER[:2], "order": "chunked"},
    "design": {"context": 64},
    "designs.optimise": {"n_blocks": 2, "starts": 1},
    "kernels.axes": {"first": LAW, "second": CAUCHY},
    "blocks_for_error": {"max_lag": 64},
    "moments.polar_score": BIASED,
    "moments.polar_variance": BIASED,
    "moments.polar_error": BIASED,
    "moments.effective_blocks": POLAR,
    "features.positive": {"stabilise": "token"},
    "features.hyperbolic": {"stabilise": "all"},
    "features.linear_attention": {
        **{"q": abs(X), "k": abs(X), "causal": True, "block": 2, "denominator": (abs(X), abs(X)), "scale": X[:, 0]}
    },
    "validate": {"q": X[0], "k": X[1], "lags": LAGS, "n_samples": 64, "n_trials": 8},
    "models.diff": {"old": CONFIG, "new": CONFIG | {"rope_theta": 7.0}},
    "models.can_relocate": {"cached_len": 9, "seq_len": 64},
    "models.probe": {"expected": ROPE, "head_dim": 8},
    "models.audit": {"rope": ROPE},
    "models.check": {"target": CONFIG, "against": CONFIG},
    "engines.override": {"engine": "vLLM", "rope_parameters": {"rope_theta": 1e4}, "context": 64},
    "scaling.yarn": {"base": 16.0, "mscale": 1.0, "mscale_all_dim": 0.5},
    "scaling.longrope": {"factor": 2.0},
    "scaling.riflex": {"period": 13, "length": 64},
    "scaling.scale_axis": {
        "frequencies": np.diag([1.0, 0.5]),
        "axis": 0,
        "scheme": rfrope.scaling.linear,
        "factor": 2.0,
    },
    "analysis.first_negative_lag": {"max_lag": 64},
    "analysis.aliasing_distance": {"max_lag": 64},
    "analysis.base_for_context": {"max_base": 100.0, "n_grid": 4},
    "analysis.turns": {"context": 64.0},
    "analysis.fit_kernel": {"names": ["gaussian"]},
    "analysis.plan": {"rope": LADDER, "context": 64, "trained_context": 16},
    "analysis.summarise": {"context": 16},
    "heads.effective_offset": BOTH,
    "heads.offset_of": {"shift": LADDER, "low": -8.0},
    "heads.atlas": {"q": HEADS, "k": HEADS},
    "bochner.from_autocorrelation": {"values": np.array([1.0, 0.5, 0.25])},
    "bochner.from_series": {"x": np.sin(np.arange(64.0)) + np.cos(0.3 * np.arange(64.0))},
    "bochner.from_density": {"support": (0.0, 6.0), "normalise": True},
}


class _Module:
    """What a module has for a repair that finds nothing wrong."""

    def __init__(self) -> None:
        self._buffers, self._parameters = {"inv_freq": LADDER}, {}

    def forward(self) -> None: ...

    def named_modules(self) -> Iterator[tuple[str, Any]]:
        yield "", self


def _others(folder: pathlib.Path) -> dict[str, dict[str, Any]]:
    """Return what some functions get that is made for them: files, and results of other functions."""
    saved = folder / "rope.npz"
    if not saved.exists():
        rfrope.save(saved, ROPE)
    return OTHERS | {
        "load": {"path": saved},
        "models.repair": {"model": _Module(), "rope": ROPE},
        "save": {"path": folder / "new.npz", "overwrite": True},
        "engines.write": {"path": folder / "new.json", "overwrite": True},
    }


def _threads(count: Any) -> Any:
    with rfrope.threads(count):
        return count


# functions of any number of arguments, contexts and methods, as functions of some arguments
INSTEAD: dict[str, Callable[..., Any]] = {
    "threads": _threads,
    "axial": lambda first, second, order: rfrope.axial(first, second, order=order),
    "kernels.axes": lambda first, second: kernels.axes(first, second),
    **{f"Rope.{name}": getattr(ROPE, name) for name in METHODS["Rope"]},
    **{f"Kernel.{name}": getattr(LAW, name) for name in METHODS["Kernel"]},
}


def plain_parameters(function: Any) -> list[inspect.Parameter]:
    """Return a function's parameters, but for those that stand for any number of them."""
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [one for one in inspect.signature(function).parameters.values() if one.kind not in several]


def public_names() -> list[str]:
    """Return names of public functions and methods that take arguments, each once."""
    first = {id(function): name for name, function in reversed(FUNCTIONS.items())}
    return [name for name in first.values() if inspect.signature(FUNCTIONS[name]).parameters]


def names() -> list[str]:
    """Return names of all calls, of modules that are not installed here, too."""
    families = [f"family {record.name}" for record in kernels.records()]
    modules = ["RotaryEmbedding", "RotaryEmbedding.forward", "RotaryEmbedding.rotate"]
    return ["Rope", *(name for name in public_names() if name not in NOT_HERE), *families, *modules]


@functools.lru_cache(maxsize=1)
def calls(folder: pathlib.Path) -> dict[str, tuple[Callable[..., Any], dict[str, Any]]]:
    """Return a call of every public function, by its name: the function, and arguments that it takes."""
    found: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {"Rope": (rfrope.Rope, {"frequencies": LADDER})}
    others = _others(folder)
    for name in public_names():
        if name not in NOT_HERE:
            function, more = INSTEAD.get(name, FUNCTIONS[name]), others.get(name, {})
            needed = [p.name for p in plain_parameters(function) if p.default is p.empty or p.name == "rng"]
            found[name] = function, {one: (USUAL | more)[one] for one in needed} | more
    for record in kernels.records():
        example = kernels.parse(record.example)
        values = {field.name: getattr(example, field.name) for field in dataclasses.fields(example)}
        found[f"family {record.name}"] = record.factory, values
    return found | (_modules() if importlib.util.find_spec("torch") else {})


def _modules() -> dict[str, tuple[Callable[..., Any], dict[str, Any]]]:
    """Return calls of the module for PyTorch."""
    import torch

    from rfrope.layers.torch import RotaryEmbedding

    module = RotaryEmbedding(ROPE)
    q, k = (torch.linspace(-1.0, 1.0, 24 * n, dtype=torch.float64).reshape(1, n, 3, 8) for n in (2, 1))
    return {
        "RotaryEmbedding": (RotaryEmbedding, {"rope": LADDER}),
        "RotaryEmbedding.forward": (module.forward, {"q": q, "k": k, "positions": AT}),
        "RotaryEmbedding.rotate": (module.rotate, {"x": q, "positions": AT}),
    }


def called(function: Any, arguments: dict[str, Any]) -> Any:
    """Call with arguments by name, or by place where the signature says so."""
    given = dict(arguments)
    parameters = inspect.signature(function).parameters.values()
    first = [given.pop(p.name) for p in parameters if p.kind is inspect.Parameter.POSITIONAL_ONLY]
    return function(*first, **given)


_RNG = np.random.default_rng(0)
FEATURES = _RNG.standard_normal((2, 3, 8))  # heads, tokens, d
POSITIONS = np.array([0, 5, 131071])
FREQUENCIES = np.array([1.0, 0.3, 0.01, 1e-4])
VECTORS = _RNG.standard_normal((3, 3))
TENSOR = _RNG.standard_normal((2, 4, 3))  # heads, D, axes
TABLE = _RNG.standard_normal((3, 4))  # tokens, D


# -- every public function that takes arrays, with all its options; every array is on the device -----------------------


def rotations(a: Place) -> Iterator[Any]:
    x, p, w = a(FEATURES, "float32"), a(POSITIONS), a(FREQUENCIES)
    yield rfrope.rotate(x, p, w)
    yield rfrope.rotate(x, p, w, pairing="interleaved", out_pairing="half", inverse=True, scale=2.0)
    yield rfrope.rotate(
        x, p, w, shift=a([0.1, 0.2, 0.3, 0.4]), scale=a([1.0, 2.0, 3.0, 4.0]), out=a(FEATURES, "float32")
    )
    yield rfrope.rotate(x, a(POSITIONS + 0.5), w[:3], pairing="interleaved", scale=a(2.0))
    for axes in (1, 2, 3):
        yield rfrope.rotate(x, a(VECTORS[:, :axes]), a(TENSOR[..., :axes]), scale=a(np.full((2, 1, 4), 0.5)))
        yield rfrope.rotate(x, a(VECTORS[:, :axes]), a(TENSOR[0, :, :axes]), shift=a(np.ones((3, 4))))
        yield rfrope.rotate(x[0, 0, ...], a(VECTORS[0, :axes]), a(TENSOR[0, :, :axes]))
    yield rfrope.rotate(x, p, w, out=x)


def by_a_rope(a: Place) -> Iterator[Any]:
    x, p = a(FEATURES, "float32"), a(POSITIONS)
    for rope in (rfrope.Rope(a(FREQUENCIES), attention_factor=2.0), rfrope.Rope(a(FREQUENCIES), pairing="interleaved")):
        for _ in range(2):  # prepared at the first call
            yield rope.rotate(x, p)
    yield rfrope.Rope(a(TENSOR)).rotate(x, a(VECTORS), inverse=True, out=x)


def scores_of_a_rope(a: Place) -> Iterator[Any]:
    x, p = a(FEATURES, "float32"), a(POSITIONS)
    yield rfrope.Rope(a(FREQUENCIES), attention_factor=2.0).scores(x, x, p, p)
    yield rfrope.Rope(a(TENSOR)).scores(x, x, a(VECTORS), a(VECTORS))


def tables_of_a_rope(a: Place) -> Iterator[Any]:
    yield from rfrope.Rope(a(FREQUENCIES), attention_factor=2.0).table(a(POSITIONS))
    yield from rfrope.Rope(a(TENSOR)).table(a(VECTORS), dtype="float32")


def rerotated(a: Place) -> Iterator[Any]:
    x, p, w = a(FEATURES, "float32"), a(POSITIONS), a(FREQUENCIES)
    yield rfrope.rotation.rerotate(x, p, w, a(FREQUENCIES[::-1].copy()))
    yield rfrope.rotation.rerotate(x, p, rfrope.Rope(w, attention_factor=2.0), a(FREQUENCIES, "float32"), out=x)
    yield rfrope.rotation.rerotate(x, p, w, rfrope.Rope(w[:3], pairing="interleaved"))
    yield rfrope.rotation.rerotate(x, a(VECTORS), a(TENSOR), a(TENSOR[..., ::-1].copy()))


def relocated(a: Place) -> Iterator[Any]:
    x, p, w = a(FEATURES, "float32"), a(POSITIONS), a(FREQUENCIES)
    yield rfrope.rotation.relocate(x, p, a(POSITIONS[::-1].copy()), rfrope.Rope(w, attention_factor=2.0))
    yield rfrope.rotation.relocate(x, p, a(POSITIONS + 0.5), w, out=x)
    yield rfrope.rotation.relocate(x, a(VECTORS), a(VECTORS[::-1].copy()), a(TENSOR))
    yield rfrope.rotation.relocate(
        x, a(POSITIONS[:, None] * [1, 2]), a(POSITIONS[:, None] * [0, 1]), rfrope.Rope(w, sections=(2, 2))
    )


def polar(a: Place) -> Iterator[Any]:
    x, p, w = a(abs(FEATURES), "float32"), a(POSITIONS), a(FREQUENCIES)
    yield rfrope.rotation.rotate_polar(x[..., :4], p, w)
    yield rfrope.rotation.rotate_polar(x, p, w, inverse=True, pairing="interleaved", scale=a(2.0))
    yield rfrope.rotation.rotate_polar(x[..., :4], p, w, shift=a(TABLE), softplus=True, out=a(FEATURES, "float32"))
    yield rfrope.rotation.rotate_polar(x[..., :4], a(VECTORS), a(TENSOR), pairing="interleaved")


def scores(a: Place) -> Iterator[Any]:
    x, p, w = a(FEATURES, "float32"), a(POSITIONS), a(FREQUENCIES)
    yield rfrope.scores(x, x, p, p, w)
    yield rfrope.scores(x[0, ...], x[0, ...], p, p, w[:2], pairing="interleaved", shift=w[:2])
    yield rfrope.scores(x, x, a(VECTORS), a(VECTORS), a(TENSOR))


def every_kernel(axes: int) -> Iterator[rfrope.Kernel]:
    """One of each registered family that has so many axes, all branches of the Matérn function, and the algebra."""
    scale = tuple(1.0 + axis for axis in range(axes))
    for record in kernels.records():
        with contextlib.suppress(ValueError):
            yield record.factory(ndim=axes)
            if "scale" in record.parameters:
                yield record.factory(ndim=axes, scale=scale)
    yield from (rfrope.kernel("power_exponential", exponent=a, scale=scale, ndim=axes) for a in (0.5, 2.0))
    yield from (rfrope.kernel("rational_quadratic", alpha=a, scale=scale, ndim=axes) for a in (0.3, 0.5 * axes, 7.0))
    yield rfrope.kernel("shell", radius=scale, ndim=axes) * rfrope.kernel("gaussian", ndim=axes)
    for nu in (0.3, 0.8, 1.0, 2.2, 2.5, 7.3, 25.0):
        yield rfrope.kernel("matern", nu=nu, scale=scale, ndim=axes)
    yield rfrope.kernel("sinc", bandwidth=scale, ndim=axes)
    one, other = rfrope.kernel("gaussian", ndim=axes), rfrope.kernel("cauchy", scale=scale, ndim=axes)
    yield one * other
    yield kernels.mixture([0.25, 0.75], [one, other])
    yield other.rescale(scale)
    yield other.warp(np.eye(axes) + 0.1)
    yield kernels.axes(one, other)
    yield kernels.axes(one, other, one)  # four axes and more


def of_kernels(method: str, a: Place) -> Iterator[Any]:
    for axes in (1, 2, 3):
        for number, kernel in enumerate(every_kernel(axes)):
            k = kernel.ndim
            for values in (np.array([0.0, 0.5, 3.0]), np.array(0.5))[: 1 if number else 2]:
                point = values if k == 1 else values[..., None] * np.linspace(1.0, 2.0, k)
                if method != "density" or has_density(kernel):
                    yield getattr(kernel, method)(a(point))


# -- the calls above, with arrays anywhere -----------------------------------------------------------------------------

FOLDER = pathlib.Path(tempfile.mkdtemp())


def moved(value: Any, a: Place) -> Any:
    """An argument with all of its arrays on the device."""
    if isinstance(value, np.ndarray):
        return a(value)
    if isinstance(value, tuple) and isinstance(value[0], np.ndarray):
        return tuple(map(a, value))
    if isinstance(value, dict):
        return {key: moved(one, a) for key, one in value.items()}
    if isinstance(value, rfrope.Rope):
        return dataclasses.replace(value, frequencies=a(value.frequencies))
    if dataclasses.is_dataclass(value) and not isinstance(value, rfrope.Kernel):
        return dataclasses.replace(value, **moved(vars(value), a))
    return value


def arrays(result: Any) -> Iterator[Any]:
    """Yield the arrays of a result, of records inside, too."""
    if isinstance(result, rfrope.Rope):
        yield result.vectors
    elif hasattr(result, "shape"):
        yield result
    elif dataclasses.is_dataclass(result) or isinstance(result, list | tuple):
        for one in vars(result).values() if dataclasses.is_dataclass(result) else result:
            yield from arrays(one)


def found_call(name: str) -> tuple[Callable[..., Any], dict[str, Any]]:
    """Return a public function and arguments that it takes."""
    table, function = calls(FOLDER), SHORT[name]
    return table[name] if name in table else next(one for one in table.values() if one[0] is function)


def call_once(name: str, a: Place) -> Iterator[Any]:
    """Yield the arrays of a call's result."""
    function, arguments = found_call(name)
    numbers = {key: np.array(value) for key, value in arguments.items() if key == "offset"}
    yield from arrays(called(function, moved(arguments | numbers, a)))


def make_once(name: str, xp: Any, place: Any) -> Any:
    """Return the first array that a function makes, of a library and on a device."""
    function, arguments = found_call(name)
    return next(arrays(called(function, arguments | {"xp": xp, "device": place})))


BARE = ("analysis.", "heads.", "moments.", "rotation.", "frequencies.", "models.")  # not named in support.inc
UNTYPED = {"summarise", "plan", "audit"}  # they take arrays and other things


def takes_arrays(name: str, function: Any) -> bool:
    """Return whether a public function takes arrays, by its annotations."""
    annotated = (str(p.annotation) for p in inspect.signature(function).parameters.values())
    return name in UNTYPED or any(re.search(r"\bArray\b", text) for text in annotated)


def short_names() -> dict[str, Any]:
    """Return public functions, each once, by names without the modules that `BARE` has."""
    found: dict[int, tuple[str, Any]] = {}
    for long, function in sorted(FUNCTIONS.items(), key=lambda item: not item[0].startswith(BARE)):
        found.setdefault(id(function), (long.partition(".")[2] if long.startswith(BARE) else long, function))
    return dict(found.values())


SHORT = short_names()


def kernel_estimates(a: Place, executor: Any = None) -> Iterator[Any]:
    for quantity in ("phi", "phi2", "sin"):
        lags = a([0.5, 1.0])
        found = rfrope.estimate_kernel(lags, "gaussian", n_samples=100, rng=0, quantity=quantity, executor=executor)
        yield from (found.value, found.stderr)


def score_estimates(a: Place, executor: Any = None) -> Iterator[Any]:
    x, kernel = a(FEATURES), "matern(nu=0.8, ndim=3)"
    found = rfrope.estimate_scores(x, x, a(VECTORS), kernel, n_trials=50, rng=0, executor=executor)
    yield from (v for estimate in (found.mean, found.variance) for v in (estimate.value, estimate.stderr))


TAKING = {name for name, function in SHORT.items() if takes_arrays(name, function)}
ESTIMATES = {"estimate_kernel": kernel_estimates, "estimate_scores": score_estimates}
FROM_HOST = ESTIMATES | {"isotropic": functools.partial(call_once, "isotropic")}
OF_THE_HOST = {  # as docs/explain/precision.rst says
    *("Kernel.transport", "validate", "first_negative_lag", "aliasing_distance", "fit_kernel"),
    *("effective_offset", "offset_of", "summarise", "atlas", "scaling.scale_axis"),
    *("plan", "from_generators", "audit", "bochner.from_autocorrelation", "bochner.from_series", "engines.export"),
    *("engines.rounding", "engines.write", "plotting.kernel"),
    *("plotting.mean_kernels", "plotting.wavelengths", "save"),
}
TO_HOST: dict[str, Callable[[Place], Any]] = {
    **{name: functools.partial(call_once, name) for name in OF_THE_HOST},
    "plotting.kernel": lambda a: [rfrope.plotting.kernel("gaussian(scale=8)", 64, frequencies=a(FREQUENCIES))],
}
CALLS: dict[str, Callable[[Place], Iterator[Any]]] = {
    **{name: functools.partial(call_once, name) for name in TAKING - OF_THE_HOST - FROM_HOST.keys()},
    "rotate": rotations,
    "Rope.rotate": by_a_rope,
    "Rope.scores": scores_of_a_rope,
    "Rope.table": tables_of_a_rope,
    "relocate": relocated,
    "rerotate": rerotated,
    "rotate_polar": polar,
    "scores": scores,
    **{f"Kernel.{name}": functools.partial(of_kernels, name) for name in ("phi", "phi2", "density")},
}
CALLS, TO_HOST = dict(sorted(CALLS.items())), dict(sorted(TO_HOST.items()))
ASKING = {"probe"}  # what it makes by `xp` goes to the function that it is about, and does not come back
MADE_ON_HOST = {
    name: functools.partial(make_once, name)
    for name, function in sorted(SHORT.items())
    if {"xp", "device"} <= inspect.signature(function).parameters.keys() and name not in ASKING
}
