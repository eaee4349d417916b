"""Rows (call, error, words) of tests/refusals, of each room of the package.

Those of ``room.py`` are Python. Those of ``room.json`` say what is wrong beside the arguments that `calls.py` has for a
public function; ``{"ones": shape}``, ``{"full": [shape, value]}``, ``{"array": values}`` and ``{"Rope": fields}`` are
arrays and Ropes.
"""

import builtins
import functools
import importlib.util
import json
import pathlib
from collections.abc import Iterator
from typing import Any

import calls
import numpy as np

import rfrope

FOLDER = pathlib.Path(__file__).parents[1] / "refusals"
MAKERS = {
    "ones": np.ones,
    "full": lambda one: np.full(*one),
    "array": np.asarray,
    "Rope": lambda fields: rfrope.Rope(**fields),
}


ROOMS = sorted({path.stem for path in FOLDER.iterdir() if path.is_file()})


def made(value: Any) -> Any:
    """Return an argument that JSON says, with arrays and Ropes."""
    if isinstance(value, list):
        return [*map(made, value)]
    if not isinstance(value, dict):
        return value
    found = {name: made(one) for name, one in value.items()}
    return MAKERS[next(iter(found))](*found.values()) if len(found) == 1 and MAKERS.keys() & found else found


def refused(name: str, wrong: dict[str, Any]) -> None:
    """Call a public function with some arguments in place of right ones."""
    function, arguments = calls.calls(calls.FOLDER)[name]
    calls.called(function, arguments | made(wrong))


def rows(room: str) -> Iterator[tuple[Any, type[Exception], Any]]:
    """Yield the rows of a room."""
    if (told := FOLDER / f"{room}.json").is_file():
        for name, wrong, error, words in json.loads(told.read_text("utf-8"))["rows"]:
            yield functools.partial(refused, name, wrong), getattr(builtins, error), words
    if not (FOLDER / f"{room}.py").is_file():
        return
    spec = importlib.util.spec_from_file_location(f"refusals_{room}", FOLDER / f"{room}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield from module.ROWS
