"""Time of inverse design: a kernel from a function Phi, certificate included."""

import numpy as np

import rfrope
from rfrope import bochner

FUNCTIONS = {
    "matern(nu=0.8, scale=37)": lambda r: rfrope.kernels.parse("matern(nu=0.8, scale=37)").phi(r),
    "triangle": lambda r: np.maximum(1.0 - np.abs(r) / 3.7, 0.0),
    "damped cosine": lambda r: np.exp(-np.abs(r) / 37.0) * np.cos(r),
    "spherical": lambda r: np.where(np.abs(r) < 3.0, 1.0 - 0.5 * np.abs(r) + (np.abs(r) / 3.0) ** 3 / 2.0, 0.0),
}
ON_A_LINE = ("triangle", "damped cosine")  # positive definite in one axis alone


class FromFunction:
    """Compute the law of a kernel that is given by its function of the lag's length."""

    params = (tuple(FUNCTIONS), (1, 2, 3))
    param_names = ("function", "axes")

    def setup(self, function, axes):
        if axes > 1 and function in ON_A_LINE:
            raise NotImplementedError("positive definite in one axis alone")
        bochner.from_function(lambda r: np.exp(-r * r))  # SciPy is imported at the first call

    def time_from_function(self, function, axes):
        bochner.from_function(FUNCTIONS[function], ndim=axes)
