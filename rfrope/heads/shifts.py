"""Learned phase shifts: what they do to scores and to mean kernels.

`offset` is the lag, key minus query, of the peak: -1 is the previous token. A shift is added to the phases of the KEYS.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from rfrope import _array, _turns
from rfrope._array import Array
from rfrope.kernels import Kernel
from rfrope.rotation import (
    _check_width,
    _first_device,
    _phases_shape,
    _placed,
    block_coefficients,
    phases,
)
from rfrope.sampling import as_kernel

__all__ = [
    "ShiftedTerms",
    "aligned_shift",
    "phase_shift",
    "recentred_kernel",
    "shifted_mean_kernel",
    "shifted_scores",
    "shifted_terms",
]

_ELEMENTS = 2**20  # phases that are held at once, unless one block has more


@dataclass(frozen=True, eq=False)
class ShiftedTerms:
    """The score of q and k with shifts, block by block; see `shifted_terms`.

    Attributes
    ----------
    cosine : array, (..., D)
        ``C_i cos(u_i + shift_i)``.
    sine : array, (..., D)
        ``E_i sin(u_i + shift_i)``, the term that seed 000 drops.
    rest : array
        What features that are not turned add; it broadcasts against the others without their last axis.
    """

    cosine: Array
    sine: Array
    rest: Array


@_array.on_device_of_arrays
def phase_shift(frequencies: Array, offset: Array) -> Array:
    """Shifts that move the peak of every block to lag `offset`: ``-offset . omega``, to be added to the KEY's phases.

    Parameters
    ----------
    frequencies : array_like, radians per unit of position
        ``(D,)`` or ``(*H, D, k)``.
    offset : array_like, in units of position
        Lags, KEY minus QUERY, of the shapes that `positions` has in `rotate`: any shape ``P`` for frequencies ``(D,)``,
        ``(*P, k)`` otherwise. Negative and fractional ones too. One offset for each head is ``(H, 1, k)``.

    Returns
    -------
    array, radians, float64 where the library has it
        ``P + (D,)``, or what ``offset @ frequencies^T`` broadcasts to. With an offset ``(1, k)`` or ``(H, 1, k)`` for
        frequencies ``(H, D, k)`` that is ``(H, 1, D)``, which broadcasts against the phases of tokens, ``(H, L, D)``.

    Raises
    ------
    ValueError, TypeError
        As `phases`.

    Notes
    -----
    With keys turned by ``rotate(k, positions, frequencies, shift=phase_shift(frequencies, offset))`` the score is
    ``sum_i A_i cos((delta - offset) . omega_i) + B_i sin((delta - offset) . omega_i)``. Source: section 2 of the
    mathematics page; seed 000 writes ``phi_i = L . omega_i``, so its L is minus the offset. The product is rounded to
    float64, which moves a phase by ``1.1e-16 |offset . omega|``.

    Examples
    --------
    >>> import numpy as np, rfrope
    >>> omega = rfrope.geometric(4)
    >>> phase_shift(omega, -1)
    array([1.   , 0.1  , 0.01 , 0.001])
    >>> x, at = np.ones((5, 8)), np.arange(5)
    >>> rfrope.scores(x, x, at, at, omega, shift=phase_shift(omega, -2)).argmax(axis=-1)[2:]
    array([0, 1, 2])
    """
    xp = _array.namespace(frequencies=frequencies, offset=offset)
    _placed(offset, frequencies, None, xp, _first_device(frequencies, offset), "offset")  # so that errors say "offset"
    return 0.0 - phases(offset, frequencies)


@_array.on_device_of_arrays
def aligned_shift(frequencies: Array, offset: Array, cosine: Array, sine: Array | None = None) -> Array:
    """Shifts with which every block of given content peaks at lag `offset`, whatever the signs of its coefficients.

    `phase_shift` makes a block highest at the offset only if its ``C_i = q_i . k_i`` is positive; where it is negative
    the block is lowest there, and half a turn more puts that right.

    Parameters
    ----------
    frequencies, offset
        As in `phase_shift`.
    cosine, sine : array_like, (..., D)
        C and E of `rfrope.block_coefficients`. With `cosine` alone pi is added where it is negative. With both, the
        angle ``atan2(E_i, C_i)`` is added, which takes the second term into account.

    Returns
    -------
    array, radians, float64 where the library has it
        The shape to which the shifts and the coefficients broadcast.

    Raises
    ------
    ValueError, TypeError
        As `phases`, and for coefficients that do not broadcast against the shifts.

    Notes
    -----
    ``C cos x + E sin x = sqrt(C^2 + E^2) cos(x - atan2(E, C))``: with both coefficients the score at the offset is
    ``sum_i sqrt(C_i^2 + E_i^2)``, the highest that any shifts reach at any lag. With `cosine` alone it is
    ``sum_i |C_i|``, and blocks with E_i peak elsewhere. Source: section 2 of the mathematics page.

    Examples
    --------
    >>> import rfrope
    >>> C, E = rfrope.block_coefficients([1.0, 2.0, 1.0, 1.0], [-1.0, 1.0, 0.0, 2.0])
    >>> C, E
    (array([-1.,  4.]), array([-1., -3.]))
    >>> aligned_shift([1.0, 0.1], -1, C).round(4)
    array([4.1416, 0.1   ])
    >>> aligned_shift([1.0, 0.1], -1, C, E).round(4)
    array([-1.3562, -0.5435])
    """
    xp = _array.namespace(frequencies=frequencies, offset=offset, cosine=cosine, sine=sine)
    shift = phase_shift(frequencies, offset)
    cosine = per_block("cosine", cosine, shift, xp)
    if sine is not None:
        return shift + xp.atan2(per_block("sine", sine, shift, xp) + xp.zeros_like(cosine), cosine)
    return shift + xp.where(cosine < 0.0, xp.full_like(cosine, math.pi), xp.zeros_like(cosine))


@_array.on_device_of_arrays
def shifted_terms(
    q: Array, k: Array, frequencies: Array, delta: Array, shift: Array, *, pairing: str = "half"
) -> ShiftedTerms:
    """Both terms of the score with learned shifts, block by block: those of the cosines and those of the sines.

    Parameters
    ----------
    q, k, frequencies, delta, shift, pairing
        As in `shifted_scores`.

    Returns
    -------
    ShiftedTerms
        Arrays in float64 where the library has it. Both terms have the shape of the scores and an axis of the blocks.

    Raises
    ------
    ValueError, TypeError
        As `shifted_scores`.

    Notes
    -----
    All terms are held at once; `shifted_scores` needs less memory.

    Examples
    --------
    At a right angle there is no first term, the only one that seed 000 keeps:

    >>> terms = shifted_terms([1.0, 0.0], [0.0, 1.0], [0.5], [0, -1], [0.25])
    >>> terms.cosine.round(4).ravel(), terms.sine.round(4).ravel()
    (array([0., 0.]), array([-0.2474,  0.2474]))
    """
    c, e, rest, delta, frequencies, shift, xp = _prepare(q, k, frequencies, delta, shift, pairing)
    cos, sin = _turns.cos_sin(delta, frequencies, shift, xp)
    return ShiftedTerms(c * cos, e * sin, rest)


@_array.on_device_of_arrays
def shifted_scores(
    q: Array, k: Array, frequencies: Array, delta: Array, shift: Array, *, pairing: str = "half"
) -> Array:
    """Exact scores by lag with learned shifts, before softmax and without its scale.

    Parameters
    ----------
    q, k : array_like, (..., d)
        Content of query and key: before rotation by position, and before the learned rotations. d is even and at least
        2D; features beyond 2D count unrotated.
    frequencies : array_like, radians per unit of position
        ``(D,)`` or ``(*H, D, k)``, with at least one block.
    delta : array_like, in units of position
        Lags, KEY minus QUERY: any shape ``P`` for frequencies ``(D,)``, ``(*P, k)`` otherwise. Integers count exactly
        up to 2**53.
    shift : array_like, radians
        The key's learned angle minus the query's, one for each block; broadcasts against the phases, which are
        ``P + (D,)`` or what ``delta @ frequencies^T`` broadcasts to. What they broadcast to, without the axis of the
        blocks, broadcasts against the leading axes of q and k: for n pairs at m lags give q and k as ``(n, 1, d)``.
    pairing : {"half", "interleaved"}
        Which two features make a block.

    Returns
    -------
    array, float64 where the library has it
        The broadcast shape.

    Raises
    ------
    ValueError, TypeError
        For shapes that do not fit, no blocks, features that are not real floating, and NaN or infinite values.

    Notes
    -----
    ``S = sum_i C_i cos(u_i + shift_i) + E_i sin(u_i + shift_i)`` with `rfrope.block_coefficients` C and E and exact
    phases ``u_i = delta . omega_i``: section 2 of the mathematics page. Seed 000 has the first term alone, which is
    right only where the two contents are parallel in every block.

    Examples
    --------
    >>> import numpy as np, rfrope
    >>> omega, q, k = rfrope.geometric(2), [1.0, 2.0, 0.5, -1.0], [0.3, 1.0, 2.0, 0.1]
    >>> shifted_scores(q, k, omega, [0, -1], [0.4, -0.2]).round(4)
    array([2.5775, 4.2259])

    The same by turning both sides:

    >>> key = rfrope.rotate(np.array(k), [0, -1], omega, shift=[0.4, -0.2])
    >>> (key @ q).round(4)
    array([2.5775, 4.2259])
    """
    c, e, rest, delta, frequencies, shift, xp = _prepare(q, k, frequencies, delta, shift, pairing)
    return _summed(delta, frequencies, shift, c, e, xp) + rest


@_array.on_device_of_arrays
def shifted_mean_kernel(frequencies: Array, delta: Array, shift: Array) -> Array:
    """Mean kernel of given frequencies with shifts: the mean over the blocks of ``cos(delta . omega + shift)``.

    Parameters
    ----------
    frequencies : array_like, radians per unit of position
        ``(D,)`` or ``(*H, D, k)``, with at least one block.
    delta : array_like, in units of position
        Lags: any shape ``P`` for frequencies ``(D,)``; ``(*P, k)`` otherwise. Integers count exactly up to 2**53.
    shift : array_like, radians
        One for each block; broadcasts against the phases.

    Returns
    -------
    array, float64 where the library has it
        The shape of the phases, without the axis of the blocks.

    Raises
    ------
    ValueError, TypeError
        As `rotation_table`, and for frequencies without blocks.

    Notes
    -----
    With ``shift = phase_shift(frequencies, offset)`` it is the mean kernel recentred: 1 at lag `offset`, and as high
    nowhere else unless frequencies are on a lattice. Source: section 2 of the mathematics page.

    Examples
    --------
    >>> import rfrope
    >>> omega = rfrope.geometric(64)
    >>> shifted_mean_kernel(omega, [0, -1, -2, -3], phase_shift(omega, -2)).round(4)
    array([0.8966, 0.9702, 1.    , 0.9702])
    """
    xp = _array.namespace(frequencies=frequencies, delta=delta, shift=shift)
    device = _first_device(delta, frequencies, shift)
    shift = _array.numbers(shift, xp, name="shift", device=device)
    delta, frequencies, shift = _placed(delta, frequencies, shift, xp, device, "delta")
    return _summed(delta, frequencies, shift, None, None, xp) / blocks_of(frequencies)


@_array.on_device_of_arrays
def recentred_kernel(kernel: Kernel | str, delta: Array, offset: Array) -> Array:
    """Kernel that shifts by ``phase_shift(frequencies, offset)`` make, on average over random frequencies.

    Parameters
    ----------
    kernel : Kernel or str
        Law of the frequencies; a string is read by `rfrope.kernels.parse`.
    delta, offset : array_like, in units of position
        Lags, and the lag of the peak: any shape for a kernel with one axis, ``(..., ndim)`` with more. They broadcast.

    Returns
    -------
    array
        ``Phi(delta - offset)``, float64 where the library has it.

    Raises
    ------
    ValueError, TypeError
        For a kernel that cannot be read, and lags that do not fit it or each other.

    Notes
    -----
    ``E cos(delta . omega - offset . omega) = Phi(delta - offset)``, and the sines vanish for a symmetric law, so the
    expected score of q and k is ``(q . k) Phi(delta - offset)``. Source: Theorem 2 and the last part of seed 000.

    Examples
    --------
    >>> recentred_kernel("gaussian(scale=2)", [0, -2, -4, -6], -4).round(4)
    array([0.1353, 0.6065, 1.    , 0.6065])
    """
    kernel = as_kernel(kernel)
    xp = _array.namespace(delta=delta, offset=offset)
    device = _first_device(delta, offset)
    delta, offset = (
        _array.as_widest(_array.numbers(value, xp, name=name, device=device), xp)
        for value, name in ((delta, "delta"), (offset, "offset"))
    )
    _array.broadcast_shapes({"delta": delta.shape, "offset": offset.shape})
    return kernel.phi(delta - offset)


# -- preparation -------------------------------------------------------------------------------------------------------


def _summed(delta: Array, frequencies: Array, shift: Array, c: Array | None, e: Array | None, xp: ModuleType) -> Array:
    """Sum over the blocks of ``c cos(u + shift) + e sin(u + shift)``, of the cosines alone if c and e are None."""
    blocks = blocks_of(frequencies)
    lead = _phases_shape(delta, frequencies, shift)[:-1]
    if c is not None:
        lead = _array.broadcast_shapes({"q and k": c.shape[:-1], "delta": lead})
    shift = xp.broadcast_to(shift, (*shift.shape[:-1], blocks))
    length = max(1, _ELEMENTS // max(1, math.prod(lead)))
    total: Array = 0.0
    for start in range(0, blocks, length):
        span = slice(start, min(start + length, blocks))
        part = frequencies[span] if frequencies.ndim == 1 else frequencies[..., span, :]
        cos, sin = _turns.cos_sin(delta, part, shift[..., span], xp)
        total = total + xp.sum(cos if c is None or e is None else c[..., span] * cos + e[..., span] * sin, axis=-1)
    return total


def blocks_of(frequencies: Array) -> int:
    blocks: int = frequencies.shape[-1 if frequencies.ndim == 1 else -2]
    if blocks == 0:
        raise ValueError(f"frequencies has shape {tuple(frequencies.shape)}; expected at least one block")
    return blocks


def per_block(name: str, value: Any, like: Array, xp: ModuleType) -> Array:
    """Return numbers, one for each block, in the dtype of an array ``(..., D)`` that they broadcast against."""
    value = _array.as_widest(_array.numbers(value, xp, name=name, device=_array.device(like)), xp)
    shape = _array.broadcast_shapes({name: value.shape, "the phases": like.shape})
    if shape[-1] != like.shape[-1]:
        raise ValueError(f"{name} has shape {tuple(value.shape)}; expected (..., {like.shape[-1]}), one for each block")
    return value


def _prepare(
    q: Any, k: Any, frequencies: Any, delta: Any, shift: Any, pairing: str
) -> tuple[Array, Array, Array, Array, Array, Array, ModuleType]:
    """Block coefficients of the rotated features, q . k of the others, lags, frequencies and shifts, of one library."""
    xp = _array.namespace(q=q, k=k, delta=delta, frequencies=frequencies, shift=shift)
    device = _first_device(q, k, delta, frequencies, shift)
    q, k = (_array.asarray(value, xp, name=name, device=device) for value, name in ((q, "q"), (k, "k")))
    q, k = (_array.as_widest(value, xp) if _array.is_real_floating(value) else value for value in (q, k))
    shift = _array.numbers(shift, xp, name="shift", device=device)  # which may not be None, as it may elsewhere
    delta, frequencies, shift = _placed(delta, frequencies, shift, xp, device, "delta")
    c, e = block_coefficients(q, k, pairing=pairing)
    width = 2 * blocks_of(frequencies)
    _check_width(q, width // 2, "frequencies", "q")
    rest = xp.sum(q[..., width:] * k[..., width:], axis=-1)
    if width < q.shape[-1]:
        c, e = block_coefficients(q[..., :width], k[..., :width], pairing=pairing)
    lead = _phases_shape(delta, frequencies, shift)[:-1]
    _array.broadcast_shapes({"q and k": c.shape[:-1], "delta": lead})
    return c, e, rest, delta, frequencies, shift, xp
