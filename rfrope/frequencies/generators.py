"""Generators of rotations: frequencies and bases in which they are RoPE."""

from __future__ import annotations

from functools import partial

import numpy as np

from rfrope._core import array
from rfrope._core.angles import from_vectors, numbers_on_host, read_numbers
from rfrope._core.array import Array
from rfrope._core.blocks import check_pairing
from rfrope.rotation.provenance import Provenance
from rfrope.rotation.rope import Rope

_ROUNDED = 1e-9  # part of the largest entry by which generators may miss what they should be
_SINGLE = 1e-6  # the same where they are given in float32, or less


@array.select_device
def from_generators(generators: Array, *, pairing: str = "half") -> tuple[Rope, Array]:
    """Return frequencies and basis of the rotations ``expm(sum_a p_a G_a)`` of commuting generators.

    Every rotation of features that depends on the difference of positions alone has this form; in a suitable basis it
    rotates blocks of two features, like RoPE. Weights of queries and keys multiplied by the basis, ``basis.T @ W`` for
    each head, make the model one with plain RoPE.

    Parameters
    ----------
    generators : array_like, (k, d, d), or (d, d) for one axis
        Skew-symmetric, commuting, d even; radians per unit of position.
    pairing : {"half", "interleaved"}
        Columns of the basis, and so features in it, that form a block.

    Returns
    -------
    rope : Rope
        Frequencies ``(D, k)``, D = d/2, or ``(D,)`` for a single matrix, with this pairing.
    basis : array, (d, d)
        Orthogonal: columns i and i + D, or 2i and 2i + 1, span block i. ``rope.rotate(x @ basis, p) @ basis.T`` is
        ``x @ expm(sum p_a G_a).T``.

    Raises
    ------
    ValueError
        If shapes do not fit, or matrices are not skew-symmetric or do not commute, to 1e-9 of their size (1e-6 if given
        in float32 or less).
    TypeError
        If a value is not a real number.

    Notes
    -----
    Commuting skew-symmetric matrices have a common orthogonal basis in which each consists of 2 x 2 blocks
    ``omega [[0, -1], [1, 0]]``. It is found from the tridiagonal form of a random combination, in which blocks that
    differ on some axis have different frequencies; directions with frequency 0 on all axes are paired arbitrarily. The
    basis is computed on the host in float64. Gradients reach the frequencies, and are exact where these are distinct
    and the generators keep commuting; the basis has none.

    A single generator commutes with itself: STRING (Schenck et al., 2025) and GRAPE (Zhang et al., 2025) on one axis
    are RoPE in another basis. GRAPE's ``a b^T - b a^T`` has one nonzero frequency,
    ``sqrt(|a|^2 |b|^2 - (a . b)^2)``; a circulant generator, ``C - C^T``, has one block of frequency 0. ComRoPE-LD (Yu
    et al., 2025) multiplies one matrix by a number for each axis, so the frequency vectors of a block are collinear and
    do not see displacements across them.

    Examples
    --------
    Rotations of a plane, in another basis:

    >>> turn = np.array([[0.0, -0.5], [0.5, 0.0]])
    >>> mixer = np.array([[0.6, -0.8], [0.8, 0.6]])
    >>> rope, basis = from_generators(mixer @ turn @ mixer.T)
    >>> rope.frequencies
    array([0.5])
    """
    check_pairing(pairing)
    xp, device = array.shared(generators=generators)
    given = read_numbers("generators", generators, xp, device)
    shape = tuple(given.shape)
    if len(shape) not in (2, 3) or shape[-1] != shape[-2] or shape[-1] % 2 or 0 in shape:
        raise ValueError(f"generators has shape {shape}; expected (k, d, d), or (d, d), with an even d")
    close = _ROUNDED if array.resolution(generators) < 1e-12 else _SINGLE
    given = xp.reshape(given, (-1, *shape[-2:]))
    if array.library(given).is_traced(given):
        still = xp.reshape(array.library(given).detach_as_int16(given), (-1,))
        find_rows = partial(_find_bases, shape=given.shape, close=close)
        found = array.map_on_host(find_rows, still, xp, "generators", last_axis=shape[-1] ** 2)
        placed = xp.reshape(found, shape[-2:])
    else:
        host = numbers_on_host(given, "generators").astype(np.float64)
        _check_commuting(host, close)
        placed = array.from_host(_common_basis(host, close), xp, device=array.device(given), dtype=given.dtype)
    pairs = xp.reshape(placed, (placed.shape[0], placed.shape[0] // 2, 2))
    even, odd = pairs[..., 0], pairs[..., 1]
    vectors = xp.stack([xp.sum(odd * xp.matmul(given[a, ...], even), axis=0) for a in range(given.shape[0])], axis=-1)
    basis = xp.concat([even, odd], axis=1) if pairing == "half" else placed
    frequencies = from_vectors(vectors, len(shape) - 1)  # one matrix is one axis
    return Rope(frequencies, pairing=pairing, source=Provenance(extra={"maker": "from_generators"})), basis


# -- the mathematics ---------------------------------------------------------------------------------------------------


def _find_bases(rows: np.ndarray, shape: tuple[int, ...], close: float) -> np.ndarray:
    """Return the common basis of each stack of generators, flat: what a traced call needs from the host."""
    bases = [_common_basis(one, close) for one in np.reshape(rows, (-1, *shape)).astype(np.float64)]
    return np.reshape(np.stack(bases), (*rows.shape[:-1], -1))


def _common_basis(stack: np.ndarray, close: float) -> np.ndarray:
    """Orthogonal basis whose neighbouring columns span the planes that all matrices turn.

    In a basis where the mixed matrix is tridiagonal it takes even columns to odd ones by a bidiagonal matrix, whose
    singular vectors pair them. Both steps are real and short: an interrupt is seen between them.
    """
    from scipy.linalg import hessenberg

    weights = np.random.default_rng(0).normal(size=len(stack))  # the same for every call
    form, basis = hessenberg(np.tensordot(weights, stack, axes=1), calc_q=True)
    below = np.diagonal(form, -1)  # and what is above is its negative, but for rounding
    odd, turns, even = np.linalg.svd(np.diag(below[::2]) - np.diag(below[1::2], 1))
    still = turns <= close * turns[0]
    order = np.argsort(np.where(still, np.inf, turns), kind="stable")  # they come last
    basis[:, 0::2], basis[:, 1::2] = basis[:, 0::2] @ even[order].T, basis[:, 1::2] @ odd[:, order]
    return basis


def _check_commuting(stack: np.ndarray, close: float) -> None:
    size = float(np.max(np.abs(stack)))
    if np.any(np.abs(stack + np.swapaxes(stack, -1, -2)) > _ROUNDED * size):
        raise ValueError("generators holds a matrix that is not skew-symmetric; expected G^T = -G")
    stack = stack / (size or 1.0)  # whose products neither overflow nor vanish
    for a, first in enumerate(stack):
        for b, second in enumerate(stack[:a]):
            commutator = first @ second - second @ first
            if np.any(np.abs(commutator) > close * len(first)):
                part = np.linalg.norm(commutator) / (np.linalg.norm(first) * np.linalg.norm(second))
                raise ValueError(
                    f"generators {b} and {a} do not commute: their relative commutator is {part:.2g}; expected "
                    "matrices that do, for which it is 0"
                )
