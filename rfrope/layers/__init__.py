"""Layers for training frameworks: `rfrope.layers.torch`, imported by name."""

import lazy_loader  # type: ignore[import-untyped]

__getattr__, __dir__, _ = lazy_loader.attach(__name__, submodules=["torch"])
__all__: list[str] = []
