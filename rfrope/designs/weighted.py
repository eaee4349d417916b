"""Frequencies with unequal weights: Gauss quadrature of a law of one axis, and gains that build it into attention."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from rfrope._core import angles, blocks
from rfrope._core.arguments import choice, whole
from rfrope._core.results import Result
from rfrope.kernels import Kernel
from rfrope.kernels.registry import read_kernel

_HALVINGS = 900  # of the interval of uniforms, towards the tail
_FINE = 40.0  # the last of them are divided further
_FAR = 1e8  # means away from 0 at which a tail is too heavy
NODES, _WEIGHTS = np.polynomial.legendre.leggauss(16)
_CIRCLE = 2**16  # points of the circle on which whole lags see a law
_MOST = 256
_LEAST = 1e-13  # part of the largest coefficient of the recurrence below which a law has no more points
_WRONG = 1e-12  # of Phi at whole lags, in a law that stands for it


@dataclass(frozen=True, eq=False)
class Quadrature(Result):
    """Frequencies with weights: ``sum_i w_i cos(lag omega_i)`` is nearly Phi.

    Attributes
    ----------
    frequencies : ndarray, (D,), radians per unit of position
        Nonnegative, in ascending order.
    weights : ndarray, (D,)
        Positive, with sum 1.
    lags : {"real", "whole"}
        Lags that it was made for.
    log_remainder : float
        Logarithm of the factor of ``lag^(4D)`` in the bound for real lags.

    See Also
    --------
    designs.quadrature

    Examples
    --------
    >>> import rfrope
    >>> rule = rfrope.designs.quadrature("gaussian(scale=32)", 16)
    >>> rule.frequencies.shape, round(float(rule.weights.sum()), 6)
    ((16,), 1.0)
    """

    frequencies: np.ndarray
    weights: np.ndarray
    lags: str
    log_remainder: float

    @property
    def effective_blocks(self) -> float:
        """Return ``1 / sum w^2``, the number of equal blocks with the same variance over random content."""
        return float(1.0 / np.sum(self.weights**2))

    def mean_kernel(self, lags: Any) -> np.ndarray:
        """Return ``sum_i w_i cos(lag omega_i)`` at lags of any shape."""
        host = angles.numbers_on_host(lags, "lags").astype(np.float64)
        return np.cos(host[..., None] * self.frequencies) @ self.weights

    def error_bound(self, lags: Any) -> np.ndarray:
        """Return a bound on the error of ``mean_kernel``, up to rounding: at most about 3e-14 D.

        Parameters
        ----------
        lags : array_like, in units of position
            Any shape; whole numbers if the rule was made for them.

        Returns
        -------
        ndarray
            At most 2. For whole lags 0 up to 2D - 1, and no information beyond.
        """
        host = np.abs(angles.numbers_on_host(lags, "lags").astype(np.float64))
        if self.lags == "whole":
            known = (host <= 2 * len(self.weights) - 1) & (host == np.rint(host))
            return np.where(known, 0.0, 2.0)
        order = 4 * len(self.weights)
        with np.errstate(divide="ignore", over="ignore"):
            return np.minimum(np.exp(np.minimum(order * np.log(host) + self.log_remainder, 1.0)), 2.0)

    def gains(self, *, pairing: str = "half") -> np.ndarray:
        """Return the factors ``(2D,)`` of a query's features: D times the weight of their block.

        ``rotate(gains * q, m, frequencies) @ rotate(k, n, frequencies)`` is the score ``sum_i D w_i (A_i cos u_i + B_i
        sin u_i)``; they may be multiplied into W_q once.

        Parameters
        ----------
        pairing : {"half", "interleaved"}
            Pairing of the rotation.
        """
        blocks.check_pairing(pairing)
        each = len(self.weights) * self.weights
        return blocks.join(each, each, pairing, np)


def quadrature(kernel: Kernel | str, n_blocks: int, *, lags: str = "real") -> Quadrature:
    """Return the Gauss quadrature of a kernel's law: D frequencies with weights, and an error bound.

    Parameters
    ----------
    kernel : Kernel or str
        One axis; for real lags, a kernel whose magnitude is a function of one uniform, with light tails.
    n_blocks : int
        D, from 1 to 256.
    lags : {"real", "whole"}
        Use powers of omega^2, for laws with light tails, or of cos omega, for any law at whole lags.

    Returns
    -------
    Quadrature

    Raises
    ------
        If the kernel has several axes, no more than D magnitudes, or a law that real lags do not allow, or a number is
        not as described above.
    TypeError
        If an argument is of another type.

    See Also
    --------
    designs.Quadrature, designs.optimise

    Notes
    -----
    With D points in ``omega^2`` the rule is the positive half of the Gauss rule with 2D points of the symmetric law. It
    is exact for polynomials up to degree 4D - 1, so the error is at most ``lag^(4D) / (4D)!`` times the squared norm of
    the monic orthogonal polynomial of degree 2D, the product of its recurrence coefficients. For a Gaussian law these
    are Hermite's. Only 2**-900 of the tail is cut. For heavy tails the bound is true but useless, or the kernel is
    refused.

    With D points in ``cos omega`` it is exact at the whole lags up to 2D - 1 for every law, as cosines of lags are
    Chebyshev polynomials. Beyond, nothing is known; frequencies lie in [0, pi], which whole positions cannot
    distinguish from others.

    RoPE has equal weights: the gains are constants beside it, and random content varies as with ``effective_blocks``
    equal blocks. Source: Golub and Welsch (1969); recurrence coefficients from Lanczos's process on a discretised law
    (Gautschi 2004).

    Examples
    --------
    >>> import numpy as np
    >>> rule = quadrature("gaussian(scale=32)", 16)
    >>> lags = np.array([0.0, 64.0, 128.0, 192.0])
    >>> abs(rule.mean_kernel(lags) - np.exp(-0.5 * (lags / 32.0) ** 2)).round(6) + 0.0
    array([0., 0., 0., 0.])
    >>> rule.error_bound(lags).round(6)
    array([0.      , 0.      , 0.      , 0.000131])
    """
    law, n = read_kernel(kernel), whole("n_blocks", n_blocks, 1, _MOST)
    choice("lags", lags, ("real", "whole"))
    if law.ndim > 1:
        raise ValueError(f"kernel is {law!r} with {law.ndim} axes; expected one axis")
    points, weights = _waves(law, n) if lags == "whole" else _powers(law, n)
    found, share, norm = _gauss(points, weights / np.sum(weights), n, law)
    frequencies = 2.0 * np.arcsin(np.sqrt(np.clip(0.5 * found, 0.0, 1.0))) if lags == "whole" else np.sqrt(found)
    return Quadrature(frequencies, share, lags, norm - math.lgamma(4.0 * n + 1.0))


def _powers(law: Kernel, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Squares of magnitudes, and probabilities."""
    known = _magnitudes(law, n)
    if known is None:
        raise ValueError(
            f"kernel is {law!r}, whose magnitude is not a function of one uniform; expected one of which it is, as "
            "'gaussian', or lags='whole'"
        )
    if np.max(known[0]) > _FAR * known[1] @ np.minimum(known[0], 1e100):
        raise ValueError(f"kernel is {law!r}, whose tails are too heavy for moments; expected another, or lags='whole'")
    return known[0] ** 2, known[1]


