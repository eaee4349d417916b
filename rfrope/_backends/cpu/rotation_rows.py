"""Rows of features in memory: instructions that Numba has no name for, in LLVM's words.

The element type is that of the argument `like`: float64, float32, int16 (stands for float16) and uint16 (bfloat16).
"""

from __future__ import annotations

import platform
from typing import Any

from llvmlite import binding, ir
from numba import config, types
from numba.core import cgutils, errors
from numba.extending import intrinsic


def _converts_half() -> bool:
    """Return whether the processor converts float16 by itself: the compiled code has no library to call."""
    if platform.machine().lower() not in ("x86_64", "amd64", "i386", "i686"):
        return True
    if config.CPU_FEATURES is not None:  # NUMBA_CPU_NAME alone leaves the features those of the host
        return "+f16c" in config.CPU_FEATURES
    return bool(binding.get_host_cpu_features().get("f16c", False))


if not _converts_half():
    raise ImportError("this processor (or NUMBA_CPU_FEATURES) has no F16C: float16 cannot be converted in the loops")

_I8, _I16, _I32, _I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))


class _Element:
    """Layout of elements of one type, and the type to compute in: one float wider, except for float64."""

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


def _pointer(builder: Any, address: Any, kind: Any) -> Any:
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
        done = builder.store(part, _pointer(builder, place, part.type), align=16 if streaming else 1)
        if streaming:
            done.set_metadata("nontemporal", builder.module.add_metadata([ir.Constant(_I32, 1)]))


def _turn_lanes(builder: Any, element: _Element, row: Any, index: Any, lanes: int, pairs: Any, streaming: bool) -> None:
    """Turn some blocks of a row whose features lie side by side: all is loaded before anything is stored."""
    x, y, cos, sin, blocks = row
    pairing, out_pairing = pairs
    size = element.size
    half = builder.mul(blocks, ir.Constant(_I64, size))

    def load(address: Any, kind: Any, count: int) -> Any:
        return builder.load(_pointer(builder, address, _vector(kind, count)), align=1 if kind is element.stored else 4)

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


def _places_of(builder: Any, base: Any, index: Any, step: Any, blocks: Any, interleaved: Any) -> list[Any]:
    """Addresses of the first and second feature of one block, with any step between features."""
    twice = builder.mul(index, ir.Constant(_I64, 2))
    first = builder.select(interleaved, twice, index)
    second = builder.select(interleaved, builder.add(twice, ir.Constant(_I64, 1)), builder.add(index, blocks))
    return [builder.add(base, builder.mul(i, step)) for i in (first, second)]


def _turn_one(builder: Any, element: _Element, row: Any, index: Any, pairs: Any, steps: Any) -> None:
    """Turn one block of a row with any strides."""
    x, y, cos, sin, blocks = row
    places = [
        _places_of(builder, base, index, step, blocks, interleaved)
        for base, interleaved, step in zip((x, y), pairs, steps, strict=True)
    ]
    one = _vector(element.stored, 1)
    first, second = (element.widen(builder, builder.load(_pointer(builder, p, one), align=1), 1) for p in places[0])
    kind = _vector(element.wide, 1)
    cos, sin = (
        builder.load(_pointer(builder, _offset(builder, v, index, element.wide_size), kind)) for v in (cos, sin)
    )
    turned = (
        _fused(builder, element, 1, first, cos, builder.fneg(builder.fmul(second, sin))),
        _fused(builder, element, 1, first, sin, builder.fmul(second, cos)),
    )
    for value, place in zip(turned, places[1], strict=True):
        _store(builder, element, element.narrow(builder, value, 1), place, False)


@intrinsic
def turn_row(  # type: ignore[no-untyped-def]
    typing, x, y, x_step, y_step, cos, sin, blocks, pairing, out_pairing, manner, like
):
    """Turn the blocks of one row: x and y are addresses of its first feature, the steps are between features.

    `manner` is 0 for features that do not lie side by side, else 1 + pairing + 2 out_pairing + 4 streaming.
    """
    signature = types.void(*(types.int64,) * 10, like)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        element = _Element(signature.args[-1])
        x, y, x_step, y_step, cos, sin, blocks, pairing, out_pairing, manner, _ = arguments
        row, zero = (x, y, cos, sin, blocks), ir.Constant(_I64, 0)
        done = cgutils.alloca_once_value(builder, zero)
        rest, few = (builder.append_basic_block(name) for name in ("rest", "few"))
        chosen = builder.switch(manner, rest)

        def loop(lanes: int, pairs: Any, streaming: bool) -> None:
            start, stop = builder.load(done), builder.and_(blocks, ir.Constant(_I64, -lanes))
            with cgutils.for_range_slice(builder, start, stop, ir.Constant(_I64, lanes), _I64) as (index, _):
                _turn_lanes(builder, element, row, index, lanes, pairs, streaming)
            builder.store(stop, done)

        for number in range(8):
            chosen.add_case(ir.Constant(_I64, 1 + number), block := builder.append_basic_block("dense"))
            builder.position_at_end(block)
            loop(element.lanes, (number & 1, number >> 1 & 1), number >= 4)
            builder.branch(few)
        builder.position_at_end(few)
        left = builder.and_(builder.sub(manner, ir.Constant(_I64, 1)), ir.Constant(_I64, 3))
        chosen = builder.switch(left, rest)
        for number in range(4):
            chosen.add_case(ir.Constant(_I64, number), block := builder.append_basic_block("four"))
            builder.position_at_end(block)
            loop(4, (number & 1, number >> 1), False)
            builder.branch(rest)
        builder.position_at_end(rest)
        interleaved = [builder.icmp_signed("!=", flag, zero) for flag in (pairing, out_pairing)]
        one = ir.Constant(_I64, 1)
        with cgutils.for_range_slice(builder, builder.load(done), blocks, one, _I64) as (index, _):
            _turn_one(builder, element, row, index, interleaved, (x_step, y_step))
        return context.get_dummy_value()

    return signature, generate


