"""The compile gate: every CUDA kernel becomes machine code for every architecture, within its share of the hardware.

With ``-s`` the compiler's report on each kernel is printed; the file that RFROPE_COMPILE_LOG names gets it, too.
"""

from __future__ import annotations

import os
import pathlib
import re
import sys

import nvrtc
import pytest
from campaign import campaign, sparse
from emulator import kernels

from rfrope._backends import cuda
from rfrope._backends.cuda import device

pytestmark = pytest.mark.skipif(nvrtc.compiler() is None, reason=nvrtc.MISSING)

ARCHITECTURES = (70, 80, 90, 100, 120)  # Volta, Ampere, Hopper, Blackwell of data centres and of desktops
SOURCES = tuple(sorted(path.stem for path in pathlib.Path(cuda.__file__).parent.glob("*.cu")))

# Most registers of a thread, on any architecture: first pattern that fits a kernel's name. Beside each, how many
# blocks of how many threads a multiprocessor, which has 65536 registers, then holds at least.
REGISTERS = {
    "estimators": {
        r"score_sums<\w+, 1, 1>": 80,  # 3 of 256
        r"score_sums<.*>": 128,  # 2 of 256
        r".*": 80,  # 3 of 256
    },
    "sums": {
        r"sum_few<\w+, 1, 2>": 96,  # 2 of 256
        r"sum_any<\w+>": 112,  # 2 of 256
        r".*": 80,  # 3 of 256
    },
    "rotation": {
        r"rotate<\w+, 1, .*>": 64,  # 4 of 256
        r"rotate<.*>": 80,  # 3 of 256
    },
}
# Most instructions of a kernel, on any architecture, those that only wait included
INSTRUCTIONS = {
    "estimators": {r"score_sums<.*>": 5500, r".*": 4000},
    "sums": {r".*": 3500},
    "rotation": {r"rotate<\w+, 1, .*>": 1200, r"rotate<.*>": 1500},
}
# Bytes of a stack: cos and sin of large phases, by the library's reduction with 2/pi to many digits
STACKS = {
    "estimators": {r"score_sums<.*>": 40},
    "rotation": {r"rotate<\w+, \d, PHASES, \w+>": 40},
    "sums": {r"sum_any<\w+>": 40},
}


def limit(table: dict[str, int], kernel: str, otherwise: int | None = None) -> int:
    """Return the number that a table gives for a kernel."""
    found = next((number for pattern, number in table.items() if re.fullmatch(pattern, kernel)), otherwise)
    assert found is not None, f"{kernel} is in no row of the table"
    return found


@campaign
@pytest.mark.parametrize("source", sparse(SOURCES, lambda source: source == "sums"))
@pytest.mark.parametrize("architecture", sparse(ARCHITECTURES, lambda architecture: architecture == 90))
def test_every_kernel_compiles_without_spills_and_within_its_registers(source, architecture):
    usage, cubin, log = nvrtc.compiled(device.text(source), kernels(source), architecture)
    lines = [
        f"sm_{architecture} {source}.cu {name}: {used.instructions} instructions, {used.registers} registers, "
        f"{used.stack} bytes of stack, {used.spilled} bytes spilled\n"
        for name, used in sorted(usage.items())
    ]
    sys.stdout.writelines(lines)
    if path := os.environ.get("RFROPE_COMPILE_LOG"):
        with open(path, "a", encoding="utf-8") as file:
            file.write("".join(lines))
    assert set(usage) == set(kernels(source))
    assert cubin[:4] == b"\x7fELF"
    assert "error" not in log
    for name, used in usage.items():
        assert used.spilled == 0, name
        assert used.registers <= limit(REGISTERS[source], name), name
        assert 64 < used.instructions <= limit(INSTRUCTIONS[source], name), name
        assert used.stack <= limit(STACKS.get(source, {}), name, 0), name


def test_rows_are_read_and_written_16_bytes_at_a_time():
    """In the intermediate code: loads and stores are of global memory, and 16 bytes wide where rows lie suitably."""
    for feature, width in (("double", 2), ("float", 4), ("Half", 8), ("Bfloat", 8)):
        code = nvrtc.intermediate(device.text("rotation"), f"rotate<{feature}, {width}, POSITIONS, INT64>")
        assert code.count("ld.global.v4.u32") >= 2
        assert code.count("st.global.v4.u32") >= 2
        assert re.findall(r"\b(?:ld|st)\.(?!global|param|shared)[\w.]+", code) == []


@pytest.mark.parametrize(
    ("kernel", "rows"), [("Bfloat, 8", 4), ("Half, 8", 4), ("float, 4", 2), ("Bfloat, 1", 4), ("float, 1", 2)]
)
def test_rows_are_read_before_the_first_is_written_and_turned_without_float64(kernel, rows):
    """In the intermediate code: what comes after the last operation in float64 is all rows, but no more."""
    code = nvrtc.intermediate(device.text("rotation"), f"rotate<{kernel}, POSITIONS, INT64>")
    moves = re.findall(r"\b(ld|st)\.global", code.rpartition(".f64")[2])
    assert moves[: 4 * rows] == ["ld"] * 2 * rows + ["st"] * 2 * rows


def test_a_mistake_in_the_language_is_reported():
    with pytest.raises(RuntimeError, match="frobnicate"):
        nvrtc.compiled("__global__ void f() { frobnicate(); }", ("f",), 90)


def test_the_options_are_the_ones_of_the_product():
    """Without --fmad=false a difference of products would be contracted, and phases lose what keeps them exact."""
    assert "--fmad=false" in device.OPTIONS
    source = "__global__ void f(double* p) { p[0] = p[1] * p[2] - p[3]; }"
    assert "fma" not in nvrtc.intermediate(source, "f")


def test_features_of_16_bits_that_are_subnormal_are_not_flushed():
    """CuPy asks for it (-ftz=true); a product of features must not obey."""
    code = nvrtc.intermediate(device.text("rotation"), "rotate<Bfloat, 8, TABLES, FLOAT64>")
    assert "mul.rn.f32" in code
    assert "mul.ftz.f32" not in code
    assert "add.ftz.f32" not in code
    assert "sub.ftz.f32" not in code
