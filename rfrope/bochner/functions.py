"""Kernels from functions: Phi, or the density of the frequencies."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from rfrope._core import arguments
from rfrope._core.arguments import show
from rfrope.bochner import inversion, witnesses
from rfrope.bochner.inversion import Negative, Spectrum
from rfrope.bochner.piecewise import Function
from rfrope.bochner.reading import NORMAL, Lags, check_even, check_values, find_scale, read_lags
from rfrope.bochner.refusals import NotPositiveDefiniteError, UndecidedError
from rfrope.bochner.tabulated import Certificate, Measure, Tabulated, compare, read_measure, tabulate
from rfrope.bochner.witnesses import Witness
from rfrope.kernels import Kernel
from rfrope.kernels.parameters import positive

_CHECKED = 20.0  # scales over which Phi is compared closely
_WHOLE = 2048  # whole lags at which it is compared
_PROOF = 1e-2  # part of the tolerance: how negative a quadratic form must be to prove anything
_ROUGH = 1e-2  # how negative it must be for a function of unknown errors
_EXPLAINED = 5.0  # tolerances that an error may come to
_TAIL = 0.1  # part of the mass of a smooth tail that the error of its shape may come to
_TAIL_LAGS = 100.0  # over the frequency where a tail starts: lags up to which its shape may show
_REPLACED = 5.0  # masses of an oscillating tail that it may come to, or errors by the taper
_NOISY = 50.0  # times the errors of phi that an error of its spectrum may come to
_EXACT = 1e-13  # errors of phi that pass for the rounding of its formula
_FAINT = 10.0  # times the noise that passes for noise


def from_function(
    phi: Callable[[np.ndarray], Any], *, ndim: int = 1, scale: float | None = None, tolerance: float = 1e-9
) -> Kernel:
    """Return a kernel with a given function Phi.

    Parameters
    ----------
    phi : callable
        Takes a NumPy array of lags (float64, one axis) and returns Phi elementwise, with Phi(0) = 1. For ndim = 1 it
        must be even; for more axes it takes the LENGTH of the lag, and the kernel is isotropic; `rfrope.kernels.axes`
        makes a product of kernels of one axis each.
    ndim : int
        Number of position axes, 1 to 3.
    scale : float, optional
        A lag, in units of position, near which phi has fallen half-way to its limit. Default: found. Lags are measured
        by it, so that phi(x) and phi(x / s) have the same outcome.
    tolerance : float
        Negative spectral mass that counts as rounding (or the errors of phi observed in the computation, if larger).

    Returns
    -------
    Kernel
        With ``.certificate``, a `Certificate`.

    Raises
    ------
    NotPositiveDefiniteError
        If the spectral density is negative somewhere; says where, and carries a `Witness`.
    UndecidedError
        If phi does not settle at large lags, is too rough, or has spectral mass that is not found: neither a kernel nor
        a witness against one.
    ValueError
        If Phi(0) is not 1, phi is not even, not finite or not continuous at 0, or an argument is out of range.
    TypeError
        If phi is not callable, does not take arrays, or returns anything but real numbers.

    See Also
    --------
    bochner.nearest, bochner.from_density, bochner.Certificate

    Notes
    -----
    Source: Corollary 3 of the RF-RoPE paper. No number of values proves a function positive definite. The certificate
    states that phi is within ``sup_error`` of a positive definite function at the compared lags, which include all
    whole ones up to its ``whole_lags``. Quadratic forms on grids of phi itself are checked first.

    phi is resolved as Legendre series on panels, whose Fourier integrals (for more axes, Hankel transforms) are exact.
    A function that is smooth except for a cusp at 0 comes out to about 1e-10. A kink at another lag makes the spectrum
    oscillate without end; it is cut after some 2000 periods, with an error of about 4e-5 near the kink. A phi that
    still oscillates after as many periods is multiplied by a wide gaussian. A positive limit becomes an atom at
    frequency 0, and the kernel has no density.

    Examples
    --------
    >>> import numpy as np
    >>> triangle = from_function(lambda x: np.maximum(1.0 - np.abs(x) / 48.0, 0.0))
    >>> triangle.phi([0.0, 12.0, 24.0, 60.0]).round(4)
    array([1.  , 0.75, 0.5 , 0.  ])
    >>> triangle.certificate.sup_error < 1e-4
    True
    >>> from_function(lambda r: np.exp(-0.5 * (r / 8.0) ** 2), ndim=2).ndim
    2
    """
    return _make("from_function", phi, ndim, scale, tolerance)


def nearest(
    phi: Callable[[np.ndarray], Any], *, ndim: int = 1, scale: float | None = None, tolerance: float = 1e-9
) -> tuple[Kernel, float]:
    """Return the positive definite kernel nearest to a function, in L2 of the density (which is L2 of Phi).

    Parameters
    ----------
    phi : callable
    ndim : int
    scale : float, optional
    tolerance : float
        See `from_function`.

    Returns
    -------
    kernel : Kernel
    sup_error : float
        Largest difference between its Phi and the given one, also in its certificate.

    Raises
    ------
    ValueError, TypeError
        See `from_function`, except for positive definiteness.

    See Also
    --------
    bochner.from_function, bochner.NotPositiveDefiniteError

    Notes
    -----
    Of the nonnegative densities that integrate to 1, the nearest to f is ``max(f - c, 0)``, with the constant c that
    makes the mass 1. Clipping f at 0 and renormalising is not nearest, and impossible for a box, whose f has a positive
    part of infinite mass. A negative limit of phi (a negative atom) is dropped.

    Examples
    --------
    >>> import numpy as np
    >>> kernel, sup_error = nearest(lambda x: np.maximum(1.0 - (x / 8.0) ** 2, 0.0))
    >>> round(sup_error, 3)
    0.145
    """
    kernel = _make("nearest", phi, ndim, scale, tolerance)
    return kernel, kernel.certificate.sup_error


def _make(origin: str, phi: Any, ndim: Any, scale: Any, tolerance: Any) -> Tabulated:
    """Return the kernel of a function, or the nearest one; raise all that speaks against it."""
    measure, tolerance = read_measure(ndim), arguments.positive("tolerance", tolerance)
    accepted = origin == "nearest"  # what is no kernel has a nearest one
    values, scale = _read_function(phi, measure, scale, bounded=not accepted)
    grids, witness = witnesses.sample_on_grids(values, scale), None
    try:
        lags = read_lags(values, measure, scale, grids[-1][1])
        level = max(_PROOF * tolerance, witnesses.FORM_ROUNDING, _FAINT * lags.noise)
        witness = witnesses.search(grids, level)
        spectrum = inversion.transform(lags, measure)
    except UndecidedError:
        witness = witness or witnesses.search(grids, _ROUGH)
        if witness is None or accepted or -witness.value <= tolerance:
            raise
        raise _refusal(tolerance, witness) from None
    negative = inversion.measure_negative(spectrum, measure, lags.atom, max(tolerance, _FAINT * spectrum.noise))
    located = negative.mass > negative.limit
    if located and accepted:
        spectrum = inversion.project(spectrum, measure, 1.0 - max(lags.atom, 0.0))
        return _tabulate(values, measure, lags, spectrum, negative, origin, tolerance)[0]
    if located and witness is None:
        extents = inversion.find_extents(spectrum, measure)
        witness = witnesses.search_stretch(values, measure.ndim, negative.stretch, extents, level)
    if witness is not None and not accepted and (located or -witness.value > negative.limit):
        raise _refusal(negative.limit, witness, negative if located else None)
    if located:
        exacter = "" if lags.noise < _EXACT else f", and values with errors below {lags.noise:.1g} might decide it"
        raise UndecidedError(
            f"phi seems not to be positive definite: {negative.where}; its negative mass is {negative.mass:.3g}, but "
            "no quadratic form shows it",
            f"a tolerance above that mass would accept phi{exacter}; bochner.nearest(phi) finds the closest kernel",
        )
    kernel, doubt = _tabulate(values, measure, lags, spectrum, negative, origin, tolerance)
    if doubt is not None:
        raise doubt
    return kernel


def _read_function(phi: Any, measure: Measure, scale: Any, *, bounded: bool) -> tuple[Function, float]:
    """Return the function with its values checked, and its scale."""
    scale = None if scale is None else positive("scale", scale)
    values, unbounded = (check_values("phi", phi, measure, bounded=bound) for bound in (bounded, False))
    at_zero = float(values(np.zeros(1))[0])
    if abs(at_zero - 1.0) > NORMAL:
        raise ValueError(f"phi(0) is {show(at_zero)}; expected 1: divide phi by phi(0)")
    check_even("phi", unbounded, measure, scale or 1.0)
    scale = find_scale(values, scale)
    check_even("phi", unbounded, measure, scale)
    return values, scale


def _refusal(limit: float, witness: Witness, negative: Negative | None = None) -> NotPositiveDefiniteError:
    """The quadratic form is a proof by itself, where the spectrum was not resolved where it is negative."""
    nowhere = "its spectrum was not resolved where it is negative"
    negative = negative or Negative(-witness.value, limit, math.nan, math.nan, (0.0, 0.0), nowhere)
    return NotPositiveDefiniteError(
        f"phi is not positive definite: {negative.where}; its negative mass is {negative.mass:.3g} or more, expected "
        f"at most {limit:.1g}; the error's witness, {witness.weights.size} points with weights, has the quadratic form "
        f"{witness.value:.3g}; bochner.nearest(phi) finds the closest kernel",
        frequency=negative.frequency,
        density=negative.density,
        negative_mass=negative.mass,
        witness=witness,
    )


def _tabulate(
    phi: Function, measure: Measure, lags: Lags, spectrum: Spectrum, negative: Negative, origin: str, tolerance: float
) -> tuple[Tabulated, UndecidedError | None]:
    """The kernel with its certificate, and what speaks against it."""
    mass, atom = lags.atom + spectrum.total, max(lags.atom, 0.0)
    certificate = Certificate(
        math.inf, 0.0, 0.0, 0, mass, max(negative.mass, 0.0), atom, spectrum.start, spectrum.exponent,
        spectrum.tail_mass, unaccounted=abs(mass - 1.0) + spectrum.noise, tolerance=negative.limit,
    )  # fmt: skip
    kernel = tabulate(spectrum.pieces, measure, atom, origin, certificate)
    x = _lags_to_compare(lags)
    values = phi(x)
    kernel, error = compare(kernel, values, x, whole=_WHOLE)
    replaced = max(spectrum.ripple, min(spectrum.noise, _NOISY * lags.noise))
    allowed = max(_EXPLAINED * tolerance, _REPLACED * replaced)
    roughly = max(allowed, _TAIL * spectrum.tail_mass)  # the shape of the tail shows at lags of its frequencies alone
    tapered = _REPLACED * np.abs(values - lags.atom) * -np.expm1(-0.5 * (x / (lags.scale * lags.taper)) ** 2)
    explained = np.maximum(np.where(x * spectrum.start < _TAIL_LAGS, roughly, allowed), np.max(tapered))
    if abs(mass - 1.0) > roughly:
        return kernel, UndecidedError(
            f"the spectrum of phi has mass {mass:.9g}; expected phi(0) = 1: phi jumps at 0, has detail too fine to be "
            "seen, or its spectrum decays too slowly to be integrated",
            f"pass scale=..., the lag of its finest detail; tolerance={1.01 * abs(mass - 1.0):.2g} would accept phi",
        )
    at = int(np.argmax(error - explained))
    if error[at] <= explained[at]:
        return kernel, None
    return kernel, UndecidedError(
        f"the computed law differs from phi by {error[at]:.3g} at lag {x[at]:.6g}, where its table should be "
        f"exact to {explained[at]:.1g}",
        "phi has unresolved detail there: pass scale=..., about its lag",
    )


def _lags_to_compare(lags: Lags) -> np.ndarray:
    pieces = lags.pieces
    thinned = slice(None, None, 1 + pieces.halves.size // 500)
    close = np.linspace(0.0, _CHECKED, 801)[1:]
    far = float(pieces.edges[-1])  # and places that the panels know nothing of
    spread = far * ((np.arange(512) + 0.5) * (0.5 * (math.sqrt(5.0) - 1.0)) % 1.0)
    octaves = np.geomspace(1e-4 * min(1.0, far), far, 257)[:-1] * 1.01
    places = np.concatenate([pieces.edges[1:][thinned], pieces.centres[thinned], close, spread, octaves])
    return np.unique(np.append(lags.scale * places, np.arange(1.0, _WHOLE + 1.0)))
