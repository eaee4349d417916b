"""A module that stands for CuPy: arrays in memory of the host that count as a device's, and kernels that g++ compiles.

It refuses what a device refuses: a mixture with arrays of NumPy, or of two devices, work on a device that is not the
current one, and addresses of no living array in a plan. Memory that was given back is written over, and all work is
noted, with its device and stream.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import importlib.machinery
import itertools
import operator
import sys
import threading
import weakref
from collections import deque
from collections.abc import Iterator
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pytest
from emulator import emulator

from rfrope._backends.cuda import device as route
from rfrope._core import dispatch

_SOURCES = ("rotation", "sums", "estimators")
_ADDRESSES = range(2**44, 2**49)  # of memory: no length, step or key of a plan is as large
_MOST_GIVEN_BACK = 256  # pieces of memory that were given back and that nobody else gets yet
_METHODS = ("all", "any", "astype", "clip", "copy", "max", "mean", "min", "ravel", "reshape", "round", "squeeze", "sum")
_HOST_MAY_GIVE = ("asarray", "array")  # what copies arrays of NumPy to a device
_WAITING = ("argwhere", "flatnonzero", "mask", "nonzero", "repeat", "unique")  # the length of a result is read


class Work(NamedTuple):
    """Something that was done: "launch", "function", "read" (by the host) or "upload", its name, and where."""

    kind: str
    name: str
    device: int
    stream: int


class _Places(threading.local):
    """The current device of a thread, and its current stream on each."""

    def __init__(self) -> None:
        self.device = 0
        self.streams: dict[int, Any] = {}


class Machine:
    """Devices, and what was done there."""

    def __init__(
        self, devices: int = 2, *, capability: Any = (9, 0), is_hip: bool = False, toolkit: int | None = 12
    ) -> None:
        self.devices, self.capability, self.is_hip, self.toolkit = devices, capability, is_hip, toolkit
        self.work: list[Work] = []

    def note(self, kind: str, name: str) -> None:
        self.work.append(Work(kind, name, PLACES.device, current_stream().ptr))

    def of(self, kind: str) -> list[str]:
        """Names of all that was done of a kind."""
        return [one.name for one in self.work if one.kind == kind]

    def where(self) -> set[tuple[int, int]]:
        """Devices and streams on which anything was done."""
        return {one[2:] for one in self.work}


PLACES = _Places()
MACHINE = Machine()


# -- devices and streams -----------------------------------------------------------------------------------------------


class Device:
    def __init__(self, number: int | None = None) -> None:
        self.id = PLACES.device if number is None else int(number)
        if not 0 <= self.id < MACHINE.devices:
            raise RuntimeError("cudaErrorInvalidDevice: invalid device ordinal")
        self._before: list[int] = []

    def __enter__(self) -> Device:
        self._before.append(PLACES.device)
        PLACES.device = self.id
        return self

    def __exit__(self, *_: object) -> None:
        PLACES.device = self._before.pop()

    def __int__(self) -> int:
        return self.id

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Device) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"<CUDA Device {self.id}>"

    def synchronize(self) -> None:
        with self:
            MACHINE.note("read", "synchronize")


class Stream:
    """A stream of the device that is current when it is made; the null stream belongs to each."""

    _numbers = itertools.count(1)

    def __init__(self, null: bool = False, non_blocking: bool = False, *, ptr: int | None = None) -> None:
        self.ptr = 0 if null else 4096 * next(self._numbers) if ptr is None else ptr
        self.device_id = -1 if null else PLACES.device
        self._before: list[Stream] = []

    @classmethod
    def from_external(cls, stream: Any) -> Stream:
        version, address = stream.__cuda_stream__()
        assert version == 0
        return cls(ptr=address)

    def __enter__(self) -> Stream:
        if self.device_id not in (-1, PLACES.device):
            raise RuntimeError(f"the stream was made on device {self.device_id}, and {PLACES.device} is current")
        self._before.append(current_stream())
        PLACES.streams[PLACES.device] = self
        return self

    def __exit__(self, *_: object) -> None:
        PLACES.streams[PLACES.device] = self._before.pop()

    def synchronize(self) -> None:
        MACHINE.note("read", "synchronize")


def current_stream() -> Stream:
    return PLACES.streams.get(PLACES.device) or Stream(null=True)


# -- memory ------------------------------------------------------------------------------------------------------------

_LIVING: dict[int, tuple[int, int, int]] = {}  # first address, the one after the last, and device, by any number
_NUMBERS = itertools.count()
_GIVEN_BACK: deque[Any] = deque(maxlen=_MOST_GIVEN_BACK)


class _Memory:
    """Memory of a device, in which numbers are NaN once nobody has it any more."""

    def __init__(self, owner: np.ndarray, *, is_foreign: bool = False) -> None:
        self.low, self.high = np.lib.array_utils.byte_bounds(owner)
        self.device = PLACES.device
        number = next(_NUMBERS)
        _LIVING[number] = self.low, self.high, self.device
        weakref.finalize(self, _give_back, number, None if is_foreign else owner).atexit = False


def _give_back(number: int, owner: np.ndarray | None) -> None:
    low, high, _ = _LIVING.pop(number)
    if owner is not None and owner.flags.writeable:
        ctypes.memset(low, 0xFF, high - low)
        _GIVEN_BACK.append(owner)


def _check_addresses(plan: np.ndarray) -> None:
    """Refuse a plan with an address at which no living array of the current device is."""
    for name in plan.dtype.names or ():
        value = plan[name]
        if value.dtype.names:
            for one in value.reshape(-1):
                _check_addresses(one)
        elif value.dtype.kind in "iu":
            for number in map(int, value.reshape(-1)):
                if number in _ADDRESSES:
                    found = {place for low, high, place in [*_LIVING.values()] if low <= number < high}
                    assert found, f"{name} is the address of no living array"
                    assert PLACES.device in found, f"{name} is on device {found}, and the kernel on {PLACES.device}"


class _Pointer:
    __slots__ = ("device_id", "ptr")

    def __init__(self, ptr: int, device_id: int) -> None:
        self.ptr, self.device_id = ptr, device_id


# -- arrays ------------------------------------------------------------------------------------------------------------


class ndarray(np.lib.mixins.NDArrayOperatorsMixin):
    """An array over one of NumPy, `host`, and the memory that keeps it."""

    __slots__ = ("data", "dtype", "host", "memory", "ndim", "shape", "size", "strides")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, host: np.ndarray, memory: _Memory) -> None:
        self.host, self.memory = host, memory
        self.shape, self.strides, self.dtype = host.shape, host.strides, host.dtype
        self.size, self.ndim = host.size, host.ndim
        self.data = _Pointer(host.__array_interface__["data"][0] if self.size else 0, memory.device)

    itemsize = property(lambda self: self.host.itemsize)
    nbytes = property(lambda self: self.host.nbytes)
    flags = property(lambda self: self.host.flags)
    T = property(lambda self: _result(self.host.T, [self]))
    real = property(lambda self: _result(self.host.real, [self]))
    imag = property(lambda self: _result(self.host.imag, [self]))
    device = property(lambda self: Device(self.memory.device))

    def get(self) -> np.ndarray:
        """Return a copy on the host, which waits for the device."""
        with self.device:
            MACHINE.note("read", "get")
        return self.host.copy()

    def item(self) -> Any:
        return self.get().item()

    def __bool__(self) -> bool:
        return bool(self.get())

    def __float__(self) -> float:
        return float(self.get())

    def __int__(self) -> int:
        return int(self.get())

    def __index__(self) -> int:
        return operator.index(self.get())

    def __len__(self) -> int:
        return len(self.host)

    def __getitem__(self, index: Any) -> Any:
        parts = index if isinstance(index, tuple) else (index,)
        has_mask = any(getattr(part, "dtype", None) == np.bool for part in parts)
        return _call("mask" if has_mask else "getitem", operator.getitem, (self, index), {})

    def __setitem__(self, index: Any, value: Any) -> None:
        _call("setitem", operator.setitem, (self, index, value), {})

    def __array_ufunc__(self, function: Any, method: str, *arguments: Any, **options: Any) -> Any:
        return _call(function.__name__, getattr(function, method), arguments, options)

    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        raise TypeError("Implicit conversion to a NumPy array is not allowed. Please use `.get()`")

    def __repr__(self) -> str:
        return f"array of a device, {self.host!r}"


def on_device(host: np.ndarray) -> ndarray:
    """Return an array of the current device in the memory of one of NumPy, which is the device's from now on."""
    return ndarray(host, _Memory(host))


