"""Layers for training frameworks: `rfrope.layers.torch`. Each module needs its framework, and is imported by name."""

import importlib
from typing import Any

__all__: list[str] = []
_MODULES = ("torch",)


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*_MODULES]
