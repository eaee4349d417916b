"""The rotation for torch tensors that are recorded: operators with their gradients, each one node of a graph.

An operator runs what its tensors' memory asks for: the compiled loop of the CPU, the kernels of a CUDA device, or the
generic function. The gradient of features is the rotation back. Those of angles and scales, or of magnitudes and their
angles, come from one pass over the features (``turn_gradient``, ``turn_back``), which has no gradient of its own: where
gradients of gradients are asked for, the generic function runs, whose parts have.

The operators are ``rfrope::turn``, ``rfrope::turn_by_table``, ``rfrope::cos_sin``, ``rfrope::turn_gradient`` and
``rfrope::turn_back``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np
import torch

from rfrope._backends.torch.recording import side_by_side
from rfrope._core import array, dispatch, sums
from rfrope._core.angles import Angles
from rfrope._core.arguments import broadcast
from rfrope._core.array import Array
from rfrope._core.blocks import MAGNITUDES, TurnOptions, shared_coefficients, width_of
from rfrope._core.dispatch import CPU, DISPATCHED, TORCH_ROTATION

_XP = array.named_namespace(torch)
Tensor: TypeAlias = Any  # torch.Tensor, which the type checker does not see
_LIBRARY = torch.library.Library("rfrope", "DEF")
_TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.flexible_layout)  # the loops take any strides

_TRACED = (torch._subclasses.FakeTensor, torch._subclasses.functional_tensor.FunctionalTensor)

_is_for_onnx = torch.onnx.is_in_onnx_export
FUNCTIONS: dict[Any, Callable[..., Any]] = {}  # by operator: what it runs
_LINEAR = 40.0  # from here on a softplus is its argument, to every digit of a float64

# -- functions ---------------------------------------------------------------------------------------------------------


def rotated(x: Array, angles: Angles, turn: TurnOptions, out: Array | None) -> Array:
    """Version of the generic function for recorded tensors."""
    return _call(_turn, out, x, angles.positions, angles.frequencies, angles.shift, *_options(turn))


def rotated_by_phases(x: Array, phases: Array, turn: TurnOptions, out: Array | None, xp: ModuleType) -> Array:
    """Version of the generic function for recorded tensors."""
    return _call(_turn, out, x, None, None, phases, *_options(turn))


def rotated_by_table(x: Array, cos: Array, sin: Array, turn: TurnOptions, out: Array | None, xp: ModuleType) -> Array:
    """Version of the generic function for recorded tensors."""
    return _call(_turn_by_table, out, x, cos, sin, turn.pairing, turn.out_pairing)


def cos_sin(angles: Angles) -> tuple[Array, Array]:
    """Version of the generic function for recorded tensors."""
    cos, sin = _call(_cos_sin, None, angles.positions, angles.frequencies, angles.shift, False)
    return cos, sin


def cos_sin_float32(angles: Angles) -> Array:
    """Version of the generic function for recorded tensors."""
    return _call(_cos_sin, None, angles.positions, angles.frequencies, angles.shift, True)


def turn_gradient(
    x: Array, y: Array, angles: Angles | Array, turn: TurnOptions, shape: tuple[int, ...], radial: bool, xp: ModuleType
) -> Array:
    """Version of the generic function for recorded tensors, which has no gradient itself."""
    given = angles[:3] if isinstance(angles, Angles) else (None, None, angles)
    return _turn_gradient(x, y, *given, *_options(turn), shape, radial)


def has_negative(x: Array, xp: ModuleType) -> bool:
    """Version of the generic function for recorded tensors: only their values are looked at."""
    return bool(DISPATCHED[*TORCH_ROTATION, "has_negative"](x.detach().resolve_neg(), xp))


def _options(turn: TurnOptions) -> tuple[Tensor | None, float, str, str, bool, bool]:
    """Options of an operator: the scale as a tensor, or as a number, then the rest."""
    scales = (None, turn.scale) if isinstance(turn.scale, float) else (turn.scale, 1.0)
    return *scales, turn.pairing, turn.out_pairing, turn.inverse, turn.softplus


def _parse(
    positions: Tensor | None, frequencies: Tensor | None, shift: Tensor | None, scale: Tensor | None, *options: Any
) -> tuple[Any, TurnOptions]:
    """Angles, or the phases where there are no positions, and how to turn, of what an operator is given."""
    factor, pairing, out_pairing, *others = options
    angles = shift if positions is None else Angles(positions, frequencies, shift, _XP)
    return angles, TurnOptions(pairing, out_pairing, factor if scale is None else scale, *others)


# -- operators ---------------------------------------------------------------------------------------------------------


def _call(operator: Any, out: Tensor | None, *arguments: Any) -> Any:
    """Call an operator; what it runs, for the exporter to ONNX, which knows torch's operators alone."""
    result = (FUNCTIONS[operator] if _is_for_onnx() else operator)(*arguments)
    return result if out is None else out.copy_(result)


