"""llama.cpp itself, run on a tiny llama or phi3, against the rule and with exported tensors."""

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tiny_llama
from engine_configs import LISTS, SCHEMES, report
from packages import installed
from ropes import CONTEXT, KINDS, SEEDS

import rfrope
from rfrope import Rope, engines

TOKENS = [1, *np.random.default_rng(0).integers(259, tiny_llama.VOCABULARY, 60).tolist()]
# what its converter writes into a GGUF for a scheme, by conversion/base.py and conversion/llama.py
CONVERTED = {
    "default": {},
    "linear": {"scaling__type": "linear", "scaling__factor": 4.0},
    "dynamic": {},
    "longrope": {"scaling__type": "longrope"},
    "yarn": {"scaling__type": "yarn", "scaling__factor": 4.0, "scaling__original_context_length": 64},
    "yarn with an attention factor": {"scaling__yarn_attn_factor": 1.5},
    "yarn with another ramp": {"scaling__yarn_beta_fast": 16.0, "scaling__yarn_beta_slow": 2.0},
}


def rotated(rope: Rope, **changes: Any) -> np.ndarray:
    """Return the tiny llama's probabilities with a Rope, in NumPy."""
    changed = replace(rope, **changes)
    return tiny_llama.probabilities(tiny_llama.weights(), TOKENS, lambda x: changed.rotate(x, np.arange(len(TOKENS))))


def test_configs(tmp_path):
    """The keys that the converter writes mean what the rule says."""
    installed("gguf")
    files, wanted, others = [], [], []
    for name, keys in CONVERTED.items():
        scaling = copy.deepcopy(SCHEMES[name])
        if scaling and "original_max_position_embeddings" in scaling:
            scaling["original_max_position_embeddings"] = 64
        if name == "longrope":
            scaling |= {key: values[:8] for key, values in LISTS.items()}
        made = {"model_type": "llama", "hidden_size": 32, "num_attention_heads": 2, "max_position_embeddings": 256}
        made |= {"rope_theta": 10_000.0, "rope_scaling": scaling}
        keys = CONVERTED["yarn"] | keys if name.startswith("yarn") else keys
        files.append(tmp_path / f"{name}.gguf")
        tiny_llama.write(files[-1], tiny_llama.weights(), freq_base=10_000.0, context=256, **keys)
        for engine, rows in (("llama.cpp", wanted), ("transformers", others)):
            rope = report(engine, made, 256).rope
            one = Rope(rope.frequencies, pairing="interleaved", attention_factor=rope.attention_factor)
            rows.append(rotated(one))
    answers = tiny_llama.node_llama_cpp(files, TOKENS)
    for name, answer, row, other in zip(CONVERTED, answers, wanted, others, strict=True):
        missed = np.max(np.abs(np.asarray(answer["rows"]) - row))
        assert missed < 2e-3, name  # its cache of keys and values is in half precision
        if name in ("longrope", "yarn with an attention factor", "yarn with another ramp"):
            assert np.max(np.abs(other - row)) > 5.0 * missed, name  # what transformers does is another thing
        else:
            np.testing.assert_allclose(other, row, atol=1e-9)


ROPES = {
    "llama": [KINDS["interleaved"](seed) if seed % 2 else replace(KINDS["learned"](seed), pairing="interleaved")
              for seed in SEEDS],
    "phi3": [Rope(one.frequencies[:6], head_dim=16, attention_factor=one.attention_factor, context=CONTEXT)
             for one in map(KINDS["plain"], SEEDS)],
}  # fmt: skip


@pytest.mark.parametrize("architecture", ROPES)
def test_tensors(architecture, tmp_path):
    installed("gguf")
    ropes, held, model = ROPES[architecture], tiny_llama.weights(), tmp_path / "model.gguf"
    old = {"scaling__type": "linear", "scaling__factor": 4.0, "freq_base": 5e5, "n_rot": ropes[0].rotary_dim}
    packed = held if architecture == "llama" else tiny_llama.as_phi3(held)
    tiny_llama.write(model, packed, architecture=architecture, **old)
    files = [tmp_path / f"{seed}.gguf" for seed in SEEDS]
    for file, rope in zip(files, ropes, strict=True):
        engines.write(file, rope, "llama.cpp", model=model)
    for rope, answer in zip(ropes, tiny_llama.node_llama_cpp(files, TOKENS), strict=True):
        wanted, ladder = rotated(rope), rfrope.geometric(rope.n_blocks)
        missed = np.max(np.abs(np.asarray(answer["rows"]) - wanted))
        assert missed < 2e-3  # its cache of keys and values is in half precision
        swapped = np.divide(ladder**2, rope.frequencies, where=rope.frequencies != 0.0, out=0.0 * ladder)
        assert np.max(np.abs(rotated(rope, frequencies=swapped) - wanted)) > 5.0 * missed
        if abs(rope.attention_factor - 1.0) > 0.1:
            assert np.max(np.abs(rotated(rope, attention_factor=1.0) - wanted)) > 3.0 * missed


def test_it_refuses_what_export_refuses(tmp_path):
    """An architecture whose loader does not read the tensor, forced upon it."""
    installed("gguf")
    held = tiny_llama.weights()
    norms = {f"blk.{i}.attn_{one}_norm.weight": np.ones(16, np.float32) for i in range(2) for one in "qk"}
    files = [tmp_path / "without.gguf", tmp_path / "with.gguf"]
    tiny_llama.write(files[0], held | norms, architecture="qwen3")
    tiny_llama.write(files[1], held | norms | {"rope_freqs.weight": np.ones(8, np.float32)}, architecture="qwen3")
    with pytest.raises(ValueError, match=r"architecture is 'qwen3', whose loader is not known to read divisors"):
        engines.write(tmp_path / "new.gguf", KINDS["ladder"](0), "llama.cpp", model=files[0])
    answers = tiny_llama.node_llama_cpp(files, [1, 260, 261])
    assert "rows" in answers[0]
    assert "error" in answers[1]
