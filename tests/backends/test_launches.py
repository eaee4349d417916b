"""Launches of the Triton kernel: how many, how many bytes they touch, and machine code made without a device."""

import importlib
import json
import math
import os
import shutil
import subprocess
import sys

import pytest
import triton_device
from campaign import HANGS, campaign, sparse
from conftest import rows

if triton_device.NOT_COUNTED:
    pytest.skip(triton_device.NOT_COUNTED, allow_module_level=True)

import numpy as np
import torch
from replay import Recording, Watching
from torch.utils._pytree import tree_leaves
from triton.runtime.interpreter import InterpreterBuilder

import rfrope
from rfrope._backends.triton import launches
from rfrope.layers.torch import PolarEmbedding, RotaryEmbedding


@pytest.fixture
def calls(monkeypatch):
    """What the kernel is launched with, and not run."""
    triton_device.stand_in(monkeypatch)
    return triton_device.recorded(monkeypatch, runs=False)


def stored(x):
    """Bytes of a tensor, those that stand for several once."""
    if not isinstance(x, torch.Tensor):
        return 0
    return x.element_size() * math.prod(n if step else 1 for n, step in zip(x.shape, x.stride(), strict=True))


LADDER = rfrope.Rope(rfrope.geometric(64))
MODULES = {
    "known": lambda: RotaryEmbedding(LADDER),
    "learned": lambda: RotaryEmbedding(LADDER, learnable="both"),
    "factors": lambda: RotaryEmbedding(LADDER, learnable="factors"),
    "interleaved": lambda: RotaryEmbedding(rfrope.Rope(rfrope.geometric(64), pairing="interleaved"), layout="bthd"),
    "sets": lambda: RotaryEmbedding(rfrope.sample("gaussian(scale=32)", 64, rng=0, heads=2)),
    "polar": lambda: PolarEmbedding(rfrope.Rope(rfrope.geometric(128), polar=True), learnable="phases"),
}


class Traffic(Recording):
    """Counts how often a launch reads and writes each byte, and the bytes of operators before and after it."""

    def __init__(self, patch, inside):
        super().__init__(inside)
        self.read, self.written, self.by_operators = [], [], 0
        load, store = InterpreterBuilder.create_masked_load, InterpreterBuilder.create_masked_store

        def noting_load(builder, at, mask, *others):
            found = load(builder, at, mask, *others)
            self.read.append((at.data[mask.data.astype(bool)], found.data.itemsize))
            return found

        def noting_store(builder, at, value, mask, *others):
            self.written.append((at.data[mask.data.astype(bool)], value.data.itemsize))
            return store(builder, at, value, mask, *others)

        patch.setattr(InterpreterBuilder, "create_masked_load", noting_load)
        patch.setattr(InterpreterBuilder, "create_masked_store", noting_store)

    def note(self, function, args, kwargs, result):
        if not (function.is_view or function._schema.name.removeprefix("aten::").startswith(("empty", "new_empty"))):
            self.by_operators += sum(map(stored, tree_leaves((args, kwargs, result))))

    def touched(self, *features):
        """Bytes of angles and sums, each once, and of features as often as they are touched."""
        total = self.by_operators
        for noted in (self.read, self.written):
            at = np.concatenate([np.ravel(one).astype(np.int64) for one, _ in noted])
            size = np.concatenate([np.full(one.size, width) for one, width in noted])
            inside = np.zeros(at.shape, bool)
            for x in features:
                inside |= (x.data_ptr() <= at) & (at < x.data_ptr() + stored(x))
            _, first = np.unique(at[~inside], return_index=True)
            total += int(size[inside].sum() + size[~inside][first].sum())
        return total