def _run(name: str, x: Tensor, *arguments: Any) -> Any:
    """Run a function for tensors that are no more than memory: gradients are recorded above this.

    What is not even memory is traced, and becomes torch's own operators.
    """
    function = DISPATCHED[*TORCH_ROTATION, name]
    if isinstance(x, _TRACED):
        with _ExactNumbers():
            return function.generic(*arguments)
    compiled = dispatch.backend_function(function, "cpu") if x.is_cpu else None
    if compiled is not None:
        return compiled(*arguments)
    with torch.no_grad():  # numbers on the CPU beside features elsewhere have no backend but this
        return (function.generic if dispatch.place_of(arguments) == "torch" else function)(*arguments)


class _ExactNumbers(torch.overrides.TorchFunctionMode):
    """Numbers of Python become sums of such that float32 holds, since the exporter to ONNX rounds them to it."""

    def __torch_function__(self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        tensors = [one for one in args if isinstance(one, torch.Tensor)]
        if tensors:
            args = tuple(self._held(one, tensors[0]) if type(one) is float else one for one in args)
        return function(*args, **(kwargs or {}))

    @staticmethod
    def _held(number: float, beside: Tensor) -> Any:
        parts = [float(np.float32(number))] if abs(number) < 2.0**120 else []
        while len(parts) in (1, 2) and sum(parts) != number:
            parts.append(float(np.float32(number - sum(parts))))
        if len(parts) < 2:
            return number
        return sum(parts[1:], beside.new_full((), parts[0], dtype=torch.float64))


def _phases(
    positions: Tensor | None, frequencies: Tensor | None, shift: Tensor | None, scale: Tensor | None = None
) -> tuple[int, ...]:
    """Shape of the phases."""
    shapes = [tuple(value.shape) for value in (shift, scale) if value is not None]
    if positions is not None:
        shapes.append(Angles(positions, frequencies, None, torch).shape)
    return broadcast(*shapes)


def _fake_turn(x: Tensor, *given: Any) -> Tensor:
    angles, (_, *pairings, _, _) = given[:4], given[4:]
    return x.new_empty(TurnOptions(*pairings).shape(x.shape, _phases(*angles)))


def _run_turn(x: Tensor, *given: Any) -> Tensor:
    """Features turned by positions and frequencies; without them, the shifts are the phases."""
    angles, turn = _parse(*given)
    if isinstance(angles, Angles):
        return _run("rotated", x, x, angles, turn, None)
    return _run("rotated_by_phases", x, x, angles, turn, None, _XP)


def _run_turn_by_table(x: Tensor, cos: Tensor, sin: Tensor, pairing: str, out_pairing: str) -> Tensor:
    return _run("rotated_by_table", x, x, cos, sin, TurnOptions(pairing, out_pairing), None, _XP)


def _run_cos_sin(positions: Tensor, frequencies: Tensor, shift: Tensor | None, narrow: bool) -> Tensor:
    angles = Angles(positions, frequencies, shift, _XP)
    if narrow:
        return _run("cos_sin_float32", positions, angles)
    return torch.stack(_run("cos_sin", positions, angles))


def _fake_cos_sin(positions: Tensor, frequencies: Tensor, shift: Tensor | None, narrow: bool) -> Tensor:
    dtype = torch.float32 if narrow else frequencies.dtype
    return frequencies.new_empty((2, *_phases(positions, frequencies, shift)), dtype=dtype)


def _sum_dtype(x: Tensor) -> Any:
    """Dtype of sums over features: on devices no wider than these have to be."""
    return array.widest_float(_XP, x.device) if x.is_cpu or x.dtype == torch.float64 else torch.float32


def _run_turn_gradient(x: Tensor, y: Tensor, *given: Any) -> Tensor:
    *options, shape, radial = given
    return _run("turn_gradient", x, x, y, *_parse(*options), tuple(shape), radial, _XP).to(_sum_dtype(x))


def _fake_turn_back(x: Tensor, y: Tensor, *given: Any) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), x.new_empty(0 if given[-1] is None else given[-1], dtype=_sum_dtype(x))


