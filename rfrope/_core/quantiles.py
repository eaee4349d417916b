"""Quantile functions of the samplers, and polynomials on parts of octaves that stand for those that are dear.

A quantile function bends like a power or a logarithm of v in its tail: within a part of an octave it is, but for high
powers, a polynomial to rounding, however far out. Parts are found by a number's own bits, and polynomials are made and
evaluated by products and sums of elements in a fixed order: what an element becomes depends neither on its neighbours
nor on the processor, if the function does not.

A kernel may state its transport as data (`Kernel.stated_law`), for compiled loops and CUDA kernels: each component of a
frequency is a one-dimensional quantile, times a factor and perhaps a radius that all components share. `tabulate_law`
returns it as numbers: which law, its parameter, factors, and tables of polynomials, made once, that interpolate the
function which the transport itself calls.

SciPy is imported inside the functions, so that `import rfrope` does not pay for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np

OCTAVES = 52  # from 2**-53, the least uniform that is drawn, to 1/2

_PIECES, _TERMS = 8, 11  # in an `Interpolant`: fewer pieces need more terms, more of them more calls of the function
_ERROR = 5e-14  # that its polynomials may have in between, relative to the function
_ROUNDING = 5e-16  # absolute error of quantiles near 1/2, which over 1 - 2 v grows
_MANTISSA_BITS, _LEAST_EXPONENT = 52, 970  # the exponent of 2**-53, as its bits have it
_HUGE = 1e100  # beyond it quantiles may be cut, which no polynomial shows
_NOT_MADE, _GOOD, _REFUSED = range(3)  # polynomials of an `Interpolant`
_LARGEST_TABLE = 2.0**16  # concentration up to which the law of a periodic kernel's harmonics is tabulated
_LARGEST_LOG = 700.0  # logarithm of the largest radius of a stable law

Function = Callable[[np.ndarray], np.ndarray]
# Laws of a component
UNIFORM, LOG_UNIFORM, TABLE = range(3)

# A table of a quantile has a polynomial of ROW coefficients for each of PIECES equal parts of each octave of
# v = min(u, 1 - u); one side of u = 1/2 takes SIDE rows
PIECES, ROW = 128, 6
SIDE = OCTAVES * PIECES

_COMPONENTS = {"uniform": UNIFORM, "log_uniform": LOG_UNIFORM}
_TABLE_ERROR = 1e-12  # that a table may have, in the middle between its nodes
NO_TABLE = np.empty(0)


def symmetric_quantile(u: np.ndarray, lower: object) -> np.ndarray:
    """Quantile function of a symmetric law from its lower half, so that q(1 - u) = -q(u) bit for bit.

    Parameters
    ----------
    u : ndarray, in (0, 1)
    lower : callable
        Quantiles (<= 0) of arguments in (0, 1/2].
    """
    quantile = lower(np.minimum(u, 1.0 - u))  # type: ignore[operator]
    return np.where(u > 0.5, -quantile, quantile)


def normal_quantile(u: np.ndarray) -> np.ndarray:
    """Quantile function of the standard normal law."""
    from scipy.special import ndtri

    return symmetric_quantile(u, ndtri)


def laplace_quantile(u: np.ndarray) -> np.ndarray:
    """Quantile function of the Laplace law with density exp(-|x|)/2."""
    return symmetric_quantile(u, lambda v: np.log(2.0 * v))


def student_quantile(dof: float, u: np.ndarray) -> np.ndarray:
    """Quantile function of Student's t with `dof` degrees of freedom (any positive number)."""
    return symmetric_quantile(u, _STUDENT.get(dof) or _student_lower(float(dof)))


def _student_4(v: np.ndarray) -> np.ndarray:
    """Lower half for four degrees of freedom: a cubic equation by cosines (Shaw 2006), without differences near 1/2."""
    root = np.sqrt(v * (1.0 - v))
    third = np.arctan2(1.0 - 2.0 * v, 2.0 * root) / 3.0
    return -2.0 * np.sqrt(np.sin(2.0 * third) * np.sin(third) / root)


# lower halves in closed form, by degrees of freedom; the first is -cot(pi v), from the nearer end
_STUDENT: dict[float, Callable[[np.ndarray], np.ndarray]] = {
    1.0: lambda v: np.where(v < 0.25, -1.0 / np.tan(math.pi * v), -np.tan(math.pi * (0.5 - v))),
    2.0: lambda v: (2.0 * v - 1.0) / np.sqrt(2.0 * v * (1.0 - v)),
    4.0: _student_4,
}


