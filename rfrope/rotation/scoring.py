"""Scores of rotated queries and keys, and the coefficients of their exact decomposition."""

from __future__ import annotations

from typing import Any

from rfrope._core import angles, array, blocks
from rfrope._core.array import Array
from rfrope._core.blocks import Turn
from rfrope.rotation.turning import rotated


@array.select_device
def scores(
    q: Array,
    k: Array,
    q_positions: Array,
    k_positions: Array,
    frequencies: Array,
    *,
    pairing: str = "half",
    shift: Array | None = None,
) -> Array:
    """Attention scores before softmax and without its scale: rotated q dot rotated k, for every query and key.

    Parameters
    ----------
    q : array_like, (..., M, d)
        Queries before rotation.
    k : array_like, (..., N, d)
        Keys before rotation; the leading axes of q and k broadcast.
    q_positions, k_positions : array_like
        As `positions` in `rotate`: ``(M,)`` and ``(N,)``, or ``(M, k)`` and ``(N, k)``.
    frequencies : array_like, radians per unit of position
        ``(D,)`` or ``(*H, D, k)``; features beyond 2D count unrotated. The phases may not enlarge q or k.
    pairing : {"half", "interleaved"}
        The two features that make a block.
    shift : array_like, radians, optional
        Added to the phases of the KEYS: with ``shift = -offset * frequencies`` equal content scores highest at lag
        `offset` (key minus query).

    Returns
    -------
    array, (..., M, N)
        The dtype and device of q and k; half precision and float32 are computed one type wider.

    Raises
    ------
    ValueError, TypeError
        As `rotate`, and if q and k differ in width or dtype.

    Examples
    --------
    The score depends on the lag alone:

    >>> import numpy as np
    >>> q = k = np.array([[1.0, 0.0], [1.0, 0.0]])
    >>> scores(q, k, [5, 6], [5, 6], [1.0]).round(6)
    array([[1.      , 0.540302],
           [0.540302, 1.      ]])
    """
    return scores_of(q, k, q_positions, k_positions, angles.given(frequencies, pairing, 1.0, q), pairing, shift, 1.0)


@array.select_device
def block_coefficients(q: Array, k: Array, *, pairing: str = "half") -> tuple[Array, Array]:
    """Coefficients of the exact decomposition ``S = sum_i A_i cos u_i + B_i sin u_i``, with ``u_i = lag . omega_i``.

    Parameters
    ----------
    q, k : array_like, (..., d)
        Query and key before rotation, of one real floating dtype; the leading axes broadcast.
    pairing : {"half", "interleaved"}
        The two features that make a block.

    Returns
    -------
    A, B : arrays, (..., d / 2)
        ``A_i = q_i . k_i`` and ``B_i = q_i^T J k_i = q_i2 k_i1 - q_i1 k_i2``, with J the turn by +90 degrees. The dtype
        of q and k.

    Raises
    ------
    ValueError, TypeError
        As `rotate`, and if q and k differ in width or dtype.

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
    leading = array.broadcast_shapes({"q": q.shape[:-1], "k": k.shape[:-1]})
    array.check_memory(24.0, (*leading, q.shape[-1]), q, "q or k")
    dtype, wide = q.dtype, array.wider_float(q, xp)
    found = blocks.coefficients(array.astype(q, wide, xp), array.astype(k, wide, xp), pairing)
    return array.astype(found[0], dtype, xp), array.astype(found[1], dtype, xp)


def scores_of(
    q: Any, k: Any, q_positions: Any, k_positions: Any, frequencies: Any, pairing: str, shift: Any, scale: float
) -> Array:
    """Return what `scores` does, with cos and sin of both sides multiplied by a scale."""
    constants = {"q_positions": q_positions, "k_positions": k_positions, "frequencies": frequencies, "shift": shift}
    xp, device = array.shared(constants, q=q, k=k)
    q, k = blocks.query_and_key(q, k, xp, device)
    for name, value in (("q", q), ("k", k)):
        if value.ndim < 2:
            raise ValueError(f"{name} has shape {tuple(value.shape)}; expected (..., tokens, d): use {name}[None, :]")
    leading = array.broadcast_shapes({"q": q.shape[:-2], "k": k.shape[:-2]})
    array.check_memory(16.0, (*leading, q.shape[-2], k.shape[-2]), q, "q or k")
    wide, turned, space = array.wider_float(q, xp), [], array.space_of_constants(xp, constants)
    for name, x, positions, phase in (("q", q, q_positions, None), ("k", k, k_positions, shift)):
        read = angles.checked(positions, frequencies, phase, space, device, f"{name}_positions")
        blocks.check_width(x, read.blocks, "frequencies", name)
        names = name, f"{name}_positions", "frequencies", "shift"
        out_pairing = blocks.prepared(x, read.shape, pairing, None, None, names, *read[:3])
        turned.append(rotated(array.astype(x, wide, xp), read, Turn(pairing, out_pairing, scale), None))
    return array.astype(xp.matmul(turned[0], xp.matrix_transpose(turned[1])), q.dtype, xp)
