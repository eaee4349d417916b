"""Compiled loops of the rotation: phases in exact turns, cos and sin, and blocks turned at the speed of memory.

Arrays come as addresses with strides in bytes, so that any memory of any library fits and one compilation serves every
shape. The element type is that of the argument `like`: float64, float32, int16 (stands for float16) and uint16
(bfloat16). Numba's cache does not see changes in other files: all that these loops call is in this one.
"""

from __future__ import annotations

import math
import platform
from typing import Any

import numpy as np
from llvmlite import binding, ir
from numba import carray, config, njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from rfrope._accel import called, compiled
from rfrope._accel.layout import COLUMNS, A, B, C, E, X, Y


def _converts_half() -> bool:
    """Whether the processor converts float16 by itself: the compiled code has no library to call."""
    if platform.machine().lower() not in ("x86_64", "amd64", "i386", "i686"):
        return True
    if config.CPU_NAME or config.CPU_FEATURES:
        return "+f16c" in (config.CPU_FEATURES or "")
    return bool(binding.get_host_cpu_features().get("f16c", False))


if not _converts_half():
    raise ImportError("this processor (or NUMBA_CPU_FEATURES) has no F16C: float16 cannot be converted in the loops")

# Fields of a plan before its table of axes
(
    BLOCKS,
    FEATURES,
    POSITION_AXES,
    SOURCE,
    HAS_SHIFT,
    HAS_SCALE,
    INVERSE,
    PAIRING,
    OUT_PAIRING,
    IN_PLACE,
    STREAMING,
    ROWS_INSIDE,
    TILE,
    TILES,
    GROUP,
    GROUPS,
    SHARED,
    OUTER_AXES,
    SHARED_AXES,
    A_AXIS,
    B_AXIS,
    BLOCK_STRIDES,
    ROW_AXIS,
) = (*range(22), 22 + COLUMNS)
HEADER = ROW_AXIS + COLUMNS
POSITIONS, PHASES, TABLE_64, TABLE_32 = range(4)

_PREFETCH_BYTES = 4096  # how far ahead of the row in work the next ones are asked for; half of it was slower

# 1/(2 pi) as the sum of two floats
_TURN_1, _TURN_2 = 0.15915494309189535, -9.839338337591243e-18
_LARGEST_EXACT = 2.0**53
_LARGEST = 2.0**500

# sin(2 pi r)/r and cos(2 pi r) as polynomials in r^2 for |r| <= 1/8: interpolation in the Chebyshev nodes of
# [0, 1/64] with 40 digits (mpmath); tests hold them against mpmath
_S0, _S1, _S2, _S3, _S4, _S5, _S6 = (
    6.283185307179586,
    -41.341702240399634,
    81.60524927594804,
    -76.70585970427454,
    42.058685020160894,
    -15.093804209987114,
    3.7808689593022957,
)
_C1, _C2, _C3, _C4, _C5, _C6, _C7 = (
    -19.739208802178716,
    64.93939402266795,
    -85.45681720652271,
    60.244641328867296,
    -26.426250908622137,
    7.903091687751697,
    -1.6968494702918826,
)
# The same for |r| <= 1/2, to 2.1e-11 and 9.4e-13: enough for float32 and narrower, and no quarter turns to select
_N0, _N1, _N2, _N3, _N4, _N5, _N6, _N7 = (
    6.2831853071363515,
    -41.341702218258554,
    81.60524741403077,
    -76.70580003163633,
    42.05775187640783,
    -15.086552699921647,
    3.7812823478863007,
    -0.6207369744067331,
)
_M0, _M1, _M2, _M3, _M4, _M5, _M6, _M7, _M8 = (
    0.9999999999990582,
    -19.739208801568317,
    64.93939395750503,
    -85.45681452640346,
    60.24458609245169,
    -26.425615424200487,
    7.899154746434429,
    -1.696862015952548,
    0.24374971577130713,
)

_I8, _I16, _I32, _I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))


