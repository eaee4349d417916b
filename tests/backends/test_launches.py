"""Launches of the Triton kernel: how many, how many bytes they touch, and machine code made without a device."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys

import pytest
import triton_device
from campaign import HANGS, sparse

if triton_device.MISSING:
    pytest.skip(triton_device.MISSING, allow_module_level=True)

import torch

import rfrope
from rfrope._backends.triton import launches
from rfrope.layers.torch import PolarEmbedding, RotaryEmbedding

SIZES = (1, 8, 64, 128)  # batch, heads of queries, tokens, features


@pytest.fixture
def calls(monkeypatch):
    """What the kernel is launched with, and not run."""
    triton_device.stand_in(monkeypatch)
    return triton_device.recorded(monkeypatch, runs=False)


def touched(arguments):
    """Bytes that a launch reads and writes: each element once, those that stand for several once."""
    tensors = [value for value in arguments.values() if isinstance(value, torch.Tensor)]
    sizes = [[n if step else 1 for n, step in zip(one.shape, one.stride(), strict=True)] for one in tensors]
    return sum(one.element_size() * math.prod(size) for one, size in zip(tensors, sizes, strict=True))


MODULES = {
    "known": lambda: RotaryEmbedding(rfrope.Rope(rfrope.geometric(64))),
    "learned": lambda: RotaryEmbedding(rfrope.Rope(rfrope.geometric(64)), learnable="both"),
    "factors": lambda: RotaryEmbedding(rfrope.Rope(rfrope.geometric(64)), learnable="factors"),
    "interleaved": lambda: RotaryEmbedding(rfrope.Rope(rfrope.geometric(64), pairing="interleaved"), layout="bthd"),
    "sets": lambda: RotaryEmbedding(rfrope.sample("gaussian(scale=32)", 64, rng=0, heads=2)),
    "polar": lambda: PolarEmbedding(rfrope.Rope(rfrope.geometric(128), polar=True), learnable="phases"),
}


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_queries_and_keys_take_one_launch_each_way_and_the_ideal_bytes(name, dtype, calls):
    module, (batch, heads, tokens, width) = MODULES[name](), (1, 32, 2048, 128)
    order = (tokens, heads) if module.layout == "bthd" else (heads, tokens)
    kept = (tokens, 2) if module.layout == "bthd" else (2, tokens)
    q, k = (torch.zeros(batch, *axes, width, dtype=dtype, requires_grad=True) for axes in (order, kept))
    turned = module(q, k)
    assert len(calls) == 1
    ideal = sum(one.numel() * one.element_size() for one in (q, k, *turned))
    assert ideal <= touched(calls[0][1]) <= 1.01 * ideal
    torch.autograd.grad(turned, [q, k, *module.parameters()], [torch.zeros_like(one) for one in turned])
    assert len(calls) == 2
    learned = bool(list(module.parameters()))
    features = sum(one.numel() * one.element_size() for one in (q, k))
    least = ideal + features if learned else ideal  # gradients of angles and of a softplus see the features again
    assert least <= touched(calls[1][1]) <= 1.05 * least <= 1.6 * ideal


@pytest.mark.parametrize("offset", [0, 77, torch.tensor(5), torch.tensor([3, 4])], ids=str)
@pytest.mark.parametrize("tokens", [1, 64])
def test_a_step_of_decoding_is_one_launch_that_counts_its_tokens(offset, tokens, calls):
    module = MODULES["known"]()
    q, k = torch.zeros(2, 8, tokens, 128), torch.zeros(2, 2, tokens, 128)
    with torch.no_grad():
        module(q, k, offset=offset)
    assert len(calls) == 1
    ((_, arguments),) = calls
    assert (arguments["positions"] is None) == isinstance(offset, int)
    assert arguments["offset"] == (offset if isinstance(offset, int) else 0)


class Asked(torch.utils._python_dispatch.TorchDispatchMode):
    """What torch is asked to do."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(function._schema.name.removeprefix("aten::"))
        return function(*args, **(kwargs or {}))


VIEWS = {"unsqueeze", "view", "permute", "select", "expand", "slice", "detach", "alias", "transpose", "_unsafe_view"}


def test_nothing_is_asked_of_torch_but_memory_for_results(calls):
    module, q, k = MODULES["known"](), torch.zeros(1, 8, 64, 128), torch.zeros(1, 2, 64, 128)
    module(q, k)
    with Asked() as asked, torch.no_grad():
        module(q, k)
        module(q, k, torch.arange(64))
    asked.names.remove("arange")
    assert [name for name in asked.names if name not in VIEWS] == ["empty_like"] * 4


