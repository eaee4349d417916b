"""Engines themselves, given what is exported for them, against `Rope.rotate`; those that are missing are skipped."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import types
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tiny_llama
from engines import installed
from ropes import BLOCKS, CONTEXT, KINDS, SEEDS, carried_by, check, features
from tiny_llama import node_llama_cpp

import rfrope
from rfrope import Rope, exports

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]


# -- transformers ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def hf():
    """Return transformers, which says nothing of keys that belong to other engines."""
    torch = installed("torch")
    library = installed("transformers")
    if int(library.__version__.partition(".")[0]) < 5:
        pytest.skip("transformers 5 is not installed")
    library.logging.set_verbosity(library.logging.CRITICAL)
    library.logging.disable_progress_bar()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield library
    torch.set_num_threads(threads)


MODELS = {"llama": "Llama", "qwen3": "Qwen3", "phi3": "Phi3"}


def tiny(hf: Any, model_type: str, rope: Rope, told: dict[str, Any]) -> Any:
    """Return a random model of two layers, in float32, with an exported dict in its config."""
    torch = importlib.import_module("torch")
    config = getattr(hf, f"{MODELS[model_type]}Config")(
        hidden_size=2 * rope.head_dim, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, vocab_size=64, head_dim=rope.head_dim, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        attn_implementation="eager", **told,
    )  # fmt: skip
    torch.manual_seed(0)
    model = getattr(hf, f"{MODELS[model_type]}ForCausalLM")(config).eval()
    for name, weight in model.named_parameters():
        if "q_proj" in name or "k_proj" in name or "qkv_proj" in name:
            weight.data *= 40.0  # as they begin, attention is nearly even, and rotations would hardly matter
    return model


def rotated_by_hand(model: Any, rope: Rope) -> Any:
    """Give a model cos and sin of the Rope itself, exact in float64 and rounded once."""
    torch = importlib.import_module("torch")

    def forward(x: Any, position_ids: Any) -> Any:
        cos, sin = rope.table(position_ids.numpy())
        return tuple(torch.from_numpy(np.concatenate([one, one], axis=-1)).to(x.dtype) for one in (cos, sin))

    model.model.rotary_emb.forward = forward
    return model


@pytest.mark.parametrize(
    ("model_type", "kind"),
    [*((model_type, kind) for model_type in MODELS for kind in ("plain", "ladder")), ("phi3", "partial")],
)
def test_transformers_models(hf, model_type, kind, tmp_path):
    torch = importlib.import_module("torch")
    tokens = torch.from_numpy(np.random.default_rng(1).integers(3, 64, (1, 200)))
    for seed in SEEDS if kind == "plain" else range(2):
        rope = KINDS[kind](seed)
        model = tiny(hf, model_type, rope, exports.export(rope, "transformers"))
        with torch.no_grad():
            got = model(tokens).logits
            still = rotated_by_hand(tiny(hf, model_type, rope, {}), Rope(0.0 * rope.frequencies))(tokens).logits
            wanted = rotated_by_hand(tiny(hf, model_type, rope, exports.export(rope, "transformers")), rope)(tokens)
        scale = torch.max(torch.abs(wanted.logits))
        assert torch.max(torch.abs(got - wanted.logits)) < 2e-3 * scale
        assert torch.max(torch.abs(got - still)) > 0.05 * scale, "the rotation matters"
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path, attn_implementation="eager").eval()
    with torch.no_grad():
        assert torch.equal(again(tokens).logits, got)
        made = again.generate(tokens[:, :8], max_new_tokens=4, do_sample=False)
    assert made.shape == (1, 12)
    (read,) = rfrope.from_config(tmp_path)
    np.testing.assert_allclose(read.frequencies, rope.frequencies, atol=2e-7)
    assert read.attention_factor == rope.attention_factor


@pytest.mark.parametrize("kind", carried_by("transformers"))
def test_transformers_rotation(hf, kind):
    torch = importlib.import_module("torch")
    module = importlib.import_module("transformers.models.phi3.modeling_phi3")
    for seed in SEEDS:
        rope = KINDS[kind](seed)
        x, positions = features(rope)
        config = hf.Phi3Config(
            hidden_size=2 * rope.head_dim, num_attention_heads=2, pad_token_id=0, **exports.export(rope, "transformers")
        )
        cos, sin = module.Phi3RotaryEmbedding(config)(torch.from_numpy(x), torch.from_numpy(positions)[None])
        got, _ = module.apply_rotary_pos_emb(torch.from_numpy(x)[None], torch.from_numpy(x)[None], cos, sin)
        check(got[0].numpy(), x, positions, rope, "transformers")


# -- vLLM --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def vllm(monkeypatch):
    """Return vLLM's module of rotary embeddings, whose class for longrope asks vLLM's own config for a length."""
    installed("torch")
    module = installed("vllm.model_executor.layers.rotary_embedding")
    longrope = importlib.import_module(f"{module.__name__}.phi3_long_rope_scaled_rope")
    monkeypatch.setattr(longrope, "get_current_vllm_config", lambda: told_of(CONTEXT))
    return module


def test_vllm_refuses_what_export_refuses(vllm):
    with pytest.raises(ValueError, match="it pairs 'interleaved', the engine 'half' alone"):
        exports.export(KINDS["interleaved"](0), "vllm")
    told = exports.export(KINDS["plain"](0), "vllm")["rope_parameters"]
    with pytest.raises(ValueError, match="neox"):
        vllm.get_rope(2 * BLOCKS, CONTEXT, is_neox_style=False, rope_parameters=told)


@pytest.mark.parametrize("kind", carried_by("vllm"))
def test_vllm(vllm, kind):
    torch = importlib.import_module("torch")
    for seed in SEEDS:
        rope = KINDS[kind](seed)
        x, positions = features(rope)
        told = exports.export(rope, "vllm")
        rotary = vllm.get_rope(
            rope.head_dim, told["max_position_embeddings"], rope_parameters=told["rope_parameters"], dtype=torch.float32
        )
        flat = torch.from_numpy(x.swapaxes(0, 1).reshape(len(positions), -1))
        got, _ = rotary(torch.from_numpy(positions), flat, flat.clone())
        check(got.numpy().reshape(len(positions), -1, rope.head_dim).swapaxes(0, 1), x, positions, rope, "vllm")


def told_of(length: int) -> Any:
    """What vLLM asks of its own config."""
    return types.SimpleNamespace(model_config=types.SimpleNamespace(max_model_len=length))


# -- MLX, ONNX ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", carried_by("mlx"))
def test_mlx(kind):
    mx = installed("mlx.core")
    for seed in SEEDS:
        rope = KINDS[kind](seed)
        x, positions = features(rope)
        told = exports.export(rope, "mlx")
        told["freqs"] = mx.array(told["freqs"])
        rows = [
            np.asarray(mx.fast.rope(mx.array(x[None, :, [i]]), **told, offset=int(p)))[0]
            for i, p in enumerate(positions)
        ]
        check(np.concatenate(rows, axis=1), x, positions, rope, "mlx")


@pytest.mark.parametrize("kind", KINDS)
def test_onnxruntime(kind, tmp_path):
    installed("onnx")
    runtime = installed("onnxruntime")
    for seed in SEEDS:
        rope = KINDS[kind](seed)
        x, positions = features(rope)
        path = tmp_path / f"{seed}.onnx"
        exports.write(path, rope, "onnx")
        session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        (got,) = session.run(None, {"X": x[None], "position_ids": positions[None]})
        check(got[0], x, positions, rope, "onnx")


@pytest.mark.parametrize("wrong", ["swapped", "dropped", "other pairing"])
def test_the_check_sees_what_it_looks_for(hf, wrong):
    """An export with factor and divisor exchanged, without its attention factor, or for the other pairing."""
    torch = importlib.import_module("torch")
    module = importlib.import_module("transformers.models.phi3.modeling_phi3")
    rope = replace(KINDS["plain"](3), attention_factor=1.01)
    told = exports.export(rope, "transformers")
    if wrong == "swapped":
        swapped = [1.0 / one for one in told["rope_parameters"]["short_factor"]]
        told["rope_parameters"] |= {"short_factor": swapped, "long_factor": swapped}
    elif wrong == "dropped":
        del told["rope_parameters"]["attention_factor"]
    x, positions = features(rope)
    config = hf.Phi3Config(hidden_size=2 * rope.head_dim, num_attention_heads=2, pad_token_id=0, **told)
    cos, sin = module.Phi3RotaryEmbedding(config)(torch.from_numpy(x), torch.from_numpy(positions)[None])
    got, _ = module.apply_rotary_pos_emb(torch.from_numpy(x)[None], torch.from_numpy(x)[None], cos, sin)
    held = replace(rope, pairing="interleaved") if wrong == "other pairing" else rope
    with pytest.raises(AssertionError):
        check(got[0].numpy(), x, positions, held, "onnx" if wrong == "other pairing" else "transformers")


# -- kernels that need a CUDA device, by their own reference formulas --------------------------------------------------


def turned(x: np.ndarray, cos: np.ndarray, sin: np.ndarray, neighbours: bool) -> np.ndarray:
    """Rotation as flash-attention, FlashInfer and TransformerEngine document it, tables (tokens, 2D)."""
    width = cos.shape[-1]
    part, rest = x[..., :width], x[..., width:]
    if neighbours:
        swapped = np.stack([-part[..., 1::2], part[..., 0::2]], axis=-1).reshape(part.shape)
    else:
        swapped = np.concatenate([-part[..., width // 2 :], part[..., : width // 2]], axis=-1)
    return np.concatenate([part * cos + swapped * sin, rest], axis=-1)


def twice(table: np.ndarray, neighbours: bool) -> np.ndarray:
    return np.repeat(table, 2, axis=-1) if neighbours else np.concatenate([table, table], axis=-1)


@pytest.mark.parametrize(
    ("engine", "kind"),
    [(engine, kind) for engine in ("flash-attn", "flashinfer", "transformer-engine") for kind in carried_by(engine)],
)
def test_layouts_of_cuda_kernels(engine, kind):
    for seed in SEEDS:
        rope = KINDS[kind](seed)
        x, positions = features(rope)
        told = exports.export(rope, engine)
        if engine == "transformer-engine":
            assert told["freqs"].shape == (CONTEXT, 1, 1, rope.rotary_dim)
            phases = told["freqs"][positions, 0, 0]
            got = turned(x, np.cos(phases), np.sin(phases), told["interleaved"])
        else:
            neighbours = told["interleaved"] if engine == "flash-attn" else not told["is_neox"]
            cos, sin = (told["cos"], told["sin"]) if engine == "flash-attn" else np.split(told["cos_sin_cache"], 2, -1)
            assert cos.dtype == np.float32
            assert cos.shape == (CONTEXT, rope.n_blocks)
            got = turned(x, *(twice(one[positions], neighbours) for one in (cos, sin)), neighbours)
        check(got, x, positions, rope, engine)


# -- libraries that take frequencies -----------------------------------------------------------------------------------


def test_rotary_embedding_torch():
    torch = installed("torch")
    library = installed("rotary_embedding_torch")
    for seed in SEEDS:
        rope = KINDS["interleaved, no factor"](seed)
        x, positions = features(rope)
        omega = torch.tensor(exports.export(rope, "json")["frequencies"], dtype=torch.float64)
        rotary = library.RotaryEmbedding(2 * BLOCKS, custom_freqs=omega, cache_if_possible=False)
        phases = rotary.forward(torch.from_numpy(positions).double()).detach()
        got = library.apply_rotary_emb(phases, torch.from_numpy(x).double()).numpy()
        np.testing.assert_allclose(got, rope.rotate(x.astype(np.float64), positions), atol=1e-6)


def test_x_transformers():
    torch = installed("torch")
    library = installed("x_transformers.x_transformers")
    for seed in SEEDS:
        rope = KINDS["interleaved"](seed)
        x, positions = features(rope)
        rotary = library.RotaryEmbedding(rope.rotary_dim).double()
        rotary.inv_freq = torch.from_numpy(exports.export(rope, "npz")["frequencies"])
        phases, _ = rotary(torch.from_numpy(positions))
        x_64 = torch.from_numpy(x).double()[None]
        got = library.apply_rotary_pos_emb(x_64, phases, rope.attention_factor)[0].numpy()
        np.testing.assert_allclose(got, rope.rotate(x.astype(np.float64), positions), atol=1e-10)


def test_torchtune():
    """Its file of positions alone: the package asks for a torchao that does not load with every torch."""
    torch = installed("torch")
    if importlib.util.find_spec("torchtune") is None:
        pytest.skip("torchtune is not installed")
    path = importlib.metadata.distribution("torchtune").locate_file("torchtune/modules/position_embeddings.py")
    spec = importlib.util.spec_from_file_location("position_embeddings", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for seed in SEEDS:
        rope = KINDS["interleaved, no factor"](seed)
        x, positions = features(rope)
        rotary = module.RotaryPositionalEmbeddings(rope.rotary_dim, max_seq_len=CONTEXT)
        rotary.theta = torch.tensor(exports.export(rope, "json")["frequencies"], dtype=torch.float32)
        rotary.build_rope_cache(CONTEXT)
        got = rotary(torch.from_numpy(x.swapaxes(0, 1))[None], input_pos=torch.from_numpy(positions)[None])
        check(got[0].numpy().swapaxes(0, 1), x, positions, rope, "mlx")


# -- llama.cpp ---------------------------------------------------------------------------------------------------------


LLAMA_CPP = {
    "llama": [KINDS["interleaved"](seed) for seed in SEEDS],
    "phi3": [Rope(one.frequencies[:6], head_dim=16, attention_factor=one.attention_factor, context=CONTEXT)
             for one in map(KINDS["plain"], SEEDS)],
}  # fmt: skip


@pytest.mark.parametrize("architecture", LLAMA_CPP)
def test_llama_cpp(architecture, tmp_path):
    installed("gguf")
    ropes, held, model = LLAMA_CPP[architecture], tiny_llama.weights(), tmp_path / "model.gguf"
    old = {"scaling__type": "linear", "scaling__factor": 4.0, "freq_base": 5e5, "n_rot": ropes[0].rotary_dim}
    packed = held if architecture == "llama" else tiny_llama.as_phi3(held)
    tiny_llama.write(model, packed, architecture=architecture, **old)
    files = [tmp_path / f"{seed}.gguf" for seed in SEEDS]
    for file, rope in zip(files, ropes, strict=True):
        exports.write(file, rope, "llama.cpp", model=model)
    tokens = [1, *np.random.default_rng(0).integers(259, tiny_llama.VOCABULARY, 60).tolist()]
    answers = node_llama_cpp(files, tokens)

    def of(rope: Rope, **changes: Any) -> np.ndarray:
        changed = replace(rope, **changes)
        return tiny_llama.probabilities(held, tokens, lambda x: changed.rotate(x, np.arange(len(tokens))))

    for rope, answer in zip(ropes, answers, strict=True):
        wanted, ladder = of(rope), rfrope.geometric(rope.n_blocks)
        missed = np.max(np.abs(np.asarray(answer["rows"]) - wanted))
        assert missed < 2e-3  # its cache of keys and values is in half precision
        swapped = np.divide(ladder**2, rope.frequencies, where=rope.frequencies != 0.0, out=0.0 * ladder)
        assert np.max(np.abs(of(rope, frequencies=swapped) - wanted)) > 5.0 * missed
        if abs(rope.attention_factor - 1.0) > 0.1:
            assert np.max(np.abs(of(rope, attention_factor=1.0) - wanted)) > 3.0 * missed


def test_llama_cpp_refuses_what_export_refuses(tmp_path):
    """An architecture whose loader does not read the tensor, forced upon it."""
    gguf = installed("gguf")
    held = tiny_llama.weights()
    norms = {f"blk.{i}.attn_{one}_norm.weight": np.ones(16, np.float32) for i in range(2) for one in "qk"}
    files = [tmp_path / "without.gguf", tmp_path / "with.gguf"]
    tiny_llama.write(files[0], held | norms, architecture="qwen3")
    tiny_llama.write(files[1], held | norms | {"rope_freqs.weight": np.ones(8, np.float32)}, architecture="qwen3")
    with pytest.raises(ValueError, match=r"architecture is 'qwen3', whose loader is not known to read divisors"):
        exports.write(tmp_path / "new.gguf", KINDS["ladder"](0), "llama.cpp", model=files[0])
    answers = node_llama_cpp(files, [1, 260, 261])
    assert "rows" in answers[0]
    assert "error" in answers[1]
    assert gguf.GGUFReader(files[1]).tensors[-1].name == "rope_freqs.weight"
