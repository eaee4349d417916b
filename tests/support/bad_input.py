"""Values that are wrong in arguments of the calls that `calls.py` has, one at a time.

`wrong` holds values that some argument somewhere should not have. Whether one is wrong for an argument is not said: a
call may refuse it, with an error that names this argument, or take it, and then gives what it gives for the same
number, text or NumPy array in its plain form, without NaN (`judged`).
"""

import dataclasses
import functools
import importlib.util
import math
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
from calls import called, plain_parameters

from rfrope._core.arguments import show

LARGE = 2**32 - 1  # calls that are right with it may take long: see LONG
GIANT = 2**30  # bytes that a call may ask for at most
LONGEST = 3000  # characters of an error, which may show several values and list what was expected
DOCUMENTED = (TypeError, ValueError, OSError, ModuleNotFoundError)
FOREIGN = ("/numpy/", "/scipy/", "/numba/", "/torch/", "/matplotlib/", "/tqdm/", "/safetensors/", "importlib")


class HungError(BaseException):
    """A call that did not come back."""


class Shown:
    """An object that is nothing that a function could want, with any `repr`."""

    def __init__(self, text: Any) -> None:
        self.text = text

    def __repr__(self) -> str:
        if isinstance(self.text, Exception):
            raise self.text
        return self.text


MUTE = Shown(RuntimeError("not today"))
ALONE = [  # taken or refused, these have no simpler form
    *(None, True, 0, -1, LARGE, 10**400, 10**5000, 0.5, math.nan, math.inf, 1e308, 5e-324, 1j),
    *("", "x", "a" * 10_000, "a\0b", b"3", [], [[1.0], [1.0, 2.0]], ["a", "b"], {"a": 1}, {1, 2}),
    *(np.array([1.0, 2.0]), np.zeros((0, 4)), np.ones((5, 4, 1)), np.full(2, np.nan)),
    np.array([MUTE, None], dtype=object),
    np.array(["2020-01-01"], dtype="datetime64[D]"),
    np.ma.masked_array([1.0, 2.0], mask=[True, False]),
    *(int, lambda *arguments, **options: None, pathlib.Path("/nowhere/at/all"), MUTE, [MUTE]),
    Shown("long " * 2**18),
    Shown("\x1b[31mred\u202e\n"),  # which would hide what follows
]
SIMPLER = [  # and these have
    *((np.True_, True), (np.float32(0.5), 0.5), (np.int64(3), 3), (np.array(3.0), 3.0)),
    *(([1.0, 2.0], np.array([1.0, 2.0])), ((1, 2), [1, 2]), (range(3), [0, 1, 2])),
]


def wrong(good: Any) -> Iterator[tuple[Any, Any]]:
    """Yield values and what they are in their plain form; `good` is the one that is right."""
    yield from zip(ALONE, ALONE, strict=True)
    yield from SIMPLER
    yield iter([1.0, 2.0]), [1.0, 2.0]
    arrays = [np.array([1.0, 2.0]), np.arange(3), np.zeros((0, 4)), *([np.asarray(good)] if is_numeric(good) else [])]
    for asarray in makers().values():
        yield from ((asarray(np.array(value)), value) for value in arrays)
    yield from ((value, value) for value in peculiar())


def is_numeric(good: Any) -> bool:
    """Return whether a value of an argument is a float, a list of floats, or an array of real numbers."""
    is_array = hasattr(good, "dtype") or isinstance(good, float) or (isinstance(good, list) and type(good[0]) is float)
    return is_array and np.asarray(good).dtype.kind in "iuf"


@functools.cache
def makers() -> dict[str, Callable[[np.ndarray], Any]]:
    """Return how each installed library makes an array of one of NumPy's."""
    found: dict[str, Any] = {}
    if importlib.util.find_spec("torch"):
        found["torch"] = importlib.import_module("torch").from_numpy
    if importlib.util.find_spec("jax"):
        importlib.import_module("jax").config.update("jax_enable_x64", True)
        found["jax"] = importlib.import_module("jax.numpy").asarray
    if importlib.util.find_spec("dask"):
        found["dask"] = importlib.import_module("dask.array").asarray
    return found


def peculiar() -> Iterator[Any]:
    """Yield arrays of other libraries that are not a rectangle of known numbers."""
    if "torch" in makers():
        import torch

        parts = [torch.ones(2, dtype=torch.float64), torch.ones(3, dtype=torch.float64)]
        yield from (torch.nested.nested_tensor(parts), torch.nested.nested_tensor(parts, layout=torch.jagged))
        yield from (torch.eye(8, dtype=torch.float64).to_sparse(), torch.full((4,), torch.nan))
        yield torch.ones(4, device="meta", dtype=torch.float64)
    if "dask" in makers():
        line = makers()["dask"](np.ones(8)).rechunk(4)
        yield line[line > 0.0]