def _call(name: str, function: Any, arguments: Any, options: dict[str, Any]) -> Any:
    """Call a function of NumPy with what stands for CuPy's arrays."""
    given: list[ndarray] = []
    arguments, options = _unwrapped(name, arguments, given), _unwrapped(name, options, given)
    found = _result(function(*arguments, **options), given)
    if isinstance(found, ndarray) and any(found.memory is one.memory for one in given):
        return found  # a view, for which nothing has to be done
    places = {one.memory.device for one in given} - {PLACES.device}
    if places:
        raise ValueError(f"{name}: arrays are on device {places}, and {PLACES.device} is current")
    MACHINE.note("read" if name.startswith(_WAITING) else "function", name)
    return found


def _unwrapped(name: str, value: Any, given: list[ndarray]) -> Any:
    if isinstance(value, ndarray):
        given.append(value)
        return value.host
    if isinstance(value, np.ndarray):
        if name not in _HOST_MAY_GIVE:
            raise TypeError(f"{name}: Unsupported type {type(value)}")
        MACHINE.note("upload", name)
    if type(value) in (tuple, list):
        return type(value)(_unwrapped(name, one, given) for one in value)
    return {key: _unwrapped(name, one, given) for key, one in value.items()} if type(value) is dict else value


def _result(found: Any, given: list[ndarray]) -> Any:
    """Wrap what a function of NumPy returns: a view of an argument keeps its memory."""
    if type(found) in (tuple, list):
        return type(found)(_result(one, given) for one in found)
    if isinstance(found, np.generic):
        found = np.asarray(found)
    if not isinstance(found, np.ndarray):
        return found
    address = found.__array_interface__["data"][0]
    for one in given:
        if one.host is found:
            return one
        if one.memory.low <= address < one.memory.high:
            return ndarray(found, one.memory)
    return on_device(found)


