"""Calls of the rotation as data: any shapes, strides, types and pairings, held against the generic function."""

import contextlib
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from conftest import library
from hypothesis import HealthCheck
from hypothesis import strategies as st

import rfrope
from rfrope._core import dispatch
from rfrope.rotation import turning

PAIRINGS = ("half", "interleaved")
DTYPES = ("float64", "float32", "float16", "bfloat16")
EPSILON = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
SMALLEST = {"float64": 0.0, "float32": 2.0**-149, "float16": 2.0**-24, "bfloat16": 2.0**-133}
BLOCKS = (0, 1, 2, 3, 4, 5, 7, 8, 12, 16, 17, 21, 40)  # blocks taken 16, 8 and 4 at a time, and what is left
SLOW = {"deadline": None, "derandomize": True, "suppress_health_check": list(HealthCheck)}


@contextlib.contextmanager
def without_backends():
    """Take backends away, and what repeats rotations: from functions, and from a Rope that is made now."""

    def load(backend):
        raise ImportError("taken away")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dispatch, "load", load)
        patch.setattr(dispatch, "backend_function", lambda function, place: None)
        patch.setattr(turning, "load_fast_path", lambda: None)
        yield


@contextlib.contextmanager
def watched(*, without: tuple[str, ...] = ()):
    """Note what gave a result, in order; without some of them.

    That is a backend's function by its name ("recorded" before that of an operator of torch), or "at once".
    """
    names: list[str] = []
    find, dense = dispatch.backend_function, turning.load_fast_path()

    def noting(function, place):
        bare = function.name
        right = None if bare in without else find(function, place)
        label = f"recorded {bare}" if place == "torch" else bare
        return right and (lambda *arguments: noted(label, right(*arguments)))

    def noted(name, result):
        if result is not None:
            names.append(name)
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dispatch, "backend_function", noting)
        if "at once" in without:
            patch.setattr(turning, "load_fast_path", lambda: None)
        else:
            own = {"turned_at_once": lambda *a: noted("at once", dense.turned_at_once(*a))}
            patch.setattr(turning, "load_fast_path", lambda: dense and types.SimpleNamespace(**vars(dense) | own))
        yield names


# -- arrays of any type, library and layout ----------------------------------------------------------------------------


def numpy_dtype(name: str) -> np.dtype:
    if name != "bfloat16":
        return np.dtype(name)
    return np.dtype(pytest.importorskip("ml_dtypes", reason="ml_dtypes, the bfloat16 of NumPy, is missing").bfloat16)


LAYOUTS = (
    "dense",
    "offset",
    "stepped",
    "rows stepped",
    "transposed",
    "features first",
    "reversed",
    "all reversed",
    "unaligned",
)


def poisoned(shape: Any, dtype: np.dtype) -> np.ndarray:
    """Memory in which every number is NaN: what is read beside an array shows."""
    return np.frombuffer(bytearray(b"\xff" * int(np.prod(shape) * dtype.itemsize)), dtype).reshape(shape)


def laid(values: np.ndarray, layout: str) -> np.ndarray:
    """Return the same values in memory of another layout."""
    shape, n = values.shape, values.ndim
    if layout == "dense":
        return np.array(values)
    if layout == "offset":  # by an odd number of elements: no multiple of 16 bytes
        target = poisoned(values.size + 3, values.dtype)[3:].reshape(shape)
    elif layout == "unaligned":  # as Dask's unpickling leaves arrays
        target = np.frombuffer(bytearray(b"\xff" * (values.nbytes + 1)), np.uint8)[1:].view(values.dtype).reshape(shape)
    elif layout == "stepped":
        target = poisoned((*shape[:-1], 2 * shape[-1] + 1), values.dtype)[..., 1::2]
    elif layout == "rows stepped":
        target = poisoned((*shape[:-1], shape[-1] + 3), values.dtype)[..., 1:-2]
    elif layout == "transposed":
        order = (*range(n - 1)[::-1], n - 1)
        target = np.empty([shape[i] for i in order], values.dtype).transpose(order)
    elif layout == "features first":
        target = np.empty(shape[::-1], values.dtype).T
    elif layout == "reversed":
        target = np.empty(shape, values.dtype)[::-1]
    elif layout == "all reversed":
        target = np.flip(np.empty(shape, values.dtype))
    else:  # every row is one row of memory
        row = np.array(values[(0,) * (n - 1)])
        return np.lib.stride_tricks.as_strided(row, shape, (*(0,) * (n - 1), row.itemsize))
    target[...] = values
    assert target.shape == shape
    return target


