"""Inverse design: kernels from a function Phi, a table of autocorrelations, data, or a density.

Bochner's theorem: Phi is positive definite exactly if it is the mean cosine of a law of frequencies. The law is found
by quadrature, stored as a table (Legendre series on panels), and compared: every kernel made here has a `Certificate`.
Its Phi is the cosine transform of the table; draws come from the inverse distribution function.
"""

from rfrope.bochner.data import from_autocorrelation, from_series
from rfrope.bochner.densities import from_density
from rfrope.bochner.functions import from_function, nearest
from rfrope.bochner.refusals import NotPositiveDefiniteError, UndecidedError
from rfrope.bochner.tabulated import Certificate
from rfrope.bochner.witnesses import Witness

__all__ = [
    "Certificate", "NotPositiveDefiniteError", "UndecidedError", "Witness", "from_autocorrelation", "from_density",
    "from_function", "from_series", "nearest",
]  # fmt: skip
