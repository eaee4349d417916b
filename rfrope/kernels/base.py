"""What a kernel is, and its algebra.

A kernel is a transport map: `Kernel.transport` sends `Kernel.draws` columns of the unit cube to a frequency, so that
every design of sampling is only another set of points, and algebra closes. Its ``phi`` is the expected cosine,
``Phi(delta) = E cos(delta . omega)``. The two share no code: their agreement is evidence.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, ClassVar

import numpy as np

from rfrope import _array
from rfrope._array import Array
from rfrope.kernels.law import Law
from rfrope.kernels.parameters import along_axes, per_axis, shares, square_matrix, volume

Atoms = tuple[np.ndarray, np.ndarray]  # frequencies (n, k) and their probabilities (n,)

_LAW = {"_law", "_unit_law"}
_TRANSPORT = {"transport", "draws", "_frequencies", "_drawn", "_transport", "_unit_transport", "_mapped"}
_LARGEST = 2.0**500  # frequencies of extremely heavy tails are cut here, so that phases stay finite
_MOST_ATOMS = 2**12  # of a factor, in the density of a product


class Kernel:
    """A shift-invariant positive definite kernel Phi with Phi(0) = 1, and the law of frequencies behind it.

    A family is a frozen dataclass of its parameters and `ndim`, the number k of position axes, with three formulas:
    ``_phi(delta, xp)`` and ``_density(omega, xp)`` on arrays ``(..., k)`` of any library, and ``_transport(u)`` from
    NumPy arrays ``(..., draws)`` to ``(..., k)``, whose law must be centrally symmetric. ``_law()`` may state the
    transport once more, as data.
    """

    name: ClassVar[str]
    ndim: int
    is_one: ClassVar[bool] = False  # whether Phi = 1, so that it may be left out of products

    @property
    def draws(self) -> int:
        """How many uniforms make one frequency."""
        raise TypeError(f"{type(self).__name__} states no number of draws; a kernel family defines it")

    @property
    def signed_columns(self) -> tuple[bool, ...]:
        """Which columns of the cube carry the sign: with u replaced by 1 - u in all of them, omega turns into -omega.

        Designs spread the other half of such a column, the magnitude, evenly. A wrong answer costs them accuracy, never
        the law. Unless a family says otherwise: the last ndim columns.
        """
        return tuple(j >= self.draws - self.ndim for j in range(self.draws))

    def __call__(self, delta: Array) -> Array:
        """``kernel(delta)`` is ``kernel.phi(delta)``."""
        return self.phi(delta)

    @_array.on_device_of_arrays
    def phi(self, delta: Array) -> Array:
        """Expected cosine ``Phi(delta) = E cos(delta . omega)``, in closed form.

        Parameters
        ----------
        delta : array_like, in units of position
            Lags: any shape for ndim = 1, ``(..., ndim)`` otherwise.

        Returns
        -------
        array, float64 where the library has it
            The shape of the lags.

        Raises
        ------
        ValueError
            If the last axis of `delta` is not `ndim` long (for ndim > 1).
        TypeError
            If `delta` does not hold real numbers.
        """
        delta, xp = self._vectors(delta, "delta")
        with np.errstate(over="ignore", under="ignore"):  # a lag may be large enough for its square to overflow
            return self._phi(delta, xp)

    @_array.on_device_of_arrays
    def phi2(self, delta: Array) -> Array:
        """Second harmonic ``Phi_2(delta) = E cos(2 delta . omega) = Phi(2 delta)``; see `phi`."""
        delta, xp = self._vectors(delta, "delta")
        with np.errstate(over="ignore", under="ignore"):
            return self._phi(2.0 * delta, xp)

    @_array.on_device_of_arrays
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
        omega, xp = self._vectors(omega, "omega")
        with np.errstate(over="ignore", under="ignore"):
            return self._density(omega, xp)

    @_array.on_device_of_arrays
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
        xp = _array.namespace(u=u)
        u = _array.as_widest(_array.numbers(u, xp, name="u"), xp)
        if self.draws == 1 and (u.ndim == 0 or u.shape[-1] != 1):
            u = u[..., None]
        if u.ndim == 0 or u.shape[-1] != self.draws:
            raise ValueError(
                f"u has shape {tuple(u.shape)}; expected (..., {self.draws}): {self!r} takes {self.draws} draws"
            )
        if _array.on_host(u) and not bool(xp.all((u > 0.0) & (u < 1.0))):
            raise ValueError("u holds values outside (0, 1); expected points inside the unit cube")
        return _array.apply_on_host(self._frequencies, u, xp, last_axis=0 if self.ndim == 1 else self.ndim)

    def rescale(self, scale: float | Sequence[float]) -> Kernel:
        """Stretch to ``Phi(delta / scale)``: frequencies divided by `scale`, a number or one for each axis."""
        return Rescaled(self, scale)  # type: ignore[arg-type]

    def warp(self, matrix: Any) -> Kernel:
        """Warp to ``Phi(M delta)``: frequencies ``M^T omega``, for an invertible (ndim, ndim) matrix M."""
        return Warped(self, matrix)

    def __mul__(self, other: object) -> Kernel:
        """Product of kernels: independent frequencies add. Constants drop out, and products of products are flat."""
        if isinstance(other, Kernel):
            _check_same_axes((self, other))
            return other if self.is_one else self if other.is_one else Product((self, other))
        raise TypeError(
            f"a kernel times {type(other).__name__} is not a kernel: Phi(0) must stay 1; expected another kernel; use "
            "rescale() to stretch it and kernels.mixture() to weigh several"
        )

    __rmul__ = __mul__

    def __repr__(self) -> str:
        shown = [(f.name, getattr(self, f.name)) for f in dataclasses.fields(self)]  # type: ignore[arg-type]
        return f"{self.name}({', '.join(f'{n}={v!r}' for n, v in shown if n != 'ndim' or v != 1)})"

    def _phi(self, delta: Array, xp: ModuleType) -> Array:
        raise TypeError(f"{type(self).__name__} defines no phi; a kernel family defines it")

    def _density(self, omega: Array, xp: ModuleType) -> Array:
        raise ValueError(f"{self!r} has no density in closed form; sample it, or estimate the density from draws")

    def _atoms(self) -> Atoms | None:
        """Frequencies and their probabilities, if the law has a few thousand at most and no other."""
        return None

    def _transport(self, u: np.ndarray) -> np.ndarray:
        raise TypeError(f"{type(self).__name__} defines no transport; a kernel family defines it")

    def _isotropy(self) -> np.ndarray | None:
        """Matrix A, (ndim, ndim), for which omega = A w and the law of w is spherically symmetric, if one is known."""
        return None

    def _law(self) -> Law | None:
        """State the transport as data, if it is that simple: compiled loops then need not call it."""
        return None

    def _stated_law(self) -> Law | None:
        """Law that stands for the transport; None where there is none, or where a subclass changed only the other."""
        places = [
            next(place for place, owner in enumerate(type(self).__mro__) if not names.isdisjoint(vars(owner)))
            for names in (_LAW, _TRANSPORT)
        ]
        return self._law() if places[0] <= places[1] else None

    def _frequencies(self, u: np.ndarray) -> np.ndarray:
        omega = self._drawn(np.asarray(u, dtype=np.float64))
        return omega[..., 0] if self.ndim == 1 else omega

    def _drawn(self, u: np.ndarray) -> np.ndarray:
        """Vectors of frequencies, cut so that sums of them stay finite."""
        with np.errstate(over="ignore"):
            return np.clip(self._transport(u), -_LARGEST, _LARGEST)

    def _vectors(self, value: Array, name: str) -> tuple[Array, ModuleType]:
        """Check lags or frequencies and give them their last axis of length ndim."""
        xp = _array.namespace(**{name: value})
        value = _array.as_widest(_array.numbers(value, xp, name=name), xp)
        if self.ndim == 1:
            return value[..., None], xp
        if value.ndim == 0 or value.shape[-1] != self.ndim:
            raise ValueError(
                f"{name} has shape {tuple(value.shape)}; expected (..., {self.ndim}): {self!r} has {self.ndim} axes"
            )
        return value, xp


# -- the algebra -------------------------------------------------------------------------------------------------------


def mixture(weights: Sequence[float], kernels: Sequence[Kernel]) -> Kernel:
    """Mix kernels: ``sum_j w_j Phi_j``; each frequency comes from one component, picked with probability w_j.

    Parameters
    ----------
    weights : sequence of float
        Positive, with sum 1.
    kernels : sequence of Kernel
        As many, with one ndim.

    Returns
    -------
    Kernel

    Raises
    ------
    ValueError
        For weights that are not positive or do not sum to 1, and for lengths or axes that differ.
    TypeError
        For anything but numbers and kernels.

    Examples
    --------
    >>> from rfrope.kernels import kernel
    >>> mixture([0.75, 0.25], [kernel("gaussian"), kernel("gaussian", scale=2.0)]).phi(2.0).round(4)
    np.float64(0.2531)
    """
    return Mixture(weights, tuple(kernels) if isinstance(kernels, Iterable) else kernels)  # type: ignore[arg-type]


def axes(*kernels: Kernel) -> Kernel:
    """Combine kernels of separate axes: ``Phi(delta) = Phi_1(first axes) Phi_2(next axes) ...``.

    Parameters
    ----------
    *kernels : Kernel
        In the order of the axes; the result has the sum of their ndim, and their frequencies side by side.

    Returns
    -------
    Kernel

    Raises
    ------
    TypeError
        For anything but kernels.

    Examples
    --------
    >>> from rfrope.kernels import kernel
    >>> axes(kernel("gaussian", scale=8.0), kernel("cauchy", scale=4.0)).phi([8.0, 4.0]).round(4)
    np.float64(0.3033)
    """
    return Axes(tuple(kernels))


def _check_kernels(kernels: Any) -> None:
    if not isinstance(kernels, tuple) or not kernels or not all(isinstance(k, Kernel) for k in kernels):
        raise TypeError(f"kernels is {kernels!r:.80}; expected one or more kernels")


def _check_same_axes(kernels: tuple[Kernel, ...]) -> None:
    _check_kernels(kernels)
    if len({k.ndim for k in kernels}) > 1:
        raise ValueError(f"kernels have {[k.ndim for k in kernels]} axes; expected one ndim for all")


@dataclass(frozen=True, repr=False)
class Product(Kernel):
    """Phi = product of the factors' Phi; omega = sum of independent frequencies."""

    name: ClassVar[str] = "product"
    factors: tuple[Kernel, ...]

    def __post_init__(self) -> None:
        _check_same_axes(self.factors)
        flat = [f for k in self.factors for f in (k.factors if isinstance(k, Product) else (k,))]
        object.__setattr__(self, "factors", tuple(flat))

    @property
    def ndim(self) -> int:  # type: ignore[override]
        """The factors' number of axes."""
        return self.factors[0].ndim

    @property
    def draws(self) -> int:
        """The factors' draws, side by side."""
        return sum(f.draws for f in self.factors)

    @property
    def signed_columns(self) -> tuple[bool, ...]:
        """The factors' columns, side by side."""
        return sum((f.signed_columns for f in self.factors), start=())

    def _phi(self, delta: Array, xp: ModuleType) -> Array:
        return math.prod((f._phi(delta, xp) for f in self.factors), start=1.0)

    def _density(self, omega: Array, xp: ModuleType) -> Array:
        """Sum of shifted densities, where all factors but one are of atoms."""
        smooth, places, weights = [], np.zeros((1, self.ndim)), np.ones(1)
        for factor in self.factors:
            atoms = factor._atoms() if len(weights) <= _MOST_ATOMS else None
            if atoms is None:
                smooth.append(factor)
            else:
                places = (places[:, None] + atoms[0]).reshape(-1, self.ndim)
                weights = np.multiply.outer(weights, atoms[1]).reshape(-1)
        if len(smooth) != 1:
            return super()._density(omega, xp)
        terms = zip(weights.tolist(), places.tolist(), strict=True)
        return sum(w * smooth[0]._density(omega - along_axes(tuple(p), omega, xp), xp) for w, p in terms)

    def _transport(self, u: np.ndarray) -> np.ndarray:
        return np.sum([f._drawn(part) for f, part in _columns(self.factors, u)], axis=0)

    def _isotropy(self) -> np.ndarray | None:
        return _common_isotropy(self.factors)

    def __repr__(self) -> str:
        return " * ".join(map(repr, self.factors))


