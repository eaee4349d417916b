"""Engines that are given tables: onnxruntime itself, and CUDA kernels by their own reference formulas."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from packages import installed
from ropes import CONTEXT, KINDS, SEEDS, carried_by, check, features

import rfrope
from rfrope import Rope, exports


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


def join(table: np.ndarray, neighbours: bool) -> np.ndarray:
    """Return a column of each block as columns of its two features."""
    return np.repeat(table, 2, -1) if neighbours else np.concatenate([table, table], -1)


def read_rows(engine: str, exported: dict[str, Any], rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, bool]:
    """Return cos and sin of rows of an export, two columns a block, as its kernel reads them, and the pairing."""
    if engine in ("FlashInfer", "vLLM operator"):
        whole, neighbours = exported["cos_sin_cache"], not exported["is_neox"]
        half = whole.shape[1] // 2  # its rotary_dim / 2
        cos, sin = whole.reshape(-1)[rows[:, None] * 2 * half + np.arange(2 * half)].reshape(-1, 2, half).swapaxes(0, 1)
        return join(cos, neighbours), join(sin, neighbours), neighbours
    if engine == "exllamav3":  # its kernel's index, of phases that it knows by their place in memory alone
        phases, neighbours = exported["inv_freq"], exported["rope_style"] == 1
        found = phases.reshape(-1)[rows[:, None] * phases.shape[-1] + np.arange(phases.shape[-1])]
        cos, sin = (exported["attn_factor"] * join(one(found), neighbours) for one in (np.cos, np.sin))
        return cos, sin, neighbours
    if engine == "TransformerEngine":
        phases = exported["freqs"][rows, 0, 0]
        return np.cos(phases), np.sin(phases), exported["interleaved"]
    if engine == "Liger-Kernel":  # the first half of each row alone
        half = exported["cos"].shape[-1] // 2
        cos, sin = (exported[name].reshape(-1, 2 * half)[rows, :half] for name in ("cos", "sin"))
        return join(cos, False), join(sin, False), False
    if engine == "diffusers":
        return exported["cos"][rows], exported["sin"][rows], exported["use_real_unbind_dim"] == -1
    neighbours = exported["interleaved"]
    return join(exported["cos"][rows], neighbours), join(exported["sin"][rows], neighbours), neighbours


TABLES = ("diffusers", "exllamav3", "flash-attn", "FlashInfer", "Liger-Kernel", "TransformerEngine", "vLLM operator")


@pytest.mark.parametrize(("engine", "kind"), [(engine, kind) for engine in TABLES for kind in carried_by(engine)])
def test_layouts_of_cuda_kernels(engine, kind):
    for seed in SEEDS:
        rope = KINDS[kind](seed)
        x, positions = features(rope)
        cos, sin, neighbours = read_rows(engine, exports.export(rope, engine), positions)
        assert cos.dtype == sin.dtype == np.float32
        check(turn(x, cos, sin, neighbours), x, positions, rope, engine)


def test_sizes_of_tables():
    rope = KINDS["partial"](0)
    assert exports.export(rope, "flash-attn")["sin"].shape == (CONTEXT, 8)
    for engine in ("FlashInfer", "vLLM operator", "LMCache"):
        assert exports.export(rope, engine)["cos_sin_cache"].shape == (CONTEXT, 16)
    whole = replace(rope, head_dim=16, attention_factor=1.0)
    assert exports.export(whole, "TransformerEngine")["freqs"].shape == (CONTEXT, 1, 1, 16)
    assert exports.export(whole, "Liger-Kernel")["cos"].shape == (1, CONTEXT, 16)
    assert exports.export(whole, "exllamav3")["inv_freq"].shape == (1, CONTEXT, 8)


def test_flashinfer_is_sent_to_the_function_that_takes_a_table():
    assert exports.export(KINDS["plain"](0), "FlashInfer")["function"] == "flashinfer.apply_rope_with_cos_sin_cache"


# -- sets for each head ------------------------------------------------------------------------------------------------

HEADS, TOKENS, TEXTS = 3, 12, 2


def many(pairing: str = "half", factor: float = 1.25, head_dim: int = 16) -> Rope:
    """Return a Rope with a set for each head, and a context longer than the texts."""
    omega = rfrope.sample(rfrope.kernel("gaussian", scale=3.0), 8, rng=0, heads=HEADS)
    return Rope(omega, context=TOKENS + 5, pairing=pairing, attention_factor=factor, head_dim=head_dim)


def texts(rope: Rope, first: tuple[int, ...] = (0, 0)) -> tuple[np.ndarray, np.ndarray]:
    """Return features (B, H, S, d) and what the Rope makes of them in texts that begin at `first`."""
    x = np.random.default_rng(1).standard_normal((TEXTS, HEADS, TOKENS, rope.head_dim))
    turned = [rope.rotate(text, (begin + np.arange(TOKENS))[:, None]) for text, begin in zip(x, first, strict=True)]
    return x, np.stack(turned)


def hold(got: np.ndarray, wanted: np.ndarray) -> None:
    assert got.shape == wanted.shape
    assert np.max(np.abs(got - wanted)) < 5e-6


BOTH = pytest.mark.parametrize("pairing", ["half", "interleaved"])


@BOTH
def test_heads_folded_into_the_batch_of_flash_attention(pairing):
    """Row ``rm_cs = rm + SEQLEN_OFFSETS[pid_batch]`` of the tables, by its kernel."""
    rope, first = many(pairing, head_dim=20), (0, 4)
    (x, wanted), made = texts(rope, first), exports.export(rope, "flash-attn")
    folded = x.reshape(TEXTS * HEADS, TOKENS, 1, -1)
    offsets = np.tile(made["seqlen_offsets"], TEXTS) + np.repeat(first, HEADS)
    assert made["seqlen_offsets"].tolist() == [0, TOKENS + 5, 2 * (TOKENS + 5)]
    assert made["seqlen_offsets"].dtype == np.int32
    for batch in range(TEXTS * HEADS):
        cos, sin, neighbours = read_rows("flash-attn", made, np.arange(TOKENS) + offsets[batch])
        folded[batch] = turn(folded[batch], cos[:, None], sin[:, None], neighbours)
    hold(folded.reshape(x.shape), wanted)
    assert made["heads"] == HEADS


@BOTH
@pytest.mark.parametrize("engine", ["FlashInfer", "vLLM operator"])
def test_heads_as_tokens_of_one_table(engine, pairing):
    """One row for each head and position: tokens H of them, each with one head."""
    rope, first = many(pairing, head_dim=20), (0, 4)
    (x, wanted), made = texts(rope, first), exports.export(rope, engine)
    tokens = x.swapaxes(1, 2).reshape(TEXTS * TOKENS, HEADS, -1)  # (tokens, H, d), as the engine has it
    positions = np.concatenate([begin + np.arange(TOKENS) for begin in first])
    rows = (made["first_rows"] + positions[:, None]).reshape(-1)
    cos, sin, neighbours = read_rows(engine, made, rows)
    got = turn(tokens.reshape(TEXTS * TOKENS * HEADS, -1), cos, sin, neighbours)
    hold(got.reshape(TEXTS, TOKENS, HEADS, -1).swapaxes(1, 2), wanted)


@BOTH
def test_heads_folded_into_the_batch_of_transformer_engine(pairing):
    """``freqs[start_positions[b] + s]``, by its fused kernel."""
    rope, first = many(pairing, factor=1.0, head_dim=20), (0, 4)
    (x, wanted), made = texts(rope, first), exports.export(rope, "TransformerEngine")
    folded = x.transpose(2, 0, 1, 3).reshape(TOKENS, TEXTS * HEADS, 1, -1)  # from (S, B, H, d)
    start = np.tile(made["start_positions"], TEXTS) + np.repeat(first, HEADS)
    for batch in range(TEXTS * HEADS):
        cos, sin, neighbours = read_rows("TransformerEngine", made, np.arange(TOKENS) + start[batch])
        folded[:, batch] = turn(folded[:, batch], cos[:, None], sin[:, None], neighbours)
    hold(folded.reshape(TOKENS, TEXTS, HEADS, -1).transpose(1, 2, 0, 3), wanted)


def test_q_and_k_of_transformer_engine_may_turn_otherwise():
    """``q_freqs`` and ``k_freqs`` are two exports."""
    ropes = [Rope(rfrope.geometric(8, base=base), context=TOKENS) for base in (1e3, 1e5)]
    x = np.random.default_rng(2).standard_normal((TOKENS, 16))
    for rope in ropes:
        freqs = exports.export(rope, "TransformerEngine")["freqs"]
        assert freqs.flags.c_contiguous
        assert freqs.dtype == np.float32
        hold(turn(x, np.cos(freqs[:, 0, 0]), np.sin(freqs[:, 0, 0]), False), rope.rotate(x, np.arange(TOKENS)))


def test_tables_of_liger_by_batch():
    """Row ``batch_idx (sl row) + cos_row_idx row`` of contiguous tables, by its kernel; heads are texts to it."""
    rope = many()
    (x, wanted), made = texts(rope), exports.export(rope, "Liger-Kernel")
    cos, sin = (np.tile(made[name][:, :TOKENS], (TEXTS, 1, 1)) for name in ("cos", "sin"))
    assert cos.shape == (TEXTS * HEADS, TOKENS, 16)
    got = x.reshape(TEXTS * HEADS, 1, TOKENS, -1).copy()
    for program in range(TEXTS * HEADS * TOKENS):
        batch, row = program // TOKENS, program % TOKENS
        place = batch * (TOKENS * 16) + row * 16 + np.arange(8)
        one, two = got[batch, 0, row, :8].copy(), got[batch, 0, row, 8:].copy()
        c, s = cos.reshape(-1)[place], sin.reshape(-1)[place]
        got[batch, 0, row] = np.concatenate([one * c - two * s, two * c + one * s])
    hold(got.reshape(x.shape), wanted)


def test_tables_of_liger_for_texts_with_positions_of_their_own():
    rope = Rope(rfrope.geometric(8), context=40, attention_factor=1.1)
    made, positions = exports.export(rope, "Liger-Kernel"), np.array([[3, 4, 5], [20, 21, 22]])
    x = np.random.default_rng(3).standard_normal((2, 3, 16))
    cos, sin = (made[name][0, positions] for name in ("cos", "sin"))
    assert cos.shape == (2, 3, 16)
    hold(turn(x, cos, sin, False), rope.rotate(x, positions))


@BOTH
def test_heads_folded_into_the_batch_of_exllamav3(pairing):
    """``inv_freq[batch stride + pos D + t]``, by its kernel."""
    rope = many(pairing, head_dim=20)
    (x, wanted), made = texts(rope), exports.export(rope, "exllamav3")
    tables = np.ascontiguousarray(np.tile(made["inv_freq"], (TEXTS, 1, 1)))
    stride = tables.shape[-1] * tables.shape[-2]
    folded = x.reshape(TEXTS * HEADS, TOKENS, 1, -1)
    for batch in range(TEXTS * HEADS):
        phases = tables.reshape(-1)[batch * stride + np.arange(TOKENS)[:, None] * 8 + np.arange(8)]
        neighbours = made["rope_style"] == 1
        cos, sin = (made["attn_factor"] * join(one(phases), neighbours) for one in (np.cos, np.sin))
        folded[batch] = turn(folded[batch], cos[:, None], sin[:, None], neighbours)
    hold(folded.reshape(x.shape), wanted)


@BOTH
def test_heads_folded_into_the_tokens_of_diffusers(pairing):
    """``x * cos[None, None] + x_rotated * sin[None, None]``, x of shape (B, 1, H S, d)."""
    rope = many(pairing)
    (x, wanted), made = texts(rope), exports.export(rope, "diffusers", context=TOKENS)
    folded = x.reshape(TEXTS, 1, HEADS * TOKENS, -1)
    got = turn(folded, made["cos"], made["sin"], made["use_real_unbind_dim"] == -1)
    hold(got.reshape(x.shape), wanted)


def test_a_part_of_a_head_in_diffusers():
    """Neighbours may turn in part: the rest has cos 1 and sin 0; halves are those of the whole head, and refused."""
    rope = KINDS["interleaved"](0)
    rope = replace(rope, head_dim=24)
    x, positions = features(rope)
    made = exports.export(rope, "diffusers")
    assert made["cos"].shape == (CONTEXT, 24)
    check(turn(x, made["cos"][positions], made["sin"][positions], True), x, positions, rope, "diffusers")
    with pytest.raises(ValueError, match="pairs the halves of the whole head of 24 features"):
        exports.export(replace(rope, pairing="half"), "diffusers")


def move(k: np.ndarray, old: np.ndarray, new: np.ndarray, neighbours: bool) -> np.ndarray:
    """Return keys that LMCache's kernel moves between rows of its cache, ``(tokens, d)``: back, and then forth."""
    half = old.shape[-1] // 2
    one, two = (slice(0, 2 * half, 2), slice(1, 2 * half, 2)) if neighbours else (slice(0, half), slice(half, 2 * half))
    moved, x, y = k.copy(), k[:, one], k[:, two]
    back_x, back_y = x * old[:, :half] + y * old[:, half:], y * old[:, :half] - x * old[:, half:]
    moved[:, one] = back_x * new[:, :half] - back_y * new[:, half:]
    moved[:, two] = back_y * new[:, :half] + back_x * new[:, half:]
    return moved