def _add_lanes(builder: Any, element: _Element, row: Any, index: Any, lanes: int, places: Any) -> None:
    """Add the products of some blocks of x and y, whose features lie at given places, to sums in float64."""
    dots, crosses = row
    double = ir.DoubleType()
    kind = _vector(double, lanes)

    def widened(value: Any) -> Any:
        value = element.widen(builder, value, lanes)
        return value if element.wide == double else builder.fpext(value, kind)

    (x_1, x_2), (y_1, y_2) = ([widened(v) for v in side] for side in places)
    sums = _Element(types.float64)
    for base, first, second, sign in ((dots, (x_1, y_1), (x_2, y_2), 1), (crosses, (x_1, y_2), (x_2, y_1), -1)):
        place = _pointer(builder, _offset(builder, base, index, 8), kind)
        factor = second[0] if sign > 0 else builder.fneg(second[0])
        total = _fused(builder, sums, lanes, *first, builder.load(place, align=8))
        builder.store(_fused(builder, sums, lanes, factor, second[1], total), place, align=8)


def _features_of(builder: Any, element: _Element, base: Any, index: Any, lanes: int, blocks: Any, pairing: int) -> Any:
    """First and second features of some blocks that lie side by side."""
    size, kind = element.size, _vector(element.stored, lanes)
    if pairing == 0:
        place = _offset(builder, base, index, size)
        both = (place, builder.add(place, builder.mul(blocks, ir.Constant(_I64, size))))
        return [builder.load(_pointer(builder, p, kind), align=size) for p in both]
    whole = _vector(element.stored, 2 * lanes)
    both = builder.load(_pointer(builder, _offset(builder, base, index, 2 * size), whole), align=size)
    return [_pick(builder, both, both, range(i, 2 * lanes, 2)) for i in (0, 1)]


@intrinsic
def add_products(  # type: ignore[no-untyped-def]
    typing, x, y, x_step, y_step, dots, crosses, blocks, pairing, y_pairing, manner, like
):
    """Add ``x . y`` and ``x_1 y_2 - x_2 y_1`` of each block of one row to sums in float64, at two addresses.

    The manner is 0 for features that do not lie side by side, else 1 + pairing + 2 y_pairing.
    """
    signature = types.void(*(types.int64,) * 10, like)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        element = _Element(signature.args[-1])
        x, y, x_step, y_step, dots, crosses, blocks, pairing, y_pairing, manner, _ = arguments
        zero, lanes, sums = ir.Constant(_I64, 0), 8, (dots, crosses)
        done = cgutils.alloca_once_value(builder, zero)
        rest = builder.append_basic_block("rest")
        chosen = builder.switch(manner, rest)
        for number in range(4):
            chosen.add_case(ir.Constant(_I64, 1 + number), block := builder.append_basic_block("dense"))
            builder.position_at_end(block)
            stop = builder.and_(blocks, ir.Constant(_I64, -lanes))
            with cgutils.for_range_slice(builder, zero, stop, ir.Constant(_I64, lanes), _I64) as (index, _):
                sides = ((x, number & 1), (y, number >> 1))
                places = [_features_of(builder, element, v, index, lanes, blocks, pair) for v, pair in sides]
                _add_lanes(builder, element, sums, index, lanes, places)
            builder.store(stop, done)
            builder.branch(rest)
        builder.position_at_end(rest)
        one = ir.Constant(_I64, 1)
        with cgutils.for_range_slice(builder, builder.load(done), blocks, one, _I64) as (index, _):
            flags = [builder.icmp_signed("!=", flag, zero) for flag in (pairing, y_pairing)]
            kind = _vector(element.stored, 1)
            found = []
            for base, step, flag in zip((x, y), (x_step, y_step), flags, strict=True):
                places = _places_of(builder, base, index, step, blocks, flag)
                found.append([builder.load(_pointer(builder, p, kind), align=element.size) for p in places])
            _add_lanes(builder, element, sums, index, 1, found)
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def copy(typing, target, source, target_step, source_step, count, like):  # type: ignore[no-untyped-def]
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
            source_place, target_place = (_pointer(builder, place, element.stored) for place in places)
            builder.store(builder.load(source_place, align=1), target_place, align=1)
        return context.get_dummy_value()

    return signature, generate


