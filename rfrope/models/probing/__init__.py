"""Audit of a rotation as a black box: measured with unit vectors and compared with known mistakes."""

from rfrope.models.probing.probes import Probe, Rotation, probe

__all__ = ["Probe", "Rotation", "probe"]