@dataclass(frozen=True, repr=False)
class Mixture(Kernel):
    """Phi = weighted sum of the components' Phi; the first draw picks the component."""

    name: ClassVar[str] = "mixture"
    weights: tuple[float, ...]
    kernels: tuple[Kernel, ...]

    def __post_init__(self) -> None:
        _check_same_axes(self.kernels)
        weights = shares("weights", self.weights)
        if len(weights) != len(self.kernels):
            raise ValueError(f"weights has {len(weights)} entries and kernels {len(self.kernels)}; expected as many")
        object.__setattr__(self, "weights", weights)

    @property
    def ndim(self) -> int:  # type: ignore[override]
        """The components' number of axes."""
        return self.kernels[0].ndim

    @property
    def draws(self) -> int:
        """One for the choice, and those of the hungriest component."""
        return 1 + max(k.draws for k in self.kernels)

    @property
    def signed_columns(self) -> tuple[bool, ...]:
        """The components' columns where these agree, else none; the choice carries no sign."""
        columns = [set(c) - {None} for c in itertools.zip_longest(*(k.signed_columns for k in self.kernels))]
        agree = all(len(c) == 1 for c in columns)
        return (False, *(agree and True in c for c in columns))

    def _phi(self, delta: Array, xp: ModuleType) -> Array:
        return sum(w * k._phi(delta, xp) for w, k in zip(self.weights, self.kernels, strict=True))

    def _density(self, omega: Array, xp: ModuleType) -> Array:
        return sum(w * k._density(omega, xp) for w, k in zip(self.weights, self.kernels, strict=True))

    def _transport(self, u: np.ndarray) -> np.ndarray:
        chosen = np.searchsorted(np.cumsum(self.weights)[:-1], u[..., 0], side="right")
        options = [k._drawn(u[..., 1 : 1 + k.draws]) for k in self.kernels]
        return np.select([(chosen == j)[..., None] for j in range(len(options))], options)

    def _isotropy(self) -> np.ndarray | None:
        return _common_isotropy(self.kernels)

    def __repr__(self) -> str:
        return f"mixture({list(self.weights)!r}, [{', '.join(map(repr, self.kernels))}])"


