"""Rows of features in memory: instructions that Numba has no name for, in LLVM's words.

What they are made for is in the type of the argument `like`; see `elements`.
"""

from __future__ import annotations

import platform
from typing import Any

from llvmlite import binding, ir
from numba import config, types
from numba.core import cgutils, errors
from numba.extending import intrinsic

from rfrope._backends.cpu.elements import (
    I8,
    I32,
    I64,
    Element,
    features_of,
    fused,
    load_one,
    offset,
    places_of,
    pointer,
    splat,
    store,
    store_features,
    vector,
)
from rfrope._core.blocks import MAGNITUDES


def _converts_half() -> bool:
    """Return whether the processor converts float16 by itself: the compiled code has no library to call."""
    if platform.machine().lower() not in ("x86_64", "amd64", "i386", "i686"):
        return True
    if config.CPU_FEATURES is not None:  # NUMBA_CPU_NAME alone leaves the features those of the host
        return "+f16c" in config.CPU_FEATURES
    return bool(binding.get_host_cpu_features().get("f16c", False))


if not _converts_half():
    raise ImportError("this processor (or NUMBA_CPU_FEATURES) has no F16C: float16 cannot be converted in the loops")


def _turned(builder: Any, element: Element, features: Any, cos: Any, sin: Any, are_both: bool) -> list[Any]:
    """Features of some blocks, of which the second may be missing, turned: both, or the first alone."""
    lanes, first = cos.type.count, features[0]
    if len(features) == 1:
        turned = [builder.fmul(first, table) for table in (cos, sin)]
    else:
        second = features[1]
        turned = [fused(builder, element, lanes, first, cos, builder.fneg(builder.fmul(second, sin)))]
        if are_both:
            turned.append(fused(builder, element, lanes, first, sin, builder.fmul(second, cos)))
    return [element.narrow(builder, value, lanes) for value in turned]


def _turn_lanes(builder: Any, element: Element, row: Any, index: Any, lanes: int, form: Any, streaming: bool) -> None:
    """Turn some blocks of a row whose features lie side by side: all is loaded before anything is stored."""
    x, y, cos, sin, blocks = row
    layout, out_layout, softplus = form
    stored = features_of(builder, element, x, index, lanes, blocks, layout)
    kind = vector(element.wide, lanes)
    tables = (offset(builder, table, index, element.wide_size) for table in (cos, sin))
    cos, sin = (builder.load(pointer(builder, place, kind), align=4) for place in tables)
    features = [element.read(builder, value, lanes, softplus) for value in stored]
    turned = _turned(builder, element, features, cos, sin, out_layout != MAGNITUDES)
    store_features(builder, element, turned, y, index, blocks, out_layout, streaming)


def _turn_one(builder: Any, element: Element, row: Any, index: Any, form: Any, steps: Any) -> None:
    """Turn one block of a row with any strides."""
    x, y, cos, sin, blocks = row
    layout, out_layout, softplus = form
    kind = vector(element.wide, 1)
    stored = load_one(builder, element, x, index, steps[0], blocks, layout)
    tables = (offset(builder, table, index, element.wide_size) for table in (cos, sin))
    cos, sin = (builder.load(pointer(builder, place, kind)) for place in tables)
    features = [element.read(builder, value, 1, softplus) for value in stored]
    turned = _turned(builder, element, features, cos, sin, out_layout != MAGNITUDES)
    for value, place in zip(turned, places_of(builder, y, index, steps[1], blocks, out_layout), strict=True):
        store(builder, element, value, place, False)