@BOTH
def test_keys_that_lmcache_moves(pairing):
    """They keep the attention factor once: a table with it would give its square on top."""
    rope = many(pairing, head_dim=20)
    made = exports.export(rope, "LMCache")
    cache, rng = made["cos_sin_cache"], np.random.default_rng(4)
    old, new = rng.permutation(TOKENS), rng.permutation(TOKENS)
    x = rng.standard_normal((TOKENS, HEADS, 20))
    cached, wanted = (rope.rotate(x.swapaxes(0, 1), at[:, None]).swapaxes(0, 1) for at in (old, new))
    rows = [(made["first_rows"] + at[:, None]).reshape(-1) for at in (old, new)]
    got = move(cached.reshape(-1, 20), *(cache[one] for one in rows), not made["is_neox"])
    hold(got.reshape(x.shape), wanted)
    told = exports.rounding(rope, "LMCache")
    assert np.max(np.abs(got.reshape(x.shape) - wanted)) < 2.0 * rope.attention_factor * told.table * np.max(np.abs(x))
    np.testing.assert_allclose(cache[:, :8] ** 2 + cache[:, 8:] ** 2, 1.0, atol=1e-6)


def test_bounds_of_several_heads_are_those_of_the_worst():
    rope = many(factor=1.0)
    alone = [replace(rope, frequencies=one) for one in rope.frequencies[..., 0]]
    for engine in ("flash-attn", "TransformerEngine", "exllamav3"):
        told, each = exports.rounding(rope, engine), [exports.rounding(one, engine) for one in alone]
        assert (told.kernel, told.table) == (max(one.kernel for one in each), max(one.table for one in each))


@pytest.mark.parametrize("engine", ["MLX", "ONNX", "vLLM", "DeepSpeed"])
def test_engines_whose_heads_share_one_set(engine):
    with pytest.raises(ValueError, match=r"shape \(3, 8, 1\), one set per head, but heads share one"):
        exports.export(many(factor=1.0), engine)
    two = Rope(np.ones((2, 3, 8, 1)), context=8)
    with pytest.raises(ValueError, match=r"shape \(2, 3, 8, 1\), one set per head"):
        exports.export(two, "flash-attn")
