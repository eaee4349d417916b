"""Arrays on a device: results stay there, nothing crosses to the host, the host never waits.

Three stand-ins that refuse what would cost a GPU dearly, each in its own way: array-api-strict's second device, which
shares no memory with NumPy; torch's "meta" device, whose tensors have no values at all; and, where there is one, a real
device that records every call in a CUDA graph, during which CUDA itself refuses to wait for the stream.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import importlib.util
import inspect
import pathlib
import re
import sys
import tempfile
import types
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import bad_input
import numpy as np
import pytest
from conftest import library
from problems import has_density
from public import METHODS

import rfrope
from rfrope import analysis, heads, kernels, montecarlo, scaling
from rfrope._core import array, blocks, dispatch, libraries

Place = Callable[..., Any]  # puts NumPy arrays on a device

RNG = np.random.default_rng(0)
FEATURES = RNG.standard_normal((2, 3, 8))  # heads, tokens, d
POSITIONS = np.array([0, 5, 131071])
FREQUENCIES = np.array([1.0, 0.3, 0.01, 1e-4])
VECTORS = RNG.standard_normal((3, 3))
TENSOR = RNG.standard_normal((2, 4, 3))  # heads, D, axes
TABLE = RNG.standard_normal((3, 4))  # tokens, D


# -- every public function that takes arrays, with all its options; every array is on the device -----------------------


def rotations(a: Place, dtype: str = "float32") -> Iterator[Any]:
    x, p, w = a(FEATURES, dtype), a(POSITIONS), a(FREQUENCIES)
    yield rfrope.rotate(x, p, w)
    yield rfrope.rotate(x, p, w, pairing="interleaved", out_pairing="half", inverse=True, scale=2.0)
    yield rfrope.rotate(x, p, w, shift=a([0.1, 0.2, 0.3, 0.4]), scale=a([1.0, 2.0, 3.0, 4.0]), out=a(FEATURES, dtype))
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
        for kernel in every_kernel(axes):
            k = kernel.ndim
            for values in (np.array([0.0, 0.5, 3.0]), np.array(0.5)):
                point = values if k == 1 else values[..., None] * np.linspace(1.0, 2.0, k)
                if method != "density" or has_density(kernel):
                    yield getattr(kernel, method)(a(point))


# -- the calls of bad_input.py, and more where options take other ways -------------------------------------------------

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
    """A public function and arguments that it takes."""
    table, function = bad_input.calls(FOLDER), public_functions()[name]
    return table[name] if name in table else next(one for one in table.values() if one[0] is function)


def call_once(name: str, a: Place) -> Iterator[Any]:
    function, arguments = found_call(name)
    numbers = {key: np.array(value) for key, value in arguments.items() if key == "offset"}
    yield from arrays(bad_input.called(function, moved(arguments | numbers, a)))


def make_once(name: str, xp: Any, place: Any) -> Any:
    function, arguments = found_call(name)
    return next(arrays(bad_input.called(function, arguments | {"xp": xp, "device": place})))


SCHEMES = ("linear", "ntk", "dynamic_ntk", "yarn", "longrope", "llama3", "proportional")
UNTYPED = {"summarise", "plan", "audit", "plotting.attention"}  # they take arrays and other things


def takes_arrays(name: str, function: Any) -> bool:
    annotated = (str(p.annotation) for p in inspect.signature(function).parameters.values())
    return name in UNTYPED or any(re.search(r"\bArray\b", text) for text in annotated)


def public_functions() -> dict[str, Any]:
    """All functions of the public interface, and the methods of Kernel and Rope, by name."""
    spaces = (rfrope, analysis, heads, rfrope.moments, rfrope.rotation, rfrope.frequencies, rfrope.models)
    found = {name: getattr(space, name) for space in spaces for name in space.__all__}
    for name in ("kernels", "bochner", "designs", "engines", "exports", "features", "plotting"):
        space = getattr(rfrope, name)
        found |= {
            f"{name}.{one}": getattr(space, one) for one in space.__all__ if getattr(space, one) is not found.get(one)
        }
    found |= {f"scaling.{name}": getattr(scaling, name) for name in ("names", "records", *SCHEMES)}
    found |= {f"validation.{name}": getattr(rfrope.validation, name) for name in ("example_pairs",)}
    found |= {f"data.{name}": getattr(rfrope.data, name) for name in ("smollm2_heads",)}
    for kind, methods in METHODS.items():
        found |= {f"{kind}.{name}": getattr(getattr(rfrope, kind), name) for name in methods if "__" not in name}
    return {name: value for name, value in found.items() if callable(value) and not inspect.isclass(value)}


def kernel_estimates(a: Place, executor: Any = None) -> Iterator[Any]:
    for quantity in ("phi", "phi2", "sin"):
        lags = a([0.5, 1.0])
        found = rfrope.estimate_kernel(lags, "gaussian", n_samples=100, rng=0, quantity=quantity, executor=executor)
        yield from (found.value, found.stderr)


def score_estimates(a: Place, executor: Any = None) -> Iterator[Any]:
    x, kernel = a(FEATURES), "matern(nu=0.8, ndim=3)"
    found = rfrope.estimate_scores(x, x, a(VECTORS), kernel, n_trials=50, rng=0, executor=executor)
    yield from (v for estimate in (found.mean, found.variance) for v in (estimate.value, estimate.stderr))


TAKING = {name for name, function in public_functions().items() if takes_arrays(name, function)}
ESTIMATES = {"estimate_kernel": kernel_estimates, "estimate_scores": score_estimates}
FROM_HOST = ESTIMATES | {"isotropic": functools.partial(call_once, "isotropic")}
OF_THE_HOST = {  # as the table in docs/precision.rst says
    *("kernels.transport_points", "designs.directional_error", "designs.directional_bound", "pair_covariance"),
    *("Kernel.transport", "validate", "density_of_states", "first_negative_lag", "aliasing_distance", "fit_kernel"),
    *("effective_offset", "offset_from_weights", "offset_of", "temperature_for_mass", "packed_positions", "summarise"),
    *("precision_budget", "atlas", "nearest_commuting", "fold_gains"),
    *("plan", "from_generators", "audit", "bochner.from_autocorrelation", "bochner.from_series", "exports.export"),
    *("exports.rounding", "exports.write", "plotting.attention", "plotting.frequencies", "plotting.kernel"),
    *("plotting.mean_kernels", "plotting.wavelengths", "save"),
}
TO_HOST: dict[str, Callable[[Place], Any]] = {
    **{name: functools.partial(call_once, name) for name in OF_THE_HOST},
    "plotting.kernel": lambda a: [rfrope.plotting.kernel("gaussian(scale=8)", 64, frequencies=a(FREQUENCIES))],
    "profile": lambda a: heads.profile(
        a(FEATURES), a(FEATURES), a([0, -1, -5]), a(FREQUENCIES), pairs="occurring", q_positions=a(POSITIONS)
    ),
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
CALLS = dict(sorted(CALLS.items()))
TO_HOST = dict(sorted(TO_HOST.items()))
ASKING = {"probe"}  # what it makes by `xp` goes to the function that it is about, and does not come back
MADE_ON_HOST = {
    name: functools.partial(make_once, name)
    for name, function in sorted(public_functions().items())
    if {"xp", "device"} <= inspect.signature(function).parameters.keys() and name not in ASKING
}


# -- array-api-strict's second device ----------------------------------------------------------------------------------

# What rfrope calls of a namespace with arrays on a device. In the source of CuPy 14.2 and of array-api-compat 1.16 each
# only launches kernels or makes a view, without a look at a value. Not so `clip` (of array-api-compat), `nonzero`,
# `unique_*`, `repeat` and `asarray` of host arrays; `concat` and `stack` are copies by kernels up to eight arrays.


class Watched(types.ModuleType):
    """The namespace of array-api-strict, which notes what is asked of it; `clip` stands beside, as in `array.clip`."""

    def __init__(self, space: Any) -> None:
        super().__init__(space.__name__)
        self.space, self.seen = space, set()

    def __getattr__(self, name: str) -> Any:
        self.seen.add(name)
        return getattr(self.space, name)


# fmt: off
QUEUED = {
    "abs", "all", "any", "arange", "argmin", "astype", "atan2", "broadcast_to", "concat", "cos", "cumulative_sum",
    "empty", "exp", "expand_dims", "expm1", "finfo", "floor", "full", "full_like", "imag", "isfinite", "isinf",
    "log", "log1p", "logaddexp", "matmul", "matrix_transpose", "max", "mean", "moveaxis", "ones_like", "prod",
    "real", "remainder", "reshape", "round", "sin", "sqrt", "squeeze", "stack", "sum", "take", "tril", "where",
    "zeros_like", "__array_namespace_info__", "int32", "int64", "uint8", "float32", "float64", "complex64",
    "complex128",
}
# fmt: on


@pytest.fixture
def strict():
    return library("array-api-strict").module


@pytest.fixture
def second(strict):
    place = strict.Device("device1")
    return lambda values, dtype=None: strict.asarray(np.array(values, dtype=dtype), device=place)


@pytest.fixture
def refusing(strict, monkeypatch):
    """Second device on which a look at a value raises, as do masks, which need one; returns the watched namespace."""
    other, kind = strict.Device("device1"), type(strict.asarray(0.0))

    def refuse(name: str, forbidden: Callable[..., bool]) -> None:
        real = getattr(kind, name)

        def method(self: Any, *args: Any) -> Any:
            if self.device == other and forbidden(*args):
                raise RuntimeError(f"{name} of an array on a device")
            return real(self, *args)

        monkeypatch.setattr(kind, name, method)

    for name in ("__bool__", "__float__", "__int__", "__complex__", "__index__", "__iter__", "__array__"):
        if hasattr(kind, name):
            refuse(name, lambda *_: True)
    for name in ("__getitem__", "__setitem__"):
        refuse(name, lambda i, *_: any(isinstance(part, kind) for part in (i if isinstance(i, tuple) else (i,))))
    watched, clip, record = Watched(strict), array.clip, type(array.library(strict.ones(1)))
    namespace_of = record.namespace

    def watch(self: Any, x: Any, name: str) -> Any:
        found = namespace_of(self, x, name)
        return watched if found is strict else found

    monkeypatch.setattr(record, "namespace", watch)
    monkeypatch.setattr(array, "clip", lambda *args: clip(*args[:-1], strict if args[-1] is watched else args[-1]))
    return watched


def forbid(monkeypatch, *names: str) -> None:
    for name in names:

        def crossed(*args: Any, name: str = name, **kwargs: Any) -> None:
            raise RuntimeError(f"{name} was called")

        monkeypatch.setattr(array, name, crossed)


def strict_sici(z: Any) -> Any:
    from scipy.special import sici

    space = sys.modules["array_api_strict"]
    return tuple(space.asarray(v, device=z.device) for v in sici(z._array))


@pytest.mark.parametrize("name", CALLS)
def test_nothing_crosses_to_or_from_the_host(name, second, refusing, monkeypatch):
    """Equal to the results of the CPU's device too, where what is refused here may happen."""
    special = types.SimpleNamespace(sici=strict_sici)  # as CuPy has one
    monkeypatch.setattr(array, "special_functions", lambda xp: special)
    expected = list(CALLS[name](lambda values, dtype=None: refusing.space.asarray(np.array(values, dtype=dtype))))
    refusing.seen.clear()
    forbid(monkeypatch, "to_host", "from_host", "map_on_host")
    results = list(CALLS[name](second))
    for result in results:
        assert result.device == second(0.0).device
    assert refusing.seen <= QUEUED
    for result, wanted in zip(results, expected, strict=True):
        np.testing.assert_array_equal(result._array, wanted._array)


