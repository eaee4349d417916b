"""What `from_config` finds where, in published configurations and in made-up ones, and what it says of bad ones."""

from __future__ import annotations

import json

import numpy as np
import pytest
from published import BY_MODEL, GEMMA4_ROPE, Place, lists, llama3

import rfrope
from rfrope import from_config

KEY = "original_max_position_embeddings"
OTHER = {"model_type": "made_up", "rope_theta": 1e4, "head_dim": 16, "max_position_embeddings": 2048}
LLAMA = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "max_position_embeddings": 2048}
BOTH = ["sliding_attention", "full_attention"]


def place(part: rfrope.Rope) -> Place:
    told, name = part.source.rope_parameters, part.source.model.name
    return Place(name, told["rope_type"], part.head_dim, len(part.frequencies), told["rope_theta"], part.context)


def default(head_dim: int, n_blocks: int, theta: float, context: int | None, name: str = "") -> Place:
    return Place(name, "default", head_dim, n_blocks, theta, context)


# -- published configurations ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", BY_MODEL)
def test_published(model):
    before = json.dumps(BY_MODEL[model].config)
    found = from_config(BY_MODEL[model].config)
    assert json.dumps(BY_MODEL[model].config) == before
    assert tuple(place(part) for part in found) == BY_MODEL[model].places
    for part in found:
        blocks, told = len(part.frequencies), part.source.rope_parameters
        assert np.all(np.isfinite(part.frequencies))
        assert part.rotary_dim == 2 * blocks <= part.head_dim
        if told["rope_type"] == "default":
            np.testing.assert_allclose(
                part.frequencies, told["rope_theta"] ** (-np.arange(blocks) / blocks), rtol=1e-14
            )
        json.dumps(told)


@pytest.mark.parametrize("model", ["Gemma 3 4B", "Qwen2-VL 7B"])
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


@pytest.mark.parametrize("model", ["Gemma 3 4B", "Qwen2-VL 7B"])
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


