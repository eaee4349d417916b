"""Calls of the PyTorch module: rotation at once, in a compiled graph, or with all checks.

Functions, constants and modules met while a graph is traced are guarded before every call, methods are not: hence
methods, and those of tensors in place of functions.
"""

from __future__ import annotations

from functools import partial
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np
import torch

from rfrope._core import angles, array, blocks, dispatch, turns
from rfrope._core.angles import Angles
from rfrope._core.blocks import TurnOptions
from rfrope._core.libraries import TORCH
from rfrope._core.turns import LOWER, NEAR, QUARTER
from rfrope.layers.learning import LearningModule
from rfrope.rotation.polar import check_polar_width
from rfrope.rotation.rope import check_head_width
from rfrope.rotation.turning import rotate, rotated, rotated_by_table

Tensor: TypeAlias = Any  # torch.Tensor, which the type checker does not see

ORDERS = {"bhtd": "heads, tokens", "bthd": "tokens, heads"}
_XP = array.named_namespace(torch)
# registers the operators, so that saved graphs can be loaded
_OPERATOR = dispatch.backend_function(rotated, "torch")
_RECORDING: Any = dispatch.find(dispatch.TORCH_RECORDING)
# sin(pi/2 y) = y + y P(y^2) for |y| <= 1, fitted to 3.4e-9
_SINE = (0.5707962900221197, -0.6459633598619275, 0.07968848052381322, -0.004672227898213255, 0.000150820552083486)
_WHOLE = 2**53  # float64 holds whole numbers below it
_SIGNED = {torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8}  # what int64 holds


