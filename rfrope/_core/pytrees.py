"""Records of ours as pytrees of JAX, which is not imported for that."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, is_dataclass
from typing import Any

import numpy as np

from rfrope._core import array, tensors
from rfrope._core.angles import PrecisionWarning

_KNOWN: set[type] = set()


@dataclass(frozen=True, eq=False)
class _Others:
    """All fields but the leaf: JAX compares them to find what it has compiled."""

    fields: dict[str, Any]
    dtype: str  # as the leaf has it; optimizers mix widths, so it is not compared

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Others) and _are_same(self.fields, other.fields)

    def __hash__(self) -> int:
        return hash(tuple(self.fields))  # fields may hold lists and dicts


def _are_same(one: Any, other: Any) -> bool:
    """Return whether two values of a field are the same to the last part; NaN is, and arrays are by their bytes."""
    if one is other or type(one) is not type(other):
        return one is other
    if is_dataclass(one):
        return _are_same(vars(one), vars(other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_are_same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_are_same, one, other))
    if isinstance(one, np.ndarray | np.generic):
        return (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())
    if hasattr(one, "shape"):  # an array of another library: it may be traced
        return False
    return bool(one == other or (one != one and other != other))


def register(kind: type, fields: Callable[[Any], dict[str, Any]], leaf: str) -> None:
    """Make a record a pytree with one leaf, if JAX has been imported and does not know it yet.

    Parameters
    ----------
    kind : type
        Whose instances hold their fields in ``__dict__``.
    fields : callable
        Returns the fields of one, in order.
    leaf : str
        The field that is a leaf. All others are the same wherever JAX takes the record.
    """
    jax = None if kind in _KNOWN else tensors.imported("jax.tree_util")
    if jax is None:
        return
    _KNOWN.add(kind)

    def flatten(one: Any) -> tuple[tuple[Any], _Others]:
        others = fields(one)
        value = others.pop(leaf)
        return (value,), _Others(others, array.dtype_name(value) if hasattr(value, "dtype") else "")

    def flatten_with_keys(one: Any) -> tuple[tuple[Any], _Others]:
        (value,), others = flatten(one)
        return ((jax.GetAttrKey(leaf), value),), others

    def unflatten(others: _Others, leaves: tuple[Any]) -> Any:
        (value,) = leaves
        if others.dtype == "float64" and array.is_traced(value) and array.dtype_name(value) == "float32":
            warnings.warn(
                f"JAX traces the {leaf} of a {kind.__name__} in float32, and they had 64 bits: far phases are off; "
                f"expected a {kind.__name__} that is not an argument, as in jax.jit(rope.rotate), or jax_enable_x64",
                PrecisionWarning,
                stacklevel=2,
            )
        value = value.copy() if isinstance(value, np.ndarray) else value  # it is closed for writing
        made: Any = object.__new__(kind)
        made.__setstate__({**others.fields, leaf: value})  # unchecked: JAX puts other things than arrays there, too
        return made

    jax.register_pytree_with_keys(kind, flatten_with_keys, unflatten, flatten)
