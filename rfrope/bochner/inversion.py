"""From a function of the lag to its spectral law, by adaptive Fourier and Hankel quadrature.

`reading.read_lags` resolves phi as Legendre series on panels, and `transform` turns these into the radial law. In k
axes the law of the length rho of omega is stored as ``q(rho)``: its density p for k = 1 and ``p / rho`` above. With
``s(w) = (2/pi) int r phi(r) sin(w r) dr`` it is ``q = s`` for k = 3, and for k = 2 the Abel transform of s, because a
kernel's density in two axes is the marginal of the one in three. These are the Hankel transforms.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.polynomial import legendre

from rfrope.bochner.piecewise import WEIGHTS, Function, Pieces, abel, build, sample
from rfrope.bochner.reading import Lags, cut_smoothly
from rfrope.bochner.refusals import UndecidedError
from rfrope.bochner.tabulated import Measure

_CLOSE = np.arange(-64.0, 65.0) / 64.5  # where panels are looked at for the lowest density
_ROUNDS = 3  # of the search for the nearest law
_REACH = 60  # octaves to the largest and the least frequency at most; noise and the budget end before
_PHASE = 16.0  # lag times width of a panel of the spectrum
_MOST_STARTS = 400  # panels with which an octave is begun
_FEWEST_STARTS = 64  # below which it is not worth while
_SMEARED = 256.0  # width of a taper times that of a panel on which a line that is smeared by it is seen
_COST = 2**18  # at most so many of these times the panels of the lags
_HIDDEN = 1e-11  # part of phi, and so of the mass that may hide at low frequencies
# signal over noise to which the spectrum is believed, where it falls steeply and elsewhere: phi to rounding, noisy phi
_TRUSTED = ((1e3, 1e4), (10.0,))
_STEEP = 12.0  # exponent of a tail from which on it is: an error of its shape then spoils less than what is cut off
_NOISY = 1e-12  # errors of phi from which on it is noisy
_END = 2.0**490  # where tails end
_LEAST = 1e-40  # mass of a tail
_FLOOR = 1e-16  # mass by which a panel may be wrong
_STEEPEST = 400.0  # exponent of a tail
_ALIKE = 1e-2  # part by which the exponents of two stretches may differ by rounding


@dataclass(frozen=True)
class Spectrum:
    """A radial law, not yet normalised and possibly negative, with a power-law tail beyond the computed part."""

    pieces: Pieces  # q, see the module
    start: float  # frequency from which the tail holds
    # those of the density of the radius; (inf, 0) where there is no tail
    exponent: float
    tail_mass: float
    total: float  # the mass below and that of the tail as fitted, before the total is made to be right
    ripple: float = 0.0  # mass that the tail leaves out if the law goes on to differ from a power law as it does before
    noise: float = 0.0  # mass that errors of the computation may amount to

    @property
    def known(self) -> Pieces:
        """Return the computed part, without the tail."""
        return self.pieces.until(self.start)


def transform(lags: Lags, measure: Measure) -> Spectrum:
    """Return the radial law of a resolved kernel function: its Fourier transform, or its Hankel transform."""
    parts = [(low, part, measure.radial(part.pieces)) for low, part in cut_smoothly(lags, measure)]
    lows = np.array([low for low, _, _ in parts[1:]])

    def evaluate(w: np.ndarray, on_part: Callable[[Lags, Pieces, np.ndarray], np.ndarray]) -> np.ndarray:
        found, chosen = np.empty(w.shape), np.searchsorted(lows, w, side="right")
        for i in np.unique(chosen):
            _, part, moments = parts[i]
            found[chosen == i] = 2.0 / math.pi * on_part(part, moments, w[chosen == i])
        return found

    def part_noise(part: Lags, _: Pieces, w: np.ndarray) -> np.ndarray:
        widths = np.minimum(2.0 * part.pieces.halves, 2.0 / w[:, None])
        return 4.0 * np.sqrt(np.sum((part.pieces.centres**measure.moment * part.errors * widths) ** 2, axis=1))

    law = partial(evaluate, on_part=lambda _, moments, w: moments.fourier(w, sine=measure.ndim > 1, tails=True))
    noise = partial(evaluate, on_part=part_noise)
    noisy = np.max(lags.errors * np.minimum(1.0, 2.0 * lags.pieces.halves)) > _NOISY
    whole = resolve_octaves(law, noise, measure, lags)
    spectrum = continue_tail(whole, noise, measure, 1.0 - lags.atom, _TRUSTED[int(noisy)])
    if measure.ndim == 2:
        inner = spectrum.pieces

        def level(centre: np.ndarray, half: np.ndarray) -> np.ndarray:
            return np.maximum(noise(centre), _FLOOR / (half * centre))

        found = build(lambda w: abel(inner, w), inner.edges, level, tolerance=1e-13, budget=8 * measure.panels)
        # a margin: Abel's transform adds up what is missing along a line; no law was seen to need it
        spectrum = dataclasses.replace(spectrum, pieces=found, noise=4.0 * spectrum.noise)
    pieces = Pieces(spectrum.pieces.edges / lags.scale, spectrum.pieces.series * lags.scale ** (1 + measure.moment))
    return dataclasses.replace(spectrum, pieces=pieces, start=spectrum.start / lags.scale)


def _count_starts(lags: Lags, w: float) -> int:
    """Return the number of panels with which to start the octave above a frequency; 0 if nothing is expected there.

    It is that of the panels of the lags fine enough for such frequencies. Panels graded towards a kink do not count:
    what they hold is smooth in the frequency.
    """
    halves, series = lags.pieces.halves, lags.pieces.series
    before, after = np.append(halves[:1], halves[:-1]), np.append(halves[1:], halves[-1:])
    even = np.minimum(np.abs(before / halves - 1.0), np.abs(after / halves - 1.0)) < 0.25
    held = np.max(np.where(np.abs(series) > _HIDDEN, np.arange(series.shape[1]), 0), axis=1) / halves
    phase = w * float(np.max(lags.pieces.edges[1:], where=even & (held >= w), initial=0.0)) / _PHASE
    affordable = _COST // halves.size  # the transform takes time in proportion to the panels of the lags
    return min(_MOST_STARTS, affordable, math.ceil(phase)) if phase > 1.0 and affordable >= _FEWEST_STARTS else 0


def _count_smeared(lags: Lags, w: float) -> int:
    """Return the number of panels in the octave above a frequency on which a line that a taper smears is seen."""
    oscillates = lags.taper < _PHASE * lags.pieces.halves.size
    return min(math.ceil(w * lags.taper / _SMEARED), _MOST_STARTS) if oscillates else 1


def continue_tail(
    whole: Pieces, noise: Function, measure: Measure, expected: float, trusted: tuple[float, ...] = (1.0,)
) -> Spectrum:
    """Cut a spectrum where noise dominates, and continue it by a power law.

    `expected` is the whole mass, if it is known, else 0; `trusted` the signals over noise up to which the spectrum is
    believed, first where it falls steeply.
    """
    for signal in trusted:
        found = _fit_tail(_cut(whole, noise, signal), noise, measure, expected)
        if found.exponent >= _STEEP:
            break
    if not found.tail_mass > 0.0:
        return found
    amplitude = found.tail_mass * (found.exponent - 1.0) / found.start
    octaves = min(max(1, math.ceil(60.0 / (found.exponent - 1.0))), int(math.log2(_END / found.start)))
    tail = build(
        lambda w: amplitude * (w / found.start) ** -found.exponent / w**measure.moment,
        found.start * 2.0 ** np.arange(octaves + 1.0),
        lambda centre, _: np.full_like(centre, 1e-290),
        tolerance=1e-12,
        budget=10**5,
    )
    return dataclasses.replace(found, pieces=found.pieces.followed_by(tail))


def resolve_octaves(law: Function, noise: Function, measure: Measure, lags: Lags) -> Pieces:
    """Resolve a spectrum octave by octave until noise dominates.

    Every octave starts with as many panels as the lags could require, and ends of panels are looked at, too.
    """

    def level(centre: np.ndarray, half: np.ndarray) -> np.ndarray:
        return np.maximum(3.0 * noise(centre), _FLOOR / (half * centre**measure.moment))

    # down to where only negligible mass can hide: phi vanishes at lags of its inverse
    last = int(np.max(np.nonzero(np.max(np.abs(lags.pieces.values), axis=1) > _HIDDEN)[0], initial=0))
    octaves = min(_REACH - 1, math.floor(math.log2(8.0 * float(lags.pieces.edges[last + 1]))))
    lows = (2.0 ** -np.arange(1.0, octaves + 1.0)).tolist()
    counts = [max(_count_starts(lags, low), _count_smeared(lags, low)) for low in lows]
    inner = [low * np.linspace(1.0, 2.0, count + 1) for low, count in zip(lows, counts, strict=True)]
    edges = np.unique(np.concatenate([np.array([0.0, 1.0]), *inner]))
    found = build(law, edges, level, tolerance=1e-13, budget=measure.panels)
    with contextlib.suppress(UndecidedError):  # the budget ends
        for _ in range(_REACH):
            start, left = float(found.edges[-1]), measure.panels - found.halves.size
            more = _count_starts(lags, start)
            most = max(more, _count_smeared(lags, start))
            part = build(law, start * np.linspace(1.0, 2.0, most + 1), level, tolerance=1e-13, budget=left)
            found = found.followed_by(part)
            strongest = np.max(np.abs(part.values))
            faint = strongest <= 3.0 * noise(found.edges[-1:])[0]
            faint |= strongest * found.edges[-1] ** (1 + measure.moment) < 1e-25
            if faint and not more and measure.radial(found).mass >= (1.0 - 1e-6) * (1.0 - lags.atom):
                break  # a law may have gaps
    return found


def _cut(found: Pieces, noise: Function, trusted: float) -> Pieces:
    """Keep what is believed: up to the last node where the spectrum stands out of the noise."""
    nodes = found.nodes.ravel()
    strong = np.abs(found.values).ravel() >= trusted * np.repeat(noise(found.centres), found.nodes.shape[1])
    if not strong.any():
        raise UndecidedError(
            "the spectrum of phi was not found: it does not exceed the numerical error at any frequency examined",
            "pass scale=..., about the lag of its finest detail, or more exact values if phi has errors",
        )
    last = int(np.max(np.nonzero(strong)[0]))
    panel, node = divmod(last, found.nodes.shape[1])
    at_end = node == found.nodes.shape[1] - 1
    return found.until(float(found.edges[panel + 1] if at_end else nodes[last]))


def _fit_tail(known: Pieces, noise: Function, measure: Measure, expected: float) -> Spectrum:
    """Known part of a law, with the power law that continues it.

    A smooth law is continued with its value and slope at the end, one that oscillates by the masses of its last two
    octaves. Where the mass that is missing contradicts the fit, as it does for steep laws, it takes its place.
    """
    law, end = measure.radial(known), float(known.edges[-1])
    missing = expected - law.mass
    error = float(np.sum(noise(known.centres) * 2.0 * known.halves * known.centres**measure.moment))
    smooth = bool(np.all(np.diff(law(end * 2.0 ** (np.arange(-8.0, 1.0) / 32.0))) < 0.0))
    nothing = Spectrum(known, end, math.inf, 0.0, expected - missing, noise=error)
    above, step = law.integral_above(), 2.0**0.125 if smooth else 2.0
    above_inner, outer = above(np.array([end / step**2, end / step])).tolist()
    inner = above_inner - outer
    if inner <= 0.0 or outer <= 0.0 or outer >= inner * step**-0.005:
        return nothing
    exponent = min(1.0 - math.log(outer / inner) / math.log(step), _STEEPEST)
    if smooth:  # where the slope is the same farther back, less of it is rounding
        below, half = above(np.array([0.5 * end, math.sqrt(0.5) * end])).tolist()
        longer = 1.0 - 2.0 * math.log2(half / (below - half)) if below > half > 0.0 else math.inf
        exponent = longer if abs(longer - exponent) < _ALIKE * exponent else exponent
    octaves = outer / (step ** (exponent - 1.0) - 1.0) * (exponent - 1.0)
    height = end * float(law(np.array([end]))[0]) if smooth else octaves
    fitted = height / (exponent - 1.0)
    if not smooth and abs(missing) < 0.1 * fitted:  # the octaves are not alike: the law ends here
        fitted = max(missing, 0.0)
    if fitted < _LEAST:
        return nothing
    mass = fitted
    if abs(missing - fitted) > 2.0 * error and 0.0 < missing < 5.0 * fitted:
        mass = missing
        exponent = min(1.0 + height / missing, _STEEPEST) if smooth else exponent
    last = end * 2.0 ** (-np.arange(1000.0) / 4000.0)
    tail = mass * (exponent - 1.0) / end * (last / end) ** -exponent
    ripple = mass * float(np.mean(np.abs(law(last) - tail)) / np.mean(tail))
    return Spectrum(known, end, exponent, mass, expected - missing + fitted, ripple, error)


@dataclass(frozen=True)
class Negative:
    """The negative part of a spectrum, including a negative atom, and the lowest density."""

    # the mass, and what passes for rounding
    mass: float
    limit: float
    # where the density is lowest, and the density there
    frequency: float
    density: float
    stretch: tuple[float, float]  # frequencies between which most of the mass lies
    where: str  # words for frequency and density


def measure_negative(spectrum: Spectrum, measure: Measure, atom: float, limit: float) -> Negative:
    """Return the negative part of the computed spectrum, without the tail, and of the atom at frequency 0."""
    from scipy.optimize import minimize_scalar

    known = spectrum.known
    near = known.centres[:, None] + known.halves[:, None] * _CLOSE
    heights = (known.series @ legendre.legvander(_CLOSE, known.series.shape[1] - 1).T) / measure.ground(near)
    near, at = near.ravel(), int(np.argmin(heights))
    around = (float(near[max(at - 1, 0)]), float(near[min(at + 1, near.size - 1)]))
    options = {"xatol": 1e-9 * around[1]}
    found = minimize_scalar(lambda w: known(w) / measure.ground(w), bounds=around, method="bounded", options=options)
    frequency, density = float(found.x), float(found.fun)
    where = f"at frequency {frequency:.6g} (radians per unit of position) its spectral density is {density:.3g}"
    rough = float(np.sum(weigh_nodes(known, measure) * np.maximum(-known.values, 0.0)))
    edges = np.union1d(known.edges, frequency)  # as little else may be negative
    below = _clip(lambda w: -known(w), edges, measure, 1e-13 + 1e-6 * rough)
    nodes, shares = below.nodes.ravel(), (weigh_nodes(below, measure) * np.maximum(below.values, 0.0)).ravel()
    empty = np.nonzero(np.append(shares <= 0.0, True))[0]  # between two of them is a run of nodes with mass
    best = int(np.argmax(np.diff(np.append(0.0, np.cumsum(shares))[empty], prepend=0.0)))
    last = min(int(empty[best]), nodes.size - 1)
    stretch, mass = (float(nodes[empty[best - 1]]) if best else 0.0, float(nodes[last])), float(np.sum(shares))
    if atom < 0.0:
        where = f"it tends to {atom:.6g} at large lags, which is an atom of that mass at frequency 0"
        return Negative(mass - atom, limit, 0.0, -math.inf, stretch, where)
    return Negative(mass, limit, frequency, density, stretch, where)


def weigh_nodes(pieces: Pieces, measure: Measure) -> np.ndarray:
    """Return the mass at each node for a q of 1."""
    return np.asarray(pieces.halves[:, None] * WEIGHTS * pieces.nodes**measure.moment)


def _clip(function: Function, edges: np.ndarray, measure: Measure, mass: float) -> Pieces:
    """Return the positive part of a function, to within a mass on each panel."""
    return build(
        lambda w: np.maximum(function(w), 0.0),
        edges,
        lambda centre, half: mass / (half * centre**measure.moment),
        tolerance=1e-12,
        budget=10**5,
    )


def find_extents(spectrum: Spectrum, measure: Measure) -> tuple[float, ...]:
    """Return lengths of omega below which 90 %, 99 %, ... of the mass lie."""
    pieces = measure.radial(spectrum.pieces)
    masses = np.cumsum(np.abs(pieces.masses))
    shares = 1.0 - 10.0 ** -np.array([1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 7.0, 9.0])
    return tuple(np.unique(pieces.edges[1 + np.searchsorted(masses, shares * masses[-1])]).tolist())


def project(spectrum: Spectrum, measure: Measure, mass: float) -> Spectrum:
    """Return the nonnegative law of a given mass whose density is nearest in L2.

    By the Karush-Kuhn-Tucker conditions it is ``max(f - level, 0)``, with the level that makes the mass right. Clipping
    at 0 and renormalising is not nearest, and impossible if the positive part has infinite mass (a box).
    """
    from scipy.optimize import brentq

    known = pieces = spectrum.known
    for _ in range(_ROUNDS):  # each finds the level by the nodes of panels that end nearer to where the law does
        ground = measure.ground(pieces.nodes)
        weights = weigh_nodes(pieces, measure)

        def excess(level: float, pieces: Pieces = pieces, ground: Any = ground, weights: Any = weights) -> float:
            return float(np.sum(weights * np.maximum(pieces.values - level * ground, 0.0))) - mass

        top = float(np.max(pieces.values / ground))
        level = brentq(excess, 0.0, top, xtol=1e-12 * top) if excess(0.0) > 0.0 else 0.0
        above = partial(lambda level, w: known(w) - level * measure.ground(w), level)
        law = _clip(above, known.edges, measure, 1e-9 * mass)
        pieces = sample(known, law.edges)
    end = float(law.edges[np.max(np.nonzero(law.series.any(axis=1))[0]) + 1])
    return Spectrum(law.until(end), end, math.inf, 0.0, spectrum.total, noise=spectrum.noise)
