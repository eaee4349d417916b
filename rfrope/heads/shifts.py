"""Learned phase shifts and their effect on scores and mean kernels.

`offset` is the lag of the peak, key minus query: -1 is the previous token. Shifts are added to the phases of the KEYS.
"""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

from rfrope._core import angles, array, blocks, sums, turns
from rfrope._core.angles import Angles
from rfrope._core.array import Array


@array.select_device
def phase_shift(offset: Array, frequencies: Array) -> Array:
    """Return shifts of the KEY's phases that move the peak of every block to lag `offset`: ``-offset . omega``.

    Parameters
    ----------
    offset : array_like, in units of position
        Lags, KEY minus QUERY; may be negative or fractional. Shaped like `positions` in `rotate`: any shape ``P`` for
        frequencies ``(D,)``, ``(*P, k)`` otherwise. For one offset per head, pass ``(H, 1, k)``.
    frequencies : array_like, radians per unit of position
        ``(D,)`` or ``(*H, D, k)``.

    Returns
    -------
    array, radians, float64 where the library has it
        ``P + (D,)``, or the broadcast shape of ``offset @ frequencies^T``. An offset ``(1, k)`` or ``(H, 1, k)`` with
        frequencies ``(H, D, k)`` gives ``(H, 1, D)``, which broadcasts against the phases ``(H, L, D)`` of tokens.

    Raises
    ------
    ValueError, TypeError
        See `phases`.

    See Also
    --------
    heads.aligned_shift, heads.shifted_mean_kernel

    Notes
    -----
    If keys are rotated by ``rotate(k, positions, frequencies, shift=phase_shift(offset, frequencies))``, the score is
    ``sum_i A_i cos((lag - offset) . omega_i) + B_i sin((lag - offset) . omega_i)``. Rounding of ``offset . omega`` to
    float64 moves a phase by ``1.1e-16 |offset . omega|``. Source: section 2 of the mathematics page; the RF-RoPE paper
    writes ``phi_i = L . omega_i``, so its L is minus the offset.

    Examples
    --------
    >>> import numpy as np, rfrope
    >>> omega = rfrope.geometric(4)
    >>> phase_shift(-1, omega)
    array([1.   , 0.1  , 0.01 , 0.001])
    >>> x, at = np.ones((5, 8)), np.arange(5)
    >>> rfrope.scores(x, x, at, at, omega, shift=phase_shift(-2, omega)).argmax(axis=-1)[2:]
    array([0, 1, 2])
    """
    return 0.0 - turns.phases(angles.read(offset, frequencies, name="offset"))


@array.select_device
def aligned_shift(offset: Array, frequencies: Array, cosine: Array, sine: Array | None = None) -> Array:
    """Return shifts with which every block of given content peaks at lag `offset`, whatever its coefficients' signs.

    With `phase_shift`, a block peaks at the offset only if its ``C_i = q_i . k_i`` is positive. If it is negative, the
    block has its minimum there, and half a turn more makes it a peak.

    Parameters
    ----------
    offset, frequencies
        See `phase_shift`.
    cosine, sine : array_like, (..., D)
        C and E of `rfrope.block_coefficients`. With `cosine` alone, pi is added where it is negative. With both, the
        angle ``atan2(E_i, C_i)`` is added, which accounts for the sine term.

    Returns
    -------
    array, radians, float64 where the library has it
        The broadcast shape of the shifts and the coefficients.

    Raises
    ------
    ValueError, TypeError
        See `phases`. Also if coefficients do not broadcast against the shifts.

    See Also
    --------
    heads.phase_shift, heads.offset_of

    Notes
    -----
    ``C cos x + E sin x = sqrt(C^2 + E^2) cos(x - atan2(E, C))``: with both coefficients, the score at the offset is
    ``sum_i sqrt(C_i^2 + E_i^2)``, the maximum over all shifts and lags. With `cosine` alone it is ``sum_i |C_i|``, and
    blocks with nonzero E_i peak elsewhere. Source: section 2 of the mathematics page.

    Examples
    --------
    >>> import rfrope
    >>> C, E = rfrope.block_coefficients([1.0, 2.0, 1.0, 1.0], [-1.0, 1.0, 0.0, 2.0])
    >>> C, E
    (array([-1.,  4.]), array([-1., -3.]))
    >>> aligned_shift(-1, [1.0, 0.1], C).round(4)
    array([4.1416, 0.1   ])
    >>> aligned_shift(-1, [1.0, 0.1], C, E).round(4)
    array([-1.3562, -0.5435])
    """
    read = angles.read(offset, frequencies, name="offset", cosine=cosine, sine=sine)
    shift, xp = 0.0 - turns.phases(read), read.xp
    cosine = per_block("cosine", cosine, shift, xp)
    if sine is not None:
        return shift + xp.atan2(per_block("sine", sine, shift, xp) + xp.zeros_like(cosine), cosine)
    return shift + xp.where(cosine < 0.0, xp.full_like(cosine, math.pi), xp.zeros_like(cosine))


