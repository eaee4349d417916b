"""Arrays of any library: the namespace and device that a call shares, arguments as arrays, dtypes, host copies.

Everything else works on "some namespace ``xp``". The backend comes from the arrays that a caller passes, never from a
setting. Plain NumPy is looked for first, because `array_api_compat.array_namespace` alone costs several microseconds;
what libraries differ in is asked of their records (`libraries`).
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Container, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache, wraps
from types import ModuleType
from typing import Any, ParamSpec, TypeVar

import numpy as np

from rfrope._core import capacity
from rfrope._core.arguments import broadcast, kinds_within, show
from rfrope._core.capacity import parts
from rfrope._core.lazy import DASK, JAX, MLX
from rfrope._core.libraries import CUPY, NUMPY, OTHER, STRICT, TORCH, Library, imported, is_compiling

Array = Any  # an array of whichever library the caller uses
_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")

_FIT_ANY = (type(None), bool, int, float, complex, np.generic, list, tuple, range)  # they fit beside any library
_VELTKAMP = {"float64": 134217729.0, "float32": 4097.0}  # 2**27 + 1 and 2**12 + 1
_WIDER = {"bfloat16": "float32", "float16": "float32", "float32": "float64", "float64": "float64"}
_SPACING = {"bfloat16": 2.0**-7, "float16": 2.0**-10, "float32": 2.0**-23}  # relative, of floats
_DOUBLE = np.dtype(np.float64)  # one object for all plain float64 arrays, by which they are known quickly
_SMALL = 2**12  # elements of which the sum of squares is formed by one thread
_REAL = frozenset("bBhHiIlLqQefd")  # characters of NumPy's dtypes of real numbers, but for longdouble
_BY_NAME: dict[str, Library] = {"numpy": NUMPY, "cupy": CUPY, "torch": TORCH, "jax": JAX, "dask": DASK, "mlx": MLX}
_BY_MODULE: dict[str, Library] = {"jax": JAX, "jaxlib": JAX, "dask": DASK, "mlx": MLX, "array_api_strict": STRICT}
_BY_TYPE: dict[type, Library] = {}  # of arrays that were met: some call asks thirty times
_MOST_TYPES = 256  # programs may make types without end


def library(x: Any) -> Library:
    """Return the record of the library of an array; that of any other for what is not one."""
    if isinstance(x, np.ndarray):
        return NUMPY
    kind = type(x)
    known = _BY_MODULE.get(kind.__module__.partition(".")[0])
    if known is not None:
        return known
    if TORCH.owns(x):  # before `_BY_TYPE`, which PyTorch's compiler would guard
        return TORCH
    if kind in _BY_TYPE:
        return _BY_TYPE[kind]
    if isinstance(x, _FIT_ANY):
        return OTHER
    if len(_BY_TYPE) >= _MOST_TYPES:
        _BY_TYPE.clear()
    _BY_TYPE[kind] = found = CUPY if CUPY.owns(x) else OTHER
    return found


def library_of(xp: ModuleType) -> Library:
    """Return the record of the library of a namespace."""
    return _BY_NAME.get(xp.__name__.removeprefix("array_api_compat.").partition(".")[0], OTHER)


def name_of(xp: ModuleType) -> str:
    """Short name of a namespace's library, for people."""
    return xp.__name__.removeprefix("array_api_compat.").partition(".")[0]


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
    spaces, devices = {}, {}
    for name, value in arrays.items():
        if isinstance(value, _FIT_ANY) or (name in movable and isinstance(value, np.ndarray)):
            continue
        record = library(value)
        spaces[name] = np if record is NUMPY and _is_plain(value, name) else record.namespace(value, name)
        devices[name] = record.device(value)
    (first, xp), *others = spaces.items() or [("", np)]
    for name, other in others:
        if other is not xp:
            moved = name in movable and xp is not np  # exactly, where it is NumPy's
            advice = (
                (_converted(name, other, np),) if moved else (_converted(name, other, xp), _converted(first, xp, other))
            )
            raise TypeError(
                f"{first} is a {name_of(xp)} array but {name} is a {name_of(other)} array; expected all arrays "
                f"from one library: pass {', or '.join(advice)}"
            )
    if xp is np:
        return np, None
    for name in spaces:
        if type(arrays[name]).__name__ == "DTensor":
            TORCH.check_distributed(arrays)
    return xp, _shared_device(devices, arrays)