@intrinsic
def turn_row(typing, x, y, x_step, y_step, cos, sin, blocks, code_path, like):  # type: ignore[no-untyped-def]
    """Turn the blocks of one row: x and y are addresses of its first feature, the steps are between features.

    `code_path` is three times the number of what is asked (`elements.like_of`), and 1 more for features that are
    contiguous on both sides, or 2 more where they also go past the caches.
    """
    signature = types.void(*(types.int64,) * 8, like)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        element = Element(signature.args[-1])
        x, y, x_step, y_step, cos, sin, blocks, code_path, _ = arguments
        row, zero, one = (x, y, cos, sin, blocks), ir.Constant(I64, 0), ir.Constant(I64, 1)
        done = cgutils.alloca_once_value(builder, zero)
        end = builder.append_basic_block("end")
        chosen = builder.switch(code_path, end)

        def loop(lanes: int, form: Any, streaming: bool) -> None:
            start, stop = builder.load(done), builder.and_(blocks, ir.Constant(I64, -lanes))
            with cgutils.for_range_slice(builder, start, stop, ir.Constant(I64, lanes), I64) as (index, _):
                _turn_lanes(builder, element, row, index, lanes, form, streaming)
            builder.store(stop, done)

        for number, form in enumerate(element.forms):
            few, rest = (builder.append_basic_block(name) for name in ("few", "rest"))
            for streaming in (False, True):
                dense = builder.append_basic_block("dense")
                chosen.add_case(ir.Constant(I64, 3 * number + 1 + streaming), dense)
                builder.position_at_end(dense)
                loop(element.lanes, form, streaming)
                builder.branch(few)
            builder.position_at_end(few)
            loop(4, form, False)
            builder.branch(rest)
            chosen.add_case(ir.Constant(I64, 3 * number), rest)
            builder.position_at_end(rest)
            with cgutils.for_range_slice(builder, builder.load(done), blocks, one, I64) as (index, _):
                _turn_one(builder, element, row, index, form, (x_step, y_step))
            builder.branch(end)
        builder.position_at_end(end)
        return context.get_dummy_value()

    return signature, generate


def _add_lanes(builder: Any, element: Element, row: Any, index: Any, lanes: int, sides: Any, softplus: bool) -> None:
    """Add the products of some blocks of x and y, given as they are stored, to sums in float64."""
    dots, crosses = row
    double, sums = ir.DoubleType(), Element(types.float64)
    kind = vector(double, lanes)

    def widened(value: Any, softplus: bool) -> Any:
        value = element.read(builder, value, lanes, softplus)
        return value if element.wide == double else builder.fpext(value, kind)

    x, y = ([widened(v, softplus and i == 0) for v in side] for i, side in enumerate(sides))
    products: list[list[Any]] = [[(x[0], y[0])], []]
    if len(x) == len(y):
        products[0].append((x[1], y[1]))
    if len(y) == 2:
        products[1].append((x[0], y[1]))
    if len(x) == 2:
        products[1].append((builder.fneg(x[1]), y[0]))
    for base, pairs in zip((dots, crosses), products, strict=True):
        place = pointer(builder, offset(builder, base, index, 8), kind)
        total = builder.load(place, align=8)
        for pair in pairs:
            total = fused(builder, sums, lanes, *pair, total)
        builder.store(total, place, align=8)


@intrinsic
def add_products(typing, x, y, x_step, y_step, dots, crosses, blocks, code_path, like):  # type: ignore[no-untyped-def]
    """Add ``x . y`` and ``x_1 y_2 - x_2 y_1`` of each block of one row to sums in float64, at two addresses.

    The code_path is twice the number of what is asked, and 1 more for features that lie side by side on both sides.
    """
    signature = types.void(*(types.int64,) * 8, like)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        element = Element(signature.args[-1])
        x, y, x_step, y_step, dots, crosses, blocks, code_path, _ = arguments
        zero, one, lanes, sums = ir.Constant(I64, 0), ir.Constant(I64, 1), 8, (dots, crosses)
        done = cgutils.alloca_once_value(builder, zero)
        end = builder.append_basic_block("end")
        chosen = builder.switch(code_path, end)
        for number, (*layouts, softplus) in enumerate(element.forms):
            dense, rest = (builder.append_basic_block(name) for name in ("dense", "rest"))
            chosen.add_case(ir.Constant(I64, 2 * number + 1), dense)
            builder.position_at_end(dense)
            stop = builder.and_(blocks, ir.Constant(I64, -lanes))
            with cgutils.for_range_slice(builder, zero, stop, ir.Constant(I64, lanes), I64) as (index, _):
                stored = [
                    features_of(builder, element, base, index, lanes, blocks, layout)
                    for base, layout in zip((x, y), layouts, strict=True)
                ]
                _add_lanes(builder, element, sums, index, lanes, stored, softplus)
            builder.store(stop, done)
            builder.branch(rest)
            chosen.add_case(ir.Constant(I64, 2 * number), rest)
            builder.position_at_end(rest)
            with cgutils.for_range_slice(builder, builder.load(done), blocks, one, I64) as (index, _):
                stored = [
                    load_one(builder, element, base, index, step, blocks, layout)
                    for base, step, layout in zip((x, y), (x_step, y_step), layouts, strict=True)
                ]
                _add_lanes(builder, element, sums, index, 1, stored, softplus)
            builder.branch(end)
        builder.position_at_end(end)
        return context.get_dummy_value()

    return signature, generate


