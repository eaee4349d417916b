"""Spectral kernels: Phi, the law of its frequencies, and the algebra that combines them."""

from rfrope.kernels import families, spectra  # noqa: F401 - they enter their families into the registry
from rfrope.kernels.algebra import axes, mixture
from rfrope.kernels.base import Kernel
from rfrope.kernels.registry import Record, kernel, names, parse, records, register

__all__ = [
    "Kernel", "Record", "axes", "kernel", "mixture", "names", "parse", "records", "register",
]  # fmt: skip
