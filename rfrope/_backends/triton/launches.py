"""Launches of the rotation kernel: what is given as it sees it, sizes of tiles, and arguments."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
import triton

from rfrope._core.angles import Angles, token_axes
from rfrope._core.blocks import MAGNITUDES, TurnOptions, width_of

Tensor: TypeAlias = Any  # torch.Tensor, which the type checker does not see
Steps = tuple[Any, ...]  # strides of batch, heads, tokens, and of what a row holds
Side = tuple[Any, Any, Any]  # features, results, and in a gradient the features that were turned

_LAYOUTS = {"half": 0, "interleaved": 1, MAGNITUDES: 2}
_MOST_BLOCKS = 1024  # of a head, which a program holds
_TILE = 1024  # blocks of a tile of tokens
_MOST_HEADS = 8  # of a program, for which phases are formed once
_ENOUGH_PROGRAMS = 1024  # to fill any device: from there on heads are grouped

# -- what is given -----------------------------------------------------------------------------------------------------


def padded(x: Tensor, ndim: int) -> Tensor:
    """A view with so many axes."""
    return x if x.ndim >= ndim else x[(None,) * (ndim - x.ndim)]


class Given(NamedTuple):
    """Tensors that say how features ``(batch, heads, tokens, d)`` turn: axes of one element stand for all.

    Attributes
    ----------
    positions : tensor (batch, heads, tokens, k), or None
    frequencies : tensor (batch, sets, D, k), or words (batch, sets, D, 2 k), or None
        Heads share each set in groups of neighbours.
    shift, scale : tensors (batch, heads, tokens, D), or None
        The shift belongs to keys, where there are any; without frequencies it is the phases.
    """

    positions: Tensor | None
    frequencies: Tensor | None
    shift: Tensor | None
    scale: Tensor | None

    @classmethod
    def read(cls, x: Tensor, angles: Angles | Tensor, scale: Any) -> Given:
        """Read what a generic function is given, with the axes of features in their order."""
        scale = padded(scale, 4) if isinstance(scale, torch.Tensor) else None
        if not isinstance(angles, Angles):
            return cls(None, None, padded(angles, 4), scale)
        frequencies = read_frequencies(angles, x)
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
        return 0 if omega is None else omega.shape[-1] // (1 if omega.is_floating_point() else 2)

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
    """Numbers and words of a launch.

    Attributes
    ----------
    factor : float
        Multiplies cos and sin.
    offset : int
        Added to positions that are integers.
    counted : bool
        Whether tokens are counted, and positions added to that.
    layout, out_layout : str
        Of features and of results, as in `TurnOptions`.
    back, divided, softplus : bool
        Turn back; divide by the scale; features that are magnitudes, or those of a gradient, pass a softplus.
    """

    factor: float
    offset: int
    counted: bool
    layout: str
    out_layout: str
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


def read_frequencies(angles: Angles, like: Tensor) -> Tensor:
    """Frequencies ``(*H, D, k)``, or their words ``(*H, D, 2 k)`` (`turns.turn_words`) for positions that are integers.

    Words save the kernel most of what comes before its loop. Frequencies of NumPy, which are so where the device has no
    float64, are copied there as they are: the kernel reads their bits.
    """
    omega = angles.frequencies
    if angles.positions is None or not angles.positions.is_floating_point():
        words = getattr(omega, "turn_words", None)
        if words is not None and not omega.requires_grad:
            return words.flatten(-2)
    return omega if isinstance(omega, torch.Tensor) else torch.from_numpy(omega.astype(np.float64)).to(like.device)


# -- launches ----------------------------------------------------------------------------------------------------------


def _steps(x: Tensor | None) -> Steps:
    """Strides of a tensor of four axes, 0 where one element stands for all."""
    return (0,) * 4 if x is None else tuple([0 if x.shape[axis] == 1 else x.stride(axis) for axis in range(4)])


class Shares(NamedTuple):
    """Heads of one side of a launch: all, those of a program, and those that share a set of frequencies."""

    heads: int
    each: int
    group: int

    @classmethod
    def divide(cls, heads: int, given: Given, keys_of_two: bool, two: bool, tiles: Any) -> Shares:
        """Find them; a program's heads have one set, and phases that no other operand makes apart."""
        positions, omega, shift, scale = given
        group = heads if omega is None else heads // omega.shape[1]
        apart = [positions, scale, shift if keys_of_two or not two else None]
        if any([one is not None and one.shape[1] != 1 for one in apart]):
            return cls(heads, 1, group)
        each = _MOST_HEADS
        while each > 1 and (group % each if group != heads else each >= 2 * group):
            each //= 2
        while type(tiles) is int and each > 2 and tiles * -(-heads // each) < _ENOUGH_PROGRAMS:
            each //= 2
        return cls(heads, each, group)

    @property
    def parts(self) -> int:
        """Programs for each set and tile."""
        return -(-self.group // self.each)


def launch(
    kernel: Any, q: Side, k: Side | None, given: Given, options: Options, wanted: tuple[bool, ...] = (False,) * 3
) -> Tensor | None:
    """Queue the kernel for queries, and keys of their width, or one of these.

    Returns
    -------
    tensor of float32, or None
        Sums for the gradients that are wanted, of frequencies, shift and scale: by sets, parts, sequences with their
        tiles, slots (one for each axis of frequencies, then the others) and blocks.
    """
    x, y, _ = q
    batches, heads, tokens, _ = x.shape
    if 0 in y.shape:
        return None
    blocks, axes = given.blocks, given.axes
    whole = triton.next_power_of_2(blocks)
    rows = _TILE // whole
    if type(tokens) is int:  # and not one of a graph for any length
        rows = min(rows, triton.next_power_of_2(tokens))
    tiles = triton.cdiv(tokens, rows)
    of_q = Shares.divide(heads, given, False, k is not None, tiles * batches)
    of_k = Shares(0, 1, 1) if k is None else Shares.divide(k[0].shape[1], given, True, True, tiles * batches)
    sides = (*q, *(k or (None, None, None)))
    sums, bits = None, sum(wants << place for place, wants in enumerate(wanted))
    if bits:
        sets = 1 if given.frequencies is None else given.frequencies.shape[1]
        parts = of_q.parts + (0 if k is None else of_k.parts)
        slots = axes * wanted[0] + wanted[1] + wanted[2]
        sums = x.new_empty((sets, parts, batches * tiles, slots, blocks), dtype=torch.float32)
    chunks = triton.cdiv(heads, of_q.each) + (0 if k is None else triton.cdiv(of_k.heads, of_k.each))
    steps = [_steps(one) for one in (sides[0], sides[3], sides[1], sides[4], sides[2], sides[5], *given)]
    numbers = [step for operand in steps for step in operand]
    shares = [value for pair in zip(of_q, of_k, strict=True) for value in pair]
    copied = 0 if x is y else int(x.shape[-1]) - width_of(options.layout) * blocks
    most = max(1, min(of_q.each if k is None else max(of_q.each, of_k.each), 2 * _TILE // (rows * whole)))
    with _current(x):
        kernel[(tiles * chunks * batches,)](
            *sides, *given, sums, *numbers, tokens, batches, *shares, options.offset, options.factor,
            D=blocks, AXES=axes, COUNTED=options.counted, BACK=options.back, DIVIDED=options.divided,
            LAYOUT=_LAYOUTS[options.layout], OUT=_LAYOUTS[options.out_layout], SOFTPLUS=options.softplus,
            COPIED=copied, SUMS=bits, TOKENS=rows, HEADS=most,
        )  # fmt: skip
    return sums


def _current(x: Tensor) -> Any:
    """Return a context in which the device of a tensor is the one where kernels are launched."""
    if x.device.type not in ("cuda", "xpu") or type(x) is not torch.Tensor:
        return nullcontext()
    return getattr(torch, x.device.type).device(x.device)
