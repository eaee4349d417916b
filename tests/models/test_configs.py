"""What `from_config` finds where, in published configurations and in made-up ones, and what it says of bad ones."""

from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import pytest
from published import BY_MODEL, GEMMA4_ROPE, PUBLISHED, Place, lists, llama3

import rfrope
from rfrope import exports, from_config, models
from rfrope.data.model_types import has_defaults, known, model_types

OTHER = {"model_type": "made_up", "rope_theta": 1e4, "head_dim": 16, "max_position_embeddings": 2048}
LLAMA = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "max_position_embeddings": 2048}


def place(part: rfrope.Rope) -> Place:
    told = part.source.rope_parameters
    return Place(
        part.source.model.name,
        told["rope_type"],
        part.head_dim,
        len(part.frequencies),
        told["rope_theta"],
        part.context,
    )


# -- published configurations ------------------------------------------------------------------------------------------


def test_the_table_is_wide_and_each_model_in_it_once():
    assert len({one.model for one in PUBLISHED}) == len(PUBLISHED) >= 60
    assert len({one.config["model_type"] for one in PUBLISHED}) >= 40
    schemes = {one.rope_type for entry in PUBLISHED for one in entry.places}
    assert schemes == {"default", "linear", "dynamic", "yarn", "longrope", "llama3", "proportional", "axial"}


@pytest.mark.parametrize("model", BY_MODEL)
def test_published(model):
    found = from_config(BY_MODEL[model].config)
    assert tuple(place(part) for part in found) == BY_MODEL[model].places
    for part in found:
        assert part.frequencies.dtype == np.float64
        assert np.all(np.isfinite(part.frequencies))
        assert part.rotary_dim == 2 * len(part.frequencies) <= part.head_dim
        if part.source.rope_parameters["rope_type"] == "default":
            exact = part.source.rope_parameters["rope_theta"] ** (
                -np.arange(len(part.frequencies)) / len(part.frequencies)
            )
            np.testing.assert_allclose(part.frequencies, exact, rtol=1e-14)
        json.dumps(part.source.rope_parameters)


@pytest.mark.parametrize("model", BY_MODEL)
def test_a_config_is_only_read(model):
    before = json.dumps(BY_MODEL[model].config)
    from_config(BY_MODEL[model].config)
    assert json.dumps(BY_MODEL[model].config) == before


@pytest.mark.parametrize("model", BY_MODEL)
def test_files_folders_and_objects_are_as_dicts(model, tmp_path):
    class Config:
        def to_dict(self):
            return BY_MODEL[model].config

    (tmp_path / "config.json").write_text(json.dumps(BY_MODEL[model].config))
    expected = from_config(BY_MODEL[model].config)
    for source in (tmp_path, tmp_path / "config.json", str(tmp_path / "config.json"), Config()):
        for one, other in zip(from_config(source), expected, strict=True):
            assert place(one) == place(other)
            assert np.array_equal(one.frequencies, other.frequencies)


@pytest.mark.parametrize("model", ["Llama 3.1 8B", "Gemma 3 4B", "Qwen2-VL 7B"])
def test_in_every_library(model, xp):
    expected = from_config(BY_MODEL[model].config)
    found = from_config(BY_MODEL[model].config, xp=xp.module, device=xp.device)
    for one, other in zip(found, expected, strict=True):
        assert xp.owns(one.frequencies)
        assert np.array_equal(xp.host(one.frequencies), other.frequencies)
    narrow = from_config(BY_MODEL[model].config, xp=xp.module, dtype="float32")
    assert all(one.frequencies.dtype == xp.dtype("float32") for one in narrow)


def test_sections():
    by_model = {model: from_config(BY_MODEL[model].config) for model in ("Qwen2-VL 7B", "Qwen3-VL 8B", "Llama 3 8B")}
    (chunked, vision), (interleaved, _), (plain,) = by_model.values()
    assert (chunked.sections, chunked.interleaved) == ((16, 24, 24), False)
    assert (interleaved.sections, interleaved.interleaved) == ((24, 20, 20), True)
    assert (plain.sections, plain.interleaved) == (None, False)
    assert (vision.sections, vision.interleaved) == ((20, 20), False)
    assert rfrope.mrope(vision.frequencies, vision.sections).frequencies.shape == (40, 2)


def test_pictures():
    (_, qwen), (_, pixtral), (dino,) = (
        from_config(BY_MODEL[model].config) for model in ("Qwen2-VL 7B", "Mistral Small 3.1 24B", "DINOv3 ViT-S/16")
    )
    half = 10_000.0 ** (-np.arange(20) / 20)
    np.testing.assert_allclose(qwen.frequencies, [*half, *half], rtol=1e-14)
    whole = 10_000.0 ** (-np.arange(32) / 32)
    np.testing.assert_allclose(pixtral.frequencies, [*whole[0::2], *whole[1::2]], rtol=1e-14)
    turns = 100.0 ** (-np.arange(16) / 16)
    np.testing.assert_allclose(dino.frequencies, 2 * math.pi * np.array([*turns, *turns]), rtol=1e-14)