def _waves(law: Kernel, n: int) -> tuple[np.ndarray, np.ndarray]:
    """``1 - cos omega`` and probabilities, from the law or from Phi, whichever has Phi at the whole lags that count."""
    turn = 2.0 * math.pi / _CIRCLE * np.arange(_CIRCLE // 2 + 1)
    phi = np.asarray(law.phi(np.arange(len(turn), dtype=np.float64)))
    weights = np.maximum(np.fft.irfft(phi, _CIRCLE)[: len(turn)], 0.0)
    weights[1:-1] *= 2.0
    for sizes, share in filter(None, ((turn, weights), _magnitudes(law, n))):
        lags = np.arange(2.0 * n)
        sums = np.array([share @ np.cos(lag * sizes) for lag in lags])
        if np.max(np.abs(sums / np.sum(share) - phi[: 2 * n])) <= _WRONG:
            return 2.0 * np.sin(0.5 * sizes) ** 2, share / np.sum(share)
    raise ValueError(f"kernel is {law!r}, whose law could not be followed on the circle; expected a smoother density")


def _magnitudes(law: Kernel, n: int) -> tuple[np.ndarray, np.ndarray] | None:
    """Atoms, or nodes on intervals of the uniform that halve towards the tail; None for more than one uniform."""
    atoms = law._atoms()
    if atoms is not None:
        sizes, place = np.unique(np.abs(atoms[0][:, 0]), return_inverse=True)
        return sizes, np.bincount(place, weights=atoms[1])
    if law.n_columns != 1 or not law.signed_columns[0]:
        return None
    fine = 1.0 + np.arange(1 + n // 4) / (1 + n // 4)  # in the largest intervals, which the cosines of many lags divide
    large = np.outer(0.5 ** np.arange(_FINE, 1.0, -1.0), fine).reshape(-1)
    ends = np.concatenate([[0.0], 0.5 ** np.arange(float(_HALVINGS), _FINE, -1.0), large, [0.5]])
    u, weight = place_nodes(ends)
    return np.abs(law.transport_points(u[:, None])[:, 0]), 2.0 * weight


def place_nodes(ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return nodes and weights of the Gauss rule on each of the intervals between `ends`."""
    half = 0.5 * np.diff(ends)[:, None]
    return (ends[:-1, None] + half * (1.0 + NODES)).reshape(-1), (half * _WEIGHTS).reshape(-1)


def _gauss(points: np.ndarray, weights: np.ndarray, n: int, law: Kernel) -> tuple[np.ndarray, np.ndarray, float]:
    """Nodes, weights, and the logarithm of the squared norm of the monic polynomial that vanishes at the nodes."""
    from scipy.linalg import eigh_tridiagonal

    unit = float(np.max(points[weights > 0.0], initial=0.0)) or 1.0
    points = points / unit
    basis = np.zeros((n + 1, len(points)))
    basis[0] = np.sqrt(weights)
    diagonal, beside = np.empty(n), np.empty(n)
    for step in range(n):
        moved = points * basis[step]
        diagonal[step] = basis[step] @ moved
        for _ in range(2):
            moved = moved - (basis[: step + 1] @ moved) @ basis[: step + 1]
        beside[step] = np.linalg.norm(moved)
        if beside[step] <= _LEAST and step < n - 1:
            raise ValueError(f"kernel is {law!r}, whose law has only {step + 1} magnitudes; expected at least {n}")
        basis[step + 1] = moved / (beside[step] or 1.0)
    nodes, vectors = eigh_tridiagonal(diagonal, beside[:-1])
    share = vectors[0] ** 2
    norm = 2.0 * float(np.sum(np.log(np.maximum(unit * beside, 1e-300))))
    return unit * np.maximum(nodes, 0.0), share / np.sum(share), norm
