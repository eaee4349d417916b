"""Functions given by users: checked at every call, and functions of the lag resolved.

That is, as Legendre series on panels, octave by octave, with scale, limit and errors.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from rfrope._core.arguments import show
from rfrope.bochner.piecewise import LAST, NODES, TO_SERIES, Function, Pieces, build, sample
from rfrope.bochner.refusals import NotPositiveDefiniteError, UndecidedError
from rfrope.bochner.tabulated import Measure
from rfrope.bochner.witnesses import Witness

NORMAL = 1e-9  # by how much Phi(0) may differ from 1
_PROBED = 64  # octaves to either side in which the scale is looked for
_PROBES = 8  # lags in each of them
_REACH = 60  # octaves to the largest lag
_TOLERANCE = 2e-14  # least error of phi on a panel
_ROUGHEST = 1e-6  # typical error of phi up to which it is resolved
NOISE = 5.0  # times the typical error of phi, that which passes on a panel
_NARROW = 2.0**-13  # half-widths of panels that show the noise of phi alone, as parts of the lag
_ROUNDING = 1.5e-15  # error of phi and its transform, relative to the largest value on a panel
_FLAT = 16  # power of the lag in the exponent of a window that is 1 to rounding up to a tenth of its width
_END = 1.5  # widths from which on it is 0 to rounding: a binary fraction, as widths of panels have exact phases then
_SMOOTH = 2.0**-6  # part of the width of a window that panels have where it falls, and farther out
_WINDOWED = 2.0**11  # frequency times width of a window, from which on what it cuts off has no spectrum but rounding
_WINDOWS = 2.0 ** np.arange(8.0, _REACH, 4.0)  # their widths
_LAG_PANELS = 12000
_CUT_OFF = 1e-15  # rest of phi, or r phi, at the end of a taper
_FRACTIONS = (0.6180339887498949 * np.arange(48)) % 1.0  # well spread in an octave
_OVERLOOKED = 1e-9  # tolerance between phi and its panels at whole lags
_WHOLE = 2048  # whole lags at which a kink is looked for
_KINK = 0.375  # part that remains of a second difference over half the distance: half at a kink, else a quarter


def check_values(name: str, function: Any, measure: Measure, *, bounded: bool) -> Callable[[np.ndarray], np.ndarray]:
    """Return the user's function with its values checked at every call."""
    if not callable(function):
        raise TypeError(f"{name} is {show(function)}; expected a function of an array")
    of_length = f": with ndim={measure.ndim} it is a function of the length r of a vector"
    of_length += " (rfrope.kernels.axes makes a product of kernels of one axis each)"

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
                f"{name} returned shape {found.shape} for arguments of shape {x.shape}; expected the same shape"
                + (of_length if measure.ndim > 1 else "")
            )
        found = found.astype(np.float64)  # a copy, as the function may change its array later
        if not np.all(np.isfinite(found)) and not (bounded and np.all(~np.isnan(found))):
            at = int(np.argmin(np.isfinite(found)))
            raise ValueError(f"{name}(x) is {found[at]} at x = {x[at]:.6g}; expected finite numbers")
        if bounded and np.max(np.abs(found), initial=0.0) > 1.0 + NORMAL and np.any(x != 0.0):
            raise _refuse_beyond_1(x, found)
        return found

    return values


def _refuse_beyond_1(x: np.ndarray, found: np.ndarray) -> NotPositiveDefiniteError:
    """Refuse abs(phi(x)) > 1: with s = sign(phi(x)), the law has ``int (1 - s cos(w x)) = 1 - abs(phi(x)) < 0``.

    That says how much negative mass there is at least, and not where: it weighs nearly all frequencies.
    """
    excess = np.abs(found) - 1.0
    at = int(np.argmin(np.where(excess >= 0.5 * min(np.max(excess), 2.0), np.abs(x), np.inf)))
    mass = 0.5 * float(excess[at])
    return NotPositiveDefiniteError(
        f"phi is not positive definite: it is {found[at]:.6g} at lag {x[at]:.6g}, {excess[at]:.3g} beyond 1, where "
        f"at most phi(0) = 1 is expected; {mass:.3g} or more of its spectral mass is negative",
        frequency=0.0 if found[at] < 0.0 else math.pi / abs(float(x[at])),
        negative_mass=mass,
        witness=Witness(np.array([0.0, float(x[at])]), np.array([0.5, -0.5 * np.sign(found[at])]), -mass),
    )


