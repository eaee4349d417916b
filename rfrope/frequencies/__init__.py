"""Deterministic frequency sets: ladders on one axis, sets for several axes, and generators of rotations."""

from rfrope.frequencies.axes import axial, golden_gate, isotropic, mixed, mrope
from rfrope.frequencies.generators import from_generators
from rfrope.frequencies.ladders import arithmetic, from_wavelengths, geometric, pixel, xpos_scales

__all__ = [
    "arithmetic", "axial", "from_generators", "from_wavelengths", "geometric", "golden_gate", "isotropic",
    "mixed", "mrope", "pixel", "xpos_scales",
]  # fmt: skip
