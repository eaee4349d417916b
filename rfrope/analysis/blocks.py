"""Wavelengths of blocks, their turns over a context, and the distribution of the frequencies."""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from rfrope._core import angles, array
from rfrope._core.arguments import positive, whole
from rfrope._core.array import Array
from rfrope._core.results import Result, returned_as_given
from rfrope.kernels.parameters import radius


@dataclass(frozen=True, eq=False)
class DensityOfStates(Result):
    """Distribution of frequencies over the logarithm of their magnitude, and the best-fitting log-uniform band.

    Attributes
    ----------
    magnitudes : ndarray, (N,) float64, radians per unit of position
        Nonzero magnitudes in ascending order. The j-th (from 1) is the ``j / N`` quantile.
    zeros : int
        Number of blocks of frequency 0, which all other fields leave out.
    edges : ndarray, (n_bins + 1,) float64, radians per unit of position
        Ends of the bins, ascending.
    share : ndarray, (n_bins,) float64
        Fraction of the N magnitudes in each bin, with sum 1. A bin includes its upper end but not its lower one; with
        `n_bins` given, the first bin includes both.
    low, high : float, radians per unit of position
        The fitted band; NaN if all frequencies are 0.
    distance : float
        Kolmogorov distance of the magnitudes from the fitted law, between 0 and 1: 1/N for an exact ladder, such as
        `rfrope.geometric`; NaN if all frequencies are 0.

    See Also
    --------
    analysis.density_of_states

    Examples
    --------
    >>> import rfrope
    >>> found = rfrope.analysis.density_of_states(rfrope.geometric(32))
    >>> found.zeros, round(float(found.share.sum()), 6)
    (0, 1.0)
    """

    magnitudes: np.ndarray
    zeros: int
    edges: np.ndarray
    share: np.ndarray
    low: float
    high: float
    distance: float


@array.select_device
def wavelengths(frequencies: Array) -> Array:
    """Return the wavelength of each block, ``2 pi / |omega|``: the distance in which it turns once.

    Parameters
    ----------
    frequencies : array_like, radians per unit of position
        ``(D,)`` or ``(*H, D, k)``.

    Returns
    -------
    array, units of position, float64 where the library has it
        ``(D,)`` or ``(*H, D)``. With k axes, the distance from crest to crest, across the wave. Infinite for frequency
        0.

    Raises
    ------
    ValueError
        If `frequencies` is a single number, or holds NaN, infinity or magnitudes above 2**500.
    TypeError
        If `frequencies` does not hold real numbers.

    See Also
    --------
    analysis.turns, plotting.wavelengths

    Notes
    -----
    Source: section 5 of the mathematics page. Blocks have no common period in general, despite Zhao: ratios of
    wavelengths are irrational, and sums over blocks are quasi-periodic.

    Examples
    --------
    >>> wavelengths([1.0, 0.01, 0.0]).round(2)
    array([  6.28, 628.32,    inf])
    """
    omega, xp = _magnitudes(frequencies)
    still = omega == 0.0
    with np.errstate(over="ignore"):  # for the smallest floats
        length = 2.0 * math.pi / xp.where(still, xp.ones_like(omega), omega)
    return xp.where(still, xp.full_like(omega, math.inf), length)


@array.select_device
def turns(frequencies: Array, context: float) -> Array:
    """Return the number of turns of each block over a context, ``context |omega| / (2 pi)``.

    A block with less than one turn is a "dead channel": training at that context has shown only a part of its circle,
    and longer texts bring new angles. Far below one turn a block hardly rotates between any two tokens: it carries
    content but no position.

    Parameters
    ----------
    frequencies : array_like, radians per unit of position
        ``(D,)`` or ``(*H, D, k)``.
    context : float, units of position
        Positive, such as the number of tokens in training.

    Returns
    -------
    array, float64 where the library has it
        ``(D,)`` or ``(*H, D)``. With k axes, turns over that distance across the wave.

    Raises
    ------
    ValueError
        See `wavelengths`. Also if `context` is not positive and finite.
    TypeError
        See `wavelengths`. Also if `context` is not a number.

    See Also
    --------
    analysis.wavelengths

    Examples
    --------
    A quarter of the blocks of Llama 2 are dead over its 4096 positions of training:

    >>> import rfrope
    >>> made = turns(rfrope.geometric(64, base=10_000.0), 4096)
    >>> made[[45, 46, 63]].round(3)
    array([1.004, 0.869, 0.075])
    >>> int((made < 1.0).sum())
    18
    """
    context = positive("context", context)
    omega, _ = _magnitudes(frequencies)
    with np.errstate(over="ignore", under="ignore"):
        return omega * (context / (2.0 * math.pi))


