"""Questions that only torch answers, which is not imported to find out: gradients, traces, compilation."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

Array = Any


_FOUND = ModuleType("found")  # the compiler reads an attribute of a module when it meets it


def imported(name: str) -> Any:
    """Return a module that something has imported already, else None."""
    _look_up(name)
    return getattr(_FOUND, name)


def _torch() -> Any:
    """Return torch if something has imported it: once found it is not looked for again."""
    found = getattr(_FOUND, "torch", None)
    return imported("torch") if found is None else found


def namespace() -> Any:
    """Return the namespace of tensors."""
    _load_namespace()
    return _FOUND.namespace


def _look_up(name: str) -> None:
    setattr(_FOUND, name, sys.modules.get(name))


def _load_namespace() -> None:
    _FOUND.namespace = importlib.import_module("array_api_compat.torch")  # type: ignore[attr-defined]


# what torch.compiler.assume_constant_result sets: the compiler runs these, and does not itself go through all modules
# of the process, which may become more in the meantime, nor look at them again in every call
_look_up._dynamo_marked_constant = True  # type: ignore[attr-defined]
_load_namespace._dynamo_marked_constant = True  # type: ignore[attr-defined]


def is_torch(x: Array) -> bool:
    """Return whether `x` is a tensor of torch, which is not imported to find out."""
    torch = getattr(_FOUND, "torch", None)
    torch = imported("torch") if torch is None else torch
    return torch is not None and isinstance(x, torch.Tensor)


def check_dense(x: Array, name: str) -> None:
    """Refuse a tensor of torch that holds some of its elements only, or tensors of several lengths."""
    if x.is_nested:
        raise TypeError(f"{name} is a nested tensor; expected a dense one: pad its parts, or pass each of them")
    if x.layout is not _torch().strided:
        raise TypeError(f"{name} is a tensor of layout {x.layout}; expected a dense one: pass {name}.to_dense()")


def is_compiling() -> bool:
    """Return whether PyTorch's compiler is tracing this call."""
    torch = getattr(_FOUND, "torch", None)
    torch = imported("torch") if torch is None else torch
    return torch is not None and bool(torch.compiler.is_compiling())


def constant(value: Any, device: Any) -> Array:
    """Return numbers of any form as a tensor, without a loss, inside a graph that is being compiled."""
    torch = _torch()
    if isinstance(value, torch.Tensor):
        return value
    value = list(value) if isinstance(value, list | tuple | range) else value
    if _holds_float(value):  # for which torch would take float32
        return torch.tensor(value, dtype=torch.float64, device=device)
    return torch.as_tensor(value, device=device)


def _holds_float(values: Any) -> bool:
    if isinstance(values, list | tuple):
        return any([_holds_float(value) for value in values])
    return isinstance(values, float)


def has_values(x: Array, device_type: str) -> bool:
    """Return whether a torch tensor is on such a device and holds values: it is not compiled or mapped over."""
    torch = _torch()
    if torch.compiler.is_compiling() or not (x.is_cpu if device_type == "cpu" else x.device.type == device_type):
        return False
    if type(x) is not torch.Tensor and type(x) is not torch.nn.Parameter:
        return False  # a fake tensor, as in tracing, has no values
    # there is no public way to ask whether vmap is at work
    return not torch._C._functorch.is_functorch_wrapped_tensor(x)


def needs_gradient(*arrays: Array) -> bool:
    """Return whether one of some arrays is a torch tensor whose operations are being recorded for gradients."""
    asked = any(getattr(x, "requires_grad", False) for x in arrays)
    return asked and bool(_torch().is_grad_enabled())


def is_recorded(x: Array) -> bool:
    """Return whether operators of our own may take `x`: a torch tensor on a device that they know, not in forward mode.

    What functional transforms wrap, and traces of TorchScript, are left to torch's own operators, unless a compiler
    is at work: it takes the wraps off.
    """
    if not is_torch(x) or x.device.type not in ("cpu", "cuda", "meta"):
        return False
    torch = _torch()
    fake = (torch._subclasses.FakeTensor, torch._subclasses.functional_tensor.FunctionalTensor)
    if type(x) not in (torch.Tensor, torch.nn.Parameter, *fake):
        return False
    if torch.compiler.is_compiling():
        return True
    if x.layout is not torch.strided or torch.jit.is_tracing() or torch._C._functorch.is_functorch_wrapped_tensor(x):
        return False
    return torch.autograd.forward_ad.unpack_dual(x).tangent is None


def are_memory(*tensors: Array) -> bool:
    """Return whether tensors of strided layout are no more than memory of the CPU, asked as quickly as that can be."""
    torch = _torch()
    if torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None:
        return False
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return False
    recording = torch.is_grad_enabled()
    for x in tensors:
        if type(x) is not torch.Tensor and type(x) is not torch.nn.Parameter:
            return False
        if not x.is_cpu or x.is_nested or (recording and x.requires_grad) or x.is_neg():
            return False
        if x.layout is not torch.strided:
            return False
    return bool(getattr(torch.autograd.forward_ad, "_current_level", 0) < 0)  # no tangents anywhere


def empty_like(x: Array) -> Array:
    """Return a dense tensor of the shape, dtype and device of another, not filled."""
    torch = _torch()
    return torch.empty_like(x, memory_format=torch.contiguous_format)
