"""Launches of the rotation kernel: what is given as it sees it, sizes of tiles, and arguments."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import torch
import triton

from rfrope._core.angles import Angles, token_axes
from rfrope._core.blocks import MAGNITUDES, TurnOptions, width_of

Tensor: TypeAlias = Any  # torch.Tensor, which the type checker does not see
Layout = tuple[tuple[int, ...], tuple[int, ...]]  # shape and strides
Side = tuple[Any, Any, Any]  # features, results, and in a gradient the features that were turned

_keys = torch._C._dispatch_keys
_LAYOUTS = {"half": 0, "interleaved": 1, MAGNITUDES: 2}
_MOST_BLOCKS = 1024  # of a head, which a program holds
_TILE = 1024  # blocks of a tile of tokens
_MOST_HEADS = 8  # of a program, for which phases are formed once (4: twice as often, in waves no fuller)
_ENOUGH_PROGRAMS = 1024  # to fill any device: from there on heads are grouped

# -- what is given -----------------------------------------------------------------------------------------------------


def padded(x: Tensor, ndim: int) -> Tensor:
    """Prepend axes up to ndim."""
    return x if x.ndim >= ndim else x[(None,) * (ndim - x.ndim)]


class Given(NamedTuple):
    """Tensors that say how features ``(batch, heads, tokens, d)`` turn: axes of one element stand for all."""

    positions: Tensor | None  # (batch, heads, tokens, k)
    # (batch, sets, D, k), or words (batch, sets, D, 2 k), or None: heads share each set in groups of neighbours.
    # Numbers of uint64 are the bits of float64, for float positions
    frequencies: Tensor | None
    # (batch, heads, tokens, D), or None: the shift belongs to keys, where there are any; without frequencies it
    # is the phases
    shift: Tensor | None
    scale: Tensor | None

    @classmethod
    def read(cls, angles: Angles | Tensor, scale: Any) -> Given:
        """Read what a generic function is given, with the axes of features in their order."""
        scale = padded(scale, 4) if isinstance(scale, torch.Tensor) else None
        if not isinstance(angles, Angles):
            return cls(None, None, padded(angles, 4), scale)
        frequencies = read_frequencies(angles)
        if token_axes(angles.positions):
            frequencies = frequencies[..., None, :, :]
        shift = None if angles.shift is None else padded(angles.shift, 4)
        return cls(padded(angles.positions, 4), padded(frequencies, 5), shift, scale)

    def ordered(self, shape: tuple[int, ...]) -> tuple[Given, tuple[int, int, int]] | None:
        """Return the same with other axes for batch, heads and tokens, and these: rows of heads share their phases.

        Or what is learned is each head's own. None where frequencies change with the tokens.
        """
        operands = [one for one in self if one is not None]
        moving = [any([one.shape[axis] != 1 for one in operands]) for axis in range(3)]
        learned = [one for one in self[1:] if one is not None and one.requires_grad]
        apart = [axis for axis in (1, 2, 0) if any([one.shape[axis] != 1 for one in learned])]
        still = [axis for axis in (1, 2, 0) if not moving[axis]]
        heads = (apart or [axis for axis in still if shape[axis] != 1] or still or [1])[0]
        batch, tokens = (axis for axis in range(3) if axis != heads)
        omega = self.frequencies
        if omega is not None and omega.shape[tokens] != 1:
            batch, tokens = tokens, batch
        if omega is not None and omega.shape[tokens] != 1:
            return None
        order = (batch, heads, tokens)
        positions, shift, scale = (
            None if one is None else one.permute(*order, 3) for one in (self.positions, self.shift, self.scale)
        )
        omega = None if omega is None else omega.permute(*order, 3, 4)[:, :, 0]
        return Given(positions, omega, shift, scale), order

    @property
    def blocks(self) -> int:
        """D."""
        widths = [one.shape[-1] for one in (self.shift, self.scale) if one is not None]
        widths += [] if self.frequencies is None else [self.frequencies.shape[-2]]
        return max(widths)

    @property
    def axes(self) -> int:
        """Number of axes of positions; 0 without frequencies."""
        omega = self.frequencies
        return 0 if omega is None else omega.shape[-1] // (2 if omega.dtype == torch.int64 else 1)

    def fit(self) -> bool:
        """Return whether the kernel takes them, and gives the gradients that they need."""
        if not 0 < self.blocks <= _MOST_BLOCKS or any([one is not None and one.ndim != 4 for one in self]):
            return False
        if not torch.is_grad_enabled():
            return True
        positions, omega, *others = self
        if positions is not None and positions.requires_grad:
            return False
        if omega is not None and omega.requires_grad and omega.shape[0] != 1:
            return False
        return all([one is None or not one.requires_grad or one.shape[0] == one.shape[2] == 1 for one in others])


class Options(NamedTuple):
    """Numbers and words of a launch."""

    factor: float  # multiplies cos and sin
    offset: int  # added to positions that are integers
    counted: bool  # whether tokens are counted, and positions added to that
    # of features and of results, as in `TurnOptions`
    layout: str
    out_layout: str
    # turn back; divide by the scale; features that are magnitudes, or those of a gradient, pass a softplus
    back: bool
    divided: bool
    softplus: bool

    @classmethod
    def read(cls, turn: TurnOptions, counted: int | None) -> Options:
        """Read those of a turn, whose tokens may be counted from a number."""
        factor = turn.scale if isinstance(turn.scale, float) else 1.0
        factor = 1.0 / factor if turn.inverse else factor
        counts = counted is not None
        pairings = turn.pairing, turn.out_pairing
        return cls(factor, counted or 0, counts, *pairings, turn.inverse, turn.inverse, turn.softplus)

    def undone(self) -> Options:
        """Those of the gradient."""
        return self._replace(layout=self.out_layout, out_layout=self.layout, back=not self.back)


def read_frequencies(angles: Angles) -> Tensor:
    """Frequencies ``(*H, D, k)``, or their words ``(*H, D, 2 k)`` (`turns.turn_words`) for positions that are integers.

    Words save the kernel most of what comes before its loop. For floats they are the bits of numbers in float64 where
    the device has none (see `turns.make_integer_turns`).
    """
    omega = angles.frequencies
    are_floats = angles.positions is not None and angles.positions.is_floating_point()
    prepared = None if omega.requires_grad else getattr(omega, "float64_bits" if are_floats else "turn_words", None)
    if prepared is None:
        return omega
    return prepared if are_floats else prepared.flatten(-2)


# -- launches ----------------------------------------------------------------------------------------------------------


class LaunchPlan(NamedTuple):
    """All of a launch but tensors, the offset and the factor.

    Attributes
    ----------
    grid : tuple of int
    numbers : tuple of int
        Strides and counts, in the order of the kernel's arguments.
    constants : dict
        In their order, too.
    sums : tuple of int
        Shape of the sums for gradients, or empty.
    """

    grid: tuple[Any]
    numbers: tuple[Any, ...]
    constants: dict[str, Any]
    sums: tuple[Any, ...]


class Shares(NamedTuple):
    """Heads of one side of a launch: all, those of a program, and those that share a set of frequencies."""

    heads: Any
    each: int
    group: Any

    @classmethod
    def divide(cls, heads: Any, sets: Any, apart: bool, tiles: Any) -> Shares:
        """Find them; a program's heads have one set, and one head where other operands keep them apart."""
        group = heads // sets
        each = 1 if apart else _MOST_HEADS
        while each > 1 and (group % each if sets != 1 else each >= 2 * group):
            each //= 2
        while type(tiles) is int and each > 2 and tiles * -(-heads // each) < _ENOUGH_PROGRAMS:
            each //= 2
        return cls(heads, each, group)

    @property
    def parts(self) -> int:
        """Programs for each set and tile."""
        return -(-self.group // self.each)


def plan(
    layouts: tuple[Layout | None, ...],
    axes: int,
    blocks: int,
    kinds: tuple[Any, ...],
    wanted: tuple[bool, ...],
    in_place: bool,
) -> LaunchPlan:
    """Return what a launch is made with, from layouts and options alone.

    Parameters
    ----------
    layouts : tuple
        Shapes and strides of features, results and features of gradients, each of queries and keys, and of `Given`.
    axes, blocks : int
    kinds : tuple
        `Options` without the factor and the offset.
    wanted, in_place
        As in `launch`.
    """
    counted, layout, out_layout, back, divided, softplus = kinds
    of_x, of_keys, *_, of_positions, of_omega, of_shift, of_scale = layouts
    (batches, heads, tokens, width), _ = of_x  # type: ignore[misc]
    whole = triton.next_power_of_2(blocks)
    rows = _TILE // whole
    if type(tokens) is int:  # and not one of a graph for any length
        rows = min(rows, triton.next_power_of_2(tokens))
    tiles, sets = triton.cdiv(tokens, rows), 1 if of_omega is None else of_omega[0][1]
    apart = [one is not None and one[0][1] != 1 for one in (of_positions, of_scale, of_shift)]
    of_q = Shares.divide(heads, sets, any(apart[:2]) or (of_keys is None and apart[2]), tiles * batches)
    of_k = None if of_keys is None else Shares.divide(of_keys[0][1], sets, any(apart), tiles * batches)
    sides = [of_q] if of_k is None else [of_q, of_k]
    slots = (axes if wanted[0] else 0) + int(wanted[1]) + int(wanted[2])  # a symbol takes no bool in older PyTorch
    chunks = sum([triton.cdiv(side.heads, side.each) for side in sides])
    shares = [value for pair in zip(of_q, of_k or (0, 1, 1), strict=True) for value in pair]
    steps = [0 if one is None or one[0][axis] == 1 else one[1][axis] for one in layouts for axis in range(4)]
    constants = {
        "D": blocks, "AXES": axes, "COUNTED": counted, "BACK": back, "DIVIDED": divided,
        "LAYOUT": _LAYOUTS[layout], "OUT": _LAYOUTS[out_layout], "SOFTPLUS": softplus,
        "COPIED": 0 if in_place else int(width) - width_of(layout) * blocks,
        "SUMS": sum(wants << place for place, wants in enumerate(wanted)), "TOKENS": rows,
        "HEADS": max(1, min(max([side.each for side in sides]), _TILE // (rows * whole))),
    }  # fmt: skip
    sums = (sets, sum([side.parts for side in sides]), batches * tiles, slots, blocks) if slots else ()
    return LaunchPlan((tiles * chunks * batches,), (*steps, tokens, batches, *shares), constants, sums)


_keep_plan = lru_cache(maxsize=512)(plan)


def launch(
    kernel: Any,
    q: Side,
    k: Side | None,
    given: Given,
    options: Options,
    wanted: tuple[bool, ...] = (False,) * 3,
    last: list[Repeat] | None = None,
) -> Tensor | None:
    """Queue the kernel for queries, and keys of their width, or one of these; add to `last` what repeats the launch.

    Returns
    -------
    tensor of float32, or None
        Sums for the gradients that are wanted, of frequencies, shift and scale: by sets, parts, sequences with their
        tiles, slots (one for each axis of frequencies, then the others) and blocks.
    """
    x, y, z = q
    if 0 in y.shape:
        return None
    k_x, k_y, k_z = k or (None, None, None)
    layouts = tuple([None if one is None else (one.shape, one.stride()) for one in (x, k_x, y, k_y, z, k_z, *given)])
    make = _keep_plan if type(x) is torch.Tensor else plan  # sizes of a graph may be unknown
    made = make(layouts, given.axes, given.blocks, options[2:], wanted, x is y)
    sums = x.new_empty(made.sums, dtype=torch.float32) if made.sums else None
    fixed = (*given[1:], sums, *made.numbers)
    with _current(x):
        compiled = kernel[made.grid](
            x, y, z, k_x, k_y, k_z, given.positions, *fixed, options.offset, options.factor, **made.constants
        )
    if last is not None and hasattr(compiled, "packed_metadata"):  # neither interpreted nor recorded
        last.append(Repeat(compiled[(*made.grid, 1, 1)], fixed, (options.factor, *made.constants.values())))
    return sums


class Repeat:
    """A launch for queries and keys, to be repeated for others that lie in memory as they did.

    Triton reads no argument and looks up no kernel again; it takes the current stream, and calls its hooks.
    """

    def __init__(self, run: Any, fixed: tuple[Any, ...], tail: tuple[Any, ...]) -> None:
        self._run, self._fixed, self._tail = run, fixed, tail  # arguments before the offset, and after it

    def bind(self, tensors: tuple[Tensor, Tensor, Tensor | None], both: Sequence[Tensor]) -> Repeat | None:
        """Return itself, for queries, keys and positions and what they gave.

        None where 16 does not divide an address: Triton makes a faster kernel for those that it divides.
        """
        if any([one is not None and one.data_ptr() % 16 for one in tensors]):
            return None
        self._current_device = getattr(torch, tensors[0].device.type).current_device
        self._widths = [one.shape[-1] for one in both]
        self._layouts = [
            None if x is None else (_keys(x).raw_repr(), x.dtype, x.get_device(), x.shape, x.stride()) for x in tensors
        ]
        return self

    def __call__(self, q: Tensor, k: Tensor, positions: Tensor | None, offset: int) -> tuple[Tensor, Tensor] | None:
        """Return results in new memory, or None where something has changed or sees operators."""
        if not (abs(offset) < 2**31 if positions is None else offset == 0):
            return None
        current = self._current_device()
        if not all(map(_lies_like, (q, k, positions), self._layouts, (current,) * 3)) or _sees_operators():
            return None
        y, z = room(q, self._widths[0]), room(k, self._widths[1])
        self._run(q, y, None, k, z, None, positions, *self._fixed, offset, *self._tail)
        return y, z


_PLAIN = (torch.Tensor, torch.nn.Parameter)  # other classes may watch what is done to them


def _lies_like(x: Any, layout: Any, current: Any) -> bool:
    """Return whether it is a tensor of a layout, on the current device and without a gradient, or None twice.

    The keys of its operators say the kind of device, and whether it is strided, negated or mapped.
    """
    if x is None or layout is None:
        return x is layout
    keys, dtype, device, shape, strides = layout
    if type(x) not in _PLAIN or _keys(x).raw_repr() != keys or x.dtype is not dtype:
        return False
    if not x.get_device() == device == current or x.shape != shape or x.stride() != strides or x.data_ptr() % 16:
        return False
    return not (x.requires_grad and torch.is_grad_enabled())


def _sees_operators() -> bool:
    """Return whether a mode, a tracer or forward mode would miss what is launched past operators."""
    if torch._C._len_torch_dispatch_stack() or torch._C._get_tracing_state() is not None:
        return True
    return bool(torch.autograd.forward_ad._current_level >= 0)


def room(x: Tensor, width: int) -> Tensor:
    """Memory for features of some width, in the order of others."""
    return torch.empty_like(x) if width == x.shape[-1] else x.new_empty((*x.shape[:-1], width))


def _current(x: Tensor) -> Any:
    """Return a context in which the device of a tensor is the one where kernels are launched."""
    if x.device.type not in ("cuda", "xpu") or type(x) not in (torch.Tensor, torch.nn.Parameter):
        return nullcontext()
    return getattr(torch, x.device.type).device(x.device)
