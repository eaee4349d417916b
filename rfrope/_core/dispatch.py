"""Choice of a backend by the arrays of a call, for the few generic functions that have one; and memory that overlaps.

A generic function names its backends where it is defined: ``@dispatched(CPU.sums, CUDA.sums)``. A backend is a module
of `rfrope._backends` with a function of the same name (without underscore) and signature, which gives the same result,
faster: compiled, for arrays in the memory of the CPU or on a CUDA device, or recorded, for torch tensors whose
operations are. Backends are optional: where one, or what it needs, is missing, the generic function runs. A backend is
imported when one of its functions is first wanted.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from enum import Enum
from functools import wraps
from types import ModuleType
from typing import Any, NamedTuple, ParamSpec, Protocol, TypeVar, cast

import numpy as np

from rfrope._core import array
from rfrope._core.angles import Angles, token_axes
from rfrope._core.array import Array, library
from rfrope._core.lazy import DASK, Constant
from rfrope._core.libraries import CUPY

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

_LOOKED_AT = 2**16  # elements of an array whose places are compared one by one
_PLAIN = {type(None), bool, int, float, str, ModuleType}  # kinds of arguments that are not arrays, looked up first


class Backend(NamedTuple):
    """A module of ``rfrope._backends.cpu``, ``.cuda``, ``.torch`` or ``.triton``, named by its place and its name."""

    place: str
    module: str


class Backends(NamedTuple):
    """The modules of a place."""

    rotation: Backend
    sums: Backend
    estimators: Backend


CPU = Backends(*(Backend("cpu", module) for module in Backends._fields))
CUDA = Backends(*(Backend("cuda", module) for module in Backends._fields))
TORCH_ROTATION, TORCH_RECORDING = Backend("torch", "rotation"), Backend("torch", "recording")
TRITON = Backend("triton", "rotation")
CPU_DENSE = Backend("cpu", "dense")  # small dense arrays, read and turned in one pass
# backends for tensors of torch on a device, of which the first that is there runs; else that of a place's own name
_ORDERS = {
    "torch on cuda": ("triton", "cuda"),
    "torch on xpu": ("triton",),
    "recorded on cuda": ("triton", "torch"),
    "recorded on xpu": ("triton", "torch"),
}
_RECORDED = {"cuda": "recorded on cuda", "xpu": "recorded on xpu"}  # by the device of tensors

Key = tuple[str, str, str]  # place and module of a backend, and the name of a function there


class Dispatched(Protocol[Arguments, Result]):
    """A function that calls a backend's function, or `generic`, itself; `name` is that of the backend's function."""

    generic: Callable[Arguments, Result]
    name: str
    keys: dict[str, str]  # by place: that, the backend's module and the function's name, joined by points

    def __call__(self, *arguments: Arguments.args, **options: Arguments.kwargs) -> Result:
        """Call whichever fits the arguments."""


DISPATCHED: dict[Key, Any] = {}  # the generic functions
BEFORE_COMPILING: list[Callable[[], None]] = []  # what a backend calls, once, before it compiles for want of kept code
_FOUND: dict[str, Callable[..., Any] | None] = {}


def dispatched(*backends: Backend) -> Callable[[Callable[Arguments, Result]], Dispatched[Arguments, Result]]:
    """Declare the backends of a function, one for each place.

    The arrays among the arguments decide which version runs. The function itself stays at hand as
    ``function.generic``.
    """

    def declare(generic: Callable[Arguments, Result]) -> Dispatched[Arguments, Result]:
        @wraps(generic)
        def chosen(*arguments: Any, **options: Any) -> Any:
            place = place_of((*arguments, *options.values()))
            function = backend_function(chosen, place) if place else None  # type: ignore[arg-type]
            return (generic if function is None else function)(*arguments, **options)

        name = generic.__name__.lstrip("_")
        keys = {backend.place: ".".join((*backend, name)) for backend in backends}
        chosen.generic, chosen.name, chosen.keys = generic, name, keys  # type: ignore[attr-defined]
        for key in [(*backend, name) for backend in backends]:
            if key in DISPATCHED:
                raise ValueError(f"{key} belongs to a function of {DISPATCHED[key].__module__}; expected another name")
            DISPATCHED[key] = chosen
        return cast(Dispatched[Arguments, Result], chosen)

    return declare


def backend_place(function: Dispatched[..., Any], *arguments: Any) -> str:
    """Return the place of the backend that a function would use for some arrays; "" for none."""
    place = place_of(arguments)
    found = (one for one in _ORDERS.get(place, (place,)) if one and backend_function(function, one) is not None)
    return next(found, "")


def backend_function(function: Dispatched[..., Any], place: str) -> Callable[..., Any] | None:
    """Return the backend's version of a function for arrays at a place; None where there is none here."""
    for one in _ORDERS.get(place, (place,)):
        key = function.keys.get(one)
        found = None if key is None else _find_function(key)
        if found is not None:
            return found
    return None


