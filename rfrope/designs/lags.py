"""The whole lags that a fit sees, and sums over them in the time of small matrix products.

A lag is ``left_p + right_q``: in one axis the start of a run of lags and a place in it, in more axes the other axes and
the last one. So ``exp(i lag . omega)`` is a product of few waves, and a sum over all lags is a product of matrices.
"""

from __future__ import annotations

import math

import numpy as np

from rfrope._core import sums
from rfrope.kernels import Kernel

_MOST = 2**14  # lags that a fit sees, unless there are fewer
_SERIES = 1e-2  # phase at the longest lag below which Dirichlet's kernel is its series

Waves = tuple[np.ndarray, np.ndarray]  # exp(i left . omega), exp(i right . omega)


class Lags:
    """Whole lags up to some size on every axis, one of each pair +-lag, and Phi there.

    Attributes
    ----------
    reach : tuple of int
        Largest lag on each axis.
    vectors : ndarray, (P, Q, k)
    weights, target : ndarray, (P, Q)
        How much a lag counts, with sum 1, and Phi.
    """

    def __init__(self, kernel: Kernel, reach: tuple[int, ...]) -> None:
        self.reach = reach
        self._left, self._right, weights = _run_of_lags(reach[0]) if len(reach) == 1 else _box_of_lags(reach)
        self.vectors = self._left[:, None] + self._right
        self.weights = weights / np.sum(weights)
        self.target = np.asarray(kernel.phi(kernel.restore_shape(self.vectors)))

    def waves(self, omega: np.ndarray) -> Waves:
        """Waves of frequencies ``(n, k)``."""
        return _wave(omega, self._left), _wave(omega, self._right)

    def errors(self, waves: Waves) -> np.ndarray:
        """Mean kernel less Phi ``(P, Q)``."""
        return sums.sum_phasors(*waves) / len(waves[0]) - self.target

    def mean_square(self, errors: np.ndarray) -> float:
        """Weighted mean of the squares of errors."""
        return float(np.sum(self.weights * errors * errors))

    def projected(self, waves: Waves, values: np.ndarray) -> np.ndarray:
        """Weighted sums of values times ``exp(i lag . omega)`` for each frequency."""
        left, right = waves
        found: np.ndarray = np.sum((left @ (self.weights * values)) * right, axis=-1)
        return found

    def inner(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """As the function of that name."""
        return inner(self.reach, a, b)

    def slopes_product(self, omega: np.ndarray) -> np.ndarray:
        """Mean of ``lag_j lag_l sin(lag . a) sin(lag . b)`` for all pairs of frequencies ``(n k, n k)``, closed too."""
        n, k = omega.shape
        found = np.zeros((n, k, n, k))
        for sign in (1.0, -1.0):  # for angles a + b, a - b
            angles = omega[:, None] + sign * omega
            each = [_dirichlet(m, angles[..., j]) for j, m in enumerate(self.reach)]
            for j in range(k):
                for m in range(k):
                    found[:, j, :, m] += sign * math.prod(each[i][(i == j) + (i == m)] for i in range(k))
        return 0.5 * found.reshape(n * k, n * k) / self._total

    @property
    def _total(self) -> int:
        return math.prod(2 * m + 1 for m in self.reach)


def inner(reach: tuple[int, ...], a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Mean of ``cos(lag . a) cos(lag . b)`` over all lags of a range, in closed form, for ``(..., k)``."""
    found = np.zeros(np.broadcast_shapes(a.shape, b.shape)[:-1])
    for angle in (a - b, a + b):
        found += math.prod(_dirichlet(m, angle[..., j], values_only=True)[0] for j, m in enumerate(reach))
    return 0.5 * found / math.prod(2 * m + 1 for m in reach)


def _run_of_lags(reach: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Left and right parts and weights in one axis, lag 0 as half a pair."""
    length = 1 << math.ceil(0.5 * math.log2(min(reach + 1, _MOST)))
    starts, shares = _some(-(-(reach + 1) // length), _MOST // length)
    lags = starts[:, None] * length + np.arange(length)
    weights = np.where(lags <= reach, shares[:, None], 0.0)
    weights[0, 0] = 0.5
    return length * starts[:, None].astype(np.float64), np.arange(float(length))[:, None], weights


def _box_of_lags(reach: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Left and right parts and weights in several axes; where the last lag is 0 both of a pair are there."""
    sizes = [m + 1 for m in reach]
    while math.prod(2 * size - 1 for size in sizes) > 2 * _MOST:
        sizes[sizes.index(max(sizes))] -= 1
    axes: list[np.ndarray] = []
    shares = np.ones(())
    for m, size in zip(reach, sizes, strict=True):
        lags, share = _some(m + 1, size)
        if len(axes) < len(reach) - 1:
            lags, share = np.concatenate([-lags[:0:-1], lags]), np.concatenate([share[:0:-1], share])
        else:
            share[0] *= 0.5
        axes.append(lags.astype(np.float64))
        shares = shares[..., None] * share
    left = np.stack(np.meshgrid(*axes[:-1], [0.0], indexing="ij"), axis=-1).reshape(-1, len(reach))
    right = np.stack([*[np.zeros_like(axes[-1])] * (len(reach) - 1), axes[-1]], axis=-1)
    return left, right, shares.reshape(len(left), len(right))


def _some(count: int, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Whole numbers below `count`, all or the smaller ones and a spread over the rest, and what each stands for."""
    if count <= most:
        return np.arange(count), np.ones(count)
    near = most // 2
    edges = near + (count - near) * np.arange(most - near + 1) // (most - near)
    places = np.arange(1, most - near + 1) * (0.5 * (math.sqrt(5.0) - 1.0)) % 1.0  # not equally far: no echo
    far = edges[:-1] + (places * np.diff(edges)).astype(np.int64)
    return np.concatenate([np.arange(near), far]), np.concatenate([np.ones(near), np.diff(edges).astype(np.float64)])


def _wave(omega: np.ndarray, lags: np.ndarray) -> np.ndarray:
    """``exp(i lag . omega)``, its phases without BLAS, whose last bits depend on where arrays lie in memory."""
    found: np.ndarray = np.exp(1j * np.sum(omega[:, None, :] * lags, axis=-1))
    return found


def _dirichlet(m: int, angle: np.ndarray, *, values_only: bool = False) -> tuple[np.ndarray, ...]:
    """``sum exp(i x angle)`` over whole x from -m to m, and its first two derivatives unless only values are wanted."""
    n = 2.0 * m + 1.0
    angle = angle - 2.0 * math.pi * np.round(angle / (2.0 * math.pi))
    near = np.abs(angle) < _SERIES / n
    half = 0.5 * np.where(near, 1.0, angle)
    rise, square = n * (n * n - 1.0) / 12.0, angle * angle
    sin, sines = np.sin(half), np.sin(n * half)
    value = np.where(near, n - 0.5 * rise * square, sines / sin)
    if values_only:
        return (value,)
    cos = np.cos(half)
    first = 0.5 * (n * np.cos(n * half) - cos * value) / sin
    second = (0.25 * (value * sin - n * n * sines) - first * cos) / sin
    return (
        value,
        np.where(near, -rise * angle, first),
        np.where(near, -rise * (1.0 - (3.0 * n * n - 7.0) / 40.0 * square), second),
    )
