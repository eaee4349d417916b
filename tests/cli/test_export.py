"""``rfrope export``: its text and its files."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

import rfrope
from rfrope import exports

ROPE = rfrope.Rope(rfrope.sample("gaussian(scale=16)", 8, rng=0), context=256)  # as in rope.npz
pytestmark = pytest.mark.usefixtures("folder")


def test_it_prints_the_export(run):
    code, out, err = run("export", "rope.npz", "--to", "vllm")
    assert (code, err) == (0, "")
    data, _, last = out.rpartition("\nRounding, ")
    assert json.loads(data) == exports.export(ROPE, "vllm")
    assert last == f"{exports.rounding(ROPE, 'vllm')}.\n"


@pytest.mark.parametrize("engine", ["vLLM", "flash-attn", "ONNX", "json"])
def test_json(run, engine):
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


def test_a_config_is_a_source_too(run):
    assert run("export", "config.json", "--to", "mlx", "-o", "periods.npz")[0] == 0
    with np.load("periods.npz") as held:
        np.testing.assert_allclose(1.0 / held["freqs"], 1e4 ** (-np.arange(8) / 8), rtol=1e-6)
    code, out, _ = run("export", "layers.json", "--to", "json", "--part", "sliding_attention", "--json")
    assert (code, json.loads(out)["export"]["frequencies"][1]) == (0, pytest.approx(10_000.0 ** (-1 / 8)))
    code, out, _ = run("export", "no_context.npz", "--to", "json")
    assert code == 0
    assert out.endswith("Rounding: unknown without a context.\n")
    assert run("export", "no_context.npz", "--to", "onnx", "--context", 8)[0] == 0


def test_an_unchanged_config_stays_and_says_what_it_reaches(run, config):
    scheme = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    config("yarn.json", {"model_type": "llama", "head_dim": 16, "max_position_embeddings": 64, "rope_scaling": scheme})
    code, out, err = run("export", "yarn.json", "--to", "vllm")
    told, _, said = out.rpartition("exported as yarn.\n")
    assert (code, err) == (0, "")
    assert said == "yarn reaches 4 x 64 = 256 positions, where max_position_embeddings is 64.\n"
    assert json.loads(told.partition("\nRounding, ")[0])["rope_parameters"]["rope_type"] == "yarn"
    assert run("export", "yarn.json", "--to", "vllm", "--context", 256)[1].endswith("; exported as yarn.\n")


def test_lists_and_conformance(run):
    code, out, _ = run("export", "--list")
    assert code == 0
    assert [re.split("  +", line)[0] for line in out.splitlines()[2:]] == exports.names()
    assert [one["name"] for one in json.loads(run("export", "--list", "--json")[1])] == exports.names()
    done = "Written: 36 cases into vectors; its README.md says how to use them.\n"
    assert run("export", "--conformance", "vectors") == (0, done, "")
    assert "exists and holds something" in run("export", "--conformance", "vectors")[2]
