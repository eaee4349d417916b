"""Compile the Triton kernel for a target, without a device, and print what the machine code takes.

``python tests/support/triton_compiled.py "cuda 90"`` prints one line of JSON: for each variant registers, bytes of a
stack and of spills, instructions, those of float64, and loads and stores of features by 128 bits and by fewer. With the
word ``rare`` behind, it is those variants that calls have less often.
"""

import json
import pathlib
import re
import subprocess
import sys
import tempfile

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from rfrope._backends.triton import kernels, launches
from rfrope._backends.triton.launches import Given, Options
from rfrope._core.blocks import MAGNITUDES

BIN = pathlib.Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
TYPES = {
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.float32: "fp32",
    torch.float64: "fp64",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.uint64: "u64",
}


class Noting:
    """A kernel that notes its arguments."""

    def __getitem__(self, grid):
        return self.launch

    def launch(self, *arguments, **constants):
        self.given = dict(zip(kernels.turn.arg_names, arguments, strict=False)) | constants


def empty(*shape, dtype=torch.float64):
    return torch.empty(shape, dtype=dtype, device="meta")


def variant(dtype=torch.bfloat16, layout="half", out=None, axes=1, words=True, positions=None, sums=False, **given):
    """Arguments of a launch for queries of 32 and keys of 8 heads, 4096 tokens and 128 features.

    Others are `given`: `shift`, `scale`, `frequencies`, how many `tokens` and features (`width`), `keys` or none,
    `in_place`, and options of a launch by their names.
    """
    out = out or layout
    polar, blocks, tokens = MAGNITUDES in (layout, out), 64, given.get("tokens", 4096)
    width = given.get("width", 128)
    q, k = (empty(1, heads, tokens, blocks if layout == MAGNITUDES else width, dtype=dtype) for heads in (32, 8))
    added = blocks * ((layout == MAGNITUDES) - (out == MAGNITUDES))
    results = [empty(*x.shape[:-1], x.shape[-1] + added, dtype=dtype) for x in (q, k)]
    results = [q, k] if given.get("in_place") else results
    before = [empty(*x.shape, dtype=dtype) for x in results] if sums else (None, None)
    sets = given.get("sets", 1)
    omega = empty(1, sets, blocks, 2 * axes, dtype=torch.int64) if words else empty(1, sets, blocks, axes)
    told = Given(positions, given.get("frequencies", omega), given.get("shift"), given.get("scale"))
    counted = given.get("counted", positions is None and told.frequencies is not None)
    options = Options(1.0, 0, counted, layout, out, given.get("back", sums), given.get("divided", False), polar)
    kernel, sides = Noting(), list(zip((q, k), results, before, strict=True))
    launches.launch(kernel, sides[0], sides[1] if given.get("keys", True) else None, told, options, (sums,) * 3)
    return kernel.given


VARIANTS = {
    "bfloat16": lambda: variant(),
    "float16": lambda: variant(torch.float16),
    "float32": lambda: variant(torch.float32),
    "interleaved": lambda: variant(layout="interleaved"),
    "between pairings": lambda: variant(layout="interleaved", out="half"),
    "radians": lambda: variant(words=False),
    "shift and scale": lambda: variant(words=False, shift=empty(1, 1, 1, 64), scale=empty(1, 1, 1, 64)),
    "float positions": lambda: variant(words=False, positions=empty(1, 1, 4096, 1)),
    "three axes": lambda: variant(axes=3, positions=empty(1, 1, 4096, 3, dtype=torch.int64)),
    "polar": lambda: variant(layout=MAGNITUDES, out="half"),
    "gradients": lambda: variant(words=False, sums=True),
    "gradients in float32": lambda: variant(torch.float32, words=False, sums=True),
}
RARE = {  # those above again, but for one thing
    "queries alone": lambda: variant(keys=False),
    "phases": lambda: variant(keys=False, frequencies=None, shift=empty(1, 1, 4096, 64, dtype=torch.float32)),
    "one token": lambda: variant(tokens=1),
    "in place": lambda: variant(in_place=True),
    "turned back, by a scale": lambda: variant(back=True, divided=True, scale=empty(1, 1, 1, 64, dtype=torch.float32)),
    "counted from a tensor": lambda: variant(positions=empty(1, 1, 1, 1, dtype=torch.int64), counted=True),
    "sets of heads": lambda: variant(sets=8),
    "int32 positions": lambda: variant(positions=empty(1, 1, 4096, 1, dtype=torch.int32)),
    "float32 positions": lambda: variant(words=False, positions=empty(1, 1, 4096, 1, dtype=torch.float32)),
    "bits of float64": lambda: variant(
        positions=empty(1, 1, 4096, 1, dtype=torch.float32), frequencies=empty(1, 1, 64, 1, dtype=torch.uint64)
    ),
    "part of a head": lambda: variant(width=160),
    "gradients of magnitudes": lambda: variant(layout="half", out=MAGNITUDES, words=False, sums=True),
    "gradients of sets": lambda: variant(words=False, sums=True, sets=8, shift=empty(1, 8, 1, 64)),
}