def next_function(
    function: Dispatched[Arguments, Result], backend: str, *arguments: Any
) -> Callable[Arguments, Result]:
    """Return what runs for some arrays where a backend declines: the next of their place, or the generic function."""
    place = place_of(arguments)
    others = (backend_function(function, one) for one in _ORDERS.get(place, ()) if one != backend)
    return next((one for one in others if one is not None), function.generic)


def pass_on_device(x: Any) -> Callable[..., Any] | None:
    """Return the backend's function that reads and turns arrays of CuPy in one pass, where `x` is one."""
    if library(x) is not CUPY:
        return None
    key = "cuda.rotation.rotated_at_once"
    return _FOUND[key] if key in _FOUND else _find_function(key)


def _find_function(key: str) -> Callable[..., Any] | None:
    _look_up(key)
    return _FOUND[key]


def _look_up(key: str) -> None:
    if key in _FOUND:
        return
    place, module, name = key.split(".")
    backend = find(Backend(place, module))
    _FOUND[key] = None if backend is None else getattr(backend, name)


# what torch.compiler.assume_constant_result sets: the compiler runs this where it cannot trace, as it cannot an import
_look_up._dynamo_marked_constant = True  # type: ignore[attr-defined]


def find(backend: Backend) -> ModuleType | None:
    """Import a backend, or return None where it cannot work; `rfrope doctor` says why."""
    try:
        return load(backend)
    except ImportError:
        return None


def load(backend: Backend) -> ModuleType:
    """Import a backend.

    Raises
    ------
    ImportError
        If it cannot work on this machine.
    ValueError
        If a variable of the environment keeps it from working.
    """
    importlib.import_module(f"rfrope._backends.{backend.place}").check()
    return importlib.import_module(f"rfrope._backends.{backend.place}.{backend.module}")


# -- memory of arrays --------------------------------------------------------------------------------------------------


def place_of(values: Iterable[Any]) -> str:
    """Return the place of all arrays among some values, those in tuples included, as `dispatch` names it, or "".

    "torch", or "recorded on" a device, is for tensors whose operations are recorded, for gradients or by a compiler.
    """
    arrays, rest = [], list(values)
    for value in rest:
        kind = type(value)
        if kind is np.ndarray:
            arrays.append(value)
        elif kind in _PLAIN:
            continue
        elif isinstance(value, tuple):
            rest.extend(value)
        elif hasattr(kind, "dtype") and not isinstance(value, np.generic):
            arrays.append(value)
    places = {(library(x).place(x) if type(x) is not np.ndarray else "cpu" if x.dtype.isnative else "") for x in arrays}
    if len(places) < 2 and places != {""}:
        return next(iter(places), "cpu")
    if not all([library(x).is_recorded(x) for x in arrays]):
        return ""
    devices = {x.device.type for x in arrays}
    return _RECORDED.get(devices.pop(), "torch") if len(devices) == 1 else "torch"


