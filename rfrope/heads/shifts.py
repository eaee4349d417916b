"""Learned phase shifts: what they do to scores and to mean kernels.

`offset` is the lag, key minus query, of the peak: -1 is the previous token. A shift is added to the phases of the KEYS.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from rfrope._core import angles, array, blocks, sums, turns
from rfrope._core.angles import Angles
from rfrope._core.array import Array
from rfrope._core.blocks import Content
from rfrope._core.results import Result
from rfrope.kernels import Kernel
from rfrope.kernels.text import read_kernel


@dataclass(frozen=True, eq=False)
class ShiftedTerms(Result):
    """The score of q and k with shifts, block by block; see `shifted_terms`.

    Attributes
    ----------
    cosine : array, (..., D)
        ``C_i cos(u_i + shift_i)``.
    sine : array, (..., D)
        ``E_i sin(u_i + shift_i)``, the term that the RF-RoPE paper drops.
    rest : array
        What features that are not turned add; it broadcasts against the others without their last axis.

    See Also
    --------
    heads.shifted_terms

    Examples
    --------
    >>> import rfrope
    >>> found = rfrope.heads.shifted_terms([1.0, 0.0], [0.0, 1.0], [0, -1], [0.5], [0.25])
    >>> found.cosine.round(4).ravel() + 0.0, found.sine.round(4).ravel()
    (array([0., 0.]), array([-0.2474,  0.2474]))
    """

    cosine: Array
    sine: Array
    rest: Array


@array.select_device
def phase_shift(offset: Array, frequencies: Array) -> Array:
    """Shifts that move the peak of every block to lag `offset`: ``-offset . omega``, to be added to the KEY's phases.

    Parameters
    ----------
    offset : array_like, in units of position
        Lags, KEY minus QUERY, of the shapes that `positions` has in `rotate`: any shape ``P`` for frequencies ``(D,)``,
        ``(*P, k)`` otherwise. Negative and fractional ones too. One offset for each head is ``(H, 1, k)``.
    frequencies : array_like, radians per unit of position
        ``(D,)`` or ``(*H, D, k)``.

    Returns
    -------
    array, radians, float64 where the library has it
        ``P + (D,)``, or what ``offset @ frequencies^T`` broadcasts to. With an offset ``(1, k)`` or ``(H, 1, k)`` for
        frequencies ``(H, D, k)`` that is ``(H, 1, D)``, which broadcasts against the phases of tokens, ``(H, L, D)``.

    Raises
    ------
    ValueError, TypeError
        As `phases`.

    See Also
    --------
    heads.aligned_shift, heads.shifted_mean_kernel

    Notes
    -----
    With keys turned by ``rotate(k, positions, frequencies, shift=phase_shift(offset, frequencies))`` the score is
    ``sum_i A_i cos((lag - offset) . omega_i) + B_i sin((lag - offset) . omega_i)``. Source: section 2 of the
    mathematics page; the RF-RoPE paper writes ``phi_i = L . omega_i``, so its L is minus the offset. The product is
    rounded to float64, which moves a phase by ``1.1e-16 |offset . omega|``.

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
    return 0.0 - _phases(angles.read(offset, frequencies, name="offset"))


@array.select_device
def aligned_shift(offset: Array, frequencies: Array, cosine: Array, sine: Array | None = None) -> Array:
    """Shifts with which every block of given content peaks at lag `offset`, whatever the signs of its coefficients.

    `phase_shift` makes a block highest at the offset only if its ``C_i = q_i . k_i`` is positive; where it is negative
    the block is lowest there, and half a turn more puts that right.

    Parameters
    ----------
    offset, frequencies
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

    See Also
    --------
    heads.phase_shift, heads.alignment

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
    >>> aligned_shift(-1, [1.0, 0.1], C).round(4)
    array([4.1416, 0.1   ])
    >>> aligned_shift(-1, [1.0, 0.1], C, E).round(4)
    array([-1.3562, -0.5435])
    """
    read = angles.read(offset, frequencies, name="offset", cosine=cosine, sine=sine)
    shift, xp = 0.0 - _phases(read), read.xp
    cosine = per_block("cosine", cosine, shift, xp)
    if sine is not None:
        return shift + xp.atan2(per_block("sine", sine, shift, xp) + xp.zeros_like(cosine), cosine)
    return shift + xp.where(cosine < 0.0, xp.full_like(cosine, math.pi), xp.zeros_like(cosine))


