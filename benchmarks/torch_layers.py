"""The module for PyTorch beside the usual formula: ``python -m benchmarks.torch_layers`` prints times and errors.

Times are the least of several rounds, in which all entries take turns. ``--only REGEX`` measures some jobs; ``--output
FILE`` writes the tables as a page of the documentation includes them.
"""

from __future__ import annotations

import argparse
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
from benchmarks.rotation_peers import need
from benchmarks.timing import Entry, measure

BLOCKS, WIDTH, TOKENS, HEADS, SHARED = 64, 128, 4096, 32, 8


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


def training(dtype_name: str) -> list[Entry]:
    """Forward and backward of (1, 32, 4096, 128), gradients of the features and, last, of the frequencies."""
    import torch

    dtype = getattr(torch, dtype_name)
    x, g = features(TOKENS, HEADS, dtype, 0).requires_grad_(), features(TOKENS, HEADS, dtype, 1)
    cos, sin = tables(np.arange(TOKENS), dtype)
    positions, frequencies = torch.arange(TOKENS), torch.from_numpy(rfrope.geometric(BLOCKS))
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


# -- a decode step -----------------------------------------------------------------------------------------------------


def decoding(dtype_name: str) -> list[Entry]:
    """One token for 32 heads of queries and 8 of keys: the module, and the usual formula with its tables ready."""
    import torch

    dtype, rotary = getattr(torch, dtype_name), rfrope.layers.torch.RotaryEmbedding(rfrope.geometric(BLOCKS))
    q, k = features(1, HEADS, dtype, 0), features(1, SHARED, dtype, 1)
    cos, sin = tables(np.asarray([4095]), dtype)
    positions = torch.tensor([[4095]])
    compiled, compiled_usual = torch.compile(rotary), torch.compile(usual)
    calls = {
        "rfrope's module": lambda: rotary(q, k, offset=4095),
        "rfrope's module, positions as a tensor": lambda: rotary(q, k, positions),
        "usual formula, tables ready": lambda: usual(q, k, cos, sin),
        "rfrope's module, torch.compile": lambda: compiled(q, k, positions),
        "usual formula, tables ready, torch.compile": lambda: compiled_usual(q, k, cos, sin),
    }
    return [Entry(name, torch.inference_mode()(call)) for name, call in calls.items()]


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


def errors() -> list[tuple[str, int, float]]:
    """Largest error in bfloat16, in units of the rounding of the exact result: 1 is what rounding alone may do."""
    import torch

    found: list[tuple[str, int, float]] = []
    for position in (131_071, 1_000_000):
        x = features(1, HEADS, torch.bfloat16, 2)
        exact = rfrope.rotate(x.double(), [position], rfrope.geometric(BLOCKS))
        # half the distance of two neighbours in bfloat16, at each result
        unit = 2.0 ** (torch.floor(torch.log2(exact.abs().clamp_min(2.0**-126))) - 8.0)
        for name, turn in contestants().items():
            error = ((turn(x, position).double() - exact).abs() / unit).max()
            found.append((name, position, float(error)))
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
    "decode step, 32 and 8 heads of 128, float32": lambda: decoding("float32"),
    "decode step, 32 and 8 heads of 128, bfloat16": lambda: decoding("bfloat16"),
    "compiled model of 4 layers, 512 tokens, forward and backward": compiled_models,
}
COMPILATION, ERRORS = "compilation of 4 layers, forward and backward", "errors in bfloat16"


def shown(seconds: float) -> str:
    unit, factor = ("us", 1e6) if seconds < 1e-3 else ("ms", 1e3) if seconds < 1.0 else ("s", 1.0)
    return f"{seconds * factor:.3g} {unit}"


def lines(pattern: str, rounds: int, most_seconds: float) -> list[str]:
    """Rows of Markdown tables."""
    out = [f"<!-- Made by: {machine.command('benchmarks.torch_layers')} -->", "", *machine.description(), ""]
    out += ["| job | who | least | times rfrope's |", "| --- | --- | --- | --- |"]
    for job, make in JOBS.items():
        if not re.search(pattern, job):
            continue
        entries = make()
        measure(entries, rounds, most_seconds)
        for i, entry in enumerate(entries):
            out.append(
                f"| {job if not i else ''} | {entry.name} | {shown(entry.least)} | {entry.least / entries[0].least:.2f} |"
            )
    if re.search(pattern, COMPILATION):
        found = compiling()
        for i, (name, seconds) in enumerate(found):
            out.append(f"| {COMPILATION if not i else ''} | {name} | {shown(seconds)} | {seconds / found[0][1]:.2f} |")
    if re.search(pattern, ERRORS):
        out += ["", "| error in bfloat16, in units of rounding | position | largest |", "| --- | --- | --- |"]
        out += [f"| {name} | {position} | {error:.3g} |" for name, position, error in errors()]
    return out


def main(arguments: list[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", metavar="REGEX", help="jobs to measure")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=20.0, help="for one entry of a job")
    parser.add_argument("--output", type=pathlib.Path)
    chosen = parser.parse_args(arguments)
    try:
        import torch
    except ImportError:
        print("PyTorch is not installed: pip install 'rfrope[torch]'", file=sys.stderr)
        return 2
    torch.set_num_threads(machine.cores())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of compilers, about themselves
        text = "\n".join(lines(chosen.only, chosen.rounds, chosen.seconds)) + "\n"
    print(text)
    if chosen.output:
        chosen.output.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
