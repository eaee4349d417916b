"""Functions on (0, 1/2] that are dear, as polynomials: one for each of some equal parts of each octave.

A quantile function bends like a power or a logarithm of v in its tail: within a part of an octave it is, but for high
powers, a polynomial to rounding, however far out. Parts are found by a number's own bits, and polynomials are made and
evaluated by products and sums of elements in a fixed order: what an element becomes depends neither on its neighbours
nor on the processor, if the function does not.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

OCTAVES = 52  # from 2**-53, the least uniform that is drawn, to 1/2

_PIECES, _TERMS = 8, 11  # in an `Interpolant`: fewer pieces need more terms, more of them more calls of the function
_ERROR = 5e-14  # that its polynomials may have in between, relative to the function
_ROUNDING = 5e-16  # absolute error of quantiles near 1/2, which over 1 - 2 v grows
_MANTISSA_BITS, _LEAST_EXPONENT = 52, 970  # the exponent of 2**-53, as its bits have it
_HUGE = 1e100  # beyond it quantiles may be cut, which no polynomial shows
_NOT_MADE, _GOOD, _REFUSED = range(3)  # polynomials of an `Interpolant`

Function = Callable[[np.ndarray], np.ndarray]


def polynomials(
    function: Function, parts: np.ndarray, pieces: int, terms: int, error: float
) -> tuple[np.ndarray, np.ndarray]:
    """Coefficients of the polynomials through a function's values at some points of each part, and which are good.

    Parameters
    ----------
    function : callable
        On (0, 1/2).
    parts : ndarray of int, (n,)
        Numbers of parts, from 0 at 2**-53 to 52 * pieces - 1 below 1/2.
    pieces, terms : int
        Equal parts of an octave, a power of two, and coefficients of each polynomial.
    error : float
        Largest error of a good one midway between the points, relative to the function, beside what the rounding of a
        quantile over ``1 - 2 v`` explains near 1/2.

    Returns
    -------
    coefficients : ndarray, (n, terms)
        Factors of the powers of x in (-1/2, 1/2), 0 in the middle of a part.
    good : ndarray of bool, (n,)
    """
    angle = np.pi / terms
    # Chebyshev's points, rounded so that no library's cosine shows
    nodes = np.round(2.0**19 * np.cos(angle * (np.arange(terms) + 0.5))) * 2.0**-20
    between = np.round(2.0**19 * np.cos(angle * np.arange(1, terms))) * 2.0**-20
    octave, piece = np.divmod(parts[:, None], pieces)

    def places(x: np.ndarray) -> np.ndarray:
        return np.ldexp(1.0 + (piece + 0.5 + x) / pieces, octave - OCTAVES - 1)

    with np.errstate(all="ignore"):
        found = _through(nodes, function(places(nodes)).T)
        exact, value = function(places(between)), np.zeros((len(parts), terms - 1))
        for power in range(terms - 1, -1, -1):
            value = value * between + found[power][:, None]
        allowed = (error + _ROUNDING / (1.0 - 2.0 * places(between))) * np.abs(exact)
        good = np.all((np.abs(value - exact) <= allowed) & (np.abs(exact) < _HUGE), axis=1)
    return np.ascontiguousarray(found.T), good


def _through(nodes: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Coefficients, lowest first, of polynomials through values ``(node, ...)``: the method of Björck and Pereyra.

    Newton's differences, then powers: a matrix would be ill-conditioned, and its solution depend on the BLAS.
    """
    found = np.array(values)
    for k in range(1, len(nodes)):
        found[k:] = (found[k:] - found[k - 1 : -1]) / (nodes[k:] - nodes[:-k])[:, None]
    for k in range(len(nodes) - 2, -1, -1):
        found[k:-1] -= nodes[k] * found[k + 1 :]
    return found


class Interpolant:
    """Functions on (0, 1/2] by polynomials, within some 1e-13 of their values; where those are not, by themselves.

    Functions that `vanish` at 1/2 are ``1 - 2 v`` times a polynomial, and absolutely as exact there as themselves. A
    polynomial is made when a number first falls into its part.
    """

    def __init__(self, *functions: Function, vanish: bool = False) -> None:
        self._functions, self._vanish = functions, vanish
        n = len(functions) * OCTAVES * _PIECES
        # polynomials by power and part, and what they are; never written to again, so that threads may read them
        self._table = np.zeros((_TERMS, n)), np.full(n, _NOT_MADE, np.int8)

    def __call__(self, v: np.ndarray, which: np.ndarray | None = None) -> np.ndarray:
        """Values at `v`, in (0, 1/2], of the first function or, element by element, of that which `which` numbers."""
        flat = np.array(v, dtype=np.float64).reshape(-1)
        chosen = None if which is None else which.reshape(-1)
        bits, n = flat.view(np.int64), OCTAVES * _PIECES
        shift = _MANTISSA_BITS - (_PIECES.bit_length() - 1)
        part = (bits >> shift) - _LEAST_EXPONENT * _PIECES
        np.clip(part, 0, n - 1, out=part)  # 1/2 itself is the end of the last part
        x = (bits - ((part + _LEAST_EXPONENT * _PIECES) << shift)).astype(np.float64)
        x *= 2.0**-shift
        x -= 0.5
        if chosen is not None:
            part += n * chosen
        rows, kinds = self._made(part)
        itself = kinds != _GOOD
        itself |= ~(flat >= 2.0**-53)
        if flat.size and np.all(itself):
            return self._exactly(flat, chosen).reshape(np.shape(v))
        found, term = rows[-1].take(part), np.empty_like(x)
        with np.errstate(under="ignore"):
            for row in rows[-2::-1]:
                found *= x
                row.take(part, out=term, mode="clip")
                found += term
        if self._vanish:
            found *= 1.0 - 2.0 * flat
        if np.any(itself):
            found[itself] = self._exactly(flat[itself], None if chosen is None else chosen[itself])
        return found.reshape(np.shape(v))

    def _made(self, part: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Polynomials, those of some parts among them, and what those are."""
        rows, kinds = self._table
        found = kinds.take(part)
        if not np.any(found == _NOT_MADE):
            return rows, found
        rows, kinds, new = rows.copy(), kinds.copy(), np.unique(part[found == _NOT_MADE])
        for number, function in enumerate(self._functions):
            own = new[new // (OCTAVES * _PIECES) == number]
            smooth = _over_what_vanishes(function) if self._vanish else function
            made, good = polynomials(smooth, own - number * OCTAVES * _PIECES, _PIECES, _TERMS, _ERROR)
            rows[:, own], kinds[own] = np.where(good[:, None], made, 0.0).T, np.where(good, _GOOD, _REFUSED)
        self._table = rows, kinds
        return rows, kinds.take(part)

    def _exactly(self, v: np.ndarray, which: np.ndarray | None) -> np.ndarray:
        if which is None:
            return self._functions[0](v)
        found = np.empty_like(v)
        for number, function in enumerate(self._functions):
            found[which == number] = function(v[which == number])
        return found


def _over_what_vanishes(function: Function) -> Function:
    return lambda v: function(v) / (1.0 - 2.0 * v)
