"""Frequencies of a rotation that is given by generators: any commuting turns, in any basis."""

from __future__ import annotations

from typing import Any

import numpy as np

from rfrope._core import array
from rfrope._core.angles import from_vectors, numbers_on_host
from rfrope._core.arguments import LARGEST
from rfrope.rotation.provenance import Provenance
from rfrope.rotation.rope import Rope

_ROUNDED = 1e-9  # part of the largest entry by which matrices may miss what they should be


@array.select_device
def from_generators(generators: Any) -> tuple[Rope, np.ndarray]:
    """Frequencies and basis of the rotations ``expm(sum_a p_a G_a)`` of given commuting generators.

    Any rotation of features that depends on the difference of positions alone is of this kind, and in a basis of its
    own it turns blocks of two features, as RoPE does.

    Parameters
    ----------
    generators : array_like, (k, d, d), or (d, d) for one axis
        Skew-symmetric, commuting, d even; radians per unit of position.

    Returns
    -------
    rope : Rope
        Frequencies ``(D, k)``, D = d/2, or ``(D,)`` for a single matrix; pairing "interleaved".
    basis : ndarray, (d, d)
        Orthogonal: column 2i and 2i + 1 span block i. ``rope.rotate(x @ basis, p) @ basis.T`` is
        ``x @ expm(sum p_a G_a).T``.

    Raises
    ------
    ValueError
        For another shape, and for matrices that are not skew-symmetric or do not commute, to 1e-9 of their size.
    TypeError
        For anything but real numbers.

    Notes
    -----
    Commuting skew-symmetric matrices have a common orthogonal basis in which each is a row of 2 x 2 blocks
    ``omega [[0, -1], [1, 0]]``. It is found from the tridiagonal form of a random combination of them, in which no two
    blocks that differ on some axis have the same frequency; directions with frequency 0 on all axes are paired as they
    come. Computed on the host in float64.

    Examples
    --------
    Turns of a plane, written in another basis:

    >>> turn = np.array([[0.0, -0.5], [0.5, 0.0]])
    >>> mixer = np.array([[0.6, -0.8], [0.8, 0.6]])
    >>> rope, basis = from_generators(mixer @ turn @ mixer.T)
    >>> rope.frequencies
    array([0.5])
    """
    given = numbers_on_host(generators, "generators").astype(np.float64)
    shape = given.shape
    if len(shape) not in (2, 3) or shape[-1] != shape[-2] or shape[-1] % 2 or 0 in shape:
        raise ValueError(f"generators has shape {shape}; expected (k, d, d), or (d, d), with an even d")
    stack = given.reshape(-1, *shape[-2:])
    _check(stack)
    basis = _common_basis(stack)
    vectors = np.stack([np.sum(basis[:, 1::2] * (one @ basis[:, 0::2]), axis=0) for one in stack], axis=-1)
    frequencies = from_vectors(vectors, given.ndim - 1)  # one matrix is one axis
    return Rope(frequencies, pairing="interleaved", source=Provenance(extra={"maker": "from_generators"})), basis


def _check(stack: np.ndarray) -> None:
    size = float(np.max(np.abs(stack)))
    if not size <= LARGEST:
        raise ValueError("generators holds NaN or infinity, or magnitudes above 2**500; expected finite numbers")
    if np.any(np.abs(stack + np.swapaxes(stack, 1, 2)) > _ROUNDED * size):
        raise ValueError("generators holds a matrix that is not skew-symmetric; expected G^T = -G")
    for a, first in enumerate(stack):
        for b, second in enumerate(stack[:a]):
            if np.any(np.abs(first @ second - second @ first) > _ROUNDED * size * size * len(first)):
                raise ValueError(
                    f"generators {b} and {a} do not commute; expected matrices that do: else the rotation between two "
                    "positions depends on more than their difference"
                )


def _common_basis(stack: np.ndarray) -> np.ndarray:
    """Orthogonal basis whose neighbouring columns span the planes that all matrices turn.

    In a basis where the mixed matrix is tridiagonal it takes even columns to odd ones by a bidiagonal matrix, whose
    singular vectors pair them. Both steps are real and short: an interrupt is seen between them.
    """
    from scipy.linalg import hessenberg

    weights = np.random.default_rng(0).normal(size=len(stack))  # the same for every call
    form, basis = hessenberg(np.tensordot(weights, stack, axes=1), calc_q=True)
    below = np.diagonal(form, -1)  # and what is above is its negative, but for rounding
    odd, turns, even = np.linalg.svd(np.diag(below[::2]) - np.diag(below[1::2], 1))
    still = turns <= _ROUNDED * turns[0]
    order = np.argsort(np.where(still, np.inf, turns), kind="stable")  # they come last
    basis[:, 0::2], basis[:, 1::2] = basis[:, 0::2] @ even[order].T, basis[:, 1::2] @ odd[:, order]
    return basis
