"""Kernels from functions: Phi, or the density of the frequencies."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rfrope._core.arguments import positive
from rfrope.bochner import inversion
from rfrope.bochner.measures import MEASURES, Measure
from rfrope.bochner.piecewise import Pieces, Unresolved, build
from rfrope.bochner.tabulated import Certificate, NotPositiveDefiniteError, Separable, Tabulated, compared, tabulated
from rfrope.kernels import Kernel
from rfrope.kernels.parameters import check_ndim

_ARGUMENTS = {  # what functions take, by whether there is one axis
    True: ("x", "it works elementwise"),
    False: (
        "r",
        "with ndim={ndim} it is a function of the length r of a vector (a list of functions of one argument each makes "
        "a product over the axes)",
    ),
}
_NORMAL = 1e-9  # by how much Phi(0) may differ from 1
_MASS = 1e-3  # by how much the mass that is found may differ from 1
_CHECKED = 20.0  # scales over which Phi is compared closely


def from_function(
    phi: Callable[[np.ndarray], Any] | Sequence[Callable[[np.ndarray], Any]],
    *,
    ndim: int = 1,
    scale: float | None = None,
    tolerance: float = 1e-9,
) -> Kernel:
    """Make a kernel whose Phi is a given function.

    Parameters
    ----------
    phi : callable, or sequence of callables
        Takes a NumPy array of lags (float64, one axis) and returns Phi elementwise, with Phi(0) = 1. For ndim = 1 it
        must be even; for more axes it is called with the LENGTH of the lag, and the kernel is isotropic. A sequence of
        functions of one lag gives the product over as many axes.
    ndim : int
        Number of position axes, 1 to 3. Leave it out for a sequence.
    scale : float, optional
        A lag, in units of position, about where phi has fallen half-way to its limit; found unless given.
    tolerance : float
        Negative spectral mass that passes for rounding (or the errors of phi as seen in the computation, if larger).

    Returns
    -------
    Kernel
        With ``.certificate``, a `Certificate`.

    Raises
    ------
    NotPositiveDefiniteError
        If the spectral density is negative somewhere; it says where.
    ValueError
        If Phi(0) is not 1, phi is not even, not finite or not continuous at 0, does not settle at large lags, or is too
        rough; and for arguments out of range.
    TypeError
        If phi is not callable, does not take arrays, or returns anything but real numbers.

    Notes
    -----
    Source: Corollary 3 of seed 000. phi is resolved as Legendre series on panels, whose Fourier integrals are exact; in
    more axes this is the Hankel transform. What is smooth but for a cusp at 0 comes out to 1e-10 or so. A kink at
    another lag makes the spectrum oscillate without end; it is cut after some 2000 periods, which leaves an error of
    about 4e-5 near the kink. A phi that still oscillates after as many periods is multiplied by a wide gaussian. A
    limit above 0 becomes an atom at frequency 0, and the kernel has no density.

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
        return _separable(phi, ndim, scale, tolerance)
    measure, tolerance = _measure(ndim), positive("tolerance", tolerance)
    lags, spectrum, values = _analysed(phi, measure, scale, bounded=True)
    frequency, density, negative = inversion.negative_part(spectrum, measure)
    limit = max(tolerance, 10.0 * spectrum.noise)
    if lags.atom < 0.0 or negative > limit:
        raise _refusal(lags.atom, frequency, density, negative, limit)
    return _finished(lags, spectrum, values, measure, negative)


def nearest(
    phi: Callable[[np.ndarray], Any], *, ndim: int = 1, scale: float | None = None, tolerance: float = 1e-9
) -> tuple[Kernel, float]:
    """Find the positive definite kernel closest to a function, in L2 of the density (which is L2 of Phi).

    Parameters
    ----------
    phi : callable
    ndim : int
    scale : float, optional
    tolerance : float
        As for `from_function`.

    Returns
    -------
    kernel : Kernel
    sup_error : float
        Largest difference between its Phi and the given one; also in its certificate.

    Raises
    ------
    ValueError, TypeError
        As `from_function`, positive definiteness aside.

    Notes
    -----
    The density closest to f among those that are nonnegative and integrate to 1 is ``max(f - c, 0)``, with the constant
    c that makes the mass 1. To clip f at 0 and renormalise is not closest, and cannot be done for a box, whose f has a
    positive part of infinite mass. A negative limit of phi (a negative atom) is dropped.

    Examples
    --------
    >>> import numpy as np
    >>> kernel, sup_error = nearest(lambda x: np.maximum(1.0 - (x / 8.0) ** 2, 0.0))
    >>> round(sup_error, 3)
    0.145
    """
    measure, tolerance = _measure(ndim), positive("tolerance", tolerance)
    lags, spectrum, values = _analysed(phi, measure, scale, bounded=False)
    _, _, negative = inversion.negative_part(spectrum, measure)
    if lags.atom < 0.0 or negative > max(tolerance, 10.0 * spectrum.noise):
        negative += max(-lags.atom, 0.0)
        atom = max(lags.atom, 0.0)
        pieces = inversion.project(spectrum, measure, 1.0 - atom)
        tail = inversion.Tail(float(pieces.edges[-1]), math.inf, 0.0, spectrum.tail.total)
        lags = dataclasses.replace(lags, atom=atom)
        spectrum = dataclasses.replace(spectrum, pieces=pieces, tail=tail)
        kernel = _finished(lags, spectrum, values, measure, negative, origin="nearest", projected=True)
    else:
        kernel = _finished(lags, spectrum, values, measure, negative, origin="nearest")
    return kernel, kernel.certificate.sup_error


