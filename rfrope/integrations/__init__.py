"""Frequencies of rfrope inside models: `rfrope.integrations.tuning` and `rfrope.integrations.transformers`, by name."""

__all__: list[str] = []
