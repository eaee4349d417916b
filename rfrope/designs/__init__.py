"""Designs: ways to make frequencies from a kernel."""

from rfrope.designs.directions import DirectionalBound, Directions, directional_bound, directional_error
from rfrope.designs.lattices import dual_lattice
from rfrope.designs.optimising import optimise
from rfrope.designs.sampling import Design, design, names, points, records, sample
from rfrope.designs.weighted import Quadrature, quadrature

__all__ = [
    "Design",
    "DirectionalBound",
    "Directions",
    "Quadrature",
    "design",
    "directional_bound",
    "directional_error",
    "dual_lattice",
    "names",
    "optimise",
    "points",
    "quadrature",
    "records",
    "sample",
]
