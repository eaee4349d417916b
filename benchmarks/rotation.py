"""Time and memory of rotating features, with a plain copy and the usual formula as peers."""

import itertools
import time

import numpy as np

import rfrope
from benchmarks import libraries

SHAPES = {"prefill": (1, 32, 4096, 128), "chunk": (1, 32, 256, 128), "decode": (1, 32, 1, 128)}


class Rotate:
    """Rotate queries or keys with phases formed on the fly."""

    params = (tuple(SHAPES), ("float32", "float16", "bfloat16"), libraries.NAMES, ("half", "interleaved"))
    param_names = ("job", "dtype", "library", "pairing")

    def setup(self, job, dtype, library, pairing):
        xp = libraries.module(library)
        self.x = libraries.features(library, SHAPES[job], dtype)
        positions, frequencies = xp.asarray(np.arange(SHAPES[job][-2])), xp.asarray(rfrope.geometric(64))
        self.rotate = libraries.ready(library, lambda x: rfrope.rotate(x, positions, frequencies, pairing=pairing))
        self.rotate(self.x)  # compile first

    def time_rotate(self, job, dtype, library, pairing):
        self.rotate(self.x)


class Peers:
    """What rotation is held against: a copy of x, and the usual formula with ready tables in the dtype of x."""

    params = Rotate.params[:3]
    param_names = Rotate.param_names[:3]

    def setup(self, job, dtype, library):
        xp = libraries.module(library)
        self.x = libraries.features(library, SHAPES[job], dtype)
        table = rfrope.rotation_table(np.arange(SHAPES[job][-2]), rfrope.geometric(64))
        cos, sin = (xp.asarray(xp.asarray(np.tile(v, 2)), dtype=self.x.dtype) for v in table)
        join = xp.cat if library == "torch" else xp.concatenate

        def usual_formula(x):
            return x * cos + join((-x[..., 64:], x[..., :64]), -1) * sin

        self.usual_formula = libraries.ready(library, usual_formula)
        self.copy = libraries.ready(library, (lambda x: x.clone()) if library == "torch" else (lambda x: x.copy()))
        self.usual_formula(self.x), self.copy(self.x)  # compile first

    def time_usual_formula(self, job, dtype, library):
        self.usual_formula(self.x)

    def time_copy(self, job, dtype, library):
        self.copy(self.x)


class RotateInto:
    """Rotate NumPy features into memory that is already there."""

    params = (tuple(SHAPES), ("out", "in place", "by table", "moved in place"), ("float32", "float16", "bfloat16"))
    param_names = ("job", "where", "dtype")

    def setup(self, job, where, dtype):
        self.x = libraries.features("numpy", SHAPES[job], dtype)
        self.out = np.empty_like(self.x) if where in ("out", "by table") else self.x
        self.positions, self.frequencies = np.arange(SHAPES[job][-2]), rfrope.geometric(64)
        self.moved, self.rope = self.positions + 1000, rfrope.Rope(self.frequencies, attention_factor=1.1386)
        self.table = rfrope.rotation_table(self.positions, self.frequencies, dtype=np.float32)
        self.time_rotate(job, where, dtype), self.time_rotate(job, where, dtype)  # loops are loaded, plans kept

    def time_rotate(self, job, where, dtype):
        if where == "by table":
            rfrope.rotate_by_table(self.x, *self.table, out=self.out)
        elif where == "moved in place":
            rfrope.rotation.relocate(self.x, self.positions, self.moved, self.rope, out=self.x)
        else:
            rfrope.rotate(self.x, self.positions, self.frequencies, out=self.out)

    def peakmem_rotate(self, job, where, dtype):
        self.time_rotate(job, where, dtype)


