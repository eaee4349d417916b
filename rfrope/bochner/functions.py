"""Kernels from functions: Phi, or the density of the frequencies."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
from rfrope.kernels import Kernel, axes
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
    phi: Callable[[np.ndarray], Any] | Sequence[Callable[[np.ndarray], Any]],
    *,
    ndim: int = 1,
    scale: float | None = None,
    tolerance: float = 1e-9,
) -> Kernel:
    """Return a kernel with a given function Phi.

    Parameters
    ----------
    phi : callable, or sequence of callables
        Takes a NumPy array of lags (float64, one axis) and returns Phi elementwise, with Phi(0) = 1. For ndim = 1 it
        must be even; for more axes it takes the LENGTH of the lag, and the kernel is isotropic. A sequence of functions
        of one lag gives their product over as many axes.
    ndim : int
        Number of position axes, 1 to 3. Leave it out for a sequence.
    scale : float, optional
        A lag, in units of position, near which phi has fallen half-way to its limit. Default: found. Lags are measured
        by it, so that phi(x) and phi(x / s) have the same outcome.
    tolerance : float
        Negative spectral mass that counts as rounding (or the errors of phi observed in the computation, if larger).

    Returns
    -------
    Kernel
        With ``.certificate``, a `Certificate`; of a sequence, each of its ``.kernels`` has one.

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
    if isinstance(phi, list | tuple):
        if not phi:
            raise ValueError("phi is an empty sequence; expected a function, or one function for each axis")
        if ndim not in (1, len(phi)):
            raise ValueError(f"ndim is {show(ndim)} and phi has {len(phi)} functions; expected one for each axis")
        return axes(*(from_function(f, scale=scale, tolerance=tolerance) for f in phi))
    question = _read_question(phi, ndim, scale, tolerance, bounded=True)
    spectrum, negative = _transform(question)
    _refuse_negative(question, spectrum, negative)
    kernel, doubt = _make(question, spectrum, negative, "from_function")
    if doubt is not None:
        raise doubt
    return kernel


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
    question = _read_question(phi, ndim, scale, tolerance, bounded=False)
    spectrum, negative = _transform(question)
    located = negative.mass > negative.limit
    if located:
        spectrum = inversion.project(spectrum, question.measure, 1.0 - max(question.lags.atom, 0.0))
    kernel, doubt = _make(question, spectrum, negative, "nearest")
    is_kernel = question.witness is None or -question.witness.value <= negative.limit
    if located or (doubt is None and is_kernel):
        return kernel, kernel.certificate.sup_error
    raise doubt or UndecidedError(
        f"phi is not positive definite, by {question.witness!r}, but where its spectrum is negative was not found",
        "pass scale=..., about the lag of its finest detail, to find the closest kernel",
    )


@dataclass(frozen=True)
class _Question:
    """A function, resolved and surveyed, and what is asked about it."""

    phi: Function
    measure: Measure
    lags: Lags
    tolerance: float
    witness: Witness | None

    @property
    def level(self) -> float:
        """Depth below which a quadratic form proves something."""
        return max(_PROOF * self.tolerance, witnesses.FORM_ROUNDING, _FAINT * self.lags.noise)


def _read_question(phi: Any, ndim: Any, scale: Any, tolerance: Any, *, bounded: bool) -> _Question:
    measure, tolerance = read_measure(ndim), arguments.positive("tolerance", tolerance)
    scale = None if scale is None else positive("scale", scale)
    values, unbounded = (check_values("phi", phi, measure, bounded=bound) for bound in (bounded, False))
    at_zero = float(values(np.zeros(1))[0])
    if abs(at_zero - 1.0) > NORMAL:
        raise ValueError(f"phi(0) is {show(at_zero)}; expected 1: divide phi by phi(0)")
    check_even("phi", unbounded, measure, scale or 1.0)
    scale = find_scale(values, scale)
    check_even("phi", unbounded, measure, scale)
    grids = witnesses.sample_on_grids(values, scale)
    try:
        lags = read_lags(values, measure, scale, grids[-1][1])
    except UndecidedError:
        witness = witnesses.search(grids, _ROUGH)
        if witness is None or not bounded:
            raise
        raise _refusal(tolerance, witness) from None
    question = _Question(values, measure, lags, tolerance, None)
    return dataclasses.replace(question, witness=witnesses.search(grids, question.level))