def test_a_proportional_head_stands_still_in_part():
    full, _ = from_config(BY_MODEL["Gemma 4 E2B"].config)
    assert np.count_nonzero(full.frequencies) == int(0.25 * 512 // 2)
    assert full.rotary_dim == 512


def test_two_ladders_of_gemma_3():
    full, sliding = from_config(BY_MODEL["Gemma 3 4B"].config)
    np.testing.assert_allclose(full.frequencies, 1e6 ** (-np.arange(128) / 128) / 8.0, rtol=1e-14)
    np.testing.assert_allclose(sliding.frequencies, 1e4 ** (-np.arange(128) / 128), rtol=1e-14)


def test_results_are_frozen():
    (part,) = from_config(LLAMA)
    with pytest.raises(dataclasses.FrozenInstanceError):
        part.head_dim = 3


# -- where things stand ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (LLAMA, Place("", "default", 16, 8, 1e4, 2048)),
        ({**LLAMA, "rope_theta": 5e5}, Place("", "default", 16, 8, 5e5, 2048)),
        ({**LLAMA, "rope_parameters": {"rope_theta": 5e5}}, Place("", "default", 16, 8, 5e5, 2048)),
        # the dict counts, as in transformers
        ({**LLAMA, "rope_theta": 7.0, "rope_parameters": {"rope_theta": 5e5}}, Place("", "default", 16, 8, 5e5, 2048)),
        ({**LLAMA, "head_dim": 32}, Place("", "default", 32, 16, 1e4, 2048)),
        ({**LLAMA, "head_dim": None}, Place("", "default", 16, 8, 1e4, 2048)),
        # what a model's class passes over is passed over, and what other models have is read
        ({**LLAMA, "partial_rotary_factor": 0.5}, Place("", "default", 16, 8, 1e4, 2048)),
        ({**LLAMA, "rotary_dim": 8}, Place("", "default", 16, 8, 1e4, 2048)),
        ({**LLAMA, "model_type": "phi", "partial_rotary_factor": 0.5}, Place("", "default", 16, 4, 1e4, 2048)),
        ({**OTHER, "partial_rotary_factor": 0.5}, Place("", "default", 16, 4, 1e4, 2048)),
        ({**OTHER, "rope_pct": 0.25}, Place("", "default", 16, 2, 1e4, 2048)),
        ({"model_type": "minimax", "head_dim": 128, "rotary_dim": 64}, Place("", "default", 128, 64, 1e6, 131072)),
        ({"model_type": "minimax_m2", "head_dim": 128, "rotary_dim": 64}, Place("", "default", 128, 32, 5e6, 196608)),
        (
            {"model_type": "bailing_hybrid", "qk_rope_head_dim": 64, "head_dim": 128, "partial_rotary_factor": 0.5},
            Place("", "default", 64, 32, 6e6, 262144),
        ),
        # null is what follows from the rest, whatever the type has
        (
            {"model_type": "ernie4_5", "hidden_size": 512, "num_attention_heads": 8, "head_dim": None},
            Place("", "default", 64, 32, 5e5, 131072),
        ),
        # what the class of a known type calls it, and nothing else
        (
            {
                "model_type": "moonshine",
                "hidden_size": 64,
                "encoder_num_attention_heads": 4,
                "decoder_num_attention_heads": 4,
            },
            Place("", "default", 16, 7, 1e4, 512),
        ),
        ({**LLAMA, "kv_channels": 4, "n_head": 2, "qk_rope_head_dim": 6}, Place("", "default", 16, 8, 1e4, 2048)),
        ({"model_type": "deepseek_v2", "head_dim": 128}, Place("", "default", 64, 32, 1e4, 2048)),
        # DeepSeek-V2 without latent attention
        (
            {
                "model_type": "deepseek_v2",
                "hidden_size": 1280,
                "num_attention_heads": 10,
                "qk_rope_head_dim": 0,
                "qk_nope_head_dim": 0,
                "use_mla": False,
            },
            Place("", "default", 128, 64, 1e4, 2048),
        ),
        # what a dict lacks is not always what the type has without one
        (
            {"model_type": "ministral3", "rope_parameters": {"rope_type": "default"}},
            Place("", "default", 128, 64, 1e4, 262144),
        ),
        (
            {"model_type": "moonshine_streaming", "rope_parameters": {"rope_theta": 1e4}},
            Place("", "default", 40, 20, 1e4, 4096),
        ),
        (
            {"model_type": "mistral4", "hidden_size": 512, "num_attention_heads": 8},
            Place("", "yarn", 128, 32, 1e4, 1048576),
        ),
        ({**OTHER, "head_dim": 32, "attention_head_dim": 8, "kv_channels": 4}, Place("", "default", 32, 16, 1e4, 2048)),
        ({"rope_theta": 1e4, "attention_head_dim": 8, "kv_channels": 4}, Place("", "default", 8, 4, 1e4, None)),
        ({"rope_theta": 1e4, "head_dim": 8, "max_seq_len": 77}, Place("", "default", 8, 4, 1e4, 77)),
        # DBRX
        (
            {
                "model_type": "dbrx",
                "d_model": 6144,
                "n_heads": 48,
                "max_seq_len": 32768,
                "attn_config": {"clip_qkv": 8, "kv_n_heads": 8, "model_type": "", "rope_theta": 500000},
            },
            Place("", "default", 128, 64, 5e5, 32768),
        ),
        (
            {
                "model_type": "wav2vec2-conformer",
                "position_embeddings_type": "rotary",
                "rotary_embedding_base": 20000,
                "hidden_size": 1024,
                "num_attention_heads": 16,
            },
            Place("", "default", 64, 32, 2e4, None),
        ),
        ({"model_type": "llama"}, Place("", "default", 128, 64, 1e4, 2048)),
        ({"model_type": "mixtral"}, Place("", "default", 128, 64, 1e6, 131072)),
        ({"model_type": "gpt_oss"}, Place("", "yarn", 64, 32, 150_000.0, 131072)),
        ({"model_type": "gpt_neox"}, Place("", "default", 96, 12, 1e4, 2048)),
        ({"rope_theta": 5e5, "head_dim": 8}, Place("", "default", 8, 4, 5e5, None)),
        # Qwen's first, whose code is not in transformers
        (
            {
                "model_type": "qwen",
                "hidden_size": 4096,
                "kv_channels": 128,
                "num_attention_heads": 32,
                "rotary_emb_base": 10000,
                "rotary_pct": 1.0,
                "seq_length": 8192,
            },
            Place("", "default", 128, 64, 1e4, 8192),
        ),
        ({"n_embd": 64, "n_head": 4, "n_positions": 99, "rotary_dim": 8}, Place("", "default", 16, 4, 1e4, 99)),
        ({"model_type": "esm", "position_embedding_type": "rotary"}, Place("", "default", 64, 32, 1e4, 1026)),
    ],
)
def test_one_place(config, expected):
    (part,) = from_config(config)
    assert place(part) == expected


