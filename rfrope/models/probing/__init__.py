"""Audit of a rotation from outside: measured by unit vectors, read as a rotation, held against known mistakes."""

from rfrope.models.probing.probes import Probe, probe
from rfrope.models.probing.rotations import Rotation

__all__ = ["Probe", "Rotation", "probe"]
