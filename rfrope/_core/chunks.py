"""Public functions of features mapped over Dask's blocks."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np

from rfrope._core.angles import Angles, token_axes
from rfrope._core.array import Array, library
from rfrope._core.lazy import DASK, Constant


def comes_in_blocks(x: Array, xp: ModuleType) -> bool:
    """Return whether features are Dask's and all constants NumPy's (`array.space_of_constants`)."""
    return xp is np and library(x).is_lazy


def map_blocks(function: Any, x: Array, angles: Any, turn: Any, width: int | None = None, **options: Any) -> Array:
    """Map a public function of features and `Angles`, or phases, over Dask's blocks; a new width is given."""
    constants = {"phases": Constant(angles)}
    if isinstance(angles, Angles):
        constants = {"positions": Constant(angles.positions)}
        constants["frequencies"] = Constant(angles.frequencies, 2, 1 + token_axes(angles.positions))
        if angles.shift is not None:
            constants["shift"] = Constant(angles.shift)
    options |= {"pairing": turn.pairing, "inverse": turn.inverse}
    is_number = isinstance(turn.scale, float)
    (options if is_number else constants)["scale"] = turn.scale if is_number else Constant(turn.scale)
    return DASK.map_chunks(function, x, constants, options, width)
