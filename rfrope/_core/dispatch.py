"""Choice of a backend by the arrays of a call, for the few generic functions that have one.

A generic function names its backends where it is defined: ``@dispatched(CPU.sums, CUDA.sums)``. A backend is a module
of `rfrope._backends` with a function of the same name (without underscore) and signature, which gives the same result,
faster: compiled, for arrays in the memory of the CPU or on a CUDA device, or recorded, for torch tensors whose
operations are. Backends are optional: where one, or what it needs, is missing, the generic function runs. A backend is
imported when one of its functions is first wanted.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import wraps
from types import ModuleType
from typing import Any, NamedTuple, ParamSpec, Protocol, TypeVar, cast

from rfrope._core import memory

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class Backend(NamedTuple):
    """A module of ``rfrope._backends.cpu``, ``.cuda`` or ``.torch``, named by its place and its own name."""

    place: str
    module: str


class Backends(NamedTuple):
    """The modules of a place."""

    rotation: Backend
    sums: Backend
    estimators: Backend


CPU = Backends(*(Backend("cpu", module) for module in Backends._fields))
CUDA = Backends(*(Backend("cuda", module) for module in Backends._fields))
TORCH_ROTATION = Backend("torch", "rotation")


Key = tuple[str, str, str]  # place and module of a backend, and the name of a function there


class Dispatched(Protocol[Arguments, Result]):
    """A function that calls a backend's function, or `generic`, itself; `name` is that of the backend's function."""

    generic: Callable[Arguments, Result]
    name: str
    keys: dict[str, str]  # by place: that, the backend's module and the function's name, joined by points

    def __call__(self, *arguments: Arguments.args, **options: Arguments.kwargs) -> Result:
        """Call whichever fits the arguments."""


DISPATCHED: dict[Key, Any] = {}  # the generic functions
_FOUND: dict[str, Callable[..., Any] | None] = {}


def dispatched(*backends: Backend) -> Callable[[Callable[Arguments, Result]], Dispatched[Arguments, Result]]:
    """Declare the backends of a function, one for each place.

    The arrays among the arguments decide which version runs. The function itself stays at hand as
    ``function.generic``.
    """

    def declare(generic: Callable[Arguments, Result]) -> Dispatched[Arguments, Result]:
        @wraps(generic)
        def chosen(*arguments: Any, **options: Any) -> Any:
            place = memory.place((*arguments, *options.values()))
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
    place = memory.place(arguments)
    return place if place and backend_function(function, place) is not None else ""


def backend_function(function: Dispatched[..., Any], place: str) -> Callable[..., Any] | None:
    """Return the backend's version of a function for arrays at a place; None where there is none here."""
    key = function.keys.get(place)
    if key is None:
        return None
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
