"""Public calls on a stand-in for CuPy: the whole way on the host, from the arguments to the kernels and back."""

import re
import sys
import types
from concurrent.futures import ThreadPoolExecutor

import calls
import numpy as np
import pytest
import supported
from conftest import rows
from emulator import COMPILER, NO_COMPILER
from rotation_calls import DTYPES
from stand_in import Device, Stream, on_device, standing_in

import rfrope
from rfrope._backends import cuda
from rfrope._backends.cuda import device
from rfrope._core import dispatch
from rfrope._core.libraries import TORCH
from rfrope.rotation import turning

pytestmark = pytest.mark.skipif(COMPILER is None, reason=NO_COMPILER)

RNG = np.random.default_rng(2)


# -- every function, on a device and a stream that are not the first ones ----------------------------------------------

X = RNG.standard_normal((2, 3, 5, 20)).astype(np.float32)
OMEGA, PHASES = RNG.standard_normal(8), RNG.standard_normal((3, 5, 8))
TOKENS, LAGS = np.arange(40, 45), np.arange(6.0)
ROPE, PLAIN_ROPE = rfrope.Rope(OMEGA, attention_factor=1.5), rfrope.Rope(OMEGA)


def in_place(x, *angles, **options):
    assert rfrope.rotate(x, *angles, **options, out=x) is x
    return x


ROTATING = ("rotate", "Rope.rotate", "rotate_by_phases", "rotate_by_table", "rotate_polar", "relocate", "rerotate")
LAUNCHED = {key: {"rotate"} for key in (*ROTATING, "Rope.table", "rotation_table", "scores", "Rope.scores")}
LAUNCHED |= {
    "estimate_kernel": {"frequencies", "sum_any"},
    "estimate_scores": {"score_sums"},
    "mean_kernel": {"sum_any"},
}


