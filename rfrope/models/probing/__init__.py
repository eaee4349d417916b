"""Audit of a rotation as a black box: measured with unit vectors and compared with known mistakes."""

from rfrope.models.probing.probes import Probe, probe
from rfrope.models.probing.rotations import Rotation

__all__ = ["Probe", "Rotation", "probe"]