# -- where things stand ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (LLAMA, default(16, 8, 1e4, 2048)),
        ({**LLAMA, "rope_theta": 5e5}, default(16, 8, 5e5, 2048)),
        # the dict counts, as in transformers
        ({**LLAMA, "rope_theta": 7.0, "rope_parameters": {"rope_theta": 5e5}}, default(16, 8, 5e5, 2048)),
        ({**LLAMA, "rope_scaling": llama3(8.0), "rope_parameters": {"rope_theta": 5e5, **llama3(8.0)}},
         Place("", "llama3", 16, 8, 5e5, 2048)),
        ({**LLAMA, "head_dim": 32}, default(32, 16, 1e4, 2048)),
        ({**LLAMA, "head_dim": None}, default(16, 8, 1e4, 2048)),
        # what a model's class passes over is passed over, and what other models have is read
        ({**LLAMA, "partial_rotary_factor": 0.5}, default(16, 8, 1e4, 2048)),
        ({**LLAMA, "model_type": "phi", "partial_rotary_factor": 0.5}, default(16, 4, 1e4, 2048)),
        ({**LLAMA, "partial_rotary_factor": 0.5, "rope_scaling": {"type": "linear", "factor": 2.0}},
         Place("", "linear", 16, 4, 1e4, 2048)),
        ({**OTHER, "partial_rotary_factor": 0.5}, default(16, 4, 1e4, 2048)),
        ({**OTHER, "rope_pct": 0.25}, default(16, 2, 1e4, 2048)),
        ({**OTHER, "rotary_dim": 8}, default(16, 4, 1e4, 2048)),
        ({**OTHER, "rotary_dim": 8, "rope_parameters": {"rope_theta": 1e4}}, default(16, 4, 1e4, 2048)),
        ({"model_type": "minimax", "head_dim": 128, "rotary_dim": 64}, default(128, 64, 1e6, 131072)),
        ({"model_type": "minimax_m2", "head_dim": 128, "rotary_dim": 64}, default(128, 32, 5e6, 196608)),
        ({"model_type": "bailing_hybrid", "qk_rope_head_dim": 64, "head_dim": 128, "partial_rotary_factor": 0.5},
         default(64, 32, 6e6, 262144)),
        # null is what follows from the rest, whatever the type has
        ({"model_type": "ernie4_5", "hidden_size": 512, "num_attention_heads": 8, "head_dim": None},
         default(64, 32, 5e5, 131072)),
        # what the class of a known type calls it, and nothing else
        ({"model_type": "moonshine", "hidden_size": 64, "encoder_num_attention_heads": 4,
          "decoder_num_attention_heads": 4}, default(16, 7, 1e4, 512)),
        ({**LLAMA, "kv_channels": 4, "n_head": 2}, default(16, 8, 1e4, 2048)),
        ({"model_type": "deepseek_v2", "head_dim": 128}, default(64, 32, 1e4, 2048)),
        # without latent attention
        ({"model_type": "deepseek_v2", "hidden_size": 1280, "num_attention_heads": 10, "qk_rope_head_dim": 0,
          "qk_nope_head_dim": 0, "use_mla": False}, default(128, 64, 1e4, 2048)),
        # what a dict lacks is not always what the type has without one
        ({"model_type": "ministral3", "rope_parameters": {"rope_type": "default"}}, default(128, 64, 1e4, 262144)),
        ({"model_type": "moonshine_streaming", "rope_parameters": {"rope_theta": 1e4}}, default(40, 20, 1e4, 4096)),
        ({"model_type": "mistral4", "hidden_size": 512, "num_attention_heads": 8},
         Place("", "yarn", 128, 32, 1e4, 1048576)),
        # latent attention saved by transformers 5
        ({"model_type": "mistral4", "qk_nope_head_dim": 64, "qk_rope_head_dim": 64,
          "rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}}, default(128, 32, 1e4, 1048576)),
        ({**OTHER, "head_dim": 32, "attention_head_dim": 8, "kv_channels": 4}, default(32, 16, 1e4, 2048)),
        ({"rope_theta": 1e4, "attention_head_dim": 8, "kv_channels": 4}, default(8, 4, 1e4, None)),
        ({"rope_theta": 1e4, "head_dim": 8, "max_seq_len": 77}, default(8, 4, 1e4, 77)),
        ({"model_type": "dbrx", "d_model": 6144, "n_heads": 48, "max_seq_len": 32768,
          "attn_config": {"clip_qkv": 8, "model_type": "", "rope_theta": 500000}}, default(128, 64, 5e5, 32768)),
        ({"model_type": "wav2vec2-conformer", "position_embeddings_type": "rotary", "rotary_embedding_base": 20000,
          "hidden_size": 1024, "num_attention_heads": 16}, default(64, 32, 2e4, None)),
        ({"model_type": "mixtral"}, default(128, 64, 1e6, 131072)),
        ({"model_type": "gpt_oss"}, Place("", "yarn", 64, 32, 150_000.0, 131072)),
        ({"model_type": "gpt_neox"}, default(96, 12, 1e4, 2048)),
        # Qwen's first, whose code is not in transformers
        ({"model_type": "qwen", "hidden_size": 4096, "kv_channels": 128, "num_attention_heads": 32,
          "rotary_emb_base": 10000, "rotary_pct": 1.0, "seq_length": 8192}, default(128, 64, 1e4, 8192)),
        ({"n_embd": 64, "n_head": 4, "n_positions": 99, "rotary_dim": 8}, default(16, 4, 1e4, 99)),
        ({"model_type": "esm", "position_embedding_type": "rotary"}, default(64, 32, 1e4, 1026)),
        # RoPEs in parts
        ({"model_type": "made_up", "llm_config": {**LLAMA, "rope_theta": 5e5}},
         default(16, 8, 5e5, 2048, "llm_config")),
        ({"thinker_config": {"language_config": LLAMA}}, default(16, 8, 1e4, 2048, "thinker_config.language_config")),
        # a top that repeats its text is not a place of its own
        ({**LLAMA, "text_config": {**LLAMA, "rope_theta": 5e5}}, default(16, 8, 5e5, 2048, "text_config")),
        ({"model_type": "blt", "rope_theta": 5e5, "patcher_config": {"model_type": "blt_patcher", "rope_theta": 1e4}},
         default(64, 32, 1e4, 8192, "patcher_config")),
        *(({**LLAMA, key: {"head_dim": 8}}, default(16, 8, 1e4, 2048))  # which are no parts
          for key in ("per_layer_config", "quantization_config", "attn_config", "linear_attn_config")),
    ],
)  # fmt: skip
def test_one_place(config, expected):
    (part,) = from_config(config)
    assert place(part) == expected


