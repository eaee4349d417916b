"""The one sum of the library: ``sum_i A_i cos u_i + B_i sin u_i`` over the blocks, in bounded memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from types import ModuleType

from rfrope._core import array, threads
from rfrope._core.angles import Angles, rows
from rfrope._core.array import Array
from rfrope._core.turns import cos_sin
from rfrope._core.twins import twinned

BUDGET = 2**20  # phases that are held at once, unless those of one block, or at one lag, are more


def over_blocks(angles: Angles, cosine: Array | None = None, sine: Array | None = None) -> tuple[Array, Array]:
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
    found = [_summed(*part) for part in _at_lags(angles, cosine, sine)]
    if len(found) == 1:
        return found[0]
    cosines, sines = ([pair[i] for pair in found] for i in range(2))
    return angles.xp.concat(cosines, axis=-1), 0.0 if sine is None else angles.xp.concat(sines, axis=-1)


def _at_lags(
    angles: Angles, cosine: Array | None, sine: Array | None
) -> Iterator[tuple[Angles, Array | None, Array | None]]:
    """Cut along the last axis of the lags: rows of all blocks are turned fastest, and so blocks are cut only after."""
    lags = angles.positions.shape[-2] if angles.positions.ndim > 1 else 1
    width = _held(angles.shape[:-1], cosine, sine) * angles.blocks
    if lags < 2 or width <= BUDGET:
        yield angles, cosine, sine
        return
    for span in parts(lags, width // lags):
        yield angles.at(span), rows(cosine, span), rows(sine, span)


def _summed(angles: Angles, cosine: Array | None, sine: Array | None) -> tuple[Array, Array]:
    """Sum over the blocks, some at a time."""
    cosines: Array = 0.0
    sines: Array = 0.0
    for span in parts(angles.blocks, _held(angles.shape[:-1], cosine, sine)):
        cos, sin = cos_sin(angles.part(span))
        cosines = cosines + weighted(cosine if cosine is None else cosine[..., span], cos, angles.xp)
        if sine is not None:
            sines = sines + weighted(sine[..., span], sin, angles.xp)
    return cosines, sines


def parts(count: int, width: int) -> Iterator[slice]:
    """Cut so many things, each of which needs `width` numbers, into parts within the budget."""
    length = max(1, BUDGET // max(1, width))
    for start in range(0, count, length):
        yield slice(start, min(start + length, count))


def at_some_lags(
    call: Callable[[Array, Array, Array], Array], delta: Array, a: Array, b: Array, width: int, xp: ModuleType
) -> Array:
    """Call a function of lags ``(*S, k)`` and coefficients ``(..., D)`` that gives ``(..., n)``, part by part.

    It holds `width` numbers for each lag; parts stay within the budget.
    """
    lags = delta.shape[:-1]
    longest = max(lags, default=1)
    each = width * math.prod(lags) // max(1, longest)
    if longest == 1 or each * longest <= BUDGET:
        return call(delta, a, b)
    axis = lags.index(longest) - delta.ndim  # the same of delta, a, b and the result

    def cut(x: Array, span: slice) -> Array:
        alike = x.ndim < -axis or x.shape[axis] == 1
        return x if alike else x[(..., span, *(slice(None),) * (-1 - axis))]

    found = []
    for span in parts(longest, each):
        threads.checkpoint()
        found.append(at_some_lags(call, cut(delta, span), cut(a, span), cut(b, span), width, xp))
    return xp.concat(found, axis=axis)


def weighted(coefficients: Array | None, waves: Array, xp: ModuleType) -> Array:
    """Sum ``coefficients * waves`` over the last axis; by a matrix product where one row meets several waves."""
    if coefficients is None:
        return xp.sum(waves, axis=-1)
    lags = waves.ndim - 1
    if not lags or coefficients.ndim == 1:
        return xp.matmul(coefficients, waves) if not lags else xp.matmul(waves, coefficients)
    if _is_outer(coefficients.shape, lags):
        rows = xp.reshape(coefficients, (*coefficients.shape[: -1 - lags], 1, coefficients.shape[-1]))
        flat = xp.reshape(waves, (math.prod(waves.shape[:-1]), waves.shape[-1]))
        found = xp.matmul(rows, xp.matrix_transpose(flat))
        return xp.reshape(found, (*found.shape[:-2], *waves.shape[:-1]))
    if coefficients.shape[-2] == 1:
        return xp.matmul(waves, xp.matrix_transpose(coefficients))[..., 0]
    return xp.sum(coefficients * waves, axis=-1)


def combined(cosine: Array, sine: Array, cos: Array, sin: Array, xp: ModuleType) -> Array:
    """``sum_i cosine_i cos_i + sine_i sin_i`` over the last axis of ready waves."""
    return weighted(cosine, cos, xp) + weighted(sine, sin, xp)


@twinned(cpu="sums", cuda="sums")
def mean_cos(angles: Angles) -> Array:
    """Mean of ``cos u`` over the blocks, at least one, for angles without a shift."""
    total: Array = 0.0
    for span in parts(angles.blocks, math.prod(angles.shape[:-1])):
        total = total + angles.xp.sum(cos_sin(angles.part(span))[0], axis=-1)
    return total / angles.blocks


def root(value: Array, xp: ModuleType) -> Array:
    """Square root of what is not negative but for rounding, with the gradient 0 at 0 instead of none."""
    none = value <= 0.0
    return xp.where(none, xp.zeros_like(value), xp.sqrt(xp.where(none, xp.ones_like(value), value)))


def _is_outer(coefficients: tuple[int, ...], lags: int) -> bool:
    """Whether coefficients have axes of their own alone: 1 along each axis of the waves, of which there are so many."""
    return len(coefficients) > lags and all(length == 1 for length in coefficients[-1 - lags : -1])


def _held(shape: tuple[int, ...], *coefficients: Array | None) -> int:
    """Numbers of one block that a sum holds: phases, or products where coefficients meet them one by one."""
    shapes = {"the phases": shape}
    for name, value in zip(("cosines", "sines"), coefficients, strict=True):
        if value is not None and value.ndim > 1 and not _is_outer(value.shape, len(shape)) and value.shape[-2] != 1:
            shapes[name] = value.shape[:-1]
    return math.prod(array.broadcast_shapes(shapes))
