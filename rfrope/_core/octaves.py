"""Functions on (0, 1/2] that are dear, as polynomials: one for each of some equal parts of each octave.

A quantile function bends like a power or a logarithm of v in its tail: within a part of an octave it is a polynomial to
rounding, however far out. Parts are found by a number's own bits, and polynomials need products and sums alone, so an
element's result does not depend on its neighbours.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

OCTAVES = 52  # from 2**-53, the least uniform that is drawn, to 1/2

_PIECES, _TERMS = 4, 12  # in an `Interpolant`: fewer pieces need more terms, more of them more calls of the function
_ERROR = 2e-13  # that it may have in between, relative to the function
_CHECKED = 15.0 / 32.0  # up to where: quantiles over 1 - 2 v are the quotient of two small numbers near 1/2
_MANTISSA, _LEAST = 52, 970  # bits, and the biased exponent of 2**-53

Function = Callable[[np.ndarray], np.ndarray]


def coefficients(function: Function, pieces: int, terms: int, error: float) -> np.ndarray | None:
    """Coefficients of the polynomials through a function's values at Chebyshev's points of every piece.

    Parameters
    ----------
    function : callable
        Finite and positive or negative everywhere in (0, 1/2).
    pieces, terms : int
        Equal parts of an octave, a power of two, and coefficients of each polynomial.
    error : float
        Largest error relative to the function in the middle between the points, beside what its own rounding near 1/2
        explains.

    Returns
    -------
    ndarray, (52 * pieces, terms), or None
        Factors of the powers of x in (-1/2, 1/2), 0 in the middle of a piece; None if they are not the function in
        between.
    """
    nodes = 0.5 * np.cos(np.pi * (np.arange(terms) + 0.5) / terms)
    between = 0.5 * np.cos(np.pi * np.arange(1, terms) / terms)
    octave, piece = np.divmod(np.arange(OCTAVES * pieces)[:, None], pieces)

    def places(x: np.ndarray) -> np.ndarray:
        return np.ldexp(1.0 + (piece + 0.5 + x) / pieces, octave - OCTAVES - 1)

    with np.errstate(all="ignore"):
        found = np.linalg.solve(np.vander(nodes, increasing=True), function(places(nodes)).T).T
        exact = function(places(between))
        far = np.abs(found @ np.vander(between, terms, increasing=True).T - exact)
    checked = places(between) < _CHECKED
    if not np.all(far[checked] <= error * np.abs(exact[checked])):
        return None
    return np.ascontiguousarray(found) if np.all(np.isfinite(found)) else None


class Interpolant:
    """Functions on (0, 1/2] by polynomials, to some 1e-14; below 2**-53, and where that is not so, by themselves."""

    def __init__(self, *functions: Function) -> None:
        self._functions = functions
        tables = [coefficients(function, _PIECES, _TERMS, _ERROR) for function in functions]
        self._rows: np.ndarray | None = None
        if all(table is not None for table in tables):
            self._rows = np.ascontiguousarray(np.concatenate(tables).T)  # type: ignore[arg-type]

    def __call__(self, v: np.ndarray, which: np.ndarray | None = None) -> np.ndarray:
        """Values at `v`, in (0, 1/2], of the first function, or of the one that `which`, of the same shape, says."""
        flat = np.ascontiguousarray(v, dtype=np.float64).reshape(-1)
        chosen = None if which is None else which.reshape(-1)
        if self._rows is None:
            found = self._exactly(flat, chosen)
        else:
            found = self._by_pieces(self._rows, flat, chosen)
            if np.any(small := flat < 2.0**-53):
                found[small] = self._exactly(flat[small], None if chosen is None else chosen[small])
        return found.reshape(np.shape(v))

    def _by_pieces(self, rows: np.ndarray, v: np.ndarray, which: np.ndarray | None) -> np.ndarray:
        bits, side = v.view(np.int64), OCTAVES * _PIECES
        shift = _MANTISSA - (_PIECES.bit_length() - 1)
        index = (bits >> shift) - _LEAST * _PIECES
        np.clip(index, 0, side - 1, out=index)  # 1/2 itself is the end of the last piece
        x = (bits - ((index + _LEAST * _PIECES) << shift)).astype(np.float64)
        x *= 2.0**-shift
        x -= 0.5
        if which is not None:
            index += side * which
        found, term = rows[-1].take(index), np.empty_like(x)
        for row in rows[-2::-1]:
            found *= x
            row.take(index, out=term, mode="clip")
            found += term
        return found

    def _exactly(self, v: np.ndarray, which: np.ndarray | None) -> np.ndarray:
        if which is None:
            return self._functions[0](v)
        found = np.empty_like(v)
        for number, function in enumerate(self._functions):
            found[which == number] = function(v[which == number])
        return found
