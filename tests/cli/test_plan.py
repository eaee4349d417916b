"""``rfrope plan``: what it prints and writes."""

import json
import pathlib
import re

import numpy as np
import pytest
from campaign import sparse

import rfrope
from rfrope import analysis

CONFIG = {"model_type": "llama", "head_dim": 16, "rope_theta": 1e4, "max_position_embeddings": 256}  # config.json
pytestmark = pytest.mark.usefixtures("folder")


def config_in(out):
    """The text, the name of the method whose config ends it, and that config."""
    text, _, config = out.partition("\n\nWritten: ")[0].rpartition("Config for ")
    name, _, config = config.partition(" (transformers):\n")
    return text, name, json.loads(config)


def test_text_and_json(says):
    plan = analysis.plan(rfrope.from_config("config.json")[0], 1024)
    text, name, config = config_in(says("plan", "config.json", "--context", 1024))
    first = f"yarn is first, by perplexity measured for one model: 4.96. {plan} Nothing above ran your model on a text."
    assert " ".join(text.split()).startswith(" ".join(first.split()))
    assert text.endswith("\nrfrope tune MODEL --texts FILE ... --context 1024 -o rope.npz\n\n")
    assert name == plan.methods[0].name == "yarn"
    assert config == {"rope_parameters": plan.methods[0].rope_parameters, "max_position_embeddings": 1024}
    told = says("plan", "config.json", "--context", 1024, "--json", "--method", "yarn")
    written = {"output": None, "html": None}
    assert told == {"plans": [{"name": "", **plan.to_dict(), "config": config}]} | written


@pytest.mark.parametrize("key", sparse(["rope_parameters", "rope_scaling"], lambda key: key == "rope_scaling"))
def test_a_config_that_is_stretched_already(run, says, config, key):
    scheme = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}
    config("config.json", CONFIG | {key: scheme, "max_position_embeddings": 1024})
    out = says("plan", "config.json", "--context", 1024, "--html", "plan.html")
    said = "The config is already stretched by yarn with factor 4, from 256 positions to 1024. It reaches the "
    assert out.startswith(f"The config reaches 1024 positions unchanged.\n\n{said}")
    assert " From 256 trained positions to 1024, 4 times as many. " in out
    assert config_in(out)[2]["rope_parameters"] == scheme | {"rope_theta": 1e4}
    assert "already stretched by yarn with factor 4" in pathlib.Path("plan.html").read_text("utf-8")
    _, out, _ = run("plan", "config.json", "--context", 2048, "--trained", 1024)
    first = "The frequencies were already scaled by yarn; the plan takes them as trained."
    assert f"\n{first} From 1024 trained positions to 2048, 2 times as many. " in out
    assert "--context 2048 --trained 1024 -o rope.npz" in out


def test_long_lists_of_divisors_are_in_short(says, config):
    scheme = {"rope_type": "longrope", "short_factor": [1.0] * 12, "long_factor": np.linspace(1.0, 3.3, 12).tolist()}
    scheme["attention_factor"] = 1.0
    config("config.json", CONFIG | {"head_dim": 24, "rope_scaling": scheme, "original_max_position_embeddings": 128})
    arguments = ["plan", "config.json", "--context", 1024, "--trained", 256, "--method", "as it is"]
    out = says(*arguments)
    assert len(says(*arguments, "--json")["plans"][0]["config"]["rope_parameters"]["long_factor"]) == 12
    assert out.count("[...]") == 2
    assert not re.search(r"\d\.\d{8}", out)
    assert "Config for as it is (transformers); all numbers with --json, or in a config by -o and `rfrope exp" in out


@pytest.mark.parametrize("name", sparse(["as it is", "linear", "ntk", "llama3"], lambda n: n[0] in "n"))
def test_the_config_of_each_method_gives_its_rope(says, name):
    out = says("plan", "config.json", "--context", 1024, "--method", name, "-o", "new.npz")
    assert out.endswith("\n\nWritten: new.npz\n")
    _, told, config = config_in(out)
    assert told == name
    (read,), saved = rfrope.from_config({"model_type": "llama", "head_dim": 16} | config), rfrope.load("new.npz")
    np.testing.assert_allclose(read.frequencies, saved.frequencies, rtol=2e-7)
    assert read.attention_factor == pytest.approx(saved.attention_factor)
    assert read.context == saved.context == 1024


def test_a_model_whose_scheme_depends_on_the_length_is_read_at_its_own(says, config):
    scheme = {"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
    config("config.json", CONFIG | {"rope_scaling": scheme, "original_max_position_embeddings": 128})
    (plan,) = says("plan", "config.json", "--context", 1024, "--trained", 256, "--json")["plans"]
    (as_it_is,) = (method["frequencies"] for method in plan["methods"] if method["name"] == "as it is")
    np.testing.assert_allclose(as_it_is, rfrope.geometric(8) / 2.0)


def test_layers_with_a_window_are_left_out(run, config):
    code, out, err = run("plan", "layers.json", "--context", 1024)
    assert code == 0
    assert out.startswith("full_attention: yarn is first, by perplexity measured for one model: ")
    assert err == "sliding_attention is left out: it sees 64 positions, however long the text is.\n"
    held = json.loads(pathlib.Path("layers.json").read_text())
    for window, planned in ((256, 2), (255, 1)):  # 256 positions were trained: that window hides none of them
        config("layers.json", held | {"sliding_window": window})
        code, out, _ = run("plan", "layers.json", "--context", 1024)
        assert (code, out.count("Config for ")) == (0, planned)
    config("layers.json", held | {"sliding_window": 4096})
    code, _, err = run("plan", "layers.json", "--context", 1024, "--method", "yarn")
    several = "layers.json has several RoPEs; expected one of 'full_attention', 'sliding_attention' as --part"
    assert code == 2
    assert f"--method: {several}" in err


def test_what_no_config_says(says, config):
    scheme = {"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [1.0] * 7 + [2.0]}
    scheme |= {"mrope_section": [4, 2, 2], "original_max_position_embeddings": 128}
    config("config.json", CONFIG | {"rope_scaling": scheme})
    out = says("plan", "config.json", "--context", 1024, "--trained", 256, "--method", "linear")
    reason = "it has 3 position axes; for text alone, pass replace(rope, sections=None)"
    assert out.endswith(f"\nA config cannot hold linear: rope cannot be exported to transformers: {reason}.\n")
    out = says("plan", "no_context.npz", "--context", 1024, "--trained", 256)
    assert "\nFrom 256 trained positions to 1024, 4 times" in out