def _converted(name: str, source: ModuleType, target: ModuleType) -> str:
    """Return what to type so that argument `name`, an array of library `source`, becomes one of `target`."""
    known, wanted = library_of(source), library_of(target)
    host = known.as_numpy.format(name)
    if host and target is np:
        return host
    return f"{wanted.maker or name_of(target)}.asarray({host if known is CUPY and wanted is not TORCH else name})"


def _shared_device(devices: dict[str, Any], arrays: dict[str, Any]) -> Any:
    """Return the device of some arrays, or say that they are on several."""
    place = next(iter(devices.values()))
    if any([at != place for at in devices.values()]):  # a single number in memory of the CPU fits beside any device
        placed = [(n, at) for n, at in devices.items() if arrays[n].ndim or "cpu" not in str(at).lower()]
        (first, at), *others = placed or [("", place)]
        for name, other in others:
            if other != at:
                raise ValueError(
                    f"{first} is on device {at} but {name} is on {other}; expected all arrays on one device"
                )
    return place


def _is_plain(value: Any, name: str, kind: type | None = None) -> bool:
    """Return whether a value is an array of NumPy; one of a class in which numbers mean something else is refused."""
    verb, held = ("is", type(value).__name__) if kind is None else ("holds", kind.__name__)
    if held in ("MaskedArray", "MaskedConstant", "matrix"):
        raise TypeError(f"{name} {verb} a numpy {held}; expected a plain array: use numpy.asarray({name})")
    return isinstance(value, np.ndarray)


def named_namespace(xp: Any) -> ModuleType:
    """Return the namespace for an explicit ``xp=`` argument: a module such as ``torch``, or ``None`` for NumPy."""
    if xp is None or xp is np:
        return np
    if not isinstance(xp, ModuleType):
        raise TypeError(f"xp is {show(xp)}; expected an array library's module, such as numpy, torch or jax.numpy")
    return library_of(xp).named(xp)


def asarray(value: Any, xp: ModuleType, *, name: str, device: Any = None) -> Array:
    """Return lists, Python scalars and arrays of NumPy as an array of `xp` on `device`, and others as they are."""
    if not isinstance(value, (np.ndarray, *_FIT_ANY)):
        return value
    if xp is not np and library_of(xp) is TORCH and is_compiling():
        return TORCH.constant(value, device)
    if isinstance(value, np.ndarray) and _is_plain(value, name) and xp is np:
        return value
    host = host_numbers(value, name)
    whole = xp is not np and host.dtype.kind in "iu"
    if whole and not np.array_equal(host, host.astype(known := _known_dtype(host, xp, device))):
        more = library_of(xp).more_bits and f"; {library_of(xp).more_bits} gives it 64"
        raise ValueError(
            f"{name} is {show(value)}; expected integers of {known[-2:]} bits, the widest that {name_of(xp)} has "
            f"now{more}"
        )
    return from_host(host, xp, device=device)


def host_numbers(value: Any, name: str) -> np.ndarray:
    """Return Python numbers, or lists of them, as a NumPy array, or say why that cannot be."""
    for kind in kinds_within(value):
        _is_plain(None, name, kind)  # NumPy would drop their masks
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
    if xp is np and type(value) is np.ndarray and value.dtype.char in _REAL:
        return value
    if xp is np and type(value) is float:
        return np.asarray(value)
    value = asarray(value, xp, name=name, device=device)
    kind = dtype_name(value)
    if not (kind in _WIDER or kind.startswith(("int", "uint"))):
        raise TypeError(f"{name} has dtype {kind}; expected integers or real floating numbers")
    return value


def check_memory(each: float, shape: tuple[int, ...], like: Array, names: str) -> None:
    """Refuse numbers of a shape, of so many bytes each, that do not fit in memory; `names` are the arguments."""
    # lengths may be symbols while a graph is made, which is not to ask them
    n_bytes = 0.0 if type(like) is not np.ndarray and is_compiling() else each * math.prod(shape)
    if n_bytes > capacity.SMALL and has_host_values(like):
        capacity.check(n_bytes, f"numbers of shape {tuple(shape)}", f"the size of {names}")