@dataclass(frozen=True, repr=False)
class _Wrapper(Kernel):
    """A kernel whose frequencies are those of another, mapped by a linear map."""

    kernel: Kernel

    @property
    def ndim(self) -> int:  # type: ignore[override]
        """The number of axes of the kernel inside."""
        return self.kernel.ndim

    @property
    def draws(self) -> int:
        """Those of the kernel inside."""
        return self.kernel.draws

    @property
    def signed_columns(self) -> tuple[bool, ...]:
        """Those of the kernel inside."""
        return self.kernel.signed_columns

    def _transport(self, u: np.ndarray) -> np.ndarray:
        return self._mapped(self.kernel._drawn(u))

    def _atoms(self) -> Atoms | None:
        atoms = self.kernel._atoms()
        return atoms and (self._mapped(atoms[0]), atoms[1])

    def _mapped(self, omega: np.ndarray) -> np.ndarray:
        raise TypeError(f"{type(self).__name__} defines no map")


@dataclass(frozen=True, repr=False)
class Rescaled(_Wrapper):
    """Phi(delta / scale); omega / scale."""

    name: ClassVar[str] = "rescaled"
    scale: float | tuple[float, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "scale", per_axis("scale", self.scale, self.ndim))

    def _phi(self, delta: Array, xp: ModuleType) -> Array:
        return self.kernel._phi(delta / along_axes(self.scale, delta, xp), xp)

    def _density(self, omega: Array, xp: ModuleType) -> Array:
        return volume(self.scale, self.ndim) * self.kernel._density(omega * along_axes(self.scale, omega, xp), xp)

    def _mapped(self, omega: np.ndarray) -> np.ndarray:
        return omega / np.asarray(self.scale)

    def _isotropy(self) -> np.ndarray | None:
        inside = self.kernel._isotropy()
        return None if inside is None else inside / np.broadcast_to(self.scale, self.ndim)[:, None]

    def _law(self) -> Law | None:
        law = self.kernel._stated_law()
        return law and law.scaled(self.scale)

    def __repr__(self) -> str:
        return f"({self.kernel!r}).rescale({self.scale!r})"