def _function(name: str, function: Any) -> Any:
    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        return _call(name, function, arguments, options)

    return call


def _asarray(obj: Any, dtype: Any = None, order: Any = None, **_: Any) -> ndarray:
    """Return an array of CuPy as it is, or a copy on the device of one of NumPy."""
    if isinstance(obj, ndarray):
        return obj if dtype is None or obj.dtype == dtype else obj.astype(dtype)
    return _call("array", np.array, (obj,), {"dtype": dtype})


def _empty(shape: Any, dtype: Any = float, order: str = "C") -> ndarray:
    MACHINE.note("function", "empty")
    return on_device(np.empty(shape, dtype, order))


def _from_dlpack(x: Any) -> ndarray:
    """Return an array over the memory of another library's, which counts as that of the current device."""
    host = np.from_dlpack(x)
    return ndarray(host, _Memory(host, is_foreign=True))


def _add_operations() -> None:
    for name in _METHODS:
        setattr(ndarray, name, _function(name, getattr(np.ndarray, name)))


_add_operations()


# -- kernels -----------------------------------------------------------------------------------------------------------


class RawModule:
    """Kernels of a .cu file, compiled by g++ when the first one is launched."""

    def __init__(self, *, code: str, options: tuple[str, ...], name_expressions: tuple[str, ...]) -> None:
        assert options == route.OPTIONS
        self._names = name_expressions
        (self._source,) = (source for source in _SOURCES if route.text(source) == code)

    def get_function(self, name: str) -> Any:
        assert name in self._names, f"{name} is none of {self._names}"

        def launch(grid: tuple[int, ...], block: tuple[int, ...], arguments: tuple[np.ndarray, ...]) -> None:
            (blocks,), (threads,), (plan,) = grid, block, arguments
            assert 0 < blocks < 2**31
            assert 0 < threads <= 1024
            MACHINE.note("launch", name)
            _check_addresses(plan[()])
            emulator(self._source).launch(name, blocks, threads, plan)

        return launch


# -- the module --------------------------------------------------------------------------------------------------------


def _of_types(function: Any) -> Any:
    return lambda *given: function(*[one.dtype if isinstance(one, ndarray) else one for one in given])


def _properties(number: int) -> dict[str, Any]:
    major, minor = MACHINE.capability if number == MACHINE.devices - 1 else (9, 0)  # of the last device
    assert 0 <= number < MACHINE.devices
    return {"name": b"stand-in", "major": major, "minor": minor, "totalGlobalMem": 2**34}


