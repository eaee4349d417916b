"""The module for PyTorch beside the usual formula: ``python -m benchmarks.torch_layers`` prints times and errors.

Times are the least of several rounds, in which all entries take turns; ``--only REGEX`` measures some jobs.
``--kept-heap`` lets the C library keep large memory that is freed, as jemalloc and long-lived processes do: without it
every step pays for fresh pages. ``--errors`` prints errors in bfloat16 instead. ``--output FILE`` writes the table as a
page of the documentation includes it.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import re
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

import rfrope
from benchmarks import machine
from benchmarks.rotation_peers import Rotation, need, parallel_copy
from benchmarks.timing import Entry, Missing, measure

BLOCKS, WIDTH, TOKENS, HEADS, SHARED = 64, 128, 4096, 32, 8
KEPT = {"MALLOC_MMAP_THRESHOLD_": str(2**32), "MALLOC_TRIM_THRESHOLD_": str(2**33)}  # of the C library of GNU


def usual(q: Any, k: Any, cos: Any, sin: Any) -> tuple[Any, ...]:
    """What transformers and most code of models does."""
    import torch

    return tuple(x * cos + torch.cat((-x[..., BLOCKS:], x[..., :BLOCKS]), -1) * sin for x in (q, k))


def tables(positions: np.ndarray, dtype: Any) -> tuple[Any, ...]:
    """Cos and sin of width d, ready in the dtype of the features."""
    import torch

    found = rfrope.rotation_table(positions, rfrope.geometric(BLOCKS))
    return tuple(torch.from_numpy(np.concatenate([v, v], -1)).to(dtype) for v in found)


def features(tokens: int, heads: int, dtype: Any, seed: int) -> Any:
    import torch

    return torch.randn(1, heads, tokens, WIDTH, generator=torch.Generator().manual_seed(seed)).to(dtype)


# -- forward and backward ----------------------------------------------------------------------------------------------


def training(dtype_name: str, heads: int = HEADS, tokens: int = TOKENS) -> list[Entry]:
    """Forward and backward of (1, heads, tokens, 128), gradients of the features and, last, of the frequencies."""
    import torch

    dtype = getattr(torch, dtype_name)
    x, g = features(tokens, heads, dtype, 0).requires_grad_(), features(tokens, heads, dtype, 1)
    cos, sin = tables(np.arange(tokens), dtype)
    positions, frequencies = torch.arange(tokens), torch.from_numpy(rfrope.geometric(BLOCKS))
    learned = frequencies.clone().requires_grad_()

    def formula(x: Any, cos: Any, sin: Any) -> Any:
        return x * cos + torch.cat((-x[..., BLOCKS:], x[..., :BLOCKS]), -1) * sin

    def learned_formula(x: Any, w: Any) -> Any:
        phases = positions[:, None].float() * w.float()
        cos, sin = (torch.cat([v, v], -1).to(dtype) for v in (phases.cos(), phases.sin()))
        return formula(x, cos, sin)

    compiled = torch.compile(formula)
    calls: dict[str, Callable[[], Any]] = {
        "rfrope": lambda: rfrope.rotate(x, positions, frequencies),
        "usual formula, eager": lambda: formula(x, cos, sin),
        "usual formula, torch.compile": lambda: compiled(x, cos, sin),
        "rfrope, frequencies learned": lambda: rfrope.rotate(x, positions, learned),
        "usual formula, eager, frequencies learned": lambda: learned_formula(x, learned),
    }

    def trained(call: Callable[[], Any]) -> Callable[[], Any]:
        def both() -> None:
            x.grad = learned.grad = None
            call().backward(g)

        return both

    return [Entry(name, trained(call)) for name, call in calls.items()]


def backwards() -> list[Entry]:
    """Gradients of (1, 32, 4096, 128) alone, from such in memory, and from what sums and masked attention give."""
    import torch

    x = features(TOKENS, HEADS, torch.float32, 0).requires_grad_()
    turned = rfrope.rotate(x, torch.arange(TOKENS), torch.from_numpy(rfrope.geometric(BLOCKS)))
    dense = features(TOKENS, HEADS, torch.float32, 1)
    given = {
        "a gradient in memory": dense,
        "a gradient of a sum": torch.ones(()).expand(x.shape),
        "a gradient of sums of rows": dense[..., :1].expand(x.shape),
        "a gradient that is transposed, as that of keys of masked attention": dense.mT.contiguous().mT,
    }
    return [Entry(name, lambda g=g: torch.autograd.grad(turned, x, g, retain_graph=True)) for name, g in given.items()]


# -- a prompt ----------------------------------------------------------------------------------------------------------


def prompt(heads: int, shared: int, tokens: int) -> list[Entry]:
    """Queries and keys of a prompt: the module, in a graph and not."""
    import torch

    rotary, q, k = _prompt(heads, shared, tokens)
    compiled = torch.compile(rotary)
    calls = {"rfrope's module": lambda: rotary(q, k), "rfrope's module, torch.compile": lambda: compiled(q, k)}
    return [Entry(name, torch.inference_mode()(call)) for name, call in calls.items()]


def _prompt(heads: int, shared: int, tokens: int) -> tuple[Any, Any, Any]:
    import torch

    q, k = features(tokens, heads, torch.float32, 0), features(tokens, shared, torch.float32, 1)
    return rfrope.layers.torch.RotaryEmbedding(rfrope.geometric(BLOCKS)), q, k


# -- a learned kernel --------------------------------------------------------------------------------------------------


def learned_kernels() -> list[Entry]:
    """Forward and backward of q and k (1, 8, 1024, 128), whose parameters change between calls."""
    import torch

    q, k, *gradients = (features(1024, 8, torch.float32, seed) for seed in range(4))
    q, k = q.requires_grad_(), k.requires_grad_()

    def trained(rope: Any, learnable: str) -> Callable[[], Any]:
        rotary = rfrope.layers.torch.RotaryEmbedding(rope, learnable)

        def both() -> None:
            q.grad = k.grad = None
            with torch.no_grad():
                for parameter in rotary.parameters():
                    parameter.mul_(1.0 + 1e-9).grad = None
            torch.autograd.backward(list(rotary(q, k)), gradients)

        return both

    texts = ("gaussian(scale=64)", "matern(nu=1.5, scale=64)", "rational_quadratic(alpha=1.5, scale=64)")
    ropes = {text: rfrope.design(text, head_dim=WIDTH, context=1024, rng=0) for text in texts}
    ropes |= {"log_uniform, of RoPE's base": rfrope.Rope(rfrope.geometric(BLOCKS))}
    free = Entry("frequencies learned", trained(ropes[texts[0]], "frequencies"))
    return [free, *(Entry(name, trained(rope, "kernel")) for name, rope in ropes.items())]


# -- polar features ----------------------------------------------------------------------------------------------------


def polar(dtype_name: str) -> list[Entry]:
    """Forward and backward of q and k (1, 32, 4096, 64) with a softplus, gradients of features and of k's shift."""
    import torch

    dtype = getattr(torch, dtype_name)
    q, k, *gradients = (features(TOKENS, HEADS, dtype, seed) for seed in range(4))
    q, k = (x[..., :BLOCKS].contiguous().requires_grad_() for x in (q, k))
    positions, frequencies = torch.arange(TOKENS), torch.from_numpy(rfrope.geometric(BLOCKS))
    shift = torch.zeros(HEADS, BLOCKS).requires_grad_()

    def ours() -> tuple[Any, ...]:
        rotate_polar = rfrope.rotation.rotate_polar
        turned_k = rotate_polar(k, positions, frequencies, shift=shift[:, None], softplus=True)
        return rotate_polar(q, positions, frequencies, softplus=True), turned_k

    def formula(q: Any, k: Any, shift: Any) -> tuple[Any, ...]:
        phases = positions[:, None].float() * frequencies.float()
        found = []
        for x, u in ((q, phases), (k, phases + shift[:, None])):
            m = torch.nn.functional.softplus(x)
            found.append(torch.cat([m * u.cos().to(dtype), m * u.sin().to(dtype)], -1))
        return tuple(found)

    compiled = torch.compile(formula)
    calls: dict[str, Callable[[], Any]] = {
        "rfrope": ours,
        "plain formula, eager": lambda: formula(q, k, shift),
        "plain formula, torch.compile": lambda: compiled(q, k, shift),
    }
    try:
        module = need("PoPE_pytorch").PoPE(BLOCKS, heads=HEADS)
        calls["PoPE-pytorch"] = lambda: [x.to(dtype) for x in module.apply_pope_to_qk(module(TOKENS), q, k)]
    except (Missing, ImportError) as error:
        print(f"PoPE-pytorch is left out: {error}", file=sys.stderr)

    def trained(call: Callable[[], Any]) -> Callable[[], Any]:
        def both() -> None:
            q.grad = k.grad = shift.grad = None
            torch.autograd.backward(list(call()), gradients)

        return both

    return [Entry(name, trained(call)) for name, call in calls.items()]


