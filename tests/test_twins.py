"""The one choice of twins: which arrays reach one, and that all goes on without them."""

from __future__ import annotations

import importlib
import inspect
import os
import pathlib
import re
import subprocess
import sys
import types

import numpy as np
import pytest
from campaign import HANGS, campaign
from conftest import library

import rfrope
from rfrope._accel import cpu, cuda
from rfrope._accel import torch as recorded
from rfrope._accel.cuda import door
from rfrope._core import memory, twins

ROOT = pathlib.Path(__file__).parents[1]
PACKAGE = pathlib.Path(rfrope.__file__).parent
MADE_OF = {  # modules beside the leaves, which these are made of
    *("__init__", "compiling", "circle", "rotation_rows", "rotation_loops", "coefficient_loops", "sums_loops"),
    "pairs_loops",
    "rotation_walks",
    "step_loops",
    "estimator_loops",
    "door",
}

numba = pytest.importorskip("numba", reason="compiled twins need Numba")
if numba.config.DISABLE_JIT:
    pytest.skip("compiled twins need Numba's compiler, which NUMBA_DISABLE_JIT turns off", allow_module_level=True)


def anew(name, place):
    """Look a twin up as if for the first time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(twins, "_FOUND", {})
        return twins.twin_of(name, place)


def declared() -> dict[str, twins.Twinned]:
    """Every function of the library that has a twin, by its module and the twin's name."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        if re.search(r"^@twinned\(", path.read_text("utf-8"), re.MULTILINE):
            name = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
            module = importlib.import_module(name)
            for value in vars(module).values():
                if isinstance(value, types.FunctionType) and hasattr(value, "generic") and value.__module__ == name:
                    found[f"{name}.{value.__name__.lstrip('_')}"] = value
    return found


DECLARED = declared()
TWINS = [(name, place) for name, leaves in twins.DECLARED.items() for place in leaves._fields if getattr(leaves, place)]


def test_every_twin_is_declared_at_its_generic_function():
    assert set(DECLARED) == set(twins.DECLARED)


@pytest.mark.parametrize(("name", "place"), TWINS)
def test_a_twin_has_the_signature_of_its_generic_function(name, place):
    leaf = getattr(twins.DECLARED[name], place)
    if place == "torch":
        library("torch")
    bare = name.rpartition(".")[2]
    twin = getattr(importlib.import_module(f"rfrope._accel.{place}.{leaf}"), bare)
    assert place == "cuda" or twins.twin_of(name, place) is twin
    assert twins.CHOOSING[name] is DECLARED[name]
    assert DECLARED[name].name == name
    assert twin.__name__ == bare
    assert twin.__module__ == f"rfrope._accel.{place}.{leaf}"
    for one, other in zip(
        inspect.signature(twin).parameters.values(),
        inspect.signature(DECLARED[name].generic).parameters.values(),
        strict=True,
    ):
        assert (one.name, one.kind, one.default) == (other.name, other.kind, other.default)


@pytest.mark.parametrize("place", ["cpu", "cuda", "torch"])
def test_every_leaf_is_declared_by_a_function(place):
    leaves = {path.stem for path in (PACKAGE / "_accel" / place).glob("*.py")} - MADE_OF
    assert leaves == {getattr(leaves, place) for leaves in twins.DECLARED.values()} - {None}
    assert leaves == set({"cpu": cpu, "cuda": cuda, "torch": recorded}[place].LEAVES)


def test_cuda_kernels_have_a_leaf_of_their_name():
    assert {path.stem for path in (PACKAGE / "_accel" / "cuda").glob("*.cu")} == set(cuda.LEAVES)


def test_both_places_have_the_same_leaves():
    assert cpu.LEAVES == cuda.LEAVES


# -- which arrays ------------------------------------------------------------------------------------------------------


def chosen(*arrays) -> bool:
    """Whether a function would run its twin for the CPU."""
    return twins.where("rfrope.rotation.turning.rotated", *arrays) == "cpu"


