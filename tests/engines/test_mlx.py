"""MLX-LM's models against the rule, and ``mx.fast.rope`` with exported periods."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import numpy as np
import pytest
from engine_configs import CASES, CONTEXT, YARN, is_refused, report
from packages import installed
from ropes import KINDS, SEEDS, carried_by, check, features

from rfrope import exports, models


@pytest.mark.parametrize("made", CASES, indirect=True)
def test_configs(made):
    mx = installed("mlx.core")
    installed("mlx_lm.models.rope_utils")
    module = installed(f"mlx_lm.models.{made['model_type'].replace('mistral', 'llama')}")
    found, width = report("MLX-LM", made), 64

    def build() -> Any:
        return module.Attention(module.ModelArgs.from_dict(copy.deepcopy(made))).rope

    if is_refused(found, build):
        return
    rotary, blocks = build(), found.rope.frequencies.size
    first = mx.concatenate([mx.ones((1, 1, 1, blocks)), mx.zeros((1, 1, 1, width - blocks))], axis=-1)
    for position in (0, 1, 3, 10, 50, 200, CONTEXT - 1):
        turned = np.array(rotary(first, offset=position))[0, 0, 0]
        phases = position * found.rope.frequencies
        expected = found.rope.attention_factor * np.concatenate([np.cos(phases), np.sin(phases)])
        allowed = 1e-5 + 4e-6 * np.concatenate([phases, phases])
        assert np.max(np.abs(turned[: 2 * blocks] - expected) - allowed) < 0.0


LINEAR = {"rope_type": "linear", "factor": 8.0}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3["original_max_position_embeddings"] = 1024
GPT_OSS = YARN | {"truncate": False, "beta_fast": 32.0, "beta_slow": 1.0}
BOTH = ["sliding_attention", "full_attention"]
SMALL = {"num_hidden_layers": 8, "hidden_size": 64, "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 64}
SMALL |= {"max_position_embeddings": CONTEXT, "intermediate_size": 8, "vocab_size": 8}
LAYERED = [
    {"model_type": "gemma3_text", "rope_theta": 1e6, "rope_local_base_freq": 2e4, "rope_scaling": LINEAR},
    {"model_type": "gemma3_text", "rope_theta": 1e6, "layer_types": BOTH * 4, "sliding_window_pattern": 3},
    {
        "model_type": "gemma3_text",
        "rope_parameters": {"full_attention": LINEAR | {"rope_theta": 5e5}, "sliding_attention": {"rope_theta": 1e5}},
    },
    {"model_type": "cohere2", "rope_theta": 5e4, "layer_types": BOTH * 4},
    {"model_type": "cohere2"},
    {"model_type": "gpt_oss", "rope_theta": 15e4, "rope_scaling": GPT_OSS},
    {"model_type": "smollm3", "rope_theta": 5e6, "no_rope_layers": [1, 0, 0, 1, 1, 1, 0, 1]},
    {"model_type": "smollm3", "no_rope_layer_interval": 3},
]


@pytest.mark.parametrize("given", LAYERED)
def test_each_layer_turns_by_the_rule_of_its_kind(given):
    mx = installed("mlx.core")
    installed("mlx_lm.models.rope_utils")
    module, made = installed(f"mlx_lm.models.{given['model_type']}"), SMALL | given
    more = {"rms_norm_eps": 1e-6, "tie_word_embeddings": True, "num_local_experts": 2, "num_experts_per_tok": 1}
    args = module.ModelArgs.from_dict(copy.deepcopy(made | more))
    layers, turned = module.Model(args).model.layers, set()
    for found in models.compare(made, ["MLX-LM"], seq_len=CONTEXT).ropes:
        rope = found.engines[0].rope
        step = np.zeros((1, 1, 1, 64), np.float32)
        step[..., : 64 if rope.pairing == "interleaved" else 32 : 2 if rope.pairing == "interleaved" else 1] = 1.0
        turned |= {*rope.layers}
        for i in rope.layers:
            for position in (1, 50, CONTEXT - 1):
                rows = np.array(layers[i].self_attn.rope(mx.array(step), offset=position))[0, 0, 0]
                phases = position * rope.frequencies
                cos, sin = rope.attention_factor * np.cos(phases), rope.attention_factor * np.sin(phases)
                is_interleaved = rope.pairing == "interleaved"
                expected = np.stack([cos, sin], -1).ravel() if is_interleaved else np.concatenate([cos, sin])
                width = np.repeat(phases, 2) if is_interleaved else np.tile(phases, 2)
                assert np.max(np.abs(rows - expected) - 1e-5 - 4e-6 * width) < 0.0
    still = {i for i in range(8) if not getattr(layers[i].self_attn, "use_sliding_window", True)}
    still |= {i for i in range(8) if type(layers[i].self_attn.rope).__name__ == "NoPE"}
    assert turned == {*range(8)} - still


WITH_TEXT = [
    ("gemma4", {"model_type": "gemma4_text", "global_head_dim": 128, "layer_types": BOTH * 4}),
    ("gemma4", {"model_type": "gemma4_text", "global_head_dim": 128, "layer_types": [*BOTH, *BOTH[::-1]] * 2}),
    (
        "gemma4",
        {
            "model_type": "gemma4_text",
            "global_head_dim": 128,
            "rope_parameters": {
                "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.5, "rope_theta": 5e5},
                "sliding_attention": {"rope_theta": 2e4},
            },
        },
    ),
    ("gemma3n", {"rope_theta": 1e6, "rope_local_base_freq": 2e4, "layer_types": BOTH * 4}),
    ("llama4", {"rope_theta": 5e5, "rope_scaling": None, "no_rope_layers": [1, 0] * 4}),
    ("llama4", {"rope_theta": 5e5, "rope_scaling": LLAMA3}),
    ("", {"model_type": "llama4_text", "rope_theta": 5e5, "no_rope_layers": [1, 0] * 4}),
    ("", {"model_type": "olmo3", "rope_theta": 5e5, "rope_scaling": YARN}),
    ("", {"model_type": "olmo3", "rope_theta": 5e5, "layer_types": BOTH * 4}),
    ("", {"model_type": "exaone4", "rope_theta": 1e6, "rope_scaling": LLAMA3, "sliding_window_pattern": "LLLG"}),
    ("", {"model_type": "exaone4", "rope_theta": 1e6, "rope_scaling": None, "sliding_window_pattern": None}),
]


def attentions(whole: str, made: dict[str, Any]) -> list[Any]:
    """Return the attention of each layer of a model that holds a text, or of the text alone."""
    module = installed(f"mlx_lm.models.{'gemma4_text' if whole == 'gemma4' else whole or made['model_type']}")
    kind = {"gemma3n": "TextConfig", "llama4": "TextArgs"}.get(whole, "ModelArgs")
    fields = dataclasses.fields(getattr(module, kind))
    required = {one.name: 1 for one in fields if one.default is dataclasses.MISSING and one.name not in made}
    args = getattr(module, kind).from_dict(required | copy.deepcopy(made))
    if made["model_type"] in ("exaone4", "llama4_text") and not whole:
        body = module.ExaoneModel if made["model_type"] == "exaone4" else module.LanguageModel
        return [layer.self_attn for layer in body(args).layers]
    name = {"gemma3n": "Gemma3nAttention", "": "Olmo3Attention"}.get(whole, "Attention")
    more = {"is_kv_shared_layer": False} if whole == "gemma3n" else {}
    return [getattr(module, name)(args, i, **more) for i in range(made["num_hidden_layers"])]


@pytest.mark.parametrize(("whole", "given"), WITH_TEXT)
def test_layers_of_models_that_hold_a_text(whole, given):
    mx = installed("mlx.core")
    installed("mlx_lm.models.rope_utils")
    made = {**SMALL, "model_type": f"{whole}_text", "sliding_window": 64, "layer_types": None} | given
    made = {key: value for key, value in made.items() if key != "layer_types" or value is not None}
    if made["model_type"] == "exaone4":
        made["layer_types"] = [BOTH[(i + 1) % 4 == 0] for i in range(8)]
    layers, turned = attentions(whole, made), set()
    for compared in models.compare({"model_type": whole, "text_config": made} if whole else made, ["MLX-LM"]).ropes:
        rope = compared.engines[0].rope
        turned |= {*rope.layers}
        is_interleaved, width = rope.pairing == "interleaved", 2 * rope.frequencies.size
        step = np.zeros((1, 1, 1, width), np.float32)
        step[..., 0::2] = 1.0
        if not is_interleaved:
            step = np.sort(step)[..., ::-1].copy()
        for i in rope.layers:
            for position in (1, 50, CONTEXT - 1):
                rows = np.array(layers[i].rope(mx.array(step), offset=position))[0, 0, 0]
                phases = position * rope.frequencies
                sides = [rope.attention_factor * turn(phases) for turn in (np.cos, np.sin)]
                expected = np.stack(sides, -1).ravel() if is_interleaved else np.concatenate(sides)
                allowed = 1e-5 + 4e-6 * (np.repeat(phases, 2) if is_interleaved else np.tile(phases, 2))
                assert np.max(np.abs(rows - expected) - allowed) < 0.0
    assert turned == {i for i in range(8) if getattr(layers[i], "use_rope", True)}


@pytest.mark.parametrize("kind", carried_by("MLX"))
def test_rotation(kind):
    mx = installed("mlx.core")
    for seed in SEEDS:
        rope = KINDS[kind](seed)
        x, positions = features(rope)
        exported = exports.export(rope, "MLX")
        exported["freqs"] = mx.array(exported["freqs"])
        rows = [mx.fast.rope(mx.array(x[None, :, [i]]), **exported, offset=int(p)) for i, p in enumerate(positions)]
        check(np.concatenate([np.asarray(row)[0] for row in rows], axis=1), x, positions, rope, "MLX")


@pytest.mark.parametrize("kind", carried_by("MLX-LM"))
def test_exported_configs(kind):
    """The class of Llama, made from the config, turns queries by the Rope, its attention factor included."""
    mx, module = installed("mlx.core"), installed("mlx_lm.models.llama")
    for seed in SEEDS:
        rope = KINDS[kind](seed)
        x, positions = features(rope)
        width = int(rope.head_dim)
        made = {"model_type": "llama", "hidden_size": 2 * width, "num_attention_heads": 2, "vocab_size": 8}
        made |= {"num_hidden_layers": 1, "intermediate_size": 8, "rms_norm_eps": 1e-6, "head_dim": width}
        args = module.ModelArgs.from_dict(made | exports.export(rope, "MLX-LM"))
        turn = module.Attention(args).rope
        rows = [np.asarray(turn(mx.array(x[None, :, i : i + 1]), offset=int(p))) for i, p in enumerate(positions)]
        check(np.concatenate([row[0] for row in rows], axis=1), x, positions, rope, "MLX-LM")
