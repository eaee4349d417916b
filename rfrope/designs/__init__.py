"""Designs: methods that turn a kernel into frequencies."""

from rfrope.designs.learning import LearnedKernel, learned_kernel
from rfrope.designs.optimising import optimise
from rfrope.designs.sampling import Design, design, names, points, records, sample

__all__ = [
    "Design", "LearnedKernel", "design", "learned_kernel", "names", "optimise", "points", "records", "sample",
]  # fmt: skip
