"""Figures of kernels, frequencies and results. matplotlib is imported when a figure is drawn."""

from rfrope.plotting.drawing import Bins as Bins
from rfrope.plotting.drawing import check_available as check_available
from rfrope.plotting.drawing import new_figure as new_figure
from rfrope.plotting.figures import attention, frequencies, kernel, mean_kernels, validation, wavelengths

__all__ = ["attention", "frequencies", "kernel", "mean_kernels", "validation", "wavelengths"]