def source(given):
    """A kernel with the types of its arguments, as a launch would find them: sizes that 16 divides, and ones."""
    signature, constants, attributes = {}, {}, {}
    for place, name in enumerate(kernels.turn.arg_names):
        value = given[name]
        if value is None or name.isupper() or (type(value) is int and value == 1):
            signature[name], constants[place,] = "constexpr", value
        elif isinstance(value, torch.Tensor):
            signature[name], attributes[place,] = f"*{TYPES[value.dtype]}", [["tt.divisibility", 16]]
        elif type(value) is int:
            signature[name] = "i32" if -(2**31) <= value < 2**31 else "i64"
            if value % 16 == 0 and name != "offset":
                attributes[place,] = [["tt.divisibility", 16]]
        else:
            signature[name] = "fp32"
    return ASTSource(kernels.turn, signature, constants, attributes)


def of_nvidia(made):
    """Read what the assembler says, and the machine code."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(made.asm["cubin"])
        file.flush()
        said, code = (
            subprocess.run([BIN / tool, *how, file.name], capture_output=True, text=True, check=True).stdout
            for tool, how in (("cuobjdump", ("-res-usage",)), ("nvdisasm", ()))
        )
    used = {name: int(number) for name, number in re.findall(r"(REG|STACK|LOCAL):(\d+)", said)}
    names = re.findall(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\d+ )?([A-Z][\w.]+)", code, re.M)
    memory = re.findall(r"(?:ld|st)\.global\S*", made.asm["ptx"])
    return {
        "registers": used["REG"],
        "stack": used["STACK"],
        "spilled": used["LOCAL"] + len([name for name in names if name.startswith(("LDL", "STL"))]),
        "instructions": len([name for name in names if name != "NOP"]),
        "float64": len(re.findall(r"\.f64", made.asm["ptx"]))
        + len([n for n in names if re.search(r"^D(ADD|MUL|FMA|SETP)|F64", n)]),
        "wide": len([one for one in memory if ".v4.b32" in one]),
        "narrow": len([one for one in memory if ".b16" in one or ".b8" in one]),
    }


def of_amd(made):
    """Read the assembly."""
    code = made.asm["amdgcn"]
    used = {name: int(number) for name, number in re.findall(r"\.(\w+):\s*(\d+)", code)}
    memory = re.findall(r"(?:global|buffer)_(?:load|store)_\w+", code)
    return {
        "registers": used["vgpr_count"],
        "stack": used["private_segment_fixed_size"],
        "spilled": used["vgpr_spill_count"] + used["sgpr_spill_count"],
        "instructions": len(re.findall(r"^\t[vsgbd]\w+_\w+", code, re.M)),
        "float64": len(re.findall(r"_f64", code)),
        "wide": 2 * len([one for one in memory if one.endswith(("dwordx4", "b128"))]),
        "narrow": len([one for one in memory if "short" in one or "byte" in one or "b16" in one or "b8" in one]),
    }


if __name__ == "__main__":
    kind, version = sys.argv[1].split()
    target = GPUTarget(kind, int(version) if kind == "cuda" else version, 64 if version == "gfx942" else 32)
    read = of_nvidia if kind == "cuda" else of_amd
    made = RARE if "rare" in sys.argv else VARIANTS
    found = {name: read(triton.compile(source(make()), target=target)) for name, make in made.items()}
    sys.stdout.write("\n" + json.dumps(found) + "\n")