@returned_as_given
def density_of_states(frequencies: Array, *, n_bins: int | None = None) -> DensityOfStates:
    """Return the distribution of frequencies over ``ln |omega|``, and its distance from a log-uniform law.

    Standard RoPE has equally many frequencies in every octave between one over the base and 1. `distance` measures how
    far a scaled or learned set departs from that.

    Parameters
    ----------
    frequencies : array_like, radians per unit of position
        ``(D,)`` or ``(*H, D, k)``, with at least one block. All heads are pooled, and with k axes magnitudes are used.
        Arrays on a device are copied to the host.
    n_bins : int, optional
        Number of bins, equally wide in the logarithm, from the smallest magnitude to the largest. Default: octaves from
        the largest magnitude downwards.

    Returns
    -------
    DensityOfStates

    Raises
    ------
    ValueError
        See `wavelengths`. Also if there are no blocks, or `n_bins` is below 1.
    TypeError
        See `wavelengths`. Also if `n_bins` is not a whole number.

    See Also
    --------
    analysis.DensityOfStates, analysis.wavelengths

    Notes
    -----
    The band is a least-squares line ``a - h j``, j = 0, ..., N - 1, fitted to the logarithms in descending order; then
    ``high = exp(a)`` and ``low = exp(a - N h)``, one step below the last. So a geometric ladder ``base ** (-i / D)``,
    the left-end quantile design of the law (section 5 of the mathematics page), gives 1/base and 1. The density of
    states is that of the RF-RoPE paper, "an approximately log-uniform spacing".

    Examples
    --------
    >>> import rfrope
    >>> states = density_of_states(rfrope.geometric(64, base=10_000.0))
    >>> round(states.low, 12), round(states.high, 12), round(states.distance, 6)
    (0.0001, 1.0, 0.015625)
    >>> states.edges[-3:], (64 * states.share[-2:]).round().astype(int)
    (array([0.25, 0.5 , 1.  ]), array([5, 5]))

    With the slower half of the frequencies divided by 8, as by a scheme for longer contexts, it is not a ladder:

    >>> scaled = rfrope.geometric(64) / ([1.0] * 32 + [8.0] * 32)
    >>> round(density_of_states(scaled).distance, 3)
    0.098
    """
    omega, _ = _magnitudes(angles.numbers_on_host(angles.frequencies_of(frequencies), "frequencies"))
    n_bins = None if n_bins is None else whole("n_bins", n_bins, 1)
    host = np.sort(omega.astype(np.float64).reshape(-1))
    if not host.size:
        raise ValueError(f"frequencies has magnitudes of shape {omega.shape}; expected at least one block")
    nonzero = host[host > 0.0]
    edges = _edges(nonzero, n_bins)
    place = np.maximum(np.searchsorted(edges, nonzero, side="left") - 1, 0)
    share = np.bincount(place, minlength=max(edges.size - 1, 0)) / max(nonzero.size, 1)
    low, high, distance = _log_uniform_fit(np.log(nonzero))
    return DensityOfStates(nonzero, host.size - nonzero.size, edges, share, low, high, distance)


def _edges(magnitudes: np.ndarray, n_bins: int | None) -> np.ndarray:
    """Ends of bins that hold all magnitudes, which are sorted."""
    if not magnitudes.size:
        return np.empty(0)
    least, largest = float(magnitudes[0]), float(magnitudes[-1])
    if n_bins is None:
        octaves = math.floor(math.log2(largest) - math.log2(least)) + 1
        octaves += math.ldexp(largest, -octaves) >= least  # where the logarithms were rounded
        return np.ldexp(largest, -np.arange(octaves, -1, -1))
    if least == largest:
        least, largest = least * math.sqrt(0.5), largest * math.sqrt(2.0)
    return np.geomspace(least, largest, n_bins + 1)


def _log_uniform_fit(logarithms: np.ndarray) -> tuple[float, float, float]:
    """Band of the least-squares ladder, and Kolmogorov's distance of rising logarithms from the law on it."""
    n = logarithms.size
    if not n:
        return math.nan, math.nan, math.nan
    if logarithms[0] == logarithms[-1]:  # a law at one point, which they follow
        return float(np.exp(logarithms[0])), float(np.exp(logarithms[0])), 0.0
    step = np.arange(n) - 0.5 * (n - 1)
    centre = float(np.mean(logarithms))
    slope = float(np.sum(step * (logarithms - centre)) / np.sum(step * step))
    top = centre + 0.5 * slope * (n - 1)
    law = np.clip((logarithms - (top - n * slope)) / (n * slope), 0.0, 1.0)
    above, below = np.arange(1, n + 1) / n - law, law - np.arange(n) / n
    return math.exp(top - n * slope), math.exp(top), float(max(np.max(above), np.max(below)))


def _magnitudes(frequencies: Any) -> tuple[Array, ModuleType]:
    """Check frequencies; their magnitudes ``(D,)`` or ``(*H, D)``, and the namespace."""
    frequencies = angles.frequencies_of(frequencies)
    xp, device = array.shared(frequencies=frequencies)
    vectors = angles.frequencies(frequencies, xp, device)
    return radius(vectors, xp), xp
