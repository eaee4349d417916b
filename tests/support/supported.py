"""What every public function that takes arrays does on every library: found by calling it, for support.inc."""

import contextlib
import dataclasses
import importlib.util
import inspect
import itertools
import pathlib
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import calls
import numpy as np
from conftest import library
from emulator import COMPILER
from stand_in import Device, Stream, standing_in
from stand_in import on_device as stand_in

TABLE = pathlib.Path(__file__).parents[2] / "docs" / "_data" / "support.inc"
HEADS = ("Function", "PyTorch", "JAX", "jax.jit", "Dask", "MLX", "On a device")
CALLS = calls.TO_HOST | calls.FROM_HOST | calls.CALLS
NONE = calls.SHORT.keys() - calls.TAKING | {"data.smollm2_heads", "validation.example_pairs"}
READING = {f"integrations.transformers.{name}" for name in ("atlas", "read_heads")}
MODELS = {f"integrations.transformers.{name}" for name in ("register", "replace_rotary", "tune")} | READING
MODELS |= {"layers.torch.RotaryEmbedding", "layers.torch.parameter_groups", "integrations.tuning.tune_modules"}
MOST = 12  # results of a call that are looked at
NOTHING, MAKES = "takes no arrays", "makes them (``xp=``)"
STAYS, DRAWN, BACK, HOST = "stays there", "numbers come from the host", "by the host and back", "on the host"


class Computed(Exception):
    """Somebody asked Dask for values."""


def refuses(*_: Any, **__: Any) -> None:
    """Compute nothing."""
    raise Computed


def results(name: str, place: Any, table: dict[str, Any] = CALLS) -> list[Any]:
    """All results of a call, up to one that wants to write to an array of a library that has no such arrays."""
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            made = table[name](place)
            made = vars(made).values() if dataclasses.is_dataclass(made) else made
            several = isinstance(made, Iterable) and not hasattr(made, "shape")
            found.extend(itertools.islice(made, MOST) if several else [made])
        except TypeError as error:
            if "cannot be written to" not in str(error):
                raise
            found.append(place(0.0))
    return [one for one in found if hasattr(one, "shape")]


def eagerly(name: str, of: str) -> str:
    """Whether all results that are arrays are of the library that was given; MLX lacks what some functions ask for."""
    lib = library(of)
    try:
        found = results(name, lib)
    except (TypeError, AttributeError, ValueError):
        if of != "mlx":
            raise
        return "no"
    if not found:
        return "yes; plain numbers"
    return "yes" if all(lib.owns(one) for one in found) else "yes; NumPy's arrays"


def traced(name: str, of: str) -> str:
    """Whether JAX makes a graph of a call, without values."""
    lib, kept = library(of), []
    import jax

    def keeping(values: Any, dtype: str | None = None) -> Any:
        kept.append(np.array(values, dtype=dtype))
        return lib(kept[-1])

    def function(*arrays: Any) -> Any:
        rest = iter(arrays)
        return results(name, lambda values, dtype=None: next(rest, jax.numpy.zeros(())))

    results(name, keeping)
    try:
        jax.make_jaxpr(function)(*kept)
    except (TypeError, jax.errors.JAXTypeError):
        return "needs values"
    return "yes"


def lazily(name: str, of: str) -> str:
    """Whether Dask computes nothing while the graph is built."""
    lib = library(of)  # it sets the scheduler
    import dask

    with dask.config.set(scheduler=refuses), contextlib.suppress(Computed):
        found = results(name, lib)
        return "lazy" if found and all(lib.owns(one) for one in found) else "computes"
    return "computes"


def making(name: str, of: str) -> str:
    """Whether a function that takes no arrays makes some of the library that ``xp=`` names."""
    if name not in calls.MADE_ON_HOST:
        function = calls.SHORT.get(name)
        assert name in calls.ASKING or function is None or "xp" not in inspect.signature(function).parameters
        return NOTHING
    lib = library(of)
    assert lib.owns(calls.MADE_ON_HOST[name](lib.module, None))
    return MAKES


def on_device(name: str) -> tuple[str | None, list[Any], set[str]]:
    """Where the stand-in for CuPy sees the work of a call's repetition, on a device that is not the current one.

    Results and kernels come along; None where there is no compiler for the kernels.
    """
    if COMPILER is None:
        return None, [], set()
    told, found, ran = [], [], set()
    with standing_in() as machine, Device(1), Stream() as stream:

        def place(values: Any, dtype: Any = None) -> Any:
            with Device(1):
                return stand_in(np.array(values, dtype=dtype))

        for table in (calls.CALLS, calls.FROM_HOST, calls.TO_HOST):
            if name in table:
                with Device(0), Stream():
                    results(name, place, table)
                    machine.work.clear()
                    found += (made := results(name, place, table))
                assert machine.where() <= {(1, stream.ptr)}, name
                ran |= {one.partition("<")[0] for one in machine.of("launch")}
                there = any(hasattr(one, "get") for one in made)
                copied = DRAWN if machine.of("upload") else STAYS
                told.append((BACK if there else HOST) if machine.of("read") else copied)
    return told[0] if len({*told}) == 1 else f"{STAYS}; {BACK} by some options", found, ran


def row(name: str) -> tuple[str, ...]:
    """A function's row; where a library is not installed, what the table says of it."""

    def found(of: str, find: Callable[[str, str], str]) -> str | None:
        return None if importlib.util.find_spec(of) is None else find(name, of)

    if name in MODELS:
        last = NOTHING if "register" in name else HOST if name in READING else STAYS
        cells = ["of its models", "no", "no", "no", "no", last]
    elif name in NONE:
        makes = name in calls.MADE_ON_HOST
        dask, last = (MAKES, "made on the host") if makes else (NOTHING, NOTHING)
        cells = [found("torch", making), found("jax", making), NOTHING, dask, found("mlx", making), last]
    else:
        cells = [found("torch", eagerly), found("jax", eagerly), found("jax", traced), found("dask", lazily)]
        cells += [found("mlx", eagerly), on_device(name)[0]]
    told = kept()[name]
    return tuple(old if one is None else one for one, old in zip((f"``{name}``", *cells), told, strict=True))


def names() -> list[str]:
    """All functions of the table."""
    return sorted(CALLS.keys() | NONE | MODELS)


def kept() -> dict[str, tuple[str, ...]]:
    """Rows of docs/_data/support.inc, by their first cell."""
    rows = (part.strip().split("\n     - ") for part in TABLE.read_text("utf-8").split("   * - ")[1:])
    return {one[0].strip("`"): tuple(one) for one in rows}
