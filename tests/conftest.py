"""The ``xp`` fixture: every array library that is installed, behind one small face."""

import collections
import contextlib
import functools
import gc
import importlib
import importlib.util
import json
import os
import pathlib
import sys
import tracemalloc
import warnings
import zlib
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import hypothesis
import numpy as np
import pytest
from campaign import covering, in_order

from rfrope import analysis

sys.path.append(str(pathlib.Path(__file__).parents[1]))  # for `tools`, which is not installed
# and subprocesses find the rfrope that is tested, installed or not
_PLACES = str(pathlib.Path(analysis.__file__).parents[2]), os.environ.get("PYTHONPATH", "")
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, _PLACES))
hypothesis.settings.register_profile("no clock", deadline=None)
hypothesis.settings.load_profile("no clock")

if not any(map(os.path.exists, ("/dev/nvidiactl", "/dev/kfd", "/dev/dri"))):
    os.environ.setdefault("TRITON_INTERPRET", "1")  # without a device its interpreter runs kernels: see triton_device

TESTS = pathlib.Path(__file__).parent
LIBRARIES = ("numpy", "read-only numpy", "array-api-strict", "torch", "jax", "dask")
CUDA_LIBRARIES = ("cupy", "torch cuda")  # pytest -m gpu
NO_DEVICE = "no CUDA device"
_MODULES = {"array-api-strict": "array_api_strict", "torch cuda": "torch", "mlx": "mlx.core"}