def test_what_is_said_to_run_is_what_runs(monkeypatch):
    ran = []
    monkeypatch.setattr(twins, "twin_of", lambda name, place: lambda *arguments, **options: ran.append((name, place)))

    @twins.twinned(cpu="anywhere")
    def _doubled(x, more=None):
        ran.append("generic")

    try:
        for x in (np.ones(3), (None, np.ones(3)), np.ones(3).astype(">f8"), "text", None):
            for call in (lambda x=x: _doubled(x), lambda x=x: _doubled(None, x), lambda x=x: _doubled(None, more=x)):
                ran.clear()
                call()
                place = twins.where(_doubled.name, x)
                assert ran == [(f"{__name__}.doubled", place) if place else "generic"], x
        ran.clear()
        _doubled.generic(np.ones(3))
        assert ran == ["generic"]
        assert (_doubled.__name__, _doubled.generic.__name__) == ("_doubled", "_doubled")
    finally:
        del twins.DECLARED[_doubled.name], twins.CHOOSING[_doubled.name]


def test_functions_of_one_name_do_not_share_a_twin(monkeypatch):
    for table in ("DECLARED", "CHOOSING"):
        monkeypatch.setattr(twins, table, dict(getattr(twins, table)))

    def rotated(x):
        return x

    mine = twins.twinned(cuda="elsewhere")(rotated)  # of another leaf
    assert mine.name == f"{__name__}.rotated"
    assert twins.DECLARED["rfrope.rotation.turning.rotated"].cpu == "rotation"
    assert twins.DECLARED[mine.name].cuda == "elsewhere"
    with pytest.raises(ValueError, match=r"has the twin of rfrope\.rotation\.turning\.rotated in cpu; expected"):
        twins.twinned(cpu="rotation")(rotated)


def test_plain_memory_is_chosen():
    x = np.ones((3, 8))
    read_only = np.ones(3)
    read_only.flags.writeable = False
    for arrays in (
        (x,),
        (x, None),
        (x, 1.5),
        (x, x[::-1, ::2]),
        (x, read_only),
        (x, np.empty(x.nbytes + 1, np.uint8)[1:].view(np.float64)),
        (np.broadcast_to(x, (4, 3, 8)),),
        (x[:0],),
        (x, (x, None)),
    ):
        assert chosen(*arrays), arrays


def test_other_memory_is_not():
    x = np.ones((3, 8))

    class Own(np.ndarray):
        pass

    for other in (x.astype(">f8"), x.view(Own), np.ma.ones(3)):
        assert not chosen(x, other), other
        assert not chosen(other, x), other
        assert not chosen(x, (x, other)), other
        assert not chosen((other, None), x), other


@pytest.mark.parametrize("name", ["array-api-strict", "jax", "dask"])
def test_libraries_whose_memory_is_their_own_are_not_chosen(name):
    lib = library(name)
    assert not chosen(lib(np.ones(3)))
    assert not chosen(lib(np.ones(3)), None, 1.0)
    assert not chosen((lib(np.ones(3)), None))


def test_torch_is_chosen_on_the_cpu_and_without_gradients():
    torch = library("torch").module
    x = torch.ones(3, 8)
    assert chosen(x)
    assert chosen(x.to(torch.bfloat16))
    assert chosen(x[:, ::2].T)
    assert chosen(torch.nn.Parameter(x, requires_grad=False))
    assert not chosen(torch.nn.Parameter(x))
    assert not chosen(x, x.clone().requires_grad_())
    assert not chosen(x, (x.clone().requires_grad_() * 2.0))
    assert not chosen(torch.ones(3, 8, device="meta"))
    assert not chosen(x.to_sparse())
    with torch.no_grad():
        assert chosen(torch.nn.Parameter(x))
    with torch._subclasses.FakeTensorMode():
        assert not chosen(torch.ones(3, 8))
    torch.func.vmap(lambda v: v if not chosen(v) else pytest.fail("inside vmap"))(x)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch, about its own use of torch.jit
