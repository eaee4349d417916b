"""The offset that shifts point at, their agreement with it, peaks of sums of waves, and the temperature of a mass."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from types import ModuleType
from typing import Any

import numpy as np

from rfrope._core import angles, array, sums, turns
from rfrope._core.angles import Angles
from rfrope._core.arguments import LARGEST, finite, show
from rfrope._core.array import Array
from rfrope._core.results import Result, returned_as_given
from rfrope._core.sums import CosSin
from rfrope.heads.positional import lags_of_keys, ranges_of_lags, softmax_scale, whole_numbers
from rfrope.heads.shifts import per_block, read_shifted

_GRID = 16  # points of the first grid to a turn of the fastest block
_FINER = 16  # refinement of each later grid
_LEVELS = 4  # such grids; from there Newton's steps on the slope gain what values cannot show
_POINTS = 2**24  # points of the first grid, at most
_APART = 0.01  # steps of the grid between two distinct peaks
_EQUAL = 1e-13  # peaks whose values differ by less, as a part of all weights, are equally high
_UNSURE = 2.0  # units in the last place by which a frequency that was computed and rounded may be wrong
_LEAST = 1e-290  # deficits below it are lost to underflow, or one over their temperature is to overflow


@dataclass(frozen=True, eq=False)
class Alignment(Result):
    """Agreement of shifts with an offset; see `alignment`.

    Attributes
    ----------
    overall : array
        Weighted mean of `blocks`, from -1 to 1: the score at the offset over ``sum weights``, the most that any shifts
        can reach. 0 if all weights are 0.
    blocks : array, (..., D)
        ``cos(shift_i + offset . omega_i)``: 1 for a block that peaks at the offset, -1 for one with a minimum there.
    angles : array, (..., D), radians
        Error of each block, ``shift_i + offset . omega_i`` between -pi and pi.

    See Also
    --------
    heads.alignment

    Examples
    --------
    >>> import rfrope
    >>> omega = rfrope.geometric(8)
    >>> found = rfrope.heads.alignment(-3, omega, rfrope.heads.phase_shift(-3, omega))
    >>> round(float(found.overall), 6)
    1.0
    """

    overall: Array
    blocks: Array
    angles: Array


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


@array.select_device
def alignment(offset: Array, frequencies: Array, shift: Array, *, weights: Array | None = None) -> Alignment:
    """Return how well shifts agree with an offset, for all blocks and for each.

    Parameters
    ----------
    offset : array_like, in units of position
        See `rfrope.heads.phase_shift`.
    frequencies : array_like, radians per unit of position
        ``(D,)`` or ``(*H, D, k)``, with at least one block.
    shift : array_like, radians
        One per block, measured or learned; broadcasts against the phases of `offset`.
    weights : array_like, optional
        Nonnegative weight, or bool, of each block: for instance the amplitude ``sqrt(C^2 + E^2)`` of its part of the
        score. Broadcasts against the phases of `offset`. Default: equal weights.

    Returns
    -------
    Alignment
        Arrays in float64 where the library has it.

    Raises
    ------
    ValueError
        If shapes do not fit, there are no blocks, a value is NaN or infinite, or a weight is negative. Values are
        checked only where that is free: not on devices, in JAX or in Dask.
    TypeError
        If arrays are of different libraries, or a dtype is neither integer nor real floating.

    See Also
    --------
    heads.Alignment, heads.offset_of

    Notes
    -----
    With weights ``w_i`` the score at the offset is ``sum_i w_i cos(shift_i + offset . omega_i)``, at most
    ``sum_i w_i``. If blocks with a fraction f of the weight agree, and the angles of the others are random, `overall`
    is f on average.

    Examples
    --------
    The 16 fastest of 64 blocks are shifted, the others are not:

    >>> import numpy as np, rfrope
    >>> from rfrope import heads
    >>> omega = rfrope.geometric(64)
    >>> shift = np.where(np.arange(64) < 16, heads.phase_shift(-8, omega), 0.0)
    >>> [round(float(alignment(offset, omega, shift).overall), 3) for offset in (-8, 0)]
    [0.981, 0.734]
    >>> round(float(alignment(-8, omega, shift, weights=np.arange(64) < 32).overall), 3)
    0.962
    """
    read = read_shifted(offset, frequencies, shift, "offset", weights=weights)
    xp = read.xp
    waves = CosSin.from_angles(read)
    angle = xp.atan2(waves.sin, waves.cos)
    if weights is None:
        return Alignment(waves.mean_cos(), waves.cos, angle)
    weights = _read_weights(weights, waves.cos, xp, "offset, shift and frequencies")
    total = xp.sum(weights, axis=-1)
    empty = total == 0.0
    overall = waves.total(weights, None) / xp.where(empty, xp.ones_like(total), total)
    return Alignment(overall, waves.cos, angle)


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
        See `alignment`; broadcasts against `shift`.

    Returns
    -------
    Peak
        Arrays of the leading shape, with the values of ``alignment(...).overall``. Of equally high peaks, to
        1e-13, the offset nearest to 0 is returned.

    Raises
    ------
    ValueError
        If shapes do not fit, a value is NaN or infinite, a weight is negative, the range is empty or longer than 2**20
        turns of the fastest block, or no block with a weight has a nonzero frequency, so that all offsets are alike.
    TypeError
        If arrays are of different libraries, or a dtype is neither integer nor real floating.

    See Also
    --------
    heads.Peak, heads.alignment

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
    space = array.namespace(weights=weights)
    weights = np.ones_like(one_set[:, 0]) if weights is None else array.asarray(weights, space, name="weights")
    weights = array.to_host(weights, "weights")
    weights = _read_weights(weights, np.empty(shape), np, "shift and frequencies")
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


def _read_weights(weights: Any, like: Array, xp: ModuleType, origin: str) -> Array:
    value = array.asarray(weights, xp, name="weights", device=array.device(like))
    if array.dtype_name(value) == "bool":  # True and False say which blocks count
        value = array.astype(value, like.dtype, xp)
    value = per_block("weights", value, like, xp, origin)
    counts = (value == 0.0) | (value >= 1.0 / LARGEST)  # products with smaller ones underflow
    if not array.all_within(value, LARGEST, xp) or (array.has_host_values(value) and not bool(xp.all(counts))):
        raise ValueError(
            "weights holds NaN, infinity, negative numbers, or some above 0 and below 2**-500; expected finite weights "
            "of at least 0"
        )
    return value


# -- temperature -------------------------------------------------------------------------------------------------------


@array.select_device
def temperature_for_mass(
    mass: float,
    frequencies: Array,
    *,
    context: int | Sequence[int],
    offset: int | Sequence[int] = -1,
    scaled: bool = True,
    causal: bool = True,
    window: int | None = None,
    query_position: int | Sequence[int] | None = None,
    head_dim: int | None = None,
) -> float:
    """Return the temperature at which a positional head puts a given part of its attention on its offset.

    Parameters
    ----------
    mass : float
        This part, above one over the number of keys and below 1.
    frequencies : array_like, radians per position
        One set: ``(D,)`` or ``(D, k)``, with at least one block.
    context, causal, window, query_position, scaled, head_dim
        See `positional_attention`.
    offset : int, or sequence of int for k axes
        Lag of a key that the query sees.

    Returns
    -------
    float
        ``temperature`` of `positional_weights` and `positional_attention`, to a relative 1e-12.

    Raises
    ------
    ValueError
        If no temperature does, because other lags score as much as the offset, or no key is at the offset (it is
        masked, outside the context, or not whole); the message says which. Also if frequencies or numbers are not as
        described above.
    TypeError
        If an argument is of another type.

    See Also
    --------
    heads.positional_attention

    Notes
    -----
    With the deficits ``d = sum_i 1 - cos((lag - offset) . omega_i)`` of the other keys the mass is
    ``1 / (1 + sum exp(-d / temperature))``. Deficits are nonnegative, so it decreases with the temperature, strictly if
    one is positive: there is one solution, bracketed by the smallest deficit. If m keys have no deficit, including the
    offset itself, the mass stays below 1/m. That happens if every frequency is 0, if all blocks make whole turns over a
    distance within the context (a lattice, such as `arithmetic`, after ``2 pi / step``), or if an axis has no
    frequency. A deficit counts as none if rounding of the frequencies could cause it, or if it is below 1e-290.
    Computed on the host, from deficits accurate to all digits. For a mass very near its lower limit the temperature
    goes to infinity, and depends on the last digits of the mass.

    Examples
    --------
    >>> import rfrope
    >>> from rfrope import heads
    >>> omega = rfrope.geometric(64)
    >>> temperature = temperature_for_mass(0.9, omega, context=1024)
    >>> round(temperature, 5)
    0.05829
    >>> round(float(heads.positional_attention(omega, 1024, temperature=temperature).mass), 12)
    0.9
    """
    from scipy.optimize import brentq
    from scipy.special import logsumexp

    mass = finite("mass", mass)
    omega = angles.read_on_host(frequencies, shapes="one")
    unsure = _UNSURE * array.resolution(angles.frequencies_of(frequencies))
    axes = omega.shape[1]
    target = np.asarray(whole_numbers("offset", offset, axes, kinds="iuf"), dtype=np.int64)
    ranges = ranges_of_lags(context, axes, causal, window, query_position)
    for lag, (start, stop) in zip(target.tolist(), ranges, strict=True):
        if not start <= lag < stop:
            raise ValueError(
                f"offset is {show(offset)}, but with this context, window and query_position the query sees only "
                f"lags from {start} to {stop - 1}"
            )
    lags = lags_of_keys(ranges, omega, np)
    steps = (lags - target)[np.any(lags != target, axis=1)]
    if not 1.0 / len(lags) < mass < 1.0:
        raise ValueError(
            f"mass is {mass}; expected a number above 1/{len(lags)}, the mass of each key at an infinite temperature, "
            "and below 1"
        )
    scale = softmax_scale(scaled, head_dim, len(omega), frequencies)
    deficits = _one_minus_cos_sums(omega, steps, unsure)
    apart = deficits[deficits > 0.0]
    # what the keys with a deficit may have, to 1 at the offset
    left = (1.0 - mass) / mass - (deficits.size - apart.size)
    if left <= 0.0 or not apart.size:
        equal = steps[deficits == 0.0] + target
        raise ValueError(
            f"mass is {mass}, but keys at {len(equal)} other lags, such as {equal[-1].tolist()}, score as much as the "
            "offset at any temperature: all blocks make whole turns there, or turns too small for float64; expected a "
            f"mass below 1/{len(equal) + 1}"
        )
    # the sharpness at which ``sum exp(-sharpness apart)``, which falls, is what is left
    least, level = float(np.min(apart)), math.log(left)

    def excess(sharpness: float) -> float:
        return float(logsumexp(-sharpness * apart)) - level

    # as if only the smallest were there, and as if all were as small as that
    low, high = max(0.0, -level / least), (math.log(apart.size) - level) / least
    if excess(low) <= 0.0 or excess(high) >= 0.0:  # a solution at an end, which rounding puts outside
        sharpness = low if excess(low) <= 0.0 else high
    else:
        sharpness = float(brentq(excess, low, high, xtol=1e-300, rtol=4.0 * np.finfo(float).eps, maxiter=1000))
    return scale / sharpness if sharpness else math.inf


def _one_minus_cos_sums(omega: np.ndarray, steps: np.ndarray, relative: float) -> np.ndarray:
    """``sum_i 1 - cos(step . omega_i)`` without cancellation, and 0 where rounded frequencies cannot tell."""
    sizes = np.abs(omega)
    out = np.empty(len(steps))
    for span in sums.parts(len(steps), len(omega)):
        part = steps[span]
        unsure = relative * (np.abs(part) @ sizes.T)
        (deficit,) = sums.one_minus_cos_moments(Angles(part, omega, None, np))
        out[span] = np.where(deficit > np.maximum(0.5 * np.sum(unsure * unsure, axis=1), _LEAST), deficit, 0.0)
    return out
