"""The one lookup that chooses: which arrays reach a twin, and that all goes on without them."""

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

from rfrope import _accel, montecarlo
from rfrope._core import array, philox, sums
from rfrope.rotation import turning
from rfrope._accel.cuda import door

ROOT = pathlib.Path(__file__).parents[2]
SHARED = {"cuda", "layout", "laws", "reports", "transforms"}  # what leaves have in common
HELPERS = {"rotated_again"}  # shortcuts that have no generic function of their own

numba = pytest.importorskip("numba", reason="compiled twins need Numba")
if numba.config.DISABLE_JIT:
    pytest.skip("compiled twins need Numba's compiler, which NUMBA_DISABLE_JIT turns off", allow_module_level=True)


def generic_of(name: str):
    """Generic function of a twin: private, or of a private module."""
    found = [
        function
        for module in (rotation, montecarlo, _sums, _philox)
        for function in (getattr(module, f"_{name}", None), getattr(module, name, None))
        if isinstance(function, types.FunctionType) and function.__module__ == module.__name__
    ]
    assert len(found) == 1, f"{name} is the twin of {found}"
    return found[0]


@pytest.mark.parametrize("name", sorted(set(_accel._LEAVES) - HELPERS))
def test_a_twin_has_the_signature_of_its_generic_function(name):
    check_twin(name, _accel.twin(name), _accel._LEAVES[name])


@pytest.mark.parametrize("name", sorted(_accel._CUDA_LEAVES))
def test_a_twin_for_cuda_has_the_signature_of_its_generic_function(name):
    leaf = importlib.import_module(f"rfrope._accel.{_accel._CUDA_LEAVES[name]}")
    check_twin(name, getattr(leaf, name), _accel._CUDA_LEAVES[name])


def check_twin(name: str, twin, leaf: str) -> None:
    generic = generic_of(name)
    assert twin.__name__ == name
    assert twin.__module__ == f"rfrope._accel.{leaf}"
    for one, other in zip(
        inspect.signature(twin).parameters.values(), inspect.signature(generic).parameters.values(), strict=True
    ):
        assert (one.name, one.kind, one.default) == (other.name, other.kind, other.default)


def test_every_leaf_is_named_by_the_lookup():
    folder = pathlib.Path(_accel.__file__).parent
    leaves = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    leaves -= {name for name in leaves if name.endswith("_loops")} | SHARED
    assert leaves == {*_accel._LEAVES.values(), *_accel._CUDA_LEAVES.values()}


def test_cuda_kernels_have_a_leaf_of_their_name():
    folder = pathlib.Path(_accel.__file__).parent
    assert {f"cuda_{path.stem}" for path in folder.glob("*.cu")} == set(_accel._CUDA_LEAVES.values())


# -- which arrays ------------------------------------------------------------------------------------------------------


def chosen(*arrays) -> bool:
    found = _accel.choose(rotation._rotated, *arrays)
    assert found in (rotation._rotated, _accel.twin("rotated"))
    return found is not rotation._rotated


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
        (np.broadcast_to(x, (4, 3, 8)),),
        (x[:0],),
    ):
        assert chosen(*arrays), arrays


def test_other_memory_is_not():
    x = np.ones((3, 8))
    unaligned = np.empty(x.nbytes + 1, np.uint8)[1:].view(np.float64)

    class Own(np.ndarray):
        pass

    for other in (x.astype(">f8"), unaligned, x.view(Own), np.ma.ones(3), "text", object()):
        assert not chosen(x, other), other
        assert not chosen(other, x), other


@pytest.mark.parametrize("name", ["array-api-strict", "jax", "dask"])
def test_libraries_whose_memory_is_their_own_are_not_chosen(name):
    lib = library(name)
    assert not chosen(lib(np.ones(3)))
    assert not chosen(lib(np.ones(3)), None, 1.0)


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


def test_no_more_is_looked_at_than_the_arrays(monkeypatch):
    monkeypatch.setattr(_accel, "twin", lambda name: pytest.fail(f"{name} was looked up"))
    assert _accel.choose(rotation._rotated, np.ones(3).astype(">f8")) is rotation._rotated