OMNI = {
    "text_config": {"model_type": "qwen2_5_omni_text", "hidden_size": 3584, "num_attention_heads": 28},
    "vision_config": {"model_type": "qwen2_5_omni_vision_encoder", "hidden_size": 1280, "num_heads": 16},
    "audio_config": {"model_type": "qwen2_5_omni_audio_encoder", "d_model": 1280},
}
LINEAR = {"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({**LLAMA, "codec_config": {"model_type": "mimi", "rope_theta": 1e4}, "quantization_config": {"head_dim": 3}},
         [default(16, 8, 1e4, 2048), default(64, 32, 1e4, 8000, "codec_config")]),
        ({"model_type": "qwen2_5_omni", "thinker_config": {"model_type": "qwen2_5_omni_thinker", **OMNI},
          "talker_config": {"model_type": "qwen2_5_omni_talker", "head_dim": 128, "rope_theta": 1000000.0}},
         [default(128, 64, 1e6, 32768, "thinker_config.text_config"),
          Place("thinker_config.vision_config", "axial", 80, 40, 1e4, None),
          default(128, 64, 1e6, 32768, "talker_config")]),
        # layers in dicts of their own
        ({**LLAMA, "rope_parameters": {"chunked_attention": LINEAR, "full_attention": None, "sliding_attention": {}}},
         [Place("chunked_attention", "linear", 16, 8, 5e5, 2048), default(16, 8, 1e4, 2048, "sliding_attention")]),
        # heads of their own for a kind of layer
        ({"model_type": "gemma4_text", "head_dim": 256, "rope_parameters": GEMMA4_ROPE, "layer_types": BOTH,
          "per_layer_config": {"01": {"head_dim": 384}}},
         [default(256, 128, 1e4, 131072, BOTH[0]), Place(BOTH[1], "proportional", 384, 192, 1e6, 131072)]),
        # a base for local layers makes two ladders of any model
        ({**LLAMA, "rope_theta": 5e5, "swa_rope_theta": 2e4, "swa_head_dim": 32},
         [default(16, 8, 5e5, 2048, "full_attention"), default(32, 16, 2e4, 2048, "sliding_attention")]),
        # ModernBERT's scaling is for both kinds of layer
        ({"model_type": "modernbert", "hidden_size": 768, "num_attention_heads": 12,
          "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
         [Place("full_attention", "linear", 64, 32, 160_000.0, 8192),
          Place("sliding_attention", "linear", 64, 32, 10_000.0, 8192)]),
    ],
)  # fmt: skip
def test_several_places(config, expected):
    found = from_config(config)
    assert sorted(place(part) for part in found) == sorted(expected)
    assert all(part.source.model.qk_head_dim == part.head_dim for part in found)


@pytest.mark.parametrize(
    ("model_type", "key", "local"),
    [("gemma3_text", "rope_theta", 1e4), ("modernbert", "global_rope_theta", 1e4), ("olmo3", "rope_theta", 7e5)],
)
def test_the_base_of_local_layers_where_only_the_other_is_told(model_type, key, local):
    bases = [part.source.rope_parameters["rope_theta"] for part in from_config({"model_type": model_type, key: 7e5})]
    assert bases == [7e5, local]


