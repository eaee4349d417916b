"""What a kernel is.

A kernel is a transport map: `Kernel.transport` sends `Kernel.draws` columns of the unit cube to a frequency, so that
every design of sampling is only another set of points, and algebra closes. Its ``phi`` is the expected cosine,
``Phi(lag) = E cos(lag . omega)``. The two share no code: their agreement is evidence.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Sequence
from types import ModuleType
from typing import Any, ClassVar

import numpy as np

from rfrope._core import angles, array, elementwise
from rfrope._core.arguments import LARGEST
from rfrope._core.array import Array
from rfrope.kernels.falls import Falls, from_phi
from rfrope.kernels.law import Law

Atoms = tuple[np.ndarray, np.ndarray]  # frequencies (n, k) and their probabilities (n,)

_HELD = 128.0  # bytes that formulas hold for each number of their argument, about: 25 to 150
_LAW = {"_law", "_unit_law"}
_PHI = {"phi", "_phi", "_radial_phi", "_near_phi"}
_TRANSPORT = {"transport", "draws", "_frequencies", "drawn", "_transport", "_unit_transport", "_mapped"}


class Kernel(ABC):
    """A shift-invariant positive definite kernel Phi with Phi(0) = 1, and the law of frequencies behind it.

    A family is a frozen dataclass of its parameters and `ndim`, the number k of position axes, with `draws` and three
    formulas: ``_phi(lags, xp)`` and ``_density(omega, xp)`` on arrays ``(..., k)`` of any library, and
    ``_transport(u)`` from NumPy arrays ``(..., draws)`` to ``(..., k)``, whose law must be centrally symmetric.
    ``_law()`` may state the transport as data, for compiled loops.
    """

    name: ClassVar[str]
    ndim: int
    is_one: ClassVar[bool] = False  # whether Phi = 1, so that it may be left out of products

    @property
    @abstractmethod
    def draws(self) -> int:
        """How many uniforms make one frequency."""

    @property
    def signed_columns(self) -> tuple[bool, ...]:
        """The columns of the cube that carry the sign: with 1 - u for u in all of them, omega turns into -omega.

        Designs spread the other half of such a column, the magnitude, evenly. None do for a law of which no such
        columns are known. Unless a family says otherwise: the last ndim columns.
        """
        return tuple(j >= self.draws - self.ndim for j in range(self.draws))

    def __call__(self, lags: Array) -> Array:
        """``kernel(lags)`` is ``kernel.phi(lags)``."""
        return self.phi(lags)

    @array.on_device_of_arrays
    def phi(self, lags: Array) -> Array:
        """Expected cosine ``Phi(lag) = E cos(lag . omega)``, in closed form.

        Parameters
        ----------
        lags : array_like, in units of position
            Lags: any shape for ndim = 1, ``(..., ndim)`` otherwise.

        Returns
        -------
        array, float64 where the library has it
            The shape of the lags.

        Raises
        ------
        ValueError
            If the last axis of `lags` is not `ndim` long (for ndim > 1).
        TypeError
            If `lags` does not hold real numbers.
        """
        lags, xp = self.as_vectors(lags, "lags")
        return self.phi_of_vectors(lags, xp)

    def phi_of_vectors(self, lags: Array, xp: ModuleType) -> Array:
        """Return Phi at lags ``(..., ndim)`` that are read already."""
        array.check_memory(_HELD, lags.shape, lags, "lags")
        with np.errstate(over="ignore", under="ignore"):  # a lag may be large enough for its square to overflow
            return _as_ufuncs_do(self._phi(lags, xp))

    @array.on_device_of_arrays
    def phi2(self, lags: Array) -> Array:
        """Second harmonic ``Phi_2(lag) = E cos(2 lag . omega) = Phi(2 lag)``; see `phi`."""
        lags, xp = self.as_vectors(lags, "lags")
        with np.errstate(over="ignore", under="ignore"):
            return _as_ufuncs_do(self._phi(2.0 * lags, xp))

    @array.on_device_of_arrays
    def density(self, omega: Array) -> Array:
        """Probability density of the frequencies.

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
        ValueError
            If the law has no density, or none in closed form, or the last axis of `omega` is not `ndim` long.
        TypeError
            If `omega` does not hold real numbers.
        """
        omega, xp = self.as_vectors(omega, "omega")
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            return _as_ufuncs_do(self._density(omega, xp))

    @array.on_device_of_arrays
    def transport(self, u: Array) -> Array:
        """Frequencies from points of the unit cube; for ndim = 1 and draws = 1 the quantile function.

        Evaluated by NumPy and SciPy on the host for every library, so that equal points give equal bits: points on a
        device are copied to the host, which waits for them, and frequencies back.

        Parameters
        ----------
        u : array_like, in (0, 1)
            ``(..., draws)``. With draws = 1 an array whose last axis is not 1 is taken element by element; a last
            axis of 1 is dropped.

        Returns
        -------
        array, radians per unit of position
            ``(...)`` for ndim = 1, ``(..., ndim)`` otherwise; magnitudes are cut at 2**500.

        Raises
        ------
        ValueError
            If the last axis of `u` is not `draws` long or a value lies outside (0, 1).
        """
        xp = array.namespace(u=u)
        u = array.as_widest(array.numbers(u, xp, name="u"), xp)
        array.check_memory(_HELD, u.shape, u, "u")
        if self.draws == 1 and (u.ndim == 0 or u.shape[-1] != 1):
            u = u[..., None]
        if u.ndim == 0 or u.shape[-1] != self.draws:
            raise ValueError(
                f"u has shape {tuple(u.shape)}; expected (..., {self.draws}): {self!r} takes {self.draws} draws"
            )
        if array.on_host(u) and not bool(xp.all((u > 0.0) & (u < 1.0))):
            raise ValueError("u holds values outside (0, 1); expected points inside the unit cube")
        return self.as_given(elementwise.map_on_host(self._frequencies, u, xp, "u", last_axis=self.ndim))

    def rescale(self, scale: float | Sequence[float]) -> Kernel:
        """Stretch to ``Phi(lag / scale)``: frequencies divided by `scale`, a number or one for each axis."""
        from rfrope.kernels.algebra import Rescaled  # algebra is itself made of kernels

        return Rescaled(self, scale)  # type: ignore[arg-type]

    def warp(self, matrix: Any) -> Kernel:
        """Warp to ``Phi(M lag)``: frequencies ``M^T omega``, for an invertible (ndim, ndim) matrix M."""
        from rfrope.kernels.algebra import Warped

        return Warped(self, matrix)

    def __mul__(self, other: object) -> Kernel:
        """Product of kernels: independent frequencies add. Constants drop out, and products of products are flat."""
        from rfrope.kernels.algebra import Product, check_same_axes

        if isinstance(other, Kernel):
            check_same_axes((self, other))
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

    def falls(self, lags: Array, xp: ModuleType) -> Falls:
        """Return ``E (1 - cos u)`` and ``E (1 - cos u)^2`` at lags ``(..., k)``, with their digits at small lags.

        Small lags of a kernel that states nothing but Phi have the digits of ``1 - Phi``.
        """
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            stated = self._owner({"_falls"}) <= self._owner(_PHI)
            return self._falls(lags, xp) if stated else Kernel._falls(self, lags, xp)

    def _falls(self, lags: Array, xp: ModuleType) -> Falls:
        """As `falls`."""
        return from_phi(self._phi(lags, xp), self._phi(2.0 * lags, xp))

    @abstractmethod
    def _transport(self, u: np.ndarray) -> np.ndarray:
        """Frequencies ``(..., k)`` from points of the cube ``(..., draws)``."""

    def _density(self, omega: Array, xp: ModuleType) -> Array:
        raise ValueError(f"{self!r} has no density in closed form; sample it, or estimate the density from draws")

    def _atoms(self) -> Atoms | None:
        """Frequencies and their probabilities, if the law has a few thousand at most and no other."""
        return None

    def isotropy(self) -> np.ndarray | None:
        """Matrix A, (ndim, ndim), for which omega = A w and the law of w is spherically symmetric, if one is known."""
        return None

    def _law(self) -> Law | None:
        """State the transport as data, if it is simple enough: compiled loops then need not call it."""
        return None

    def stated_law(self) -> Law | None:
        """Law that stands for the transport; None where there is none, or where a subclass changed only the other."""
        return self._law() if self._owner(_LAW) <= self._owner(_TRANSPORT) else None

    def _owner(self, names: set[str]) -> int:
        """Place of the class that says one of these last, in the order of inheritance."""
        return next(place for place, owner in enumerate(type(self).__mro__) if not names.isdisjoint(vars(owner)))

    def _frequencies(self, u: np.ndarray) -> np.ndarray:
        return self.drawn(np.asarray(u, dtype=np.float64))

    def drawn(self, u: np.ndarray) -> np.ndarray:
        """Vectors of frequencies ``(..., k)`` from points ``(..., draws)`` of NumPy, cut so that sums stay finite."""
        with np.errstate(over="ignore"):
            return np.clip(self._transport(u), -LARGEST, LARGEST)

    def as_given(self, vectors: Array) -> Array:
        """Lags or frequencies ``(..., ndim)`` in the shape that users give and get: ``(...)`` for ndim = 1."""
        return angles.as_given(vectors, self.ndim)

    def as_vectors(self, value: Array, name: str) -> tuple[Array, ModuleType]:
        """Check lags or frequencies and give them their last axis of length ndim."""
        xp = array.namespace(**{name: value})
        value = array.as_widest(array.numbers(value, xp, name=name), xp)
        vectors = angles.as_vectors_of(self, value, self.ndim, name)
        array.check_memory(_HELD, vectors.shape, vectors, name)
        return vectors, xp


def _as_ufuncs_do(value: Array) -> Array:
    """Return a number of NumPy for an array of NumPy without axes, as its ufuncs do; anything else as it came."""
    return value[()] if isinstance(value, np.ndarray) and not value.ndim else value