@pytest.mark.parametrize("name", FROM_HOST)
def test_draws_and_directions_cross_to_the_device_and_nothing_comes_back(name, second, refusing, monkeypatch):
    bad_input.calls(FOLDER)  # kept, and made on the host
    forbid(monkeypatch, "to_host")
    for result in FROM_HOST[name](second):
        assert result.device == second(0.0).device
    forbid(monkeypatch, "from_host")
    with pytest.raises(RuntimeError, match="from_host was called"):
        list(FROM_HOST[name](second))


@pytest.mark.parametrize("name", TO_HOST)
def test_what_needs_the_host_does_go_there(name, second, monkeypatch):
    forbid(monkeypatch, "to_host")
    with pytest.raises(RuntimeError, match="to_host was called"):
        list(TO_HOST[name](second))


@pytest.mark.parametrize("name", MADE_ON_HOST)
def test_what_is_made_on_the_host_arrives_on_the_device(name, strict, second):
    assert MADE_ON_HOST[name](strict, strict.Device("device1")).device == second(0.0).device


LOOKS = {
    "bool": bool,
    "float": float,
    "int": int,
    "copy": np.asarray,
    "mask": lambda x: x[x > 0.0],
    "NumPy": lambda x: x + np.ones(1),
    "CPU": lambda x: x + sys.modules["array_api_strict"].asarray(1.0),
}


