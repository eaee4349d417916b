"""Compile layers of attention for a CUDA device that is not there, and print what Inductor would launch.

``python tests/support/triton_graphs.py FOLDER CASE ...`` prints one line of JSON. Tensors are fake, on "cuda"; what
PyTorch asks of a device on the way (a guard, its properties, Triton's driver) is answered for one of compute capability
9.0. Inductor stops where it would compile its kernels: their text is what is looked at. The case "training" is graphs
of AOTAutograd, which are not run.
"""

import ctypes
import json
import pathlib
import re
import subprocess
import sys
import types
from unittest import mock

import pytest
import torch
import triton
import triton_device
from functorch.compile import make_boxed_func
from torch._functorch.aot_autograd import aot_module_simplified
from torch._inductor import compile_fx, config, graph, scheduler, utils
from torch._inductor.cudagraph_utils import check_lowering_disable_cudagraph
from torch._inductor.runtime.hints import DeviceProperties
from torch._inductor.utils import get_first_incompatible_cudagraph_node
from torch._subclasses import FakeTensorMode
from triton.backends.compiler import GPUTarget

import rfrope
from rfrope._backends import triton as package
from rfrope.layers.torch import PolarEmbedding, RotaryEmbedding

GUARD = """
#include <c10/core/impl/FakeGuardImpl.h>
namespace c10::impl {
using Guard = FakeGuardImpl<DeviceType::CUDA>;
C10_REGISTER_GUARD_IMPL(CUDA, Guard)
}
"""
HEADS, KEPT, WIDTH = 32, 8, 128
SIZES = {"multi_processor_count": 132, "regs_per_multiprocessor": 65536, "max_threads_per_multi_processor": 2048}
PROPERTIES = DeviceProperties("cuda", 0, cc=90, major=9, max_threads_per_block=1024, warp_size=32, **SIZES)
DRIVER = types.SimpleNamespace(
    get_current_target=lambda: GPUTarget("cuda", 90, 32),
    get_current_device=lambda: 0,
    get_active_torch_device=lambda: torch.device("cuda", 0),
)


class Done(BaseException):
    """The text is there."""


class Attention(torch.nn.Module):
    """Queries and keys that something makes, turned, and attention."""

    def __init__(self, rotary):
        super().__init__()
        self.rotary = rotary

    def forward(self, q, k, v, **places):
        q, k = self.rotary(q * 2.0, k * 2.0, **places)
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)


def load_guard(folder):
    """PyTorch for the CPU has nothing that would set the current device of CUDA: this does nothing."""
    root, source, library = pathlib.Path(torch.__file__).parent, folder / "guard.cpp", folder / "guard.so"
    source.write_text(GUARD)
    how = ["-std=c++20", "-shared", "-fPIC", f"-I{root / 'include'}", f"-L{root / 'lib'}", "-lc10", "-o", library]
    subprocess.run(["g++", source, *how], check=True)
    ctypes.CDLL(str(library))


def graph_of(rotary, tokens, width=WIDTH, dynamic=None, placed=True, **places):
    """Text of the module that Inductor makes of a layer, and why it would record no CUDA graph of it.

    What the rotation derives from its Rope is on the device, as after ``to("cuda")``, unless it is not `placed`.
    """
    found = []

    def stop(lowering):
        text = lowering.codegen()[0].value
        reasons = lowering.disable_cudagraphs_reason, check_lowering_disable_cudagraph(lowering.device_node_mapping)
        unsafe = get_first_incompatible_cudagraph_node(lowering.module)
        refused = [str(one) for one in (*reasons, unsafe, *lowering.mutated_inputs) if one is not None]
        found.append((text, [one.splitlines()[0] for one in refused]))
        raise Done

    torch._dynamo.reset()
    with (
        FakeTensorMode(allow_non_fake_inputs=True),
        torch.no_grad(),
        mock.patch.object(graph.GraphLowering, "_compile_to_module", stop),
    ):
        q, k, v = (
            torch.empty(1, heads, tokens, wide, dtype=torch.bfloat16, device="cuda")
            for heads, wide in ((HEADS, width), (KEPT, width), (KEPT, WIDTH))
        )
        places = {name: make() for name, make in places.items()}
        if placed:
            constants = getattr(rotary, "_constants", {}).items()
            rotary._placed = {(name, q.device): one.to(q.device) for name, one in constants}
        try:
            torch.compile(Attention(rotary), fullgraph=True, dynamic=dynamic)(q, k, v, **places)
        except Done:
            return found[0]
    raise RuntimeError("nothing was compiled")


class Still(torch.nn.Module):
    """A layer without rotation, to compare with."""

    def forward(self, q, k):
        return q, k


def integers():
    return torch.empty(1, 4096, dtype=torch.int64, device="cuda")


