"""Spectral kernels: Phi, the law of its frequencies, and the algebra that combines them."""

from rfrope.kernels.base import Kernel, axes, mixture
from rfrope.kernels.registry import Record, kernel, names, parse, records, register

__all__ = ["Kernel", "Record", "axes", "kernel", "mixture", "names", "parse", "records", "register"]