def check_even(
    name: str, values: Function, measure: Measure, scale: float, ends: tuple[float, float] = (0.0, math.inf)
) -> np.ndarray:
    """Refuse a function of x that is not even between two ends, and return the points of the check.

    Functions of a length have no other side, and are not checked.
    """
    looked = [np.empty(0)]
    near = np.array([0.07, 0.31, 0.83, 1.37, 2.9, 11.0])  # first: what is not even may be no number farther out
    far = np.concatenate([np.geomspace(1e-6, 1e6, 4096), np.linspace(0.0, 32.0, 4097)[1:]])
    far = far * 1.0000001  # round numbers are where functions have their ends
    for x in (scale * near, scale * far) if measure.ndim == 1 else ():
        x = x[(x > ends[0]) & (x < ends[1])]
        if not x.size:
            continue
        looked.append(x)
        right, left = values(x), values(-x)
        at = int(np.argmax(np.abs(right - left)))
        if abs(right[at] - left[at]) > 1e-9 * max(1.0, abs(right[at])):
            raise ValueError(
                f"{name} is not even: it is {right[at]:.6g} at {x[at]:.6g} and {left[at]:.6g} at {-x[at]:.6g}; "
                "expected a function of the magnitude alone, such as one of numpy.abs(x)"
            )
    return np.concatenate(looked)


# -- a function of the lag, resolved -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Lags:
    """A resolved kernel function; its lags are in units of its scale, so that no result depends on that."""

    pieces: Pieces  # phi - atom, times the taper
    scale: float  # the lag where phi has fallen half-way
    atom: float  # the limit of phi at large lags: the mass at frequency 0
    errors: np.ndarray  # error of phi on each panel: rounding, noise, and what the series leave
    noise: float  # error of phi at lags near the scale
    # standard deviation of the gaussian by which phi was multiplied where it had not died away there, else inf
    taper: float


def read_lags(phi: Function, measure: Measure, scale: float, whole: np.ndarray) -> Lags:
    """Find the limit, the noise and the reach of phi, and resolve it.

    Parameters
    ----------
    phi : callable
    measure : Measure
    scale : float
        See `find_scale`.
    whole : ndarray
        Values at lags 0, 1, 2, ..., which the result matches.

    Raises
    ------
    UndecidedError
        If it does not settle at large lags or is too rough.
    """

    def scaled(x: np.ndarray) -> np.ndarray:
        return phi(scale * x)

    octaves = np.arange(_REACH + 1)
    sampled = scaled((2.0 ** octaves[:, None] * (1.0 + _FRACTIONS)).ravel()).reshape(octaves.size, -1)
    atom, noise = _find_limit(sampled, scale), measure_noise(scaled)
    sizes = np.max(np.abs(sampled - atom), axis=1)
    matter = sizes > np.maximum(1e-17 * 2.0 ** (-float(measure.ndim) * octaves), 1e-15 * abs(atom))
    wanted = int(np.max(np.nonzero(matter)[0], initial=-1)) + 1
    lags = np.arange(float(whole.size)) / scale
    last = lags[np.max(np.nonzero(np.abs(whole - atom) > max(_OVERLOOKED, 100.0 * noise))[0])] + 1.0 / scale
    wanted = max(wanted, min(math.ceil(math.log2(last)), _REACH))
    # whole lags at which the slope jumps, as that of a table does: an edge there saves many panels
    kinks = np.arange(1.0, _WHOLE + 1.0) if scale > 1.0 else np.empty(0)
    bends = [np.abs(phi(kinks - h) - 2.0 * phi(kinks) + phi(kinks + h)) for h in (2.0**-6, 2.0**-7)]
    kinks = kinks[(bends[1] > _KINK * bends[0]) & (bends[1] > _OVERLOOKED)] / scale
    tolerance = max(_TOLERANCE, NOISE * noise)

    def level(centre: np.ndarray, half: np.ndarray) -> np.ndarray:
        return tolerance * np.minimum(1.0, 1.0 / centre) ** measure.moment

    pieces, edges, reached = Pieces(np.zeros(1), np.zeros((0, 1))), np.array([0.0, 1.0]), -1
    with contextlib.suppress(UndecidedError):
        while noise < _ROUGHEST and reached < min(wanted, _REACH):
            edges = np.union1d(edges, kinks[(kinks > edges[0]) & (kinks < edges[-1])])
            budget, seen = _LAG_PANELS - pieces.halves.size, (lags, whole - atom)
            part = build(lambda x: scaled(x) - atom, edges, level, tolerance=tolerance, budget=budget, seen=seen)
            pieces, reached = pieces.followed_by(part), reached + 1
            edges = part.edges[-1] * np.array([1.0, 2.0])
    if reached < min(wanted, _REACH) and (reached < 4 or sizes[reached] >= 0.5):
        raise UndecidedError(
            "phi is too rough to resolve: it is not smooth on panels to within 1e-6",
            "expected a function that is smooth except at some kinks, or values on a grid (from_autocorrelation)",
        )
    taper = math.inf
    if reached < wanted:
        reach = float(pieces.edges[-1])
        left = sizes[reached] * reach**measure.moment
        taper = reach / math.sqrt(2.0 * math.log(max(left, 1e-6) / _CUT_OFF))  # what is cut off is then rounding
        pieces = _taper(pieces, taper, 2)
    rough = np.max(np.abs(pieces.series[:, -2:]), axis=1)
    errors = rough + _ROUNDING * (np.max(np.abs(pieces.values), axis=1) + abs(atom))
    return Lags(pieces, scale, atom, errors, max(noise, _ROUNDING), taper)