@pytest.mark.parametrize("name", MODULES)
def test_one_launch_each_way_reads_and_writes_little_more_than_the_ideal(name, monkeypatch):
    """Every load and store of the kernel, copies before it, and partial sums with what adds them up."""
    triton_device.stand_in(monkeypatch)
    launched = triton_device.recorded(monkeypatch)
    monkeypatch.setattr(launches, "_ENOUGH_PROGRAMS", 1)  # as with many tokens: eight heads share phases
    rotation = importlib.import_module("rfrope._backends.triton.rotation")
    module, order = MODULES[name](), (lambda x: x.transpose(1, 2) if MODULES[name]().layout == "bthd" else x)
    q, k = (order(torch.randn(1, h, 32, 128).bfloat16()).requires_grad_() for h in (16, 2))
    module(q, k)

    def inside(operator):
        return getattr(rotation, operator._schema.name.split("::")[1])._init_fn

    launched.clear()
    with monkeypatch.context() as patch, Traffic(patch, inside) as forward:
        turned = module(q, k)
    ideal = sum(map(stored, (q, k, *turned)))
    assert ideal <= forward.touched(q, k, *turned) <= 1.02 * ideal
    along = [torch.randn_like(one) for one in turned]
    with monkeypatch.context() as patch, Traffic(patch, inside) as backward:
        found = torch.autograd.grad(turned, [q, k, *module.parameters()], along)
    assert len(launched) == 2
    learned = bool(list(module.parameters()))
    least = sum(map(stored, (*along, *found[:2], *((q, k) if learned else ()))))
    assert least <= backward.touched(q, k, *along, *found[:2]) <= 1.05 * least


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


class Asked(Watching):
    """What torch is asked to do but for views."""

    def __init__(self):
        super().__init__()
        self.names = []

    def note(self, function, args, kwargs, result):
        if not function.is_view:
            self.names.append(function._schema.name.removeprefix("aten::"))


def test_nothing_is_asked_of_torch_but_memory_for_results(calls):
    module, q, k = MODULES["known"](), torch.zeros(1, 8, 64, 128), torch.zeros(1, 2, 64, 128)
    module(q, k)
    with Asked() as asked, torch.no_grad():
        module(q, k)
        module(q, k, torch.arange(64))
    asked.names.remove("arange")
    assert asked.names == ["empty_like"] * 4


REPEATED = {"the next token", "the next token of a polar module", "tokens first", "after learning", "positions"}


def test_a_step_of_decoding_repeats_the_last_launch_where_only_numbers_and_memory_changed():
    """A step takes 23 calls of Python, and 139 where Triton reads all arguments."""
    found = said_by("triton_repeats.py")
    assert {name for name, (repeated, _) in found["cases"].items() if repeated} == REPEATED | {"another stream"}
    assert [name for name, (_, right) in found["cases"].items() if not right] == []
    assert found["calls"] <= 30, found