QWEN2 = {"model_type": "qwen2", "use_sliding_window": True}


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
        ({**QWEN2, "sliding_window": 64, "max_window_layers": 20}, {"sliding_attention": 64, "full_attention": None}),
        ({**QWEN2, "max_window_layers": 28, "num_hidden_layers": 28}, {"": None}),
        ({**QWEN2, "max_window_layers": 0}, {"": 4096}),
        ({"model_type": "recurrent_gemma", "attention_window_size": 64}, {"": 64}),
        ({"model_type": "openai_privacy_filter", "sliding_window": 64}, {"": 65}),  # to both sides, and itself
        ({**OTHER, "sliding_window": 64}, {"": None}),  # which layers have it is not said
        ({**OTHER, "sliding_window": 64, "layer_types": BOTH}, {"sliding_attention": 64, "full_attention": None}),
        ({**OTHER, "sliding_window": 64, "layer_types": ["linear_attention", *BOTH[:1]]}, {"": 64}),
        # layers with a RoPE of their own; half of a window of both sides is to each, and the token itself counts
        *(
            (config, {"full_attention": None, "sliding_attention": window})
            for config, window in (
                ({"model_type": "gemma3_text"}, 4096),
                ({"model_type": "gemma3_text", "sliding_window": 512}, 512),
                ({"model_type": "gemma3_text", "sliding_window": 512, "use_bidirectional_attention": True}, 257),
                ({"model_type": "modernbert"}, 65),
                ({"model_type": "modernbert", "local_attention": 32}, 17),
                ({"model_type": "modernbert-decoder", "local_attention": 32}, 16),
            )
        ),
    ],
)
def test_windows(config, windows):
    parts = from_config(config)
    assert {name: window for part in parts for name, window in part.source.model.windows.items()} == windows
    for part in parts:
        held = part.source.model.windows.values()
        assert part.source.model.window == (None if None in held else max(held))


@pytest.mark.parametrize("head_dim", [44, 98])
def test_rotary_dim_is_exact(head_dim):
    for rotary_dim in range(2, head_dim + 1, 2):
        (part,) = from_config({"rope_theta": 1e4, "head_dim": head_dim, "rotary_dim": rotary_dim})
        assert part.rotary_dim == rotary_dim
        again = rfrope.models.from_rope_parameters(part.source.rope_parameters, head_dim=head_dim)
        np.testing.assert_allclose(again.frequencies, 1e4 ** (-np.arange(0, rotary_dim, 2) / rotary_dim), rtol=1e-14)


@pytest.mark.parametrize("scheme", ["llama3", "yarn", "longrope", "su"])
def test_the_original_context_at_the_top_counts_more(scheme):
    told = {"llama3": llama3(8.0), "yarn": {"factor": 2.0}}.get(scheme, {**lists(8), "factor": 2.0})
    (part,) = from_config({**LLAMA, KEY: 256, "rope_scaling": {KEY: 512, **told, "rope_type": scheme}})
    assert part.source.rope_parameters[KEY] == 256


def test_yarn_with_lists_is_longrope():
    told = {"type": "yarn", **lists(8), "original_max_position_embeddings": 512}
    (part,) = from_config({**LLAMA, "rope_scaling": told})
    assert part.source.rope_parameters["rope_type"] == "longrope"


def test_a_length_reaches_the_scheme():
    told = {"type": "dynamic", "factor": 2.0}
    (short,), (long,) = (from_config({**LLAMA, "rope_scaling": told}, seq_len=n) for n in (2048, 8192))
    assert np.array_equal(short.frequencies, rfrope.geometric(8))
    assert long.frequencies[-1] < short.frequencies[-1]