# -- instructions that Numba has no name for ---------------------------------------------------------------------------


class _Element:
    """How elements of one type lie in memory, and the type to compute in: one float wider, except for float64."""

    def __init__(self, like: Any) -> None:
        half, single, double = ir.HalfType(), ir.FloatType(), ir.DoubleType()
        self.is_bfloat16 = like == types.uint16
        self.stored, self.size, self.wide, self.lanes = {
            types.float64: (double, 8, double, 8),
            types.float32: (single, 4, double, 16),
            types.int16: (half, 2, single, 16),
            types.uint16: (_I16, 2, single, 16),
        }[like]
        self.wide_size = 8 if self.wide == double else 4

    def widen(self, builder: Any, value: Any, lanes: int) -> Any:
        if self.is_bfloat16:
            bits = builder.shl(builder.zext(value, _vector(_I32, lanes)), _splat(_I32, 16, lanes))
            return builder.bitcast(bits, _vector(self.wide, lanes))
        return value if self.stored == self.wide else builder.fpext(value, _vector(self.wide, lanes))

    def narrow(self, builder: Any, value: Any, lanes: int) -> Any:
        """Round to the nearest element, ties to even."""
        if not self.is_bfloat16:
            return value if self.stored == self.wide else builder.fptrunc(value, _vector(self.stored, lanes))
        bits = builder.bitcast(value, _vector(_I32, lanes))
        odd = builder.and_(builder.lshr(bits, _splat(_I32, 16, lanes)), _splat(_I32, 1, lanes))
        rounded = builder.add(builder.add(bits, odd), _splat(_I32, 0x7FFF, lanes))
        quiet = builder.or_(bits, _splat(_I32, 0x400000, lanes))
        bits = builder.select(builder.fcmp_unordered("uno", value, value), quiet, rounded)
        return builder.trunc(builder.lshr(bits, _splat(_I32, 16, lanes)), _vector(_I16, lanes))


def _vector(element: Any, lanes: int) -> Any:
    return ir.VectorType(element, lanes)


def _splat(element: Any, value: int, lanes: int) -> Any:
    return ir.Constant(_vector(element, lanes), [ir.Constant(element, value)] * lanes)


def _pick(builder: Any, first: Any, second: Any, indices: Any) -> Any:
    mask = [ir.Constant(_I32, i) for i in indices]
    return builder.shuffle_vector(first, second, ir.Constant(_vector(_I32, len(mask)), mask))


def _at(builder: Any, address: Any, kind: Any) -> Any:
    return builder.inttoptr(address, kind.as_pointer())


def _offset(builder: Any, address: Any, index: Any, step: int) -> Any:
    return builder.add(address, builder.mul(index, ir.Constant(index.type, step)))


def _fused(builder: Any, element: _Element, lanes: int, *arguments: Any) -> Any:
    kind = _vector(element.wide, lanes)
    name = f"llvm.fma.v{lanes}f{8 * element.wide_size}"
    function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(kind, [kind] * 3), name)
    return builder.call(function, arguments)


def _store(builder: Any, element: _Element, value: Any, address: Any, streaming: bool) -> None:
    """Store a vector; past the caches, in pieces of 16 bytes, if streaming."""
    lanes = value.type.count
    piece = 16 // element.size if streaming else lanes
    for start in range(0, lanes, piece):
        part = _pick(builder, value, value, range(start, start + piece)) if streaming else value
        place = builder.add(address, ir.Constant(_I64, start * element.size))
        done = builder.store(part, _at(builder, place, part.type), align=16 if streaming else element.size)
        if streaming:
            done.set_metadata("nontemporal", builder.module.add_metadata([ir.Constant(_I32, 1)]))