@pytest.mark.parametrize("key", ["text_config", "llm_config", "language_config", "thinker_config"])
def test_parts(key):
    inner = {**LLAMA, "rope_theta": 5e5}
    (part,) = from_config({"model_type": "made_up", key: inner})
    assert place(part) == Place(key, "default", 16, 8, 5e5, 2048)
    (deep,) = from_config({"thinker_config": {key: inner}})
    assert deep.source.model.name == f"thinker_config.{key}"
    assert deep.source.model.model_type == "llama"


def test_a_top_that_repeats_its_text_is_not_a_place_of_its_own():
    found = from_config({**LLAMA, "text_config": {**LLAMA, "rope_theta": 5e5}})
    assert [place(part) for part in found] == [Place("text_config", "default", 16, 8, 5e5, 2048)]


def test_other_parts_beside_the_top():
    codec = {"model_type": "mimi", "rope_theta": 10000.0}
    found = from_config({**LLAMA, "codec_config": codec, "quantization_config": {"rope_theta": 3.0}})
    assert [part.source.model.name for part in found] == ["", "codec_config"]


def test_talkers_and_thinkers():
    found = from_config(
        {
            "model_type": "qwen2_5_omni",
            "thinker_config": {
                "model_type": "qwen2_5_omni_thinker",
                "text_config": {"model_type": "qwen2_5_omni_text", "hidden_size": 3584, "num_attention_heads": 28},
                "vision_config": {"model_type": "qwen2_5_omni_vision_encoder", "hidden_size": 1280, "num_heads": 16},
                "audio_config": {"model_type": "qwen2_5_omni_audio_encoder", "d_model": 1280},
            },
            "talker_config": {"model_type": "qwen2_5_omni_talker", "head_dim": 128, "rope_theta": 1000000.0},
        }
    )
    assert [place(part) for part in found] == [
        Place("thinker_config.text_config", "default", 128, 64, 1e6, 32768),
        Place("thinker_config.vision_config", "axial", 80, 40, 1e4, None),
        Place("talker_config", "default", 128, 64, 1e6, 32768),
    ]
    assert [part.source.model.qk_head_dim for part in found] == [128, 80, 128]


def test_layers_in_dicts_of_their_own():
    config = {
        **LLAMA,
        "rope_parameters": {
            "chunked_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5},
            "full_attention": None,
            "sliding_attention": {"rope_type": "default"},
        },
    }
    assert [place(part) for part in from_config(config)] == [
        Place("chunked_attention", "linear", 16, 8, 5e5, 2048),
        Place("sliding_attention", "default", 16, 8, 1e4, 2048),
    ]


def test_heads_of_their_own_for_a_kind_of_layer():
    config = {
        "model_type": "gemma4_text",
        "head_dim": 256,
        "rope_parameters": GEMMA4_ROPE,
        "layer_types": ["sliding_attention", "full_attention"],
        "per_layer_config": {"01": {"head_dim": 384}},
    }
    assert {part.source.model.name: part.head_dim for part in from_config(config)} == {
        "full_attention": 384,
        "sliding_attention": 256,
    }


def test_a_base_for_local_layers_makes_two_ladders_of_any_model():
    found = from_config({**LLAMA, "rope_theta": 5e5, "swa_rope_theta": 2e4, "swa_head_dim": 32})
    assert [place(part) for part in found] == [
        Place("full_attention", "default", 16, 8, 5e5, 2048),
        Place("sliding_attention", "default", 32, 16, 2e4, 2048),
    ]


@pytest.mark.parametrize(
    ("model_type", "key", "local"),
    [("gemma3_text", "rope_theta", 1e4), ("modernbert", "global_rope_theta", 1e4), ("olmo3", "rope_theta", 7e5)],
)
def test_the_base_of_local_layers_where_only_the_other_is_told(model_type, key, local):
    full, sliding = from_config({"model_type": model_type, key: 7e5})
    assert full.source.rope_parameters["rope_theta"] == 7e5
    assert sliding.source.rope_parameters["rope_theta"] == local


BOTH = ["sliding_attention", "full_attention"]


