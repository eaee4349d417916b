"""Compiled loops of the estimators: Philox uniforms, quantiles, cos and sin, scores and their moments in one pass.

Trials are worked on side by side, as lanes: every inner loop runs over lanes and does the same to each, so that it is
vectorised without reordering a sum, and a result does not depend on the machine's vector width.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from rfrope._backends.cpu.circle import SHIFT, bits_of, cos_sin_of_quarters, float_of, fma, polynomial
from rfrope._backends.cpu.compiling import called, compiled, inlined, widest
from rfrope._core.quantiles import LOG_UNIFORM, PIECES, ROW, SIDE, UNIFORM

_ROW, _UPPER = np.uint64(ROW), np.uint64(SIDE * ROW)
_PIECE_BITS, _FIRST_PIECE = np.uint64(45), np.uint64((1023 - 53) * PIECES)
_PIECE_MASK, _PIECE_SHIFT = np.uint64(2**45 - 1), np.uint64(7)

_MULTIPLIER_0, _MULTIPLIER_1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_WEYL_0, _WEYL_1 = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
_LOW, _WORD, _UNUSED_BITS = np.uint64(0xFFFFFFFF), np.uint64(32), np.uint64(12)
_ONE_BITS = np.uint64(0x3FF0000000000000)
_JUST_BELOW_ONE = 1.0 - 2.0**-53
_PAIRS = 256  # pairs of draws, side by side

# 2/pi as the sum of two floats, and the phases up to which one FMA leaves an exact remainder of a quarter turn
_QUARTER_1, _QUARTER_2 = 0.6366197723675814, -3.935735335036497e-17
LARGEST_REDUCED = 2.0**40
_NONE, _ONE, _TO_LAST = np.uint64(0), np.uint64(1), np.uint64(63)

# ln 2 as the sum of two floats, the first of 32 bits
_LN2_1, _LN2_2, _PER_LN2 = 0.6931471803691238, 1.9082149292705877e-10, 1.4426950408889634
# exp(r) as a polynomial in r, interpolated at Chebyshev's points of [-ln 2/2, ln 2/2]; relative error 5e-19
EXP = (
    1.0, 1.0, 0.5, 0.16666666666666702, 0.04166666666666669, 0.008333333333309528, 0.001388888888887189,
    0.000198412699092171, 2.4801587350110797e-05, 2.7557224958392624e-06, 2.7557251904174915e-07,
    2.5114869528657765e-08, 2.09215799649503e-09,
)  # fmt: skip


class Rows(NamedTuple):
    """Pairs of vectors at lags: row r belongs to pair[r] and to the lag with first[lag] <= r < first[lag + 1].

    Lags tiles[t], ..., tiles[t + 1] - 1 are worked on together, so that their scores stay in the fastest cache.
    """

    delta: np.ndarray  # (lags, axes)
    limit: float  # components of frequencies above it may make phases that are too large to be reduced
    a: np.ndarray  # (pairs, blocks), as b
    b: np.ndarray
    first: np.ndarray
    pair: np.ndarray
    tiles: np.ndarray


# -- uniforms ----------------------------------------------------------------------------------------------------------


@inlined
def _round(w0, w1, w2, w3, k0, k1):  # type: ignore[no-untyped-def]
    p0, p1 = w0 * _MULTIPLIER_0, w2 * _MULTIPLIER_1
    mixed_1, mixed_3 = (p1 >> _WORD) ^ w1 ^ k0, (p0 >> _WORD) ^ w3 ^ k1
    return mixed_1, p1 & _LOW, mixed_3, p0 & _LOW, (k0 + _WEYL_0) & _LOW, (k1 + _WEYL_1) & _LOW


@inlined
def _five_rounds(w0, w1, w2, w3, k0, k1):  # type: ignore[no-untyped-def]
    """Rounds written out: a loop here would keep the loop over lanes from being vectorised."""
    state = _round(w0, w1, w2, w3, k0, k1)
    state = _round(*state)
    state = _round(*state)
    state = _round(*state)
    return _round(*state)


@inlined
def _philox(w0, w1, w2, w3, k0, k1):  # type: ignore[no-untyped-def]
    """Ten rounds."""
    state = _five_rounds(w0, w1, w2, w3, k0, k1)
    return _five_rounds(*state)[:4]


@inlined
def _unit(low, high):  # type: ignore[no-untyped-def]
    """Upper 52 of 64 bits as the middle of one of 2**52 cells: they become the mantissa of a number in [1, 2)."""
    return float_of(((high << _WORD | low) >> _UNUSED_BITS) | _ONE_BITS) - _JUST_BELOW_ONE


@called
def _draw(even, odd, n, pair, pair_step, column, stream, stream_step, k0, k1):  # type: ignore[no-untyped-def]
    """Draws 2 pair and 2 pair + 1 of a column, n times: of the pairs, or for the streams, from the given ones on."""
    widest()
    column, k0, k1 = column & _LOW, k0 & _LOW, k1 & _LOW
    for lane in range(n):
        here, along = pair + np.uint64(lane) * pair_step, stream + np.uint64(lane) * stream_step
        w0, w1, w2, w3 = _philox(here & _LOW, here >> _WORD, column, along & _LOW, k0, k1)
        even[lane] = _unit(w0, w1)
        odd[lane] = _unit(w2, w3)


@compiled
def fill_uniforms(out, start, stream, k0, k1):  # type: ignore[no-untyped-def]
    """Uniforms of `random.uniforms`, into an array (streams, count, columns)."""
    widest()
    even, odd = np.empty(_PAIRS), np.empty(_PAIRS)
    skipped = np.int64(start & _ONE)
    pairs = (skipped + out.shape[1] + 1) // 2
    for s in range(out.shape[0]):
        for column in range(out.shape[2]):
            for begin in range(0, pairs, _PAIRS):
                pair, n = (start >> _ONE) + np.uint64(begin), min(_PAIRS, pairs - begin)
                _draw(even, odd, n, pair, _ONE, np.uint64(column), stream + np.uint64(s), _NONE, k0, k1)
                for lane in range(n):
                    at = 2 * (begin + lane) - skipped
                    if at >= 0:
                        out[s, at, column] = even[lane]
                    if at + 1 < out.shape[1]:
                        out[s, at + 1, column] = odd[lane]


# -- quantiles ---------------------------------------------------------------------------------------------------------


@inlined
def _exp(x):  # type: ignore[no-untyped-def]
    n = np.rint(x * _PER_LN2)
    r = fma(-n, _LN2_2, fma(-n, _LN2_1, x))
    return polynomial(r, EXP) * float_of(np.uint64((np.int64(n) + 1023) << 52))


@inlined
def _place(u, upper, piece, inside, n):  # type: ignore[no-untyped-def]
    """Find the piece that v = min(u, 1 - u) is in, and its place there, -1/2 to 1/2, both by the bits of v.

    The pieces of u > 1/2 begin at `upper` in the table. The sign of 1/2 - u is the mask: with a comparison a branch is
    made of it, which is mispredicted half the time.
    """
    for lane in range(n):
        bits = bits_of(min(u[lane], 1.0 - u[lane]))
        mask = ~((bits_of(0.5 - u[lane]) >> _TO_LAST) - _ONE)
        piece[lane] = ((bits >> _PIECE_BITS) - _FIRST_PIECE) * _ROW + (mask & upper)
        inside[lane] = float_of(((bits & _PIECE_MASK) << _PIECE_SHIFT) | _ONE_BITS) - 1.5


@inlined
def _look_up(table, at, x):  # type: ignore[no-untyped-def]
    """Value at x of the polynomial that begins at `at`, unsigned so that no index is taken for a negative one."""
    y = fma(table[at + np.uint64(5)], x, table[at + np.uint64(4)])
    y = fma(y, x, table[at + np.uint64(3)])
    y = fma(y, x, table[at + np.uint64(2)])
    y = fma(y, x, table[at + np.uint64(1)])
    return fma(y, x, table[at])


@called
def _component(law, parameter, factor, table, u, piece, inside, out, n):  # type: ignore[no-untyped-def]
    """Quantiles, odd about 1/2 and times a factor, of n uniforms; the table holds them over 2u - 1."""
    widest()
    if law == UNIFORM:
        for lane in range(n):
            out[lane] = factor * (2.0 * u[lane] - 1.0)
    elif law == LOG_UNIFORM:
        for lane in range(n):
            x = 2.0 * u[lane] - 1.0
            out[lane] = math.copysign(factor * _exp(parameter * abs(x)), x)
    else:
        _place(u, _NONE, piece, inside, n)
        for lane in range(n):
            out[lane] = _look_up(table, piece[lane], inside[lane])
        for lane in range(n):
            out[lane] *= factor * (2.0 * u[lane] - 1.0)


@called
def _radius(table, u, piece, inside, out, n):  # type: ignore[no-untyped-def]
    """Quantiles of a positive law of n uniforms: one half of the table for each side of 1/2."""
    widest()
    _place(u, _UPPER, piece, inside, n)
    for lane in range(n):
        out[lane] = _look_up(table, piece[lane], inside[lane])


# -- scores ------------------------------------------------------------------------------------------------------------


@inlined
def _cos_sin(u):  # type: ignore[no-untyped-def]
    """Cosine and sine of a phase of at most 2**40, from which quarters of a turn are removed exactly."""
    quarters = u * _QUARTER_1
    low = fma(u, _QUARTER_2, fma(u, _QUARTER_1, -quarters))
    whole = quarters + SHIFT
    return cos_sin_of_quarters((quarters - (whole - SHIFT)) + low, whole)


@inlined
def _any_large(omega, limit, n):  # type: ignore[no-untyped-def]
    """Say whether a component of n frequencies is beyond a limit (or NaN); counted, because that is vectorised."""
    small = 0
    for axis in range(omega.shape[0]):
        for lane in range(n):
            small += abs(omega[axis, lane]) <= limit
    return small < n * omega.shape[0]


@called
def _add_block(rows, omega, start, stop, block, u, cos, sin, scores, n):  # type: ignore[no-untyped-def]
    """Add ``A cos u + B sin u`` of one block to the scores of n trials at some lags.

    Cos and sin serve all pairs at a lag. The first score is that of the first row at lag `start`.
    """
    widest()
    a, b, delta, first, pair = rows.a, rows.b, rows.delta, rows.first, rows.pair
    large, base = _any_large(omega, rows.limit, n), first[start]
    for lag in range(start, stop):
        p, w = delta[lag, 0], omega[0]
        if delta.shape[1] > 1:
            for lane in range(n):
                u[lane] = p * w[lane]
            for axis in range(1, delta.shape[1]):
                p = delta[lag, axis]
                for lane in range(n):
                    u[lane] += p * omega[axis, lane]
            p, w = 1.0, u
        if first[lag + 1] == first[lag] + 1 and not large:
            row = first[lag]
            x, y = a[pair[row], block], b[pair[row], block]
            mine = scores[row - base]
            for lane in range(n):
                c, s = _cos_sin(p * w[lane])
                mine[lane] = fma(x, c, fma(y, s, mine[lane]))
            continue
        for lane in range(n):
            cos[lane], sin[lane] = _cos_sin(p * w[lane])
        if large:  # phases that are too large for this
            for lane in range(n):
                v = p * w[lane]
                if abs(v) > LARGEST_REDUCED:
                    cos[lane], sin[lane] = math.cos(v), math.sin(v)
        for row in range(first[lag], first[lag + 1]):
            x, y = a[pair[row], block], b[pair[row], block]
            mine = scores[row - base]
            for lane in range(n):
                mine[lane] = fma(x, cos[lane], fma(y, sin[lane], mine[lane]))


@called
def _folded(x, n):  # type: ignore[no-untyped-def]
    """Sum of n numbers by halving, in place: accurate, and vectorised as it stands."""
    widest()
    while n > 1:
        half = (n + 1) // 2
        for i in range(n - half):
            x[i] += x[half + i]
        n = half
    return x[0]


@called
def _merge_moments(sums, row, done, scores, work, n):  # type: ignore[no-untyped-def]
    """Merge mean and central power sums of n scores into those of `done` (Pébay 2008, as `montecarlo._Sums`)."""
    widest()
    for i in range(n):
        work[i] = scores[i]
    mean = _folded(work, n) / n
    for i in range(n):
        scores[i] -= mean
        work[i] = scores[i]
    mean += _folded(work, n) / n  # what the first rounding left out
    for i in range(n):
        work[i] = scores[i] * scores[i]
    m2 = _folded(work, n)
    for i in range(n):
        work[i] = scores[i] * scores[i] * scores[i]
    m3 = _folded(work, n)
    for i in range(n):
        work[i] = (scores[i] * scores[i]) * (scores[i] * scores[i])
    m4 = _folded(work, n)
    a, b = float(done), float(n)
    t = a + b
    old_mean, old_2, old_3, old_4 = sums[0, row], sums[1, row], sums[2, row], sums[3, row]
    step = mean - old_mean
    sums[0, row] = old_mean + step * (b / t)
    sums[1, row] = old_2 + m2 + step**2 * (a * b / t)
    sums[2, row] = old_3 + m3 + step**3 * (a * b * (a - b) / t**2) + step * (3.0 / t) * (a * m2 - b * old_2)
    sums[3, row] = (
        old_4
        + m4
        + step**4 * (a * b * (a * a - a * b + b * b) / t**3)
        + step**2 * (6.0 / t**2) * (a * a * m2 + b * b * old_2)
        + step * (4.0 / t) * (a * m3 - b * old_3)
    )


@compiled
def add_trials(sums, done, start, length, lanes, k0, k1, law, given, rows):  # type: ignore[no-untyped-def]
    """Merge the moments of trials start, ..., start + length - 1 into those of `done` trials.

    sums (4, rows); the law as `quantiles` states it; given (length, blocks, axes): frequencies to be used instead of
    drawn ones, or empty. The frequencies of two blocks are held, or of all where there are several tiles of lags.
    """
    widest()
    first, tiles, axes, blocks = rows.first, rows.tiles, rows.delta.shape[1], rows.a.shape[1]
    draws = axes + (1 if law.radius.size else 0)
    n_tiles, most = tiles.size - 1, 0
    for tile in range(n_tiles):
        most = max(most, first[tiles[tile + 1]] - first[tiles[tile]])
    held = blocks + blocks % 2 if n_tiles > 1 else 2
    uniform, omega = np.empty((2, lanes)), np.empty((held, axes, lanes))
    radius, u, cos = np.empty((2, lanes)), np.empty(lanes), np.empty(lanes)
    sin, inside, piece = np.empty(lanes), np.empty(lanes), np.empty(lanes, np.uint64)
    scores = np.empty((most, lanes))
    for begin in range(0, length, lanes):
        n, stream = min(lanes, length - begin), np.uint64(start + begin)
        for here in range(0, blocks, held):
            end = min(here + held, blocks)
            for block in range(here, end if given.size else here):
                for axis in range(axes):
                    for lane in range(n):
                        omega[block - here, axis, lane] = given[begin + lane, block, axis]
            for two in range(here // 2, here // 2 if given.size else (end + 1) // 2):
                for column in range(draws):
                    _draw(uniform[0], uniform[1], n, np.uint64(two), _NONE, np.uint64(column), stream, _ONE, k0, k1)
                    axis = column - (draws - axes)
                    for side in range(2):
                        if axis < 0:
                            _radius(law.radius, uniform[side], piece, inside, radius[side], n)
                            continue
                        out, factor = omega[2 * two + side - here, axis], law.factors[axis]
                        _component(law.code, law.parameter, factor, law.table, uniform[side], piece, inside, out, n)
                        if draws > axes:
                            for lane in range(n):
                                out[lane] *= radius[side, lane]
            for tile in range(n_tiles):
                lag, stop = tiles[tile], tiles[tile + 1]
                for row in range(first[stop] - first[lag] if here == 0 else 0):
                    for lane in range(n):
                        scores[row, lane] = 0.0
                for block in range(here, end):
                    _add_block(rows, omega[block - here], lag, stop, block, u, cos, sin, scores, n)
                for row in range(first[lag], first[stop] if end == blocks else first[lag]):
                    _merge_moments(sums, row, done + begin, scores[row - first[lag]], u, n)
