"""Compiled loops of the sums over lags: phases in turns, their cosines and sines, and sums of them; pairs of tokens.

Inner loops run over arrays, never into one number, so that they are vectorised without leave to reorder a sum: results
depend on the arguments alone.
"""

from __future__ import annotations

import numpy as np

from rfrope._backends.cpu.circle import TURN_1, TURN_2, cos_sin, fma
from rfrope._backends.cpu.compiling import called, compiled, inlined, widest

_LANES = 512  # numbers that are worked on together: a few arrays of them stay in the fastest cache

_RADIANS = 6.283185307179586


@inlined
def _product(position, turns, tail):  # type: ignore[no-untyped-def]
    """Position * (turns + tail) less whole turns, as two numbers of at most a half each."""
    product = position * turns
    rest = fma(position, turns, -product) + position * tail
    return product - np.rint(product), rest - np.rint(rest)


@called
def _phases_over_draws(turns, tails, lag, start, high, low):  # type: ignore[no-untyped-def]
    """Phases in turns of one lag with the draws from `start` on."""
    widest()
    high[:] = 0.0
    low[:] = 0.0
    for axis in range(turns.shape[0]):
        position = lag[axis]
        turn, tail = turns[axis, start : start + high.size], tails[axis, start : start + high.size]
        for i in range(high.size):
            first, second = _product(position, turn[i], tail[i])
            high[i] += first
            low[i] += second


@called
def _phases_over_lags(turns, tails, draw, lags, start, high, low):  # type: ignore[no-untyped-def]
    """Phases in turns of one draw with the lags from `start` on."""
    widest()
    high[:] = 0.0
    low[:] = 0.0
    for axis in range(turns.shape[0]):
        turn, tail = turns[axis, draw], tails[axis, draw]
        position = lags[axis, start : start + high.size]
        for i in range(high.size):
            first, second = _product(position[i], turn, tail)
            high[i] += first
            low[i] += second


@compiled
def frequency_turns(frequencies, turns, tails):  # type: ignore[no-untyped-def]
    """Frequencies ``(n, k)`` over 2 pi as double-doubles ``(k, n)``."""
    widest()
    for axis in range(turns.shape[0]):
        for i in range(turns.shape[1]):
            frequency = frequencies[i, axis]
            turn = frequency * TURN_1
            turns[axis, i] = turn
            tails[axis, i] = fma(frequency, TURN_1, -turn) + frequency * TURN_2


@compiled
def folded(turns, tails, step, out):  # type: ignore[no-untyped-def]
    """Step * frequency in radians modulo 2 pi, for frequencies of one axis."""
    widest()
    for i in range(turns.size):
        high, low = _product(step, turns[i], tails[i])
        both = high + low
        out[i] = _RADIANS * (both - np.rint(both))


@compiled
def phasors(turns, tails, positions, cos, sin):  # type: ignore[no-untyped-def]
    """Cos and sin of the phases of all draws at the sum of some positions ``(m, k)``."""
    widest()
    count = turns.shape[1]
    for start in range(0, count, _LANES):
        size = min(_LANES, count - start)
        high, low, both, rest = np.empty(size), np.empty(size), np.zeros(size), np.zeros(size)
        for row in range(positions.shape[0]):
            _phases_over_draws(turns, tails, positions[row], start, high, low)
            for i in range(size):
                both[i] += high[i]
                rest[i] += low[i]
        cos_part, sin_part = cos[start : start + size], sin[start : start + size]
        for i in range(size):
            cos_part[i], sin_part[i] = cos_sin(both[i] - np.rint(both[i]), rest[i])


@compiled
def totals(turns, tails, lags, start, stop, cos_sum, sin_sum):  # type: ignore[no-untyped-def]
    """Sums over the draws of cos and sin, at the lags ``(k, L)`` from `start` to `stop`: lanes are lags."""
    widest()
    high_lanes, low_lanes = np.empty(_LANES), np.empty(_LANES)
    for first in range(start, stop, _LANES):
        size = min(_LANES, stop - first)
        high, low = high_lanes[:size], low_lanes[:size]
        cos_part, sin_part = cos_sum[first : first + size], sin_sum[first : first + size]
        cos_part[:] = 0.0
        sin_part[:] = 0.0
        for draw in range(turns.shape[1]):
            _phases_over_lags(turns, tails, draw, lags, first, high, low)
            for i in range(size):
                cos, sin = cos_sin(high[i] - np.rint(high[i]), low[i])
                cos_part[i] += cos
                sin_part[i] += sin


@compiled
def moments(turns, tails, lags, start, stop, odd, mean, m2):  # type: ignore[no-untyped-def]
    """Mean over the draws of cos (or sin, if `odd`) and sum of squared deviations, at lags ``(L, k)``: lanes are draws.

    Values are taken relative to that of the first draw, so that a small spread beside a large mean is kept.
    """
    widest()
    count = turns.shape[1]
    high_lanes, low_lanes, values_lanes = np.empty(_LANES), np.empty(_LANES), np.empty(_LANES)
    first_sums, second_sums = np.empty(_LANES), np.empty(_LANES)
    for lag in range(start, stop):
        first_sums[:] = 0.0
        second_sums[:] = 0.0
        shift = 0.0
        for first in range(0, count, _LANES):
            size = min(_LANES, count - first)
            high, low, values = high_lanes[:size], low_lanes[:size], values_lanes[:size]
            _phases_over_draws(turns, tails, lags[lag], first, high, low)
            for i in range(size):
                cos, sin = cos_sin(high[i] - np.rint(high[i]), low[i])
                values[i] = sin if odd else cos
            if first == 0:
                shift = values[0]
            for i in range(size):
                deviation = values[i] - shift
                first_sums[i] += deviation
                second_sums[i] += deviation * deviation
        sum_1, sum_2 = 0.0, 0.0
        for i in range(min(_LANES, count)):
            sum_1 += first_sums[i]
            sum_2 += second_sums[i]
        mean[lag] = shift + sum_1 / count
        m2[lag] = max(0.0, sum_2 - sum_1 * sum_1 / count)
