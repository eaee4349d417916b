"""The rotation of torch tensors on a device: one launch of one kernel for queries and keys, forwards and backwards.

Queries and keys are seen as ``(batch, heads, tokens, d)``, whatever their order in memory; an axis whose rows share
their phases stands for the heads. What the kernel does not take (features in float64, more axes, phases that enlarge
features) goes to the next backend, or to the generic function.

The operators are ``rfrope::turn_both``, whose gradient is the same launch backwards, and ``rfrope::turn_both_back``,
which sums what gradients of angles and scales need on its way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from inspect import Parameter, Signature
from types import ModuleType
from typing import Any, TypeAlias, get_type_hints

import torch
from torch.library import triton_op, wrap_triton

from rfrope._backends.triton import kernels
from rfrope._backends.triton.launches import Given, Options, Repeat, launch, padded, room
from rfrope._core import array, dispatch
from rfrope._core.angles import Angles
from rfrope._core.arguments import broadcast
from rfrope._core.array import Array
from rfrope._core.blocks import TurnOptions, width_of
from rfrope._core.dispatch import DISPATCHED, TORCH_ROTATION, TRITON
from rfrope._core.overlap import Overlap, overlap_of

Tensor: TypeAlias = Any  # torch.Tensor, which the type checker does not see

_OPERATORS = dispatch.load(TORCH_ROTATION)
_NARROW = (torch.float32, torch.float16, torch.bfloat16)

# -- functions ---------------------------------------------------------------------------------------------------------


def rotated(x: Array, angles: Angles, turn: TurnOptions, out: Array | None) -> Array:
    """Version of the generic function: phases are formed, and become cos and sin, inside the kernel."""
    found = _turned(x, angles, turn, out)
    return _otherwise("rotated", x, angles, turn, out) if found is None else found


def rotated_by_phases(x: Array, phases: Array, turn: TurnOptions, out: Array | None, xp: ModuleType) -> Array:
    """Version of the generic function."""
    found = _turned(x, phases, turn, out)
    return _otherwise("rotated_by_phases", x, phases, turn, out, xp) if found is None else found


def rotated_both(
    q: Array,
    k: Array,
    positions: Array | None,
    frequencies: Array,
    shift: Array | None,
    counted: int | None,
    turn: TurnOptions,
    last: list[Repeat],
) -> tuple[Array, Array] | None:
    """Version of the generic function: one launch; None where the kernel cannot."""
    if q.ndim not in (3, 4) or q.dtype not in _NARROW or q.shape[-1] != k.shape[-1]:
        return None
    scale = None if isinstance(turn.scale, float) else turn.scale
    given = Given(*(None if one is None else padded(one, 4) for one in (positions, frequencies, shift, scale)))
    if not given.fit() or _lacks_gradients(given, q, k):
        return None
    first, second = _run(padded(q, 4), padded(k, 4), given, Options.read(turn, counted), last)
    return (first, second) if q.ndim == 4 else (first[0], second[0])


def _otherwise(name: str, *arguments: Any) -> Any:
    """Call what runs where the kernel cannot."""
    return dispatch.next_function(DISPATCHED[*TRITON, name], "triton", *arguments)(*arguments)


def _turned(x: Tensor, angles: Angles | Tensor, turn: TurnOptions, out: Tensor | None) -> Tensor | None:
    """Features turned, or None where the kernel cannot."""
    shape = tuple(angles.shape)
    if isinstance(turn.scale, torch.Tensor):
        shape = broadcast(shape, tuple(turn.scale.shape))
    leading = tuple(x.shape[:-1])
    if len(leading) > 3 or x.dtype not in _NARROW or broadcast(leading, shape[:-1]) != leading:
        return None
    ordered = Given.read(angles, turn.scale).ordered(padded(x, 4).shape)
    if ordered is None or not ordered[0].fit() or _lacks_gradients(ordered[0], x):
        return None
    (given, order), options = ordered, Options.read(turn, None)
    seen = padded(x, 4).permute(*order, 3)
    if out is not None:
        _write(seen, padded(out, 4).permute(*order, 3), given, options)
        return out
    back = [order.index(axis) for axis in range(3)]
    return _run(seen, None, given, options)[0].permute(*back, 3)[(0,) * (3 - len(leading))]


def _lacks_gradients(given: Given, *features: Tensor) -> bool:
    """Return whether bits stand for frequencies, of which operators could not record gradients of gradients."""
    tensors = (*features, *(one for one in given if one is not None))
    bits = given.frequencies is not None and given.frequencies.dtype == torch.uint64
    return bits and torch.is_grad_enabled() and any([one.requires_grad for one in tensors])


def _run(
    q: Tensor, k: Tensor | None, given: Given, options: Options, last: list[Repeat] | None = None
) -> tuple[Tensor, Tensor]:
    """Turn memory at once, and what is recorded by the operator."""
    if _are_plain_dense(q, k, *given):
        return _turn(kernels.turn, q, k, given, options, last)
    return turn_both(q, k, *given, *options)


def _are_plain_dense(*tensors: Tensor | None) -> bool:
    """Return whether nothing is recorded of tensors that `dispatch.place_of` has found a place for."""
    if torch.compiler.is_compiling():
        return False
    learns, plain = torch.is_grad_enabled(), (torch.Tensor, torch.nn.Parameter)
    return all(
        [
            one is None or (type(one) in plain and not (learns and one.requires_grad) and not one.is_neg())
            for one in tensors
        ]
    )


def _turn(
    kernel: Any, q: Tensor, k: Tensor | None, given: Given, options: Options, last: list[Repeat] | None = None
) -> tuple[Tensor, Tensor]:
    """Results in new memory; the second is empty where there are no keys."""
    added = (width_of(options.out_layout) - width_of(options.layout)) * given.blocks
    q_out, k_out = room(q, q.shape[-1] + added), q.new_empty(0) if k is None else room(k, k.shape[-1] + added)
    launch(kernel, (q, q_out, None), None if k is None else (k, k_out, None), given, options, last=last)
    return q_out, k_out


def _write(x: Tensor, out: Tensor, given: Given, options: Options) -> None:
    """Turn features into memory that there is already."""
    given = Given(*(one if one is None or overlap_of(one, out) is Overlap.NONE else one.clone() for one in given))
    if overlap_of(x, out) is not Overlap.NONE:
        x = out if options.layout == options.out_layout else x.clone()  # features that change places are read first
    launch(kernels.turn, (x, out, None), None, given, options)
    array.library(out).mark_modified(out)


# -- operators ---------------------------------------------------------------------------------------------------------


_SIDES: dict[str, Any] = {"q": torch.Tensor, "k": torch.Tensor | None}


def _operator(features: dict[str, Any], result: Any, **more: Any) -> Callable[..., Any]:
    """Register a function of features, the fields of `Given` and `Options`, and more arguments, by their types."""

    def register(function: Callable[..., Any]) -> Any:
        types = {**features, **dict.fromkeys(Given._fields, torch.Tensor | None), **get_type_hints(Options), **more}
        parameters = [Parameter(name, Parameter.POSITIONAL_OR_KEYWORD, annotation=kind) for name, kind in types.items()]
        function.__signature__ = Signature(parameters, return_annotation=result)  # type: ignore[attr-defined]
        return triton_op(f"rfrope::{function.__name__}", function, mutates_args=())

    return register


def _parse(arguments: Sequence[Any]) -> tuple[Given, Options]:
    count = len(Given._fields)
    return Given(*arguments[:count]), Options(*arguments[count:])


@_operator(_SIDES, tuple[torch.Tensor, torch.Tensor])
def turn_both(q: Tensor, k: Tensor | None, *arguments: Any) -> tuple[Tensor, Tensor]:
    """Features turned; the second result is empty without keys."""
    return _turn(wrap_triton(kernels.turn), q, k, *_parse(arguments))


@_operator(
    {"gradient": torch.Tensor, "k_gradient": torch.Tensor | None, **_SIDES}, list[torch.Tensor], wanted=list[bool]
)
def turn_both_back(
    gradient: Tensor, k_gradient: Tensor | None, q: Tensor, k: Tensor | None, *given: Any
) -> list[Tensor]:
    """Gradients of features, from those of what they were turned into; and sums for those of angles and scales."""
    *arguments, wanted = given
    k_side, found = None, [room(q, q.shape[-1])]
    if k is not None:
        found.append(room(k, k.shape[-1]))
        k_side = (k_gradient, found[1], k)
    kernel = wrap_triton(kernels.turn)
    sums = launch(kernel, (gradient, found[0], q), k_side, *_parse(arguments), tuple(wanted))
    return found if sums is None else [*found, sums]


# -- gradients ---------------------------------------------------------------------------------------------------------


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    """Features are not needed unless angles or scales have gradients, or they pass a softplus."""
    q, k, *given = inputs[:6]
    ctx.options = Options(*inputs[6:])
    ctx.has_keys = k is not None
    kept = any(ctx.needs_input_grad[3:6]) or ctx.options.softplus
    ctx.save_for_backward(q if kept else None, k if kept else None, *given)


def _gradient(ctx: Any, of_q: Tensor, of_k: Tensor) -> tuple[Any, ...]:
    q, k, *operands = ctx.saved_tensors
    given, options = Given(*operands), ctx.options
    of_k = of_k if ctx.has_keys else None
    numbers: tuple[Any, ...] = (None,) * len(options)
    if q is None:
        found = turn_both(of_q, of_k, *given, *options.undone())
        return found[0], found[1] if ctx.has_keys else None, None, None, None, None, *numbers
    if torch.is_grad_enabled():
        return (*_recorded_gradient(ctx.needs_input_grad, (of_q, of_k), (q, k), given, options), *numbers)
    needs = ctx.needs_input_grad[3:6]
    of_q, *others = turn_both_back(of_q, of_k, q, k, *given, *options.undone(), needs)
    of_k = others.pop(0) if ctx.has_keys else None
    return (of_q, of_k, None, *_gradients_of_angles(needs, others[0] if others else None, given), *numbers)


def _gradients_of_angles(needs: tuple[bool, ...], sums: Tensor | None, given: Given) -> list[Tensor | None]:
    """Gradients of frequencies, shift and scale from the sums that programs left."""
    found: list[Tensor | None] = [None, None, None]
    for place, operand in enumerate(given[1:]):
        if not needs[place] or operand is None:
            continue
        if sums is None:  # of no features
            found[place] = torch.zeros_like(operand)
            continue
        slot = -1 if place == 2 or not needs[2] else -2  # of a shift or scale: they are behind the frequencies
        heads, blocks = operand.shape[1], sums.shape[-1]
        if place == 0:
            total = sums[..., : given.axes, :].sum((1, 2)).mT[None]
        elif heads == 1:
            total = sums[..., slot, :].sum((0, 1, 2)).expand(1, 1, 1, blocks)
        else:  # a part for each head, after those of queries
            total = sums[:, -(heads // sums.shape[0]) :, :, slot, :].sum(2).reshape(1, heads, 1, blocks)
        total = total / operand if place == 2 else total
        found[place] = total.sum_to_size(operand.shape).to(operand.dtype)
    return found


def _recorded_gradient(
    needs: Any,
    gradients: tuple[Tensor, Tensor | None],
    features: tuple[Tensor, Tensor | None],
    given: Given,
    options: Options,
) -> tuple[Tensor | None, ...]:
    """Gradients that have gradients: of the same turn, by operators that have."""
    inputs = [one for one, needed in zip((*features, *given), needs, strict=False) if needed]
    turned = [
        _turned_by_operators(x, given if are_keys or features[1] is None else given._replace(shift=None), options)
        for x, are_keys in zip(features, (False, True), strict=True)
        if x is not None
    ]
    along = [one for one, x in zip(gradients, features, strict=True) if x is not None]
    found = iter(torch.autograd.grad(turned, inputs, along, create_graph=True, allow_unused=True))
    return tuple(next(found) if needed else None for needed in needs[:6])


def _turned_by_operators(x: Tensor, given: Given, options: Options) -> Tensor:
    """Features turned by the operators of torch's backend, whose gradients have gradients."""
    positions, omega, shift, scale = given
    turn = TurnOptions(
        options.layout, options.out_layout, options.factor if scale is None else scale, options.back, options.softplus
    )
    if scale is None and options.divided:
        turn = turn._replace(scale=1.0 / options.factor)
    xp = array.named_namespace(torch)
    if omega is None:
        return _OPERATORS.rotated_by_phases(x, shift, turn, None, xp)
    if options.counted or positions is None:
        count = torch.arange(x.shape[2], device=x.device)[:, None] + options.offset
        positions = count if positions is None else positions + count
    elif not positions.is_floating_point():
        positions = positions + options.offset
    omega = omega.repeat_interleave(x.shape[1] // omega.shape[1], 1)
    if omega.dtype == torch.int64:
        words = omega.unflatten(-1, (-1, 2))
        # whole turns are gone, as positions are whole; where there is no float64, words alone are exact
        omega = array.widen(words[..., 0], xp) * (2.0 * math.pi * 2.0**-64)
        omega.turn_words = words
    return _OPERATORS.rotated(x, Angles(positions, omega, shift, xp), turn, None)


turn_both.register_autograd(_gradient, setup_context=_keep)
turn_both.register_vmap(partial(_OPERATORS.map_one_by_one, turn_both))
