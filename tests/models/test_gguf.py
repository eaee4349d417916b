"""GGUF files: what llama.cpp makes of their keys and divisors, beside the config that they were converted from."""

import contextlib
from typing import Any

import gguf_files
import numpy as np
import pytest

import rfrope
from rfrope.models import check, list_layers
from rfrope.models.gguf import read_architectures

ORIGINAL = "original_max_position_embeddings"
KEYS = {"block_count": 6, "context_length": 8192, "embedding_length": 64, "attention.head_count": 4}
KEYS |= {"attention.head_count_kv": 2, "rope.freq_base": 5e5}
CONFIG = {"num_hidden_layers": 6, "max_position_embeddings": 8192, "hidden_size": 64, "num_attention_heads": 4}
CONFIG |= {"num_key_value_heads": 2, "rope_theta": 5e5}
YARN = {"rope_type": "yarn", "factor": 4.0, ORIGINAL: 2048}
YARN_KEYS = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 2048}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, ORIGINAL: 1024}
SU = {
    "rope_type": "longrope",
    "short_factor": [1.0 + 0.1 * i for i in range(8)],
    "long_factor": [2.0 + i for i in range(8)],
}
(PLAIN,), (BY_PARTS,) = (
    rfrope.from_config({"model_type": "llama"} | CONFIG | more) for more in ({}, {"rope_scaling": LLAMA3})
)
LISTS = {name: SU[f"{name.rpartition('_')[2]}_factor"] for name in ("rope_factors_short", "rope_factors_long")}
GEMMA = {"head_dim": 16, "sliding_window": 512, "rope_local_base_freq": 1e4}
WINDOW = {"attention.key_length": 16, "attention.sliding_window": 512}
LATENT = {"qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 16, "kv_lora_rank": 32, "q_lora_rank": 32}
LATENT_KEYS = {"attention.key_length": 40, "attention.key_length_mla": 24, "rope.dimension_count": 8}

ALIKE: dict[str, tuple[str, dict[str, Any], dict[str, Any], str, dict[str, Any]]] = {  # a GGUF, and its model's config
    "llama": ("llama", {"rope.dimension_count": 16}, {}, "llama", {}),
    "llama 3.1": ("llama", {}, {"rope_freqs.weight": PLAIN.frequencies / BY_PARTS.frequencies}, "llama",
                  {"rope_scaling": LLAMA3}),
    "linear": ("llama", {"rope.scale_linear": 4.0}, {}, "llama",
               {"rope_scaling": {"rope_type": "linear", "factor": 4.0}}),
    "qwen2, yarn": ("qwen2", YARN_KEYS, {}, "qwen2", {"rope_scaling": YARN}),
    "yarn, factor": (
        *("qwen3", YARN_KEYS | {"rope.scaling.attn_factor": 1.0 / 1.138629436, "attention.key_length": 16}, {}),
        *("qwen3", {"head_dim": 16, "rope_scaling": YARN | {"attention_factor": 1.0}}),
    ),
    "phi3": (
        "phi3",
        {"rope.dimension_count": 16, "rope.scaling.original_context_length": 4096, "rope.scaling.attn_factor": 1.0408},
        {f"{name}.weight": value for name, value in LISTS.items()},
        *("phi3", {"rope_scaling": SU | {"attention_factor": 1.0408}, ORIGINAL: 4096}),
    ),
    "gemma 3": ("gemma3", WINDOW | {"rope.freq_base": 1e6}, {}, "gemma3_text", GEMMA | {"rope_theta": 1e6}),
    "gemma 2": ("gemma2", WINDOW, {}, "gemma2", {"head_dim": 16, "sliding_window": 512}),
    "gpt-oss": ("gpt-oss", WINDOW | YARN_KEYS, {}, "gpt_oss",
                {"head_dim": 16, "sliding_window": 512, "rope_scaling": YARN}),
    "cohere2": ("cohere2", WINDOW, {}, "cohere2", {"sliding_window": 512}),
    "smollm3": ("smollm3", {}, {}, "smollm3", {}),
    "glm4": ("glm4", {"rope.dimension_count": 8, "attention.key_length": 16}, {}, "glm4", {"head_dim": 16}),
    "qwen2-vl": ("qwen2vl", {"rope.dimension_sections": [2, 3, 3, 0]}, {}, "qwen2_vl_text",
                 {"rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]}}),
    "qwen3-next": (
        *("qwen3next", {"rope.dimension_count": 4, "attention.key_length": 16, "full_attention_interval": 3}, {}),
        *("qwen3_next", {"head_dim": 16, "partial_rotary_factor": 0.25, "full_attention_interval": 3}),
    ),
    "deepseek v3": (*("deepseek2", LATENT_KEYS | YARN_KEYS | {"rope.scaling.yarn_log_multiplier": 0.1}, {}),
                    *("deepseek_v3", LATENT | {"rope_scaling": YARN | {"mscale": 1.0, "mscale_all_dim": 1.0}})),
}  # fmt: skip


@pytest.fixture
def made(tmp_path):
    def write(architecture, keys, tensors=None, **options):
        return gguf_files.write(tmp_path / "model.gguf", architecture, KEYS | keys, tensors, **options)

    return write


@pytest.mark.parametrize("name", ALIKE)
def test_a_gguf_is_its_config(made, name):
    architecture, keys, tensors, model_type, config = ALIKE[name]
    config = CONFIG | {"model_type": model_type} | config
    path = made(architecture, keys, tensors)
    assert check(path).passed, check(path)
    for context in (None, 8192):
        assert (found := check(config, against=path, context=context)).passed, found
        assert check(path, against=config, context=context).passed
    ropes = [[kind.rope is not None for kind in list_layers(one).kinds] for one in (path, config)]
    assert sorted(ropes[0]) == sorted(ropes[1])


WRONG = {  # a GGUF beside a llama or a qwen2 with that config, and what is said
    "base lost": ("llama", {"rope.freq_base": 1e4}, {}, {},
                  "wrong: the two sides differ: rope_theta 500000.0 -> 10000.0"),
    "scheme lost": ("llama", {}, {}, {"rope_scaling": LLAMA3}, "wrong: the two sides differ: frequencies"),
    "yarn lost": ("qwen2", {}, {}, {"rope_scaling": YARN}, "wrong: the two sides differ: attention_factor"),
    "yarn's factor": ("qwen2", YARN_KEYS | {"rope.scaling.factor": 2.0}, {}, {"rope_scaling": YARN},
                      "wrong: yarn does not reach"),
    "attention factor": ("qwen2", YARN_KEYS, {}, {"rope_scaling": YARN | {"attention_factor": 1.0}},
                         "wrong: the two sides"),
    "pairing": ("command-r", {}, {}, {}, "wrong: the two sides differ: pairing half -> interleaved"),
    "part of a head": ("llama", {"rope.dimension_count": 8}, {}, {}, "wrong: rope.dimension_count is 8; expected 16"),
    "too wide": ("qwen2", {"rope.dimension_count": 32}, {}, {}, "wrong: rope.dimension_count is 32"),
    "half a head": ("qwen2", {"rope.dimension_count": 8}, {}, {}, "wrong: the two sides differ: partial_rotary_factor"),
    "heads": ("llama", {}, {"blk.0.attn_k.weight": np.zeros((16, 64))}, {},
              "wrong: blk.0.attn_k.weight has 16 rows; expe"),
    "divisors": ("llama", {}, {"rope_freqs.weight": np.ones(4)}, {}, "wrong: rope_freqs.weight has 4 divisors"),
    "divisors unread": ("qwen2", {}, {"rope_freqs.weight": np.ones(8)}, {}, "wrong: the file holds rope_freqs.weight"),
    "scheme": ("llama", {"rope.scaling.type": "ntk"}, {}, {}, "wrong: rope.scaling.type is 'ntk'"),
    "no base": ("llama", {"rope.freq_base": 0.0}, {}, {}, "wrong: rope.freq_base is 0.0; expected a positive number"),
    "architecture": ("mine", {}, {}, {}, "cannot tell: architecture 'mine' is not known"),
    "mamba": ("mamba", {}, {}, {}, "cannot tell: architecture 'mamba' is not known"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_named(made, name):
    architecture, keys, tensors, config, verdict = WRONG[name]
    model_type = "qwen2" if architecture == "qwen2" else "llama"
    path, config = made(architecture, keys, tensors), CONFIG | {"model_type": model_type} | config
    alone = check(path)
    found = check(config, against=path) if alone.passed else alone
    assert found.verdict.startswith(verdict), found


def test_rope_of_a_file_is_in_the_order_of_its_own_rows(made):
    (rope,) = rfrope.from_config(made("llama", {}))
    assert (rope.pairing, rope.source.model.layers) == ("interleaved", (0, 1, 2, 3, 4, 5))
    assert "reordered" in rope.source.model.note
    assert "reordered" in str(check(made("llama", {})))
    gguf_files.write(made("llama", {}).parent / "mmproj-F16.gguf", "clip", {})
    (rope,) = rfrope.from_config(made("llama", {}).parent, pairing="half")
    assert (rope.pairing, rope.source.model.pairing_from) == ("half", "given")


def test_a_base_that_is_missing_is_said(tmp_path):
    keys = {key: value for key, value in KEYS.items() if key != "rope.freq_base"}
    path = gguf_files.write(tmp_path / "model.gguf", "qwen2", keys)
    assert "rope.freq_base is missing: llama.cpp takes 10000." in str(check(path))
    assert check(CONFIG | {"model_type": "qwen2"}, against=path).findings[0].fix == (
        "--override-kv qwen2.rope.freq_base=float:500000"
    )


def test_a_longer_text_is_typed_as_flags(made):
    found = check(made("qwen2", {}), context=32768)
    assert found.findings[0].fix == (
        "-c 32768 --rope-scaling yarn --rope-freq-base 500000 --rope-scale 4 --yarn-orig-ctx 8192"
    )


def test_damaged_files_are_refused(made, tmp_path):
    """Cut anywhere, or with a byte changed in any place: an error, or values; nothing else."""
    whole = made("llama", YARN_KEYS, {"rope_freqs.weight": np.ones(8)}).read_bytes()
    path = tmp_path / "damaged.gguf"
    for at in range(0, len(whole), 3):
        for content in (whole[:at], whole[:at] + b"\xff" + whole[at + 1 :]):
            path.write_bytes(content)
            with contextlib.suppress(ValueError):
                assert rfrope.from_config(path)
    is_half = whole.replace(gguf_files.struct.pack("<QIQ", 8, 0, 0), gguf_files.struct.pack("<QIQ", 8, 1, 0))
    for said, content in {
        "rope_freqs.weight is of type 1; expected 0": is_half,
        "version 1": gguf_files.content("llama", KEYS, version=1),
        "not a GGUF": b"GGML" + whole[4:],
    }.items():
        path.write_bytes(content)
        with pytest.raises(ValueError, match=said):
            rfrope.from_config(path)


def test_architectures_are_stated_alike():
    about = read_architectures()
    assert len(about) > 70
    assert {one["pairing"] for one in about.values()} == {"half", "interleaved"}
    assert all(one["pairing"] == "interleaved" for one in about.values() if one.get("reordered"))