@array.select_device
def shifted_terms(
    q: Array, k: Array, lags: Array, frequencies: Array, shift: Array, *, pairing: str = "half"
) -> ShiftedTerms:
    """Both terms of the score with learned shifts, block by block: those of the cosines and those of the sines.

    Parameters
    ----------
    q, k, lags, frequencies, shift, pairing
        As in `shifted_scores`.

    Returns
    -------
    ShiftedTerms
        Arrays in float64 where the library has it. Both terms have the shape of the scores and an axis of the blocks.

    Raises
    ------
    ValueError, TypeError
        As `shifted_scores`.

    See Also
    --------
    heads.ShiftedTerms, heads.shifted_scores

    Notes
    -----
    All terms are held at once; `shifted_scores` needs less memory.

    Examples
    --------
    At a right angle there is no first term, the only one that the RF-RoPE paper keeps:

    >>> terms = shifted_terms([1.0, 0.0], [0.0, 1.0], [0, -1], [0.5], [0.25])
    >>> terms.cosine.round(4).ravel(), terms.sine.round(4).ravel()
    (array([0., 0.]), array([-0.2474,  0.2474]))
    """
    content, read = _read_content(q, k, lags, frequencies, shift, pairing)
    origin = "the phases from lags, frequencies and shift"
    shape = array.broadcast_shapes({"q and k": content.cosine.shape, origin: read.shape})
    array.check_memory(48.0, shape, read.positions, "q, k or lags")
    cos, sin = turns.cos_sin(read)
    return ShiftedTerms(content.cosine * cos, content.sine * sin, content.rest)


@array.select_device
def shifted_scores(
    q: Array, k: Array, lags: Array, frequencies: Array, shift: Array, *, pairing: str = "half"
) -> Array:
    """Exact scores by lag with learned shifts, before softmax and without its scale.

    Parameters
    ----------
    q, k : array_like, (..., d)
        Content of query and key: before rotation by position, and before the learned rotations. d is even and at least
        2D; features beyond 2D count unrotated.
    lags : array_like, in units of position
        Lags, KEY minus QUERY: any shape ``P`` for frequencies ``(D,)``, ``(*P, k)`` otherwise. Integers count exactly
        up to 2**53.
    frequencies : array_like, radians per unit of position
        ``(D,)`` or ``(*H, D, k)``, with at least one block.
    shift : array_like, radians
        The key's learned angle minus the query's, one for each block; broadcasts against the phases, which are
        ``P + (D,)`` or what ``lags @ frequencies^T`` broadcasts to. What they broadcast to, without the axis of the
        blocks, broadcasts against the leading axes of q and k: for n pairs at m lags give q and k as ``(n, 1, d)``.
    pairing : {"half", "interleaved"}
        The two features that make a block.

    Returns
    -------
    array, float64 where the library has it
        The broadcast shape.

    Raises
    ------
    ValueError, TypeError
        For shapes that do not fit, no blocks, features that are not real floating, and NaN or infinite values.

    See Also
    --------
    heads.shifted_terms, heads.phase_shift

    Notes
    -----
    ``S = sum_i C_i cos(u_i + shift_i) + E_i sin(u_i + shift_i)`` with `rfrope.block_coefficients` C and E and exact
    phases ``u_i = lag . omega_i``: section 2 of the mathematics page. The RF-RoPE paper has the first term alone,
    which is right only where the two contents are parallel in every block.

    Examples
    --------
    >>> import numpy as np, rfrope
    >>> omega, q, k = rfrope.geometric(2), [1.0, 2.0, 0.5, -1.0], [0.3, 1.0, 2.0, 0.1]
    >>> shifted_scores(q, k, [0, -1], omega, [0.4, -0.2]).round(4)
    array([2.5775, 4.2259])

    The same by turning both sides:

    >>> key = rfrope.rotate(np.array([k, k]), [0, -1], omega, shift=[0.4, -0.2])
    >>> (key @ q).round(4)
    array([2.5775, 4.2259])
    """
    content, read = _read_content(q, k, lags, frequencies, shift, pairing)
    cosines, sines = sums.sum_blocks(read, content.cosine, content.sine)
    return cosines + sines + content.rest