# what a message may call an argument that holds one of several things
ALIASES = {
    "rope": ("Rope", "frequencies", "config"),
    "what": ("frequencies", "table"),
    "expected": ("Rope", "frequencies", "config", "rope"),
    "config": ("rope_parameters", "path"),
    **dict.fromkeys(("name", "text", "law", "names"), ("kernel",)),
    **dict.fromkeys(("first", "second"), ("sets", "kernels")),
}
PATHS = ("old", "new", "path", "config", "folder", "model", "checkpoint", "rope", "what", "expected")
# calls that are right with a large number, and take long: they show their progress
LONG = {
    *(("estimate_kernel", "n_samples"), ("estimate_scores", "n_trials"), ("validate", "n_samples")),
    *(("validate", "n_trials"), ("designs.optimise", "starts"), ("designs.optimise", "max_lag")),
    *(("analysis.summarise", "context"), ("analysis.plan", "context"), ("analysis.plan", "trained_context")),
}
# fields that are NaN where there is one peak alone, or one token; and what a Rope says of where it came from
LEFT_OUT = ("runner_up", "runner_up_value", "stderr", "source", "_trusted")


def pairs(name: str, function: Any, arguments: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Yield arguments of a call, and all that is to be put into them; calls that take long are left out."""
    for argument in arguments_of(function):
        for value, plain in wrong(arguments.get(argument)):
            if value is not LARGE or (name, argument) not in LONG:
                yield argument, value, plain


def arguments_of(function: Any) -> list[str]:
    """Return names of the arguments that can be wrong: all but those in any number."""
    return [one.name for one in plain_parameters(function)]


def judged(function: Any, arguments: dict[str, Any], name: str, value: Any, plain: Any = None) -> tuple[bool, str]:
    """Return whether a call refuses a value, and what is wrong with how it does, or with what it gives."""
    try:
        with watched():
            found = called(function, {**arguments, name: value})
    except HungError:
        return True, "it hangs"
    except BaseException as error:
        return True, _fault_of(error, name, value, arguments_of(function))
    if getattr(value, "is_meta", False):
        return False, ""  # a result without values
    if value is not plain:
        try:
            expected = called(function, {**arguments, name: plain})
        except DOCUMENTED as error:
            unseen = type(value).__module__.startswith(("jax", "dask"))  # nobody looks at their values
            return False, "" if unseen else f"it is taken, but in its plain form refused: {error!s:.200}"
        if not alike(numbers(found), numbers(expected)):
            return False, f"it is taken, and gives {found!r:.100}; its plain form gives {expected!r:.100}"
    if _finite(plain) and np.any(np.isnan(numbers(found))):
        return False, f"it is taken, and gives NaN: {found!r:.100}"
    return False, ""


def _fault_of(error: BaseException, name: str, value: Any, arguments: list[str]) -> str:
    """Return what is wrong with an error; nothing with NumPy's about memory, of a number that asks for too much."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    text = f"{type(error).__name__} ({last.filename.rpartition('/rfrope/')[2]}:{last.lineno}): {error!s:.200}"
    if isinstance(error, MemoryError) and value is LARGE:
        return ""
    if not isinstance(error, DOCUMENTED) or any(part in last.filename for part in FOREIGN):
        return text
    longest = LONGEST + len(value if isinstance(value, str) else "")
    if len(str(error)) > longest or not str(error).replace("\n", "").isprintable():
        return f"too long, or not printable: {text}"
    return "" if _names(name, value, arguments, error) else f"does not name it: {text}"


def alike(found: np.ndarray, expected: np.ndarray) -> bool:
    """Return whether two lines of numbers are the same to the rounding of float32."""
    return found.shape == expected.shape and np.allclose(found, expected, rtol=1e-6, atol=1e-6, equal_nan=True)


def _finite(value: Any) -> bool:
    """Return whether a value has no NaN or infinity, and is not so large that what is made of it has."""
    try:
        return bool(np.all(np.abs(np.asarray(value, dtype=np.float64)) < 1e300))
    except (TypeError, ValueError, OverflowError):
        return True


def numbers(value: Any) -> np.ndarray:
    """Return all numbers of a result, of arrays and records inside, in one line."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return np.concatenate([np.zeros(0), *map(numbers, value)])
    if dataclasses.is_dataclass(value):
        return numbers([getattr(value, one.name) for one in dataclasses.fields(value) if one.name not in LEFT_OUT])
    if hasattr(value, "detach"):
        value = value.detach().resolve_neg().numpy()
    if hasattr(value, "shape") or isinstance(value, int | float | complex):
        value = np.ravel(np.asarray(value))
        return np.concatenate([value.real, value.imag]) if value.dtype.kind == "c" else _floats(value)
    return np.zeros(0)


def _floats(value: np.ndarray) -> np.ndarray:
    return value.astype(np.float64) if value.dtype.kind in "biuf" else np.zeros(0)


def _names(name: str, value: Any, arguments: list[str], error: BaseException) -> bool:
    """Return whether a message names an argument, or another that it conflicts with, or shows a path."""
    message, names = str(error), (name, *ALIASES.get(name, ()))
    if name in PATHS and isinstance(value, str | os.PathLike) and str(value)[:60] in message:
        return True
    if any(re.match(rf"(unknown |cannot read |the )?{one}\b", message) for one in names):
        return True
    bare = message.replace(show(value), "")
    return any(re.search(rf"\b{one}\b", bare) for one in names)


@contextmanager
def watched(seconds: int = 120) -> Iterator[None]:
    """Raise `HungError` in what takes very long (a guard, not a measure), MemoryError in what asks for over 1 GiB."""

    def hung(*_: Any) -> None:
        raise HungError

    before = signal.signal(signal.SIGALRM, hung)
    limits = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm", encoding="ascii") as file:
        held = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (held + GIANT, limits[1]))
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        resource.setrlimit(resource.RLIMIT_AS, limits)
        signal.signal(signal.SIGALRM, before)
