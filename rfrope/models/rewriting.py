"""Equivalent configs, for engines that read a config differently; how much a difference of frequencies counts."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from rfrope import engines as registry
from rfrope._core import angles, sums
from rfrope._core.arguments import show
from rfrope.engines.formats import RAMP, split_attention
from rfrope.engines.record import ConfigRope
from rfrope.models.rope_parameters import DICTS, from_rope_parameters
from rfrope.rotation.rope import Rope
from rfrope.scaling.registry import names

SHARE = 0.01  # fraction of the score at lag 0
_LAGS = 2**12  # per chunk
_ATTENTION = ("attention_factor", "mscale", "mscale_all_dim")
SAME = 1e-12  # relative; rules are evaluated in float64
_ROUNDED = 2.0**-23  # frequencies may have been rounded to float32
_BESIDE = ("rope_theta", "partial_rotary_factor")  # of the dict
_OTHERWISE = ("alpha", "mrope_section")  # HunYuan's own class, and axes that the Rope has no more


def choose_lengths(rope: Rope) -> tuple[int, ...]:
    """Return text lengths to examine: the context, both sides of a change of the scheme; none without a context."""
    held, context = rope.source.rope_parameters, rope.context
    if not isinstance(context, int):
        return ()  # vision axes, or frequencies alone
    if held.get("rope_type") == "dynamic" and "alpha" not in held:
        return tuple(sorted({context, math.ceil(context * held["factor"])}))
    if held.get("rope_type") == "longrope":
        return tuple(sorted({held.get("original_max_position_embeddings", context), context}))
    return (context,)


def relative_error(found: np.ndarray, expected: np.ndarray) -> float:
    """Return the largest relative difference of frequencies; infinity if their numbers differ."""
    found, expected = np.asarray(found), np.asarray(expected)
    if found.shape != expected.shape:
        return math.inf
    return float(np.max(np.abs(found - expected) / np.where(expected == 0.0, 1.0, np.abs(expected)), initial=0.0))


def score(rope: Any, n_pairs: float, cos: Any = 1.0) -> Any:
    """Return scores of equal content, summed over all pairs of a head; `cos` is the mean cosine of rotated pairs."""
    turning = rope.frequencies.size
    return rope.attention_factor**2 * turning * cos + n_pairs - turning


def first_difference(
    one: Any, other: Any, n_pairs: tuple[float, float], end: int, scales: tuple[float, float] = (1.0, 1.0)
) -> int | None:
    """Return the first distance below `end` at which scores differ by 1 % of the other's at distance 0, or None.

    `one` and `other` have ``frequencies`` (D,), radians per position, and ``attention_factor``. Scores are per pair of
    features of the head, times the factor of the softmax scale.
    """

    def scores(rope: Any, pairs: float, scale: float) -> np.ndarray:
        if start == 0:  # where most differences are; no compiled loops are loaded for it
            cos = np.cos(np.multiply.outer(lags, np.asarray(rope.frequencies, dtype=np.float64))).mean(axis=-1)
        else:
            cos = np.asarray(sums.mean_cos(angles.read(lags, rope.frequencies, name="lags", minimum=1)))
        return scale * np.asarray(score(rope, pairs, cos)) / pairs

    least = SHARE * abs(scales[1] * score(other, n_pairs[1])) / n_pairs[1]
    for start in range(0, end, _LAGS):
        lags = np.arange(start, min(start + _LAGS, end))
        far = np.abs(scores(one, n_pairs[0], scales[0]) - scores(other, n_pairs[1], scales[1])) >= least
        if np.any(far):
            return start + int(np.argmax(far))
    return None


def rewrites(config: ConfigRope) -> Iterator[dict[str, Any]]:
    """Yield configs that transformers reads as the same RoPE, the smallest change first.

    All engines read ``rope_theta`` beside ``rope_scaling``; some do not read ``rope_parameters``. An attention factor
    of YaRN goes into ``mscale`` and ``mscale_all_dim``, which more engines read. Anything else goes into longrope's
    lists of factors with equal contexts, so that no length switches between them.
    """
    if (scheme := config.scheme) == "default":
        yield _write(config, None)
        return
    scaling = {key: value for key, value in config.values.items() if key not in _BESIDE}
    if scaling.get("factor") is not None:
        scaling["factor"] = float(scaling["factor"])
    yield _write(config, scaling)
    if scheme == "yarn":
        # without default values, then with the attention factor as a ratio of two scales
        kept = {key: value for key, value in scaling.items() if key not in _ATTENTION and RAMP.get(key) != value}
        kept["factor"] = float(kept.get("factor") or config.context / kept["original_max_position_embeddings"])
        yield _write(config, kept)
        if scales := split_attention(kept["factor"], config.rope.attention_factor):
            yield _write(config, kept | scales)
    if scheme in ("linear", "yarn", "llama3", "dynamic"):
        # longrope's lists that give these frequencies at every length
        frequencies, attention = np.asarray(config.rope.frequencies), config.rope.attention_factor
        factors = (config.ladder(2 * frequencies.size / (config.rope.head_dim or 1)) / frequencies).tolist()
        made = {"rope_type": "longrope", "short_factor": factors, "long_factor": factors, "factor": 1.0}
        made |= {"original_max_position_embeddings": config.context}
        yield _write(config, made if attention == 1.0 else made | {"attention_factor": attention})


def keep_scheme(rope: Rope, context: int | None, engine: str) -> dict[str, Any] | None:
    """Return ``rope_parameters`` of the config that a Rope (D,) still follows, if an engine reads them as the Rope.

    None if the frequencies were changed since, or were read for a long text, or the engine's rule gives others at some
    length.
    """
    values, key = dict(rope.source.rope_parameters), "original_max_position_embeddings"
    name = values.get("rope_type")
    if name not in names() or context is None or not {*_OTHERWISE}.isdisjoint(values):
        return None
    rule = registry.find_engine("engine", engine, "reading")[1].rule
    sizes: dict[str, Any] = {"head_dim": rope.head_dim, "max_position_embeddings": context}
    source = replace(rope.source, model=replace(rope.source.model, pairing_from="given"))
    one = replace(rope, context=context, source=source)
    try:
        if name in ("yarn", "longrope", "llama3"):
            values.setdefault(key, rope.context)  # transformers' own default
        if name == "yarn":
            values.setdefault("factor", rope.context / values[key])
        raw = {name: values[name] for name in _BESIDE}
        raw |= {"max_position_embeddings": context, "rope_scaling": None if name == "default" else values}
        made = from_rope_parameters(values, **sizes)
        if not is_same(made, rope, _ROUNDED) or (name == "dynamic" and context != rope.context):
            return None
        for length in choose_lengths(one):
            made = from_rope_parameters(values, **sizes, seq_len=length)
            one = replace(one, frequencies=made.frequencies, attention_factor=made.attention_factor)
            found = rule(ConfigRope(one, values, values, raw, length))
            if found.pairing != rope.pairing or not is_same(found, made):
                return None
    except (ValueError, TypeError, KeyError):  # it is refused or unknown, or the source says what no config does
        return None
    return values


def is_same(one: Any, other: Any, error: float = SAME) -> bool:
    """Return whether frequencies and attention factors are the same up to a relative error."""
    apart = abs(one.attention_factor - other.attention_factor)
    return apart <= error and relative_error(one.frequencies, other.frequencies) <= error


def shorten(value: Any) -> str:
    """Return a value as JSON, with long lists shortened."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(str(key))}: {shorten(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list | tuple) and len(value) > 4:
        few = [float(f"{one:.6g}") if isinstance(one, float) else one for one in (*value[:2], value[-1])]
        first, second, last = (json.dumps(one, default=show) for one in few)
        return f"[{first}, {second}, ... {last}]"
    return json.dumps(value, default=show)


def _write(config: ConfigRope, scaling: dict[str, Any] | None) -> dict[str, Any]:
    """Return the config with its RoPE in the format of transformers 4."""
    changed = {key: value for key, value in config.raw.items() if key not in DICTS}
    changed |= {key: config.values[key] for key in _BESIDE if key in config.values}
    if scaling is not None:
        changed["rope_scaling"] = {"type": scaling["rope_type"], **scaling}
    return changed
