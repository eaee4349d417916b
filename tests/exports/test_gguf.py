"""Copies of GGUF files with other divisors: what changes, what stays bit for bit, and what is refused."""

from __future__ import annotations

import logging
import os
import types
from dataclasses import replace

import numpy as np
import pytest
import tiny_llama
from ropes import KINDS

from rfrope import Rope, exports
from rfrope.exports import gguf as exporting_gguf

gguf = pytest.importorskip("gguf", reason="gguf is not installed")
ROPE = KINDS["plain"](1)
OLD = {"rope_freqs.weight": np.full(8, 7.0, np.float32)}


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "model.gguf"
    held = tiny_llama.weights() | OLD
    old = {"scaling__type": "yarn", "scaling__factor": 4.0, "scaling__yarn_log_multiplier": 0.1, "scale_linear": 2.0}
    tiny_llama.write(path, held, **old)
    return path


def fields(path):
    return {name: field.contents() for name, field in gguf.GGUFReader(path).fields.items()}


def tensors(path):
    return {one.name: one for one in gguf.GGUFReader(path).tensors}


def test_what_changes_and_what_stays(model, tmp_path):
    new = tmp_path / "new.gguf"
    exports.write(new, ROPE, "llama.cpp", model=model, base=5e5)
    told, before, after = exports.export(ROPE, "llama.cpp", base=5e5), fields(model), fields(new)
    keys = {name for name in before if not name.startswith("GGUF.")}
    dropped = {f"llama.rope.{key}" for key in ("scaling.factor", "scaling.yarn_log_multiplier", "scale_linear")}
    assert dropped < keys
    assert {name for name in after if not name.startswith("GGUF.")} == (keys - dropped) | set(told["keys"])
    for name in keys - dropped - set(told["keys"]):
        assert after[name] == before[name], name
    for name, value in told["keys"].items():
        assert after[name] == (np.float32(value) if isinstance(value, float) else value)
    old, held = tensors(model), tensors(new)
    assert set(held) == set(old)
    assert np.array_equal(held["rope_freqs.weight"].data, told["tensors"]["rope_freqs.weight"])
    for name in set(old) - set(OLD):
        assert held[name].tensor_type == old[name].tensor_type
        assert np.array_equal(held[name].data, old[name].data)
    assert sorted(os.listdir(tmp_path)) == ["model.gguf", "new.gguf"]


def test_a_copy_in_place_and_one_of_a_copy(model, tmp_path):
    new = tmp_path / "new.gguf"
    exports.write(new, ROPE, "llama.cpp", model=model)
    exports.write(model, ROPE, "llama.cpp", model=model, overwrite=True)
    assert model.read_bytes() == new.read_bytes()
    exports.write(new, ROPE, "llama.cpp", model=new, overwrite=True)
    assert model.read_bytes() == new.read_bytes()