def tensor(values: np.ndarray) -> Any:
    """Torch tensor in the memory of a NumPy array."""
    torch = library("torch").module
    if values.dtype.name == "bfloat16":
        return torch.from_numpy(values.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(values)


def doubles(x: Any) -> np.ndarray:
    """Values of an array of NumPy, torch or what stands for CuPy in float64."""
    x = x.get() if hasattr(x, "get") else x
    return x.astype(np.float64) if isinstance(x, np.ndarray) else x.detach().double().numpy()


def norms(values: np.ndarray, blocks: int, pairing: str) -> np.ndarray:
    """Norm of each feature's block, at the feature's place; 0 for features that pass through."""
    turned = values[..., : 2 * blocks]
    norm = np.abs(rfrope.rotation.to_complex(turned, pairing=pairing))
    both = np.concatenate([norm, norm], axis=-1) if pairing == "half" else np.repeat(norm, 2, axis=-1)
    return np.concatenate([both, np.zeros_like(values[..., 2 * blocks :])], axis=-1)


def check(got: Any, wanted: np.ndarray, dtype: str, blocks: int, pairing: str) -> None:
    """Hold a result against that of the generic function in float64."""
    got = doubles(got)
    assert got.shape == wanted.shape
    # in float64 both are wrong by little; a narrower type is one rounding of the float64 result
    factor = 1e-15 if dtype == "float64" else 0.51 * EPSILON[dtype]
    error = np.abs(got - wanted)
    allowed = factor * norms(wanted, blocks, pairing) + SMALLEST[dtype]
    worst = np.max(error - allowed, initial=0.0)
    assert worst <= 0.0, f"{dtype} differs by {np.max(error):.3g}, {worst:.3g} more than allowed"
    np.testing.assert_array_equal(got[..., 2 * blocks :], wanted[..., 2 * blocks :])


# -- calls ------------------------------------------------------------------------------------------------------------


class Call(NamedTuple):
    """A call of a public function, with float64 arrays of NumPy for all but `x`, `out` and the layout."""

    function: str
    angles: tuple[np.ndarray, ...]
    options: dict[str, Any]
    dtype: str
    layout: str
    x_shape: tuple[int, ...]
    out: str
    out_layout: str
    blocks: int
    seed: int
    torch: bool


@st.composite
def calls(draw, *, functions=("rotate", "rotate_by_phases", "rotate_by_table"), torch=False):
    full = draw(st.lists(st.integers(0, 4) if draw(st.integers(0, 9)) == 0 else st.integers(1, 4), max_size=3))
    blocks, extra = draw(st.sampled_from(BLOCKS)), draw(st.sampled_from((0, 0, 1, 3, 8)))
    seed = draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)

    def some(lengths):
        lengths = [1 if draw(st.integers(0, 3)) == 0 else n for n in lengths]
        return tuple(lengths[draw(st.integers(0, len(lengths))) if draw(st.booleans()) else 0 :])

    def spaced(values):  # strides of their own, for angles too
        return np.array(values) if not values.ndim else laid(values, draw(st.sampled_from(LAYOUTS)))

    function, options = draw(st.sampled_from(functions)), {}
    if function == "rotate":
        whole, far = draw(st.booleans()), 10.0 ** draw(st.integers(0, 12))
        if draw(st.booleans()):
            p_shape, w_shape = some(full), (blocks,)
        else:
            k = draw(st.integers(1, 3))
            lone = draw(st.booleans()) or not full
            heads, tokens = (some(full), ()) if lone else (some(full[:-1]), some(full[-1:]) or (1,))
            p_shape = (k,) if lone else (*(some(full[:-1]) if tokens else ()), *tokens, k)
            w_shape = (*heads, blocks, k)
        p = rng.uniform(-far, far, p_shape)
        angles = spaced(np.rint(p).astype(np.int64) if whole else p), spaced(rng.standard_normal(w_shape))
        if draw(st.integers(0, 2)) == 0:
            options["shift"] = spaced(rng.uniform(-30, 30, draw(st.sampled_from(((), (blocks,), (*full, blocks))))))
    elif function == "rotate_by_phases":
        angles = (spaced(rng.uniform(-1e4, 1e4, (*some(full), blocks))),)
    else:
        narrow = draw(st.sampled_from(("float64", "float32", "float16")))
        u = rng.uniform(0, 7, (*some(full), blocks))
        angles = tuple(spaced(v.astype(narrow)) for v in (np.cos(u), np.sin(u)))
    if function != "rotate_by_table":
        options["inverse"] = draw(st.booleans())
        scales = (1.0, 1.7, rng.uniform(0.5, 2, ()), rng.uniform(0.5, 2, blocks), rng.uniform(0.5, 2, (*full, 1)))
        scale = draw(st.sampled_from(scales))
        options["scale"] = scale if isinstance(scale, float) else spaced(scale)
    options["pairing"] = draw(st.sampled_from(PAIRINGS))
    options["out_pairing"] = draw(st.sampled_from((None, *PAIRINGS)))
    layouts = [name for name in LAYOUTS if not (torch and name.endswith("reversed"))]
    out = draw(st.sampled_from(("none", "given", "in place")))
    x_shape = (*draw(st.sampled_from(((), (), (1,), (2,)))), *full, 2 * (blocks + extra))
    layout = draw(st.sampled_from(layouts if out == "in place" or 0 in x_shape else [*layouts, "broadcast"]))
    angles = tuple(np.array(v) if torch else v for v in angles)
    options = {name: np.array(v) if torch and isinstance(v, np.ndarray) else v for name, v in options.items()}
    dtype = draw(st.sampled_from(DTYPES))
    return Call(
        function, angles, options, dtype, layout, x_shape, out, draw(st.sampled_from(layouts)), blocks, seed, torch
    )