@pytest.mark.parametrize("name", LOOKS)
def test_the_second_device_would_notice(name, second, refusing):
    with pytest.raises((RuntimeError, TypeError, ValueError)):
        LOOKS[name](second(1.0))


def test_values_on_a_device_are_not_looked_at(second, strict):
    assert not array.has_host_values(second([1.0]))
    assert array.has_host_values(strict.asarray([1.0]))


# -- tensors without values --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*CALLS, *FROM_HOST])
def test_no_value_is_needed(name, monkeypatch):
    torch = library("torch").module
    monkeypatch.setattr(array, "special_functions", lambda xp: types.SimpleNamespace(sici=lambda z: (z, z)))
    calls = CALLS | FROM_HOST
    for result in calls[name](lambda values, dtype=None: torch.asarray(np.array(values, dtype=dtype), device="meta")):
        assert result.device.type == "meta"


# -- CuPy's arrays without a device: what can be known of them ---------------------------------------------------------


@pytest.fixture
def cupy_array():
    """Make arrays of CuPy on memory that is not there."""
    if importlib.util.find_spec("cupy") is None:
        pytest.skip("CuPy is not installed")
    import cupy

    def make(shape: tuple[int, ...], dtype: str = "float64", offset: int = 0, device: int = 0) -> Any:
        unowned = cupy.cuda.UnownedMemory(4096, 1 << 20, None, device)
        return cupy.ndarray(shape, dtype, cupy.cuda.MemoryPointer(unowned, offset))

    return make


