"""The choice of a backend: which arrays reach one, and that all goes on without them."""

import importlib
import inspect
import pathlib
import pkgutil
import subprocess
import sys
import types

import numpy as np
import pytest
from campaign import HANGS
from conftest import library

import rfrope
from rfrope import heads, montecarlo  # noqa: F401 - they declare backends
from rfrope._backends import cpu
from rfrope._core import array, dispatch, sums
from rfrope.rotation.turning import rotated

PACKAGE = pathlib.Path(rfrope.__file__).parent

numba = pytest.importorskip("numba", reason="compiled backends need Numba")
if numba.config.DISABLE_JIT:
    pytest.skip("compiled loops need Numba's compiler, which NUMBA_DISABLE_JIT turns off", allow_module_level=True)


@pytest.mark.parametrize(("place", "module", "name"), dispatch.DISPATCHED, ids=str)
def test_backend_functions_have_the_signature_of_the_generic_one(place, module, name):
    if place in ("torch", "triton"):
        library("torch")
    if place == "triton":
        pytest.importorskip("triton", reason="triton is not installed")
    generic = dispatch.DISPATCHED[place, module, name]
    function = getattr(importlib.import_module(f"rfrope._backends.{place}.{module}"), name)
    assert place in ("cuda", "triton") or dispatch.backend_function(generic, place) is function
    assert (function.__name__, function.__module__) == (name, f"rfrope._backends.{place}.{module}")
    own, wanted = (inspect.signature(one).parameters.values() for one in (function, generic.generic))
    assert [(one.name, one.kind, one.default) for one in own] == [(one.name, one.kind, one.default) for one in wanted]


def test_every_backend_is_declared_and_has_a_file():
    backends = {key[:2] for key in dispatch.DISPATCHED}
    assert backends == {*dispatch.CPU, *dispatch.CUDA, dispatch.TORCH_ROTATION, dispatch.TRITON}
    for place, module in backends:
        assert module in {one.name for one in pkgutil.iter_modules([str(PACKAGE / "_backends" / place)])}


def test_two_functions_do_not_share_the_name_of_a_backend_function(monkeypatch):
    monkeypatch.setattr(dispatch, "DISPATCHED", dict(dispatch.DISPATCHED))

    def rotated(x):
        return x

    with pytest.raises(ValueError, match=r"belongs to a function of rfrope\.rotation\.turning; expected another name"):
        dispatch.dispatched(dispatch.CPU.rotation)(rotated)
    assert dispatch.dispatched(dispatch.CPU.sums)(rotated).name == "rotated"


# -- which arrays ------------------------------------------------------------------------------------------------------


def place(*arrays) -> str:
    return dispatch.backend_place(rotated, *arrays)


def test_what_is_said_to_run_is_what_runs(monkeypatch):
    monkeypatch.setattr(dispatch, "DISPATCHED", dict(dispatch.DISPATCHED))
    monkeypatch.setattr(dispatch, "backend_function", lambda function, place: lambda *_, **__: (function.name, place))

    @dispatch.dispatched(dispatch.CPU.rotation)
    def _doubled(x, more=None):
        return "generic"

    for x in (np.ones(3), (None, np.ones(3)), np.ones(3).astype(">f8"), "text", None):
        for found in (_doubled(x), _doubled(None, x), _doubled(None, more=x)):
            where = dispatch.backend_place(_doubled, x)
            assert found == (("doubled", where) if where else "generic"), x
    assert _doubled.generic(np.ones(3)) == "generic"
    assert (_doubled.__name__, _doubled.generic.__name__) == ("_doubled", "_doubled")


