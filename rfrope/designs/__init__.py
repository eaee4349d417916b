"""Designs: methods that turn a kernel into frequencies."""

from rfrope.designs.learning import LearnedKernel, learned_kernel
from rfrope.designs.optimising import optimise
from rfrope.designs.sampling import design, names, points, sample

__all__ = [
    "LearnedKernel", "design", "learned_kernel", "names", "optimise", "points", "sample",
]  # fmt: skip
