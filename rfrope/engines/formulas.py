"""Formulas shared by several engines: YaRN, longrope, Llama 3 and NTK, each with its own keys."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from rfrope._core.arguments import show
from rfrope.engines.record import ConfigRope, EngineRope
from rfrope.scaling import schemes

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


def require_float(factor: Any) -> float:
    """Return a factor; refuse 4 instead of 4.0, as engines do that accept only floats."""
    if not isinstance(factor, float):
        raise RefusedError(f"stops with an error: factor is {show(factor)}, and it wants a float, {float(factor)!r}")
    return factor


def find_ignored(values: Mapping[str, Any], usual: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the keys whose values differ from those used without them."""
    return tuple(name for name, value in usual.items() if values.get(name) not in (None, value))


def divide_ladder(base: np.ndarray, factors: Any) -> np.ndarray:
    """Return a ladder with each frequency divided by its own factor."""
    divisors = np.asarray(factors, dtype=np.float64)
    if divisors.shape != base.shape:
        raise RefusedError(f"stops with an error: {divisors.size} factors for {base.size} frequencies")
    return np.asarray(base / divisors)


def yarn(
    base: np.ndarray,
    values: Mapping[str, Any],
    factor: float,
    original: int,
    attention: float,
    reads: tuple[str, ...] = tuple(RAMP),
    theta: float | None = None,
) -> EngineRope:
    """Return YaRN's RoPE with the keys of its ramp that an engine reads, and the engine's attention factor."""
    ramp = {key: values[key] for key in reads if values.get(key) is not None}
    theta = values["rope_theta"] if theta is None else theta
    made = schemes.yarn(base, factor, original_max_position_embeddings=original, base=theta, **ramp)
    unread = {key: usual for key, usual in RAMP.items() if key not in reads}
    ignored = find_ignored(values, unread | {"attention_factor": attention})
    return EngineRope(np.asarray(made.frequencies), attention, ignored_keys=ignored)


def split_attention(factor: float, attention: float) -> dict[str, float]:
    """Return the scales of YaRN whose ratio is an attention factor; empty if there are none."""
    growth = 0.1 * math.log(max(factor, 1.0))  # (0.1 m ln s + 1) / (0.1 ln s + 1) is the attention factor
    mscale = float(f"{(attention * (growth + 1.0) - 1.0) / growth:.14g}") if growth else 0.0
    return {"mscale": mscale, "mscale_all_dim": 1.0} if mscale > 0.0 else {}


def proportional(config: ConfigRope, part: float, theta: float | None = None) -> np.ndarray:
    """Return the ladder of a whole head with only the first part rotated, as in Gemma 4."""
    made = schemes.proportional(config.ladder(base=theta), partial_rotary_factor=part)
    return np.asarray(made.frequencies)


def llama3(base: np.ndarray, values: Mapping[str, Any]) -> np.ndarray:
    """Return Llama 3.1's frequencies."""
    names = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
    return np.asarray(schemes.llama3(base, **{name: values[name] for name in names}).frequencies)


def longrope(config: ConfigRope, base: np.ndarray, original: int, length: str) -> EngineRope:
    """Return the frequencies of one of the two lists."""
    kind = "long" if config.seq_len > original else "short"
    return EngineRope(
        divide_ladder(base, config.values[f"{kind}_factor"]),
        schemes.sharpen_longrope(config.context / original, original),
        length,
        ignored_keys=find_ignored(config.values, {"factor": config.context / original, "attention_factor": None}),
    )
