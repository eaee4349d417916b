"""Calls of the PyTorch module on a device where one launch rotates both, and frequencies of a learned kernel."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import torch

from rfrope._core import angles, array, turns
from rfrope._core.arguments import LARGEST
from rfrope._core.array import Array
from rfrope._core.blocks import TurnOptions
from rfrope._core.dispatch import TRITON, dispatched
from rfrope._core.libraries import TORCH
from rfrope.designs.learning import LearnedKernel
from rfrope.kernels import parse
from rfrope.kernels.families import Scaled
from rfrope.rotation.pairings import assign_blocks
from rfrope.rotation.rope import Rope

Tensor: TypeAlias = Any  # torch.Tensor, which the type checker does not see

_XP, _HOST = array.named_namespace(torch), array.named_namespace(np)
_STEP = 2.0**-200  # imaginary, so that derivatives have no rounding of differences
DEVICES = {"cuda", "xpu"}  # types of those where kernels may be
_PLACES = {torch.int32, torch.int64, torch.float32, torch.float64}  # of positions there
_LIBRARY = torch.library.Library("rfrope", "FRAGMENT")


@dispatched(TRITON)
def rotated_both(
    q: Array,
    k: Array,
    positions: Array | None,
    frequencies: Array,
    shift: Array | None,
    counted: int | None,
    turn: TurnOptions,
    last: list[Any],
) -> tuple[Array, Array] | None:
    """Rotate queries and keys in one launch, or return None where no backend can.

    Parameters
    ----------
    q, k : arrays, (..., heads, tokens, d)
        Both of one dtype, with the same axes but for the heads and d.
    positions : array, (tokens, k) or (..., 1, tokens, k), or None
    frequencies : array, (D, k), or (sets, D, k), each shared by a group of neighbouring heads
        Or their words ``(..., D, 2 k)`` in int64 (`turns.turn_words`), for integer positions; or the bits of their
        float64, in uint64.
    shift : array, (D,) or (heads, 1, D), or None
        Added to the phases of the keys.
    counted : int or None
        If given, token positions count from it, plus `positions` if given.
    turn : TurnOptions
    last : list
        A backend may add a function of queries, keys, positions and offset that repeats the call, for others like them.
    """
    return None


class LaunchingModule(torch.nn.Module):
    """A module whose features may be on a device; `rfrope.layers.turning` has its other calls."""

    start: Rope
    _law: Any  # LearnedKernel or None: frequencies by the parameters of a kernel, where these are learned
    frequencies: Tensor  # None where not learned
    log_factors: Tensor
    phases: Tensor
    log_temperature: Tensor
    _learned: tuple[str, ...]  # names of parameters
    _turn: TurnOptions
    _host: Any  # frequencies of NumPy
    _law_names: tuple[str, ...]
    _law_text: str
    _last_law: tuple[Any, Any]  # values of a kernel's parameters, and the frequencies that they made
    _constants: dict[str, Tensor]  # derived from the Rope, on the host
    _placed: dict[tuple[str, Any], Tensor]  # the same by name and device
    _last_launch: list[Any]  # what repeats the last one, or None

    def _moved(self, name: str, device: Any) -> Tensor:
        """Return a constant derived from the Rope, on a device."""
        constant = self._constants[name]
        if constant.device == device:
            return constant
        found = self._placed.get((name, device))
        if found is None:
            found = self._copied(name, device)
            if not torch.compiler.is_compiling() and type(found) is torch.Tensor:  # no fake one
                self._placed[name, device] = found
        return found

    def _copied(self, name: str, device: Any) -> Tensor:
        """Return a copy of a constant on a device; frequencies as `turns.make_integer_turns` has them."""
        constant = self._constants[name]
        if name == "frequencies" and not torch.compiler.is_compiling():
            return turns.make_integer_turns(self._host, _XP, device)
        with torch.inference_mode(False):
            narrow = name == "frequencies" and not array.has_float64(_XP, device)
            return (constant.float() if narrow else constant).to(device)

    def _place(self, *devices: Any) -> None:
        """Copy all constants to devices: a graph that is made before any call would else copy them at every call."""
        for device in devices:
            for name in () if device.type == "cpu" else self._constants:
                self._moved(name, device)

    def _follow(self, moves: Any) -> None:
        """Move constants to the device to which a function moves tensors."""
        for device in {device for _, device in self._placed if device.type != "meta"}:
            if _moved_from(device, moves) != device:
                self._placed = {key: one for key, one in self._placed.items() if key[1] != device}
        self._place(_moved_from("cpu", moves))
        self._last_launch[0] = None

    # -- what is learned, as calls read it -----------------------------------------------------------------------------

    def _widened(self, numbers: Tensor, copied: bool) -> Tensor:
        """Numbers that may be added up: in float64, or int64 for integers.

        Sharding frees the memory of parameters after the call, and cannot if a loop saw it: loops get a copy.
        """
        wide = torch.float64 if array.has_float64(_XP, numbers.device) else torch.float32
        return numbers.to(wide if numbers.is_floating_point() else torch.int64, copy=copied)

    def _read_learned(self, name: str) -> Tensor:
        """Return a copy of a learned parameter; refuse one that was narrowed."""
        parameter = getattr(self, name)
        if parameter.dtype not in (torch.float32, torch.float64):
            raise TypeError(
                f"{name} is a parameter of {parameter.dtype}, which rounds it; expected float32 or float64: exclude "
                "this module from mixed precision (fully_shard it by itself, before the model), and load it again"
            )
        return self._widened(parameter, True)

    def _frequencies_of_law(self) -> Tensor:
        """Return the frequencies of a learned kernel in the Rope's shape.

        They are made once for all calls with equal parameters, on the host for any device: bits are equal.
        """
        values = [self._read_learned(name) for name in self._law_names]
        if torch.compiler.is_compiling():
            return move_in_graph(self._law_text, self._constants["points"], list(self.start.frequencies.shape), values)
        key, own = None, [getattr(self, name) for name in self._law_names]
        if not (values[0].is_cpu or self._is_sharded) and all(type(one) is torch.nn.Parameter for one in own):
            key = [(one.data_ptr(), one._version) for one in own]  # no one waits for the values on a device
        self._last_law, omega = move_kernel(self._law, values, key, self._last_law)
        return omega

    def _bounded(self, phases: Tensor) -> Tensor:
        """Return learned phases within their bounds."""
        return phases

    def _shift(self) -> Tensor:
        """Return the learned phases of keys, ``(D,)`` or ``(heads, 1, D)``."""
        shift = self._bounded(self._read_learned("phases"))
        return shift if shift.ndim == 1 else shift[:, None]

    def _omega(self, device: Any) -> Tensor:
        """Frequencies ``(D, k)``, or ``(heads of keys, D, k)``, in float64 or as integer turns."""
        if self.frequencies is not None or self._law is not None:
            is_free, sections = self.frequencies is not None, self.start.sections
            learned = self._read_learned("frequencies") if is_free else self._frequencies_of_law()
            omega = angles.add_axis_dimension(learned, learned)
            omega = omega if sections is None else assign_blocks(learned, sections, self.start.interleaved)
        elif self.log_factors is None and torch.compiler.is_compiling() and not array.has_float64(_XP, device):
            return self._host  # what its float32 cannot hold
        else:
            omega = self._moved("frequencies", device)
        if self.log_factors is None:
            return omega
        factors = self._read_learned("log_factors").exp()
        return omega * angles.add_axis_dimension(factors, factors)

    def _learned_turn(self) -> TurnOptions:
        """Return how features turn: with the root of a learned temperature in the scale, for queries and for keys."""
        if self.log_temperature is None:
            return self._turn
        return self._turn._replace(scale=(0.5 * self._read_learned("log_temperature")).exp() * self._turn.scale)

    # -- by one launch -------------------------------------------------------------------------------------------------

    def turn_on_device(self, q: Tensor, k: Tensor, positions: Any, offset: Any) -> tuple[Tensor, Tensor] | None:
        """Rotate in one launch, or return None if no launch can or all checks are needed."""
        if not (isinstance(q, torch.Tensor) and isinstance(k, torch.Tensor)):
            return None
        device = q.device
        if device.type not in DEVICES or device != k.device or self.max_positions is not None:
            return None
        if q.layout is not torch.strided or k.layout is not torch.strided or not self._belong(q, k):
            return None
        if q.shape[-3] == 0 or any([getattr(self, name).device != device for name in self._learned]):
            return None
        read = self._read_on_device(q, positions, offset)
        if read is None:
            return None
        at, counted = read
        is_known = self.frequencies is None and self.log_factors is None and self._law is None
        if is_known and (at is None or not at.is_floating_point()):
            omega = self._moved("words", device).flatten(-2)
        else:
            omega = self._omega(device)
            omega = omega if array.has_float64(_XP, device) else getattr(omega, "float64_bits", omega)
        shift = None if self.phases is None else self._shift()
        last: list[Any] = []
        both: tuple[Tensor, Tensor] | None = rotated_both(q, k, at, omega, shift, counted, self._learned_turn(), last)
        if last and type(offset) is int and (positions is None or offset == 0):
            self._last_launch[0] = last[0].bind((q, k, positions), both)
        return both

    def _read_on_device(self, q: Tensor, positions: Any, offset: Any) -> tuple[Tensor | None, int | None] | None:
        """Positions ``(*P, k)`` that the kernel takes, and from what it counts the tokens if it does; or None."""
        plain, axes = type(offset) is int, self.axes
        if positions is None and plain:
            return (None, offset) if axes == 1 and abs(offset) < 2**53 else None
        if not plain:
            if not self._are_integers(offset, q.device) or offset.ndim > 1:
                return None
            offset = offset.reshape(-1, 1, 1) if offset.ndim else offset.reshape(1, 1)
        if positions is None:
            at = self._insert_heads(offset)
            return (at, 0) if axes == 1 and self._fits(at.expand(*at.shape[:-2], q.shape[-2], 1), q) else None
        if type(positions) is not torch.Tensor or positions.device != q.device or positions.requires_grad:
            return None
        if positions.dtype not in _PLACES or positions.ndim < 1 + (axes > 1):
            return None
        at = positions[..., None] if axes == 1 else positions
        if not plain or offset:
            at = self._widened(at, False) + offset
        at = self._insert_heads(at)
        return (at, None) if self._fits(at, q) else None


def _moved_from(device: Any, moves: Any) -> Any:
    """Return where a function moves tensors of a device to; one that changes dtypes alone leaves integers there."""
    return moves(torch.empty(0, dtype=torch.int64, device=device)).device


def has_device(name: str) -> bool:
    """Return whether tensors can be on such a device here."""
    device = torch.device(name)
    kind: Any = getattr(torch, device.type, None)
    return device.type == "meta" or bool(kind and kind.is_available() and (device.index or 0) < kind.device_count())


# -- frequencies of a learned kernel -----------------------------------------------------------------------------------


def move_kernel(law: LearnedKernel, values: list[Tensor], key: Any, last: tuple[Any, Any]) -> tuple[Any, Tensor]:
    """Return what to remember, and the frequencies of a kernel's parameters.

    Parameters
    ----------
    law : LearnedKernel
    values : list of tensor, float64 where there is one
        Its parameters, in their order.
    key : object or None
        Equal for equal values; None for the values themselves.
    last : tuple
        The record that the last call returned.
    """
    flat = torch.cat([value.reshape(*law.points.shape[:-2], -1) for value in values], -1)
    if not TORCH.are_plain_dense() or type(flat) is not torch.Tensor:  # mapped over, or with tangents
        return last, law.move(flat, _XP)
    key = flat.detach().cpu().numpy().tobytes() if key is None else key
    if last[0] != key:
        with torch.inference_mode(False):
            made = [one.to(flat.device, flat.dtype) for one in _tabulate(law, flat.detach().cpu().double().numpy())]
        last = key, made
    omega, slopes = last[1]
    return last, _Moved.apply(flat, law, omega, slopes) if flat.requires_grad else omega


def move_in_graph(text: str, points: Tensor, shape: list[int], values: list[Tensor]) -> Tensor:
    """Return the frequencies of a kernel's parameters by one operator, whose derivatives are numbers of the graph."""
    flat = torch.cat([value.reshape(*points.shape[:-2], -1) for value in values], -1)
    still = flat.detach()
    omega, slopes = torch.ops.rfrope.move_kernel(still, points, text, shape)
    return omega + ((flat - still)[..., None, None, :] * slopes).sum(-1).reshape(shape)  # plus zeros


