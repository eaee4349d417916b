"""The only module that knows array libraries: namespace, dtype, device, host copy, lazy or not.

Everything else works on "some namespace ``xp``". The backend comes from the arrays that a caller passes, never from a
setting. Plain NumPy is looked for first, because `array_api_compat.array_namespace` alone costs several microseconds.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Container
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache, wraps
from types import ModuleType
from typing import Any, ParamSpec, TypeVar

import numpy as np

from rfrope._core import capacity, tensors
from rfrope._core.arguments import broadcast, show
from rfrope._core.capacity import parts

Array = Any  # an array of whichever library the caller uses
_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")

_FIT_ANY = (type(None), bool, int, float, complex, np.generic, list, tuple, range)  # they fit beside any library
_VELTKAMP = {"float64": 134217729.0, "float32": 4097.0}  # 2**27 + 1 and 2**12 + 1
_WIDER = {"bfloat16": "float32", "float16": "float32", "float32": "float64", "float64": "float64"}
_SPACING = {"bfloat16": 2.0**-7, "float16": 2.0**-10, "float32": 2.0**-23}  # relative, of floats
_DOUBLE = np.dtype(np.float64)  # one object for all plain float64 arrays, by which they are known quickly
_COPIES = 24.0  # bytes that are held for each number of an argument: a copy in float64, and what is made of it
_MANY = 2**21  # numbers of an argument from which on it is asked whether they fit
_SMALL = 2**12  # elements of which the sum of squares is formed by one thread
_REAL = frozenset("bBhHiIlLqQefd")  # characters of NumPy's dtypes of real numbers, but for longdouble
_MODULES = {"jax": "jax.numpy", "dask": "dask.array"}  # where a library keeps its asarray, if not at the top


def namespace(**arrays: Any) -> ModuleType:
    """Return the namespace that all `arrays` share; ``None``, Python scalars and lists fit any.

    Raises
    ------
    TypeError
        If two arguments come from different libraries, or one is not an array at all. The message names them.
    """
    return _together(arrays)[0]


def shared(constants: dict[str, Any] | None = None, /, **arrays: Any) -> tuple[ModuleType, Any]:
    """Return the namespace that all arrays of a call share, and the device where new ones belong.

    `constants` are those that say how to turn (positions, frequencies): as NumPy arrays they fit beside any library,
    and are moved there by `asarray`.
    """
    return _together({**arrays, **(constants or {})}, constants or {})


def _together(arrays: dict[str, Any], movable: Container[str] = ()) -> tuple[ModuleType, Any]:
    """Namespace and device of arrays that must share them; those of NumPy that are `movable` need not."""
    for value in arrays.values():
        if type(value) is not np.ndarray and not isinstance(value, _FIT_ANY):
            break
    else:
        return np, None
    spaces = {
        name: _namespace_of(name, value)
        for name, value in arrays.items()
        if not (isinstance(value, _FIT_ANY) or (name in movable and isinstance(value, np.ndarray)))
    }
    (first, xp), *others = spaces.items() or [("", np)]
    for name, other in others:
        if other is not xp:
            ways = (_converted(name, other, xp), _converted(first, xp, other))
            moved = name in movable and xp is not np  # exactly, where it is NumPy's
            advice = _converted(name, other, np) if moved else ", or ".join(ways)
            raise TypeError(
                f"{first} is a {library_of(xp)} array but {name} is a {library_of(other)} array; expected all arrays "
                f"from one library: pass {advice}"
            )
    if xp is np:
        return np, None
    devices = {name: device(arrays[name]) for name in spaces}
    _check_devices({name: place for name, place in devices.items() if not _is_number(arrays[name])})
    return xp, next((place for name, place in devices.items() if place is not None), None)


def _is_number(value: Array) -> bool:
    """Return whether an array is a single number in memory of the CPU, which fits beside arrays on any device."""
    return value.ndim == 0 and "cpu" in str(device(value)).lower()


def _converted(name: str, source: ModuleType, target: ModuleType) -> str:
    """Return what to type so that argument `name`, an array of library `source`, becomes one of `target`."""
    library = library_of(target)
    if library_of(source) == "torch" and target is np:  # nor does PyTorch, from a device or with a gradient
        return f"{name}.detach().cpu().numpy()"
    if library_of(source) == "cupy" and library != "torch":  # CuPy refuses to be copied to the host unasked
        return f"cupy.asnumpy({name})" if target is np else f"{_MODULES.get(library, library)}.asarray({name}.get())"
    return f"{_MODULES.get(library, library)}.asarray({name})"


def _check_devices(devices: dict[str, Any]) -> None:
    (first, at), *others = devices.items() or [("", None)]
    for name, other in others:
        if other != at:
            raise ValueError(f"{first} is on device {at} but {name} is on {other}; expected all arrays on one device")


def _namespace_of(name: str, value: Any) -> ModuleType:
    if isinstance(value, np.ndarray):
        return np
    if tensors.is_torch(value):  # array-api-compat keeps what it found in caches that PyTorch's compiler warns of
        tensors.check_dense(value, name)
        return tensors.namespace()
    if type(value).__module__.startswith("flax."):  # it passes for an array, but not for one of JAX
        raise TypeError(f"{name} is a {type(value).__name__} of flax; expected the array that it holds: {name}[...]")
    from array_api_compat import array_namespace

    try:
        space = array_namespace(value)
    except TypeError:
        raise TypeError(
            f"{name} has type {type(value).__module__}.{type(value).__qualname__}; expected an array of NumPy, CuPy, "
            "PyTorch, JAX, Dask or another array-API library, or a list of numbers"
        ) from None
    if any(length != length for length in value.shape):  # NaN, in Dask
        raise ValueError(f"{name} has lengths that are not known; expected known ones: {name}.compute_chunk_sizes()")
    return space


def named_namespace(xp: Any) -> ModuleType:
    """Return the namespace for an explicit ``xp=`` argument: a module such as ``torch``, or ``None`` for NumPy."""
    if xp is None or xp is np:
        return np
    if not isinstance(xp, ModuleType):
        raise TypeError(f"xp is {show(xp)}; expected an array library's module, such as numpy, torch or jax.numpy")
    short = xp.__name__.split(".")[0]
    if short in ("torch", "cupy", "dask"):
        return importlib.import_module(f"array_api_compat.{_MODULES.get(short, short)}")
    if short == "jax":
        import jax.numpy

        return jax.numpy
    if not hasattr(xp, "asarray"):
        raise TypeError(f"xp is module {xp.__name__}, which has no asarray; expected an array library such as numpy")
    return xp


def library_of(xp: ModuleType) -> str:
    """Short name of a namespace's library, for messages and for the few places where libraries differ."""
    parts = xp.__name__.split(".")
    return parts[1] if parts[0] == "array_api_compat" and len(parts) > 1 else parts[0]