def _turn_lanes(builder: Any, element: _Element, row: Any, index: Any, lanes: int, pairs: Any, streaming: bool) -> None:
    """Turn some blocks of a row whose features lie side by side: all is loaded before anything is stored."""
    x, y, cos, sin, blocks = row
    pairing, out_pairing = pairs
    size = element.size
    half = builder.mul(blocks, ir.Constant(_I64, size))

    def load(address: Any, kind: Any, count: int) -> Any:
        return builder.load(_at(builder, address, _vector(kind, count)), align=size if kind is element.stored else 4)

    if pairing == 0:
        place = _offset(builder, x, index, size)
        first, second = (load(p, element.stored, lanes) for p in (place, builder.add(place, half)))
    else:
        both = load(_offset(builder, x, index, 2 * size), element.stored, 2 * lanes)
        first, second = (_pick(builder, both, both, range(i, 2 * lanes, 2)) for i in (0, 1))
    first, second = (element.widen(builder, v, lanes) for v in (first, second))
    cos, sin = (load(_offset(builder, v, index, element.wide_size), element.wide, lanes) for v in (cos, sin))
    turned_1 = _fused(builder, element, lanes, first, cos, builder.fneg(builder.fmul(second, sin)))
    turned_2 = _fused(builder, element, lanes, first, sin, builder.fmul(second, cos))
    turned_1, turned_2 = (element.narrow(builder, v, lanes) for v in (turned_1, turned_2))
    if out_pairing == 0:
        place = _offset(builder, y, index, size)
        _store(builder, element, turned_1, place, streaming)
        _store(builder, element, turned_2, builder.add(place, half), streaming)
    else:
        both = _pick(builder, turned_1, turned_2, [i // 2 + (i % 2) * lanes for i in range(2 * lanes)])
        _store(builder, element, both, _offset(builder, y, index, 2 * size), streaming)


def _turn_one(builder: Any, element: _Element, row: Any, index: Any, pairs: Any, steps: Any) -> None:
    """Turn one block of a row with any strides."""
    x, y, cos, sin, blocks = row
    places = []
    for base, interleaved, step in zip((x, y), pairs, steps, strict=True):
        twice = builder.mul(index, ir.Constant(_I64, 2))
        first = builder.select(interleaved, twice, index)
        second = builder.select(interleaved, builder.add(twice, ir.Constant(_I64, 1)), builder.add(index, blocks))
        places.append([builder.add(base, builder.mul(i, step)) for i in (first, second)])
    one = _vector(element.stored, 1)
    first, second = (
        element.widen(builder, builder.load(_at(builder, p, one), align=element.size), 1) for p in places[0]
    )
    kind = _vector(element.wide, 1)
    cos, sin = (builder.load(_at(builder, _offset(builder, v, index, element.wide_size), kind)) for v in (cos, sin))
    turned = (
        _fused(builder, element, 1, first, cos, builder.fneg(builder.fmul(second, sin))),
        _fused(builder, element, 1, first, sin, builder.fmul(second, cos)),
    )
    for value, place in zip(turned, places[1], strict=True):
        _store(builder, element, element.narrow(builder, value, 1), place, False)


@intrinsic
def _turn_row(  # type: ignore[no-untyped-def]
    typing, x, y, x_step, y_step, cos, sin, blocks, pairing, out_pairing, manner, like
):
    """Turn the blocks of one row: x and y are addresses of its first feature, the steps are between features.

    The manner is 0 for features that do not lie side by side, else 1 + pairing + 2 out_pairing + 4 streaming.
    """
    signature = types.void(*(types.int64,) * 10, like)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        element = _Element(signature.args[-1])
        x, y, x_step, y_step, cos, sin, blocks, pairing, out_pairing, manner, _ = arguments
        row, zero = (x, y, cos, sin, blocks), ir.Constant(_I64, 0)
        done = cgutils.alloca_once_value(builder, zero)
        rest = builder.append_basic_block("rest")
        chosen = builder.switch(manner, rest)

        def loop(lanes: int, pairs: Any, streaming: bool) -> None:
            start, stop = builder.load(done), builder.and_(blocks, ir.Constant(_I64, -lanes))
            with cgutils.for_range_slice(builder, start, stop, ir.Constant(_I64, lanes), _I64) as (index, _):
                _turn_lanes(builder, element, row, index, lanes, pairs, streaming)
            builder.store(stop, done)

        for number in range(8):
            pairs, streaming = (number & 1, number >> 1 & 1), number >= 4
            chosen.add_case(ir.Constant(_I64, 1 + number), block := builder.append_basic_block("dense"))
            builder.position_at_end(block)
            loop(element.lanes, pairs, streaming)
            loop(4, pairs, False)
            builder.branch(rest)
        builder.position_at_end(rest)
        interleaved = [builder.icmp_signed("!=", flag, zero) for flag in (pairing, out_pairing)]
        one = ir.Constant(_I64, 1)
        with cgutils.for_range_slice(builder, builder.load(done), blocks, one, _I64) as (index, _):
            _turn_one(builder, element, row, index, interleaved, (x_step, y_step))
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def _copy(typing, target, source, target_step, source_step, count, like):  # type: ignore[no-untyped-def]
    """Copy elements between addresses with steps in bytes."""
    signature = types.void(*(types.int64,) * 5, like)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        element = _Element(signature.args[-1])
        target, source, target_step, source_step, count, _ = arguments
        with cgutils.for_range(builder, count, intp=_I64) as loop:
            places = (
                builder.add(base, builder.mul(loop.index, step))
                for base, step in ((source, source_step), (target, target_step))
            )
            source_place, target_place = (_at(builder, place, element.stored) for place in places)
            builder.store(builder.load(source_place, align=element.size), target_place, align=element.size)
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def _wide(typing, address, like):  # type: ignore[no-untyped-def]
    """Address as a pointer to numbers of the type that elements like `like` are computed in."""
    wide = types.float64 if like in (types.float32, types.float64) else types.float32
    signature = types.CPointer(wide)(types.int64, like)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    return signature, generate


@intrinsic
def _integers(typing, address):  # type: ignore[no-untyped-def]
    """Address as a pointer to integers."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    return types.CPointer(types.int64)(types.int64), generate


@intrinsic
def _sizes(typing, like):  # type: ignore[no-untyped-def]
    """Bytes of an element and of the number that it is computed in."""
    signature = types.UniTuple(types.int64, 2)(like)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        element = _Element(signature.args[0])
        pair = [ir.Constant(_I64, element.size), ir.Constant(_I64, element.wide_size)]
        return context.make_tuple(builder, signature.return_type, pair)

    return signature, generate


@intrinsic
def _number(typing, address, narrow):  # type: ignore[no-untyped-def]
    """Read a float64, or a float32 if `narrow`, from an address."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        value = cgutils.alloca_once(builder, ir.DoubleType())
        with builder.if_else(arguments[1]) as (single, double):
            with single:
                place = _at(builder, arguments[0], ir.FloatType())
                builder.store(builder.fpext(builder.load(place, align=4), ir.DoubleType()), value)
            with double:
                builder.store(builder.load(_at(builder, arguments[0], ir.DoubleType()), align=8), value)
        return builder.load(value)

    return types.float64(types.int64, types.boolean), generate


@intrinsic
def _prefetch(typing, address):  # type: ignore[no-untyped-def]
    """Ask for the cache line of an address, which need not be valid."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [_I8.as_pointer(), _I32, _I32, _I32])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        read, locality, data = (ir.Constant(_I32, value) for value in (0, 2, 1))
        builder.call(function, [_at(builder, arguments[0], _I8), read, locality, data])
        return context.get_dummy_value()

    return types.void(types.int64), generate


@intrinsic
def _fence(typing):  # type: ignore[no-untyped-def]
    """Make stores that went past the caches visible to other threads."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def _fma(typing, a, b, c):  # type: ignore[no-untyped-def]
    """Return a * b + c, rounded once."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.fma(*arguments)

    return types.float64(types.float64, types.float64, types.float64), generate


# -- phases to cos and sin ---------------------------------------------------------------------------------------------


@njit(inline="always")
def _cos_sin(high, low):  # type: ignore[no-untyped-def]
    """Cos and sin of 2 pi (high + low), |low| small or the sum arbitrary: quarter turns by selection."""
    quarters = np.rint(4.0 * (high + low))
    rest = (high - 0.25 * quarters) + low
    square = rest * rest
    sin = _fma(square, _S6, _S5)
    sin = _fma(square, sin, _S4)
    sin = _fma(square, sin, _S3)
    sin = _fma(square, sin, _S2)
    sin = _fma(square, sin, _S1)
    sin = _fma(square, sin, _S0) * rest
    cos = _fma(square, _C7, _C6)
    cos = _fma(square, cos, _C5)
    cos = _fma(square, cos, _C4)
    cos = _fma(square, cos, _C3)
    cos = _fma(square, cos, _C2)
    cos = _fma(square, cos, _C1)
    cos = _fma(square, cos, 1.0)
    quadrant = quarters - 4.0 * np.rint(0.25 * quarters)  # -2, -1, 0, 1 or 2
    odd = abs(quadrant) == 1.0
    turned_cos = sin if odd else cos
    turned_sin = cos if odd else sin
    if quadrant == 1.0 or abs(quadrant) == 2.0:
        turned_cos = -turned_cos
    if quadrant <= -1.0 or quadrant == 2.0:
        turned_sin = -turned_sin
    return turned_cos, turned_sin


@njit(inline="always")
def _cos_sin_narrow(high, low):  # type: ignore[no-untyped-def]
    """Cos and sin of 2 pi (high + low) for features narrower than float64."""
    rest = high + low
    rest -= np.rint(rest)
    square = rest * rest
    sin = _fma(square, _N7, _N6)
    sin = _fma(square, sin, _N5)
    sin = _fma(square, sin, _N4)
    sin = _fma(square, sin, _N3)
    sin = _fma(square, sin, _N2)
    sin = _fma(square, sin, _N1)
    sin = _fma(square, sin, _N0) * rest
    cos = _fma(square, _M8, _M7)
    cos = _fma(square, cos, _M6)
    cos = _fma(square, cos, _M5)
    cos = _fma(square, cos, _M4)
    cos = _fma(square, cos, _M3)
    cos = _fma(square, cos, _M2)
    cos = _fma(square, cos, _M1)
    return _fma(square, cos, _M0), sin


@called
def _turns_of(frequencies, block_step, axis_step, blocks, axes, turns_1, turns_2):  # type: ignore[no-untyped-def]
    """Frequencies over 2 pi to twice the precision of a float64, axis by axis."""
    for axis in range(axes):
        for i in range(blocks):
            turns_1[axis * blocks + i] = _number(frequencies + axis * axis_step + i * block_step, False)
    for i in range(axes * blocks):
        frequency = turns_1[i]
        product = frequency * _TURN_1
        turns_1[i] = product
        turns_2[i] = _fma(frequency, _TURN_1, -product) + frequency * _TURN_2


@called
def _add_turns(factor, turns_1, turns_2, count, high, low, exact):  # type: ignore[no-untyped-def]
    """Add factor * turns, less whole turns, to a sum: an unevaluated one of two parts (Knuth) if `exact`."""
    for i in range(count):
        product = factor * turns_1[i]
        term = product - np.rint(product)
        rest = _fma(factor, turns_2[i], _fma(factor, turns_1[i], -product))
        if exact:
            both = high[i] + term
            shadow = both - high[i]
            low[i] += ((high[i] - (both - shadow)) + (term - shadow)) + rest
            high[i] = both
        else:
            high[i] += term + rest


@called
def _add_radians(radians, count, high, low, exact):  # type: ignore[no-untyped-def]
    """Add angles in radians, less whole turns, to such a sum."""
    for i in range(count):
        product = radians[i] * _TURN_1
        term = product - np.rint(product)
        rest = _fma(radians[i], _TURN_2, _fma(radians[i], _TURN_1, -product))
        if exact:
            both = high[i] + term
            shadow = both - high[i]
            low[i] += ((high[i] - (both - shadow)) + (term - shadow)) + rest
            high[i] = both
        else:
            high[i] += term + rest


@called
def _read(source, step, narrow, count, target):  # type: ignore[no-untyped-def]
    for i in range(count):
        target[i] = _number(source + i * step, narrow)


@called
def _fill_one_axis(positions, step, n_rows, turns_1, turns_2, blocks, cos, sin, exact):  # type: ignore[no-untyped-def]
    """Cos and sin of a tile of phases, from positions on one axis: the usual case, without any scratch memory."""
    for row in range(n_rows):
        position = _number(positions + row * step, False)
        cos_row, sin_row = cos[row * blocks :], sin[row * blocks :]
        if exact:
            for i in range(blocks):
                product = position * turns_1[i]
                rest = _fma(position, turns_2[i], _fma(position, turns_1[i], -product))
                cos_row[i], sin_row[i] = _cos_sin(product - np.rint(product), rest)
        else:
            for i in range(blocks):
                product = position * turns_1[i]
                rest = _fma(position, turns_2[i], _fma(position, turns_1[i], -product))
                cos_row[i], sin_row[i] = _cos_sin_narrow(product - np.rint(product), rest)


@called
def _cos_sin_of_sums(high, low, blocks, cos, sin, exact):  # type: ignore[no-untyped-def]
    if exact:
        for i in range(blocks):
            cos[i], sin[i] = _cos_sin(high[i], low[i])
    else:
        for i in range(blocks):
            cos[i], sin[i] = _cos_sin_narrow(high[i], low[i])


@called
def _cos_sin_of_radians(radians, blocks, high, low, cos, sin, exact):  # type: ignore[no-untyped-def]
    largest = 0.0
    for i in range(blocks):
        largest = max(largest, abs(radians[i]))
    if largest <= _LARGEST_EXACT:
        for i in range(blocks):
            high[i], low[i] = 0.0, 0.0
        _add_radians(radians, blocks, high, low, exact)
        _cos_sin_of_sums(high, low, blocks, cos, sin, exact)
    else:  # NaN and infinity too
        for i in range(blocks):
            cos[i], sin[i] = math.cos(radians[i]), math.sin(radians[i])


@called
def _fill(header, row, a, b, c, e, scale, turns_1, turns_2, high, low, cos, sin, exact):  # type: ignore[no-untyped-def]
    """Cos and sin of one row of phases."""
    blocks, source = header[BLOCKS], header[SOURCE]
    a_step, b_step = header[BLOCK_STRIDES + A], header[BLOCK_STRIDES + B]
    if source >= TABLE_64:
        _read(a, a_step, source == TABLE_32, blocks, high)
        _read(b, b_step, source == TABLE_32, blocks, low)
        for i in range(blocks):
            cos[i], sin[i] = high[i], low[i]
    elif source == PHASES:
        _read(a, a_step, False, blocks, row)
        _cos_sin_of_radians(row, blocks, high, low, cos, sin, exact)
    else:
        for i in range(blocks):
            high[i], low[i] = 0.0, 0.0
        for axis in range(header[POSITION_AXES]):
            position = _number(a + axis * header[A_AXIS], False)
            these = slice(axis * blocks, (axis + 1) * blocks)
            _add_turns(position, turns_1[these], turns_2[these], blocks, high, low, exact)
        if header[HAS_SHIFT] != 0:
            _read(c, header[BLOCK_STRIDES + C], False, blocks, row)
            _add_radians(row, blocks, high, low, exact)
        _cos_sin_of_sums(high, low, blocks, cos, sin, exact)
    if header[INVERSE] != 0:
        for i in range(blocks):
            sin[i] = -sin[i]
    if header[HAS_SCALE] != 0 or scale != 1.0:
        if header[HAS_SCALE] != 0:
            _read(e, header[BLOCK_STRIDES + E], False, blocks, row)
        else:
            for i in range(blocks):
                row[i] = scale
        if header[INVERSE] != 0:
            for i in range(blocks):
                cos[i] /= row[i]
                sin[i] /= row[i]
        else:
            for i in range(blocks):
                cos[i] *= row[i]
                sin[i] *= row[i]


# -- the walk over memory ----------------------------------------------------------------------------------------------


@called
def _offsets(header, first_axis, n_axes, index, found):  # type: ignore[no-untyped-def]
    """Add to `found` the bytes from the start of each operand to the row of that index, over some axes of the plan."""
    for axis in range(first_axis + n_axes - 1, first_axis - 1, -1):
        start = HEADER + COLUMNS * axis
        whole = index // header[start]
        along = index - whole * header[start]
        for operand in range(COLUMNS):
            found[operand] += along * header[start + operand]
        index = whole


@njit(inline="always")
def _turn_rows(header, x, y, cos, sin, outer, inner, buffer, like):  # type: ignore[no-untyped-def]
    """Turn rows on two nested axes, given as offsets in x, y and the table, and pass their other features through."""
    # read once: for all the compiler knows, a row could lie over the header
    size, blocks, features = _sizes(like)[0], header[BLOCKS], header[FEATURES]
    x_step, y_step = header[BLOCK_STRIDES + X], header[BLOCK_STRIDES + Y]
    pairing, out_pairing, streaming = header[PAIRING], header[OUT_PAIRING], header[STREAMING]
    manner = 1 + pairing + 2 * out_pairing + 4 * streaming if x_step == size and y_step == size else 0
    moving = header[IN_PLACE] != 0 and pairing != out_pairing  # features change places: read all before writing
    rest = 0 if header[IN_PLACE] != 0 else features - 2 * blocks
    ahead = _PREFETCH_BYTES // (features * size)
    n_outer, n_inner = outer.shape[1], inner.shape[1]
    asked = 0 < ahead <= n_inner
    for i in range(n_outer):
        x_outer, y_outer, table_outer = outer[0, i], outer[1, i], outer[2, i]
        following = outer[0, i + 1] if i + 1 < n_outer else x_outer
        for j in range(n_inner):
            if asked:
                if j + ahead < n_inner:
                    coming = x + x_outer + inner[0, j + ahead]
                else:
                    coming = x + following + inner[0, j + ahead - n_inner]
                for byte in range(0, features * size, 64):
                    _prefetch(coming + byte)
            table = table_outer + inner[2, j]
            x_row, y_row, step = x + x_outer + inner[0, j], y + y_outer + inner[1, j], x_step
            if rest > 0:
                done = 2 * blocks
                _copy(y_row + done * y_step, x_row + done * step, y_step, step, rest, like)
            if moving:
                _copy(buffer, x_row, size, step, 2 * blocks, like)
                x_row, step = buffer, size
            _turn_row(x_row, y_row, step, y_step, cos + table, sin + table, blocks, pairing, out_pairing, manner, like)


@njit(inline="always")
def _turn_tile(  # type: ignore[no-untyped-def]
    header,
    item,
    x,
    y,
    a,
    b,
    c,
    e,
    scale,
    last,
    turns_1,
    turns_2,
    rows,
    wide_cos,
    wide_sin,
    tables,
    shared,
    tile,
    at,
    like,
):
    """One item of work: a tile of rows of phases, and all rows of x (or one group of them) that share it."""
    blocks, n_rows = header[BLOCKS], header[TILE]
    group, outer_index = item % header[GROUPS], item // header[GROUPS]
    first_row = outer_index % header[TILES] * n_rows
    outer_index //= header[TILES]
    n_rows = min(n_rows, header[ROW_AXIS] - first_row)
    row_axis = header[ROW_AXIS:]
    for operand in range(COLUMNS):
        at[operand] = first_row * row_axis[operand]
    _offsets(header, 0, header[OUTER_AXES], outer_index, at)
    x, y = x + at[X], y + at[Y]
    a, b, c, e = a + at[A], b + at[B], c + at[C], e + at[E]
    if header[SOURCE] == POSITIONS and b != last:
        step, axes = header[BLOCK_STRIDES + B], header[POSITION_AXES]
        _turns_of(b, step, header[B_AXIS], blocks, axes, turns_1, turns_2)
    exact = _sizes(like)[0] == 8
    plain = header[SOURCE] == POSITIONS and header[POSITION_AXES] == 1 and header[HAS_SHIFT] == 0
    plain = plain and header[HAS_SCALE] == 0 and scale == 1.0
    if plain:
        step = row_axis[A]
        _fill_one_axis(a, step, n_rows, turns_1, turns_2, blocks, wide_cos, wide_sin, exact)
        if header[INVERSE] != 0:
            for i in range(n_rows * blocks):
                wide_sin[i] = -wide_sin[i]
    for r in range(0 if plain else n_rows):
        here = (a + r * row_axis[A], b + r * row_axis[B], c + r * row_axis[C], e + r * row_axis[E])
        a_row, b_row, c_row, e_row = here
        _fill(
            header, rows[0], a_row, b_row, c_row, e_row, scale,
            turns_1, turns_2, rows[1], rows[2], wide_cos[r * blocks :], wide_sin[r * blocks :], exact,
        )  # fmt: skip
    for r in range(n_rows):
        tile[0, r] = r * row_axis[X]
        tile[1, r] = r * row_axis[Y]
        tile[2, r] = r * blocks * _sizes(like)[1]
    first_shared = group * header[GROUP]
    n_shared = min(header[GROUP], header[SHARED] - first_shared)
    for s in range(n_shared):
        for operand in range(COLUMNS):
            at[operand] = 0
        _offsets(header, header[OUTER_AXES], header[SHARED_AXES], first_shared + s, at)
        shared[0, s], shared[1, s], shared[2, s] = at[X], at[Y], 0
    cos, sin, buffer = tables
    inner, outer = tile[:, :n_rows], shared[:, :n_shared]
    if header[ROWS_INSIDE] == 0:
        inner, outer = outer, inner
    _turn_rows(header, x, y, cos, sin, outer, inner, buffer, like)
    return b


@compiled
def turn(plan, x, y, a, b, c, e, scale, like, first, last):  # type: ignore[no-untyped-def]
    """Items first, ..., last - 1 of a plan's work. All but `scale` and `like` are addresses and integers."""
    header = carray(_integers(plan), (1 << 16,))
    blocks, n_rows = header[BLOCKS], header[TILE]
    turns = np.empty((2, header[POSITION_AXES] * blocks))
    rows = np.empty((3, blocks))
    storage = np.empty(2 * n_rows * blocks + header[FEATURES])
    cos = storage.ctypes.data
    sin = cos + n_rows * blocks * 8
    tables = (cos, sin, sin + n_rows * blocks * 8)
    wide_cos = carray(_wide(cos, like), (n_rows * blocks,))
    wide_sin = carray(_wide(sin, like), (n_rows * blocks,))
    shared = np.empty((3, header[GROUP]), np.int64)
    tile = np.empty((3, n_rows), np.int64)
    at = np.empty(COLUMNS, np.int64)
    done = 0  # no address of frequencies
    for item in range(first, last):
        done = _turn_tile(
            header, item, x, y, a, b, c, e, scale, done,
            turns[0], turns[1], rows, wide_cos, wide_sin, tables, shared, tile, at, like,
        )  # fmt: skip
    if header[STREAMING] != 0:
        _fence()
    return storage.size  # the table lives until here


@compiled
def address(array):  # type: ignore[no-untyped-def]
    """Address of an array, five times faster than `numpy.ndarray.ctypes`."""
    return array.ctypes.data


@compiled
def checked_address(array):  # type: ignore[no-untyped-def]
    """Address of an array, and whether all its values are at most 2**500."""
    fine = True
    for value in array.flat:
        fine = fine and abs(value) <= _LARGEST
    return array.ctypes.data, fine
