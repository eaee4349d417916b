"""Temperature at which a positional head puts a given mass on its offset."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from rfrope._core import angles, array, sums
from rfrope._core.angles import Angles
from rfrope._core.arguments import finite, show
from rfrope._core.array import Array
from rfrope.heads.positional import lags_of_keys, ranges_of_lags, softmax_scale, whole_numbers

_UNSURE = 2.0  # units in the last place by which a frequency that was computed and rounded may be wrong
_LEAST = 1e-290  # deficits below it are lost to underflow, or one over their temperature is to overflow


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
            "offset at any temperature: there all blocks make whole turns, or turns too small for float64; expected a "
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
