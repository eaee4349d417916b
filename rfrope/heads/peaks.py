"""The offset that shifts point at, and peaks of sums of waves."""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np

from rfrope._core import angles, array, sums, turns
from rfrope._core.angles import Angles
from rfrope._core.arguments import LARGEST, finite
from rfrope._core.array import Array
from rfrope._core.results import Result, returned_as_given
from rfrope._core.sums import CosSin
from rfrope.heads.shifts import per_block

_GRID = 16  # points of the first grid to a turn of the fastest block
_FINER = 16  # refinement of each later grid
_LEVELS = 4  # such grids; from there Newton's steps on the slope gain what values cannot show
_POINTS = 2**24  # points of the first grid, at most
_APART = 0.01  # steps of the grid between two distinct peaks
_EQUAL = 1e-13  # peaks whose values differ by less, as a part of all weights, are equally high


@dataclass(frozen=True, eq=False)
class Peak(Result):
    """Maximum of a sum of waves over a range of offsets.

    Attributes
    ----------
    offset : float or array, in units of position
        Its offset.
    value : float or array
        Its value.
    runner_up : float or array
        Offset of the second-highest local maximum (ends of the range count); NaN if there is none.
    runner_up_value : float or array
        Its value; NaN if there is none.

    See Also
    --------
    heads.offset_of

    Examples
    --------
    >>> import rfrope
    >>> omega = rfrope.geometric(64)
    >>> found = rfrope.heads.offset_of(omega, rfrope.heads.phase_shift(-7.25, omega), low=-64.0)
    >>> round(float(found.offset), 6), round(float(found.runner_up_value), 2)
    (-7.25, 0.74)
    """

    offset: Any
    value: Any
    runner_up: Any
    runner_up_value: Any


@returned_as_given
def offset_of(frequencies: Array, shift: Array, *, low: float, high: float = 0.0, weights: Array | None = None) -> Peak:
    """Return the real offset that shifts point at: the peak of ``sum_i w_i cos(shift_i + offset omega_i)``.

    Parameters
    ----------
    frequencies : array_like, radians per unit of position
        One set: ``(D,)``, or ``(D, 1)``.
    shift : array_like, radians, (..., D)
        Measured or learned; leading axes are separate problems, such as heads.
    low, high : float, in units of position
        Range of offsets, ``low < high``; by default up to 0, as under a causal mask.
    weights : array_like, (..., D), optional
        Nonnegative weight, or bool, of each block: for instance the amplitude ``sqrt(C^2 + E^2)`` of its part of the
        score. Broadcasts against `shift`. Default: equal weights.

    Returns
    -------
    Peak
        Arrays of the leading shape; values are over the sum of the weights: 1 if all blocks peak there. Of equally high
        peaks, to 1e-13, the offset nearest to 0 is returned.

    Raises
    ------
    ValueError
        If shapes do not fit, a value is NaN or infinite, a weight is negative, the range is empty or longer than 2**20
        turns of the fastest block, or no block with a weight has a nonzero frequency, so that all offsets are alike.
    TypeError
        If arrays are of different libraries, or a dtype is neither integer nor real floating.

    See Also
    --------
    heads.Peak, heads.shifted_mean_kernel

    Notes
    -----
    The search is global: a grid of 16 points per turn of the fastest block, finer grids around all local maxima that
    might be the highest or second-highest, and Newton's method on the slope. A runner-up closer to higher values than
    one step of the first grid may be missed. Frequencies on a lattice have many equal peaks; slow blocks alone have a
    broad one.

    Examples
    --------
    >>> import rfrope
    >>> from rfrope import heads
    >>> omega = rfrope.geometric(64)
    >>> found = offset_of(omega, heads.phase_shift([-1.0, -7.25], omega), low=-1024.0)
    >>> found.offset.round(9), found.value.round(9)
    (array([-1.  , -7.25]), array([1., 1.]))
    >>> found.runner_up.round(2), found.runner_up_value.round(2)
    (array([ -7.11, -13.36]), array([0.74, 0.74]))
    """
    low, high = finite("low", low), finite("high", high)
    if not low < high:
        raise ValueError(f"low is {low} and high {high}; expected low < high")
    frequencies = angles.frequencies_of(frequencies)
    array.shared({"frequencies": frequencies, "shift": shift, "weights": weights})
    one_set, shift = angles.read_on_host(frequencies, shapes="one axis"), angles.numbers_on_host(shift, "shift")
    shape = array.broadcast_shapes({"shift": shift.shape, "frequencies": one_set.shape[:1]})
    cos, sin = turns.cos_sin(angles.read(np.zeros((*shape[:-1], 1)), np.zeros_like(one_set), shift))
    if weights is None:
        weights = np.ones_like(one_set[:, 0])
    else:
        weights = array.to_host(array.asarray(weights, array.namespace(weights=weights), name="weights"), "weights")
        weights = weights.astype(np.float64) if weights.dtype == bool else weights  # which blocks count
        weights = per_block("weights", weights, np.empty(shape), np, "shift and frequencies")
        # products with smaller ones underflow
        if not np.all((weights == 0.0) | ((weights >= 1.0 / LARGEST) & (weights <= LARGEST))):
            raise ValueError(
                "weights holds NaN, infinity, negative numbers, or some above 0 and below 2**-500; expected finite "
                "weights of at least 0"
            )
    total, waves = np.sum(weights, axis=-1), np.stack([weights * cos, -weights * sin])
    pairs = np.moveaxis(waves, 0, -2).reshape(-1, 2, len(one_set))
    found = np.asarray([astuple(peak_of_waves(one_set[:, 0], a, b, low, high)) for a, b in pairs], np.float64)
    offset, value, other, other_value = np.moveaxis(found.reshape(*waves.shape[1:-1], 4), -1, 0)
    return Peak(offset, np.asarray(value / total), other, np.asarray(other_value / total))