def test_quantised_weights_and_an_alignment_of_its_own(tmp_path):
    path, new = tmp_path / "model.gguf", tmp_path / "new.gguf"
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_custom_alignment(64)
    writer.add_embedding_length(32)
    writer.add_head_count(2)
    writer.add_array("llama.some.array", [1.5, 2.5])
    values = np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)
    packed = gguf.quantize(values, gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("quantised.weight", packed, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("half.weight", values.astype(np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    exports.write(new, ROPE, "llama.cpp", model=path)
    held = tensors(new)
    assert held["quantised.weight"].tensor_type == gguf.GGMLQuantizationType.Q8_0
    assert np.array_equal(held["quantised.weight"].data, packed)
    assert np.array_equal(held["half.weight"].data, values.astype(np.float16))
    assert list(held)[-1] == "rope_freqs.weight"
    assert fields(new)["general.alignment"] == 64
    assert all(one.data_offset % 64 == 0 for one in held.values())
    assert fields(new)["llama.some.array"] == [1.5, 2.5]


def test_phi3_gets_both_lists_alike(tmp_path):
    path, new = tmp_path / "model.gguf", tmp_path / "new.gguf"
    old = {f"rope_factors_{one}.weight": np.ones(8, np.float32) for one in ("long", "short")}
    tiny_llama.write(path, old, architecture="phi3")
    exports.write(new, ROPE, "llama.cpp", model=path)
    held = tensors(new)
    assert np.array_equal(held["rope_factors_long.weight"].data, held["rope_factors_short.weight"].data)
    assert fields(new)["phi3.rope.scaling.original_context_length"] == 300
    with pytest.raises(ValueError, match="phi3 pairs halves, the Rope 'interleaved'"):
        exports.write(new, replace(ROPE, pairing="interleaved"), "llama.cpp", model=path, overwrite=True)


@pytest.mark.parametrize("kept", [0, 3, 24, 200, 4000, -1])
def test_truncated_files(model, tmp_path, kept):
    whole = model.read_bytes()
    model.write_bytes(whole[: kept if kept >= 0 else len(whole) - 64])
    with pytest.raises(ValueError, match=r"model.gguf (is not a GGUF, or damaged|is truncated)"):
        exports.write(tmp_path / "new.gguf", ROPE, "llama.cpp", model=model)
    assert os.listdir(tmp_path) == ["model.gguf"]


@pytest.mark.parametrize(("held", "begins"), [(4, 0), (8, 60)])
def test_a_reader_that_gives_what_there_is_of_a_tensor(held, begins, tmp_path):
    """As NumPy's maps of files do: too few numbers, or numbers beyond the end."""
    path = tmp_path / "model.gguf"
    path.write_bytes(bytes(64))
    tensor = types.SimpleNamespace(data=np.zeros(held, np.uint8), n_bytes=8, data_offset=begins)
    library = types.SimpleNamespace(GGUFReader=lambda file: types.SimpleNamespace(tensors=[tensor]))
    with pytest.raises(ValueError, match=r"model.gguf is truncated; expected a whole GGUF"):
        exporting_gguf._read(library, str(path))


def refused(path, message, rope=ROPE, **options):
    before = sorted(os.listdir(path.parent))
    with pytest.raises(ValueError, match=message):
        exports.write(path.parent / "new.gguf", rope, "llama.cpp", model=path, **options)
    assert sorted(os.listdir(path.parent)) == before


def test_files_that_the_tensor_is_not_for(model, tmp_path):
    refused(model, "is of the architecture 'llama', the export for 'gemma4'; expected architecture='llama'",
            KINDS["no factor"](1), architecture="gemma4")  # fmt: skip
    refused(model, "turns 16 features of a head, the Rope 8", Rope(np.ones(4), context=8))
    qwen = tmp_path / "qwen.gguf"
    tiny_llama.write(qwen, tiny_llama.weights(), architecture="qwen3")
    refused(
        qwen, "architecture is 'qwen3', whose loader is not known to read divisors, and refuses what it does not read"
    )
    text = tmp_path / "text.gguf"
    text.write_text("precious " * 100)
    refused(text, "is not a GGUF, or damaged")
    with pytest.raises(FileNotFoundError, match=r"^[^[].*nowhere\.gguf: there is no such file; expected the GGUF"):
        exports.write(tmp_path / "new.gguf", ROPE, "llama.cpp", model=tmp_path / "nowhere.gguf")


def test_one_part_of_several(tmp_path):
    path = tmp_path / "model-00001-of-00002.gguf"
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_uint16("split.count", 2)
    writer.add_embedding_length(32)
    writer.add_head_count(2)
    writer.add_tensor("some.weight", np.ones(32, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    refused(path, "is one part of several; expected a whole GGUF")


def test_a_write_that_fails_leaves_nothing(model, tmp_path, monkeypatch):
    def fail(*arguments, **options):
        raise OSError(28, "No space left on device")

    before = model.read_bytes()
    monkeypatch.setattr(gguf.GGUFWriter, "write_tensor_data", fail)
    for path, overwrite in ((tmp_path / "new.gguf", False), (model, True)):
        with pytest.raises(OSError, match="No space left on device"):
            exports.write(path, ROPE, "llama.cpp", model=model, overwrite=overwrite)
    assert os.listdir(tmp_path) == ["model.gguf"]
    assert model.read_bytes() == before


def test_how_much_the_package_says_is_as_it_was(model, tmp_path):
    """Nothing about a file that is copied, and afterwards what its user had asked for."""
    logger = logging.getLogger("gguf.gguf_writer")
    before = logger.level
    try:
        logger.setLevel(logging.DEBUG)
        test_what_changes_and_what_stays(model, tmp_path)
        assert logger.level == logging.DEBUG
    finally:
        logger.setLevel(before)
