"""``rfrope export``: what it prints, writes and refuses."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest

import rfrope
from rfrope import exports

CONFIG = {"model_type": "llama", "head_dim": 16, "rope_theta": 5e5, "max_position_embeddings": 256}


@pytest.fixture
def rope():
    return rfrope.design(rfrope.kernel("gaussian", scale=16.0), head_dim=16, context=256, rng=0)


@pytest.fixture
def source(tmp_path, rope):
    path = tmp_path / "rope.npz"
    rfrope.save(path, rope)
    return path


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG))
    return path


def test_it_prints_what_export_gives(run, source, rope):
    code, out, err = run("export", source, "--to", "vllm")
    assert (code, err) == (0, "")
    data, _, last = out.rpartition("\nRounding, ")
    assert json.loads(data) == exports.export(rope, "vllm")
    assert last == f"{exports.rounding(rope, 'vllm')}.\n"


def test_an_engine_is_found_in_any_spelling(run, source, rope):
    for spelling, engine in (("vLLM", "vllm"), ("Flash_Attn", "flash-attn"), ("TensorRT LLM", "tensorrt-llm")):
        assert run("export", source, "--to", spelling, "--json") == run("export", source, "--to", engine, "--json")
        assert exports.rounding(rope, spelling) == exports.rounding(rope, engine)
    code, _, err = run("export", source, "--to", "vlm")
    assert code == 2
    assert "argument --to: 'vlm' is unknown; did you mean 'vllm'? Expected one of 'transformers', 'vllm'" in err


@pytest.mark.parametrize("engine", [name for name in exports.names() if name != "llama.cpp"])
def test_json_of_every_engine(run, source, rope, engine):
    code, out, _ = run("export", source, "--to", engine, "--json")
    told = json.loads(out)
    assert code == 0
    assert (told["engine"], told["output"]) == (engine, None)
    assert told["rounding"]["table"] == exports.rounding(rope, engine).table
    assert set(told["export"]) == set(exports.export(rope, engine))


def test_it_writes_a_config(run, source, config, rope, tmp_path):
    new = tmp_path / "new.json"
    code, out, _ = run("export", source, "--to", "transformers", "--model", config, "-o", new)
    assert code == 0
    assert out.startswith(f"Written: {new}\nRounding, over 256 positions: ")
    (read,) = rfrope.from_config(new)
    np.testing.assert_allclose(read.frequencies, rope.frequencies, atol=1e-6)
    code, out, err = run("export", source, "--to", "transformers", "-o", new)
    assert (code, out) == (2, "")
    assert err == f"rfrope export: error: -o {new}: {new} exists; expected a new name, or --force\n"
    assert run("export", source, "--to", "transformers", "-o", new, "--force")[0] == 0


def test_a_config_is_a_source_too(run, config, tmp_path):
    assert run("export", config, "--to", "mlx", "-o", tmp_path / "periods.npz")[0] == 0
    with np.load(tmp_path / "periods.npz") as held:
        np.testing.assert_allclose(1.0 / held["freqs"], 5e5 ** (-np.arange(8) / 8), rtol=1e-6)
    layers = {"model_type": "gemma3_text", "head_dim": 16, "max_position_embeddings": 256}
    config.write_text(json.dumps(layers))
    code, _, err = run("export", config, "--to", "json")
    assert code == 2
    assert "has a RoPE for 'full_attention', 'sliding_attention'; expected one of them as --part" in err
    code, out, _ = run("export", config, "--to", "json", "--part", "sliding_attention", "--json")
    assert code == 0
    assert json.loads(out)["export"]["frequencies"][1] == pytest.approx(10_000.0 ** (-1 / 8))


def test_it_writes_a_gguf(run, source, tmp_path):
    pytest.importorskip("gguf", reason="gguf is not installed")
    import tiny_llama

    tiny_llama.write(tmp_path / "model.gguf", tiny_llama.weights())
    new = tmp_path / "new.gguf"
    code, out, _ = run("export", source, "--to", "llama.cpp", "--model", tmp_path / "model.gguf", "-o", new)
    assert code == 0
    assert out.startswith(f"Written: {new}\n")
    code, _, err = run("export", source, "--to", "llama.cpp", "--model", source, "-o", tmp_path / "other.gguf")
    assert code == 2
    assert "is no GGUF, or damaged" in err


def test_without_a_context(run, tmp_path):
    rfrope.save(tmp_path / "bare.npz", np.ones(8))
    code, out, _ = run("export", tmp_path / "bare.npz", "--to", "json")
    assert code == 0
    assert out.endswith("Rounding: unknown without a context.\n")
    code, _, err = run("export", tmp_path / "bare.npz", "--to", "onnx")
    assert code == 2
    assert "context is None, and so is the Rope's; onnx needs it" in err
    assert run("export", tmp_path / "bare.npz", "--to", "onnx", "--context", 8)[0] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--to", "vllm"], "expected FILE and --to ENGINE, or --list, or --conformance DIR"),
        (["rope.npz"], "expected FILE and --to ENGINE"),
        (["nowhere.npz", "--to", "vllm"], "there is no such file"),
        (["rope.npz", "--to", "vllm", "--model", "config.json"], "--model config.json: expected -o with it"),
        (["rope.npz", "--to", "vllm", "--dtype", "float16"], "dtype is 'float16', for which vllm has no use"),
        (["rope.npz", "--to", "vllm", "-o", "new.txt"], "-o new.txt: path is 'new.txt'; expected for vllm"),
        (["rope.npz", "--to", "llama.cpp", "-o", "new.gguf"], "model is None; expected for llama.cpp the GGUF to copy"),
    ],
)
def test_bad_input(run, source, config, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    code, out, err = run("export", *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("rfrope export: error: ")
    assert message in err
    assert sorted(os.listdir(tmp_path)) == ["config.json", "rope.npz"]


def test_lists(run):
    code, out, _ = run("export", "--list")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()[2:]] == exports.names()
    told = json.loads(run("export", "--list", "--json")[1])
    assert [one["name"] for one in told] == exports.names()


def test_conformance(run, tmp_path):
    code, out, _ = run("export", "--conformance", tmp_path / "vectors")
    assert code == 0
    assert out == f"Written: 30 cases into {tmp_path / 'vectors'}; its README.md says how to use them.\n"
    code, _, err = run("export", "--conformance", tmp_path / "vectors")
    assert code == 2
    assert "exists and holds something" in err
    assert json.loads(run("export", "--conformance", tmp_path / "more", "--json")[1])["cases"] == 30
