"""Engines that are given tables: onnxruntime itself, and CUDA kernels by their own reference formulas."""

from __future__ import annotations

import numpy as np
import pytest
from packages import installed
from ropes import CONTEXT, KINDS, SEEDS, carried_by, check, features

from rfrope import exports


@pytest.mark.parametrize("kind", KINDS)
def test_onnxruntime(kind, tmp_path):
    installed("onnx")
    runtime = installed("onnxruntime")
    for seed in SEEDS:
        rope = KINDS[kind](seed)
        x, positions = features(rope)
        path = tmp_path / f"{seed}.onnx"
        exports.write(path, rope, "ONNX")
        session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        (got,) = session.run(None, {"X": x[None], "position_ids": positions[None]})
        check(got[0], x, positions, rope, "ONNX")


def turn(x: np.ndarray, cos: np.ndarray, sin: np.ndarray, neighbours: bool) -> np.ndarray:
    """Rotate as flash-attention, FlashInfer and TransformerEngine document it, by tables (tokens, 2D)."""
    width = cos.shape[-1]
    part, rest = x[..., :width], x[..., width:]
    if neighbours:
        swapped = np.stack([-part[..., 1::2], part[..., 0::2]], axis=-1).reshape(part.shape)
    else:
        swapped = np.concatenate([-part[..., width // 2 :], part[..., : width // 2]], axis=-1)
    return np.concatenate([part * cos + swapped * sin, rest], axis=-1)


@pytest.mark.parametrize(
    ("engine", "kind"),
    [(engine, kind) for engine in ("flash-attn", "FlashInfer", "TransformerEngine") for kind in carried_by(engine)],
)
def test_layouts_of_cuda_kernels(engine, kind):
    for seed in SEEDS:
        rope = KINDS[kind](seed)
        x, positions = features(rope)
        exported = exports.export(rope, engine)
        neighbours = not exported["is_neox"] if engine == "FlashInfer" else exported["interleaved"]
        if engine == "TransformerEngine":
            assert exported["freqs"].shape == (CONTEXT, 1, 1, rope.rotary_dim)
            phases = exported["freqs"][positions, 0, 0]
            cos, sin = np.cos(phases), np.sin(phases)
        else:
            whole = exported.get("cos_sin_cache")
            tables = (exported["cos"], exported["sin"]) if whole is None else np.split(whole, 2, -1)
            assert all((one.dtype, one.shape) == (np.float32, (CONTEXT, rope.n_blocks)) for one in tables)
            join = (lambda t: np.repeat(t, 2, -1)) if neighbours else (lambda t: np.concatenate([t, t], -1))
            cos, sin = (join(one[positions]) for one in tables)
        check(turn(x, cos, sin, neighbours), x, positions, rope, engine)