def _turn_back_lanes(
    builder: Any, element: Element, row: Any, index: Any, lanes: int, sides: Any, is_soft: bool, are_added: bool
) -> Any:
    """Gradient of some magnitudes, given as they are stored; those of their phases may be added to sums."""
    cos, sin, sums = row
    (stored,), sides = sides
    doubles, kind = vector(ir.DoubleType(), lanes), vector(element.wide, lanes)
    tables = [pointer(builder, offset(builder, table, index, 8), doubles) for table in (cos, sin)]
    first, second = (element.read(builder, value, lanes, False) for value in sides)
    value = element.read_both(builder, stored, lanes) if is_soft else [element.read(builder, stored, lanes, False)]
    cos, sin = (builder.load(place, align=8) for place in tables)
    if are_added:
        m, *both = (v if v.type == doubles else builder.fpext(v, doubles) for v in (value[0], first, second))
        wide, place = Element(types.float64), pointer(builder, offset(builder, sums, index, 8), doubles)
        across = fused(builder, wide, lanes, both[1], cos, builder.fneg(builder.fmul(both[0], sin)))
        builder.store(fused(builder, wide, lanes, m, across, builder.load(place, align=8)), place, align=8)
    cos, sin = (v if kind == doubles else builder.fptrunc(v, kind) for v in (cos, sin))
    back = fused(builder, element, lanes, first, cos, builder.fmul(second, sin))
    return element.narrow(builder, builder.fmul(back, value[1]) if is_soft else back, lanes)


@intrinsic
def turn_back_row(typing, x, y, target, x_step, y_step, cos, sin, sums, blocks, code_path, like):  # type: ignore[no-untyped-def]
    """Write the gradient of magnitudes x, from that of their blocks y, and add those of the phases to sums.

    `code_path` is four times the number of what is asked, 2 more where sums are wanted, and 1 more for contiguous
    features; the target has the steps of x. All tables and sums are float64. Other layouts do nothing.
    """
    signature = types.void(*(types.int64,) * 10, like)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        element = Element(signature.args[-1])
        x, y, target, x_step, y_step, *row, blocks, code_path, _ = arguments
        zero, one, lanes = ir.Constant(I64, 0), ir.Constant(I64, 1), element.lanes
        done = cgutils.alloca_once_value(builder, zero)
        end = builder.append_basic_block("end")
        chosen = builder.switch(code_path, end)
        asked = [(i, form, added) for i, form in enumerate(element.forms) for added in (0, 1) if form[0] == MAGNITUDES]
        for number, (layout, y_layout, softplus), added in asked:
            dense, rest = (builder.append_basic_block(name) for name in ("dense", "rest"))
            chosen.add_case(ir.Constant(I64, 4 * number + 2 * added + 1), dense)
            builder.position_at_end(dense)
            stop = builder.and_(blocks, ir.Constant(I64, -lanes))
            with cgutils.for_range_slice(builder, zero, stop, ir.Constant(I64, lanes), I64) as (index, _):
                sides = [
                    features_of(builder, element, base, index, lanes, blocks, side)
                    for base, side in ((x, layout), (y, y_layout))
                ]
                found = _turn_back_lanes(builder, element, row, index, lanes, sides, softplus, bool(added))
                store_features(builder, element, [found], target, index, blocks, layout, False)
            builder.store(stop, done)
            builder.branch(rest)
            chosen.add_case(ir.Constant(I64, 4 * number + 2 * added), rest)
            builder.position_at_end(rest)
            with cgutils.for_range_slice(builder, builder.load(done), blocks, one, I64) as (index, _):
                sides = [
                    load_one(builder, element, base, index, step, blocks, side)
                    for base, step, side in ((x, x_step, layout), (y, y_step, y_layout))
                ]
                found = _turn_back_lanes(builder, element, row, index, 1, sides, softplus, bool(added))
                (place,) = places_of(builder, target, index, x_step, blocks, layout)
                store(builder, element, found, place, False)
            builder.branch(end)
        builder.position_at_end(end)
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def any_negative(typing, x, step, count, like):  # type: ignore[no-untyped-def]
    """Return 1 if any of some elements, with a step in bytes between them, is below zero, else 0."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        element = Element(signature.args[-1])
        x, step, count, _ = arguments
        zero, size = (ir.Constant(I64, value) for value in (0, element.size))
        number = element.stored if element.size > 2 else element.wide
        found = cgutils.alloca_once_value(builder, zero)

        def look(index: Any, lanes: int, some: Any) -> None:
            place = builder.add(x, builder.mul(index, step))
            value = builder.load(pointer(builder, place, vector(element.stored, lanes)), align=1)
            value = value if element.size > 2 else element.widen(builder, value, lanes)
            below = builder.fcmp_ordered("<", value, splat(number, 0.0, lanes))
            builder.store(builder.or_(builder.load(some), below), some)

        def collect(some: Any, lanes: int) -> None:
            bits = builder.zext(builder.bitcast(builder.load(some), ir.IntType(lanes)), I64)
            builder.store(builder.or_(builder.load(found), bits), found)

        is_dense = builder.icmp_signed("==", step, size)
        stop = builder.select(is_dense, builder.and_(count, ir.Constant(I64, -element.lanes)), zero)
        for lanes, first, last in ((element.lanes, zero, stop), (1, stop, count)):
            some = cgutils.alloca_once_value(builder, splat(ir.IntType(1), 0, lanes))
            with cgutils.for_range_slice(builder, first, last, ir.Constant(I64, lanes), I64) as (index, _):
                look(index, lanes, some)
            collect(some, lanes)
        return builder.zext(builder.icmp_unsigned("!=", builder.load(found), zero), I64)

    return types.int64(types.int64, types.int64, types.int64, like), generate


@intrinsic
def copy(typing, target, source, target_step, source_step, count, like):  # type: ignore[no-untyped-def]
    """Copy elements between addresses with steps in bytes."""
    signature = types.void(*(types.int64,) * 5, like)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        element = Element(signature.args[-1])
        target, source, target_step, source_step, count, _ = arguments
        with cgutils.for_range(builder, count, intp=I64) as loop:
            places = (
                builder.add(base, builder.mul(loop.index, step))
                for base, step in ((source, source_step), (target, target_step))
            )
            source_place, target_place = (pointer(builder, place, element.stored) for place in places)
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
    """Call a loop of `phase_loops` that fills a tile, by its address."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _call(builder, context, signature, arguments)

    return types.int64(types.int64, *fill_types(cos.dtype == types.float32)), generate


