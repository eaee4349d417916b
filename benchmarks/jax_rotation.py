"""Rotation in JAX beside the usual formula: seconds to compile, and milliseconds of a value and of a gradient.

``python -m benchmarks.jax_rotation --output docs/_data/jax_table.inc`` makes the table of docs/howto/jax.rst. Both run
in turn, compiled, on one core of the CPU, and the least of some runs counts, in seconds of the processor.
"""

import argparse
import os
import pathlib
import time

import numpy as np

import rfrope

SHAPES = {"rotation": (1, 16, 1024, 128), "attention": (1, 4, 512, 128)}
REPEATS = 9


def usual(jax, frequencies, pairing):
    """The formula as models have it: angles, cos and sin in float32."""
    jnp = jax.numpy

    def rotate(x, positions):
        angles = positions[:, None].astype(jnp.float32) * jnp.asarray(frequencies, dtype=jnp.float32)
        if pairing == "half":
            angles, half = jnp.concatenate([angles, angles], axis=-1), x.shape[-1] // 2
            turned = jnp.concatenate([-x[..., half:], x[..., :half]], axis=-1)
        else:
            angles = jnp.repeat(angles, 2, axis=-1)
            turned = jnp.stack([-x[..., 1::2], x[..., ::2]], axis=-1).reshape(x.shape)
        return x * jnp.cos(angles) + turned * jnp.sin(angles)

    return rotate


def jobs(jax, rotate):
    """What is timed, by name, each of (q, k, v, positions)."""
    jnp = jax.numpy

    def attention(q, k, v, p):
        scores = jnp.matmul(rotate(q, p), rotate(k, p).swapaxes(-1, -2)) / q.shape[-1] ** 0.5
        return jnp.sum(jnp.matmul(jax.nn.softmax(scores, axis=-1), v) ** 2)

    def product(q, k, v, p):
        return jnp.sum(rotate(q, p) * rotate(k, p) ** 2)

    return {
        ("rotation", "value"): lambda q, k, v, p: (rotate(q, p), rotate(k, p)),
        ("rotation", "value and gradient"): jax.value_and_grad(product, argnums=(0, 1)),
        ("attention", "value"): attention,
        ("attention", "value and gradient"): jax.value_and_grad(attention, argnums=(0, 1, 2)),
    }


def measured(jax, versions, repeats):
    """Return for each version and job the seconds to compile and the milliseconds of a run, measured in turn."""
    generator, found, ready = np.random.default_rng(0), {}, []
    for name, rotate in versions.items():
        for job, function in jobs(jax, rotate).items():
            shape = SHAPES[job[0]]
            q, k, v = (jax.numpy.asarray(generator.standard_normal(shape, dtype=np.float32)) for _ in range(3))
            arguments, compiling = (q, k, v, jax.numpy.arange(shape[-2])), []
            for _ in range(2):
                jax.clear_caches()
                start = time.process_time()
                compiled = jax.jit(function).lower(*arguments).compile()
                compiling.append(time.process_time() - start)
            ready.append(((name, *job), compiled, arguments))
            found[name, *job] = [min(compiling), np.inf]
    for _ in range(repeats):
        for key, compiled, arguments in ready:
            start = time.process_time()
            jax.block_until_ready(compiled(*arguments))
            found[key][1] = min(found[key][1], 1e3 * (time.process_time() - start))
    return found


def rows(repeats):
    """Yield one row for each pairing, precision and job."""
    import jax

    frequencies = rfrope.geometric(64)
    for x64 in (False, True):
        jax.config.update("jax_enable_x64", x64)
        for pairing in ("half", "interleaved"):
            versions = {
                "usual": usual(jax, frequencies, pairing),
                "rfrope": lambda x, p, pairing=pairing: rfrope.rotate(x, p, frequencies, pairing=pairing),
            }
            found = measured(jax, versions, repeats)
            for job in jobs(jax, versions["usual"]):
                numbers = [found[name, *job] for name in versions]
                compiling, running = zip(*numbers, strict=True)
                yield (
                    pairing,
                    "x64" if x64 else "no x64",
                    *job,
                    *(f"{seconds:.2f}" for seconds in compiling),
                    *(f"{milliseconds:.1f}" for milliseconds in running),
                )


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=pathlib.Path, help="file for the table")
    parser.add_argument("--repeats", type=int, default=REPEATS)
    given = parser.parse_args(arguments)
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    one = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {one}"
    heads = ("pairing", "precision", "job", "of", "compile, usual (s)", "compile, rfrope (s)", "run, usual (ms)",
             "run, rfrope (ms)")  # fmt: skip
    lines = [".. made by python -m benchmarks.jax_rotation", "", ".. list-table::", "   :header-rows: 1", ""]
    for row in (heads, *rows(given.repeats)):
        lines += [f"   {'*' if not i else ' '} - {cell}" for i, cell in enumerate(row)]
        print("  ".join(row), flush=True)
    if given.output:
        given.output.write_text("\n".join([*lines, ""]), encoding="utf-8")


if __name__ == "__main__":
    main()