def from_host(host: np.ndarray, xp: ModuleType, *, device: Any = None, dtype: Any = None) -> Array:
    """Copy a NumPy array into `xp` on `device`; float64 narrows to the widest float that `xp` has there."""
    if xp is np:
        if not (device is None or (isinstance(device, str) and device == "cpu")):
            raise ValueError(f"device is {show(device)}; expected None or 'cpu' for NumPy")
        return host if dtype is None else host.astype(dtype, copy=False)
    if dtype is None:
        name = _known_dtype(host, xp, device)
        dtype = widest_float(xp, device) if host.dtype.kind == "f" else getattr(xp, name, getattr(xp, "bool_", None))
    if host.dtype == np.float64 and not has_float64(xp, device):
        host = host.astype(np.float32)  # before it is on a device that has no such numbers
    return library_of(xp).from_host(host, xp, device, dtype)


def place_for_caller(host: np.ndarray, xp: Any, device: Any, dtype: Any) -> Array:
    """Put numbers that were made on the host where a caller's ``xp=``, ``device=`` and ``dtype=`` ask for them."""
    if xp is None and device is None and dtype is None:
        return host
    space = named_namespace(xp)
    return from_host(host, space, device=device, dtype=check_float_dtype(dtype, space))


def _known_dtype(host: np.ndarray, xp: ModuleType, device: Any) -> str:
    """Name of the dtype of a NumPy array, with 32 bits where `xp` has no 64."""
    name, known = host.dtype.name, library_of(xp).dtypes(xp, device)
    name = "int64" if name == "uint64" not in known and "int64" in known else name
    return name if name in known else name.replace("64", "32")


def empty(shape: tuple[int, ...], like: Array, xp: ModuleType) -> Array:
    """Return an array with the dtype and on the device of another, not filled."""
    return np.empty(shape, like.dtype) if xp is np else xp.empty(shape, dtype=like.dtype, device=like.device)


def to_host(x: Array, name: str = "an array") -> np.ndarray:
    """Return `x`, an argument of that name, as a NumPy array: wait for it, and copy it from its device if need be."""
    return x if isinstance(x, np.ndarray) else library(x).to_host(x, name)


def device(x: Array) -> Any:
    """Device of `x`, or None where the library places new arrays by itself (NumPy, JAX, Dask)."""
    return None if isinstance(x, (np.ndarray, *_FIT_ANY)) else library(x).device(x)


def device_of(*arrays: Array) -> AbstractContextManager[Any]:
    """Return a context in which the device of the first of some arrays is the one where CuPy works."""
    found = [x for x in arrays if CUPY.owns(x)]
    return CUPY.current(found[0]) if found else nullcontext()


