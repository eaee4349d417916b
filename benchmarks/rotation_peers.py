"""Rotation and its peers: one problem, and for each peer the fastest way to have it solved by that library.

All memory is there before the clock runs, tables are ready and in the dtype of x, and where a library has ``out=`` or
bound buffers it gets them, unless a name says otherwise.
"""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

import rfrope
from benchmarks import machine
from benchmarks.timing import Entry, Missing

HEADS, WIDTH, BLOCKS = 32, 128, 64


def need(package: str) -> Any:
    """Import an optional package, or say that it is missing."""
    if importlib.util.find_spec(package) is None:
        raise Missing("not installed")
    return importlib.import_module(package)


@dataclass(frozen=True)
class Rotation:
    """Features (1, 32, tokens, 128) of a dtype and library, laid out in memory in one way or another.

    `layout` is "heads first" (contiguous), or "heads last": a transposed view of (1, tokens, 32, 128). `into` is "out",
    "contiguous out", "in place" or "fresh".
    """

    tokens: int
    dtype: str = "float32"
    backend: str = "numpy"
    pairing: str = "half"
    layout: str = "heads first"
    into: str = "out"
    per_head: bool = False
    prepared: bool = False  # by a Rope, one call after the other

    @cached_property
    def host_dtype(self) -> np.dtype:
        return np.dtype(need("ml_dtypes").bfloat16 if self.dtype == "bfloat16" else self.dtype)

    @cached_property
    def host(self) -> np.ndarray:
        """Features, contiguous, in float32 but rounded to the dtype."""
        shape = (1, HEADS, self.tokens, WIDTH)
        return np.random.default_rng(0).standard_normal(shape, dtype=np.float32).astype(self.host_dtype)

    @cached_property
    def positions(self) -> np.ndarray:
        start = 4095 if self.tokens == 1 else 0  # a decode step comes late
        positions = np.arange(start, start + self.tokens)
        return positions[:, None] if self.per_head else positions

    @cached_property
    def frequencies(self) -> np.ndarray:
        if self.per_head:
            return rfrope.sample("gaussian(scale=32)", BLOCKS, rng=0, heads=HEADS)
        return rfrope.geometric(BLOCKS)

    @cached_property
    def table(self) -> tuple[np.ndarray, np.ndarray]:
        return rfrope.rotation_table(self.positions, self.frequencies)

    def numpy(self, fill: bool = True, layout: str | None = None) -> np.ndarray:
        """Features of NumPy in the layout, or touched memory for them."""
        values = self.host if fill else np.zeros_like(self.host)
        if (layout or self.layout) == "heads first":
            return values.copy()
        return values.transpose(0, 2, 1, 3).copy().transpose(0, 2, 1, 3)

    def torch(self, fill: bool = True, layout: str | None = None) -> Any:
        """Do the same for PyTorch."""
        torch = need("torch")
        torch.set_num_threads(machine.cores())
        values = self.numpy(fill, layout)
        if self.dtype == "bfloat16":
            return torch.from_numpy(values.view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(values)

    @property
    def target_layout(self) -> str:
        return "heads first" if self.into == "contiguous out" else self.layout


def as_doubles(x: Any) -> np.ndarray:
    """Any result as float64 of NumPy."""
    return np.asarray(x.detach().double() if hasattr(x, "detach") else x).astype(np.float64)


# -- each takes a problem and returns an entry, or raises Missing ------------------------------------------------------


def ours(problem: Rotation) -> Entry:
    make = problem.torch if problem.backend == "torch" else problem.numpy
    x = make()
    out = {"in place": x, "fresh": None}.get(problem.into, "given")
    out = make(False, problem.target_layout) if isinstance(out, str) else out
    positions, frequencies, pairing = problem.positions, problem.frequencies, problem.pairing
    if problem.backend == "torch":
        torch = need("torch")
        positions, frequencies = torch.from_numpy(positions), torch.from_numpy(frequencies)

    rope = rfrope.Rope(problem.frequencies, pairing=pairing)

    def call() -> Any:
        if problem.prepared:
            return rope.rotate(x, problem.positions, out=out)
        return rfrope.rotate(x, positions, frequencies, pairing=pairing, out=out)

    for _ in range(40 if problem.prepared else 0):  # after some calls of one layout a call of its own is compiled
        call()
    return Entry("rfrope", call, as_doubles)


def parallel_copy(problem: Rotation) -> Entry:
    """Copy x by slices of contiguous memory on as many threads as there are cores."""
    source = problem.host.reshape(-1).view(np.uint8).view(np.float32)
    target, threads = np.zeros_like(source), machine.cores()
    edges = np.linspace(0, source.size, threads + 1).astype(int)
    parts = [slice(*pair) for pair in itertools.pairwise(edges)]
    pool = ThreadPoolExecutor(max(1, threads - 1))

    def part(span: slice) -> None:
        np.copyto(target[span], source[span])

    def call() -> np.ndarray:
        others = [pool.submit(part, span) for span in parts[1:]]
        part(parts[0])
        for other in others:
            other.result()
        return target

    def result(copied: np.ndarray) -> None:
        if not np.array_equal(copied.view(np.uint8), source.view(np.uint8)):
            raise AssertionError("a copy is not equal to what was copied")

    return Entry("parallel copy", call, result)


def fresh_copy(problem: Rotation) -> Entry:
    """Copy x into memory that the system has to give first: ``x.copy()``."""
    x = problem.numpy()
    return Entry("copy to fresh memory", x.copy)


def numpy_formula(problem: Rotation) -> Entry:
    """Usual formula on halves (or on every second feature) with ``out=``: six passes, on one thread."""
    x = problem.numpy()
    y = x if problem.into == "in place" else problem.numpy(False, problem.target_layout)
    cos, sin = (table.astype(x.dtype) for table in problem.table)
    parts = (
        (slice(0, BLOCKS), slice(BLOCKS, None)) if problem.pairing == "half" else (slice(0, None, 2), slice(1, None, 2))
    )
    (x_1, x_2), (y_1, y_2) = ([v[..., part] for part in parts] for v in (x, y))
    kept, product = np.zeros_like(x_1), np.zeros_like(x_1)

    def call() -> np.ndarray:
        np.multiply(x_1, sin, out=kept)
        np.multiply(x_2, sin, out=product)
        np.multiply(x_1, cos, out=y_1)
        np.subtract(y_1, product, out=y_1)
        np.multiply(x_2, cos, out=y_2)
        np.add(y_2, kept, out=y_2)
        return y

    return Entry("NumPy formula", call, as_doubles)


def _usual(x: Any, cos: Any, sin: Any) -> Any:
    import torch

    return x * cos + torch.cat((-x[..., BLOCKS:], x[..., :BLOCKS]), -1) * sin


def _usual_tables(problem: Rotation, x: Any) -> list[Any]:
    if problem.pairing != "half":
        raise Missing("it has no interleaved pairing")
    torch = need("torch")
    return [torch.from_numpy(np.concatenate([v, v], -1)).to(x.dtype) for v in problem.table]


def torch_eager(problem: Rotation) -> Entry:
    """Formula as Hugging Face has it: ``x * cos + rotate_half(x) * sin``, with tables of width d in the dtype of x."""
    torch, x = need("torch"), problem.torch()
    cos, sin = _usual_tables(problem, x)
    return Entry("Hugging Face formula, torch eager", torch.inference_mode()(lambda: _usual(x, cos, sin)), as_doubles)


def torch_eager_out(problem: Rotation) -> Entry:
    """Compute the same with every temporary in memory that is there."""
    torch, x, y = need("torch"), problem.torch(), problem.torch(False, problem.target_layout)
    cos, sin = _usual_tables(problem, x)
    half = torch.zeros_like(x)

    def call() -> Any:
        torch.mul(x, cos, out=y)
        torch.neg(x[..., BLOCKS:], out=half[..., :BLOCKS])
        half[..., BLOCKS:].copy_(x[..., :BLOCKS])
        return y.addcmul_(half, sin)

    return Entry("Hugging Face formula, torch eager, out=", torch.inference_mode()(call), as_doubles)


def torch_compiled(problem: Rotation) -> Entry:
    """Compute the same by torch.compile."""
    torch, x = need("torch"), problem.torch()
    cos, sin = _usual_tables(problem, x)
    compiled = torch.compile(_usual, dynamic=False)

    def call() -> Any:
        return compiled(x, cos, sin)

    call = torch.inference_mode()(call)
    try:
        call()
    except Exception as error:  # no C++ compiler
        raise Missing(f"torch.compile fails here: {type(error).__name__}") from None
    return Entry("Hugging Face formula, torch.compile", call, as_doubles)


def torch_complex(problem: Rotation) -> Entry:
    """Multiply pairs as complex numbers, with ``out=``: Meta's formula, for interleaved pairs."""
    torch, x = need("torch"), problem.torch()
    if problem.dtype != "float32":
        raise Missing(f"it has no complex numbers of {problem.dtype}")
    y = x if problem.into == "in place" else problem.torch(False, problem.target_layout)
    source, target = (torch.view_as_complex(v.unflatten(-1, (BLOCKS, 2))) for v in (x, y))
    table = torch.complex(*(torch.from_numpy(v.astype(np.float32)) for v in problem.table))

    def call() -> Any:
        torch.mul(source, table, out=target)
        return y

    # it is a peer for half pairs too: the work is the same, the features are others
    return Entry("torch complex", torch.inference_mode()(call), as_doubles if problem.pairing != "half" else None)


def onnxruntime(problem: Rotation) -> Entry:
    """One node RotaryEmbedding of domain com.microsoft (faster than that of ONNX), with bound buffers."""
    runtime, onnx = need("onnxruntime"), need("onnx")
    if problem.dtype == "bfloat16":
        raise Missing("it has no bfloat16 on the CPU")
    if problem.per_head:
        raise Missing("it has no frequencies for each head")
    if problem.into == "contiguous out":
        raise Missing("its output has the layout of its input")
    if problem.into in ("in place", "fresh") and problem.tokens > 1:
        raise Missing("it is measured with bound buffers only")
    flat = problem.layout == "heads last"
    x, y = problem.numpy(), problem.numpy(False)
    views = [v.transpose(0, 2, 1, 3).reshape(1, -1, HEADS * WIDTH) if flat else v for v in (x, y)]
    kind = getattr(onnx.TensorProto, {"float32": "FLOAT", "float16": "FLOAT16"}[problem.dtype])
    make = onnx.helper
    names = ("x", kind), ("positions", onnx.TensorProto.INT64), ("cos", kind), ("sin", kind)
    attributes = {"interleaved": int(problem.pairing == "interleaved"), **({"num_heads": HEADS} if flat else {})}
    node = make.make_node("RotaryEmbedding", [name for name, _ in names], ["y"], domain="com.microsoft", **attributes)
    inputs = [make.make_tensor_value_info(name, dtype, None) for name, dtype in names]
    graph = make.make_graph([node], "rotation", inputs, [make.make_tensor_value_info("y", kind, None)])
    opsets = [make.make_opsetid("com.microsoft", 1), make.make_opsetid("", 21)]
    model = make.make_model(graph, opset_imports=opsets, ir_version=10)
    options = runtime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = machine.cores(), 3
    session = runtime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    binding, rows = session.io_binding(), np.arange(problem.tokens)[None]
    kept = [views[0], rows, *(table.astype(x.dtype) for table in problem.table)]
    for (name, _), array in zip(names, kept, strict=True):
        binding.bind_cpu_input(name, array)
    binding.bind_output("y", "cpu", 0, x.dtype.type, views[1].shape, views[1].ctypes.data)

    def call() -> np.ndarray:
        session.run_with_iobinding(binding)
        return kept and y

    return Entry("onnxruntime RotaryEmbedding", call, as_doubles)


PEERS: dict[str, Callable[[Rotation], Entry]] = {
    "parallel copy": parallel_copy,
    "copy to fresh memory": fresh_copy,
    "onnxruntime RotaryEmbedding": onnxruntime,
    "torch complex": torch_complex,
    "NumPy formula": numpy_formula,
    "Hugging Face formula, torch eager": torch_eager,
    "Hugging Face formula, torch eager, out=": torch_eager_out,
    "Hugging Face formula, torch.compile": torch_compiled,
}
