"""Kernels, and what their operations return: products, rescaled and warped kernels.

A kernel is a transport map: `Kernel.transport` maps `Kernel.n_columns` columns of the unit cube to a frequency, so
every sampling design is just a set of points, and algebra closes. Its ``phi`` is the expected cosine,
``Phi(lag) = E cos(lag . omega)``. The two share no code: their agreement is evidence.
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, ClassVar

import numpy as np

from rfrope._core import angles, array
from rfrope._core.arguments import LARGEST, show
from rfrope._core.array import Array
from rfrope.kernels import one_minus_cos, parameters
from rfrope.kernels.one_minus_cos import CosMoments
from rfrope.kernels.parameters import Function, Lengths

Quantile = tuple[Callable[..., np.ndarray], tuple[float, ...]]  # a function on (0, 1), and what it takes first

_EXTREME = 1e100  # factors of a law beyond it, or below its inverse, go through the transport, which cuts overflows
_LAW = {"_law", "_line", "_radius"}
_PHI = {"phi", "_phi"}
_TRANSPORT = {"transport", "n_columns", "transport_points", "_transport", "_unit_transport"}


@dataclass(frozen=True)
class Law:
    """A transport as data for compiled loops: component j is ``factors[j] * radius(u_0) * quantile(u_j)``.

    Attributes
    ----------
    component : tuple
        ``(quantile, parameters)``: an array function ``quantile(*parameters, u)``, odd about 1/2; or
        ``("uniform", ())`` for 2u - 1, or ``("log_uniform", (s,))`` for ``sign(2u - 1) exp(s abs(2u - 1))``.
    factors : tuple of float
        One for each axis.
    radius : tuple or None
        ``(quantile, parameters)``: positive, ``quantile(*parameters, v, upper=False)`` at v, and with ``upper=True`` at
        1 - v. It takes the first column; without it, all columns are components.
    """

    component: tuple[str | Callable[..., np.ndarray], tuple[float, ...]]
    factors: tuple[float, ...]
    radius: Quantile | None = None

    def scaled(self, divisor: float | tuple[float, ...]) -> Law | None:
        """Return the law of frequencies divided by `divisor`, or None if that needs more care than a product."""
        divisors = np.broadcast_to(divisor, len(self.factors))
        with np.errstate(over="ignore"):
            factors = tuple((np.asarray(self.factors) / divisors).tolist())
        fits = all(1.0 / _EXTREME < f < _EXTREME for f in factors)
        return dataclasses.replace(self, factors=factors) if fits else None


class Kernel(ABC):
    """A shift-invariant positive definite kernel Phi with Phi(0) = 1, and the law of its frequencies.

    A family is a frozen dataclass of its parameters and `ndim`, the number k of position axes. It must define
    ``_phi(lags, xp)`` for arrays ``(..., k)`` of any library. To be sampled it needs `n_columns` and ``_transport(u)``,
    which maps NumPy arrays ``(..., n_columns)`` to ``(..., k)`` with a centrally symmetric law. Optional are
    ``_density(omega, xp)``, and ``_law()``, the transport as data for compiled loops.

    See Also
    --------
    kernel, kernels.parse, kernels.mixture

    Examples
    --------
    >>> import rfrope
    >>> law = rfrope.kernel("gaussian", scale=8.0) * rfrope.kernel("cauchy", scale=64.0)
    >>> round(float(law(4.0)), 4), law.ndim, law.n_columns
    (0.8791, 1, 2)
    """

    name: ClassVar[str]
    ndim: int
    is_one: ClassVar[bool] = False  # Phi = 1, which products may omit
    is_discrete: bool = False  # a law of many atoms, whose quantile function has steps

    @property
    def n_columns(self) -> int:
        """Number of uniforms per frequency. Default: one for each axis."""
        return self.ndim

    @property
    def signed_columns(self) -> tuple[bool, ...]:
        """True for the columns of the cube that carry the sign: 1 - u for u in all of them turns omega into -omega.

        Designs spread the magnitude, the other half of such a column, evenly. All False if no such columns are known.
        Default: the last ndim columns.
        """
        return tuple(j >= self.n_columns - self.ndim for j in range(self.n_columns))

    def __call__(self, lags: Array) -> Array:
        """``kernel(lags)`` is ``kernel.phi(lags)``."""
        return self.phi(lags)

    @array.select_device
    def phi(self, lags: Array) -> Array:
        """Return the expected cosine ``Phi(lag) = E cos(lag . omega)``, in closed form.

        Parameters
        ----------
        lags : array_like, in units of position
            Any shape for ndim = 1, ``(..., ndim)`` otherwise.

        Returns
        -------
        array, float64 where the library has it
            Same shape as the lags.

        Raises
        ------
        ValueError, TypeError
            If the last axis of `lags` does not have length `ndim` (for ndim > 1), or a lag is not a real number.
        """
        return self._evaluate(self._phi, lags, "lags")

    def phi_of_vectors(self, lags: Array, xp: ModuleType) -> Array:
        """Return Phi at checked lags ``(..., ndim)``."""
        return _evaluate_vectors(self._phi, lags, xp)

    @array.select_device
    def phi2(self, lags: Array) -> Array:
        """Return the second harmonic ``Phi_2(lag) = E cos(2 lag . omega) = Phi(2 lag)``; see `phi`."""
        return self._evaluate(lambda vectors, xp: self._phi(2.0 * vectors, xp), lags, "lags")

    @array.select_device
    def density(self, omega: Array) -> Array:
        """Return the probability density of the frequencies.

        Parameters
        ----------
        omega : array_like, radians per unit of position
            Any shape for ndim = 1, ``(..., ndim)`` otherwise.

        Returns
        -------
        array, float64 where the library has it
            Infinite where the density has a pole.

        Raises
        ------
        ValueError, TypeError
            If the density has no closed form; for `omega` as `phi` for lags.
        """
        return self._evaluate(self._density, omega, "omega")

    @array.select_device
    def transport(self, u: Array) -> Array:
        """Return frequencies of points of the unit cube; for ndim = 1 and n_columns = 1 the quantile function.

        Evaluated by NumPy and SciPy on the host for every library, so equal points give equal bits: points on a device
        are copied to the host, and frequencies back.

        Parameters
        ----------
        u : array_like, in (0, 1)
            ``(..., n_columns)``. With n_columns = 1, elementwise for an array whose last axis is not 1; a last axis of
            1 is dropped.

        Returns
        -------
        array, radians per unit of position
            ``(...)`` for ndim = 1, ``(..., ndim)`` otherwise; magnitudes are cut at 2**500.

        Raises
        ------
        ValueError
            If the last axis of `u` does not have length `n_columns`, or a value is outside (0, 1).
        """
        xp = array.namespace(u=u)
        u = array.widen(array.numbers(u, xp, name="u"), xp)
        if self.n_columns == 1 and (u.ndim == 0 or u.shape[-1] != 1):
            u = u[..., None]
        if u.ndim == 0 or u.shape[-1] != self.n_columns:
            raise ValueError(
                f"u has shape {tuple(u.shape)}; expected (..., {self.n_columns}): {self!r} takes {self.n_columns} draws"
            )
        if array.has_host_values(u) and not bool(xp.all((u > 0.0) & (u < 1.0))):
            raise ValueError("u holds values outside (0, 1); expected points inside the unit cube")
        return self.restore_shape(array.map_on_host(self.transport_points, u, xp, "u", last_axis=self.ndim))

    def rescale(self, scale: float | Sequence[float]) -> Kernel:
        """Return ``Phi(lag / scale)``: frequencies divided by `scale`, a number or one for each axis."""
        return Rescaled(self, scale)  # type: ignore[arg-type]

    def warp(self, matrix: Any) -> Kernel:
        """Return ``Phi(M lag)``: frequencies ``M^T omega``, for an invertible (ndim, ndim) matrix M."""
        return Warped(self, matrix)

    def __mul__(self, other: object) -> Kernel:
        """Product of kernels: independent frequencies add. Constants drop out, and products of products are flat."""
        if isinstance(other, Kernel):
            check_kernels((self, other))
            return other if self.is_one else self if other.is_one else Product((self, other))
        raise TypeError(
            f"a kernel times {type(other).__name__} is not a kernel: Phi(0) must stay 1; expected another kernel; use "
            "rescale() to stretch it and kernels.mixture() to weigh several"
        )

    __rmul__ = __mul__

    def __repr__(self) -> str:
        shown = [(f.name, getattr(self, f.name)) for f in dataclasses.fields(self)]  # type: ignore[arg-type]
        return f"{self.name}({', '.join(f'{n}={v!r}' for n, v in shown if n != 'ndim' or v != 1)})"

    @abstractmethod
    def _phi(self, lags: Array, xp: ModuleType) -> Array:
        """Phi at lags ``(..., k)``."""

    def _one_minus_cos_moments(self, lags: Array, xp: ModuleType) -> CosMoments:
        return one_minus_cos.subtract_phi(self._phi(lags, xp), self._phi(2.0 * lags, xp))

    def _transport(self, u: np.ndarray) -> np.ndarray:
        """Frequencies ``(..., k)`` from points of the cube ``(..., n_columns)``."""
        raise ValueError(
            f"{self!r} states no transport, so it cannot be sampled; expected a _transport method, or "
            "rfrope.bochner.from_function(kernel.phi), which finds the law"
        )

    def _density(self, omega: Array, xp: ModuleType) -> Array:
        raise ValueError(f"{self!r} has no density in closed form; sample it instead")

    def isotropy(self) -> np.ndarray | None:
        """Return a matrix A, (ndim, ndim), with omega = A w and a spherically symmetric law of w, or None."""
        return None

    def _law(self) -> Law | None:
        """Return the transport as data for compiled loops, if it is simple enough."""
        return None

    def one_minus_cos_moments(self, lags: Array, xp: ModuleType) -> CosMoments:
        """Return ``E (1 - cos u)`` and ``E (1 - cos u)^2`` at lags ``(..., k)``, accurate at small lags.

        If a kernel defines nothing but Phi, small lags have the digits of ``1 - Phi``.
        """
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            stated = self._owner({"_one_minus_cos_moments"}) <= self._owner(_PHI)
            return self._one_minus_cos_moments(lags, xp) if stated else Kernel._one_minus_cos_moments(self, lags, xp)

    def stated_law(self) -> Law | None:
        """Return the law behind the transport; None if there is none, or if a subclass changed only the transport."""
        return self._law() if self._owner(_LAW) <= self._owner(_TRANSPORT) else None

    def _owner(self, names: set[str]) -> int:
        """Return the index, in the order of inheritance, of the first class that defines one of these names."""
        return next(place for place, owner in enumerate(type(self).__mro__) if not names.isdisjoint(vars(owner)))

    def transport_points(self, u: np.ndarray) -> np.ndarray:
        """Return frequencies ``(..., k)`` of NumPy points ``(..., n_columns)``, cut at 2**500."""
        with np.errstate(over="ignore"):
            return np.clip(self._transport(np.asarray(u, dtype=np.float64)), -LARGEST, LARGEST)

    def restore_shape(self, vectors: Array) -> Array:
        """Return lags or frequencies ``(..., ndim)`` in the user's shape: ``(...)`` for ndim = 1."""
        return angles.from_vectors(vectors, self.ndim)

    def _evaluate(self, formula: Function, value: Array, name: str) -> Array:
        """Evaluate a formula at lags or frequencies in their user's shape."""
        xp = array.namespace(**{name: value})
        value = array.widen(array.numbers(value, xp, name=name), xp)
        return _evaluate_vectors(formula, angles.to_vectors_of(self, value, self.ndim, name), xp)


