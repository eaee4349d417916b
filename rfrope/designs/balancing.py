"""The design "balanced": of many points of the law, disjoint sets that err as little as they can over a range of lags.

Every block keeps the kernel's law: each of the points of "shifted" has it, belongs to one set, and a block gets any of
them with equal probability, whatever the others are. The sets' errors sum to that of all points together, which is
small, so that what is left to choose is how they differ: a descent exchanges points between two sets as long as that
lowers the squared errors of both, summed over all whole lags of the range in closed form.
"""

from __future__ import annotations

import itertools

import numpy as np

from rfrope._core import random
from rfrope.designs import sets
from rfrope.designs.lags import inner
from rfrope.kernels import Kernel

_SETS = 8  # from which one is drawn
_MOST_POINTS = 2**10  # in all sets together, if one holds no more
_ROUNDS = 3  # over all pairs of sets; what more of them gain is less than 1 %
_NO_GAIN = 1e-9  # part of a point's own square


def balanced(
    kernel: Kernel, key: random.Key, n: int, reach: tuple[int, ...], stream: int = 0, streams: int = 1
) -> np.ndarray:
    """Frequencies of some streams: ``(streams, n, k)``; of more than 512 blocks those of "shifted"."""
    each = max(1, min(_SETS, _MOST_POINTS // max(n, 1)))
    found = np.empty((streams, n, kernel.ndim))
    for head in range(streams):
        points = sets.shifted(kernel, key, n * each, stream + head, 1)
        u = sets.uniforms(key, 0, max(n, 1), kernel.n_columns + 5, stream + head, 1)[
            0
        ]  # the last two are not `shifted`'s
        omega = sets.through(kernel, points)[0]
        members = _partition(omega, each, reach)[int(each * u[0, -1])]
        found[head] = omega[members[np.argsort(u[:n, -2])]]
    return found


def _partition(omega: np.ndarray, each: int, reach: tuple[int, ...]) -> np.ndarray:
    """Indices ``(each, n)`` of sets that together hold every one of the frequencies ``(each n, k)`` once."""
    by_size = np.argsort(np.abs(omega[:, 0]), kind="stable")
    found = by_size.reshape(-1, each).T.copy()
    if each == 1 or not len(omega):
        return found
    products = inner(reach, omega[:, None], omega)
    sums = np.stack([np.sum(products[members], axis=0) for members in found])  # one for each set, with every frequency
    for _ in range(_ROUNDS):
        if not sum(_exchanged(found, sums, products, a, b) for a, b in itertools.combinations(range(each), 2)):
            break
    return found


def _exchanged(found: np.ndarray, sums: np.ndarray, products: np.ndarray, a: int, b: int) -> int:
    """Exchange points between two sets, the pair that gains most first, and return how many pairs."""
    own = np.diagonal(products)
    for count in range(found.shape[1]):
        p, q, apart = found[a], found[b], sums[a] - sums[b]
        grown = (own[p] - apart[p])[:, None] + (own[q] + apart[q]) - 2.0 * products[p[:, None], q]
        i, j = divmod(int(np.argmin(grown)), q.size)
        if grown[i, j] > -_NO_GAIN * own[p[i]]:
            return count
        change = products[q[j]] - products[p[i]]
        sums[a] += change
        sums[b] -= change
        found[a, i], found[b, j] = q[j], p[i]
    return found.shape[1]
