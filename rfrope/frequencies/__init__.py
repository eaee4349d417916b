"""Deterministic frequency sets: ladders on one axis, and sets for several axes."""

from rfrope.frequencies.axes import axial, golden_gate, isotropic, mixed, mrope
from rfrope.frequencies.ladders import arithmetic, from_wavelengths, geometric, pixel, xpos_scales

__all__ = [
    "arithmetic",
    "axial",
    "from_wavelengths",
    "geometric",
    "golden_gate",
    "isotropic",
    "mixed",
    "mrope",
    "pixel",
    "xpos_scales",
]