def _evaluate_vectors(formula: Function, vectors: Array, xp: ModuleType) -> Array:
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):  # squares of large lags overflow
        found = formula(vectors, xp)
    return found[()] if isinstance(found, np.ndarray) and not found.ndim else found  # as NumPy's ufuncs do


# -- what its operations return ----------------------------------------------------------------------------------------


def check_kernels(kernels: Any, *, same_axes: bool = True) -> None:
    """Refuse anything but a tuple of kernels, and kernels of different ndim."""
    if not isinstance(kernels, tuple) or not kernels or not all(isinstance(k, Kernel) for k in kernels):
        raise TypeError(f"kernels is {show(kernels)}; expected one or more kernels")
    if same_axes and len({k.ndim for k in kernels}) > 1:
        raise ValueError(f"kernels have {[k.ndim for k in kernels]} axes; expected one ndim for all")


@dataclass(frozen=True, repr=False)
class Product(Kernel):
    """Phi is the product of the factors' Phi; omega is the sum of independent frequencies."""

    name: ClassVar[str] = "product"
    factors: tuple[Kernel, ...]

    def __post_init__(self) -> None:
        check_kernels(self.factors)
        flat = [f for k in self.factors for f in (k.factors if isinstance(k, Product) else (k,))]
        object.__setattr__(self, "factors", tuple(flat))

    ndim = property(lambda self: self.factors[0].ndim)
    n_columns = property(lambda self: sum(f.n_columns for f in self.factors))
    signed_columns = property(lambda self: join_signed(self.factors))

    def _phi(self, lags: Array, xp: ModuleType) -> Array:
        return math.prod((f._phi(lags, xp) for f in self.factors), start=1.0)

    def _one_minus_cos_moments(self, lags: Array, xp: ModuleType) -> CosMoments:
        return one_minus_cos.add_independent(f.one_minus_cos_moments(lags, xp) for f in self.factors)

    def _transport(self, u: np.ndarray) -> np.ndarray:
        return np.sum(transport_parts(self.factors, u), axis=0)

    def __repr__(self) -> str:
        return " * ".join(map(repr, self.factors))