def measure_noise(phi: Function) -> float:
    """Return the typical error of a function at arguments near 1: what is not smooth on panels so narrow."""
    places = 2.0 ** np.arange(-4.0, 5.0)[:, None, None] * (1.0 + _FRACTIONS[:8, None])
    points = places * (1.0 + _NARROW * (1.0 + NODES))
    values = phi(points.ravel()).reshape(points.shape)
    series = (values - values[..., :1]) @ TO_SERIES
    return float(np.max(np.median(np.max(np.abs(series[..., -LAST:]), axis=-1), axis=-1)))


def find_scale(phi: Function, hint: float | None) -> float:
    """Return `hint`, or the lag where phi has fallen half-way: to 1/2, or half as far as it falls."""
    if hint is not None:
        return hint
    lags = np.outer(2.0 ** np.arange(-_PROBED, _PROBED), 1.0 + np.arange(_PROBES) / _PROBES).ravel()
    fall = 1.0 - phi(lags)
    depth = float(np.max(fall))
    if depth < 1e-9:
        raise ValueError(
            f"phi is 1 at every lag from {lags[0]:.3g} to {lags[-1]:.3g}; expected a function that falls there, or "
            "scale=..., about the lag where it does"
        )
    half_way = 0.5 if depth > 0.75 else 0.5 * depth
    first = int(np.argmax(fall >= half_way))
    if first == 0:
        raise ValueError(
            f"phi({lags[0]:.3g}) is {1.0 - fall[0]:.6g}; expected a function continuous at 0, where it is 1"
        )
    low, high = lags[first - 1 : first + 1].tolist()
    for _ in range(53):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if 1.0 - float(phi(np.array([middle]))[0]) >= half_way else (middle, high)
    return float(high)


def cut_smoothly(lags: Lags, measure: Measure) -> list[tuple[float, Lags]]:
    """Return phi cut off by ever narrower windows, each with the frequency from which on it has the spectrum of phi.

    Where panels are as wide as that, phi has no detail, and all that they add to the spectrum at such frequencies is
    their rounding, which is large where r phi decays slowly.
    """
    pieces, found = lags.pieces, [(0.0, lags)]
    ends = pieces.edges[1:]
    for width in _WINDOWS[ends[-1] >= 2.0 * _WINDOWS][::-1].tolist() if measure.moment else []:
        if np.min(pieces.halves[ends > 0.1 * width]) < _SMOOTH * width:
            break
        part = _taper(pieces.until(_END * width), width, _FLAT)
        errors = lags.errors[np.searchsorted(ends, part.centres)] * _window(part.edges[:-1], width, _FLAT)
        found.append((_WINDOWED / width, dataclasses.replace(lags, pieces=part, errors=errors)))
    return found


def _window(x: np.ndarray, width: float, power: int) -> np.ndarray:
    return np.asarray(np.exp(-0.5 * (x / width) ** power))


def _taper(pieces: Pieces, width: float, power: int) -> Pieces:
    """Multiply by a window (a gaussian if `power` is 2), on panels that resolve it."""
    parts = 2 ** np.ceil(np.log2(np.maximum(1.0, 2.0 * power * pieces.halves / width))).astype(int)  # they stay dyadic
    ends = zip(pieces.edges[:-1], pieces.edges[1:], parts.tolist(), strict=True)
    edges = [np.linspace(low, high, n, endpoint=False) for low, high, n in ends]
    return sample(lambda x: pieces(x) * _window(x, width, power), np.append(np.concatenate(edges), pieces.edges[-1]))


def _find_limit(sampled: np.ndarray, scale: float) -> float:
    """The value to which phi settles, from samples in octaves of the lag."""
    sizes = np.max(np.abs(sampled), axis=1)
    if np.max(sizes[-6:]) <= 0.75 * np.max(sizes[-20:-14]) or np.max(sizes[-6:]) < 1e-12:
        return 0.0
    spread = float(np.ptp(sampled[-20:]))
    if spread > 1e-9:
        raise UndecidedError(
            f"phi does not settle: beyond lag {scale * 2.0 ** (_REACH - 20):.3g} it still varies by {spread:.3g}; it "
            "decays too slowly, or its law has atoms away from frequency 0 (as cos has), which no density describes",
            "expected a phi that reaches a limit; for periodic ones combine kernels by mixture and product, or give "
            "values on a grid to from_autocorrelation",
        )
    return float(np.mean(sampled[-20:]))