@pytest.mark.parametrize(
    ("config", "windows"),
    [
        (LLAMA, {"": None}),
        ({**LLAMA, "sliding_window": 64}, {"": None}),  # its class does not read it
        ({"model_type": "mistral", "sliding_window": 64}, {"": 64}),
        ({"model_type": "mistral"}, {"": 4096}),
        ({"model_type": "mistral", "sliding_window": None}, {"": None}),
        ({"model_type": "phi3", "sliding_window": 2047}, {"": 2047}),
        ({"model_type": "gpt_oss", "layer_types": BOTH}, {"sliding_attention": 128, "full_attention": None}),
        ({"model_type": "gpt_oss", "layer_types": BOTH[:1]}, {"": 128}),
        ({"model_type": "gemma2"}, {"sliding_attention": 4096, "full_attention": None}),
        ({"model_type": "cohere2"}, {"": 4096}),  # layers that see all have no RoPE
        ({"model_type": "cohere2", "sliding_window": 64, "layer_types": BOTH}, {"": 64}),
        ({"model_type": "exaone4", "sliding_window": None}, {"": None}),
        ({"model_type": "llama4_text", "attention_chunk_size": 64}, {"": 64}),
        ({"model_type": "qwen2", "sliding_window": 64}, {"": None}),
        ({"model_type": "qwen2", "sliding_window": 64, "use_sliding_window": False, "layer_types": BOTH}, {"": None}),
        (
            {"model_type": "qwen2", "sliding_window": 64, "use_sliding_window": True, "max_window_layers": 20},
            {"sliding_attention": 64, "full_attention": None},
        ),
        (
            {"model_type": "qwen2", "use_sliding_window": True, "max_window_layers": 28, "num_hidden_layers": 28},
            {"": None},
        ),
        ({"model_type": "qwen2", "use_sliding_window": True, "max_window_layers": 0}, {"": 4096}),
        ({"model_type": "recurrent_gemma", "attention_window_size": 64}, {"": 64}),
        ({"model_type": "openai_privacy_filter", "sliding_window": 64}, {"": 65}),  # to both sides, and itself
        ({**OTHER, "sliding_window": 64}, {"": None}),  # which layers have it is not said
        ({**OTHER, "sliding_window": 64, "layer_types": BOTH}, {"sliding_attention": 64, "full_attention": None}),
        ({**OTHER, "sliding_window": 64, "layer_types": ["linear_attention", *BOTH[:1]]}, {"": 64}),
    ],
)
def test_windows(config, windows):
    (part,) = from_config(config)
    assert part.source.model.windows == windows
    assert part.source.model.window == (None if None in windows.values() else max(windows.values()))


@pytest.mark.parametrize(
    ("config", "window"),
    [
        ({"model_type": "gemma3_text"}, 4096),
        ({"model_type": "gemma3_text", "sliding_window": 512}, 512),
        ({"model_type": "gemma3_text", "sliding_window": 512, "use_bidirectional_attention": True}, 257),
        ({"model_type": "modernbert"}, 65),  # 64 to each side
        ({"model_type": "modernbert", "local_attention": 32}, 17),
        ({"model_type": "modernbert-decoder", "local_attention": 32}, 16),
    ],
)
def test_windows_of_layers_with_a_rope_of_their_own(config, window):
    held = {part.source.model.name: part.source.model.window for part in from_config(config)}
    assert held == {"full_attention": None, "sliding_attention": window}


def test_a_window_that_is_none():
    with pytest.raises(ValueError, match="sliding_window is -1; expected a whole number from 1"):
        from_config({"model_type": "mistral", "sliding_window": -1})


def test_rotary_dim_is_of_older_configs():
    (old,) = from_config({**OTHER, "rotary_dim": 8})
    (new,) = from_config({**OTHER, "rotary_dim": 8, "rope_parameters": {"rope_theta": 1e4}})
    assert (old.rotary_dim, new.rotary_dim) == (8, 16)


@pytest.mark.parametrize(("head_dim", "rotary_dim"), [(d, r) for d in (44, 80, 98, 112) for r in range(2, d + 1, 2)])
def test_rotary_dim_is_exact(head_dim, rotary_dim):
    (part,) = from_config({"rope_theta": 1e4, "head_dim": head_dim, "rotary_dim": rotary_dim})
    assert part.rotary_dim == rotary_dim
    again = rfrope.models.from_rope_parameters(part.source.rope_parameters, head_dim=head_dim)
    np.testing.assert_allclose(again.frequencies, 1e4 ** (-np.arange(0, rotary_dim, 2) / rotary_dim), rtol=1e-14)


def test_a_scheme_reads_the_fraction_that_the_default_passes_over():
    told = {"rope_type": "linear", "factor": 2.0}
    (part,) = from_config({**LLAMA, "partial_rotary_factor": 0.5, "rope_scaling": told})
    assert (part.source.rope_parameters["partial_rotary_factor"], part.rotary_dim) == (0.5, 8)


@pytest.mark.parametrize("model_type", ["modernbert", "modernbert-decoder"])
def test_modernberts_scaling_is_for_both_kinds_of_layer(model_type):
    found = from_config({"model_type": model_type, "rope_scaling": {"rope_type": "linear", "factor": 2.0}})
    assert [
        (part.source.rope_parameters["rope_type"], part.source.rope_parameters["rope_theta"]) for part in found
    ] == [
        ("linear", 160_000.0),
        ("linear", 10_000.0),
    ]


def test_latent_attention_saved_by_transformers_5():
    told = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
    latent = {"model_type": "mistral4", "qk_nope_head_dim": 64, "qk_rope_head_dim": 64, "rope_parameters": told}
    (part,) = from_config(latent)
    assert (part.head_dim, part.rotary_dim) == (128, 64)


def test_old_and_new_dicts_side_by_side():
    (part,) = from_config({**LLAMA, "rope_scaling": llama3(8.0), "rope_parameters": {"rope_theta": 5e5, **llama3(8.0)}})
    assert place(part) == Place("", "llama3", 16, 8, 5e5, 2048)


def test_the_original_context_at_the_top_counts_more():
    told = {"type": "su", **lists(8), "original_max_position_embeddings": 512}
    (part,) = from_config({**LLAMA, "rope_scaling": told, "original_max_position_embeddings": 1024})
    assert part.source.rope_parameters["original_max_position_embeddings"] == 1024
    assert part.attention_factor == math.sqrt(1 + math.log(2.0) / math.log(1024))


def test_yarn_with_lists_is_longrope():
    told = {"type": "yarn", **lists(8), "original_max_position_embeddings": 512}
    (part,) = from_config({**LLAMA, "rope_scaling": told})
    assert part.source.rope_parameters["rope_type"] == "longrope"