@dataclass(frozen=True, repr=False)
class Warped(_Wrapper):
    """Phi(M delta); M^T omega."""

    name: ClassVar[str] = "warped"
    matrix: tuple[tuple[float, ...], ...]

    def __post_init__(self) -> None:
        matrix = square_matrix("matrix", self.matrix, self.ndim)
        object.__setattr__(self, "matrix", tuple(map(tuple, matrix.tolist())))

    def _phi(self, delta: Array, xp: ModuleType) -> Array:
        return self.kernel._phi(_times(delta, np.asarray(self.matrix).T, xp), xp)

    def _density(self, omega: Array, xp: ModuleType) -> Array:
        inverse = np.linalg.inv(np.asarray(self.matrix))
        return abs(float(np.linalg.det(inverse))) * self.kernel._density(_times(omega, inverse, xp), xp)

    def _mapped(self, omega: np.ndarray) -> np.ndarray:
        matrix = np.asarray(self.matrix)
        size = 2.0 ** min(
            max(0, math.frexp(np.max(np.abs(matrix)))[1]), 1023
        )  # sums of the largest frequencies stay finite
        return (omega @ (matrix / size)) * size

    def _isotropy(self) -> np.ndarray | None:
        inside = self.kernel._isotropy()
        return None if inside is None else np.asarray(self.matrix).T @ inside

    def __repr__(self) -> str:
        return f"({self.kernel!r}).warp({[list(row) for row in self.matrix]!r})"


