"""Angles in the form that the gate gives them, of any numbers: also of those that it refuses."""

from types import ModuleType
from typing import Any

import numpy as np

from rfrope._core.angles import Angles


def angles_of(positions: Any, frequencies: Any, shift: Any = None, xp: ModuleType = np) -> Angles:
    """Take positions ``P`` and frequencies ``(D,)``, or positions ``(*P, k)`` and frequencies ``(*H, D, k)``."""
    return Angles(*vectors(positions, frequencies), shift, xp)


def vectors(positions: Any, frequencies: Any) -> tuple[Any, Any]:
    """Return positions ``(*P, k)`` and frequencies ``(*H, D, k)``."""
    return (positions[..., None], frequencies[..., None]) if frequencies.ndim == 1 else (positions, frequencies)