def test_a_step_of_decoding_takes_few_python_calls(calls):
    """Beside Triton's own: the plan of a layout is kept, whatever the offset."""
    module, q, k = MODULES["known"](), torch.zeros(1, 32, 1, 128), torch.zeros(1, 8, 1, 128)
    counted = []
    with torch.no_grad():
        module(q, k, offset=1)
        kept = launches._keep_plan.cache_info()
        sys.setprofile(lambda frame, event, argument: counted.append(frame.f_code.co_name) if event == "call" else None)
        try:
            module(q, k, offset=2)
        finally:
            sys.setprofile(None)
    assert len(counted) <= 120, len(counted)  # counted: 109
    assert launches._keep_plan.cache_info().misses == kept.misses
    assert launches._keep_plan.cache_info().hits == kept.hits + 1


def test_heads_are_grouped_where_there_are_enough_programs():
    def each(batch, heads, tokens, sets=1, shift_heads=1):
        tiles = batch * -(-tokens // 16)
        return [launches.Shares.divide(heads, sets, apart, tiles).each for apart in (False, shift_heads > 1)]

    assert each(1, 32, 4096) == [8, 8]
    assert each(1, 32, 512) == [2, 2]
    assert each(16, 32, 512, sets=8) == [4, 4]
    assert each(16, 6, 4096, sets=2) == [1, 1]  # three of a set: no power of two
    assert each(16, 8, 4096, shift_heads=8) == [8, 1]


# -- machine code ------------------------------------------------------------------------------------------------------

# Most registers and instructions of a variant on any architecture of NVIDIA, then of AMD; none has a stack or spills. A
# multiprocessor of NVIDIA has 65536 registers: 8 programs of 128 threads with 64 of them, 4 with 128.
CEILINGS = {
    "bfloat16": (64, 1100, 80, 1500),
    "float16": (64, 1100, 80, 1200),
    "float32": (72, 1100, 80, 1200),
    "interleaved": (56, 1150, 80, 1600),
    "between pairings": (80, 1150, 96, 1600),
    "radians": (64, 1700, 104, 2200),
    "shift and scale": (104, 2300, 160, 2900),
    "float positions": (64, 1900, 128, 2300),
    "three axes": (80, 1600, 128, 2100),
    "polar": (80, 2500, 96, 3000),
    "gradients": (128, 2100, 160, 2700),
    "gradients in float32": (168, 2000, 160, 2200),
}
# Kernels that Inductor makes beside those of a layer without rotation: what comes before and after a launch of ours are
# two kernels each for queries and keys; a step of decoding takes one for cos and sin, and one more for keys.
GRAPHS = {
    "prefill": 2,
    "prefill at positions": 2,
    "prefill of any length": 2,
    "polar prefill": 2,
    "decode": 2,
    "decode after a cache": 2,
}
TARGETS = ("cuda 80", "cuda 90", "cuda 100", "cuda 120", "hip gfx942", "hip gfx1100")


def said_by(script, *arguments):
    """What a script of the folder above prints, in a process where kernels are not interpreted."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    path = os.path.join(os.path.dirname(__file__), "..", script)
    how = {"env": environment, "capture_output": True, "text": True, "timeout": HANGS}
    done = subprocess.run([sys.executable, path, *arguments], **how)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("target", sparse(TARGETS, lambda target: target in ("cuda 90", "hip gfx942")))
def test_every_variant_compiles_without_a_device_within_its_ceilings(target):
    found = said_by("triton_compiled.py", target)
    assert set(found) == set(CEILINGS)
    for name, used in found.items():
        registers, instructions = CEILINGS[name][:2] if "cuda" in target else CEILINGS[name][2:]
        sys.stdout.write(f"{target} {name}: {used}\n")
        assert used["spilled"] == used["stack"] == 0, (name, used)
        assert used["float64"] == 0, (name, used)
        assert used["registers"] <= registers, (name, used)
        assert used["instructions"] <= instructions, (name, used)
        if name in ("bfloat16", "float16", "float32", "interleaved", "radians"):
            assert used["narrow"] == 0, (name, used)  # all of rows goes by 128 bits
            assert used["wide"] >= 8, (name, used)


# -- compiled graphs ---------------------------------------------------------------------------------------------------


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++, which makes the stand-in for a device's guard")
@pytest.mark.parametrize("name", sparse(GRAPHS, lambda name: name in ("prefill", "decode")))
def test_a_compiled_layer_launches_the_kernel_once_or_turns_among_its_neighbours(name, tmp_path):
    """And none of Inductor's own kernels computes in float64 or takes a sine."""
    kind = "decode" if "decode" in name else "prefill"
    beside = f"{name if 'length' in name else kind} without rotation"
    found = said_by("triton_graphs.py", tmp_path, name, beside)
    turned, still = found[name], found[beside]
    assert still["turn"] == 0
    assert turned["turn"] == (kind == "prefill")
    assert turned["fused"] == still["fused"] + GRAPHS[name]
    assert turned["float64"] == turned["sines"] == []


def test_a_compiled_step_of_training_is_one_launch_each_way(tmp_path):
    """With gradients of what is learned, and with lengths that the graph does not know."""
    found = said_by("triton_graphs.py", tmp_path, "training")
    assert len(found) == 6
    for name, graphs in found.items():
        assert graphs == [[1, 0], [1, 0]], name