def test_plain_memory_reaches_the_loops_and_other_memory_does_not():
    x, unaligned = np.ones((3, 8)), np.empty(25, np.uint8)[1:].view(np.float64)
    read_only = np.broadcast_to(x, (4, 3, 8))
    for arrays in ((x,), (x, None, 1.5), (x, x[::-1, ::2]), (x, read_only), (x, unaligned), (x[:0],), (x, (x, None))):
        assert place(*arrays) == "cpu", arrays

    class Own(np.ndarray):
        pass

    for other in (x.astype(">f8"), x.view(Own), np.ma.ones(3)):
        for arrays in ((x, other), (other, x), (x, (x, other)), ((other, None), x)):
            assert place(*arrays) == "", arrays


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch, about its own use of torch.jit
def test_torch_reaches_loops_without_gradients_and_operators_where_it_is_recorded(torch):
    x, w = torch.ones(3, 8), torch.ones(4, requires_grad=True)

    class Own(torch.Tensor):
        pass

    for one in (x, x.to(torch.bfloat16), x[:, ::2].T, torch.nn.Parameter(x, requires_grad=False)):
        assert place(one) == "cpu"
    for arrays in ((w,), (x, w), ((x, None), w), (x, (w * 2.0)), (x, torch.nn.Parameter(x)), (x.to("meta"),)):
        assert place(*arrays) == "torch"
    for arrays in ((w, np.ones(3)), (w.to_sparse(),), (x.to_sparse(),), (x.as_subclass(Own), w)):
        assert place(*arrays) == ""
    assert dispatch.backend_place(sums.mean_cos, w) == ""  # it has no operator
    with torch.no_grad():
        assert place(torch.nn.Parameter(x)) == "cpu"
    with torch._subclasses.FakeTensorMode():
        assert place(torch.ones(3, 8)) == "torch"
    torch.func.vmap(lambda v: v if not place(v) else pytest.fail("inside vmap"))(x)
    with torch.autograd.forward_ad.dual_level():
        assert place(torch.autograd.forward_ad.make_dual(x, x)) == ""


def test_arrays_on_a_device_reach_its_kernels(monkeypatch):
    monkeypatch.setattr(dispatch, "place_of", lambda values: "cuda")
    monkeypatch.setattr(dispatch, "backend_function", lambda function, place: print)
    assert place(np.ones(3), None) == place((np.ones(3), None)) == "cuda"
    monkeypatch.setattr(dispatch, "backend_function", lambda function, place: None)
    assert place(np.ones(3), None) == ""


# -- without backends --------------------------------------------------------------------------------------------------


def looked_up(place):
    """Look a backend's function up as if for the first time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dispatch, "_FOUND", {})
        return dispatch.backend_function(rotated, place)


def test_a_backend_that_cannot_be_imported_is_not_used_and_other_errors_are_not_hidden(monkeypatch):
    monkeypatch.setitem(sys.modules, "rfrope._backends.cpu.rotation", types.ModuleType("empty"))
    with pytest.raises(AttributeError):
        looked_up("cpu")
    monkeypatch.setitem(sys.modules, "rfrope._backends.cpu.rotation", None)
    monkeypatch.delattr(cpu, "rotation", raising=False)
    assert looked_up("cpu") is None
    monkeypatch.setattr(dispatch, "_FOUND", {})
    assert place(np.ones(3)) == ""


def test_the_library_of_an_array_is_not_imported_to_choose():
    code = (
        "import sys\nimport numpy as np\nfrom rfrope._core import dispatch\nfrom rfrope.rotation import turning\n"
        "assert dispatch.backend_place(turning.rotated, np.ones(3)) == 'cpu'\n"
        "print({'torch', 'jax', 'dask', 'cupy', 'array_api_compat'} & set(sys.modules))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=HANGS)
    assert run.stdout.strip() == "set()"


# -- places -----------------------------------------------------------------------------------------------------------


def test_places_of_arrays(xp):
    x = xp([1.0, 2.0])
    assert array.library(x).is_writable(x) == xp.writable
    where = "cuda" if xp.on_device else "cpu" if xp.name in ("numpy", "read-only numpy", "torch") else ""
    space = array.namespace(x=x)
    for values in ((x,), (x, None, 1.0, "half", True, space), (None, (x, space)), ((None, (x, x)), x)):
        assert dispatch.place_of(values) == where, values


def test_places_of_nothing_and_of_mixtures():
    x, odd = np.ones(3), np.ones(3).astype(">f8")
    given = {"cpu": ((), (None, 1.0, np.float64(2.0), np, ("half", ()))), "": ((x, odd), (x, (None, odd)))}
    assert {where: {dispatch.place_of(one) for one in ones} for where, ones in given.items()} == {
        "cpu": {"cpu"},
        "": {""},
    }
