"""Copies of GGUF files with other divisors: what changes, what stays bit for bit, and what is refused."""

import logging
import os
import sys
import types
from dataclasses import replace

import numpy as np
import pytest
import tiny_llama
from ropes import KINDS

from rfrope import Rope, engines, from_config
from rfrope.engines.writing import files as exporting_gguf

gguf = pytest.importorskip("gguf", reason="gguf is not installed")
ROPE = KINDS["plain"](1)
OLD = {"rope_freqs.weight": np.full(8, 7.0, np.float32)}


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "model.gguf"
    old = {"scaling__type": "yarn", "scaling__factor": 4.0, "scaling__yarn_log_multiplier": 0.1, "scale_linear": 2.0}
    tiny_llama.write(path, tiny_llama.weights() | OLD, **old)
    return path


def write_by_hand(path, tensors, add=lambda writer: None, *, order="LITTLE", width=32, heads=2, turned=None):
    """Write a GGUF of a llama with 16 features in a head, and no more than these tensors and keys."""
    writer = gguf.GGUFWriter(str(path), "llama", endianess=gguf.GGUFEndian[order])
    add(writer)
    keys = {"embedding_length": width, "attention.head_count": heads, "rope.dimension_count": turned}
    adders = {int: writer.add_uint32, list: writer.add_array, str: writer.add_string}
    for key, value in keys.items():
        if value is not None:
            adders[type(value)](f"llama.{key}", value)
    for name, (values, kind) in tensors.items():
        writer.add_tensor(name, values, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def fields(path):
    held = {name: field.contents() for name, field in gguf.GGUFReader(path).fields.items()}
    return {name: value for name, value in held.items() if not name.startswith("GGUF.")}


def tensors(path):
    return {one.name: one for one in gguf.GGUFReader(path).tensors}


@pytest.mark.parametrize("level", [logging.NOTSET, logging.DEBUG])
def test_what_changes_and_what_stays(model, tmp_path, level, monkeypatch):
    """The package says nothing of a file that is copied, and afterwards as much as its user had asked for."""
    monkeypatch.setattr(logging.getLogger("gguf.gguf_writer"), "level", level)
    new = tmp_path / "new.gguf"
    engines.write(new, ROPE, "llama.cpp", model=model, base=5e5)
    made, before, after = engines.export(ROPE, "llama.cpp", base=5e5), fields(model), fields(new)
    dropped = {f"llama.rope.{key}" for key in ("scaling.factor", "scaling.yarn_log_multiplier", "scale_linear")}
    assert dropped < set(before)
    assert set(after) == (set(before) - dropped) | set(made["keys"])
    for name, value in after.items():
        written = made["keys"].get(name, before.get(name))
        assert value == (np.float32(written) if isinstance(written, float) else written), name
    old, held = tensors(model), tensors(new)
    assert np.array_equal(held.pop("rope_freqs.weight").data, made["tensors"]["rope_freqs.weight"])
    assert set(held) == set(old) - set(OLD)
    for name, one in held.items():
        assert one.tensor_type == old[name].tensor_type
        assert np.array_equal(one.data, old[name].data)
    assert logging.getLogger("gguf.gguf_writer").level == level
    engines.write(model, ROPE, "llama.cpp", model=model, base=5e5, overwrite=True)  # in place
    assert model.read_bytes() == new.read_bytes()
    engines.write(new, ROPE, "llama.cpp", model=new, base=5e5, overwrite=True)
    assert model.read_bytes() == new.read_bytes()
    assert sorted(os.listdir(tmp_path)) == ["model.gguf", "new.gguf"]


def test_quantised_weights_and_an_alignment_of_its_own(tmp_path):
    path, new = tmp_path / "model.gguf", tmp_path / "new.gguf"
    values, kind = np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32), gguf.GGMLQuantizationType.Q8_0

    def add(writer):
        writer.add_custom_alignment(64)
        writer.add_array("llama.some.array", [1.5, 2.5])

    old = {"quantised.weight": (gguf.quantize(values, kind), kind), "half.weight": (values.astype(np.float16), None)}
    write_by_hand(path, old, add)
    engines.write(new, ROPE, "llama.cpp", model=path)
    held = tensors(new)
    assert held["quantised.weight"].tensor_type == kind
    assert all(np.array_equal(held[name].data, data) for name, (data, _) in old.items())
    assert list(held)[-1] == "rope_freqs.weight"
    assert all(one.data_offset % 64 == 0 for one in held.values())
    assert (fields(new)["general.alignment"], fields(new)["llama.some.array"]) == (64, [1.5, 2.5])


def test_phi3_gets_both_lists_alike(tmp_path):
    path, new = tmp_path / "model.gguf", tmp_path / "new.gguf"
    old = {f"rope_factors_{one}.weight": np.ones(8, np.float32) for one in ("long", "short")}
    tiny_llama.write(path, old, architecture="phi3")
    engines.write(new, ROPE, "llama.cpp", model=path)
    long, short = (tensors(new)[name].data for name in old)
    assert np.array_equal(long, short)
    assert fields(new)["phi3.rope.scaling.original_context_length"] == 300
    refused(path, "phi3 pairs halves, and the Rope is 'interleaved'", replace(ROPE, pairing="interleaved"))