class Relocate:
    """Keys that move in place, against `rotate` and `Rope.rotate` in place: least times, one after the other."""

    params = (((8, 1024, 128), (8, 32, 128), (1, 32, 128), (32, 1, 128)), ("positions", "numbers", "torch"))
    param_names = ("shape", "by")
    target = 1.1

    def setup(self, shape, by):
        library = "torch" if by == "torch" else "numpy"
        self.k, self.rope = libraries.features(library, shape, "float32"), rfrope.Rope(rfrope.geometric(64))
        at = libraries.module(library).arange(shape[1])
        self.old, self.new = (16, 0) if by == "numbers" else (at + 1000, at)

    def least_times(self):
        """Seconds of `rotate`, of `Rope.rotate`, which prepares more ahead, and of a move."""
        calls = (
            lambda: rfrope.rotate(self.k, self.new, self.rope.frequencies, out=self.k),
            lambda: self.rope.rotate(self.k, self.new, out=self.k),
            lambda: rfrope.rotation.relocate(self.k, self.old, self.new, self.rope, out=self.k),
        )
        least = [float("inf")] * 3
        for _ in range(200):
            for i, call in enumerate(calls):
                began = time.perf_counter()
                call()
                least[i] = min(least[i], time.perf_counter() - began)
        return least

    def track_ratio(self, shape, by):
        rotated, _, moved = self.least_times()
        return moved / rotated

    track_ratio.unit = "times rotate"


class PerHead:
    """Rotate with frequencies of their own for each head, ``(H, D, k)``."""

    params = ((1, 2), (128, 1024, 4096))
    param_names = ("axes", "tokens")

    def setup(self, axes, tokens):
        self.x = libraries.features("numpy", (1, 32, tokens, 128), "float32")
        self.out = np.zeros_like(self.x)
        self.frequencies = rfrope.sample(rfrope.kernel("gaussian", scale=32.0, ndim=axes), 64, rng=0, heads=32)
        self.positions = np.stack([np.arange(tokens)] * axes, axis=-1)
        self.time_rotate(axes, tokens)

    def time_rotate(self, axes, tokens):
        rfrope.rotate(self.x, self.positions, self.frequencies, out=self.out)


class HeadsLast:
    """Rotate a transposed view of ``(B, L, H, d)`` into one alike, or into contiguous memory."""

    params = (("alike", "contiguous"), ("half", "interleaved"))
    param_names = ("out", "pairing")

    def setup(self, out, pairing):
        self.x = libraries.features("numpy", (1, 4096, 32, 128), "float32").transpose(0, 2, 1, 3)
        self.out = np.zeros_like(self.x) if out == "alike" else np.zeros(self.x.shape, np.float32)
        self.positions, self.frequencies = np.arange(4096), rfrope.geometric(64)
        self.time_rotate(out, pairing)

    def time_rotate(self, out, pairing):
        rfrope.rotate(self.x, self.positions, self.frequencies, pairing=pairing, out=self.out)

    def peakmem_rotate(self, out, pairing):
        self.time_rotate(out, pairing)


class Tables:
    """Exact cos and sin tables, and scores."""

    params = (libraries.NAMES,)
    param_names = ("library",)

    def setup(self, library):
        xp = libraries.module(library)
        self.positions, self.frequencies = xp.asarray(np.arange(4096)), xp.asarray(rfrope.geometric(64))
        self.q = libraries.features(library, (8, 512, 128), "float32")
        tokens = xp.asarray(np.arange(512))
        self.table = libraries.ready(library, rfrope.rotation_table)
        self.scores = libraries.ready(library, lambda q: rfrope.scores(q, q, tokens, tokens, self.frequencies))
        self.table(self.positions, self.frequencies), self.scores(self.q)

    def time_rotation_table(self, library):
        self.table(self.positions, self.frequencies)

    def time_scores(self, library):
        self.scores(self.q)


def main():
    """Print what `Relocate` measures, and whether it meets its target."""
    print("shape           by         rotate us  times rotate  times Rope.rotate  target")
    for shape, by in itertools.product(*Relocate.params):
        job = Relocate()
        job.setup(shape, by)
        rotated, prepared, moved = job.least_times()
        met = "met" if moved <= job.target * rotated else "missed"
        numbers = f"{1e6 * rotated:9.1f}  {moved / rotated:12.2f}  {moved / prepared:17.2f}"
        print(f"{shape!s:14}  {by:9}  {numbers}  {job.target} {met}")


if __name__ == "__main__":
    main()
