"""transformers itself: its classes against the rule, and its models with exported frequencies."""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from engine_configs import CASES, CONTEXT, SCHEMES, check_table, read_by_transformers, report
from packages import installed
from ropes import KINDS, SEEDS, carried_by, check, features

import rfrope
from rfrope import Rope, exports

pytestmark = pytest.mark.filterwarnings("ignore")
MODELS = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3", "phi3": "Phi3"}


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


def modeling(model_type: str) -> Any:
    return installed(f"transformers.models.{model_type}.modeling_{model_type}")


@pytest.mark.parametrize("made", CASES, indirect=True)
def test_configs(made):
    torch = installed("torch")
    kind = made["model_type"]
    rotary = getattr(modeling(kind), f"{MODELS[kind]}RotaryEmbedding")(read_by_transformers(made))
    found = report("transformers", made)
    blocks = found.rope.frequencies.size
    tables = rotary(torch.zeros(1), torch.arange(CONTEXT)[None])
    check_table(np.concatenate([one[0, :, :blocks] for one in tables], axis=-1), found, CONTEXT)


def tiny(hf: Any, model_type: str, rope: Rope, exported: dict[str, Any]) -> Any:
    """Return a random model of two layers, in float32, with an exported dict in its config."""
    torch = importlib.import_module("torch")
    config = getattr(hf, f"{MODELS[model_type]}Config")(
        hidden_size=2 * rope.head_dim, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, vocab_size=64, head_dim=rope.head_dim, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        attn_implementation="eager", **exported,
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
    [(model, kind) for model in ("llama", "qwen3", "phi3") for kind in ("plain", "ladder")] + [("phi3", "partial")],
)
def test_models(hf, model_type, kind, tmp_path):
    torch = importlib.import_module("torch")
    tokens = torch.from_numpy(np.random.default_rng(1).integers(3, 64, (1, 200)))
    for seed in SEEDS if kind == "plain" else range(2):
        rope = KINDS[kind](seed)
        exported = exports.export(rope, "transformers")
        model = tiny(hf, model_type, rope, exported)
        with torch.no_grad():
            got = model(tokens).logits
            still = rotated_by_hand(tiny(hf, model_type, rope, {}), Rope(0.0 * rope.frequencies))(tokens).logits
            wanted = rotated_by_hand(tiny(hf, model_type, rope, exported), rope)(tokens).logits
        scale = torch.max(torch.abs(wanted))
        assert torch.max(torch.abs(got - wanted)) < 2e-3 * scale
        assert torch.max(torch.abs(got - still)) > 0.05 * scale, "the rotation matters"
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path, attn_implementation="eager").eval()
    with torch.no_grad():
        assert torch.equal(again(tokens).logits, got)
        assert again.generate(tokens[:, :8], max_new_tokens=4, do_sample=False).shape == (1, 12)
    (read,) = rfrope.from_config(tmp_path)
    np.testing.assert_allclose(read.frequencies, rope.frequencies, atol=2e-7)
    assert read.attention_factor == rope.attention_factor


def rotate_by_phi3(hf: Any, rope: Rope, exported: dict[str, Any]) -> tuple[np.ndarray, ...]:
    """Return features rotated by Phi-3's module, the features and the positions."""
    torch, module = importlib.import_module("torch"), modeling("phi3")
    x, positions = features(rope)
    config = hf.Phi3Config(hidden_size=2 * rope.head_dim, num_attention_heads=2, pad_token_id=0, **exported)
    cos, sin = module.Phi3RotaryEmbedding(config)(torch.from_numpy(x), torch.from_numpy(positions)[None])
    got, _ = module.apply_rotary_pos_emb(torch.from_numpy(x)[None], torch.from_numpy(x)[None], cos, sin)
    return got[0].numpy(), x, positions


@pytest.mark.parametrize("kind", carried_by("transformers"))
def test_rotation(hf, kind):
    for seed in SEEDS:
        rope = KINDS[kind](seed)
        check(*rotate_by_phi3(hf, rope, exports.export(rope, "transformers")), rope, "transformers")


@pytest.mark.parametrize("wrong", ["swapped", "dropped", "other pairing"])
def test_the_check_sees_what_it_looks_for(hf, wrong):
    """An export with factor and divisor exchanged, without its attention factor, or for the other pairing."""
    rope = replace(KINDS["plain"](3), attention_factor=1.01)
    exported = exports.export(rope, "transformers")
    if wrong == "swapped":
        swapped = [1.0 / one for one in exported["rope_parameters"]["short_factor"]]
        exported["rope_parameters"] |= {"short_factor": swapped, "long_factor": swapped}
    elif wrong == "dropped":
        del exported["rope_parameters"]["attention_factor"]
    meant = replace(rope, pairing="interleaved") if wrong == "other pairing" else rope
    with pytest.raises(AssertionError):
        check(*rotate_by_phi3(hf, rope, exported), meant, "onnx" if wrong == "other pairing" else "transformers")


@pytest.mark.parametrize("scheme", ["default", "linear", "yarn", "llama3"])
@pytest.mark.parametrize(("base", "head_dim"), [(1e4, 96), (5e6, 128)])
def test_a_scheme_that_stays_is_within_the_stated_rounding(hf, scheme, base, head_dim):
    """At the far end of a long context, where float32 phases are off most."""
    torch = importlib.import_module("torch")
    values = (SCHEMES[scheme] or {"rope_type": "default"}) | {"rope_theta": base}
    rope = rfrope.models.from_rope_parameters(values, head_dim=head_dim, max_position_embeddings=131072)
    exported, lost = exports.export(rope, "transformers"), exports.rounding(rope, "transformers")
    config = hf.LlamaConfig(hidden_size=2 * head_dim, num_attention_heads=2, head_dim=head_dim, **exported)
    positions = np.arange(131072 - 4096, 131072)
    cos, _ = modeling("llama").LlamaRotaryEmbedding(config)(torch.zeros(1), torch.from_numpy(positions)[None])
    missed = np.max(np.abs(cos[0, :, : head_dim // 2].numpy() - rope.table(positions)[0])) / rope.attention_factor
    assert lost.scheme == scheme
    assert missed <= lost.table <= 20.0 * missed
