"""Errors for configs that an engine refuses or that were not read, and the keys of YaRN."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

RAMP = {"beta_fast": 32, "beta_slow": 1, "truncate": True}  # of YaRN, with what counts without them


class RefusedError(ValueError):
    """The engine refuses this config."""


class UnknownError(ValueError):
    """The engine's source for this config was not read."""


def require_key(values: Mapping[str, Any], key: str) -> Any:
    """Return the value of a key; refuse a config without it, as the engine does."""
    if values.get(key) is None:
        raise RefusedError(f"stops with an error: {key} missing")
    return values[key]


def split_attention(factor: float, attention: float) -> dict[str, float]:
    """Return the scales of YaRN whose ratio is an attention factor; empty if there are none."""
    growth = 0.1 * math.log(max(factor, 1.0))  # (0.1 m ln s + 1) / (0.1 ln s + 1) is the attention factor
    mscale = float(f"{(attention * (growth + 1.0) - 1.0) / growth:.14g}") if growth else 0.0
    return {"mscale": mscale, "mscale_all_dim": 1.0} if mscale > 0.0 else {}