def _separable(functions: Sequence[Any], ndim: Any, scale: Any, tolerance: float) -> Kernel:
    if not functions:
        raise ValueError("phi is an empty sequence; expected a function, or one function for each axis")
    if ndim not in (1, len(functions)):
        raise ValueError(f"ndim is {ndim!r} and phi has {len(functions)} functions; expected one for each axis")
    return Separable(tuple(from_function(f, scale=scale, tolerance=tolerance) for f in functions))


def _measure(ndim: Any) -> Measure:
    ndim = check_ndim(ndim)
    if ndim not in MEASURES:
        raise ValueError(f"ndim is {ndim}; expected 1, 2 or 3: transforms in more axes are not provided")
    return MEASURES[ndim]


def _analysed(
    phi: Any, measure: Measure, scale: Any, *, bounded: bool
) -> tuple[inversion.Lags, inversion.Spectrum, Callable[[np.ndarray], np.ndarray]]:
    scale = None if scale is None else positive("scale", scale)
    values = _checked("phi", phi, measure, bounded=bounded)
    at_zero = float(values(np.zeros(1))[0])
    if abs(at_zero - 1.0) > _NORMAL:
        raise ValueError(f"phi(0) is {at_zero!r}; expected 1: divide phi by phi(0)")
    unbounded = _checked("phi", phi, measure, bounded=False)
    _check_even("phi", unbounded, measure, scale or 1.0)
    lags = inversion.read_lags(values, measure, scale)
    _check_even("phi", unbounded, measure, lags.scale)
    return lags, inversion.transform(lags, measure), values


def _checked(name: str, function: Any, measure: Measure, *, bounded: bool) -> Callable[[np.ndarray], np.ndarray]:
    """The user's function, whose values are looked at whenever it is called."""
    if not callable(function):
        raise TypeError(f"{name} is {function!r:.80}; expected a function of an array")
    argument, takes = _ARGUMENTS[measure.is_line]

    def values(x: np.ndarray) -> np.ndarray:
        with np.errstate(all="ignore"):
            try:
                found = np.asarray(function(x.copy()))
            except TypeError as error:
                raise TypeError(
                    f"{name} failed on an array of shape {x.shape}: {error}; expected a function of NumPy arrays "
                    "(numpy.vectorize makes one)"
                ) from error
        if found.dtype.kind not in "biuf":
            raise TypeError(f"{name} returned {found.dtype}; expected real numbers")
        if found.shape != x.shape:
            raise ValueError(
                f"{name} returned shape {found.shape} for arguments of shape {x.shape}; expected the same shape: "
                + takes.format(ndim=measure.ndim)
            )
        found = found.astype(np.float64)
        if not np.all(np.isfinite(found)) and not (bounded and np.all(~np.isnan(found))):
            at = int(np.argmin(np.isfinite(found)))
            raise ValueError(f"{name}({argument}) is {found[at]} at {argument} = {x[at]:.6g}; expected finite numbers")
        if bounded:
            _check_bounded(x, found)
        return found

    return values


def _check_bounded(x: np.ndarray, found: np.ndarray) -> None:
    """Refuse abs(phi(x)) > 1: with s = sign(phi(x)), the law has ``int (1 - s cos(w x)) = 1 - abs(phi(x)) < 0``."""
    excess = np.abs(found) - 1.0
    if np.max(excess, initial=0.0) <= _NORMAL or not np.any(x != 0.0):
        return
    at = int(np.argmin(np.where(excess >= 0.5 * min(np.max(excess), 2.0), np.abs(x), np.inf)))
    frequency = 0.0 if found[at] < 0.0 else math.pi / abs(float(x[at]))
    mass = 0.5 * float(excess[at])
    raise NotPositiveDefiniteError(
        f"phi is not positive definite: it is {found[at]:.6g} at lag {x[at]:.6g}, and the magnitude of a positive "
        f"definite function is at most phi(0) = 1; its spectral mass about frequency {frequency:.6g} is negative, "
        f"{-mass:.3g} or less",
        frequency=frequency,
        density=-math.inf,
        negative_mass=mass,
    )


