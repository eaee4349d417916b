"""Designs: ways to make frequencies from a kernel."""

from rfrope.designs.optimising import optimise
from rfrope.designs.sampling import Design, design, names, points, records, sample

__all__ = ["Design", "design", "names", "optimise", "points", "records", "sample"]
