"""The sinusoidal embedding of a position, and the matrices that shift it."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from rfrope._core import angles, array, blocks, turns
from rfrope._core.array import Array


@array.select_device
def sinusoidal(positions: Array, frequencies: Array, *, pairing: str = "half", dtype: Any = None) -> Array:
    """Sinusoidal embedding: sine and cosine of each block's phase.

    Parameters
    ----------
    positions : array_like
        Integers or floats: any shape ``P`` for frequencies ``(D,)``; ``(*P, k)`` for frequencies ``(*H, D, k)``.
        Integers count exactly up to 2**53.
    frequencies : array_like, radians per unit of position
        ``(D,)`` or ``(*H, D, k)``.
    pairing : {"half", "interleaved"}
        Where the two features of a block go: all sines and then all cosines, as in tensor2tensor, fairseq and diffusion
        models, or ``sin_0, cos_0, sin_1, cos_1, ...``, as in the paper.
    dtype : dtype of the caller's library, optional
        Dtype of the result: float64 where the library has it, unless given. The values are rounded once, at the end.

    Returns
    -------
    array
        ``P + (2D,)``, or what ``positions @ frequencies^T`` broadcasts to, with 2D for D. Within 1e-15 of the exact
        values for phases up to 2**53 (see `rotate` for libraries without float64).

    Raises
    ------
    ValueError, TypeError
        As `rotation_table`, and for an unknown pairing.

    Notes
    -----
    ``E(s) . E(t) = sum_i cos((s - t) . theta_i)``, which is D times `rfrope.analysis.mean_kernel` at ``s - t``: the
    similarity of two embeddings depends on their distance alone. Source: Vaswani et al., "Attention is all you need"
    (2017); (2) of Stratos.

    Examples
    --------
    >>> sinusoidal([0, 1], [1.0, 0.1]).round(4)
    array([[0.    , 0.    , 1.    , 1.    ],
           [0.8415, 0.0998, 0.5403, 0.995 ]])
    """
    blocks.check_pairing(pairing)
    cos, sin, xp = _table(positions, frequencies, dtype, "positions")
    return blocks.join(sin, cos, pairing, xp)


@array.select_device
def shift_matrix(offset: Array, frequencies: Array, *, pairing: str = "half", dtype: Any = None) -> Array:
    """Matrix that moves a sinusoidal embedding: ``E(t + offset) = B(offset) E(t)`` for every t.

    Parameters
    ----------
    offset : array_like
        Distances, of the shapes that `positions` has in `sinusoidal`; negative and fractional ones too.
    frequencies : array_like, radians per unit of position
        ``(D,)`` or ``(*H, D, k)``.
    pairing : {"half", "interleaved"}
        That of the embedding.
    dtype : dtype of the caller's library, optional
        As in `sinusoidal`.

    Returns
    -------
    array, (..., 2D, 2D)
        The leading axes are those of ``sinusoidal(offset, frequencies)`` but for the last. Each block is turned: the
        matrix is orthogonal, ``B(j) B(k) = B(j + k)``, and the transpose is ``B(-offset)``.

    Raises
    ------
    ValueError, TypeError
        As `sinusoidal`.

    Notes
    -----
    A block of ``(sin, cos)`` is multiplied by ``[[cos u, sin u], [-sin u, cos u]]`` with ``u = offset . theta``: (8) of
    Stratos, which is the turn by -u of the pair in this order. `rotate` turns pairs ``(cos, sin)`` by +u. To move many
    embeddings call `sinusoidal` at the new positions: the matrix has 4 D^2 entries, of which 4 D are not 0.

    Examples
    --------
    >>> import numpy as np
    >>> shift_matrix(1, [0.5]).round(4)
    array([[ 0.8776,  0.4794],
           [-0.4794,  0.8776]])
    >>> moved = shift_matrix(-7, [1.0, 0.1]) @ sinusoidal(10**6, [1.0, 0.1])
    >>> bool(np.allclose(moved, sinusoidal(10**6 - 7, [1.0, 0.1]), rtol=0, atol=1e-15))
    True
    """
    blocks.check_pairing(pairing)
    cos, sin, xp = _table(offset, frequencies, dtype, "offset", square=True)
    index = xp.arange(cos.shape[-1], dtype=xp.int32, device=array.device(cos))
    own = index[:, None] == index
    upper = blocks.join(_diagonal(cos, own, xp), _diagonal(sin, own, xp), pairing, xp)
    lower = blocks.join(_diagonal(-sin, own, xp), _diagonal(cos, own, xp), pairing, xp)
    columns = blocks.join(xp.matrix_transpose(upper), xp.matrix_transpose(lower), pairing, xp)
    return xp.matrix_transpose(columns)


def _table(
    positions: Any, frequencies: Any, dtype: Any, name: str, square: bool = False
) -> tuple[Array, Array, ModuleType]:
    """Cos and sin of the phases in a dtype, which fit into memory or their matrices do, and their namespace."""
    read = angles.read(positions, frequencies, name=name)
    each = 40.0 + 100.0 * read.blocks if square else 40.0
    array.check_memory(each, read.shape, read.positions, f"{name} or frequencies")
    xp, dtype = read.xp, array.check_float_dtype(dtype, read.xp)
    cos, sin = turns.cos_sin(read)
    if dtype is not None:
        cos, sin = array.astype(cos, dtype, xp), array.astype(sin, dtype, xp)
    return cos, sin, xp


def _diagonal(values: Array, own: Array, xp: ModuleType) -> Array:
    """Diagonal matrices ``(..., D, D)``; a NaN stays in its row."""
    row = values[..., None, :]
    return xp.where(own, row, xp.zeros_like(row))
