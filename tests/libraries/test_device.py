"""Arrays on a device: results stay there, nothing crosses to the host, the host never waits.

What refuses what would cost a GPU dearly, each in its own way: array-api-strict's second device, which shares no memory
with NumPy; torch's "meta" device, whose tensors have no values at all; and, where there is one, a real device that
records every call in a CUDA graph, during which CUDA itself refuses to wait for the stream. The stand-in for CuPy, by
which `test_support.py` and tests/cuda know where each call works, notes what is read.
"""

import contextlib
import functools
import importlib
import importlib.util
import types
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import calls
import numpy as np
import pytest
from calls import CALLS, FROM_HOST, MADE_ON_HOST, Place
from conftest import library

import rfrope
from rfrope import analysis, moments
from rfrope._core import array, overlap

# -- array-api-strict's second device ----------------------------------------------------------------------------------


@pytest.fixture
def strict():
    return library("array-api-strict").module


@pytest.fixture
def second(strict):
    place = strict.Device("device1")
    return lambda values, dtype=None: strict.asarray(np.array(values, dtype=dtype), device=place)


@pytest.mark.parametrize("name", MADE_ON_HOST)
def test_what_is_made_on_the_host_arrives_on_the_device(name, strict, second):
    assert MADE_ON_HOST[name](strict, strict.Device("device1")).device == second(0.0).device


def test_values_on_a_device_are_not_looked_at(second, strict):
    assert not array.has_host_values(second([1.0]))
    assert array.has_host_values(strict.asarray([1.0]))


# -- tensors without values --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*CALLS, *FROM_HOST])
def test_no_value_is_needed(name, monkeypatch):
    torch = library("torch").module
    monkeypatch.setattr(array, "special_functions", lambda xp: types.SimpleNamespace(sici=lambda z: (z, z)))
    call = (CALLS | FROM_HOST)[name]
    for result in call(lambda values, dtype=None: torch.asarray(np.array(values, dtype=dtype), device="meta")):
        assert result.device.type == "meta"


# -- CuPy's arrays without a device: what can be known of them ---------------------------------------------------------


@pytest.fixture
def cupy_array():
    """Make arrays of CuPy on memory that is not there."""
    if importlib.util.find_spec("cupy") is None:
        pytest.skip("CuPy is not installed")
    import cupy

    def make(shape: tuple[int, ...], dtype: str = "float64", offset: int = 0, device: int = 0) -> Any:
        unowned = cupy.cuda.UnownedMemory(4096, 1 << 20, None, device)
        return cupy.ndarray(shape, dtype, cupy.cuda.MemoryPointer(unowned, offset))

    return make


@pytest.mark.parametrize("shape", [(3,), ()])
def test_arrays_on_two_devices_are_refused_single_numbers_too(shape, cupy_array):
    with pytest.raises(ValueError, match=r"x is on device .*0.* but positions is on .*1.*; expected all arrays on one"):
        array.namespace(x=cupy_array((3, 8)), positions=cupy_array(shape, device=1))


def test_memory_of_cupys_arrays_is_compared(cupy_array):
    import cupy

    NONE, PART, SAME = overlap.Overlap
    x = cupy_array((4, 6))
    assert overlap.overlap_of(x, x[:, :]) is SAME
    assert overlap.overlap_of(x, cupy_array((4, 6), offset=8)) is not SAME
    assert overlap.overlap_of(x, x.T) is not SAME
    assert overlap.overlap_of(x, cupy_array((4, 6), "float32")) is not SAME
    assert overlap.overlap_of(x[:3], x[1:]) is PART
    assert overlap.overlap_of(x, cupy_array((4, 6), offset=23 * 8)) is PART
    assert overlap.overlap_of(x, cupy_array((4, 6), offset=24 * 8)) is NONE
    assert overlap.overlap_of(x[:, 0::2], x[:, 1::2]) is NONE
    assert overlap.overlap_of(x[::-1], x[:1]) is PART
    assert overlap.has_shared_elements(cupy.broadcast_to(x[:1], (4, 6)))
    assert not overlap.has_shared_elements(x[:1])


