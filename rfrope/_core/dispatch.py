"""Choice of a backend by the arrays of a call, for the few generic functions that have one.

A generic function names its backends where it is defined: ``@dispatched(CPU.sums, CUDA.sums)``. A backend is a module
of `rfrope._backends` with a function of the same name (without underscore) and signature, which gives the same result,
faster: compiled, for arrays in the memory of the CPU or on a CUDA device, or recorded, for torch tensors whose
operations are. Backends are optional: where one, or what it needs, is missing, the generic function runs. A backend is
imported when one of its functions is first wanted.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from functools import wraps
from types import ModuleType
from typing import Any, NamedTuple, ParamSpec, Protocol, TypeVar, cast

import numpy as np

from rfrope._core.array import Array, library
from rfrope._core.libraries import CUPY, NUMPY

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

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
    keys: dict[str, Key]

    def __call__(self, *arguments: Arguments.args, **options: Arguments.kwargs) -> Result:
        """Call whichever fits the arguments."""


DISPATCHED: dict[Key, Any] = {}  # the generic functions
BEFORE_COMPILING: list[Callable[[], None]] = []  # what a backend calls, once, before it compiles for want of kept code
_FOUND: dict[Key, Callable[..., Any] | None] = {}


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
        keys = {backend.place: (*backend, name) for backend in backends}
        chosen.generic, chosen.name, chosen.keys = generic, name, keys  # type: ignore[attr-defined]
        for key in keys.values():
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
        found = None if key is None else _find_function(*key)
        if found is not None:
            return found
    return None


def next_function(
    function: Dispatched[Arguments, Result], backend: str, *arguments: Any
) -> Callable[Arguments, Result]:
    """Return what runs for some arrays where a backend declines: the next of their place, or the generic function."""
    others = (backend_function(function, one) for one in _ORDERS.get(place_of(arguments), ()) if one != backend)
    return next((one for one in others if one is not None), function.generic)


def pass_on_device(x: Any) -> Callable[..., Any] | None:
    """Return the backend's function that reads and turns arrays of CuPy in one pass, where `x` is one."""
    if library(x) is not CUPY:
        return None
    return _find_function(*CUDA.rotation, "rotated_at_once")


def _find_function(place: str, module: str, name: str) -> Callable[..., Any] | None:
    _look_up(place, module, name)
    return _FOUND[place, module, name]


def _look_up(place: str, module: str, name: str) -> None:
    if (place, module, name) not in _FOUND:
        backend = find(Backend(place, module))
        _FOUND[place, module, name] = None if backend is None else getattr(backend, name)


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


# -- places ------------------------------------------------------------------------------------------------------------


def place_of(values: Iterable[Any]) -> str:
    """Return the place of all arrays among some values, those in tuples included, as `dispatch` names it, or "".

    "torch", or "recorded on" a device, is for tensors whose operations are recorded, for gradients or by a compiler.
    """
    arrays: list[tuple[Any, Array]] = []
    places, rest = set(), list(values)
    for value in rest:
        kind = type(value)
        if kind is np.ndarray:
            arrays.append((NUMPY, value))
            places.add("cpu" if value.dtype.isnative else "")
        elif kind in _PLAIN:
            continue
        elif isinstance(value, tuple):
            rest.extend(value)
        elif hasattr(kind, "dtype") and not isinstance(value, np.generic):
            record = library(value)
            arrays.append((record, value))
            places.add(record.place(value))
    if len(places) < 2 and places != {""}:
        return next(iter(places), "cpu")
    for record, x in arrays:
        if not record.is_recorded(x):
            return ""
    devices = {x.device.type for _, x in arrays}
    return _RECORDED.get(devices.pop(), "torch") if len(devices) == 1 else "torch"


def uses_integer_phases(x: Any) -> bool:
    """Return whether operators of x's library, each a launch, turn x by words, and no loop does it all."""
    record = library(x)
    if not record.uses_integer_phases(x):
        return False
    if str(record.device(x)) != "cpu":
        return True
    return _find_function(*CPU.rotation, "rotated") is None


def runs_operators(x: Array, *others: Any) -> bool:
    """Return whether operators may write what they make: `uses_integer_phases`, and no other array is recorded."""
    if not uses_integer_phases(x) or library(x).rotates_full_width(x):
        return False
    arrays = [x, *[one for one in others if one is not None and type(one) is not np.ndarray]]
    return all(not library(one).needs_gradient(one) and library(one).uses_integer_phases(one) for one in arrays)