def test_heads_are_grouped_where_there_are_enough_programs():
    def each(batch, heads, tokens, sets=1, shift_heads=1):
        tiles = batch * -(-tokens // 16)
        return [launches.Shares.divide(heads, sets, apart, tiles).each for apart in (False, shift_heads > 1)]

    assert each(1, 32, 4096) == [8, 8]
    assert each(1, 32, 512) == [2, 2]
    assert each(16, 32, 512, sets=8) == [4, 4]
    assert each(16, 6, 4096, sets=2) == [1, 1]  # three of a set: no power of two
    assert each(16, 8, 4096, shift_heads=8) == [8, 1]


def test_sizes_of_a_graph_meet_no_truth_values():
    """In PyTorch 2.11 a symbol times a bool is an error."""

    class Symbol(int):
        def __mul__(self, other):
            assert type(other) is not bool
            return int.__mul__(self, other)

        __rmul__ = __mul__

    dense = (1, 4, 8, 16), (512, 128, 16, 1)
    layouts = (dense, None, dense, None, dense, None, ((1, 1, 8, 2),) * 2, ((1, 1, 8, 2),) * 2, None, None)
    made = launches.plan(
        layouts, Symbol(2), 8, (False, "half", "half", False, False, False), (True, True, False), False
    )
    assert made.sums[3] == 3


# -- machine code ------------------------------------------------------------------------------------------------------

# Most registers and instructions of a variant on any architecture of NVIDIA, then of AMD, by Triton 3.6.0, 3.7.1 and
# 3.9.0; none spills or has a stack, but that the assembler of 3.7.1 puts two numbers of gradients of magnitudes there
# for capability 10.0. A multiprocessor of NVIDIA has 65536 registers: 12 programs of 128 threads have 40, 4 have 128.
CEILINGS = rows("backends/launches.json", "ceilings")
RARE = rows("backends/launches.json", "rare")
BY_128_BITS = {"bfloat16", "float16", "float32", "interleaved", "radians", *RARE} - {"one token"}  # all of rows
# Kernels that Inductor makes beside those of a layer without rotation: what comes before and after a launch of ours are
# two kernels each for queries and keys; a step of decoding takes one for cos and sin, and one more for keys.
GRAPHS = {
    "prefill": {"prefill": 2, "prefill at positions": 2, "prefill of any length": 2, "polar prefill": 2},
    "decode": {"decode": 2, "decode after a cache": 2, "decode without a place": 2},
}
TARGETS = ("cuda 80", "cuda 90", "cuda 100", "cuda 120", "hip gfx942", "hip gfx1100")


def said_by(script, *arguments):
    """What a script of tests/support prints, in a process where kernels are not interpreted."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    path = os.path.join(os.path.dirname(__file__), "..", "support", script)
    how = {"env": environment, "capture_output": True, "text": True, "timeout": HANGS}
    done = subprocess.run([sys.executable, path, *arguments], **how)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@campaign
@pytest.mark.parametrize(
    "target_and_kind",
    [
        *sparse(((one, "") for one in TARGETS), lambda one: one[0] == "cuda 90"),
        *sparse(((one, "rare") for one in ("hip gfx942", *TARGETS[:4], "hip gfx1100")), lambda one: False, every=6),
    ],
)
def test_every_variant_compiles_without_a_device_within_its_ceilings(target_and_kind):
    target, rare = target_and_kind
    found = said_by("triton_compiled.py", target, rare)
    ceilings = RARE if rare else CEILINGS
    assert set(found) == set(ceilings)
    for name, used in found.items():
        sys.stdout.write(f"{target} {name}: {used}\n")
        registers, instructions = ceilings[name][:2] if "cuda" in target else ceilings[name][2:]
        on_stack = 8 if (target, name) == ("cuda 100", "gradients of magnitudes") else 0
        assert max(used["spilled"], used["stack"]) <= on_stack, (name, used)
        assert used["float64"] == 0, (name, used)
        assert used["registers"] <= registers, (name, used)
        assert used["instructions"] <= instructions, (name, used)
        if name in BY_128_BITS:
            assert used["narrow"] == 0, (name, used)
            # two loads and two stores; 256 threads, of waves of 64, take 64 bits each
            assert used["wide"] >= (0 if target == "hip gfx942" else 4), (name, used)


# -- compiled graphs ---------------------------------------------------------------------------------------------------


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++, which makes the stand-in for a device's guard")
@campaign
@pytest.mark.parametrize("kind", GRAPHS)
def test_a_compiled_layer_launches_the_kernel_once_or_turns_among_its_neighbours(kind, tmp_path):
    """None of Inductor's own kernels computes in float64 or takes a sine, and it would record all in a CUDA graph.

    By its own checks (``mode="reduce-overhead"``); not of a graph that copies words from the host at every call. One
    process compiles all of a kind: it starts and compiles a layer without rotation in the time of two graphs.
    """
    beside = {name: f"{name if 'length' in name else kind} without rotation" for name in GRAPHS[kind]}
    found = said_by("triton_graphs.py", tmp_path, *beside, *set(beside.values()))
    for name, fused in GRAPHS[kind].items():
        turned, still = found[name], found[beside[name]]
        assert still["turn"] == 0
        assert turned["turn"] == (kind == "prefill"), name
        assert turned["fused"] == still["fused"] + fused, name
        assert turned["float64"] == turned["sines"] == still["refused"] == [], name
        assert ["cpu device" in one for one in turned["refused"]] == ([True] if "without a place" in name else []), name


@campaign
def test_a_compiled_step_of_training_is_one_launch_each_way(tmp_path):
    """With gradients of what is learned, and with lengths that the graph does not know."""
    found = said_by("triton_graphs.py", tmp_path, "training")
    assert len(found) == 6
    for name, graphs in found.items():
        assert graphs == [[1, 0], [1, 0]], name
