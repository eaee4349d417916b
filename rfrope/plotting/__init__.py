"""Figures of kernels, frequencies and results. matplotlib is imported when a figure is drawn."""

from rfrope.plotting.figures import attention, kernel, mean_kernels, wavelengths

__all__ = ["attention", "kernel", "mean_kernels", "wavelengths"]
