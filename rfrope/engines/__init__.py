"""The engines that run models: one file for each, with what they read and what they are given.

`records` looks through the modules of this package for every `Engine`. So a new file is a new engine: nothing else
names it, and `rfrope.models.compare`, `rfrope.exports`, the command line and the documentation follow.
"""

from __future__ import annotations

import pkgutil
from functools import cache
from importlib import import_module
from typing import Any

from rfrope._core.arguments import named
from rfrope.engines.record import Arithmetic, ConfigRope, Engine, EngineRope, ExportRequest, Format, Reading

__all__ = ["Arithmetic", "ConfigRope", "Engine", "EngineRope", "ExportRequest", "Format", "Reading", "names", "records"]

REFERENCE = "transformers"  # what the others are held against, and the first of every list


def names() -> list[str]:
    """Names of all engines.

    Returns
    -------
    list of str

    See Also
    --------
    engines.records, exports.names

    Examples
    --------
    >>> names()[:3]
    ['transformers', 'DeepSpeed', 'diffusers']
    """
    return [engine.name for engine in records()]


@cache
def records() -> tuple[Engine, ...]:
    """Everything that is known of each engine.

    Returns
    -------
    tuple of Engine
        transformers first, the others by name.

    See Also
    --------
    engines.Engine, models.compare

    Examples
    --------
    >>> [engine.name for engine in records() if engine.reading][:5]
    ['transformers', 'DeepSpeed', 'exllamav3', 'llama.cpp', 'Megatron-Bridge']
    """
    modules = [import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)]
    found = [value for module in modules for value in vars(module).values() if isinstance(value, Engine)]
    return tuple(sorted(found, key=lambda engine: (engine.name != REFERENCE, engine.name.lower())))


def find_engine(argument: str, value: Any, field: str) -> tuple[str, Any]:
    """Return the name of the engine that a text means in any spelling, and its `field`, "reading" or "format"."""
    found = {one.name: getattr(one, field) for one in records() if getattr(one, field) is not None}
    name = named(argument, value, tuple(found))
    return name, found[name]
