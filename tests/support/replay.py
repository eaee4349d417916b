"""What a call asks of torch, operator by operator; and a CUDA graph without a device, that runs all of it again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from rfrope._backends.torch.rotation import FUNCTIONS

RECORDINGS: list[Recording] = []  # those at work


class Watching(TorchDispatchMode):
    """Sees each operator that torch runs: those of rfrope, and those made of others, as what they are made of.

    Parameters
    ----------
    inside : function
        Gives of an operator of rfrope the function that it runs.
    """

    def __init__(self, inside: Callable[[Any], Callable[..., Any]] = FUNCTIONS.get) -> None:
        super().__init__()
        self.inside = inside

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function.namespace == "rfrope":
            with self:
                return self.run_inside(function, args, kwargs)
        if torch._C._dispatch_has_kernel_for_dispatch_key(function.name(), "CompositeImplicitAutograd"):
            with self:  # as `reshape`, which is seen below what records, or `to`, a view or a copy
                return function.decompose(*args, **kwargs)
        result = function(*args, **kwargs)
        self.note(function, args, kwargs, result)
        return result

    def run_inside(self, function: Any, args: Any, kwargs: Any) -> Any:
        """Run what an operator of rfrope is made of."""
        return self.inside(function)(*args, **kwargs)

    def note(self, function: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Take notice of an operator."""


class Recording(Watching):
    """Notes operators and launches with their operands, as a graph does, and none of the Python between them."""

    def __init__(self, inside: Callable[[Any], Callable[..., Any]]) -> None:
        super().__init__(inside)
        self.steps: list[Callable[[], None]] = []

    def __enter__(self) -> Any:
        RECORDINGS.append(self)
        return super().__enter__()

    def __exit__(self, *problem: Any) -> None:
        RECORDINGS.remove(self)
        super().__exit__(*problem)

    def note(self, function: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Keep an operator that is no view."""
        if not function.is_view:
            self.steps.append(lambda: _run_again(function, args, kwargs, result))

    def launch(self, kernel: Callable[[], None]) -> None:
        """Launch, now and whenever the recording is replayed."""
        self.steps.append(kernel)
        with _disable_current_modes():
            kernel()

    def replay(self) -> None:
        """Run all that was noted again: results are where they were."""
        with torch.no_grad():
            for step in self.steps:
                step()


def _run_again(function: Any, args: Any, kwargs: Any, result: Any) -> None:
    """Run an operator, and write what it gives to where its first results are."""
    again = function(*args, **kwargs)
    for old, new in zip(tree_leaves(result), tree_leaves(again), strict=True):
        if isinstance(old, torch.Tensor) and old.data_ptr() != new.data_ptr():
            old.copy_(new)


def check_replay(
    call: Callable[..., Any], inputs: list[Any], changes: list[Callable[[Any], Any]], inside: Callable[[Any], Any]
) -> Any:
    """Record a call after one, change its inputs where they are, replay, and assert that results are those of a call.

    On a CUDA device the recording is one of CUDA's graphs.

    Parameters
    ----------
    call : function
        Tensors of inputs to a list of tensors.
    inputs, changes
        Of each tensor what it becomes.
    inside
        As of `Recording`.
    """
    before = [one.detach().clone() for one in call(*inputs)]
    recording = torch.cuda.CUDAGraph() if inputs[0].is_cuda else Recording(inside)
    with torch.cuda.graph(recording) if inputs[0].is_cuda else recording:
        results = call(*inputs)
    with torch.no_grad():
        for one, change in zip(inputs, changes, strict=True):
            one.copy_(change(one))
    recording.replay()
    expected = call(*inputs)
    for one, old, wanted in zip(results, before, expected, strict=True):
        assert not torch.equal(old, wanted.detach())
        assert torch.equal(one.detach(), wanted.detach())
    return recording


def trained(module: Any, learner: Any = None) -> Callable[..., list[Any]]:
    """Return a call that turns queries and keys, and gives gradients of them and of what is learned."""

    def call(q: Any, k: Any, *given: Any) -> list[Any]:
        turned = module(q, k, *given)
        along = [(0.3 * one.detach()).cos() for one in turned]
        return [*turned, *torch.autograd.grad(turned, [q, k, *(learner or module).parameters()], along)]

    return call
