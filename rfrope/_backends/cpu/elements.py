"""Elements of features as vectors in LLVM's words: loaded, widened, put through a softplus, rounded and stored.

What a loop is compiled for is in the type of its argument `like`. Features in pairs on both sides: float64, float32,
int16 (stands for float16) and uint16 (bfloat16). Magnitudes on one side: int64, int32, int8 and uint8 for the same.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import typeof
from numba.core import cgutils

from rfrope._core.blocks import MAGNITUDES, PAIRINGS

I8, I16, I32, I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))


# what may be asked of a loop: the layout of x, that of y, and whether x is to pass a softplus first
_PAIRED = tuple((pairing, out_pairing, False) for out_pairing in PAIRINGS for pairing in PAIRINGS)
_POLAR = (
    *((MAGNITUDES, pairing, softplus) for softplus in (False, True) for pairing in PAIRINGS),
    *((pairing, MAGNITUDES, False) for pairing in PAIRINGS),
)
# values that stand for elements: of pairs on both sides, and beside magnitudes
_LIKE: dict[str, tuple[Any, Any]] = {
    "float64": (np.float64(0), np.int64(0)),
    "float32": (np.float32(0), np.int32(0)),
    "float16": (np.int16(0), np.int8(0)),
    "bfloat16": (np.uint16(0), np.uint8(0)),
}
_MADE_FOR = {typeof(like): (dtype, i) for dtype, likes in _LIKE.items() for i, like in enumerate(likes)}
DTYPES = {dtype: paired.dtype.itemsize for dtype, (paired, _) in _LIKE.items()}  # bytes of their elements

# (exp(r) - 1 - r)/r^2 for |r| <= ln(2)/2, and (log1p(t) - w)/w^3 in w^2, for w = t/(1 + t/2) and t <= 1: interpolation
# in Chebyshev's nodes with 40 digits (mpmath); relative errors 1.3e-7, 1e-8 for float32, 3e-18, 1.3e-16 for float64
_EXP_32 = (0.5, 0.16666577756404877, 0.041666556149721146, 0.008363173343241215, 0.0013926175888627768)
_LOG_32 = (
    0.0833333358168602, 0.012499907985329628, 0.002233777893707156, 0.0004239565460011363, 0.00011340004857629538,
)  # fmt: skip
_EXP_64 = (
    0.5, 0.1666666666666667, 0.04166666666666667, 0.008333333333326141, 0.0013888888888883752,
    0.00019841269874800493, 2.4801587325533363e-05, 2.7557255425746435e-06, 2.7557273661348637e-07,
    2.510520637395701e-08, 2.0914679376583935e-09,
)  # fmt: skip
_LOG_64 = (
    0.08333333333333333, 0.012500000000004558, 0.0022321428568053718, 0.00043402778744976297, 8.877826873111747e-05,
    1.8781213458201444e-05, 4.063154360856609e-06, 9.156091926262446e-07, 1.6786076519288395e-07,
    7.707617574664846e-08,
)  # fmt: skip


class _Float(NamedTuple):
    """Constants of a float: its bits, those of its mantissa and exponent, and where exp(-x) is 0."""

    kind: Any
    bits: int
    mantissa: int
    bias: int
    last: float
    ln2: tuple[float, float]
    exp: tuple[float, ...]
    log: tuple[float, ...]


_SINGLE = _Float(ir.FloatType(), 32, 23, 127, 105.0, (0.6931471824645996, -1.9046542121259336e-09), _EXP_32, _LOG_32)
_DOUBLE = _Float(ir.DoubleType(), 64, 52, 1023, 746.0, (0.6931471805599453, 2.3190468138462996e-17), _EXP_64, _LOG_64)


def like_of(dtype: str, options: tuple[str, str, bool, bool]) -> tuple[Any, int]:
    """Return an element of a dtype, as the loops for such features know it, and the number of what is asked of them.

    Raises
    ------
    ValueError
        Where there are no such layouts; whoever calls it words the error.
    """
    pairing, out_pairing, _, softplus = options
    is_polar = MAGNITUDES in (pairing, out_pairing)
    return _LIKE[dtype][is_polar], (_POLAR if is_polar else _PAIRED).index((pairing, out_pairing, softplus))


class Element:
    """Layout of elements of one type, the type to compute in (one float wider, if there is), and code for vectors."""

    def __init__(self, like: Any, builder: Any = None) -> None:
        half, single, double = ir.HalfType(), ir.FloatType(), ir.DoubleType()
        dtype, is_polar = _MADE_FOR[like]
        self.builder, self.is_bfloat16, self.forms = builder, dtype == "bfloat16", _POLAR if is_polar else _PAIRED
        self.stored, self.size, self.wide, self.lanes = {
            "float64": (double, 8, double, 8),
            "float32": (single, 4, double, 16),
            "float16": (half, 2, single, 16),
            "bfloat16": (I16, 2, single, 16),
        }[dtype]
        self.wide_size = 8 if self.wide == double else 4

    def read(self, value: Any, softplus: bool = False) -> Any:
        """Widen what was loaded, after a softplus in the narrowest float that has its digits."""
        return self.read_both(value)[0] if softplus else self._widen(value)

    def read_both(self, value: Any) -> list[Any]:
        """Softplus of what was loaded, and its slope, the logistic function."""
        if self.size == 4:
            return [self._widen(one) for one in _softplus(self.builder, value, _SINGLE)]
        return _softplus(self.builder, self._widen(value), _DOUBLE if self.size == 8 else _SINGLE)

    def _widen(self, value: Any) -> Any:
        lanes = value.type.count
        if self.is_bfloat16:
            bits = self.builder.shl(self.builder.zext(value, vector(I32, lanes)), splat(I32, 16, lanes))
            return self.builder.bitcast(bits, vector(self.wide, lanes))
        return value if self.stored == self.wide else self.builder.fpext(value, vector(self.wide, lanes))

    def narrow(self, value: Any) -> Any:
        """Round to the nearest element, ties to even."""
        builder, lanes = self.builder, value.type.count
        if not self.is_bfloat16:
            return value if self.stored == self.wide else builder.fptrunc(value, vector(self.stored, lanes))
        bits = builder.bitcast(value, vector(I32, lanes))
        odd = builder.and_(builder.lshr(bits, splat(I32, 16, lanes)), splat(I32, 1, lanes))
        rounded = builder.add(builder.add(bits, odd), splat(I32, 0x7FFF, lanes))
        quiet = builder.or_(bits, splat(I32, 0x400000, lanes))
        bits = builder.select(builder.fcmp_unordered("uno", value, value), quiet, rounded)
        return builder.trunc(builder.lshr(bits, splat(I32, 16, lanes)), vector(I16, lanes))

    def load(self, base: Any, index: Any, lanes: int, blocks: Any, layout: str, step: Any = None) -> list[Any]:
        """First features of some blocks, and second ones where there are any, as they are stored.

        Features lie side by side; where there is a step, one block has any step between features.
        """

        def load(place: Any, count: int) -> Any:
            return self.builder.load(pointer(self.builder, place, vector(self.stored, count)), align=1)

        if layout == "interleaved" and step is None:
            both = load(offset(self.builder, base, index, 2 * self.size), 2 * lanes)
            return [pick(self.builder, both, both, range(i, 2 * lanes, 2)) for i in (0, 1)]
        return [load(place, lanes) for place in self._places(base, index, blocks, layout, step)]

    def store(
        self, values: Any, base: Any, index: Any, blocks: Any, layout: str, step: Any = None, streaming: bool = False
    ) -> None:
        """Store first and second features of some blocks, or first ones alone, as `load` loads them."""
        if layout == "interleaved" and step is None:
            lanes = values[0].type.count
            both = pick(self.builder, values[0], values[1], [i // 2 + (i % 2) * lanes for i in range(2 * lanes)])
            self._store(both, offset(self.builder, base, index, 2 * self.size), streaming)
            return
        for value, place in zip(values, self._places(base, index, blocks, layout, step), strict=True):
            self._store(value, place, streaming)

    def _store(self, value: Any, address: Any, streaming: bool) -> None:
        """Store a vector; past the caches, in pieces of 16 bytes, if streaming."""
        builder, lanes = self.builder, value.type.count
        piece = 16 // self.size if streaming else lanes
        for start in range(0, lanes, piece):
            part = pick(builder, value, value, range(start, start + piece)) if streaming else value
            place = builder.add(address, ir.Constant(I64, start * self.size))
            done = builder.store(part, pointer(builder, place, part.type), align=16 if streaming else 1)
            if streaming:
                done.set_metadata("nontemporal", builder.module.add_metadata([ir.Constant(I32, 1)]))

    def _places(self, base: Any, index: Any, blocks: Any, layout: str, step: Any) -> list[Any]:
        """Addresses of the first feature of a block, and of the second where there is one."""
        builder = self.builder
        if layout == "interleaved":
            first = builder.mul(index, ir.Constant(I64, 2))
            indices = [first, builder.add(first, ir.Constant(I64, 1))]
        else:
            indices = [index] if layout == MAGNITUDES else [index, builder.add(index, blocks)]
        step = ir.Constant(I64, self.size) if step is None else step
        return [builder.add(base, builder.mul(i, step)) for i in indices]


def vector(element: Any, lanes: int) -> Any:
    return ir.VectorType(element, lanes)


def splat(element: Any, value: float, lanes: int) -> Any:
    return ir.Constant(vector(element, lanes), [ir.Constant(element, value)] * lanes)


def pick(builder: Any, first: Any, second: Any, indices: Any) -> Any:
    mask = [ir.Constant(I32, i) for i in indices]
    return builder.shuffle_vector(first, second, ir.Constant(vector(I32, len(mask)), mask))


def pointer(builder: Any, address: Any, kind: Any) -> Any:
    return builder.inttoptr(address, kind.as_pointer())


def offset(builder: Any, address: Any, index: Any, step: int) -> Any:
    return builder.add(address, builder.mul(index, ir.Constant(index.type, step)))


def fused(builder: Any, *factors: Any) -> Any:
    """Return the product of two vectors plus a third, rounded once."""
    kind = factors[0].type
    name = f"llvm.fma.v{kind.count}{kind.element.intrinsic_name}"
    return builder.call(
        cgutils.get_or_insert_function(builder.module, ir.FunctionType(kind, [kind] * 3), name), factors
    )


# -- softplus ----------------------------------------------------------------------------------------------------------


class _Vectors:
    """Arithmetic of vectors of one float with constants."""

    def __init__(self, builder: Any, lanes: int, single: _Float) -> None:
        self.builder, self.lanes, self.single = builder, lanes, single
        self.integer = ir.IntType(single.bits)
        self.kind, self.words = vector(single.kind, lanes), vector(self.integer, lanes)

    def number(self, value: float) -> Any:
        return splat(self.single.kind, value, self.lanes)

    def word(self, value: int) -> Any:
        return splat(self.integer, value, self.lanes)

    def bits(self, value: Any) -> Any:
        return self.builder.bitcast(value, self.words)

    def floats(self, value: Any) -> Any:
        return self.builder.bitcast(value, self.kind)

    def fma(self, *factors: Any) -> Any:
        return fused(self.builder, *factors)

    def polynomial(self, coefficients: tuple[float, ...], point: Any) -> Any:
        *lower, last = coefficients
        value = self.number(last)
        for coefficient in reversed(lower):
            value = self.fma(value, point, self.number(coefficient))
        return value

    def exp(self, x: Any) -> tuple[Any, Any]:
        """Exponential of what is not positive, and what rounding has taken from it; NaN stays NaN.

        It is ``2^n exp(r)`` with ln 2 in two parts, scaled by two powers of two, so that subnormal results are rounded
        once.
        """
        builder, single, one = self.builder, self.single, self.number(1.0)
        x = builder.select(builder.fcmp_ordered("<", x, self.number(-single.last)), self.number(-single.last), x)
        shift = self.number(1.5 * 2.0**single.mantissa)  # moves a number's whole part to the end of its mantissa
        whole = self.fma(x, self.number(1.4426950408889634), shift)
        n = builder.fneg(builder.fsub(whole, shift))
        rest = self.fma(n, self.number(single.ln2[1]), self.fma(n, self.number(single.ln2[0]), x))
        count = builder.sub(self.bits(whole), self.bits(shift))
        exponents = builder.add(count, self.word(2 * single.bias))
        first = builder.lshr(exponents, self.word(1))
        less = self.fma(builder.fmul(rest, rest), self.polynomial(single.exp, rest), rest)
        value = builder.fadd(one, less)
        lost = builder.fsub(less, builder.fsub(value, one))
        for exponent in (first, builder.sub(exponents, first)):
            power = self.floats(builder.shl(exponent, self.word(single.mantissa)))
            value, lost = builder.fmul(value, power), builder.fmul(lost, power)
        return value, lost


def _softplus(builder: Any, z: Any, single: _Float) -> list[Any]:
    """``max(z, 0) + log1p(exp(-|z|))`` without a branch, to 1.5 units in the last place, and its slope; NaN stays NaN.

    What rounding takes from the exponential and from the quotient w goes into the last sum.
    """
    of = _Vectors(builder, z.type.count, single)
    zero, one = of.number(0.0), of.number(1.0)
    t, lost = of.exp(of.floats(builder.or_(of.bits(z), of.word(1 << single.bits - 1))))
    half = builder.fmul(t, of.number(0.5))
    below = builder.fadd(one, half)
    missed = builder.fsub(half, builder.fsub(below, one))
    w = builder.fdiv(t, below)
    nearly = of.fma(w, of.number(-0.5), one)  # 1/(1 + t/2)
    left = of.fma(builder.fneg(w), missed, of.fma(builder.fneg(w), below, t))
    rounded = builder.fmul(of.fma(lost, nearly, left), nearly)
    square = builder.fmul(w, w)
    log = builder.fadd(w, of.fma(builder.fmul(w, square), of.polynomial(single.log, square), rounded))
    is_positive = builder.fcmp_ordered(">", z, zero)
    value = builder.fadd(builder.select(is_positive, z, zero), log)
    slope = builder.fdiv(builder.select(is_positive, one, t), builder.fadd(t, one))
    return [value, slope]
