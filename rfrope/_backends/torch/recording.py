"""Small dense tensors of the CPU with gradients: turned as quickly as others, as one node of PyTorch's graph.

The way of an operator of ours through PyTorch's dispatcher, forwards and back, and all checks cost more than such
a turn itself: so the job of ``python -m benchmarks.torch_layers --only "fits a cache"`` was slower than the usual
formula. What is compiled, traced, mapped over or in forward mode is left to the operators, and so is whatever needs
all checks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch

from rfrope._core.arguments import LARGEST_SCALE

Tensor: TypeAlias = Any  # torch.Tensor, which the type checker does not see


class _Recorded(torch.autograd.Function):
    """Features that are turned already; their gradients are made by a function of those of the result."""

    @staticmethod
    def forward(ctx: Any, made: Sequence[Tensor], back: Callable[..., Sequence[Tensor]], *features: Tensor) -> Any:
        ctx.back = back
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*[one for one, x in zip(made, features, strict=True) if not x.requires_grad])
        return tuple(made)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        laid = [None if one is None else side_by_side(one) for one in gradients]
        return None, None, *(laid if all(one is None for one in laid) else ctx.back(*laid))


def record(made: Sequence[Tensor], back: Callable[..., Sequence[Tensor]], *features: Tensor) -> tuple[Tensor, ...]:
    """Return tensors that were made of features, one of each, with a gradient for these.

    `back` takes the gradients of all that was made, None for what nobody used, and returns those of all features, by
    functions that have gradients themselves. It holds nothing that its user may write to.
    """
    found: tuple[Tensor, ...] = _Recorded.apply(made, back, *features)
    return found


def rotated(
    at_once: Callable[..., Any], rotate: Callable[..., Any], x: Tensor, positions: Any, frequencies: Any, turn: Any
) -> Tensor | None:
    """Return features turned by the flat pass of the CPU, with gradients by `rotate`, or None for a closer look."""
    pairing, out_pairing, scale, inverse, _ = turn
    turned = at_once("positions", x.detach(), positions, frequencies, None, turn, None)
    if turned is None or not 1.0 / scale <= LARGEST_SCALE:
        return None
    places, omega = _kept(positions), _kept(frequencies)

    def back(gradient: Tensor) -> tuple[Tensor]:
        options = {"pairing": out_pairing, "out_pairing": pairing, "scale": 1.0 / scale, "inverse": not inverse}
        return (rotate(gradient, places, omega, **options),)

    return record((turned,), back, x)[0]


def side_by_side(gradient: Tensor) -> Tensor:
    """Return a gradient whose features follow each other: that of keys of masked attention comes transposed.

    To lay it out and to turn it takes 0.4 ms where to turn what lies apart takes 0.9 ms; with polar keys and learned
    phases 1.6 ms in the place of 4.4 (16 x 2 x 128 x 32 in float32, one thread; "transposed" in the job "backward
    alone" of ``python -m benchmarks.torch_layers`` is a large one).
    """
    step = gradient.stride(-1)  # of a size that a graph does not know it may be a symbol
    return gradient.contiguous() if gradient.is_cpu and isinstance(step, int) and step != 1 else gradient


def _kept(value: Any) -> Any:
    """Return numbers that a user may write to before the gradients are asked for, as they are now."""
    if isinstance(value, np.ndarray):
        return value.copy()
    return value.clone() if isinstance(value, torch.Tensor) else value
