"""The compile gate: every CUDA kernel becomes machine code for every architecture, within its share of the hardware.

With ``-s`` the compiler's report on each kernel is printed; the file that RFROPE_COMPILE_LOG names gets it, too.
"""

import os
import pathlib
import re
import sys

import nvrtc
import pytest
from campaign import campaign, sparse
from conftest import tuples
from emulator import kernels

from rfrope._backends import cuda
from rfrope._backends.cuda import device

pytestmark = pytest.mark.skipif(nvrtc.compiler() is None, reason=nvrtc.MISSING)

ARCHITECTURES = (70, 80, 90, 100, 120)  # Volta, Ampere, Hopper, Blackwell of data centres and of desktops
SOURCES = tuple(sorted(path.stem for path in pathlib.Path(cuda.__file__).parent.glob("*.cu")))

# For the first pattern that fits a kernel's name: most registers of a thread, instructions (those that only wait
# included) and bytes of a stack, on any architecture. A multiprocessor has 65536 registers: 4 blocks of 256 threads
# with 64 of them, 3 with 80, 2 with 128. A stack is that of cos and sin of large phases, by the library's reduction.
LIMITS = tuples("cuda/compile.json", "limits")


@campaign
@pytest.mark.parametrize("source", sparse(SOURCES, lambda source: source == "sums"))
@pytest.mark.parametrize("architecture", sparse(ARCHITECTURES, lambda architecture: architecture == 90))
def test_every_kernel_compiles_without_spills_and_within_its_registers(source, architecture):
    usage = nvrtc.compiled(device.text(source), kernels(source), architecture)
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
    for name, used in usage.items():
        registers, instructions, stack = next(most for one, most in LIMITS[source].items() if re.fullmatch(one, name))
        assert used.spilled == 0, name
        assert used.registers <= registers, name
        assert 64 < used.instructions <= instructions, name
        assert used.stack <= stack, name


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