def fill_types(is_narrow: bool) -> tuple[Any, ...]:
    """Return the types that such a loop takes, for tables of float32 or float64."""
    pointer = types.CPointer(types.float32 if is_narrow else types.float64)
    return (*(types.int64,) * 9, pointer, pointer, types.boolean)


@intrinsic
def carry(typing, target, source):  # type: ignore[no-untyped-def]
    """Copy 64 bytes."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = vector(I32, 16)
        value = builder.load(pointer(builder, arguments[1], kind), align=1)
        builder.store(value, pointer(builder, arguments[0], kind), align=1)
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
        kind = vector(I32, piece // 4)
        mark = builder.module.add_metadata([ir.Constant(I32, 1)])
        with cgutils.for_range(builder, count, intp=I64) as loop:
            done = builder.mul(loop.index, ir.Constant(I64, piece))
            value = builder.load(pointer(builder, builder.add(source, done), kind), align=piece)
            stored = builder.store(value, pointer(builder, builder.add(target, done), kind), align=piece)
            stored.set_metadata("nontemporal", mark)
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def wide(typing, address, like):  # type: ignore[no-untyped-def]
    """Address as a pointer to numbers of the type that elements like `like` are computed in."""
    wide = types.float64 if Element(like).wide_size == 8 else types.float32
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
        element = Element(signature.args[0])
        pair = [ir.Constant(I64, element.size), ir.Constant(I64, element.wide_size)]
        return context.make_tuple(builder, signature.return_type, pair)

    return signature, generate


@intrinsic
def number(typing, address, narrow):  # type: ignore[no-untyped-def]
    """Read a float64, or a float32 if `narrow`, from an address."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        value = cgutils.alloca_once(builder, ir.DoubleType())
        with builder.if_else(arguments[1]) as (single, double):
            with single:
                place = pointer(builder, arguments[0], ir.FloatType())
                builder.store(builder.fpext(builder.load(place, align=4), ir.DoubleType()), value)
            with double:
                builder.store(builder.load(pointer(builder, arguments[0], ir.DoubleType()), align=8), value)
        return builder.load(value)

    return types.float64(types.int64, types.boolean), generate


@intrinsic
def prefetch(typing, address):  # type: ignore[no-untyped-def]
    """Ask for the cache line of an address, which need not be valid."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [I8.as_pointer(), I32, I32, I32])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        read, locality, data = (ir.Constant(I32, value) for value in (0, 2, 1))
        builder.call(function, [pointer(builder, arguments[0], I8), read, locality, data])
        return context.get_dummy_value()

    return types.void(types.int64), generate


@intrinsic
def fence(typing):  # type: ignore[no-untyped-def]
    """Make stores that went past the caches visible to other threads."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), generate
