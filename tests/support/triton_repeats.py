"""Launch by modules for a device that is not there, and print which calls repeated the last launch, and were right.

``python tests/support/triton_repeats.py`` prints one line of JSON: for each case whether its call went past Triton's
reading of arguments, and whether the driver was given what a module that never launched before gives it; then how many
calls of Python a step of decoding takes. Compiled kernels are empty, and the driver does nothing.
"""

import copy
import json
import pickle
import sys
import warnings
from types import SimpleNamespace as Record

import pytest
import torch
import triton
import triton_device
from torch.autograd.forward_ad import dual_level
from torch.utils._python_dispatch import TorchDispatchMode
from triton.backends.compiler import GPUTarget
from triton.compiler import CompiledKernel
from triton.runtime.jit import JITFunction

from rfrope._core import libraries
from rfrope.layers.torch import PolarEmbedding, RotaryEmbedding

CURRENT, SEEN, READ = [7, -1], [], []  # the stream, and the device
RUN, PLAIN = JITFunction.run, {int, float, str}


class Launcher:
    """What queues a kernel."""

    def __init__(self, source, metadata):
        pass

    def __call__(self, *arguments):
        SEEN[:] = arguments


class Tensor(torch.Tensor):
    """A class of tensors that changes nothing."""


class Seeing(TorchDispatchMode):
    """A mode that changes nothing."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


def compiled(source, **options):
    """Return a kernel without code, which the driver knows by all that it would be compiled for."""
    kernel = object.__new__(CompiledKernel)
    kernel.src, kernel.packed_metadata = source, str((source.signature, source.constants, source.attrs))
    kernel.metadata = Record(shared=0, num_warps=4, warp_size=32, tmem_size=None)
    kernel.name = kernel.kernel = kernel.hash = kernel.metadata_group = kernel.module = kernel.function = (
        kernel._run
    ) = None
    return kernel


def counted(self, *arguments, **options):
    READ.append(1)
    return RUN(self, *arguments, **options)


def features(tokens=1, dtype=torch.bfloat16, past=0, width=16, heads=(4, 2)):
    return [torch.zeros(h * tokens * width + past, dtype=dtype)[past:].view(1, h, tokens, width) for h in heads]


def launched(module, q, k, **places):
    """What the driver was given, with names for what a call takes and makes; or what was refused."""
    SEEN.clear()
    try:
        turned = module(q, k, **places)
    except TypeError as error:
        return str(error)
    named = dict(zip(("q", "k", "first", "second"), (q, k, *turned), strict=True)) | places
    names = {x.data_ptr(): name for name, x in named.items() if isinstance(x, torch.Tensor)}
    given = [
        names.get(x.data_ptr(), x.tolist())
        if isinstance(x, torch.Tensor)
        else x
        if type(x) in PLAIN
        else type(x).__name__
        for x in SEEN
    ]
    return str([given, *((type(x), x.shape, x.stride(), x.requires_grad) for x in turned)])


def traced(module, q, k, **places):
    """The names of the operators that a tracer sees."""
    SEEN.clear()
    with warnings.catch_warnings(action="ignore"):
        graph = torch.jit.trace(lambda q, k: module(q, k, **places), (q, k), check_trace=False).graph
    return str([node.kind() for node in graph.nodes()])


def case(
    change=lambda q, k: (q, k),
    make=lambda: RotaryEmbedding(16),
    within=None,
    current=(7, -1),
    first=None,
    before=lambda q, k: (q, k),
    between=lambda module: module,
    call=launched,
    heads=(4, 2),
    **places,
):
    """Whether a call repeats one before it, of queries and keys that functions change, and is right."""
    module, places, CURRENT[:] = make(), places or {"offset": 4}, (7, -1)
    with torch.no_grad():
        launched(module, *before(*features(width=module.head_dim, heads=heads)), **(first or {"offset": 3}))
    module, CURRENT[:] = between(module), current
    with within or torch.no_grad():
        q, k = change(*features(width=module.head_dim, heads=heads))
        READ.clear()
        found, repeated = call(module, q, k, **places), bool(SEEN and not READ)
        return repeated, found == call(make(), q, k, **places)


def at(*numbers):
    return torch.tensor(numbers)


CASES = {
    "the next token": lambda: case(),
    "the next token of a polar module": lambda: case(make=lambda: PolarEmbedding(8)),
    "tokens first": lambda: case(make=lambda: RotaryEmbedding(16, layout="bthd"), heads=(1, 1)),
    "after learning": lambda: case(make=lambda: RotaryEmbedding(16, "factors").eval()),
    "positions": lambda: case(first={"positions": at(5)}, positions=at(6)),
    "another stream": lambda: case(current=(8, -1)),
    "another device": lambda: case(current=(7, 1)),
    "positions after an offset": lambda: case(positions=at(6)),
    "an offset after positions": lambda: case(first={"positions": at(5)}),
    "an offset after a tensor": lambda: case(first={"offset": at(3)}),
    "positions and an offset": lambda: case(first={"positions": at(5)}, positions=at(6), offset=1),
    "positions after a sum": lambda: case(first={"positions": at(5).int(), "offset": 1}, positions=at(6).int()),
    "positions that are not aligned": lambda: case(first={"positions": at(5)}, positions=at(1, 2)[1:]),
    "int32 positions": lambda: case(first={"positions": at(5)}, positions=at(5).int()),
    "an offset of 33 bits": lambda: case(offset=2**32),
    "a tensor for an offset": lambda: case(offset=at(4)),
    "two tokens": lambda: case(lambda q, k: features(2)),
    "two sequences": lambda: case(lambda q, k: (q.repeat(2, 1, 1, 1), k.repeat(2, 1, 1, 1))),
    "other heads of keys": lambda: case(lambda q, k: (q, features(heads=(4, 4))[1])),
    "another dtype": lambda: case(lambda q, k: features(dtype=torch.float16)),
    "another dtype of keys": lambda: case(lambda q, k: (q, k.half())),
    "strides": lambda: case(lambda q, k: (q.repeat(1, 1, 1, 2)[..., :16], k)),
    "strides of keys": lambda: case(lambda q, k: (q, k.repeat(1, 1, 1, 2)[..., :16])),
    "rows that are not aligned": lambda: case(lambda q, k: features(past=1)),
    "keys that are not aligned": lambda: case(lambda q, k: (q, features(past=1)[1])),
    "rows that are aligned again": lambda: case(before=lambda q, k: features(past=1)),
    "gradients": lambda: case(lambda q, k: (q.requires_grad_(), k), within=torch.enable_grad()),
    "gradients of keys": lambda: case(lambda q, k: (q, k.requires_grad_()), within=torch.enable_grad()),
    "a lazy sign": lambda: case(lambda q, k: (torch._neg_view(q), k)),
    "a class of tensors": lambda: case(lambda q, k: (q.as_subclass(Tensor), k)),
    "a copy": lambda: case(between=copy.deepcopy),
    "a module that was stored": lambda: case(between=lambda module: pickle.loads(pickle.dumps(module))),
    "a module that was moved": lambda: case(between=lambda module: module.to("cpu")),
    "a trace": lambda: case(call=traced),
    "a mode": lambda: case(within=Seeing()),
    "forward mode": lambda: case(within=dual_level()),
}

if __name__ == "__main__":
    triton.compiler.compile, JITFunction.run = compiled, counted
    triton.runtime.driver.set_active(
        Record(
            get_current_target=lambda: GPUTarget("cuda", 90, 32),
            get_current_device=lambda: 0,
            get_current_stream=lambda device: CURRENT[0],
            launcher_cls=Launcher,
            utils=Record(
                load_binary=lambda *given: (1, 2, 40, 0, 1024),
                get_device_properties=lambda device: {"max_shared_mem": 2**17},
            ),
        )
    )
    patch = pytest.MonkeyPatch()
    triton_device.stand_in(patch)
    patch.setattr(libraries._Torch, "are_plain_dense", lambda _, *tensors: not tensors)  # as of tensors on a device
    patch.setattr(torch.cpu, "current_device", lambda: CURRENT[1])  # `Tensor.get_device` gives -1
    found = {name: make() for name, make in CASES.items()}
    module, (q, k), calls = RotaryEmbedding(16), features(), []
    with torch.no_grad():
        module(q, k, offset=1)
        sys.setprofile(lambda frame, event, argument: calls.append(frame) if event == "call" else None)
        module(q, k, offset=2)
        sys.setprofile(None)
    patch.undo()
    sys.stdout.write("\n" + json.dumps({"cases": found, "calls": len(calls)}) + "\n")