def test_torch_that_is_recorded_is_chosen_for_operators():
    torch = library("torch").module
    x, w = torch.ones(3, 8), torch.ones(4, requires_grad=True)

    def where(*arrays):
        return twins.where("rfrope.rotation.turning.rotated", *arrays)

    assert where(w) == where(x, w) == where((x, None), w) == "torch"
    assert where(x, torch.nn.Parameter(x)) == where(torch.ones(3, 8, device="meta")) == "torch"
    with torch._subclasses.FakeTensorMode():
        assert where(torch.ones(3, 8)) == "torch"

    class Own(torch.Tensor):
        pass

    assert where(w, np.ones(3)) == where(w.to_sparse()) == where(x.as_subclass(Own), w) == ""
    assert twins.where("rfrope._core.sums.mean_cos", w) == ""  # it has no operator
    torch.func.vmap(lambda v: v if not where(v) else pytest.fail("inside vmap"))(x)
    with torch.autograd.forward_ad.dual_level():
        assert where(torch.autograd.forward_ad.make_dual(x, x)) == ""


def test_no_more_is_looked_at_than_the_arrays(monkeypatch):
    monkeypatch.setattr(twins, "twin_of", lambda name, place: pytest.fail(f"{name} was looked up"))
    assert twins.where("rfrope.rotation.turning.rotated", np.ones(3).astype(">f8")) == ""


def test_arrays_on_a_device_are_chosen_for_its_twins(monkeypatch):
    monkeypatch.setattr(memory, "in_memory", lambda x: x is None)
    monkeypatch.setattr(memory, "on_cuda", lambda x: True)
    looked_up = []
    monkeypatch.setattr(twins, "twin_of", lambda name, place: looked_up.append((name, place)) or print)
    assert twins.where("rfrope.rotation.turning.rotated", np.ones(3), None) == "cuda"
    assert twins.where("rfrope.rotation.turning.rotated", (np.ones(3), None)) == "cuda"
    assert looked_up == [("rfrope.rotation.turning.rotated", "cuda")] * 2
    monkeypatch.setattr(twins, "twin_of", lambda name, place: None)
    assert twins.where("rfrope.rotation.turning.rotated", np.ones(3), None) == ""
    monkeypatch.setattr(memory, "on_cuda", lambda x: x is None)
    monkeypatch.setattr(twins, "twin_of", lambda name, place: pytest.fail(f"{name} was looked up"))
    assert twins.where("rfrope.rotation.turning.rotated", np.ones(3), None) == ""


# -- without the leaves ------------------------------------------------------------------------------------------------


def test_a_leaf_that_cannot_be_imported_is_no_twin(monkeypatch):
    monkeypatch.setitem(sys.modules, "rfrope._accel.cpu.rotation", None)
    monkeypatch.delattr(cpu, "rotation", raising=False)
    assert anew("rfrope.rotation.turning.rotated", "cpu") is None
    monkeypatch.setattr(twins, "_FOUND", {})
    assert twins.where("rfrope.rotation.turning.rotated", np.ones(3)) == ""


@pytest.mark.parametrize("missing", ["cupy", "rfrope._accel.cuda.rotation"])
def test_without_cupy_or_its_leaf_there_is_no_twin_for_cuda(monkeypatch, missing):
    cupy = a_cupy(monkeypatch)
    assert anew("rfrope.rotation.turning.rotated", "cuda") is not None
    monkeypatch.setitem(sys.modules, missing, None)
    monkeypatch.delattr(cuda, "rotation", raising=False)
    door.check.cache_clear()
    assert anew("rfrope.rotation.turning.rotated", "cuda") is None
    assert cupy.asked