@lru_cache(maxsize=64)
def _student_lower(dof: float) -> Interpolant:
    """Lower half of Student's quantile function, for degrees of freedom without a closed form."""
    from scipy.special import betaincinv, stdtrit

    def lower(v: np.ndarray) -> np.ndarray:
        found, far = np.where(v == 0.5, 0.0, stdtrit(dof, v)), v < 2.0**-53  # 1e-16 at 1/2 in SciPy below 1.17
        if np.any(far):  # where stdtrit may be wrong, even by its sign
            share = np.maximum(betaincinv(0.5 * dof, 0.5, 2.0 * v[far]), np.finfo(np.float64).tiny)
            found[far] = -np.sqrt(dof * (1.0 - share) / share)
        return found

    return Interpolant(lower, vanish=True)


def gamma_quantile(shape: float, u: np.ndarray, *, upper: bool = False) -> np.ndarray:
    """Quantile function of the Gamma law with the given shape and rate 1, at 1 - u if `upper`."""
    u = np.asarray(u, dtype=np.float64)
    return _gamma_quantiles(float(shape))(np.minimum(u, 1.0 - u), (u > 0.5) != upper)


@lru_cache(maxsize=64)
def _gamma_quantiles(shape: float) -> Interpolant:
    """Quantiles of the Gamma law for probabilities of the lower tail, and for those of the upper one."""
    from scipy.special import gammainccinv, gammaincinv

    return Interpolant(partial(gammaincinv, shape), partial(gammainccinv, shape))


def exponential_quantile(u: np.ndarray, *, upper: bool = False) -> np.ndarray:
    """Quantile function of the exponential law with rate 1, at 1 - u if `upper`."""
    return -np.log(u) if upper else -np.log1p(-u)


def half_normal_upper_quantile(u: np.ndarray, *, upper: bool = False) -> np.ndarray:
    """Quantile function of abs(z), z standard normal, at 1 - u, or at u if `upper`."""
    from scipy.special import erfinv

    return math.sqrt(2.0) * erfinv(u) if upper else np.abs(normal_quantile(0.5 * u))


def log_uniform_quantile(low: float, high: float, log_ratio: float, u: np.ndarray) -> np.ndarray:
    """Quantile function of ``sign low (high/low)^U``, U uniform on (0, 1) and the sign independent of it.

    It is computed from the nearer end, and so never leaves the interval.
    """
    return symmetric_quantile(
        u,
        lambda v: np.where(v < 0.25, -high * np.exp(-2.0 * log_ratio * v), -low * np.exp(log_ratio * (1.0 - 2.0 * v))),
    )


def stable_root(exponent: float, u: np.ndarray, v: np.ndarray) -> np.ndarray:
    """``sqrt(2 S)``, S positive and stable with ``E exp(-x S) = exp(-x^(exponent/2))``, from two uniforms (Kanter).

    With a = exponent/2, ``S = sin(a pi u) / sin(pi u)^(1/a) * (sin((1-a) pi u) / E)^((1-a)/a)``, E exponential: in
    logarithms, because a tail may reach beyond all floats, and with sines of the smaller of an angle and its
    supplement, because a may be close to 1. Results are at most exp(700).
    """
    a, rest = 0.5 * exponent, 1.0 - 0.5 * exponent
    if rest == 0.0:
        return np.full(np.shape(u), math.sqrt(2.0))

    def log_sin(share: np.ndarray, other: np.ndarray) -> np.ndarray:  # share + other = 1
        return np.log(np.sin(math.pi * np.minimum(share, other)))

    w = 1.0 - u
    log_s = log_sin(a * u, w + rest * u) - log_sin(u, w) / a
    log_s = log_s + rest / a * (log_sin(rest * u, w + a * u) - np.log(exponential_quantile(v)))
    return np.exp(np.minimum(0.5 * (math.log(2.0) + log_s), _LARGEST_LOG))


