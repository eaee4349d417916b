"""Attention of a transformers model: the rotated queries and keys it receives, and its softmax scale."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rfrope._core import array
from rfrope.models.probing.measurements import noise_of
from rfrope.rotation.rope import Rope

_NEAR = 1e-3  # relative tolerance of a softmax scale
_OFF = 0.02  # fraction of the largest value; half precision differs by less
_SIDES = ("queries", "keys")
_ELSEWHERE = ("gemma3n", "gemma4", "t5gemma")  # the scale is in norms of queries and keys, or in weights


@dataclass
class Reached:
    """Queries and keys that attention of one layer received."""

    factors: dict[str, float]  # by side, the factor applied to the result of the rotation
    faults: list[str]  # other changes to it
    scaling: float  # factor of scores before softmax
    width: int  # features per head of the queries
    config: Any  # config of the module
    dtype: str


@dataclass
class Trace:
    """Random numbers planted as results of rotations, and how they reach attention."""

    # by layer, for each result: its side, "" if rotated alone; its values (B, H, T, d); and what norms made of it
    planted: dict[str, list[tuple[str, list[np.ndarray]]]] = field(default_factory=dict)
    reached: dict[str, Reached] = field(default_factory=dict)
    twice: set[str] = field(default_factory=set)  # layers that rotate a result again

    def plant(self, layer: str, given: list[Any], turned: tuple[Any, ...], axes: list[int]) -> tuple[Any, ...]:
        """Return random numbers in place of the results of a rotation."""
        results = self.planted.setdefault(layer, [])
        before = [to_heads(one, axis) for one, axis in zip(given, axes, strict=True)]
        if any(_is_same(one, made) for one in before for _, made in results):
            self.twice.add(layer)
        planted = []
        for one, axis, name in zip(turned, axes, _SIDES if len(turned) > 1 else ("",), strict=True):
            values = np.random.default_rng(len(results) + 29).standard_normal(tuple(one.shape))
            planted.append(one.new_tensor(values))
            results.append((name, [to_heads(planted[-1], axis)]))
        return tuple(planted)

    def follow_norm(self, layer: str, given: Any, made: Any, axis: int) -> None:
        """Record the output of a norm as another form of the planted result."""
        for _, result in self.planted.get(layer, []):
            if _is_same(to_heads(given, axis), result):
                result.append(to_heads(made, axis))

    def attend(self, layer: str, module: Any, query: Any, key: Any, scaling: float | None) -> None:
        """Compare the inputs of attention with what was planted."""
        results, faults, factors = self.planted.get(layer, []), [], {}
        if len(results) < 2:
            return
        for name, one in zip(_SIDES, (query, key), strict=True):
            x = to_heads(one, 2)
            candidates = [made for side, result in results if side in (name, "") for made in result]
            found = [factor for made in candidates if (factor := _read_factor(x, made)) is not None]
            if found:
                factors[name] = found[-1]
                continue
            values = np.sort(x.ravel())
            sizes = (np.sort(made.ravel()) for made in candidates if made.size == x.size)
            is_order = any(np.array_equal(made, values) for made in sizes)
            what = "they are reordered" if is_order else "the result of the rotation is dropped, or changed"
            faults.append(f"{name} that attention is given are not those that were turned: {what}")
        width = int(query.shape[-1])
        scale = width**-0.5 if scaling is None else float(scaling)
        dtype, config = array.dtype_name(query), getattr(module, "config", None)
        self.reached[layer] = Reached(factors, faults, scale, width, config, dtype)

    def find(self, layer: str, ropes: tuple[Rope, ...]) -> Iterator[tuple[str, str]]:
        """Yield kinds and texts of the faults of a layer that should use one of several Ropes."""
        if layer in self.twice:
            yield "attention", "the result of the rotation is turned a second time"
            return
        one = self.reached.get(layer)
        if one is None:
            return
        yield from (("attention", text) for text in one.faults)
        room, total = 8.0 * noise_of(one.dtype), one.scaling * math.prod(one.factors.values())
        wanted = _choose_scale(one, ropes)
        if one.faults or (wanted is not None and abs(total / wanted - 1.0) <= max(_NEAR, room)):
            return
        off = {name: factor for name, factor in one.factors.items() if abs(factor - 1.0) > room}
        for name, factor in off.items():
            yield "attention", f"{name} are multiplied by {factor:.6g} between the rotation and attention"
        if wanted is not None and not off:
            mscale = _read_mscale(ropes)
            text = f"scores are multiplied by {total:.6g} before softmax, expected {wanted:.6g}"
            for name, ratio in (("left out", mscale**-2), ("taken once", 1.0 / mscale), ("squared twice", mscale**2)):
                if mscale > 1.0 and abs(total / wanted / ratio - 1.0) < _NEAR:
                    text += f": the factor of mscale_all_dim, {mscale:.6g}, was {name}"
            yield "softmax scale", text


def to_heads(x: Any, axis: int) -> np.ndarray:
    """Return features as (B, H, T, d), from a tensor with tokens on the given axis."""
    host = array.to_host(x.detach().float()).astype(np.float64)
    if host.ndim == 3:  # one head without its own axis
        return host[:, None]
    return host if axis == 2 else np.moveaxis(host, axis, 2)


def _is_same(x: np.ndarray, made: list[np.ndarray]) -> bool:
    return any(x.shape == one.shape and np.array_equal(x, one) for one in made)


def _read_factor(x: np.ndarray, made: np.ndarray) -> float | None:
    """Return c if the first or last features of x (B, H, T, d) are c times made (B, h, T, w), otherwise None."""
    heads, width = made.shape[1], made.shape[-1]
    if x.ndim != 4 or x.shape[1] % heads or x.shape[2] != made.shape[2] or x.shape[-1] < width:
        return None
    times = x.shape[1] // heads
    repeated = (np.repeat(made, times, axis=1), np.tile(made, (1, times, 1, 1)))
    for part, wanted in itertools.product((x[..., :width], x[..., x.shape[-1] - width :]), repeated):
        factor = float(np.sum(part * wanted) / np.sum(wanted * wanted))
        if factor and np.max(np.abs(part / factor - wanted)) <= _OFF * np.max(np.abs(wanted)):
            return factor
    return None


# -- softmax scale -------------------------------------------------------------------------------------------------


def _choose_scale(one: Reached, ropes: tuple[Rope, ...]) -> float | None:
    """Return the expected factor of scores, if the config determines it."""
    kind = str(getattr(one.config, "model_type", ""))
    if not any(rope.source.rope_parameters for rope in ropes) or one.config is None or kind.startswith(_ELSEWHERE):
        return None
    if (multiplier := getattr(one.config, "attention_multiplier", None)) is not None:
        return float(multiplier)
    scalar = getattr(one.config, "query_pre_attn_scalar", None)
    return float(one.width if scalar is None else scalar) ** -0.5 * _read_mscale(ropes) ** 2


def _read_mscale(ropes: tuple[Rope, ...]) -> float:
    """Return the factor whose square multi-head latent attention includes in its softmax scale."""
    return math.sqrt(next((known for rope in ropes if (known := rope.source.model.softmax_factor)), 1.0))
