"""Exports as each engine turns by them: the engine itself where it is installed, kernels for CUDA by their formulas."""

import importlib
import types
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import pytest
from conftest import rows
from packages import installed
from ropes import CONTEXT, KINDS, SEEDS, carried_by, check, features

import rfrope
from rfrope import Rope, engines

pytestmark = pytest.mark.filterwarnings("ignore")  # of engines


# -- formulas ----------------------------------------------------------------------------------------------------------


def turn(x: np.ndarray, cos: np.ndarray, sin: np.ndarray, neighbours: bool) -> np.ndarray:
    """Rotate as flash-attention and FlashInfer document it, by tables (tokens, 2D)."""
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


def read_rows(engine: str, made: dict[str, Any], rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, bool]:
    """Return cos and sin of rows of an export, two columns a block, as its kernel reads them, and the pairing."""
    match engine:
        case "FlashInfer" | "vLLM operator":
            whole, neighbours = made["cos_sin_cache"], not made["is_neox"]
            half = whole.shape[1] // 2  # its rotary_dim / 2
            places = rows[:, None] * 2 * half + np.arange(2 * half)
            cos, sin = whole.reshape(-1)[places].reshape(-1, 2, half).swapaxes(0, 1)
        case _:
            cos, sin, neighbours = made["cos"][rows], made["sin"][rows], made["interleaved"]
    return join(cos, neighbours), join(sin, neighbours), neighbours


def by_formula(engine: str) -> Any:
    def turned(made: dict[str, Any], x: np.ndarray, rows: np.ndarray) -> np.ndarray:
        cos, sin, neighbours = read_rows(engine, made, rows)
        assert cos.dtype == sin.dtype == np.float32
        return turn(x, cos, sin, neighbours)

    return turned


# -- engines: features (heads, tokens, d) by rows of what is exported --------------------------------------------------