def polar_of_numpy(dtype: str) -> list[Entry]:
    """Polar features of NumPy's (1, 32, 4096, 64), beside a copy of what is written."""
    problem = Rotation(TOKENS, dtype)
    x = np.abs(problem.numpy()[..., :BLOCKS])
    out, positions, frequencies = problem.numpy(False), np.arange(TOKENS), rfrope.geometric(BLOCKS)

    def turned(softplus: bool) -> Callable[[], Any]:
        return lambda: rfrope.rotation.rotate_polar(x, positions, frequencies, softplus=softplus, out=out)

    named = (("rfrope", False), ("rfrope, softplus", True))
    return [*(Entry(name, turned(softplus)) for name, softplus in named), parallel_copy(problem)]


# -- a decode step -----------------------------------------------------------------------------------------------------


def decoding(dtype_name: str) -> list[Entry]:
    """One token for 32 heads of queries and 8 of keys: the module, and the usual formula with its tables ready."""
    import torch

    dtype, rotary = getattr(torch, dtype_name), rfrope.layers.torch.RotaryEmbedding(rfrope.geometric(BLOCKS))
    q, k = features(1, HEADS, dtype, 0), features(1, SHARED, dtype, 1)
    cos, sin = tables(np.asarray([4095]), dtype)
    positions = torch.tensor([[4095]])
    tabled = rfrope.layers.torch.RotaryEmbedding(rfrope.geometric(BLOCKS), max_positions=8192)
    compiled, compiled_tabled, compiled_usual = (torch.compile(each) for each in (rotary, tabled, usual))
    compiled_held = torch.compile(held_tables(dtype))
    compiled_function = torch.compile(lambda q, k, positions: rotary(q, k, positions))
    calls = {
        "rfrope's module": lambda: rotary(q, k, offset=4095),
        "rfrope's module, positions as a tensor": lambda: rotary(q, k, positions),
        "usual formula, tables ready": lambda: usual(q, k, cos, sin),
        "rfrope's module, torch.compile": lambda: compiled(q, k, positions),
        "rfrope's module with max_positions, torch.compile": lambda: compiled_tabled(q, k, positions),
        "usual formula as a module, rows by position, torch.compile": lambda: compiled_held(q, k, positions),
        "rfrope's module in a function, torch.compile": lambda: compiled_function(q, k, positions),
        "usual formula as a function, tables ready, torch.compile": lambda: compiled_usual(q, k, cos, sin),
    }
    return [Entry(name, torch.inference_mode()(call)) for name, call in calls.items()]