class _Moved(torch.autograd.Function):
    """Known frequencies as a function of parameters, by known derivatives; further ones from the formulas."""

    @staticmethod
    def forward(ctx: Any, flat: Tensor, law: LearnedKernel, omega: Tensor, slopes: Tensor) -> Tensor:
        ctx.save_for_backward(flat)
        ctx.law, ctx.slopes = law, slopes
        return omega.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        if torch.is_grad_enabled():
            (flat,) = ctx.saved_tensors
            omega = ctx.law.move(flat, _XP)
            return *torch.autograd.grad(omega, flat, gradient, create_graph=True), None, None, None
        return (gradient.reshape((*ctx.slopes.shape[:-1], 1)) * ctx.slopes).sum((-3, -2)), None, None, None


def _tabulate(law: LearnedKernel, flat: np.ndarray) -> tuple[Tensor, Tensor]:
    """Return frequencies in their shape, and their derivatives ``(*H, D, k, P)``, by complex steps.

    By the logarithm of the length of a law in one axis, the last of its parameters, that is minus the frequency, or 0
    where that was cut.
    """
    has_length = isinstance(law.kernel, Scaled) and law.kernel.ndim == 1 and [*law.parameters][-1] == "log_scale"
    n = flat.shape[-1] - has_length
    rows = flat + 1j * _STEP * np.eye(n, n + has_length).reshape(n, *(1,) * (flat.ndim - 1), -1) if n else flat[None]
    moved = [law.move(row, _HOST) for row in rows]
    slopes = [one.imag.reshape(*law.points.shape[:-1], -1) / _STEP for one in moved[:n]]
    omega = moved[0].real.copy()
    if has_length:
        slopes.append(np.where(np.abs(omega) < LARGEST, -omega, 0.0).reshape(*law.points.shape[:-1], 1))
    return torch.from_numpy(omega), torch.from_numpy(np.stack(slopes, -1))


