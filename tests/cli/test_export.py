"""``rfrope export``: its text, its files and its refusals."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest

import rfrope
from rfrope import exports

CONFIG = {"model_type": "llama", "head_dim": 16, "rope_theta": 5e5, "max_position_embeddings": 256}
ROPE = rfrope.Rope(rfrope.sample("gaussian(scale=16)", 8, rng=0), context=256)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rfrope.save("rope.npz", ROPE)
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path


def test_it_prints_the_export(run):
    code, out, err = run("export", "rope.npz", "--to", "vllm")
    assert (code, err) == (0, "")
    data, _, last = out.rpartition("\nRounding, ")
    assert json.loads(data) == exports.export(ROPE, "vllm")
    assert last == f"{exports.rounding(ROPE, 'vllm')}.\n"


@pytest.mark.parametrize("engine", [name for name in exports.names() if name != "llama.cpp"])
def test_json_of_every_engine(run, engine):
    code, out, _ = run("export", "rope.npz", "--to", engine.lower().replace("-", "_"), "--json")
    found = json.loads(out)
    assert (code, found["engine"], found["output"]) == (0, engine, None)
    assert found["rounding"]["table"] == exports.rounding(ROPE, engine).table
    assert set(found["export"]) == set(exports.export(ROPE, engine))


def test_it_writes_a_config(run):
    arguments = ("export", "rope.npz", "--to", "transformers", "--model", "config.json", "-o", "new.json")
    code, out, _ = run(*arguments)
    assert code == 0
    assert out.startswith("Written: new.json\nRounding, over 256 positions: ")
    (read,) = rfrope.from_config("new.json")
    np.testing.assert_allclose(read.frequencies, ROPE.frequencies, atol=1e-6)
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert "error: -o new.json: " in err
    assert "new.json exists; expected a new name, or --force\n" in err
    assert run(*arguments, "--force")[0] == 0


def test_a_config_is_a_source_too(run, folder):
    assert run("export", "config.json", "--to", "mlx", "-o", "periods.npz")[0] == 0
    with np.load("periods.npz") as held:
        np.testing.assert_allclose(1.0 / held["freqs"], 5e5 ** (-np.arange(8) / 8), rtol=1e-6)
    layers = {"model_type": "gemma3_text", "head_dim": 16, "max_position_embeddings": 256}
    (folder / "config.json").write_text(json.dumps(layers))
    code, _, err = run("export", "config.json", "--to", "json")
    assert code == 2
    assert "has a RoPE for 'full_attention', 'sliding_attention'; expected one of them as --part" in err
    code, out, _ = run("export", "config.json", "--to", "json", "--part", "sliding_attention", "--json")
    assert (code, json.loads(out)["export"]["frequencies"][1]) == (0, pytest.approx(10_000.0 ** (-1 / 8)))


def test_it_writes_a_gguf(run):
    pytest.importorskip("gguf", reason="gguf is not installed")
    import tiny_llama

    tiny_llama.write("model.gguf", tiny_llama.weights())
    code, out, _ = run("export", "rope.npz", "--to", "llama.cpp", "--model", "model.gguf", "-o", "new.gguf")
    assert code == 0
    assert out.startswith("Written: new.gguf\n")
    code, _, err = run("export", "rope.npz", "--to", "llama.cpp", "--model", "rope.npz", "-o", "other.gguf")
    assert code == 2
    assert "is not a GGUF, or damaged" in err


def test_without_a_context(run):
    rfrope.save("bare.npz", np.ones(8))
    code, out, _ = run("export", "bare.npz", "--to", "json")
    assert code == 0
    assert out.endswith("Rounding: unknown without a context.\n")
    assert run("export", "bare.npz", "--to", "onnx", "--context", 8)[0] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--to", "vllm"], "expected FILE and --to ENGINE, or --list, or --conformance DIR"),
        (["rope.npz"], "expected FILE and --to ENGINE"),
        (["rope.npz", "--to", "vlm"], "argument --to: 'vlm' is unknown; did you mean 'vLLM'? Expected one of 'trans"),
        (["nowhere.npz", "--to", "vllm"], "there is no such file"),
        (["rope.npz", "--to", "vllm", "--model", "config.json"], "--model config.json: expected -o with it"),
        (["rope.npz", "--to", "vllm", "--part", "a"], "--part a: rope.npz holds one RoPE"),
        (["rope.npz", "--to", "vllm", "--dtype", "float16"], "dtype is 'float16', for which vLLM has no use"),
        (["rope.npz", "--to", "vllm", "-o", "new.txt"], "-o new.txt: path is 'new.txt'; expected for vLLM"),
        (["rope.npz", "--to", "llama.cpp", "-o", "new.gguf"], "model is None; expected for llama.cpp the GGUF to copy"),
    ],
)
def test_bad_input(run, arguments, message):
    code, out, err = run("export", *arguments)
    assert (code, out) == (2, "")
    assert "rfrope export: error: " in err
    assert message in err
    assert sorted(os.listdir()) == ["config.json", "rope.npz"]


def test_lists(run):
    code, out, _ = run("export", "--list")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()[2:]] == exports.names()
    assert [one["name"] for one in json.loads(run("export", "--list", "--json")[1])] == exports.names()


def test_conformance(run):
    done = "Written: 30 cases into vectors; its README.md says how to use them.\n"
    assert run("export", "--conformance", "vectors") == (0, done, "")
    code, _, err = run("export", "--conformance", "vectors")
    assert code == 2
    assert "exists and holds something" in err
    assert json.loads(run("export", "--conformance", "more", "--json")[1])["cases"] == 30