@dataclass(frozen=True, repr=False)
class Axes(Kernel):
    """Phi = product over groups of axes; omega = the groups' frequencies side by side."""

    name: ClassVar[str] = "axes"
    kernels: tuple[Kernel, ...]

    def __post_init__(self) -> None:
        _check_kernels(self.kernels)

    @property
    def ndim(self) -> int:  # type: ignore[override]
        """All the kernels' axes."""
        return sum(k.ndim for k in self.kernels)

    @property
    def draws(self) -> int:
        """The kernels' draws, side by side."""
        return sum(k.draws for k in self.kernels)

    @property
    def signed_columns(self) -> tuple[bool, ...]:
        """The kernels' columns, side by side."""
        return sum((k.signed_columns for k in self.kernels), start=())

    def _phi(self, delta: Array, xp: ModuleType) -> Array:
        return math.prod((k._phi(part, xp) for k, part in self._groups(delta)), start=1.0)

    def _density(self, omega: Array, xp: ModuleType) -> Array:
        return math.prod((k._density(part, xp) for k, part in self._groups(omega)), start=1.0)

    def _transport(self, u: np.ndarray) -> np.ndarray:
        return np.concatenate([k._drawn(part) for k, part in _columns(self.kernels, u)], axis=-1)

    def _groups(self, vectors: Array) -> Iterable[tuple[Kernel, Array]]:
        start = 0
        for k in self.kernels:
            yield k, vectors[..., start : start + k.ndim]
            start += k.ndim

    def __repr__(self) -> str:
        return f"axes({', '.join(map(repr, self.kernels))})"


def _common_isotropy(kernels: Iterable[Kernel]) -> np.ndarray | None:
    """Map of kernels whose ellipsoids are similar: w is then spherically symmetric for their sums and mixtures too."""
    kernels = list(kernels)
    found = [k._isotropy() for k in kernels if not k.is_one] or [np.eye(kernels[0].ndim)]  # those at 0 have any shape
    maps = [m for m in found if m is not None]
    if len(maps) < len(found):
        return None
    with np.errstate(all="ignore"):
        inverse = np.linalg.inv(maps[0])
        for other in maps[1:]:
            seen = inverse @ other
            shape = seen @ seen.T  # a multiple of the identity, if the ellipsoids are similar: at any anisotropy
            size = np.trace(shape) / len(shape)
            if not np.all(np.abs(shape - size * np.eye(len(shape))) <= 1e-12 * size):
                return None
    return maps[0]


def _columns(kernels: Iterable[Kernel], u: np.ndarray) -> Iterable[tuple[Kernel, np.ndarray]]:
    start = 0
    for k in kernels:
        yield k, u[..., start : start + k.draws]
        start += k.draws


def _times(vectors: Array, matrix: np.ndarray, xp: ModuleType) -> Array:
    """``vectors @ matrix`` without a copy of the matrix to the device."""
    columns = [sum(vectors[..., i] * entry for i, entry in enumerate(column)) for column in matrix.T.tolist()]
    return xp.stack(columns, axis=-1)
