"""Frequencies of rfrope inside other libraries: `rfrope.integrations.transformers`. Each module needs its library."""

__all__: list[str] = []