@dataclass(frozen=True)
class Library:
    """An array library under test.

    ``lib(host)`` makes an array of it, ``lib.host(x)`` brings one back, ``lib.owns(x)`` says whether x is one of its.
    """

    name: str
    module: ModuleType

    @property
    def on_device(self) -> bool:
        """Whether arrays are in the memory of a CUDA device."""
        return self.name in CUDA_LIBRARIES

    @property
    def device(self) -> Any:
        """What ``device=`` gives arrays where this fixture has them; None where the library does so unasked."""
        return self.module.device("cuda", self.module.cuda.current_device()) if self.name == "torch cuda" else None

    @property
    def lazy(self) -> bool:
        """Traces or defers: no value checks, no ``out=``."""
        return self.name in ("jax", "dask")

    @property
    def writable(self) -> bool:
        """Whether arrays made by this fixture can be written to."""
        return not self.lazy and self.name != "read-only numpy"

    def __call__(self, values: Any, dtype: str | None = None) -> Any:
        host = np.array(values, dtype=None if dtype == "bfloat16" else dtype)
        if self.name == "read-only numpy":
            host.flags.writeable = False
        if self.name.endswith("numpy"):
            return host
        if self.name == "dask":
            return self.module.asarray(host, chunks=tuple(max(1, (n + 1) // 2) for n in host.shape))
        return self.module.asarray(host) if self.device is None else self.module.asarray(host, device=self.device)

    def dtype(self, name: str) -> Any:
        return getattr(self.module, name)

    def host(self, x: Any) -> np.ndarray:
        if self.name == "dask":
            return np.asarray(x.compute())
        if self.name in ("torch", "torch cuda"):
            return x.detach().cpu().numpy()
        if self.name == "cupy":
            return self.module.asnumpy(x)
        if self.name == "array-api-strict":
            return np.from_dlpack(x) if x.ndim else np.asarray(x._array)
        return np.asarray(x)

    def owns(self, x: Any) -> bool:
        if self.name.endswith("numpy"):
            return isinstance(x, np.ndarray | np.generic)
        if type(x).__module__.partition(".")[0] not in (_MODULES.get(self.name, self.name).partition(".")[0], "jaxlib"):
            return False
        return self.name != "torch cuda" or x.is_cuda


def rows(file: str, table: str) -> list[Any]:
    """Return a table of a file of tests/; texts among rows that are lists or dicts are headings."""
    read = json.loads((TESTS / file).read_text("utf-8"))[table]
    return [row for row in read if not isinstance(row, str)] or read


def tuples(file: str, table: str) -> Any:
    """Return what `rows` does with tuples for lists, as shapes are."""

    def frozen(value: Any) -> Any:
        return tuple(map(frozen, value)) if isinstance(value, list) else value

    read = rows(file, table)
    return {key: frozen(value) for key, value in read.items()} if isinstance(read, dict) else frozen(read)


def library(name: str) -> Library:
    """Return the library of that name, or skip the test where it is not installed."""
    if name.endswith("numpy"):
        return Library(name, np)
    module = _MODULES.get(name, name)
    found = importlib.util.find_spec(module.partition(".")[0])
    missing = f"{module} is not installed" if found is None else ""
    if name in CUDA_LIBRARIES and (reason := missing or without_device(module)):
        pytest.skip(f"{NO_DEVICE}: {reason}", allow_module_level=True)
    if missing:
        pytest.skip(missing, allow_module_level=True)
    if name == "jax":
        import jax

        jax.config.update("jax_enable_x64", True)
        return Library(name, jax.numpy)
    if name == "dask":
        import dask.array

        dask.config.set(scheduler="synchronous")  # threads cost more than arrays as small as those here
        return Library(name, dask.array)
    return Library(name, importlib.import_module(module))


@functools.cache
def without_device(module: str) -> str:
    """Why CuPy or PyTorch cannot work on a CUDA device here; empty where it can."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            xp = importlib.import_module(module)
            if module == "torch" and not xp.cuda.is_available():
                return "torch.cuda.is_available() is False"
            assert int((xp.ones(3, device="cuda") if module == "torch" else xp.ones(3)).sum()) == 3
        except Exception as error:
            return f"{type(error).__name__}: {error}".partition("\n")[0]
    return ""


@pytest.fixture(params=[*LIBRARIES, *(pytest.param(name, marks=pytest.mark.gpu) for name in CUDA_LIBRARIES)])
def xp(request: pytest.FixtureRequest) -> Library:
    """Every array library in turn; those on a CUDA device are skipped, with the reason, where none works."""
    return library(request.param)


@pytest.fixture
def torch() -> ModuleType:
    """PyTorch; the test is skipped where it is not installed."""
    return library("torch").module


@pytest.fixture
def jax() -> ModuleType:
    """JAX with 64 bits; the test is skipped where it is not installed."""
    library("jax")
    return importlib.import_module("jax")


@pytest.fixture
def narrow(jax: ModuleType) -> Iterator[ModuleType]:
    """JAX without float64."""
    with jax.enable_x64(False) if hasattr(jax, "enable_x64") else contextlib.nullcontext():
        yield jax


@pytest.fixture
def rng() -> np.random.Generator:
    """Return a generator of numbers that begins anew for each test."""
    return np.random.default_rng(20)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Give all tests that need a device or a package one place, and so the summary one line instead of one each."""
    report = yield
    if report.skipped and isinstance(report.longrepr, tuple):
        reason = report.longrepr[2]
        if NO_DEVICE in reason or reason.endswith("is not installed"):
            report.longrepr = (__file__, library.__code__.co_firstlineno, reason)
    return report


@pytest.fixture(scope="session")
def cases() -> pathlib.Path:
    """Folder with the outputs of other projects' code."""
    folder = os.environ.get("RFROPE_CASES")
    if not folder:
        pytest.skip("RFROPE_CASES is not set: it names the folder with outputs of other projects' code")
    return pathlib.Path(folder)


@pytest.fixture(autouse=True)
def same_draws(request):
    """A module's generator RNG starts anew for each test, whichever tests ran before it in this process."""
    rng = getattr(getattr(request.node, "module", None), "RNG", None)
    if isinstance(rng, np.random.Generator):
        rng.bit_generator.state = np.random.default_rng(0).bit_generator.state


@pytest.fixture(autouse=True)
def closed_figures():
    """Figures that a test left open are closed: matplotlib warns of more than twenty."""
    yield
    if pyplot := sys.modules.get("matplotlib.pyplot"):
        pyplot.close("all")


@functools.cache
def _fitted(shape, values, max_lag, names):
    return analysis.fit_kernel(np.frombuffer(values).reshape(shape), max_lag, names=names)


def _keeping(names):
    return lambda w, max_lag: _fitted(w.shape, w.astype(np.float64).tobytes(), max_lag, names)


@pytest.fixture
def peak():
    """``peak()``: the most bytes that Python and NumPy held since ``peak(anew=True)``, or since the test began."""

    def most(*, anew=False):
        if anew:
            tracemalloc.reset_peak()
        return tracemalloc.get_traced_memory()[1]

    tracemalloc.start()
    yield most
    tracemalloc.stop()


@pytest.fixture
def made(request):
    """A config of `engine_configs.CASES`, made when its test runs: some need a comparison of engines first."""
    return request.param()


@pytest.fixture
def kept_fits(monkeypatch):
    """Fits take half a second: in summaries the same frequencies are fitted once in a process."""
    monkeypatch.setattr(analysis.summary, "fit_kernel", _keeping(None))


@pytest.fixture
def quick_fits(monkeypatch):
    """Summaries know two families alone, where it is not the fit that is tested."""
    monkeypatch.setattr(analysis.summary, "fit_kernel", _keeping(("gaussian", "log_uniform")))


@pytest.fixture
def run(capsys, monkeypatch):
    """``run(arguments) -> (exit code, stdout, stderr)``, in this process, on a large terminal, whatever is compiled."""
    from rfrope import cli
    from rfrope.cli import main, shared

    monkeypatch.setenv("COLUMNS", "1000")
    monkeypatch.setattr(shared, "LINES", 10_000)  # what is cut is tested by itself
    monkeypatch.setattr(cli, "say_compiling", lambda: None)

    def call(*arguments):
        try:
            code = main([*map(str, arguments)])
        except SystemExit as stop:  # argparse's own way out
            code = stop.code
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


# -- the suite and the campaign ----------------------------------------------------------------------------------------

PART = "RFROPE_PART"  # "3/8": the third of eight parts of the tests, by the names of their functions


@pytest.hookimpl(tryfirst=True)  # before pytest deselects by markers
def pytest_collection_modifyitems(config, items):
    by_function = collections.defaultdict(list)
    for item in items:
        if hasattr(item, "callspec") and all(mark.name != "campaign" for mark in item.callspec.marks):
            by_function[item.module, item.cls, item.originalname].append(item)
    for grid in by_function.values():
        chosen, long = set(covering(grid)), grid[0].get_closest_marker("campaign") is not None
        others = in_order(item for item in grid if item not in chosen)
        for place, item in enumerate(others):
            item.add_marker("campaign")
            if long or 2 * place >= len(chosen):
                item.add_marker("wide")
    if PART in os.environ:
        part, parts = map(int, os.environ[PART].split("/"))
        found = {True: [], False: []}
        for item in items:
            found[zlib.crc32(item.nodeid.partition("[")[0].encode()) % parts == part - 1].append(item)
        config.hook.pytest_deselected(items=found[False])
        items[:] = found[True]


def pytest_ignore_collect(collection_path):
    """Doctests are the package's: helpers beside the tests are imported by tests alone."""
    helper = collection_path.suffix == ".py" and not collection_path.name.startswith("test_")
    return True if helper and TESTS in collection_path.parents else None


def pytest_collection(session):
    """Nothing that is made while tests are collected is garbage."""
    gc.disable()


def pytest_collection_finish():
    """Thousands of tests are a million objects: who collects garbage need not look at them, and seldom at others."""
    gc.enable()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Neighbours go to one worker, which has then drawn, fitted or compiled what the next test needs, too."""
    from xdist.scheduler import WorkStealingScheduling

    return WorkStealingScheduling(config, log) if config.getvalue("dist") == "load" else None
