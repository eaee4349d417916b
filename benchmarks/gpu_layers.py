"""Layers of PyTorch on a device, as `benchmarks.gpu` measures them; and what is counted of them without one.

Queries (1, 32, tokens, 128) and keys of 8 heads: rfrope's module, the formula that models use, and others' kernels.
"""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import os
import pathlib
import sys
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import numpy as np

import rfrope
from benchmarks.gpu_jobs import BLOCKS, COPY, HEADS, OURS, WIDTH, Entry, Job, Place, Sizes, least_of_copy, relative
from benchmarks.rotation_peers import need
from benchmarks.timing import Missing
from rfrope._core import dispatch

SHARED = 8  # heads of keys
COUNTED = ("call", "who", "launches", "bytes, of one read and one write")
CODE = ("kernel of Triton, for compute capability 9.0", "who", "registers", "spilled bytes", "instructions")
_VIEWS = {"view", "expand", "slice", "select", "unsqueeze", "squeeze", "permute", "transpose", "detach", "alias", "t"}
_VIEWS |= {"as_strided", "_unsafe_view", "_reshape_alias", "split", "unbind", "lift_fresh", "empty", "empty_like"}
_VIEWS |= {"new_empty", "empty_strided"}  # no launch either

Layer = Callable[[Any, Any], tuple[Any, Any]]  # queries and keys -> those turned


def usual(q: Any, k: Any, cos: Any, sin: Any) -> tuple[Any, Any]:
    """What transformers and most code of models does."""
    import torch

    first, second = (x * cos + torch.cat((-x[..., BLOCKS:], x[..., :BLOCKS]), -1) * sin for x in (q, k))
    return first, second


def _tables(tokens: int, dtype: Any, device: str) -> tuple[Any, ...]:
    torch = need("torch")
    found = rfrope.rotation_table(np.arange(tokens), rfrope.geometric(BLOCKS))
    return tuple(torch.from_numpy(np.concatenate([v, v], -1)).to(device, dtype) for v in found)


def _module(tokens: int, dtype: Any, device: str, learnable: bool | str = False) -> Layer:
    made = importlib.import_module("rfrope.layers.torch").RotaryEmbedding(rfrope.geometric(BLOCKS), learnable)
    return made.to(device)


def _learned(tokens: int, dtype: Any, device: str) -> Layer:
    return _module(tokens, dtype, device, learnable="frequencies")


def _eager(tokens: int, dtype: Any, device: str) -> Layer:
    cos, sin = _tables(tokens, dtype, device)
    return lambda q, k: usual(q, k, cos, sin)


def _compiled(tokens: int, dtype: Any, device: str) -> Layer:
    cos, sin = _tables(tokens, dtype, device)
    compiled = need("torch").compile(usual, dynamic=False)
    return lambda q, k: compiled(q, k, cos, sin)


def _replayed(tokens: int, dtype: Any, device: str) -> Layer:
    """The module in a CUDA graph, whose inputs and results stay where they are."""
    torch, layer = need("torch"), _module(tokens, dtype, device)
    _need_graphs(device)
    q, k = _features(tokens, dtype, device)
    with torch.inference_mode():
        layer(q, k)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = layer(q, k)

    last = q

    def call(x: Any, y: Any) -> tuple[Any, Any]:
        nonlocal last
        if x is not last:  # a step of decoding computes its queries where the graph reads them
            q.copy_(x)
            k.copy_(y)
            last = x
        graph.replay()
        return found

    return call


def _need_graphs(device: str) -> None:
    if device != "cuda":
        raise Missing(f"no CUDA graphs on {device}")


def _reduced(tokens: int, dtype: Any, device: str) -> Layer:
    """The module as `torch.compile` records it in a CUDA graph, or the usual formula."""
    _need_graphs(device)
    return need("torch").compile(_module(tokens, dtype, device), mode="reduce-overhead", dynamic=False)


def _reduced_usual(tokens: int, dtype: Any, device: str) -> Layer:
    _need_graphs(device)
    cos, sin = _tables(tokens, dtype, device)
    compiled = need("torch").compile(usual, mode="reduce-overhead", dynamic=False)
    return lambda q, k: compiled(q, k, cos, sin)


def _flash(tokens: int, dtype: Any, device: str) -> Layer:
    """The Triton kernel of flash-attn, once for queries and once for keys, which it takes tokens first."""
    if importlib.util.find_spec("flash_attn") is None:
        raise Missing("flash-attn is not installed")
    rotary = importlib.import_module("flash_attn.ops.triton.rotary").apply_rotary
    cos, sin = (one[:, :BLOCKS].contiguous() for one in _tables(tokens, dtype, device))

    def turn(q: Any, k: Any) -> tuple[Any, Any]:
        first, second = (rotary(x.transpose(1, 2), cos, sin).transpose(1, 2) for x in (q, k))
        return first, second

    return turn