TEXT = {"head_dim": 128, "rope_scaling": {"mrope_section": [24, 20, 20], "rope_type": "default"}}
HUNYUAN = {"type": "xdrope", "alpha": 1000.0, "factor": 1.0, "xdrope_section": [2, 2, 2, 2]}
OMNI3 = {"mrope_section": [4, 2, 2], "mrope_interleaved": True, "interleaved": True, "rope_type": "default"}
SECTIONS = [  # a config, sections, and whether they are interleaved
    ({**OTHER, "model_type": "hunyuan_vl_text", "rope_scaling": HUNYUAN}, None, False),
    ({**OTHER, "rope_scaling": OMNI3, "rope_interleave": False}, (4, 2, 2), True),
    ({"model_type": "ernie4_5_vl_moe_text", "rope_scaling": {"mrope_section": [22, 22, 20]}}, None, False),
    # their order is that of the whole where the text part has no known type
    *(({"model_type": "qwen3_vl", "text_config": TEXT | one}, (24, 20, 20), True) for one in ({}, OTHER | TEXT)),
    *(({"model_type": "hunyuan_vl", "text_config": TEXT | one}, None, False) for one in ({}, OTHER | TEXT)),
    # interleaved where the class always does it, or the config says so
    *(
        (TEXT | {"model_type": name, "rope_scaling": TEXT["rope_scaling"] | told}, (24, 20, 20), expected)
        for name, always in (("qwen3_vl_text", True), ("qwen2_vl_text", False))
        for told, expected in (
            ({}, always),
            ({"mrope_interleaved": True}, True),
            ({"mrope_interleaved": False}, always),
        )
    ),
]


@pytest.mark.parametrize("index", range(len(SECTIONS)))
def test_sections_and_their_order(index):
    config, sections, interleaved = SECTIONS[index]
    (part,) = from_config(config)
    assert (part.sections, part.interleaved) == (sections, interleaved)
    told = config.get("text_config", config)["rope_scaling"]
    assert part.source.rope_parameters["mrope_section"] == told.get("mrope_section", told.get("xdrope_section"))


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
    "config",
    [
        {"model_type": "sapiens2", "rope_theta": 100.0, "hidden_size": 1024, "num_attention_heads": 16},
        {"vision_config": {"model_type": "gemma4_vision", "rope_theta": 100.0}},
        {"model_type": "made_up", "head_dim": 64, "rope_scaling": {"type": "axial"}},
        {"vision_config": {"backbone_config": {"model_type": "made_up", "rope_theta": 1e4, "head_dim": 64}}},
    ],
)
def test_pictures_that_the_config_does_not_determine_wherever_they_are(config):
    with pytest.raises(ValueError, match=r"\(there is one, but the config alone does not give its frequencies\)"):
        from_config(config)
    if "vision_config" in config:
        (text,) = from_config({"text_config": LLAMA, **config})
        assert text.source.model.name == "text_config"


