"""Calls of the module for PyTorch on a device where one launch turns queries and keys."""

from __future__ import annotations

from typing import Any, TypeAlias

import torch

from rfrope._core.array import Array
from rfrope._core.blocks import TurnOptions
from rfrope._core.dispatch import TRITON, dispatched

Tensor: TypeAlias = Any  # torch.Tensor, which the type checker does not see

DEVICES = {"cuda", "xpu"}  # types of those where kernels may be
_PLACES = {torch.int32, torch.int64, torch.float32, torch.float64}  # of positions there


@dispatched(TRITON)
def rotated_both(
    q: Array,
    k: Array,
    positions: Array | None,
    frequencies: Array,
    shift: Array | None,
    counted: int | None,
    turn: TurnOptions,
) -> tuple[Array, Array] | None:
    """Turn queries and keys at once, or return None where no backend does, and they are to be turned one by one.

    Parameters
    ----------
    q, k : arrays, (..., heads, tokens, d)
        Of one dtype, with the same axes but for the heads and d.
    positions : array, (tokens, k) or (..., 1, tokens, k), or None
    frequencies : array, (D, k), or (sets, D, k) of which heads share each in groups of neighbours
        Or their words ``(..., D, 2 k)`` in int64 (`turns.turn_words`), for positions that are integers.
    shift : array, (D,) or (heads, 1, D), or None
        Of the keys.
    counted : int or None
        If given, tokens are counted from it, and positions are added to that, if there are any.
    turn : TurnOptions
    """
    return None


class LaunchingModule(torch.nn.Module):
    """A module whose features may be on a device; `rfrope.layers.turning` has what else its calls do."""

    def turn_on_device(self, q: Tensor, k: Tensor, positions: Any, offset: Any) -> tuple[Tensor, Tensor] | None:
        """Turn by one launch, or return None where none does it, and for whatever takes all checks."""
        if not (isinstance(q, torch.Tensor) and isinstance(k, torch.Tensor)):
            return None
        device = q.device
        if device.type not in DEVICES or device != k.device or self.max_positions is not None:
            return None
        if q.layout is not torch.strided or k.layout is not torch.strided or not self._belong(q, k):
            return None
        if self._bias_heads not in (None, k.shape[-3]) or q.shape[-3] == 0:
            return None
        if any([getattr(self, name).device != device for name in self._learned]):
            return None
        read = self._read_on_device(q, positions, offset)
        if read is None:
            return None
        shift = None
        if self.phases is not None:
            shift = self._bounded(self._read_learned("phases"))
            shift = shift if shift.ndim == 1 else shift[:, None]
        at, counted = read
        is_known = self.frequencies is None and self.factors is None
        if is_known and (at is None or not at.is_floating_point()):
            omega = self._moved("words", device).flatten(-2)
        else:
            omega = self._omega(device)
        both: tuple[Tensor, Tensor] | None = rotated_both(q, k, at, omega, shift, counted, self._turn)
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