def _liger(tokens: int, dtype: Any, device: str) -> Layer:
    """The Triton kernel of Liger, which writes over queries and keys."""
    if importlib.util.find_spec("liger_kernel") is None:
        raise Missing("liger-kernel is not installed")
    turn = importlib.import_module("liger_kernel.ops.rope").LigerRopeFunction.apply
    cos, sin = (one[None] for one in _tables(tokens, dtype, device))
    return lambda q, k: turn(q, k, cos, sin)


WAYS: dict[str, Callable[[int, Any, str], Layer]] = {
    OURS: _module,
    "torch, eager": _eager,
    "torch.compile": _compiled,
    "Liger, in place": _liger,
    "flash-attn, Triton": _flash,
}
FORWARD = "forward"
_TWICE, _LEARNED, _THRICE = 1 / 2.1, 1 / 1.1, 1 / 2.6  # of the forward's rate: gradients of angles see features again


def _features(tokens: int, dtype: Any, device: str, learns: bool = False) -> tuple[Any, Any]:
    torch = need("torch")
    q, k = (torch.randn(1, heads, tokens, WIDTH, dtype=dtype, device=device) for heads in (HEADS, SHARED))
    return q.requires_grad_(learns), k.requires_grad_(learns)


def _entry(
    make: Callable[[int, Any, str], Layer], tokens: int, name: str, backward: bool = False
) -> Callable[[Place], Entry]:
    """Queries and keys turned, with gradients of both and of parameters where they are asked for."""

    def prepare(place: Place) -> Entry:
        arrays = place.arrays("torch")
        torch, device = arrays.xp, arrays.device
        dtype = getattr(torch, name)
        layer = make(tokens, dtype, device)
        q, k = _features(tokens, dtype, device, backward)
        learned = list(getattr(layer, "parameters", list)())
        y, z = _features(tokens, dtype, device)

        def call(_: int) -> Any:
            if not backward:
                with torch.inference_mode():
                    return layer(q, k)
            return torch.autograd.grad(layer(q, k), (q, k, *learned), (y, z))

        def error() -> float:
            q, _ = _features(tokens, dtype, device)
            exact = rfrope.rotate(arrays.host(q), np.arange(tokens), rfrope.geometric(BLOCKS))
            found, _ = layer(q, q[:, :SHARED].clone())
            return relative(arrays.host(found), exact)

        return Entry(call, error)

    return prepare


def _copy(tokens: int, name: str) -> Callable[[Place], Entry]:
    def prepare(place: Place) -> Entry:
        arrays = place.arrays("torch")
        dtype = getattr(arrays.xp, name)
        source, target = (_features(tokens, dtype, arrays.device) for _ in range(2))
        return Entry(lambda _: [arrays.copy(b, a) for a, b in zip(source, target, strict=True)])

    return prepare


