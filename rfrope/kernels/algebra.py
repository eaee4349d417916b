"""The algebra of kernels, which closes exactly: what each operation does to Phi, and to the frequencies."""

from __future__ import annotations

import itertools
import math
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, ClassVar

import numpy as np

from rfrope._core.arguments import show
from rfrope._core.array import Array
from rfrope.kernels import falls
from rfrope.kernels.base import Atoms, Kernel
from rfrope.kernels.falls import Falls
from rfrope.kernels.law import Law
from rfrope.kernels.parameters import along_axes, per_axis, shares, square_matrix, volume

_MOST_ATOMS = 2**12  # atoms of a factor, in the density of a product


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
    try:
        members = tuple(kernels)
    except Exception:  # whatever an array of another library raises; what it is instead is said there
        members = kernels  # type: ignore[assignment]
    return Mixture(weights, members)  # type: ignore[arg-type]


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
        raise TypeError(f"kernels is {show(kernels)}; expected one or more kernels")


def check_same_axes(kernels: tuple[Kernel, ...]) -> None:
    """Say that kernels do not have one number of axes, or are not kernels at all."""
    _check_kernels(kernels)
    if len({k.ndim for k in kernels}) > 1:
        raise ValueError(f"kernels have {[k.ndim for k in kernels]} axes; expected one ndim for all")


@dataclass(frozen=True, repr=False)
class Product(Kernel):
    """Phi = product of the factors' Phi; omega = sum of independent frequencies."""

    name: ClassVar[str] = "product"
    factors: tuple[Kernel, ...]

    def __post_init__(self) -> None:
        check_same_axes(self.factors)
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
        """The factors' columns, side by side; none where a factor has none."""
        return _all_signed(self.factors)

    def _phi(self, delta: Array, xp: ModuleType) -> Array:
        return math.prod((f._phi(delta, xp) for f in self.factors), start=1.0)

    def _falls(self, delta: Array, xp: ModuleType) -> Falls:
        return falls.independent(f.falls(delta, xp) for f in self.factors)

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
        return np.sum([f.drawn(part) for f, part in _columns(self.factors, u)], axis=0)

    def isotropy(self) -> np.ndarray | None:
        """As `Kernel.isotropy`."""
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
        check_same_axes(self.kernels)
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

    def _falls(self, delta: Array, xp: ModuleType) -> Falls:
        return falls.mixed(self.weights, [k.falls(delta, xp) for k in self.kernels])

    def _density(self, omega: Array, xp: ModuleType) -> Array:
        return sum(w * k._density(omega, xp) for w, k in zip(self.weights, self.kernels, strict=True))

    def _transport(self, u: np.ndarray) -> np.ndarray:
        chosen = np.searchsorted(np.cumsum(self.weights)[:-1], u[..., 0], side="right")
        options = [k.drawn(u[..., 1 : 1 + k.draws]) for k in self.kernels]
        return np.select([(chosen == j)[..., None] for j in range(len(options))], options)

    def isotropy(self) -> np.ndarray | None:
        """As `Kernel.isotropy`."""
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
        return self._mapped(self.kernel.drawn(u))

    def _atoms(self) -> Atoms | None:
        atoms = self.kernel._atoms()
        return atoms and (self._mapped(atoms[0]), atoms[1])

    @abstractmethod
    def _mapped(self, omega: np.ndarray) -> np.ndarray:
        """Frequencies under the map."""


@dataclass(frozen=True, repr=False)
class Rescaled(_Wrapper):
    """Phi(delta / scale); omega / scale."""

    name: ClassVar[str] = "rescaled"
    scale: float | tuple[float, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "scale", per_axis("scale", self.scale, self.ndim))

    def _phi(self, delta: Array, xp: ModuleType) -> Array:
        return self.kernel._phi(delta / along_axes(self.scale, delta, xp), xp)

    def _falls(self, delta: Array, xp: ModuleType) -> Falls:
        return self.kernel.falls(delta / along_axes(self.scale, delta, xp), xp)

    def _density(self, omega: Array, xp: ModuleType) -> Array:
        return volume(self.scale, self.ndim) * self.kernel._density(omega * along_axes(self.scale, omega, xp), xp)

    def _mapped(self, omega: np.ndarray) -> np.ndarray:
        return omega / np.asarray(self.scale)

    def isotropy(self) -> np.ndarray | None:
        """As `Kernel.isotropy`."""
        inside = self.kernel.isotropy()
        return None if inside is None else inside / np.broadcast_to(self.scale, self.ndim)[:, None]

    def _law(self) -> Law | None:
        law = self.kernel.stated_law()
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

    def _falls(self, delta: Array, xp: ModuleType) -> Falls:
        return self.kernel.falls(_times(delta, np.asarray(self.matrix).T, xp), xp)

    def _density(self, omega: Array, xp: ModuleType) -> Array:
        inverse = np.linalg.inv(np.asarray(self.matrix))
        return abs(float(np.linalg.det(inverse))) * self.kernel._density(_times(omega, inverse, xp), xp)

    def _mapped(self, omega: np.ndarray) -> np.ndarray:
        matrix = np.asarray(self.matrix)
        size = 2.0 ** min(
            max(0, math.frexp(np.max(np.abs(matrix)))[1]), 1023
        )  # sums of the largest frequencies stay finite
        return (omega @ (matrix / size)) * size

    def isotropy(self) -> np.ndarray | None:
        """As `Kernel.isotropy`."""
        inside = self.kernel.isotropy()
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
        """The kernels' columns, side by side; none where a kernel has none."""
        return _all_signed(self.kernels)

    def _phi(self, delta: Array, xp: ModuleType) -> Array:
        return math.prod((k._phi(part, xp) for k, part in self._groups(delta)), start=1.0)

    def _falls(self, delta: Array, xp: ModuleType) -> Falls:
        return falls.independent(k.falls(part, xp) for k, part in self._groups(delta))

    def _density(self, omega: Array, xp: ModuleType) -> Array:
        return math.prod((k._density(part, xp) for k, part in self._groups(omega)), start=1.0)

    def _transport(self, u: np.ndarray) -> np.ndarray:
        return np.concatenate([k.drawn(part) for k, part in _columns(self.kernels, u)], axis=-1)

    def _groups(self, vectors: Array) -> Iterable[tuple[Kernel, Array]]:
        start = 0
        for k in self.kernels:
            yield k, vectors[..., start : start + k.ndim]
            start += k.ndim

    def __repr__(self) -> str:
        return f"axes({', '.join(map(repr, self.kernels))})"


def _all_signed(kernels: Iterable[Kernel]) -> tuple[bool, ...]:
    """Columns of kernels side by side, if those of each turn its frequency: else a part of the sum would stay."""
    columns = [k.signed_columns for k in kernels]
    known = all(map(any, columns))
    return tuple(signed and known for each in columns for signed in each)


def _common_isotropy(kernels: Sequence[Kernel]) -> np.ndarray | None:
    """Map of kernels whose ellipsoids are similar: w is then spherically symmetric for their sums and mixtures too."""
    found = [k.isotropy() for k in kernels if not k.is_one] or [np.eye(kernels[0].ndim)]  # those at 0 have any shape
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
