"""What a query sees: the keys that a mask leaves, and the scale of attention."""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

import numpy as np

from rfrope._core import array, capacity, elementwise
from rfrope._core.arguments import flag, show, whole
from rfrope._core.array import Array


def ranges_of_lags(context: Any, axes: int, causal: Any, window: Any, query_position: Any) -> list[tuple[int, int]]:
    """First lag that the query sees and the one after the last, for each axis."""
    if (causal := flag("causal", causal)) and axes > 1:
        raise ValueError(
            f"causal is True, but frequencies have k = {axes} axes, which have no order; expected causal=False"
        )
    lengths = whole_numbers("context", context, axes, least=1)
    query = [n - 1 for n in lengths]
    if query_position is not None:
        query = whole_numbers("query_position", query_position, axes, least=0)
    if any(at >= n for at, n in zip(query, lengths, strict=True)):
        raise ValueError(f"query_position is {show(query_position)}; expected one in the context of {show(context)}")
    reach = max(lengths) if window is None else whole("window", window, 1)
    return [(max(-at, 1 - reach), min(1 if causal else n - at, reach)) for at, n in zip(query, lengths, strict=True)]


def lags_of_keys(ranges: list[tuple[int, int]], like: Array, xp: ModuleType) -> Array:
    """All lags in the ranges, the last axis running fastest, as ``(n, k)`` integers beside an array."""
    dtype = xp.int64 if array.has_float64(xp, array.device(like)) else xp.int32
    total = math.prod(stop - start for start, stop in ranges)
    if total >= 2**31:
        raise ValueError(f"the query sees {total} keys; expected fewer than 2**31: a shorter context or window")
    capacity.check(32.0 * (2 + len(ranges)) * total, f"a query that sees {total} keys", "context or window")

    def rows(span: slice) -> Array:
        index = xp.arange(span.start, span.stop, dtype=dtype, device=array.device(like))
        columns, fold = [], total
        for start, stop in ranges:
            above, fold = fold, fold // (stop - start)
            columns.append(index % above // fold + start)
        return xp.stack(columns, axis=-1)

    return elementwise.map_spans(rows, total, like, xp, each=2 * len(ranges), axis=0)


def head_width(head_dim: Any, blocks: int, frequencies: Any) -> int:
    """Width of a head: the given one, if it has room for the blocks; else that of the Rope, or 2D."""
    head_dim = getattr(frequencies, "head_dim", 2 * blocks) if head_dim is None else head_dim
    width = whole("head_dim", head_dim)
    if width % 2 or width < 2 * blocks:
        raise ValueError(f"head_dim is {width}; expected an even number of at least 2D = {2 * blocks}")
    return width


def softmax_scale(scaled: Any, head_dim: Any, blocks: int, frequencies: Any) -> float:
    """Factor of the scores before softmax, which compares more features than a Rope's where attention is latent."""
    if head_dim is None and hasattr(frequencies, "source"):  # a Rope
        head_dim = frequencies.source.model.qk_head_dim
    width = head_width(head_dim, blocks, frequencies)
    return 1.0 / math.sqrt(width) if flag("scaled", scaled) else 1.0


def whole_numbers(name: str, value: Any, axes: int, *, least: int = -(2**32) + 1, kinds: str = "iu") -> list[int]:
    """Return one whole number for each axis, or say what came instead; kinds "iuf" takes floats that are whole."""
    listed = isinstance(value, list | tuple | int | float | np.ndarray | np.integer)
    host = array.host_numbers(value, name) if listed else None
    if host is None or host.dtype.kind not in kinds:
        raise _unexpected(TypeError, name, value, axes, least)
    one_each = host.shape in ((axes,), ()) and host.size == axes
    if not (one_each and np.all((host == np.floor(host)) & (host >= least) & (host < 2.0**32))):
        raise _unexpected(ValueError, name, value, axes, least)
    return [int(number) for number in host.reshape(-1)]


def _unexpected(kind: type[Exception], name: str, value: Any, axes: int, least: int) -> Exception:
    each = "" if axes == 1 else f" for each of {axes} axes"
    return kind(f"{name} is {show(value)}; expected a whole number{each} from {least} to 2**32 - 1")