def _check_even(name: str, values: Callable[[np.ndarray], np.ndarray], measure: Measure, scale: float) -> None:
    """Refuse a function of x that is not even; one of a length has no other side."""
    if not measure.is_line:
        return
    near = np.array([0.07, 0.31, 0.83, 1.37, 2.9, 11.0])  # first: what is not even may be NaN farther out
    far = np.concatenate([np.geomspace(1e-6, 1e6, 4096), np.linspace(0.0, 32.0, 4097)[1:]])
    for x in (scale * near, scale * far):
        right, left = values(x), values(-x)
        at = int(np.argmax(np.abs(right - left)))
        if abs(right[at] - left[at]) > 1e-9 * max(1.0, abs(right[at])):
            raise ValueError(
                f"{name} is not even: it is {right[at]:.6g} at {x[at]:.6g} and {left[at]:.6g} at {-x[at]:.6g}; "
                "expected a function of the magnitude alone, such as one of numpy.abs(x)"
            )


def _refusal(atom: float, frequency: float, density: float, negative: float, limit: float) -> NotPositiveDefiniteError:
    if atom < 0.0:
        frequency, density, negative = 0.0, -math.inf, negative - atom
        what = f"it tends to {atom:.6g} at large lags, which is an atom of that mass at frequency 0"
    else:
        what = f"at frequency {frequency:.6g} (radians per unit of position) its spectral density is {density:.3g}"
    return NotPositiveDefiniteError(
        f"phi is not positive definite: {what}; its negative mass is {negative:.3g} or more, "
        f"expected at most {limit:.1g}; bochner.nearest(phi) finds the closest kernel",
        frequency=frequency,
        density=density,
        negative_mass=negative,
    )


def _finished(
    lags: inversion.Lags,
    spectrum: inversion.Spectrum,
    values: Callable[[np.ndarray], np.ndarray],
    measure: Measure,
    negative: float,
    *,
    origin: str = "from_function",
    projected: bool = False,
) -> Tabulated:
    mass = lags.atom + spectrum.tail.total
    if not projected and abs(mass - 1.0) > _MASS:
        raise ValueError(
            f"the spectrum of phi has mass {mass:.6g}; expected phi(0) = 1: phi jumps at 0, has detail too fine to be "
            "seen, or its spectrum decays too slowly to be integrated"
        )
    tail = spectrum.tail
    found = Certificate(
        math.inf, 0.0, 0.0, 0, mass, negative, lags.atom, tail.start, tail.exponent, tail.mass
    )  # the comparison is filled in below
    kernel = tabulated(spectrum.pieces, measure, lags.atom, origin, found)
    return compared(kernel, values, _lags_to_compare(lags))


