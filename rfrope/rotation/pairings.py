"""Blocks of two features: their pairings, complex form, coefficients in a score, and distribution over axes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rfrope._core import array, blocks
from rfrope._core.arguments import axis_of, listed, whole
from rfrope._core.array import Array


@array.select_device
def convert_pairing(x: Array, source: str, target: str, *, axis: int = -1, width: int | None = None) -> Array:
    """Reorder features, or the rows of a weight, from one pairing to the other.

    Parameters
    ----------
    x : array_like
        Features ``(..., d)`` of any dtype, or a weight with the features of a head along `axis`. For a projection of H
        heads, reshape its rows to ``(H, d, in)`` and use ``axis=1``.
    source, target : {"half", "interleaved"}
        Pairing of `x`, and of the result.
    axis : int
        Axis of the features.
    width : int, optional
        Number of rotated features along `axis` (2D); those beyond keep their place. Default: all.

    Returns
    -------
    array
        Same shape, dtype and device as `x`.

    Raises
    ------
    ValueError
        If a pairing is unknown, `x` has no such axis, or `width` is odd or too large.

    See Also
    --------
    rotate, from_config

    Examples
    --------
    >>> convert_pairing([0, 1, 2, 3], "half", "interleaved")
    array([0, 2, 1, 3])
    """
    xp = array.namespace(x=x)
    x = array.asarray(x, xp, name="x")
    blocks.check_pairing(source, "source")
    blocks.check_pairing(target, "target")
    axis = axis_of("x", axis, x.shape)
    length = x.shape[axis]
    if width is None and length % 2:
        raise ValueError(f"x has shape {tuple(x.shape)}; expected an even number of features along axis {axis}")
    width = length if width is None else whole("width", width)
    if width % 2 or width > length:
        raise ValueError(
            f"width is {width}; expected an even number of features, at most the {length} along axis {axis}"
        )
    moved = xp.moveaxis(x, axis, -1)
    joined = blocks.join(*blocks.pair(moved[..., :width], source), target, xp)
    if width < length:
        joined = xp.concat([joined, moved[..., width:]], axis=-1)
    return xp.moveaxis(joined, -1, axis)


@array.select_device
def to_complex(x: Array, *, pairing: str = "half") -> Array:
    """Return each block as a complex number, first feature real; rotation multiplies it by ``exp(i phase)``.

    Parameters
    ----------
    x : array_like, (..., d)
        Features of a real floating dtype, d even.
    pairing : {"half", "interleaved"}
        Features that form a block.

    Returns
    -------
    array, (..., d / 2)
        A copy: complex128 for float64, complex64 for narrower types.

    Raises
    ------
    ValueError, TypeError
        See `rotate`.

    See Also
    --------
    rotation.from_complex, convert_pairing

    Notes
    -----
    The score is ``Re sum z_q conj(z_k)`` (section 7 of the mathematics page, which corrects Stratos).

    Examples
    --------
    >>> to_complex([1.0, 2.0, 3.0, 4.0])
    array([1.+3.j, 2.+4.j])
    """
    xp, device = array.shared(x=x)
    x = blocks.features(x, xp, device=device)
    if array.dtype_name(x) in ("float16", "bfloat16"):
        x = array.astype(x, xp.float32, xp)
    return array.make_complex(*blocks.pair(x, blocks.check_pairing(pairing)), xp)


@array.select_device
def from_complex(z: Array, *, pairing: str = "half") -> Array:
    """Return the features of complex blocks: the inverse of `to_complex`.

    Parameters
    ----------
    z : array_like, complex, (..., D)
        One number per block.
    pairing : {"half", "interleaved"}
        Features that form a block in the result.

    Returns
    -------
    array, (..., 2D)
        float64 for complex128, float32 for complex64.

    Raises
    ------
    TypeError
        If `z` is not complex.

    See Also
    --------
    rotation.to_complex, convert_pairing

    Examples
    --------
    >>> from_complex([1 + 3j, 2 + 4j], pairing="interleaved")
    array([1., 3., 2., 4.])
    """
    xp = array.namespace(z=z)
    z = array.asarray(z, xp, name="z")
    if not array.dtype_name(z).startswith("complex") or z.ndim == 0:
        raise TypeError(
            f"z has dtype {array.dtype_name(z)} and shape {tuple(z.shape)}; expected a complex array (..., D)"
        )
    return blocks.join(xp.real(z), xp.imag(z), blocks.check_pairing(pairing), xp)


@array.select_device
def block_coefficients(q: Array, k: Array, *, pairing: str = "half") -> tuple[Array, Array]:
    """Return the coefficients of the score ``S = sum_i A_i cos u_i + B_i sin u_i``, with ``u_i = lag . omega_i``.

    Parameters
    ----------
    q, k : array_like, (..., d)
        Query and key before rotation, of one real floating dtype; leading axes broadcast.
    pairing : {"half", "interleaved"}
        Features that form a block.

    Returns
    -------
    A, B : arrays, (..., d / 2)
        ``A_i = q_i . k_i`` and ``B_i = q_i^T J k_i = q_i2 k_i1 - q_i1 k_i2``, with J the rotation by +90 degrees. Same
        dtype as q and k.

    Raises
    ------
    ValueError, TypeError
        See `rotate`. Also if q and k differ in width or dtype.

    See Also
    --------
    scores, expected_score, heads.shifted_scores

    Notes
    -----
    Source: the exact decomposition of the RF-RoPE paper, section 1 of the mathematics page.

    Examples
    --------
    >>> block_coefficients([1.0, 0.0], [0.0, 1.0])
    (array([0.]), array([-1.]))
    """
    xp, device = array.shared(q=q, k=k)
    q, k = blocks.query_and_key(q, k, xp, device)
    blocks.check_pairing(pairing)
    array.broadcast_shapes({"q": q.shape[:-1], "k": k.shape[:-1]})
    dtype, wide = q.dtype, array.wider_float(q, xp)
    found = blocks.coefficients(array.astype(q, wide, xp), array.astype(k, wide, xp), pairing)
    return array.astype(found[0], dtype, xp), array.astype(found[1], dtype, xp)


# -- sections ----------------------------------------------------------------------------------------------------------


def assign_blocks(frequencies: Array, sections: tuple[int, ...], interleaved: bool) -> Array:
    """Distribute checked frequencies ``(D,)`` over the axes: ``(D, len(sections))``, zero off the block's own axis."""
    xp = array.namespace(frequencies=frequencies)
    index = xp.arange(frequencies.shape[0], dtype=xp.int32, device=array.device(frequencies))
    owners = (_interleaved_owners if interleaved else _chunked_owners)(index, sections)
    none = xp.zeros_like(frequencies)
    return xp.stack([xp.where(own, frequencies, none) for own in owners], axis=-1)