@dataclass(frozen=True, repr=False)
class _Mapped(Kernel):
    """A kernel whose frequencies are those of another, mapped by a linear map."""

    kernel: Kernel

    ndim = property(lambda self: self.kernel.ndim)
    n_columns = property(lambda self: self.kernel.n_columns)
    signed_columns = property(lambda self: self.kernel.signed_columns)
    is_discrete = property(lambda self: self.kernel.is_discrete)

    def _phi(self, lags: Array, xp: ModuleType) -> Array:
        return self.kernel._phi(self._map_lags(lags, xp), xp)

    def _one_minus_cos_moments(self, lags: Array, xp: ModuleType) -> CosMoments:
        return self.kernel.one_minus_cos_moments(self._map_lags(lags, xp), xp)

    def _transport(self, u: np.ndarray) -> np.ndarray:
        return self._map_frequencies(self.kernel.transport_points(u))

    def isotropy(self) -> np.ndarray | None:
        """As `Kernel.isotropy`."""
        inside = self.kernel.isotropy()
        return None if inside is None else self._map_frequencies(inside.T).T

    @abstractmethod
    def _map_lags(self, lags: Array, xp: ModuleType) -> Array:
        """Lags of the kernel inside."""

    @abstractmethod
    def _map_frequencies(self, omega: np.ndarray) -> np.ndarray:
        """Frequencies under the map."""