KNOWN = rfrope.Rope(rfrope.geometric(WIDTH // 2))
CASES = {
    "prefill without rotation": lambda: graph_of(Still(), 4096),
    "prefill of any length without rotation": lambda: graph_of(Still(), 4096, dynamic=True),
    "decode without rotation": lambda: graph_of(Still(), 1),
    "prefill": lambda: graph_of(RotaryEmbedding(KNOWN), 4096),
    "prefill at positions": lambda: graph_of(RotaryEmbedding(KNOWN), 4096, positions=integers),
    "polar prefill": lambda: graph_of(PolarEmbedding(rfrope.Rope(rfrope.geometric(64), polar=True)), 4096, WIDTH // 2),
    "prefill of any length": lambda: graph_of(RotaryEmbedding(KNOWN), 4096, dynamic=True),
    "decode": lambda: graph_of(RotaryEmbedding(KNOWN), 1),
    "decode without a place": lambda: graph_of(RotaryEmbedding(KNOWN), 1, placed=False),
    "decode after a cache": lambda: graph_of(
        RotaryEmbedding(KNOWN), 1, offset=lambda: torch.empty((), dtype=torch.int64, device="cuda")
    ),
}


def graphs_of(rotary, dynamic):
    """Launches in the graphs of a training step, forwards and backwards, and large tensors of float64 in them.

    PyTorch's engine asks for a device that is there; so tensors of the CPU stand for one, and graphs are not run.
    """
    found = []

    def keep(module, _):
        nodes = [node for node in module.graph.nodes if node.op == "call_function"]
        values = [node.meta["val"] for node in nodes if isinstance(node.meta.get("val"), torch.Tensor)]
        wide = [value for value in values if value.dtype == torch.float64 and value.numel() > WIDTH]
        found.append([len([node for node in nodes if "triton_kernel_wrapper" in str(node.target)]), len(wide)])
        made = [None if node is None else node.meta["val"] for node in module.graph.output_node().args[0]]
        sizes = [([int(n) for n in one.shape], one.dtype) if isinstance(one, torch.Tensor) else one for one in made]
        return make_boxed_func(
            lambda *_: [torch.zeros(one[0], dtype=one[1]) if isinstance(one, tuple) else one for one in sizes]
        )

    torch._dynamo.reset()
    q, k = (torch.zeros(1, heads, 256, WIDTH, requires_grad=True) for heads in (HEADS, KEPT))
    turned = torch.compile(
        rotary, backend=lambda *made: aot_module_simplified(*made, keep, keep), fullgraph=True, dynamic=dynamic
    )(q, k)
    torch.autograd.grad(sum(one.sum() for one in turned), [q, k, *rotary.parameters()])
    return found


TRAINED = {
    "known": lambda: RotaryEmbedding(KNOWN),
    "frequencies and phases": lambda: RotaryEmbedding(KNOWN, learnable="both"),
    "polar": lambda: PolarEmbedding(rfrope.Rope(rfrope.geometric(WIDTH), polar=True), learnable="phases"),
}


def counted(text, refused):
    """Kernels that the module launches, by kind, those whose text has float64, and why no CUDA graph is recorded."""
    launches = re.findall(r"^\s+(\w+)\.run\(", text, re.M)
    bodies = dict(re.findall(r"^(\w+) = async_compile\.triton\('\w+', '''(.*?)''',", text, re.M | re.S))
    code = {name: re.sub(r"#.*", "", body) for name, body in bodies.items()}
    return {
        "turn": len([name for name in launches if name.startswith("turn_")]),
        "fused": len([name for name in launches if name.startswith("triton_")]),
        "float64": [
            name for name, body in code.items() if re.search(r"float64|fp64", body) and not name.startswith("turn_")
        ],
        "refused": refused,
        "sines": [name for name, body in code.items() if re.search(r"libdevice\.(sin|cos)|tl_math\.(sin|cos)", body)],
    }


def answer_for_a_device():
    """Let PyTorch and Triton find what they ask of a device."""
    torch.cuda.get_device_capability = lambda *_: (9, 0)
    DeviceProperties.create = classmethod(lambda cls, device: PROPERTIES)
    utils.is_big_gpu = lambda *_: False
    scheduler.has_triton = lambda *_: True
    compile_fx._check_triton_bf16_support = lambda *_: None
    config.joint_graph_constant_folding = False  # it computes constants on the device
    config.fx_graph_cache = False


if __name__ == "__main__":
    triton.runtime.driver.set_active(DRIVER)
    if sys.argv[2:] == ["training"]:
        triton_device.stand_in(pytest.MonkeyPatch())
        found = {
            f"{name}, {dynamic}": graphs_of(make(), dynamic)
            for name, make in TRAINED.items()
            for dynamic in (None, True)
        }
    else:
        load_guard(pathlib.Path(sys.argv[1]))
        package.check = lambda: None
        answer_for_a_device()
        found = {name: counted(*CASES[name]()) for name in sys.argv[2:]}
    sys.stdout.write("\n" + json.dumps(found) + "\n")
