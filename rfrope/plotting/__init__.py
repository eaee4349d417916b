"""Figures of kernels, frequencies and results. matplotlib is imported when a figure is drawn."""

from rfrope.plotting.figures import kernel, mean_kernels, wavelengths

__all__ = ["kernel", "mean_kernels", "wavelengths"]