def _run_turn_back(x: Tensor, y: Tensor, *given: Any) -> tuple[Tensor, Tensor]:
    """Gradient of magnitudes x from that of their blocks, and that of the phases, if its shape is given."""
    *angles, scale, factor, pairing, out_pairing, inverse, softplus, shape = given
    loops = dispatch.find(CPU.rotation) if x.is_cpu and not isinstance(x, _TRACED) else None
    if loops is not None:
        found = loops.turn_back(x, y, *_parse(*given[:-1]), None if shape is None else tuple(shape), _XP)
        if found is not None:
            return found
    with torch.no_grad():
        undone = None if scale is None else 1.0 / scale
        back = _turn(y, *angles, undone, 1.0 / factor, out_pairing, pairing, not inverse, False)
        back = (_softplus_gradient(back, x) if softplus else back).sum_to_size(x.shape)
        back = torch.empty_like(x).copy_(back)
        return back, x.new_empty(0, dtype=_sum_dtype(x)) if shape is None else _turn_gradient(x, y, *given, False)


# -- gradients ---------------------------------------------------------------------------------------------------------


def _summed(value: Tensor, like: Tensor) -> Tensor:
    """A gradient of the shape and dtype of what was broadcast."""
    return value.sum_to_size(like.shape).to(like.dtype)


def _keep_of_turn(needs: Any, turned: Tensor, x: Tensor, *others: Any) -> tuple[Any, ...]:
    """Features are not needed unless angles or scales have gradients, or they pass a softplus: else their shape is."""
    return (x if any(needs[1:5]) or (others[-1] and needs[0]) else None), tuple(x.shape), *others


def _turn_backward(
    needs: Any, gradient: Tensor, x: Tensor | None, shape: tuple[int, ...], *given: Any
) -> tuple[Any, ...]:
    positions, frequencies, shift, scale, factor, *pairings, inverse, softplus = given
    gradient = side_by_side(gradient)
    angles, of_angles = (positions, frequencies, shift), any(needs[1:4])
    found: list[Any] = [None] * 10
    of_shift = shift is not None and not any(needs[1:3])
    at: Any = (tuple(shift.shape) if of_shift else _phases(*angles)) if of_angles else None
    # operators of gradients have none: where those of gradients are asked for, their parts are recorded
    recorded = torch.is_grad_enabled()
    along = None
    if needs[0] and x is not None and not recorded and pairings[0] == MAGNITUDES:
        found[0], along = _turn_back(x, gradient, *given, at)
    elif needs[0]:
        undone = None if scale is None else 1.0 / scale
        back = _turn(gradient, *angles, undone, 1.0 / factor, *pairings[::-1], not inverse, False)
        found[0] = (_softplus_gradient(back, x) if softplus else back).sum_to_size(shape)
    if x is not None and any(needs[1:5]):
        turned = _turning(_phases(*angles, scale)[-1], x, gradient, *pairings)
        function = sums.turn_gradient.generic if recorded else turn_gradient
        read, turn = _parse(*given)
        if of_angles:
            along = function(*turned, read, turn, at, False, _XP) if along is None else along
            found[1:4] = _gradients_of_angles(needs[1:4], along, *angles)
        if needs[4] and scale is not None:
            found[4] = _summed(function(*turned, read, turn, tuple(scale.shape), True, _XP) / scale, scale)
    return tuple(found)


