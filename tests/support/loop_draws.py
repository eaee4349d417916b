"""Frequencies of stated laws by the compiled loops, which are called by other loops only."""

from typing import Any

import numpy as np
from numba import njit

from rfrope._backends.cpu import estimator_loops as loops
from rfrope._core import quantiles, random


@njit
def components(law, parameter, factor, table, u, out):
    loops._component(law, parameter, factor, table, u, np.empty(u.size, np.uint64), np.empty(u.size), out, u.size)


@njit
def radii(table, u, out):
    loops._radius(table, u, np.empty(u.size, np.uint64), np.empty(u.size), out, u.size)


def drawn(kernel: Any, key: tuple[int, int], start: int, length: int) -> np.ndarray:
    """Draw frequencies (length, axes) of a kernel that states its law."""
    law = quantiles.tabulate_law(kernel)
    u = random.uniforms.generic(key, start, length, kernel.n_columns)[0]
    omega = np.empty((kernel.ndim, length))
    for axis, (out, column) in enumerate(zip(omega, u.T[-kernel.ndim :], strict=True)):
        components(law.code, law.parameter, law.factors[axis], law.table, np.ascontiguousarray(column), out)
    if law.radius.size:
        shared = np.empty(length)
        radii(law.radius, np.ascontiguousarray(u[:, 0]), shared)
        omega *= shared
    return omega.T
