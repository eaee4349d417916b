"""The module for PyTorch in a compiled graph, with as few guards as possible, since every call repeats them.

Functions, constants and modules that are met while tracing are looked at again before every call, methods are not:
hence methods, and those of tensors in place of functions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, TypeAlias

import torch

from rfrope._core import array, dispatch
from rfrope._core.angles import Angles
from rfrope.layers.reading import Reading
from rfrope.rotation.turning import rotated

Tensor: TypeAlias = Any  # torch.Tensor, which the type checker does not see

_XP = array.named_namespace(torch)
# its operators are then known: saved graphs that hold them can be loaded
_OPERATOR = dispatch.backend_function(rotated, "torch")
_UNIT = 3.4061215800865545e-19  # radians: 2 pi 2^-64


def _holds_integers(x: Tensor) -> bool:
    return not (x.is_floating_point() or x.is_complex() or x.dtype == torch.bool)


class InGraphs(Reading, torch.nn.Module, ABC):
    """Rotation in a graph at integer positions, for a module that learns nothing."""

    rope: Any
    head_dim: int | None
    max_positions: int | None
    _turn: Any
    _sets: int
    _blocks: int
    _is_fixed: bool
    _last_turn: bool

    def in_graph(self, q: Tensor, k: Tensor, positions: Any, offset: Any) -> tuple[Tensor, Tensor] | None:
        """Turn; None where that takes all checks, and for what is refused."""
        at = self._plainly(q, k, positions, offset) if self._is_fixed else None
        if at is None:
            return None
        if self.max_positions is not None and q.dtype != torch.float64:
            return self._by_table(q, k, at)
        return (
            self._by_turns(q, k, at) if self.max_positions is None and q.shape[-2] == 1 else self._by_operator(q, k, at)
        )

    def _plainly(self, q: Tensor, k: Tensor, positions: Any, offset: Any) -> Tensor | None:
        """Integer positions ``(*P, k)``, with an axis for the heads where there are several sequences."""
        if q.device != k.device or not (q.is_cpu or q.is_cuda or q.is_meta) or q.is_sparse or not self._belong(q, k):
            return None
        at = self._of_integers(q, positions, offset)
        return None if at is None or not self._fits(at, q) else at

    def _belong(self, q: Tensor, k: Tensor) -> bool:
        """Return whether queries and keys have one dtype and length, and heads and widths that the Rope turns."""
        if q.ndim < 3 or q.ndim != k.ndim or q.dtype != k.dtype or not q.is_floating_point():
            return False
        heads, shared = q.shape[-3], k.shape[-3]
        if q.shape[:-3] != k.shape[:-3] or q.shape[-2] != k.shape[-2] or shared == 0 or heads % shared:
            return False
        if self._sets and self._sets != shared:
            return False
        return self._takes(q.shape[-1]) and self._takes(k.shape[-1])

    def _takes(self, width: int) -> bool:
        """Return whether features of a width are a head, or the part of one that turns."""
        if width == 2 * self._blocks or width % 2:
            return width % 2 == 0
        return (self.head_dim is None or width == self.head_dim) and width > 2 * self._blocks and not self._last_turn

    def _fits(self, at: Tensor, q: Tensor) -> bool:
        """Return whether each token of each sequence has its position, so that what is turned is not enlarged."""
        if at.ndim not in (2, q.ndim) or at.shape[-1] != self.axes or at.shape[-2] != q.shape[-2]:
            return False
        return at.ndim == 2 or all([at.shape[axis] in (1, q.shape[axis]) for axis in range(q.ndim - 2)])

    def _of_integers(self, q: Tensor, positions: Any, offset: Any) -> Tensor | None:
        axes, device = self.axes, q.device
        if type(offset) is not int:
            if type(offset) is not torch.Tensor or offset.ndim > 1 or not _holds_integers(offset):
                return None
            if offset.device != device:
                return None
            offset = offset.long().reshape(-1, 1, 1) if offset.ndim else offset
        if positions is None:
            positions = torch.arange(q.shape[-2], device=device)
        elif type(positions) is not torch.Tensor or not _holds_integers(positions) or positions.device != device:
            return None
        if positions.ndim < 1 + (axes > 1) or (axes > 1 and positions.shape[-1] != axes):
            return None
        at = positions.long()
        at = at[..., None] if axes == 1 else at
        at = at if type(offset) is int and offset == 0 else at + offset
        return at[..., None, :, :] if at.ndim > 2 else at

    # -- three ways ----------------------------------------------------------------------------------------------------

    def _by_operator(self, q: Tensor, k: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
        """Turn in one node of a graph for each."""
        omega = self._moved("frequencies", q.device)
        of_queries = self._of_heads(omega, q.shape[-3])
        turned = rotated if _OPERATOR is None else _OPERATOR
        first, second = (
            turned(x, Angles(at, w, None, _XP), self._turn, None) for x, w in ((q, of_queries), (k, omega))
        )
        return first, second

    def _by_turns(self, q: Tensor, k: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
        """Turn exactly, with operators of torch that compilers fuse."""
        turns = self._moved("turns", q.device)  # one tensor, as each is looked at; the rests are floats
        words, rests = turns[0], turns[1].view(torch.float64)
        if self._sets:
            words, rests = words[:, None], rests[:, None]  # (heads of keys, 1, D, k)
        at = at[..., None, :]
        phases = (at * words).sum(-1).double() + (at.double() * rests).sum(-1)
        phases, scale = phases * _UNIT, self._turn.scale
        cos, sin = (phases.cos() * scale, phases.sin() * scale) if scale != 1.0 else (phases.cos(), phases.sin())
        wide = torch.float64 if q.dtype == torch.float64 else torch.float32
        cos, sin = cos.to(wide), sin.to(wide)
        if q.is_cpu:  # Inductor keeps in memory what is strided by hand; else it is computed anew for every head
            cos, sin = cos.as_strided(cos.shape, cos.stride()), sin.as_strided(sin.shape, sin.stride())
        return self._of_both(q, k, cos, sin)

    def _by_table(self, q: Tensor, k: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
        """Turn by rows of tables."""
        return self._of_both(q, k, *self._rows(at, q.device))

    def _rows(self, at: Tensor, device: Any) -> tuple[Tensor, Tensor]:
        """Cos and sin of positions, from tables."""
        rows = torch.nn.functional.embedding(at[..., 0], self._moved("rows of positions", device))
        return rows[..., : self._blocks], rows[..., self._blocks :]

    def _of_both(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """Turn by rows of cos and sin, which those of the heads of keys may have for themselves."""
        group, pairing = (q.shape[-3] // k.shape[-3] if self._sets else 1), self._turn.pairing
        turned = self._by_rows(k, cos, sin, pairing)
        if group > 1:
            cos, sin = cos.repeat_interleave(group, -3), sin.repeat_interleave(group, -3)
        return self._by_rows(q, cos, sin, pairing), turned

    @staticmethod
    def _by_rows(x: Tensor, cos: Tensor, sin: Tensor, pairing: str) -> Tensor:
        """Turn features by rows of tables, in the precision of these."""
        half = cos.shape[-1]
        turning = x[..., : 2 * half].to(cos.dtype)
        if pairing == "half":
            first, second = turning[..., :half], turning[..., half:]
        else:
            first, second = turning[..., 0::2], turning[..., 1::2]
        turned = first * cos - second * sin, first * sin + second * cos
        joined = torch.cat(turned, -1) if pairing == "half" else torch.stack(turned, -1).flatten(-2)
        joined = joined.to(x.dtype)
        return joined if 2 * half == x.shape[-1] else torch.cat([joined, x[..., 2 * half :]], -1)

    # -- what the module gives -----------------------------------------------------------------------------------------

    @abstractmethod
    def _moved(self, name: str, device: Any) -> Tensor:
        """Return a constant derived from the Rope, on a device."""

    @abstractmethod
    def _of_heads(self, omega: Tensor, heads: int) -> Tensor:
        """Frequencies of so many heads, which share those of the keys in groups."""
