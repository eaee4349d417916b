"""One record for each array library: all that libraries differ in is answered here, and nowhere else.

`array.library` finds the record of an array, `array.library_of` that of a namespace; a library that has none is a plain
`Library`. JAX and Dask, which trace or defer, are in `lazy`. No library is imported to recognise its arrays.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

Array = Any  # an array of whichever library the caller uses

_PLACES = {"cpu": "cpu", "cuda": "torch on cuda", "xpu": "torch on xpu"}  # of tensors, by the type of their device
_FOUND = ModuleType("found")  # PyTorch's compiler reads an attribute of a module when it meets it


def imported(name: str) -> Any:
    """Return a module that something has imported already, else None."""
    _look_up(name)
    return getattr(_FOUND, name)


def _torch() -> Any:
    """Return torch if something has imported it: once found it is not looked for again."""
    found = getattr(_FOUND, "torch", None)
    return imported("torch") if found is None and "torch" in sys.modules else found


def _look_up(name: str) -> None:
    setattr(_FOUND, name, sys.modules.get(name))


def _load_torch_namespace() -> None:
    _FOUND.namespace = importlib.import_module("array_api_compat.torch")  # type: ignore[attr-defined]


# what torch.compiler.assume_constant_result sets: the compiler runs these, and does not itself go through all modules
# of the process, which may become more in the meantime, nor look at them again in every call
_look_up._dynamo_marked_constant = True  # type: ignore[attr-defined]
_load_torch_namespace._dynamo_marked_constant = True  # type: ignore[attr-defined]


class Library:
    """Any library of the array API, eager, in the memory of the CPU as far as is known; the base of all records."""

    is_lazy = False  # it traces or defers: no value checks, writes or backends
    wraps_integers = False  # products of integers are known to keep their last bits
    # frequencies in float32 are most likely those of float64, which its arrays cannot hold on every device
    rounds_frequencies = False
    space = ""  # module that is its namespace, if not the one that users name
    maker = ""  # module that has its `asarray`, if not the one of its own name
    as_numpy = ""  # what to type for an array of NumPy, where `numpy.asarray` does not do
    more_bits = ""  # what to type for dtypes of 64 bits, where they are missing at first
    special = ""  # module of special functions that take its arrays where they are

    def namespace(self, x: Any, name: str) -> ModuleType:
        """Return the namespace of an array, an argument of that name, or say why it has none."""
        if type(x).__module__.startswith("flax."):  # it passes for an array, but not for one of JAX
            raise TypeError(f"{name} is a {type(x).__name__} of flax; expected the array that it holds: {name}[...]")
        from array_api_compat import array_namespace

        try:
            return array_namespace(x)
        except TypeError:
            raise TypeError(
                f"{name} has type {type(x).__module__}.{type(x).__qualname__}; expected an array of NumPy, CuPy, "
                "PyTorch, JAX, Dask or another array-API library, or a list of numbers"
            ) from None

    def named(self, xp: ModuleType) -> ModuleType:
        """Return the namespace for the module that a user names by ``xp=``."""
        if self.space:
            return importlib.import_module(self.space)
        if not hasattr(xp, "asarray"):
            raise TypeError(
                f"xp is module {xp.__name__}, which has no asarray; expected an array library such as numpy"
            )
        return xp

    def device(self, x: Array) -> Any:
        """Device of an array; None where the library places new arrays by itself."""
        return getattr(x, "device", None)

    def eager(self, x: Array) -> AbstractContextManager[Any]:
        """Return a context in which the library computes with an array that has values, instead of tracing."""
        return nullcontext()

    def to_host(self, x: Array, name: str) -> np.ndarray:
        """Return an array, an argument of that name, as one of NumPy: wait for it, and copy it if need be."""
        return np.asarray(x)

    def from_host(self, host: np.ndarray, xp: ModuleType, device: Any, dtype: Any) -> Array:
        """Copy a NumPy array that the device can hold."""
        host = host if host.flags.writeable else host.copy()  # the memory may be shared
        return xp.asarray(host, dtype=dtype) if device is None else xp.asarray(host, dtype=dtype, device=device)

    def dtypes(self, xp: ModuleType, device: Any) -> Any:
        """Names of the dtypes that a device can hold."""
        info = xp.__array_namespace_info__()
        return info.dtypes(device=device) if device is not None else info.dtypes()

    def widest_float(self, xp: ModuleType, device: Any) -> Any:
        """Return float64 where there is one on a device, else float32."""
        return xp.float64 if "float64" in self.dtypes(xp, device) else xp.float32

    # -- values and gradients

    def has_values(self, x: Array) -> bool:
        """Return whether an array has been computed, wherever it is."""
        return True

    def has_host_values(self, x: Array) -> bool:
        """Return whether looking at values is free: they are computed, in the memory of the CPU, not compiled."""
        return True

    def is_readable(self, x: Array) -> bool:
        """Return whether an array has values in the memory of the CPU, which at most have to be waited for."""
        return self.has_host_values(x)

    def is_traced(self, x: Array) -> bool:
        """Return whether an array has no value yet, inside a function that is being transformed."""
        return False

    def needs_gradient(self, x: Array) -> bool:
        """Return whether operations on an array are being recorded for gradients."""
        return False

    def is_recorded(self, x: Array) -> bool:
        """Return whether operators of our own may take an array, whose operations the library records."""
        return False

    # -- memory

    def place(self, x: Array) -> str:
        """Return where loops of our own may touch an array's memory behind the library's back, or "".

        It is "cpu", "cuda" (for CuPy), "torch on cuda" or "torch on xpu".
        """
        return ""

    def is_writable(self, x: Array) -> bool:
        """Return whether elements can be assigned to."""
        return True

    def addresses(self, x: Array) -> np.ndarray | None:
        """Return a NumPy array where the elements lie, to compare and not to read; None if that is not known."""
        held = getattr(x, "_array", x)  # of array-api-strict
        return held if isinstance(held, np.ndarray) else None

    def detach_as_int16(self, x: Array) -> Array:
        """Return an array without its graph, over the same memory; bfloat16 tensors as int16."""
        return x

    def stream(self, x: Array) -> Any:
        """Return the stream on which the library works where an array is; None for CuPy's own."""
        return None

    def mark_modified(self, x: Array) -> None:
        """Tell the library that memory was written to behind its back."""

    # -- arithmetic that is written in several ways

    def split(self, x: Array, factor: float, xp: ModuleType) -> tuple[Array, Array]:
        """Split floats into two halves whose products are exact (Veltkamp): the factor is a power of two and 1."""
        scaled = factor * x
        high = scaled - (scaled - x)
        return high, x - high

    def make_complex(self, real: Array, imag: Array, dtype: Any, xp: ModuleType) -> Array:
        """Return real + i imag."""
        return xp.astype(real, dtype) + 1j * xp.astype(imag, dtype)

    def clip(self, x: Array, low: float, high: float | None, xp: ModuleType) -> Array:
        """Bound an array."""
        return xp.clip(x, low, high)

    def uses_integer_phases(self, x: Array) -> bool:
        """Return whether every operation on x is a launch, on a device that turns by words."""
        return False

    def kernels_widen_float32(self, x: Array) -> bool:
        """Return whether kernels and operators read numbers of float32 as such: on devices of torch."""
        return False

    def rotates_full_width(self, x: Array) -> bool:
        """Return whether features turn over their whole width at once: no part of memory is written by itself."""
        return False

    def add_product(self, total: Array, x: Array, y: Array, factor: float = 1, out: Array | None = None) -> Array:
        """Return ``total + factor x y``; in torch in one pass, with factors and an `out` that may be narrower."""
        return total + factor * x * y


