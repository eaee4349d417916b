"""Calls of the PyTorch module on a device where one launch rotates both, and frequencies of a learned kernel."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import torch

from rfrope._core import angles, array, turns
from rfrope._core.array import Array
from rfrope._core.blocks import TurnOptions
from rfrope._core.dispatch import TRITON, dispatched
from rfrope._core.libraries import TORCH
from rfrope.designs.learning import LearnedKernel
from rfrope.kernels import parse
from rfrope.rotation.pairings import assign_blocks
from rfrope.rotation.rope import Rope

Tensor: TypeAlias = Any  # torch.Tensor, which the type checker does not see

_XP = array.named_namespace(torch)
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
        law, values = self._law, [getattr(self, name) for name in self._law_names]
        is_own = not (torch.compiler.is_compiling() or self._is_sharded) and all([_is_wide(one) for one in values])
        values = values if is_own else [self._read_learned(name) for name in self._law_names]
        if torch.compiler.is_compiling():
            return move_in_graph(self._law_text, self._constants["points"], list(self.start.frequencies.shape), values)
        if not TORCH.are_plain_dense() or not all([is_own or type(one) is torch.Tensor for one in values]):
            return law.move(_join(law.points.shape[:-2], values), _XP)  # mapped over, or with tangents
        device: Any = values[0].device
        if is_own and device.type != "cpu":
            key: Any = [(one.data_ptr(), one._version) for one in values]  # no one waits for the values on a device
        else:
            key = [one.detach().cpu().numpy().tobytes() for one in values]
        if self._last_law[0] != key:
            wide = torch.float64 if array.has_float64(_XP, device) else torch.float32
            with torch.inference_mode(False):
                made = law.tabulate(_join(law.points.shape[:-2], values).detach().cpu().double().numpy())
                self._last_law = key, [torch.from_numpy(one).to(device, wide) for one in made]
        omega, slopes = self._last_law[1]
        return _Moved.apply(law, omega, slopes, *values) if any([one.requires_grad for one in values]) else omega

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
        read = self._read_tensors(q, positions, offset)
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

    def _read_tensors(self, q: Tensor, positions: Any, offset: Any) -> tuple[Tensor | None, int | None] | None:
        """Return positions ``(*P, k)`` beside q, and from what tokens are counted if they are; or None for the checks.

        Launches take them, and graphs.
        """
        plain, axes = type(offset) is int, self.axes
        if not plain:
            if not self._are_integers(offset, q.device) or offset.ndim > 1:
                return None
            offset = offset.reshape(-1, 1, 1) if offset.ndim else offset.reshape(1, 1)
        if positions is None:
            if axes > 1 or (plain and abs(offset) >= 2**53):
                return None
            at = None if plain else self._insert_heads(offset)
            if at is None or self._fits(at.expand(*at.shape[:-2], q.shape[-2], 1), q):
                return at, offset if plain else 0
            return None
        if type(positions) is not torch.Tensor or positions.device != q.device or positions.requires_grad:
            return None
        if positions.dtype not in _PLACES:
            if not self._are_integers(positions, q.device):
                return None
            positions = positions.long()
        if positions.ndim < 1 + (axes > 1):
            return None
        at = positions[..., None] if axes == 1 else positions
        at = self._insert_heads(at if plain and not offset else self._widened(at, False) + offset)
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


def _is_wide(parameter: Any) -> bool:
    return type(parameter) is torch.nn.Parameter and parameter.dtype in (torch.float32, torch.float64)


def _join(heads: tuple[int, ...], values: Sequence[Tensor]) -> Tensor:
    """Return the parameters of a kernel in one row for each set of frequencies."""
    return torch.cat([one.reshape(*heads, -1) for one in values], -1)


def move_in_graph(text: str, points: Tensor, shape: list[int], values: list[Tensor]) -> Tensor:
    """Return the frequencies of a kernel's parameters by one operator, whose derivatives are numbers of the graph."""
    flat = _join(points.shape[:-2], values)
    still = flat.detach()
    omega, slopes = torch.ops.rfrope.move_kernel(still, points, text, shape)
    return omega + ((flat - still)[..., None, None, :] * slopes).sum(-1).reshape(shape)  # plus zeros


class _Moved(torch.autograd.Function):
    """Known frequencies as a function of parameters, by known derivatives; further ones from the formulas."""

    @staticmethod
    def forward(ctx: Any, law: LearnedKernel, omega: Tensor, slopes: Tensor, *values: Tensor) -> Tensor:
        ctx.save_for_backward(*values)
        ctx.law, ctx.slopes = law, slopes
        return omega.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        if torch.is_grad_enabled():
            row = _join(ctx.law.points.shape[:-2], ctx.saved_tensors)
            (row,) = torch.autograd.grad(ctx.law.move(row, _XP), row, gradient, create_graph=True)
        else:
            row = (gradient.reshape((*ctx.slopes.shape[:-1], 1)) * ctx.slopes).sum((-3, -2))
        sizes = [math.prod(size) for size in ctx.law.sizes.values()]
        parts = zip(row.split(sizes, -1), ctx.law.parameters.values(), strict=True)
        return None, None, None, *(one.reshape(start.shape) for one, start in parts)


@lru_cache(maxsize=256)
def _tabulate_bytes(text: str, shape: tuple[int, ...], flat: bytes, points: bytes, sizes: Any) -> tuple[Any, Any]:
    """Return the same of the bytes of float64 numbers, of the sizes of both arrays: decoding asks for one at a time."""
    values, held = (np.frombuffer(one).reshape(size) for one, size in zip((flat, points), sizes, strict=True))
    return LearnedKernel.make(parse(text), held, shape).tabulate(values)


def _run(flat: Tensor, points: Tensor, text: str, shape: list[int]) -> tuple[Tensor, Tensor]:
    host = [one.detach().cpu().double().numpy() for one in (flat, points)]
    made = _tabulate_bytes(text, tuple(shape), *(one.tobytes() for one in host), tuple(one.shape for one in host))
    omega, slopes = (torch.from_numpy(one).to(flat.device, flat.dtype, copy=True) for one in made)
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