def layers(sizes: Sizes) -> list[Job]:
    """Return jobs of the module: texts of three lengths and a single token, forwards, and with gradients."""
    jobs = []
    for name, tokens in itertools.product(("bfloat16", "float32"), (sizes.tokens // 2, sizes.tokens, 2 * sizes.tokens)):
        size = (HEADS + SHARED) * tokens * WIDTH * (2 if name == "bfloat16" else 4)
        what = f"module, q (1,{HEADS},{tokens},{WIDTH}) and k of {SHARED} heads, {name} of torch"
        forward = {way: _entry(make, tokens, name) for way, make in WAYS.items()} | {COPY: _copy(tokens, name)}
        jobs.append(Job(what, "rotation", forward, 2e-9 * size, "GB/s", least_of_copy(size)))
        if tokens == sizes.tokens:
            jobs += _training(what, tokens, name, size)
    step = {way: _entry(make, 1, "bfloat16") for way, make in WAYS.items()}
    what = f"module, one token, q (1,{HEADS},1,{WIDTH}) and k of {SHARED} heads, bfloat16 of torch"
    jobs.append(Job(f"{what}: the host's part of a call", "launch", step, 1.0, "calls/s", 25_000.0, launch=True))
    jobs.append(Job(f"{what}: the device's part", "launch", step, 1.0, "calls/s"))
    replayed = {OURS: _entry(_replayed, 1, "bfloat16")}
    jobs.append(Job(f"{what}: in a CUDA graph that is replayed", "launch", replayed, 1.0, "calls/s", 1.0 / 3e-6))
    reduced = {OURS: _entry(_reduced, 1, "bfloat16"), "torch.compile": _entry(_reduced_usual, 1, "bfloat16")}
    jobs.append(
        Job(f"{what}: compiled to reduce overhead, the host's part", "launch", reduced, 1.0, "calls/s", None, True)
    )
    jobs.append(Job(f"{what}: compiled to reduce overhead, the device's part", "launch", reduced, 1.0, "calls/s"))
    return jobs


def _training(what: str, tokens: int, name: str, size: int) -> list[Job]:
    """Forward and backward beside the forward alone, of known frequencies and of learned ones."""
    forward = {FORWARD: _entry(_module, tokens, name)}
    ways = {way: make for way, make in WAYS.items() if way not in ("Liger, in place", "flash-attn, Triton")}
    both = {way: _entry(make, tokens, name, True) for way, make in ways.items()} | {COPY: _copy(tokens, name)}
    learned, trained = ({OURS: _entry(_learned, tokens, name, backward)} for backward in (False, True))
    return [
        Job(f"{what}, forward and backward", "rotation", both | forward, 4e-9 * size, "GB/s", _TWICE, base=FORWARD),
        Job(f"{what}, learned frequencies", "rotation", learned | forward, 2e-9 * size, "GB/s", _LEARNED, base=FORWARD),
        Job(
            f"{what}, learned frequencies, forward and backward",
            "rotation",
            trained | forward,
            5e-9 * size,
            "GB/s",
            _THRICE,
            base=FORWARD,
        ),
    ]


# -- counted, without a device -----------------------------------------------------------------------------------------


def _counted(call: Callable[[], Any]) -> tuple[int, int]:
    """Return how many operators launch something, and the bytes that they read and write."""
    torch = need("torch")
    leaves = torch.utils._pytree.tree_leaves
    functions = importlib.import_module("rfrope._backends.torch.rotation").FUNCTIONS
    found = [0, 0]

    class Count(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if function.namespace == "rfrope":  # what it runs where no kernel serves
                with self, patch.object(dispatch, "place_of", lambda values: ""):
                    return functions[function](*args, **(kwargs or {}))
            result, name = function(*args, **(kwargs or {})), function._schema.name.split("::")[-1]
            if not (function.is_view or name in _VIEWS):
                found[0] += 1
                for one in leaves((args, kwargs or {}, result)):
                    if isinstance(one, torch.Tensor):
                        lengths = [n if step else 1 for n, step in zip(one.shape, one.stride(), strict=True)]
                        found[1] += one.element_size() * int(np.prod(lengths, dtype=np.int64))
            return result

    with Count():
        call()
    return found[0], found[1]


def counts(tokens: int = 4096) -> list[tuple[str, ...]]:
    """Return rows of launches and bytes of a layer, counted on the meta device: by torch's own operators alone."""
    torch, rows = need("torch"), []
    for length in (tokens, 1):
        for backward in (False, True):
            q, k = _features(length, torch.bfloat16, "meta", backward)
            ideal = (1 + backward) * 2 * (q.numel() + k.numel()) * q.element_size()
            for way in (OURS, "torch, eager"):
                layer = WAYS[way](length, torch.bfloat16, "meta")

                def call(layer: Layer = layer, q: Any = q, k: Any = k) -> Any:
                    found = layer(q, k)
                    return torch.autograd.grad(found, (q, k), found) if q.requires_grad else found

                _counted(call)  # constants come to the device
                launches, size = _counted(call)
                words = f"q (1,{HEADS},{length},{WIDTH}) and k, bfloat16" + ", and backward" * backward
                rows.append(
                    (words, f"{way}, without a kernel" if way == OURS else way, str(launches), f"{size / ideal:.1f}")
                )
    return rows


def machine_code() -> list[tuple[str, ...]]:
    """Return rows of what kernels of Triton take of the hardware, compiled ahead of time: ours, and Liger's."""
    _, triton = need("torch"), need("triton")
    if os.environ.get("TRITON_INTERPRET") == "1":
        raise Missing("interpreted, as TRITON_INTERPRET says")
    sys.path.append(str(pathlib.Path(__file__).parents[1] / "tests" / "support"))
    ahead = importlib.import_module("triton_compiled")
    named = {("q and k, " + name, OURS): ahead.source(make()) for name, make in ahead.VARIANTS.items()}
    if importlib.util.find_spec("liger_kernel"):
        named["q and k, bfloat16, tables, in place", "Liger"] = _source_of_liger(ahead)
    target, rows = ahead.GPUTarget("cuda", 90, 32), []
    for (name, who), source in named.items():
        took = ahead.of_nvidia(triton.compile(source, target=target))
        rows.append((name, who, *(str(took[one]) for one in ("registers", "spilled", "instructions"))))
    return rows


def _source_of_liger(ahead: Any) -> Any:
    """Its kernel, for tokens of 32 heads of queries and 8 of keys, as its function launches it."""
    kernel = importlib.import_module("liger_kernel.ops.rope")._triton_rope
    fixed = {"bs": 1, "cos_bs": 1, "n_qh": HEADS, "n_kh": SHARED, "hd": WIDTH, "rd": WIDTH, "pad_rd": WIDTH}
    fixed |= {"pad_n_qh": HEADS, "pad_n_kh": SHARED, "pad_hd": WIDTH, "BLOCK_SIZE": HEADS, "BACKWARD_PASS": False}
    signature, constants, attributes = {}, {}, {}
    for place, name in enumerate(kernel.arg_names):
        if name.isupper() or name in fixed:
            signature[name], constants[place,] = "constexpr", fixed[name]
        else:
            signature[name] = "i32" if name.endswith("stride") or name == "sl" else "*bf16"
            attributes[place,] = [["tt.divisibility", 16]]
    return ahead.ASTSource(kernel, signature, constants, attributes)