# -- what is negative --------------------------------------------------------------------------------------------------


def _transform(question: _Question) -> tuple[Spectrum, Negative]:
    """Return the spectrum of a function, and what is negative in it."""
    try:
        spectrum = inversion.transform(question.lags, question.measure)
    except UndecidedError:
        if question.witness is not None and -question.witness.value > question.tolerance:
            raise _refusal(question.tolerance, question.witness) from None
        raise
    limit = max(question.tolerance, _FAINT * spectrum.noise)
    return spectrum, inversion.measure_negative(spectrum, question.measure, question.lags.atom, limit)


def _refuse_negative(question: _Question, spectrum: Spectrum, negative: Negative) -> None:
    """Refuse what is negative by the spectrum, by a quadratic form, or by both."""
    witness, located = question.witness, negative.mass > negative.limit
    if located and witness is None:
        extents = inversion.find_extents(spectrum, question.measure)
        ndim, stretch = question.measure.ndim, negative.stretch
        witness = witnesses.search_stretch(question.phi, ndim, stretch, extents, question.level)
    if witness is not None and (located or -witness.value > negative.limit):
        raise _refusal(negative.limit, witness, negative if located else None)
    if located:
        noise = question.lags.noise
        exacter = "" if noise < _EXACT else f", and values with errors below {noise:.1g} might decide it"
        raise UndecidedError(
            f"phi seems not to be positive definite: {negative.where}; its negative mass is {negative.mass:.3g}, but "
            "no quadratic form shows it",
            f"a tolerance above that mass would accept phi{exacter}; bochner.nearest(phi) finds the closest kernel",
        )


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


# -- what is accepted --------------------------------------------------------------------------------------------------


def _make(
    question: _Question, spectrum: Spectrum, negative: Negative, origin: str
) -> tuple[Tabulated, UndecidedError | None]:
    """The kernel with its certificate, and what speaks against it."""
    lags = question.lags
    mass, atom = lags.atom + spectrum.total, max(lags.atom, 0.0)
    certificate = Certificate(
        math.inf, 0.0, 0.0, 0, mass, max(negative.mass, 0.0), atom, spectrum.start, spectrum.exponent,
        spectrum.tail_mass, unaccounted=abs(mass - 1.0) + spectrum.noise, tolerance=negative.limit,
    )  # fmt: skip
    kernel = tabulate(spectrum.pieces, question.measure, atom, origin, certificate)
    x = _lags_to_compare(lags)
    values = question.phi(x)
    kernel, error = compare(kernel, values, x, whole=_WHOLE)
    replaced = max(spectrum.ripple, min(spectrum.noise, _NOISY * lags.noise))
    allowed = max(_EXPLAINED * question.tolerance, _REPLACED * replaced)
    roughly = max(allowed, _TAIL * spectrum.tail_mass)  # the shape of the tail shows at lags of its frequencies alone
    tapered = _REPLACED * np.abs(values - lags.atom) * -np.expm1(-0.5 * (x / (lags.scale * lags.taper)) ** 2)
    explained = np.maximum(np.where(x * spectrum.start < _TAIL_LAGS, roughly, allowed), np.max(tapered))
    return kernel, _doubt(mass, roughly, error, explained, x)


def _doubt(
    mass: float, allowed: float, error: np.ndarray, explained: np.ndarray, x: np.ndarray
) -> UndecidedError | None:
    if abs(mass - 1.0) > allowed:
        return UndecidedError(
            f"the spectrum of phi has mass {mass:.9g}; expected phi(0) = 1: phi jumps at 0, has detail too fine to be "
            "seen, or its spectrum decays too slowly to be integrated",
            f"pass scale=..., the lag of its finest detail; tolerance={1.01 * abs(mass - 1.0):.2g} would accept phi",
        )
    at = int(np.argmax(error - explained))
    if error[at] <= explained[at]:
        return None
    return UndecidedError(
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
