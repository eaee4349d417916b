"""Inverse design: a kernel from a function Phi, from a table of autocorrelations, from data, or from a density.

Bochner's theorem: Phi is positive definite exactly when it is the mean cosine of a law of frequencies. The law is found
by quadrature, kept as a table (Legendre series on panels), and judged: every kernel made here carries a `Certificate`.
Phi of such a kernel is the cosine transform of the table, its draws come from the inverse distribution function.
"""

from rfrope.bochner.data import from_autocorrelation, from_series
from rfrope.bochner.densities import from_density
from rfrope.bochner.functions import from_function, nearest
from rfrope.bochner.tabulated import Certificate
from rfrope.bochner.witnesses import NotPositiveDefiniteError, UndecidedError, Witness

__all__ = [
    "Certificate",
    "NotPositiveDefiniteError",
    "UndecidedError",
    "Witness",
    "from_autocorrelation",
    "from_density",
    "from_function",
    "from_series",
    "nearest",
]
