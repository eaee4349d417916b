"""Reports on given frequencies: nothing here draws or assumes a law."""

from rfrope.analysis.bases import BaseForContext, base_for_context
from rfrope.analysis.content import (
    DensityOfStates,
    Departure,
    Similarity,
    density_of_states,
    departure,
    similarity,
    sine_share,
    turns,
    wavelengths,
)
from rfrope.analysis.curves import aliasing_distance, dirichlet, first_negative_lag, log_uniform_kernel, mean_kernel
from rfrope.analysis.fits import KernelFit, ScalingEffect, fit_kernel, scaling_effect
from rfrope.analysis.planning import Method, Plan, plan
from rfrope.analysis.summary import AxisSummary, Summary, summarise

__all__ = [
    "AxisSummary", "BaseForContext", "DensityOfStates", "Departure", "KernelFit", "Method", "Plan", "ScalingEffect",
    "Similarity", "Summary", "aliasing_distance", "base_for_context", "density_of_states", "departure", "dirichlet",
    "first_negative_lag", "fit_kernel", "log_uniform_kernel", "mean_kernel", "plan", "scaling_effect", "similarity",
    "sine_share", "summarise", "turns", "wavelengths",
]  # fmt: skip