@array.select_device
def shifted_scores(
    q: Array, k: Array, lags: Array, frequencies: Array, shift: Array, *, pairing: str = "half"
) -> Array:
    """Return exact scores by lag with learned shifts, before softmax and without its scale.

    Parameters
    ----------
    q, k : array_like, (..., d)
        Query and key before rotation by position and by the learned angles. d is even and at least 2D; features beyond
        2D count unrotated.
    lags : array_like, in units of position
        Lags, KEY minus QUERY: any shape ``P`` for frequencies ``(D,)``, ``(*P, k)`` otherwise. Integers up to 2**53 are
        exact.
    frequencies : array_like, radians per unit of position
        ``(D,)`` or ``(*H, D, k)``, with at least one block.
    shift : array_like, radians
        The key's learned angle minus the query's, one per block. It broadcasts against the phases: ``P + (D,)``, or the
        shape of ``lags @ frequencies^T``. The result, without its axis of blocks, broadcasts against the leading axes
        of q and k: for n pairs at m lags, pass q and k as ``(n, 1, d)``.
    pairing : {"half", "interleaved"}
        Features that form a block.

    Returns
    -------
    array, float64 where the library has it
        The broadcast shape.

    Raises
    ------
    ValueError, TypeError
        If shapes do not fit, there are no blocks, features are not real floating, or a value is NaN or infinite.

    See Also
    --------
    heads.phase_shift, block_coefficients

    Notes
    -----
    ``S = sum_i C_i cos(u_i + shift_i) + E_i sin(u_i + shift_i)`` with C and E of `rfrope.block_coefficients` and exact
    phases ``u_i = lag . omega_i``: section 2 of the mathematics page. The RF-RoPE paper keeps only the first term,
    which is exact only if the two contents are parallel in every block.

    Examples
    --------
    >>> import numpy as np, rfrope
    >>> omega, q, k = rfrope.geometric(2), [1.0, 2.0, 0.5, -1.0], [0.3, 1.0, 2.0, 0.1]
    >>> shifted_scores(q, k, [0, -1], omega, [0.4, -0.2]).round(4)
    array([2.5775, 4.2259])

    The same by rotation of both sides:

    >>> key = rfrope.rotate(np.array([k, k]), [0, -1], omega, shift=[0.4, -0.2])
    >>> (key @ q).round(4)
    array([2.5775, 4.2259])
    """
    read = read_shifted(lags, angles.frequencies_of(frequencies, pairing, 1.0, q), shift, "lags", q=q, k=k)
    content = blocks.content(q, k, read.xp, array.device(read.positions), pairing, read.blocks)
    array.broadcast_shapes({"q and k": content.cosine.shape[:-1], "lags": read.shape[:-1]})
    cosines, sines = sums.sum_blocks(read, content.cosine, content.sine)
    return cosines + sines + content.rest


@array.select_device
def shifted_mean_kernel(lags: Array, frequencies: Array, shift: Array) -> Array:
    """Return the mean kernel of given frequencies with shifts: the mean over blocks of ``cos(lag . omega + shift)``.

    Parameters
    ----------
    lags : array_like, in units of position
        Any shape ``P`` for frequencies ``(D,)``, ``(*P, k)`` otherwise. Integers up to 2**53 are exact.
    frequencies : array_like, radians per unit of position
        ``(D,)`` or ``(*H, D, k)``, with at least one block.
    shift : array_like, radians
        One per block; broadcasts against the phases.

    Returns
    -------
    array, float64 where the library has it
        The shape of the phases, without the axis of blocks.

    Raises
    ------
    ValueError, TypeError
        See `rotation_table`. Also if there are no blocks.

    See Also
    --------
    heads.phase_shift

    Notes
    -----
    With ``shift = phase_shift(offset, frequencies)`` this is the mean kernel moved to `offset`: it is 1 there, and
    nowhere else unless frequencies lie on a lattice. Over random frequencies its mean is ``kernel.phi(lag - offset)``:
    the RF-RoPE paper, Theorem 2 and last part. Source: section 2 of the mathematics page.

    Examples
    --------
    >>> import rfrope
    >>> omega = rfrope.geometric(64)
    >>> shifted_mean_kernel([0, -1, -2, -3], omega, phase_shift(-2, omega)).round(4)
    array([0.8966, 0.9702, 1.    , 0.9702])
    """
    read = read_shifted(lags, frequencies, shift, "lags")
    return sums.sum_blocks(read)[0] / float(read.blocks)


# -- arguments ---------------------------------------------------------------------------------------------------------


def read_shifted(positions: Any, frequencies: Any, shift: Any, name: str, **others: Any) -> Angles:
    """Return angles with at least one block and a shift, which may not be None; `others` are arrays beside them."""
    if shift is None:
        raise TypeError("shift is None; expected an array, radians: zeros for no shift")
    return angles.read(positions, frequencies, shift, name=name, minimum=1, **others)


def per_block(name: str, value: Any, like: Array, xp: ModuleType, origin: str = "offset and frequencies") -> Array:
    """Return numbers ``(..., D)``, one per block, in the dtype of an array that they broadcast against.

    A single number is repeated for all blocks, so that sums over blocks count it once per block.
    """
    value = array.widen(array.numbers(value, xp, name=name, device=array.device(like)), xp)
    shape = array.broadcast_shapes({name: value.shape, f"the phases from {origin}": like.shape})
    if shape[-1] != like.shape[-1]:
        raise ValueError(f"{name} has shape {tuple(value.shape)}; expected (..., {like.shape[-1]}), one for each block")
    return xp.broadcast_to(value, (*value.shape[:-1], shape[-1]))
