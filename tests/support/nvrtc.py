"""NVIDIA's run-time compiler, which needs no device: machine code and what each kernel takes of the hardware."""

import contextlib
import ctypes
import importlib.util
import pathlib
import re
import struct
from collections.abc import Iterator
from typing import NamedTuple

from rfrope._backends.cuda import device

MISSING = (
    "nvidia-cuda-nvrtc-cu12, of the extra test, or nvidia-cuda-nvrtc of CUDA 13 must be installed to compile CUDA C++"
)
# What CuPy adds to our own options, and the report on each kernel
_OPTIONS = (*device.OPTIONS, "-ftz=true", "--device-as-default-execution-space", "--ptxas-options=-v")


class Usage(NamedTuple):
    """What one kernel takes: registers of a thread, bytes of a stack and of registers spilled, and instructions."""

    registers: int
    stack: int
    spilled: int
    instructions: int


def compiler() -> ctypes.CDLL | None:
    """Return the compiler's shared library, of a package from PyPI: that of CUDA 12, or else of CUDA 13."""
    for package in ("nvidia.cuda_nvrtc", "nvidia.cu13"):
        with contextlib.suppress(ModuleNotFoundError):
            found = importlib.util.find_spec(package)
            for folder in (found.submodule_search_locations or ()) if found else ():
                for path in sorted(pathlib.Path(folder).glob("lib/libnvrtc.so.*")):
                    if "builtins" not in path.name and ".alt." not in path.name:
                        return ctypes.CDLL(str(path))
    return None


def compiled(text: str, kernels: tuple[str, ...], architecture: int) -> dict[str, Usage]:
    """Compile kernels for an architecture such as 90: what each takes, by its name."""
    found: dict[str, str] = {}
    with _program(text, kernels, f"-arch=sm_{architecture}") as (nvrtc, program, log):
        for kernel in kernels:
            name = ctypes.c_char_p()
            _check(nvrtc.nvrtcGetLoweredName(program, kernel.encode(), ctypes.byref(name)))
            found[name.value.decode()] = kernel
        assert "error" not in log
        return _usage(log, _bytes(nvrtc, program, "CUBIN"), found)


def intermediate(text: str, kernel: str, architecture: int = 90) -> str:
    """Return a kernel in PTX, the code between C++ and machine code."""
    with _program(text, (kernel,), f"-arch=compute_{architecture}") as (nvrtc, program, _):
        return _bytes(nvrtc, program, "PTX").decode()


@contextlib.contextmanager
def _program(text: str, kernels: tuple[str, ...], target: str) -> Iterator[tuple[ctypes.CDLL, ctypes.c_void_p, str]]:
    """Compile with the options that CuPy is given, and those that it adds."""
    nvrtc = compiler()
    assert nvrtc is not None, MISSING
    program = ctypes.c_void_p()
    _check(nvrtc.nvrtcCreateProgram(ctypes.byref(program), text.encode(), b"kernels.cu", 0, None, None))
    try:
        for kernel in kernels:
            _check(nvrtc.nvrtcAddNameExpression(program, kernel.encode()))
        options = [option.encode() for option in (*_OPTIONS, target)]
        failed = nvrtc.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
        log = _bytes(nvrtc, program, "ProgramLog").decode()
        assert not failed, log
        yield nvrtc, program, log
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def _check(code: int) -> None:
    assert code == 0, f"NVRTC answered {code}"


def _bytes(nvrtc: ctypes.CDLL, program: ctypes.c_void_p, what: str) -> bytes:
    size = ctypes.c_size_t()
    _check(getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
    buffer = ctypes.create_string_buffer(size.value)
    _check(getattr(nvrtc, f"nvrtcGet{what}")(program, buffer))
    return buffer.raw.rstrip(b"\0") if what == "ProgramLog" else buffer.raw


def _usage(log: str, cubin: bytes, mangled: dict[str, str]) -> dict[str, Usage]:
    """Read ptxas' report, three lines for a kernel, and the lengths of the kernels' code."""
    found = re.findall(
        r"Compiling entry function '(\w+)'.*?(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads"
        r".*?Used (\d+) registers",
        log,
        re.DOTALL,
    )
    lengths = _sections(cubin)
    return {
        mangled[name]: Usage(int(registers), int(stack), int(stores) + int(loads), lengths[f".text.{name}"] // 16)
        for name, stack, stores, loads, registers in found
    }


def _sections(cubin: bytes) -> dict[str, int]:
    """Bytes of each section of an ELF file of 64 bits; an instruction has 16 of them since Volta."""
    (start,), (size, count, of_names) = struct.unpack_from("<Q", cubin, 40), struct.unpack_from("<HHH", cubin, 58)
    headers = [struct.unpack_from("<I20xQQ", cubin, start + size * i) for i in range(count)]
    names = headers[of_names][1]
    return {cubin[names + name :].partition(b"\0")[0].decode(): length for name, _, length in headers}
