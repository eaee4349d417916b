"""Packages of other projects that tests run, where they are installed."""

from __future__ import annotations

import importlib
import importlib.util
import warnings
from typing import Any

import pytest


def installed(name: str) -> Any:
    """Return a module, or skip where its package is not installed or does not load, with the reason."""
    top = name.partition(".")[0]
    if importlib.util.find_spec(top) is None:
        pytest.skip(f"{top} is not installed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return importlib.import_module(name)
        except Exception as error:
            pytest.skip(f"{name} does not load: {type(error).__name__}: {error}".partition("\n")[0])
