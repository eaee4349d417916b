"""Spectral kernels: Phi, the law of its frequencies, and the algebra that combines them."""

from rfrope.kernels import families, spectra  # noqa: F401 - they enter their families into the registry
from rfrope.kernels.algebra import axes, mixture
from rfrope.kernels.base import Kernel
from rfrope.kernels.gradients import evaluate_phi, transport_points
from rfrope.kernels.registry import Record, kernel, names, parse, records, register

__all__ = [
    "Kernel", "Record", "axes", "evaluate_phi", "kernel", "mixture", "names", "parse", "records", "register",
    "transport_points",
]  # fmt: skip