def test_xdrope_of_hunyuan():
    (part,), (plain,) = (
        from_config({**OTHER, "rope_scaling": one}, pairing="half")
        for one in (HUNYUAN, {"type": "dynamic", "alpha": 1e3})
    )
    assert part.source.rope_parameters["rope_type"] == "dynamic"
    assert np.array_equal(part.frequencies, plain.frequencies)


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
TWO = "one dict; expected one dict in it for each of full_attention, sliding_attention"
UNREAD = "which usually means a base, and is not read for model_type"
BAD = [
    ({**OTHER, "layer_types": [1.0]}, ValueError, "layer_types holds 1.0; expected"),
    ({"text_config": {**LLAMA, "rope_scaling": {"factor": 2}}}, ValueError,
     "text_config: rope_parameters holds 'factor'"),
    ({**LLAMA, "rope_scaling": "yarn"}, TypeError, "rope_scaling is 'yarn'; expected a dict or None"),
    ({**LLAMA, "rope_parameters": [1]}, TypeError, "rope_parameters is [1]; expected a dict or None"),
    ({**LLAMA, "rope_scaling": {"rope_theta": 1e4}, "rope_parameters": {"rope_theta": 5e5}}, ValueError,
     "rope_scaling['rope_theta'] is 10000.0, but rope_parameters['rope_theta'] is 500000.0; expected one of them"),
    ({"rope_theta": 1e4, "hidden_size": 64}, ValueError,
     "head_dim is missing; expected it, or hidden_size and num_attention_heads"),
    ({**LLAMA, "hidden_size": "64"}, TypeError, "hidden_size is '64'; expected a whole number"),
    ({**LLAMA, "num_attention_heads": 0}, ValueError, "num_attention_heads is 0; expected a whole number from 1"),
    ({**LLAMA, "max_position_embeddings": "2k"}, TypeError, "max_position_embeddings is '2k'; expected a whole"),
    ({"model_type": "mistral", "sliding_window": -1}, ValueError, "sliding_window is -1; expected a whole number from"),
    # the name that the config has, and the kind of layer
    ({**LLAMA, "rope_theta": "10000"}, TypeError, "rope_theta is '10000'; expected a positive number"),
    ({**OTHER, "rotary_dim": 18}, ValueError, "rotary_dim is 18; expected at most head_dim = 16"),
    ({**LLAMA, "model_type": "gpt_neox", "rotary_emb_base": -1}, ValueError, "rotary_emb_base is -1; expected a pos"),
    ({**LLAMA, "model_type": "gpt_neox", "rotary_pct": 2}, ValueError, "rotary_pct is 2; expected a number from 0 to"),
    ({"model_type": "gemma3_text", "rope_parameters": {"full_attention": {"rope_type": "yarm"}}}, ValueError,
     "full_attention: rope_parameters['rope_type'] is 'yarm'"),
    ({"text_config": {**LLAMA, "rope_theta": 5e5, "swa_rope_theta": 2e4, "rope_scaling": {"type": "linear"}}},
     ValueError, "text_config.full_attention: rope_parameters lacks factor"),
    # counts that are mistakes
    ({**LLAMA, "num_hidden_layers": 10**7}, ValueError, "num_hidden_layers is 10000000; expected a whole number from"),
    ({**OTHER, "n_layer": 2**32 - 1}, ValueError, "n_layer is 4294967295; expected a whole number from 0 to 65536"),
    ({**LLAMA, "head_dim": 2**28}, ValueError, "head_dim is 268435456; expected a whole number from 1 to 65536"),
    ({**LLAMA, "hidden_size": 2**28}, ValueError, "head_dim is 67108864; expected a whole number from 1 to 65536"),
    # contradictions
    ({"model_type": "gemma3_text", "rope_parameters": {"full_attention": {}, "rope_theta": 5e5, "factor": 3}},
     ValueError, "rope_parameters holds rope_theta, factor beside dicts of layers; expected rope_theta in each dict"),
    ({**OTHER, "rotary_emb_base": 5e5}, ValueError,
     "rope_theta is 10000.0, rotary_emb_base is 500000.0; expected one of them, or equal"),
    ({"model_type": "jetmoe", "kv_channels": 24, "head_dim": 40}, ValueError,
     "kv_channels is 24, head_dim is 40; expected one of them, or equal"),
    ({"model_type": "apertus", "rope_theta": 77777.0}, ValueError,
     f"rope_theta is 77777.0, {UNREAD} 'apertus'; expected rope_theta in"),
    ({"model_type": "gpt_neox", "rope_theta": 5e5}, ValueError, f"rope_theta is 500000.0, {UNREAD}"),
    ({"model_type": "phi", "rotary_pct": 0.25}, ValueError, "rotary_pct is 0.25, which usually means the part"),
    ({"model_type": "gemma3_text", "rope_parameters": {"rope_theta": 5e5}}, ValueError, TWO),
    ({"model_type": "gemma4_text", "rope_theta": 1e4}, ValueError, TWO),
    ({"model_type": "esm", "position_embedding_type": "rotary", "rope_scaling": {"type": "linear", "factor": 2.0}},
     ValueError, "rope_parameters holds type, factor, but this model_type reads no such dict; expected rope_theta bes"),
    ({"model_type": "moonshine", "hidden_size": 64, "encoder_num_attention_heads": 4}, ValueError,
     "encoder_num_attention_heads is 4 and decoder_num_attention_heads 8; expected the same number"),
    ({**LLAMA, "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}}, ValueError,
     "rope_parameters['mrope_section'] is [16, 24, 24], which sums to 64; expected 8, the number of frequencies"),
    ({**OTHER, "rope_scaling": {"type": "xdrope", "alpha": 2.0, "xdrope_section": [4, 4], "mrope_section": [6, 2]}},
     ValueError, "rope_parameters['xdrope_section'] is [4, 4], but rope_parameters['mrope_section'] is [6, 2]; expec"),
    # what is not read
    ({"model_type": "new", "head_dim": 64, "rope_theta": 5e5, "rope_scaling": {"type": "ntk", "factor": 2.0}},
     ValueError, "the scheme 'ntk' of 'new' is not that of rfrope"),
    ({"model_type": "step3p5", "rope_theta": [5e6, 1e4], "head_dim": 128}, ValueError,
     "partial_rotary_factors, rope_theta go with num_hidden_layers, which is missing"),
    ({"model_type": "mpt", "d_model": 64, "n_heads": 4, "attn_config": {"rope": True, "rope_theta": 10000}},
     ValueError, "attn_config has a RoPE, which is not read for 'mpt'; expected rope_theta"),
    ({"model_type": "chatglm", "rope_ratio": 500, "kv_channels": 128}, ValueError, "rope_ratio is 500, of ChatGLM's"),
    ({**OTHER, "head_dim": None, "qk_rope_head_dim": 64, "rope_parameters": {"partial_rotary_factor": 0.5}},
     ValueError, "qk_nope_head_dim is missing; expected it or head_dim beside qk_rope_head_dim and partial_rotary_f"),
    # what is not a config
    ({"text_config": {"model_type": 3}}, TypeError, "text_config: model_type is 3; expected a name"),
    ({"model_type": "gptj", "n_embd": 8, "n_head": 16, "rotary_dim": 4}, ValueError,
     "hidden_size is 8, num_attention_heads 16; expected at least one feature a head"),
    ({**LLAMA, "rope_scaling": {3: {}}}, TypeError, "rope_scaling holds the key 3; expected names of parameters"),
    (CYCLE, ValueError, "text_config.text_config.text_con: parts are nested deeper than 8"),
    (Listed(), TypeError, "config.to_dict() gave a list; expected a dict"),
    (Listed, TypeError, "expected a dict, the path of a config.json, or a config object"),
    ({"model_type": "pixtral", "head_dim": 66}, ValueError,
     "head_dim is 66; expected a multiple of 4: two axes, and two features a block"),
    ({"model_type": "pixtral", "rope_theta": -1}, ValueError, "rope_theta is -1; expected a positive finite number"),
]  # fmt: skip


@pytest.mark.parametrize("index", range(len(BAD)))
def test_bad_config(index):
    config, error, message = BAD[index]
    with pytest.raises(error) as caught:
        from_config(config)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not valid JSON"),
        ("\udcff", "is not valid JSON"),
        ("[" * 100_000, "is not valid JSON"),
        ('{"rope_theta": 1e4, "rope_theta": 5e5}', "is not valid JSON ('rope_theta' occurs twice"),
        ("[1, 2]", "holds a list; expected a model's config, which is an object"),
        ("{}", "describes no RoPE"),
        ('{"text_config": {"rope_theta": 1}}', "text_config: head_dim is missing"),
    ],
)
def test_bad_files(text, message, tmp_path):
    path = tmp_path / "config.json"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(ValueError, match="^" + str(path).replace("\\", "\\\\")) as caught:
        from_config(path)
    assert message in str(caught.value)


def test_missing_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for path in ("none.json", tmp_path, "meta-llama/Llama-3.1-8B"):
        with pytest.raises(FileNotFoundError, match=f"^{path}.*nothing is downloaded.* folder that it lies in"):
            from_config(path)