@pytest.mark.parametrize("name", supported.CALLS)
def test_every_public_call_works_on_a_device_and_gives_what_numpy_gives(name):
    """That it is the device of its arrays, `supported` asserts; what leaves it is held against the documentation."""
    _, found, ran = supported.on_device(name)
    assert ran >= LAUNCHED.get(name, set())
    tables = [one for one in (calls.CALLS, calls.FROM_HOST, calls.TO_HOST) if name in one]
    wanted = [one for table in tables for one in supported.results(name, np.array, table)]
    for one, other in zip(found, wanted, strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        bound = 1e-5 if one.dtype in (np.float32, np.complex64) else 1e-9
        np.testing.assert_allclose(one.get() if hasattr(one, "get") else one, other, rtol=bound, atol=bound)


@pytest.mark.parametrize("options", [{"kernel": "matern(nu=0.3, scale=5)"}, {"n_blocks": 8, "design": "antithetic"}])
def test_draws_of_laws_that_no_kernel_knows_come_from_the_host(options):
    options = {"kernel": "gaussian(scale=4)", "rng": 3, "n_samples": 704} | options
    with standing_in() as machine, Device(1), Stream() as stream:
        found = rfrope.estimate_kernel(on_device(LAGS.copy()), **options)
        assert machine.where() == {(1, stream.ptr)}
        for name in ("value", "stderr"):
            wanted = getattr(rfrope.estimate_kernel(LAGS, **options), name)
            np.testing.assert_allclose(getattr(found, name).get(), wanted, rtol=1e-9, atol=1e-9)


def test_threads_of_an_executor_work_on_the_device_of_the_arrays():
    options = {"kernel": "gaussian(scale=4)", "rng": 3, "n_samples": 704}
    wanted = rfrope.estimate_kernel(LAGS, **options).value
    with standing_in() as machine, ThreadPoolExecutor(2) as pool:
        with Device(1):
            lags = on_device(LAGS.copy())
        found = rfrope.estimate_kernel(lags, **options, executor=pool).value
        assert {work.device for work in machine.work} == {1}
        np.testing.assert_allclose(found.get(), wanted, rtol=1e-9)


# -- tensors of PyTorch, which the kernels see as CuPy's arrays --------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_tensors_are_turned_on_the_stream_of_torch(dtype, monkeypatch, torch):
    x = torch.from_numpy(X.copy()).to(getattr(torch, dtype))
    given = x, torch.from_numpy(TOKENS), torch.from_numpy(OMEGA)
    wanted, place = rfrope.rotate(*given), device.place
    angles = rfrope._core.angles.check_angles(*given[1:], None, rfrope._core.array.namespace(x=x), x.device)

    class OfTorch:
        cuda_stream, device_index = 77, 1

        def __cuda_stream__(self):
            return 0, self.cuda_stream

    def placed(tensor):  # as one whose device has a number, as those of CUDA have
        where = types.SimpleNamespace(index=1)
        return place(type("Tensor", (), {"device": where, "__class__": type(tensor)})())

    with standing_in() as machine:
        monkeypatch.setattr(TORCH, "place", lambda tensor: "cuda")
        monkeypatch.setattr(TORCH, "stream", lambda tensor: OfTorch())
        monkeypatch.setattr(device, "place", placed)
        found = turning.rotated(x, angles, turning.TurnOptions("half", "half"), None)
        assert {work[2:] for work in machine.work if work.kind == "launch"} == {(1, 77)}
    assert type(found) is torch.Tensor
    assert found.dtype == x.dtype
    np.testing.assert_allclose(found.double(), wanted.double(), rtol=0, atol=float(torch.finfo(x.dtype).eps) * 4)


# -- machines that are refused -----------------------------------------------------------------------------------------


MACHINES = rows("core/dispatch.json", "machines")


@pytest.mark.parametrize("reason", MACHINES)
def test_a_machine_that_cannot_run_the_kernels_runs_the_generic_function(reason):
    wanted = rfrope.rotate(X, TOKENS, OMEGA)
    with standing_in(**MACHINES[reason]) as there:
        with pytest.raises(ImportError, match=re.escape(reason)):
            dispatch.load(dispatch.CUDA.rotation)
        assert dispatch.backend_function(turning.rotated, "cuda") is None
        if there.devices:
            x, positions, omega = (on_device(one.copy()) for one in (X, TOKENS, OMEGA))
            assert dispatch.backend_place(turning.rotated, x) == ""
            found = rfrope.rotate(x, positions, omega)
            assert there.of("launch") == []
            np.testing.assert_allclose(found.get(), wanted, rtol=3e-7, atol=3e-7)


@pytest.mark.parametrize("missing", ["cupy", "rfrope._backends.cuda.rotation"])
def test_without_cupy_or_its_backend_there_is_none_for_cuda(missing):
    with standing_in(), pytest.MonkeyPatch.context() as patch:
        assert dispatch.backend_function(turning.rotated, "cuda") is not None
        patch.setitem(sys.modules, missing, None)
        patch.delattr(cuda, "rotation", raising=False)
        patch.setattr(dispatch, "_FOUND", {})
        device.check.cache_clear()
        assert dispatch.backend_function(turning.rotated, "cuda") is None


# -- repeated calls ----------------------------------------------------------------------------------------------------


REPEATED = {  # calls, and at most how many of Python's functions: five more where PyTorch is not imported yet
    "a new result": (lambda x, p, w, y: rfrope.rotate(x, p, w, scale=2.0, inverse=True), 24),
    "in place": (lambda x, p, w, y: in_place(x, p, w), 26),
    "by a Rope": (lambda x, p, w, y: ROPE.rotate(x, p), 50),
    "frequencies of the host": (lambda x, p, w, y: rfrope.rotate(x, p, OMEGA), 28),
    "into memory": (lambda x, p, w, y: rfrope.rotate(x, p, w, scale=2.0, out=y), 60),
    "by a Rope, into memory": (lambda x, p, w, y: PLAIN_ROPE.rotate(x, p, out=y), 60),
    "by phases": (lambda x, p, w, y: rfrope.rotate_by_phases(x, w, out=y), 300),
}


@pytest.mark.parametrize("name", REPEATED)
def test_a_repeated_call_makes_few_calls_in_python_and_its_launches_serve_inputs_that_changed(name, monkeypatch):
    """Nothing is read, nothing comes from the host, and no memory is asked for but a result's, of CuPy."""
    (call, most), noted, launch, counted = REPEATED[name], [], device.launch, []
    monkeypatch.setattr(device, "launch", lambda *given: noted.append(given) or launch(*given))

    def count(frame, event, _):
        if event == "call" and "/rfrope/" in frame.f_code.co_filename.replace("\\", "/"):
            counted.append(frame.f_code.co_name)

    with standing_in() as machine:
        x, p, w, y = (on_device(one.copy()) for one in (X, TOKENS, OMEGA, X))
        call(x, p, w, y)
        machine.work.clear()
        noted.clear()
        sys.setprofile(count)
        try:
            result = call(x, p, w, y)
        finally:
            sys.setprofile(None)
        assert 5 < len(counted) <= most
        assert [one.kind for one in machine.work if one.name != "empty"] == ["launch"] * len(noted)
        assert machine.of("function") == (["empty"] if result is not x and result is not y else [])
        x.host[...], p.host[...] = X[::-1] * 0.5, TOKENS + 7
        for given in noted:
            launch(*given)
        found = result.get()
        expected = [on_device(one.copy()) for one in (X[::-1] * 0.5, TOKENS + 7, OMEGA, X)]
        np.testing.assert_array_equal(found, call(*expected).get())


def test_copies_of_frequencies_of_the_host_follow_their_numbers():
    omega = OMEGA.copy()
    with standing_in() as machine:
        x, positions = on_device(X.copy()), on_device(TOKENS.copy())
        for _ in range(2):
            for _ in range(2):
                found = rfrope.rotate(x, positions, omega).get()
                np.testing.assert_allclose(found, rfrope.rotate(X, TOKENS, omega), rtol=3e-7, atol=3e-7)
            omega *= 0.5  # the caller's own array, which may change
        assert machine.of("function").count("array") == 2
        with Device(1):
            other, places = on_device(X.copy()), on_device(TOKENS.copy())
        assert rfrope.rotate(other, places, omega).device.id == 1
        assert np.all(np.isnan(rfrope.rotate(x, positions, np.full(8, np.nan)).get()[..., :16]))  # no device looks


def test_many_ropes_in_turn_are_copied_once_and_nothing_waits_for_them():
    ropes = [rfrope.Rope(OMEGA * (1.0 + number)) for number in range(200)]
    with standing_in(devices=2) as machine:
        x, positions = on_device(X.copy()), on_device(TOKENS.copy())
        found = []
        for _ in range(2):
            machine.work.clear()
            for rope in ropes:
                rope.rotate(x, positions, out=x)
            found.append((len(machine.of("read")), machine.of("function").count("array")))
        assert found == [(200, 200), (0, 0)]  # the copies themselves, once
        assert {one.device for one in machine.work} == {0}


def test_every_function_that_calls_use_is_one_of_cupy():
    real, special = pytest.importorskip("cupy"), pytest.importorskip("cupyx.scipy.special")
    with standing_in() as machine:
        for table in (calls.CALLS, calls.FROM_HOST, calls.TO_HOST):
            for name in table:
                supported.results(name, lambda values, dtype=None: on_device(np.array(values, dtype)), table)
        used = {work.name for work in machine.work if work.kind == "function"}
    methods = {name for name in used if hasattr(real.ndarray, name) or hasattr(real.ndarray, f"__{name}__")}
    assert {name for name in used - methods if not (hasattr(real, name) or hasattr(special, name))} == set()
