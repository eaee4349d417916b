"""Arguments of the module for PyTorch: dense tensors, and exact sums of integers as positions.

They are methods for the reason that `rfrope.layers.graphs` has.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, TypeAlias

import numpy as np
import torch

from rfrope._core import angles, array
from rfrope._core.arguments import whole
from rfrope._core.libraries import TORCH
from rfrope.frequencies.ladders import geometric
from rfrope.rotation.rope import Assumed, Rope

Tensor: TypeAlias = Any  # torch.Tensor, which the type checker does not see

_XP = array.named_namespace(torch)
_WHOLE = 2**53  # float64 holds whole numbers below it
_SIGNED = {torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8}  # what int64 holds


def origin(offset: Any) -> str:
    """Names of what the places of tokens come from, as errors have them; a plain offset changes no shape."""
    return "positions" if type(offset) is int else "positions and offset"


class Reading:
    """Features and positions of a call."""

    axes: int

    def _dense(self, x: Any, name: str) -> Tensor:
        """Refuse what is no tensor, or holds some of its elements only."""
        if not isinstance(x, torch.Tensor):
            raise TypeError(
                f"{name} has type {type(x).__module__}.{type(x).__qualname__}; expected a tensor of PyTorch"
            )
        TORCH.check_dense(x, name)
        return x

    def _check_device(self, name: str, x: Tensor, other: str, beside: Tensor) -> None:
        """Refuse tensors of two devices: beside one that holds no values the operators would compute none."""
        if x.device != beside.device:
            raise ValueError(
                f"{name} is on device {x.device} but {other} is on {beside.device}; expected all arrays on one device"
            )

    def _exchanged(self, x: Any) -> Any:
        """Exchange the axes of heads and tokens."""
        return x.transpose(-3, -2) if isinstance(x, torch.Tensor) and x.ndim > 2 else x

    def _read(self, name: str, x: Tensor, positions: Any, offset: Any) -> Tensor:
        """Positions of the tokens of x, checked, and consecutive unless given, after an offset.

        They are ``(*P, k)`` in int64 or float64, with an axis for the heads where there are several sequences.
        """
        axes, plain, unseen = self.axes, type(offset) is int, torch.compiler.is_compiling()
        xp, device = array.shared({name: positions, "offset": offset}, x=x)
        if not (unseen or not plain or -(2**63) <= offset < 2**63):
            raise ValueError(f"offset has {offset.bit_length()} bits; expected a whole number from -2**63 to 2**63 - 1")
        near = unseen or (plain and positions is None and abs(offset) < 2**62)
        if positions is None:
            if axes > 1:
                raise ValueError(f"{name} is None; expected (..., tokens, {axes}): the Rope has {axes} axes")
            positions = torch.arange(x.shape[-2], device=device)
        positions = self._numbers(name, positions, xp, device)
        if axes > 1 and (positions.ndim < 2 or positions.shape[-1] != axes):
            raise ValueError(f"{name} has shape {tuple(positions.shape)}; expected (..., tokens, {axes})")
        positions = angles.to_vectors(positions, axes)
        if not plain:
            offset = self._numbers("offset", offset, xp, device)
            angles.check_values("offset", offset, xp)
            offset = offset.reshape(-1, 1, 1) if offset.ndim else offset
        if not plain or offset:
            total = positions + offset
            if not (near or total.is_floating_point()) and array.has_host_values(total):
                wrapped = (positions ^ total) & (offset ^ total)  # below 0 where the sign is that of neither part
                if bool((wrapped < 0).any()):
                    raise ValueError(f"{name} and offset add up to more than 64 bits; expected -2**63 to 2**63 - 1")
            positions = total
        angles.check_values(name, positions, xp)
        return self._insert_heads(positions)

    def _read_quickly(self, x: Tensor, positions: Any, offset: Any) -> np.ndarray | None:
        """Positions as compiled loops read them, or None where they need a closer look.

        They are those of `_read` to the bit: float64 holds integers below 2**53, and their sums.
        """
        if type(offset) is not int or not -_WHOLE < offset < _WHOLE:
            return None
        if positions is None:
            end = offset + x.shape[-2]
            return np.arange(offset, end, dtype=np.float64)[:, None] if self.axes == 1 and end <= _WHOLE else None
        if not (isinstance(positions, torch.Tensor) and positions.dtype in _SIGNED and TORCH.are_memory(positions)):
            return None
        found = np.array(positions.numpy(), np.float64, order="C")
        if offset:
            if not np.vdot(found, found) < _WHOLE * _WHOLE:
                return None
            found += offset
        read: np.ndarray = self._insert_heads(angles.to_vectors(found, self.axes))
        return read

    def _check_rows(self, name: str, at: Tensor, count: int) -> None:
        """Refuse positions that are not rows of tables."""
        if at.is_floating_point():
            raise TypeError(f"{name} are floats; expected integers, as max_positions is given")
        if array.has_host_values(at) and at.numel() and not 0 <= int(at.min()) <= int(at.max()) < count:
            raise ValueError(f"{name} go from {int(at.min())} to {int(at.max())}; expected 0 to {count - 1}")

    def _widened(self, numbers: Tensor, copied: bool) -> Tensor:
        """Numbers that may be added up: in float64, or int64 for integers.

        What shards parameters frees their memory after the call, and cannot where a loop saw it: loops are given a
        copy.
        """
        wide = torch.float64 if array.has_float64(_XP, numbers.device) else torch.float32
        return numbers.to(wide if numbers.is_floating_point() else torch.int64, copy=copied)

    def _numbers(self, name: str, value: Any, xp: ModuleType, device: Any) -> Tensor:
        """Integers or floats of a call, widened."""
        numbers = array.numbers(value, xp, name=name, device=device)
        found = self._widened(numbers, False)
        angles.warn_of_positions_of_16_bits(numbers, xp, name)
        if torch.compiler.is_compiling():
            return found
        if numbers.dtype == torch.uint64 and array.has_host_values(found) and bool((found < 0).any()):
            raise ValueError(f"{name} holds integers from 2**63 on; expected smaller ones")
        return found

    def _insert_heads(self, positions: Any) -> Any:
        """Positions ``(tokens, k)``, or ``(..., 1, tokens, k)`` where each sequence has its own."""
        return positions[..., None, :, :] if positions.ndim > 2 else positions


def read_ladder(value: Any) -> np.ndarray:
    """The frequencies of so many features, as modules take a number of them."""
    width = whole("rope", value, 2)
    if width % 2:
        raise ValueError(f"rope is {width}; expected an even number of features, or a Rope or frequencies")
    return geometric(width // 2)


def read_head_dim(rope: Rope, head_dim: Any) -> int | None:
    """Width of a head, which may be that of the Rope alone where it has one."""
    if head_dim is None:
        return rope.head_dim
    width = whole("head_dim", head_dim, rope.rotary_dim)
    if width != rope.head_dim and not isinstance(rope.head_dim, Assumed):
        raise ValueError(
            f"head_dim is {width}, but the Rope has head_dim={rope.head_dim}; expected the same, or one alone"
        )
    return width
