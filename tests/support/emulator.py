"""Runs the text of the .cu files on the CPU: g++ compiles it with a small header, and NumPy arrays stand for CuPy's."""

import contextlib
import ctypes
import functools
import hashlib
import importlib
import os
import pathlib
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from types import ModuleType

import numpy as np
import pytest

from rfrope._backends.cuda import device
from rfrope._core import dispatch
from rfrope.rotation import turning

COMPILER = shutil.which("g++")
NO_COMPILER = "the kernels' text is run on the CPU by g++, which is missing"
_HEADER = pathlib.Path(__file__).with_name("emulated.hpp")
_FLAGS = ("-std=c++17", "-O1", "-ffp-contract=off", "-march=native", "-Wno-psabi", "-shared", "-fPIC")


class Emulator:
    """The kernels of a .cu file, compiled for the CPU.

    Parameters
    ----------
    text : str
        All of a file, as it is given to NVRTC.
    kernels : sequence of str
        Names with template arguments: those that can be launched.
    """

    def __init__(self, text: str, kernels: tuple[str, ...]) -> None:
        self._numbers = {kernel: i for i, kernel in enumerate(kernels)}
        self._barriers = "__syncthreads" in text
        self._library = ctypes.CDLL(str(_built(_translation(text, kernels))))

    def launch(self, kernel: str, blocks: int, threads: int, plan: np.ndarray, *, backward: bool = False) -> None:
        """Run a grid; the plan must have the size of the structure that the kernel takes."""
        function = getattr(self._library, f"launch_{self._numbers[kernel]}")
        assert plan.size == 1
        assert plan.nbytes == function(None, 0, 0, 0, 0), f"{kernel}: its plan has another size in Python"
        failed = function(ctypes.c_void_p(plan.ctypes.data), blocks, threads, int(self._barriers), int(backward))
        assert not failed, f"{kernel}: only some threads of a block came to a barrier"


def _translation(text: str, kernels: tuple[str, ...]) -> str:
    """C++ for g++, with a function to launch every kernel; called without a plan it returns the size of one."""
    parts = [f'#include "{_HEADER.name}"', text]
    parts.append("template <class P> static P plan_of(void (*)(const P));")
    for i, kernel in enumerate(kernels):
        parts.append(
            f"static void run_{i}(const void* plan) {{\n"
            f"    typedef decltype(plan_of({kernel})) Plan;\n"
            f"    {kernel}(*static_cast<const Plan*>(plan));\n"
            "}\n"
            f'extern "C" int launch_{i}(const void* plan, unsigned blocks, unsigned threads, int waits, int back) {{\n'
            f"    if (!plan) return sizeof(decltype(plan_of({kernel})));\n"
            f"    return emulated::run(run_{i}, plan, blocks, threads, waits, back);\n"
            "}"
        )
    return "\n".join(parts)


def _built(translation: str) -> pathlib.Path:
    """Compile, or find what was compiled before."""
    if COMPILER is None:
        pytest.skip(NO_COMPILER)
    version = subprocess.run([COMPILER, "--version"], capture_output=True, text=True, check=True).stdout
    key = hashlib.sha256("\0".join((translation, _HEADER.read_text("utf-8"), version, *_FLAGS)).encode()).hexdigest()
    user = os.getuid() if hasattr(os, "getuid") else 0
    folder = pathlib.Path(tempfile.gettempdir()) / f"rfrope-emulated-{user}"
    folder.mkdir(mode=0o700, exist_ok=True)
    owner = folder.stat()
    assert not folder.is_symlink()
    assert (owner.st_uid, owner.st_mode & 0o77) == (user, 0), f"{folder} may be another user's"
    target = folder / f"{key}.so"
    if not target.exists():
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            source, built = pathlib.Path(scratch, "kernels.cpp"), pathlib.Path(scratch, "kernels.so")
            source.write_text(translation, "utf-8")
            command = [COMPILER, *_FLAGS, f"-I{_HEADER.parent}", str(source), "-o", str(built)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr[-4000:]
            os.replace(built, target)
    return target


@functools.cache
def emulator(source: str) -> Emulator:
    """Return the kernels of a .cu file as they stand."""
    return Emulator(device.text(source), kernels(source))


def kernels(source: str) -> tuple[str, ...]:
    """Return the names of all the kernels that the backend of a .cu file may launch."""
    return importlib.import_module(f"rfrope._backends.cuda.{source}").KERNELS


@contextlib.contextmanager
def emulation(*, backward: bool = False) -> Iterator[list[str]]:
    """Let NumPy arrays count as arrays on a CUDA device, whose kernels the CPU runs; yields the kernels that ran."""
    ran: list[str] = []
    load = dispatch.load

    def launch(source: str, kernel: str, blocks: int, threads: int, plan: np.ndarray) -> None:
        if blocks > 0:
            ran.append(kernel)
            emulator(source).launch(kernel, blocks, threads, plan, backward=backward)

    def load_for_cuda(backend: dispatch.Backend) -> ModuleType:
        if backend.place != "cuda":
            raise ImportError("taken away")
        return load(backend)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dispatch, "place_of", lambda values: "cuda")
        patch.setattr(dispatch, "load", load_for_cuda)
        patch.setattr(dispatch, "_FOUND", {})
        patch.setattr(turning, "load_fast_path", lambda: None)
        patch.setattr(device, "check", lambda: None)
        patch.setattr(device, "_evict", lambda: None)
        patch.setattr(device, "space", lambda: np)
        patch.setattr(device, "place", lambda x: contextlib.nullcontext())
        patch.setattr(device, "view", lambda x: x)
        patch.setattr(device, "address", lambda x: x.ctypes.data)
        patch.setattr(device, "launch", launch)
        yield ran