@dataclass(frozen=True, repr=False)
class Rescaled(_Mapped):
    """``Phi(lag / scale)``; frequencies ``omega / scale``."""

    name: ClassVar[str] = "rescaled"
    scale: Lengths

    def __post_init__(self) -> None:
        object.__setattr__(self, "scale", parameters.per_axis("scale", self.scale, self.ndim))

    def _map_lags(self, lags: Array, xp: ModuleType) -> Array:
        return lags / parameters.broadcast(self.scale, lags, xp)

    def _map_frequencies(self, omega: np.ndarray) -> np.ndarray:
        return omega / np.asarray(self.scale)

    def _density(self, omega: Array, xp: ModuleType) -> Array:
        inside = self.kernel._density(omega * parameters.broadcast(self.scale, omega, xp), xp)
        return parameters.volume(self.scale, self.ndim) * inside

    def _law(self) -> Law | None:
        law = self.kernel.stated_law()
        return law and law.scaled(self.scale)

    def __repr__(self) -> str:
        return f"({self.kernel!r}).rescale({self.scale!r})"


@dataclass(frozen=True, repr=False)
class Warped(_Mapped):
    """``Phi(M lag)``; frequencies ``M^T omega``."""

    name: ClassVar[str] = "warped"
    matrix: tuple[tuple[float, ...], ...]

    def __post_init__(self) -> None:
        matrix = parameters.square_matrix("matrix", self.matrix, self.ndim)
        object.__setattr__(self, "matrix", tuple(map(tuple, matrix.tolist())))

    def _map_lags(self, lags: Array, xp: ModuleType) -> Array:
        return parameters.multiply(lags, np.asarray(self.matrix).T, xp)

    def _map_frequencies(self, omega: np.ndarray) -> np.ndarray:
        matrix = np.asarray(self.matrix)
        exponent = math.frexp(np.max(np.abs(matrix)))[1]
        size = 2.0 ** min(max(0, exponent), 1023)  # sums of the largest frequencies stay finite
        return (omega @ (matrix / size)) * size

    def _density(self, omega: Array, xp: ModuleType) -> Array:
        inverse = np.linalg.inv(np.asarray(self.matrix))
        return abs(float(np.linalg.det(inverse))) * self.kernel._density(parameters.multiply(omega, inverse, xp), xp)

    def __repr__(self) -> str:
        return f"({self.kernel!r}).warp({[list(row) for row in self.matrix]!r})"


def join_signed(kernels: Iterable[Kernel]) -> tuple[bool, ...]:
    """Return the signed columns of kernels side by side; none if any kernel has none, as its part would not change."""
    columns = [k.signed_columns for k in kernels]
    known = all(map(any, columns))
    return tuple(signed and known for each in columns for signed in each)


def transport_parts(kernels: Sequence[Kernel], u: np.ndarray) -> list[np.ndarray]:
    """Return the frequencies of kernels with columns side by side."""
    parts = parameters.split(u, [k.n_columns for k in kernels])
    return [k.transport_points(part) for k, part in zip(kernels, parts, strict=True)]
