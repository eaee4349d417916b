"""Reports on given frequencies: nothing here draws or assumes a law."""

from rfrope.analysis.bases import BaseForContext, base_for_context
from rfrope.analysis.content import Departure, Similarity, departure, similarity, sine_share, turns, wavelengths
from rfrope.analysis.curves import aliasing_distance, first_negative_lag, log_uniform_kernel, mean_kernel
from rfrope.analysis.fits import KernelFit, fit_kernel
from rfrope.analysis.planning import Method, Plan, plan
from rfrope.analysis.summary import AxisSummary, Summary, summarise

__all__ = [
    "AxisSummary", "BaseForContext", "Departure", "KernelFit", "Method", "Plan", "Similarity", "Summary",
    "aliasing_distance", "base_for_context", "departure", "first_negative_lag", "fit_kernel", "log_uniform_kernel",
    "mean_kernel", "plan", "similarity", "sine_share", "summarise", "turns", "wavelengths",
]  # fmt: skip
