"""GGUF files: what llama.cpp makes of their keys and divisors, beside the config that they were converted from."""

import contextlib

import gguf_files
import numpy as np
import pytest
from conftest import rows

import rfrope
from rfrope.data.model_types import read_table
from rfrope.models import check, list_layers

KEYS = {"block_count": 6, "context_length": 8192, "embedding_length": 64, "attention.head_count": 4}
KEYS |= {"attention.head_count_kv": 2, "rope.freq_base": 5e5}
CONFIG = {"num_hidden_layers": 6, "max_position_embeddings": 8192, "hidden_size": 64, "num_attention_heads": 4}
CONFIG |= {"num_key_value_heads": 2, "rope_theta": 5e5}
YARN_KEYS = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 2048}
# a GGUF, and its model's config
ALIKE = {name: told for name, *told in rows("models/gguf.json", "alike")}


@pytest.fixture
def made(tmp_path):
    path = tmp_path / "model.gguf"
    return lambda architecture, keys, tensors=None: gguf_files.write(path, architecture, KEYS | keys, tensors)


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


# a GGUF beside a llama or a qwen2 with that config, and what is said
WRONG = {name: told for name, *told in rows("models/gguf.json", "wrong")}
HEADS = {"blk.0.attn_k.weight": np.zeros((16, 64))}
WRONG["heads"] = ["llama", {}, HEADS, {}, "wrong: blk.0.attn_k.weight has 16 rows; expe"]


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


def test_what_to_type_for_a_factor(made):
    path = made("qwen2", {"rope.scaling.type": "linear", "rope.scaling.factor": 2.0})
    scaled = CONFIG | {"model_type": "qwen2", "rope_scaling": {"rope_type": "linear", "factor": 4.0}}
    assert check(scaled, against=path).findings[0].fix == "--override-kv qwen2.rope.scaling.factor=float:4"


@pytest.mark.parametrize("kind", [kind for kind in gguf_files.KINDS if kind[0] in "uif"])
def test_numbers_of_every_type_are_read(made, kind):
    base = np.dtype(kind).type(100)
    for value in (base, [base] * 6):
        (rope,) = rfrope.from_config(made("llama", {"rope.freq_base": value}))
        np.testing.assert_allclose(rope.frequencies, rfrope.geometric(8, base=100.0), rtol=1e-12)


def test_a_base_that_is_missing_is_said(tmp_path):
    keys = {key: value for key, value in KEYS.items() if key != "rope.freq_base"}
    path = gguf_files.write(tmp_path / "model.gguf", "qwen2", keys)
    assert "rope.freq_base is missing: llama.cpp takes 10000." in str(check(path))
    found = check(CONFIG | {"model_type": "qwen2"}, against=path).findings[0]
    assert found.fix == "--override-kv qwen2.rope.freq_base=float:500000"


def test_a_longer_text_is_typed_as_flags(made):
    found = check(made("qwen2", {}), context=32768).findings[0]
    assert found.fix == "-c 32768 --rope-scaling yarn --rope-freq-base 500000 --rope-scale 4 --yarn-orig-ctx 8192"


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
    about = read_table("gguf")["architectures"]
    assert len(about) > 70
    assert {one["pairing"] for one in about.values()} == {"half", "interleaved"}
    assert all(one["pairing"] == "interleaved" for one in about.values() if one.get("reordered"))