@pytest.mark.parametrize("shape", [(3,), ()])
def test_arrays_on_two_devices_are_refused_single_numbers_too(shape, cupy_array):
    with pytest.raises(ValueError, match=r"x is on device .*0.* but positions is on .*1.*; expected all arrays on one"):
        array.namespace(x=cupy_array((3, 8)), positions=cupy_array(shape, device=1))


def test_arrays_of_cupy_are_recognised(cupy_array):
    x = cupy_array((4, 6))
    assert array.library(x) is libraries.CUPY
    assert dispatch.place_of((x,)) == "cuda"
    assert not array.has_host_values(x)
    assert not array.is_lazy(x)
    assert array.library(x).is_writable(x)
    assert array.device(x) == x.device
    assert array.dtype_name(x) == "float64"
    assert array.namespace(x=x, y=[1.0], z=cupy_array((), offset=800)).__name__ == "array_api_compat.cupy"
    assert array.special_functions(array.namespace(x=x)).__name__ == "cupyx.scipy.special"
    assert array.all_within(x, 1.0, array.namespace(x=x))


def test_what_cuda_kernels_may_touch(second):
    torch = library("torch").module
    for other in (np.ones(3), second([1.0]), torch.ones(3), torch.ones(3, device="meta")):
        assert dispatch.place_of((None, 1.0, other)) != "cuda"


