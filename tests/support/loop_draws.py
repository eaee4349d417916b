"""Components and radii of stated laws by the compiled loops, which are called by other loops only."""

import numpy as np
from numba import njit

from rfrope._backends.cpu import estimator_loops as loops


@njit
def components(law, parameter, factor, table, u, out):
    loops._component(law, parameter, factor, table, u, np.empty(u.size, np.uint64), np.empty(u.size), out, u.size)


@njit
def radii(table, u, out):
    loops._radius(table, u, np.empty(u.size, np.uint64), np.empty(u.size), out, u.size)