def asarray(value: Any, xp: ModuleType, *, name: str, device: Any = None) -> Array:
    """Return lists, Python scalars and arrays of NumPy as an array of `xp` on `device`, and others as they are."""
    if xp is not np and library_of(xp) == "torch" and tensors.is_compiling():
        return tensors.constant(value, device)
    if not isinstance(value, _FIT_ANY):
        if type(value).__name__ in ("MaskedArray", "matrix"):
            raise TypeError(
                f"{name} is a numpy {type(value).__name__}; expected a plain array: use numpy.asarray({name})"
            )
        if xp is np or not isinstance(value, np.ndarray):
            return value
    host = host_numbers(value, name)
    whole = xp is not np and host.dtype.kind in "iu"
    if whole and not np.array_equal(host, host.astype(known := _known_dtype(host, xp, device))):
        more = "; jax.config.update('jax_enable_x64', True) gives it 64" if library_of(xp) == "jax" else ""
        raise ValueError(
            f"{name} is {show(value)}; expected integers of {known[-2:]} bits, the widest that {library_of(xp)} has "
            f"now{more}"
        )
    return from_host(host, xp, device=device)


def host_numbers(value: Any, name: str) -> np.ndarray:
    """Return Python numbers, or lists of them, as a NumPy array, or say why that cannot be."""
    try:
        host = np.asarray(value)
    except ValueError:
        host = np.asarray(None)
    except TypeError as error:  # JAX says so about a list whose numbers are being traced
        raise TypeError(
            f"{name} is a list or tuple whose numbers are being traced; expected an array: pass numpy.asarray({name}) "
            "to what is compiled"
        ) from error
    if host.dtype.kind not in "biufc":
        raise TypeError(f"{name} is {show(value)}; expected numbers of at most 64 bits in a rectangular shape")
    return host


def numbers(value: Any, xp: ModuleType, *, name: str, device: Any = None) -> Array:
    """Return `value` as an array of integers or real floating numbers, as `asarray` does, or raise TypeError."""
    if xp is np and type(value) is np.ndarray and value.dtype.char in _REAL and value.size <= _MANY:
        return value
    if xp is np and type(value) is float:
        return np.asarray(value)
    value = asarray(value, xp, name=name, device=device)
    if not (is_real_floating(value) or is_integer(value)):
        raise TypeError(f"{name} has dtype {dtype_name(value)}; expected integers or real floating numbers")
    check_memory(_COPIES, value.shape, value, name)
    return value