# -- the highest place of a sum of waves -------------------------------------------------------------------------------


def peak_of_waves(omega: np.ndarray, cosine: np.ndarray, sine: np.ndarray, low: float, high: float) -> Peak:
    """Return the peak of ``f(x) = sum_i cosine_i cos(omega_i x) + sine_i sin(omega_i x)`` for real x from low to high.

    All arrays are NumPy float64 ``(D,)``. Raises ValueError if no wave has both amplitude and frequency, or the range
    is too long.
    """
    amplitude = np.hypot(cosine, sine)
    fastest = float(np.max(np.abs(omega) * (amplitude > 0.0), initial=0.0))
    if fastest == 0.0:
        raise ValueError(
            "no block with a weight has a nonzero frequency, so all offsets are alike; expected frequencies and "
            "weights that are not all 0"
        )
    turns = (high - low) * fastest / (2.0 * math.pi)
    if not turns * _GRID < _POINTS:
        raise ValueError(
            f"offsets from {low} to {high} are {turns:.3g} turns of the fastest block; "
            f"expected at most {_POINTS // _GRID}: a shorter range (max_lag, or low and high)"
        )
    step = (high - low) / max(4, math.ceil(turns * _GRID))
    points = round((high - low) / step) + 1
    columns = max(1, math.isqrt(points))  # waves at the sum of two numbers are products of their tables
    far = CosSin.from_angles(angles_at(low + step * columns * np.arange(-(-points // columns)), omega))
    near = CosSin.from_angles(angles_at(step * np.arange(columns), omega))
    values = np.ravel(sums.sum_on_grid(far, near, cosine, sine))[:points]
    before, after = np.append(-np.inf, values[:-1]), np.append(values[1:], -np.inf)
    tops = np.flatnonzero((values > before) & (values >= after))
    # a maximum is above the point of the grid next to it by at most this
    missed = 0.125 * step * step * float(np.sum(amplitude * omega * omega))
    second = np.sort(values[tops])[-2:][0]
    tops = tops[values[tops] >= second - missed]
    x, value = _climb(omega, cosine, sine, np.clip(low + step * tops, low, high), step, low, high)
    ends = np.array([low, high])  # an end may be a peak of its own beside one that is nearer than a step
    at_ends, slopes = sums.derivatives(angles_at(ends, omega), cosine, sine, (0, 1))
    tops = slopes * np.array([-1.0, 1.0]) > 0.0
    x, value = np.concatenate([x, ends[tops]]), np.concatenate([value, at_ends[tops]])
    highest = np.flatnonzero(value >= np.max(value) - _EQUAL * float(np.sum(amplitude)))
    best = int(highest[np.argmin(np.abs(x[highest]))])
    others = np.flatnonzero(np.abs(x - x[best]) > _APART * step)
    if not others.size:
        return Peak(float(x[best]), float(value[best]), math.nan, math.nan)
    other = int(others[np.argmax(value[others])])
    return Peak(float(x[best]), float(value[best]), float(x[other]), float(value[other]))


def _climb(
    omega: np.ndarray, cosine: np.ndarray, sine: np.ndarray, x: np.ndarray, step: float, low: float, high: float
) -> tuple[np.ndarray, np.ndarray]:
    """Local maxima next to points of a grid: finer and finer grids, then Newton's method on the slope."""
    for _ in range(_LEVELS):
        step /= _FINER
        steps, found = step * np.arange(-_FINER, _FINER + 1), []
        for span in sums.parts(len(x), len(steps) * len(omega)):
            near = np.clip(x[span, None] + steps, low, high)
            found.append(near[np.arange(len(near)), np.argmax(values_at(near, omega, cosine, sine), axis=1)])
        x = np.concatenate(found)
    for _ in range(3):
        slope, bend = sums.derivatives(angles_at(x, omega), cosine, sine, (1, 2))
        move = np.where(bend < 0.0, -slope / np.where(bend < 0.0, bend, 1.0), 0.0)
        x = np.clip(x + np.where(np.abs(move) <= 2.0 * step, move, 0.0), low, high)
    return x, values_at(x, omega, cosine, sine)


def angles_at(x: np.ndarray, omega: np.ndarray) -> Angles:
    """Return the angles of real lags of any shape and frequencies ``(D,)``."""
    return Angles(x[..., None], omega[:, None], None, np)


def values_at(x: np.ndarray, omega: np.ndarray, cosine: np.ndarray, sine: np.ndarray) -> np.ndarray:
    """Return ``sum_i cosine_i cos(omega_i x) + sine_i sin(omega_i x)`` at real lags; coefficients ``(..., D)``."""
    cosines, sines = sums.sum_blocks(angles_at(x, omega), cosine, sine)
    return np.asarray(cosines + sines)