def _count() -> int:
    if not MACHINE.devices:
        raise RuntimeError("cudaErrorNoDevice: no CUDA-capable device is detected")
    return MACHINE.devices


def _filled(name: str, space: Any) -> ModuleType:
    """Return a module with the functions of one of NumPy, for arrays of a device."""
    module = ModuleType(name)
    module.__spec__ = importlib.machinery.ModuleSpec(name, None)
    for key in dir(space):
        value = getattr(space, key)
        is_type = isinstance(value, type) and issubclass(value, (np.generic, np.dtype, np.finfo, np.iinfo))
        if not key.startswith("_") and (is_type or value is None or isinstance(value, float)):
            setattr(module, key, value)
        elif not key.startswith("_") and callable(value) and not isinstance(value, type):
            setattr(module, key, _function(key, value))
    return module


@functools.cache
def _modules() -> dict[str, ModuleType]:
    """All modules that stand for CuPy's, and the namespace of the array API over them."""
    cupy, cuda, runtime = _filled("cupy", np), ModuleType("cupy.cuda"), ModuleType("cupy.cuda.runtime")
    cupy.linalg, cupy.fft, cupy.cuda = _filled("cupy.linalg", np.linalg), _filled("cupy.fft", np.fft), cuda
    cupy.ndarray, cupy.asarray, cupy.from_dlpack, cupy.RawModule = ndarray, _asarray, _from_dlpack, RawModule
    cupy.empty, cupy.asnumpy, cupy.__version__ = _empty, ndarray.get, "14.0.0"
    for name in ("isdtype", "issubdtype", "result_type"):
        setattr(cupy, name, _of_types(getattr(np, name)))
    cuda.Device, cuda.Stream, cuda.get_current_stream, cuda.runtime = Device, Stream, current_stream, runtime
    runtime.getDeviceCount, runtime.getDeviceProperties = _count, _properties
    runtime.getDevice, runtime.runtimeGetVersion = lambda: PLACES.device, lambda: 12090
    of_device, nvrtc = ModuleType("cupy.cuda.device"), ModuleType("cupy_backends.cuda.libs.nvrtc")
    of_device.Device, nvrtc.getVersion = Device, lambda: (MACHINE.toolkit, 9)
    special = _filled("cupyx.scipy.special", importlib.import_module("scipy.special"))
    inner = (cupy, cuda, runtime, of_device, nvrtc, cupy.linalg, cupy.fft, special)
    return {module.__name__: module for module in inner}


@contextlib.contextmanager
def standing_in(**machine: Any) -> Iterator[Machine]:
    """Let the stand-in be CuPy, on a machine of some devices; yields the machine."""
    global MACHINE
    before, compat = MACHINE, importlib.import_module("array_api_compat")
    with pytest.MonkeyPatch.context() as patch:
        for name in [one for one in sys.modules if one.partition(".")[0] in ("cupy", "cupyx", "cupy_backends")]:
            patch.delitem(sys.modules, name)
        for name, module in _modules().items():
            patch.setitem(sys.modules, name, module)
        for name in [one for one in sys.modules if one.startswith("array_api_compat.cupy")]:
            patch.delitem(sys.modules, name)
        patch.setattr(compat, "cupy", None, raising=False)
        for name, module in _namespaces().items():
            patch.setitem(sys.modules, name, module)
        compat.cupy = _namespaces()["array_api_compat.cupy"]
        patch.setattr(dispatch, "_FOUND", {})
        patch.setattr(route, "_CACHED", {})
        _forget()
        MACHINE = Machine(**machine)
        patch.setattr(_modules()["cupy.cuda.runtime"], "is_hip", MACHINE.is_hip, raising=False)
        if MACHINE.toolkit is None:
            patch.delattr(_modules()["cupy_backends.cuda.libs.nvrtc"], "getVersion")
        try:
            yield MACHINE
        finally:
            MACHINE = before
            _forget()


@functools.cache
def _namespaces() -> dict[str, ModuleType]:
    """The modules of array-api-compat over the stand-in, which is CuPy while they are imported."""
    importlib.import_module("array_api_compat.cupy")
    return {name: sys.modules.pop(name) for name in [*sys.modules] if name.startswith("array_api_compat.cupy")}


def _forget() -> None:
    for remembered in (route.check, route.kernel):
        remembered.cache_clear()