def check_memory(each: float, shape: tuple[int, ...], like: Array, names: str) -> None:
    """Refuse numbers of a shape, of so many bytes each, that do not fit in memory; `names` are the arguments."""
    # lengths may be symbols while a graph is made, which is not to ask them
    n_bytes = 0.0 if type(like) is not np.ndarray and tensors.is_compiling() else each * math.prod(shape)
    if n_bytes > capacity.SMALL and has_host_values(like):
        capacity.check(n_bytes, f"numbers of shape {tuple(shape)}", f"the size of {names}")


def from_host(host: np.ndarray, xp: ModuleType, *, device: Any = None, dtype: Any = None) -> Array:
    """Copy a NumPy array into `xp` on `device`; float64 narrows to the widest float that `xp` has there."""
    if xp is np:
        if not (device is None or (isinstance(device, str) and device == "cpu")):
            raise ValueError(f"device is {show(device)}; expected None or 'cpu' for NumPy")
        return host if dtype is None else host.astype(dtype, copy=False)
    if dtype is None:
        dtype = widest_float(xp, device) if host.dtype.kind == "f" else getattr(xp, _known_dtype(host, xp, device))
    if host.dtype == np.float64 and not has_float64(xp, device):
        host = host.astype(np.float32)  # before it is on a device that has no such numbers
    if library_of(xp) in ("jax", "dask"):
        return xp.asarray(host, dtype=dtype)
    host = host if host.flags.writeable else host.copy()  # the memory may be shared
    if device is not None:
        return xp.asarray(host, dtype=dtype, device=device)
    return xp.asarray(host, dtype=dtype)


def placed(host: np.ndarray, xp: Any, device: Any, dtype: Any) -> Array:
    """Put numbers that were made on the host where a caller's ``xp=``, ``device=`` and ``dtype=`` ask for them."""
    space = named_namespace(xp)
    return from_host(host, space, device=device, dtype=check_float_dtype(dtype, space))


def _known_dtype(host: np.ndarray, xp: ModuleType, device: Any) -> str:
    """Name of the dtype of a NumPy array, with 32 bits where `xp` has no 64."""
    name, known = host.dtype.name, supported_dtypes(xp, device)
    name = "int64" if name == "uint64" not in known and "int64" in known else name
    return name if name in known else name.replace("64", "32")


def empty(shape: tuple[int, ...], like: Array, xp: ModuleType) -> Array:
    """Return an array with the dtype and on the device of another, not filled."""
    return np.empty(shape, like.dtype) if xp is np else xp.empty(shape, dtype=like.dtype, device=like.device)


def to_host(x: Array, name: str = "an array") -> np.ndarray:
    """Return `x`, an argument of that name, as a NumPy array: wait for it, and copy it from its device if need be."""
    if isinstance(x, np.ndarray):
        return x
    if is_traced(x):
        raise TypeError(
            f"{name} is being traced by JAX and has no values yet; expected a call outside jit, grad or vmap"
        )
    if getattr(x, "is_meta", False):
        raise TypeError(f"{name} is on the meta device and has no values; expected a tensor on another")
    library = type(x).__module__.partition(".")[0]
    if library == "torch":
        x = x.detach().cpu()
        return x.float().numpy() if dtype_name(x) == "bfloat16" else x.numpy()
    if is_cupy(x):
        return x.get()
    if library == "array_api_strict":
        x = x.to_device(tensors.imported(library).Device("CPU_DEVICE"))
    return np.asarray(x)


def device(x: Array) -> Any:
    """Device of `x`, or None where the library places new arrays by itself (NumPy, JAX, Dask)."""
    return None if isinstance(x, (np.ndarray, *_FIT_ANY)) or is_lazy(x) else getattr(x, "device", None)


def is_lazy(x: Array) -> bool:
    """Return whether the library of `x` traces or defers (JAX, Dask): no value checks, writes or accelerators."""
    return type(x).__module__.partition(".")[0] in ("jax", "jaxlib", "dask")


def is_cupy(x: Array) -> bool:
    """Return whether `x` is an array of CuPy, which is not imported to find out."""
    cupy = tensors.imported("cupy")
    return cupy is not None and isinstance(x, cupy.__dict__.get("ndarray", ()))  # a CuPy that is broken has none