class _NumPy(Library):
    wraps_integers = True
    special = "scipy.special"

    def is_writable(self, x: Array) -> bool:
        return bool(x.flags.writeable)

    def make_complex(self, real: Array, imag: Array, dtype: Any, xp: ModuleType) -> Array:
        """``1j * inf`` would put a NaN into the real part."""
        out = np.empty(np.broadcast_shapes(real.shape, imag.shape), dtype)
        out.real, out.imag = real, imag
        return out


class _CuPy(Library):
    space = "array_api_compat.cupy"
    as_numpy = "cupy.asnumpy({})"  # it refuses to be copied to the host unasked
    special = "cupyx.scipy.special"

    def owns(self, x: Any) -> bool:
        cupy = imported("cupy")
        return cupy is not None and isinstance(x, cupy.__dict__.get("ndarray", ()))  # a CuPy that is broken has none

    def current(self, x: Array) -> AbstractContextManager[Any]:
        """CuPy allocates and launches on the current device, wherever the arrays are."""
        return x.device

    def to_host(self, x: Array, name: str) -> np.ndarray:
        return x.get()

    def widest_float(self, xp: ModuleType, device: Any) -> Any:
        return xp.float64

    def has_host_values(self, x: Array) -> bool:
        return False

    def place(self, x: Array) -> str:
        return "cuda"

    def addresses(self, x: Array) -> np.ndarray | None:
        return _array_at(x.data.ptr, x.shape, x.strides, x.itemsize)

    def clip(self, x: Array, low: float, high: float | None, xp: ModuleType) -> Array:
        """array-api-compat picks elements by a mask, and so makes the host wait for the device."""
        return x.clip(low, high)


