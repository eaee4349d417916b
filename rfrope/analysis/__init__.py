"""Reads given frequencies and reports: nothing here draws or assumes a law."""

from rfrope.analysis.curves import mean_kernel

__all__ = ["mean_kernel"]
