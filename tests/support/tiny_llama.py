"""A llama, or a phi3, of two small layers: its GGUF, and its forward pass in NumPy."""

import json
import os
import pathlib
import shutil
import subprocess
from typing import Any

import numpy as np
import pytest
from campaign import HANGS

HEADS, HEAD_DIM, LAYERS, HIDDEN, VOCABULARY = 2, 16, 2, 48, 288
WIDTH, EPSILON = HEADS * HEAD_DIM, 1e-5
NODE_MODULES = os.environ.get("RFROPE_NODE_MODULES", "")
HERE = pathlib.Path(__file__).parent


def weights(seed: int = 0) -> dict[str, np.ndarray]:
    """By their names in a GGUF, float32; a weight is (out, in)."""
    rng = np.random.default_rng(seed)
    shapes = {"token_embd": (VOCABULARY, WIDTH), "output": (VOCABULARY, WIDTH)}
    for i in range(LAYERS):
        shapes |= {f"blk.{i}.attn_{one}": (WIDTH, WIDTH) for one in ("q", "k", "v", "output")}
        shapes |= {f"blk.{i}.ffn_gate": (HIDDEN, WIDTH), f"blk.{i}.ffn_up": (HIDDEN, WIDTH)}
        shapes |= {f"blk.{i}.ffn_down": (WIDTH, HIDDEN)}
    made = {f"{name}.weight": rng.standard_normal(shape) * shape[1] ** -0.5 for name, shape in shapes.items()}
    for i in range(LAYERS):
        for one in ("q", "k"):
            made[f"blk.{i}.attn_{one}.weight"] *= 3.0  # so that attention is far from even, and turns matter
    names = ["output_norm", *(f"blk.{i}.{one}_norm" for i in range(LAYERS) for one in ("attn", "ffn"))]
    made |= {f"{name}.weight": 1.0 + 0.1 * rng.standard_normal(WIDTH) for name in names}
    return {name: value.astype(np.float32) for name, value in made.items()}


def as_phi3(held: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The same weights as phi3 has them: q, k and v in one, and gate and up."""
    made = dict(held)
    for i in range(LAYERS):
        for target, parts in (("attn_qkv", ("attn_q", "attn_k", "attn_v")), ("ffn_up", ("ffn_gate", "ffn_up"))):
            joined = np.concatenate([made.pop(f"blk.{i}.{part}.weight") for part in parts])
            made[f"blk.{i}.{target}.weight"] = joined
    return made


def write(path: pathlib.Path, held: dict[str, np.ndarray], *, architecture: str = "llama", **keys: Any) -> None:
    """Write a GGUF with a vocabulary of plain words."""
    import gguf

    writer = gguf.GGUFWriter(str(path), architecture)
    writer.add_block_count(LAYERS)
    writer.add_context_length(keys.pop("context", 512))
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(EPSILON)
    writer.add_rope_dimension_count(keys.pop("n_rot", HEAD_DIM))
    writer.add_vocab_size(VOCABULARY)
    for key, value in keys.items():
        name = f"{architecture}.rope.{key.replace('__', '.')}"
        adds = {str: writer.add_string, int: writer.add_uint32, float: writer.add_float32}
        adds[type(value)](name, value)
    writer.add_tokenizer_model("llama")
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), *(f"w{i}" for i in range(259, VOCABULARY))]
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * VOCABULARY)
    writer.add_token_types([2, 3, 3, *[6] * 256, *[1] * (VOCABULARY - 259)])
    for name, value in held.items():
        writer.add_tensor(name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def normed(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + EPSILON) * weight


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - np.max(x, axis=-1, keepdims=True))
    return e / np.sum(e, axis=-1, keepdims=True)


def probabilities(held: dict[str, np.ndarray], tokens: list[int], turn: Any) -> np.ndarray:
    """Probabilities of the next token after each, float64; `turn` rotates q and k ``(heads, tokens, features)``."""
    w = {name: value.astype(np.float64) for name, value in held.items()}
    x = w["token_embd.weight"][tokens]
    causal = np.triu(np.full((len(tokens),) * 2, -np.inf), 1)
    for i in range(LAYERS):
        h = normed(x, w[f"blk.{i}.attn_norm.weight"])
        q, k, v = ((h @ w[f"blk.{i}.attn_{one}.weight"].T).reshape(-1, HEADS, HEAD_DIM).swapaxes(0, 1) for one in "qkv")
        seen = softmax(turn(q) @ turn(k).swapaxes(1, 2) / np.sqrt(HEAD_DIM) + causal) @ v
        x = x + seen.swapaxes(0, 1).reshape(-1, WIDTH) @ w[f"blk.{i}.attn_output.weight"].T
        h = normed(x, w[f"blk.{i}.ffn_norm.weight"])
        gate = h @ w[f"blk.{i}.ffn_gate.weight"].T
        up = h @ w[f"blk.{i}.ffn_up.weight"].T
        x = x + (gate / (1.0 + np.exp(-gate)) * up) @ w[f"blk.{i}.ffn_down.weight"].T
    return softmax(normed(x, w["output_norm.weight"]) @ w["output.weight"].T)


def node_llama_cpp(files: list[pathlib.Path], tokens: list[int]) -> list[dict[str, Any]]:
    """Probabilities of llama.cpp for each GGUF, or its error."""
    if not NODE_MODULES or shutil.which("node") is None:
        pytest.skip("node-llama-cpp is not installed")
    asked = {"files": [str(file) for file in files], "tokens": tokens, "size": VOCABULARY, "context": 256}
    ran = subprocess.run(
        ["node", str(HERE / "llama_cpp.mjs")], input=json.dumps(asked), capture_output=True, text=True, timeout=HANGS,
        check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-2000:]
    return json.loads(ran.stdout)