class _Torch(Library):
    wraps_integers = True
    space = "array_api_compat.torch"
    as_numpy = "{}.detach().cpu().numpy()"

    def __init__(self) -> None:
        self._constants: dict[tuple[str, Any], tuple[Array, ...]] = {}

    def owns(self, x: Any) -> bool:
        torch = _torch()
        return torch is not None and isinstance(x, torch.Tensor)

    def namespace(self, x: Any, name: str) -> ModuleType:
        """Return it without array-api-compat's caches, of which PyTorch's compiler warns."""
        self.check_dense(x, name)
        _load_torch_namespace()
        return _FOUND.namespace

    def check_dense(self, x: Array, name: str) -> None:
        """Refuse a tensor that holds some of its elements only, or tensors of several lengths."""
        if x.is_nested:
            raise TypeError(f"{name} is a nested tensor; expected a dense one: pad its parts, or pass each of them")
        if x.layout is not _torch().strided:
            raise TypeError(f"{name} is a tensor of layout {x.layout}; expected a dense one: pass {name}.to_dense()")

    def check_distributed(self, arrays: Mapping[str, Any]) -> None:
        """Refuse a DTensor beside numbers that every process has whole, unless torch was told so, by no public name."""
        apart = [name for name, x in arrays.items() if type(x).__name__ == "DTensor"]
        beside = [name for name, x in arrays.items() if not (name in apart or x is None or isinstance(x, int | float))]
        if apart and beside and (is_compiling() or not arrays[apart[0]]._op_dispatcher._allow_implicit_replication):
            raise TypeError(
                f"{apart[0]} is a DTensor and {beside[0]} is not; expected .to_local(), use_local_output=True of "
                "ColwiseParallel, or local_map or implicit_replication() of torch.distributed.tensor.experimental"
            )

    def to_host(self, x: Array, name: str) -> np.ndarray:
        if x.is_meta:
            raise TypeError(f"{name} is on the meta device and has no values; expected a tensor on another")
        x = x.detach().cpu().resolve_conj().resolve_neg()  # NumPy has no numbers whose sign is pending
        return (x.float() if x.dtype == _torch().bfloat16 else x).numpy()

    def widest_float(self, xp: ModuleType, device: Any) -> Any:
        """Listing dtypes takes 20 microseconds, and says float64 of devices that have none."""
        kind = str(device)
        if kind.startswith("xpu"):
            return xp.float64 if _xpu_has_float64(kind) else xp.float32
        return xp.float32 if kind.startswith("mps") else xp.float64

    def constant(self, value: Any, device: Any) -> Array:
        """Return numbers of any form as a tensor, without a loss, inside a graph that is being compiled."""
        torch = _torch()
        value = list(value) if isinstance(value, list | tuple | range) else value
        if _holds_float(value):  # for which torch would take float32
            return torch.tensor(value, dtype=torch.float64, device=device)
        return torch.as_tensor(value, device=device)

    def lasting(self, host: np.ndarray, device: Any) -> Array:
        """Return a tensor that serves calls of every mode, whatever the mode now is."""
        torch = _torch()
        with torch.inference_mode(False):
            return torch.tensor(host, device=device)

    def constants(self, name: str, make: Callable[[], tuple[np.ndarray, ...]], device: Any) -> tuple[Array, ...]:
        """Return constants of this package by a name: they stay on a device, where recorded graphs read them."""
        found = self._constants.get((name, device))
        if found is None:
            found = tuple(self.lasting(host, device) for host in make())
            if all(type(one) is _torch().Tensor for one in found):  # none that is of a tracer
                self._constants[name, device] = found
        return found

    def has_values(self, x: Array) -> bool:
        return not x.is_meta

    def has_host_values(self, x: Array) -> bool:
        return x.is_cpu and self.is_computed(x)

    def is_computed(self, x: Array) -> bool:
        """Return whether a tensor holds values: it is not compiled or mapped over."""
        torch = _torch()
        if torch.compiler.is_compiling():
            return False
        if type(x) not in (torch.Tensor, torch.nn.Parameter) or not torch._C._has_storage(x):
            return False  # a fake tensor, as in tracing, or a batch of gradients (is_grads_batched)
        # there is no public way to ask whether vmap is at work
        return not torch._C._functorch.is_functorch_wrapped_tensor(x)

    def needs_gradient(self, x: Array) -> bool:
        return x.requires_grad and bool(_torch().is_grad_enabled())

    def is_recorded(self, x: Array) -> bool:
        """Return whether operators may take a tensor: on a device that they know, and not in forward mode.

        What functional transforms wrap, and traces of TorchScript, are left to torch's own operators, unless a
        compiler is at work: it takes the wraps off.
        """
        torch = _torch()
        if x.device.type not in ("cpu", "cuda", "meta") and not (x.is_xpu and not torch.compiler.is_compiling()):
            return False
        fake = (torch._subclasses.FakeTensor, torch._subclasses.functional_tensor.FunctionalTensor)
        if type(x) not in (torch.Tensor, torch.nn.Parameter, *fake):
            return False
        return torch.compiler.is_compiling() or self._is_untransformed(x)

    def _is_untransformed(self, x: Array) -> bool:
        """Return whether a tensor is dense, and neither traced by TorchScript, nor mapped over, nor in forward mode."""
        torch = _torch()
        if x.layout is not torch.strided or torch.jit.is_tracing():
            return False
        if torch._C._functorch.is_functorch_wrapped_tensor(x):
            return False
        return torch.autograd.forward_ad.unpack_dual(x).tangent is None

    def place(self, x: Array) -> str:
        """Return where a tensor is that is nothing but its memory: no gradient, tangent, trace or lazy sign."""
        torch = _torch()
        if x.device.type not in _PLACES or not self.is_computed(x):
            return ""
        if self.needs_gradient(x) or not self._is_untransformed(x) or x.is_neg() or x.is_conj():
            return ""
        is_traced = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.PROXY)  # by make_fx
        return "" if is_traced else _PLACES[x.device.type]

    def uses_integer_phases(self, x: Array) -> bool:
        """Return whether tensors are eager; also true inside graphs that are not for the CPU."""
        torch = _torch()
        if torch.compiler.is_compiling():
            return False
        fake = type(x) is torch._subclasses.FakeTensor
        if type(x) not in (torch.Tensor, torch.nn.Parameter) and not (fake and not x.is_cpu):
            return False
        return self._is_untransformed(x)

    def wraps_words(self, device: Any) -> bool:
        """Return whether words of 64 bits turn on a device: on Apple's torch takes `abs` by float32 (issue 190052)."""
        return not str(device).startswith("mps")

    def kernels_widen_float32(self, x: Array) -> bool:
        return not x.is_cpu

    def rotates_full_width(self, x: Array) -> bool:
        """On Apple's devices torch did not write into parts of memory (issue 118115)."""
        return not self.wraps_words(x.device)

    def are_plain_dense(self, *tensors: Array) -> bool:
        """Return whether strided tensors are no more than memory of the CPU, asked as quickly as that can be."""
        torch = getattr(_FOUND, "torch", None) or _torch()
        if torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None:
            return False  # nor mapped over, nor looked at operator by operator:
        if torch._C._functorch.peek_interpreter_stack() is not None or torch._C._len_torch_dispatch_stack():
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

    def addresses(self, x: Array) -> np.ndarray | None:
        if not x.data_ptr():  # without elements, or without memory
            return None
        size = x.element_size()
        return _array_at(x.data_ptr(), tuple(x.shape), tuple(size * step for step in x.stride()), size)

    def view(self, x: Array) -> np.ndarray:
        return self.detach_as_int16(x).numpy()

    def detach_as_int16(self, x: Array) -> Array:
        torch = _torch()
        return x.detach().view(torch.int16) if x.dtype == torch.bfloat16 else x.detach()

    def stream(self, x: Array) -> Any:
        return _torch().cuda.current_stream(x.device)

    def mark_modified(self, x: Array) -> None:
        if not x.is_inference():
            _torch().autograd.graph.increment_version(x)

    def make_complex(self, real: Array, imag: Array, dtype: Any, xp: ModuleType) -> Array:
        return xp.complex(real, imag)

    def add_product(self, total: Array, x: Array, y: Array, factor: float = 1, out: Array | None = None) -> Array:
        return _torch().addcmul(total, x, y, value=factor, out=out)


