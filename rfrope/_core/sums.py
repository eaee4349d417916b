"""The one sum of the library: ``sum_i A_i cos u_i + B_i sin u_i`` over the blocks, its slopes and its squares.

Whatever is summed over the blocks is summed here: exact phases, in bounded memory (`sum_blocks`, `derivatives`,
`one_minus_cos_moments`, `mean_cos`), at all sums of two lags (`sum_on_grid`), or from cos and sin that
each block needs too (`CosSin`).
Averages over draws keep sums of powers, merged in any number of parts (`MeanSums`, `PowerSums`).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import NamedTuple, TypeAlias

import numpy as np

from rfrope._core import array, parallel
from rfrope._core.angles import Angles, rows
from rfrope._core.arguments import broadcast
from rfrope._core.array import Array
from rfrope._core.blocks import TurnOptions, shared_coefficients, sum_to
from rfrope._core.dispatch import CPU, CUDA, TORCH_ROTATION, dispatched
from rfrope._core.turns import cos_sin, cos_sin_for

BUDGET = 2**20  # phases that are held at once, unless those of one block, or at one lag, are more

QUANTITIES = ("phi", "phi2", "sin")  # Phi, its second harmonic, and the sine that must vanish

Pair: TypeAlias = tuple[Array | None, Array | None]  # coefficients (..., D) of the cosines and of the sines


class CosSin(NamedTuple):
    """Cos and sin of the phases of some blocks, ``(..., D)``, in the namespace `xp`."""

    cos: Array
    sin: Array
    xp: ModuleType

    @classmethod
    def from_angles(cls, angles: Angles) -> CosSin:
        """Exact ones."""
        return cls(*cos_sin(angles), angles.xp)

    @classmethod
    def from_phases(cls, phases: Array, xp: ModuleType) -> CosSin:
        """Those of phases as they are."""
        return cls(xp.cos(phases), xp.sin(phases), xp)

    def summed(self, cosine: Array | None, sine: Array | None) -> tuple[Array, Array]:
        """Sum the cosines, and the sines; coefficients as in `sum_blocks`."""
        return weighted(cosine, self.cos, self.xp), 0.0 if sine is None else weighted(sine, self.sin, self.xp)

    def total(self, cosine: Array | None, sine: Array | None) -> Array:
        """Sum both."""
        cosines, sines = self.summed(cosine, sine)
        return cosines + sines

    def mean_cos(self) -> Array:
        """Mean of the cosines over the blocks."""
        return self.xp.mean(self.cos, axis=-1)

    def mean_square(self, of_cos: Array, of_both: Array, of_sin: Array) -> Array:
        """Mean of ``total(A, B) ** 2`` over random A and B, at lags ``(L,)``: ``(..., L)``.

        Their second moments ``E A_i A_j``, ``E A_i B_j`` and ``E B_i B_j`` are ``(..., D, D)``.
        """
        xp = self.xp
        cosines = xp.matmul(self.cos, of_cos) + 2.0 * xp.matmul(self.sin, xp.matrix_transpose(of_both))
        return xp.sum(self.cos * cosines, axis=-1) + xp.sum(self.sin * xp.matmul(self.sin, of_sin), axis=-1)


# -- exact phases, in bounded memory ----------------------------------------------------------------------------------


def sum_blocks(angles: Angles, cosine: Array | None = None, sine: Array | None = None) -> tuple[Array, Array]:
    """Sum ``cosine_i cos u_i`` and ``sine_i sin u_i`` over the blocks, from exact phases.

    Parameters
    ----------
    angles : Angles
        Phases ``(*S, D)``.
    cosine, sine : arrays (..., D), or None
        They broadcast against the phases. Without `cosine` its coefficients are 1; without `sine` there are no sines.

    Returns
    -------
    cosines, sines : arrays
        What the coefficients and the phases broadcast to, without the axis of the blocks; the second is 0.0 without
        sines.
    """
    if cosine is None and sine is None and angles.shift is None:
        return mean_cos(angles) * float(angles.blocks), 0.0
    return _sum_pairs(angles, [(cosine, sine)])[0]


def derivatives(angles: Angles, cosine: Array, sine: Array, orders: tuple[int, ...] = (0, 1, 2)) -> tuple[Array, ...]:
    """Sum ``A_i cos u_i + B_i sin u_i`` over the blocks, and its derivatives by the lag, from the same waves.

    Parameters
    ----------
    angles : Angles
        Phases ``(*S, D)`` of one set of frequencies on one axis.
    cosine, sine : arrays (..., D)
        They broadcast against the phases.
    orders : tuple of int
        How often each of the results is differentiated.

    Returns
    -------
    tuple of arrays
        One for each of the orders: what the coefficients and the phases broadcast to, without the axis of the blocks.
    """
    omega = angles.frequencies[:, 0]
    return tuple(one + other for one, other in _sum_pairs(angles, [_sloped(cosine, sine, omega, n) for n in orders]))


def one_minus_cos_moments(angles: Angles, powers: int = 1) -> tuple[Array, ...]:
    """Sum ``1 - cos u`` over the blocks, and its powers, with all digits near lag 0; for angles without a shift."""

    def each(waves: CosSin, _: slice) -> tuple[Array, ...]:
        xp, fall = waves.xp, 2.0 * waves.sin**2
        del waves  # as much memory again
        return tuple(xp.sum(fall if n == 1 else fall**n, axis=-1) for n in range(1, powers + 1))

    half = angles._replace(frequencies=0.5 * angles.frequencies)
    return _sum_parts(half, each, powers, math.prod(angles.shape[:-1]))


@dispatched(CPU.sums, CUDA.sums)
def mean_cos(angles: Angles) -> Array:
    """Mean of ``cos u`` over the blocks, at least one, for angles without a shift."""

    def each(waves: CosSin, _: slice) -> tuple[Array, ...]:
        return (waves.xp.sum(waves.cos, axis=-1),)

    return _sum_parts(angles, each, 1, math.prod(angles.shape[:-1]))[0] / angles.blocks


def waves_of_phases(phases: Array, quantity: str, xp: ModuleType) -> Array:
    """``cos u``, ``cos 2u`` or ``sin u`` of phases as they are, by the name of what is averaged (`QUANTITIES`)."""
    if quantity == "sin":
        return xp.sin(phases)
    return xp.cos(phases if quantity == "phi" else 2.0 * phases)


def _sum_pairs(angles: Angles, pairs: list[Pair]) -> list[tuple[Array, Array]]:
    """Sums of several pairs of coefficients of one shape, from the same waves.

    Lags are cut before blocks, along the last of their axes: rows of all blocks are turned fastest.
    """
    held = _held(angles.shape[:-1], *pairs[0])
    if angles.tokens < 2 or held * angles.blocks <= BUDGET:
        return _sum_pairs_at_lags(angles, pairs, held)
    found = []
    for span in parts(angles.tokens, held * angles.blocks // angles.tokens):
        at, cut = angles.select_positions(span), [(rows(cosine, span), rows(sine, span)) for cosine, sine in pairs]
        found.append(_sum_pairs_at_lags(at, cut, _held(at.shape[:-1], *cut[0])))

    def joined(parts: tuple[Array, ...]) -> Array:
        return 0.0 if isinstance(parts[0], float) else angles.xp.concat(parts, axis=-1)

    return [tuple(map(joined, zip(*pair, strict=True))) for pair in zip(*found, strict=True)]


def _sum_pairs_at_lags(angles: Angles, pairs: list[Pair], held: int) -> list[tuple[Array, Array]]:
    """Sum over the blocks, some at a time."""

    def each(waves: CosSin, span: slice) -> tuple[Array, ...]:
        found: tuple[Array, ...] = ()
        for pair in pairs:
            found += waves.summed(*[None if one is None else one[..., span] for one in pair])
        return found

    found = _sum_parts(angles, each, 2 * len(pairs), held)
    return list(zip(found[::2], found[1::2], strict=True))


def _sum_parts(
    angles: Angles, each: Callable[[CosSin, slice], tuple[Array, ...]], number: int, held: int
) -> tuple[Array, ...]:
    """Add up, over groups of blocks, the sums that `each` makes."""
    totals: tuple[Array, ...] = ()
    for span in parts(angles.blocks, held):
        whole = span.stop - span.start == angles.blocks
        found = each(CosSin.from_angles(angles if whole else angles.select_blocks(span)), span)
        totals = tuple(map(operator.add, totals, found)) if totals else found
    return totals or (0.0,) * number


# -- at all sums of two lags ------------------------------------------------------------------------------------------


def sum_on_grid(far: CosSin, near: CosSin, cosine: Array | float, sine: Array | None = None) -> Array:
    """Sum over the blocks at ``a + b`` for every lag a of waves ``(R, D)`` and every b of others: ``(R, C)``.

    CosSin at the sum of two numbers are products of their tables. Coefficients are ``(D,)``, or one number.
    """
    even, odd = cosine * far.cos, -(cosine * far.sin)
    if sine is not None:
        even, odd = even + sine * far.sin, odd + sine * far.cos
    return near.total(even[:, None, :], odd[:, None, :])


# -- what sums are made of --------------------------------------------------------------------------------------------


def parts(count: int, width: int) -> Iterator[slice]:
    """Split items of `width` numbers each into slices within the budget."""
    length = max(1, BUDGET // max(1, width))
    for start in range(0, count, length):
        yield slice(start, min(start + length, count))


def map_lags(
    call: Callable[[Array, Array, Array], Array], lags: Array, a: Array, b: Array, width: int, xp: ModuleType
) -> Array:
    """Call a function of lags ``(*S, k)`` and coefficients ``(..., D)`` that gives ``(..., n)``, part by part.

    It holds `width` numbers for each lag; parts stay within the budget.
    """
    shape = lags.shape[:-1]
    longest = max(shape, default=1)
    each = width * math.prod(shape) // max(1, longest)
    if longest == 1 or each * longest <= BUDGET:
        return call(lags, a, b)
    axis = shape.index(longest) - lags.ndim  # the same of lags, a, b and the result

    def cut(x: Array, span: slice) -> Array:
        alike = x.ndim < -axis or x.shape[axis] == 1
        return x if alike else x[(..., span, *(slice(None),) * (-1 - axis))]

    found = []
    for span in parts(longest, each):
        parallel.raise_if_abandoned()
        found.append(map_lags(call, cut(lags, span), cut(a, span), cut(b, span), width, xp))
    return xp.concat(found, axis=axis)


def _sloped(cosine: Array, sine: Array, omega: Array, order: int) -> Pair:
    """Coefficients of a derivative by the lag."""
    for _ in range(order):
        cosine, sine = omega * sine, -(omega * cosine)
    return cosine, sine


def weighted(coefficients: Array | None, waves: Array, xp: ModuleType) -> Array:
    """Sum ``coefficients * waves`` over the last axis; by a matrix product where one row meets several waves."""
    if coefficients is None:
        return xp.sum(waves, axis=-1)
    lags, own = waves.ndim - 1, coefficients.shape[:-1]
    if not lags:
        return xp.matmul(coefficients, waves)
    if own == (1,) * min(len(own), lags):
        return xp.matmul(waves, xp.reshape(coefficients, (coefficients.shape[-1],)) if own else coefficients)
    if _is_outer(coefficients.shape, lags):
        rows = xp.reshape(coefficients, (*coefficients.shape[: -1 - lags], 1, coefficients.shape[-1]))
        flat = xp.reshape(waves, (math.prod(waves.shape[:-1]), waves.shape[-1]))
        found = xp.matmul(rows, xp.matrix_transpose(flat))
        return xp.reshape(found, (*found.shape[:-2], *waves.shape[:-1]))
    if coefficients.shape[-2] == 1:
        return xp.matmul(waves, xp.matrix_transpose(coefficients))[..., 0]
    return xp.sum(coefficients * waves, axis=-1)


@dispatched(CPU.rotation, TORCH_ROTATION)
def turn_gradient(
    x: Array, y: Array, angles: Angles | Array, turn: TurnOptions, shape: tuple[int, ...], radial: bool, xp: ModuleType
) -> Array:
    """Gradient of phases, or of scales times these, summed over all features that share one.

    Parameters
    ----------
    x, y : arrays
        Features that turn, and the gradient of what they were turned into.
    angles : Angles, or array
        Of the turn; or the phases.
    turn : TurnOptions
    shape : tuple of int
        Shape of the result, which broadcasts to that of the phases.
    radial : bool
        Whether it is of scales.

    Returns
    -------
    array of that shape, in the widest float, or as narrow as `blocks.shared_coefficients`
    """
    has_angles, scale = isinstance(angles, Angles), turn.scale
    phases = broadcast(angles.shape, () if isinstance(scale, float) else scale.shape)
    dots, crosses = shared_coefficients(x, y, phases, turn.pairing, turn.out_pairing, xp, turn.softplus)
    cos, sin = cos_sin_for(x, angles) if has_angles else (xp.cos(angles), xp.sin(angles))
    sin = -sin if turn.inverse else sin
    found = cos * dots + sin * crosses if radial else cos * crosses - sin * dots
    return sum_to(-found / scale if turn.inverse else found * scale, shape, xp)


def root(value: Array, xp: ModuleType) -> Array:
    """Square root of what is not negative but for rounding, with the gradient 0 at 0 instead of none."""
    if isinstance(value, np.ndarray):
        return np.sqrt(np.maximum(value, 0.0))
    none = value <= 0.0
    return xp.where(none, xp.zeros_like(value), xp.sqrt(xp.where(none, xp.ones_like(value), value)))


def _is_outer(coefficients: tuple[int, ...], lags: int) -> bool:
    """Say whether coefficients have axes of their own alone: 1 along each of the `lags` axes of the waves."""
    return len(coefficients) > lags and all(length == 1 for length in coefficients[-1 - lags : -1])


def _held(shape: tuple[int, ...], *coefficients: Array | None) -> int:
    """Numbers of one block that a sum holds: phases, or products where coefficients meet them one by one."""
    shapes = {"the phases": shape}
    for name, value in zip(("cosines", "sines"), coefficients, strict=True):
        rows = () if value is None or _is_outer(value.shape, len(shape)) else value.shape[:-1]
        if rows and rows[-1] != 1:
            shapes[name] = rows
    return math.prod(array.broadcast_shapes(shapes) if len(shapes) > 1 else shape)


# -- sums of powers along draws ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MeanSums:
    """Count, mean and central sum of squares along the draws."""

    n: int
    mean: Array
    m2: Array

    def merge(self, other: MeanSums) -> MeanSums:
        """Combine those of two disjoint sets of draws (Chan et al. 1983)."""
        a, b = float(self.n), float(other.n)
        step = other.mean - self.mean
        m2 = self.m2 + other.m2 + step**2 * (a * b / (a + b))
        return MeanSums(self.n + other.n, self.mean + step * (b / (a + b)), m2)


@dataclass(frozen=True)
class PowerSums(MeanSums):
    """Count, mean and central power sums of orders 2 to 4 along the trials."""

    m3: Array
    m4: Array

    @classmethod
    def from_values(cls, values: Array, xp: ModuleType) -> PowerSums:
        """Take them from values whose last axis runs over the trials."""
        mean = xp.mean(values, axis=-1)
        centred = values - mean[..., None]
        square = centred * centred
        return cls(
            values.shape[-1],
            mean,
            xp.sum(square, axis=-1),
            xp.sum(square * centred, axis=-1),
            xp.sum(square * square, axis=-1),
        )

    def merge(self, other: PowerSums) -> PowerSums:  # type: ignore[override]
        """Combine those of two disjoint sets of trials (Pébay 2008 for orders 3 and 4)."""
        a, b = float(self.n), float(other.n)
        n = a + b
        step = other.mean - self.mean
        m4 = self.m4 + other.m4 + step**4 * (a * b * (a * a - a * b + b * b) / n**3)
        m4 = m4 + step**2 * (6.0 / n**2) * (a * a * other.m2 + b * b * self.m2)
        m4 = m4 + step * (4.0 / n) * (a * other.m3 - b * self.m3)
        m3 = self.m3 + other.m3 + step**3 * (a * b * (a - b) / n**2) + step * (3.0 / n) * (a * other.m2 - b * self.m2)
        first = super().merge(other)
        return PowerSums(first.n, first.mean, first.m2, m3, m4)