def harmonic_quantile(concentration: float, u: np.ndarray) -> np.ndarray:
    """Quantile function of the whole numbers n with probabilities ``exp(-z) I_n(z)``, z the concentration.

    Beyond z = 2^16 it is the rounded Cornish-Fisher expansion of the same law smoothed by a uniform of width 1, whose
    cumulants are ``z - 1/12``, ``z + 1/120`` and ``z - 1/252``; the error of a probability is below 1e-13 there.
    """
    if concentration <= _LARGEST_TABLE:
        tails = _harmonic_tails(concentration)
        return symmetric_quantile(u, lambda v: np.searchsorted(tails, v, side="right") - float(tails.size))
    variance = concentration - 1.0 / 12.0
    fourth = (concentration + 1.0 / 120.0) / variance / variance
    sixth = (concentration - 1.0 / 252.0) / variance / variance / variance

    def lower(v: np.ndarray) -> np.ndarray:
        x = normal_quantile(v)
        x = x + (
            fourth / 24.0 * (x**3 - 3.0 * x)
            + sixth / 720.0 * (x**5 - 10.0 * x**3 + 15.0 * x)
            - fourth**2 / 384.0 * (3.0 * x**5 - 24.0 * x**3 + 29.0 * x)
        )
        return np.round(math.sqrt(variance) * x)

    return symmetric_quantile(u, lower)


def harmonic_weights(concentration: float) -> np.ndarray:
    """Probabilities ``exp(-z) I_n(z)`` of n = 0, 1, ..., until they are below 1e-20."""
    from scipy.special import ive

    weights = ive(np.arange(64 + int(10.0 * math.sqrt(concentration))), concentration)
    return weights[: int(np.count_nonzero(weights > 1e-20))]


@lru_cache(maxsize=64)
def _harmonic_tails(concentration: float) -> np.ndarray:
    """Probabilities of n or more, n = 1, 2, ..., from the largest n on: increasing."""
    return np.cumsum(harmonic_weights(concentration)[:0:-1])


# -- polynomials on parts of octaves -----------------------------------------------------------------------------------


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
        found = _interpolated(nodes, function(places(nodes)).T)
        exact, value = function(places(between)), np.polynomial.polynomial.polyval(between, found)
        allowed = (error + _ROUNDING / (1.0 - 2.0 * places(between))) * np.abs(exact)
        good = np.all((np.abs(value - exact) <= allowed) & (np.abs(exact) < _HUGE), axis=1)
    return np.ascontiguousarray(found.T), good


def _interpolated(nodes: np.ndarray, values: np.ndarray) -> np.ndarray:
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
    """Piecewise-polynomial approximations on (0, 1/2]; exact where their error exceeds 1e-13.

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
            smooth = _divided_by_zero_at_half(function) if self._vanish else function
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


def _divided_by_zero_at_half(function: Function) -> Function:
    return lambda v: function(v) / (1.0 - 2.0 * v)


# -- stated laws as numbers, for loops and kernels ---------------------------------------------------------------------


class Stated(NamedTuple):
    """A law: component j is ``factors[j] * radius(u_0) * quantile(u_j)``; tables are empty where there is none."""

    code: int
    parameter: float
    factors: np.ndarray
    table: np.ndarray
    radius: np.ndarray


def tabulate_law(kernel: Any) -> Stated | None:
    """Law of a kernel, or None if its own transport must be called."""
    return _stated(kernel) if isinstance(kernel, Hashable) else _stated.__wrapped__(kernel)


@lru_cache(maxsize=32)
def _stated(kernel: Any) -> Stated | None:
    law = kernel.stated_law()
    if law is None:
        return None
    kind, parameters = law.component
    table = NO_TABLE if isinstance(kind, str) else component_table(kind, parameters)
    radius = NO_TABLE if law.radius is None else radius_table(*law.radius)
    if table is None or radius is None:
        return None
    code = TABLE if table.size else _COMPONENTS[kind]
    return Stated(code, parameters[0] if parameters else 0.0, np.array(law.factors), table, radius)


@lru_cache(maxsize=32)
def component_table(quantile: Callable[..., np.ndarray], parameters: tuple[float, ...]) -> np.ndarray | None:
    """Table of ``quantile(v)/(2 v - 1)``, smooth and positive up to v = 1/2."""
    return table(lambda v: quantile(*parameters, v) / (2.0 * v - 1.0))


@lru_cache(maxsize=32)
def radius_table(quantile: Callable[..., np.ndarray], parameters: tuple[float, ...]) -> np.ndarray | None:
    """Tables of a positive quantile at v, then of that at 1 - v."""
    lower = table(lambda v: quantile(*parameters, v, upper=False))
    upper = table(lambda v: quantile(*parameters, v, upper=True))
    return None if lower is None or upper is None else np.concatenate([lower, upper])


def table(function: Callable[[np.ndarray], np.ndarray]) -> np.ndarray | None:
    """Coefficients of a function's polynomials, one piece after the other; None if they are not the function."""
    found, good = polynomials(function, np.arange(SIDE), PIECES, ROW, _TABLE_ERROR)
    return found.reshape(-1) if np.all(good) else None