def test_a_length_reaches_the_scheme():
    told = {"type": "dynamic", "factor": 2.0}
    (short,), (long,) = (from_config({**LLAMA, "rope_scaling": told}, seq_len=n) for n in (2048, 8192))
    assert np.array_equal(short.frequencies, rfrope.geometric(8))
    assert long.frequencies[-1] < short.frequencies[-1]


def test_sections_that_are_in_no_order_of_mrope_are_not_given():
    (part,) = from_config({"model_type": "ernie4_5_vl_moe_text", "rope_scaling": {"mrope_section": [22, 22, 20]}})
    assert part.sections is None
    assert part.source.rope_parameters["mrope_section"] == [22, 22, 20]


@pytest.mark.parametrize("inner", [{}, {"model_type": "made_up"}])
def test_the_order_of_sections_is_that_of_the_whole_where_the_text_part_has_no_known_type(inner):
    text = {"head_dim": 128, "rope_scaling": {"mrope_section": [24, 20, 20], "rope_type": "default"}} | inner
    (part,) = from_config({"model_type": "qwen3_vl", "text_config": text})
    assert (part.sections, part.interleaved) == ((24, 20, 20), True)
    (part,) = from_config({"model_type": "hunyuan_vl", "text_config": text})
    assert (part.sections, part.interleaved) == (None, False)


@pytest.mark.parametrize("told", [{}, {"mrope_interleaved": True}, {"mrope_interleaved": False}])
def test_sections_are_interleaved_where_the_class_always_does_it(told):
    for model_type, expected in (("qwen3_vl_text", True), ("qwen2_vl_text", bool(told.get("mrope_interleaved")))):
        (part,) = from_config(
            {"model_type": model_type, "head_dim": 128, "rope_scaling": told | {"mrope_section": [24, 20, 20]}}
        )
        assert (part.sections, part.interleaved) == ((24, 20, 20), expected)


# -- nothing, or nothing that can be read ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"model_type": "bert", "hidden_size": 768, "num_attention_heads": 12, "position_embedding_type": "absolute"},
        {"model_type": "gpt2", "n_embd": 768, "n_head": 12},
        {"model_type": "falcon", "alibi": True},
        {"model_type": "mpt", "attn_config": {"alibi": True, "rope": False, "rope_theta": 10000}},
        {"model_type": "esm", "position_embedding_type": "absolute"},
        {"model_type": "granitemoehybrid", "position_embedding_type": "nope", "rope_theta": 10000},
        {"model_type": "zamba2", "use_mem_rope": False, "rope_theta": 10000},
        {"model_type": "nemotron_h", "rope_theta": 10000, "head_dim": 128},
        {"model_type": "kimi_linear", "rope_theta": 10000, "qk_rope_head_dim": 64},
        {**LLAMA, "mla_use_nope": True},
        {"model_type": "olmo_hybrid", "rope_parameters": {"rope_theta": None, "rope_type": "default"}},
        {"model_type": "wav2vec2-conformer", "position_embeddings_type": "relative", "rotary_embedding_base": 10000},
        {**LLAMA, "model_type": "made_up"},
    ],
)
def test_models_without_rope(config):
    with pytest.raises(
        ValueError, match="config describes no RoPE; looked for rope_parameters, rope_scaling, rope_theta"
    ):
        from_config(config)


def test_where_was_looked():
    with pytest.raises(ValueError, match=r"at the top, text_config, vision_config$"):
        from_config({"text_config": {"model_type": "bert"}, "vision_config": {"model_type": "vit"}})


@pytest.mark.parametrize(
    "vision",
    [
        {"model_type": "gemma4_vision", "rope_theta": 100.0},
        {"model_type": "made_up", "rope_theta": 100.0},
    ],
)
def test_a_vision_part_that_the_config_does_not_determine(vision):
    with pytest.raises(ValueError, match=r"vision_config \(there is one, but the config alone does not give"):
        from_config({"vision_config": vision})
    (text,) = from_config({"text_config": LLAMA, "vision_config": vision})
    assert text.source.model.name == "text_config"


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "sapiens2", "rope_theta": 100.0, "hidden_size": 1024, "num_attention_heads": 16},
        {"model_type": "sam3_vit_model", "rope_theta": 10000.0, "hidden_size": 1024, "num_attention_heads": 16},
        {"model_type": "made_up", "head_dim": 64, "rope_parameters": {"rope_type": "axial", "rope_theta": 1e4}},
        {"model_type": "made_up", "head_dim": 64, "rope_scaling": {"type": "axial"}},
        {"vision_config": {"backbone_config": {"model_type": "made_up", "rope_theta": 1e4, "head_dim": 64}}},
    ],
)
def test_pictures_that_the_config_does_not_determine_wherever_they_are(config):
    with pytest.raises(ValueError, match=r"\(there is one, but the config alone does not give its frequencies\)"):
        from_config(config)


def test_eomt_is_read_as_dinov3():
    (one,), (other,) = (
        from_config({"model_type": model_type, "hidden_size": 1024, "num_attention_heads": 16})
        for model_type in ("eomt_dinov3", "dinov3_vit")
    )
    assert np.array_equal(one.frequencies, other.frequencies)
    assert one.sections == other.sections == (16, 16)


@pytest.mark.parametrize(
    "key",
    [
        *("per_layer_config", "quantization_config", "attn_config", "ffn_config", "mlp_config", "linear_attn_config"),
        *("generation_config", "speculator_config"),
    ],
)
def test_dicts_that_are_no_parts(key):
    (part,) = from_config({**LLAMA, key: {"rope_theta": 5.0, "head_dim": 8}})
    assert part.source.model.name == ""


def test_blt_has_its_rope_in_its_parts():
    part = {"model_type": "blt_patcher", "hidden_size": 768, "num_attention_heads": 12, "rope_theta": 1e4}
    (found,) = from_config({"model_type": "blt", "rope_theta": 5e5, "patcher_config": part})
    assert place(found) == Place("patcher_config", "default", 64, 32, 1e4, 8192)


