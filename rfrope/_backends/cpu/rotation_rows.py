"""Rows of features in memory: instructions that Numba has no name for, in LLVM's words.

What they are made for is in the type of the argument `like`; see `elements`.
"""

from __future__ import annotations

import inspect
import platform
from collections.abc import Callable
from functools import partial, wraps
from typing import Any

from llvmlite import binding, ir
from numba import config, types
from numba.core import cgutils
from numba.extending import intrinsic

from rfrope._backends.cpu.elements import I8, I32, I64, Element, fused, offset, pointer, vector
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


def _emitted(emit: Callable[..., None]) -> Any:
    """Make an intrinsic without a result of what emits code, given a builder and integers.

    Where it takes an `Element`, the last argument in a loop is a value like one.
    """
    names = inspect.signature(emit).parameters
    count = len(names) - 1 - ("element" in names)

    @wraps(emit)
    def declare(typing: Any, *arguments: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            emit(builder, *values[:count], *[Element(like, builder) for like in signature.args[count:]])
            return context.get_dummy_value()

        return types.void(*(types.int64,) * count, *arguments[count:]), generate

    return intrinsic(declare)


def _run_case(builder: Any, code_path: Any, blocks: Any, cases: Any) -> None:
    """Run one of some cases over the blocks of a row: many side by side where that is asked, then one by one.

    A case has its code path and what is done with one block, ``one(index=, lanes=1)``; then, by their code paths, how
    many blocks are worked on together, ``[(lanes, many)]``, before the rest is.
    """
    done = cgutils.alloca_once_value(builder, ir.Constant(I64, 0))
    end = builder.append_basic_block("end")
    chosen = builder.switch(code_path, end)

    def loop(lanes: int, stop: Any, work: Any) -> None:
        with cgutils.for_range_slice(builder, builder.load(done), stop, ir.Constant(I64, lanes), I64) as (index, _):
            work(index=index, lanes=lanes)

    for number, one, several in cases:
        rest = builder.append_basic_block("rest")
        for path, loops in several.items():
            dense = builder.append_basic_block("dense")
            chosen.add_case(ir.Constant(I64, path), dense)
            builder.position_at_end(dense)
            for lanes, many in loops:
                stop = builder.and_(blocks, ir.Constant(I64, -lanes))
                loop(lanes, stop, many)
                builder.store(stop, done)
            builder.branch(rest)
        chosen.add_case(ir.Constant(I64, number), rest)
        builder.position_at_end(rest)
        loop(1, blocks, one)
        builder.branch(end)
    builder.position_at_end(end)


def _pointer_to(builder: Any, address: Any, index: Any, kind: Any) -> Any:
    """Pointer to the numbers of a table from an index on, as a vector of some kind."""
    return pointer(builder, offset(builder, address, index, 8 if kind.element == ir.DoubleType() else 4), kind)


def _load(builder: Any, tables: Any, index: Any, kind: Any) -> list[Any]:
    size = 8 if kind.element == ir.DoubleType() else 4
    return [builder.load(_pointer_to(builder, table, index, kind), align=size) for table in tables]


@_emitted
def turn_row(builder, x, y, x_step, y_step, cos, sin, blocks, code_path, element):  # type: ignore[no-untyped-def]
    """Turn the blocks of one row: x and y are addresses of its first feature, the steps are between features.

    `code_path` is three times the number of what is asked (`elements.like_of`), and 1 more for features that are
    contiguous on both sides, or 2 more where they also go past the caches. Of some blocks all is loaded before anything
    is stored.
    """

    def turn(form: Any, index: Any, lanes: int, streaming: bool = False, steps: Any = (None, None)) -> None:
        layout, out_layout, softplus = form
        stored = element.load(x, index, lanes, blocks, layout, steps[0])
        c, s = _load(builder, (cos, sin), index, vector(element.wide, lanes))
        first, *second = [element.read(value, softplus) for value in stored]
        if not second:  # magnitudes
            turned = [builder.fmul(first, table) for table in (c, s)]
        else:
            turned = [fused(builder, first, c, builder.fneg(builder.fmul(second[0], s)))]
            if out_layout != MAGNITUDES:
                turned.append(fused(builder, first, s, builder.fmul(second[0], c)))
        turned = [element.narrow(value) for value in turned]
        element.store(turned, y, index, blocks, out_layout, steps[1], streaming)

    cases = []
    for i, form in enumerate(element.forms):
        through = [(lanes, partial(turn, form)) for lanes in (element.lanes, 4)]
        past = [(lanes, partial(turn, form, streaming=True)) for lanes in (element.lanes, 16 // element.size)]
        one = partial(turn, form, steps=(x_step, y_step))
        cases.append((3 * i, one, {3 * i + 1: through, 3 * i + 2: past}))
    _run_case(builder, code_path, blocks, cases)


@_emitted
def add_products(builder, x, y, x_step, y_step, dots, crosses, blocks, code_path, element):  # type: ignore[no-untyped-def]
    """Add ``x . y`` and ``x_1 y_2 - x_2 y_1`` of each block of one row to sums in float64, at two addresses.

    The code_path is twice the number of what is asked, and 1 more for features that lie side by side on both sides.
    """

    def add(layouts: Any, softplus: bool, index: Any, lanes: int, steps: Any = (None, None)) -> None:
        kind, sides = vector(ir.DoubleType(), lanes), []
        for i, base in enumerate((x, y)):
            side = element.load(base, index, lanes, blocks, layouts[i], steps[i])
            sides.append([_double(builder, element.read(value, softplus and i == 0)) for value in side])
        first, second = sides
        products: list[list[Any]] = [[(first[0], second[0])], []]
        if len(first) == len(second):
            products[0].append((first[1], second[1]))
        if len(second) == 2:
            products[1].append((first[0], second[1]))
        if len(first) == 2:
            products[1].append((builder.fneg(first[1]), second[0]))
        for base, pairs in zip((dots, crosses), products, strict=True):
            place = _pointer_to(builder, base, index, kind)
            total = builder.load(place, align=8)
            for pair in pairs:
                total = fused(builder, *pair, total)
            builder.store(total, place, align=8)

    cases = []
    for i, (*layouts, softplus) in enumerate(element.forms):
        one = partial(add, layouts, softplus, steps=(x_step, y_step))
        cases.append((2 * i, one, {2 * i + 1: [(8, partial(add, layouts, softplus))]}))
    _run_case(builder, code_path, blocks, cases)


def _double(builder: Any, value: Any) -> Any:
    kind = vector(ir.DoubleType(), value.type.count)
    return value if value.type == kind else builder.fpext(value, kind)


@_emitted
def turn_back_row(builder, x, y, target, x_step, y_step, cos, sin, sums, blocks, code_path, element):  # type: ignore[no-untyped-def]
    """Write the gradient of magnitudes x, from that of their blocks y, and add those of the phases to sums.

    `code_path` is four times the number of what is asked, 2 more where sums are wanted, and 1 more for contiguous
    features; the target has the steps of x. All tables and sums are float64. Other layouts do nothing.
    """

    def turn_back(form: Any, are_added: int, index: Any, lanes: int, steps: Any = (None, None)) -> None:
        layout, y_layout, softplus = form
        doubles, kind = vector(ir.DoubleType(), lanes), vector(element.wide, lanes)
        (stored,) = element.load(x, index, lanes, blocks, layout, steps[0])
        sides = element.load(y, index, lanes, blocks, y_layout, steps[1])
        first, second = (element.read(value) for value in sides)
        value, *slope = element.read_both(stored) if softplus else [element.read(stored)]
        tables = _load(builder, (cos, sin), index, doubles)
        if are_added:
            m, *both = (_double(builder, v) for v in (value, first, second))
            place = _pointer_to(builder, sums, index, doubles)
            across = fused(builder, both[1], tables[0], builder.fneg(builder.fmul(both[0], tables[1])))
            builder.store(fused(builder, m, across, builder.load(place, align=8)), place, align=8)
        c, s = (v if kind == doubles else builder.fptrunc(v, kind) for v in tables)
        back = fused(builder, first, c, builder.fmul(second, s))
        for factor in slope:
            back = builder.fmul(back, factor)
        element.store([element.narrow(back)], target, index, blocks, layout, steps[0])

    cases = []
    for i, form in enumerate(element.forms):
        for added in (0, 1) if form[0] == MAGNITUDES else ():
            one = partial(turn_back, form, added, steps=(x_step, y_step))
            path = 4 * i + 2 * added
            cases.append((path, one, {path + 1: [(element.lanes, partial(turn_back, form, added))]}))
    _run_case(builder, code_path, blocks, cases)


@_emitted
def copy(builder, target, source, target_step, source_step, count, element):  # type: ignore[no-untyped-def]
    """Copy elements between addresses with steps in bytes."""
    with cgutils.for_range(builder, count, intp=I64) as loop:
        places = (
            builder.add(base, builder.mul(loop.index, step))
            for base, step in ((source, source_step), (target, target_step))
        )
        source_place, target_place = (pointer(builder, place, element.stored) for place in places)
        builder.store(builder.load(source_place, align=1), target_place, align=1)


@intrinsic
def call(typing, function, arguments):  # type: ignore[no-untyped-def]
    """Call a loop by its address: were it called by its name, its code would be compiled into the caller."""
    kinds = [types.unliteral(kind) for kind in arguments.types]

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        convention = context.call_conv
        kind = convention.get_function_type(signature.return_type, kinds)
        place, passed = builder.inttoptr(values[0], kind.as_pointer()), cgutils.unpack_tuple(builder, values[1])
        return convention.call_function(builder, place, signature.return_type, kinds, passed)[1]

    return types.int64(types.int64, types.Tuple(kinds)), generate


def turn_types(like: Any) -> tuple[Any, ...]:
    """Return the types that `rotation_loops.turn` takes, for elements of a type."""
    return (*(types.int64,) * 7, types.float64, like, types.int64, types.int64)


def fill_types(is_narrow: bool) -> tuple[Any, ...]:
    """Return the types that a loop of `phase_loops` takes which fills a tile, for tables of float32 or float64."""
    pointer = types.CPointer(types.float32 if is_narrow else types.float64)
    return (*(types.int64,) * 9, pointer, pointer, types.boolean)


@_emitted
def stream(builder, target, source, count):  # type: ignore[no-untyped-def]
    """Store so many pieces of 16 bytes past the caches; the target is a multiple of that."""
    kind = vector(I32, 4)
    with cgutils.for_range(builder, count, intp=I64) as loop:
        places = (offset(builder, base, loop.index, 16) for base in (source, target))
        source, target = (pointer(builder, place, kind) for place in places)
        stored = builder.store(builder.load(source, align=1), target, align=16)
        stored.set_metadata("nontemporal", builder.module.add_metadata([ir.Constant(I32, 1)]))


@intrinsic
def memory(typing, address, like):  # type: ignore[no-untyped-def]
    """Address as a pointer to integers, or to numbers of the type that elements like a value are computed in."""
    kind = types.int64 if like == types.none else types.float64 if Element(like).wide_size == 8 else types.float32
    signature = types.CPointer(kind)(types.int64, like)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    return signature, generate


@intrinsic
def sizes(typing, like):  # type: ignore[no-untyped-def]
    """Bytes of an element and of the number that it is computed in."""
    signature = types.UniTuple(types.int64, 2)(like)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        element = Element(signature.args[0])
        pair = [ir.Constant(I64, element.size), ir.Constant(I64, element.wide_size)]
        return context.make_tuple(builder, signature.return_type, pair)

    return signature, generate


@_emitted
def prefetch(builder, address):  # type: ignore[no-untyped-def]
    """Ask for the cache line of an address, which need not be valid."""
    kind = ir.FunctionType(ir.VoidType(), [I8.as_pointer(), I32, I32, I32])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    read, locality, data = (ir.Constant(I32, value) for value in (0, 2, 1))
    builder.call(function, [pointer(builder, address, I8), read, locality, data])


@_emitted
def fence(builder):  # type: ignore[no-untyped-def]
    """Make stores that went past the caches visible to other threads."""
    builder.fence("seq_cst")