def device_of(*arrays: Array) -> AbstractContextManager[Any]:
    """Return a context in which the device of some CuPy arrays is the current one of this thread.

    CuPy allocates and launches on the current device, wherever the arrays are. Other libraries need no such help.
    """
    devices: list[AbstractContextManager[Any]] = [x.device for x in arrays if is_cupy(x)]
    return devices[0] if devices else nullcontext()


def select_device(function: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
    """Make a public function run on the device of the CuPy arrays among its arguments, and on its current stream."""

    @wraps(function)
    def placed(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result:
        if tensors.imported("cupy") is None:
            return function(*args, **kwargs)
        with device_of(*args, *kwargs.values()):
            return function(*args, **kwargs)

    return placed


def is_traced(x: Array) -> bool:
    """Return whether `x` is a JAX tracer: inside jit, grad or vmap, with no value yet."""
    jax = tensors.imported("jax")
    return jax is not None and isinstance(x, jax.core.Tracer)


def compute_eagerly(x: Array) -> AbstractContextManager[Any]:
    """Return a context in which JAX computes with `x`, if it has values, instead of tracing: they stay at hand."""
    if type(x).__module__.partition(".")[0] not in ("jax", "jaxlib") or is_traced(x):
        return nullcontext()
    context: AbstractContextManager[Any] = tensors.imported("jax").ensure_compile_time_eval()
    return context


def has_host_values(x: Array) -> bool:
    """Return whether looking at the values of `x` is free: eager, in the memory of the CPU, not being compiled."""
    if isinstance(x, np.ndarray):
        return True
    if hasattr(x, "data_ptr"):
        return tensors.has_values(x, "cpu")
    if type(x).__module__.startswith("array_api_strict"):  # its other devices refuse to be looked at, as a GPU does
        return x.device == tensors.imported("array_api_strict").Device("CPU_DEVICE")
    return not is_lazy(x) and not is_cupy(x)


def supported_dtypes(xp: ModuleType, device: Any = None) -> Any:
    """Names of the dtypes that `xp` can hold on `device` (JAX lists float64 only when x64 is enabled)."""
    info = xp.__array_namespace_info__()
    return info.dtypes(device=device) if device is not None else info.dtypes()


def widest_float(xp: ModuleType, device: Any = None) -> Any:
    """Return float64 where `xp` has it on `device`, else float32."""
    if xp is np:
        return np.float64
    if library_of(xp) in ("torch", "cupy"):  # listing their dtypes, as is done below, takes 20 microseconds
        return xp.float32 if str(device).startswith("mps") else xp.float64
    return xp.float64 if "float64" in supported_dtypes(xp, device) else xp.float32


def has_float64(xp: ModuleType, device: Any = None) -> bool:
    """Return whether float64 exists in `xp` on `device`."""
    return xp is np or widest_float(xp, device) == xp.float64


def has_integer_turns(xp: ModuleType) -> bool:
    """Return whether products of integers in `xp` wrap (`turns` needs it where there is no float64)."""
    return library_of(xp) in ("numpy", "jax", "torch")


def dtype_name(x: Array) -> str:
    """Name of the dtype of `x`, the same for every library: 'float32', 'bfloat16', 'int64', ..."""
    dtype = x.dtype
    if isinstance(dtype, np.dtype):
        return _numpy_name(dtype)
    return str(getattr(dtype, "name", None) or str(dtype).rpartition(".")[2])


@lru_cache(maxsize=64)
def _numpy_name(dtype: np.dtype) -> str:
    return dtype.name  # NumPy puts this together anew each time


def is_real_floating(x: Array) -> bool:
    """Return whether the dtype of `x` is a real floating type that can be rotated (bfloat16 included)."""
    return (type(x) is np.ndarray and x.dtype is _DOUBLE) or dtype_name(x) in _WIDER


def is_integer(x: Array) -> bool:
    """Return whether `x` holds integers."""
    if type(x) is np.ndarray and x.dtype.char in _REAL:
        return x.dtype.kind != "f"
    return dtype_name(x).startswith(("int", "uint"))


def resolution(value: Any) -> float:
    """Relative spacing of the floats that an array holds; that of float64 for integers and lists."""
    return _SPACING.get(dtype_name(value), 2.0**-52) if hasattr(value, "dtype") else 2.0**-52


def wider_float(x: Array, xp: ModuleType) -> Any:
    """Return the type to compute in so that one rounding to the type of `x` is all that is lost (float64 stays)."""
    name = _WIDER[dtype_name(x)]
    return widest_float(xp, device(x)) if name == "float64" else xp.float32


def astype(x: Array, dtype: Any, xp: ModuleType) -> Array:
    """Return `x` in `dtype`, without a copy where it already is."""
    if x.dtype == dtype:
        return x
    if isinstance(x, np.ndarray):
        return x.astype(dtype)
    return xp.astype(x, dtype)


def to_int32(x: Array, xp: ModuleType) -> Array:
    """Return integers as int32, or uint32 where they are unsigned."""
    return astype(x, xp.uint32 if dtype_name(x).startswith("u") else xp.int32, xp)


def to_words(x: Array, bits: int, xp: ModuleType) -> Array:
    """Return integers modulo 2**bits, as signed ones."""
    return astype(x, xp.int64 if bits == 64 else xp.int32, xp)


def widen(x: Array, xp: ModuleType) -> Array:
    """Return `x` as float64 (float32 where the namespace has no float64)."""
    return x if type(x) is np.ndarray and x.dtype is _DOUBLE else astype(x, widest_float(xp, device(x)), xp)


def split(x: Array, xp: ModuleType) -> tuple[Array, Array]:
    """Split a floating array into two halves of at most 26 (float64) or 12 (float32) bits (Veltkamp).

    JAX gets an explicit rounding of the mantissa, because a compiler may fuse the classic formula into a
    multiply-add, which makes the lower half zero. NumPy, torch and CuPy (outside `cupy.fuse`) run one loop or kernel
    for each operation, and so round each.
    """
    if library_of(xp) == "jax":
        import jax

        bits, exponent = (25, 11) if x.dtype == xp.float64 else (11, 8)
        high = jax.lax.reduce_precision(x, exponent, bits)
        return high, x - high
    scaled = _VELTKAMP[dtype_name(x)] * x
    high = scaled - (scaled - x)
    return high, x - high


def make_complex(real: Array, imag: Array, xp: ModuleType) -> Array:
    """Return real + i imag; in NumPy, PyTorch and JAX without the NaN that ``1j * inf`` puts into the real part."""
    library = library_of(xp)
    if library == "torch":
        return xp.complex(real, imag)
    if library == "jax":
        import jax

        return jax.lax.complex(real, imag)
    dtype = xp.complex128 if dtype_name(real) == "float64" else xp.complex64
    if isinstance(real, np.ndarray):
        out = np.empty(np.broadcast_shapes(real.shape, imag.shape), dtype)
        out.real, out.imag = real, imag
        return out
    return xp.astype(real, dtype) + 1j * xp.astype(imag, dtype)


def clip(x: Array, low: float, high: float | None, xp: ModuleType) -> Array:
    """Bound `x` from below, and from above unless `high` is None.

    For CuPy array-api-compat's clip picks elements by a mask, and so makes the host wait for the device.
    """
    return x.clip(low, high) if isinstance(x, np.ndarray) or is_cupy(x) else xp.clip(x, low, high)


def all_within(x: Array, bound: float, xp: ModuleType) -> bool:
    """Return whether every element of a host array is at most `bound` in magnitude, and none NaN.

    True unasked for lazy and device arrays (see `on_host`).
    """
    if type(x) is np.ndarray and x.dtype is _DOUBLE and x.size <= _SMALL and np.vdot(x, x) < bound * bound:
        return True  # quickly, for NaN and infinity compare with nothing
    space, some = (np, parts(x)) if isinstance(x, np.ndarray) else (xp, (x,))  # jit would trace NumPy's constants too
    return not has_host_values(x) or all(bool(space.all(space.abs(widen(part, space)) <= bound)) for part in some)


def check_float_dtype(dtype: Any, xp: ModuleType) -> Any:
    """Return an explicit ``dtype=`` argument, or say why frequencies and tables cannot have it."""
    if dtype is None:
        return None
    try:
        known = getattr(xp, dtype) if isinstance(dtype, str) else dtype
        like = xp.empty(0, dtype=known) if isinstance(known, type) or not hasattr(known, "__array__") else None
    except Exception:  # whatever the library raises
        like = None
    if like is None or not is_real_floating(like):
        raise TypeError(f"dtype is {show(dtype)}; expected a real floating type of {library_of(xp)}")
    return like.dtype


def broadcast_shapes(shapes: dict[str, tuple[int, ...]]) -> tuple[int, ...]:
    """Return the common shape of two or more shapes, given by name, or raise a ValueError that names them."""
    try:
        return broadcast(*shapes.values())
    except ValueError:
        listed = " and ".join(f"{tuple(shape)} of {name}" for name, shape in shapes.items())
        raise ValueError(
            f"{' and '.join(shapes)} do not broadcast: {listed}; expected lengths "
            "that are equal or 1, counted from the right: insert axes with None where they are to combine"
        ) from None