@pytest.mark.parametrize("scheme", ["llama3", "yarn", "longrope", "su"])
def test_schemes_that_take_the_original_context_from_the_top(scheme):
    told = {"llama3": llama3(8.0), "yarn": {"factor": 2.0}}.get(scheme, {**lists(8), "factor": 2.0})
    config = {**LLAMA, "original_max_position_embeddings": 256, "rope_scaling": {**told, "rope_type": scheme}}
    (part,) = from_config(config)
    assert part.source.rope_parameters["original_max_position_embeddings"] == 256


def test_xdrope_of_hunyuan():
    told = {"type": "xdrope", "alpha": 1000.0, "factor": 1.0, "xdrope_section": [2, 2, 2, 2]}
    (part,) = from_config({**OTHER, "model_type": "hunyuan_vl_text", "rope_scaling": told})
    (plain,) = from_config({**OTHER, "rope_scaling": {"type": "dynamic", "alpha": 1000.0}})
    assert part.source.rope_parameters["rope_type"] == "dynamic"
    assert part.source.rope_parameters["mrope_section"] == [2, 2, 2, 2]
    assert part.sections is None
    assert np.array_equal(part.frequencies, plain.frequencies)


def test_the_other_word_of_qwen3_omni():
    told = {"mrope_section": [4, 2, 2], "mrope_interleaved": True, "interleaved": True, "rope_type": "default"}
    (part,) = from_config({**OTHER, "rope_scaling": told})
    assert (part.sections, part.interleaved) == ((4, 2, 2), True)


def test_results_can_be_changed_and_the_table_stays():
    (part,) = from_config({"model_type": "apertus"})
    part.source.rope_parameters["factor"] = 99.0
    (sections,) = from_config({"model_type": "cosmos3_edge_text"})
    sections.source.rope_parameters["mrope_section"].append(1)
    assert from_config({"model_type": "apertus"})[0].source.rope_parameters["factor"] == 8.0
    assert from_config({"model_type": "cosmos3_edge_text"})[0].sections == (24, 20, 20)


class Listed:
    def to_dict(self):
        return [1]


CYCLE: dict = {}
CYCLE["text_config"] = CYCLE
DEEP: dict = {}
for _ in range(900):
    DEEP = {"text_config": DEEP}