def a_cupy(monkeypatch, *, capability=(9, 0), devices=1, compiler=True):
    """Put a CuPy in place that has some devices, and forget what was found out before."""

    def count():
        cupy.asked = True
        if not devices:
            raise RuntimeError("cudaErrorInsufficientDriver")
        return devices

    def properties(number):
        return dict(zip(("major", "minor"), capability if number == devices - 1 else (9, 0), strict=True))

    cupy = types.ModuleType("cupy")
    cupy.asked = False
    cupy.cuda = types.SimpleNamespace(
        runtime=types.SimpleNamespace(getDeviceCount=count, getDeviceProperties=properties)
    )
    nvrtc = types.ModuleType("nvrtc")
    if compiler:
        nvrtc.getVersion = lambda: (12, 9)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setitem(sys.modules, "cupy_backends.cuda.libs.nvrtc", nvrtc)
    for name in ("cupy_backends", "cupy_backends.cuda", "cupy_backends.cuda.libs"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    door.check.cache_clear()
    return cupy


@pytest.mark.parametrize(
    ("machine", "reason"),
    [
        ({"devices": 0}, "RuntimeError: cudaErrorInsufficientDriver"),
        ({"devices": 2, "capability": (6, 1)}, "compute capability 6.1; the kernels need 7.0 on every device"),
        ({"compiler": False}, "getVersion"),
    ],
)
def test_a_machine_whose_device_cannot_run_the_kernels_has_no_twin_for_cuda(monkeypatch, machine, reason):
    a_cupy(monkeypatch, **machine)
    with pytest.raises(ImportError, match=re.escape(reason)):
        door.check()
    assert anew("rfrope.rotation.turning.rotated", "cuda") is None


@pytest.fixture(autouse=True)
def _nothing_is_known_of_cuda():
    yield
    door.check.cache_clear()


def test_other_errors_of_a_leaf_are_not_hidden(monkeypatch):
    monkeypatch.setitem(sys.modules, "rfrope._accel.cpu.rotation", types.ModuleType("empty"))
    with pytest.raises(AttributeError):
        anew("rfrope.rotation.turning.rotated", "cpu")


SITE = '''
"""Take the leaves away, as if their files were not there, from this process and those that it starts."""
import sys


class Nothing:
    def find_spec(self, name, path=None, target=None):
        if name.startswith(("rfrope._accel.cpu.", "rfrope._accel.cuda.", "rfrope._accel.torch.")):
            raise ImportError(f"{name} was taken away")


sys.meta_path.insert(0, Nothing())
'''

PLUGIN = '''
"""Say at the end whether a leaf came in."""
import sys


def pytest_sessionfinish(session):
    from rfrope._core import twins

    leaves = [name for name in sys.modules if name.startswith(("rfrope._accel.cpu.", "rfrope._accel.cuda."))]
    found = [name for name in twins.DECLARED for place in ("cpu", "cuda") if twins.twin_of(name, place) is not None]
    print(f"[declared {len(twins.DECLARED)}, leaves {leaves}, twins {found}]")
'''


@campaign
def test_the_suite_passes_without_the_leaves(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(SITE)
    (tmp_path / "seen_leaves.py").write_text(PLUGIN)
    known = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "NUMBA_", "RFROPE_"))}
    known["PYTHONPATH"] = os.pathsep.join([str(tmp_path), *filter(None, [known.get("PYTHONPATH")])])
    some = ["tests/test_rotation.py", "tests/test_philox.py", "tests/test_moments.py", "tests/test_sampling.py"]
    run = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-m", "", "-p", "seen_leaves", "-p", "no:cacheprovider"),
            *("-k", "not torch and not jax and not dask and not gradients", *some),
        ],
        capture_output=True,
        text=True,
        timeout=HANGS,
        cwd=ROOT,
        env=known,
    )
    assert run.returncode == 0, run.stdout[-5000:]
    seen = re.search(r"\[declared (\d+), leaves \[\], twins \[\]\]", run.stdout)
    assert seen, run.stdout[-2000:]
    assert int(seen[1]) > 5  # functions with twins are declared where their modules are loaded
    assert int(re.search(r"(\d+) passed", run.stdout)[1]) > 500


def test_the_library_of_an_array_is_not_imported_to_choose():
    code = (
        "import sys\nimport numpy as np\nfrom rfrope._core import twins\nfrom rfrope.rotation import turning\n"
        "assert twins.where('rfrope.rotation.turning.rotated', np.ones(3)) == 'cpu'\n"
        "print({'torch', 'jax', 'dask', 'cupy', 'array_api_compat'} & set(sys.modules))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=HANGS)
    assert run.stdout.strip() == "set()"
    assert memory.in_memory(None)