def check_sections(sections: Sequence[int], n_blocks: int, interleaved: bool) -> tuple[int, ...]:
    """Return the number of blocks on each axis; refuse sections that do not fit."""
    numbers = listed("sections", sections, "a whole number for each axis, as (16, 24, 24)")
    lengths = tuple(whole(f"sections[{axis}]", length) for axis, length in enumerate(numbers))
    if not lengths or sum(lengths) != n_blocks:
        raise ValueError(
            f"sections {lengths} sum to {sum(lengths)}; expected D = {n_blocks}, the number of frequencies"
        )
    for axis, length in enumerate(lengths[1:], 1):
        least = len(lengths) * (length - 1) + axis + 1
        if interleaved and length and least > n_blocks:
            raise ValueError(
                f"sections {lengths} interleaved put block {least - 1} on axis {axis}, but D is {n_blocks}; expected "
                "sections that last as long as the blocks do, or interleaved=False"
            )
    return lengths


def _chunked_owners(index: Array, lengths: tuple[int, ...]) -> list[Array]:
    """For each axis, which blocks are its own: neighbours."""
    ends = np.cumsum(lengths).tolist()
    return [(index >= end - length) & (index < end) for end, length in zip(ends, lengths, strict=True)]


def _interleaved_owners(index: Array, lengths: tuple[int, ...]) -> list[Array]:
    """For each axis, which blocks are its own: in turn; the first axis has what the others leave."""
    axes, first, others = len(lengths), index >= 0, []
    for axis in range(1, axes):
        others.append((index % axes == axis) & (index < axes * lengths[axis]))
        first = first & ~others[-1]
    return [first, *others]