@array.select_device
def shifted_mean_kernel(lags: Array, frequencies: Array, shift: Array) -> Array:
    """Mean kernel of given frequencies with shifts: the mean over the blocks of ``cos(lag . omega + shift)``.

    Parameters
    ----------
    lags : array_like, in units of position
        Lags: any shape ``P`` for frequencies ``(D,)``; ``(*P, k)`` otherwise. Integers count exactly up to 2**53.
    frequencies : array_like, radians per unit of position
        ``(D,)`` or ``(*H, D, k)``, with at least one block.
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

    See Also
    --------
    heads.recentred_kernel, heads.phase_shift

    Notes
    -----
    With ``shift = phase_shift(offset, frequencies)`` it is the mean kernel recentred: 1 at lag `offset`, and as high
    nowhere else unless frequencies are on a lattice. Source: section 2 of the mathematics page.

    Examples
    --------
    >>> import rfrope
    >>> omega = rfrope.geometric(64)
    >>> shifted_mean_kernel([0, -1, -2, -3], omega, phase_shift(-2, omega)).round(4)
    array([0.8966, 0.9702, 1.    , 0.9702])
    """
    read = read_shifted(lags, frequencies, shift, "lags")
    return sums.sum_blocks(read)[0] / float(read.blocks)


@array.select_device
def recentred_kernel(lags: Array, offset: Array, kernel: Kernel | str) -> Array:
    """Kernel that shifts by ``phase_shift(offset, frequencies)`` make, on average over random frequencies.

    Parameters
    ----------
    lags, offset : array_like, in units of position
        Lags, and the lag of the peak: any shape for a kernel with one axis, ``(..., ndim)`` with more. They broadcast.
    kernel : Kernel or str
        Law of the frequencies; a string is read by `rfrope.kernels.parse`.

    Returns
    -------
    array
        ``Phi(lag - offset)``, float64 where the library has it.

    Raises
    ------
    ValueError, TypeError
        For a kernel that cannot be read, and lags that do not fit it or each other.

    See Also
    --------
    heads.shifted_mean_kernel, heads.phase_shift

    Notes
    -----
    ``E cos(lag . omega - offset . omega) = Phi(lag - offset)``, and the sines vanish for a symmetric law, so the
    expected score of q and k is ``(q . k) Phi(lag - offset)``. Source: the RF-RoPE paper, Theorem 2 and last
    part.

    Examples
    --------
    >>> recentred_kernel([0, -2, -4, -6], -4, "gaussian(scale=2)").round(4)
    array([0.1353, 0.6065, 1.    , 0.6065])
    """
    kernel = read_kernel(kernel)
    xp, device = array.shared({"lags": lags, "offset": offset})
    lags, offset = (
        kernel.restore_shape(angles.checked_lags(value, kernel.ndim, xp, device, name, kernel))
        for value, name in ((lags, "lags"), (offset, "offset"))
    )
    shape = array.broadcast_shapes({"lags": lags.shape, "offset": offset.shape})
    array.check_memory(16.0, shape, lags, "lags or offset")
    return kernel.phi(lags - offset)


# -- what is allowed in ------------------------------------------------------------------------------------------------


def _phases(read: Angles) -> Array:
    """Plain phases of offsets, if they and what is made of them fit into memory."""
    array.check_memory(48.0, read.shape, read.positions, "offset or frequencies")
    return turns.phases(read)


def read_shifted(positions: Any, frequencies: Any, shift: Any, name: str, **others: Any) -> Angles:
    """Read angles with at least one block and a shift, which may not be None here; `others` are arrays beside them."""
    if shift is None:
        raise TypeError("shift is None; expected an array, radians: zeros for no shift")
    return angles.read(positions, frequencies, shift, name=name, least=1, **others)


def per_block(name: str, value: Any, like: Array, xp: ModuleType, origin: str = "offset and frequencies") -> Array:
    """Return numbers ``(..., D)``, one for each block, in the dtype of an array that they broadcast against.

    One number for all blocks is repeated: sums over the blocks count it as often as there are blocks.
    """
    value = array.widen(array.numbers(value, xp, name=name, device=array.device(like)), xp)
    shape = array.broadcast_shapes({name: value.shape, f"the phases from {origin}": like.shape})
    if shape[-1] != like.shape[-1]:
        raise ValueError(f"{name} has shape {tuple(value.shape)}; expected (..., {like.shape[-1]}), one for each block")
    return xp.broadcast_to(value, (*value.shape[:-1], shape[-1]))


def _read_content(q: Any, k: Any, lags: Any, frequencies: Any, shift: Any, pairing: str) -> tuple[Content, Angles]:
    """Content of the queries and keys, and the angles of their lags."""
    read = read_shifted(lags, angles.frequencies_of(frequencies, pairing, 1.0, q), shift, "lags", q=q, k=k)
    content = blocks.content(q, k, read.xp, array.device(read.positions), pairing, read.blocks)
    shape = array.broadcast_shapes({"q and k": content.cosine.shape[:-1], "lags": read.shape[:-1]})
    array.check_memory(32.0, shape, read.positions, "q, k or lags")
    return content, read