def _turning(blocks: int, x: Tensor, y: Tensor, pairing: str, out_pairing: str) -> tuple[Tensor, Tensor]:
    """Features that turn, of x and of what it is turned into."""
    return x[..., : width_of(pairing) * blocks], y[..., : width_of(out_pairing) * blocks]


def _softplus_gradient(gradient: Tensor, x: Tensor) -> Tensor:
    """Gradient of what passed a softplus, from that of its result: times the logistic function, in one pass."""
    return torch.ops.aten.softplus_backward(gradient, x.expand_as(gradient), 1.0, _LINEAR)


def _gradients_of_angles(
    needs: Any, gradient: Tensor, positions: Tensor | None, frequencies: Tensor | None, shift: Tensor | None
) -> tuple[Any, Any, Any]:
    """Gradients of positions, frequencies and shift, from that of the phases."""
    found: list[Any] = [None, None, None]
    if needs[2] and shift is not None:
        found[2] = _summed(gradient, shift)
    if positions is None or frequencies is None or not (needs[0] or needs[1]):
        return tuple(found)
    gradient = gradient.sum_to_size(_phases(positions, frequencies, None))
    at = Angles(positions.to(gradient.dtype), frequencies, None, torch).to_rows()
    rows = gradient.reshape(at.shape)
    exact = gradient.dtype == torch.float64  # in float32 products of matrices may be rounded to 11 bits
    if needs[0]:
        narrow = at._replace(frequencies=frequencies.to(gradient.dtype))
        sums = [] if exact else [(rows * omega).sum(-1) for _, omega in narrow.axes()]
        found[0] = _summed(rows @ frequencies if exact else torch.stack(sums, -1), positions)
    if needs[1]:
        sums = [] if exact else [(rows * position).sum(-2) for position, _ in at.axes()]
        found[1] = _summed(rows.mT @ at.positions if exact else torch.stack(sums, -1), frequencies)
    return tuple(found)


def _table_backward(
    needs: Any, gradient: Tensor, x: Tensor | None, shape: tuple[int, ...], cos: Tensor, sin: Tensor, *pairings: str
) -> tuple[Any, ...]:
    found: list[Any] = [None] * 5
    if needs[0]:
        found[0] = _turn_by_table(gradient, cos, -sin, *pairings[::-1]).sum_to_size(shape)
    if x is not None:
        pairing, out_pairing = pairings
        features = _turning(cos.shape[-1], x, gradient, pairing, out_pairing)
        shared = shared_coefficients(*features, cos.shape, pairing, out_pairing, _XP)
        found[1:3] = (value.to(cos.dtype) for value in shared)
    return tuple(found)


def _cos_sin_backward(
    needs: Any, gradient: Tensor, made: Tensor, narrow: bool, *angles: Tensor | None
) -> tuple[Any, ...]:
    cos, sin = made
    return *_gradients_of_angles(needs, gradient[1] * cos - gradient[0] * sin, *angles), None


# -- registration ------------------------------------------------------------------------------------------------------


