"""Ways to turn in compiled functions that were tried, beside the usual formula: ``python -m benchmarks.ways``.

Ratios to the usual formula of the same run: of a decode step that torch.compile made (32 and 8 heads of 128), and of
the seconds to compile and to run in JAX (as `benchmarks.jax_rotation` has them). ``--only torch`` or ``--only jax``
runs half of it, ``--output FILE`` writes the table as a page of the documentation includes it.
"""

from __future__ import annotations

import argparse
import math
import os
import pathlib
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

import rfrope
from benchmarks import jax_rotation, torch_layers
from benchmarks.timing import Entry, measure
from rfrope._core import turns
from rfrope._core.angles import Angles

BLOCKS, UNIT = 64, 2.0 * math.pi * 2.0**-64
HEADS = ("What", "Way", "To compile", "To run")

# -- a decode step in torch --------------------------------------------------------------------------------------------


def steps() -> dict[str, Callable[..., Any]]:
    """Functions of q, k and positions, compiled, by what they do."""
    import torch

    frequencies = rfrope.geometric(BLOCKS)
    words, rests = (torch.from_numpy(value) for value in turns.wrapping_turns(frequencies))
    packed = torch.stack([words, rests.view(torch.int64)])
    rows = torch.stack([one[:, :BLOCKS] for one in torch_layers.tables(np.arange(8192), torch.float32)], dim=1)
    module = rfrope.layers.torch.RotaryEmbedding(frequencies)
    tabled = rfrope.layers.torch.RotaryEmbedding(frequencies, max_positions=8192)

    def turned(x: Any, cos: Any, sin: Any) -> Any:
        first, second = x[..., :BLOCKS].float(), x[..., BLOCKS:].float()
        return torch.cat([first * cos - second * sin, first * sin + second * cos], -1).to(x.dtype)

    def by_turns(words: Any, rests: Any, positions: Any) -> Any:
        at = positions[:, None, :, None]
        return ((at * words).double() + at.double() * rests) * UNIT

    def kept(table: Any) -> Any:
        return table.as_strided(table.shape, table.stride())

    def two_constants(q: Any, k: Any, positions: Any) -> Any:
        phases = by_turns(words, rests, positions)
        cos, sin = kept(phases.cos().float()), kept(phases.sin().float())
        return turned(q, cos, sin), turned(k, cos, sin)

    def one_constant(q: Any, k: Any, positions: Any) -> Any:
        phases = by_turns(packed[0], packed[1].view(torch.float64), positions)
        cos, sin = kept(phases.cos().float()), kept(phases.sin().float())
        return turned(q, cos, sin), turned(k, cos, sin)

    def one_table(q: Any, k: Any, positions: Any) -> Any:
        phases = by_turns(packed[0], packed[1].view(torch.float64), positions)
        table = kept(torch.cat([phases.cos(), phases.sin()], -1).float())
        return tuple(turned(x, table[..., :BLOCKS], table[..., BLOCKS:]) for x in (q, k))

    def gathered(q: Any, k: Any, positions: Any) -> Any:
        table = rows[positions][:, None]
        return tuple(turned(x, table[..., 0, :], table[..., 1, :]) for x in (q, k))

    return {
        "turns, two constants (a function)": two_constants,
        "turns, one constant (a function)": one_constant,
        "turns, one constant, cos and sin in one table (a function)": one_table,
        "rows of cos and sin gathered by position (a function)": gathered,
        "kept: turns, one constant (the module)": module,
        "kept: rows gathered by position (the module, max_positions)": tabled,
        "the module in a function": lambda q, k, positions: module(q, k, positions),
    }


def of_torch() -> list[tuple[str, ...]]:
    """Rows for both dtypes."""
    import torch

    return [row for name in ("float32", "bfloat16") for row in _of_dtype(name, getattr(torch, name))]


def _of_dtype(name: str, dtype: Any) -> list[tuple[str, ...]]:
    import torch

    q, k = (torch_layers.features(1, heads, dtype, seed) for seed, heads in enumerate((32, 8)))
    tables, positions = torch_layers.tables(np.asarray([4095]), dtype), torch.tensor([[4095]])
    usual, held = torch.compile(torch_layers.usual), torch.compile(torch_layers.held_tables(dtype))
    calls = {
        "usual formula, tables ready (a function)": lambda: usual(q, k, *tables),
        "usual formula, rows by position (a module)": lambda: held(q, k, positions),
    }
    compiled = {way: torch.compile(function) for way, function in steps().items()}
    calls |= {way: lambda each=each: each(q, k, positions) for way, each in compiled.items()}
    entries = [Entry(way, torch.inference_mode()(call)) for way, call in calls.items()]
    measure(entries, 20, 3.0)
    return [(f"decode step, {name}", one.name, "", f"{one.least / entries[0].least:.2f}") for one in entries]


# -- JAX ---------------------------------------------------------------------------------------------------------------