def test_numpy_that_says_how_to_turn_is_moved_to_the_device(second):
    """Positions, frequencies, phases and lags are constants, which are moved exactly; features are not."""
    x, p, w, u, d = calls.FEATURES, calls.POSITIONS, calls.FREQUENCIES, calls.TABLE, calls.POSITIONS + 0.5
    table = [  # features first, then what says how to turn
        (lambda x, p, w, s: rfrope.rotate(x, p, w, scale=s, shift=s), (x, p, w, w)),
        (lambda x, p, w: rfrope.scores(x, x, p, p, w), (x, p, w)),
        (lambda x, u: rfrope.rotate_by_phases(x, u), (x, u)),
        (lambda x, c, s: rfrope.rotate_by_table(x, c, s), (x, u, u)),
        (lambda p, w: rfrope.rotation_table(p, w)[1], (p, w)),
        (lambda w, d: analysis.mean_kernel(d, w), (w, d)),
        (lambda x, w, d: analysis.departure(x, x, d, w).residual, (x[0], w, d)),
        (lambda x, d: rfrope.expected_score(x, x, d, "gaussian"), (x, d)),
        (lambda x, d: rfrope.score_variance(x, x, d, "gaussian"), (x, d)),
        (lambda x, d: moments.relative_error(x, x, d, "gaussian"), (x, d)),
        (lambda x, w, d: analysis.sine_share(x, x, d, w), (x, w, d)),
        (lambda x, d: rfrope.estimate_scores(x, x, d, "gaussian", n_trials=4, rng=0).mean.value, (x, d)),
    ]
    for call, arrays in table:
        wanted = call(*map(second, arrays))
        for i in range(1, len(arrays)):
            found = call(*(v if i == j else second(v) for j, v in enumerate(arrays)))
            assert found.device == wanted.device == second(0.0).device
            np.testing.assert_array_equal(found._array, wanted._array)


# -- a real device -----------------------------------------------------------------------------------------------------


@pytest.fixture
def cuda():
    """CuPy, where there is a device."""
    return library("cupy").module


class Kept:
    """Arrays on a device, made in a first run of some calls and given again, with their values, later."""

    def __init__(self, make: Callable[[np.ndarray], Any], copy: Callable[[Any], Any]) -> None:
        self.make, self.copy = make, copy
        self.made: list[Any] = []
        self.originals: list[Any] = []

    def first(self, values: Any, dtype: str | None = None) -> Any:
        self.made.append(self.make(np.array(values, dtype=dtype)))
        self.originals.append(self.copy(self.made[-1]))
        return self.made[-1]

    def again(self) -> Place:
        for made, original in zip(self.made, self.originals, strict=True):
            made[...] = original
        rest = iter(self.made)
        return lambda values, dtype=None: next(rest)


@pytest.mark.gpu
@pytest.mark.parametrize("name", CALLS)
def test_every_function_can_be_recorded_in_a_cuda_graph(name, cuda, monkeypatch):
    """While a stream is captured CUDA refuses to wait for it; the graph then computes what the calls computed."""
    kept, stream = Kept(cuda.asarray, lambda x: x.copy()), cuda.cuda.Stream(non_blocking=True)
    host = list(CALLS[name](lambda values, dtype=None: np.array(values, dtype=dtype)))
    with stream:
        eager = [result.get() for result in CALLS[name](kept.first)]
        for _ in range(2):  # kernels are compiled by now; the pool gets all the memory that one run needs
            list(CALLS[name](kept.again()))
        place = kept.again()
        for crossing in ("to_host", "from_host", "map_on_host"):
            monkeypatch.setattr(array, crossing, lambda *_, **__: pytest.fail("the host was asked"))
        stream.synchronize()
        stream.begin_capture()
        try:
            results = list(CALLS[name](place))
        except BaseException:
            with contextlib.suppress(cuda.cuda.runtime.CUDARuntimeError):
                stream.end_capture()
            raise
        graph = stream.end_capture()
        graph.launch(stream)
        for result, before, reference in zip(results, eager, host, strict=True):
            assert result.device == cuda.cuda.Device()
            np.testing.assert_array_equal(result.get(), before)
            narrow = np.asarray(reference).dtype.name in ("float32", "complex64")
            np.testing.assert_allclose(before, reference, rtol=1e-11, atol=1e-5 if narrow else 1e-11)


@pytest.mark.gpu
@pytest.mark.parametrize("name", CALLS)
def test_torch_itself_never_waits_for_a_device(name, monkeypatch):
    """What CuPy does for its tensors is not seen by torch: the recording above shows it for CuPy's own arrays."""
    lib = library("torch cuda")
    torch, kept = lib.module, Kept(lib, lambda x: x.clone())
    monkeypatch.setattr(array, "special_functions", lambda xp: types.SimpleNamespace(sici=lambda z: (z, z)))
    list(CALLS[name](kept.first))
    place = kept.again()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for result in CALLS[name](place):
            assert result.is_cuda
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.gpu
@pytest.mark.parametrize("name", calls.ESTIMATES)
def test_estimates_come_from_a_device(name, cuda):
    with ThreadPoolExecutor(2) as pool:
        for executor in (None, pool):
            call = functools.partial(calls.ESTIMATES[name], executor=executor)
            host = call(lambda values: np.array(values))
            for result, reference in zip(call(lambda values: cuda.asarray(np.array(values))), host, strict=True):
                np.testing.assert_allclose(result.get(), reference, rtol=1e-9, atol=1e-12)