def test_memory_of_cupys_arrays_is_compared(cupy_array):
    import cupy

    NONE, PART, SAME = dispatch.Overlap
    x = cupy_array((4, 6))
    assert dispatch.overlap_of(x, x[:, :]) is SAME
    assert dispatch.overlap_of(x, cupy_array((4, 6), offset=8)) is not SAME
    assert dispatch.overlap_of(x, x.T) is not SAME
    assert dispatch.overlap_of(x, cupy_array((4, 6), "float32")) is not SAME
    assert dispatch.overlap_of(x[:3], x[1:]) is PART
    assert dispatch.overlap_of(x, cupy_array((4, 6), offset=23 * 8)) is PART
    assert dispatch.overlap_of(x, cupy_array((4, 6), offset=24 * 8)) is NONE
    assert dispatch.overlap_of(x[:, 0::2], x[:, 1::2]) is NONE
    assert dispatch.overlap_of(x[::-1], x[:1]) is PART
    assert dispatch.has_shared_elements(cupy.broadcast_to(x[:1], (4, 6)))
    assert not dispatch.has_shared_elements(x[:1])
    with pytest.raises(ValueError, match="out overlaps x in part"):
        blocks.check_out(x[1:], x[:3], (3, 6), "x", False)
    blocks.check_out(x[:3], x[:3], (3, 6), "x", False)
    with pytest.raises(ValueError, match="broadcast view"):
        blocks.check_out(cupy.broadcast_to(x[:1], (4, 6)), x, (4, 6), "x", False)


def test_numpy_that_says_how_to_turn_is_moved_to_the_device(second):
    """Positions, frequencies, phases and lags are constants, which are moved exactly; features are not."""
    x, p, w, u, d = FEATURES, POSITIONS, FREQUENCIES, TABLE, POSITIONS + 0.5
    calls: list[tuple[Callable[..., Any], tuple[np.ndarray, ...]]] = [  # features first, then what says how to turn
        (lambda x, p, w, s: rfrope.rotate(x, p, w, scale=s, shift=s), (x, p, w, w)),
        (lambda x, p, w: rfrope.scores(x, x, p, p, w), (x, p, w)),
        (lambda x, u: rfrope.rotate_by_phases(x, u), (x, u)),
        (lambda x, c, s: rfrope.rotate_by_table(x, c, s), (x, u, u)),
        (lambda p, w: rfrope.rotation_table(p, w)[1], (p, w)),
        (lambda w, d: analysis.mean_kernel(d, w), (w, d)),
        (lambda x, w, d: analysis.departure(x, x, d, w).residual, (x[0], w, d)),
        (lambda x, d: rfrope.expected_score(x, x, d, "gaussian"), (x, d)),
        (lambda x, d: rfrope.estimate_scores(x, x, d, "gaussian", n_trials=4, rng=0).mean.value, (x, d)),
    ]
    for call, arrays in calls:
        wanted = call(*map(second, arrays))
        for i in range(1, len(arrays)):
            found = call(*(v if i == j else second(v) for j, v in enumerate(arrays)))
            assert found.device == wanted.device == second(0.0).device
            np.testing.assert_array_equal(found._array, wanted._array)


def test_mixing_with_numpy_is_an_error_where_features_or_results_would_move(second):
    """NumPy beside a device, in every function of more than one array; none of these is moved unasked."""
    x, p, w, host = second(FEATURES), second(POSITIONS), second(FREQUENCIES), FREQUENCIES
    calls = {
        "out": [lambda: rfrope.rotate(x, p, w, out=FEATURES.copy())],
        "k": [
            lambda: rfrope.block_coefficients(x, FEATURES),
            lambda: rfrope.scores(x, FEATURES, p, p, w),
            lambda: analysis.sine_share(x, FEATURES, host, w),
            lambda: analysis.departure(x[0, ...], FEATURES[0], host, w),
            lambda: rfrope.expected_score(x, FEATURES, 1.0, "gaussian"),
            lambda: rfrope.estimate_scores(x, FEATURES, 1.0, "gaussian", n_trials=4),
        ],
    }
    for name, functions in calls.items():
        for function in functions:
            with pytest.raises(TypeError, match=rf"but {name} is a numpy array; expected all arrays from one library"):
                function()
    with pytest.raises(TypeError, match=r"out is a .* array; expected all arrays from one library"):
        rfrope.rotate(FEATURES, POSITIONS, FREQUENCIES, out=x)


def test_two_devices_are_an_error(second, strict):
    with pytest.raises(ValueError, match=r"x is on device .*device1.* but positions is on .*CPU_DEVICE"):
        rfrope.rotate(second(FEATURES), strict.asarray(POSITIONS), second(FREQUENCIES))


