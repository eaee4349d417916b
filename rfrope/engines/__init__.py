"""The engines that run models: how each reads configs, and the form in which it takes a Rope.

`records` collects every `Engine` in the modules here, and what was observed or read of others, so a new record, or a
file in `observed`, is a new engine: nothing else names it, and `rfrope.models.compare`, the exports, the command line
and the documentation follow. `export` returns a Rope as plain
data for an engine, `write` writes its file, `rounding` returns the error.
"""

from __future__ import annotations

import pkgutil
from dataclasses import replace
from functools import cache
from importlib import import_module
from typing import Any

import lazy_loader  # type: ignore[import-untyped]

from rfrope._core.arguments import named
from rfrope.engines import observed
from rfrope.engines.overrides import override
from rfrope.engines.record import Arithmetic, ConfigRope, Engine, EngineRope, ExportRequest, Format, Reading

__all__ = ["Arithmetic", "ConfigRope", "Engine", "EngineRope", "ExportRequest", "Format", "Reading"]
__all__ += ["Rounding", "export", "names", "override", "records", "rounding", "write"]
# loaded when first used, since they read configs by rfrope.models, which reads the records here
__getattr__, _, _ = lazy_loader.attach(
    __name__, submod_attrs={"writing.exporting": ["Rounding", "export", "rounding", "write"]}
)

REFERENCE = "transformers"  # what the others are held against, and the first of every list


def names() -> list[str]:
    """Return the names of all engines.

    Returns
    -------
    list of str

    See Also
    --------
    engines.records

    Examples
    --------
    >>> names()[:3]
    ['transformers', 'exllamav3', 'flash-attn']
    """
    return [engine.name for engine in records()]


@cache
def records() -> tuple[Engine, ...]:
    """Return the records of all engines.

    Returns
    -------
    tuple of Engine
        transformers first, the others by name.

    See Also
    --------
    engines.Engine, models.compare, engines.export

    Examples
    --------
    >>> [engine.name for engine in records() if engine.reading][:5]
    ['transformers', 'exllamav3', 'llama.cpp', 'Megatron-Bridge', 'MLX-LM']
    """
    files = [module.name for module in pkgutil.iter_modules(__path__) if not module.ispkg]
    found = [value for file in files for value in vars(import_module(f"{__name__}.{file}")).values()]
    engines = {value.name: value for value in found if isinstance(value, Engine)}
    for name, held in observed.find_files().items():
        if "families" in held and (one := engines.get(name, Engine(name))).reading is None:
            engines[name] = replace(one, reading=observed.reading(name))
    return tuple(sorted(engines.values(), key=lambda engine: (engine.name != REFERENCE, engine.name.lower())))


def find_engine(argument: str, value: Any, field: str) -> tuple[str, Any]:
    """Return the name of an engine, given in any spelling, and its `field`, "reading" or "format"."""
    found = {one.name: getattr(one, field) for one in records() if getattr(one, field) is not None}
    name = named(argument, value, tuple(found))
    return name, found[name]