def _call(builder: Any, context: Any, signature: Any, arguments: Any) -> Any:
    """Call a compiled loop by its address: were it called by its name, its code would be compiled into the caller."""
    kinds, convention = signature.args[1:], context.call_conv
    kind = convention.get_function_type(signature.return_type, kinds)
    function = builder.inttoptr(arguments[0], kind.as_pointer())
    _, result = convention.call_function(builder, function, signature.return_type, kinds, arguments[1:])
    return result


@intrinsic
def call_turn(typing, function, plan, x, y, a, b, c, e, scale, like, first, last):  # type: ignore[no-untyped-def]
    """Call `turn` by its address."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _call(builder, context, signature, arguments)

    return types.int64(types.int64, *turn_types(like)), generate


def turn_types(like: Any) -> tuple[Any, ...]:
    """Return the types that `turn` takes, for elements of a type."""
    return (*(types.int64,) * 7, types.float64, like, types.int64, types.int64)


@intrinsic
def call_fill(typing, function, plan, rows, a, b, c, e, turns_1, turns_2, scratch, cos, sin, exact):  # type: ignore[no-untyped-def]
    """Call `fill_line` or `fill_any` by its address."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _call(builder, context, signature, arguments)

    return types.int64(types.int64, *fill_types(cos.dtype == types.float32)), generate


def fill_types(is_narrow: bool) -> tuple[Any, ...]:
    """Return the types that `fill_line` and `fill_any` take, for tables of float32 or float64."""
    pointer = types.CPointer(types.float32 if is_narrow else types.float64)
    return (*(types.int64,) * 9, pointer, pointer, types.boolean)


@intrinsic
def carry(typing, target, source):  # type: ignore[no-untyped-def]
    """Copy 64 bytes."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = _vector(_I32, 16)
        value = builder.load(_pointer(builder, arguments[1], kind), align=1)
        builder.store(value, _pointer(builder, arguments[0], kind), align=1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@intrinsic
def stream(typing, target, source, count, size):  # type: ignore[no-untyped-def]
    """Store so many pieces of 16 or 64 bytes past the caches, each as a whole; addresses are multiples of that."""
    if not isinstance(size, types.IntegerLiteral):
        raise errors.RequireLiteralValue("size")
    signature, piece = types.void(*(types.int64,) * 3, size), size.literal_value

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        target, source, count, _ = arguments
        kind = _vector(_I32, piece // 4)
        mark = builder.module.add_metadata([ir.Constant(_I32, 1)])
        with cgutils.for_range(builder, count, intp=_I64) as loop:
            done = builder.mul(loop.index, ir.Constant(_I64, piece))
            value = builder.load(_pointer(builder, builder.add(source, done), kind), align=piece)
            stored = builder.store(value, _pointer(builder, builder.add(target, done), kind), align=piece)
            stored.set_metadata("nontemporal", mark)
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def wide(typing, address, like):  # type: ignore[no-untyped-def]
    """Address as a pointer to numbers of the type that elements like `like` are computed in."""
    wide = types.float64 if like in (types.float32, types.float64) else types.float32
    signature = types.CPointer(wide)(types.int64, like)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    return signature, generate


@intrinsic
def integers(typing, address):  # type: ignore[no-untyped-def]
    """Address as a pointer to integers."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    return types.CPointer(types.int64)(types.int64), generate


@intrinsic
def sizes(typing, like):  # type: ignore[no-untyped-def]
    """Bytes of an element and of the number that it is computed in."""
    signature = types.UniTuple(types.int64, 2)(like)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        element = _Element(signature.args[0])
        pair = [ir.Constant(_I64, element.size), ir.Constant(_I64, element.wide_size)]
        return context.make_tuple(builder, signature.return_type, pair)

    return signature, generate


@intrinsic
def number(typing, address, narrow):  # type: ignore[no-untyped-def]
    """Read a float64, or a float32 if `narrow`, from an address."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        value = cgutils.alloca_once(builder, ir.DoubleType())
        with builder.if_else(arguments[1]) as (single, double):
            with single:
                place = _pointer(builder, arguments[0], ir.FloatType())
                builder.store(builder.fpext(builder.load(place, align=4), ir.DoubleType()), value)
            with double:
                builder.store(builder.load(_pointer(builder, arguments[0], ir.DoubleType()), align=8), value)
        return builder.load(value)

    return types.float64(types.int64, types.boolean), generate


@intrinsic
def prefetch(typing, address):  # type: ignore[no-untyped-def]
    """Ask for the cache line of an address, which need not be valid."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [_I8.as_pointer(), _I32, _I32, _I32])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        read, locality, data = (ir.Constant(_I32, value) for value in (0, 2, 1))
        builder.call(function, [_pointer(builder, arguments[0], _I8), read, locality, data])
        return context.get_dummy_value()

    return types.void(types.int64), generate


@intrinsic
def fence(typing):  # type: ignore[no-untyped-def]
    """Make stores that went past the caches visible to other threads."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), generate
