"""Plugin of pytest: ``pytest --rfrope-target=module:function`` runs the conformance vectors against an engine."""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

_ANSWERS = ("cos", "sin", "rotated", "relocated", "x", "positions", "new_positions")
_FOLLOWS = ("part", "seq_len", "layers", "pairing", "head_dim", "rotary_dim", "turns", "attention_factor", "sections")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("rfrope", "rotary position embeddings")
    group.addoption(
        "--rfrope-target",
        metavar="MODULE[:NAME]",
        help="run only rfrope's conformance vectors, against rotated(case, positions, x) and "
        "relocated(case, positions, new_positions, k) of a module or object, or one function in place of rotated",
    )
    group.addoption(
        "--rfrope-largest", metavar="N", type=int, default=131071, help="largest position (default: 131071)"
    )
    group.addoption("--rfrope-tolerance", metavar="T", type=float, default=1e-3, help="largest error (default: 0.001)")


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> bool | None:
    """Collect a test for each vector, if there is a target."""
    name = session.config.getoption("rfrope_target")
    if name is None:
        return None
    from rfrope.models import conformance  # only now, since every run of pytest loads this module

    session.items = [
        Vector.from_parent(session, name=f"{what}[{case['name']}]", case=case, function=function)
        for what, function in _load(name).items()
        for case in conformance()
    ]
    session.config.hook.pytest_collection_modifyitems(session=session, config=session.config, items=session.items)
    session.config.hook.pytest_collection_finish(session=session)
    session.testscollected = len(session.items)
    return True


def _load(name: str) -> dict[str, Callable[..., Any]]:
    """Return the functions of a target, by what they are."""
    module, _, inner = name.partition(":")
    sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module)
        for part in inner.split(".") if inner else ():
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise pytest.UsageError(f"--rfrope-target {name}: {error}") from None
    finally:
        sys.path.remove(os.getcwd())
    functions = {what: getattr(found, what) for what in ("rotated", "relocated") if hasattr(found, what)}
    if not functions and callable(found):
        return {"rotated": found}
    if not functions:
        raise pytest.UsageError(f"--rfrope-target {name}: it has neither rotated nor relocated; expected a function")
    return functions


class Vector(pytest.Item):
    """One config, with its rotated features, or its moved cached keys."""

    def __init__(self, *, case: dict[str, Any], function: Callable[..., Any], **options: Any) -> None:
        super().__init__(**options)
        self.case, self.function = case, function

    def runtest(self) -> None:
        """Call the function, and compare; one that returns None or raises NotImplementedError is not for the config."""
        case, moves = self.case, self.name.startswith("relocated")
        given = {name: value for name, value in case.items() if name not in _ANSWERS}
        at, to = case["positions"], case["new_positions"]
        farthest = np.max(np.maximum(at, to if moves else at).reshape(len(at), -1), axis=1)
        rows = farthest <= self.config.getoption("rfrope_largest")
        arguments = (at[rows], to[rows], case["rotated"][rows]) if moves else (at[rows], case["x"][rows])
        try:
            found = self.function(given, *arguments)
        except NotImplementedError as error:
            pytest.skip(str(error) or "not for this config")
        if found is None:
            pytest.skip("not for this config")
        found, wanted = np.asarray(found, dtype=np.float64), case["relocated" if moves else "rotated"][rows]
        if found.shape != wanted.shape:
            self._fail(f"the shape is {found.shape}; expected {wanted.shape}, that of x")
        apart = np.max(np.abs(found - wanted), axis=1)
        wrong = ~(apart <= self.config.getoption("rfrope_tolerance"))
        if np.any(wrong):
            self._fail(f"wrong from position {np.min(farthest[rows][wrong])} on, by up to {np.max(apart):.3g}")

    def _fail(self, what: str) -> None:
        """Say what is wrong, with the config and what follows from it."""
        case = self.case
        follows = ", ".join(f"{name} {case[name]}" for name in _FOLLOWS if case[name] not in (None, ""))
        config = json.dumps(case["config"])
        pytest.fail(f"{what}: {case['about']}\nconfig: {config}\nfrom it follow: {follows}", pytrace=False)

    def reportinfo(self) -> tuple[str, int, str]:
        """Return where the test is, and its name."""
        return "rfrope", 0, self.name
