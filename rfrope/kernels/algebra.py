"""Mixtures of kernels, and kernels of separate axes, exact in Phi and in the law of frequencies."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import ClassVar

import numpy as np

from rfrope._core.array import Array
from rfrope.kernels import one_minus_cos, parameters
from rfrope.kernels.base import Kernel, check_kernels, join_signed, transport_parts
from rfrope.kernels.one_minus_cos import CosMoments


def mixture(weights: Sequence[float], kernels: Sequence[Kernel]) -> Kernel:
    """Return a mixture, ``sum_j w_j Phi_j``: each frequency comes from component j with probability w_j.

    Parameters
    ----------
    weights : sequence of float
        Positive, with sum 1 to the rounding of their dtype; they are normalised.
    kernels : list or tuple of Kernel
        Components, one per weight, with the same ndim.

    Returns
    -------
    Kernel

    Raises
    ------
    ValueError, TypeError
        If weights are not positive numbers with sum 1, or kernels differ from them in number, or in ndim.

    See Also
    --------
    kernels.axes, kernel

    Examples
    --------
    >>> from rfrope.kernels import kernel
    >>> mixture([0.75, 0.25], [kernel("gaussian"), kernel("gaussian", scale=2.0)]).phi(2.0).round(4)
    np.float64(0.2531)
    """
    return Mixture(weights, tuple(kernels) if isinstance(kernels, list) else kernels)  # type: ignore[arg-type]


def axes(*kernels: Kernel) -> Kernel:
    """Return the product of kernels on separate axes: ``Phi(lag) = Phi_1(first axes) Phi_2(next axes) ...``.

    Parameters
    ----------
    *kernels : Kernel
        In the order of the axes. The ndim of the result is their sum; frequencies are concatenated.

    Returns
    -------
    Kernel

    Raises
    ------
    TypeError
        If an argument is not a kernel.

    See Also
    --------
    kernels.mixture, kernel

    Examples
    --------
    >>> from rfrope.kernels import kernel
    >>> axes(kernel("gaussian", scale=8.0), kernel("cauchy", scale=4.0)).phi([8.0, 4.0]).round(4)
    np.float64(0.3033)
    """
    return Axes(tuple(kernels))


@dataclass(frozen=True, repr=False)
class Mixture(Kernel):
    """Phi is the weighted sum of the components' Phi; the first column picks the component."""

    name: ClassVar[str] = "mixture"
    weights: tuple[float, ...]
    kernels: tuple[Kernel, ...]

    def __post_init__(self) -> None:
        check_kernels(self.kernels)
        weights = parameters.shares("weights", self.weights)
        if len(weights) != len(self.kernels):
            raise ValueError(f"weights has {len(weights)} entries and kernels {len(self.kernels)}; expected as many")
        object.__setattr__(self, "weights", weights)

    ndim = property(lambda self: self.kernels[0].ndim)
    n_columns = property(lambda self: 1 + max(k.n_columns for k in self.kernels))

    @property
    def signed_columns(self) -> tuple[bool, ...]:
        """The components' signed columns if they agree, else none; the column that picks carries no sign."""
        columns = [set(c) - {None} for c in itertools.zip_longest(*(k.signed_columns for k in self.kernels))]
        agree = all(len(c) == 1 for c in columns)
        return (False, *(agree and True in c for c in columns))

    def _sum(self, values: Iterable[Array]) -> Array:
        return sum(w * value for w, value in zip(self.weights, values, strict=True))

    def _phi(self, lags: Array, xp: ModuleType) -> Array:
        return self._sum(k._phi(lags, xp) for k in self.kernels)

    def _one_minus_cos_moments(self, lags: Array, xp: ModuleType) -> CosMoments:
        return one_minus_cos.mix(self.weights, [k.one_minus_cos_moments(lags, xp) for k in self.kernels])

    def _density(self, omega: Array, xp: ModuleType) -> Array:
        return self._sum(k._density(omega, xp) for k in self.kernels)

    def _transport(self, u: np.ndarray) -> np.ndarray:
        chosen = np.searchsorted(np.cumsum(self.weights)[:-1], u[..., 0], side="right")
        options = [k.transport_points(u[..., 1 : 1 + k.n_columns]) for k in self.kernels]
        return np.select([(chosen == j)[..., None] for j in range(len(options))], options)

    def __repr__(self) -> str:
        return f"mixture({list(self.weights)!r}, [{', '.join(map(repr, self.kernels))}])"


@dataclass(frozen=True, repr=False)
class Axes(Kernel):
    """Phi is the product over groups of axes; omega concatenates the groups' frequencies."""

    name: ClassVar[str] = "axes"
    kernels: tuple[Kernel, ...]

    def __post_init__(self) -> None:
        check_kernels(self.kernels, same_axes=False)

    ndim = property(lambda self: sum(k.ndim for k in self.kernels))
    n_columns = property(lambda self: sum(k.n_columns for k in self.kernels))
    signed_columns = property(lambda self: join_signed(self.kernels))

    def _phi(self, lags: Array, xp: ModuleType) -> Array:
        return math.prod((k._phi(part, xp) for k, part in self._groups(lags)), start=1.0)

    def _one_minus_cos_moments(self, lags: Array, xp: ModuleType) -> CosMoments:
        return one_minus_cos.add_independent(k.one_minus_cos_moments(part, xp) for k, part in self._groups(lags))

    def _density(self, omega: Array, xp: ModuleType) -> Array:
        return math.prod((k._density(part, xp) for k, part in self._groups(omega)), start=1.0)

    def _transport(self, u: np.ndarray) -> np.ndarray:
        return np.concatenate(transport_parts(self.kernels, u), axis=-1)

    def _groups(self, vectors: Array) -> Iterable[tuple[Kernel, Array]]:
        return zip(self.kernels, parameters.split(vectors, [k.ndim for k in self.kernels]), strict=True)

    def __repr__(self) -> str:
        return f"axes({', '.join(map(repr, self.kernels))})"