@lru_cache(maxsize=256)
def _tabulate_bytes(text: str, shape: tuple[int, ...], flat: bytes, points: bytes, sizes: Any) -> tuple[Tensor, Tensor]:
    """Return the same of the bytes of float64 numbers, of the sizes of both arrays: decoding asks for one at a time."""
    values, held = (np.frombuffer(one).reshape(size) for one, size in zip((flat, points), sizes, strict=True))
    return _tabulate(LearnedKernel.make(parse(text), held, shape), values)


def _run(flat: Tensor, points: Tensor, text: str, shape: list[int]) -> tuple[Tensor, Tensor]:
    host = [one.detach().cpu().double().numpy() for one in (flat, points)]
    made = _tabulate_bytes(text, tuple(shape), *(one.tobytes() for one in host), tuple(one.shape for one in host))
    omega, slopes = (one.to(flat.device, flat.dtype, copy=True) for one in made)
    return omega, slopes


def _fake(flat: Tensor, points: Tensor, text: str, shape: list[int]) -> tuple[Tensor, Tensor]:
    sizes = (*points.shape[:-1], 1 if len(shape) == 1 else shape[-1], flat.shape[-1])
    return flat.new_empty(shape), flat.new_empty(sizes)


_LIBRARY.define(
    "move_kernel(Tensor flat, Tensor points, str text, SymInt[] shape) -> (Tensor, Tensor)",
    tags=(torch.Tag.pt2_compliant_tag,),
)
_LIBRARY.impl("move_kernel", _run, "CompositeExplicitAutograd")
torch.library.register_fake("rfrope::move_kernel", _fake, lib=_LIBRARY)