def run(
    call: Call, watched: Callable[[], Any], *, repeat: int = 1, own: Callable[[Any], Any] | None = None
) -> tuple[list[str], int]:
    """Make a call with a backend and hold the result against the generic function in float64.

    ``with watched() as names`` makes backends run, and puts what ran into the list `names`; ``own`` makes an array of
    another library in the memory of one of NumPy. Returns that list, and how many features the result has.
    """
    values = np.random.default_rng(call.seed + repeat).standard_normal(call.x_shape)
    x = laid(values.astype(numpy_dtype(call.dtype)), call.layout)
    exact, function = x.astype(np.float64), getattr(rfrope, call.function)
    with without_backends():
        wanted = function(exact, *call.angles, **call.options)
    own = tensor if call.torch else own or (lambda v: v)
    options = {name: own(v) if isinstance(v, np.ndarray) else v for name, v in call.options.items()}
    angles, x = [own(v) for v in call.angles], own(x)
    with watched() as names:
        plain = function(x, *angles, **options)
        if call.out != "none":
            fresh = laid(np.full(wanted.shape, 7.0).astype(numpy_dtype(call.dtype)), call.out_layout)
            same = call.out == "in place" and tuple(x.shape) == wanted.shape
            out, around = x if same else own(fresh), _around(fresh)
            assert function(x, *angles, **options, out=out) is out
            np.testing.assert_array_equal(doubles(out), doubles(plain))  # the same bits, wherever they are written
            np.testing.assert_array_equal(_around(fresh), around)  # and nothing beside them
    assert type(plain) is type(x)
    assert plain.dtype == x.dtype
    check(plain, wanted, call.dtype, call.blocks, call.options["out_pairing"] or call.options["pairing"])
    if call.out != "in place":
        np.testing.assert_array_equal(doubles(x), exact)
    return names, wanted.size


def _around(array: np.ndarray) -> np.ndarray:
    """Return the bytes of the memory that an array is part of, with zeros for the array itself."""
    owner = array if array.base is None else array.base
    values = array.copy()
    array[...] = np.zeros((), array.dtype)
    found = np.frombuffer(owner.tobytes(), np.uint8)
    array[...] = values
    return found