def rotations(jax: Any, pairing: str) -> dict[str, Callable[..., Any]]:
    """Functions of features and positions, by what they do; tables are rfrope's own unless it says so."""
    jnp, lax = jax.numpy, jax.lax
    frequencies = rfrope.geometric(BLOCKS)
    apart, axis = ((BLOCKS, 2), -1) if pairing == "interleaved" else ((2, BLOCKS), -2)

    def tables(positions: Any) -> Any:
        found = turns.cos_sin(Angles(positions[:, None], frequencies[:, None], None, jnp))
        return tuple(one.astype(jnp.float32) for one in found)

    def split(x: Any) -> Any:
        z = x.reshape(*x.shape[:-1], *apart)
        return (z[..., 0], z[..., 1]) if pairing == "interleaved" else (z[..., 0, :], z[..., 1, :])

    def relaid(x: Any, shape: tuple[int, int]) -> Any:
        return jnp.matrix_transpose(x.reshape(*x.shape[:-1], *shape)).reshape(x.shape)

    def halves(x: Any, positions: Any) -> Any:
        x = relaid(x, apart) if pairing == "interleaved" else x
        cos, sin = (jnp.concatenate([one, one], -1) for one in tables(positions))
        y = x * cos + jnp.concatenate([-x[..., BLOCKS:], x[..., :BLOCKS]], -1) * sin
        return relaid(y, (2, BLOCKS)) if pairing == "interleaved" else y

    def stacked(x: Any, positions: Any) -> Any:
        (cos, sin), (first, second) = tables(positions), split(x)
        return jnp.stack([first * cos - second * sin, first * sin + second * cos], axis).reshape(x.shape)

    def as_complex(x: Any, positions: Any) -> Any:
        turned = lax.complex(*split(x)) * lax.complex(*tables(positions))
        return jnp.stack([turned.real, turned.imag], axis).reshape(x.shape)

    def permuted(x: Any, positions: Any) -> Any:
        (cos, sin), order = tables(positions), np.arange(2 * BLOCKS).reshape(apart)
        wide = (jnp.stack(both, axis).reshape(-1, 2 * BLOCKS) for both in ([cos, cos], [-sin, sin]))
        cos, sin = wide
        return x * cos + x[..., np.flip(order, axis).reshape(-1)] * sin

    def exchanged(x: Any, positions: Any) -> Any:
        (cos, sin), z = tables(positions), x.reshape(*x.shape[:-1], *apart)
        return (z * jnp.stack([cos, cos], axis) + jnp.flip(z, axis) * jnp.stack([-sin, sin], axis)).reshape(x.shape)

    def narrow(x: Any, positions: Any) -> Any:
        (cos, sin), z = tables(positions), x.reshape(*x.shape[:-1], *apart)
        sign = np.array([-1.0, 1.0], np.float32)[:, None] if axis == -2 else np.array([-1.0, 1.0], np.float32)
        return (z * jnp.expand_dims(cos, axis) + jnp.flip(z, axis) * (jnp.expand_dims(sin, axis) * sign)).reshape(
            x.shape
        )

    return {
        "usual formula": jax_rotation.usual(jax, frequencies, pairing),
        "halves joined again (before)": halves,
        "blocks apart, stacked again": stacked,
        "complex numbers": as_complex,
        "a constant permutation": permuted,
        "both features exchanged, tables of blocks": exchanged,
        "both features exchanged, tables not widened": narrow,
        "kept: both features exchanged, flat tables": lambda x, p: rfrope.rotate(x, p, frequencies, pairing=pairing),
    }


def of_jax(repeats: int = 3) -> list[tuple[str, ...]]:
    """Rows for both pairings, of a value and of a value with gradient."""
    import jax

    found = []
    for pairing in ("half", "interleaved"):
        measured = jax_rotation.measured(jax, rotations(jax, pairing), repeats)
        for job in (("rotation", "value"), ("rotation", "value and gradient"), ("attention", "value and gradient")):
            first = measured["usual formula", *job]
            for (way, *of), (compiling, running) in measured.items():
                if tuple(of) == job:
                    ratios = f"{compiling / first[0]:.2f}", f"{running / first[1]:.2f}"
                    found.append((f"{', '.join(job)}, {pairing}", way, *ratios))
    return found


def main(arguments: list[str] | None = None) -> int:
    """Measure, print, and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", choices=("torch", "jax"))
    parser.add_argument("--output", type=pathlib.Path)
    chosen = parser.parse_args(arguments)
    one = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {one}"
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    rows: list[tuple[str, ...]] = []
    start = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # compilers warn about themselves
        if chosen.only != "jax":
            import torch

            torch.set_num_threads(1)
            rows += of_torch()
        if chosen.only != "torch":
            rows += of_jax()
    torch_layers.written(chosen.output, [HEADS, *rows], "benchmarks.ways")
    print(f"{time.process_time() - start:.0f} s of the processor")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