# -- the current device ------------------------------------------------------------------------------------------------

WRAPPER = array.select_device(lambda: None).__code__


CALLING = ("rotate", "Rope.rotate", "Rope.table", "relocate")  # these call one that does


@pytest.mark.parametrize(
    "name", [name for name, f in public_functions().items() if takes_arrays(name, f) and name not in CALLING]
)
def test_public_functions_run_on_the_device_of_their_arrays(name):
    function = public_functions()[name]
    assert function.__code__ is WRAPPER
    assert function.__doc__
    assert function.__module__ == function.__wrapped__.__module__
    assert inspect.signature(function) == inspect.signature(function.__wrapped__)


@pytest.fixture
def current(monkeypatch):
    """A CuPy of arrays that know their device, and the devices that are current, innermost last."""
    stack: list[str] = []

    class Device:
        def __init__(self, name: str) -> None:
            self.name = name

        def __enter__(self) -> None:
            stack.append(self.name)

        def __exit__(self, *_: object) -> None:
            stack.pop()

    class ndarray:
        def __init__(self, name: str) -> None:
            self.device = Device(name)

    monkeypatch.setitem(sys.modules, "cupy", types.SimpleNamespace(ndarray=ndarray))
    return types.SimpleNamespace(stack=stack, array=ndarray)


def test_the_device_of_the_first_array_is_current_inside(current):
    inside = array.select_device(lambda *args, **kwargs: list(current.stack))
    assert inside(1.0, current.array("one"), x=current.array("two")) == ["one"]
    assert inside([2.0], x=current.array("two")) == ["two"]
    assert inside(1.0, None, x=np.ones(2)) == []
    assert current.stack == []

    @array.select_device
    def failing(x):
        raise ValueError(current.stack[-1])

    with pytest.raises(ValueError, match="one"):
        failing(current.array("one"))
    assert current.stack == []


def test_without_cupy_nothing_is_done(monkeypatch):
    monkeypatch.delitem(sys.modules, "cupy", raising=False)
    assert array.select_device(lambda x: x)(3) == 3
    assert "cupy" not in sys.modules


def test_chunks_run_on_the_device_of_their_arrays(current, monkeypatch):
    """A worker's thread has a current device of its own."""
    seen = []
    monkeypatch.setattr(montecarlo, "_drawn", lambda *_: seen.append(list(current.stack)))
    monkeypatch.setattr(montecarlo, "_kernel_moments", lambda *_: seen.append(list(current.stack)) or (0.0, 0.0))
    monkeypatch.setattr(montecarlo, "_score_sums", lambda *_: seen.append(list(current.stack)) or (0.0,) * 4)
    kernel, x = rfrope.kernel("gaussian"), current.array("one")
    tasks = [montecarlo._KernelChunk(kernel, (0, 0), x, "phi"), montecarlo._ScoreChunk(kernel, (0, 0), x, x, x)]
    with ThreadPoolExecutor(1) as pool:
        for task in tasks:
            pool.submit(task, (0, 4)).result()
    assert seen == [["one"]] * 3


# -- a real device -----------------------------------------------------------------------------------------------------


@pytest.fixture
def cuda():
    """CuPy, where there is a device."""
    return library("cupy").module


class Kept:
    """Arrays on the current device, made in a first run of some calls and given again, with their values, later."""

    def __init__(self, cupy: Any) -> None:
        self.cupy, self.made, self.originals = cupy, [], []

    def first(self, values: Any, dtype: str | None = None) -> Any:
        self.made.append(self.cupy.asarray(np.array(values, dtype=dtype)))
        self.originals.append(self.made[-1].copy())
        return self.made[-1]

    def again(self) -> Place:
        for made, original in zip(self.made, self.originals, strict=True):
            made[...] = original
        rest = iter(self.made)
        return lambda values, dtype=None: next(rest)


