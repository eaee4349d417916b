"""What every public function that takes arrays does on every library: found by calling it, for docs/support.inc."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import inspect
import itertools
import warnings
from collections.abc import Iterable
from typing import Any

import numpy as np
import test_device
from conftest import library

HEADS = ("Function", "PyTorch", "JAX", "jax.jit", "Dask", "MLX", "On a device")
CALLS = test_device.TO_HOST | test_device.FROM_HOST | test_device.CALLS
NONE = {name for name, f in test_device.public_functions().items() if not test_device.takes_arrays(name, f)}
READING = {f"integrations.transformers.{name}" for name in ("atlas", "read_heads")}
MODELS = {f"integrations.transformers.{name}" for name in ("register", "replace_rotary", "tune", "use_polar")} | READING
MODELS |= {"layers.torch.RotaryEmbedding", "layers.tuning.tune_modules"}
MOST = 12  # results of a call that are looked at
STAYS, DRAWN, HOST = "stays there", "numbers come from the host", "uses the host"
BOTH = f"{STAYS}; {HOST} by some options"


class Computed(Exception):
    """Somebody asked Dask for values."""


def refuses(*_: Any, **__: Any) -> None:
    raise Computed


def placed(name: str) -> Any:
    lib = library(name)

    def place(values: Any, dtype: str | None = None) -> Any:
        return lib(np.array(values, dtype=dtype))

    return place


def results(name: str, place: Any) -> list[Any]:
    """All results of a call, up to one that wants to write to an array of a library that has no such arrays."""
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            made = CALLS[name](place)
            made = vars(made).values() if dataclasses.is_dataclass(made) else made
            several = isinstance(made, Iterable) and not hasattr(made, "shape")
            found.extend(itertools.islice(made, MOST) if several else [made])
        except TypeError as error:
            if "cannot be written to" not in str(error):
                raise
            found.append(place(0.0))
    return found


def eagerly(name: str, of: str) -> str:
    """Whether all results that are arrays are of the library that was given."""
    lib = library(of)
    found = [one for one in results(name, placed(of)) if hasattr(one, "shape")]
    if not found:
        return "yes; plain numbers"
    return "yes" if all(lib.owns(one) for one in found) else "yes; NumPy's arrays"


def traced(name: str) -> str:
    import jax

    kept: list[Any] = []

    def keeping(values: Any, dtype: str | None = None) -> Any:
        kept.append(np.array(values, dtype=dtype))
        return jax.numpy.asarray(kept[-1])

    results(name, keeping)

    def function(*arrays: Any) -> Any:
        rest = iter(arrays)

        def next_of(values: Any, dtype: str | None = None) -> Any:
            return next(rest, jax.numpy.zeros(()))

        return [one for one in results(name, next_of) if hasattr(one, "shape")]

    try:
        jax.make_jaxpr(function)(*kept)
    except (TypeError, jax.errors.JAXTypeError):
        return "needs values"
    return "yes"


def lazily(name: str) -> str:
    lib, place = library("dask"), placed("dask")  # each sets the scheduler
    import dask

    with dask.config.set(scheduler=refuses), contextlib.suppress(Computed):
        found = [one for one in results(name, place) if hasattr(one, "shape")]
        return "lazy" if found and all(lib.owns(one) for one in found) else "computes"
    return "computes"


def on_mlx(name: str) -> str | None:
    """What MLX's arrays give, of which some functions ask more than they have; None where MLX is not installed."""
    if importlib.util.find_spec("mlx") is None:
        return None
    try:
        return making(name, "mlx") if name in NONE else eagerly(name, "mlx")
    except (TypeError, AttributeError, ValueError):
        return "no"


def row(name: str) -> tuple[str | None, ...]:
    """A function's row."""
    if name in MODELS:
        last = "takes no arrays" if "register" in name else HOST if name in READING else STAYS
        return (f"``{name}``", "of its models", "no", "no", "no", "no", last)
    if name in NONE:
        made = (making(name, of) for of in ("torch", "jax"))
        return (f"``{name}``", *made, "takes no arrays", last_of_none(name)[0], on_mlx(name), last_of_none(name)[1])
    stays = BOTH if name in test_device.TO_HOST else STAYS
    device = DRAWN if name in test_device.FROM_HOST else stays if name in test_device.CALLS else HOST
    return (
        f"``{name}``",
        eagerly(name, "torch"),
        eagerly(name, "jax"),
        traced(name),
        lazily(name),
        on_mlx(name),
        device,
    )


def making(name: str, of: str) -> str:
    """Whether a function that takes no arrays makes some of the library that ``xp=`` names."""
    call = test_device.MADE_ON_HOST.get(name)
    if call is None:
        parameters = inspect.signature(test_device.public_functions()[name]).parameters
        assert name in test_device.ASKING or "xp" not in parameters
        return "takes no arrays"
    lib = library(of)
    assert lib.owns(call(lib.module, None))
    return "makes them (``xp=``)"


def last_of_none(name: str) -> tuple[str, str]:
    makes = name in test_device.MADE_ON_HOST
    return "makes them (``xp=``)" if makes else "takes no arrays", "made on the host" if makes else "takes no arrays"


def names() -> list[str]:
    """All functions of the table."""
    return sorted(CALLS.keys() | NONE | MODELS)


def table() -> list[tuple[str | None, ...]]:
    """Rows of all functions, by name."""
    return [row(name) for name in names()]