def refused(path, message, rope=ROPE, **options):
    before = sorted(os.listdir(path.parent))
    with pytest.raises(ValueError, match=message):
        engines.write(path.parent / "other.gguf", rope, "llama.cpp", model=path, **options)
    assert sorted(os.listdir(path.parent)) == before


@pytest.mark.parametrize("kept", [0, 24, 4000, -64])
def test_truncated_files(model, kept):
    model.write_bytes(model.read_bytes()[:kept])
    refused(model, r"model.gguf (is not a GGUF, or is damaged|is truncated)")


@pytest.mark.parametrize(("held", "begins"), [(4, 0), (8, 60)])
def test_a_reader_that_gives_what_there_is_of_a_tensor(held, begins, tmp_path):
    """As NumPy's maps of files do: too few numbers, or numbers beyond the end."""
    path = tmp_path / "model.gguf"
    path.write_bytes(bytes(64))
    tensor = types.SimpleNamespace(data=np.zeros(held, np.uint8), n_bytes=8, data_offset=begins)
    library = types.SimpleNamespace(GGUFReader=lambda file: types.SimpleNamespace(tensors=[tensor]))
    with pytest.raises(ValueError, match=r"model.gguf is truncated; expected a whole GGUF"):
        exporting_gguf._read(library, str(path))


def test_files_that_the_tensor_is_not_for(model, tmp_path):
    other = "is of architecture 'llama', not 'gemma4'; expected architecture='llama'"
    refused(model, other, KINDS["no factor"](1), architecture="gemma4")
    refused(model, "turns 16 features of a head, and the Rope turns 8", Rope(np.ones(4), context=8))
    part = tmp_path / "part.gguf"
    tiny_llama.write(part, tiny_llama.weights(), n_rot=8)  # half of a head
    refused(part, "turns 8 features of a head, and the Rope turns 16")
    qwen, split, text = (tmp_path / f"{name}.gguf" for name in ("qwen", "split", "text"))
    tiny_llama.write(qwen, tiny_llama.weights(), architecture="qwen3")
    refused(qwen, "architecture is 'qwen3', whose loader is not known to read divisors, and refuses unknown tensors")
    part = {"some.weight": (np.ones(32, np.float32), None)}
    write_by_hand(split, part, lambda writer: writer.add_uint16("split.count", 2))
    refused(split, "is one part of several; expected a whole GGUF")
    text.write_text("precious " * 100)
    refused(text, "is not a GGUF, or is damaged")
    with pytest.raises(FileNotFoundError, match=r"^[^[].*nowhere\.gguf: there is no such file; expected the GGUF"):
        engines.write(tmp_path / "new.gguf", ROPE, "llama.cpp", model=tmp_path / "nowhere.gguf")


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        *(({key: value}, rf"has no llama\.{name} of its own, or one for each layer; expected one for the whole model")
          for key, name in (("width", "embedding_length"), ("heads", "attention.head_count"))
          for value in (None, [2, 2])),
        *(({"turned": value}, rf"turns {shown} features of a head, and the Rope turns 16; expected the same")
          for value, shown in ((7, 7), ("16", 16), ([16, 16], r"\[16, 16\]"))),
    ],
)  # fmt: skip
def test_files_without_a_width_for_the_whole_model(tmp_path, keys, said):
    path = tmp_path / "bare.gguf"
    write_by_hand(path, {"some.weight": (np.ones(32, np.float32), None)}, **keys)
    refused(path, rf"^\S*bare\.gguf {said}$")


@pytest.mark.parametrize(("keys", "kind"), [({"turned": 0}, "f4"), ({}, "f2"), ({"order": "BIG"}, "f4")])
def test_files_that_are_copied_though_from_config_refuses_them(tmp_path, keys, kind):
    path, new = tmp_path / "model.gguf", tmp_path / "new.gguf"
    divisors = {} if "order" in keys else {"rope_freqs.weight": (np.ones(8, kind), None)}
    write_by_hand(path, {"some.weight": (np.ones(32, np.float32), None)} | divisors, **keys)
    with pytest.raises(ValueError, match="expected"):
        from_config(path)
    engines.write(new, ROPE, "llama.cpp", model=path)
    assert set(tensors(new)) == {"some.weight", "rope_freqs.weight"}
    assert fields(new)["llama.rope.dimension_count"] == 16


def test_a_write_that_fails_leaves_nothing(model, tmp_path, monkeypatch):
    def fail(*arguments, **options):
        raise OSError(28, "No space left on device")

    before = model.read_bytes()
    monkeypatch.setattr(gguf.GGUFWriter, "write_tensor_data", fail)
    for path, overwrite in ((tmp_path / "new.gguf", False), (model, True)):
        with pytest.raises(OSError, match="No space left on device"):
            engines.write(path, ROPE, "llama.cpp", model=model, overwrite=overwrite)
    assert os.listdir(tmp_path) == ["model.gguf"]
    assert model.read_bytes() == before


def test_an_export_is_read_back_without_the_package(model, tmp_path, monkeypatch):
    """As llama.cpp reads it: divisors on the ladder, and the attention factor."""
    new = tmp_path / "new.gguf"
    engines.write(new, replace(ROPE, attention_factor=1.25), "llama.cpp", model=model, base=5e5)
    monkeypatch.setitem(sys.modules, "gguf", None)
    (found,) = from_config(new)
    np.testing.assert_allclose(found.frequencies, ROPE.frequencies, rtol=1e-6)
    assert (found.attention_factor, found.pairing) == (1.25, "interleaved")