def select_device(function: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
    """Make a public function run on the device of the CuPy arrays among its arguments, and on its current stream."""

    @wraps(function)
    def placed(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result:
        if imported("cupy") is None:
            return function(*args, **kwargs)
        with device_of(*args, *kwargs.values()):
            return function(*args, **kwargs)

    return placed


def view_as_numpy(x: Array) -> np.ndarray:
    """Return the NumPy array that views the memory of `x`, if its place is "cpu"; bfloat16 of torch as int16."""
    return x if isinstance(x, np.ndarray) else TORCH.view(x)


def has_host_values(x: Array) -> bool:
    """Return whether looking at the values of `x` is free: eager, in the memory of the CPU, not being compiled."""
    return isinstance(x, np.ndarray) or library(x).has_host_values(x)


def needs_gradient(*arrays: Array) -> bool:
    """Return whether operations on one of some arrays are being recorded for gradients."""
    return any([library(x).needs_gradient(x) for x in arrays])


def widest_float(xp: ModuleType, device: Any = None) -> Any:
    """Return float64 where `xp` has it on `device`, else float32."""
    if xp is np:
        return np.float64
    return library_of(xp).widest_float(xp, device)


def has_float64(xp: ModuleType, device: Any = None) -> bool:
    """Return whether float64 exists in `xp` on `device`."""
    return xp is np or widest_float(xp, device) == xp.float64


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
    return widest_float(xp, device(x)) if _WIDER[dtype_name(x)] == "float64" else xp.float32


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
    known = x.dtype is _DOUBLE if isinstance(x, np.ndarray) else dtype_name(x) == "float64"
    return x if known else astype(x, widest_float(xp, device(x)), xp)


def widen_on_host(x: Array, xp: ModuleType) -> Array:
    """Return what `widen` does, but float32 as it is, and 16 bits as float32, where a copy would be a launch."""
    name = dtype_name(x)
    if xp is np or not name.startswith(("float", "bfloat")) or not library_of(xp).kernels_widen_float32(x):
        return widen(x, xp)
    return x if name in ("float32", "float64") else astype(x, xp.float32, xp)


def split(x: Array, xp: ModuleType) -> tuple[Array, Array]:
    """Split a floating array into two halves of at most 26 (float64) or 12 (float32) bits (Veltkamp)."""
    return library_of(xp).split(x, _VELTKAMP[dtype_name(x)], xp)


def make_complex(real: Array, imag: Array, xp: ModuleType) -> Array:
    """Return real + i imag; in NumPy, PyTorch and JAX without the NaN that ``1j * inf`` puts into the real part."""
    dtype = xp.complex128 if dtype_name(real) == "float64" else xp.complex64
    return library_of(xp).make_complex(real, imag, dtype, xp)


def clip(x: Array, low: float, high: float | None, xp: ModuleType) -> Array:
    """Bound `x` from below, and from above unless `high` is None."""
    return x.clip(low, high) if isinstance(x, np.ndarray) else library_of(xp).clip(x, low, high, xp)


def all_within(x: Array, bound: float, xp: ModuleType) -> bool:
    """Return whether every element of a host array is at most `bound` in magnitude, and none NaN.

    True unasked for lazy and device arrays (see `on_host`).
    """
    if type(x) is np.ndarray and x.dtype is _DOUBLE and x.size <= _SMALL and np.vdot(x, x) < bound * bound:
        return True  # quickly, for NaN and infinity compare with nothing
    if isinstance(x, np.ndarray):  # jit would trace NumPy's constants too
        return all(bool(np.all(np.abs(widen(part, np)) <= bound)) for part in parts(x))
    return not has_host_values(x) or bool(xp.all(xp.abs(widen(x, xp)) <= bound))


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
        raise TypeError(f"dtype is {show(dtype)}; expected a real floating type of {name_of(xp)}")
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


# -- functions mapped over arrays --------------------------------------------------------------------------------------


def special_functions(xp: ModuleType) -> Any:
    """Return the module of special functions that take the arrays of `xp` where they are, or None."""
    name = library_of(xp).special
    return importlib.import_module(name) if name else None


def map_blocks(function: Callable[[Array, ModuleType], Array], x: Array, xp: ModuleType) -> Array:
    """Return ``function(x, xp)`` for an elementwise function of many operations: one task per block for Dask."""
    if library_of(xp) is not DASK:
        return function(x, xp)
    return x.map_blocks(lambda block: function(block, namespace(block=block)), dtype=x.dtype)


def map_on_host(
    function: Callable[[np.ndarray], np.ndarray], x: Array, xp: ModuleType, name: str, *, last_axis: int | None = None
) -> Array:
    """Apply a NumPy function to an array of any library, for special functions that only SciPy has.

    The function must work elementwise, or (with `last_axis`) along the last axis, whose new length `last_axis` is; 0
    drops the axis. `name` is that of the argument. Dask and JAX stay lazy (JAX through `jax.pure_callback`, without
    derivatives).

    Raises
    ------
    TypeError
        For a torch tensor that asks for gradients, which a trip through the host would silently drop.
    """
    if isinstance(x, np.ndarray):
        return function(x)
    if needs_gradient(x):
        raise TypeError(f"{name} requires a gradient, which SciPy does not compute; expected {name}.detach()")
    if (lazy := library(x)) in (JAX, DASK):
        return lazy.map_on_host(function, x, last_axis)
    try:
        values = to_host(x, name)
    except RuntimeError:  # of torch, for tensors without memory
        raise TypeError(f"{name} has no values, as in transforms of torch.func; expected torch.autograd") from None
    host = np.asarray(function(values))
    return from_host(host, xp, device=device(x), dtype=x.dtype)


def space_of_constants(xp: ModuleType, constants: Mapping[str, Any]) -> ModuleType:
    """Return where the constants of a call belong: NumPy beside an array of Dask, unless one is lazy itself."""
    if xp is np or library_of(xp) is not DASK or any(library(value).is_lazy for value in constants.values()):
        return xp
    return np
