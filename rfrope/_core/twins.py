"""Twins: compiled or transformed versions of a few generic functions, declared where these are defined.

A twin has the name (without underscore) and the signature of its generic function, and agrees with it. It lives in a
leaf of `rfrope._accel`, for arrays in the memory of the CPU or on a CUDA device, or for torch tensors whose operations
are recorded, and is optional: where the leaf, or what it needs, is missing, the generic function runs, with the same
result and more slowly.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import wraps
from typing import Any, NamedTuple, ParamSpec, Protocol, TypeVar, cast

from rfrope._core import memory

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class Leaves(NamedTuple):
    """Where the twins of a function are: modules of ``rfrope._accel.cpu``, ``.cuda`` and ``.torch``, or None."""

    cpu: str | None
    cuda: str | None
    torch: str | None


class Twinned(Protocol[Arguments, Result]):
    """A function that runs its twin where there is one; `generic` is the function itself, `name` that of its twin."""

    generic: Callable[Arguments, Result]
    name: str

    def __call__(self, *arguments: Arguments.args, **options: Arguments.kwargs) -> Result:
        """Call whichever fits the arguments."""


_CHECKED = {"cuda": "rfrope._accel.cuda.door", "cpu": "rfrope._accel.cpu"}  # what says why leaves cannot work
DECLARED: dict[str, Leaves] = {}  # by the module of the function and the name of the twin: "rfrope._core.sums.mean_cos"
_FOUND: dict[tuple[str, str], Callable[..., Any] | None] = {}
CHOOSING: dict[str, Callable[..., Any]] = {}  # the declared functions, by the same names


def twinned(
    *, cpu: str | None = None, cuda: str | None = None, torch: str | None = None
) -> Callable[[Callable[Arguments, Result]], Twinned[Arguments, Result]]:
    """Declare the leaves that hold the twin of a function.

    The arrays among the arguments decide which version runs. The function itself stays at hand as
    ``function.generic``.
    """

    def declare(generic: Callable[Arguments, Result]) -> Twinned[Arguments, Result]:
        bare = generic.__name__.lstrip("_")
        name, leaves = f"{generic.__module__}.{bare}", Leaves(cpu, cuda, torch)
        for other, taken in DECLARED.items():
            both = [place for place in Leaves._fields if None is not getattr(leaves, place) == getattr(taken, place)]
            if other != name and both and other.rpartition(".")[2] == bare:
                raise ValueError(f"{name} has the twin of {other} in {both[0]}; expected another leaf, or another name")
        DECLARED[name] = leaves

        @wraps(generic)
        def chosen(*arguments: Any, **options: Any) -> Any:
            place = memory.place((*arguments, *options.values()))
            twin = twin_of(name, place) if place else None
            return (generic if twin is None else twin)(*arguments, **options)

        chosen.generic, chosen.name = generic, name  # type: ignore[attr-defined]
        CHOOSING[name] = chosen
        return cast(Twinned[Arguments, Result], chosen)

    return declare


def where(name: str, *arguments: Any) -> str:
    """Where a function would run for some arrays: the place of its twin, or "" by the function itself."""
    place = memory.place(arguments)
    return place if place and twin_of(name, place) is not None else ""


def twin_of(name: str, place: str) -> Callable[..., Any] | None:
    """Return the twin declared as `name` for arrays at a place (a field of `Leaves`); None where there is none here."""
    _look_up(name, place)
    return _FOUND[name, place]


def _look_up(name: str, place: str) -> None:
    if (name, place) in _FOUND:
        return
    leaf = getattr(DECLARED[name], place)
    try:
        twin = None if leaf is None else getattr(load(place, leaf), name.rpartition(".")[2])
    except ImportError:
        twin = None  # `rfrope doctor` says why
    _FOUND[name, place] = twin


# what torch.compiler.assume_constant_result sets: the compiler runs this where it cannot trace, as it cannot an import
_look_up._dynamo_marked_constant = True  # type: ignore[attr-defined]


def load(place: str, leaf: str) -> Any:
    """Import a leaf.

    Raises
    ------
    ImportError
        If it cannot work on this machine.
    ValueError
        If a variable of the environment keeps it from working.
    """
    if place in _CHECKED:
        importlib.import_module(_CHECKED[place]).check()
    return importlib.import_module(f"rfrope._accel.{place}.{leaf}")
