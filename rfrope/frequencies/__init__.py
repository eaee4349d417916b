"""Frequency sets made without data or chance: ladders of one axis, sets of several axes, generators of rotations."""

from rfrope.frequencies.axes import axial, from_generators, golden_gate, mixed, mrope
from rfrope.frequencies.directions import isotropic
from rfrope.frequencies.ladders import arithmetic, from_wavelengths, geometric, pixel, xpos_scales

__all__ = [
    "arithmetic",
    "axial",
    "from_generators",
    "from_wavelengths",
    "geometric",
    "golden_gate",
    "isotropic",
    "mixed",
    "mrope",
    "pixel",
    "xpos_scales",
]