def by_transformers(made: dict[str, Any], x: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Phi-3's module: the class of transformers that turns a part of a head."""
    torch = installed("torch")
    library = pytest.importorskip("transformers", "5.0", reason="transformers 5 is not installed")
    library.logging.set_verbosity(library.logging.CRITICAL)
    module = installed("transformers.models.phi3.modeling_phi3")
    config = library.Phi3Config(hidden_size=2 * x.shape[-1], num_attention_heads=2, pad_token_id=0, **made)
    q = torch.from_numpy(x)[None]
    tables = module.Phi3RotaryEmbedding(config)(q, torch.from_numpy(positions)[None])
    return module.apply_rotary_pos_emb(q, q, *tables)[0][0].numpy()


def by_vllm(made: dict[str, Any], x: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Return what ``get_rope`` makes; its class for longrope asks vLLM's own config for a length."""
    torch, module = installed("torch"), installed("vllm.model_executor.layers.rotary_embedding")
    longrope = importlib.import_module(f"{module.__name__}.phi3_long_rope_scaled_rope")
    served = types.SimpleNamespace(model_config=types.SimpleNamespace(max_model_len=CONTEXT))
    with (
        mock.patch.object(longrope, "get_current_vllm_config", return_value=served),
        mock.patch.object(module, "_ROPE_DICT", {}),  # it takes 4 for 4.0
    ):
        parameters = made["rope_parameters"]
        rotary = module.get_rope(
            x.shape[-1], made["max_position_embeddings"], rope_parameters=parameters, dtype=torch.float32
        )
    flat = torch.from_numpy(x.swapaxes(0, 1).reshape(len(positions), -1))
    return rotary(torch.from_numpy(positions), flat, flat.clone())[0].numpy().reshape(-1, *x.shape[::2]).swapaxes(0, 1)


def by_vllm_operator(made: dict[str, Any], x: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Its own function of a table, which its classes call where there is no device."""
    torch, base = installed("torch"), installed("vllm.model_executor.layers.rotary_embedding.base")
    flat = torch.from_numpy(x.swapaxes(0, 1).reshape(len(rows), -1))
    cache = torch.from_numpy(made["cos_sin_cache"])
    arguments = made["head_size"], cache.shape[-1], cache, made["is_neox"]
    got, _ = base.RotaryEmbedding.forward_static(torch.from_numpy(rows), flat, flat.clone(), *arguments)
    return got.numpy().reshape(-1, *x.shape[::2]).swapaxes(0, 1)


def by_mlx(made: dict[str, Any], x: np.ndarray, positions: np.ndarray) -> np.ndarray:
    mx = installed("mlx.core")
    made = made | {"freqs": mx.array(made["freqs"])}
    rows = [mx.fast.rope(mx.array(x[None, :, [i]]), **made, offset=int(p)) for i, p in enumerate(positions)]
    return np.concatenate([np.asarray(row)[0] for row in rows], axis=1)


def by_mlx_lm(made: dict[str, Any], x: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Return what the class of Llama, made from the config, turns queries to, its attention factor included."""
    mx, module, width = installed("mlx.core"), installed("mlx_lm.models.llama"), x.shape[-1]
    sizes = {"model_type": "llama", "hidden_size": 2 * width, "num_attention_heads": 2, "vocab_size": 8}
    sizes |= {"num_hidden_layers": 1, "intermediate_size": 8, "rms_norm_eps": 1e-6, "head_dim": width}
    turned = module.Attention(module.ModelArgs.from_dict(sizes | made)).rope
    rows = [np.asarray(turned(mx.array(x[None, :, i : i + 1]), offset=int(p))) for i, p in enumerate(positions)]
    return np.concatenate([row[0] for row in rows], axis=1)


TABLES = ("flash-attn", "FlashInfer", "vLLM operator")
RUN = {"transformers": by_transformers, "vLLM": by_vllm, "vLLM operator": by_vllm_operator}
RUN |= {"MLX": by_mlx, "MLX-LM": by_mlx_lm}
FORMULAS = {engine: by_formula(engine) for engine in TABLES}
TURNS = [(engine, turned) for found in (FORMULAS, RUN) for engine, turned in found.items()]
CASES = [
    pytest.param(engine, turned, kind, id=f"{engine}, {kind}, {turned.__name__}")
    for engine, turned in TURNS
    for kind in carried_by(engine)
]


@pytest.mark.parametrize(("engine", "turned", "kind"), CASES)
def test_an_engine_turns_by_an_export_as_the_rope_does(engine, turned, kind):
    for seed in SEEDS:
        rope = KINDS[kind](seed)
        x, positions = features(rope)
        check(turned(engines.export(rope, engine), x, positions), x, positions, rope, engine)


@pytest.mark.parametrize("kind", KINDS)
def test_onnxruntime_runs_the_file(kind, tmp_path):
    installed("onnx")
    runtime = installed("onnxruntime")
    for seed in SEEDS:
        rope = KINDS[kind](seed)
        x, positions = features(rope)
        path = tmp_path / f"{seed}.onnx"
        engines.write(path, rope, "ONNX")
        session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        (got,) = session.run(None, {"X": x[None], "position_ids": positions[None]})
        check(got[0], x, positions, rope, "ONNX")


@pytest.mark.parametrize(("engine", "name", "shape"), rows("engines/formats.json", "tables"))
def test_tables_as_they_lie_in_memory(engine, name, shape):
    rope = KINDS["no factor"](0)
    made = engines.export(rope if shape[-1] != 16 or len(shape) > 2 else replace(rope, head_dim=24), engine)
    assert (made[name].shape, made[name].dtype, made[name].flags.c_contiguous) == (tuple(shape), np.float32, True)


# -- sets for each head ------------------------------------------------------------------------------------------------

HEADS, TOKENS, TEXTS = 3, 12, 2
PAIRINGS = pytest.mark.parametrize("pairing", ["half", "interleaved"])


def many(pairing: str = "half", factor: float = 1.25, head_dim: int = 16) -> Rope:
    """Return a Rope with a set for each head, and a context longer than the texts."""
    omega = rfrope.sample(rfrope.kernel("gaussian", scale=3.0), 8, rng=0, heads=HEADS)
    return Rope(omega, context=TOKENS + 5, pairing=pairing, attention_factor=factor, head_dim=head_dim)


def find_rows(engine: str, made: dict[str, Any], at: np.ndarray) -> tuple[dict[str, Any], np.ndarray]:
    """Return the tables that a kernel is given for texts at positions (B, 1, S), and rows (B, H, S) that it reads."""
    match engine:
        case "flash-attn":  # ``rm_cs = rm + SEQLEN_OFFSETS[pid_batch]``, heads folded into the batch
            assert made["seqlen_offsets"].dtype == np.int32
            return made, made["seqlen_offsets"][:, None] + at
        case "FlashInfer" | "vLLM operator":  # tokens H of them, each with one head
            return made, made["first_rows"][:, None] + at


@PAIRINGS
@pytest.mark.parametrize(("engine", "turned"), [one for one in TURNS if one[0] in TABLES])
def test_each_head_turns_by_its_own_set(engine, turned, pairing):
    rope = many(pairing, 1.25, 20)
    made = engines.export(rope, engine, context=TOKENS + 5)
    at = np.array([0, 4])[:, None, None] + np.arange(TOKENS)
    made, rows = find_rows(engine, made, at)
    x = np.random.default_rng(1).standard_normal((TEXTS, HEADS, TOKENS, rope.head_dim)).astype(np.float32)
    got = turned(made, x.reshape(1, -1, rope.head_dim), np.broadcast_to(rows, x.shape[:-1]).reshape(-1))
    wanted = [rope.rotate(text, one.reshape(-1)[:, None]) for text, one in zip(x.astype(np.float64), at, strict=True)]
    np.testing.assert_allclose(got.reshape(x.shape), np.stack(wanted), rtol=0.0, atol=2e-6)


def test_bounds_of_several_heads_are_those_of_the_worst():
    rope = many(factor=1.0)
    alone = [replace(rope, frequencies=one) for one in rope.frequencies[..., 0]]
    for engine in ("flash-attn", "FlashInfer"):
        told, each = engines.rounding(rope, engine), [engines.rounding(one, engine) for one in alone]
        assert (told.kernel, told.table) == (max(one.kernel for one in each), max(one.table for one in each))