def map_one_by_one(operator: Any, info: Any, in_dims: tuple[Any, ...], *arguments: Any) -> Any:
    """Run an operator for all that `torch.vmap` maps over, one by one: it does so inside compiled graphs alone."""
    rows = [
        operator(*(v if d is None else v.select(d, i) for v, d in zip(arguments, in_dims, strict=True)))
        for i in range(info.batch_size)
    ]
    if isinstance(rows[0], torch.Tensor):
        return torch.stack(rows), 0
    return tuple(map(torch.stack, zip(*rows, strict=True))), (0,) * len(rows[0])


def _register(
    schema: str,
    run: Callable[..., Any],
    fake: Callable[..., Any],
    backward: Callable[..., tuple[Any, ...]] | None = None,
    kept: Callable[..., tuple[Any, ...]] = lambda needs, result, *inputs: inputs,
) -> Any:
    """Define an operator.

    Parameters
    ----------
    schema : str
        Name, arguments and results, as torch writes them.
    run, fake : callable
        What computes, and what says how results look.
    backward : callable, optional
        Gradients of all inputs, from which of these are needed, gradients of the results, and what is `kept`.
    kept : callable
        What `backward` reads, from which gradients are needed, the result and the inputs.
    """
    name = schema.partition("(")[0]
    _LIBRARY.define(schema, tags=_TAGS)
    for place in ("CPU", "CUDA", "XPU"):
        _LIBRARY.impl(name, run, place)
    operator = getattr(torch.ops.rfrope, name).default
    FUNCTIONS[operator] = run

    torch.library.register_fake(f"rfrope::{name}", fake, lib=_LIBRARY)
    torch.library.register_vmap(f"rfrope::{name}", partial(map_one_by_one, operator), lib=_LIBRARY)
    if backward is not None:

        def set_up(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
            held = kept(ctx.needs_input_grad, output, *inputs)
            ctx.save_for_backward(*(value if isinstance(value, torch.Tensor) else None for value in held))
            ctx.others = tuple(None if isinstance(value, torch.Tensor) else value for value in held)

        def formula(ctx: Any, *gradients: Tensor | None) -> tuple[Any, ...]:
            saved = (one if other is None else other for one, other in zip(ctx.saved_tensors, ctx.others, strict=True))
            return backward(ctx.needs_input_grad, *gradients, *saved)

        torch.library.register_autograd(f"rfrope::{name}", formula, setup_context=set_up, lib=_LIBRARY)
    return operator


_GIVEN = "Tensor? positions, Tensor? frequencies, Tensor? shift"
_OPTIONS = "Tensor? scale, float factor, str pairing, str out_pairing, bool inverse, bool softplus"
_turn = _register(
    f"turn(Tensor x, {_GIVEN}, {_OPTIONS}) -> Tensor", _run_turn, _fake_turn, _turn_backward, _keep_of_turn
)
_turn_by_table = _register(
    "turn_by_table(Tensor x, Tensor cos, Tensor sin, str pairing, str out_pairing) -> Tensor",
    _run_turn_by_table,
    lambda x, cos, sin, *pairings: x.new_empty(TurnOptions(*pairings).shape(x.shape, cos.shape)),
    _table_backward,
    lambda needs, turned, x, *others: (x if any(needs[1:3]) else None, tuple(x.shape), *others),
)
_cos_sin = _register(
    "cos_sin(Tensor positions, Tensor frequencies, Tensor? shift, bool narrow) -> Tensor",
    _run_cos_sin,
    _fake_cos_sin,
    _cos_sin_backward,
    lambda needs, made, *inputs: (made, inputs[3], *inputs[:3]),
)
_turn_gradient = _register(
    f"turn_gradient(Tensor x, Tensor y, {_GIVEN}, {_OPTIONS}, SymInt[] shape, bool radial) -> Tensor",
    _run_turn_gradient,
    lambda x, *given: x.new_empty(given[-2], dtype=_sum_dtype(x)),
)
_turn_back = _register(
    f"turn_back(Tensor x, Tensor y, {_GIVEN}, {_OPTIONS}, SymInt[]? shape) -> (Tensor, Tensor)",
    _run_turn_back,
    _fake_turn_back,
)