def test_arrays_on_a_device_are_chosen_for_its_twins(monkeypatch):
    monkeypatch.setattr(_array, "in_memory", lambda x: x is None)
    monkeypatch.setattr(_array, "on_cuda", lambda x: True)
    monkeypatch.setattr(_accel, "cuda_twin", lambda name: f"the twin of {name}")
    assert _accel.choose(rotation._rotated, np.ones(3), None) == "the twin of rotated"
    monkeypatch.setattr(_accel, "cuda_twin", lambda name: None)
    assert _accel.choose(rotation._rotated, np.ones(3), None) is rotation._rotated
    monkeypatch.setattr(_array, "on_cuda", lambda x: x is None)
    assert _accel.choose(rotation._rotated, np.ones(3), None) is rotation._rotated


# -- without the leaves ------------------------------------------------------------------------------------------------


def test_a_leaf_that_cannot_be_imported_is_no_twin(monkeypatch):
    monkeypatch.setitem(sys.modules, "rfrope._accel.cpu.rotation", None)
    monkeypatch.delattr(_accel, "rotation", raising=False)
    assert _accel.twin.__wrapped__("rotated") is None
    monkeypatch.setattr(_accel, "twin", _accel.twin.__wrapped__)
    assert _accel.choose(rotation._rotated, np.ones(3)) is rotation._rotated


@pytest.mark.parametrize("missing", ["cupy", "rfrope._accel.cuda.door.rotation"])
def test_without_cupy_or_its_leaf_there_is_no_twin_for_cuda(monkeypatch, missing):
    cupy = a_cupy(monkeypatch)
    assert _accel.cuda_twin.__wrapped__("rotated") is not None
    monkeypatch.setitem(sys.modules, missing, None)
    monkeypatch.delattr(_accel, "cuda_rotation", raising=False)
    cuda.check.cache_clear()
    assert _accel.cuda_twin.__wrapped__("rotated") is None
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
    cuda.check.cache_clear()
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
        cuda.check()
    assert _accel.cuda_twin.__wrapped__("rotated") is None


@pytest.fixture(autouse=True)
def _nothing_is_known_of_cuda():
    yield
    cuda.check.cache_clear()


def test_other_errors_of_a_leaf_are_not_hidden(monkeypatch):
    monkeypatch.setitem(sys.modules, "rfrope._accel.cpu.rotation", types.ModuleType("empty"))
    with pytest.raises(AttributeError):
        _accel.twin.__wrapped__("rotated")


SITE = '''
"""Take the leaves away, as if their files were not there, from this process and those that it starts."""
import sys


class Nothing:
    def find_spec(self, name, path=None, target=None):
        if name.startswith("rfrope._accel."):
            raise ImportError(f"{name} was taken away")


sys.meta_path.insert(0, Nothing())
'''

PLUGIN = '''
"""Say at the end whether a leaf came in."""
import sys


def pytest_sessionfinish(session):
    from rfrope import _accel

    leaves = [name for name in sys.modules if name.startswith("rfrope._accel.")]
    twins = [name for name in _accel._LEAVES if _accel.twin(name) is not None]
    print(f"[leaves {leaves}, twins {twins}]")
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
    assert "[leaves [], twins []]" in run.stdout
    assert int(re.search(r"(\d+) passed", run.stdout)[1]) > 500


# -- compilation -------------------------------------------------------------------------------------------------------


def test_loops_release_the_interpreter_and_divide_like_numpy():
    divide = _accel.compiled(eval("lambda x, y: x / y"))  # a function without a file has no place for a cache
    assert divide(1.0, 0.0) == np.inf
    assert divide.targetoptions["nogil"]


@campaign
def test_a_loop_with_a_file_is_kept_on_disk(tmp_path):
    (tmp_path / "added.py").write_text(
        "import os\nos.environ['NUMBA_CACHE_DIR'] = os.path.dirname(__file__)\n"
        "from rfrope._accel import compiled\n"
        "@compiled\ndef add(x, y):\n    return x + y\n"
        "print(add(1, 2), sum(add.stats.cache_hits.values()), sum(add.stats.cache_misses.values()))\n"
    )
    words = [
        subprocess.run(
            [sys.executable, str(tmp_path / "added.py")], capture_output=True, text=True, check=True, timeout=HANGS
        ).stdout.split()
        for _ in range(2)
    ]
    assert words == [["3", "0", "1"], ["3", "1", "0"]]


def test_the_library_of_an_array_is_not_imported_to_choose():
    code = (
        "import sys\nimport numpy as np\nfrom rfrope import _accel, rotation\n"
        "_accel.choose(rotation._rotated, np.ones(3))\n"
        "print({'torch', 'jax', 'dask', 'cupy', 'array_api_compat'} & set(sys.modules))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=HANGS)
    assert run.stdout.strip() == "set()"
    assert memory.in_memory(None)