def held_tables(dtype: Any) -> Any:
    """The usual formula as a module that holds tables and takes their rows by position, as models do."""
    import torch

    class Held(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name, table in zip(("cos", "sin"), tables(np.arange(8192), dtype), strict=True):
                self.register_buffer(name, table, persistent=False)

        def forward(self, q: Any, k: Any, positions: Any) -> Any:
            return usual(q, k, self.cos[positions][:, None], self.sin[positions][:, None])

    return Held()


# -- a compiled model --------------------------------------------------------------------------------------------------


def models() -> tuple[Any, ...]:
    """Four layers of attention with grouped heads, by rfrope's module and by the usual one."""
    import torch

    class Usual(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("inv_freq", torch.from_numpy(rfrope.geometric(BLOCKS)).float(), persistent=False)

        def forward(self, q: Any, k: Any) -> tuple[Any, ...]:
            phases = torch.arange(q.shape[-2])[:, None].float() * self.inv_freq
            cos, sin = (torch.cat([v, v], -1).to(q.dtype) for v in (phases.cos(), phases.sin()))
            return usual(q, k, cos, sin)

    class Attention(torch.nn.Module):
        def __init__(self, rotary: Any) -> None:
            super().__init__()
            self.rotary = rotary
            self.q, self.o = (torch.nn.Linear(1024, 1024, bias=False) for _ in range(2))
            self.k, self.v = (torch.nn.Linear(1024, 256, bias=False) for _ in range(2))

        def forward(self, x: Any) -> Any:
            q, k, v = (f(x).unflatten(-1, (-1, WIDTH)).transpose(1, 2) for f in (self.q, self.k, self.v))
            q, k = self.rotary(q, k)
            mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            return x + self.o(mixed.transpose(1, 2).flatten(2))

    ours = lambda: rfrope.layers.torch.RotaryEmbedding(rfrope.geometric(BLOCKS))  # noqa: E731
    found = []
    for make in (ours, Usual):
        torch.manual_seed(0)
        found.append(torch.nn.Sequential(*(Attention(make()) for _ in range(4))))
    return tuple(found)


def compiling() -> list[tuple[str, float]]:
    """Seconds to compile the model, forward and backward, with nothing kept from earlier; the second of two runs."""
    import torch

    x, found = torch.randn(1, 256, 1024), {}
    for _ in range(2):  # the first one loads what any compilation needs
        for name, model in zip(("rfrope's module", "usual formula"), models(), strict=True):
            torch._dynamo.reset()
            start = time.perf_counter()
            with torch._inductor.utils.fresh_cache():
                torch.compile(model)(x).sum().backward()
            found[name] = time.perf_counter() - start
    return [*found.items()]


def compiled_models() -> list[Entry]:
    """Compiled models of 512 tokens, forward and backward."""
    import torch

    torch._dynamo.reset()
    x = torch.randn(1, 512, 1024)
    entries = []
    for name, model in zip(("rfrope's module", "usual formula"), models(), strict=True):
        compiled = torch.compile(model)
        entries.append(Entry(name, lambda compiled=compiled: compiled(x).sum().backward()))
    return entries


# -- errors ------------------------------------------------------------------------------------------------------------


def errors() -> list[tuple[str, int, float, float]]:
    """Largest and rms error in bfloat16; the largest in units of the rounding of the exact result."""
    import torch

    found: list[tuple[str, int, float, float]] = []
    for position in (131_071, 1_000_000):
        x = features(1, HEADS, torch.bfloat16, 2)
        exact = rfrope.rotate(x.double(), [position], rfrope.geometric(BLOCKS))
        # half the distance of two neighbours in bfloat16, at each result
        unit = 2.0 ** (torch.floor(torch.log2(exact.abs().clamp_min(2.0**-126))) - 8.0)
        for name, turn in contestants().items():
            error = (turn(x, position).double() - exact).abs()
            found.append((name, position, float((error / unit).max()), float(error.square().mean().sqrt())))
    return found


def contestants() -> dict[str, Callable[[Any, int], Any]]:
    import torch

    rotary = rfrope.layers.torch.RotaryEmbedding(rfrope.geometric(BLOCKS))
    found = {"rfrope's module": lambda x, position: rotary.bfloat16()(x, x, offset=position)[0]}
    try:
        llama = need("transformers").models.llama.modeling_llama
        config = need("transformers").LlamaConfig(
            head_dim=WIDTH, rope_parameters={"rope_type": "default", "rope_theta": 1e4}
        )
    except Exception as error:  # not installed
        print(f"transformers is left out: {error}", file=sys.stderr)
        return found
    theirs = llama.LlamaRotaryEmbedding(config)

    def turn(x: Any, position: int, module: Any = theirs) -> Any:
        cos, sin = module(x, torch.tensor([[position]]))
        return llama.apply_rotary_pos_emb(x, x, cos, sin)[0]

    cast = llama.LlamaRotaryEmbedding(config).bfloat16()
    return found | {
        "transformers' module": turn,
        "transformers' module after .bfloat16()": lambda x, position: turn(x, position, cast),
    }


# -- the tables --------------------------------------------------------------------------------------------------------

JOBS: dict[str, Callable[[], list[Entry]]] = {
    "forward and backward, (1, 32, 4096, 128) float32": lambda: training("float32"),
    "forward and backward, (1, 32, 4096, 128) bfloat16": lambda: training("bfloat16"),
    "forward and backward, (1, 8, 256, 128) float32, which fits a cache": lambda: training("float32", 8, 256),
    "backward alone, (1, 32, 4096, 128) float32": backwards,
    "prompt of 2048 tokens, 16 heads and 1 of 128, float32": lambda: prompt(16, 1, 2048),
    "prompt of 4096 tokens, 32 and 32 heads of 128, float32": lambda: prompt(32, 32, 4096),
    "kernel is learned, forward and backward, q and k (1, 8, 1024, 128) float32": learned_kernels,
    "polar features, forward and backward, q and k (1, 32, 4096, 64) float32": lambda: polar("float32"),
    "polar features, forward and backward, q and k (1, 32, 4096, 64) bfloat16": lambda: polar("bfloat16"),
    "polar features of NumPy, (1, 32, 4096, 64) float32, beside a copy of the result": lambda: polar_of_numpy(
        "float32"
    ),
    "polar features of NumPy, (1, 32, 4096, 64) bfloat16, beside a copy of the result": lambda: polar_of_numpy(
        "bfloat16"
    ),
    "decode step, 32 and 8 heads of 128, float32": lambda: decoding("float32"),
    "decode step, 32 and 8 heads of 128, bfloat16": lambda: decoding("bfloat16"),
    "compiled model of 4 layers, 512 tokens, forward and backward": compiled_models,
}
COMPILATION = "compilation of 4 layers, forward and backward"


def shown(seconds: float) -> str:
    unit, factor = ("us", 1e6) if seconds < 1e-3 else ("ms", 1e3) if seconds < 1.0 else ("s", 1.0)
    return f"{seconds * factor:.3g} {unit}"


def rows(pattern: str, rounds: int, most_seconds: float) -> list[tuple[str, ...]]:
    """Rows of the table of times."""
    found: list[tuple[str, ...]] = [("Job", "Who", "Least", "Times rfrope's")]
    for job, make in JOBS.items():
        if re.search(pattern, job):
            entries = make()
            measure(entries, rounds, most_seconds)
            least = [(entry.name, entry.least) for entry in entries]
            found += _job(job, least)
    return found + (_job(COMPILATION, compiling()) if re.search(pattern, COMPILATION) else [])


def _job(job: str, least: list[tuple[str, float]]) -> list[tuple[str, ...]]:
    first = least[0][1]
    return [(job if not i else "", who, shown(s), f"{s / first:.2f}") for i, (who, s) in enumerate(least)]


def rows_of_errors() -> list[tuple[str, ...]]:
    """Rows of the table of errors."""
    titles = ("In bfloat16", "Position", "Largest error, in units of the rounding of the exact result", "rms error")
    return [titles, *((name, str(at), f"{worst:.3g}", f"{rms:.2g}") for name, at, worst, rms in errors())]


def written(path: pathlib.Path | None, table: list[tuple[str, ...]], program: str = "benchmarks.torch_layers") -> None:
    """Print a table, and write it as a page of the documentation includes it."""
    notes = [f"Made by ``{machine.command(program)}`` on {', '.join(machine.description())}."]
    lines = [".. list-table::", "   :header-rows: 1", ""]
    for row in table:
        print(" | ".join(row))
        lines += [f"   {'*' if not i else ' '} - {cell}".rstrip() for i, cell in enumerate(row)]
    if path is not None:
        path.write_text("\n".join([*lines, "", *notes, ""]), encoding="utf-8")


def main(arguments: list[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", metavar="REGEX", help="jobs to measure")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=20.0, help="for one entry of a job")
    parser.add_argument("--errors", action="store_true", help="errors in bfloat16, not times")
    parser.add_argument("--kept-heap", action="store_true", help="memory that is freed is kept for the next step")
    parser.add_argument("--output", type=pathlib.Path)
    chosen = parser.parse_args(arguments)
    if chosen.kept_heap and not KEPT.items() <= os.environ.items():  # read when a process starts
        given = sys.argv[1:] if arguments is None else arguments
        os.execve(sys.executable, [sys.executable, "-m", "benchmarks.torch_layers", *given], os.environ | KEPT)
    try:
        import torch
    except ImportError:
        print("PyTorch is not installed: pip install 'rfrope[torch]'", file=sys.stderr)
        return 2
    torch.set_num_threads(machine.cores())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # compilers warn about themselves
        if chosen.errors:
            written(chosen.output, rows_of_errors())
        else:
            written(chosen.output, rows(chosen.only, chosen.rounds, chosen.seconds))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
