"""``rfrope export``: its text and its files."""

import json

import numpy as np
import pytest

import rfrope
from rfrope import engines

pytestmark = pytest.mark.usefixtures("folder")


@pytest.fixture
def rope(folder):
    return rfrope.load("rope.npz")


@pytest.mark.parametrize("engine", ["vLLM", "flash-attn", "ONNX", "json"])
def test_text_and_json(says, rope, engine):
    words, wanted = ("export", "rope.npz", "--to", engine.lower().replace("-", "_")), engines.export(rope, engine)
    found = says(*words, "--json")
    assert (found["engine"], found["output"], set(found["export"])) == (engine, None, set(wanted))
    assert found["rounding"]["table"] == engines.rounding(rope, engine).table
    if engine == "vLLM":
        first, _, data = says(*words).partition("\n\n")
        assert (json.loads(data), first) == (wanted, f"Rounding, {engines.rounding(rope, engine)}.")


def test_it_writes_a_config(run, says, rope):
    arguments = ("export", "rope.npz", "--to", "transformers", "--model", "config.json", "-o", "new.json")
    assert says(*arguments).startswith("Written: new.json\nRounding, over 256 positions: ")
    (read,) = rfrope.from_config("new.json")
    np.testing.assert_allclose(read.frequencies, rope.frequencies, atol=1e-6)
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert "error: -o new.json: " in err
    assert "new.json exists; expected a new name, or --force\n" in err
    assert run(*arguments, "--force")[0] == 0


def test_a_config_is_a_source_too(run, says):
    assert run("export", "config.json", "--to", "mlx", "-o", "periods.npz")[0] == 0
    with np.load("periods.npz") as held:
        np.testing.assert_allclose(1.0 / held["freqs"], 1e4 ** (-np.arange(8) / 8), rtol=1e-6)
    held = says("export", "layers.json", "--to", "json", "--part", "sliding_attention", "--json")
    assert held["export"]["frequencies"][1] == pytest.approx(10_000.0 ** (-1 / 8))
    assert says("export", "no_context.npz", "--to", "json").startswith("Rounding: unknown without a context.\n")
    assert run("export", "no_context.npz", "--to", "onnx", "--context", 8)[0] == 0


def test_an_unchanged_config_stays_and_says_what_it_reaches(run, says, config):
    scheme = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    config("yarn.json", {"model_type": "llama", "head_dim": 16, "max_position_embeddings": 64, "rope_scaling": scheme})
    told, _, data = says("export", "yarn.json", "--to", "vllm").partition("\n\n")
    said = "exported as yarn.\nyarn reaches 4 x 64 = 256 positions, where max_position_embeddings is 64."
    assert (told.endswith(said), json.loads(data)["rope_parameters"]["rope_type"]) == (True, "yarn")
    assert "; exported as yarn.\n\n" in run("export", "yarn.json", "--to", "vllm", "--context", 256)[1]
