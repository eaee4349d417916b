"""Results as one line of text, for ``print``."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np

from rfrope._core import array

__all__ = ["short"]

_FEW = 4  # numbers that are shown one by one


def short(result: Any) -> str:
    """Return one line on a result that is a dataclass: its fields, and of long arrays the shape and the range.

    Nothing lazy or traced is computed for it.
    """
    held = (f"{field.name} {_value(getattr(result, field.name))}" for field in fields(result))
    return f"{type(result).__name__}: {', '.join(held)}"


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if not (hasattr(value, "shape") and hasattr(value, "dtype")):
        return str(value)
    shape = tuple(value.shape)
    if array.is_lazy(value) or array.is_traced(value):
        return f"of shape {shape}"
    held = array.to_host(value)
    if held.size <= _FEW:
        numbers = [f"{one:.6g}" if isinstance(one, float) else str(one) for one in held.reshape(-1).tolist()]
        return numbers[0] if not shape else f"[{', '.join(numbers)}]"
    if held.dtype.kind == "b":
        return f"of shape {shape}, {int(np.sum(held))} of {held.size} true"
    if held.dtype.kind == "c":
        return f"of shape {shape}"
    known = held[~np.isnan(held)] if held.dtype.kind == "f" else held
    return f"of shape {shape}" + (f" from {known.min():.4g} to {known.max():.4g}" if known.size else "")
