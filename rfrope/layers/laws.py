"""Frequencies of a learned kernel in PyTorch: made on the host once for equal parameters, with their derivatives."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import torch

from rfrope._core import array
from rfrope._core.libraries import TORCH
from rfrope.designs.learning import LearnedKernel
from rfrope.kernels import parse

Tensor: TypeAlias = Any  # torch.Tensor, which the type checker does not see

_XP = array.named_namespace(torch)
_LIBRARY = torch.library.Library("rfrope", "FRAGMENT")


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
        What the last call said to remember.
    """
    flat = torch.cat([value.reshape(*law.points.shape[:-2], -1) for value in values], -1)
    if not TORCH.are_plain_dense() or type(flat) is not torch.Tensor:  # mapped over, or with tangents
        return last, law.frequencies(_parted(law, flat))
    key = flat.detach().cpu().numpy().tobytes() if key is None else key
    if last[0] != key:
        with torch.inference_mode(False):
            made = [one.to(flat.device, flat.dtype) for one in _tabulate(law, flat.detach().cpu().double())]
        last = key, made
    omega, slopes = last[1]
    recorded = torch.is_grad_enabled() and flat.requires_grad
    return last, _Moved.apply(flat, law, omega, slopes) if recorded else omega


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
            omega = ctx.law.frequencies(_parted(ctx.law, flat))
            return *torch.autograd.grad(omega, flat, gradient, create_graph=True), None, None, None
        found = gradient.reshape(ctx.slopes.shape[:-1])[..., None] * ctx.slopes
        return found.sum((-3, -2)), None, None, None


def _parted(law: LearnedKernel, flat: Tensor) -> dict[str, Tensor]:
    """Return the parameters of a row ``(*H, P)`` of numbers for each set, or of each point ``(*H, D, P)``."""
    more = law.points.ndim - 2  # axes of heads
    entries = {name: value.shape[more:] for name, value in law.parameters.items()}
    parts = flat.split([math.prod(entry) for entry in entries.values()], -1)
    return {
        name: part.reshape((*flat.shape[:-1], *entry))
        for part, (name, entry) in zip(parts, entries.items(), strict=True)
    }


def _tabulate(law: LearnedKernel, flat: Tensor) -> tuple[Tensor, Tensor]:
    """Return frequencies in their shape, and their derivatives ``(*H, D, k, P)``, of numbers on the host."""
    count = law.points.shape[-2]
    with torch.enable_grad():
        own = flat[..., None, :].repeat(*[1] * (flat.ndim - 1), count, 1).requires_grad_()  # of each point its own
        omega = law.move(_parted(law, own), _XP)
        columns = omega.reshape(*law.points.shape[:-1], -1).unbind(-1)
        slopes = [torch.autograd.grad(column.sum(), own, retain_graph=len(columns) > 1)[0] for column in columns]
    return omega.detach(), torch.stack(slopes, -2)


@lru_cache(maxsize=256)
def _tabulate_bytes(text: str, shape: tuple[int, ...], flat: bytes, points: bytes, sizes: Any) -> tuple[Tensor, Tensor]:
    """Return the same of the bytes of float64 numbers, of the sizes of both arrays: decoding asks for one at a time."""
    values, held = (np.frombuffer(one).reshape(size) for one, size in zip((flat, points), sizes, strict=True))
    law = LearnedKernel.make(parse(text), held, shape)
    with ThreadPoolExecutor(1) as another:  # in an operator's own thread no gradients are recorded
        return another.submit(_tabulate, law, torch.from_numpy(values.copy())).result()


def _run(flat: Tensor, points: Tensor, text: str, shape: list[int]) -> tuple[Tensor, Tensor]:
    host = [one.detach().cpu().double().numpy() for one in (flat, points)]
    sizes = tuple(one.shape for one in host)
    omega, slopes = _tabulate_bytes(text, tuple(shape), host[0].tobytes(), host[1].tobytes(), sizes)
    return omega.to(flat.device, flat.dtype, copy=True), slopes.to(flat.device, flat.dtype, copy=True)


def _fake(flat: Tensor, points: Tensor, text: str, shape: list[int]) -> tuple[Tensor, Tensor]:
    axes = 1 if len(shape) == 1 else shape[-1]
    return flat.new_empty(shape), flat.new_empty((*points.shape[:-1], axes, flat.shape[-1]))


_LIBRARY.define(
    "move_kernel(Tensor flat, Tensor points, str text, SymInt[] shape) -> (Tensor, Tensor)",
    tags=(torch.Tag.pt2_compliant_tag,),
)
_LIBRARY.impl("move_kernel", _run, "CompositeExplicitAutograd")
torch.library.register_fake("rfrope::move_kernel", _fake, lib=_LIBRARY)