BAD = [
    (
        {**LLAMA, "model_type": "x", "rope_theta": 1e4, "layer_types": [1.0]},
        ValueError,
        "layer_types holds 1.0; expected",
    ),
    ({**LLAMA, "rope_scaling": {"type": "yarm"}}, ValueError, "rope_parameters['type'] is 'yarm'"),
    ({**LLAMA, "rope_scaling": {"type": "linear"}}, ValueError, "rope_parameters lacks factor; 'linear' needs factor"),
    (
        {"text_config": {**LLAMA, "rope_scaling": {"factor": 2}}},
        ValueError,
        "text_config: rope_parameters holds 'factor'",
    ),
    ({**LLAMA, "rope_scaling": "yarn"}, TypeError, "rope_scaling is 'yarn'; expected a dict or None"),
    ({**LLAMA, "rope_parameters": [1]}, TypeError, "rope_parameters is [1]; expected a dict or None"),
    (
        {**LLAMA, "rope_scaling": {"rope_theta": 1e4}, "rope_parameters": {"rope_theta": 5e5}},
        ValueError,
        "rope_scaling['rope_theta'] is 10000.0, but rope_parameters['rope_theta'] is 500000.0; expected one of them",
    ),
    ({"rope_theta": 1e4}, ValueError, "head_dim is missing; expected it, or hidden_size and num_attention_heads"),
    ({"rope_theta": 1e4, "hidden_size": 64}, ValueError, "head_dim is missing"),
    ({**LLAMA, "hidden_size": "64"}, TypeError, "hidden_size is '64'; expected a whole number"),
    ({**LLAMA, "num_attention_heads": 0}, ValueError, "num_attention_heads is 0; expected a whole number from 1"),
    ({**LLAMA, "head_dim": 16.0}, TypeError, "head_dim is 16.0; expected a whole number"),
    ({**LLAMA, "max_position_embeddings": "2k"}, TypeError, "max_position_embeddings is '2k'; expected a whole number"),
    # the name that the config has, and the kind of layer
    ({**LLAMA, "rope_theta": "10000"}, TypeError, "rope_theta is '10000'; expected a positive number"),
    ({**OTHER, "rotary_dim": 8.5}, TypeError, "rotary_dim is 8.5; expected a whole number"),
    ({**OTHER, "rotary_dim": 18}, ValueError, "rotary_dim is 18; expected at most head_dim = 16"),
    ({**LLAMA, "model_type": "gpt_neox", "rotary_emb_base": -1}, ValueError, "rotary_emb_base is -1; expected a pos"),
    ({**LLAMA, "model_type": "gpt_neox", "rotary_pct": "0.25"}, TypeError, "rotary_pct is '0.25'; expected a number"),
    (
        {**LLAMA, "model_type": "gpt_neox", "rotary_pct": 2},
        ValueError,
        "rotary_pct is 2; expected a number from 0 to 1",
    ),
    (
        {"model_type": "gemma3_text", "rope_parameters": {"full_attention": {"rope_type": "yarm"}}},
        ValueError,
        "full_attention: rope_parameters['rope_type'] is 'yarm'",
    ),
    (
        {"text_config": {**LLAMA, "rope_theta": 5e5, "swa_rope_theta": 2e4, "rope_scaling": {"type": "linear"}}},
        ValueError,
        "text_config.full_attention: rope_parameters lacks factor",
    ),
    # contradictions
    (
        {
            "model_type": "gemma3_text",
            "rope_scaling": {"rope_type": "linear", "factor": 8.0},
            "rope_parameters": {"full_attention": {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}},
        },
        ValueError,
        "rope_parameters holds rope_type, factor beside dicts of layers; expected rope_type in each dict that it",
    ),
    (
        {"model_type": "gemma3_text", "rope_parameters": {"full_attention": {}, "rope_theta": 5e5, "factor": 3}},
        ValueError,
        "rope_parameters holds rope_theta, factor beside dicts of layers; expected rope_theta in each dict",
    ),
    (
        {**OTHER, "rotary_emb_base": 5e5},
        ValueError,
        "rope_theta is 10000.0, rotary_emb_base is 500000.0; expected one of them, or equal",
    ),
    (
        {"model_type": "jetmoe", "kv_channels": 24, "head_dim": 40},
        ValueError,
        "kv_channels is 24, head_dim is 40; expected one of them, or equal",
    ),
    (
        {"model_type": "qwen2_vl_vision", "embed_dim": 192, "num_heads": 3, "num_attention_heads": 6},
        ValueError,
        "num_heads is 3, num_attention_heads is 6; expected one of them, or equal",
    ),
    (
        {"model_type": "apertus", "rope_theta": 77777.0},
        ValueError,
        "rope_theta is 77777.0, which this model_type does not read beside rope_parameters; expected rope_theta in",
    ),
    (
        {"model_type": "gpt_neox", "rope_theta": 5e5},
        ValueError,
        "rope_theta is 500000.0, which this model_type does not read beside rope_parameters",
    ),
    (
        {"model_type": "phi", "rotary_pct": 0.25},
        ValueError,
        "rotary_pct is 0.25, which this model_type does not read beside rope_parameters; expected partial_rotary",
    ),
    (
        {"model_type": "gemma3_text", "rope_parameters": {"rope_theta": 5e5}},
        ValueError,
        "rope_parameters is one dict; expected one dict in it for each of full_attention, sliding_attention",
    ),
    (
        {"model_type": "esm", "position_embedding_type": "rotary", "rope_scaling": {"type": "linear", "factor": 2.0}},
        ValueError,
        "rope_parameters holds type, factor, but this model_type reads no such dict; expected rope_theta beside it",
    ),
    (
        {"model_type": "moonshine", "hidden_size": 64, "encoder_num_attention_heads": 4},
        ValueError,
        "encoder_num_attention_heads is 4 and decoder_num_attention_heads 8; expected the same number",
    ),
    (
        {**LLAMA, "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}},
        ValueError,
        "rope_parameters['mrope_section'] is [16, 24, 24], which sums to 64; expected 8, the number of frequencies",
    ),
    (
        {**LLAMA, "rope_scaling": {"mrope_section": []}},
        ValueError,
        "rope_parameters['mrope_section'] is [], which sums",
    ),
    (
        {**OTHER, "rope_scaling": {"type": "xdrope", "alpha": 2.0, "xdrope_section": [4, 4], "mrope_section": [6, 2]}},
        ValueError,
        "rope_parameters['xdrope_section'] is [4, 4], but rope_parameters['mrope_section'] is [6, 2]; expected one of",
    ),
    # what is not read
    (
        {"model_type": "new", "head_dim": 64, "rope_theta": 5e5, "rope_scaling": {"type": "ntk", "factor": 2.0}},
        ValueError,
        "the scheme 'ntk' of 'new' is not that of rfrope",
    ),
    (
        {"model_type": "step3p5", "rope_theta": [5e6, 1e4], "head_dim": 128, "swa_rope_theta": 1e4},
        TypeError,
        "rope_theta is [5000000.0, 10000.0]; expected a positive number",
    ),
    (
        {"model_type": "mpt", "d_model": 64, "n_heads": 4, "attn_config": {"rope": True, "rope_theta": 10000}},
        ValueError,
        "attn_config has a RoPE, which is not read for 'mpt'; expected rope_theta",
    ),
    (
        {"model_type": "chatglm", "rope_ratio": 500, "kv_channels": 128},
        ValueError,
        "rope_ratio is 500, of ChatGLM's own",
    ),
    (
        {**OTHER, "head_dim": None, "qk_rope_head_dim": 64, "rope_parameters": {"partial_rotary_factor": 0.5}},
        ValueError,
        "qk_nope_head_dim is missing; expected it or head_dim beside qk_rope_head_dim and partial_rotary_factor",
    ),
    # what is not a config
    ({**LLAMA, "model_type": ["llama"]}, TypeError, "model_type is ['llama']; expected a name"),
    ({"text_config": {"model_type": 3}}, TypeError, "text_config: model_type is 3; expected a name"),
    (
        {"model_type": "gptj", "n_embd": 8, "n_head": 16, "rotary_dim": 4},
        ValueError,
        "hidden_size is 8, num_attention_heads 16; expected at least one feature a head",
    ),
    (
        {"model_type": "gptj", "n_embd": 8, "n_head": 8, "rotary_dim": 4},  # one feature a head
        ValueError,
        "rotary_dim is 4; expected at most head_dim = 1",
    ),
    ({**LLAMA, "rope_scaling": {3: {}}}, TypeError, "rope_scaling holds the key 3; expected names of parameters"),
    (
        {**LLAMA, "rope_theta": 5e-324},
        ValueError,
        "rope_theta is 5e-324; expected a positive number from 2**-100 to 2**100",
    ),
    (CYCLE, ValueError, "text_config.text_config.text_con: parts are nested deeper than 8"),
    (DEEP, ValueError, "parts are nested deeper than 8"),
    (Listed(), TypeError, "config.to_dict() gave a list; expected a dict"),
    (Listed, TypeError, "expected a dict, the path of a config.json, or a config object"),
    (
        {"model_type": "gemma4_text", "rope_theta": 1e4},
        ValueError,
        "rope_parameters is one dict; expected one dict in it for each of full_attention, sliding_attention",
    ),
    (
        {"model_type": "pixtral", "head_dim": 66},
        ValueError,
        "head_dim is 66; expected a multiple of 4: two axes, and two features a block",
    ),
    ({"model_type": "pixtral", "rope_theta": -1}, ValueError, "rope_theta is -1; expected a positive finite number"),
    ([LLAMA], TypeError, "expected a dict, the path of a config.json, or a config object"),
    (None, TypeError, "config is None; expected a dict, the path of a config.json, or a config object"),
    (7, TypeError, "config is 7; expected a dict"),
]


@pytest.mark.parametrize("index", range(len(BAD)))
def test_bad_config(index):
    config, error, message = BAD[index]
    with pytest.raises(error) as caught:
        from_config(config)
    assert message in str(caught.value)


@pytest.mark.parametrize("seq_len", [0, -1, True])
def test_bad_length(seq_len):
    with pytest.raises(ValueError, match="seq_len is"):
        from_config(LLAMA, seq_len=seq_len)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not valid JSON"),
        ("{", "is not valid JSON"),
        ("\udcff", "is not valid JSON"),
        ("[" * 100_000, "is not valid JSON"),
        (
            '{"model_type": "llama", "rope_theta": 1e4, "rope_theta": 5e5}',
            "is not valid JSON ('rope_theta' occurs twice",
        ),
        ("[1, 2]", "holds a list; expected a model's config, which is an object"),
        ("3", "holds a int; expected a model's config"),
        ("{}", "describes no RoPE"),
        ('{"model_type": "llama", "head_dim": -2}', "head_dim is -2; expected a whole number from 1"),
        ('{"text_config": {"rope_theta": 1}}', "text_config: head_dim is missing"),
    ],
)
def test_bad_files(text, message, tmp_path):
    path = tmp_path / "config.json"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(ValueError, match="^" + str(path).replace("\\", "\\\\")) as caught:
        from_config(path)
    assert message in str(caught.value)