def _lags_to_compare(lags: inversion.Lags) -> np.ndarray:
    pieces = lags.pieces
    thinned = slice(None, None, 1 + pieces.halves.size // 500)
    close = lags.scale * np.linspace(0.0, _CHECKED, 801)[1:]
    far = float(pieces.edges[-1])  # and places that the panels know nothing of
    spread = far * ((np.arange(512) + 0.5) * (0.5 * (math.sqrt(5.0) - 1.0)) % 1.0)
    octaves = np.geomspace(1e-4 * min(lags.scale, far), far, 257)[:-1] * 1.01
    return np.unique(np.concatenate([pieces.edges[1:][thinned], pieces.centres[thinned], close, spread, octaves]))


# -- from a density ----------------------------------------------------------------------------------------------------


def from_density(
    density: Callable[[np.ndarray], Any],
    *,
    ndim: int = 1,
    support: tuple[float, float] | None = None,
    frequency: float | None = None,
    normalise: bool = False,
) -> Kernel:
    """Make a kernel whose frequencies have a given probability density.

    Parameters
    ----------
    density : callable
        Takes a NumPy array of frequencies (radians per unit of position, float64, one axis), elementwise. For ndim = 1
        it must be even and integrate to 1 over the line; for more axes it is called with the length of omega and is the
        density in k axes.
    ndim : int
        Number of position axes, 1 to 3.
    support : tuple of two floats, optional
        Lengths between which the law lies; all lengths unless given.
    frequency : float, optional
        A frequency in the middle of the law; found unless given.
    normalise : bool
        Divide the density by its integral.

    Returns
    -------
    Kernel
        With ``.certificate``.

    Raises
    ------
    NotPositiveDefiniteError
        If the density is negative somewhere.
    ValueError
        If it does not integrate to 1, is not even, not finite, or too rough.
    TypeError
        As `from_function`.

    Examples
    --------
    >>> import numpy as np
    >>> kernel = from_density(lambda w: 16.0 * np.exp(-32.0 * np.abs(w)))
    >>> kernel.phi([0.0, 32.0]).round(6)
    array([1. , 0.5])
    """
    measure = _measure(ndim)
    values = _checked("density", density, measure, bounded=False)
    power = 1 + measure.moment

    def law(w: np.ndarray) -> np.ndarray:
        return measure.ground(w) * values(w)

    try:
        if support is not None:
            pieces, tail = _on_support(law, _ends(support))
        else:
            unit = _middle(values, measure) if frequency is None else positive("frequency", frequency)
            unit = 2.0 ** round(math.log2(unit))
            expected = 0.0 if normalise else 1.0
            pieces, tail, _ = inversion.collect(
                law, lambda w: np.full(w.shape, 1e-290), unit, power, measure.panels, expected
            )
    except Unresolved:
        raise ValueError(
            "density is too rough to resolve; expected a function that is smooth but for some jumps and kinks"
        ) from None
    radial = measure.radial(pieces)
    _check_even("density", values, measure, float(pieces.edges[-1]) if support else unit)
    lowest = int(np.argmin(pieces.values))
    w, value = float(pieces.nodes.flat[lowest]), float(pieces.values.flat[lowest])
    if value < -1e-12 * float(np.max(np.abs(pieces.values))):
        given = float(values(np.array([w]))[0])
        negative = -float(np.sum(np.minimum(radial.masses, 0.0)))
        raise NotPositiveDefiniteError(
            f"density is {given:.3g} at frequency {w:.6g}; expected no negative values",
            frequency=w,
            density=given,
            negative_mass=negative,
        )
    mass = float(np.sum(radial.masses))
    if not mass > 0.0 or (not normalise and abs(mass - 1.0) > 1e-6):
        raise ValueError(f"density integrates to {mass:.9g}; expected 1 (normalise=True divides by the integral)")
    certificate = Certificate(
        _table_error(pieces, law, tail.start, power) / mass, 0.0, math.inf, 0, mass, 0.0, 0.0,
        tail.start, tail.exponent, tail.mass,
    )  # fmt: skip
    return tabulated(pieces, measure, 0.0, "from_density", certificate)


def _ends(support: Any) -> tuple[float, float]:
    try:
        low, high = (float(v) for v in support)
    except (TypeError, ValueError):
        raise TypeError(f"support is {support!r:.80}; expected two numbers, as (0.0, 0.5)") from None
    if not (0.0 <= low < high < math.inf):
        raise ValueError(f"support is {support!r:.80}; expected 0 <= low < high, both finite")
    return low, high


def _on_support(law: Callable[[np.ndarray], np.ndarray], ends: tuple[float, float]) -> tuple[Pieces, inversion.Tail]:
    pieces = build(law, np.array(ends), lambda _, half: 1e-15 / half, tolerance=1e-13, budget=MEASURES[1].panels)
    return pieces, inversion.Tail(ends[1], math.inf, 0.0, 1.0)


def _middle(values: Callable[[np.ndarray], np.ndarray], measure: Measure) -> float:
    """The frequency about which most of the mass lies, in the logarithm."""
    w = 2.0 ** np.arange(-64.0, 64.0, 0.125)
    mass = values(w) * w**measure.ndim
    if not np.max(mass) > 0.0:
        raise ValueError(
            f"density is 0 at every frequency from {w[0]:.3g} to {w[-1]:.3g} that was tried; expected "
            "frequency=..., in the middle of the law"
        )
    return float(w[np.argmax(mass)])


def _table_error(pieces: Pieces, law: Callable[[np.ndarray], np.ndarray], end: float, power: int) -> float:
    """Estimate of the integral of the error of a table, from points between its nodes."""
    known = pieces.until(end)
    points = known.centres[:, None] + known.halves[:, None] * np.linspace(-0.98, 0.98, 9)
    error = np.abs(law(points.ravel()).reshape(points.shape) - known(points)) * points ** (power - 1.0)
    return float(np.sum(2.0 * known.halves * np.mean(error, axis=1)))
