"""A function of the lag, resolved: Legendre series on panels, octave by octave, with its scale, limit and errors."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from rfrope.bochner.measures import Measure
from rfrope.bochner.piecewise import ORDER, Function, Pieces, Unresolved, build
from rfrope.bochner.verdicts import UndecidedError

_PROBED = 64  # octaves to either side in which the scale is looked for
_REACH = 60  # octaves from there to the largest lag, and to the largest frequency that is computed
_NOTHING = np.empty(0)
_TOLERANCES = (2e-14, 1e-11, 1e-8, 1e-6)  # for phi on a panel: rounded, noisy, and single-precision functions
_ROUNDING = 1.5e-15  # error of phi and its transform, relative to the largest value on a panel
_LARGEST_MOMENT = 1e5  # moment of r phi, in units of the scale
_LAG_PANELS = 12000
_FINE_PANELS = 1e-15  # size of the upper coefficients of panels that could be wider
_CUT_OFF = 1e-15  # what of phi, or r phi, may be left where a taper ends
_NOISE_SEEN = 4.0  # scales from which the noise of phi is taken
_FRACTIONS = (0.6180339887498949 * np.arange(48)) % 1.0  # well spread in an octave


@dataclass(frozen=True)
class Lags:
    """A kernel function, resolved.

    Attributes
    ----------
    pieces : Pieces
        phi - atom, times the taper.
    scale : float
        A power of two near the lag where phi has fallen half-way.
    atom : float
        The limit of phi at large lags: the mass at frequency 0.
    errors : ndarray
        Error of phi on each panel: rounding, noise, and what the series leave.
    reach : float
        Lag beyond which phi - atom is taken as 0.
    taper : float
        Standard deviation of the gaussian by which phi was multiplied where it had not died away there, else inf.
    """

    pieces: Pieces
    scale: float
    atom: float
    errors: np.ndarray
    reach: float
    taper: float

    @property
    def noise(self) -> float:
        """Typical error of phi: kinks, on panels that are tiny, do not count."""
        close = self.pieces.centres < max(_NOISE_SEEN * self.scale, float(self.pieces.edges[1]))
        return float(np.average(self.errors[close], weights=self.pieces.halves[close]))


def read_lags(phi: Function, measure: Measure, scale: float | None, seen: np.ndarray = _NOTHING) -> Lags:
    """Find the scale, the limit and the reach of phi, and resolve it.

    Parameters
    ----------
    phi : callable
    measure : Measure
    scale : float or None
    seen : ndarray
        Lags about which phi has something that panels would overlook: edges of panels.

    Raises
    ------
    ValueError
        If phi is constant or jumps at 0.
    UndecidedError
        If it does not settle at large lags or is too rough.
    """
    scale = find_scale(phi, scale)
    octaves = np.arange(_REACH + 1)
    sampled = phi((scale * 2.0 ** octaves[:, None] * (1.0 + _FRACTIONS)).ravel()).reshape(octaves.size, -1)
    atom = _find_limit(sampled, scale)
    sizes = np.max(np.abs(sampled - atom), axis=1)
    matter = sizes > np.maximum(1e-17 * 2.0 ** (-float(measure.ndim) * octaves), 1e-15 * abs(atom))
    octaves_needed = int(np.max(np.nonzero(matter)[0], initial=-1)) + 1
    if seen.size:
        octaves_needed = min(max(octaves_needed, math.ceil(math.log2(float(seen[-1]) / scale))), _REACH)
    wanted = octaves_needed
    if measure.moment:  # r phi must not grow so large that its rounding shows
        octaves_needed = min(wanted, int(np.argmax(np.append(sizes * 2.0**octaves > _LARGEST_MOMENT, True))))
    for tolerance in _TOLERANCES:
        pieces, reached = _resolve(lambda x: phi(x) - atom, scale, octaves_needed, measure, tolerance, seen)
        if reached == octaves_needed or (reached >= 4 and sizes[reached] < 0.5):
            break
    else:
        raise UndecidedError(
            "phi is too rough to resolve: it is not smooth on panels to within 1e-6",
            "a function that is smooth but for some kinks would be decided; smooth it, or give values on a grid to "
            "from_autocorrelation",
        )
    reach, taper = scale * 2.0**reached, math.inf
    if reached < octaves_needed or min(wanted, _REACH) > octaves_needed or wanted > _REACH:
        left = sizes[min(reached, _REACH)] * (reach / scale) ** measure.moment
        taper = reach / math.sqrt(2.0 * math.log(max(left, 1e-6) / _CUT_OFF))  # what is cut off is then rounding
        pieces = _taper(pieces, taper)
    rough = np.max(np.abs(pieces.series[:, -2:]), axis=1)
    errors = rough + _ROUNDING * (np.max(np.abs(pieces.values), axis=1) + abs(atom))
    return Lags(pieces, scale, atom, errors, reach, taper)


def find_scale(phi: Function, hint: float | None) -> float:
    """Return a power of two near the lag where phi has fallen half-way."""
    return 2.0 ** round(math.log2(_find_half_lag(phi) if hint is None else hint))


def _taper(pieces: Pieces, width: float) -> Pieces:
    """Multiply by a gaussian, on panels that resolve it."""
    parts = 2 ** np.ceil(np.log2(np.maximum(1.0, 4.0 * pieces.halves / width))).astype(int)  # edges stay dyadic
    edges = [
        np.linspace(low, high, n, endpoint=False)
        for low, high, n in zip(pieces.edges[:-1], pieces.edges[1:], parts.tolist(), strict=True)
    ]
    return build(
        lambda x: pieces(x) * np.exp(-0.5 * (x / width) ** 2),
        np.append(np.concatenate(edges), pieces.edges[-1]),
        lambda centre, _: np.full_like(centre, np.inf),
        tolerance=1.0,
        budget=10**6,
    )


def _find_half_lag(phi: Function) -> float:
    lags = 2.0 ** np.arange(-_PROBED, _PROBED + 1.0)
    fall = 1.0 - phi(lags)
    depth = float(np.max(fall))
    if depth < 1e-9:
        raise ValueError(
            f"phi is 1 at every lag from {lags[0]:.3g} to {lags[-1]:.3g}; expected a function that falls there, or "
            "scale=..., about the lag where it does"
        )
    first = int(np.argmax(fall >= 0.5 * depth))
    if first == 0:
        raise ValueError(
            f"phi({lags[0]:.3g}) is {1.0 - fall[0]:.6g}, and phi(0) is 1; expected a function continuous at 0"
        )
    return float(lags[first])


def _find_limit(sampled: np.ndarray, scale: float) -> float:
    """The value to which phi settles, from samples in octaves of the lag."""
    sizes = np.max(np.abs(sampled), axis=1)
    if np.max(sizes[-6:]) <= 0.75 * np.max(sizes[-20:-14]) or np.max(sizes[-6:]) < 1e-12:
        return 0.0
    far = sampled[-20:]
    spread = float(np.ptp(far))
    if spread > 1e-9:
        raise UndecidedError(
            f"phi does not settle: beyond lag {scale * 2.0 ** (_REACH - 20):.3g} it still varies by {spread:.3g}; its "
            "law then has atoms away from frequency 0 (as cos has), which no density describes, or it decays too "
            "slowly to be resolved",
            "a phi that comes to its limit would be decided; mix and multiply kernels for periodic ones, or give "
            "values on a grid to from_autocorrelation",
        )
    return float(np.mean(far))


def _resolve(
    phi: Function, scale: float, octaves: int, measure: Measure, tolerance: float, seen: np.ndarray
) -> tuple[Pieces, int]:
    """Panels up to ``scale 2^octaves``, or as many octaves as the budget allows."""

    def level(centre: np.ndarray, half: np.ndarray) -> np.ndarray:
        return tolerance * np.minimum(scale / half, 100.0) * np.minimum(1.0, scale / centre) ** measure.moment

    found: Pieces | None = None
    edges = np.array([0.0, scale])
    for octave in range(octaves + 1):
        edges = np.union1d(edges, seen[(seen > edges[0]) & (seen < edges[-1])]) if seen.size else edges
        left = _LAG_PANELS - (found.halves.size if found else 0)
        try:
            part = build(phi, edges, level, tolerance=tolerance, budget=left)
        except Unresolved:
            return found or make_zero(scale), octave - 1
        found = found.followed_by(part) if found else part
        edges = np.linspace(1.0, 2.0, count_starting_panels(part) + 1) * found.edges[-1]
    return found or make_zero(scale), octaves


def make_zero(scale: float) -> Pieces:
    """The zero function on one panel."""
    return Pieces(np.array([0.0, scale]), np.zeros((1, 1)))


def count_starting_panels(before: Pieces) -> int:
    """Return with how many panels to begin an octave: as many as an even one before it needed, or half of them."""
    count = before.halves.size
    if count <= 2 or not np.all(before.halves == before.halves[0]):
        return 1
    sizes = np.max(np.abs(before.series), axis=1, keepdims=True)
    fine = np.all(np.abs(before.series[:, ORDER // 3 :]) <= _FINE_PANELS * sizes)
    return count // 2 if fine else count
