"""Designs: how a kernel becomes frequencies."""

from rfrope.designs.designing import design
from rfrope.designs.optimising import optimise
from rfrope.designs.sampling import DESIGNS, RANDOMISED, points, sample

__all__ = ["DESIGNS", "RANDOMISED", "design", "optimise", "points", "sample"]