class TurningModule(LearningModule):
    """The calls of a module; `rfrope.layers.torch` has its construction, learning and storage."""

    _last_calls: list[tuple[list[Any], list[Any]]]  # what the last queries and keys left, forwards and back

    def exchanged(self, x: Any) -> Any:
        """Exchange the axes of heads and tokens."""
        return x.transpose(-3, -2) if isinstance(x, torch.Tensor) and x.ndim > 2 else x

    # -- queries and keys that fit, and their positions ----------------------------------------------------------------

    def _belong(self, q: Tensor, k: Tensor) -> bool:
        """Return whether queries and keys are of one dtype and batch; refuse widths and heads that do not fit."""
        if q.ndim < 3 or q.ndim != k.ndim or q.dtype != k.dtype or not q.is_floating_point():
            return False
        if q.shape[:-3] != k.shape[:-3]:
            return False
        self._check_width("q", q)
        self._check_width("k", k)
        self._check_layout(q, k, False)
        return True

    def _check_layout(self, q: Tensor, k: Tensor, apart: bool) -> None:
        """Refuse heads and tokens of queries and keys that do not fit; `apart` they have positions of their own."""
        (heads, tokens), (shared, k_tokens) = q.shape[-3:-1], k.shape[-3:-1]
        where = f"in layout {self.layout!r}"
        if tokens != k_tokens and not apart:
            raise ValueError(f"q has {tokens} tokens, but k has {k_tokens}, {where}; expected the same, or k_positions")
        if shared == 0 or heads % shared:
            raise ValueError(f"q has {heads} heads and k has {shared}; expected a number that {shared} divides")
        if self._sets and self._sets != shared:
            raise ValueError(
                f"the Rope has {self._sets} sets of frequencies, but k has {shared} heads {where}; expected one set "
                "for each head of k, which the queries of its group share"
            )
        if self._bias_heads not in (None, shared):
            raise ValueError(f"heads is {self._bias_heads}, but k has {shared} heads {where}; expected the same")

    def _check_width(self, name: str, x: Tensor) -> None:
        """Refuse features that are not a head, nor the part of one that turns."""
        if self.start.polar:
            check_polar_width(x, self._blocks, name)
        elif x.shape[-1] != 2 * self._blocks:
            blocks.features(x, _XP, name)
            blocks.check_width(x, self._blocks, "the Rope", name)
            check_head_width(name, x.shape[-1], self.start, self.head_dim)

    def _fits(self, at: Any, q: Tensor) -> bool:
        """Return whether each token of each sequence has its position, so that what is turned is not enlarged."""
        if at.ndim not in (2, q.ndim) or at.shape[-1] != self.axes or at.shape[-2] != q.shape[-2]:
            return False
        return at.ndim == 2 or all([at.shape[axis] in (1, q.shape[axis]) for axis in range(q.ndim - 2)])

    def _are_integers(self, x: Any, device: Any) -> bool:
        """Return whether it is a tensor of integers on a device."""
        if type(x) is not torch.Tensor or x.device != device:
            return False
        return not (x.is_floating_point() or x.is_complex() or x.dtype == torch.bool)

    def _insert_heads(self, positions: Any) -> Any:
        """Positions ``(tokens, k)``, or ``(..., 1, tokens, k)`` where each sequence has its own."""
        return positions[..., None, :, :] if positions.ndim > 2 else positions

    def _repeat_for_heads(self, omega: Any, heads: int) -> Any:
        """Frequencies of a number of heads, which share those of the keys in groups."""
        if not self._sets or heads == self._sets:
            return omega
        omega, group = getattr(omega, "on_host", omega), heads // self._sets  # see turns.make_integer_turns
        return omega.repeat(group, 0) if isinstance(omega, np.ndarray) else omega.repeat_interleave(group, 0)

    # -- at once -------------------------------------------------------------------------------------------------------

    def turn_at_once(self, q: Tensor, k: Tensor, positions: Any, offset: Any) -> tuple[Tensor, Tensor] | None:
        """Rotate by the last launch, or small CPU tensors in one call, or leave them to the checks."""
        again = self._last_launch[0]
        if again is not None and type(offset) is int and (turned := again(q, k, positions, offset)) is not None:
            return turned
        if self._backend is None or not (isinstance(q, torch.Tensor) and isinstance(k, torch.Tensor)):
            return None
        recorded = _RECORDING and torch.is_grad_enabled() and (q.requires_grad or k.requires_grad)
        if recorded and self.start.polar:
            return None  # a softplus has gradients of its own
        x, y = (q.detach(), k.detach()) if recorded else (q, k)
        if not TORCH.are_plain_dense(x, y) or (at := self._read_quickly(q, positions, offset)) is None:
            return None
        turned = self._turn_small(x, y, at, False)
        if turned is None or not recorded:
            return turned
        return _RECORDING.record(turned, partial(self._turn_back, torch.from_numpy(at)), q, k)

    def _turn_small(self, q: Tensor, k: Tensor, at: np.ndarray, inverse: bool) -> tuple[Tensor, Tensor] | None:
        """Rotate small plain tensors; backwards, but with the same scale, if `inverse`."""
        again, (of_q, of_k) = self._backend.turned_again, self._last_calls[inverse]
        first, second = again(q, at, inverse, None, of_q[0]), again(k, at, inverse, None, of_k[0])
        if first is not None and second is not None:
            return first, second
        if not (self._belong(q, k) and self._fits(at, q)):
            return None
        turn = self._turn._replace(inverse=inverse, scale=1.0 / self._turn.scale if inverse else self._turn.scale)
        kind, both, found = "polar" if self.start.polar else "positions", ([None], [None]), []
        for x, last in zip((q, k), both, strict=True):
            omega = self._backend.Numbers.read(self._repeat_for_heads(self._host, x.shape[-3]))
            found.append(self._backend.turned_at_once(kind, x, at, omega, None, turn, None, last))
        if found[0] is None or found[1] is None:
            return None
        self._last_calls[inverse] = both
        return found[0], found[1]

    def _turn_back(self, at: Tensor, q: Tensor | None, k: Tensor | None) -> Any:
        """Gradients of queries and keys at some positions, from those of the results."""
        known = q is not None and k is not None and TORCH.are_plain_dense(q, k)
        if known and (turned := self._turn_small(q, k, at.numpy(), True)) is not None:
            return turned
        options = {"pairing": self._turn.pairing, "scale": 1.0 / self._turn.scale, "inverse": True}
        omega = self._moved("frequencies", at.device)
        given = ((x, omega if x is None else self._repeat_for_heads(omega, x.shape[-3])) for x in (q, k))
        return [None if x is None else rotate(x, at, w, **options) for x, w in given]

    def _read_quickly(self, x: Tensor, positions: Any, offset: Any) -> np.ndarray | None:
        """Positions as compiled loops read them, or None where they need a closer look.

        They are those of `_read` to the bit: float64 holds integers below 2**53, and their sums.
        """
        if type(offset) is not int or not -_WHOLE < offset < _WHOLE:
            return None
        if positions is None:
            end = offset + x.shape[-2]
            return np.arange(offset, end, dtype=np.float64)[:, None] if self.axes == 1 and end <= _WHOLE else None
        is_tensor = isinstance(positions, torch.Tensor) and positions.dtype in _SIGNED
        if not (is_tensor and TORCH.are_plain_dense(positions)):
            return None
        found = np.array(positions.numpy(), np.float64, order="C")
        if offset:
            if not np.vdot(found, found) < _WHOLE * _WHOLE:
                return None
            found += offset
        read: np.ndarray = self._insert_heads(angles.add_axis_dimension(found, self.axes))
        return read

    # -- in a graph ----------------------------------------------------------------------------------------------------

    def turn_in_graph(self, q: Tensor, k: Tensor, positions: Any, offset: Any) -> tuple[Tensor, Tensor] | None:
        """Rotate at integer positions, or return None for what needs all checks or is refused."""
        wide = q.dtype == torch.float64
        known = q.is_cpu or q.is_cuda or q.is_meta or (q.is_xpu and not wide)  # no graph for XPU has operators of ours
        if q.device != k.device or not known or q.is_sparse or not self._belong(q, k):
            return None
        if type(q).__name__ == "DTensor" or type(k).__name__ == "DTensor":
            return None  # no operator of ours says how it is sharded
        is_fused = not wide and (q.shape[-2] == 1 or q.is_xpu)  # by operators, which compilers fuse
        both = None if is_fused else self.turn_on_device(q, k, positions, offset)
        if both is not None:
            return both
        read = self._read_tensors(q, positions, offset)
        if read is None:
            return None
        at, counted = read
        if counted is not None:
            count = torch.arange(q.shape[-2], device=q.device)[:, None]
            count = count + counted if counted else count
            at = count if at is None else at + count
        if at is None or at.is_floating_point():
            return None
        at = at.long()
        if self.max_positions is not None and not wide:
            return self._turn_both_by_rows(q, k, *self._rows(at, q.device))
        if self.max_positions is None and is_fused:
            return self._turn_both_by_rows(q, k, *self._cos_sin_by_words(at))
        omega = self._moved("frequencies", q.device)
        of_queries = self._repeat_for_heads(omega, q.shape[-3])
        turned = rotated if _OPERATOR is None else _OPERATOR
        first, second = (
            turned(x, Angles(at, w, None, _XP), self._turn, None) for x, w in ((q, of_queries), (k, omega))
        )
        return first, second

    def _cos_sin_by_words(self, at: Tensor) -> tuple[Tensor, Tensor]:
        """Return `turns.cos_sin_float32`: by operators that compilers fuse, none in float64.

        Strided by hand they stay in memory, for all heads; else Inductor forms them for each (five kernels, not three).
        """
        words = self._moved("words", at.device)
        words, at = words[:, None] if self._sets else words, at[..., None, :]
        turned = ((at & LOWER) * words[..., 0] + (at >> NEAR) * words[..., 1]).sum(-1)
        cos, sin = self._sine(QUARTER - turned.abs()), self._sine(QUARTER - (turned - QUARTER).abs())
        if self._turn.scale != 1.0:
            cos, sin = cos * self._turn.scale, sin * self._turn.scale
        return cos.as_strided(cos.shape, cos.stride()), sin.as_strided(sin.shape, sin.stride())

    def _sine(self, units: Tensor) -> Tensor:
        """Sine of at most a quarter turn, to 1.2e-7, of whole numbers of units."""
        quarters = units.float() * (1.0 / QUARTER)
        square = quarters * quarters
        found = square * _SINE[-1]
        for term in _SINE[-2:0:-1]:
            found = square * (found + term)
        return quarters + quarters * (found + _SINE[0])

    # -- by rows of cos and sin ----------------------------------------------------------------------------------------

    def _rows(self, at: Tensor, device: Any) -> tuple[Tensor, Tensor]:
        """Cos and sin of positions, from tables."""
        at = at[..., 0]
        if torch.compiler.is_compiling() or torch.jit.is_tracing():  # ONNX counts what is below 0 from the end
            at = at.where(at >= 0, self.max_positions)
        rows = torch.nn.functional.embedding(at, self._moved("rows of positions", device))
        return rows[..., : self._blocks], rows[..., self._blocks :]

    def _turn_both_by_rows(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """Rotate by rows of cos and sin; key heads may have their own."""
        turned = self._turn_by_rows(k, cos, sin)
        if self._sets and (group := q.shape[-3] // k.shape[-3]) > 1:
            cos, sin = cos.repeat_interleave(group, -3), sin.repeat_interleave(group, -3)
        return self._turn_by_rows(q, cos, sin), turned

    def _turn_by_rows(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Turn features by rows of tables, in the precision of these."""
        width = blocks.width_of(self._turn.pairing) * cos.shape[-1]
        first, second = blocks.turn_blocks(x[..., :width].to(cos.dtype), cos, sin, self._turn, _XP)
        joined = blocks.join(first, second, self._turn.out_pairing, _XP).to(x.dtype)
        return joined if width == x.shape[-1] else torch.cat([joined, x[..., width:]], -1)

    # -- with all checks -----------------------------------------------------------------------------------------------

    def turn_checked(
        self, features: tuple[tuple[str, Tensor, bool], ...], positions: Any, offset: Any, k_positions: Any = None
    ) -> list[Tensor]:
        """Rotate queries and keys, or one of them, with all checks; each has a name, and says whether it is keys."""
        for name, x, _ in features:
            self._check(name, x)
        (_, first, are_keys), *others = features
        for _, k, _ in others:
            self._check_device("q", first, "k", k)
            self._check_layout(first, k, k_positions is not None)
        if not others and self._sets and first.shape[-3] % self._sets:
            raise ValueError(
                f"the Rope has {self._sets} sets of frequencies, but x has {first.shape[-3]} heads in layout "
                f"{self.layout!r}; expected a multiple of {self._sets}"
            )
        if are_keys and self._bias_heads not in (None, first.shape[-3]):
            raise ValueError(
                f"heads is {self._bias_heads}, but x has {first.shape[-3]} heads of keys; expected the same"
            )
        origin = "positions" if type(offset) is int else "positions and offset"  # a plain offset changes no shape
        at = self._read("positions", first, positions, offset)
        if k_positions is None:
            return self._turned(origin, at, *features)
        k_at = self._read("k_positions", features[1][1], k_positions, 0)
        return [*self._turned(origin, at, features[0]), *self._turned("k_positions", k_at, features[1])]

    def _check(self, name: str, x: Tensor) -> None:
        """Refuse anything but features, in layout bhtd, of the heads of this module."""
        if not isinstance(x, torch.Tensor):
            raise TypeError(
                f"{name} has type {type(x).__module__}.{type(x).__qualname__}; expected a tensor of PyTorch"
            )
        TORCH.check_dense(x, name)
        TORCH.check_distributed({name: x, "the Rope": self.start})
        blocks.features(x, _XP, name, None, self._turn.pairing)
        for learned in self._learned:
            self._check_device(name, x, learned, getattr(self, learned))
        if x.ndim < 3:
            raise ValueError(f"{name} has shape {tuple(x.shape)}; expected (..., {ORDERS[self.layout]}, d)")
        self._check_width(name, x)

    def _check_device(self, name: str, x: Tensor, other: str, beside: Tensor) -> None:
        """Refuse tensors of two devices: beside one that holds no values the operators would compute none."""
        if x.device != beside.device:
            raise ValueError(
                f"{name} is on device {x.device} but {other} is on {beside.device}; expected all arrays on one device"
            )

    def _read(self, name: str, x: Tensor, positions: Any, offset: Any) -> Tensor:
        """Return checked positions of the tokens of x after an offset; by default consecutive.

        They are ``(*P, k)`` in int64 or float64, with an axis for the heads where there are several sequences.
        """
        axes, plain = self.axes, type(offset) is int
        xp, device = array.shared({name: positions, "offset": offset}, x=x)
        if plain and not torch.compiler.is_compiling() and not -(2**63) <= offset < 2**63:
            raise ValueError(f"offset has {offset.bit_length()} bits; expected a whole number from -2**63 to 2**63 - 1")
        if positions is None:
            if axes > 1:
                raise ValueError(f"{name} is None; expected (..., tokens, {axes}): the Rope has {axes} axes")
            positions = torch.arange(x.shape[-2], device=device)
        positions = self._numbers(name, positions, xp, device)
        if axes > 1 and (positions.ndim < 2 or positions.shape[-1] != axes):
            raise ValueError(f"{name} has shape {tuple(positions.shape)}; expected (..., tokens, {axes})")
        positions = angles.add_axis_dimension(positions, axes)
        if not plain:
            offset = self._numbers("offset", offset, xp, device)
            angles.check_values("offset", offset, xp)
            offset = offset.reshape(-1, 1, 1) if offset.ndim else offset
        if not plain or offset:
            total = positions + offset
            if not total.is_floating_point() and array.has_host_values(total):
                wrapped = (positions ^ total) & (offset ^ total)  # negative where the sum overflowed
                if bool((wrapped < 0).any()):
                    raise ValueError(f"{name} and offset add up to more than 64 bits; expected -2**63 to 2**63 - 1")
            positions = total
        angles.check_values(name, positions, xp)
        return self._insert_heads(positions)

    def _numbers(self, name: str, value: Any, xp: ModuleType, device: Any) -> Tensor:
        """Integers or floats of a call, widened."""
        numbers = array.numbers(value, xp, name=name, device=device)
        found = self._widened(numbers, False)
        angles.warn_of_narrow_positions(numbers, self._constants["frequencies"], name)
        if numbers.dtype == torch.uint64 and array.has_host_values(found) and bool((found < 0).any()):
            raise ValueError(f"{name} holds integers above 2**63 - 1; expected smaller ones")
        return found

    def _turned(self, places: str, at: Tensor, *features: tuple[str, Tensor, bool]) -> list[Tensor]:
        """Turn features, each with its name and whether it is keys, at positions of a name."""
        _, first, _ = features[0]
        omega, turn, rows = self._omega(first.device), self._learned_turn(), None
        shift = None if self.phases is None else self._shift()
        if self.max_positions is not None:
            if at.is_floating_point():
                raise TypeError(f"{places} are floats; expected integers, as max_positions is given")
            last = self.max_positions - 1
            if array.has_host_values(at) and at.numel() and not 0 <= int(at.min()) <= int(at.max()) <= last:
                raise ValueError(f"{places} go from {int(at.min())} to {int(at.max())}; expected 0 to {last}")
            rows = None if first.dtype == torch.float64 else self._rows(at, first.device)
        by_operators = rows is None and self._runs_operators(first)
        tables: dict[bool, Any] = {}  # cos and sin in float32, for queries and keys that share positions
        found = []
        for name, x, are_keys in features:
            bias = shift if are_keys else None
            if not self._fits(at, x) or (bias is not None and bias.ndim > 1):  # refuse what would enlarge features
                shape = Angles(at, self._repeat_for_heads(omega, x.shape[-3]), bias, _XP).shape
                try:
                    blocks.check_turn(x, shape, self._turn, None, (name, places))
                except ValueError as error:
                    hint = "here features are (..., heads, tokens, d); layout='bthd' takes tokens before heads"
                    raise ValueError(f"{error}; {hint}") from None
            if rows is not None:
                found.append(self._turn_by_rows(x, *rows))
            elif by_operators:
                if (biased := bias is not None) not in tables:
                    cos, sin = turns.cos_sin_float32(Angles(at, omega, bias, _XP))
                    is_one = isinstance(turn.scale, float) and turn.scale == 1.0  # it may be learned
                    tables[biased] = (cos, sin) if is_one else (cos * turn.scale, sin * turn.scale)
                found.append(self._turn_by_tables(x, *tables[biased]))
            else:
                sets = self._repeat_for_heads(omega, x.shape[-3])
                found.append(rotated(x, Angles(at, sets, bias, _XP), turn, None))
        return found

    # -- by torch's own operators, each a launch -----------------------------------------------------------------------

    def _runs_operators(self, x: Tensor) -> bool:
        """Return whether only torch's operators can rotate the features, which must then be few; not in a graph."""
        no = torch.compiler.is_compiling() or self.start.polar or x.dtype == torch.float64
        if no or not dispatch.uses_integer_phases(x):
            return False
        return dispatch.backend_function(rotated, f"torch on {x.device.type}") is None

    def _turn_by_tables(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Turn features whose heads may share, in groups, sets of frequencies."""
        turn = TurnOptions(self._turn.pairing, self._turn.out_pairing)
        if not self._sets:
            return rotated_by_table(x, cos, sin, turn, None, _XP)
        grouped = x.unflatten(-3, (self._sets, x.shape[-3] // self._sets))
        return rotated_by_table(grouped, cos[..., None, :, :], sin[..., None, :, :], turn, None, _XP).flatten(-4, -3)