READERS = {
    "from_config": from_config,
    "compare": models.compare,
    "audit": lambda path: models.audit(np.ones(4), path),
    "write": lambda path: exports.write("new.json", rfrope.Rope(np.ones(4), context=8), "vllm", model=path),
}


@pytest.mark.parametrize("reader", READERS)
def test_missing_files(reader, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    hint = r" \(for Llama-3.1-8B: the config.json of its repository\)"
    for path, more in (("none.json", ""), (tmp_path, ""), ("meta-llama/Llama-3.1-8B", hint), ("./a/b", "")):
        with pytest.raises(FileNotFoundError, match=f"nothing is downloaded.* folder that it lies in{more}$") as caught:
            READERS[reader](path)
        assert str(caught.value).startswith(f"{path}")
        assert "Errno" not in str(caught.value)


# -- the table of defaults ---------------------------------------------------------------------------------------------


def test_the_table_of_defaults_is_well_formed():
    table = model_types()
    known = {
        *("rope_parameters", "head_dim", "hidden_size", "num_attention_heads", "max_position_embeddings"),
        *("global_head_dim", "needs", "axial", "partial", "beside", "whole"),
        *("qk_rope_head_dim", "qk_nope_head_dim", "swa", "names", "quotient", "alike", "dict", "window"),
    }
    pairing = {"pairing", "out_pairing", "rotated", "pairing_by", "pairing_note"}
    peculiar = {
        "rope": False,
        "null_base": True,
        "sections": ("own", "interleaved"),
        "scaled": "everywhere",
        "ntk": "own",
        "inner_base": True,
        "negated": True,
        "original": True,
    }
    engines = {  # the rules read no other
        "transformers": {"su"},
        "vLLM": set(),
        "SGLang": {"partial"},
        "llama.cpp": {"factors", "reordered"},
        "MLX-LM": {"rope_theta", "rope_parameters", "schemes"},
        "TensorRT-LLM": {"schemes"},
    }
    for name, entry in table.items():
        assert name
        assert set(entry) <= known | pairing | set(peculiar) | {"source", "engines"}
        assert set(entry.get("names", {})) <= set(rfrope.models.values.NAMES)
        assert all(set(own) <= engines[engine] for engine, own in entry.get("engines", {}).items())
        for key in set(peculiar) & set(entry):
            assert entry[key] in (peculiar[key] if isinstance(peculiar[key], tuple) else (peculiar[key],))
        if not has_defaults(entry):
            assert set(entry) & (set(peculiar) | {"source"})
            continue
        assert entry.get("axial", "halves") in ("halves", "alternating", "turns", "unknown")
        unknown = entry.get("axial") == "unknown" and set(entry) - pairing == {"axial"}
        assert "rope_parameters" in entry or unknown


def test_the_table_of_defaults_cannot_be_changed():
    with pytest.raises(TypeError):
        model_types()["llama"] = {}
    with pytest.raises(TypeError):
        model_types()["apertus"]["rope_parameters"]["factor"] = 99.0
    with pytest.raises(AttributeError):
        model_types()["cosmos3_edge_text"]["rope_parameters"]["mrope_section"].append(1)


@pytest.mark.parametrize("name", ["llama", "gemma3_text", "deepseek_v3"])
def test_what_is_known_of_a_model_type_cannot_be_written_to(name):
    """What all callers share, all the way down."""
    shared = [value for value in known(name).values() if hasattr(value, "items")]
    assert shared
    for held in shared:
        shared += [value for value in held.values() if hasattr(value, "items")]
        with pytest.raises(TypeError):
            held["another"] = 1