@pytest.mark.gpu
@pytest.mark.parametrize("name", CALLS)
def test_every_function_can_be_recorded_in_a_cuda_graph(name, cuda, monkeypatch):
    """While a stream is captured CUDA refuses to wait for it; the graph then computes what the calls computed."""
    kept, stream = Kept(cuda), cuda.cuda.Stream(non_blocking=True)
    host = list(CALLS[name](lambda values, dtype=None: np.array(values, dtype=dtype)))
    with stream:
        eager = [result.get() for result in CALLS[name](kept.first)]
        for _ in range(2):  # kernels are compiled by now; the pool gets all the memory that one run needs
            list(CALLS[name](kept.again()))
        place = kept.again()
        forbid(monkeypatch, "to_host", "from_host", "map_on_host")
        stream.synchronize()
        stream.begin_capture()
        try:
            results = list(CALLS[name](place))
        except BaseException:
            with contextlib.suppress(cuda.cuda.runtime.CUDARuntimeError):
                stream.end_capture()
            raise
        graph = stream.end_capture()
        graph.launch(stream)
        for result, before, reference in zip(results, eager, host, strict=True):
            assert result.device == cuda.cuda.Device()
            np.testing.assert_array_equal(result.get(), before)
            narrow = np.asarray(reference).dtype.name in ("float32", "complex64")
            np.testing.assert_allclose(before, reference, rtol=1e-11, atol=1e-5 if narrow else 1e-11)


@pytest.mark.gpu
@pytest.mark.parametrize("name", CALLS)
def test_torch_itself_never_waits_for_a_device(name, monkeypatch):
    """What CuPy does for its tensors is not seen by torch: the recording above shows it for CuPy's own arrays."""
    lib = library("torch cuda")
    torch, kept = lib.module, []
    monkeypatch.setattr(array, "special_functions", lambda xp: types.SimpleNamespace(sici=lambda z: (z, z)))

    def place(values: Any, dtype: str | None = None) -> Any:
        kept.append(lib(np.array(values, dtype=dtype)))
        return kept[-1].clone()

    list(CALLS[name](place))
    rest = iter(kept)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for result in CALLS[name](lambda values, dtype=None: next(rest).clone()):
            assert result.is_cuda
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.gpu
@pytest.mark.parametrize("learnable", [False, "both"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_the_module_turns_on_a_device_and_in_its_graphs_as_on_the_cpu(learnable, dtype):
    torch = library("torch cuda").module
    module = importlib.import_module("rfrope.layers.torch").RotaryEmbedding(
        rfrope.Rope(rfrope.geometric(32)), learnable
    )
    exact = [torch.randn(2, heads, 100, 64, dtype=torch.float64, requires_grad=True) for heads in (8, 2)]
    given = [one.detach().to("cuda", getattr(torch, dtype)).requires_grad_() for one in exact]
    exact = [one.detach().double().cpu().requires_grad_() for one in given]

    def both_ways(inputs):
        turned = module(*inputs, offset=2**20)
        gradients = [torch.ones_like(one) * 0.75 for one in turned]
        return [*turned, *torch.autograd.grad(turned, [*inputs, *module.parameters()], gradients)]

    expected = both_ways(exact)
    module.to("cuda")
    for place, (one, other) in enumerate(zip(both_ways(given), expected, strict=True)):
        error = 2.0 * torch.finfo(getattr(torch, dtype)).eps if place < 4 else 1e-5  # sums of gradients are float32
        one, other = one.detach().double().cpu(), other.detach()
        torch.testing.assert_close(one, other, rtol=error, atol=error * float(other.abs().max()))
    with torch.no_grad():
        module(*given, offset=2**20)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            turned = module(*given, offset=2**20)
        graph.replay()
        for one, other in zip(turned, module(*given, offset=2**20), strict=True):
            assert torch.equal(one, other)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ESTIMATES)
def test_estimates_come_from_a_device(name, cuda):
    with ThreadPoolExecutor(2) as pool:
        for executor in (None, pool):
            calls = functools.partial(ESTIMATES[name], executor=executor)
            host = calls(lambda values: np.array(values))
            for result, reference in zip(calls(lambda values: cuda.asarray(np.array(values))), host, strict=True):
                np.testing.assert_allclose(result.get(), reference, rtol=1e-9, atol=1e-12)