class _Strict(Library):
    """array-api-strict, whose other devices refuse to be looked at, as a GPU does."""

    def _cpu(self) -> Any:
        return imported("array_api_strict").Device("CPU_DEVICE")

    def to_host(self, x: Array, name: str) -> np.ndarray:
        return np.asarray(x.to_device(self._cpu()))

    def has_host_values(self, x: Array) -> bool:
        return bool(x.device == self._cpu())


NUMPY, CUPY, TORCH, STRICT, OTHER = _NumPy(), _CuPy(), _Torch(), _Strict(), Library()


@lru_cache(maxsize=16)
def _xpu_has_float64(device: str) -> bool:
    """Return whether torch says so of a device of Intel."""
    try:
        return bool(_torch().xpu.get_device_properties(device).has_fp64)
    except (AttributeError, AssertionError, RuntimeError):  # an older torch, or one without such devices
        return False


def is_compiling() -> bool:
    """Return whether PyTorch's compiler is tracing this call."""
    torch = _torch()
    return torch is not None and bool(torch.compiler.is_compiling())


def may_reach_loops(x: Any) -> bool:
    """Return whether it is a tensor whose memory loops may read, unless more about it speaks against that."""
    torch = _torch()
    return torch is not None and isinstance(x, torch.Tensor) and not torch.compiler.is_compiling()


def _holds_float(values: Any) -> bool:
    if isinstance(values, list | tuple):
        return any([_holds_float(value) for value in values])
    return isinstance(values, float)


def _array_at(address: int, shape: tuple[int, ...], strides: tuple[int, ...], size: int) -> np.ndarray:
    """NumPy array over the memory at an address, which may be on a device."""
    kind = {"version": 3, "data": (address, True), "shape": shape, "strides": strides, "typestr": f"|V{size}"}
    return np.asarray(SimpleNamespace(__array_interface__=kind))