def takes_words(x: Any) -> bool:
    """Return whether operators of x's library, each a launch, turn x by words, and no loop does it all."""
    record = library(x)
    if not record.takes_words(x):
        return False
    if str(record.device(x)) != "cpu":
        return True
    loops = f"{CPU.rotation.place}.{CPU.rotation.module}.rotated"
    _look_up(loops)
    return _FOUND[loops] is None


def runs_operators(x: Array, *others: Any) -> bool:
    """Return whether `takes_words`, and none of the arrays beside x is recorded: operators may write what they make."""
    arrays = [one for one in others if one is not None and type(one) is not np.ndarray]
    return (
        takes_words(x)
        and not library(x).turns_whole(x)
        and all(not library(one).needs_gradient(one) and library(one).takes_words(one) for one in (x, *arrays))
    )


class Overlap(Enum):
    """Memory that two arrays have in common."""

    NONE = 0
    PART = 1
    SAME = 2  # all of it, in the same order, so that in-place work is exact


def overlap_of(a: Array, b: Array) -> Overlap:
    """Return how the memory of two arrays overlaps, by their address ranges where it cannot be decided exactly."""
    if a is b:
        return Overlap.SAME
    first, second = library(a).addresses(a), library(b).addresses(b)
    if first is None or second is None:
        return Overlap.NONE
    alike = (first.shape, first.strides, first.itemsize) == (second.shape, second.strides, second.itemsize)
    if alike and first.ctypes.data == second.ctypes.data:
        return Overlap.SAME
    try:
        shared = np.shares_memory(first, second, max_work=10_000)  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        shared = True
    return Overlap.PART if shared else Overlap.NONE


def has_shared_elements(x: Array) -> bool:
    """Return whether several elements of `x` share memory, as after broadcasting or in windows that slide.

    Layouts that are neither nested nor small enough to look at every element are taken to share some.
    """
    places = library(x).addresses(x)
    if places is None or not places.size:
        return False
    axes = sorted((abs(step), length) for step, length in zip(places.strides, places.shape, strict=True) if length > 1)
    reach = places.itemsize  # bytes from the first byte of what the axes so far hold to the last
    for step, length in axes:
        if step < reach:
            return places.size > _LOOKED_AT or _is_hit_twice(axes, places.itemsize)
        reach += step * (length - 1)
    return False


def _is_hit_twice(axes: list[tuple[int, int]], size: int) -> bool:
    """Return whether two elements of a layout, given as steps and lengths in bytes, share a byte."""
    starts = np.zeros(1, np.int64)
    for step, length in axes:
        starts = (starts[:, None] + step * np.arange(length)).reshape(-1)
    return bool(np.any(np.diff(np.sort(starts)) < size))


# -- over Dask's blocks ------------------------------------------------------------------------------------------------


def comes_in_blocks(x: Array, xp: ModuleType) -> bool:
    """Return whether features are Dask's and all constants NumPy's (`array.space_of_constants`)."""
    return xp is np and array.is_lazy(x)


def map_blocks(function: Any, x: Array, angles: Any, turn: Any, width: int | None = None, **options: Any) -> Array:
    """Map a public function of features and `Angles`, or phases, over Dask's blocks; a new width is given."""
    constants = {"phases": Constant(angles)}
    if isinstance(angles, Angles):
        constants = {"positions": Constant(angles.positions)}
        constants["frequencies"] = Constant(angles.frequencies, 2, 1 + token_axes(angles.positions))
        if angles.shift is not None:
            constants["shift"] = Constant(angles.shift)
    options |= {"pairing": turn.pairing, "inverse": turn.inverse}
    is_number = isinstance(turn.scale, float)
    (options if is_number else constants)["scale"] = turn.scale if is_number else Constant(turn.scale)
    return DASK.map_chunks(function, x, constants, options, width)
